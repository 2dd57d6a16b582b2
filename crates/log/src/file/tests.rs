use super::*;
use crate::disk::SimDisk;

fn open(disk: &SimDisk, options: Options) -> FileLog<SimDisk> {
    FileLog::open(disk.clone(), options, &mut |_| {}).unwrap().0
}

fn drive(log: &mut FileLog<SimDisk>) {
    for _ in 0..100_000 {
        log.sync().unwrap();
        if log.durable() == log.end() && log.disk().is_idle() {
            return;
        }
    }
    panic!("the log does not get to its end");
}

mod contract {
    use super::*;

    crate::log_suite!(
        || open(&SimDisk::new(0), Options { cache_bytes: 1 << 30, ..Options::default() }),
        |log: &mut FileLog<SimDisk>| drive(log)
    );
}
