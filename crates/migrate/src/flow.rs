//! The messages of one queue on their way.
//!
//! The new broker numbers what is published on a channel, the old one what is delivered on one: both from one, and each
//! delivery is published once and in order. So a confirm's number is the delivery's, and confirms are handed on as acks.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use leveret_client::amqp::content::RawProperties;
use leveret_client::amqp::method::{Method, basic};
use leveret_client::{Connection, Consume, Error, Event, QueueDeclare, QueueDeclared};

use crate::limits::Room;
use crate::queues::Queue;
use crate::vhost::{Failure, Side};

/// Publishes are written when they are so many bytes: what is held of messages here.
const WRITE_BYTES: usize = 256 << 10;

/// For how long a consumer may hear nothing before the queue is asked whether it is empty.
const QUIET: Duration = Duration::from_millis(100);

/// For how long a queue may have ready messages and deliver none.
const PATIENCE: Duration = Duration::from_secs(10);

/// For how long the new broker may confirm nothing of what it has, unless it says that it is blocked.
const CONFIRM_PATIENCE: Duration = Duration::from_secs(120);

/// How often whoever watches is told.
const TELL: Duration = Duration::from_secs(1);

/// Requests for single messages that may be under way.
const GETS: usize = 100;

/// The way in which messages are taken out of the old queue, and the channel.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Intake {
    /// By a consumer.
    Consumed(u16),
    /// One by one: a queue that goes with its last consumer must have none of ours, with which its messages would go.
    Got(u16),
}

impl Intake {
    fn channel(self) -> u16 {
        match self {
            Self::Consumed(channel) | Self::Got(channel) => channel,
        }
    }
}

/// Messages on their way from a queue to an exchange that hands them to its namesake.
#[derive(Debug)]
pub(crate) struct Flow<'a> {
    source: &'a mut Connection,
    how: Intake,
    target: &'a mut Connection,
    to: u16,
    queue: &'a Queue,
    exchange: &'a str,
    prefetch: u16,
    /// Messages that were ready on the new broker before; none if somebody may take what is there.
    before: Option<u64>,
    /// What the queue there takes before it drops messages; none without such a limit, or if that is not known.
    room: Option<Room>,
    /// Numbers of the messages that the new broker has not confirmed.
    unconfirmed: BTreeSet<u64>,
    sent: u64,
    moved: u64,
    /// Requests without an answer yet, and whether one was answered by "empty".
    gets: usize,
    is_empty: bool,
    /// Why no more are sent.
    why: Option<String>,
    /// What else is to be told.
    note: Option<String>,
    /// Something that was sent came back, and it is not known which of the confirms is its.
    is_doubtful: bool,
    /// Some of what was sent is not stored there: confirms of many may pass over it.
    is_refused: bool,
}

