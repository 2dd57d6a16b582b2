//! Opens the doors, and runs what comes in through them on a thread of its own.

use std::net::TcpListener as StdListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use leveret_config::options::{ManagementOptions, PrometheusOptions, TracingOptions};
use leveret_config::tls::TlsSettings;
use leveret_config::{Config, DEFINITIONS_MAX, files};
use leveret_server::cluster::arrivals::{Arrival, RelayedListener};
use leveret_server::front::{FrontEnds, Inside, Listener, OpenFrontEnds, Running};
use leveret_server::runner::{install_runner, keep_working, rest};
use leveret_server::tls::Tls;
use tokio::runtime::Builder;
use tokio::sync::mpsc::Receiver;
use tokio::sync::watch;

use crate::control;
use crate::doors::{self, Door};
use crate::http::{self, App, Entrance};
use crate::metrics;
use crate::ops::Ops;
use crate::signin::SignIn;
use crate::stats::Collector;
use crate::traces::Traces;
use crate::watched::Pace;

/// How long requests under way have to end when the node stops.
const STOP_PATIENCE: Duration = Duration::from_secs(2);

/// What opens the control socket and the management API as this configuration says.
pub fn front(config: &Config) -> OpenFrontEnds {
    let socket = files::ctl_socket(config);
    let options = config.management.enabled.then(|| config.management.clone());
    let mut signin = config.signin.clone();
    signin.disable_basic_auth |= config.management.disable_basic_auth;
    let signin = SignIn::new(&signin, &config.auth_oauth2);
    let metrics = config.prometheus.enabled.then(|| config.prometheus.clone());
    let tls = Encrypted {
        http: config.management_tls.settings(),
        metrics: config.prometheus_tls.settings(),
    };
    let interval = Duration::from_millis(config.log.statistics_interval.get());
    let traces = (config.tracing.clone(), files::trace_dir(config));
    Box::new(move |inside| {
        let options = options.map(|options| (options, signin));
        open(inside, socket, options, metrics, tls, interval, traces)
    })
}

