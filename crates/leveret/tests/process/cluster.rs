//! Three nodes that are one broker.

mod all_members;
mod drain;
mod features;
mod sessions;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use leveret_client::amqp::content::Properties;
use leveret_client::amqp::table::{Table, Value};
use leveret_client::{Connection, Consume, ExchangeDeclare, Options, QueueDeclare, Uri};
use rustix::process::{Pid, Signal};

use crate::broker::{Lines, PATIENCE, by_shell, close_reason, leveret, wait_until};
use crate::shim::Shim;
use crate::tls::Certificates;

/// The properties of a message: its delivery mode alone.
const PERSISTENT: [u8; 3] = [0x10, 0, 2];

/// A node of a cluster. Killed when dropped.
struct Member {
    child: Child,
    log: Lines,
    dir: tempfile::TempDir,
    own: usize,
    ports: [u16; 3],
}

impl Member {
    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Where clients of the node that leads come in, if this one led last.
    fn led(&self) -> Option<SocketAddr> {
        let ready = self.log.with(" is ready").pop()?;
        let (_, rest) = ready.split_once("amqp=\"")?;
        rest.split_once('"')?.0.parse().ok()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn three() -> Vec<Member> {
    three_of(|_| leveret(&[]))
}

/// The same, each run by a command of its own: arguments follow.
fn three_of(command: impl Fn(usize) -> Command) -> Vec<Member> {
    let free = || TcpListener::bind("127.0.0.1:0").unwrap();
    // All at once, or two may be the same.
    let ports = [free(), free(), free()].map(|it| it.local_addr().unwrap().port());
    let start = |own| start(command(own), own, ports, tempfile::tempdir().unwrap());
    (0..3).map(start).collect()
}

/// Three whose environment sets an option.
fn three_with(name: &str, value: &str) -> Vec<Member> {
    three_of(|_| {
        let mut command = leveret(&[]);
        command.env(name, value);
        command
    })
}

/// Three, changed so, each with a shim below it that has its disk and its clock be wrong.
fn three_with_shims(change: impl Fn(&mut Command)) -> ([Shim; 3], Vec<Member>) {
    let shims = [Shim::new(), Shim::new(), Shim::new()];
    let members = three_of(|own| {
        let mut command = leveret(&[]);
        change(&mut command);
        shims[own].load_into(&mut command);
        command
    });
    (shims, members)
}

/// Starts one of them by this command.
fn start(mut command: Command, own: usize, ports: [u16; 3], dir: tempfile::TempDir) -> Member {
    command.args(["serve", "--listen", "127.0.0.1:0", "--data-dir"]).arg(dir.path());
    let mut settings = vec![
        format!("node_name=rabbit@{own}"),
        format!("cluster.port={}", ports[own]),
        "cluster.listen=127.0.0.1".to_owned(),
        "cluster.secret=a secret of all three nodes".to_owned(),
    ];
    for (at, port) in ports.iter().enumerate() {
        let key = "cluster_formation.classic_config";
        settings.push(format!("{key}.nodes.{}=rabbit@{at}", at + 1));
        settings.push(format!("{key}.addresses.{}=127.0.0.1:{port}", at + 1));
    }
    settings.iter().for_each(|it| _ = command.args(["--set", it]));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let log = Lines::follow(child.stdout.take().unwrap());
    Member { child, log, dir, own, ports }
}

impl Member {
    /// Kills it, and starts it again by this command.
    fn start_again(&mut self, command: Command) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let dir = std::mem::replace(&mut self.dir, tempfile::tempdir().unwrap());
        *self = start(command, self.own, self.ports, dir);
    }

    /// Where clients come in that it relays.
    #[track_caller]
    fn relays(&self) -> SocketAddr {
        relays_at(&self.log.wait_for("stands by"))
    }
}

/// Where clients come in by this line of the log.
#[track_caller]
fn relays_at(line: &str) -> SocketAddr {
    let (_, rest) = line.split_once("listeners=\"amqp ").unwrap();
    rest.split_once([',', '"']).unwrap().0.parse().unwrap()
}

/// The node that leads, of these.
#[track_caller]
fn leader(members: &[Member], among: &[usize]) -> (usize, SocketAddr) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = among.iter().find_map(|at| Some((*at, members[*at].led()?)));
        if let Some(found) = found {
            return found;
        }
        assert!(Instant::now() < deadline, "nobody leads");
        std::thread::yield_now();
    }
}

