//! What there is to know of a log's files before they are read: the files, and the list of them.

use super::{OpenError, next, on};
use crate::disk::{BEGINNING, Disk, FileName, Floor, Listed, Reached, Roster, Stage};
use crate::file::format::{FILE_HEADER, FileHeader, HeaderError};
use crate::file::salvage::Damage;

/// A file that is there.
#[derive(Clone, Debug)]
pub(super) struct There {
    pub(super) name: FileName,
    pub(super) len: u64,
    /// What it begins with, if that is a header.
    pub(super) header: Option<FileHeader>,
    /// The checksum of its first bytes.
    pub(super) beginning: u32,
}

impl There {
    /// Whether it has the header that belongs to its name.
    pub(super) fn header(&self) -> Option<&FileHeader> {
        let name = self.name;
        let is_it =
            |it: &&FileHeader| (it.segment, it.generation) == (name.segment, name.generation);
        self.header.as_ref().filter(is_it)
    }

    /// The last segment that it stands for.
    pub(super) fn through(&self) -> u64 {
        self.header().map_or(self.name.segment, |header| header.through)
    }
}

/// What there is to know of a log's files before they are read.
pub(super) struct Known {
    pub(super) roster: Roster,
    /// Ascending.
    pub(super) there: Vec<There>,
}

impl Known {
    pub(super) fn of<D: Disk>(disk: &mut D) -> Result<Self, OpenError> {
        let roster = disk
            .roster()
            .map_err(|error| OpenError::Disk { file: "the list of files".into(), error })?;
        Ok(Self { roster, there: there(disk)? })
    }

    pub(super) fn line(&self, name: FileName) -> Option<&Listed> {
        self.roster.listed().iter().find(|it| it.file == name)
    }

    /// Of the files that are needed.
    fn needed(&self) -> impl Iterator<Item = &Listed> {
        self.roster.listed().iter().filter(|it| it.stage != Stage::Going)
    }

    /// The line of a file that is to be removed.
    pub(super) fn going(&self, file: FileName) -> Listed {
        let (beginning, reached) = (0, Reached::default());
        let none = Listed { file, len: 0, beginning, reached, heading: None, stage: Stage::Going };
        self.line(file).map_or(none, |line| Listed { stage: Stage::Going, ..*line })
    }

    /// Whether the list says that the end of this file was safe.
    pub(super) fn is_sealed(&self, name: FileName) -> bool {
        self.line(name).is_some_and(|line| line.stage == Stage::Sealed)
    }

    /// Files that were there, and are not; nor is what they were made of or made to, which somebody put in their place.
    pub(super) fn missing(&self) -> impl Iterator<Item = &Listed> {
        self.needed().filter(|line| !self.is_replaced(line))
    }

    /// Whether all segments of a file that is listed are there: in the file, in a later one, or in earlier ones.
    fn is_replaced(&self, line: &Listed) -> bool {
        let (first, last) = (line.file.segment, line.through());
        let is_later = |it: &There| {
            it.name == line.file
                || it.name.generation > line.file.generation
                    && it.name.segment <= first
                    && last <= it.through()
        };
        // The next segment that is not found yet.
        let mut wanted = first;
        for it in &self.there {
            if is_later(it) {
                return true;
            }
            if it.name.segment <= wanted {
                wanted = wanted.max(next(it.through()));
            }
        }
        wanted > last
    }

    /// A generation that no file of this segment has or had, as far as is known.
    pub(super) fn unused_generation(&self, segment: u64) -> u64 {
        let there = self.there.iter().map(|it| it.name);
        let names = there.chain(self.roster.listed().iter().map(|it| it.file));
        let used = names.filter(|it| it.segment == segment).map(|it| it.generation);
        used.max().map_or(0, next)
    }

    /// How far the log is known to have been.
    pub(super) fn floor(&self) -> Floor {
        let Floor { reached, segment } = self.roster.floor();
        let all = self.roster.listed();
        Floor {
            reached: all.iter().fold(reached, |most, it| most.max(it.reached)),
            segment: all.iter().map(|it| next(it.through())).fold(segment, u64::max),
        }
    }

    /// What is missing, as damage.
    pub(super) fn lost(&self) -> Vec<Damage> {
        let first = |it: &Listed| {
            let earlier = self.roster.listed().iter();
            let earlier = earlier.filter(|other| other.file.segment < it.file.segment);
            let before = earlier.map(|other| other.reached.end).max().unwrap_or(0);
            it.heading.map_or(before, |heading| heading.first)
        };
        let lost = self.missing().map(|it| Damage {
            file: it.file,
            position: 0,
            what: "the file is missing",
            kept: None,
            rest: None,
            lost_bytes: it.len,
            lost_records_max: Some(it.reached.end.saturating_sub(first(it))),
            holders: Vec::new(),
            are_all_holders: false,
        });
        lost.collect()
    }

    /// A file in whose place an earlier one was put that does not go as far.
    pub(super) fn cut_short(&self, enlisted: &[Listed], told: &[Damage]) -> Option<FileName> {
        self.needed().find_map(|line| {
            let range = line.file.segment..=line.through();
            let is_told = told.iter().any(|it| range.contains(&it.file.segment));
            let of_range = enlisted.iter().rfind(|it| range.contains(&it.file.segment))?;
            let is_short = of_range.file.generation < line.file.generation
                && of_range.reached.end < line.reached.end;
            (is_short && !is_told).then_some(of_range.file)
        })
    }
}

/// The files that are there. One of a later version is not damaged, whatever else is.
pub(super) fn there<D: Disk>(disk: &mut D) -> Result<Vec<There>, OpenError> {
    let listed = disk.list().map_err(|error| OpenError::Disk { file: "the log".into(), error })?;
    let mut found = Vec::with_capacity(listed.len());
    for (name, len) in listed {
        let mut bytes = [0; FILE_HEADER];
        if len >= FILE_HEADER as u64 {
            on(name, disk.read_now(name, 0, &mut bytes))?;
        }
        let header = match FileHeader::decode(&bytes) {
            Err(HeaderError::Newer { format, writer }) => {
                return Err(OpenError::Newer { file: name, format, writer });
            }
            header => header.ok(),
        };
        let beginning = crc32c::crc32c(bytes.get(..BEGINNING).unwrap_or(&bytes));
        found.push(There { name, len, header, beginning });
    }
    found.sort_unstable_by_key(|it| it.name);
    Ok(found)
}
