//! Why a channel or a connection is closed, with RabbitMQ's words.
//!
//! Clients look for these texts: changing one is a change of the interface. Texts of declarations,
//! bindings, permissions and exclusive access come from [`leveret_topology`]; all others are here.

use std::borrow::Cow;

use leveret_amqp::content::ContentError;
use leveret_amqp::frame::FrameError as BadFrame;
use leveret_amqp::method::MethodError;
use leveret_amqp::reply::ReplyCode;
use leveret_topology::rights::Question;

/// A mistake of the peer: it ends in `channel.close` or, when the code is hard or the channel is 0, in
/// `connection.close`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) code: ReplyCode,
    /// Without the code's name.
    pub(crate) text: Cow<'static, str>,
    /// Class and method id of what failed, when it is not the method at hand.
    pub(crate) method: Option<(u16, u16)>,
    /// It is not known yet whether it is a mistake: this has to be answered first, by who keeps the user.
    pub(crate) undecided: Option<Box<Question>>,
}

/// The longest `reply-text`, in bytes.
const TEXT_MAX: usize = 255;

impl Fault {
    pub(crate) fn new(code: ReplyCode, text: impl Into<Cow<'static, str>>) -> Self {
        Self { code, text: text.into(), method: None, undecided: None }
    }

    /// Whether the user may is asked first.
    pub(crate) fn undecided(question: Question) -> Self {
        let undecided = Some(Box::new(question));
        Self { undecided, ..Self::new(AccessRefused, "nobody says whether the user may") }
    }

    /// Not caused by a method: class and method are 0.
    pub(crate) fn without_method(mut self) -> Self {
        self.method = Some((0, 0));
        self
    }

    /// What goes on the wire: `NOT_FOUND - no queue 'q' in vhost '/'`, cut as RabbitMQ cuts it.
    pub(crate) fn reply_text(&self) -> String {
        let mut text = format!("{} - {}", self.code.name(), self.text);
        if text.len() > TEXT_MAX {
            let mut end = TEXT_MAX - 3;
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            text.truncate(end);
            text.push_str("...");
        }
        text
    }
}

/// `Err` of an error of the topology: each has a code and a text.
macro_rules! from_topology {
    ($($error:ident),*) => {$(
        impl From<leveret_topology::error::$error> for Fault {
            fn from(error: leveret_topology::error::$error) -> Self {
                Self::new(error.reply_code(), error.to_string())
            }
        }
    )*};
}
from_topology!(DeclareError, Locked, NotFound, DeleteError, BindError, AccessError);

use ReplyCode::{
    AccessRefused, ChannelError, CommandInvalid, FrameError, NotAllowed, NotFound, NotImplemented,
    PreconditionFailed, ResourceError, SyntaxError, UnexpectedFrame,
};

fn fault(code: ReplyCode, text: impl Into<Cow<'static, str>>) -> Fault {
    Fault::new(code, text)
}

// Frames and their order.

pub(crate) fn bad_frame(why: &BadFrame) -> Fault {
    fault(why.reply_code(), why.to_string()).without_method()
}

pub(crate) fn bad_method(why: &MethodError, payload: &[u8]) -> Fault {
    let mut fault = fault(why.reply_code(), why.reply_text(payload));
    if matches!(why, MethodError::UnknownClass(_) | MethodError::UnknownMethod(..)) {
        fault.method = Some((0, 0));
    }
    fault
}

pub(crate) fn expected_method_frame() -> Fault {
    fault(UnexpectedFrame, "expected method frame, got non method frame instead").without_method()
}

pub(crate) fn expected_header() -> Fault {
    fault(
        UnexpectedFrame,
        "expected content header for class 60, got non content header frame instead",
    )
}

pub(crate) fn header_of_other_class(class: u16) -> Fault {
    fault(
        UnexpectedFrame,
        format!("expected content header for class 60, got one for class {class} instead"),
    )
}

