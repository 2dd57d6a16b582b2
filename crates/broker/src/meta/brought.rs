//! Exclusive queues that outlive the owner of the names: see [`Topology::bring_back`].

use leveret_log::Log;
use leveret_topology::{BroughtError, Change, ConnectionId, Topology};

use super::Meta;
use crate::command::CommandStream;
use crate::message::{Brought, Outbox, ToShard};

impl<L: Log> Meta<L> {
    /// Makes exclusive queues again that an owner before had, outside of turns: their shards make them, empty. A binding is left out whose
    /// unbinding by this process is noted as done. Who [follows](Self::follow) hears of it in the next turn. How many were made.
    ///
    /// # Errors
    ///
    /// As [`Topology::bring_back`].
    pub fn bring_back(
        &mut self,
        process: CommandStream,
        brought: &[Brought],
        is_owner: impl Fn(ConnectionId) -> bool,
        topology: &mut Topology,
        out: &mut Outbox,
    ) -> Result<usize, BroughtError> {
        let is_noted = |number: &u64| self.commands.is_noted((process, *number));
        let there = brought.iter().filter(|it| !it.unbinds.iter().any(is_noted));
        let records: Vec<&Change> = there.map(|it| &it.change).collect();
        let made = topology.bring_back(&records, is_owner)?;
        for &(queue, home) in &made {
            out.shard(home, ToShard::Create { reply: None, queue });
        }
        Ok(made.len())
    }
}
