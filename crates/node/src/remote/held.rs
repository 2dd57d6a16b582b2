//! Turns of the owner of the names whose letters wait until all nodes of sessions have what they changed.
//!
//! ```text
//!   told      1 2 3 4 5         node 2 has taken 5, node 3 has taken 3
//!   held            4 5         the letters of the turns that changed the names to 4 and 5
//! ```
//!
//! What a turn wrote, and what later ones write, waits until every node has the names as of that turn: what was answered is true
//! everywhere, whoever is asked. One that is gone may act by the names that it has [for a while](super::lease).

use std::collections::{BTreeMap, VecDeque};

use leveret_broker::message::{NodeId, Outbox};

/// See the [module](self).
#[derive(Debug)]
pub struct HeldTurns {
    /// Of the last batch: the names that were there at first are the first one.
    number: u64,
    /// How far each node has said that it is; 0 of one that has no names yet.
    taken: BTreeMap<NodeId, u64>,
    /// Nodes that are gone, or were not here in this term, and may act by older names.
    gone: Vec<Gone>,
    /// Each with the batch that it waits for; their numbers never fall.
    turns: VecDeque<(u64, Outbox)>,
}

#[derive(Clone, Copy, Debug)]
struct Gone {
    /// Unknown of a member of which nothing was ever heard.
    node: Option<NodeId>,
    /// As in [`HeldTurns::taken`].
    taken: u64,
    until: Until,
}

/// Until when a node that is gone may act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    /// Until then, in ms.
    Ms(u64),
    /// For so many ms after the lease of the leader before is over.
    After(u64),
}

impl Default for HeldTurns {
    fn default() -> Self {
        Self { number: 1, taken: BTreeMap::new(), gone: Vec::new(), turns: VecDeque::new() }
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
        // Who calls has given up what it was told before.
        self.gone.retain(|gone| gone.node != Some(node));
        self.taken.insert(node, 0);
    }

    /// Nobody waits for this node any more, or not after `acts_until_ms`.
    pub fn goes(&mut self, node: NodeId, acts_until_ms: Option<u64>, out: &mut Outbox) {
        let taken = self.taken.remove(&node).unwrap_or(0);
        if let Some(until_ms) = acts_until_ms {
            self.gone.push(Gone { node: Some(node), taken, until: Until::Ms(until_ms) });
        }
        self.free(out);
    }

    /// A node that is not here may act by any names for so long after the lease of the leader before is over, if it does not
    /// [come](Self::comes).
    pub fn is_away(&mut self, node: Option<NodeId>, for_ms: u64) {
        self.gone.push(Gone { node, taken: 0, until: Until::After(for_ms) });
    }

    /// The lease of the leader before is over then. Returns until when nodes that are [away](Self::is_away) may act.
    pub fn earlier_lease_ends(&mut self, at_ms: u64) -> Option<u64> {
        for gone in &mut self.gone {
            if let Until::After(for_ms) = gone.until {
                gone.until = Until::Ms(at_ms + for_ms);
            }
        }
        let until = self.gone.iter().filter_map(|gone| match gone.until {
            Until::Ms(until_ms) => Some(until_ms),
            Until::After(_) => None,
        });
        until.max()
    }

    /// It is `now_ms`: nobody waits for nodes that are gone and act no more.
    pub fn look(&mut self, now_ms: u64, out: &mut Outbox) {
        let acts = |gone: &Gone| match gone.until {
            Until::Ms(until_ms) => now_ms < until_ms,
            Until::After(_) => true,
        };
        self.gone.retain(acts);
        self.free(out);
    }

    /// Nobody waits for anybody any more.
    pub fn end(&mut self, out: &mut Outbox) {
        self.taken.clear();
        self.gone.clear();
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
            && self.gone.iter().all(|gone| gone.taken >= number)
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
        held.goes(B, None, &mut out);
        assert_eq!((told(&mut out), held.is_empty()), (vec![4], true));
    }

    #[test]
    fn turns_wait_for_who_is_gone_and_acts() {
        let (mut held, mut out) = (HeldTurns::default(), Outbox::default());
        for node in [A, B] {
            held.comes(node);
            held.taken(node, 1, &mut out).unwrap();
        }
        held.goes(A, Some(700), &mut out);
        held.hold(turn(1), &mut out);
        assert_eq!(told(&mut out), [1], "it has these names");
        held.changed();
        held.taken(B, 2, &mut out).unwrap();
        held.hold(turn(2), &mut out);
        held.look(699, &mut out);
        assert!(told(&mut out).is_empty());
        held.look(700, &mut out);
        assert_eq!(told(&mut out), [2]);
        // Who calls again takes the names first.
        held.goes(B, Some(900), &mut out);
        held.changed();
        held.hold(turn(3), &mut out);
        held.comes(B);
        held.look(900, &mut out);
        assert!(told(&mut out).is_empty());
        held.taken(B, 3, &mut out).unwrap();
        assert_eq!(told(&mut out), [3]);
    }

    #[test]
    fn turns_wait_for_who_may_have_an_earlier_lease() {
        let (mut held, mut out) = (HeldTurns::default(), Outbox::default());
        assert_eq!(held.earlier_lease_ends(300), None);
        held.is_away(Some(A), 50);
        held.is_away(Some(B), 0);
        held.is_away(None, 20);
        held.hold(turn(1), &mut out);
        held.look(u64::MAX, &mut out);
        assert!(told(&mut out).is_empty(), "nobody knows when that one ends");
        assert_eq!(held.earlier_lease_ends(300), Some(350));
        held.look(349, &mut out);
        assert!(told(&mut out).is_empty());
        held.comes(A);
        assert!(told(&mut out).is_empty(), "it has no names");
        held.taken(A, 1, &mut out).unwrap();
        assert_eq!(told(&mut out), [1]);
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
