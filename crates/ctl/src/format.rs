//! Answers as text: lines, tables, framed tables, JSON, CSV and Erlang's terms, as RabbitMQ's tools print them.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::args::{Common, Formatter};
use crate::call::Answer;
use crate::columns::Row;

/// An answer in the chosen shape, each line ended.
pub(crate) fn answer(answer: &Answer, common: &Common) -> String {
    let line = |text: &dyn std::fmt::Display| format!("{text}\n");
    match (answer, common.formatter) {
        (Answer::Rows(columns, all), _) => {
            let names: Vec<String> = columns.iter().map(|column| column.name.to_owned()).collect();
            rows(all, &names, common)
        }
        (Answer::Done, Formatter::Json) => line(&json!({"result": "ok"})),
        (Answer::Done | Answer::Nothing, _) => String::new(),
        (Answer::Message(text), Formatter::Json) => line(&json!({"result": "ok", "message": text})),
        (Answer::Message(text), _) => line(text),
        (Answer::Value(value), Formatter::Json) => line(&json!({"result": "ok", "value": value})),
        (Answer::Value(value) | Answer::Document(value, _), Formatter::Erlang) => {
            line(&erlang(value))
        }
        (Answer::Value(value), _) => line(&cell(value)),
        (Answer::Document(value, _), Formatter::Json) => line(value),
        (Answer::Document(_, text), _) => text.clone(),
    }
}

/// The rows in the chosen shape. Only `columns` are shown, in their order.
fn rows(rows: &[Row], columns: &[String], common: &Common) -> String {
    let has_header = !common.no_table_headers && !common.silent;
    match common.formatter {
        Formatter::Table => table(rows, columns, has_header),
        Formatter::PrettyTable => pretty_table(rows, columns),
        Formatter::Json => json(rows, columns),
        Formatter::Csv => csv(rows, columns),
        Formatter::Erlang => erlang_rows(rows, columns),
    }
}

/// Each row as a list of pairs.
fn erlang_rows(rows: &[Row], columns: &[String]) -> String {
    let row = |row: &Row| {
        let pairs = columns.iter().map(|column| {
            format!("{{{},{}}}", atom(column), erlang(row.get(column).unwrap_or(&Value::Null)))
        });
        format!("[{}]", pairs.collect::<Vec<_>>().join(",\n  "))
    };
    let rows: Vec<_> = rows.iter().map(row).collect();
    format!("[{}]\n", rows.join(",\n "))
}

fn atom(name: &str) -> String {
    let is_plain = name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if is_plain { name.to_owned() } else { format!("'{name}'") }
}

/// A value as an Erlang term: texts are binaries, objects lists of pairs.
fn erlang(value: &Value) -> String {
    match value {
        Value::Null => "undefined".to_owned(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(_) => format!("<<{value}>>"),
        Value::Array(items) => {
            format!("[{}]", items.iter().map(erlang).collect::<Vec<_>>().join(","))
        }
        Value::Object(entries) => {
            let pairs = entries.iter().map(|(key, value)| {
                format!("{{<<{}>>,{}}}", Value::from(key.as_str()), erlang(value))
            });
            format!("[{}]", pairs.collect::<Vec<_>>().join(","))
        }
    }
}

fn table(rows: &[Row], columns: &[String], has_header: bool) -> String {
    let mut text = String::new();
    // As in RabbitMQ, an empty list has no header either.
    if has_header && !rows.is_empty() {
        let _ = writeln!(text, "{}", columns.join("\t"));
    }
    for row in rows {
        let _ = writeln!(text, "{}", cells(row, columns).join("\t"));
    }
    text
}

fn pretty_table(rows: &[Row], columns: &[String]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let lines: Vec<_> = rows.iter().map(|row| cells(row, columns)).collect();
    let widths: Vec<usize> = (0..columns.len())
        .map(|at| {
            let all = lines.iter().map(|line| &line[at]).chain([&columns[at]]);
            all.map(|cell| cell.chars().count()).max().unwrap_or(0) + 1
        })
        .collect();
    let rule = |left: char, middle: char, right: char| {
        let bars: Vec<String> = widths.iter().map(|width| "\u{2500}".repeat(*width + 1)).collect();
        format!("{left}{}{right}\n", bars.join(&middle.to_string()))
    };
    let line = |cells: &[String]| {
        let mut text = String::from('\u{2502}');
        for (cell, width) in cells.iter().zip(&widths) {
            let _ = write!(text, " {cell:<width$}\u{2502}");
        }
        text.push('\n');
        text
    };
    let mut text = rule('\u{250c}', '\u{252c}', '\u{2510}') + &line(columns);
    for cells in &lines {
        text += &rule('\u{251c}', '\u{253c}', '\u{2524}');
        text += &line(cells);
    }
    text + &rule('\u{2514}', '\u{2534}', '\u{2518}')
}

fn json(rows: &[Row], columns: &[String]) -> String {
    let mut text = String::from("[");
    for (at, row) in rows.iter().enumerate() {
        text.push_str(if at == 0 { "\n{" } else { "\n,{" });
        for (at, column) in columns.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            let value = row.get(column).unwrap_or(&Value::Null);
            let _ = write!(text, "{comma}{}:{value}", Value::from(column.as_str()));
        }
        text.push('}');
    }
    text + "\n]\n"
}

