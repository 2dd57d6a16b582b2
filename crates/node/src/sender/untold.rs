//! Messages of a stream that have no verdict.
//!
//! Hot path. One entry for messages in a row, which most letters and verdicts are: of one channel, with numbers of confirms in a row,
//! and in a row in one letter.

use std::collections::BTreeMap;

use leveret_broker::message::{ChannelId, ConnectionId};

/// Who is told of a message: its number on the channel.
pub(super) type ConfirmKey = (ConnectionId, ChannelId, u64);

/// Messages in a row without a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UntoldRun {
    /// Numbers of confirms.
    pub(super) first: u64,
    pub(super) last: u64,
    /// The letter that they are in, and where the first one is in it.
    pub(super) letter: u64,
    pub(super) place: u32,
}

impl UntoldRun {
    /// How many they are. The places of a letter have 32 bits.
    pub(super) fn len(&self) -> u32 {
        (self.last - self.first + 1) as u32
    }

    /// Those of it from one number to another, both of which it has.
    fn part(self, first: u64, last: u64) -> Self {
        Self { first, last, place: self.place + (first - self.first) as u32, ..self }
    }
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct UntoldMessages {
    /// By the first message; no two have one in common.
    runs: BTreeMap<ConfirmKey, UntoldRun>,
    messages: usize,
}

impl UntoldMessages {
    /// How many messages there are.
    pub(super) fn len(&self) -> usize {
        self.messages
    }

    /// Adds messages of a channel, none of which is there.
    pub(super) fn add(&mut self, connection: ConnectionId, channel: ChannelId, run: UntoldRun) {
        self.messages += run.len() as usize;
        let before = self.runs.insert((connection, channel, run.first), run);
        debug_assert!(before.is_none(), "a number is used again before its verdict: {run:?}");
    }

    /// The messages that have one's run, if it is there.
    fn run_of(&self, (connection, channel, confirm): ConfirmKey) -> Option<UntoldRun> {
        let mut before = self.runs.range((connection, channel, 0)..=(connection, channel, confirm));
        before.next_back().map(|(_, run)| *run).filter(|run| confirm <= run.last)
    }

    /// In which letter a message is, if it is there.
    pub(super) fn letter_of(&self, key: ConfirmKey) -> Option<u64> {
        self.run_of(key).map(|run| run.letter)
    }

    /// Takes out the first messages in a row of those from one number of a channel to another.
    #[inline]
    pub(super) fn take_first(
        &mut self,
        connection: ConnectionId,
        channel: ChannelId,
        first: u64,
        last: u64,
    ) -> Option<UntoldRun> {
        if first > last {
            return None;
        }
        let run = self.run_of((connection, channel, first)).or_else(|| {
            let mut all =
                self.runs.range((connection, channel, first)..=(connection, channel, last));
            all.next().map(|(_, run)| *run)
        })?;
        let taken = run.part(run.first.max(first), run.last.min(last));
        self.runs.remove(&(connection, channel, run.first));
        if run.first < taken.first {
            let before = run.part(run.first, taken.first - 1);
            self.runs.insert((connection, channel, before.first), before);
        }
        if taken.last < run.last {
            let behind = run.part(taken.last + 1, run.last);
            self.runs.insert((connection, channel, behind.first), behind);
        }
        self.messages -= taken.len() as usize;
        Some(taken)
    }

    /// Takes out those of a connection for which `is_over` holds.
    pub(super) fn take_of(
        &mut self,
        connection: ConnectionId,
        mut is_over: impl FnMut(UntoldRun) -> bool,
    ) -> Vec<UntoldRun> {
        let all = (connection, 0, 0)..=(connection, ChannelId::MAX, u64::MAX);
        let taken = self.runs.extract_if(all, |_, run| is_over(*run));
        let taken: Vec<UntoldRun> = taken.map(|(_, run)| run).collect();
        self.messages -= taken.iter().map(|run| run.len() as usize).sum::<usize>();
        taken
    }
}

#[cfg(test)]
mod tests {
    use leveret_broker::message::NodeId;

    use super::*;

    const A: ConnectionId = NodeId::ALONE.connection(1);

    fn run(first: u64, last: u64, letter: u64, place: u32) -> UntoldRun {
        UntoldRun { first, last, letter, place }
    }

    #[test]
    fn verdicts_cut_runs() {
        let mut untold = UntoldMessages::default();
        untold.add(A, 1, run(1, 10, 7, 0));
        untold.add(A, 1, run(11, 12, 8, 3));
        untold.add(A, 2, run(1, 1, 8, 5));
        assert_eq!((untold.len(), untold.letter_of((A, 1, 12))), (13, Some(8)));
        let mut takes = |first, last| untold.take_first(A, 1, first, last);
        assert_eq!(takes(4, 5), Some(run(4, 5, 7, 3)), "from its middle");
        assert_eq!(takes(4, 5), None);
        assert_eq!(takes(5, 6), Some(run(6, 6, 7, 5)), "what is left of it");
        assert_eq!(takes(1, 100), Some(run(1, 3, 7, 0)));
        assert_eq!(takes(1, 100), Some(run(7, 10, 7, 6)));
        assert_eq!(takes(1, 100), Some(run(11, 12, 8, 3)), "another letter");
        assert_eq!(takes(1, 100), None, "another channel's are not among them");
        assert_eq!((untold.len(), untold.letter_of((A, 2, 1))), (1, Some(8)));
        assert_eq!(untold.take_of(A, |_| true), [run(1, 1, 8, 5)]);
        assert_eq!(untold.len(), 0);
    }

    /// As one entry for each message.
    #[test]
    fn runs_are_as_single_messages() {
        for seed in 0..300 {
            let mut below = leveret_log::suite::numbers(seed);
            let (mut untold, mut all) = (UntoldMessages::default(), BTreeMap::new());
            let (mut next, mut letter) = ([1; 2], 0);
            for _ in 0..60 {
                let channel = below(2) as ChannelId;
                let next = &mut next[usize::from(channel)];
                if below(2) == 0 {
                    letter += 1;
                    let place = below(4) as u32;
                    let first = *next + below(3);
                    let last = first + below(8);
                    *next = last + 1;
                    untold.add(A, channel, run(first, last, letter, place));
                    let each = (first..=last).zip(place..);
                    all.extend(each.map(|(it, place)| ((A, channel, it), (letter, place))));
                } else {
                    let first = below(*next + 2);
                    let last = first + below(12);
                    let key = |confirm| (A, channel, confirm);
                    let mut want: Vec<_> =
                        all.extract_if(key(first)..=key(last), |_, _| true).collect();
                    want.reverse();
                    while let Some(taken) = untold.take_first(A, channel, first, last) {
                        for (confirm, place) in (taken.first..=taken.last).zip(taken.place..) {
                            assert_eq!(want.pop(), Some((key(confirm), (taken.letter, place))));
                        }
                    }
                    assert!(want.is_empty(), "seed {seed}: {want:?}");
                }
                assert_eq!(untold.len(), all.len());
                let key = (A, channel, below(*next + 2));
                assert_eq!(untold.letter_of(key), all.get(&key).map(|(letter, _)| *letter));
            }
        }
    }
}
