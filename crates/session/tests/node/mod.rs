//! A node of real sessions, shards and the topology's owner, run by hand to quiescence.

#![allow(dead_code, reason = "each test binary uses a part")]

use std::io;
use std::sync::Arc;
use std::vec::Drain;

use bytes::Bytes;
use leveret_amqp::content::{ContentHeader, Properties};
use leveret_amqp::frame::{Decoder, Event};
use leveret_amqp::method::{Encode, Method, basic, channel, connection, queue};
use leveret_amqp::outbuf::OutBuf;
use leveret_amqp::table::{RawTable, Table, Value};
use leveret_broker::login::{Asked, Login};
use leveret_broker::message::*;
use leveret_broker::{Meta, Shard};
use leveret_log::MemoryLog;
use leveret_node::connection::{self as driven, Read, Written};
use leveret_node::{Inboxes, Run};
use leveret_queue::Time;
use leveret_session::{AwaitedBody, Context, End, Peer, Session, Settings};
use leveret_topology::{Bootstrap, GroupId, Homes, NodeId, PasswordHash, Topology};

pub(crate) const SHARDS: usize = 2;

/// One connection: a session and what its client sent and did not read yet.
pub(crate) struct Link {
    pub(crate) session: Session,
    pub(crate) out: OutBuf,
    inbox: Vec<ToSession>,
    /// Bytes that were read and that the session left.
    pub(crate) left: Bytes,
    /// Bytes that the client sent and that were not read.
    sent: Vec<u8>,
    /// How many bodies were read into memory of their own.
    pub(crate) bodies: usize,
    /// Queues that the messages of one turn went to, at most.
    pub(crate) most_queues: usize,
    /// Bytes for the client that it did not read, or that make no whole frame yet.
    pub(crate) partial: Vec<u8>,
    decoder: Decoder,
    /// The client reads nothing.
    pub(crate) is_stuck: bool,
    is_gone: bool,
    /// How the socket was closed.
    end: Option<End>,
}

pub(crate) struct Node {
    pub(crate) topology: Topology,
    meta: Meta<MemoryLog>,
    to_meta: Vec<ToMeta>,
    pub(crate) shards: Vec<Shard<MemoryLog>>,
    pub(crate) now: Time,
    /// Microseconds of the millisecond that `now` is.
    pub(crate) us: u64,
    pub(crate) links: Vec<Link>,
    pub(crate) settings: Settings,
    /// Largest read of a socket, in bytes.
    pub(crate) read_max: usize,
    /// The last one is of a group that has no shard here: letters to it stay.
    to_shards: [Vec<ToShard>; SHARDS + 1],
    /// Shards that have no turns.
    are_held: [bool; SHARDS],
}

/// What a client sent, to be read.
struct SocketReader<'a> {
    sent: &'a mut Vec<u8>,
    read_max: usize,
    bodies: &'a mut usize,
}

impl driven::ReadHalf for SocketReader<'_> {
    fn may_have_bytes(&self) -> bool {
        !self.sent.is_empty()
    }

    fn read(&mut self, session: &mut Session, input: &mut Bytes, cx: &mut Context<'_>) -> Read {
        let awaited = session.awaited_body();
        let is_whole = |body: &AwaitedBody| input.is_empty() && body.rest <= self.sent.len();
        if let Some(AwaitedBody { front, rest }) = awaited.filter(is_whole) {
            let mut record = vec![0; front];
            session.write_front(&mut record, cx.wall);
            record.extend(self.sent.drain(..rest));
            session.input_body(&record.into(), front, cx);
            *self.bodies += 1;
        }
        let count = self.sent.len().min(session.read_max().min(self.read_max));
        let mut bytes = input.to_vec();
        bytes.extend(self.sent.drain(..count));
        *input = bytes.into();
        Read::Some
    }

    fn goes_on(&mut self, _: &mut Session, _: &Context<'_>) -> bool {
        false
    }
}

/// Where a client reads.
struct SocketWriter<'a> {
    got: &'a mut Vec<u8>,
    is_stuck: bool,
}

impl driven::WriteHalf for SocketWriter<'_> {
    fn write(&mut self, out: &mut OutBuf) -> io::Result<()> {
        if !self.is_stuck {
            self.got.extend(out.take_rest());
        }
        Ok(())
    }
}

