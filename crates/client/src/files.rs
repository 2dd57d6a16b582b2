//! Files that users name, which may be devices that never end, or pipes that nobody writes to.

use std::fs::File;
use std::io::{Error, ErrorKind, Read as _, Result};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

/// Longest file of certificates or a key, in bytes.
pub(crate) const PEM_BYTES_MAX: u64 = 16 << 20;

/// The bytes of a file, which are at most so many. A named pipe is refused: whoever reads it may wait for ever. What a shell
/// hands over (`<(...)`) is none.
///
/// # Errors
///
/// When it cannot be read, or is longer.
pub fn read_at_most(path: &Path, most: u64) -> Result<Vec<u8>> {
    let is_handed_over = ["/dev", "/proc"].iter().any(|dir| path.starts_with(dir));
    if std::fs::metadata(path)?.file_type().is_fifo() && !is_handed_over {
        return Err(Error::new(ErrorKind::InvalidInput, "it is a named pipe, and no file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        let text = format!("it is longer than {} MiB", most >> 20);
        return Err(Error::new(ErrorKind::FileTooLarge, text));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_never_ends_is_refused() {
        let read = |path: &str| read_at_most(Path::new(path), 1 << 20);
        let why = read("/dev/zero").unwrap_err();
        assert_eq!(why.to_string(), "it is longer than 1 MiB");
        assert_eq!(read("/dev/null").unwrap(), b"");
    }

    #[test]
    fn a_named_pipe_is_refused() {
        let path = std::env::temp_dir().join(format!("leveret-pipe-{}", std::process::id()));
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o600.into()).unwrap();
        let read = read_at_most(&path, 1 << 20);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read.unwrap_err().to_string(), "it is a named pipe, and no file");
    }
}
