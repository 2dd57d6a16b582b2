//! Rows as text: tables, framed tables, JSON and CSV, as rabbitmqctl prints them.

use std::fmt::Write as _;

use serde_json::Value;

use crate::args::{Common, Formatter};
use crate::protocol::Row;

/// The rows in the chosen shape, each line ended. Only `columns` are shown, in their order.
pub(crate) fn rows(rows: &[Row], columns: &[String], common: &Common) -> String {
    let has_header = !common.no_table_headers && !common.silent;
    match common.formatter {
        Formatter::Table => table(rows, columns, has_header),
        Formatter::PrettyTable => pretty_table(rows, columns),
        Formatter::Json => json(rows, columns),
        Formatter::Csv => csv(rows, columns),
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
        let bars: Vec<String> = widths.iter().map(|width| "\u{2500}".repeat(*width)).collect();
        format!("{left}{}{right}\n", bars.join(&middle.to_string()))
    };
    let line = |cells: &[String]| {
        let mut text = String::from('\u{2502}');
        for (cell, width) in cells.iter().zip(&widths) {
            let _ = write!(text, "{cell:<width$}\u{2502}");
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
    if cell.contains(['"', ',', '\n', '\r']) {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell.to_owned()
    }
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
    use super::*;
    use serde_json::json;

    #[test]
    fn tables() {
        check(Formatter::Table, "name\targuments\norders\t[{\"x-max-length\",5}]\na,b\t[]\n");
        check(
            Formatter::Json,
            "[\n{\"name\":\"orders\",\"arguments\":{\"x-max-length\":5}}\n\
             ,{\"name\":\"a,b\",\"arguments\":{}}\n]\n",
        );
        check(
            Formatter::Csv,
            "name,arguments\norders,\"[{\"\"x-max-length\"\",5}]\"\n\"a,b\",[]\n",
        );
        check(
            Formatter::PrettyTable,
            "┌───────┬─────────────────────┐\n\
             │name   │arguments            │\n\
             ├───────┼─────────────────────┤\n\
             │orders │[{\"x-max-length\",5}] │\n\
             ├───────┼─────────────────────┤\n\
             │a,b    │[]                   │\n\
             └───────┴─────────────────────┘\n",
        );
    }

    #[track_caller]
    fn check(formatter: Formatter, want: &str) {
        let all = json!([
            {"name": "orders", "messages": 1, "arguments": {"x-max-length": 5}},
            {"name": "a,b", "messages": 2, "arguments": {}},
        ]);
        let all: Vec<Row> = serde_json::from_value(all).unwrap();
        let columns = ["name".to_owned(), "arguments".to_owned()];
        assert_eq!(rows(&all, &columns, &common(formatter)), want);
    }

    #[test]
    fn headers() {
        let all: Vec<Row> =
            serde_json::from_value(json!([{"user": "guest", "tags": ["a", "b"]}])).unwrap();
        let columns = ["user".to_owned(), "tags".to_owned()];
        let mut common = common(Formatter::Table);
        assert_eq!(rows(&all, &columns, &common), "user\ttags\nguest\t[a, b]\n");
        common.silent = true;
        assert_eq!(rows(&all, &columns, &common), "guest\t[a, b]\n");
        assert_eq!(rows(&[], &columns, &common), "");
        common.formatter = Formatter::Json;
        assert_eq!(rows(&[], &columns, &common), "[\n]\n");
    }

    fn common(formatter: Formatter) -> Common {
        Common {
            socket: None,
            vhost: "/".to_owned(),
            formatter,
            quiet: false,
            silent: false,
            no_table_headers: false,
            timeout: 60,
            node: None,
            longnames: false,
        }
    }
}
