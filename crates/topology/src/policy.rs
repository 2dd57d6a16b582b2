//! Policies: settings that match queues and exchanges by name.

use core::fmt;
use std::sync::Arc;

use serde_json::{Map, Value as Json};

use crate::confirm::WAIT_MS_MAX;
use crate::error::PolicyError;
use crate::exchange::Exchange;
use crate::pattern::{Effort, Pattern};
use crate::queue::QueueKind;
use crate::queues::TRACE_QUEUES;
use crate::value::json_term;
use crate::vhost::Vhost;

/// What a policy applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ApplyTo {
    /// Queues and exchanges.
    #[default]
    All,
    /// All queues.
    Queues,
    /// Classic queues.
    ClassicQueues,
    /// Quorum queues.
    QuorumQueues,
    /// Streams, of which there are none yet.
    Streams,
    /// Exchanges.
    Exchanges,
}

impl ApplyTo {
    /// Its name in `apply-to`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Queues => "queues",
            Self::ClassicQueues => "classic_queues",
            Self::QuorumQueues => "quorum_queues",
            Self::Streams => "streams",
            Self::Exchanges => "exchanges",
        }
    }

    /// By its name.
    pub fn parse(name: &str) -> Result<Self, PolicyError> {
        [
            Self::All,
            Self::Queues,
            Self::ClassicQueues,
            Self::QuorumQueues,
            Self::Streams,
            Self::Exchanges,
        ]
        .into_iter()
        .find(|to| to.name() == name)
        .ok_or_else(|| {
            PolicyError::Validation(format!(
                "apply-to '{name}' unrecognised; should be one of: 'queues', 'classic_queues',  \
                 'quorum_queues', 'streams', 'exchanges', or 'all'"
            ))
        })
    }

    fn includes(self, kind: QueueKind) -> bool {
        match self {
            Self::All | Self::Queues => true,
            Self::ClassicQueues => kind == QueueKind::Classic,
            Self::QuorumQueues => kind == QueueKind::Quorum,
            Self::Streams | Self::Exchanges => false,
        }
    }
}

impl fmt::Display for ApplyTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What `set_policy` is given.
#[derive(Clone, Debug)]
pub struct PolicySpec<'a> {
    /// Its name.
    pub name: &'a str,
    /// Matched anywhere in a name.
    pub pattern: &'a str,
    /// What it applies to.
    pub apply_to: ApplyTo,
    /// The highest one that matches holds, alone.
    pub priority: i64,
    /// The settings.
    pub definition: Map<String, Json>,
}

/// A policy or an operator policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Its name.
    pub name: Box<str>,
    /// Matched anywhere in a name.
    pub pattern: Pattern,
    /// What it applies to.
    pub apply_to: ApplyTo,
    /// The highest one that matches holds, alone.
    pub priority: i64,
    /// The settings.
    pub definition: Map<String, Json>,
}

impl Policy {
    /// Checks every setting as RabbitMQ does, and compiles the pattern.
    pub fn new(spec: PolicySpec<'_>, operator: bool) -> Result<Self, PolicyError> {
        validate(&spec.definition, operator).map_err(PolicyError::Validation)?;
        let pattern = Pattern::new(spec.pattern).map_err(|error| {
            PolicyError::Validation(format!(
                "pattern should be regular expression but is invalid: {error}"
            ))
        })?;
        Ok(Self {
            name: spec.name.into(),
            pattern,
            apply_to: spec.apply_to,
            priority: spec.priority,
            definition: spec.definition,
        })
    }

    /// What of it does nothing here, in words; `None` if all of it does something.
    pub fn without_effect(&self) -> Option<String> {
        let keys = self.definition.keys().map(String::as_str);
        let keys: Vec<&str> = keys.filter(|key| here(key) == Some(Here::NoEffect)).collect();
        let verb = if keys.len() == 1 { "has" } else { "have" };
        let text = || format!("policy '{}': {} {verb} no effect here", self.name, keys.join(", "));
        (!keys.is_empty()).then(text)
    }

