//! Free space on the file system of the data directory: what the node knows of it, and who learns that it is short.
//!
//! A batch that was handed to the disk and finds no room is neither stored nor not stored, and its clients get no answer
//! until there is room. So a log refuses a record when it is appended, if it may find no room
//! ([`Disk::room`](leveret_log::disk::Disk::room)). For that the node has to know the free space. It asks the
//! system after writes, more often the less there is, and by [`watch_disk`](crate::alarms::watch_disk), because
//! other programs write there, too. In between, the bytes that were written are subtracted.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

/// Room that no message gets: acks and the names of what is deleted need it, which give room. Of it, changes of names leave
/// some to deletions.
pub const KEPT_BYTES: u64 = 1 << 20;

/// The file of the data directory that keeps room, of a node of a cluster.
const RESERVE: &str = "reserve";

/// Its bytes, at most; a part of 32 of the file system, if that is less.
const RESERVE_BYTES: u64 = 8 << 20;

/// What is taken of it besides what is to be written: for the file system.
const RESERVE_PIECE: u64 = 128 << 10;

/// So many bytes are written before the system is asked again, where there is plenty.
const LOOK_BYTES: u64 = 4 << 20;
/// Plenty.
const PLENTY_BYTES: u64 = 256 << 20;

/// How fast a disk may fill, at least: RabbitMQ's figure, in bytes per ms.
const FILL_RATE: u64 = 250_000;
/// How often free space is asked for.
const OFTEN: Duration = Duration::from_millis(20);
const SELDOM: Duration = Duration::from_secs(10);
/// The same while it is below the limit: until there is room again.
const SHORT: Duration = Duration::from_millis(100);

/// What is known of a file system.
#[derive(Debug)]
pub struct Room {
    dir: PathBuf,
    /// Free bytes, without what was written since they were told; `u64::MAX` before.
    free: AtomicU64,
    /// Bytes written since.
    written: AtomicU64,
    /// In a cluster: bytes that a majority of the nodes has room for, without what was written since that was told; `u64::MAX` if
    /// nothing bounds it.
    of_majority: AtomicU64,
    /// What is left for messages: looked at for each record, so it is worked out before.
    left: AtomicU64,
    /// The last write found none.
    is_refused: AtomicBool,
    /// Of a node of a cluster: its reserve is not whole.
    wants_reserve: AtomicBool,
    /// Under so many free bytes somebody wants to be told.
    limit: AtomicU64,
    changed: Notify,
}

impl Room {
    /// Of the file system that this directory is on.
    pub fn of(dir: &Path) -> Self {
        let room = Self {
            dir: dir.to_owned(),
            free: AtomicU64::new(u64::MAX),
            written: AtomicU64::new(0),
            of_majority: AtomicU64::new(u64::MAX),
            left: AtomicU64::new(u64::MAX),
            is_refused: AtomicBool::new(false),
            wants_reserve: AtomicBool::new(true),
            limit: AtomicU64::new(0),
            changed: Notify::new(),
        };
        // What the system does not tell is told by writes that fail.
        let _ = room.look();
        room
    }

    /// Works out what is left for messages.
    fn settle(&self) {
        self.left.store(self.free().saturating_sub(KEPT_BYTES), Ordering::Relaxed);
    }

    /// Asks the system.
    pub fn look(&self) -> std::io::Result<u64> {
        let free = free_bytes(&self.dir)?;
        self.written.store(0, Ordering::Relaxed);
        let before = self.free.swap(free, Ordering::Relaxed);
        self.settle();
        let limit = self.limit();
        if free < limit && before >= limit {
            self.changed.notify_one();
        }
        Ok(free)
    }

    /// A write found room for all of its bytes.
    pub(crate) fn wrote(&self, bytes: u64) {
        self.is_refused.store(false, Ordering::Relaxed);
        let written = self.written.fetch_add(bytes, Ordering::Relaxed) + bytes;
        // The others write it, too.
        let less = |room| (room != u64::MAX).then(|| u64::saturating_sub(room, bytes));
        let _ = self.of_majority.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        let free = self.free.load(Ordering::Relaxed);
        if written >= LOOK_BYTES || free < PLENTY_BYTES {
            // Without an answer the last one stands, and what was written since.
            let _ = self.look();
        } else {
            self.settle();
        }
    }

