//! One channel as its client sees it: what it waits for, what it holds, and what may come.

use std::collections::{BTreeMap, VecDeque};

use leveret_amqp::content::ContentHeader;
use leveret_amqp::method::Method;
use leveret_broker::message::ConnectionId;
use leveret_queue::Time;

use super::World;
use crate::checks::ACK_TIMEOUT_MS;
use crate::plan::{DEAD, QueueIndex};
use crate::shadow::{Check, MessageIndex, QueueFate, Settled, Shadow};

/// Commands without an answer yet, on one channel.
const ASKING_MAX: usize = 4;

/// An answer a channel waits for. Answers come in the order of the commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    Open,
    Close,
    DeclareQueue {
        name: String,
    },
    DeclareExchange,
    Bind,
    Consume {
        tag: String,
        /// Somebody may have the queue for himself.
        may_be_refused: bool,
    },
    Cancel {
        tag: String,
    },
    Get {
        queue: QueueIndex,
        no_ack: bool,
    },
    Qos,
    Select,
    TxSelect,
    Commit,
    Rollback,
    Recover,
    Purge {
        /// What was in the queue for sure.
        gone: Vec<(MessageIndex, QueueIndex)>,
    },
    Delete {
        kept: Option<QueueIndex>,
    },
    /// Nothing but `channel.close`, after a mistake.
    Doom,
}

/// A consumer of the channel.
#[derive(Debug)]
pub(crate) struct Consumer {
    pub(crate) queue: QueueIndex,
    pub(crate) no_ack: bool,
    pub(crate) prefetch: u16,
    pub(crate) unacked: u32,
}

/// A delivery that was not settled.
#[derive(Debug)]
pub(crate) struct Unacked {
    pub(crate) message: MessageIndex,
    pub(crate) queue: QueueIndex,
    /// None when it came by `basic.get`.
    pub(crate) consumer: Option<String>,
    pub(crate) since: Time,
}

/// A publish whose confirm did not come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unconfirmed {
    pub(crate) message: MessageIndex,
    pub(crate) mandatory: bool,
}

/// What a transaction holds back.
#[derive(Debug, Default)]
pub(crate) struct Tx {
    pub(crate) published: Vec<MessageIndex>,
    settled: Vec<(u64, Unacked, Settled)>,
    /// Settlements that a rollback takes back.
    returning: Vec<(u64, Unacked, Settled)>,
}

impl Tx {
    pub(crate) fn is_empty(&self) -> bool {
        self.published.is_empty() && self.settled.is_empty()
    }

    pub(crate) fn has_acks_alone(&self) -> bool {
        let is_ack = |(_, _, how): &(u64, Unacked, Settled)| *how == Settled::Ack;
        self.published.is_empty() && self.settled.iter().any(is_ack)
    }
}

/// Content that is coming in.
#[derive(Debug)]
struct Incoming {
    from: ContentFrom,
    /// Length of the body; none until the header came.
    size: Option<usize>,
    message: MessageIndex,
    is_dead_letter: bool,
    reply_to: Option<String>,
    body: Vec<u8>,
}

#[derive(Debug)]
enum ContentFrom {
    Consumer { tag: String, delivery: u64, redelivered: bool },
    Get { queue: QueueIndex, no_ack: bool, delivery: u64, redelivered: bool },
    Return,
}

/// One channel.
#[derive(Debug)]
pub(crate) struct Channel {
    /// Names it as a publisher: numbers of channels are used again, these are not.
    pub(crate) publisher: u32,
    /// The broker's name for its connection.
    connection: ConnectionId,
    pub(crate) opened: Time,
    /// Answers to come, each with what was sent before its command.
    awaited: VecDeque<(Awaited, Vec<Sent>)>,
    pub(crate) is_confirming: bool,
    pub(crate) tx: Option<Tx>,
    pub(crate) next_confirm: u64,
    pub(crate) unconfirmed: BTreeMap<u64, Unconfirmed>,
    pub(crate) consumers: BTreeMap<String, Consumer>,
    pub(crate) unacked: BTreeMap<u64, Unacked>,
    /// `basic.qos` for consumers to come.
    pub(crate) prefetch: u16,
    /// `basic.qos` with `global`.
    pub(crate) global_prefetch: u16,
    /// The code of the close that a mistake is going to bring.
    pub(crate) expects_close: Option<u16>,
    /// The tag of its consumer of direct replies.
    pub(crate) replies: Option<String>,
    /// Requests that it got: where the answer goes, and what is asked.
    pub(crate) to_answer: Vec<(String, MessageIndex)>,
    last_delivery: u64,
    incoming: Option<Incoming>,
    /// Sent since the last command: known to be read when the answer of the next one comes.
    pub(crate) sent: Vec<Sent>,
}

