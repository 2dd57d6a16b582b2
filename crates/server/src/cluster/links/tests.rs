//! Nodes on loopback, and strangers who connect to them.

mod relays;
mod strangers;
mod tls;

use std::num::NonZeroU128;
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use bytes::Bytes;
use leveret_link::hello::{ClusterId, Handshake, Urgency};
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

/// What comes again comes soon.
const TIMES: Times = Times { retry: Duration::from_millis(5), ..Times::USUAL };

fn start(place: &NodePlace, peers: &[PeerAddress], secret: &[u8], times: Times) -> LinkedNode {
    start_with(place, peers, (secret, None, times))
}

fn start_with(
    place: &NodePlace,
    peers: &[PeerAddress],
    (secret, encryption, times): (&[u8], Option<Encryption>, Times),
) -> LinkedNode {
    let (sender, news) = mpsc::channel(64);
    let listeners = vec![place.listener.try_clone().unwrap()];
    let with = (Secret::new(secret).unwrap(), encryption, times);
    let links = Links::start_on(listeners, with, place.facts(), peers.to_vec(), sender).unwrap();
    LinkedNode { links, news, id: RaftId(place.id) }
}

fn start_all<const N: usize>(places: &[NodePlace; N]) -> [LinkedNode; N] {
    let peers: Vec<_> = places.iter().map(NodePlace::address).collect();
    places.each_ref().map(|place| start(place, &peers, SECRET, TIMES))
}

