//! A node of a cluster: clients that other nodes relay to the one that leads, what it shows of the others, and the control socket
//! of a node that follows.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use leveret_amqp::table::Table;
use leveret_client::{Connection, Options, Uri};
use leveret_config::{Config, FlagSetting, Inputs};
use leveret_server::cluster::arrivals::{Arrival, Bringers, RelayedListener, arrivals};
use leveret_server::cluster::names::{
    BatchContents, BatchName, Content, CopiedNames, Holder, Offset,
};
use leveret_server::cluster::standby::{Relay, Relaying, Totals};
use leveret_server::cluster::view::{
    ClusterView, GroupView, Lapses, LeftOutView, MemberTold, NodeTold, NodeView, Standing, Views,
};
use leveret_server::front::{About, Running, Standby, Stop};
use leveret_server::listener::ClientSuspension;
use leveret_server::proxy::Ends;
use leveret_topology::{Destination, EntityKey, Homes, Noted, PasswordHash, QueueSpec, Topology};
use serde_json::json;
use tokio::sync::{mpsc, watch};

use crate::node::{Got, Node, PATIENCE, wait_until};

const FAR: &str = "192.0.2.7:4711";
const NEAR: &str = "127.0.0.1:4711";

/// The node that leads, and the way to it.
struct Leading {
    node: Node,
    bringers: Bringers,
    views: watch::Sender<Arc<ClusterView>>,
}

/// As the node that leads sees its cluster, or the one that follows.
fn view(own: &str, running: [bool; 3], leader: Option<&str>) -> ClusterView {
    let names = ["rabbit@b", "rabbit@c", "rabbit@test"];
    let nodes = names.into_iter().zip(running).map(|(name, running)| NodeView {
        name: name.to_owned(),
        raft_id: None,
        linked: running,
        running,
        encrypted: false,
        leads: Some(name) == leader,
        joins: false,
        why_not: (!running).then(|| "nobody answers".to_owned()),
        clock_ahead_s: None,
        told: Some(NodeTold {
            version: "0.9".to_owned(),
            uptime_ms: 5000,
            fd_used: 17,
            relayed: 3,
            plugins: Some(vec!["rabbitmq_management"]),
            members: vec![MemberTold { group: 1, term: 3, last: 9, stored: 8, agreed: 7 }],
            ..NodeTold::default()
        }),
    });
    let standing = match leader {
        None => Standing::Waits,
        Some(leader) if leader == own => Standing::Leads,
        Some(_) => Standing::Follows,
    };
    let matched = vec![("rabbit@b".to_owned(), 5), ("rabbit@c".to_owned(), 9)];
    let left_out = vec![LeftOutView { node: "rabbit@b".to_owned(), reason: "does not answer" }];
    ClusterView {
        cluster_id: Some("c1".to_owned()),
        node: own.to_owned(),
        standing,
        leader: leader.map(str::to_owned),
        leader_id: leader.map(|_| 7),
        nodes: nodes.collect(),
        groups: vec![GroupView {
            last: 9,
            agreed: 9,
            term: 3,
            matched,
            left_out,
            ..GroupView::default()
        }],
        repaired: 2,
        lapses: Lapses { count: 1, ms: 1_500 },
        ..ClusterView::default()
    }
}

fn leading() -> Leading {
    let (bringers, taken) = arrivals();
    let now = view("rabbit@test", [true; 3], Some("rabbit@test"));
    let (views, seen) = watch::channel(Arc::new(now));
    let node = Node::changed(&[], |options| {
        (options.arrivals, options.views) = (Some(taken), Some(seen));
    });
    Leading { node, bringers, views }
}

/// A socket whose other end is elsewhere.
fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let far = listener.accept().unwrap().0;
    far.set_nonblocking(true).unwrap();
    near.set_read_timeout(Some(PATIENCE)).unwrap();
    (near, far)
}

fn ends(client: &str) -> Ends {
    Ends::new(client.parse().unwrap(), "192.0.2.1:5672".parse().unwrap())
}

impl Leading {
    /// Asks as a client at this address whose bytes are relayed.
    fn ask(&self, listener: RelayedListener, client: &str, request: &str) -> Got {
        let (mut near, socket) = pair();
        self.bringers.bring(listener, Arrival { socket, ends: ends(client) });
        let (line, more) = request.split_once('|').unwrap_or((request, ""));
        let head = format!("{line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{more}\r\n");
        near.write_all(head.as_bytes()).unwrap();
        let mut all = Vec::new();
        near.read_to_end(&mut all).unwrap();
        Got::read(&all)
    }

