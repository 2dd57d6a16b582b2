//! What is known to go wrong with such engines, each as a test.

use std::collections::{BTreeMap, BTreeSet};

use super::bench::{Bench, Letter, SETTINGS, batch, founded, id, name};
use crate::{
    Batches, Body, Breach, Change, GroupFacts, Lease, Members, MemoryBatches, NotNow, Point,
    Replica, Role, Step, Stored, Task, Word,
};

/// Three, of which the first leads.
fn led() -> Bench {
    let mut bench = Bench::of(3);
    bench.elect(1, &[1, 2, 3]);
    assert!(bench.replica(1).leads().is_some());
    bench
}

#[test]
fn a_leader_has_a_shard_when_its_first_batch_is_agreed_upon() {
    let mut bench = Bench::of(3);
    bench.seat(2).syncs = false;
    bench.elect(1, &[1, 2]);
    // The vote is not kept yet.
    assert_eq!(bench.replica(1).leader(), None);
    bench.sync_word(2);
    bench.deliver(&[1, 2]);
    assert_eq!(bench.replica(1).leader(), Some(id(1)));
    assert_eq!((bench.replica(1).leads(), bench.replica(1).next()), (None, None));
    bench.sync_log(2);
    bench.sync_word(2);
    bench.deliver(&[1, 2]);
    let term = bench.replica(1).term();
    assert_eq!(bench.seat(1).roles, [Role::Leads { term }]);
    assert_eq!(bench.replica(1).next(), Some(name(3, term)));
}

#[test]
fn a_vote_and_a_candidacy_wait_for_the_word() {
    let mut bench = Bench::of(3);
    bench.seat(1).syncs = false;
    bench.stand(1);
    let asked = bench.said_by(1);
    assert!(asked.iter().all(|it| matches!(it, Body::PreVote { .. })), "{asked:?}");
    bench.say(2, 1, 2, Body::PreVoted { granted: true }).unwrap();
    assert_eq!(bench.said_by(1), [], "its own vote is not kept");
    bench.sync_word(1);
    let asked = bench.said_by(1);
    assert!(matches!(asked[..], [Body::Vote { .. }, Body::Vote { .. }]), "{asked:?}");

    bench.seat(2).syncs = false;
    bench.say(3, 2, 2, Body::Vote { last: name(1, 1), transfer: None }).unwrap();
    assert_eq!(bench.said_by(2), []);
    bench.sync_word(2);
    assert_eq!(bench.said_by(2), [Body::Voted { granted: true, lease_ms: 0 }]);
    assert_eq!((bench.seat(2).word.term, bench.seat(2).word.vote), (2, Some(id(3))));
    // After a start it knows.
    bench.restart(2);
    bench.pass_quiet(2);
    bench.say(1, 2, 2, Body::Vote { last: name(1, 1), transfer: None }).unwrap();
    assert_eq!(bench.said_by(2), [Body::Voted { granted: false, lease_ms: 0 }]);
}

#[test]
fn a_leaders_batches_leave_before_its_own_sync_and_do_not_need_it() {
    let mut bench = led();
    bench.seat(1).syncs = false;
    let made = bench.propose(1);
    bench.deliver(&[1, 2, 3]);
    assert_eq!(bench.replica(1).agreed(), made, "two others have it");
    assert_eq!(bench.seat(1).log.unsynced(), 1);
}

#[test]
fn a_leaders_own_disk_counts_once_it_has_it_and_gave_its_word() {
    let mut bench = led();
    bench.seat(1).syncs = false;
    let made = bench.propose(1);
    bench.deliver(&[1, 2]);
    assert!(bench.replica(1).agreed() < made);
    bench.sync_log(1);
    assert!(bench.replica(1).agreed() < made);
    bench.sync_word(1);
    assert_eq!(bench.replica(1).agreed(), made, "it and one other");
}

#[test]
fn appended_waits_for_the_batch_and_for_the_mark() {
    let mut bench = led();
    bench.seat(2).syncs = false;
    let made = bench.propose(1);
    for letter in std::mem::take(&mut bench.letters) {
        if letter.to == 2 {
            bench.arrive(letter).unwrap();
        }
    }
    assert_eq!(bench.said_by(2), []);
    bench.sync_log(2);
    assert_eq!(bench.said_by(2), [], "its word is not given");
    bench.sync_word(2);
    assert_eq!(bench.said_by(2), [Body::Appended { number: made.number }]);
    assert_eq!(bench.seat(2).word.mark, made);
}

/// The same number is written in one term, cut, and written in another: what completes late is not what is there.
#[test]
fn a_late_completion_is_not_taken_for_what_came_after_a_cut() {
    let mut bench = Bench::of(3);
    let append = |term, before, batch: crate::Batch| Body::Append {
        before,
        batches: vec![batch],
        agreed: if term == 0 { 1 } else { 0 },
    };
    bench.seat(3).syncs = false;
    let first = append(2, name(1, 1), batch(2, 2));
    bench.say(1, 3, 2, first.clone()).unwrap();
    bench.sync_word(3);
    let stored = |term, cuts| Stored { name: name(2, term), cuts };
    let late = stored(2, bench.replica(3).cuts());
    bench.say(2, 3, 3, append(3, name(1, 1), batch(2, 3))).unwrap();
    bench.sync_word(3);
    let output = bench.seat(3).replica.stored(late);
    assert!(output.messages.is_empty() && output.tasks.is_empty(), "another term");
    // And back again: it has the name that completes, and is a third write.
    let Body::Append { before, batches, agreed } = first else { unreachable!() };
    bench.say(1, 3, 4, Body::Append { before, batches, agreed }).unwrap();
    bench.sync_word(3);
    assert_eq!(bench.replica(3).last(), name(2, 2));
    let output = bench.seat(3).replica.stored(late);
    assert!(output.messages.is_empty() && output.tasks.is_empty(), "an earlier write");
    bench.said_by(3);
    bench.sync_log(3);
    bench.sync_word(3);
    assert_eq!(bench.said_by(3), [Body::Appended { number: 2 }]);
}

