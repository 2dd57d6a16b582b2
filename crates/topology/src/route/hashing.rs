//! Exchanges that choose one destination by a hash: consistent and modulus; the one that RabbitMQ chooses.
//! Hot path.

use core::fmt::Write as _;

use leveret_amqp::table::{RawValue, Table, Value};
use smallvec::SmallVec;

use super::erlang::{Exs1024, phash, phash_bool, phash_list, phash_undefined};
use super::{Out, Routable};
use crate::binding::{Binding, Target};

/// What a consistent-hash exchange hashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HashOn {
    RoutingKey,
    Header(Box<str>),
    CorrelationId,
    MessageId,
    Timestamp,
}

/// The names `hash-property` may have.
pub(crate) const HASH_PROPERTIES: [&str; 3] = ["correlation_id", "message_id", "timestamp"];

impl HashOn {
    /// The arguments were checked when the exchange was declared.
    pub(super) fn from_arguments(arguments: &Table) -> Self {
        if let Some(header) = arguments.get("hash-header").and_then(Value::as_str) {
            return Self::Header(header.into());
        }
        match arguments.get("hash-property").and_then(Value::as_str) {
            Some("correlation_id") => Self::CorrelationId,
            Some("message_id") => Self::MessageId,
            Some("timestamp") => Self::Timestamp,
            _ => Self::RoutingKey,
        }
    }
}

/// Destinations with weights, in the order they were bound, laid out as buckets in a row:
///
/// ```text
///   destination     A A A B C C          (weights 3, 1, 2)
///   bucket          0 1 2 3 4 5          -> ends: 3, 4, 6
/// ```
///
/// A hash falls on a bucket by jump consistent hashing (Lamping and Veach, 2014): when buckets are added
/// at the end, only the share of messages moves that the new ones get.
#[derive(Debug)]
pub(crate) struct ConsistentHash {
    on: HashOn,
    segments: Vec<Segment>,
}

#[derive(Debug)]
struct Segment {
    /// The bucket after the last one.
    end: u64,
    target: Target,
    /// As in RabbitMQ only a destination's first binding counts; it stays until all are gone.
    bindings: u32,
}

impl ConsistentHash {
    pub(super) fn new(on: HashOn) -> Self {
        Self { on, segments: Vec::new() }
    }

    pub(super) fn bind(&mut self, binding: &Binding) {
        let found = self.segments.iter_mut().find(|segment| segment.target == binding.target);
        if let Some(segment) = found {
            segment.bindings += 1;
            return;
        }
        // The key was checked.
        let weight = binding.key.parse().unwrap_or(1);
        let start = self.segments.last().map_or(0, |segment| segment.end);
        self.segments.push(Segment { end: start + weight, target: binding.target, bindings: 1 });
    }

    pub(super) fn unbind(&mut self, target: Target) {
        let Some(at) = self.segments.iter().position(|segment| segment.target == target) else {
            return;
        };
        self.segments[at].bindings -= 1;
        if self.segments[at].bindings > 0 {
            return;
        }
        let start = at.checked_sub(1).map_or(0, |before| self.segments[before].end);
        let weight = self.segments.remove(at).end - start;
        for segment in &mut self.segments[at..] {
            segment.end -= weight;
        }
    }

    /// False when the choice depends on more than the routing key.
    pub(super) fn route(&self, message: &Routable<'_>, out: &mut Out<'_>) -> bool {
        if let Some(last) = self.segments.last() {
            let bucket = jump(self.hash(message), last.end);
            let at = self.segments.partition_point(|segment| segment.end <= bucket);
            if let Some(segment) = self.segments.get(at) {
                out.one(segment.target);
            }
        }
        self.on == HashOn::RoutingKey || self.segments.len() < 2
    }

    /// A message without the header or property goes where all of its like go.
    fn hash(&self, message: &Routable<'_>) -> u32 {
        let text =
            |text: Option<&str>| text.map_or_else(phash_undefined, |text| phash(text.as_bytes()));
        match &self.on {
            HashOn::RoutingKey => phash(message.key.as_bytes()),
            HashOn::CorrelationId => text(message.properties.correlation_id),
            HashOn::MessageId => text(message.properties.message_id),
            HashOn::Timestamp => {
                let seconds = message.properties.timestamp;
                seconds.map_or_else(phash_undefined, |seconds| hash_text(format_args!("{seconds}")))
            }
            HashOn::Header(name) => {
                let headers = message.headers.iter().flat_map(|headers| headers.iter());
                let mut found = headers.map_while(Result::ok);
                let found = found.find(|(own, _)| *own == name.as_bytes());
                found.map_or_else(phash_undefined, |(_, value)| hash_value(&value))
            }
        }
    }
}