pub(crate) fn expected_body() -> Fault {
    fault(UnexpectedFrame, "expected content body, got non content body frame instead")
}

pub(crate) fn body_too_long() -> Fault {
    fault(FrameError, "content body frame exceeds remaining content size")
}

/// A claim no configuration allows.
pub(crate) fn claims_too_much(size: u64) -> Fault {
    fault(
        FrameError,
        format!("content body size {size} exceeds maximum allowed size {BODY_SIZE_LIMIT}"),
    )
}

/// The longest body RabbitMQ takes whatever is configured, in bytes.
pub(crate) const BODY_SIZE_LIMIT: u64 = 536_870_912;

/// A frame of that type where there can be none; `payload` is shown as far as RabbitMQ shows it.
pub(crate) fn unexpected_frame(kind: u8, payload: &[u8]) -> Fault {
    let (how_much, shown) = match payload.get(..16) {
        Some(first) if payload.len() > 16 => ("first 16", first),
        _ => ("all", payload),
    };
    fault(UnexpectedFrame, format!("type {kind}, {how_much} octets = {}", binary(shown)))
        .without_method()
}

/// Bytes as Erlang prints them: `<<"text">>` or `<<0,1,2>>`.
pub(crate) fn binary(bytes: &[u8]) -> String {
    let is_text = |&b: &u8| (32..127).contains(&b) || (7..=13).contains(&b) || b == 27;
    if bytes.is_empty() {
        return "<<>>".to_owned();
    }
    if bytes.iter().all(is_text) {
        return format!("<<{:?}>>", String::from_utf8_lossy(bytes));
    }
    let list: Vec<String> = bytes.iter().map(u8::to_string).collect();
    format!("<<{}>>", list.join(","))
}

// Connections.

pub(crate) fn unexpected_in_state(state: &str) -> Fault {
    fault(ChannelError, format!("unexpected method in connection state {state}"))
}

pub(crate) fn unknown_mechanism(name: &str) -> Fault {
    fault(CommandInvalid, format!("unknown authentication mechanism '{name}'"))
}

/// RabbitMQ shows the response, which may hold a password.
pub(crate) fn invalid_response() -> Fault {
    fault(SyntaxError, "response invalid")
}

pub(crate) fn amqplain_incomplete() -> Fault {
    fault(SyntaxError, "AMQPLAIN auth info is missing LOGIN or PASSWORD field")
}

pub(crate) fn amqplain_type() -> Fault {
    fault(SyntaxError, "AMQPLAIN auth info uses unsupported type for LOGIN or PASSWORD field")
}

pub(crate) fn login_refused(mechanism: &str) -> Fault {
    fault(
        AccessRefused,
        format!(
            "Login was refused using authentication mechanism {mechanism}. For details see the \
             broker logfile."
        ),
    )
    .without_method()
}

pub(crate) fn too_low(field: &str, value: u64, min: u64) -> Fault {
    negotiation(field, value, "lower", "minimum", min)
}

/// For values above the server's; `value` 0 means no limit to the client.
pub(crate) fn too_high(field: &str, value: u64, max: u64) -> Fault {
    negotiation(field, value, "higher", "maximum", max)
}

fn negotiation(field: &str, value: u64, than: &str, bound: &str, limit: u64) -> Fault {
    let detail = if value == 0 { " (no limit)" } else { "" };
    let mut fault = fault(
        NotAllowed,
        format!(
            "negotiated {field} = {value}{detail} is {than} than the {bound} allowed value ({limit})"
        ),
    );
    fault.method = Some((10, 30));
    fault
}

pub(crate) fn no_vhost(vhost: &str) -> Fault {
    fault(NotAllowed, format!("vhost {vhost} not found"))
}

pub(crate) fn credential_expired() -> Fault {
    fault(ReplyCode::ConnectionForced, "credential expired")
}

pub(crate) fn secret_refused() -> Fault {
    fault(NotAllowed, "New secret was refused by one of the backends")
}