#[test]
fn a_cut_lowers_the_mark_first_and_takes_back_what_was_to_be_said() {
    let mut bench = led();
    let term = bench.replica(1).term();
    bench.propose(1);
    for letter in std::mem::take(&mut bench.letters) {
        if letter.to == 3 {
            bench.arrive(letter).unwrap();
        }
    }
    bench.letters.clear();
    assert_eq!(bench.seat(3).word.mark.number, 3);
    let body = Body::Append { before: name(2, term), batches: vec![batch(3, 9)], agreed: 0 };
    bench.seat(3).syncs = false;
    let output = bench.seat(3).replica.step(id(2), crate::Message { term: 9, body }).unwrap();
    let tasks: Vec<_> = output.tasks.iter().map(std::mem::discriminant).collect();
    let kinds = [
        Task::Keep(Word::default(), crate::Ticket(0)),
        Task::Keep(Word::default(), crate::Ticket(0)),
        Task::Cut(3),
        Task::Copy(Vec::new()),
    ];
    assert_eq!(tasks, kinds.each_ref().map(std::mem::discriminant));
    let Task::Keep(word, _) = output.tasks[1] else { unreachable!() };
    assert_eq!(word.mark, name(2, term));
    bench.handle(3, output);
    assert_eq!(bench.seat(3).log.last(), name(3, term), "the cut waits for the word");
    bench.sync_word(3);
    assert_eq!(bench.seat(3).log.last(), name(3, 9));
}

/// Figure 8 of the Raft paper: a majority has a batch of an earlier term, and it may be lost all the same.
#[test]
fn copies_of_an_earlier_term_do_not_count() {
    let mut bench = Bench::of(5);
    bench.elect(1, &[1, 2, 3, 4, 5]);
    let made = bench.propose(1);
    bench.deliver(&[1, 2]);
    for number in 1..=5 {
        bench.restart(number);
        bench.pass_quiet(number);
    }
    // Another leads, and reaches nobody with its first batch.
    bench.stand(5);
    for _ in 0..6 {
        for letter in std::mem::take(&mut bench.letters) {
            let is_append = matches!(letter.message.body, Body::Append { .. });
            if [letter.from, letter.to].iter().all(|it| [3, 4, 5].contains(it)) && !is_append {
                bench.arrive(letter).unwrap();
            }
        }
    }
    assert_eq!(bench.replica(5).leader(), Some(id(5)));
    bench.restart(5);
    bench.seat(5).replica.calm_down();
    bench.pass_quiet(5);
    // The first one leads again. A third one gets what it made before, and what it makes now gets lost.
    let cut = |it: &mut Letter| {
        if let Body::Append { batches, .. } = &mut it.message.body {
            batches.retain(|it| it.name.term <= 3);
        }
    };
    while bench.replica(1).leader() != Some(id(1)) {
        [2, 4].into_iter().for_each(|other| bench.seat(other).replica.calm_down());
        bench.stand(1);
        bench.deliver_but(&[1, 2, 4], cut);
    }
    for _ in 0..6 {
        bench.ticks(1, 1);
        bench.deliver_but(&[1, 2, 4], cut);
    }
    let begun = bench.replica(1).last();
    assert!(begun.term > bench.replica(5).last().term && bench.replica(5).last().term > made.term);
    let have = [2, 4].map(|other| bench.replica(1).matched(id(other)));
    assert_eq!(have, [Some(made.number); 2], "with its own that is a majority");
    assert!(bench.replica(1).agreed().number < made.number);
    // The other one would win, and none of it would be left. With a batch of the new term it cannot.
    for _ in 0..3 {
        bench.ticks(1, 1);
        bench.deliver(&[1, 2, 4]);
    }
    assert_eq!(bench.replica(1).agreed(), begun);
}

