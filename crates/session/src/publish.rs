//! Hot path. `basic.publish`, from its method frame to the shards' batches.
//!
//! Budget: no allocation per message once warm (the batch's own vector apart), no copy of the body, one
//! hash of the names; nothing by name but on a miss of the route cache.
//!
//! The checks and their order are RabbitMQ's: size, permission, exchange, reply-to, expiration, routing
//! headers, topic permission, user-id. If the body does not come with its header they are made before it, as
//! well as when it is whole: what is refused is not received. What is rare (a miss, `CC`, direct replies, transactions, returns)
//! is in [`route`], [`properties`], [`direct`] and
//! [`tx`](crate::tx).

use std::sync::Arc;

use bytes::Bytes;
use leveret_amqp::content::{ContentHeader, Peek, RawProperties};
use leveret_amqp::whole::WholePublish;
use leveret_broker::message::{Message, Publish, Shared, Targets, log_of};
use leveret_broker::record::{self, are_names, split_names};
use leveret_topology::ExchangeId;

use crate::cache::{RouteCache, Routed};
use crate::channel::content::{Stage, Stake};
use crate::channel::{Channel, Mode};
use crate::core::{Context, Core};
use crate::reply::{self, Fault};
use crate::{direct, properties, returned, route, trace};

const BASIC: u16 = 60;

/// The two bits after the names.
const MANDATORY: u8 = 1;
const IMMEDIATE: u8 = 2;

/// `basic.publish`, read by hand: its names are left where they are. The content comes next. False when
/// it is not well-formed, which the generated decoder then has the words for.
pub(crate) fn begin(
    core: &mut Core,
    channel: &mut Channel,
    payload: &[u8],
    read: &Bytes,
) -> Result<bool, Fault> {
    // Class, method and ticket; two short strings; bits.
    let (Some((&bits, rest)), true) = (payload.split_last(), payload.len() > 8) else {
        return Ok(false);
    };
    let names = rest.get(6..).unwrap_or_default();
    if !are_names(names) {
        return Ok(false);
    }
    if bits & IMMEDIATE != 0 {
        return Err(reply::immediate());
    }
    channel.content.begin(read, names, bits & MANDATORY != 0);
    core.in_read = channel.number;
    Ok(true)
}

/// A publish whose frames lie in the read at hand, one after the other. False when it has to be taken
/// frame by frame: it is refused in the middle of them, or an alarm stops it there.
pub(crate) fn whole(
    core: &mut Core,
    channel: &mut Channel,
    publish: &WholePublish<'_>,
    read: &Bytes,
    cx: &mut Context<'_>,
) -> Result<bool, Fault> {
    let is_plain = channel.content.stage == Stage::Idle
        && core.in_read == 0
        && !core.alarm.is_raised()
        && publish.bits & IMMEDIATE == 0
        && publish.body.len() as u64 <= core.settings.max_message_size
        && are_names(publish.names);
    if is_plain {
        channel.content.whole(read, publish, publish.bits & MANDATORY != 0);
        complete(core, channel, read, cx)?;
    }
    Ok(is_plain)
}

/// A content header frame.
pub(crate) fn header(
    core: &mut Core,
    channel: &mut Channel,
    payload: &[u8],
    read: &Bytes,
    cx: &mut Context<'_>,
) -> Result<(), Fault> {
    match channel.content.stage {
        Stage::Header => {}
        Stage::Idle => return Err(reply::expected_method_frame()),
        Stage::Body => return Err(reply::expected_body()),
    }
    let header = ContentHeader::decode(payload).map_err(|error| reply::bad_content(&error))?;
    if header.class != BASIC {
        return Err(reply::header_of_other_class(header.class));
    }
    if header.weight != 0 {
        return Err(reply::expected_header());
    }
    let max = core.settings.max_message_size;
    if header.body_size > max {
        // RabbitMQ waits for the body first.
        return Err(if header.body_size > reply::BODY_SIZE_LIMIT {
            reply::claims_too_much(header.body_size)
        } else {
            reply::message_too_large(header.body_size, max)
        });
    }
    core.publish_received(&channel.mode, cx);
    let stake = channel.content.stake();
    let is_whole = channel.content.header(read, header.properties.as_bytes(), header.body_size);
    core.unfinished.change(stake, channel.content.stake());
    if is_whole {
        return complete(core, channel, read, cx);
    }
    check_early(core, channel, read, cx)
}

/// Makes the checks of a message whose body is to come.
#[cold]
fn check_early(
    core: &mut Core,
    channel: &Channel,
    read: &Bytes,
    cx: &Context<'_>,
) -> Result<(), Fault> {
    let mut cache = core.cache.take().unwrap_or_default();
    let result = checked_early(core, &mut cache, channel, read, cx);
    core.cache = Some(cache);
    result
}

