//! What management is shown of connections: those of this process, and those of nodes of sessions.
//!
//! ```text
//!   the node that leads    Question   ->   a node of sessions
//!                          <-   Part       by a task: it waits for turns that run
//!                          More   ->
//!                          <-   Part
//! ```
//!
//! Both are JSON, and what is not understood ends no session. The whole of an answer waits at the node of sessions, and
//! goes one part at a time, each when the one before is taken in. One look at a node is after the other.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use leveret_amqp::reply::ReplyCode;
use leveret_broker::message::{ConnectionId, NodeId, Outbox, Step, ToSession};
use leveret_session::{ChannelFacts, ConnectionFacts, Passed};
use leveret_topology::{Event, VhostId};
use serde::{Deserialize, Serialize};
use tokio::task::yield_now;

use crate::connection::{Connection, Sampled};
use crate::ended::{Sums, Totals};
use crate::node::Node;
use crate::runner::with_runner;

/// Connections of a part of an answer; meanwhile others of the thread wait.
const PART: usize = 128;

/// Channels, and what they counted by exchange and by queue, after which a part ends.
const PART_ENTRIES: usize = 1024;

/// The most of them of one connection: channels are shown all, and the sums of what they counted.
const ENTRIES_MAX: usize = 4096;

/// What a node of sessions is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Question {
    /// All of its connections, with what lists show.
    List,
    /// The same of one.
    One {
        /// Its [name](AnyConnection::name).
        name: String,
    },
    /// What statistics are made of.
    Sample {
        /// The number of the look whose answer was taken in last, whole: who had no turn since rests.
        since: Option<u64>,
    },
    /// The next part of the answer.
    More,
}

/// A part of an answer.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Part {
    /// The node's name.
    pub(super) node: String,
    pub(super) connections: Vec<Elsewhere>,
    /// Connections of which nothing has changed.
    pub(super) rests: Vec<ConnectionId>,
    /// Totals of those that are over, in the last part of a sample.
    pub(super) by_vhost: Vec<(VhostId, Sums)>,
    pub(super) passages: Vec<Passed>,
    /// There is more.
    pub(super) goes_on: bool,
}

/// What happened at a node of sessions: who looks at the node that leads sees it there.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Happened {
    pub(super) events: Vec<Event>,
    pub(super) steps: Vec<Step>,
}

impl Happened {
    /// The first connection in it that is of another node.
    pub(super) fn stranger_to(&self, node: NodeId) -> Option<ConnectionId> {
        let events = self.events.iter().flat_map(|event| {
            let pids = ["pid", "connection"].map(|fact| event.facts.get(fact));
            pids.into_iter().flatten().filter_map(|pid| of_pid(pid.as_str()?))
        });
        self.steps.iter().map(|it| it.connection).chain(events).find(|it| it.node() != node)
    }
}

/// The connection that events [name](ConnectionId::pid) so, or whose channel.
fn of_pid(pid: &str) -> Option<ConnectionId> {
    let name = pid.strip_prefix("<connection.")?.strip_suffix('>')?;
    name.split('.').next()?.parse().ok()
}

/// A connection of a node of sessions, as of when it was asked.
#[derive(Debug, Serialize, Deserialize)]
pub struct Elsewhere {
    id: ConnectionId,
    peer: SocketAddr,
    local: SocketAddr,
    user: String,
    is_encrypted: bool,
    /// Of lists.
    facts: Option<ConnectionFacts>,
    sampled: Option<Box<Sampled>>,
    /// The node's name.
    #[serde(skip)]
    node: Arc<str>,
}

/// A connection, wherever its client is connected.
#[derive(Clone, Debug)]
pub enum AnyConnection {
    /// Of this process.
    Here(Arc<Connection>),
    /// Of a node of sessions.
    Elsewhere(Arc<Elsewhere>),
}

impl Part {
    /// The first connection in it that is of another node.
    pub(super) fn stranger_to(&self, node: NodeId) -> Option<ConnectionId> {
        let shown = self.connections.iter().map(|it| it.id);
        shown.chain(self.rests.iter().copied()).find(|it| it.node() != node)
    }

    /// The connections in it, which are of its node.
    pub(super) fn take_connections(&mut self) -> impl Iterator<Item = Elsewhere> + use<> {
        let node: Arc<str> = std::mem::take(&mut self.node).into();
        let connections = std::mem::take(&mut self.connections).into_iter();
        connections.map(move |it| Elsewhere { node: Arc::clone(&node), ..it })
    }
}

