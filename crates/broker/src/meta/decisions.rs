//! Which transactions over several shards are to be: see [`transaction`](crate::transaction).
//!
//! A letter about a transaction may come twice. A vote and an end of a part are members of a set of shards, so that the
//! second one changes nothing. A shard that votes after the decision is told the decision again.

use std::collections::VecDeque;

use foldhash::fast::FixedState;
use hashbrown::{HashMap, HashSet};
use leveret_log::{Log, Offset};
use leveret_topology::{GroupId, QueueId};

use super::Rests;
use super::saved::Saved;
use crate::message::{ConnectionId, Outbox, ToShard};
use crate::transaction::{Decided, TxId, Vote, decode_decision, encode_decision};

#[derive(Debug, Default)]
pub(super) struct Decisions {
    /// Not every shard has said whether it can.
    open: HashMap<TxId, Tally, FixedState>,
    /// Written down, and not known to be applied everywhere.
    made: HashMap<TxId, Made, FixedState>,
    /// Applied everywhere: their records go with the next decision, as a batch of its own would cost a
    /// sync.
    done: Vec<Offset>,
    /// The last decisions, for shards that vote again.
    outcomes: HashMap<TxId, bool, FixedState>,
    /// In the order in which they were made.
    remembered: VecDeque<TxId>,
    /// Connections that ended with their node: what is missing of their transactions never comes.
    gone: HashSet<ConnectionId, FixedState>,
    /// Of earlier processes: for the shards, when they fill their queues.
    pub(super) earlier: Decided,
}

/// How many decisions are remembered for shards that vote again.
const REMEMBERED_MAX: usize = 1024;

/// Connections that ended with their nodes are forgotten when there are so many: what was on its way of the first ones has come.
const GONE_MAX: usize = 1 << 16;

/// Messages that a transaction acked, and that are written into its decision at the cost of one name.
const ACKED_A_UNIT: u64 = 32;

/// A shard's vote on a transaction.
#[derive(Debug)]
pub(super) struct ShardVote {
    /// Whose transaction it is.
    pub(super) from: ConnectionId,
    pub(super) group: GroupId,
    /// How many shards have a part.
    pub(super) parts: u32,
    pub(super) vote: Vote,
}

/// What shards have said so far.
#[derive(Debug)]
struct Tally {
    /// Whose transaction it is.
    from: ConnectionId,
    /// One for each shard.
    votes: Vec<(GroupId, Said)>,
    acked: Vec<(QueueId, leveret_queue::Offset)>,
}

/// What one shard has said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    No,
    /// Yes, and a restart would not find its part.
    Yes,
    /// Yes, and a restart would find its part.
    Kept,
}

#[derive(Debug)]
struct Made {
    /// Whose transaction it is. Nobody's if an earlier process made the decision.
    from: ConnectionId,
    at: Offset,
    /// Shards that have not said that they are done with their parts. None for a decision of an earlier process, which
    /// stays until the next start.
    left: Option<Vec<GroupId>>,
    /// Messages that it acked, for shards that lose the end of their log.
    acked: Vec<(QueueId, leveret_queue::Offset)>,
}

impl Tally {
    fn new(from: ConnectionId) -> Self {
        Self { from, votes: Vec::new(), acked: Vec::new() }
    }

    fn add(&mut self, group: GroupId, vote: Vote) {
        if self.votes.iter().any(|&(other, _)| other == group) {
            return;
        }
        let said = match vote {
            Vote::No => Said::No,
            Vote::Yes { is_kept, mut acked } => {
                self.acked.append(&mut acked);
                if is_kept { Said::Kept } else { Said::Yes }
            }
        };
        self.votes.push((group, said));
    }

    fn is_refused(&self) -> bool {
        self.votes.iter().any(|&(_, said)| said == Said::No)
    }

    /// Shards whose parts a restart would find.
    fn kept(&self) -> Vec<GroupId> {
        let kept = self.votes.iter().filter(|&&(_, said)| said == Said::Kept);
        kept.map(|&(group, _)| group).collect()
    }

    /// Shards that have a part.
    fn parts(&self) -> impl Iterator<Item = GroupId> {
        self.votes.iter().filter(|&&(_, said)| said != Said::No).map(|&(group, _)| group)
    }
}

