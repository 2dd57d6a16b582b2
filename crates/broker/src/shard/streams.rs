//! How far each stream of numbered letters is done, and what the log says of that.
//!
//! The note of a stream is written at the end of the turn that did something of it, so it is in the batch that has what was
//! done, and a newer one replaces it. An old note is let go of once it is written: a record that is released before never is, and
//! a batch may end between it and the newer one. So several notes of a stream may be in the log, and the last one counts.

use std::collections::{BTreeMap, VecDeque};

use leveret_log::Moment;
use leveret_queue::Offset;

use crate::stream::{
    NOTE_ITEMS, NoteItem, NotePiece, StreamEvent, StreamId, StreamNews, StreamPlace,
};

/// Which letter of which stream a job belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag {
    pub(super) stream: StreamId,
    pub(super) number: u64,
}

/// What a number means to the shard that gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NumberFate {
    /// It is to be done, but for its first messages or settlements.
    Next { done: u32 },
    /// It was done before this term: of its messages nobody was told, perhaps.
    Earlier,
    /// It came in this term, and who has to be told is told.
    Again,
    /// This one is missing before it.
    Lacks(u64),
    /// The same, which was said already.
    StillLacks,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Streams {
    term: u64,
    all: Vec<Stream>,
    /// The letter that is being done.
    current: Option<Doing>,
    /// One of them is to be noted.
    is_changed: bool,
    /// Records of notes.
    records: u64,
}

#[derive(Debug)]
struct Doing {
    tag: Tag,
    /// Its first messages that were done before.
    base: u32,
    /// The rest of it waits in a line.
    waits: bool,
}

#[derive(Debug)]
struct Stream {
    id: StreamId,
    /// The last number that came in this term, or was done before it.
    taken: u64,
    done: Done,
    /// The same when the term began.
    earlier: Done,
    /// Messages `first..=last` of letters, as far as the sender has not let go of these.
    refused: BTreeMap<u64, Vec<(u32, u32)>>,
    is_changed: bool,
    has_said_lacks: bool,
    /// Notes in the log, the oldest first: their first record, and how many.
    notes: VecDeque<(Offset, u64)>,
    /// Low numbers, and until when the log has to be agreed upon.
    marks: VecDeque<(Moment, u64)>,
    /// The last low number of which was said that it is agreed upon.
    agreed: u64,
}

/// Which letters are done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Done {
    /// All up to this one.
    low: u64,
    /// Ranges above, first and last: they do not touch.
    above: BTreeMap<u64, u64>,
    /// So many messages or settlements of letters above.
    parts: BTreeMap<u64, u32>,
}

impl Done {
    fn has(&self, number: u64) -> bool {
        number <= self.low
            || self.above.range(..=number).next_back().is_some_and(|(_, &last)| number <= last)
    }

    fn add(&mut self, number: u64) {
        self.parts.remove(&number);
        if self.has(number) {
            return;
        }
        let before = self.above.range(..number).next_back();
        let before = before.filter(|&(_, &last)| last + 1 == number).map(|(&first, _)| first);
        let last = self.above.remove(&(number + 1)).unwrap_or(number);
        if self.low + 1 == number {
            self.low = last;
        } else {
            self.above.insert(before.unwrap_or(number), last);
        }
    }
}

impl Stream {
    fn new(id: StreamId) -> Self {
        Self {
            id,
            taken: 0,
            done: Done::default(),
            earlier: Done::default(),
            refused: BTreeMap::new(),
            is_changed: false,
            has_said_lacks: false,
            notes: VecDeque::new(),
            marks: VecDeque::new(),
            agreed: 0,
        }
    }

    fn note(&self) -> Vec<NotePiece> {
        let Done { low, above, parts } = &self.done;
        let above = above.iter().map(|(&first, &last)| NoteItem::Done { first, last });
        let parts = parts.iter().map(|(&number, &count)| NoteItem::Part { number, count });
        let refused = self.refused.iter().flat_map(|(&number, runs)| {
            runs.iter().map(move |&(first, last)| NoteItem::Refused { number, first, last })
        });
        let items: Vec<NoteItem> = above.chain(parts).chain(refused).collect();
        let piece = |items: &[NoteItem]| NotePiece {
            stream: self.id,
            goes_on: false,
            low: *low,
            items: items.to_vec(),
        };
        let mut pieces: Vec<NotePiece> = items.chunks(NOTE_ITEMS).map(piece).collect();
        if pieces.is_empty() {
            pieces.push(piece(&[]));
        }
        pieces.iter_mut().skip(1).for_each(|piece| piece.goes_on = true);
        pieces
    }
}

impl Streams {
    fn stream(&mut self, id: StreamId) -> Option<&mut Stream> {
        self.all.iter_mut().find(|stream| stream.id == id)
    }

