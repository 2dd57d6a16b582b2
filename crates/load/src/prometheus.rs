//! The figures of a run for Prometheus, under PerfTest's names.
//!
//! A page is made at the end of each interval; who asks meanwhile gets the last one. Rates and percentiles
//! are those of that interval, counts and sums those of the whole run.

use std::fmt::Write as _;
use std::net::{Ipv6Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use axum::Router;
use axum::http::header;
use axum::response::IntoResponse as _;
use axum::routing::get;

use crate::args::MetricsArgs;
use crate::args::values::{Pair, plain};
use crate::outcome::Interval;
use crate::plan::{Plan, Rate};
use crate::stats::{Counter, Percentiles};

const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The rates, with the names they have here.
const RATES: [(&str, Counter); 5] = [
    ("published", Counter::Published),
    ("confirmed", Counter::Confirmed),
    ("nacked", Counter::Nacked),
    ("returned", Counter::Returned),
    ("consumed", Counter::Consumed),
];

/// In a second.
const NANOSECONDS: f64 = 1e9;

/// A page that is served while the run goes on.
#[derive(Debug)]
pub(crate) struct Prometheus {
    page: Arc<Mutex<String>>,
    writer: Writer,
}

/// Makes pages.
#[derive(Debug)]
struct Writer {
    prefix: String,
    /// In every line, as they stand between the braces.
    tags: String,
    /// Lines that do not change.
    fixed: String,
    latency: Sums,
    confirm_latency: Sums,
    confirm_size: Sums,
}

/// Over the whole run.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    count: u64,
    /// Seconds, or confirms.
    sum: f64,
}

impl Prometheus {
    /// Serves pages, if that is asked for.
    pub(crate) fn start(args: &MetricsArgs, plan: &Plan, line: &str) -> Result<Option<Self>> {
        if !args.metrics_prometheus {
            return Ok(None);
        }
        let writer = Writer::new(args, plan, line);
        let page = Arc::new(Mutex::new(writer.page(&[], None)));
        let address = SocketAddr::from((Ipv6Addr::UNSPECIFIED, args.metrics_prometheus_port));
        let listener = TcpListener::bind(address)
            .or_else(|_| TcpListener::bind(("0.0.0.0", args.metrics_prometheus_port)))
            .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
            .with_context(|| {
                format!("--metrics-prometheus-port {}", args.metrics_prometheus_port)
            })?;
        let path = format!("/{}", args.metrics_prometheus_endpoint.trim_start_matches('/'));
        let served = page.clone();
        std::thread::Builder::new()
            .name("metrics".into())
            .spawn(move || serve(listener, &path, served))
            .context("starting the thread of --metrics-prometheus")?;
        Ok(Some(Self { page, writer }))
    }

    /// The page of an interval.
    pub(crate) fn interval(&mut self, interval: &Interval) {
        self.writer.add(interval);
        let rates = RATES.map(|(name, what)| (name, interval.rate(what)));
        let page = self.writer.page(&rates, Some(interval));
        *self.page.lock().unwrap_or_else(PoisonError::into_inner) = page;
    }
}

/// Answers until the process ends; whoever cannot be answered is no reason to stop a measurement.
fn serve(listener: TcpListener, path: &str, page: Arc<Mutex<String>>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let Ok(runtime) = runtime else { return };
    runtime.block_on(async {
        let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
        let answer = move || {
            let text = page.lock().unwrap_or_else(PoisonError::into_inner).clone();
            async move { ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response() }
        };
        let _ = axum::serve(listener, Router::new().route(path, get(answer))).await;
    });
}

impl Writer {
    fn new(args: &MetricsArgs, plan: &Plan, line: &str) -> Self {
        let tag =
            |Pair(key, value): &Pair| format!("{}=\"{}\",", word(key), escaped(&plain(value)));
        let mut writer = Self {
            prefix: word(&args.metrics_prefix),
            tags: args.metrics_tags.iter().map(tag).collect(),
            fixed: String::new(),
            latency: Sums::default(),
            confirm_latency: Sums::default(),
            confirm_size: Sums::default(),
        };
        let mut fixed = String::new();
        let (publishing, consuming) = (&plan.publishing, &plan.consuming);
        let producers = (publishing.producers * publishing.channels) as f64;
        let consumers = (consuming.consumers * consuming.channels) as f64;
        if let Some(Rate::Fixed(rate)) = publishing.rate {
            writer.gauge(&mut fixed, "expected_published", "", rate * producers);
        }
        if let Some(rate) = consuming.rate {
            writer.gauge(&mut fixed, "expected_consumed", "", rate * consumers);
        }
        for Pair(key, value) in &args.exposed_metrics {
            writer.gauge(&mut fixed, &word(key), "", plain(value).parse().unwrap_or(f64::NAN));
        }
        if args.metrics_command_line_arguments {
            let label = format!("command_line=\"{}\",", escaped(line));
            writer.gauge(&mut fixed, "args", &label, 1.0);
        }
        writer.fixed = fixed;
        writer
    }

    fn add(&mut self, interval: &Interval) {
        let sums = [
            (&mut self.latency, &interval.latency),
            (&mut self.confirm_latency, &interval.confirm_latency),
        ];
        for (sums, latency) in sums {
            if let Some(latency) = latency {
                sums.count += latency.count;
                sums.sum += latency.mean / NANOSECONDS * latency.count as f64;
            }
        }
        self.confirm_size.count += interval.confirm_size.map_or(0, |it| it.count);
        // A histogram's mean of large numbers is not exact.
        self.confirm_size.sum += interval.totals.get(Counter::Confirmed) as f64;
    }

