//! What shards tell of themselves and of their queues.
//!
//! Counts are lists of varints, so that a version may have more of them than another one: those that are not there are 0, and
//! those that are not known are left out.

use std::sync::Arc;

use leveret_amqp::table::Table;
use leveret_broker::message::{ConsumerFacts, QueueFacts};
use leveret_broker::numbers::{
    GoneQueues, HeadFacts, PagedOut, QueueNumbers, ShardNumbers, ShardRest, Usage,
};
use leveret_broker::shard::{Confirmed, Counters, Nacked};
use leveret_queue::{ByReason, Counts, Totals};
use leveret_topology::QueueKind;

use super::LetterError;
use super::field::{Field, Reader, get_list, put_list};
use super::values::{lists_of, structures};
use crate::payload::Writer;

structures! {
    QueueFacts { queue, numbers, active_consumers, single_active, exclusive, consumers }
    ConsumerFacts {
        connection, channel, tag, ack_required, prefetch, active, exclusive, priority, unacked, is_blocked,
        prefetch_full_since, arguments
    }
    QueueNumbers {
        queue, kind, at_least_once, counts, paged_out, totals, head, used, waited_ms, is_in_flow, memory_bytes
    }
    HeadFacts { published_ms, timestamp_s }
    GoneQueues { kind, at_least_once, totals }
    ShardNumbers { group, queues, rest }
    ShardRest { gone, counters, confirmed, nacked, log, queue_bytes, unresolved_bytes, held_bytes }
}

pub(super) fn get_counts(from: &mut Reader<'_>) -> Result<std::vec::IntoIter<u64>, LetterError> {
    Ok(get_list(from)?.into_iter())
}

/// Counts, and then other fields.
macro_rules! counts {
    ($($name:ident { $($count:ident),* } and { $($field:ident),* })*) => {$(
        impl Field for $name {
            fn put(&self, to: &mut Writer) {
                let Self { $($count,)* $($field),* } = self;
                put_list(&[$(*$count),*], to);
                $($field.put(to);)*
            }

            fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
                let mut counts = $crate::letters::numbers::get_counts(from)?;
                Ok(Self {
                    $($count: counts.next().unwrap_or_default(),)*
                    $($field: from.get()?),*
                })
            }
        }
    )*};
}

pub(super) use counts;

counts! {
    Totals {
        enqueued, enqueued_bytes, restored, refused, delivered, delivered_no_ack, delivered_bytes, got, got_no_ack,
        get_empty, redelivered, acked, requeued, dead_letters_confirmed, purged, moved
    } and { dropped, dead_lettered }
    Counts {
        ready, unacked, ready_bytes, unacked_bytes, persistent, persistent_bytes, packed, held, held_bytes, early
    } and { consumers }
    PagedOut { records, bytes, volatile, volatile_bytes } and {}
    Usage { live_bytes, held_bytes, records, blocks, unwritten_bytes, disk_bytes, lent } and {}
    Counters {
        enqueued, delivered, acked, dead_lettered, dropped, moved, refused, unstored, unreadable, copies_left_out
    } and {}
    Confirmed { at_once, durable, acked, nacked } and {}
}

/// Counts by something, in the order of that.
macro_rules! counts_by {
    ($($name:ident)*) => {$(
        impl Field for $name {
            fn put(&self, to: &mut Writer) {
                put_list(&self.counts(), to);
            }

            fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
                let mut counts = get_counts(from)?;
                Ok(Self::from_counts(std::array::from_fn(|_| counts.next().unwrap_or_default())))
            }
        }
    )*};
}

counts_by!(ByReason Nacked);

impl Field for QueueKind {
    fn put(&self, to: &mut Writer) {
        to.put(&[match self {
            Self::Classic => 0,
            Self::Quorum => 1,
        }]);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
        match from.byte()? {
            0 => Ok(Self::Classic),
            1 => Ok(Self::Quorum),
            number => Err(LetterError::Unknown { what: "kind of queue", number: number.into() }),
        }
    }
}

impl Field for Arc<Table> {
    fn put(&self, to: &mut Writer) {
        (**self).put(to);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
        from.get().map(Self::new)
    }
}

lists_of! {
    QueueFacts: 19
    ConsumerFacts: 19
    QueueNumbers: 14
    GoneQueues: 5
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another version has fewer counts, or more.
    #[test]
    fn counts_of_other_versions() {
        for (counts, want) in [(&[1_u64, 2][..], [1, 2, 0, 0]), (&[1, 2, 3, 4, 5], [1, 2, 3, 4])] {
            let mut writer = Writer::default();
            put_list(counts, &mut writer);
            let payload = writer.finish();
            let mut from = Reader::new(&payload);
            let Confirmed { at_once, durable, acked, nacked } = from.get().unwrap();
            assert_eq!([at_once, durable, acked, nacked], want);
            from.end().unwrap();
        }
    }
}
