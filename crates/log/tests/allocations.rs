//! How often the logs allocate: a count, which unlike a time cannot be argued with.

use std::collections::VecDeque;

use leveret_log::disk::SimDisk;
use leveret_log::file::Options;
use leveret_log::{FileLog, Holder, Keep, Log, MemoryLog, Offset};

const ONE: [Holder; 1] = [Holder::new(1)];

/// Allocations of `work` on this thread.
fn allocations(work: impl FnOnce()) -> u64 {
    let before = leveret_counting::allocations();
    work();
    leveret_counting::allocations() - before
}

/// 200,000 records of `size` bytes, `window` of them live at a time.
fn flow(log: &mut impl Log, size: usize, window: u64) {
    let body = vec![0; size];
    for _ in 0..200_000 {
        let at = log.append(&body[..8], &[&body[8..]], &ONE, Keep::Durable).unwrap();
        assert_eq!(log.read(at).unwrap().bytes.len(), size);
        if at.get() >= window {
            log.release(Offset::new(at.get() - window), ONE[0]).unwrap();
        }
    }
}

#[test]
fn a_warm_log_does_not_allocate() {
    for (size, window) in [(16, 1000), (16, 20_000), (1024, 1), (1024, 100), (1024, 1000)] {
        let mut log = MemoryLog::new();
        flow(&mut log, size, window);
        let count = allocations(|| flow(&mut log, size, window));
        // A block that comes into use may still find one of its rows of entries too short.
        assert!(count <= 4, "{count} allocations for {size} bytes, {window} at a time");
    }
}

#[test]
fn what_is_not_written_costs_no_allocation_in_a_log_in_files() {
    let names: Vec<_> = (0..50).map(Holder::new).collect();
    for holders in [&names[..1], &names[..2], &names] {
        let mut log = FileLog::open(SimDisk::new(0), Options::default(), &mut |_| {}).unwrap().0;
        let mut go = || {
            for _ in 0..1000 {
                for _ in 0..10 {
                    let at = log.append(&[1; 8], &[&[2; 100]], holders, Keep::Durable).unwrap();
                    assert_eq!(log.read(at).unwrap().bytes.len(), 108);
                    holders.iter().for_each(|name| log.release(at, *name).unwrap());
                }
                log.sync().unwrap();
            }
        };
        go();
        let count = allocations(go);
        assert!(count <= 4, "{count} allocations for {} holders", holders.len());
    }
}

#[test]
fn a_log_in_files_allocates_by_batch() {
    let mut log = FileLog::open(SimDisk::new(0), Options::default(), &mut |_| {}).unwrap().0;
    let mut go = || {
        for _ in 0..100 {
            for _ in 0..200 {
                let at = log.append(&[1; 8], &[&[2; 100]], &ONE, Keep::Durable).unwrap().get();
                if at >= 1000 {
                    log.release(Offset::new(at - 1000), ONE[0]).unwrap();
                }
            }
            log.sync().unwrap();
        }
    };
    go();
    // The simulated disk's own included, for 20,000 records.
    let count = allocations(go);
    assert!(count <= 100 * 60, "{count} allocations for 100 batches");
}

#[test]
fn a_growing_log_allocates_by_block() {
    let mut log = MemoryLog::new();
    let body = [0; 1024];
    let count = allocations(|| {
        for _ in 0..128_000 {
            log.append(&[], &[&body], &ONE, Keep::Durable).unwrap();
        }
    });
    // A block is its memory, its entries as they grow (1, 2, 4 ... 128 records) and itself.
    let blocks = log.usage().blocks;
    assert!(blocks < 1100, "{blocks} blocks");
    assert!(count < 10 * blocks, "{count} allocations for {blocks} blocks");
}

/// Large records that come and go have each other's memory: what is allocated is only the count of who shares it.
#[test]
fn large_records_that_come_and_go_need_no_fresh_memory() {
    const COUNT: u64 = 1000;
    for (size, in_flight) in [(1 << 20, 1), (1 << 20, 7), (64 << 10, 100), (100_000, 50)] {
        let mut log = MemoryLog::new();
        let body = vec![0; size];
        let mut go = || {
            let mut read = VecDeque::new();
            for _ in 0..COUNT {
                let at = log.append(&[], &[&body], &ONE, Keep::Durable).unwrap();
                read.push_back((at, log.read(at).unwrap()));
                if read.len() == in_flight {
                    // All at once, as by `multiple`; the last one is still being written to its socket.
                    while let Some((at, record)) = read.pop_front() {
                        log.release(at, ONE[0]).unwrap();
                        drop(record);
                    }
                }
            }
            read.drain(..).for_each(|(at, _)| log.release(at, ONE[0]).unwrap());
        };
        go();
        let before = leveret_counting::allocated_bytes();
        let count = allocations(go);
        let bytes = leveret_counting::allocated_bytes() - before;
        assert!(count <= 2 * COUNT && bytes <= 200 * COUNT, "{size}: {count}, {bytes} bytes");
    }
}

/// A batch takes no memory for the bytes of a large record: the disk gets them from where they are.
#[test]
fn a_large_record_is_written_without_a_copy() {
    const LEN: usize = 8 << 20;
    let mut log = FileLog::open(SimDisk::new(0), Options::default(), &mut |_| {}).unwrap().0;
    let mut write = |records: &[&[u8]]| {
        for record in records {
            log.append(&record[..8], &[&record[8..]], &ONE, Keep::Durable).unwrap();
        }
        let end = log.end();
        let before = leveret_counting::allocated_bytes();
        log.sync().unwrap();
        let bytes = leveret_counting::allocated_bytes() - before;
        while log.durable() < end {
            log.collect().unwrap();
        }
        bytes
    };
    let (small, large) = (vec![1; 100], vec![2; LEN]);
    for records in [&[&large[..]][..], &[&small, &large, &small], &[&large, &large]] {
        let bytes = write(records);
        assert!(bytes < 64 << 10, "{bytes} bytes for {} records", records.len());
    }
}
