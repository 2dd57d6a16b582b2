//! A small disk of a node's own, in memory, that can be filled.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context as _;

use crate::steps::succeed;

/// What such disks are called in the table of mounts, so that those which stayed behind are found.
pub(super) const NAME: &str = "leveret-cluster-disk";
/// Lengths of what a disk is filled with, until none of them fits any more.
const CHUNKS: [usize; 3] = [1 << 20, 64 << 10, 4 << 10];

/// A disk, while this is there.
pub(super) struct Disk {
    dir: PathBuf,
}

impl Disk {
    /// Whether this user of this machine can make one.
    pub(super) fn is_possible() -> bool {
        let dir = crate::root().join("target/cluster/disk");
        fs::create_dir_all(&dir).is_ok() && Self::make(&dir, 1).is_ok()
    }

    /// One of so many MiB at this place.
    pub(super) fn make(dir: &Path, mib: u64) -> anyhow::Result<Self> {
        let size = format!("size={mib}m,mode=755");
        let mut mount = Command::new("mount");
        succeed(mount.args(["-t", "tmpfs", "-o", &size, NAME]).arg(dir))
            .context("a disk for a node")?;
        Ok(Self { dir: dir.to_owned() })
    }

    fn ballast(&self) -> PathBuf {
        self.dir.join("ballast")
    }

    /// Leaves no room on it; what was made room for since the last time is taken, too.
    pub(super) fn fill(&self) -> anyhow::Result<()> {
        let mut file = OpenOptions::new().create(true).append(true).open(self.ballast())?;
        for length in CHUNKS {
            let chunk = vec![0; length];
            loop {
                match file.write_all(&chunk) {
                    Ok(()) => {}
                    Err(error) if error.kind() == ErrorKind::StorageFull => break,
                    Err(error) => return Err(error).context("filling a disk"),
                }
            }
        }
        Ok(())
    }

    /// Gives the room back.
    pub(super) fn empty(&self) -> anyhow::Result<()> {
        fs::remove_file(self.ballast()).context("emptying a disk")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let mut unmount = Command::new("umount");
        unmount.arg("-l").arg(&self.dir).stdout(Stdio::null()).stderr(Stdio::null());
        let _ = unmount.status();
    }
}
