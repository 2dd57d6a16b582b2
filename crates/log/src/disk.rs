//! What a log in files needs of a disk: submissions, completions, and a few calls while it opens.
//!
//! One disk is one directory of one log. `server` has the real one; [`SimDisk`] is a seeded one in
//! memory, with faults.

mod body;
mod sim;

use std::fmt;
use std::ops::RangeInclusive;

use bytes::Bytes;

use crate::BatchName;
use crate::file::{Checked, Undigested};

pub use body::Body;
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

    /// The name of an empty file that says that this one was missing.
    pub fn absent(&self) -> String {
        format!("{self}.missing")
    }

    /// The name under which it is kept if others of its name are: 2 is the second.
    pub fn aside_again(&self, count: u64) -> String {
        if count < 2 { self.aside() } else { format!("{self}.damaged.{count}") }
    }

    /// The name under which it comes from another log, until it counts.
    pub fn coming(&self) -> String {
        format!("{self}.coming")
    }

    /// The file that comes under this name.
    pub fn of_coming(text: &str) -> Option<Self> {
        text.strip_suffix(".coming").and_then(Self::parse)
    }

    /// The name of its digest.
    pub fn digest(&self) -> String {
        format!("{self}.digest")
    }

    /// The file whose digest has this name.
    pub fn of_digest(text: &str) -> Option<Self> {
        text.strip_suffix(".digest").and_then(Self::parse)
    }

    /// The file that is kept under this name, or of which it says that it was missing.
    pub fn of_kept(text: &str) -> Option<Self> {
        let (name, _) = text.split_once(".damaged").or_else(|| text.split_once(".missing"))?;
        let name = Self::parse(name)?;
        let is_again =
            |count: &str| count.parse::<u64>().is_ok_and(|count| name.aside_again(count) == text);
        let is_one = [name.aside(), name.absent()].iter().any(|it| it == text)
            || text.rsplit_once('.').is_some_and(|(_, count)| is_again(count));
        is_one.then_some(name)
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
        body: Body,
        /// How far the log is with these.
        reached: Reached,
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
    /// Writes bytes over those that are damaged in a file, if it is there, synced. The list of files knows of none of it. Keeps its
    /// place among writes and removals.
    Mend {
        /// Which.
        file: FileName,
        /// The first byte's place in the file.
        position: u64,
        /// As they were.
        bytes: Bytes,
    },
    /// Cuts off the end of the file that is written to. First the list of files says so, for good: the file has `len` bytes,
    /// is not sealed, and the log has `reached` so far with it. Once this completes the end does not come back after a power
    /// cut. Keeps its place among writes and removals.
    Cut {
        /// Which.
        file: FileName,
        /// Bytes that are left of it.
        len: u64,
        /// How far the log is with these.
        reached: Reached,
    },
    /// Has the list of files say this point, synced. It needs no room, but for the first time, and for many more members than
    /// before. Keeps its place among writes and removals.
    SetPoint(Point),
    /// Writes a piece of a file that comes from another log, beside the files: no start reads it. Not synced. Keeps its place among
    /// writes.
    Receive {
        /// Which.
        file: FileName,
        /// The first byte's place in the file.
        position: u64,
        /// The piece.
        bytes: Bytes,
    },
    /// Removes what came of a file, if anything did. Keeps its place among writes.
    Discard {
        /// Which.
        file: FileName,
    },
    /// Looks how much of a file is whole: see [`check`](crate::file::check). What came of one is synced before. Keeps its place
    /// among writes.
    Check {
        /// Which.
        file: FileName,
        /// Bytes that it is to have.
        len: u64,
        /// Whether it is one that came, or one of the log's.
        has_come: bool,
    },
    /// The list of files is this one from now on, for good, by one change: either it is, or the one before. The files `arriving`
    /// have come, and take their names when the list is asked for next. What else is there is going. Nothing else may
    /// be under way, and nothing but the opening of a log follows.
    Install {
        /// What the list says.
        lines: RosterLines,
        /// Which of its files have come.
        arriving: Vec<FileName>,
    },
    /// Makes the digest of a file that nothing is written to any more, and keeps it beside it: see
    /// [`Digester`](crate::file::Digester). It replaces one that is there, which goes if the file is damaged. Nobody waits
    /// for it, and it should take little from those who work.
    Digest {
        /// Of which.
        file: FileName,
        /// Its bytes.
        len: u64,
    },
}

/// How far a log is with a file: what it would go on with if there were nothing behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// The next offset.
    pub end: u64,
    /// The number of the next batch.
    pub sequence: u64,
}

