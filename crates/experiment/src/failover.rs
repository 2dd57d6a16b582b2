//! `leveret perf experiment failover`: confirmed traffic through all nodes of a cluster, and the account of every message, while somebody makes
//! nodes and links fail.
//!
//! ```text
//!   publishers, one through each node --\                   /-- accounts: lost, twice, out of order?
//!                                        >-- a cluster -----
//!   consumers, through each node -------/         ^         \-- phases: how long was each publisher without a confirm?
//!                                                 |
//!                      faults: by hand, or by a program that tells of them
//! ```

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::{ArgAction, Args};
use leveret_client::Uri;
use serde_json::json;

use crate::everything::journal::Journal;
use crate::interrupt::Interrupt;
use crate::isolation::End;
use crate::text;

mod account;
mod phases;
mod traffic;

use account::Sum;
use phases::Phase;
use traffic::{Plan, Traffic};

/// Whether a cluster keeps every message while its nodes fail, and how long its clients wait.
///
/// A publisher with confirms and consumers with acks go through each node, over several durable queues; the queues failover-0 and so on are made
/// anew. Each client stays with its node and connects again after an error. In the end the queues are emptied: was a confirmed message
/// lost, did one come twice without a reason, or out of order? Works with every AMQP 0-9-1 broker.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  leveret perf experiment failover --node amqp://a --node amqp://b --node amqp://c --duration 600
  leveret perf experiment failover --node amqp://rabbit-1 --node amqp://rabbit-2 --queue-type quorum

With --told a program says on standard input, a line each, what it does: 'fault NAME [NODE]' before a fault (NODE counts from 0) and
'settle SECONDS' when everything is in order again, which is answered 'settled MS' once every client works, or 'unsettled WHO'. The
end of the input is the end of the run.
Exit status: 0 nothing was found, 1 something was, 64 bad arguments, 130 interrupted.")]
pub(crate) struct FailoverArgs {
    /// A node's address; one for each node
    #[arg(long = "node", value_name = "URI", required = true)]
    nodes: Vec<Uri>,
    /// Seconds
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    duration: u64,
    /// Read on standard input what is done to the cluster
    #[arg(long, conflicts_with = "duration")]
    told: bool,
    /// Messages per second of each publisher
    #[arg(long, value_name = "N", default_value_t = 300.0)]
    rate: f64,
    /// Queues; every other one has one consumer, the others one through each node
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1000))]
    queues: u16,
    /// x-queue-type of the queues
    #[arg(long, value_name = "NAME")]
    queue_type: Option<String>,
    /// From an error of a client to its next try, in ms
    #[arg(long, value_name = "MS", default_value_t = 100)]
    reconnect: u64,
    /// What decides the lengths of bodies and which messages are given back
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Where errors of clients go, a line each
    #[arg(long, value_name = "FILE", default_value = "leveret-failover.log")]
    log: PathBuf,
    /// Write the figures as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Print this help
    #[arg(short = 'h', short_alias = '?', long, action = ArgAction::Help)]
    help: Option<bool>,
}

/// The phase before the first fault.
const UNDISTURBED: &str = "undisturbed";
/// How long clients may take at first, and at the end of a run by hand.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs it, and judges.
pub(crate) fn run(args: &FailoverArgs) -> Result<End> {
    if let Some(path) = &args.json {
        leveret_load::check_writable(path)?;
    }
    let journal = Journal::create(&args.log)?;
    // A program that tells of faults ends this by the end of its input: Ctrl-C is for that program.
    let interrupt = Interrupt::listen()?;
    let plan = Plan {
        nodes: args.nodes.clone(),
        queues: args.queues.into(),
        queue_type: args.queue_type.clone(),
        pace: Duration::from_secs_f64(1.0 / args.rate.clamp(0.01, 100_000.0)),
        reconnect: Duration::from_millis(args.reconnect),
        seed: args.seed,
    };
    let traffic = Traffic::prepare(&plan, &journal)?;
    let phases = traffic.run(|traffic| {
        let mut phases = Phases::new(traffic, &journal);
        if args.told {
            phases.follow(std::io::stdin().lock())?;
        } else {
            // Who works is noted; who does not is a finding.
            let _ = phases.settle(PATIENCE);
            let end = Instant::now() + Duration::from_secs(args.duration);
            while Instant::now() < end && !interrupt.is_set() {
                std::thread::sleep(Duration::from_millis(50));
            }
            phases.end();
            let _ = phases.settle(PATIENCE);
        }
        anyhow::Ok(phases.done)
    })?;
    match traffic.drain() {
        Ok(0) => {}
        Ok(left) => {
            journal.find(&format!("{left} messages stay in the queues, though nobody has them"))
        }
        Err(error) => journal.find(&format!("the queues could not be emptied: {error:#}")),
    }
    let sums = traffic.sums();
    let mut total = Sum::default();
    for (queue, sum, lines) in &sums {
        total += *sum;
        lines.iter().for_each(|line| journal.find(&format!("{queue}: {line}")));
        if sum.delivered == 0 {
            journal.find(&format!("{queue}: nothing was delivered"));
        }
    }
    let wrong = [
        ("lost", total.lost),
        ("twice without a reason", total.duplicates),
        ("out of order", total.out_of_order),
        ("never published, or with other bytes", total.strange),
    ];
    for (what, count) in wrong.iter().filter(|(_, count)| *count > 0) {
        journal.find(&format!("{count} messages: {what}"));
    }
    journal.flush();
    let told = tell(&phases, &total, &journal);
    // A reader that has seen enough, such as `head`, is no failure.
    let _ = std::io::stdout().write_all(told.as_bytes());
    let (count, lines) = journal.findings();
    if let Some(path) = &args.json {
        let queues: Vec<_> =
            sums.iter().map(|(queue, sum, _)| json!({"name": queue, "sum": sum})).collect();
        let all = json!({"phases": phases, "sum": total, "queues": queues, "findings": count, "first_findings": lines});
        std::fs::write(path, serde_json::to_string_pretty(&all)? + "\n")?;
    }
    Ok(match (interrupt.is_set() && !args.told, count) {
        (true, _) => End::Interrupted,
        (false, 0) => End::Good,
        (false, _) => End::Bad,
    })
}

