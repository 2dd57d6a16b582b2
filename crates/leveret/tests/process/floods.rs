//! What clients can make the node hold besides messages, at a watermark of 200 MB: the process stays within it, a tenth
//! and a constant, and everything goes on afterwards.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leveret_client::amqp::method::{basic, channel, exchange, queue};
use leveret_client::amqp::table::{RawTable, Table, Value};

use crate::auth::api;
use crate::broker::{Broker, PATIENCE, Publisher, wait_until};
use crate::raw::{Raw, publish_bytes};

const MIB: u64 = 1 << 20;

/// What the process takes besides what it counts: the program, threads, buffers, what the allocator keeps.
const BESIDE: u64 = 64 * MIB;

const WATERMARK: &str = "vm_memory_high_watermark.absolute=200MB";

#[track_caller]
fn stays_within(broker: &Broker, before: u64) {
    let grown = broker.own_memory().saturating_sub(before);
    assert!(grown < 220_000_000 + BESIDE, "{} MiB", grown / MIB);
}

fn has_alarm(broker: &Broker) -> bool {
    broker.json(&["status"])["alarms"].to_string().contains("memory")
}

/// Arguments of 110 KB in one text, and in very many small values.
fn large_arguments() -> [Vec<u8>; 2] {
    let mut text = Table::default();
    text.set("x-note", Value::LongStr(vec![b'a'; 110_000]));
    let mut many = Table::default();
    many.set("x-list", Value::Array(vec![Value::Void; 100_000]));
    [text.to_bytes(), many.to_bytes()]
}

/// Queues, exchanges, bindings and consumers with large arguments: refused when they take half of what names may, or memory is
/// short, and deleted all the same.
#[test]
fn names_with_large_arguments() {
    for arguments in large_arguments() {
        let broker = Broker::with(&[WATERMARK]);
        let before = broker.own_memory();
        let mut raw = Raw::login(&broker);
        raw.method(1, &queue::Declare { queue: "plain", ..Default::default() });
        raw.expect("queue.declare-ok");
        // Of its own: a refusal closes the other one, and its consumers would go.
        raw.method(2, &channel::Open::default());
        raw.expect("channel.open-ok");
        let mut number = 0;
        let mut refused = [false; 4];
        while refused != [true; 4] {
            if number % 4 == 3 && refused[3] {
                // Its channel is closed.
                number += 1;
                continue;
            }
            let name = format!("name-{number}");
            let arguments = RawTable::unchecked(&arguments);
            let answer = match number % 4 {
                0 => {
                    let declare = queue::Declare { queue: &name, arguments, ..Default::default() };
                    raw.method(1, &declare);
                    raw.either("queue.declare-ok", "channel.close")
                }
                1 => {
                    let declare = exchange::Declare {
                        exchange: &name,
                        kind: "headers",
                        arguments,
                        ..Default::default()
                    };
                    raw.method(1, &declare);
                    raw.either("exchange.declare-ok", "channel.close")
                }
                2 => {
                    let bind = queue::Bind {
                        queue: "plain",
                        exchange: "amq.direct",
                        routing_key: &name,
                        arguments,
                        ..Default::default()
                    };
                    raw.method(1, &bind);
                    raw.either("queue.bind-ok", "channel.close")
                }
                _ => {
                    let consume = basic::Consume {
                        queue: "plain",
                        consumer_tag: &name,
                        arguments,
                        ..Default::default()
                    };
                    raw.method(2, &consume);
                    raw.either("basic.consume-ok", "channel.close")
                }
            };
            if !answer {
                refused[number % 4] = true;
                if number % 4 < 3 {
                    raw.open_again();
                }
            }
            number += 1;
            assert!(number < 6000, "never refused");
        }
        stays_within(&broker, before);
        // What is small is made, and the operator is not kept out.
        raw.method(1, &queue::Declare { queue: "small", ..Default::default() });
        raw.expect("queue.declare-ok");
        drop(raw);
        broker.told(&["delete_queue", "plain"]);
        let queues = broker.json(&["list_queues", "name"]);
        for queue in queues.as_array().unwrap() {
            broker.told(&["delete_queue", queue["name"].as_str().unwrap()]);
        }
        let mut raw = Raw::login(&broker);
        for number in (0..number).filter(|number| number % 4 == 1) {
            let exchange = format!("name-{number}");
            raw.method(1, &exchange::Delete { exchange: &exchange, ..Default::default() });
            raw.expect("exchange.delete-ok");
        }
        wait_until(PATIENCE, "the alarm is over", || !has_alarm(&broker));
        Publisher::new(&broker, "q").publish(b"after", 10);
    }
}

