//! Queues.

use std::borrow::Cow;
use std::sync::Arc;

use leveret_amqp::method::{Method, queue};
use leveret_amqp::table::{RawTable, Table};
use leveret_broker::message::{ConnectionId, QueueFacts, Reply, ToShard};
use leveret_broker::numbers::{QueueNumbers, States};
use leveret_server::cluster::view::{MemberTold, NodeTold, NodeView};
use leveret_topology::{
    GroupId, Permission, Queue, QueueId, QueueKind, ReplicationConfirm, Topology, table_to_json,
    weight,
};
use serde_json::{Map, Value, json};

use super::answer::{Answer, Fault};
use super::call::{Call, Fields as _, short, table};
use super::consumers::{Consumer, Consumers};
use super::exchanges::{change, direct};
use super::listing::{Listed, Why};
use super::{consumers, listing, queue_control, stats};
use crate::ops::pages::{self, Slice};
use crate::ops::{ask, facts};
use crate::stats::pairs::With;
use crate::stats::snapshot::QueueEntry;

/// A queue by its names, before anything is made of it.
#[derive(Clone, Debug)]
pub(super) struct QueueNames {
    pub(super) vhost: Arc<str>,
    pub(super) name: Arc<str>,
    pub(super) id: QueueId,
}

/// What is copied of a queue while the names are held.
#[derive(Debug)]
struct Named {
    id: QueueId,
    name: Arc<str>,
    kind: QueueKind,
    durable: bool,
    auto_delete: bool,
    exclusive_owner: Option<ConnectionId>,
    paused: bool,
    arguments: Table,
    policy: Option<Box<str>>,
    operator_policy: Option<Box<str>>,
    effective_policy: Map<String, Value>,
    delivery_limit: Option<u32>,
    home: GroupId,
    replication: ReplicationConfirm,
}

impl Named {
    fn of(queue: &Queue) -> Self {
        Self {
            id: queue.id,
            name: Arc::clone(&queue.name),
            kind: queue.kind,
            durable: queue.durable,
            auto_delete: queue.auto_delete,
            exclusive_owner: queue.exclusive_owner,
            paused: queue.paused,
            arguments: queue.arguments.clone(),
            policy: queue.policy().map(Into::into),
            operator_policy: queue.operator_policy().map(Into::into),
            effective_policy: queue.effective_policy(),
            delivery_limit: queue.delivery_limit(),
            home: queue.home,
            replication: queue.confirm_options().replication,
        }
    }

    /// About what arguments and policies take.
    fn bytes(&self) -> u64 {
        let texts = self.effective_policy.values().map(|it| it.as_str().map_or(0, str::len));
        weight::table(&self.arguments) + texts.sum::<usize>() as u64
    }
}

/// What a row has without its shard.
const PLAIN: [&str; 7] =
    ["name", "vhost", "type", "durable", "auto_delete", "exclusive", "arguments"];
/// What it has without statistics.
const TOTALS: [&str; 4] = ["state", "messages", "messages_ready", "messages_unacknowledged"];

/// `GET /api/queues`, `/{vhost}` and `/detailed`.
pub(super) async fn list(mut call: Call) -> Result<Answer, Fault> {
    let vhosts = call.vhosts()?;
    let items = all(&mut call, &vhosts, |_| true).await?;
    let queues = Queues::of(&call);
    listing::list(call, queues, items).await
}

/// `GET /api/users/{user}/queues`: those that the user declared.
pub(super) async fn list_of_user(mut call: Call) -> Result<Answer, Fault> {
    let (user, vhosts) = (call.param("user").to_owned(), call.vhosts()?);
    let items = all(&mut call, &vhosts, |queue| *queue.declared_by == *user).await?;
    let queues = Queues::of(&call);
    listing::list(call, queues, items).await
}

