//! The rules of channels: order, exceptions, names, permissions.

mod node;

use leveret_amqp::content::Properties;
use leveret_amqp::method::*;
use leveret_amqp::table::{RawTable, Table, Value};
use node::{Node, publish_bytes};

/// Says one method on a fresh channel 1 of a node with queue `q` and exchange `x`, and compares.
#[track_caller]
fn check(method: &impl Encode, want: &str) {
    let mut node = fresh();
    let link = node.client();
    assert_eq!(node.say(link, 1, method), want);
}

fn fresh() -> Node {
    let mut node = Node::new();
    let link = node.client();
    node.declare(link, "q");
    let declare = exchange::Declare { exchange: "x", kind: "direct", ..Default::default() };
    assert_eq!(node.say(link, 1, &declare), "1 exchange.declare-ok");
    let internal = true;
    let declare = exchange::Declare { exchange: "in", kind: "fanout", internal, ..declare };
    assert_eq!(node.say(link, 1, &declare), "1 exchange.declare-ok");
    let exclusive = queue::Declare { queue: "mine", exclusive: true, ..Default::default() };
    assert_eq!(node.say(link, 1, &exclusive), "1 queue.declare-ok mine 0 0");
    node
}

fn declare(name: &str) -> queue::Declare<'_> {
    queue::Declare { queue: name, ..Default::default() }
}

const LOCKED: &str = "1 channel.close 405 RESOURCE_LOCKED - cannot obtain exclusive access to locked \
    queue 'mine' in vhost '/'. It could be originally declared on another connection or the \
    exclusive property value does not match that of the original declaration.";

