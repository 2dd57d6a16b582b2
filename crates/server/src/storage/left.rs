//! What a process that ends in good order leaves word of, and what the next one finds of it.
//!
//! ```text
//!   format 2
//!   shards/0/0000000000000003.0.seg 1158442
//!   shards/0 next-batch=5312
//!   shards/0 seen-below=80000
//!   names/0000000000000000.0.seg 1565
//!   crc32c=5dcf09a1
//! ```
//!
//! Which files there were each log's own list knows, also after a crash. Where there is none, as an older version left the
//! directory, or somebody took it away, this one says it.
//!
//! Records below `seen-below` were there at a start after a crash: they may have been delivered, though no mark
//! says so. What is damaged, or of another stop than the last, so that a log goes on with another batch, says so of all.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use leveret_config::{DamagedFiles, files};
use leveret_log::Offset;
use leveret_log::disk::FileName;

use crate::disk::sync_dir;

/// The file that says that the last process left in good order, and what.
const CLEAN: &str = "clean";

/// Its bytes at most: a line for each file.
const CLEAN_MAX: u64 = 256 << 20;

/// Its first line. Older versions had none.
const FIRST: &str = "format 2";

/// The list of files that a log has itself.
const LIST: &str = "files";

const SEEN_BELOW: &str = "seen-below=";
const NEXT_BATCH: &str = "next-batch=";
const CHECKSUM: &str = "crc32c=";

/// The files of the logs, and how long each is at least.
#[derive(Debug)]
pub(crate) struct Left {
    pub names: Vec<(FileName, u64)>,
    /// By shard.
    pub shards: Vec<Vec<(FileName, u64)>>,
    /// By shard: records below may have been delivered.
    pub seen_below: Vec<Offset>,
    /// By shard: the number of the next batch.
    pub next_batch: Vec<u64>,
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
    let mut text = format!("{FIRST}\n");
    let shards = left.shards.iter().enumerate();
    let logs = shards.map(|(index, files)| (format!("shards/{index}"), files));
    for (log, files) in logs.chain([("names".to_owned(), &left.names)]) {
        for (name, len) in files {
            let _ = writeln!(text, "{log}/{name} {len}");
        }
    }
    for (index, (seen_below, next_batch)) in
        left.seen_below.iter().zip(&left.next_batch).enumerate()
    {
        let _ = writeln!(text, "shards/{index} {NEXT_BATCH}{next_batch}");
        let _ = writeln!(text, "shards/{index} {SEEN_BELOW}{seen_below}");
    }
    let crc = crc32c::crc32c(text.as_bytes());
    let _ = writeln!(text, "{CHECKSUM}{crc:08x}");
    let mut file = std::fs::File::create(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&new, dir.join(CLEAN))?;
    sync_dir(dir)
}

/// The lines of a list, but those about itself. None if it is not whole: one of an older version has nothing that says so.
fn lines(text: &str) -> Option<std::str::Lines<'_>> {
    let Some(rest) = text.strip_prefix(FIRST).and_then(|rest| rest.strip_prefix('\n')) else {
        return Some(text.lines());
    };
    let (all, crc) = text.strip_suffix('\n')?.rsplit_once('\n')?;
    let crc = u32::from_str_radix(crc.strip_prefix(CHECKSUM)?, 16).ok()?;
    let covered = text.get(..=all.len())?;
    let len = rest.len().checked_sub(text.len().checked_sub(covered.len())?)?;
    (crc32c::crc32c(covered.as_bytes()) == crc).then_some(rest.get(..len)?.lines())
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

/// What the last stop left word of.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// Nothing: there was none in good order.
    None,
    /// It cannot be read.
    Damaged,
    Of {
        /// By shard: records below may have been delivered, whatever their marks say.
        seen_below: Vec<Offset>,
        /// By shard: the number of the next batch. An older version did not say it.
        next_batch: Vec<Option<u64>>,
    },
}

/// Reads it.
pub(super) fn word(dir: &Path, shards: usize) -> Word {
    match files::read_text(&dir.join(CLEAN), CLEAN_MAX) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Word::None,
        text => text.ok().and_then(|text| parse(&text, shards)).unwrap_or(Word::Damaged),
    }
}

