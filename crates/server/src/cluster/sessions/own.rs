//! The sessions of a process: a node of sessions with its threads, from the time at which the cluster is known to the end of the
//! process, whoever leads.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use leveret_config::Config;
use leveret_session::Settings;
use leveret_topology::{ChannelsOfNode, Homes};
use tokio::sync::{mpsc, watch};
use tokio::task::yield_now;
use tokio::time::timeout;

use super::away::{Away, Called, keep_leader};
use crate::alarms::{Resource, watch_memory};
use crate::cluster::arrivals::Arrival;
use crate::cluster::standby::{OwnClients, Reception, Totals};
use crate::cluster::view::{ClusterView, Views};
use crate::lease::Leading;
use crate::listener::{Entrance, take_arrivals};
use crate::logging::Logs;
use crate::login::{LoginThreads, Logins};
use crate::node::Node;
use crate::places::ConnectionPlaces;
use crate::runner::with_runner;
use crate::serve::{AmqpListener, go_on_with_leases, tell_to_go};
use crate::startup::{amqp_listeners, login_options, node_name, settings, socket_options};
use crate::threads::Threads;
use crate::watchdog::{ROUND, Watchdog, Watched};

/// Clients that come in and are not taken at once.
const WAITING_MAX: usize = 64;

/// How long clients have to answer that they are told to go.
const PATIENCE: Duration = Duration::from_millis(300);

/// Where no node leads for so long, clients are told to go: where a majority is there another one leads after some seconds at most. Each
/// of them may wait for something; one that only consumes cannot tell this from a queue that is empty, and may find another node on
/// the side of the majority.
const LEADERLESS: Duration = Duration::from_secs(30);

/// What sessions are begun with.
pub(crate) struct Beginning {
    pub(crate) config: Config,
    /// Where the watchdog writes its last words.
    pub(crate) logs: Logs,
    /// Threads that run them.
    pub(crate) threads: usize,
    /// The memory watermark, in bytes.
    pub(crate) memory_limit: u64,
    /// The number of this start of the process.
    pub(crate) start: u32,
    pub(crate) called: Called,
    /// What they may write to their clients, once this node leads.
    pub(crate) leading: Arc<Leading>,
    /// The lease of the broker of this process, once it has one.
    pub(crate) leads: Arc<Leading>,
    pub(crate) views: Views,
    /// Where the sessions are counted.
    pub(crate) totals: Arc<Totals>,
    pub(crate) give_back: fn(),
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct OwnSessions {
    running: OnceLock<Running>,
    watched: Arc<Watched>,
    channels: ChannelsOfNode,
    places: ConnectionPlaces,
    /// Why they are over, if they are; or why they could not begin.
    over: watch::Sender<Option<Result<String, String>>>,
}

#[derive(Debug)]
struct Running {
    node: Arc<Node>,
    away: Arc<Away>,
    threads: Arc<Threads>,
    /// They end with the process.
    _logins: LoginThreads,
    _watchdog: Watchdog,
}

impl OwnSessions {
    /// Begins as soon as it is known how many groups the cluster has. In the runtime that this is called in. Also where clients go.
    pub(crate) fn begin(beginning: Beginning) -> (Arc<Self>, OwnClients) {
        let over = watch::Sender::new(None);
        let (watched, channels, places) = Default::default();
        let own = Arc::new(Self { running: OnceLock::new(), watched, channels, places, over });
        let (enters, reception) = watch::channel(Reception::Waits);
        let ((amqp, plain), (amqps, encrypted)) =
            (mpsc::channel(WAITING_MAX), mpsc::channel(WAITING_MAX));
        let clients = OwnClients { reception, amqp, amqps };
        let begun = Arc::clone(&own);
        tokio::spawn(async move {
            let mut views = beginning.views.clone();
            let shards = loop {
                let groups = views.borrow_and_update().groups.len();
                match groups.checked_sub(1) {
                    Some(shards) if shards > 0 => break shards,
                    _ => {}
                }
                if views.changed().await.is_err() {
                    // The process ends.
                    return;
                }
            };
            if let Err(error) = begun.run(beginning, shards, enters, plain, encrypted) {
                let why = format!("sessions of this node cannot begin: {error:#}");
                begun.over.send_replace(Some(Err(why)));
            }
        });
        (own, clients)
    }

