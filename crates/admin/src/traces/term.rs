//! Field tables as Erlang writes them, in RabbitMQ's text files: `~tp`, on lines of 80 characters.
//!
//! What fits its line stands on it. Of what does not, tuples and lists of plain terms are filled line by line, and lists of
//! tuples have a line for each.

use leveret_amqp::table::{Table, Value};

/// Characters of a line, and of what stands on it beside its indentation.
const LINE: usize = 80;
const RIBBON: usize = 60;

/// A term.
#[derive(Debug)]
enum Term {
    /// Written as it stands.
    Plain(String),
    /// A name, after which the rest of its tuple is aligned.
    Atom(&'static str),
    /// Bytes that are no text, written as numbers.
    Bytes(Vec<u8>),
    Tuple(Vec<Term>),
    List(Vec<Term>),
}

/// A table as properties and headers are written, behind `indent` characters.
pub(super) fn table(of: &Table, indent: usize) -> String {
    pretty(&entries(of), indent)
}

/// A list of binaries, behind `indent` characters.
pub(super) fn binaries<'a>(of: impl Iterator<Item = &'a [u8]>, indent: usize) -> String {
    pretty(&Term::List(of.map(binary).collect()), indent)
}

fn pretty(term: &Term, indent: usize) -> String {
    let mut out = String::new();
    put(term, indent, 1, &mut out);
    out
}

fn entries(of: &Table) -> Term {
    let entry = |(name, value): (&str, &Value)| {
        let (kind, value) = typed(value);
        Term::Tuple(vec![binary(name.as_bytes()), Term::Atom(kind), value])
    };
    Term::List(of.iter().map(entry).collect())
}

/// The name of a value's type, and the value.
fn typed(value: &Value) -> (&'static str, Term) {
    let plain = |text: String| Term::Plain(text);
    match value {
        Value::Bool(it) => ("bool", plain(it.to_string())),
        Value::I8(it) => ("byte", plain(it.to_string())),
        Value::U8(it) => ("unsignedbyte", plain(it.to_string())),
        Value::I16(it) => ("short", plain(it.to_string())),
        Value::U16(it) => ("unsignedshort", plain(it.to_string())),
        Value::I32(it) => ("signedint", plain(it.to_string())),
        Value::U32(it) => ("unsignedint", plain(it.to_string())),
        Value::I64(it) => ("long", plain(it.to_string())),
        Value::F32(it) => ("float", plain(float(f64::from(*it)))),
        Value::F64(it) => ("double", plain(float(*it))),
        Value::Decimal { scale, value } => ("decimal", plain(format!("{{{scale},{value}}}"))),
        Value::LongStr(it) => ("longstr", binary(it)),
        Value::Array(it) => {
            let item = |value| {
                let (kind, value) = typed(value);
                Term::Tuple(vec![Term::Atom(kind), value])
            };
            ("array", Term::List(it.iter().map(item).collect()))
        }
        Value::Timestamp(it) => ("timestamp", plain(it.to_string())),
        Value::Table(it) => ("table", entries(it)),
        Value::Void => ("void", Term::Atom("undefined")),
        Value::Bytes(it) => ("binary", binary(it)),
    }
}

/// With a point, as every float of Erlang has one.
fn float(number: f64) -> String {
    let text = format!("{number:?}");
    match text.split_once('e') {
        Some((digits, power)) if !digits.contains('.') => format!("{digits}.0e{power}"),
        _ => text,
    }
}

fn binary(bytes: &[u8]) -> Term {
    match text(bytes) {
        Some(text) => Term::Plain(text),
        None => Term::Bytes(bytes.to_vec()),
    }
}

/// A binary that is a text: UTF-8, or else Latin-1, with nothing in it that cannot be printed.
fn text(bytes: &[u8]) -> Option<String> {
    if bytes.is_empty() {
        return Some("<<>>".to_owned());
    }
    let (text, mark) = match std::str::from_utf8(bytes) {
        Ok(text) => (text.to_owned(), if text.is_ascii() { "" } else { "/utf8" }),
        Err(_) => (bytes.iter().map(|&byte| char::from(byte)).collect(), ""),
    };
    let mut out = String::with_capacity(text.len() + 8);
    out.push_str("<<\"");
    for letter in text.chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{b}' => out.push_str("\\v"),
            '\u{c}' => out.push_str("\\f"),
            '\u{1b}' => out.push_str("\\e"),
            letter if letter.is_control() => return None,
            letter => out.push(letter),
        }
    }
    out.push('"');
    out.push_str(mark);
    out.push_str(">>");
    Some(out)
}