pub(crate) fn too_many_channels(count: usize, max: u16) -> Fault {
    fault(
        NotAllowed,
        format!(
            "number of channels opened ({count}) has reached the negotiated channel_max ({max})"
        ),
    )
    .without_method()
}

/// Something that there is no memory for.
pub(crate) fn no_memory_for(what: &str, bytes: u64) -> Fault {
    fault(
        PreconditionFailed,
        format!(
            "low on memory: {what} that takes {bytes} bytes is not made; try again when the memory alarm is over"
        ),
    )
}

/// Bodies on several channels that are more than a connection may have at once.
pub(crate) fn too_much_unfinished(bodies: u32, bytes: u64, limit: u64) -> Fault {
    fault(
        ResourceError,
        format!(
            "{bodies} bodies of {bytes} bytes are begun on channels of this connection, at most {limit} may be: end some \
             before others begin"
        ),
    )
}

/// A transaction that keeps memory while that is low.
pub(crate) fn not_committed(bytes: u64, timeout_ms: u64) -> Fault {
    let seconds = timeout_ms.div_ceil(1000);
    let text = format!(
        "low on memory: a transaction of {bytes} bytes was not committed within {seconds} s (unfinished_timeout)"
    );
    fault(ResourceError, text)
}

/// A body, or (on channel 0) a frame, that does not come forward.
pub(crate) fn stands_still(
    channel: u16,
    received: u64,
    size: u64,
    least: u64,
    timeout_ms: u64,
) -> Fault {
    let seconds = timeout_ms.div_ceil(1000);
    let what = match channel {
        0 => format!("a frame of which {received} bytes came"),
        _ => format!("a body on channel {channel} of which {received} of {size} bytes came"),
    };
    let text =
        format!("{what} stands still: fewer than {least} more in {seconds} s (unfinished_timeout)");
    fault(ResourceError, text)
}

// Channels.

pub(crate) fn second_open() -> Fault {
    fault(ChannelError, "second 'channel.open' seen")
}

pub(crate) fn expected_open() -> Fault {
    fault(ChannelError, "expected 'channel.open'")
}

pub(crate) fn unimplemented_method() -> Fault {
    fault(CommandInvalid, "unimplemented method")
}

pub(crate) fn flow_inactive() -> Fault {
    fault(NotImplemented, "active=false")
}

pub(crate) fn no_previous_queue() -> Fault {
    fault(NotFound, "no previously declared queue")
}

pub(crate) fn no_exchange(name: &str, vhost: &str) -> Fault {
    fault(NotFound, format!("no exchange '{name}' in vhost '{vhost}'"))
}

pub(crate) fn no_queue(name: &str, vhost: &str) -> Fault {
    fault(NotFound, format!("no queue '{name}' in vhost '{vhost}'"))
}

pub(crate) fn default_exchange() -> Fault {
    fault(AccessRefused, "operation not permitted on the default exchange")
}

pub(crate) fn reserved_name(kind: &str, name: &str) -> Fault {
    fault(AccessRefused, format!("{kind} name '{name}' contains reserved prefix 'amq.*'"))
}

pub(crate) fn prefix_too_long(prefix: &str) -> Fault {
    fault(PreconditionFailed, format!("Queue name prefix '{prefix}' exceeds the 64-byte limit"))
}

pub(crate) fn system_exchange(name: &str, vhost: &str) -> Fault {
    fault(
        AccessRefused,
        format!("deletion of system exchange '{name}' in vhost '{vhost}' not allowed"),
    )
}

// Publishing.

pub(crate) fn immediate() -> Fault {
    fault(NotImplemented, "immediate=true")
}

pub(crate) fn message_too_large(size: u64, max: u64) -> Fault {
    let which = if max == BODY_SIZE_LIMIT { "max size" } else { "configured max size" };
    fault(PreconditionFailed, format!("message size {size} is larger than {which} {max}"))
}

