//! What a node of sessions and the node that leads write to each other.
//!
//! Over one connection, in order, from its beginning to its end: what is lost, is lost with all that follows. See
//! `docs/decisions/0068-sessions-on-the-node-of-their-client.md`.

use bytes::Bytes;
use leveret_queue::Offset;
use leveret_topology::{Change, GroupId};

use super::{ConnectionId, ToMeta, ToSession, ToShard};
use crate::command::Answered;
use crate::flow::Alarm;
use crate::stream::{StreamNews, StreamPlace};

/// What a node of sessions writes.
#[derive(Debug)]
pub enum ToLeader {
    /// The first letter: who it is.
    Hello(SessionsHello),
    /// A session begins: what is written of it later is of this one.
    Opened(ConnectionId),
    /// A session is over: all that it wrote without a number has been sent, and what tells shards and the owner of the names of its end.
    Ended(ConnectionId),
    /// For a shard: numbered letters, what asks, what allows, and what attaches.
    Shard(GroupId, ToShard),
    /// For the owner of the names: numbered commands.
    Meta(ToMeta),
    /// For a session of another node.
    Session(ConnectionId, ToSession),
    /// The names are those of all batches up to this one.
    NamesTaken(u64),
    /// What happened to its connections and to traced messages, for who looks at the node that leads: of those who write and read it.
    Told(Bytes),
    /// How many connections and channels of users and vhosts with limits are here, of those for whom that has changed; of those who
    /// write and read it.
    Uses(Bytes),
    /// An answer to a [look](FromLeader::Look), and its number.
    Seen(u64, Bytes),
    /// A question with a number, again and again: for how long its sessions may act by the names that they have.
    AsksLease(u64),
    /// Nothing is to be said: the node is there.
    Beat,
}

/// Who has sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionsHello {
    /// The Raft id of its data directory.
    pub raft_id: u64,
    /// How often the process was started before.
    pub start: u32,
    /// It has sessions of an earlier leader, which are to attach: the last [term of the names](LeaderTerms::names) in which it was told
    /// that a leader hears it. A leader that does not wait for them any more, or before which one led that did not know this node,
    /// refuses it.
    pub attaches: Option<u64>,
    /// Its sessions that are open, and those of whose end the owner of the names has not heard.
    pub connections: Vec<ConnectionId>,
    /// Exclusive queues of its sessions, bindings to these, and which vhosts are traced: they are in no log, so the
    /// [next owner of the names](leveret_topology::Topology::bring_back) has them from here.
    pub queues: Vec<Brought>,
}

/// An exclusive queue, a binding to one, or that a vhost is traced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Brought {
    /// As it is.
    pub change: Change,
    /// Numbers of commands of its connection that take it away. What was noted as done is not done again: so it is gone.
    pub unbinds: Vec<u64>,
}

/// What the node that leads writes.
#[derive(Debug)]
pub enum FromLeader {
    /// What has changed of the names, or all of them.
    Names(NamesBatch),
    /// The shards are filled and in their terms: from now on they hear. Behind the first names.
    Begins(LeaderTerms),
    /// For a session, from the shard of this group or from somebody else.
    Session(ConnectionId, Option<GroupId>, ToSession),
    /// Of a stream to a group.
    News(GroupId, StreamNews),
    /// Of a command.
    Answered(Answered),
    /// What is short at the node that leads: publishers pause. Behind [`Begins`](Self::Begins) it is told, whatever it is: nothing is
    /// known of it before.
    Alarm(Alarm),
    /// The sessions of this node are over, and why: the leader does not know them, or not any more.
    Over(Box<str>),
    /// A question of management, with a number: what the node shows of its connections. What is in it is of those who ask and answer.
    Look(u64, Bytes),
    /// How many connections and channels of users and vhosts with limits are at all other nodes, as in [`ToLeader::Uses`].
    Uses(Bytes),
    /// The answer to the [question](ToLeader::AsksLease) with this number: from when that was asked, for a while.
    Lease(u64),
    /// Nothing is to be said: the leader is there.
    Beat,
}

/// Changes of the names.
#[derive(Clone, Debug)]
pub struct NamesBatch {
    /// The first one has 1; the next one the next number.
    pub number: u64,
    /// These are all names that there are: what is not among them is gone.
    pub is_whole: bool,
    /// More of the same batch follows: nothing of it is applied before the last part is there.
    pub goes_on: bool,
    /// What has changed.
    pub changes: Vec<Change>,
}

/// The terms in which a leader is heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderTerms {
    /// Of the owner of the names.
    pub names: u64,
    /// Of each shard, by index.
    pub shards: Vec<ShardTerm>,
}

/// The term of a shard, as a node of sessions is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardTerm {
    /// Whose.
    pub group: GroupId,
    /// What has an offset from here on is of this term, or a later one: see [`ToSession::Attach`].
    pub begins_at: Offset,
    /// Where the node's streams of messages and of settlements stand there.
    pub streams: [StreamPlace; 2],
}
