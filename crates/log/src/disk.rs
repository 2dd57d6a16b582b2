//! What a log in files needs of a disk: submissions, completions, and a few calls while it opens.
//!
//! One disk is one directory of one log. `server` has the real one; [`SimDisk`] is a seeded one in
//! memory, with faults.

mod sim;

use std::fmt;
use std::ops::RangeInclusive;

use bytes::Bytes;

pub use sim::{Faults, SimDisk};

/// The name of a segment file: the number of the segment, and how often it was rewritten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileName {
    /// Segments are numbered in the order they were begun.
    pub segment: u64,
    /// 0 for the file that records were appended to.
    pub generation: u64,
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}.{}.seg", self.segment, self.generation)
    }
}

impl FileName {
    /// The name under which the file is kept if it is damaged.
    pub fn aside(&self) -> String {
        format!("{self}.damaged")
    }

    /// The name that prints like this, if there is one. Other files are not the log's.
    pub fn parse(text: &str) -> Option<Self> {
        let (segment, rest) = text.split_once('.')?;
        let generation = rest.strip_suffix(".seg")?;
        let segment = u64::from_str_radix(segment, 16).ok()?;
        let name = Self { segment, generation: generation.parse().ok()? };
        (name.to_string() == text).then_some(name)
    }
}

/// Why the disk did not do what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiskError {
    /// No room. It may come back.
    #[error("no space left on the disk")]
    Full,
    /// Anything else; nothing is known of what was to be written.
    #[error("{0}")]
    Failed(String),
}

/// The name of a submission, given back with its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// A part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The first byte's place in the file.
    pub position: u64,
    /// Bytes.
    pub len: usize,
}

/// What is submitted.
///
/// Writes and removals take effect in the order they were submitted in, and complete in it. Reads
/// are on their own.
#[derive(Debug)]
pub enum Op {
    /// Writes `head` and behind it `body`. The file is made if it is not there: whole with these bytes, or not
    /// at all. If they are synced, and the
    /// generation is 0, it may be made of one that was removed: what that had is behind them then,
    /// until it is written over, or something is the last.
    Write {
        /// Where to.
        file: FileName,
        /// The first byte's place in the file.
        position: u64,
        /// The first bytes,
        head: Vec<u8>,
        /// and the others.
        body: Vec<u8>,
        /// Whether everything written to this file so far, and that the file is there at all,
        /// survives a power cut once this completes.
        sync: bool,
        /// Nothing follows in this file: what is behind it goes.
        is_last: bool,
        /// Nobody waits for it, and its file is no other's: it need not keep its place among
        /// writes and removals, and should not make them wait.
        is_background: bool,
    },
    /// Reads pieces of a file, all of each. Their bytes come joined.
    Read {
        /// Where from.
        file: FileName,
        /// Which, best in ascending order.
        pieces: Vec<Piece>,
    },
    /// Removes a file. Once this completes it does not come back after a power cut.
    Remove {
        /// Which.
        file: FileName,
        /// Bytes that the next ones get, about. What is kept for them is as long as [`lens_like`] says.
        next_len: u64,
    },
}

/// Lengths that a file may have which is kept for another of `next_len` bytes, about: a longer one is room that is
/// wasted, and one that is much shorter saves little.
pub fn lens_like(next_len: u64) -> RangeInclusive<u64> {
    next_len / 2..=next_len.saturating_add(next_len / 2)
}

/// What has been done of what was submitted.
#[derive(Debug)]
pub enum Done {
    /// A write, with its bytes: for use again, or for another try.
    Written {
        /// As submitted.
        head: Vec<u8>,
        /// As submitted.
        body: Vec<u8>,
        /// How it went.
        result: Result<(), DiskError>,
    },
    /// A read: as many bytes as asked for, or an error of any of the pieces.
    Read(Result<Bytes, DiskError>),
    /// A removal.
    Removed(Result<(), DiskError>),
}

/// A directory for the segments of one log.
pub trait Disk {
    /// Takes an operation. Never waits for it.
    fn submit(&mut self, token: Token, op: Op);

    /// Something that has been done since, if anything has.
    fn poll(&mut self) -> Option<(Token, Done)>;

    /// Bytes of memory that it keeps for reads to come.
    fn held_bytes(&self) -> u64 {
        0
    }

    /// Bytes that can be written besides what was submitted, as far as that is known. A record that needs more is
    /// refused when it is appended: a batch that was submitted and finds no room is neither there nor not there.
    fn room(&self) -> u64 {
        u64::MAX
    }

    /// Whether room is so short that nothing should be appended but what gives some.
    fn is_short(&self) -> bool {
        false
    }

    /// The segment files there are, and their lengths. Only while a log is opened, as all that
    /// follows: it waits.
    fn list(&mut self) -> Result<Vec<(FileName, u64)>, DiskError>;

    /// Reads into `into`, all of it.
    fn read_now(&mut self, file: FileName, position: u64, into: &mut [u8])
    -> Result<(), DiskError>;

    /// Cuts a file, for good: what was cut does not come back after a power cut, and what is left is
    /// safe.
    fn truncate_now(&mut self, file: FileName, len: u64) -> Result<(), DiskError>;

    /// Writes into a file, which is made if it is not there. Safe after [`truncate_now`](Self::truncate_now).
    fn write_now(&mut self, file: FileName, position: u64, bytes: &[u8]) -> Result<(), DiskError>;

    /// Keeps a file as it is under another name, for people: it does not count any more as one of the log's
    /// once it is removed, and stays. Gives that name. A second time does nothing.
    fn keep_aside(&mut self, file: FileName) -> Result<String, DiskError>;

    /// Removes a file for good.
    fn remove_now(&mut self, file: FileName) -> Result<(), DiskError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn names() {
        check("0000000000000000.0.seg",   Some((0, 0)));
        check("00000000000000ff.12.seg",  Some((255, 12)));
        check("00000000000000FF.12.seg",  None);
        check("ff.12.seg",                None);
        check("00000000000000ff.012.seg", None);
        check("00000000000000ff.seg",     None);
        check("00000000000000ff.1.seg~",  None);
        check("00000000000000ff.1.seg.damaged", None);
        check("LOCK",                     None);
    }

    #[track_caller]
    fn check(text: &str, want: Option<(u64, u64)>) {
        let name = FileName::parse(text);
        assert_eq!(name.map(|name| (name.segment, name.generation)), want, "{text}");
        if let Some(name) = name {
            assert_eq!(name.to_string(), text);
        }
    }
}
