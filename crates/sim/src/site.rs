//! A node that sessions are on, with its links to the shards.
//!
//! The first one is the node of the shards and of the owner of the names: what it has ends with it. A second one has sessions
//! alone, and outlives it: they go on with the process that comes next.

use std::collections::BTreeMap;

use leveret_broker::message::{
    ConnectionId, NodeId, Outbox, Reply, ReplyTo, ToMeta, ToSession, ToShard,
};
use leveret_broker::stream::StreamId;
use leveret_node::KeptMax;

use crate::commands::CommandLink;
use crate::link::Link;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) node: NodeId,
    /// Lives of its process before.
    pub(crate) start: u32,
    next_connection: u64,
    /// To each shard, if shards are treated as if they were elsewhere.
    pub(crate) links: Vec<Link>,
    /// To the owner of the names, if that is treated so: commands have numbers then.
    pub(crate) command_link: Option<CommandLink>,
    /// Commands without a number to the owner of the names of which nobody was told, by who waits. Those of the first node end with its owner.
    pub(crate) commands: BTreeMap<ConnectionId, &'static str>,
    /// Connections whose exclusive queues go, and who wait for that.
    pub(crate) leaving: BTreeMap<ConnectionId, ReplyTo>,
}

impl Site {
    pub(crate) fn new(node: NodeId) -> Self {
        Self {
            node,
            start: 0,
            next_connection: 1,
            links: Vec::new(),
            command_link: None,
            commands: BTreeMap::new(),
            leaving: BTreeMap::new(),
        }
    }

    /// From now on letters to so many shards go over links.
    pub(crate) fn link(&mut self, shards: usize, max: KeptMax) {
        self.links = (0..shards).map(|_| Link::new(self.node, self.start, max)).collect();
    }

    /// From now on commands to the owner of the names go over a link, so many at a time.
    pub(crate) fn link_names(&mut self, max: u64) {
        self.command_link = Some(CommandLink::new(self.node, self.start, max));
    }

    /// Its process is the next one after `before`.
    pub(crate) fn begin_after(&mut self, before: &Self) {
        self.next_connection = before.next_connection;
        self.start = before.start + 1;
        self.links.iter_mut().for_each(|link| link.start_again(self.start));
        self.command_link.iter_mut().for_each(|link| link.start_again(self.start));
    }

    /// The name of a new connection.
    pub(crate) fn name_connection(&mut self) -> ConnectionId {
        self.next_connection += 1;
        self.last_connection()
    }

    /// The newest connection.
    pub(crate) fn last_connection(&self) -> ConnectionId {
        self.node.connection(self.next_connection - 1)
    }

    /// Whether a stream is one of this life.
    pub(crate) fn numbers(&self, stream: StreamId) -> bool {
        stream.node == self.node && stream.start == self.start
    }

    /// A session writes to the owner of the names. Returned if the letter is there at once.
    pub(crate) fn asks(&mut self, who: ConnectionId, letter: ToMeta) -> Option<ToMeta> {
        if let Some(link) = &mut self.command_link {
            return link.post(letter);
        }
        if self.node != NodeId::ALONE {
            self.remember(who, &letter);
        }
        Some(letter)
    }

    fn remember(&mut self, who: ConnectionId, letter: &ToMeta) {
        match *letter {
            ToMeta::Disconnected { reply, .. } => {
                reply.into_iter().for_each(|reply| _ = self.leaving.insert(who, reply));
            }
            ref command => _ = self.commands.insert(who, command.kind()),
        }
    }

    /// A shard writes to a session, by the link of its index.
    pub(crate) fn tell(
        &mut self,
        index: usize,
        to: ConnectionId,
        letter: ToSession,
        out: &mut Outbox,
    ) {
        if let ToSession::Reply { channel, reply: Reply::Refused { .. } } = letter {
            let links = self.links.iter_mut();
            links.for_each(|link| link.sender.other_is_refused(to, channel));
        }
        self.links[index].tell(to, letter, out);
    }

    /// The owner of the names answers.
    pub(crate) fn is_answered(&mut self, who: ConnectionId, channel: u16, reply: &Reply) {
        if channel == 0 {
            self.leaving.remove(&who);
        } else {
            self.commands.remove(&who);
        }
        if let Reply::Deleted(_) = reply {
            self.links.iter_mut().for_each(|link| link.sender.is_deleted(who));
        }
    }

    /// Letters that were numbered in this life.
    pub(crate) fn numbered(&self) -> u64 {
        let commands = self.command_link.as_ref().map_or(0, CommandLink::numbered);
        commands + self.links.iter().map(Link::numbered).sum::<u64>()
    }

    /// Letters that are kept for shards, and for the owner of the names.
    pub(crate) fn kept(&self) -> usize {
        let commands = self.command_link.as_ref().map_or(0, CommandLink::kept);
        commands + self.links.iter().map(|link| link.sender.kept()).sum::<usize>()
    }
}

/// The connection that a letter is of.
pub(crate) fn whose(letter: &ToShard) -> Option<ConnectionId> {
    match letter {
        ToShard::Publish { from, .. }
        | ToShard::Settle { from, .. }
        | ToShard::GiveBack { from, .. } => Some(*from),
        ToShard::Commit { reply, .. } | ToShard::Prepare { reply, .. } => Some(reply.connection),
        ToShard::Attach(attachment) => Some(attachment.connection),
        letter => letter.asker(),
    }
}
