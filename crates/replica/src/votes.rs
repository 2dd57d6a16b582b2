//! The words of a member on disk: `docs/formats/votes.md`.
//!
//! A word is in two lines, which are never written at once: first one, synced, then the other, synced, and only then it is
//! kept. So at any moment one of them is whole, and what was answered is in both. A start takes the whole line with the higher
//! number and writes the other one anew before it answers anything. A group of which no line is whole has forgotten its word.
//!
//! 1. A crash while the first line is written: the other one has the word before. This one was not answered.
//! 2. A crash while the second line is written: the first one has the word, answered or not.
//! 3. Damage of one line at any other time: the other one has the same.
#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::arithmetic_side_effects)]

use std::collections::BTreeMap;

use leveret_log::BatchName;
use leveret_log::disk::{Body, Disk, DiskError, Done, FileName, Op, Reached, Token};

use crate::members::MemberId;
use crate::output::{Ticket, Word};

/// The file, in a directory of its own.
pub const VOTES: FileName = FileName { segment: 0, generation: 0 };

/// Bytes of a sector: no line shares one with another.
const SECTOR: u64 = 512;

/// Bytes between the two lines of a group: no disk writes both with one sector of its own.
const APART: u64 = 4096;

/// Groups on a page: all first lines, then all second ones.
const PAGE_GROUPS: u64 = APART / SECTOR;

/// Bytes of a page.
const PAGE: u64 = 2 * APART;

const MAGIC: [u8; 8] = *b"LVRTWORD";
const FORMAT: u64 = 1;

/// Bytes of a line that its checksum counts.
const COUNTED: usize = 80;

/// The words of a member, one for each group.
#[derive(Debug)]
pub struct Votes<D> {
    disk: D,
    member: MemberId,
    slots: Vec<WordSlot>,
    wanted: BTreeMap<u64, (Word, Ticket)>,
    round: Option<Round>,
    token: u64,
    failed: Option<DiskError>,
}

/// What is on disk for one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WordSlot {
    Free,
    /// Something was, and nobody knows whose.
    Damaged,
    Of(WordLine),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WordLine {
    group: u64,
    /// Counts the words of the group.
    number: u64,
    member: MemberId,
    word: Word,
}

/// Words that are being written.
#[derive(Debug)]
struct Round {
    words: Vec<(usize, WordLine, Ticket)>,
    is_second: bool,
    /// Writes that are not done.
    left: usize,
    /// One of them found no room: all are written again.
    is_full: bool,
}

impl WordLine {
    fn bytes(&self) -> Vec<u8> {
        let Self { group, number, member, word: Word { term, vote, mark } } = *self;
        let vote = vote.map_or(0, |id| id.0);
        let fields = [FORMAT, group, number, member.0, term, vote, mark.number, mark.term, 0];
        let mut bytes = MAGIC.to_vec();
        bytes.extend(fields.iter().flat_map(|field| field.to_le_bytes()));
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        bytes.resize(SECTOR as usize, 0);
        bytes
    }

    /// The line that these bytes are, if they are one, whole.
    fn of(bytes: &[u8]) -> Option<Self> {
        let (counted, rest) = bytes.split_at_checked(COUNTED)?;
        let (checksum, rest) = rest.split_at_checked(4)?;
        let is_whole = checksum == crc32c::crc32c(counted).to_le_bytes();
        if !is_whole || rest.iter().any(|byte| *byte != 0) {
            return None;
        }
        let fields = counted.strip_prefix(&MAGIC)?.chunks_exact(8);
        let mut fields = fields.map(|it| it.try_into().map(u64::from_le_bytes).unwrap_or(0));
        let mut next = || fields.next();
        if next()? != FORMAT {
            return None;
        }
        let (group, number, member) = (next()?, next()?, MemberId(next()?));
        let (term, vote) = (next()?, next()?);
        let mark = BatchName { number: next()?, term: next()? };
        let vote = Some(MemberId(vote)).filter(|id| id.0 != 0);
        Some(Self { group, number, member, word: Word { term, vote, mark } })
    }
}