impl AnyConnection {
    /// Its name inside the broker.
    pub fn id(&self) -> ConnectionId {
        match self {
            Self::Here(it) => it.id(),
            Self::Elsewhere(it) => it.id,
        }
    }

    /// The client's end of the socket.
    pub fn peer(&self) -> SocketAddr {
        match self {
            Self::Here(it) => it.peer(),
            Self::Elsewhere(it) => it.peer,
        }
    }

    /// The broker's end of the socket.
    pub fn local(&self) -> SocketAddr {
        match self {
            Self::Here(it) => it.local(),
            Self::Elsewhere(it) => it.local,
        }
    }

    /// As [`Connection::name`].
    pub fn name(&self) -> String {
        format!("{} -> {}", self.peer(), self.local())
    }

    /// Who logged in; empty before. Waits for the turn that runs.
    pub fn user(&self) -> String {
        match self {
            Self::Here(it) => it.user(),
            Self::Elsewhere(it) => it.user.clone(),
        }
    }

    /// The name of the node that its client is connected to, if that is not this process's.
    pub fn node(&self) -> Option<&str> {
        match self {
            Self::Here(_) => None,
            Self::Elsewhere(it) => Some(&it.node),
        }
    }

    /// Whether it is encrypted.
    pub fn is_encrypted(&self) -> bool {
        match self {
            Self::Here(it) => it.is_encrypted(),
            Self::Elsewhere(it) => it.is_encrypted,
        }
    }

    /// For listings; none of one of another node that was only sampled. Waits for the turn that runs.
    pub fn facts(&self) -> Option<ConnectionFacts> {
        match self {
            Self::Here(it) => Some(it.facts()),
            Self::Elsewhere(it) => it.facts.clone(),
        }
    }

    /// As [`Connection::sample`].
    pub fn sample(&self) -> Option<Sampled> {
        match self {
            Self::Here(it) => it.sample(),
            Self::Elsewhere(it) => it.sampled.as_deref().cloned(),
        }
    }

    /// Closes it; its client is told the reason.
    pub fn close(&self, node: &Arc<Node>, reason: String) {
        with_runner(node, |runner| match self {
            Self::Here(it) => runner.close_connection(it, reason),
            Self::Elsewhere(it) => {
                let mut out = Outbox::default();
                let code = ReplyCode::ConnectionForced;
                out.session(it.id, ToSession::Close { code, text: reason });
                runner.run_outbox(out);
            }
        });
    }
}

/// A node of sessions that is here, and what it tells for statistics.
#[derive(Debug)]
pub struct SampledElsewhere {
    /// Its number.
    pub node: NodeId,
    /// Which start of its process: the connections of an earlier one are over.
    pub start: u32,
    /// None: it did not answer in time, so what it told last is the newest that is known.
    pub told: Option<SampleTold>,
}

/// A node's answer, whole.
#[derive(Debug, Default)]
pub struct SampleTold {
    /// Connections that had a turn since they were asked last.
    pub news: Vec<(AnyConnection, Box<Sampled>)>,
    /// Those that had none.
    pub rests: Vec<ConnectionId>,
    /// Totals of those that are over.
    pub ended: Totals,
}

impl SampleTold {
    pub(super) fn add(&mut self, mut part: Part) {
        self.news.extend(part.take_connections().filter_map(|mut it| {
            let sampled = it.sampled.take()?;
            Some((AnyConnection::Elsewhere(Arc::new(it)), sampled))
        }));
        self.rests.extend(part.rests);
        if !part.goes_on {
            let passages = Arc::new(part.passages.into_iter().collect());
            self.ended = Totals { by_vhost: part.by_vhost, passages };
        }
    }
}

/// The end at a node of sessions.
#[derive(Debug, Default)]
pub(super) struct Looks {
    /// What is left of the last answer.
    parts: VecDeque<Part>,
    /// The last look for statistics, and the turns that each connection had.
    sampled: (u64, HashMap<ConnectionId, u64, FixedState>),
}

