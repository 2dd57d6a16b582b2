//! Queues, exchange and keys of a run: who publishes where, who consumes from what.

use std::io::ErrorKind;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use leveret_client::amqp::table::{Table, Value};
use leveret_client::files::read_at_most;
use leveret_client::{Connection, Error, ExchangeDeclare, QueueDeclare};

use crate::args::values::{Capacity, table};
use crate::args::{Flag, Options};

/// Longest list of queues, in bytes: some hundred thousand names.
const QUEUE_FILE_BYTES_MAX: u64 = 64 << 20;

/// Length of a stream when nothing is said: PerfTest's 20 GB in segments of 500 MB.
const STREAM_BYTES: [(&str, i64); 2] =
    [("x-max-length-bytes", 20_000_000_000), ("x-stream-max-segment-size-bytes", 500_000_000)];

/// What is declared, and for whom. A producer or consumer is counted by its channel.
#[derive(Clone, Debug)]
pub(crate) struct Topology {
    pub(crate) exchange: String,
    kind: String,
    routing_key: Option<String>,
    pub(crate) queues: Arc<[String]>,
    sharing: Sharing,
    /// The tool has named them.
    are_made_up: bool,
    predeclared: bool,
    binds: bool,
    auto_delete: bool,
    durable: bool,
    pub(crate) exclusive: bool,
    arguments: Table,
}

/// Which queues a consumer has, and which key a producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sharing {
    /// All of them have one key, and every consumer has all.
    All,
    /// All of them have one key, and every consumer has its own.
    Own,
    /// Each has its name for a key; the first producer and consumer have the first one, and so on.
    InTurn,
}

impl Topology {
    /// `consumers` counts their channels; `run` is a word of this run alone.
    pub(crate) fn new(options: &Options, consumers: usize, run: &str) -> Result<Self> {
        let args = &options.topology;
        let exchange = args.exchange.clone().unwrap_or_else(|| args.kind.clone());
        let exchange = if exchange == "amq.default" { String::new() } else { exchange };
        let (queues, sharing) = queues(options, consumers, run)?;
        let are_made_up = sharing == Sharing::Own;
        let sharing = match sharing {
            // The default exchange knows no common key.
            Sharing::Own if exchange.is_empty() => Sharing::InTurn,
            sharing => sharing,
        };
        let of_type = args.quorum_queue || args.stream_queue;
        Ok(Self {
            binds: !exchange.is_empty() && !args.skip_binding_queues,
            exchange,
            kind: args.kind.clone(),
            routing_key: args.routing_key.clone(),
            queues: queues.into(),
            sharing,
            are_made_up,
            predeclared: args.predeclared,
            auto_delete: args.auto_delete && !of_type,
            durable: of_type || options.has(Flag::Persistent),
            exclusive: args.exclusive,
            arguments: arguments(options),
        })
    }

    /// The numbers of a consumer's queues.
    pub(crate) fn queues_of(&self, consumer: usize) -> std::ops::Range<usize> {
        match self.sharing {
            Sharing::All => 0..self.queues.len(),
            Sharing::Own | Sharing::InTurn => {
                let queue = consumer % self.queues.len();
                queue..queue + 1
            }
        }
    }

    /// The key of a producer.
    pub(crate) fn key_of(&self, producer: usize) -> &str {
        self.routing_key.as_deref().unwrap_or_else(|| match self.sharing {
            Sharing::All | Sharing::Own => &self.queues[0],
            Sharing::InTurn => &self.queues[producer % self.queues.len()],
        })
    }

    /// The key that a queue is bound with.
    fn key_of_queue(&self, queue: usize) -> &str {
        self.routing_key.as_deref().unwrap_or_else(|| match self.sharing {
            Sharing::All | Sharing::Own => &self.queues[0],
            Sharing::InTurn => &self.queues[queue],
        })
    }

    /// Queues that each message reaches, if that is known.
    pub(crate) fn copies(&self) -> Option<u64> {
        if self.exchange.is_empty() {
            return Some(1);
        }
        let has_one_key = self.routing_key.is_some() || self.sharing != Sharing::InTurn;
        match &*self.kind {
            _ if self.predeclared || !self.binds => None,
            "fanout" => Some(self.queues.len() as u64),
            "direct" if has_one_key => Some(self.queues.len() as u64),
            "direct" => Some(1),
            _ => None,
        }
    }

    /// Whether messages of a producer go to a queue, if that is known.
    pub(crate) fn reaches(&self, producer: usize, queue: usize) -> Option<bool> {
        if self.exchange.is_empty() {
            return Some(self.queues[queue] == self.key_of(producer));
        }
        match &*self.kind {
            _ if self.predeclared || !self.binds => None,
            "fanout" => Some(true),
            "direct" => Some(self.key_of_queue(queue) == self.key_of(producer)),
            _ => None,
        }
    }

