//! Records that are damaged on one member's disk, and whole on another's.
//!
//! Members' logs have the same records at the same offsets, wherever their files have them. So a leader whose disk gives back
//! something else than was written asks the others for that record, one after the other, and no consumer is told of it. Each
//! finds it in its own files and reads it as it reads its own: with its checksum.

use std::collections::BTreeMap;

use bytes::Bytes;
use leveret_log::disk::{Disk, DiskError};
use leveret_log::{FileLog, Log as _, Offset};

use super::Member;
use crate::desk::Orders;
use crate::members::{MemberId, Members};

/// Records that are asked for at a time. Of a damaged index there may be thousands.
const ASKED_MAX: usize = 64;

/// What a member reads for others at a time.
const READ_MAX: usize = 256;

/// So long others may be silent until a record is given up: they may be reading their files, or come back.
const SILENT_MS: u64 = 30_000;

/// What members say to each other of single records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordLetter {
    /// Which has the record that is damaged here?
    Wanted {
        /// The offset of the record.
        at: Offset,
    },
    /// The answer.
    Found {
        /// The offset of the record.
        at: Offset,
        /// Its bytes; none if it is not here, or damaged here, too.
        bytes: Option<Bytes>,
    },
}

/// Records that are damaged here, and that others asked for.
#[derive(Debug, Default)]
pub(super) struct Repairs {
    wanted: BTreeMap<Offset, Wanted>,
    /// Records that came from a member, and that the lent log has not looked at.
    given: BTreeMap<Offset, (MemberId, Wanted)>,
    reading: Vec<(MemberId, Offset)>,
    /// Records that were had from others.
    repaired: u64,
}

/// Who was asked for a record.
#[derive(Debug, Default)]
struct Wanted {
    asked: Vec<MemberId>,
    /// Who has said that it has it not.
    refused: Vec<MemberId>,
    /// When the first one was, and the last one.
    begun_ms: Option<u64>,
    since_ms: u64,
}

impl Repairs {
    fn refused(&mut self, at: Offset, by: MemberId) {
        self.wanted.entry(at).or_default().refused.push(by);
    }
}

impl<D: Disk> Member<D> {
    /// Another member asks for a record, or answers.
    pub fn record(&mut self, from: MemberId, letter: RecordLetter) {
        if self.is_out() {
            return;
        }
        match letter {
            RecordLetter::Wanted { at } => {
                let is_new = !self.repairs.reading.contains(&(from, at));
                // Whoever hears nothing asks again.
                if self.repairs.reading.len() >= READ_MAX {
                    return;
                }
                match &mut self.log {
                    Some(log) => log.fetch(&[at]),
                    // It is read once the log is open again.
                    None if self.is_reopening => {}
                    None => return self.answer(from, at, None),
                }
                self.repairs.reading.extend(is_new.then_some((from, at)));
            }
            RecordLetter::Found { at, bytes } => {
                // Whoever was given up may answer late.
                let is_awaited = |it: &Wanted| it.asked.contains(&from);
                if !self.repairs.wanted.get(&at).is_some_and(is_awaited) {
                    return;
                }
                match bytes {
                    Some(bytes) => self.has_record(from, at, bytes),
                    None => {
                        self.repairs.refused(at, from);
                        self.ask_another(at);
                    }
                }
            }
        }
        self.go_on();
    }

    /// Records that were damaged on its disk since it was opened, and are as they were again: had from others, and written, or read where
    /// their place is not known.
    pub fn repaired(&self) -> u64 {
        self.repairs.repaired
    }

    /// The lent log found these damaged.
    pub(super) fn want_records(&mut self, all: Vec<Offset>) {
        for at in all {
            self.repairs.wanted.entry(at).or_default();
        }
    }

    /// The lent log has these as they were again, or could not write them.
    pub(super) fn have_mended(&mut self, mended: Vec<(Offset, Result<(), DiskError>)>) {
        for (at, result) in mended {
            match result {
                Ok(()) => self.repairs.repaired += 1,
                Err(why) => self.actions.told.push(format!(
                    "the record at {at} could not be written to its place: {why}. It is had from another member again when it is read next"
                )),
            }
        }
    }

