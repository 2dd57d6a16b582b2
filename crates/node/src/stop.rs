//! The order of a stop in good order, once no client is left.
//!
//! ```text
//!  depart    what is under way arrives: a dead letter that is safe where it went is not to come back where it was
//!  close     the shards write down what may have been delivered; dead letters that arrive still leave their old queues
//!  write     until all of that is on the disks, and the names are
//! ```
//!
//! A driver calls [`PutAway::round`] until it [is done](Next::Done), and lets the disks go on in between. When to give up is its own
//! affair.

use leveret_broker::message::{ToMeta, ToShard};
use leveret_broker::{Meta, Shard};
use leveret_log::{Log, SyncError};

/// A node of which nobody has turns any more but by the one who stops it.
pub trait Stopping {
    /// Its logs.
    type Log: Log;

    /// How many shards there are.
    fn shards(&self) -> usize;

    /// Looks at a shard, outside of its turns.
    fn shard<T>(&mut self, index: usize, look: impl FnOnce(&mut Shard<Self::Log>) -> T) -> T;

    /// Looks at the topology's owner.
    fn meta<T>(&mut self, look: impl FnOnce(&mut Meta<Self::Log>) -> T) -> T;

    /// Gives a shard a letter, and turns to everybody to whom something follows from it.
    fn run_shard(&mut self, index: usize, letter: ToShard);

    /// The same with the topology's owner.
    fn run_meta(&mut self, letter: ToMeta);
}

/// How far a stop is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PutAway {
    /// What is under way goes on.
    #[default]
    Departing,
    /// The shards are closed: what they have goes to the disks.
    Writing,
}

/// What a round came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The next one gets on without waiting for anything.
    GoesOn,
    /// The next one is for when a disk has done something.
    Waits,
    /// All is written down.
    Done,
}

impl PutAway {
    /// One round over all shards. An error is the end: no other round is to follow.
    pub fn round<N: Stopping>(&mut self, node: &mut N) -> Result<Next, SyncError> {
        match self {
            Self::Departing => Ok(self.depart(node)),
            Self::Writing => {
                let written = write(node);
                if !matches!(written, Ok(Next::Waits)) {
                    give_up_writing(node);
                }
                written
            }
        }
    }

    /// What is under way stays where it is: dead letters in their old queues.
    pub fn give_up_departing<N: Stopping>(&mut self, node: &mut N) {
        for index in 0..node.shards() {
            node.shard(index, Shard::close);
        }
        *self = Self::Writing;
    }

    fn depart<N: Stopping>(&mut self, node: &mut N) -> Next {
        // What had its turn left to others is taken over, and what did not fit one turn goes on in the next.
        for index in 0..node.shards() {
            node.run_shard(index, ToShard::Continue);
        }
        if under_way(node) == 0 {
            self.give_up_departing(node);
            return Next::GoesOn;
        }
        let has_work = (0..node.shards()).any(|index| node.shard(index, |it| it.has_work()));
        if has_work { Next::GoesOn } else { Next::Waits }
    }
}

/// What has not arrived: dead letters, transactions, what did not fit one turn.
pub fn under_way<N: Stopping>(node: &mut N) -> u64 {
    (0..node.shards()).map(|index| node.shard(index, |it| it.under_way())).sum()
}

/// The stop ends, whatever the disks have. Dead letters that have no queue to come back to are lost, and that is told. A driver
/// says so itself only if it waits for the disks no longer.
pub fn give_up_writing<N: Stopping>(node: &mut N) {
    for index in 0..node.shards() {
        node.shard(index, |shard| shard.tell_given_up());
    }
}

fn write<N: Stopping>(node: &mut N) -> Result<Next, SyncError> {
    let mut is_done = true;
    // What a disk has done since is told first: what one shard has is not to come back in another.
    for index in 0..node.shards() {
        node.run_shard(index, ToShard::LogWoke);
    }
    for index in 0..node.shards() {
        is_done &= node.shard(index, |shard| shard.sync().map(|()| shard.is_durable()))?;
    }
    node.run_meta(ToMeta::LogWoke);
    is_done &= node.meta(|meta| match meta.failure() {
        Some(failure) => Err(failure.clone()),
        None => Ok(meta.log().durable() == meta.log().end()),
    })?;
    Ok(if is_done { Next::Done } else { Next::Waits })
}

#[cfg(test)]
mod tests {
    use leveret_broker::message::Outbox;
    use leveret_log::MemoryLog;
    use leveret_queue::Time;
    use leveret_topology::Topology;

    use super::*;
    use crate::start::{Filled, Past, host};

    /// Actors that write to nobody.
    struct Quiet {
        topology: Topology,
        meta: Meta<MemoryLog>,
        shards: Vec<Shard<MemoryLog>>,
        /// Turns of shards, and of the names' owner.
        turns: (usize, usize),
    }

    impl Stopping for Quiet {
        type Log = MemoryLog;

        fn shards(&self) -> usize {
            self.shards.len()
        }

        fn shard<T>(&mut self, index: usize, look: impl FnOnce(&mut Shard<MemoryLog>) -> T) -> T {
            look(&mut self.shards[index])
        }

        fn meta<T>(&mut self, look: impl FnOnce(&mut Meta<MemoryLog>) -> T) -> T {
            look(&mut self.meta)
        }

        fn run_shard(&mut self, index: usize, letter: ToShard) {
            self.turns.0 += 1;
            let (now, mut out) = (Time::from_ms(1), Outbox::default());
            self.shards[index].turn(&mut vec![letter], &self.topology, now, &mut out);
            assert!(out.is_empty());
        }

        fn run_meta(&mut self, letter: ToMeta) {
            self.turns.1 += 1;
            self.meta.turn(&mut vec![letter], &mut self.topology, &mut Outbox::default());
        }
    }

    #[test]
    fn a_node_that_was_started_and_has_nothing_to_do_stops() {
        let topology = Topology::new();
        let mut meta = Meta::new(MemoryLog::new());
        let logs = (0..2).map(|_| MemoryLog::new());
        let mut shards = host(logs, &topology, false, Time::from_ms(1));
        let (past, mut all) = (Past::new(&meta, Vec::new()), Filled::default());
        for (index, shard) in shards.iter_mut().enumerate() {
            all.add(past.fill(index, shard, &mut |_| {}));
        }
        assert_eq!(all.end(&mut meta), Default::default());
        let mut node = Quiet { topology, meta, shards, turns: (0, 0) };
        let mut stop = PutAway::default();
        assert_eq!(stop.round(&mut node), Ok(Next::GoesOn));
        assert_eq!((stop, node.turns), (PutAway::Writing, (2, 0)));
        assert_eq!(stop.round(&mut node), Ok(Next::Done));
        assert_eq!(node.turns, (4, 1));
    }
}
