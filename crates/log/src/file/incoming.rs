//! Another log's files, in place of this one's: a follower that lacks batches which its leader has no more as they were written.
//!
//! ```text
//!   receive -> for each file of the manifest:
//!                own one, or what came before -> looked at -> whole
//!                pieces, in any order -> written beside the files -> looked at -> whole
//!              all whole: arrived -> install: the list of files is another, by one change -> the log is opened anew
//! ```
//!
//! What came is under names that no start reads, so until the list is replaced the log is what it was. A process that ends before
//! leaves what came: the next one looks how much of each file is whole, and asks for the rest. A file counts only when all
//! of its checksums were looked at, on this disk.
//!
//! Meanwhile the log removes and rewrites nothing: its files may be some of those.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::arithmetic_side_effects)]

mod check;
mod ranges;

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::manifest::{Manifest, ManifestFile, PIECE_MAX, PieceCopy, PieceName};
use super::{FileLog, submit};
use crate::disk::{Disk, DiskError, FileName, Floor, Listed, Op, Point, RosterLines, Stage, Token};
use ranges::Ranges;

pub use check::{Checked, check};

/// How often a file may come damaged before it is asked for no more.
const DAMAGED_MAX: u32 = 3;

/// Why a manifest or a piece is not taken. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// The log follows nobody.
    #[error("the log is not that of a follower")]
    Leads,
    /// No log gives such files.
    #[error("that is no manifest: {0}")]
    Malformed(&'static str),
    /// It is of no file that comes, or not as long as it says.
    #[error("the piece is of no file that comes")]
    NotWanted,
    /// It does not have its checksum.
    #[error("the piece is damaged")]
    Damaged,
    /// The disk did not say what came before.
    #[error("{0}")]
    Disk(DiskError),
}

/// How far the files are here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// Bytes that are here.
    pub bytes: u64,
    /// Of so many.
    pub of: u64,
    /// A file that came damaged again and again, or does not go with the others: nothing comes of this manifest.
    pub damaged: Option<FileName>,
}

#[derive(Debug)]
enum State {
    /// It is being looked at how much is here: of the log's own file, or of what came.
    Looks { token: Token, is_own: bool },
    /// Pieces come.
    Comes { here: Ranges, asked: Ranges },
    /// All of it is here, in the log's own file, or came.
    Whole { checked: Checked, is_own: bool },
}

#[derive(Debug)]
struct Coming {
    of: ManifestFile,
    state: State,
    damaged: u32,
}

impl Coming {
    fn wants_all(of: ManifestFile) -> Self {
        let state = State::Comes { here: Ranges::default(), asked: Ranges::default() };
        Self { of, state, damaged: 0 }
    }

    /// Bytes that are here, as far as is known.
    fn bytes(&self) -> u64 {
        match &self.state {
            State::Looks { .. } => 0,
            State::Comes { here, .. } => here.sum(),
            State::Whole { .. } => self.of.len,
        }
    }

    /// Whether a file is this one to its end.
    fn is_whole(&self, it: &Checked) -> bool {
        self.is_it(it) && (it.len, it.is_sealed) == (self.of.len, self.of.is_sealed)
    }

