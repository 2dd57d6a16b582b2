//! Whoever connects to the cluster's port, and peers that do not behave.

use std::net::SocketAddr;

use leveret_link::frame::{Class, Envelope, Kind, Letter};
use leveret_link::hello::MESSAGE_MAX;
use leveret_link::payload::Payload;
use leveret_link::sender::Sender;
use leveret_topology::GroupId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::buffers::Buffers;

/// Says hello as a node would.
async fn shake(
    address: SocketAddr,
    (name, id): (&str, u64),
    urgency: Urgency,
    secret: &[u8],
) -> (TcpStream, Result<Peer, NoLink>) {
    let mut socket = TcpStream::connect(address).await.unwrap();
    let own = NodeFacts { name: name.into(), cluster: None, raft_id: RaftId(id), start: 1 };
    let secret = Secret::new(secret).unwrap();
    let mut call = Handshake::call(own, urgency, secret, None, rand::random(), wall_ms());
    loop {
        socket.write_all(&call.take_output()).await.unwrap();
        if let Some(outcome) = call.outcome() {
            return (socket, outcome.clone());
        }
        let mut bytes = vec![0; call.wants()];
        let count = socket.read(&mut bytes).await.unwrap();
        assert!(count > 0, "closed");
        call.input(&bytes[..count], wall_ms(), &Known(vec![]));
    }
}

/// Both connections of a node called `a@x`.
async fn link(address: SocketAddr) -> [TcpStream; 2] {
    let mut both = Vec::new();
    for urgency in [Urgency::Urgent, Urgency::Bulk] {
        let (socket, outcome) = shake(address, ("a@x", 1), urgency, SECRET).await;
        outcome.unwrap();
        both.push(socket);
    }
    both.try_into().unwrap()
}

/// A node called `b@x`, which waits for `a@x`, and its address.
fn node(times: Times) -> (LinkedNode, SocketAddr) {
    let place = NodePlace::new("b@x", 2);
    let address = place.listener.local_addr().unwrap();
    let a = PeerAddress { name: "a@x".to_owned(), address: "127.0.0.1:1".to_owned() };
    (start(&place, &[a], SECRET, times), address)
}

/// All that comes until the connection is closed.
async fn rest(socket: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    // Closed with bytes in it is an error, and as good.
    let _ = timeout(SOON, socket.read_to_end(&mut all)).await.expect("it is closed");
    all
}

#[tokio::test]
async fn what_is_no_node_hears_nothing() {
    let (node, address) = node(TIMES);
    for bytes in [&b"GET / HTTP/1.1\r\nHost: b\r\n\r\n"[..], b"AMQP\0\0\x09\x01", &[0; 5000]] {
        let mut socket = TcpStream::connect(address).await.unwrap();
        let _ = socket.write_all(bytes).await;
        assert_eq!(rest(&mut socket).await, b"");
    }
    drop(node);
}

/// What is told arrives, though more has come than was read.
#[tokio::test]
async fn a_refusal_arrives() {
    let (node, address) = node(TIMES);
    for _ in 0..20 {
        let mut socket = TcpStream::connect(address).await.unwrap();
        socket.write_all(&[&b"LVRTLINK\x09\0\0\0"[..], &[0; 2000]].concat()).await.unwrap();
        let told = String::from_utf8_lossy(&rest(&mut socket).await).into_owned();
        assert!(
            told.ends_with("its handshake has an error: a message of an unknown kind"),
            "{told}"
        );
    }
    drop(node);
}

/// One that stops in the middle is told after a while, wherever that is.
#[tokio::test]
async fn who_stalls_is_closed() {
    let times = Times { handshake: Duration::from_millis(50), ..TIMES };
    let (node, address) = node(times);
    let own = NodeFacts { name: "a@x".into(), cluster: None, raft_id: RaftId(1), start: 1 };
    let secret = Secret::new(SECRET).unwrap();
    let hello = Handshake::call(own, Urgency::Bulk, secret, None, [7; 32], wall_ms()).take_output();
    for len in [0, 5, 12, 60, hello.len()] {
        let mut socket = TcpStream::connect(address).await.unwrap();
        socket.write_all(&hello[..len]).await.unwrap();
        let told = rest(&mut socket).await;
        let who = if len == hello.len() { "a@x" } else { "a node that has not said its name" };
        let why = format!("b@x refuses {who}: its handshake is not done after 5 s");
        assert!(told.ends_with(why.as_bytes()), "{len}: {}", String::from_utf8_lossy(&told));
        assert!(told.len() <= 2 * MESSAGE_MAX);
    }
    drop(node);
}

