//! Files that users name, which may be devices that never end.

use std::fs::File;
use std::io::{Error, ErrorKind, Read as _, Result};
use std::path::Path;

/// Longest file of certificates or a key, in bytes.
pub(crate) const PEM_BYTES_MAX: u64 = 16 << 20;

/// The bytes of a file, which are at most so many.
///
/// # Errors
///
/// When it cannot be read, or is longer.
pub fn read_at_most(path: &Path, most: u64) -> Result<Vec<u8>> {
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
}