#[test]
#[rustfmt::skip] // a table
fn one_method() {
    // Channels.
    check(&channel::Open::default(), "0 connection.close 504 CHANNEL_ERROR - second 'channel.open' seen (20.10)");
    check(&channel::Flow { active: true }, "1 channel.flow-ok true");
    check(&channel::Flow { active: false }, "0 connection.close 540 NOT_IMPLEMENTED - active=false (20.20)");
    check(&channel::Close::default(), "1 channel.close-ok");
    check(&channel::OpenOk::default(), "0 connection.close 503 COMMAND_INVALID - unimplemented method (20.11)");
    check(&connection::Close::default(), "0 connection.close 503 COMMAND_INVALID - unimplemented method (10.50)");
    check(&access::Request::default(), "1 access.request-ok");

    // Exchanges.
    let x = exchange::Declare { exchange: "x", kind: "direct", ..Default::default() };
    check(&x, "1 exchange.declare-ok");
    check(&exchange::Declare { no_wait: true, ..x }, "");
    check(&exchange::Declare { kind: "fanout", ..x }, "1 channel.close 406 PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'x' in vhost '/': received 'fanout' but current is 'direct' (40.10)");
    check(&exchange::Declare { durable: true, ..x }, "1 channel.close 406 PRECONDITION_FAILED - inequivalent arg 'durable' for exchange 'x' in vhost '/': received 'true' but current is 'false' (40.10)");
    check(&exchange::Declare { exchange: "y", passive: true, ..x }, "1 channel.close 404 NOT_FOUND - no exchange 'y' in vhost '/' (40.10)");
    check(&exchange::Declare { passive: true, kind: "", ..x }, "1 exchange.declare-ok");
    check(&exchange::Declare { exchange: "", ..x }, "1 channel.close 403 ACCESS_REFUSED - operation not permitted on the default exchange (40.10)");
    check(&exchange::Declare { exchange: "amq.new", ..x }, "1 channel.close 403 ACCESS_REFUSED - exchange name 'amq.new' contains reserved prefix 'amq.*' (40.10)");
    check(&exchange::Declare { exchange: "amq.direct", durable: true, ..x }, "1 exchange.declare-ok");
    let gone = exchange::Delete { exchange: "x", ..Default::default() };
    check(&gone, "1 exchange.delete-ok");
    check(&exchange::Delete { exchange: "nope", ..gone }, "1 exchange.delete-ok");
    check(&exchange::Delete { exchange: "", ..gone }, "1 channel.close 403 ACCESS_REFUSED - operation not permitted on the default exchange (40.20)");
    check(&exchange::Delete { exchange: "amq.topic", ..gone }, "1 channel.close 403 ACCESS_REFUSED - deletion of system exchange 'amq.topic' in vhost '/' not allowed (40.20)");

    // Queues.
    check(&declare("q"), "1 queue.declare-ok q 0 0");
    check(&queue::Declare { no_wait: true, ..declare("q") }, "");
    check(&queue::Declare { durable: true, ..declare("q") }, "1 channel.close 406 PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'q' in vhost '/': received 'true' but current is 'false' (50.10)");
    check(&queue::Declare { passive: true, ..declare("nope") }, "1 channel.close 404 NOT_FOUND - no queue 'nope' in vhost '/' (50.10)");
    check(&queue::Declare { passive: true, ..declare("mine") }, &format!("{LOCKED} (50.10)"));
    check(&declare("mine"), &format!("{LOCKED} (50.10)"));
    check(&declare("amq.mine"), "1 channel.close 403 ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*' (50.10)");
    check(&declare("a\r\nb"), "1 queue.declare-ok ab 0 0");
    let delete = queue::Delete { queue: "q", ..Default::default() };
    check(&delete, "1 queue.delete-ok 0");
    check(&queue::Delete { no_wait: true, ..delete }, "");
    check(&queue::Delete { queue: "nope", ..delete }, "1 queue.delete-ok 0");
    check(&queue::Delete { queue: "mine", ..delete }, &format!("{LOCKED} (50.40)"));
    check(&queue::Delete { queue: "", ..delete }, "1 channel.close 404 NOT_FOUND - no previously declared queue (50.40)");
    let purge = queue::Purge { queue: "q", ..Default::default() };
    check(&purge, "1 queue.purge-ok 0");
    check(&queue::Purge { queue: "nope", ..purge }, "1 channel.close 404 NOT_FOUND - no queue 'nope' in vhost '/' (50.30)");
    check(&queue::Purge { queue: "mine", ..purge }, &format!("{LOCKED} (50.30)"));

    // Bindings.
    let bind = queue::Bind { queue: "q", exchange: "x", routing_key: "k", ..Default::default() };
    check(&bind, "1 queue.bind-ok");
    check(&queue::Bind { no_wait: true, ..bind }, "");
    check(&queue::Bind { exchange: "y", ..bind }, "1 channel.close 404 NOT_FOUND - no exchange 'y' in vhost '/' (50.20)");
    check(&queue::Bind { queue: "y", ..bind }, "1 channel.close 404 NOT_FOUND - no queue 'y' in vhost '/' (50.20)");
    check(&queue::Bind { queue: "mine", ..bind }, &format!("{LOCKED} (50.20)"));
    check(&queue::Bind { exchange: "", ..bind }, "1 channel.close 403 ACCESS_REFUSED - operation not permitted on the default exchange (50.20)");
    check(&queue::Bind { queue: "amq.rabbitmq.reply-to", ..bind }, "1 channel.close 403 ACCESS_REFUSED - cannot bind or unbind to a volatile (direct reply-to) queue (50.20)");
    check(&queue::Unbind { queue: "q", exchange: "x", routing_key: "k", ..Default::default() }, "1 queue.unbind-ok");
    let bind = exchange::Bind { destination: "in", source: "x", routing_key: "k", ..Default::default() };
    check(&bind, "1 exchange.bind-ok");
    check(&exchange::Bind { destination: "y", ..bind }, "1 channel.close 404 NOT_FOUND - no exchange 'y' in vhost '/' (40.30)");
    check(&exchange::Bind { destination: "", ..bind }, "1 channel.close 403 ACCESS_REFUSED - operation not permitted on the default exchange (40.30)");
    check(&exchange::Unbind { destination: "in", source: "x", routing_key: "k", ..Default::default() }, "1 exchange.unbind-ok");

    // Consuming.
    let consume = basic::Consume { queue: "q", consumer_tag: "c", ..Default::default() };
    check(&consume, "1 basic.consume-ok c");
    check(&basic::Consume { no_wait: true, ..consume }, "");
    check(&basic::Consume { queue: "nope", ..consume }, "1 channel.close 404 NOT_FOUND - no queue 'nope' in vhost '/' (60.20)");
    check(&basic::Consume { queue: "mine", ..consume }, &format!("{LOCKED} (60.20)"));
    check(&basic::Consume { queue: "", ..consume }, "1 channel.close 404 NOT_FOUND - no previously declared queue (60.20)");
    check(&basic::Cancel { consumer_tag: "c", no_wait: false }, "1 basic.cancel-ok c");
    check(&basic::Get { queue: "q", ..Default::default() }, "1 basic.get-empty");
    check(&basic::Get { queue: "mine", ..Default::default() }, &format!("{LOCKED} (60.70)"));
    check(&basic::Qos { prefetch_count: 7, ..Default::default() }, "1 basic.qos-ok");
    check(&basic::Qos { prefetch_size: 7, ..Default::default() }, "0 connection.close 540 NOT_IMPLEMENTED - prefetch_size!=0 (7) (60.10)");
    check(&basic::Ack { delivery_tag: 77, multiple: false }, "1 channel.close 406 PRECONDITION_FAILED - unknown delivery tag 77 (60.80)");
    check(&basic::Ack { delivery_tag: 77, multiple: true }, "1 channel.close 406 PRECONDITION_FAILED - unknown delivery tag 77 (60.80)");
    check(&basic::Ack { delivery_tag: 0, multiple: true }, "");
    check(&basic::Ack { delivery_tag: 0, multiple: false }, "1 channel.close 406 PRECONDITION_FAILED - unknown delivery tag 0 (60.80)");
    check(&basic::Reject { delivery_tag: 1, requeue: false }, "1 channel.close 406 PRECONDITION_FAILED - unknown delivery tag 1 (60.90)");
    check(&basic::Nack { delivery_tag: 1, ..Default::default() }, "1 channel.close 406 PRECONDITION_FAILED - unknown delivery tag 1 (60.120)");
    check(&basic::Recover { requeue: true }, "1 basic.recover-ok");
    check(&basic::Recover { requeue: false }, "0 connection.close 540 NOT_IMPLEMENTED - requeue=false (60.110)");
    check(&basic::RecoverAsync { requeue: true }, "");

    // Publishing.
    check(&basic::Publish { immediate: true, ..Default::default() }, "0 connection.close 540 NOT_IMPLEMENTED - immediate=true (60.40)");

    // Modes.
    check(&confirm::Select { no_wait: true }, "");
    check(&tx::Select, "1 tx.select-ok");
    check(&tx::Commit, "1 channel.close 406 PRECONDITION_FAILED - channel is not transactional (90.20)");
    check(&tx::Rollback, "1 channel.close 406 PRECONDITION_FAILED - channel is not transactional (90.30)");
}

