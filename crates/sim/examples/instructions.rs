//! What a message costs a whole node, in instructions: bytes in, bytes out, with confirms and acks. A
//! count is the same on a busy machine, so a percent of difference between two versions can be seen.
//!
//! `cargo build --profile fast -p leveret-sim --example instructions` and, twice, with different rounds
//! `valgrind --tool=callgrind --callgrind-out-file=/dev/null target/fast/examples/instructions 2`:
//! the difference of the two totals, by the difference of the messages, is what one message costs.

#![allow(clippy::print_stdout, reason = "the result of the program")]

#[path = "../tests/client/mod.rs"]
mod client;

use leveret_amqp::method::confirm;
use leveret_session::Settings;
use leveret_sim::Node;

use client::{call, consume, declare, log_in, publish, read, send, socket};

/// Messages per round, small ones: everything is dear that is done per message.
const MESSAGES: usize = 10_000;

fn main() {
    let rounds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1_usize);
    let mut node = Node::new(Settings::default());
    let publisher = log_in(&mut node, 1);
    let consumer = log_in(&mut node, 2);
    declare(&mut node, publisher, "q");
    call(&mut node, publisher, &confirm::Select { no_wait: false });
    consume(&mut node, consumer, "q", false);
    let wire = publish("", "q", &[b'x'; 16]).repeat(MESSAGES);
    let mut tag = 0_u64;
    for _ in 0..rounds {
        send(&mut node, publisher, &wire);
        assert!(read(&mut node, consumer) > 0, "deliveries");
        assert!(read(&mut node, publisher) > 0, "confirms");
        for _ in 0..MESSAGES {
            tag += 1;
            let to_server = &mut socket(&mut node, consumer).to_server;
            to_server.extend([1, 0, 1, 0, 0, 0, 13, 0, 60, 0, 80]);
            to_server.extend(tag.to_be_bytes());
            to_server.extend([0, 0xce]);
        }
        send(&mut node, consumer, &[]);
    }
    println!("{} messages", rounds * MESSAGES);
}