/// Characters on one line; more than a line has is as much as it takes.
fn width(term: &Term) -> usize {
    match term {
        Term::Plain(text) => text.chars().count(),
        Term::Atom(name) => name.len(),
        Term::Bytes(bytes) => bytes.iter().map(|&byte| digits(byte) + 1).sum::<usize>() + 3,
        Term::Tuple(items) | Term::List(items) => {
            let mut sum = 2 + items.len().saturating_sub(1);
            for item in items {
                if sum > LINE {
                    break;
                }
                sum += width(item);
            }
            sum
        }
    }
}

fn digits(byte: u8) -> usize {
    match byte {
        0..10 => 1,
        10..100 => 2,
        _ => 3,
    }
}

/// Writes a term at a column, with so many characters after it on its line.
fn put(term: &Term, column: usize, after: usize, out: &mut String) {
    let width = width(term);
    if width <= RIBBON && column + width + after <= LINE {
        return flat(term, out);
    }
    match term {
        Term::Plain(_) | Term::Atom(_) => flat(term, out),
        Term::Bytes(bytes) => numbers(bytes, column, out),
        Term::Tuple(items) => {
            out.push('{');
            fill(items, column + 1, after, out);
            out.push('}');
        }
        Term::List(items) => {
            out.push('[');
            fill(items, column + 1, after, out);
            out.push(']');
        }
    }
}

/// Writes items from a column on: those that are plain one after the other, as many as a line takes.
fn fill(items: &[Term], mut first: usize, after: usize, out: &mut String) {
    let (mut column, mut on_line) = (first, 0);
    for (at, item) in items.iter().enumerate() {
        let is_last = at + 1 == items.len();
        let after = if is_last { after + 1 } else { 1 };
        let width = width(item);
        if at > 0 {
            out.push(',');
            column += 1;
            let is_tag = at == 1 && matches!(items[0], Term::Atom(_));
            let is_plain = !matches!(item, Term::Tuple(_) | Term::List(_));
            let fits = column + width + after <= LINE && on_line + width <= RIBBON;
            if is_tag {
                first = column;
            } else if !(is_plain && fits) {
                line(first, out);
                (column, on_line) = (first, 0);
            }
        }
        put(item, column, after, out);
        column += width;
        on_line += width + 1;
    }
}

fn line(column: usize, out: &mut String) {
    out.push('\n');
    out.extend(std::iter::repeat_n(' ', column));
}

fn flat(term: &Term, out: &mut String) {
    let mut all = |open: char, items: &[Term], close: char| {
        out.push(open);
        for (at, item) in items.iter().enumerate() {
            if at > 0 {
                out.push(',');
            }
            flat(item, out);
        }
        out.push(close);
    };
    match term {
        Term::Plain(text) => out.push_str(text),
        Term::Atom(name) => out.push_str(name),
        Term::Bytes(bytes) => numbers(bytes, 0, out),
        Term::Tuple(items) => all('{', items, '}'),
        Term::List(items) => all('[', items, ']'),
    }
}

