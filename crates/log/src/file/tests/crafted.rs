//! Files with all their checksums, and with what no log has ever written: nothing panics, nothing is counted that is
//! not there, and what is refused is refused with the name of the file.

use std::collections::BTreeSet;

use super::super::format::{
    BatchEntry, BatchHeader, FILE_HEADER, FileHeader, IndexReader, IndexWriter, Kind, NoteKind,
    RecordFacts,
};
use super::super::walk::{Step, Walk};
use super::*;
use crate::disk::{FileName, SimDisk};
use crate::shared::LogNumber;

const LOGS: usize = 2;

type Numbers<'a> = &'a mut dyn FnMut(u64) -> u64;

fn options(number: usize) -> Options {
    Options {
        number: LogNumber::at(number),
        seed: 7,
        segment_bytes: 700,
        cache_bytes: 0,
        spill_bytes: 300,
        on_damage: OnDamage::Aside,
        ..Options::default()
    }
}

/// A batch of a file, to be changed.
#[derive(Clone)]
struct Part {
    header: BatchHeader,
    index: Vec<u8>,
    bodies: Vec<u8>,
}

/// A file taken apart.
struct Parts {
    header: FileHeader,
    batches: Vec<Part>,
}

impl Parts {
    fn of(bytes: &[u8]) -> Option<Self> {
        let header = FileHeader::decode(bytes).ok()?;
        let mut walk = Walk::new(FILE_HEADER as u64, bytes.len() as u64, header.framing());
        let mut batches = Vec::new();
        while let Step::Batch(batch) = walk.step(bytes.get(walk.position() as usize..)?) {
            let bodies = bytes[batch.bodies() as usize..batch.end() as usize].to_vec();
            batches.push(Part { header: batch.header, index: batch.index.to_vec(), bodies });
        }
        Some(Self { header, batches })
    }

    /// With the checksums and lengths that it should have.
    fn join(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.header.encode(&mut bytes);
        for Part { header, index, bodies } in &self.batches {
            let header = BatchHeader {
                index_len: index.len() as u64,
                bodies_len: bodies.len() as u64,
                index_crc: crc32c::crc32c(index),
                ..*header
            };
            bytes.extend_from_slice(&header.encode(self.header.mark));
            bytes.extend_from_slice(index);
            bytes.extend_from_slice(bodies);
        }
        bytes
    }
}

impl Part {
    /// Writes the index again with one of its entries twice, or at another offset.
    fn twist(&mut self, below: Numbers<'_>) {
        let Self { header, index, bodies } = self;
        let mut entries = Vec::new();
        let mut reader = IndexReader::new(header, index);
        while let Ok(Some(entry)) = reader.next() {
            entries.push(entry);
        }
        if entries.is_empty() {
            return;
        }
        let pick = below(entries.len() as u64) as usize;
        let twice = below(2) == 0;
        let shift = below(5).wrapping_sub(2);
        let (mut out, mut joined) = (Vec::new(), Vec::new());
        let mut writer = IndexWriter::new(&mut out, header.first);
        let mut place = 0;
        for (number, entry) in entries.iter().enumerate() {
            let times = if number == pick && twice { 2 } else { 1 };
            for _ in 0..times {
                let moved = |at: u64| if number == pick { at.wrapping_add(shift) } else { at };
                match entry {
                    BatchEntry::Record(it) => {
                        let holders: Vec<_> = it.holders().collect();
                        writer.record(RecordFacts {
                            at: moved(it.at),
                            len: it.len,
                            crc: it.crc,
                            is_volatile: it.is_volatile ^ (number == pick && shift == 0),
                            has_marks: it.has_marks,
                            head: it.head,
                            elsewhere: it.elsewhere,
                            holders: holders.len(),
                        });
                        for (name, mark) in holders {
                            writer.holder(name, it.has_marks.then_some(mark));
                        }
                        let end = place + it.stored_len() as usize;
                        joined.extend_from_slice(&bodies[place..end]);
                    }
                    BatchEntry::Note(note) => {
                        if let Some(number) = note.segment {
                            writer.in_segment(note.at, number);
                        }
                        match note.kind.clone() {
                            NoteKind::Release(name) => writer.release(moved(note.at), name),
                            NoteKind::Mark(name, mark) => writer.mark(moved(note.at), name, mark),
                            NoteKind::Persist(holders) => {
                                let holders: Vec<_> = holders.collect();
                                writer.persist(moved(note.at), holders.len());
                                holders.into_iter().for_each(|(name, _)| writer.holder(name, None));
                            }
                        }
                    }
                }
            }
            if let BatchEntry::Record(it) = entry {
                place += it.stored_len() as usize;
            }
        }
        let IndexWriter { records, notes, .. } = writer;
        (header.records, header.notes) = (records, notes);
        (*index, *bodies) = (out, joined);
    }
}

