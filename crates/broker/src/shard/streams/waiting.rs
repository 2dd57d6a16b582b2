//! Messages of a stream that wait for a consumer and are in the shard's memory alone.
//!
//! Their node keeps them until they are in the log, or have a verdict: the next shard is to take them again. So it is told of both, and
//! also of those that will never be in the log, which nobody takes again.

use std::collections::{BTreeMap, VecDeque};

use leveret_log::Moment;
use leveret_queue::Offset;

/// Entries that are over stay among so many others at most, and among as many as there are.
const OVER_MAX: usize = 64;

/// Messages of a letter whose whereabouts their node is to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WaitingRun {
    pub(super) number: u64,
    pub(super) first: u32,
    pub(super) last: u32,
    /// Where the first one is in the log.
    pub(super) at: Option<Offset>,
    /// The letter is not told of before.
    is_awaited: bool,
}

impl WaitingRun {
    /// Puts one more at the end, if it is the next one there.
    fn takes(&mut self, other: Self) -> bool {
        let count = other.first.wrapping_sub(self.first);
        let goes_on = self.number == other.number
            && self.is_awaited == other.is_awaited
            && self.last.checked_add(1) == Some(other.first)
            && other.at == self.at.map(|at| Offset::new(at.get() + u64::from(count)));
        if goes_on {
            self.last = other.last;
        }
        goes_on
    }

    fn count(self) -> u32 {
        self.last - self.first + 1
    }
}

#[derive(Clone, Copy, Debug)]
struct InMemory {
    at: Offset,
    number: u64,
    place: u32,
    is_over: bool,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct WaitingMessages {
    /// By their offsets, ascending.
    messages: VecDeque<InMemory>,
    /// How many of these are over.
    over: usize,
    /// Letters with messages whose whereabouts are not told, and how many.
    letters: BTreeMap<u64, u32>,
    /// WaitingRun once a note says so that is agreed upon: those of which none does yet, and the others.
    fresh: Vec<WaitingRun>,
    noted: VecDeque<(Moment, WaitingRun)>,
}

impl WaitingMessages {
    /// A message is in memory. Its offset is above those before it.
    pub(super) fn add(&mut self, number: u64, place: u32, at: Offset) {
        self.messages.push_back(InMemory { at, number, place, is_over: false });
        *self.letters.entry(number).or_default() += 1;
    }

    /// It is not to be in the log, and was never to be.
    pub(super) fn is_nowhere(&mut self, number: u64, place: u32) {
        self.tell(WaitingRun { number, first: place, last: place, at: None, is_awaited: false });
    }

    /// It is in the log, or goes there with this turn. Which one it is.
    pub(super) fn is_in_log(&mut self, number: u64, place: u32, at: Offset) {
        self.tell(WaitingRun { number, first: place, last: place, at: Some(at), is_awaited: true });
        *self.letters.entry(number).or_default() += 1;
    }

    /// One that is in memory goes to the log with this turn. Which one it is.
    pub(super) fn goes_to_log(&mut self, at: Offset) -> Option<(u64, u32)> {
        let (number, place) = self.take(at)?;
        self.tell(WaitingRun { number, first: place, last: place, at: Some(at), is_awaited: true });
        Some((number, place))
    }

    /// One that is in memory is not to be in the log any more. Whether it was one.
    pub(super) fn goes_nowhere(&mut self, at: Offset) -> bool {
        let Some((number, place)) = self.take(at) else { return false };
        self.tell(WaitingRun { number, first: place, last: place, at: None, is_awaited: true });
        true
    }

    /// One that is in memory has its verdict, or is not waited for any more.
    pub(super) fn is_resolved(&mut self, at: Offset) {
        if let Some((number, _)) = self.take(at) {
            self.leaves(number, 1);
        }
    }

    /// Those that are in memory of letters up to this one.
    pub(super) fn up_to(&self, number: u64) -> impl Iterator<Item = Offset> {
        let is_one = move |it: &&InMemory| !it.is_over && it.number <= number;
        self.messages.iter().filter(is_one).map(|it| it.at)
    }

    /// The note of a turn is in the log.
    pub(super) fn noted(&mut self, moment: Moment) {
        self.noted.extend(self.fresh.drain(..).map(|told| (moment, told)));
    }

