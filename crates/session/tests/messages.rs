//! Messages through a whole node: properties, routing, settling, confirms, transactions, flow.

mod node;

use leveret_amqp::content::Properties;
use leveret_amqp::method::*;
use leveret_amqp::reply::ReplyCode;
use leveret_amqp::table::{RawTable, Table, Value};
use leveret_broker::message::{NodeId, ToSession, ToShard};
use node::{Node, publish_bytes};

fn declare(name: &str) -> queue::Declare<'_> {
    queue::Declare { queue: name, ..Default::default() }
}

fn consume(queue: &str) -> basic::Consume<'_> {
    basic::Consume { queue, consumer_tag: "c", ..Default::default() }
}

fn get(queue: &str) -> basic::Get<'_> {
    basic::Get { queue, no_ack: true, ..Default::default() }
}

fn text(text: &str) -> Value {
    Value::LongStr(text.as_bytes().to_vec())
}

fn headers(entries: &[(&str, Value)]) -> Properties {
    let mut table = Table::default();
    for (key, value) in entries {
        table.push(*key, value.clone());
    }
    Properties { headers: Some(table), ..Default::default() }
}

fn ready(node: &mut Node, link: usize, queue: &str) -> String {
    let said = node.say(link, 1, &queue::Declare { passive: true, ..declare(queue) });
    said.strip_prefix(&format!("1 queue.declare-ok {queue} ")).unwrap().to_owned()
}

#[test]
#[rustfmt::skip] // a table
fn properties_that_are_refused() {
    let p = Properties::default;
    let some = |text: &str| Some(text.to_owned());
    check(p(), "");
    check(Properties { expiration: some("60000"), delivery_mode: Some(1), ..p() }, "");
    check(Properties { expiration: some("abc"), ..p() }, "invalid expiration 'abc': no_integer");
    check(Properties { expiration: some("-1"), ..p() }, "invalid expiration '-1': {value_negative,-1}");
    check(Properties { expiration: some("1.5"), ..p() }, "invalid expiration '1.5': {leftover_string,\".5\"}");
    check(Properties { delivery_mode: Some(9), ..p() }, "invalid message: {delivery_mode_unknown,9}");
    check(Properties { user_id: some("guest"), ..p() }, "");
    check(Properties { user_id: some("somebody"), ..p() }, "user_id property set to 'somebody' but authenticated user was 'guest'");
    check(Properties { reply_to: some("anywhere"), ..p() }, "");
    check(Properties { reply_to: some("amq.rabbitmq.reply-to"), ..p() }, "fast reply consumer does not exist");
    check(headers(&[("CC", Value::Array(vec![text("other"), Value::Bool(true)]))]), "");
    check(headers(&[("CC", text("other"))]), "invalid message: {unacceptable_type_in_header,\"CC\",longstr}");
    check(headers(&[("BCC", Value::I32(1))]), "invalid message: {unacceptable_type_in_header,\"BCC\",signedint}");
}

#[track_caller]
fn check(properties: Properties, want: &str) {
    let mut node = Node::new();
    let link = node.client();
    node.declare(link, "q");
    let want = match want {
        "" => String::new(),
        want => format!("1 channel.close 406 PRECONDITION_FAILED - {want} (60.40)"),
    };
    assert_eq!(node.publish_with(link, "", "q", "x", &properties, false), want);
}

#[test]
fn impersonators_may_claim_to_be_others() {
    let mut node = Node::new();
    node.topology.set_tags("guest", &["impersonator"]).unwrap();
    let link = node.client();
    node.declare(link, "q");
    let properties = Properties { user_id: Some("else".to_owned()), ..Default::default() };
    assert_eq!(node.publish_with(link, "", "q", "x", &properties, false), "");
    assert_eq!(node.say(link, 1, &get("q")), "1 basic.get-ok 1 '' q left 0 {user-id=else} =x");
}

#[test]
fn undecodable_properties_close_the_connection() {
    let good = publish_bytes(1, "", "q", b"", &headers(&[("k", text("v"))]), false);
    let at = good.windows(3).position(|w| w == [0xce, 2, 0]).unwrap() + 1;
    // Flags and length of the table, its key's length, its value's kind.
    for (offset, value, want) in [
        (7 + 12, 0xff, "501 FRAME_ERROR - content properties are truncated"),
        (7 + 14 + 3, 200, "501 FRAME_ERROR - content properties are truncated"),
        (7 + 14 + 4, 200, "502 SYNTAX_ERROR - malformed headers: truncated field table"),
        (7 + 14 + 6, b'?', "502 SYNTAX_ERROR - malformed headers: unknown field type '?'"),
    ] {
        let mut node = Node::new();
        let link = node.client();
        let mut bytes = good.clone();
        bytes[at + offset] = value;
        assert_eq!(node.bytes(link, &bytes), format!("0 connection.close {want} (60.40)"));
    }
}

#[test]
fn exchanges() {
    let mut node = Node::new();
    let link = node.client();
    let internal =
        exchange::Declare { exchange: "in", kind: "fanout", internal: true, ..Default::default() };
    node.say(link, 1, &internal);
    let said = node.publish(link, "in", "k", "x");
    let want = "1 channel.close 403 ACCESS_REFUSED - cannot publish to internal exchange 'in' in \
                vhost '/' (60.40)";
    assert_eq!(said, want);
    node.say(link, 1, &channel::CloseOk);
    node.open(link, 1);
    let want = "1 channel.close 404 NOT_FOUND - no exchange 'nope' in vhost '/' (60.40)";
    assert_eq!(node.publish(link, "nope", "k", "x"), want);
}

