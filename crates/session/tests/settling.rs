//! Methods that settle very many messages are done in pieces, and nobody sees where they are cut.

mod node;

use leveret_amqp::method::*;
use leveret_amqp::outbuf::OutBuf;
use leveret_amqp::reply::ReplyCode;
use leveret_broker::message::{ToSession, ToShard};
use leveret_queue::Offset;
use leveret_topology::GroupId;
use node::Node;

/// A client with some messages of `q` unacked on a channel, and a node whose turns settle so many.
fn with_unacked(count: u64, turn_spent_max: usize) -> (Node, usize) {
    let mut node = Node::new();
    node.settings.turn_spent_max = turn_spent_max;
    let link = node.client();
    node.declare(link, "q");
    get_some(&mut node, link, 1, count);
    (node, link)
}

/// Messages are published and got by this channel.
fn get_some(node: &mut Node, link: usize, channel: u16, count: u64) {
    for number in 0..count {
        node.publish(link, "", "q", &format!("{channel}-{number}"));
    }
    let get = basic::Get { queue: "q", ..Default::default() };
    for _ in 0..count {
        assert!(node.say(link, channel, &get).contains("basic.get-ok"));
    }
}

fn ready(node: &mut Node, link: usize) -> u64 {
    let passive = queue::Declare { queue: "q", passive: true, ..Default::default() };
    let said = node.say(link, 1, &passive);
    let counts = said.strip_prefix("1 queue.declare-ok q ").unwrap_or_else(|| panic!("{said}"));
    counts.split(' ').next().unwrap().parse().unwrap()
}

fn nack(delivery_tag: u64) -> basic::Nack {
    basic::Nack { delivery_tag, multiple: true, requeue: true }
}

/// What is nacked is so at the commit and not before, and is unacked again after a rollback.
#[test]
fn a_nack_in_a_transaction() {
    for turn_spent_max in [1, 2, 3, 7, 10, 100] {
        let (mut node, link) = with_unacked(10, turn_spent_max);
        node.say(link, 1, &tx::Select);
        for tag in [0, 8] {
            assert_eq!(node.say(link, 1, &nack(tag)), "");
            assert_eq!(ready(&mut node, link), 0);
            assert_eq!(node.say(link, 1, &tx::Rollback), "1 tx.rollback-ok");
        }
        assert_eq!(node.say(link, 1, &nack(8)), "");
        assert_eq!(node.say(link, 1, &tx::Commit), "1 tx.commit-ok");
        assert_eq!(ready(&mut node, link), 8);
        let said = node.say(link, 1, &nack(8));
        assert!(said.starts_with("1 channel.close 406"), "{said}");
        node.say(link, 1, &channel::CloseOk);
        node.open(link, 1);
        assert_eq!(ready(&mut node, link), 10);
    }
}

/// What a recover gives back is delivered again behind the answer: a client may forget then all that it was given before.
#[test]
fn a_recover_is_answered_first() {
    for turn_spent_max in [1, 2, 3, 7, 10, 100] {
        let (mut node, link) = with_unacked(10, turn_spent_max);
        let consume = basic::Consume { queue: "q", consumer_tag: "c", ..Default::default() };
        assert_eq!(node.say(link, 1, &consume), "1 basic.consume-ok c");
        let said = node.say(link, 1, &basic::Recover { requeue: true });
        let again =
            |number| format!("1 basic.deliver c {} redelivered '' q =1-{number}", 11 + number);
        let want: Vec<_> =
            ["1 basic.recover-ok".to_owned()].into_iter().chain((0..10).map(again)).collect();
        assert_eq!(said.lines().collect::<Vec<_>>(), want);
    }
}

/// The rest of a recover that an operator cuts off goes back like the rest of what is unacked: once.
#[test]
fn an_operator_closes_in_the_middle_of_a_recover() {
    for turn_spent_max in 1..12 {
        let (mut node, link) = with_unacked(10, turn_spent_max);
        let other = node.client();
        let mut out = OutBuf::new();
        out.put_method(1, &basic::Recover { requeue: true });
        node.begin(link, &out.take_rest());
        assert_eq!(node.links[link].session.leaves_some(), turn_spent_max < 10);
        let (code, text) = (ReplyCode::ConnectionForced, "enough".to_owned());
        node.letter(link, ToSession::Close { code, text });
        let said = node.read(link);
        let close = "0 connection.close 320 CONNECTION_FORCED - enough (0.0)";
        assert_eq!(said.lines().collect::<Vec<_>>(), ["1 basic.recover-ok", close]);
        assert_eq!(ready(&mut node, other), 10);
        let got = node.say(other, 1, &basic::Get { queue: "q", ..Default::default() });
        assert!(got.starts_with("1 basic.get-ok 1 redelivered"), "{got}");
    }
}

