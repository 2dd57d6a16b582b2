//! Hot path. The messages of a queue that are ready to be delivered, in delivery order.
//!
//! No allocation per message once warm; one entry is 16 bytes.
//!
//! Holds offsets, never message bytes. Knows nothing of consumers (see [`dispatch`](crate::dispatch))
//! and never decides whether a message may be dropped (see [`limits`](crate::limits)).
//!
//! ```text
//!   priority 9   returned (a heap by offset)   fresh (appended in offset order)
//!   priority 4   returned                      fresh
//!   no priority  [ 3  8  7 ]                   [ 12 13 14 15 16 ... ]
//!                  ^ smallest taken first        ^ taken when `returned` is empty
//! ```
//!
//! Of a queue that is made again the messages of the start may come later: the *rest*, which is counted and has no entries yet.
//!
//! ```text
//!   returned   fresh            rest: counted      behind: appended in offset order
//!   [ 3  8 ]   [ 12 13 14 15 ]  ( 16 ... 4711 )    [ 4712 4713 ... ]
//! ```
//!
//! Invariants: what is in `fresh` is before the rest, and what is `behind` it was put in after it; once the rest has none left, what
//! is behind it is fresh as soon as `fresh` is empty. Counts and bytes are those of all.
//!
//! Invariant: in each priority every offset in `returned` is smaller than every offset in `fresh`: a
//! message comes back only after it was taken from the head, and new ones have larger offsets. Exempt
//! are messages of transactions, which come late, and what was brought [`forward`](Ready::push_forward).

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::ops::Range;

use crate::fifo::{BLOCK, Fifo, Pack};
use crate::look::{Keyed, Lowest};

/// Entries a heap may keep room for after it was emptied.
const RETURNED_KEPT: usize = 1_024;

/// One message, ready or unacked.
///
/// ```text
///   offset 8 bytes | size 4 bytes | redelivered, persistent, lean 1 bit each, extra 29 bits
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueuedMessage {
    pub(crate) offset: u64,
    pub(crate) size: u32,
    bits: u32,
}

const REDELIVERED: u32 = 1 << 31;
const PERSISTENT: u32 = 1 << 30;
const LEAN: u32 = 1 << 29;
/// No [`Extra`](crate::extra::Extra).
const NO_EXTRA: u32 = LEAN - 1;

impl QueuedMessage {
    /// One more than the largest number an extra may have.
    pub(crate) const EXTRA_END: u32 = NO_EXTRA;

    pub(crate) fn new(offset: u64, size: u32, persistent: bool, redelivered: bool) -> Self {
        let mut bits = NO_EXTRA;
        if persistent {
            bits |= PERSISTENT;
        }
        if redelivered {
            bits |= REDELIVERED;
        }
        Self { offset, size, bits }
    }

    #[inline]
    pub(crate) fn redelivered(self) -> bool {
        self.bits & REDELIVERED != 0
    }

    pub(crate) fn set_redelivered(&mut self) {
        self.bits |= REDELIVERED;
    }

    #[inline]
    pub(crate) fn persistent(self) -> bool {
        self.bits & PERSISTENT != 0
    }

    /// It is lent to consumers: once it is handed out only their channels know it.
    #[inline]
    pub(crate) fn is_lean(self) -> bool {
        self.bits & LEAN != 0
    }

    pub(crate) fn set_lean(&mut self) {
        self.bits |= LEAN;
    }

    /// Where its expiry and counts are, for the few that have some.
    #[inline]
    pub(crate) fn extra(self) -> Option<u32> {
        let extra = self.bits & NO_EXTRA;
        (extra != NO_EXTRA).then_some(extra)
    }

    fn columns(self) -> [u64; 3] {
        [self.offset, self.size.into(), self.bits.into()]
    }

    pub(crate) fn set_extra(&mut self, extra: u32) {
        debug_assert!(extra < Self::EXTRA_END);
        self.bits = self.bits & !NO_EXTRA | extra;
    }
}

impl Keyed for QueuedMessage {
    fn key(&self) -> u64 {
        self.offset
    }
}

