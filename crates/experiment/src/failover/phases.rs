//! How long publishers and consumers had to wait, fault by fault.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::account::Deed;

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

    /// The errors of this phase so far.
    pub(crate) fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
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

/// What publishers felt of one fault, and what became of their messages.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub(crate) struct Phase {
    /// The fault.
    pub(crate) name: String,
    /// The nodes that it hit, by their places in the list; none if it hit all, or none in particular.
    pub(crate) nodes: Vec<usize>,
    /// The longest pause between two confirms, in ms, of each node's publisher.
    pub(crate) pauses_ms: Vec<f64>,
    /// Errors of each node's clients.
    pub(crate) errors: Vec<u64>,
    /// When it ended, in ms since the beginning of the traffic.
    pub(crate) until_ms: u32,
    /// Messages that were confirmed.
    pub(crate) confirmed: u64,
    /// Of these, messages that were lost: by this fault, or by a later one.
    pub(crate) lost: u64,
    /// Messages that came twice without a reason.
    pub(crate) duplicates: u64,
    /// Messages that came after a later one.
    pub(crate) out_of_order: u64,
}

impl Phase {
    fn count(&mut self, deed: Deed) {
        *match deed {
            Deed::Confirmed => &mut self.confirmed,
            Deed::Lost => &mut self.lost,
            Deed::Duplicate => &mut self.duplicates,
            Deed::OutOfOrder => &mut self.out_of_order,
        } += 1;
    }
}

/// Counts something in the phase in which it happened; what came behind the last one belongs to that.
pub(crate) fn count(phases: &mut [Phase], deed: Deed, at_ms: u32) {
    let last = phases.len().saturating_sub(1);
    let at = phases.partition_point(|it| it.until_ms <= at_ms).min(last);
    if let Some(phase) = phases.get_mut(at) {
        phase.count(deed);
    }
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
            let is_own = phase.nodes.is_empty() || phase.nodes.contains(&node);
            let into = if is_own { &mut pauses.own } else { &mut pauses.others };
            into.saturating_record((pause_ms * 1e3) as u64);
        }
        let errors = phase.errors.iter().enumerate();
        pauses.errors +=
            errors.filter(|(node, _)| !phase.nodes.contains(node)).map(|(_, it)| it).sum::<u64>();
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
    fn what_happens_belongs_to_a_phase() {
        let until = |until_ms| Phase { until_ms, ..Phase::default() };
        let mut phases = [until(100), until(250)];
        for (deed, at_ms) in [
            (Deed::Confirmed, 0),
            (Deed::Confirmed, 99),
            (Deed::Confirmed, 100),
            (Deed::Lost, 249),
            (Deed::Duplicate, 9000),
        ] {
            count(&mut phases, deed, at_ms);
        }
        let [first, second] = &phases;
        assert_eq!((first.confirmed, first.lost, first.duplicates), (2, 0, 0));
        assert_eq!((second.confirmed, second.lost, second.duplicates), (1, 1, 1));
        count(&mut [], Deed::Lost, 0);
    }

    #[test]
    fn the_node_that_was_hit_is_apart() {
        let phase = |name: &str, nodes: &[usize], pauses_ms: [f64; 3]| Phase {
            name: name.to_owned(),
            nodes: nodes.to_vec(),
            pauses_ms: pauses_ms.to_vec(),
            errors: vec![1, 0, 2],
            ..Phase::default()
        };
        let phases = [
            phase("leader killed", &[0], [4000.0, 100.0, 120.0]),
            phase("leader killed", &[2], [80.0, 90.0, 5000.0]),
            phase("all killed", &[], [9.0, 9.0, 9.0]),
        ];
        let all = by_name(&phases);
        let killed = &all["leader killed"];
        assert_eq!((killed.count, killed.others.len(), killed.own.len()), (2, 4, 2));
        assert!((119_900..120_200).contains(&killed.others.max()), "{}", killed.others.max());
        assert_eq!(killed.errors, 2 + 1);
        assert_eq!((all["all killed"].others.len(), all["all killed"].own.len()), (0, 3));
    }
}
