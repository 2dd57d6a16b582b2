//! For how long the sessions of a node may act by the names that they have.
//!
//! ```text
//!   node of sessions       asks at q                     takes what clients send until q + LEASE_MS
//!                               \                       /
//!   node that leads              hears it at h >= q ---'  under its own lease; once this node is gone, it answers
//!                                                         for no names that it did not take before h + KEPT_MS
//! ```
//!
//! A node that is cut off does not know which names have changed. What was answered is to be true everywhere: so it takes nothing from
//! its clients when the lease is over, and the leader that cut it off answers nobody before that.
//!
//! See invariant 12 of `docs/decisions/0068-sessions-on-the-node-of-their-client.md`.

use std::collections::VecDeque;

/// How often a node asks, in ms.
pub const ASK_MS: u64 = 400;

/// For how long an answer holds, in ms of the node's clock, from when it was asked for.
pub const LEASE_MS: u64 = 1_600;

/// The same for the leader, in ms of its clock, from when it heard that: a quarter more, as clocks do not run alike.
pub const KEPT_MS: u64 = 2_000;

/// Questions without an answer that are remembered. What is answered later than the others were asked is of no use.
const ASKED_MAX: usize = 8;

/// The lease of a node of sessions, over one connection.
#[derive(Debug, Default)]
pub(super) struct NamesLease {
    /// Of the last question.
    number: u64,
    /// Those without an answer, and when they were asked.
    asked: VecDeque<(u64, u64)>,
    until_ms: u64,
}

impl NamesLease {
    /// The number of the next question, if it is to be asked now.
    pub(super) fn ask(&mut self, now_ms: u64) -> Option<u64> {
        let is_due = self.asked.back().is_none_or(|(_, at_ms)| now_ms >= at_ms + ASK_MS);
        // One that was answered at once is asked anew in time, too.
        if !is_due || now_ms + LEASE_MS < self.until_ms + ASK_MS {
            return None;
        }
        self.number += 1;
        self.asked.push_back((self.number, now_ms));
        if self.asked.len() > ASKED_MAX {
            self.asked.pop_front();
        }
        Some(self.number)
    }

    /// The leader has answered a question.
    ///
    /// # Errors
    ///
    /// A text, if it was not asked.
    pub(super) fn hear(&mut self, number: u64) -> Result<(), String> {
        if number == 0 || number > self.number {
            return Err(format!("it answers question {number} of {}", self.number));
        }
        while let Some((asked, at_ms)) = self.asked.pop_front_if(|(asked, _)| *asked <= number) {
            if asked == number {
                self.until_ms = self.until_ms.max(at_ms + LEASE_MS);
            }
        }
        Ok(())
    }

    /// It is over then, in ms of the clock by which was asked.
    pub(super) fn until_ms(&self) -> u64 {
        self.until_ms
    }
}

/// What the leader has told a node of its lease.
#[derive(Debug, Default)]
pub(super) struct KeptLease {
    /// The last question that has no answer, and when it was heard.
    asked: Option<(u64, u64)>,
    until_ms: Option<u64>,
}

impl KeptLease {
    /// The node has asked.
    pub(super) fn asks(&mut self, number: u64, now_ms: u64) {
        self.asked = Some((number, now_ms));
    }

    /// The question that is answered now.
    pub(super) fn answer(&mut self) -> Option<u64> {
        let (number, at_ms) = self.asked.take()?;
        self.until_ms = Some(at_ms + KEPT_MS);
        Some(number)
    }

    /// The node may act until then; none if it was told nothing.
    pub(super) fn until_ms(&self) -> Option<u64> {
        self.until_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_counts_from_its_question() {
        let mut lease = NamesLease::default();
        assert_eq!((lease.ask(1_000), lease.ask(1_399), lease.until_ms()), (Some(1), None, 0));
        assert!(lease.hear(2).is_err() && lease.hear(0).is_err(), "nobody asked");
        assert_eq!(lease.ask(1_000 + ASK_MS), Some(2));
        lease.hear(1).unwrap();
        assert_eq!(lease.until_ms(), 1_000 + LEASE_MS);
        lease.hear(2).unwrap();
        lease.hear(1).unwrap();
        assert_eq!(lease.until_ms(), 1_000 + ASK_MS + LEASE_MS);
        assert_eq!(lease.ask(1_000 + 2 * ASK_MS - 1), None, "it is new");
        assert_eq!(lease.ask(1_000 + 2 * ASK_MS), Some(3));
    }

    #[test]
    fn questions_that_nobody_answers_are_forgotten() {
        let mut lease = NamesLease::default();
        for at in 0..=ASKED_MAX as u64 {
            assert_eq!(lease.ask(at * ASK_MS), Some(at + 1));
        }
        lease.hear(1).unwrap();
        assert_eq!(lease.until_ms(), 0);
    }

    /// Whatever is late, and however unlike the two clocks run: a node never acts when the leader waits for it no more.
    #[test]
    fn the_leader_waits_longer_than_the_node_acts() {
        for late_ms in [0, 100, 5_000] {
            let (mut lease, mut kept) = (NamesLease::default(), KeptLease::default());
            let number = lease.ask(10_000).unwrap();
            kept.asks(number, 10_000 + late_ms);
            lease.hear(kept.answer().unwrap()).unwrap();
            let acts_for_ms = lease.until_ms() - 10_000;
            assert!(acts_for_ms * 6 / 5 <= kept.until_ms().unwrap() - 10_000);
        }
        assert_eq!(KeptLease::default().until_ms(), None, "it was told nothing");
    }
}