impl Reached {
    /// The farther of both.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self { end: self.end.max(other.end), sequence: self.sequence.max(other.sequence) }
    }
}

/// Bytes at the beginning of a file by which it is known from another of its name: not its header's own checksum, with
/// which the checksum of all is the same for each file.
pub const BEGINNING: usize = 96;

/// What a disk knows of a file that it wrote and that it did not remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Which.
    pub file: FileName,
    /// Bytes of it that were synced, at least.
    pub len: u64,
    /// CRC-32C of its first [`BEGINNING`] bytes.
    pub beginning: u32,
    /// How far the log was with those bytes.
    pub reached: Reached,
    /// None if an older version listed it.
    pub heading: Option<Heading>,
    /// What is to become of it.
    pub stage: Stage,
}

/// What the header of a file says and its name does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heading {
    /// The last segment that the file stands for.
    pub through: u64,
    /// Its first offset.
    pub first: u64,
    /// Notes of earlier batches on its records are in it already.
    pub as_of: u64,
    /// What its batches begin with.
    pub mark: u64,
}

/// How far a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// More may come.
    Growing,
    /// Its end was synced. Of a file that was rewritten: it stands for those that it was made of, and the list has each of
    /// those that is not gone.
    Sealed,
    /// Nothing of it is needed: it is being removed.
    Going,
}

impl Listed {
    /// A file that begins with `head`, of which so much was synced.
    pub fn begun(file: FileName, head: &[u8], len: u64, reached: Reached) -> Self {
        let beginning = crc32c::crc32c(head.get(..BEGINNING).unwrap_or(head));
        let heading = crate::file::heading(head);
        Self { file, len, beginning, reached, heading, stage: Stage::Growing }
    }

    /// The last segment that it stands for, as far as is known.
    pub fn through(&self) -> u64 {
        self.heading.map_or(self.file.segment, |heading| heading.through)
    }
}

/// Below these numbers nothing new begins: they were used, perhaps in files that are gone and may come back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Floor {
    /// Offsets and batches.
    pub reached: Reached,
    /// Segments.
    pub segment: u64,
}

/// The last batch below which files with terms may have been rewritten or removed: others cannot have what is not above it as
/// batches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    /// Which batch. All members agreed to it.
    pub at: BatchName,
    /// Who is a member of the group as of it, in words that are not the log's.
    pub members: Bytes,
}

/// The lines of a list of files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RosterLines {
    /// The files, in no order.
    pub files: Vec<Listed>,
    /// How far the log was when it was opened last.
    pub floor: Floor,
    /// Of a log with terms, once it was told.
    pub point: Option<Point>,
}

/// What a disk knows of its files besides what is there: see [`Disk::roster`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Roster {
    /// There is no list: an older version left the directory, or somebody took it away.
    None,
    /// There was one, and it was given up, as the disk had no room for it. The files that are there may be all.
    GivenUp,
    /// There is one, and it is not whole. What can be read of it, and what is wrong.
    Damaged(RosterLines, String),
    /// All that the disk knows.
    Whole(RosterLines),
}

impl Roster {
    /// Why it cannot tell whether a file is missing, if there is one or was.
    pub fn fault(&self) -> Option<&str> {
        match self {
            Self::GivenUp => Some("found no room on the disk, and was given up"),
            Self::Damaged(_, what) => Some(what),
            Self::None | Self::Whole(_) => None,
        }
    }

    /// What can be read.
    pub fn listed(&self) -> &[Listed] {
        match self {
            Self::None | Self::GivenUp => &[],
            Self::Damaged(lines, _) | Self::Whole(lines) => &lines.files,
        }
    }

    /// Its point, if it has one that can be read.
    pub fn point(&self) -> Option<&Point> {
        match self {
            Self::None | Self::GivenUp => None,
            Self::Damaged(lines, _) | Self::Whole(lines) => lines.point.as_ref(),
        }
    }

