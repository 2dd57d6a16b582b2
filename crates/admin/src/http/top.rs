//! What is busiest: threads, shards, queues, connections and channels, as RabbitMQ's top plugin tells of processes.
//!
//! What RabbitMQ calls reductions is here what was done: milliseconds of a thread's time on a processor, messages that
//! came to a shard or a queue, or left it, or passed a channel, bytes of a connection. So only rows of one sort compare.

use std::cmp::Reverse;
use std::time::Duration;

use leveret_broker::message::ConnectionId;
use leveret_topology::{QueueId, Topology};
use serde_json::{Value, json};

use super::answer::{Answer, Fault};
use super::call::Call;
use crate::ops::pages::{self, Slice};
use crate::stats::names::{CHANNEL, DATA, QUEUE};
use crate::stats::snapshot::{ConnectionEntry, QueueEntry};
use crate::stats::{ChannelEntry, History};

/// Rows unless the query says, and at most.
const ROWS: u64 = 20;
const ROWS_MAX: u64 = 500;

/// Samples that are older are taken anew.
const FRESH: Duration = Duration::from_secs(1);

/// What a row is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    Thread(u64),
    Shard(usize),
    Queue(QueueId),
    Connection(ConnectionId),
    Channel(ConnectionId, u16),
}

impl Who {
    /// The one that this pid names.
    fn of_pid(pid: &str) -> Option<Self> {
        let mut parts = pid.strip_prefix('<')?.strip_suffix('>')?.split('.');
        let kind = parts.next()?;
        let name = parts.next()?;
        let number = || name.parse::<u64>().ok();
        let channel: Option<u16> = parts.next().map(|it| it.parse().ok()).unwrap_or_default();
        let who = match (kind, channel) {
            ("thread", None) => Self::Thread(number()?),
            ("shard", None) => Self::Shard(usize::try_from(number()?).ok()?),
            ("queue", None) => Self::Queue(QueueId::new(number()?)),
            ("connection", None) => Self::Connection(name.parse().ok()?),
            ("connection", Some(channel)) => Self::Channel(name.parse().ok()?, channel),
            _ => return None,
        };
        // As it is written here, and in no other way.
        (who.pid() == pid).then_some(who)
    }

    fn pid(self) -> String {
        match self {
            Self::Thread(id) => format!("<thread.{id}>"),
            Self::Shard(index) => format!("<shard.{index}>"),
            Self::Queue(id) => format!("<queue.{}>", id.get()),
            Self::Connection(id) => id.pid(),
            Self::Channel(id, number) => id.channel_pid(number),
        }
    }
}

/// A row before it has names.
#[derive(Clone, Copy, Debug)]
struct Row {
    who: Who,
    memory: u64,
    done: u64,
    per_second: u64,
    letters: u64,
    status: &'static str,
}

/// What rows are sorted by.
#[derive(Clone, Copy, Debug)]
enum By {
    Pid,
    Memory,
    Done,
    PerSecond,
    Letters,
    Status,
}

impl By {
    /// RabbitMQ's names; what is not one of them is as if nothing was said.
    fn of(call: &Call) -> Self {
        match call.query("sort") {
            Some("pid") => Self::Pid,
            Some("memory") => Self::Memory,
            Some("reductions") => Self::Done,
            Some("message_queue_len" | "buffer_len") => Self::Letters,
            Some("status") => Self::Status,
            _ => Self::PerSecond,
        }
    }

    fn key(self, row: &Row) -> (u64, &'static str, Who) {
        match self {
            Self::Pid => (0, "", row.who),
            Self::Memory => (row.memory, "", row.who),
            Self::Done => (row.done, "", row.who),
            Self::PerSecond => (row.per_second, "", row.who),
            Self::Letters => (row.letters, "", row.who),
            Self::Status => (0, row.status, row.who),
        }
    }
}

/// The first rows of all that are put in.
#[derive(Debug)]
struct First {
    rows: Vec<Row>,
    count: usize,
    by: By,
    is_up: bool,
}

impl First {
    fn put(&mut self, row: Row) {
        self.rows.push(row);
        if self.rows.len() >= 2 * self.count.max(64) {
            self.cut();
        }
    }

    fn cut(&mut self) {
        let by = self.by;
        if self.is_up {
            self.rows.sort_unstable_by_key(|row| by.key(row));
        } else {
            self.rows.sort_unstable_by_key(|row| Reverse(by.key(row)));
        }
        self.rows.truncate(self.count);
    }
}

