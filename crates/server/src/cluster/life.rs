//! The life of a process that is a node of a cluster.
//!
//! ```text
//!   open -> standby: clients are relayed to the node that leads -> elected: the logs are lent -> the broker, until a stop
//!              ^                                                                                     |
//!              +---------------------------- begins anew <------------------------- deposed ---------+
//! ```

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use leveret_broker::Meta;
use leveret_config::cluster::{Formation, Sessions};
use leveret_config::{Config, Loaded};
use leveret_log::Offset;
use leveret_topology::Homes;

use crate::descriptors;
use crate::front::{self, Fronts, Stop};
use crate::logging::Logs;
use crate::room::Room;
use crate::serve::run;
use crate::signals::Signals;
use crate::startup::{Basis, Stored, add_names, node_name, read_names, socket_options};
use crate::storage::{NodeLog, Orphans, Waker};
use crate::supervisor::Supervisor;

use super::arrivals::{self, Bringers};
use super::driver;
use super::handle::{ClusterThread, Duty, Handle, LEADS_NO_MORE, Led, leave};
use super::links::{LINK_SOCKETS_MAX, Links};
use super::names::TakenNames;
use super::sessions::away::Called;
use super::sessions::own::{Beginning, OwnSessions};
use super::standby::{self, AmqpRefusal, ClientRoutes, Standby};

