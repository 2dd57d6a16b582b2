//! A session on a node, and its client.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use leveret_amqp::content::Properties;
use leveret_amqp::frame::{Decoder, Event};
use leveret_amqp::method::{Encode, Method, basic, channel, confirm, connection, tx};
use leveret_amqp::outbuf::OutBuf;
use leveret_amqp::table::RawTable;
use leveret_broker::message::{ConnectionId, Outbox, ToSession};
use leveret_node::connection::{self as driven, Read, ReadHalf, WriteHalf, Written};
use leveret_queue::Time;
use leveret_session::{Context, Peer, Session, Settings};
use leveret_topology::Topology;

use crate::traffic::{OWN, queue_name};

/// What a client waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    /// To be let in.
    In,
    Consume(usize),
    ConsumeToCommit,
    Cancel(usize),
    Qos,
    Get,
    DeclareExchange,
    DeleteExchange,
    DeclareQueue,
    DeleteQueue,
    /// One of its own, which goes with it.
    DeclareExclusive,
    /// Of that one.
    Bind,
    Unbind,
    /// Of another client's.
    UnbindOther,
    /// Whether somebody waits for direct replies.
    Asks,
    /// With the messages that it has acked.
    Commit,
    Nothing,
}

/// What a client read.
#[derive(Debug)]
pub(crate) enum Seen {
    In,
    Confirmed(u64),
    Refused(u64),
    /// A transaction: what was published in it, and what was acked.
    Committed(Transaction),
    Given {
        tag: HeldTag,
        /// Which it came from, if that has a number.
        queue: Option<usize>,
        redelivered: bool,
        body: Vec<u8>,
        reply_to: Option<String>,
        is_direct: bool,
    },
    Answer(&'static str),
    /// Its channel: it is to leave.
    Closed,
}

/// Messages by their numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Transaction {
    pub(crate) published: Vec<u64>,
    pub(crate) acked: Vec<u64>,
}

/// In each body, with the number of its message: nothing else on a disk has such bytes.
const BODY: u64 = 0xB0D1 << 48;

/// The body of a message.
pub(crate) fn body_of(number: u64) -> [u8; 8] {
    (BODY | number).to_le_bytes()
}

/// The number of the message with this body.
pub(crate) fn number_of(body: Vec<u8>) -> u64 {
    u64::from_le_bytes(body.try_into().expect("eight bytes")) ^ BODY
}

/// Where most of what a client does is,
pub(crate) const PLAIN: u16 = 1;
/// and where its transactions are.
pub(crate) const COMMITS: u16 = 3;

/// A message that a client has: the channel, and the tag there.
pub(crate) type HeldTag = (u16, u64);

pub(crate) struct Client {
    pub(crate) id: ConnectionId,
    session: Session,
    pub(crate) inbox: Vec<ToSession>,
    input: Bytes,
    /// Sent by the client and not read.
    pub(crate) sent: Vec<u8>,
    out: OutBuf,
    /// Written by the session and not read.
    got: Vec<u8>,
    decoder: Decoder,
    pub(crate) is_gone: bool,
    pub(crate) waits: Waits,
    next_confirm: u64,
    /// The messages that are not confirmed, by number of the confirm.
    pub(crate) unconfirmed: BTreeMap<u64, u64>,
    /// The messages that it has, by tag.
    pub(crate) held: BTreeMap<HeldTag, u64>,
    /// A transaction without an answer.
    pub(crate) commits: Transaction,
    /// Queues that it consumes from.
    pub(crate) consumes: Vec<usize>,
    /// It consumes what it acks in transactions.
    pub(crate) consumes_to_commit: bool,
    /// The one that it takes a message from.
    gets: Option<usize>,
    pub(crate) has_exchange: bool,
    pub(crate) has_queue: bool,
    /// Messages of that one.
    pub(crate) in_queue: Vec<u64>,
    pub(crate) has_exclusive: bool,
    /// It is bound to [`SHARED`].
    pub(crate) is_bound: bool,
    /// A delivery whose body is to come.
    coming: Option<Seen>,
    /// It reads nothing that counts.
    is_deaf: bool,
}

struct Socket<'a> {
    has_names: bool,
    sent: &'a mut Vec<u8>,
    got: &'a mut Vec<u8>,
}

