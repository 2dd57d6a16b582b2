//! Real sockets: a client, a node on standby, and what stands for the node that leads.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener as StdListener, TcpStream as StdStream};
use std::sync::Mutex;

use super::super::view::{ClusterView, NodeView, Standing};
use super::*;

const LONG: Duration = Duration::from_secs(20);

/// Connects to where the broker of the node that leads would be.
#[derive(Debug, Default)]
struct ToBroker {
    /// By Raft id: where it is.
    brokers: Mutex<Vec<(u64, SocketAddr)>>,
    asked: Mutex<Vec<(u64, RelayedListener, Ends)>>,
}

impl Relay for ToBroker {
    fn relay(&self, leader: u64, listener: RelayedListener, ends: Ends) -> Relaying {
        self.asked.lock().unwrap().push((leader, listener, ends));
        let found = self.brokers.lock().unwrap().iter().find(|it| it.0 == leader).map(|it| it.1);
        Box::pin(async move {
            let none = || io::Error::new(io::ErrorKind::NotConnected, "there is no link");
            TcpStream::connect(found.ok_or_else(none)?).await.map(Into::into)
        })
    }
}

struct Set {
    standby: Standby,
    relay: Arc<ToBroker>,
    views: watch::Sender<Arc<ClusterView>>,
    totals: Arc<Totals>,
}

fn view(leader: Option<u64>) -> Arc<ClusterView> {
    let node =
        |name: &str, running| NodeView { name: name.to_owned(), running, ..NodeView::default() };
    Arc::new(ClusterView {
        standing: if leader.is_some() { Standing::Follows } else { Standing::Waits },
        leader: leader.map(|id| format!("rabbit@{id}")),
        leader_id: leader,
        nodes: vec![node("rabbit@a", true), node("rabbit@b", false), node("rabbit@c", false)],
        ..ClusterView::default()
    })
}

fn door(listener: RelayedListener) -> StandbyListener {
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    StandbyListener { listener, key: "key".to_owned(), address, proxy: false, patience: LONG }
}

fn start(of: StandbyListener, leader: Option<u64>, limits: Limits) -> Set {
    start_with(None, of, leader, limits)
}

fn start_with(
    own: Option<OwnClients>,
    of: StandbyListener,
    leader: Option<u64>,
    limits: Limits,
) -> Set {
    let (views, seen) = watch::channel(view(leader));
    let relay = Arc::new(ToBroker::default());
    let options = SocketOptions::default();
    let to = Arc::clone(&relay);
    let totals = Arc::<Totals>::default();
    let counted = Arc::clone(&totals);
    let (suspended, refusal) = Default::default();
    let routes = ClientRoutes { relay: to, own, suspended, refusal };
    let standby = Standby::with(limits, &[of], &options, routes, seen, counted, 2).unwrap();
    Set { standby, relay, views, totals }
}

impl Set {
    fn address(&self) -> SocketAddr {
        self.standby.listeners()[0].address
    }

    fn connect(&self) -> StdStream {
        let client = StdStream::connect(self.address()).unwrap();
        client.set_read_timeout(Some(LONG)).unwrap();
        client
    }

    /// A broker of this id from now on.
    fn broker(&self, id: u64) -> StdListener {
        let broker = StdListener::bind("127.0.0.1:0").unwrap();
        self.relay.brokers.lock().unwrap().push((id, broker.local_addr().unwrap()));
        broker
    }

    fn stop(self) -> Vec<(RelayedListener, Arrival)> {
        Builder::new_current_thread().enable_all().build().unwrap().block_on(self.standby.stop())
    }
}

fn accept(broker: &StdListener) -> StdStream {
    let socket = broker.accept().unwrap().0;
    socket.set_read_timeout(Some(LONG)).unwrap();
    socket
}

fn read(socket: &mut StdStream, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    socket.read_exact(&mut bytes).unwrap();
    bytes
}

fn is_over(socket: &mut StdStream) -> bool {
    matches!(socket.read(&mut [0]), Ok(0))
}

/// Waits until it is so; looks now and then.
#[track_caller]
fn until(mut is_so: impl FnMut() -> bool) {
    let end = std::time::Instant::now() + LONG;
    while !is_so() {
        assert!(std::time::Instant::now() < end, "it never came");
        std::thread::yield_now();
    }
}

