//! The arguments of `queue.declare` and `exchange.declare`: which there are, and what they may be.
//!
//! What RabbitMQ 3.13 took and 4.3 refuses is taken: `x-queue-mode`, `x-queue-version` 1,
//! `x-consumer-timeout` of classic queues. Those of confirms are Leveret's own.

use leveret_amqp::table::{Table, Value};

use crate::confirm::{WAIT_MS_MAX, refuse_dead_letter, refuse_replication, refuse_rule};
use crate::error::{DeclareError, ResourceKind, ResourceRef};
use crate::exchange::{ALTERNATE_EXCHANGE, ExchangeKind};
use crate::queue::{QueueKind, QueueSpec};
use crate::route::HASH_PROPERTIES;
use crate::user::Permission;
use crate::value::term;

pub(crate) const QUEUE_TYPE: &str = "x-queue-type";
const DEAD_LETTER_EXCHANGE: &str = "x-dead-letter-exchange";

/// The longest time to live and expiry: ten years, in milliseconds.
const EXPIRY_MS_MAX: i64 = 315_360_000_000;
/// The highest `x-max-priority`.
const PRIORITY_MAX: i64 = 255;

const CLASSIC: &[&str] = &[
    "x-expires",
    "x-message-ttl",
    DEAD_LETTER_EXCHANGE,
    "x-dead-letter-routing-key",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-priority",
    "x-overflow",
    "x-queue-mode",
    "x-queue-version",
    "x-single-active-consumer",
    QUEUE_TYPE,
    "x-queue-master-locator",
    "x-queue-leader-locator",
    "x-consumer-timeout",
    "x-confirm-on",
    "x-confirm-on-header",
    "x-confirm-on-dead-letter",
    "x-confirm-timeout",
    "x-confirm-defer",
    "x-replication-confirm",
    "x-deliver-before-commit",
];

const QUORUM: &[&str] = &[
    DEAD_LETTER_EXCHANGE,
    "x-dead-letter-routing-key",
    "x-dead-letter-strategy",
    "x-expires",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-in-memory-length",
    "x-max-in-memory-bytes",
    "x-overflow",
    "x-single-active-consumer",
    QUEUE_TYPE,
    "x-quorum-initial-group-size",
    "x-member-placement-tag",
    "x-delivery-limit",
    "x-message-ttl",
    "x-queue-leader-locator",
    "x-consumer-disconnected-timeout",
    "x-consumer-timeout",
    "x-delayed-retry-type",
    "x-delayed-retry-min",
    "x-delayed-retry-max",
    "x-confirm-on",
    "x-confirm-on-header",
    "x-confirm-on-dead-letter",
    "x-confirm-timeout",
    "x-confirm-defer",
    "x-replication-confirm",
    "x-deliver-before-commit",
];

const STREAM_ONLY: &[&str] = &[
    "x-max-age",
    "x-stream-max-segment-size-bytes",
    "x-stream-filter-size-bytes",
    "x-initial-cluster-size",
];

/// What arguments of a queue or an exchange need besides the permission to configure it. One that names a
/// dead-letter or an alternate exchange has messages published there, by whoever it belongs to: its user has
/// to be allowed to read from the one and to write to the other. Every way to set arguments asks here.
pub fn permissions_needed<'a>(
    kind: ResourceKind,
    name: &'a str,
    arguments: &'a Table,
) -> Option<[(Permission, ResourceKind, &'a str); 2]> {
    let argument = match kind {
        ResourceKind::Queue => DEAD_LETTER_EXCHANGE,
        ResourceKind::Exchange => ALTERNATE_EXCHANGE,
    };
    let target = arguments.get(argument).and_then(Value::as_str)?;
    Some([(Permission::Read, kind, name), (Permission::Write, ResourceKind::Exchange, target)])
}

/// The arguments of a kind: those that are compared when it is declared again.
pub(crate) fn known_arguments(kind: QueueKind) -> &'static [&'static str] {
    match kind {
        QueueKind::Classic => CLASSIC,
        QueueKind::Quorum => QUORUM,
    }
}

fn is_known(name: &str) -> bool {
    [CLASSIC, QUORUM, STREAM_ONLY].iter().any(|names| names.contains(&name))
}