    fn is_it(&self, it: &Checked) -> bool {
        it.file == self.of.file && it.heading == Some(self.of.heading)
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Incoming {
    point: Point,
    /// Ascending.
    files: Vec<Coming>,
    /// Pieces that are being written.
    writes: HashMap<Token, PieceName, FixedState>,
    /// Files that do not go together.
    misfit: Option<FileName>,
    is_wanted: bool,
    installing: Option<Token>,
    is_installed: bool,
}

impl Incoming {
    fn file(&mut self, name: &PieceName) -> Option<&mut Coming> {
        let is_it = |it: &&mut Coming| (it.of.file, it.of.heading.mark) == (name.file, name.mark);
        self.files.iter_mut().find(is_it)
    }

    /// A file that came damaged too often, or does not go with the others.
    fn damaged(&self) -> Option<FileName> {
        let often = self.files.iter().find(|it| it.damaged >= DAMAGED_MAX);
        self.misfit.or_else(|| often.map(|it| it.of.file))
    }

    /// What was looked at, if each file is whole.
    fn whole(&self) -> Option<Vec<(Checked, bool)>> {
        let all = self.files.iter().map(|it| match &it.state {
            State::Whole { checked, is_own } => Some((*checked, *is_own)),
            _ => None,
        });
        all.collect()
    }

    /// Once all are whole, whether they follow each other, and end with the point.
    fn look_at_all(&mut self) {
        let Some(all) = self.whole() else { return };
        let follow = |pair: &[(Checked, bool)]| match pair {
            [(one, _), (next, _)] => next.heading.is_none_or(|it| it.first < one.reached.end),
            _ => false,
        };
        let misfit = all.windows(2).find(|pair| follow(pair)).and_then(|pair| pair.last());
        let last = all.last().filter(|(last, _)| last.last != self.point.at);
        self.misfit = misfit.or(last).map(|(it, _)| it.file);
    }
}

/// Whether a log may have files like these.
fn check_manifest(manifest: &Manifest) -> Result<(), Unfit> {
    let Manifest { point, files } = manifest;
    let mut before: Option<&ManifestFile> = None;
    for it in files {
        let ManifestFile { file, heading, len, .. } = it;
        if heading.through < file.segment || *len <= super::format::FILE_HEADER as u64 {
            return Err(Unfit::Malformed("a file is too short"));
        }
        if before.is_some_and(|before| {
            before.heading.through >= file.segment
                || before.heading.first > heading.first
                || !before.is_sealed
        }) {
            return Err(Unfit::Malformed("its files do not follow each other"));
        }
        before = Some(it);
    }
    let is_last = |it: &ManifestFile| {
        it.file.generation == 0 && !it.is_sealed && it.heading.as_of <= point.at.number
    };
    match before {
        Some(last) if is_last(last) && point.at.term > 0 => Ok(()),
        _ => Err(Unfit::Malformed("it does not end in the file of its batch")),
    }
}

impl<D: Disk> FileLog<D> {
    /// The leader's files are these: what is here of them is looked at, and the rest is [wanted](Self::wanted). Of files that came
    /// for another manifest what is the same stays. From now on nothing is removed or rewritten.
    pub fn receive(&mut self, manifest: Manifest) -> Result<(), Unfit> {
        if self.following.is_none() || self.is_installed() {
            return Err(Unfit::Leads);
        }
        check_manifest(&manifest)?;
        let there = self.disk.coming().map_err(Unfit::Disk)?;
        let mut known = Vec::new();
        if let Some(incoming) = self.incoming.take() {
            known = incoming.files;
        }
        let mut came: Vec<_> = there.iter().map(|(file, _)| *file).collect();
        came.extend(known.iter().map(|it| it.of.file));
        came.retain(|file| !manifest.files.iter().any(|it| it.file == *file));
        came.into_iter().for_each(|file| self.discard(file));
        let mut files = Vec::with_capacity(manifest.files.len());
        for of in manifest.files {
            let was = known.iter().position(|it| it.of.file == of.file);
            let was = was.map(|index| known.swap_remove(index));
            files.push(self.begin_coming(of, was, &there));
        }
        self.incoming = Some(Box::new(Incoming {
            point: manifest.point,
            files,
            writes: HashMap::default(),
            misfit: None,
            is_wanted: false,
            installing: None,
            is_installed: false,
        }));
        if let Some(incoming) = &mut self.incoming {
            incoming.look_at_all();
        }
        Ok(())
    }

    /// What there is of a file.
    fn begin_coming(
        &mut self,
        of: ManifestFile,
        was: Option<Coming>,
        there: &[(FileName, u64)],
    ) -> Coming {
        let name = of.file;
        let mut came = there.iter().find(|(it, _)| *it == name).map(|(_, len)| *len);
        match was {
            Some(was) if was.of == of => {
                let state = match was.state {
                    // What is on its way is not waited for.
                    State::Comes { here, .. } => State::Comes { here, asked: Ranges::default() },
                    state => state,
                };
                return Coming { of, state, damaged: 0 };
            }
            // It has grown: what is before is the same.
            Some(Coming { of: old, state: State::Comes { here, .. }, .. })
                if old.heading == of.heading && old.len < of.len =>
            {
                let state = State::Comes { here, asked: Ranges::default() };
                return Coming { of, state, damaged: 0 };
            }
            // Another one, or more of it. Pieces of that may be on their way to the disk.
            Some(Coming { of: old, .. }) if old.heading != of.heading || old.len > of.len => {
                self.discard(name);
                came = None;
            }
            Some(_) | None => {}
        }
        let own = self.store.segments.all.iter().find(|it| {
            let is_sealed = it.is_sealed && of.is_sealed;
            it.file == name && it.heading() == of.heading && is_sealed && it.len == of.len
        });
        let is_own = own.is_some();
        let is_of_use = !is_own && came.is_some_and(|len| len <= of.len);
        if came.is_some() && !is_of_use {
            self.discard(name);
        }
        if !is_own && !is_of_use {
            return Coming::wants_all(of);
        }
        let token = self.look_at(&of, is_own);
        Coming { of, state: State::Looks { token, is_own }, damaged: 0 }
    }

    fn look_at(&mut self, of: &ManifestFile, is_own: bool) -> Token {
        let op = Op::Check { file: of.file, len: of.len, has_come: !is_own };
        submit(&mut self.disk, &mut self.next_token, op)
    }

    fn discard(&mut self, file: FileName) {
        submit(&mut self.disk, &mut self.next_token, Op::Discard { file });
    }

    /// Whether there are files that came, or were set aside, also of an earlier process.
    pub fn has_coming(&mut self) -> bool {
        self.disk.coming().is_ok_and(|it| !it.is_empty())
    }

    /// Nothing comes any more: what came goes, also of an earlier process.
    pub fn stop_receiving(&mut self) {
        if self.is_installed() || self.incoming.as_ref().is_some_and(|it| it.installing.is_some()) {
            return;
        }
        let there = self.disk.coming().unwrap_or_default();
        let mut came: Vec<_> = there.into_iter().map(|(file, _)| file).collect();
        // The first piece of a file may be on its way to the disk.
        let known = self.incoming.take().map(|it| it.files).unwrap_or_default();
        came.extend(known.iter().map(|it| it.of.file));
        came.sort_unstable();
        came.dedup();
        came.into_iter().for_each(|file| self.discard(file));
        self.space.look();
        self.space.check();
    }

    /// Pieces to be asked for now, so that what was asked for and is not written yet is `most` bytes.
    pub fn wanted(&mut self, most: u64) -> Vec<PieceName> {
        let Some(incoming) = self.incoming.as_mut().filter(|it| it.damaged().is_none()) else {
            return Vec::new();
        };
        let under_way = incoming.files.iter().map(|it| match &it.state {
            State::Comes { asked, .. } => asked.sum(),
            _ => 0,
        });
        let written = incoming.writes.values().map(|it| u64::from(it.len));
        let under_way = under_way.chain(written).fold(0, u64::saturating_add);
        let mut left = most.saturating_sub(under_way);
        let piece = most.min(PIECE_MAX.into());
        let mut wanted = Vec::new();
        for it in &mut incoming.files {
            let State::Comes { here, asked } = &mut it.state else { continue };
            while left > 0 {
                let Some((position, end)) = here.gap(asked, it.of.len, piece) else { break };
                let len = end.saturating_sub(position);
                // Smaller ones would be ever more.
                let Some(rest) = left.checked_sub(len) else { return wanted };
                asked.add(position, end);
                left = rest;
                let (file, mark) = (it.of.file, it.of.heading.mark);
                wanted.push(PieceName { file, mark, position, len: len as u32 });
            }
        }
        wanted
    }

    /// What was asked for and did not come does not come any more.
    pub fn ask_again(&mut self) {
        for it in self.incoming.iter_mut().flat_map(|it| &mut it.files) {
            if let State::Comes { asked, .. } = &mut it.state {
                *asked = Ranges::default();
            }
        }
    }

    /// A piece came. One that is here already changes nothing.
    pub fn take_piece(&mut self, piece: &PieceCopy) -> Result<(), Unfit> {
        let PieceCopy { name, bytes, crc } = piece;
        if crc32c::crc32c(bytes) != *crc {
            return Err(Unfit::Damaged);
        }
        let Self { incoming, disk, next_token, .. } = self;
        let incoming = incoming.as_mut().ok_or(Unfit::NotWanted)?;
        let it = incoming.file(name).ok_or(Unfit::NotWanted)?;
        let end = name.position.saturating_add(name.len.into());
        if bytes.len() != name.len as usize || end > it.of.len {
            return Err(Unfit::NotWanted);
        }
        let State::Comes { here, asked } = &mut it.state else { return Ok(()) };
        asked.remove(name.position, end);
        if here.has(name.position, end) {
            return Ok(());
        }
        here.add(name.position, end);
        let is_whole = here.has(0, it.of.len);
        let (file, position, bytes) = (name.file, name.position, bytes.clone());
        let token = submit(disk, next_token, Op::Receive { file, position, bytes });
        let of = it.of;
        if is_whole {
            // Behind all that was written of it.
            let op = Op::Check { file, len: of.len, has_come: true };
            it.state = State::Looks { token: submit(disk, next_token, op), is_own: false };
        }
        incoming.writes.insert(token, *name);
        Ok(())
    }

    /// A piece was written, or what came of a file is gone.
    pub(super) fn received(&mut self, token: Token, result: Result<(), DiskError>) {
        let name = self.incoming.as_mut().and_then(|it| it.writes.remove(&token));
        match (result, name) {
            (Ok(()), _) => {}
            // To be asked for again.
            (Err(DiskError::Full), Some(name)) => {
                let incoming = self.incoming.as_mut();
                let Some(it) = incoming.and_then(|it| it.file(&name)) else { return };
                // If it is looked at meanwhile, it is found not to be whole: that is no damage.
                it.damaged = it.damaged.saturating_sub(1);
                if let State::Comes { here, .. } = &mut it.state {
                    here.remove(name.position, name.position.saturating_add(name.len.into()));
                }
            }
            (Err(DiskError::Full), None) => {}
            (Err(DiskError::Failed(reason)), _) => self.writer.fail(reason),
        }
    }

    /// It was looked at how much of a file is whole.
    pub(super) fn checked(&mut self, token: Token, result: Result<Checked, DiskError>) {
        let Some(incoming) = &mut self.incoming else { return };
        let is_it =
            |it: &&mut Coming| matches!(it.state, State::Looks { token: of, .. } if of == token);
        let Some(it) = incoming.files.iter_mut().find(is_it) else { return };
        let is_own = matches!(it.state, State::Looks { is_own: true, .. });
        let checked = result.unwrap_or_default();
        if it.is_whole(&checked) {
            it.state = State::Whole { checked, is_own };
            incoming.look_at_all();
            return;
        }
        let (of, damaged) = (it.of, it.damaged.saturating_add(1));
        *it = Coming { damaged: if is_own { 0 } else { damaged }, ..Coming::wants_all(of) };
        if is_own {
            return;
        }
        // What is whole need not come again, but for what seals it: a file that was set aside may be a copy of the leader's whose log was
        // cut and went on in another file, where the leader has one more batch.
        let is_it = it.is_it(&checked);
        match &mut it.state {
            State::Comes { here, .. } if is_it => here.add(0, checked.batches),
            _ => self.discard(of.file),
        }
    }

    /// Files of the log may go: none of them counts as one that is here.
    pub(super) fn forget_own(&mut self) {
        for it in self.incoming.iter_mut().flat_map(|it| &mut it.files) {
            if matches!(
                it.state,
                State::Whole { is_own: true, .. } | State::Looks { is_own: true, .. }
            ) {
                *it = Coming::wants_all(it.of);
            }
        }
    }

    /// How far the files are here; none if none come.
    pub fn fetched(&self) -> Option<Fetched> {
        let incoming = self.incoming.as_ref()?;
        let sum =
            |of: fn(&Coming) -> u64| incoming.files.iter().map(of).fold(0, u64::saturating_add);
        let (bytes, of) = (sum(Coming::bytes), sum(|it| it.of.len));
        Some(Fetched { bytes, of, damaged: incoming.damaged() })
    }

    /// Whether it may take the place of the log: its files are all here and whole, and end with this point.
    pub fn arrived(&self) -> Option<&Point> {
        let incoming = self.incoming.as_ref()?;
        let is_whole = incoming.damaged().is_none() && incoming.whole().is_some();
        is_whole.then_some(&incoming.point)
    }

    /// Has what has [arrived](Self::arrived) take the place of the log. Once that [is so](Self::is_installed), the
    /// [disk](Self::into_disk) is to be opened anew, as a follower's; nothing else is to be done with this log. A start does the same
    /// after a crash: it finds the log as it was, or the new one. Without room for the list it is as it was, and to
    /// be tried again.
    ///
    /// # Panics
    ///
    /// If nothing has arrived.
    pub fn install(&mut self) {
        assert!(self.arrived().is_some(), "what is installed has arrived");
        if let Some(following) = &mut self.following {
            following.give_up_writes();
        }
        if let Some(incoming) = &mut self.incoming {
            incoming.is_wanted = true;
        }
        self.install_if_idle();
    }

    /// Begins once nothing is under way.
    pub(super) fn install_if_idle(&mut self) {
        let Self { incoming, following, space, point, disk, next_token, .. } = self;
        let Some(incoming) = incoming.as_mut().filter(|it| it.is_wanted) else { return };
        if incoming.installing.is_some() || incoming.is_installed {
            incoming.is_wanted = false;
            return;
        }
        let is_busy = following.as_ref().is_some_and(|it| it.is_writing())
            || space.is_busy()
            || point.is_moving()
            || !incoming.writes.is_empty();
        let Some(all) = incoming.whole().filter(|_| !is_busy) else { return };
        incoming.is_wanted = false;
        let arriving = all.iter().filter(|(_, is_own)| !is_own).map(|(it, _)| it.file).collect();
        let reached = all.last().map(|(it, _)| it.reached).unwrap_or_default();
        let line = |(it, _): &(Checked, bool)| {
            let Checked { file, heading, beginning, len, is_sealed, reached, .. } = *it;
            let stage = if is_sealed { Stage::Sealed } else { Stage::Growing };
            Listed { file, len, beginning, reached, heading, stage }
        };
        let lines = RosterLines {
            files: all.iter().map(line).collect(),
            floor: Floor { reached, segment: 0 },
            point: Some(incoming.point.clone()),
        };
        incoming.installing = Some(submit(disk, next_token, Op::Install { lines, arriving }));
    }

    /// The list of files is that of what has arrived, or there was no room for it.
    pub(super) fn installed(&mut self, token: Token, result: Result<(), DiskError>) {
        let Some(incoming) = &mut self.incoming else { return };
        if incoming.installing.take_if(|it| *it == token).is_none() {
            return;
        }
        match result {
            Ok(()) => incoming.is_installed = true,
            Err(DiskError::Full) => {}
            Err(DiskError::Failed(reason)) => self.writer.fail(reason),
        }
    }

    /// Whether the files are others than those of this log, which is to be opened anew.
    pub fn is_installed(&self) -> bool {
        self.incoming.as_ref().is_some_and(|it| it.is_installed)
    }
}
