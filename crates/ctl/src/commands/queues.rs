//! One queue: purge, delete, look. And what RabbitMQ's tools do with replicas: each node of a cluster has one of every queue.

use serde_json::{Map, Value, json};

use super::{Command, Tools, Word, answers, flag, ignored, ignored_value, maybe, one, value};
use crate::call::{Answer, Call};
use crate::columns;
use crate::fault::{Code, Fault};
use crate::format::cell;

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
    it.delete(&format!("{PATH}?if-empty={empty}&if-unused={unused}")).map_err(|fault| {
        // A condition that does not hold.
        let is_condition = fault.code == Code::Data && (empty || unused);
        if is_condition { Fault { code: Code::Unavailable, ..fault } } else { fault }
    })?;
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

/// The members of the cluster, which have all that is stored: of a node alone itself.
fn members(it: &mut Call<'_>) -> Result<Vec<String>, Fault> {
    let cluster = it.get("/api/leveret/cluster")?;
    let nodes = cluster["nodes"].as_array().into_iter().flatten();
    Ok(nodes.filter(|node| node["joins"] != true).map(|node| cell(&node["name"])).collect())
}

/// Each member of the cluster keeps a copy of everything; others cannot.
fn more_members(it: &mut Call<'_>) -> Result<Answer, Fault> {
    let members = members(it)?;
    if members.iter().any(|name| name == it.word("member")) {
        return Ok(Answer::Done);
    }
    Err(not_among(it, &members))
}

/// A node that is no member has no copies.
fn not_among(it: &Call<'_>, members: &[String]) -> Fault {
    let why = match members {
        [_] => "this node stands alone, and keeps the only copy of its queues",
        _ => "its members keep a copy of every queue, and no other node does",
    };
    Fault::usage(it.fill(&format!("node {{member}} is not a member of the cluster: {why}")))
}

/// All members keep copies of all queues, as long as they are members.
fn fewer_members(it: &mut Call<'_>) -> Result<Answer, Fault> {
    let members = members(it)?;
    if members.len() == 1 || !members.iter().any(|name| name == it.word("member")) {
        return Err(not_among(it, &members));
    }
    Err(Fault::unavailable(it.fill(
        "each member of the cluster keeps a copy of every queue: forget_cluster_node {member} takes away all that it has",
    )))
}

/// The one node that leads does so for all queues; queues without members have no leader.
fn transfer_leadership(it: &mut Call<'_>) -> Result<Answer, Fault> {
    let queue = it.get(&format!("{PATH}?columns=type,leader"))?;
    if queue["type"] != "quorum" {
        return Err(Fault::software("Cannot transfer leadership of a non-quorum queue"));
    }
    if queue["leader"] == it.word("member") {
        return Err(Fault::software("The target node is already the leader of this queue"));
    }
    let members = members(it)?;
    if !members.iter().any(|name| name == it.word("member")) {
        return Err(not_among(it, &members));
    }
    Err(Fault::unavailable(
        "one node leads all queues of the cluster, and another one takes over when it stops: single queues are not handed over",
    ))
}

/// There are as many members as nodes.
fn grow_to_count(it: &mut Call<'_>) -> Result<Answer, Fault> {
    let (count, members) = (it.number("count")?, members(it)?.len() as u64);
    match members {
        _ if count == members => Ok(Answer::Done),
        1 => Err(Fault::usage("this node stands alone: a queue has one member, and no more")),
        _ => Err(Fault::usage(format!(
            "every queue has a member on each node of the cluster: {members}, no more and no fewer"
        ))),
    }
}

/// Bytes of a payload that are shown.
const PEEKED: usize = 64;
/// Messages that one request passes over on the way to a position.
const PASSED: u64 = 1000;