impl Word {
    /// The next batch that a log had at the stop.
    fn left(&self, index: usize) -> Option<u64> {
        let Self::Of { next_batch: left, .. } = self else { return None };
        left.get(index).copied().flatten()
    }

    /// Whether it says how far a log was.
    pub(super) fn knows(&self, index: usize) -> bool {
        self.left(index).is_some()
    }

    /// The next batch that a log had at the stop, if it has not come so far.
    pub(super) fn is_short(&self, index: usize, next_batch: u64) -> Option<u64> {
        self.left(index).filter(|&left| next_batch < left)
    }

    /// Whether no log is farther than it was at the stop.
    pub(super) fn is_of_last(&self, batches: &[u64]) -> bool {
        let Self::Of { next_batch: left, .. } = self else { return false };
        left.iter().zip(batches).all(|(left, &batch)| left.is_some_and(|left| batch <= left))
    }

    /// Below which records of each shard may have been delivered, whatever their marks say: all of them, if the last
    /// process did not leave in good order. `batches`: the number of the next batch of each.
    pub(super) fn seen_below(self, dir: &Path, batches: &[u64]) -> Vec<Offset> {
        let all = vec![Offset::MAX; batches.len()];
        match self {
            Self::None => all,
            Self::Of { seen_below, next_batch }
                if next_batch
                    .iter()
                    .zip(batches)
                    .all(|(left, batch)| left.is_none_or(|left| left == *batch)) =>
            {
                seen_below
            }
            Self::Damaged | Self::Of { .. } => {
                tracing::warn!(
                    file = %dir.join(CLEAN).display(),
                    "the word of the last stop is damaged, or not of the last stop: messages come marked redelivered, as \
                     after a crash"
                );
                all
            }
        }
    }
}

/// None if the list has a line that nobody wrote.
fn parse(text: &str, shards: usize) -> Option<Word> {
    // As an older version had it: its marks tell all.
    let mut seen_below = vec![Offset::ZERO; shards];
    let mut next_batch = vec![None; shards];
    for line in lines(text)? {
        let (name, what) = line.rsplit_once(' ')?;
        if let Some(number) = what.strip_prefix(SEEN_BELOW) {
            *seen_below.get_mut(shard_of(name)?)? = Offset::new(number.parse().ok()?);
        } else if let Some(number) = what.strip_prefix(NEXT_BATCH) {
            *next_batch.get_mut(shard_of(name)?)? = Some(number.parse().ok()?);
        } else {
            what.parse::<u64>().ok().filter(|_| name.contains('/'))?;
        }
    }
    Some(Word::Of { seen_below, next_batch })
}

/// A log that ends before batch `found`, of which there were `left` at the stop, is of an earlier time.
pub(super) fn refuse_short(
    dir: &Path,
    found: u64,
    left: u64,
    damaged: DamagedFiles,
) -> anyhow::Result<()> {
    let log = dir.display();
    anyhow::ensure!(
        damaged != DamagedFiles::Refuse,
        "{log} is of an earlier time: it ends before batch {found}, and had {left} batches when the node stopped in good \
         order. Nothing was changed. Restore it from a copy; or, to go on with what is there, set \
         storage.damaged_files = aside, and start again"
    );
    tracing::error!(
        %log,
        batch = found,
        batch_at_stop = left,
        "the log of a shard is of an earlier time than the last stop, perhaps an older copy of its directory: the messages of \
         its last {} batches are lost, and acks in them are undone. To get them back, stop the broker now, put the \
         right directory in its place, and start again",
        left - found
    );
    Ok(())
}

/// A log whose list knows of start `found`, while that of the names knows of start `last`, is of an earlier time.
pub(super) fn refuse_older(
    dir: &Path,
    found: u64,
    last: u64,
    damaged: DamagedFiles,
) -> anyhow::Result<()> {
    let log = dir.display();
    anyhow::ensure!(
        damaged != DamagedFiles::Refuse,
        "{log} is of an earlier time: it was in use last in start {found} of the node, and the names in start {last}. \
         Nothing was changed. Restore it from a copy; or, to go on with what is there, set \
         storage.damaged_files = aside, and start again"
    );
    tracing::error!(
        %log,
        start = found,
        last_start = last,
        lost = "an unknown number of messages",
        "the log of a shard is of an earlier time than the last start, perhaps an older copy of its directory: what was stored in \
         it since is lost, and acks since are undone. To get it back, stop the broker now, put the right directory in its \
         place, and start again"
    );
    Ok(())
}

