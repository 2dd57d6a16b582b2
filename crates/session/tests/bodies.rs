//! Bodies that are being received: what they take, who waits, what is refused before it is received, alarms, and
//! those that stand still.

mod node;

use leveret_amqp::content::Properties;
use leveret_amqp::method::{channel, connection, exchange, queue, tx};
use leveret_amqp::reply::ReplyCode;
use leveret_amqp::table::{RawTable, Table, Value};
use leveret_broker::flow::Alarm;
use leveret_broker::message::ToSession;
use leveret_topology::PasswordHash;
use node::{Node, publish_bytes};

const MIB: usize = 1 << 20;

const RAISED: Alarm = Alarm { memory: true, disk: false, stops_all: true };

/// A publish on a channel, cut after so many bytes of its body: what comes first, and the rest.
fn cut(number: u16, exchange: &str, size: usize, after: usize) -> (Vec<u8>, Vec<u8>) {
    let mut bytes =
        publish_bytes(number, exchange, "q", &vec![7; size], &Properties::default(), false);
    let overhead = bytes.len() - size.div_ceil(131_064) * 8 - size;
    let frames = if after == 0 { 0 } else { after.div_ceil(131_064) * 8 - 1 };
    let rest = bytes.split_off(overhead + after + frames);
    (bytes, rest)
}

/// A user without any permission.
fn add_none(node: &mut Node) {
    node.topology.add_user("none", PasswordHash::new("none", [1, 2, 3, 4]), &[]).unwrap();
    node.topology.set_permissions("none", "/", "^$", "^$", "^$").unwrap();
}

fn connect_none(node: &mut Node) -> usize {
    let link = node.connect_with(&[], "\0none\0none", "/");
    node.open(link, 1);
    link
}

/// All that the sessions keep, input that they were given and did not take among it.
fn held(node: &Node) -> usize {
    node.links.iter().map(|link| link.session.kept_bytes() as usize + link.left.len()).sum()
}

fn ready(node: &mut Node, link: usize) -> String {
    node.say(link, 1, &queue::Declare { queue: "q", passive: true, ..Default::default() })
}

/// Thirty publishers of 15 MiB at a watermark of 200 MB, each of which has begun: all get through, a few at a time.
#[test]
fn thirty_large_bodies_that_are_begun_at_once() {
    let mut node = Node::new();
    node.settings.bodies.set_watermark(200 << 20);
    let room = std::sync::Arc::clone(&node.settings.bodies);
    let reader = node.client();
    node.declare(reader, "q");
    let (first, rest) = cut(1, "", 15 * MIB, 100_000);
    let all: Vec<usize> = (0..30).map(|_| node.client()).collect();
    for &link in &all {
        assert_eq!(node.bytes(link, &first), "");
    }
    assert_eq!((room.taken() / (15 * MIB) as u64, room.waiting()), (3, 27));
    assert!(held(&node) < 55 * MIB, "{}", held(&node));
    for &link in &all {
        node.bytes(link, &rest);
        assert!(held(&node) < 55 * MIB, "{}", held(&node));
    }
    assert_eq!((room.taken(), room.waiting()), (0, 0));
    assert_eq!(ready(&mut node, reader), "1 queue.declare-ok q 30 0");
    assert_eq!(held(&node), 0);
}

