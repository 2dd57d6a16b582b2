use std::cell::RefCell;

use super::*;
use crate::method::basic;

/// Everything the buffer holds, through its slices.
fn joined(out: &OutBuf) -> Vec<u8> {
    let mut slices = [IoSlice::new(&[]); 1024];
    let filled = out.slices(&mut slices, usize::MAX);
    slices[..filled].iter().flat_map(|slice| slice.iter().copied()).collect()
}

fn body(len: usize) -> Bytes {
    (0..len).map(|at| at as u8).collect::<Vec<u8>>().into()
}

const NAMES: &[u8] = b"\x01e\x03key";
const PROPERTIES: &[u8] = b"\x10\0\x02";

fn deliver(out: &mut OutBuf, body: &Bytes, frame_max: u32) {
    out.put_deliver(5, "ctag", 77, true, NAMES, PROPERTIES, body, 0, frame_max);
}

/// The same by the general functions.
fn deliver_slowly(out: &mut OutBuf, body: &Bytes, frame_max: u32) {
    let method = basic::Deliver {
        consumer_tag: "ctag",
        delivery_tag: 77,
        redelivered: true,
        exchange: "e",
        routing_key: "key",
    };
    out.put_method(5, &method);
    out.put_header(5, 60, body.len() as u64, PROPERTIES);
    out.put_body(5, body, frame_max);
}

/// What is detached is in memory of its own, once, and says the same.
#[test]
fn detached_bodies_pin_nothing() {
    let block = body(100_000);
    let (small, large) = (block.slice(..5000), block.slice(5000..60_000));
    let mut out = OutBuf::new();
    for one in [&small, &large, &small] {
        deliver(&mut out, one, 131_072);
    }
    let before = joined(&out);
    let is_part =
        |out: &OutBuf, at: usize| block.as_ptr_range().contains(&out.borrowed[at].body.as_ptr());
    out.detach(32 << 10, |body| body);
    assert_eq!(joined(&out), before);
    assert_eq!(out.shared_len(), 55_000);
    assert_eq!([0, 1, 2].map(|at| is_part(&out, at)), [false, true, false]);
    let copies = [0, 2].map(|at| out.borrowed[at].body.as_ptr());
    out.advance(5100);
    deliver(&mut out, &small, 131_072);
    out.detach(32 << 10, |_| panic!("nothing long is new"));
    assert_eq!(out.borrowed[1].body.as_ptr(), copies[1], "not copied again");
    assert!(!is_part(&out, 2));
    assert!(joined(&out).starts_with(&before[5100..]));
    assert_eq!(out.shared_len(), 55_000);
    out.advance(10_000);
    assert!((45_000..46_000).contains(&out.shared_len()));
    out.advance(60_000);
    assert_eq!(out.shared_len(), 0);
}

/// Whatever its frames, a long body is counted once, and all of it until its last byte is written.
#[test]
fn long_bodies_are_shared_whole() {
    let long = body(100_000);
    for frame_max in [0, 30_000, 40_000] {
        let (mut out, shared) = (OutBuf::new(), RefCell::new(Vec::new()));
        let share = |body: Bytes| {
            shared.borrow_mut().push(body.len());
            // At the same place, as what counts it is.
            Bytes::from_owner(body)
        };
        deliver(&mut out, &long, frame_max);
        out.advance(60_000);
        let before = joined(&out);
        out.detach(32 << 10, share);
        out.detach(32 << 10, share);
        assert!(joined(&out) == before, "in frames of {frame_max}");
        assert_eq!(*shared.borrow(), [100_000], "in frames of {frame_max}");
        out.advance(before.len() - 2);
        assert_eq!((out.shared_len(), long.is_unique()), (1, false));
        out.advance(1);
        assert_eq!((out.shared_len(), long.is_unique()), (0, true));
    }
}

#[test]
fn deliver_is_three_frames() {
    for len in [0, 1, 16, BORROW_MIN - 1, BORROW_MIN, 5000, 20_000] {
        for frame_max in [0, 9, 100, 4096, 131_072] {
            if len > 5000 && frame_max == 9 {
                continue;
            }
            let (mut fast, mut slow) = (OutBuf::new(), OutBuf::new());
            deliver(&mut fast, &body(len), frame_max);
            deliver_slowly(&mut slow, &body(len), frame_max);
            assert_eq!(fast.len(), slow.len());
            assert!(fast.take_rest() == slow.take_rest(), "{len} bytes in frames of {frame_max}");
        }
    }
}

