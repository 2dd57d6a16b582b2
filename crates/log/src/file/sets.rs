//! Who holds a record, as one number: equal sets of holders are kept once.
//!
//! Hot path: a single holder with a small number, as queues have, is its own set and costs nothing.
//! Others: one hash of the names per record, none if they are those of the record before.
//!
//! Most records of a log share a few sets (a queue alone, all queues of a fan-out, those of them that
//! have not acked yet), so that a set per record is 4 bytes, and runs of records share even those.
//!
//! A set of more than [`SHARED_MAX`] names changes in another way: its names stay, and who left is a
//! bit each. Making each of its subsets would be quadratic.

use std::hash::BuildHasher as _;
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashTable;
use smallvec::SmallVec;

use crate::Holder;

/// The largest set whose subsets are looked up among all sets.
const SHARED_MAX: usize = 64;

/// Marks the set of one holder, whose number is the rest. The highest bit is for others to use.
const LONE: u32 = 1 << 30;

/// The name of a set. Never 0, so that 0 can stand for nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SetId(u32);

impl SetId {
    pub(super) const fn get(self) -> u32 {
        self.0
    }

    pub(super) const fn new(number: u32) -> Option<Self> {
        if number == 0 { None } else { Some(Self(number)) }
    }

    /// The set of one holder with a small number.
    fn lone(name: Holder) -> Option<Self> {
        (name.get() < u64::from(LONE)).then_some(Self(LONE | name.get() as u32))
    }

    /// The number of its only holder, if that is small.
    pub(super) fn place(self) -> Option<usize> {
        (self.0 & LONE > 0).then_some((self.0 & !LONE) as usize)
    }

    fn as_lone(self) -> Option<Holder> {
        (self.0 & LONE > 0).then_some(Holder::new(u64::from(self.0 & !LONE)))
    }
}

/// A set of holders, stored once for all records that have it.
#[derive(Debug)]
struct StoredSet {
    /// In the order given by whoever made the set first.
    names: Names,
    /// Records that have this set.
    uses: u64,
}

#[derive(Debug)]
enum Names {
    Unused,
    One(Holder),
    Few(Box<[Holder]>),
    /// Ascending. Of one record only once somebody left.
    Many {
        names: Arc<[Holder]>,
        gone: Box<[u64]>,
        left: usize,
    },
}

/// All sets that records have.
#[derive(Debug, Default)]
pub(super) struct Sets {
    /// Set `n` is in slot `n - 1`.
    slots: Vec<StoredSet>,
    /// Slots by their names; those of `Many` only while nobody left.
    by_names: HashTable<u32>,
    free: Vec<u32>,
    /// Sets that no record has. Kept for the next, up to a share of all.
    idle: usize,
    /// Bytes of names.
    name_bytes: usize,
    /// What was asked for last.
    last: Option<SetId>,
}

fn hash(names: &[Holder]) -> u64 {
    FixedState::default().hash_one(names)
}

impl StoredSet {
    fn is(&self, names: &[Holder]) -> bool {
        match &self.names {
            Names::Unused => false,
            Names::One(name) => names == [*name],
            Names::Few(few) => names == &few[..],
            Names::Many { names: many, left, .. } => *left == many.len() && names == &many[..],
        }
    }

    fn bytes(&self) -> usize {
        match &self.names {
            Names::Unused | Names::One(_) => 0,
            Names::Few(names) => size_of_val(&names[..]),
            // The names are shared by all sets made from one.
            Names::Many { names, gone, .. } if gone.is_empty() => size_of_val(&names[..]),
            Names::Many { gone, .. } => size_of_val(&gone[..]),
        }
    }
}

impl Sets {
    /// The set of these names, for one more record. `names` has at least one, and none twice.
    pub(super) fn get(&mut self, names: &[Holder]) -> SetId {
        debug_assert!(!names.is_empty());
        if let [name] = names
            && let Some(lone) = SetId::lone(*name)
        {
            return lone;
        }
        if let Some(last) = self.last {
            let slot = &mut self.slots[last.0 as usize - 1];
            if slot.is(names) {
                self.idle -= usize::from(slot.uses == 0);
                slot.uses += 1;
                return last;
            }
        }
        let id = if names.len() > SHARED_MAX && !names.is_sorted() {
            let mut names = names.to_vec();
            names.sort_unstable();
            self.find_or_add(&names)
        } else {
            self.find_or_add(names)
        };
        self.last = Some(id);
        id
    }

    /// The same for `count` more records, of which there is at least one.
    pub(super) fn get_for(&mut self, names: &[Holder], count: u64) -> SetId {
        debug_assert!(count > 0);
        let id = self.get(names);
        self.add_uses(id, count - 1);
        id
    }

