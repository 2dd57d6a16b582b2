//! What a turn wants sent.

use leveret_topology::{Event, GroupId};

use super::{ConnectionId, Reply, ReplyTo, Step, ToMeta, ToSession, ToShard};
use crate::command::Answered;
use crate::login::{Asked, Login};
use crate::stream::StreamNews;

/// What a turn wants sent. The driver hands each letter to its actor's inbox, in order.
#[derive(Debug, Default)]
pub struct Outbox {
    /// To the shards of groups.
    pub shards: Vec<(GroupId, ToShard)>,
    /// To the topology's owner.
    pub meta: Vec<ToMeta>,
    /// To sessions.
    pub sessions: Vec<(ConnectionId, ToSession)>,
    /// Clients that want to come in.
    pub logins: Vec<Login>,
    /// What happened, for those who want to know.
    pub events: Vec<Event>,
    /// Steps of messages in traced vhosts.
    pub steps: Vec<Step>,
    /// What others have to decide who keep users.
    pub asked: Vec<Asked>,
    /// What shards tell nodes of their [streams](crate::stream).
    pub news: Vec<(GroupId, StreamNews)>,
    /// What the owner of the names tells nodes of their [commands](crate::command).
    pub answers: Vec<Answered>,
    /// A log failed, in words: the process has to stop, as nothing may be confirmed any more.
    pub failed: Option<String>,
}

impl Outbox {
    /// Whether nothing is to be sent.
    pub fn is_empty(&self) -> bool {
        self.shards.is_empty()
            && self.meta.is_empty()
            && self.sessions.is_empty()
            && self.logins.is_empty()
            && self.events.is_empty()
            && self.steps.is_empty()
            && self.asked.is_empty()
            && self.news.is_empty()
            && self.answers.is_empty()
            && self.failed.is_none()
    }

    /// Moves all letters to the end of another outbox.
    pub fn append_to(mut self, other: &mut Self) {
        other.shards.append(&mut self.shards);
        other.meta.append(&mut self.meta);
        other.sessions.append(&mut self.sessions);
        other.logins.append(&mut self.logins);
        other.events.append(&mut self.events);
        other.steps.append(&mut self.steps);
        other.asked.append(&mut self.asked);
        other.news.append(&mut self.news);
        other.answers.append(&mut self.answers);
        other.failed = other.failed.take().or(self.failed);
    }

    /// Tells the owner of the names that these connections have ended: nobody waits for an answer.
    pub fn disconnected(&mut self, connections: impl IntoIterator<Item = ConnectionId>) {
        let ends = connections.into_iter();
        self.meta.extend(ends.map(|connection| ToMeta::Disconnected { connection, reply: None }));
    }

    /// Sends `letter` to the shard of that group.
    pub fn shard(&mut self, group: GroupId, letter: ToShard) {
        self.shards.push((group, letter));
    }

    /// Sends `letter` to a session.
    pub fn session(&mut self, to: ConnectionId, letter: ToSession) {
        self.sessions.push((to, letter));
    }

    /// Answers a command.
    pub fn reply(&mut self, to: ReplyTo, reply: Reply) {
        self.sessions.push((to.connection, ToSession::Reply { channel: to.channel, reply }));
    }
}