    /// Whether it is only a matter of the name.
    pub(crate) fn may_hold_for_queue(&self, kind: QueueKind) -> bool {
        self.apply_to.includes(kind)
            && !self.definition.keys().any(|key| unsupported(kind).contains(&key.as_str()))
    }

    /// Whether it is only a matter of the name.
    pub(crate) fn may_hold_for_exchange(&self) -> bool {
        matches!(self.apply_to, ApplyTo::All | ApplyTo::Exchanges)
    }
}

/// A policy with one of these settings does not apply to the kind at all, as in RabbitMQ.
fn unsupported(kind: QueueKind) -> &'static [&'static str] {
    match kind {
        QueueKind::Classic => &[
            "max-age",
            "stream-max-segment-size-bytes",
            "initial-cluster-size",
            "delivery-limit",
            "dead-letter-strategy",
            "max-in-memory-length",
            "max-in-memory-bytes",
            "target-group-size",
        ],
        QueueKind::Quorum => &[
            "max-priority",
            "queue-mode",
            "ha-mode",
            "ha-params",
            "ha-sync-mode",
            "ha-promote-on-shutdown",
            "ha-promote-on-failure",
            "queue-master-locator",
            "max-age",
            "stream-max-segment-size-bytes",
            "initial-cluster-size",
        ],
    }
}

/// The one in force: the highest priority among those that match, by name among equals.
fn for_queue<'a>(
    policies: impl Iterator<Item = &'a Arc<Policy>>,
    name: &str,
    kind: QueueKind,
    effort: &mut Effort,
) -> Option<Arc<Policy>> {
    best(policies, effort, |policy, effort| {
        policy.may_hold_for_queue(kind) && policy.pattern.matches_within(name, effort)
    })
}

fn for_exchange<'a>(
    policies: impl Iterator<Item = &'a Arc<Policy>>,
    exchange: &Exchange,
    effort: &mut Effort,
) -> Option<Arc<Policy>> {
    best(policies, effort, |policy, effort| {
        policy.may_hold_for_exchange() && policy.pattern.matches_within(&exchange.name, effort)
    })
}

/// Policies that a name is matched with at the cost of one unit.
const MATCHED_AT_ONCE: u64 = 4;

fn best<'a>(
    policies: impl Iterator<Item = &'a Arc<Policy>>,
    effort: &mut Effort,
    holds: impl Fn(&Policy, &mut Effort) -> bool,
) -> Option<Arc<Policy>> {
    let mut best: Option<&Arc<Policy>> = None;
    let mut matched = 0;
    effort.again();
    for policy in policies {
        matched += 1;
        if best.is_none_or(|best| policy.priority > best.priority) && holds(policy, effort) {
            best = Some(policy);
        }
    }
    effort.units += matched / MATCHED_AT_ONCE;
    best.cloned()
}

/// A setting of policies that the broker acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Setting {
    AlternateExchange,
    ConfirmDefer,
    ConfirmOn,
    ConfirmOnDeadLetter,
    ConfirmOnHeader,
    ConfirmTimeout,
    ConsumerTimeout,
    DeadLetterExchange,
    DeadLetterRoutingKey,
    DeadLetterStrategy,
    DeliverBeforeCommit,
    DeliveryLimit,
    Expires,
    MaxLength,
    MaxLengthBytes,
    MessageTtl,
    Overflow,
    ReplicationConfirm,
}

impl Setting {
    /// The name of the argument; the policy's is the same without `x-`.
    pub(crate) const fn argument(self) -> &'static str {
        match self {
            Self::AlternateExchange => "x-alternate-exchange",
            Self::ConfirmDefer => "x-confirm-defer",
            Self::ConfirmOn => "x-confirm-on",
            Self::ConfirmOnDeadLetter => "x-confirm-on-dead-letter",
            Self::ConfirmOnHeader => "x-confirm-on-header",
            Self::ConfirmTimeout => "x-confirm-timeout",
            Self::ConsumerTimeout => "x-consumer-timeout",
            Self::DeadLetterExchange => "x-dead-letter-exchange",
            Self::DeadLetterRoutingKey => "x-dead-letter-routing-key",
            Self::DeadLetterStrategy => "x-dead-letter-strategy",
            Self::DeliverBeforeCommit => "x-deliver-before-commit",
            Self::DeliveryLimit => "x-delivery-limit",
            Self::Expires => "x-expires",
            Self::MaxLength => "x-max-length",
            Self::MaxLengthBytes => "x-max-length-bytes",
            Self::MessageTtl => "x-message-ttl",
            Self::Overflow => "x-overflow",
            Self::ReplicationConfirm => "x-replication-confirm",
        }
    }

    fn key(self) -> &'static str {
        &self.argument()[2..]
    }
}

