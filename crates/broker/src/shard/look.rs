//! An operator looks at messages as they are.
//!
//! A page is a bounded piece of work whatever the queue has: see [`Queue::look`](leveret_queue::Queue).
//! Nothing is acquired and nothing is marked; records that are on the disk are fetched as for a consumer,
//! and the letter waits for them as a `basic.get` does.

use leveret_log::Log;
use leveret_queue::{Look, LookAt, Offset, Time};
use leveret_topology::Topology;

use super::Shard;
use super::store::Parked;
use crate::message::{Holding, Looked, Outbox, Page, Reply, ToShard};

/// Messages that one letter looks at, at most.
const LOOKED_MAX: usize = 256;

/// Bytes of bodies after which a page ends: what is read from the disk for it, too.
const LOOKED_BYTES: u64 = 1 << 20;

impl<L: Log> Shard<L> {
    /// A page of messages. Takes the whole letter, as it may have to wait for the disk.
    pub(super) fn look(
        &mut self,
        letter: ToShard,
        topology: &Topology,
        now: Time,
        out: &mut Outbox,
    ) {
        let ToShard::Look { reply, queue: id, place, from, max } = letter else { return };
        // What came in this turn and finds a consumer is not ready any more.
        if place == LookAt::Ready && !self.bring_all(id) {
            return;
        }
        self.dispatch(id, now);
        let Some(hosted) = self.hosted(id, topology, now) else {
            out.reply(reply, Reply::Gone);
            return;
        };
        let max = max.clamp(1, LOOKED_MAX);
        let found = hosted.queue.look(place, from, max);
        let count = found.len();
        let found = first_bytes(found);
        let is_last = count < max && found.len() == count;
        let mut messages = Vec::with_capacity(found.len());
        let mut next = found.last().filter(|_| !is_last).map(|look| after(look.offset));
        for look in &found {
            let record = match self.store.read(look.offset) {
                Ok(record) => Some(record.bytes),
                Err(error) if error.is_to_come() && messages.is_empty() => {
                    self.store.fetch(found.iter().map(|look| look.offset));
                    self.store.park(look.offset, Parked::Letter(letter));
                    return;
                }
                Err(error) if error.is_to_come() => {
                    next = Some(look.offset);
                    break;
                }
                Err(_) => None,
            };
            let consumer = look.consumer_key.and_then(|key| self.ports.consumer(key as u32));
            let holder = consumer.map(|consumer| Holding {
                connection: consumer.connection,
                channel: consumer.channel,
                tag: consumer.facts.tag.clone(),
            });
            messages.push(Looked { look: *look, holder, record });
        }
        let end = self.store.end();
        out.reply(reply, Reply::Looked(Box::new(Page { messages, next, end })));
    }
}

/// The first ones, of so many bytes: at least one.
fn first_bytes(mut found: Vec<Look>) -> Vec<Look> {
    let mut bytes = 0;
    found.retain(|look| {
        let fits = bytes < LOOKED_BYTES;
        bytes += u64::from(look.size);
        fits
    });
    found
}

fn after(at: Offset) -> Offset {
    Offset::new(at.get().saturating_add(1))
}
