//! The node that leads, and nodes of sessions that are connected to it: each writes letters by hand.

use std::collections::VecDeque;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use leveret_amqp::table::Table;
use leveret_broker::message::{
    Attached, ConnectionId, FromLeader, LeaderTerms, NamesBatch, NodeId, Reply, ReplyTo,
    SessionsHello, ShardTerm, Step, ToLeader, ToSession, ToShard, What,
};
use leveret_queue::Time;
use leveret_server::cluster::arrivals::{Arrival, Bringers, RelayedListener, arrivals};
use leveret_server::cluster::links::LinkSocket;
use leveret_server::cluster::sessions::wire::{
    self, End, Letter, Outgoing, read_from_leader, write_to_leader,
};
use leveret_server::cluster::view::{ClusterView, NodeView, Standing};
use leveret_server::connection::{Io, Sampled};
use leveret_server::ended::Sums;
use leveret_server::proxy::Ends;
use leveret_session::{ConnectionFacts, ConnectionNumbers, SessionTotals};
use leveret_topology::{EntityKey, Event, GroupId, QueueId, UsedBy, VhostId};
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};

use crate::node::{Node, PATIENCE, wait_until};

/// The terms in which the node leads: of the names, and of more shards than a test has.
const NAMES_TERM: u64 = 3;
const SHARD_TERM: u64 = 5;

/// The node that leads, and a way to it.
struct Leader {
    node: Node,
    bringers: Bringers,
    _views: watch::Sender<Arc<ClusterView>>,
}

/// A node of sessions.
struct Far {
    node: NodeId,
    shared: Arc<Shared>,
    heard: mpsc::Receiver<FromLeader>,
    over: mpsc::Receiver<String>,
    /// Dropped, it ends the connection.
    end: Option<tokio::sync::oneshot::Sender<()>>,
}

#[derive(Default)]
struct Shared {
    line: Mutex<VecDeque<ToLeader>>,
    woken: Notify,
}

struct FarEnd {
    shared: Arc<Shared>,
    heard: mpsc::Sender<FromLeader>,
}

impl End for FarEnd {
    fn say(&self, to: &mut Outgoing) -> Result<(), String> {
        while to.has_room() {
            let Some(letter) = self.shared.line.lock().unwrap().pop_front() else { break };
            let letter = write_to_leader(&letter, to.writer()).map_err(|it| it.to_string())?;
            to.put(letter);
        }
        Ok(())
    }

    fn hear(&self, letters: &mut Vec<Letter>) -> Result<(), String> {
        for letter in letters.drain(..) {
            let letter = read_from_leader(&letter).map_err(|it| it.to_string())?;
            // A test that has ended hears nothing.
            let _ = self.heard.send(letter);
        }
        Ok(())
    }
}

fn leader_with(before: impl FnOnce(&Bringers)) -> Leader {
    let (bringers, taken) = arrivals();
    let running = |name: &str, raft_id| NodeView {
        name: name.to_owned(),
        raft_id,
        running: true,
        ..NodeView::default()
    };
    let view = ClusterView {
        node: "rabbit@test".to_owned(),
        standing: Standing::Leads,
        nodes: vec![running("rabbit@test", None), running("rabbit@far", Some(7))],
        ..ClusterView::default()
    };
    let (views, seen) = watch::channel(Arc::new(view));
    before(&bringers);
    let node = Node::changed(&[], |options| {
        (options.arrivals, options.views) = (Some(taken), Some(seen));
        let shards = options.shards.iter().map(|_| SHARD_TERM);
        options.remote_sessions = Some([NAMES_TERM].into_iter().chain(shards).collect());
    });
    Leader { node, bringers, _views: views }
}

fn leader() -> Leader {
    leader_with(|_| {})
}

fn hello(raft_id: u64, start: u32) -> SessionsHello {
    let (connections, queues) = (Vec::new(), Vec::new());
    SessionsHello { raft_id, start, attaches: None, connections, queues }
}

