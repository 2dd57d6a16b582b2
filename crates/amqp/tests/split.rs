//! However a session's bytes are cut by the network, the same events come out.

mod common;

use common::{Pump, Seen, client_session, consumer_session};
use leveret_amqp::frame::{Decoder, Event};

#[test]
fn every_split_point() {
    for session in [client_session(), consumer_session()] {
        let want = decode(&[&session]);
        assert!(want.len() > 10);
        for cut in 0..=session.len() {
            let (head, tail) = session.split_at(cut);
            assert_eq!(decode(&[head, tail]), want, "cut at {cut}");
        }
    }
}

#[test]
fn every_piece_length() {
    for session in [client_session(), consumer_session()] {
        let want = decode(&[&session]);
        for len in (1..40).chain([64, 100, 255, 1000]) {
            let pieces: Vec<&[u8]> = session.chunks(len).collect();
            assert_eq!(decode(&pieces), want, "pieces of {len}");
        }
    }
}

/// Two cuts anywhere in the frames around a small publish: all places within it, twice.
#[test]
fn every_pair_of_cuts() {
    let session = common::publish(1, "", "q", b"0123456789abcdef", 4096);
    let want = decode(&[&session]);
    for first in 0..=session.len() {
        for second in first..=session.len() {
            let pieces = [&session[..first], &session[first..second], &session[second..]];
            assert_eq!(decode(&pieces), want, "cuts at {first} and {second}");
        }
    }
}

/// The decoder asks for no more than one frame at once, and for a body frame's header only.
#[test]
fn bodies_are_not_awaited() {
    let body = common::frame(3, 1, &[7; 4000]);
    let mut decoder = Decoder::new(4096);
    let mut at = 0;
    for end in 1..=body.len() {
        if let Some((event, used)) = decoder.next(&body[at..end]).unwrap() {
            at += used;
            let Event::Body { part, is_last, frame_len, .. } = event else { panic!("{event:?}") };
            assert_eq!((frame_len, is_last), (4000, end == body.len()));
            assert!(part.len() <= 1);
        }
        assert!(end - at <= 7, "byte {end}: {} bytes wait", end - at);
    }
    assert_eq!(at, body.len());
}

fn decode(pieces: &[&[u8]]) -> Vec<Seen> {
    let mut pump = Pump::new(4096);
    for piece in pieces {
        pump.input(piece).unwrap();
    }
    assert!(pump.is_between_frames());
    pump.seen
}