/// Runs a node of a cluster until it is stopped.
pub(crate) fn serve(
    loaded: &Loaded,
    formation: Formation,
    started: Instant,
    logs: &Logs,
    mut signals: Signals,
    fronts: Fronts,
    give_back: fn(),
) -> anyhow::Result<()> {
    let (config, own) = (loaded.config.clone(), node_name(&loaded.config));
    let sessions = formation.sessions;
    let (bringers, arrivals) = arrivals::arrivals();
    let opened = {
        let bringers = bringers.clone();
        signals.unless_stopped(move || join(&config, formation, started, bringers))
    };
    let Some(opened) = opened else {
        signals.leave();
        return Ok(());
    };
    let Joined { basis, waker, mut handle, thread, links } = opened?;
    let (views, link_tls, links) = (handle.views.clone(), links.tls(), Arc::new(links));
    descriptors::raise_limit(basis.shards + 2, LINK_SOCKETS_MAX);
    let listeners = standby::listeners(&loaded.config)?;
    let own_sessions = (sessions == Sessions::Own).then(|| {
        let _inside = signals.runtime.enter();
        let (own_id, start) = handle.own;
        OwnSessions::begin(Beginning {
            config: loaded.config.clone(),
            logs: logs.clone(),
            threads: basis.threads,
            memory_limit: basis.memory.limit,
            // Starts are counted one by one.
            start: start as u32,
            called: Called {
                relay: Arc::clone(&links) as _,
                own_id,
                own: bringers.clone(),
                leader: standby::leader_of(views.clone(), signals.runtime.handle()),
            },
            leading: Arc::clone(&handle.sessions_leading),
            leads: Arc::clone(&handle.leading),
            views: views.clone(),
            totals: Arc::clone(&handle.relayed),
            give_back,
        })
    });
    let (own_sessions, own_clients) = own_sessions.unzip();
    let standby = Standby::start(
        &listeners,
        &socket_options(&loaded.config),
        ClientRoutes {
            relay: Arc::clone(&links) as _,
            own: own_clients,
            suspended: handle.suspended.clone(),
            refusal: AmqpRefusal::of(&loaded.config)?,
        },
        views.clone(),
        Arc::clone(&handle.relayed),
        basis.threads,
    )?;
    let (stop, mut asked) = Stop::new();
    let mut about = basis.about(&loaded.config, started);
    about.listeners = standby.listeners().to_vec();
    about.config_files.clone_from(&loaded.files);
    about.logs = logs.clone();
    let control = (fronts.standby)(front::Standby {
        about,
        stop,
        views: views.clone(),
        relay: links,
        link_tls: link_tls.clone(),
        totals: Arc::clone(&handle.relayed),
        names: Arc::clone(&handle.names),
        suspended: handle.suspended.clone(),
    })?;
    announce(&standby, started, &basis, &own);
    let supervisor = Supervisor::of_environment().map(Arc::new);
    let telling = supervisor.as_ref().map(|supervisor| {
        supervisor.stands_by();
        let telling = Arc::clone(supervisor).keep_telling_in_standby(views.clone());
        signals.runtime.spawn(telling).abort_handle()
    });
    let waits = async {
        let are_over = async {
            match &own_sessions {
                Some(own) => own.are_over().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            duty = handle.is_not(&Duty::StandBy) => Some(Ok(duty)),
            why = are_over => Some(Err(why)),
            Some(by) = asked.recv() => {
                tracing::info!("stopping: asked to by {by}");
                None
            }
        }
    };
    let duty = signals.stands_by_unless_stopped(waits, || {
        logs.reopen();
        tracing::info!(
            "SIGHUP: opening the log file again; certificates of listeners are read when this node leads"
        );
        own_sessions.iter().for_each(|own| own.reload());
        // What is wrong with those of links is logged where it is found.
        let _ = link_tls.as_ref().map(|tls| tls.reload());
    });
    // The broker opens it next, and one that stops leaves none behind.
    control.stop();
    let Some(duty) = duty.flatten() else {
        if let Some(supervisor) = supervisor {
            supervisor.is_stopping();
        }
        if let Some(own) = &own_sessions {
            signals.waits_unless_stopped(own.close("shutdown"));
        }
        signals.waits_unless_stopped(leave(&handle, thread));
        signals.leave();
        tracing::info!("stopped");
        return Ok(());
    };
    let duty = match duty {
        Ok(duty) => duty,
        Err(Err(why)) => anyhow::bail!(why),
        Err(Ok(why)) => {
            return handle.begin_anew(logs, &format!("the sessions of this node are over: {why}"));
        }
    };
    if let Duty::End(why) = duty {
        anyhow::bail!(why);
    }
    // The broker binds these ports next, and serves who waits for it.
    let Some(waited) = signals.waits_unless_stopped(standby.stop()) else {
        signals.leave();
        return Ok(());
    };
    for (listener, arrival) in waited {
        bringers.bring(listener, arrival);
    }
    let Some(logs_lent) = signals.waits_unless_stopped(handle.lend()) else {
        signals.leave();
        return Ok(());
    };
    let Some(logs_lent) = logs_lent else {
        tell_own(&mut signals, own_sessions.as_ref());
        return handle.begin_anew(logs, LEADS_NO_MORE);
    };
    let (terms, logs_lent): (Vec<u64>, Vec<NodeLog>) = logs_lent.into_iter().unzip();
    let config = loaded.config.clone();
    let names = Arc::clone(&handle.names);
    let has_sessions = config.cluster.sessions == Sessions::Own;
    // Sessions of other nodes are over with this leader: what they had counts for none after it.
    let relays_in = terms.first().copied().filter(|_| !has_sessions);
    let led = Led { handle: handle.clone(), thread, link_tls: link_tls.clone(), telling };
    let reading = signals.runtime.spawn_blocking(move || {
        let copied = (names.take(), relays_in);
        let stored = read(&config, &basis, logs_lent, copied, &waker)?;
        let mut options = basis.with(stored, &config, started)?;
        // No record of a log that has copies elsewhere is in another log.
        options.settings.embed_bytes_below = u64::MAX;
        Ok::<_, anyhow::Error>(options)
    });
    let read = async {
        tokio::select! {
            read = reading => Some(read),
            _ = handle.is_not(&Duty::Lead) => None,
        }
    };
    let Some(read) = signals.waits_unless_stopped(read) else {
        signals.leave();
        return Ok(());
    };
    let Some(read) = read else {
        tell_own(&mut signals, own_sessions.as_ref());
        return handle.begin_anew(logs, LEADS_NO_MORE);
    };
    let mut options = read.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))?;
    options.about.config_files.clone_from(&loaded.files);
    options.about.logs = logs.clone();
    options.members = Some(handle.changes());
    options.own_sessions = own_sessions;
    options.remote_sessions = has_sessions.then_some(terms);
    (options.led, options.views, options.arrivals) = (Some(led), Some(views), Some(arrivals));
    run(options, signals, fronts.broker, give_back)
}