#[test]
fn a_client_and_the_broker_hear_each_other_to_the_end() {
    let set = start(door(RelayedListener::Amqp), Some(7), LIMITS);
    let broker = set.broker(7);
    let mut client = set.connect();
    let mut relayed = accept(&broker);
    client.write_all(b"AMQP").unwrap();
    assert_eq!(read(&mut relayed, 4), b"AMQP");
    relayed.write_all(b"start").unwrap();
    assert_eq!(read(&mut client, 5), b"start");
    // One side says that it is done, and still hears the other.
    client.shutdown(Shutdown::Write).unwrap();
    assert!(is_over(&mut relayed));
    relayed.write_all(b"farewell").unwrap();
    drop(relayed);
    assert_eq!(read(&mut client, 8), b"farewell");
    assert!(is_over(&mut client));
    let totals = &set.totals;
    until(|| totals.now().open == 0);
    let want = Relayed { relayed: 1, bytes_up: 4, bytes_down: 13, ..Relayed::default() };
    assert_eq!(totals.now(), want);
    let asked = set.relay.asked.lock().unwrap();
    let ends = Ends::new(client.local_addr().unwrap(), set.address());
    assert_eq!(*asked, [(7, RelayedListener::Amqp, ends)]);
}

#[test]
fn a_client_that_goes_without_a_word_does_not_stay() {
    let limits = Limits { farewell: Duration::from_millis(10), ..LIMITS };
    let set = start(door(RelayedListener::Amqp), Some(7), limits);
    let broker = set.broker(7);
    let client = set.connect();
    let relayed = accept(&broker);
    until(|| set.totals.now().open == 1);
    // As the broker does when no heartbeat comes.
    drop(relayed);
    until(|| set.totals.now().open == 0);
    drop(client);
}

#[test]
fn what_the_proxy_says_of_the_client_goes_on() {
    let set =
        start(StandbyListener { proxy: true, ..door(RelayedListener::Amqps) }, Some(7), LIMITS);
    let broker = set.broker(7);
    let mut client = set.connect();
    client.write_all(b"PROXY TCP4 192.0.2.1 192.0.2.2 56324 5671\r\nAMQP").unwrap();
    let mut relayed = accept(&broker);
    assert_eq!(read(&mut relayed, 4), b"AMQP", "the header ends here");
    let (_, listener, ends) = set.relay.asked.lock().unwrap()[0];
    assert_eq!(listener, RelayedListener::Amqps);
    assert_eq!(ends.source, "192.0.2.1:56324".parse().unwrap());
    assert_eq!(ends.destination, "192.0.2.2:5671".parse().unwrap());
    let mut other = set.connect();
    other.write_all(b"AMQP\0\0\x09\x01").unwrap();
    assert!(other.read(&mut [0]).map_or(true, |read| read == 0), "it has no header");
}

/// Much more than all buffers take.
#[test]
fn a_side_that_reads_nothing_is_sent_no_more_than_fits() {
    const LEN: usize = 64 << 20;
    let set = start(door(RelayedListener::Amqp), Some(7), LIMITS);
    let broker = set.broker(7);
    let mut client = set.connect();
    let mut relayed = accept(&broker);
    let all: Vec<u8> = (0..LEN).map(|at| (at % 251) as u8).collect();
    client.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let mut sent = 0;
    while let Ok(more) = client.write(&all[sent..]) {
        sent += more;
        assert!(sent < LEN, "somebody keeps all of it");
    }
    client.shutdown(Shutdown::Write).unwrap();
    assert!(read(&mut relayed, sent) == all[..sent]);
    assert!(is_over(&mut relayed));
}

#[test]
fn a_client_waits_until_a_node_leads_and_is_reached() {
    let set = start(door(RelayedListener::Amqp), None, LIMITS);
    let mut client = set.connect();
    client.write_all(b"AMQP").unwrap();
    // It leads, and there is no way to it yet.
    set.views.send_replace(view(Some(7)));
    until(|| set.relay.asked.lock().unwrap().len() >= 2);
    let broker = set.broker(7);
    let mut relayed = accept(&broker);
    assert_eq!(read(&mut relayed, 4), b"AMQP");
}

/// At a node with sessions of its own: until it is known whether the node that leads takes them, to one of them, or to the node that
/// leads if that takes none.
#[test]
fn a_client_gets_a_session_of_this_node_or_is_relayed() {
    let (says, reception) = watch::channel(Reception::Waits);
    let ((amqp, mut entered), (amqps, _)) = (mpsc::channel(1), mpsc::channel(1));
    let own = Some(OwnClients { reception, amqp, amqps });
    let set = start_with(own, door(RelayedListener::Amqp), Some(7), LIMITS);
    let broker = set.broker(7);
    let first = set.connect();
    until(|| set.totals.now().waiting == 1);
    assert!(set.relay.asked.lock().unwrap().is_empty(), "it waits");
    says.send_replace(Reception::Own);
    let arrival = entered.blocking_recv().unwrap();
    assert_eq!(arrival.ends.source, first.local_addr().unwrap());
    says.send_replace(Reception::Relayed);
    let mut second = set.connect();
    second.write_all(b"AMQP").unwrap();
    assert_eq!(read(&mut accept(&broker), 4), b"AMQP");
    says.send_replace(Reception::Own);
    let third = set.connect();
    let arrival = entered.blocking_recv().unwrap();
    assert_eq!(arrival.ends.source, third.local_addr().unwrap());
    assert_eq!(set.totals.now().relayed, 1);
}

