//! Methods and content between script words and bytes.

use std::fmt::Write as _;

use crate::spec::{Kind, Method, Spec};
use crate::text::{Call, Content, Term, Vars};
use crate::value::{
    Garbled, Reader, Value, put_long_str, put_number, put_short_str, put_table, write_text,
    write_value,
};

/// Properties in flag order, highest bit first, with their kinds.
const PROPERTIES: [(&str, Kind); 14] = [
    ("content-type", Kind::ShortStr),
    ("content-encoding", Kind::ShortStr),
    ("headers", Kind::Table),
    ("delivery-mode", Kind::Octet),
    ("priority", Kind::Octet),
    ("correlation-id", Kind::ShortStr),
    ("reply-to", Kind::ShortStr),
    ("expiration", Kind::ShortStr),
    ("message-id", Kind::ShortStr),
    ("timestamp", Kind::LongLong),
    ("type", Kind::ShortStr),
    ("user-id", Kind::ShortStr),
    ("app-id", Kind::ShortStr),
    ("cluster-id", Kind::ShortStr),
];

/// A received method, with its content if it has one.
#[derive(Clone, Debug)]
pub struct Message {
    /// Which method.
    pub method: &'static Method,
    /// One per field, reserved ones included. Numbers have the type `#`.
    pub fields: Vec<Value>,
    /// Body and properties.
    pub content: Option<Received>,
}

/// Received content.
#[derive(Clone, Debug)]
pub struct Received {
    /// In flag order.
    pub properties: Vec<(&'static str, Value)>,
    /// All body frames joined.
    pub body: Vec<u8>,
}

/// Encodes a call to the payload of a method frame.
pub fn encode_call(call: &Call, vars: &Vars) -> Result<(&'static Method, Vec<u8>), String> {
    let method =
        Spec::get().by_name(&call.name).ok_or_else(|| format!("unknown method {}", call.name))?;
    let laid = lay_out(method, call)?;
    let mut out = Vec::new();
    put_number(&mut out, u64::from(method.id.0), 2);
    put_number(&mut out, u64::from(method.id.1), 2);
    let mut bits = Bits::default();
    for (field, item) in method.fields.iter().zip(laid) {
        if field.kind == Kind::Bit {
            bits.put(&mut out, matches!(item, FieldSpec::Set));
            continue;
        }
        bits.end();
        let value = match item {
            FieldSpec::Term(item) => Some(item.value(vars)?),
            _ => None,
        };
        put_field(&mut out, field.kind, value).map_err(|e| format!("{}: {e}", field.name))?;
    }
    Ok((method, out))
}

#[derive(Default)]
struct Bits {
    used: u8,
}

impl Bits {
    fn put(&mut self, out: &mut Vec<u8>, is_set: bool) {
        if self.used.is_multiple_of(8) {
            out.push(0);
            self.used = 0;
        }
        if let Some(last) = out.last_mut() {
            *last |= u8::from(is_set) << self.used;
        }
        self.used += 1;
    }

    fn end(&mut self) {
        self.used = 0;
    }
}

/// What a call says about one field of its method.
enum FieldSpec<'a> {
    Absent,
    Set,
    Term(&'a Term),
}

/// Brings the words of a call into the order of the fields.
fn lay_out<'a>(method: &Method, call: &'a Call) -> Result<Vec<FieldSpec<'a>>, String> {
    let mut slots: Vec<FieldSpec<'a>> = method.fields.iter().map(|_| FieldSpec::Absent).collect();
    let is_open = |i: usize| {
        let field = &method.fields[i];
        field.kind != Kind::Bit && !field.is_reserved
    };
    let mut next = 0;
    for item in &call.args {
        if let Term::Text(word) = item
            && let Some(at) = method
                .fields
                .iter()
                .position(|f| f.kind == Kind::Bit && f.name.as_bytes() == word.as_slice())
        {
            slots[at] = FieldSpec::Set;
            continue;
        }
        // A table may come before strings left out.
        let is_table = matches!(item, Term::Table(..));
        while next < slots.len()
            && (!is_open(next) || is_table && method.fields[next].kind != Kind::Table)
        {
            next += 1;
        }
        let slot = slots.get_mut(next).ok_or_else(|| format!("too many arguments: {item:?}"))?;
        *slot = FieldSpec::Term(item);
        next += 1;
    }
    for (name, item) in &call.named {
        let at = method
            .fields
            .iter()
            .position(|f| f.name == *name)
            .ok_or_else(|| format!("{} has no {name}", method.name))?;
        slots[at] = match item {
            Term::Scalar(Value::Bool(true)) if method.fields[at].kind == Kind::Bit => {
                FieldSpec::Set
            }
            _ => FieldSpec::Term(item),
        };
    }
    Ok(slots)
}

