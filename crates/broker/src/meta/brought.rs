//! Exclusive queues that outlive the owner of the names: see [`Topology::bring_back`].

use leveret_log::Log;
use leveret_topology::{BroughtError, Change, ConnectionId, Topology};

use super::Meta;
use crate::message::{Outbox, ToShard};

impl<L: Log> Meta<L> {
    /// Makes exclusive queues again that an owner before had, outside of turns: their shards make them, empty. Who
    /// [follows](Self::follow) hears of it in the next turn. How many were made.
    ///
    /// # Errors
    ///
    /// As [`Topology::bring_back`].
    pub fn bring_back(
        &mut self,
        records: &[Change],
        is_owner: impl Fn(ConnectionId) -> bool,
        topology: &mut Topology,
        out: &mut Outbox,
    ) -> Result<usize, BroughtError> {
        let made = topology.bring_back(records, is_owner)?;
        for &(queue, home) in &made {
            out.shard(home, ToShard::Create { reply: None, queue });
        }
        Ok(made.len())
    }
}
