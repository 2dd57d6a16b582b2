//! What a process that ends in good order leaves word of, and what the next one finds of it.
//!
//! ```text
//!   shards/0/0000000000000003.0.seg 1158442
//!   shards/0 seen-below=80000
//!   names/0000000000000000.0.seg 1565
//! ```
//!
//! A log alone cannot tell a file that is gone from one that was not needed any more, nor one that was cut short
//! by a bad copy from one whose last write was interrupted. After a crash nobody can; after a stop in good order
//! nothing was interrupted, and the list says what there was. A list of an older version is empty.
//!
//! Records below `seen-below` were there at a start after a crash: they may have been delivered, though no mark
//! says so. A list that is damaged says so of all.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use leveret_config::DamagedFiles;
use leveret_log::Offset;
use leveret_log::disk::FileName;

use crate::disk::sync_dir;

/// The file that says that the last process left in good order, and what.
const CLEAN: &str = "clean";

const SEEN_BELOW: &str = "seen-below=";

/// The files of the logs, and how long each is at least.
#[derive(Debug)]
pub(crate) struct Left {
    pub names: Vec<(FileName, u64)>,
    /// By shard.
    pub shards: Vec<Vec<(FileName, u64)>>,
    /// By shard: records below may have been delivered.
    pub seen_below: Vec<Offset>,
}

/// A file that is not what it was left as.
#[derive(Debug)]
pub(super) struct Lost {
    pub path: PathBuf,
    is_names: bool,
    had_bytes: u64,
    /// None if there is no such file.
    has_bytes: Option<u64>,
}

/// Everything is on disk: says so for the next start.
pub(crate) fn leave_clean(dir: &Path, left: &Left) -> std::io::Result<()> {
    let new = dir.join("clean.new");
    let mut file = std::fs::File::create(&new)?;
    let shards = left.shards.iter().enumerate();
    let logs = shards.map(|(index, files)| (format!("shards/{index}"), files));
    for (log, files) in logs.chain([("names".to_owned(), &left.names)]) {
        for (name, len) in files {
            writeln!(file, "{log}/{name} {len}")?;
        }
    }
    for (index, seen_below) in left.seen_below.iter().enumerate() {
        writeln!(file, "shards/{index} {SEEN_BELOW}{seen_below}")?;
    }
    file.sync_all()?;
    std::fs::rename(&new, dir.join(CLEAN))?;
    sync_dir(dir)
}

/// This process has not left in good order yet. To be called as late as can be, before anything is
/// delivered: a start that was refused leaves the directory as it was.
pub(crate) fn forget_clean(dir: &Path) -> anyhow::Result<()> {
    let clean = dir.join(CLEAN);
    match std::fs::remove_file(&clean).and_then(|()| sync_dir(dir)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", clean.display()))
        }
        _ => Ok(()),
    }
}

/// Below which records of each of so many shards may have been delivered, whatever their marks say: all of them, if
/// the last process did not leave in good order.
pub(super) fn seen_below(dir: &Path, shards: usize) -> Vec<Offset> {
    let text = std::fs::read_to_string(dir.join(CLEAN));
    text.ok()
        .and_then(|text| parse_seen(&text, shards))
        .unwrap_or_else(|| vec![Offset::MAX; shards])
}

/// None if the list has a line that nobody wrote.
fn parse_seen(text: &str, shards: usize) -> Option<Vec<Offset>> {
    // As an older version had it: its marks tell all.
    let mut all = vec![Offset::ZERO; shards];
    for line in text.lines() {
        let (name, what) = line.rsplit_once(' ')?;
        let Some(number) = what.strip_prefix(SEEN_BELOW) else {
            what.parse::<u64>().ok()?;
            continue;
        };
        let index: usize = name.strip_prefix("shards/")?.parse().ok()?;
        *all.get_mut(index)? = Offset::new(number.parse().ok()?);
    }
    Some(all)
}