impl Link {
    /// The session takes its letters, and reads.
    fn read(&mut self, read_max: usize, cx: &mut Context<'_>) {
        let Self { session, inbox, left, sent, bodies, .. } = self;
        inbox.drain(..).for_each(|letter| session.receive(letter, cx));
        let mut reader = SocketReader { sent, read_max, bodies };
        self.is_gone = !driven::read(session, left, &mut reader, cx);
        let queues = cx.outbox.shards.iter().map(|(_, letter)| match letter {
            ToShard::Publish { messages, .. } => {
                messages.iter().map(|message| message.targets.len()).sum()
            }
            _ => 0,
        });
        self.most_queues = self.most_queues.max(queues.sum());
    }

    /// The client reads what was written, unless it is stuck.
    fn write(&mut self, out: &mut OutBuf, cx: &mut Context<'_>) {
        let mut writer = SocketWriter { got: &mut self.partial, is_stuck: self.is_stuck };
        let written = driven::write(&mut self.session, &mut writer, out, cx);
        if let Written::Over { end } = written {
            (self.is_gone, self.end) = (true, end);
        }
    }

    /// A turn has left some of what it read to the next.
    fn goes_on(&self) -> bool {
        let is_left = !self.is_gone && !self.left.is_empty();
        is_left && self.session.leaves_some() && self.session.wants_input()
    }

    /// Changes whenever a turn does something, but for a method for many that settles some more.
    fn waiting(&self) -> [usize; 4] {
        [self.inbox.len(), self.left.len(), self.sent.len(), self.out.len()]
    }
}

fn context<'a>(
    topology: &'a Topology,
    now: Time,
    us: u64,
    out: &'a mut OutBuf,
    outbox: &'a mut Outbox,
) -> Context<'a> {
    Context { topology, now, now_us: now.ms() * 1000 + us, wall: now, out, outbox }
}

/// The names that a node begins with, which knows so many groups.
pub(crate) fn names(groups: usize) -> Topology {
    let mut topology = Topology::new();
    topology.set_homes(Homes::among(groups as u32));
    topology
        .bootstrap(&Bootstrap {
            user: "guest",
            password: PasswordHash::new("guest", [1, 2, 3, 4]),
            tags: &["administrator"],
            vhost: "/",
            permissions: [".*"; 3],
        })
        .expect("a fresh topology");
    topology
}

impl Node {
    pub(crate) fn new() -> Self {
        let topology = names(SHARDS);
        let shards = (0..SHARDS).map(|index| Shard::new(GroupId::at(index), MemoryLog::default()));
        Self {
            topology,
            meta: Meta::new(MemoryLog::new()),
            shards: shards.collect(),
            now: Time::from_ms(1_000_000),
            us: 0,
            links: Vec::new(),
            settings: Settings::default(),
            read_max: 64 * 1024,
            to_meta: Vec::new(),
            to_shards: Default::default(),
            are_held: [false; SHARDS],
        }
    }

    /// Letters to this shard wait from now on.
    pub(crate) fn hold(&mut self, shard: usize) {
        self.are_held[shard] = true;
    }

    /// What waits for a shard that is held back.
    pub(crate) fn held(&self, shard: usize) -> &[ToShard] {
        &self.to_shards[shard]
    }

    /// A shard that was held back gets its letters.
    pub(crate) fn release(&mut self, shard: usize) {
        self.are_held[shard] = false;
        self.run(Outbox::default());
    }

    /// A socket was accepted.
    pub(crate) fn accept(&mut self, is_loopback: bool) -> usize {
        let id = NodeId::ALONE.connection(self.links.len() as u64);
        let peer = Peer {
            address: "127.0.0.1:40000".to_owned(),
            local: ([127, 0, 0, 1], 5672).into(),
            is_loopback,
            tls: None,
        };
        let settings = Arc::new(self.settings.clone());
        self.links.push(Link {
            session: Session::new(id, settings, peer, 42 + id.number(), self.now),
            out: OutBuf::new(),
            inbox: Vec::new(),
            left: Bytes::new(),
            sent: Vec::new(),
            bodies: 0,
            most_queues: 0,
            partial: Vec::new(),
            decoder: Decoder::new(0),
            is_stuck: false,
            is_gone: false,
            end: None,
        });
        self.links.len() - 1
    }

    /// A client that can do everything, logged in as guest on vhost "/".
    pub(crate) fn connect(&mut self) -> usize {
        self.connect_with(&["consumer_cancel_notify", "connection.blocked"], "\0guest\0guest", "/")
    }

