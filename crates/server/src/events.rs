//! What happened to the node: published to the event exchange, and the last of it kept for the management
//! page.
//!
//! Costs one look at an empty list per turn where nothing happens. Memory is bounded by [`KEPT_MAX`] and
//! [`KEPT_BYTES`].

use std::borrow::Cow;
use std::collections::VecDeque;

use leveret_amqp::table::Table;
use leveret_broker::events::{headers, publish};
use leveret_broker::message::Outbox;
use leveret_queue::Time;

use crate::clock::{now, wall};
use crate::locks::{Guard, Rank, Ranked};
use crate::node::Node;

/// Events that are kept at most.
const KEPT_MAX: usize = 1000;

/// Bytes of their facts that are kept at most.
const KEPT_BYTES: usize = 256 << 10;

/// An event that the node keeps for a while, for who asks later.
#[derive(Clone, Debug)]
pub struct KeptEvent {
    /// From 1, one more for each.
    pub number: u64,
    /// When.
    pub at: Time,
    /// `queue.created`, ...
    pub name: Cow<'static, str>,
    /// The headers of its message, as on the wire: much smaller than a table.
    pub facts: Box<[u8]>,
}

/// The last events.
#[derive(Debug)]
pub struct Events(Ranked<KeptEvents>);

impl Default for Events {
    fn default() -> Self {
        Self(Ranked::new(Rank::Events, KeptEvents::default()))
    }
}

/// The last events, within a limit of bytes.
#[derive(Debug, Default)]
struct KeptEvents {
    events: VecDeque<KeptEvent>,
    bytes: usize,
    last: u64,
}

impl Events {
    fn lock(&self) -> Guard<'_, KeptEvents> {
        self.0.lock()
    }

    /// Those kept that came after number `since`, oldest first, and the number of the last one of all.
    pub fn after(&self, since: u64) -> (Vec<KeptEvent>, u64) {
        let kept = self.lock();
        let new = kept.events.iter().filter(|event| event.number > since);
        (new.cloned().collect(), kept.last)
    }

    fn keep(&self, at: Time, name: Cow<'static, str>, facts: &Table) {
        self.lock().keep(at, name, facts.to_bytes().into());
    }
}

impl KeptEvents {
    fn keep(&mut self, at: Time, name: Cow<'static, str>, facts: Box<[u8]>) {
        self.last += 1;
        self.bytes += facts.len();
        self.events.push_back(KeptEvent { number: self.last, at, name, facts });
        while self.events.len() > KEPT_MAX || self.bytes > KEPT_BYTES {
            let Some(oldest) = self.events.pop_front() else { break };
            self.bytes -= oldest.facts.len();
        }
    }
}

/// Keeps and publishes what a turn told.
#[cold]
pub(crate) fn tell(node: &Node, out: &mut Outbox) {
    let topology = node.topology();
    let at = wall(now());
    for event in std::mem::take(&mut out.events) {
        let headers = headers(&event, at);
        if topology.keeps_events() {
            node.events.keep(at, event.name.clone(), &headers);
        }
        publish(&event, headers, at, &topology, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_are_kept() {
        let mut kept = KeptEvents::default();
        for _ in 0..KEPT_MAX + 5 {
            kept.keep(Time::from_ms(1), "x".into(), Box::new([0; 8]));
        }
        assert_eq!(kept.events.len(), KEPT_MAX);
        assert_eq!(kept.events.front().map(|event| event.number), Some(6));
        kept.keep(Time::from_ms(1), "y".into(), vec![0; KEPT_BYTES].into());
        assert_eq!(kept.events.len(), 1);
        kept.keep(Time::from_ms(1), "z".into(), vec![0; KEPT_BYTES + 1].into());
        assert_eq!((kept.events.len(), kept.bytes), (0, 0));
    }
}
