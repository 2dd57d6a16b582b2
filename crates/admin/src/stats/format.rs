//! Statistics as the API has them: `x` and `x_details: {rate, samples, avg_rate, avg}`.

use leveret_server::disk::IoTotals;
use serde_json::{Map, Value, json};

use super::history::{History, Ms, Range, averages};
use super::names::{CHANNEL, CHURN, DATA, EXCHANGE, LENGTHS, NODE, Names, QUEUE};
use super::snapshot::{
    ChannelEntry, ConnectionEntry, ExchangeEntry, Overview, QueueEntry, VhostEntry,
};
use crate::date::utc_ms;

/// Which samples are wanted, by kind; as in the query of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ranges {
    /// `lengths_age`, `lengths_incr`.
    pub lengths: Option<Range>,
    /// `msg_rates_age`, `msg_rates_incr`.
    pub msg_rates: Option<Range>,
    /// `data_rates_age`, `data_rates_incr`.
    pub data_rates: Option<Range>,
    /// `node_stats_age`, `node_stats_incr`.
    pub node_stats: Option<Range>,
}

/// A longer range is none: a hundred years are more than any node runs, and sums of such times fit.
const SECONDS_MAX: u64 = 100 * 365 * 86_400;

impl Ranges {
    /// From the query of a request that came at `until`. Half a range, or one that is no number, is none, as in RabbitMQ.
    pub fn of_query<'a>(query: impl Iterator<Item = (&'a str, &'a str)>, until: Ms) -> Self {
        let mut found: Map<String, Value> = Map::new();
        for (name, value) in query {
            if let Ok(seconds) = value.parse::<u64>() {
                found.insert(name.to_owned(), json!(seconds));
            }
        }
        let range = |kind: &str| {
            let age_s = found.get(&format!("{kind}_age"))?.as_u64()?;
            let incr_s = found.get(&format!("{kind}_incr"))?.as_u64()?;
            let is_sane = incr_s > 0 && age_s.max(incr_s) <= SECONDS_MAX;
            is_sane.then_some(Range { age_s, incr_s, until })
        };
        Self {
            lengths: range("lengths"),
            msg_rates: range("msg_rates"),
            data_rates: range("data_rates"),
            node_stats: range("node_stats"),
        }
    }

    /// Whether samples are wanted that come each second only while somebody looks.
    pub fn are_fine(&self) -> bool {
        let all = [self.lengths, self.msg_rates, self.data_rates, self.node_stats];
        all.into_iter().flatten().any(|range| range.incr_s < 5)
    }
}

/// Adds a counter and its details.
fn put(
    into: &mut Map<String, Value>,
    name: &str,
    value: Value,
    rate: f64,
    samples: Option<Vec<(u64, u64)>>,
) {
    let mut details = Map::new();
    details.insert("rate".to_owned(), json!(rate));
    if let Some(samples) = samples {
        if let Some((avg_rate, avg)) = averages(&samples) {
            details.insert("avg_rate".to_owned(), json!(avg_rate));
            details.insert("avg".to_owned(), json!(avg));
        }
        let rows = samples
            .into_iter()
            .map(|(timestamp, sample)| json!({"sample": sample, "timestamp": timestamp}));
        details.insert("samples".to_owned(), rows.collect());
    }
    into.insert(name.to_owned(), value);
    into.insert(format!("{name}_details"), Value::Object(details));
}

/// Adds some counters under their names, with details.
pub fn put_all<const N: usize>(
    into: &mut Map<String, Value>,
    names: &Names<N>,
    history: &History<N>,
    range: Option<Range>,
) {
    let values = history.values();
    for (at, name) in names.iter().enumerate() {
        let samples = range.map(|range| history.samples(at, range));
        put(into, name, json!(values[at]), history.rate(at), samples);
    }
}

/// Gives counters that are in a row already their details.
pub fn put_details<const N: usize>(
    into: &mut Map<String, Value>,
    names: &Names<N>,
    history: &History<N>,
    range: Option<Range>,
) {
    for (at, name) in names.iter().enumerate() {
        if let Some(value) = into.get(*name).cloned() {
            let samples = range.map(|range| history.samples(at, range));
            put(into, name, value, history.rate(at), samples);
        }
    }
}