#[test]
fn consumer_arguments() {
    let row = |key, value, want: &str| {
        let mut table = Table::default();
        table.push(key, value);
        let arguments = table.to_bytes();
        let arguments = RawTable::unchecked(&arguments);
        check(
            &basic::Consume { queue: "q", consumer_tag: "c", arguments, ..Default::default() },
            want,
        );
    };
    row("x-priority", Value::I32(-5), "1 basic.consume-ok c");
    row("x-priority", Value::U8(5), "1 basic.consume-ok c");
    row(
        "x-priority",
        Value::LongStr(b"high".to_vec()),
        "1 channel.close 406 PRECONDITION_FAILED - invalid arg 'x-priority' for queue 'q' in vhost \
         '/': \"expected integer, got longstr\" (60.20)",
    );
    row(
        "x-consumer-timeout",
        Value::I32(-1),
        "1 channel.close 406 PRECONDITION_FAILED - invalid arg 'x-consumer-timeout' for queue 'q' \
         in vhost '/': {value_negative,-1} (60.20)",
    );
}

#[test]
fn frames_out_of_order() {
    let publish = || publish_bytes(1, "", "q", b"body", &Properties::default(), false);
    let bytes = publish();
    // The three frames by their types.
    let header = bytes.windows(3).position(|w| w == [0xce, 2, 0]).unwrap() + 1;
    let body = bytes.windows(3).position(|w| w == [0xce, 3, 0]).unwrap() + 1;
    let (method, header, body) = (&bytes[..header], &bytes[header..body], &bytes[body..]);
    let mut other_class = header.to_vec();
    other_class[8] = 50;
    let mut weight = header.to_vec();
    weight[10] = 1;
    let mut huge = header.to_vec();
    huge[11] = 0x80;
    let mut short = header.to_vec();
    short[18] = 2;
    let error = |text: &str| format!("0 connection.close 505 UNEXPECTED_FRAME - {text}");
    let want_method = "expected method frame, got non method frame instead (0.0)";
    let want_header =
        "expected content header for class 60, got non content header frame instead (60.40)";
    let want_body = "expected content body, got non content body frame instead (60.40)";
    let rows: [(Vec<&[u8]>, String); 10] = [
        (vec![header], error(want_method)),
        (vec![body], error(want_method)),
        (vec![method, body], error(want_header)),
        (vec![method, method], error(want_header)),
        (vec![method, header, method], error(want_body)),
        (vec![method, header, header], error(want_body)),
        (
            vec![method, &other_class],
            error("expected content header for class 60, got one for class 50 instead (60.40)"),
        ),
        (vec![method, &weight], error(want_header)),
        (
            vec![method, &huge],
            "0 connection.close 501 FRAME_ERROR - content body size 9223372036854775812 exceeds \
             maximum allowed size 536870912 (60.40)"
                .into(),
        ),
        (
            vec![method, &short, body],
            "0 connection.close 501 FRAME_ERROR - content body frame exceeds remaining content \
             size (60.40)"
                .into(),
        ),
    ];
    for (frames, want) in rows {
        let mut node = fresh();
        let link = node.client();
        assert_eq!(node.bytes(link, &frames.concat()), want);
    }
}

