//! `leveret perf experiment cluster`: what a message costs in a cluster that is well, and how long it takes, by where its clients are.
//!
//! ```text
//!   publisher --> the node that leads, or another --> a durable queue --> consumer at the node that leads, at that other one, or at a third
//!       ^               CPU of all nodes                                      \-- publish to delivery
//!       \-- publish to confirm
//! ```

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use clap::{ArgAction, Args, value_parser};
use leveret_client::amqp::table::{Table, Value};
use leveret_client::{Connection, QueueDeclare, Uri};
use leveret_load::{Outcome, process};
use serde::Serialize;

use crate::interrupt::Interrupt;
use crate::isolation::End;
use crate::outcome::{Run, Times};
use crate::text;

/// The queue of all cases.
const QUEUE: &str = "perf_cluster";

/// What a message costs in a cluster and how long it takes, by where its clients are.
///
/// One persistent message per millisecond with confirms and acks, through the node that leads and through others: the time to the
/// confirm and to the delivery. Then as many as clients with windows get through, published, consumed, and both at once: CPU of
/// all nodes for each message. The queue perf_cluster is deleted and made anew. Works with every AMQP 0-9-1 broker.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Example:
  leveret perf experiment cluster --node amqp://a --node amqp://b --node amqp://c --leader 1 --pid 4711 --pid 4712 --pid 4713

Exit status: 0 measured, 1 a run failed, 64 bad arguments, 130 interrupted.")]
pub(crate) struct ClusterArgs {
    /// A node's address; one for each node
    #[arg(long = "node", value_name = "URI", required = true)]
    nodes: Vec<String>,
    /// A node's process, in the order of the nodes; without them no CPU is measured
    #[arg(long = "pid", value_name = "PID")]
    pids: Vec<u32>,
    /// The node that leads, counted from 0: the queue is declared through it, so that a quorum queue is led there
    #[arg(long, value_name = "N", default_value_t = 0)]
    leader: usize,
    /// x-queue-type of the queue
    #[arg(long, value_name = "NAME")]
    queue_type: Option<String>,
    /// What the broker is called in the tables [default: as it calls itself]
    #[arg(long, value_name = "NAME")]
    title: Option<String>,
    /// Seconds of each run with a message per millisecond
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Messages of each run without a rate
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = value_parser!(u64).range(1000..))]
    messages: u64,
    /// Bytes of a message
    #[arg(long, value_name = "BYTES", default_value_t = 1024, value_parser = value_parser!(u32).range(12..=1_000_000))]
    size: u32,
    /// Write the figures as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the tables as Markdown
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,

    /// Print this help
    #[arg(short = 'h', short_alias = '?', long, action = ArgAction::Help)]
    help: Option<bool>,
}

/// Of the node that a client is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Role {
    Leader,
    Follower,
    /// Neither of these.
    OtherFollower,
}

impl Role {
    /// The number of a node with it.
    fn node(self, leader: usize, nodes: usize) -> usize {
        let behind = match self {
            Self::Leader => 0,
            Self::Follower => 1,
            Self::OtherFollower => 2,
        };
        (leader + behind) % nodes
    }

    fn name(self) -> &'static str {
        match self {
            Self::Leader => "leader",
            Self::Follower => "follower",
            Self::OtherFollower => "other follower",
        }
    }
}

/// What is done: by clients where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
enum Case {
    /// One message per millisecond.
    Paced {
        publisher: Role,
        consumer: Role,
    },
    /// As many as get through with a window.
    Publish {
        at: Role,
    },
    Consume {
        at: Role,
    },
    Both {
        at: Role,
    },
}

/// All cases. What is consumed was published by the case before.
const CASES: [Case; 11] = {
    use Role::{Follower, Leader, OtherFollower};
    [
        Case::Paced { publisher: Leader, consumer: Leader },
        Case::Paced { publisher: Leader, consumer: Follower },
        Case::Paced { publisher: Follower, consumer: Leader },
        Case::Paced { publisher: Follower, consumer: Follower },
        Case::Paced { publisher: Follower, consumer: OtherFollower },
        Case::Publish { at: Leader },
        Case::Consume { at: Leader },
        Case::Publish { at: Follower },
        Case::Consume { at: Follower },
        Case::Both { at: Leader },
        Case::Both { at: Follower },
    ]
};

