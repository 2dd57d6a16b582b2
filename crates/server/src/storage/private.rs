//! The data directory is this process's alone: no other one uses it, no other user reads it.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use anyhow::Context as _;
use leveret_config::files::LOCK_NAME;
use rustix::fs::OFlags;

/// What neither the group may do nor others: nobody else writes, and only the group reads.
const NOT_ALLOWED: u32 = 0o027;

/// Keeps a second node out of the data directory, for as long as it is there. The system lets go of it when the
/// process ends, however it ends.
///
/// Two locks, both on what is open, so that no name decides: one on the directory itself, which cannot be removed
/// and made again while somebody works in it, and one on a file in it, which is all that older versions look at.
#[derive(Debug)]
pub(crate) struct DirectoryLock {
    _directory: File,
    _file: File,
}

impl DirectoryLock {
    /// Locks the directory, or says who keeps it.
    pub(crate) fn take(dir: &Path) -> anyhow::Result<Self> {
        let path = dir.join(LOCK_NAME);
        let directory =
            File::open(dir).with_context(|| format!("cannot open {}", dir.display()))?;
        match directory.try_lock() {
            Err(TryLockError::WouldBlock) => return Err(in_use(dir)),
            // Not each file system locks directories; the file is locked all the same.
            Ok(()) | Err(TryLockError::Error(_)) => {}
        }
        // A named pipe in its place is not waited for.
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let file = OpenOptions::new().create(true).append(true).custom_flags(flags).open(&path);
        let file = file.with_context(|| format!("cannot open {}", path.display()))?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _directory: directory, _file: file }),
            Err(TryLockError::WouldBlock) => Err(in_use(dir)),
            Err(TryLockError::Error(error)) => {
                Err(error).with_context(|| format!("cannot lock {}", path.display()))
            }
        }
    }
}

fn in_use(dir: &Path) -> anyhow::Error {
    anyhow::anyhow!(
        "a node is running with the data directory {} already; stop it, or choose another directory with --data-dir",
        dir.display()
    )
}

/// Takes from others what an older version, or who made the directory, allowed them. What is made from now on they
/// may not have: see the umask.
pub(crate) fn close_to_others(dir: &Path) {
    if let Err(error) = close(dir) {
        tracing::warn!(
            dir = %dir.display(),
            %error,
            "other users may be able to read the data directory: its mode should be 0750"
        );
    }
}

fn close(dir: &Path) -> std::io::Result<()> {
    close_one(dir)?;
    for name in [LOCK_NAME, "layout", "clean"] {
        let path = dir.join(name);
        if path.exists() {
            close_one(&path)?;
        }
    }
    let mut dirs = vec![dir.join("names"), dir.join("shards")];
    while let Some(dir) = dirs.pop() {
        close_one(&dir)?;
        for entry in std::fs::read_dir(&dir)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                dirs.push(entry.path());
            } else if kind.is_file() {
                close_one(&entry.path())?;
            }
        }
    }
    Ok(())
}

fn close_one(path: &Path) -> std::io::Result<()> {
    let mut mode = std::fs::metadata(path)?.permissions();
    if mode.mode() & NOT_ALLOWED == 0 {
        return Ok(());
    }
    mode.set_mode(mode.mode() & !NOT_ALLOWED);
    std::fs::set_permissions(path, mode)
}