impl<'a> Flow<'a> {
    /// `target` is on a new channel that confirms; `before` is what its queue was then.
    pub(crate) fn new(
        (source, how): (&'a mut Connection, Intake),
        (target, to): (&'a mut Connection, u16),
        queue: &'a Queue,
        exchange: &'a str,
        prefetch: u16,
        before: &QueueDeclared,
    ) -> Self {
        Self {
            source,
            how,
            target,
            to,
            queue,
            exchange,
            prefetch,
            before: (before.consumer_count == 0).then_some(before.message_count.into()),
            room: queue.limits.as_ref().map(|limits| limits.room(before.message_count.into())),
            unconfirmed: BTreeSet::new(),
            sent: 0,
            moved: 0,
            gets: 0,
            is_empty: false,
            why: None,
            note: None,
            is_doubtful: false,
            is_refused: false,
        }
    }

    /// Messages that the new broker has and the old one has no more.
    pub(crate) fn moved(&self) -> u64 {
        self.moved
    }

    /// Why not all of them are.
    pub(crate) fn why(&self) -> Option<&str> {
        self.why.as_deref()
    }

    /// What else is to be told of them.
    pub(crate) fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// Moves messages until the queue was seen empty or there is a reason to stop. Tells, about once a second, how many
    /// are moved and what it waits for.
    pub(crate) fn run(&mut self, mut tell: impl FnMut(u64, &str)) -> Result<(), Failure> {
        if let Intake::Consumed(channel) = self.how {
            self.source.qos(channel, self.prefetch, false).map_err(Side::Old.failure())?;
            self.source
                .consume(channel, &self.queue.name, &Consume::default())
                .map_err(Side::Old.failure())?;
        }
        let (mut told, mut last_came) = (Instant::now(), Instant::now());
        let mut last_confirmed = (Instant::now(), self.moved);
        while self.why.is_none() || !(self.unconfirmed.is_empty() || self.is_doubtful) {
            if told.elapsed() >= TELL {
                let blocked = "the new broker is out of memory or disk and takes nothing";
                tell(self.moved, if self.target.is_blocked() { blocked } else { "" });
                told = Instant::now();
            }
            self.ask().map_err(Side::Old.failure())?;
            let came = self.source.poll().map_err(Side::Old.failure())?;
            if self.take()? > 0 {
                last_came = Instant::now();
            }
            self.target.flush().map_err(Side::New.failure())?;
            if came && self.unconfirmed.len() < usize::from(self.prefetch) {
                self.target.poll().map_err(Side::New.failure())?;
            } else if !self.unconfirmed.is_empty() {
                self.target.wait(TELL).map_err(Side::New.failure())?;
            } else if !came && self.why.is_none() {
                if self.target.is_blocked() {
                    self.target.wait(TELL).map_err(Side::New.failure())?;
                } else if self.is_done(last_came)? {
                    break;
                }
                self.target.keep_alive().map_err(Side::New.failure())?;
            }
            self.settle()?;
            let waits = !self.unconfirmed.is_empty() && !self.target.is_blocked();
            if !waits || self.moved > last_confirmed.1 {
                last_confirmed = (Instant::now(), self.moved);
            } else if last_confirmed.0.elapsed() > CONFIRM_PATIENCE {
                let what = "what was published: it is not confirmed";
                return Err(Side::New.failure()(Error::TimedOut(what)));
            }
            self.source.flush().map_err(Side::Old.failure())?;
            self.source.keep_alive().map_err(Side::Old.failure())?;
        }
        if self.why.is_none() { self.look() } else { Ok(()) }
    }

    /// Looks whether what is moved is there. Messages leave a queue by expiring and by being taken, too: that is told,
    /// and is a reason to run it again only where the queue may have dropped them for want of room.
    fn look(&mut self) -> Result<(), Failure> {
        let Some(before) = self.before else { return Ok(()) };
        let declared = look(self.target, self.to, self.queue).map_err(Side::New.failure())?;
        let there = declared.message_count.into();
        let missing = (before + self.moved).saturating_sub(there);
        if missing == 0 || declared.consumer_count > 0 {
            return Ok(());
        }
        let told = format!("{missing} of the moved messages are not in the new queue any more");
        match &self.queue.limits {
            Some(limits) if limits.may_have_dropped(there) => {
                self.why = Some(format!(
                    "{told}: a limit of the queue (max-length, max-length-bytes) dropped them, or they expired, or \
                     somebody took them"
                ));
            }
            Some(_) => self.note = Some(format!("{told}: they expired, or somebody took them")),
            None => {
                self.note = Some(format!(
                    "{told}: they expired, or somebody took them, or a limit of the queue dropped them"
                ));
            }
        }
        Ok(())
    }

    /// Asks for single messages, if that is how they are taken.
    fn ask(&mut self) -> Result<(), Error> {
        let Intake::Got(channel) = self.how else { return Ok(()) };
        let most = GETS.min(usize::from(self.prefetch));
        while !self.is_empty && self.why.is_none() && self.gets + self.unconfirmed.len() < most {
            let get = basic::Get { queue: &self.queue.name, no_ack: false, ..Default::default() };
            self.source.output().put_method(channel, &get);
            self.gets += 1;
        }
        self.source.flush()
    }

    /// Publishes what was delivered. How many messages.
    ///
    /// What is acked is named by the number of the publish: a broker that numbers its deliveries otherwise is not believed.
    fn take(&mut self) -> Result<u64, Failure> {
        let before = self.sent;
        while !self.target.is_blocked() {
            let Some(event) = self.source.next_event().map_err(Side::Old.failure())? else { break };
            let (tag, key, is_again, properties, body) = match event {
                Event::Content { method: Method::BasicDeliver(it), properties, body, .. } => {
                    (it.delivery_tag, it.routing_key, it.redelivered, properties, body)
                }
                Event::Content { method: Method::BasicGetOk(it), properties, body, .. } => {
                    self.gets = self.gets.saturating_sub(1);
                    (it.delivery_tag, it.routing_key, it.redelivered, properties, body)
                }
                Event::Method { method: Method::BasicGetEmpty(_), .. } => {
                    self.gets = self.gets.saturating_sub(1);
                    self.is_empty = true;
                    continue;
                }
                Event::Method { method: Method::BasicCancel(_), .. } => {
                    self.why =
                        Some("the old broker has ended the consumer: is the queue deleted?".into());
                    continue;
                }
                _ => continue,
            };
            if self.why.is_some() {
                continue;
            }
            if tag != self.sent + 1 {
                self.why = Some(format!(
                    "the old broker gives delivery {} the tag {tag}: what is acked would be another message",
                    self.sent + 1
                ));
                continue;
            }
            if let Some(room) = &mut self.room {
                if room.messages == 0 {
                    // Others may have made room meanwhile. What is on its way may not be counted there yet.
                    let declared = look(self.target, self.to, self.queue);
                    let ready = declared.map_err(Side::New.failure())?.message_count;
                    let used = u64::from(ready) + self.unconfirmed.len() as u64;
                    let limits = self.queue.limits.as_ref();
                    room.messages = limits.map_or(0, |limits| limits.room(used).messages);
                }
                let size = body.len() as u64;
                self.why = room.why_not(1, size);
                if self.why.is_some() {
                    continue;
                }
                room.take(size);
            }
            self.sent += 1;
            self.unconfirmed.insert(self.sent);
            let publish = basic::Publish {
                exchange: self.exchange,
                routing_key: key,
                mandatory: true,
                ..Default::default()
            };
            let own = (is_again && self.queue.kind == "quorum").then(|| without_counts(properties));
            let own = own.flatten();
            let properties = own.as_deref().unwrap_or(properties.as_bytes());
            self.target.output().put_publish(self.to, &publish, properties, body);
            if self.target.output().bytes().len() >= WRITE_BYTES {
                self.target.flush().map_err(Side::New.failure())?;
            }
        }
        Ok(self.sent - before)
    }

    /// Hands confirms on.
    fn settle(&mut self) -> Result<(), Failure> {
        while let Some(event) = self.target.next_event().map_err(Side::New.failure())? {
            match event {
                Event::Content { method: Method::BasicReturn(it), .. } => {
                    self.why = Some(format!(
                        "the new broker returned a message ({}): its queue was deleted or unbound meanwhile",
                        it.reply_text
                    ));
                    // Its confirm comes too, maybe together with others.
                    self.is_doubtful = true;
                }
                Event::Method { method: Method::BasicAck(ack), .. } if !self.is_doubtful => {
                    let (tag, multiple) = (ack.delivery_tag, ack.multiple);
                    let confirmed = confirmed(&mut self.unconfirmed, tag, multiple);
                    self.moved += confirmed.len() as u64;
                    let channel = self.how.channel();
                    match confirmed.last() {
                        Some(last) if multiple && !self.is_refused => {
                            self.source.ack(channel, *last, true);
                        }
                        _ => confirmed.iter().for_each(|it| self.source.ack(channel, *it, false)),
                    }
                }
                Event::Method { method: Method::BasicNack(nack), .. } => {
                    confirmed(&mut self.unconfirmed, nack.delivery_tag, nack.multiple);
                    self.is_refused = true;
                    self.why = Some(
                        "the new broker refuses messages for this queue: it is full (max-length with reject-publish). \
                         Raise its limit or let its consumers work, and run it again"
                            .to_owned(),
                    );
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Nothing is under way: waits a moment, and asks the queue whether there is anything else.
    fn is_done(&mut self, last_came: Instant) -> Result<bool, Failure> {
        if matches!(self.how, Intake::Got(_)) && self.is_empty && self.gets == 0 {
            return Ok(true);
        }
        if self.source.wait(QUIET).map_err(Side::Old.failure())? {
            return Ok(false);
        }
        let declared = look(self.source, self.how.channel(), self.queue);
        let declared = declared.map_err(Side::Old.failure())?;
        // Deliveries that left before the answer came before it.
        if self.take()? > 0 {
            return Ok(false);
        }
        if declared.message_count > 0 && last_came.elapsed() > PATIENCE {
            self.why = Some(format!(
                "the old broker has {} messages ready and does not deliver them: another consumer may be the single \
                 active one, or the queue is paused",
                declared.message_count
            ));
        }
        Ok(declared.message_count == 0 && self.gets == 0)
    }
}

/// What a broker says of a queue.
fn look(client: &mut Connection, channel: u16, queue: &Queue) -> Result<QueueDeclared, Error> {
    let how = QueueDeclare { passive: true, ..QueueDeclare::default() };
    client.queue_declare(channel, &queue.name, &how)
}

/// Takes out what a confirm is of.
fn confirmed(unconfirmed: &mut BTreeSet<u64>, tag: u64, multiple: bool) -> Vec<u64> {
    if multiple {
        let later = unconfirmed.split_off(&tag.saturating_add(1));
        return std::mem::replace(unconfirmed, later).into_iter().collect();
    }
    unconfirmed.take(&tag).into_iter().collect()
}

/// The properties of a message without what a quorum queue adds to them when it delivers it again: published, that would be the
/// message's own for good. None where there is nothing of it.
fn without_counts(properties: RawProperties<'_>) -> Option<Vec<u8>> {
    let mut properties = properties.to_owned().ok()?;
    let headers = properties.headers.as_mut()?;
    let counts = ["x-delivery-count", "x-acquired-count"].map(|name| headers.remove(name));
    if counts.iter().all(Option::is_none) {
        return None;
    }
    // It had no headers of its own, or an empty table, which says as much.
    properties.headers = properties.headers.filter(|headers| !headers.is_empty());
    Some(properties.to_bytes())
}