pub(crate) fn route_too_costly(name: &str, vhost: &str, max: u32) -> Fault {
    fault(
        PreconditionFailed,
        format!(
            "finding the queues of a message published to exchange '{name}' in vhost '{vhost}' takes more than {max} \
             comparisons: send fewer CC and BCC keys, or bind fewer exchanges to each other"
        ),
    )
}

pub(crate) fn internal_exchange(name: &str, vhost: &str) -> Fault {
    fault(AccessRefused, format!("cannot publish to internal exchange '{name}' in vhost '{vhost}'"))
}

pub(crate) fn invalid_expiration(value: &str, why: &Expiration) -> Fault {
    let why = match why {
        Expiration::NotNumber => "no_integer".to_owned(),
        Expiration::Leftover(rest) => format!("{{leftover_string,{rest:?}}}"),
        Expiration::Negative(n) => format!("{{value_negative,{n}}}"),
        Expiration::TooLarge(n) => format!("{{value_too_large,{n}}}"),
    };
    fault(PreconditionFailed, format!("invalid expiration '{value}': {why}"))
}

/// What is wrong with an `expiration`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Expiration {
    NotNumber,
    Leftover(String),
    Negative(String),
    TooLarge(String),
}

pub(crate) fn delivery_mode(mode: u8) -> Fault {
    fault(PreconditionFailed, format!("invalid message: {{delivery_mode_unknown,{mode}}}"))
}

/// `CC` or `BCC` that is no array; `found` is RabbitMQ's name of its type.
pub(crate) fn routing_header(header: &str, found: &str) -> Fault {
    fault(
        PreconditionFailed,
        format!("invalid message: {{unacceptable_type_in_header,{header:?},{found}}}"),
    )
}

pub(crate) fn other_user(claimed: &str, user: &str) -> Fault {
    fault(
        PreconditionFailed,
        format!("user_id property set to '{claimed}' but authenticated user was '{user}'"),
    )
}

/// Properties or a header that cannot be read; RabbitMQ answers 541 without a word.
pub(crate) fn bad_content(why: &ContentError) -> Fault {
    fault(why.reply_code(), why.to_string())
}

pub(crate) fn no_reply_consumer() -> Fault {
    fault(PreconditionFailed, "fast reply consumer does not exist")
}

// Consuming and settling.

pub(crate) fn reply_consumer_acks() -> Fault {
    fault(PreconditionFailed, "reply consumer cannot acknowledge")
}

pub(crate) fn reply_consumer_set() -> Fault {
    fault(PreconditionFailed, "reply consumer already set")
}

pub(crate) fn binds_reply_to() -> Fault {
    fault(AccessRefused, "cannot bind or unbind to a volatile (direct reply-to) queue")
}

pub(crate) fn tag_in_use(tag: &str) -> Fault {
    fault(NotAllowed, format!("attempt to reuse consumer tag '{tag}'"))
}

pub(crate) fn too_many_consumers(max: u32) -> Fault {
    fault(NotAllowed, format!("reached maximum ({max}) of consumers per channel"))
}

/// `why` is written as an Erlang term.
pub(crate) fn invalid_consumer_argument(arg: &str, queue: &str, vhost: &str, why: &str) -> Fault {
    fault(
        PreconditionFailed,
        format!("invalid arg '{arg}' for queue '{queue}' in vhost '{vhost}': {why}"),
    )
}

/// Consumers of quorum queues are not counted by the channel.
pub(crate) fn no_global_prefetch(queue: &str, vhost: &str) -> Fault {
    fault(NotImplemented, format!("queue '{queue}' in vhost '{vhost}' does not support global qos"))
}

/// `flag` is one that quorum queues do not know.
pub(crate) fn conditional_delete(queue: &str, vhost: &str, flag: &str) -> Fault {
    fault(
        NotImplemented,
        format!(
            "cannot delete queue '{queue}' in vhost '{vhost}'. queue.delete operations with {flag} \
             flag set are not supported by quorum queues"
        ),
    )
}