    /// A write found none.
    pub(crate) fn refused(&self) {
        if !self.is_refused.swap(true, Ordering::Relaxed) {
            self.changed.notify_one();
        }
    }

    /// Whether the last write found none.
    pub fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::Relaxed)
    }

    /// Free bytes, as far as that is known, of this file system.
    pub(crate) fn free_here(&self) -> u64 {
        let written = self.written.load(Ordering::Relaxed);
        self.free.load(Ordering::Relaxed).saturating_sub(written)
    }

    /// Free bytes, as far as that is known: in a cluster no more than a majority of the nodes has.
    pub(crate) fn free(&self) -> u64 {
        self.free_here().min(self.of_majority())
    }

    /// What a majority of the nodes has room for.
    pub(crate) fn of_majority(&self) -> u64 {
        self.of_majority.load(Ordering::Relaxed)
    }

    /// A majority of the nodes was told to have room for so many bytes; `u64::MAX` if nothing bounds it.
    pub(crate) fn set_of_majority(&self, bytes: u64) {
        let before = self.of_majority.swap(bytes, Ordering::Relaxed);
        self.settle();
        let limit = self.limit();
        if (before < limit) != (bytes < limit) {
            self.changed.notify_one();
        }
    }

    /// What a log may have waiting to be written. Each of several logs sees all of it: what is refused for want of
    /// room is so little that the alarm has come before.
    #[inline]
    pub(crate) fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }

    /// Whether nothing new is to be written.
    pub(crate) fn is_short(&self) -> bool {
        self.free() < 2 * KEPT_BYTES
    }

    /// Whether so many bytes of what nobody waits for may be written: there is as much as anybody wants without them.
    pub(crate) fn has_spare(&self, bytes: u64) -> bool {
        let limit = self.limit().max(2 * KEPT_BYTES);
        self.free_here() >= limit.saturating_add(bytes)
    }

    /// Whether room that is kept for later is wanted now: nothing new is to be written, or somebody is told that there is little.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.has_spare(0)
    }

    /// Whether the [reserve](Self::fill_reserve) is to be filled, and there is room for it.
    pub(crate) fn wants_reserve(&self) -> bool {
        self.wants_reserve.load(Ordering::Relaxed) && self.has_spare(RESERVE_BYTES)
    }

    /// Makes the file whole that keeps room on the disk of a node of a cluster, or makes it. What gives room (acks) has to be agreed
    /// upon, which takes a little room on most disks: this is for disks that others have filled to the last byte.
    ///
    /// # Errors
    ///
    /// Those of the operating system.
    pub(crate) fn fill_reserve(&self) -> std::io::Result<()> {
        let stat = rustix::fs::statvfs(&self.dir)?;
        let size = RESERVE_BYTES.min(stat.f_blocks.saturating_mul(stat.f_frsize) / 32);
        let mut file = self.open_reserve(true)?;
        // A hole keeps nothing.
        file.set_len(0)?;
        let zeros = vec![0; 64 << 10];
        let mut left = size;
        while left > 0 {
            let count = left.min(zeros.len() as u64);
            file.write_all(&zeros[..count as usize])?;
            left -= count;
        }
        file.sync_all()?;
        self.wants_reserve.store(false, Ordering::Relaxed);
        let _ = self.look();
        Ok(())
    }

    /// Gives room for a write of so many bytes that found none, from the reserve. False if there is none left.
    pub(crate) fn give_reserve(&self, bytes: u64) -> bool {
        let give = || {
            let file = self.open_reserve(false)?;
            let len = file.metadata()?.len();
            file.set_len(len.saturating_sub(bytes.saturating_add(RESERVE_PIECE)))?;
            Ok::<_, std::io::Error>(len > 0)
        };
        let is_given = give().unwrap_or(false);
        if is_given {
            self.wants_reserve.store(true, Ordering::Relaxed);
        }
        is_given
    }

    fn open_reserve(&self, create: bool) -> std::io::Result<File> {
        let path = self.dir.join(RESERVE);
        OpenOptions::new().write(true).create(create).truncate(false).open(path)
    }

    /// Under so many free bytes somebody wants to be told.
    pub(crate) fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Another limit.
    pub(crate) fn set_limit(&self, limit: u64) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Waits until the system is to be asked again, `limit` being what somebody cares for. A write that goes below it, or the
    /// first that finds no room, ends the wait at once: a quick disk takes megabytes in a few milliseconds.
    pub(crate) async fn pause(&self, limit: u64) {
        self.set_limit(limit);
        // An end of the time without news is as good as news.
        let _ = tokio::time::timeout(pause(self.free(), limit), self.changed.notified()).await;
    }
}

