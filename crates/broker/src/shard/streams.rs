//! How far each stream of numbered letters is done, and what the log says of that.
//!
//! The note of a stream is written at the end of the turn that did something of it, so it is in the batch that has what was
//! done. It says what is new, beside the low number; what several notes say is put together. Now and then a *whole* note says all
//! anew: always when it fits one record, and else when the notes since the last one have become much longer than it.
//!
//! ```text
//!   [ whole 4, 6 ][ adds 4, 8 ][ adds 5 ]     low 5 at least, 6 and 8 above: so all up to 6, and 8
//! ```
//!
//! Old notes are let go of once a newer whole one is on the disk: a batch may end between the two, and a record that is released before its
//! batch begins is never written.
//!
//! What was refused, and what waits for a consumer, is said until the sender has heard what the letter came to: of each message that it
//! was refused, or confirmed, or where it waits. One that waits in memory alone is [kept](waiting) by the sender until it is in the log
//! or has its verdict, so that holds up what is said of the letters behind it. Where that becomes much, what is in memory goes to the log.
//! What is done above other letters is bounded by what the sender keeps, as it keeps no more letters that are not agreed upon.

mod facts;
mod reopened;
mod waiting;

use std::collections::{BTreeSet, VecDeque};

use leveret_log::Moment;
use leveret_queue::Offset;
use leveret_topology::NodeId;
use smallvec::SmallVec;

use crate::stream::{
    NOTE_ITEMS, NoteItem, NotePiece, PieceRole, StreamEvent, StreamId, StreamNews, StreamPlace,
    Tag, pieces_of,
};
use facts::{Done, Facts};
use reopened::Reopened;
use waiting::{WaitingMessages, WaitingRun};

/// With so much to say of a stream, its messages that wait in memory alone go to the log.
const FACTS_MAX: usize = 1024;

/// Notes since the last whole one have twice its items, and so many more, at most.
const ITEMS_BEYOND: usize = 64;

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
    /// Another one is to come before it, which was said already.
    StillLacks,
}

/// What became of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    Refused,
    /// What was decided is lost.
    Unknown,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Streams {
    term: u64,
    /// Where the log ended when the term began.
    began_at: u64,
    all: Vec<Stream>,
    /// The letter that is being done.
    current: Option<Doing>,
    /// One of them is to be noted.
    is_changed: bool,
    /// What waited in memory goes to the log.
    has_gone: bool,
    /// Records of notes.
    records: u64,
}

#[derive(Debug)]
struct Doing {
    tag: Tag,
    /// Its first messages that were done before.
    base: u32,
    /// All of its messages.
    messages: u32,
    /// The rest of it waits in a line.
    rest_waits: bool,
    /// The last messages in a row that were refused, and those that wait for a consumer.
    runs: [Option<(u32, u32)>; 2],
}

/// What became of a message of a letter that an earlier term had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EarlierMessage {
    /// It was stored, and is confirmed by that.
    Stored,
    Refused,
    /// It waits for a consumer, and is in the log, or was until it had its verdict.
    WaitsInLog(Offset),
    /// It was taken in to wait for a consumer, in memory or nowhere.
    Waits,
}

/// Where a message is that was taken in to wait for a consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitsWhere {
    /// In memory, until it has waited for long enough.
    Memory(Offset),
    Log(Offset),
    /// In memory for good.
    Nowhere,
}

/// What may be said of a message.
#[derive(Clone, Copy)]
enum Said {
    Refused,
    Waits,
}

#[derive(Debug)]
struct Stream {
    id: StreamId,
    /// The last number that came in this term, or was done before it.
    taken: u64,
    /// As far as the sender may ask.
    facts: Facts,
    /// See [`Numbered`](crate::stream::Numbered).
    heard_below: u64,
    /// What of it no note says.
    fresh: Facts,
    /// What was done when the term began.
    earlier: Done,
    /// Letters with parts of transactions of which nobody knows what was decided. The parts are in the log, so no note says it.
    unknown: BTreeSet<u64>,
    /// Letters that are to come again, though notes say that they are done.
    reopened: Reopened,
    waiting: WaitingMessages,
    /// Messages that an earlier term had in memory, and that this one has taken: their letters may be asked for again.
    taken_again: BTreeSet<(u64, u32)>,
    is_changed: bool,
    has_said_lacks: bool,
    /// Notes in the log, the oldest first.
    notes: VecDeque<InLog>,
    /// Items of the last whole note, and of those behind it, of which each counts as one at least: it is a record.
    items: usize,
    /// Low numbers, and until when the log has to be agreed upon.
    marks: VecDeque<(Moment, u64)>,
    /// The last low number of which was said that it is agreed upon.
    agreed: u64,
    /// See [`StreamEvent::Agreed`]: the last one that was said.
    told: u64,
    /// The next one.
    is_to_be_told: Option<ToBeTold>,
}

