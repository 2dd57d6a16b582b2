//! Letters to the owner of the topology.

use std::collections::BTreeMap;

use leveret_amqp::table::Table;
use leveret_topology::{
    ArgumentsChange, By, GroupId, Import, PasswordHash, Policy, PolicyError, QueueId, VhostId,
    is_policy,
};

use super::{ConnectionId, ConsumerSlot, Refusal, ReplyTo};
use crate::command::NumberedCommand;
use crate::transaction::{TxId, Vote};

/// Letters to the owner of the topology.
#[derive(Debug)]
pub enum ToMeta {
    /// `exchange.declare`, not passive. Answered by `Reply::Done` or `Reply::Refused`.
    DeclareExchange {
        /// Who asks, and from where.
        by: Box<By>,
        /// Who.
        reply: ReplyTo,
        /// Where.
        vhost: VhostId,
        /// Name.
        name: Box<str>,
        /// Type, as the client wrote it.
        kind: Box<str>,
        /// Survives a restart.
        durable: bool,
        /// Deleted after its last binding.
        auto_delete: bool,
        /// Not for publishing.
        internal: bool,
        /// Arguments.
        arguments: Table,
        /// The answer when it does not exist: the user may not make one with these arguments.
        forbidden: Option<Box<Refusal>>,
    },
    /// `exchange.delete`. Answered by `Reply::Done` or `Reply::Refused`.
    DeleteExchange {
        /// Who asks, and from where.
        by: Box<By>,
        /// Who.
        reply: ReplyTo,
        /// Where.
        vhost: VhostId,
        /// Name.
        name: Box<str>,
        /// Only without bindings.
        if_unused: bool,
    },
    /// `queue.declare`, not passive. Answered by `Reply::Declared` or `Reply::Refused`.
    DeclareQueue {
        /// Who asks, and from where.
        by: Box<By>,
        /// Who.
        reply: ReplyTo,
        /// Where.
        vhost: VhostId,
        /// Name: never empty, the session makes one up.
        name: Box<str>,
        /// The session made the name up.
        server_named: bool,
        /// Survives a restart.
        durable: bool,
        /// Belongs to this connection only.
        exclusive: bool,
        /// Deleted after its last consumer.
        auto_delete: bool,
        /// Arguments.
        arguments: Table,
        /// The answer when it does not exist: the user may not make one with these arguments.
        forbidden: Option<Box<Refusal>>,
    },
    /// `queue.bind`, `exchange.bind`. Answered by `Reply::Done` or `Reply::Refused`.
    Bind(Box<Binding>),
    /// `queue.unbind`, `exchange.unbind`. Answered by `Reply::Done` or `Reply::Refused`.
    Unbind(Box<Binding>),
    /// From a shard: the queue is empty and has no consumers any more; take its name away.
    QueueGone {
        /// Who asks, and from where.
        by: Box<By>,
        /// Which.
        queue: QueueId,
        /// Who deleted it, and how many ready messages it had.
        reply: Option<(ReplyTo, u64)>,
        /// Who consumed from it: told when it is true, just before the one who asked.
        consumers: Vec<(ConnectionId, ConsumerSlot)>,
        /// There are more, whom the shard tells when it is true: `ToShard::CancelRest`.
        more: bool,
    },
    /// A connection ended: its exclusive queues go. With `reply`, `Reply::Done` comes when the last one
    /// is gone, as RabbitMQ waits for it before `connection.close-ok`.
    Disconnected {
        /// Which.
        connection: ConnectionId,
        /// Who waits.
        reply: Option<ReplyTo>,
    },
    /// From a shard: its part of a transaction can be, or cannot. It may come twice.
    Prepared {
        /// Whose transaction it is: this connection pays for the decision.
        from: ConnectionId,
        /// The transaction.
        tx: TxId,
        /// The shard's group.
        group: GroupId,
        /// How many shards have a part.
        parts: u32,
        /// What it says.
        vote: Vote,
    },
    /// From a shard: what the transaction did there is on the disk. It may come twice.
    Applied {
        /// The transaction.
        tx: TxId,
        /// The shard's group.
        group: GroupId,
    },
    /// From the process before, which ended in the middle of it: this vhost is deleted, and is to go.
    VhostGoes(VhostId),
    /// Whether it goes on: answered by `Reply::Done` when all that was changed before is stored.
    IsWell {
        /// Who wants to know.
        reply: ReplyTo,
    },
    /// A command that is done once: see [`command`](crate::command).
    Numbered(Box<NumberedCommand>),
    /// From Meta: there is more to do than fits one turn.
    Continue,
    /// From the node: the disk of Meta's log finished something. Who waits for it is answered.
    LogWoke,
    /// A change from the command line, applied to the topology; its result is given to `reply`.
    Admin {
        /// Who asks, and from where.
        by: Box<By>,
        /// Who.
        reply: ReplyTo,
        /// What.
        command: Box<AdminCommand>,
    },
}