/// One column after the other, each as a first value and what changes from entry to entry; a column in
/// which every step is the same is one step. If all three are, it is a [`Series`], and the next block may go on with it.
///
/// ```text
///   count | offset, steps | size, steps | bits, steps        steps: 0 step | 1 step step ...
/// ```
impl Pack for QueuedMessage {
    fn pack(block: &[Self]) -> Box<[u8]> {
        let mut out = Vec::with_capacity(64);
        put(&mut out, block.len() as u64);
        put_column(&mut out, block, |entry| entry.offset);
        put_column(&mut out, block, |entry| entry.size.into());
        put_column(&mut out, block, |entry| entry.bits.into());
        out.into()
    }

    fn pack_behind(before: &mut Box<[u8]>, block: &[Self]) -> bool {
        let Some(series) = Series::read(before) else { return false };
        let goes_on = series.count + block.len() as u64 <= SERIES_MAX
            && (series.count..)
                .zip(block)
                .all(|(index, entry)| series.at(index) == entry.columns());
        if goes_on {
            *before = Series { count: series.count + block.len() as u64, ..series }.write();
        }
        goes_on
    }

    fn unpack(bytes: &[u8], into: &mut Vec<Self>) -> Option<Box<[u8]>> {
        let mut rest = bytes;
        let (start, all) = (into.len(), take(&mut rest));
        let count = all.min(BLOCK as u64);
        into.resize(start + count as usize, Self { offset: 0, size: 0, bits: 0 });
        let block = &mut into[start..];
        take_column(&mut rest, block, |entry, value| entry.offset = value);
        take_column(&mut rest, block, |entry, value| entry.size = value as u32);
        take_column(&mut rest, block, |entry, value| entry.bits = value as u32);
        if count == all {
            return None;
        }
        let series = Series::read(bytes)?;
        Some(Series { first: series.at(count), count: all - count, ..series }.write())
    }
}

/// Entries of a series at most: as many are looked at where one of them is looked for.
const SERIES_MAX: u64 = 16 << 10;

/// Packed entries whose columns have one step each.
#[derive(Clone, Copy, Debug)]
struct Series {
    count: u64,
    first: [u64; 3],
    steps: [u64; 3],
}

impl Series {
    /// What [`QueuedMessage::pack`] or [`write`](Self::write) wrote, unless some column has many steps.
    fn read(mut bytes: &[u8]) -> Option<Self> {
        let bytes = &mut bytes;
        let mut series = Self { count: take(bytes), first: [0; 3], steps: [0; 3] };
        for (first, step) in series.first.iter_mut().zip(&mut series.steps) {
            *first = take(bytes);
            if take(bytes) == 1 {
                return None;
            }
            *step = unzigzag(take(bytes));
        }
        Some(series)
    }

    fn write(&self) -> Box<[u8]> {
        let mut out = Vec::with_capacity(64);
        put(&mut out, self.count);
        for (first, step) in self.first.iter().zip(self.steps) {
            put(&mut out, *first);
            out.push(0);
            put(&mut out, zigzag(step));
        }
        out.into()
    }

    /// The columns of one of its entries, or of one that goes on with it.
    fn at(&self, index: u64) -> [u64; 3] {
        let column = |it: usize| self.first[it].wrapping_add(self.steps[it].wrapping_mul(index));
        [column(0), column(1), column(2)]
    }
}

fn put_column(out: &mut Vec<u8>, block: &[QueuedMessage], value: impl Fn(&QueuedMessage) -> u64) {
    let Some(first) = block.first().map(&value) else { return };
    put(out, first);
    let steps = || block.windows(2).map(|pair| value(&pair[1]).wrapping_sub(value(&pair[0])));
    let step = steps().next().unwrap_or(0);
    if steps().all(|other| other == step) {
        out.push(0);
        put(out, zigzag(step));
    } else {
        out.push(1);
        steps().for_each(|step| put(out, zigzag(step)));
    }
}

fn take_column(
    bytes: &mut &[u8],
    block: &mut [QueuedMessage],
    mut set: impl FnMut(&mut QueuedMessage, u64),
) {
    let mut value = take(bytes);
    let varies = take(bytes) == 1;
    let mut step = if varies { 0 } else { unzigzag(take(bytes)) };
    for (index, entry) in block.iter_mut().enumerate() {
        if index > 0 {
            if varies {
                step = unzigzag(take(bytes));
            }
            value = value.wrapping_add(step);
        }
        set(entry, value);
    }
}

