//! What a confirm costs a shard, in allocations: as good as nothing, whatever the rule.

use std::sync::Arc;

use leveret_amqp::content::Properties;
use leveret_amqp::table::{Table, Value};
use leveret_broker::message::*;
use leveret_broker::record::join_names;
use leveret_broker::{Meta, Shard};
use leveret_counting::{allocations, live_bytes};
use leveret_log::MemoryLog;
use leveret_queue::{ChannelLimit, Gate, OutputGauge, Time};
use leveret_topology::{GroupId, Import, NodeId, Topology};

const BATCH: u64 = 500;
const ROUNDS: u64 = 40;
/// Rounds that do not count: buffers grow to what they need.
const WARM: u64 = 20;
const ME: ConnectionId = NodeId::ALONE.connection(1);

/// Letters of a batch: the vector of deliveries, which doubles until it holds them, and a letter each.
const PER_BATCH: f64 = 16.0;

#[test]
fn a_confirm_allocates_nothing() {
    for (rule, wants_confirm) in
        [("first", false), ("first", true), ("enqueue", true), ("ack", true), ("ack-lean", true)]
    {
        let allocations = per_batch(rule, wants_confirm);
        eprintln!(
            "{rule}, confirms {wants_confirm}: {allocations} allocations per {BATCH} messages"
        );
        assert!(allocations <= PER_BATCH, "{rule}, confirms {wants_confirm}: {allocations}");
    }
}

/// Allocations of the shard's turns for one batch that is published, delivered, acked and confirmed.
fn per_batch(rule: &str, wants_confirm: bool) -> f64 {
    let mut topology = Topology::new();
    let vhost = topology.add_vhost("/").expect("a vhost");
    let mut shard = Shard::new(GroupId::new(0), MemoryLog::default());
    let mut out = Outbox::default();
    let mut arguments = Table::default();
    arguments.set("x-confirm-on", Value::LongStr(rule.as_bytes().to_vec()));
    let reply = ReplyTo { connection: ME, channel: 1 };
    let declare = ToMeta::DeclareQueue {
        by: Box::default(),
        reply,
        vhost,
        name: "q".into(),
        server_named: false,
        durable: true,
        exclusive: false,
        auto_delete: false,
        arguments,
        forbidden: None,
    };
    Meta::new(MemoryLog::new()).turn(&mut vec![declare], &mut topology, &mut out);
    let queue = topology.queue(vhost, "q").expect("declared").id;
    let mut letters: Vec<ToShard> = out.shards.drain(..).map(|(_, letter)| letter).collect();
    letters.push(ToShard::Consume {
        user: Box::default(),
        reply,
        queue,
        slot: ConsumerSlot(0),
        tag: "c".into(),
        no_ack: false,
        exclusive: false,
        priority: 0,
        prefetch: 0,
        gate: Some(Gate::new(Arc::new(OutputGauge::new(1 << 40)), Arc::new(ChannelLimit::new()))),
        arguments: Default::default(),
    });
    shard.turn(&mut letters, &topology, Time::from_ms(0), &mut out);
    out.sessions.clear();

    let mut properties = Vec::new();
    Properties::default().encode(&mut properties);
    let message = Message::from_parts(&join_names("", "q"), &properties, &[0; 64]);
    let (mut allocations, mut confirmed) = (0, 0);
    for round in 0..WARM + ROUNDS {
        let now = Time::from_ms(round * 10);
        let publish = |seq| Publish {
            channel: 1,
            confirm: if wants_confirm { round * BATCH + seq } else { 0 },
            targets: [queue].into_iter().collect(),
            persistent: true,
            priority: 0,
            expiration_ms: None,
            message: message.clone(),
            shared: None,
        };
        let messages = (1..=BATCH).map(publish).collect();
        letters.push(ToShard::Publish { from: ME, messages });
        let mut settlements = Vec::with_capacity(BATCH as usize);
        allocations += turn(&mut shard, &mut letters, &topology, now, &mut out, round);
        for (_, letter) in out.sessions.drain(..) {
            match letter {
                ToSession::Deliver(deliveries) => {
                    settlements.extend(deliveries.iter().map(|delivery| Settlement {
                        queue,
                        unacked: delivery.unacked.expect("acks are expected"),
                        offset: delivery.offset,
                        how: Settle::Ack,
                    }));
                }
                ToSession::Confirm { first, last, ok: true, .. } => confirmed += last + 1 - first,
                other => panic!("{other:?}"),
            }
        }
        letters.push(ToShard::Settle { from: ME, settlements });
        allocations += turn(&mut shard, &mut letters, &topology, now, &mut out, round);
        for (_, letter) in out.sessions.drain(..) {
            match letter {
                ToSession::Confirm { first, last, ok: true, .. } => confirmed += last + 1 - first,
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(confirmed, if wants_confirm { (WARM + ROUNDS) * BATCH } else { 0 });
    allocations as f64 / ROUNDS as f64
}

fn turn(
    shard: &mut Shard<MemoryLog>,
    letters: &mut Vec<ToShard>,
    topology: &Topology,
    now: Time,
    out: &mut Outbox,
    round: u64,
) -> u64 {
    let before = allocations();
    shard.turn(letters, topology, now, out);
    if round < WARM { 0 } else { allocations() - before }
}

/// An import is done in pieces, and each lets go of what it was made of: while it goes on it takes its text, where the
/// entries are in it, and a few pieces on their way to the shards, above what stays.
#[test]
fn an_import_takes_little_above_what_stays() {
    const QUEUES: usize = 20_000;
    const PIECES: i64 = 1 << 20;
    let entry =
        |at| format!(r#"{{"vhost":"/","name":"queue-{at}","durable":true,"arguments":{{}}}}"#);
    let entries: Vec<_> = (0..QUEUES).map(entry).collect();
    let text = format!(r#"{{"queues":[{}]}}"#, entries.join(","));
    drop(entries);
    let len = text.len() as i64;
    let mut topology = Topology::new();
    topology.add_vhost("/").expect("a vhost");
    let mut meta = Meta::new(MemoryLog::new());
    let mut shard = Shard::new(GroupId::new(0), MemoryLog::default());
    let definitions = Box::new(Import::of(text.into()).expect("read"));
    let command = Box::new(AdminCommand::ImportDefinitions { definitions });
    let reply = ReplyTo { connection: ME, channel: 0 };
    let mut out = Outbox::default();
    out.meta.push(ToMeta::Admin { by: Box::default(), reply, command });
    let (mut most, mut turns) = (0, 0);
    while !out.meta.is_empty() {
        meta.turn(&mut std::mem::take(&mut out.meta), &mut topology, &mut out);
        most = most.max(live_bytes());
        let mut letters = out.shards.drain(..).map(|(_, letter)| letter).collect();
        while shard.turn(&mut letters, &topology, Time::from_ms(0), &mut out) {}
        most = most.max(live_bytes());
        turns += 1;
    }
    assert!(out.sessions.iter().any(|(to, _)| *to == ME), "it was answered");
    drop(out);
    let above = most - live_bytes();
    eprintln!("{above} bytes above what stays, {} of text, in {turns} turns", len);
    assert!(topology.queue_count() == QUEUES && turns > 50, "{turns} turns");
    assert!(above < len * 3 / 2 + PIECES, "{above} bytes above what stays, {len} of text");
}
