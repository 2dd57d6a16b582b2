//! Exchanges that choose one destination by a hash: consistent and modulus; the one that RabbitMQ chooses.
//! Hot path.

use core::fmt::Write as _;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use leveret_amqp::table::{RawValue, Table, Value};
use smallvec::SmallVec;

use super::erlang::{Exs1024, phash, phash_bool, phash_list, phash_undefined};
use super::{Routable, RouteSink};
use crate::binding::{Binding, Target};
use crate::id::BindingId;

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

/// Destinations with weights, in the order of their first bindings that are left, laid out as buckets in a row:
///
/// ```text
///   destination     A A A B C C          (weights 3, 1, 2)
///   bucket          0 1 2 3 4 5
/// ```
///
/// A hash falls on a bucket by jump consistent hashing (Lamping and Veach, 2014): when buckets are added
/// at the end, only the share of messages moves that the new ones get. The row is kept as sums of weights in
/// a tree (Fenwick, 1994), so that finding, adding and removing a destination cost the logarithm of how many there are.
/// The row is a function of the bindings that are left, however they came: a restart or another node has the same.
#[derive(Debug)]
pub(crate) struct ConsistentHash {
    on: HashOn,
    /// In the order of their first bindings. One that went stays, with weight 0, until half of all went.
    segments: Vec<Segment>,
    /// `sums[n]` is the weight of the segments up to `n`, as many of them as the lowest bit of `n + 1` says.
    sums: Vec<u64>,
    /// Where a destination's segment is.
    places: HashMap<Target, u32, FixedState>,
    /// Of all segments.
    weight: u64,
}

#[derive(Debug)]
struct Segment {
    target: Target,
    /// Ids and weights, in the order of the ids. As in RabbitMQ only a destination's first binding counts; where that goes
    /// the next one does, while there a destination has no more messages that still has bindings.
    bindings: SmallVec<[(BindingId, u64); 1]>,
}

impl Segment {
    fn first(&self) -> Option<BindingId> {
        self.bindings.first().map(|&(id, _)| id)
    }

    fn weight(&self) -> u64 {
        self.bindings.first().map_or(0, |&(_, weight)| weight)
    }
}

impl ConsistentHash {
    pub(super) fn new(on: HashOn) -> Self {
        let (segments, sums) = (Vec::new(), Vec::new());
        Self { on, segments, sums, places: HashMap::default(), weight: 0 }
    }

    pub(super) fn bind(&mut self, id: BindingId, binding: &Binding) {
        // The key was checked.
        let weight = binding.key.parse().unwrap_or(1);
        let bindings = match self.places.get(&binding.target) {
            None => SmallVec::from_buf([(id, weight)]),
            Some(&at) => {
                let bindings = &mut self.segments[at as usize].bindings;
                let place = bindings.partition_point(|&(own, _)| own < id);
                if place > 0 {
                    bindings.insert(place, (id, weight));
                    return;
                }
                let mut bindings = self.take(binding.target);
                bindings.insert(0, (id, weight));
                bindings
            }
        };
        self.put(Segment { target: binding.target, bindings });
    }

    pub(super) fn unbind(&mut self, id: BindingId, target: Target) {
        let Some(&at) = self.places.get(&target) else { return };
        let segment = &mut self.segments[at as usize];
        if segment.first() != Some(id) {
            segment.bindings.retain(|(own, _)| *own != id);
            return;
        }
        let mut bindings = self.take(target);
        bindings.remove(0);
        if !bindings.is_empty() {
            self.put(Segment { target, bindings });
        } else if self.places.len() * 2 < self.segments.len() {
            self.lay_out();
        }
    }

    /// Takes a destination out of the row: its bindings.
    fn take(&mut self, target: Target) -> SmallVec<[(BindingId, u64); 1]> {
        let Some(at) = self.places.remove(&target) else { return SmallVec::new() };
        let segment = &mut self.segments[at as usize];
        let weight = segment.weight();
        let bindings = core::mem::take(&mut segment.bindings);
        self.weight -= weight;
        let mut at = at as usize;
        while let Some(sum) = self.sums.get_mut(at) {
            *sum -= weight;
            at |= at + 1;
        }
        bindings
    }

    /// Puts a destination where its first binding belongs: nearly always that is the end.
    fn put(&mut self, segment: Segment) {
        let last = self.segments.iter().rev().find_map(Segment::first);
        let is_last = segment.first() > last;
        self.push(segment);
        if !is_last {
            self.lay_out();
        }
    }