/// Small numbers of either sign become small numbers.
fn zigzag(step: u64) -> u64 {
    (step << 1) ^ ((step as i64 >> 63) as u64)
}

fn unzigzag(coded: u64) -> u64 {
    (coded >> 1) ^ (coded & 1).wrapping_neg()
}

/// Seven bits a byte, the lowest first.
fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// What [`put`] wrote. The bytes are our own and never leave memory.
fn take(bytes: &mut &[u8]) -> u64 {
    let (mut number, mut shift) = (0, 0);
    while let Some((&byte, rest)) = bytes.split_first() {
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
        shift += 7;
    }
    number
}

/// An entry in the heap of those that came back: the smallest offset is the greatest.
#[derive(Clone, Copy, Debug)]
struct Returned(QueuedMessage);

impl Ord for Returned {
    fn cmp(&self, other: &Self) -> Ordering {
        other.0.offset.cmp(&self.0.offset)
    }
}

impl PartialOrd for Returned {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Returned {
    fn eq(&self, other: &Self) -> bool {
        self.0.offset == other.0.offset
    }
}

impl Eq for Returned {}

#[derive(Debug, Default)]
struct Level {
    returned: BinaryHeap<Returned>,
    fresh: Fifo<QueuedMessage>,
}

impl Level {
    #[inline]
    fn peek(&self) -> Option<&QueuedMessage> {
        match self.returned.peek() {
            Some(Returned(entry)) => Some(entry),
            None => self.fresh.front(),
        }
    }

    #[inline]
    fn pop(&mut self) -> Option<QueuedMessage> {
        if self.returned.is_empty() { self.fresh.pop_front() } else { self.pop_returned() }
    }

    fn pop_returned(&mut self) -> Option<QueuedMessage> {
        let Returned(entry) = self.returned.pop()?;
        if self.returned.is_empty() && self.returned.capacity() > RETURNED_KEPT {
            self.returned = BinaryHeap::new();
        }
        Some(entry)
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.returned.is_empty() && self.fresh.is_empty()
    }

    fn entries(&self) -> impl Iterator<Item = QueuedMessage> {
        self.returned.iter().map(|&Returned(entry)| entry).chain(self.fresh.iter())
    }

    fn take(&mut self, offsets: &[u64], taken: &mut Vec<QueuedMessage>) {
        self.returned.retain(|Returned(entry)| {
            let is_wanted = offsets.binary_search(&entry.offset).is_ok();
            taken.extend(is_wanted.then_some(*entry));
            !is_wanted
        });
        taken.sort_unstable_by_key(Keyed::key);
        self.fresh.take(offsets, taken);
    }

    fn relax(&mut self) {
        self.fresh.relax();
        if self.returned.is_empty() {
            self.returned = BinaryHeap::new();
        }
    }
}

/// Levels above priority 0; most queues have none.
#[derive(Debug, Default)]
struct Higher {
    /// Level `n` is priority `n + 1`; as many as were needed so far.
    levels: Vec<Level>,
    /// One bit per priority that has messages.
    occupied: [u64; 4],
}

impl Higher {
    fn top(&self) -> Option<u8> {
        let word = (0..4).rev().find(|&word| self.occupied[word] != 0)?;
        Some((word * 64) as u8 + 63 - self.occupied[word].leading_zeros() as u8)
    }

    fn level(&self, priority: u8) -> &Level {
        &self.levels[usize::from(priority) - 1]
    }

    /// The level of a priority that gets a message.
    fn occupy(&mut self, priority: u8) -> &mut Level {
        let at = usize::from(priority) - 1;
        if at >= self.levels.len() {
            self.levels.resize_with(at + 1, Level::default);
        }
        self.occupied[usize::from(priority) / 64] |= 1 << (priority % 64);
        &mut self.levels[at]
    }

