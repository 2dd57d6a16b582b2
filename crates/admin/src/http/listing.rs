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
use tokio::runtime::Handle;

use super::answer::{Answer, Fault, text};
use super::call::Call;
use super::pattern::Pattern;
use super::stream::{self, Pieces, Written};
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

    /// A row for each of the first of these, at least one; null for what is gone. At most [`pages::ROWS`] are asked for at
    /// once, and fewer are made where they are large.
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
    mut call: Call,
    listed: L,
    items: Vec<L::Item>,
) -> Result<Answer, Fault> {
    let wanted = Wanted::of(&call)?;
    let total = items.len();
    let items = if wanted.page.is_some() { named(&wanted, &listed, items).await? } else { items };
    let filtered = items.len();
    let range = range(&wanted, filtered)?;
    let mut items = arranged(&mut call, &wanted, &listed, items).await?;
    if wanted.page.is_some() {
        pages::let_go(items.split_off(range.end)).await;
        let page = items.split_off(range.start);
        pages::let_go(std::mem::replace(&mut items, page)).await;
    }
    let around = wanted
        .page
        .map_or(Around::Nothing, |(page, size)| Around::Page(Page { page, size, total, filtered }));
    send(Writing {
        call,
        listed,
        items: items.into_iter(),
        columns: wanted.columns,
        around,
        count: 0,
        has_begun: false,
    })
    .await
}

/// Rows that are made already.
struct Made;

impl Listed for Made {
    type Item = (String, Value);

    fn name<'a>(&self, item: &'a Self::Item) -> Cow<'a, str> {
        (&*item.0).into()
    }

    async fn rows(&self, _: &Call, items: &[Self::Item], _: Why) -> Result<Vec<Value>, Fault> {
        let few = &items[..pages::first(items, |(_, row)| bytes(row))];
        Ok(few.iter().map(|(_, row)| row.clone()).collect())
    }
}