    pub(crate) fn connect_with(
        &mut self,
        capabilities: &[&str],
        response: &str,
        vhost: &str,
    ) -> usize {
        let link = self.accept(true);
        self.bytes(link, b"AMQP\x00\x00\x09\x01");
        let start_ok = client_properties(capabilities);
        self.say(
            link,
            0,
            &connection::StartOk {
                client_properties: RawTable::unchecked(&start_ok),
                mechanism: "PLAIN",
                response: response.as_bytes(),
                locale: "en_US",
            },
        );
        let tune = connection::TuneOk { channel_max: 2047, frame_max: 131_072, heartbeat: 60 };
        self.say(link, 0, &tune);
        let open = connection::Open { virtual_host: vhost, capabilities: "", insist: false };
        assert_eq!(self.say(link, 0, &open), "0 connection.open-ok");
        link
    }

    /// A connected client with channel 1 open.
    pub(crate) fn client(&mut self) -> usize {
        let link = self.connect();
        self.open(link, 1);
        link
    }

    pub(crate) fn open(&mut self, link: usize, number: u16) {
        let opened = self.say(link, number, &channel::Open { out_of_band: "" });
        assert_eq!(opened, format!("{number} channel.open-ok"));
    }

    pub(crate) fn declare(&mut self, link: usize, name: &str) {
        let said = self.say(link, 1, &queue::Declare { queue: name, ..Default::default() });
        assert!(said.starts_with(&format!("1 queue.declare-ok {name} ")), "{said}");
    }

    /// The client sends a method; gives what it is answered, frame by frame, one per line.
    pub(crate) fn say(&mut self, link: usize, number: u16, method: &impl Encode) -> String {
        let mut out = OutBuf::new();
        out.put_method(number, method);
        self.bytes(link, &out.take_rest())
    }

    pub(crate) fn publish(&mut self, link: usize, exchange: &str, key: &str, body: &str) -> String {
        self.publish_with(link, exchange, key, body, &Properties::default(), false)
    }

    pub(crate) fn publish_with(
        &mut self,
        link: usize,
        exchange: &str,
        key: &str,
        body: &str,
        properties: &Properties,
        mandatory: bool,
    ) -> String {
        let bytes = publish_bytes(1, exchange, key, body.as_bytes(), properties, mandatory);
        self.bytes(link, &bytes)
    }

    /// The client sends bytes; gives what it is answered.
    pub(crate) fn bytes(&mut self, link: usize, bytes: &[u8]) -> String {
        self.links[link].sent.extend_from_slice(bytes);
        self.run(Outbox::default());
        self.read(link)
    }

    /// The client sends bytes, and its session has one turn.
    pub(crate) fn begin(&mut self, link: usize, bytes: &[u8]) {
        self.links[link].sent.extend_from_slice(bytes);
        self.run_link(link);
    }

    /// What the client was sent since it last read.
    pub(crate) fn read(&mut self, link: usize) -> String {
        let link = &mut self.links[link];
        let bytes = std::mem::take(&mut link.partial);
        let mut at = 0;
        let mut lines: Vec<String> = Vec::new();
        if bytes.starts_with(b"AMQP") {
            lines.push(format!("header {:?}", &bytes[4..8]));
            at = 8;
        }
        while let Some((event, used)) = link.decoder.next(&bytes[at..]).expect("well-formed output")
        {
            at += used;
            match event {
                Event::Method { channel, payload } => {
                    let method = Method::decode(payload).expect("a method");
                    lines.push(format!("{channel} {}", show(&method)));
                }
                Event::Header { payload, .. } => {
                    let header = ContentHeader::decode(payload).expect("a header");
                    let properties = header.properties.to_owned().expect("properties");
                    let line = lines.last_mut().expect("a method before");
                    if properties != Properties::default() {
                        line.push_str(&format!(" {{{}}}", show_properties(&properties)));
                    }
                    line.push_str(" =");
                }
                Event::Body { part, .. } => {
                    let line = lines.last_mut().expect("a header before");
                    line.push_str(&String::from_utf8_lossy(part));
                }
                Event::Heartbeat => lines.push("heartbeat".to_owned()),
            }
        }
        link.partial = bytes[at..].to_vec();
        lines.join("\n")
    }

    /// The topology's owner and everybody is told to do this.
    pub(crate) fn meta(&mut self, letter: ToMeta) {
        self.run(Outbox { meta: vec![letter], ..Outbox::default() });
    }

    pub(crate) fn letter(&mut self, link: usize, letter: ToSession) {
        let mut out = Outbox::default();
        out.session(NodeId::ALONE.connection(link as u64), letter);
        self.run(out);
    }

    /// The socket is gone.
    pub(crate) fn drop_link(&mut self, link: usize) {
        let mut outbox = Outbox::default();
        let Self { topology, now, us, links, .. } = self;
        let Link { session, out, .. } = &mut links[link];
        let mut cx = context(topology, *now, *us, out, &mut outbox);
        session.disconnected(&mut cx);
        links[link].is_gone = true;
        self.run(outbox);
    }

