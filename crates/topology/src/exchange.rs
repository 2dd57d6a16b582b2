//! Exchanges: what is declared, and what routes.

use core::fmt;
use std::sync::Arc;

use leveret_amqp::table::{Table, Value};

use crate::binding::BindingIx;
use crate::event::acting_user;
use crate::id::{ExchangeId, GroupId, VhostId};
use crate::policy::{Policies, Setting};
use crate::route::Router;

/// What `exchange.declare` asks for.
#[derive(Clone, Debug)]
pub struct ExchangeSpec<'a> {
    /// Where.
    pub vhost: VhostId,
    /// Line ends are removed from it, as RabbitMQ does.
    pub name: &'a str,
    /// `direct`, `x-random`, ...
    pub kind: &'a str,
    /// Survives a restart.
    pub durable: bool,
    /// Deleted with its last binding as a source.
    pub auto_delete: bool,
    /// Clients may not publish to it.
    pub internal: bool,
    /// `alternate-exchange`, and those of its kind.
    pub arguments: Table,
}

/// How an exchange routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExchangeKind {
    /// By equal key. The default exchange is one, named "", to which every queue is bound by name.
    Direct,
    /// To all.
    Fanout,
    /// By words, `*` and `#`.
    Topic,
    /// By headers.
    Headers,
    /// To one, by the hash of the routing key, a header or a property, weighted.
    ConsistentHash,
    /// To one, by the hash of the routing keys modulo the number of destinations.
    ModulusHash,
    /// To one by chance.
    Random,
    /// To one queue of this node by chance.
    LocalRandom,
    /// To all; a new binding gets the last messages.
    RecentHistory,
}

impl ExchangeKind {
    /// All kinds.
    pub const ALL: [Self; 9] = [
        Self::Direct,
        Self::Fanout,
        Self::Topic,
        Self::Headers,
        Self::ConsistentHash,
        Self::ModulusHash,
        Self::Random,
        Self::LocalRandom,
        Self::RecentHistory,
    ];

    /// Its name in `exchange.declare`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Fanout => "fanout",
            Self::Topic => "topic",
            Self::Headers => "headers",
            Self::ConsistentHash => "x-consistent-hash",
            Self::ModulusHash => "x-modulus-hash",
            Self::Random => "x-random",
            Self::LocalRandom => "x-local-random",
            Self::RecentHistory => "x-recent-history",
        }
    }
}

impl fmt::Display for ExchangeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An exchange.
#[derive(Debug)]
pub struct Exchange {
    /// Never used twice.
    pub id: ExchangeId,
    /// Where it is.
    pub vhost: VhostId,
    /// "" is the default exchange.
    pub name: Arc<str>,
    /// How it routes.
    pub kind: ExchangeKind,
    /// Survives a restart.
    pub durable: bool,
    /// Deleted with its last binding as a source.
    pub auto_delete: bool,
    /// Clients may not publish to it.
    pub internal: bool,
    /// The group whose shard has what it remembers, if it is a recent-history exchange.
    pub home: GroupId,
    /// As declared.
    pub arguments: Table,
    /// The user who declared it, or made its vhost; "" is the broker itself. None: a version that did not note it.
    pub declared_by: Option<Arc<str>>,
    /// It is deleted, and its bindings go one after the other: only who takes them away sees it.
    pub(crate) is_going: bool,
    pub(crate) policies: Policies,
    /// From the argument, else the policy. Kept here because routing asks for it.
    pub(crate) alternate: Option<Arc<str>>,
    pub(crate) router: Router,
    /// Bindings whose source this is. A binding knows its place here.
    pub(crate) outgoing: Vec<BindingIx>,
    /// Bindings whose destination this is. A binding knows its place here.
    pub(crate) incoming: Vec<BindingIx>,
}

/// Who declared an exchange of which that is not known.
const UNKNOWN_USER: &str = "unknown";

/// How many messages a recent-history exchange keeps by default.
const HISTORY_LENGTH: u64 = 20;

impl Exchange {
    /// The policy in force, by name.
    pub fn policy(&self) -> Option<&str> {
        self.policies.user.as_deref().map(|policy| policy.name.as_ref())
    }

    /// The operator policy in force, by name.
    pub fn operator_policy(&self) -> Option<&str> {
        self.policies.operator.as_deref().map(|policy| policy.name.as_ref())
    }

    /// Who declared it, as RabbitMQ tells it.
    pub fn user_who_performed_action(&self) -> &str {
        self.declared_by.as_deref().map_or(UNKNOWN_USER, acting_user)
    }

    /// Where messages go that this exchange routes nowhere: argument, else policy. It may not exist.
    pub fn alternate(&self) -> Option<&str> {
        self.alternate.as_deref()
    }

    /// How many bindings it is the source of.
    pub fn binding_count(&self) -> usize {
        self.outgoing.len()
    }

    /// Whether it is the source of a binding.
    pub fn is_used(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// How many messages a recent-history exchange remembers; 0 for other kinds.
    pub fn history_length(&self) -> u64 {
        if self.kind != ExchangeKind::RecentHistory {
            return 0;
        }
        self.arguments
            .get("x-recent-history-length")
            .and_then(Value::as_i64)
            .map_or(HISTORY_LENGTH, |length| u64::try_from(length).unwrap_or(HISTORY_LENGTH))
    }

    pub(crate) fn refresh_alternate(&mut self) -> bool {
        let alternate = match self.arguments.get(ALTERNATE_EXCHANGE) {
            Some(value) => value.as_str(),
            None => self.policies.get(Setting::AlternateExchange).and_then(|v| v.as_str()),
        };
        let changed = alternate != self.alternate.as_deref();
        if changed {
            self.alternate = alternate.map(Arc::from);
        }
        changed
    }
}

pub(crate) const ALTERNATE_EXCHANGE: &str = "alternate-exchange";
