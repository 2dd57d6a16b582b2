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
pub mod lease;
pub mod presence;
pub mod sessions;
pub mod shards;

use leveret_broker::message::{Message, NodeId, ToSession};

pub use held::HeldTurns;
pub use lease::{ASK_MS, KEPT_MS, LEASE_MS};
pub use presence::{Came, Counted, Presence, Refused, Stage, Went};
pub use sessions::{NodeHeard, RemoteNode};
pub use shards::{Heard, Owners, RemoteShards};

/// With so many bytes of direct replies that wait for a connection the next ones are lost: as much as a session keeps for a client
/// that does not read them. The last one may go beyond that.
const REPLIES_MAX: u64 = 16 << 20;

/// What a reply takes beside its bytes.
const REPLY_BYTES: u64 = 256;

/// Shorter messages wait in memory of their own where they may wait for long: else each keeps all of the read that it came with, which is
/// as long as this at most. A longer one is most of what it keeps.
const OWN_MEMORY_BELOW: u64 = 256 << 10;

/// Has a short message be in memory of its own.
pub(crate) fn detach(message: &mut Message) {
    if message.len() < OWN_MEMORY_BELOW {
        *message = message.detached();
    }
}

/// Room for direct replies that wait for a connection. Whoever sends them waits for nobody, and is told nothing, so nothing else
/// bounds them. A reply is delivered at most once.
#[derive(Debug, Default)]
struct ReplyRoom {
    bytes: u64,
    /// Replies for which there was no room.
    lost: u64,
    is_told: bool,
}

impl ReplyRoom {
    /// Whether there is room for a letter, which is taken if it is a reply.
    fn take(&mut self, letter: &mut ToSession) -> bool {
        let ToSession::DirectReply { message, .. } = letter else { return true };
        if self.bytes >= REPLIES_MAX {
            self.lost += 1;
            return false;
        }
        detach(message);
        self.bytes += Self::of(message);
        true
    }

    /// Whether replies were lost, and nobody was told.
    fn begins_to_lose(&mut self) -> bool {
        self.lost > 0 && !std::mem::replace(&mut self.is_told, true)
    }

    /// A letter waits no more.
    fn give_back(&mut self, letter: &ToSession) {
        if let ToSession::DirectReply { message, .. } = letter {
            self.bytes = self.bytes.saturating_sub(Self::of(message));
        }
    }

    fn of(message: &Message) -> u64 {
        message.len() + REPLY_BYTES
    }
}

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
