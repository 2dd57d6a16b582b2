//! The directory of traces: names of files, a list of them, one to be read, one to be deleted.
//!
//! Nothing but a plain name of a file leads into the directory, and no link leads out of it.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{
    DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;

/// The longest name of a trace, in bytes. The file's name is longer by its ending.
const NAME_MAX: usize = 200;

/// Files that are listed.
const FILES_MAX: usize = 10_000;

/// What the name of a trace's file ends with.
const ENDING: &str = ".log";

/// Who may read what is traced: as with the data directory.
const DIR_MODE: u32 = 0o750;
const FILE_MODE: u32 = 0o640;

/// Of a directory that nobody's traces are safe in.
const OTHERS_WRITE: u32 = 0o022;

/// The name of a trace's file. None if the trace's name cannot be a part of it: RabbitMQ takes those with a slash, too.
pub(crate) fn of_trace(name: &str) -> Option<String> {
    is_plain(name).then(|| format!("{name}{ENDING}"))
}

/// The name of the trace whose file it is.
pub(super) fn trace_of(file: &str) -> &str {
    file.strip_suffix(ENDING).unwrap_or(file)
}

/// Whether a name is of one part, says nothing but what it shows, and is not too long.
fn is_plain(name: &str) -> bool {
    let is_fine = |letter: char| !letter.is_control() && letter != '/' && letter != '\\';
    !name.is_empty()
        && name.len() <= NAME_MAX
        && !name.starts_with('.')
        && name.chars().all(is_fine)
}

/// The path of a file that a request names; none if there cannot be such a one.
fn path(dir: &Path, file: &str) -> Option<PathBuf> {
    is_plain(trace_of(file)).then(|| dir.join(file))
}

/// Opens a trace's file to be written at its end, and makes it and the directory if they are not there. Nobody else may have
/// a hand in either.
pub(super) fn open_to_append(dir: &Path, file: &str) -> io::Result<File> {
    DirBuilder::new().recursive(true).mode(DIR_MODE).create(dir)?;
    must_be_ours(dir)?;
    let mut opened = OpenOptions::new()
        .create(true)
        .read(true)
        .append(true)
        .mode(FILE_MODE)
        .custom_flags(flags())
        .open(dir.join(file))?;
    let told = opened.metadata()?;
    if !told.is_file() {
        return Err(unfit("it is no file"));
    }
    if told.nlink() != 1 {
        return Err(unfit("it has other names, too"));
    }
    if told.uid() != own_uid() {
        return Err(unfit("it belongs to another user of the system"));
    }
    opened.set_permissions(Permissions::from_mode(FILE_MODE))?;
    // A process that was killed leaves half a record: what follows begins with a line of its own.
    if let Some(last) = told.len().checked_sub(1) {
        let mut byte = [0];
        opened.read_exact_at(&mut byte, last)?;
        if byte != *b"\n" {
            opened.write_all(b"\n")?;
        }
    }
    Ok(opened)
}