/// The same for counters in the row's `message_stats`.
pub fn put_message_details<const N: usize>(
    into: &mut Map<String, Value>,
    names: &Names<N>,
    history: &History<N>,
    range: Option<Range>,
) {
    if let Some(Value::Object(stats)) = into.get_mut("message_stats") {
        put_details(stats, names, history, range);
    }
}

/// `message_stats`, or none when nothing ever happened, as RabbitMQ shows it.
fn message_stats<const N: usize>(
    names: &Names<N>,
    history: &History<N>,
    range: Option<Range>,
) -> Option<Value> {
    if history.values() == [0; N] {
        return None;
    }
    let mut stats = Map::new();
    put_all(&mut stats, names, history, range);
    Some(Value::Object(stats))
}

/// `idle_since`, which only what rests has.
fn put_idle_since(row: &mut Map<String, Value>, since: Option<Ms>) {
    if let Some(ms) = since {
        row.insert("idle_since".to_owned(), json!(utc_ms(ms)));
    }
}

/// The disk's part of `message_stats`: here no single queue reads or writes.
fn put_disk(stats: &mut Value) {
    if let Value::Object(stats) = stats {
        put(stats, "disk_reads", json!(0), 0.0, None);
        put(stats, "disk_writes", json!(0), 0.0, None);
    }
}

impl QueueEntry {
    /// Rates and samples of a row that has the counts; of one that was not sampled yet there is no entry.
    pub fn put_rates(entry: Option<&Self>, row: &mut Map<String, Value>, ranges: &Ranges) {
        let (no_lengths, no_messages) = Default::default();
        let lengths = entry.map_or(&no_lengths, |entry| &entry.lengths);
        let messages = entry.map_or(&no_messages, |entry| &entry.messages);
        put_details(row, &LENGTHS, lengths, ranges.lengths);
        put_message_details(row, &QUEUE, messages, ranges.msg_rates);
        if let Some(entry) = entry {
            put_idle_since(row, entry.idle_since());
        }
    }
}

impl ChannelEntry {
    /// Rates and samples of a row that has the counts.
    pub fn put_rates(entry: Option<&Self>, row: &mut Map<String, Value>, ranges: &Ranges) {
        let none = History::default();
        let messages = entry.map_or(&none, |entry| &entry.messages);
        put_message_details(row, &CHANNEL, messages, ranges.msg_rates);
        if entry.is_some() {
            put_idle_since(row, messages.idle_since());
        }
    }
}

impl ConnectionEntry {
    /// Rates and samples of a row that has the counts.
    pub fn put_rates(entry: Option<&Self>, row: &mut Map<String, Value>, ranges: &Ranges) {
        let none = History::default();
        put_details(row, &DATA, entry.map_or(&none, |entry| &entry.data), ranges.data_rates);
    }
}

impl ExchangeEntry {
    /// `message_stats` if there are some.
    pub fn put(&self, row: &mut Map<String, Value>, ranges: &Ranges) {
        if let Some(stats) = message_stats(&EXCHANGE, &self.messages, ranges.msg_rates) {
            row.insert("message_stats".to_owned(), stats);
        }
    }
}

impl VhostEntry {
    /// Bytes, `message_stats` if there are some, and rates of the lengths that the row has.
    pub fn put(&self, row: &mut Map<String, Value>, ranges: &Ranges) {
        put_details(row, &LENGTHS, &self.lengths, ranges.lengths);
        put_all(row, &DATA, &self.data, ranges.data_rates);
        if let Some(mut stats) = message_stats(&CHANNEL, &self.messages, ranges.msg_rates) {
            put_disk(&mut stats);
            row.insert("message_stats".to_owned(), stats);
        }
    }
}

impl Overview {
    /// `message_stats`, which is `{}` when nothing ever happened: tools want it to be there.
    pub fn message_stats(&self, ranges: &Ranges) -> Value {
        let stats = message_stats(&CHANNEL, &self.messages, ranges.msg_rates);
        let Some(mut stats) = stats else { return json!({}) };
        put_disk(&mut stats);
        stats
    }

    /// `queue_totals`.
    pub fn queue_totals(&self, ranges: &Ranges) -> Value {
        let mut totals = Map::new();
        put_all(&mut totals, &LENGTHS, &self.lengths, ranges.lengths);
        Value::Object(totals)
    }

