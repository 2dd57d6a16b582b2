//! `leveret perf experiment isolation`: what an innocent client feels while somebody does one large thing.
//!
//! Each case has a broker of its own, or a vhost of its own on a broker that runs. First the probe goes alone (the *calm* figures), then the
//! case prepares, then the probe goes beside the large thing until its rounds are calm again.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail, ensure};
use clap::{ArgAction, Args, value_parser};
use leveret_load::probe::{Probe, ProbeOptions, Probed};
use serde::Serialize;
use serde_json::{Value, json};

use crate::broker::BrokerChoice;
use crate::echo::Echoed;
use crate::interrupt::Interrupt;
use crate::machine::Machine;
use crate::outcome::Facts;
use crate::site::{Site, encoded};
use crate::text;

mod cases;
mod judge;
mod stage;

use cases::{ALL, CONTROL, Case};
use judge::Verdict;
use stage::{CaseNotes, FromCase, Stage, peak_rss};

/// What an innocent client feels while somebody does one large thing, on Leveret or beside another broker.
///
/// A probe connects, declares, publishes with a confirm, gets and closes, over and over. The goals: its slowest round takes less than
/// 100 ms and the 99th percentile less than 20 ms (on a busy machine 20 and 4 times the calm 99th percentile), no login fails, no heartbeat is
/// missed, and the broker's memory grows by no more than the messages take and 150 MB.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  leveret perf experiment isolation --list
  leveret perf experiment isolation --scale 0.01 --seconds 2
  leveret perf experiment isolation --case policy --case list --against amqp://guest:guest@127.0.0.1:5673/%2F \\
    --against-api http://guest:guest@127.0.0.1:15673 --against-pid 4711

Exit status: 0 all goals are met, 1 one is not or a case failed, 64 bad arguments, 130 interrupted.")]
pub(crate) struct IsolationArgs {
    /// A case, by name; may be repeated [default: all]
    #[arg(long = "case", value_name = "NAME", value_parser = known)]
    cases: Vec<&'static str>,
    /// Say what each case does, in a line
    #[arg(long)]
    list: bool,
    /// Sizes, as a factor of those in the list
    #[arg(long, value_name = "F", default_value = "1", value_parser = factor)]
    scale: f64,
    /// Seconds of what has no end by itself, such as publishing
    #[arg(long, value_name = "N", default_value_t = 10.0)]
    seconds: f64,
    /// Seconds that a case may take, its preparation too
    #[arg(long, value_name = "N", default_value_t = 600)]
    limit: u64,

    /// By how much the threads that do the large thing give way to the others, as `nice` has it: by default broker and probe are
    /// served before them, as if those clients had a machine of their own. 0: all are equal
    #[arg(long, value_name = "N", default_value_t = 19, value_parser = value_parser!(i32).range(0..=19))]
    load_nice: i32,

    /// A running broker instead of one that is started for each case
    #[arg(long, value_name = "URI")]
    uri: Option<String>,
    /// Its management API [default: port 15672 of its host, as the same user]
    #[arg(long, value_name = "URL", requires = "uri")]
    api: Option<String>,
    /// Its process: memory is measured
    #[arg(long, value_name = "PID", requires = "uri")]
    pid: Option<u32>,
    /// Another broker, for a second column
    #[arg(long, value_name = "URI")]
    against: Option<String>,
    /// Its management API [default: port 15672 of its host, as the same user]
    #[arg(long, value_name = "URL", requires = "against")]
    against_api: Option<String>,
    /// Its process
    #[arg(long, value_name = "PID", requires = "against")]
    against_pid: Option<u32>,

    /// Write everything as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the table as Markdown
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,

    /// Print this help
    #[arg(short = 'h', short_alias = '?', long, action = ArgAction::Help)]
    help: Option<bool>,
}

fn known(name: &str) -> Result<&'static str, String> {
    let found = ALL.iter().find(|case| case.name == name).map(|case| case.name);
    found.ok_or_else(|| format!("there is no such case\n\n{}", list()))
}

fn factor(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(factor) if factor > 0.0 && factor <= 100.0 => Ok(factor),
        _ => Err("expected a factor above 0, at most 100".to_owned()),
    }
}

