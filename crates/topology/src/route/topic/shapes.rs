//! How many nodes of a trie one key can reach, at most.
//!
//! The *shape* of a node is which steps lead to it: a word, `*` or `#`. A key says what the words of a shape are, so
//! that without a `#` it reaches one node of each shape, once. After a `#` it does so again with every word of it. And a
//! second `#` can follow wherever the first one may end: so many nodes of one shape, as many words as there are.
//!
//! ```text
//!   a.*.c       word * word        1
//!   a.#.c       word # word        1 for each word of the key
//!   a.#.c.#.d   word # word # ..   for each word of the key as many as that, or as there are nodes
//! ```
//!
//! Usual bindings have few shapes, however many they are: a hundred thousand of `device.17.#` have three.

/// A place in the list of shapes.
pub(super) type ShapeIx = u32;

/// Words of a key that are taken into account. There can be 256, if most are empty.
const WORDS: u64 = 128;

/// How a node is reached from its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Word,
    Star,
    Hash,
}

impl Step {
    pub(super) fn of(word: &[u8]) -> Self {
        match word {
            b"*" => Self::Star,
            b"#" => Self::Hash,
            _ => Self::Word,
        }
    }
}

/// The shapes of all nodes.
#[derive(Debug)]
pub(super) struct Shapes {
    list: Vec<Shape>,
    free: Vec<ShapeIx>,
    cost: u64,
}

#[derive(Debug, Default)]
struct Shape {
    parent: ShapeIx,
    /// By step; 0 for none, since the root is the child of none.
    children: [ShapeIx; 3],
    nodes: u32,
    hashes: u32,
}

impl Default for Shapes {
    fn default() -> Self {
        Self { list: vec![Shape::default()], free: Vec::new(), cost: 0 }
    }
}

impl Shapes {
    pub(super) const ROOT: ShapeIx = 0;

    /// What a key can cost.
    pub(super) fn cost(&self) -> u64 {
        self.cost
    }

    /// One more node, whose parent has this shape.
    pub(super) fn add(&mut self, parent: ShapeIx, step: Step) -> ShapeIx {
        let shape = self.child(parent, step).unwrap_or_else(|| self.make(parent, step));
        let it = &mut self.list[shape as usize];
        let before = cost(it.nodes, it.hashes);
        it.nodes += 1;
        self.cost += cost(it.nodes, it.hashes) - before;
        shape
    }

    fn make(&mut self, parent: ShapeIx, step: Step) -> ShapeIx {
        let hashes = self.list[parent as usize].hashes + u32::from(step == Step::Hash);
        let new = Shape { parent, hashes, ..Shape::default() };
        let shape = match self.free.pop() {
            Some(ix) => {
                self.list[ix as usize] = new;
                ix
            }
            None => {
                self.list.push(new);
                u32::try_from(self.list.len() - 1).expect("fewer than 2^32 words")
            }
        };
        self.list[parent as usize].children[step as usize] = shape;
        shape
    }

    /// One node less. Its children went before it.
    pub(super) fn remove(&mut self, shape: ShapeIx) {
        let it = &mut self.list[shape as usize];
        let before = cost(it.nodes, it.hashes);
        it.nodes -= 1;
        self.cost -= before - cost(it.nodes, it.hashes);
        if it.nodes == 0 {
            let parent = it.parent as usize;
            let children = &mut self.list[parent].children;
            children.iter_mut().filter(|child| **child == shape).for_each(|child| *child = 0);
            self.free.push(shape);
        }
    }

    pub(super) fn child(&self, shape: ShapeIx, step: Step) -> Option<ShapeIx> {
        let child = self.list[shape as usize].children[step as usize];
        (child != Self::ROOT).then_some(child)
    }

    /// What one more node of a shape costs, which may not be there yet.
    pub(super) fn cost_of_one_more(&self, shape: Option<ShapeIx>, hashes: u32) -> u64 {
        let nodes = shape.map_or(0, |shape| self.list[shape as usize].nodes);
        cost(nodes + 1, hashes) - cost(nodes, hashes)
    }
}

/// Nodes of one shape that a key can look at.
fn cost(nodes: u32, hashes: u32) -> u64 {
    let nodes = u64::from(nodes);
    match hashes.checked_sub(1) {
        None => nodes.min(1),
        Some(more) => nodes.min(WORDS.saturating_pow(more)) * WORDS,
    }
}
