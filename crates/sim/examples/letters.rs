//! What a message costs by where its session is, in instructions: in the process of its shard, or of another node, whose letters go
//! by memory or as bytes. Bytes of clients in, bytes out, with confirms and acks; no threads, sockets or disks.
//!
//! `cargo build --profile fast -p leveret-sim --example letters`, then
//! `valgrind --tool=callgrind --toggle-collect='*publish*' target/fast/examples/letters WHERE BATCH MESSAGES`, or `'*consume*'`: the
//! count by the messages is what one costs. `WHERE` is `broker`, `memory` or `bytes`; `BATCH` messages come with one read.

#![allow(clippy::print_stdout, reason = "the result of the program")]

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::vec::Drain;

use bytes::Bytes;
use leveret_amqp::method::{Encode, basic, channel, confirm, connection, queue};
use leveret_amqp::outbuf::OutBuf;
use leveret_amqp::table::RawTable;
use leveret_broker::command::Answered;
use leveret_broker::flow::Alarm;
use leveret_broker::login::{Asked, Login};
use leveret_broker::message::{
    ConnectionId, FromLeader, LeaderTerms, NodeId, Outbox, ShardTerm, Step, ToLeader, ToMeta,
    ToSession, ToShard,
};
use leveret_broker::stream::{StreamClass, StreamNews};
use leveret_broker::{Meta, Shard};
use leveret_link::frame::Letter;
use leveret_link::letters::{read_from_leader, read_to_leader, write_from_leader, write_to_leader};
use leveret_link::payload::Writer;
use leveret_link::receiver::{Limits, Receiver};
use leveret_link::sender::Sender;
use leveret_log::MemoryLog;
use leveret_node::connection::{self as driven, Read, ReadHalf, WriteHalf};
use leveret_node::remote::{Heard, RemoteNode, RemoteShards, node_of};
use leveret_node::{Inboxes, KeptMax, Run, post};
use leveret_queue::Time;
use leveret_session::{Context, Peer, Session, Settings};
use leveret_topology::{Bootstrap, GroupId, Homes, PasswordHash, Topology};

const NOW: Time = Time::from_ms(1_700_000_000_000);
const HOMES: Homes = Homes::among(1);
const TERM: u64 = 1 << 32;

/// Bytes of a body.
const BODY: usize = 1024;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let place = arguments.next().unwrap_or_else(|| "broker".to_owned());
    let mut number = |or| arguments.next().and_then(|text| text.parse().ok()).unwrap_or(or);
    let (batch, messages): (usize, usize) = (number(10), number(1000));
    let mut world = World::new(match place.as_str() {
        "broker" => None,
        "memory" => Some(Remote::new(None)),
        "bytes" => Some(Remote::new(Some(Wires::new()))),
        _ => panic!("broker, memory or bytes"),
    });
    let (publisher, consumer) = (world.connect(), world.connect());
    world.call(publisher, &queue::Declare { queue: "q", durable: true, ..Default::default() });
    world.call(publisher, &confirm::Select { no_wait: false });
    publish_all(&mut world, publisher, batch, messages);
    world.call(consumer, &basic::Qos { prefetch_count: batch as u16, ..Default::default() });
    let consume = basic::Consume { queue: "q", consumer_tag: "c", ..Default::default() };
    world.call(consumer, &consume);
    consume_all(&mut world, consumer, batch, messages);
    println!("{messages} messages, {batch} a read");
}

#[inline(never)]
fn publish_all(world: &mut World, publisher: usize, batch: usize, messages: usize) {
    let mut out = OutBuf::new();
    let publish = basic::Publish { exchange: "", routing_key: "q", ..Default::default() };
    out.put_method(1, &publish);
    // Persistent.
    out.put_header(1, 60, BODY as u64, &[0x10, 0, 2]);
    out.put_body(1, &Bytes::from(vec![b'x'; BODY]), 131_072);
    let wire = out.take_rest().repeat(batch);
    for _ in 0..messages / batch {
        assert!(world.say(publisher, &wire) > 0, "a confirm");
    }
}

#[inline(never)]
fn consume_all(world: &mut World, consumer: usize, batch: usize, messages: usize) {
    let mut tag = 0_u64;
    for _ in 0..messages / batch {
        let mut wire = Vec::new();
        for _ in 0..batch {
            tag += 1;
            wire.extend([1, 0, 1, 0, 0, 0, 13, 0, 60, 0, 80]);
            wire.extend(tag.to_be_bytes());
            wire.extend([0, 0xce]);
        }
        let is_last = tag as usize + batch > messages;
        assert!(world.say(consumer, &wire) > 0 || is_last, "deliveries");
    }
}