/// As many as like to may stall: a node links all the same, and the oldest of them is closed.
#[tokio::test]
async fn a_crowd_keeps_nobody_out() {
    let (mut node, address) = node(TIMES);
    let mut crowd = Vec::new();
    for _ in 0..3 * HANDSHAKES_MAX {
        crowd.push(TcpStream::connect(address).await.unwrap());
    }
    let link = link(address).await;
    assert_eq!(node.linked().await, RaftId(1));
    for socket in &mut crowd[..2 * HANDSHAKES_MAX] {
        assert_eq!(rest(socket).await, b"");
    }
    drop(link);
}

/// A frame as a node would send it.
fn frame(kind: Kind, payload: &[u8]) -> Vec<u8> {
    let mut sender = Sender::new(true);
    let envelope = Envelope { kind, again: false, group: GroupId::new(1), number: 1 };
    sender.put(Letter { envelope, payload: Payload::from(Bytes::copy_from_slice(payload)) });
    sender.fill();
    let mut slices = [io::IoSlice::new(&[]); 8];
    let count = sender.slices(&mut slices);
    slices[..count].iter().flat_map(|slice| slice.to_vec()).collect()
}

/// The first wrong frame ends a link, whatever was said before; another one is taken at once.
#[tokio::test]
async fn wrong_frames_end_a_link() {
    let (mut node, address) = node(TIMES);
    let heard = frame(Kind::new(Class::Batches, 10), b"\x01");
    let mut flipped = heard.clone();
    flipped[17] ^= 1;
    let rows: [(Vec<u8>, &str); 4] = [
        (
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
            "a frame says that 542393671 bytes follow its head; 262120 are allowed",
        ),
        (flipped, "a frame's checksum is"),
        (
            frame(Kind::new(Class::Batches, 2), b"\x02"),
            "a letter of kind 2 for group 1, number 1, is wrong: unknown flags 0x02",
        ),
        (
            frame(Kind::new(Class::Letters, 1), b""),
            "a letter of kind 65 for group 1, number 1, is wrong: unknown kind of letter 65",
        ),
    ];
    for (bytes, want) in rows {
        for wrong in 0..2 {
            let mut both = link(address).await;
            assert_eq!(node.linked().await, RaftId(1));
            both[wrong].write_all(&[&heard[..], &bytes].concat()).await.unwrap();
            assert_eq!(node.letter().await, (RaftId(1), heard_in(1, 1)));
            assert_eq!(node.unlinked().await, RaftId(1));
            let why = node.why_not("a@x").unwrap();
            assert!(why.starts_with(want), "{why}");
            // Both are closed.
            for socket in &mut both {
                rest(socket).await;
            }
        }
    }
}

/// A newer connection takes the place of a link once it has proved who it is, and not before.
#[tokio::test]
async fn newer_connections_replace_older_ones() {
    let (log, _guard) = Log::start();
    let (mut node, address) = node(TIMES);
    let mut old = link(address).await;
    assert_eq!(node.linked().await, RaftId(1));
    let (_, outcome) = shake(address, ("a@x", 1), Urgency::Urgent, b"another sixteen bytes").await;
    assert!(outcome.unwrap_err().to_string().contains("wrong secret"));
    assert!(node.peer("a@x").linked_since_ms.is_some());
    let heard = frame(Kind::new(Class::Batches, 10), b"\x01");
    old[0].write_all(&heard).await.unwrap();
    assert_eq!(node.letter().await, (RaftId(1), heard_in(1, 1)));
    // A link may not know of its end, as its machine is gone.
    let mut new = link(address).await;
    assert_eq!(node.unlinked().await, RaftId(1));
    assert_eq!(node.linked().await, RaftId(1));
    assert_eq!(log.count("the link with node a@x has ended: the other side has called anew"), 1);
    for socket in &mut old {
        rest(socket).await;
    }
    new[1].write_all(&heard).await.unwrap();
    assert_eq!(node.letter().await, (RaftId(1), heard_in(1, 1)));
}

