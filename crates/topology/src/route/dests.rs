//! Sets of destinations. Hot path: read in order, without indirection while there is only one.

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::RouteSink;
use crate::binding::Target;
use crate::hash::Keyed;
use crate::id::{ExchangeId, QueueId};

/// From here on places are indexed.
const INDEXED: usize = 32;

/// Destinations, each once, with the number of bindings that lead to it. The order means nothing.
///
/// 16 bytes while there is one, which is by far the most frequent case.
#[derive(Debug, Default)]
pub(crate) enum Dests {
    #[default]
    None,
    One(CountedTarget),
    Many(Box<Set>),
}

/// A target and its bindings, in less than a [`Target`] takes: the kind is in the lowest bit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CountedTarget {
    /// Two halves, so that the target needs no more than their alignment.
    packed: [u32; 2],
    bindings: u32,
}

/// Two or more.
#[derive(Debug, Default)]
pub(crate) struct Set {
    slots: Vec<CountedTarget>,
    /// The places of all destinations, when there are many: removing one must not search.
    index: Option<HashMap<Target, u32, FixedState>>,
}

impl CountedTarget {
    fn new(target: Target) -> Self {
        let packed = match target {
            Target::Queue(id) => id.get() << 1,
            Target::Exchange(id) => id.get() << 1 | 1,
        };
        Self { packed: [(packed >> 32) as u32, packed as u32], bindings: 1 }
    }

    #[inline]
    fn target(self) -> Target {
        let packed = u64::from(self.packed[0]) << 32 | u64::from(self.packed[1]);
        if packed & 1 == 0 {
            Target::Queue(QueueId::new(packed >> 1))
        } else {
            Target::Exchange(ExchangeId::new(packed >> 1))
        }
    }
}

impl Dests {
    pub(crate) fn add(&mut self, target: Target) {
        match self {
            Self::None => *self = Self::One(CountedTarget::new(target)),
            Self::One(slot) if slot.target() == target => slot.bindings += 1,
            Self::One(slot) => {
                let slots = vec![*slot, CountedTarget::new(target)];
                *self = Self::Many(Box::new(Set { slots, index: None }));
            }
            Self::Many(set) => set.add(target),
        }
    }

    /// Takes one binding away.
    pub(crate) fn remove(&mut self, target: Target) {
        match self {
            Self::None => {}
            Self::One(slot) => {
                if slot.target() == target {
                    slot.bindings -= 1;
                    if slot.bindings == 0 {
                        *self = Self::None;
                    }
                }
            }
            Self::Many(set) => {
                set.remove(target);
                if let &[slot] = set.slots.as_slice() {
                    *self = Self::One(slot);
                }
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::None)
    }

    pub(crate) fn len(&self) -> usize {
        self.slots().len()
    }

    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = Target> {
        self.slots().iter().map(|slot| slot.target())
    }

    /// One of them, evenly by a random number.
    pub(crate) fn pick(&self, seed: u64) -> Option<Target> {
        let slots = self.slots();
        let at = seed.checked_rem(slots.len() as u64)?;
        slots.get(usize::try_from(at).ok()?).map(|slot| slot.target())
    }

    #[inline]
    fn slots(&self) -> &[CountedTarget] {
        match self {
            Self::None => &[],
            Self::One(slot) => core::slice::from_ref(slot),
            Self::Many(set) => &set.slots,
        }
    }
}

impl Set {
    fn add(&mut self, target: Target) {
        if let Some(at) = self.place(target) {
            self.slots[at].bindings += 1;
            return;
        }
        self.slots.push(CountedTarget::new(target));
        let last = self.slots.len() - 1;
        if let Some(index) = &mut self.index {
            index.insert(target, place(last));
        } else if self.slots.len() > INDEXED {
            let places = self.slots.iter().enumerate();
            self.index = Some(places.map(|(at, slot)| (slot.target(), place(at))).collect());
        }
    }

    fn remove(&mut self, target: Target) {
        let Some(at) = self.place(target) else { return };
        let slot = &mut self.slots[at];
        slot.bindings -= 1;
        if slot.bindings > 0 {
            return;
        }
        self.slots.swap_remove(at);
        if let Some(index) = &mut self.index {
            index.remove(&target);
            if let Some(moved) = self.slots.get(at) {
                index.insert(moved.target(), place(at));
            }
            if self.slots.len() < INDEXED / 2 {
                self.index = None;
            }
        }
    }

    fn place(&self, target: Target) -> Option<usize> {
        match &self.index {
            Some(index) => index.get(&target).map(|&at| at as usize),
            None => self.slots.iter().position(|slot| slot.target() == target),
        }
    }
}

fn place(at: usize) -> u32 {
    u32::try_from(at).expect("fewer than 2^32 bindings")
}

/// Destinations by key: direct exchanges.
#[derive(Debug, Default)]
pub(crate) struct KeyMap(HashMap<Box<str>, Dests, Keyed>);

impl KeyMap {
    pub(crate) fn bind(&mut self, key: &str, target: Target) {
        if let Some(dests) = self.0.get_mut(key) {
            dests.add(target);
        } else {
            self.0.entry(key.into()).or_default().add(target);
        }
    }

    pub(crate) fn unbind(&mut self, key: &str, target: Target) {
        let Some(dests) = self.0.get_mut(key) else { return };
        dests.remove(target);
        if dests.is_empty() {
            self.0.remove(key);
            if self.0.is_empty() {
                self.0 = HashMap::default();
            }
        }
    }

    #[inline]
    pub(super) fn route(&self, key: &str, out: &mut RouteSink<'_>) {
        out.pay(1);
        if let Some(dests) = self.0.get(key) {
            out.all(dests);
        }
    }
}
