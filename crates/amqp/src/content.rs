//! Content headers: the properties of a message.
//!
//! Hot path: no allocation; a publish is looked at once with [`RawProperties::peek`], then the same
//! bytes are stored and sent.
//!
//! ```text
//!   payload     u16 class | u16 weight (0) | u64 body size | properties       AMQP 0-9-1 section 4.2.6.1
//!   properties  u16 flags | the fields whose flag is set, the highest first
//!
//!   flag  field             type        flag  field        type
//!   15    content-type      shortstr    8     expiration   shortstr
//!   14    content-encoding  shortstr    7     message-id   shortstr
//!   13    headers           table       6     timestamp    u64, seconds
//!   12    delivery-mode     u8          5     type         shortstr
//!   11    priority          u8          4     user-id      shortstr
//!   10    correlation-id    shortstr    3     app-id       shortstr
//!   9     reply-to          shortstr    2     cluster-id   shortstr
//! ```
//!
//! Flags 1 and 0 (the latter announces more flags) mean nothing, as in RabbitMQ: what they would
//! announce is refused as bytes too many.

mod properties;
mod rewrite;

pub use properties::Properties;
pub use rewrite::Rewrite;

use crate::reply::ReplyCode;
use crate::table::{RawTable, TableError};
use crate::wire::{Reader, Truncated};

/// A content header frame's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentHeader<'a> {
    /// Class of the method before it: 60 for basic.
    pub class: u16,
    /// Always 0 in a correct frame; whoever reads it must refuse others.
    pub weight: u16,
    /// Length of the body in all its frames, as claimed.
    pub body_size: u64,
    /// Flags and fields.
    pub properties: RawProperties<'a>,
}

impl<'a> ContentHeader<'a> {
    /// Splits the payload. The properties are not looked at: see [`RawProperties::peek`].
    ///
    /// # Errors
    ///
    /// When shorter than the fixed part and the flags.
    #[inline]
    pub fn decode(payload: &'a [u8]) -> Result<Self, ContentError> {
        let mut r = Reader::new(payload);
        let (class, weight, body_size) = (r.get_u16()?, r.get_u16()?, r.get_u64()?);
        let properties = RawProperties(r.rest());
        r.get_u16()?;
        Ok(Self { class, weight, body_size, properties })
    }
}

/// Why a content header is malformed. Each of them ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContentError {
    /// A property reaches beyond the end of the frame.
    #[error("content properties are truncated")]
    Truncated,
    /// Bytes are left after the last property.
    #[error("bytes left after the content's properties")]
    TrailingBytes,
    /// A property the broker has to understand is not UTF-8.
    #[error("Malformed UTF-8 in shortstr")]
    BadUtf8,
    /// The headers are malformed.
    #[error("malformed headers: {0}")]
    Headers(#[from] TableError),
}

impl ContentError {
    /// The code of the `connection.close` that answers. (RabbitMQ 3.10 answers 541 to most of these, the
    /// trace of a crash; the specification's 501 and 502 say what is wrong.)
    #[must_use]
    pub fn reply_code(&self) -> ReplyCode {
        match self {
            Self::Truncated | Self::TrailingBytes | Self::BadUtf8 => ReplyCode::FrameError,
            Self::Headers(_) => ReplyCode::SyntaxError,
        }
    }
}

impl From<Truncated> for ContentError {
    fn from(_: Truncated) -> Self {
        Self::Truncated
    }
}

/// Property flags and fields as on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawProperties<'a>(&'a [u8]);

/// What the broker looks at in each message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peek<'a> {
    /// 2 is persistent; RabbitMQ 3.10 refuses others than 1 and 2.
    pub delivery_mode: Option<u8>,
    /// Message priority.
    pub priority: Option<u8>,
    /// Milliseconds as decimal text, not checked to be a number.
    pub expiration: Option<&'a str>,
    /// The user the publisher claims to be.
    pub user_id: Option<&'a str>,
    /// Where to answer. `None` too when not UTF-8, as such a name means nothing to the broker.
    pub reply_to: Option<&'a str>,
    /// The headers, checked whole.
    pub headers: Option<RawTable<'a>>,
}

