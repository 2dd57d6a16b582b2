//! Giving back space: removing files of which nothing is needed, and choosing what to rewrite.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use super::FileLog;
use super::digest::Undigested;
use super::rewrite::Rewrite;
use super::segments::{Digested, Epoch, Segment};
use crate::disk::{Disk, DiskError, FileName, Op, Token};

/// What is under way, and whether there may be something to do.
#[derive(Debug, Default)]
pub(super) struct Space {
    may_remove: bool,
    may_rewrite: bool,
    /// The disk was full when a rewriting wanted room.
    waits_for_room: bool,
    /// Bytes released since it was looked at whether a rewriting pays.
    freed: u64,
    /// Files that the log needs no more, whose reads are awaited, or the removal of another one.
    doomed: Vec<Doomed>,
    /// Those whose removal is under way.
    leaving: Vec<(Token, Doomed)>,
    /// Those that could not be removed.
    stuck: Vec<Doomed>,
    /// Another file was removed since: they may be tried again.
    has_removed: bool,
    /// Segments whose files may be put back by people: they were damaged or missing. What is there of them is not
    /// rewritten, and nothing that is comes to stand for them.
    awaited: BTreeSet<u64>,
    /// The files stay: see [`FileLog::hold_files`].
    is_held: bool,
    /// The highest generation of a rewriting that came to nothing, or of a file that a start could not remove: it may go
    /// at any time.
    pub(super) given_up: u64,
    pub(super) rewrite: Option<Box<Rewrite>>,
    /// A segment may have been sealed that is to have a digest.
    may_digest: bool,
    /// The digest that is being made.
    digesting: Option<(Token, FileName)>,
}

/// A file that is to be removed.
#[derive(Debug)]
struct Doomed {
    file: FileName,
    /// The last segment that it stands for. None if another file does, or if it was not written to its end.
    through: Option<u64>,
    /// While it is there notes on its records are needed: without them those were held again after the next start.
    epochs: Vec<Epoch>,
}

impl Space {
    pub(super) fn awaiting(awaited: BTreeSet<u64>) -> Self {
        Self { awaited, ..Self::default() }
    }

    /// A segment may be dead, or what made it wait is over.
    pub(super) fn look(&mut self) {
        self.may_remove = true;
    }

    /// A segment was sealed.
    pub(super) fn sealed(&mut self) {
        self.may_digest = true;
    }

    /// A rewriting may pay.
    pub(super) fn check(&mut self) {
        self.may_rewrite = true;
    }

    /// A written record was released.
    pub(super) fn freed(&mut self, bytes: u64, segment_bytes: u64) {
        self.freed += bytes + 64;
        if self.freed > segment_bytes / 8 {
            self.freed = 0;
            self.may_rewrite = true;
        }
    }

    pub(super) fn wait_for_room(&mut self) {
        self.waits_for_room = true;
    }

    /// A write found room.
    pub(super) fn found_room(&mut self) {
        self.waits_for_room = false;
    }

    /// A file is not needed, and another stands for it.
    pub(super) fn doom(&mut self, file: FileName) {
        self.doomed.push(Doomed { file, through: None, epochs: Vec::new() });
    }

    /// A start could not remove a file. Its name is not used again. Notes on it may be gone: a start does not look at it.
    pub(super) fn stays(&mut self, file: FileName) {
        self.given_up = self.given_up.max(file.generation);
        self.stuck.push(Doomed { file, through: Some(file.segment), epochs: Vec::new() });
    }

    /// A rewriting came to nothing, and has left this file.
    pub(super) fn give_up(&mut self, file: FileName) {
        self.given_up = self.given_up.max(file.generation);
        self.doom(file);
    }

    /// Files that are not in the log any more, and still there.
    pub(super) fn going(&self) -> impl Iterator<Item = Epoch> {
        let leaving = self.leaving.iter().map(|(_, it)| it);
        let doomed = self.doomed.iter().chain(leaving).flat_map(|it| &it.epochs);
        doomed.copied().chain(self.stuck())
    }

    /// The highest generation of files of these segments that the log does not need, and that are still there: what is made of
    /// those around them stands for them, too, and is newer.
    pub(super) fn newest_there(&self, segments: RangeInclusive<u64>) -> u64 {
        let files = self.files_there().filter(|file| segments.contains(&file.segment));
        files.map(|file| file.generation).max().unwrap_or(0)
    }

