//! Protocol header, login, tuning, opening; heartbeats and closing.

mod node;

use bytes::Bytes;
use leveret_amqp::method::*;
use leveret_amqp::reply::ReplyCode;
use leveret_amqp::table::{RawTable, Table, Value};
use leveret_broker::flow::Alarm;
use leveret_broker::message::{Outbox, Reply, ToSession, ToShard};
use leveret_session::{Context, End};
use node::{Node, client_properties};

const HEADER: &[u8] = b"AMQP\x00\x00\x09\x01";
const TELL: &[&str] = &["authentication_failure_close"];

fn start_ok(
    node: &mut Node,
    link: usize,
    capabilities: &[&str],
    mechanism: &str,
    response: &[u8],
) -> String {
    let properties = client_properties(capabilities);
    let client_properties = RawTable::unchecked(&properties);
    node.say(link, 0, &connection::StartOk { client_properties, mechanism, response, locale: "" })
}

fn tune_ok(channel_max: u16, frame_max: u32, heartbeat: u16) -> connection::TuneOk {
    connection::TuneOk { channel_max, frame_max, heartbeat }
}

#[test]
fn starts_with_rabbitmqs_properties() {
    let mut node = Node::new();
    let link = node.accept(true);
    assert_eq!(node.bytes(link, HEADER), "0 connection.start PLAIN AMQPLAIN ANONYMOUS");
    // 0-9 is close enough.
    let link = node.accept(true);
    assert!(node.bytes(link, b"AMQP\x01\x01\x00\x09").starts_with("0 connection.start"));
    // One byte at a time.
    let link = node.accept(true);
    for byte in &HEADER[..7] {
        assert_eq!(node.bytes(link, &[*byte]), "");
    }
    assert!(node.bytes(link, &HEADER[7..]).starts_with("0 connection.start"));
}

#[test]
fn other_protocols_are_answered_with_ours() {
    for bytes in [&b"GET / HT"[..], b"AMQP\x00\x01\x00\x00", b"AMQP\x03\x01\x00\x00", b"\x16\x03"] {
        let mut node = Node::new();
        let link = node.accept(true);
        assert_eq!(node.bytes(link, bytes), "header [0, 0, 9, 1]");
        assert_eq!(node.ended(link), Some(End::AfterFlush));
    }
}

/// Whoever it is, and whatever is asked for: there are no names to look them up in.
#[test]
fn who_serves_nobody_says_why() {
    let mut node = Node::new();
    node.settings.serves_nobody = Some("1 of 3 nodes is here".to_owned());
    let link = node.accept(false);
    node.bytes(link, HEADER);
    assert!(
        start_ok(&mut node, link, TELL, "PLAIN", b"\0who\0ever").starts_with("0 connection.tune")
    );
    node.say(link, 0, &tune_ok(10, 8192, 0));
    let open = connection::Open { virtual_host: "any", capabilities: "", insist: false };
    let told = node.say(link, 0, &open);
    assert_eq!(told, "0 connection.close 320 CONNECTION_FORCED - 1 of 3 nodes is here (10.40)");
    node.say(link, 0, &connection::CloseOk);
    assert_eq!(node.ended(link), Some(End::AfterFlush));
}