    /// So many more records have a set that one has already.
    pub(super) fn add_uses(&mut self, id: SetId, count: u64) {
        if id.as_lone().is_none() {
            self.slots[id.0 as usize - 1].uses += count;
        }
    }

    fn find_or_add(&mut self, names: &[Holder]) -> SetId {
        if let [name] = names
            && let Some(lone) = SetId::lone(*name)
        {
            return lone;
        }
        let slots = &self.slots;
        let hash = hash(names);
        if let Some(&id) = self.by_names.find(hash, |&id| slots[id as usize - 1].is(names)) {
            let slot = &mut self.slots[id as usize - 1];
            self.idle -= usize::from(slot.uses == 0);
            slot.uses += 1;
            return SetId(id);
        }
        let names = match names {
            [name] => Names::One(*name),
            names if names.len() <= SHARED_MAX => Names::Few(names.into()),
            names => Names::Many { names: names.into(), gone: Box::new([]), left: names.len() },
        };
        let id = self.add(StoredSet { names, uses: 1 });
        let slots = &self.slots;
        self.by_names.insert_unique(hash, id.0, |&id| slots[id as usize - 1].hash());
        id
    }

    fn add(&mut self, slot: StoredSet) -> SetId {
        self.name_bytes += slot.bytes();
        if let Some(id) = self.free.pop() {
            self.slots[id as usize - 1] = slot;
            return SetId(id);
        }
        self.slots.push(slot);
        SetId(self.slots.len() as u32)
    }

    /// Whether a name is in a set.
    pub(super) fn has(&self, id: SetId, name: Holder) -> bool {
        let mut has = false;
        self.each(id, |it| has |= it == name);
        has
    }

    /// The set without one of its names: `Ok(None)` if it was the last. `Err` if it is not in it.
    pub(super) fn without(&mut self, id: SetId, name: Holder) -> Result<Option<SetId>, ()> {
        if let Some(lone) = id.as_lone() {
            return if lone == name { Ok(None) } else { Err(()) };
        }
        let slot = &mut self.slots[id.0 as usize - 1];
        match &mut slot.names {
            Names::Unused => Err(()),
            Names::One(only) if *only == name => {
                self.drop_use(id);
                Ok(None)
            }
            Names::One(_) => Err(()),
            Names::Few(few) => {
                let index = few.iter().position(|it| *it == name).ok_or(())?;
                let mut rest = SmallVec::<[Holder; SHARED_MAX]>::from_slice(few);
                rest.remove(index);
                self.drop_use(id);
                Ok(Some(self.find_or_add(&rest)))
            }
            Names::Many { names, gone, left } => {
                let index = names.binary_search(&name).map_err(|_| ())?;
                let (word, bit) = (index / 64, 1 << (index % 64));
                if gone.get(word).is_some_and(|it| it & bit > 0) {
                    return Err(());
                }
                if *left - 1 == SHARED_MAX {
                    let mut rest = SmallVec::<[Holder; SHARED_MAX]>::new();
                    self.each(id, |it| {
                        if it != name {
                            rest.push(it);
                        }
                    });
                    self.drop_use(id);
                    return Ok(Some(self.find_or_add(&rest)));
                }
                if slot.uses == 1 && !gone.is_empty() {
                    gone[word] |= bit;
                    *left -= 1;
                    return Ok(Some(id));
                }
                let mut gone: Box<[u64]> = match gone.is_empty() {
                    true => vec![0; names.len().div_ceil(64)].into(),
                    false => gone.clone(),
                };
                gone[word] |= bit;
                let names = Names::Many { names: Arc::clone(names), gone, left: *left - 1 };
                self.drop_use(id);
                Ok(Some(self.add(StoredSet { names, uses: 1 })))
            }
        }
    }

    /// How many names are in a set.
    pub(super) fn len(&self, id: SetId) -> usize {
        if id.as_lone().is_some() {
            return 1;
        }
        match &self.slots[id.0 as usize - 1].names {
            Names::Unused => 0,
            Names::One(_) => 1,
            Names::Few(names) => names.len(),
            Names::Many { left, .. } => *left,
        }
    }

    /// Calls `take` for each name.
    pub(super) fn each(&self, id: SetId, mut take: impl FnMut(Holder)) {
        if let Some(lone) = id.as_lone() {
            return take(lone);
        }
        match &self.slots[id.0 as usize - 1].names {
            Names::Unused => {}
            Names::One(name) => take(*name),
            Names::Few(names) => names.iter().copied().for_each(take),
            Names::Many { names, gone, .. } => {
                let is_gone = |index: usize| gone.get(index / 64).unwrap_or(&0) >> (index % 64) & 1;
                let left = names.iter().enumerate().filter(|(index, _)| is_gone(*index) == 0);
                left.for_each(|(_, name)| take(*name));
            }
        }
    }