    /// It is a new one if nothing came of it yet.
    fn stream_or_new(&mut self, id: StreamId) -> &mut Stream {
        let there = self.all.iter().position(|stream| stream.id == id);
        let at = there.unwrap_or_else(|| {
            self.all.push(Stream::new(id));
            self.all.len() - 1
        });
        &mut self.all[at]
    }

    /// A letter came.
    pub(super) fn take(&mut self, id: StreamId, number: u64, kept_from: u64) -> NumberFate {
        let stream = self.stream_or_new(id);
        if stream.refused.first_key_value().is_some_and(|(&first, _)| first < kept_from) {
            stream.refused = stream.refused.split_off(&kept_from);
        }
        let next = stream.taken + 1;
        if number > next {
            return match std::mem::replace(&mut stream.has_said_lacks, true) {
                false => NumberFate::Lacks(next),
                true => NumberFate::StillLacks,
            };
        }
        if number == next {
            stream.taken = number;
            stream.has_said_lacks = false;
        }
        if stream.earlier.has(number) {
            NumberFate::Earlier
        } else if number == next {
            NumberFate::Next {
                done: stream.earlier.parts.get(&number).copied().unwrap_or_default(),
            }
        } else {
            NumberFate::Again
        }
    }

    /// What the shard tells of a stream.
    pub(super) fn news(&self, stream: StreamId, what: StreamEvent) -> StreamNews {
        StreamNews { stream, term: self.term, what }
    }

    /// See [`StreamNews::term`].
    pub(super) fn term(&self) -> u64 {
        self.term
    }

    /// Whether all letters up to this one are done.
    pub(super) fn is_done_to(&self, id: StreamId, last: u64) -> bool {
        let stream = self.all.iter().find(|stream| stream.id == id);
        stream.map_or(0, |stream| stream.done.low) >= last
    }

    /// The letter with a number that is being done.
    pub(super) fn doing(&self) -> Option<Tag> {
        self.current.as_ref().map(|doing| doing.tag)
    }

    /// How far it has taken a stream.
    pub(super) fn place(&self, id: StreamId) -> StreamPlace {
        let stream = self.all.iter().find(|stream| stream.id == id);
        let (taken, agreed) = stream.map_or((0, 0), |it| (it.taken, it.agreed));
        StreamPlace { term: self.term, next: taken + 1, agreed }
    }

    /// A letter, or what is left of it, is being done from now on. Its first messages were done before.
    pub(super) fn begin(&mut self, tag: Tag, base: u32) {
        self.current = Some(Doing { tag, base, waits: false });
    }

    /// The rest of the letter that is being done, if one is, is to wait in a line.
    pub(super) fn leaves(&mut self, done: u32) -> Option<Tag> {
        let current = self.current.as_mut()?;
        current.waits = true;
        let tag = current.tag;
        self.is_done_so_far(tag, done);
        Some(tag)
    }

    /// What was begun is done, unless its rest waits.
    pub(super) fn end(&mut self) {
        if let Some(Doing { tag, waits: false, .. }) = self.current.take() {
            self.is_done(tag);
        }
    }

    /// The letter is done.
    pub(super) fn is_done(&mut self, tag: Tag) {
        if let Some(stream) = self.stream(tag.stream) {
            stream.done.add(tag.number);
            stream.is_changed = true;
            self.is_changed = true;
        }
    }

    /// So much of a letter is done.
    fn is_done_so_far(&mut self, tag: Tag, count: u32) {
        if let Some(stream) = self.stream(tag.stream)
            && count > 0
        {
            stream.done.parts.insert(tag.number, count);
            stream.is_changed = true;
            self.is_changed = true;
        }
    }

