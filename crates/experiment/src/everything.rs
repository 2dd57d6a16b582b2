//! `leveret perf experiment everything`: all that clients and operators do, at once and by chance, for minutes or hours.
//!
//! ```text
//!   probe ---------------------------\
//!   ledger: confirmed traffic         \
//!   clients that come and go           >-- a broker     journal --> judgement
//!   large bodies at the watermark     /
//!   operators: API, ctl, closings ---/
//! ```

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::{ArgAction, Args};
use leveret_load::probe::{Probe, ProbeOptions, Probed};
use leveret_load::process;
use serde_json::{Value, json};

use crate::broker::BrokerChoice;
use crate::echo::{Echo, Echoed};
use crate::interrupt::Interrupt;
use crate::isolation::End;
use crate::site::Site;
use crate::text;

pub(crate) mod chance;
mod clients;
mod heap;
pub(crate) mod journal;
mod ledger;
mod operators;

use chance::Chance;
use journal::Journal;
use ledger::{Book, Sum};

/// All that clients and operators do, at once and by chance: nothing stops the broker, nothing is lost.
///
/// Clients come, declare, publish, consume, get and vanish; confirmed traffic is accounted for; operators ask every route of the API, run
/// every command of ctl, and close connections; large bodies fill the memory to its watermark; a probe feels all of it. In the end: was a round of the
/// probe too slow, was there an error that nothing explains, was a message lost, did memory grow?
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  leveret perf experiment everything --duration 60
  leveret perf experiment everything --duration 3600 --seed 7 --log night.log

The same seed makes the same choices; what they meet is decided by the threads.
Exit status: 0 nothing was found, 1 something was, 64 bad arguments, 130 interrupted.")]
pub(crate) struct EverythingArgs {
    /// Seconds
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    duration: u64,
    /// What decides the choices [default: the time]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// A round of the probe that takes longer, in ms, is a finding
    #[arg(long, value_name = "MS", default_value_t = 100.0)]
    slowest: f64,
    /// Where everything that was done goes, a line each
    #[arg(long, value_name = "FILE", default_value = "leveret-everything.log")]
    log: PathBuf,
    /// Write the figures as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The memory watermark of the broker, in MB
    #[arg(long, value_name = "MB", default_value_t = 300)]
    watermark: u64,
    /// Clients that come and go at a time
    #[arg(long, value_name = "N", default_value_t = 4)]
    clients: u64,

    /// Print this help
    #[arg(short = 'h', short_alias = '?', long, action = ArgAction::Help)]
    help: Option<bool>,
}

/// Queues whose traffic is accounted for.
const LEDGERS: usize = 3;
/// Memory that may come on top over the run, in bytes, and as a share.
const GROWTH: (f64, f64) = (50e6, 0.1);
/// Runs that are shorter tell nothing of growth.
const GROWTH_FROM: Duration = Duration::from_secs(600);

