//! CPU time and memory of a process and its descendants, from `/proc`.

use std::collections::HashMap;
use std::fs;

/// What a process tree has used up to now.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// User and system time, with that of children already waited for.
    pub cpu_s: f64,
    /// Resident memory. Pages shared inside the tree count once per process.
    pub rss_bytes: u64,
    /// Pages that came without a disk: fresh ones, for the most part.
    pub minor_faults: u64,
}

/// The usage of `pid` and everything below it; `None` when there is no such process.
pub fn tree(pid: u32) -> Option<Usage> {
    let mut sum = Usage::default();
    for (_, stat) in members(pid)? {
        sum.cpu_s += stat.usage.cpu_s;
        sum.rss_bytes += stat.usage.rss_bytes;
        sum.minor_faults += stat.usage.minor_faults;
    }
    Some(sum)
}

/// Bytes that `pid` and everything below it have had written to disks. `None` when there is no such
/// process or it is somebody else's.
pub fn written_bytes(pid: u32) -> Option<u64> {
    let written = |(id, _)| parse_io(&fs::read_to_string(format!("/proc/{id}/io")).ok()?);
    members(pid)?.into_iter().map(written).sum()
}

/// `pid` and everything below it.
fn members(pid: u32) -> Option<Vec<(u32, Stat)>> {
    let mut processes = HashMap::new();
    for entry in fs::read_dir("/proc").ok()?.flatten() {
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        if let Some(stat) = stat_of(id) {
            processes.insert(id, stat);
        }
    }
    processes.get(&pid)?;
    let below: Vec<u32> =
        processes.keys().copied().filter(|id| descends(*id, pid, &processes)).collect();
    Some(below.into_iter().filter_map(|id| processes.remove_entry(&id)).collect())
}

/// The usage of this process.
pub fn own() -> Usage {
    stat_of(std::process::id()).map(|stat| stat.usage).unwrap_or_default()
}

/// CPU time of the children this process has waited for, in seconds.
pub fn children_cpu_s() -> f64 {
    let line = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Fields 16 and 17 of proc(5); see `parse` for the bracket.
    let rest = line.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let ticks = rest.split_ascii_whitespace().skip(13).take(2);
    seconds(ticks.filter_map(|field| field.parse::<i64>().ok()).sum())
}

/// CPU time that all processors together have worked since the machine started, in seconds.
/// Waiting for disks is not work, nor is what a hypervisor took away.
pub fn machine_busy_s() -> f64 {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    // `cpu user nice system idle iowait irq softirq steal ...`
    let fields: Vec<i64> = text
        .lines()
        .next()
        .unwrap_or_default()
        .split_ascii_whitespace()
        .skip(1)
        .filter_map(|field| field.parse().ok())
        .collect();
    seconds([0, 1, 2, 5, 6].iter().filter_map(|at| fields.get(*at)).sum())
}

fn seconds(ticks: i64) -> f64 {
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

struct Stat {
    parent: u32,
    usage: Usage,
}

fn stat_of(pid: u32) -> Option<Stat> {
    parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Fields of proc(5): 4 is the parent, 10 are minor faults, 14 to 17 times in ticks, 24 is the RSS in pages.
fn parse(line: &str) -> Option<Stat> {
    // The name in field 2 may hold blanks and brackets; what follows its last bracket does not.
    let (_, rest) = line.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<i64>().ok();
    let ticks = (14..=17).map(number).sum::<Option<i64>>()?;
    Some(Stat {
        parent: u32::try_from(number(4)?).ok()?,
        usage: Usage {
            cpu_s: seconds(ticks),
            rss_bytes: u64::try_from(number(24)?).ok()? * rustix::param::page_size() as u64,
            minor_faults: u64::try_from(number(10)?).ok()?,
        },
    })
}

/// `write_bytes` of proc(5), `/proc/PID/io`: what was made dirty, though it may be deleted before it
/// is written.
fn parse_io(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    line?.parse().ok()
}

fn descends(mut id: u32, root: u32, processes: &HashMap<u32, Stat>) -> bool {
    // A pid may be reused while the table is read: the count ends a circle.
    for _ in 0..64 {
        if id == root {
            return true;
        }
        match processes.get(&id) {
            Some(stat) if stat.parent != 0 => id = stat.parent,
            _ => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_brackets_are_read() {
        let line =
            "12 (a) b ( c) S 7 12 12 0 -1 4194304 100 0 0 0 150 50 20 10 20 0 3 0 99 1000 25 0";
        let stat = parse(line).unwrap();
        let tick = 1.0 / rustix::param::clock_ticks_per_second() as f64;
        assert_eq!(stat.parent, 7);
        assert!((stat.usage.cpu_s - 230.0 * tick).abs() < 1e-9);
        assert_eq!(stat.usage.rss_bytes, 25 * rustix::param::page_size() as u64);
        assert_eq!(stat.usage.minor_faults, 100);
    }

    #[test]
    fn written_bytes_are_those_of_the_disk() {
        let text = "rchar: 9\nwchar: 8\nread_bytes: 7\nwrite_bytes: 600\n\
                    cancelled_write_bytes: 100\n";
        assert_eq!(parse_io(text), Some(600));
        assert_eq!(parse_io("wchar: 600\n"), None);
        assert!(written_bytes(std::process::id()).is_some());
    }

    #[test]
    fn this_process_has_a_size() {
        assert!(own().rss_bytes > 0);
        assert!(tree(std::process::id()).unwrap().rss_bytes > 0);
        assert_eq!(tree(u32::MAX), None);
    }
}
