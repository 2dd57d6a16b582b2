//! From a publisher's batch into log and queues, and the confirms that follow.
//!
//! Hot path: no allocation per message once warm; one copy of the body, into the log.

use leveret_log::{Holder, Keep, Log};
use leveret_queue::{Incoming, Time};
use leveret_topology::{QueueId, Topology};
use smallvec::SmallVec;

use super::{Shard, holder, note_left, queue_offset, touch};
use crate::message::{
    ChannelId, ConnectionId, Outbox, Publish, Reply, ReplyTo, Settlement, ToSession,
};
use crate::record::Head;

impl<L: Log> Shard<L> {
    /// Takes a connection's messages, in order, and confirms those it wants confirmed.
    pub(super) fn publish(
        &mut self,
        from: ConnectionId,
        messages: &[Publish],
        topology: &Topology,
        now: Time,
        out: &mut Outbox,
    ) {
        let mut runs = Runs::new(from);
        for message in messages {
            let taken = self.enqueue(message, topology, now);
            if message.confirm != 0 {
                runs.add(message.channel, message.confirm, taken, out);
            }
            if !self.left.is_empty() {
                self.work_off_left(topology, now, out);
            }
        }
        runs.flush(out);
    }

    /// Applies a transaction's part for this shard.
    pub(super) fn commit(
        &mut self,
        reply: ReplyTo,
        messages: &[Publish],
        settlements: &[Settlement],
        topology: &Topology,
        now: Time,
        out: &mut Outbox,
    ) {
        for message in messages {
            self.enqueue(message, topology, now);
        }
        self.settle(settlements, now);
        out.reply(reply, Reply::Committed);
    }

    /// Appends the message and puts it into its queues. False when a queue refused it.
    pub(super) fn enqueue(&mut self, publish: &Publish, topology: &Topology, now: Time) -> bool {
        let message = &publish.message;
        let head = Head::of(publish, now.ms()).encode();
        let holders: SmallVec<[Holder; 4]> = publish.targets.iter().map(|&id| holder(id)).collect();
        let mut parts: SmallVec<[&[u8]; 16]> = SmallVec::new();
        parts.extend([message.names(), message.properties(), message.body()]);
        parts.extend(message.more().iter().map(|part| &part[..]));
        let keep = Keep::Volatile;
        let appended = self.log.append(&head, &parts, &holders, keep);
        let at = match appended {
            Ok(at) => at,
            Err(error) => {
                tracing::error!(%error, "a message was not stored, its publisher is told");
                self.counters.refused += 1;
                return false;
            }
        };
        let incoming = Incoming {
            offset: queue_offset(at),
            size: u32::try_from(message.body_len()).unwrap_or(u32::MAX),
            priority: publish.priority,
            persistent: publish.persistent,
            expiration_ms: publish.expiration_ms,
            redelivered: false,
            delivery_count: 0,
        };
        let mut taken = true;
        for &id in &publish.targets {
            if !self.enqueue_one(id, incoming, topology, now) {
                taken = false;
            }
        }
        taken
    }

    /// Puts an appended message into one queue. False when the queue refused it.
    fn enqueue_one(
        &mut self,
        id: QueueId,
        incoming: Incoming,
        topology: &Topology,
        now: Time,
    ) -> bool {
        if !self.queues.contains_key(&id) && self.hosted(id, topology, now).is_none() {
            // Deleted between routing and now: the message has left with the queue.
            self.release(incoming.offset, id);
            return true;
        }
        let Some(hosted) = self.queues.get_mut(&id) else { return true };
        let result = hosted.queue.enqueue(incoming, now, &mut self.scratch);
        touch(hosted, id, &mut self.touched);
        note_left(&mut self.scratch, id, &mut self.left);
        match result {
            Ok(()) => {
                self.counters.enqueued += 1;
                true
            }
            Err(_full) => {
                // It has left through the scratch list: dropped or dead-lettered.
                self.counters.refused += 1;
                false
            }
        }
    }
}

/// Confirms gathered into runs of consecutive sequence numbers with the same result.
struct Runs {
    to: ConnectionId,
    run: Option<(ChannelId, u64, u64, bool)>,
}

impl Runs {
    fn new(to: ConnectionId) -> Self {
        Self { to, run: None }
    }

    fn add(&mut self, channel: ChannelId, seq: u64, ok: bool, out: &mut Outbox) {
        if let Some((run_channel, _, last, run_ok)) = &mut self.run
            && *run_channel == channel
            && *run_ok == ok
            && *last + 1 == seq
        {
            *last = seq;
            return;
        }
        self.flush(out);
        self.run = Some((channel, seq, seq, ok));
    }

    fn flush(&mut self, out: &mut Outbox) {
        if let Some((channel, first, last, ok)) = self.run.take() {
            out.session(self.to, ToSession::Confirm { channel, first, last, ok });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn confirms_become_runs() {
        let mut out = Outbox::default();
        let mut runs = Runs::new(ConnectionId::new(1));
        for (channel, seq, ok) in
            [(1, 1, true), (1, 2, true), (1, 3, false), (1, 4, true), (2, 5, true), (2, 7, true)]
        {
            runs.add(channel, seq, ok, &mut out);
        }
        runs.flush(&mut out);
        let got: Vec<_> = out
            .sessions
            .iter()
            .map(|(_, letter)| match letter {
                ToSession::Confirm { channel, first, last, ok } => (*channel, *first, *last, *ok),
                other => panic!("not a confirm: {other:?}"),
            })
            .collect();
        assert_eq!(
            got,
            [(1, 1, 2, true), (1, 3, 3, false), (1, 4, 4, true), (2, 5, 5, true), (2, 7, 7, true)]
        );
    }
}