/// Tells clients of this node's own sessions to go, as another node leads and the process begins anew.
fn tell_own(signals: &mut Signals, own: Option<&Arc<OwnSessions>>) {
    if let Some(own) = own {
        own.hang_up();
        // Nobody waits for more if the process is asked to stop meanwhile.
        let _ = signals.waits_unless_stopped(own.close("another node leads the cluster"));
    }
}

/// A node that knows the others.
struct Joined {
    basis: Basis,
    waker: Arc<Waker>,
    handle: Handle,
    thread: ClusterThread,
    links: Links,
}

/// Opens what the data directory has, and begins to speak with the others.
fn join(
    config: &Config,
    formation: Formation,
    started: Instant,
    bringers: Bringers,
) -> anyhow::Result<Joined> {
    let basis = Basis::of(config)?;
    let waker = Arc::new(Waker::new(Room::of(&basis.data_dir)));
    let (handle, thread, links) =
        driver::start(config, formation, &basis, started, &waker, bringers)?;
    Ok(Joined { basis, waker, handle, thread, links })
}

/// The one line that says that clients may come.
fn announce(standby: &Standby, started: Instant, basis: &Basis, own: &str) {
    let listeners = standby.listeners().iter();
    let listeners: Vec<_> = listeners.map(|it| format!("{} {}", it.protocol, it.address)).collect();
    tracing::info!(
        node = own,
        listeners = listeners.join(", "),
        started_in_ms = started.elapsed().as_millis() as u64,
        data_dir = %basis.data_dir.display(),
        "Leveret {} stands by: what clients ask goes to the node that leads",
        env!("CARGO_PKG_VERSION"),
    );
}

/// The names that are agreed upon, and the logs of the shards. `relays_in`: no node has sessions in this term of the names.
fn read(
    config: &Config,
    basis: &Basis,
    logs: Vec<NodeLog>,
    (copied, relays_in): (Option<TakenNames>, Option<u64>),
    waker: &Arc<Waker>,
) -> anyhow::Result<Stored> {
    let begun = Instant::now();
    let mut logs = logs.into_iter();
    let names = logs.next().context("the cluster has no group of names")?;
    let shards: Vec<NodeLog> = logs.collect();
    let were_copied = copied.is_some();
    let (mut meta, mut topology) = match copied {
        Some((copy, mut topology)) => {
            let meta = Meta::take_over(names, copy, &mut topology);
            (meta.context("the copy of the names cannot be gone on with")?, topology)
        }
        None => read_names(config, names, Homes::among(shards.len() as u32), waker)?,
    };
    tracing::info!(ms = begun.elapsed().as_millis() as u64, were_copied, "the names are here");
    if let Some(term) = relays_in.filter(|_| !meta.is_new()) {
        meta.begin_term(term);
        // The names below are written behind it, and waited for.
        meta.note_term(Vec::new(), &mut topology)?;
    }
    // Definitions are for the first one that leads: what was changed since stays, whoever leads.
    add_names(config, false, &mut meta, &mut topology, waker)?;
    // Another node may have delivered any of them.
    let seen_below = vec![Offset::MAX; shards.len()];
    let orphans = Orphans::of(Path::new(&basis.data_dir));
    Ok(Stored { meta, topology, shards, seen_below, orphans, waker: Arc::clone(waker) })
}
