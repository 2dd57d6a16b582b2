//! A peer's bytes, read at once and in pieces.
#![no_main]

use leveret_amqp::content::ContentHeader;
use leveret_amqp::frame::{Decoder, Event, FrameError};
use leveret_amqp::method::Method;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&seed, bytes)) = data.split_first() else {
        return;
    };
    let whole = read(bytes, bytes.len().max(1));
    let pieces = read(bytes, usize::from(seed).max(1));
    assert_eq!(whole.seen, pieces.seen);
    // The snippet in an error's text may be of the last piece only.
    let code = |end: Option<FrameError>| end.map(|error| std::mem::discriminant(&error));
    assert_eq!(code(whole.end), code(pieces.end));
});

struct Outcome {
    /// One entry per frame, body parts joined.
    seen: Vec<(u8, u16, Vec<u8>)>,
    end: Option<FrameError>,
}

fn read(bytes: &[u8], piece: usize) -> Outcome {
    let mut decoder = Decoder::new(4096);
    let (mut buffer, mut body, mut seen) = (Vec::new(), Vec::new(), Vec::new());
    for piece in bytes.chunks(piece) {
        buffer.extend_from_slice(piece);
        let mut at = 0;
        loop {
            match decoder.next(&buffer[at..]) {
                Ok(None) => break,
                Err(error) => return Outcome { seen, end: Some(error) },
                Ok(Some((event, used))) => {
                    assert!(used > 0);
                    at += used;
                    match event {
                        Event::Method { channel, payload } => {
                            method(payload);
                            seen.push((1, channel, payload.to_vec()));
                        }
                        Event::Header { channel, payload } => {
                            if let Ok(header) = ContentHeader::decode(payload) {
                                let _ = header.properties.peek();
                            }
                            seen.push((2, channel, payload.to_vec()));
                        }
                        Event::Heartbeat => seen.push((8, 0, Vec::new())),
                        Event::Body { channel, part, is_last, frame_len } => {
                            body.extend_from_slice(part);
                            let rest = (!is_last).then(|| (channel, frame_len - body.len() as u32));
                            assert_eq!(decoder.body_rest(), rest);
                            if is_last {
                                assert_eq!(body.len(), frame_len as usize);
                                seen.push((3, channel, std::mem::take(&mut body)));
                            }
                        }
                    }
                }
            }
        }
        buffer.drain(..at);
        assert!(buffer.len() < 4096 + 8);
    }
    Outcome { seen, end: None }
}

fn method(payload: &[u8]) {
    match Method::decode(payload) {
        Ok(method) => {
            let mut out = Vec::new();
            method.encode(&mut out);
            assert_eq!(out.len(), payload.len());
            assert_eq!(Method::decode(&out), Ok(method));
        }
        Err(error) => assert!(!error.reply_text(payload).is_empty()),
    }
}