pub(crate) fn unknown_tag(tag: u64) -> Fault {
    fault(PreconditionFailed, format!("unknown delivery tag {tag}"))
}

pub(crate) fn prefetch_size(size: u32) -> Fault {
    fault(NotImplemented, format!("prefetch_size!=0 ({size})"))
}

pub(crate) fn recover_without_requeue() -> Fault {
    fault(NotImplemented, "requeue=false")
}

pub(crate) fn ack_timed_out(channel: u16, timeout_ms: u64) -> Fault {
    fault(
        PreconditionFailed,
        format!(
            "delivery acknowledgement on channel {channel} timed out. Timeout value used: \
             {timeout_ms} ms. This timeout value can be configured, see consumers doc guide to \
             learn more"
        ),
    )
    .without_method()
}

// Transactions and confirms.

pub(crate) fn confirm_to_tx() -> Fault {
    fault(PreconditionFailed, "cannot switch from confirm to tx mode")
}

pub(crate) fn tx_to_confirm() -> Fault {
    fault(PreconditionFailed, "cannot switch from tx to confirm mode")
}

pub(crate) fn not_transactional() -> Fault {
    fault(PreconditionFailed, "channel is not transactional")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn texts_are_rabbitmqs() {
        check(expected_method_frame(), 505, "UNEXPECTED_FRAME - expected method frame, got non method frame instead");
        check(expected_header(), 505, "UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead");
        check(header_of_other_class(50), 505, "UNEXPECTED_FRAME - expected content header for class 60, got one for class 50 instead");
        check(expected_body(), 505, "UNEXPECTED_FRAME - expected content body, got non content body frame instead");
        check(body_too_long(), 501, "FRAME_ERROR - content body frame exceeds remaining content size");
        check(claims_too_much(1 << 63), 501, "FRAME_ERROR - content body size 9223372036854775808 exceeds maximum allowed size 536870912");
        check(unexpected_frame(8, b""), 505, "UNEXPECTED_FRAME - type 8, all octets = <<>>");
        check(unexpected_frame(2, b"\x00<"), 505, "UNEXPECTED_FRAME - type 2, all octets = <<0,60>>");
        check(unexpected_frame(3, b"abcdefghijklmnopq"), 505, "UNEXPECTED_FRAME - type 3, first 16 octets = <<\"abcdefghijklmnop\">>");
        check(unexpected_in_state("running"), 504, "CHANNEL_ERROR - unexpected method in connection state running");
        check(unknown_mechanism("X"), 503, "COMMAND_INVALID - unknown authentication mechanism 'X'");
        check(login_refused("PLAIN"), 403, "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the broker logfile.");
        check(too_low("frame_max", 100, 4096), 530, "NOT_ALLOWED - negotiated frame_max = 100 is lower than the minimum allowed value (4096)");
        check(too_high("channel_max", 0, 2047), 530, "NOT_ALLOWED - negotiated channel_max = 0 (no limit) is higher than the maximum allowed value (2047)");
        check(no_vhost("x"), 530, "NOT_ALLOWED - vhost x not found");
        check(too_many_channels(2047, 2047), 530, "NOT_ALLOWED - number of channels opened (2047) has reached the negotiated channel_max (2047)");
        check(second_open(), 504, "CHANNEL_ERROR - second 'channel.open' seen");
        check(expected_open(), 504, "CHANNEL_ERROR - expected 'channel.open'");
        check(unimplemented_method(), 503, "COMMAND_INVALID - unimplemented method");
        check(flow_inactive(), 540, "NOT_IMPLEMENTED - active=false");
        check(no_previous_queue(), 404, "NOT_FOUND - no previously declared queue");
        check(no_exchange("x", "/"), 404, "NOT_FOUND - no exchange 'x' in vhost '/'");
        check(no_queue("q", "/"), 404, "NOT_FOUND - no queue 'q' in vhost '/'");
        check(default_exchange(), 403, "ACCESS_REFUSED - operation not permitted on the default exchange");
        check(reserved_name("queue", "amq.mine"), 403, "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'");
        check(system_exchange("amq.topic", "/"), 403, "ACCESS_REFUSED - deletion of system exchange 'amq.topic' in vhost '/' not allowed");
        check(immediate(), 540, "NOT_IMPLEMENTED - immediate=true");
        check(message_too_large(200, 100), 406, "PRECONDITION_FAILED - message size 200 is larger than configured max size 100");
        check(message_too_large(536_870_913, 536_870_912), 406, "PRECONDITION_FAILED - message size 536870913 is larger than max size 536870912");
        check(internal_exchange("x", "/"), 403, "ACCESS_REFUSED - cannot publish to internal exchange 'x' in vhost '/'");
        check(invalid_expiration("abc", &Expiration::NotNumber), 406, "PRECONDITION_FAILED - invalid expiration 'abc': no_integer");
        check(invalid_expiration("1x", &Expiration::Leftover("x".into())), 406, "PRECONDITION_FAILED - invalid expiration '1x': {leftover_string,\"x\"}");
        check(invalid_expiration("-1", &Expiration::Negative("-1".into())), 406, "PRECONDITION_FAILED - invalid expiration '-1': {value_negative,-1}");
        check(delivery_mode(9), 406, "PRECONDITION_FAILED - invalid message: {delivery_mode_unknown,9}");
        check(routing_header("CC", "longstr"), 406, "PRECONDITION_FAILED - invalid message: {unacceptable_type_in_header,\"CC\",longstr}");
        check(other_user("somebody", "guest"), 406, "PRECONDITION_FAILED - user_id property set to 'somebody' but authenticated user was 'guest'");
        check(no_reply_consumer(), 406, "PRECONDITION_FAILED - fast reply consumer does not exist");
        check(reply_consumer_acks(), 406, "PRECONDITION_FAILED - reply consumer cannot acknowledge");
        check(reply_consumer_set(), 406, "PRECONDITION_FAILED - reply consumer already set");
        check(tag_in_use("t"), 530, "NOT_ALLOWED - attempt to reuse consumer tag 't'");
        check(too_many_consumers(3), 530, "NOT_ALLOWED - reached maximum (3) of consumers per channel");
        check(invalid_consumer_argument("x-priority", "q", "/", "\"expected integer, got longstr\""), 406, "PRECONDITION_FAILED - invalid arg 'x-priority' for queue 'q' in vhost '/': \"expected integer, got longstr\"");
        check(unknown_tag(77), 406, "PRECONDITION_FAILED - unknown delivery tag 77");
        check(prefetch_size(9), 540, "NOT_IMPLEMENTED - prefetch_size!=0 (9)");
        check(recover_without_requeue(), 540, "NOT_IMPLEMENTED - requeue=false");
        check(ack_timed_out(1, 1000), 406, "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: 1000 ms. This timeout value can be configured, see consumers doc guide to learn more");
        check(confirm_to_tx(), 406, "PRECONDITION_FAILED - cannot switch from confirm to tx mode");
        check(tx_to_confirm(), 406, "PRECONDITION_FAILED - cannot switch from tx to confirm mode");
        check(not_transactional(), 406, "PRECONDITION_FAILED - channel is not transactional");
    }

    #[track_caller]
    fn check(fault: Fault, code: u16, text: &str) {
        assert_eq!((fault.code.code(), fault.reply_text().as_str()), (code, text));
    }

    #[test]
    fn long_texts_are_cut() {
        let text = no_queue(&"q".repeat(255), "/").reply_text();
        assert_eq!(text.len(), 255);
        assert!(text.ends_with("q..."));
        // Never inside a character.
        let text = no_queue(&"\u{e9}".repeat(127), "/").reply_text();
        assert!(text.len() <= 255 && text.ends_with("..."));
    }
}