fn list() -> String {
    let width = ALL.iter().map(|case| case.name.len()).max().unwrap_or(0);
    let line = |case: &Case| format!("  {:width$}  {}\n", case.name, case.title_of(case.size));
    ALL.iter().map(line).collect()
}

impl Case {
    fn title_of(&self, size: u64) -> String {
        self.title.replace("{n}", &text::number(size as f64))
    }

    fn size_at(&self, scale: f64) -> u64 {
        ((self.size as f64 * scale) as u64).max(self.least)
    }
}

/// A case on a broker.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Played {
    pub(crate) case: &'static str,
    pub(crate) title: String,
    pub(crate) size: u64,
    pub(crate) broker: String,
    /// The probe alone, before.
    pub(crate) calm: Option<Probed>,
    /// The probe beside the large thing.
    pub(crate) probed: Option<Probed>,
    /// The same without a broker, at the same time.
    pub(crate) control: Option<Echoed>,
    /// How long the large thing took.
    pub(crate) work_s: Option<f64>,
    /// How much of it was done in a second.
    pub(crate) rate: Option<f64>,
    pub(crate) unit: &'static str,
    /// What the process grew by at most, in bytes.
    pub(crate) grew_bytes: Option<u64>,
    /// What of it are messages, or names that stay, in bytes.
    pub(crate) message_bytes: u64,
    /// Why it was not done.
    pub(crate) failure: Option<String>,
    pub(crate) verdict: Option<Verdict>,
}

#[derive(Debug, Serialize)]
struct Report {
    program: &'static str,
    machine: Machine,
    scale: f64,
    seconds: f64,
    load_nice: i32,
    brokers: Vec<Facts>,
    played: Vec<Played>,
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Good,
    Bad,
    Interrupted,
}

/// A broker of the columns.
struct Column<'a> {
    source: BrokerChoice,
    api: Option<&'a str>,
    is_first: bool,
}

/// Plays the cases, and writes what came of them.
pub(crate) fn run(args: &IsolationArgs) -> Result<End> {
    use std::io::Write as _;
    if args.list {
        let _ = std::io::stdout().write_all(list().as_bytes());
        return Ok(End::Good);
    }
    for path in args.json.iter().chain(&args.markdown) {
        leveret_load::check_writable(path)?;
    }
    let interrupt = Interrupt::listen()?;
    let source = |uri: &Option<String>, pid: Option<u32>| match uri {
        Some(uri) => BrokerChoice::Running { uri: uri.clone(), pid },
        None => BrokerChoice::Own,
    };
    let first = source(&args.uri, args.pid);
    let mut columns = vec![Column { source: first, api: args.api.as_deref(), is_first: true }];
    if args.against.is_some() {
        let source = source(&args.against, args.against_pid);
        columns.push(Column { source, api: args.against_api.as_deref(), is_first: false });
    }
    let mut report = Report {
        program: env!("CARGO_PKG_VERSION"),
        machine: Machine::here(),
        scale: args.scale,
        seconds: args.seconds,
        load_nice: args.load_nice,
        brokers: Vec::new(),
        played: Vec::new(),
    };
    let wanted = |case: &&Case| args.cases.is_empty() || args.cases.contains(&case.name);
    let mut is_good = true;
    'cases: for case in ALL.iter().filter(wanted) {
        for column in &columns {
            if interrupt.is_set() {
                break 'cases;
            }
            let (played, facts) = play(case, column, args, &interrupt)?;
            if !report.brokers.contains(&facts) {
                report.brokers.push(facts);
            }
            eprintln!("{}", line(&played));
            let is_met = played.verdict.as_ref().is_some_and(Verdict::is_met);
            // What another broker refuses or misses is told, and no failure of this one.
            is_good &= is_met || !column.is_first || case.name == CONTROL;
            report.played.push(played);
        }
    }
    if let Some(path) = &args.json {
        std::fs::write(path, serde_json::to_string_pretty(&report)? + "\n")?;
    }
    let table = markdown(&report);
    if let Some(path) = &args.markdown {
        std::fs::write(path, &table)?;
    }
    let _ = std::io::stdout().write_all(table.as_bytes());
    Ok(match (interrupt.is_set(), is_good) {
        (true, _) => End::Interrupted,
        (false, true) => End::Good,
        (false, false) => End::Bad,
    })
}

