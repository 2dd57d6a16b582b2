//! One queue: purge, delete. And what RabbitMQ's tools do with replicas, of which one node has none.

use serde_json::{Value, json};

use super::{Entry, Tools, Word, flag, ignored, ignored_value, maybe, one};
use crate::call::{Answer, Call};
use crate::columns;
use crate::fault::{Code, Fault};

const QUEUE: Word = one("queue", "The queue");
const NODE: Word = one("member", "A node");
const PATH: &str = "/api/queues/{vhost}/{queue}";
const NO_QUEUE: &str = "Queue '{queue}' in vhost '{vhost}' does not exist";

fn delete(it: &mut Call<'_>) -> Result<Answer, Fault> {
    if it.word("queue").is_empty() {
        return Err(Fault::data("queue name cannot be an empty string"));
    }
    let conditions = match (it.flag("if-empty"), it.flag("if-unused")) {
        (true, true) => "if queue is empty and if queue is unused ",
        (true, false) => "if queue is empty ",
        (false, true) => "if queue is unused ",
        (false, false) => "",
    };
    let banner = it.fill("Deleting queue '{queue}' on vhost '{vhost}' ");
    it.say_this(&format!("{banner}{conditions}..."))?;
    let ready = it.get(&format!("{PATH}?columns=messages_ready"))?;
    let (empty, unused) = (it.flag("if-empty"), it.flag("if-unused"));
    it.delete(&format!("{PATH}?if-empty={empty}&if-unused={unused}"))?;
    let ready = ready["messages_ready"].as_u64().unwrap_or_default();
    Ok(Answer::Message(format!("Queue was successfully deleted with {ready} ready messages")))
}

fn quorum_status(it: &mut Call<'_>) -> Result<Answer, Fault> {
    let status = it.get("/api/queues/quorum/{vhost}/{queue}/status")?;
    let columns = [
        "Node Name",
        "Raft State",
        "Membership",
        "Last Log Index",
        "Last Written",
        "Last Applied",
        "Commit Index",
        "Snapshot Index",
        "Term",
        "Machine Version",
    ];
    Ok(Call::rows_of(&status, columns::all(&columns)))
}

/// There is no other node to keep a replica on, or to take one from.
fn no_other_node(it: &mut Call<'_>) -> Result<Answer, Fault> {
    Err(Fault::usage(it.fill(
        "node {member} is not a member of the cluster: this node stands alone, and keeps the only \
         copy of its queues",
    )))
}

pub(super) const COMMANDS: &[Entry] = &[
    Entry::new("purge_queue", Tools::CTL, "Delete all ready messages of a queue", |it| {
        it.delete("/api/queues/{vhost}/{queue}/contents")?;
        Ok(Answer::Done)
    })
    .takes(&[QUEUE])
    .says("Purging queue '{queue}' in vhost '{vhost}' ...")
    .or_missing(Code::Data, NO_QUEUE),
    Entry::new("delete_queue", Tools::CTL, "Delete a queue and every message in it", delete)
        .takes(&[
            flag("if-empty", "Refuse when the queue holds messages").short('e'),
            flag("if-unused", "Refuse when the queue has consumers").short('u'),
            ignored("force"),
            QUEUE,
        ])
        .or_missing(Code::Data, NO_QUEUE),
    Entry::new("sync_queue", Tools::CTL, "Accepted: queues have no mirrors", |it| {
        it.post(&format!("{PATH}/actions"), &json!({"action": "sync"}))?;
        Ok(Answer::Done)
    })
    .takes(&[QUEUE])
    .says("Synchronising queue '{queue}' in vhost '{vhost}' ...")
    .or_missing(Code::Data, NO_QUEUE),
    Entry::new("cancel_sync_queue", Tools::CTL, "Accepted: queues have no mirrors", |it| {
        it.post(&format!("{PATH}/actions"), &json!({"action": "cancel_sync"}))?;
        Ok(Answer::Done)
    })
    .takes(&[QUEUE])
    .says("Stopping synchronising queue '{queue}' in vhost '{vhost}' ...")
    .or_missing(Code::Data, NO_QUEUE),
    Entry::new(
        "quorum_status",
        Tools::QUEUES_AND_DIAGNOSTICS,
        "Show the one member of a quorum queue",
        quorum_status,
    )
    .takes(&[QUEUE])
    .says("Status of quorum queue {queue} on node {node} ...")
    .or_missing(Code::Data, NO_QUEUE),
    Entry::new("rebalance", Tools::QUEUES, "Accepted: one node has nothing to spread", |it| {
        it.post("/api/rebalance/queues", &Value::Null)?;
        Ok(Answer::Done)
    })
    .takes(&[
        maybe("type", "all, classic, quorum or stream"),
        ignored_value("vhost-pattern"),
        ignored_value("queue-pattern"),
    ])
    .says("Re-balancing leaders of all queues..."),
    Entry::new("add_member", Tools::QUEUES, "Not there: this node stands alone", no_other_node)
        .takes(&[QUEUE, NODE, ignored_value("membership")]),
    Entry::new("delete_member", Tools::QUEUES, "Not there: this node stands alone", no_other_node)
        .takes(&[QUEUE, NODE]),
    Entry::new("grow", Tools::QUEUES, "Not there: this node stands alone", no_other_node).takes(&[
        NODE,
        maybe("strategy", "all or even"),
        ignored_value("vhost-pattern"),
        ignored_value("queue-pattern"),
        ignored_value("membership"),
        ignored("errors-only"),
    ]),
    Entry::new("shrink", Tools::QUEUES, "Not there: this node stands alone", no_other_node)
        .takes(&[NODE, ignored("errors-only")]),
];