impl Far {
    /// Connects, and says nothing.
    fn connect(bringers: &Bringers, raft_id: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let socket = listener.accept().unwrap().0;
        socket.set_nonblocking(true).unwrap();
        near.set_nonblocking(true).unwrap();
        let ends = Ends::new("192.0.2.9:4711".parse().unwrap(), "192.0.2.1:4712".parse().unwrap());
        bringers.bring(RelayedListener::Sessions, Arrival { socket, ends });
        let shared = Arc::<Shared>::default();
        let (heard_in, heard) = mpsc::channel();
        let (over_in, over) = mpsc::channel();
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let far = FarEnd { shared: Arc::clone(&shared), heard: heard_in };
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async move {
                let socket = LinkSocket::from(tokio::net::TcpStream::from_std(near).unwrap());
                tokio::select! {
                    over = wire::call(&socket, &far, &far.shared.woken) => drop(over_in.send(over.why)),
                    _ = ended => {}
                }
            });
        });
        let node = NodeId::new(2 + (raft_id % ((1 << 24) - 2)) as u32).unwrap();
        Self { node, shared, heard, over, end: Some(end) }
    }

    /// The same, and says hello.
    fn come(bringers: &Bringers, hello: SessionsHello) -> Self {
        let far = Self::connect(bringers, hello.raft_id);
        far.say(ToLeader::Hello(hello));
        far
    }

    fn session(&self, number: u64) -> ConnectionId {
        self.node.connection(number)
    }

    fn say(&self, letter: ToLeader) {
        self.shared.line.lock().unwrap().push_back(letter);
        self.shared.woken.notify_one();
    }

    #[track_caller]
    fn hears<T>(&self, mut what: impl FnMut(FromLeader) -> Option<T>) -> T {
        // Looks for statistics come all the time.
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let letter = self.heard.recv_timeout(left).expect("nothing comes any more");
            if let Some(found) = what(letter) {
                return found;
            }
        }
    }

    #[track_caller]
    fn names(&self) -> NamesBatch {
        self.hears(|letter| match letter {
            FromLeader::Names(names) => Some(names),
            _ => None,
        })
    }

    /// Takes the first names, and waits until the leader hears.
    #[track_caller]
    fn begins(&self) -> LeaderTerms {
        let names = self.names();
        assert!(names.is_whole && !names.goes_on);
        self.say(ToLeader::NamesTaken(names.number));
        let terms = self.hears(|letter| match letter {
            FromLeader::Begins(terms) => Some(terms),
            _ => None,
        });
        // What is short is told right behind it.
        let next = self.heard.recv_timeout(PATIENCE).unwrap();
        assert!(matches!(next, FromLeader::Alarm(_)), "{next:?}");
        terms
    }

    /// The next question of management, and its number.
    #[track_caller]
    fn is_looked_at(&self) -> (u64, Value) {
        self.hears(|letter| match letter {
            FromLeader::Look(number, question) => {
                Some((number, serde_json::from_slice(&question).unwrap()))
            }
            _ => None,
        })
    }

    /// The next one that is not for statistics, which it shows nothing for.
    #[track_caller]
    fn is_asked(&self) -> (u64, Value) {
        loop {
            let (number, question) = self.is_looked_at();
            if question.get("sample").is_none() {
                return (number, question);
            }
            self.shows(number, &json!({}));
        }
    }

    fn shows(&self, number: u64, part: &Value) {
        self.say(ToLeader::Seen(number, serde_json::to_vec(part).unwrap().into()));
    }

    /// Why it was told to go.
    #[track_caller]
    fn is_refused(&self) -> String {
        let why = self.hears(|letter| match letter {
            FromLeader::Over(why) => Some(why.into_string()),
            _ => None,
        });
        self.is_closed();
        why
    }

    #[track_caller]
    fn is_closed(&self) {
        self.over.recv_timeout(PATIENCE).expect("its connection stays");
    }

    fn ends(&mut self) {
        self.end.take();
    }
}

/// What a node shows of one of its connections.
fn shown(id: ConnectionId, published: u64, is_listed: bool) -> Value {
    let mut totals = SessionTotals { connections_opened: 1, ..SessionTotals::default() };
    totals.channels.published.publish = published;
    let session = ConnectionNumbers {
        state: "running".into(),
        is_open: true,
        vhost: VhostId::new(1),
        waits_for: None,
        channels: Vec::new(),
        passed: Vec::new(),
        totals,
    };
    let (io, turns) = (Io::default(), published + 1);
    let facts = ConnectionFacts {
        id,
        peer: format!("192.0.2.9:{}", id.number()),
        tls: None,
        user: "guest".to_owned(),
        vhost: "/".to_owned(),
        state: "running".into(),
        mechanism: "PLAIN".into(),
        frame_max: 131_072,
        channel_max: 2047,
        heartbeat_s: 60,
        connected: Time::from_ms(1),
        client_properties: Table::new(),
        channels: Vec::new(),
    };
    json!({
        "id": id,
        "peer": facts.peer,
        "local": "192.0.2.1:5672",
        "user": "guest",
        "is_encrypted": false,
        "facts": is_listed.then_some(&facts),
        "sampled": Sampled { turns, session, io, held_bytes: 0, letters: 0 },
    })
}

