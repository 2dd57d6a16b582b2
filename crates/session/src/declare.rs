//! `queue.declare`, `queue.delete`, `queue.purge`, `exchange.declare`, `exchange.delete`.
//!
//! Permissions and names are checked here, in RabbitMQ's order; whether a declaration fits what exists is
//! the topology's to say.

use std::borrow::Cow;

use leveret_amqp::method::{MethodError, exchange, queue};
use leveret_amqp::table::{RawTable, Table, Value};
use leveret_broker::message::{Refusal, ToMeta, ToSession, ToShard};
use leveret_topology::{
    DeclareError, ExchangeKind, Permission, QueueKind, ResourceKind, TRACE_QUEUES,
    permissions_needed,
};

use crate::channel::Channel;
use crate::consume::accessible;
use crate::core::{Context, Core};
use crate::direct;
use crate::reply::{self, Fault};
use crate::waiting::{Awaited, Declare, WaitingCommand};

/// An owned copy of a method's arguments.
pub(crate) fn to_table(raw: RawTable<'_>) -> Result<Table, Fault> {
    raw.to_table().map_err(|error| reply::bad_method(&MethodError::Table(error), &[]))
}

/// Names are used without line ends.
pub(crate) fn strip(name: &str) -> Cow<'_, str> {
    if name.contains(['\r', '\n']) { name.replace(['\r', '\n'], "").into() } else { name.into() }
}

/// The queue a method means: an empty name is the one last declared on the channel.
pub(crate) fn queue_name(channel: &Channel, name: &str) -> Result<Box<str>, Fault> {
    match name {
        "" if channel.last_queue.is_empty() => Err(reply::no_previous_queue()),
        "" => Ok(channel.last_queue.clone()),
        name => Ok(name.into()),
    }
}

impl Core {
    /// Passive declarations ask for any permission; the refusal speaks of `configure`.
    fn check_any(&self, kind: ResourceKind, name: &str, cx: &Context<'_>) -> Result<(), Fault> {
        let may = |permission| self.check(permission, kind, name, cx);
        let unless_open = |fault: Fault, permission| match fault.undecided {
            Some(_) => Err(fault),
            None => may(permission),
        };
        may(Permission::Read)
            .or_else(|fault| unless_open(fault, Permission::Write))
            .or_else(|fault| unless_open(fault, Permission::Configure))
    }

    /// What stands against making it with these arguments. RabbitMQ compares one that exists whatever the
    /// user may write to; so does Meta, which gives this as the answer if it is gone by then.
    fn forbidden(
        &self,
        kind: ResourceKind,
        name: &str,
        arguments: &Table,
        exists: bool,
        cx: &Context<'_>,
    ) -> Result<Option<Box<Refusal>>, Fault> {
        let mut needed = permissions_needed(kind, name, arguments).into_iter().flatten();
        match needed.try_for_each(|(permission, kind, name)| self.check(permission, kind, name, cx))
        {
            Err(Fault { code, text, undecided: None, .. }) if exists => {
                Ok(Some(Box::new(Refusal { code, text: text.into_owned() })))
            }
            checked => checked.map(|()| None),
        }
    }

    fn wait(&mut self, channel: u16, method: (u16, u16), no_wait: bool, what: Awaited) {
        self.waiting = Some(WaitingCommand { channel, method, no_wait, what });
    }
}

const QUEUE_DECLARE: (u16, u16) = (50, 10);

/// `queue.declare`.
pub(crate) fn declare_queue(
    core: &mut Core,
    channel: &mut Channel,
    method: &queue::Declare<'_>,
    cx: &mut Context<'_>,
) -> Result<(), Fault> {
    let number = channel.number;
    let name = strip(method.queue);
    if direct::is_name(&name) {
        return declare_reply_to(core, channel, &name, method.no_wait, cx);
    }
    let reply = core.reply_to(number);
    if method.passive {
        core.check_any(ResourceKind::Queue, &name, cx)?;
        let queue = accessible(core, &name, cx)?;
        let (queue, home) = (queue.id, queue.home);
        core.send_to(home, ToShard::Count { reply, queue }, cx);
        let what = Awaited::QueueDeclare { name: name.into(), again: None };
        core.wait(number, QUEUE_DECLARE, method.no_wait, what);
        return Ok(());
    }
    // A name that is made up is the same when the frame is looked at again.
    let random = core.random.clone();
    let result = declare_active(core, number, &name, method, cx);
    if result.as_ref().is_err_and(|fault| fault.undecided.is_some()) {
        core.random = random;
    }
    result
}

