use super::*;

const ONE: [Holder; 1] = [Holder::new(1)];

fn put(log: &mut MemoryLog, bytes: &[u8]) -> Offset {
    log.append(&[], &[bytes], &ONE, Keep::Durable).unwrap()
}

mod contract {
    use crate::{Log, MemoryLog};

    crate::log_suite!(MemoryLog::new, |log: &mut MemoryLog| log.sync().unwrap());
}

/// What `usage` adds up step by step is what a walk over the blocks finds, and every block is
/// where the invariants say.
fn check(log: &MemoryLog) {
    let sealed = log.blocks.len().saturating_sub(1);
    let held = log.blocks.range(..sealed).map(|slot| slot.block.held()).sum::<u64>();
    assert_eq!(log.sealed_held, held);
    assert!(log.blocks.iter().map(|slot| slot.first).is_sorted_by(|a, b| a < b));
    for DirectoryRow { first, block } in log.blocks.range(..sealed) {
        assert!(block.live() > 0, "block {first}");
    }
    let live = log.blocks.iter().map(|slot| slot.block.live() as u64).sum::<u64>();
    assert_eq!(live, log.records);
}

#[test]
fn blocks_stay_as_the_invariants_say() {
    let mut rng = crate::suite::numbers(1);
    for window in [1_u64, 100, 3000, 100_000] {
        let mut log = MemoryLog::new();
        for step in 0..60_000_u64 {
            let size = if rng(500) == 0 { 40_000 } else { rng(100) as usize };
            let at = put(&mut log, &vec![step as u8; size]);
            if rng(3) == 0 {
                assert!(log.read(at).unwrap().bytes.iter().all(|&byte| byte == step as u8));
            }
            for _ in 0..2 {
                let old = Offset::new(at.get().saturating_sub(rng(window)));
                let _ = log.release(old, ONE[0]);
            }
            if step % 64 == 0 {
                check(&log);
            }
        }
        for at in 0..log.end().get() {
            let _ = log.release(Offset::new(at), ONE[0]);
        }
        check(&log);
    }
}

#[test]
fn an_empty_log_allocates_nothing() {
    assert_eq!(MemoryLog::new().usage(), Usage::default());
}

#[test]
fn a_log_that_keeps_emptying_stays_small() {
    let mut log = MemoryLog::new();
    for _ in 0..1_000_000 {
        let at = put(&mut log, &[0; 100]);
        drop(log.read(at));
        log.release(at, ONE[0]).unwrap();
    }
    assert_eq!(log.usage().blocks, 1);
    assert!(log.usage().held_bytes < 32 << 10, "{:?}", log.usage());
}

/// A large record that lies whole stays where it is, wherever its block goes, and its memory is nobody's spare.
#[test]
fn given_memory_is_kept_and_given_back() {
    let mut log = MemoryLog::new();
    let given = Bytes::from(vec![7; LARGE + 1]);
    let at = log.append_whole(&given, 0, &ONE, Keep::Durable).unwrap();
    // All around it goes, so that what is left is compacted.
    let others: Vec<_> = (0..20_000).map(|_| put(&mut log, &[0; 100])).collect();
    others.into_iter().for_each(|at| log.release(at, ONE[0]).unwrap());
    assert_eq!(log.read(at).unwrap().bytes.as_ptr(), given.as_ptr());
    log.release(at, ONE[0]).unwrap();
    assert!(given.is_unique() && !log.keeps_spares());
}

/// A reader that is slow keeps the memory of what it reads, and the log goes on elsewhere.
#[test]
fn a_slow_reader_does_not_stop_reuse() {
    let mut log = MemoryLog::new();
    let at = put(&mut log, b"slow");
    let slow = log.read(at).unwrap();
    log.release(at, ONE[0]).unwrap();
    for _ in 0..1_000_000 {
        let at = put(&mut log, &[0; 100]);
        log.release(at, ONE[0]).unwrap();
    }
    assert_eq!(slow.bytes, &b"slow"[..]);
    assert!(log.usage().held_bytes < 32 << 10, "{:?}", log.usage());
}

#[test]
fn what_is_held_follows_what_is_live() {
    // 16 bytes cost an entry of 16 more; the rest is slack.
    let mut log = MemoryLog::new();
    for _ in 0..1_000_000 {
        put(&mut log, &[0; 16]);
    }
    let usage = log.usage();
    assert!(usage.held_bytes < usage.live_bytes * 22 / 10, "{usage:?}");

    let mut log = MemoryLog::new();
    for _ in 0..100_000 {
        put(&mut log, &[0; 1024]);
    }
    let usage = log.usage();
    assert!(usage.held_bytes < usage.live_bytes * 105 / 100, "{usage:?}");

    // Large and small, mixed: no block is abandoned for a large record.
    let mut log = MemoryLog::new();
    for _ in 0..2000 {
        put(&mut log, &[0; 100]);
        put(&mut log, &vec![0; 40_000]);
    }
    let usage = log.usage();
    assert!(usage.held_bytes < usage.live_bytes * 105 / 100, "{usage:?}");
}

#[test]
fn an_entry_is_16_bytes() {
    assert_eq!(block::ENTRY_SIZE, 16);
}
