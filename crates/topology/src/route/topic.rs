//! Topic exchanges: a trie of words. Hot path: no allocation, one table look-up per word and reached node.
//!
//! ```text
//!   bindings  a.b -> 1    a.*.c -> 2    #.c -> 3
//!
//!   root --a--> n1 --b--> n2 {1}
//!    |           +--*--> n3 --c--> n4 {2}
//!    +---#--> n5 --c--> n6 {3}
//! ```
//!
//! A key is matched word by word against all nodes reached so far. A `#` node is reached together with its
//! parent, because `#` may stand for no word, and stays reached whatever word comes. So the work is the
//! number of words times the number of nodes reached, however many bindings there are and however many
//! `#` a binding has.
//!
//! How many nodes one key can reach is bounded, too, when a pattern is bound: see [`shapes`].
//!
//! Nodes are places in an arena. Edges with a word are in one table for the whole trie, found by parent and
//! word; an edge that never had siblings is followed without it. Both grow piece by piece.

mod shapes;

use foldhash::fast::FixedState;
use hashbrown::HashSet;
use smallvec::SmallVec;

use super::RouteSink;
use super::dests::Dests;
use crate::arena::{Arena, SplitTable};
use crate::binding::Target;
use crate::hash::hash;
use shapes::{ShapeIx, Shapes, Step};

/// A place in the arena. The root is 0, which is nobody's child and so stands for "none".
type NodeIx = u32;
const ROOT: NodeIx = 0;
const NONE: NodeIx = 0;

#[derive(Debug)]
pub(crate) struct Topics {
    nodes: Arena<Node>,
    free: Vec<NodeIx>,
    /// Children reached by a word, but for those that never had siblings.
    edges: SplitTable,
    shapes: Shapes,
}

/// Nodes that one key may look at, at most: some milliseconds, for a key of 128 words.
const COST_MAX: u64 = 1 << 18;

/// One cache line: a route that passes it loads it once.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Node {
    parent: NodeIx,
    star: NodeIx,
    hash: NodeIx,
    /// How many children are reached by a word.
    words: u32,
    /// The only one of them, which then is not in the table. One whose siblings went stays in the table.
    only: NodeIx,
    shape: ShapeIx,
    /// What the parent's edge to this node says; `*` and `#` too.
    word: SmallVec<[u8; 16]>,
    dests: Dests,
}

impl Default for Topics {
    fn default() -> Self {
        let mut nodes = Arena::default();
        nodes.push(Node::default());
        Self { nodes, free: Vec::new(), edges: SplitTable::default(), shapes: Shapes::default() }
    }
}

/// The words of a key. The empty key has none.
fn words(key: &str) -> impl Iterator<Item = &[u8]> {
    let count = if key.is_empty() { 0 } else { usize::MAX };
    key.as_bytes().split(|&byte| byte == b'.').take(count)
}

/// A word, hashed once and only if it is looked up.
struct Word<'a> {
    text: &'a [u8],
    hash: Option<u64>,
}

impl<'a> Word<'a> {
    fn new(text: &'a [u8]) -> Self {
        Self { text, hash: None }
    }

    #[inline]
    fn hash(&mut self) -> u64 {
        *self.hash.get_or_insert_with(|| hash(self.text))
    }
}

/// The halves of the product, folded: every bit of both counts in the bits that the table uses.
#[inline]
fn edge_hash(parent: NodeIx, word_hash: u64) -> u64 {
    let product = u128::from(word_hash ^ u64::from(parent).wrapping_mul(0x9e37_79b9_7f4a_7c15))
        * 0xa076_1d64_78bd_642f;
    (product >> 64) as u64 ^ product as u64
}

impl Topics {
    pub(super) fn bind(&mut self, key: &str, target: Target) {
        let mut node = ROOT;
        for word in words(key) {
            node = match self.child(node, word) {
                NONE => self.add_child(node, word),
                child => child,
            };
        }
        self.nodes[node].dests.add(target);
    }

    pub(super) fn unbind(&mut self, key: &str, target: Target) {
        let mut node = ROOT;
        for word in words(key) {
            node = self.child(node, word);
            if node == NONE {
                return;
            }
        }
        self.nodes[node].dests.remove(target);
        // From the leaf up: what leads nowhere goes.
        while node != ROOT && self.nodes[node].is_useless() {
            node = self.remove_child(node);
        }
        if self.nodes[ROOT].is_useless() {
            *self = Self::default();
        }
    }

    pub(super) fn route(&self, key: &str, out: &mut RouteSink<'_>) {
        let looked = self.walk(key, |dests| out.all(dests));
        out.pay(looked as usize);
    }

    /// What a key may cost with one more pattern, and what is allowed; none if that is not over it.
    pub(super) fn exceeds(&self, pattern: &str) -> Option<(u64, u64)> {
        let (mut node, mut is_there) = (ROOT, true);
        let (mut shape, mut more) = (Some(Shapes::ROOT), 0);
        let mut hashes = 0;
        for word in words(pattern) {
            if is_there {
                node = self.child(node, word);
                is_there = node != NONE;
            }
            let step = Step::of(word);
            hashes += u32::from(step == Step::Hash);
            shape = shape.and_then(|shape| self.shapes.child(shape, step));
            if !is_there {
                more += self.shapes.cost_of_one_more(shape, hashes);
            }
        }
        let cost = self.shapes.cost() + more;
        (more > 0 && cost > COST_MAX).then_some((cost, COST_MAX))
    }