fn put_field(out: &mut Vec<u8>, kind: Kind, value: Option<Value>) -> Result<(), String> {
    let width = match kind {
        Kind::Octet => 1,
        Kind::Short => 2,
        Kind::Long => 4,
        Kind::LongLong => 8,
        _ => 0,
    };
    match (kind, value) {
        (Kind::ShortStr, Some(Value::Str(text))) => put_short_str(out, &text),
        // Where a text is wanted a number in a script is its digits.
        (Kind::ShortStr, Some(Value::Int(_, n))) => put_short_str(out, n.to_string().as_bytes()),
        (Kind::LongStr, Some(Value::Str(text) | Value::Bytes(text))) => put_long_str(out, &text),
        (Kind::LongStr, Some(Value::Table(entries))) => {
            let mut table = Vec::new();
            put_table(&mut table, &entries);
            out.extend_from_slice(&table);
        }
        (Kind::Table, Some(Value::Table(entries))) => put_table(out, &entries),
        (Kind::ShortStr, None) => put_short_str(out, b""),
        (Kind::LongStr, None) => put_long_str(out, b""),
        (Kind::Table, None) => put_table(out, &[]),
        (_, Some(Value::Int(_, n))) if width > 0 => put_number(out, n as u64, width),
        (_, Some(Value::Time(n))) if width > 0 => put_number(out, n, width),
        (_, None) if width > 0 => put_number(out, 0, width),
        (kind, value) => return Err(format!("{value:?} is no {kind:?}")),
    }
    Ok(())
}

/// Encodes content to header payload and body.
pub fn encode_content(content: &Content, vars: &Vars) -> Result<(Vec<u8>, Vec<u8>), String> {
    let body = match content.body.value(vars)? {
        Value::Str(text) | Value::Bytes(text) => text,
        Value::Int(_, n) => n.to_string().into_bytes(),
        other => return Err(format!("{other:?} is no body")),
    };
    let mut flags = 0_u64;
    let mut fields = Vec::new();
    for (name, _) in &content.properties {
        if !PROPERTIES.iter().any(|(known, _)| known == name) {
            return Err(format!("no property {name}"));
        }
    }
    for (i, (name, kind)) in PROPERTIES.iter().enumerate() {
        if let Some((_, item)) = content.properties.iter().find(|(n, _)| n == name) {
            flags |= 1 << (15 - i);
            put_field(&mut fields, *kind, Some(item.value(vars)?))?;
        }
    }
    let mut header = Vec::new();
    put_number(&mut header, 60, 2);
    put_number(&mut header, 0, 2);
    put_number(&mut header, body.len() as u64, 8);
    put_number(&mut header, flags, 2);
    header.extend_from_slice(&fields);
    Ok((header, body))
}

/// Decodes the payload of a method frame.
pub fn decode_method(payload: &[u8]) -> Result<Message, Garbled> {
    let mut reader = Reader(payload);
    let id = (reader.number(2)? as u16, reader.number(2)? as u16);
    let method = Spec::get().by_id(id).ok_or(Garbled::Method(id.0, id.1))?;
    let mut fields = Vec::new();
    let (mut byte, mut used) = (0, 8);
    for field in &method.fields {
        if field.kind == Kind::Bit {
            if used == 8 {
                (byte, used) = (reader.number(1)?, 0);
            }
            fields.push(Value::Bool(byte >> used & 1 == 1));
            used += 1;
        } else {
            used = 8;
            fields.push(get_field(&mut reader, field.kind)?);
        }
    }
    if !reader.0.is_empty() {
        return Err(Garbled::Trailing(reader.0.len()));
    }
    Ok(Message { method, fields, content: None })
}