    #[inline]
    fn pop(&mut self, priority: u8) -> Option<QueuedMessage> {
        let level = &mut self.levels[usize::from(priority) - 1];
        let entry = level.pop();
        if level.is_empty() {
            self.occupied[usize::from(priority) / 64] &= !(1 << (priority % 64));
        }
        entry
    }
}

/// Messages without priority that have no entries yet, and those behind them.
#[derive(Debug, Default)]
struct Gap {
    /// All of the rest have offsets from this one on,
    from: u64,
    /// to before this one.
    end: u64,
    count: u64,
    /// Bytes of their bodies.
    bytes: u64,
    behind: Fifo<QueuedMessage>,
}

/// All ready messages of a queue.
#[derive(Debug, Default)]
pub(crate) struct Ready {
    base: Level,
    higher: Option<Box<Higher>>,
    /// None unless something is behind, or is to come.
    gap: Option<Box<Gap>>,
    len: u64,
    bytes: u64,
}

impl Ready {
    #[inline]
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Bytes of the bodies.
    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A new message, behind all others of its priority.
    #[inline]
    pub(crate) fn push_fresh(&mut self, priority: u8, entry: QueuedMessage) {
        self.len += 1;
        self.bytes += u64::from(entry.size);
        match &mut self.gap {
            Some(gap) if priority == 0 => gap.behind.push_back(entry),
            _ => self.level_for(priority).fresh.push_back(entry),
        }
    }

    /// Messages from an offset on, to before another one, are behind all that have entries, and are counted only: so many, of so
    /// many bytes together. Others may have offsets between.
    pub(crate) fn push_rest(&mut self, offsets: Range<u64>, count: u64, bytes: u64) {
        self.len += count;
        self.bytes += bytes;
        let gap = self.gap.get_or_insert_default();
        debug_assert!(gap.behind.is_empty(), "they are not behind all others");
        if gap.count == 0 {
            (gap.from, gap.end) = (offsets.start, offsets.end);
        }
        gap.from = gap.from.min(offsets.start);
        gap.end = gap.end.max(offsets.end);
        gap.count += count;
        gap.bytes += bytes;
    }

    /// Whether messages may be put behind all others, and be counted only.
    pub(crate) fn may_have_rest(&self) -> bool {
        self.gap.as_ref().is_none_or(|gap| gap.behind.is_empty())
    }

    /// Messages of the rest.
    pub(crate) fn rest(&self) -> u64 {
        self.gap.as_ref().map_or(0, |gap| gap.count)
    }

    /// Whether a message of the rest may have this offset, or a lower one.
    pub(crate) fn has_rest_to(&self, offset: u64) -> bool {
        self.gap.as_ref().is_some_and(|gap| gap.count > 0 && gap.from <= offset)
    }

    /// Whether the message of this offset is of the rest, if it is in the queue.
    pub(crate) fn is_in_rest(&self, offset: u64) -> bool {
        self.gap.as_ref().is_some_and(|gap| gap.count > 0 && (gap.from..gap.end).contains(&offset))
    }

    /// The first message of the rest.
    pub(crate) fn push_of_rest(&mut self, entry: QueuedMessage) {
        let Some(gap) = &mut self.gap else { return };
        gap.count -= 1;
        let left = gap.bytes.checked_sub(entry.size.into());
        debug_assert!(left.is_some(), "the rest has fewer bytes than one of its messages");
        gap.bytes = left.unwrap_or(0);
        gap.from = entry.offset + 1;
        self.base.fresh.push_back(entry);
    }

    /// There is no rest, whatever was counted: how many messages were not there.
    #[cold]
    pub(crate) fn forget_rest(&mut self) -> u64 {
        let Some(gap) = &mut self.gap else { return 0 };
        let count = std::mem::take(&mut gap.count);
        self.len -= count;
        self.bytes -= std::mem::take(&mut gap.bytes);
        self.close_gap();
        count
    }

    /// What is behind the rest is next, if nothing is before it any more.
    #[cold]
    fn close_gap(&mut self) {
        if self.base.fresh.is_empty()
            && let Some(gap) = self.gap.take_if(|gap| gap.count == 0)
        {
            self.base.fresh = gap.behind;
        }
    }