    pub(crate) fn ended(&self, link: usize) -> Option<End> {
        let link = &self.links[link];
        link.end.or_else(|| link.session.end())
    }

    /// Time passes; timers run when they are due.
    pub(crate) fn later(&mut self, ms: u64) {
        let end = self.now.after_ms(ms);
        loop {
            let open = self.links.iter().filter(|link| !link.is_gone);
            let next = open.filter_map(|link| link.session.next_timeout()).min();
            let Some(next) = next.filter(|&next| next <= end) else { break };
            self.now = self.now.max(next);
            let mut outbox = Outbox::default();
            for link in self.links.iter_mut().filter(|link| !link.is_gone) {
                if link.session.next_timeout().is_some_and(|due| due <= self.now) {
                    let Link { session, out, .. } = link;
                    let (now, us) = (self.now, self.us);
                    let mut cx = context(&self.topology, now, us, out, &mut outbox);
                    session.timeout(&mut cx);
                }
            }
            self.run(outbox);
        }
        self.now = end;
        let mut outbox = Outbox::default();
        for index in 0..SHARDS {
            outbox.shard(GroupId::at(index), ToShard::Continue);
        }
        self.run(outbox);
    }

    /// Runs everybody until nobody has anything to do.
    pub(crate) fn run(&mut self, outbox: Outbox) {
        self.post(outbox);
        loop {
            let mut moves = self.run_meta();
            for shard in 0..SHARDS {
                moves |= self.run_shard(shard);
            }
            for link in 0..self.links.len() {
                moves |= self.run_link(link);
            }
            if !moves {
                return;
            }
        }
    }

    fn post(&mut self, mut outbox: Outbox) {
        leveret_node::post(&mut outbox, self);
    }

    fn run_meta(&mut self) -> bool {
        let mut letters = std::mem::take(&mut self.to_meta);
        let mut outbox = Outbox::default();
        let moves = !letters.is_empty();
        if moves {
            self.meta.turn(&mut letters, &mut self.topology, &mut outbox);
        }
        self.post(outbox);
        moves
    }

    fn run_shard(&mut self, index: usize) -> bool {
        if self.are_held[index] || self.to_shards[index].is_empty() {
            return false;
        }
        let mut letters = std::mem::take(&mut self.to_shards[index]);
        let mut outbox = Outbox::default();
        if self.shards[index].turn(&mut letters, &self.topology, self.now, &mut outbox) {
            outbox.shard(GroupId::at(index), ToShard::Continue);
        }
        self.post(outbox);
        true
    }

    fn run_link(&mut self, index: usize) -> bool {
        let Self { topology, now, us, links, read_max, .. } = self;
        let link = &mut links[index];
        let before = link.waiting();
        let mut outbox = Outbox::default();
        if link.is_gone {
            let id = NodeId::ALONE.connection(index as u64);
            driven::undelivered(id, link.inbox.drain(..), &mut outbox);
        } else {
            let mut out = std::mem::take(&mut link.out);
            link.read(*read_max, &mut context(topology, *now, *us, &mut out, &mut outbox));
            link.out = out;
        }
        let mut moves = !outbox.is_empty();
        self.post(outbox);
        let Self { topology, now, us, links, .. } = self;
        let link = &mut links[index];
        let mut outbox = Outbox::default();
        if !link.is_gone {
            let (mut out, mut none) = (std::mem::take(&mut link.out), OutBuf::new());
            link.write(&mut out, &mut context(topology, *now, *us, &mut none, &mut outbox));
            link.out = out;
        }
        moves |= !outbox.is_empty() || link.waiting() != before || link.goes_on();
        self.post(outbox);
        moves
    }
}

impl Inboxes for Node {
    fn to_shard(&mut self, group: GroupId, letter: ToShard) -> usize {
        let inbox = &mut self.to_shards[group.index()];
        inbox.push(letter);
        inbox.len()
    }

    fn to_meta(&mut self, letters: Drain<'_, ToMeta>) {
        self.to_meta.extend(letters);
    }

    fn to_session(&mut self, id: ConnectionId, letters: &mut Run<'_, '_>) {
        let link = self.links.get_mut(id.number() as usize).filter(|link| !link.is_gone);
        if let Some(link) = link {
            link.inbox.extend(letters);
        }
    }

    fn login(&mut self, login: Login, outbox: &mut Outbox) {
        outbox.session(login.connection, login.answer(&self.topology));
    }

    fn asked(&mut self, asked: Asked) {
        unreachable!("no user is known elsewhere: {asked:?}");
    }

