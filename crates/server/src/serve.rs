//! `leveret serve`: from options to a running node, and to its end.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use leveret_broker::message::{ToMeta, ToShard};
use leveret_broker::{Meta, Shard};
use leveret_log::Offset;
use leveret_node::start::{self, Filled};
use leveret_node::stop::{self, Next, PutAway, Stopping};
use leveret_session::Settings;
use leveret_topology::Topology;
use tokio::signal::unix::Signal;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::alarms::{Resource, say_flaps, watch_disk, watch_memory};
use crate::clock::now;
use crate::cluster::arrivals::{Arrivals, RelayedListener};
use crate::cluster::links::LINK_SOCKETS_MAX;
use crate::cluster::sessions::gateway::{Gateway, take_nodes};
use crate::cluster::sessions::own::OwnSessions;
use crate::cluster::view::Views;
use crate::cluster::{Duty, Led, MemberChanges};
use crate::descriptors;
use crate::disk::IoTotals;
use crate::filling::{Filling, Supply};
use crate::front::{About, Inside, Listener, OpenFrontEnds, Stop};
use crate::listener::{Entrance, Preface, SocketOptions, accept, bind, take_arrivals};
use crate::logging::{Logs, PERIOD};
use crate::login::{self, LoginThreads, Logins};
use crate::node::Node;
use crate::runner::{Runner, install_runner, keep_working, rest, with_runner};
use crate::signals::{Signals, StopSignals};
use crate::storage::{DirectoryLock, Left, NodeLog, Orphans, Waker};
use crate::storage::{close_to_others, forget_clean, leave_clean};
use crate::supervisor::Supervisor;
use crate::threads::Threads;
use crate::watchdog::{self, Beat, Doing, Watchdog};

/// What a node is started with: the configuration, made definite.
#[derive(Debug)]
pub struct Options {
    /// The lock by which the data directory is ours alone, held while the process lives.
    pub(crate) directory_lock: DirectoryLock,
    /// The logs of messages, open, by shard.
    pub shards: Vec<NodeLog>,
    /// By shard: records below may have been delivered, though no mark says so.
    pub seen_below: Vec<Offset>,
    /// What becomes of messages of queues that are not known.
    pub(crate) orphans: Orphans,
    /// Brings news from the disks.
    pub waker: Arc<Waker>,
    /// AMQP listeners.
    pub listeners: Vec<AmqpListener>,
    /// Threads that run turns.
    pub threads: usize,
    /// Whether they nap where that gathers messages: see [`Threads::start`].
    pub gather_reads: bool,
    /// What sessions are told.
    pub settings: Settings,
    /// How logins are treated.
    pub logins: login::Options,
    /// Names known from the start.
    pub topology: Topology,
    /// Who keeps them.
    pub meta: Meta<NodeLog>,
    /// Part of the watermark that transient messages may take before they are written to disk.
    pub paging_ratio: f64,
    /// For every socket.
    pub sockets: SocketOptions,
    /// How long a turn, a lock or a thread may take before the process ends itself; zero is for ever.
    pub watchdog_timeout: Duration,
    /// Whether the system may write memory to a core file.
    pub core_dumps: bool,
    /// What front ends tell.
    pub about: About,
    /// Clients that come by other nodes of the cluster; none of a node that is alone.
    pub arrivals: Option<Arrivals>,
    /// What this node knows of its cluster; none if it is alone.
    pub views: Option<Views>,
    /// If other nodes of the cluster have sessions of their own: the terms in which this node leads its groups, first that of the names,
    /// then those of the shards by index.
    pub remote_sessions: Option<Vec<u64>>,
    /// How its members are changed; none if it is alone.
    pub members: Option<MemberChanges>,
    /// The cluster that this node leads; none if it is alone.
    pub(crate) led: Option<Led>,
    /// Sessions that were here before this node led, and go on beside the broker.
    pub(crate) own_sessions: Option<Arc<OwnSessions>>,
}

/// Where AMQP is spoken, and what comes before it.
#[derive(Debug)]
pub struct AmqpListener {
    /// The key that names it.
    pub key: String,
    /// Where.
    pub address: SocketAddr,
    /// What comes before AMQP.
    pub preface: Preface,
}

/// How long clients have to answer `connection.close` when the broker stops.
const STOP_PATIENCE: Duration = Duration::from_secs(3);