    /// Logs in with AMQP as a client at this address whose bytes are relayed.
    fn connect(&self, client: &str) -> Result<Connection, String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let uri = Uri { host: address.ip().to_string(), port: address.port(), ..Uri::default() };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let socket = listener.accept().unwrap().0;
                socket.set_nonblocking(true).unwrap();
                self.bringers.bring(RelayedListener::Amqp, Arrival { socket, ends: ends(client) });
            });
            let options = Options { heartbeat_s: Some(0), ..Options::default() };
            Connection::open(&uri, &options).map_err(|error| error.to_string())
        })
    }
}

#[test]
fn a_relayed_client_is_who_it_is_and_not_who_relays_it() {
    let leading = leading();
    // guest comes from the machine itself only: the way over another node does not make it so.
    let refused = leading.connect(FAR).map(drop).unwrap_err();
    assert!(refused.contains("ACCESS_REFUSED"), "{refused}");
    let _client = leading.connect(NEAR).unwrap();
    let rows = leading.node.get("/api/connections?columns=peer_host,peer_port,port");
    assert_eq!(rows, json!([{"peer_host": "127.0.0.1", "peer_port": 4711, "port": 5672}]));
    let guest = "GET /api/whoami|Authorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n";
    assert_eq!(leading.ask(RelayedListener::Http, FAR, guest).status, 401);
    assert_eq!(leading.ask(RelayedListener::Http, NEAR, guest).json()["name"], "guest");
    let page = leading.ask(RelayedListener::Metrics, FAR, "GET /metrics");
    assert!(page.text().contains("rabbitmq_identity_info"));
}

#[test]
fn nobody_serves_what_is_not_configured() {
    let leading = leading();
    let (mut near, socket) = pair();
    leading.bringers.bring(RelayedListener::Amqps, Arrival { socket, ends: ends(FAR) });
    assert!(matches!(near.read(&mut [0]), Ok(0)));
}

#[test]
fn the_operator_of_another_node_may_all_but_stop_this_one() {
    let leading = leading();
    let control = |request: &str| leading.ask(RelayedListener::Control, "0.0.0.0:0", request);
    assert_eq!(control("GET /api/whoami").json()["name"], "rmq-cli");
    let stop = control("POST /api/leveret/stop");
    assert_eq!(stop.status, 401);
    assert_eq!(stop.json()["reason"], "a node is stopped from its own machine only");
}

#[test]
fn all_nodes_of_the_cluster_are_listed() {
    let leading = leading();
    let get = |path: &str| leading.node.get(path);
    leading.views.send_replace(Arc::new(view(
        "rabbit@test",
        [true, false, true],
        Some("rabbit@test"),
    )));
    let rows = get("/api/nodes?columns=name,running,leads,uptime,fd_used,reason");
    assert_eq!(
        rows[0],
        json!({"name": "rabbit@b", "running": true, "leads": false, "uptime": 5000, "fd_used": 17})
    );
    // What it says of itself, and nothing that it does not say.
    let columns = ["enabled_plugins", "being_drained", "exchange_types", "config_files"];
    let row = get(&format!("/api/nodes/rabbit@b?columns={}", columns.join(",")));
    assert_eq!(row, json!({"enabled_plugins": ["rabbitmq_management"], "being_drained": false}));
    // What it told once is over.
    let gone =
        json!({"name": "rabbit@c", "running": false, "leads": false, "reason": "nobody answers"});
    assert_eq!(rows[1], gone);
    let own = (&rows[2]["name"], &rows[2]["running"], &rows[2]["leads"]);
    assert_eq!(own, (&json!("rabbit@test"), &json!(true), &json!(true)));
    assert_eq!(
        get("/api/nodes/rabbit@c?columns=name,running"),
        json!({"name": "rabbit@c", "running": false})
    );
    assert_eq!(get("/api/nodes/rabbit@b/memory"), json!({"memory": "not_available"}));
    assert!(get("/api/nodes/rabbit@test/memory")["memory"]["total"]["rss"].is_u64());
    leading.node.must("GET", "/api/nodes/rabbit@d", "", 404);
    let cluster = get("/api/leveret/cluster");
    assert_eq!(cluster["standing"], "leads");
    assert_eq!(cluster["nodes"][1]["running"], false);
    assert_eq!(cluster["groups"][0]["matched"][0], json!(["rabbit@b", 5]));
    let left_out = json!([{"node": "rabbit@b", "reason": "does not answer"}]);
    assert_eq!(cluster["groups"][0]["left_out"], left_out);
    let page = leading.node.scrape("/metrics");
    for line in [
        "leveret_cluster_node_up{node=\"rabbit@c\"} 0",
        "leveret_cluster_node_leads{node=\"rabbit@test\"} 1",
        "leveret_cluster_node_relayed_clients{node=\"rabbit@b\"} 3",
        "leveret_cluster_member_lag_batches{group=\"0\",node=\"rabbit@b\"} 4",
        "leveret_cluster_member_left_out{group=\"0\",node=\"rabbit@b\"} 1",
        "leveret_cluster_member_left_out{group=\"0\",node=\"rabbit@c\"} 0",
        "leveret_cluster_group_term{group=\"0\"} 3",
        "leveret_cluster_records_repaired_total 2",
        "leveret_cluster_lease_lapses_total 1",
        "leveret_cluster_lease_lapses_seconds_total 1.5",
    ] {
        assert!(page.lines().any(|it| it == line), "{line}");
    }
}