fn checked_early(
    core: &Core,
    cache: &mut RouteCache,
    channel: &Channel,
    read: &Bytes,
    cx: &Context<'_>,
) -> Result<(), Fault> {
    let (names, properties) = channel.content.parts(read);
    let place = place_of(core, cache, names, cx)?;
    let peek = RawProperties::new(properties).peek().map_err(|error| reply::bad_content(&error))?;
    head_of(channel, &peek)?;
    route::check_more_keys(core, cache, place, &peek, cx)?;
    check_claimed_user(core, &peek, cx)
}

/// A piece of a content body frame.
pub(crate) fn body(
    core: &mut Core,
    channel: &mut Channel,
    part: &[u8],
    ends_frame: bool,
    read: &Bytes,
    cx: &mut Context<'_>,
) -> Result<(), Fault> {
    match channel.content.stage {
        Stage::Body => {}
        Stage::Idle => return Err(reply::expected_method_frame()),
        Stage::Header => return Err(reply::expected_header()),
    }
    core.publish_received(&channel.mode, cx);
    let stake = channel.content.stake();
    let is_whole = channel.content.body(read, part, ends_frame);
    core.unfinished.change(stake, channel.content.stake());
    match is_whole {
        Some(true) => complete(core, channel, read, cx),
        Some(false) => Ok(()),
        None => Err(reply::body_too_long()),
    }
}

/// The message is whole.
fn complete(
    core: &mut Core,
    channel: &mut Channel,
    read: &Bytes,
    cx: &mut Context<'_>,
) -> Result<(), Fault> {
    core.in_read = 0;
    core.unfinished.change(channel.content.stake(), Stake::default());
    // Borrowed apart from the rest of the core.
    let mut cache = core.cache.take().unwrap_or_default();
    let result = checked(core, &mut cache, channel, read, cx);
    core.cache = Some(cache);
    if result.as_ref().is_err_and(|fault| fault.undecided.is_some()) {
        keep(core, channel, read);
    }
    result
}

/// Whether the user may is not known yet: the content waits for the answer.
#[cold]
fn keep(core: &mut Core, channel: &mut Channel, read: &Bytes) {
    if channel.content.is_in_read() {
        channel.content.stash(read);
    }
    core.unfinished.change(Stake::default(), channel.content.stake());
}

/// The answer came for which a content waited.
pub(crate) fn again(
    core: &mut Core,
    channel: &mut Channel,
    cx: &mut Context<'_>,
) -> Result<(), Fault> {
    let none = Bytes::new();
    match channel.content.is_whole() {
        true => complete(core, channel, &none, cx),
        false => check_early(core, channel, &none, cx),
    }
}

/// What the broker needs to know of a message's properties.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub(crate) channel: u16,
    pub(crate) persistent: bool,
    pub(crate) priority: u8,
    pub(crate) expiration_ms: Option<u64>,
}

impl Head {
    /// A message for one shard.
    #[inline]
    pub(crate) fn publish(self, confirm: u64, targets: &Targets, message: Message) -> Publish {
        let Self { channel, persistent, priority, expiration_ms } = self;
        let targets = targets.clone();
        Publish {
            channel,
            confirm,
            targets,
            persistent,
            priority,
            expiration_ms,
            message,
            shared: None,
        }
    }
}

/// Where a message's names are in the route cache.
#[inline(always)]
fn place_of(
    core: &Core,
    cache: &mut RouteCache,
    names: &[u8],
    cx: &Context<'_>,
) -> Result<usize, Fault> {
    match cache.find(names) {
        Some(place) => Ok(place),
        None => route::resolve(core, cache, names, cx),
    }
}

/// The checks of the properties that come before the route, and whether they have to be written anew.
#[inline(always)]
fn head_of(channel: &Channel, peek: &Peek<'_>) -> Result<(Head, bool), Fault> {
    let is_rewritten = properties::needs_rewrite(peek);
    if is_rewritten {
        properties::check_rewrite(channel, peek)?;
    }
    let expiration_ms = match peek.expiration {
        Some(text) => Some(properties::expiration(text)?),
        None => None,
    };
    let persistent = match peek.delivery_mode {
        None | Some(1) => false,
        Some(2) => true,
        Some(mode) => return Err(reply::delivery_mode(mode)),
    };
    let priority = peek.priority.unwrap_or(0);
    Ok((Head { channel: channel.number, persistent, priority, expiration_ms }, is_rewritten))
}

fn check_claimed_user(core: &Core, peek: &Peek<'_>, cx: &Context<'_>) -> Result<(), Fault> {
    match peek.user_id {
        Some(claimed) => properties::check_user(core, claimed, cx),
        None => Ok(()),
    }
}

