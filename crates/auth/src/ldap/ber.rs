//! BER (X.690) as far as LDAP needs it: lengths are definite, tags are one byte.
//!
//! Nothing here calls itself: whoever reads a structure opens what is inside by [`Reader::open`].

/// Universal tags.
pub(super) const BOOLEAN: u8 = 0x01;
pub(super) const INTEGER: u8 = 0x02;
pub(super) const OCTETS: u8 = 0x04;
pub(super) const ENUMERATED: u8 = 0x0a;
pub(super) const SEQUENCE: u8 = 0x30;

/// What was read is not what LDAP says it is.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("what it says is no LDAP")]
pub(super) struct Malformed;

/// An element: tag, length, content.
pub(super) fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![tag];
    let length = content.len().to_be_bytes();
    match content.len() {
        short @ 0..=127 => bytes.push(short as u8),
        _ => {
            let zeros = length.iter().take_while(|byte| **byte == 0).count();
            bytes.push(0x80 | (length.len() - zeros) as u8);
            bytes.extend(&length[zeros..]);
        }
    }
    bytes.extend(content);
    bytes
}

/// An element that holds others.
pub(super) fn holding(tag: u8, inner: &[Vec<u8>]) -> Vec<u8> {
    element(tag, &inner.concat())
}

/// A number that is not negative.
pub(super) fn number(tag: u8, value: u32) -> Vec<u8> {
    // A leading zero keeps it from being negative.
    let all = u64::from(value).to_be_bytes();
    let zeros = all.iter().take_while(|byte| **byte == 0).count().min(all.len() - 1);
    let from = if all[zeros] >= 0x80 { zeros - 1 } else { zeros };
    element(tag, &all[from..])
}

/// Reads elements one after the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    /// The next element, if there is one that is whole.
    pub(super) fn next(&mut self) -> Result<(u8, &'a [u8]), Malformed> {
        let (tag, length, head) = header(self.0)?.ok_or(Malformed)?;
        let content = self.0.get(head..).and_then(|rest| rest.get(..length)).ok_or(Malformed)?;
        self.0 = &self.0[head + length..];
        Ok((tag, content))
    }

    /// The content of the next element, which has this tag.
    pub(super) fn expect(&mut self, tag: u8) -> Result<&'a [u8], Malformed> {
        match self.next()? {
            (own, content) if own == tag => Ok(content),
            _ => Err(Malformed),
        }
    }

    /// What is inside of the next element, which has this tag.
    pub(super) fn open(&mut self, tag: u8) -> Result<Self, Malformed> {
        self.expect(tag).map(Reader)
    }

    /// A number of this tag, which is not negative.
    pub(super) fn number(&mut self, tag: u8) -> Result<u32, Malformed> {
        let content = self.expect(tag)?;
        if content.is_empty() || content[0] >= 0x80 {
            return Err(Malformed);
        }
        content.iter().try_fold(0_u32, |sum, byte| {
            sum.checked_mul(256).map(|sum| sum | u32::from(*byte)).ok_or(Malformed)
        })
    }

    /// A text.
    pub(super) fn text(&mut self) -> Result<String, Malformed> {
        String::from_utf8(self.expect(OCTETS)?.to_vec()).map_err(|_| Malformed)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Tag, length of the content, and where that begins; none if there are not enough bytes yet.
pub(super) fn header(bytes: &[u8]) -> Result<Option<(u8, usize, usize)>, Malformed> {
    let [tag, first, rest @ ..] = bytes else { return Ok(None) };
    if tag & 0x1f == 0x1f {
        return Err(Malformed);
    }
    match first {
        0..=0x7f => Ok(Some((*tag, usize::from(*first), 2))),
        0x81..=0x84 => {
            let count = usize::from(first & 0x7f);
            let Some(digits) = rest.get(..count) else { return Ok(None) };
            let length = digits.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
            Ok(Some((*tag, length, 2 + count)))
        }
        _ => Err(Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for length in [0, 1, 127, 128, 255, 256, 65_535, 65_536, 1 << 20] {
            let content = vec![7; length];
            let bytes = element(OCTETS, &content);
            let mut reader = Reader(&bytes);
            assert_eq!(reader.next(), Ok((OCTETS, content.as_slice())));
            assert!(reader.is_empty());
            assert!(Reader(&bytes[..bytes.len() - 1]).next().is_err());
        }
        for value in [0, 1, 127, 128, 255, 256, 32_767, 32_768, u32::MAX] {
            let bytes = number(INTEGER, value);
            assert_eq!(Reader(&bytes).number(INTEGER), Ok(value));
        }
        assert_eq!(number(INTEGER, 128), [2, 2, 0, 128]);
        assert_eq!(number(ENUMERATED, 0), [10, 1, 0]);
    }

    #[test]
    fn nonsense_is_refused() {
        let bad: [&[u8]; 9] = [
            &[],
            &[2],
            &[2, 1],
            &[2, 0x80, 0, 0],
            &[2, 0x85, 0, 0, 0, 0, 1, 1],
            &[0x1f, 1, 1],
            &[2, 0x84, 255, 255, 255, 255, 0],
            &[2, 0],
            &[2, 1, 0x80],
        ];
        for bytes in bad {
            assert_eq!(Reader(bytes).number(INTEGER), Err(Malformed), "{bytes:?}");
        }
        assert_eq!(Reader(&[2, 5, 1, 0, 0, 0, 0]).number(INTEGER), Err(Malformed), "too large");
    }
}
