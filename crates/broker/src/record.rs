//! The layout of one message in a log.
//!
//! Hot path: one pass over 24 bytes of head; no allocation.
//!
//! ```text
//!  0     1        2           4               8          12            16              24
//!  | bits| priority| names_len | properties_len| body_len | expiration   | published_ms |
//!  24: names (exchange and routing key, two wire short strings) | property flags and list | body
//! ```
//!
//! The head is all that a queue needs to know of a message, so that a restart reads no body. Bits 4
//! to 7 are the version of the layout, bit 0: delivery mode 2, bit 1: it has an expiration, bit 2: in
//! seconds, as ms would not fit (from 50 days on). Numbers are little-endian. `names` are kept as on
//! the wire because `basic.deliver` ends with just these bytes: a delivery copies them without looking.

use bytes::Bytes;
pub use leveret_log::LARGE;
use leveret_log::RecordWeight;

use crate::message::Publish;

/// Bytes before the names.
pub const HEAD: usize = 24;
/// Today's layout.
pub const VERSION: u8 = 1;
const PERSISTENT: u8 = 1;
const EXPIRES: u8 = 2;
const IN_SECONDS: u8 = 4;

/// What a record's first bytes say. Copy of the numbers, no borrow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Delivery mode 2, or stored as if it were that.
    pub persistent: bool,
    /// Property `priority`, 0 when absent.
    pub priority: u8,
    /// Length of the two names on the wire, in bytes.
    pub names_len: u16,
    /// Length of the property flags and list, in bytes.
    pub properties_len: u32,
    /// Length of the body, in bytes. Records are shorter than 4 GiB.
    pub body_len: u32,
    /// Property `expiration`, in ms: as [`stored_expiration_ms`] gives it.
    pub expiration_ms: Option<u64>,
    /// When the message was published, ms since the Unix epoch.
    pub published_ms: u64,
}

impl Head {
    /// The head of the record that a message becomes.
    pub fn of(publish: &Publish, published_ms: u64) -> Self {
        let message = &publish.message;
        Self {
            persistent: publish.persistent,
            priority: publish.priority,
            names_len: message.names().len() as u16,
            properties_len: message.properties().len() as u32,
            body_len: u32::try_from(message.body_len()).unwrap_or(u32::MAX),
            expiration_ms: publish.expiration_ms.map(stored_expiration_ms),
            published_ms,
        }
    }

    /// The bytes of the head.
    pub fn encode(&self) -> [u8; HEAD] {
        let mut out = [0; HEAD];
        let persistent = if self.persistent { PERSISTENT } else { 0 };
        let (expires, expiration) = match self.expiration_ms {
            None => (0, 0),
            Some(ms) => match u32::try_from(ms) {
                Ok(ms) => (EXPIRES, ms),
                Err(_) => (EXPIRES | IN_SECONDS, u32::try_from(ms / 1000).unwrap_or(u32::MAX)),
            },
        };
        out[0] = VERSION << 4 | persistent | expires;
        out[1] = self.priority;
        out[2..4].copy_from_slice(&self.names_len.to_le_bytes());
        out[4..8].copy_from_slice(&self.properties_len.to_le_bytes());
        out[8..12].copy_from_slice(&self.body_len.to_le_bytes());
        out[12..16].copy_from_slice(&expiration.to_le_bytes());
        out[16..24].copy_from_slice(&self.published_ms.to_le_bytes());
        out
    }

    /// Whether these bytes begin with this head, but for the time: it was written when they were read.
    pub fn begins(&self, record: &[u8]) -> bool {
        Self::decode(record)
            .is_some_and(|written| written == Self { published_ms: written.published_ms, ..*self })
    }

    /// Reads a head; none when the bytes are too short or of a layout this version does not know.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let head: &[u8; HEAD] = bytes.get(..HEAD)?.try_into().ok()?;
        if head[0] >> 4 != VERSION {
            return None;
        }
        let expiration = u64::from(u32::from_le_bytes(head[12..16].try_into().ok()?));
        let unit_ms = if head[0] & IN_SECONDS != 0 { 1000 } else { 1 };
        Some(Self {
            persistent: head[0] & PERSISTENT != 0,
            priority: head[1],
            names_len: u16::from_le_bytes([head[2], head[3]]),
            properties_len: u32::from_le_bytes(head[4..8].try_into().ok()?),
            body_len: u32::from_le_bytes(head[8..12].try_into().ok()?),
            expiration_ms: (head[0] & EXPIRES != 0).then_some(expiration * unit_ms),
            published_ms: u64::from_le_bytes(head[16..24].try_into().ok()?),
        })
    }
}

/// What a record counts where it is not looked at: the length of its body, and apart if it is persistent.
pub fn weigh(record: &[u8]) -> RecordWeight {
    let head = Head::decode(record);
    let bytes = head.map_or(0, |head| head.body_len.into());
    RecordWeight { bytes, persistent: head.map(|head| head.persistent) }
}

/// An expiration as a record keeps it: exact below 50 days, from then on in whole seconds.
pub fn stored_expiration_ms(ms: u64) -> u64 {
    if u32::try_from(ms).is_ok() { ms } else { ms.div_ceil(1000) * 1000 }
}