/// The phases of a run: each begins with a fault.
struct Phases<'a> {
    traffic: &'a Traffic<'a>,
    journal: &'a Journal,
    name: String,
    node: Option<usize>,
    done: Vec<Phase>,
}

impl<'a> Phases<'a> {
    fn new(traffic: &'a Traffic<'a>, journal: &'a Journal) -> Self {
        Self { traffic, journal, name: UNDISTURBED.to_owned(), node: None, done: Vec::new() }
    }

    /// Does what the lines say, until there are no more.
    fn follow(&mut self, lines: impl std::io::BufRead) -> Result<()> {
        for line in lines.lines() {
            let line = line.context("reading what is done")?;
            let answer = match line.trim().split_once(' ') {
                Some(("fault", rest)) => {
                    let (name, node) = match rest.rsplit_once(' ') {
                        Some((name, node)) if node.parse::<usize>().is_ok() => {
                            (name, node.parse().ok())
                        }
                        _ => (rest, None),
                    };
                    self.end();
                    (self.name, self.node) = (name.to_owned(), node);
                    self.journal.note(&line);
                    "begun".to_owned()
                }
                Some(("settle", seconds)) => {
                    let seconds = seconds.parse().context("the seconds of 'settle'")?;
                    match self.settle(Duration::from_secs(seconds)) {
                        Ok(took) => format!("settled {}", took.as_millis()),
                        Err(who) => format!("unsettled {who}"),
                    }
                }
                _ => anyhow::bail!("'{line}' is not 'fault NAME [NODE]' nor 'settle SECONDS'"),
            };
            let mut out = std::io::stdout();
            writeln!(out, "{answer}").and_then(|()| out.flush()).context("answering")?;
        }
        self.end();
        Ok(())
    }

    /// Waits until every client works.
    fn settle(&self, patience: Duration) -> Result<Duration, String> {
        let settled = self.traffic.settle(Instant::now(), patience);
        match &settled {
            Ok(took) => self.journal.note(&format!("settled in {} ms", took.as_millis())),
            Err(who) => self.journal.find(&format!(
                "after '{}' nothing came for {} s to {who}",
                self.name,
                patience.as_secs()
            )),
        }
        self.journal.flush();
        settled
    }

    /// The end of a phase: what was felt of it.
    fn end(&mut self) {
        let (pauses, errors) = self.traffic.take();
        self.done.push(Phase {
            name: self.name.clone(),
            node: self.node,
            pauses_ms: pauses.iter().map(|it| it.as_secs_f64() * 1e3).collect(),
            errors,
        });
    }
}

/// What came out, for people.
fn tell(phases: &[Phase], sum: &Sum, journal: &Journal) -> String {
    let mut text = format!(
        "{:<24} {:>5}  {:^28}  {:^19}  {:>6}\n{:<24} {:>5}  {:>8} {:>9} {:>9}  {:>9} {:>9}  {:>6}\n",
        "longest pause, ms",
        "",
        "over other nodes",
        "over that node",
        "errors",
        "",
        "times",
        "p50",
        "p90",
        "max",
        "p50",
        "max",
        "others",
    );
    let ms = |us: u64| text::number(us as f64 / 1e3);
    for (name, pauses) in phases::by_name(phases) {
        let phases::Pauses { count, others, own, errors } = pauses;
        let at = |of: &hdrhistogram::Histogram<u64>, quantile| match of.is_empty() {
            true => "-".to_owned(),
            false => ms(of.value_at_quantile(quantile)),
        };
        let _ = writeln!(
            text,
            "{name:<24} {count:>5}  {:>8} {:>9} {:>9}  {:>9} {:>9}  {errors:>6}",
            at(&others, 0.5),
            at(&others, 0.9),
            at(&others, 1.0),
            at(&own, 0.5),
            at(&own, 1.0),
        );
    }
    let _ = writeln!(
        text,
        "{} published, {} confirmed, {} refused, {} without an answer (of these {} delivered)",
        sum.published, sum.confirmed, sum.refused, sum.unknown, sum.unknown_delivered
    );
    let _ = writeln!(
        text,
        "{} delivered; again: {} with the mark of a redelivery, {} without it after their connection ended; {} of these after an ack, written at most {} ms before that end",
        sum.delivered, sum.redelivered, sum.unmarked, sum.again_after_ack, sum.oldest_lost_ack_ms
    );
    let _ = writeln!(
        text,
        "{} lost, {} twice without a reason, {} out of order, {} strange",
        sum.lost, sum.duplicates, sum.out_of_order, sum.strange
    );
    let (count, lines) = journal.findings();
    let _ = writeln!(text, "{count} findings");
    for line in lines.iter().take(50) {
        let _ = writeln!(text, "  {line}");
    }
    text
}