/// `queue.declare` that makes the queue.
fn declare_active(
    core: &mut Core,
    number: u16,
    name: &str,
    method: &queue::Declare<'_>,
    cx: &mut Context<'_>,
) -> Result<(), Fault> {
    let mut arguments = to_table(method.arguments)?;
    let prefix = arguments.remove("x-name-prefix");
    let server_named = name.is_empty();
    let name: Box<str> = if server_named {
        server_name(core, &arguments, prefix.as_ref())?.into()
    } else if name.starts_with("amq.") {
        return Err(reply::reserved_name("queue", name));
    } else {
        name.into()
    };
    core.check(Permission::Configure, ResourceKind::Queue, &name, cx)?;
    let exists = cx.topology.queue(core.identity.vhost, &name).is_some();
    if !exists {
        core.check_memory_for("a queue", &arguments)?;
    }
    let forbidden = core.forbidden(ResourceKind::Queue, &name, &arguments, exists, cx)?;
    let declare = Declare {
        name,
        server_named,
        durable: method.durable,
        exclusive: method.exclusive,
        auto_delete: method.auto_delete,
        arguments,
        forbidden,
    };
    send_declare(core, number, method.no_wait, declare, cx);
    Ok(())
}

/// Has a queue declared. When it exists its counts are asked for next, and it may be gone by then; it is
/// declared again then, as in RabbitMQ. So what it says is kept, though it seems not to exist now.
pub(crate) fn send_declare(
    core: &mut Core,
    number: u16,
    no_wait: bool,
    declare: Declare,
    cx: &mut Context<'_>,
) {
    let again = Some(Box::new(declare.clone()));
    let what = Awaited::QueueDeclare { name: declare.name.clone(), again };
    let letter = ToMeta::DeclareQueue {
        by: core.by(cx),
        reply: core.reply_to(number),
        vhost: core.identity.vhost,
        name: declare.name,
        server_named: declare.server_named,
        durable: declare.durable,
        exclusive: declare.exclusive,
        auto_delete: declare.auto_delete,
        arguments: declare.arguments,
        forbidden: declare.forbidden,
    };
    core.send_to_meta(letter, cx);
    core.wait(number, QUEUE_DECLARE, no_wait, what);
}

/// The name of a queue declared without one.
fn server_name(
    core: &mut Core,
    arguments: &Table,
    prefix: Option<&Value>,
) -> Result<String, Fault> {
    let queue_type = match arguments.get("x-queue-type").and_then(Value::as_str) {
        Some("quorum") => Some("rabbit_quorum_queue"),
        Some("stream") => Some("rabbit_stream_queue"),
        _ => None,
    };
    if let Some(queue_type) = queue_type {
        return Err(DeclareError::ServerNamed { queue_type }.into());
    }
    let prefix = prefix.and_then(Value::as_str).map_or(Cow::Borrowed("amq.gen"), strip);
    if prefix.len() > 64 {
        return Err(reply::prefix_too_long(&prefix));
    }
    if prefix.starts_with(TRACE_QUEUES) && !core.identity.is_inside {
        return Err(reply::reserved_name("queue", &prefix));
    }
    Ok(core.random.name(&prefix))
}

/// `queue.declare` of a direct reply-to name: always passive. The channel that is named knows whether
/// somebody still waits there, and it may be anybody's.
fn declare_reply_to(
    core: &mut Core,
    channel: &mut Channel,
    name: &str,
    no_wait: bool,
    cx: &mut Context<'_>,
) -> Result<(), Fault> {
    if let Some((connection, number, token)) = direct::parse(name) {
        let reply = core.reply_to(channel.number);
        let letter = ToSession::DirectReplyAsked { reply, channel: number, token };
        cx.outbox.session(connection, letter);
        let what = Awaited::ReplyToDeclare { name: name.into() };
        core.wait(channel.number, QUEUE_DECLARE, no_wait, what);
        return Ok(());
    }
    if name != direct::NAME {
        return Err(reply::no_queue(name, &core.identity.vhost_name));
    }
    reply_to_declared(channel, name, no_wait, cx);
    Ok(())
}

/// A direct reply-to name has by definition one consumer.
pub(crate) fn reply_to_declared(
    channel: &mut Channel,
    name: &str,
    no_wait: bool,
    cx: &mut Context<'_>,
) {
    channel.last_queue = name.into();
    if !no_wait {
        let ok = queue::DeclareOk { queue: name, message_count: 0, consumer_count: 1 };
        cx.out.put_method(channel.number, &ok);
    }
}

