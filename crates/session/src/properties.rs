//! Properties that the broker looks into or changes: expiration, user-id, routing headers, reply-to,
//! `x-delivery-count`. Cold but for the first glance.

use leveret_amqp::content::{Peek, RawProperties, Rewrite};
use leveret_amqp::table::{RawTable, RawValue, Value};
use leveret_broker::message::Message;
use smallvec::SmallVec;

use crate::channel::Channel;
use crate::core::{Context, Core};
use crate::direct;
use crate::reply::{self, Expiration, Fault};

const BCC: &str = "BCC";

/// Whether [`rewrite`] has anything to do.
pub(crate) fn needs_rewrite(peek: &Peek<'_>) -> bool {
    peek.reply_to == Some(direct::NAME)
        || peek.headers.is_some_and(|headers| !matches!(headers.get(BCC), Ok(None)))
}

/// Refuses a direct reply-to without a consumer for the reply.
#[cold]
pub(crate) fn check_rewrite(channel: &Channel, peek: &Peek<'_>) -> Result<(), Fault> {
    if peek.reply_to == Some(direct::NAME) && channel.direct_reply.is_none() {
        return Err(reply::no_reply_consumer());
    }
    Ok(())
}

/// The message without its `BCC` header, with the channel's own name for a direct reply-to.
#[cold]
pub(crate) fn rewrite(core: &Core, channel: &Channel, message: &Message) -> Result<Message, Fault> {
    let raw = RawProperties::new(message.properties());
    let peek = raw.peek().map_err(|error| reply::bad_content(&error))?;
    let headers = peek.headers.map(RawTable::to_table).transpose();
    let mut headers = headers.map_err(|error| reply::bad_content(&error.into()))?;
    if let Some(headers) = &mut headers {
        headers.remove(BCC);
    }
    let direct = channel.direct_reply.as_ref().filter(|_| peek.reply_to == Some(direct::NAME));
    let name = direct.map(|consumer| direct::name(core.id, channel.number, consumer.token));
    let headers = headers.map(|headers| headers.to_bytes());
    let headers = headers.as_deref().map(RawTable::unchecked);
    let change = Rewrite { headers, reply_to: name.as_deref(), ..Rewrite::default() };
    let mut bytes = Vec::new();
    raw.rewrite(change, &mut bytes).map_err(|error| reply::bad_content(&error))?;
    Ok(with_properties(message, &bytes))
}

fn with_properties(message: &Message, properties: &[u8]) -> Message {
    use leveret_broker::message::Span;
    let parts = [message.names(), properties, message.body()];
    let wire = parts.concat();
    let names = parts[0].len();
    let body = names + parts[1].len();
    let end = wire.len();
    let more = message.more().to_vec();
    Message::new(
        wire.into(),
        Span::new(0, names),
        Span::new(names, body),
        Span::new(body, end),
        more,
    )
}

/// The properties with `x-delivery-count` set; none when they cannot be read.
#[cold]
pub(crate) fn with_delivery_count(properties: &[u8], count: u32) -> Option<Vec<u8>> {
    let raw = RawProperties::new(properties);
    let mut headers = raw.peek().ok()?.headers.unwrap_or_default().to_table().ok()?;
    headers.set("x-delivery-count", Value::I64(i64::from(count)));
    let mut bytes = Vec::new();
    let headers = headers.to_bytes();
    let change = Rewrite { headers: Some(RawTable::unchecked(&headers)), ..Rewrite::default() };
    raw.rewrite(change, &mut bytes).ok()?;
    Some(bytes)
}

/// RabbitMQ's bound on times: ten years, in ms.
const EXPIRATION_MAX_MS: u64 = 315_360_000_000;

/// Reads an `expiration` as RabbitMQ does.
pub(crate) fn expiration(text: &str) -> Result<u64, Fault> {
    parse_expiration(text).map_err(|why| reply::invalid_expiration(text, &why))
}

fn parse_expiration(text: &str) -> Result<u64, Expiration> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let digits = unsigned.bytes().take_while(u8::is_ascii_digit).count();
    if digits == 0 {
        return Err(Expiration::NotNumber);
    }
    let (number, rest) = unsigned.split_at(digits);
    if !rest.is_empty() {
        return Err(Expiration::Leftover(rest.to_owned()));
    }
    let shown = || number.trim_start_matches('0').to_owned();
    if text.starts_with('-') && !shown().is_empty() {
        return Err(Expiration::Negative(format!("-{}", shown())));
    }
    match number.parse::<u64>() {
        Ok(ms) if ms <= EXPIRATION_MAX_MS => Ok(ms),
        _ => Err(Expiration::TooLarge(shown())),
    }
}