/// The same, of one that leads its cluster no more, or is about to: meanwhile nobody is served.
const DEPOSED_PATIENCE: Duration = Duration::from_millis(300);

/// Runs a node with its front ends until a signal or [`Stop`] ends it.
pub fn run(
    mut options: Options,
    signals: Signals,
    open: OpenFrontEnds,
    give_back: fn(),
) -> anyhow::Result<()> {
    // One log for each shard, one for the names.
    let of_nodes = options.led.as_ref().map_or(0, |_| LINK_SOCKETS_MAX);
    let files = descriptors::raise_limit(options.shards.len() + 1, of_nodes);
    if !options.core_dumps {
        forbid_core_dumps();
    }
    let Signals { runtime, mut stops, hangup } = signals;
    runtime.block_on(async move {
        let Options { shards, seen_below, waker, paging_ratio, .. } = options;
        // Until everything is written and closed.
        let _directory_lock = options.directory_lock;
        let keeps_orphans = options.orphans.are_kept();
        let shards = start::host(shards.into_iter(), &options.topology, keeps_orphans, now());
        let waiting = shards.iter().map(|shard| shard.usage().records).sum();
        let past = start::Past::new(&options.meta, seen_below);
        let supply = Supply { past, orphans: options.orphans };
        let settings = Arc::new(options.settings);
        let logins = Logins::new(options.logins, rand::random());
        let mut led = options.led;
        let mut node =
            Node::new(settings, options.meta, options.topology, shards, paging_ratio, logins);
        node.leading = led.as_ref().map(Led::leading);
        if let Some(led) = &led {
            node.suspended = led.suspended();
        }
        let gateway = |terms| Arc::new(Gateway::new(node.homes, terms, options.views.clone()));
        node.gateway = options.remote_sessions.map(gateway);
        let node = Arc::new(node);
        options.own_sessions.iter().for_each(|own| own.are_beside(&node));
        waker.attach(&node, give_back);
        let mut sockets = Vec::new();
        for AmqpListener { key, address, preface } in options.listeners {
            let socket = bind(address, &options.sockets).with_context(|| {
                format!(
                    "cannot listen on {address}; is another broker running? \
                     choose another port with {key}"
                )
            })?;
            sockets.push((socket, preface));
        }
        close_to_others(&options.about.data_dir);
        forget_clean(&options.about.data_dir)?;
        node.meta().state().log_mut().reclaim();
        // Port 0 means that the system chose one; from here on it is the one that counts.
        options.about.listeners.clear();
        for (socket, preface) in &sockets {
            options.about.listeners.push(amqp_listener(socket.local_addr()?, preface));
            // All have the same.
            if let (Some(tls), true) = (&preface.tls, node.certificates.is_empty()) {
                node.certificates.add(Arc::clone(tls));
            }
        }
        if let Some(tls) = led.as_ref().and_then(Led::link_tls) {
            node.certificates.add(tls);
        }
        // The main thread runs turns too: those of the stop.
        let (more, worked) = install_runner(Arc::clone(&node));
        tokio::spawn(keep_working(more));
        tokio::spawn(rest(Arc::clone(&node), worked, give_back));
        tokio::spawn(go_on_with_leases(Arc::clone(&node)));
        if let Some(gateway) = &node.gateway {
            gateway.begin_names(&mut node.meta().state());
            gateway.watch_uses(&mut node.topology_mut());
            let (tells, of) = (Arc::clone(gateway), Arc::clone(&node));
            tokio::spawn(async move { tells.tell_uses(&of).await });
            let (gathers, of) = (Arc::clone(gateway), Arc::clone(&node));
            tokio::spawn(async move { gathers.gather(&of).await });
            let (waits, of) = (Arc::clone(gateway), Arc::clone(&node));
            tokio::spawn(async move { waits.earlier_leases(&of).await });
        }
        // What was being deleted goes on to go.
        with_runner(&node, |runner| runner.run_meta(ToMeta::Continue));
        // A watermark of 0 blocks publishers from the start.
        if let Some(change) = node.set_memory_limit(options.about.memory_limit) {
            with_runner(&node, |runner| runner.announce(Resource::Memory, change));
        }
        node.alarms.set_disk_limit(options.about.disk_free_limit);
        tokio::spawn(watch_memory(Arc::clone(&node)));
        tokio::spawn(watch_disk(Arc::clone(&node), Arc::clone(waker.room())));
        let threads =
            Arc::new(Threads::start(&node, options.threads, options.gather_reads, give_back)?);
        let logins = LoginThreads::start(&node)?;
        let (stop, mut asked) = Stop::new();
        let mut ready = Ready {
            started: options.about.started,
            files,
            data_dir: options.about.data_dir.clone(),
            config: options.about.config_files.join(", "),
            memory_limit: options.about.memory_limit,
            disk_free_limit: options.about.disk_free_limit,
            recovered: 0,
        };
        let logs = options.about.logs.clone();
        let mut listeners = options.about.listeners.clone();
        let mut arrivals = options.arrivals;
        let inside = Inside {
            node: Arc::clone(&node),
            about: options.about,
            stop: stop.clone(),
            give_back,
            arrivals: arrivals.as_mut(),
            views: options.views,
            members: options.members,
        };
        let front = open(inside)?;
        listeners.extend(front.listeners);
        let places =
            options.own_sessions.as_ref().map_or_else(Default::default, |own| own.places());
        let mut accepting = Vec::new();
        for (socket, preface) in sockets {
            let listener = tokio::net::TcpListener::from_std(socket)?;
            let kind = match preface.tls {
                None => RelayedListener::Amqp,
                Some(_) => RelayedListener::Amqps,
            };
            let entrance = Entrance {
                node: Arc::clone(&node),
                threads: Arc::clone(&threads),
                options: options.sockets.clone(),
                preface,
                places: places.clone(),
            };
            // All listeners of a kind have the same preface: the first one takes those who come by other nodes.
            if let Some(arrivals) = arrivals.as_mut().and_then(|all| all.take(kind)) {
                let taking = take_arrivals(arrivals, entrance.clone());
                accepting.push(tokio::spawn(once_all_are_here(&node, taking)));
            }
            let accepting_here = accept(listener, entrance);
            accepting.push(tokio::spawn(once_all_are_here(&node, accepting_here)));
        }
        if let Some(arrivals) = arrivals.as_mut().and_then(|it| it.take(RelayedListener::Sessions))
        {
            let taking = take_nodes(arrivals, Arc::clone(&node), Arc::clone(&threads));
            accepting.push(tokio::spawn(taking));
        }
        drop(arrivals);
        tokio::spawn(reload_when_asked(Arc::clone(&node), logs.clone(), hangup));
        if waiting > 0 {
            ready.announce_doors(&listeners, waiting);
        }
        let mut filling = Some(Filling::begin(&node, supply)?);
        let telling = tokio::spawn(tell_more(Arc::clone(&node), logs.clone()));
        let supervisor = Supervisor::of_environment().map(Arc::new);
        let round = supervisor.as_ref().and_then(|it| it.round());
        let round = round.map_or(watchdog::ROUND, |it| it.min(watchdog::ROUND));
        let watchdog = Watchdog::start(&node, &logs, options.watchdog_timeout, round)?;
        let mut watched = None;
        let told_before = led.as_mut().and_then(|led| led.telling.take());
        let is_ready = |recovered| {
            ready.recovered = recovered;
            if let Some(told_before) = &told_before {
                told_before.abort();
            }
            announce_ready(&listeners, &ready, &node);
            if let Some(supervisor) = &supervisor {
                supervisor.is_ready();
                watched =
                    Some(tokio::spawn(Arc::clone(supervisor).keep_telling(Arc::clone(&node))));
            }
        };
        let asks = (&mut stops, &mut asked);
        let mut end = serve_until_the_end(&node, &mut filling, asks, &mut led, is_ready).await;
        if let (Ends::Deposed, Some(led)) = (&end, led.as_ref()) {
            // The process is replaced when all its threads have ended, and one whose disk stands still does not. Meanwhile clients are
            // to find another node: nobody listens here, and no connection stays.
            for task in accepting {
                task.abort();
                // It has let go of its socket then.
                let _ = task.await;
            }
            if let Some(own) = &options.own_sessions {
                own.hang_up();
                own.close("another node leads the cluster").await;
            }
            end_sessions_of_others(&node);
            close_connections(&node, Farewell::Deposed).await;
            node.connections().iter().for_each(|it| it.cut());
            if !is_asked(&mut stops, &mut asked).await {
                return led.begin_anew(&logs);
            }
            // Nothing is left to be put away: what was agreed upon the others have.
            tracing::info!("stopped");
            return Ok(());
        }
        if let Some(supervisor) = &supervisor {
            supervisor.is_stopping();
        }
        // A node that hangs already is not one that can stop: it is watched until all have ended.
        let step = node.watched.beat();
        step.begins(Doing::Stop);
        accepting.extend(watched);
        for task in accepting {
            task.abort();
        }
        if let Ends::Asked = end {
            end = fill_before_the_stop(&node, filling, &mut led, &step).await;
        }
        let has_failed = matches!(end, Ends::Failed);
        let farewell = if led.is_some() { Farewell::HandOver } else { Farewell::Stop };
        step.goes_on(Doing::Stop);
        // However many wait for a slow hash: requests among them would hold up the end of the front ends.
        node.logins.close();
        if let Some(own) = &options.own_sessions {
            own.close("shutdown").await;
            own.hang_up();
        }
        end_sessions_of_others(&node);
        close_connections(&node, farewell).await;
        if let Some(leading) = &node.leading {
            leading.puts_away();
            with_runner(&node, Runner::go_on);
        }
        step.goes_on(Doing::Stop);
        front.running.stop();
        step.goes_on(Doing::Stop);
        logins.stop();
        step.goes_on(Doing::Stop);
        if let Ok(threads) = Arc::try_unwrap(threads) {
            threads.stop();
        }
        watchdog.ask_no_more();
        step.goes_on(Doing::PutAway);
        if !has_failed {
            put_away(&node, &waker, &ready.data_dir, led.as_ref(), &step);
        }
        step.ends();
        if let Some(led) = led {
            led.leave(!has_failed).await;
        }
        drop(watchdog);
        telling.abort();
        logs.tell_more();
        tracing::info!("stopped");
        anyhow::ensure!(!has_failed, "stopped: messages could not be written to the disk");
        Ok(())
    })
}