#[test]
fn logins() {
    let amqplain = |user: Value, password: Value| {
        let mut table = Table::default();
        table.push("LOGIN", user);
        table.push("PASSWORD", password);
        table.to_bytes()
    };
    let text = |text: &str| Value::LongStr(text.as_bytes().to_vec());
    let good = amqplain(text("guest"), text("guest"));
    let bad = amqplain(text("guest"), text("x"));
    let odd = amqplain(Value::Bool(true), text("x"));
    let tune = "0 connection.tune 2047 131072 60";
    let refused = |mechanism: &str| {
        format!(
            "0 connection.close 403 ACCESS_REFUSED - Login was refused using authentication \
             mechanism {mechanism}. For details see the broker logfile. (0.0)"
        )
    };
    #[rustfmt::skip] // a table
    let rows: [(&str, &[u8], String); 10] = [
        ("PLAIN",     b"\0guest\0guest", tune.into()),
        ("PLAIN",     b"\0guest\0wrong", refused("PLAIN")),
        ("PLAIN",     b"\0nobody\0guest",refused("PLAIN")),
        ("PLAIN",     b"\0guest\0",      refused("PLAIN")),
        ("PLAIN",     b"guest",          "0 connection.close 502 SYNTAX_ERROR - response invalid (10.11)".into()),
        ("AMQPLAIN",  &good,             tune.into()),
        ("AMQPLAIN",  &bad,              refused("AMQPLAIN")),
        ("AMQPLAIN",  &odd,              "0 connection.close 502 SYNTAX_ERROR - AMQPLAIN auth info uses unsupported type for LOGIN or PASSWORD field (10.11)".into()),
        ("ANONYMOUS", b"whoever",        tune.into()),
        ("EXTERNAL",  b"",               "0 connection.close 503 COMMAND_INVALID - unknown authentication mechanism 'EXTERNAL' (10.11)".into()),
    ];
    for (mechanism, response, want) in rows {
        let mut node = Node::new();
        let link = node.accept(true);
        node.bytes(link, HEADER);
        assert_eq!(start_ok(&mut node, link, TELL, mechanism, response), want, "{mechanism}");
    }
}

/// Clients that do not ask to be told take a silent close for a refused login.
#[test]
fn a_refused_login_without_the_capability_is_silence() {
    let mut node = Node::new();
    let link = node.accept(true);
    node.bytes(link, HEADER);
    assert_eq!(start_ok(&mut node, link, &[], "PLAIN", b"\0guest\0wrong"), "");
    assert_eq!(node.bytes(link, b"more"), "");
    assert_eq!(node.ended(link), None);
    node.later(3000);
    assert_eq!(node.ended(link), Some(End::Now));
}

#[test]
fn guest_is_local() {
    let mut node = Node::new();
    let link = node.accept(false);
    node.bytes(link, HEADER);
    let said = start_ok(&mut node, link, TELL, "PLAIN", b"\0guest\0guest");
    assert!(
        said.starts_with("0 connection.close 403 ACCESS_REFUSED - Login was refused"),
        "{said}"
    );
    node.settings.loopback_users.clear();
    let link = node.accept(false);
    node.bytes(link, HEADER);
    let said = start_ok(&mut node, link, TELL, "PLAIN", b"\0guest\0guest");
    assert!(said.starts_with("0 connection.tune"), "{said}");
}

#[test]
fn tuning() {
    let refused = |text: &str| format!("0 connection.close 530 NOT_ALLOWED - {text} (10.30)");
    #[rustfmt::skip] // a table
    let rows = [
        (tune_ok(2047, 131_072, 60), String::new()),
        (tune_ok(1, 4096, 0),        String::new()),
        (tune_ok(2047, 131_072, 900),String::new()), // the heartbeat is the client's to choose
        (tune_ok(1, 4095, 0),        refused("negotiated frame_max = 4095 is lower than the minimum allowed value (4096)")),
        (tune_ok(1, 131_073, 0),     refused("negotiated frame_max = 131073 is higher than the maximum allowed value (131072)")),
        (tune_ok(1, 0, 0),           refused("negotiated frame_max = 0 (no limit) is higher than the maximum allowed value (131072)")),
        (tune_ok(2048, 8192, 0),     refused("negotiated channel_max = 2048 is higher than the maximum allowed value (2047)")),
        (tune_ok(0, 8192, 0),        refused("negotiated channel_max = 0 (no limit) is higher than the maximum allowed value (2047)")),
    ];
    for (tune_ok, want) in rows {
        let mut node = Node::new();
        let link = node.accept(true);
        node.bytes(link, HEADER);
        start_ok(&mut node, link, &[], "PLAIN", b"\0guest\0guest");
        assert_eq!(node.say(link, 0, &tune_ok), want);
    }
}

