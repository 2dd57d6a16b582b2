//! What befalls a process and its clients: clocks that are set, a pause, no more files, connections that end in
//! any way, a kill while it starts.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::Duration;

use leveret_client::amqp::content::{Properties, RawProperties};
use leveret_client::amqp::method::{basic, queue};
use leveret_client::amqp::table::Value;
use leveret_client::{Connection, Consume, Event, Options, QueueDeclare};
use rustix::process::{Pid, Signal};

use crate::auth::api;
use crate::broker::{Broker, PATIENCE, by_shell, declare, wait_until};
use crate::messages::{Key, Random};
use crate::raw::Raw;
use crate::shim::Shim;

const DAY_S: i64 = 86_400;

fn durable(client: &mut Connection, channel: u16, queue: &str) -> u32 {
    let how = QueueDeclare { durable: true, ..QueueDeclare::default() };
    client.queue_declare(channel, queue, &how).unwrap().message_count
}

/// Publishes with confirms on, and waits for the answer.
fn confirmed(client: &mut Connection, channel: u16, queue: &str, properties: &[u8], body: &[u8]) {
    client.publish(channel, "", queue, properties, body);
    client.flush().unwrap();
    loop {
        match client.next_event().unwrap() {
            Some(Event::Method { method, .. }) if method.name() == "basic.ack" => return,
            Some(Event::Method { method, .. }) => panic!("{}", method.name()),
            Some(Event::Content { .. }) => {}
            None => assert!(client.wait(PATIENCE).unwrap(), "no confirm comes"),
        }
    }
}

fn persistent(expiration_ms: Option<u64>) -> Vec<u8> {
    let expiration = expiration_ms.map(|ms| ms.to_string());
    Properties { delivery_mode: Some(2), expiration, ..Properties::default() }.to_bytes()
}

/// A day back or forth: nothing waits for a day, nothing ends a day early, and what is stamped for others says
/// what the system's clock says.
#[test]
fn the_clock_is_set() {
    for days in [-1, 1] {
        let shim = Shim::new();
        let broker = shim.broker(tempfile::tempdir().unwrap());
        let options = Options { heartbeat_s: Some(30), ..Options::default() };
        let mut client = Connection::open(&broker.uri(), &options).unwrap();
        let channel = client.open_channel().unwrap();
        for queue in ["held", "lasting", "graves"] {
            durable(&mut client, channel, queue);
        }
        let mut mortal = QueueDeclare { durable: true, ..QueueDeclare::default() };
        let text = |text: &str| Value::LongStr(text.as_bytes().to_vec());
        mortal.arguments.set("x-dead-letter-exchange", text(""));
        mortal.arguments.set("x-dead-letter-routing-key", text("graves"));
        client.queue_declare(channel, "mortal", &mortal).unwrap();
        client.confirm_select(channel).unwrap();
        let mut consumer = Connection::open(&broker.uri(), &options).unwrap();
        let consuming = consumer.open_channel().unwrap();
        consumer.consume(consuming, "held", &Consume::default()).unwrap();
        confirmed(&mut client, channel, "lasting", &persistent(Some(3_600_000)), b"an hour");
        confirmed(&mut client, channel, "mortal", &persistent(Some(2_000)), b"two seconds");

        shim.set(&format!("clock={}", days * DAY_S));
        let told = broker.log.wait_for("the system's clock was set");
        let by = told.split_once("by_seconds=").and_then(|(_, by)| by.trim().parse::<f64>().ok());
        let is_about = |by: f64| (by - (days * DAY_S) as f64).abs() < 60.0;
        assert!(by.is_some_and(is_about), "{told}");
        // The consumer acks nothing, so this confirm waits for a timer.
        confirmed(&mut client, channel, "held", &persistent(None), b"x");
        wait_until(PATIENCE, "it expires", || durable(&mut client, channel, "graves") == 1);
        let dead = client.get(channel, "graves", true).unwrap().unwrap();
        let headers = RawProperties::new(&dead.properties).to_owned().unwrap().headers.unwrap();
        let Some(Value::Array(deaths)) = headers.get("x-death") else { panic!("{headers:?}") };
        let Some(Value::Table(death)) = deaths.first() else { panic!("{deaths:?}") };
        let Some(&Value::Timestamp(time)) = death.get("time") else { panic!("{death:?}") };
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let away = time as i64 - now.as_secs() as i64 - days * DAY_S;
        assert!((-60..=60).contains(&away), "{away} seconds from the system's clock");
        assert_eq!(durable(&mut client, channel, "lasting"), 1);
        // Neither heartbeats nor unacked deliveries are taken to be a day old.
        consumer.open_channel().unwrap();
        assert_eq!(broker.log.with("missed heartbeats"), Vec::<String>::new());
        // What is published now, by the clock that is right now, is as old as it is after a restart.
        confirmed(&mut client, channel, "lasting", &persistent(Some(3_600_000)), b"another");
        let left = client.get(channel, "lasting", true).unwrap().unwrap();
        assert_eq!(left.body, b"an hour");
        drop((client, consumer));
        let broker = shim.broker(broker.stop().dir);
        let (mut client, channel) = broker.channel();
        assert_eq!(durable(&mut client, channel, "lasting"), 1, "{days} days");
    }
}