/// What the cache remembers ends with every change of the topology.
#[test]
fn routes_change() {
    let mut node = Node::new();
    let link = node.client();
    node.declare(link, "a");
    node.declare(link, "b");
    for round in 0..3 {
        assert_eq!(node.publish(link, "amq.topic", "k.x", "lost"), "", "{round}");
        let bind = |queue| queue::Bind {
            queue,
            exchange: "amq.topic",
            routing_key: "k.*",
            ..Default::default()
        };
        node.say(link, 1, &bind("a"));
        node.publish(link, "amq.topic", "k.x", "1");
        node.publish(link, "amq.topic", "k.x", "2");
        node.say(link, 1, &bind("b"));
        node.publish(link, "amq.topic", "k.x", "3");
        assert_eq!(ready(&mut node, link, "a"), "3 0");
        assert_eq!(ready(&mut node, link, "b"), "1 0");
        for queue in ["a", "b"] {
            node.say(link, 1, &queue::Delete { queue, ..Default::default() });
            node.declare(link, queue);
        }
    }
}

#[test]
fn carbon_copies() {
    let mut node = Node::new();
    let link = node.client();
    for queue in ["q", "cc", "bcc"] {
        node.declare(link, queue);
    }
    let properties = headers(&[
        ("CC", Value::Array(vec![text("cc"), text("q")])),
        ("BCC", Value::Array(vec![text("bcc")])),
        ("k", text("v")),
    ]);
    // The route of these names is known, and is not that of messages with copies.
    node.publish(link, "", "q", "plain");
    node.publish_with(link, "", "q", "copied", &properties, false);
    assert_eq!(node.say(link, 1, &get("q")), "1 basic.get-ok 1 '' q left 1 =plain");
    for (tag, queue) in [(2, "q"), (3, "cc"), (4, "bcc")] {
        let said = node.say(link, 1, &get(queue));
        assert!(
            said.starts_with(&format!("1 basic.get-ok {tag} '' q left 0 {{CC=Array(")),
            "{said}"
        );
        assert!(!said.contains("BCC") && said.ends_with("k=v} =copied"), "{said}");
    }
}

#[test]
fn returns() {
    let mut node = Node::new();
    let link = node.client();
    let mandatory = |node: &mut Node, exchange, body: &str| {
        let p = Properties { correlation_id: Some("id".into()), ..Default::default() };
        node.publish_with(link, exchange, "k", body, &p, true)
    };
    let said = mandatory(&mut node, "", "x");
    assert_eq!(said, "1 basic.return 312 NO_ROUTE '' k {correlation-id=id} =x");
    let said = mandatory(&mut node, "amq.fanout", "");
    assert_eq!(said, "1 basic.return 312 NO_ROUTE 'amq.fanout' k {correlation-id=id} =");
    node.declare(link, "k");
    assert_eq!(mandatory(&mut node, "", "x"), "");
}

#[test]
fn sizes() {
    let mut node = Node::new();
    node.settings.max_message_size = 1000;
    let link = node.client();
    node.declare(link, "q");
    assert_eq!(node.publish(link, "", "q", &"x".repeat(1000)), "");
    let said = node.publish(link, "", "q", &"x".repeat(1001));
    let want = "1 channel.close 406 PRECONDITION_FAILED - message size 1001 is larger than \
                configured max size 1000 (60.40)";
    assert_eq!(said, want);
}

/// However the input is cut, the same comes out.
#[test]
fn any_reads() {
    let body = "0123456789".repeat(100);
    let mut bytes = Vec::new();
    for index in 0..20 {
        let p = headers(&[("n", Value::I64(index))]);
        let body = &body.as_bytes()[..index as usize * 37];
        bytes.extend(publish_bytes(1 + index as u16 % 2, "", "q", body, &p, false));
    }
    let mut first = None;
    for read_max in [1, 2, 3, 7, 64, 100, 1000, 100_000] {
        let mut node = Node::new();
        let link = node.client();
        node.open(link, 2);
        node.declare(link, "q");
        node.say(link, 1, &consume("q"));
        node.read_max = read_max;
        let said = node.bytes(link, &bytes);
        assert_eq!(said.lines().count(), 20, "{said}");
        let first = first.get_or_insert_with(|| said.clone());
        assert_eq!(*first, said, "{read_max}");
    }
}

#[test]
fn two_channels_in_the_middle_of_contents() {
    let mut node = Node::new();
    let link = node.client();
    node.open(link, 2);
    node.declare(link, "q");
    let frames = |number| {
        let p = Properties::default();
        let bytes = publish_bytes(number, "", "q", format!("of {number}").as_bytes(), &p, false);
        let at = |kind| {
            let head = [0xce, kind, 0, number as u8];
            bytes.windows(4).position(|w| w == head).unwrap() + 1
        };
        let (header, body) = (at(2), at(3));
        [bytes[..header].to_vec(), bytes[header..body].to_vec(), bytes[body..].to_vec()]
    };
    let (one, two) = (frames(1), frames(2));
    let mixed = [&one[0], &two[0], &two[1], &one[1], &one[2], &two[2]].map(|f| f.as_slice());
    node.bytes(link, &mixed.concat());
    assert_eq!(node.say(link, 1, &get("q")), "1 basic.get-ok 1 '' q left 1 =of 1");
    assert_eq!(node.say(link, 1, &get("q")), "1 basic.get-ok 2 '' q left 0 =of 2");
}

#[test]
fn large_messages_both_ways() {
    let mut node = Node::new();
    node.read_max = 10_000;
    let link = node.client();
    node.declare(link, "q");
    let body: String = (0..400_000).map(|n| char::from(b'a' + (n % 23) as u8)).collect();
    node.publish(link, "", "q", &body);
    assert_eq!(node.say(link, 1, &get("q")), format!("1 basic.get-ok 1 '' q left 0 ={body}"));
}

