//! Links to the other nodes of the cluster: their sockets.
//!
//! ```text
//!   send  ->  line of each connection (bounded in bytes)  ->  Sender    ->  socket
//!   news  <-  NodeLetter                                  <-  Receiver  <-  socket
//! ```
//!
//! A link has two connections, urgent and bulk, which the node with the lower name calls. It is there while both are: where one
//! ends, the other one is closed, and both are called anew. Each configured node has one task, [`call`](peer::call) or
//! [`answer`](peer::answer), and a link runs in it.
//!
//! Nothing here waits for a peer: what does not fit its line is dropped and counted, as the replicated logs say everything again.
//! Who reads the news too slowly is not sent more: it stays in the kernel, and at the other node.
//!
//! With [TLS](encryption) both connections and those of relayed clients have it, and frames have no checksums.
//!
//! Strangers have what [`shake`] lets them have: [`HANDSHAKES_MAX`] connections, [`HANDSHAKE_MS`] each, 1 KiB a message. If one more
//! comes, the oldest goes: a member's handshake takes milliseconds, and nobody can keep the places.

mod accept;
mod connection;
mod encryption;
mod peer;
mod relay;
mod shake;
mod socket;

#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use leveret_link::hello::{
    HANDSHAKE_MS, HANDSHAKES_MAX, Members, NoLink, NodeFacts, Peer, RaftId, Secret,
};
use leveret_link::letters::NodeLetter;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinHandle;

use crate::clock::own_wall;
use crate::cluster::arrivals::RelayedListener;
use crate::listener::{SocketOptions, bind};
use crate::locks::{Rank, Ranked};
use crate::proxy::Ends;
use crate::tls::Tls;

use connection::LinkLines;
pub(super) use connection::{CLOSED, ended};
use encryption::Encryption;
use peer::Answered;

pub use encryption::LinkTls;
pub use relay::NoRelay;
pub use socket::LinkSocket;

/// How long what others do, or do not do, is waited for.
#[derive(Clone, Copy, Debug)]
struct Times {
    /// A node that is not linked is called so often, and more often at first.
    retry: Duration,
    /// A handshake, and all that comes before its connection is one.
    handshake: Duration,
    /// What is left of a relayed client with TLS, once one end of it has said all.
    rest: Duration,
}

impl Times {
    const USUAL: Self = Self {
        retry: Duration::from_secs(1),
        handshake: Duration::from_millis(HANDSHAKE_MS),
        rest: Duration::from_secs(5),
    };
}

/// How long a stop waits for what is to be written.
const CLOSE: Duration = Duration::from_secs(1);

/// Clients that are on their way to the node that leads: all nodes' together have room in its [`HANDSHAKES_MAX`].
const RELAYS_UNDER_WAY_MAX: usize = 10;

/// Files that are kept for sockets between nodes, however many clients come: all handshakes, and both connections to sixteen nodes.
pub(crate) const LINK_SOCKETS_MAX: usize = HANDSHAKES_MAX + 32;

/// Strangers whose last refusal is remembered, so that it is logged once.
const STRANGERS_MAX: usize = 64;

/// How a node links with others.
#[derive(Debug)]
pub struct LinkSettings {
    /// Where it listens.
    pub listen: Vec<SocketAddr>,
    /// `cluster.secret`.
    pub secret: Secret,
    /// TLS; none if links have none.
    pub tls: Option<LinkTls>,
}

/// A configured node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerAddress {
    /// Its name.
    pub name: String,
    /// Host and port; the host's name is looked up at each call.
    pub address: String,
}

/// What a link is for its user.
#[derive(Debug)]
pub enum LinkNews {
    /// Both connections are there. Letters follow.
    Linked(Peer),
    /// One is gone. No letter follows.
    Unlinked(RaftId),
    /// A letter of that node.
    Letter(RaftId, NodeLetter),
    /// A client that is connected to another node: its ends, and the connection on which its bytes come.
    Relayed(RelayedListener, Ends, std::net::TcpStream),
}

/// How it is with a configured node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerState {
    /// Its name.
    pub name: String,
    /// Where it is called.
    pub address: String,
    /// Its data directory, once it has said so.
    pub raft_id: Option<RaftId>,
    /// Since when there is a link, in ms since the Unix epoch; none if there is none.
    pub linked_since_ms: Option<u64>,
    /// Why there is no link, as far as it is known.
    pub why_not: Option<String>,
    /// Letters that did not fit what waits for it, since the start.
    pub dropped: u64,
}

/// The links of this node. A clone is the same.
#[derive(Clone)]
pub struct Links(Arc<Inner>);

impl fmt::Debug for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Links").field(&self.peers()).finish()
    }
}

struct Inner {
    secret: Secret,
    encryption: Option<Encryption>,
    times: Times,
    peers: Vec<PeerTask>,
    state: Ranked<State>,
    news: mpsc::Sender<LinkNews>,
    relays: Semaphore,
    tasks: Ranked<Vec<JoinHandle<()>>>,
    closing: watch::Sender<bool>,
}

