//! What may be said of the letters of a stream: a set that grows, so that what several notes say is put together.

use std::collections::BTreeMap;

use super::Said;
use crate::stream::NoteItem;

/// Numbers in ranges, first and last, that do not touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    pub(super) fn has(&self, number: u64) -> bool {
        self.0.range(..=number).next_back().is_some_and(|(_, &last)| number <= last)
    }

    /// Adds the numbers `first..=last`.
    pub(super) fn add(&mut self, mut first: u64, mut last: u64) {
        while let Some((&low, &high)) = self.0.range(..=last.saturating_add(1)).next_back()
            && high.saturating_add(1) >= first
        {
            self.0.remove(&low);
            (first, last) = (first.min(low), last.max(high));
        }
        self.0.insert(first, last);
    }

    /// Takes out the numbers below.
    pub(super) fn cut_below(&mut self, from: u64) {
        while let Some(range) = self.0.first_entry()
            && *range.key() < from
        {
            let last = range.remove();
            if last >= from {
                self.0.insert(from, last);
            }
        }
    }

    /// Takes out the range that begins with this number. Its last one.
    fn take(&mut self, first: u64) -> Option<u64> {
        self.0.remove(&first)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter().map(|(&first, &last)| (first, last))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Which letters are done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Done {
    /// All up to this one.
    pub(super) low: u64,
    pub(super) above: Ranges,
    /// So many messages or settlements of letters above.
    pub(super) parts: BTreeMap<u64, u32>,
}

impl Done {
    pub(super) fn has(&self, number: u64) -> bool {
        number <= self.low || self.above.has(number)
    }

    /// The letters `first..=last` are done.
    pub(super) fn add(&mut self, first: u64, last: u64) {
        if self.len() == 0 && first <= self.low.saturating_add(1) {
            self.low = self.low.max(last);
            return;
        }
        while let Some((&number, _)) = self.parts.range(first..=last).next() {
            self.parts.remove(&number);
        }
        if first > self.low.saturating_add(1) {
            self.above.add(first, last);
        } else {
            self.is_to(last);
        }
    }

    /// All up to this one are.
    pub(super) fn is_to(&mut self, low: u64) {
        self.low = self.low.max(low);
        if self.len() == 0 {
            return;
        }
        self.above.cut_below(self.low.saturating_add(1));
        if let Some(last) = self.above.take(self.low.saturating_add(1)) {
            self.low = last;
        }
        while let Some(part) = self.parts.first_entry()
            && *part.key() <= self.low
        {
            part.remove();
        }
    }

    /// So much of a letter is done.
    pub(super) fn add_part(&mut self, number: u64, count: u32) {
        if !self.has(number) {
            self.parts.insert(number, count);
        }
    }

    fn len(&self) -> usize {
        self.above.len() + self.parts.len()
    }
}

/// Messages of letters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Messages {
    /// Letters of which all are among them.
    whole: Ranges,
    /// Of others the messages from here to there.
    some: BTreeMap<u64, Vec<(u32, u32)>>,
    /// How many of these there are.
    runs: usize,
}

impl Messages {
    /// The messages `first..=last` of a letter are, which come behind those of it that were added before.
    pub(super) fn add(&mut self, number: u64, first: u32, last: u32) {
        if self.whole.has(number) {
            return;
        }
        let runs = self.some.entry(number).or_default();
        match runs.last_mut() {
            Some((_, end)) if end.checked_add(1) == Some(first) => *end = last,
            _ => {
                runs.push((first, last));
                self.runs += 1;
            }
        }
    }

    /// All of the letters `first..=last` are.
    pub(super) fn add_whole(&mut self, first: u64, last: u64) {
        while let Some((&number, _)) = self.some.range(first..=last).next() {
            self.forget(number);
        }
        self.whole.add(first, last);
    }

    /// So many messages are all that a letter has: if they are all here, it is.
    pub(super) fn is_whole(&mut self, number: u64, messages: u32) -> bool {
        let runs = self.some.get(&number);
        let is_whole = runs.is_some_and(
            |it| matches!(it[..], [(0, last)] if last.checked_add(1) == Some(messages)),
        );
        if is_whole {
            self.add_whole(number, number);
        }
        is_whole
    }

    pub(super) fn has(&self, number: u64, place: u32) -> bool {
        let in_runs = |runs: &Vec<(u32, u32)>| {
            runs.iter().any(|&(first, last)| (first..=last).contains(&place))
        };
        self.whole.has(number) || self.some.get(&number).is_some_and(in_runs)
    }

    fn forget(&mut self, number: u64) {
        self.runs -= self.some.remove(&number).map_or(0, |runs| runs.len());
    }