/// Wherever a read ends, and whether the rest of a body comes into memory of its own or not, the same comes out.
#[test]
fn large_bodies_in_any_reads() {
    let persistent =
        || Properties { delivery_mode: Some(2), priority: Some(7), ..Default::default() };
    let expiring = Properties { expiration: Some("60000".into()), ..persistent() };
    let wrong = Properties { expiration: Some("soon".into()), ..Default::default() };
    let sizes = [32_767, 32_768, 65_536, 100_000, 131_064, 131_065, 200_000, 262_144, 262_145];
    let mut bytes = Vec::new();
    for (index, size) in sizes.into_iter().enumerate() {
        let body: Vec<u8> = (0..size).map(|n| b'a' + (n % 23) as u8).collect();
        let properties = if index % 2 == 0 { persistent() } else { expiring.clone() };
        bytes.extend(publish_bytes(1, "", "q", &body, &properties, false));
        bytes.extend(publish_bytes(
            1,
            "",
            "nowhere",
            &body[..size.min(40_000)],
            &persistent(),
            true,
        ));
        bytes.extend(publish_bytes(2, "", "q", &body[..size.min(40_000)], &persistent(), false));
    }
    bytes.extend(publish_bytes(3, "", "q", &[b'x'; 40_000], &wrong, false));
    let (mut first, mut bodies) = (None, 0);
    for read_max in [700, 5_003, 15_000, 40_000, 70_000, 1 << 30] {
        let mut node = Node::new();
        let link = node.client();
        node.open(link, 2);
        node.open(link, 3);
        node.declare(link, "q");
        node.say(link, 2, &tx::Select);
        node.read_max = read_max;
        let mut said = node.bytes(link, &bytes);
        said.extend([node.say(link, 1, &consume("q"))]);
        said.extend([node.say(link, 2, &tx::Commit)]);
        assert_eq!(said.matches("basic.deliver").count(), 2 * sizes.len());
        assert_eq!(said.matches("basic.return").count(), sizes.len());
        let first = first.get_or_insert_with(|| said.clone());
        assert!(*first == said, "{read_max}");
        bodies += node.links[link].bodies;
    }
    assert!(bodies > 50, "{bodies} bodies");
}

/// Cut anywhere in what comes before a body, in its first bytes and in its last ones.
#[test]
fn a_large_body_cut_anywhere() {
    let mut node = Node::new();
    let link = node.client();
    node.declare(link, "q");
    let body: String = (0..40_000).map(|n| char::from(b'a' + (n % 23) as u8)).collect();
    let p = Properties { priority: Some(3), ..headers(&[("n", Value::I64(1))]) };
    let bytes = publish_bytes(1, "", "q", body.as_bytes(), &p, false);
    let start = bytes.len() - body.len() - 1;
    let far = bytes.len() - 10..=bytes.len();
    let cuts = (0..150).chain([15_000, start + 20_000, start + 20_001, 30_000]).chain(far);
    for cut in cuts {
        let bodies = node.links[link].bodies;
        let (early, late) = bytes.split_at(cut);
        assert_eq!(node.bytes(link, early), "");
        assert_eq!(node.bytes(link, late), "");
        let said = node.say(link, 1, &get("q"));
        assert!(said.ends_with(&body), "cut at {cut}");
        let is_apart = (start + 1..=start + 20_000).contains(&cut);
        assert_eq!(node.links[link].bodies - bodies, usize::from(is_apart), "cut at {cut}");
    }
}

/// What is wrong behind the rest of a body is told as ever, and a channel that was closed meanwhile takes nothing.
#[test]
fn a_body_in_memory_of_its_own_that_is_not_taken() {
    let mut node = Node::new();
    let link = node.client();
    node.declare(link, "q");
    let whole = publish_bytes(1, "", "q", &[b'x'; 40_000], &Properties::default(), false);
    let (early, rest) = whole.split_at(1_000);
    assert_eq!(node.bytes(link, early), "");
    let mut wrong = rest.to_vec();
    *wrong.last_mut().unwrap() = 0;
    let said = node.bytes(link, &wrong);
    assert!(said.contains("invalid_frame_end_marker,0"), "{said}");
    assert_eq!(node.links[link].bodies, 1);

    let link = node.client();
    node.say(link, 1, &exchange::Delete { exchange: "none", ..Default::default() });
    let unroutable = publish_bytes(1, "none", "q", &[b'x'; 40_000], &Properties::default(), false);
    let (early, rest) = unroutable.split_at(1_000);
    let said = node.bytes(link, early);
    assert!(said.contains("404 NOT_FOUND - no exchange 'none'"), "{said}");
    assert_eq!(node.bytes(link, &[rest, &whole].concat()), "");
    assert_eq!(node.links[link].bodies, 0);
    assert_eq!(node.say(link, 1, &channel::CloseOk), "");
}

#[test]
fn confirms() {
    let mut node = Node::new();
    let link = node.client();
    for queue in ["a", "b"] {
        node.declare(link, queue);
        let bind = queue::Bind { queue, exchange: "amq.fanout", ..Default::default() };
        node.say(link, 1, &bind);
    }
    node.say(link, 1, &confirm::Select { no_wait: false });
    assert_eq!(node.say(link, 1, &confirm::Select { no_wait: false }), "1 confirm.select-ok");
    assert_eq!(node.publish(link, "amq.fanout", "", "both shards"), "1 basic.ack 1");
    // One read of the socket, one frame.
    let p = Properties::default();
    let one = publish_bytes(1, "", "a", b"x", &p, false);
    assert_eq!(node.bytes(link, &one.repeat(10)), "1 basic.ack 11*");
    let want =
        "1 channel.close 406 PRECONDITION_FAILED - cannot switch from confirm to tx mode (90.10)";
    assert_eq!(node.say(link, 1, &tx::Select), want);
}

#[test]
fn a_full_queue_nacks() {
    let mut node = Node::new();
    let link = node.client();
    let mut table = Table::default();
    table.push("x-max-length", Value::I32(1));
    table.push("x-overflow", text("reject-publish"));
    let table = table.to_bytes();
    let arguments = RawTable::unchecked(&table);
    node.say(link, 1, &queue::Declare { arguments, ..declare("q") });
    node.say(link, 1, &confirm::Select { no_wait: true });
    assert_eq!(node.publish(link, "", "q", "1"), "1 basic.ack 1");
    assert_eq!(node.publish(link, "", "q", "2"), "1 basic.nack 2");
    node.say(link, 1, &get("q"));
    assert_eq!(node.publish(link, "", "q", "3"), "1 basic.ack 3");
}