/// What is unacked at the end of a channel or connection is back in its place then, whether it fits the turn or is handed over:
/// the oldest first, and what a transaction had settled with it.
#[test]
fn an_end_gives_everything_back() {
    type End = fn(&mut Node, usize);
    let ends: [End; 5] = [
        |node, link| {
            assert_eq!(node.say(link, 1, &channel::Close::default()), "1 channel.close-ok")
        },
        |node, link| {
            let said = node.say(link, 0, &connection::Close::default());
            assert_eq!(said, "0 connection.close-ok");
        },
        |node, link| node.drop_link(link),
        |node, link| {
            let (code, text) = (ReplyCode::ConnectionForced, "enough".to_owned());
            node.letter(link, ToSession::Close { code, text });
        },
        |node, link| {
            let said = node.say(link, 1, &basic::Ack { delivery_tag: 99, multiple: false });
            assert!(said.starts_with("1 channel.close 406"), "{said}");
        },
    ];
    for (number, end) in ends.into_iter().enumerate() {
        for (turn_spent_max, is_tx) in
            [1, 2, 3, 7, 10, 100].map(|max| [(max, false), (max, true)]).concat()
        {
            let (mut node, link) = with_unacked(10, turn_spent_max);
            node.say(link, 1, &basic::Ack { delivery_tag: 4, multiple: false });
            if is_tx {
                node.say(link, 1, &tx::Select);
                node.say(link, 1, &basic::Ack { delivery_tag: 2, multiple: true });
                node.say(link, 1, &basic::Ack { delivery_tag: 7, multiple: false });
            }
            let other = node.client();
            end(&mut node, link);
            let what = format!("end {number}, {turn_spent_max} a turn, transaction: {is_tx}");
            assert_eq!(ready(&mut node, other), 9, "{what}");
            for left in (0..10).filter(|left| *left != 3) {
                let got = node.say(other, 1, &basic::Get { queue: "q", ..Default::default() });
                let is_next = got.contains(" redelivered ") && got.ends_with(&format!("=1-{left}"));
                assert!(is_next, "{what}: {got}");
            }
        }
    }
}

/// What very many channels had unacked at the end of their connection goes back in one letter to each group, whoever ends it:
/// the channels one after the other, each with its oldest first.
#[test]
fn an_end_of_many_channels_is_one_letter() {
    const CHANNELS: u16 = 2000;
    for turn_spent_max in [1, 30, 10_000] {
        let (mut node, link) = with_unacked(10, turn_spent_max);
        // They live in all groups.
        for number in 0..8 {
            let name = format!("p{number}");
            node.declare(link, &name);
            node.publish(link, "", &name, "");
        }
        for channel in 2..=CHANNELS {
            node.open(link, channel);
            get_some(&mut node, link, channel, 2);
        }
        let other = node.client();
        (0..node::SHARDS).for_each(|shard| node.hold(shard));
        node.drop_link(link);
        let mut handed_over = Vec::new();
        for shard in 0..node::SHARDS {
            let letters = node.held(shard).iter().filter_map(|letter| match letter {
                ToShard::GiveBack { unsettled, .. } => Some(unsettled.len()),
                _ => None,
            });
            handed_over.push(letters.collect::<Vec<_>>());
        }
        let all = 10 + 2 * (usize::from(CHANNELS) - 1);
        let want = match turn_spent_max {
            1 => vec![all],
            30 => vec![all - 28],
            _ => Vec::new(),
        };
        assert!(handed_over.iter().all(|it| *it == want), "{turn_spent_max}: {handed_over:?}");
        (0..node::SHARDS).for_each(|shard| node.release(shard));
        assert_eq!(ready(&mut node, other), all as u64);
    }
}

/// A channel that is closed for an answer, not for what was read: its connection is read from, however much went back.
#[test]
fn an_end_by_an_answer_leaves_nothing_to_another_turn() {
    for turn_spent_max in 1..12 {
        let (mut node, link) = with_unacked(10, turn_spent_max);
        let other = node.client();
        let consume = basic::Consume { queue: "q", exclusive: true, ..Default::default() };
        assert!(node.say(other, 1, &consume).starts_with("1 basic.consume-ok"));
        let said = node.say(link, 1, &basic::Consume { queue: "q", ..Default::default() });
        assert!(said.starts_with("1 channel.close 403"), "{said}");
        assert_eq!(node.say(link, 1, &channel::CloseOk), "");
        node.open(link, 1);
        assert_eq!(node.read(other).lines().count(), 10);
    }
}

