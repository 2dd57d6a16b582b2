//! The contract of [`Log`] as functions to run against any log.
//!
//! Each function takes `open`, which makes an empty log, and `drive`, which does whatever that log
//! waits for (lets its disk finish, its peers answer) until `durable() == end()`. For a log in
//! memory `drive` is one `sync`. [`log_suite!`](crate::log_suite) makes a test of each function:
//!
//! ```
//! # #[cfg(test)]
//! leveret_log::log_suite!(leveret_log::MemoryLog::new, |log: &mut leveret_log::MemoryLog| {
//!     log.sync().unwrap();
//! });
//! ```
//!
//! The functions panic, with what was expected and what was got, where the contract is broken.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::disk::{Disk, DiskError, Done, FileName, Op, Roster, RosterLines, SimDisk, Token};
use crate::{FileLog, HEAD_MAX, HoldError, Holder, Keep, LARGE, Log, Offset, ReadError, Usage};

/// A test per function of the suite, in the module where it stands. See [`suite`](crate::suite).
#[macro_export]
macro_rules! log_suite {
    ($open:expr, $drive:expr) => {
        $crate::log_suite!(@tests $open, $drive;
            offsets_are_consecutive
            parts_are_joined
            a_record_that_lies_whole_is_as_any_other
            records_are_of_any_size
            watermarks_are_ordered_and_reach_the_end
            a_moment_is_synced
            last_holder_releases
            holes_do_not_hold_up_the_watermarks
            volatile_records_do_not_hold_up_the_watermarks
            mistakes_change_nothing
            a_record_outlives_its_release
            released_space_comes_back
            one_record_pins_no_other
            scattered_records_pin_no_other
            agrees_with_a_model
        );
    };
    (@tests $open:expr, $drive:expr; $($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                $crate::suite::$name(&mut $open, &mut $drive);
            }
        )*
    };
}

/// Numbers that look random, below the bound that each call gives: the same ones for the same seed.
pub fn numbers(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed;
    move |bound| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % bound
    }
}

/// What a [`AskingDisk`] is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// Look for something that is done.
    Poll,
    /// Change its list of files.
    Enlist,
    /// Shorten a file, synced.
    Truncate,
    /// Write from this byte of a file on.
    Write(u64),
    /// Remove a file.
    Remove,
}

/// A simulated disk that asks before it does something: it stops at any of its deeds, or looks at their order.
#[derive(Debug)]
pub struct AskingDisk<A> {
    disk: SimDisk,
    ask: A,
}

impl<A: FnMut(Deed) -> Result<(), DiskError>> AskingDisk<A> {
    /// `ask` lets it go on, or gives the error that the caller gets. Where there is none to give, nothing is done.
    pub fn new(disk: SimDisk, ask: A) -> Self {
        Self { disk, ask }
    }
}

impl<A: FnMut(Deed) -> Result<(), DiskError>> Disk for AskingDisk<A> {
    fn submit(&mut self, token: Token, op: Op) {
        self.disk.submit(token, op);
    }

    fn poll(&mut self) -> Option<(Token, Done)> {
        (self.ask)(Deed::Poll).ok()?;
        self.disk.poll()
    }

    fn coming(&mut self) -> Result<Vec<(FileName, u64)>, DiskError> {
        self.disk.coming()
    }

    fn roster(&mut self) -> Result<Roster, DiskError> {
        self.disk.roster()
    }

    fn enlist(&mut self, lines: &RosterLines, is_needed: bool) -> Result<(), DiskError> {
        (self.ask)(Deed::Enlist)?;
        self.disk.enlist(lines, is_needed)
    }

    fn list(&mut self) -> Result<Vec<(FileName, u64)>, DiskError> {
        self.disk.list()
    }

    fn read_now(
        &mut self,
        file: FileName,
        position: u64,
        into: &mut [u8],
    ) -> Result<(), DiskError> {
        self.disk.read_now(file, position, into)
    }

    fn truncate_now(&mut self, file: FileName, len: u64) -> Result<(), DiskError> {
        (self.ask)(Deed::Truncate)?;
        self.disk.truncate_now(file, len)
    }

    fn write_now(&mut self, file: FileName, position: u64, bytes: &[u8]) -> Result<(), DiskError> {
        (self.ask)(Deed::Write(position))?;
        self.disk.write_now(file, position, bytes)
    }

