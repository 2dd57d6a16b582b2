//! A simulated client: one connection, its channels, and what it checks of all that it gets.
//!
//! It reads and writes real AMQP with the codec of the broker, but shares no logic with it: what a
//! channel may do and what an answer means is written here a second time, from the specification.

mod channel;
mod work;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use leveret_amqp::content::ContentHeader;
use leveret_amqp::frame::{
    BODY, Decoder, Event, FRAME_END, HEADER, HEARTBEAT, METHOD, ProtocolHeader,
};
use leveret_amqp::method::{Method, channel as channel_methods, connection};
use leveret_amqp::table::{RawTable, Table, Value};
use leveret_broker::message::ConnectionId;
use leveret_queue::Time;

use crate::checks::ACK_TIMEOUT_MS;
use crate::plan::{EXPIRES_MS, QueueIndex};
use crate::random::Random;
use crate::shadow::{Check, QueueFate, Shadow};
use channel::Awaited;
pub(crate) use channel::Channel;
pub(crate) use work::Mood;

/// Smallest frames that the protocol allows, so that bodies are often split.
const FRAME_MAX: u32 = 4096;

/// What clients ask for, in turn.
const HEARTBEATS_S: [u16; 3] = [0, 2, 4];

/// Class and method of `queue.delete`.
const QUEUE_DELETE: (u16, u16) = (50, 40);

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionState {
    /// The header or `start-ok` or `open` was sent, no `open-ok` came.
    Opening,
    Open,
    /// `close` was sent, no `close-ok` came.
    Closing,
    /// The broker closed it: `close-ok` is still to go.
    Answering,
    /// Over: nothing more comes or goes.
    Closed,
}

/// One client.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) name: usize,
    /// The broker's name for its connection.
    connection: ConnectionId,
    pub(crate) state: ConnectionState,
    decoder: Decoder,
    /// Bytes that came and are no whole frame yet.
    input: Vec<u8>,
    /// Frames by channel, to be sent in order within each and mixed among them.
    output: BTreeMap<u16, VecDeque<Vec<u8>>>,
    pub(crate) channels: BTreeMap<u16, Channel>,
    pub(crate) is_blocked: bool,
    /// What it asks for in `connection.tune-ok`, in seconds; 0 for none.
    pub(crate) heartbeat_s: u16,
    /// When it sends its next heartbeat.
    pub(crate) beat_at: Time,
    /// Channels that both sides closed at once: the answer to its own close is to come.
    half_closed: BTreeSet<u16>,
    /// Exclusive queues it declared.
    pub(crate) fleeting: Vec<QueueIndex>,
    /// Queues before this one are gone if they were not to survive: its node has outlived the one that they were on.
    pub(crate) gone_before: QueueIndex,
    /// That one had trouble with a disk, of which its last answers may tell.
    had_trouble: bool,
    /// What it sends and gets, in words, when somebody is going to read it.
    pub(crate) diary: Option<Vec<String>>,
}

/// What a client borrows while it acts or reads.
pub(crate) struct World<'a> {
    pub(crate) shadow: &'a mut Shadow,
    pub(crate) random: &'a mut Random,
    pub(crate) next_publisher: &'a mut u32,
    pub(crate) now: Time,
}

impl Client {
    /// A client that is about to connect: its first bytes wait in its output.
    pub(crate) fn new(name: usize, connection: ConnectionId, keeps_diary: bool) -> Self {
        let mut client = Self {
            name,
            connection,
            state: ConnectionState::Opening,
            decoder: Decoder::new(FRAME_MAX),
            input: Vec::new(),
            output: BTreeMap::new(),
            channels: BTreeMap::new(),
            is_blocked: false,
            heartbeat_s: HEARTBEATS_S[name % HEARTBEATS_S.len()],
            beat_at: Time::from_ms(0),
            half_closed: BTreeSet::new(),
            fleeting: Vec::new(),
            gone_before: 0,
            had_trouble: false,
            diary: keeps_diary.then(Vec::new),
        };
        // `connection.start` has a table of its own size, before any limit was agreed on.
        client.decoder.set_frame_max(131_072);
        client.output.entry(0).or_default().push_back(ProtocolHeader::BYTES.to_vec());
        client
    }

