//! Lists: sorting, paging, filtering by name, columns, all as RabbitMQ has them.
//!
//! A row costs more than its name. Only the rows of a page are made where it is in the order of names, or of what a
//! cheaper row has, too. Rows are made some at a time, when the names are not held, and the thread is shared in between.
//! A list that is long is sent while it is made: it is never in memory as a whole.
//!
//! ```text
//!   names, copied in pages -> filter, sort -> some rows -> text -> some rows -> text -> ...
//! ```

use std::borrow::Cow;
use std::cmp::Ordering;
use std::future::Future;

use serde_json::{Value, json};

use super::answer::{Answer, Fault, text};
use super::call::Call;
use super::pattern::Pattern;
use super::stream;
use crate::ops::pages::{self, Slice};

/// Rows on a page that does not say how many.
const PAGE_SIZE: usize = 100;
/// Most rows on a page.
const PAGE_SIZE_MAX: usize = 500;

/// Things that are listed, in the order of vhost and name, and how their rows are made.
pub(crate) trait Listed: Send + Sync + 'static {
    /// One of them: its names.
    type Item: Send + Sync + 'static;

    /// What a list is filtered by and sorted by, where nothing else is asked for. Nothing, for what has no name of its own.
    fn name<'a>(&self, _: &'a Self::Item) -> Cow<'a, str> {
        "".into()
    }

    /// A row for each of these; null for what is gone. At most [`pages::ROWS`] are asked for at once.
    fn rows(
        &self,
        call: &Call,
        items: &[Self::Item],
        why: Why,
    ) -> impl Future<Output = Result<Vec<Value>, Fault>> + Send;
}

/// What rows are made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// To sort them: only what is sorted by counts.
    Sort,
    /// To show them.
    Show,
}

/// What a request says about its list.
#[derive(Clone, Debug, Default, PartialEq)]
struct Wanted {
    /// Number, from 1, and size.
    page: Option<(usize, usize)>,
    name: Option<String>,
    use_regex: bool,
    sort: Option<String>,
    reverse: bool,
    columns: Option<Vec<Vec<String>>>,
}

impl Wanted {
    fn of(call: &Call) -> Result<Self, Fault> {
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
            name: call.query("name").filter(|name| !name.is_empty()).map(str::to_owned),
            use_regex: call.is_asked("use_regex"),
            sort: sort_column(call).map(str::to_owned),
            reverse: call.is_asked("sort_reverse"),
            columns: columns(call),
        })
    }

    /// The rows' order is that of names, which they have already.
    fn is_by_name(&self) -> bool {
        matches!(self.sort.as_deref(), None | Some("name"))
    }
}

fn columns(call: &Call) -> Option<Vec<Vec<String>>> {
    let text = call.query("columns")?;
    let names = text.split(',').filter(|name| !name.is_empty()).take(COLUMNS_MAX);
    let parts = |name: &str| {
        let parts = name.split('.').filter(|part| !part.is_empty()).take(DEPTH_MAX);
        parts.map(str::to_owned).collect()
    };
    Some(names.map(parts).collect())
}

/// Columns that are looked for in each row, and how deep inside: no row has more.
const COLUMNS_MAX: usize = 256;
const DEPTH_MAX: usize = 16;

/// Whether nothing is asked for but these columns, and the order of one of them.
pub(crate) fn asks_only(call: &Call, known: &[&str]) -> bool {
    let is_known = |it: &Vec<String>| matches!(&it[..], [one] if known.contains(&one.as_str()));
    let columns = columns(call).map(|all| all.iter().all(is_known));
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
pub(crate) async fn list<L: Listed>(
    call: Call,
    listed: L,
    items: Vec<L::Item>,
) -> Result<Answer, Fault> {
    let wanted = Wanted::of(&call)?;
    let total = items.len();
    let items = if wanted.page.is_some() { named(&wanted, &listed, items).await? } else { items };
    let filtered = items.len();
    let range = range(&wanted, filtered)?;
    let mut items = arranged(&call, &wanted, &listed, items).await?;
    items.truncate(range.end);
    items.drain(..range.start);
    let mut writing = Writing::of(call, listed, items, wanted.columns);
    let Some((page, size)) = wanted.page else { return writing.answer().await };
    while writing.more().await? {}
    let about = json!({
        "total_count": total,
        "item_count": writing.count,
        "filtered_count": filtered,
        "page": page,
        "page_size": size,
        "page_count": filtered.div_ceil(size),
    });
    let mut page = text(&about);
    page.pop();
    page.extend_from_slice(b",\"items\":");
    page.append(&mut writing.text);
    page.push(b'}');
    Ok(Answer::Text(page))
}

/// Rows that are made already.
struct Made;

impl Listed for Made {
    type Item = (String, Value);

    fn name<'a>(&self, item: &'a Self::Item) -> Cow<'a, str> {
        (&*item.0).into()
    }

    async fn rows(&self, _: &Call, items: &[Self::Item], _: Why) -> Result<Vec<Value>, Fault> {
        Ok(items.iter().map(|(_, row)| row.clone()).collect())
    }
}

/// Answers a list of rows that are made already: there are few, or they are small.
pub(crate) async fn rows(call: Call, rows: Vec<Value>) -> Result<Answer, Fault> {
    let name = |row: &Value| row.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let rows = rows.into_iter().map(|row| (name(&row), row)).collect();
    list(call, Made, rows).await
}

