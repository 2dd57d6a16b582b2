//! How long a new leader's shard takes until it can serve, and what it does then turn by turn: with MESSAGES in the log of a
//! follower, in QUEUES in turn, of BYTES each, on a disk in memory. With `digests` sealed segments have theirs.

#![allow(clippy::print_stdout, reason = "a program that prints what it measured")]

use std::time::{Duration, Instant};

use leveret_amqp::content::Properties;
use leveret_amqp::table::Table;
use leveret_broker::Shard;
use leveret_broker::message::Outbox;
use leveret_broker::record::{Head, join_names, weigh};
use leveret_broker::transaction::Decided;
use leveret_log::disk::SimDisk;
use leveret_log::file::{OnDamage, Options};
use leveret_log::{BatchName, FileLog, Holder, Keep, Log, Offset};
use leveret_queue::Time;
use leveret_topology::{GroupId, QueueSpec, Topology};

const BATCH: u64 = 1_000;

fn settle(log: &mut FileLog<SimDisk>) {
    loop {
        log.sync().expect("a good disk");
        let is_written = log.durable() == log.end() && log.notes() == 0;
        if is_written && log.stored() == log.last() && log.disk().is_idle() {
            return;
        }
    }
}

fn names(queues: u64) -> (Topology, Vec<Holder>) {
    let mut topology = Topology::new();
    let vhost = topology.add_vhost("/").expect("a vhost");
    let ids = (0..queues).map(|number| {
        let spec = QueueSpec {
            vhost,
            name: &format!("q{number}"),
            server_named: false,
            durable: true,
            auto_delete: false,
            exclusive_owner: None,
            arguments: Table::default(),
        };
        Holder::new(topology.declare_queue(spec).expect("declared").id.get())
    });
    let ids = ids.collect();
    (topology, ids)
}

fn main() {
    let mut args = std::env::args().skip(1);
    let mut number = || args.next().and_then(|it| it.parse().ok()).expect("MESSAGES QUEUES BYTES");
    let (messages, queues, bytes): (u64, u64, u64) = (number(), number(), number());
    let digests = args.next().is_some_and(|it| it == "digests");
    let varies = std::env::var("VARIES").is_ok();
    let (topology, holders) = names(queues);
    let options = Options {
        segment_bytes: 16 << 20,
        cache_bytes: 1 << 20,
        weigh,
        digests,
        on_damage: OnDamage::Aside,
        ..Options::default()
    };
    let disk = SimDisk::new(1);
    let open = |options| FileLog::open(disk.clone(), options, &mut |_| {}).expect("a log").0;
    let mut log = open(options.clone());
    log.begin_term(1);
    settle(&mut log);
    let mut properties = Vec::new();
    Properties::default().encode(&mut properties);
    let names = join_names("", "q");
    let body = vec![7; bytes as usize];
    for message in 0..messages {
        let len = if varies { message * 7_919 % (bytes + 1) } else { bytes } as usize;
        let head = Head {
            persistent: true,
            names_len: names.len() as u16,
            properties_len: properties.len() as u32,
            body_len: len as u32,
            published_ms: 1_000 + message / 100,
            ..Head::default()
        };
        let holder = [holders[(message % queues) as usize]];
        let parts: [&[u8]; 3] = [&names, &properties, &body[..len]];
        log.append(&head.encode(), &parts, &holder, Keep::Durable).expect("room");
        if message % BATCH == BATCH - 1 {
            settle(&mut log);
        }
    }
    settle(&mut log);
    log.set_agreed(u64::MAX);
    log.reclaim();
    settle(&mut log);
    let last = log.last();
    drop(log);
    // The same files, as a follower has them.
    let begun = Instant::now();
    let mut log = open(Options { follows: Some(BatchName::NONE), ..options });
    log.apply_to(last).expect("the same log");
    let fed = begun.elapsed();
    let held = log.usage().held_bytes;
    log.begin_term(2);
    settle(&mut log);
    let mut shard = Shard::new(GroupId::new(0), log);
    let now = Time::from_ms(1_000_000);
    shard.host(&topology, now);
    let begun = Instant::now();
    shard.fill(&Decided::default(), Offset::MAX, &mut |_| {});
    let filled = begun.elapsed();
    let counted: u64 = shard.queues().map(|(_, queue)| queue.counts().ready).sum();
    assert_eq!(counted, messages);
    println!(
        "{messages} in {queues}: the table was fed in {fed:?}, holds {held} bytes; fill {filled:?}"
    );
    let (late, mut turns, mut longest) = (shard.late_messages(), 0, Duration::ZERO);
    let begun = Instant::now();
    while shard.late_messages() > 0 {
        let turn = Instant::now();
        shard.turn(&mut Vec::new(), &topology, now, &mut Outbox::default());
        (turns, longest) = (turns + 1, longest.max(turn.elapsed()));
    }
    println!("{late} late in {turns} turns, the longest {longest:?}, {:?} in all", begun.elapsed());
}
