//! Queues as named things: what is declared, and what holds for them once policies are counted in.

use core::fmt;
use std::sync::Arc;

use leveret_amqp::table::{Table, Value};
use leveret_queue::{Options, Overflow};

use crate::binding::BindingIx;
use crate::confirm::{ConfirmOn, ConfirmOptions, DEFER_MS, ReplicationConfirm};
use crate::connection::ConnectionId;
use crate::error::{Locked, ResourceRef};
use crate::id::{GroupId, QueueId, VhostId};
use crate::policy::{Policies, Setting};

/// What `queue.declare` asks for.
#[derive(Clone, Debug)]
pub struct QueueSpec<'a> {
    /// Where.
    pub vhost: VhostId,
    /// Never empty. Line ends are removed from it, as RabbitMQ does.
    pub name: &'a str,
    /// The name was made by the server: `amq.` is allowed.
    pub server_named: bool,
    /// Survives a restart. An exclusive queue is never durable, whatever is asked for.
    pub durable: bool,
    /// Deleted with its last consumer.
    pub auto_delete: bool,
    /// The connection that alone may use it, and with which it ends.
    pub exclusive_owner: Option<ConnectionId>,
    /// `x-message-ttl`, ...
    pub arguments: Table,
}

/// What `declare_queue` did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Declared {
    /// The queue.
    pub id: QueueId,
    /// It did not exist.
    pub created: bool,
}

/// `x-queue-type`. Both kinds run the same here; they differ in the arguments they take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum QueueKind {
    /// The default.
    Classic,
    /// Durable, not exclusive, not auto-delete; has a delivery limit.
    Quorum,
}

impl QueueKind {
    /// Its name in `x-queue-type`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Classic => "classic",
            Self::Quorum => "quorum",
        }
    }

    /// By RabbitMQ's name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Classic, Self::Quorum].into_iter().find(|kind| kind.name() == name)
    }

    /// RabbitMQ's module, which its texts name.
    pub const fn module(self) -> &'static str {
        match self {
            Self::Classic => "rabbit_classic_queue",
            Self::Quorum => "rabbit_quorum_queue",
        }
    }
}

impl fmt::Display for QueueKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A queue.
#[derive(Debug)]
pub struct Queue {
    /// Never used twice.
    pub id: QueueId,
    /// The group that it lives in.
    pub home: GroupId,
    /// Where it is.
    pub vhost: VhostId,
    /// Its name.
    pub name: Arc<str>,
    /// Survives a restart.
    pub durable: bool,
    /// Deleted with its last consumer.
    pub auto_delete: bool,
    /// The connection that alone may use it.
    pub exclusive_owner: Option<ConnectionId>,
    /// `x-queue-type`.
    pub kind: QueueKind,
    /// As declared, or as an operator changed them.
    pub arguments: Table,
    /// As declared, if an operator changed them. Declarations with these are as good as with those that hold.
    pub(crate) declared: Option<Box<Table>>,
    /// The user who declared it; empty for the broker itself, and for an import at its start.
    pub declared_by: Arc<str>,
    /// An operator wants nobody to be given anything.
    pub paused: bool,
    /// It is deleted, and its bindings go one after the other: only who takes them away sees it.
    pub(crate) is_going: bool,
    pub(crate) policies: Policies,
    /// Bindings whose destination this is. A binding knows its place here.
    pub(crate) incoming: Vec<BindingIx>,
}

impl Queue {
    /// The policy in force, by name.
    pub fn policy(&self) -> Option<&str> {
        self.policies.user.as_deref().map(|policy| policy.name.as_ref())
    }

    /// The operator policy in force, by name.
    pub fn operator_policy(&self) -> Option<&str> {
        self.policies.operator.as_deref().map(|policy| policy.name.as_ref())
    }

    /// Policy and operator policy merged.
    pub fn effective_policy(&self) -> serde_json::Map<String, serde_json::Value> {
        self.policies.merged()
    }

    /// Refuses a connection that does not own an exclusive queue.
    pub fn check_exclusive(&self, connection: ConnectionId, vhost: &str) -> Result<(), Locked> {
        match self.exclusive_owner {
            Some(owner) if owner != connection => {
                Err(Locked { queue: ResourceRef::queue(&self.name, vhost) })
            }
            _ => Ok(()),
        }
    }

    /// The dead-letter exchange, which may not exist, and the routing key that replaces the
    /// message's, if one is set. The argument goes before the policy.
    pub fn dead_letter(&self) -> Option<(&str, Option<&str>)> {
        let exchange = self.text(Setting::DeadLetterExchange)?;
        Some((exchange, self.text(Setting::DeadLetterRoutingKey)))
    }

