//! Small files of the data directory that are written whole or not at all: `cluster` and `heard`.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use anyhow::Context as _;

use crate::disk::sync_dir;

/// What the next version of a file may be longer by.
const LONGER: usize = 256;

/// A file in the place of the one of before. Each write leaves room for the next one, in `NAME.new`: a node starts, and is one that follows
/// again, on a full disk, too.
pub(super) fn replace(dir: &Path, name: &str, bytes: &[u8]) -> anyhow::Result<()> {
    let (path, new) = (dir.join(name), dir.join(format!("{name}.new")));
    let open = || OpenOptions::new().create(true).truncate(false).write(true).open(&new);
    let write = || {
        let file = open()?;
        file.write_all_at(bytes, 0)?;
        file.set_len(bytes.len() as u64)?;
        file.sync_all()?;
        std::fs::rename(&new, &path)?;
        sync_dir(dir)
    };
    write().with_context(|| format!("cannot write {}", path.display()))?;
    let _ = open().and_then(|file| file.write_all_at(&vec![0; bytes.len() + LONGER], 0));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    /// A node whose disk is full gives way, and has to begin anew for that.
    #[test]
    fn the_room_of_the_next_version_is_there_before() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["cluster", "heard"] {
            let found = |name: &str| std::fs::metadata(dir.path().join(name)).unwrap();
            let (path, new) = (dir.path().join(name), format!("{name}.new"));
            replace(dir.path(), name, b"one").unwrap();
            assert!(found(&new).blocks() > 0);
            let ino = found(&new).ino();
            replace(dir.path(), name, b"number two").unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), b"number two");
            assert_eq!(found(name).ino(), ino, "of that room");
            replace(dir.path(), name, b"3").unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), b"3");
        }
    }
}