/// The queues of some vhosts that are wanted, by vhost and name.
pub(super) async fn all(
    call: &mut Call,
    vhosts: &[String],
    is_wanted: impl Fn(&Queue) -> bool + Send + Sync,
) -> Result<Vec<QueueNames>, Fault> {
    let count: usize = {
        let topology = call.node().topology();
        vhosts.iter().filter_map(|name| Some(topology.vhost(name)?.queue_count())).sum()
    };
    call.hold(count * 2 * size_of::<QueueNames>()).await?;
    let mut all = Vec::new();
    for vhost in vhosts {
        let (vhost, ids) = {
            let topology = call.node().topology();
            let Some(vhost) = topology.vhost(vhost) else { continue };
            (Arc::clone(&vhost.name), topology.queue_ids(vhost.id))
        };
        let item = |topology: &Topology, id| {
            let queue = topology.queue_by_id(id).filter(|queue| is_wanted(queue))?;
            Some(QueueNames { vhost: Arc::clone(&vhost), name: Arc::clone(&queue.name), id })
        };
        let mut of_vhost = pages::copied(call.node(), ids, item).await;
        pages::sort(&mut of_vhost, |a, b| a.name.cmp(&b.name)).await;
        all.append(&mut of_vhost);
    }
    Ok(all)
}

/// A list of queues: what it has to ask for.
#[derive(Debug)]
struct Queues {
    has_totals: bool,
    has_stats: bool,
    /// Statistics are sorted by.
    sorts_stats: bool,
}

impl Queues {
    fn of(call: &Call) -> Self {
        let cheap = [&PLAIN[..], &TOTALS].concat();
        let has_stats = !call.is_asked("disable_stats") && !listing::asks_only(call, &cheap);
        let has_totals = has_stats
            || call.is_asked("enable_queue_totals")
            || (!call.is_asked("disable_stats") && !listing::asks_only(call, &PLAIN));
        let sorts_stats = has_stats && !listing::sorts_by(call, &cheap);
        Self { has_totals, has_stats, sorts_stats }
    }
}

impl Listed for Queues {
    type Item = QueueNames;

    fn name<'a>(&self, item: &'a QueueNames) -> Cow<'a, str> {
        (&*item.name).into()
    }

    async fn rows(&self, call: &Call, items: &[QueueNames], why: Why) -> Result<Vec<Value>, Fault> {
        let has_stats = if why == Why::Sort { self.sorts_stats } else { self.has_stats };
        let copy = |topology: &Topology, item: &QueueNames| {
            let named = topology.queue_by_id(item.id).map(Named::of);
            let bytes = named.as_ref().map_or(0, Named::bytes);
            (named, bytes)
        };
        let named = pages::some(call.node(), items, copy).await;
        let ids: Vec<_> = items.iter().take(named.len()).map(|item| item.id).collect();
        let facts = match self.has_totals {
            true => facts::of(call.node(), &ids).await?,
            false => facts::Queues::default(),
        };
        let mut rows = Vec::with_capacity(items.len());
        let mut slice = Slice::begin();
        for (item, named) in items.iter().zip(named) {
            rows.push(named.map_or(Value::Null, |named| {
                row(call, &item.vhost, named, facts.get(&item.id), has_stats).into()
            }));
            slice.share().await;
        }
        Ok(rows)
    }
}