impl Decisions {
    /// A shard has said whether it can. When all `parts` have, it is decided, and they are told.
    pub(super) fn vote<L: Log>(
        &mut self,
        tx: TxId,
        share: ShardVote,
        saved: &mut Saved<L>,
        out: &mut Outbox,
    ) -> Rests {
        let ShardVote { from, group, parts, vote } = share;
        if let Some(commit) = self.outcome(tx) {
            if vote != Vote::No {
                out.shard(group, ToShard::Decide { tx, commit });
            }
            // Perhaps the decision is not on the disk yet.
            return if self.made.contains_key(&tx) { Rests::Written } else { Rests::OnItself };
        }
        let tally = self.open.entry(tx).or_insert_with(|| Tally::new(from));
        tally.add(group, vote);
        let is_whole = tally.votes.len() >= parts as usize;
        if !is_whole && !self.gone.contains(&from) {
            return Rests::OnItself;
        }
        let Some(mut tally) = self.open.remove(&tx) else { return Rests::OnItself };
        let (mut commit, mut rests) = (is_whole && !tally.is_refused(), Rests::OnItself);
        let kept = tally.kept();
        if commit && !kept.is_empty() {
            for at in self.done.drain(..) {
                saved.release(at);
            }
            match saved.append_decision(&encode_decision(tx, &tally.acked)) {
                Ok(at) => {
                    let acked = std::mem::take(&mut tally.acked);
                    self.made.insert(tx, Made { from, at, left: Some(kept), acked });
                    rests = Rests::Written;
                }
                Err(error) => {
                    tracing::error!(%error, "a transaction is undone: it could not be stored");
                    commit = false;
                }
            }
        }
        self.decided(tx, commit, &tally, out);
        rests
    }

    fn decided(&mut self, tx: TxId, commit: bool, tally: &Tally, out: &mut Outbox) {
        self.remember(tx, commit);
        for group in tally.parts() {
            out.shard(group, ToShard::Decide { tx, commit });
        }
    }

    /// A connection ended with its node. Parts of its transactions may have reached some shards, and never reach the others: those of which
    /// one is missing are not to be.
    #[cold]
    pub(super) fn gone_with_its_node(&mut self, connection: ConnectionId, out: &mut Outbox) {
        if self.gone.len() >= GONE_MAX {
            self.gone.clear();
        }
        self.gone.insert(connection);
        let open = self.open.extract_if(|_, tally| tally.from == connection);
        let mut open: Vec<_> = open.collect();
        open.sort_unstable_by_key(|(tx, _)| *tx);
        for (tx, tally) in open {
            self.decided(tx, false, &tally, out);
        }
    }

    /// What a vote costs in names, before it is counted. The last one has the decision written, with all that any shard
    /// acked.
    pub(super) fn price_of_vote(&self, tx: TxId, parts: u32, vote: &Vote) -> u64 {
        const VOTE: u64 = 1;
        const WRITTEN: u64 = 1;
        let Vote::Yes { is_kept, acked } = vote else { return VOTE };
        let (votes, before) = match self.open.get(&tx) {
            Some(tally) => (&*tally.votes, tally.acked.len()),
            None => Default::default(),
        };
        let is_last = votes.len() + 1 >= parts as usize;
        let is_kept = *is_kept || votes.iter().any(|&(_, said)| said == Said::Kept);
        let is_written = is_kept && votes.iter().all(|&(_, said)| said != Said::No);
        if is_last && is_written {
            VOTE + WRITTEN + (before + acked.len()) as u64 / ACKED_A_UNIT
        } else {
            VOTE
        }
    }

    /// Who caused a decision that was written.
    pub(super) fn made_by(&self, tx: TxId) -> ConnectionId {
        self.made.get(&tx).map_or(ConnectionId::NOBODY, |made| made.from)
    }

    /// What was decided, if that is known.
    fn outcome(&self, tx: TxId) -> Option<bool> {
        self.outcomes.get(&tx).copied().or_else(|| self.made.contains_key(&tx).then_some(true))
    }

    fn remember(&mut self, tx: TxId, commit: bool) {
        if self.remembered.len() == REMEMBERED_MAX
            && let Some(oldest) = self.remembered.pop_front()
        {
            self.outcomes.remove(&oldest);
        }
        self.remembered.push_back(tx);
        self.outcomes.insert(tx, commit);
    }

    /// A shard is done with its part, on disk.
    pub(super) fn applied(&mut self, tx: TxId, group: GroupId) {
        let Some(Made { at, left: Some(left), .. }) = self.made.get_mut(&tx) else { return };
        left.retain(|&other| other != group);
        if left.is_empty() {
            self.done.push(*at);
            self.made.remove(&tx);
        }
    }

    /// A decision of an earlier process is in the log. False when it is not readable as one.
    pub(super) fn found(&mut self, at: Offset, body: &[u8]) -> bool {
        let Some((tx, acked)) = decode_decision(body) else { return false };
        self.earlier.add(tx, &acked);
        self.made.insert(tx, Made { from: ConnectionId::NOBODY, at, left: None, acked });
        true
    }

    /// Decisions that are on the disk and not known to be applied everywhere.
    pub(super) fn so_far(&self, durable: Offset) -> Decided {
        let mut decided = Decided::default();
        let made = self.made.iter().filter(|(_, made)| made.at < durable);
        made.for_each(|(&tx, made)| decided.add(tx, &made.acked));
        decided
    }

