//! Which transactions over several shards are to be: see [`transaction`](crate::transaction).

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use leveret_log::{Log, Offset};
use leveret_topology::QueueId;

use super::Rests;
use super::saved::Saved;
use crate::message::{Outbox, ToShard};
use crate::transaction::{Decided, TxId, Vote, encode_decision};

#[derive(Debug, Default)]
pub(super) struct Decisions {
    /// Not every shard has said whether it can.
    open: HashMap<TxId, Tally, FixedState>,
    /// Written down, and not known to be applied everywhere.
    made: HashMap<TxId, Made, FixedState>,
    /// Applied everywhere: their records go with the next decision, as a batch of its own would cost a
    /// sync.
    done: Vec<Offset>,
    /// Of earlier processes: for the shards, when they fill their queues.
    pub(super) earlier: Decided,
}

/// What shards have said so far.
#[derive(Debug, Default)]
struct Tally {
    votes: u32,
    is_refused: bool,
    is_kept: bool,
    /// Those that have a part, and how many of them a restart would find.
    shards: Vec<usize>,
    kept: u32,
    acked: Vec<(QueueId, leveret_queue::Offset)>,
}

#[derive(Debug)]
struct Made {
    at: Offset,
    /// Shards that have not said that they are done with their parts.
    left: u32,
}

impl Decisions {
    /// A shard has said whether it can. When all `parts` have, it is decided, and they are told.
    pub(super) fn vote<L: Log>(
        &mut self,
        tx: TxId,
        shard: usize,
        parts: u32,
        vote: Vote,
        saved: &mut Saved<L>,
        out: &mut Outbox,
    ) -> Rests {
        let tally = self.open.entry(tx).or_default();
        tally.votes += 1;
        match vote {
            Vote::No => tally.is_refused = true,
            Vote::Yes { is_kept, mut acked } => {
                tally.is_kept |= is_kept;
                tally.kept += u32::from(is_kept);
                tally.shards.push(shard);
                tally.acked.append(&mut acked);
            }
        }
        if tally.votes < parts {
            return Rests::OnItself;
        }
        let Some(tally) = self.open.remove(&tx) else { return Rests::OnItself };
        let (mut commit, mut rests) = (!tally.is_refused, Rests::OnItself);
        if commit && tally.is_kept {
            for at in self.done.drain(..) {
                saved.release(at);
            }
            match saved.append_decision(&encode_decision(tx, &tally.acked)) {
                Ok(at) => {
                    self.made.insert(tx, Made { at, left: tally.kept });
                    rests = Rests::Written;
                }
                Err(error) => {
                    tracing::error!(%error, "a transaction is undone: it could not be stored");
                    commit = false;
                }
            }
        }
        for shard in tally.shards {
            out.shard(shard, ToShard::Decide { tx, commit });
        }
        rests
    }

    /// A shard is done with its part, on disk.
    pub(super) fn applied(&mut self, tx: TxId) {
        let Some(made) = self.made.get_mut(&tx) else { return };
        made.left -= 1;
        if made.left == 0
            && let Some(made) = self.made.remove(&tx)
        {
            self.done.push(made.at);
        }
    }

    /// A decision of an earlier process is in the log. False when it is not readable as one.
    pub(super) fn found(&mut self, at: Offset, body: &[u8]) -> bool {
        let Some(tx) = self.earlier.add(body) else { return false };
        self.made.insert(tx, Made { at, left: u32::MAX });
        true
    }

    /// Forgets the decisions of earlier processes of which no shard has found a part. The others stay
    /// until the next start, as what the shards did about them is not on disk yet.
    pub(super) fn keep_found(&mut self, parts: impl Iterator<Item = TxId>) {
        self.earlier = Decided::default();
        let found: hashbrown::HashSet<TxId, FixedState> = parts.collect();
        let gone = self.made.extract_if(|tx, _| !found.contains(tx));
        self.done.extend(gone.map(|(_, made)| made.at));
    }
}