/// `GET /api/queues/{vhost}/{queue}`.
pub(super) async fn get(mut call: Call) -> Result<Answer, Fault> {
    let vhost = call.visible_vhost()?;
    let named = find(&call, &vhost, Named::of).ok_or_else(Fault::not_found)?;
    let (id, queue) = (named.id, Arc::clone(&named.name));
    let counted = facts::of(call.node(), &[id]).await?.remove(&id);
    let count = counted.map_or(0, |facts| facts.numbers.counts.consumers as usize);
    call.hold(consumers::bytes(count)).await?;
    let mut facts = facts::queue(call.node(), id).await?;
    let mut row = row(&call, &vhost, named, facts.as_ref(), true);
    let place: Arc<str> = vhost.as_str().into();
    let consumers = facts.iter_mut().flat_map(|facts| std::mem::take(&mut facts.consumers));
    let consumers = consumers.map(|facts| {
        let (vhost, queue) = (Arc::clone(&place), Arc::clone(&queue));
        Consumer { vhost, queue, facts }
    });
    let consumers = consumers.collect();
    row.insert("deliveries".to_owned(), stats::by_channel(&call.stats(), With::Queue(id)));
    let partner = |(exchange, queue)| (queue == id).then_some(exchange);
    let passages = stats::passages(&call.stats(), partner);
    let name = |topology: &Topology, (exchange, stats)| {
        let name = Arc::clone(&topology.exchange_by_id(exchange)?.name);
        Some((name, stats))
    };
    let incoming = pages::copied(call.node(), passages, name).await.into_iter();
    let incoming = incoming
        .map(|(name, stats)| json!({"exchange": {"name": &*name, "vhost": vhost}, "stats": stats}));
    row.insert("incoming".to_owned(), incoming.collect());
    listing::one_with(call, row.into(), "consumer_details", Consumers, consumers).await
}

/// What a queue of this name is; none if there is none.
pub(super) fn find<T>(call: &Call, vhost: &str, f: impl FnOnce(&Queue) -> T) -> Option<T> {
    let topology = call.node().topology();
    let vhost = topology.vhost(vhost)?.id;
    topology.queue(vhost, call.param("queue")).map(f)
}

/// A queue as a list has it; none when it is gone.
pub(super) async fn told(call: &Call, vhost: &str, name: &str) -> Result<Option<Value>, Fault> {
    let named = {
        let topology = call.node().topology();
        let id = topology.vhost(vhost).map(|it| it.id);
        id.and_then(|id| topology.queue(id, name)).map(Named::of)
    };
    let Some(named) = named else { return Ok(None) };
    let facts = facts::of(call.node(), &[named.id]).await?.remove(&named.id);
    Ok(Some(row(call, vhost, named, facts.as_ref(), true).into()))
}

/// The number that nodes have for the group of a home: 0 is that of the names.
fn number(home: GroupId) -> u64 {
    u64::from(home.get()) + 1
}

/// Where a queue is.
struct Copies {
    /// The node whose shard it is.
    leader: Option<String>,
    /// Nodes that have what is stored of it.
    members: Vec<String>,
    /// Those of them that are there.
    online: Vec<String>,
}

impl Copies {
    /// What is not stored is the leader's alone.
    fn of(call: &Call, queue: &Named) -> Self {
        let is_stored = queue.durable && queue.exclusive_owner.is_none();
        let Some(view) = call.view() else { return Self::on(call.node_name()) };
        let Some(leader) = &view.leader else {
            return Self { leader: None, members: Vec::new(), online: Vec::new() };
        };
        if !is_stored {
            return Self::on(leader);
        }
        Self {
            leader: Some(leader.clone()),
            members: view.deciding().map(|it| it.name.clone()).collect(),
            online: view.deciding().filter(|it| it.running).map(|it| it.name.clone()).collect(),
        }
    }

    fn on(node: &str) -> Self {
        let all = vec![node.to_owned()];
        Self { leader: Some(node.to_owned()), members: all.clone(), online: all }
    }
}

/// Which nodes a confirm of a queue waits for that wants all that are in contact, and which it leaves out.
fn replication_confirm(call: &Call, home: GroupId) -> Value {
    let Some(view) = call.view() else {
        return json!({"value": "all", "in_contact": [call.node_name()], "left_out": []});
    };
    let group = view.groups.iter().find(|it| it.group == number(home));
    let left_out = group.map_or(&[][..], |it| &it.left_out);
    let is_left_out = |name: &str| left_out.iter().any(|it| it.node == name);
    let nodes = view.deciding().filter(|it| !is_left_out(&it.name));
    let in_contact: Vec<&str> = nodes.map(|it| &*it.name).collect();
    json!({"value": "all", "in_contact": in_contact, "left_out": left_out})
}

