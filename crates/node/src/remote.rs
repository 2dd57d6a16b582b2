//! The two ends of the connection between a node of sessions and the node that leads, without the connection.
//!
//! ```text
//!   sessions --post--> RemoteShards  --ToLeader-->    RemoteNode     --post--> shards, owner of the names
//!            <--post--               <--FromLeader--                 <--post--
//! ```
//!
//! What goes over it comes in order, to the connection's end; then all is lost that was on its way. Each end has a line of letters
//! that the wire takes one by one. See `docs/decisions/0068-sessions-on-the-node-of-their-client.md`.

pub mod held;
pub mod sessions;
pub mod shards;

use leveret_broker::message::NodeId;

pub use held::HeldTurns;
pub use sessions::{NodeHeard, RemoteNode};
pub use shards::{Heard, RemoteShards};

/// Numbers of nodes of sessions: of 24 bits, but for 0, which no node has, and 1, which is that of the broker's own sessions.
const NUMBERS: u64 = (1 << 24) - 2;

/// The node whose sessions a member of the cluster has, by its Raft id. Two members may have the same one: a
/// leader takes one of them.
pub fn node_of(raft_id: u64) -> NodeId {
    let number = 2 + (raft_id % NUMBERS) as u32;
    NodeId::new(number).unwrap_or(NodeId::ALONE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_of_sessions_are_never_the_broker_itself() {
        for raft_id in [0, 1, 2, NUMBERS - 1, NUMBERS, NUMBERS + 1, u64::MAX] {
            assert!(node_of(raft_id) > NodeId::ALONE, "{raft_id}");
        }
        assert_eq!(node_of(NUMBERS - 1).get(), (1 << 24) - 1);
        assert_eq!(node_of(NUMBERS).get(), 2);
    }
}