fn open(address: SocketAddr) -> Result<Connection, leveret_client::Error> {
    let uri = Uri { host: address.ip().to_string(), port: address.port(), ..Uri::default() };
    let options = Options { heartbeat_s: Some(0), ..Options::default() };
    Connection::open(&uri, &options)
}

fn connect(address: SocketAddr) -> (Connection, u16) {
    let mut client = open(address).unwrap();
    let channel = client.open_channel().unwrap();
    (client, channel)
}

/// A client with a durable queue, in transactions: what it commits is confirmed.
fn with_orders(address: SocketAddr) -> (Connection, u16) {
    let (mut client, channel) = connect(address);
    let durable = QueueDeclare { durable: true, ..QueueDeclare::default() };
    client.queue_declare(channel, "orders", &durable).unwrap();
    client.tx_select(channel).unwrap();
    (client, channel)
}

/// With TLS between them: a client of one that follows is served, and what was confirmed to it is there after the one that led was
/// killed, by whichever node it comes.
#[test]
fn nodes_with_tls_outlive_the_one_that_leads() {
    let certificates = Certificates::new();
    let (certfile, keyfile) = certificates.server();
    let mut members = three_of(|_| {
        let mut command = leveret(&[]);
        command.env("LEVERET_CLUSTER_SSL_OPTIONS_CACERTFILE", certificates.ca());
        command.env("LEVERET_CLUSTER_SSL_OPTIONS_CERTFILE", &certfile);
        command.env("LEVERET_CLUSTER_SSL_OPTIONS_KEYFILE", &keyfile);
        command
    });
    let (old, _) = leader(&members, &[0, 1, 2]);
    let others: Vec<_> = (0..3).filter(|at| *at != old).collect();
    let (mut client, channel) = with_orders(members[others[0]].relays());
    let body = vec![7; 3 << 20];
    client.publish(channel, "", "orders", &PERSISTENT, &body);
    client.tx_commit(channel).unwrap();
    let told = ctl(&members[others[1]], &["cluster_status"]);
    assert!(told.contains("\nLinks of this node: with TLS\n"), "{told}");
    members[old].child.kill().unwrap();
    let (new, _) = leader(&members, &others);
    let follows = others.into_iter().find(|at| *at != new).unwrap();
    let (mut client, channel) = connect(members[follows].relays());
    let got = client.get(channel, "orders", true).unwrap().expect("it was confirmed");
    assert!(got.body == body, "{} bytes", got.body.len());
    let linked = members[new].log.with(" is linked, ");
    assert!(!linked.is_empty() && linked.iter().all(|it| it.contains("with TLS")), "{linked:?}");
}

/// What it was asked meanwhile it does not answer when it goes on, though its client is there and it does not know of another leader.
#[test]
fn a_node_that_stood_still_gives_out_nothing() {
    let members = three();
    let (old, address) = leader(&members, &[0, 1, 2]);
    let (mut client, channel) = with_orders(address);
    client.publish(channel, "", "orders", &PERSISTENT, b"one");
    client.tx_commit(channel).unwrap();
    members[old].signal(Signal::STOP);
    let others: Vec<_> = (0..3).filter(|at| *at != old).collect();
    let (_, address) = leader(&members, &others);
    let asks =
        std::thread::spawn(move || client.get(channel, "orders", false).map(|it| it.is_some()));
    let mut ctl = leveret(&["ctl", "-q", "list_exchanges"]);
    ctl.env("LEVERET_DATA_DIR", members[old].dir.path()).stdout(Stdio::piped());
    let ctl = ctl.stderr(Stdio::null()).spawn().unwrap();
    let (mut another, channel) = connect(address);
    let got = another.get(channel, "orders", false).unwrap().expect("it was confirmed");
    assert!(got.redelivered, "the other node may have delivered it");
    let durable = ExchangeDeclare { durable: true, ..ExchangeDeclare::default() };
    another.exchange_declare(channel, "made_since", "fanout", &durable).unwrap();
    members[old].signal(Signal::CONT);
    let answer = asks.join().unwrap();
    assert!(answer.is_err(), "{answer:?}");
    let told = ctl.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(told.is_empty() || told.contains("made_since"), "{told}");
}

