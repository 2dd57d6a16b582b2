//! A leader's log as files, for members that lack what it has not as batches any more.
//!
//! What members say to each other of it, and the part that is done where the log is: by its member, or in the turn of the shard that it is
//! lent to. A turn looks for a few pieces, which the disk reads meanwhile.

use std::collections::VecDeque;

use leveret_log::FileLog;
use leveret_log::disk::{self, Disk};
use leveret_log::file::{Manifest, NoPiece, PieceCopy, PieceName};

/// Pieces that are looked for in one turn.
const PIECES: usize = 8;

/// What members say to each other of files. Each may be lost, late or doubled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refill {
    /// The sender lacks what its leader has in files only: which are they?
    WantManifest,
    /// These. They stay for a while.
    Manifest(Manifest),
    /// These pieces of them are wanted.
    WantPieces(Vec<PieceName>),
    /// One.
    Piece(PieceCopy),
    /// What was asked for is of files that do not stay any more: to be asked which there are now.
    Gone,
}

/// What is wanted of a leader's log.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    /// The files as of this point, or of a later one, if it is told.
    pub(crate) manifest: Option<disk::Point>,
    pub(crate) pieces: VecDeque<PieceName>,
    /// Nobody needs the files any more.
    pub(crate) lets_go: bool,
}

/// What there is of it.
#[derive(Debug, Default)]
pub(crate) struct Given {
    pub(crate) manifest: Option<Manifest>,
    pub(crate) pieces: Vec<(PieceName, Result<PieceCopy, NoPiece>)>,
}

impl Wanted {
    pub(crate) fn is_empty(&self) -> bool {
        self.manifest.is_none() && self.pieces.is_empty() && !self.lets_go
    }

    /// Adds what came later.
    pub(crate) fn add(&mut self, more: Self) {
        if more.lets_go {
            *self = Self { lets_go: true, ..Self::default() };
        }
        self.manifest = more.manifest.or_else(|| self.manifest.take());
        self.pieces.extend(more.pieces);
    }

    /// Does what can be done now: the rest again when the disk did something, or more is agreed upon.
    pub(crate) fn look<D: Disk>(&mut self, log: &mut FileLog<D>, given: &mut Given) {
        if std::mem::take(&mut self.lets_go) {
            log.let_go_of_manifest();
        }
        if let Some(manifest) = self.manifest.clone().and_then(|point| log.manifest(point)) {
            self.manifest = None;
            given.manifest = Some(manifest);
        }
        for _ in 0..self.pieces.len().min(PIECES) {
            let Some(name) = self.pieces.pop_front() else { break };
            match log.piece(name) {
                Err(NoPiece::ToCome) => self.pieces.push_back(name),
                piece => given.pieces.push((name, piece)),
            }
        }
    }
}

impl Given {
    pub(crate) fn is_empty(&self) -> bool {
        self.manifest.is_none() && self.pieces.is_empty()
    }

    pub(crate) fn add(&mut self, more: Self) {
        self.manifest = more.manifest.or_else(|| self.manifest.take());
        self.pieces.extend(more.pieces);
    }
}