/// What a case came to.
#[derive(Clone, Debug, Serialize)]
struct Measured {
    #[serde(flatten)]
    case: Case,
    /// Messages, each counted once.
    messages: u64,
    per_second: f64,
    /// From publish to confirm, in microseconds.
    confirm_us: Option<Times>,
    /// From publish to delivery, in microseconds.
    delivery_us: Option<Times>,
    /// CPU of each node, in the order of the nodes, in microseconds for each message.
    cpu_us: Vec<f64>,
    /// What other programs than the nodes and this one had of all processors, in percent.
    others_percent: Option<f64>,
}

/// All figures of a broker.
#[derive(Clone, Debug, Serialize)]
struct Figures {
    broker: String,
    nodes: usize,
    leader: usize,
    measured: Vec<Measured>,
}

/// Measures, and tells.
pub(crate) fn run(args: &ClusterArgs) -> Result<End> {
    let nodes = args.nodes.len();
    ensure!(args.leader < nodes, "--leader {}: there are {nodes} nodes", args.leader);
    ensure!(
        args.pids.is_empty() || args.pids.len() == nodes,
        "--pid: {} of {nodes} nodes have one",
        args.pids.len()
    );
    for path in [&args.json, &args.markdown].into_iter().flatten() {
        leveret_load::check_writable(path)?;
    }
    let interrupt = Interrupt::listen()?;
    let told = declare(args)?;
    let mut figures = Figures {
        broker: args.title.clone().unwrap_or(told),
        nodes,
        leader: args.leader,
        measured: Vec::new(),
    };
    // With fewer nodes a third place is one of the first two.
    let is_there = |case: &Case| match case {
        Case::Paced { consumer: Role::OtherFollower, .. } => nodes > 2,
        Case::Paced { publisher, consumer } => {
            nodes > 1 || (*publisher, *consumer) == (Role::Leader, Role::Leader)
        }
        Case::Publish { at } | Case::Consume { at } | Case::Both { at } => {
            nodes > 1 || *at == Role::Leader
        }
    };
    for case in CASES.into_iter().filter(is_there) {
        if interrupt.is_set() {
            break;
        }
        let measured = measure(args, case).with_context(|| format!("{case:?}"))?;
        let _ = writeln!(std::io::stderr(), "{}", row(&figures.broker, &measured).join("  "));
        figures.measured.push(measured);
    }
    let markdown = markdown(&figures);
    // A reader that has seen enough, such as `head`, is no failure.
    let _ = std::io::stdout().write_all(markdown.as_bytes());
    if let Some(path) = &args.markdown {
        std::fs::write(path, &markdown)?;
    }
    if let Some(path) = &args.json {
        std::fs::write(path, serde_json::to_string_pretty(&figures)? + "\n")?;
    }
    Ok(if interrupt.is_set() { End::Interrupted } else { End::Good })
}

/// Makes the queue anew; who the broker is.
fn declare(args: &ClusterArgs) -> Result<String> {
    let options = leveret_client::Options::default();
    let uri: Uri = args.nodes[args.leader].parse().context("--node")?;
    let mut connection = Connection::open(&uri, &options)?;
    let told = |key| match connection.server_properties().get(key) {
        Some(Value::LongStr(text)) => String::from_utf8_lossy(text).into_owned(),
        _ => String::new(),
    };
    let name = match connection.leveret_version() {
        Some(version) => format!("Leveret {version}"),
        None => format!("{} {}", told("product"), told("version")),
    };
    let channel = connection.open_channel()?;
    let mut arguments = Table::default();
    if let Some(kind) = &args.queue_type {
        arguments.set("x-queue-type", Value::LongStr(kind.as_bytes().to_vec()));
    }
    connection.queue_delete(channel, QUEUE)?;
    let how = QueueDeclare { durable: true, arguments, ..QueueDeclare::default() };
    connection.queue_declare(channel, QUEUE, &how)?;
    connection.close()?;
    Ok(name)
}