/// Of all letters up to `low` is told what there is to tell, once the log is agreed upon as far as `until`,
#[derive(Debug)]
struct ToBeTold {
    low: u64,
    until: Moment,
    /// and, before that, all members in contact have that much.
    is_for_all: bool,
}

/// What holds up verdicts on letters that are agreed upon.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HeldVerdicts {
    /// How far the log goes.
    pub(super) until: Moment,
    /// Some wait for all members in contact to have that.
    pub(super) for_all: bool,
    /// Some are in turns that are held.
    pub(super) in_turns: bool,
}

/// A note, in the pieces that fit a record each.
type StreamNote = SmallVec<[NotePiece; 1]>;

/// A note in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct InLog {
    first: Offset,
    records: u64,
    /// It says all; else what is new.
    is_whole: bool,
}

impl InLog {
    fn end(self) -> u64 {
        self.first.get() + self.records
    }

    fn offsets(self) -> impl Iterator<Item = Offset> {
        (self.first.get()..self.end()).map(Offset::new)
    }
}

impl Stream {
    fn new(id: StreamId) -> Self {
        Self {
            id,
            taken: 0,
            facts: Facts::default(),
            heard_below: 0,
            fresh: Facts::default(),
            earlier: Done::default(),
            unknown: BTreeSet::new(),
            reopened: Reopened::default(),
            waiting: WaitingMessages::default(),
            taken_again: BTreeSet::new(),
            is_changed: false,
            has_said_lacks: false,
            notes: VecDeque::new(),
            items: 0,
            marks: VecDeque::new(),
            agreed: 0,
            told: 0,
            is_to_be_told: None,
        }
    }

    /// Whether the next note says all anew. `fresh` says nothing that the low number says.
    fn is_next_whole(&self) -> bool {
        let all = self.facts.len();
        let much = 2 * all + ITEMS_BEYOND;
        all <= NOTE_ITEMS || self.items == 0 || self.items + self.fresh.len().max(1) > much
    }

    fn note(&self) -> StreamNote {
        let (facts, role) = match self.is_next_whole() {
            true => (&self.facts, PieceRole::Whole),
            false => (&self.fresh, PieceRole::Adds),
        };
        let piece = |items: &[NoteItem]| NotePiece {
            stream: self.id,
            role: PieceRole::GoesOn,
            low: self.facts.done.low,
            items: items.into(),
        };
        let mut pieces = match facts.len() {
            // Nearly always: the low number says all.
            0 => StreamNote::from_buf([piece(&[])]),
            _ => pieces_of(&facts.items()).into_iter().map(piece).collect(),
        };
        pieces[0].role = role;
        pieces
    }

    /// Of all letters up to this one is told what there is to tell of their messages, once they are agreed upon up to it.
    fn tellable(&self) -> u64 {
        let first = self.waiting.first_letter();
        first.map_or(self.agreed, |first| self.agreed.min(first.saturating_sub(1)))
    }

