//! Which members a leader is in contact with, and what all of those have on their disks.
//!
//! A member is *in contact* while it answers beats, or batches, of the present term. One that has not answered for an election time-out is
//! left out. So is one that answers, and for ten times as long does not get what the leader had then: its disk hangs, or is slower than
//! what is written. One that says that it lacks some of it fetches what it missed, and has an election time-out for that.
//!
//! Who was left out counts again once it answers and has all that the mark has, or gets within an election time-out what the leader had:
//! nothing waits until who comes back has what it missed. The latter *joins*: the mark stays where it is until that one has as much, for a
//! time-out at most, and for so long it is shown as left out. Else who is always a little later than the others, and so never has what they
//! have, would stay left out for as long as something is written.
//!
//! The *mark* is the last batch that all who count have stored, the leader among them, and that is agreed upon. It never goes back in a
//! term. So who is not shown as left out has all up to the mark, at any time. A new leader has heard nobody. It takes all voters for being
//! in contact, so its mark begins with what all of them tell that they have, or with whom an election time-out leaves out.
//!
//! Time in which the leader itself stood still does not count: its members may have answered meanwhile.
//!
//! Learners are not waited for. They become voters once they have all there is.

use std::collections::BTreeMap;

use crate::members::{MemberId, Members};

/// So many election time-outs a member may lack what the leader had.
const BEHIND: u64 = 10;

/// Why what is confirmed by all members in contact may lack a member's copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeftOut {
    /// It does not answer.
    Silent,
    /// It answers, and does not have yet what it is to have.
    Behind,
}

impl LeftOut {
    /// In words, of a member.
    pub const fn why(self) -> &'static str {
        match self {
            Self::Silent => "does not answer",
            Self::Behind => "lacks what the others have",
        }
    }
}

/// What a leader knows at some moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaderPlace<'a> {
    pub(crate) own: MemberId,
    pub(crate) members: &'a Members,
    pub(crate) term: u64,
    pub(crate) now_ms: u64,
    /// The numbers of the last batch, of the last one that the leader's own disk has, and of the last one that is agreed upon.
    pub(crate) last: u64,
    pub(crate) stored: u64,
    pub(crate) agreed: u64,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Contacts {
    term: u64,
    mark: u64,
    all: BTreeMap<MemberId, Contact>,
    /// Who said that it lacks what the leader had, when, by this clock, and has not got it since. It may say so before the first look.
    lacking: BTreeMap<MemberId, u64>,
    /// None before the first look of the term.
    looked_ms: Option<u64>,
    /// Time that counts, in ms.
    clock_ms: u64,
}

#[derive(Debug)]
struct Contact {
    answered_ms: u64,
    /// It is to have this batch, which was the last one then.
    wanted: (u64, u64),
    left_out: Option<LeftOut>,
    /// It counts again, and lacks some of what the mark has.
    joins: bool,
}

impl Contacts {
    /// A member answers in a term.
    pub(crate) fn answers(&mut self, term: u64, from: MemberId) {
        if let Some(contact) = self.all.get_mut(&from).filter(|_| self.term == term) {
            contact.answered_ms = self.clock_ms;
        }
    }

    /// What a leader of this term has is not in the log of a member.
    pub(crate) fn lacks(&mut self, term: u64, from: MemberId) {
        self.begin(term);
        self.lacking.entry(from).or_insert(self.clock_ms);
    }

    fn begin(&mut self, term: u64) {
        if self.term != term {
            *self = Self { term, ..Self::default() };
        }
    }

