//! Hot path. The messages that are out with a consumer and not settled.
//!
//! No allocation per message once warm; one message is 24 bytes.
//!
//! An id is a place that is used again: [`Unacked::take`] asks for the offset too, so that a late or
//! made-up id never settles another message.

use crate::look::Keyed;
use crate::message::UnackedId;
use crate::ready::QueuedMessage;
use crate::slab::{Drain, Slab};

/// A message that was handed out and is not settled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnackedMessage {
    pub(crate) entry: QueuedMessage,
    /// Where it comes back to.
    pub(crate) priority: u8,
    /// Meaningless for `by_get`.
    consumer: u32,
    /// Taken by `basic.get`: no consumer.
    by_get: bool,
}

impl UnackedMessage {
    /// Who has it.
    pub(crate) fn consumer(&self) -> Option<u32> {
        (!self.by_get).then_some(self.consumer)
    }
}

impl Keyed for UnackedMessage {
    fn key(&self) -> u64 {
        self.entry.offset
    }
}

/// All unacked messages of a queue.
#[derive(Debug, Default)]
pub(crate) struct Unacked {
    out: Slab<UnackedMessage>,
    bytes: u64,
}

impl Unacked {
    /// What a message takes.
    pub(crate) const MESSAGE_BYTES: u64 = Slab::<UnackedMessage>::VALUE_BYTES as u64;

    pub(crate) fn len(&self) -> u64 {
        self.out.len() as u64
    }

    /// Bytes of the bodies.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Puts a message out with a consumer, or with whoever called `basic.get`.
    #[inline]
    pub(crate) fn insert(
        &mut self,
        entry: QueuedMessage,
        priority: u8,
        consumer: Option<u32>,
    ) -> UnackedId {
        self.bytes += u64::from(entry.size);
        let (by_get, consumer) = (consumer.is_none(), consumer.unwrap_or_default());
        UnackedId(self.out.insert(UnackedMessage { entry, priority, consumer, by_get }))
    }

    /// Takes the message out if `id` still means `offset`.
    #[inline]
    pub(crate) fn take(&mut self, id: UnackedId, offset: u64) -> Option<UnackedMessage> {
        let out = self.out.take_if(id.0, |out| out.entry.offset == offset)?;
        self.bytes -= u64::from(out.entry.size);
        Some(out)
    }

    /// The message, if `id` still means `offset`.
    #[cold]
    pub(crate) fn get(&self, id: UnackedId, offset: u64) -> Option<QueuedMessage> {
        self.out.get(id.0).map(|out| out.entry).filter(|entry| entry.offset == offset)
    }

    /// Puts what is known of the message in another way.
    #[cold]
    pub(crate) fn set(&mut self, id: UnackedId, entry: QueuedMessage) {
        if let Some(out) = self.out.get_mut(id.0) {
            out.entry = entry;
        }
    }

    pub(crate) fn outs(&self) -> impl Iterator<Item = &UnackedMessage> {
        self.out.values()
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = QueuedMessage> {
        self.outs().map(|out| out.entry)
    }

    pub(crate) fn entries_mut(&mut self) -> impl Iterator<Item = &mut QueuedMessage> {
        self.out.values_mut().map(|out| &mut out.entry)
    }

    /// Takes all messages out.
    pub(crate) fn drain(&mut self) -> Drain<UnackedMessage> {
        std::mem::take(self).out.drain()
    }

    /// Gives back memory that is kept for speed.
    pub(crate) fn relax(&mut self) {
        self.out.relax();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twenty_four_bytes() {
        assert_eq!(Slab::<UnackedMessage>::VALUE_BYTES, 24);
    }

    #[test]
    fn a_late_id_settles_nothing() {
        let mut unacked = Unacked::default();
        let first = unacked.insert(QueuedMessage::new(7, 100, false, false), 0, Some(0));
        assert!(unacked.take(first, 8).is_none());
        assert!(unacked.take(first, 7).is_some());
        let second = unacked.insert(QueuedMessage::new(9, 100, false, false), 0, Some(0));
        assert_eq!(first, second, "the place is used again");
        assert!(unacked.take(first, 7).is_none());
        assert_eq!((unacked.len(), unacked.bytes()), (1, 100));
    }
}