    fn keep_aside(&mut self, file: FileName) -> Result<String, DiskError> {
        self.disk.keep_aside(file)
    }

    fn kept(&mut self) -> Result<Vec<FileName>, DiskError> {
        self.disk.kept()
    }

    fn disown_now(&mut self) -> Result<(), DiskError> {
        (self.ask)(Deed::Remove)?;
        self.disk.disown_now()
    }

    fn remove_now(&mut self, file: FileName) -> Result<(), DiskError> {
        (self.ask)(Deed::Remove)?;
        self.disk.remove_now(file)
    }
}

/// Does what a log on a simulated disk waits for, until everything is on the disk and nothing is under way.
pub fn drive(log: &mut FileLog<SimDisk>) {
    for _ in 0..1_000_000 {
        log.sync().unwrap();
        if log.durable() == log.end() && log.disk().is_idle() {
            return;
        }
    }
    panic!("{} of {}: the log does not come to rest", log.durable(), log.end());
}

/// Reads a record of a log on a simulated disk, however long it takes.
pub fn read_cold(log: &mut FileLog<SimDisk>, at: Offset) -> Result<Vec<u8>, ReadError> {
    loop {
        match log.read(at) {
            Ok(record) => return Ok(record.bytes.to_vec()),
            Err(ReadError::Cold { .. }) => log.fetch(&[at]),
            Err(error) => return Err(error),
        }
        log.collect().unwrap();
    }
}

/// Offsets count up from where the log starts, whatever is released meanwhile.
pub fn offsets_are_consecutive<L: Log>(open: &mut dyn FnMut() -> L, drive: &mut dyn FnMut(&mut L)) {
    let mut log = open();
    let start = log.end();
    let mut next = start;
    for round in 0..50 {
        for _ in 0..20 {
            assert_eq!(append(&mut log, b"record", 1), next);
            next = next.next();
            assert_eq!(log.end(), next, "`end` is the offset after the last");
        }
        if round % 2 == 0 {
            drive(&mut log);
        }
        (1..=20).for_each(|back| release(&mut log, Offset::new(next.get() - back)));
    }
    drive(&mut log);
    assert_eq!(log.end(), next, "nothing else takes an offset");
}

/// A record is its parts, one after another, and no part needs to have any bytes.
pub fn parts_are_joined<L: Log>(open: &mut dyn FnMut() -> L, drive: &mut dyn FnMut(&mut L)) {
    let mut log = open();
    let all: [(&[&[u8]], &[u8]); 5] = [
        (&[b"head", b"", b"body"], b"headbody"),
        (&[], b""),
        (&[b""], b""),
        (&[b"one"], b"one"),
        (&[b"a", b"b", b"c", b"d", b"e"], b"abcde"),
    ];
    let one = [Holder::new(1)];
    let offsets =
        all.map(|(parts, _)| log.append(&[], parts, &one, Keep::Durable).expect("append"));
    drive(&mut log);
    for (at, (parts, want)) in offsets.into_iter().zip(all) {
        assert_eq!(read(&log, at), want, "{parts:?}");
    }
}

/// A record in memory of its own, short or large, is read, outlives whoever gave it and is gone when it
/// is released, and then nobody has its memory.
pub fn a_record_that_lies_whole_is_as_any_other<L: Log>(
    open: &mut dyn FnMut() -> L,
    drive: &mut dyn FnMut(&mut L),
) {
    let mut log = open();
    let one = [Holder::new(0)];
    for size in [0, 100, LARGE, LARGE + 1, 100_000] {
        let given = Bytes::from(body(7, size));
        let head_len = size.min(24);
        let before = append(&mut log, b"before", 1);
        let at = log.append_whole(&given, head_len, &one, Keep::Durable).expect("append");
        assert_eq!(at, before.next());
        let nobodys = log.append_whole(&given, head_len, &[], Keep::Durable).expect("append");
        drive(&mut log);
        assert_eq!(log.read(nobodys), Err(ReadError::Released { at: nobodys }));
        assert!(read(&log, at) == given, "record of {size} bytes");
        assert_eq!(log.usage().live_bytes, 6 + size as u64);
        [at, before].into_iter().for_each(|at| release(&mut log, at));
        assert_eq!((log.usage().live_bytes, log.usage().records), (0, 0));
        assert!(size == 0 || given.is_unique(), "record of {size} bytes");
    }
}