/// What is missing of the files that the last process left.
pub(super) fn lost(dir: &Path) -> anyhow::Result<Vec<Lost>> {
    let clean = dir.join(CLEAN);
    let bytes = match std::fs::read(&clean) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.with_context(|| format!("cannot read {}", clean.display()))?,
    };
    let mut lost = Vec::new();
    for line in String::from_utf8_lossy(&bytes).lines() {
        // What is no such line was not written by us, or is damaged, and says nothing of a file.
        let Some((name, len)) = line.rsplit_once(' ') else { continue };
        let Ok(had_bytes) = len.parse() else { continue };
        let path = dir.join(name);
        let has_bytes = std::fs::metadata(&path).ok().map(|found| found.len());
        if has_bytes.is_some_and(|has| has >= had_bytes)
            || has_bytes.is_none() && is_in_other(&path)
        {
            continue;
        }
        lost.push(Lost { path, is_names: name.starts_with("names/"), had_bytes, has_bytes });
    }
    Ok(lost)
}

/// Whether the segment is there as another file: a copy from before it was rewritten was put in its place.
fn is_in_other(path: &Path) -> bool {
    let named = |name: &std::ffi::OsStr| name.to_str().and_then(FileName::parse);
    let Some(missing) = path.file_name().and_then(named) else { return false };
    let files = path.parent().into_iter().flat_map(std::fs::read_dir).flatten().flatten();
    let mut others = files.filter_map(|entry| named(&entry.file_name()));
    others.any(|other| other.segment == missing.segment)
}

/// Refuses to go on without a part of the names, and of messages if that is wanted.
pub(super) fn refuse(dir: &Path, lost: &[Lost], damaged: DamagedFiles) -> anyhow::Result<()> {
    let is_refused = |lost: &&Lost| lost.is_names || damaged == DamagedFiles::Refuse;
    let Some(Lost { path, is_names, had_bytes, has_bytes }) = lost.iter().find(is_refused) else {
        return Ok(());
    };
    let path = path.display();
    let what = match has_bytes {
        Some(has) => format!("{path} has {has} bytes, and had {had_bytes} bytes"),
        None => format!("{path} is missing, which had {had_bytes} bytes"),
    };
    let clean = dir.join(CLEAN);
    let (clean, aside) =
        (clean.display(), if *is_names { "" } else { "set storage.damaged_files = aside, or " });
    anyhow::bail!(
        "{what} when the node stopped in good order. Restore it from a copy; or, to go on with what is there, \
         {aside}remove {clean}, and start again"
    )
}

/// Says what was lost, and what can be done.
pub(super) fn tell(lost: &[Lost]) {
    for Lost { path, had_bytes, has_bytes, .. } in lost {
        tracing::error!(
            file = %path.display(),
            had_bytes,
            has_bytes = has_bytes.unwrap_or(0),
            "a file is missing, or shorter than it was when the node stopped in good order: what was in that part \
             is lost, and acks in it are undone. To get it back, stop the broker now, put a good copy of the file \
             in its place, and start again"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_is_told_to_the_next_start() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(seen_below(dir.path(), 2), [Offset::MAX; 2], "after a crash");
        let name = FileName::parse("0000000000000003.0.seg").expect("a name");
        let seen = vec![Offset::new(7), Offset::ZERO];
        let shards = vec![vec![(name, 5)], vec![]];
        let left = Left { names: vec![(name, 9)], shards, seen_below: seen.clone() };
        leave_clean(dir.path(), &left).expect("written");
        assert_eq!(seen_below(dir.path(), 2), seen);
        let text = std::fs::read_to_string(dir.path().join(CLEAN)).expect("read");
        let files = |text: &str| text.lines().filter(|line| line.contains(".seg ")).count();
        assert_eq!(files(&text), 2, "{text}");
        for (text, want) in [
            ("", Some([0, 0])),
            ("names/0000000000000000.0.seg 1565\n", Some([0, 0])),
            ("shards/1 seen-below=3\n", Some([0, 3])),
            ("shards/2 seen-below=3\n", None),
            ("shards/1 seen-below=3x\n", None),
            ("shards/1 seem-below=3\n", None),
            ("\n", None),
        ] {
            assert_eq!(
                parse_seen(text, 2),
                want.map(|all| all.map(Offset::new).to_vec()),
                "{text}"
            );
        }
    }
}
