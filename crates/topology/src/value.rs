//! Argument values as RabbitMQ compares and prints them: its texts show Erlang terms.

use core::fmt::Write as _;

use leveret_amqp::table::{MAX_DEPTH, SHORT_STR_MAX, Table, Value};

/// The value within quotes of a text: strings as they are, everything else as a term.
pub(crate) fn plain(value: &Value) -> String {
    match value {
        Value::LongStr(bytes) | Value::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        _ => term(value),
    }
}

/// The value as an Erlang term.
pub(crate) fn term(value: &Value) -> String {
    let mut out = String::new();
    write_term(value, &mut out);
    out
}

fn write_term(value: &Value, out: &mut String) {
    // Writing to a string does not fail.
    let _ = match value {
        Value::Bool(b) => write!(out, "{b}"),
        Value::F32(n) => write!(out, "{n:?}"),
        Value::F64(n) => write!(out, "{n:?}"),
        Value::Decimal { scale, value } => write!(out, "{{{scale},{value}}}"),
        Value::LongStr(bytes) | Value::Bytes(bytes) => {
            write!(out, "<<\"{}\">>", String::from_utf8_lossy(bytes))
        }
        Value::Timestamp(n) => write!(out, "{n}"),
        Value::Void => write!(out, "undefined"),
        Value::Array(items) => {
            list(out, items, |item, out| {
                let _ = write!(out, "{{{},", item.kind_name());
                write_term(item, out);
                out.push('}');
            });
            Ok(())
        }
        Value::Table(table) => {
            list(out, table.iter(), |(name, item), out| {
                let _ = write!(out, "{{<<\"{name}\">>,{},", item.kind_name());
                write_term(item, out);
                out.push('}');
            });
            Ok(())
        }
        number => write!(out, "{}", number.as_i64().unwrap_or_default()),
    };
}

fn list<T>(
    out: &mut String,
    items: impl IntoIterator<Item = T>,
    mut each: impl FnMut(T, &mut String),
) {
    out.push('[');
    for (at, item) in items.into_iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        each(item, out);
    }
    out.push(']');
}

/// A JSON value as an Erlang term.
pub(crate) fn json_term(value: &serde_json::Value) -> String {
    use serde_json::Value as Json;
    let mut out = String::new();
    match value {
        Json::Null => out.push_str("null"),
        Json::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Json::Number(n) => out.push_str(&n.to_string()),
        Json::String(s) => {
            let _ = write!(out, "<<\"{s}\">>");
        }
        Json::Array(items) => {
            list(&mut out, items, |item, out| out.push_str(&json_term(item)));
        }
        Json::Object(map) => list(&mut out, map, |(name, item), out| {
            let _ = write!(out, "{{<<\"{name}\">>,{}}}", json_term(item));
        }),
    }
    out
}

/// Why two values of an argument are not the same: how RabbitMQ writes the received and the
/// current one. `None` when they are the same.
///
/// Types of one class (all integers, all floats) are compared by value. `x-queue-type: classic` is the
/// same as none at all.
pub(crate) fn difference(
    name: &str,
    current: Option<&Value>,
    received: Option<&Value>,
) -> Option<(String, String)> {
    match (current, received) {
        (None, None) => None,
        (Some(current), Some(received)) => {
            (!same(current, received)).then(|| (quoted(received), quoted(current)))
        }
        (current, received) => {
            let given = current.or(received)?;
            if name == "x-queue-type" && given.as_str() == Some("classic") {
                return None;
            }
            let print = |value: Option<&Value>| match value {
                None => "none".to_owned(),
                Some(v) => format!("the value '{}' of type '{}'", plain(v), v.kind_name()),
            };
            Some((print(received), print(current)))
        }
    }
}

fn quoted(value: &Value) -> String {
    format!("'{}'", plain(value))
}

/// Equal but for the width of numbers.
#[allow(clippy::float_cmp)] // equality is what is asked
pub(crate) fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::F32(_) | Value::F64(_), Value::F32(_) | Value::F64(_)) => float(a) == float(b),
        (Value::LongStr(a) | Value::Bytes(a), Value::LongStr(b) | Value::Bytes(b)) => a == b,
        _ => match (whole(a), whole(b)) {
            (Some(a), Some(b)) => a == b,
            _ => a == b,
        },
    }
}

/// As [`Value::as_i64`], but a timestamp counts: RabbitMQ compares values without their types.
fn whole(value: &Value) -> Option<i128> {
    match value {
        Value::Timestamp(n) => Some((*n).into()),
        _ => value.as_i64().map(Into::into),
    }
}

fn float(value: &Value) -> Option<f64> {
    match *value {
        Value::F32(n) => Some(n.into()),
        Value::F64(n) => Some(n),
        _ => None,
    }
}

/// An argument table from the JSON of definitions and of the HTTP API.
pub fn table_from_json(map: &serde_json::Map<String, serde_json::Value>) -> Table {
    let mut table = Table::new();
    for (name, value) in map {
        table.push(name.as_str(), from_json(value));
    }
    table
}

fn from_json(value: &serde_json::Value) -> Value {
    use serde_json::Value as Json;
    match value {
        Json::Null => Value::Void,
        Json::Bool(b) => Value::Bool(*b),
        Json::Number(n) => match n.as_i64() {
            Some(n) => Value::I64(n),
            None => Value::F64(n.as_f64().unwrap_or_default()),
        },
        Json::String(s) => Value::LongStr(s.clone().into_bytes()),
        Json::Array(items) => Value::Array(items.iter().map(from_json).collect()),
        Json::Object(map) => Value::Table(table_from_json(map)),
    }
}

