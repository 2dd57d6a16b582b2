use super::*;
use crate::table::Table;

fn full() -> Properties {
    let mut headers = Table::new();
    headers.set("k", "v");
    let text = |s: &str| Some(s.to_owned());
    Properties {
        content_type: text("text/plain"),
        content_encoding: text("gzip"),
        headers: Some(headers),
        delivery_mode: Some(2),
        priority: Some(9),
        correlation_id: text("c"),
        reply_to: text("r"),
        expiration: text("1000"),
        message_id: text("m"),
        timestamp: Some(1),
        kind: text("t"),
        user_id: text("guest"),
        app_id: text("a"),
        cluster_id: text("cl"),
    }
}

#[test]
fn all_fourteen() {
    let bytes = full().to_bytes();
    assert_eq!(&bytes[..2], b"\xff\xfc");
    let raw = RawProperties::new(&bytes);
    assert_eq!(raw.to_owned().unwrap(), full());
    let peek = raw.peek().unwrap();
    assert_eq!(peek.headers.unwrap().as_bytes(), b"\x01kS\0\0\0\x01v");
    assert_eq!(
        peek,
        Peek {
            delivery_mode: Some(2),
            priority: Some(9),
            expiration: Some("1000"),
            user_id: Some("guest"),
            reply_to: Some("r"),
            headers: peek.headers,
        }
    );
    for cut in 0..bytes.len() {
        let raw = RawProperties::new(&bytes[..cut]);
        assert!(raw.peek().is_err() && raw.to_owned().is_err(), "cut at {cut}");
    }
}

#[test]
fn a_header_in_bytes() {
    let header = ContentHeader::decode(b"\0\x3c\0\0\0\0\0\0\0\0\0\x10\x10\0\x02").unwrap();
    assert_eq!((header.class, header.weight, header.body_size), (60, 0, 16));
    assert_eq!(header.properties.peek().unwrap().delivery_mode, Some(2));
    assert_eq!(
        ContentHeader::decode(b"\0\x3c\0\0\0\0\0\0\0\0\0\x10\x10"),
        Err(ContentError::Truncated)
    );
    assert_eq!(RawProperties::EMPTY.peek(), Ok(Peek::default()));
}

#[test]
#[rustfmt::skip] // a table
fn refusals() {
    // properties                        error
    refused(b"\x10\0",                   ContentError::Truncated);     // delivery mode missing
    refused(b"\x00\x80\x05abcd",         ContentError::Truncated);     // message-id of five bytes
    refused(b"\0\0x",                    ContentError::TrailingBytes);
    refused(b"\0\x01\0\x01\0\x01",       ContentError::TrailingBytes); // endless flags
    refused(b"\x20\0\0\0\0\x03\x01aZ",   ContentError::Headers(TableError::UnknownKind(b'Z')));
    refused(b"\x20\0\xff\xff\xff\xff",   ContentError::Truncated);
}

#[track_caller]
fn refused(bytes: &[u8], want: ContentError) {
    let raw = RawProperties::new(bytes);
    assert_eq!(raw.peek(), Err(want));
    assert_eq!(raw.to_owned(), Err(want));
}

#[test]
fn text_that_is_not_utf8() {
    // Only what the broker must understand has to be text: a binary correlation-id passes.
    assert!(RawProperties::new(b"\x04\0\x01\xff").peek().is_ok());
    assert_eq!(RawProperties::new(b"\x02\0\x01\xff").peek().unwrap().reply_to, None);
    assert_eq!(RawProperties::new(b"\x01\0\x01\xff").peek(), Err(ContentError::BadUtf8));
    assert_eq!(RawProperties::new(b"\0\x10\x01\xff").peek(), Err(ContentError::BadUtf8));
}

/// A copy with other headers keeps all else to the byte, text that is not UTF-8 too.
#[test]
fn other_headers() {
    let mut headers = Table::new();
    headers.set("x", true);
    let headers = headers.to_bytes();
    let rewrite = |bytes, keep: bool| {
        let mut out = Vec::new();
        let headers = Some(RawTable::unchecked(&headers));
        RawProperties::new(bytes)
            .rewrite(Rewrite { headers, drop_expiration: !keep, ..Rewrite::default() }, &mut out)
            .map(|()| out)
    };
    let bytes = b"\x35\x80\0\0\0\x03\x01kV\x02\x01\xff\x0210\x01m";
    let kept = b"\x35\x80\0\0\0\x04\x01xt\x01\x02\x01\xff\x0210\x01m";
    assert_eq!(rewrite(bytes, true).unwrap(), kept);
    let dropped = b"\x34\x80\0\0\0\x04\x01xt\x01\x02\x01\xff\x01m";
    assert_eq!(rewrite(bytes, false).unwrap(), dropped);
    // Added where there were none; flags without meaning are left out.
    assert_eq!(rewrite(b"\x10\x03\x02", true).unwrap(), b"\x30\0\0\0\0\x04\x01xt\x01\x02");
    assert_eq!(rewrite(b"\x10\0", true), Err(ContentError::Truncated));
    assert_eq!(rewrite(b"\0\0x", true), Err(ContentError::TrailingBytes));

    let full = full();
    let mut out = Vec::new();
    let other = Rewrite { reply_to: Some("there"), ..Rewrite::default() };
    RawProperties::new(&full.to_bytes()).rewrite(other, &mut out).unwrap();
    let reply_to = Some("there".into());
    let want = Properties { headers: None, reply_to, ..full };
    assert_eq!(RawProperties::new(&out).to_owned().unwrap(), want);
    out.clear();
    RawProperties::EMPTY.rewrite(other, &mut out).unwrap();
    assert_eq!(out, [0, 0], "there was no name");
}