/// The queue of a name, and its home.
fn queue(leader: &Leader, name: &str) -> (QueueId, GroupId) {
    let topology = leader.node.inner.topology();
    let vhost = topology.vhosts().next().unwrap().id;
    let queues = topology.queues(vhost);
    let queue = queues.iter().find(|queue| &*queue.name == name).unwrap();
    (queue.id, queue.home)
}

#[test]
fn what_changes_names_is_answered_once_all_nodes_have_them() {
    let leader = leader();
    let far = Far::come(&leader.bringers, hello(7, 0));
    let terms = far.begins();
    assert_eq!(terms.names, NAMES_TERM);
    assert_eq!(terms.shards.len(), leader.node.inner.shards.len());
    for ShardTerm { streams: places, .. } in &terms.shards {
        assert!(places.iter().all(|it| (it.term, it.next) == (SHARD_TERM << 32, 1)), "{places:?}");
    }
    let (mut client, channel) = leader.node.client();
    let is_answered = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            client.queue_declare(channel, "q", &Default::default()).unwrap();
            is_answered.store(true, Ordering::SeqCst);
        });
        let names = far.names();
        assert_eq!((names.number, names.is_whole), (2, false));
        let is_queue = |key: &EntityKey| matches!(key, EntityKey::Queue(..));
        assert!(names.changes.iter().any(|change| is_queue(&change.key)), "{names:?}");
        // Enough for an answer that waits for nobody.
        wait_until("the queue is there", || leader.node.inner.topology().queue_count() == 1);
        assert!(!is_answered.load(Ordering::SeqCst));
        far.say(ToLeader::NamesTaken(2));
        wait_until("it is answered", || is_answered.load(Ordering::SeqCst));
    });
    // One that comes now has all at once, whatever the last number was.
    let other = Far::come(&leader.bringers, hello(8, 0));
    other.begins();
}

#[test]
fn who_does_not_take_names_is_cut_off_and_its_sessions_are_over() {
    let leader = leader();
    let far = Far::come(&leader.bringers, hello(7, 4));
    far.begins();
    let (mut client, channel) = leader.node.client();
    let begun = Instant::now();
    client.queue_declare(channel, "q", &Default::default()).unwrap();
    let waited = begun.elapsed();
    let (least, most) = (Duration::from_millis(1_900), Duration::from_secs(8));
    assert!(waited >= least && waited < most, "{waited:?}");
    far.is_closed();
    // It calls again in the same life: it is told that its sessions are over. So is an older life.
    for start in [4, 3] {
        let why = Far::come(&leader.bringers, hello(7, start)).is_refused();
        assert!(why.contains("are over there"), "{why}");
    }
    Far::come(&leader.bringers, hello(7, 5)).begins();
}

/// It may be cut off, and not know: until its lease is over its sessions act by the names that it has.
#[test]
fn what_is_answered_waits_for_the_lease_of_who_is_cut_off() {
    let leader = leader();
    let far = Far::come(&leader.bringers, hello(7, 4));
    far.begins();
    let (mut client, channel) = leader.node.client();
    std::thread::scope(|scope| {
        let answered = scope.spawn(move || {
            client.queue_declare(channel, "q", &Default::default()).unwrap();
            Instant::now()
        });
        let has_lease = |number| loop {
            match far.heard.recv_timeout(PATIENCE) {
                Ok(FromLeader::Lease(it)) => break it == number,
                Ok(_) => {}
                Err(_) => break false,
            }
        };
        let mut last = None;
        for number in 1.. {
            let asked = Instant::now();
            far.say(ToLeader::AsksLease(number));
            if !has_lease(number) {
                break;
            }
            last = Some(asked);
        }
        // `LEASE_MS` of `leveret_node`.
        let lease = Duration::from_millis(1_600);
        assert!(answered.join().unwrap() >= last.expect("it has a lease") + lease);
    });
}