fn some_number(was: u64, below: Numbers<'_>) -> u64 {
    let all = [0, 1, was.wrapping_add(1), was.wrapping_sub(1), 1 << 32, 1 << 60, u64::MAX - 1];
    all.get(below(8) as usize).copied().unwrap_or(u64::MAX)
}

/// Changes a file of the disk in a way that its checksums do not tell.
fn craft(disk: &SimDisk, below: Numbers<'_>) {
    let files = disk.files();
    let Some(&(name, _)) = files.get(below(files.len() as u64) as usize) else { return };
    let Some(mut parts) = Parts::of(&disk.bytes_of(name)) else { return };
    let count = parts.batches.len();
    if count == 0 {
        return;
    }
    let (one, other) = (below(count as u64) as usize, below(count as u64) as usize);
    let Parts { header, batches } = &mut parts;
    match below(9) {
        0 => {
            let number = match below(5) {
                0 => &mut header.first,
                1 => &mut header.as_of,
                2 => &mut header.through,
                3 => &mut header.segment,
                _ => &mut header.generation,
            };
            *number = some_number(*number, below);
            let name = FileName { segment: header.segment, generation: header.generation };
            disk.put(name, parts.join());
            return;
        }
        1 | 2 => {
            let header = &mut batches[one].header;
            match below(7) {
                0 => header.sequence = some_number(header.sequence, below),
                1 => header.synced = some_number(header.synced, below),
                2 => header.first = some_number(header.first, below),
                3 => header.end = some_number(header.end, below),
                4 => header.records = some_number(header.records.into(), below) as u32,
                5 => header.notes = some_number(header.notes.into(), below) as u32,
                _ => {
                    let is_seal = header.is_seal();
                    header.kind = if is_seal { Kind::Data } else { Kind::Sealed };
                }
            }
        }
        3 => {
            let index = &mut batches[one].index;
            for _ in 0..=below(3) {
                let len = index.len().max(1) as u64;
                if let Some(byte) = index.get_mut(below(len) as usize) {
                    *byte ^= 1 << below(8);
                }
            }
        }
        4 => batches.insert(other, batches[one].clone()),
        5 => batches.swap(one, other),
        6 => drop(batches.remove(one)),
        _ => batches[one].twist(below),
    }
    disk.put(name, parts.join());
}

fn open_all(disks: &[SimDisk]) -> Result<Vec<FileLog<SimDisk>>, OpenError> {
    let each = disks.iter().enumerate();
    let open = |(number, disk): (usize, &SimDisk)| {
        Ok(FileLog::open(disk.clone(), options(number), &mut |_| {})?.0)
    };
    let mut logs = each.map(open).collect::<Result<Vec<_>, OpenError>>()?;
    match_up(&mut logs, &[]);
    Ok(logs)
}

/// Does what the logs have to tell each other, and gives the disks time, until nothing is left of both.
fn settle(logs: &mut [FileLog<SimDisk>]) {
    for _ in 0..20_000 {
        let mut errands = Vec::new();
        for (from, log) in logs.iter_mut().enumerate() {
            log.sync().unwrap();
            log.errands(&mut |errand| errands.push((from, errand)));
        }
        let is_idle = errands.is_empty();
        for (from, errand) in errands {
            match errand {
                Errand::Wake(_) => {}
                Errand::Freed(place) => {
                    // Who crafts a reference may name what was never there.
                    if let Some(home) = logs.get_mut(place.log.index()) {
                        let _ = home.release(place.at, Holder::of_log(LogNumber::at(from)));
                    }
                }
                Errand::Lend { of, at } => {
                    let Some(home) = logs.get_mut(of.log.index()) else { continue };
                    let bytes = crate::suite::read_cold(home, of.at);
                    logs[from].lent(at, bytes.map(Bytes::from));
                }
            }
        }
        let rests = |log: &mut FileLog<SimDisk>| {
            log.durable() == log.end() && log.disk().is_idle() && !log.is_writing()
        };
        if is_idle && logs.iter_mut().all(rests) {
            return;
        }
    }
    panic!("the logs do not come to rest");
}