    /// A message that comes back to its place.
    pub(crate) fn push_returned(&mut self, priority: u8, entry: QueuedMessage) {
        self.len += 1;
        self.bytes += u64::from(entry.size);
        self.level_for(priority).returned.push(Returned(entry));
    }

    /// A message that goes out before all others, but for older ones that were brought forward, too. It
    /// keeps that place when it comes back.
    pub(crate) fn push_forward(&mut self, entry: QueuedMessage) {
        self.push_returned(u8::MAX, entry);
    }

    #[inline]
    fn level_for(&mut self, priority: u8) -> &mut Level {
        if priority == 0 {
            &mut self.base
        } else {
            self.higher.get_or_insert_default().occupy(priority)
        }
    }

    /// The message to be delivered next.
    #[inline]
    pub(crate) fn peek(&self) -> Option<&QueuedMessage> {
        if let Some(higher) = &self.higher
            && let Some(priority) = higher.top()
        {
            return higher.level(priority).peek();
        }
        self.base.peek()
    }

    /// Takes the message to be delivered next, and tells its priority.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<(u8, QueuedMessage)> {
        let (priority, entry) = match self.higher.as_mut().and_then(|h| h.top().map(|p| (h, p))) {
            Some((higher, priority)) => (priority, higher.pop(priority)?),
            None => (0, self.base.pop()?),
        };
        if self.gap.is_some() {
            self.close_gap();
        }
        self.len -= 1;
        self.bytes -= u64::from(entry.size);
        Some((priority, entry))
    }

    /// Takes the first `count` out, or all if there are fewer. There is no rest.
    pub(crate) fn take_first(&mut self, count: u64) -> Self {
        debug_assert_eq!(self.rest(), 0, "what has no entry cannot be taken");
        let mut first = Self::default();
        if count >= self.len {
            return std::mem::take(self);
        }
        for _ in 0..count {
            if let Some((priority, entry)) = self.pop() {
                first.push_fresh(priority, entry);
            }
        }
        first
    }

    /// Takes those with one of these offsets out, wherever they are. The offsets ascend.
    #[cold]
    pub(crate) fn take(&mut self, offsets: &[u64]) -> Vec<(u8, QueuedMessage)> {
        let mut taken = Vec::new();
        let mut of_level = Vec::new();
        if let Some(higher) = &mut self.higher {
            for (priority, level) in (1..=u8::MAX).zip(&mut higher.levels).rev() {
                level.take(offsets, &mut of_level);
                if level.is_empty() {
                    higher.occupied[usize::from(priority) / 64] &= !(1 << (priority % 64));
                }
                taken.extend(of_level.drain(..).map(|entry| (priority, entry)));
            }
        }
        self.base.take(offsets, &mut of_level);
        if let Some(gap) = &mut self.gap {
            gap.behind.take(offsets, &mut of_level);
            self.close_gap();
        }
        taken.extend(of_level.into_iter().map(|entry| (0, entry)));
        self.len -= taken.len() as u64;
        self.bytes -= taken.iter().map(|(_, entry)| u64::from(entry.size)).sum::<u64>();
        taken
    }

    /// Offers all that may be wanted.
    pub(crate) fn search(&self, lowest: &mut Lowest<QueuedMessage>) {
        let higher = self.higher.iter().flat_map(|higher| &higher.levels);
        for level in higher.chain([&self.base]) {
            level.returned.iter().for_each(|&Returned(entry)| lowest.offer(entry));
            level.fresh.search(lowest);
        }
        self.behind().for_each(|behind| behind.search(lowest));
    }

    /// The messages behind the rest.
    fn behind(&self) -> impl Iterator<Item = &Fifo<QueuedMessage>> {
        self.gap.iter().map(|gap| &gap.behind)
    }

    /// About how many bytes the entries take.
    pub(crate) fn allocated_bytes(&self) -> u64 {
        // Packed are only long backlogs, and those have the priority that most messages have: none.
        let fifos = || [&self.base.fresh].into_iter().chain(self.behind());
        let (mut bytes, mut packed) = (0, self.rest());
        for fifo in fifos() {
            bytes += fifo.packed().0;
            packed += fifo.packed().1;
        }
        let open = (self.len - packed.min(self.len)) * (size_of::<QueuedMessage>() as u64 + 1);
        open.max(fifos().map(Fifo::open_bytes).sum()) + bytes
    }