    /// `churn_rates`.
    pub fn churn_rates(&self, ranges: &Ranges) -> Value {
        let mut rates = Map::new();
        self.put_churn(&mut rates, ranges);
        Value::Object(rates)
    }

    /// The same in the row of a node.
    pub fn put_churn(&self, row: &mut Map<String, Value>, ranges: &Ranges) {
        put_all(row, &CHURN, &self.churn, ranges.msg_rates);
    }

    /// `object_totals`. Exchanges are the topology's to count.
    pub fn object_totals(&self, exchanges: usize) -> Value {
        json!({
            "connections": self.now.connections,
            "channels": self.now.channels,
            "exchanges": exchanges,
            "queues": self.now.queues,
            "consumers": self.now.consumers,
        })
    }

    /// The numbers of a node's row: limits, alarms, and what has details.
    pub fn put_node(&self, row: &mut Map<String, Value>, ranges: &Ranges) {
        put_all(row, &NODE, &self.process, ranges.node_stats);
        let node = &self.node;
        for (name, ms) in average_times(&node.io) {
            row.insert(name.to_owned(), json!(ms));
        }
        let facts = json!({
            "mem_limit": node.mem_limit,
            "mem_alarm": node.mem_alarm,
            "mem_calculation_strategy": "rss",
            "disk_free_limit": node.disk_free_limit,
            "disk_free_alarm": node.disk_free_alarm,
            "fd_total": node.fd_total,
            "sockets_total": node.fd_total,
            "proc_total": 1_048_576,
            "run_queue": node.run_queue,
            "processors": node.processors,
            "uptime": node.uptime_ms,
            "os_pid": std::process::id().to_string(),
        });
        if let Value::Object(facts) = facts {
            row.extend(facts);
        }
    }
}

/// Mean times of operations on files, in ms.
fn average_times(io: &IoTotals) -> [(&'static str, f64); 3] {
    let mean = |us: u64, count: u64| if count == 0 { 0.0 } else { us as f64 / count as f64 / 1e3 };
    [
        ("io_read_avg_time", mean(io.read_us, io.reads)),
        ("io_write_avg_time", mean(io.write_us, io.writes)),
        ("io_sync_avg_time", mean(io.sync_us, io.syncs)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::history::Retention;

    #[test]
    fn details_have_samples_when_they_are_asked_for() {
        let mut history = History::default();
        for s in (0..=20).step_by(5) {
            history.push(s * 1000, [s * 2, 0, 0], Retention::Global);
        }
        let ranges = Ranges {
            msg_rates: Some(Range { age_s: 10, incr_s: 5, until: 20_000 }),
            ..Ranges::default()
        };
        let stats = message_stats(&EXCHANGE, &history, ranges.msg_rates).expect("some");
        assert_eq!(stats["publish_in"], 40);
        let details = &stats["publish_in_details"];
        assert_eq!((&details["rate"], &details["avg_rate"]), (&json!(2.0), &json!(2.0)));
        assert_eq!(details["avg"], 30.0);
        assert_eq!(details["samples"][0], json!({"sample": 40, "timestamp": 20_000}));
        assert_eq!(details["samples"].as_array().map(Vec::len), Some(3));
        let stats = message_stats(&EXCHANGE, &history, None).expect("some");
        assert_eq!(stats["publish_in_details"], json!({"rate": 2.0}));
        assert!(message_stats(&EXCHANGE, &History::default(), None).is_none());
    }

    #[test]
    fn ranges_are_whole_or_nothing() {
        let of =
            |query: &[(&'static str, &'static str)]| Ranges::of_query(query.iter().copied(), 7);
        let all = of(&[("lengths_age", "60"), ("lengths_incr", "1")]);
        assert_eq!(all.lengths, Some(Range { age_s: 60, incr_s: 1, until: 7 }));
        assert!(all.are_fine());
        for half in [&[("lengths_age", "60")][..], &[("lengths_age", "x"), ("lengths_incr", "5")]] {
            assert_eq!(of(half), Ranges::default());
        }
        assert_eq!(of(&[("data_rates_age", "5"), ("data_rates_incr", "0")]), Ranges::default());
    }
}
