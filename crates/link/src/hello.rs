//! How a connection of a link begins: both sides say hello, prove that they know the secret, and let each other in.
//!
//! ```text
//!   caller                                callee
//!     |---- hello ------------------------->|
//!     |<------------------------ hello -----|   the versions are compared
//!     |---- proof ------------------------->|   who cannot prove gets nothing to guess from
//!     |<------------------------ proof -----|
//!     |<-------------- welcome or refusal --|   cluster, member, name, start, clock
//!     |---- welcome or refusal ------------>|
//!     |==== frames =========================|
//! ```
//!
//! A proof is HMAC-SHA-256 under the secret of the prover's role, both hellos and, with TLS, the channel's exporter. The role keeps a
//! proof from being sent back, the random bytes of both hellos keep it from being sent again.
//!
//! A refusal takes the place of any of these. Its text names both nodes: it is told to the other side, and is this side's
//! [outcome](Handshake::outcome). One that is no node is told nothing.

mod refusal;
mod secret;
mod wire;

use std::num::NonZeroU128;
use std::ops::RangeInclusive;

pub use refusal::{NoLink, Refusal};
pub use secret::{Secret, SecretError};
pub use wire::NAME_MAX;

use secret::Role;
use wire::{Hello, Kind, MAGIC, Message};

/// A handshake has so long, in ms; then the driver [gives it up](Handshake::give_up).
pub const HANDSHAKE_MS: u64 = 5_000;

/// Handshakes with callers that a node has under way at most.
pub const HANDSHAKES_MAX: usize = 64;

/// Bytes that a side has sent before it is heard no longer, for each message. Nothing longer is read from a stranger.
pub const MESSAGE_MAX: usize = wire::MESSAGE_MAX;

/// The versions of what goes over a link that this program has.
pub const VERSIONS: RangeInclusive<u16> = 1..=1;

/// Clocks may differ by so much, in ms: messages expire by the leader's.
pub const CLOCK_MS_MAX: u64 = 60_000;

/// Starts of a data directory between two that others hear of, at most: one a second for 136 years.
const STARTS_MAX: u64 = 1 << 32;

/// A cluster, by a number drawn at random when it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterId(pub NonZeroU128);

impl core::fmt::Display for ClusterId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A data directory as a member of a cluster, by a number drawn at random.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RaftId(pub u64);

impl core::fmt::Display for RaftId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// What a connection is for: a link has two, and a relayed client one of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// Beats, votes, settlements, confirms: nothing that takes long.
    Urgent,
    /// All else of a link.
    Bulk,
    /// A client's bytes: it is connected to the caller, and is to be served by the other side. Between members only.
    Relay,
}

/// What a node says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFacts {
    /// `name@host`, of [`NAME_MAX`] bytes at most.
    pub name: Box<str>,
    /// Its cluster; none of a node that is in none yet.
    pub cluster: Option<ClusterId>,
    /// Its data directory.
    pub raft_id: RaftId,
    /// The number of this start of it.
    pub start: u64,
}

/// What a node knows of the members of its cluster.
pub trait Members {
    /// The latest start that was heard of a member; none if that is no member.
    fn start_of(&self, id: RaftId) -> Option<u64>;

    /// The member that has a name.
    fn named(&self, name: &str) -> Option<RaftId>;

    /// Whether that was a member, and was forgotten.
    fn is_forgotten(&self, id: RaftId) -> bool;

    /// Whether this node's configuration lists a node of that name: no other has a link, and two that are in no cluster found one
    /// together only if each lists the other.
    fn is_listed(&self, name: &str) -> bool;
}

/// Who is at the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// What it says of itself, and has proved to be entitled to say.
    pub node: NodeFacts,
    /// One of the two nodes is in no cluster yet, or neither is.
    pub joins: bool,
    /// The highest version that both have.
    pub version: u16,
    /// Which connection this is.
    pub urgency: Urgency,
    /// How far its clock is ahead of this node's, in ms.
    pub clock_ahead_ms: i64,
    /// The connection has TLS.
    pub encrypted: bool,
}