/// Settings of a broker that is started for a case.
const SETTINGS: &[&str] = &[
    "password_hashing_module=leveret_password_hashing_argon2id",
    // For `large-body`.
    "max_message_size=512MiB",
];

fn play(
    case: &'static Case,
    column: &Column<'_>,
    args: &IsolationArgs,
    interrupt: &Interrupt,
) -> Result<(Played, Facts)> {
    let site = Site::open(&column.source, column.api, SETTINGS)?;
    let vhost = format!("leveret-isolation-{}", case.name);
    let size = case.size_at(args.scale);
    let mut played = Played {
        case: case.name,
        title: case.title_of(size),
        size,
        broker: site.facts.name.clone(),
        calm: None,
        probed: None,
        control: None,
        work_s: None,
        rate: None,
        unit: case.unit,
        grew_bytes: None,
        message_bytes: 0,
        failure: None,
        verdict: None,
    };
    let calm_s = Duration::from_secs_f64(args.seconds.clamp(0.5, 3.0));
    let probe = Probe::start(&ProbeOptions::new(&site.uri), |_| {})?;
    std::thread::sleep(calm_s);
    let calm = probe.stop();
    let done = furnish(&site, &vhost).and_then(|()| {
        let limit = Duration::from_secs(args.limit);
        let (watcher, told) = channel();
        let stage = Stage {
            site: &site,
            vhost: &vhost,
            size,
            seconds: Duration::from_secs_f64(args.seconds),
            end: Instant::now() + limit,
            watcher,
            told: CaseNotes::default(),
        };
        let done = within(&stage, &told, interrupt, || {
            // What computes as the control is to be in the way.
            give_way(if case.name == CONTROL { 0 } else { args.load_nice })?;
            (case.run)(&stage)
        });
        let work = stage.told.began().map(|began| began.elapsed());
        let is_calm =
            Duration::from_millis(100).max(Duration::from_secs_f64(calm.p99_ms / 1e3 * 4.0));
        if let Some((probed, echoed)) = stage.told.end_of_probe(is_calm, Duration::from_secs(90)) {
            (played.probed, played.control) = (Some(probed), Some(echoed));
        }
        played.work_s = work.map(|it| it.as_secs_f64());
        let peak = site.pid.and_then(peak_rss);
        let staying = site.pid.and_then(|pid| stage.told.staying_bytes(pid));
        played.message_bytes = staying.unwrap_or_else(|| stage.told.message_bytes());
        let before = stage.told.rss_before();
        played.grew_bytes = peak.filter(|_| before > 0).map(|peak| peak.saturating_sub(before));
        done
    });
    match done {
        Ok(count) => played.rate = played.work_s.map(|work_s| count as f64 / work_s),
        Err(error) => played.failure = Some(format!("{error:#}")),
    }
    played.calm = Some(calm);
    played.verdict = judge::judge(&played);
    // One that was started for this goes with all it has.
    if !site.facts.started_here {
        let path = format!("/api/vhosts/{}", encoded(&vhost));
        let _ = site.ask("DELETE", &path, &Value::Null);
    }
    Ok((played, site.facts))
}

/// Makes the vhost of a case, fresh.
fn furnish(site: &Site, vhost: &str) -> Result<()> {
    let path = format!("/api/vhosts/{}", encoded(vhost));
    let _ = site.ask("DELETE", &path, &Value::Null);
    site.ask("PUT", &path, &json!({}))?;
    let user = site.uri_of(vhost)?.user;
    let all = json!({"configure": ".*", "write": ".*", "read": ".*"});
    site.ask("PUT", &format!("/api/permissions/{}/{}", encoded(vhost), encoded(&user)), &all)?;
    Ok(())
}

/// Runs a deed on a thread of its own, and watches it from another. If it takes too long, or somebody wants it to end, its
/// connections are ended.
fn within(
    stage: &Stage<'_>,
    told: &Receiver<FromCase>,
    interrupt: &Interrupt,
    work: impl FnOnce() -> Result<u64> + Send,
) -> Result<u64> {
    std::thread::scope(|scope| {
        let working = scope.spawn(move || {
            let result = work();
            let _ = stage.watcher.send(FromCase::Ended);
            result
        });
        while !working.is_finished() {
            match told.recv_timeout(Duration::from_millis(50)) {
                Ok(FromCase::Begins(reply)) => {
                    stage.start_probe();
                    let _ = reply.send(());
                }
                Ok(FromCase::Ended) | Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    if Instant::now() >= stage.end || interrupt.is_set() {
                        stage.site.stop_all();
                    }
                }
            }
        }
        let result = working.join().map_err(|_| anyhow!("the case panicked"))?;
        if interrupt.is_set() {
            bail!("interrupted");
        }
        result
    })
}

