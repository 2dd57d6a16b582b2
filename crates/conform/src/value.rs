//! Field-table values and their wire form.

use std::fmt;

use thiserror::Error;

/// A value of a field table, of an argument or of a property.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `t`
    Bool(bool),
    /// `b`, `B`, `s`, `u`, `I`, `i`, `l`: the wire type and the number.
    Int(char, i64),
    /// `f`, kept as its bits so that values compare exactly.
    Float(u32),
    /// `d`, as bits.
    Double(u64),
    /// `D`
    Decimal(u8, u32),
    /// `S`
    Str(Vec<u8>),
    /// `x`
    Bytes(Vec<u8>),
    /// `A`
    Array(Vec<Self>),
    /// `T`, seconds since the Unix epoch.
    Time(u64),
    /// `F`
    Table(Vec<(Vec<u8>, Self)>),
    /// `V`
    Void,
}

/// The peer's bytes do not make sense.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Garbled {
    /// The end came too early.
    #[error("cut short")]
    Short,
    /// A table value of a type nobody knows.
    #[error("unknown table value type {0:?}")]
    Type(char),
    /// A method nobody knows.
    #[error("unknown method {0}.{1}")]
    Method(u16, u16),
    /// More bytes than the fields need.
    #[error("{0} bytes after the last field")]
    Trailing(usize),
}

/// A cursor over received bytes.
#[derive(Debug)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// The next `n` bytes.
    pub fn take(&mut self, n: usize) -> Result<&'a [u8], Garbled> {
        let (head, tail) = self.0.split_at_checked(n).ok_or(Garbled::Short)?;
        self.0 = tail;
        Ok(head)
    }

    /// A big-endian number of `n` bytes.
    pub fn number(&mut self, n: usize) -> Result<u64, Garbled> {
        Ok(self.take(n)?.iter().fold(0, |sum, b| sum << 8 | u64::from(*b)))
    }

    /// A short string.
    pub fn short_str(&mut self) -> Result<Vec<u8>, Garbled> {
        let n = self.number(1)? as usize;
        Ok(self.take(n)?.to_vec())
    }

    /// A long string.
    pub fn long_str(&mut self) -> Result<Vec<u8>, Garbled> {
        let n = self.number(4)? as usize;
        Ok(self.take(n)?.to_vec())
    }

    /// A table with its length.
    pub fn table(&mut self) -> Result<Vec<(Vec<u8>, Value)>, Garbled> {
        let n = self.number(4)? as usize;
        let mut inner = Reader(self.take(n)?);
        let mut entries = Vec::new();
        while !inner.0.is_empty() {
            let key = inner.short_str()?;
            entries.push((key, inner.value()?));
        }
        Ok(entries)
    }

    fn value(&mut self) -> Result<Value, Garbled> {
        let kind = char::from(self.take(1)?[0]);
        Ok(match kind {
            't' => Value::Bool(self.number(1)? != 0),
            'b' => Value::Int(kind, i64::from(self.number(1)? as i8)),
            'B' => Value::Int(kind, self.number(1)? as i64),
            's' => Value::Int(kind, i64::from(self.number(2)? as i16)),
            'u' => Value::Int(kind, self.number(2)? as i64),
            'I' => Value::Int(kind, i64::from(self.number(4)? as i32)),
            'i' => Value::Int(kind, self.number(4)? as i64),
            'l' => Value::Int(kind, self.number(8)? as i64),
            'f' => Value::Float(self.number(4)? as u32),
            'd' => Value::Double(self.number(8)?),
            'D' => Value::Decimal(self.number(1)? as u8, self.number(4)? as u32),
            'S' => Value::Str(self.long_str()?),
            'x' => Value::Bytes(self.long_str()?),
            'T' => Value::Time(self.number(8)?),
            'V' => Value::Void,
            'F' => Value::Table(self.table()?),
            'A' => {
                let n = self.number(4)? as usize;
                let mut inner = Reader(self.take(n)?);
                let mut items = Vec::new();
                while !inner.0.is_empty() {
                    items.push(inner.value()?);
                }
                Value::Array(items)
            }
            other => return Err(Garbled::Type(other)),
        })
    }
}

/// Appends `n` low bytes of `number`, big-endian.
pub fn put_number(out: &mut Vec<u8>, number: u64, n: usize) {
    out.extend_from_slice(&number.to_be_bytes()[8 - n..]);
}

/// Appends a short string; longer than 255 bytes is a mistake of the script.
pub fn put_short_str(out: &mut Vec<u8>, text: &[u8]) {
    assert!(text.len() < 256, "a short string has at most 255 bytes");
    put_number(out, text.len() as u64, 1);
    out.extend_from_slice(text);
}

/// Appends a long string.
pub fn put_long_str(out: &mut Vec<u8>, text: &[u8]) {
    put_number(out, text.len() as u64, 4);
    out.extend_from_slice(text);
}