/// Each client that is relayed takes two files, and all that there are: the logs have theirs, and the nodes stay linked.
#[test]
fn clients_take_all_files_of_a_node_that_follows() {
    let mut members = three();
    let (leads, address) = leader(&members, &[0, 1, 2]);
    let follows = (leads + 1) % 3;
    members[follows].start_again(by_shell("ulimit -n 600; exec \"$0\" \"$@\""));
    let relays = members[follows].relays();
    let crowd: Vec<_> = (0..700).map(|_| std::net::TcpStream::connect(relays).unwrap()).collect();
    members[follows].log.wait_for("file descriptor limit alarm set");
    // The other one is gone: what is confirmed is stored by the one that is crowded.
    let gone = (leads + 2) % 3;
    members[gone].signal(Signal::KILL);
    let (mut client, channel) = with_orders(address);
    // More than one file of the log has room for.
    let body = vec![7; 1 << 20];
    for _ in 0..100 {
        client.publish(channel, "", "orders", &PERSISTENT, &body);
        client.tx_commit(channel).unwrap();
    }
    assert_eq!(members[follows].log.with("ERROR"), Vec::<String>::new());
    assert!(members[follows].child.try_wait().unwrap().is_none(), "it goes on");
    drop(crowd);
}

/// Nodes that lead and follow make digests of their files, from which who leads next brings a long backlog bit by bit.
#[test]
fn all_nodes_make_digests() {
    let members = three_of(|_| {
        let mut command = leveret(&[]);
        command.env("LEVERET_SHARDS", "1").env("LEVERET_STORAGE_SEGMENT_SIZE", "1MiB");
        command
    });
    let (_, address) = leader(&members, &[0, 1, 2]);
    let (mut client, channel) = with_orders(address);
    // Each is a batch, and a file is full after three.
    for _ in 0..20 {
        client.publish(channel, "", "orders", &PERSISTENT, &[7; 100 << 10]);
        client.tx_commit(channel).unwrap();
    }
    let digests = |member: &Member| {
        let files = std::fs::read_dir(member.dir.path().join("shards").join("0")).unwrap();
        let names = files.map(|file| file.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().ends_with(".seg.digest")).count()
    };
    wait_until(PATIENCE, "each has some", || members.iter().all(|member| digests(member) > 0));
}

/// Its heartbeats need no disk, so nobody else would see it.
#[test]
fn a_node_whose_disk_hangs_leads_no_more() {
    let (shims, members) = three_with_shims(|_| {});
    let (old, address) = leader(&members, &[0, 1, 2]);
    let (mut client, channel) = with_orders(address);
    client.publish(channel, "", "orders", &PERSISTENT, b"one");
    client.tx_commit(channel).unwrap();
    // A sync that does not end as long as the process lives. What was written before it the others have.
    shims[old].set("sync_ms=3600000");
    while client.tx_commit(channel).is_ok() {
        client.publish(channel, "", "orders", &PERSISTENT, b"two");
    }
    let others: Vec<_> = (0..3).filter(|at| *at != old).collect();
    let (_, address) = leader(&members, &others);
    let (mut client, channel) = connect(address);
    client.tx_select(channel).unwrap();
    client.publish(channel, "", "orders", &PERSISTENT, b"three");
    client.tx_commit(channel).unwrap();
    let got = std::iter::from_fn(|| client.get(channel, "orders", true).unwrap());
    let bodies: Vec<_> = got.map(|it| it.body).collect();
    assert_eq!((&bodies[0][..], &bodies[bodies.len() - 1][..]), (&b"one"[..], &b"three"[..]));
}

/// Where all sessions are on the node that leads its clients are relayed to it, also by a node that would have some of its own: nodes are
/// switched over one at a time.
#[test]
fn clients_are_relayed_to_a_leader_that_has_all_sessions() {
    let mut members = three_with("LEVERET_CLUSTER_SESSIONS", "relayed");
    let (leads, _) = leader(&members, &[0, 1, 2]);
    let follows = (leads + 1) % 3;
    for own in [false, true] {
        if own {
            members[follows].start_again(leveret(&[]));
            members[follows].log.wait_for("so clients are relayed to it");
        }
        let (mut client, channel) = connect(members[follows].relays());
        client.queue_declare(channel, "orders", &QueueDeclare::default()).unwrap();
        client.publish(channel, "", "orders", &PERSISTENT, b"one");
        assert!(client.get(channel, "orders", true).unwrap().is_some());
        let shown = told(&members[follows], &["cluster_status"]);
        assert_eq!(shown["leader"], format!("rabbit@{leads}"), "{shown}");
    }
}