    /// How many are kept packed.
    pub(crate) fn packed(&self) -> u64 {
        self.base.fresh.packed().1 + self.behind().map(|it| it.packed().1).sum::<u64>()
    }

    /// Those before the rest in about the order they will be popped.
    pub(crate) fn next_entries(&self) -> impl Iterator<Item = QueuedMessage> {
        let behind = self.gap.iter().filter(|gap| gap.count == 0);
        self.first_entries().chain(behind.flat_map(|gap| gap.behind.iter()))
    }

    /// All that have entries in about the order they will be popped: what came back is in no order of its own.
    pub(crate) fn entries(&self) -> impl Iterator<Item = QueuedMessage> {
        self.first_entries().chain(self.behind().flat_map(Fifo::iter))
    }

    fn first_entries(&self) -> impl Iterator<Item = QueuedMessage> {
        let higher = self.higher.iter().flat_map(|higher| higher.levels.iter().rev());
        higher.chain([&self.base]).flat_map(Level::entries)
    }

    /// Nobody takes any soon: those without priority are packed.
    #[inline]
    pub(crate) fn settle(&mut self) {
        self.base.fresh.settle();
        if let Some(gap) = &mut self.gap {
            gap.behind.settle();
        }
    }

    /// Gives back memory that is kept for speed.
    pub(crate) fn relax(&mut self) {
        self.base.relax();
        match &mut self.higher {
            Some(higher) if higher.occupied == [0; 4] => self.higher = None,
            Some(higher) => higher.levels.iter_mut().for_each(Level::relax),
            None => {}
        }
    }

    /// Bytes allocated for messages without priority.
    #[cfg(test)]
    pub(crate) fn allocated(&self) -> usize {
        self.base.fresh.allocated() + self.base.returned.capacity() * size_of::<Returned>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(offset: u64) -> QueuedMessage {
        QueuedMessage::new(offset, 10, false, false)
    }

    fn popped(ready: &mut Ready) -> Vec<u64> {
        let mut all = Vec::new();
        while let Some(&head) = ready.peek() {
            let (_, entry) = ready.pop().expect("peeked");
            assert_eq!(entry, head);
            all.push(entry.offset);
        }
        assert_eq!((ready.len(), ready.bytes()), (0, 0));
        assert!(ready.pop().is_none());
        all
    }

    #[test]
    fn sixteen_bytes() {
        assert_eq!(size_of::<QueuedMessage>(), 16);
        assert_eq!(size_of::<Returned>(), 16);
    }

    #[test]
    fn an_entry_keeps_its_bits() {
        let mut entry = QueuedMessage::new(u64::MAX, u32::MAX, true, false);
        assert_eq!((entry.persistent(), entry.redelivered(), entry.extra()), (true, false, None));
        entry.set_extra(5);
        entry.set_redelivered();
        assert_eq!((entry.persistent(), entry.redelivered(), entry.extra()), (true, true, Some(5)));
        entry.set_extra(QueuedMessage::EXTRA_END - 1);
        assert_eq!(entry.extra(), Some(QueuedMessage::EXTRA_END - 1));
    }

    #[test]
    fn a_block_is_packed_and_is_the_same_again() {
        let mut seed = 1_u64;
        let mut random = move |below: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % below
        };
        let alike: Vec<_> = (0..128).map(|n| QueuedMessage::new(n, 16, true, false)).collect();
        assert!(QueuedMessage::pack(&alike).len() < 20, "{}", QueuedMessage::pack(&alike).len());
        for round in 0..200 {
            let mut offset = random(1 << 40);
            let block: Vec<_> = (0..=random(BLOCK as u64 - 1))
                .map(|_| {
                    offset = match round % 3 {
                        0 => offset + 1 + random(300),
                        1 => offset + 7,
                        _ => random(u64::MAX),
                    };
                    let size = if round % 2 == 0 { 1024 } else { random(1 << 32) as u32 };
                    let mut entry =
                        QueuedMessage::new(offset, size, random(2) == 0, random(9) == 0);
                    if random(5) == 0 {
                        entry.set_extra(random(1000) as u32);
                    }
                    entry
                })
                .collect();
            let mut again = vec![entry(1)];
            assert_eq!(QueuedMessage::unpack(&QueuedMessage::pack(&block), &mut again), None);
            assert_eq!(again[1..], block);
        }
    }