    fn run(
        self: &Arc<Self>,
        beginning: Beginning,
        shards: usize,
        enters: watch::Sender<Reception>,
        plain: mpsc::Receiver<Arrival>,
        encrypted: mpsc::Receiver<Arrival>,
    ) -> anyhow::Result<()> {
        let Beginning {
            config,
            logs,
            threads,
            memory_limit,
            start,
            called,
            leading,
            leads,
            views,
            totals,
            give_back,
        } = beginning;
        let homes = Homes::among(u32::try_from(shards)?);
        let name = node_name(&config);
        let away = Arc::new(Away::new((name.clone(), called.own_id, start), homes, enters, leads));
        let settings = Settings {
            // No record of a log that has copies elsewhere is in another log, and no gate is here.
            embed_bytes_below: u64::MAX,
            allows_by_letters: true,
            ..settings(&config)
        };
        let logins = Logins::new(login_options(&config)?, rand::random());
        let mut node =
            Node::of_sessions(Arc::new(settings), logins, Arc::clone(&away), start, leading);
        node.watched = Arc::clone(&self.watched);
        let node = Arc::new(node);
        {
            let mut names = node.topology_mut();
            names.count_channels_in(self.channels.clone());
            names.limit_channels(&name, config.connections.channel_max_per_node.0);
            names.pass_events_on(&name);
            names.watch_uses(away.uses());
        }
        totals.count_sessions_of(Arc::clone(&node));
        let change = node.set_memory_limit(memory_limit);
        let of = Threads::start(&node, threads, config.node.gather_reads, give_back)?;
        let (of, logins) = (Arc::new(of), LoginThreads::start(&node)?);
        let (_, thread) = of.next();
        if let Some(change) = change {
            let node = Arc::clone(&node);
            thread.spawn(async move {
                with_runner(&node, |runner| runner.announce(Resource::Memory, change));
            });
        }
        thread.spawn(watch_memory(Arc::clone(&node)));
        thread.spawn(go_on_with_leases(Arc::clone(&node)));
        thread.spawn(send_leaderless_away(Arc::clone(&node), views, LEADERLESS));
        let mut arrivals = [Some(plain), Some(encrypted)];
        for AmqpListener { preface, .. } in amqp_listeners(&config, threads)? {
            if let (Some(tls), true) = (&preface.tls, node.certificates.is_empty()) {
                node.certificates.add(Arc::clone(tls));
            }
            let Some(arrivals) = arrivals[usize::from(preface.tls.is_some())].take() else {
                continue;
            };
            let entrance = Entrance {
                node: Arc::clone(&node),
                threads: Arc::clone(&of),
                options: socket_options(&config),
                preface,
                places: self.places.clone(),
            };
            thread.spawn(take_arrivals(arrivals, entrance));
        }
        let (own, serves, calls) = (Arc::clone(self), Arc::clone(&node), Arc::clone(&away));
        thread.spawn(async move {
            let why = keep_leader(Arc::clone(&serves), calls, called).await;
            tracing::warn!("the sessions of this node are over: {why}");
            tell_to_go(
                &serves,
                "the node that leads has given up the sessions of this one",
                PATIENCE,
            )
            .await;
            serves.connections().iter().for_each(|it| it.cut());
            own.over.send_replace(Some(Ok(why)));
        });
        let timeout = Duration::from_secs(config.node.watchdog_timeout.get());
        let watchdog = Watchdog::start(&node, &logs, timeout, ROUND)?;
        let running = Running { node, away, threads: of, _logins: logins, _watchdog: watchdog };
        let _ = self.running.set(running);
        Ok(())
    }

    /// This process leads, and has the broker beside these sessions: it tells what stalls here, too, and they have one count of channels.
    pub(crate) fn are_beside(&self, broker: &Node) {
        broker.watched.tells_of(Arc::clone(&self.watched));
        broker.topology_mut().count_channels_in(self.channels.clone());
    }

    /// Where connections have their places: with those of the broker beside them they are one node's.
    pub(crate) fn places(&self) -> ConnectionPlaces {
        self.places.clone()
    }