/// Both for a queue. The queues of traces have none. A name that the server makes up otherwise has 22 random characters after
/// its prefix, which are these by no chance that matters.
pub(crate) fn of_queue(
    vhost: &Vhost,
    name: &str,
    kind: QueueKind,
    effort: &mut Effort,
) -> Policies {
    if name.strip_prefix(TRACE_QUEUES).is_some_and(|it| it.starts_with('-')) {
        return Policies::default();
    }
    Policies {
        user: for_queue(vhost.policies.values(), name, kind, effort),
        operator: for_queue(vhost.operator_policies.values(), name, kind, effort),
    }
}

/// Both for an exchange.
pub(crate) fn of_exchange(vhost: &Vhost, exchange: &Exchange, effort: &mut Effort) -> Policies {
    Policies {
        user: for_exchange(vhost.policies.values(), exchange, effort),
        operator: for_exchange(vhost.operator_policies.values(), exchange, effort),
    }
}

/// The policy and the operator policy in force.
#[derive(Clone, Debug, Default)]
pub(crate) struct Policies {
    pub(crate) user: Option<Arc<Policy>>,
    pub(crate) operator: Option<Arc<Policy>>,
}

impl Policies {
    pub(crate) fn get(&self, setting: Setting) -> Option<&Json> {
        let key = setting.key();
        let user = self.user.as_deref().and_then(|policy| policy.definition.get(key));
        let operator = self.operator.as_deref().and_then(|policy| policy.definition.get(key));
        match (user, operator) {
            (Some(user), Some(operator)) => Some(stricter(key, user, operator)),
            (user, operator) => user.or(operator),
        }
    }

    pub(crate) fn merged(&self) -> Map<String, Json> {
        let mut merged = Map::new();
        if let Some(policy) = self.user.as_deref() {
            merged.clone_from(&policy.definition);
        }
        for (key, operator) in self.operator.iter().flat_map(|policy| &policy.definition) {
            let value = merged.get(key).map_or(operator, |user| stricter(key, user, operator));
            let value = value.clone();
            merged.insert(key.clone(), value);
        }
        merged
    }

    /// Whether it is one of the two.
    pub(crate) fn contain(&self, policy: &Arc<Policy>) -> bool {
        [&self.user, &self.operator].into_iter().flatten().any(|own| Arc::ptr_eq(own, policy))
    }

    /// Same policies, not merely equal ones: a policy that was set again counts as another.
    pub(crate) fn is(&self, other: &Self) -> bool {
        let same = |a: &Option<Arc<Policy>>, b: &Option<Arc<Policy>>| match (a, b) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (None, None) => true,
            _ => false,
        };
        same(&self.user, &other.user) && same(&self.operator, &other.operator)
    }
}

/// Of a policy's and an operator policy's value, the one that holds.
fn stricter<'a>(key: &str, user: &'a Json, operator: &'a Json) -> &'a Json {
    match key {
        "message-ttl"
        | "max-length"
        | "max-length-bytes"
        | "max-in-memory-length"
        | "max-in-memory-bytes"
        | "expires" => {
            if user.as_i64() < operator.as_i64() {
                user
            } else {
                operator
            }
        }
        "delivery-limit" => {
            let (a, b) = (user.as_i64(), operator.as_i64());
            let unlimited = a.is_some_and(|a| a < 0) || b.is_some_and(|b| b < 0);
            // "Without limit" gives way to a limit.
            if (a < b) != unlimited { user } else { operator }
        }
        _ => operator,
    }
}

