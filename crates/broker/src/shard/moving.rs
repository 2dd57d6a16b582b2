//! What an operator moves from a queue: each message is stored where it is to go before it leaves.
//!
//! ```text
//!   ready --> unacked, nobody's --> each target has it on its disk --> gone
//!                  |
//!                  +--> one refused it: back to its place, marked redelivered, as it may be late
//! ```
//!
//! The letters and the waiting are those of dead letters: see [`dead_letter`](super::dead_letter). After a
//! crash a message is in its queue, or where it was to go, perhaps in both.

use leveret_amqp::content::RawProperties;
use leveret_log::Log;
use leveret_queue::{Offset, Time, UnackedId};
use leveret_topology::{QueueId, Topology};

use super::Shard;
use super::confirms::Way;
use super::dead_letter::{string_list, targets};
use super::exits::{Moving, Whereabouts};
use super::store::Parked;
use crate::message::{
    ConnectionId, Message, MoveTo, Moved, Outbox, Publish, Reply, ReplyTo, Targets, ToShard,
};
use crate::record::{View, join_names};

impl<L: Log> Shard<L> {
    /// Moves messages. Takes the whole letter, as it may have to wait for the disk.
    pub(super) fn move_some(
        &mut self,
        letter: ToShard,
        topology: &Topology,
        now: Time,
        out: &mut Outbox,
    ) {
        let ToShard::Move { reply, queue: id, ref offsets, ref to } = letter else { return };
        // What came in this turn and finds a consumer is not ready any more.
        if !self.bring_all(id) {
            return;
        }
        self.dispatch(id, now);
        if self.hosted(id, topology, now).is_none() {
            out.reply(reply, Reply::Gone);
            return;
        }
        if let MoveTo::Front = to {
            self.bring_forward(reply, id, offsets, out);
            return;
        }
        let (cold, mut warm): (Vec<_>, Vec<_>) =
            offsets.iter().partition(|at| self.store.is_to_come(**at));
        if let Some(&first) = cold.first() {
            self.store.fetch(cold.iter().copied());
            if warm.is_empty() {
                self.store.park(first, Parked::Letter(letter));
                return;
            }
        }
        warm.sort_unstable();
        let Some(hosted) = self.queues.get_mut(id) else { return };
        let mut moving = Moving { reply, under_way: 0, moved: Moved { cold, ..Moved::default() } };
        for (offset, unacked) in hosted.queue.take_out(&warm) {
            match self.make_moved(offset, to, topology) {
                Some(made) => {
                    let whereabouts = Whereabouts::Moved { id: unacked, by: reply.connection };
                    self.send_on((id, offset), whereabouts, Vec::new(), made, topology, out);
                    moving.under_way += 1;
                }
                None => {
                    moving.moved.unrouted += 1;
                    self.put_back(id, (unacked, offset), false, now);
                }
            }
        }
        self.queues.touch(id);
        self.exits.begin_move(moving);
        self.answer_move(reply.connection, out);
    }

    /// Messages to the front of their queue: nothing is stored for it.
    fn bring_forward(&mut self, reply: ReplyTo, id: QueueId, offsets: &[Offset], out: &mut Outbox) {
        let Some(hosted) = self.queues.get_mut(id) else { return };
        let mut offsets = offsets.to_vec();
        offsets.sort_unstable();
        let moved = hosted.queue.bring_forward(&offsets);
        self.queues.touch(id);
        out.reply(reply, Reply::Moved(Moved { moved, ..Moved::default() }));
    }

    /// The message as it is published again, and where to; none when there is nowhere to go.
    fn make_moved(
        &self,
        offset: Offset,
        to: &MoveTo,
        topology: &Topology,
    ) -> Option<(Publish, Vec<QueueId>)> {
        let record = self.store.read(offset).ok()?.bytes;
        let view = View::of(&record)?;
        let (names, targets) = match to {
            MoveTo::Front => return None,
            MoveTo::Queue(id) => (view.names.to_vec(), vec![topology.queue_by_id(*id)?.id]),
            MoveTo::Exchange { exchange, key } => {
                let exchange = topology.exchange_by_id(*exchange)?;
                let (_, old_key) = view.exchange_and_key()?;
                let key = key.as_deref().unwrap_or(old_key);
                let raw = RawProperties::new(view.properties);
                let headers = raw.peek().ok()?.headers.unwrap_or_default().to_table_within_depth();
                let keys = (key, &string_list(headers.get("CC"))[..]);
                let names = join_names(&exchange.name, key);
                (names, targets(topology, exchange, keys, raw, offset))
            }
        };
        let publish = Publish {
            channel: 0,
            confirm: 0,
            targets: Targets::new(),
            persistent: view.head.persistent,
            priority: view.head.priority,
            expiration_ms: view.head.expiration_ms,
            message: Message::from_parts(&names, view.properties, view.body_bytes()),
            shared: None,
        };
        (!targets.is_empty()).then_some((publish, targets))
    }

    /// All targets of a message have answered; `by` waits for it.
    pub(super) fn end_move(
        &mut self,
        queue: QueueId,
        (id, offset): (UnackedId, Offset),
        by: ConnectionId,
        is_taken: bool,
        now: Time,
        out: &mut Outbox,
    ) {
        self.exits.moved(by, is_taken);
        if !is_taken {
            self.put_back(queue, (id, offset), true, now);
        } else if self.queues.get_mut(queue).is_some_and(|it| it.queue.moved(id, offset)) {
            self.counters.moved += 1;
            self.gone(offset, queue, Way::DeadLettered);
            self.queues.touch(queue);
        }
        self.answer_move(by, out);
    }

    /// A message that cannot be moved is in its place again.
    fn put_back(
        &mut self,
        queue: QueueId,
        (id, offset): (UnackedId, Offset),
        is_late: bool,
        now: Time,
    ) {
        self.queues.change(queue, |hosted, left| {
            hosted.queue.put_back(id, offset, is_late, now, left);
        });
    }

    /// Answers who moves messages, if none is on its way any more.
    fn answer_move(&mut self, by: ConnectionId, out: &mut Outbox) {
        if let Some(moving) = self.exits.end_move(by) {
            out.reply(moving.reply, Reply::Moved(moving.moved));
        }
    }
}