#[test]
fn settling() {
    let mut node = Node::new();
    let link = node.client();
    node.declare(link, "q");
    node.say(link, 1, &consume("q"));
    for body in ["1", "2", "3", "4", "5"] {
        node.publish(link, "", "q", body);
    }
    let unacked = |node: &Node| node.links[link].session.facts().channels[0].unacked;
    assert_eq!(unacked(&node), 5);
    assert_eq!(node.say(link, 1, &basic::Ack { delivery_tag: 3, multiple: false }), "");
    assert_eq!(node.say(link, 1, &basic::Ack { delivery_tag: 2, multiple: true }), "");
    assert_eq!(unacked(&node), 2);
    assert_eq!(node.say(link, 1, &basic::Reject { delivery_tag: 4, requeue: false }), "");
    let requeue = basic::Nack { delivery_tag: 5, multiple: true, requeue: true };
    assert_eq!(node.say(link, 1, &requeue), "1 basic.deliver c 6 redelivered '' q =5");
    assert_eq!(
        node.say(link, 1, &basic::Recover { requeue: true }),
        "1 basic.recover-ok\n1 basic.deliver c 7 redelivered '' q =5"
    );
    // An unknown tag gives everything back.
    let said = node.say(link, 1, &basic::Ack { delivery_tag: 3, multiple: false });
    assert!(said.contains("unknown delivery tag 3"), "{said}");
    node.say(link, 1, &channel::CloseOk);
    node.open(link, 1);
    assert_eq!(ready(&mut node, link, "q"), "1 0");
    assert_eq!(node.say(link, 1, &get("q")), "1 basic.get-ok 1 redelivered '' q left 0 =5");
}

#[test]
fn what_is_unacked_goes_back_with_its_channel_or_connection() {
    let mut node = Node::new();
    let (watch, one, two) = (node.client(), node.client(), node.client());
    node.declare(watch, "q");
    node.say(one, 1, &consume("q"));
    for body in ["1", "2"] {
        node.publish(watch, "", "q", body);
    }
    assert_eq!(ready(&mut node, watch, "q"), "0 1");
    node.say(one, 1, &channel::Close::default());
    assert_eq!(ready(&mut node, watch, "q"), "2 0");
    node.say(two, 1, &consume("q"));
    node.drop_link(two);
    assert_eq!(ready(&mut node, watch, "q"), "2 0");
    node.open(one, 1);
    node.say(one, 1, &consume("q"));
    node.say(one, 0, &connection::Close::default());
    assert_eq!(ready(&mut node, watch, "q"), "2 0");
    let said = node.say(watch, 1, &get("q"));
    assert_eq!(said, "1 basic.get-ok 1 redelivered '' q left 1 =1");
}

#[test]
fn prefetch() {
    let mut node = Node::new();
    let link = node.client();
    node.declare(link, "q");
    for body in ["1", "2", "3", "4", "5"] {
        node.publish(link, "", "q", body);
    }
    let qos = |count, global| basic::Qos { prefetch_size: 0, prefetch_count: count, global };
    assert_eq!(node.say(link, 1, &qos(1, false)), "1 basic.qos-ok");
    let said = node.say(link, 1, &consume("q"));
    assert_eq!(said, "1 basic.consume-ok c\n1 basic.deliver c 1 '' q =1");
    let ack = |tag| basic::Ack { delivery_tag: tag, multiple: false };
    assert_eq!(node.say(link, 1, &ack(1)), "1 basic.deliver c 2 '' q =2");
    node.say(link, 1, &channel::Close::default());
    node.open(link, 1);
    // For all consumers of the channel together; raised, it takes effect at once.
    assert_eq!(node.say(link, 1, &qos(2, true)), "1 basic.qos-ok");
    let said = node.say(link, 1, &consume("q"));
    let first = "1 basic.deliver c 1 redelivered '' q =2\n1 basic.deliver c 2 '' q =3";
    assert_eq!(said, format!("1 basic.consume-ok c\n{first}"));
    let said = node.say(link, 1, &qos(3, true));
    assert_eq!(said, "1 basic.qos-ok\n1 basic.deliver c 3 '' q =4");
    assert_eq!(node.say(link, 1, &ack(2)), "1 basic.deliver c 4 '' q =5");
}

#[test]
fn queues_of_a_channel_share_its_prefetch() {
    let mut node = Node::new();
    let link = node.client();
    // Two on each shard.
    let queues = ["a", "b", "c", "d"];
    for queue in queues {
        node.declare(link, queue);
        (0..20).for_each(|_| drop(node.publish(link, "", queue, "")));
    }
    let qos = basic::Qos { prefetch_size: 0, prefetch_count: 1, global: true };
    node.say(link, 1, &qos);
    let mut given: Vec<String> = Vec::new();
    for queue in queues {
        let consume = basic::Consume { queue, consumer_tag: queue, ..Default::default() };
        given.extend(delivered_to(&node.say(link, 1, &consume)));
    }
    for delivery_tag in 1..40 {
        let said = node.say(link, 1, &basic::Ack { delivery_tag, multiple: false });
        given.extend(delivered_to(&said));
    }
    for queue in queues {
        let count = given.iter().filter(|tag| *tag == queue).count();
        assert!((9..=11).contains(&count), "{queue}: {count} of {}", given.join(""));
    }
}

/// The tags of consumers that got a message.
fn delivered_to(said: &str) -> Vec<String> {
    let tags = said.lines().filter_map(|line| line.strip_prefix("1 basic.deliver "));
    tags.filter_map(|line| Some(line.split(' ').next()?.to_owned())).collect()
}