impl Looks {
    /// The answer to a question, as JSON.
    pub(super) async fn answer(
        &mut self,
        node: &Node,
        name: &str,
        number: u64,
        question: Question,
    ) -> Vec<u8> {
        match question {
            Question::List => self.parts = list(node, |_| true).await,
            Question::One { name } => self.parts = list(node, |it| it.name() == name).await,
            Question::Sample { since } => self.parts = self.sample(node, number, since).await,
            Question::More => {}
        }
        let mut part = self.parts.pop_front().unwrap_or_default();
        name.clone_into(&mut part.node);
        part.goes_on = !self.parts.is_empty();
        // Nothing in it fails to be written, but numbers that are none, of which there are none.
        serde_json::to_vec(&part).unwrap_or_default()
    }

    async fn sample(&mut self, node: &Node, number: u64, since: Option<u64>) -> VecDeque<Part> {
        let (last, turns) = std::mem::take(&mut self.sampled);
        let known = if since == Some(last) { turns } else { HashMap::default() };
        let mut now = HashMap::default();
        node.ended.begin();
        let mut parts = parts_of(node, |connection, part| {
            let id = connection.id();
            if known.get(&id) == Some(&connection.turns()) {
                now.insert(id, connection.turns());
                part.rests.push(id);
                return 0;
            }
            let Some(mut sampled) = connection.sample() else { return 0 };
            now.insert(id, sampled.turns);
            let entries = shorten(&mut sampled.session.channels);
            part.connections.push(Elsewhere::of(connection, None, Some(sampled)));
            entries
        })
        .await;
        let (ended, late) = node.ended.finish();
        node.ended.forget_gone(&node.topology());
        for part in parts.iter_mut().filter(|_| !late.is_empty()) {
            part.connections.retain(|it| !late.contains(&it.id));
            part.rests.retain(|it| !late.contains(it));
        }
        if parts.is_empty() {
            parts.push_back(Part::default());
        }
        if let Some(last) = parts.back_mut() {
            last.by_vhost = ended.by_vhost;
            last.passages = ended.passages.iter().map(|(&pair, &count)| (pair, count)).collect();
        }
        self.sampled = (number, now);
        parts
    }
}

impl Elsewhere {
    fn of(
        connection: &Connection,
        facts: Option<ConnectionFacts>,
        sampled: Option<Sampled>,
    ) -> Self {
        Self {
            id: connection.id(),
            peer: connection.peer(),
            local: connection.local(),
            user: connection.user(),
            is_encrypted: connection.is_encrypted(),
            facts,
            sampled: sampled.map(Box::new),
            node: Arc::default(),
        }
    }
}

async fn list(node: &Node, is_asked: impl Fn(&Connection) -> bool) -> VecDeque<Part> {
    let mut parts = parts_of(node, |connection, part| {
        if !is_asked(connection) {
            return 0;
        }
        let (mut facts, mut sampled) = (connection.facts(), connection.sample());
        let entries = shorten(&mut facts.channels);
        // They are among the facts.
        sampled.iter_mut().for_each(|it| it.session.channels.clear());
        part.connections.push(Elsewhere::of(connection, Some(facts), sampled));
        entries
    })
    .await;
    parts.retain(|it| !it.connections.is_empty());
    parts
}

/// The connections of a node in parts; `put` puts one in a part, and returns how many [entries](PART_ENTRIES) that are.
async fn parts_of(
    node: &Node,
    mut put: impl FnMut(&Connection, &mut Part) -> usize,
) -> VecDeque<Part> {
    let mut parts = VecDeque::new();
    for some in node.connections().chunks(PART) {
        let (mut part, mut entries) = (Part::default(), 0);
        for connection in some {
            entries += put(connection, &mut part);
            if entries >= PART_ENTRIES {
                parts.push_back(std::mem::take(&mut part));
                entries = 0;
                yield_now().await;
            }
        }
        parts.push_back(part);
        yield_now().await;
    }
    parts
}

/// Leaves out what a connection counted by exchange and by queue beyond [`ENTRIES_MAX`]. Returns how many entries there are.
fn shorten(channels: &mut [ChannelFacts]) -> usize {
    let mut entries = channels.len();
    for channel in channels {
        let room = ENTRIES_MAX.saturating_sub(entries);
        channel.exchanges.truncate(room);
        channel.taken.truncate(room.saturating_sub(channel.exchanges.len()));
        entries += channel.exchanges.len() + channel.taken.len();
    }
    entries
}

#[cfg(test)]
mod tests;