fn row(
    call: &Call,
    vhost: &str,
    queue: Named,
    facts: Option<&QueueFacts>,
    has_stats: bool,
) -> Map<String, Value> {
    let node = call.node_name();
    let copies = Copies::of(call, &queue);
    let mut row = Map::new();
    let mut put = |key: &str, value: Value| {
        row.insert(key.to_owned(), value);
    };
    put("name", json!(&*queue.name));
    put("vhost", json!(vhost));
    put("type", json!(queue.kind.name()));
    put("durable", json!(queue.durable));
    put("auto_delete", json!(queue.auto_delete));
    put("exclusive", json!(queue.exclusive_owner.is_some()));
    put("arguments", table_to_json(&queue.arguments));
    put("node", json!(node));
    put("state", json!(facts::queue_state(call.node().is_filled(), queue.paused, facts)));
    put("policy", json!(queue.policy));
    put("operator_policy", json!(queue.operator_policy));
    put("effective_policy_definition", queue.effective_policy.into());
    if queue.replication == ReplicationConfirm::All {
        put("replication_confirm", replication_confirm(call, queue.home));
    }
    put("pid", json!(format!("<queue.{}>", queue.id.get())));
    put("leader", json!(copies.leader));
    put("members", json!(copies.members));
    put("online", json!(copies.online));
    if queue.kind == QueueKind::Quorum {
        put("delivery_limit", queue.delivery_limit.map_or_else(|| json!("unlimited"), Value::from));
        put("open_files", json!({node: 0}));
    } else {
        put("storage_version", json!(2));
    }
    let Some(facts) = facts else { return row };
    let counts = &facts.numbers.counts;
    put("messages", json!(counts.ready + counts.unacked));
    put("messages_ready", json!(counts.ready));
    put("messages_unacknowledged", json!(counts.unacked));
    if !has_stats {
        return row;
    }
    for name in ["messages_details", "messages_ready_details", "messages_unacknowledged_details"] {
        put(name, json!({"rate": 0.0}));
    }
    if let Some(stats) = stats::of_queue(&facts.numbers.totals) {
        put("message_stats", stats);
    }
    let bytes = counts.ready_bytes + counts.unacked_bytes;
    put("messages_persistent", json!(counts.persistent));
    let states = facts.numbers.states();
    put("messages_ram", json!(states.ready_ram + states.unacked_ram));
    put("messages_ready_ram", json!(states.ready_ram));
    put("messages_unacknowledged_ram", json!(states.unacked_ram));
    put("messages_paged_out", json!(states.transient_paged));
    put("message_bytes", json!(bytes));
    put("message_bytes_ready", json!(counts.ready_bytes));
    put("message_bytes_unacknowledged", json!(counts.unacked_bytes));
    put("message_bytes_persistent", json!(counts.persistent_bytes));
    put("message_bytes_ram", json!(states.ram_bytes));
    put("message_bytes_paged_out", json!(states.transient_paged_bytes));
    if queue.kind == QueueKind::Classic {
        put("backing_queue_status", backing_queue_status(&facts.numbers, &states));
    }
    put("messages_dlx", json!(counts.held));
    put("message_bytes_dlx", json!(counts.held_bytes));
    put("memory", json!(facts.numbers.memory_bytes));
    put("consumers", json!(counts.consumers));
    put("active_consumers", json!(facts.active_consumers));
    put("single_active_consumer_tag", json!(facts.single_active.as_ref().map(|it| &it.tag)));
    let exclusive = facts.exclusive.as_ref();
    put("exclusive_consumer_tag", json!(exclusive.map(|it| &it.tag)));
    let of_exclusive = exclusive.map(|it| it.connection.channel_pid(it.channel));
    put("exclusive_consumer_pid", json!(of_exclusive));
    let stats = call.stats();
    let sampled = stats.queues.get(&queue.id);
    let capacity = sampled.map_or(0.0, |entry| entry.consumer_capacity);
    put("consumer_utilisation", json!(capacity));
    put("consumer_capacity", json!(capacity));
    let head = facts.numbers.head.and_then(|head| head.timestamp_s);
    put("head_message_timestamp", json!(head));
    let oldest_ms = facts.numbers.oldest_ms(leveret_server::clock::now());
    put("oldest_ready_ms", json!(oldest_ms.filter(|_| counts.ready > 0)));
    put("garbage_collection", stats::garbage_collection());
    put("reductions", json!(0));
    put("reductions_details", json!({"rate": 0.0}));
    if let Some(owner) = queue.exclusive_owner {
        put("owner_pid_details", owner_details(call, owner));
    }
    QueueEntry::put_rates(sampled.map(AsRef::as_ref), &mut row, &call.ranges);
    row
}

