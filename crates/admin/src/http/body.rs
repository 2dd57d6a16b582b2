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

/// What room is taken for before a document is there, by its length. What it really takes is known when it is.
const READ: u64 = 8;

/// Bytes that a request may have while memory is so short that all are stopped who publish.
const AT_ALARM_MAX: u64 = 16 << 10;

/// Bytes a second that a body moves by, at least; and if others wait for its room, whom it would help.
const LEAST_PER_S: [u64; 2] = [1 << 10, 16 << 10];

/// Reads a body of at most `max` bytes. What is given with it is `held`, with the room that it takes: to be kept for as long
/// as what was made of it.
pub(super) async fn read(
    app: &App,
    headers: &HeaderMap,
    body: Body,
    mut held: Held,
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
    if !held.take(expected.saturating_mul(READ)).await {
        return Err(Fault::unavailable(NO_ROOM));
    }
    let timeout = Duration::from_millis(node.settings.unfinished_timeout_ms);
    let mut read = BytesMut::with_capacity(usize::try_from(length.unwrap_or(0)).unwrap_or(0));
    let (mut body, mut weight) = (pin!(body), Weight::default());
    let (mut before, mut until) = (0, Instant::now() + timeout);
    loop {
        match timeout_at(until, body.frame()).await {
            Ok(None) => break,
            Ok(Some(Ok(frame))) => {
                let Ok(data) = frame.into_data() else { continue };
                if (read.len() + data.len()) as u64 > max {
                    return Err(Fault::too_large(max));
                }
                weight.add(&data);
                read.extend_from_slice(&data);
            }
            Ok(Some(Err(error))) => {
                return Err(Fault::bad(format!("the body was cut off: {error}")));
            }
            Err(_) => {
                let is_awaited = held.is_awaited();
                let least =
                    LEAST_PER_S[usize::from(is_awaited)] * timeout.as_millis() as u64 / 1000;
                if ((read.len() - before) as u64) < least {
                    return Err(Fault::too_slow(read.len(), least, timeout));
                }
                (before, until) = (read.len(), Instant::now() + timeout);
            }
        }
    }
    // With what operators type an alarm is ended: it is taken whatever the limit.
    if read.len() as u64 <= AT_ALARM_MAX {
        return Ok((read.freeze(), held));
    }
    let takes = read.len() as u64 + weight.bytes;
    // Half of the memory that the node may use: room is a quarter of it, and one document alone may have more.
    let most = node.settings.bodies.limit().saturating_mul(2);
    if takes > most {
        return Err(Fault::too_much(read.len(), takes, most));
    }
    if !held.grow(takes).await {
        return Err(Fault::unavailable(NO_ROOM));
    }
    Ok((read.freeze(), held))
}

const NO_ROOM: &str = "too many bytes of requests and messages are being received; try again later";

/// What a JSON document takes in memory beside its own length: counted while it comes, a few instructions for a byte.
#[derive(Debug, Default)]
struct Weight {
    bytes: u64,
    in_text: bool,
    is_escaped: bool,
    /// The bracket that was the last thing there: what is empty takes nothing.
    opened: Option<u8>,
}

impl Weight {
    /// A text, with what the allocator adds.
    const TEXT: u64 = 32;
    /// A list's first elements.
    const LIST: u64 = 128;
    /// An object's first eleven members, as the standard library's map keeps them.
    const OBJECT: u64 = 640;
    /// One more of either: lists double.
    const MORE: u64 = 64;
    /// What a member takes above an element, in a map of many.
    const MEMBER: u64 = 48;

    fn add(&mut self, some: &[u8]) {
        for &byte in some {
            if self.in_text {
                match byte {
                    _ if self.is_escaped => self.is_escaped = false,
                    b'\\' => self.is_escaped = true,
                    b'"' => self.in_text = false,
                    _ => {}
                }
                continue;
            }
            if byte.is_ascii_whitespace() {
                continue;
            }
            self.bytes += match (self.opened.take(), byte) {
                (Some(b'{'), b'}') | (Some(b'['), b']') | (None, _) => 0,
                (Some(b'{'), _) => Self::OBJECT,
                (Some(_), _) => Self::LIST,
            };
            match byte {
                b'"' => {
                    self.in_text = true;
                    self.bytes += Self::TEXT;
                }
                b'{' | b'[' => self.opened = Some(byte),
                b',' => self.bytes += Self::MORE,
                b':' => self.bytes += Self::MEMBER,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn what_documents_take() {
        const T: u64 = Weight::TEXT;
        const L: u64 = Weight::LIST;
        const O: u64 = Weight::OBJECT;
        const C: u64 = Weight::MORE;
        const M: u64 = Weight::MEMBER;
        let check = |text: &str, want: u64| {
            for at in 0..=text.len() {
                let mut weight = Weight::default();
                let (first, second) = text.as_bytes().split_at(at);
                weight.add(first);
                weight.add(second);
                assert_eq!(weight.bytes, want, "{text}, cut at {at}");
            }
        };
        check(r#"{"a":1,"b":[2,3]}"#,     O + 2 * T + 2 * M + C + L + C);
        check(r#"{"a,[{":"\",[{"}"#,      O + 2 * T + M);
        check(r#"[[],{},[ ]]"#,           L + 2 * C);
        check(r#"[{}]"#,                  L);
        check("\"a\\\\\"",                 T);
        check("12",                       0);
        check("",                         0);
    }
}
