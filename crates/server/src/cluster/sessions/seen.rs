//! What management is shown of connections: those of this process, and those of nodes of sessions.
//!
//! ```text
//!   the node that leads    Question   ->   a node of sessions
//!                          <-   Part       by a task: it waits for turns that run
//!                          More   ->
//!                          <-   Part
//! ```
//!
//! Both are JSON, and what is not understood ends no session. A part is made when it is asked for: of an answer nothing waits at the
//! node of sessions but the names of connections. A list, a sample and a question for one connection may be under way at once.

use std::net::SocketAddr;
use std::sync::Arc;
use std::vec::IntoIter;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use leveret_amqp::reply::ReplyCode;
use leveret_broker::message::{ConnectionId, NodeId, Outbox, Step, ToSession};
use leveret_session::{ChannelFacts, ConnectionFacts, Passed};
use leveret_topology::{Event, VhostId, weight};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::task::{JoinSet, yield_now};

use crate::connection::{Connection, Sampled};
use crate::ended::{Sums, Totals};
use crate::node::{Node, Recipient};
use crate::runner::with_runner;

/// Connections that are looked at while others of the thread wait.
pub(super) const LOOKED_AT: usize = 128;

/// A part ends with the entry after which it has so many: channels, and what they counted by exchange and by queue.
const PART_ENTRIES: usize = 1024;

/// So many entries a connection is by itself, and a vhost's totals are.
const OF_ITSELF: usize = 8;

/// So many bytes of what a client tells of itself are one more.
const PROPERTIES: u64 = 128;

/// Of what passed from exchanges to queues so many are one.
const PASSAGES: usize = 16;

/// The most entries of one connection: channels are shown all, and the sums of what they counted.
const ENTRIES_MAX: usize = 4096;

/// What a node of sessions is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Question {
    /// These of its connections, with what lists show.
    List(Wanted),
    /// The same of one. The answer has one part.
    One {
        /// As in [`AnyConnection::is_called`].
        name: String,
    },
    /// What statistics are made of.
    Sample {
        /// The number of the look whose answer was taken in last, whole: who had no turn since rests.
        since: Option<u64>,
    },
    /// The next part of the list.
    More,
    /// The next part of the sample.
    MoreOfSample,
}

/// Which connections are listed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Wanted {
    /// Those of this user.
    pub user: Option<String>,
    /// Those to this vhost.
    pub vhost: Option<String>,
}

