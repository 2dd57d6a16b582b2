//! Records that were found damaged on this disk, and had from another copy of the log.
//!
//! The bytes are the ones that were written, as the index of the batch says; so they are written over the damaged ones, in place: a
//! crash in between leaves what was damaged damaged. Where the index is damaged, too, they stay in memory until they are read.

use bytes::Bytes;
use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::{FileLog, submit};
use crate::Offset;
use crate::disk::{Disk, DiskError, Op, Token};

/// Records on their way to their places.
#[derive(Debug, Default)]
pub(super) struct Mending {
    under_way: HashMap<Token, Offset, FixedState>,
    done: Vec<(Offset, Result<(), DiskError>)>,
}

impl Mending {
    /// A record was written to its place, or could not be.
    pub(super) fn written(&mut self, token: Token, result: Result<(), DiskError>) {
        let at = self.under_way.remove(&token);
        self.done.extend(at.map(|at| (at, result)));
    }
}

/// What became of a damaged record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mended {
    /// It can be read, and is being written to its place.
    OnDisk,
    /// It can be read now. Its place is not known: the next who reads it finds it damaged.
    InMemory,
    /// Nobody needs it, or it is not damaged.
    Needless,
}

/// The bytes are not those of the record, as the log has its length and checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("these are not the bytes of the record at {0}")]
pub struct OtherBytes(pub Offset);

impl<D: Disk> FileLog<D> {
    /// Takes the bytes of a record that was found [damaged](crate::ReadError::Damaged) here, from another copy of this log.
    /// [`each_fetched`](crate::Log::each_fetched) tells that it can be read.
    ///
    /// # Errors
    ///
    /// When they are not its bytes.
    pub fn mend(&mut self, at: Offset, bytes: &Bytes) -> Result<Mended, OtherBytes> {
        if !self.fetch.is_damaged(at) {
            return Ok(Mended::Needless);
        }
        let place = self.fetch.mend(at, bytes, &self.store).map_err(|()| OtherBytes(at))?;
        let Some((file, position)) = place else { return Ok(Mended::InMemory) };
        let op = Op::Mend { file, position, bytes: bytes.clone() };
        let token = submit(&mut self.disk, &mut self.next_token, op);
        self.mending.under_way.insert(token, at);
        Ok(Mended::OnDisk)
    }

    /// What was written to its place since the last call, and what could not be: the next who reads that finds it damaged.
    pub fn take_mended(&mut self) -> Vec<(Offset, Result<(), DiskError>)> {
        std::mem::take(&mut self.mending.done)
    }
}