/// A configured node that is not this one.
struct PeerTask {
    name: String,
    address: String,
    dropped: Arc<AtomicU64>,
    /// Calls that came to nothing, of it or by it.
    tries: AtomicU64,
    /// Connections of it that were let in; none if it is the one that is called.
    answered: Option<mpsc::Sender<Answered>>,
}

struct State {
    own: NodeFacts,
    members: Box<dyn Members + Send + Sync>,
    /// By the places of [`Inner::peers`].
    peers: Vec<PeerNow>,
    names: Vec<String>,
    links: HashMap<RaftId, LinkLines, RandomState>,
    /// What was logged of those who have not proved to be anybody.
    strangers: HashMap<IpAddr, String, RandomState>,
}

#[derive(Debug, Default)]
struct PeerNow {
    raft_id: Option<RaftId>,
    /// The latest start of it that was heard of.
    start: u64,
    linked_since_ms: Option<u64>,
    why_not: Option<String>,
}

/// What handshakes ask: the members, and what was heard since.
impl Members for State {
    fn start_of(&self, id: RaftId) -> Option<u64> {
        let start = self.members.start_of(id)?;
        let heard = self.peers.iter().filter(|it| it.raft_id == Some(id)).map(|it| it.start);
        heard.max().map(|heard| heard.max(start)).or(Some(start))
    }

    fn named(&self, name: &str) -> Option<RaftId> {
        self.members.named(name)
    }

    fn is_forgotten(&self, id: RaftId) -> bool {
        self.members.is_forgotten(id)
    }

    fn is_listed(&self, name: &str) -> bool {
        self.names.iter().any(|listed| listed == name)
    }
}

/// Nobody is a member yet.
struct NoMembers;

impl Members for NoMembers {
    fn start_of(&self, _: RaftId) -> Option<u64> {
        None
    }

    fn named(&self, _: &str) -> Option<RaftId> {
        None
    }

    fn is_forgotten(&self, _: RaftId) -> bool {
        false
    }

    fn is_listed(&self, _: &str) -> bool {
        false
    }
}

impl Links {
    /// Listens, and keeps links to the configured nodes; this one may be among them. In a runtime of tokio, whose tasks all this is.
    /// A node that is in a cluster calls [`set_members`](Self::set_members) before it lets other tasks run.
    ///
    /// # Errors
    ///
    /// When it cannot listen: the text has the address.
    pub fn start(
        settings: LinkSettings,
        facts: NodeFacts,
        peers: Vec<PeerAddress>,
        news: mpsc::Sender<LinkNews>,
    ) -> io::Result<Self> {
        let options = SocketOptions { backlog: 128, ..SocketOptions::default() };
        let listeners = settings.listen.iter().map(|address| bind(*address, &options));
        let listeners = listeners.collect::<io::Result<Vec<_>>>()?;
        let encryption = settings.tls.map(Encryption::start).transpose()?;
        let with = (settings.secret, encryption, Times::USUAL);
        Self::start_on(listeners, with, facts, peers, news)
    }

    fn start_on(
        listeners: Vec<std::net::TcpListener>,
        (secret, encryption, times): (Secret, Option<Encryption>, Times),
        facts: NodeFacts,
        peers: Vec<PeerAddress>,
        news: mpsc::Sender<LinkNews>,
    ) -> io::Result<Self> {
        let listeners = listeners.into_iter().map(tokio::net::TcpListener::from_std);
        let listeners = listeners.collect::<io::Result<Vec<_>>>()?;
        let own = facts.name.to_string();
        let mut answering = Vec::new();
        let peers: Vec<_> = peers
            .into_iter()
            .filter(|peer| peer.name != own)
            .map(|PeerAddress { name, address }| {
                let (sender, receiver) = mpsc::channel(4);
                let answered = (name < own).then_some(sender);
                answering.push(receiver);
                PeerTask {
                    name,
                    address,
                    dropped: Arc::default(),
                    tries: AtomicU64::new(0),
                    answered,
                }
            })
            .collect();
        let state = State {
            own: facts,
            members: Box::new(NoMembers),
            peers: peers.iter().map(|_| PeerNow::default()).collect(),
            names: peers.iter().map(|peer| peer.name.clone()).collect(),
            links: HashMap::default(),
            strangers: HashMap::default(),
        };
        let inner = Arc::new(Inner {
            secret,
            encryption,
            times,
            peers,
            state: Ranked::new(Rank::Links, state),
            news,
            relays: Semaphore::new(RELAYS_UNDER_WAY_MAX),
            tasks: Ranked::new(Rank::Links, Vec::new()),
            closing: watch::Sender::new(false),
        });
        let mut tasks = Vec::new();
        for listener in listeners {
            tasks.push(tokio::spawn(accept::accept(Arc::clone(&inner), listener)));
        }
        for (at, answered) in answering.into_iter().enumerate() {
            let inner = Arc::clone(&inner);
            tasks.push(match inner.peers[at].answered {
                Some(_) => tokio::spawn(peer::answer(inner, at, answered)),
                None => tokio::spawn(peer::call(inner, at)),
            });
        }
        *inner.tasks.lock() = tasks;
        Ok(Self(inner))
    }

