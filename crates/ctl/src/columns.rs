//! Columns of lists: the names that RabbitMQ's tools have for them, and where the management API has them.
//!
//! A column is written as `name`, as `name=path.in.the.row`, or as `name='text` if it is always the same. A name that ends in `!` is shown as JSON
//! text by every formatter, as rabbitmqctl does with definitions of policies.

use serde_json::Value;

use crate::fault::Fault;

/// One row of a list, by column.
pub(crate) type Row = serde_json::Map<String, Value>;

/// A column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) name: &'static str,
    /// Where the API has it, parts divided by points.
    pub(crate) path: &'static str,
    is_json: bool,
}

impl Column {
    pub(crate) fn parse(text: &'static str) -> Self {
        let (name, path) = text.split_once('=').unwrap_or((text, text));
        let name = name.trim_end_matches('!');
        Self { name, path: path.trim_end_matches('!'), is_json: text.contains('!') }
    }

    /// What to ask the API for, unless it is always the same.
    pub(crate) fn asked(self) -> Option<&'static str> {
        (!self.path.starts_with('\'')).then_some(self.path)
    }

    fn of(self, row: &Value) -> Value {
        if let Some(text) = self.path.strip_prefix('\'') {
            return Value::from(text);
        }
        let found = self.path.split('.').try_fold(row, |value, part| value.get(part));
        match found {
            Some(value) if self.is_json => Value::String(value.to_string()),
            // Erlang's '' is what RabbitMQ's tools show for nothing.
            None | Some(Value::Null) => Value::from(""),
            Some(value) => value.clone(),
        }
    }
}

/// All of a list.
pub(crate) fn all(columns: &[&'static str]) -> Vec<Column> {
    columns.iter().map(|text| Column::parse(text)).collect()
}

/// The columns asked for, or the default ones; several may be in one word.
pub(crate) fn choose(
    asked: &[String],
    default: &[&str],
    known: &[&'static str],
) -> Result<Vec<Column>, Fault> {
    let known = all(known);
    let asked: Vec<&str> =
        asked.iter().flat_map(|word| word.split([' ', ','])).filter(|it| !it.is_empty()).collect();
    let names = if asked.is_empty() { default } else { &asked };
    let find = |name: &&str| known.iter().find(|column| column.name == *name).copied();
    let unknown: Vec<_> = names.iter().filter(|name| find(name).is_none()).copied().collect();
    if !unknown.is_empty() {
        let known: Vec<_> = known.iter().map(|column| column.name).collect();
        return Err(Fault::usage(format!(
            "Info key(s) {} are not supported; there are {}",
            unknown.join(","),
            known.join(", ")
        )));
    }
    Ok(names.iter().filter_map(find).collect())
}

/// A row of the API as a row of columns.
pub(crate) fn row(columns: &[Column], row: &Value) -> Row {
    columns.iter().map(|column| (column.name.to_owned(), column.of(row))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn columns_find_their_place() {
        let columns = all(&["name", "queue_name=queue.name", "definition!", "none=a.b", "kind='x"]);
        let of_api = json!({"name": "n", "queue": {"name": "q"}, "definition": {"a": 1}});
        let want = json!({"name": "n", "queue_name": "q", "definition": "{\"a\":1}", "none": "", "kind": "x"});
        assert_eq!(Value::from(row(&columns, &of_api)), want);
    }

    #[test]
    #[rustfmt::skip] // a table
    fn choices() {
        check(&[],             Some("name"));
        check(&["type"],       Some("type"));
        check(&["type,name"],  Some("type name"));
        check(&["type name"],  Some("type name"));
        check(&["colour"],     None);
    }

    #[track_caller]
    fn check(asked: &[&str], want: Option<&str>) {
        let asked: Vec<_> = asked.iter().map(ToString::to_string).collect();
        let got = choose(&asked, &["name"], &["name", "type=kind"]).ok();
        let got = got.map(|columns| columns.iter().map(|it| it.name).collect::<Vec<_>>().join(" "));
        assert_eq!(got.as_deref(), want);
    }
}