impl ReadHalf for Socket<'_> {
    fn may_have_bytes(&self) -> bool {
        !self.sent.is_empty()
    }

    fn has_names(&self) -> bool {
        self.has_names
    }

    fn read(&mut self, _: &mut Session, input: &mut Bytes, _: &mut Context<'_>) -> Read {
        let mut bytes = input.to_vec();
        bytes.append(self.sent);
        *input = bytes.into();
        Read::Some
    }

    fn goes_on(&mut self, _: &mut Session, _: &Context<'_>) -> bool {
        false
    }
}

impl WriteHalf for Socket<'_> {
    fn write(&mut self, out: &mut OutBuf) -> io::Result<()> {
        self.got.extend(out.take_rest());
        Ok(())
    }
}

impl Client {
    pub(crate) fn new(id: ConnectionId, settings: &Arc<Settings>, now: Time) -> Self {
        let (address, local) = ("127.0.0.1:40000".to_owned(), ([127, 0, 0, 1], 5672).into());
        let peer = Peer { address, local, is_loopback: true, tls: None };
        Self {
            id,
            session: Session::new(id, Arc::clone(settings), peer, id.bits(), now),
            inbox: Vec::new(),
            input: Bytes::new(),
            sent: b"AMQP\x00\x00\x09\x01".to_vec(),
            out: OutBuf::new(),
            got: Vec::new(),
            decoder: Decoder::new(0),
            is_gone: false,
            waits: Waits::In,
            next_confirm: 1,
            unconfirmed: BTreeMap::new(),
            held: BTreeMap::new(),
            commits: Transaction::default(),
            consumes: Vec::new(),
            consumes_to_commit: false,
            gets: None,
            has_exchange: false,
            has_queue: false,
            in_queue: Vec::new(),
            has_exclusive: false,
            is_bound: false,
            coming: None,
            is_deaf: false,
        }
    }

    pub(crate) fn say(&mut self, number: u16, method: &impl Encode) {
        let mut out = OutBuf::new();
        out.put_method(number, method);
        self.sent.extend(out.take_rest());
    }

    pub(crate) fn is_free(&self) -> bool {
        self.waits == Waits::Nothing && !self.is_gone
    }

    /// Publishes through an exchange, the default one if it has no name.
    fn put(&mut self, channel: u16, (exchange, key): (&str, &str), body: u64, with: &Properties) {
        let mut raw = Vec::new();
        with.encode(&mut raw);
        let mut out = OutBuf::new();
        let publish = basic::Publish { exchange, routing_key: key, ..Default::default() };
        out.put_method(channel, &publish);
        out.put_header(channel, 60, 8, &raw);
        out.put_body(channel, &Bytes::copy_from_slice(&body_of(body)), 131_072);
        self.sent.extend(out.take_rest());
    }

    /// A message that nobody confirms.
    pub(crate) fn publish_transient(&mut self, to: (&str, &str), body: u64) {
        self.put(2, to, body, &Properties { delivery_mode: Some(1), ..Default::default() });
    }

    /// A persistent message. With `counts` it is one of those that are counted.
    pub(crate) fn publish(
        &mut self,
        to: (&str, &str),
        body: u64,
        reply_to: Option<&str>,
        counts: bool,
    ) {
        let reply_to = reply_to.map(str::to_owned);
        self.put(
            1,
            to,
            body,
            &Properties { delivery_mode: Some(2), reply_to, ..Default::default() },
        );
        let number = self.next_confirm;
        self.next_confirm += 1;
        self.unconfirmed.insert(number, if counts { body } else { u64::MAX });
    }

    /// Publishes these messages, each to its queue, and acks what it has: all or nothing of that.
    pub(crate) fn commit(&mut self, messages: &[(String, u64)], acks: &[HeldTag]) {
        for (queue, number) in messages {
            let with = Properties { delivery_mode: Some(2), ..Default::default() };
            self.put(COMMITS, ("", queue), *number, &with);
        }
        for (_, delivery_tag) in acks.iter().copied() {
            self.say(COMMITS, &basic::Ack { delivery_tag, multiple: false });
        }
        self.say(COMMITS, &tx::Commit);
        let acked = acks.iter().filter_map(|tag| self.held.remove(tag)).collect();
        let published = messages.iter().map(|it| it.1).collect();
        self.commits = Transaction { published, acked };
        self.waits = Waits::Commit;
    }