#[test]
fn a_client_waits_no_longer_than_the_listener_has_patience() {
    let short =
        |listener| StandbyListener { patience: Duration::from_millis(10), ..door(listener) };
    let set = start(short(RelayedListener::Http), None, LIMITS);
    let mut client = set.connect();
    let mut told = String::new();
    client.read_to_string(&mut told).unwrap();
    let (head, body) = told.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
    let why = "no node leads the cluster now: 1 of 3 nodes is here, 2 are needed, missing rabbit@b, rabbit@c";
    assert!(body.contains(why), "{body}");
    let set = start(short(RelayedListener::Amqp), Some(7), LIMITS);
    let mut client = set.connect();
    until(|| set.totals.now().refused == 1);
    // It has a handshake, and hears in it what HTTP is told.
    client.write_all(b"AMQP\0\0\x09\x01").unwrap();
    assert_eq!(read(&mut client, 1), [1]);
    client.shutdown(Shutdown::Write).unwrap();
    client.read_to_end(&mut Vec::new()).unwrap();
}

/// A check of a node's health is answered at once while no node leads; what else is asked waits, and a check is relayed where one does.
#[test]
fn a_health_check_waits_for_nobody() {
    let set = start(door(RelayedListener::Http), None, LIMITS);
    let mut client = set.connect();
    client.write_all(b"GET /api/health/checks/alarms HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut told = String::new();
    client.read_to_string(&mut told).unwrap();
    assert!(told.starts_with("HTTP/1.1 503 "), "{told}");
    assert!(told.contains("no node leads the cluster now"), "{told}");
    let mut waits = set.connect();
    waits.write_all(b"GET /api/queues HTTP/1.1\r\nX: /api/health/checks/\r\n\r\n").unwrap();
    until(|| set.totals.now().waiting == 1);
    let broker = set.broker(7);
    set.views.send_replace(view(Some(7)));
    assert_eq!(read(&mut accept(&broker), 15), b"GET /api/queues");
    let mut checks = set.connect();
    checks.write_all(b"GET /api/health/checks/alarms HTTP/1.1\r\n\r\n").unwrap();
    assert_eq!(read(&mut accept(&broker), 22), b"GET /api/health/checks");
    assert_eq!(set.totals.now().refused, 1);
}

#[test]
fn so_many_may_wait() {
    let set = start(door(RelayedListener::Amqp), None, Limits { waiting: 2, ..LIMITS });
    let _waiting = [set.connect(), set.connect()];
    assert!(is_over(&mut set.connect()), "there is no place");
    let broker = set.broker(7);
    set.views.send_replace(view(Some(7)));
    let _relayed = [accept(&broker), accept(&broker)];
    let _more = set.connect();
    accept(&broker);
}

#[test]
fn who_waits_at_the_end_is_given_back_and_the_port_is_free() {
    let limits = Limits { farewell: Duration::from_secs(60), ..LIMITS };
    let set = start(door(RelayedListener::Amqp), Some(7), limits);
    let broker = set.broker(7);
    let mut relayed_client = set.connect();
    let mut relayed = accept(&broker);
    // The broker has the connection before the relay knows: only now it is one that has begun.
    until(|| set.totals.now().open == 1);
    set.views.send_replace(view(None));
    let mut client = set.connect();
    client.write_all(b"AMQP").unwrap();
    let address = set.address();
    // Who is in the kernel's line is nobody's yet: this one is past it.
    until(|| set.totals.now().waiting == 1);
    let mut waited = set.stop();
    let _next = bind(address, &SocketOptions::default()).unwrap();
    let (listener, Arrival { socket, ends }) = waited.pop().unwrap();
    assert!(waited.is_empty());
    assert_eq!(listener, RelayedListener::Amqp);
    assert_eq!(ends.source, client.local_addr().unwrap());
    socket.set_nonblocking(false).unwrap();
    let mut socket = socket;
    assert_eq!(read(&mut socket, 4), b"AMQP");
    // The farewell of the node that led.
    relayed.write_all(b"320").unwrap();
    assert_eq!(read(&mut relayed_client, 3), b"320");
}

#[test]
fn relays_to_a_node_that_leads_no_more_end() {
    let limits = Limits { farewell: Duration::from_millis(10), ..LIMITS };
    let set = start(door(RelayedListener::Amqp), Some(7), limits);
    let broker = set.broker(7);
    let mut client = set.connect();
    let mut relayed = accept(&broker);
    client.write_all(b"AMQP").unwrap();
    assert_eq!(read(&mut relayed, 4), b"AMQP");
    set.views.send_replace(view(None));
    relayed.write_all(b"start").unwrap();
    assert_eq!(read(&mut client, 5), b"start", "it may lead again");
    set.views.send_replace(view(Some(8)));
    assert!(is_over(&mut client));
}