    fn events(&mut self, outbox: &mut Outbox) {
        // Nobody consumes them here.
        outbox.events.clear();
    }

    fn steps(&mut self, steps: &mut Vec<Step>) {
        steps.clear();
    }

    fn failed(&mut self, why: String) {
        panic!("the log failed: {why}");
    }
}

pub(crate) fn client_properties(capabilities: &[&str]) -> Vec<u8> {
    let mut table = Table::default();
    for name in capabilities {
        table.push(*name, Value::Bool(true));
    }
    let mut properties = Table::default();
    properties.push("product", Value::LongStr(b"test".to_vec()));
    properties.push("capabilities", Value::Table(table));
    properties.to_bytes()
}

pub(crate) fn publish_bytes(
    number: u16,
    exchange: &str,
    routing_key: &str,
    body: &[u8],
    properties: &Properties,
    mandatory: bool,
) -> Vec<u8> {
    let mut raw = Vec::new();
    properties.encode(&mut raw);
    let mut out = OutBuf::new();
    let publish = basic::Publish { exchange, routing_key, mandatory, ..Default::default() };
    out.put_method(number, &publish);
    out.put_header(number, 60, body.len() as u64, &raw);
    out.put_body(number, &Bytes::copy_from_slice(body), 131_072);
    out.take_rest()
}

fn show_properties(p: &Properties) -> String {
    let mut parts = Vec::new();
    if let Some(headers) = &p.headers {
        for (key, value) in headers.iter() {
            let value = match value {
                Value::LongStr(text) => String::from_utf8_lossy(text).into_owned(),
                Value::I64(number) => number.to_string(),
                other => format!("{other:?}"),
            };
            parts.push(format!("{key}={value}"));
        }
    }
    let fields = [
        ("reply-to", p.reply_to.clone()),
        ("correlation-id", p.correlation_id.clone()),
        ("expiration", p.expiration.clone()),
        ("user-id", p.user_id.clone()),
        ("mode", p.delivery_mode.map(|mode| mode.to_string())),
    ];
    parts.extend(fields.into_iter().filter_map(|(name, v)| Some(format!("{name}={}", v?))));
    parts.join(" ")
}

fn star(flag: bool, text: &'static str) -> &'static str {
    if flag { text } else { "" }
}

/// A method in one line, without what is of no interest to a test.
fn show(method: &Method<'_>) -> String {
    let rest = match method {
        Method::ConnectionStart(m) => format!(" {}", String::from_utf8_lossy(m.mechanisms)),
        Method::ConnectionTune(m) => format!(" {} {} {}", m.channel_max, m.frame_max, m.heartbeat),
        Method::ConnectionClose(m) => {
            format!(" {} {} ({}.{})", m.reply_code, m.reply_text, m.class_id, m.method_id)
        }
        Method::ChannelClose(m) => {
            format!(" {} {} ({}.{})", m.reply_code, m.reply_text, m.class_id, m.method_id)
        }
        Method::ConnectionBlocked(m) => format!(" {}", m.reason),
        Method::ChannelFlowOk(m) => format!(" {}", m.active),
        Method::QueueDeclareOk(m) => {
            format!(" {} {} {}", m.queue, m.message_count, m.consumer_count)
        }
        Method::QueuePurgeOk(m) => format!(" {}", m.message_count),
        Method::QueueDeleteOk(m) => format!(" {}", m.message_count),
        Method::BasicConsumeOk(m) => format!(" {}", m.consumer_tag),
        Method::BasicCancel(m) => format!(" {}", m.consumer_tag),
        Method::BasicCancelOk(m) => format!(" {}", m.consumer_tag),
        Method::BasicDeliver(m) => {
            let again = star(m.redelivered, " redelivered");
            let (tag, key) = (m.delivery_tag, m.routing_key);
            format!(" {} {tag}{again} '{}' {key}", m.consumer_tag, m.exchange)
        }
        Method::BasicGetOk(m) => {
            let again = star(m.redelivered, " redelivered");
            let (tag, key) = (m.delivery_tag, m.routing_key);
            format!(" {tag}{again} '{}' {key} left {}", m.exchange, m.message_count)
        }
        Method::BasicReturn(m) => {
            format!(" {} {} '{}' {}", m.reply_code, m.reply_text, m.exchange, m.routing_key)
        }
        Method::BasicAck(m) => format!(" {}{}", m.delivery_tag, star(m.multiple, "*")),
        Method::BasicNack(m) => format!(" {}{}", m.delivery_tag, star(m.multiple, "*")),
        _ => String::new(),
    };
    format!("{}{rest}", method.name())
}