fn shard_of(name: &str) -> Option<usize> {
    name.strip_prefix("shards/")?.parse().ok()
}

/// What is missing of the files that the last process left.
pub(super) fn lost(dir: &Path) -> anyhow::Result<Vec<Lost>> {
    let clean = dir.join(CLEAN);
    let bytes = match files::read_bytes(&clean, CLEAN_MAX) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.with_context(|| format!("cannot read {}", clean.display()))?,
    };
    let mut lost = Vec::new();
    let text = String::from_utf8_lossy(&bytes);
    for line in lines(&text).into_iter().flatten() {
        // What is no such line was not written by us, or is damaged, and says nothing of a file.
        let Some((name, len)) = line.rsplit_once(' ') else { continue };
        let Ok(had_bytes) = len.parse() else { continue };
        let path = dir.join(name);
        // It knows more, and is asked when the log is read.
        let has_list = |log: &Path| std::fs::metadata(log.join(LIST)).is_ok();
        if path.parent().is_some_and(has_list) {
            continue;
        }
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

/// Says that a directory is begun anew, if the process before left something in it.
pub(super) fn tell_anew(lost: &[Lost]) {
    if !lost.is_empty() {
        tracing::warn!(
            files = lost.len(),
            "the data directory is laid out anew: nothing is there any more of the files that the last process left"
        );
    }
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
        let seen_below = |batches: &[u64]| word(dir.path(), 2).seen_below(dir.path(), batches);
        assert_eq!(seen_below(&[3, 4]), [Offset::MAX; 2], "after a crash");
        let name = FileName::parse("0000000000000003.0.seg").expect("a name");
        let seen = vec![Offset::new(7), Offset::ZERO];
        let shards = vec![vec![(name, 5)], vec![]];
        let next_batch = vec![3, 4];
        let left = Left { names: vec![(name, 9)], shards, seen_below: seen.clone(), next_batch };
        leave_clean(dir.path(), &left).expect("written");
        assert_eq!(seen_below(&[3, 4]), seen);
        assert_eq!(seen_below(&[3, 5]), [Offset::MAX; 2], "of another stop");
        let word = word(dir.path(), 2);
        assert_eq!(
            (word.is_short(0, 2), word.is_short(0, 3), word.is_short(1, 5)),
            (Some(3), None, None)
        );
        let is_of_last = [[3, 4], [2, 4], [3, 5]].map(|batches| word.is_of_last(&batches));
        assert_eq!(is_of_last, [true, true, false]);
        let text = std::fs::read_to_string(dir.path().join(CLEAN)).expect("read");
        let files = |text: &str| text.lines().filter(|line| line.contains(".seg ")).count();
        assert_eq!(files(&text), 2, "{text}");
        for at in 0..text.len() {
            assert_eq!(parse(&text[..at], 2).filter(|_| at > 0), None, "{at}");
            let mut flipped = text.clone().into_bytes();
            flipped[at] ^= 1;
            let flipped = String::from_utf8(flipped).expect("text");
            assert_eq!(parse(&flipped, 2), None, "{flipped}");
        }
        for (text, want) in [
            ("", Some([0, 0])),
            ("names/0000000000000000.0.seg 1565\n", Some([0, 0])),
            ("shards/1 seen-below=3\n", Some([0, 3])),
            ("shards/2 seen-below=3\n", None),
            ("shards/1 seen-below=3x\n", None),
            ("shards/1 seem-below=3\n", None),
            ("\n", None),
        ] {
            let seen = parse(text, 2).map(|word| word.seen_below(dir.path(), &[0, 0]));
            assert_eq!(seen, want.map(|all| all.map(Offset::new).to_vec()), "{text}");
        }
    }
}