/// The message at a place in the queue, which stays as it is.
fn peek(it: &mut Call<'_>) -> Result<Answer, Fault> {
    let place = it.number("position").ok().filter(|place| *place > 0);
    let place = place.ok_or_else(|| Fault::usage("position value must be a positive integer"))?;
    let nothing = || Fault::software("Target queue does not have a message at that position");
    let (mut from, mut left) = (0, place - 1);
    while left > 0 {
        let limit = left.min(PASSED);
        let passed =
            it.get(&format!("{PATH}/messages?from={from}&limit={limit}&truncate=0&columns=next"))?;
        from = passed["next"].as_u64().ok_or_else(nothing)?;
        left -= limit;
    }
    let told = it.get(&format!("{PATH}/messages?from={from}&limit=1&truncate={PEEKED}"))?;
    let message = told["messages"].get(0).ok_or_else(nothing)?;
    let row = |key: &str, value: &Value| json!({"keys": key, "values": value});
    let mut rows = vec![
        row("payload (max 64 bytes)", &message["payload"]),
        row("exchange", &message["exchange"]),
        row("routing_keys", &json!([message["routing_key"]])),
    ];
    for (key, value) in message["properties"].as_object().into_iter().flatten() {
        match (key.as_str(), value) {
            ("headers", Value::Object(headers)) => {
                rows.extend(
                    headers.iter().map(|(key, value)| row(&format!("header.{key}"), value)),
                );
            }
            _ => rows.push(row(key, value)),
        }
    }
    rows.push(row("header.x-delivery-count", &message["delivery_count"]));
    Ok(Call::rows_of(&Value::Array(rows), columns::all(&["keys", "values"])))
}

/// Nothing to do for a queue, which has to be there.
fn for_a_queue(it: &mut Call<'_>) -> Result<Answer, Fault> {
    it.get(&format!("{PATH}?columns=name"))?;
    Ok(Answer::Done)
}

