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
use std::ops::RangeInclusive;
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
mod backlog;
mod phases;
mod traffic;

use account::Sum;
use backlog::{Backlog, BacklogSum};
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

With --told a program says on standard input, a line each, what it does: 'fault NAME [NODE,...]' before a fault (NODE counts from 0) and
'settle SECONDS [without NODE,...]' when everything is in order again, or these nodes are away. It is answered 'settled MS ERRORS' once
every client works, with the errors that clients over other nodes than that of the fault had since it, or 'unsettled WHO'. The end of
the input is the end of the run.
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
    /// Messages that lie in a queue of their own, failover-backlog, from before the first fault until they are read at the end
    #[arg(long, value_name = "N", default_value_t = 0)]
    backlog: u64,
    /// Bytes of a message of the backlog, or a range of them
    #[arg(long, value_name = "BYTES[-BYTES]", default_value = "16-1024", value_parser = sizes)]
    backlog_size: RangeInclusive<u64>,
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

/// A number of bytes, or a range of them.
fn sizes(text: &str) -> Result<RangeInclusive<u64>, String> {
    let (least, most) = text.split_once('-').unwrap_or((text, text));
    match (least.parse::<u64>(), most.parse::<u64>()) {
        (Ok(least @ 8..), Ok(most)) if (least..=1 << 20).contains(&most) => Ok(least..=most),
        _ => Err("expected bytes, 8 to 1048576, or a range such as 16-1024".to_owned()),
    }
}

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
    let backlog = Backlog { count: args.backlog, sizes: args.backlog_size.clone() };
    let mut lying = (backlog.count > 0).then(|| backlog.publish(&plan)).transpose()?;
    if let Some(sum) = &lying {
        journal
            .note(&format!("a backlog of {} messages after {:.1} s", sum.count, sum.published_s));
    }
    let traffic = Traffic::prepare(&plan, &journal)?;
    let mut phases = traffic.run(|traffic| {
        let mut phases = Phases::new(traffic, &journal);
        if args.told {
            phases.follow(std::io::stdin().lock())?;
        } else {
            // Who works is noted; who does not is a finding.
            let _ = phases.settle(PATIENCE, &[]);
            let end = Instant::now() + Duration::from_secs(args.duration);
            while Instant::now() < end && !interrupt.is_set() {
                std::thread::sleep(Duration::from_millis(50));
            }
            phases.end();
            let _ = phases.settle(PATIENCE, &[]);
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
    if let Some(sum) = &mut lying
        && let Err(error) = backlog.read(&plan.nodes, sum)
    {
        journal.find(&format!("the backlog could not be read: {error:#}"));
    }
    traffic.moments(|deed, at_ms| phases::count(&mut phases, deed, at_ms));
    let outcome = Outcome::of(&traffic, phases, lying, &journal);
    journal.flush();
    // A reader that has seen enough, such as `head`, is no failure.
    let _ = std::io::stdout().write_all(tell(&outcome, &journal).as_bytes());
    let (count, lines) = journal.findings();
    if let Some(path) = &args.json {
        let mut all = serde_json::to_value(&outcome)?;
        all["findings"] = count.into();
        all["first_findings"] = json!(lines);
        std::fs::write(path, serde_json::to_string_pretty(&all)? + "\n")?;
    }
    Ok(match (interrupt.is_set() && !args.told, count) {
        (true, _) => End::Interrupted,
        (false, 0) => End::Good,
        (false, _) => End::Bad,
    })
}

/// What a run came to.
#[derive(Debug, serde::Serialize)]
struct Outcome {
    phases: Vec<Phase>,
    sum: Sum,
    queues: Vec<QueueSum>,
    backlog: Option<BacklogSum>,
}

#[derive(Debug, serde::Serialize)]
struct QueueSum {
    name: String,
    sum: Sum,
}

impl Outcome {
    /// Adds up, and tells the journal what is wrong.
    fn of(
        traffic: &Traffic<'_>,
        phases: Vec<Phase>,
        backlog: Option<BacklogSum>,
        journal: &Journal,
    ) -> Self {
        let (mut sum, mut queues) = (Sum::default(), Vec::new());
        for (name, of_queue, lines) in traffic.sums() {
            sum += of_queue;
            lines.iter().for_each(|line| journal.find(&format!("{name}: {line}")));
            if of_queue.delivered == 0 {
                journal.find(&format!("{name}: nothing was delivered"));
            }
            queues.push(QueueSum { name, sum: of_queue });
        }
        let lying = backlog.unwrap_or_default();
        for (of, what, count) in [
            ("", "lost", sum.lost),
            ("", "twice without a reason", sum.duplicates),
            ("", "out of order", sum.out_of_order),
            ("", "never published, or with other bytes", sum.strange),
            (" of the backlog", "lost", lying.lost),
            (" of the backlog", "twice without a reason", lying.duplicates),
            (" of the backlog", "out of order", lying.out_of_order),
            (" of the backlog", "never published, or with other bytes", lying.strange),
        ] {
            if count > 0 {
                journal.find(&format!("{count} messages{of}: {what}"));
            }
        }
        Self { phases, sum, queues, backlog }
    }
}

/// The phases of a run: each begins with a fault.
struct Phases<'a> {
    traffic: &'a Traffic<'a>,
    journal: &'a Journal,
    name: String,
    nodes: Vec<usize>,
    done: Vec<Phase>,
}

impl<'a> Phases<'a> {
    fn new(traffic: &'a Traffic<'a>, journal: &'a Journal) -> Self {
        Self { traffic, journal, name: UNDISTURBED.to_owned(), nodes: Vec::new(), done: Vec::new() }
    }

    /// Does what the lines say, until there are no more.
    fn follow(&mut self, lines: impl std::io::BufRead) -> Result<()> {
        for line in lines.lines() {
            let line = line.context("reading what is done")?;
            let answer = match line.trim().split_once(' ') {
                Some(("fault", rest)) => {
                    let (name, nodes) = rest
                        .rsplit_once(' ')
                        .and_then(|(name, nodes)| Some((name, numbers(nodes).ok()?)))
                        .unwrap_or((rest, Vec::new()));
                    self.end();
                    (self.name, self.nodes) = (name.to_owned(), nodes);
                    self.journal.note(&line);
                    "begun".to_owned()
                }
                Some(("settle", seconds)) => {
                    let (seconds, away) = seconds.split_once(" without ").unwrap_or((seconds, ""));
                    let seconds = seconds.parse().context("the seconds of 'settle'")?;
                    let away = numbers(away).context("the nodes of 'settle'")?;
                    match self.settle(Duration::from_secs(seconds), &away) {
                        Ok(took) => {
                            let errors = self.traffic.errors_elsewhere(&self.nodes);
                            format!("settled {} {errors}", took.as_millis())
                        }
                        Err(who) => format!("unsettled {who}"),
                    }
                }
                _ => anyhow::bail!(
                    "'{line}' is not 'fault NAME [NODE,...]' nor 'settle SECONDS [without NODE,...]'"
                ),
            };
            let mut out = std::io::stdout();
            writeln!(out, "{answer}").and_then(|()| out.flush()).context("answering")?;
        }
        self.end();
        Ok(())
    }

    /// Waits until every client works that is not over a node that is away.
    fn settle(&self, patience: Duration, away: &[usize]) -> Result<Duration, String> {
        let settled = self.traffic.settle(Instant::now(), patience, away);
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
            nodes: self.nodes.clone(),
            pauses_ms: pauses.iter().map(|it| it.as_secs_f64() * 1e3).collect(),
            errors,
            until_ms: self.traffic.now_ms(),
            ..Phase::default()
        });
    }
}