    /// Takes messages of the queue from now on, one after the other, to be acked in transactions.
    pub(crate) fn consume_to_commit(&mut self, queue: usize) {
        let (queue, consumer_tag) = (&*queue_name(queue), &*format!("c{queue}"));
        self.say(COMMITS, &basic::Consume { queue, consumer_tag, ..Default::default() });
        self.waits = Waits::ConsumeToCommit;
    }

    /// Takes a message, to be acked in a transaction if it is to.
    pub(crate) fn get(&mut self, queue: usize, commits: bool) {
        let channel = if commits { COMMITS } else { 1 };
        self.say(channel, &basic::Get { ticket: 0, queue: &queue_name(queue), no_ack: false });
        (self.waits, self.gets) = (Waits::Get, Some(queue));
    }

    /// Takes a message of a queue that has no number.
    pub(crate) fn get_of(&mut self, queue: &str) {
        self.say(1, &basic::Get { ticket: 0, queue, no_ack: false });
        (self.waits, self.gets) = (Waits::Get, None);
    }

    /// Takes messages of this queue from now on.
    pub(crate) fn consume(&mut self, index: usize, queue: &str) {
        let consumer_tag = &*format!("c{index}");
        self.say(1, &basic::Consume { queue, consumer_tag, ..Default::default() });
        self.waits = Waits::Consume(index);
    }

    /// One of the messages that it can ack in a transaction alone.
    pub(crate) fn is_to_commit((channel, _): HeldTag) -> bool {
        channel == COMMITS
    }

    /// Whether a turn of the session without letters would do nothing.
    pub(crate) fn is_idle(&self, now: Time) -> bool {
        let has_input = !self.sent.is_empty() || !self.input.is_empty();
        !has_input && self.session.next_timeout().is_none_or(|at| at > now)
    }

    /// Whether there is something to [read](Self::read).
    pub(crate) fn has_output(&self) -> bool {
        !self.got.is_empty()
    }

    /// A turn of the session: letters, a read and a write. `letters` of them are there; `has_names`: what is read may be taken.
    pub(crate) fn turn(
        &mut self,
        letters: usize,
        (topology, has_names): (&Topology, bool),
        now: Time,
        outbox: &mut Outbox,
    ) {
        let taken: Vec<ToSession> = self.inbox.drain(..letters).collect();
        if self.is_gone {
            return driven::undelivered(self.id, taken.into_iter(), outbox);
        }
        let Self { session, input, sent, got, out, .. } = self;
        let mut cx = Context { topology, now, now_us: now.ms() * 1000, wall: now, out, outbox };
        taken.into_iter().for_each(|letter| session.receive(letter, &mut cx));
        if session.next_timeout().is_some_and(|at| at <= now) {
            session.timeout(&mut cx);
        }
        let mut socket = Socket { has_names, sent, got };
        if !driven::read(session, input, &mut socket, &mut cx) {
            self.is_gone = true;
            return;
        }
        let mut none = OutBuf::new();
        let mut cx =
            Context { topology, now, now_us: now.ms() * 1000, wall: now, out: &mut none, outbox };
        if let Written::Over { .. } = driven::write(session, &mut socket, out, &mut cx) {
            self.is_gone = true;
        }
    }

    /// The socket is gone.
    pub(crate) fn leaves(&mut self, topology: &Topology, now: Time, outbox: &mut Outbox) {
        let out = &mut self.out;
        let mut cx = Context { topology, now, now_us: now.ms() * 1000, wall: now, out, outbox };
        self.session.disconnected(&mut cx);
        self.is_gone = true;
    }

    /// Nobody listens to the client any more.
    pub(crate) fn is_forgotten(&mut self) {
        self.unconfirmed.clear();
        self.held.clear();
        self.commits = Transaction::default();
        self.is_deaf = true;
    }

    pub(crate) fn describe(&self) -> String {
        format!(
            "{} gone={} waits={:?} unconfirmed={:?} held={:?} wants_input={} sent={} consumes={:?}",
            self.id,
            self.is_gone,
            self.waits,
            self.unconfirmed,
            self.held,
            self.session.wants_input(),
            self.sent.len(),
            self.consumes,
        )
    }