/// Runs a command on a node: what it says.
#[track_caller]
fn ctl(member: &Member, words: &[&str]) -> String {
    let mut ctl = leveret(&["ctl", "-q"]);
    let done = ctl.args(words).env("LEVERET_DATA_DIR", member.dir.path()).output().unwrap();
    assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// What a command says on a node, as JSON.
#[track_caller]
fn told(member: &Member, words: &[&str]) -> serde_json::Value {
    let mut ctl = leveret(&["ctl", "-q", "--formatter", "json"]);
    let ctl = ctl.args(words).env("LEVERET_DATA_DIR", member.dir.path()).output().unwrap();
    let text = String::from_utf8_lossy(&ctl.stdout).into_owned();
    let errors = String::from_utf8_lossy(&ctl.stderr).into_owned();
    serde_json::from_str(&text).unwrap_or_else(|_| panic!("{words:?}: {text}{errors}"))
}

/// What a node's management answers its own machine; null while it answers no such thing.
fn api(member: &Member, path: &str) -> serde_json::Value {
    let ask = || -> std::io::Result<String> {
        let mut socket = UnixStream::connect(member.dir.path().join("leveret.sock"))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.write_all(
            format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes(),
        )?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let answer = ask().unwrap_or_default();
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    serde_json::from_str(body).unwrap_or_default()
}

/// Clients of nodes that follow are listed, counted and closed wherever somebody asks.
#[test]
fn sessions_of_other_nodes_are_shown_and_closed() {
    let members = three();
    let (leads, address) = leader(&members, &[0, 1, 2]);
    let follows = (leads + 1) % 3;
    let (mut at_leader, events) = connect(address);
    at_leader.queue_declare(events, "ev", &QueueDeclare::default()).unwrap();
    let bound = at_leader.queue_bind(
        events,
        "ev",
        "amq.rabbitmq.event",
        "connection.closed",
        &Table::new(),
    );
    bound.unwrap();
    let relays = members[follows].relays();
    let (mut client, channel) = connect(relays);
    client.queue_declare(channel, "orders", &QueueDeclare::default()).unwrap();
    client.consume(channel, "orders", &Consume::default()).unwrap();
    for member in &members {
        let list = told(member, &["list_connections", "port", "user", "vhost", "channels"]);
        let mut ports: Vec<_> = list.as_array().unwrap().iter().map(|it| &it["port"]).collect();
        ports.sort_by_key(|it| it.as_u64());
        let mut wanted = [address.port(), relays.port()].map(serde_json::Value::from);
        wanted.sort_by_key(serde_json::Value::as_u64);
        assert_eq!(ports, wanted.iter().collect::<Vec<_>>(), "{list}");
        let channels = told(member, &["list_channels", "number", "consumer_count"]);
        let rows = channels.as_array().unwrap().iter();
        let mut consume: Vec<_> = rows.map(|it| it["consumer_count"].as_u64()).collect();
        consume.sort();
        assert_eq!(consume, [Some(0), Some(1)], "{channels}");
        let consumers = told(member, &["list_consumers"]);
        assert_eq!(consumers.as_array().unwrap().len(), 1, "{consumers}");
    }
    let list = told(&members[leads], &["list_connections", "pid", "port"]);
    let mut rows = list.as_array().unwrap().iter();
    let row = rows.find(|it| it["port"] == relays.port()).unwrap();
    ctl(&members[leads], &["close_connection", row["pid"].as_str().unwrap(), "enough"]);
    // The node of its client hears of it when the command has been answered.
    let reason = close_reason(&mut client);
    assert!(reason.code == 320 && reason.text.contains("enough"), "{reason:?}");
    wait_until(PATIENCE, "the end of the connection is told", || {
        let got = at_leader.get(events, "ev", true).unwrap();
        got.is_some_and(|it| it.routing_key == "connection.closed")
    });
}

/// Each node says what runs there, whichever leads: `rabbitmq-plugins` of its machine, and its row in the list of nodes.
#[test]
fn each_node_tells_of_its_own_plugins() {
    let tools = tempfile::tempdir().unwrap();
    let tool = tools.path().join("rabbitmq-plugins");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_leveret"), &tool).unwrap();
    // That one has no management.
    let without = 1;
    let mut members = three_of(|own| {
        let mut command = leveret(&[]);
        command.env("LEVERET_MANAGEMENT_ENABLED", (own != without).to_string());
        command
    });
    let check = |members: &[Member], here: &[usize]| {
        leader(members, here);
        for &at in here {
            let run = |words: &[&str]| {
                let mut command = Command::new(&tool);
                command.args(words).env_clear().env("LEVERET_DATA_DIR", members[at].dir.path());
                command.output().unwrap().status.code().unwrap()
            };
            let has = at != without;
            assert_eq!(run(&["enable", "rabbitmq_management"]), if has { 0 } else { 65 }, "{at}");
            let is_enabled = run(&["is_enabled", "rabbitmq_management"]);
            assert_eq!(is_enabled, if has { 0 } else { 69 }, "{at}");
            assert_eq!(run(&["is_enabled", "rabbitmq_event_exchange"]), 0, "{at}");
        }
        wait_until(PATIENCE, "those that are here tell", || {
            let rows = api(&members[here[0]], "/api/nodes");
            let rows = rows.as_array().cloned().unwrap_or_default();
            here.iter().all(|at| {
                let name = format!("rabbit@{at}");
                let Some(row) = rows.iter().find(|it| it["name"] == name) else { return false };
                let Some(plugins) = row["enabled_plugins"].as_array() else { return false };
                let types = row["exchange_types"].as_array().map_or(0, Vec::len);
                let managed = plugins.iter().any(|it| it == "rabbitmq_management");
                managed == (*at != without) && types > 4
            })
        });
    };
    check(&members, &[0, 1, 2]);
    let (old, _) = leader(&members, &[0, 1, 2]);
    let others: Vec<_> = (0..3).filter(|at| *at != old).collect();
    members[old].child.kill().unwrap();
    check(&members, &others);
}

/// A node that stands still is linked for ten seconds more: it is shown as one that does not run soon, and nobody waits for it.
#[test]
fn a_follower_that_stands_still_hangs_nothing() {
    let members = three();
    let (leads, _) = leader(&members, &[0, 1, 2]);
    let [still, other] = [1, 2].map(|it| (leads + it) % 3);
    // It has sessions of its own.
    let (_client, _) = connect(members[still].relays());
    let (_another, _) = connect(members[other].relays());
    wait_until(PATIENCE, "both are listed", || {
        api(&members[leads], "/api/connections").as_array().is_some_and(|it| it.len() == 2)
    });
    let runs = |asked: usize, path: &str| {
        let told = api(&members[asked], path);
        let rows =
            told.as_array().or_else(|| told["nodes"].as_array()).cloned().unwrap_or_default();
        let name = format!("rabbit@{still}");
        rows.iter().find(|it| it["name"] == name).is_some_and(|it| it["running"] == true)
    };
    members[still].signal(Signal::STOP);
    let begun = Instant::now();
    // The first of these may ask the node before it is known to be silent.
    for asked in [leads, other] {
        let list = api(&members[asked], "/api/connections");
        assert_eq!(list.as_array().map(Vec::len), Some(1), "{list}");
        for path in ["/api/nodes", "/api/leveret/cluster"] {
            wait_until(PATIENCE, "it is shown", || !runs(asked, path));
        }
    }
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
    let begun = Instant::now();
    for path in ["/api/connections", "/api/channels", "/api/nodes", "/api/overview"] {
        api(&members[leads], path);
    }
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(2), "{took:?}");
    let why = api(&members[other], "/api/leveret/cluster").to_string();
    assert!(why.contains("says nothing"), "{why}");
    members[still].signal(Signal::CONT);
    wait_until(PATIENCE, "it runs again", || runs(leads, "/api/nodes"));
}

/// A node that leads, and is stopped while something is under way that does not end, hands over soon: meanwhile nobody is served. Here
/// it is a dead letter that no other node's disk takes.
#[test]
fn what_is_under_way_holds_up_no_hand_over() {
    let (shims, members) = three_with_shims(|command| _ = command.env("LEVERET_SHARDS", "2"));
    let (old, address) = leader(&members, &[0, 1, 2]);
    let (mut client, channel) = with_orders(address);
    let text = |it: &str| Value::LongStr(it.as_bytes().to_vec());
    let mut dies = QueueDeclare { durable: true, ..QueueDeclare::default() };
    dies.arguments.set("x-dead-letter-exchange", text(""));
    dies.arguments.set("x-dead-letter-routing-key", text("orders"));
    client.queue_declare(channel, "dies", &dies).unwrap();
    client.publish(channel, "", "dies", &PERSISTENT, b"one");
    client.tx_commit(channel).unwrap();
    let (mut rejects, rejecting) = connect(address);
    let got = rejects.get(rejecting, "dies", false).unwrap().expect("it was confirmed");
    (0..3).filter(|at| *at != old).for_each(|at| shims[at].set("sync_ms=3600000"));
    rejects.nack(rejecting, got.delivery_tag, false, false);
    assert!(rejects.get(rejecting, "dies", true).unwrap().is_none());
    let begun = Instant::now();
    members[old].signal(Signal::TERM);
    members[old].log.wait_for("not all that was under way is done");
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(15), "{took:?}");
}