/// Where the lines of a slot are.
fn position(slot: usize, is_second: bool) -> u64 {
    let slot = slot as u64;
    let page = (slot / PAGE_GROUPS).saturating_mul(PAGE);
    let line = (slot % PAGE_GROUPS).saturating_mul(SECTOR);
    page.saturating_add(line).saturating_add(if is_second { APART } else { 0 })
}

impl<D: Disk> Votes<D> {
    /// Reads what is on disk. Each word is in two whole lines then, synced. It waits for the disk.
    pub fn open(mut disk: D, member: MemberId) -> Result<Self, DiskError> {
        let len = disk.list()?.iter().find(|(file, _)| *file == VOTES).map_or(0, |(_, len)| *len);
        let mut bytes = vec![0; len as usize];
        if len > 0 {
            disk.read_now(VOTES, 0, &mut bytes)?;
        }
        // The last page may have been begun.
        let pages = len.div_ceil(PAGE).max(1);
        let whole = pages.saturating_mul(PAGE);
        bytes.resize(whole as usize, 0);
        let mut slots = Vec::new();
        // First lines, and second ones.
        let mut repairs = [Vec::new(), Vec::new()];
        for slot in 0..pages.saturating_mul(PAGE_GROUPS) as usize {
            let sectors = [false, true].map(|is_second| {
                let from = position(slot, is_second) as usize;
                bytes.get(from..from.saturating_add(SECTOR as usize)).unwrap_or_default()
            });
            let lines = sectors.map(WordLine::of);
            let newest = lines.into_iter().flatten().max_by_key(|line| line.number);
            slots.push(match newest {
                Some(line) => WordSlot::Of(line),
                None if sectors.iter().all(|it| it.iter().all(|byte| *byte == 0)) => WordSlot::Free,
                None => WordSlot::Damaged,
            });
            let Some(line) = newest else { continue };
            for ((repairs, found), is_second) in repairs.iter_mut().zip(lines).zip([false, true]) {
                if found != newest {
                    repairs.push((position(slot, is_second), line.bytes()));
                }
            }
        }
        let [first, mut second] = repairs;
        if whole > len {
            // Its last byte, so that all of it is there.
            second.push((whole.saturating_sub(1), vec![0]));
        }
        for (position, bytes) in &first {
            disk.write_now(VOTES, *position, bytes)?;
        }
        // A disk whose sectors have several lines may tear them all: never first ones and second ones together.
        if !first.is_empty() {
            disk.truncate_now(VOTES, len)?;
        }
        for (position, bytes) in &second {
            disk.write_now(VOTES, *position, bytes)?;
        }
        // What was written is safe after that, and what a process before this one had not synced.
        disk.truncate_now(VOTES, whole)?;
        let (wanted, round, token, failed) = Default::default();
        Ok(Self { disk, member, slots, wanted, round, token, failed })
    }

    /// The word that this member gave to a group. Nothing if it is not known: then it has forgotten it, or was never in it; that
    /// is for those to know who keep a list of groups.
    pub fn word(&self, group: u64) -> Option<Word> {
        let of_group = self.lines().filter(|line| line.group == group);
        of_group.filter(|line| line.member == self.member).map(|line| line.word).next()
    }

    /// Words of which nothing can be read.
    pub fn damaged(&self) -> usize {
        self.slots.iter().filter(|slot| **slot == WordSlot::Damaged).count()
    }

    /// This is to be the word given to a group. What was to be and is not being written yet is not written any more: the newer
    /// word has all that it promised.
    pub fn keep(&mut self, group: u64, word: Word, ticket: Ticket) {
        self.wanted.insert(group, (word, ticket));
    }

