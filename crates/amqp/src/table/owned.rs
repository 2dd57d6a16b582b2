//! Owned tables and values.

use super::{MAX_DEPTH, RawArray, RawTable, RawValue, TableError};
use crate::wire::Writer;

/// One owned value. See [`RawValue`] for the kinds.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the kinds of `RawValue`")]
pub enum Value {
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
    Decimal { scale: u8, value: i32 },
    LongStr(Vec<u8>),
    Array(Vec<Value>),
    Timestamp(u64),
    Table(Table),
    Void,
    Bytes(Vec<u8>),
}

/// An owned field table: entries in order, duplicate keys kept.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table(Vec<(String, Value)>);

impl Value {
    /// The integer in it, whatever its width.
    #[must_use]
    pub fn as_i64(&self) -> Option<i64> {
        Some(match *self {
            Self::I8(v) => v.into(),
            Self::U8(v) => v.into(),
            Self::I16(v) => v.into(),
            Self::U16(v) => v.into(),
            Self::I32(v) => v.into(),
            Self::U32(v) => v.into(),
            Self::I64(v) => v,
            _ => return None,
        })
    }

    /// The text of a long string that is UTF-8.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::LongStr(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// The boolean in it.
    #[must_use]
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(value) => Some(*value),
            _ => None,
        }
    }

    /// The name RabbitMQ has for the kind, as it appears in reply texts: `longstr`, `signedint`, ...
    #[must_use]
    pub fn kind_name(&self) -> &'static str {
        match self {
            Self::Bool(_) => "bool",
            Self::I8(_) => "byte",
            Self::U8(_) => "unsignedbyte",
            Self::I16(_) => "short",
            Self::U16(_) => "unsignedshort",
            Self::I32(_) => "signedint",
            Self::U32(_) => "unsignedint",
            Self::I64(_) => "long",
            Self::F32(_) => "float",
            Self::F64(_) => "double",
            Self::Decimal { .. } => "decimal",
            Self::LongStr(_) => "longstr",
            Self::Array(_) => "array",
            Self::Timestamp(_) => "timestamp",
            Self::Table(_) => "table",
            Self::Void => "void",
            Self::Bytes(_) => "binary",
        }
    }

    /// `levels` may still be opened below.
    fn decode(raw: RawValue<'_>, levels: usize) -> Result<Self, TableError> {
        Ok(match raw {
            RawValue::Bool(v) => Self::Bool(v),
            RawValue::I8(v) => Self::I8(v),
            RawValue::U8(v) => Self::U8(v),
            RawValue::I16(v) => Self::I16(v),
            RawValue::U16(v) => Self::U16(v),
            RawValue::I32(v) => Self::I32(v),
            RawValue::U32(v) => Self::U32(v),
            RawValue::I64(v) => Self::I64(v),
            RawValue::F32(v) => Self::F32(v),
            RawValue::F64(v) => Self::F64(v),
            RawValue::Decimal { scale, value } => Self::Decimal { scale, value },
            RawValue::LongStr(v) => Self::LongStr(v.to_vec()),
            RawValue::Array(v) => Self::Array(decode_array(v, levels)?),
            RawValue::Timestamp(v) => Self::Timestamp(v),
            RawValue::Table(v) => Self::Table(Table::decode_at(v, levels)?),
            RawValue::Void => Self::Void,
            RawValue::Bytes(v) => Self::Bytes(v.to_vec()),
        })
    }

    /// Appends kind and value.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Bool(v) => out.extend_from_slice(&[b't', u8::from(*v)]),
            Self::I8(v) => put(out, b'b', &v.to_be_bytes()),
            Self::U8(v) => put(out, b'B', &v.to_be_bytes()),
            Self::I16(v) => put(out, b's', &v.to_be_bytes()),
            Self::U16(v) => put(out, b'u', &v.to_be_bytes()),
            Self::I32(v) => put(out, b'I', &v.to_be_bytes()),
            Self::U32(v) => put(out, b'i', &v.to_be_bytes()),
            Self::I64(v) => put(out, b'l', &v.to_be_bytes()),
            Self::F32(v) => put(out, b'f', &v.to_be_bytes()),
            Self::F64(v) => put(out, b'd', &v.to_be_bytes()),
            Self::Decimal { scale, value } => {
                out.extend_from_slice(&[b'D', *scale]);
                out.extend_from_slice(&value.to_be_bytes());
            }
            Self::LongStr(v) => put_long(out, b'S', v),
            Self::Array(values) => put_nested(out, b'A', |out| {
                for value in values {
                    value.encode(out);
                }
            }),
            Self::Timestamp(v) => put(out, b'T', &v.to_be_bytes()),
            Self::Table(table) => put_nested(out, b'F', |out| table.encode_entries(out)),
            Self::Void => out.push(b'V'),
            Self::Bytes(v) => put_long(out, b'x', v),
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::LongStr(text.as_bytes().to_vec())
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<i32> for Value {
    fn from(value: i32) -> Self {
        Self::I32(value)
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::I64(value)
    }
}