/// Bodies of requests that are not whole, and those that stand still.
#[test]
fn requests_that_are_not_whole() {
    let broker = Broker::with(&[
        WATERMARK,
        "unfinished_timeout=1000",
        "management.tcp.port=0",
        "management.tcp.ip=127.0.0.1",
    ]);
    let address = broker.listens("http");
    let before = broker.own_memory();
    let head = "POST /api/definitions HTTP/1.1\r\nhost: x\r\nauthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n\
                content-type: application/json\r\ncontent-length: 19000000\r\n\r\n";
    let mut sockets: Vec<TcpStream> = (0..60)
        .map(|_| {
            let mut socket = TcpStream::connect(address).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket.write_all(head.as_bytes()).unwrap();
            socket
        })
        .collect();
    for socket in &mut sockets {
        // It may be refused already.
        let _ = socket.set_write_timeout(Some(PATIENCE));
        let _ = socket.write_all(&vec![b' '; 100_000]);
    }
    stays_within(&broker, before);
    // Publishers do not stand in one line with them.
    let since = Instant::now();
    Publisher::new(&broker, "q").publish(&[b'a'; 100_000], 10);
    assert!(since.elapsed() < PATIENCE / 3, "{:?}", since.elapsed());
    let mut answers: Vec<String> = Vec::new();
    for mut socket in sockets {
        let mut answer = [0; 12];
        match socket.read_exact(&mut answer) {
            Ok(()) => answers.push(String::from_utf8_lossy(&answer[9..]).into_owned()),
            Err(_) => answers.push("closed".to_owned()),
        }
    }
    answers.sort();
    answers.dedup();
    assert!(
        answers.iter().all(|it| ["408", "429", "503", "closed"].contains(&&**it)),
        "{answers:?}"
    );
    assert!(answers.iter().any(|it| it == "408"), "{answers:?}");
    Publisher::new(&broker, "q").publish(b"after", 10);
}

/// One user's requests that stand still leave room for those of others.
#[test]
fn requests_of_one_user() {
    let broker = Broker::with(&[WATERMARK, "management.tcp.port=0", "management.tcp.ip=127.0.0.1"]);
    broker.ctl(&["add_user", "other", "other"]);
    broker.ctl(&["set_user_tags", "other", "administrator"]);
    let ask = |authorization: &str, sent: usize| {
        let mut socket = TcpStream::connect(broker.listens("http")).unwrap();
        socket.set_read_timeout(Some(PATIENCE / 3)).unwrap();
        let head = format!(
            "PUT /api/global-parameters/x HTTP/1.1\r\nhost: x\r\nauthorization: Basic {authorization}\r\n\
             content-type: application/json\r\ncontent-length: 500000\r\n\r\n"
        );
        let body = format!("{{\"value\":\"{}\"}}", "x".repeat(499_988));
        socket.write_all(head.as_bytes()).unwrap();
        socket.write_all(&body.as_bytes()[..sent]).unwrap();
        socket
    };
    // Each takes 4 MB of 25.
    let still: Vec<TcpStream> = (0..12).map(|_| ask("b3RoZXI6b3RoZXI=", 1)).collect();
    let guest = "Basic Z3Vlc3Q6Z3Vlc3Q=";
    let (_, nodes) = api(&broker, "/api/nodes", guest);
    let nodes: serde_json::Value = serde_json::from_str(&nodes).unwrap();
    let path = format!("/api/nodes/{}/memory", nodes[0]["name"].as_str().unwrap());
    wait_until(PATIENCE, "they have all that they may", || {
        let memory: serde_json::Value =
            serde_json::from_str(&api(&broker, &path, guest).1).unwrap();
        memory["memory"]["connection_other"].as_u64().unwrap() >= 16_000_000
    });
    let mut answer = [0; 12];
    ask("Z3Vlc3Q6Z3Vlc3Q=", 500_000).read_exact(&mut answer).unwrap();
    assert_eq!(&answer[9..], b"201");
    drop(still);
}