/// Clients come in once the exclusive queues of other nodes' clients are there: what they publish may be for one.
fn once_all_are_here(
    node: &Node,
    then: impl Future<Output = ()> + Send + 'static,
) -> impl Future<Output = ()> + Send + 'static {
    let gateway = node.gateway.clone();
    async move {
        if let Some(gateway) = gateway {
            gateway.has_gathered().await;
        }
        then.await;
    }
}

/// Another node is to lead, and sessions of other nodes are to go on there.
fn end_sessions_of_others(node: &Arc<Node>) {
    if let Some(gateway) = &node.gateway {
        gateway.end(node);
    }
}

/// Goes on with what waits for a lease, whenever there is one.
pub(crate) async fn go_on_with_leases(node: Arc<Node>) {
    let Some(leading) = node.leading.clone() else { return };
    loop {
        leading.is_back().await;
        with_runner(&node, Runner::go_on);
    }
}

/// Tells what clients would have written to the log, but for its limits.
async fn tell_more(node: Arc<Node>, logs: Logs) {
    loop {
        tokio::time::sleep(PERIOD).await;
        say_flaps(&node);
        logs.tell_more();
    }
}

/// What ends a node.
enum Ends {
    /// It was asked to stop.
    Asked,
    /// Something failed, and nothing may be confirmed any more.
    Failed,
    /// Another node leads, or nobody does: what was not agreed upon is not to be seen by anybody.
    Deposed,
}