#[test]
fn vhosts() {
    let open = |vhost| connection::Open { virtual_host: vhost, capabilities: "", insist: false };
    let rows = [
        ("/", "0 connection.open-ok"),
        ("no", "0 connection.close 530 NOT_ALLOWED - vhost no not found (10.40)"),
        (
            "other",
            "0 connection.close 530 NOT_ALLOWED - access to vhost 'other' refused for user \
             'guest' (10.40)",
        ),
    ];
    for (vhost, want) in rows {
        let mut node = Node::new();
        node.topology.add_vhost("other").unwrap();
        let link = node.accept(true);
        node.bytes(link, HEADER);
        start_ok(&mut node, link, &[], "PLAIN", b"\0guest\0guest");
        node.say(link, 0, &tune_ok(2047, 131_072, 0));
        assert_eq!(node.say(link, 0, &open(vhost)), want);
    }
}

#[test]
fn methods_out_of_order() {
    let mut node = Node::new();
    let link = node.accept(true);
    node.bytes(link, HEADER);
    let said = node.say(link, 0, &connection::Open::default());
    let want = "0 connection.close 504 CHANNEL_ERROR - unexpected method in connection state \
                starting (10.40)";
    assert_eq!(said, want);
    // Another channel before the connection is open.
    let link = node.accept(true);
    node.bytes(link, HEADER);
    let said = node.say(link, 1, &channel::Open::default());
    let want =
        "0 connection.close 505 UNEXPECTED_FRAME - type 1, all octets = <<0,20,0,10,0>> (0.0)";
    assert_eq!(said, want);
    // A connection that runs.
    let link = node.client();
    let said = node.say(link, 0, &channel::Open::default());
    let want = "0 connection.close 504 CHANNEL_ERROR - unexpected method in connection state \
                running (20.10)";
    assert_eq!(said, want);
    // A client may give up at any time.
    let link = node.accept(true);
    node.bytes(link, HEADER);
    assert_eq!(node.say(link, 0, &connection::Close::default()), "0 connection.close-ok");
    assert_eq!(node.ended(link), Some(End::AfterPeer));
}

#[test]
fn the_handshake_has_ten_seconds() {
    let mut node = Node::new();
    let silent = node.accept(true);
    let slow = node.accept(true);
    node.bytes(slow, HEADER);
    let fast = node.client();
    node.later(9_999);
    assert_eq!((node.ended(silent), node.ended(slow)), (None, None));
    node.later(1);
    assert_eq!((node.ended(silent), node.ended(slow)), (Some(End::Now), Some(End::Now)));
    assert_eq!(node.ended(fast), None);
}

#[test]
fn heartbeats() {
    let mut node = Node::new();
    let link = node.client();
    // Two per interval of 60 s, when nothing else is written.
    let beat = b"\x08\0\0\0\0\0\0\xce";
    node.later(30_000);
    assert_eq!(node.read(link), "", "the handshake was written");
    for _ in 0..3 {
        node.later(30_000);
        assert_eq!(node.read(link), "heartbeat");
        node.bytes(link, beat);
    }
    node.declare(link, "q");
    node.later(30_000);
    assert_eq!(node.read(link), "", "a reply was written");
    node.later(30_000);
    assert_eq!(node.read(link), "heartbeat");
    node.bytes(link, beat);
    node.later(119_999);
    assert_eq!(node.ended(link), None);
    node.later(30_001);
    assert_eq!(node.ended(link), Some(End::Now));
}

/// What a client sent in one piece is worked off command by command, each of which may wait for its answer; its
/// heartbeats lie behind that, where nobody looks. It is not taken for dead, until it is silent.
#[test]
fn who_is_not_read_is_not_dead() {
    let mut node = Node::new();
    let link = node.client();
    node.declare(link, "q");
    let Node { topology, mut links, mut now, .. } = node;
    let node::Link { mut session, mut out, .. } = links.remove(link);
    let mut outbox = Outbox::default();
    (0..10).for_each(|_| out.put_method(1, &basic::Get { queue: "q", ..Default::default() }));
    let mut input = Bytes::from(out.take_rest());
    let mut ticks = 0;
    loop {
        let wall = now;
        let (topology, out) = (&topology, &mut out);
        let now_us = now.ms() * 1000;
        let mut cx = Context { topology, now, now_us, wall, out, outbox: &mut outbox };
        // An answer, a tick, and what the client had sent: as a process finds them that was stopped.
        if let Some((_, ToShard::Get { reply, .. })) = cx.outbox.shards.pop() {
            let answer = ToSession::Reply { channel: reply.channel, reply: Reply::GotNothing };
            session.receive(answer, &mut cx);
        }
        session.timeout(&mut cx);
        if session.end().is_some() {
            break;
        }
        if session.wants_input() && !input.is_empty() {
            session.input(&mut input, &mut cx);
        }
        now = session.next_timeout().expect("a tick");
        ticks += 1;
    }
    assert!(input.is_empty(), "{} bytes were not looked at", input.len());
    assert_eq!(ticks, 10 + 4, "a silence of two intervals");
}