/// Who waits for its own share of the room ends no slow request of others: it would not get that room.
#[test]
fn a_slow_request_beside_those_of_another_user() {
    let broker = Broker::with(&[
        WATERMARK,
        "unfinished_timeout=2000",
        "management.tcp.port=0",
        "management.tcp.ip=127.0.0.1",
    ]);
    broker.ctl(&["add_user", "other", "other"]);
    broker.ctl(&["set_user_tags", "other", "administrator"]);
    let body = format!("{{\"value\":\"{}\"}}", "x".repeat(499_988));
    let begin = |authorization: &str| {
        let mut socket = TcpStream::connect(broker.listens("http")).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let head = format!(
            "PUT /api/global-parameters/x HTTP/1.1\r\nhost: x\r\nauthorization: Basic {authorization}\r\n\
             content-type: application/json\r\ncontent-length: 500000\r\n\r\n"
        );
        socket.write_all(head.as_bytes()).unwrap();
        socket
    };
    let mut slow = begin("Z3Vlc3Q6Z3Vlc3Q=");
    let (since, mut sent) = (Instant::now(), 0);
    // Each takes 4 MB of 25, and is ended after a look: there is room for three at a time.
    let still: Vec<TcpStream> = (0..24).map(|_| begin("b3RoZXI6b3RoZXI=")).collect();
    still.iter().for_each(|socket| socket.set_nonblocking(true).unwrap());
    wait_until(PATIENCE, "three times three have ended", || {
        // 8 KB a second: less than is asked for if others wait for it.
        let now = (since.elapsed().as_millis() as usize * 8).min(body.len() / 2);
        // It may be ended, which its answer says.
        let _ = slow.write_all(&body.as_bytes()[sent..now]);
        sent = now;
        still.iter().filter(|socket| socket.peek(&mut [0]).is_ok()).count() >= 9
    });
    let _ = slow.write_all(&body.as_bytes()[sent..]);
    let mut answer = [0; 12];
    slow.read_exact(&mut answer).unwrap();
    assert_eq!(&answer[9..], b"201");
}

/// Who has as many bodies under way as a user may is still answered what needs none.
#[test]
fn requests_without_a_body() {
    let broker = Broker::with(&["management.tcp.port=0", "management.tcp.ip=127.0.0.1"]);
    let guest = "Basic Z3Vlc3Q6Z3Vlc3Q=";
    let begin = || {
        let mut socket = TcpStream::connect(broker.listens("http")).unwrap();
        let head = format!(
            "PUT /api/global-parameters/x HTTP/1.1\r\nhost: x\r\nauthorization: {guest}\r\n\
             content-type: application/json\r\ncontent-length: 9\r\n\r\n{{"
        );
        socket.write_all(head.as_bytes()).unwrap();
        socket
    };
    let bodies: Vec<TcpStream> = (0..33).map(|_| begin()).collect();
    // One is too many, whichever comes last.
    wait_until(PATIENCE, "one is refused", || {
        bodies.iter().any(|socket| {
            socket.set_nonblocking(true).unwrap();
            socket.peek(&mut [0]).is_ok()
        })
    });
    assert_eq!(api(&broker, "/api/health/checks/alarms", guest).0, 200);
}

/// Lists that are asked for and not read hold keys and a few chunks each, and never the arguments of what they list.
#[test]
fn lists_that_are_not_read() {
    let broker = Broker::with(&["management.tcp.port=0", "management.tcp.ip=127.0.0.1"]);
    let [arguments, _] = large_arguments();
    let mut raw = Raw::login(&broker);
    raw.method(1, &queue::Declare { queue: "q", ..Default::default() });
    raw.expect("queue.declare-ok");
    for number in 0..500 {
        let (routing_key, arguments) = (&*format!("k-{number}"), RawTable::unchecked(&arguments));
        let queue = "q";
        let exchange = "amq.direct";
        raw.method(
            1,
            &queue::Bind { queue, exchange, routing_key, arguments, ..Default::default() },
        );
        raw.expect("queue.bind-ok");
        raw.method(
            1,
            &basic::Consume { queue, consumer_tag: routing_key, arguments, ..Default::default() },
        );
        raw.expect("basic.consume-ok");
    }
    let before = broker.own_memory();
    let mut unread = Vec::new();
    for path in [
        "bindings",
        "consumers",
        "definitions",
        "queues/%2F/q/bindings",
        "bindings?page=1&page_size=500",
    ] {
        for _ in 0..4 {
            let mut socket = TcpStream::connect(broker.listens("http")).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            let head = format!(
                "GET /api/{path} HTTP/1.1\r\nhost: x\r\nauthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n\r\n"
            );
            socket.write_all(head.as_bytes()).unwrap();
            let mut begin = [0; 12];
            socket.read_exact(&mut begin).unwrap();
            assert_eq!(&begin, b"HTTP/1.1 200", "{path}");
            unread.push(socket);
        }
    }
    let grown = broker.own_memory().saturating_sub(before);
    // Each of them would be 55 MB.
    assert!(grown < BESIDE, "{} MiB", grown / MIB);
}

