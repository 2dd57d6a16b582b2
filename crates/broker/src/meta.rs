//! The owner of the topology: applies every change to names, in the order they came.
//!
//! One per node. Sessions and shards read the topology; only a turn of [`Meta`] changes it. What a
//! change means for messages (a queue is made, deleted, has another limit) goes to the shards by
//! letter; the one who asked is answered when the change is true.

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use leveret_amqp::reply::ReplyCode;
use leveret_topology::{
    ApplyTo, Destination, ExchangeId, ExchangeSpec, PolicySpec, QueueId, QueueSpec, Removed,
    Target, Topology,
};

use crate::message::{
    AdminCommand, Binding, ConnectionId, Outbox, Reply, ReplyTo, ToMeta, ToShard, shard_of,
};

/// State of the topology's owner beside the topology itself.
#[derive(Debug)]
pub struct Meta {
    shards: usize,
    /// Connections that end: how many of their exclusive queues still go, and who waits for it.
    leaving: HashMap<ConnectionId, Leaving, FixedState>,
}

#[derive(Debug)]
struct Leaving {
    queues: Vec<QueueId>,
    reply: Option<ReplyTo>,
}

impl Meta {
    /// For a node of that many shards.
    pub fn new(shards: usize) -> Self {
        Self { shards, leaving: HashMap::default() }
    }

    /// Applies all letters, in order.
    pub fn turn(&mut self, letters: &mut Vec<ToMeta>, topology: &mut Topology, out: &mut Outbox) {
        for letter in letters.drain(..) {
            self.letter(letter, topology, out);
        }
    }

    fn letter(&mut self, letter: ToMeta, topology: &mut Topology, out: &mut Outbox) {
        match letter {
            ToMeta::DeclareExchange {
                reply,
                vhost,
                name,
                kind,
                durable,
                auto_delete,
                internal,
                arguments,
            } => {
                let (name, kind) = (&*name, &*kind);
                let spec =
                    ExchangeSpec { vhost, name, kind, durable, auto_delete, internal, arguments };
                let result = topology.declare_exchange(spec);
                answer(out, reply, result.map_err(|error| (error.reply_code(), error.to_string())));
            }
            ToMeta::DeleteExchange { reply, vhost, name, if_unused } => {
                match topology.delete_exchange(vhost, &name, if_unused) {
                    Ok(removed) => {
                        self.removed(&removed, out);
                        out.reply(reply, Reply::Done);
                    }
                    Err(error) => refuse(out, reply, error.reply_code(), error.to_string()),
                }
            }
            ToMeta::DeclareQueue {
                reply,
                vhost,
                name,
                server_named,
                durable,
                exclusive,
                auto_delete,
                arguments,
            } => {
                let exclusive_owner = exclusive.then_some(reply.connection.get());
                let name = &*name;
                let spec = QueueSpec {
                    vhost,
                    name,
                    server_named,
                    durable,
                    auto_delete,
                    exclusive_owner,
                    arguments,
                };
                match topology.declare_queue(spec) {
                    Ok(declared) => {
                        let shard = shard_of(declared.id, self.shards);
                        let queue = declared.id;
                        let letter = if declared.created {
                            ToShard::Create { reply: Some(reply), queue }
                        } else {
                            ToShard::Count { reply, queue }
                        };
                        out.shard(shard, letter);
                    }
                    Err(error) => refuse(out, reply, error.reply_code(), error.to_string()),
                }
            }
            ToMeta::Bind(binding) => self.bind(*binding, topology, out),
            ToMeta::Unbind(binding) => {
                let Binding { reply, vhost, source, key, arguments, .. } = &*binding;
                let destination = destination(&binding);
                let connection = Some(reply.connection.get());
                match topology.unbind(
                    *vhost,
                    source,
                    destination,
                    key,
                    arguments.clone(),
                    connection,
                ) {
                    Ok(removed) => {
                        self.removed(&removed, out);
                        out.reply(*reply, Reply::Done);
                    }
                    Err(error) => refuse(out, *reply, error.reply_code(), error.to_string()),
                }
            }
            ToMeta::QueueGone { queue, reply } => {
                let owner = topology.queue_by_id(queue).and_then(|queue| queue.exclusive_owner);
                let removed = topology.remove_queue(queue);
                self.removed(&removed, out);
                if let Some((reply, messages)) = reply {
                    out.reply(reply, Reply::Deleted(messages));
                }
                // The topology forgets a deleted vhost's queues before their shards do.
                let owner = owner.map(ConnectionId::new).or_else(|| {
                    let mut leaving = self.leaving.iter();
                    leaving.find(|(_, it)| it.queues.contains(&queue)).map(|(&id, _)| id)
                });
                if let Some(owner) = owner {
                    self.left_with(owner, queue, out);
                }
            }
            ToMeta::Disconnected { connection, reply } => {
                self.disconnected(connection, reply, topology, out);
            }
            ToMeta::Admin { reply, command } => self.admin(reply, *command, topology, out),
        }
    }

