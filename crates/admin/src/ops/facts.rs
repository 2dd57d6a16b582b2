//! What shards know of their queues, and sums of it.

use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use leveret_broker::message::{QueueFacts, Reply, ToShard};
use leveret_server::node::Node;
use leveret_topology::{Queue, QueueId};
use serde_json::{Value, json};

use super::ask::{self, Asker, Refusal};

/// By queue.
pub type Queues = HashMap<QueueId, QueueFacts, FixedState>;

/// Asks every shard for what it knows of its queues.
pub async fn queues(node: &Arc<Node>) -> Result<Queues, Refusal> {
    let mut asker = Asker::new(node);
    let reply = asker.reply_to();
    for index in 0..node.shards.len() {
        asker.tell_shard(index, ToShard::List { reply, queue: None });
    }
    let mut facts = HashMap::default();
    for _ in 0..node.shards.len() {
        if let Reply::Queues(queues) = asker.answer().await? {
            facts.extend(queues.into_iter().map(|queue| (queue.queue, queue)));
        }
    }
    Ok(facts)
}

/// Asks a queue's shard for what it knows of that queue.
pub async fn queue(node: &Arc<Node>, queue: QueueId) -> Result<Option<QueueFacts>, Refusal> {
    let letter = |reply| ToShard::List { reply, queue: Some(queue) };
    match ask::shard(node, queue, letter).await? {
        Reply::Queues(found) => Ok(found.into_iter().next()),
        _ => Ok(None),
    }
}

/// RabbitMQ's word for how a queue is; `paused` is LavinMQ's. In `flow` those who publish into it pause:
/// its shard's disk is far behind.
pub fn queue_state(queue: &Queue, facts: Option<&QueueFacts>) -> &'static str {
    if queue.paused {
        "paused"
    } else if facts.is_some_and(|facts| facts.numbers.is_in_flow) {
        "flow"
    } else {
        "running"
    }
}

/// Messages of several queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// That wait for a consumer.
    pub ready: u64,
    /// That wait for an ack.
    pub unacked: u64,
}

impl Totals {
    /// Adds a queue's.
    pub fn add(&mut self, facts: &QueueFacts) {
        self.ready += facts.numbers.counts.ready;
        self.unacked += facts.numbers.counts.unacked;
    }

    /// As the API shows them.
    pub fn row(&self) -> Value {
        json!({
            "messages": self.ready + self.unacked,
            "messages_details": {"rate": 0.0},
            "messages_ready": self.ready,
            "messages_ready_details": {"rate": 0.0},
            "messages_unacknowledged": self.unacked,
            "messages_unacknowledged_details": {"rate": 0.0},
        })
    }
}