/// What comes behind a method for many on another channel waits; what each settles is its own.
#[test]
fn two_channels() {
    for turn_spent_max in [1, 2, 3, 5, 100] {
        let (mut node, link) = with_unacked(10, turn_spent_max);
        node.open(link, 2);
        get_some(&mut node, link, 2, 10);
        let mut out = OutBuf::new();
        out.put_method(1, &basic::Ack { delivery_tag: 7, multiple: true });
        out.put_method(2, &nack(4));
        out.put_method(1, &nack(0));
        out.put_method(2, &basic::Recover { requeue: true });
        out.put_method(1, &basic::Ack { delivery_tag: 10, multiple: true });
        let said = node.bytes(link, &out.take_rest());
        let mut lines = said.lines();
        assert_eq!(lines.next(), Some("2 basic.recover-ok"));
        assert!(lines.next().unwrap().starts_with("1 channel.close 406"), "{said}");
        node.say(link, 1, &channel::CloseOk);
        node.open(link, 1);
        assert_eq!(ready(&mut node, link), 13);
    }
}

/// A limit of the whole channel has room for as many as were settled, after each piece, and never for more.
#[test]
fn a_limit_of_the_channel() {
    for turn_spent_max in [1, 2, 3, 7, 100] {
        let mut node = Node::new();
        node.settings.turn_spent_max = turn_spent_max;
        let link = node.client();
        node.declare(link, "q");
        for number in 0..40 {
            node.publish(link, "", "q", &number.to_string());
        }
        let qos = basic::Qos { prefetch_count: 10, global: true, ..Default::default() };
        assert_eq!(node.say(link, 1, &qos), "1 basic.qos-ok");
        let consume = basic::Consume { queue: "q", consumer_tag: "c", ..Default::default() };
        let said = node.say(link, 1, &consume);
        assert_eq!(said.lines().filter(|it| it.contains("basic.deliver")).count(), 10);
        let ack = |delivery_tag| basic::Ack { delivery_tag, multiple: true };
        let said = node.say(link, 1, &ack(8));
        let numbers: Vec<_> = said.lines().filter_map(|it| it.split('=').nth(1)).collect();
        assert_eq!(numbers, (10..18).map(|it| it.to_string()).collect::<Vec<_>>());
        // All that there are when it is read, though others come meanwhile.
        let said = node.say(link, 1, &ack(0));
        assert_eq!(said.lines().count(), 10, "{said}");
        assert_eq!(node.say(link, 1, &ack(28)).lines().count(), 10);
        assert_eq!(ready(&mut node, link), 2);
    }
}

/// The offsets of what is settled by the letters that wait for the shard, and of what they claim.
fn named(node: &Node) -> (Vec<u64>, Vec<u64>) {
    let (mut settled, mut claimed) = (Vec::new(), Vec::new());
    for letter in node.held(0) {
        match letter {
            ToShard::Settle { settlements, .. } | ToShard::Commit { settlements, .. } => {
                settled.extend(settlements.iter().map(|it| it.offset.get()));
            }
            ToShard::Attach(it) => claimed.extend(it.claims.iter().map(|it| it.offset.get())),
            ToShard::GiveBack { unsettled, .. } => {
                let all = unsettled.of(GroupId::new(0), 0, usize::MAX);
                settled.extend(all.map(|it| it.offset.get()));
            }
            _ => {}
        }
    }
    (settled, claimed)
}

/// What was lost with a leader is claimed by nobody, and settled nowhere, though its client knows nothing of that.
#[test]
fn what_was_lost_with_a_leader_is_settled_nowhere() {
    let attach = |term, begins_at| ToSession::Attach {
        group: GroupId::new(0),
        term,
        begins_at: Offset::new(begins_at),
    };
    for in_transaction in [false, true] {
        let (mut node, link) = with_unacked(6, 100);
        if in_transaction {
            assert_eq!(node.say(link, 1, &tx::Select), "1 tx.select-ok");
            node.say(link, 1, &basic::Ack { delivery_tag: 4, multiple: true });
        }
        node.hold(0);
        node.letter(link, attach(7, u64::MAX));
        let mut all = named(&node).1;
        all.sort_unstable();
        assert_eq!(all.len(), 6);
        node.letter(link, attach(8, all[3]));
        let mut claimed = named(&node).1.split_off(6);
        claimed.sort_unstable();
        assert_eq!(claimed, all[..3]);
        match in_transaction {
            true => _ = node.say(link, 1, &tx::Commit),
            false => _ = node.say(link, 1, &basic::Ack { delivery_tag: 4, multiple: true }),
        }
        assert_eq!(named(&node).0, all[..3]);
        // One that is lost stays so in later terms.
        node.letter(link, attach(9, u64::MAX));
        assert_eq!(named(&node).1.len(), 9);
        if !in_transaction {
            node.drop_link(link);
            assert_eq!(named(&node).0, all[..3], "nothing is given back of what is lost");
        }
    }
}