/// Half the time in which the disk could fill up to its limit.
fn pause(free: u64, limit: u64) -> Duration {
    // What logs keep is a limit, too.
    let limit = limit.max(2 * KEPT_BYTES);
    if free < limit {
        return SHORT;
    }
    Duration::from_millis((free - limit) / 2 / FILL_RATE).clamp(OFTEN, SELDOM)
}

/// Bytes that this user may still write to the file system of `dir`.
pub fn free_bytes(dir: &Path) -> std::io::Result<u64> {
    let stat = rustix::fs::statvfs(dir)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn how_often() {
        #[track_caller]
        fn check(free_mb: u64, limit_mb: u64, want_ms: u64) {
            let got = pause(free_mb * 1_000_000, limit_mb * 1_000_000);
            assert_eq!(got, Duration::from_millis(want_ms), "{free_mb} MB, limit {limit_mb} MB");
        }
        check(1_000_000, 50, 10_000);
        check(5_050,     50, 10_000);
        check(1_050,     50,  2_000);
        check(80,        50,     60);
        check(51,        50,     20);
        check(49,        50,    100);
        check(0,         50,    100);
        check(1,          0,    100);
    }

    /// Once it is gone it is made whole when there is room again.
    #[test]
    fn a_reserve_is_given_and_made_whole() {
        let dir = tempfile::tempdir().expect("a directory");
        let room = Room::of(dir.path());
        assert!(!room.give_reserve(1), "there is none");
        assert!(room.wants_reserve());
        room.fill_reserve().expect("there is room");
        let len = || std::fs::metadata(dir.path().join(RESERVE)).expect("a file").len();
        let whole = len();
        assert!(whole > 0 && whole <= RESERVE_BYTES && !room.wants_reserve());
        assert!(room.give_reserve(100) && room.wants_reserve());
        assert_eq!(len(), whole - 100 - RESERVE_PIECE);
        assert!(room.give_reserve(u64::MAX));
        assert!(!room.give_reserve(1), "all of it is given");
        room.fill_reserve().expect("there is room");
        assert_eq!(len(), whole);
    }

    #[test]
    fn what_is_written_is_taken_off() {
        let room = Room::of(Path::new("/"));
        assert!(room.free() > 0 && room.free() < u64::MAX);
        room.free.store(PLENTY_BYTES + 100, Ordering::Relaxed);
        room.wrote(100);
        assert_eq!(room.free(), PLENTY_BYTES);
        assert_eq!(room.left(), PLENTY_BYTES - KEPT_BYTES);
        assert!(!room.is_short());
        room.refused();
        assert!(room.is_refused());
        room.wrote(1);
        assert!(!room.is_refused());
        room.set_of_majority(KEPT_BYTES + 100);
        assert_eq!((room.left(), room.free_here()), (100, PLENTY_BYTES - 1), "others have less");
        assert!(room.is_short());
        room.wrote(60);
        assert_eq!(room.left(), 40, "they write it, too");
        room.set_of_majority(u64::MAX);
        room.free.store(PLENTY_BYTES + 160, Ordering::Relaxed);
        room.settle();
        room.set_limit(PLENTY_BYTES - 10);
        assert!(room.has_spare(9) && !room.has_spare(10));
        room.free.store(KEPT_BYTES / 2, Ordering::Relaxed);
        room.settle();
        assert_eq!((room.left(), room.is_short()), (0, true));
    }
}