/// Something that has no answer of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sent {
    Publish(MessageIndex),
    Settlement(MessageIndex, QueueIndex),
}

impl Channel {
    pub(crate) fn new(publisher: u32, connection: ConnectionId, opened: Time) -> Self {
        Self {
            publisher,
            connection,
            opened,
            awaited: VecDeque::from([(Awaited::Open, Vec::new())]),
            is_confirming: false,
            tx: None,
            next_confirm: 1,
            unconfirmed: BTreeMap::new(),
            consumers: BTreeMap::new(),
            unacked: BTreeMap::new(),
            prefetch: 0,
            global_prefetch: 0,
            expects_close: None,
            replies: None,
            to_answer: Vec::new(),
            last_delivery: 0,
            incoming: None,
            sent: Vec::new(),
        }
    }

    /// Something is to come before the channel can be left in order.
    pub(crate) fn is_busy(&self) -> bool {
        self.is_asking() || self.expects_close.is_some() || !self.unconfirmed.is_empty()
    }

    /// Answers are to come.
    pub(crate) fn is_asking(&self) -> bool {
        !self.awaited.is_empty()
    }

    /// It may send one more command.
    pub(crate) fn may_ask(&self) -> bool {
        self.awaited.len() < ASKING_MAX && !self.is_ending()
    }

    /// It sends nothing more.
    pub(crate) fn is_ending(&self) -> bool {
        self.expects_close.is_some() || self.asks(&Awaited::Close)
    }

    /// This answer is among those to come.
    pub(crate) fn asks(&self, what: &Awaited) -> bool {
        self.awaited.iter().any(|(awaited, _)| awaited == what)
    }

    /// The queue that the next answer says is deleted.
    pub(crate) fn next_deletion(&self) -> Option<QueueIndex> {
        match self.awaited.front() {
            Some(&(Awaited::Delete { kept }, _)) => kept,
            _ => None,
        }
    }

    /// The next answer may be a refusal because of somebody who has the queue for himself.
    pub(crate) fn may_be_refused(&self) -> bool {
        let next = self.awaited.front().map(|(awaited, _)| awaited);
        matches!(next, Some(Awaited::Consume { may_be_refused: true, .. }))
    }

    /// A command was sent.
    pub(crate) fn awaits(&mut self, answer: Awaited) {
        let before = std::mem::take(&mut self.sent);
        self.awaited.push_back((answer, before));
    }

    /// The connection was closed in order: everything that was sent was read.
    pub(crate) fn everything_was_read(&mut self, shadow: &mut Shadow) {
        for (_, before) in self.awaited.drain(..) {
            were_read(self.connection, &before, shadow);
        }
        were_read(self.connection, &self.sent, shadow);
    }

    /// Takes a delivery out of those that wait, and tells the model how it ended.
    pub(crate) fn settle(&mut self, delivery: u64, how: Settled, shadow: &mut Shadow) {
        let Some(unacked) = self.unacked.remove(&delivery) else { return };
        match &mut self.tx {
            Some(tx) => tx.settled.push((delivery, unacked, how)),
            None => self.settled(unacked, how, shadow),
        }
    }

