//! Tables and arrays as the bytes of the wire, read in place.

use std::fmt;

use smallvec::SmallVec;

use super::{Table, TableError};
use crate::wire::Reader;

/// A field table's bytes, without the length before them.
///
/// Made by [`RawTable::new`] the whole table is known to be well formed; made by
/// [`RawTable::unchecked`] reading may fail at the first entry that is not. Neither allocates.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct RawTable<'a>(&'a [u8]);

/// A field array's bytes, without the length before them.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct RawArray<'a>(&'a [u8]);

/// One value, read in place.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs, reason = "the kinds of the table above, by their Rust types")]
pub enum RawValue<'a> {
    Bool(bool),
    I8(i8),
    U8(u8),
    I16(i16),
    U16(u16),
    I32(i32),
    U32(u32),
    I64(i64),
    F32(f32),
    F64(f64),
    /// `value` divided by ten to the power of `scale`.
    Decimal {
        scale: u8,
        value: i32,
    },
    /// `S`: bytes by the specification, mostly UTF-8.
    LongStr(&'a [u8]),
    Array(RawArray<'a>),
    /// Seconds since the Unix epoch.
    Timestamp(u64),
    Table(RawTable<'a>),
    Void,
    /// `x`: bytes.
    Bytes(&'a [u8]),
}

impl<'a> RawTable<'a> {
    /// Checks all entries, nested ones too. Time and memory are linear in the length; up to 16 open
    /// levels need no allocation.
    ///
    /// # Errors
    ///
    /// When the bytes are not exactly a table.
    pub fn new(bytes: &'a [u8]) -> Result<Self, TableError> {
        check(bytes, true)?;
        Ok(Self(bytes))
    }

    /// Takes the bytes as they are: reading reports what is wrong with them.
    #[must_use]
    pub const fn unchecked(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The bytes after the length, as on the wire.
    #[must_use]
    pub const fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// True when there is no entry.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// The first value under `key`.
    ///
    /// # Errors
    ///
    /// When an entry before it is malformed (not in a checked table).
    pub fn get(self, key: &str) -> Result<Option<RawValue<'a>>, TableError> {
        for entry in self.iter() {
            let (name, value) = entry?;
            if name == key.as_bytes() {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// Keys and values in the order of the wire. Ends after the first error.
    #[must_use]
    pub fn iter(self) -> RawTableIter<'a> {
        RawTableIter(Reader::new(self.0))
    }

    /// An owned copy.
    ///
    /// # Errors
    ///
    /// When malformed or nested deeper than [`MAX_DEPTH`](super::MAX_DEPTH).
    pub fn to_table(self) -> Result<Table, TableError> {
        Table::decode(self)
    }

    /// An owned copy of what can be owned: without the entries that are nested deeper than
    /// [`MAX_DEPTH`](super::MAX_DEPTH).
    #[must_use]
    pub fn to_table_within_depth(self) -> Table {
        Table::decode_within_depth(self)
    }
}

impl<'a> RawArray<'a> {
    /// Checks all values, nested ones too.
    ///
    /// # Errors
    ///
    /// When the bytes are not exactly an array.
    pub fn new(bytes: &'a [u8]) -> Result<Self, TableError> {
        check(bytes, false)?;
        Ok(Self(bytes))
    }

    /// The bytes after the length, as on the wire.
    #[must_use]
    pub const fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// The values in the order of the wire. Ends after the first error.
    #[must_use]
    pub fn iter(self) -> RawArrayIter<'a> {
        RawArrayIter(Reader::new(self.0))
    }
}

impl<'a> IntoIterator for RawTable<'a> {
    type Item = Result<(&'a [u8], RawValue<'a>), TableError>;
    type IntoIter = RawTableIter<'a>;

    fn into_iter(self) -> RawTableIter<'a> {
        self.iter()
    }
}

impl<'a> IntoIterator for RawArray<'a> {
    type Item = Result<RawValue<'a>, TableError>;
    type IntoIter = RawArrayIter<'a>;

    fn into_iter(self) -> RawArrayIter<'a> {
        self.iter()
    }
}

/// Entries of a [`RawTable`].
#[derive(Clone, Debug)]
pub struct RawTableIter<'a>(Reader<'a>);

impl<'a> RawTableIter<'a> {
    /// The bytes of the entries that are still to come.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.0.rest()
    }
}

