//! Lists: sorting, paging, filtering by name, columns, all as RabbitMQ has them.
//!
//! A row costs more than its name. Only the rows of a page are made where it is in the order of names, or of what a
//! cheaper row has, too. Rows are written one by one: a list of ten thousand is never in memory but as text.

use std::cmp::Ordering;

use fancy_regex::RegexBuilder;
use serde_json::{Value, json};

use super::answer::{Answer, Fault, text};
use super::call::Call;

/// Rows on a page that does not say how many.
const PAGE_SIZE: usize = 100;
/// Most rows on a page.
const PAGE_SIZE_MAX: usize = 500;

/// What a request says about its list.
#[derive(Clone, Debug, Default, PartialEq)]
struct Wanted<'a> {
    /// Number, from 1, and size.
    page: Option<(usize, usize)>,
    name: Option<&'a str>,
    use_regex: bool,
    sort: Option<&'a str>,
    reverse: bool,
    columns: Option<Vec<Vec<&'a str>>>,
}

impl<'a> Wanted<'a> {
    fn of(call: &'a Call) -> Result<Self, Fault> {
        let number = |name| match call.query(name) {
            None => Ok(None),
            Some(text) => text.parse::<usize>().map(Some).map_err(|_| {
                Fault::bad(format!("Pagination parameters are invalid: {name} = {text}"))
            }),
        };
        let page = match (number("page")?, number("page_size")?) {
            (None, _) => None,
            (Some(page @ 1..), None) => Some((page, PAGE_SIZE)),
            (Some(page @ 1..), Some(size @ 1..=PAGE_SIZE_MAX)) => Some((page, size)),
            (Some(page), size) => {
                let size = size.map_or_else(|| "undefined".to_owned(), |size| size.to_string());
                return Err(Fault::invalid(
                    "invalid_pagination_parameters",
                    format!("Invalid pagination parameters: page number {page}, page size {size}"),
                ));
            }
        };
        Ok(Self {
            page,
            name: call.query("name").filter(|name| !name.is_empty()),
            use_regex: call.is_asked("use_regex"),
            sort: sort_column(call),
            reverse: call.is_asked("sort_reverse"),
            columns: columns(call),
        })
    }

    /// The rows' order is that of names, which they have already.
    fn is_by_name(&self) -> bool {
        matches!(self.sort, None | Some("name"))
    }
}

fn columns(call: &Call) -> Option<Vec<Vec<&str>>> {
    let text = call.query("columns")?;
    let names = text.split(',').filter(|name| !name.is_empty());
    Some(names.map(|name| name.split('.').filter(|part| !part.is_empty()).collect()).collect())
}

/// Whether nothing is asked for but these columns, and the order of one of them.
pub(crate) fn asks_only(call: &Call, known: &[&str]) -> bool {
    let columns = columns(call)
        .map(|all| all.iter().all(|it| matches!(it[..], [one] if known.contains(&one))));
    columns == Some(true) && sorts_by(call, known)
}

/// Whether the order is that of one of these columns, or none is asked for.
pub(crate) fn sorts_by(call: &Call, known: &[&str]) -> bool {
    sort_column(call).is_none_or(|sort| known.contains(&sort))
}

fn sort_column(call: &Call) -> Option<&str> {
    call.query("sort").filter(|sort| !sort.is_empty())
}

/// Answers a list. `items` are in the order of vhost and name.
pub(crate) fn list<T>(
    call: &Call,
    items: Vec<T>,
    name: impl Fn(&T) -> &str,
    row: impl Fn(&T) -> Value,
) -> Result<Answer, Fault> {
    list_by(call, items, name, &row, &row)
}

/// [`list`], where `sorted` makes a row of which only what is sorted by counts.
pub(crate) fn list_by<T>(
    call: &Call,
    items: Vec<T>,
    name: impl Fn(&T) -> &str,
    sorted: impl Fn(&T) -> Value,
    row: impl Fn(&T) -> Value,
) -> Result<Answer, Fault> {
    let wanted = Wanted::of(call)?;
    listed(&wanted, items, name, sorted, row).map(Answer::Text)
}

/// Answers a list of rows that are made already.
pub(crate) fn rows(call: &Call, rows: Vec<Value>) -> Result<Answer, Fault> {
    let name = |row: &Value| row.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let rows = rows.into_iter().map(|row| (name(&row), row)).collect();
    list(call, rows, |(name, _)| name, |(_, row)| row.clone())
}