/// `queue.delete`. Deleting what does not exist is no mistake.
pub(crate) fn delete_queue(
    core: &mut Core,
    channel: &Channel,
    method: &queue::Delete<'_>,
    cx: &mut Context<'_>,
) -> Result<(), Fault> {
    let name = queue_name(channel, method.queue)?;
    let name = strip(&name);
    core.check(Permission::Configure, ResourceKind::Queue, &name, cx)?;
    let Some(queue) = cx.topology.queue(core.identity.vhost, &name) else {
        if !method.no_wait {
            cx.out.put_method(channel.number, &queue::DeleteOk { message_count: 0 });
        }
        return Ok(());
    };
    if !core.identity.is_operator {
        queue.check_exclusive(core.id, &core.identity.vhost_name)?;
    }
    if queue.kind == QueueKind::Quorum {
        for (flag, is_set) in [("if-unused", method.if_unused), ("if-empty", method.if_empty)] {
            if is_set {
                return Err(reply::conditional_delete(&name, &core.identity.vhost_name, flag));
            }
        }
    }
    let (queue, home) = (queue.id, queue.home);
    let letter = ToShard::Delete {
        by: core.by(cx),
        reply: Some(core.reply_to(channel.number)),
        queue,
        if_unused: method.if_unused,
        if_empty: method.if_empty,
    };
    core.send_to(home, letter, cx);
    core.wait(channel.number, (50, 40), method.no_wait, Awaited::QueueDelete { name: name.into() });
    Ok(())
}

/// `queue.purge`.
pub(crate) fn purge_queue(
    core: &mut Core,
    channel: &Channel,
    method: &queue::Purge<'_>,
    cx: &mut Context<'_>,
) -> Result<(), Fault> {
    let name = queue_name(channel, method.queue)?;
    let queue = crate::consume::readable(core, &name, cx)?;
    let (queue, home) = (queue.id, queue.home);
    let reply = core.reply_to(channel.number);
    core.send_to(home, ToShard::Purge { reply, queue, max: u64::MAX }, cx);
    core.wait(channel.number, (50, 30), method.no_wait, Awaited::QueuePurge { name });
    Ok(())
}

/// `exchange.declare`.
pub(crate) fn declare_exchange(
    core: &mut Core,
    channel: &Channel,
    method: &exchange::Declare<'_>,
    cx: &mut Context<'_>,
) -> Result<(), Fault> {
    let name = strip(method.exchange);
    if !method.passive {
        ExchangeKind::parse(method.kind)?;
    }
    if name.is_empty() {
        return Err(reply::default_exchange());
    }
    if method.passive {
        core.check_any(ResourceKind::Exchange, &name, cx)?;
        if cx.topology.exchange(core.identity.vhost, &name).is_none() {
            return Err(reply::no_exchange(&name, &core.identity.vhost_name));
        }
        if !method.no_wait {
            cx.out.put_method(channel.number, &exchange::DeclareOk);
        }
        return Ok(());
    }
    core.check(Permission::Configure, ResourceKind::Exchange, &name, cx)?;
    let arguments = to_table(method.arguments)?;
    let exists = cx.topology.exchange(core.identity.vhost, &name).is_some();
    if !exists && name.starts_with("amq.") {
        return Err(reply::reserved_name("exchange", &name));
    }
    if !exists {
        core.check_memory_for("an exchange", &arguments)?;
    }
    let forbidden = core.forbidden(ResourceKind::Exchange, &name, &arguments, exists, cx)?;
    let letter = ToMeta::DeclareExchange {
        by: core.by(cx),
        reply: core.reply_to(channel.number),
        vhost: core.identity.vhost,
        name: name.into(),
        kind: method.kind.into(),
        durable: method.durable,
        auto_delete: method.auto_delete,
        internal: method.internal,
        arguments,
        forbidden,
    };
    core.send_to_meta(letter, cx);
    core.wait(channel.number, (40, 10), method.no_wait, Awaited::ExchangeDeclare);
    Ok(())
}

/// `exchange.delete`. Deleting what does not exist is no mistake.
pub(crate) fn delete_exchange(
    core: &mut Core,
    channel: &Channel,
    method: &exchange::Delete<'_>,
    cx: &mut Context<'_>,
) -> Result<(), Fault> {
    let name = strip(method.exchange);
    if name.is_empty() {
        return Err(reply::default_exchange());
    }
    if name.starts_with("amq.") {
        return Err(reply::system_exchange(&name, &core.identity.vhost_name));
    }
    core.check(Permission::Configure, ResourceKind::Exchange, &name, cx)?;
    let letter = ToMeta::DeleteExchange {
        by: core.by(cx),
        reply: core.reply_to(channel.number),
        vhost: core.identity.vhost,
        name: name.into(),
        if_unused: method.if_unused,
    };
    core.send_to_meta(letter, cx);
    core.wait(channel.number, (40, 20), method.no_wait, Awaited::ExchangeDelete);
    Ok(())
}