    fn settled(&mut self, unacked: Unacked, how: Settled, shadow: &mut Shadow) {
        let Unacked { message, queue, consumer, .. } = unacked;
        if let Some(consumer) = consumer.and_then(|tag| self.consumers.get_mut(&tag)) {
            consumer.unacked -= 1;
        }
        shadow.settled(self.connection, message, queue, how);
        if how != Settled::Requeue {
            self.sent.push(Sent::Settlement(message, queue));
        }
    }

    /// `tx.commit` is about to be sent: what was held back counts from now on.
    pub(crate) fn commit(&mut self, shadow: &mut Shadow) {
        let Some(Tx { published, settled, .. }) = &mut self.tx else { return };
        let (published, settled) = (std::mem::take(published), std::mem::take(settled));
        let is_ack = |(_, unacked, how): &(u64, Unacked, Settled)| {
            (*how == Settled::Ack).then_some((unacked.message, unacked.queue))
        };
        shadow.commit(&published, settled.iter().filter_map(is_ack).collect());
        self.sent.extend(published.into_iter().map(Sent::Publish));
        for (_, unacked, how) in settled {
            self.settled(unacked, how, shadow);
        }
    }

    /// `tx.rollback` is about to be sent.
    pub(crate) fn roll_back(&mut self) {
        let Some(tx) = &mut self.tx else { return };
        tx.published.clear();
        // One rollback may follow another before the first is answered.
        tx.returning.append(&mut tx.settled);
    }

    /// `tx.rollback-ok`: what was settled is held again. Meanwhile the broker did not look at it: what was kept for
    /// too long already is found by its next look, like what is kept for too long from now on.
    fn rolled_back(&mut self, now: Time) {
        let Some(tx) = &mut self.tx else { return };
        let earliest = Time::from_ms(now.ms() - ACK_TIMEOUT_MS);
        let returning = tx.returning.drain(..).map(|(delivery, unacked, _)| {
            (delivery, Unacked { since: unacked.since.max(earliest), ..unacked })
        });
        self.unacked.extend(returning);
    }

    pub(crate) fn method(&mut self, method: &Method<'_>, world: &mut World<'_>) -> Check {
        if self.incoming.is_some() {
            return Err(format!("{} inside a content", method.name()));
        }
        match method {
            Method::BasicDeliver(deliver) => {
                let tag = deliver.consumer_tag.to_owned();
                if !self.consumers.contains_key(&tag) && self.replies.as_ref() != Some(&tag) {
                    return Err(format!("a delivery for {tag}, which does not consume"));
                }
                let delivery = self.next_delivery(deliver.delivery_tag)?;
                let redelivered = deliver.redelivered;
                self.expect_content(ContentFrom::Consumer { tag, delivery, redelivered });
            }
            Method::BasicReturn(_) => self.expect_content(ContentFrom::Return),
            Method::BasicAck(ack) => {
                self.confirms(ack.delivery_tag, ack.multiple, true, world.shadow)?;
            }
            Method::BasicNack(nack) => {
                self.confirms(nack.delivery_tag, nack.multiple, false, world.shadow)?;
            }
            Method::BasicCancel(cancel) => {
                let consumer = self.consumers.remove(cancel.consumer_tag);
                let queue = consumer.map(|consumer| consumer.queue);
                if !queue.is_some_and(|queue| world.shadow.queues[queue].loses) {
                    return Err(format!("{} was cancelled", cancel.consumer_tag));
                }
            }
            answer => self.answer(answer, world)?,
        }
        Ok(())
    }

