//! Turns of the owner of the names whose letters wait until all nodes of sessions have what they changed.
//!
//! ```text
//!   told      1 2 3 4 5         node 2 has taken 5, node 3 has taken 3
//!   held            4 5         the letters of the turns that changed the names to 4 and 5
//! ```
//!
//! What a turn wrote, and what later ones write, waits until every node has the names as of that turn: what was answered is true
//! everywhere, whoever is asked.

use std::collections::{BTreeMap, VecDeque};

use leveret_broker::message::{NodeId, Outbox};

/// See the [module](self).
#[derive(Debug)]
pub struct HeldTurns {
    /// Of the last batch: the names that were there at first are the first one.
    number: u64,
    /// How far each node has said that it is; 0 of one that has no names yet.
    taken: BTreeMap<NodeId, u64>,
    /// Each with the batch that it waits for; their numbers never fall.
    turns: VecDeque<(u64, Outbox)>,
}

impl Default for HeldTurns {
    fn default() -> Self {
        Self { number: 1, taken: BTreeMap::new(), turns: VecDeque::new() }
    }
}

impl HeldTurns {
    /// The number of the names as they are.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The names have changed: the number of that batch.
    pub fn changed(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// A node comes, and is told all names, now or later: from now on it is waited for.
    pub fn comes(&mut self, node: NodeId) {
        self.taken.insert(node, 0);
    }

    /// Nobody waits for this node any more.
    pub fn goes(&mut self, node: NodeId, out: &mut Outbox) {
        self.taken.remove(&node);
        self.free(out);
    }

    /// A node has the names as of this batch. Returns whether these are its first ones.
    ///
    /// # Errors
    ///
    /// A text, if it says what cannot be.
    pub fn taken(&mut self, node: NodeId, number: u64, out: &mut Outbox) -> Result<bool, String> {
        let before = self.taken.get_mut(&node).ok_or("it was told no names")?;
        if number <= *before || number > self.number {
            return Err(format!(
                "it says that it has names {number}, behind {before} and of {}",
                self.number
            ));
        }
        let is_first = std::mem::replace(before, number) == 0;
        self.free(out);
        Ok(is_first)
    }

    /// Whether a node has names.
    pub fn has_names(&self, node: NodeId) -> bool {
        self.taken.get(&node).is_some_and(|taken| *taken > 0)
    }

    /// What a turn of the owner of the names wrote goes to `out`, at once or later. What it wrote to itself never waits.
    pub fn hold(&mut self, mut turn: Outbox, out: &mut Outbox) {
        if self.turns.is_empty() && self.are_all_at(self.number) {
            return turn.append_to(out);
        }
        out.meta.append(&mut turn.meta);
        out.failed = out.failed.take().or_else(|| turn.failed.take());
        if !turn.is_empty() {
            self.turns.push_back((self.number, turn));
        }
    }

    /// Nodes that the oldest turn waits for.
    pub fn awaited(&self) -> impl Iterator<Item = NodeId> + '_ {
        let number = self.turns.front().map_or(0, |(number, _)| *number);
        let behind = self.taken.iter().filter(move |(_, taken)| **taken < number);
        behind.map(|(node, _)| *node)
    }

    /// Turns whose letters wait.
    pub fn len(&self) -> usize {
        self.turns.len()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    fn are_all_at(&self, number: u64) -> bool {
        self.taken.values().all(|taken| *taken >= number)
    }

    fn free(&mut self, out: &mut Outbox) {
        while let Some((number, _)) = self.turns.front()
            && self.are_all_at(*number)
        {
            let Some((_, turn)) = self.turns.pop_front() else { return };
            turn.append_to(out);
        }
    }
}

#[cfg(test)]
mod tests {
    use leveret_broker::message::{Reply, ReplyTo, ToMeta, ToSession};

    use super::*;

    const A: NodeId = NodeId::new(2).expect("a node");
    const B: NodeId = NodeId::new(3).expect("a node");

    fn turn(channel: u16) -> Outbox {
        let mut out = Outbox::default();
        let connection = NodeId::ALONE.connection(1);
        out.reply(ReplyTo { connection, channel }, Reply::Done);
        out.meta.push(ToMeta::Continue);
        out
    }

    /// The turns whose answers are there.
    fn told(out: &mut Outbox) -> Vec<u16> {
        let letters = out.sessions.drain(..).map(|(_, letter)| match letter {
            ToSession::Reply { channel, .. } => channel,
            other => panic!("{other:?}"),
        });
        letters.collect()
    }

    #[test]
    fn nothing_waits_where_no_node_is() {
        let (mut held, mut out) = (HeldTurns::default(), Outbox::default());
        held.changed();
        held.hold(turn(1), &mut out);
        assert_eq!((told(&mut out), out.meta.len(), held.len()), (vec![1], 1, 0));
    }

    #[test]
    fn turns_wait_for_all_nodes_and_keep_their_order() {
        let (mut held, mut out) = (HeldTurns::default(), Outbox::default());
        held.comes(A);
        assert_eq!((held.has_names(A), held.taken(A, 1, &mut out)), (false, Ok(true)));
        held.comes(B);
        held.hold(turn(1), &mut out);
        assert_eq!((told(&mut out), out.meta.len()), (Vec::new(), 1), "B has no names at all");
        assert_eq!(held.awaited().collect::<Vec<_>>(), [B]);
        assert_eq!(held.taken(B, 1, &mut out), Ok(true));
        assert_eq!(told(&mut out), [1]);

        held.changed();
        held.hold(turn(2), &mut out);
        // It changed nothing, and stays behind those that did.
        held.hold(turn(3), &mut out);
        held.changed();
        held.hold(turn(4), &mut out);
        assert_eq!(held.taken(A, 3, &mut out), Ok(false));
        assert!(told(&mut out).is_empty());
        assert_eq!(held.taken(B, 2, &mut out), Ok(false));
        assert_eq!((told(&mut out), held.len()), (vec![2, 3], 1));
        held.goes(B, &mut out);
        assert_eq!((told(&mut out), held.is_empty()), (vec![4], true));
    }

    #[test]
    fn what_cannot_be_is_told() {
        let (mut held, mut out) = (HeldTurns::default(), Outbox::default());
        assert!(held.taken(A, 1, &mut out).is_err(), "nobody has told it any");
        held.comes(A);
        assert!(held.taken(A, 2, &mut out).is_err(), "there is no such batch");
        assert!(held.taken(A, 1, &mut out).is_ok());
        assert!(held.taken(A, 1, &mut out).is_err(), "it has said so");
    }
}
