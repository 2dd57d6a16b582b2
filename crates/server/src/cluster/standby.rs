//! Clients of this node while another one leads: it listens where it would as the broker, and relays bytes.
//!
//! ```text
//!   client ---- socket ----> standby ---- relay, over the link's port ----> the node that leads
//!              [PROXY header]   waits while no node leads, a while       its broker: "as if it had connected here"
//! ```
//!
//! Nothing of what a client says is looked at but a header of the PROXY protocol, if the listener takes one: TLS ends at the node
//! that leads. When this node is to lead, the listeners are closed, and who still waits is handed to the broker.

mod refusal;

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context as _;
use leveret_config::{Config, Listeners};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Handle};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use super::arrivals::{Arrival, RelayedListener};
use super::links::LinkSocket;
use super::relay::{Moved, relay};
use super::view::Views;
use crate::descriptors;
use crate::front::Listener;
use crate::listener::{ClientSuspension, Gate, SocketOptions, bind, prepare};
use crate::node::Node;
use crate::proxy::{self, Ends};
use crate::startup::{addresses, resolve};

pub use refusal::AmqpRefusal;

/// When a way that is not there is tried again.
const RETRY: Duration = Duration::from_millis(50);

/// What clients get.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Clients that wait for a node that leads, or for a way to it.
    waiting: usize,
    /// How long a relay goes on to a node that leads no more: it says farewell to its clients.
    farewell: Duration,
}

const LIMITS: Limits = Limits { waiting: 1024, farewell: Duration::from_millis(100) };

/// How long a client of HTTP waits for a node that leads: longer than another one takes to be elected, and not as long as people and
/// tools wait for an answer.
const HTTP_PATIENCE: Duration = Duration::from_secs(3);

/// What asks for the health of a node, in the first line of a request.
const CHECKS: &[u8] = b"/api/health/checks/";

/// A connection to another node whose bytes belong to a client.
pub type Relaying = Pin<Box<dyn Future<Output = io::Result<LinkSocket>> + Send>>;

/// How the node that leads is reached.
pub trait Relay: fmt::Debug + Send + Sync {
    /// A connection to the node of this Raft id, where a client of the listener enters. May be asked from any thread and any runtime.
    ///
    /// # Errors
    ///
    /// It is not there, or refuses; it may be tried again.
    fn relay(&self, leader: u64, listener: RelayedListener, ends: Ends) -> Relaying;
}

/// A listener of a node on standby.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StandbyListener {
    /// What is spoken there.
    pub listener: RelayedListener,
    /// The key that names it.
    pub key: String,
    /// Where.
    pub address: SocketAddr,
    /// A header of the PROXY protocol comes first.
    pub proxy: bool,
    /// How long a client waits for a node that leads.
    pub patience: Duration,
}

/// All listeners of the configuration, but for the control socket.
///
/// # Errors
///
/// A host that has no address.
pub fn listeners(config: &Config) -> anyhow::Result<Vec<StandbyListener>> {
    let mut all = Vec::new();
    let mut amqp = |of: &Listeners, kind: &str, listener, patience| -> anyhow::Result<()> {
        for (key, address) in addresses(of, kind) {
            let (address, proxy) = (address?, config.listeners.proxy_protocol);
            all.push(StandbyListener { listener, key, address, proxy, patience });
        }
        Ok(())
    };
    // Clients wait for their handshake as long as a node does, about: those that are not served are to hear why in the rest.
    let patience = Duration::from(config.connections.handshake_timeout) / 2;
    amqp(&config.listeners.tcp, "tcp", RelayedListener::Amqp, patience)?;
    amqp(&config.listeners.ssl, "ssl", RelayedListener::Amqps, patience)?;
    let mut http = |listener, key: &str, ip: &Option<String>, port: u16| -> anyhow::Result<()> {
        let patience = HTTP_PATIENCE;
        let address = resolve(ip.as_deref(), port).with_context(|| format!("{key}.ip"))?;
        let key = format!("{key}.port");
        all.push(StandbyListener { listener, key, address, proxy: false, patience });
        Ok(())
    };
    let of = &config.management;
    if of.enabled {
        http(RelayedListener::Http, "management.tcp", &of.ip, of.port)?;
        if let Some(port) = of.ssl_port {
            http(RelayedListener::Https, "management.ssl", &of.ssl_ip, port)?;
        }
    }
    let of = &config.prometheus;
    if of.enabled {
        http(RelayedListener::Metrics, "prometheus.tcp", &of.ip, of.port)?;
        if let Some(port) = of.ssl_port {
            http(RelayedListener::MetricsTls, "prometheus.ssl", &of.ssl_ip, port)?;
        }
    }
    Ok(all)
}