#[test]
fn a_consumer_that_does_not_read_gets_no_more_than_its_share() {
    let mut node = Node::new();
    node.settings.output_bytes_max = 10_000;
    let (publisher, slow, other) = (node.client(), node.client(), node.client());
    node.declare(publisher, "q");
    node.declare(publisher, "r");
    node.links[slow].is_stuck = true;
    node.say(slow, 1, &consume("q"));
    let no_ack = basic::Consume { no_ack: true, ..consume("r") };
    node.say(slow, 1, &basic::Consume { consumer_tag: "d", ..no_ack });
    for _ in 0..100 {
        node.publish(publisher, "", "q", &"x".repeat(1000));
        node.publish(publisher, "", "r", &"x".repeat(1000));
    }
    let waiting = node.links[slow].out.len();
    assert!((9_000..14_000).contains(&waiting), "{waiting}");
    // Others do not notice.
    node.declare(other, "s");
    node.say(other, 1, &consume("s"));
    assert_eq!(node.publish(other, "", "s", "x"), "1 basic.deliver c 1 '' s =x");
    // Read at last, everything comes.
    node.links[slow].is_stuck = false;
    node.run(Default::default());
    assert_eq!(node.read(slow).lines().filter(|line| line.contains("deliver")).count(), 200);
    assert_eq!(ready(&mut node, publisher, "q"), "0 1");
}

#[test]
fn direct_replies() {
    let mut node = Node::new();
    let (client, server) = (node.client(), node.client());
    node.declare(server, "rpc");
    node.say(server, 1, &consume("rpc"));
    let replies = basic::Consume { no_ack: true, ..consume("amq.rabbitmq.reply-to") };
    assert_eq!(node.say(client, 1, &replies), "1 basic.consume-ok c");
    let ask = Properties {
        reply_to: Some("amq.rabbitmq.reply-to".into()),
        correlation_id: Some("7".into()),
        ..Default::default()
    };
    node.publish_with(client, "", "rpc", "ask", &ask, false);
    let said = node.read(server);
    let name = said.split("reply-to=").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    assert!(name.starts_with("amq.rabbitmq.reply-to."), "{said}");
    // A correlation id is bytes, and the same ones when the name beside it is put in.
    let ask = Properties { correlation_id: Some("~7~".into()), ..ask };
    let mut bytes = publish_bytes(1, "", "rpc", b"ask", &ask, false);
    let at = bytes.windows(4).position(|part| part == b"\x03~7~").expect("there") + 1;
    bytes[at..at + 3].copy_from_slice(b"\xff7\xfe");
    node.bytes(client, &bytes);
    let got = &node.links[server].partial;
    assert!(got.windows(4).any(|part| part == b"\x03\xff7\xfe"), "{got:?}");
    assert!(node.read(server).contains(name));
    // A server may ask whether its client still waits.
    assert_eq!(node.say(server, 1, &declare(name)), format!("1 queue.declare-ok {name} 0 1"));
    let passive = queue::Declare { passive: true, ..declare("amq.rabbitmq.reply-to") };
    let said = node.say(client, 1, &passive);
    assert_eq!(said, "1 queue.declare-ok amq.rabbitmq.reply-to 0 1");
    // The answer; it counts as routed.
    node.say(server, 1, &confirm::Select { no_wait: true });
    let said = node.publish_with(server, "", name, "answer", &Properties::default(), true);
    assert_eq!(said, "1 basic.ack 1");
    let want = format!("1 basic.deliver c 1 '' {name} =answer");
    assert_eq!(node.read(client), want);
    // With the wrong token, and after the consumer is cancelled, it is nobody's.
    let other = format!("{}0", &name[..name.len() - 1]);
    node.publish(server, "", &other, "guess");
    let cancel = basic::Cancel { consumer_tag: "c", no_wait: false };
    assert_eq!(node.say(client, 1, &cancel), "1 basic.cancel-ok c");
    node.publish(server, "", name, "late");
    assert_eq!(node.read(client), "");
}

#[test]
#[rustfmt::skip] // a table
fn direct_reply_consumers_that_are_refused() {
    let mut node = Node::new();
    let link = node.client();
    let replies = consume("amq.rabbitmq.reply-to");
    let refused = |text| format!("1 channel.close 406 PRECONDITION_FAILED - {text} (60.20)");
    assert_eq!(node.say(link, 1, &replies), refused("reply consumer cannot acknowledge"));
    node.say(link, 1, &channel::CloseOk);
    node.open(link, 1);
    let replies = basic::Consume { no_ack: true, ..replies };
    assert_eq!(node.say(link, 1, &replies), "1 basic.consume-ok c");
    let second = basic::Consume { consumer_tag: "d", ..replies };
    assert_eq!(node.say(link, 1, &second), refused("reply consumer already set"));
}