/// From nothing to tens of megabytes, mixed.
pub fn records_are_of_any_size<L: Log>(open: &mut dyn FnMut() -> L, drive: &mut dyn FnMut(&mut L)) {
    let mut log = open();
    let sizes = [0, 1, 4095, 0, 4096, 32 << 10, (32 << 10) + 1, 7, 128 << 10, 1 << 20, 3, 20 << 20];
    let offsets = sizes.map(|size| append(&mut log, &body(size as u64, size), 1));
    drive(&mut log);
    for (at, size) in offsets.into_iter().zip(sizes) {
        assert!(read(&log, at) == body(size as u64, size), "record of {size} bytes");
    }
    offsets.into_iter().rev().for_each(|at| release(&mut log, at));
    assert_eq!((log.usage().live_bytes, log.usage().records), (0, 0));
}

/// `durable <= readable <= end` at any time, none goes back, and both get to the end.
pub fn watermarks_are_ordered_and_reach_the_end<L: Log>(
    open: &mut dyn FnMut() -> L,
    drive: &mut dyn FnMut(&mut L),
) {
    let mut log = open();
    let mut marks = Marks::of(&log);
    for round in 0..100 {
        append(&mut log, b"x", 1);
        marks.check(&log);
        if round % 3 == 0 {
            log.sync().expect("sync");
            marks.check(&log);
        }
        if round % 10 == 0 {
            drive(&mut log);
            marks.check(&log);
            assert_eq!((log.durable(), log.readable()), (log.end(), log.end()), "driven");
        }
    }
}

/// What was there at a moment gets durable without what came after it, which is durable in the end.
pub fn a_moment_is_synced<L: Log>(open: &mut dyn FnMut() -> L, drive: &mut dyn FnMut(&mut L)) {
    let mut log = open();
    let mut marks = Marks::of(&log);
    for round in 0..100 {
        let old = append(&mut log, b"old", 1);
        let moment = log.moment();
        let young = append(&mut log, b"young", 1);
        while log.durable() < moment.end {
            log.sync_until(moment).expect("sync");
            marks.check(&log);
        }
        assert_eq!((read(&log, old), read(&log, young)), (b"old".into(), b"young".into()));
        // Of both what is durable and what may not be.
        if round % 2 == 0 {
            release(&mut log, old);
            release(&mut log, young);
        }
        log.sync_until(moment).expect("a moment that is past");
        marks.check(&log);
    }
    drive(&mut log);
    assert_eq!((log.durable(), log.usage().records), (log.end(), 100));
}

/// A record is there until as many releases were made as it has holders.
pub fn last_holder_releases<L: Log>(open: &mut dyn FnMut() -> L, drive: &mut dyn FnMut(&mut L)) {
    for holders in [1, 2, 3, 1000] {
        let mut log = open();
        let at = append(&mut log, b"fan-out", holders);
        drive(&mut log);
        for holder in 1..holders {
            log.release(at, Holder::new(holder.into())).expect("release");
            assert_eq!(read(&log, at), b"fan-out");
        }
        let last = Holder::new(0);
        log.release(at, last).expect("release");
        assert_eq!(log.read(at), Err(ReadError::Released { at }), "{holders} holders");
        assert_eq!(log.release(at, last), Err(HoldError::Released { at }), "{holders} holders");
    }
}

/// A record that was released before it was written, or never had a holder, is durable as it is.
pub fn holes_do_not_hold_up_the_watermarks<L: Log>(
    open: &mut dyn FnMut() -> L,
    drive: &mut dyn FnMut(&mut L),
) {
    let mut log = open();
    let withdrawn = append(&mut log, b"withdrawn", 1);
    let kept = append(&mut log, b"kept", 1);
    let nobodys = append(&mut log, b"nobody's", 0);
    let late = append(&mut log, b"withdrawn", 2);
    release(&mut log, withdrawn);
    (0..2).for_each(|holder| log.release(late, Holder::new(holder)).expect("release"));
    drive(&mut log);
    assert_eq!(log.durable(), log.end());
    for at in [withdrawn, nobodys, late] {
        assert_eq!(log.read(at), Err(ReadError::Released { at }));
    }
    assert_eq!(read(&log, kept), b"kept");
    assert_eq!(log.usage().records, 1);
}