/// Two logs with a little of everything.
fn written(below: Numbers<'_>) -> Vec<SimDisk> {
    let disks: Vec<_> = (0..LOGS as u64).map(SimDisk::new).collect();
    let mut logs = open_all(&disks).unwrap();
    let mut held: Vec<(usize, Offset, Holder)> = Vec::new();
    for number in 0..40 + below(80) {
        let log = below(LOGS as u64) as usize;
        match below(10) {
            0..=5 => {
                let bytes = Bytes::from(vec![number as u8; below(150) as usize + 8]);
                let holders: Vec<_> = (0..=below(3)).map(Holder::new).collect();
                let keep = if below(4) == 0 { Keep::Volatile } else { Keep::Durable };
                let both = below(2) == 0;
                let shared = Shared::among((0..LOGS).map(LogNumber::at));
                for (to, into) in logs.iter_mut().enumerate() {
                    let at = match both {
                        true => into.append_shared(&bytes, 8, &holders, keep, &shared),
                        false if to == log => into.append_whole(&bytes, 8, &holders, keep),
                        false => continue,
                    };
                    held.extend(holders.iter().map(|&holder| (to, at.unwrap(), holder)));
                }
            }
            6 | 7 if !held.is_empty() => {
                let (log, at, holder) = held.swap_remove(below(held.len() as u64) as usize);
                logs[log].release(at, holder).unwrap();
            }
            8 if !held.is_empty() => {
                let (log, at, holder) = held[below(held.len() as u64) as usize];
                logs[log].mark(at, holder, 3).unwrap();
                logs[log].persist(at).unwrap();
            }
            _ => settle(&mut logs),
        }
    }
    settle(&mut logs);
    disks
}

/// Uses logs with whatever they hold.
fn used(disks: &[SimDisk]) {
    let mut logs = match open_all(disks) {
        Ok(logs) => logs,
        Err(error) => {
            let text = error.to_string();
            return assert!(text.contains(".seg"), "{text}");
        }
    };
    for round in 0..2 {
        for log in 0..LOGS {
            let mut found: Vec<(Offset, Vec<Holder>)> = Vec::new();
            if round == 0 {
                logs[log].recover(&mut |it| {
                    found.push((it.at, it.holders.iter().map(|(name, _)| *name).collect()));
                });
                logs[log].collect().unwrap();
                let offsets: BTreeSet<_> = found.iter().map(|(at, _)| *at).collect();
                assert_eq!(offsets.len(), found.len(), "told twice");
                assert_eq!(found.len() as u64, logs[log].usage().records);
            }
            for (at, holders) in found {
                for _ in 0..200 {
                    let Err(ReadError::Cold { .. }) = logs[log].read(at) else { break };
                    logs[log].fetch(&[at]);
                    settle(&mut logs);
                }
                assert!(
                    !matches!(logs[log].read(at), Err(ReadError::Cold { .. })),
                    "{at} of {log}"
                );
                let own = holders.iter().filter(|it| it.as_log().is_none());
                for &holder in own {
                    logs[log].mark(at, holder, 1).unwrap();
                    logs[log].release(at, holder).unwrap();
                }
            }
        }
        settle(&mut logs);
        let one = [Holder::new(1)];
        for log in &mut logs {
            let at = log.append(b"h", &[b"more"], &one, Keep::Durable).unwrap();
            log.store.segments.assert_sums();
            log.sync().unwrap();
            log.release(at, one[0]).unwrap();
        }
        settle(&mut logs);
    }
    for (number, log) in logs.iter_mut().enumerate() {
        let usage = log.usage();
        let left = (usage.records, usage.live_bytes, usage.lent);
        assert_eq!(left, (0, 0, 0), "log {number}");
    }
}

#[test]
fn nothing_panics_and_what_is_counted_is_there() {
    let mut bad = Vec::new();
    for seed in 0..600 {
        let tried = std::panic::catch_unwind(|| {
            let mut below = numbers(seed);
            let disks = written(&mut below);
            for _ in 0..=below(3) {
                let disk = below(LOGS as u64) as usize;
                craft(&disks[disk], &mut below);
            }
            used(&disks);
        });
        if tried.is_err() {
            bad.push(seed);
        }
    }
    assert_eq!(bad, []);
}