    fn page(&self, rates: &[(&str, f64)], interval: Option<&Interval>) -> String {
        let mut page = String::new();
        for (name, rate) in rates {
            self.gauge(&mut page, name, "", *rate);
        }
        let of =
            |percentiles: fn(&Interval) -> Option<&Percentiles>| interval.and_then(percentiles);
        let summaries = [
            (
                "latency_seconds",
                "message latency",
                of(|it| it.latency.as_ref()),
                self.latency,
                NANOSECONDS,
            ),
            (
                "confirm_latency_seconds",
                "confirm latency",
                of(|it| it.confirm_latency.as_ref()),
                self.confirm_latency,
                NANOSECONDS,
            ),
            (
                "confirm_size",
                "number of confirms received per confirm frame",
                of(|it| it.confirm_size.as_ref()),
                self.confirm_size,
                1.0,
            ),
        ];
        for (name, help, of_interval, sums, unit) in summaries {
            self.summary(&mut page, (name, help), of_interval, sums, unit);
        }
        page + &self.fixed
    }

    fn gauge(&self, page: &mut String, name: &str, labels: &str, value: f64) {
        let prefix = &self.prefix;
        let _ = writeln!(page, "# TYPE {prefix}{name} gauge");
        self.sample(page, name, labels, value);
    }

    /// A summary as PerfTest's: percentiles and the longest of the last interval, count and sum of all.
    fn summary(
        &self,
        page: &mut String,
        (name, help): (&str, &str),
        of_interval: Option<&Percentiles>,
        sums: Sums,
        unit: f64,
    ) {
        let prefix = &self.prefix;
        let _ = writeln!(page, "# HELP {prefix}{name} {help}\n# TYPE {prefix}{name} summary");
        let Percentiles { p50, p75, p95, p99, max, .. } = of_interval.copied().unwrap_or_default();
        for (quantile, value) in [("0.5", p50), ("0.75", p75), ("0.95", p95), ("0.99", p99)] {
            let label = format!("quantile=\"{quantile}\",");
            self.sample(page, name, &label, value as f64 / unit);
        }
        self.sample(page, &format!("{name}_count"), "", sums.count as f64);
        self.sample(page, &format!("{name}_sum"), "", sums.sum);
        self.gauge(page, &format!("{name}_max"), "", max as f64 / unit);
    }

    fn sample(&self, page: &mut String, name: &str, labels: &str, value: f64) {
        let (prefix, tags) = (&self.prefix, &self.tags);
        let labels = format!("{tags}{labels}");
        let labels = labels.trim_end_matches(',');
        let _ = match labels {
            "" => writeln!(page, "{prefix}{name} {value}"),
            labels => writeln!(page, "{prefix}{name}{{{labels}}} {value}"),
        };
    }
}

/// A name as Prometheus allows it.
fn word(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

/// A value of a label.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Options;
    use crate::stats::{Tally, Totals};

    #[test]
    fn names_are_perftests() {
        let line = "-mpr -mt env=test,run=1 -mcla -em limit=5 -r 100 -x 3";
        let options = Options::read(line.split(' ').map(Into::into)).unwrap();
        let plan = Plan::new(&options).unwrap();
        let mut writer = Writer::new(&options.metrics, &plan, "-x 3 -k \"a\"");
        let tally = Tally::default();
        tally.add(Counter::Published, 500);
        tally.add(Counter::Confirmed, 7);
        let latency = Percentiles { count: 4, mean: 2e9, p99: 3_000_000_000, ..Default::default() };
        let interval = Interval {
            end_s: 1.0,
            length_s: 2.0,
            totals: Totals::of([&tally]),
            latency: Some(latency),
            confirm_latency: None,
            confirm_size: Some(Percentiles { count: 2, p50: 2, ..Default::default() }),
            broker_rss: None,
        };
        writer.add(&interval);
        writer.add(&interval);
        let page =
            writer.page(&[("published", interval.rate(Counter::Published))], Some(&interval));
        let tags = "env=\"test\",run=\"1\"";
        for line in [
            "# TYPE perftest_published gauge".to_owned(),
            format!("perftest_published{{{tags}}} 250"),
            "# TYPE perftest_latency_seconds summary".to_owned(),
            format!("perftest_latency_seconds{{{tags},quantile=\"0.99\"}} 3"),
            format!("perftest_latency_seconds_count{{{tags}}} 8"),
            format!("perftest_latency_seconds_sum{{{tags}}} 16"),
            format!("perftest_confirm_latency_seconds_count{{{tags}}} 0"),
            "# TYPE perftest_confirm_size summary".to_owned(),
            format!("perftest_confirm_size{{{tags},quantile=\"0.5\"}} 2"),
            format!("perftest_confirm_size_count{{{tags}}} 4"),
            format!("perftest_confirm_size_sum{{{tags}}} 14"),
            format!("perftest_expected_published{{{tags}}} 300"),
            format!("perftest_limit{{{tags}}} 5"),
            format!("perftest_args{{{tags},command_line=\"-x 3 -k \\\"a\\\"\"}} 1"),
        ] {
            assert!(page.lines().any(|got| got == line), "{line} is not in\n{page}");
        }
    }
}
