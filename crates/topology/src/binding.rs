//! Bindings: one arena, found by what they are, by their source and by their destination.
//!
//! ```text
//!   identity (source, destination, key, arguments) -> slot      is it there already?
//!   id -> slot                                                  a change of it
//!   exchange.outgoing: [slot ...]                               delete exchange, list
//!   queue.incoming / exchange.incoming: [slot ...]              delete destination, list
//! ```
//!
//! A binding knows its place in the two lists, so that removing one costs the same however many
//! there are.

use leveret_amqp::table::Table;

use crate::arena::{Arena, SplitTable};
use crate::hash::Hasher64;
use crate::id::{BindingId, ExchangeId, GroupId, QueueId};
use crate::weight::Weigh as _;

/// A place in the arena; used again once the binding is gone.
pub(crate) type BindingIx = u32;

/// The other end of a binding, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination<'a> {
    /// `queue.bind`.
    Queue(&'a str),
    /// `exchange.bind`.
    Exchange(&'a str),
}

/// The other end of a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// A queue.
    Queue(QueueId),
    /// An exchange.
    Exchange(ExchangeId),
}

/// A binding.
#[derive(Clone, Debug)]
pub struct Binding {
    /// The exchange that messages come from.
    pub source: ExchangeId,
    /// Where they go.
    pub target: Target,
    /// The binding key.
    pub key: Box<str>,
    /// Sorted by name, as RabbitMQ keeps them.
    pub arguments: Table,
}

/// What `bind` did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// It did not exist.
    pub created: bool,
    /// The source is a recent-history exchange: its last messages go to the new destination.
    pub recent_history: Option<ExchangeId>,
    /// The destination.
    pub target: Target,
}

/// What went away beside what was asked for.
#[derive(Clone, Debug, Default)]
pub struct Removed {
    /// Exchanges: the one that was deleted, and auto-delete exchanges that lost their last binding.
    pub exchanges: Vec<RemovedExchange>,
    /// All bindings that are gone.
    pub bindings: Vec<Binding>,
}

/// An exchange that is no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovedExchange {
    /// Its id.
    pub id: ExchangeId,
    /// Its name.
    pub name: std::sync::Arc<str>,
    /// Where what it remembered is.
    pub home: GroupId,
}

/// A binding with its places in the lists of its two ends.
#[derive(Debug)]
pub(crate) struct BindingEntry {
    pub(crate) binding: Binding,
    identity: u64,
    /// Where the entry is in its source's `outgoing`.
    pub(crate) at_source: u32,
    /// Where the entry is in its destination's `incoming`.
    pub(crate) at_target: u32,
    /// The id, and in the lowest bit whether both ends survive a restart: no byte more than an id.
    id_and_durable: u64,
}

impl BindingEntry {
    pub(crate) fn id(&self) -> BindingId {
        BindingId::new(self.id_and_durable >> 1)
    }

    /// Both ends survive a restart.
    pub(crate) fn durable(&self) -> bool {
        self.id_and_durable & 1 != 0
    }

    fn hash_of_id(&self) -> u64 {
        hash_of_id(self.id())
    }
}

/// No id is as high: there is a bit to spare.
pub(crate) const BINDING_IDS: u64 = 1 << 62;

/// Whether and where a binding is in lists.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listed {
    /// Its place in its source's `outgoing`.
    pub(crate) at_source: u32,
    /// Its place in its destination's `incoming`.
    pub(crate) at_target: u32,
    /// Both ends survive a restart.
    pub(crate) durable: bool,
}

/// All bindings of all vhosts.
#[derive(Debug, Default)]
pub(crate) struct Bindings {
    entries: Arena<Option<BindingEntry>>,
    free: Vec<BindingIx>,
    by_identity: SplitTable,
    by_id: SplitTable,
    /// The first id that is not used.
    next: u64,
    bytes: u64,
}

impl Bindings {
    pub(crate) fn len(&self) -> usize {
        self.by_identity.len()
    }