/// What was relayed since the start.
#[derive(Debug, Default)]
pub struct Totals {
    /// Clients that wait for a node that leads.
    waiting: AtomicUsize,
    /// Clients whose bytes are relayed now.
    open: AtomicUsize,
    /// Clients that reached the node that leads.
    relayed: AtomicU64,
    /// Clients that did not.
    refused: AtomicU64,
    moved: Moved,
    /// Has the sessions of clients that are not relayed.
    sessions: OnceLock<Arc<Node>>,
}

/// [`Totals`] at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Relayed {
    /// Clients that wait for a node that leads.
    pub waiting: u64,
    /// Clients whose bytes are relayed now.
    pub open: u64,
    /// Clients that reached the node that leads.
    pub relayed: u64,
    /// Clients that did not.
    pub refused: u64,
    /// AMQP connections that have their sessions here, and are not relayed.
    pub sessions: u64,
    /// Bytes from clients.
    pub bytes_up: u64,
    /// Bytes to clients.
    pub bytes_down: u64,
}

impl Totals {
    /// Sessions that are not relayed are of this node.
    pub(super) fn count_sessions_of(&self, node: Arc<Node>) {
        let _ = self.sessions.set(node);
    }

    /// As they are now.
    pub fn now(&self) -> Relayed {
        Relayed {
            waiting: self.waiting.load(Ordering::Relaxed) as u64,
            open: self.open.load(Ordering::Relaxed) as u64,
            relayed: self.relayed.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            sessions: self.sessions.get().map_or(0, |node| node.connection_count() as u64),
            bytes_up: self.moved.up.load(Ordering::Relaxed),
            bytes_down: self.moved.down.load(Ordering::Relaxed),
        }
    }
}

/// The place of a client that waits, given back when it is dropped.
struct WaitingPlace(Arc<Totals>);

impl WaitingPlace {
    /// None if there are `most` already.
    fn one_of(most: usize, totals: &Arc<Totals>) -> Option<Self> {
        let more = |waiting| (waiting < most).then_some(waiting + 1);
        let taken = totals.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.ok().map(|_| Self(Arc::clone(totals)))
    }
}

impl Drop for WaitingPlace {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What clients of AMQP get at a node that has sessions of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Reception {
    /// They wait: no node that leads hears what sessions write.
    #[default]
    Waits,
    /// A session of this node.
    Own,
    /// They are relayed: the node that leads takes no sessions of this one.
    Relayed,
}

/// Where clients of AMQP go that are not relayed: to sessions of this node.
#[derive(Clone, Debug)]
pub struct OwnClients {
    /// Whether they do.
    pub(crate) reception: watch::Receiver<Reception>,
    pub(crate) amqp: mpsc::Sender<Arrival>,
    pub(crate) amqps: mpsc::Sender<Arrival>,
}

impl OwnClients {
    /// Where those of a listener go; none if they are always relayed.
    fn of(&self, listener: RelayedListener) -> Option<&mpsc::Sender<Arrival>> {
        match listener {
            RelayedListener::Amqp => Some(&self.amqp),
            RelayedListener::Amqps => Some(&self.amqps),
            _ => None,
        }
    }
}

/// Listeners that relay, and their threads.
#[derive(Debug)]
pub struct Standby {
    ending: watch::Sender<bool>,
    accepting: Vec<JoinHandle<()>>,
    /// Clients that still waited at the end.
    waited: mpsc::UnboundedReceiver<(RelayedListener, Arrival)>,
    listeners: Vec<Listener>,
    /// Dropped, they end their threads after a while.
    _threads: Vec<oneshot::Sender<()>>,
}

/// What all its clients share.
#[derive(Debug)]
struct Shared {
    relay: Arc<dyn Relay>,
    own: Option<OwnClients>,
    refusal: AmqpRefusal,
    leader: watch::Receiver<Option<u64>>,
    views: Views,
    ending: watch::Receiver<bool>,
    limits: Limits,
    totals: Arc<Totals>,
    suspended: ClientSuspension,
    /// What is never set: people and tools come in all the same.
    open: ClientSuspension,
}

/// Where the clients of a node that does not lead go.
#[derive(Debug)]
pub struct ClientRoutes {
    /// To the node that leads.
    pub relay: Arc<dyn Relay>,
    /// Those of AMQP, if this node has sessions of its own.
    pub own: Option<OwnClients>,
    /// None of these come in while they are suspended.
    pub suspended: ClientSuspension,
    /// Those who wait for a leader in vain are told why.
    pub refusal: AmqpRefusal,
}

impl Standby {
    /// Listens, with so many threads. `views` tells who leads; what is relayed is counted in `totals`. Clients of AMQP go to `own`, if
    /// this node has sessions of its own: see [`ClientRoutes`].
    ///
    /// # Errors
    ///
    /// A port that is in use, with the key that names it.
    pub fn start(
        listeners: &[StandbyListener],
        options: &SocketOptions,
        routes: ClientRoutes,
        views: Views,
        totals: Arc<Totals>,
        threads: usize,
    ) -> anyhow::Result<Self> {
        Self::with(LIMITS, listeners, options, routes, views, totals, threads)
    }