    /// Deletes queues that would have gone with their consumers, had there been any.
    pub(crate) fn clean_up(&self, connection: &mut Connection) -> Result<(), Error> {
        let channel = connection.open_channel()?;
        for queue in self.queues.iter() {
            connection.queue_delete(channel, queue)?;
        }
        Ok(())
    }

    /// Whether the queues shall be gone after the run though nobody consumed from them.
    pub(crate) fn needs_clean_up(&self, consumers: usize, polling: bool) -> bool {
        let vanish = self.auto_delete && !self.exclusive && !self.predeclared;
        vanish && (polling || (consumers == 0 && self.are_made_up))
    }

    /// Declares the exchange, and the queues unless they belong to their consumers.
    pub(crate) fn declare(&self, connection: &mut Connection) -> Result<()> {
        if self.predeclared {
            return Ok(());
        }
        let channel = connection.open_channel()?;
        if !self.exchange.is_empty() && !self.exchange.starts_with("amq.") {
            let how = ExchangeDeclare { durable: true, ..ExchangeDeclare::default() };
            connection
                .exchange_declare(channel, &self.exchange, &self.kind, &how)
                .with_context(|| format!("declaring exchange '{}'", self.exchange))?;
        }
        for queue in 0..if self.exclusive { 0 } else { self.queues.len() } {
            self.declare_queue(connection, channel, queue)
                .with_context(|| format!("declaring queue '{}'", self.queues[queue]))?;
        }
        connection.close_channel(channel)?;
        Ok(())
    }

    /// Declares one queue and binds it: at the beginning, and when a connection was lost.
    pub(crate) fn declare_queue(
        &self,
        connection: &mut Connection,
        channel: u16,
        queue: usize,
    ) -> Result<(), Error> {
        if self.predeclared {
            return Ok(());
        }
        let how = QueueDeclare {
            durable: self.durable || (!self.exclusive && takes_durable_only(connection)),
            exclusive: self.exclusive,
            auto_delete: self.auto_delete,
            arguments: self.arguments.clone(),
            ..QueueDeclare::default()
        };
        let name = &self.queues[queue];
        connection.queue_declare(channel, name, &how)?;
        if self.binds {
            let key = self.key_of_queue(queue);
            connection.queue_bind(channel, name, &self.exchange, key, &Table::default())?;
        }
        Ok(())
    }
}

/// RabbitMQ has no transient queues but exclusive ones from 4.3 on.
fn takes_durable_only(connection: &Connection) -> bool {
    let properties = connection.server_properties();
    let text = |key| properties.get(key).and_then(Value::as_str).unwrap_or_default();
    let mut version = text("version").split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (version.next().unwrap_or(0), version.next().unwrap_or(0));
    text("product") == "RabbitMQ" && connection.leveret_version().is_none() && version >= (4, 3)
}

fn queues(options: &Options, consumers: usize, run: &str) -> Result<(Vec<String>, Sharing)> {
    let args = &options.topology;
    if let (Some(pattern), Some(last)) = (&args.queue_pattern, args.queue_pattern_to) {
        let name = |number: u32| pattern.replace("%d", &number.to_string());
        return Ok(((args.queue_pattern_from..=last).map(name).collect(), Sharing::InTurn));
    }
    if let Some(path) = &args.queue_file {
        let text = read_at_most(path, QUEUE_FILE_BYTES_MAX)
            .and_then(|bytes| String::from_utf8(bytes).map_err(|_| ErrorKind::InvalidData.into()));
        let text = text.with_context(|| format!("reading --queue-file {}", path.display()))?;
        let names = text.lines().map(str::trim).filter(|name| !name.is_empty());
        let names: Vec<String> = names.map(str::to_owned).collect();
        if names.is_empty() {
            bail!("--queue-file {} names no queue", path.display());
        }
        return Ok((names, Sharing::InTurn));
    }
    if !args.queue.is_empty() {
        return Ok((args.queue.clone(), Sharing::All));
    }
    let names = (0..consumers.max(1)).map(|number| format!("perf-{run}-{number}"));
    Ok((names.collect(), Sharing::Own))
}