    /// `x-consumer-timeout`, else the policy's, in milliseconds.
    pub fn consumer_timeout_ms(&self) -> Option<u64> {
        self.smaller(Setting::ConsumerTimeout)
    }

    /// When the queue has resolved a message for its publisher: the arguments, else the policy; of two
    /// times the smaller one.
    pub fn confirm_options(&self) -> ConfirmOptions {
        let ms = |setting| self.smaller(setting).map(|ms| u32::try_from(ms).unwrap_or(u32::MAX));
        ConfirmOptions {
            on: self.text(Setting::ConfirmOn).and_then(ConfirmOn::parse).unwrap_or_default(),
            by_header: self.is_on(Setting::ConfirmOnHeader),
            dead_letter_acks: self.text(Setting::ConfirmOnDeadLetter) == Some("ack"),
            timeout_ms: ms(Setting::ConfirmTimeout),
            defer_ms: ms(Setting::ConfirmDefer).unwrap_or(DEFER_MS),
            replication: self
                .text(Setting::ReplicationConfirm)
                .and_then(ReplicationConfirm::parse)
                .unwrap_or_default(),
            before_commit: self.is_on(Setting::DeliverBeforeCommit),
        }
    }

    /// Whether the argument, or else the policy, turns something on.
    fn is_on(&self, setting: Setting) -> bool {
        match self.arguments.get(setting.argument()) {
            Some(value) => matches!(value, Value::Bool(true)),
            None => self.policies.get(setting).and_then(|it| it.as_bool()) == Some(true),
        }
    }

    /// What the queue itself must know: arguments, policy and operator policy together. Of two limits the
    /// smaller one holds; of two other values, the argument's.
    pub fn options(&self) -> Options {
        let strategy = self.text(Setting::DeadLetterStrategy);
        let dead_letter = self.text(Setting::DeadLetterExchange).is_some();
        let mut options = Options::default();
        options.max_length = self.smaller(Setting::MaxLength);
        options.max_length_bytes = self.smaller(Setting::MaxLengthBytes);
        options.overflow = match self.text(Setting::Overflow) {
            Some("reject-publish") => Overflow::RejectPublish,
            Some("reject-publish-dlx") => Overflow::RejectPublishDlx,
            _ => Overflow::DropHead,
        };
        options.message_ttl_ms = self.smaller(Setting::MessageTtl);
        options.expires_ms = self.smaller(Setting::Expires);
        options.max_priority = self
            .arguments
            .get("x-max-priority")
            .and_then(Value::as_i64)
            .and_then(|priority| u8::try_from(priority).ok())
            .filter(|&priority| priority > 0);
        options.single_active =
            matches!(self.arguments.get("x-single-active-consumer"), Some(Value::Bool(true)));
        options.delivery_limit = self.delivery_limit();
        options.dead_letter = dead_letter;
        options.at_least_once = dead_letter
            && strategy == Some("at-least-once")
            && options.overflow == Overflow::RejectPublish;
        options.counts_deliveries = self.kind == QueueKind::Quorum;
        options.auto_delete = self.auto_delete;
        options.paused = self.paused;
        options
    }

    /// How often a message is delivered again before it is a dead letter; none without limit. A negative number
    /// means that, too. There is no default, as in the version of RabbitMQ that is claimed: from 4.0 on it is 20 there.
    pub fn delivery_limit(&self) -> Option<u32> {
        let argument = self.arguments.get("x-delivery-limit").and_then(Value::as_i64);
        let policy = self.policies.get(Setting::DeliveryLimit).and_then(|v| v.as_i64());
        let limit = match (argument, policy) {
            // "No limit" gives way to a limit.
            (Some(a), Some(p)) if a < 0 || p < 0 => Some(a.max(p)),
            (Some(a), Some(p)) => Some(a.min(p)),
            (a, p) => a.or(p),
        };
        // Negative: no limit.
        let limit = u64::try_from(limit?).ok()?;
        Some(u32::try_from(limit).unwrap_or(u32::MAX))
    }

    /// The argument's text, else the policy's.
    fn text(&self, setting: Setting) -> Option<&str> {
        match self.arguments.get(setting.argument()) {
            Some(value) => value.as_str(),
            None => self.policies.get(setting).and_then(|v| v.as_str()),
        }
    }

    /// The smaller of the argument's and the policy's number.
    fn smaller(&self, setting: Setting) -> Option<u64> {
        let argument = self.arguments.get(setting.argument()).and_then(Value::as_i64);
        let argument = argument.and_then(|a| u64::try_from(a).ok());
        let policy = self.policies.get(setting).and_then(|v| v.as_u64());
        match (argument, policy) {
            (Some(a), Some(p)) => Some(a.min(p)),
            (a, p) => a.or(p),
        }
    }
}
