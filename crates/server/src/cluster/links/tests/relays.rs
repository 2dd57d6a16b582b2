//! Clients that one node passes on to another.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::tls::Certificates;
use super::*;

/// Two members of a cluster.
async fn members(with: [Option<Encryption>; 2]) -> [LinkedNode; 2] {
    let places = [NodePlace::new("a@x", 1), NodePlace::new("b@x", 2)];
    let peers: Vec<_> = places.iter().map(NodePlace::address).collect();
    let mut with = with.into_iter();
    let [mut a, mut b] = places
        .each_ref()
        .map(|place| start_with(place, &peers, (SECRET, with.next().flatten(), TIMES)));
    for (node, place) in [&a, &b].into_iter().zip(&places) {
        node.links.set_members(place.member(), Known(vec![("a@x", 1), ("b@x", 2)]));
    }
    assert_eq!((a.linked().await, b.linked().await), (b.id, a.id));
    [a, b]
}

fn ends() -> Ends {
    Ends::new("192.0.2.1:56324".parse().unwrap(), "[2001:db8::2]:5672".parse().unwrap())
}

/// Either way, for each listener: who it is, and not a byte more or less than the client's.
#[tokio::test]
async fn clients_come_as_they_are() {
    come_as_they_are(members([None, None]).await).await;
    let certificates = Certificates::new();
    come_as_they_are(members([Some(certificates.good()), Some(certificates.good())]).await).await;
}

async fn come_as_they_are([mut a, mut b]: [LinkedNode; 2]) {
    for listener in RelayedListener::ALL {
        for (from, to) in [(0, 1), (1, 0)] {
            let nodes = [&mut a, &mut b];
            let (links, id) = (nodes[from].links.clone(), nodes[to].id);
            let relayed = async {
                let mut socket = links.relay_to(id, listener, ends()).await.unwrap();
                socket.write_all(b"AMQP\0\0\x09\x01").await.unwrap();
                socket.flush().await.unwrap();
                socket
            };
            let [first, second] = nodes;
            let arrives = if to == 0 { first.next() } else { second.next() };
            let (mut socket, news) = tokio::join!(relayed, arrives);
            let LinkNews::Relayed(found, with, arrived) = news else { panic!("{news:?}") };
            let mut arrived = TcpStream::from_std(arrived).unwrap();
            assert_eq!((found, with), (listener, ends()));
            let mut bytes = [0; 8];
            arrived.read_exact(&mut bytes).await.unwrap();
            assert_eq!(&bytes, b"AMQP\0\0\x09\x01");
            arrived.write_all(b"hello").await.unwrap();
            drop(arrived);
            let mut answer = Vec::new();
            socket.read_to_end(&mut answer).await.unwrap();
            assert_eq!(answer, b"hello");
        }
    }
}

/// Many at once: all arrive, though few are on their way at a time.
#[tokio::test]
async fn a_crowd_of_clients() {
    come_in_a_crowd(members([None, None]).await).await;
    let certificates = Certificates::new();
    come_in_a_crowd(members([Some(certificates.good()), Some(certificates.good())]).await).await;
}

async fn come_in_a_crowd([a, mut b]: [LinkedNode; 2]) {
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..300 {
        let (links, id) = (a.links.clone(), b.id);
        callers
            .spawn(async move { links.relay_to(id, RelayedListener::Amqp, ends()).await.unwrap() });
    }
    for _ in 0..300 {
        let news = b.next().await;
        assert!(matches!(news, LinkNews::Relayed(..)), "{news:?}");
    }
    assert_eq!(callers.join_all().await.len(), 300);
}

#[tokio::test]
async fn who_relays_nobody() {
    let places = [NodePlace::new("a@x", 1), NodePlace::new("b@x", 2)];
    let [mut a, mut b] = start_all(&places);
    let relayed = |links: &Links, id| {
        let links = links.clone();
        async move {
            links.relay_to(RaftId(id), RelayedListener::Http, ends()).await.unwrap_err().to_string()
        }
    };
    assert_eq!((a.linked().await, b.linked().await), (b.id, a.id));
    assert_eq!(
        relayed(&a.links, 9).await,
        "no configured node is known to have the Raft id 0000000000000009"
    );
    // Nodes that are in no cluster.
    let why = relayed(&a.links, 2).await;
    assert!(why.ends_with("clients are relayed between members of a cluster only"), "{why}");
    // A node that is there no more.
    drop(places);
    b.links.close().await;
    assert_eq!(a.unlinked().await, b.id);
    let why = relayed(&a.links, 2).await;
    assert!(why.starts_with("b@x: 127.0.0.1:"), "{why}");
    assert!(why.ends_with("Connection refused (os error 111)"), "{why}");
}

/// A relay that does not say what it has, or who: it is closed, and nobody arrives.
#[tokio::test]
async fn wrong_relays() {
    let [mut a, b] = members([None, None]).await;
    let other = b.links.0.peers[0].address.clone();
    let at = b.links.0.place_of("a@x").unwrap();
    for preface in [
        &b"\x08\r\n\r\n\0\r\nQUIT\n"[..],
        b"\x01GET / HTTP/1.1\r\n",
        b"\x01\r\n\r\n\0\r\nQUIT\n\x20\0\0\0",
    ] {
        let (_, socket) = shake::call(&b.links.0, at, Urgency::Relay).await.unwrap();
        let mut socket = socket;
        socket.write_all(preface).await.unwrap();
        let mut rest = Vec::new();
        let _ = timeout(SOON, socket.read_to_end(&mut rest)).await.expect("it is closed");
        assert_eq!(rest, b"", "{other}");
    }
    assert!(a.news.try_recv().is_err());
}