    /// Begins to write all words that are to be kept, if none are being written: for all groups with two syncs. Those that found no
    /// room are tried again: who is told nothing of them has promised nothing.
    pub fn sync(&mut self) {
        let is_to_be_tried = |it: &Round| it.is_full && it.left == 0;
        if self.round.as_ref().is_some_and(is_to_be_tried) && self.failed.is_none() {
            self.write();
        }
        if self.round.is_some() || self.failed.is_some() || self.wanted.is_empty() {
            return;
        }
        let mut words = Vec::new();
        for (group, (word, ticket)) in std::mem::take(&mut self.wanted) {
            let slot = self.slot_of(group);
            let number = match self.slots.get(slot) {
                Some(WordSlot::Of(line)) => line.number,
                _ => 0,
            };
            let number = number.saturating_add(1);
            let line = WordLine { group, number, member: self.member, word };
            if let Some(of) = self.slots.get_mut(slot) {
                *of = WordSlot::Of(line);
            }
            words.push((slot, line, ticket));
        }
        self.round = Some(Round { words, is_second: false, left: 0, is_full: false });
        self.write();
    }

    /// The words that were kept since: each group with the ticket of the newest. After an error nothing is kept any more.
    pub fn collect(&mut self) -> Result<Vec<(u64, Ticket)>, DiskError> {
        let mut kept = Vec::new();
        while let Some((_, done)) = self.disk.poll() {
            match done {
                Done::Written { result: Ok(()), .. } => kept.extend(self.written(false)),
                Done::Written { result: Err(DiskError::Full), .. } => {
                    kept.extend(self.written(true));
                }
                Done::Written { result: Err(error), .. } | Done::Failed(error) => {
                    self.failed.get_or_insert(error);
                }
                _ => {}
            }
        }
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.sync();
        Ok(kept)
    }

    /// Whether something is being written, or is to be.
    pub fn is_busy(&self) -> bool {
        self.round.is_some() || !self.wanted.is_empty()
    }

    fn lines(&self) -> impl Iterator<Item = &WordLine> {
        self.slots.iter().filter_map(|slot| match slot {
            WordSlot::Of(line) => Some(line),
            _ => None,
        })
    }

    /// The slot of a group, or a free one.
    fn slot_of(&mut self, group: u64) -> usize {
        let is_its = |slot: &WordSlot| matches!(slot, WordSlot::Of(line) if line.group == group);
        let is_free = |slot: &WordSlot| *slot == WordSlot::Free;
        let mut slots = self.slots.iter();
        let found = slots.position(is_its).or_else(|| self.slots.iter().position(is_free));
        found.unwrap_or_else(|| {
            self.slots.push(WordSlot::Free);
            self.slots.len().saturating_sub(1)
        })
    }

    /// Writes one line of each word. The last write syncs all.
    fn write(&mut self) {
        let Some(round) = &mut self.round else { return };
        (round.left, round.is_full) = (round.words.len(), false);
        for (at, (slot, line, _)) in (1..).zip(&round.words) {
            self.token = self.token.wrapping_add(1);
            let op = Op::Write {
                file: VOTES,
                position: position(*slot, round.is_second),
                head: line.bytes(),
                body: Body::default(),
                reached: Reached::default(),
                sync: at == round.left,
                is_last: false,
                is_background: false,
            };
            self.disk.submit(Token(self.token), op);
        }
    }

    /// One more write is done, or has found no room.
    fn written(&mut self, is_full: bool) -> Vec<(u64, Ticket)> {
        let Some(round) = self.round.as_mut().filter(|_| self.failed.is_none()) else {
            return Vec::new();
        };
        round.left = round.left.saturating_sub(1);
        round.is_full |= is_full;
        if round.left > 0 || round.is_full {
            return Vec::new();
        }
        if !round.is_second {
            round.is_second = true;
            self.write();
            return Vec::new();
        }
        let done = self.round.take().map(|round| round.words).unwrap_or_default();
        done.into_iter().map(|(_, line, ticket)| (line.group, ticket)).collect()
    }
}