impl<'a> Iterator for RawTableIter<'a> {
    type Item = Result<(&'a [u8], RawValue<'a>), TableError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let entry = read_entry(&mut self.0);
        if entry.is_err() {
            self.0 = Reader::new(&[]);
        }
        Some(entry)
    }
}

/// Values of a [`RawArray`].
#[derive(Clone, Debug)]
pub struct RawArrayIter<'a>(Reader<'a>);

impl<'a> RawArrayIter<'a> {
    /// The bytes of the values that are still to come.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.0.rest()
    }
}

impl<'a> Iterator for RawArrayIter<'a> {
    type Item = Result<RawValue<'a>, TableError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let value = read_value(&mut self.0);
        if value.is_err() {
            self.0 = Reader::new(&[]);
        }
        Some(value)
    }
}

fn read_entry<'a>(r: &mut Reader<'a>) -> Result<(&'a [u8], RawValue<'a>), TableError> {
    let key = r.short_bytes()?;
    Ok((key, read_value(r)?))
}

/// Reads one value; the inside of a nested table or array is not looked at.
fn read_value<'a>(r: &mut Reader<'a>) -> Result<RawValue<'a>, TableError> {
    Ok(match r.get_u8()? {
        b't' => RawValue::Bool(r.get_u8()? != 0),
        b'b' => RawValue::I8(i8::from_be_bytes(r.array()?)),
        b'B' => RawValue::U8(r.get_u8()?),
        b's' => RawValue::I16(i16::from_be_bytes(r.array()?)),
        b'u' => RawValue::U16(r.get_u16()?),
        b'I' => RawValue::I32(i32::from_be_bytes(r.array()?)),
        b'i' => RawValue::U32(r.get_u32()?),
        b'l' | b'L' => RawValue::I64(i64::from_be_bytes(r.array()?)),
        b'f' => RawValue::F32(f32::from_be_bytes(r.array()?)),
        b'd' => RawValue::F64(f64::from_be_bytes(r.array()?)),
        b'D' => {
            let scale = r.get_u8()?;
            RawValue::Decimal { scale, value: i32::from_be_bytes(r.array()?) }
        }
        b'S' => RawValue::LongStr(r.get_longstr()?),
        b'A' => RawValue::Array(RawArray(r.get_longstr()?)),
        b'T' => RawValue::Timestamp(r.get_u64()?),
        b'F' => RawValue::Table(RawTable(r.get_longstr()?)),
        b'V' => RawValue::Void,
        b'x' => RawValue::Bytes(r.get_longstr()?),
        kind => return Err(TableError::UnknownKind(kind)),
    })
}

/// Walks all entries of all levels. A nested table is entered at once; what is left of the level around
/// it waits in `outer`, whose length is at most a fifth of the input's.
fn check(bytes: &[u8], is_table: bool) -> Result<(), TableError> {
    let mut outer: SmallVec<[(Reader<'_>, bool); 16]> = SmallVec::new();
    let (mut r, mut is_table) = (Reader::new(bytes), is_table);
    loop {
        if r.is_empty() {
            let Some(level) = outer.pop() else {
                return Ok(());
            };
            (r, is_table) = level;
            continue;
        }
        if is_table {
            r.short_bytes()?;
        }
        let nested = match read_value(&mut r)? {
            RawValue::Table(table) => (Reader::new(table.0), true),
            RawValue::Array(array) => (Reader::new(array.0), false),
            _ => continue,
        };
        // A level with nothing left need not be come back to: chains of single entries stay flat.
        if !r.is_empty() {
            outer.push((r, is_table));
        }
        (r, is_table) = nested;
    }
}

impl fmt::Debug for RawTable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RawTable({} bytes)", self.0.len())
    }
}

impl fmt::Debug for RawArray<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RawArray({} bytes)", self.0.len())
    }
}