/// Serves until something ends the node. Tells when the queues are filled.
async fn serve_until_the_end(
    node: &Arc<Node>,
    filling: &mut Option<Filling>,
    (stops, asked): (&mut StopSignals, &mut UnboundedReceiver<String>),
    led: &mut Option<Led>,
    mut is_ready: impl FnMut(u64),
) -> Ends {
    loop {
        tokio::select! {
            () = node.failed.notified() => return Ends::Failed,
            signal = stops.comes() => tracing::info!("stopping: {signal}"),
            Some(by) = asked.recv() => tracing::info!("stopping: asked to by {by}"),
            duty = leads_no_more(led) => return match duty {
                Duty::End(_) => Ends::Failed,
                _ => Ends::Deposed,
            },
            restored = filled(filling, node) => {
                let (Some(filling), Some(restored)) = (filling.take(), restored) else { return Ends::Failed };
                is_ready(filling.finish(node, restored));
                continue;
            }
        }
        return Ends::Asked;
    }
}

/// Whether a stop was asked for that nobody has heard yet.
async fn is_asked(stops: &mut StopSignals, asked: &mut UnboundedReceiver<String>) -> bool {
    tokio::select! {
        biased;
        signal = stops.comes() => tracing::info!("stopping: {signal}"),
        Some(by) = asked.recv() => tracing::info!("stopping: asked to by {by}"),
        () = std::future::ready(()) => return false,
    }
    true
}