#[test]
fn frame_errors_close_the_connection() {
    #[rustfmt::skip] // a table
    let rows: [(&[u8], &str); 7] = [
        (b"\x01\0\x01\0\0\0\x04abcd\0",          "501 FRAME_ERROR - type 1, all octets = <<\"abcd\">>: {invalid_frame_end_marker,0} (0.0)"),
        (b"\x01\0\x01\0\x03\x0d\x40",            "501 FRAME_ERROR - type 1, all octets = <<>>: {frame_too_large,200000,131064} (0.0)"),
        (b"\x63\0\0\0\0\0\0\xce",                "501 FRAME_ERROR - type 99, all octets = <<>>: unknown_frame (0.0)"),
        (b"\x08\0\x01\0\0\0\0\xce",              "505 UNEXPECTED_FRAME - type 8, all octets = <<>> (0.0)"),
        (b"\x01\0\x01\0\0\0\x04\0\x63\0\x0a\xce","503 COMMAND_INVALID - unknown class 99 (0.0)"),
        (b"\x01\0\x01\0\0\0\x04\0\x3c\0\x0a\xce","501 FRAME_ERROR - cannot decode <<>> (60.10)"),
        (b"\x02\0\x00\0\0\0\x0e\0\x3c\0\0\0\0\0\0\0\0\0\0\0\0\xce", "505 UNEXPECTED_FRAME - type 2, all octets = <<0,60,0,0,0,0,0,0,0,0,0,0,0,0>> (0.0)"),
    ];
    for (bytes, want) in rows {
        let mut node = Node::new();
        let link = node.client();
        assert_eq!(node.bytes(link, bytes), format!("0 connection.close {want}"));
        node.later(30_000);
        assert_eq!(node.ended(link), Some(End::Now));
    }
}

#[test]
fn closing() {
    let mut node = Node::new();
    let link = node.client();
    let text = "bye".to_owned();
    node.letter(link, ToSession::Close { code: ReplyCode::ConnectionForced, text });
    let want = "0 connection.close 320 CONNECTION_FORCED - bye (0.0)";
    assert_eq!(node.read(link), want);
    // Everything but the answer is thrown away; a close that crosses ours is answered.
    assert_eq!(node.say(link, 1, &queue::Declare { queue: "q", ..Default::default() }), "");
    assert_eq!(node.say(link, 7, &channel::Open::default()), "");
    assert_eq!(node.say(link, 0, &connection::Close::default()), "0 connection.close-ok");
    assert_eq!(node.ended(link), None);
    assert_eq!(node.say(link, 0, &connection::CloseOk), "");
    assert_eq!(node.ended(link), Some(End::AfterFlush));
    assert!(node.topology.queue_count() == 0);
    // Never answered.
    let link = node.client();
    node.letter(link, ToSession::Close { code: ReplyCode::ConnectionForced, text: "x".into() });
    node.later(29_999);
    assert_eq!(node.ended(link), None);
    node.later(1);
    assert_eq!(node.ended(link), Some(End::Now));
}

#[test]
fn exclusive_queues_go_before_close_ok() {
    let mut node = Node::new();
    let link = node.client();
    for name in ["a", "b"] {
        let declare = queue::Declare { queue: name, exclusive: true, ..Default::default() };
        assert!(node.say(link, 1, &declare).starts_with("1 queue.declare-ok"));
    }
    assert_eq!(node.topology.queue_count(), 2);
    assert_eq!(node.say(link, 0, &connection::Close::default()), "0 connection.close-ok");
    assert_eq!(node.topology.queue_count(), 0);
    // And when the socket breaks.
    let link = node.client();
    node.say(link, 1, &queue::Declare { queue: "c", exclusive: true, ..Default::default() });
    node.drop_link(link);
    assert_eq!(node.topology.queue_count(), 0);
}