#[test]
fn what_sessions_of_a_node_had_comes_back_when_it_is_gone() {
    let leader = leader();
    let (mut client, channel) = leader.node.client();
    client.queue_declare(channel, "q", &Default::default()).unwrap();
    client.publish(channel, "", "q", &[0, 0], b"one");
    client.flush().unwrap();
    let (id, home) = queue(&leader, "q");
    wait_until("it is there", || {
        leader.node.ask("GET", "/api/queues/%2F/q", "").json()["messages_ready"] == 1
    });
    let mut far = Far::come(&leader.bringers, hello(7, 0));
    far.begins();
    let reply = ReplyTo { connection: far.session(1), channel: 1 };
    far.say(ToLeader::Opened(reply.connection));
    far.say(ToLeader::Shard(home, ToShard::Get { reply, queue: id, no_ack: false }));
    far.hears(|letter| match letter {
        FromLeader::Session(to, from, ToSession::Reply { reply: Reply::Got { .. }, .. }) => {
            assert_eq!((to, from), (reply.connection, Some(home)));
            Some(())
        }
        _ => None,
    });
    assert!(client.get(channel, "q", true).unwrap().is_none(), "somebody has it");
    far.ends();
    let mut got = None;
    wait_until("it is back", || {
        got = client.get(channel, "q", true).unwrap();
        got.is_some()
    });
    assert!(got.unwrap().redelivered);
}

#[test]
fn a_node_has_its_own_sessions_and_no_others() {
    let leader = leader();
    // Sessions of the broker itself.
    let connections = vec![NodeId::ALONE.connection(1)];
    let wrong = SessionsHello { connections, ..hello(7, 0) };
    let why = Far::come(&leader.bringers, wrong).is_refused();
    assert!(why.contains("no session of node"), "{why}");
    // No hello.
    let far = Far::connect(&leader.bringers, 7);
    far.say(ToLeader::NamesTaken(1));
    far.is_closed();
    // Another member with the same number.
    let far = Far::come(&leader.bringers, hello(7, 0));
    far.begins();
    let why = Far::come(&leader.bringers, hello(7 + (1 << 24) - 2, 0)).is_refused();
    assert!(why.contains("have the same number 9"), "{why}");
    // Letters of others' sessions. The first one ends it: of another node, of the broker, of a shard that is not there.
    let home = leader.node.inner.homes.group_at(0);
    let get = |connection| ToShard::Get {
        reply: ReplyTo { connection, channel: 1 },
        queue: QueueId::new(1),
        no_ack: true,
    };
    let wrong = [
        (home, get(NodeId::new(99).unwrap().connection(1))),
        (home, get(NodeId::ALONE.connection(1))),
        (GroupId::new(9_999), get(far.session(1))),
    ];
    let mut far = far;
    for (start, (group, letter)) in (1..).zip(wrong) {
        far.say(ToLeader::Shard(group, letter));
        far.is_closed();
        far = Far::come(&leader.bringers, hello(7, start));
        far.begins();
    }
    // Names that it was not told.
    far.say(ToLeader::NamesTaken(1_000));
    far.is_closed();
}

#[test]
fn a_newer_life_takes_the_place_of_one_that_is_there() {
    let leader = leader();
    let first = Far::come(&leader.bringers, hello(7, 0));
    first.begins();
    let second = Far::come(&leader.bringers, hello(7, 1));
    second.begins();
    first.is_closed();
}

/// Nobody has heard of its sessions yet.
#[test]
fn who_was_not_told_that_the_shards_hear_may_call_again() {
    let leader = leader();
    let mut first = Far::come(&leader.bringers, hello(7, 4));
    first.names();
    first.ends();
    let second = Far::come(&leader.bringers, hello(7, 4));
    second.names();
    // The first one is there still, for all that is known.
    let third = Far::come(&leader.bringers, hello(7, 4));
    third.begins();
    second.is_closed();
    let why = Far::come(&leader.bringers, hello(7, 4)).is_refused();
    assert!(why.contains("are over there"), "{why}");
}

#[test]
fn a_leader_waits_for_the_sessions_that_are_to_attach() {
    let mut far = None;
    let leader = leader_with(|bringers| {
        let connections = vec![NodeId::new(9).unwrap().connection(1)];
        let hello = SessionsHello { attaches: Some(1), connections, ..hello(7, 3) };
        far = Some(Far::come(bringers, hello));
    });
    let far = far.unwrap();
    let terms = far.begins();
    let (mut client, channel) = leader.node.client();
    let inner = &leader.node.inner;
    let are_attaching = || inner.shards.iter().filter(|it| it.actor.state().is_attaching()).count();
    assert_eq!(are_attaching(), terms.shards.len());
    // Who comes now is too late.
    let late = SessionsHello { attaches: Some(1), ..hello(8, 0) };
    let why = Far::come(&leader.bringers, late).is_refused();
    assert!(why.contains("did not wait"), "{why}");
    for ShardTerm { group, streams: [bodies, _], .. } in &terms.shards {
        let attached = Attached {
            node: far.node,
            start: 3,
            term: bodies.term,
            last: [0; 2],
            undecided_from: 1,
        };
        far.say(ToLeader::Shard(*group, ToShard::Attached(attached)));
    }
    wait_until("they have attached", || are_attaching() == 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            client.queue_declare(channel, "q", &Default::default()).unwrap();
        });
        far.say(ToLeader::NamesTaken(far.names().number));
    });
}