/// A queue of many megabytes is not read whole; what is not shown stays, in its order.
#[test]
fn messages_that_are_got() {
    let broker = Broker::with(&[
        "management.tcp.port=0",
        "management.tcp.ip=127.0.0.1",
        "vm_memory_high_watermark.absolute=2GB",
    ]);
    let mut publisher = Publisher::new(&broker, "q");
    for number in 0..50_u8 {
        publisher.publish(&vec![b'a' + number % 26; MIB as usize], 1);
    }
    let before = broker.own_memory();
    let get = |mode: &str| {
        let body = format!(r#"{{"count":50,"ackmode":"{mode}","encoding":"auto"}}"#);
        let head = format!(
            "POST /api/queues/%2F/q/get HTTP/1.1\r\nhost: x\r\nauthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n\
             connection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut socket = TcpStream::connect(broker.listens("http")).unwrap();
        socket.write_all(head.as_bytes()).unwrap();
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).unwrap();
        let at = answer.windows(4).position(|it| it == b"\r\n\r\n").unwrap() + 4;
        let rows: serde_json::Value = serde_json::from_slice(&answer[at..]).unwrap();
        let rows = rows.as_array().unwrap().clone();
        rows.iter().map(|row| row["payload"].as_str().unwrap().as_bytes()[0]).collect::<Vec<u8>>()
    };
    let ready = || broker.json(&["list_queues", "messages_ready"])[0]["messages_ready"].clone();
    let want = |from: u8| (from..from + 16).map(|it| b'a' + it % 26).collect::<Vec<u8>>();
    for _ in 0..3 {
        assert_eq!(get("ack_requeue_true"), want(0));
        assert_eq!(ready(), 50);
    }
    let grown = broker.own_memory().saturating_sub(before);
    assert!(grown < BESIDE + 32 * MIB, "{} MiB", grown / MIB);
    assert_eq!(get("ack_requeue_false"), want(0));
    assert_eq!(ready(), 34);
    assert_eq!(get("reject_requeue_false"), want(16));
    assert_eq!(ready(), 18);
}

/// Keys of 255 dots are 256 words each, and a topic exchange keeps them: refused when they take half of what names may. What is
/// small is made all the same, and others do not notice.
#[test]
fn bindings_of_many_words() {
    let broker = Broker::with(&[WATERMARK]);
    let before = broker.own_memory();
    let mut raw = Raw::login(&broker);
    raw.method(1, &queue::Declare { queue: "mine", ..Default::default() });
    raw.expect("queue.declare-ok");
    let bind = |raw: &mut Raw, key: &str| {
        let bind = queue::Bind {
            queue: "mine",
            exchange: "amq.topic",
            routing_key: key,
            ..Default::default()
        };
        raw.method(1, &bind);
        raw.either("queue.bind-ok", "channel.close")
    };
    let mut number = 0;
    while bind(&mut raw, &format!("{number:06x}{}", ".".repeat(249))) {
        number += 1;
        assert!(number < 20_000, "never refused");
    }
    stays_within(&broker, before);
    raw.open_again();
    assert!(bind(&mut raw, "stock.eur.*"));
    raw.method(1, &queue::Declare { queue: "small", ..Default::default() });
    raw.expect("queue.declare-ok");
    broker.told(&["delete_queue", "mine"]);
    raw.method(1, &queue::Declare { queue: "mine", ..Default::default() });
    raw.expect("queue.declare-ok");
    assert!(bind(&mut raw, &".".repeat(255)));
}

/// Publishers that close their end while the node does not read from them, many at once, while an alarm comes and goes: the
/// end of each is told to it once, not again and again until its turn comes.
#[test]
fn a_crowd_that_closes_its_end_while_it_is_blocked() {
    const CLIENTS: usize = 300;
    let broker = Broker::with(&["vm_memory_high_watermark.absolute=100MB"]);
    let mut large = Raw::login(&broker);
    large.method(1, &queue::Declare { queue: "large", ..Default::default() });
    large.expect("queue.declare-ok");
    large.socket.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    // Until nobody reads it any more.
    let filler = publish_bytes("", "large", 1 << 20);
    for _ in 0..400 {
        if large.socket.write_all(&filler).is_err() {
            break;
        }
    }
    let messages = publish_bytes("", "large", 1000).repeat(800);
    // All of theirs may be there at once, and a copy that is on its way to the disk.
    let most = 3 * (CLIENTS * messages.len()) as u64;
    let before = broker.own_memory();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                scope.spawn(|| {
                    let raw = Raw::login(&broker);
                    raw.socket.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
                    // It takes as much as socket and node take.
                    let _ = (&raw.socket).write_all(&messages);
                    let _ = raw.socket.shutdown(Shutdown::Write);
                    raw
                })
            })
            .collect();
        let watch = scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                let grown = broker.own_memory().saturating_sub(before);
                assert!(grown < most, "{} MiB", grown / MIB);
                std::thread::yield_now();
            }
        });
        let clients: Vec<Raw> = clients.into_iter().map(|client| client.join().unwrap()).collect();
        wait_until(PATIENCE, "all were noticed", || {
            watch.is_finished() || broker.json(&["status"])["totals"]["connection_count"] == 1
        });
        done.store(true, Ordering::Release);
        drop(clients);
    });
}