/// Numbers with commas between them.
fn numbers(text: &str) -> Result<Vec<usize>, std::num::ParseIntError> {
    text.split(',').filter(|it| !it.is_empty()).map(str::parse).collect()
}

/// What came out, for people.
fn tell(outcome: &Outcome, journal: &Journal) -> String {
    let Outcome { phases, sum, backlog, .. } = outcome;
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
    if let Some(sum) = backlog {
        let _ = writeln!(
            text,
            "backlog: {} messages, {} MB, published in {:.0} s, read in {:.0} s; {} lost, {} twice without a reason, {} out of order, {} strange",
            sum.count,
            text::megabytes(sum.bytes as f64),
            sum.published_s,
            sum.read_s,
            sum.lost,
            sum.duplicates,
            sum.out_of_order,
            sum.strange
        );
    }
    let (count, lines) = journal.findings();
    let _ = writeln!(text, "{count} findings");
    for line in lines.iter().take(50) {
        let _ = writeln!(text, "  {line}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_a_backlog() {
        assert_eq!(sizes("16-1024"), Ok(16..=1024));
        assert_eq!(sizes("16"), Ok(16..=16));
        for wrong in ["7", "20-16", "16-", "", "16-9999999", "a"] {
            assert!(sizes(wrong).is_err(), "{wrong}");
        }
    }
}
