//! Giving back space: removing files of which nothing is needed.

use super::FileLog;
use crate::disk::{Disk, DiskError, FileName, Op, Token};

/// What is under way, and whether there may be something to do.
#[derive(Debug, Default)]
pub(super) struct Space {
    may_remove: bool,
    /// Files that the log needs no more, whose reads are awaited.
    doomed: Vec<FileName>,
}

impl Space {
    /// Something was released or sealed: it is worth a look.
    pub(super) fn look(&mut self) {
        self.may_remove = true;
    }

    pub(super) fn disk_bytes(&self) -> u64 {
        0
    }
}

impl<D: Disk> FileLog<D> {
    /// Does the next step of what there is to do.
    pub(super) fn space_step(&mut self) {
        if self.space.may_remove && !self.writer.has_failed() {
            self.remove_dead();
        }
        let mut doomed = std::mem::take(&mut self.space.doomed);
        doomed.retain(|&file| {
            if self.fetch.reads(file) {
                return true;
            }
            super::submit(&mut self.disk, &mut self.next_token, Op::Remove { file });
            false
        });
        self.space.doomed = doomed;
    }

    /// Removes each sealed segment that has no record and no note that is needed.
    ///
    /// Not before the releases that emptied it are as safe as what was appended together with them:
    /// a message that moves from one queue to another is appended and released in one batch, and
    /// must not be gone from both.
    fn remove_dead(&mut self) {
        self.space.may_remove = false;
        let unsafe_from = self.writer.unsafe_from(self.sums.unwritten);
        let segments = &mut self.store.segments;
        loop {
            let mut waits = false;
            let dead = segments.all.iter().position(|segment| {
                let is_dead = segment.is_sealed && segment.live == 0 && !segment.has_notes();
                waits |= is_dead && segment.last_noted >= unsafe_from;
                is_dead && segment.last_noted < unsafe_from
            });
            // What waits is looked at again when the batch is safe.
            self.space.may_remove |= waits;
            let Some(segment) = dead.and_then(|index| segments.all.remove(index)) else { return };
            segment.epochs.iter().for_each(|epoch| segments.retire(*epoch));
            self.fetch.file_gone(segment.file);
            self.space.doomed.push(segment.file);
        }
    }

    pub(super) fn removed(&mut self, _: Token, result: Result<(), DiskError>) {
        // A file that stays does no harm but for its space, which is looked for at the next start.
        let _ = result;
    }
}