/// All that was logged on this thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn start() -> (Self, tracing::subscriber::DefaultGuard) {
        let log = Self::default();
        let to = log.clone();
        let lines = tracing_subscriber::fmt().with_ansi(false).without_time().with_target(false);
        let lines = lines.with_writer(move || to.clone()).finish();
        (log, tracing::subscriber::set_default(lines))
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }

    fn count(&self, text: &str) -> usize {
        self.text().matches(text).count()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

const CLUSTER: ClusterId = ClusterId(NonZeroU128::MIN);

/// Members of a cluster, by name and Raft id.
#[derive(Clone, Debug)]
struct Known(Vec<(&'static str, u64)>);

impl Members for Known {
    fn start_of(&self, id: RaftId) -> Option<u64> {
        self.0.iter().any(|(_, member)| *member == id.0).then_some(1)
    }

    fn named(&self, name: &str) -> Option<RaftId> {
        self.0.iter().find(|(member, _)| *member == name).map(|(_, id)| RaftId(*id))
    }

    fn is_forgotten(&self, id: RaftId) -> bool {
        self.0.contains(&(FORGOTTEN, id.0))
    }

    fn is_listed(&self, _: &str) -> bool {
        true
    }
}

/// What a node is called in [`Known`] that was a member.
const FORGOTTEN: &str = "forgotten";

impl NodePlace {
    /// The same as a member.
    fn member(&self) -> NodeFacts {
        NodeFacts { cluster: Some(CLUSTER), ..self.facts() }
    }
}

/// Waits until it is so: what it is about is done by other tasks.
async fn until(what: impl Fn() -> bool) {
    let wait = async {
        while !what() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(SOON, wait).await.expect("it comes to be so");
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

    async fn unlinked(&mut self) -> RaftId {
        match self.next().await {
            LinkNews::Unlinked(id) => id,
            news => panic!("{news:?}"),
        }
    }

    fn peer(&self, name: &str) -> PeerState {
        self.links.peers().into_iter().find(|it| it.name == name).unwrap()
    }

    async fn letter(&mut self) -> (RaftId, NodeLetter) {
        match self.next().await {
            LinkNews::Letter(from, letter) => (from, letter),
            news => panic!("{news:?}"),
        }
    }

    fn why_not(&self, name: &str) -> Option<String> {
        self.peer(name).why_not
    }
}

fn heard(term: u64) -> NodeLetter {
    heard_in(3, term)
}

fn heard_in(group: u64, term: u64) -> NodeLetter {
    NodeLetter::Replica {
        group,
        message: Message { term, body: Body::Heard { stamp: 1 } },
        copies: vec![],
    }
}

/// A batch of so many bytes.
fn append(number: u64, len: usize) -> NodeLetter {
    // All have the same memory, so that many cost little.
    static BYTES: LazyLock<Bytes> = LazyLock::new(|| Bytes::from(vec![7; 80 << 20]));
    append_of(number, BYTES.slice(..len))
}

fn append_of(number: u64, bytes: Bytes) -> NodeLetter {
    let before = BatchName { number: number - 1, term: 1 };
    let batches = vec![Batch { name: BatchName { number, term: 1 }, change: None }];
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

/// A node as a row of a table changes it.
struct Setup {
    secret: &'static [u8],
    cluster: Option<(ClusterId, Known)>,
    peers: Vec<PeerAddress>,
    encryption: Option<Encryption>,
}

/// What each of two nodes says that do not link, once, though it is tried again and again; and that the next thing is said, too.
async fn refuse(change: impl FnOnce(&mut [Setup; 2]), want: [&str; 2]) {
    let (log, _guard) = Log::start();
    let places = [NodePlace::new("a@x", 1), NodePlace::new("b@x", 2)];
    let peers: Vec<_> = places.iter().map(NodePlace::address).collect();
    let mut setups = [(); 2].map(|()| Setup {
        secret: SECRET,
        cluster: None,
        peers: peers.clone(),
        encryption: None,
    });
    change(&mut setups);
    let nodes = [0, 1].map(|at| {
        let Setup { secret, cluster, peers, encryption } = &mut setups[at];
        let node = start_with(&places[at], peers, (secret, encryption.take(), TIMES));
        if let Some((cluster, known)) = cluster.clone() {
            let facts = NodeFacts { cluster: Some(cluster), ..places[at].facts() };
            node.links.set_members(facts, known);
        }
        node
    });
    let said = until(|| want.iter().all(|want| log.count(want) > 0));
    assert!(timeout(SOON / 2, said).await.is_ok(), "{}", log.text());
    let tries = |node: &LinkedNode| {
        node.links.0.peers.iter().map(|it| it.tries.load(Ordering::Relaxed)).sum::<u64>()
    };
    let before = tries(&nodes[0]);
    until(|| tries(&nodes[0]) > before + 5).await;
    for (at, want) in want.into_iter().enumerate() {
        let places = ["node a@x: ", "node b@x: ", "node c@x: ", "was refused: "];
        let said = places.map(|place| log.count(&format!("{place}{want}")));
        assert_eq!(said.iter().sum::<usize>(), 1, "{want}");
        let shown = nodes[at].links.peers();
        let is_nobody = want.contains("a node that has not said its name") && at == 1;
        let is_own = (!want.starts_with("the other side says") || at == 0) && !is_nobody;
        // Who is not listed is not shown.
        assert!(
            !is_own
                || shown.is_empty()
                || shown.iter().any(|it| it.why_not.as_deref() == Some(want)),
            "{shown:?}"
        );
    }
    assert!(nodes.iter().all(|node| node.news.is_empty()));
    for node in nodes {
        node.links.close().await;
    }
}

#[tokio::test]
async fn refusals_are_said_once() {
    refuse(
        |[a, _]| a.secret = b"another sixteen bytes",
        [
            "the other side says: b@x refuses a@x: wrong secret: cluster.secret is not the same on both",
            "b@x refuses a@x: wrong secret: cluster.secret is not the same on both",
        ],
    )
    .await;
    let all = Known(vec![("a@x", 1), ("b@x", 2)]);
    let other = ClusterId(NonZeroU128::MAX);
    refuse(
        |[a, b]| {
            (a.cluster, b.cluster) = (Some((CLUSTER, all.clone())), Some((other, all.clone())));
        },
        [
            "a@x refuses b@x: it is of another cluster: ffffffffffffffffffffffffffffffff there, 00000000000000000000000000000001 here",
            "b@x refuses a@x: it is of another cluster: 00000000000000000000000000000001 there, ffffffffffffffffffffffffffffffff here",
        ],
    )
    .await;
    refuse(
        |[_, b]| b.cluster = Some((CLUSTER, Known(vec![("b@x", 2), ("a@x", 9)]))),
        [
            "the other side says: b@x refuses a@x: its name belongs to the data directory with Raft id 0000000000000009, and it says 0000000000000001: if the old directory is lost, forget_cluster_node first",
            "b@x refuses a@x: its name belongs to the data directory with Raft id 0000000000000009, and it says 0000000000000001: if the old directory is lost, forget_cluster_node first",
        ],
    )
    .await;
    refuse(
        |[_, b]| b.peers.retain(|it| it.name == "b@x"),
        [
            "the other side says: b@x refuses a@x: its name is not in cluster_formation.classic_config.nodes here",
            "b@x refuses a@x: its name is not in cluster_formation.classic_config.nodes here",
        ],
    )
    .await;
    refuse(
        |[a, b]| {
            // The address of another node.
            let address = a.peers[1].address.clone();
            a.peers[1] = PeerAddress { name: "c@x".to_owned(), address };
            b.peers.push(PeerAddress { name: "c@x".to_owned(), address: "127.0.0.1:1".to_owned() });
        },
        [
            "a@x refuses b@x: c@x was called: see cluster_formation.classic_config.addresses here",
            "the other side says: a@x refuses b@x: c@x was called: see cluster_formation.classic_config.addresses here",
        ],
    )
    .await;
}

/// A node that nobody answers for is called until somebody does; then the next failure is told anew.
#[tokio::test]
async fn a_node_is_called_until_it_is_there() {
    let (log, _guard) = Log::start();
    let (a, b) = (NodePlace::new("a@x", 1), NodePlace::new("b@x", 2));
    let peers = [a.address(), b.address()];
    let address = b.listener.local_addr().unwrap();
    drop(b);
    let mut a = start(&a, &peers, SECRET, TIMES);
    let none = format!("{address}: Connection refused (os error 111)");
    until(|| a.why_not("b@x").as_deref() == Some(&*none)).await;
    for times in 1..=2 {
        let options = SocketOptions::default();
        let listener = bind(address, &options).unwrap();
        let mut b = start(&NodePlace { name: "b@x", id: 2, listener }, &peers, SECRET, TIMES);
        assert_eq!(a.linked().await, b.id);
        assert_eq!(b.linked().await, a.id);
        assert_eq!(a.why_not("b@x"), None);
        // What is said before a clean end arrives.
        b.links.send(a.id, append(1, 3 << 20));
        b.links.send(a.id, heard(7));
        b.links.close().await;
        drop(b);
        let mut came = [a.letter().await, a.letter().await];
        came.sort_by_key(|(_, letter)| letter.urgency() == Urgency::Urgent);
        assert_eq!(came, [append(1, 3 << 20), heard(7)].map(|letter| (RaftId(2), letter)));
        assert_eq!(a.unlinked().await, RaftId(2));
        until(|| a.why_not("b@x").as_deref() == Some(&*none)).await;
        assert_eq!(log.count(&none), times + 1);
    }
}

/// A batch that is longer than its line gets in while others wait, and no second one.
#[test]
fn a_letter_longer_than_its_line_gets_in() {
    let (lines, _ends) = LinkLines::new(&Arc::default());
    assert_eq!(lines.put(append(1, 3 << 20)), None);
    assert_eq!(lines.put(append(2, 80 << 20)), None);
    assert_eq!(lines.put(append(3, 7)), Some(append(3, 7)));
    assert_eq!(lines.put(heard(7)), None, "that is another line");
}

/// A founder may have made a node a member that has not heard of it: they link.
#[tokio::test]
async fn a_member_that_does_not_know_it() {
    let places = [NodePlace::new("a@x", 1), NodePlace::new("b@x", 2)];
    let [mut a, mut b] = start_all(&places);
    a.links.set_members(places[0].member(), Known(vec![("a@x", 1), ("b@x", 2)]));
    assert_eq!((a.linked().await, b.linked().await), (b.id, a.id));
}

/// The link to a member ends that is forgotten, and it is not let in again.
#[tokio::test]
async fn who_is_forgotten_is_let_go() {
    let places = [NodePlace::new("a@x", 1), NodePlace::new("b@x", 2)];
    let [mut a, mut b] = start_all(&places);
    a.links.set_members(places[0].member(), Known(vec![("a@x", 1), ("b@x", 2)]));
    assert_eq!((a.linked().await, b.linked().await), (b.id, a.id));
    a.links.set_members(places[0].member(), Known(vec![("a@x", 1), (FORGOTTEN, 2)]));
    assert_eq!((a.unlinked().await, b.unlinked().await), (b.id, a.id));
    until(|| a.why_not("b@x").is_some_and(|it| it.contains("was forgotten"))).await;
}