/// Refuses a `user-id` of somebody else.
pub(crate) fn check_user(core: &Core, claimed: &str, cx: &Context<'_>) -> Result<(), Fault> {
    let user = &*core.identity.user;
    // RabbitMQ's tag for those who publish in the name of others.
    if claimed == user || core.has_tag("impersonator", cx) {
        return Ok(());
    }
    Err(reply::other_user(claimed, user))
}

/// The routing keys in `CC` and `BCC`: what is a string in the two arrays.
pub(crate) fn more_keys<'a>(headers: RawTable<'a>) -> Result<SmallVec<[&'a str; 4]>, Fault> {
    let mut keys = SmallVec::new();
    for header in ["CC", BCC] {
        match headers.get(header) {
            Ok(Some(RawValue::Array(values))) => {
                keys.extend(values.iter().filter_map(|value| match value {
                    Ok(RawValue::LongStr(text)) => std::str::from_utf8(text).ok(),
                    _ => None,
                }));
            }
            Ok(Some(other)) => return Err(reply::routing_header(header, kind_name(other))),
            Ok(None) | Err(_) => {}
        }
    }
    Ok(keys)
}

/// RabbitMQ's name of a field's kind.
fn kind_name(value: RawValue<'_>) -> &'static str {
    match value {
        RawValue::Table(_) => "table",
        RawValue::Array(_) => "array",
        RawValue::LongStr(_) => "longstr",
        RawValue::Bytes(_) => "binary",
        RawValue::Bool(v) => Value::Bool(v).kind_name(),
        RawValue::I8(v) => Value::I8(v).kind_name(),
        RawValue::U8(v) => Value::U8(v).kind_name(),
        RawValue::I16(v) => Value::I16(v).kind_name(),
        RawValue::U16(v) => Value::U16(v).kind_name(),
        RawValue::I32(v) => Value::I32(v).kind_name(),
        RawValue::U32(v) => Value::U32(v).kind_name(),
        RawValue::I64(v) => Value::I64(v).kind_name(),
        RawValue::F32(v) => Value::F32(v).kind_name(),
        RawValue::F64(v) => Value::F64(v).kind_name(),
        RawValue::Decimal { scale, value } => Value::Decimal { scale, value }.kind_name(),
        RawValue::Timestamp(v) => Value::Timestamp(v).kind_name(),
        RawValue::Void => Value::Void.kind_name(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts are bytes to those who do not read them.
    #[test]
    fn a_delivery_count_beside_a_text_that_is_no_utf_8() {
        let flags = 1_u16 << 10;
        let raw = [&flags.to_be_bytes()[..], b"\x02\xff\xfe"].concat();
        let counted = with_delivery_count(&raw, 3).expect("counted");
        assert!(counted.ends_with(b"\x02\xff\xfe"));
        let headers = RawProperties::new(&counted).peek().expect("whole").headers;
        let count = headers.expect("headers").get("x-delivery-count");
        assert_eq!(count, Ok(Some(RawValue::I64(3))));
    }

    #[test]
    #[rustfmt::skip] // a table
    fn expirations() {
        use Expiration::*;
        check("0",           Ok(0));
        check("60000",       Ok(60_000));
        check("+5",          Ok(5));
        check("-0",          Ok(0));
        check("315360000000", Ok(315_360_000_000));
        check("315360000001", Err(TooLarge("315360000001".into())));
        check("99999999999999999999999", Err(TooLarge("99999999999999999999999".into())));
        check("-7",          Err(Negative("-7".into())));
        check("",            Err(NotNumber));
        check("abc",         Err(NotNumber));
        check("-",           Err(NotNumber));
        check("5s",          Err(Leftover("s".into())));
        check("1.5",         Err(Leftover(".5".into())));
        check(" 1",          Err(NotNumber));
    }

    #[track_caller]
    fn check(text: &str, want: Result<u64, Expiration>) {
        assert_eq!(parse_expiration(text), want, "{text:?}");
    }
}