impl ToMeta {
    /// What it is, in a word: for what tells that a turn took long.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::DeclareExchange { .. } => "DeclareExchange",
            Self::DeleteExchange { .. } => "DeleteExchange",
            Self::DeclareQueue { .. } => "DeclareQueue",
            Self::Bind(..) => "Bind",
            Self::Unbind(..) => "Unbind",
            Self::QueueGone { .. } => "QueueGone",
            Self::Disconnected { .. } => "Disconnected",
            Self::Prepared { .. } => "Prepared",
            Self::Applied { .. } => "Applied",
            Self::VhostGoes(..) => "VhostGoes",
            Self::IsWell { .. } => "IsWell",
            Self::Numbered(..) => "Numbered",
            Self::Continue => "Continue",
            Self::LogWoke => "LogWoke",
            Self::Admin { .. } => "Admin",
        }
    }

    /// Whose it is, and who waits for its answer, if it is one that gets a number where the owner of the names may be another node's.
    pub fn numbered_asker(&self) -> Option<(ConnectionId, Option<ReplyTo>)> {
        let reply = match self {
            Self::Disconnected { connection, reply } => return Some((*connection, *reply)),
            Self::DeclareExchange { reply, .. }
            | Self::DeleteExchange { reply, .. }
            | Self::DeclareQueue { reply, .. } => reply,
            Self::Bind(binding) | Self::Unbind(binding) => &binding.reply,
            _ => return None,
        };
        Some((reply.connection, Some(*reply)))
    }

    /// The letter once more, if it is one that gets a number where the owner of the names may be another node's.
    pub fn again(&self) -> Option<Self> {
        Some(match self {
            Self::DeclareExchange {
                by,
                reply,
                vhost,
                name,
                kind,
                durable,
                auto_delete,
                internal,
                arguments,
                forbidden,
            } => Self::DeclareExchange {
                by: by.clone(),
                reply: *reply,
                vhost: *vhost,
                name: name.clone(),
                kind: kind.clone(),
                durable: *durable,
                auto_delete: *auto_delete,
                internal: *internal,
                arguments: arguments.clone(),
                forbidden: forbidden.clone(),
            },
            Self::DeleteExchange { by, reply, vhost, name, if_unused } => Self::DeleteExchange {
                by: by.clone(),
                reply: *reply,
                vhost: *vhost,
                name: name.clone(),
                if_unused: *if_unused,
            },
            Self::DeclareQueue {
                by,
                reply,
                vhost,
                name,
                server_named,
                durable,
                exclusive,
                auto_delete,
                arguments,
                forbidden,
            } => Self::DeclareQueue {
                by: by.clone(),
                reply: *reply,
                vhost: *vhost,
                name: name.clone(),
                server_named: *server_named,
                durable: *durable,
                exclusive: *exclusive,
                auto_delete: *auto_delete,
                arguments: arguments.clone(),
                forbidden: forbidden.clone(),
            },
            Self::Bind(binding) => Self::Bind(binding.clone()),
            Self::Unbind(binding) => Self::Unbind(binding.clone()),
            Self::Disconnected { connection, reply } => {
                Self::Disconnected { connection: *connection, reply: *reply }
            }
            _ => return None,
        })
    }
}

/// A binding to make or to undo.
#[derive(Clone, Debug)]
pub struct Binding {
    /// Who asks, and from where.
    pub by: Box<By>,
    /// Who.
    pub reply: ReplyTo,
    /// Where.
    pub vhost: VhostId,
    /// The exchange that is published to.
    pub source: Box<str>,
    /// Queue or exchange that receives.
    pub destination: Box<str>,
    /// Whether `destination` names a queue.
    pub to_queue: bool,
    /// Binding key.
    pub key: Box<str>,
    /// Arguments.
    pub arguments: Table,
}

