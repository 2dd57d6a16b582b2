//! Messages of queues that the names do not have.
//!
//! Usually those are queues that were deleted just before a crash, and their messages are let go. But names that lost some
//! do not have queues that were never deleted: then the messages are kept, in no queue, for as long as the file
//! `orphans.kept` is there, which is written before anything else is changed, and goes when there are none, or when an
//! operator has it removed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use leveret_broker::shard::Restored;
use leveret_config::{Config, files};
use leveret_topology::QueueId;

use super::private::DirectoryLock;
use crate::disk::sync_dir;

const NAME: &str = "orphans.kept";

const TEXT: &str = "The names of queues may not be whole. Messages of queues that they do not have are kept, in no queue.\n\
                    To let go of them, stop the broker and run `leveret drop-orphans`.\n";

/// What becomes of messages of queues that are not known.
#[derive(Clone, Debug)]
pub(crate) struct Orphans {
    /// The file that says that they are kept.
    path: PathBuf,
    are_kept: bool,
}

/// From now on they are kept.
pub(super) fn keep(dir: &Path) -> std::io::Result<()> {
    let (path, new) = (dir.join(NAME), dir.join("orphans.new"));
    if path.exists() {
        return Ok(());
    }
    std::fs::write(&new, TEXT)?;
    std::fs::File::open(&new)?.sync_all()?;
    std::fs::rename(new, path)?;
    sync_dir(dir)
}

impl Orphans {
    pub(crate) fn of(dir: &Path) -> Self {
        let path = dir.join(NAME);
        let are_kept = path.exists();
        Self { path, are_kept }
    }

    /// Whether they are not let go.
    pub(crate) fn are_kept(&self) -> bool {
        self.are_kept
    }

    /// Says which were found, if they are kept. Without any there is nothing to keep from now on.
    pub(crate) fn tell(&self, found: &Restored) {
        if !self.are_kept {
            return;
        }
        if found.orphans + found.undone > 0 {
            tracing::error!(
                messages = found.orphans,
                of_unfinished_transactions = found.undone,
                queues = ids(&found.orphaned),
                "messages are of queues that are not known, as the names lost some: they are kept, in no queue. To get them \
                 back, stop the broker and restore names and messages from one copy; to let go of them, stop it and run \
                 `leveret drop-orphans`"
            );
            return;
        }
        let removed = std::fs::remove_file(&self.path);
        if let Err(error) = removed.and_then(|()| self.path.parent().map_or(Ok(()), sync_dir)) {
            tracing::warn!(file = %self.path.display(), %error, "a file that is not needed cannot be removed");
        }
    }
}

/// The first of them, as text.
fn ids(queues: &BTreeSet<QueueId>) -> String {
    const SHOWN: usize = 20;
    let mut shown: Vec<_> = queues.iter().take(SHOWN).map(|id| id.get().to_string()).collect();
    if queues.len() > SHOWN {
        shown.push("...".to_owned());
    }
    shown.join(", ")
}

/// Has the next start let go of messages of queues that are not known. False if none are kept. No node may be running.
pub fn drop_orphans(config: &Config) -> anyhow::Result<bool> {
    let dir = files::data_dir(config);
    let _lock = DirectoryLock::take(&dir)?;
    let path = dir.join(NAME);
    match std::fs::remove_file(&path).and_then(|()| sync_dir(&dir)) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).with_context(|| format!("cannot remove {}", path.display())),
    }
}