#[test]
fn channels_that_are_not_open() {
    let mut node = fresh();
    let link = node.connect();
    let said = node.say(link, 9, &declare("q"));
    assert_eq!(said, "0 connection.close 504 CHANNEL_ERROR - expected 'channel.open' (50.10)");
    let link = node.connect();
    let header = b"\x02\0\x09\0\0\0\x0e\0\x3c\0\0\0\0\0\0\0\0\0\0\0\0\xce";
    let want = "0 connection.close 505 UNEXPECTED_FRAME - expected method frame, got non method \
                frame instead (0.0)";
    assert_eq!(node.bytes(link, header), want);
}

#[test]
fn as_many_channels_as_agreed() {
    let mut node = Node::new();
    node.settings.channel_max = 3;
    let link = node.accept(true);
    node.bytes(link, b"AMQP\x00\x00\x09\x01");
    let start = connection::StartOk {
        mechanism: "PLAIN",
        response: b"\0guest\0guest",
        ..Default::default()
    };
    node.say(link, 0, &start);
    node.say(link, 0, &connection::TuneOk { channel_max: 3, frame_max: 4096, heartbeat: 0 });
    node.say(link, 0, &connection::Open { virtual_host: "/", ..Default::default() });
    // Numbers may be above the limit: RabbitMQ counts only.
    for number in [1, 2, 40_000] {
        node.open(link, number);
    }
    node.say(link, 2, &channel::Close::default());
    node.open(link, 2);
    let said = node.say(link, 3, &channel::Open::default());
    let want = "0 connection.close 530 NOT_ALLOWED - number of channels opened (3) has reached the \
                negotiated channel_max (3) (0.0)";
    assert_eq!(said, want);
}