#[test]
fn a_batch_that_cannot_be_is_refused() {
    let mut bench = led();
    let term = bench.replica(1).term();
    let append = |before, batches| Body::Append { before, batches, agreed: 0 };
    let mut check = |from, to, term, body: Body, is_wanted: fn(&Breach) -> bool| {
        let found = bench.say(from, to, term, body.clone()).unwrap_err();
        assert!(is_wanted(&found), "{body:?}: {found}");
        let last = bench.replica(to).last();
        assert_eq!(last, bench.seat(to).log.last());
    };
    check(0, 2, term, Body::Heard { stamp: 0 }, |it| matches!(it, Breach::Sender(_)));
    check(2, 2, term, Body::Heard { stamp: 0 }, |it| matches!(it, Breach::Sender(_)));
    check(1, 2, 0, Body::Heard { stamp: 0 }, |it| matches!(it, Breach::Term(0)));
    check(1, 2, u64::MAX, Body::Heard { stamp: 0 }, |it| matches!(it, Breach::Term(_)));
    // Above the log: the engine would stop the process.
    check(2, 1, term, Body::Appended { number: 9 }, |it| matches!(it, Breach::Above { .. }));
    let hint = name(9, 1);
    check(2, 1, term, Body::Refused { number: 2, hint }, |it| matches!(it, Breach::Above { .. }));
    // Another leader of the term.
    check(3, 2, term, Body::Heartbeat { agreed: 0, stamp: 0 }, |it| {
        matches!(it, Breach::TwoLeaders { .. })
    });
    check(2, 1, term, append(name(2, term), vec![]), |it| matches!(it, Breach::TwoLeaders { .. }));
    // Batches out of order, of the future, of another history.
    let is_order: fn(&Breach) -> bool = |it| matches!(it, Breach::Order { .. });
    check(1, 2, term, append(name(2, term), vec![batch(4, term)]), is_order);
    check(1, 2, term, append(name(2, term), vec![batch(3, term + 1)]), is_order);
    check(1, 2, term, append(name(2, term), vec![batch(3, 1)]), is_order);
    check(1, 2, term, append(name(0, 0), vec![batch(1, 1)]), |it| matches!(it, Breach::Term(0)));
    let other = append(name(1, 1), vec![batch(2, term + 1)]);
    check(3, 2, term + 1, other, |it| matches!(it, Breach::Agreed { .. }));
    let point = Point { at: name(4, term + 1), ..founded(3) };
    check(1, 2, term, Body::Behind { point }, |it| matches!(it, Breach::Term(_)));
    // A candidate's log does not end in the term that it begins.
    let last = name(2, term + 1);
    let vote = Body::Vote { last, transfer: None };
    check(3, 2, term + 1, vote, |it| matches!(it, Breach::Term(_)));
    // What an append says of the agreement may be more than there is.
    let body = Body::Append { before: name(2, term), batches: vec![], agreed: 9 };
    bench.say(1, 2, term, body).unwrap();
    assert_eq!(bench.replica(2).agreed().number, 2);
}

/// A message of the past is no breach, whatever it says.
#[test]
fn what_is_late_does_nothing() {
    let mut bench = led();
    let term = bench.replica(1).term();
    bench.elect(2, &[2, 3]);
    let now = bench.replica(3).term();
    assert!(now > term);
    bench.say(1, 3, term, Body::Heartbeat { agreed: 9, stamp: 0 }).unwrap();
    let other = vec![batch(2, term), batch(3, term), batch(4, term)];
    bench.say(1, 3, term, Body::Append { before: name(1, 1), batches: other, agreed: 4 }).unwrap();
    bench.say(1, 3, term, Body::TimeoutNow { stamp: 0, lease_ms: 0 }).unwrap();
    assert_eq!((bench.replica(3).term(), bench.replica(3).leader()), (now, Some(id(2))));
    assert_eq!(bench.replica(3).last(), bench.replica(2).last());
}

#[test]
fn a_member_that_hears_a_leader_or_has_just_started_votes_for_nobody() {
    let mut bench = led();
    let term = bench.replica(1).term() + 1;
    let vote = Body::Vote { last: name(9, term - 1), transfer: None };
    bench.say(3, 2, term, vote.clone()).unwrap();
    assert_eq!((bench.said_by(2), bench.replica(2).term()), (vec![], term - 1));
    bench.restart(2);
    bench.say(3, 2, term, vote).unwrap();
    assert_eq!((bench.said_by(2), bench.replica(2).term()), (vec![], term - 1));
    // Its leader asked for it.
    let wanted = Body::Vote { last: name(9, term - 1), transfer: Some(u64::MAX) };
    bench.say(3, 2, term, wanted).unwrap();
    assert_eq!(bench.said_by(2), [Body::Voted { granted: true, lease_ms: 0 }]);
}

#[test]
fn a_leader_that_stalled_finds_itself_deposed() {
    let mut bench = led();
    let term = bench.replica(1).term();
    bench.propose(1);
    bench.letters.clear();
    bench.ticks(1, 3 * SETTINGS.election_ticks as u64);
    assert_eq!(bench.seat(1).roles.last(), Some(&Role::Deposed { term, tail: 1 }));
    assert_eq!(bench.replica(1).next(), None);
}

#[test]
fn a_proposal_without_a_leader_or_in_a_transfer_is_kept() {
    let mut bench = led();
    let next = bench.replica(1).next().unwrap();
    assert!(matches!(bench.seat(2).replica.propose(next), Err(NotNow)));
    let other = name(next.number + 1, next.term);
    assert!(matches!(bench.seat(1).replica.propose(other), Err(NotNow)), "not the next");
    let output = bench.seat(1).replica.transfer(id(2)).unwrap();
    bench.handle(1, output);
    assert!(matches!(bench.seat(1).replica.propose(next), Err(NotNow)));
    // It is in vain: after a time-out it goes on.
    bench.letters.clear();
    for _ in 0..SETTINGS.election_ticks {
        bench.ticks(1, 1);
        let beats = std::mem::take(&mut bench.letters);
        beats.into_iter().for_each(|letter| bench.arrive(letter).unwrap());
        bench.deliver(&[1, 3]);
    }
    assert_eq!(bench.replica(1).next(), Some(next));
    bench.propose(1);
}

#[test]
fn a_transfer_waits_until_the_other_has_all() {
    let mut bench = led();
    let made = bench.propose(1);
    bench.letters.clear();
    let output = bench.seat(1).replica.transfer(id(2)).unwrap();
    bench.handle(1, output);
    bench.deliver(&[1, 2, 3]);
    // The messages with the batch were lost: a beat finds that out.
    for _ in 0..3 {
        bench.ticks(1, 1);
        bench.deliver(&[1, 2, 3]);
    }
    assert!(bench.replica(2).leads().is_some());
    assert!(bench.replica(2).last().number > made.number);
    assert!(matches!(bench.seat(1).roles[..], [_, Role::Deposed { tail: 0 | 1, .. }]));
    let refused = bench.seat(2).replica.transfer(id(2));
    assert!(matches!(refused, Err(NotNow)), "to itself");
    assert!(matches!(bench.seat(2).replica.transfer(id(9)), Err(NotNow)), "to nobody");
}