/// What may not be published is refused at its header, with the words that come after a body.
#[test]
fn a_body_that_is_refused_is_not_received() {
    let mut node = Node::new();
    add_none(&mut node);
    let client = node.client();
    let inner = exchange::Declare {
        exchange: "inner",
        kind: "fanout",
        internal: true,
        ..Default::default()
    };
    node.say(client, 1, &inner);
    let guest = |node: &mut Node| node.client();
    let none = connect_none;
    let refused = "1 channel.close 403 ACCESS_REFUSED - write access to exchange 'amq.direct' in vhost '/' \
                   refused for user 'none' (60.40)";
    let missing = "1 channel.close 404 NOT_FOUND - no exchange 'missing' in vhost '/' (60.40)";
    let inner = "1 channel.close 403 ACCESS_REFUSED - cannot publish to internal exchange 'inner' in vhost '/' \
                 (60.40)";
    type Who<'a> = &'a dyn Fn(&mut Node) -> usize;
    let rows: [(Who<'_>, &str, &str); 3] =
        [(&none, "amq.direct", refused), (&guest, "missing", missing), (&guest, "inner", inner)];
    for (who, exchange, want) in rows {
        for after in [0, 1000] {
            let link = who(&mut node);
            let (first, rest) = cut(1, exchange, MIB, after);
            assert_eq!(node.bytes(link, &first), want);
            assert_eq!(node.links[link].session.kept_bytes(), 0);
            // The client does not know yet.
            assert_eq!(node.bytes(link, &rest), "");
            node.say(link, 1, &channel::CloseOk);
            node.open(link, 1);
        }
    }
    assert_eq!(node.settings.bodies.taken(), 0);
}

/// Who is in the middle of a body when an alarm begins ends it, and is stopped at the next one.
#[test]
fn an_alarm_lets_a_body_end() {
    let mut node = Node::new();
    let reader = node.client();
    node.declare(reader, "q");
    let link = node.client();
    let (first, rest) = cut(1, "", MIB, 300_000);
    assert_eq!(node.bytes(link, &first), "");
    node.letter(link, ToSession::Alarm(RAISED));
    let (middle, end) = rest.split_at(200_000);
    assert_eq!(node.bytes(link, middle), "0 connection.blocked low on memory");
    assert!(node.links[link].session.wants_input());
    assert_eq!(node.bytes(link, end), "");
    assert_eq!(ready(&mut node, reader), "1 queue.declare-ok q 1 0");
    assert_eq!(node.links[link].session.kept_bytes(), 0);
    assert_eq!(node.publish(link, "", "q", "next"), "");
    assert!(!node.links[link].session.wants_input());
    assert_eq!(ready(&mut node, reader), "1 queue.declare-ok q 1 0");
    node.letter(link, ToSession::Alarm(Alarm::default()));
    assert_eq!(node.read(link), "0 connection.unblocked");
    assert_eq!(ready(&mut node, reader), "1 queue.declare-ok q 2 0");
}

/// A body that is begun between the frames of another one is not the other one's excuse.
#[test]
fn an_alarm_stops_bodies_that_are_begun_between_frames_of_others() {
    let mut node = Node::new();
    let reader = node.client();
    node.declare(reader, "q");
    let link = node.client();
    node.open(link, 2);
    let (first, in_frame) = cut(1, "", MIB, 300_000);
    // To the end of the frame that was cut.
    let to_frame = 131_064 * 3 - 300_000 + 1;
    node.bytes(link, &first);
    node.letter(link, ToSession::Alarm(RAISED));
    node.bytes(link, &in_frame[..to_frame]);
    let (other, other_rest) = cut(2, "", 20_000, 0);
    node.bytes(link, &other);
    assert!(!node.links[link].session.wants_input(), "the other one waits");
    node.bytes(link, &in_frame[to_frame..]);
    node.bytes(link, &other_rest);
    assert_eq!(ready(&mut node, reader), "1 queue.declare-ok q 0 0");
    node.letter(link, ToSession::Alarm(Alarm::default()));
    assert_eq!(ready(&mut node, reader), "1 queue.declare-ok q 2 0");
}

/// Bodies on many channels at once: so many as fit, then the connection ends with a word.
#[test]
fn bodies_on_many_channels() {
    let mut node = Node::new();
    node.settings.bodies.set_watermark(200 << 20);
    let link = node.client();
    for number in 2..40 {
        node.open(link, number);
    }
    let mut said = String::new();
    for number in 1..40 {
        said = node.bytes(link, &cut(number, "", MIB, 0).0);
        if !said.is_empty() {
            assert_eq!(number, 25);
            break;
        }
    }
    assert!(
        said.starts_with("0 connection.close 506 RESOURCE_ERROR - 25 bodies of 2621"),
        "{said}"
    );
    assert_eq!(node.settings.bodies.taken(), 0);
    // All at once in one read.
    let link = node.client();
    for number in 2..100 {
        node.open(link, number);
    }
    let all: Vec<u8> = (1..100).flat_map(|number| cut(number, "", MIB, 0).0).collect();
    let said = node.bytes(link, &all);
    assert!(
        said.starts_with("0 connection.close 506 RESOURCE_ERROR - 99 bodies of 1038"),
        "{said}"
    );
    assert_eq!(node.settings.bodies.taken(), 0);
}

/// A body that does not come forward ends its connection; a slow one lives, and so does one that waits for room.
#[test]
fn a_body_that_stands_still() {
    let mut node = Node::new();
    node.settings.unfinished_timeout_ms = 10_000;
    let [still, slow, method] = [(); 3].map(|()| node.client());
    let (first, rest) = cut(1, "", MIB, 100_000);
    node.bytes(still, &first);
    node.bytes(slow, &first);
    node.bytes(method, &first[..10]);
    let mut said = [const { String::new() }; 3];
    // 20 KiB in ten seconds.
    for part in rest.chunks(20 << 10) {
        for _ in 0..10 {
            node.later(1000);
            // It lives, and says so: in the middle of a frame it has to end that first.
            said[0].push_str(&node.read(still));
            said[2].push_str(&node.read(method));
        }
        said[1].push_str(&node.bytes(slow, part));
    }
    let want = "0 connection.close 506 RESOURCE_ERROR - a body on channel 1 of which 100000 of 1048576 bytes came \
                stands still: fewer than 10240 more in 10 s (unfinished_timeout) (60.40)";
    assert_eq!(said[0].replace("heartbeat", "").trim(), want);
    assert!(said[2].contains("a frame of which 10 bytes came stands still"), "{}", said[2]);
    assert_eq!(said[1].replace("heartbeat", "").trim(), "");
    let sizes = node.links[slow].session.facts();
    assert_eq!(sizes.state, "running");
    assert_eq!(node.settings.bodies.taken(), 0);
}

/// While others wait for its room a body has to be quicker, and a long one has to end within ten looks; who waits is not to
/// blame for being silent.
#[test]
fn a_body_that_others_wait_for() {
    for (size, part, want) in [
        (MIB, 20 << 10, "fewer than 163840 more in 10 s"),
        // Quicker than 16 KiB a second.
        (2 * MIB, 200_000, "fewer than 209715 more in 10 s"),
    ] {
        let mut node = Node::new();
        node.settings.bodies.set_watermark(4 * size as u64);
        node.settings.unfinished_timeout_ms = 10_000;
        let [slow, waiting] = [(); 2].map(|()| node.client());
        node.declare(slow, "q");
        let (first, rest) = cut(1, "", size, 100_000);
        node.bytes(slow, &first);
        node.bytes(waiting, &first);
        assert!(!node.links[waiting].session.wants_input());
        let mut said = String::new();
        for part in rest.chunks(part).take(9) {
            for _ in 0..10 {
                node.later(1000);
                // It lives, and says so.
                said.push_str(&node.bytes(slow, b""));
                node.read(waiting);
            }
            said.push_str(&node.bytes(slow, part));
            if said.contains("close") {
                break;
            }
        }
        assert!(said.contains(want), "{said}");
        node.bytes(waiting, &rest);
        let reader = node.client();
        assert_eq!(ready(&mut node, reader), "1 queue.declare-ok q 1 0");
    }
}

/// Who stands in line and goes leaves nothing behind, and neither does a channel that is closed.
#[test]
fn who_goes_gives_its_room_back() {
    let mut node = Node::new();
    node.settings.bodies.set_watermark(8 << 20);
    let all = [(); 4].map(|()| node.client());
    let (first, rest) = cut(1, "", 2 * MIB, 0);
    for link in all {
        node.bytes(link, &first);
    }
    assert_eq!(node.settings.bodies.waiting(), 3);
    node.drop_link(all[1]);
    assert_eq!(node.settings.bodies.waiting(), 2);
    // A frame that is not to come now closes the connection.
    let said = node.say(
        all[0],
        1,
        &channel::Close { reply_code: 200, reply_text: "", class_id: 0, method_id: 0 },
    );
    assert!(said.contains("connection.close 505"), "{said}");
    assert_eq!(node.settings.bodies.waiting(), 1);
    node.bytes(all[2], &rest);
    assert_eq!(node.settings.bodies.waiting(), 0);
    node.drop_link(all[3]);
    assert_eq!(node.settings.bodies.taken(), 0);
}

/// A block of small messages for many queues is not led to its end in one turn, and nothing of it is lost.
#[test]
fn a_block_of_messages_for_many_queues() {
    let mut node = Node::new();
    let link = node.client();
    for number in 0..2000 {
        let name = format!("q{number}");
        node.declare(link, &name);
        let bind = queue::Bind { queue: &name, exchange: "amq.fanout", ..Default::default() };
        node.say(link, 1, &bind);
    }
    let one = publish_bytes(1, "amq.fanout", "", b"x", &Properties::default(), false);
    node.bytes(link, &one.repeat(100));
    let declare = queue::Declare { queue: "q7", passive: true, ..Default::default() };
    assert_eq!(node.say(link, 1, &declare), "1 queue.declare-ok q7 100 0");
    let most = node.links[link].most_queues;
    assert!((32_768..36_000).contains(&most), "{most} queues in one turn");
}

/// Output that its client does not take keeps no alarm up for ever; without an alarm it waits.
#[test]
fn a_client_that_does_not_read() {
    for is_short in [false, true] {
        let mut node = Node::new();
        let link = node.client();
        node.links[link].is_stuck = true;
        let declare = queue::Declare { queue: "q", ..Default::default() };
        assert_eq!(node.say(link, 1, &declare), "");
        if is_short {
            node.letter(link, ToSession::Alarm(RAISED));
        }
        for _ in 0..30 {
            node.later(10_000);
            // It lives.
            node.bytes(link, b"\x08\0\0\0\0\0\0\xce");
        }
        assert_eq!(node.ended(link).is_some(), is_short);
    }
}

/// A command on another channel, whose answer takes no time, is no excuse for a body that stands still.
#[test]
fn a_body_that_stands_still_beside_commands() {
    let mut node = Node::new();
    node.settings.unfinished_timeout_ms = 10_000;
    let link = node.client();
    node.open(link, 2);
    let bytes = publish_bytes(1, "", "q", &vec![7; 200_000], &Properties::default(), false);
    // To the end of the first of two frames.
    let first = bytes.len() - (200_000 - 131_064) - 8;
    node.bytes(link, &bytes[..first]);
    let mut said = String::new();
    for _ in 0..25 {
        node.later(1000);
        said.push_str(&node.say(link, 2, &queue::Declare { queue: "q", ..Default::default() }));
    }
    assert!(said.contains("131064 of 200000 bytes came stands still"), "{said}");
}

/// One body after the other is one at a time, however long they are.
#[test]
fn bodies_one_after_the_other() {
    let mut node = Node::new();
    node.settings.bodies.set_watermark(4 << 20);
    let link = node.client();
    node.declare(link, "q");
    let all: Vec<u8> = (0..10)
        .flat_map(|more| {
            let body = vec![7; MIB + more * 1000];
            publish_bytes(1, "", "q", &body, &Properties::default(), false)
        })
        .collect();
    assert_eq!(node.bytes(link, &all), "");
    assert_eq!(ready(&mut node, link), "1 queue.declare-ok q 10 0");
    assert_eq!(node.settings.bodies.taken(), 0);
}

/// A user whose long bodies stand still, and a long body of another one that finds no room: neither keeps small bodies of others
/// waiting, and who grows beyond them waits with all that it has.
#[test]
fn small_bodies_wait_for_no_long_one() {
    let mut node = Node::new();
    add_none(&mut node);
    node.topology.set_permissions("none", "/", ".*", ".*", ".*").unwrap();
    node.settings.bodies.set_watermark(16 << 20);
    let room = std::sync::Arc::clone(&node.settings.bodies);
    let (honest, other, both) = (node.client(), node.client(), node.client());
    node.declare(honest, "q");
    node.open(both, 2);
    let (first, _) = cut(1, "", MIB, 1000);
    let still: Vec<usize> = (0..8).map(|_| connect_none(&mut node)).collect();
    for &link in &still {
        node.bytes(link, &first);
    }
    assert_eq!((room.taken() / MIB as u64, room.waiting()), (3, 5));
    let (long, rest_of_long) = cut(1, "", 3 * MIB, 1000);
    node.bytes(other, &long);
    assert_eq!(room.waiting(), 6);
    let (small, rest) = cut(1, "", 60_000, 1000);
    for count in 1..4 {
        for part in [&small, &rest] {
            assert_eq!(node.bytes(honest, part), "");
        }
        assert_eq!(ready(&mut node, honest), format!("1 queue.declare-ok q {count} 0"));
    }
    // Small, and not any more with a second body.
    let [(first, rest), (second, rest_of_second)] = [1, 2].map(|it| cut(it, "", 60_000, 0));
    assert_eq!(node.bytes(both, &first), "");
    assert_eq!(room.waiting(), 6);
    assert_eq!(node.bytes(both, &second), "");
    assert_eq!(room.waiting(), 7);
    for link in still {
        node.drop_link(link);
    }
    assert_eq!(room.waiting(), 0);
    for (link, rest) in [(other, rest_of_long), (both, rest), (both, rest_of_second)] {
        node.bytes(link, &rest);
    }
    assert_eq!(ready(&mut node, honest), "1 queue.declare-ok q 6 0");
    assert_eq!((room.taken(), room.waiting(), held(&node)), (0, 0, 0));
}

/// A publish whose headers are so long.
fn with_headers(headers: usize, size: usize) -> Vec<u8> {
    let mut table = Table::default();
    table.push("long", Value::LongStr(vec![7; headers]));
    let properties = Properties { headers: Some(table), ..Default::default() };
    publish_bytes(1, "", "q", &vec![7; size], &properties, false)
}

/// Frames that are nearly whole, of a crowd that may nothing: they take a bounded part of the memory for bodies, keep
/// no body waiting, and leave room for those of other users.
#[test]
fn frames_that_are_not_whole() {
    let mut node = Node::new();
    add_none(&mut node);
    node.settings.bodies.set_watermark(16 << 20);
    node.settings.unfinished_timeout_ms = 10_000;
    let room = std::sync::Arc::clone(&node.settings.bodies);
    let (honest, other) = (node.client(), node.client());
    node.declare(honest, "q");
    let frame = [&b"\x01\0\x01\0\x01\xff\xf8\0\x32\0\x0a"[..], &[0; 131_000]].concat();
    let crowd: Vec<usize> = (0..200).map(|_| connect_none(&mut node)).collect();
    for &link in &crowd {
        assert_eq!(node.bytes(link, &frame), "");
    }
    assert_eq!((room.taken(), room.waiting(), room.frames_waiting()), (MIB as u64, 0, 192));
    assert!(held(&node) < MIB + 192 * (17 << 10) + (64 << 10), "{}", held(&node));
    let (body, rest) = cut(1, "", 2 * MIB, MIB);
    assert_eq!(node.bytes(other, &[body, rest].concat()), "", "a body goes through");
    assert_eq!(ready(&mut node, honest), "1 queue.declare-ok q 1 0");
    let long = with_headers(100_000, 10);
    node.bytes(honest, &long);
    assert_eq!(room.frames_waiting(), 192, "a long frame of another user does not wait");
    assert_eq!(ready(&mut node, other), "1 queue.declare-ok q 2 0");
    let mut ended = 0;
    for _ in 0..60 {
        node.later(1000);
        node.bytes(other, b"\x08\0\0\0\0\0\0\xce");
        ended = crowd.iter().filter(|&&link| node.read(link).contains("stands still")).count();
        if ended > 0 {
            break;
        }
    }
    assert_eq!(ended, 8, "who has room and does not go on ends");
    for link in crowd {
        node.drop_link(link);
    }
    assert_eq!((room.taken(), room.frames_waiting()), (0, 0));
}

/// Headers of a message that are longer than what needs no room, cut anywhere, and then a body: nobody waits for
/// what it holds itself.
#[test]
fn long_headers_before_large_bodies() {
    let mut node = Node::new();
    node.settings.bodies.set_watermark(4 << 20);
    let link = node.client();
    node.declare(link, "q");
    let bytes = with_headers(100_000, 3 * MIB);
    for (count, at) in [30, 20_000, 50_000, 100_060, 100_080, 200_000].into_iter().enumerate() {
        for part in [&bytes[..at], &bytes[at..]] {
            assert_eq!(node.bytes(link, part), "");
        }
        let want = format!("1 queue.declare-ok q {} 0", count + 1);
        assert_eq!(ready(&mut node, link), want, "{at}");
    }
    assert_eq!((node.settings.bodies.taken(), held(&node)), (0, 0));
    // Many at once: those that wait for their bodies have room for their headers, and others none.
    let all: Vec<usize> = (0..20).map(|_| node.client()).collect();
    for &link in &all {
        node.bytes(link, &bytes[..200_000]);
    }
    assert!(held(&node) < 4 * MIB, "{}", held(&node));
    for &link in &all {
        node.bytes(link, &bytes[200_000..]);
    }
    assert_eq!(ready(&mut node, link), "1 queue.declare-ok q 26 0");
    assert_eq!((node.settings.bodies.taken(), held(&node)), (0, 0));
}

/// Whoever has not opened its vhost is in no line, and has no long frames.
#[test]
fn frames_before_open_are_short() {
    let mut node = Node::new();
    let link = node.accept(true);
    node.bytes(link, b"AMQP\x00\x00\x09\x01");
    let start_ok = connection::StartOk {
        client_properties: RawTable::unchecked(&[]),
        mechanism: "PLAIN",
        response: b"\0guest\0guest",
        locale: "en_US",
    };
    node.say(link, 0, &start_ok);
    let tune = connection::TuneOk { channel_max: 2047, frame_max: 131_072, heartbeat: 60 };
    assert_eq!(node.say(link, 0, &tune), "");
    let said = node.bytes(link, b"\x01\0\0\0\0\x20\x01");
    assert!(said.contains("501 FRAME_ERROR"), "{said}");
}

/// A connection that was closed, and whose client is waited for, keeps nothing of what still comes.
#[test]
fn frames_to_a_connection_that_is_closed() {
    let mut node = Node::new();
    let link = node.client();
    let frame = [&b"\x01\0\x01\0\x01\xff\xf8\0\x32\0\x0a"[..], &[0; 131_000]].concat();
    node.bytes(link, &frame);
    let close = ToSession::Close { code: ReplyCode::ConnectionForced, text: "go".into() };
    node.letter(link, close);
    node.bytes(link, &[0; 60]);
    assert_eq!((node.links[link].left.len(), node.settings.bodies.taken()), (1, 0));
    node.bytes(link, &[b"\xce", &frame[..]].concat());
    assert_eq!(node.links[link].left.len(), 0);
    node.bytes(link, &[&[0; 60][..], b"\xce", b"\x01\0\0\0\0\0\x04\0\x0a\0\x33\xce"].concat());
    assert!(node.ended(link).is_some());
}

/// What an alarm stops has read little that it keeps all the while.
#[test]
fn little_is_read_during_an_alarm() {
    let mut node = Node::new();
    let link = node.client();
    node.letter(link, ToSession::Alarm(RAISED));
    let one = publish_bytes(1, "", "q", b"x", &Properties::default(), false);
    node.bytes(link, &one.repeat(10_000));
    assert!(!node.links[link].session.wants_input());
    assert!(node.links[link].left.len() <= 16 << 10, "{}", node.links[link].left.len());
}

/// A transaction that an alarm stops cannot be committed, and its memory may be what keeps the alarm up: it ends, if the
/// alarm stays. One that is committed or rolled back, or an alarm that goes, does no harm.
#[test]
fn a_transaction_that_an_alarm_stops() {
    let mut node = Node::new();
    // Clients that say nothing for so long miss no heartbeat.
    node.settings.unfinished_timeout_ms = 10_000;
    let clients: [usize; 4] = std::array::from_fn(|_| node.client());
    let [stopped, idle, done, small] = clients;
    node.declare(stopped, "q");
    for link in clients {
        assert_eq!(node.say(link, 1, &tx::Select {}), "1 tx.select-ok");
        let size = if link == small { 1000 } else { MIB };
        node.bytes(link, &publish_bytes(1, "", "q", &vec![7; size], &Properties::default(), false));
    }
    let timeout_ms = node.settings.unfinished_timeout_ms;
    let tell = |node: &mut Node, alarm| {
        clients.into_iter().for_each(|link| node.letter(link, ToSession::Alarm(alarm)));
    };
    tell(&mut node, RAISED);
    let more = publish_bytes(1, "", "q", &vec![7; MIB], &Properties::default(), false);
    assert_eq!(node.bytes(stopped, &more), "0 connection.blocked low on memory");
    node.later(timeout_ms);
    assert!(node.say(done, 1, &tx::Commit {}).ends_with("1 tx.commit-ok"));
    node.later(timeout_ms - 2);
    assert!(clients.into_iter().all(|link| node.ended(link).is_none()));
    let kept = |node: &Node, link: usize| node.links[link].session.kept_bytes();
    assert!(kept(&node, stopped) > MIB as u64);
    node.later(3);
    for link in [stopped, idle] {
        let said = node.read(link);
        let why = "RESOURCE_ERROR - low on memory: a transaction of ";
        assert!(said.contains("0 connection.close 506") && said.contains(why), "{said}");
        assert!(kept(&node, link) < 1000);
    }
    node.later(3 * timeout_ms);
    assert!([done, small].into_iter().all(|link| node.ended(link).is_none()));

    // The alarm was over in between.
    let publish = publish_bytes(1, "", "q", &vec![7; MIB], &Properties::default(), false);
    tell(&mut node, Alarm::default());
    node.bytes(done, &publish);
    for _ in 0..4 {
        tell(&mut node, RAISED);
        node.later(timeout_ms);
        tell(&mut node, Alarm::default());
        node.later(timeout_ms);
    }
    assert!(node.say(done, 1, &tx::Commit {}).ends_with("1 tx.commit-ok"));
}

/// The end of small transactions does not excuse a large one that stays.
#[test]
fn a_transaction_beside_small_ones() {
    let mut node = Node::new();
    node.settings.unfinished_timeout_ms = 10_000;
    let link = node.client();
    node.declare(link, "q");
    (2..=9).for_each(|number| node.open(link, number));
    for number in 1..=9 {
        node.say(link, number, &tx::Select {});
        let body = vec![7; if number == 1 { MIB } else { 1000 }];
        node.bytes(link, &publish_bytes(number, "", "q", &body, &Properties::default(), false));
    }
    node.letter(link, ToSession::Alarm(RAISED));
    for number in 2..=3 {
        assert!(node.say(link, number, &tx::Rollback {}).contains("tx.rollback-ok"), "{number}");
        node.later(node.settings.unfinished_timeout_ms);
    }
    assert!(node.read(link).contains("506 RESOURCE_ERROR - low on memory: a transaction of "));
}

/// What goes nowhere and is not to be returned is not kept for the commit, nor counted.
#[test]
fn a_transaction_keeps_nothing_of_what_goes_nowhere() {
    let mut node = Node::new();
    let link = node.client();
    node.say(link, 1, &tx::Select {});
    let before = node.links[link].session.kept_bytes();
    for _ in 0..3 {
        node.bytes(link, &publish_bytes(1, "", "no", &[7; 100_000], &Properties::default(), false));
    }
    assert!(node.links[link].session.kept_bytes() < before + 1000);
    node.bytes(link, &publish_bytes(1, "", "no", &[7; 100_000], &Properties::default(), true));
    assert!(node.links[link].session.kept_bytes() > before + 100_000);
    assert!(node.say(link, 1, &tx::Commit {}).contains("basic.return 312"));
}