    fn bind(&mut self, binding: Binding, topology: &mut Topology, out: &mut Outbox) {
        let destination = destination(&binding);
        let Binding { reply, vhost, ref source, ref key, ref arguments, .. } = binding;
        let connection = Some(reply.connection.get());
        match topology.bind(vhost, source, destination, key, arguments.clone(), connection) {
            Ok(bound) => {
                if let (Some(exchange), Target::Queue(queue)) = (bound.recent_history, bound.target)
                {
                    let shard = history_shard(exchange, self.shards);
                    out.shard(shard, ToShard::Replay { exchange, queue });
                }
                out.reply(reply, Reply::Done);
            }
            Err(error) => refuse(out, reply, error.reply_code(), error.to_string()),
        }
    }

    /// Exchanges that went take what they remembered with them.
    fn removed(&self, removed: &Removed, out: &mut Outbox) {
        for exchange in &removed.exchanges {
            self.forget(exchange.id, out);
        }
    }

    fn forget(&self, exchange: ExchangeId, out: &mut Outbox) {
        out.shard(history_shard(exchange, self.shards), ToShard::Forget { exchange });
    }

    /// A connection ended: its exclusive queues go, each by its shard.
    fn disconnected(
        &mut self,
        connection: ConnectionId,
        reply: Option<ReplyTo>,
        topology: &Topology,
        out: &mut Outbox,
    ) {
        let queues = topology.queues_owned_by(connection.get());
        if queues.is_empty() {
            if let Some(reply) = reply {
                out.reply(reply, Reply::Done);
            }
            return;
        }
        for &queue in &queues {
            self.delete(queue, out);
        }
        self.leaving.insert(connection, Leaving { queues, reply });
    }

    /// Has a queue deleted by its shard, whatever it holds.
    fn delete(&self, queue: QueueId, out: &mut Outbox) {
        let letter = ToShard::Delete { reply: None, queue, if_unused: false, if_empty: false };
        out.shard(shard_of(queue, self.shards), letter);
    }

    /// One more exclusive queue of a connection that ends is gone.
    fn left_with(&mut self, connection: ConnectionId, queue: QueueId, out: &mut Outbox) {
        let Some(leaving) = self.leaving.get_mut(&connection) else { return };
        leaving.queues.retain(|&other| other != queue);
        if leaving.queues.is_empty()
            && let Some(leaving) = self.leaving.remove(&connection)
            && let Some(reply) = leaving.reply
        {
            out.reply(reply, Reply::Done);
        }
    }

    /// A change from the command line.
    fn admin(
        &mut self,
        reply: ReplyTo,
        command: AdminCommand,
        topology: &mut Topology,
        out: &mut Outbox,
    ) {
        match apply(command, topology) {
            Ok(changes) => {
                for queue in changes.made {
                    let letter = ToShard::Create { reply: None, queue };
                    out.shard(shard_of(queue, self.shards), letter);
                }
                for queue in changes.options_changed {
                    let letter = ToShard::OptionsChanged { queue };
                    out.shard(shard_of(queue, self.shards), letter);
                }
                for queue in changes.to_delete {
                    self.delete(queue, out);
                }
                for exchange in changes.forgotten {
                    self.forget(exchange, out);
                }
                let answer = match changes.text {
                    Some(text) => Reply::Told(text),
                    None => Reply::Done,
                };
                out.reply(reply, answer);
            }
            Err((code, text)) => refuse(out, reply, code, text),
        }
    }
}

/// The component whose parameter holds a vhost's limits.
const VHOST_LIMITS: &str = "vhost-limits";

/// What an admin command means for the shards.
#[derive(Debug, Default)]
struct Changes {
    made: Vec<QueueId>,
    options_changed: Vec<QueueId>,
    to_delete: Vec<QueueId>,
    forgotten: Vec<ExchangeId>,
    text: Option<String>,
}