/// Nobody waits for a volatile record, unless it is asked to become durable.
pub fn volatile_records_do_not_hold_up_the_watermarks<L: Log>(
    open: &mut dyn FnMut() -> L,
    drive: &mut dyn FnMut(&mut L),
) {
    let mut log = open();
    let mut marks = Marks::of(&log);
    let two = [Holder::new(0), Holder::new(1)];
    let volatile = log.append(b"vola", &[b"tile"], &two, Keep::Volatile).expect("append");
    let other = append(&mut log, b"durable", 1);
    drive(&mut log);
    assert_eq!(log.durable(), log.end());
    assert_eq!((read(&log, volatile), read(&log, other)), (b"volatile".into(), b"durable".into()));
    marks.check(&log);

    let safe = log.persist(volatile).expect("persist");
    marks.check(&log);
    drive(&mut log);
    assert!(log.durable() >= safe, "{safe} was promised, durable is {}", log.durable());
    assert_eq!(read(&log, volatile), b"volatile");
    two.into_iter().for_each(|holder| log.release(volatile, holder).expect("release"));
    assert_eq!(log.persist(volatile), Err(HoldError::Released { at: volatile }));
}

/// What is refused leaves the log as it was.
pub fn mistakes_change_nothing<L: Log>(open: &mut dyn FnMut() -> L, drive: &mut dyn FnMut(&mut L)) {
    let mut log = open();
    let at = append(&mut log, b"x", 1);
    drive(&mut log);
    let end = log.end();
    for far in [end, Offset::new(end.get() + 1000), Offset::new(u64::MAX)] {
        let holder = Holder::new(0);
        assert_eq!(log.release(far, holder), Err(HoldError::NotAppended { at: far, end }));
        assert_eq!(log.persist(far), Err(HoldError::NotAppended { at: far, end }));
        assert_eq!(log.read(far), Err(ReadError::NotAppended { at: far, end }));
    }
    release(&mut log, at);
    assert_eq!(log.read(at), Err(ReadError::Released { at }));
    assert_eq!(log.end(), end);
    assert_eq!(log.usage().live_bytes, 0);
}

/// What was read stays as it was, whatever the log does with its memory.
pub fn a_record_outlives_its_release<L: Log>(
    open: &mut dyn FnMut() -> L,
    drive: &mut dyn FnMut(&mut L),
) {
    let mut log = open();
    let mut kept = Vec::new();
    for number in 0..20_000 {
        let at = append(&mut log, &body(number, 24), 1);
        if number % 64 == 0 {
            drive(&mut log);
        }
        if number % 7 == 0 && at < log.readable() {
            kept.push((number, log.read(at).expect("read")));
        }
        release(&mut log, at);
    }
    drop(log);
    for (number, record) in kept {
        assert_eq!(record.bytes, body(number, 24), "record {number}");
    }
}

/// Memory is back at what it was after a million records came and went, in order or not.
pub fn released_space_comes_back<L: Log>(
    open: &mut dyn FnMut() -> L,
    drive: &mut dyn FnMut(&mut L),
) {
    const IDLE_MAX: u64 = 64 << 10;
    let mut log = open();
    assert!(log.usage().held_bytes <= IDLE_MAX, "at first: {:?}", log.usage());
    for round in 0..3 {
        let mut offsets: Vec<_> = (0..300_000).map(|_| append(&mut log, &[7; 100], 1)).collect();
        drive(&mut log);
        let usage = log.usage();
        assert_eq!((usage.live_bytes, usage.records), (30_000_000, 300_000));
        match round {
            0 => {}
            1 => offsets.reverse(),
            _ => shuffle(&mut offsets, &mut Rng(1)),
        }
        offsets.into_iter().for_each(|at| release(&mut log, at));
        drive(&mut log);
        let usage = log.usage();
        assert_eq!((usage.live_bytes, usage.records), (0, 0));
        assert!(usage.held_bytes <= IDLE_MAX, "after round {round}: {usage:?}");
    }
}

/// One record that nobody releases, among a million that come and go.
pub fn one_record_pins_no_other<L: Log>(
    open: &mut dyn FnMut() -> L,
    drive: &mut dyn FnMut(&mut L),
) {
    let mut log = open();
    let window = 1000;
    let pinned = append(&mut log, b"unacked", 1);
    for number in 0..1_000_000 {
        let at = append(&mut log, &[1; 16], 1);
        if number >= window {
            release(&mut log, Offset::new(at.get() - window));
        }
        if number % 10_000 == 0 {
            drive(&mut log);
            let usage = log.usage();
            assert!(usage.held_bytes <= 1 << 20, "after {number}: {usage:?}");
        }
    }
    assert_eq!(read(&log, pinned), b"unacked");
}