#[test]
fn nobody_waits_for_a_node_that_is_gone_before_it_has_attached() {
    let mut far = None;
    let leader = leader_with(|bringers| {
        let hello = SessionsHello { attaches: Some(1), ..hello(7, 3) };
        far = Some(Far::come(bringers, hello));
    });
    let mut far = far.unwrap();
    far.begins();
    far.ends();
    let inner = &leader.node.inner;
    wait_until("nobody is waited for", || {
        inner.shards.iter().all(|it| !it.actor.state().is_attaching())
    });
    let (mut client, channel) = leader.node.client();
    client.queue_declare(channel, "q", &Default::default()).unwrap();
    assert!(client.get(channel, "q", true).unwrap().is_none());
}

#[test]
fn a_leader_with_all_sessions_says_so() {
    let (bringers, taken) = arrivals();
    let _node = Node::changed(&[], |options| options.arrivals = Some(taken));
    let why = Far::come(&bringers, hello(7, 0)).is_refused();
    assert!(why.contains("cluster.sessions = relayed"), "{why}");
}

#[test]
fn a_stop_leaves_the_sessions_of_others_to_the_next_leader() {
    let leader = leader();
    let far = Far::come(&leader.bringers, hello(7, 0));
    far.begins();
    leader.node.ask_to_stop();
    far.is_closed();
    let told: Vec<_> = far.heard.try_iter().collect();
    assert!(!told.iter().any(|it| matches!(it, FromLeader::Over(_))), "{told:?}");
}

/// How a node answers the looks of management.
#[derive(Default)]
struct Answers {
    /// With this, if it answers at all.
    part: Mutex<Option<Value>>,
    /// Each number and question, and whether it was answered.
    looks: Mutex<Vec<(u64, Value, bool)>>,
    /// The node goes.
    ends: AtomicBool,
}

/// The node goes when this does.
struct Ending<'a>(&'a Answers);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.ends.store(true, Ordering::SeqCst);
    }
}

