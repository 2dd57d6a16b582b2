//! `queue.bind`, `queue.unbind`, `exchange.bind`, `exchange.unbind`.

use leveret_amqp::table::RawTable;
use leveret_broker::message::{Binding, ToMeta};
use leveret_topology::{Permission, ResourceKind};

use crate::channel::Channel;
use crate::core::{Context, Core};
use crate::declare::{queue_name, strip, to_table};
use crate::direct;
use crate::reply::{self, Fault};
use crate::waiting::{Awaited, WaitingCommand};

/// What the four methods have in common.
pub(crate) struct Bind<'a> {
    pub(crate) source: &'a str,
    pub(crate) destination: &'a str,
    pub(crate) to_queue: bool,
    pub(crate) key: &'a str,
    pub(crate) arguments: RawTable<'a>,
    pub(crate) no_wait: bool,
    pub(crate) method: (u16, u16),
    pub(crate) what: Awaited,
}

/// Checks a binding and hands it on to be made, or to be undone.
pub(crate) fn bind(
    core: &mut Core,
    channel: &Channel,
    bind: Bind<'_>,
    cx: &mut Context<'_>,
) -> Result<(), Fault> {
    let mut key = bind.key;
    let destination: Box<str> = if bind.to_queue {
        if bind.destination.is_empty() && key.is_empty() && !channel.last_queue.is_empty() {
            key = &channel.last_queue;
        }
        queue_name(channel, bind.destination)?
    } else {
        bind.destination.into()
    };
    let source = strip(bind.source);
    let destination = strip(&destination);
    if bind.to_queue && direct::is_name(&destination) {
        return Err(reply::binds_reply_to());
    }
    let kind = if bind.to_queue { ResourceKind::Queue } else { ResourceKind::Exchange };
    core.check(Permission::Write, kind, &destination, cx)?;
    if source.is_empty() || (!bind.to_queue && destination.is_empty()) {
        return Err(reply::default_exchange());
    }
    core.check(Permission::Read, ResourceKind::Exchange, &source, cx)?;
    if let Some(exchange) = cx.topology.exchange(core.identity.vhost, &source) {
        core.check_topic(Permission::Read, exchange, key, cx)?;
    }
    let arguments = to_table(bind.arguments)?;
    let unbinds = matches!(bind.what, Awaited::QueueUnbind | Awaited::ExchangeUnbind);
    if !unbinds {
        core.check_memory_to_bind(key, &arguments)?;
    }
    let binding = Box::new(Binding {
        by: core.by(cx),
        reply: core.reply_to(channel.number),
        vhost: core.identity.vhost,
        source: source.into(),
        destination: destination.into(),
        to_queue: bind.to_queue,
        key: key.into(),
        arguments,
    });
    let letter = if unbinds { ToMeta::Unbind(binding) } else { ToMeta::Bind(binding) };
    core.send_to_meta(letter, cx);
    core.waiting = Some(WaitingCommand {
        channel: channel.number,
        method: bind.method,
        no_wait: bind.no_wait,
        what: bind.what,
    });
    Ok(())
}