    /// The client reads all that is there.
    pub(crate) fn read(&mut self) -> Vec<Seen> {
        let bytes = std::mem::take(&mut self.got);
        if self.is_deaf {
            return Vec::new();
        }
        let (mut at, mut seen) = (0, Vec::new());
        loop {
            let mut decoder = std::mem::replace(&mut self.decoder, Decoder::new(0));
            let next = decoder.next(&bytes[at..]).expect("frames");
            let Some((event, used)) = next else {
                self.decoder = decoder;
                break;
            };
            at += used;
            match event {
                Event::Method { channel, payload, .. } => {
                    let method = Method::decode(payload).expect("a method");
                    self.method(channel, &method, &mut seen);
                }
                Event::Header { payload, .. } => {
                    let header =
                        leveret_amqp::content::ContentHeader::decode(payload).expect("a header");
                    let properties = header.properties.to_owned().expect("properties");
                    if let Some(Seen::Given { reply_to, .. }) = &mut self.coming {
                        *reply_to = properties.reply_to.clone();
                    }
                }
                Event::Body { part, .. } => {
                    let Some(Seen::Given { body, .. }) = &mut self.coming else {
                        panic!("a body of nothing");
                    };
                    body.extend_from_slice(part);
                    if body.len() == 8 {
                        seen.extend(self.coming.take());
                    }
                }
                Event::Heartbeat => {}
            }
            self.decoder = decoder;
        }
        self.got = bytes[at..].to_vec();
        seen
    }

    fn answered(&mut self, waits: &[Waits], name: &'static str, seen: &mut Vec<Seen>) {
        assert!(waits.contains(&self.waits), "{name}, and it waits for {:?}", self.waits);
        seen.push(Seen::Answer(name));
    }

    /// What became of messages, up to this one or of it alone.
    fn told(&mut self, tag: u64, multiple: bool, what: fn(u64) -> Seen, seen: &mut Vec<Seen>) {
        let first = match multiple {
            true => self.unconfirmed.first_key_value().map_or(0, |(first, _)| *first),
            false => tag,
        };
        for number in first..=tag {
            if let Some(message) = self.unconfirmed.remove(&number) {
                seen.push(what(message));
            } else {
                assert!(multiple, "{number} is told of twice");
            }
        }
    }

