//! How long publishers and consumers had to wait, fault by fault.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

/// The pulse of one client: when something good last came, and the longest time between two such moments of this phase.
#[derive(Debug)]
pub(crate) struct Pulse {
    beat: Mutex<Beat>,
    /// Errors that it had in this phase.
    errors: AtomicU64,
}

#[derive(Clone, Copy, Debug)]
struct Beat {
    last: Instant,
    longest: Duration,
}

impl Pulse {
    /// One that is well now.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            beat: Mutex::new(Beat { last: now, longest: Duration::ZERO }),
            errors: AtomicU64::new(0),
        }
    }

    fn with<T>(&self, change: impl FnOnce(&mut Beat) -> T) -> T {
        change(&mut self.beat.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Something good came.
    pub(crate) fn beat(&self, now: Instant) {
        self.with(|it| {
            it.longest = it.longest.max(now.saturating_duration_since(it.last));
            it.last = now;
        });
    }

    /// Something failed.
    pub(crate) fn fail(&self) {
        self.errors.fetch_add(1, Ordering::Relaxed);
    }

    /// When something good came last.
    pub(crate) fn last(&self) -> Instant {
        self.with(|it| it.last)
    }

    /// The longest pause and the errors since this was asked last. A pause that is not over yet counts as long as it has lasted; one that had
    /// begun before counts with its whole length.
    pub(crate) fn take(&self, now: Instant) -> (Duration, u64) {
        let pause = self.with(|it| {
            let longest = std::mem::take(&mut it.longest);
            longest.max(now.saturating_duration_since(it.last))
        });
        (pause, self.errors.swap(0, Ordering::Relaxed))
    }
}

/// What publishers felt of one fault.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct Phase {
    /// The fault.
    pub(crate) name: String,
    /// The node that it hit, by its place in the list; none if it hit all, or none in particular.
    pub(crate) node: Option<usize>,
    /// The longest pause between two confirms, in ms, of each node's publisher.
    pub(crate) pauses_ms: Vec<f64>,
    /// Errors of each node's clients.
    pub(crate) errors: Vec<u64>,
}

/// Phases of one name together, in ms.
#[derive(Debug)]
pub(crate) struct Pauses {
    /// How often.
    pub(crate) count: u64,
    /// Publishers over nodes that were not hit.
    pub(crate) others: Histogram<u64>,
    /// Publishers over the node that was hit.
    pub(crate) own: Histogram<u64>,
    /// Errors of clients over nodes that were not hit.
    pub(crate) errors: u64,
}

/// The phases by name. Pauses are in microseconds there.
pub(crate) fn by_name(phases: &[Phase]) -> BTreeMap<&str, Pauses> {
    let mut all = BTreeMap::new();
    // Up to a day, in us, to three digits.
    let empty = || Histogram::new_with_bounds(1, 86_400_000_000, 3).ok();
    for phase in phases {
        let pauses = match all.entry(&*phase.name) {
            std::collections::btree_map::Entry::Occupied(it) => it.into_mut(),
            std::collections::btree_map::Entry::Vacant(it) => {
                let (Some(others), Some(own)) = (empty(), empty()) else { continue };
                it.insert(Pauses { count: 0, others, own, errors: 0 })
            }
        };
        pauses.count += 1;
        for (node, pause_ms) in phase.pauses_ms.iter().enumerate() {
            let is_own = phase.node.is_none_or(|it| it == node);
            let into = if is_own { &mut pauses.own } else { &mut pauses.others };
            into.saturating_record((pause_ms * 1e3) as u64);
        }
        let errors = phase.errors.iter().enumerate();
        pauses.errors +=
            errors.filter(|(node, _)| phase.node != Some(*node)).map(|(_, it)| it).sum::<u64>();
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_between_what_is_good() {
        let began = Instant::now();
        let at = |ms: u64| began + Duration::from_millis(ms);
        let pulse = Pulse::new(began);
        for ms in [1, 2, 10, 12] {
            pulse.beat(at(ms));
        }
        pulse.fail();
        assert_eq!(pulse.take(at(13)), (Duration::from_millis(8), 1));
        // Over the beginning of a phase, and over its end.
        pulse.beat(at(100));
        assert_eq!(pulse.take(at(101)), (Duration::from_millis(88), 0));
        assert_eq!(pulse.take(at(400)), (Duration::from_millis(300), 0));
        assert_eq!(pulse.last(), at(100));
    }

    #[test]
    fn the_node_that_was_hit_is_apart() {
        let phase = |name: &str, node, pauses_ms: [f64; 3]| Phase {
            name: name.to_owned(),
            node,
            pauses_ms: pauses_ms.to_vec(),
            errors: vec![1, 0, 2],
        };
        let phases = [
            phase("leader killed", Some(0), [4000.0, 100.0, 120.0]),
            phase("leader killed", Some(2), [80.0, 90.0, 5000.0]),
            phase("all killed", None, [9.0, 9.0, 9.0]),
        ];
        let all = by_name(&phases);
        let killed = &all["leader killed"];
        assert_eq!((killed.count, killed.others.len(), killed.own.len()), (2, 4, 2));
        assert!((119_900..120_200).contains(&killed.others.max()), "{}", killed.others.max());
        assert_eq!(killed.errors, 2 + 1);
        assert_eq!((all["all killed"].others.len(), all["all killed"].own.len()), (0, 3));
    }
}