    /// Makes the row anew, of those that have bindings.
    fn lay_out(&mut self) {
        let mut left = core::mem::take(&mut self.segments);
        left.retain(|it| !it.bindings.is_empty());
        left.sort_by_key(Segment::first);
        *self = Self::new(self.on.clone());
        left.into_iter().for_each(|it| self.push(it));
    }

    fn push(&mut self, segment: Segment) {
        let at = self.segments.len();
        // The new sum is that of the sums just before it which it takes in.
        let (mut sum, mut below) = (segment.weight(), at);
        let first = at & (at + 1);
        while below > first {
            sum += self.sums[below - 1];
            below &= below - 1;
        }
        self.sums.push(sum);
        self.weight += segment.weight();
        self.places.insert(segment.target, u32::try_from(at).expect("fewer than 2^32 bindings"));
        self.segments.push(segment);
    }

    /// The destination whose bucket this is.
    fn find(&self, mut bucket: u64) -> Option<Target> {
        let mut at = 0;
        let mut step = self.sums.len().checked_ilog2().map_or(0, |bits| 1 << bits);
        while step > 0 {
            if let Some(&sum) = self.sums.get(at + step - 1)
                && sum <= bucket
            {
                bucket -= sum;
                at += step;
            }
            step >>= 1;
        }
        self.segments.get(at).map(|segment| segment.target)
    }

