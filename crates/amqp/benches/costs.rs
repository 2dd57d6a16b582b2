//! Nanoseconds per operation of the hot paths: `cargo bench -p leveret-amqp`. The best of several
//! rounds, as the machine is shared.
#![allow(clippy::print_stdout, reason = "a report")]

use std::hint::black_box;
use std::time::Instant;

use bytes::Bytes;
use leveret_amqp::content::{ContentHeader, RawProperties};
use leveret_amqp::frame::{Decoder, Event};
use leveret_amqp::method::{Method, basic};
use leveret_amqp::outbuf::OutBuf;
use leveret_amqp::table::Table;

const TURN: u64 = 256;

fn main() {
    // `cargo test --benches` runs this too.
    let rounds = if std::env::args().any(|arg| arg == "--bench") { 2000 } else { 1 };
    let names = b"\x09amq.topic\x0corders.eu.de";
    for len in [0, 16, 256, 1024, 2047, 2048, 4096, 16_384] {
        let body = Bytes::from(vec![7; len]);
        let mut out = OutBuf::new();
        report(rounds, &format!("put_deliver, {len} byte body"), || {
            for tag in 0..TURN {
                let properties = black_box(&b"\x10\0\x02"[..]);
                out.put_deliver(1, "ctag-1", tag, false, names, properties, &body, 0, 131_072);
            }
            let _ = black_box(&out).len();
            out.clear();
        });
    }
    let input = publishes(b"\x10\0\x02");
    report(rounds, "decode publish, header, 16 byte body", || read(&input));
    let mut headers = Table::new();
    headers.set("x-type", "order");
    headers.set("x-retries", 3);
    let mut properties = b"\x30\0".to_vec();
    headers.encode(&mut properties);
    properties.push(2);
    let input = publishes(&properties);
    report(rounds, "the same with two headers", || read(&input));
    report(rounds, "peek with two headers", || {
        for _ in 0..TURN {
            let _ = black_box(RawProperties::new(black_box(&properties)).peek());
        }
    });
    let mut acks = OutBuf::new();
    for delivery_tag in 0..TURN {
        acks.put_method(1, &basic::Ack { delivery_tag, multiple: false });
    }
    let acks = acks.take_rest();
    report(rounds, "decode ack", || read(&acks));
    let mut out = OutBuf::new();
    report(rounds, "put_method ack", || {
        for delivery_tag in 0..TURN {
            out.put_method(1, &basic::Ack { delivery_tag, multiple: false });
        }
        let _ = black_box(&out).len();
        out.clear();
    });
}

fn publishes(properties: &[u8]) -> Vec<u8> {
    let mut out = OutBuf::new();
    for _ in 0..TURN {
        let publish = basic::Publish {
            exchange: "amq.topic",
            routing_key: "orders.eu.de",
            ..Default::default()
        };
        out.put_method(1, &publish);
        out.put_header(1, 60, 16, properties);
        out.put_body(1, &Bytes::from_static(b"0123456789abcdef"), 131_072);
    }
    out.take_rest()
}

fn read(mut input: &[u8]) {
    let mut decoder = Decoder::new(131_072);
    while let Ok(Some((event, used))) = decoder.next(input) {
        input = input.get(used..).unwrap_or_default();
        match event {
            Event::Method { payload, .. } => {
                let _ = black_box(Method::decode(payload));
            }
            Event::Header { payload, .. } => {
                let header = ContentHeader::decode(payload);
                let _ = black_box(header.map(|header| header.properties.peek()));
            }
            other => {
                black_box(other);
            }
        }
    }
}

fn report(rounds: u32, what: &str, mut turn: impl FnMut()) {
    let mut best = u128::MAX;
    for _ in 0..rounds {
        let start = Instant::now();
        turn();
        best = best.min(start.elapsed().as_nanos());
    }
    println!("{what:40} {:6.1} ns", best as f64 / TURN as f64);
}