/// The fields in wire order with their flags.
const CONTENT_TYPE: u16 = 1 << 15;
const CONTENT_ENCODING: u16 = 1 << 14;
const HEADERS: u16 = 1 << 13;
const DELIVERY_MODE: u16 = 1 << 12;
const PRIORITY: u16 = 1 << 11;
const CORRELATION_ID: u16 = 1 << 10;
const REPLY_TO: u16 = 1 << 9;
const EXPIRATION: u16 = 1 << 8;
const MESSAGE_ID: u16 = 1 << 7;
const TIMESTAMP: u16 = 1 << 6;
const KIND: u16 = 1 << 5;
const USER_ID: u16 = 1 << 4;
const APP_ID: u16 = 1 << 3;
const CLUSTER_ID: u16 = 1 << 2;

impl<'a> RawProperties<'a> {
    /// No property set.
    pub const EMPTY: RawProperties<'static> = RawProperties(&[0, 0]);

    /// Takes flags and fields as they are: reading reports what is wrong with them.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The bytes from the flags on: what is stored and sent again.
    #[must_use]
    pub const fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// Reads all fields in one pass without allocating: checks every length and the headers, and gives
    /// what the broker acts on. Text it does not act on is not checked to be UTF-8, as in RabbitMQ.
    ///
    /// # Errors
    ///
    /// When the bytes are not exactly a property list.
    #[inline(always)]
    pub fn peek(self) -> Result<Peek<'a>, ContentError> {
        let mut r = Reader::new(self.0);
        let flags = r.get_u16()?;
        let mut peek = Peek::default();
        if flags & (CONTENT_TYPE | CONTENT_ENCODING) != 0 {
            skip_texts(&mut r, flags & (CONTENT_TYPE | CONTENT_ENCODING))?;
        }
        if flags & HEADERS != 0 {
            peek.headers = Some(RawTable::new(r.get_longstr()?)?);
        }
        if flags & DELIVERY_MODE != 0 {
            peek.delivery_mode = Some(r.get_u8()?);
        }
        if flags & PRIORITY != 0 {
            peek.priority = Some(r.get_u8()?);
        }
        // Everything below is rare in a stream of small messages.
        if flags & !(CONTENT_TYPE | CONTENT_ENCODING | HEADERS | DELIVERY_MODE | PRIORITY | 3) != 0
        {
            peek_rest(&mut r, flags, &mut peek)?;
        }
        if r.is_empty() { Ok(peek) } else { Err(ContentError::TrailingBytes) }
    }

    /// The property `timestamp`, in seconds; none too when the properties are malformed.
    pub fn timestamp(self) -> Option<u64> {
        let mut r = Reader::new(self.0);
        let flags = r.get_u16().ok()?;
        if flags & TIMESTAMP == 0 {
            return None;
        }
        skip_texts(&mut r, flags & (CONTENT_TYPE | CONTENT_ENCODING)).ok()?;
        if flags & HEADERS != 0 {
            r.get_longstr().ok()?;
        }
        for octet in [DELIVERY_MODE, PRIORITY] {
            if flags & octet != 0 {
                r.get_u8().ok()?;
            }
        }
        let texts = CORRELATION_ID | REPLY_TO | EXPIRATION | MESSAGE_ID;
        skip_texts(&mut r, flags & texts).ok()?;
        r.get_u64().ok()
    }

    /// All properties, owned.
    ///
    /// # Errors
    ///
    /// When malformed, or the headers are nested deeper than
    /// [`MAX_DEPTH`](crate::table::MAX_DEPTH).
    pub fn to_owned(self) -> Result<Properties, ContentError> {
        Properties::decode(self)
    }
}

fn peek_rest<'a>(r: &mut Reader<'a>, flags: u16, peek: &mut Peek<'a>) -> Result<(), ContentError> {
    let text = |bytes| std::str::from_utf8(bytes).map_err(|_| ContentError::BadUtf8);
    skip_texts(r, flags & CORRELATION_ID)?;
    if flags & REPLY_TO != 0 {
        peek.reply_to = std::str::from_utf8(r.short_bytes()?).ok();
    }
    if flags & EXPIRATION != 0 {
        peek.expiration = Some(text(r.short_bytes()?)?);
    }
    skip_texts(r, flags & MESSAGE_ID)?;
    if flags & TIMESTAMP != 0 {
        r.get_u64()?;
    }
    skip_texts(r, flags & KIND)?;
    if flags & USER_ID != 0 {
        peek.user_id = Some(text(r.short_bytes()?)?);
    }
    skip_texts(r, flags & (APP_ID | CLUSTER_ID))
}

/// Passes over one short string per set flag.
fn skip_texts(r: &mut Reader<'_>, flags: u16) -> Result<(), ContentError> {
    for _ in 0..flags.count_ones() {
        r.short_bytes()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