/// A leader that waits for one which is gone would have nobody served for an election time-out.
#[test]
fn a_transfer_to_one_that_is_gone_is_given_up() {
    let mut bench = led();
    pass(&mut bench, &[1, 2, 3], 3);
    let next = bench.replica(1).next();
    let output = bench.seat(1).replica.transfer(id(2)).unwrap();
    bench.handle(1, output);
    bench.seat(1).now_ms += 10;
    for (lost, goes_on) in [(3, false), (2, true)] {
        let now_ms = bench.seat(1).now_ms;
        bench.seat(1).replica.tell_time(now_ms);
        let output = bench.seat(1).replica.lose_sight(id(lost), 0);
        bench.handle(1, output);
        bench.deliver(&[1, 3]);
        assert_eq!(bench.replica(1).next().is_some(), goes_on);
        assert_eq!(bench.replica(1).lease().holds(now_ms), goes_on);
    }
    assert_eq!(bench.replica(1).next(), next);
}

/// Ticks of all, each heard by these.
fn pass(bench: &mut Bench, among: &[u64], ticks: u64) {
    for _ in 0..ticks {
        among.iter().for_each(|number| bench.ticks(*number, 1));
        bench.deliver(among);
    }
}

#[test]
fn a_lease_is_what_a_majority_answered_when_it_was_sent() {
    let mut bench = led();
    pass(&mut bench, &[1, 2, 3], 3);
    let now_ms = bench.seat(1).now_ms;
    assert_eq!(bench.replica(1).lease().until_ms, now_ms + 240, "four fifths of three ticks");
    // One of two is enough, and what comes late counts from when it was sent.
    bench.ticks(1, 1);
    let late: Vec<_> = bench.letters.drain(..).filter(|it| it.to == 2).collect();
    bench.ticks(1, 1);
    bench.letters = late;
    bench.deliver(&[1, 2]);
    assert_eq!(bench.replica(1).lease().until_ms, now_ms + 100 + 240);
    assert!(!bench.replica(2).lease().holds(now_ms), "it does not lead");
}

#[test]
fn who_is_elected_has_its_lease_before_the_next_tick() {
    let bench = led();
    let now_ms = bench.seats[&1].now_ms;
    assert!(bench.replica(1).lease().holds(now_ms), "{:?}", bench.replica(1).lease());
}

#[test]
fn who_votes_for_another_one_says_what_its_leader_may_have() {
    let mut bench = led();
    pass(&mut bench, &[1, 2, 3], 3);
    // Their clocks show other times.
    let left_ms = bench.replica(1).lease().until_ms - bench.seat(1).now_ms;
    let since_ms = bench.seat(2).now_ms;
    // The leader's connections to both end, and it lives.
    for number in [2, 3] {
        let output = bench.seat(number).replica.lose_sight(id(1), usize::from(number == 3));
        bench.handle(number, output);
    }
    bench.deliver(&[2, 3]);
    pass(&mut bench, &[2, 3], 1);
    let (lease, now_ms) = (bench.replica(2).lease(), bench.seat(2).now_ms);
    assert!(bench.replica(2).leads().is_some());
    let wait_ms = lease.from_ms - since_ms;
    assert!(wait_ms >= left_ms * 5 / 4, "{wait_ms} ms, and the old one has {left_ms}");
    assert!(!lease.holds(now_ms) && lease.holds(lease.from_ms), "{lease:?}");
}

/// The leader is gone, with a batch that the second has and the first has not; the first stands. Nobody's clock goes on.
fn lacking_first() -> Bench {
    let mut bench = led();
    pass(&mut bench, &[1, 2, 3], 3);
    bench.propose(1);
    bench.deliver(&[1, 3]);
    let output = bench.seat(2).replica.lose_sight(id(1), 0);
    bench.handle(2, output);
    bench
}

#[test]
fn who_cannot_vote_for_a_candidate_stands_at_once() {
    let mut bench = lacking_first();
    let output = bench.seat(3).replica.lose_sight(id(1), 1);
    bench.handle(3, output);
    bench.deliver(&[2, 3]);
    assert!(bench.replica(3).leads().is_some());
}

#[test]
fn who_asked_before_others_knew_is_answered_when_they_do() {
    let lose_sight = |bench: &mut Bench| {
        bench.deliver(&[2, 3]);
        let output = bench.seat(3).replica.lose_sight(id(1), 1);
        bench.handle(3, output);
        bench.deliver(&[2, 3]);
    };
    let mut bench = lacking_first();
    lose_sight(&mut bench);
    assert!(bench.replica(3).leads().is_some(), "it has more");

    let mut bench = led();
    pass(&mut bench, &[1, 2, 3], 3);
    let output = bench.seat(2).replica.lose_sight(id(1), 0);
    bench.handle(2, output);
    lose_sight(&mut bench);
    assert!(bench.replica(2).leads().is_some(), "it is as good");
}