    /// Bytes of all of them.
    pub(crate) fn weight(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn get(&self, ix: BindingIx) -> &Binding {
        &self.entry(ix).binding
    }

    pub(crate) fn entry(&self, ix: BindingIx) -> &BindingEntry {
        self.entries[ix].as_ref().expect("a listed binding exists")
    }

    pub(crate) fn entry_mut(&mut self, ix: BindingIx) -> &mut BindingEntry {
        self.entries[ix].as_mut().expect("a listed binding exists")
    }

    /// Whether there still is one in this place that leads to this exchange.
    pub(crate) fn contains(&self, ix: BindingIx, target: ExchangeId) -> bool {
        let entry = self.entries.get(ix).and_then(Option::as_ref);
        entry.is_some_and(|entry| entry.binding.target == Target::Exchange(target))
    }

    pub(crate) fn find(&self, binding: &Binding) -> Option<BindingIx> {
        let identity = identity(binding);
        self.by_identity.find(identity, |&ix| {
            let entry = self.entry(ix);
            entry.identity == identity && same(&entry.binding, binding)
        })
    }

    /// Where the binding with this id is.
    pub(crate) fn find_id(&self, id: BindingId) -> Option<BindingIx> {
        self.by_id.find(hash_of_id(id), |&ix| self.entry(ix).id() == id)
    }

    /// The id of the next binding.
    pub(crate) fn next_id(&self) -> BindingId {
        BindingId::new(self.next)
    }

    /// An id that is not given again.
    pub(crate) fn used(&mut self, id: BindingId) {
        self.next = self.next.max(id.get() + 1);
    }

    /// The caller has made sure that it is not there and the id is free, and puts it into both lists.
    pub(crate) fn insert(&mut self, id: BindingId, binding: Binding, listed: Listed) -> BindingIx {
        let identity = identity(&binding);
        self.bytes += binding.weight();
        self.used(id);
        let Listed { at_source, at_target, durable } = listed;
        let id_and_durable = id.get() << 1 | u64::from(durable);
        let entry = Some(BindingEntry { binding, identity, at_source, at_target, id_and_durable });
        let ix = match self.free.pop() {
            Some(ix) => {
                self.entries[ix] = entry;
                ix
            }
            None => self.entries.push(entry),
        };
        let entries = &self.entries;
        let at = |&ix: &BindingIx| entries[ix].as_ref().expect("a listed binding exists");
        self.by_identity.insert(identity, ix, |ix| at(ix).identity);
        self.by_id.insert(hash_of_id(id), ix, |ix| at(ix).hash_of_id());
        ix
    }

    /// The caller has taken it out of both lists.
    pub(crate) fn remove(&mut self, ix: BindingIx) -> Binding {
        let entry = self.entries[ix].take().expect("a listed binding exists");
        self.by_identity.remove(entry.identity, ix);
        self.by_id.remove(entry.hash_of_id(), ix);
        self.free.push(ix);
        self.bytes -= entry.binding.weight();
        if self.by_identity.is_empty() {
            *self = Self { next: self.next, ..Self::default() };
        }
        entry.binding
    }

    /// One more than the last place in use.
    pub(crate) fn places(&self) -> BindingIx {
        u32::try_from(self.entries.len()).expect("fewer than 2^32 bindings")
    }

    /// The binding in this place, if there is one.
    pub(crate) fn at(&self, ix: BindingIx) -> Option<&Binding> {
        self.entries.get(ix)?.as_ref().map(|entry| &entry.binding)
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = (BindingIx, &BindingEntry)> {
        let places = 0..u32::MAX;
        places.zip(self.entries.iter()).filter_map(|(ix, entry)| Some((ix, entry.as_ref()?)))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Binding> {
        self.entries.iter().flatten().map(|entry| &entry.binding)
    }
}

/// Sorts arguments by name: two tables with the same pairs are the same arguments.
pub(crate) fn sorted(arguments: Table) -> Table {
    if arguments.len() < 2 || arguments.iter().map(|(name, _)| name).is_sorted() {
        return arguments;
    }
    let mut pairs: Vec<_> = arguments.into_iter().collect();
    pairs.sort_by(|a, b| a.0.cmp(&b.0));
    pairs.into_iter().collect()
}

fn hash_of_id(id: BindingId) -> u64 {
    let mut hasher = Hasher64::keyed();
    hasher.number(id.get());
    hasher.finish()
}

fn identity(binding: &Binding) -> u64 {
    let mut hasher = Hasher64::keyed();
    hasher.number(binding.source.get());
    match binding.target {
        Target::Queue(id) => hasher.number(id.get() << 1),
        Target::Exchange(id) => hasher.number(id.get() << 1 | 1),
    }
    hasher.bytes(binding.key.as_bytes());
    if !binding.arguments.is_empty() {
        hasher.bytes(&binding.arguments.to_bytes());
    }
    hasher.finish()
}

fn same(a: &Binding, b: &Binding) -> bool {
    a.source == b.source
        && a.target == b.target
        && a.key == b.key
        && a.arguments.len() == b.arguments.len()
        // By wire bytes: a NaN equals itself.
        && (a.arguments.is_empty() || a.arguments.to_bytes() == b.arguments.to_bytes())
}