impl From<Table> for Value {
    fn from(table: Table) -> Self {
        Self::Table(table)
    }
}

impl Table {
    /// An empty table.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// An owned copy. Keys that are not UTF-8 get replacement characters: the raw form keeps them.
    ///
    /// # Errors
    ///
    /// When malformed or nested deeper than [`MAX_DEPTH`].
    pub fn decode(raw: RawTable<'_>) -> Result<Self, TableError> {
        Self::decode_at(raw, MAX_DEPTH)
    }

    pub(super) fn decode_within_depth(raw: RawTable<'_>) -> Self {
        let owned = raw.iter().filter_map(|entry| {
            let (key, value) = entry.ok()?;
            let value = Value::decode(value, MAX_DEPTH - 1).ok()?;
            Some((String::from_utf8_lossy(key).into_owned(), value))
        });
        Self(owned.collect())
    }

    fn decode_at(raw: RawTable<'_>, levels: usize) -> Result<Self, TableError> {
        let levels = levels.checked_sub(1).ok_or(TableError::TooDeep)?;
        raw.iter()
            .map(|entry| {
                let (key, value) = entry?;
                Ok((String::from_utf8_lossy(key).into_owned(), Value::decode(value, levels)?))
            })
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Appends length and entries. Keys longer than 255 bytes are cut.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_with_length(out, |out| self.encode_entries(out));
    }

    /// The entries without the length before them: what a [`RawTable`] holds.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode_entries(&mut out);
        out
    }

    fn encode_entries(&self, out: &mut Vec<u8>) {
        for (key, value) in &self.0 {
            out.put_shortstr(key);
            value.encode(out);
        }
    }

    /// Number of entries, duplicates counted.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True when there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The first value under `key`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// The first value under `key`, to be changed.
    pub fn get_mut(&mut self, key: &str) -> Option<&mut Value> {
        self.0.iter_mut().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// Replaces the first value under `key`, or adds an entry at the end.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) {
        let value = value.into();
        match self.get_mut(key) {
            Some(old) => *old = value,
            None => self.0.push((key.to_owned(), value)),
        }
    }

    /// Adds an entry at the end, even if the key is there already.
    pub fn push(&mut self, key: impl Into<String>, value: impl Into<Value>) {
        self.0.push((key.into(), value.into()));
    }

    /// Adds an entry before all others.
    pub fn insert_front(&mut self, key: &str, value: impl Into<Value>) {
        self.0.insert(0, (key.to_owned(), value.into()));
    }

    /// Takes out all entries under `key`; gives the first one's value.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        let at = self.0.iter().position(|(name, _)| name == key)?;
        let (_, value) = self.0.remove(at);
        self.0.retain(|(name, _)| name != key);
        Some(value)
    }

    /// Keys and values in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value))
    }
}

impl FromIterator<(String, Value)> for Table {
    fn from_iter<I: IntoIterator<Item = (String, Value)>>(entries: I) -> Self {
        Self(entries.into_iter().collect())
    }
}

impl IntoIterator for Table {
    type Item = (String, Value);
    type IntoIter = std::vec::IntoIter<(String, Value)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

fn decode_array(raw: RawArray<'_>, levels: usize) -> Result<Vec<Value>, TableError> {
    let levels = levels.checked_sub(1).ok_or(TableError::TooDeep)?;
    raw.iter().map(|value| Value::decode(value?, levels)).collect()
}

fn put(out: &mut Vec<u8>, kind: u8, bytes: &[u8]) {
    out.push(kind);
    out.extend_from_slice(bytes);
}

fn put_long(out: &mut Vec<u8>, kind: u8, bytes: &[u8]) {
    out.push(kind);
    out.put_longstr(bytes);
}

fn put_nested(out: &mut Vec<u8>, kind: u8, content: impl FnOnce(&mut Vec<u8>)) {
    out.push(kind);
    put_with_length(out, content);
}

/// Writes a length of four bytes once what it measures has been written.
fn put_with_length(out: &mut Vec<u8>, content: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.put_u32(0);
    let start = out.len();
    content(out);
    let len = out.len().saturating_sub(start);
    if let Some(place) = out.get_mut(at..start) {
        place.copy_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes());
    }
}