/// What an argument must be.
#[derive(Clone, Copy)]
enum Check {
    /// Milliseconds, up to ten years.
    Expiry,
    /// The same, not 0.
    PositiveExpiry,
    NotNegative,
    Integer,
    Positive,
    Priority,
    Bool,
    Text,
    /// Needs a dead-letter exchange.
    RoutingKey,
    OneOf(&'static [&'static str], &'static str),
    Mode,
    Version,
    NotEmpty(&'static str),
    /// Milliseconds that a publisher can be made to wait.
    Wait,
    /// A text; the function says why it cannot be that one.
    Word(fn(&str) -> Option<String>),
}

/// In the order in which RabbitMQ checks them: the first error is the one reported.
const CHECKS: &[(&str, Check)] = &[
    ("x-expires", Check::PositiveExpiry),
    ("x-message-ttl", Check::Expiry),
    (DEAD_LETTER_EXCHANGE, Check::Text),
    ("x-dead-letter-routing-key", Check::RoutingKey),
    (
        "x-dead-letter-strategy",
        Check::OneOf(&["at-most-once", "at-least-once"], "invalid_dlx_strategy"),
    ),
    ("x-max-length", Check::NotNegative),
    ("x-max-length-bytes", Check::NotNegative),
    ("x-max-in-memory-length", Check::NotNegative),
    ("x-max-in-memory-bytes", Check::NotNegative),
    ("x-max-priority", Check::Priority),
    (
        "x-overflow",
        Check::OneOf(&["drop-head", "reject-publish", "reject-publish-dlx"], "invalid_overflow"),
    ),
    ("x-queue-mode", Check::Mode),
    ("x-queue-version", Check::Version),
    ("x-single-active-consumer", Check::Bool),
    ("x-consumer-timeout", Check::NotNegative),
    ("x-consumer-disconnected-timeout", Check::NotNegative),
    ("x-quorum-initial-group-size", Check::Positive),
    ("x-delivery-limit", Check::Integer),
    (
        "x-queue-leader-locator",
        Check::OneOf(
            &["client-local", "balanced", "random", "least-leaders"],
            "invalid_queue_locator_arg",
        ),
    ),
    ("x-member-placement-tag", Check::NotEmpty("invalid_member_placement_tag_arg")),
    ("x-confirm-on", Check::Word(refuse_rule)),
    ("x-confirm-on-header", Check::Bool),
    ("x-confirm-on-dead-letter", Check::Word(refuse_dead_letter)),
    ("x-confirm-timeout", Check::Wait),
    ("x-confirm-defer", Check::Wait),
    ("x-replication-confirm", Check::Word(refuse_replication)),
    ("x-deliver-before-commit", Check::Bool),
];

impl Check {
    /// Why not, as RabbitMQ writes it: an Erlang term.
    fn refuse(self, value: &Value, arguments: &Table) -> Result<(), String> {
        let ok = |holds: bool, why: String| if holds { Ok(()) } else { Err(why) };
        match self {
            Self::Integer => number(value).map(|_| ()),
            Self::NotNegative => not_negative(value).map(|_| ()),
            Self::Positive => ok(not_negative(value)? > 0, "{value_zero,0}".to_owned()),
            Self::Expiry => expiry(number(value)?),
            Self::PositiveExpiry => match number(value)? {
                0 => Err("{value_zero,0}".to_owned()),
                n => expiry(n),
            },
            Self::Priority => {
                let n = not_negative(value)?;
                ok(n <= PRIORITY_MAX, format!("{{max_value_exceeded,{n}}}"))
            }
            Self::Bool => ok(matches!(value, Value::Bool(_)), unacceptable(value)),
            Self::Text => long_string(value).map(|_| ()),
            Self::RoutingKey => {
                long_string(value)?;
                let has_exchange = arguments.get(DEAD_LETTER_EXCHANGE).is_some();
                ok(has_exchange, "routing_key_but_no_dlx_defined".to_owned())
            }
            Self::OneOf(names, why) => {
                let known = |bytes| names.iter().any(|name| name.as_bytes() == bytes);
                ok(known(long_string(value)?), why.to_owned())
            }
            Self::Mode => {
                let bytes = long_string(value)?;
                let mode = String::from_utf8_lossy(bytes);
                let known = matches!(mode.as_ref(), "default" | "lazy");
                ok(known, format!("\"unsupported queue mode '{mode}'\""))
            }
            Self::Version => {
                let n = not_negative(value)?;
                ok(matches!(n, 1 | 2), format!("\"unsupported queue version '{n}'\""))
            }
            Self::Wait => {
                let n = not_negative(value)?;
                ok(n <= WAIT_MS_MAX, format!("{{value_too_large,{n}}}"))
            }
            Self::Word(why_not) => {
                let word = String::from_utf8_lossy(long_string(value)?);
                why_not(&word).map_or(Ok(()), Err)
            }
            Self::NotEmpty(why) => ok(!long_string(value)?.is_empty(), why.to_owned()),
        }
    }
}

fn number(value: &Value) -> Result<i64, String> {
    value.as_i64().ok_or_else(|| format!("\"expected integer, got {}\"", value.kind_name()))
}

fn not_negative(value: &Value) -> Result<i64, String> {
    match number(value)? {
        n if n < 0 => Err(format!("{{value_negative,{n}}}")),
        n => Ok(n),
    }
}

fn expiry(ms: i64) -> Result<(), String> {
    match ms {
        n if n < 0 => Err(format!("{{value_negative,{n}}}")),
        n if n > EXPIRY_MS_MAX => Err(format!("{{value_too_large,{n}}}")),
        _ => Ok(()),
    }
}

fn long_string(value: &Value) -> Result<&[u8], String> {
    match value {
        Value::LongStr(bytes) => Ok(bytes),
        _ => Err(unacceptable(value)),
    }
}

fn unacceptable(value: &Value) -> String {
    format!("{{unacceptable_type,{}}}", value.kind_name())
}

/// Checks the arguments and properties of a queue that does not exist yet, in RabbitMQ's order.
pub(crate) fn queue_arguments(
    spec: &QueueSpec<'_>,
    vhost: &str,
) -> Result<QueueKind, DeclareError> {
    let arguments = &spec.arguments;
    let resource = || ResourceRef::queue(spec.name, vhost);
    let invalid = |arg: &str, reason: String| DeclareError::InvalidArgument {
        resource: resource(),
        arg: arg.to_owned(),
        reason,
    };

    name_argument(arguments, DEAD_LETTER_EXCHANGE, resource)?;
    let kind = match arguments.get(QUEUE_TYPE) {
        None => QueueKind::Classic,
        Some(value) => {
            let name = long_string(value).map_err(|reason| invalid(QUEUE_TYPE, reason))?;
            match name {
                b"classic" | b"" | b"undefined" => QueueKind::Classic,
                b"quorum" => QueueKind::Quorum,
                b"stream" => {
                    let queue_type = "stream".to_owned();
                    return Err(DeclareError::UnsupportedQueueType {
                        resource: resource(),
                        queue_type,
                    });
                }
                other => {
                    let name = String::from_utf8_lossy(other);
                    let reason = format!("\"unsupported queue type '{name}'\"");
                    return Err(invalid(QUEUE_TYPE, reason));
                }
            }
        }
    };
    let known = known_arguments(kind);
    for (name, check) in CHECKS {
        if known.contains(name)
            && let Some(value) = arguments.get(name)
        {
            check.refuse(value, arguments).map_err(|reason| invalid(name, reason))?;
        }
    }
    for (name, _) in arguments.iter() {
        if is_known(name) && !known.contains(&name) {
            return Err(DeclareError::ArgumentOfOtherType {
                resource: resource(),
                arg: name.to_owned(),
                queue_type: kind.module(),
            });
        }
    }
    if kind == QueueKind::Quorum {
        let property = |property| DeclareError::InvalidProperty { resource: resource(), property };
        if spec.auto_delete {
            return Err(property("auto-delete"));
        }
        if spec.exclusive_owner.is_some() {
            return Err(property("exclusive-owner"));
        }
        if !spec.durable {
            return Err(property("non-durable"));
        }
    }
    Ok(kind)
}

/// Checks the arguments of an exchange that does not exist yet.
pub(crate) fn exchange_arguments(
    kind: ExchangeKind,
    name: &str,
    vhost: &str,
    arguments: &Table,
) -> Result<(), DeclareError> {
    let resource = || ResourceRef::exchange(name, vhost);
    name_argument(arguments, ALTERNATE_EXCHANGE, resource)?;
    match kind {
        ExchangeKind::ConsistentHash => {
            name_argument(arguments, "hash-header", resource)?;
            name_argument(arguments, "hash-property", resource)?;
            match (arguments.get("hash-header"), arguments.get("hash-property")) {
                (Some(_), Some(_)) => Err(DeclareError::HashArgumentsExclude),
                (None, Some(property)) => match property.as_str() {
                    Some(property) if HASH_PROPERTIES.contains(&property) => Ok(()),
                    _ => Err(DeclareError::UnsupportedHashProperty(crate::value::plain(property))),
                },
                _ => Ok(()),
            }
        }
        ExchangeKind::RecentHistory => match arguments.get("x-recent-history-length") {
            Some(value) if value.as_i64().is_none_or(|length| length < 1) => {
                Err(DeclareError::HistoryLength(term(value)))
            }
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}

fn name_argument(
    arguments: &Table,
    arg: &'static str,
    resource: impl Fn() -> ResourceRef,
) -> Result<(), DeclareError> {
    match arguments.get(arg) {
        None | Some(Value::LongStr(_)) => Ok(()),
        Some(other) => Err(DeclareError::InvalidNameType {
            resource: resource(),
            arg,
            found: other.kind_name(),
        }),
    }
}