fn csv(rows: &[Row], columns: &[String]) -> String {
    let mut text = String::new();
    let mut line = |cells: &[String]| {
        let cells: Vec<_> = cells.iter().map(|cell| csv_cell(cell)).collect();
        text.push_str(&cells.join(","));
        text.push('\n');
    };
    if !rows.is_empty() {
        line(columns);
    }
    rows.iter().for_each(|row| line(&cells(row, columns)));
    text
}

fn csv_cell(cell: &str) -> String {
    format!("\"{}\"", cell.replace('"', "\"\""))
}

fn cells(row: &Row, columns: &[String]) -> Vec<String> {
    columns.iter().map(|column| row.get(column).map_or_else(String::new, cell)).collect()
}

/// A value as RabbitMQ's tables show it: names as they are, arguments as `[{"key",value}]`.
pub(crate) fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(cell).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(_) => term(value),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}

/// A value within arguments, in which texts are quoted.
fn term(value: &Value) -> String {
    match value {
        Value::Object(entries) => {
            let entries: Vec<_> = entries
                .iter()
                .map(|(key, value)| format!("{{{},{}}}", Value::from(key.as_str()), term(value)))
                .collect();
            format!("[{}]", entries.join(","))
        }
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(term).collect();
            format!("[{}]", items.join(","))
        }
        Value::Null => "undefined".to_owned(),
        _ => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::CtlArgs;
    use crate::call::Call;
    use crate::columns;

    #[derive(clap::Parser)]
    struct Tool {
        #[command(flatten)]
        args: CtlArgs,
    }

    /// What is printed with these words, of two queues. Beside the words: what RabbitMQ 4.0's rabbitmqctl prints, but
    /// for the frames, which it draws with a terminal's own letters.
    #[test]
    #[rustfmt::skip] // a table
    fn rows_in_every_shape() {
        check("",                       "name\targuments\norders\t[{\"x-max-length\",5}]\na,b\t[]\n");
        check("-q",                     "name\targuments\norders\t[{\"x-max-length\",5}]\na,b\t[]\n");
        check("-s",                     "orders\t[{\"x-max-length\",5}]\na,b\t[]\n");
        check("--no-table-headers",     "orders\t[{\"x-max-length\",5}]\na,b\t[]\n");
        check("--formatter json",       "[\n{\"name\":\"orders\",\"arguments\":{\"x-max-length\":5}}\n,{\"name\":\"a,b\",\"arguments\":{}}\n]\n");
        check("--formatter csv",        "\"name\",\"arguments\"\n\"orders\",\"[{\"\"x-max-length\"\",5}]\"\n\"a,b\",\"[]\"\n");
        check("--formatter erlang",     "[[{name,<<\"orders\">>},\n  {arguments,[{<<\"x-max-length\">>,5}]}],\n [{name,<<\"a,b\">>},\n  {arguments,[]}]]\n");
        check("--formatter pretty_table",
            "\
┌────────┬──────────────────────┐
│ name   │ arguments            │
├────────┼──────────────────────┤
│ orders │ [{\"x-max-length\",5}] │
├────────┼──────────────────────┤
│ a,b    │ []                   │
└────────┴──────────────────────┘
");
    }

    #[track_caller]
    fn check(words: &str, want: &str) {
        let all = json!([
            {"name": "orders", "messages": 1, "arguments": {"x-max-length": 5}},
            {"name": "a,b", "messages": 2, "arguments": {}},
        ]);
        let rows = Call::rows_of(&all, columns::all(&["name", "arguments"]));
        assert_eq!(shown(&rows, words), want);
    }

    fn shown(told: &Answer, words: &str) -> String {
        let words = ["ctl", "list_queues"].into_iter().chain(words.split_whitespace());
        answer(told, &Tool::try_parse_from(words).unwrap().args.common)
    }

    #[test]
    fn empty_lists_have_no_header() {
        let none = Answer::Rows(columns::all(&["name"]), Vec::new());
        assert_eq!(shown(&none, ""), "");
        assert_eq!(shown(&none, "--formatter csv"), "");
        assert_eq!(shown(&none, "--formatter json"), "[\n]\n");
        assert_eq!(shown(&none, "--formatter erlang"), "[]\n");
    }

    #[test]
    fn other_answers() {
        let check = |told: Answer, plain: &str, json: &str| {
            assert_eq!(shown(&told, ""), plain);
            assert_eq!(shown(&told, "--formatter json"), json);
        };
        check(Answer::Done, "", "{\"result\":\"ok\"}\n");
        check(Answer::Message("x".into()), "x\n", "{\"message\":\"x\",\"result\":\"ok\"}\n");
        check(Answer::Value(json!("x")), "x\n", "{\"result\":\"ok\",\"value\":\"x\"}\n");
        check(Answer::Document(json!({"a": 1}), "A: 1\n".into()), "A: 1\n", "{\"a\":1}\n");
    }
}