    /// Calls `found` with the destinations of each node that matches; returns how many edges were looked
    /// for, which is what the time depends on.
    fn walk(&self, key: &str, mut found: impl FnMut(&Dests)) -> u32 {
        let mut looked = 0;
        // The nodes reached without `#`, level by level: those of the word before, then those of this one.
        let mut reached = SmallVec::<[NodeIx; 24]>::new();
        let mut level = 0;
        let mut hashes = HashNodes::default();
        self.reach(ROOT, &mut reached, &mut hashes);
        for word in words(key) {
            // What is reached by this word counts from the next one on.
            let (end, hashes_end) = (reached.len(), hashes.list.len());
            if level == end && hashes_end == 0 {
                return looked;
            }
            let mut word = Word::new(word);
            let nodes = level..end + hashes_end;
            level = end;
            for at in nodes {
                let node = if at < end { reached[at] } else { hashes.list[at - end] };
                let node_ref = &self.nodes[node];
                looked += 1;
                let child = self.word_child(node, node_ref, &mut word);
                if child != NONE {
                    self.reach(child, &mut reached, &mut hashes);
                }
                if node_ref.star != NONE {
                    looked += 1;
                    self.reach(node_ref.star, &mut reached, &mut hashes);
                }
            }
        }
        for &node in reached[level..].iter().chain(&hashes.list) {
            found(&self.nodes[node].dests);
        }
        looked
    }

    /// A node and the `#` below it, which stands for no word here.
    #[inline]
    fn reach(&self, node: NodeIx, to: &mut SmallVec<[NodeIx; 24]>, hashes: &mut HashNodes) {
        // Reached by one way only: its parent is reached once for each word.
        to.push(node);
        let mut hash = self.nodes[node].hash;
        while hash != NONE && hashes.insert(hash) {
            hash = self.nodes[hash].hash;
        }
    }

    fn child(&self, node: NodeIx, word: &[u8]) -> NodeIx {
        let node_ref = &self.nodes[node];
        match word {
            b"*" => node_ref.star,
            b"#" => node_ref.hash,
            _ => self.word_child(node, node_ref, &mut Word::new(word)),
        }
    }

    #[inline]
    fn word_child(&self, node: NodeIx, node_ref: &Node, word: &mut Word<'_>) -> NodeIx {
        if node_ref.only != NONE {
            let is_it = self.nodes[node_ref.only].word.as_slice() == word.text;
            return if is_it { node_ref.only } else { NONE };
        }
        if node_ref.words == 0 {
            return NONE;
        }
        let found = self.edges.find(edge_hash(node, word.hash()), |&child| {
            let child = &self.nodes[child];
            child.parent == node && child.word.as_slice() == word.text
        });
        found.unwrap_or(NONE)
    }

    fn add_child(&mut self, parent: NodeIx, word: &[u8]) -> NodeIx {
        let shape = self.shapes.add(self.nodes[parent].shape, Step::of(word));
        let node = Node { parent, shape, word: SmallVec::from_slice(word), ..Node::default() };
        let child = match self.free.pop() {
            Some(ix) => {
                self.nodes[ix] = node;
                ix
            }
            None => self.nodes.push(node),
        };
        let parent_ref = &mut self.nodes[parent];
        match word {
            b"*" => parent_ref.star = child,
            b"#" => parent_ref.hash = child,
            _ => {
                parent_ref.words += 1;
                if parent_ref.words == 1 {
                    parent_ref.only = child;
                } else {
                    // From now on the first one is looked up too.
                    let only = core::mem::replace(&mut parent_ref.only, NONE);
                    if only != NONE {
                        self.insert_edge(only);
                    }
                    self.insert_edge(child);
                }
            }
        }
        child
    }

    /// Returns the parent.
    fn remove_child(&mut self, child: NodeIx) -> NodeIx {
        let Node { parent, shape, word, .. } = core::mem::take(&mut self.nodes[child]);
        self.shapes.remove(shape);
        let parent_ref = &mut self.nodes[parent];
        match word.as_slice() {
            b"*" => parent_ref.star = NONE,
            b"#" => parent_ref.hash = NONE,
            word => {
                parent_ref.words -= 1;
                if parent_ref.only == child {
                    parent_ref.only = NONE;
                } else {
                    self.edges.remove(edge_hash(parent, hash(word)), child);
                }
            }
        }
        self.free.push(child);
        parent
    }

    fn insert_edge(&mut self, child: NodeIx) {
        let nodes = &self.nodes;
        let hash_of = |&child: &NodeIx| {
            let node = &nodes[child];
            edge_hash(node.parent, hash(&node.word))
        };
        self.edges.insert(hash_of(&child), child, hash_of);
    }
}

impl Node {
    fn is_useless(&self) -> bool {
        self.dests.is_empty() && self.words == 0 && self.star == NONE && self.hash == NONE
    }
}

/// The `#` nodes reached, each once.
#[derive(Default)]
struct HashNodes {
    list: SmallVec<[NodeIx; 8]>,
    /// The same ones, when there are too many to search.
    set: Option<Box<HashSet<NodeIx, FixedState>>>,
}

impl HashNodes {
    const SEARCHED_MAX: usize = 32;

    /// Whether it is new.
    fn insert(&mut self, node: NodeIx) -> bool {
        let is_new = match &mut self.set {
            Some(set) => set.insert(node),
            None => !self.list.contains(&node),
        };
        if is_new {
            self.list.push(node);
            if self.set.is_none() && self.list.len() > Self::SEARCHED_MAX {
                self.set = Some(Box::new(self.list.iter().copied().collect()));
            }
        }
        is_new
    }
}

#[cfg(test)]
mod tests;