    /// As long as they go on alike, and no longer; what was packed so comes back block by block.
    #[test]
    fn blocks_that_go_on_alike_are_packed_as_one() {
        let block = |first: u64, step: u64, count: u64| -> Vec<QueuedMessage> {
            (0..count).map(|n| QueuedMessage::new(first + step * n, 100, true, false)).collect()
        };
        let start = block(1000, 3, 128);
        for (next, is_alike) in [
            (block(1384, 3, 128), true),
            (block(1384, 3, 1), true),
            (block(1384, 2, 128), false),
            (block(1383, 3, 128), false),
            (
                block(1384, 3, 128)
                    .into_iter()
                    .map(|it| QueuedMessage { size: 101, ..it })
                    .collect(),
                false,
            ),
        ] {
            let mut packed = QueuedMessage::pack(&start);
            assert_eq!(QueuedMessage::pack_behind(&mut packed, &next), is_alike, "{next:?}");
            if is_alike {
                let (mut first, mut last) = (Vec::new(), Vec::new());
                let others = QueuedMessage::unpack(&packed, &mut first).expect("the second block");
                assert_eq!(QueuedMessage::unpack(&others, &mut last), None);
                assert_eq!((first, last), (start.clone(), next));
            }
        }
        let mut packed = QueuedMessage::pack(&start);
        let more = (1..).take_while(|n| {
            QueuedMessage::pack_behind(&mut packed, &block(1000 + 3 * 128 * n, 3, 128))
        });
        assert_eq!(more.count() as u64, SERIES_MAX / 128 - 1);
    }

    #[test]
    fn a_long_backlog_of_like_messages_takes_next_to_nothing() {
        let mut ready = Ready::default();
        for offset in 0..1_000_000 {
            ready.push_fresh(0, QueuedMessage::new(3 * offset, 16, true, false));
        }
        assert!(ready.allocated() < 40_000, "{} for a million", ready.allocated());
        assert!(ready.allocated_bytes() < 40_000, "{} counted", ready.allocated_bytes());
        for offset in 0..1_000_000 {
            assert_eq!(ready.pop().map(|(_, entry)| entry.offset), Some(3 * offset));
        }
    }

    #[test]
    fn those_that_come_back_go_to_their_place() {
        let mut ready = Ready::default();
        for offset in 1..=6 {
            ready.push_fresh(0, entry(offset));
        }
        let taken: Vec<_> = (0..4).map(|_| ready.pop().expect("six are there").1).collect();
        for at in [2, 0, 3, 1] {
            ready.push_returned(0, taken[at]);
        }
        assert_eq!(popped(&mut ready), [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn the_highest_priority_goes_first() {
        let mut ready = Ready::default();
        for (offset, priority) in [(1, 0), (2, 255), (3, 64), (4, 63), (5, 255), (6, 1), (7, 0)] {
            ready.push_fresh(priority, entry(offset));
        }
        let (priority, first) = ready.pop().expect("seven are there");
        assert_eq!((priority, first.offset), (255, 2));
        ready.push_returned(255, first);
        assert_eq!(popped(&mut ready), [2, 5, 3, 4, 6, 1, 7]);
        ready.relax();
        assert!(ready.higher.is_none());
    }

    #[test]
    fn memory_is_given_back() {
        let mut ready = Ready::default();
        for offset in 0..100_000 {
            ready.push_fresh(0, entry(offset));
        }
        let taken: Vec<_> = std::iter::from_fn(|| ready.pop()).collect();
        for &(_, entry) in taken.iter().rev() {
            ready.push_returned(0, entry);
        }
        assert_eq!(popped(&mut ready).len(), 100_000);
        assert!(ready.allocated() <= 16 * 1_024, "{}", ready.allocated());
    }
}