#[test]
fn update_secret() {
    let mut node = Node::new();
    let link = node.client();
    let update = connection::UpdateSecret { new_secret: b"x", reason: "why not" };
    assert_eq!(node.say(link, 0, &update), "0 connection.update-secret-ok");
    node.topology.delete_user("guest").unwrap();
    let said = node.say(link, 0, &update);
    let want = "0 connection.close 530 NOT_ALLOWED - New secret was refused by one of the \
                backends (10.70)";
    assert_eq!(said, want);
}

#[test]
fn publishers_are_blocked_by_an_alarm() {
    let mut node = Node::new();
    let raised = Alarm { memory: true, disk: false, stops_all: true };
    let link = node.client();
    let quiet = node.connect_with(&[], "\0guest\0guest", "/");
    node.open(quiet, 1);
    node.declare(link, "q");
    for link in [link, quiet] {
        node.letter(link, ToSession::Alarm(raised));
        // Others than publishes go on.
        node.declare(link, "q");
    }
    assert_eq!(node.links[link].session.facts().state, "blocking");
    assert_eq!(node.publish(link, "", "q", "x"), "0 connection.blocked low on memory");
    assert_eq!(node.publish(quiet, "", "q", "x"), "");
    assert!(!node.links[link].session.wants_input());
    assert_eq!(node.links[link].session.facts().state, "blocked");
    let passive = queue::Declare { queue: "q", passive: true, ..Default::default() };
    assert_eq!(node.say(link, 1, &passive), "");
    node.letter(link, ToSession::Alarm(Alarm::default()));
    node.letter(quiet, ToSession::Alarm(Alarm::default()));
    assert_eq!(node.read(quiet), "");
    assert_eq!(node.read(link), "0 connection.unblocked\n1 queue.declare-ok q 1 0");
}

/// An alarm that does not stop all stops who publishes into what is full, and who publishes in a
/// transaction; a shard that says so too late says nothing.
#[test]
fn an_alarm_stops_those_who_cause_it() {
    let mut node = Node::new();
    let raised = Alarm { memory: false, disk: true, stops_all: false };
    let [good, bad, tx] = [(); 3].map(|()| node.client());
    node.declare(good, "q");
    node.letter(good, ToSession::Stopped);
    for link in [good, bad, tx] {
        node.letter(link, ToSession::Alarm(raised));
    }
    assert_eq!(node.publish(good, "", "q", "x"), "");
    assert!(node.links[good].session.wants_input());
    assert_eq!(node.publish(bad, "", "q", "x"), "");
    node.letter(bad, ToSession::Stopped);
    node.letter(bad, ToSession::Stopped);
    assert_eq!(node.read(bad), "0 connection.blocked low on disk");
    assert_eq!(node.links[bad].session.facts().state, "blocked");
    node.say(tx, 1, &tx::Select);
    assert_eq!(node.publish(tx, "", "q", "x"), "0 connection.blocked low on disk");
    for link in [good, bad, tx] {
        node.letter(link, ToSession::Alarm(Alarm::default()));
    }
    let said = [good, bad, tx].map(|link| node.read(link));
    assert_eq!(said, ["", "0 connection.unblocked", "0 connection.unblocked"]);
}

/// A shard that is far behind with its disk has its publishers wait; two of them, until both are done.
#[test]
fn a_paused_connection_is_not_read() {
    let mut node = Node::new();
    let link = node.client();
    node.letter(link, ToSession::Paused(true));
    node.letter(link, ToSession::Paused(true));
    let open = channel::Open { out_of_band: "" };
    assert_eq!(node.say(link, 2, &open), "", "it stays in the socket");
    node.letter(link, ToSession::Paused(false));
    assert_eq!(node.read(link), "", "the other shard is not done");
    node.letter(link, ToSession::Paused(false));
    assert_eq!(node.read(link), "2 channel.open-ok");
}
