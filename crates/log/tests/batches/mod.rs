//! A log in small files of batches of one record each, on a simulated disk.

#![allow(dead_code, unused_imports, reason = "each test uses a part")]

use bytes::Bytes;
use leveret_log::disk::{Disk, FileName, Point, SimDisk};
use leveret_log::file::{OpenError, Options, Report};
pub(crate) use leveret_log::suite::{drive, read_cold as read};
use leveret_log::{AppendError, BatchName, FileLog, Holder, Keep, Log, Offset};

pub(crate) const ONE: [Holder; 1] = [Holder::new(1)];
pub(crate) const FIRST: FileName = FileName { segment: 0, generation: 0 };

pub(crate) fn options() -> Options {
    Options { segment_bytes: 4000, cache_bytes: 0, ..Options::default() }
}

pub(crate) fn try_open(disk: &SimDisk) -> Result<(FileLog<SimDisk>, Report), OpenError> {
    FileLog::open(disk.clone(), options(), &mut |_| {})
}

pub(crate) fn open(disk: &SimDisk) -> FileLog<SimDisk> {
    try_open(disk).unwrap().0
}

pub(crate) fn append(log: &mut FileLog<SimDisk>, body: &[u8]) -> Result<Offset, AppendError> {
    log.append(b"h", &[body], &ONE, Keep::Durable)
}

/// A disk with `count` batches of one record in its files.
pub(crate) fn written(count: u8) -> SimDisk {
    let disk = SimDisk::new(3);
    let mut log = open(&disk);
    for number in 0..count {
        append(&mut log, &[number; 100]).unwrap();
        drive(&mut log);
    }
    disk
}

pub(crate) fn recovered(log: &mut FileLog<SimDisk>) -> Vec<u64> {
    let mut found = Vec::new();
    log.recover(&mut |it| found.push(it.at.get()));
    found
}

/// The point of a log at a batch, whose number says who is a member.
pub(crate) fn point(log: &FileLog<impl Disk>, number: u64) -> Point {
    let at = BatchName { number, term: log.term_of(number).unwrap_or(1) };
    Point { at, members: Bytes::copy_from_slice(&number.to_le_bytes()) }
}

/// A log that waits for a higher point gets this one.
pub(crate) fn move_point(log: &mut FileLog<impl Disk>, number: u64) {
    if log.wants_point() {
        log.set_point(point(log, number));
    }
}
