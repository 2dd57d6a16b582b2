//! The metrics' sockets, and what each page cost.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{HeaderValue, Method, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use leveret_config::options::PrometheusOptions;
use leveret_server::cluster::view::Views;
use leveret_server::locks::{Rank, Ranked};

use tokio::task::JoinSet;

use crate::conversation::converse;
use crate::doors::Door;
use crate::front::Ended;
use crate::http::{Login, Peer};
use crate::places::ConnectionPlace;
use crate::room::Held;
use crate::stats::Collector;

use super::page::{Endpoint, Filter, PageFacts, Pages, Shown};
use super::query::filter;
use super::text::{Kind, Text, labels};
use super::under_way::ScrapesUnderWay;
use crate::http::stream::{self, Chunks, Cut};

const CONTENT_TYPE: &str = "text/plain; version=0.0.4";

/// Statistics that are older are taken anew.
const FRESH: Duration = Duration::from_secs(1);

/// Longest time that a page is written for: nothing that scrapes waits so long.
const WHOLE: Duration = Duration::from_secs(120);

/// When to try again who is told that there are too many pages, in seconds.
const RETRY_S: u16 = 5;

/// What pages are made with.
#[derive(Debug)]
struct Metrics {
    stats: Arc<Collector>,
    /// Of a node of a cluster.
    views: Option<Views>,
    options: PrometheusOptions,
    /// Pages written so far.
    scrapes: Ranked<Vec<Scrapes>>,
    /// Pages of each object that are being written.
    under_way: ScrapesUnderWay,
}

/// Pages of one kind.
#[derive(Clone, Copy, Debug)]
struct Scrapes {
    registry: &'static str,
    count: u64,
    took: Duration,
    bytes: u64,
}

/// Answers until `ended`.
pub(crate) async fn serve(
    doors: Vec<Door>,
    options: PrometheusOptions,
    stats: Arc<Collector>,
    views: Option<Views>,
    ended: Ended,
) {
    let scrapes = Ranked::new(Rank::Above, Vec::new());
    let under_way = ScrapesUnderWay::default();
    let metrics = Arc::new(Metrics { stats, views, options, scrapes, under_way });
    let mut serving = JoinSet::new();
    for door in doors {
        serving.spawn(serve_door(door, Arc::clone(&metrics), ended.clone()));
    }
    while serving.join_next().await.is_some() {}
}

async fn serve_door(mut door: Door, metrics: Arc<Metrics>, mut ended: Ended) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = ended.comes() => break,
            Some(_) = connections.join_next() => {}
            (socket, peer, place) = door.accept() => {
                let (metrics, own) = (Arc::clone(&metrics), Arc::clone(&place));
                let answer = move |request| {
                    let (metrics, place) = (Arc::clone(&metrics), Arc::clone(&own));
                    async move { answer(metrics, peer, &place, request).await }
                };
                connections.spawn(converse(socket, Some(place), peer, answer, ended.clone()));
            }
        }
    }
    drop(door);
    while connections.join_next().await.is_some() {}
}

async fn answer(
    metrics: Arc<Metrics>,
    peer: SocketAddr,
    place: &ConnectionPlace,
    request: Request<Body>,
) -> Response {
    if metrics.options.asks_password {
        let login = Login::of(request.headers(), metrics.stats.node(), Peer::Network(peer)).await;
        if let Err(refused) = login.and_then(|login| login.must_monitor()) {
            return refused.into_response();
        }
        place.knows();
    }
    let endpoint = match metrics.endpoint(request.uri().path()) {
        Ok(endpoint) => endpoint,
        Err(refused) => return refused.into_response(),
    };
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let allow = [(header::ALLOW, "GET, HEAD")];
        return (StatusCode::METHOD_NOT_ALLOWED, allow, "only GET").into_response();
    }
    let filter = match filter(request.uri().query().unwrap_or_default()) {
        Ok(filter) => filter,
        Err(text) => return (StatusCode::BAD_REQUEST, text).into_response(),
    };
    let mut held = Held::nothing(metrics.stats.node(), "");
    let scrape = match endpoint.is_of_each() {
        false => None,
        true => match metrics.under_way.enter(peer.ip()).await {
            Some(scrape) if held.take(Shown::bytes(&metrics.stats)).await => Some(scrape),
            _ => return busy(),
        },
    };
    metrics.stats.refresh(FRESH).await;
    let shown = match Shown::of(&metrics.stats, endpoint, &filter).await {
        Ok(shown) => shown,
        Err(text) => return (StatusCode::BAD_REQUEST, text).into_response(),
    };
    let page = stream::made(|to| async move {
        let made = metrics.page(endpoint, filter, (shown, held), to);
        tokio::time::timeout(WHOLE, made).await.map_err(|_| Cut)?
    });
    let mut response = Response::new(Body::new(page.keeping(scrape)));
    let kind = HeaderValue::from_static(CONTENT_TYPE);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// Too many pages of each object are under way.