#[test]
fn transactions() {
    let mut node = Node::new();
    let (link, other) = (node.client(), node.client());
    node.declare(link, "a");
    node.declare(link, "b");
    node.publish(link, "", "a", "before");
    node.say(link, 1, &tx::Select);
    let mandatory = |node: &mut Node, key, body| {
        node.publish_with(link, "", key, body, &Properties::default(), true)
    };
    assert_eq!(mandatory(&mut node, "a", "1"), "");
    assert_eq!(mandatory(&mut node, "b", "2"), "");
    assert_eq!(mandatory(&mut node, "nowhere", "3"), "");
    let take = basic::Get { queue: "a", ..Default::default() };
    assert_eq!(node.say(link, 1, &take), "1 basic.get-ok 1 '' a left 0 =before");
    node.say(link, 1, &basic::Ack { delivery_tag: 1, multiple: false });
    assert_eq!(ready(&mut node, other, "a"), "0 0");
    let facts = node.links[link].session.facts();
    let channel = &facts.channels[0];
    assert_eq!((channel.uncommitted, channel.acks_uncommitted), (3, 1));
    let said = node.say(link, 1, &tx::Commit);
    assert_eq!(said, "1 basic.return 312 NO_ROUTE '' nowhere =3\n1 tx.commit-ok");
    assert_eq!(ready(&mut node, other, "a"), "1 0");
    assert_eq!(ready(&mut node, other, "b"), "1 0");
    assert_eq!(node.say(link, 1, &tx::Commit), "1 tx.commit-ok");

    // Rolled back, publishes are forgotten and what was acked can be acked again.
    node.publish(link, "", "a", "never");
    assert_eq!(node.say(link, 1, &take), "1 basic.get-ok 2 '' a left 0 =1");
    node.say(link, 1, &basic::Ack { delivery_tag: 2, multiple: false });
    assert_eq!(node.say(link, 1, &tx::Rollback), "1 tx.rollback-ok");
    assert_eq!(ready(&mut node, other, "a"), "0 0");
    assert_eq!(node.say(link, 1, &basic::Ack { delivery_tag: 2, multiple: false }), "");
    // What was acked and not committed goes back with the channel.
    node.say(link, 1, &channel::Close::default());
    assert_eq!(ready(&mut node, other, "a"), "1 0");
    node.open(link, 1);
    node.say(link, 1, &tx::Select);
    let want =
        "1 channel.close 406 PRECONDITION_FAILED - cannot switch from tx to confirm mode (85.10)";
    assert_eq!(node.say(link, 1, &confirm::Select { no_wait: false }), want);
}

/// As in RabbitMQ 3.10.
#[test]
fn mandatory_messages_whose_queues_are_gone_at_the_commit_are_returned() {
    let mut node = Node::new();
    let (link, other) = (node.client(), node.client());
    ["a", "b", "stays"].iter().for_each(|queue| node.declare(other, queue));
    for queue in ["a", "b", "stays"] {
        let exchange = if queue == "stays" { "amq.fanout" } else { "amq.topic" };
        node.say(
            other,
            1,
            &queue::Bind { queue, exchange, routing_key: "k", ..Default::default() },
        );
    }
    node.say(other, 1, &queue::Bind { queue: "a", exchange: "amq.fanout", ..Default::default() });
    node.say(link, 1, &tx::Select);
    for (exchange, key, body, mandatory) in [
        ("", "a", "1", true),
        ("", "a", "2", false),
        ("", "nowhere", "3", true),
        // The queues may be in several shards.
        ("amq.topic", "k", "4", true),
        ("amq.fanout", "k", "5", true),
    ] {
        node.publish_with(link, exchange, key, body, &Properties::default(), mandatory);
    }
    assert_eq!(node.links[link].session.facts().channels[0].uncommitted, 6);
    for queue in ["a", "b"] {
        node.say(other, 1, &queue::Delete { queue, ..Default::default() });
    }
    assert_eq!(
        node.say(link, 1, &tx::Commit),
        "1 basic.return 312 NO_ROUTE '' a =1\n\
         1 basic.return 312 NO_ROUTE '' nowhere =3\n\
         1 basic.return 312 NO_ROUTE 'amq.topic' k =4\n\
         1 tx.commit-ok"
    );
    assert_eq!(ready(&mut node, other, "stays"), "1 0");
    let published = node.links[link].session.numbers().totals.channels.published;
    assert_eq!((published.publish, published.return_unroutable), (5, 3));
}

/// What many channels keep of unfinished messages is told, and no more once they are finished or gone.
#[test]
fn unfinished_messages_are_counted() {
    let mut node = Node::new();
    let link = node.client();
    node.declare(link, "q");
    let kept = |node: &Node| node.links[link].session.kept_bytes();
    let mut out = leveret_amqp::outbuf::OutBuf::new();
    let [most, rest] = [2000, 1000].map(|len| bytes::Bytes::from(vec![7; len]));
    for number in 1..=20 {
        if number > 1 {
            node.open(link, number);
        }
        out.put_method(number, &basic::Publish { routing_key: "q", ..Default::default() });
        out.put_header(number, 60, 3000, &[0, 0]);
        out.put_body(number, &most, 131_072);
        node.bytes(link, &out.take_rest());
    }
    // So many that they have room for all that is to come.
    assert!((20 * 3000..20 * 3020).contains(&kept(&node)), "{}", kept(&node));
    let other = node.client();
    for number in 1..=10 {
        out.put_body(number, &rest, 131_072);
        assert_eq!(node.bytes(link, &out.take_rest()), "");
    }
    assert_eq!(ready(&mut node, other, "q"), "10 0");
    assert!((10 * 3000..10 * 3020).contains(&kept(&node)), "{}", kept(&node));
    node.say(link, 0, &connection::Close::default());
    assert_eq!(kept(&node), 0);
}

#[test]
fn uncommitted_messages_are_counted() {
    let mut node = Node::new();
    let link = node.client();
    node.declare(link, "q");
    let kept = |node: &Node| node.links[link].session.kept_bytes();
    for end in ["commit", "rollback", "close"] {
        node.say(link, 1, &tx::Select);
        for _ in 0..10 {
            node.publish(link, "", "q", &"x".repeat(1000));
        }
        assert!((10_000..13_000).contains(&kept(&node)), "{}", kept(&node));
        match end {
            "commit" => node.say(link, 1, &tx::Commit),
            "rollback" => node.say(link, 1, &tx::Rollback),
            _ => node.say(link, 1, &channel::Close::default()),
        };
        assert_eq!(kept(&node), 0, "{end}");
    }
}

#[test]
fn deliveries_underway_to_a_closed_channel_go_back() {
    let mut node = Node::new();
    let link = node.client();
    node.declare(link, "q");
    // Everything in one read: the deliveries meet a channel that is closed.
    let mut out = leveret_amqp::outbuf::OutBuf::new();
    out.put_method(1, &basic::Consume { no_wait: true, ..consume("q") });
    let mut bytes = out.take_rest();
    for _ in 0..5 {
        bytes.extend(publish_bytes(1, "", "q", b"x", &Properties::default(), false));
    }
    out.put_method(1, &channel::Close::default());
    bytes.extend(out.take_rest());
    let said = node.bytes(link, &bytes);
    assert!(said.ends_with("1 channel.close-ok"), "{said}");
    node.open(link, 1);
    assert_eq!(ready(&mut node, link, "q"), "5 0");
}

