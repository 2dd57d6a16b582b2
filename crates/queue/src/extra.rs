//! What only few messages have: an end of life, and a count of returns.

use crate::ready::QueuedMessage;
use crate::slab::Slab;
use crate::time::Time;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Extra {
    /// Meaningless unless `expires`.
    expires_at: Time,
    delivery_count: u32,
    expires: bool,
}

/// The extras of a queue's ready and unacked messages.
#[derive(Debug, Default)]
pub(crate) struct Extras {
    slab: Slab<Extra>,
}

impl Extras {
    /// About what they take.
    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        (self.slab.len() * Slab::<Extra>::VALUE_BYTES) as u64
    }

    fn has_room(&self) -> bool {
        self.slab.len() < QueuedMessage::EXTRA_END as usize / 2
    }

    #[inline]
    pub(crate) fn expires_at(&self, entry: QueuedMessage) -> Option<Time> {
        let extra = self.slab.get(entry.extra()?)?;
        extra.expires.then_some(extra.expires_at)
    }

    #[inline]
    pub(crate) fn delivery_count(&self, entry: QueuedMessage) -> u32 {
        entry.extra().and_then(|at| self.slab.get(at)).map_or(0, |extra| extra.delivery_count)
    }

    pub(crate) fn set(
        &mut self,
        entry: &mut QueuedMessage,
        expires_at: Option<Time>,
        delivery_count: u32,
    ) {
        let extra = Extra {
            expires_at: expires_at.unwrap_or_default(),
            delivery_count,
            expires: expires_at.is_some(),
        };
        if let Some(at) = entry.extra() {
            if let Some(place) = self.slab.get_mut(at) {
                *place = extra;
            }
        } else if self.has_room() {
            entry.set_extra(self.slab.insert(extra));
        }
        // Half a thousand million messages with extras: one more does without.
    }

    /// Takes over what others had of the message.
    pub(crate) fn adopt(&mut self, entry: &mut QueuedMessage, others: &Self) {
        if let Some(&extra) = entry.extra().and_then(|at| others.slab.get(at)) {
            entry.set_extra(self.slab.insert(extra));
        }
    }

    /// The message leaves: its extra goes, and its count is told.
    #[inline]
    pub(crate) fn forget(&mut self, entry: QueuedMessage) -> u32 {
        entry
            .extra()
            .and_then(|at| self.slab.take_if(at, |_| true))
            .map_or(0, |extra| extra.delivery_count)
    }

    pub(crate) fn relax(&mut self) {
        self.slab.relax();
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.slab.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_bytes() {
        assert_eq!(Slab::<Extra>::VALUE_BYTES, 16);
    }

    #[test]
    fn set_read_and_forgotten() {
        let mut extras = Extras::default();
        let mut entry = QueuedMessage::new(1, 1, true, false);
        assert_eq!(extras.forget(entry), 0);
        extras.set(&mut entry, None, 3);
        assert_eq!((extras.expires_at(entry), extras.delivery_count(entry)), (None, 3));
        extras.set(&mut entry, Some(Time::from_ms(5)), 4);
        assert_eq!(extras.expires_at(entry), Some(Time::from_ms(5)));
        assert_eq!(extras.len(), 1);
        assert_eq!(extras.forget(entry), 4);
        assert_eq!(extras.len(), 0);
    }
}
