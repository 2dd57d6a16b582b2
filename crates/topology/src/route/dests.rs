//! Sets of destinations. Hot path: read in order, without indirection while there is only one.

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use smallvec::SmallVec;

use super::Out;
use crate::binding::Target;

/// From here on places are indexed.
const INDEXED: usize = 32;

/// Destinations, each once, with the number of bindings that lead to it. The order means nothing.
#[derive(Debug, Default)]
pub(crate) struct Dests {
    slots: SmallVec<[Slot; 1]>,
    /// The places of all destinations, when there are many: removing one must not search.
    index: Option<Box<HashMap<Target, u32, FixedState>>>,
}

/// The target with its kind in the lowest bit: half the size of a [`Target`].
#[derive(Clone, Copy, Debug)]
struct Slot {
    packed: u64,
    bindings: u32,
}

fn pack(target: Target) -> u64 {
    match target {
        Target::Queue(id) => id.get() << 1,
        Target::Exchange(id) => id.get() << 1 | 1,
    }
}

#[inline]
fn unpack(packed: u64) -> Target {
    if packed & 1 == 0 {
        Target::Queue(crate::id::QueueId::new(packed >> 1))
    } else {
        Target::Exchange(crate::id::ExchangeId::new(packed >> 1))
    }
}

impl Dests {
    pub(crate) fn add(&mut self, target: Target) {
        if let Some(at) = self.place(target) {
            self.slots[at].bindings += 1;
            return;
        }
        self.slots.push(Slot { packed: pack(target), bindings: 1 });
        let last = self.slots.len() - 1;
        if let Some(index) = &mut self.index {
            index.insert(target, place(last));
        } else if self.slots.len() > INDEXED {
            let places = self.slots.iter().enumerate();
            self.index =
                Some(Box::new(places.map(|(at, slot)| (unpack(slot.packed), place(at))).collect()));
        }
    }

    /// Takes one binding away; returns whether it was the destination's last one.
    pub(crate) fn remove(&mut self, target: Target) -> bool {
        let Some(at) = self.place(target) else { return false };
        let slot = &mut self.slots[at];
        slot.bindings -= 1;
        if slot.bindings > 0 {
            return false;
        }
        self.slots.swap_remove(at);
        if let Some(index) = &mut self.index {
            index.remove(&target);
            if let Some(moved) = self.slots.get(at) {
                index.insert(unpack(moved.packed), place(at));
            }
            if self.slots.len() < INDEXED / 2 {
                self.index = None;
            }
        }
        if self.slots.len() <= 1 {
            self.slots.shrink_to_fit();
        }
        true
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = Target> {
        self.slots.iter().map(|slot| unpack(slot.packed))
    }

    /// One of them, evenly by a random number.
    pub(crate) fn pick(&self, seed: u64) -> Option<Target> {
        let count = u64::try_from(self.slots.len()).ok()?;
        let at = usize::try_from(seed.checked_rem(count)?).ok()?;
        self.slots.get(at).map(|slot| unpack(slot.packed))
    }

    fn place(&self, target: Target) -> Option<usize> {
        match &self.index {
            Some(index) => index.get(&target).map(|&at| at as usize),
            None => {
                let packed = pack(target);
                self.slots.iter().position(|slot| slot.packed == packed)
            }
        }
    }
}

fn place(at: usize) -> u32 {
    u32::try_from(at).expect("fewer than 2^32 bindings")
}

/// Destinations by key: direct exchanges.
#[derive(Debug, Default)]
pub(crate) struct KeyMap(HashMap<Box<str>, Dests, FixedState>);

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
    pub(super) fn route(&self, key: &str, out: &mut Out<'_>) {
        if let Some(dests) = self.0.get(key) {
            out.all(dests);
        }
    }
}