    /// How far the log was when it was opened last.
    pub fn floor(&self) -> Floor {
        match self {
            Self::None | Self::GivenUp => Floor::default(),
            Self::Damaged(lines, _) | Self::Whole(lines) => lines.floor,
        }
    }
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
        body: Body,
        /// How it went.
        result: Result<(), DiskError>,
    },
    /// A read: as many bytes as asked for, or an error of any of the pieces.
    Read(Result<Bytes, DiskError>),
    /// A removal.
    Removed(Result<(), DiskError>),
    /// The end of a file was cut off.
    Cut(Result<(), DiskError>),
    /// What was damaged was written over.
    Mended(Result<(), DiskError>),
    /// The list of files has the point. Where there was no room it has the one before.
    PointSet(Result<(), DiskError>),
    /// A piece was written, or what came of a file is gone.
    Received(Result<(), DiskError>),
    /// How much of a file is whole.
    Checked(Result<Checked, DiskError>),
    /// The list of files is another.
    Installed(Result<(), DiskError>),
    /// A digest was made, or cannot be made.
    Digested(Result<(), Undigested>),
    /// What the disk keeps besides files failed, with this operation or on its own: nobody knows any more what it has, and
    /// nothing more is to be done.
    Failed(DiskError),
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

    /// The same as [`room`](Self::room) for those who may use the last of it.
    fn last_room(&self) -> u64 {
        self.room()
    }

    /// Whether what is only kept for others is to give its room back.
    fn wants_room(&self) -> bool {
        false
    }

    /// What came of files from another log, and was not installed: their names and lengths. Quick.
    fn coming(&mut self) -> Result<Vec<(FileName, u64)>, DiskError> {
        Ok(Vec::new())
    }

    /// The files that were written and synced and not removed, each at least as long as was synced: what is missing
    /// of them is not a write that was interrupted. Kept beside the files, so that it tells more than they can.
    ///
    /// It may be behind, and never ahead: a file is in it after it was synced, and not any more when it is removed. After a
    /// power cut it has each file that anything was synced to behind its beginning, and of what was synced all but the last
    /// seconds. If it cannot be written, that is [`Done::Failed`]; unless there is no room for it: then it says of itself that
    /// it is not whole, until there is. Only while a log is opened, as all that follows: it waits. Files that were to
    /// [arrive](Op::Install) have.
    fn roster(&mut self) -> Result<Roster, DiskError>;

    /// The log is open, and these are its files: from now on, and as all that is submitted changes them. `is_needed`:
    /// some file says that there is a list.
    fn enlist(&mut self, lines: &RosterLines, is_needed: bool) -> Result<(), DiskError>;

    /// The segment files there are, and their lengths.
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
    /// once it is removed, and stays. Gives that name. A second time does nothing, unless it has other bytes: then both are
    /// kept. Of a file that is not there word is kept in the same way.
    fn keep_aside(&mut self, file: FileName) -> Result<String, DiskError>;

    /// The files that are kept aside, and those of which word is kept, for as long as people leave that there: they may
    /// be put back.
    fn kept(&mut self) -> Result<Vec<FileName>, DiskError>;

    /// The digest that was kept of a file, as it is; nothing if there is none.
    fn digest(&mut self, file: FileName) -> Result<Vec<u8>, DiskError> {
        let _ = file;
        Ok(Vec::new())
    }

    /// No digests are of use but those of these files: the others may go.
    fn keep_digests(&mut self, of: &[FileName]) {
        let _ = of;
    }

    /// Has all files of the log be as if they [came](Op::Receive) from another one, whatever is wrong with them, and no list of files be there: the
    /// log has nothing any more. Interrupted, it is to be begun again: the list goes last, and misses what went before.
    fn disown_now(&mut self) -> Result<(), DiskError>;

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
        check("00000000000000ff.1.seg.digest", None);
        check("LOCK",                     None);
        let name = FileName { segment: 255, generation: 1 };
        assert_eq!(FileName::of_digest(&name.digest()), Some(name));
        assert_eq!(FileName::of_digest("00000000000000ff.1.seg.digest.new"), None);
        assert_eq!(FileName::of_coming(&name.coming()), Some(name));
        assert_eq!(FileName::parse(&name.coming()), None);
    }

    #[test]
    #[rustfmt::skip] // a table
    fn names_of_what_is_kept() {
        let kept = |text| FileName::of_kept(text).map(|name| (name.segment, name.generation));
        assert_eq!(kept("00000000000000ff.12.seg.damaged"),    Some((255, 12)));
        assert_eq!(kept("00000000000000ff.12.seg.damaged.2"),  Some((255, 12)));
        assert_eq!(kept("00000000000000ff.12.seg.missing"),    Some((255, 12)));
        assert_eq!(kept("00000000000000ff.12.seg.missing.2"),  None);
        assert_eq!(kept("00000000000000ff.12.seg.damaged.1"),  None);
        assert_eq!(kept("00000000000000ff.12.seg.damaged.02"), None);
        assert_eq!(kept("00000000000000ff.12.seg.damaged.new"), None);
        assert_eq!(kept("00000000000000ff.12.seg"),            None);
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