/// One connection is no link, and one that was closed meanwhile is none, either.
#[tokio::test]
async fn half_a_link_is_none() {
    let (mut node, address) = node(TIMES);
    let (first, outcome) = shake(address, ("a@x", 1), Urgency::Urgent, SECRET).await;
    outcome.unwrap();
    drop(first);
    let (_bulk, outcome) = shake(address, ("a@x", 1), Urgency::Bulk, SECRET).await;
    outcome.unwrap();
    let (_again, outcome) = shake(address, ("a@x", 1), Urgency::Bulk, SECRET).await;
    outcome.unwrap();
    assert!(node.news.is_empty());
    let (_urgent, outcome) = shake(address, ("a@x", 1), Urgency::Urgent, SECRET).await;
    outcome.unwrap();
    assert_eq!(node.linked().await, RaftId(1));
}

/// A peer that takes nothing costs a line, and the rest is dropped; others are served meanwhile.
#[tokio::test]
async fn what_does_not_fit_is_dropped() {
    let (mut node, address) = node(TIMES);
    let _stalled = link(address).await;
    let to = node.linked().await;
    for number in 1..=200 {
        node.links.send(to, append(number, 1 << 20));
        tokio::task::yield_now().await;
    }
    // What waits, what the sender has chosen, and what kernels hold.
    let dropped = node.peer("a@x").dropped;
    assert!((100..=136).contains(&dropped), "{dropped}");
    // Its memory goes back to where a disk's is kept, which has a lock: none of a lower rank may be held then.
    let pooled = Buffers::new(1 << 20).lend(1 << 20).freeze(1 << 20);
    node.links.send(to, append_of(201, pooled));
    assert_eq!(node.peer("a@x").dropped, dropped + 1);
    // One letter has room, however long it is.
    let (mut node, address) = self::node(TIMES);
    let mut other = link(address).await;
    let to = node.linked().await;
    node.links.send(to, append(1, 80 << 20));
    node.links.send(to, append(2, 10));
    let mut head = [0; 24];
    other[1].read_exact(&mut head).await.unwrap();
    assert_eq!(node.peer("a@x").dropped, 1);
}

/// Who does not take the news is not sent more than that, and its peers drop what does not fit.
#[tokio::test]
async fn input_waits_at_the_other_node() {
    let places = [NodePlace::new("a@x", 1), NodePlace::new("b@x", 2)];
    let [mut a, mut b] = start_all(&places);
    assert_eq!((a.linked().await, b.linked().await), (b.id, a.id));
    let mut sent = 0;
    while a.peer("b@x").dropped == 0 {
        sent += 1;
        a.links.send(b.id, append(sent, 1 << 20));
        tokio::task::yield_now().await;
        assert!(sent < 2000, "nothing is dropped");
    }
    assert!(b.news.len() <= 64);
    for number in 1..sent {
        assert_eq!(b.letter().await, (a.id, append(number, 1 << 20)));
    }
}

/// A node that says nothing is gone, whatever its machine answers.
#[tokio::test]
async fn silence_ends_a_link() {
    let (mut node, address) = node(TIMES);
    let _silent = link(address).await;
    assert_eq!(node.linked().await, RaftId(1));
    tokio::time::pause();
    let before = tokio::time::Instant::now();
    assert!(matches!(node.news.recv().await, Some(LinkNews::Unlinked(RaftId(1)))));
    let after = before.elapsed();
    assert!((9..12).contains(&after.as_secs()), "{after:?}");
    assert_eq!(node.why_not("a@x").as_deref(), Some("nothing came for 10 s"));
}

/// A node that has nothing to say says so; and that is no letter.
#[tokio::test]
async fn beats() {
    let (mut node, address) = node(TIMES);
    let mut both = link(address).await;
    assert_eq!(node.linked().await, RaftId(1));
    let beat = frame(leveret_link::letters::BEAT, b"").len();
    let heard = frame(Kind::new(Class::Batches, 10), b"\x01");
    both[0].write_all(&[frame(leveret_link::letters::BEAT, b""), heard].concat()).await.unwrap();
    assert_eq!(node.letter().await, (RaftId(1), heard_in(1, 1)));
    tokio::time::pause();
    for socket in &mut both {
        let mut bytes = vec![0; beat];
        socket.read_exact(&mut bytes).await.unwrap();
        assert_eq!(bytes[4], leveret_link::letters::BEAT.byte());
    }
}