    fn files_there(&self) -> impl Iterator<Item = FileName> {
        let leaving = self.leaving.iter().map(|(_, it)| it);
        self.doomed.iter().chain(leaving).chain(&self.stuck).map(|it| it.file)
    }

    /// Whether a file that this one stands for is still there, as it is being read or removed, or cannot be: a start that found
    /// that one alone would hold its records again, since notes on them are gone. The list says of a file that could not be
    /// removed that it is going, so that no start reads it; but lists get lost, too.
    fn is_needed(&self, newer: &Doomed) -> bool {
        let Some(through) = newer.through.filter(|_| newer.file.generation > 0) else {
            return false;
        };
        self.files_there().any(|file| {
            let is_one = (newer.file.segment..=through).contains(&file.segment);
            is_one && file.generation < newer.file.generation
        })
    }

    /// Those of them that stay there.
    pub(super) fn stuck(&self) -> impl Iterator<Item = Epoch> {
        self.stuck.iter().flat_map(|it| &it.epochs).copied()
    }

    /// Whether files are being written or removed.
    pub(super) fn is_busy(&self) -> bool {
        self.rewrite.as_ref().is_some_and(|work| work.is_waiting()) || !self.leaving.is_empty()
    }

    pub(super) fn is_rewriting(&self) -> bool {
        self.rewrite.is_some()
    }

    pub(super) fn disk_bytes(&self) -> u64 {
        self.rewrite.as_ref().map_or(0, |work| work.disk_bytes())
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.rewrite.as_ref().map_or(0, |work| work.held_bytes())
    }
}

impl<D: Disk> FileLog<D> {
    /// From now on no file is removed or rewritten, until [`reclaim`](Self::reclaim).
    pub fn hold_files(&mut self) {
        self.space.is_held = true;
    }

    /// Gives back what can be, also what is dead since the log was opened: records that were not to outlive the
    /// last process. Nothing else would look at those before something is written.
    pub fn reclaim(&mut self) {
        self.space.is_held = false;
        self.space.look();
        self.space.sealed();
        self.space.check();
        self.space_step();
    }

    /// The files that the next process is to find, and how long each is at least. To be called when everything is
    /// on the disk and no more will come: from then on no file is removed or rewritten.
    pub fn left(&mut self) -> impl Iterator<Item = (FileName, u64)> {
        // Nobody waits for a write any more.
        while self.remove_next_doomed() {}
        self.hold_files();
        self.store.segments.all.iter().map(|segment| (segment.file, segment.written))
    }

    /// Does the next steps of what there is to do.
    pub(super) fn space_step(&mut self) {
        // What a log has without a term is not known to be agreed to. A follower knows what is.
        let is_unsure = self.writer.has_no_term() && self.following.is_none();
        let is_held = self.space.is_held || self.incoming.is_some();
        if self.writer.has_failed() || is_held || is_unsure {
            return;
        }
        if self.space.may_remove {
            self.remove_dead();
        }
        self.remove_doomed();
        // What is being removed lets others be dead, which is cheaper.
        let may_rewrite =
            self.space.may_rewrite && !self.space.waits_for_room && self.space.leaving.is_empty();
        if self.space.rewrite.is_none() && may_rewrite {
            self.space.may_rewrite = false;
            let mut wants_point = false;
            if let Some(range) = self.worth_rewriting(&mut wants_point) {
                self.begin_rewrite(range);
            }
            if wants_point {
                self.point.want();
            }
        }
        self.move_point();
        self.step_rewrite();
        self.remove_doomed();
        self.digest_next();
    }

    /// Has the digest of a segment made, one at a time: not while its end is being written.
    fn digest_next(&mut self) {
        let may = self.options.digests && self.space.digesting.is_none();
        if !may || !std::mem::take(&mut self.space.may_digest) {
            return;
        }
        let Some(segment) = self.store.segments.undigested() else { return };
        let (file, len) = (segment.file, segment.len);
        let next = self.store.segments.all.iter().find(|it| it.file.segment > segment.through);
        // What may be cut off has none: a digest is of a file that never changes.
        let end = self.writer.sequence();
        let until = next.map_or(end, |next| next.as_of);
        // With terms another next batch may have the place of what seals the file.
        let until = until + u64::from(segment.framing.has_terms);
        if self.writer.is_written(file) && until <= self.writer.agreed() {
            let token =
                super::submit(&mut self.disk, &mut self.next_token, Op::Digest { file, len });
            self.space.digesting = Some((token, file));
        } else {
            self.space.may_digest = true;
        }
    }

