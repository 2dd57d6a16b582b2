//! Nanoseconds of a message over a link, without the kernel: `cargo bench -p leveret-link`. The best of several rounds, as the
//! machine is shared.
#![allow(clippy::print_stdout, reason = "a report")]

use std::hint::black_box;
use std::io::IoSlice;
use std::time::{Duration, Instant};

use bytes::Bytes;
use leveret_broker::message::{
    ConnectionId, ConsumerSlot, Delivery, Message, Publish, Settle, Settlement, Targets, ToSession,
    ToShard,
};
use leveret_broker::record::{Head, join_names};
use leveret_link::frame::Letter;
use leveret_link::letters::{read, write_to_session, write_to_shard};
use leveret_link::payload::Writer;
use leveret_link::receiver::{Limits, Receiver};
use leveret_link::sender::Sender;
use leveret_queue::{Offset, UnackedId};
use leveret_topology::{GroupId, QueueId};

/// Messages of a turn.
const TURN: usize = 1000;

const GROUP: GroupId = GroupId::new(1);

fn main() {
    // `cargo test --benches` runs this too.
    let rounds = if std::env::args().any(|arg| arg == "--bench") { 300 } else { 1 };
    println!(
        "ns a message: written and framed, taken from frames and read; checksums as without TLS"
    );
    for batch in [1, 10, 100] {
        for len in [16, 1024, 4096, 65_536] {
            let body = Bytes::from(vec![7; len]);
            let publish = ToShard::Publish { from: from(), messages: vec![publish(&body); batch] };
            report(rounds, &format!("publish, {len} bytes, {batch} a letter"), batch, &|to| {
                write_to_shard(&publish, GROUP, to).expect("it travels")
            });
            let deliver = ToSession::Deliver((0..batch).map(|at| delivery(&body, at)).collect());
            report(rounds, &format!("delivery, {len} bytes, {batch} a letter"), batch, &|to| {
                write_to_session(from(), &deliver, (GROUP, 1), to).expect("it travels")
            });
        }
        let settlements = (0..batch).map(settlement).collect();
        let settle = ToShard::Settle { from: from(), settlements };
        report(rounds, &format!("ack, {batch} a letter"), batch, &|to| {
            write_to_shard(&settle, GROUP, to).expect("it travels")
        });
    }
}

fn from() -> ConnectionId {
    ConnectionId::from_bits(1 << 40 | 7)
}

fn publish(body: &Bytes) -> Publish {
    Publish {
        channel: 1,
        confirm: 1000,
        targets: Targets::one(QueueId::new(3)),
        persistent: true,
        priority: 0,
        expiration_ms: None,
        message: Message::with_body(
            &join_names("", "orders.eu"),
            b"\x10\0\x02",
            vec![body.clone()],
        ),
        shared: None,
    }
}

fn delivery(body: &Bytes, at: usize) -> Delivery {
    let publish = publish(body);
    let head = Head::of(&publish, 1);
    Delivery {
        slot: ConsumerSlot(1),
        queue: QueueId::new(3),
        home: GROUP,
        unacked: Some(UnackedId::new(at as u32)),
        offset: Offset::new(1_000_000 + at as u64),
        redelivered: false,
        delivery_count: 0,
        record: publish.message.into_record(&head).record().expect("it lies so").clone(),
    }
}

fn settlement(at: usize) -> Settlement {
    let (queue, unacked) = (QueueId::new(3), UnackedId::new(at as u32));
    Settlement { queue, unacked, offset: Offset::new(1_000_000 + at as u64), how: Settle::Ack }
}

fn report(rounds: usize, what: &str, batch: usize, write: &dyn Fn(&mut Writer) -> Letter) {
    let (mut sender, mut writer) = (Sender::new(true), Writer::default());
    let mut receiver = Receiver::new(true, Limits { letter: 64 << 20, unfinished: 64 << 20 });
    let letters = TURN / batch;
    let (mut best, mut bytes) = ([Duration::MAX; 2], 0);
    for _ in 0..rounds {
        let (mut there, mut back) = (Duration::ZERO, Duration::ZERO);
        bytes = 0;
        let mut left = letters;
        while left > 0 {
            // As much as fits a turn's output.
            let start = Instant::now();
            while left > 0 && sender.waiting_len() < 512 * 1024 {
                sender.put(write(&mut writer));
                left -= 1;
            }
            sender.fill();
            there += start.elapsed();
            while sender.output_len() > 0 {
                let mut slices = [IoSlice::new(&[]); 256];
                let count = sender.slices(&mut slices);
                let mut written = 0;
                for slice in &slices[..count] {
                    // What the kernel does.
                    receiver.buffer().extend_from_slice(slice);
                    written += slice.len();
                }
                bytes += written;
                let start = Instant::now();
                sender.advance(written);
                sender.fill();
                there += start.elapsed();
                let start = Instant::now();
                while let Some(letter) = receiver.next().expect("frames") {
                    black_box(read(&letter).expect("a letter"));
                }
                back += start.elapsed();
            }
        }
        best = [best[0].min(there), best[1].min(back)];
    }
    let each = |time: Duration| time.as_nanos() as f64 / (letters * batch) as f64;
    let bytes = bytes as f64 / (letters * batch) as f64;
    println!("{what:36} {:8.0} {:8.0}   {bytes:.0} bytes", each(best[0]), each(best[1]));
}
