use super::*;
use crate::table::RawTable;

#[test]
fn a_publish_in_bytes() {
    let publish = basic::Publish {
        ticket: 0,
        exchange: "e",
        routing_key: "key",
        mandatory: true,
        immediate: false,
    };
    let mut out = Vec::new();
    publish.encode(&mut out);
    assert_eq!(out, b"\x00\x3c\x00\x28\x00\x00\x01e\x03key\x01");
    let method = Method::decode(&out).unwrap();
    assert_eq!(method, publish.into());
    assert_eq!((method.name(), method.id()), ("basic.publish", (60, 40)));
    assert!(method.has_content() && !method.is_synchronous());
}

#[test]
fn bits_after_bits_and_tables() {
    let declare = queue::Declare {
        queue: "q",
        durable: true,
        no_wait: true,
        arguments: RawTable::new(b"\x01at\x01").unwrap(),
        ..Default::default()
    };
    let mut out = Vec::new();
    declare.encode(&mut out);
    assert_eq!(out, b"\x00\x32\x00\x0a\x00\x00\x01q\x12\x00\x00\x00\x04\x01at\x01");
    assert_eq!(Method::decode(&out), Ok(Method::QueueDeclare(declare)));
}

#[track_caller]
fn refused(payload: &[u8], want: MethodError, code: ReplyCode, text: &str) {
    let error = Method::decode(payload).unwrap_err();
    assert_eq!(error, want);
    assert_eq!((error.reply_code(), error.reply_text(payload).as_str()), (code, text));
}

#[test]
#[rustfmt::skip] // a table
fn refusals() {
    use ReplyCode::{CommandInvalid, FrameError, SyntaxError};
    // payload                               error                                code            text
    refused(b"\x00\x63\x00\x01",             MethodError::UnknownClass(99),       CommandInvalid, "unknown class 99");
    refused(b"\x00\x32\x00\x63",             MethodError::UnknownMethod(50, 99),  CommandInvalid, "unknown method 99 of class 50");
    refused(b"\x00\x32\x00\x0a\x00\x00\x20abc", MethodError::Truncated,           FrameError,     "cannot decode <<0,0,32,97,98,99>>");
    refused(b"\x00\x5a\x00\x0ajunk",         MethodError::TrailingBytes,          FrameError,     "cannot decode <<106,117,110,107>>");
    refused(b"\x00\x32\x00\x1e\x00\x00\x01\xff\x00", MethodError::BadUtf8,        FrameError,     "Malformed UTF-8 in shortstr");
    refused(b"\x00\x32\x00\x0a\x00\x00\x00\x00\x00\x00\x00\x03\x01aZ",
        MethodError::Table(TableError::UnknownKind(b'Z')),                        SyntaxError,    "malformed table argument: unknown field type 'Z'");
}

#[test]
fn reply_texts() {
    assert_eq!(ReplyCode::NotFound.text("no queue 'q'"), "NOT_FOUND - no queue 'q'");
    let long = ReplyCode::FrameError.text(&"200,".repeat(100));
    assert_eq!((long.len(), &long[..18], &long[249..]), (255, "FRAME_ERROR - 200,", ",20..."));
    for code in 0..600 {
        let reply = ReplyCode::from_code(code);
        assert!(reply.is_none_or(|reply| reply.code() == code));
    }
}