/// One in a hundred of a million records stays: what is held follows what is live.
pub fn scattered_records_pin_no_other<L: Log>(
    open: &mut dyn FnMut() -> L,
    drive: &mut dyn FnMut(&mut L),
) {
    let mut log = open();
    let start = log.end();
    for number in 0..1_000_000 {
        append(&mut log, &body(number, 40), 1);
        if number % 10_000 == 0 {
            drive(&mut log);
        }
    }
    drive(&mut log);
    let mut offsets: Vec<_> = (0..1_000_000).filter(|number| number % 100 != 50).collect();
    shuffle(&mut offsets, &mut Rng(2));
    offsets.into_iter().for_each(|number| release(&mut log, Offset::new(start.get() + number)));
    drive(&mut log);
    let Usage { live_bytes, held_bytes, records, .. } = log.usage();
    assert_eq!((records, live_bytes), (10_000, 400_000));
    assert!(held_bytes <= 10 * live_bytes, "{held_bytes} held for {live_bytes}");
    for number in (0..1_000_000).filter(|number| number % 100 == 50) {
        let at = Offset::new(start.get() + number);
        assert_eq!(read(&log, at), body(number, 40), "record {number}");
    }
}

/// Random calls, compared with a map from offset to bytes and holders after each.
pub fn agrees_with_a_model<L: Log>(open: &mut dyn FnMut() -> L, drive: &mut dyn FnMut(&mut L)) {
    for seed in 0..40 {
        let mut rng = Rng(seed);
        let mut model = Model::new(open());
        // Some runs keep nearly nothing, some pile up; some have large records.
        let keep = rng.below(10);
        let large_every = 5 + rng.below(400);
        for _ in 0..3000 {
            match rng.below(20) {
                0..=8 => {
                    let size = if rng.below(large_every) == 0 {
                        rng.below(100_000)
                    } else {
                        rng.below(200) * rng.below(2)
                    };
                    model.append(&mut rng, size as usize);
                }
                9 => model.persist(&mut rng),
                10 => drive(&mut model.log),
                11 => model.read(&mut rng),
                12 => model.log.sync().expect("sync"),
                13 if rng.below(60) == 0 => model.release_all(&mut rng),
                _ if rng.below(10) >= keep => model.release(&mut rng),
                _ => model.read(&mut rng),
            }
            model.check();
        }
        model.release_all(&mut rng);
        drive(&mut model.log);
        model.check();
        // What is kept for records to come goes when none came between two calls.
        (0..2).for_each(|_| model.log.relax());
        assert!(!model.log.keeps_spares());
        assert!(model.log.usage().held_bytes < 1 << 20, "empty: {:?}", model.log.usage());
    }
}

struct Model<L> {
    log: L,
    marks: Marks,
    records: BTreeMap<Offset, (Vec<u8>, u32)>,
    live_bytes: u64,
}

impl<L: Log> Model<L> {
    fn new(log: L) -> Self {
        let marks = Marks::of(&log);
        Self { log, marks, records: BTreeMap::new(), live_bytes: 0 }
    }

    fn append(&mut self, rng: &mut Rng, size: usize) {
        let bytes = body(rng.next(), size);
        let holders = rng.below(4) as u32;
        let cut = rng.below(size as u64 + 1) as usize;
        let (head, rest) = bytes.split_at(cut.min(HEAD_MAX));
        let names: Vec<_> = (0..u64::from(holders)).map(Holder::new).collect();
        let want = self.log.end();
        let keep = if rng.below(4) == 0 { Keep::Volatile } else { Keep::Durable };
        let got = match rng.below(3) {
            0 => self.log.append_whole(&Bytes::from(bytes.clone()), head.len(), &names, keep),
            _ => self.log.append(head, &[rest], &names, keep),
        };
        assert_eq!(got, Ok(want));
        if holders > 0 {
            self.records.insert(want, (bytes, holders));
            self.live_bytes += size as u64;
        }
    }

    /// An offset that is often held, sometimes released, rarely out of range.
    fn pick(&self, rng: &mut Rng) -> Offset {
        let any = Offset::new(rng.below(self.log.end().get() + 2));
        match rng.below(8) {
            0 => any,
            1..=3 => self.records.keys().next_back().copied().unwrap_or(any),
            4 => self.records.keys().next().copied().unwrap_or(any),
            _ => self.records.range(any..).next().map_or(any, |(&at, _)| at),
        }
    }