    fn with(
        limits: Limits,
        listeners: &[StandbyListener],
        options: &SocketOptions,
        routes: ClientRoutes,
        views: Views,
        totals: Arc<Totals>,
        threads: usize,
    ) -> anyhow::Result<Self> {
        let ClientRoutes { relay, own, suspended, refusal } = routes;
        let mut bound = Vec::new();
        for of in listeners {
            let socket = bind(of.address, options).with_context(|| {
                let (address, key) = (of.address, &of.key);
                format!("cannot listen on {address}; is another broker running? choose another port with {key}")
            })?;
            bound.push((of.clone(), socket));
        }
        let threads = (0..threads.max(1)).map(|index| thread(index, limits.farewell));
        let threads = threads.collect::<io::Result<Vec<_>>>()?;
        let (handles, threads) = threads.into_iter().unzip::<Handle, _, Vec<_>, Vec<_>>();
        let (ending, ended) = watch::channel(false);
        let (give, waited) = mpsc::unbounded_channel();
        let (first, handles) = (handles[0].clone(), Arc::new(handles));
        let shared = Arc::new(Shared {
            relay,
            own,
            refusal,
            leader: leader_of(views.clone(), &first),
            views,
            ending: ended,
            limits,
            totals,
            suspended,
            open: ClientSuspension::default(),
        });
        let (mut accepting, mut shown) = (Vec::new(), Vec::new());
        for (of, socket) in bound {
            shown.push(shown_as(of.listener, socket.local_addr()?));
            let (shared, options, give) = (Arc::clone(&shared), options.clone(), give.clone());
            let (of, handles) = (Arc::new(of), Arc::clone(&handles));
            accepting.push(first.spawn(async move {
                match TcpListener::from_std(socket) {
                    Ok(socket) => accept(shared, of, socket, options, handles, give).await,
                    Err(error) => tracing::error!(%error, "a listener cannot be served"),
                }
            }));
        }
        Ok(Self { ending, accepting, waited, listeners: shown, _threads: threads })
    }

    /// Where it listens.
    pub fn listeners(&self) -> &[Listener] {
        &self.listeners
    }