/// Answers one object: only its columns count.
pub(crate) fn one(call: &Call, row: Value) -> Answer {
    Answer::Json(match columns(call) {
        Some(columns) => cut(row, &borrowed(&columns)),
        None => row,
    })
}

/// A list while it is written.
struct Writing<L: Listed> {
    call: Call,
    listed: L,
    items: Vec<L::Item>,
    /// Items whose rows are written.
    done: usize,
    columns: Option<Vec<Vec<String>>>,
    text: Vec<u8>,
    /// Rows so far.
    count: usize,
}

impl<L: Listed> Writing<L> {
    const fn of(
        call: Call,
        listed: L,
        items: Vec<L::Item>,
        columns: Option<Vec<Vec<String>>>,
    ) -> Self {
        Self { call, listed, items, done: 0, columns, text: Vec::new(), count: 0 }
    }

    /// As a whole if it is short, else while it is made.
    async fn answer(mut self) -> Result<Answer, Fault> {
        while self.text.len() < stream::CHUNK {
            if !self.more().await? {
                return Ok(Answer::Text(self.text));
            }
        }
        let made = stream::made(|mut to| async move {
            loop {
                to.send(std::mem::take(&mut self.text)).await?;
                // The answer has begun: all that can be told of a fault is that it is not whole.
                if !self.more().await.map_err(|_| stream::Cut)? {
                    return to.send(self.text).await;
                }
            }
        });
        Ok(Answer::Stream(made, None))
    }

    /// Writes some rows. False when these were the last.
    async fn more(&mut self) -> Result<bool, Fault> {
        let Self { call, listed, items, done, columns, text: out, count } = self;
        let end = items.len().min(*done + pages::ROWS);
        let rows = listed.rows(call, &items[*done..end], Why::Show).await?;
        let columns = columns.as_deref().map(borrowed);
        let mut slice = Slice::begin();
        for row in rows.into_iter().filter(|row| !row.is_null()) {
            out.push(if *count == 0 { b'[' } else { b',' });
            *count += 1;
            let row = match &columns {
                Some(columns) => cut(row, columns),
                None => row,
            };
            out.extend_from_slice(&text(&row));
            slice.share().await;
        }
        *done = end;
        if end == items.len() {
            out.extend_from_slice(if *count == 0 { b"[]" } else { b"]" });
            return Ok(false);
        }
        Ok(true)
    }
}

/// Those whose name the request wants.
async fn named<L: Listed>(
    wanted: &Wanted,
    listed: &L,
    items: Vec<L::Item>,
) -> Result<Vec<L::Item>, Fault> {
    let Some(part) = &wanted.name else { return Ok(items) };
    let pattern = match wanted.use_regex {
        true => Some(Pattern::of(part, true).map_err(Fault::bad)?),
        false => None,
    };
    let part = part.to_lowercase();
    let mut kept = Vec::new();
    let mut slice = Slice::begin();
    for item in items {
        let name = listed.name(&item);
        let is_wanted = match &pattern {
            Some(pattern) => pattern.is_in(&name).map_err(Fault::bad)?,
            None => name.to_lowercase().contains(&part),
        };
        drop(name);
        kept.extend(is_wanted.then_some(item));
        slice.share().await;
    }
    Ok(kept)
}

/// In the order that the request wants.
async fn arranged<L: Listed>(
    call: &Call,
    wanted: &Wanted,
    listed: &L,
    mut items: Vec<L::Item>,
) -> Result<Vec<L::Item>, Fault> {
    if wanted.is_by_name() {
        // A sort by name alone mixes vhosts.
        if wanted.sort.is_some() {
            pages::sort(&mut items, |a, b| listed.name(a).cmp(&listed.name(b))).await;
        }
    } else {
        let path = wanted.sort.as_deref().unwrap_or_default();
        let mut keyed = Vec::with_capacity(items.len());
        for some in items.chunks(pages::ROWS) {
            let rows = listed.rows(call, some, Why::Sort).await?;
            keyed.extend(rows.into_iter().map(|row| sort_key(row, path)));
            tokio::task::yield_now().await;
        }
        let mut keyed: Vec<(Value, L::Item)> = keyed.into_iter().zip(items).collect();
        pages::sort(&mut keyed, |(a, _), (b, _)| order(a, b)).await;
        items = keyed.into_iter().map(|(_, item)| item).collect();
    }
    if wanted.reverse {
        items.reverse();
    }
    Ok(items)
}

/// The rows of the page. A page after the last one is an error, but for the first.
fn range(wanted: &Wanted, count: usize) -> Result<std::ops::Range<usize>, Fault> {
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

/// What a row is sorted by, which may be deep inside; one that has none comes first, as if it were 0.
fn sort_key(mut row: Value, path: &str) -> Value {
    let mut parts = path.split('.').filter(|part| !part.is_empty());
    let found = parts.try_fold(&mut row, |value, part| value.get_mut(part));
    found.map_or_else(|| json!(0), Value::take)
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

fn borrowed(columns: &[Vec<String>]) -> Vec<Vec<&str>> {
    columns.iter().map(|parts| parts.iter().map(String::as_str).collect()).collect()
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