/// It knows that it lacks what is agreed upon, or is to lead only if no other one can.
#[test]
fn who_cannot_stand_lets_the_next_one_stand_at_once() {
    let told = |bench: &Bench| bench.replica(3).tells();
    let cannot: [fn(&mut Replica, GroupFacts); 2] =
        [|first, others| drop(first.hear(id(3), others)), |first, _| first.set_reluctant(true)];
    for make in cannot {
        let mut bench = led();
        pass(&mut bench, &[1, 2, 3], 3);
        bench.propose(1);
        bench.deliver(&[1, 3]);
        bench.ticks(1, 1);
        bench.deliver(&[1, 3]);
        let others = told(&bench);
        make(&mut bench.seat(2).replica, others);
        for (number, before) in [(2, 0), (3, 1)] {
            let output = bench.seat(number).replica.lose_sight(id(1), before);
            bench.handle(number, output);
        }
        bench.deliver(&[2, 3]);
        assert!(bench.replica(3).leads().is_some());
    }
}

/// Whoever asked it before it knew that the leader is gone, and whoever may vote: of two sets, while they are exchanged, each does.
#[test]
fn who_does_not_stand_tells_each_voter_once() {
    let not_standing = |bench: &mut Bench, number: u64| {
        let output = bench.seat(number).replica.lose_sight(id(1), 1);
        bench.handle(number, output);
        let is_told = |it: &&Letter| {
            it.from == number && it.message.body == Body::PreVote { last: name(0, 0) }
        };
        let mut told: Vec<_> = bench.letters.iter().filter(is_told).map(|it| it.to).collect();
        told.sort_unstable();
        told
    };
    let mut bench = lacking_first();
    bench.seat(3).replica.set_reluctant(true);
    bench.deliver(&[2, 3]);
    assert_eq!(not_standing(&mut bench, 3), [1, 2]);

    let members = Members { outgoing: [1, 2, 3].map(id).to_vec(), ..Members::of(&[1, 3].map(id)) };
    let mut bench = Bench { seats: BTreeMap::new(), letters: Vec::new() };
    bench.open(3, MemoryBatches::new(Point { at: name(1, 1), members }), Word::default());
    bench.seat(3).replica.set_reluctant(true);
    bench.say(1, 3, 2, Body::Heartbeat { agreed: 0, stamp: 0 }).unwrap();
    bench.letters.clear();
    let less = Body::PreVote { last: name(0, 0) };
    bench.say(2, 3, 3, less).unwrap();
    assert_eq!(not_standing(&mut bench, 3), [1, 2]);
}

/// Each is to lead only if no other one can.
#[test]
fn all_that_are_reluctant_stand_one_after_the_other() {
    let mut bench = Bench::of(5);
    bench.elect(1, &[1, 2, 3, 4, 5]);
    pass(&mut bench, &[1, 2, 3, 4, 5], 3);
    for number in 2..=5 {
        bench.seat(number).replica.set_reluctant(true);
        let output = bench.seat(number).replica.lose_sight(id(1), number as usize - 2);
        bench.handle(number, output);
    }
    bench.deliver(&[2, 3, 4, 5]);
    pass(&mut bench, &[2, 3, 4, 5], 3 * SETTINGS.election_ticks as u64);
    assert!(bench.replica(2).leads().is_some());
}

/// Who stands first gives way to one that stood before, and has as much.
#[test]
fn two_that_know_one_after_the_other_do_not_both_stand() {
    let mut bench = led();
    pass(&mut bench, &[1, 2, 3], 3);
    for number in [3, 2] {
        let output = bench.seat(number).replica.lose_sight(id(1), 0);
        bench.handle(number, output);
        bench.deliver(&[2, 3]);
    }
    assert!(bench.replica(3).leads().is_some());
}

/// A leader is silent. The first stands a tick before the second would hear it.
#[test]
fn who_asked_while_the_leader_could_be_there_is_answered_when_it_cannot() {
    let mut bench = led();
    pass(&mut bench, &[1, 2, 3], 3);
    (1..SETTINGS.election_ticks).for_each(|_| bench.ticks(3, 1));
    bench.stand(2);
    bench.deliver(&[2, 3]);
    assert!(bench.replica(2).leads().is_none());
    bench.ticks(3, 1);
    bench.deliver(&[2, 3]);
    assert!(bench.replica(2).leads().is_some());
}

/// It may have heard a leader just before its start.
#[test]
fn who_asked_one_that_had_just_started_is_answered_when_its_quiet_is_over() {
    let mut bench = led();
    let last = bench.replica(2).last();
    bench.restart(2);
    bench.say(3, 2, last.term + 1, Body::PreVote { last }).unwrap();
    for _ in 1..SETTINGS.election_ticks {
        bench.ticks(2, 1);
        assert_eq!(bench.said_by(2), []);
    }
    bench.ticks(2, 1);
    assert_eq!(bench.said_by(2), [Body::PreVoted { granted: true }]);
}

/// Whatever went before in each: a node stands in all its groups as soon as it does so in one.
#[test]
fn a_node_is_as_patient_with_a_leader_in_all_its_groups() {
    let waits = |terms: u64| {
        let mut bench = led();
        for _ in 0..terms {
            for leader in [2, 1] {
                bench.elect(leader, &[leader, 3]);
                pass(&mut bench, &[1, 2, 3], 1);
            }
        }
        pass(&mut bench, &[1, 2, 3], 1);
        (1..).find(|_| {
            bench.ticks(3, 1);
            bench.said_by(3).iter().any(|it| matches!(it, Body::PreVote { .. }))
        })
    };
    let all: BTreeSet<_> = (0..10).map(waits).collect();
    assert_eq!(all.len(), 1, "{all:?} ticks");
}