/// The next one that leads would take what was published since for an hour old.
#[test]
fn messages_that_live_for_a_while_outlive_a_leader_whose_clock_was_set_back() {
    let (shims, mut members) = three_with_shims(|_| {});
    let (old, address) = leader(&members, &[0, 1, 2]);
    let others: Vec<_> = (0..3).filter(|at| *at != old).collect();
    let (mut client, channel) = with_orders(address);
    shims[old].set("clock=-3600");
    members[old].log.wait_for("the system's clock was set");
    let expiration = Some("1800000".to_owned());
    let properties = Properties { delivery_mode: Some(2), expiration, ..Properties::default() };
    for _ in 0..10 {
        client.publish(channel, "", "orders", &properties.to_bytes(), b"half an hour");
        client.tx_commit(channel).unwrap();
    }
    members[old].log.wait_for(" s ahead of this node's");
    for at in &others {
        let told = members[*at].log.wait_for(" s behind this node's");
        assert!(told.contains(&format!("the clock of rabbit@{old} is 3")), "{told}");
    }
    let want = format!("s behind that of node rabbit@{}", others[0]);
    wait_until(PATIENCE, "it is shown", || {
        ctl(&members[others[0]], &["cluster_status"]).contains(&want)
    });
    members[old].child.kill().unwrap();
    let (_, address) = leader(&members, &others);
    let (mut client, channel) = connect(address);
    let left = std::iter::from_fn(|| client.get(channel, "orders", true).unwrap()).count();
    assert_eq!(left, 10);
}