/// One connection's handshake, from this side.
#[derive(Debug)]
pub struct Handshake {
    side: Side,
    own: NodeFacts,
    /// Whom a caller means.
    meant: Option<Box<str>>,
    versions: RangeInclusive<u16>,
    random: [u8; 32],
    secret: Secret,
    exporter: Option<Box<[u8]>>,
    /// Callers without TLS are refused.
    needs_tls: bool,
    /// The bodies of both hellos, as they are on the wire.
    own_hello: Vec<u8>,
    their_hello: Vec<u8>,
    /// The first bytes of a message that is not whole; [`MESSAGE_MAX`] at most.
    received: Vec<u8>,
    awaits: Awaits,
    output: Vec<u8>,
    outcome: Option<Result<Peer, NoLink>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Caller(Urgency),
    Callee,
}

impl Side {
    fn own_role(self) -> Role {
        match self {
            Self::Caller(_) => Role::Caller,
            Self::Callee => Role::Callee,
        }
    }

    fn their_role(self) -> Role {
        match self {
            Self::Caller(_) => Role::Callee,
            Self::Callee => Role::Caller,
        }
    }
}

#[derive(Clone, Debug)]
enum Awaits {
    Hello,
    Proof(Peer),
    Welcome(Peer),
}

impl Handshake {
    /// A node that calls. `random` is new for each handshake. `exporter` is what both ends of the TLS connection export, and nobody
    /// in between has. `now_ms` is the time of the day, ms since the Unix epoch.
    pub fn call(
        own: NodeFacts,
        urgency: Urgency,
        secret: Secret,
        exporter: Option<Box<[u8]>>,
        random: [u8; 32],
        now_ms: u64,
    ) -> Self {
        let mut call = Self::new(Side::Caller(urgency), own, secret, exporter, random);
        call.begin(urgency, now_ms);
        call
    }

    /// A node that is called. The arguments are those of [`call`](Self::call).
    pub fn answer(
        own: NodeFacts,
        secret: Secret,
        exporter: Option<Box<[u8]>>,
        random: [u8; 32],
    ) -> Self {
        Self::new(Side::Callee, own, secret, exporter, random)
    }

    fn new(
        side: Side,
        own: NodeFacts,
        secret: Secret,
        exporter: Option<Box<[u8]>>,
        random: [u8; 32],
    ) -> Self {
        Self {
            side,
            own,
            meant: None,
            versions: VERSIONS,
            random,
            secret,
            exporter,
            needs_tls: false,
            own_hello: Vec::new(),
            their_hello: Vec::new(),
            received: Vec::new(),
            awaits: Awaits::Hello,
            output: Vec::new(),
            outcome: None,
        }
    }

    /// Whom the call is for: a node of another name is refused.
    #[must_use]
    pub fn meant_for(mut self, name: &str) -> Self {
        self.meant = Some(name.into());
        self
    }

    /// A caller without TLS is refused, once it has said its name. It is told no more than that and this node's name.
    #[must_use]
    pub fn with_tls_only(mut self) -> Self {
        self.needs_tls = true;
        self
    }

    /// The caller begins with TLS, and this node has none for links.
    pub fn refuse_tls(&mut self) {
        self.refuse(Refusal::Tls);
    }

    /// As a program with other versions would.
    #[cfg(test)]
    fn with_versions(mut self, versions: RangeInclusive<u16>, now_ms: u64) -> Self {
        self.versions = versions;
        self.output.clear();
        self.own_hello.clear();
        if let Side::Caller(urgency) = self.side {
            self.begin(urgency, now_ms);
        }
        self
    }

    /// Takes what came. Returns how many of the bytes belong to the handshake: those behind it are frames. To be called until there
    /// is an [outcome](Self::outcome).
    pub fn input(&mut self, bytes: &[u8], now_ms: u64, members: &impl Members) -> usize {
        let mut rest = bytes;
        while self.outcome.is_none() && !rest.is_empty() {
            let missing = match self.missing() {
                Ok(missing) => missing,
                Err(why) => {
                    self.refuse(why);
                    break;
                }
            };
            let (taken, left) = rest.split_at(missing.min(rest.len()));
            self.received.extend_from_slice(taken);
            rest = left;
            if self.missing() == Ok(0) {
                let received = std::mem::take(&mut self.received);
                let message = Message::read(received.get(self.magic_len()..).unwrap_or_default());
                if let Err(why) = message.and_then(|it| self.message(&it, now_ms, members)) {
                    self.refuse(why);
                }
            }
        }
        if let (None, Err(why)) = (&self.outcome, self.missing()) {
            self.refuse(why);
        }
        bytes.len().saturating_sub(rest.len())
    }