/// Applies an admin command to the topology.
fn apply(command: AdminCommand, topology: &mut Topology) -> Result<Changes, (ReplyCode, String)> {
    let mut changes = Changes::default();
    match command {
        AdminCommand::ImportDefinitions { json } => {
            let imported = topology.import_definitions(&json).map_err(bad)?;
            let counts = imported.counts.iter().map(|(kind, count)| format!("{kind}: {count}"));
            let lines: Vec<String> = counts.chain(imported.skipped).collect();
            changes.text = Some(lines.join("\n"));
            changes.made = imported.queues;
            changes.options_changed = imported.changed;
        }
        AdminCommand::AddUser { name, password, tags } => {
            let tags: Vec<&str> = tags.iter().map(String::as_str).collect();
            topology.add_user(&name, password, &tags).map_err(bad)?;
        }
        AdminCommand::DeleteUser { name } => topology.delete_user(&name).map_err(bad)?,
        AdminCommand::ChangePassword { name, password } => {
            topology.change_password(&name, password).map_err(bad)?;
        }
        AdminCommand::SetUserTags { name, tags } => {
            let tags: Vec<&str> = tags.iter().map(String::as_str).collect();
            topology.set_tags(&name, &tags).map_err(bad)?;
        }
        AdminCommand::SetPermissions { user, vhost, configure, write, read } => {
            topology.set_permissions(&user, &vhost, &configure, &write, &read).map_err(bad)?;
        }
        AdminCommand::ClearPermissions { user, vhost } => {
            topology.clear_permissions(&user, &vhost).map_err(bad)?;
        }
        AdminCommand::SetTopicPermissions { user, vhost, exchange, write, read } => {
            topology.set_topic_permissions(&user, &vhost, &exchange, &write, &read).map_err(bad)?;
        }
        AdminCommand::AddVhost { name } => topology.add_vhost(&name).map(drop).map_err(bad)?,
        AdminCommand::DeleteVhost { name } => {
            let deleted = topology.delete_vhost(&name).map_err(bad)?;
            changes.to_delete = deleted.queues;
            changes.forgotten = deleted.exchanges;
        }
        AdminCommand::SetVhostLimits { vhost, limits } => {
            let limits = serde_json::json!(limits);
            topology.set_parameter(&vhost, VHOST_LIMITS, "limits", limits).map_err(bad)?;
        }
        AdminCommand::ClearVhostLimits { vhost } => {
            topology.clear_parameter(&vhost, VHOST_LIMITS, "limits").map_err(bad)?;
        }
        AdminCommand::SetUserLimits { name, limits } => {
            let mut all = topology.user(&name).map(|user| user.limits.clone()).unwrap_or_default();
            all.extend(limits);
            topology.set_user_limits(&name, all).map_err(bad)?;
        }
        AdminCommand::ClearUserLimits { name, limit } => {
            let mut left = topology.user(&name).map(|user| user.limits.clone()).unwrap_or_default();
            left.retain(|name, _| limit.as_ref().is_some_and(|limit| limit != name));
            topology.set_user_limits(&name, left).map_err(bad)?;
        }
        AdminCommand::SetPolicy { vhost, name, pattern, definition, priority, apply_to } => {
            let spec = PolicySpec {
                name: &name,
                pattern: &pattern,
                apply_to: ApplyTo::parse(&apply_to).map_err(bad)?,
                priority,
                definition,
            };
            changes.options_changed = topology.set_policy(&vhost, spec).map_err(bad)?;
        }
        AdminCommand::ClearPolicy { vhost, name } => {
            changes.options_changed = topology.clear_policy(&vhost, &name).map_err(bad)?;
        }
    }
    Ok(changes)
}

fn bad(error: impl std::fmt::Display) -> (ReplyCode, String) {
    (ReplyCode::PreconditionFailed, error.to_string())
}

fn destination(binding: &Binding) -> Destination<'_> {
    if binding.to_queue {
        Destination::Queue(&binding.destination)
    } else {
        Destination::Exchange(&binding.destination)
    }
}

/// The shard that keeps what a recent-history exchange remembers.
pub fn history_shard(exchange: ExchangeId, shards: usize) -> usize {
    (exchange.get() % shards as u64) as usize
}

fn answer<T>(out: &mut Outbox, reply: ReplyTo, result: Result<T, (ReplyCode, String)>) {
    match result {
        Ok(_) => out.reply(reply, Reply::Done),
        Err((code, text)) => refuse(out, reply, code, text),
    }
}

fn refuse(out: &mut Outbox, reply: ReplyTo, code: ReplyCode, text: String) {
    out.reply(reply, Reply::Refused { code, text });
}
