//! The file `heard` in the data directory: what is known to be agreed upon, and where the files were.

use std::path::Path;

use anyhow::Context as _;
use leveret_cluster::{FilePlace, Heard};
use leveret_replica::{BatchName, VOTES};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use super::whole;

/// Its name.
pub(super) const HEARD: &str = "heard";

/// Its bytes at most.
const HEARD_MAX: u64 = 1 << 20;

/// What it says, and whether the files of the directory are not those that it says: then they are a copy, or were moved.
pub(super) fn read(dir: &Path) -> anyhow::Result<(Heard, bool)> {
    let path = dir.join(HEARD);
    let bytes = match std::fs::metadata(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Ok((Heard::default(), false));
        }
        Ok(found) if found.len() > HEARD_MAX => Vec::new(),
        _ => std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?,
    };
    match Heard::read(&bytes) {
        Ok(heard) => {
            let is_copy = heard.place.is_some() && heard.place != place(dir);
            Ok((heard, is_copy))
        }
        Err(damaged) => {
            tracing::warn!(from = HEARD, "{damaged}: {}", path.display());
            Ok((Heard::default(), true))
        }
    }
}

/// Where the words are: they are written in place, for as long as the directory is there.
pub(super) fn place(dir: &Path) -> Option<FilePlace> {
    let file = dir.join("words").join(VOTES.to_string());
    let found = statx(CWD, &file, AtFlags::empty(), StatxFlags::INO | StatxFlags::BTIME).ok()?;
    let born = found.stx_btime;
    let has_born = found.stx_mask & StatxFlags::BTIME.bits() != 0;
    let born_ns = u64::try_from(born.tv_sec).unwrap_or(0).saturating_mul(1_000_000_000);
    let born_ns = if has_born { born_ns.saturating_add(born.tv_nsec.into()) } else { 0 };
    Some(FilePlace { inode: found.stx_ino, born_ns })
}

/// Writes it.
pub(super) fn write(
    dir: &Path,
    place: Option<FilePlace>,
    agreed: Vec<BatchName>,
) -> anyhow::Result<()> {
    whole::replace(dir, HEARD, &Heard { place, agreed }.bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A copy has other files; the directory itself may get another name.
    #[test]
    fn a_copy_is_found() {
        let root = tempfile::tempdir().unwrap();
        let (dir, moved, copy) =
            (root.path().join("a"), root.path().join("moved"), root.path().join("copy"));
        std::fs::create_dir_all(dir.join("words")).unwrap();
        std::fs::write(dir.join("words").join(VOTES.to_string()), "a word").unwrap();
        assert_eq!(read(&dir).unwrap(), (Heard::default(), false), "there is none");
        let agreed = vec![BatchName { number: 7, term: 2 }];
        write(&dir, place(&dir), agreed.clone()).unwrap();
        assert!(place(&dir).is_some());
        let heard = Heard { place: place(&dir), agreed };
        assert_eq!(read(&dir).unwrap(), (heard.clone(), false));
        std::fs::rename(&dir, &moved).unwrap();
        assert_eq!(read(&moved).unwrap(), (heard.clone(), false));
        let made = std::process::Command::new("cp").arg("-a").args([&moved, &copy]).status();
        assert!(made.unwrap().success());
        assert_eq!(read(&copy).unwrap(), (heard, true));
        std::fs::write(moved.join(HEARD), "something").unwrap();
        assert_eq!(read(&moved).unwrap(), (Heard::default(), true), "who does not know asks");
    }
}
