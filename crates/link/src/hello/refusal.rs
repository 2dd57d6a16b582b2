//! Why there is no link, in words for whoever operates the two nodes.

use std::ops::RangeInclusive;

use super::{CLOCK_MS_MAX, ClusterId, HANDSHAKE_MS, RaftId};

/// A handshake that came to nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoLink {
    /// This node does not want it. The other side is told the same text.
    #[error("{own} refuses {}: {why}", .other.as_deref().unwrap_or("a node that has not said its name"))]
    Refused {
        /// This node.
        own: Box<str>,
        /// The other one, as far as it said who it is.
        other: Option<Box<str>>,
        /// Why.
        why: Refusal,
    },
    /// The other side does not want it, and says this. Whoever it is may not have proved that it is a node: control characters are
    /// escaped.
    #[error("the other side says: {0}")]
    Told(Box<str>),
}

impl NoLink {
    /// The other side does not want this node's end of TLS, and this is its alert in words.
    pub fn told_by_alert(text: &str) -> Self {
        Self::Told(text.into())
    }

    /// What the other side said.
    pub(super) fn told(text: &[u8]) -> Self {
        let mut escaped = String::with_capacity(text.len());
        for letter in String::from_utf8_lossy(text).chars() {
            match letter {
                control if control.is_control() => escaped.extend(control.escape_default()),
                letter => escaped.push(letter),
            }
        }
        Self::Told(escaped.into())
    }
}

/// Why a node refuses another one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The first bytes are not a node's. Nothing is said.
    #[error("its first bytes are not those of a Leveret node")]
    NotANode,
    /// A message of the handshake is not as it should be.
    #[error("its handshake has an error: {0}")]
    Malformed(&'static str),
    /// It calls with TLS, and has said nothing yet.
    #[error(
        "it calls with TLS, and this node has none for links: set cluster.ssl_options here, too"
    )]
    Tls,
    /// It calls without TLS.
    #[error(
        "it calls without TLS, and this node takes links with TLS alone: set cluster.ssl_options there, too"
    )]
    Plain,
    /// Its end of TLS is not as this node wants it.
    #[error("{0}")]
    Encryption(Box<str>),
    /// Nothing for so long.
    #[error("its handshake is not done after {} s", HANDSHAKE_MS / 1000)]
    Silent,
    /// Too far apart in versions.
    #[error(
        "no version in common: here are {} to {} of the link, there {} to {}; upgrade one node at a time, by one version",
        .ours.start(), .ours.end(), .theirs.start(), .theirs.end()
    )]
    Versions {
        /// This node's.
        ours: RangeInclusive<u16>,
        /// The other one's.
        theirs: RangeInclusive<u16>,
    },
    /// The proof is wrong.
    #[error(
        "wrong secret: cluster.secret is not the same on both{}",
        if *(.with_tls) { ", or something in between ends the TLS connection" } else { "" }
    )]
    Secret {
        /// Over TLS.
        with_tls: bool,
    },
    /// A node of another cluster.
    #[error("it is of another cluster: {theirs} there, {ours} here")]
    Cluster {
        /// This node's.
        ours: ClusterId,
        /// The other one's.
        theirs: ClusterId,
    },
    /// Its number is no member's.
    #[error("its Raft id {0} is not a member's: it was forgotten, or never was one")]
    NotAMember(RaftId),
    /// It was a member.
    #[error(
        "its data directory, with Raft id {0}, was forgotten (forget_cluster_node): with an empty one it becomes a new member"
    )]
    Forgotten(RaftId),
    /// A member has its name, and another data directory.
    #[error(
        "its name belongs to the data directory with Raft id {member}, and it says {said}: \
         if the old directory is lost, forget_cluster_node first"
    )]
    Name {
        /// Whose the name is.
        member: RaftId,
        /// Who has it.
        said: RaftId,
    },
    /// A later start was heard of.
    #[error(
        "it is start {said} of its data directory, and start {known} was here: \
         an older copy of the directory, or a second process on a copy of it"
    )]
    OlderStart {
        /// The latest.
        known: u64,
        /// This one.
        said: u64,
    },
    /// So many starts nobody makes: heard of, it would keep the member away for ever.
    #[error(
        "it says that it is start {said} of its data directory, and start {known} is the last that was heard of: its file 'cluster' is \
         not as it was written"
    )]
    TooManyStarts {
        /// The latest.
        known: u64,
        /// This one.
        said: u64,
    },
    /// Its number is this node's.
    #[error(
        "it has this node's own Raft id {0}: this node itself, or a copy of its data directory"
    )]
    Itself(RaftId),
    /// Its name is this node's.
    #[error("it has this node's own name")]
    OwnName,
    /// Another node answers where a node was called.
    #[error("{meant} was called: see cluster_formation.classic_config.addresses here")]
    OtherName {
        /// Who was called.
        meant: Box<str>,
    },
    /// Nobody here expects it.
    #[error("its name is not in cluster_formation.classic_config.nodes here")]
    NotListed,
    /// It relays a client, and is in no cluster, or this node is not.
    #[error("clients are relayed between members of a cluster only")]
    Relay,
    /// The time of the day.
    #[error(
        "the clock differs by {} s: the other's is {}; {} s are allowed",
        .ahead_ms.unsigned_abs() / 1000,
        if *(.ahead_ms) > 0 { "ahead" } else { "behind" },
        CLOCK_MS_MAX / 1000
    )]
    Clock {
        /// How far the other node is ahead, in ms.
        ahead_ms: i64,
    },
}

impl Refusal {
    /// Whether the other side is told. TLS has alerts of its own.
    pub(super) fn is_told(&self) -> bool {
        !matches!(self, Self::NotANode | Self::Encryption(_))
    }
}