    /// Waits until the sessions are over: why.
    ///
    /// # Errors
    ///
    /// Why they could not begin.
    pub(crate) async fn are_over(&self) -> Result<String, String> {
        let mut over = self.over.subscribe();
        match over.wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or(Ok(String::new())),
            Err(_) => std::future::pending().await,
        }
    }

    /// Reads certificates again.
    pub(crate) fn reload(&self) {
        if let Some(Running { node, .. }) = self.running.get() {
            // What is wrong with them is logged where it is found.
            let _ = node.certificates.reload();
        }
    }

    /// Calls no leader any more: where this process led, its sessions end with that, and the next leader is not to wait for them.
    pub(crate) fn hang_up(&self) {
        if let Some(Running { away, .. }) = self.running.get() {
            away.hang_up();
        }
    }

    /// Tells all clients to go, and waits a little for their answers.
    pub(crate) async fn close(&self, reason: &'static str) {
        let Some(Running { node, threads, .. }) = self.running.get() else { return };
        let closing = Arc::clone(node);
        let closed = threads.next().1.spawn(async move {
            tell_to_go(&closing, reason, PATIENCE).await;
            closing.connections().iter().for_each(|it| it.cut());
        });
        // A panic aborts the process.
        let _ = closed.await;
    }
}

/// Tells all clients to go when no node has led for so long, each time.
async fn send_leaderless_away(node: Arc<Node>, mut views: Views, after: Duration) {
    let is_led = |view: &Arc<ClusterView>| view.why_not_served().is_none();
    // An error means that the process ends.
    while views.wait_for(|it| !is_led(it)).await.is_ok() {
        if timeout(after, views.wait_for(is_led)).await.is_ok() {
            continue;
        }
        let Some(why) = views.borrow().why_not_served() else { continue };
        tracing::warn!(connections = node.connection_count(), "clients are told to go: {why}");
        for connection in node.connections() {
            with_runner(&node, |runner| runner.close_connection(&connection, why.clone()));
            yield_now().await;
        }
        // Who comes now waits for a node that leads before there is a session.
        let _ = views.wait_for(is_led).await;
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use leveret_cluster::Lease;

    use super::*;
    use crate::clock::boot_ms;
    use crate::cluster::sessions::testing::Clients;
    use crate::connection::Letter;
    use crate::lease::ALWAYS;
    use crate::login;
    use crate::runner::{Runner, run_alone};

    /// Sessions that are kept when their node leads write under its lease alone.
    #[tokio::test]
    async fn a_kept_session_waits_for_the_lease() {
        let leading = Arc::new(Leading::new());
        leading.set(ALWAYS);
        let homes = Homes::among(1);
        let enters = watch::Sender::new(Reception::Own);
        let leads = Arc::new(Leading::new());
        leads.set(ALWAYS);
        let away = Away::new(("rabbit@far".to_owned(), 7, 0), homes, enters, leads);
        away.names_hold().set(u64::MAX >> 1, true);
        let logins = Logins::new(login::Options::default(), [0; 32]);
        let held = Arc::clone(&leading);
        let node = Node::of_sessions(Arc::default(), logins, Arc::new(away), 0, held);
        let node = Arc::new(node);
        let clients = Clients::of(&node, 2);
        let runs = |at: usize| {
            let connection = &clients.connections[at];
            run_alone(&node, |runner| runner.run_connection(connection, Letter::Readable));
        };
        let reads = |at: usize| {
            let mut socket = &clients.sockets[at];
            socket.set_nonblocking(true).unwrap();
            socket.read(&mut [0; 64]).is_ok_and(|count| count > 0)
        };
        for mut socket in &clients.sockets {
            socket.write_all(b"AMQP\0\0\x09\x01").unwrap();
        }
        runs(0);
        assert!(reads(0), "before the node leads it needs none");
        leading.set(Lease { from_ms: 0, until_ms: boot_ms() });
        runs(1);
        assert!(!reads(1), "the lease is over");
        assert_eq!(clients.connections[1].turns(), 0);
        leading.set(Lease { from_ms: 0, until_ms: boot_ms() + 60_000 });
        run_alone(&node, Runner::go_on);
        assert!(reads(1));
    }
}