/// What is stored is on all members, and what is not on the node that leads alone.
#[test]
fn a_queue_is_where_its_members_are() {
    let (views, seen) = watch::channel(Arc::default());
    let node = Node::changed(&[("shards", "1")], |options| options.views = Some(seen));
    views.send_replace(Arc::new(view("rabbit@test", [true, false, true], Some("rabbit@test"))));
    let queue = |name: &str, body: &str| {
        node.must("PUT", &format!("/api/queues/%2F/{name}"), body, 201);
        let columns = "leader,members,online,node";
        node.get(&format!("/api/queues/%2F/{name}?columns={columns}"))
    };
    let all = json!(["rabbit@b", "rabbit@c", "rabbit@test"]);
    let own = "rabbit@test";
    let stored =
        json!({"leader": own, "node": own, "members": all, "online": ["rabbit@b", "rabbit@test"]});
    assert_eq!(queue("classic", r#"{"node": "rabbit@b"}"#), stored);
    assert_eq!(queue("quorum", r#"{"arguments": {"x-queue-type": "quorum"}}"#), stored);
    let not = json!({"leader": own, "node": own, "members": [own], "online": [own]});
    assert_eq!(queue("transient", r#"{"durable": false}"#), not);
    node.must("PUT", "/api/queues/%2F/q", r#"{"node": "rabbit@d"}"#, 400);

    let rows = node.get("/api/queues/quorum/%2F/quorum/status");
    let told = |index: usize| {
        let keys = ["Node Name", "Raft State", "Membership", "Last Log Index", "Last Written"];
        let keys = keys.into_iter().chain(["Commit Index", "Term"]);
        keys.map(|key| rows[index][key].clone()).collect::<serde_json::Value>()
    };
    assert_eq!(told(0), json!(["rabbit@b", "follower", "voter", 9, 8, 7, 3]));
    assert_eq!(told(1), json!(["rabbit@c", "noproc", "voter", "", "", "", ""]));
    assert_eq!(told(2), json!(["rabbit@test", "leader", "voter", 9, 8, 7, 3]));

    let replicas = "/api/queues/quorum/%2F/quorum/replicas";
    node.must("POST", &format!("{replicas}/add"), r#"{"node": "rabbit@c"}"#, 204);
    let refused = node.must("POST", &format!("{replicas}/add"), r#"{"node": "rabbit@d"}"#, 400);
    assert!(refused.text().contains("on all nodes of the cluster"), "{}", refused.text());
    node.must("DELETE", &format!("{replicas}/delete"), r#"{"node": "rabbit@c"}"#, 400);
}

/// Publishers are blocked by what the node that leads holds, whatever its process has in memory; and a disk that hangs is told as one.
#[test]
fn alarms_of_all_nodes_are_told_as_what_they_are() {
    let mut now = view("rabbit@test", [true; 3], Some("rabbit@test"));
    let hangs = now.nodes[1].told.as_mut().unwrap();
    (hangs.disk_free_alarm, hangs.disk_hangs) = (true, true);
    let (views, seen) = watch::channel(Arc::new(now.clone()));
    let node = Node::changed(&[("vm_memory_high_watermark.absolute", "1")], |options| {
        options.views = Some(seen);
    });
    wait_until("the alarm is on", || node.get("/api/nodes/rabbit@test")["mem_alarm"] == true);
    let rows = &node.get("/api/leveret/cluster")["nodes"];
    let figures = [0, 1, 2].map(|index| {
        let of = &rows[index]["figures"];
        ["mem_alarm", "disk_free_alarm", "disk_hangs"].map(|key| of[key] == true)
    });
    assert_eq!(figures, [[false; 3], [false, true, true], [true, false, false]]);
    assert_eq!(node.get("/api/nodes/rabbit@c")["disk_hangs"], true);
    let got = node.must("GET", "/api/health/checks/alarms", "", 503).json();
    let rows = json!([
        {"resource": "memory", "node": "rabbit@test"},
        {"resource": "disk space", "node": "rabbit@c", "reason": "a write has been under way for seconds"},
    ]);
    assert_eq!(got["alarms"], rows);
    // Its own: it blocks nobody here, and is an alarm of this node.
    let hangs = now.nodes[2].told.as_mut().unwrap();
    (hangs.disk_free_alarm, hangs.disk_hangs) = (true, true);
    views.send_replace(Arc::new(now));
    let got = node.must("GET", "/api/health/checks/local-alarms", "", 503).json();
    assert_eq!(got["alarms"][1]["node"], "rabbit@test");
    assert_eq!(node.get("/api/nodes/rabbit@test")["disk_free_alarm"], true);
}

#[test]
fn a_node_that_is_alone_tells_nothing_of_clusters() {
    let node = Node::start();
    assert!(!node.scrape("/metrics").contains("leveret_cluster"));
    let row = &node.get("/api/nodes")[0];
    assert!(row.get("leads").is_none(), "{row}");
    let cluster = node.get("/api/leveret/cluster");
    assert_eq!(
        (&cluster["standing"], &cluster["nodes"][0]["name"]),
        (&json!("alone"), &json!("rabbit@test"))
    );
    node.must("POST", "/api/leveret/cluster/hand-over", "", 400);
    node.must("DELETE", "/api/leveret/cluster/nodes/rabbit@b", "", 400);
}

#[test]
fn a_node_without_which_there_is_no_majority_is_critical() {
    let leading = leading();
    let path = "/api/health/checks/node-is-quorum-critical";
    leading.node.must("GET", path, "", 200);
    let one_is_gone = view("rabbit@test", [true, false, true], Some("rabbit@test"));
    leading.views.send_replace(Arc::new(one_is_gone));
    let failed = leading.node.must("GET", path, "", 503).json();
    assert_eq!(failed["missing_nodes"], json!(["rabbit@c"]));
    assert!(failed["reason"].as_str().unwrap().contains("would lose their quorum"));
}

/// Relays to a node in this process.
#[derive(Debug)]
struct ToLeading(Bringers);

impl Relay for ToLeading {
    fn relay(&self, _: u64, listener: RelayedListener, ends: Ends) -> Relaying {
        let (near, socket) = pair();
        self.0.bring(listener, Arrival { socket, ends });
        Box::pin(async move {
            near.set_nonblocking(true)?;
            tokio::net::TcpStream::from_std(near).map(Into::into)
        })
    }
}

/// The control socket of a node that follows.
struct Following {
    socket: PathBuf,
    running: Option<Box<dyn Running>>,
    asked: mpsc::UnboundedReceiver<String>,
    _dir: tempfile::TempDir,
}

fn following(views: Views, bringers: &Bringers, about: About) -> Following {
    with_names(CopiedNames::start().unwrap(), views, bringers, about)
}

fn with_names(
    names: Arc<CopiedNames>,
    views: Views,
    bringers: &Bringers,
    about: About,
) -> Following {
    let dir = tempfile::tempdir().unwrap();
    let flag = FlagSetting {
        flag: "--data-dir".to_owned(),
        key: "data_dir".to_owned(),
        value: dir.path().display().to_string(),
    };
    let config = Config::load(&Inputs { flags: vec![flag], ..Inputs::default() }).unwrap().config;
    let (stop, asked) = Stop::new();
    let (relay, totals) = (Arc::new(ToLeading(bringers.clone())), Arc::<Totals>::default());
    let suspended = ClientSuspension::default();
    let inside = Standby { about, stop, views, relay, link_tls: None, totals, names, suspended };
    let running = leveret_admin::standby(&config)(inside);
    let socket = leveret_config::files::ctl_socket(&config);
    Following { socket, running: Some(running.unwrap()), asked, _dir: dir }
}

impl Following {
    fn ask(&self, method: &str, path: &str) -> Got {
        let mut socket = UnixStream::connect(&self.socket).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let head = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        socket.write_all(head.as_bytes()).unwrap();
        let mut all = Vec::new();
        socket.read_to_end(&mut all).unwrap();
        Got::read(&all)
    }
}

fn about(node_name: &str) -> About {
    let config = Config::load(&Inputs::default()).unwrap().config;
    About {
        node_name: node_name.to_owned(),
        product_name: "Leveret".to_owned(),
        product_version: "1".to_owned(),
        data_dir: PathBuf::from("/"),
        config_files: Vec::new(),
        log_files: Vec::new(),
        logs: leveret_server::logging::Logs::default(),
        plugins: Vec::new(),
        environment: config.shown(),
        listeners: Vec::new(),
        threads: 2,
        machine_memory: 1 << 30,
        memory_limit: 1 << 29,
        disk_free_limit: 1 << 20,
        started: std::time::Instant::now(),
    }
}

#[test]
fn a_node_that_follows_answers_for_itself_and_asks_the_leader_for_the_rest() {
    let leading = leading();
    let (views, seen) = watch::channel(Arc::new(view("rabbit@b", [true; 3], Some("rabbit@test"))));
    let mut follows = following(seen, &leading.bringers, about("rabbit@b"));
    assert_eq!(follows.ask("GET", "/api/version").json()["is_booted"], true);
    assert_eq!(follows.ask("GET", "/api/leveret/status").json()["node"], "rabbit@b");
    assert_eq!(follows.ask("GET", "/api/leveret/cluster").json()["standing"], "follows");
    let made = follows.ask("PUT", "/api/vhosts/made-there");
    assert_eq!(made.status, 201, "{}", made.text());
    let names = follows.ask("GET", "/api/vhosts?columns=name").json();
    assert!(names.as_array().unwrap().contains(&json!({"name": "made-there"})), "{names}");
    // What is said to this node is not done to another one.
    for path in ["cluster/hand-over", "certificates/reload"] {
        let refused = follows.ask("POST", &format!("/api/leveret/{path}"));
        assert_eq!(refused.status, 503);
        let reason = refused.json()["reason"].clone();
        assert_eq!(
            reason,
            "rabbit@b does not lead the cluster, and rabbit@test serves its clients: ask that node"
        );
    }
    assert_eq!(follows.ask("POST", "/api/leveret/stop").status, 204);
    assert_eq!(
        follows.asked.try_recv().as_deref().map(|it| it.starts_with("control socket")),
        Ok(true)
    );
    views.send_replace(Arc::new(view("rabbit@b", [true, false, false], None)));
    let refused = follows.ask("GET", "/api/vhosts");
    assert_eq!(refused.status, 503);
    let why = "no node leads the cluster now: 1 of 3 nodes is here, 2 are needed, missing rabbit@c, rabbit@test";
    assert_eq!(refused.json()["reason"], why);
    assert_eq!(follows.ask("GET", "/api/version").json()["is_booted"], false);
    assert_eq!(follows.ask("GET", "/api/leveret/cluster").json()["reason"], why);
    follows.running.take().unwrap().stop();
    let error = UnixStream::connect(&follows.socket).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound, "the broker opens it next");
    assert_eq!(leading.node.get("/api/vhosts?columns=name")[0]["name"], "/", "nobody stopped it");
}

/// The records that a log has of these names.
fn records_of(names: &mut Topology) -> Vec<(Offset, Bytes)> {
    names.note_all();
    let stored = names.take_changes().into_iter().filter(|it| it.is_stored);
    let record = |(at, noted): (u64, Noted)| {
        let mut record = names.head(&noted.key).to_vec();
        names.store(&noted.key, &mut record).then(|| (Offset::new(at), record.into()))
    };
    (1..).zip(stored).filter_map(record).collect()
}

/// While no node leads, one that has the names answers what needs nothing else, and says how old that is. With a node that leads
/// that one is asked.
#[test]
fn without_a_leader_a_copy_of_the_names_answers() {
    let mut names = Topology::new();
    names.set_homes(Homes::among(2));
    let vhost = names.add_vhost("v").unwrap();
    names.add_user("u", PasswordHash::new("p", [0; 4]), &["administrator"]).unwrap();
    names.set_permissions("u", "v", ".*", "^a", "").unwrap();
    let arguments = Table::new();
    let (durable, auto_delete, name) = (true, false, "q");
    let (server_named, exclusive_owner) = (false, None);
    let spec =
        QueueSpec { vhost, name, server_named, durable, auto_delete, exclusive_owner, arguments };
    names.declare_queue(spec).unwrap();
    let to = Destination::Queue("q");
    names.bind(vhost, "amq.fanout", to, "key", Table::new(), None).unwrap();

    let leading = leading();
    let nobody = view("rabbit@b", [true, false, false], None);
    let (views, seen) = watch::channel(Arc::new(nobody));
    let copied = CopiedNames::start().unwrap();
    let follows = with_names(Arc::clone(&copied), seen, &leading.bringers, about("rabbit@b"));
    let path = "/api/queues/v?columns=name,durable";
    assert_eq!(follows.ask("GET", path).status, 503, "it does not have them yet");
    let up_to = BatchName { number: 9, term: 2 };
    let all = vec![Content::Anew, Content::Records(records_of(&mut names)), Content::UpTo(up_to)];
    copied.tell(2, all);
    wait_until("it has them", || copied.age().is_some());
    let old = follows.ask("GET", path).header("warning").to_owned();
    assert!(old.contains("that was there when this node started, "), "{old}");
    copied.heard(Duration::from_millis(12_300));

    let got = follows.ask("GET", path);
    assert_eq!(got.json(), json!([{"durable": true, "name": "q"}]));
    let age: u64 = got.header("age").parse().unwrap();
    assert!((12..60).contains(&age), "{age}");
    let why = "no node leads the cluster now: 1 of 3 nodes is here, 2 are needed, missing rabbit@c, rabbit@test";
    let warning = format!("110 - \"a copy of the names as of {age} s ago, as {why}\"");
    assert_eq!(got.header("warning"), warning);
    let binding = &follows.ask("GET", "/api/queues/v/q/bindings").json()[1];
    assert_eq!(
        (&binding["source"], &binding["routing_key"]),
        (&json!("amq.fanout"), &json!("key"))
    );
    let exchanges = follows.ask("GET", "/api/exchanges/v?columns=name").json();
    assert!(exchanges.as_array().unwrap().contains(&json!({"name": "amq.topic"})), "{exchanges}");
    assert_eq!(follows.ask("GET", "/api/users/u/permissions").json()[0]["write"], "^a");
    let definitions = follows.ask("GET", "/api/definitions").json();
    assert_eq!(definitions["queues"][0]["name"], "q");
    // What the shards know, and what would change something, waits for a node that leads.
    for (method, path) in
        [("GET", "/api/queues/v"), ("GET", "/api/overview"), ("PUT", "/api/vhosts/w")]
    {
        let refused = follows.ask(method, path);
        assert_eq!((refused.status, refused.json()["reason"].clone()), (503, json!(why)));
    }
    // A batch takes something away.
    let queues = || follows.ask("GET", "/api/queues?columns=name").json();
    let queue = names.queue(vhost, "q").unwrap().id;
    let mut record = names.head(&EntityKey::Queue(queue)).to_vec();
    names.store(&EntityKey::Queue(queue), &mut record);
    let at = records_of(&mut names).into_iter().find(|it| it.1 == record).unwrap().0;
    let name = BatchName { number: 10, term: 2 };
    let released = vec![(at, Holder::new(0))];
    let batch = BatchContents { name, released, ..BatchContents::default() };
    copied.tell(2, vec![Content::Batch(batch), Content::UpTo(name)]);
    wait_until("the queue is gone", || queues() == json!([]));

    views.send_replace(Arc::new(view("rabbit@b", [true; 3], Some("rabbit@test"))));
    let got = follows.ask("GET", "/api/vhosts?columns=name");
    assert_eq!((got.json(), got.header("age")), (json!([{"name": "/"}]), ""));
}
