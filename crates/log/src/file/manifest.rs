//! Giving a log as files, to who lacks batches that are not here any more as they were written.
//!
//! A *manifest* names the files as of a batch that all agreed to: that is the point of who gets them. It ends at this batch, in
//! whatever file that is. What a rewritten file has left out, and what emptied a file that is gone, is in batches up to it.
//!
//! The log goes on meanwhile. It removes and rewrites, but the files of the manifest stay on the disk, and batches behind it in the
//! log, until they are let go of, or keep too much from being given back.

use std::collections::VecDeque;

use bytes::Bytes;
use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::segments::Segment;
use super::{FileLog, submit};
use crate::disk::{Disk, DiskError, FileName, Heading, Op, Piece, Point, Token};

/// Bytes of a piece, at most.
pub const PIECE_MAX: u32 = 512 << 10;

/// Reads of pieces under way, and pieces that wait to be taken, at most.
const PIECES_MAX: usize = 8;

/// So many of the newest batches may be that of a manifest: which is agreed to is known a little later.
const ENDS_MAX: usize = 4096;

/// The files of a log as of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The last batch of them, and who is a member as of it.
    pub point: Point,
    /// Ascending. All but the last one are sealed.
    pub files: Vec<ManifestFile>,
}

/// A file of a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManifestFile {
    /// Which.
    pub file: FileName,
    /// What its header says. By its mark it is known from others of its name.
    pub heading: Heading,
    /// Bytes of it that count.
    pub len: u64,
    /// Whether they end in what seals it.
    pub is_sealed: bool,
}

impl Manifest {
    /// Bytes of all files.
    pub fn len(&self) -> u64 {
        self.files.iter().map(|it| it.len).fold(0, u64::saturating_add)
    }

    /// Whether it has no file, which none has that a log gives.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }
}

/// A piece of a file of a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PieceName {
    /// Which file.
    pub file: FileName,
    /// Its mark.
    pub mark: u64,
    /// The first byte's place in it.
    pub position: u64,
    /// Bytes, [`PIECE_MAX`] at most.
    pub len: u32,
}

/// A piece with its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PieceCopy {
    /// Which.
    pub name: PieceName,
    /// Its bytes.
    pub bytes: Bytes,
    /// The CRC-32C of them.
    pub crc: u32,
}

/// Why a piece cannot be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPiece {
    /// It is being read: to be asked for again when the disk wakes the log's owner.
    #[error("the piece is being read")]
    ToCome,
    /// It is of no manifest that is held: who lacks it needs a new one.
    #[error("the file is not held any more")]
    Gone,
    /// The disk gave nothing back.
    #[error("the file cannot be read")]
    Unreadable,
}

/// The manifest that is held, and its pieces.
#[derive(Debug, Default)]
pub(super) struct Sending {
    manifest: Option<Manifest>,
    /// Where the newest batches end: number, segment, byte.
    ends: VecDeque<(u64, u64, u64)>,
    /// All that any file of the log has left out, or is gone for, is in batches up to this one.
    reflected: u64,
    reads: HashMap<Token, PieceName, FixedState>,
    came: VecDeque<PieceCopy>,
    unreadable: Option<PieceName>,
}

impl Sending {
    /// A batch is going to be written, which ends there.
    pub(super) fn end(&mut self, number: u64, segment: u64, end: u64) {
        self.ends.push_back((number, segment, end));
        if self.ends.len() > ENDS_MAX {
            self.ends.pop_front();
        }
    }

    /// A file was removed, or one was rewritten, for what batches up to this one did.
    pub(super) fn reflect(&mut self, number: u64) {
        self.reflected = self.reflected.max(number);
    }

    /// From this batch on all stay as they were written.
    pub(super) fn held_from(&self) -> u64 {
        self.manifest.as_ref().map_or(u64::MAX, |it| it.point.at.number.saturating_add(1))
    }

    /// Whether a file is to stay on the disk.
    pub(super) fn holds(&self, file: FileName) -> bool {
        self.reads.values().any(|read| read.file == file) || self.len_of(file) > 0
    }

    /// Bytes of a file that the manifest has.
    pub(super) fn len_of(&self, file: FileName) -> u64 {
        let mut files = self.manifest.iter().flat_map(|it| &it.files);
        files.find(|it| it.file == file).map_or(0, |it| it.len)
    }

    pub(super) fn let_go(&mut self) {
        self.manifest = None;
        self.came.clear();
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.came.iter().map(|piece| piece.bytes.len()).sum::<usize>()
            + self.ends.capacity() * size_of::<(u64, u64, u64)>()
    }

    fn has(&self, name: &PieceName) -> bool {
        let mut files = self.manifest.iter().flat_map(|it| &it.files);
        let end = name.position.saturating_add(name.len.into());
        let is_it = |it: &ManifestFile| (it.file, it.heading.mark) == (name.file, name.mark);
        let file = files.find(|it| is_it(it));
        (1..=PIECE_MAX).contains(&name.len) && file.is_some_and(|it| end <= it.len)
    }
}