/// Waits until this node leads its cluster no more; for ever if it is alone.
async fn leads_no_more(led: &mut Option<Led>) -> Duty {
    match led {
        Some(led) => led.ends().await,
        None => std::future::pending().await,
    }
}

/// Waits until the queues are filled; for ever if they are.
async fn filled(filling: &mut Option<Filling>, node: &Node) -> Option<Filled> {
    match filling {
        Some(filling) => filling.wait(node).await,
        None => std::future::pending().await,
    }
}

/// Waits until the queues are filled, if they are not: what may have been delivered is written down for all.
async fn fill_before_the_stop(
    node: &Arc<Node>,
    filling: Option<Filling>,
    led: &mut Option<Led>,
    step: &Beat,
) -> Ends {
    let Some(mut filling) = filling else { return Ends::Asked };
    tracing::info!("the stop waits until the queues are filled");
    let mut read = 0;
    loop {
        tokio::select! {
            () = node.failed.notified() => return Ends::Failed,
            _ = leads_no_more(led) => return Ends::Deposed,
            restored = filling.wait(node) => {
                let Some(restored) = restored else { return Ends::Failed };
                filling.finish(node, restored);
                return Ends::Asked;
            }
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
        }
        if filling.read() != read {
            read = filling.read();
            step.goes_on(Doing::Stop);
        }
    }
}

/// How long what is under way has when the broker stops, and then the disks when they take nothing.
const PUT_AWAY_PATIENCE: Duration = Duration::from_secs(30);

/// How long what is under way has at the stop of a node that leads its cluster: the next one goes on with it, and nobody is served
/// before. The disks have as long as those of a node alone.
const HAND_OVER_PATIENCE: Duration = Duration::from_secs(1);

/// When to give up on disks that take nothing.
struct Patience {
    until: std::time::Instant,
    /// What was moved when it was looked at last.
    moved: u64,
}

impl Patience {
    fn from(now: std::time::Instant) -> Self {
        Self::of(PUT_AWAY_PATIENCE, now)
    }

    fn of(patience: Duration, now: std::time::Instant) -> Self {
        Self { until: now + patience, moved: 0 }
    }

    /// Whether nothing was moved for so long.
    fn is_over(&mut self, moved: u64, now: std::time::Instant) -> bool {
        if moved != self.moved {
            *self = Self { moved, ..Self::from(now) };
        }
        now > self.until
    }
}

/// Grows with whatever disks do.
fn moved() -> u64 {
    let IoTotals { write_bytes, syncs, .. } = IoTotals::now();
    write_bytes + syncs
}

/// A node that stops: nobody runs turns any more but the disks' threads, and those only to take in what they did.
struct StoppingNode<'a>(&'a Arc<Node>);

impl Stopping for StoppingNode<'_> {
    type Log = NodeLog;

    fn shards(&self) -> usize {
        self.0.shards.len()
    }

    fn shard<T>(&mut self, index: usize, look: impl FnOnce(&mut Shard<NodeLog>) -> T) -> T {
        look(&mut self.0.shards[index].actor.state())
    }

    fn meta<T>(&mut self, look: impl FnOnce(&mut Meta<NodeLog>) -> T) -> T {
        look(&mut self.0.meta().state())
    }

    fn run_shard(&mut self, index: usize, letter: ToShard) {
        let group = self.0.homes.group_at(index);
        with_runner(self.0, |runner| runner.run_shard(group, letter));
    }

    fn run_meta(&mut self, letter: ToMeta) {
        with_runner(self.0, |runner| runner.run_meta(letter));
    }
}