    /// Listens no more: afterwards the ports are free. Gives back the clients that still waited, from whom nothing was read but their
    /// PROXY headers. Relays go on for a moment, so that the node that led can say farewell.
    pub async fn stop(mut self) -> Vec<(RelayedListener, Arrival)> {
        let _ = self.ending.send(true);
        for task in self.accepting {
            // A panic aborts the process.
            let _ = task.await;
        }
        let mut waited = Vec::new();
        while let Some(one) = self.waited.recv().await {
            waited.push(one);
        }
        waited
    }
}

/// As tools show it.
fn shown_as(listener: RelayedListener, address: SocketAddr) -> Listener {
    let (protocol, purpose) = match listener {
        RelayedListener::Amqp => ("amqp", "AMQP 0-9-1"),
        RelayedListener::Amqps => ("amqp/ssl", "AMQP 0-9-1 over TLS"),
        RelayedListener::Http => ("http", "HTTP API"),
        RelayedListener::Https => ("https", "HTTP API over TLS (HTTPS)"),
        RelayedListener::Metrics => ("http/prometheus", "Prometheus exporter API over HTTP"),
        RelayedListener::MetricsTls => {
            ("https/prometheus", "Prometheus exporter API over TLS (HTTPS)")
        }
        RelayedListener::Control => ("control", "control socket"),
        RelayedListener::Sessions => ("clustering", "sessions of other nodes"),
    };
    Listener { protocol, purpose, address }
}

/// Starts a thread that runs tasks until its sender is dropped, and a moment longer.
fn thread(index: usize, farewell: Duration) -> io::Result<(Handle, oneshot::Sender<()>)> {
    let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
    let handle = runtime.handle().clone();
    let (stop, stopped) = oneshot::channel::<()>();
    std::thread::Builder::new().name(format!("standby-{index}")).spawn(move || {
        runtime.block_on(async {
            // An error is the end.
            let _ = stopped.await;
            tokio::time::sleep(farewell).await;
        });
        runtime.shutdown_background();
    })?;
    Ok((handle, stop))
}

/// Tells who leads, and only when that changes: the view changes each second.
pub(super) fn leader_of(mut views: Views, on: &Handle) -> watch::Receiver<Option<u64>> {
    let (sender, leader) = watch::channel(views.borrow_and_update().leader_id);
    on.spawn(async move {
        while views.changed().await.is_ok() {
            let leader = views.borrow_and_update().leader_id;
            sender.send_if_modified(|it| std::mem::replace(it, leader) != leader);
        }
    });
    leader
}

type Give = mpsc::UnboundedSender<(RelayedListener, Arrival)>;

/// Accepts until the end, and deals clients out to the threads.
async fn accept(
    shared: Arc<Shared>,
    of: Arc<StandbyListener>,
    listener: TcpListener,
    options: SocketOptions,
    handles: Arc<Vec<Handle>>,
    give: Give,
) {
    let suspended = match of.listener {
        RelayedListener::Amqp | RelayedListener::Amqps => shared.suspended.watch(),
        _ => shared.open.watch(),
    };
    let mut gate = match Gate::new(listener, suspended) {
        Ok(gate) => gate,
        Err(error) => return tracing::error!(%error, "a listener cannot be served"),
    };
    let mut ending = shared.ending.clone();
    for handle in handles.iter().cycle() {
        let accepted = tokio::select! {
            // An error means that nobody is left to serve.
            _ = ending.wait_for(|it| *it) => return,
            accepted = gate.accept(&options) => accepted,
        };
        let (socket, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                descriptors::not_accepted(&error, "a connection").await;
                continue;
            }
        };
        if !descriptors::leave_room(&socket) {
            continue;
        }
        let Some(place) = WaitingPlace::one_of(shared.limits.waiting, &shared.totals) else {
            shared.totals.refused.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(from = %peer.ip(), %peer, "connection refused: too many wait for a node that leads");
            continue;
        };
        let ends = socket.local_addr().map(|local| Ends::new(peer, local));
        let socket = ends.and_then(|ends| Ok((prepare(socket, &options, gate.pacing())?, ends)));
        let (socket, ends) = match socket {
            Ok(socket) => socket,
            Err(error) => {
                tracing::debug!(%peer, %error, "a connection ended before it began");
                continue;
            }
        };
        let (shared, of, give) = (Arc::clone(&shared), Arc::clone(&of), give.clone());
        handle.spawn(async move {
            let reached = shared.reach_leader(&of, socket, ends, &give).await;
            // The end waits for this one no more.
            drop(give);
            match reached {
                Ok(Outcome::Reached(reached)) => {
                    // Others may wait now.
                    drop(place);
                    shared.relay(reached).await;
                }
                Ok(Outcome::Refused(client, ends, why)) => {
                    shared.refusal.tell(of.listener, client, ends, why).await;
                }
                Ok(Outcome::Over) => {}
                Err(error) => {
                    tracing::debug!(%peer, %error, "a connection ended before it was relayed");
                }
            }
        });
    }
}

