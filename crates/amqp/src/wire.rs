//! The wire's simple types: a bounds-checked reader of a payload and a writer on `Vec<u8>`.

use crate::method::MethodError;
use crate::table::RawTable;

/// The bytes ended before the value did.
#[derive(Debug)]
pub(crate) struct Truncated;

/// Reads from the front of a slice; every length is checked against what is left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    #[inline]
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Truncated> {
        let (head, rest) = self.rest.split_first_chunk().ok_or(Truncated)?;
        self.rest = rest;
        Ok(*head)
    }

    #[inline]
    pub(crate) fn bytes(&mut self, len: usize) -> Result<&'a [u8], Truncated> {
        let (head, rest) = self.rest.split_at_checked(len).ok_or(Truncated)?;
        self.rest = rest;
        Ok(head)
    }

    #[inline]
    pub(crate) fn get_u8(&mut self) -> Result<u8, Truncated> {
        Ok(u8::from_be_bytes(self.array()?))
    }

    #[inline]
    pub(crate) fn get_u16(&mut self) -> Result<u16, Truncated> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    #[inline]
    pub(crate) fn get_u32(&mut self) -> Result<u32, Truncated> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    #[inline]
    pub(crate) fn get_u64(&mut self) -> Result<u64, Truncated> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    /// A short string's bytes, not checked to be UTF-8.
    #[inline]
    pub(crate) fn short_bytes(&mut self) -> Result<&'a [u8], Truncated> {
        let len = self.get_u8()?;
        self.bytes(usize::from(len))
    }

    #[inline]
    pub(crate) fn get_longstr(&mut self) -> Result<&'a [u8], Truncated> {
        let len = self.get_u32()?;
        self.bytes(usize::try_from(len).unwrap_or(usize::MAX))
    }

    #[inline]
    pub(crate) fn get_shortstr(&mut self) -> Result<&'a str, MethodError> {
        std::str::from_utf8(self.short_bytes()?).map_err(|_| MethodError::BadUtf8)
    }

    pub(crate) fn get_table(&mut self) -> Result<RawTable<'a>, MethodError> {
        Ok(RawTable::new(self.get_longstr()?)?)
    }

    /// All bytes must have been read.
    #[inline]
    pub(crate) fn finish(self) -> Result<(), MethodError> {
        if self.rest.is_empty() { Ok(()) } else { Err(MethodError::TrailingBytes) }
    }
}

/// The same types on their way out.
pub(crate) trait Writer {
    fn put_u8(&mut self, value: u8);
    fn put_u16(&mut self, value: u16);
    fn put_u32(&mut self, value: u32);
    fn put_u64(&mut self, value: u64);
    /// At most 255 bytes fit: a longer string is cut before the character that would not.
    fn put_shortstr(&mut self, value: &str);
    fn put_longstr(&mut self, value: &[u8]);
    fn put_table(&mut self, table: RawTable<'_>);
    /// Up to eight bits in one octet, the first in the lowest place.
    fn put_bits(&mut self, bits: &[bool]);
}

impl Writer for Vec<u8> {
    #[inline]
    fn put_u8(&mut self, value: u8) {
        self.push(value);
    }

    #[inline]
    fn put_u16(&mut self, value: u16) {
        self.extend_from_slice(&value.to_be_bytes());
    }

    #[inline]
    fn put_u32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_be_bytes());
    }

    #[inline]
    fn put_u64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_be_bytes());
    }

    fn put_shortstr(&mut self, value: &str) {
        let fits = value.get(..value.floor_char_boundary(255)).unwrap_or_default();
        self.push(u8::try_from(fits.len()).unwrap_or(u8::MAX));
        self.extend_from_slice(fits.as_bytes());
    }

    fn put_longstr(&mut self, value: &[u8]) {
        self.put_u32(u32::try_from(value.len()).unwrap_or(u32::MAX));
        self.extend_from_slice(value);
    }

    fn put_table(&mut self, table: RawTable<'_>) {
        self.put_longstr(table.as_bytes());
    }

    fn put_bits(&mut self, bits: &[bool]) {
        self.push(bits.iter().rev().fold(0, |octet, bit| octet << 1 | u8::from(*bit)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_share_an_octet() {
        let mut out = Vec::new();
        out.put_bits(&[true, false, true]);
        out.put_bits(&[false, true]);
        assert_eq!(out, [0b101, 0b10]);
    }

    #[test]
    fn long_short_strings_are_cut_at_a_character() {
        let mut out = Vec::new();
        out.put_shortstr(&format!("{}\u{e4}", "x".repeat(254)));
        assert_eq!((out[0], out.len()), (254, 255));
    }
}