    /// The digest of a segment was made. One that cannot be made is not tried again: the next start reads the segment.
    pub(super) fn digested(&mut self, token: Token, result: &Result<(), Undigested>) {
        let Some((_, file)) = self.space.digesting.take_if(|(it, _)| *it == token) else { return };
        self.space.may_digest = true;
        let mut all = self.store.segments.all.iter_mut();
        if let Some(segment) = all.find(|segment| segment.file == file) {
            segment.digest = Digested::Done;
            // Whoever reads its records is told where it is damaged; so is the next start.
            segment.is_damaged |= matches!(result, Err(Undigested::Damaged(_)));
        }
    }

    /// Has files removed one at a time: a removal takes as long as some syncs, and whoever waits for a write is behind one
    /// of them at most. Those that could not be removed are tried again after the last of others that could.
    fn remove_doomed(&mut self) {
        self.bound_manifest();
        if !self.space.leaving.is_empty() || self.remove_next_doomed() {
            return;
        }
        if std::mem::take(&mut self.space.has_removed) && !self.space.stuck.is_empty() {
            let stuck = std::mem::take(&mut self.space.stuck);
            self.space.doomed.extend(stuck);
            self.remove_next_doomed();
        }
    }

    /// Files of a manifest that are needed for nothing else are kept for it, as long as they are not too much. A full disk keeps
    /// none.
    fn bound_manifest(&mut self) {
        let Self { space, giving, writer, options, .. } = self;
        let kept: u64 = space.doomed.iter().map(|it| giving.sending.len_of(it.file)).sum();
        if kept > options.manifest_bytes || kept > 0 && writer.is_full() {
            giving.sending.let_go();
        }
    }

    /// Has the first file removed that may be. False if there is none.
    fn remove_next_doomed(&mut self) -> bool {
        let Self { space, fetch, writer, giving, .. } = self;
        let mut may_go = |it: &Doomed| {
            let is_read = fetch.reads(it.file) || giving.needs(it.file);
            !is_read && writer.leaves(it.file) && !space.is_needed(it)
        };
        let Some(index) = space.doomed.iter().position(&mut may_go) else { return false };
        let doomed = space.doomed.remove(index);
        let op = Op::Remove { file: doomed.file, next_len: self.segment_len() };
        let token = super::submit(&mut self.disk, &mut self.next_token, op);
        self.space.leaving.push((token, doomed));
        true
    }

    /// The removal of a file has completed. One that stays takes room until it can be removed, by this process or a later one,
    /// and what it needs stays with it: notes on it, and the file that stands for it.
    pub(super) fn removed(&mut self, token: Token, result: &Result<(), DiskError>) {
        let leaving = &mut self.space.leaving;
        let Some(index) = leaving.iter().position(|(it, _)| *it == token) else { return };
        let (_, doomed) = leaving.swap_remove(index);
        if result.is_ok() {
            self.space.has_removed = true;
            for epoch in doomed.epochs {
                self.store.segments.retire(epoch);
                if let Some(work) = &mut self.space.rewrite {
                    work.retire(epoch);
                }
            }
            self.space.look();
        } else {
            self.space.stuck.push(doomed);
        }
    }