/// Appends a table with its length.
pub fn put_table(out: &mut Vec<u8>, entries: &[(Vec<u8>, Value)]) {
    let mut inner = Vec::new();
    for (key, value) in entries {
        put_short_str(&mut inner, key);
        put_value(&mut inner, value);
    }
    put_long_str(out, &inner);
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    let kind = match value {
        Value::Bool(_) => 't',
        Value::Int(kind, _) => *kind,
        Value::Float(_) => 'f',
        Value::Double(_) => 'd',
        Value::Decimal(..) => 'D',
        Value::Str(_) => 'S',
        Value::Bytes(_) => 'x',
        Value::Array(_) => 'A',
        Value::Time(_) => 'T',
        Value::Table(_) => 'F',
        Value::Void => 'V',
    };
    out.push(kind as u8);
    match value {
        Value::Bool(yes) => out.push(u8::from(*yes)),
        Value::Int(kind, n) => put_number(out, *n as u64, int_width(*kind)),
        Value::Float(bits) => put_number(out, u64::from(*bits), 4),
        Value::Double(bits) => put_number(out, *bits, 8),
        Value::Decimal(scale, n) => {
            out.push(*scale);
            put_number(out, u64::from(*n), 4);
        }
        Value::Str(text) | Value::Bytes(text) => put_long_str(out, text),
        Value::Array(items) => {
            let mut inner = Vec::new();
            items.iter().for_each(|item| put_value(&mut inner, item));
            put_long_str(out, &inner);
        }
        Value::Time(seconds) => put_number(out, *seconds, 8),
        Value::Table(entries) => put_table(out, entries),
        Value::Void => {}
    }
}

fn int_width(kind: char) -> usize {
    match kind {
        'b' | 'B' => 1,
        's' | 'u' => 2,
        'I' | 'i' => 4,
        _ => 8,
    }
}

/// A string as a script writes it: bare when that is unambiguous, else quoted.
pub fn write_text(f: &mut impl fmt::Write, text: &[u8]) -> fmt::Result {
    if let [first, rest @ ..] = text
        && rest.len() > 40
        && rest.iter().all(|b| b == first)
        && first.is_ascii_alphanumeric()
    {
        return write!(f, "{}*{}", char::from(*first), text.len());
    }
    match std::str::from_utf8(text) {
        Ok(s) if is_bare(s) => f.write_str(s),
        _ => write_quoted(f, text),
    }
}

fn is_bare(s: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./@#".contains(c);
    s.starts_with(|c: char| c.is_ascii_alphabetic())
        && s.chars().all(plain)
        && !matches!(s, "true" | "false" | "void" | "none")
}

fn write_quoted(f: &mut impl fmt::Write, text: &[u8]) -> fmt::Result {
    f.write_char('"')?;
    for chunk in text.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '"' => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                '\n' => f.write_str("\\n")?,
                '\r' => f.write_str("\\r")?,
                c if c.is_control() && c.is_ascii() => write!(f, "\\x{:02x}", c as u32)?,
                c => f.write_char(c)?,
            }
        }
        for byte in chunk.invalid() {
            write!(f, "\\x{byte:02x}")?;
        }
    }
    f.write_char('"')
}

/// Writes a value as a script does; `rename` may replace a string by a variable.
pub fn write_value(
    f: &mut impl fmt::Write,
    value: &Value,
    rename: &dyn Fn(&[u8]) -> Option<String>,
) -> fmt::Result {
    match value {
        Value::Bool(yes) => write!(f, "{yes}"),
        Value::Int('I', n) => write!(f, "{n}"),
        Value::Int(kind, n) => write!(f, "{kind}:{n}"),
        Value::Float(bits) => write!(f, "f:{}", f32::from_bits(*bits)),
        Value::Double(bits) => write!(f, "d:{}", f64::from_bits(*bits)),
        Value::Decimal(scale, n) => write!(f, "D:{scale}/{n}"),
        Value::Str(text) => match rename(text) {
            Some(name) => write!(f, "${name}"),
            None => write_text(f, text),
        },
        Value::Bytes(text) => {
            f.write_str("x:")?;
            write_quoted(f, text)
        }
        Value::Array(items) => {
            f.write_char('[')?;
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    f.write_char(' ')?;
                }
                write_value(f, item, rename)?;
            }
            f.write_char(']')
        }
        Value::Time(seconds) => write!(f, "T:{seconds}"),
        Value::Table(entries) => {
            f.write_char('{')?;
            for (i, (key, value)) in entries.iter().enumerate() {
                if i > 0 {
                    f.write_char(' ')?;
                }
                write_text(f, key)?;
                f.write_char('=')?;
                // The broker's own clock: no recording can hold it.
                if key == b"time" && matches!(value, Value::Time(_)) {
                    f.write_char('_')?;
                } else {
                    write_value(f, value, rename)?;
                }
            }
            f.write_char('}')
        }
        Value::Void => f.write_str("void"),
    }
}