#[test]
fn an_exception_closes_the_channel_only() {
    let mut node = fresh();
    let link = node.client();
    node.open(link, 2);
    let said = node.say(link, 1, &queue::Declare { passive: true, ..declare("nope") });
    assert!(said.starts_with("1 channel.close 404"), "{said}");
    // Thrown away until the answer, a publish in the middle of its content too.
    assert_eq!(node.say(link, 1, &declare("q")), "");
    assert_eq!(node.publish(link, "", "q", "lost"), "");
    assert_eq!(node.say(link, 1, &channel::Close::default()), "1 channel.close-ok");
    assert_eq!(node.say(link, 2, &declare("q")), "2 queue.declare-ok q 0 0");
    // Both closed at once: the number is free, whether ours is answered or not.
    assert_eq!(node.say(link, 1, &channel::CloseOk), "");
    node.open(link, 1);
    assert_eq!(node.say(link, 1, &channel::CloseOk), "");
    node.declare(link, "q");
    // Opened again before it is closed.
    node.say(link, 1, &queue::Declare { passive: true, ..declare("nope") });
    let want = "0 connection.close 504 CHANNEL_ERROR - second 'channel.open' seen (20.10)";
    assert_eq!(node.say(link, 1, &channel::Open::default()), want);
}

#[test]
fn the_queue_declared_last() {
    let mut node = fresh();
    let link = node.client();
    let made = node.say(link, 1, &declare(""));
    let name = made.strip_prefix("1 queue.declare-ok ").unwrap().strip_suffix(" 0 0").unwrap();
    assert!(name.starts_with("amq.gen-") && name.len() == 30, "{name}");
    // Queue and, if it is empty too, key.
    let bind = queue::Bind { exchange: "x", ..Default::default() };
    assert_eq!(node.say(link, 1, &bind), "1 queue.bind-ok");
    let consume = basic::Consume { consumer_tag: "c", ..Default::default() };
    assert_eq!(node.say(link, 1, &consume), "1 basic.consume-ok c");
    let want = format!("1 basic.deliver c 1 'x' {name} =hello");
    assert_eq!(node.publish(link, "x", name, "hello"), want);
    // Declared again by its name it is refused, as names of the broker's are; passively it is not.
    let passive = queue::Declare { passive: true, ..declare(name) };
    assert_eq!(node.say(link, 1, &passive), format!("1 queue.declare-ok {name} 0 1"));
    let said = node.say(link, 1, &declare(name));
    assert!(said.contains("contains reserved prefix 'amq.*'"), "{said}");
}

#[test]
fn consumer_tags() {
    let mut node = fresh();
    let link = node.client();
    let consume = basic::Consume { queue: "q", consumer_tag: "", ..Default::default() };
    let said = node.say(link, 1, &consume);
    assert!(said.starts_with("1 basic.consume-ok amq.ctag-"), "{said}");
    let consume = basic::Consume { consumer_tag: "c", ..consume };
    assert_eq!(node.say(link, 1, &consume), "1 basic.consume-ok c");
    // Another channel may use it.
    node.open(link, 2);
    assert_eq!(node.say(link, 2, &consume), "2 basic.consume-ok c");
    let want = "0 connection.close 530 NOT_ALLOWED - attempt to reuse consumer tag 'c' (60.20)";
    assert_eq!(node.say(link, 1, &consume), want);
}

#[test]
fn exclusive_consumers() {
    let mut node = fresh();
    let link = node.client();
    let consume = basic::Consume { queue: "q", exclusive: true, ..Default::default() };
    assert!(node.say(link, 1, &consume).starts_with("1 basic.consume-ok"));
    let want =
        "1 channel.close 403 ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use (60.20)";
    let other = node.client();
    assert_eq!(node.say(other, 1, &basic::Consume { exclusive: false, ..consume }), want);
    assert_eq!(node.say(other, 1, &channel::CloseOk), "");
    // The refused consumer left nothing behind.
    node.open(other, 1);
    assert_eq!(node.links[other].session.facts().channels[0].consumers, 0);
    assert_eq!(node.say(link, 1, &channel::Close::default()), "1 channel.close-ok");
    assert!(node.say(other, 1, &consume).starts_with("1 basic.consume-ok"));
}