/// A session and its client's socket.
struct Client {
    id: ConnectionId,
    session: Session,
    inbox: Vec<ToSession>,
    input: Bytes,
    socket: Socket,
    out: OutBuf,
}

#[derive(Default)]
struct Socket {
    sent: Vec<u8>,
    /// Bytes that came.
    got: usize,
}

impl ReadHalf for Socket {
    fn may_have_bytes(&self) -> bool {
        !self.sent.is_empty()
    }

    fn read(&mut self, _: &mut Session, input: &mut Bytes, _: &mut Context<'_>) -> Read {
        assert!(input.is_empty(), "whole frames are sent");
        *input = std::mem::take(&mut self.sent).into();
        Read::Some
    }

    fn goes_on(&mut self, _: &mut Session, _: &Context<'_>) -> bool {
        false
    }
}

impl WriteHalf for Socket {
    fn write(&mut self, out: &mut OutBuf) -> io::Result<()> {
        self.got += out.len();
        out.clear();
        Ok(())
    }
}

/// Both ends of the connection of a node of sessions.
struct Remote {
    shards: RemoteShards,
    node: Option<RemoteNode>,
    wires: Option<Wires>,
}

/// Letters there and back, as bytes.
struct Wires {
    up: Wire,
    down: Wire,
}

struct Wire {
    writer: Writer,
    sender: Sender,
    receiver: Receiver,
}

impl Wires {
    fn new() -> Self {
        Self { up: Wire::new(), down: Wire::new() }
    }
}

impl Wire {
    fn new() -> Self {
        let limits = Limits { letter: 1 << 30, unfinished: 1 << 30 };
        Self {
            writer: Writer::default(),
            sender: Sender::new(true),
            receiver: Receiver::new(true, limits),
        }
    }

    fn put(&mut self, letter: Letter) {
        self.sender.put(letter);
        self.sender.fill();
    }

    /// All bytes go over the wire: what comes of them.
    fn come(&mut self) -> Vec<Letter> {
        loop {
            self.sender.fill();
            let mut slices = [IoSlice::new(&[]); 64];
            let count = self.sender.slices(&mut slices);
            if count == 0 {
                break;
            }
            let buffer = self.receiver.buffer();
            slices[..count].iter().for_each(|slice| buffer.extend_from_slice(slice));
            let bytes = slices[..count].iter().map(|slice| slice.len()).sum();
            self.sender.advance(bytes);
        }
        std::iter::from_fn(|| self.receiver.next().expect("frames")).collect()
    }
}

impl Remote {
    fn new(wires: Option<Wires>) -> Self {
        let mut shards = RemoteShards::new(7, 0, HOMES, KeptMax::default());
        shards.begin(Vec::new());
        Self { shards, node: None, wires }
    }

    /// Letters for the node that leads.
    fn up(&mut self) -> Vec<ToLeader> {
        let letters = std::iter::from_fn(|| self.shards.send_next());
        let Some(Wires { up, .. }) = &mut self.wires else { return letters.collect() };
        for letter in letters {
            let letter = write_to_leader(&letter, &mut up.writer).expect("it travels");
            up.put(letter);
        }
        up.come().iter().map(|letter| read_to_leader(letter).expect("a letter")).collect()
    }

    /// Letters of the node that leads.
    fn down(&mut self) -> VecDeque<FromLeader> {
        let mut letters = VecDeque::new();
        if let Some(node) = &mut self.node {
            node.take_line(&mut letters);
        }
        let Some(Wires { down, .. }) = &mut self.wires else { return letters };
        for letter in letters {
            let letter = write_from_leader(&letter, &mut down.writer).expect("it travels");
            down.put(letter);
        }
        down.come().iter().map(|letter| read_from_leader(letter).expect("a letter")).collect()
    }
}

/// A node that leads, and one with sessions if these are elsewhere.
struct World {
    settings: Arc<Settings>,
    topology: Topology,
    meta: Meta<MemoryLog>,
    shard: Shard<MemoryLog>,
    to_meta: Vec<ToMeta>,
    to_shard: Vec<ToShard>,
    /// The shard's last turn had more to do.
    has_more: bool,
    clients: Vec<Client>,
    outbox: Outbox,
    remote: Option<Remote>,
    /// What the sessions' node writes, and not the one that leads.
    is_away: bool,
    /// The shard writes.
    writer: Option<GroupId>,
}