/// A leader that is there was only lost sight of by one of the others.
#[test]
fn an_early_candidate_is_forgotten_when_the_leader_is_heard() {
    let mut bench = led();
    pass(&mut bench, &[1, 2, 3], 3);
    let output = bench.seat(2).replica.lose_sight(id(1), 0);
    bench.handle(2, output);
    bench.deliver(&[2, 3]);
    pass(&mut bench, &[1, 3], 1);
    let output = bench.seat(3).replica.lose_sight(id(1), 1);
    bench.handle(3, output);
    assert_eq!(bench.said_by(3), []);
}

/// Two that stand at the same moment take each other's votes: what was left of a tick is none.
#[test]
fn who_stands_second_waits_for_whole_ticks() {
    let mut bench = led();
    pass(&mut bench, &[1, 2, 3], 3);
    bench.letters.clear();
    let seat = bench.seat(3);
    seat.now_ms += SETTINGS.tick_ms - 1;
    seat.replica.tell_time(seat.now_ms);
    let lost_ms = seat.now_ms;
    let output = seat.replica.lose_sight(id(1), 1);
    bench.handle(3, output);
    let tick_ms = SETTINGS.tick_ms;
    for (later_ms, stands) in [(1, false), (2 * tick_ms - 1, false), (2 * tick_ms, true)] {
        let seat = bench.seat(3);
        seat.now_ms = lost_ms + later_ms;
        let output = seat.replica.tick(seat.now_ms);
        bench.handle(3, output);
        let asks = bench.said_by(3).iter().any(|it| matches!(it, Body::PreVote { .. }));
        assert_eq!(asks, stands, "{later_ms} ms later");
    }
}

#[test]
fn who_stands_waits_for_what_its_voters_owe() {
    let mut bench = led();
    pass(&mut bench, &[1, 2, 3], 3);
    // It has heard nothing for long, and the other one has just now.
    bench.ticks(2, 3);
    bench.letters.clear();
    pass(&mut bench, &[1, 3], 1);
    bench.letters.clear();
    let left_ms = bench.replica(1).lease().until_ms - bench.seat(1).now_ms;
    let since_ms = bench.seat(2).now_ms;
    for (number, ticks) in [(3, 1), (2, 0)] {
        let output = bench.seat(number).replica.lose_sight(id(1), ticks);
        bench.handle(number, output);
    }
    bench.deliver(&[2, 3]);
    pass(&mut bench, &[2, 3], 1);
    let lease = bench.replica(2).lease();
    assert!(bench.replica(2).leads().is_some());
    assert!(lease.from_ms - since_ms >= left_ms * 5 / 4, "{lease:?}, {left_ms} ms at {since_ms}");
}

#[test]
fn who_waited_long_enough_gives_out_at_once() {
    let mut bench = led();
    pass(&mut bench, &[1, 2, 3], 3);
    let output = bench.seat(3).replica.tick(0);
    bench.handle(3, output);
    pass(&mut bench, &[2, 3], 2 * SETTINGS.election_ticks as u64);
    let leader = [2, 3].into_iter().find(|it| bench.replica(*it).leads().is_some()).unwrap();
    let now_ms = bench.seat(leader).now_ms;
    assert!(bench.replica(leader).lease().holds(now_ms), "{:?}", bench.replica(leader).lease());
}

#[test]
fn a_transfer_that_comes_late_finds_that_the_leader_goes_on() {
    let mut bench = led();
    pass(&mut bench, &[1, 2, 3], 3);
    let output = bench.seat(1).replica.transfer(id(2)).unwrap();
    assert_eq!(bench.replica(1).lease(), Lease::NONE, "it gives way");
    bench.handle(1, output);
    let late = |it: &Letter| matches!(it.message.body, Body::TimeoutNow { .. });
    let asked: Vec<_> = bench.letters.extract_if(.., |it| late(it)).collect();
    assert_eq!(asked.len(), 1);
    bench.letters.clear();
    // Nothing of it is left after a time-out.
    pass(&mut bench, &[1, 3], SETTINGS.election_ticks as u64 + 1);
    let (lease, now_ms) = (bench.replica(1).lease(), bench.seat(1).now_ms);
    assert!(lease.holds(now_ms), "{lease:?}");
    // It never heard that the leader goes on, and stands. The other one did.
    let term = bench.replica(2).term();
    bench.say(1, 2, term, asked[0].message.body.clone()).unwrap();
    assert!(bench.letters.iter().any(|it| matches!(it.message.body, Body::Vote { .. })));
    bench.deliver(&[2, 3]);
    assert!(bench.replica(2).leads().is_none());
    assert_eq!(bench.replica(3).term(), bench.replica(1).term());
}

#[test]
fn members_change_one_by_one_and_by_exchange() {
    let mut bench = led();
    for new in [4, 5] {
        bench.open(new, MemoryBatches::default(), Word::default());
        bench.pass_quiet(new);
        bench.change(1, &[Step::Learner(id(new))]);
        let all: Vec<_> = (1..=new).collect();
        bench.deliver(&all);
        catch_up(&mut bench, new, &all);
        assert!(bench.replica(new).members().learners.contains(&id(new)));
    }
    bench.change(1, &[Step::Voter(id(4))]);
    bench.deliver(&[1, 2, 3, 4, 5]);
    bench.change(1, &[Step::Voter(id(5)), Step::Remove(id(3))]);
    let busy = bench.seat(1).replica.change(Change::of(vec![Step::Remove(id(2))]));
    assert!(matches!(busy, Err(NotNow)), "one at a time");
    bench.deliver(&[1, 2, 3, 4, 5]);
    // What the exchange ends with is made once, by the leader itself.
    let members = bench.replica(1).members().clone();
    assert_eq!(members.voters, [1, 2, 4, 5].map(id));
    assert_eq!((members.outgoing, members.learners), (vec![], vec![]));
    bench.propose(1);
    bench.deliver(&[1, 2, 3, 4, 5]);
    for number in [1, 2, 4, 5] {
        assert_eq!(bench.replica(number).agreed(), bench.replica(1).last());
        assert_eq!(bench.replica(number).members().voters, [1, 2, 4, 5].map(id));
    }
    let own = bench.seat(1).replica.change(Change::of(vec![Step::Remove(id(1))]));
    assert!(matches!(own, Err(NotNow)), "the leader itself");
    let none = bench.seat(1).replica.change(Change::default());
    assert!(matches!(none, Err(NotNow)));
}