fn arguments(options: &Options) -> Table {
    let args = &options.topology;
    let mut arguments = table(&args.queue_args);
    if args.quorum_queue {
        arguments.set("x-queue-type", "quorum");
    }
    if args.stream_queue {
        arguments.set("x-queue-type", "stream");
        for (name, bytes) in STREAM_BYTES {
            arguments.set(name, bytes);
        }
    }
    match args.max_length_bytes {
        Some(Capacity(0)) => _ = arguments.remove("x-max-length-bytes"),
        Some(Capacity(bytes)) => arguments.set("x-max-length-bytes", bytes as i64),
        None => {}
    }
    if let Some(Capacity(bytes)) = args.stream_max_segment_size_bytes {
        arguments.set("x-stream-max-segment-size-bytes", bytes as i64);
    }
    if let Some(age) = args.max_age {
        arguments.set("x-max-age", &*format!("{}s", age.0));
    }
    if let Some(locator) = &args.leader_locator {
        arguments.set("x-queue-leader-locator", &**locator);
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topology(line: &str, consumers: usize) -> Topology {
        let words = line.split_whitespace().map(|word| word.trim_matches('\'').into());
        Topology::new(&Options::read(words).unwrap(), consumers, "run").unwrap()
    }

    fn keys(topology: &Topology) -> [&str; 3] {
        [0, 1, 2].map(|producer| topology.key_of(producer))
    }

    #[test]
    fn queue_patterns_count() {
        let pattern = topology("-qp p%d-x -qpf 9 -qpt 11", 5);
        assert_eq!(&*pattern.queues, ["p9-x", "p10-x", "p11-x"]);
        assert_eq!(keys(&pattern), ["p9-x", "p10-x", "p11-x"]);
        assert_eq!((pattern.queues_of(2), pattern.queues_of(4)), (2..3, 1..2));
        assert_eq!(keys(&topology("-qp p%d-x -qpf 9 -qpt 11 -k key", 5)), ["key"; 3]);
    }

    #[test]
    fn named_queues_are_everybodys() {
        let named = topology("-u a,b", 2);
        assert_eq!((named.queues_of(0), named.queues_of(1)), (0..2, 0..2));
        assert_eq!((keys(&named), named.key_of_queue(1)), (["a"; 3], "a"));
    }

    #[test]
    fn consumers_have_queues_of_their_own_without_names() {
        let own = topology("", 2);
        assert_eq!(&*own.queues, ["perf-run-0", "perf-run-1"]);
        assert_eq!((own.queues_of(0), own.queues_of(1)), (0..1, 1..2));
        assert_eq!((own.key_of_queue(1), own.key_of(1)), ("perf-run-0", "perf-run-0"));
        assert_eq!(topology("-e ''", 2).key_of(1), "perf-run-1");
        assert_eq!(topology("", 0).queues.len(), 1);
        assert!(topology("", 0).needs_clean_up(0, false));
        assert!(!topology("-u q", 0).needs_clean_up(0, false));
        assert!(topology("-u q", 1).needs_clean_up(1, true));
    }

    #[test]
    fn copies_are_counted() {
        let copies = |line| topology(line, 3).copies();
        assert_eq!((copies(""), copies("-u q"), copies("-u a,b")), (Some(3), Some(1), Some(2)));
        assert_eq!((copies("-e ''"), copies("-qp q%d -qpt 4")), (Some(1), Some(1)));
        assert_eq!(copies("-qp q%d -qpt 4 -k one"), Some(4));
        assert_eq!((copies("-t fanout -qp q%d -qpt 4"), copies("-t topic -u q")), (Some(4), None));
    }

    #[test]
    fn it_is_known_who_reaches_what() {
        let reaches = |line, producer, queue| topology(line, 2).reaches(producer, queue);
        assert_eq!(reaches("-qp q%d -qpt 2", 3, 1), Some(true));
        assert_eq!(reaches("-qp q%d -qpt 2", 3, 0), Some(false));
        assert_eq!(
            (reaches("", 0, 1), reaches("-t fanout -qp q%d -qpt 2", 0, 1)),
            (Some(true), Some(true))
        );
        assert_eq!((reaches("-e ''", 0, 1), reaches("-t topic -u a,b", 0, 1)), (Some(false), None));
    }

    #[test]
    fn the_exchange_is_named_after_its_type() {
        assert_eq!(topology("-t topic", 1).exchange, "topic");
        assert_eq!(topology("-t topic -e x", 1).exchange, "x");
    }

    #[test]
    fn types_of_queues_are_arguments() {
        let stream = topology("-sq -mlb 1gb -ma PT1M -qa x-a=5", 1);
        let number = |key| stream.arguments.get(key).and_then(Value::as_i64);
        assert_eq!(stream.arguments.get("x-queue-type").and_then(Value::as_str), Some("stream"));
        assert_eq!(number("x-max-length-bytes"), Some(1_000_000_000));
        assert_eq!(number("x-stream-max-segment-size-bytes"), Some(500_000_000));
        assert_eq!(stream.arguments.get("x-max-age").and_then(Value::as_str), Some("60s"));
        assert!(stream.durable && !stream.auto_delete && number("x-a") == Some(5));
        assert!(topology("-sq -mlb 0", 1).arguments.get("x-max-length-bytes").is_none());
    }
}