/// The calling thread and those that it starts have the processor when broker and probe leave it: clients on machines of their
/// own would not take it from them either. A control beside it tells what the machine still does to who waits.
fn give_way(by: i32) -> Result<()> {
    use rustix::process::{getpriority_process, setpriority_process};
    // Linux takes both for the calling thread.
    let nice = getpriority_process(None)? + by;
    setpriority_process(None, nice)?;
    ensure!(
        getpriority_process(None)? == nice,
        "the load cannot have priority {nice}, which is {by} behind the others: start this with a lower nice value, or with --load-nice 0"
    );
    Ok(())
}

/// A case, in a line.
fn line(played: &Played) -> String {
    let mut text = format!("{} on {}: ", played.title, played.broker);
    if let Some(probed) = &played.probed {
        let _ = write!(
            text,
            "slowest {} ms, p99 {} ms, ",
            text::number(probed.slowest_ms),
            text::number(probed.p99_ms)
        );
    }
    match (&played.failure, &played.verdict) {
        (Some(failure), _) => text += failure,
        (None, Some(verdict)) => text += &verdict.to_string(),
        (None, None) if played.case == CONTROL => text += "no goals",
        (None, None) => text += "not measured",
    }
    text
}

/// All of them, as a table.
fn markdown(report: &Report) -> String {
    let mut text = format!(
        "Machine: {}. Sizes are {} of those in the documents; times in ms. The load's threads give way by {}.\n\n\
         | large thing | broker | calm p50, p99, slowest | slowest | p99 | control: slowest, p99 | failed logins | missed heartbeats | errors | grew by, MB (messages or names) | took, s | rate | goals |\n\
         |---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|\n",
        report.machine, report.scale, report.load_nice
    );
    for it in &report.played {
        let none = || "-".to_owned();
        let number = |value: Option<f64>| value.map_or_else(none, text::number);
        let calm = it.calm.as_ref().map_or_else(none, |it| {
            [it.p50_ms, it.p99_ms, it.slowest_ms].map(text::number).join(", ")
        });
        let of = |figure: fn(&Probed) -> f64| number(it.probed.as_ref().map(figure));
        let control = it
            .control
            .as_ref()
            .map_or_else(none, |it| [it.slowest_ms, it.p99_ms].map(text::number).join(", "));
        let grew = it.grew_bytes.map_or_else(none, |grew| {
            let mb = |bytes: u64| text::number(bytes as f64 / 1e6);
            format!("{} ({})", mb(grew), mb(it.message_bytes))
        });
        let rate =
            it.rate.map_or_else(none, |rate| format!("{} {}/s", text::number(rate), it.unit));
        let goals = match (&it.failure, &it.verdict) {
            (Some(failure), _) => {
                format!("not done: {}", failure.replace('|', "/").replace('\n', " "))
            }
            (None, Some(verdict)) => verdict.to_string(),
            (None, None) => "-".to_owned(),
        };
        let _ = writeln!(
            text,
            "| {} | {} | {calm} | {} | {} | {control} | {} | {} | {} | {grew} | {} | {rate} | {goals} |",
            it.title,
            it.broker,
            of(|it| it.slowest_ms),
            of(|it| it.p99_ms),
            of(|it| it.failed_logins as f64),
            of(|it| it.missed_heartbeats as f64),
            of(|it| it.errors as f64),
            number(it.work_s),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_have_words_of_their_own() {
        for (at, case) in ALL.iter().enumerate() {
            assert!(ALL[..at].iter().all(|other| other.name != case.name), "{}", case.name);
            assert!(case.title.contains("{n}") || case.name == "fanout-blind", "{}", case.name);
            assert_eq!(known(case.name), Ok(case.name));
            assert_eq!(case.size_at(1.0), case.size);
            assert_eq!(case.size_at(1e-9), case.least);
        }
        assert!(known("fly").unwrap_err().contains("ten-move"));
    }
}