/// Changes of users, vhosts, policies, parameters and definitions: the command line's and the HTTP API's.
#[derive(Debug)]
#[expect(missing_docs, reason = "the fields carry the names of rabbitmqctl's arguments")]
pub enum AdminCommand {
    ImportDefinitions {
        definitions: Box<Import>,
    },
    AddUser {
        name: String,
        password: PasswordHash,
        tags: Vec<String>,
    },
    DeleteUser {
        name: String,
    },
    ChangePassword {
        name: String,
        password: PasswordHash,
    },
    SetUserTags {
        name: String,
        tags: Vec<String>,
    },
    SetPermissions {
        user: String,
        vhost: String,
        configure: String,
        write: String,
        read: String,
    },
    ClearPermissions {
        user: String,
        vhost: String,
    },
    SetTopicPermissions {
        user: String,
        vhost: String,
        exchange: String,
        write: String,
        read: String,
    },
    /// Adds the user if there is none, else changes it.
    PutUser {
        name: String,
        /// It stays without.
        password: Option<PasswordHash>,
        /// They stay without.
        tags: Option<Vec<String>>,
    },
    /// All of the vhost without `exchange`.
    ClearTopicPermissions {
        user: String,
        vhost: String,
        exchange: Option<String>,
    },
    AddVhost {
        name: String,
    },
    /// Adds the vhost if there is none. What is not given stays.
    PutVhost {
        name: String,
        description: Option<String>,
        tags: Option<Vec<String>>,
        default_queue_type: Option<String>,
        tracing: Option<bool>,
    },
    /// A vhost that was made again under the same name is another one.
    SetTracing {
        vhost: VhostId,
        is_on: bool,
    },
    DeleteVhost {
        name: String,
    },
    /// Protects a vhost from being deleted, or no longer.
    ProtectVhost {
        name: String,
        is_protected: bool,
    },
    /// Limits that are not named stay.
    SetVhostLimits {
        vhost: String,
        limits: BTreeMap<String, i64>,
    },
    /// All of them without `limit`.
    ClearVhostLimits {
        vhost: String,
        limit: Option<String>,
    },
    /// Limits that are not named stay.
    SetUserLimits {
        name: String,
        limits: BTreeMap<String, i64>,
    },
    /// All of them without `limit`.
    ClearUserLimits {
        name: String,
        limit: Option<String>,
    },
    SetPolicy {
        vhost: String,
        policy: Box<Policy>,
    },
    ClearPolicy {
        vhost: String,
        name: String,
    },
    SetOperatorPolicy {
        vhost: String,
        policy: Box<Policy>,
    },
    ClearOperatorPolicy {
        vhost: String,
        name: String,
    },
    /// Nobody is given anything of a queue, or as usual.
    PauseQueue {
        vhost: String,
        name: String,
        paused: bool,
    },
    SetQueueArguments {
        vhost: String,
        name: String,
        change: ArgumentsChange,
    },
    SetParameter {
        vhost: String,
        component: String,
        name: String,
        value: serde_json::Value,
    },
    ClearParameter {
        vhost: String,
        component: String,
        name: String,
    },
    SetGlobalParameter {
        name: String,
        value: serde_json::Value,
    },
    ClearGlobalParameter {
        name: String,
    },
}

impl AdminCommand {
    /// As it is carried out: parameters that are policies set and clear policies. Whoever sends a command does this
    /// first, since it takes a while to compile a pattern, and names wait for whoever changes them.
    pub fn prepared(self) -> Result<Self, PolicyError> {
        Ok(match self {
            Self::SetParameter { vhost, component, name, value } => match is_policy(&component) {
                None => Self::SetParameter { vhost, component, name, value },
                Some(operator) => {
                    let policy = Box::new(Policy::of_parameter(&name, &value, operator)?);
                    match operator {
                        true => Self::SetOperatorPolicy { vhost, policy },
                        false => Self::SetPolicy { vhost, policy },
                    }
                }
            },
            Self::ClearParameter { vhost, component, name } => match is_policy(&component) {
                None => Self::ClearParameter { vhost, component, name },
                Some(true) => Self::ClearOperatorPolicy { vhost, name },
                Some(false) => Self::ClearPolicy { vhost, name },
            },
            other => other,
        })
    }
}