/// What is published to it waits for its disk, though those of the others are quick.
#[test]
fn a_node_whose_disk_is_slow_leads_no_more() {
    let (shims, members) = three_with_shims(|_| {});
    let (old, address) = leader(&members, &[0, 1, 2]);
    let (mut client, channel) = with_orders(address);
    // What one of so many takes, about.
    let commit = |client: &mut Connection, channel: u16, count: u32| {
        let begun = Instant::now();
        for _ in 0..count {
            client.publish(channel, "", "orders", &PERSISTENT, b"one");
            client.tx_commit(channel)?;
        }
        Ok::<_, leveret_client::Error>(begun.elapsed() / count)
    };
    let before = commit(&mut client, channel, 20).unwrap();
    shims[old].set("sync_ms=500");
    let (slow, mut during) = (Instant::now(), Duration::ZERO);
    while let Ok(took) = commit(&mut client, channel, 1) {
        during = during.max(took);
    }
    let others: Vec<_> = (0..3).filter(|at| *at != old).collect();
    let (_, address) = leader(&members, &others);
    let led = slow.elapsed();
    assert!(members[old].log.with("its disk is slow").len() == 1);
    let (mut client, channel) = connect(address);
    client.tx_select(channel).unwrap();
    let after = commit(&mut client, channel, 20).unwrap();
    assert!(
        during > Duration::from_millis(450) && after < Duration::from_millis(400),
        "{before:?}, {during:?} with the slow disk, {after:?} with another leader"
    );
    assert!(led < Duration::from_secs(25), "{led:?}");
}
