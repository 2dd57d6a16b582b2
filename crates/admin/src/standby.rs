//! The control socket of a node while another one leads. What is asked of the node itself it answers; everything else it asks the
//! node that leads, over a relay, and gives that answer. While no node leads it answers from its copy of the names what needs nothing
//! else, and says so.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::body::Body;
use axum::http::header::CONNECTION;
use axum::response::IntoResponse as _;
use http_body_util::{BodyExt as _, Limited};
use hyper::client::conn::http1::handshake;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use leveret_config::{Config, Level, Value as _, files};
use leveret_server::cluster::arrivals::RelayedListener;
use leveret_server::front::{About, OpenStandby, Running, Standby};
use leveret_server::proxy::Ends;
use serde_json::{Value, json};
use tokio::runtime::Builder;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::control;
use crate::conversation::converse;
use crate::front::{Doors, Ended};
use crate::http::{self, Answer, Copied, Fault, Peer, logs, needs_only_names};
use crate::ops::system;

/// How long the way to the node that leads may take.
const REACH: Duration = Duration::from_secs(5);

/// How long requests under way have to end when this node is to lead, or stops.
const STOP_PATIENCE: Duration = Duration::from_millis(500);

/// What opens the control socket of this configuration for a node on standby.
pub fn standby(config: &Config) -> OpenStandby {
    let socket = files::ctl_socket(config);
    Box::new(move |inside| open(inside, socket))
}

fn open(inside: Standby, socket: PathBuf) -> anyhow::Result<Box<dyn Running>> {
    let control = control::bind(&socket)?;
    let (end, ended) = watch::channel(false);
    let ended = Ended(ended);
    let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
    let thread = std::thread::Builder::new().name("management".to_owned()).spawn(move || {
        runtime.block_on(async move {
            match control::Door::new(control, None) {
                Ok(door) => serve(door, Arc::new(Inside::of(inside)), ended).await,
                Err(error) => tracing::error!(%error, "the control socket cannot be served"),
            }
        });
        runtime.shutdown_background();
    });
    let thread = thread.context("cannot start the thread of the control socket")?;
    Ok(Box::new(Doors { socket, end, thread }))
}

async fn serve(mut door: control::Door, inside: Arc<Inside>, mut ended: Ended) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = ended.comes() => break,
            Some(_) = connections.join_next() => {}
            (socket, peer) = door.accept() => {
                let inside = Arc::clone(&inside);
                let answer = move |request| answer(Arc::clone(&inside), peer, request);
                connections.spawn(converse(socket, None, peer, answer, ended.clone()));
            }
        }
    }
    drop(door);
    let all = async { while connections.join_next().await.is_some() {} };
    // Those that are late are cut off.
    let _ = timeout(STOP_PATIENCE, all).await;
}

/// What answers need.
struct Inside {
    standby: Standby,
    copied: Copied,
}

impl Inside {
    fn of(standby: Standby) -> Self {
        let (node, about) = (Arc::clone(standby.names.node()), standby.about.clone());
        let copied = Copied::new(node, about, standby.stop.clone(), standby.views.clone());
        Self { standby, copied }
    }
}

impl std::ops::Deref for Inside {
    type Target = Standby;

    fn deref(&self) -> &Standby {
        &self.standby
    }
}

async fn answer(inside: Arc<Inside>, peer: Peer, request: Request<Body>) -> Response<Body> {
    let path = request.uri().path().trim_end_matches('/').to_owned();
    let about = &inside.about;
    let answer = match (request.method(), &*path) {
        (&Method::GET, "/api/version") => {
            let is_led = inside.views.borrow().leader.is_some();
            Ok(Answer::Json(http::version_of(about, is_led)))
        }
        (&Method::GET, "/api/leveret/status") => Ok(Answer::Json(status(&inside))),
        (&Method::GET, "/api/leveret/cluster") => {
            Ok(Answer::Json(http::cluster_of(about, Some(&inside.views.borrow()))))
        }
        (&Method::GET, "/api/config/effective") => Ok(Answer::Json(http::environment_of(about))),
        (&Method::POST, "/api/leveret/stop") => {
            inside.stop.ask(peer.to_string());
            Ok(Answer::Done)
        }
        (&Method::GET, "/api/leveret/log") => {
            let query = http::parse_query(request.uri().query().unwrap_or_default());
            log(about, &query).await
        }
        (&Method::POST, "/api/leveret/log/rotate") => logs::rotate_of(about).await,
        (&Method::PUT, "/api/leveret/log/level") => put_log_level(about, request.into_body()).await,
        (&Method::POST, "/api/leveret/certificates/reload") => match &inside.link_tls {
            // Those of listeners are read when this node leads.
            Some(tls) => tls
                .reload()
                .map(|()| Answer::Done)
                .map_err(|error| Fault::bad(format!("{error:#}"))),
            None => Err(refusal(&inside)),
        },
        (&Method::POST, "/api/leveret/listeners/suspend") => suspend(&inside, true).await,
        (&Method::POST, "/api/leveret/listeners/resume") => suspend(&inside, false).await,
        (method, path) if is_of_one_node(method, path) => Err(refusal(&inside)),
        _ => return forward(&inside, peer, request).await,
    };
    answer.into_response()
}