/// Longer than the heartbeats of its clients, who kept on writing: it was not they who were silent.
#[test]
fn a_pause_of_the_process_costs_no_connection() {
    let broker = Broker::start();
    let mut raw = Raw::login_with(&broker, 1);
    raw.method(1, &queue::Declare { queue: "q", ..Default::default() });
    raw.expect("queue.declare-ok");
    let (mut other, channel) = broker.channel();
    broker.signal(Signal::STOP);
    for n in 0..16_u8 {
        raw.output.clear();
        let publish = basic::Publish { routing_key: "q", ..Default::default() };
        raw.output.put_publish(1, &publish, &[0, 0], &[n]);
        let bytes = raw.output.bytes().to_vec();
        raw.send(&bytes);
        std::thread::park_timeout(Duration::from_millis(250));
    }
    broker.signal(Signal::CONT);
    raw.method(1, &queue::Declare { queue: "q", ..Default::default() });
    raw.expect("queue.declare-ok");
    for n in 0..16_u8 {
        assert_eq!(other.get(channel, "q", true).unwrap().expect("in order").body, [n]);
    }
    assert_eq!(broker.log.with("missed heartbeats"), Vec::<String>::new());
}

fn open_files(broker: &Broker) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", broker.pid())).unwrap().count()
}

/// As many clients as there are files leave enough of them to store and to read, go unserved themselves, and are
/// forgotten when they go.
#[test]
fn clients_take_all_files() {
    let script = "ulimit -n 160; exec \"$0\" serve --listen 127.0.0.1:0 --set shards=2 \"$@\"";
    let broker = Broker::spawn(by_shell(script), tempfile::tempdir().unwrap());
    let (mut client, channel) = broker.channel();
    durable(&mut client, channel, "q");
    client.confirm_select(channel).unwrap();
    let before = open_files(&broker);
    let mut crowd: Vec<Raw> = (0..200).map(|_| Raw::connect(&broker)).collect();
    let told = broker.log.wait_for("file descriptor limit alarm set");
    assert!(told.contains("WARN") && told.contains("open_files_max=160"), "{told}");
    // More than one file has room for.
    let body = vec![7; 1 << 20];
    let messages = 150;
    for _ in 0..messages {
        confirmed(&mut client, channel, "q", &persistent(None), &body);
    }
    for _ in 0..messages {
        assert_eq!(client.get(channel, "q", true).unwrap().expect("stored").body.len(), body.len());
    }
    assert_eq!(broker.told(&["list_queues", "name"]).lines().last(), Some("q"));
    assert_eq!(broker.log.with("ERROR"), Vec::<String>::new());
    let refused = crowd.pop().unwrap();
    assert_eq!(refused.until_closed().0, Vec::<&str>::new());
    // One line for all of them, and a count.
    broker.log.once("open files is reached");
    drop(crowd);
    // A thread that works keeps one that tells what it ran.
    let threads = std::fs::read_dir(format!("/proc/{}/task", broker.pid())).unwrap().count();
    let kept = before + threads + 4;
    wait_until(PATIENCE, "their files are given back", || open_files(&broker) <= kept);
    let (_, node) = api(&broker, "/api/nodes", "Basic Z3Vlc3Q6Z3Vlc3Q=");
    let (_, refused) = node.split_once("\"fd_refused\":").unwrap();
    let count: u64 = refused.split_once(',').unwrap().0.parse().unwrap();
    assert!(count > 50, "{node}");
    broker.channel().0.close().unwrap();
}

/// How a connection ends.
#[derive(Clone, Copy, Debug)]
enum End {
    /// As the system closes the sockets of a process that is killed.
    Closed,
    /// As a firewall or a crashed machine does.
    Reset,
    /// Nothing comes through any more.
    Silence,
}

