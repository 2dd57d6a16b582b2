//! What a node knows besides its logs: the file `heard` (`docs/formats/cluster.md`).
//!
//! It says how far each group is known to be agreed upon, whether this node has that or not, and which file the words were in. It is
//! written whole, as the file `cluster` is, and is up to a second behind. Without it nothing is known.

use std::fmt::Write as _;

use leveret_replica::BatchName;

const MAGIC: &str = "leveret-heard 1\n";

/// A file on its disk: a copy has another number, or another time of birth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilePlace {
    /// Its number in its file system.
    pub inode: u64,
    /// When it was made, in ns since the Unix epoch; 0 where that is not known.
    pub born_ns: u64,
}

/// The file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// Where the words are. None if that was not looked at.
    pub place: Option<FilePlace>,
    /// The last batch that is known to be agreed upon, by group.
    pub agreed: Vec<BatchName>,
}

/// It is not as it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the file 'heard' is damaged")]
pub struct HeardDamaged;

impl Heard {
    /// The bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut text = MAGIC.to_owned();
        if let Some(FilePlace { inode, born_ns }) = self.place {
            let _ = writeln!(text, "place {inode} {born_ns}");
        }
        for (group, BatchName { number, term }) in self.agreed.iter().enumerate() {
            let _ = writeln!(text, "agreed {group} {number} {term}");
        }
        let _ = writeln!(text, "checksum {:08x}", crc32c::crc32c(text.as_bytes()));
        text.into_bytes()
    }

    /// Reads the bytes.
    ///
    /// # Errors
    ///
    /// When they are not these.
    pub fn read(bytes: &[u8]) -> Result<Self, HeardDamaged> {
        let heard = Self::of(bytes).ok_or(HeardDamaged)?;
        if heard.bytes() == bytes { Ok(heard) } else { Err(HeardDamaged) }
    }

    fn of(bytes: &[u8]) -> Option<Self> {
        let mut heard = Self::default();
        for line in std::str::from_utf8(bytes).ok()?.strip_prefix(MAGIC)?.lines() {
            let mut words = line.split(' ');
            let word = words.next()?;
            let numbers: Option<Vec<u64>> = match word {
                "checksum" => continue,
                _ => words.map(|it| it.parse().ok()).collect(),
            };
            match (word, &*numbers?) {
                ("place", &[inode, born_ns]) => heard.place = Some(FilePlace { inode, born_ns }),
                ("agreed", &[_, number, term]) => heard.agreed.push(BatchName { number, term }),
                _ => return None,
            }
        }
        Some(heard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_each_format() {
        let agreed = vec![BatchName { number: 17, term: 3 }, BatchName { number: 1, term: 1 }];
        let heard = Heard { place: Some(FilePlace { inode: 5, born_ns: 7 }), agreed };
        let golden = include_bytes!("../tests/golden/heard-1");
        assert_eq!(String::from_utf8_lossy(&heard.bytes()), String::from_utf8_lossy(golden));
        assert_eq!(Heard::read(golden), Ok(heard));
        assert_eq!(Heard::read(&Heard::default().bytes()), Ok(Heard::default()));
        for at in 0..golden.len() {
            assert_eq!(Heard::read(&golden[..at]), Err(HeardDamaged), "cut at {at}");
            let mut flipped = golden.to_vec();
            flipped[at] ^= 1;
            assert_eq!(Heard::read(&flipped), Err(HeardDamaged), "byte {at}");
        }
    }
}
