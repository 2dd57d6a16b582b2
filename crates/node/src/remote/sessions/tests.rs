use leveret_broker::message::{ConsumerSlot, Message, Publish, Span};

use super::*;
use crate::remote::{REPLIES_MAX, REPLY_BYTES};

const HOMES: Homes = Homes::among(2);
const GROUP: GroupId = GroupId::new(1);

fn hello(raft_id: u64, start: u32, attaches: bool) -> SessionsHello {
    let attaches = attaches.then_some(1);
    let connections = vec![node_of(raft_id).connection(1)];
    SessionsHello { raft_id, start, attaches, connections, queues: Vec::new() }
}

fn numbered(start: u32, class: StreamClass, letter: ToShard) -> ToLeader {
    let stream = StreamId { node: node_of(5), start, class };
    let numbered = Numbered {
        stream,
        number: 1,
        term: u64::MAX,
        heard_below: 1,
        undecided_from: 1,
        is_again: false,
        letter,
    };
    ToLeader::Shard(GROUP, ToShard::Numbered(Box::new(numbered)))
}

fn settle(from: ConnectionId, offsets: &[u64]) -> ToShard {
    let settlements = offsets.iter().map(|&offset| Settlement {
        queue: QueueId::new(0),
        unacked: UnackedId::new(0),
        offset: Offset::new(offset),
        how: Settle::Ack,
    });
    ToShard::Settle { from, settlements: settlements.collect() }
}

fn delivery(offset: u64) -> Delivery {
    Delivery {
        slot: ConsumerSlot(0),
        queue: QueueId::new(0),
        home: GROUP,
        unacked: Some(UnackedId::new(9)),
        offset: Offset::new(offset),
        redelivered: false,
        delivery_count: 0,
        record: Default::default(),
    }
}

#[test]
fn letters_that_are_not_its_own_are_refused() {
    let mut node = RemoteNode::new(&hello(5, 2, false), HOMES).expect("a node");
    let (own, other) = (node_of(5).connection(1), NodeId::ALONE.connection(1));
    let (bodies, acks) = (StreamClass::Bodies, StreamClass::Acks);
    let publish = |from| ToShard::Publish { from, messages: Vec::<Publish>::new() };
    let cancel = |connection| ToShard::Cancel {
        user: "".into(),
        reply: None,
        connection,
        queue: QueueId::new(0),
        slot: ConsumerSlot(0),
    };
    let command = |node: NodeId, start, connection| {
        let stream = CommandStream { node, start };
        let command = Some(ToMeta::Disconnected { connection, reply: None });
        let numbered = NumberedCommand { stream, term: 1, number: 1, kept_from: 1, command };
        ToLeader::Meta(ToMeta::Numbered(Box::new(numbered)))
    };
    let asks = |connection| {
        let reply = ReplyTo { connection, channel: 1 };
        ToLeader::Session(other, ToSession::DirectReplyAsked { reply, channel: 1, token: 1 })
    };
    let rows = [
        (true, ToLeader::Opened(own)),
        (false, ToLeader::Opened(other)),
        (false, ToLeader::Opened(node_of(5).connection(0))),
        (false, ToLeader::Ended(other)),
        (false, ToLeader::Hello(hello(5, 2, false))),
        (true, numbered(2, bodies, publish(own))),
        (false, numbered(2, bodies, publish(other))),
        (false, numbered(1, bodies, publish(own))),
        (false, numbered(2, acks, publish(own))),
        (true, numbered(2, acks, settle(own, &[1]))),
        (false, numbered(2, acks, settle(other, &[1]))),
        (false, numbered(2, acks, cancel(own))),
        (true, ToLeader::Shard(GROUP, cancel(own))),
        (false, ToLeader::Shard(GROUP, cancel(other))),
        (false, ToLeader::Shard(GroupId::new(2), cancel(own))),
        (false, ToLeader::Shard(GROUP, publish(own))),
        (false, ToLeader::Shard(GROUP, ToShard::LogWoke)),
        (true, command(node_of(5), 2, own)),
        (false, command(node_of(5), 2, other)),
        (false, command(node_of(5), 1, own)),
        (false, command(NodeId::ALONE, 2, own)),
        (false, ToLeader::Meta(ToMeta::Continue)),
        (true, asks(own)),
        (false, asks(other)),
        (false, ToLeader::Session(other, ToSession::Stopped)),
    ];
    for (is_right, letter) in rows {
        let text = format!("{letter:?}");
        let mut out = Outbox::default();
        let heard = node.hear(letter, &mut out);
        assert_eq!(heard.is_ok(), is_right, "{text}");
        assert!(is_right || out.is_empty(), "{text} is done all the same");
    }
}