/// The lines of the load tool that a case is, each with the node it goes to.
fn loads(args: &ClusterArgs, case: Case) -> Vec<(usize, String)> {
    let node = |place: Role| place.node(args.leader, args.nodes.len());
    let ClusterArgs { messages, seconds, size, .. } = args;
    let common = format!("-p -e '' -u {QUEUE} -k {QUEUE} -f persistent -s {size}");
    let publish = format!("-x 1 -y 0 -c 500 -C {messages} {common}");
    let consume = format!("-x 0 -y 1 -q 500 -A 50 -D {messages} {common}");
    match case {
        Case::Paced { publisher, consumer } => vec![
            (node(publisher), format!("-x 1 -y 0 -r 1000 -c 1000 -z {seconds} {common}")),
            // It sees the last of them.
            (node(consumer), format!("-x 0 -y 1 -q 500 -z {} {common}", seconds + 1)),
        ],
        Case::Publish { at } => vec![(node(at), publish)],
        Case::Consume { at } => vec![(node(at), consume)],
        Case::Both { at } => vec![(node(at), publish), (node(at), consume)],
    }
}

fn measure(args: &ClusterArgs, case: Case) -> Result<Measured> {
    let options = loads(args, case)
        .into_iter()
        .map(|(node, line)| {
            let mut words = crate::case::split(&line);
            words.extend(["-h".to_owned(), args.nodes[node].clone()]);
            let read = leveret_load::Options::read(words.into_iter().map(Into::into));
            read.map_err(|error| anyhow!("leveret perf {line}: {error}"))
        })
        .collect::<Result<Vec<_>>>()?;
    let cpu_s = || -> Vec<f64> {
        args.pids.iter().map(|pid| process::tree(*pid).map_or(0.0, |it| it.cpu_s)).collect()
    };
    let (before, busy_before, own_before) =
        (cpu_s(), process::machine_busy_s(), process::own().cpu_s);
    let began = Instant::now();
    let outcomes = at_once(&options)?;
    let took_s = began.elapsed().as_secs_f64();
    let (after, busy_s) = (cpu_s(), process::machine_busy_s() - busy_before);
    let ours_s: f64 = after.iter().zip(&before).map(|(after, before)| after - before).sum();
    let run = Run::of(&outcomes);
    let messages = run.published.max(run.consumed);
    ensure!(messages > 0, "no message came through");
    let per_message = |(after, before): (&f64, &f64)| (after - before) / messages as f64 * 1e6;
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    let others_s = busy_s - ours_s - (process::own().cpu_s - own_before);
    Ok(Measured {
        case,
        messages,
        per_second: if run.published > 0 { run.published_per_s } else { run.consumed_per_s },
        confirm_us: run.confirm_us,
        // What had lain in the queue was published long before.
        delivery_us: run.latency_us.filter(|_| !matches!(case, Case::Consume { .. })),
        cpu_us: after.iter().zip(&before).map(per_message).collect(),
        others_percent: (!args.pids.is_empty())
            .then(|| (others_s / (took_s * cores) * 100.0).clamp(0.0, 100.0)),
    })
}

/// Runs loads at the same time.
fn at_once(loads: &[leveret_load::Options]) -> Result<Vec<Outcome>> {
    std::thread::scope(|scope| {
        let run = |load| scope.spawn(move || leveret_load::measure(load, None));
        let threads: Vec<_> = loads.iter().map(run).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<Outcome>>| match thread.join()
        {
            Ok(outcome) => outcome,
            Err(_) => bail!("the load died"),
        };
        threads.into_iter().map(join).collect()
    })
}

const PACED: [&str; 10] = [
    "broker",
    "publisher at",
    "consumer at",
    "confirm p50, us",
    "p99",
    "delivery p50, us",
    "p99",
    "messages/s",
    "CPU of all nodes, us a message",
    "others, % CPU",
];
const FREE: [&str; 7] = [
    "broker",
    "what",
    "clients at",
    "messages/s",
    "CPU of all nodes, us a message",
    "of these the leader's",
    "others, % CPU",
];