/// All checks, the route, and off. A refusal closes the channel, and the content goes with it.
fn checked(
    core: &mut Core,
    cache: &mut RouteCache,
    channel: &mut Channel,
    read: &Bytes,
    cx: &mut Context<'_>,
) -> Result<(), Fault> {
    let (names, properties) = channel.content.parts(read);
    let place = place_of(core, cache, names, cx)?;
    let raw = RawProperties::new(properties);
    let peek = raw.peek().map_err(|error| reply::bad_content(&error))?;
    let (head, is_rewritten) = head_of(channel, &peek)?;
    let is_routed = route::find(core, cache, place, names, raw, &peek, cx)?;
    check_claimed_user(core, &peek, cx)?;
    if !is_routed {
        cache.count_scratch(place);
    }
    let Some(entry) = cache.get(place) else { return Ok(()) };
    let exchange = entry.exchange;
    let routed = if is_routed {
        entry.count();
        &entry.routed
    } else {
        &cache.scratch
    };

    core.brought.publish(&channel.mode, &peek);
    let is_plain = !is_rewritten && routed.is_plain();
    if let ([(group, targets)], true) = (&routed.targets[..], is_plain) {
        if let Mode::Tx(_) = channel.mode {
            return send(core, channel, exchange, routed, head, is_rewritten, read, cx);
        }
        channel.published.count(exchange, targets.len() as u64);
        core.turn_spent += targets.len();
        let confirm = match &mut channel.mode {
            Mode::Confirm(confirms) => confirms.publish(1, cx.now_us, &mut channel.published),
            Mode::Plain | Mode::Tx(_) => 0,
        };
        let publish = head.publish(confirm, targets, channel.content.take(read, cx.wall));
        core.totals.sizes.count(publish.message.body_len());
        core.batch.publish(*group, publish);
        return Ok(());
    }
    send(core, channel, exchange, routed, head, is_rewritten, read, cx)
}

/// What does not go to one shard just as it is.
#[expect(clippy::too_many_arguments, reason = "what was found out about one message")]
fn send(
    core: &mut Core,
    channel: &mut Channel,
    exchange: ExchangeId,
    routed: &Routed,
    head: Head,
    is_rewritten: bool,
    read: &Bytes,
    cx: &mut Context<'_>,
) -> Result<(), Fault> {
    let mandatory = channel.content.mandatory;
    let mut message = channel.content.take(read, cx.wall);
    if is_rewritten {
        message = properties::rewrite(core, channel, &message)?;
    }
    core.totals.sizes.count(message.body_len());
    let count = routed.targets.iter().map(|(_, targets)| targets.len() as u64).sum();
    let counted = channel.published.count(exchange, count);
    core.turn_spent += count as usize;
    if routed.is_unroutable() {
        match mandatory {
            true => counted.return_unroutable += 1,
            false => counted.drop_unroutable += 1,
        }
    }
    if routed.is_traced {
        trace::published(core, channel.number, routed, &message, cx);
    }
    if let Mode::Tx(tx) = &mut channel.mode {
        let kept = tx.kept();
        tx.publish(exchange, routed, head, message, mandatory);
        core.count_kept(kept, tx.kept());
        return Ok(());
    }
    if !routed.remember.is_empty() {
        route::remember(core, routed, head, &message, cx);
    }
    if routed.is_unroutable() && mandatory {
        returned::no_route(channel.number, core.frame_max, &message, cx);
    }
    let mut confirm = 0;
    if let Mode::Confirm(confirms) = &mut channel.mode {
        confirm = confirms.publish(routed.targets.len(), cx.now_us, &mut channel.published);
        core.confirms_dirty |= routed.targets.is_empty();
    }
    if routed.is_traced && confirm != 0 {
        trace::note_published(core, channel.number, confirm, routed, &message, cx);
    }
    if let Some(to) = routed.direct {
        direct::send(to, message, cx);
        return Ok(());
    }
    let is_worth_sharing = head.persistent
        && routed.targets.len() > 1
        && message.len() >= core.settings.embed_bytes_below;
    let shared = if is_worth_sharing { share(routed, head, &mut message, cx) } else { None };
    let homes = cx.topology.homes();
    for (group, targets) in &routed.targets {
        let mut publish = head.publish(confirm, targets, message.clone());
        publish.shared = shared.clone().filter(|_| log_of(*group, homes).is_some());
        core.batch.publish(*group, publish);
    }
    Ok(())
}

/// Each shard is given the same record, so that one of those that are here may write it for all of these.
#[cold]
fn share(
    routed: &Routed,
    head: Head,
    message: &mut Message,
    cx: &Context<'_>,
) -> Option<Arc<Shared>> {
    let homes = cx.topology.homes();
    let logs = routed.targets.iter().filter_map(|(group, _)| log_of(*group, homes));
    // One alone shares with nobody.
    logs.clone().nth(1)?;
    let whole = head.publish(0, &Targets::new(), std::mem::take(message));
    let record_head = record::Head::of(&whole, cx.wall.ms());
    *message = whole.message.into_record(&record_head);
    Some(Shared::among(logs))
}

/// Exchange and routing key of a message from the wire.
pub(crate) fn names(message: &Message) -> (&str, &str) {
    split_names(message.names()).unwrap_or_default()
}
