//! The next read: which of the records that are asked for, in as few bytes and operations as possible.

use std::collections::BTreeSet;

use super::places::{RecordPlace, RecordPlaces};
use super::{Fetch, JOBS_MAX};
use crate::disk::{FileName, Piece};
use crate::file::Store;
use crate::file::segments::Stretch;

/// The longest read in one piece, unless one record is longer.
pub(super) const READ_MAX: u64 = 1 << 20;

/// The longest read in more than one piece, and how many those are. So what lies far apart, and is going to be
/// taken at different times, does not pin much.
const SPREAD_MAX: u64 = 128 << 10;
const PIECES_MAX: usize = 64;

/// Bytes between two records that cost less than reading twice. More are read in vain only where they are less than a
/// quarter of what is wanted.
const GAP_MAX: u64 = 1 << 10;

/// What is read of a stretch of which only the index is wanted: a part of it that the index mostly fits in,
/// within limits.
const INDEX_PART: u64 = 16;
const INDEX_MIN: u64 = 16 << 10;
const INDEX_MAX: u64 = 64 << 10;

/// Records of one file that are read at once.
#[derive(Debug)]
pub(super) struct Spread {
    pub(super) file: FileName,
    pub(super) pieces: Vec<Piece>,
    /// Where each begins in what is read.
    pub(super) places: Vec<(RecordPlace, usize)>,
    /// Bytes of all pieces.
    pub(super) len: u64,
    /// Of the last piece: where it ends, and what of it is wanted and what not.
    end: u64,
    wanted: u64,
    vain: u64,
}

/// A record that can be read with others.
struct Next {
    place: RecordPlace,
    /// Bytes between the others and this one, if they are read in one piece.
    gap: Option<u64>,
    /// By which the read gets longer.
    bytes: u64,
}

/// What is to be read next.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Stretches whose index is not known, and how much of each is read at first.
    pub(super) loads: Vec<(Stretch, u64)>,
    pub(super) bodies: Vec<Spread>,
    /// Released meanwhile.
    pub(super) idle: Vec<u64>,
    /// Not where they should be.
    pub(super) lost: Vec<(u64, Stretch)>,
}

impl Spread {
    pub(super) fn new(file: FileName, first: RecordPlace) -> Self {
        let (len, position) = (u64::from(first.len), first.position);
        Self {
            file,
            pieces: vec![Piece { position, len: first.len as usize }],
            places: vec![(first, 0)],
            len,
            end: first.end(),
            wanted: len,
            vain: 0,
        }
    }

    /// What it takes to read a record with the others, behind them. None when that would be too much, or it is elsewhere.
    fn next(&self, file: FileName, place: RecordPlace) -> Option<Next> {
        let len = u64::from(place.len);
        let gap = place.position.checked_sub(self.end);
        let gap = gap.filter(|gap| *gap <= GAP_MAX || self.vain + gap <= self.wanted / 4);
        let (bytes, pieces) = match gap {
            Some(gap) => (gap + len, self.pieces.len()),
            None => (len, self.pieces.len() + 1),
        };
        let most = if pieces == 1 { READ_MAX } else { SPREAD_MAX };
        let fits = file == self.file && self.len + bytes <= most && pieces <= PIECES_MAX;
        fits.then_some(Next { place, gap, bytes })
    }

    fn add(&mut self, Next { place, gap, bytes }: Next) {
        let len = u64::from(place.len);
        match (gap, self.pieces.last_mut()) {
            (Some(gap), Some(last)) => {
                last.len += bytes as usize;
                (self.wanted, self.vain) = (self.wanted + len, self.vain + gap);
            }
            _ => {
                self.pieces.push(Piece { position: place.position, len: place.len as usize });
                (self.wanted, self.vain) = (len, 0);
            }
        }
        self.len += bytes;
        self.places.push((place, (self.len - len) as usize));
        self.end = place.end();
    }
}