pub(super) const COMMANDS: &[Command] = &[
    Command::new("purge_queue", Tools::CTL, "Delete all ready messages of a queue", |it| {
        match it.optional("count") {
            Some(_) => it.delete(&format!("{PATH}/contents?count={}", it.number("count")?))?,
            None => it.delete(&format!("{PATH}/contents"))?,
        };
        Ok(Answer::Done)
    })
    .takes(&[value("count", "", "Only the first so many"), QUEUE])
    .says("Purging queue '{queue}' in vhost '{vhost}' ...")
    .or_missing(Code::Data, NO_QUEUE),
    Command::new("delete_queue", Tools::CTL, "Delete a queue and every message in it", delete)
        .takes(&[
            flag("if-empty", "Refuse when the queue holds messages").short('e'),
            flag("if-unused", "Refuse when the queue has consumers").short('u'),
            ignored("force"),
            QUEUE,
        ])
        .or_missing(Code::Usage, "No such queue was found"),
    Command::new(
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
    Command::new("resume_queue", Tools::CTL, "Let a paused queue go on", |it| {
        it.put(&format!("{PATH}/resume"), &Value::Null)?;
        Ok(Answer::Done)
    })
    .takes(&[QUEUE])
    .says("Resuming queue '{queue}' in vhost '{vhost}' ...")
    .or_missing(Code::Data, NO_QUEUE),
    Command::new(
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
    Command::new("set_queue_arguments", Tools::CTL, "Change arguments of a queue as it is", |it| {
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
    Command::new("sync_queue", Tools::CTL, "Accepted: queues have no mirrors", |it| {
        it.post(&format!("{PATH}/actions"), &json!({"action": "sync"}))?;
        Ok(Answer::Done)
    })
    .takes(&[QUEUE])
    .says("Synchronising queue '{queue}' in vhost '{vhost}' ...")
    .or_missing(Code::Data, NO_QUEUE),
    Command::new("cancel_sync_queue", Tools::CTL, "Accepted: queues have no mirrors", |it| {
        it.post(&format!("{PATH}/actions"), &json!({"action": "cancel_sync"}))?;
        Ok(Answer::Done)
    })
    .takes(&[QUEUE])
    .says("Stopping synchronising queue '{queue}' in vhost '{vhost}' ...")
    .or_missing(Code::Data, NO_QUEUE),
    Command::new(
        "quorum_status",
        Tools::QUEUES_AND_DIAGNOSTICS,
        "Show the members of a quorum queue, one on each node of the cluster",
        quorum_status,
    )
    .takes(&[QUEUE])
    .says("Status of quorum queue {queue} on node {node} ...")
    .or_missing(Code::Data, NO_QUEUE),
    Command::new(
        "rebalance",
        Tools::QUEUES,
        "Accepted: one node leads all queues, and nothing is spread",
        |it| {
            it.post("/api/rebalance/queues", &Value::Null)?;
            Ok(Answer::Done)
        },
    )
    .takes(&[
        maybe("type", "all, classic, quorum or stream"),
        ignored_value("vhost-pattern"),
        ignored_value("queue-pattern"),
    ])
    .says("Re-balancing leaders of all queues..."),
    Command::new(
        "add_member",
        Tools::QUEUES,
        "Accepted for members of the cluster, which keep all queues",
        more_members,
    )
    .takes(&[QUEUE, NODE, ignored_value("membership")]),
    Command::new(
        "delete_member",
        Tools::QUEUES,
        "Not there: members of the cluster keep all queues",
        fewer_members,
    )
    .takes(&[QUEUE, NODE]),
    Command::new(
        "peek",
        Tools::QUEUES,
        "Show the message at a place in a queue, without taking it",
        peek,
    )
    .takes(&[QUEUE, one("position", "Its place among the ready ones, from 1")])
    .says("Peeking at queue {queue} at position {position} on node {node} ...")
    .or_missing(Code::Software, "Target queue was not found in virtual host '{vhost}'"),
    Command::new(
        "transfer_leadership",
        Tools::QUEUES_AND_STREAMS,
        "Not there: one node leads all queues",
        transfer_leadership,
    )
    .takes(&[QUEUE, NODE])
    .says("Transferring leadership of quorum queue {queue} to node {member}...")
    .or_missing(Code::Data, NO_QUEUE),
    Command::new(
        "reclaim_quorum_memory",
        Tools::QUEUES_AND_DIAGNOSTICS,
        "Accepted: what is not needed is let go at once",
        for_a_queue,
    )
    .takes(&[QUEUE])
    .says("Will reclaim memory of quorum queue {queue} on node {node} ...")
    .or_missing(Code::Data, NO_QUEUE),
    Command::new(
        "force_checkpoint",
        Tools::QUEUES,
        "Accepted: checkpoints are made when they are due",
        answers,
    )
    .takes(&[
        ignored_value("vhost-pattern"),
        ignored_value("queue-pattern"),
        ignored("errors-only"),
    ])
    .says("Forcing checkpoint for all matching quorum queues..."),
    Command::new(
        "grow_to_count",
        Tools::QUEUES,
        "Accepted for the number of members of the cluster",
        grow_to_count,
    )
    .takes(&[
        one("count", "How many members"),
        maybe("strategy", "all or even"),
        ignored_value("vhost-pattern"),
        ignored_value("queue-pattern"),
        ignored_value("membership"),
        ignored("errors-only"),
    ]),
    Command::new(
        "grow",
        Tools::QUEUES_AND_STREAMS,
        "Accepted for members of the cluster, which keep all queues",
        more_members,
    )
    .takes(&[
        NODE,
        maybe("strategy", "all or even"),
        ignored_value("vhost-pattern"),
        ignored_value("queue-pattern"),
        ignored_value("membership"),
        ignored("errors-only"),
    ]),
    Command::new(
        "shrink",
        Tools::QUEUES_AND_STREAMS,
        "Not there: members of the cluster keep all queues",
        fewer_members,
    )
    .takes(&[NODE, ignored("errors-only")]),
];