/// Answers one object: only its columns count.
pub(crate) fn one(call: &Call, row: Value) -> Answer {
    Answer::Json(match columns(call) {
        Some(columns) => cut(row, &columns),
        None => row,
    })
}

fn listed<T>(
    wanted: &Wanted<'_>,
    mut items: Vec<T>,
    name: impl Fn(&T) -> &str,
    sorted: impl Fn(&T) -> Value,
    row: impl Fn(&T) -> Value,
) -> Result<Vec<u8>, Fault> {
    let total = items.len();
    if wanted.page.is_some() {
        keep_named(wanted, &mut items, &name)?;
    }
    let filtered = items.len();
    let range = range(wanted, filtered)?;
    let mut rows = Rows { columns: wanted.columns.as_deref(), text: Vec::new(), count: 0 };
    if wanted.is_by_name() {
        // A sort by name alone mixes vhosts.
        if wanted.sort.is_some() {
            items.sort_by(|a, b| name(a).cmp(name(b)));
        }
        if wanted.reverse {
            items.reverse();
        }
        items[range].iter().for_each(|item| rows.write(row(item)));
    } else {
        let mut order = sort(items.iter().map(sorted), wanted.sort.unwrap_or_default());
        if wanted.reverse {
            order.reverse();
        }
        order[range].iter().for_each(|&at| rows.write(row(&items[at])));
    }
    let count = rows.count;
    let list = rows.end();
    let Some((page, size)) = wanted.page else { return Ok(list) };
    let about = json!({
        "total_count": total,
        "item_count": count,
        "filtered_count": filtered,
        "page": page,
        "page_size": size,
        "page_count": filtered.div_ceil(size),
    });
    let mut page = text(&about);
    page.pop();
    page.extend_from_slice(b",\"items\":");
    page.extend_from_slice(&list);
    page.push(b'}');
    Ok(page)
}

/// A list as it is written.
struct Rows<'a> {
    columns: Option<&'a [Vec<&'a str>]>,
    text: Vec<u8>,
    count: usize,
}

impl Rows<'_> {
    fn write(&mut self, row: Value) {
        self.text.push(if self.count == 0 { b'[' } else { b',' });
        self.count += 1;
        let row = match self.columns {
            Some(columns) => cut(row, columns),
            None => row,
        };
        self.text.extend_from_slice(&text(&row));
    }

    fn end(mut self) -> Vec<u8> {
        self.text.extend_from_slice(if self.count == 0 { b"[]" } else { b"]" });
        self.text
    }
}

fn keep_named<T>(
    wanted: &Wanted<'_>,
    items: &mut Vec<T>,
    name: &impl Fn(&T) -> &str,
) -> Result<(), Fault> {
    let Some(part) = wanted.name else { return Ok(()) };
    if !wanted.use_regex {
        let part = part.to_lowercase();
        items.retain(|item| name(item).to_lowercase().contains(&part));
        return Ok(());
    }
    let regex = RegexBuilder::new(part).case_insensitive(true).build();
    let regex = regex
        .map_err(|error| Fault::bad(format!("'{part}' is not a regular expression: {error}")))?;
    // One that takes too long for a name does not match it.
    items.retain(|item| regex.is_match(name(item)).unwrap_or(false));
    Ok(())
}

/// The rows of the page. A page after the last one is an error, but for the first.
fn range(wanted: &Wanted<'_>, count: usize) -> Result<std::ops::Range<usize>, Fault> {
    let Some((page, size)) = wanted.page else { return Ok(0..count) };
    let start = (page - 1).saturating_mul(size);
    if start > count {
        return Err(Fault::invalid(
            "page_out_of_range",
            format!("Page out of range, page: {page} page size: {size}, len: {count}"),
        ));
    }
    Ok(start..count.min(start + size))
}

/// The order of rows by a value deep inside; those that have none come first, as if it were 0.
fn sort(rows: impl Iterator<Item = Value>, path: &str) -> Vec<usize> {
    let parts: Vec<&str> = path.split('.').filter(|part| !part.is_empty()).collect();
    let key = |mut row: Value| {
        let found = parts.iter().try_fold(&mut row, |value, part| value.get_mut(part));
        found.map_or_else(|| json!(0), Value::take)
    };
    let mut keyed: Vec<(Value, usize)> = rows.map(key).zip(0..).collect();
    keyed.sort_by(|(a, _), (b, _)| order(a, b));
    keyed.into_iter().map(|(_, at)| at).collect()
}