/// Does what is under way, and writes all of it down, unless the disks take too long. Whether all is written.
fn write_all(node: &Arc<Node>, waker: &Waker, led: Option<&Led>, step: &Beat) -> bool {
    let mut node = StoppingNode(node);
    let (mut stop, mut seen) = (PutAway::default(), 0);
    let departing = if led.is_some() { HAND_OVER_PATIENCE } else { PUT_AWAY_PATIENCE };
    let mut patience = Patience::of(departing, std::time::Instant::now());
    loop {
        let before = stop;
        match stop.round(&mut node) {
            Ok(Next::Done) => return true,
            Ok(Next::Waits) if led.is_some_and(|led| !led.leads()) => {
                tracing::warn!(
                    "this node leads the cluster no more: whether what was under way is there the others decide"
                );
                return false;
            }
            Ok(Next::Waits) => seen = waker.wait(seen),
            Ok(Next::GoesOn) => {}
            Err(error) => {
                tracing::error!(%error, "the last messages could not be written");
                return false;
            }
        }
        let now = std::time::Instant::now();
        match stop {
            PutAway::Departing if now > patience.until => {
                let units = stop::under_way(&mut node);
                tracing::warn!(
                    units,
                    "not all that was under way is done: dead letters stay in their old queues, and acks are kept"
                );
                stop.give_up_departing(&mut node);
                patience = Patience::from(now);
            }
            PutAway::Writing if before == PutAway::Departing => patience = Patience::from(now),
            PutAway::Writing => {
                let moved = moved();
                if moved != patience.moved {
                    // However much there is: as long as the disk takes it, the watchdog waits.
                    step.goes_on(Doing::PutAway);
                }
                if patience.is_over(moved, now) {
                    stop::give_up_writing(&mut node);
                    tell_too_long(waker);
                    return false;
                }
            }
            PutAway::Departing => {}
        }
    }
}

fn tell_too_long(waker: &Waker) {
    let seconds = PUT_AWAY_PATIENCE.as_secs();
    let room = waker.room();
    let is_full = room.is_refused() || room.is_short();
    let why = if is_full { "the disk is full" } else { "the disk took nothing" };
    tracing::error!(
        "{why} for {seconds} s: what was not confirmed is not stored, and the next start will look at everything"
    );
}

/// Writes down what the next start has to know, and that nothing is missing. A member of a cluster has the others and its own
/// word for that.
fn put_away(node: &Arc<Node>, waker: &Waker, data_dir: &Path, led: Option<&Led>, step: &Beat) {
    if !write_all(node, waker, led, step) || led.is_some() {
        return;
    }
    let shards = node.shards.iter().map(|shard| shard.actor.state().log_mut().left().collect());
    let shards = shards.collect();
    let names = node.meta().state().log_mut().left().collect();
    let seen_below = node.shards.iter().map(|shard| shard.actor.state().seen_below()).collect();
    let next_batch =
        node.shards.iter().map(|shard| shard.actor.state().log_mut().next_batch()).collect();
    let left = Left { names, shards, seen_below, next_batch };
    if let Err(error) = leave_clean(data_dir, &left) {
        tracing::warn!(%error, "the next start will not know that this stop was in good order");
    }
}

fn amqp_listener(address: SocketAddr, preface: &Preface) -> Listener {
    match preface.tls {
        None => Listener { protocol: "amqp", purpose: "AMQP 0-9-1", address },
        Some(_) => Listener { protocol: "amqp/ssl", purpose: "AMQP 0-9-1 over TLS", address },
    }
}

/// Opens the log file and reads certificates again on every SIGHUP.
async fn reload_when_asked(node: Arc<Node>, logs: Logs, mut hangup: Signal) {
    while hangup.recv().await.is_some() {
        logs.reopen();
        tracing::info!("SIGHUP: opening log file and certificates again");
        // What is wrong with them is logged where it is found.
        let _ = node.certificates.reload();
    }
}

/// What the ready line says besides where it listens.
struct Ready {
    started: std::time::Instant,
    /// The limit of open files, if there is one.
    files: Option<u64>,
    data_dir: PathBuf,
    config: String,
    memory_limit: u64,
    disk_free_limit: u64,
    /// Messages that were there.
    recovered: u64,
}

/// With fewer files connections are soon refused: what many systems give a shell.
const FILES_FEW: u64 = 1024;

