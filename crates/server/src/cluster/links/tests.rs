//! Nodes on loopback, and strangers who connect to them.

use std::num::NonZeroU128;
use std::time::Duration;

use bytes::Bytes;
use leveret_link::hello::{ClusterId, Urgency};
use leveret_link::letters::{Founding, NodeStatus};
use leveret_log::BatchName;
use leveret_log::file::BatchCopy;
use leveret_replica::{Batch, Body, Message};
use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;

use super::*;

const SECRET: &[u8] = b"sixteen bytes ..";

/// What a test waits for comes within this, or never.
const SOON: Duration = Duration::from_secs(20);

/// A node's name, address and listener, before it runs.
struct NodePlace {
    name: &'static str,
    id: u64,
    listener: std::net::TcpListener,
}

impl NodePlace {
    fn new(name: &'static str, id: u64) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        Self { name, id, listener }
    }

    fn address(&self) -> PeerAddress {
        let address = self.listener.local_addr().unwrap().to_string();
        PeerAddress { name: self.name.to_owned(), address }
    }

    fn facts(&self) -> NodeFacts {
        NodeFacts { name: self.name.into(), cluster: None, raft_id: RaftId(self.id), start: 1 }
    }
}

/// A running node.
struct LinkedNode {
    links: Links,
    news: Receiver<LinkNews>,
    id: RaftId,
}

fn start(place: &NodePlace, peers: &[PeerAddress], secret: &[u8]) -> LinkedNode {
    let (sender, news) = mpsc::channel(64);
    let listeners = vec![place.listener.try_clone().unwrap()];
    let secret = Secret::new(secret).unwrap();
    let links = Links::start_on(listeners, secret, place.facts(), peers.to_vec(), sender).unwrap();
    LinkedNode { links, news, id: RaftId(place.id) }
}

fn start_all<const N: usize>(places: &[NodePlace; N]) -> [LinkedNode; N] {
    let peers: Vec<_> = places.iter().map(NodePlace::address).collect();
    places.each_ref().map(|place| start(place, &peers, SECRET))
}

impl LinkedNode {
    async fn next(&mut self) -> LinkNews {
        timeout(SOON, self.news.recv()).await.expect("news come").unwrap()
    }

    async fn linked(&mut self) -> RaftId {
        match self.next().await {
            LinkNews::Linked(peer) => peer.node.raft_id,
            news => panic!("{news:?}"),
        }
    }

    async fn letter(&mut self) -> (RaftId, NodeLetter) {
        match self.next().await {
            LinkNews::Letter(from, letter) => (from, letter),
            news => panic!("{news:?}"),
        }
    }

    fn why_not(&self, name: &str) -> Option<String> {
        self.links.peers().into_iter().find(|it| it.name == name).unwrap().why_not
    }
}

fn heard(term: u64) -> NodeLetter {
    NodeLetter::Replica { group: 3, message: Message { term, body: Body::Heard }, copies: vec![] }
}

/// A batch of so many bytes.
fn append(number: u64, len: usize) -> NodeLetter {
    let before = BatchName { number: number - 1, term: 1 };
    let batches = vec![Batch { name: BatchName { number, term: 1 }, change: None }];
    let bytes: Bytes = (0..len).map(|at| at as u8).collect::<Vec<_>>().into();
    let copy = BatchCopy { segment: 1, position: 7, pieces: vec![bytes], ..Default::default() };
    let message = Message { term: 1, body: Body::Append { before, batches, agreed: 0 } };
    NodeLetter::Replica { group: 3, message, copies: vec![copy] }
}

#[tokio::test]
async fn nodes_link_and_talk() {
    let places = [NodePlace::new("a@x", 9), NodePlace::new("b@x", 5), NodePlace::new("c@x", 7)];
    let mut nodes = start_all(&places);
    for node in &mut nodes {
        let mut others = [node.linked().await, node.linked().await];
        others.sort_unstable();
        let mut want: Vec<_> = places.iter().map(|it| RaftId(it.id)).collect();
        want.retain(|id| *id != node.id);
        want.sort_unstable();
        assert_eq!(others[..], want);
        for peer in node.links.peers() {
            assert!(peer.linked_since_ms.is_some(), "{peer:?}");
            assert_eq!(node.why_not(&peer.name), None);
        }
    }
    let [a, b, c] = &mut nodes;
    let cluster = ClusterId(NonZeroU128::MIN);
    let found =
        NodeLetter::Found(Founding { cluster, members: vec![(a.id, "a@x".into())], shards: 2 });
    let status =
        NodeLetter::Status(Box::new(NodeStatus { version: "1".into(), ..NodeStatus::default() }));
    a.links.send(b.id, found.clone());
    b.links.send(a.id, NodeLetter::Founded { cluster });
    c.links.send(a.id, status.clone());
    assert_eq!(b.letter().await, (a.id, found));
    let mut came = [a.letter().await, a.letter().await];
    came.sort_unstable_by_key(|(from, _)| *from);
    assert_eq!(came, [(b.id, NodeLetter::Founded { cluster }), (c.id, status)]);
    // Batches are in order, and what is urgent need not wait for them.
    for number in 1..=20 {
        a.links.send(c.id, append(number, 300_000));
        a.links.send(c.id, heard(number));
    }
    let (mut batches, mut urgent) = (Vec::new(), Vec::new());
    for _ in 0..40 {
        let (from, letter) = c.letter().await;
        assert_eq!(from, a.id);
        if letter.urgency() == Urgency::Bulk { &mut batches } else { &mut urgent }.push(letter);
    }
    assert_eq!(batches, (1..=20).map(|number| append(number, 300_000)).collect::<Vec<_>>());
    assert_eq!(urgent, (1..=20).map(heard).collect::<Vec<_>>());
}