/// A record's parts, without a copy.
#[derive(Clone, Debug)]
pub struct View<'a> {
    /// The numbers.
    pub head: Head,
    /// Exchange and routing key as two wire short strings.
    pub names: &'a [u8],
    /// Property flags and list.
    pub properties: &'a [u8],
    /// Where the body begins in the record.
    pub body_at: usize,
    record: &'a Bytes,
}

impl<'a> View<'a> {
    /// Takes a record apart; none when its lengths do not add up.
    pub fn of(record: &'a Bytes) -> Option<Self> {
        let head = Head::decode(record)?;
        let names_end = HEAD + usize::from(head.names_len);
        let properties_end = names_end + head.properties_len as usize;
        let names = record.get(HEAD..names_end)?;
        let properties = record.get(names_end..properties_end)?;
        if record.len() - properties_end != head.body_len as usize {
            return None;
        }
        Some(Self { head, names, properties, body_at: properties_end, record })
    }

    /// The body, sharing the record's memory.
    pub fn body(&self) -> Bytes {
        self.record.slice(self.body_at..)
    }

    /// The body's bytes, borrowed.
    pub fn body_bytes(&self) -> &'a [u8] {
        self.record.get(self.body_at..).unwrap_or_default()
    }

    /// Exchange and routing key, if they are what they should be.
    pub fn exchange_and_key(&self) -> Option<(&'a str, &'a str)> {
        split_names(self.names)
    }
}

/// Whether these bytes are two wire short strings and no more.
#[inline]
pub fn are_names(names: &[u8]) -> bool {
    let Some((&len, rest)) = names.split_first() else { return false };
    let Some(&key_len) = rest.get(usize::from(len)) else { return false };
    names.len() == 2 + usize::from(len) + usize::from(key_len)
        && (names.is_ascii() || split_names(names).is_some())
}

/// Splits two wire short strings.
pub fn split_names(names: &[u8]) -> Option<(&str, &str)> {
    let (&len, rest) = names.split_first()?;
    let exchange = rest.get(..usize::from(len))?;
    let (&len, rest) = rest.get(usize::from(len)..)?.split_first()?;
    let key = rest.get(..usize::from(len))?;
    Some((std::str::from_utf8(exchange).ok()?, std::str::from_utf8(key).ok()?))
}

/// Joins two names as wire short strings; each is cut at 255 bytes, which no name that came by the
/// wire exceeds.
pub fn join_names(exchange: &str, key: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(2 + exchange.len() + key.len());
    for name in [exchange, key] {
        let bytes = name.as_bytes();
        let len = bytes.len().min(255);
        out.push(len as u8);
        out.extend_from_slice(&bytes[..len]);
    }
    out
}

#[cfg(test)]
mod tests {
    use leveret_log::suite::numbers;

    use super::*;

    /// Bytes of a disk are taken apart, or are no message: what is shown lies in them, and is all of them.
    #[test]
    fn any_bytes_are_a_record_or_none() {
        let mut below = numbers(3);
        let mut shown = 0;
        for _ in 0..20_000 {
            let names = join_names(&"e".repeat(below(4) as usize), &"k".repeat(below(4) as usize));
            let (properties, body) = (vec![0; 2 + below(9) as usize], vec![7; below(30) as usize]);
            let head = Head {
                names_len: names.len() as u16,
                properties_len: properties.len() as u32,
                body_len: body.len() as u32,
                ..Head::default()
            };
            let mut bytes = [&head.encode()[..], &names, &properties, &body].concat();
            for _ in 0..below(4) {
                let len = bytes.len().max(1) as u64;
                match (below(4), below(len) as usize) {
                    (0, at) => bytes.truncate(at),
                    (1, _) => bytes.extend((0..below(9)).map(|it| it as u8)),
                    (2, at) => bytes[at..].iter_mut().take(4).for_each(|byte| *byte = 0xff),
                    (_, at) => {
                        bytes[at..].iter_mut().take(1).for_each(|byte| *byte ^= 1 << below(8))
                    }
                }
            }
            let record = Bytes::from(bytes);
            let Some(view) = View::of(&record) else { continue };
            let all = [&record[..HEAD], view.names, view.properties, view.body_bytes()].concat();
            assert_eq!(all, record);
            assert_eq!(view.body(), view.body_bytes());
            assert_eq!(view.body_bytes().len(), view.head.body_len as usize);
            let split = view.exchange_and_key();
            assert!(!are_names(view.names) || split.is_some());
            shown += 1;
        }
        assert!(shown > 5000, "{shown}");
    }

    #[test]
    #[rustfmt::skip] // a table
    fn an_expiration_is_read_as_it_was_written() {
        check(0,                 0);
        check(60_000,            60_000);
        check(4_294_967_295,     4_294_967_295);   // 2^32 - 1
        check(4_294_967_296,     4_294_968_000);
        check(5_184_000_001,     5_184_001_000);   // 60 days
        check(315_360_000_000,   315_360_000_000); // ten years, as long as can be
    }

    #[track_caller]
    fn check(ms: u64, want: u64) {
        let expiration_ms = Some(stored_expiration_ms(ms));
        let head = Head { expiration_ms, ..Head::default() };
        let read = Head::decode(&head.encode());
        assert_eq!(read.and_then(|read| read.expiration_ms), Some(want), "{ms}");
        assert!(head.begins(&head.encode()), "{ms}");
    }
}