    /// How many bytes come next, at least: who reads no more than that from the socket leaves there what is behind the handshake.
    /// 0 once there is an [outcome](Self::outcome).
    pub fn wants(&self) -> usize {
        match (&self.outcome, self.missing()) {
            (None, Ok(missing)) => missing,
            _ => 0,
        }
    }

    /// What is to be written, once.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// How it ended, if it has. What there is to [write](Self::take_output) is written all the same.
    pub fn outcome(&self) -> Option<&Result<Peer, NoLink>> {
        self.outcome.as_ref()
    }

    /// What the other side says of itself, if it has said that; it may not have proved anything.
    pub fn said(&self) -> Option<&NodeFacts> {
        match &self.awaits {
            Awaits::Hello => None,
            Awaits::Proof(peer) | Awaits::Welcome(peer) => Some(&peer.node),
        }
    }

    /// The time is over.
    pub fn give_up(&mut self) {
        if self.outcome.is_none() {
            self.refuse(Refusal::Silent);
        }
    }

    /// Nothing of the other side has come: a magic comes first.
    fn magic_len(&self) -> usize {
        if matches!(self.awaits, Awaits::Hello) { MAGIC.len() } else { 0 }
    }

    /// How many bytes the message lacks that is coming.
    fn missing(&self) -> Result<usize, Refusal> {
        let magic = self.magic_len();
        let begins = self.received.iter().zip(MAGIC).take(magic).all(|(came, own)| came == own);
        if !begins {
            return Err(Refusal::NotANode);
        }
        let len = wire::message_len(self.received.get(magic..).unwrap_or_default(), magic)?;
        Ok(magic.saturating_add(len).saturating_sub(self.received.len()))
    }

    fn message(
        &mut self,
        message: &Message<'_>,
        now_ms: u64,
        members: &impl Members,
    ) -> Result<(), Refusal> {
        if message.kind == Kind::Refusal {
            self.outcome = Some(Err(NoLink::told(message.body)));
            return Ok(());
        }
        match (self.awaits.clone(), message.kind) {
            (Awaits::Hello, Kind::Hello) => self.hello(message.body, now_ms),
            (Awaits::Proof(peer), Kind::Proof) => self.proof(message.body, peer, members),
            (Awaits::Welcome(peer), Kind::Welcome) if message.body.is_empty() => {
                self.outcome = Some(Ok(peer));
                Ok(())
            }
            _ => Err(Refusal::Malformed("something else than what comes next")),
        }
    }

    /// Says hello itself.
    fn begin(&mut self, urgency: Urgency, now_ms: u64) {
        let hello = Hello {
            versions: self.versions.clone(),
            urgency,
            node: self.own.clone(),
            random: self.random,
            now_ms,
        };
        self.own_hello = hello.encode();
        self.output.extend_from_slice(MAGIC);
        wire::put_message(&mut self.output, Kind::Hello, &self.own_hello);
    }

    fn hello(&mut self, body: &[u8], now_ms: u64) -> Result<(), Refusal> {
        let hello = Hello::decode(body)?;
        self.their_hello = body.to_vec();
        let (theirs, ours) = (hello.versions.clone(), self.versions.clone());
        let version = *theirs.end().min(ours.end());
        let joins = hello.node.cluster.is_none() || self.own.cluster.is_none();
        let clock_ahead_ms = signed_difference(hello.now_ms, now_ms);
        let (urgency, node) = (hello.urgency, hello.node);
        let encrypted = self.exporter.is_some();
        // Known from here on, so that a refusal names it.
        self.awaits =
            Awaits::Proof(Peer { node, joins, version, urgency, clock_ahead_ms, encrypted });
        if self.needs_tls && !encrypted {
            return Err(Refusal::Plain);
        }
        if self.side == Side::Callee {
            self.begin(urgency, now_ms);
        }
        if version < *theirs.start().max(ours.start()) {
            return Err(Refusal::Versions { ours, theirs });
        }
        if self.side != Side::Callee {
            if self.side != Side::Caller(urgency) {
                return Err(Refusal::Malformed("the other connection's hello"));
            }
            self.prove();
        }
        Ok(())
    }