    /// Looks who is in contact. `patience_ms` is an election time-out, and `matched` tells how much of the log a member has stored. Gives the
    /// number of the mark.
    pub(crate) fn look(
        &mut self,
        place: LeaderPlace<'_>,
        patience_ms: u64,
        matched: impl Fn(MemberId) -> u64,
    ) -> u64 {
        let LeaderPlace { own, members, term, now_ms, last, stored, agreed } = place;
        self.begin(term);
        let is_new = self.looked_ms.is_none();
        let looked_ms = self.looked_ms.unwrap_or(now_ms);
        // A quarter is several ticks. A leader that runs looks more often.
        let passed_ms = now_ms.saturating_sub(looked_ms);
        self.clock_ms += passed_ms.min(patience_ms / 4);
        self.looked_ms = Some(looked_ms.max(now_ms));
        let clock_ms = self.clock_ms;
        self.all.retain(|id, _| members.has_voter(*id));
        self.lacking.retain(|id, _| members.has_voter(*id));
        let mut mark = stored.min(agreed);
        let others = members.voters.iter().chain(&members.outgoing).filter(|id| **id != own);
        for &id in others {
            let has = matched(id);
            let contact = self.all.entry(id).or_insert_with(|| Contact {
                answered_ms: clock_ms,
                wanted: (last, clock_ms),
                left_out: (!is_new).then_some(LeftOut::Behind),
                joins: false,
            });
            let is_silent = clock_ms - contact.answered_ms >= patience_ms;
            let (wanted, since_ms) = contact.wanted;
            let (gets_on, waited_ms) = (has >= wanted, clock_ms - since_ms);
            let has_all = has >= self.mark;
            let lacks_ms = self.lacking.get(&id).map_or(0, |since_ms| clock_ms - since_ms);
            let may_wait = waited_ms < BEHIND * patience_ms && lacks_ms < patience_ms;
            let was_left_out = contact.left_out.is_some();
            let counts = match was_left_out {
                true => has_all || gets_on && waited_ms < patience_ms,
                false if contact.joins => has_all || waited_ms < patience_ms,
                false => has_all && (gets_on || may_wait),
            };
            let counts = counts && !is_silent;
            if gets_on || counts && was_left_out {
                contact.wanted = (last, clock_ms);
                self.lacking.remove(&id);
            }
            contact.joins = counts && !has_all;
            contact.left_out = match counts {
                true => None,
                false if is_silent => Some(LeftOut::Silent),
                false => Some(LeftOut::Behind),
            };
            if counts {
                mark = mark.min(has);
            }
        }
        self.mark = self.mark.max(mark);
        self.mark
    }