fn open(
    inside: Inside<'_>,
    socket: PathBuf,
    options: Option<(ManagementOptions, SignIn)>,
    metrics: Option<PrometheusOptions>,
    tls: Encrypted,
    interval: Duration,
    (tracing, trace_dir): (TracingOptions, PathBuf),
) -> anyhow::Result<FrontEnds> {
    let Inside { node, mut about, stop, give_back, mut arrivals, views, members } = inside;
    let mut of = |listener| arrivals.as_mut().and_then(|all| all.take(listener));
    let control = control::bind(&socket)?;
    let mut listeners = Vec::new();
    let mut http = None;
    if let Some((options, signin)) = options {
        let what = "the management API";
        let bound = doors::bind(options.ip.as_deref(), options.port, what, "management.tcp")?;
        let address = bound.local_addr()?;
        listeners.push(Listener { protocol: "http", purpose: "HTTP API", address });
        let mut all = vec![(bound, None, of(RelayedListener::Http))];
        if let Some(port) = options.ssl_port {
            let bound = doors::bind(options.ssl_ip.as_deref(), port, what, "management.ssl")?;
            let (address, purpose) = (bound.local_addr()?, "HTTP API over TLS (HTTPS)");
            listeners.push(Listener { protocol: "https", purpose, address });
            let tls = Some(doors::tls(tls.http, &node)?);
            all.push((bound, tls, of(RelayedListener::Https)));
        }
        http = Some((all, options, signin));
    }
    let mut scraped = None;
    if let Some(options) = metrics {
        let what = "metrics";
        let bound = doors::bind(options.ip.as_deref(), options.port, what, "prometheus.tcp")?;
        let address = bound.local_addr()?;
        listeners.push(Listener {
            protocol: "http/prometheus",
            purpose: "Prometheus exporter API over HTTP",
            address,
        });
        let mut all = vec![(bound, None, of(RelayedListener::Metrics))];
        if let Some(port) = options.ssl_port {
            let bound = doors::bind(options.ssl_ip.as_deref(), port, what, "prometheus.ssl")?;
            let address = bound.local_addr()?;
            let purpose = "Prometheus exporter API over TLS (HTTPS)";
            listeners.push(Listener { protocol: "https/prometheus", purpose, address });
            let tls = Some(doors::tls(tls.metrics, &node)?);
            all.push((bound, tls, of(RelayedListener::MetricsTls)));
        }
        scraped = Some((all, options));
    }
    let of_control = of(RelayedListener::Control);
    about.listeners.extend_from_slice(&listeners);
    let stats = Arc::new(Collector::new(Arc::clone(&node), about.clone(), interval));
    let traces = Traces::new(Arc::clone(&node), tracing, trace_dir);
    let ops = Arc::new(Ops { node, about, stop, stats, views, members, traces });
    let (end, ended) = watch::channel(false);
    let ended = Ended(ended);
    // After all that can fail: this is a runtime's thread, where another must not be dropped.
    let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
    ops.node.watched.ask_management(runtime.handle().clone());
    let thread = std::thread::Builder::new().name("management".to_owned()).spawn(move || {
        let (more, worked) = install_runner(Arc::clone(&ops.node));
        runtime.block_on(async move {
            tokio::spawn(keep_working(more));
            tokio::spawn(rest(Arc::clone(&ops.node), worked, give_back));
            tokio::spawn(Arc::clone(&ops.stats).run());
            let mut running = tokio::task::JoinSet::new();
            let (traces, mut at_end) = (Arc::clone(&ops.traces), ended.clone());
            let of_traces = tokio::spawn(async move {
                at_end.comes().await;
                traces.stop_all().await;
            });
            if let Some((bound, options)) = scraped {
                let stats = Arc::clone(&ops.stats);
                let open = opened(bound, "metrics", Pace::METRICS).collect();
                running.spawn(metrics::serve(
                    open,
                    options,
                    stats,
                    ops.views.clone(),
                    ended.clone(),
                ));
            }
            match control::Door::new(control, of_control) {
                Ok(door) => {
                    let (ops, options) = (Arc::clone(&ops), for_operator());
                    let requests = http::Requests::default();
                    let app =
                        Arc::new(App { ops, options, signin: SignIn::by_password(), requests });
                    running.spawn(http::serve(Entrance::Local(door), app, ended.clone()));
                }
                Err(error) => tracing::error!(%error, "the control socket cannot be served"),
            }
            if let Some((bound, options, signin)) = http {
                let requests = http::Requests::default();
                let app = Arc::new(App { ops, options, signin, requests });
                for door in opened(bound, "the management API", Pace::API) {
                    let door = Entrance::Network(door);
                    running.spawn(http::serve(door, Arc::clone(&app), ended.clone()));
                }
            }
            let all = async { while running.join_next().await.is_some() {} };
            let late = async {
                ended.clone().comes().await;
                tokio::time::sleep(STOP_PATIENCE).await;
            };
            tokio::select! {
                () = all => {}
                () = late => tracing::warn!("requests of the management API were cut off"),
            }
            // In a bounded time: each tells what its disk did not take.
            let _ = of_traces.await;
        });
        runtime.shutdown_background();
    });
    let thread = thread.context("cannot start the thread of the management API")?;
    Ok(FrontEnds { listeners, running: Box::new(Doors { socket, end, thread }) })
}

/// What the API does on the control socket: nothing there is restricted, whatever holds on the network.
fn for_operator() -> ManagementOptions {
    ManagementOptions { max_body_size: DEFINITIONS_MAX, ..ManagementOptions::default() }
}

/// TLS of the two servers, if they have it.
#[derive(Debug)]
struct Encrypted {
    http: TlsSettings,
    metrics: TlsSettings,
}

/// A listening socket, its TLS, and who comes for it by other nodes.
type Bound = (StdListener, Option<Arc<Tls>>, Option<Receiver<Arrival>>);

/// Listening sockets, in the runtime that is to accept.
fn opened(bound: Vec<Bound>, what: &'static str, pace: Pace) -> impl Iterator<Item = Door> {
    bound.into_iter().filter_map(move |(socket, tls, arrivals)| {
        let door = Door::new(socket, tls, pace, arrivals);
        door.inspect_err(|error| tracing::error!(%error, "{what} cannot be served")).ok()
    })
}

/// Tells when the doors are to be closed.
#[derive(Clone, Debug)]
pub(crate) struct Ended(pub(crate) watch::Receiver<bool>);

impl Ended {
    /// Waits for it.
    pub(crate) async fn comes(&mut self) {
        // An error means that the node is gone, which is an end too.
        let _ = self.0.wait_for(|ended| *ended).await;
    }
}

/// The doors while they are open.
#[derive(Debug)]
pub(crate) struct Doors {
    /// The control socket.
    pub(crate) socket: PathBuf,
    pub(crate) end: watch::Sender<bool>,
    pub(crate) thread: std::thread::JoinHandle<()>,
}

impl Running for Doors {
    fn stop(self: Box<Self>) {
        // Somebody may have removed it; there is nothing to do about it.
        let _ = std::fs::remove_file(&self.socket);
        let _ = self.end.send(true);
        // A panic aborts the process; there is nobody left to tell.
        let _ = self.thread.join();
    }
}
