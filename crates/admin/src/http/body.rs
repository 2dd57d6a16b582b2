//! The body of a request: its length, what it may become when it is read, and that it moves.

use std::pin::pin;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, header};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use tokio::time::{Instant, timeout_at};

use super::App;
use super::answer::Fault;
use crate::room::Held;

/// What a document takes when it is read, by its length: definitions take five or six times theirs.
const READ: u64 = 8;

/// Bytes of memory for each value of a document, with its name.
const VALUE: usize = 96;

/// What its values may come to, by its length: short entries of ordinary definitions are counted with 10 to 15 times theirs,
/// a document of empty lists with 60.
const VALUES_MAX: usize = 20;

/// Documents that are shorter may have any values.
const PLAIN_BYTES: usize = 1 << 20;

/// Bytes that a request may have while memory is so short that all are stopped who publish.
const AT_ALARM_MAX: u64 = 16 << 10;

/// Bytes a second that a body moves by, at least; and if others wait for its room.
const LEAST_PER_S: [u64; 2] = [1 << 10, 16 << 10];

/// Reads a body of at most `max` bytes. What is given with it is to be kept for as long as what was made of it.
pub(super) async fn read(
    app: &App,
    headers: &HeaderMap,
    body: Body,
) -> Result<(Bytes, Held), Fault> {
    let node = &app.ops.node;
    let max = app.options.max_body_size.get();
    let length = headers.get(header::CONTENT_LENGTH).and_then(|it| it.to_str().ok()?.parse().ok());
    // One that does not say how long it is may be as long as any.
    let chunked = headers.contains_key(header::TRANSFER_ENCODING);
    let expected = length.unwrap_or(if chunked { max } else { 0 });
    // What is deleted names itself in the path: an alarm never keeps an operator from that.
    if expected > AT_ALARM_MAX && node.alarms.alarm().memory && node.alarms.alarm().stops_all {
        return Err(Fault::unavailable(format!(
            "low on memory: requests with more than {AT_ALARM_MAX} bytes are not taken until the memory alarm is over"
        )));
    }
    if expected > max {
        return Err(Fault::too_large(max));
    }
    let mut held = Held::nothing(node);
    if !held.take(expected.saturating_mul(READ)).await {
        return Err(Fault::unavailable(
            "too many bytes of requests and messages are being received; try again later",
        ));
    }
    let timeout = Duration::from_millis(node.settings.unfinished_timeout_ms);
    let mut read = BytesMut::with_capacity(usize::try_from(length.unwrap_or(0)).unwrap_or(0));
    let mut body = pin!(body);
    let (mut before, mut until) = (0, Instant::now() + timeout);
    loop {
        match timeout_at(until, body.frame()).await {
            Ok(None) => break,
            Ok(Some(Ok(frame))) => {
                let Ok(data) = frame.into_data() else { continue };
                if (read.len() + data.len()) as u64 > max {
                    return Err(Fault::too_large(max));
                }
                read.extend_from_slice(&data);
            }
            Ok(Some(Err(error))) => {
                return Err(Fault::bad(format!("the body was cut off: {error}")));
            }
            Err(_) => {
                let is_awaited = node.settings.bodies.waiting() > 0;
                let least =
                    LEAST_PER_S[usize::from(is_awaited)] * timeout.as_millis() as u64 / 1000;
                if ((read.len() - before) as u64) < least {
                    return Err(Fault::too_slow(read.len(), least, timeout));
                }
                (before, until) = (read.len(), Instant::now() + timeout);
            }
        }
    }
    held.keep((read.len() as u64).saturating_mul(READ));
    let read = read.freeze();
    if read.len() > PLAIN_BYTES && has_too_many_values(&read) {
        return Err(Fault::bad("the document has too many values for its length"));
    }
    Ok((read, held))
}

/// Whether a document is made of little else than values, which take far more than their length.
fn has_too_many_values(document: &[u8]) -> bool {
    memory(document) > document.len() * VALUES_MAX
}

/// What a JSON document takes in memory, roughly.
fn memory(document: &[u8]) -> usize {
    let (mut values, mut in_text, mut is_escaped) = (0_usize, false, false);
    for &byte in document {
        match (in_text, byte) {
            (true, _) if is_escaped => is_escaped = false,
            (true, b'\\') => is_escaped = true,
            (_, b'"') => in_text = !in_text,
            (false, b',' | b'[' | b'{') => values += 1,
            _ => {}
        }
    }
    document.len() + values * VALUE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn what_documents_take() {
        let check = |text: &str, values| assert_eq!(memory(text.as_bytes()), text.len() + values * VALUE, "{text}");
        check(r#"{"a":1,"b":[2,3]}"#,     4);
        check(r#"{"a,[{":"\",[{"}"#,      1);
        check(r#"[[],[],[]]"#,            6);
        check("",                         0);
    }

    #[test]
    #[rustfmt::skip] // a table
    fn ordinary_definitions_are_taken() {
        let check = |entry: &str, want| {
            let document = [entry; 1000].join(",");
            assert_eq!(has_too_many_values(document.as_bytes()), want, "{entry}");
        };
        check(r#"{"name":"q-1","vhost":"/","durable":true,"auto_delete":false,"arguments":{}}"#, false);
        check(r#"{"name":"q1","vhost":"/"}"#,                                                    false);
        check(r#"{"a":1}"#,                                                                      true);
        check("[]",                                                                              true);
    }
}