/// Runs it, and judges.
pub(crate) fn run(args: &EverythingArgs) -> Result<End> {
    if let Some(path) = &args.json {
        leveret_load::check_writable(path)?;
    }
    let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seed = args.seed.unwrap_or_else(|| now().map_or(0, |it| it.as_secs()));
    let journal = Arc::new(Journal::create(&args.log)?);
    let interrupt = Interrupt::listen()?;
    let watermark = format!("vm_memory_high_watermark.absolute={}MB", args.watermark);
    let mut site = Site::open(&BrokerChoice::Own, None, &[&watermark])?;
    furnish(&site)?;
    let description = String::from_utf8(site.ask("GET", "/api/openapi.yaml", &Value::Null)?)?;
    let routes = operators::routes(&description);
    let nodes: Value = serde_json::from_slice(&site.ask("GET", "/api/nodes", &Value::Null)?)?;
    let node = nodes[0]["name"].as_str().context("the node's name")?.to_owned();
    eprintln!(
        "seed {seed}, {} s; everything that is done goes to {}",
        args.duration,
        args.log.display()
    );
    let (stop, last) = (AtomicBool::new(false), AtomicBool::new(false));
    let books: Vec<Book> = (0..LEDGERS).map(|_| Book::default()).collect();
    let told = Arc::clone(&journal);
    let probe = Probe::start(&ProbeOptions::new(&site.uri), move |round| told.round(round))?;
    let echo = Echo::start()?;
    let (program, socket) = (std::env::current_exe()?, site.broker.socket());
    let socket = socket.context("the control socket")?;
    let dir = tempfile::tempdir()?;
    let memory = {
        let (site, journal, stop, last) = (&site, &*journal, &stop, &last);
        let user = site.uri_of("/")?.user;
        let (ledger, large, chaos) =
            (site.uri_of("ledger")?, site.uri_of("large")?, site.uri_of("/")?);
        let names: Vec<String> = (0..LEDGERS).map(|number| format!("ledger-{number}")).collect();
        std::thread::scope(|scope| {
            for (queue, book) in names.iter().zip(&books) {
                let uri = &ledger;
                scope.spawn(move || ledger::produce(uri, queue, book, journal, stop));
                scope.spawn(move || ledger::consume(uri, queue, book, journal, last));
            }
            for number in 0..args.clients {
                let (uri, chance) = (&chaos, Chance::new(seed, 100 + number));
                scope.spawn(move || clients::come_and_go(uri, chance, journal, stop));
            }
            let (large, user) = (&large, &user);
            let chance = |thread| Chance::new(seed, thread);
            scope.spawn(move || clients::fill_memory(large, Chance::new(seed, 1), journal, stop));
            scope.spawn(move || operators::tend(&site.api, user, journal, stop));
            scope.spawn(move || {
                operators::close_some(&site.api, Chance::new(seed, 2), journal, stop)
            });
            let (routes, node) = (&routes, &node);
            scope.spawn(move || {
                operators::ask_everything(&site.api, node, routes, chance(3), journal, stop)
            });
            // Each knows nothing of the others.
            for thread in 10..13 {
                scope.spawn(move || {
                    heap::come_and_go(&site.api, user, chance(thread), journal, stop);
                });
            }
            let (program, socket, dir) = (&program, &socket, dir.path());
            scope.spawn(move || {
                operators::run_commands(program, socket, dir, chance(5), journal, stop)
            });
            let memory = watch(site, args, journal, &interrupt);
            stop.store(true, Ordering::Release);
            // Producers have their last confirms by then; what they published comes to those who consume.
            std::thread::sleep(Duration::from_secs(1));
            last.store(true, Ordering::Release);
            memory
        })
    };
    let (probed, echoed) = (probe.stop(), echo.stop());
    let sums: Vec<Sum> = books.iter().map(Book::sum).collect();
    judge(args, &mut site, &journal, &probed, &sums, &memory);
    journal.flush();
    let told = tell(seed, &journal, (&probed, &echoed), &sums, &memory);
    // A reader that has seen enough, such as `head`, is no failure.
    let _ = std::io::Write::write_all(&mut std::io::stdout(), format!("{told}\n").as_bytes());
    if let Some(path) = &args.json {
        let (count, lines) = journal.findings();
        let all = json!({
            "seed": seed, "probe": probed, "control": echoed, "ledger": sums, "counts": journal.counts(), "findings": count,
            "first_findings": lines, "memory_bytes": memory, "around_the_worst_round": journal.worst().lines,
        });
        std::fs::write(path, serde_json::to_string_pretty(&all)? + "\n")?;
    }
    Ok(match (interrupt.is_set(), journal.findings().0) {
        (true, _) => End::Interrupted,
        (false, 0) => End::Good,
        (false, _) => End::Bad,
    })
}