    /// Forgets the decisions of earlier processes of which no shard has found a part. The others stay
    /// until the next start, as what the shards did about them is not on disk yet.
    pub(super) fn keep_found(&mut self, parts: impl Iterator<Item = TxId>) {
        self.earlier = Decided::default();
        let found: HashSet<TxId, FixedState> = parts.collect();
        let gone = self.made.extract_if(|tx, _| !found.contains(tx));
        self.done.extend(gone.map(|(_, made)| made.at));
    }
}

#[cfg(test)]
mod tests {
    use leveret_log::MemoryLog;

    use super::*;

    const TX: TxId = TxId::new(7);

    fn share(group: GroupId, parts: u32, vote: Vote) -> ShardVote {
        ShardVote { from: ConnectionId::NOBODY, group, parts, vote }
    }

    /// `1+` is yes of shard 1, kept; `1~` yes of what no restart finds; `1-` no; `1*` that it has applied its part. What
    /// shards are told is `1+` or `1-`; `end` says that the connection ended with its node; `kept` and `gone` say whether a record of the decision is needed.
    #[track_caller]
    fn check(letters: &str, parts: u32, want: &str) {
        let (mut decisions, mut saved) = (Decisions::default(), Saved::new(MemoryLog::new()));
        let mut out = Outbox::default();
        for word in letters.split_whitespace() {
            if word == "end" {
                decisions.gone_with_its_node(ConnectionId::NOBODY, &mut out);
                continue;
            }
            let (shard, what) = word.split_at(1);
            let group = GroupId::new(shard.parse().unwrap());
            let acked = vec![(QueueId::new(group.get().into()), leveret_queue::Offset::new(1))];
            let vote = match what {
                "*" => {
                    decisions.applied(TX, group);
                    continue;
                }
                "-" => Vote::No,
                what => Vote::Yes { is_kept: what == "+", acked },
            };
            decisions.vote(TX, share(group, parts, vote), &mut saved, &mut out);
        }
        let mut told: Vec<String> = Vec::new();
        for (group, letter) in out.shards {
            let ToShard::Decide { commit, .. } = letter else { panic!("{letter:?}") };
            told.push(format!("{group}{}", if commit { '+' } else { '-' }));
        }
        told.extend((!decisions.made.is_empty()).then(|| "kept".to_owned()));
        told.extend((!decisions.done.is_empty()).then(|| "gone".to_owned()));
        told.extend((!decisions.open.is_empty()).then(|| "open".to_owned()));
        assert_eq!(told.join(" "), want, "{letters}");
    }

    #[test]
    #[rustfmt::skip] // a table
    fn a_letter_that_comes_twice_counts_once() {
        check("1+ 2+",             2, "1+ 2+ kept");
        check("1+ 1+",             2, "open");            // the other one has not said a word
        check("1+ 1+ 2+",          2, "1+ 2+ kept");
        check("1+ 1+ 2-",          2, "1-");
        check("1- 1-",             2, "open");
        check("1+ 2-",             2, "1-");
        check("1~ 1~ 2+",          2, "1+ 2+ kept");
        check("1~ 2~",             2, "1+ 2+");
        // Its node is gone, and with it what did not come.
        check("1+ end",            2, "1-");
        check("end 1+ 2+",         2, "1- 2-");
        check("1+ end 1+ 2+",      2, "1- 1- 2-");
        check("1+ 2+ end",         2, "1+ 2+ kept");
        // Applied.
        check("1+ 2+ 1*",          2, "1+ 2+ kept");
        check("1+ 2+ 1* 1*",       2, "1+ 2+ kept");      // the other one may need the decision still
        check("1+ 2+ 1* 1* 2*",    2, "1+ 2+ gone");
        check("1+ 2+ 1* 2* 2*",    2, "1+ 2+ gone");
        check("1+ 2~ 1*",          2, "1+ 2+ gone");
        // After the decision: the shard is told again.
        check("1+ 2+ 1+",          2, "1+ 2+ 1+ kept");
        check("1+ 2- 1+",          2, "1- 1-");
        check("1~ 2~ 2~",          2, "1+ 2+ 2+");
        check("1+ 2+ 1* 2* 1+ 2+", 2, "1+ 2+ 1+ 2+ gone");
        check("1- 2- 1-",          2, "");
    }

    /// What is known of earlier transactions has a bound.
    #[test]
    fn few_are_remembered() {
        let (mut decisions, mut saved) = (Decisions::default(), Saved::new(MemoryLog::new()));
        let mut out = Outbox::default();
        for tx in 0..3 * REMEMBERED_MAX as u64 {
            let share = share(GroupId::new(1), 1, Vote::No);
            decisions.vote(TxId::new(tx), share, &mut saved, &mut out);
        }
        assert_eq!(decisions.outcomes.len(), REMEMBERED_MAX);
    }
}