impl Wanted {
    /// Whether it is one of them: waits for the turn that runs.
    pub fn has(&self, connection: &Connection) -> bool {
        let is = |wanted: &Option<String>, name: &str| wanted.as_ref().is_none_or(|it| it == name);
        (self.user.is_none() && self.vhost.is_none())
            || connection.with_names(|user, vhost| is(&self.user, user) && is(&self.vhost, vhost))
    }
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
    /// Connections that ended since they were shown in this sample: they are among the totals. With the first of those.
    pub(super) late: Vec<ConnectionId>,
    /// Totals of those that are over, in the last parts of a sample.
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

/// The connection whose `pid` this is.
pub(super) fn called(name: &str) -> Option<ConnectionId> {
    of_pid(name).filter(|id| id.pid() == name)
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

/// Nodes that did not answer in time, by name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not heard in time: {}", .0.join(", "))]
pub struct NotHeard(pub Vec<String>);

impl NotHeard {
    pub(super) fn none(mut nodes: Vec<String>) -> Result<(), Self> {
        nodes.sort_unstable();
        if nodes.is_empty() { Ok(()) } else { Err(Self(nodes)) }
    }
}

/// Connections of nodes of sessions, as they come. Dropped, no more are asked for.
#[derive(Debug)]
pub struct Elsewheres {
    sender: Option<Parts>,
    parts: mpsc::Receiver<Vec<AnyConnection>>,
    /// One of each node: which one did not show all.
    looks: JoinSet<Result<(), String>>,
}

type Parts = mpsc::Sender<Vec<AnyConnection>>;

impl Elsewheres {
    /// Of no node.
    pub(crate) fn new() -> Self {
        let (sender, parts) = mpsc::channel(1);
        Self { sender: Some(sender), parts, looks: JoinSet::new() }
    }

    /// Of one more node. In the runtime that this is called in.
    pub(super) fn of<F>(&mut self, look: impl FnOnce(Parts) -> F)
    where
        F: Future<Output = Result<(), String>> + Send + 'static,
    {
        let sender = self.sender.clone();
        if let Some(sender) = sender {
            self.looks.spawn(look(sender));
        }
    }

    /// Some more of them. None: all have come.
    pub async fn next(&mut self) -> Option<Vec<AnyConnection>> {
        self.sender = None;
        self.parts.recv().await
    }

    /// Behind the last of them: whether all nodes have shown all.
    ///
    /// # Errors
    ///
    /// The nodes that did not.
    pub async fn all_came(self) -> Result<(), NotHeard> {
        let looks = self.looks.join_all().await;
        NotHeard::none(looks.into_iter().filter_map(Result::err).collect())
    }
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

    /// Whether it is called so: by its [name](Self::name), or by what events and lists call its `pid`.
    pub fn is_called(&self, name: &str) -> bool {
        called(name).map_or_else(|| self.name() == name, |id| self.id() == id)
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
        if !part.late.is_empty() {
            part.late.sort_unstable();
            let is_late = |id| part.late.binary_search(&id).is_ok();
            self.news.retain(|(it, _)| !is_late(it.id()));
            self.rests.retain(|id| !is_late(*id));
        }
        self.ended.by_vhost.extend(part.by_vhost);
        Arc::make_mut(&mut self.ended.passages).extend(part.passages);
    }
}

/// The end at a node of sessions.
#[derive(Debug, Default)]
pub(super) struct Looks {
    /// What is left of the last list.
    list: Option<Listing>,
    /// What is left of the last sample.
    sampling: Option<Sampling>,
    /// The last sample that was shown whole, and the turns that each connection had.
    sampled: (u64, Turns),
}

type Turns = HashMap<ConnectionId, u64, FixedState>;

#[derive(Debug)]
struct Listing {
    wanted: Wanted,
    /// Those that are to be looked at.
    left: IntoIter<ConnectionId>,
}

#[derive(Debug)]
struct Sampling {
    number: u64,
    left: IntoIter<ConnectionId>,
    /// The turns of those that rest if they had no more.
    known: Turns,
    now: Turns,
    ended: Option<EndedLeft>,
}

/// What of the totals of connections that are over is left to be shown.
#[derive(Debug)]
struct EndedLeft {
    by_vhost: IntoIter<(VhostId, Sums)>,
    passages: IntoIter<Passed>,
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
        let ids = || -> Vec<_> { node.connections().iter().map(|it| it.id()).collect() };
        let mut part = match question {
            Question::List(wanted) => {
                self.list = Some(Listing { wanted, left: ids().into_iter() });
                self.next_of_list(node).await
            }
            Question::More => self.next_of_list(node).await,
            Question::One { name } => one(node, &name).await,
            Question::Sample { since } => {
                let (last, turns) = std::mem::take(&mut self.sampled);
                let known = if since == Some(last) { turns } else { Turns::default() };
                node.ended.begin();
                let (left, now) = (ids().into_iter(), Turns::default());
                self.sampling = Some(Sampling { number, left, known, now, ended: None });
                self.next_of_sample(node).await
            }
            Question::MoreOfSample => self.next_of_sample(node).await,
        };
        name.clone_into(&mut part.node);
        // Nothing in it fails to be written, but numbers that are none, of which there are none.
        serde_json::to_vec(&part).unwrap_or_default()
    }

    async fn next_of_list(&mut self, node: &Node) -> Part {
        let mut part = Part::default();
        let Some(Listing { wanted, left }) = &mut self.list else { return part };
        part.goes_on = some(node, left, |connection| {
            if !wanted.has(connection) {
                return 0;
            }
            let (shown, entries) = Elsewhere::listed(connection);
            part.connections.push(shown);
            entries
        })
        .await;
        if !part.goes_on {
            self.list = None;
        }
        part
    }

    async fn next_of_sample(&mut self, node: &Node) -> Part {
        let mut part = Part::default();
        let Some(sampling) = &mut self.sampling else { return part };
        let Sampling { left, known, now, ended, .. } = sampling;
        let goes_on = some(node, left, |connection| {
            let id = connection.id();
            if known.get(&id) == Some(&connection.turns()) {
                now.insert(id, connection.turns());
                part.rests.push(id);
                return 1;
            }
            let Some(mut sampled) = connection.sample() else { return 0 };
            now.insert(id, sampled.turns);
            let session = &mut sampled.session;
            let counted = session.passed.len() + session.totals.exchanges.len();
            let entries = OF_ITSELF + counted + shorten(&mut session.channels);
            part.connections.push(Elsewhere::of(connection, None, Some(sampled)));
            entries
        })
        .await;
        part.goes_on = goes_on;
        if goes_on {
            return part;
        }
        let EndedLeft { by_vhost, passages } = ended.get_or_insert_with(|| {
            let (ended, late) = node.ended.finish();
            node.ended.forget_gone(&node.topology());
            part.late = late.into_iter().filter(|id| now.contains_key(id)).collect();
            let passages = ended.passages.iter().map(|(&pair, &count)| (pair, count));
            let passages = passages.collect::<Vec<_>>().into_iter();
            EndedLeft { by_vhost: ended.by_vhost.into_iter(), passages }
        });
        let mut entries = 0;
        while entries < PART_ENTRIES
            && let Some(of_vhost) = by_vhost.next()
        {
            entries += OF_ITSELF + of_vhost.1.session.exchanges.len();
            part.by_vhost.push(of_vhost);
        }
        let room = PART_ENTRIES.saturating_sub(entries) * PASSAGES;
        part.passages.extend(passages.take(room));
        part.goes_on = by_vhost.len() + passages.len() > 0;
        if !part.goes_on
            && let Some(Sampling { number, now, .. }) = self.sampling.take()
        {
            self.sampled = (number, now);
        }
        part
    }
}

impl Elsewhere {
    /// With what lists show, and how many entries that is.
    fn listed(connection: &Connection) -> (Self, usize) {
        let (mut facts, mut sampled) = (connection.facts(), connection.sample());
        let entries = weigh(&mut facts);
        if let Some(Sampled { session, .. }) = &mut sampled {
            // They are among the facts, and of the rest lists show nothing.
            session.channels.clear();
            session.passed.clear();
            session.totals.exchanges.clear();
        }
        (Self::of(connection, Some(facts), sampled), entries)
    }

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

/// The connection that is called so.
async fn one(node: &Node, name: &str) -> Part {
    let id = match called(name) {
        Some(id) => Some(id),
        None => {
            let mut ids =
                node.connections().iter().map(|it| it.id()).collect::<Vec<_>>().into_iter();
            let mut found = None;
            while found.is_none() && ids.len() > 0 {
                some(node, &mut ids, |connection| {
                    let is_it = connection.name() == name;
                    found = found.or_else(|| is_it.then(|| connection.id()));
                    if is_it { PART_ENTRIES } else { 0 }
                })
                .await;
            }
            found
        }
    };
    let found = id.and_then(|id| node.recipient(id)).and_then(|it| match it {
        Recipient::Connection(it) => Some(Elsewhere::listed(&it).0),
        Recipient::Request(_) => None,
    });
    Part { connections: found.into_iter().collect(), ..Part::default() }
}

/// Looks at connections until they are a part; `put` returns how many [entries](PART_ENTRIES) one is. Returns whether some are left.
async fn some(
    node: &Node,
    left: &mut IntoIter<ConnectionId>,
    mut put: impl FnMut(&Connection) -> usize,
) -> bool {
    let (mut entries, mut looked_at) = (0, 0);
    while entries < PART_ENTRIES
        && let Some(id) = left.next()
    {
        // One that is gone was among them when the first part was asked for.
        if let Some(Recipient::Connection(connection)) = node.recipient(id) {
            entries += put(&connection);
        }
        looked_at += 1;
        if looked_at % LOOKED_AT == 0 {
            yield_now().await;
        }
    }
    left.len() > 0
}

/// Shortens what a list shows of a connection, and returns how many [entries](PART_ENTRIES) are left.
fn weigh(facts: &mut ConnectionFacts) -> usize {
    let properties = weight::table(&facts.client_properties) / PROPERTIES;
    let properties = usize::try_from(properties).unwrap_or(usize::MAX);
    properties.saturating_add(OF_ITSELF + shorten(&mut facts.channels))
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