    fn method(&mut self, channel: u16, method: &Method<'_>, seen: &mut Vec<Seen>) {
        let given = |tag, queue, redelivered, is_direct| {
            let (tag, body, reply_to) = ((channel, tag), Vec::new(), None);
            Some(Seen::Given { tag, queue, redelivered, body, reply_to, is_direct })
        };
        match method {
            Method::ConnectionStart(_) => {
                let empty = leveret_amqp::table::Table::default().to_bytes();
                self.say(
                    0,
                    &connection::StartOk {
                        client_properties: RawTable::unchecked(&empty),
                        mechanism: "PLAIN",
                        response: b"\0guest\0guest",
                        locale: "en_US",
                    },
                );
            }
            Method::ConnectionTune(_) => {
                self.say(
                    0,
                    &connection::TuneOk { channel_max: 2047, frame_max: 131_072, heartbeat: 0 },
                );
                self.say(
                    0,
                    &connection::Open { virtual_host: "/", capabilities: "", insist: false },
                );
            }
            Method::ConnectionOpenOk(_) => {
                self.say(1, &channel::Open { out_of_band: "" });
                self.say(1, &confirm::Select { no_wait: false });
                self.say(2, &channel::Open { out_of_band: "" });
                self.say(COMMITS, &channel::Open { out_of_band: "" });
                self.say(COMMITS, &tx::Select);
                self.say(COMMITS, &basic::Qos { prefetch_count: 1, ..Default::default() });
            }
            Method::ChannelOpenOk(_) | Method::TxSelectOk(_) => {}
            Method::TxCommitOk(_) => {
                self.answered(&[Waits::Commit], "commit", seen);
                self.waits = Waits::Nothing;
                seen.push(Seen::Committed(std::mem::take(&mut self.commits)));
            }
            Method::ConfirmSelectOk(_) => {
                assert_eq!(self.waits, Waits::In);
                self.waits = Waits::Nothing;
                seen.push(Seen::In);
            }
            Method::BasicAck(ack) => {
                self.told(ack.delivery_tag, ack.multiple, Seen::Confirmed, seen);
            }
            Method::BasicNack(nack) => {
                self.told(nack.delivery_tag, nack.multiple, Seen::Refused, seen);
            }
            Method::BasicDeliver(it) => {
                let is_direct = it.consumer_tag == "direct";
                let queue = it.consumer_tag.strip_prefix('c').and_then(|it| it.parse().ok());
                self.coming = given(it.delivery_tag, queue, it.redelivered, is_direct);
            }
            Method::BasicGetOk(it) => {
                self.answered(&[Waits::Get], "got", seen);
                self.waits = Waits::Nothing;
                self.coming = given(it.delivery_tag, self.gets, it.redelivered, false);
            }
            Method::BasicGetEmpty(_) => {
                self.answered(&[Waits::Get], "nothing", seen);
                self.waits = Waits::Nothing;
            }
            Method::BasicQosOk(_) if channel == COMMITS => {}
            Method::BasicQosOk(_) => {
                self.answered(&[Waits::Qos], "qos", seen);
                self.waits = Waits::Nothing;
            }
            Method::BasicConsumeOk(_) if channel == COMMITS => {
                self.answered(&[Waits::ConsumeToCommit], "consume", seen);
                (self.consumes_to_commit, self.waits) = (true, Waits::Nothing);
            }
            Method::BasicConsumeOk(_) => {
                let Waits::Consume(queue) = self.waits else { panic!("{:?}", self.waits) };
                self.consumes.push(queue);
                self.waits = Waits::Nothing;
                seen.push(Seen::Answer("consume"));
            }
            Method::BasicCancelOk(_) => {
                let Waits::Cancel(queue) = self.waits else { panic!("{:?}", self.waits) };
                self.consumes.retain(|it| *it != queue);
                self.waits = Waits::Nothing;
                seen.push(Seen::Answer("cancel"));
            }
            Method::ExchangeDeclareOk(_) => {
                self.answered(&[Waits::DeclareExchange], "declare exchange", seen);
                (self.has_exchange, self.waits) = (true, Waits::Nothing);
            }
            Method::ExchangeDeleteOk(_) => {
                self.answered(&[Waits::DeleteExchange], "delete exchange", seen);
                (self.has_exchange, self.waits) = (false, Waits::Nothing);
            }
            Method::QueueDeclareOk(_) if self.waits == Waits::Asks => {
                self.answered(&[Waits::Asks], "asked", seen);
                self.waits = Waits::Nothing;
            }
            Method::QueueDeclareOk(_) if self.waits == Waits::DeclareExclusive => {
                self.answered(&[Waits::DeclareExclusive], "declare exclusive", seen);
                (self.has_exclusive, self.waits) = (true, Waits::Nothing);
            }
            Method::QueueBindOk(_) => {
                self.answered(&[Waits::Bind], "bind", seen);
                (self.is_bound, self.waits) = (true, Waits::Nothing);
            }
            Method::QueueUnbindOk(_) if self.waits == Waits::UnbindOther => {
                self.answered(&[Waits::UnbindOther], "unbind other", seen);
                self.waits = Waits::Nothing;
            }
            Method::QueueUnbindOk(_) => {
                self.answered(&[Waits::Unbind], "unbind", seen);
                (self.is_bound, self.waits) = (false, Waits::Nothing);
            }
            Method::QueueDeclareOk(_) => {
                self.answered(&[Waits::DeclareQueue], "declare queue", seen);
                (self.has_queue, self.waits) = (true, Waits::Nothing);
            }
            Method::QueueDeleteOk(_) => {
                self.answered(&[Waits::DeleteQueue], "delete queue", seen);
                (self.has_queue, self.waits) = (false, Waits::Nothing);
            }
            Method::ChannelClose(close) => {
                let code = match self.waits {
                    Waits::UnbindOther => 405,
                    // Somebody's own queue, which goes; or whoever was to get direct replies has left.
                    Waits::Consume(OWN..) | Waits::Asks => 404,
                    _ => panic!("{} is told {close:?}, and waits for {:?}", self.id, self.waits),
                };
                assert_eq!(close.reply_code, code, "{}", close.reply_text);
                self.say(1, &channel::CloseOk);
                seen.push(Seen::Closed);
            }
            other => panic!("{} is told {other:?}, and waits for {:?}", self.id, self.waits),
        }
    }
}