/// Where a protocol is spoken.
fn addresses(listeners: &[Listener], protocol: &str) -> Option<String> {
    let all = listeners.iter().filter(|it| it.protocol == protocol);
    let all: Vec<String> = all.map(|it| it.address.to_string()).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

impl Ready {
    /// Clients may come in, and their queues are not filled yet.
    fn announce_doors(&self, listeners: &[Listener], messages: u64) {
        tracing::info!(
            amqp = addresses(listeners, "amqp"),
            amqps = addresses(listeners, "amqp/ssl"),
            after_ms = self.started.elapsed().as_millis() as u64,
            messages,
            "clients may come in; the queues are being filled, and what is asked of them waits"
        );
    }
}

/// The one line that says the broker is ready.
fn announce_ready(listeners: &[Listener], ready: &Ready, node: &Node) {
    let of = |protocol| addresses(listeners, protocol);
    if let Some(files) = ready.files.filter(|&files| files <= FILES_FEW) {
        tracing::warn!(
            open_files_max = files,
            "the limit of open files is low, and each connection is one: raise it, by LimitNOFILE= in systemd's unit or \
             by ulimit -n"
        );
    }
    let (vhosts, queues) = {
        let topology = node.topology();
        (topology.vhosts().count(), topology.queue_count())
    };
    tracing::info!(
        amqp = of("amqp"),
        amqps = of("amqp/ssl"),
        http = of("http"),
        https = of("https"),
        metrics = of("http/prometheus"),
        metrics_tls = of("https/prometheus"),
        started_in_ms = ready.started.elapsed().as_millis() as u64,
        open_files_max = ready.files.unwrap_or(0),
        data_dir = %ready.data_dir.display(),
        config = if ready.config.is_empty() { "defaults" } else { &ready.config },
        memory_limit_bytes = ready.memory_limit,
        disk_free_limit_bytes = ready.disk_free_limit,
        vhosts,
        queues,
        messages = ready.recovered,
        "Leveret {} is ready",
        env!("CARGO_PKG_VERSION"),
    );
}

/// Why clients are told to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Farewell {
    /// It is alone, and stops.
    Stop,
    /// It leads a cluster, and stops: the sooner, the sooner another one takes over.
    HandOver,
    /// It leads no more.
    Deposed,
}

/// Tells every client that the broker stops, and waits a little for their answers.
async fn close_connections(node: &Arc<Node>, why: Farewell) {
    let (reason, patience) = match why {
        Farewell::Stop => ("shutdown", STOP_PATIENCE),
        Farewell::HandOver => ("shutdown", DEPOSED_PATIENCE),
        Farewell::Deposed => ("another node leads the cluster", DEPOSED_PATIENCE),
    };
    tell_to_go(node, reason, patience).await;
}

/// Tells every client to go, and waits a little for their answers. On a thread with the node's runner.
pub(crate) async fn tell_to_go(node: &Arc<Node>, reason: &str, patience: Duration) {
    if let Some(leading) = &node.leading {
        leading.ends();
        // Those whose turn waits are told, too.
        with_runner(node, Runner::go_on);
    }
    for connection in node.connections() {
        let text = format!("broker forced connection closure with reason '{reason}'");
        with_runner(node, |runner| runner.close_connection(&connection, text));
    }
    let deadline = tokio::time::Instant::now() + patience;
    while node.connection_count() > 0 && tokio::time::Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let left = node.connection_count();
    if left > 0 {
        tracing::warn!(left, "clients did not answer connection.close; their sockets are closed");
    }
}

/// Keeps messages, passwords and keys out of core files.
///
/// Twice: a limit of zero keeps the kernel from writing a file, but not from feeding a program such as
/// systemd-coredump; to that the filter gives a core without memory. `PR_SET_DUMPABLE` would do both, but it
/// gives `/proc/self` to the superuser, where tools and the broker itself look up memory and files.
fn forbid_core_dumps() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let none = Rlimit { current: Some(0), maximum: getrlimit(Resource::Core).maximum };
    if let Err(error) = setrlimit(Resource::Core, none) {
        tracing::warn!(%error, "core files cannot be forbidden");
    }
    if let Err(error) = std::fs::write("/proc/self/coredump_filter", "0") {
        tracing::warn!(%error, "memory cannot be kept out of core files");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_takes_something_is_waited_for() {
        let start = std::time::Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut patience = Patience::from(start);
        assert!(!patience.is_over(0, after(30)));
        assert!(!patience.is_over(1, after(31)), "it moved");
        assert!(!patience.is_over(2, after(60)));
        assert!(!patience.is_over(2, after(90)));
        assert!(patience.is_over(2, after(91)), "it did not");
    }
}