    /// False when the choice depends on more than the routing key.
    pub(super) fn route(&self, message: &Routable<'_>, out: &mut RouteSink<'_>) -> bool {
        if self.weight > 0
            && let Some(target) = self.find(jump(self.hash(message), self.weight))
        {
            out.one(target);
        }
        self.on == HashOn::RoutingKey || self.places.len() < 2
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

/// Destinations by name: the choice is the same after a restart, when ids differ. In RabbitMQ's order: exchanges
/// before queues.
///
/// Sorted, in pieces that are halved when they are full: adding and removing one moves the others of its piece and no more.
#[derive(Debug, Default)]
pub(crate) struct ModulusHash {
    /// None of them empty.
    pieces: Vec<Vec<Part>>,
    count: usize,
}

#[derive(Debug)]
struct Part {
    name: Box<str>,
    target: Target,
    bindings: u32,
}

/// Destinations in a piece at most.
const PIECE_MAX: usize = 512;

impl Part {
    fn compare(&self, name: &str, target: Target) -> core::cmp::Ordering {
        let is_queue = |target| matches!(target, Target::Queue(_));
        let by_kind = is_queue(self.target).cmp(&is_queue(target));
        by_kind.then_with(|| self.name.as_ref().cmp(name)).then_with(|| self.target.cmp(&target))
    }
}

impl ModulusHash {
    pub(super) fn bind(&mut self, name: &str, target: Target) {
        let (piece, at) = self.place(name, target);
        let Some(parts) = self.pieces.get_mut(piece) else {
            self.pieces.push(vec![Part { name: name.into(), target, bindings: 1 }]);
            self.count += 1;
            return;
        };
        match at {
            Ok(at) => parts[at].bindings += 1,
            Err(at) => {
                parts.insert(at, Part { name: name.into(), target, bindings: 1 });
                self.count += 1;
                if parts.len() > PIECE_MAX {
                    let upper = parts.split_off(PIECE_MAX / 2);
                    self.pieces.insert(piece + 1, upper);
                }
            }
        }
    }

    pub(super) fn unbind(&mut self, name: &str, target: Target) {
        let (piece, Ok(at)) = self.place(name, target) else { return };
        let parts = &mut self.pieces[piece];
        parts[at].bindings -= 1;
        if parts[at].bindings == 0 {
            parts.remove(at);
            self.count -= 1;
            if parts.is_empty() {
                self.pieces.remove(piece);
            }
        }
    }

    /// The piece that a destination is in, or belongs into, and its place there.
    fn place(&self, name: &str, target: Target) -> (usize, Result<usize, usize>) {
        // The last one that does not begin after it.
        let after = self.pieces.partition_point(|piece| piece[0].compare(name, target).is_le());
        let piece = after.saturating_sub(1);
        let parts = self.pieces.get(piece).map_or(&[][..], Vec::as_slice);
        (piece, parts.binary_search_by(|part| part.compare(name, target)))
    }

    #[cfg(test)]
    fn parts(&self) -> impl Iterator<Item = &Part> {
        self.pieces.iter().flatten()
    }

    pub(super) fn route(&self, message: &Routable<'_>, out: &mut RouteSink<'_>) {
        let more = message.more_keys.iter().map(|key| key.as_bytes());
        let hash = phash_list(core::iter::once(message.key.as_bytes()).chain(more));
        let Some(at) = u64::from(hash).checked_rem(self.count as u64) else { return };
        let mut at = usize::try_from(at).unwrap_or_default();
        for piece in &self.pieces {
            if let Some(part) = piece.get(at) {
                out.one(part.target);
                return;
            }
            at -= piece.len();
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
        let names: Vec<&str> = parts.parts().map(|part| part.name.as_ref()).collect();
        assert_eq!(names, ["z", "a", "b"]);
        parts.unbind("a", queue(2));
        assert_eq!(parts.count, 2);
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

    /// Whatever came and went, a bucket is found as in the plain row, and parts are as in the plain list.
    #[test]
    fn like_a_plain_row() {
        let mut ring = ConsistentHash::new(HashOn::RoutingKey);
        let mut parts = ModulusHash::default();
        // Binding, destination, weight.
        let (mut all, mut list) = (Vec::<(u64, u64, u64)>::new(), Vec::<(String, u64)>::new());
        let mut random = Exs1024::new(7);
        let mut below = |end: u64| (random.uniform() * end as f64) as u64 % end;
        let target = |id| Target::Queue(crate::id::QueueId::new(id));
        let binding = |id, weight: u64| Binding {
            source: crate::id::ExchangeId::new(0),
            target: target(id),
            key: weight.to_string().into(),
            arguments: Table::new(),
        };
        for step in 0..9_000 {
            let (id, weight) = (below(1_500), below(5) + 1);
            let name = format!("q{}", id * 7_919 % 1_500);
            let of_it: Vec<u64> =
                all.iter().filter(|(_, own, _)| *own == id).map(|(it, ..)| *it).collect();
            // Grows first, then shrinks to nothing.
            let grows = below(10) < if step < 4_000 { 8 } else { 1 };
            if grows && of_it.len() < 3 {
                ring.bind(BindingId::new(step), &binding(id, weight));
                all.push((step, id, weight));
                if of_it.is_empty() {
                    parts.bind(&name, target(id));
                    list.push((name, id));
                    list.sort();
                }
            } else if !grows && !of_it.is_empty() {
                let gone = of_it[below(of_it.len() as u64) as usize];
                ring.unbind(BindingId::new(gone), target(id));
                all.retain(|&(it, ..)| it != gone);
                if of_it.len() == 1 {
                    parts.unbind(&name, target(id));
                    list.retain(|(_, own)| *own != id);
                }
            }
            if step % 500 == 0 {
                let mut row = Vec::<(u64, u64)>::new();
                for &(_, id, weight) in &all {
                    if row.iter().all(|&(own, _)| own != id) {
                        row.push((id, weight));
                    }
                }
                // The same bindings in another order, as they may come to somebody else.
                let mut other = ConsistentHash::new(HashOn::RoutingKey);
                let (from, mut mixed) = (below(all.len() as u64 + 1) as usize, all.clone());
                mixed.rotate_left(from);
                for (it, id, weight) in mixed {
                    other.bind(BindingId::new(it), &binding(id, weight));
                }
                assert_eq!(ring.weight, row.iter().map(|&(_, weight)| weight).sum::<u64>());
                let each = row.iter().flat_map(|&(id, weight)| (0..weight).map(move |_| id));
                for (bucket, id) in (0..).zip(each) {
                    let found = (ring.find(bucket), other.find(bucket));
                    let wanted = (Some(target(id)), Some(target(id)));
                    assert_eq!(found, wanted, "step {step}, bucket {bucket}");
                }
                let names: Vec<&str> = parts.parts().map(|part| part.name.as_ref()).collect();
                let want: Vec<&str> = list.iter().map(|(name, _)| name.as_str()).collect();
                assert_eq!(names, want);
                assert!(parts.pieces.iter().all(|it| (1..=PIECE_MAX).contains(&it.len())));
                assert!(ring.segments.len() <= row.len() * 2 + 1);
            }
        }
    }
}