    /// Whether it has something for the socket.
    pub(crate) fn has_output(&self) -> bool {
        self.output.values().any(|frames| !frames.is_empty())
    }

    /// A heartbeat that is due joins what is to be sent.
    pub(crate) fn beat(&mut self, now: Time) {
        if self.heartbeat_s > 0 && self.state == ConnectionState::Open && self.beat_at <= now {
            self.beat_at = now.after_ms(u64::from(self.heartbeat_s) * 500);
            self.put_frame(HEARTBEAT, 0, &[]);
        }
    }

    /// Whether a channel is taken, or will be answered for.
    pub(crate) fn has_channel(&self, number: u16) -> bool {
        self.channels.contains_key(&number) || self.half_closed.contains(&number)
    }

    /// Moves some frames to the socket, channels mixed at random.
    pub(crate) fn send(&mut self, random: &mut Random, socket: &mut VecDeque<u8>) -> usize {
        let mut sent = 0;
        for _ in 0..=random.below(12) {
            let ready: Vec<u16> = self
                .output
                .iter()
                .filter(|(_, frames)| !frames.is_empty())
                .map(|(&channel, _)| channel)
                .collect();
            let Some(channel) = random.pick(&ready) else { break };
            let frame = self.output.get_mut(channel).and_then(VecDeque::pop_front);
            let frame = frame.unwrap_or_default();
            sent += frame.len();
            socket.extend(frame);
        }
        sent
    }