    /// What is to be told next, if that is agreed upon.
    pub(super) fn next_told(&mut self, is_agreed: impl Fn(&Moment) -> bool) -> Option<WaitingRun> {
        let (_, told) = self.noted.pop_front_if(|(until, _)| is_agreed(until))?;
        if told.is_awaited {
            self.leaves(told.number, told.count());
        }
        Some(told)
    }

    /// The first letter of which something is still to be told.
    pub(super) fn first_letter(&self) -> Option<u64> {
        self.letters.first_key_value().map(|(&number, _)| number)
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> u64 {
        (self.messages.capacity() * size_of::<InMemory>()) as u64
    }

    fn tell(&mut self, told: WaitingRun) {
        if !self.fresh.last_mut().is_some_and(|it| it.takes(told)) {
            self.fresh.push(told);
        }
    }

    fn take(&mut self, at: Offset) -> Option<(u64, u32)> {
        let index = self.messages.binary_search_by_key(&at, |it| it.at).ok()?;
        let message = self.messages.get_mut(index).filter(|it| !it.is_over)?;
        message.is_over = true;
        let found = (message.number, message.place);
        self.over += 1;
        while self.messages.pop_front_if(|it| it.is_over).is_some() {
            self.over -= 1;
        }
        if self.over > OVER_MAX + self.messages.len() / 2 {
            self.messages.retain(|it| !it.is_over);
            self.over = 0;
        }
        if self.messages.is_empty() {
            // What a burst took is not kept.
            self.messages = VecDeque::new();
        }
        Some(found)
    }

    fn leaves(&mut self, number: u64, count: u32) {
        let Some(left) = self.letters.get_mut(&number) else { return };
        *left = left.saturating_sub(count);
        if *left == 0 {
            self.letters.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(
        number: u64,
        first: u32,
        last: u32,
        at: Option<u64>,
    ) -> Option<(u64, u32, u32, Option<u64>)> {
        Some((number, first, last, at))
    }

    fn next(waiting: &mut WaitingMessages, agreed: u64) -> Option<(u64, u32, u32, Option<u64>)> {
        let told = waiting.next_told(|until| until.end.get() <= agreed)?;
        Some((told.number, told.first, told.last, told.at.map(Offset::get)))
    }

    fn moment(end: u64) -> Moment {
        Moment { end: leveret_log::Offset::new(end), notes: 0 }
    }

    #[test]
    fn what_is_in_memory_is_told_of_once_it_is_in_the_log() {
        let mut waiting = WaitingMessages::default();
        for (number, place, at) in [(1, 0, 10), (1, 1, 11), (2, 0, 12), (3, 0, 14), (3, 1, 16)] {
            waiting.add(number, place, Offset::new(at));
        }
        waiting.is_resolved(Offset::new(12));
        for at in [10, 11, 14, 16] {
            assert!(waiting.goes_to_log(Offset::new(at)).is_some());
            assert_eq!(waiting.goes_to_log(Offset::new(at)), None, "once");
        }
        assert_eq!(next(&mut waiting, 99), None, "no note says it");
        waiting.noted(moment(20));
        assert_eq!((next(&mut waiting, 19), waiting.first_letter()), (None, Some(1)));
        assert_eq!(next(&mut waiting, 20), told(1, 0, 1, Some(10)));
        assert_eq!(waiting.first_letter(), Some(3));
        // They are not one behind the other.
        assert_eq!(next(&mut waiting, 20), told(3, 0, 0, Some(14)));
        assert_eq!(next(&mut waiting, 20), told(3, 1, 1, Some(16)));
        assert_eq!((next(&mut waiting, 20), waiting.first_letter()), (None, None));
    }

    #[test]
    fn who_waits_for_long_holds_up_no_memory() {
        let mut waiting = WaitingMessages::default();
        waiting.add(1, 0, Offset::new(0));
        for at in 1..10_000 {
            waiting.add(1 + at, 0, Offset::new(at));
            waiting.is_resolved(Offset::new(at));
        }
        assert!(waiting.messages.len() < 200, "{}", waiting.messages.len());
        assert_eq!((waiting.letters.len(), waiting.up_to(1).count()), (1, 1));
        assert!(waiting.goes_nowhere(Offset::new(0)));
        waiting.noted(moment(1));
        assert_eq!(next(&mut waiting, 1), told(1, 0, 0, None));
        assert_eq!((waiting.first_letter(), waiting.messages.capacity()), (None, 0));
    }
}