/// What a value must be.
#[derive(Clone, Copy)]
enum Check {
    Text,
    AtLeast(i64),
    Number,
    OneOf(&'static [&'static str]),
    Version,
    MaxAge,
    Bool,
    /// Milliseconds that a publisher can be made to wait.
    Wait,
    /// RabbitMQ took it up to 3.13; kept and shown, [without effect](Here::NoEffect) here.
    Anything,
}

/// What comes of a setting here.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Here {
    /// What it says.
    Works,
    /// Nothing: it is about mirrors, members and streams, which are not there, or RabbitMQ itself heeds it no more. It is kept, and
    /// whoever sets it is told.
    NoEffect,
    /// It is refused: RabbitMQ takes it with a plugin that is not there.
    OfPlugin,
}

/// Setting, check, what RabbitMQ's text calls it, allowed in operator policies, what comes of it.
#[rustfmt::skip]
const SETTINGS: &[(&str, Check, &str, bool, Here)] = &[
    ("alternate-exchange",            Check::Text,       "alternate exchange name", false, Here::Works),
    ("confirm-defer",                 Check::Wait,       "confirm defer. Valid range is 0 to 864000000 ms", false, Here::Works),
    ("confirm-on",                    Check::OneOf(&["first", "enqueue", "ack", "ack-lean"]), "confirm-on value. Valid are first, enqueue, ack, ack-lean", false, Here::Works),
    ("confirm-on-dead-letter",        Check::OneOf(&["nack", "ack"]), "confirm-on-dead-letter value. Valid are nack, ack", false, Here::Works),
    ("confirm-on-header",             Check::Bool,       "confirm-on-header value. Valid are true, false", false, Here::Works),
    ("confirm-timeout",               Check::Wait,       "confirm timeout. Valid range is 0 to 864000000 ms", false, Here::Works),
    ("consumer-disconnected-timeout", Check::AtLeast(0), "consumer disconnected timeout", false, Here::NoEffect),
    ("consumer-timeout",              Check::AtLeast(0), "consumer timeout", false, Here::Works),
    ("dead-letter-exchange",          Check::Text,       "dead letter exchange name", false, Here::Works),
    ("dead-letter-routing-key",       Check::Text,       "dead letter routing key", false, Here::Works),
    ("dead-letter-strategy",          Check::OneOf(&["at-most-once", "at-least-once"]), "dead letter strategy", false, Here::Works),
    ("deliver-before-commit",         Check::Bool,       "deliver-before-commit value. Valid are true, false", false, Here::Works),
    ("delivery-limit",                Check::Number,     "delivery limit", true, Here::Works),
    ("expires",                       Check::AtLeast(1), "queue expiry", true, Here::Works),
    ("initial-cluster-size",          Check::AtLeast(0), "cluster size", false, Here::NoEffect),
    ("max-age",                       Check::MaxAge,     "max age", false, Here::NoEffect),
    ("max-in-memory-bytes",           Check::AtLeast(0), "maximum memory in bytes", true, Here::NoEffect),
    ("max-in-memory-length",          Check::AtLeast(0), "maximum memory in bytes", true, Here::NoEffect),
    ("max-length",                    Check::AtLeast(0), "maximum length", true, Here::Works),
    ("max-length-bytes",              Check::AtLeast(0), "maximum length in bytes", true, Here::Works),
    ("message-ttl",                   Check::AtLeast(0), "message TTL", true, Here::Works),
    ("overflow",                      Check::OneOf(&["drop-head", "reject-publish", "reject-publish-dlx"]), "overflow value", true, Here::Works),
    ("queue-leader-locator",          Check::OneOf(&["client-local", "balanced", "random", "least-leaders"]), "queue leader locator value", false, Here::NoEffect),
    ("queue-mode",                    Check::OneOf(&["default", "lazy"]), "queue-mode value", false, Here::Works),
    ("queue-version",                 Check::Version,    "queue-version value", true, Here::Works),
    ("replication-confirm",           Check::OneOf(&["majority", "all"]), "replication-confirm value. Valid are majority, all", false, Here::Works),
    ("stream-filter-size-bytes",      Check::AtLeast(16), "filter size. Valid range is 16-255", false, Here::NoEffect),
    ("stream-max-segment-size-bytes", Check::AtLeast(0), "segment size", false, Here::NoEffect),
    ("target-group-size",             Check::AtLeast(0), "target group size", true, Here::NoEffect),
    ("ha-mode",                       Check::Anything,   "", true, Here::NoEffect),
    ("ha-params",                     Check::Anything,   "", true, Here::NoEffect),
    ("ha-promote-on-failure",         Check::Anything,   "", false, Here::NoEffect),
    ("ha-promote-on-shutdown",        Check::Anything,   "", false, Here::NoEffect),
    ("ha-sync-batch-size",            Check::Anything,   "", false, Here::NoEffect),
    ("ha-sync-mode",                  Check::Anything,   "", true, Here::NoEffect),
    ("queue-master-locator",          Check::Anything,   "", false, Here::NoEffect),
    ("federation-upstream",           Check::Anything,   "", false, Here::OfPlugin),
    ("federation-upstream-pattern",   Check::Anything,   "", false, Here::OfPlugin),
    ("federation-upstream-set",       Check::Anything,   "", false, Here::OfPlugin),
    ("routing-key",                   Check::Anything,   "", false, Here::OfPlugin),
    ("shards-per-node",               Check::Anything,   "", false, Here::OfPlugin),
];