/// Erlang's order of terms: numbers, atoms, maps, lists, binaries.
fn order(a: &Value, b: &Value) -> Ordering {
    let rank = |value: &Value| match value {
        Value::Number(_) => 0,
        Value::Null | Value::Bool(_) => 1,
        Value::Object(_) => 2,
        Value::Array(_) => 3,
        Value::String(_) => 4,
    };
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => {
            let (a, b) = (a.as_f64().unwrap_or(0.0), b.as_f64().unwrap_or(0.0));
            a.total_cmp(&b)
        }
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (Value::Array(a), Value::Array(b)) => a.len().cmp(&b.len()),
        _ => rank(a).cmp(&rank(b)),
    }
}

/// Keeps only some columns; `a.b` keeps `b` inside `a`.
fn cut(value: Value, columns: &[Vec<&str>]) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.into_iter().filter_map(|(key, value)| {
                let mut below = Vec::new();
                for column in columns.iter().filter(|it| it.first() == Some(&key.as_str())) {
                    match &column[1..] {
                        [] => return Some((key, value)),
                        rest => below.push(rest.to_vec()),
                    }
                }
                (!below.is_empty()).then(|| (key, cut(value, &below)))
            });
            kept.collect::<serde_json::Map<_, _>>().into()
        }
        Value::Array(list) => list.into_iter().map(|item| cut(item, columns)).collect(),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(page: Option<(usize, usize)>) -> Wanted<'static> {
        Wanted { page, ..Wanted::default() }
    }

    fn names(wanted: &Wanted<'_>) -> Result<String, Fault> {
        let items = vec![("a", 3), ("b", 1), ("c", 20), ("Bee", 4)];
        let row = |item: &(&str, i32)| json!({"name": item.0, "n": item.1, "d": {"r": -item.1}});
        let text = listed(wanted, items, |item| item.0, row, row)?;
        let value: Value = serde_json::from_slice(&text).unwrap();
        let rows = value.get("items").unwrap_or(&value).as_array().cloned().unwrap_or_default();
        Ok(rows.iter().map(|row| row["name"].as_str().unwrap_or("?")).collect::<Vec<_>>().join(" "))
    }

    #[test]
    #[rustfmt::skip] // a table
    fn orders_and_pages() {
        let check = |wanted: Wanted<'_>, want: &str| assert_eq!(names(&wanted).unwrap(), want);
        check(wanted(None),                                                       "a b c Bee");
        check(wanted(Some((1, 3))),                                               "a b c");
        check(wanted(Some((2, 3))),                                               "Bee");
        check(Wanted { reverse: true, ..wanted(Some((1, 2))) },                   "Bee c");
        check(Wanted { sort: Some("n"), ..wanted(None) },                         "b a Bee c");
        check(Wanted { sort: Some("d.r"), ..wanted(None) },                       "c Bee a b");
        check(Wanted { sort: Some("n"), reverse: true, ..wanted(Some((1, 2))) },  "c Bee");
        check(Wanted { name: Some("B"), ..wanted(Some((1, 9))) },                 "b Bee");
        check(Wanted { name: Some("^b."), use_regex: true, ..wanted(Some((1, 9))) }, "Bee");
        check(Wanted { name: Some("x"), ..wanted(Some((1, 9))) },                 "");
        // Without a page names are not looked at, as in RabbitMQ.
        check(Wanted { name: Some("b"), ..wanted(None) },                         "a b c Bee");
    }

    #[test]
    fn bad_pages() {
        let fault = |wanted: Wanted<'_>| names(&wanted).unwrap_err().error;
        assert_eq!(fault(wanted(Some((3, 3)))), "page_out_of_range");
        let bad = Wanted { name: Some("("), use_regex: true, ..wanted(Some((1, 1))) };
        assert_eq!(fault(bad), "bad_request");
    }

    #[test]
    fn columns_cut() {
        let row = json!({"a": 1, "b": {"c": 2, "d": 3}, "e": [{"f": 4, "g": 5}]});
        let cut = |columns: &[&str]| {
            let columns: Vec<Vec<&str>> =
                columns.iter().map(|it| it.split('.').collect()).collect();
            cut(row.clone(), &columns).to_string()
        };
        assert_eq!(cut(&["a"]), r#"{"a":1}"#);
        assert_eq!(cut(&["b.d", "a"]), r#"{"a":1,"b":{"d":3}}"#);
        assert_eq!(cut(&["b"]), r#"{"b":{"c":2,"d":3}}"#);
        assert_eq!(cut(&["e.g"]), r#"{"e":[{"g":5}]}"#);
        assert_eq!(cut(&["x"]), "{}");
    }
}