#[test]
fn consumers_per_channel() {
    let mut node = fresh();
    node.settings.consumer_max_per_channel = Some(2);
    let link = node.client();
    let consume = basic::Consume { queue: "q", ..Default::default() };
    for _ in 0..2 {
        assert!(node.say(link, 1, &consume).starts_with("1 basic.consume-ok"));
    }
    let want =
        "0 connection.close 530 NOT_ALLOWED - reached maximum (2) of consumers per channel (60.20)";
    assert_eq!(node.say(link, 1, &consume), want);
}

#[test]
fn a_deleted_queue_cancels_its_consumers() {
    let mut node = fresh();
    let told = node.client();
    let untold = node.connect_with(&[], "\0guest\0guest", "/");
    node.open(untold, 1);
    let consume = basic::Consume { queue: "q", consumer_tag: "c", ..Default::default() };
    for link in [told, untold] {
        assert_eq!(node.say(link, 1, &consume), "1 basic.consume-ok c");
    }
    let owner = node.client();
    let delete = queue::Delete { queue: "q", ..Default::default() };
    assert_eq!(node.say(owner, 1, &delete), "1 queue.delete-ok 0");
    assert_eq!(node.read(told), "1 basic.cancel c");
    assert_eq!(node.read(untold), "");
    // The tag is free again.
    node.declare(told, "q");
    assert_eq!(node.say(told, 1, &consume), "1 basic.consume-ok c");
}

/// A user that may configure `c.*`, write `w.*` and read `r.*`.
#[test]
fn permissions() {
    let mut node = fresh();
    let hash = leveret_topology::PasswordHash::new("p", [0; 4]);
    node.topology.add_user("u", hash, &[]).unwrap();
    node.topology.set_permissions("u", "/", "^c", "^w", "^r").unwrap();
    let admin = node.client();
    for name in ["c", "w", "r"] {
        node.declare(admin, name);
        let declare = exchange::Declare { exchange: name, kind: "topic", ..Default::default() };
        assert_eq!(node.say(admin, 1, &declare), "1 exchange.declare-ok");
    }
    let mut dead = Table::default();
    dead.push("x-dead-letter-exchange", Value::LongStr(b"w".to_vec()));
    let dead = dead.to_bytes();
    let arguments = RawTable::unchecked(&dead);
    let refused = |permission: &str, what: &str| {
        format!(
            "403 ACCESS_REFUSED - {permission} access to {what} in vhost '/' refused for user 'u'"
        )
    };
    let consume = |queue| basic::Consume { queue, consumer_tag: "t", ..Default::default() };
    let bind = |queue, exchange| queue::Bind { queue, exchange, ..Default::default() };
    let mut rows: Vec<(Method<'_>, String)> = vec![
        (declare("c").into(), "queue.declare-ok".into()),
        (declare("w").into(), refused("configure", "queue 'w'")),
        // Passively any permission will do.
        (queue::Declare { passive: true, ..declare("w") }.into(), "queue.declare-ok".into()),
        (
            queue::Declare { passive: true, ..declare("q") }.into(),
            refused("configure", "queue 'q'"),
        ),
        (queue::Declare { arguments, ..declare("cc") }.into(), refused("read", "queue 'cc'")),
        (
            queue::Delete { queue: "r", ..Default::default() }.into(),
            refused("configure", "queue 'r'"),
        ),
        (queue::Purge { queue: "c", ..Default::default() }.into(), refused("read", "queue 'c'")),
        (consume("r").into(), "basic.consume-ok".into()),
        (consume("w").into(), refused("read", "queue 'w'")),
        (basic::Get { queue: "c", ..Default::default() }.into(), refused("read", "queue 'c'")),
        (bind("w", "r").into(), "queue.bind-ok".into()),
        (bind("c", "r").into(), refused("write", "queue 'c'")),
        (bind("w", "w").into(), refused("read", "exchange 'w'")),
        (
            exchange::Delete { exchange: "w", ..Default::default() }.into(),
            refused("configure", "exchange 'w'"),
        ),
    ];
    let passive = exchange::Declare { exchange: "in", passive: true, ..Default::default() };
    rows.push((passive.into(), refused("configure", "exchange 'in'")));
    for (method, want) in rows {
        let link = node.connect_with(&[], "\0u\0p", "/");
        node.open(link, 1);
        let said = node.say(link, 1, &method);
        assert!(said.contains(&want), "{method:?}\n  {said}\n  {want}");
    }
    for (exchange, want) in [
        ("w", String::new()),
        ("r", refused("write", "exchange 'r'")),
        ("", refused("write", "exchange 'amq.default'")),
        ("nope", refused("write", "exchange 'nope'")),
    ] {
        let link = node.connect_with(&[], "\0u\0p", "/");
        node.open(link, 1);
        let said = node.publish(link, exchange, "k", "x");
        assert!(said.contains(&want) && said.is_empty() == want.is_empty(), "{said}");
    }
    // Topic permissions, for the key and for keys in CC.
    node.topology.set_topic_permissions("u", "/", "w", "^a", "^a").unwrap();
    let refused = "403 ACCESS_REFUSED - write access to topic 'b' in exchange 'w' in vhost '/' \
                   refused for user 'u' (60.40)";
    let link = node.connect_with(&[], "\0u\0p", "/");
    node.open(link, 1);
    assert_eq!(node.publish(link, "w", "a", "x"), "");
    let mut headers = Table::default();
    headers.push("CC", Value::Array(vec![Value::LongStr(b"b".to_vec())]));
    let properties = Properties { headers: Some(headers), ..Default::default() };
    let said = node.publish_with(link, "w", "a", "x", &properties, false);
    assert!(said.contains(refused), "{said}");
    node.say(link, 1, &channel::CloseOk);
    node.open(link, 1);
    let said = node.publish(link, "w", "b", "x");
    assert!(said.contains(refused), "{said}");
    // What was remembered ends with the permission.
    node.say(link, 1, &channel::CloseOk);
    node.open(link, 1);
    assert_eq!(node.publish(link, "w", "a", "x"), "");
    node.topology.set_permissions("u", "/", "", "", "").unwrap();
    let said = node.publish(link, "w", "a", "x");
    assert!(said.contains("write access to exchange 'w' in vhost '/' refused"), "{said}");
}

