//! Consumers.

use std::sync::Arc;

use leveret_broker::message::{ConsumerFacts, Named};
use leveret_server::clock::now;
use leveret_topology::{table_to_json, weight};
use serde_json::{Value, json};

use super::answer::{Answer, Fault};
use super::call::Call;
use super::listing::{self, Listed, Why};
use super::{connections, queues};
use crate::ops::facts;
use crate::ops::pages::{self, Slice};

/// A consumer and where it is.
#[derive(Debug)]
pub(super) struct Consumer {
    pub(super) vhost: Arc<str>,
    pub(super) queue: Arc<str>,
    pub(super) facts: ConsumerFacts,
}

/// What so many of them take while they are listed.
pub(super) fn bytes(count: usize) -> usize {
    count * 2 * size_of::<Consumer>()
}

/// A list of consumers.
pub(super) struct Consumers;

impl Listed for Consumers {
    type Item = Consumer;

    async fn rows(&self, call: &Call, items: &[Consumer], _: Why) -> Result<Vec<Value>, Fault> {
        let few = pages::first(items, |it| weight::table(&it.facts.arguments));
        let mut rows = Vec::with_capacity(few);
        let mut slice = Slice::begin();
        for Consumer { vhost, queue, facts } in &items[..few] {
            rows.push(row(call, vhost, queue, facts));
            slice.share().await;
        }
        Ok(rows)
    }
}

/// `GET /api/consumers` and `/{vhost}`; with `slow` those alone that have not acked for so many seconds.
pub(super) async fn list(mut call: Call) -> Result<Answer, Fault> {
    let slow_ms = call.number("slow")?.map(|seconds| seconds.saturating_mul(1000));
    let vhosts = call.vhosts()?;
    let queues = queues::all(&mut call, &vhosts, |_| true).await?;
    let count = call.stats().overview.now.consumers as usize;
    call.hold(bytes(count)).await?;
    let is_wanted = |consumer: &ConsumerFacts| match slow_ms {
        None => true,
        Some(ms) => oldest_unacked_ms(&call, consumer).is_some_and(|oldest| oldest >= ms),
    };
    let mut found = Vec::new();
    for some in queues.chunks(pages::ROWS) {
        let ids: Vec<_> = some.iter().map(|queue| queue.id).collect();
        let mut facts = facts::with(call.node(), &ids, Named::All).await?;
        for queue in some {
            let own = facts.remove(&queue.id).into_iter().flat_map(|it| it.consumers);
            found.extend(own.filter(is_wanted).map(|facts| {
                let (vhost, queue) = (Arc::clone(&queue.vhost), Arc::clone(&queue.name));
                Consumer { vhost, queue, facts }
            }));
        }
        tokio::task::yield_now().await;
    }
    listing::list(call, Consumers, found).await
}

fn row(call: &Call, vhost: &str, queue: &str, consumer: &ConsumerFacts) -> Value {
    let channel = match call.connection(consumer.connection) {
        Some(connection) => {
            let name = connection.name();
            json!({
                "name": format!("{name} ({})", consumer.channel),
                "pid": consumer.connection.channel_pid(consumer.channel),
                "number": consumer.channel,
                "connection_name": name,
                "node": connections::node_name(call, &connection),
                "peer_host": connection.peer().ip().to_canonical().to_string(),
                "peer_port": connection.peer().port(),
                "user": connection.user(),
            })
        }
        None => json!({}),
    };
    let mut row = json!({
        "consumer_tag": consumer.tag,
        "queue": {"name": queue, "vhost": vhost},
        "channel_details": channel,
        "active": consumer.active,
        "activity_status": if consumer.active { "up" } else { "waiting" },
        "ack_required": consumer.ack_required,
        "messages_unacknowledged": consumer.unacked,
        "blocked": consumer.is_blocked,
        "prefetch_count": consumer.prefetch,
        "exclusive": consumer.exclusive,
        "priority": consumer.priority,
        "arguments": table_to_json(&consumer.arguments),
        "consumer_timeout": call.node().settings.consumer_timeout_ms,
    });
    // Left out rather than null: rabbitmqadmin lists all columns, and ends at a null.
    let full_ms = consumer.prefetch_full_since.map(|it| now().ms().saturating_sub(it.ms()));
    for (name, ms) in
        [("oldest_unacked_ms", oldest_unacked_ms(call, consumer)), ("prefetch_full_ms", full_ms)]
    {
        if let Some(ms) = ms {
            row[name] = json!(ms);
        }
    }
    row
}

/// How long the oldest delivery of a consumer's channel has waited for its ack, as of the last sample; none
/// when the consumer has acked all.
fn oldest_unacked_ms(call: &Call, consumer: &ConsumerFacts) -> Option<u64> {
    let stats = call.stats();
    let entry = stats.connections.get(&consumer.connection)?;
    let mut channels = entry.numbers.channels.iter();
    let oldest = channels.find(|channel| channel.number == consumer.channel)?.oldest_unacked?;
    (consumer.unacked > 0).then(|| now().ms().saturating_sub(oldest.ms()))
}
