use super::*;

/// A frame as bytes.
fn frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![kind];
    out.extend_from_slice(&channel.to_be_bytes());
    out.extend_from_slice(&u32::try_from(payload.len()).unwrap().to_be_bytes());
    out.extend_from_slice(payload);
    out.push(FRAME_END);
    out
}

#[test]
fn one_of_each() {
    let mut d = Decoder::new(4096);
    let method = frame(METHOD, 1, b"\0\x3c\0\x28...");
    assert_eq!(
        d.next(&method),
        Ok(Some((Event::Method { channel: 1, payload: b"\0\x3c\0\x28..." }, method.len())))
    );
    let header = frame(HEADER, 2, &[0; 14]);
    assert_eq!(d.next(&header), Ok(Some((Event::Header { channel: 2, payload: &[0; 14] }, 22))));
    let body = frame(BODY, 3, b"abc");
    let part = Event::Body { channel: 3, part: b"abc", is_last: true, frame_len: 3 };
    assert_eq!(d.next(&body), Ok(Some((part, 11))));
    let empty = Event::Body { channel: 3, part: b"", is_last: true, frame_len: 0 };
    assert_eq!(d.next(&frame(BODY, 3, b"")), Ok(Some((empty, 8))));
    assert_eq!(d.next(&frame(HEARTBEAT, 0, b"")), Ok(Some((Event::Heartbeat, 8))));
}

/// Whoever counts the bytes of a body must not find it whole before its frame is.
#[test]
fn the_last_byte_of_a_body_comes_with_the_end_of_its_frame() {
    let bytes = frame(BODY, 3, b"abc");
    for cut in 0..=bytes.len() {
        let mut d = Decoder::new(4096);
        let (mut body, mut rest) = (Vec::new(), 0);
        for upto in [cut, bytes.len()] {
            while let Some((event, used)) = d.next(&bytes[rest..upto]).unwrap() {
                let Event::Body { part, is_last, .. } = event else { panic!("{event:?}") };
                assert!(!part.is_empty(), "cut at {cut}");
                body.extend_from_slice(part);
                assert_eq!(is_last, body == b"abc", "cut at {cut}");
                let missing = (!is_last).then_some((3, 3 - body.len() as u32));
                assert_eq!(d.body_rest(), missing, "cut at {cut}");
                rest += used;
            }
        }
        assert_eq!((&body[..], rest), (&b"abc"[..], bytes.len()), "cut at {cut}");
    }
}

/// Texts recorded from RabbitMQ 3.10.8.
#[test]
#[rustfmt::skip] // a table
fn refusals() {
    let cut = |mut bytes: Vec<u8>| { *bytes.last_mut().unwrap() = 0; bytes };
    // bytes                                 explanation
    refused(&[1, 0, 1, 0, 3, 13, 64],        501, "type 1, all octets = <<>>: {frame_too_large,200000,131064}");
    refused(&[3, 0, 1, 255, 255, 255, 255],  501, "type 3, all octets = <<>>: {frame_too_large,4294967295,131064}");
    refused(&cut(frame(1, 1, b"\0\0\0\0")),  501, "type 1, all octets = <<0,0,0,0>>: {invalid_frame_end_marker,0}");
    refused(&cut(frame(3, 1, b"")),          501, "type 3, all octets = <<>>: {invalid_frame_end_marker,0}");
    refused(&frame(99, 0, b"hello"),         501, "type 99, all octets = <<\"hello\">>: unknown_frame");
    refused(&frame(99, 1, &[b'x'; 17]),      501, "type 99, first 16 octets = <<\"xxxxxxxxxxxxxxxx\">>: unknown_frame");
    refused(&frame(99, 1, b"a\"\\\n\x0b"),    501, "type 99, all octets = <<\"a\\\"\\\\\\n\\v\">>: unknown_frame");
    refused(&frame(99, 1, &[0, 1, 128, 0, 1, 128, 0, 1, 128, 0, 1, 128, 0, 1, 128, 0, 1]),
                                             501, "type 99, first 16 octets = <<0,1,128,0,1,128,0,1,128,0,1,128,0,1,128,0>>: unknown_frame");
    refused(&frame(1, 1, b""),               501, "type 1, all octets = <<>>: unknown_frame");
    refused(&frame(2, 1, &[0; 11]),          501, "type 2, all octets = <<0,0,0,0,0,0,0,0,0,0,0>>: unknown_frame");
    refused(&frame(8, 0, &[7]),              501, "type 8, all octets = <<7>>: unknown_frame");
    refused(&frame(8, 1, b""),               505, "type 8, all octets = <<>>");
}

#[track_caller]
fn refused(bytes: &[u8], code: u16, text: &str) {
    let error = Decoder::new(131_072).next(bytes).unwrap_err();
    assert_eq!((error.reply_code().code(), error.to_string().as_str()), (code, text));
}

#[test]
fn eight_bytes_too_long_are_borne() {
    let mut d = Decoder::new(4096);
    assert!(d.next(&frame(METHOD, 0, &[0; 4096])).unwrap().is_some());
    assert!(d.next(&frame(METHOD, 0, &[0; 4097])).is_err());
}

#[test]
fn protocol_headers() {
    use HeaderMatch::{Match, Mismatch, Partial};
    for (input, want) in [
        (&b""[..], Partial),
        (b"AMQ", Partial),
        (b"AMQP\0\0\x09", Partial),
        (b"AMQP\0\0\x09\x01", Match),
        (b"AMQP\0\0\x09\x01more", Match),
        (b"AMQP\x01\x01\0\x09", Match),
        (b"AMQP\x01\x01\x08\0", Mismatch),
        (b"AMQP\0\x01\0\0", Mismatch),
        (b"GET / HTTP/1.1", Mismatch),
        (b"\x16\x03\x01", Mismatch),
    ] {
        assert_eq!(ProtocolHeader::check(input), want, "{input:?}");
    }
}