/// `GET /api/top/{node}`, of one sort with `type`.
pub(super) async fn processes(mut call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    call.must_name_this_node()?;
    let count = call.number("row_count")?.unwrap_or(ROWS).min(ROWS_MAX);
    let wanted = call.query("type").map(str::to_owned);
    let wants = |kind: &str| wanted.as_deref().is_none_or(|wanted| wanted == kind);
    let (by, is_up) = (By::of(&call), call.is_asked("sort_reverse"));
    call.app.ops.stats.look();
    call.app.ops.stats.refresh(FRESH).await;
    let mut first = First { rows: Vec::new(), count: count as usize, by, is_up };
    if wants("thread") {
        put_threads(&call, &mut first);
    }
    if wants("shard") {
        put_shards(&call, &mut first);
    }
    if wants("queue") {
        put_queues(&mut call, &mut first).await?;
    }
    if wants("connection") || wants("channel") {
        let wanted = (wants("connection"), wants("channel"));
        put_connections(&mut call, wanted, &mut first).await?;
    }
    first.cut();
    let name = |topology: &Topology, row| Some((row, queue_name(topology, row)));
    let named = pages::copied(call.node(), first.rows, name).await;
    let rows = named.into_iter().filter_map(|(row, queue)| told(&call, &row, queue));
    let rows: Vec<_> = rows.collect();
    Ok(Answer::Json(json!({"node": call.node_name(), "row_count": count, "processes": rows})))
}

/// `GET /api/process/{pid}`: one row, and what hangs together with it.
pub(super) async fn process(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    let who = Who::of_pid(call.param("pid")).ok_or_else(Fault::not_found)?;
    call.app.ops.stats.look();
    call.app.ops.stats.refresh(FRESH).await;
    let row = row(&call, who).ok_or_else(Fault::not_found)?;
    let queue = queue_name(&call.node().topology(), row);
    let mut told = told(&call, &row, queue).ok_or_else(Fault::not_found)?;
    told["links"] = links(&call, who).into();
    // What an Erlang process has beside these.
    told["monitors"] = json!([]);
    told["monitored_by"] = json!([]);
    told["trap_exit"] = json!(false);
    told["current_stacktrace"] = json!("[]");
    Ok(Answer::Json(told))
}

/// The row of one; none if it is not there.
fn row(call: &Call, who: Who) -> Option<Row> {
    let connection_of = |id| call.stats().connections.get(&id).cloned();
    match who {
        Who::Thread(_) | Who::Shard(_) => {
            let mut all =
                First { rows: Vec::new(), count: usize::MAX / 4, by: By::Pid, is_up: true };
            put_threads(call, &mut all);
            put_shards(call, &mut all);
            all.rows.into_iter().find(|row| row.who == who)
        }
        Who::Queue(id) => call.stats().queues.get(&id).map(|it| queue(it)),
        Who::Connection(id) => connection_of(id).map(|it| connection(id, &it)),
        Who::Channel(id, number) => {
            let entry = connection_of(id)?;
            entry.channels.iter().find(|(it, _)| *it == number).map(|it| channel(id, it))
        }
    }
}

/// The names of what ends together: a connection and its channels.
fn links(call: &Call, who: Who) -> Vec<String> {
    let stats = call.stats();
    match who {
        Who::Connection(id) => {
            let entry = stats.connections.get(&id);
            let channels = entry.map_or(&[][..], |entry| &entry.channels);
            channels.iter().map(|(number, _)| id.channel_pid(*number)).collect()
        }
        Who::Channel(id, _) => vec![id.pid()],
        Who::Thread(_) | Who::Shard(_) | Who::Queue(_) => Vec::new(),
    }
}

/// `GET /api/top/ets/{node}`: there are no such tables.
pub(super) async fn tables(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    call.must_name_this_node()?;
    let count = call.number("row_count")?.unwrap_or(ROWS);
    Ok(Answer::Json(json!({"node": call.node_name(), "row_count": count, "ets_tables": []})))
}

fn put_threads(call: &Call, first: &mut First) {
    for thread in &call.stats().overview.busy.threads {
        first.put(Row {
            who: Who::Thread(thread.id),
            memory: 0,
            done: thread.cpu_ms.done,
            per_second: thread.cpu_ms.per_second,
            letters: 0,
            status: status(thread.cpu_ms.per_second),
        });
    }
}

fn put_shards(call: &Call, first: &mut First) {
    let letters: Vec<_> = call.node().shards.iter().map(|shard| shard.actor.letters()).collect();
    for (index, shard) in call.stats().overview.busy.shards.iter().enumerate() {
        first.put(Row {
            who: Who::Shard(index),
            memory: shard.held_bytes,
            done: shard.messages.done,
            per_second: shard.messages.per_second,
            letters: letters.get(index).map_or(0, |&count| count as u64),
            status: status(shard.messages.per_second),
        });
    }
}

async fn put_queues(call: &mut Call, first: &mut First) -> Result<(), Fault> {
    let count = call.stats().queues.len();
    call.hold(count * size_of::<QueueId>()).await?;
    let ids: Vec<_> = call.stats().queues.keys().copied().collect();
    let mut slice = Slice::begin();
    for some in ids.chunks(pages::ROWS) {
        {
            let stats = call.stats();
            some.iter().filter_map(|id| stats.queues.get(id)).for_each(|it| first.put(queue(it)));
        }
        slice.share().await;
    }
    Ok(())
}