    pub(crate) fn put_method<'a>(&mut self, channel: u16, method: impl Into<Method<'a>>) {
        let (mut payload, method) = (Vec::new(), method.into());
        self.note(|| format!("will send {channel}: {method:?}"));
        method.encode(&mut payload);
        self.put_frame(METHOD, channel, &payload);
    }

    fn put_frame(&mut self, kind: u8, channel: u16, payload: &[u8]) {
        let mut frame = Vec::with_capacity(payload.len() + 8);
        frame.push(kind);
        frame.extend_from_slice(&channel.to_be_bytes());
        frame.extend_from_slice(&(payload.len() as u32).to_be_bytes());
        frame.extend_from_slice(payload);
        frame.push(FRAME_END);
        self.output.entry(channel).or_default().push_back(frame);
    }

    /// A content header and as many body frames as it takes.
    fn put_content(&mut self, channel: u16, properties: &[u8], body: &[u8]) {
        let mut header = Vec::with_capacity(12 + properties.len());
        header.extend_from_slice(&60_u16.to_be_bytes());
        header.extend_from_slice(&0_u16.to_be_bytes());
        header.extend_from_slice(&(body.len() as u64).to_be_bytes());
        header.extend_from_slice(properties);
        self.put_frame(HEADER, channel, &header);
        for part in body.chunks(FRAME_MAX as usize - 8) {
            self.put_frame(BODY, channel, part);
        }
    }

    /// Takes bytes from the socket.
    pub(crate) fn read(&mut self, bytes: &[u8], world: &mut World<'_>) -> Check {
        let mut input = std::mem::take(&mut self.input);
        input.extend_from_slice(bytes);
        let mut rest = &input[..];
        while !matches!(self.state, ConnectionState::Closed | ConnectionState::Answering) {
            let event = self.decoder.next(rest).map_err(|error| format!("frames: {error}"))?;
            let Some((event, used)) = event else { break };
            self.event(event, world)?;
            rest = rest.get(used..).unwrap_or_default();
        }
        self.input = rest.to_vec();
        Ok(())
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(diary) = &mut self.diary {
            let mut line = format!("    client {} {}", self.name, line());
            line.truncate(300);
            diary.push(line);
        }
    }

    fn event(&mut self, event: Event<'_>, world: &mut World<'_>) -> Check {
        match event {
            Event::Heartbeat => Ok(()),
            Event::Method { channel: 0, payload } => {
                self.connection_method(decode(payload)?, world.shadow)
            }
            Event::Method { channel, payload } => {
                let method = decode(payload)?;
                self.note(|| format!("gets {channel}: {method:?}"));
                if let Method::ChannelClose(close) = method {
                    return self.channel_closed(channel, &close, world);
                }
                if matches!(method, Method::ChannelCloseOk(_)) && self.half_closed.remove(&channel)
                {
                    return Ok(());
                }
                let open = self.open_channel(channel, method.name())?;
                open.method(&method, world)?;
                match method {
                    Method::QueueDeclareOk(ok) => self.queue_declared(ok.queue, world.shadow),
                    Method::ChannelCloseOk(_) => _ = self.channels.remove(&channel),
                    _ => {}
                }
                Ok(())
            }
            Event::Header { channel, payload } => {
                let header = ContentHeader::decode(payload)
                    .map_err(|error| format!("content header: {error:?}"))?;
                let open = self.open_channel(channel, "content header")?;
                open.header(&header, world)
            }
            Event::Body { channel, part, .. } => {
                let open = self.open_channel(channel, "content body")?;
                open.body(part, world)
            }
        }
    }

    fn open_channel(&mut self, number: u16, what: &str) -> Check<&mut Channel> {
        let name = self.name;
        self.channels
            .get_mut(&number)
            .ok_or_else(|| format!("client {name}: {what} on channel {number}, which is not open"))
    }

    fn connection_method(&mut self, method: Method<'_>, shadow: &mut Shadow) -> Check {
        match method {
            Method::ConnectionStart(_) => {
                let capabilities: Table = ["consumer_cancel_notify", "connection.blocked"]
                    .into_iter()
                    .map(|name| (name.to_owned(), Value::Bool(true)))
                    .collect();
                let mut properties = Table::new();
                properties.set("capabilities", capabilities);
                let properties = encode_table(&properties);
                self.put_method(
                    0,
                    connection::StartOk {
                        client_properties: RawTable::unchecked(&properties),
                        mechanism: "PLAIN",
                        response: b"\0guest\0guest",
                        locale: "en_US",
                    },
                );
            }
            Method::ConnectionTune(_) => {
                self.put_method(
                    0,
                    connection::TuneOk {
                        channel_max: 64,
                        frame_max: FRAME_MAX,
                        heartbeat: self.heartbeat_s,
                    },
                );
                self.put_method(
                    0,
                    connection::Open { virtual_host: "/", capabilities: "", insist: false },
                );
            }
            Method::ConnectionOpenOk(_) => {
                self.decoder.set_frame_max(FRAME_MAX);
                self.state = ConnectionState::Open;
            }
            // The operator's wish, or a disk that took no more; anything else would be our mistake.
            Method::ConnectionClose(close)
                if close.reply_code == 320
                    || matches!(close.reply_code, 506 | 541)
                        && (shadow.has_trouble || self.had_trouble) =>
            {
                if close.reply_code == 506 {
                    self.deletion_refused((close.class_id, close.method_id), shadow);
                }
                self.output.clear();
                self.channels.clear();
                self.put_method(0, connection::CloseOk {});
                self.state = ConnectionState::Answering;
            }
            Method::ConnectionClose(close) => {
                return Err(format!(
                    "client {} was closed: {} {}",
                    self.name, close.reply_code, close.reply_text
                ));
            }
            Method::ConnectionCloseOk(_) => {
                for channel in self.channels.values_mut() {
                    channel.everything_was_read(shadow);
                }
                self.channels.clear();
                self.state = ConnectionState::Closed;
            }
            Method::ConnectionBlocked(_) => self.set_blocked(true)?,
            Method::ConnectionUnblocked(_) => self.set_blocked(false)?,
            other => return Err(format!("client {}: {} on channel 0", self.name, other.name())),
        }
        Ok(())
    }

    /// A queue that was not to be deleted for want of room is there, if it is known which one.
    fn deletion_refused(&self, method: (u16, u16), shadow: &mut Shadow) {
        let asked: Vec<QueueIndex> =
            self.channels.values().filter_map(Channel::next_deletion).collect();
        if let (QUEUE_DELETE, &[queue]) = (method, &asked[..]) {
            shadow.keep(queue, QueueFate::Going, QueueFate::There);
        }
    }

    fn set_blocked(&mut self, blocked: bool) -> Check {
        if std::mem::replace(&mut self.is_blocked, blocked) == blocked {
            return Err(format!("client {} was told twice that blocked={blocked}", self.name));
        }
        Ok(())
    }

    /// The node with the queues has ended, and its own has not.
    pub(crate) fn outlives_its_leader(&mut self, shadow: &Shadow) {
        self.fleeting.clear();
        self.gone_before = shadow.queues.len();
        self.had_trouble |= shadow.has_trouble;
    }

    /// Takes what was sent of `close-ok` for the end.
    pub(crate) fn is_over(&self) -> bool {
        self.state == ConnectionState::Closed
            || self.state == ConnectionState::Answering && !self.has_output()
    }

    fn queue_declared(&mut self, name: &str, shadow: &Shadow) {
        let queue = shadow.queue(name).filter(|&queue| shadow.queues[queue].is_exclusive);
        if let Some(queue) = queue.filter(|queue| !self.fleeting.contains(queue)) {
            self.fleeting.push(queue);
        }
    }

    /// The broker closed a channel: only after a mistake that was made on purpose, when somebody else may
    /// have a queue for himself, when the client kept a delivery for too long, or when its queue's first consumer
    /// was read too late, as the process stood still.
    fn channel_closed(
        &mut self,
        number: u16,
        close: &channel_methods::Close<'_>,
        world: &mut World<'_>,
    ) -> Check {
        let (gone_before, had_trouble) = (self.gone_before, self.had_trouble);
        let channel = self.open_channel(number, "channel.close")?;
        let (code, text) = (close.reply_code, close.reply_text);
        let is_after = |ms| channel.opened.after_ms(ms) <= world.now;
        let kept_too_long = code == 406 && text.contains("timed out") && is_after(ACK_TIMEOUT_MS);
        let is_of_fleeting = code == 404 && text.contains("'fleeting-");
        let came_too_late = is_of_fleeting && is_after(EXPIRES_MS);
        let named = text.split('\'').nth(1).and_then(|name| world.shadow.queue(name));
        let is_gone = is_of_fleeting && named.is_some_and(|queue| queue < gone_before);
        let totals = &mut world.shadow.totals;
        if is_gone {
            totals.gone_with_leader += 1;
        } else if code == 403 && channel.may_be_refused() && !world.shadow.is_calm {
            totals.shut_out += 1;
        } else if kept_too_long || came_too_late {
            totals.timed_out += 1;
        } else if (world.shadow.has_trouble || had_trouble) && code == 506 {
            // The disk took no more.
        } else if channel.expects_close != Some(code) {
            let expected = channel.expects_close;
            return Err(format!(
                "channel {number} was closed: {code} {text}, expected {expected:?}"
            ));
        }
        let closes = channel.asks(&Awaited::Close);
        self.channels.remove(&number);
        // What was not sent yet would be for a channel that is gone. A close of our own is the last of it.
        let unsent = self.output.remove(&number).unwrap_or_default();
        if closes && unsent.is_empty() {
            self.half_closed.insert(number);
        }
        self.put_method(number, channel_methods::CloseOk {});
        Ok(())
    }
}

fn decode(payload: &[u8]) -> Check<Method<'_>> {
    Method::decode(payload).map_err(|error| format!("method: {error}"))
}

/// A table's wire bytes, without the length.
pub(crate) fn encode_table(table: &Table) -> Vec<u8> {
    table.to_bytes()
}