    /// The two hellos, the caller's first.
    fn hellos(&self) -> [&[u8]; 2] {
        match self.side {
            Side::Caller(_) => [&self.own_hello, &self.their_hello],
            Side::Callee => [&self.their_hello, &self.own_hello],
        }
    }

    fn prove(&mut self) {
        let role = self.side.own_role();
        let proof = self.secret.proof(role, self.hellos(), self.exporter.as_deref());
        wire::put_message(&mut self.output, Kind::Proof, &proof);
    }

    fn proof(&mut self, proof: &[u8], peer: Peer, members: &impl Members) -> Result<(), Refusal> {
        let (role, exporter) = (self.side.their_role(), self.exporter.as_deref());
        if !self.secret.is_proof(proof, role, self.hellos(), exporter) {
            return Err(Refusal::Secret { with_tls: exporter.is_some() });
        }
        if self.side == Side::Callee {
            self.prove();
        }
        self.admit(&peer, members)?;
        wire::put_message(&mut self.output, Kind::Welcome, b"");
        self.awaits = Awaits::Welcome(peer);
        Ok(())
    }

    /// Whether one that knows the secret may come in.
    fn admit(&self, peer: &Peer, members: &impl Members) -> Result<(), Refusal> {
        let NodeFacts { name, cluster, raft_id, start } = &peer.node;
        if *raft_id == self.own.raft_id {
            return Err(Refusal::Itself(*raft_id));
        }
        if *name == self.own.name {
            return Err(Refusal::OwnName);
        }
        if let Some(meant) = self.meant.as_ref().filter(|meant| *meant != name) {
            return Err(Refusal::OtherName { meant: meant.clone() });
        }
        if let (Some(ours), Some(theirs)) = (self.own.cluster, *cluster)
            && ours != theirs
        {
            return Err(Refusal::Cluster { ours, theirs });
        }
        if members.is_forgotten(*raft_id) {
            return Err(Refusal::Forgotten(*raft_id));
        }
        if let Some(member) = members.named(name).filter(|member| member != raft_id) {
            return Err(Refusal::Name { member, said: *raft_id });
        }
        if !members.is_listed(name) {
            return Err(Refusal::NotListed);
        }
        let known = members.start_of(*raft_id).unwrap_or(0);
        if *start > known.saturating_add(STARTS_MAX) {
            return Err(Refusal::TooManyStarts { known, said: *start });
        }
        match (members.start_of(*raft_id), self.own.cluster, *cluster) {
            (Some(known), ..) if *start < known => {
                return Err(Refusal::OlderStart { known, said: *start });
            }
            // A founder's member may not have heard of its cluster yet.
            (Some(_), ..) => {}
            (None, Some(_), Some(_)) => return Err(Refusal::NotAMember(*raft_id)),
            // Its name is listed, and nobody has it: it may become a member. Or a member hears of its cluster.
            (None, Some(_), None) | (None, None, _) => {}
        }
        if peer.joins && peer.urgency == Urgency::Relay {
            return Err(Refusal::Relay);
        }
        if peer.clock_ahead_ms.unsigned_abs() > CLOCK_MS_MAX {
            return Err(Refusal::Clock { ahead_ms: peer.clock_ahead_ms });
        }
        Ok(())
    }

    /// Tells the other side, if that is a node, and ends.
    fn refuse(&mut self, why: Refusal) {
        let other = self.said().map(|node| node.name.clone());
        let is_told = why.is_told();
        let refused = NoLink::Refused { own: self.own.name.clone(), other, why };
        if is_told {
            if self.own_hello.is_empty() {
                self.output.extend_from_slice(MAGIC);
            }
            wire::put_message(&mut self.output, Kind::Refusal, refused.to_string().as_bytes());
        }
        self.received = Vec::new();
        self.outcome = Some(Err(refused));
    }
}

/// `left - right`, as far as that goes.
fn signed_difference(left: u64, right: u64) -> i64 {
    let difference = i128::from(left).saturating_sub(i128::from(right));
    difference.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

#[cfg(test)]
mod tests;