impl Fetch {
    /// What is read first of what is asked for: as much as there may be jobs for, and `room`. All bytes of a read count:
    /// that is what it pins, and what is read ahead must not drop what was read ahead before (see [`Self::take_asked`]).
    pub(super) fn plan(&self, asked: &BTreeSet<u64>, room: u64, store: &Store) -> Plan {
        let free = JOBS_MAX.saturating_sub(self.jobs.len());
        let mut plan = Plan::default();
        let (mut from, mut bytes) = (0, 0);
        // Something is read in any case, or what is longer than all room would never be.
        let is_idle = self.flying == 0 && self.kept.is_empty();
        let fits =
            |bytes: u64, len: u64| bytes.saturating_add(len) <= room || is_idle && bytes == 0;
        // The index looked at last: neighbours are in the same.
        let mut near: Option<(Stretch, Option<&RecordPlaces>)> = None;
        while let Some(&at) = asked.range(from..).next() {
            from = at + 1;
            let stretch = store.segments.stretch_of(at).filter(|_| store.cold.get(at).is_some());
            let Some(stretch) = stretch else {
                plan.idle.push(at);
                continue;
            };
            let places = match near {
                Some((it, places)) if it == stretch => places,
                _ => self.indexes.get(&stretch),
            };
            near = Some((stretch, places));
            let is_full = plan.loads.len() + plan.bodies.len() >= free;
            let Some(places) = places else {
                // All that is asked for there comes with it.
                from = from.max(stretch.next);
                let is_loading = self.jobs.values().any(|(job, _)| job.loads(&stretch));
                if is_loading || plan.loads.iter().any(|(other, _)| *other == stretch) {
                    continue;
                }
                let len = self.first_read(&stretch, at, store);
                if is_full || !fits(bytes, len) {
                    break;
                }
                bytes += len;
                plan.loads.push((stretch, len));
                continue;
            };
            let Some(place) = places.find(at) else {
                plan.lost.push((at, stretch));
                continue;
            };
            let last = plan.bodies.last_mut();
            let last = last.and_then(|last| Some((last.next(stretch.file, place)?, last)));
            let alone = u64::from(place.len);
            let len = last.as_ref().map_or(alone, |(next, _)| next.bytes);
            if !fits(bytes, len) || last.is_none() && is_full {
                break;
            }
            bytes += len;
            match last {
                Some((next, last)) => last.add(next),
                None => plan.bodies.push(Spread::new(stretch.file, place)),
            }
        }
        plan
    }

    /// How much is read at first of a stretch whose index is not known: all of it, if most of it is asked for.
    /// `at` is the first of those records.
    fn first_read(&self, stretch: &Stretch, at: u64, store: &Store) -> u64 {
        let len = stretch.end.saturating_sub(stretch.position);
        let there = at..stretch.next.max(at + 1);
        let asked = self.wanted.range(there.clone()).count() + self.ahead.range(there).count();
        let asked_bytes = asked as u64 * store.segments.mean_len(at);
        if len <= READ_MAX && asked_bytes / 3 >= len / 4 {
            return len;
        }
        (len / INDEX_PART).clamp(INDEX_MIN, INDEX_MAX).min(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileName = FileName { segment: 0, generation: 0 };

    /// `position+len` of each record, and of each piece of each read; `;` between reads.
    #[track_caller]
    fn check(records: &str, want: &str) {
        let number = |text: &str| text.parse::<u64>().unwrap();
        let mut reads: Vec<Spread> = Vec::new();
        for (at, word) in records.split_whitespace().enumerate() {
            let (position, len) = word.split_once('+').unwrap();
            let (position, len) = (number(position), number(len) as u32);
            let place = RecordPlace { at: at as u64, position, len, crc: 0 };
            let last = reads.last_mut();
            match last.and_then(|last| Some((last.next(FILE, place)?, last))) {
                Some((next, last)) => last.add(next),
                None => reads.push(Spread::new(FILE, place)),
            }
        }
        let text = |read: &Spread| {
            assert_eq!(read.len, read.pieces.iter().map(|it| it.len as u64).sum::<u64>());
            for (place, start) in &read.places {
                // Where it is in the pieces, joined.
                let mut before = 0;
                let is_there = read.pieces.iter().any(|piece| {
                    let skip = place.position.checked_sub(piece.position).map(|it| it as usize);
                    let at = skip.filter(|skip| skip + place.len as usize <= piece.len);
                    let is_there = at.is_some_and(|at| before + at == *start);
                    before += piece.len;
                    is_there
                });
                assert!(is_there, "{place:?} at {start}");
            }
            let pieces = read.pieces.iter().map(|it| format!("{}+{}", it.position, it.len));
            pieces.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(reads.iter().map(text).collect::<Vec<_>>().join(" ; "), want, "{records}");
    }

    #[test]
    #[rustfmt::skip] // a table
    fn records_are_read_together() {
        check("100+50 150+50",                       "100+100");
        check("100+50 1174+50",                      "100+1124");             // a small gap
        check("100+50 1175+50",                      "100+50 1175+50");
        check("0+8000 10000+1000",                   "0+11000");              // a quarter in vain
        check("0+8000 10001+1000",                   "0+8000 10001+1000");
        check("0+8000 9000+1000 11500+1000",         "0+10000 11500+1000");   // a quarter in all
        check("5000+100 200+100",                    "5000+100 200+100");     // a straggler
        check("0+1000000 1000000+50000",             "0+1000000 ; 1000000+50000");
        check("0+100000 200000+50000",               "0+100000 ; 200000+50000");
        check("0+5000000 5000000+10",                "0+5000000 ; 5000000+10");
    }
}
