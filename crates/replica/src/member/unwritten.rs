//! What came and waits for the disk: for one that is full, or a log that is being opened.

use std::collections::VecDeque;

/// Bytes of batches that came and are not on the disk, at most and one message.
pub(super) const UNWRITTEN_MAX: u64 = 64 << 20;

/// Batches that came and are not on the disk.
#[derive(Debug, Default)]
pub(super) struct Unwritten {
    /// By number, with their bytes.
    batches: VecDeque<(u64, u64)>,
    pub(super) bytes: u64,
}

impl Unwritten {
    /// One more, in place of those from this number on.
    pub(super) fn add(&mut self, number: u64, bytes: u64) {
        while let Some((_, bytes)) = self.batches.pop_back_if(|it| it.0 >= number) {
            self.bytes -= bytes;
        }
        self.batches.push_back((number, bytes));
        self.bytes += bytes;
    }

    /// All up to this number are.
    pub(super) fn has_written(&mut self, number: u64) {
        while let Some((_, bytes)) = self.batches.pop_front_if(|it| it.0 <= number) {
            self.bytes -= bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_written_is_counted_as_it_is() {
        let mut unwritten = Unwritten::default();
        for number in 5..9 {
            unwritten.add(number, 10 * number);
        }
        assert_eq!(unwritten.bytes, 50 + 60 + 70 + 80);
        unwritten.has_written(5);
        assert_eq!(unwritten.bytes, 60 + 70 + 80);
        // Another term's in the place of what was cut.
        unwritten.add(7, 1);
        assert_eq!(unwritten.bytes, 60 + 1);
        unwritten.has_written(100);
        assert_eq!((unwritten.bytes, unwritten.batches.len()), (0, 0));
    }
}