fn get_field(reader: &mut Reader<'_>, kind: Kind) -> Result<Value, Garbled> {
    Ok(match kind {
        Kind::Octet => Value::Int('#', reader.number(1)? as i64),
        Kind::Short => Value::Int('#', reader.number(2)? as i64),
        Kind::Long => Value::Int('#', reader.number(4)? as i64),
        Kind::LongLong => Value::Int('#', reader.number(8)? as i64),
        Kind::ShortStr => Value::Str(reader.short_str()?),
        Kind::LongStr => Value::Str(reader.long_str()?),
        Kind::Table => Value::Table(reader.table()?),
        Kind::Bit => Value::Bool(reader.number(1)? != 0),
    })
}

/// Decodes a content header to its body size and properties.
pub fn decode_header(payload: &[u8]) -> Result<(u64, Received), Garbled> {
    let mut reader = Reader(payload);
    reader.take(4)?;
    let size = reader.number(8)?;
    let flags = reader.number(2)?;
    let mut properties = Vec::new();
    for (i, (name, kind)) in PROPERTIES.iter().enumerate() {
        if flags >> (15 - i) & 1 == 1 {
            properties.push((*name, get_field(&mut reader, *kind)?));
        }
    }
    Ok((size, Received { properties, body: Vec::new() }))
}

/// Gives a string its variable's name.
pub type Rename<'a> = &'a dyn Fn(&[u8]) -> Option<String>;

impl Message {
    /// The field called `name`, as a text.
    pub fn text(&self, name: &str) -> Option<&[u8]> {
        let at = self.method.fields.iter().position(|f| f.name == name)?;
        match self.fields.get(at)? {
            Value::Str(text) => Some(text),
            _ => None,
        }
    }

    /// The field called `name`, as a number; a bit is 0 or 1.
    pub fn number(&self, name: &str) -> Option<u64> {
        let at = self.method.fields.iter().position(|f| f.name == name)?;
        match self.fields.get(at)? {
            Value::Int(_, n) => Some(*n as u64),
            Value::Bool(yes) => Some(u64::from(*yes)),
            _ => None,
        }
    }

    /// The line of a script that expects exactly this.
    pub fn render(&self, rename: Rename<'_>) -> String {
        let mut out = self.method.name.clone();
        let is_close = matches!(out.as_str(), "channel.close" | "connection.close");
        let mut words: Vec<String> = Vec::new();
        let mut flags: Vec<&str> = Vec::new();
        let mut kept = 0;
        for (field, value) in self.method.fields.iter().zip(&self.fields) {
            let mut word = String::new();
            match value {
                _ if field.is_reserved => continue,
                Value::Bool(yes) => {
                    if *yes {
                        flags.push(&field.name);
                    }
                    continue;
                }
                Value::Int('#', n) => {
                    let _ = write!(word, "{n}");
                }
                Value::Table(entries) if entries.is_empty() => {
                    words.push("{}".to_owned());
                    continue;
                }
                other => {
                    let _ = write_value(&mut word, other, rename);
                }
            }
            words.push(word);
            if !matches!(value, Value::Str(text) if text.is_empty())
                || !matches!(field.kind, Kind::LongStr)
            {
                kept = words.len();
            }
        }
        words.truncate(kept);
        if is_close {
            self.name_the_culprit(&mut words);
        }
        for word in words.iter().map(String::as_str).chain(flags) {
            out.push(' ');
            out.push_str(word);
        }
        if let Some(content) = &self.content {
            out.push_str(" | ");
            content.render(&mut out, rename);
        }
        out
    }

