//! The names of connections: unlike other identifiers they are given by nodes, not by the topology.
//!
//! ```text
//!   bits    63 .. 40          39 .. 0
//!           node              number, given in turn while the node lives
//! ```
//!
//! Connections of one node are next to each other in their order, so that everything of a node is one range. Nothing else
//! follows from the number: no thread, no shard.

use core::fmt;
use core::ops::RangeInclusive;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

const NUMBER_BITS: u32 = 40;
const NUMBER_MAX: u64 = (1 << NUMBER_BITS) - 1;

/// A node, in the names of its connections. A node that was given up and comes back has another number, as what it had is
/// gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(u32);

impl NodeId {
    /// The node that is alone.
    pub const ALONE: Self = Self(1);

    /// The node with this number, of 24 bits. No node is 0: that is in the name of [nobody](ConnectionId::NOBODY).
    pub const fn new(number: u32) -> Option<Self> {
        if number > 0 && number >> (64 - NUMBER_BITS) == 0 { Some(Self(number)) } else { None }
    }

    /// Its number.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The connection of this node that has a number, of 40 bits.
    pub const fn connection(self, number: u64) -> ConnectionId {
        assert!(number <= NUMBER_MAX, "fewer than 2^40 connections");
        ConnectionId((self.0 as u64) << NUMBER_BITS | number)
    }

    /// All connections that this node may have.
    pub const fn connections(self) -> RangeInclusive<ConnectionId> {
        self.connection(0)..=self.connection(NUMBER_MAX)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Names a connection (or another client of the broker, such as the control socket) while its node lives. Never used
/// twice.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct ConnectionId(u64);

impl ConnectionId {
    /// Who is no connection: the broker itself.
    pub const NOBODY: Self = Self(0);

    /// The connection that was written as these [bits](Self::bits).
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Node and number as one, for records, letters and traces.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The node whose connection it is.
    pub const fn node(self) -> NodeId {
        NodeId((self.0 >> NUMBER_BITS) as u32)
    }

    /// Its number among those of its node.
    pub const fn number(self) -> u64 {
        self.0 & NUMBER_MAX
    }

    /// How listings and events name it.
    pub fn pid(self) -> String {
        format!("<connection.{self}>")
    }

    /// How listings and events name one of its channels.
    pub fn channel_pid(self, channel: u16) -> String {
        format!("<connection.{self}.{channel}>")
    }
}

/// Of a node that is alone the number, of others `number@node`.
impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number().fmt(f)?;
        match self.node() {
            NodeId::ALONE => Ok(()),
            node => write!(f, "@{node}"),
        }
    }
}

/// The text names no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no connection has such a name")]
pub struct NoConnection;

impl FromStr for ConnectionId {
    type Err = NoConnection;

    fn from_str(text: &str) -> Result<Self, NoConnection> {
        let (number, node) = match text.split_once('@') {
            None => (text, Some(NodeId::ALONE)),
            Some((number, node)) => (number, node.parse().ok().and_then(NodeId::new)),
        };
        let number = number.parse().ok().filter(|&number| number <= NUMBER_MAX);
        Ok(node.ok_or(NoConnection)?.connection(number.ok_or(NoConnection)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAST: NodeId = NodeId(0xff_ffff);

    #[test]
    fn a_name_tells_node_and_number() {
        for node in [NodeId::ALONE, NodeId(2), LAST] {
            for number in [0, 7, NUMBER_MAX] {
                let id = node.connection(number);
                assert_eq!((id.node(), id.number()), (node, number));
                assert_eq!(ConnectionId::from_bits(id.bits()), id);
                assert_eq!(id.to_string().parse(), Ok(id));
                assert!(node.connections().contains(&id));
            }
        }
        assert!(!NodeId::ALONE.connections().contains(&NodeId(2).connection(0)));
        assert!(!NodeId(2).connections().contains(&NodeId::ALONE.connection(NUMBER_MAX)));
        assert_eq!((NodeId::new(1 << 24), NodeId::new(0xff_ffff)), (None, Some(LAST)));
        assert_eq!(ConnectionId::default(), ConnectionId::NOBODY);
    }

    #[test]
    fn texts() {
        let (own, other) = (NodeId::ALONE.connection(7), NodeId(2).connection(7));
        assert_eq!((&*own.pid(), &*own.channel_pid(3)), ("<connection.7>", "<connection.7.3>"));
        assert_eq!(
            (&*other.pid(), &*other.channel_pid(3)),
            ("<connection.7@2>", "<connection.7@2.3>")
        );
        for text in ["", "@", "7@", "@2", "-1", "1099511627776", "7@16777216", "7@2@2"] {
            assert_eq!(text.parse::<ConnectionId>(), Err(NoConnection), "{text}");
        }
    }
}