impl Answers {
    fn give(&self, far: Far) {
        while !self.ends.load(Ordering::SeqCst) {
            match far.heard.recv_timeout(Duration::from_millis(10)) {
                Ok(FromLeader::Look(number, question)) => {
                    let part = self.part.lock().unwrap().clone();
                    let question = serde_json::from_slice(&question).unwrap();
                    self.looks.lock().unwrap().push((number, question, part.is_some()));
                    part.inspect(|part| far.shows(number, part));
                }
                Ok(_) | Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn becomes(&self, part: Option<Value>) {
        *self.part.lock().unwrap() = part;
    }

    fn count(&self) -> usize {
        self.looks.lock().unwrap().len()
    }
}

/// What a node counted stays while it says nothing, and when it is gone. Only what changed is asked for, unless an answer did not come.
#[test]
fn totals_outlive_the_node_that_counted_them() {
    let leader = leader();
    let sampled = || {
        let page = leader.node.scrape("/metrics");
        let value = |name: &str| {
            let line = page.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|value| value.trim().parse::<u64>().ok()).unwrap_or_default()
        };
        let published = r#"rabbitmq_global_messages_received_total{protocol="amqp091"}"#;
        [published, "rabbitmq_connections ", "rabbitmq_connections_closed_total "].map(value)
    };
    let far = Far::come(&leader.bringers, hello(7, 0));
    far.begins();
    let (one, other) = (far.session(1), far.session(2));
    let part = |id, published| {
        let mut sums = Sums::default();
        sums.session.channels.published.publish = 40;
        json!({
            "node": "rabbit@far",
            "connections": [shown(id, published, false)],
            "by_vhost": [(VhostId::new(1), sums)],
        })
    };
    let answers = Answers::default();
    answers.becomes(Some(part(one, 3)));
    std::thread::scope(|scope| {
        let _ends = Ending(&answers);
        scope.spawn(|| answers.give(far));
        wait_until("it is counted", || sampled() == [43, 1, 0]);
        // Nothing has changed.
        answers.becomes(Some(json!({"rests": [one], "by_vhost": part(one, 0)["by_vhost"]})));
        let before = answers.count();
        wait_until("it is asked twice more", || {
            assert_eq!(sampled(), [43, 1, 0]);
            answers.count() >= before + 2
        });
        // The last one is not asked before one in between has been given up, and all is made of it.
        answers.becomes(None);
        let before = answers.count();
        wait_until("it is silent", || {
            assert_eq!(sampled(), [43, 1, 0]);
            answers.count() >= before + 2
        });
        answers.becomes(Some(part(one, 5)));
        wait_until("it is counted again", || {
            let [published, connections, _] = sampled();
            assert!(published >= 43 && connections == 1, "{published}, {connections}");
            published == 45
        });
        // Of other nodes a page at a glance knows what statistics do: that it is asked for nothing else is seen below.
        let overview = leader.node.get("/api/overview");
        assert_eq!(overview["object_totals"]["connections"], 1, "{overview}");
    });
    wait_until("it is gone", || {
        let sampled = sampled();
        assert_eq!(sampled[0], 45, "{sampled:?}");
        sampled == [45, 0, 1]
    });
    let looks = std::mem::take(&mut *answers.looks.lock().unwrap());
    let asks_all = json!({"sample": {"since": null}});
    assert_eq!(looks[0].1, asks_all);
    let mut asked_since = 0;
    for pair in looks.windows(2) {
        let [(number, _, is_answered), (_, question, _)] = pair else { unreachable!() };
        // An answer may have been late on a busy machine.
        if *question != asks_all {
            assert!(is_answered, "{looks:?}");
            assert_eq!(*question, json!({"sample": {"since": number}}), "{looks:?}");
            asked_since += 1;
        }
    }
    assert!(asked_since > 0, "{looks:?}");
    // Another start counts anew.
    let far = Far::come(&leader.bringers, hello(7, 1));
    far.begins();
    let answers = Answers::default();
    answers.becomes(Some(part(other, 100)));
    std::thread::scope(|scope| {
        let _ends = Ending(&answers);
        scope.spawn(|| answers.give(far));
        wait_until("both are counted", || sampled() == [185, 1, 1]);
    });
}

/// A page of one connection asks for that one alone; a list takes all parts.
#[test]
fn connections_of_a_node_are_asked_for() {
    let leader = leader();
    let far = Far::come(&leader.bringers, hello(7, 0));
    far.begins();
    let part = |numbers: &[u64], goes_on: bool| {
        let rows: Vec<_> = numbers.iter().map(|it| shown(far.session(*it), 0, true)).collect();
        json!({"node": "rabbit@far", "connections": rows, "goes_on": goes_on})
    };
    std::thread::scope(|scope| {
        let name = "192.0.2.9:4 -> 192.0.2.1:5672";
        let path = "/api/connections/192.0.2.9:4%20-%3E%20192.0.2.1:5672";
        let page = scope.spawn(|| leader.node.get(path));
        let (number, question) = far.is_asked();
        assert_eq!(question, json!({"one": {"name": name}}));
        far.shows(number, &part(&[4], false));
        let page = page.join().unwrap();
        assert_eq!((&page["name"], &page["node"]), (&json!(name), &json!("rabbit@far")));
        // It has none of this name, or another version answers with something else.
        for answer in [part(&[], false), part(&[5], false)] {
            let page = scope.spawn(|| leader.node.must("GET", path, "", 404).status);
            far.shows(far.is_asked().0, &answer);
            page.join().unwrap();
        }
    });
    std::thread::scope(|scope| {
        let list = scope.spawn(|| leader.node.get("/api/connections"));
        let (number, question) = far.is_asked();
        assert_eq!(question, lists(None));
        far.shows(number, &part(&[1, 2], true));
        let (number, question) = far.is_asked();
        assert_eq!(question, json!("more"));
        far.shows(number, &part(&[3], true));
        far.shows(far.is_asked().0, &part(&[], false));
        assert_eq!(list.join().unwrap().as_array().unwrap().len(), 3);
        // One that shows no more: what came of it is shown, and the next list is whole.
        let list = scope.spawn(|| leader.node.get("/api/connections"));
        far.shows(far.is_asked().0, &part(&[1, 2], true));
        let (late, _) = far.is_asked();
        assert_eq!(list.join().unwrap().as_array().unwrap().len(), 2);
        let list = scope.spawn(|| leader.node.get("/api/connections"));
        let (number, question) = far.is_asked();
        assert_eq!(question, lists(None));
        far.shows(late, &part(&[3], false));
        far.shows(number, &part(&[1, 2, 3], false));
        assert_eq!(list.join().unwrap().as_array().unwrap().len(), 3);
    });
}

/// The question for a list: of a user, or of all.
fn lists(user: Option<&str>) -> Value {
    json!({"list": {"user": user, "vhost": null}})
}

/// Lists lack what a node does not show in time, and say so; whether it has a connection is not known; its connections may be open.
#[test]
fn who_asks_is_told_of_nodes_that_do_not_answer() {
    let leader = leader();
    let far = Far::come(&leader.bringers, hello(7, 0));
    far.begins();
    let (silent, open) = (
        "connections of rabbit@far are not all there: it does not answer in time",
        "connections of rabbit@far may be open still: it does not answer in time",
    );
    let shows_one = |number| {
        let rows = [shown(far.session(1), 0, true)];
        far.shows(number, &json!({"node": "rabbit@far", "connections": rows, "goes_on": true}));
    };
    std::thread::scope(|scope| {
        for path in ["/api/connections", "/api/channels"] {
            let list = scope.spawn(|| leader.node.must("GET", path, "", 200));
            shows_one(far.is_asked().0);
            assert_eq!(far.is_asked().1, json!("more"));
            assert!(list.join().unwrap().header("warning").contains(silent));
        }
        let one = "/api/connections/nobody";
        let page = scope.spawn(|| leader.node.must("GET", one, "", 503));
        assert_eq!(far.is_asked().1, json!({"one": {"name": "nobody"}}));
        assert!(page.join().unwrap().text().contains("not heard in time: rabbit@far"));
        let of_user = "/api/connections/username/guest";
        let done = scope.spawn(|| leader.node.must("DELETE", of_user, "", 204));
        let (number, question) = far.is_asked();
        assert_eq!(question, lists(Some("guest")));
        shows_one(number);
        let closes = |letter| match letter {
            FromLeader::Session(to, _, ToSession::Close { .. }) => Some(to),
            _ => None,
        };
        assert_eq!(far.hears(closes), far.session(1));
        assert!(done.join().unwrap().header("warning").contains(open));
        // It answers again, and nothing is told.
        let done = scope.spawn(|| leader.node.must("DELETE", of_user, "", 204));
        far.shows(far.is_asked().0, &json!({}));
        assert_eq!(done.join().unwrap().header("warning"), "");
    });
}

/// Who may see only connections of its own has only those asked for. One that is named by its `pid` is asked of its node alone.
#[test]
fn no_more_is_asked_than_is_wanted() {
    let leader = leader();
    let node = &leader.node;
    let (far, other) =
        (Far::come(&leader.bringers, hello(7, 0)), Far::come(&leader.bringers, hello(8, 0)));
    far.begins();
    other.begins();
    let user = json!({"password": "p", "tags": "management"}).to_string();
    let answers_names = |far: &Far| far.say(ToLeader::NamesTaken(far.names().number));
    let id = far.session(4);
    let path = format!("/api/connections/%3Cconnection.{id}%3E");
    std::thread::scope(|scope| {
        let put = scope.spawn(|| node.must("PUT", "/api/users/m", &user, 201).status);
        [&far, &other].into_iter().for_each(answers_names);
        put.join().unwrap();
        for (path, asks) in [("/api/connections", true), ("/api/connections/username/guest", false)]
        {
            let list = scope.spawn(move || node.ask_as(Some("m:p"), "GET", path, &[], b"").json());
            for far in [&far, &other].into_iter().filter(|_| asks) {
                let (number, question) = far.is_asked();
                assert_eq!(question, lists(Some("m")));
                far.shows(number, &json!({}));
            }
            assert_eq!(list.join().unwrap(), json!([]));
        }
        let closed = scope.spawn(|| node.must("DELETE", &path, "", 204).status);
        let (number, question) = far.is_asked();
        assert_eq!(question, json!({"one": {"name": id.pid()}}));
        far.shows(number, &json!({"connections": [shown(id, 0, true)]}));
        let is_told = |letter| match letter {
            FromLeader::Session(to, _, ToSession::Close { .. }) => Some(to),
            _ => None,
        };
        assert_eq!(far.hears(is_told), id);
        closed.join().unwrap();
    });
    // Nobody else was asked for it, and of a node that is not here nobody is.
    let path =
        format!("/api/connections/%3Cconnection.{}%3E", NodeId::new(99).unwrap().connection(1));
    node.must("DELETE", &path, "", 404);
    let asked: Vec<_> = other
        .heard
        .try_iter()
        .filter_map(|it| match it {
            FromLeader::Look(_, question) => serde_json::from_slice::<Value>(&question).ok(),
            _ => None,
        })
        .collect();
    assert!(asked.iter().all(|it| it.get("sample").is_some()), "{asked:?}");
}

/// What all nodes have together is below the limit, and each is told what all others have.
#[test]
fn limits_are_of_all_nodes_together() {
    let leader = leader();
    let node = &leader.node;
    let far = Far::come(&leader.bringers, hello(7, 0));
    far.begins();
    let user = UsedBy::User("guest".into());
    let tells = |far: &Far, connections, channels| {
        let told = json!([[user, {"connections": connections, "channels": channels}]]);
        far.say(ToLeader::Uses(serde_json::to_vec(&told).unwrap().into()));
    };
    let hears = |far: &Far, connections: u64, channels: u64| {
        let want = json!([[user, {"connections": connections, "channels": channels}]]);
        far.hears(|letter| match letter {
            FromLeader::Uses(told) => {
                let told: Value = serde_json::from_slice(&told).unwrap();
                (told == want).then_some(())
            }
            _ => None,
        });
    };
    let limits = |name: &str, count: u64| {
        std::thread::scope(|scope| {
            let path = format!("/api/user-limits/guest/{name}");
            let value = json!({ "value": count }).to_string();
            let put = scope.spawn(move || node.must("PUT", &path, &value, 204).status);
            far.say(ToLeader::NamesTaken(far.names().number));
            put.join().unwrap();
        });
    };
    limits("max-connections", 3);
    hears(&far, 0, 0);
    limits("max-channels", 2);
    tells(&far, 2, 1);
    // A second one comes, and is told of all that others have when it is heard:
    let other = Far::come(&leader.bringers, hello(8, 0));
    let number = other.names().number;
    // Before it is told so, and what it has counts before it has said that the names are there.
    tells(&other, 1, 1);
    hears(&far, 1, 1);
    tells(&other, 0, 0);
    hears(&far, 0, 0);
    other.say(ToLeader::NamesTaken(number));
    hears(&other, 2, 1);
    other.hears(|letter| matches!(letter, FromLeader::Begins(_)).then_some(()));
    let (mut client, _channel) = node.client();
    hears(&far, 1, 1);
    hears(&other, 3, 2);
    let why = node.connect().err().unwrap();
    assert!(why.contains("user connection limit (3) is reached"), "{why}");
    let why = client.open_channel().unwrap_err().to_string();
    assert!(why.contains("maximum allowed user limit of 2"), "{why}");
    drop(client);
    hears(&far, 0, 0);
    tells(&other, 1, 0);
    hears(&far, 1, 0);
    // Those of a node that is gone count no more.
    let mut far = far;
    far.ends();
    hears(&other, 0, 0);
    let (_client, _channel) = node.client();
    // What is told of somebody who is not there, or means nothing, is no harm.
    let nobody = json!([[UsedBy::User("nobody".into()), {"connections": 9, "channels": 0}]]);
    for told in [nobody, json!([["?"]])] {
        other.say(ToLeader::Uses(serde_json::to_vec(&told).unwrap().into()));
    }
    tells(&other, 2, 0);
    wait_until("no more may come", || {
        node.connect().is_err_and(|why| why.contains("user connection limit (3) is reached"))
    });
}

#[test]
fn a_node_shows_and_tells_of_its_own_sessions_alone() {
    let leader = leader();
    let strangers = [NodeId::ALONE.connection(1), NodeId::new(99).unwrap().connection(1)];
    let mut start = 0;
    let mut comes = || {
        start += 1;
        let far = Far::come(&leader.bringers, hello(7, start));
        far.begins();
        far
    };
    for stranger in strangers {
        let far = comes();
        far.shows(far.is_looked_at().0, &json!({"connections": [shown(stranger, 0, false)]}));
        far.is_closed();
        let far = comes();
        far.shows(far.is_looked_at().0, &json!({"rests": [stranger]}));
        far.is_closed();
        for fact in ["pid", "connection"] {
            let far = comes();
            let tells = |id: ConnectionId| {
                let event = Event::new("connection.created").with(fact, &*id.pid());
                let told = serde_json::to_vec(&json!({"events": [event]})).unwrap();
                far.say(ToLeader::Told(told.into()));
            };
            tells(far.session(1));
            // It is heard still.
            far.shows(far.is_looked_at().0, &json!({}));
            tells(stranger);
            far.is_closed();
        }
        let far = comes();
        let step = Step {
            connection: stranger,
            channel: 1,
            what: What::Confirmed { number: 1, multiple: false, ok: true },
        };
        let told = serde_json::to_vec(&json!({"steps": [step]})).unwrap();
        far.say(ToLeader::Told(told.into()));
        far.is_closed();
    }
}