/// RabbitMQ's four states of a message, in its words: `q4` has what is in memory, `q3` what is on the disk only and is known
/// in memory one by one, `delta` what is known in rows only.
fn backing_queue_status(numbers: &QueueNumbers, states: &States) -> Value {
    json!({
        "mode": "default",
        "version": 2,
        "q1": 0,
        "q2": 0,
        "delta": ["delta", "undefined", states.ready_packed, states.transient_paged, "undefined"],
        "q3": states.ready_indexed,
        "q4": states.ready_ram,
        "len": numbers.counts.ready,
        "num_pending_acks": numbers.counts.unacked,
        "target_ram_count": "infinity",
    })
}

fn owner_details(call: &Call, owner: ConnectionId) -> Value {
    use leveret_server::node::Recipient;
    match call.node().recipient(owner) {
        Some(Recipient::Connection(connection)) => json!({
            "name": connection.name(),
            "peer_host": connection.peer().ip().to_canonical().to_string(),
            "peer_port": connection.peer().port(),
        }),
        _ => Value::Null,
    }
}

/// `PUT /api/queues/{vhost}/{queue}`.
pub(super) async fn put(call: Call) -> Result<Answer, Fault> {
    let vhost = call.vhost_to_fill()?;
    let body = call.object()?;
    if let Some(node) = body.optional_text("node")?
        && !is_member(&call, &node)
    {
        return Err(Fault::bad(format!("Node {node} could not be contacted: it is not known")));
    }
    let arguments = table("arguments", &body.object("arguments")?)?.to_bytes();
    let is_new = find(&call, &vhost, |_| ()).is_none();
    let declare = queue::Declare {
        queue: short("queue", call.param("queue"))?,
        durable: body.flag("durable", true)?,
        auto_delete: body.flag("auto_delete", false)?,
        arguments: RawTable::unchecked(&arguments),
        ..Default::default()
    };
    let mut direct = direct(&call, &vhost).await?;
    change(&mut direct, &declare, |it| matches!(it, Method::QueueDeclareOk(_))).await?;
    Ok(Answer::put(is_new))
}

/// `DELETE /api/queues/{vhost}/{queue}`.
pub(super) async fn delete(call: Call) -> Result<Answer, Fault> {
    let vhost = call.vhost()?;
    find(&call, &vhost, |_| ()).ok_or_else(Fault::not_found)?;
    let delete = queue::Delete {
        queue: call.param("queue"),
        if_empty: call.is_asked("if-empty"),
        if_unused: call.is_asked("if-unused"),
        ..Default::default()
    };
    let mut direct = direct(&call, &vhost).await?;
    change(&mut direct, &delete, |it| matches!(it, Method::QueueDeleteOk(_))).await?;
    Ok(Answer::Done)
}

/// `DELETE /api/queues/{vhost}/{queue}/contents`; with `count` the first ones alone.
pub(super) async fn purge(call: Call) -> Result<Answer, Fault> {
    if let Some(max) = call.number("count")? {
        let (_, queue) = queue_control::queue(&call, Permission::Read).await?;
        let letter = |reply| ToShard::Purge { reply, queue, max };
        return match ask::shard(call.node(), queue, letter).await? {
            Reply::Purged(count) => Ok(Answer::Json(json!({"purged": count}))),
            _ => Err(Fault::not_found()),
        };
    }
    let vhost = call.vhost()?;
    find(&call, &vhost, |_| ()).ok_or_else(Fault::not_found)?;
    let purge = queue::Purge { queue: call.param("queue"), ..Default::default() };
    let mut direct = direct(&call, &vhost).await?;
    change(&mut direct, &purge, |it| matches!(it, Method::QueuePurgeOk(_))).await?;
    Ok(Answer::Done)
}

