//! What sessions count, and that nothing of it is lost when channels and consumers end.

mod node;

use leveret_amqp::content::Properties;
use leveret_amqp::method::{basic, channel, confirm, tx};
use leveret_amqp::outbuf::OutBuf;
use leveret_session::{Brought, CONFIRM_BOUNDS_US, ChannelTotals, ExchangeTotals, TakenTotals};

use node::{Node, publish_bytes};

fn consume(queue: &str, no_ack: bool) -> basic::Consume<'_> {
    basic::Consume { queue, consumer_tag: queue, no_ack, ..Default::default() }
}

fn get(queue: &str, no_ack: bool) -> basic::Get<'_> {
    basic::Get { queue, no_ack, ..Default::default() }
}

/// Everything that is counted, once or a few times.
fn work(node: &mut Node, link: usize) -> ChannelTotals {
    for name in ["acked", "never", "got"] {
        node.declare(link, name);
    }
    node.publish(link, "", "got", "before confirms");
    node.say(link, 1, &confirm::Select { no_wait: false });
    for name in ["acked", "acked", "never", "never", "never", "got"] {
        node.publish(link, "", name, "m");
    }
    node.publish(link, "", "nowhere", "dropped");
    node.publish_with(link, "amq.direct", "nowhere", "returned", &Properties::default(), true);
    for (name, no_ack) in [("acked", false), ("never", true)] {
        node.say(link, 1, &consume(name, no_ack));
    }
    node.say(link, 1, &get("got", false));
    node.say(link, 1, &get("got", true));
    node.say(link, 1, &get("got", true));
    // The two of `acked` have the tags 1 and 2, those of `never` 3 to 5; the one that was got has 6.
    node.say(link, 1, &basic::Nack { delivery_tag: 1, multiple: false, requeue: true });
    node.say(link, 1, &basic::Ack { delivery_tag: 6, multiple: false });
    node.say(link, 1, &basic::Reject { delivery_tag: 2, requeue: false });
    ChannelTotals {
        published: ExchangeTotals {
            publish: 9,
            confirm: 8,
            routed: 7,
            return_unroutable: 1,
            drop_unroutable: 1,
        },
        publish_confirm: 8,
        nack: 0,
        taken: TakenTotals {
            deliver: 3,
            deliver_no_ack: 3,
            get: 1,
            get_no_ack: 1,
            get_empty: 1,
            redeliver: 1,
            ack: 1,
        },
        reject: 2,
    }
}

/// Who decides how soon to read again learns whether somebody may wait for what was read; whole or in pieces, it is the same.
#[test]
fn what_reads_brought() {
    let mut node = Node::new();
    let [plain, confirmed, committed] = [(); 3].map(|()| node.client());
    node.declare(plain, "q");
    node.say(confirmed, 1, &confirm::Select { no_wait: false });
    node.say(committed, 1, &tx::Select);
    let message = |properties: &Properties| publish_bytes(1, "", "q", b"body", properties, false);
    let frame = |method: &dyn Fn(&mut OutBuf)| {
        let mut out = OutBuf::new();
        method(&mut out);
        out.take_rest()
    };
    let with_reply = Properties { reply_to: Some("q".to_owned()), ..Properties::default() };
    let ack = frame(&|out| out.put_method(1, &basic::Ack { delivery_tag: 0, multiple: true }));
    let rows = [
        (
            plain,
            [message(&Properties::default()), message(&Properties::default())].concat(),
            2,
            false,
        ),
        (plain, message(&with_reply), 1, true),
        (plain, frame(&|out| out.put_heartbeat()), 0, false),
        (plain, frame(&|out| out.put_method(1, &basic::Qos::default())), 0, true),
        (confirmed, message(&Properties::default()), 1, true),
        (committed, message(&Properties::default()), 1, true),
        (plain, [message(&Properties::default()), ack].concat(), 1, true),
    ];
    for (row, (link, bytes, publishes, is_awaited)) in rows.into_iter().enumerate() {
        for piece in [bytes.len(), 1] {
            node.links[link].session.take_brought();
            for part in bytes.chunks(piece) {
                node.bytes(link, part);
            }
            let want = Brought { publishes, is_awaited };
            assert_eq!(
                node.links[link].session.take_brought(),
                want,
                "row {row}, {piece} at a time"
            );
        }
    }
}

#[test]
fn totals_outlive_channels_and_consumers() {
    let mut node = Node::new();
    let link = node.client();
    let want = work(&mut node, link);
    let numbers = node.links[link].session.numbers();
    assert_eq!(numbers.channels[0].totals, want);
    assert_eq!(numbers.totals.channels, want);
    assert_eq!((numbers.totals.channels_opened, numbers.totals.channels_closed), (1, 0));
    let exchanges = numbers.totals.exchanges;
    assert_eq!(exchanges.len(), 2);
    let mut counts: Vec<_> = exchanges.values().map(|it| (it.publish, it.confirm)).collect();
    counts.sort_unstable();
    assert_eq!(counts, [(1, 1), (8, 7)]); // one of the default exchange came before confirms
    assert_eq!(numbers.totals.sizes.counts[0], 9);
    assert_eq!(numbers.totals.in_broker.counts.iter().sum::<u64>(), 8);

    let cancel = basic::Cancel { consumer_tag: "never", no_wait: false };
    node.say(link, 1, &cancel);
    assert_eq!(node.links[link].session.numbers().totals.channels, want);
    node.say(link, 1, &channel::Close::default());
    let numbers = node.links[link].session.numbers();
    assert!(numbers.channels.is_empty());
    assert_eq!(numbers.totals.channels, want);
    assert_eq!(numbers.totals.exchanges, exchanges);
    assert_eq!((numbers.totals.channels_opened, numbers.totals.channels_closed), (1, 1));

    // A mistake closes a channel, and the connection's end closes the others.
    node.open(link, 1);
    node.open(link, 2);
    node.publish(link, "", "acked", "m");
    node.publish(link, "no such exchange", "", "m");
    node.drop_link(link);
    let totals = node.links[link].session.numbers().totals;
    assert_eq!(totals.channels.published.publish, want.published.publish + 1);
    assert_eq!((totals.channels_opened, totals.channels_closed), (3, 3));
    assert_eq!((totals.connections_opened, totals.auth_succeeded), (1, 1));
}

#[test]
fn how_long_a_confirm_took_is_measured() {
    let mut node = Node::new();
    let link = node.client();
    node.declare(link, "q");
    node.say(link, 1, &confirm::Select { no_wait: false });
    (0..2).for_each(|shard| node.hold(shard));
    node.publish(link, "", "q", "slow");
    node.now = node.now.after_ms(5);
    (0..2).for_each(|shard| node.release(shard));
    node.publish(link, "", "q", "at once");
    (0..2).for_each(|shard| node.hold(shard));
    node.publish(link, "", "q", "quick");
    node.us = 260;
    (0..2).for_each(|shard| node.release(shard));
    let times = node.links[link].session.numbers().totals.confirm;
    let counted: Vec<_> = CONFIRM_BOUNDS_US.into_iter().zip(times.counts).collect();
    let counted: Vec<_> = counted.into_iter().filter(|(_, count)| *count > 0).collect();
    assert_eq!((counted, times.us), (vec![(50, 1), (500, 1), (10_000, 1)], 5_260));
}