#[test]
fn unacked_for_too_long() {
    let mut node = Node::new();
    node.settings.consumer_timeout_ms = Some(60_000);
    let link = node.client();
    node.declare(link, "q");
    node.say(link, 1, &consume("q"));
    node.publish(link, "", "q", "x");
    let beat = b"\x08\0\0\0\0\0\0\xce";
    node.later(50_000);
    node.bytes(link, beat);
    assert!(!node.read(link).contains("channel.close"));
    node.later(40_000);
    let said = node.bytes(link, beat);
    let want = "1 channel.close 406 PRECONDITION_FAILED - delivery acknowledgement on channel 1 \
                timed out. Timeout value used: 60000 ms. This timeout value can be configured, see \
                consumers doc guide to learn more (0.0)";
    assert!(said.contains(want), "{said}");
    let other = node.client();
    assert_eq!(ready(&mut node, other, "q"), "1 0");
}

/// Each delivery has the time of its consumer: a short one is kept though an older delivery has a longer one, though that
/// was being watched before the short one's consumer came, and though nothing of that consumer was unacked at the last look.
#[test]
fn unacked_for_too_long_behind_one_that_may_stay() {
    let mut node = Node::new();
    let link = node.client();
    node.declare(link, "slow");
    node.declare(link, "quick");
    node.say(link, 1, &consume("slow"));
    assert!(node.publish(link, "", "slow", "x").contains("basic.deliver c 1"));
    let mut table = Table::default();
    table.push("x-consumer-timeout", Value::I32(8_000));
    let table = table.to_bytes();
    let arguments = RawTable::unchecked(&table);
    let quick = basic::Consume { consumer_tag: "d", arguments, ..consume("quick") };
    assert!(node.say(link, 1, &quick).contains("consume-ok"));
    assert!(node.publish(link, "", "quick", "y").contains("basic.deliver d 2"));
    node.later(6_000);
    let ack = basic::Ack { delivery_tag: 2, multiple: false };
    assert_eq!(node.say(link, 1, &ack), "");
    node.later(15_000);
    assert!(node.publish(link, "", "quick", "z").contains("basic.deliver d 3"));
    node.later(7_000);
    assert!(!node.read(link).contains("channel.close"));
    node.later(5_000);
    let said = node.read(link);
    let want = "1 channel.close 406 PRECONDITION_FAILED - delivery acknowledgement on channel 1 \
                timed out. Timeout value used: 8000 ms.";
    assert!(said.contains(want), "{said}");
}

/// What is settled in a transaction waits for nobody's ack, so nobody looks at it; a rollback makes it wait again,
/// since it was delivered.
#[test]
fn unacked_for_too_long_after_a_rollback() {
    let mut node = Node::new();
    node.settings.consumer_timeout_ms = Some(60_000);
    let link = node.client();
    node.declare(link, "q");
    node.publish(link, "", "q", "x");
    node.say(link, 1, &basic::Get { queue: "q", ..Default::default() });
    node.say(link, 1, &tx::Select);
    node.say(link, 1, &basic::Ack { delivery_tag: 1, multiple: false });
    let beat = b"\x08\0\0\0\0\0\0\xce";
    node.later(50_000);
    assert!(!node.bytes(link, beat).contains("channel.close"));
    node.say(link, 1, &tx::Rollback);
    node.later(40_000);
    let said = node.bytes(link, beat);
    assert!(said.contains("1 channel.close 406"), "{said}");
    let other = node.client();
    assert_eq!(ready(&mut node, other, "q"), "1 0");
}

/// The channel is closed while its commit waits for two shards: the answers mean nothing to what the next
/// channel of that number asks.
#[test]
fn a_commit_whose_channel_timed_out() {
    let mut node = Node::new();
    node.settings.consumer_timeout_ms = Some(60_000);
    let link = node.client();
    node.declare(link, "a");
    node.declare(link, "b");
    node.publish(link, "", "a", "x");
    node.say(link, 1, &basic::Get { queue: "a", ..Default::default() });
    node.say(link, 1, &tx::Select);
    node.publish(link, "", "a", "1");
    node.publish(link, "", "b", "2");
    (0..node::SHARDS).for_each(|shard| node.hold(shard));
    assert_eq!(node.say(link, 1, &tx::Commit), "");
    node.later(90_000);
    assert!(node.read(link).contains("1 channel.close 406"));
    node.say(link, 1, &channel::CloseOk);
    node.say(link, 1, &channel::Open { out_of_band: "" });
    node.say(link, 1, &queue::Declare { passive: true, ..declare("b") });
    node.release(0);
    assert_eq!(node.read(link), "", "the other shard has not answered");
    node.release(1);
    assert_eq!(node.read(link), "1 channel.open-ok\n1 queue.declare-ok b 1 0");
}

/// One shard refuses its part of a commit before the other has done its own: the client is not told that
/// all is well.
#[test]
fn a_commit_that_one_shard_refuses() {
    let mut node = Node::new();
    let link = node.client();
    node.declare(link, "a");
    node.declare(link, "b");
    node.say(link, 1, &tx::Select);
    node.publish(link, "", "a", "1");
    node.publish(link, "", "b", "2");
    (0..node::SHARDS).for_each(|shard| node.hold(shard));
    assert_eq!(node.say(link, 1, &tx::Commit), "");
    let (code, text) = (ReplyCode::ResourceError, "the disk is full".to_owned());
    let reply = leveret_broker::message::Reply::Refused { code, text };
    node.letter(link, ToSession::Reply { channel: 1, reply });
    assert_eq!(node.read(link), "", "another shard is still at it");
    (0..node::SHARDS).for_each(|shard| node.release(shard));
    let said = node.read(link);
    assert!(said.starts_with("0 connection.close 506 RESOURCE_ERROR - the disk is full"), "{said}");
}