/// `POST /api/queues/{vhost}/{queue}/actions`: `sync` and `cancel_sync` are done, as nothing is mirrored.
pub(super) async fn act(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    let vhost = call.vhost()?;
    find(&call, &vhost, |_| ()).ok_or_else(Fault::not_found)?;
    match &*call.object()?.text("action")? {
        "sync" | "cancel_sync" => Ok(Answer::Done),
        action => {
            Err(Fault::bad(format!("unknown action '{action}'; there are sync and cancel_sync")))
        }
    }
}

/// `GET /api/queues/quorum/{vhost}/{queue}/status`: the members of the queue's group.
pub(super) async fn quorum_status(call: Call) -> Result<Answer, Fault> {
    let vhost = call.visible_vhost()?;
    let queue = find(&call, &vhost, |queue| (queue.kind, queue.home));
    let (kind, home) = queue.ok_or_else(Fault::not_found)?;
    if kind != QueueKind::Quorum {
        return Err(Fault::bad("not a quorum queue"));
    }
    let rows = match call.view() {
        Some(view) => view.nodes.iter().map(|node| member(node, number(home))).collect(),
        None => {
            let told = MemberTold { term: 1, ..MemberTold::default() };
            vec![member_row(call.node_name(), "leader", "voter", Some(told))]
        }
    };
    Ok(Answer::Json(rows.into()))
}

/// A node's member of a group. Of one that is not there nothing is known, as in RabbitMQ.
fn member(node: &NodeView, group: u64) -> Value {
    let of_group = |told: &NodeTold| told.members.iter().find(|it| it.group == group).copied();
    let told = node.told.as_ref().filter(|_| node.running).and_then(of_group);
    let state = match told {
        None => "noproc",
        Some(_) if node.leads => "leader",
        Some(_) => "follower",
    };
    member_row(&node.name, state, if node.joins { "promotable" } else { "voter" }, told)
}

fn member_row(node: &str, state: &str, membership: &str, told: Option<MemberTold>) -> Value {
    let known =
        |number: fn(MemberTold) -> u64| told.map_or_else(|| json!(""), |it| json!(number(it)));
    json!({
        "Node Name": node,
        "Raft State": state,
        "Membership": membership,
        "Last Log Index": known(|it| it.last),
        "Last Written": known(|it| it.stored),
        // What is agreed upon is what counts: there is nothing between the two.
        "Last Applied": known(|it| it.agreed),
        "Commit Index": known(|it| it.agreed),
        "Snapshot Index": told.map_or_else(|| json!(""), |_| json!(-1)),
        "Term": known(|it| it.term),
        "Machine Version": told.map_or_else(|| json!(""), |_| json!(1)),
    })
}

/// Whether every queue that is stored has a member on a node of this name.
fn is_member(call: &Call, node: &str) -> bool {
    match call.view() {
        Some(view) => view.deciding().any(|it| it.name == node),
        None => node == call.node_name(),
    }
}

/// Members of single queues: nobody can be added to them or removed.
pub(super) async fn replicas(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    Err(Fault::bad(match call.view() {
        Some(_) => {
            "what is stored is on all nodes of the cluster, and on no others: a queue has no members of its own"
        }
        None => "this node is the only one: there is no other to keep replicas on",
    }))
}

/// More members: each node of the cluster is one of everything already.
pub(super) async fn add_replicas(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    let node = match call.optional("node") {
        Some(node) => node.to_owned(),
        None => call.object()?.text("node")?,
    };
    if is_member(&call, &node) { Ok(Answer::Done) } else { replicas(call).await }
}