/// Vhosts for what is accounted for, and for large bodies.
fn furnish(site: &Site) -> Result<()> {
    let mut connection = None;
    for vhost in ["ledger", "large"] {
        site.ask("PUT", &format!("/api/vhosts/{vhost}"), &json!({}))?;
        let all = json!({"configure": ".*", "write": ".*", "read": ".*"});
        site.ask("PUT", &format!("/api/permissions/{vhost}/guest"), &all)?;
        connection.get_or_insert(site.connect(vhost)?);
    }
    let Some(mut connection) = connection else { bail!("no connection") };
    let channel = connection.open_channel()?;
    for number in 0..LEDGERS {
        let how = leveret_client::QueueDeclare { durable: true, ..Default::default() };
        connection.queue_declare(channel, &format!("ledger-{number}"), &how)?;
    }
    Ok(connection.close()?)
}

/// Follows the memory of the broker until the time is over: bytes, once a second.
fn watch(site: &Site, args: &EverythingArgs, journal: &Journal, interrupt: &Interrupt) -> Vec<u64> {
    let (began, mut memory) = (Instant::now(), Vec::new());
    while began.elapsed() < Duration::from_secs(args.duration) && !interrupt.is_set() {
        let next = Instant::now() + Duration::from_secs(1);
        match site.pid.and_then(process::tree) {
            Some(usage) => memory.push(usage.rss_bytes),
            None => break,
        }
        let waits = site.ask("GET", "/api/leveret/waits", &Value::Null);
        if let Some(waits) = waits.ok().and_then(|it| serde_json::from_slice(&it).ok()) {
            journal.took_long(&waits);
        }
        while Instant::now() < next && !interrupt.is_set() {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    memory
}

fn median(values: &[u64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or(0) as f64
}

/// What memory was in the second fifth of the run, and in the last.
fn growth(memory: &[u64]) -> (f64, f64) {
    let fifth = memory.len() / 5;
    (median(&memory[fifth..2 * fifth]), median(&memory[memory.len() - fifth..]))
}

fn judge(
    args: &EverythingArgs,
    site: &mut Site,
    journal: &Journal,
    probed: &Probed,
    sums: &[Sum],
    memory: &[u64],
) {
    if probed.slowest_ms > args.slowest {
        journal.find(&format!(
            "a round of the probe took {} ms; what went on meanwhile is told below",
            text::number(probed.slowest_ms)
        ));
    }
    probed.failures.iter().for_each(|failure| journal.find(&format!("probe {failure}")));
    if probed.missed_heartbeats > 0 {
        journal.find(&format!("{} heartbeats were missed", probed.missed_heartbeats));
    }
    for (number, sum) in sums.iter().enumerate() {
        if sum.lost > 0 {
            journal.find(&format!("ledger-{number}: {} confirmed messages are lost", sum.lost));
        }
        if sum.delivered == 0 {
            journal.find(&format!("ledger-{number}: nothing was delivered"));
        }
    }
    if let Some(status) = site.broker.has_ended() {
        journal.find(&format!("the broker ended with {status}"));
    }
    for complaint in site.broker.complaints() {
        journal.note(&format!("the broker said: {complaint}"));
        if is_finding(&complaint) {
            journal.find(&format!("the broker said: {complaint}"));
        }
    }
    let (before, after) = growth(memory);
    if memory.len() as u64 >= GROWTH_FROM.as_secs() && after > before * (1.0 + GROWTH.1) + GROWTH.0
    {
        journal.find(&format!(
            "memory grew from {} to {} MB",
            text::number(before / 1e6),
            text::number(after / 1e6)
        ));
    }
}

/// Whether a line of the broker's log says that something is wrong with the broker: what takes longer than a second is,
/// whatever the machine.
///
/// An exception that closes a client's channel or connection is logged as an error, as RabbitMQ does. The client's own
/// part of the run judges whether it should have come; an internal error never should.
fn is_finding(line: &str) -> bool {
    let is_exception = line.contains(" exception ") && !line.contains(" exception internal_error");
    let is_error = line.contains("ERROR ") && !is_exception;
    is_error || ["panicked", "watchdog: "].iter().any(|it| line.contains(it))
}

/// What came out, for people.
fn tell(
    seed: u64,
    journal: &Journal,
    (probed, echoed): (&Probed, &Echoed),
    sums: &[Sum],
    memory: &[u64],
) -> String {
    let mut text = format!(
        "seed {seed}\nprobe: {} rounds, p50 {} ms, p99 {} ms, slowest {} ms; failed logins {}, errors {}, missed heartbeats {}\n",
        probed.rounds,
        text::number(probed.p50_ms),
        text::number(probed.p99_ms),
        text::number(probed.slowest_ms),
        probed.failed_logins,
        probed.errors,
        probed.missed_heartbeats,
    );
    let _ = writeln!(text, "{}", echoed.told());
    for (number, Sum { published, confirmed, delivered, lost }) in sums.iter().enumerate() {
        let _ = writeln!(
            text,
            "ledger-{number}: {published} published, {confirmed} confirmed, {delivered} delivered, {lost} lost"
        );
    }
    for (who, counts) in journal.counts() {
        let journal::Counts { done, explained, unexplained } = counts;
        let _ = writeln!(
            text,
            "{who}: {done} done, {explained} refused for a reason, {unexplained} unexplained"
        );
    }
    let (before, after) = growth(memory);
    let most = memory.iter().copied().max().unwrap_or(0) as f64;
    let _ = writeln!(
        text,
        "memory: {} MB early, {} MB late, {} MB at most",
        text::number(before / 1e6),
        text::number(after / 1e6),
        text::number(most / 1e6)
    );
    let worst = journal.worst();
    if !worst.lines.is_empty() {
        let from = worst.from.unwrap_or_else(Instant::now);
        let control = echoed.slowest_between(from, from + worst.took);
        let _ = writeln!(
            text,
            "around the worst round, {} ms; the slowest round of the control meanwhile took {control}:",
            text::number(worst.took.as_secs_f64() * 1e3)
        );
        let (count, long) = journal.long_between(from, from + worst.took);
        for line in &long {
            let _ = writeln!(text, "  in the broker {line}");
        }
        let _ = writeln!(
            text,
            "  of {count} turns, disks' jobs and other things of the broker that took long in the run, {} were under way meanwhile",
            long.len()
        );
        for line in &worst.lines {
            let _ = writeln!(text, "  {line}");
        }
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
    #[rustfmt::skip] // a table
    fn lines_that_are_findings() {
        let check = |line: &str, want| assert_eq!(is_finding(line), want, "{line}");
        check("2026-01-01T00:00:00Z ERROR the disk failed",                           true);
        check("ERROR Channel error on connection <connection.1>, channel 1: operation basic.get caused a channel exception not_found: no queue 'q'", false);
        check("ERROR 5 more like it from guest, the first: Error on AMQP connection <connection.2>, channel 0: operation connection.open caused a connection exception not_allowed: no", false);
        check("ERROR Error on AMQP connection <connection.2>, channel 0: operation tx.commit caused a connection exception internal_error: the disk", true);
        check("thread 'shard-0' panicked at crates/topology/src/x.rs:1:1",            true);
        check(" WARN watchdog: a shard's turn takes long thread=\"io-0\"",             true);
        check(" WARN clients did not answer connection.close",                        false);
    }

    #[test]
    fn growth_is_late_against_early() {
        let memory: Vec<u64> =
            (0..100).map(|at| if at % 10 == 0 { 900 } else { 100 + at }).collect();
        let (before, after) = growth(&memory);
        assert!(
            (128.0..135.0).contains(&before) && (188.0..195.0).contains(&after),
            "{before} {after}"
        );
        assert_eq!(growth(&[]), (0.0, 0.0));
    }
}