fn busy() -> Response {
    let later = [(header::RETRY_AFTER, HeaderValue::from(RETRY_S))];
    let text = "too many pages of each object are being read; try again later\n";
    (StatusCode::SERVICE_UNAVAILABLE, later, text).into_response()
}

impl Metrics {
    fn endpoint(&self, path: &str) -> Result<Endpoint, (StatusCode, &'static str)> {
        let not_found = (StatusCode::NOT_FOUND, "Not Found");
        let rest = path.strip_prefix(&*self.options.path).ok_or(not_found)?;
        match rest.trim_end_matches('/') {
            "" if self.options.return_per_object_metrics => Ok(Endpoint::PerObject),
            "" | "/default" => Ok(Endpoint::Aggregated),
            "/per-object" => Ok(Endpoint::PerObject),
            "/detailed" => Ok(Endpoint::Detailed),
            "/memory-breakdown" => Ok(Endpoint::MemoryBreakdown),
            rest if rest.starts_with('/') => Err((StatusCode::NOT_FOUND, "Unknown Registry")),
            _ => Err(not_found),
        }
    }

    /// Writes a page and sends it while it does.
    async fn page(
        self: Arc<Self>,
        endpoint: Endpoint,
        filter: Filter,
        (shown, held): (Shown, Held),
        to: Chunks,
    ) -> Result<(), Cut> {
        let since = Instant::now();
        let node = self.stats.node();
        let attempts = node.logins.attempts().by_protocol().to_vec();
        let (stats, cluster_name) =
            (Arc::clone(&self.stats), (&*node.settings.cluster_name).into());
        let view = self.views.as_ref().map(|views| Arc::clone(&views.borrow()));
        let source = PageFacts { stats, cluster_name, view, attempts };
        let mut pages = Pages::new(source, shown, held, to);
        pages.write(endpoint, &filter).await?;
        let bytes = pages.finish(|text| self.scrapes(endpoint, text)).await?;
        self.count(endpoint, since.elapsed(), bytes);
        Ok(())
    }

    fn count(&self, endpoint: Endpoint, took: Duration, bytes: usize) {
        let registry = registry(endpoint);
        let mut all = self.scrapes.lock();
        if !all.iter().any(|scrapes| scrapes.registry == registry) {
            all.push(Scrapes { registry, count: 0, took: Duration::ZERO, bytes: 0 });
        }
        for scrapes in all.iter_mut().filter(|scrapes| scrapes.registry == registry) {
            scrapes.count += 1;
            scrapes.took += took;
            scrapes.bytes += bytes as u64;
        }
    }

    /// What the pages before this one cost.
    fn scrapes(&self, endpoint: Endpoint, text: &mut Text) {
        let all = self.scrapes.lock();
        let before = all.iter().find(|scrapes| scrapes.registry == registry(endpoint)).copied();
        let Some(Scrapes { registry, count, took, bytes }) = before else { return };
        let labels = labels(&[("registry", registry), ("content_type", CONTENT_TYPE)]);
        let name = "telemetry_scrape_duration_seconds";
        text.family(name, Kind::Summary, "Scrape duration");
        text.sample(&format!("{name}_count"), &labels, count);
        text.sample(&format!("{name}_sum"), &labels, took.as_secs_f64());
        let name = "telemetry_scrape_size_bytes";
        text.family(name, Kind::Summary, "Scrape size, not encoded");
        text.sample(&format!("{name}_count"), &labels, count);
        text.sample(&format!("{name}_sum"), &labels, bytes);
    }
}

/// RabbitMQ's word for a kind of page.
const fn registry(endpoint: Endpoint) -> &'static str {
    match endpoint {
        Endpoint::Aggregated => "default",
        other => other.name(),
    }
}
