//! A line of the log as text: one event is one line, whatever a client has in its names.

use std::fmt::{self, Debug, Write};

use tracing::field::{Field, Visit};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::Writer;

use super::limits::FROM;

/// The message, then `name=value` of each field. Who caused a line stands in its message.
#[derive(Debug)]
pub(super) struct OneLine;

impl<'w> FormatFields<'w> for OneLine {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'w>, fields: R) -> fmt::Result {
        let mut text = Text { writer, is_empty: true, result: Ok(()) };
        fields.record(&mut text);
        text.result
    }
}

struct Text<'w> {
    writer: Writer<'w>,
    is_empty: bool,
    result: fmt::Result,
}

impl Visit for Text<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.record_debug(field, &format_args!("{value}")),
            _ => self.record_debug(field, &value),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == FROM || self.result.is_err() {
            return;
        }
        let gap = if std::mem::take(&mut self.is_empty) { "" } else { " " };
        let mut out = Escaped(&mut self.writer);
        self.result = match field.name() {
            "message" => write!(out, "{gap}{value:?}"),
            name => write!(out, "{gap}{}={value:?}", name.trim_start_matches("r#")),
        };
    }
}

/// Writes control characters as Rust does in a literal: `\n`, `\u{1b}`.
struct Escaped<'a, W>(&'a mut W);

impl<W: Write> Write for Escaped<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some(at) = rest.find(char::is_control) {
            let (plain, from) = rest.split_at(at);
            self.0.write_str(plain)?;
            let mut letters = from.chars();
            letters.next().map_or(Ok(()), |it| write!(self.0, "{}", it.escape_default()))?;
            rest = letters.as_str();
        }
        self.0.write_str(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn control_characters() {
        let check = |text: &str, want: &str| {
            let mut got = String::new();
            Escaped(&mut got).write_str(text).expect("a string takes all");
            assert_eq!(got, want);
        };
        check("",             "");
        check("plain 'text'", "plain 'text'");
        check("a\nb\r\n",     "a\\nb\\r\\n");
        check("\x1b[31mred",  "\\u{1b}[31mred");
        check("\u{85}",       "\\u{85}"); // the next line, of ISO 6429
        check("übersetzt",    "übersetzt");
    }
}
