//! Metrics for Prometheus: RabbitMQ's names, and some of our own.
//!
//! - `/metrics`: sums. `/metrics/per-object`: each queue, channel, connection and exchange.
//!   `/metrics/detailed?family=..&vhost=..&queue=..`: what is asked for. `/metrics/memory-breakdown`.
//! - [`families`]: the table of RabbitMQ's metrics; [`global`]: its `rabbitmq_global_*`, sizes, alarms;
//!   [`own`]: ours. [`page`]: puts them together. [`text`]: the format.
//!
//! A page is made of the latest statistics, or of new ones when they are older than a second.

mod families;
mod global;
mod own;
mod page;
mod text;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use leveret_config::options::PrometheusOptions;
use percent_encoding::percent_decode_str;

use crate::doors::Door;
use crate::front::Ended;
use crate::stats::Collector;
use page::{Endpoint, Filter, Pages, Source};
use text::{Kind, Text, labels};

const CONTENT_TYPE: &str = "text/plain; version=0.0.4";

/// Statistics that are older are taken anew.
const FRESH: Duration = Duration::from_secs(1);

/// Longest pattern for names of queues, in bytes, as in RabbitMQ.
const QUEUE_PATTERN_MAX: usize = 2000;

/// What pages are made with.
#[derive(Debug)]
struct Metrics {
    stats: Arc<Collector>,
    options: PrometheusOptions,
    /// Pages written so far.
    scrapes: Mutex<Vec<Scrapes>>,
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
    ended: Ended,
) {
    let metrics = Arc::new(Metrics { stats, options, scrapes: Mutex::default() });
    let router = Router::new().fallback(answer).with_state(metrics);
    let mut serving = tokio::task::JoinSet::new();
    for door in doors {
        let mut ended = ended.clone();
        let served = axum::serve(door, router.clone());
        let served = served.with_graceful_shutdown(async move { ended.comes().await });
        // It never fails: what fails is one connection.
        serving.spawn(async move { drop(served.await) });
    }
    while serving.join_next().await.is_some() {}
}

async fn answer(State(metrics): State<Arc<Metrics>>, request: Request) -> Response {
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
    let page = metrics.page(endpoint, &filter).await;
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], page).into_response()
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

    async fn page(&self, endpoint: Endpoint, filter: &Filter) -> String {
        let snapshot = self.stats.fresh(FRESH).await;
        let since = Instant::now();
        let (node, about) = (self.stats.node(), self.stats.about());
        let mut text = Text::default();
        {
            let topology = node.topology();
            let source = Source {
                snapshot: &snapshot,
                topology: &topology,
                node_name: &about.node_name,
                cluster_name: &node.settings.cluster_name,
                cluster_id: &about.node_name,
                product: (&about.product_name, &about.product_version),
            };
            Pages::new(source, endpoint, filter).write(endpoint, filter, &mut text);
        }
        self.scrapes(endpoint, &mut text);
        let page = text.finish();
        self.count(endpoint, since.elapsed(), page.len());
        page
    }

    fn count(&self, endpoint: Endpoint, took: Duration, bytes: usize) {
        let registry = registry(endpoint);
        let mut all = self.scrapes.lock().unwrap_or_else(PoisonError::into_inner);
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
        let all = self.scrapes.lock().unwrap_or_else(PoisonError::into_inner);
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

/// Reads `family=..&vhost=..&queue=..`.
fn filter(query: &str) -> Result<Filter, String> {
    let mut filter = Filter::default();
    let mut pattern: Option<String> = None;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = value.replace('+', " ");
        let value = percent_decode_str(&value).decode_utf8_lossy().into_owned();
        match name {
            "family" => filter.families.push(value),
            "vhost" => filter.vhosts.get_or_insert_default().push(value),
            "queue" if pattern.is_some() => {
                return Err("Only one 'queue' query parameter is allowed".to_owned());
            }
            "queue" => pattern = Some(value),
            _ => {}
        }
    }
    let Some(pattern) = pattern.filter(|pattern| !pattern.is_empty()) else { return Ok(filter) };
    if pattern.len() > QUEUE_PATTERN_MAX {
        return Err("'queue' regex too long".to_owned());
    }
    let regex = fancy_regex::Regex::new(&pattern);
    filter.queue = Some(regex.map_err(|error| format!("Invalid 'queue' regex: {error}"))?);
    Ok(filter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries() {
        let found =
            filter("family=queue_metrics&family=x&vhost=%2F&vhost=a+b&queue=%5Eq&y").unwrap();
        assert_eq!(found.families, ["queue_metrics", "x"]);
        assert_eq!(found.vhosts.as_deref(), Some(&["/".to_owned(), "a b".to_owned()][..]));
        assert!(found.queue.is_some_and(|queue| queue.is_match("q1").unwrap()));
        assert!(filter("").unwrap().vhosts.is_none());
        for bad in ["queue=(", "queue=a&queue=b", &format!("queue={}", "a".repeat(2001))] {
            assert!(filter(bad).is_err(), "{bad}");
        }
    }
}