/// What comes of a setting, if there is one of this name.
fn here(key: &str) -> Option<Here> {
    SETTINGS.iter().find(|(name, ..)| *name == key).map(|(.., here)| *here)
}

/// Whether a setting is one that RabbitMQ does not know.
pub(crate) fn is_ours(key: &str) -> bool {
    let own = [Setting::ReplicationConfirm, Setting::DeliverBeforeCommit];
    key.starts_with("confirm-") || own.iter().any(|it| it.key() == key)
}

fn validate(definition: &Map<String, Json>, operator: bool) -> Result<(), String> {
    if definition.is_empty() {
        return Err("no policy provided".to_owned());
    }
    for (key, value) in definition {
        if let Some((check, what)) = known_setting(key, operator)
            && !check.accepts(value)
        {
            return Err(format!("{} is not a valid {what}", json_term(value)));
        }
    }
    unknown_settings(definition, operator).map_or(Ok(()), Err)
}

fn known_setting(key: &str, operator: bool) -> Option<(Check, &'static str)> {
    let (_, check, what, in_operator, here) = SETTINGS.iter().find(|(name, ..)| *name == key)?;
    let is_taken = *here != Here::OfPlugin && (!operator || *in_operator);
    is_taken.then_some((*check, *what))
}

/// What RabbitMQ says of settings that are not there: those of plugins, among others.
pub(crate) fn unknown_settings(definition: &Map<String, Json>, operator: bool) -> Option<String> {
    let unknown = definition.iter().filter(|(key, _)| known_setting(key, operator).is_none());
    let unknown: Map<_, _> = unknown.map(|(key, value)| (key.clone(), value.clone())).collect();
    if unknown.is_empty() {
        return None;
    }
    Some(format!("{} are not recognised policy settings", json_term(&Json::Object(unknown))))
}

impl Check {
    fn accepts(self, value: &Json) -> bool {
        match self {
            Self::Text => value.is_string(),
            Self::AtLeast(least) => {
                value.as_u64().is_some_and(|n| i64::try_from(n).is_ok_and(|n| n >= least))
            }
            Self::Number => value.is_i64() || value.is_u64(),
            Self::OneOf(names) => value.as_str().is_some_and(|s| names.contains(&s)),
            Self::Version => matches!(value.as_i64(), Some(1 | 2)),
            Self::MaxAge => value.as_str().is_some_and(is_max_age),
            Self::Bool => value.is_boolean(),
            Self::Wait => value.as_i64().is_some_and(|ms| (0..=WAIT_MS_MAX).contains(&ms)),
            Self::Anything => true,
        }
    }
}

/// A positive number and one of the units Y, M, D, h, m, s.
fn is_max_age(text: &str) -> bool {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    number.parse::<u64>().is_ok_and(|n| n > 0) && matches!(unit, "Y" | "M" | "D" | "h" | "m" | "s")
}