impl World {
    fn new(remote: Option<Remote>) -> Self {
        let mut topology = Topology::new();
        let bootstrap = Bootstrap {
            user: "guest",
            password: PasswordHash::new("guest", [1, 2, 3, 4]),
            tags: &["administrator"],
            vhost: "/",
            permissions: [".*", ".*", ".*"],
        };
        topology.bootstrap(&bootstrap).expect("an empty topology takes its first user");
        topology.set_homes(HOMES);
        let (mut meta, mut shard) =
            (Meta::new(MemoryLog::new()), Shard::new(HOMES.group_at(0), MemoryLog::new()));
        if remote.is_some() {
            meta.begin_term(1);
            shard.succeed(TERM, &[]);
        }
        let settings = Settings { allows_by_letters: remote.is_some(), ..Settings::default() };
        let mut world = Self {
            settings: Arc::new(settings),
            topology,
            meta,
            shard,
            to_meta: Vec::new(),
            to_shard: Vec::new(),
            has_more: true,
            clients: Vec::new(),
            outbox: Outbox::default(),
            remote,
            is_away: false,
            writer: None,
        };
        world.run();
        world
    }

    fn connect(&mut self) -> usize {
        let index = self.clients.len();
        let node = self.remote.as_ref().map_or(NodeId::ALONE, |_| node_of(7));
        let id = node.connection(index as u64 + 1);
        let (address, local) = ("127.0.0.1:40000".to_owned(), ([127, 0, 0, 1], 5672).into());
        let peer = Peer { address, local, is_loopback: true, tls: None };
        let session = Session::new(id, Arc::clone(&self.settings), peer, id.bits(), NOW);
        let (inbox, input, socket, out) = Default::default();
        self.clients.push(Client { id, session, inbox, input, socket, out });
        if let Some(remote) = &mut self.remote {
            remote.shards.opened(id);
        }
        let mut out = OutBuf::new();
        out.put_bytes(b"AMQP\x00\x00\x09\x01");
        let start_ok = connection::StartOk {
            client_properties: RawTable::unchecked(&[]),
            mechanism: "PLAIN",
            response: b"\0guest\0guest",
            locale: "en_US",
        };
        out.put_method(0, &start_ok);
        let tune = connection::TuneOk { channel_max: 2047, frame_max: 131_072, heartbeat: 0 };
        out.put_method(0, &tune);
        let open = connection::Open { virtual_host: "/", capabilities: "", insist: false };
        out.put_method(0, &open);
        out.put_method(1, &channel::Open { out_of_band: "" });
        assert!(self.say(index, &out.take_rest()) > 0);
        index
    }

    fn call(&mut self, client: usize, method: &impl Encode) {
        let mut out = OutBuf::new();
        out.put_method(1, method);
        assert!(self.say(client, &out.take_rest()) > 0, "an answer");
    }

    /// A client sends bytes, and everybody runs: how many bytes it got.
    fn say(&mut self, client: usize, bytes: &[u8]) -> usize {
        self.clients[client].socket.sent.extend(bytes);
        self.run();
        std::mem::take(&mut self.clients[client].socket.got)
    }

    fn run(&mut self) {
        while self.step() {}
    }

    /// Whether somebody had something to do.
    fn step(&mut self) -> bool {
        let mut has_done = false;
        for index in 0..self.clients.len() {
            has_done |= self.client_turn(index);
        }
        has_done |= self.letters_go();
        if !self.to_meta.is_empty() {
            has_done = true;
            self.meta.turn(&mut self.to_meta, &mut self.topology, &mut self.outbox);
            self.post();
        }
        if !self.to_shard.is_empty() || self.has_more {
            has_done = true;
            self.has_more =
                self.shard.turn(&mut self.to_shard, &self.topology, NOW, &mut self.outbox);
            self.writer = Some(HOMES.group_at(0));
            self.post();
            self.writer = None;
        }
        has_done | self.letters_come()
    }

    fn client_turn(&mut self, index: usize) -> bool {
        let Self { clients, topology, outbox, .. } = self;
        let Client { session, inbox, input, socket, out, .. } = &mut clients[index];
        if inbox.is_empty() && socket.sent.is_empty() {
            return false;
        }
        let now_us = NOW.ms() * 1000;
        let mut cx = Context { topology, now: NOW, now_us, wall: NOW, out, outbox };
        inbox.drain(..).for_each(|letter| session.receive(letter, &mut cx));
        assert!(driven::read(session, input, socket, &mut cx), "it stays");
        self.is_away = true;
        self.post();
        let Self { clients, topology, outbox, .. } = self;
        let Client { session, socket, out, .. } = &mut clients[index];
        let mut none = OutBuf::new();
        let mut cx = Context { topology, now: NOW, now_us, wall: NOW, out: &mut none, outbox };
        driven::write(session, socket, out, &mut cx);
        self.post();
        self.is_away = false;
        true
    }