    fn answer(&mut self, answer: &Method<'_>, world: &mut World<'_>) -> Check {
        let (awaited, before) = self.awaited.pop_front().unzip();
        match (&awaited, answer) {
            (Some(Awaited::Open), Method::ChannelOpenOk(_))
            | (Some(Awaited::DeclareExchange), Method::ExchangeDeclareOk(_))
            | (Some(Awaited::Bind), Method::QueueBindOk(_))
            | (Some(Awaited::Consume { .. }), Method::BasicConsumeOk(_))
            | (Some(Awaited::Qos), Method::BasicQosOk(_))
            | (Some(Awaited::Select), Method::ConfirmSelectOk(_))
            | (Some(Awaited::TxSelect), Method::TxSelectOk(_))
            | (Some(Awaited::Commit), Method::TxCommitOk(_))
            | (Some(Awaited::Get { .. }), Method::BasicGetEmpty(_)) => {}
            (Some(Awaited::DeclareQueue { name }), Method::QueueDeclareOk(_)) => {
                if let Some(queue) = world.shadow.queue(name) {
                    world.shadow.keep(queue, QueueFate::Asked, QueueFate::There);
                }
            }
            (Some(Awaited::Purge { gone }), Method::QueuePurgeOk(_)) => {
                world.shadow.purged(gone);
            }
            (&Some(Awaited::Delete { kept }), Method::QueueDeleteOk(_)) => {
                if let Some(queue) = kept {
                    world.shadow.keep(queue, QueueFate::Going, QueueFate::Gone);
                }
            }
            (Some(Awaited::Close), Method::ChannelCloseOk(_)) => self.expects_close = None,
            (Some(Awaited::Rollback), Method::TxRollbackOk(_)) => self.rolled_back(world.now),
            (Some(Awaited::Cancel { tag }), Method::BasicCancelOk(_)) => {
                self.consumers.remove(tag);
            }
            (Some(Awaited::Recover), Method::BasicRecoverOk(_)) => {
                // All that came before goes back.
                self.unacked.clear();
                self.consumers.values_mut().for_each(|consumer| consumer.unacked = 0);
            }
            (&Some(Awaited::Get { queue, no_ack }), Method::BasicGetOk(got)) => {
                let delivery = self.next_delivery(got.delivery_tag)?;
                let redelivered = got.redelivered;
                self.expect_content(ContentFrom::Get { queue, no_ack, delivery, redelivered });
            }
            (awaited, answer) => {
                return Err(format!("{} came, awaited is {awaited:?}", answer.name()));
            }
        }
        let before = before.unwrap_or_default();
        were_read(self.connection, &before, world.shadow);
        if matches!(answer, Method::TxCommitOk(_)) {
            for sent in before {
                match sent {
                    Sent::Publish(message) => world.shadow.stored(message),
                    Sent::Settlement(message, queue) => {
                        world.shadow.ack_stored(self.connection, message, queue);
                    }
                }
            }
        }
        Ok(())
    }

    /// Delivery tags count up by one.
    fn next_delivery(&mut self, tag: u64) -> Check<u64> {
        if tag != self.last_delivery + 1 {
            return Err(format!("delivery tag {tag} after {}", self.last_delivery));
        }
        self.last_delivery = tag;
        Ok(tag)
    }

    fn expect_content(&mut self, from: ContentFrom) {
        self.incoming = Some(Incoming {
            from,
            size: None,
            message: 0,
            is_dead_letter: false,
            reply_to: None,
            body: Vec::new(),
        });
    }

    pub(crate) fn header(&mut self, header: &ContentHeader<'_>, world: &mut World<'_>) -> Check {
        let Some(incoming) = self.incoming.as_mut().filter(|incoming| incoming.size.is_none())
        else {
            return Err("a content header without a method".to_owned());
        };
        let properties =
            header.properties.to_owned().map_err(|error| format!("properties: {error:?}"))?;
        let message = properties.message_id.as_deref().and_then(|id| id.parse().ok());
        incoming.message = message.ok_or("a message without our message-id")?;
        incoming.is_dead_letter =
            properties.headers.is_some_and(|headers| headers.get("x-death").is_some());
        incoming.reply_to = properties.reply_to;
        incoming.size = Some(header.body_size as usize);
        self.complete(world)
    }

    pub(crate) fn body(&mut self, part: &[u8], world: &mut World<'_>) -> Check {
        let Some(incoming) = self.incoming.as_mut().filter(|incoming| incoming.size.is_some())
        else {
            return Err("a content body without a header".to_owned());
        };
        incoming.body.extend_from_slice(part);
        self.complete(world)
    }

