//! Messages of a queue as they are, found by filters, and moved.
//!
//! Filters are applied here, on the thread of the management, page by page: no message waits for them.

use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use leveret_amqp::content::{Properties, RawProperties};
use leveret_broker::message::{Looked, MoveTo, Moved, Page, Reply, ToShard};
use leveret_broker::record::View;
use leveret_queue::{LookAt, Offset};
use leveret_server::node::Node;
use leveret_topology::{QueueId, table_to_json};
use serde_json::Value;

use super::ask::{Refusal, shard};

/// Messages that are asked for at once where few of them may be wanted.
pub(crate) const PAGE: usize = 256;

/// Routing keys about which it is remembered whether messages with them may go.
const KEYS_MAX: usize = 10_000;

/// Which messages are wanted: all, if it says nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Filter {
    /// Names and values; a value that is no text is compared with how JSON writes it.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) routing_key: Option<String>,
    pub(crate) exchange: Option<String>,
}

impl Filter {
    pub(crate) fn wants_all(&self) -> bool {
        self.headers.is_empty() && self.routing_key.is_none() && self.exchange.is_none()
    }

    /// Whether it wants a message. One that cannot be read is wanted by no filter.
    pub(crate) fn wants(&self, looked: &Looked) -> bool {
        if self.wants_all() {
            return true;
        }
        let Some(view) = looked.record.as_ref().and_then(View::of) else { return false };
        let Some((exchange, key)) = view.exchange_and_key() else { return false };
        let is_that = |wanted: &Option<String>, is| wanted.as_ref().is_none_or(|it| it == is);
        is_that(&self.exchange, exchange)
            && is_that(&self.routing_key, key)
            && (self.headers.is_empty() || self.wants_headers(view.properties))
    }

    fn wants_headers(&self, properties: &[u8]) -> bool {
        let Ok(Properties { headers: Some(headers), .. }) =
            RawProperties::new(properties).to_owned()
        else {
            return false;
        };
        let headers = table_to_json(&headers);
        self.headers.iter().all(|(name, wanted)| {
            headers.get(name).is_some_and(|value| header_text(value) == *wanted)
        })
    }
}

/// A header's value as filters name it.
pub(crate) fn header_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A page of a queue; none when the queue is gone.
pub(crate) async fn page(
    node: &Arc<Node>,
    queue: QueueId,
    place: LookAt,
    from: Offset,
    max: usize,
) -> Result<Option<Page>, Refusal> {
    let look = |reply| ToShard::Look { reply, queue, place, from, max };
    match shard(node, queue, look).await? {
        Reply::Looked(page) => Ok(Some(*page)),
        _ => Ok(None),
    }
}

/// Which ready messages are to be moved.
#[derive(Clone, Debug)]
pub(crate) enum Wanted {
    /// These.
    These(Vec<Offset>),
    /// The first so many that the filter wants, of those that are there when it begins.
    First(u64, Filter),
}

/// Moves messages lot by lot: none is missing whenever it ends. `may_write` says whether one with this
/// routing key may go there, and is asked once about each; others count as refused, as do those that cannot be
/// read. Ends when a target refuses some. None when the queue is gone.
pub(crate) async fn move_messages<Asked: Future<Output = bool>>(
    node: &Arc<Node>,
    queue: QueueId,
    wanted: Wanted,
    to: MoveTo,
    may_write: impl Fn(String) -> Asked,
) -> Result<Option<Moved>, Refusal> {
    let mut sum = Moved::default();
    let mut keys = HashMap::<String, bool, RandomState>::default();
    let (positions, mut count, filter) = match wanted {
        Wanted::These(positions) => (Some(positions), u64::MAX, Filter::default()),
        Wanted::First(count, filter) => (None, count, filter),
    };
    let mut next = Some(Offset::new(0));
    let mut end = None;
    let mut single = positions.iter().flatten();
    let mut is_full = false;
    while count > 0 && !is_full {
        // Positions are asked for one by one: they are few, and may lie anywhere.
        let asked = match &positions {
            Some(_) => single.next().map(|&at| (at, 1)),
            None => next.map(|from| (from, PAGE)),
        };
        let Some((from, max)) = asked else { break };
        let Some(page) = page(node, queue, LookAt::Ready, from, max).await? else {
            return Ok(None);
        };
        next = page.next;
        let end = *end.get_or_insert(page.end);
        let is_asked = |looked: &&Looked| match &positions {
            Some(_) => looked.look.offset == from,
            // What is moved to the end of its own queue is not to come round again.
            None => looked.look.offset < end && filter.wants(looked),
        };
        let found = page.messages.iter().filter(is_asked);
        let found: Vec<_> = found.take(usize::try_from(count).unwrap_or(usize::MAX)).collect();
        count -= found.len() as u64;
        let mut lot = Vec::new();
        for looked in &found {
            let Some(key) = routing_key(looked) else { continue };
            let may_go = match keys.get(key) {
                Some(may_go) => *may_go,
                None => {
                    if keys.len() >= KEYS_MAX {
                        keys.clear();
                    }
                    let may_go = may_write(key.to_owned()).await;
                    keys.insert(key.to_owned(), may_go);
                    may_go
                }
            };
            if may_go {
                lot.push(looked.look.offset);
            }
        }
        sum.refused += (found.len() - lot.len()) as u64;
        let Some(moved) = move_lot(node, queue, lot, &to).await? else { return Ok(None) };
        sum.moved += moved.moved;
        sum.refused += moved.refused;
        sum.unrouted += moved.unrouted;
        is_full = moved.refused > 0;
        if page.messages.iter().any(|looked| looked.look.offset >= end) {
            break;
        }
    }
    Ok(Some(sum))
}

fn routing_key(looked: &Looked) -> Option<&str> {
    let view = looked.record.as_ref().and_then(View::of)?;
    view.exchange_and_key().map(|(_, key)| key)
}

/// Moves some, those that are on the disk only when they are at hand.
async fn move_lot(
    node: &Arc<Node>,
    queue: QueueId,
    lot: Vec<Offset>,
    to: &MoveTo,
) -> Result<Option<Moved>, Refusal> {
    let mut sum = Moved { cold: lot, ..Moved::default() };
    while !sum.cold.is_empty() {
        let (offsets, to) = (std::mem::take(&mut sum.cold), to.clone());
        let Reply::Moved(moved) =
            shard(node, queue, |reply| ToShard::Move { reply, queue, offsets, to }).await?
        else {
            return Ok(None);
        };
        sum.moved += moved.moved;
        sum.refused += moved.refused;
        sum.unrouted += moved.unrouted;
        sum.cold = moved.cold;
    }
    Ok(Some(sum))
}