/// Whatever the end, what a client held is free again: its deliveries, its exclusive queue; and half of a message
/// is none.
#[test]
fn connections_end_in_any_way() {
    let broker = Broker::start();
    let (mut client, channel) = broker.channel();
    for end in [End::Closed, End::Reset, End::Silence] {
        let (shared, mine) = (format!("shared-{end:?}"), format!("mine-{end:?}"));
        declare(&mut client, channel, &shared);
        client.publish(channel, "", &shared, &[0, 0], b"x");
        client.flush().unwrap();
        let mut raw = Raw::login_with(&broker, 1);
        raw.method(1, &queue::Declare { queue: &mine, exclusive: true, ..Default::default() });
        raw.expect("queue.declare-ok");
        raw.method(1, &basic::Consume { queue: &shared, ..Default::default() });
        raw.expect("basic.deliver");
        raw.output.clear();
        let publish = basic::Publish { routing_key: &shared, ..Default::default() };
        raw.output.put_publish(1, &publish, &[0, 0], &[9; 3000]);
        let half = raw.output.bytes()[..1500].to_vec();
        raw.send(&half);
        let kept = match end {
            End::Closed => None,
            End::Reset => {
                let now = Some(Duration::ZERO);
                rustix::net::sockopt::set_socket_linger(&raw.socket, now).unwrap();
                None
            }
            End::Silence => Some(raw.socket.try_clone().unwrap()),
        };
        drop(raw);
        client.consume(channel, &shared, &Consume::default()).unwrap();
        let came = loop {
            if let Some(Event::Content { body, .. }) = client.next_event().unwrap() {
                break body.to_vec();
            }
            assert!(client.wait(PATIENCE).unwrap(), "{end:?}: it does not come back");
        };
        assert_eq!(came, b"x", "{end:?}");
        wait_until(PATIENCE, "its queue is gone", || {
            !broker.told(&["list_queues", "name"]).contains(&mine)
        });
        assert_eq!(count(&mut client, channel, &shared), 0, "{end:?}");
        drop(kept);
    }
}

fn count(client: &mut Connection, channel: u16, queue: &str) -> u32 {
    let passive = QueueDeclare { passive: true, ..QueueDeclare::default() };
    client.queue_declare(channel, queue, &passive).unwrap().message_count
}

/// Killed while it runs, and then again and again while it starts.
#[test]
fn killed_while_it_starts() {
    let broker = Broker::with(&["shards=2"]);
    let (mut client, channel) = broker.channel();
    durable(&mut client, channel, "q");
    client.tx_select(channel).unwrap();
    for number in 0..20_000 {
        let key = Key { publisher: 1, number };
        client.publish(channel, "", "q", &key.properties(None), &key.body());
    }
    client.tx_commit(channel).unwrap();
    let taken: Vec<u64> = (0..5_000)
        .map(|_| client.get(channel, "q", false).unwrap().expect("there").delivery_tag)
        .collect();
    client.ack(channel, *taken.last().unwrap(), true);
    // Acks alone would be answered before they are on the disk.
    let last = Key { publisher: 1, number: 20_000 };
    client.publish(channel, "", "q", &last.properties(None), &last.body());
    client.tx_commit(channel).unwrap();
    let down = broker.kill();
    let mut random = Random(5);
    let mut was_ready = 0;
    for _ in 0..20 {
        let mut command = down.command();
        command.arg("--data-dir").arg(down.dir.path()).stdout(Stdio::piped()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        std::thread::park_timeout(Duration::from_millis(random.below(60)));
        rustix::process::kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::KILL)
            .unwrap();
        let output = child.wait_with_output().unwrap();
        let told = String::from_utf8(output.stdout).unwrap();
        assert!(!told.contains("ERROR"), "{told}");
        was_ready += usize::from(told.contains("is ready"));
    }
    assert!(was_ready < 20, "it was never killed before it was ready");
    let broker = down.start_again();
    let (mut client, channel) = broker.channel();
    client.consume(channel, "q", &Consume { no_ack: true, ..Consume::default() }).unwrap();
    let mut found = BTreeSet::new();
    while found.len() < 15_001 {
        while let Some(event) = client.next_event().unwrap() {
            let Event::Content { properties, body, .. } = event else { panic!("{event:?}") };
            assert!(found.insert(Key::of(properties, body)), "twice");
        }
        let is_all = found.len() == 15_001;
        assert!(is_all || client.wait(PATIENCE).unwrap(), "only {}", found.len());
    }
    // The client may have more of them already than the queue would tell.
    assert!(found.iter().all(|key| key.number >= 5_000), "what a commit acked stays acked");
    assert_eq!(durable(&mut client, channel, "q"), 0);
}