    /// A message was refused: its place among those of the letter that are being done.
    #[cold]
    pub(super) fn refused(&mut self, place: usize) {
        let Some(Doing { tag, base, .. }) = self.current else { return };
        let at = base.saturating_add(u32::try_from(place).unwrap_or(u32::MAX));
        let Some(stream) = self.stream(tag.stream) else { return };
        let runs = stream.refused.entry(tag.number).or_default();
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == at => *last = at,
            _ => runs.push((at, at)),
        }
    }

    /// A transaction's part that was done is not to be.
    #[cold]
    pub(super) fn was_given_up(&mut self, tag: Tag) {
        let Some(stream) = self.stream(tag.stream) else { return };
        stream.refused.insert(tag.number, vec![(0, 0)]);
        stream.is_changed = true;
        self.is_changed = true;
    }

    /// Whether a message of a letter was refused.
    pub(super) fn was_refused(&self, tag: Tag, place: usize) -> bool {
        let stream = self.all.iter().find(|stream| stream.id == tag.stream);
        let runs = stream.and_then(|stream| stream.refused.get(&tag.number));
        let at = u32::try_from(place).unwrap_or(u32::MAX);
        runs.is_some_and(|runs| runs.iter().any(|&(first, last)| (first..=last).contains(&at)))
    }

    /// Whether there is something to note.
    #[inline]
    pub(super) fn is_changed(&self) -> bool {
        self.is_changed
    }

    /// The notes that are to be written, each in pieces.
    pub(super) fn to_note(&self) -> Vec<(StreamId, Vec<NotePiece>)> {
        let changed = self.all.iter().filter(|stream| stream.is_changed);
        changed.map(|stream| (stream.id, stream.note())).collect()
    }

    /// A note is in the log, which has done so much. Returns records of older ones that are on the disk: they are to be let go of.
    pub(super) fn noted(
        &mut self,
        id: StreamId,
        first: Offset,
        count: u64,
        moment: Moment,
        durable: u64,
    ) -> Vec<Offset> {
        self.records += count;
        let Some(stream) = self.stream(id) else { return Vec::new() };
        stream.is_changed = false;
        stream.notes.push_back((first, count));
        let low = stream.done.low;
        if stream.marks.back().is_none_or(|&(_, last)| last < low) {
            stream.marks.push_back((moment, low));
        }
        let mut old = Vec::new();
        while stream.notes.len() > 1
            && let Some(note) =
                stream.notes.pop_front_if(|(at, count)| at.get() + *count <= durable)
        {
            old.extend(records_of(note));
        }
        self.records -= old.len() as u64;
        self.is_changed = self.all.iter().any(|stream| stream.is_changed);
        old
    }

    /// Says how far streams are agreed upon.
    pub(super) fn agreed(
        &mut self,
        is_agreed: impl Fn(&Moment) -> bool,
        mut each: impl FnMut(StreamNews),
    ) {
        let term = self.term;
        for stream in &mut self.all {
            let mut last = None;
            while let Some((_, low)) = stream.marks.pop_front_if(|(until, _)| is_agreed(until)) {
                last = Some(low);
            }
            if let Some(low) = last {
                stream.agreed = low;
                each(StreamNews { stream: stream.id, term, what: StreamEvent::Agreed(low) });
            }
        }
    }

    /// Whether there are streams at all.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Records that are notes.
    pub(super) fn records(&self) -> u64 {
        self.records
    }

    /// The log is to be read anew: what was not noted there was never done.
    pub(super) fn begin_term(&mut self) {
        *self = Self { term: self.term + 1, ..Self::default() };
    }

    /// See [`term`](Self::term).
    pub(super) fn is_of_term(&mut self, term: u64) {
        self.term = term;
    }

    /// A piece of a note was found in the log, which is read in order. A newer note of the stream replaces an older one, and
    /// they all are in the log until [`noted`](Self::noted) tells of the older ones.
    pub(super) fn found(&mut self, at: Offset, piece: NotePiece) {
        let NotePiece { stream: id, goes_on, low, items } = piece;
        self.records += 1;
        let stream = self.stream_or_new(id);
        match stream.notes.back_mut().filter(|_| goes_on) {
            Some((_, count)) => *count += 1,
            None => {
                stream.notes.push_back((at, 1));
                stream.done = Done { low, ..Done::default() };
                stream.refused.clear();
            }
        }
        for item in items {
            match item {
                NoteItem::Done { first, last } => _ = stream.done.above.insert(first, last),
                NoteItem::Part { number, count } => _ = stream.done.parts.insert(number, count),
                NoteItem::Refused { number, first, last } => {
                    stream.refused.entry(number).or_default().push((first, last));
                }
            }
        }
    }

    /// The log was read up to its end. The term before may have ended before it said what is agreed upon, and no other letter
    /// of a stream may come: its node waits for that.
    pub(super) fn all_found(&mut self, end: Moment) {
        for stream in &mut self.all {
            stream.taken = stream.done.low;
            stream.earlier = stream.done.clone();
            stream.marks.push_back((end, stream.done.low));
        }
    }

    /// Forgets streams. Returns the records of their notes, which are to be let go of.
    pub(super) fn keep_only(&mut self, is_alive: impl Fn(StreamId) -> bool) -> Vec<Offset> {
        let gone = self.all.extract_if(.., |stream| !is_alive(stream.id));
        let notes = gone.flat_map(|stream| stream.notes);
        let records: Vec<Offset> = notes.flat_map(records_of).collect();
        self.records -= records.len() as u64;
        records
    }
}

/// The records of a note: the first one, and how many.
fn records_of((first, count): (Offset, u64)) -> impl Iterator<Item = Offset> {
    (first.get()..first.get() + count).map(Offset::new)
}

#[cfg(test)]
mod tests;