/// The queue that was there goes between the topology's answer and its shard's: it is declared again,
/// even if it was made by somebody else only after the client's wish was looked at.
#[test]
fn a_queue_that_goes_while_it_is_declared() {
    let mut node = Node::new();
    let link = node.client();
    (0..node::SHARDS).for_each(|shard| node.hold(shard));
    assert_eq!(node.say(link, 1, &declare("q")), "");
    let reply = leveret_broker::message::Reply::Gone;
    node.letter(link, ToSession::Reply { channel: 1, reply });
    assert_eq!(node.read(link), "");
    (0..node::SHARDS).for_each(|shard| node.release(shard));
    assert_eq!(node.read(link), "1 queue.declare-ok q 0 0");
}

/// A client that takes nothing is not read from. It is taken for dead all the same if it says nothing, and
/// not if it beats.
#[test]
fn a_client_that_reads_nothing() {
    for beats in [true, false] {
        let mut node = Node::new();
        node.settings.output_bytes_max = 1_000;
        let link = node.client();
        node.declare(link, "q");
        node.links[link].is_stuck = true;
        for _ in 0..200 {
            node.say(link, 1, &queue::Declare { passive: true, ..declare("q") });
        }
        assert!(!node.links[link].session.wants_input());
        for _ in 0..20 {
            if beats {
                node.bytes(link, b"\x08\0\0\0\0\0\0\xce");
            }
            node.later(30_000);
        }
        assert_eq!(node.ended(link).is_none(), beats);
    }
}

#[test]
fn deliveries_are_counted_for_the_client() {
    let mut node = Node::new();
    let link = node.client();
    let mut table = Table::default();
    table.push("x-queue-type", text("quorum"));
    let table = table.to_bytes();
    let arguments = RawTable::unchecked(&table);
    node.say(link, 1, &queue::Declare { arguments, durable: true, ..declare("q") });
    node.publish_with(link, "", "q", "x", &headers(&[("k", text("v"))]), false);
    let said = node.say(link, 1, &consume("q"));
    assert_eq!(said, "1 basic.consume-ok c\n1 basic.deliver c 1 '' q {k=v} =x");
    let requeue = |tag| basic::Reject { delivery_tag: tag, requeue: true };
    let want = "1 basic.deliver c 2 redelivered '' q {k=v x-delivery-count=1} =x";
    assert_eq!(node.say(link, 1, &requeue(1)), want);
    let want = "1 basic.deliver c 3 redelivered '' q {k=v x-delivery-count=2} =x";
    assert_eq!(node.say(link, 1, &requeue(2)), want);
}

#[test]
fn recent_history() {
    let mut node = Node::new();
    let link = node.client();
    let declared =
        exchange::Declare { exchange: "h", kind: "x-recent-history", ..Default::default() };
    assert_eq!(node.say(link, 1, &declared), "1 exchange.declare-ok");
    for body in ["1", "2"] {
        node.publish(link, "h", "k", body);
    }
    node.declare(link, "q");
    node.say(link, 1, &queue::Bind { queue: "q", exchange: "h", ..Default::default() });
    assert_eq!(ready(&mut node, link, "q"), "2 0");
}

/// Copies of the firehose are in one letter with what is copied, and of the same connection: whoever is copied stands in line and
/// pauses for them.
#[test]
fn the_firehose_is_paid_by_who_is_copied() {
    let mut node = Node::new();
    let (link, taker) = (node.client(), node.client());
    node.declare(link, "q");
    node.declare(link, "tap");
    let bind = queue::Bind {
        queue: "tap",
        exchange: "amq.rabbitmq.trace",
        routing_key: "#",
        ..Default::default()
    };
    assert_eq!(node.say(link, 1, &bind), "1 queue.bind-ok");
    node.topology.set_tracing("/", true).unwrap();
    let one = publish_bytes(1, "", "q", b"x", &Properties::default(), false);
    (0..node::SHARDS).for_each(|shard| node.hold(shard));
    node.bytes(link, &one.repeat(3));
    assert_eq!(published(&node, link), 6);
    (0..node::SHARDS).for_each(|shard| node.release(shard));

    // Those who are given messages are copied, too.
    node.say(taker, 1, &consume("q"));
    assert_eq!(ready(&mut node, link, "tap"), "6 0");
}

/// Messages that shards are sent which are held back, by this connection alone, in a letter each.
fn published(node: &Node, link: usize) -> usize {
    let of_letter = |letter: &ToShard| match letter {
        ToShard::Publish { from, messages } => {
            assert_eq!(*from, NodeId::ALONE.connection(link as u64));
            messages.len()
        }
        other => panic!("{other:?}"),
    };
    let of_shard = |shard| {
        let letters = node.held(shard);
        assert!(letters.len() <= 1, "{letters:?}");
        letters.iter().map(of_letter).sum::<usize>()
    };
    (0..node::SHARDS).map(of_shard).sum()
}

/// A session that is told of a consumer or a reply it does not know does nothing.
#[test]
fn letters_that_come_too_late() {
    let mut node = Node::new();
    let link = node.client();
    let slot = leveret_broker::message::ConsumerSlot(77);
    node.letter(link, ToSession::ConsumerGone { slot });
    node.letter(link, ToSession::Confirm { channel: 9, first: 1, last: 5, ok: true });
    node.letter(link, ToSession::Confirm { channel: 1, first: 1, last: 5, ok: true });
    let reply = leveret_broker::message::Reply::Done;
    node.letter(link, ToSession::Reply { channel: 1, reply });
    assert_eq!(node.read(link), "");
    node.declare(link, "q");
}