    /// Who is left out, and why, as of the last look. Who joins is until it has all that the mark has.
    pub(crate) fn left_out(&self) -> impl Iterator<Item = (MemberId, LeftOut)> {
        let why = |it: &Contact| it.left_out.or_else(|| it.joins.then_some(LeftOut::Behind));
        self.all.iter().filter_map(move |(id, contact)| Some((*id, why(contact)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE_MS: u64 = 800;

    /// The leader is 1, and has stored and agreed upon all it has.
    struct Row {
        contacts: Contacts,
        members: Members,
        term: u64,
        now_ms: u64,
        last: u64,
        has: BTreeMap<MemberId, u64>,
    }

    impl Row {
        fn new() -> Self {
            let members = Members::of(&[1, 2, 3].map(MemberId));
            let has = [(MemberId(2), 10), (MemberId(3), 10)].into();
            let contacts = Contacts::default();
            let mut row = Self { contacts, members, term: 7, now_ms: 1_000, last: 10, has };
            assert_eq!(row.look(0), (10, "".to_owned()));
            row
        }

        /// So much later: the mark, and who is left out.
        fn look(&mut self, after_ms: u64) -> (u64, String) {
            self.now_ms += after_ms;
            let place = LeaderPlace {
                own: MemberId(1),
                members: &self.members,
                term: self.term,
                now_ms: self.now_ms,
                last: self.last,
                stored: self.last,
                agreed: self.last,
            };
            let has = |id| self.has.get(&id).copied().unwrap_or(0);
            let mark = self.contacts.look(place, PATIENCE_MS, has);
            let left_out = self.contacts.left_out().map(|(id, why)| format!("{id} {why:?}"));
            (mark, left_out.collect::<Vec<_>>().join(", "))
        }

        /// For so long, in which these answer.
        fn pass(&mut self, ms: u64, answer: &[u64]) -> (u64, String) {
            for _ in 0..ms / 100 - 1 {
                answer.iter().for_each(|id| self.contacts.answers(self.term, MemberId(*id)));
                self.look(100);
            }
            answer.iter().for_each(|id| self.contacts.answers(self.term, MemberId(*id)));
            self.look(100)
        }

        fn has(&mut self, id: u64, number: u64) {
            self.has.insert(MemberId(id), number);
        }
    }

    #[test]
    fn the_mark_waits_for_who_is_slow() {
        let mut row = Row::new();
        row.last = 20;
        row.has(2, 20);
        row.has(3, 15);
        assert_eq!(row.pass(600, &[2, 3]), (15, String::new()));
        row.has(3, 20);
        assert_eq!(row.look(1), (20, String::new()));
    }

    #[test]
    fn who_does_not_answer_is_left_out_until_it_has_what_it_missed() {
        let mut row = Row::new();
        row.last = 20;
        row.has(2, 20);
        assert_eq!(row.pass(700, &[2]), (10, String::new()));
        assert_eq!(row.pass(100, &[2]), (20, "3 Silent".to_owned()));
        row.last = 30;
        row.has(2, 30);
        assert_eq!(row.pass(200, &[2]), (30, "3 Silent".to_owned()));
        // It is back, and gets what it lacks: nothing waits for that.
        row.last = 40;
        row.has(2, 40);
        row.has(3, 25);
        assert_eq!(row.pass(200, &[2, 3]), (40, "3 Behind".to_owned()));
        row.has(3, 40);
        assert_eq!(row.pass(100, &[2, 3]), (40, String::new()));
        row.last = 41;
        row.has(2, 41);
        assert_eq!(row.pass(500, &[2, 3]), (40, String::new()));
    }

    /// One that is always a little later than the other: it lacks something at any time, and counts.
    #[test]
    fn who_was_away_and_keeps_up_counts_again() {
        let mut row = Row::new();
        let write = |row: &mut Row, late: u64, answer: &[u64]| {
            row.last += 10;
            row.has(2, row.last);
            if answer.contains(&3) {
                row.has(3, row.last - late);
            }
            row.pass(100, answer)
        };
        for _ in 0..20 {
            write(&mut row, 0, &[2]);
        }
        assert_eq!(row.look(0), (row.last, "3 Silent".to_owned()));
        for _ in 0..20 {
            write(&mut row, 30, &[2, 3]);
        }
        assert_eq!(row.look(0), (row.last - 30, String::new()), "all wait for it");
        // One that needs longer than others are waited for, or does not have what it was waited for, does not count.
        for late in [90, 1_000] {
            let mut row = Row::new();
            for _ in 0..200 {
                write(&mut row, 0, &[2]);
            }
            for _ in 0..100 {
                let (mark, left_out) = write(&mut row, late, &[2, 3]);
                assert_eq!((mark, &left_out[..]), (row.last, "3 Behind"), "{late}");
            }
        }
    }

    /// Who joins, and is not there any more, is waited for for an election time-out.
    #[test]
    fn who_joins_and_gets_nothing_more_is_left_out_soon() {
        let mut row = Row::new();
        row.last = 20;
        row.has(2, 20);
        assert_eq!(row.pass(1_000, &[2]), (20, "3 Silent".to_owned()));
        row.last = 30;
        row.has(2, 30);
        row.has(3, 20);
        row.pass(100, &[2]);
        row.last = 40;
        row.has(2, 40);
        assert_eq!(row.pass(100, &[2]), (40, "3 Silent".to_owned()));
        // What the leader had just now it has, and gets no more.
        row.has(3, 30);
        for _ in 0..8 {
            assert_eq!(row.pass(100, &[2, 3]), (40, "3 Behind".to_owned()));
            row.last += 10;
            row.has(2, row.last);
        }
        for _ in 0..20 {
            assert_eq!(row.pass(100, &[2, 3]), (row.last, "3 Behind".to_owned()));
            row.last += 10;
            row.has(2, row.last);
        }
    }

    /// Who is not shown as left out has all up to the mark.
    #[test]
    fn who_joins_is_shown_as_left_out_until_it_has_what_the_mark_has() {
        let mut row = Row::new();
        let write = |row: &mut Row, answer: &[u64]| {
            row.last += 10;
            row.has(2, row.last);
            row.pass(100, answer)
        };
        (0..20).for_each(|_| _ = write(&mut row, &[2]));
        assert_eq!(row.look(0), (210, "3 Silent".to_owned()));
        row.has(3, 200);
        assert_eq!(write(&mut row, &[2, 3]), (220, "3 Behind".to_owned()));
        assert_eq!(write(&mut row, &[2, 3]), (230, "3 Behind".to_owned()));
        // It counts, as it has what the leader had a moment before: the mark stays where it is.
        row.has(3, 220);
        assert_eq!(write(&mut row, &[2, 3]), (230, "3 Behind".to_owned()));
        assert_eq!(write(&mut row, &[2, 3]), (230, "3 Behind".to_owned()));
        row.has(3, 235);
        assert_eq!(row.look(1), (235, String::new()));
    }

    #[test]
    fn who_answers_and_gets_nothing_is_left_out_after_a_while() {
        let mut row = Row::new();
        row.last = 20;
        row.has(2, 20);
        assert_eq!(row.pass(8_000, &[2, 3]), (10, String::new()));
        assert_eq!(row.pass(100, &[2, 3]), (20, "3 Behind".to_owned()));
        // Who gets on is waited for, however slow it is, if what it lacks is not old.
        let mut row = Row::new();
        for _ in 0..40 {
            row.last += 10;
            row.has(2, row.last);
            let has = row.last - 10;
            row.has(3, has);
            assert_eq!(row.pass(1_000, &[2, 3]), (has, String::new()));
        }
    }

    #[test]
    fn what_the_leader_slept_through_does_not_count() {
        let mut row = Row::new();
        row.last = 20;
        row.has(2, 20);
        assert_eq!(row.look(60_000), (10, String::new()));
        assert_eq!(row.pass(500, &[2]), (10, String::new()));
        assert_eq!(row.pass(100, &[2]), (20, "3 Silent".to_owned()));
    }

    #[test]
    fn a_new_leader_waits_for_all_voters() {
        let mut row = Row::new();
        row.pass(1_000, &[2]);
        (row.term, row.has) = (8, [(MemberId(2), 10)].into());
        // Of an earlier term it is no answer.
        row.contacts.answers(7, MemberId(3));
        assert_eq!(row.look(100), (0, String::new()));
        assert_eq!(row.pass(700, &[2]), (0, String::new()));
        assert_eq!(row.pass(100, &[2]), (10, "3 Silent".to_owned()));
    }

    /// Nothing waits for who fetches what it missed, though the leader before it was another one.
    #[test]
    fn a_new_leader_does_not_wait_for_who_fetches() {
        for says in [true, false] {
            let mut row = Row::new();
            row.contacts.lacks(7, MemberId(2));
            (row.term, row.last, row.has) = (8, 20, [(MemberId(2), 20)].into());
            if says {
                // Before the leader has looked.
                row.contacts.lacks(8, MemberId(3));
            }
            assert_eq!(row.pass(800, &[2, 3]), (0, String::new()));
            let left_out = (20, "3 Behind".to_owned());
            assert_eq!(row.pass(100, &[2, 3]) == left_out, says);
            assert_eq!(row.pass(7_300, &[2, 3]), left_out);
            row.has(3, 20);
            assert_eq!(row.pass(100, &[2, 3]), (20, String::new()));
            // Its disk is slow now.
            row.last = 30;
            row.has(2, 30);
            assert_eq!(row.pass(7_000, &[2, 3]), (20, String::new()));
            // It was slow, and missed something: it has as long as others.
            row.contacts.lacks(8, MemberId(3));
            assert_eq!(row.pass(700, &[2, 3]), (20, String::new()));
            assert_eq!(row.pass(100, &[2, 3]), (30, "3 Behind".to_owned()));
        }
    }

    #[test]
    fn who_lost_what_it_had_is_left_out() {
        let mut row = Row::new();
        row.has(3, 4);
        assert_eq!(row.pass(100, &[2, 3]), (10, "3 Behind".to_owned()));
    }

    #[test]
    fn members_change() {
        let mut row = Row::new();
        // The new one is waited for from when it has what there is.
        row.members.voters.push(MemberId(4));
        row.last = 20;
        row.has(2, 20);
        row.has(3, 20);
        assert_eq!(row.pass(300, &[2, 3, 4]), (20, "4 Behind".to_owned()));
        row.has(4, 20);
        assert_eq!(row.pass(100, &[2, 3, 4]), (20, String::new()));
        row.last = 30;
        row.has(2, 30);
        row.has(4, 30);
        assert_eq!(row.pass(300, &[2, 3, 4]), (20, String::new()));
        // While members are exchanged both sets count.
        row.members.outgoing = row.members.voters.clone();
        row.members.voters.retain(|id| id.0 != 3);
        assert_eq!(row.pass(300, &[2, 3, 4]), (20, String::new()));
        row.members.outgoing.clear();
        assert_eq!(row.pass(100, &[2, 4]), (30, String::new()));
    }
}