/// Others could put files into the directory that lead elsewhere, or take the trace's away.
fn must_be_ours(dir: &Path) -> io::Result<()> {
    let told = dir.metadata()?;
    if told.mode() & OTHERS_WRITE != 0 {
        return Err(unfit("others may write to its directory: its mode should be 0750"));
    }
    if told.uid() != own_uid() && told.uid() != 0 {
        return Err(unfit("its directory belongs to another user of the system"));
    }
    Ok(())
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn unfit(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

/// Whether it is a matter of what is there in the place of the file, and not of the disk.
pub(super) fn is_unfit(error: &io::Error) -> bool {
    error.raw_os_error().is_none() || is_no_file(error)
}

/// Opens a file to be read, and tells its length. None if there is none.
pub(crate) fn open(dir: &Path, file: &str) -> io::Result<Option<(File, u64)>> {
    let Some(path) = path(dir, file) else { return Ok(None) };
    match OpenOptions::new().read(true).custom_flags(flags()).open(path) {
        Ok(opened) => {
            let told = opened.metadata()?;
            Ok(told.is_file().then_some((opened, told.len())))
        }
        Err(error) if is_no_file(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// No link is followed, and no named pipe waited for.
fn flags() -> i32 {
    (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed()
}

/// Whether there is nothing of the name, or a link or a directory.
fn is_no_file(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || [Errno::LOOP, Errno::ISDIR]
            .iter()
            .any(|it| error.raw_os_error() == Some(it.raw_os_error()))
}

/// Deletes a file. False if there is none.
pub(crate) fn delete(dir: &Path, file: &str) -> io::Result<bool> {
    let Some(path) = path(dir, file) else { return Ok(false) };
    match std::fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if is_no_file(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Names and sizes of the files, by name. None are there if the directory is not.
pub(crate) fn list(dir: &Path) -> io::Result<Vec<(String, u64)>> {
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let file = |entry: io::Result<std::fs::DirEntry>| {
        // Of those that go meanwhile nothing is said.
        let entry = entry.ok()?;
        let told = entry.metadata().ok().filter(std::fs::Metadata::is_file)?;
        let name = entry.file_name().into_string().ok()?;
        path(dir, &name)?;
        Some((name, told.len()))
    };
    let mut files: Vec<_> = entries.take(FILES_MAX).filter_map(file).collect();
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn names() {
        #[track_caller]
        fn check(name: &str, want: Option<&str>) {
            assert_eq!(of_trace(name).as_deref(), want, "{name}");
        }
        check("a",                    Some("a.log"));
        check("a b.c-\u{e4}",         Some("a b.c-\u{e4}.log"));
        check("a..b",                 Some("a..b.log"));
        check("",                     None);
        check(".",                    None);
        check("..",                   None);
        check("../a",                 None);
        check("a/../../b",            None);
        check("/a",                   None);
        check("a\\b",                 None);
        check("a\0b",                 None);
        check("a\nb",                 None);
        check(&"x".repeat(200),       Some(&format!("{}.log", "x".repeat(200))));
        check(&"x".repeat(201),       None);
    }

    #[test]
    fn files_are_made_listed_read_and_deleted() {
        let outer = tempfile::tempdir().unwrap();
        let dir = outer.path().join("deep/er");
        assert_eq!(list(&dir).unwrap(), []);
        assert!(open(&dir, "a.log").unwrap().is_none());
        let long = format!("{}.log", "x".repeat(200));
        for name in ["b.log", "a.log", &long] {
            open_to_append(&dir, name).unwrap().write_all(b"12345").unwrap();
        }
        let mode = dir.join("a.log").metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o137, 0, "{mode:o}");
        // What is no file, and what leads elsewhere.
        std::fs::create_dir(dir.join("sub")).unwrap();
        std::fs::write(outer.path().join("secret"), "s").unwrap();
        std::os::unix::fs::symlink(outer.path().join("secret"), dir.join("link.log")).unwrap();
        let files = [("a.log", 5), ("b.log", 5), (&long, 5)];
        assert_eq!(list(&dir).unwrap(), files.map(|(name, len)| (name.to_owned(), len)));
        assert_eq!(open(&dir, &long).unwrap().unwrap().1, 5);
        assert!(open(&dir, "link.log").unwrap().is_none());
        assert!(open_to_append(&dir, "link.log").is_err());
        assert!(open(&dir, "sub").unwrap().is_none());
        assert!(!delete(&dir, "sub").unwrap());
        for name in ["../../secret", "..", ".", "", "/etc/passwd", "a.log/../../../secret"] {
            assert!(open(&dir, name).unwrap().is_none(), "{name}");
            assert!(!delete(&dir, name).unwrap(), "{name}");
        }
        assert!(delete(&dir, "a.log").unwrap());
        assert!(!delete(&dir, "a.log").unwrap());
        assert_eq!(list(&dir).unwrap().len(), 2);
    }

    #[test]
    fn half_a_record_at_the_end_keeps_its_line_to_itself() {
        #[track_caller]
        fn check(before: &str, want: &str) {
            let dir = tempfile::tempdir().unwrap();
            std::fs::set_permissions(dir.path(), Permissions::from_mode(DIR_MODE)).unwrap();
            std::fs::write(dir.path().join("a.log"), before).unwrap();
            open_to_append(dir.path(), "a.log").unwrap().write_all(b"next\n").unwrap();
            assert_eq!(std::fs::read_to_string(dir.path().join("a.log")).unwrap(), want);
        }
        check("", "next\n");
        check("{}\n", "{}\nnext\n");
        check("{}\n{\"type\":\"pub", "{}\n{\"type\":\"pub\nnext\n");
    }

    #[test]
    fn what_others_have_a_hand_in_is_not_written() {
        let outer = tempfile::tempdir().unwrap();
        let dir = outer.path();
        let mode = |path: &Path, mode| {
            std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        };
        let refused = |file| open_to_append(dir, file).unwrap_err().to_string();
        std::fs::write(dir.join("a.log"), "").unwrap();
        mode(&dir.join("a.log"), 0o666);
        open_to_append(dir, "a.log").unwrap();
        assert_eq!(dir.join("a.log").metadata().unwrap().mode() & 0o777, FILE_MODE);
        std::fs::hard_link(dir.join("a.log"), dir.join("b.log")).unwrap();
        assert_eq!(refused("b.log"), "it has other names, too");
        for others in [0o770, 0o775, 0o757, 0o777, 0o1777] {
            mode(dir, others);
            let why = refused("c.log");
            assert!(why.starts_with("others may write to its directory"), "{others:o}: {why}");
        }
        assert!(!dir.join("c.log").exists());
    }
}
