//! A log in small files of batches of one record each, on a simulated disk.

use leveret_log::disk::{FileName, SimDisk};
use leveret_log::file::{OpenError, Options, Report};
use leveret_log::{AppendError, FileLog, Holder, Keep, Log, Offset, ReadError};

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

pub(crate) fn drive(log: &mut FileLog<SimDisk>) {
    for _ in 0..10_000 {
        log.sync().unwrap();
        if log.durable() == log.end() && log.disk().is_idle() {
            return;
        }
    }
    panic!("the log does not come to rest");
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

/// Reads a record, however long it takes.
pub(crate) fn read(log: &mut FileLog<SimDisk>, at: Offset) -> Result<Vec<u8>, ReadError> {
    loop {
        match log.read(at) {
            Ok(record) => return Ok(record.bytes.to_vec()),
            Err(ReadError::Cold { .. }) => log.fetch(&[at]),
            Err(error) => return Err(error),
        }
        log.collect().unwrap();
    }
}