/// What exists is compared, whatever its user may write to; it is not made anew.
#[test]
fn arguments_of_what_exists() {
    let mut node = fresh();
    let hash = leveret_topology::PasswordHash::new("p", [0; 4]);
    node.topology.add_user("u", hash, &[]).unwrap();
    node.topology.set_permissions("u", "/", "^c", "^w", "^c").unwrap();
    let table = |argument: &str| {
        let mut table = Table::default();
        table.push(argument, Value::LongStr(b"r".to_vec()));
        table.to_bytes()
    };
    let (dead, other) = (table("x-dead-letter-exchange"), table("alternate-exchange"));
    let queue = queue::Declare { arguments: RawTable::unchecked(&dead), ..declare("c") };
    let exchange = exchange::Declare {
        exchange: "c",
        kind: "topic",
        arguments: RawTable::unchecked(&other),
        ..Default::default()
    };
    let admin = node.client();
    let refused = "write access to exchange 'r' in vhost '/' refused for user 'u'";
    let all = [
        (Method::from(queue), "queue.declare-ok", Method::from(declare("c"))),
        (
            exchange.into(),
            "exchange.declare-ok",
            exchange::Declare { arguments: RawTable::default(), ..exchange }.into(),
        ),
    ];
    for (method, ok, without) in all {
        let says = |node: &mut Node, method: &Method<'_>| {
            let link = node.connect_with(&[], "\0u\0p", "/");
            node.open(link, 1);
            node.say(link, 1, method)
        };
        let said = says(&mut node, &method);
        assert!(said.contains(refused), "{said}");
        assert!(node.say(admin, 1, &method).contains(ok));
        let said = says(&mut node, &method);
        assert!(said.contains(ok), "{said}");
        let said = says(&mut node, &without);
        assert!(said.contains("406 PRECONDITION_FAILED - inequivalent arg"), "{said}");
    }
}
