//! When messages that wait have waited long enough: ranges of offsets by time, not an entry for each.
//!
//! Each duration that queues ask for has its own line. In a line both times and offsets grow, and what
//! comes within a 64th of the duration shares a range, which is due with its last one. So a line is short,
//! whatever the rate; and a message is looked at once per duration it has. A range may hold offsets that
//! have nothing to do with it: who looks at a message asks whether it is due.

use std::collections::VecDeque;

use leveret_queue::Time;

/// The line of one duration.
#[derive(Debug)]
struct DelayRanges {
    ms: u32,
    ranges: VecDeque<Range>,
}

#[derive(Clone, Copy, Debug)]
struct Range {
    /// When its first one is due.
    opened: Time,
    /// When its last one is.
    due: Time,
    first: u64,
    last: u64,
}

/// All lines of a shard: as many as there are durations among its queues.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    lines: Vec<DelayRanges>,
}

/// Lines that are kept when nobody waits.
const LINES_KEPT: usize = 16;

impl Deadlines {
    /// The message at `at` is due in `ms`.
    pub(super) fn add(&mut self, ms: u32, now: Time, at: u64) {
        let due = now.after_ms(ms.into());
        let line = match self.lines.iter().position(|line| line.ms == ms) {
            Some(found) => &mut self.lines[found],
            None => {
                self.lines.push(DelayRanges { ms, ranges: VecDeque::new() });
                self.lines.last_mut().expect("just pushed")
            }
        };
        match line.ranges.back_mut() {
            // The clock may step back: then the range is due later than it would be.
            Some(range) if due.ms() <= range.opened.ms() + u64::from(ms / 64) => {
                range.due = range.due.max(due);
                // One of an earlier term is waited for anew.
                (range.first, range.last) = (range.first.min(at), range.last.max(at));
            }
            _ => line.ranges.push_back(Range { opened: due, due, first: at, last: at }),
        }
    }

    /// When the next range is due.
    pub(super) fn next(&self) -> Option<Time> {
        self.lines.iter().filter_map(|line| line.ranges.front()).map(|range| range.due).min()
    }

    /// Takes a range that is due: its first and last offset.
    pub(super) fn pop(&mut self, now: Time) -> Option<(u64, u64)> {
        let is_due = |line: &DelayRanges| line.ranges.front().is_some_and(|range| range.due <= now);
        let line = self.lines.iter_mut().find(|line| is_due(line))?;
        line.ranges.pop_front().map(|range| (range.first, range.last))
    }

    /// Nobody waits. Lines stay, unless they became many.
    pub(super) fn forget(&mut self) {
        if self.lines.len() > LINES_KEPT {
            self.lines = Vec::new();
        }
        self.lines.iter_mut().for_each(|line| line.ranges.clear());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_together_is_due_together() {
        let at = Time::from_ms;
        let mut deadlines = Deadlines::default();
        deadlines.add(640, at(0), 1);
        deadlines.add(640, at(10), 2);
        deadlines.add(100, at(10), 3);
        deadlines.add(640, at(11), 4);
        assert_eq!(deadlines.next(), Some(at(110)));
        assert_eq!(deadlines.pop(at(109)), None);
        assert_eq!(deadlines.pop(at(110)), Some((3, 3)));
        assert_eq!(deadlines.next(), Some(at(650)));
        assert_eq!(deadlines.pop(at(651)), Some((1, 2)));
        assert_eq!(deadlines.pop(at(651)), Some((4, 4)));
        assert_eq!(deadlines.next(), None);
    }
}
