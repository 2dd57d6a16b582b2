//! What a record costs in the log in files, next to the memory log, on a disk that does nothing.
//!
//! `cargo run --release -p leveret-log --example file`

#![allow(clippy::print_stdout, reason = "the result of the program")]

use std::collections::VecDeque;
use std::hint::black_box;
use std::time::Instant;

use leveret_log::disk::{Disk, DiskError, Done, FileName, Op, Roster, RosterLines, Token};
use leveret_log::file::Options;
use leveret_log::{FileLog, Holder, Keep, Log, MemoryLog, Offset};

const ONE: [Holder; 1] = [Holder::new(1)];

/// Says that everything is done.
#[derive(Default)]
struct NoDisk {
    done: VecDeque<(Token, Done)>,
    bytes: u64,
}

impl Disk for NoDisk {
    fn submit(&mut self, token: Token, op: Op) {
        let done = match op {
            Op::Write { head, body, .. } => {
                self.bytes += (head.len() + body.len()) as u64;
                Done::Written { head, body, result: Ok(()) }
            }
            Op::Read { .. } => Done::Read(Err(DiskError::Failed("nothing is kept".into()))),
            Op::Remove { .. } => Done::Removed(Ok(())),
            Op::Mend { .. } => Done::Mended(Ok(())),
            Op::Cut { .. } => Done::Cut(Ok(())),
            Op::SetPoint(_) => Done::PointSet(Ok(())),
            Op::Receive { .. } | Op::Discard { .. } => Done::Received(Ok(())),
            Op::Check { .. } => Done::Checked(Err(DiskError::Failed("nothing is kept".into()))),
            Op::Install { .. } => Done::Installed(Ok(())),
            Op::Digest { .. } => Done::Digested(Ok(())),
        };
        self.done.push_back((token, done));
    }
    fn poll(&mut self) -> Option<(Token, Done)> {
        self.done.pop_front()
    }
    fn roster(&mut self) -> Result<Roster, DiskError> {
        Ok(Roster::None)
    }

    fn enlist(&mut self, _: &RosterLines, _: bool) -> Result<(), DiskError> {
        Ok(())
    }

    fn list(&mut self) -> Result<Vec<(FileName, u64)>, DiskError> {
        Ok(Vec::new())
    }
    fn read_now(&mut self, _: FileName, _: u64, _: &mut [u8]) -> Result<(), DiskError> {
        Ok(())
    }
    fn truncate_now(&mut self, _: FileName, _: u64) -> Result<(), DiskError> {
        Ok(())
    }
    fn write_now(&mut self, _: FileName, _: u64, _: &[u8]) -> Result<(), DiskError> {
        Ok(())
    }
    fn keep_aside(&mut self, file: FileName) -> Result<String, DiskError> {
        Ok(file.aside())
    }
    fn kept(&mut self) -> Result<Vec<FileName>, DiskError> {
        Ok(Vec::new())
    }
    fn disown_now(&mut self) -> Result<(), DiskError> {
        Ok(())
    }
    fn remove_now(&mut self, _: FileName) -> Result<(), DiskError> {
        Ok(())
    }
}

fn file() -> FileLog<NoDisk> {
    let log = FileLog::open(NoDisk::default(), Options::default(), &mut |_| {});
    log.expect("an empty disk").0
}

fn main() {
    println!("{:>8} {:>8} {:>8} {:>10} {:>10}", "bytes", "batch", "queues", "memory ns", "file ns");
    for size in [16, 1024] {
        for (batch, queues) in [(1, 1), (64, 1), (64, 1000)] {
            let best =
                |run: &dyn Fn() -> f64| (0..5).map(|_| run()).min_by(f64::total_cmp).unwrap_or(0.0);
            let memory = best(&|| flow(MemoryLog::new(), size, batch, queues));
            let files = best(&|| flow(file(), size, batch, queues));
            println!("{size:>8} {batch:>8} {queues:>8} {memory:>10.1} {files:>10.1}");
        }
    }
    println!("\nwritten, and released 1000 records later; ns per record");
    for size in [100, 1500] {
        for batch in [1, 10, 100] {
            let best = (0..5).map(|_| durable(size, batch)).min_by(f64::total_cmp);
            println!("{size:>8} {batch:>8} {:>8.0}", best.unwrap_or(0.0));
        }
    }
}

/// Nanoseconds per record that is appended, read and released before the next batch.
fn flow(mut log: impl Log, size: usize, batch: u64, queues: u64) -> f64 {
    let body = vec![7; size];
    let (head, body) = body.split_at(8);
    let count = 1_000_000 / batch * batch;
    let start = Instant::now();
    for round in 0..count / batch {
        let first = log.end().get();
        for number in 0..batch {
            let holders = [Holder::new((round * batch + number) % queues)];
            black_box(log.append(head, &[body], &holders, Keep::Durable)).expect("append");
        }
        for at in first..first + batch {
            black_box(log.read(Offset::new(at))).expect("read");
        }
        for at in first..first + batch {
            black_box(log.release(Offset::new(at), Holder::new(at % queues))).expect("release");
        }
        log.sync().expect("sync");
    }
    start.elapsed().as_nanos() as f64 / count as f64
}

/// Nanoseconds per record that is written, with its release.
fn durable(size: usize, batch: u64) -> f64 {
    let mut log = file();
    let body = vec![7; size];
    let (head, body) = body.split_at(24);
    let count = 200_000 / batch * batch;
    let start = Instant::now();
    for _ in 0..count / batch {
        for _ in 0..batch {
            let at = log.append(head, &[body], &ONE, Keep::Durable).expect("append");
            if at.get() >= 1000 {
                log.release(Offset::new(at.get() - 1000), ONE[0]).expect("release");
            }
        }
        log.sync().expect("sync");
    }
    start.elapsed().as_nanos() as f64 / count as f64
}