fn queue(entry: &QueueEntry) -> Row {
    let numbers = &entry.numbers;
    let per_second = rates(&entry.messages, &QUEUE, &["publish", "deliver_get", "ack"]);
    let it = &numbers.totals;
    let taken = it.delivered + it.delivered_no_ack + it.got + it.got_no_ack;
    Row {
        who: Who::Queue(numbers.queue),
        memory: numbers.memory_bytes,
        done: it.enqueued + taken + it.acked,
        per_second,
        letters: 0,
        status: if numbers.is_in_flow { "flow" } else { status(per_second) },
    }
}

async fn put_connections(
    call: &mut Call,
    (connections, channels): (bool, bool),
    first: &mut First,
) -> Result<(), Fault> {
    let count = call.stats().connections.len();
    call.hold(count * size_of::<ConnectionId>()).await?;
    let ids: Vec<_> = call.stats().connections.keys().copied().collect();
    let mut slice = Slice::begin();
    for some in ids.chunks(pages::ROWS) {
        {
            let stats = call.stats();
            for &id in some {
                let Some(entry) = stats.connections.get(&id) else { continue };
                if connections {
                    first.put(connection(id, entry));
                }
                if channels {
                    entry.channels.iter().for_each(|it| first.put(channel(id, it)));
                }
            }
        }
        slice.share().await;
    }
    Ok(())
}

fn connection(id: ConnectionId, entry: &ConnectionEntry) -> Row {
    let per_second = rates(&entry.data, &DATA, &DATA);
    Row {
        who: Who::Connection(id),
        memory: entry.held_bytes,
        done: entry.io.recv_oct + entry.io.send_oct,
        per_second,
        letters: entry.letters,
        status: entry
            .numbers
            .waits_for
            .as_ref()
            .map_or_else(|| status(per_second), |_| "suspended"),
    }
}

fn channel(id: ConnectionId, (number, entry): &(u16, ChannelEntry)) -> Row {
    let passed = ["publish", "confirm", "deliver_get", "ack"];
    let per_second = rates(&entry.messages, &CHANNEL, &passed);
    let counted = entry.messages.values();
    Row {
        who: Who::Channel(id, *number),
        memory: 0,
        done: sum(&CHANNEL, &passed, |at| counted[at]),
        per_second,
        letters: 0,
        status: status(per_second),
    }
}

fn sum<const N: usize>(names: &[&str; N], wanted: &[&str], of: impl Fn(usize) -> u64) -> u64 {
    let places = names.iter().enumerate().filter(|(_, name)| wanted.contains(name));
    places.map(|(at, _)| of(at)).sum()
}

fn rates<const N: usize>(history: &History<N>, names: &[&str; N], wanted: &[&str]) -> u64 {
    sum(names, wanted, |at| history.rate(at).max(0.0).round() as u64)
}

/// An Erlang process that has nothing to do is `waiting`.
fn status(per_second: u64) -> &'static str {
    if per_second > 0 { "running" } else { "waiting" }
}

/// Vhost and name of a row's queue.
fn queue_name(topology: &Topology, row: Row) -> Option<(String, String)> {
    let Who::Queue(id) = row.who else { return None };
    let queue = topology.queue_by_id(id)?;
    let vhost = topology.vhost_by_id(queue.vhost)?;
    Some((vhost.name.to_string(), queue.name.to_string()))
}

/// A row with its names; none if what it is of is gone.
fn told(call: &Call, row: &Row, queue: Option<(String, String)>) -> Option<Value> {
    let connection_name = |id| Some(call.stats().connections.get(&id)?.connection.name());
    let name = match row.who {
        Who::Thread(id) => {
            let stats = call.stats();
            let thread = stats.overview.busy.threads.iter().find(|it| it.id == id)?;
            json!({"type": "thread", "name": thread.name})
        }
        Who::Shard(index) => {
            json!({"type": "shard", "name": format!("shard {index}")})
        }
        Who::Queue(_) => {
            let (vhost, name) = queue?;
            json!({"supertype": "queue", "type": "rabbit_amqqueue_process",
                "queue_name": name, "vhost": vhost})
        }
        Who::Connection(id) => {
            let name = connection_name(id)?;
            json!({"supertype": "connection", "type": "rabbit_reader", "connection_name": name})
        }
        Who::Channel(id, number) => {
            let name = connection_name(id)?;
            json!({"supertype": "channel", "type": "rabbit_channel",
                "connection_name": name, "channel_number": number})
        }
    };
    Some(json!({
        "pid": row.who.pid(),
        "name": name,
        "memory": row.memory,
        "reductions": row.done,
        "reduction_delta": row.per_second,
        "message_queue_len": row.letters,
        "buffer_len": -1,
        "status": row.status,
    }))
}