    /// Something is to be noted.
    fn changed(&mut self, change: impl Fn(&mut Facts)) {
        change(&mut self.facts);
        change(&mut self.fresh);
        self.is_changed = true;
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
    pub(super) fn take(
        &mut self,
        id: StreamId,
        number: u64,
        heard_below: u64,
        undecided_from: u64,
    ) -> NumberFate {
        let stream = self.stream_or_new(id);
        stream.heard_below = stream.heard_below.max(heard_below);
        stream.facts.forget_below(heard_below, undecided_from);
        stream.fresh.forget_below(heard_below, undecided_from);
        while stream.unknown.first().is_some_and(|number| *number < undecided_from) {
            stream.unknown.pop_first();
        }
        while stream.taken_again.first().is_some_and(|(number, _)| *number < heard_below) {
            stream.taken_again.pop_first();
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
        if let Some(is_awaited) = stream.reopened.take(number) {
            match is_awaited {
                true => NumberFate::Next { done: 0 },
                false => NumberFate::Again,
            }
        } else if stream.earlier.has(number) {
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

    /// All that was done in earlier terms is in the log below.
    pub(super) fn began_at(&self) -> u64 {
        self.began_at
    }

    /// See [`StreamNews::term`].
    pub(super) fn term(&self) -> u64 {
        self.term
    }

    /// Whether all letters up to this one are done.
    pub(super) fn is_done_to(&self, id: StreamId, last: u64) -> bool {
        let Some(stream) = self.all.iter().find(|stream| stream.id == id) else { return last == 0 };
        stream.facts.done.low >= last && stream.reopened.is_done_to(last)
    }

    /// A part that this letter brought is in the log, and was undone, as nothing was decided on it. Whether the letter is to come
    /// again, and the part's record to stay until [`closes`](Self::closes) or [`forgets_below`](Self::forgets_below) gives it back. Else
    /// it comes again anyway, or was refused. To be called behind [`all_found`](Self::all_found).
    pub(super) fn reopen(&mut self, tag: Tag, part: Offset) -> bool {
        let was_refused = self.outcome(tag) == Outcome::Refused;
        let Some(stream) = self.stream(tag.stream) else { return false };
        let reopens = stream.earlier.has(tag.number) && !was_refused;
        if reopens {
            stream.reopened.add(tag.number, part);
            self.records += 1;
        }
        reopens
    }

    /// It is decided on the part that a letter brought. The record of the part that it had brought before the term, if there is one, is
    /// to be let go of in the same turn: once it is forgotten what was decided, it would reopen the letter.
    pub(super) fn closes(&mut self, tag: Tag) -> Option<Offset> {
        let part = self.stream(tag.stream)?.reopened.forget(tag.number)?;
        self.records -= 1;
        Some(part)
    }

    /// The sender waits for the answer to no part in the letters below: such a record of one of them, until there is none.
    #[inline]
    pub(super) fn forgets_below(&mut self, id: StreamId, undecided_from: u64) -> Option<Offset> {
        let part = self.stream(id)?.reopened.forget_below(undecided_from)?;
        self.records -= 1;
        Some(part)
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

    /// A letter of so many messages, or what is left of it, is being done from now on. Its first messages were done before.
    pub(super) fn begin(&mut self, tag: Tag, base: u32, messages: usize) {
        let messages = u32::try_from(messages).unwrap_or(u32::MAX);
        self.current = Some(Doing { tag, base, messages, rest_waits: false, runs: [None; 2] });
    }

    /// The rest of the letter that is being done, if one is, is to wait in a line.
    pub(super) fn leaves(&mut self, done: u32) -> Option<Tag> {
        let current = self.current.as_mut()?;
        current.rest_waits = true;
        let (tag, runs) = (current.tag, std::mem::take(&mut current.runs));
        self.say_runs(tag, runs, None);
        self.is_done_so_far(tag, done);
        Some(tag)
    }

    /// What was begun is done, unless its rest waits.
    pub(super) fn end(&mut self) {
        let Some(Doing { tag, messages, rest_waits: false, runs, .. }) = self.current.take() else {
            return;
        };
        self.say_runs(tag, runs, Some(messages));
        self.is_done(tag);
    }

    /// Notes these messages of a letter. If they are its last ones, it has so many.
    #[inline]
    fn say_runs(&mut self, tag: Tag, runs: [Option<(u32, u32)>; 2], messages: Option<u32>) {
        for (said, run) in [Said::Refused, Said::Waits].into_iter().zip(runs) {
            if let Some(run) = run {
                self.say(tag, said, run, messages);
            }
        }
    }

    fn say(&mut self, tag: Tag, said: Said, (first, last): (u32, u32), messages: Option<u32>) {
        let Some(stream) = self.stream(tag.stream) else { return };
        let number = tag.number;
        let is_whole = first == 0 && last.checked_add(1) == messages;
        stream.changed(|it| match is_whole {
            true => it.messages(said).add_whole(number, number),
            false => it.messages(said).add(number, first, last),
        });
        if let Some(messages) = messages
            && stream.facts.messages(said).is_whole(number, messages)
        {
            stream.fresh.messages(said).add_whole(number, number);
        }
        self.is_changed = true;
    }

    /// The letter is done.
    pub(super) fn is_done(&mut self, tag: Tag) {
        if let Some(stream) = self.stream(tag.stream) {
            stream.reopened.is_done(tag.number);
            stream.changed(|it| it.done.add(tag.number, tag.number));
            self.is_changed = true;
        }
    }

    /// So much of a letter is done.
    fn is_done_so_far(&mut self, tag: Tag, count: u32) {
        if let Some(stream) = self.stream(tag.stream)
            && count > 0
        {
            stream.changed(|it| it.done.add_part(tag.number, count));
            self.is_changed = true;
        }
    }

    /// A message was refused: its place among those of the letter that are being done.
    #[cold]
    pub(super) fn refused(&mut self, place: usize) {
        self.note_message(place, Said::Refused);
    }

    /// A message was taken in, and that does not confirm it. If it was refused, too, its publisher is told that once all queues are done
    /// with it: it is nowhere, so that nobody keeps it.
    pub(super) fn waits(&mut self, place: usize, whereabouts: WaitsWhere) {
        let Some(Doing { tag, base, .. }) = self.current else { return };
        self.note_message(place, Said::Waits);
        let place = base.saturating_add(u32::try_from(place).unwrap_or(u32::MAX));
        self.waits_at(tag, place, whereabouts);
    }

    /// A message that an earlier term had in memory is to be taken in this one. False if it was.
    #[cold]
    pub(super) fn take_again(&mut self, tag: Tag, place: u32) -> bool {
        self.stream(tag.stream).is_some_and(|it| it.taken_again.insert((tag.number, place)))
    }

    /// A message that an earlier term had in memory is refused in this one.
    #[cold]
    pub(super) fn refused_again(&mut self, tag: Tag, place: u32) {
        self.say(tag, Said::Refused, (place, place), None);
    }

    /// Where a message waits that a letter brought in this term, or in an earlier one.
    pub(super) fn waits_at(&mut self, tag: Tag, place: u32, whereabouts: WaitsWhere) {
        let Some(stream) = self.stream(tag.stream) else { return };
        match whereabouts {
            WaitsWhere::Memory(at) => stream.waiting.add(tag.number, place, at),
            WaitsWhere::Nowhere => stream.waiting.is_nowhere(tag.number, place),
            WaitsWhere::Log(at) => {
                stream.waiting.is_in_log(tag.number, place, at);
                stream.changed(|it| it.in_log.add(tag.number, place, place, at.get()));
            }
        }
        // The note of this turn is behind what is to be told.
        stream.is_changed = true;
        self.is_changed = true;
    }

    /// A message that waits for a consumer goes to the log with this turn; or, if the log has it no more, stays with who has it. It
    /// may be one of those that were in memory alone.
    #[cold]
    pub(super) fn goes(&mut self, at: Offset, is_in_log: bool) {
        for stream in &mut self.all {
            if !is_in_log {
                stream.is_changed |= stream.waiting.goes_nowhere(at);
                self.is_changed |= stream.is_changed;
            } else if let Some((number, place)) = stream.waiting.goes_to_log(at) {
                stream.changed(|it| it.in_log.add(number, place, place, at.get()));
                (self.is_changed, self.has_gone) = (true, true);
            }
        }
    }

    /// Whether a message [goes](Self::goes) to the log with this turn.
    pub(super) fn has_gone(&mut self) -> bool {
        std::mem::take(&mut self.has_gone)
    }

    /// A message that waited in memory alone has its verdict.
    pub(super) fn is_resolved(&mut self, at: Offset) {
        self.all.iter_mut().for_each(|stream| stream.waiting.is_resolved(at));
    }

    /// Messages that wait in memory alone and are to go to the log: of the letters of a stream up to this one.
    #[cold]
    pub(super) fn in_memory(&self, id: StreamId, up_to: u64) -> Vec<Offset> {
        let stream = self.all.iter().find(|stream| stream.id == id);
        stream.map_or_else(Vec::new, |it| it.waiting.up_to(up_to).collect())
    }

    /// The same of streams of which too much is to be said because of them.
    #[cold]
    pub(super) fn crowded(&self) -> Vec<Offset> {
        let crowded = self.all.iter().filter(|it| it.facts.len() > FACTS_MAX);
        crowded.flat_map(|it| it.waiting.up_to(u64::MAX)).collect()
    }

    /// Bytes that messages take that wait in memory alone.
    pub(super) fn bytes(&self) -> u64 {
        self.all.iter().map(|it| it.waiting.bytes()).sum()
    }

    fn note_message(&mut self, place: usize, said: Said) {
        let Some(Doing { tag, base, runs, .. }) = &mut self.current else { return };
        let at = base.saturating_add(u32::try_from(place).unwrap_or(u32::MAX));
        match &mut runs[said as usize] {
            Some((_, last)) if last.checked_add(1) == Some(at) => *last = at,
            run => {
                let tag = *tag;
                if let Some(before) = run.replace((at, at)) {
                    self.say(tag, said, before, None);
                }
            }
        }
    }

    /// A transaction's part that was done is not to be.
    #[cold]
    pub(super) fn was_given_up(&mut self, tag: Tag) {
        let Some(stream) = self.stream(tag.stream) else { return };
        stream.changed(|it| it.undone.add(tag.number, tag.number));
        self.is_changed = true;
    }

    /// What was decided on a transaction's part is lost.
    #[cold]
    pub(super) fn is_unknown(&mut self, tag: Tag) {
        if let Some(stream) = self.stream(tag.stream) {
            stream.unknown.insert(tag.number);
        }
    }

    /// What became of a transaction, or of a part, that a letter of an earlier term brought.
    pub(super) fn outcome(&self, tag: Tag) -> Outcome {
        let stream = self.all.iter().find(|stream| stream.id == tag.stream);
        let Some(Stream { facts, unknown, .. }) = stream else { return Outcome::Done };
        if facts.undone.has(tag.number) || facts.refused.has(tag.number, 0) {
            Outcome::Refused
        } else if unknown.contains(&tag.number) {
            Outcome::Unknown
        } else {
            Outcome::Done
        }
    }

    /// What became of a message of an earlier term, which its sender asks for. By the rules that its queues had then.
    pub(super) fn earlier_message(&self, tag: Tag, place: u32) -> EarlierMessage {
        let stream = self.all.iter().find(|stream| stream.id == tag.stream);
        let Some(Stream { facts, heard_below, .. }) = stream else { return EarlierMessage::Waits };
        if facts.refused.has(tag.number, place) {
            EarlierMessage::Refused
        } else if let Some(at) = facts.in_log.find(tag.number, place) {
            EarlierMessage::WaitsInLog(Offset::new(at))
        } else if tag.number < *heard_below || facts.waits.has(tag.number, place) {
            EarlierMessage::Waits
        } else {
            EarlierMessage::Stored
        }
    }

    /// Whether there is something to note.
    #[inline]
    pub(super) fn is_changed(&self) -> bool {
        self.is_changed
    }

    /// The notes that are to be written, each in pieces.
    pub(super) fn next_notes(&mut self) -> SmallVec<[(StreamId, StreamNote); 1]> {
        let changed = self.all.iter_mut().filter(|stream| stream.is_changed);
        let note = |stream: &mut Stream| {
            stream.fresh.done.is_to(stream.facts.done.low);
            (stream.id, stream.note())
        };
        changed.map(note).collect()
    }

    /// The [note](Self::next_notes) of a stream is in the log, which has done so much. Returns records of older ones that nobody needs:
    /// they are to be let go of.
    pub(super) fn noted(
        &mut self,
        id: StreamId,
        first: Offset,
        records: u64,
        moment: Moment,
        durable: u64,
    ) -> SmallVec<[Offset; 2]> {
        self.records += records;
        let Some(stream) = self.stream(id) else { return SmallVec::new() };
        let is_whole = stream.is_next_whole();
        stream.items = match is_whole {
            true => stream.facts.len(),
            false => stream.items + stream.fresh.len().max(1),
        };
        let low = stream.facts.done.low;
        (stream.fresh, stream.is_changed) = (Facts::default(), false);
        stream.fresh.done.low = low;
        stream.notes.push_back(InLog { first, records, is_whole });
        if stream.marks.back().map_or(stream.agreed, |&(_, last)| last) < low {
            stream.marks.push_back((moment, low));
        }
        stream.waiting.noted(moment);
        let is_needed = |it: &InLog| it.is_whole && it.end() <= durable;
        let old = stream.notes.iter().rposition(is_needed).unwrap_or(0);
        let old: SmallVec<_> = stream.notes.drain(..old).flat_map(InLog::offsets).collect();
        self.records -= old.len() as u64;
        self.is_changed = self.all.iter().any(|stream| stream.is_changed);
        old
    }

    /// Says how far streams are agreed upon, and how far their verdicts are told.
    pub(super) fn agreed(
        &mut self,
        held: HeldVerdicts,
        is_agreed: impl Fn(&Moment) -> bool,
        is_on_all: impl Fn(&Moment) -> bool,
        mut each: impl FnMut(StreamNews),
    ) {
        let term = self.term;
        for stream in &mut self.all {
            let before = (stream.agreed, stream.told);
            while let Some((_, low)) = stream.marks.pop_front_if(|(until, _)| is_agreed(until)) {
                stream.agreed = low;
            }
            while let Some(told) = stream.waiting.next_told(&is_agreed) {
                let WaitingRun { number, first, last, at, .. } = told;
                let what = StreamEvent::Waits { number, first, last, at };
                each(StreamNews { stream: stream.id, term, what });
            }
            if let Some(next) = &mut stream.is_to_be_told
                && next.is_for_all
                && (!held.for_all || is_on_all(&next.until))
            {
                // A message may have had its verdict before all had it, of an ack: that is in a turn which is held, perhaps.
                next.is_for_all = false;
                if held.in_turns {
                    next.until = held.until;
                }
            }
            let is_told = |next: &mut ToBeTold| !next.is_for_all && is_agreed(&next.until);
            if let Some(next) = stream.is_to_be_told.take_if(is_told) {
                stream.told = next.low;
            }
            let low = stream.tellable();
            if stream.is_to_be_told.is_none() && stream.told < low {
                let HeldVerdicts { until, for_all: is_for_all, in_turns } = held;
                match is_for_all || in_turns {
                    true => stream.is_to_be_told = Some(ToBeTold { low, until, is_for_all }),
                    false => stream.told = low,
                }
            }
            if before != (stream.agreed, stream.told) {
                let what = StreamEvent::Agreed { low: stream.agreed, told: stream.told };
                each(StreamNews { stream: stream.id, term, what });
            }
        }
    }

    /// Whether letters of this node have numbers.
    pub(super) fn are_of(&self, node: NodeId) -> bool {
        self.all.iter().any(|stream| stream.id.node == node)
    }

    /// Whether there are streams at all.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Records that are notes, or of parts that were undone and whose letters are to come again.
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

    /// A piece of a note was found in the log, which is read in order. They all are in the log until [`noted`](Self::noted)
    /// tells of those that nobody needs.
    pub(super) fn found(&mut self, at: Offset, piece: NotePiece) {
        let NotePiece { stream: id, role, low, items } = piece;
        self.records += 1;
        let stream = self.stream_or_new(id);
        if role == PieceRole::Whole {
            (stream.facts, stream.items) = (Facts::default(), 0);
        }
        match stream.notes.back_mut().filter(|_| role == PieceRole::GoesOn) {
            Some(note) => note.records += 1,
            None => {
                let is_whole = role == PieceRole::Whole;
                stream.notes.push_back(InLog { first: at, records: 1, is_whole });
            }
        }
        let len = items.iter().map(NoteItem::len).sum::<usize>();
        stream.items += match role {
            PieceRole::Adds => len.max(1),
            PieceRole::Whole | PieceRole::GoesOn => len,
        };
        stream.facts.done.is_to(low);
        items.into_iter().for_each(|item| stream.facts.add(item));
    }

    /// The log was read up to its end. The term before may have ended before it said what is agreed upon, and no other letter
    /// of a stream may come: its node waits for that.
    pub(super) fn all_found(&mut self, end: Moment) {
        self.began_at = end.end.get();
        for stream in &mut self.all {
            stream.taken = stream.facts.done.low;
            stream.fresh.done.low = stream.taken;
            stream.earlier = stream.facts.done.clone();
            stream.marks.push_back((end, stream.taken));
        }
    }

    /// Forgets streams. Returns the records of their notes, and of what was reopened, which are to be let go of.
    pub(super) fn keep_only(&mut self, is_alive: impl Fn(StreamId) -> bool) -> Vec<Offset> {
        let gone = self.all.extract_if(.., |stream| !is_alive(stream.id));
        let mut records = Vec::new();
        for Stream { notes, reopened, .. } in gone {
            records.extend(notes.into_iter().flat_map(InLog::offsets).chain(reopened.parts()));
        }
        self.records -= records.len() as u64;
        records
    }
}

#[cfg(test)]
mod tests;