    /// One record less has this set.
    pub(super) fn drop_use(&mut self, id: SetId) {
        if id.as_lone().is_some() {
            return;
        }
        let slot = &mut self.slots[id.0 as usize - 1];
        slot.uses -= 1;
        if slot.uses > 0 {
            return;
        }
        if matches!(&slot.names, Names::Many { gone, .. } if !gone.is_empty()) {
            self.forget(id.0);
            return;
        }
        self.idle += 1;
        if self.idle > 256 && 2 * self.idle > self.slots.len() - self.free.len() {
            self.sweep();
        }
    }

    /// Forgets every set that no record has.
    #[cold]
    fn sweep(&mut self) {
        for id in 1..=self.slots.len() as u32 {
            let slot = &self.slots[id as usize - 1];
            if slot.uses == 0 && !matches!(slot.names, Names::Unused) {
                let hash = slot.hash();
                if let Ok(entry) = self.by_names.find_entry(hash, |&it| it == id) {
                    entry.remove();
                }
                self.forget(id);
            }
        }
        self.idle = 0;
        self.last = None;
        if self.free.len() == self.slots.len() {
            let name_bytes = self.name_bytes;
            debug_assert_eq!(name_bytes, 0);
            *self = Self::default();
        }
    }

    fn forget(&mut self, id: u32) {
        let slot = &mut self.slots[id as usize - 1];
        self.name_bytes = self.name_bytes.saturating_sub(slot.bytes());
        slot.names = Names::Unused;
        self.free.push(id);
        if self.last == Some(SetId(id)) {
            self.last = None;
        }
    }

    /// Bytes of memory.
    pub(super) fn held_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<StoredSet>()
            + self.by_names.capacity() * size_of::<u32>()
            + self.free.capacity() * size_of::<u32>()
            + self.name_bytes
    }
}

impl StoredSet {
    fn hash(&self) -> u64 {
        match &self.names {
            Names::Unused => 0,
            Names::One(name) => hash(&[*name]),
            Names::Few(names) => hash(names),
            Names::Many { names, .. } => hash(names),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(range: std::ops::Range<u64>) -> Vec<Holder> {
        range.map(Holder::new).collect()
    }

    fn list(sets: &Sets, id: SetId) -> Vec<u64> {
        let mut list = Vec::new();
        sets.each(id, |name| list.push(name.get()));
        list
    }

    #[test]
    fn equal_sets_are_one() {
        let mut sets = Sets::default();
        let one = sets.get(&names(0..3));
        let other = sets.get(&names(0..2));
        assert_ne!(one, other);
        assert_eq!(sets.get(&names(0..3)), one);
        assert_eq!(sets.without(one, Holder::new(2)), Ok(Some(other)));
        assert_eq!(sets.without(one, Holder::new(3)), Err(()));
        let last = sets.without(other, Holder::new(0)).unwrap().unwrap();
        assert_eq!(list(&sets, last), [1]);
        assert_eq!(sets.without(last, Holder::new(1)), Ok(None));
    }

    #[test]
    fn sets_of_many_lose_their_names_one_by_one() {
        for count in [64, 65, 66, 200, 1000] {
            let mut sets = Sets::default();
            let mut kept = names(0..count);
            let (mut id, other) = (sets.get(&kept), sets.get(&kept));
            while kept.len() > 1 {
                let name = kept.swap_remove(kept.len() / 3);
                id = sets.without(id, name).unwrap().unwrap();
                assert_eq!(sets.without(id, name), Err(()));
                assert_eq!(sets.len(id), kept.len());
                let mut want: Vec<_> = kept.iter().map(|name| name.get()).collect();
                let mut got = list(&sets, id);
                want.sort_unstable();
                got.sort_unstable();
                assert_eq!(got, want);
            }
            assert_eq!(sets.without(id, kept[0]), Ok(None));
            assert_eq!(list(&sets, other).len() as u64, count);
            sets.drop_use(other);
        }
    }

    #[test]
    fn sets_that_no_record_has_go() {
        let mut sets = Sets::default();
        for number in 0..10_000 {
            let id = sets.get(&names(number..number + 3));
            sets.drop_use(id);
        }
        assert!(sets.held_bytes() < 60_000, "{}", sets.held_bytes());
    }
}