/// Closes this node's listeners for clients or opens them, and waits until they are.
async fn suspend(inside: &Standby, is_suspended: bool) -> Result<Answer, Fault> {
    inside.suspended.set(is_suspended);
    http::await_listeners(&inside.about.listeners, is_suspended).await
}

/// The last lines of its log.
async fn log(about: &About, query: &[(String, String)]) -> Result<Answer, Fault> {
    let number = |name: &str| {
        let found = query.iter().find(|(own, _)| own == name);
        found.and_then(|(_, value)| value.parse().ok())
    };
    logs::tail_of(about, number("lines"), number("from")).await
}

/// Longest body of a request that is not the leading node's, in bytes.
const BODY_MAX: usize = 64 << 10;

async fn put_log_level(about: &About, body: Body) -> Result<Answer, Fault> {
    let body = Limited::new(body, BODY_MAX)
        .collect()
        .await
        .map_err(|_| Fault::too_large(BODY_MAX as u64))?;
    let body: Value = serde_json::from_slice(&body.to_bytes()).unwrap_or_default();
    let level = Level::read(body["level"].as_str().unwrap_or_default()).map_err(Fault::bad)?;
    about.logs.set_level(level);
    Ok(Answer::Done)
}

/// Whether it changes a node and not what the cluster knows: not to be done to another node than the one that was asked.
fn is_of_one_node(method: &Method, path: &str) -> bool {
    let of_one = [
        "/api/leveret/cluster/hand-over",
        "/api/leveret/watermarks/",
        "/api/leveret/certificates/",
    ];
    !method.is_safe() && of_one.iter().any(|it| path.starts_with(it))
}

fn refusal(inside: &Standby) -> Fault {
    let leader = match &inside.views.borrow().leader {
        Some(leader) => format!(", and {leader} serves its clients: ask that node"),
        None => String::new(),
    };
    Fault::unavailable(format!("{} does not lead the cluster{leader}", inside.about.node_name))
}

/// The node at a glance. What the names and the queues would tell is not among it.
fn status(inside: &Standby) -> Value {
    let (about, relayed) = (&inside.about, inside.totals.now());
    let (files, files_max) = system::open_files();
    let rss = system::resident_bytes();
    json!({
        "node": about.node_name,
        "product_name": about.product_name,
        "product_version": about.product_version,
        "leveret_version": env!("CARGO_PKG_VERSION"),
        "rabbitmq_version": leveret_server::COMPATIBLE_VERSION,
        "pid": std::process::id(),
        "os": system::os(),
        "uptime": about.started.elapsed().as_secs(),
        "is_under_maintenance": inside.suspended.is_set(),
        "active_plugins": about.plugins,
        "data_directory": about.data_dir.display().to_string(),
        "config_files": about.config_files,
        "log_files": about.log_files,
        "alarms": [],
        "memory": {"total": {"rss": rss}, "strategy": "rss", "compared": rss},
        "vm_memory_high_watermark_limit": about.memory_limit,
        "disk_free": system::free_bytes(&about.data_dir),
        "disk_free_limit": about.disk_free_limit,
        "file_descriptors": {"total_used": files, "total_limit": files_max},
        "threads": about.threads,
        "processors": std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        "totals": {"connection_count": relayed.open},
        "relayed": {
            "open": relayed.open,
            "waiting": relayed.waiting,
            "relayed": relayed.relayed,
            "refused": relayed.refused,
            "bytes_from_clients": relayed.bytes_up,
            "bytes_to_clients": relayed.bytes_down,
        },
        "listeners": http::listeners_of(about),
    })
}

/// Asks the node that leads.
async fn forward(inside: &Inside, peer: Peer, request: Request<Body>) -> Response<Body> {
    let leader = {
        let view = inside.views.borrow();
        let nobody = || view.why_not_served().unwrap_or_else(|| "no node leads".to_owned());
        view.leader_id.ok_or_else(nobody)
    };
    let leader = match leader {
        Ok(leader) => leader,
        Err(why) => {
            let age = inside.names.age().filter(|_| needs_only_names(&request));
            return match age {
                Some(age) => inside.copied.answer(peer, request, age, &why).await,
                None => Fault::unavailable(why).into_response(),
            };
        }
    };
    match asked(inside, leader, request).await {
        Ok(response) => response,
        Err(error) => {
            let text = format!("the node that leads the cluster is not reached: {error:#}");
            Fault::unavailable(text).into_response()
        }
    }
}

async fn asked(
    inside: &Standby,
    leader: u64,
    request: Request<Body>,
) -> anyhow::Result<Response<Body>> {
    let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let ends = Ends { source: nowhere, destination: nowhere };
    let way = inside.relay.relay(leader, RelayedListener::Control, ends);
    let stream = timeout(REACH, way).await.context("it does not answer")??;
    // A request is one write.
    let _ = stream.tcp().set_nodelay(true);
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
    // What goes wrong is told to who waits for the answer.
    tokio::spawn(connection);
    let (mut head, body) = sender.send_request(request).await?.into_parts();
    head.headers.remove(CONNECTION);
    Ok(Response::from_parts(head, Body::new(body)))
}