/// What its sessions have not settled goes back, behind the ends of all their consumers.
#[test]
fn what_a_node_leaves_goes_back() {
    let mut node = RemoteNode::new(&hello(5, 2, false), HOMES).expect("a node");
    let (one, two) = (node_of(5).connection(1), node_of(5).connection(2));
    let mut out = Outbox::default();
    node.hear(ToLeader::Opened(two), &mut out).expect("its own");
    let given = |id, offsets: &[u64]| {
        let deliveries = offsets.iter().map(|offset| delivery(*offset)).collect();
        FromLeader::Session(id, Some(GROUP), ToSession::Deliver(deliveries))
    };
    node.tell(given(one, &[1, 2, 3]));
    node.tell(given(two, &[4]));
    let got = Reply::Got { delivery: delivery(5), remaining: 0 };
    let reply = ToSession::Reply { channel: 1, reply: got };
    node.tell(FromLeader::Session(two, Some(GROUP), reply));
    node.hear(numbered(2, StreamClass::Acks, settle(one, &[2, 3])), &mut out).expect("its own");
    let reply = ReplyTo { connection: NodeId::ALONE.connection(7), channel: 3 };
    let asked = ToSession::DirectReplyAsked { reply, channel: 1, token: 1 };
    node.tell(FromLeader::Session(one, None, asked));
    assert_eq!(node.held(), 3);

    let terms = LeaderTerms { names: 1, shards: Vec::new() };
    assert!(node.begins(None, terms.clone(), Alarm::default()));
    assert!(!node.begins(None, terms, Alarm::default()), "it is told once");
    let mut out = Outbox::default();
    node.gone(&mut out);
    let words = out.shards.iter().map(|(group, letter)| match letter {
        ToShard::Disconnected { connection, .. } => {
            format!("{} {}", group.get(), connection.number())
        }
        ToShard::Settle { from, settlements } => {
            let offsets: Vec<u64> = settlements.iter().map(|it| it.offset.get()).collect();
            format!("{} {} {offsets:?}", group.get(), from.number())
        }
        other => panic!("{other:?}"),
    });
    let words: Vec<String> = words.collect();
    assert_eq!(words, ["0 1", "1 1", "0 2", "1 2", "1 1 [1]", "1 2 [4, 5]"]);
    assert_eq!(out.meta.len(), 2);
    let answer = out.sessions.pop();
    assert!(matches!(
        answer,
        Some((id, ToSession::Reply { channel: 3, reply: Reply::Gone })) if id == reply.connection
    ));
}

/// What was about to be given to a process before it comes to the next one, which may end before it is heard.
#[test]
fn what_came_to_one_that_is_not_heard_goes_back() {
    let mut node = RemoteNode::new(&hello(5, 2, false), HOMES).expect("a node");
    let before = node_of(5).connection(9);
    let deliveries = ToSession::Deliver(vec![delivery(4)]);
    node.tell(FromLeader::Session(before, Some(GROUP), deliveries));
    let mut out = Outbox::default();
    node.gone(&mut out);
    let [(group, ToShard::Settle { from, settlements })] = &out.shards[..] else {
        panic!("{:?}", out.shards)
    };
    assert_eq!((*group, *from, settlements.len()), (GROUP, before, 1));
    assert!(out.meta.is_empty(), "nobody knows its sessions");
}

/// As many direct replies wait for a node as fit, in memory of their own.
#[test]
fn direct_replies_have_a_bound() {
    let mut node = RemoteNode::new(&hello(5, 2, false), HOMES).expect("a node");
    let to = node_of(5).connection(1);
    let read = Bytes::from(vec![0; 1 << 20]);
    let reply = |len: usize| {
        let body = Span::new(0, len);
        let (names, properties) = (Span::new(0, 0), Span::new(0, 0));
        let message = Message::new(read.clone(), names, properties, body, Vec::new());
        FromLeader::Session(to, None, ToSession::DirectReply { channel: 1, token: 5, message })
    };
    let fits = REPLIES_MAX / (1 + REPLY_BYTES) + 1;
    (0..=fits).for_each(|_| node.tell(reply(1)));
    assert_eq!(node.lost_replies(), 1);
    assert!(node.begins_to_lose_replies() && !node.begins_to_lose_replies(), "it is told once");
    assert!(read.is_unique(), "replies that wait keep a read");
    let mut line = VecDeque::new();
    node.take_line(&mut line);
    assert_eq!(line.len() as u64, fits);
    node.tell(reply(100 << 10));
    assert!(read.is_unique(), "one that is much shorter than a read keeps all of it");
    node.take_line(&mut VecDeque::new());
    let long = || {
        let message = Message::from_parts(b"", b"", &vec![0; REPLIES_MAX as usize]);
        FromLeader::Session(to, None, ToSession::DirectReply { channel: 1, token: 5, message })
    };
    node.tell(long());
    node.tell(long());
    assert_eq!(node.lost_replies(), 2, "a long one is taken where nothing waits");
    assert!(node.send_next().is_some());
    node.tell(long());
    assert_eq!(node.lost_replies(), 2);
}

#[test]
fn names_are_told_in_parts() {
    let mut node = RemoteNode::new(&hello(5, 2, false), HOMES).expect("a node");
    let key = leveret_topology::EntityKey::Ids;
    let change = Change { key, is_stored: true, record: Some(vec![0; 1 << 10].into()) };
    assert!(!node.has_names());
    node.tell_names(1, true, vec![change.clone(); 300]);
    assert!(node.has_names());
    node.tell_names(2, false, vec![change]);
    let told = std::iter::from_fn(|| node.send_next());
    let parts = told.map(|letter| match letter {
        FromLeader::Names(it) => (it.number, it.is_whole, it.goes_on, it.changes.len()),
        other => panic!("{other:?}"),
    });
    let want =
        [(1, true, true, 128), (1, true, true, 128), (1, true, false, 44), (2, false, false, 1)];
    assert_eq!(parts.collect::<Vec<_>>(), want);
}