impl<D: Disk> FileLog<D> {
    /// The files of a leader's log as of a batch that all agreed to, with who is a member as of it. They stay on the disk, and the batches behind it in the log, until they are [let go of](Self::let_go_of_manifest), another
    /// manifest is made, or they keep more than [`Options::manifest_bytes`](super::Options::manifest_bytes) from being given back.
    ///
    /// None if the log neither leads nor was given a term to begin, this disk does not have the batch yet, or has it only as a part of something rewritten: then it may
    /// have a later one. So, too, if where it ends has to be looked for: then it is known once the disk has woken the log's owner.
    pub fn manifest(&mut self, point: Point) -> Option<Manifest> {
        let number = point.at.number;
        let is_agreed = number < self.writer.agreed().min(self.writer.synced());
        let leads = match &self.following {
            Some(following) => following.makes(),
            None => !self.writer.has_no_term(),
        };
        let is_here = leads && point.at.term > 0 && self.term_of(number) == Some(point.at.term);
        // Also of files that an earlier process rewrote.
        let rewritten = self.store.segments.all.iter().filter(|it| it.file.generation > 0);
        let reflected = rewritten.map(|it| it.as_of.saturating_sub(1)).max().unwrap_or(0);
        if !is_here || !is_agreed || number < self.giving.sending.reflected.max(reflected) {
            return None;
        }
        let (last, end) = self.end_of(number)?;
        let all = self.store.segments.all.iter().take_while(|it| it.file.segment <= last);
        let files: Vec<_> = all.map(|segment| file_of(segment, (last, end))).collect();
        let is_whole =
            files.last().is_some_and(|it| it.file == FileName { segment: last, generation: 0 });
        if !is_whole {
            return None;
        }
        let manifest = Manifest { point, files };
        self.giving.sending.let_go();
        self.giving.sending.manifest = Some(manifest.clone());
        Some(manifest)
    }

    /// The segment that has a batch, and the byte behind it. None if it is not here as it was written, or has to be read first.
    fn end_of(&mut self, number: u64) -> Option<(u64, u64)> {
        let ends = &self.giving.sending.ends;
        if let Some((_, segment, end)) = ends.iter().rev().find(|(it, ..)| *it == number) {
            return Some((*segment, *end));
        }
        // One of before this term.
        let batch = self.batch(number).ok()?;
        Some((batch.segment, batch.position.saturating_add(batch.len())))
    }

    /// Nobody needs the files of the manifest any more. What holds the batches behind it from now on is
    /// [`hold_batches`](Self::hold_batches).
    pub fn let_go_of_manifest(&mut self) {
        self.giving.sending.let_go();
        self.space.look();
        self.space.check();
    }

    /// A piece of a file of the manifest that is held. It is read, a few at a time: then it is [to come](NoPiece::ToCome), and
    /// is there once the disk has woken the log's owner and the log has [collected](crate::Log::collect).
    pub fn piece(&mut self, name: PieceName) -> Result<PieceCopy, NoPiece> {
        let sending = &mut self.giving.sending;
        if !sending.has(&name) {
            return Err(NoPiece::Gone);
        }
        if let Some(index) = sending.came.iter().position(|it| it.name == name) {
            return sending.came.remove(index).ok_or(NoPiece::Gone);
        }
        if sending.unreadable.take_if(|it| *it == name).is_some() {
            return Err(NoPiece::Unreadable);
        }
        if sending.reads.len() >= PIECES_MAX || sending.reads.values().any(|it| *it == name) {
            return Err(NoPiece::ToCome);
        }
        let pieces = vec![Piece { position: name.position, len: name.len as usize }];
        let op = Op::Read { file: name.file, pieces };
        let token = submit(&mut self.disk, &mut self.next_token, op);
        self.giving.sending.reads.insert(token, name);
        Err(NoPiece::ToCome)
    }

    /// Takes a read of a piece. Gives it back if it was none.
    pub(super) fn piece_read(
        &mut self,
        token: Token,
        result: Result<Bytes, DiskError>,
    ) -> Option<Result<Bytes, DiskError>> {
        let sending = &mut self.giving.sending;
        let Some(name) = sending.reads.remove(&token) else { return Some(result) };
        match result {
            // What nobody takes makes room for what is asked for later.
            Ok(bytes) if sending.has(&name) => {
                let crc = crc32c::crc32c(&bytes);
                sending.came.push_back(PieceCopy { name, bytes, crc });
                if sending.came.len() > PIECES_MAX {
                    sending.came.pop_front();
                }
            }
            Ok(_) => {}
            Err(_) => sending.unreadable = Some(name),
        }
        self.space.look();
        None
    }
}

/// A file of the manifest that ends in this segment, at this byte.
fn file_of(segment: &Segment, (last, end): (u64, u64)) -> ManifestFile {
    let is_last = segment.file.segment == last;
    let len = if is_last { end } else { segment.len };
    ManifestFile { file: segment.file, heading: segment.heading(), len, is_sealed: !is_last }
}