/// A client that can be relayed.
struct Reached {
    client: TcpStream,
    leader: LinkSocket,
    leader_id: u64,
}

/// Whether a client has a session of this node.
enum Entered {
    /// It has, or was given back.
    Gone,
    No(TcpStream, Reception),
}

/// What becomes of a client.
enum Outcome {
    Reached(Reached),
    /// No node that leads was reached in time: why, in words.
    Refused(TcpStream, Ends, String),
    /// It was given back, or is closed.
    Over,
}

impl Shared {
    /// Waits for a way to the node that leads.
    async fn reach_leader(
        &self,
        of: &StandbyListener,
        socket: std::net::TcpStream,
        mut ends: Ends,
        give: &Give,
    ) -> io::Result<Outcome> {
        let client = TcpStream::from_std(socket)?;
        let mut ending = self.ending.clone();
        if of.proxy {
            let peer = ends.source;
            let header = tokio::select! {
                header = tokio::time::timeout(of.patience, proxy::take_header(&client)) => header,
                _ = ending.wait_for(|it| *it) => return Ok(Outcome::Over),
            };
            match header {
                Ok(Ok(told)) => ends = told.unwrap_or(ends),
                Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
                    tracing::warn!(from = %peer.ip(), %peer, "connection closed: {error}");
                    return Ok(Outcome::Over);
                }
                Ok(Err(error)) => return Err(error),
                Err(_) => {
                    tracing::warn!(from = %peer.ip(), %peer, "connection closed: no PROXY header came in time");
                    return Ok(Outcome::Over);
                }
            }
        }
        let mut client = client;
        if let Some(own) = &self.own
            && let Some(enters) = own.of(of.listener)
        {
            match self.enter(of, (client, ends), (own.reception.clone(), enters), give).await? {
                Entered::No(relayed, Reception::Relayed) => client = relayed,
                Entered::No(client, _) => {
                    let why = self.views.borrow().why_not_served();
                    let why = self.refused(ends.source, why);
                    return Ok(Outcome::Refused(client, ends, why));
                }
                Entered::Gone => return Ok(Outcome::Over),
            }
        }
        let mut why = None;
        let reached = tokio::select! {
            reached = tokio::time::timeout(of.patience, self.way(of.listener, ends, &mut why)) => reached.ok(),
            () = self.is_checked_in_vain(of.listener, &client) => None,
            _ = ending.wait_for(|it| *it) => {
                let socket = client.into_std()?;
                // Nobody takes it where a node ends for good.
                let _ = give.send((of.listener, Arrival { socket, ends }));
                return Ok(Outcome::Over);
            }
        };
        let why = match reached {
            Some((leader_id, leader)) if descriptors::leave_room(leader.tcp()) => {
                return Ok(Outcome::Reached(Reached { client, leader, leader_id }));
            }
            Some(_) => Some(
                "the limit of open files is reached, and a client that is relayed takes two"
                    .to_owned(),
            ),
            None => self.views.borrow().why_not_served().or(why),
        };
        let why = self.refused(ends.source, why);
        if matches!(of.listener, RelayedListener::Http | RelayedListener::Metrics) {
            // What it asked is taken: a socket that is closed with bytes in it takes back what it has sent. One that says more and
            // more is not waited for.
            let mut asked = [0; 4096];
            for _ in 0..16 {
                if !client.try_read(&mut asked).is_ok_and(|count| count > 0) {
                    break;
                }
            }
            let _ = client.try_write(unavailable(&why).as_bytes());
            return Ok(Outcome::Over);
        }
        Ok(Outcome::Refused(client, ends, why))
    }

    /// A client did not reach the node that leads, and is closed: why, in words, as it is counted and logged.
    fn refused(&self, peer: SocketAddr, why: Option<String>) -> String {
        let why = why.unwrap_or_else(|| "the node that leads does not answer".to_owned());
        self.totals.refused.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(from = %peer.ip(), %peer, "connection closed: {why}");
        why
    }

    /// A client gets a session of this node, once a node that leads hears what sessions write. Returned is one that is to be
    /// relayed, or waited in vain.
    async fn enter(
        &self,
        of: &StandbyListener,
        (client, ends): (TcpStream, Ends),
        (mut reception, enters): (watch::Receiver<Reception>, &mpsc::Sender<Arrival>),
        give: &Give,
    ) -> io::Result<Entered> {
        let mut ending = self.ending.clone();
        let known = async {
            let known = reception.wait_for(|it| *it != Reception::Waits).await.map(|it| *it);
            match known {
                Ok(reception) => reception,
                // The sessions are over, and the process is about to end.
                Err(_) => std::future::pending().await,
            }
        };
        let reception = tokio::select! {
            reception = tokio::time::timeout(of.patience, known) => reception.unwrap_or_default(),
            _ = ending.wait_for(|it| *it) => {
                // Nobody takes it where a node ends for good.
                let _ = give.send((of.listener, Arrival { socket: client.into_std()?, ends }));
                return Ok(Entered::Gone);
            }
        };
        if reception != Reception::Own {
            return Ok(Entered::No(client, reception));
        }
        let arrival = Arrival { socket: client.into_std()?, ends };
        // An error means that there are no sessions any more, and that the process is about to end.
        let _ = enters.send(arrival).await;
        Ok(Entered::Gone)
    }

    /// Waits until it is clear that a client checks the health of a node that no other one leads: it is answered at once, since who
    /// spreads clients is to send them elsewhere.
    async fn is_checked_in_vain(&self, listener: RelayedListener, client: &TcpStream) {
        let mut first = [0; 256];
        let count = match listener {
            RelayedListener::Http if self.leader.borrow().is_none() => {
                client.peek(&mut first).await
            }
            _ => Ok(0),
        };
        let line = first[..count.unwrap_or(0)].split(|byte| *byte == b'\r').next();
        if !line.is_some_and(|line| line.windows(CHECKS.len()).any(|it| it == CHECKS)) {
            std::future::pending().await
        }
    }

    /// The node that leads, and a connection to it. Tries until there is one; `why` has what went wrong last.
    async fn way(
        &self,
        listener: RelayedListener,
        ends: Ends,
        why: &mut Option<String>,
    ) -> (u64, LinkSocket) {
        let mut leader = self.leader.clone();
        loop {
            let known = *leader.borrow_and_update();
            let changes = async {
                if leader.changed().await.is_err() {
                    // Nobody will ever lead: the node ends.
                    std::future::pending().await
                }
            };
            let Some(id) = known else {
                changes.await;
                continue;
            };
            let reaches = async {
                let reached = self.relay.relay(id, listener, ends).await;
                if reached.is_err() {
                    tokio::time::sleep(RETRY).await;
                }
                reached
            };
            // One that leads no more may take a connection and say nothing: nobody waits for it once another one leads.
            tokio::select! {
                reached = reaches => match reached {
                    Ok(stream) => return (id, stream),
                    Err(error) => {
                        *why = Some(format!("the node that leads is not reached: {error}"))
                    }
                },
                () = changes => {}
            }
        }
    }

    async fn relay(&self, reached: Reached) {
        let Reached { client, leader, leader_id } = reached;
        // A machine that went away without a word.
        let keep = TcpKeepalive::new().with_time(Duration::from_secs(15));
        let keep = keep.with_interval(Duration::from_secs(5)).with_retries(3);
        let _ = SockRef::from(leader.tcp()).set_tcp_keepalive(&keep);
        let totals = &self.totals;
        totals.open.fetch_add(1, Ordering::Relaxed);
        totals.relayed.fetch_add(1, Ordering::Relaxed);
        let mut leads = self.leader.clone();
        let is_over = async {
            let another = leads.wait_for(|it| it.is_some_and(|it| it != leader_id));
            if another.await.is_err() {
                return std::future::pending().await;
            }
            tokio::time::sleep(self.limits.farewell).await;
        };
        let ended = tokio::select! {
            ended = relay(&client, &leader, &totals.moved, self.limits.farewell) => ended,
            () = is_over => Ok(()),
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a relayed connection ended");
        }
        totals.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a client of HTTP reads for whom there is no node that leads.
fn unavailable(why: &str) -> String {
    let body = serde_json::json!({"error": "service_unavailable", "reason": why}).to_string();
    format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[cfg(test)]
mod tests;