/// Bytes as numbers, on as many lines as they take.
fn numbers(bytes: &[u8], column: usize, out: &mut String) {
    out.push_str("<<");
    let mut on_line = 0;
    for (at, &byte) in bytes.iter().enumerate() {
        if at > 0 {
            out.push(',');
            if on_line + digits(byte) >= RIBBON {
                line(column + 2, out);
                on_line = 0;
            }
        }
        out.push_str(&byte.to_string());
        on_line += digits(byte) + 1;
    }
    out.push_str(">>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(of: Vec<(&str, Value)>, want: &str) {
        let mut own = Table::new();
        of.into_iter().for_each(|(name, value)| own.push(name, value));
        assert_eq!(table(&own, 14), want);
    }

    fn of(entries: Vec<(&str, Value)>) -> Value {
        let mut own = Table::new();
        entries.into_iter().for_each(|(name, value)| own.push(name, value));
        Value::Table(own)
    }

    /// As `io_lib:format("Properties:   ~tp~n", [...])` has it (Erlang 25).
    #[test]
    fn tables() {
        check(vec![], "[]");
        check(vec![("a", "b".into())], r#"[{<<"a">>,longstr,<<"b">>}]"#);
        check(
            vec![("content_type", "text/plain".into()), ("delivery_mode", Value::I32(2))],
            "[{<<\"content_type\">>,longstr,<<\"text/plain\">>},\n               \
             {<<\"delivery_mode\">>,signedint,2}]",
        );
        let headers = of(vec![("x", Value::Bool(true)), ("CC", Value::Array(vec!["q2".into()]))]);
        check(
            vec![("priority", Value::I32(2)), ("headers", headers)],
            "[{<<\"priority\">>,signedint,2},\n               {<<\"headers\">>,table,\n                \
             [{<<\"x\">>,bool,true},{<<\"CC\">>,array,[{longstr,<<\"q2\">>}]}]}]",
        );
        let numbers = vec![
            ("f", Value::F32(1.5)),
            ("d", Value::F64(1.0e22)),
            ("d", Value::F64(0.1)),
            ("dec", Value::Decimal { scale: 2, value: 314 }),
            ("v", Value::Void),
        ];
        check(
            numbers,
            "[{<<\"f\">>,float,1.5},\n               {<<\"d\">>,double,1.0e22},\n               \
             {<<\"d\">>,double,0.1},\n               {<<\"dec\">>,decimal,{2,314}},\n               \
             {<<\"v\">>,void,undefined}]",
        );
    }

    /// Recorded in the same way.
    #[test]
    fn deaths() {
        let death = of(vec![
            ("count", Value::I64(1)),
            ("reason", "expired".into()),
            ("queue", "qqqqqqqqqqqqqqqqqqqqqqqqq".into()),
            ("time", Value::Timestamp(1_700_000_000)),
            ("exchange", "".into()),
            ("routing-keys", Value::Array(vec!["aaaa".into()])),
        ]);
        let headers = of(vec![
            ("x-first-death-exchange", "some-exchange".into()),
            ("x-death", Value::Array(vec![death])),
        ]);
        let want = r#"[{<<"headers">>,table,
                [{<<"x-first-death-exchange">>,longstr,<<"some-exchange">>},
                 {<<"x-death">>,array,
                  [{table,[{<<"count">>,long,1},
                           {<<"reason">>,longstr,<<"expired">>},
                           {<<"queue">>,longstr,
                            <<"qqqqqqqqqqqqqqqqqqqqqqqqq">>},
                           {<<"time">>,timestamp,1700000000},
                           {<<"exchange">>,longstr,<<>>},
                           {<<"routing-keys">>,array,
                            [{longstr,<<"aaaa">>}]}]}]}]},
               {<<"delivery_mode">>,signedint,1}]"#;
        check(vec![("headers", headers), ("delivery_mode", Value::I32(1))], want);
    }

    #[test]
    fn lists_of_binaries() {
        let list = |of: &[&[u8]]| binaries(of.iter().copied(), 14);
        assert_eq!(list(&[b"key", b""]), r#"[<<"key">>,<<>>]"#);
        assert_eq!(list(&["\u{f6}".as_bytes(), &[228]]), "[<<\"\u{f6}\"/utf8>>,<<\"\u{e4}\">>]");
        assert_eq!(list(&[&[1, 2, 255], b"a\"\\\n"]), r#"[<<1,2,255>>,<<"a\"\\\n">>]"#);
        let numbers: Vec<String> = (1..=15).map(|it: u8| it.to_string()).collect();
        let numbers: Vec<&[u8]> = numbers.iter().map(String::as_bytes).collect();
        assert_eq!(
            list(&numbers),
            "[<<\"1\">>,<<\"2\">>,<<\"3\">>,<<\"4\">>,<<\"5\">>,<<\"6\">>,<<\"7\">>,\n               \
             <<\"8\">>,<<\"9\">>,<<\"10\">>,<<\"11\">>,<<\"12\">>,<<\"13\">>,<<\"14\">>,\n               \
             <<\"15\">>]"
        );
        let zeros = list(&[&[0; 61]]);
        assert_eq!(zeros.lines().map(str::len).collect::<Vec<_>>(), [63, 77, 21]);
    }
}