/// Why a table of JSON is none of AMQP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// A name in it would be cut.
    #[error("a name has more than {SHORT_STR_MAX} bytes")]
    LongName,
    /// No client could read it, and neither could this broker.
    #[error("there are more than {MAX_DEPTH} levels")]
    Deep,
}

/// The same for what comes from outside: a table that is read by those to whom it is sent, and comes back from the disk. JSON
/// itself is at most 127 levels deep.
pub fn checked_table_from_json(
    map: &serde_json::Map<String, serde_json::Value>,
) -> Result<Table, TableError> {
    must_be_a_table(map, MAX_DEPTH)?;
    Ok(table_from_json(map))
}

fn must_be_a_table(
    map: &serde_json::Map<String, serde_json::Value>,
    levels: usize,
) -> Result<(), TableError> {
    let levels = levels.checked_sub(1).ok_or(TableError::Deep)?;
    map.iter().try_for_each(|(name, value)| {
        if name.len() > SHORT_STR_MAX {
            return Err(TableError::LongName);
        }
        must_be_values([value], levels)
    })
}

fn must_be_values<'a>(
    values: impl IntoIterator<Item = &'a serde_json::Value>,
    levels: usize,
) -> Result<(), TableError> {
    use serde_json::Value as Json;
    values.into_iter().try_for_each(|value| match value {
        Json::Object(map) => must_be_a_table(map, levels),
        Json::Array(items) => must_be_values(items, levels.checked_sub(1).ok_or(TableError::Deep)?),
        _ => Ok(()),
    })
}

/// An argument table as definitions and the HTTP API show it.
pub fn table_to_json(table: &Table) -> serde_json::Value {
    let mut map = serde_json::Map::new();
    for (name, value) in table.iter() {
        // Of duplicate names the first one counts.
        map.entry(name).or_insert_with(|| to_json(value));
    }
    serde_json::Value::Object(map)
}

fn to_json(value: &Value) -> serde_json::Value {
    use serde_json::Value as Json;
    match value {
        Value::Bool(b) => (*b).into(),
        Value::F32(_) | Value::F64(_) => float(value).into(),
        Value::Decimal { scale, value } => {
            (f64::from(*value) / 10f64.powi(i32::from(*scale))).into()
        }
        Value::LongStr(bytes) | Value::Bytes(bytes) => {
            String::from_utf8_lossy(bytes).into_owned().into()
        }
        Value::Timestamp(n) => (*n).into(),
        Value::Void => Json::Null,
        Value::Array(items) => items.iter().map(to_json).collect(),
        Value::Table(table) => table_to_json(table),
        number => number.as_i64().into(),
    }
}

/// A table as its bytes, for `serde`.
pub mod table_bytes {
    use leveret_amqp::table::{RawTable, Table};
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer, de};

    /// Writes the bytes.
    ///
    /// # Errors
    ///
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(table: &Table, to: S) -> Result<S::Ok, S::Error> {
        table.to_bytes().serialize(to)
    }

    /// Reads the bytes.
    ///
    /// # Errors
    ///
    /// If they are no table.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Table, D::Error> {
        let bytes = Vec::deserialize(from)?;
        RawTable::new(&bytes).and_then(RawTable::to_table).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is taken is what the wire brings to whom it is sent.
    #[test]
    fn tables_of_json_come_through_their_encoding() {
        use leveret_amqp::table::RawTable;
        let check = |text: String, want: Result<(), TableError>| {
            let map = serde_json::from_str(&text).unwrap();
            let table = checked_table_from_json(&map);
            assert_eq!(table.as_ref().map(drop), want.as_ref().map(drop), "{text}");
            let bytes = table_from_json(&map).to_bytes();
            let back = RawTable::new(&bytes).and_then(Table::decode);
            assert_eq!(back.is_ok_and(|back| Ok(back) == table), want.is_ok(), "{text}");
        };
        let tables = |levels: usize, inside: &str| {
            format!("{}{inside}{}", r#"{"a":"#.repeat(levels), "}".repeat(levels))
        };
        let lists = |levels: usize, inside: &str| {
            format!(r#"{{"a":{}{inside}{}}}"#, "[".repeat(levels), "]".repeat(levels))
        };
        check("{}".to_owned(), Ok(()));
        check(tables(MAX_DEPTH, "1"), Ok(()));
        check(tables(MAX_DEPTH + 1, "1"), Err(TableError::Deep));
        check(tables(MAX_DEPTH, "{}"), Err(TableError::Deep));
        check(lists(MAX_DEPTH - 1, "1"), Ok(()));
        check(lists(MAX_DEPTH, "1"), Err(TableError::Deep));
        check(lists(MAX_DEPTH, ""), Err(TableError::Deep));
        let named = |len: usize| format!(r#"{{"{}":1}}"#, "n".repeat(len));
        check(named(SHORT_STR_MAX), Ok(()));
        check(named(SHORT_STR_MAX + 1), Err(TableError::LongName));
        check(tables(3, &named(SHORT_STR_MAX + 1)), Err(TableError::LongName));
        check(lists(3, &named(SHORT_STR_MAX + 1)), Err(TableError::LongName));
    }
}