/// Beats, until a new member has got its snapshot and all that follows.
fn catch_up(bench: &mut Bench, new: u64, among: &[u64]) {
    for _ in 0..6 {
        bench.ticks(1, 1);
        bench.deliver(among);
        if bench.seat(new).behind.take().is_some() {
            let point = bench.replica(1).snapshot().clone();
            if let Ok(output) = bench.seat(new).replica.install(point) {
                bench.handle(new, output);
            }
        }
    }
    assert_eq!(bench.replica(new).last(), bench.replica(1).last());
}

/// An empty log has none of the members that the group began with: with the changes alone it would take itself for all of it.
#[test]
fn a_new_member_begins_with_a_snapshot() {
    let mut bench = led();
    bench.open(4, MemoryBatches::default(), Word::default());
    bench.pass_quiet(4);
    bench.change(1, &[Step::Learner(id(4))]);
    bench.deliver(&[1, 2, 3, 4]);
    bench.ticks(1, 1);
    bench.deliver(&[1, 2, 3, 4]);
    let behind = bench.seat(4).behind.clone().expect("nothing else can follow on nothing");
    assert!(behind.members.learners.contains(&id(4)), "the pair that was applied");
    assert_eq!(bench.replica(4).last(), name(0, 0));
    catch_up(&mut bench, 4, &[1, 2, 3, 4]);
    assert_eq!(bench.replica(4).members().voters, [1, 2, 3].map(id));
}

/// A new member may begin where its group began, with those who were members then: it takes all batches from there on. It stands for
/// nothing before it votes, though the engine would have it.
#[test]
fn a_new_member_begins_where_its_group_began() {
    let mut bench = led();
    bench.open(4, MemoryBatches::new(founded(3)), Word::default());
    bench.pass_quiet(4);
    bench.change(1, &[Step::Learner(id(4))]);
    let all = [1, 2, 3, 4];
    for _ in 0..6 {
        bench.deliver(&all);
        bench.ticks(1, 1);
    }
    bench.deliver(&all);
    assert_eq!(bench.replica(4).last(), bench.replica(1).last());
    assert_eq!(bench.replica(4).members().learners, [id(4)]);
    let stood = bench.seat(4).replica.lose_sight(id(1), 0);
    assert_eq!(stood.messages, []);
    bench.ticks(1, 1);
    bench.deliver(&all);
    bench.change(1, &[Step::Voter(id(4))]);
    bench.deliver(&all);
    bench.ticks(1, 1);
    bench.deliver(&all);
    assert_eq!(bench.replica(4).members().voters, all.map(id));
    let stood = bench.seat(4).replica.lose_sight(id(1), 0);
    assert_eq!(stood.messages.len(), 3, "{stood:?}");
}

#[test]
fn one_that_fetches_a_snapshot_votes_meanwhile() {
    let mut bench = led();
    for _ in 0..3 {
        bench.propose(1);
        bench.deliver(&[1, 2]);
    }
    let number = bench.replica(1).snapshot().at.number;
    let seat = bench.seat(1);
    let point = seat.replica.point_at(number).unwrap();
    seat.log.begin_behind(point.clone());
    seat.replica.begin_behind(point);
    bench.propose(1);
    for _ in 0..3 {
        bench.ticks(1, 1);
        bench.deliver(&[1, 2, 3]);
    }
    assert!(bench.seat(3).behind.is_some());
    let term = bench.replica(3).term() + 1;
    let wanted = Body::Vote { last: bench.replica(1).last(), transfer: Some(u64::MAX) };
    bench.say(2, 3, term, wanted).unwrap();
    assert!(matches!(bench.said_by(3)[..], [Body::Voted { granted: true, .. }]));
    // Without a leader it is not the time to begin with it.
    let point = bench.replica(1).snapshot().clone();
    assert!(matches!(bench.seat(3).replica.install(point), Err(NotNow)));
}

#[test]
fn a_snapshot_that_is_not_needed_is_refused() {
    let mut bench = led();
    let point = bench.replica(1).snapshot().clone();
    assert!(matches!(bench.seat(2).replica.install(point), Err(NotNow)), "it has all that");
    let at = name(9, 2);
    let point = Point { at, members: Members::of(&[id(1), id(3)]) };
    assert!(matches!(bench.seat(2).replica.install(point), Err(NotNow)), "it is not in it");
}