/// Numbers stand for themselves; what is rare is hashed as text, in our own way.
fn hash_value(value: &RawValue<'_>) -> u32 {
    match *value {
        RawValue::LongStr(bytes) | RawValue::Bytes(bytes) => phash(bytes),
        RawValue::Bool(value) => phash_bool(value),
        RawValue::Void => phash_undefined(),
        RawValue::I8(number) => number as u32,
        RawValue::U8(number) => u32::from(number),
        RawValue::I16(number) => number as u32,
        RawValue::U16(number) => u32::from(number),
        RawValue::I32(number) => number as u32,
        RawValue::U32(number) => number,
        RawValue::I64(number) => number as u32,
        // Milliseconds there.
        RawValue::Timestamp(seconds) => seconds.wrapping_mul(1000) as u32,
        _ => hash_text(format_args!("{value:?}")),
    }
}

/// A stack buffer keeps it from allocating.
fn hash_text(text: core::fmt::Arguments<'_>) -> u32 {
    let mut bytes = SmallText(SmallVec::new());
    let _ = bytes.write_fmt(text);
    phash(&bytes.0)
}

struct SmallText(SmallVec<[u8; 64]>);

impl core::fmt::Write for SmallText {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

/// Jump consistent hashing: a bucket below `buckets`, which is not 0.
fn jump(key: u32, buckets: u64) -> u64 {
    if buckets == 1 {
        return 0;
    }
    let mut random = Exs1024::new(key);
    let (mut bucket, mut next) = (0, 0);
    while next < buckets {
        bucket = next;
        next = ((bucket + 1) as f64 / random.uniform()) as u64;
    }
    bucket
}

/// Destinations by name: the choice is the same after a restart, when ids differ.
#[derive(Debug, Default)]
pub(crate) struct ModulusHash(Vec<(Box<str>, Target, u32)>);

impl ModulusHash {
    pub(super) fn bind(&mut self, name: &str, target: Target) {
        match self.place(name, target) {
            Ok(at) => self.0[at].2 += 1,
            Err(at) => self.0.insert(at, (name.into(), target, 1)),
        }
    }

    pub(super) fn unbind(&mut self, name: &str, target: Target) {
        if let Ok(at) = self.place(name, target) {
            self.0[at].2 -= 1;
            if self.0[at].2 == 0 {
                self.0.remove(at);
            }
        }
    }

    /// In RabbitMQ's order: exchanges before queues.
    fn place(&self, name: &str, target: Target) -> Result<usize, usize> {
        let is_queue = |target: &Target| matches!(target, Target::Queue(_));
        self.0.binary_search_by(|(own, at, _)| {
            let by_kind = is_queue(at).cmp(&is_queue(&target));
            by_kind.then_with(|| own.as_ref().cmp(name)).then_with(|| at.cmp(&target))
        })
    }

    pub(super) fn route(&self, message: &Routable<'_>, out: &mut Out<'_>) {
        let more = message.more_keys.iter().map(|key| key.as_bytes());
        let hash = phash_list(core::iter::once(message.key.as_bytes()).chain(more));
        let count = self.0.len() as u64;
        let Some(at) = u64::from(hash).checked_rem(count) else { return };
        if let Some((_, target, _)) = usize::try_from(at).ok().and_then(|at| self.0.get(at)) {
            out.one(*target);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exchanges_come_before_queues() {
        let mut parts = ModulusHash::default();
        let queue = |id| Target::Queue(crate::id::QueueId::new(id));
        parts.bind("b", queue(1));
        parts.bind("a", queue(2));
        parts.bind("z", Target::Exchange(crate::id::ExchangeId::new(3)));
        let names: Vec<&str> = parts.0.iter().map(|(name, ..)| name.as_ref()).collect();
        assert_eq!(names, ["z", "a", "b"]);
        parts.unbind("a", queue(2));
        assert_eq!(parts.0.len(), 2);
    }

    /// What RabbitMQ's code gives for 2, 3, 6, 10, 100 and 1000 buckets.
    #[test]
    #[rustfmt::skip] // a table
    fn buckets() {
        let check = |key: i64, want: [u64; 6]| {
            let found = [2, 3, 6, 10, 100, 1000].map(|buckets| jump(key as u32, buckets));
            assert_eq!(found, want, "{key}");
        };
        check(0,             [0, 0, 4, 4, 47, 807]);
        check(1,             [0, 2, 3, 3, 29, 856]);
        check(7,             [0, 2, 3, 8, 84, 197]);
        check(123_456_789,   [1, 1, 5, 5, 19, 584]);
        check(134_217_727,   [0, 2, 2, 6, 74, 220]);
        check(-5,            [0, 2, 2, 2, 69, 69]);
        check(5_000_000_000, [0, 0, 4, 9, 52, 52]);
        assert_eq!(jump(7, 1), 0);
    }
}