    fn wrong(&self, at: Offset) -> HoldError {
        match at < self.log.end() {
            true => HoldError::Released { at },
            false => HoldError::NotAppended { at, end: self.log.end() },
        }
    }

    fn persist(&mut self, rng: &mut Rng) {
        let at = self.pick(rng);
        match self.log.persist(at) {
            Ok(_) => assert!(self.records.contains_key(&at), "{at} has no holder"),
            Err(error) => assert_eq!(error, self.wrong(at)),
        }
    }

    fn release(&mut self, rng: &mut Rng) {
        let at = self.pick(rng);
        self.release_at(at);
    }

    fn release_at(&mut self, at: Offset) {
        let held = self.records.get(&at).map_or(1, |(_, holders)| *holders);
        let holder = Holder::new(u64::from(held - 1));
        let want = match self.records.get_mut(&at) {
            Some((bytes, 1)) => {
                self.live_bytes -= bytes.len() as u64;
                self.records.remove(&at);
                Ok(())
            }
            Some((_, holders)) => {
                *holders -= 1;
                Ok(())
            }
            None => Err(self.wrong(at)),
        };
        assert_eq!(self.log.release(at, holder), want);
    }

    fn release_all(&mut self, rng: &mut Rng) {
        let mut offsets: Vec<_> = self.records.keys().copied().collect();
        shuffle(&mut offsets, rng);
        for at in offsets {
            while self.records.contains_key(&at) {
                self.release_at(at);
            }
        }
    }

    fn read(&mut self, rng: &mut Rng) {
        let at = self.pick(rng);
        let got = self.log.read(at);
        let (readable, end) = (self.log.readable(), self.log.end());
        if at >= end {
            assert_eq!(got, Err(ReadError::NotAppended { at, end }));
        } else if at >= readable {
            assert_eq!(got, Err(ReadError::NotReadable { at, readable }));
        } else if let Some((bytes, _)) = self.records.get(&at) {
            match got {
                Err(ReadError::Cold { .. }) => self.log.fetch(&[at]),
                got => assert!(got.is_ok_and(|record| record.bytes == *bytes), "record {at}"),
            }
        } else {
            assert_eq!(got, Err(ReadError::Released { at }));
        }
    }

    fn check(&mut self) {
        self.marks.check(&self.log);
        let usage = self.log.usage();
        assert_eq!(usage.records, self.records.len() as u64);
        assert_eq!(usage.live_bytes, self.live_bytes);
    }
}

/// The watermarks as they were, to compare with what they have become.
struct Marks([Offset; 3]);

impl Marks {
    fn of<L: Log>(log: &L) -> Self {
        Self([log.durable(), log.readable(), log.end()])
    }

    fn check<L: Log>(&mut self, log: &L) {
        let now = Self::of(log).0;
        assert!(now.is_sorted(), "durable, readable, end are {now:?}");
        assert!(self.0.iter().zip(&now).all(|(was, is)| was <= is), "{:?} became {now:?}", self.0);
        self.0 = now;
    }
}

/// Appends a record with that many holders, named from 0 on.
fn append<L: Log>(log: &mut L, bytes: &[u8], holders: u32) -> Offset {
    let names: Vec<_> = (0..u64::from(holders)).map(Holder::new).collect();
    match log.append(&[], &[bytes], &names, Keep::Durable) {
        Ok(at) => at,
        Err(error) => {
            panic!("append of {} bytes: {error}", bytes.len())
        }
    }
}

/// Releases a record of one holder.
fn release<L: Log>(log: &mut L, at: Offset) {
    log.release(at, Holder::new(0)).unwrap_or_else(|error| panic!("release of {at}: {error}"));
}

#[track_caller]
fn read<L: Log>(log: &L, at: Offset) -> Vec<u8> {
    log.read(at).unwrap_or_else(|error| panic!("read of {at}: {error}")).bytes.to_vec()
}

/// Bytes that differ from record to record and along each.
fn body(number: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng(number);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&rng.next().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

fn shuffle(offsets: &mut [impl Copy], rng: &mut Rng) {
    for index in (1..offsets.len()).rev() {
        offsets.swap(index, rng.below(index as u64 + 1) as usize);
    }
}

/// SplitMix64: small, seeded, the same everywhere.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not 0; near enough to even for a test.
    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}
