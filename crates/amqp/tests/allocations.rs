//! A count, not a benchmark: what a warm broker does per message allocates nothing.

mod common;

use std::io::IoSlice;

use bytes::Bytes;
use leveret_amqp::content::ContentHeader;
use leveret_amqp::frame::{Decoder, Event};
use leveret_amqp::method::{Method, basic};
use leveret_amqp::outbuf::OutBuf;

/// Allocations of this thread while `work` runs.
fn allocations(work: impl FnOnce()) -> u64 {
    let before = leveret_counting::allocations();
    work();
    leveret_counting::allocations() - before
}

#[test]
fn reading_a_publish_allocates_nothing() {
    let mut input = common::publish(1, "amq.topic", "a.b", b"0123456789abcdef", 4096);
    input.extend(common::publish(1, "amq.topic", "a.b", &[1; 10_000], 4096));
    let mut decoder = Decoder::new(4096);
    let mut bodies = 0;
    let counted = allocations(|| {
        for _ in 0..1000 {
            let mut at = 0;
            while let Ok(Some((event, used))) = decoder.next(&input[at..]) {
                at += used;
                match event {
                    Event::Method { payload, .. } => {
                        assert!(matches!(Method::decode(payload), Ok(Method::BasicPublish(_))));
                    }
                    Event::Header { payload, .. } => {
                        let header = ContentHeader::decode(payload).unwrap();
                        let peek = header.properties.peek().unwrap();
                        assert_eq!(peek.delivery_mode, Some(2));
                        assert!(peek.headers.unwrap().get("x-retries").unwrap().is_some());
                    }
                    Event::Body { part, .. } => bodies += part.len(),
                    Event::Heartbeat => {}
                }
            }
            assert_eq!(at, input.len());
        }
    });
    assert_eq!((counted, bodies), (0, 1000 * 10_016));
}

#[test]
fn writing_deliveries_allocates_nothing_once_warm() {
    let small = Bytes::from_static(b"0123456789abcdef");
    let large = Bytes::from(vec![7; 10_000]);
    let mut out = OutBuf::new();
    let mut turn = |tag: u64| {
        for tag in tag..tag + 64 {
            for body in [&small, &large] {
                out.put_deliver(1, "ctag", tag, false, b"\0\x01q", b"\x10\0\x02", body, 0, 4096);
            }
            out.put_method(1, &basic::Ack { delivery_tag: tag, multiple: false });
        }
        // Written as a socket would: by part, never aligned with a frame.
        while !out.is_empty() {
            let mut slices = [IoSlice::new(&[]); 64];
            let filled = out.slices(&mut slices, usize::MAX);
            let bytes: usize = slices[..filled].iter().map(|slice| slice.len()).sum();
            out.advance(bytes.div_ceil(2));
        }
    };
    turn(0);
    turn(64);
    assert_eq!(allocations(|| (2..100).for_each(|at| turn(at * 64))), 0);
}