    fn complete(&mut self, world: &mut World<'_>) -> Check {
        if self.incoming.as_ref().is_none_or(|some| Some(some.body.len()) != some.size) {
            return Ok(());
        }
        let Some(Incoming { from, message, body, is_dead_letter, reply_to, .. }) =
            self.incoming.take()
        else {
            return Ok(());
        };
        let shadow = &mut *world.shadow;
        if let Some(address) = reply_to
            && !matches!(from, ContentFrom::Return)
        {
            if !address.starts_with("amq.rabbitmq.reply-to.") {
                return Err(format!("message {message} is to be answered to {address}"));
            }
            self.to_answer.push((address, message));
        }
        match from {
            ContentFrom::Return => return shadow.returned(message),
            ContentFrom::Consumer { tag, .. } if self.replies.as_ref() == Some(&tag) => {
                return shadow.answered(message, self.publisher, &body);
            }
            ContentFrom::Consumer { tag, delivery, redelivered } => {
                let Some(consumer) = self.consumers.get_mut(&tag) else { return Ok(()) };
                let queue = consumer.queue;
                shadow.received(message, queue, redelivered, &body)?;
                check_death(message, queue, is_dead_letter, shadow)?;
                if !consumer.no_ack {
                    consumer.unacked += 1;
                    if consumer.prefetch > 0 && consumer.unacked > u32::from(consumer.prefetch) {
                        let (got, limit) = (consumer.unacked, consumer.prefetch);
                        return Err(format!("{tag} holds {got} messages, its prefetch is {limit}"));
                    }
                    let (consumer, since) = (Some(tag), world.now);
                    self.unacked.insert(delivery, Unacked { message, queue, consumer, since });
                    self.check_global_prefetch()?;
                }
            }
            ContentFrom::Get { queue, no_ack, delivery, redelivered } => {
                shadow.received(message, queue, redelivered, &body)?;
                check_death(message, queue, is_dead_letter, shadow)?;
                if !no_ack {
                    let (consumer, since) = (None, world.now);
                    self.unacked.insert(delivery, Unacked { message, queue, consumer, since });
                }
            }
        }
        Ok(())
    }

    fn check_global_prefetch(&self) -> Check {
        let limit = usize::from(self.global_prefetch);
        let held = self.unacked.values().filter(|unacked| unacked.consumer.is_some()).count();
        if limit == 0 || held <= limit {
            return Ok(());
        }
        Err(format!("the channel's consumers hold {held} messages, its prefetch is {limit}"))
    }

    /// Confirms: once for each, and for nothing else.
    fn confirms(&mut self, tag: u64, multiple: bool, ok: bool, shadow: &mut Shadow) -> Check {
        let tags: Vec<u64> = if multiple {
            self.unconfirmed.range(..=tag).map(|(&tag, _)| tag).collect()
        } else {
            vec![tag]
        };
        if tags.is_empty() || tag >= self.next_confirm {
            return Err(format!("a confirm up to {tag}, {} is next", self.next_confirm));
        }
        for tag in tags {
            let Some(Unconfirmed { message, mandatory }) = self.unconfirmed.remove(&tag) else {
                return Err(format!("a second confirm for {tag}"));
            };
            let unroutable = shadow.message(message)?;
            if mandatory && unroutable.targets.is_empty() && !unroutable.returned {
                return Err(format!("message {message} is confirmed and did not come back"));
            }
            shadow.confirmed(message, ok)?;
        }
        Ok(())
    }
}

/// The broker has read these.
fn were_read(connection: ConnectionId, sent: &[Sent], shadow: &mut Shadow) {
    for &sent in sent {
        match sent {
            Sent::Publish(message) => shadow.known(message),
            Sent::Settlement(message, queue) => shadow.certain(connection, message, queue),
        }
    }
}

/// What is found among the dead letters says where it died, unless an operator moved it there.
fn check_death(
    message: MessageIndex,
    queue: QueueIndex,
    is_dead_letter: bool,
    shadow: &Shadow,
) -> Check {
    if queue == DEAD && !is_dead_letter && !shadow.looked_at.contains(&message) {
        return Err("a dead letter without x-death".to_owned());
    }
    Ok(())
}