/// A row of one of the two tables.
fn row(broker: &str, it: &Measured) -> Vec<String> {
    let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), text::number);
    let us = |times: Option<Times>, figure: fn(&Times) -> f64| number(times.as_ref().map(figure));
    let sum = (!it.cpu_us.is_empty()).then(|| it.cpu_us.iter().sum::<f64>());
    let mut cells = vec![broker.to_owned()];
    let (what, at) = match it.case {
        Case::Paced { publisher, consumer } => {
            cells.extend([publisher.name(), consumer.name()].map(str::to_owned));
            cells.extend([
                us(it.confirm_us, |it| it.p50),
                us(it.confirm_us, |it| it.p99),
                us(it.delivery_us, |it| it.p50),
                us(it.delivery_us, |it| it.p99),
                text::number(it.per_second),
                number(sum),
                number(it.others_percent),
            ]);
            return cells;
        }
        Case::Publish { at } => ("publish", at),
        Case::Consume { at } => ("consume", at),
        Case::Both { at } => ("both", at),
    };
    cells.extend([what.to_owned(), at.name().to_owned(), text::number(it.per_second)]);
    cells.push(number(sum));
    cells
}

fn markdown(figures: &Figures) -> String {
    let mut text = String::new();
    let mut table = |head: &[&str], rows: Vec<Vec<String>>| {
        let _ = writeln!(text, "| {} |\n|{}", head.join(" | "), "---|".repeat(head.len()));
        for row in rows {
            let _ = writeln!(text, "| {} |", row.join(" | "));
        }
        text.push('\n');
    };
    let (paced, free): (Vec<_>, Vec<_>) =
        figures.measured.iter().partition(|it| matches!(it.case, Case::Paced { .. }));
    table(&PACED, paced.iter().map(|it| row(&figures.broker, it)).collect());
    let with_leader = |it: &&Measured| {
        let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), text::number);
        let mut cells = row(&figures.broker, it);
        cells.push(number(it.cpu_us.get(figures.leader).copied()));
        cells.push(number(it.others_percent));
        cells
    };
    table(&FREE, free.iter().map(with_leader).collect());
    text
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    #[command(disable_help_flag = true)]
    struct Program {
        #[command(flatten)]
        args: ClusterArgs,
    }

    fn args(line: &str) -> ClusterArgs {
        Program::try_parse_from(["cluster"].into_iter().chain(line.split(' '))).unwrap().args
    }

    /// The load tool takes every line, and each goes where it says.
    #[test]
    fn loads_are_read() {
        let args = args("--node amqp://a --node amqp://b --node amqp://c --leader 2");
        let mut places = Vec::new();
        for case in CASES {
            for (node, line) in loads(&args, case) {
                let words = crate::case::split(&line).into_iter().map(Into::into);
                leveret_load::Options::read(words)
                    .unwrap_or_else(|error| panic!("{line}: {error}"));
                places.push(node);
            }
        }
        assert_eq!(places[..10], [2, 2, 2, 0, 0, 2, 0, 0, 0, 1]);
    }

    #[test]
    fn tables() {
        let times = |p50| Some(Times { p50, p99: 3.0 * p50, ..Times::default() });
        let measured = |case| Measured {
            case,
            messages: 1000,
            per_second: 999.7,
            confirm_us: times(100.0),
            delivery_us: times(200.0),
            cpu_us: vec![1.0, 2.5, 1.5],
            others_percent: Some(3.0),
        };
        let paced = Case::Paced { publisher: Role::Leader, consumer: Role::Follower };
        let publish = Case::Publish { at: Role::Leader };
        let figures = Figures {
            broker: "B".to_owned(),
            nodes: 3,
            leader: 1,
            measured: vec![measured(paced), measured(publish)],
        };
        let text = markdown(&figures);
        for row in [
            "| B | leader | follower | 100 | 300 | 200 | 600 | 1,000 | 5.00 | 3.00 |",
            "| B | publish | leader | 1,000 | 5.00 | 2.50 | 3.00 |",
        ] {
            assert!(text.contains(row), "{text}");
        }
        for row in text.lines().filter(|it| it.starts_with("| ")) {
            let columns = row.matches('|').count() - 1;
            assert!([PACED.len(), FREE.len()].contains(&columns), "{row}");
        }
    }
}