    /// What this node is by now, and who is a member. Links that are there stay, but to those who were forgotten.
    pub fn set_members(&self, facts: NodeFacts, members: impl Members + Send + Sync + 'static) {
        let mut state = self.0.state.lock();
        state.own = facts;
        state.members = Box::new(members);
        let State { members, links, .. } = &mut *state;
        // A connection whose line has ended ends once it has written what was there.
        let gone: Vec<_> = links.extract_if(|id, _| members.is_forgotten(*id)).collect();
        drop(state);
        drop(gone);
    }

    /// Sends a letter. It is dropped if there is no link, or too much waits for that node.
    pub fn send(&self, to: RaftId, letter: NodeLetter) {
        let refused = match self.0.state.lock().links.get(&to) {
            Some(lines) => lines.put(letter),
            None => Some(letter),
        };
        // Not under that lock: the memory of its bytes goes back to where it is kept, which has one of its own.
        drop(refused);
    }

    /// All configured nodes but this one.
    pub fn peers(&self) -> Vec<PeerState> {
        let state = self.0.state.lock();
        let of = |(peer, now): (&PeerTask, &PeerNow)| PeerState {
            name: peer.name.clone(),
            address: peer.address.clone(),
            raft_id: now.raft_id.or_else(|| state.members.named(&peer.name)),
            linked_since_ms: now.linked_since_ms,
            why_not: match (&now.why_not, now.linked_since_ms) {
                (None, None) if peer.answered.is_some() => {
                    Some("it has not called this node".into())
                }
                (why_not, _) => why_not.clone(),
            },
            dropped: peer.dropped.load(Ordering::Relaxed),
        };
        self.0.peers.iter().zip(&state.peers).map(of).collect()
    }

    /// Certificates and authorities of TLS; none without it.
    pub fn tls(&self) -> Option<Arc<Tls>> {
        self.0.encryption.as_ref().map(|encryption| Arc::clone(encryption.tls()))
    }

    /// Ends all links. What waits is written before, as long as that takes a second at most.
    pub async fn close(&self) {
        self.0.closing.send_replace(true);
        // A connection whose line has ended ends once it has written what was there.
        self.0.state.lock().links.clear();
        let tasks = std::mem::take(&mut *self.0.tasks.lock());
        let until = tokio::time::Instant::now() + CLOSE;
        for mut task in tasks {
            if tokio::time::timeout_at(until, &mut task).await.is_err() {
                task.abort();
            }
        }
    }
}

impl Inner {
    /// Waits until the links are to end.
    async fn closes(&self) {
        let mut closing = self.closing.subscribe();
        // The sender is there as long as this is.
        let _ = closing.wait_for(|closing| *closing).await;
    }

    /// The place of the node with this data directory, as far as it is known.
    fn place_of_id(&self, id: RaftId) -> Option<usize> {
        let state = self.state.lock();
        let known = state.peers.iter().position(|now| now.raft_id == Some(id));
        known.or_else(|| state.names.iter().position(|name| state.members.named(name) == Some(id)))
    }

    /// The place of a configured node.
    fn place_of(&self, name: &str) -> Option<usize> {
        self.peers.iter().position(|peer| peer.name == name)
    }

    /// There is no link with a configured node. It is logged if it was not the last thing that was.
    fn no_link(&self, at: usize, why: &str) {
        let peer = &self.peers[at];
        peer.tries.fetch_add(1, Ordering::Relaxed);
        {
            let mut state = self.state.lock();
            let now = &mut state.peers[at];
            if now.linked_since_ms.is_some() || now.why_not.as_deref() == Some(why) {
                return;
            }
            now.why_not = Some(why.to_owned());
        }
        // Somebody who is not that node may be the cause, and try anything.
        tracing::warn!(
            from = peer.name,
            peer = peer.address,
            "no link with node {}: {why}",
            peer.name
        );
    }

    /// A connection from there came to nothing.
    fn refused(&self, from: SocketAddr, said: Option<&str>, why: &NoLink) {
        let text = why.to_string();
        // What this node itself says of a configured one is shown with that. What somebody says who has proved nothing is not.
        let is_own = matches!(why, NoLink::Refused { .. });
        if let Some(at) = said.filter(|_| is_own).and_then(|name| self.place_of(name)) {
            return self.no_link(at, &text);
        }
        {
            let mut state = self.state.lock();
            let strangers = &mut state.strangers;
            if strangers.get(&from.ip()) == Some(&text) {
                return;
            }
            if strangers.len() >= STRANGERS_MAX {
                strangers.clear();
            }
            strangers.insert(from.ip(), text.clone());
        }
        tracing::warn!(from = %from.ip(), peer = %from, "a connection to the cluster's port was refused: {text}");
    }
}

/// The time of the day, in ms since the Unix epoch.
fn wall_ms() -> u64 {
    own_wall().ms()
}
