//! What shards know of their queues, and sums of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use leveret_broker::message::{Named, QueueFacts, Reply, ToShard};
use leveret_server::node::Node;
use leveret_topology::{GroupId, QueueId};
use serde_json::{Value, json};
use tokio::task::yield_now;

use super::ask::{Asker, Refusal};

/// By queue.
pub type Queues = HashMap<QueueId, QueueFacts, FixedState>;

/// Queues that are asked about at once: what a shard tells of them is made in one of its turns.
const ASKED: usize = 256;

/// Asks their shards for what they know of some queues: a page of a list. Consumers are counted.
pub async fn of(node: &Arc<Node>, queues: &[QueueId]) -> Result<Queues, Refusal> {
    with(node, queues, Named::None).await
}

/// The same, with consumers. Nothing is known while the queues are being filled.
pub async fn with(
    node: &Arc<Node>,
    queues: &[QueueId],
    consumers: Named,
) -> Result<Queues, Refusal> {
    if !node.is_filled() {
        return Ok(Queues::default());
    }
    let homed = by_home(node, queues);
    let mut asker = Asker::new(node);
    let reply = asker.reply_to();
    let mut asked = 0;
    for (home, queues) in homed {
        asker.tell_shard(home, ToShard::List { reply, queues: queues.into(), consumers });
        asked += 1;
    }
    let mut facts = HashMap::default();
    for _ in 0..asked {
        if let Reply::Queues(queues) = asker.answer().await? {
            facts.extend(queues.into_iter().map(|queue| (queue.queue, queue)));
        }
    }
    Ok(facts)
}

/// Queues by the groups that they live in.
fn by_home(node: &Node, queues: &[QueueId]) -> BTreeMap<GroupId, Vec<QueueId>> {
    let mut homed = BTreeMap::<_, Vec<_>>::new();
    let topology = node.topology();
    for &queue in queues {
        homed.entry(topology.home(queue)).or_default().push(queue);
    }
    homed
}

/// Calls `each` with what shards know of some queues, in pieces, between which the thread turns to other requests.
pub async fn each(
    node: &Arc<Node>,
    queues: &[QueueId],
    mut each: impl FnMut(QueueFacts),
) -> Result<(), Refusal> {
    for some in queues.chunks(ASKED) {
        of(node, some).await?.into_values().for_each(&mut each);
        yield_now().await;
    }
    Ok(())
}

/// Asks a queue's shard for what it knows of that queue and its consumers.
pub async fn queue(node: &Arc<Node>, queue: QueueId) -> Result<Option<QueueFacts>, Refusal> {
    Ok(with(node, &[queue], Named::All).await?.remove(&queue))
}

/// RabbitMQ's word for how a queue is; `paused` is LavinMQ's. In `flow` those who publish into it pause:
/// its shard's disk is far behind. `starting`: the queues are being filled.
pub fn queue_state(is_filled: bool, is_paused: bool, facts: Option<&QueueFacts>) -> &'static str {
    if !is_filled && facts.is_none() {
        "starting"
    } else if is_paused {
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