    /// Writes the class and method ids of a close as the method's name.
    fn name_the_culprit(&self, words: &mut Vec<String>) {
        let ids = (self.number("class-id"), self.number("method-id"));
        let (Some(class), Some(method)) = ids else { return };
        let name = match (class, method) {
            (0, 0) => Some("none".to_owned()),
            _ => Spec::get().by_id((class as u16, method as u16)).map(|m| m.name.clone()),
        };
        if let Some(name) = name
            && words.len() == 4
        {
            words.truncate(2);
            words.push(name);
        }
    }

    /// Whether an expected call fits; the reason when not.
    pub fn check(&self, call: &Call, vars: &mut Vars) -> Result<(), String> {
        if call.name != self.method.name {
            return Err("another method".to_owned());
        }
        let call = &with_ids(call);
        let slots = lay_out(self.method, call)?;
        for ((field, value), slot) in self.method.fields.iter().zip(&self.fields).zip(slots) {
            let fits = match slot {
                _ if field.is_reserved => true,
                FieldSpec::Set => value == &Value::Bool(true),
                FieldSpec::Absent => match value {
                    Value::Bool(yes) => !yes,
                    Value::Int(_, n) => *n == 0,
                    Value::Str(text) => text.is_empty(),
                    Value::Table(entries) => entries.is_empty(),
                    _ => false,
                },
                FieldSpec::Term(item) => item.matches(value, vars),
            };
            if !fits {
                return Err(format!("{} differs", field.name));
            }
        }
        match (&self.content, &call.content) {
            (None, None) => Ok(()),
            (Some(received), Some(expected)) => received.check(expected, vars),
            _ => Err("content differs".to_owned()),
        }
    }
}

/// In a close, the name of a method stands for its two ids.
pub fn with_ids(call: &Call) -> Call {
    let mut call = call.clone();
    if matches!(call.name.as_str(), "channel.close" | "connection.close")
        && let [_, _, Term::Text(name)] = call.args.as_slice()
    {
        let name = String::from_utf8_lossy(name).into_owned();
        let ids =
            if name == "none" { Some((0, 0)) } else { Spec::get().by_name(&name).map(|m| m.id) };
        if let Some((class, method)) = ids {
            call.args.truncate(2);
            call.args.push(Term::Number(i64::from(class)));
            call.args.push(Term::Number(i64::from(method)));
        }
    }
    call
}

impl Received {
    fn render(&self, out: &mut String, rename: Rename<'_>) {
        let _ = write_text(out, &self.body);
        for (name, value) in &self.properties {
            let _ = write!(out, " {name}=");
            let _ = match value {
                Value::Int('#', n) => write!(out, "{n}"),
                value => write_value(out, value, rename),
            };
        }
    }

    fn check(&self, expected: &Content, vars: &mut Vars) -> Result<(), String> {
        let body = match &expected.body {
            Term::Number(n) => Term::Text(n.to_string().into_bytes()),
            other => other.clone(),
        };
        if !body.matches(&Value::Str(self.body.clone()), vars) {
            return Err("body differs".to_owned());
        }
        for (name, item) in &expected.properties {
            let Some((_, value)) = self.properties.iter().find(|(n, _)| n == name) else {
                return Err(format!("property {name} is missing"));
            };
            if !item.matches(value, vars) {
                return Err(format!("property {name} differs"));
            }
        }
        if !expected.is_partial && expected.properties.len() != self.properties.len() {
            return Err("there are more properties".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str) {
        let call = Call::parse(line).expect("parses");
        let (_, payload) = encode_call(&with_ids(&call), &Vars::new()).expect("encodes");
        let message = decode_method(&payload).expect("decodes");
        assert_eq!(message.render(&|_| None), line);
        assert_eq!(message.check(&call, &mut Vars::new()), Ok(()));
    }

    #[test]
    fn lines_survive_the_wire() {
        check("queue.declare q durable auto-delete");
        check("queue.declare-ok q 0 0");
        check("queue.declare q {x-max-length=5 a=[l:1 true void] b={c=\"1\"}} durable");
        check("basic.ack 7 multiple");
        check("channel.close 404 \"NOT_FOUND - no queue 'q'\" queue.declare");
        check("connection.close 320 bye none");
        check("basic.consume q c no-ack exclusive");
        check("connection.tune 2047 131072 60");
    }
}