    /// The lent log has looked at what others gave. What is another record is asked of the next one.
    pub(super) fn have_taken(&mut self, taken: Vec<(Offset, bool)>) {
        for (at, is_it) in taken {
            let Some((from, wanted)) = self.repairs.given.remove(&at) else { continue };
            if is_it {
                self.actions.told.push(format!(
                    "the record at {at} is damaged on this node's disk: it is had from member {from}, and is being repaired"
                ));
                continue;
            }
            self.actions.told.push(format!(
                "member {from} has another record at {at} than the one that is damaged here"
            ));
            self.repairs.wanted.insert(at, wanted);
            self.repairs.refused(at, from);
            self.ask_another(at);
        }
    }

    fn answer(&mut self, to: MemberId, at: Offset, bytes: Option<Bytes>) {
        self.actions.records.push((to, RecordLetter::Found { at, bytes }));
    }

    fn has_record(&mut self, from: MemberId, at: Offset, bytes: Bytes) {
        let wanted = self.repairs.wanted.remove(&at).unwrap_or_default();
        self.repairs.given.insert(at, (from, wanted));
        self.give_record(at, Some(bytes));
    }

    fn give_record(&mut self, at: Offset, bytes: Option<Bytes>) {
        if let Some(lent) = &self.lent {
            lent.desk().order(|Orders { mended, .. }| mended.push((at, bytes)));
            self.actions.wakes_log = true;
        }
    }

    /// Asks whoever was not asked yet; gives the record up if there is nobody.
    fn ask_another(&mut self, at: Offset) {
        let Some(wanted) = self.repairs.wanted.get_mut(&at) else { return };
        let begun_ms = *wanted.begun_ms.get_or_insert(self.now_ms);
        let Members { voters, outgoing, .. } = self.replica.members();
        let others = voters.iter().chain(outgoing).copied().filter(|id| *id != self.replica.id());
        let others: Vec<_> = others.filter(|id| !wanted.refused.contains(id)).collect();
        if others.iter().all(|id| wanted.asked.contains(id))
            && self.now_ms.saturating_sub(begun_ms) < SILENT_MS
        {
            // Who is silent may be reading its files, or come back.
            wanted.asked.clear();
        }
        let next = others.into_iter().filter(|id| !wanted.asked.contains(id));
        // Who has the most of the log has the record.
        match next.max_by_key(|id| (self.replica.matched(*id), *id)) {
            Some(to) => {
                wanted.asked.push(to);
                wanted.since_ms = self.now_ms;
                self.actions.records.push((to, RecordLetter::Wanted { at }));
            }
            None => {
                self.repairs.wanted.remove(&at);
                let told = format!(
                    "the record at {at} is damaged, and no other member that is there has it whole"
                );
                self.actions.told.push(told);
                self.give_record(at, None);
            }
        }
    }

    /// Asks for what is wanted, and again where nobody answered.
    pub(super) fn repair(&mut self) {
        let patience_ms = self.settings.patience_ms();
        let now_ms = self.now_ms;
        let is_due =
            |it: &Wanted| it.asked.is_empty() || now_ms.saturating_sub(it.since_ms) > patience_ms;
        let due = self.repairs.wanted.iter().take(ASKED_MAX).filter(|(_, it)| is_due(it));
        for at in due.map(|(at, _)| *at).collect::<Vec<_>>() {
            self.ask_another(at);
        }
    }

    /// The log is open again: what others asked for meanwhile is read.
    pub(super) fn read_after_opening(&mut self) {
        let all: Vec<_> = self.repairs.reading.iter().map(|it| it.1).collect();
        self.log.iter_mut().for_each(|log| log.fetch(&all));
    }

    /// Answers those who asked for what was read since.
    pub(super) fn read_for_others(&mut self) {
        let Self { repairs, log, actions, .. } = self;
        if log.is_none() && self.is_reopening {
            return;
        }
        repairs.reading.retain(|&(to, at)| {
            let bytes = match log.as_deref_mut().map(|log| read(log, at)) {
                Some(Read::ToCome) => return true,
                Some(Read::Here(bytes)) => Some(bytes),
                Some(Read::Gone) | None => None,
            };
            actions.records.push((to, RecordLetter::Found { at, bytes }));
            false
        });
    }
}

enum Read {
    Here(Bytes),
    ToCome,
    Gone,
}

fn read<D: Disk>(log: &mut FileLog<D>, at: Offset) -> Read {
    match log.read(at) {
        Ok(record) => {
            log.taken(at);
            Read::Here(record.bytes)
        }
        Err(error) if error.is_to_come() && log.is_asked(at) => Read::ToCome,
        Err(_) => Read::Gone,
    }
}