#[test]
fn large_bodies_are_borrowed() {
    let mut out = OutBuf::new();
    let large = body(BORROW_MIN);
    deliver(&mut out, &large, 131_072);
    let mut slices = [IoSlice::new(&[]); 4];
    assert_eq!(out.slices(&mut slices, usize::MAX), 3);
    assert!(std::ptr::eq(slices[1].as_ptr(), large.as_ptr()));
    assert_eq!(slices[2].len(), 1);
}

#[test]
fn advance_by_every_step() {
    let mut whole = OutBuf::new();
    let fill = |out: &mut OutBuf| {
        deliver(out, &body(3), 4096);
        deliver(out, &body(5000), 4096);
        out.put_heartbeat();
    };
    fill(&mut whole);
    let bytes = joined(&whole);
    assert_eq!(bytes.len(), whole.len());
    for step in [1, 2, 3, 7, 100, 2047, 2048, 4099, bytes.len()] {
        let mut out = OutBuf::new();
        fill(&mut out);
        let mut at = 0;
        while !out.is_empty() {
            assert!(joined(&out) == bytes[at..], "step {step} at {at}");
            out.advance(step);
            at += step;
        }
        assert_eq!(out.len(), 0);
    }
}

#[test]
fn what_is_written_leaves_memory() {
    let mut out = OutBuf::new();
    let large = body(BORROW_MIN);
    // Never empty, yet not growing: 100 bytes stay behind each time.
    for _ in 0..10_000 {
        deliver(&mut out, &body(1000), 4096);
        deliver(&mut out, &large, 4096);
        if out.len() > 100_000 {
            let bytes = joined(&out);
            let written = bytes.len() - 100;
            out.advance(written);
            assert!(joined(&out) == bytes[written..]);
        }
    }
    assert!(out.capacity() < 1_000_000, "{}", out.capacity());
}

/// A long output is many chunks, whatever it is made of, and reads as if it were one.
#[test]
fn chunks_join() {
    let lens = [0, 1, 1000, BORROW_MIN - 1, BORROW_MIN, 5000, 70_000, 16];
    let (mut out, mut whole) = (OutBuf::new(), Vec::new());
    let mut put = |write: &dyn Fn(&mut OutBuf)| {
        let mut one = OutBuf::new();
        write(&mut one);
        whole.extend_from_slice(&one.take_rest());
        write(&mut out);
    };
    for round in 0..60 {
        for len in lens {
            put(&|out| deliver(out, &body(len + round), 0));
        }
        put(&|out| out.put_bytes(&body(200 * 1024)));
        put(&OutBuf::put_heartbeat);
    }
    assert!(out.full.len() > 60);
    assert_eq!(out.len(), whole.len());
    let mut written = 0;
    for step in (1..).map(|n: usize| n * n * 37 % 300_000) {
        let mut slices = [IoSlice::new(&[]); 7];
        let filled = out.slices(&mut slices, usize::MAX);
        if filled == 0 {
            break;
        }
        let next: Vec<u8> = slices[..filled].iter().flat_map(|s| s.iter().copied()).collect();
        assert!(whole[written..].starts_with(&next), "at {written}");
        let step = step.min(next.len());
        out.advance(step);
        written += step;
    }
    assert_eq!((written, out.len()), (whole.len(), 0));
    assert!(out.capacity() < (SPARE_MAX + 6) * CHUNK, "{}", out.capacity());
}

#[test]
fn few_slots() {
    let mut out = OutBuf::new();
    deliver(&mut out, &body(5000), 0);
    deliver(&mut out, &body(5000), 0);
    let mut slices = [IoSlice::new(&[]); 2];
    assert_eq!(out.slices(&mut slices, usize::MAX), 2);
    assert_eq!(out.slices(&mut [], usize::MAX), 0);
}

/// However the output is cut by a number of bytes, what comes is what is next, and as many.
#[test]
fn few_bytes() {
    let mut out = OutBuf::new();
    deliver(&mut out, &body(5000), 4096);
    deliver(&mut out, &body(10), 0);
    let whole = joined(&out);
    for most in 0..=whole.len() + 1 {
        let mut slices = [IoSlice::new(&[]); 16];
        let filled = out.slices(&mut slices, most);
        let some: Vec<u8> = slices[..filled].iter().flat_map(|it| it.iter().copied()).collect();
        assert_eq!(some, whole[..most.min(whole.len())], "{most}");
        assert!(slices[..filled].iter().all(|it| !it.is_empty()));
    }
}