    /// Nobody asks of the letters below.
    pub(super) fn forget_below(&mut self, from: u64) {
        self.whole.cut_below(from);
        while let Some((&number, _)) = self.some.first_key_value()
            && number < from
        {
            self.forget(number);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.whole.len() + self.runs
    }

    fn items(
        &self,
        all: fn(u64, u64) -> NoteItem,
        some: fn(u64, u32, u32) -> NoteItem,
    ) -> impl Iterator<Item = NoteItem> {
        let whole = self.whole.iter().map(move |(first, last)| all(first, last));
        whole.chain(self.some.iter().flat_map(move |(&number, runs)| {
            runs.iter().map(move |&(first, last)| some(number, first, last))
        }))
    }
}

/// Messages that wait for a consumer and are in the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct InLog {
    /// By letter and first message: the last one, and where the first one is. The others are behind it.
    runs: BTreeMap<(u64, u32), (u32, u64)>,
}

impl InLog {
    /// Messages are, the first of them here. What was said before may be said again.
    pub(super) fn add(&mut self, number: u64, first: u32, last: u32, at: u64) {
        let end_at = at + u64::from(last - first);
        if self.find(number, first) == Some(at) && self.find(number, last) == Some(end_at) {
            return;
        }
        let before = self.runs.range_mut(..=(number, first)).next_back();
        match before.filter(|((of, _), _)| *of == number) {
            Some((&(_, from), (end, base)))
                if end.checked_add(1) == Some(first) && *base + u64::from(first - from) == at =>
            {
                *end = last;
            }
            _ => _ = self.runs.insert((number, first), (last, at)),
        }
    }

    /// Where a message is.
    pub(super) fn find(&self, number: u64, place: u32) -> Option<u64> {
        let (&(of, first), &(last, at)) = self.runs.range(..=(number, place)).next_back()?;
        (of == number && place <= last).then(|| at + u64::from(place - first))
    }

    fn forget_below(&mut self, from: u64) {
        while self.runs.first_entry().filter(|it| it.key().0 < from).map(|it| it.remove()).is_some()
        {
        }
    }

    fn items(&self) -> impl Iterator<Item = NoteItem> {
        self.runs.iter().map(|(&(number, first), &(last, at))| NoteItem::InLog {
            number,
            first,
            last,
            at,
        })
    }
}

/// What is to be said of the letters of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) done: Done,
    pub(super) refused: Messages,
    /// What was taken in and is not confirmed by that.
    pub(super) waits: Messages,
    /// What of that is in the log.
    pub(super) in_log: InLog,
    /// Letters with parts of transactions that were undone.
    pub(super) undone: Ranges,
}

impl Facts {
    /// How long the [items](Self::items) are together.
    pub(super) fn len(&self) -> usize {
        let in_log = 2 * self.in_log.runs.len();
        self.done.len() + self.refused.len() + self.waits.len() + in_log + self.undone.len()
    }

    /// The messages of which that is said.
    pub(super) fn messages(&mut self, said: Said) -> &mut Messages {
        match said {
            Said::Refused => &mut self.refused,
            Said::Waits => &mut self.waits,
        }
    }

    /// What a note says beside the low number.
    pub(super) fn items(&self) -> Vec<NoteItem> {
        let Self { done, refused, waits, in_log, undone } = self;
        let above = done.above.iter().map(|(first, last)| NoteItem::Done { first, last });
        let parts = done.parts.iter().map(|(&number, &count)| NoteItem::Part { number, count });
        let refused = refused.items(
            |first, last| NoteItem::AllRefused { first, last },
            |number, first, last| NoteItem::Refused { number, first, last },
        );
        let waits = waits.items(
            |first, last| NoteItem::AllWait { first, last },
            |number, first, last| NoteItem::Waits { number, first, last },
        );
        let undone = undone.iter().map(|(first, last)| NoteItem::Undone { first, last });
        let messages = refused.chain(waits).chain(in_log.items());
        above.chain(parts).chain(messages).chain(undone).collect()
    }

    /// Adds what a note says.
    pub(super) fn add(&mut self, item: NoteItem) {
        match item {
            NoteItem::Done { first, last } => self.done.add(first, last),
            NoteItem::Part { number, count } => self.done.add_part(number, count),
            NoteItem::AllRefused { first, last } => self.refused.add_whole(first, last),
            NoteItem::Refused { number, first, last } => self.refused.add(number, first, last),
            NoteItem::AllWait { first, last } => self.waits.add_whole(first, last),
            NoteItem::Waits { number, first, last } => self.waits.add(number, first, last),
            NoteItem::InLog { number, first, last, at } => self.in_log.add(number, first, last, at),
            NoteItem::Undone { first, last } => self.undone.add(first, last),
        }
    }

    /// Forgets of which letters the sender has [heard](crate::stream::Numbered::heard_below), and of which transactions.
    pub(super) fn forget_below(&mut self, heard: u64, undecided: u64) {
        if self.len() == 0 {
            return;
        }
        self.refused.forget_below(heard);
        self.waits.forget_below(heard);
        self.in_log.forget_below(heard);
        self.undone.cut_below(undecided);
    }
}