    /// Removes each sealed segment that has no record and no note that is needed.
    ///
    /// Not before the releases that emptied it are as safe as what was appended together with them:
    /// a message that moves from one queue to another is appended and released in one batch, and
    /// must not be gone from both.
    ///
    /// The newest one stays until the next has something: a start learns from it where the log ends. Unless the
    /// next waits for its room.
    fn remove_dead(&mut self) {
        self.space.may_remove = false;
        let Self { store, writer, fetch, giving, point, .. } = self;
        let held_from = giving.held_from();
        let unsafe_from = writer.unsafe_from(self.sums.unwritten);
        let segments = &mut store.segments;
        loop {
            let newest = segments.all.iter().rfind(|segment| segment.written > 0);
            let newest = newest.map(|segment| segment.file);
            let mut waits = false;
            let dead = segments.all.iter().position(|segment| {
                if !segment.is_dead() || segment.is_rewriting || segment.next_batch > held_from {
                    return false;
                }
                let file = segment.file;
                let stays = newest == Some(file) && (!writer.is_full() || fetch.reads(file));
                let may_go = segment.last_noted < unsafe_from && !stays && writer.may_leave(file);
                waits |= !may_go;
                let is_below = point.covers(segment);
                if may_go && !is_below {
                    point.want();
                }
                may_go && is_below
            });
            // What waits is looked at again when the batch is safe.
            self.space.may_remove |= waits;
            let Some(segment) = dead.and_then(|index| segments.remove(index)) else { return };
            fetch.file_gone(segment.file);
            // A note that nobody needed any more was in no batch.
            giving.sending.reflect(segment.last_noted.min(writer.sequence().saturating_sub(1)));
            let (file, through) = (segment.file, Some(segment.through));
            self.space.doomed.push(Doomed { file, through, epochs: segment.epochs });
        }
    }

    /// Segments whose rewriting gives back the most for what it costs, if files are much larger than
    /// what is held: the one with the smallest useful share, and neighbours that are small. There may be more above the point.
    fn worth_rewriting(&self, wants_point: &mut bool) -> Option<RangeInclusive<usize>> {
        let all = &self.store.segments.all;
        let segment_len = self.segment_len();
        let limit = self.sums.live_bytes / 10 * 13 + 2 * self.options.segment_bytes;
        if self.store.segments.disk_bytes() <= limit {
            return None;
        }
        // What is dead goes by itself as soon as that is safe.
        let is_awaited =
            |first: u64, last: u64| self.space.awaited.range(first..=last).next().is_some();
        let held_from = self.giving.held_from();
        let can_above = |it: &&Segment| {
            let is_whole = it.is_sealed && !it.is_damaged && !it.is_dead();
            // What a follower does not know the holders of cannot be copied.
            let is_whole = is_whole && it.next_batch <= held_from && it.lost == 0;
            // A rewriting has no notes on what is not in the log any more.
            is_whole
                && !is_awaited(it.file.segment, it.through)
                && !it.has_notes_on(self.space.going())
        };
        let share = |segment: &Segment| segment.useful_bytes() * 1000 / segment.len.max(1);
        let is_above = |it: &Segment| !self.point.covers(it) && share(it) <= 800;
        *wants_point = all.iter().any(|it| is_above(it) && can_above(&it));
        let can = |it: &&Segment| self.point.covers(it) && can_above(it);
        let victim = (0..all.len()).filter(|&index| can(&&all[index]));
        let victim = victim.min_by_key(|&index| share(&all[index]))?;
        if share(&all[victim]) > 800 {
            return None;
        }
        let (mut first, mut last) = (victim, victim);
        let mut total = all[victim].useful_bytes();
        // Like with like, so that a record is copied a few times only, however small the pieces.
        let mut joins = |segment: &Segment| {
            let is_thin = share(segment) < 500;
            let is_small = segment.len < segment_len / 2 && segment.len <= 2 * total;
            let fits = total + segment.useful_bytes() <= segment_len;
            let joins = can(&segment) && fits && (is_thin || is_small);
            total += if joins { segment.useful_bytes() } else { 0 };
            joins
        };
        // Nor over the place of one that may come back.
        let is_free = |left: usize| !is_awaited(all[left].through, all[left + 1].file.segment);
        while let Some(left) =
            first.checked_sub(1).filter(|&left| is_free(left) && joins(&all[left]))
        {
            first = left;
        }
        while last + 1 < all.len() && is_free(last) && joins(&all[last + 1]) {
            last += 1;
        }
        Some(first..=last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What another file stands for, or what was not written to its end, would take room for nothing. And of the latter a start
    /// would say that it is damaged, once what it was to be made from is gone.
    #[test]
    fn only_what_stands_for_a_file_stays_with_it() {
        let file = |generation| FileName { segment: 3, generation };
        let mut space = Space::default();
        space.stays(file(0));
        space.doom(file(1));
        space.give_up(file(2));
        assert!(!space.doomed.iter().any(|it| space.is_needed(it)));
        let through = Some(4);
        let last = Doomed { file: file(3), through, epochs: Vec::new() };
        assert!(space.is_needed(&last));
    }
}