    fn letters_go(&mut self) -> bool {
        let Some(remote) = &mut self.remote else { return false };
        let letters = remote.up();
        if letters.is_empty() {
            return false;
        }
        for letter in letters {
            match letter {
                ToLeader::Hello(hello) => {
                    let mut node = RemoteNode::new(&hello, HOMES).expect("its own sessions");
                    node.tell_names(1, true, Vec::new());
                    remote.node = Some(node);
                }
                ToLeader::NamesTaken(_) => {
                    let Some(node) = &mut remote.node else { continue };
                    let streams = StreamClass::BOTH.map(|class| node.stream(class));
                    let shard = ShardTerm {
                        group: HOMES.group_at(0),
                        begins_at: self.shard.end(),
                        streams: streams.map(|stream| self.shard.stream_place(stream)),
                    };
                    let terms = LeaderTerms { names: 1, shards: vec![shard] };
                    node.begins(None, terms, Alarm::default());
                }
                letter => {
                    let node = remote.node.as_mut().expect("it has said hello");
                    node.hear(letter, &mut self.outbox).expect("its own letter");
                }
            }
        }
        self.post();
        true
    }

    fn letters_come(&mut self) -> bool {
        let Some(remote) = &mut self.remote else { return false };
        let letters = remote.down();
        if letters.is_empty() {
            return false;
        }
        for letter in letters {
            if let Heard::Names(batch) =
                remote.shards.hear(letter, &mut self.outbox).expect("what a leader says")
            {
                remote.shards.names_taken(batch.number);
            }
        }
        self.is_away = true;
        self.post();
        self.is_away = false;
        true
    }

    fn post(&mut self) {
        let mut outbox = std::mem::take(&mut self.outbox);
        post(&mut outbox, self);
        self.outbox = outbox;
    }

    fn away(&mut self) -> Option<&mut RemoteShards> {
        let remote = self.remote.as_mut().filter(|_| self.is_away)?;
        Some(&mut remote.shards)
    }

    fn tell(&mut self, out: Outbox) {
        out.sessions.into_iter().for_each(|(id, letter)| self.inbox(id).push(letter));
    }

    fn inbox(&mut self, id: ConnectionId) -> &mut Vec<ToSession> {
        let client = self.clients.iter_mut().find(|it| it.id == id);
        &mut client.expect("it is there").inbox
    }

    fn tell_node(&mut self, letter: FromLeader) {
        let node = self.remote.as_mut().and_then(|remote| remote.node.as_mut());
        node.expect("it is here").tell(letter);
    }
}

impl Inboxes for World {
    fn to_shard(&mut self, group: GroupId, letter: ToShard) -> usize {
        let mut out = Outbox::default();
        match self.away() {
            Some(shards) => shards.to_shard(group, letter, &mut out),
            None => self.to_shard.push(letter),
        }
        self.tell(out);
        0
    }

    fn to_meta(&mut self, letters: Drain<'_, ToMeta>) {
        let mut out = Outbox::default();
        match self.away() {
            Some(shards) => letters.for_each(|letter| shards.to_meta(letter, &mut out)),
            None => self.to_meta.extend(letters),
        }
        self.tell(out);
    }

    fn to_session(&mut self, id: ConnectionId, letters: &mut Run<'_, '_>) {
        let (writer, is_away) = (self.writer, self.is_away);
        match self.remote.as_mut().and_then(|remote| remote.node.as_mut()) {
            Some(node) if !is_away => {
                letters.for_each(|letter| node.tell(FromLeader::Session(id, writer, letter)));
            }
            _ => self.inbox(id).extend(letters),
        }
    }

    fn login(&mut self, login: Login, outbox: &mut Outbox) {
        outbox.session(login.connection, login.answer(&self.topology));
    }

    fn asked(&mut self, asked: Asked) {
        unreachable!("no user is known elsewhere: {asked:?}");
    }

    fn events(&mut self, outbox: &mut Outbox) {
        outbox.events.clear();
    }

    fn steps(&mut self, steps: &mut Vec<Step>) {
        steps.clear();
    }

    fn news(&mut self, news: &mut Vec<(GroupId, StreamNews)>) {
        for (group, news) in news.drain(..) {
            self.tell_node(FromLeader::News(group, news));
        }
    }

    fn answers(&mut self, answers: &mut Vec<Answered>, _: &mut Outbox) {
        for answered in answers.drain(..) {
            self.tell_node(FromLeader::Answered(answered));
        }
    }

    fn failed(&mut self, why: String) {
        panic!("{why}");
    }
}
