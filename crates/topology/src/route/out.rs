//! What routers write to: queues, exchanges to visit, and what finding them has cost. Hot path.

use foldhash::fast::FixedState;
use hashbrown::HashSet;
use smallvec::SmallVec;

use super::Route;
use super::dests::Dests;
use crate::binding::Target;
use crate::id::{ExchangeId, QueueId};
use crate::topology::Topology;

/// What routers write to.
pub(super) struct RouteSink<'r> {
    pub(super) route: &'r mut Route,
    topology: &'r Topology,
    /// Exchanges that were found as destinations, and those visited.
    pub(super) exchanges: SmallVec<[ExchangeId; 8]>,
    /// The same ones, when there are too many to search.
    known: Option<Box<HashSet<ExchangeId, FixedState>>>,
    /// Whether the router at hand found any destination at all.
    pub(super) found: bool,
    /// How many sets of destinations were put into the route: more than one can hold duplicates.
    pub(super) sets: u32,
}

/// Exchanges that are searched one by one.
const SEARCHED_MAX: usize = 32;

impl<'r> RouteSink<'r> {
    pub(super) fn new(route: &'r mut Route, topology: &'r Topology) -> Self {
        Self { route, topology, exchanges: SmallVec::new(), known: None, found: false, sets: 0 }
    }

    #[inline]
    pub(super) fn target(&mut self, target: Target) {
        if self.topology.has_going() && self.topology.is_gone(target) {
            return;
        }
        self.found = true;
        match target {
            Target::Queue(queue) => self.route.queues.push(queue),
            Target::Exchange(exchange) => self.exchange(exchange),
        }
    }

    /// One more to visit, unless it is known.
    pub(super) fn exchange(&mut self, exchange: ExchangeId) {
        let is_new = match &mut self.known {
            Some(known) => known.insert(exchange),
            None => !self.exchanges.contains(&exchange),
        };
        if is_new {
            self.exchanges.push(exchange);
            if self.known.is_none() && self.exchanges.len() > SEARCHED_MAX {
                self.known = Some(Box::new(self.exchanges.iter().copied().collect()));
            }
        }
    }

    /// One destination by itself.
    #[inline]
    pub(super) fn one(&mut self, target: Target) {
        self.sets += 1;
        self.target(target);
    }

    /// Destinations that differ from each other.
    #[inline]
    pub(super) fn all(&mut self, dests: &Dests) {
        if !dests.is_empty() {
            self.sets += 1;
            self.pay(dests.len() / 4);
            for target in dests.iter() {
                self.target(target);
            }
        }
    }

    /// So many things were looked at.
    #[inline]
    pub(super) fn pay(&mut self, looks: usize) {
        let looks = u32::try_from(looks).unwrap_or(u32::MAX);
        self.route.cost = self.route.cost.saturating_add(looks);
    }

    /// It is no use to look further.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.route.is_too_costly()
    }
}

/// Queues that are compared one by one.
const COMPARED_MAX: usize = 16;

/// Ids for each queue, in a row, that are worth a bit each.
const BITS_PER_QUEUE: u64 = 64;

/// Each once. Few: in place; many: by a bit for each id, or sorted if their ids are far apart.
pub(super) fn deduplicate(queues: &mut SmallVec<[QueueId; 4]>) {
    if queues.len() < 2 {
        return;
    }
    if queues.len() > COMPARED_MAX {
        let ids = queues.iter().map(|queue| queue.get());
        let first = ids.clone().min().unwrap_or_default();
        let span = ids.max().unwrap_or_default() - first;
        if span / BITS_PER_QUEUE > queues.len() as u64 {
            queues.sort_unstable();
            queues.dedup();
            return;
        }
        let mut bits = vec![0_u64; (span / 64 + 1) as usize];
        queues.retain(|queue| {
            let at = queue.get() - first;
            let (word, bit) = (&mut bits[(at / 64) as usize], 1 << (at % 64));
            let is_new = *word & bit == 0;
            *word |= bit;
            is_new
        });
        return;
    }
    let mut kept = 1;
    for at in 1..queues.len() {
        let queue = queues[at];
        if !queues[..kept].contains(&queue) {
            queues[kept] = queue;
            kept += 1;
        }
    }
    queues.truncate(kept);
}