/// About what a row takes: its texts, some levels deep.
fn bytes(row: &Value) -> u64 {
    fn within(value: &Value, depth: usize) -> usize {
        match value {
            _ if depth == 0 => 1000,
            Value::String(text) => text.len(),
            Value::Array(list) => list.iter().map(|it| 32 + within(it, depth - 1)).sum(),
            Value::Object(map) => map.values().map(|it| 64 + within(it, depth - 1)).sum(),
            _ => 0,
        }
    }
    within(row, 4) as u64
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

/// Answers one object with a list in it, which may be long: `items`, as `name`. Its rows are made while it is sent.
pub(crate) async fn one_with<L: Listed>(
    call: Call,
    row: Value,
    name: &str,
    listed: L,
    mut items: Vec<L::Item>,
) -> Result<Answer, Fault> {
    let mut own = columns(&call);
    if let Some(columns) = &mut own {
        columns.retain_mut(|it| it.first().is_some_and(|first| first == name));
        columns.iter_mut().for_each(|it| drop(it.remove(0)));
        if columns.is_empty() {
            pages::let_go(std::mem::take(&mut items)).await;
            return Ok(one(&call, row));
        }
    }
    // Whoever asks for the list asks for all of its rows.
    let own = own.filter(|columns| columns.iter().all(|it| !it.is_empty()));
    let mut head = match columns(&call) {
        Some(columns) => text(&cut(row, &borrowed(&columns))),
        None => text(&row),
    };
    head.pop();
    if head.len() > 1 {
        head.push(b',');
    }
    head.extend_from_slice(&text(&json!(name)));
    head.extend_from_slice(b":[");
    send(Writing {
        call,
        listed,
        items: items.into_iter(),
        columns: own,
        around: Around::Object(head),
        count: 0,
        has_begun: false,
    })
    .await
}

async fn send<L: Listed>(writing: Writing<L>) -> Result<Answer, Fault> {
    Ok(match stream::written(writing).await? {
        Written::Whole(text) => Answer::Text(text),
        Written::Long(made) => Answer::Stream(made, None),
    })
}

/// A list while it is written.
struct Writing<L: Listed> {
    call: Call,
    listed: L,
    /// Those whose rows are not written.
    items: std::vec::IntoIter<L::Item>,
    columns: Option<Vec<Vec<String>>>,
    around: Around,
    /// Rows so far.
    count: usize,
    has_begun: bool,
}

/// What a list is in.
enum Around {
    Nothing,
    Page(Page),
    /// An object, of which this is the beginning, up to the first row.
    Object(Vec<u8>),
}

/// A page, and what is told of it.
#[derive(Clone, Copy)]
struct Page {
    page: usize,
    size: usize,
    total: usize,
    filtered: usize,
}

impl Page {
    /// What stands behind the rows, of which there are `count`.
    fn about(self, count: usize) -> Vec<u8> {
        let mut about = text(&json!({
            "total_count": self.total,
            "item_count": count,
            "filtered_count": self.filtered,
            "page": self.page,
            "page_size": self.size,
            "page_count": self.filtered.div_ceil(self.size),
        }));
        if let Some(begin) = about.first_mut() {
            *begin = b',';
        }
        about
    }
}

impl<L: Listed> Pieces for Writing<L> {
    async fn more(&mut self, out: &mut Vec<u8>) -> Result<bool, Fault> {
        let Self { call, listed, items, columns, around, count, has_begun } = self;
        if !std::mem::replace(has_begun, true) {
            match around {
                Around::Nothing => out.push(b'['),
                Around::Page(_) => out.extend_from_slice(b"{\"items\":["),
                Around::Object(head) => out.append(head),
            }
        }
        let some = items.as_slice();
        let some = &some[..some.len().min(pages::ROWS)];
        let rows = listed.rows(call, some, Why::Show).await?;
        // None at all would go on for ever.
        let done = rows.len().max(1);
        let columns = columns.as_deref().map(borrowed);
        let mut slice = Slice::begin();
        for row in rows.into_iter().filter(|row| !row.is_null()) {
            if *count > 0 {
                out.push(b',');
            }
            *count += 1;
            let row = match &columns {
                Some(columns) => cut(row, columns),
                None => row,
            };
            out.extend_from_slice(&text(&row));
            slice.share().await;
        }
        items.by_ref().take(done).for_each(drop);
        if items.len() > 0 {
            return Ok(true);
        }
        out.push(b']');
        match around {
            Around::Nothing => {}
            Around::Page(page) => out.append(&mut page.about(*count)),
            Around::Object(_) => out.push(b'}'),
        }
        Ok(false)
    }

    fn call(&mut self) -> &mut Call {
        &mut self.call
    }
}

impl<L: Listed> Drop for Writing<L> {
    /// A reader that goes leaves many items: they go some at a time.
    fn drop(&mut self) {
        let rest: Vec<_> = std::mem::take(&mut self.items).collect();
        if let (true, Ok(runtime)) = (rest.len() > pages::ROWS, Handle::try_current()) {
            runtime.spawn(pages::let_go(rest));
        }
    }
}

/// The items whose name the request wants.
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
    call: &mut Call,
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
        call.hold(items.len() * (size_of::<Key>() + KEY_TEXT)).await?;
        let mut keys = Vec::with_capacity(items.len());
        while keys.len() < items.len() {
            let some = &items[keys.len()..];
            let rows = listed.rows(call, &some[..some.len().min(pages::ROWS)], Why::Sort).await?;
            if rows.is_empty() {
                keys.push(Key::Null);
            }
            let mut slice = Slice::begin();
            for row in rows {
                keys.push(Key::of(row, path));
                slice.share().await;
            }
            tokio::task::yield_now().await;
        }
        let mut keyed: Vec<(Key, L::Item)> = keys.into_iter().zip(items).collect();
        pages::sort(&mut keyed, |(a, _), (b, _)| a.order(b)).await;
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

/// What a row is sorted by. Nothing of the row is kept for it but this.
#[derive(Debug)]
enum Key {
    Number(f64),
    Null,
    Bool(bool),
    Map,
    List(usize),
    Text(Box<str>),
}

/// Bytes of a text by which it is sorted: two that begin alike stay in the order of names.
const KEY_TEXT_MAX: usize = 256;

/// What texts take of a key, about.
const KEY_TEXT: usize = 32;

impl Key {
    /// What is in the row at a path, which may be deep inside; a row that has nothing there comes first, as if it were 0.
    fn of(row: Value, path: &str) -> Self {
        let mut parts = path.split('.').filter(|part| !part.is_empty());
        let found = parts.try_fold(&row, |value, part| value.get(part));
        match found {
            None => Self::Number(0.0),
            Some(Value::Number(number)) => Self::Number(number.as_f64().unwrap_or(0.0)),
            Some(Value::Null) => Self::Null,
            Some(Value::Bool(is_true)) => Self::Bool(*is_true),
            Some(Value::Object(_)) => Self::Map,
            Some(Value::Array(list)) => Self::List(list.len()),
            Some(Value::String(text)) => {
                Self::Text(text[..text.floor_char_boundary(KEY_TEXT_MAX)].into())
            }
        }
    }

    /// Erlang's order of terms: numbers, atoms, maps, lists, binaries.
    fn order(&self, other: &Self) -> Ordering {
        let rank = |key: &Self| match key {
            Self::Number(_) => 0,
            Self::Null | Self::Bool(_) => 1,
            Self::Map => 2,
            Self::List(_) => 3,
            Self::Text(_) => 4,
        };
        match (self, other) {
            (Self::Number(a), Self::Number(b)) => a.total_cmp(b),
            (Self::Bool(a), Self::Bool(b)) => a.cmp(b),
            (Self::Text(a), Self::Text(b)) => a.cmp(b),
            (Self::List(a), Self::List(b)) => a.cmp(b),
            _ => rank(self).cmp(&rank(other)),
        }
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
