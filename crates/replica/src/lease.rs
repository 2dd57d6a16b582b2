//! Leases: from when until when a leader may give out what the group has, without asking anybody.
//!
//! A heartbeat that a majority answered is worth a lease, counted from when it was *sent*: so long none of these helps another one to
//! give anything out. A member knows when it last answered one. If it votes for another one earlier than a lease is over by its own
//! clock, it says how much is left, and who is elected waits for that. So another leader may be elected, and agree with the others,
//! as soon as somebody thinks that the old one is gone; and gives out nothing before the old one's lease is over, whether it is gone
//! or not.
//!
//! What is left is counted by a member's clock as five quarters of what a leader counts by its own: clocks may run apart by that.
//!
//! A leader that gives way to another one has no lease from then on, and its heartbeats have the stamp of that moment: those who vote
//! as it asked them to owe it nothing. If the transfer comes to nothing, later stamps tell them that it goes on.

use std::collections::BTreeMap;

use crate::members::{MemberId, Members};

/// From when until when a leader may give out, in ms of the clock that its member is told the time by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// A lease of another leader may last until then.
    pub from_ms: u64,
    /// It is over then, if no other heartbeat is answered.
    pub until_ms: u64,
}

impl Lease {
    /// There is none.
    pub const NONE: Self = Self { from_ms: 0, until_ms: 0 };

    /// Whether something may be given out now.
    pub fn holds(self, now_ms: u64) -> bool {
        (self.from_ms..self.until_ms).contains(&now_ms)
    }
}

/// What a member knows of leases.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    /// The last call was so late, or later.
    pub(crate) now_ms: u64,
    /// It has given its support to no leader before it was started, as far as it knows: so it may have just before.
    pub(crate) supported_ms: Option<u64>,
    /// The last heartbeat that it answered: of which term, with which stamp.
    answered: (u64, u64),
    /// The heartbeat that it answers now.
    pub(crate) answers: u64,
    /// It was asked to stand: with which stamp, and until when an earlier leader may have a lease.
    pub(crate) asked: Option<(u64, u64)>,
    /// The vote that it is asked for is one that a leader wants.
    pub(crate) votes_as_asked: bool,
    /// In this term nothing is to be given out before: by what those say who voted for it.
    from: (u64, u64),
    /// When it last began to give way to another one, as a leader.
    gave_way_ms: u64,
    /// Of a term that it leads: the latest heartbeat that each other member answered.
    heard: (u64, BTreeMap<MemberId, u64>),
}

impl Leases {
    /// It is `now_ms`.
    pub(crate) fn tell_time(&mut self, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
        self.supported_ms.get_or_insert(self.now_ms);
    }

    /// What a heartbeat says.
    pub(crate) fn stamp(&self, gives_way: bool) -> u64 {
        if gives_way { self.gave_way_ms } else { self.now_ms }
    }

    /// It gives way to another one.
    pub(crate) fn give_way(&mut self) {
        self.gave_way_ms = self.now_ms;
    }

    /// It answers the heartbeat.
    pub(crate) fn support(&mut self, term: u64) {
        self.supported_ms = Some(self.now_ms);
        self.answered = self.answered.max((term, self.answers));
    }

    /// Whether the leader of this term goes on, though it once asked somebody to stand.
    pub(crate) fn goes_on(&self, term: u64, asked: u64) -> bool {
        self.answered.0 == term && self.answered.1 > asked
    }

    /// Until when a lease may last that it supported: that is `hold_ms` by its clock.
    pub(crate) fn supports_until(&self, hold_ms: u64) -> u64 {
        self.supported_ms.unwrap_or(self.now_ms).saturating_add(hold_ms)
    }

    /// Who stands in this term gives out nothing before.
    pub(crate) fn wait_until(&mut self, term: u64, until_ms: u64) {
        if self.from.0 != term {
            self.from = (term, 0);
        }
        self.from.1 = self.from.1.max(until_ms);
    }

    /// It is elected.
    pub(crate) fn begin(&mut self, term: u64, hold_ms: u64) {
        if self.from.0 != term {
            self.wait_until(term, self.supports_until(hold_ms));
        }
    }

    /// For so many ms it has to wait, as the leader of this term.
    pub(crate) fn waits_ms(&self, term: u64) -> u64 {
        if self.from.0 == term { self.from.1.saturating_sub(self.now_ms) } else { 0 }
    }

    /// A member answered a heartbeat of this term, which this one leads.
    pub(crate) fn hear(&mut self, term: u64, from: MemberId, stamp: u64) {
        if self.heard.0 != term {
            self.heard = (term, BTreeMap::new());
        }
        if stamp <= self.now_ms {
            let last = self.heard.1.entry(from).or_default();
            *last = stamp.max(*last);
        }
    }

    /// The lease of the leader of this term.
    pub(crate) fn of(&self, term: u64, own: MemberId, members: &Members, lease_ms: u64) -> Lease {
        let stamp = self.heard_by(term, own, &members.voters).min(if members.outgoing.is_empty() {
            u64::MAX
        } else {
            self.heard_by(term, own, &members.outgoing)
        });
        if stamp <= self.gave_way_ms {
            return Lease::NONE;
        }
        let from_ms = if self.from.0 == term { self.from.1 } else { u64::MAX };
        Lease { from_ms, until_ms: stamp.saturating_add(lease_ms) }
    }

    /// The latest stamp that a majority of these have answered.
    fn heard_by(&self, term: u64, own: MemberId, voters: &[MemberId]) -> u64 {
        let heard = |id: &MemberId| match self.heard.1.get(id) {
            _ if *id == own => u64::MAX,
            Some(stamp) if self.heard.0 == term => *stamp,
            _ => 0,
        };
        let mut stamps: Vec<u64> = voters.iter().map(heard).collect();
        stamps.sort_unstable_by(|a, b| b.cmp(a));
        stamps.get(voters.len() / 2).copied().unwrap_or(0)
    }
}
