//! One queue: purge, delete. And what RabbitMQ's tools do with replicas, of which one node has none.

use serde_json::{Map, Value, json};

use super::{Entry, Tools, Word, flag, ignored, ignored_value, maybe, one, value};
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

fn move_messages(it: &mut Call<'_>) -> Result<Answer, Fault> {
    let mut body = Map::new();
    for (word, key) in
        [("to-queue", "to_queue"), ("to-exchange", "to_exchange"), ("routing-key", "routing_key")]
    {
        if let Some(text) = it.optional(word) {
            body.insert(key.to_owned(), Value::from(text));
        }
    }
    if it.optional("count").is_some() {
        body.insert("count".to_owned(), Value::from(it.number("count")?));
    }
    let told = it.post(&format!("{PATH}/move"), &Value::Object(body))?;
    let lines = ["moved", "refused", "unrouted"].map(|key| format!("{key} = {}\n", told[key]));
    Ok(Answer::Document(told, lines.concat()))
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
        match it.optional("count") {
            Some(_) => it.delete(&format!("{PATH}/contents?count={}", it.number("count")?))?,
            None => it.delete(&format!("{PATH}/contents"))?,
        };
        Ok(Answer::Done)
    })
    .takes(&[value("count", "", "Only the first so many"), QUEUE])
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
    Entry::new(
        "pause_queue",
        Tools::CTL,
        "Give nobody messages of a queue until it is resumed",
        |it| {
            it.put(&format!("{PATH}/pause"), &Value::Null)?;
            Ok(Answer::Done)
        },
    )
    .takes(&[QUEUE])
    .says("Pausing queue '{queue}' in vhost '{vhost}' ...")
    .or_missing(Code::Data, NO_QUEUE),
    Entry::new("resume_queue", Tools::CTL, "Let a paused queue go on", |it| {
        it.put(&format!("{PATH}/resume"), &Value::Null)?;
        Ok(Answer::Done)
    })
    .takes(&[QUEUE])
    .says("Resuming queue '{queue}' in vhost '{vhost}' ...")
    .or_missing(Code::Data, NO_QUEUE),
    Entry::new(
        "move_messages",
        Tools::CTL,
        "Move ready messages to another queue or to an exchange",
        move_messages,
    )
    .takes(&[
        QUEUE,
        value("to-queue", "", "The queue they go to"),
        value("to-exchange", "", "Or the exchange"),
        value("routing-key", "", "The routing key they get, instead of their own"),
        value("count", "", "Only the first so many"),
    ])
    .says("Moving messages of queue '{queue}' in vhost '{vhost}' ...")
    .or_missing(Code::Data, NO_QUEUE),
    Entry::new("set_queue_arguments", Tools::CTL, "Change arguments of a queue as it is", |it| {
        let arguments = it.json("arguments")?;
        it.patch(&format!("{PATH}/arguments"), &arguments)?;
        Ok(Answer::Done)
    })
    .takes(&[
        QUEUE,
        one(
            "arguments",
            "A JSON object of arguments; null removes one, those that are not named stay",
        ),
    ])
    .says("Setting arguments of queue '{queue}' to {arguments} ...")
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