/// A disk that lost what was synced: the member tells, gets it again, and does not stand nor vote for less meanwhile.
#[test]
fn a_member_that_lost_what_it_acknowledged() {
    let mut bench = led();
    for _ in 0..3 {
        bench.propose(1);
        bench.deliver(&[1, 2]);
    }
    let last = bench.replica(2).last();
    bench.seat(2).log.lose(2);
    bench.restart(2);
    assert_eq!(bench.replica(2).lacks(), Some(last));
    bench.pass_quiet(2);
    bench.ticks(2, 3 * SETTINGS.election_ticks as u64);
    assert_eq!(bench.said_by(2), [], "it does not stand");
    let term = last.term + 1;
    let less = Body::Vote { last: name(last.number - 1, last.term), transfer: Some(u64::MAX) };
    bench.say(3, 2, term, less).unwrap();
    assert_eq!(bench.said_by(2), [], "it may have been agreed upon");
    // The leader reckons with what it acknowledged, and learns better.
    for _ in 0..3 {
        bench.ticks(1, 1);
        bench.deliver(&[1, 2, 3]);
    }
    assert_eq!((bench.replica(2).lacks(), bench.replica(2).last()), (None, last));
    assert_eq!(bench.replica(2).agreed(), bench.replica(1).agreed());
}

/// A disk and a word that are older than they were: the leader knows, and the member learns it from the leader's beats.
#[test]
fn a_member_whose_word_and_log_are_older_than_they_were() {
    let mut bench = led();
    for _ in 0..3 {
        bench.propose(1);
        bench.deliver(&[1, 2]);
    }
    let (last, left) = (bench.replica(2).last(), 2);
    let seat = bench.seat(2);
    seat.log.lose(left as usize);
    seat.word.mark = name(last.number - left, last.term);
    bench.restart(2);
    assert_eq!(bench.replica(2).lacks(), None, "nothing tells it");
    // The beat speaks of what it does not have: that is no breach.
    bench.say(1, 2, last.term, Body::Heartbeat { agreed: last.number, stamp: 0 }).unwrap();
    let end = bench.replica(2).last();
    assert_eq!(bench.said_by(2)[0], Body::Lacks { last: end });
    assert!(bench.replica(2).lacks().is_some_and(|it| it >= last));
    // It knows that after a start, too, and does neither stand nor vote for less.
    bench.restart(2);
    assert!(bench.replica(2).lacks().is_some_and(|it| it >= last));
    bench.pass_quiet(2);
    bench.ticks(2, 3 * SETTINGS.election_ticks as u64);
    assert_eq!(bench.said_by(2), [], "it does not stand");
    let less = Body::Vote { last: name(last.number - 1, last.term), transfer: Some(0) };
    bench.say(3, 2, last.term + 1, less).unwrap();
    assert_eq!(bench.said_by(2), [], "it may have been agreed upon");
    for _ in 0..3 {
        bench.propose(1);
        bench.ticks(1, 1);
        bench.deliver(&[1, 2, 3]);
    }
    assert_eq!(bench.replica(2).lacks(), None);
    assert_eq!(bench.replica(2).agreed(), bench.replica(1).agreed());
}

/// Else who is a voter no more, and alone knows so, may refuse its vote for ever to those who ask for it.
#[test]
fn what_is_told_to_be_agreed_upon_is_so_where_it_is() {
    let mut bench = led();
    let made = bench.propose(1);
    for letter in std::mem::take(&mut bench.letters) {
        if letter.to == 2 {
            bench.arrive(letter).unwrap();
        }
    }
    bench.letters.clear();
    let agreed = bench.replica(2).agreed();
    assert!(bench.replica(2).last() == made && agreed < made);
    let next = name(made.number + 1, made.term);
    let other = name(made.number, made.term + 1);
    for (told, want) in [(next, agreed), (other, agreed), (made, made)] {
        let told = GroupFacts { term: made.term, agreed: told, last: made };
        let output = bench.seat(2).replica.hear(id(3), told);
        bench.handle(2, output);
        assert_eq!(bench.replica(2).agreed(), want);
    }
}

/// A leader's beat speaks of its own batches: what is here under the same number may be of a tail that it has cut.
#[test]
fn a_beat_agrees_upon_batches_of_its_term_alone() {
    let mut bench = led();
    let (last, agreed) = (bench.replica(2).last(), bench.replica(2).agreed());
    let next = batch(last.number + 1, last.term);
    let tail = Body::Append { before: last, batches: vec![next.clone()], agreed: agreed.number };
    bench.say(1, 2, last.term, tail).unwrap();
    assert_eq!(bench.replica(2).last(), next.name);
    for number in [next.name.number, next.name.number + 5] {
        let beat = Body::Heartbeat { agreed: number, stamp: 0 };
        bench.say(3, 2, last.term + 1, beat).unwrap();
        assert_eq!(bench.replica(2).agreed(), agreed, "{number}");
    }
    let mut bench = led();
    let tail = Body::Append { before: last, batches: vec![next.clone()], agreed: agreed.number };
    bench.say(1, 2, last.term, tail).unwrap();
    let beat = Body::Heartbeat { agreed: next.name.number, stamp: 0 };
    bench.say(1, 2, last.term, beat).unwrap();
    assert_eq!(bench.replica(2).agreed(), next.name);
}

/// The engine takes a snapshot that was fetched, and none that is only spoken of.
#[test]
fn who_is_told_that_it_is_behind_and_is_not_installs_nothing() {
    let mut bench = led();
    let (last, agreed) = (bench.replica(2).last(), bench.replica(2).agreed());
    let members = bench.replica(2).members().clone();
    let point = Point { at: name(agreed.number, agreed.term), members };
    bench.said_by(2);
    bench.say(1, 2, last.term, Body::Behind { point }).unwrap();
    assert_eq!(bench.said_by(2), [Body::Appended { number: agreed.number }]);
    assert_eq!(bench.seat(2).behind, None);
    assert_eq!(bench.replica(2).last(), last);
}
