//! `leveret perf probe`: the probe by itself, beside whatever is done by hand.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{ArgAction, Args};

use super::{Probe, ProbeOptions, Probed, Round};
use crate::json;

/// Feel what an ordinary client feels while others load a broker.
///
/// Over and over it connects, declares a queue, publishes a persistent message with a confirm, gets it and closes; the slowest
/// round is the figure. A second connection listens to heartbeats.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  leveret perf probe
  leveret perf probe --uri amqp://guest:guest@127.0.0.1:5673/%2F --seconds 60 --json probe.json

Exit status: 0 nothing failed, 1 a login, a step or a heartbeat failed, 64 bad arguments.")]
pub struct ProbeArgs {
    /// The broker
    #[arg(long, value_name = "URI", default_value = "amqp://guest:guest@127.0.0.1:5672/%2F")]
    uri: String,
    /// How long
    #[arg(long, value_name = "N", default_value = "10", value_parser = seconds)]
    seconds: f64,
    /// Milliseconds from the beginning of a round to that of the next; 0 leaves no pause
    #[arg(long, value_name = "MS", default_value_t = 10)]
    every: u64,
    /// Seconds that one step of a round may take
    #[arg(long, value_name = "N", default_value = "15", value_parser = seconds)]
    timeout: f64,
    /// Say each second how its rounds were
    #[arg(long)]
    lines: bool,
    /// Write the figures as JSON; - is stdout
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Print this help
    // By hand: the load tool, of which this is a part, has another -h, and so none of clap's.
    #[arg(short = 'h', short_alias = '?', long, action = ArgAction::Help)]
    help: Option<bool>,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=1e6).contains(&seconds) => Ok(seconds),
        _ => Err("expected seconds, 0.1 to 1000000".to_owned()),
    }
}

/// Runs `leveret perf probe`; errors go to stderr.
pub fn main(args: &ProbeArgs) -> ExitCode {
    match probe(args) {
        Ok(probed) if probed.is_clean() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "leveret perf probe: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn probe(args: &ProbeArgs) -> Result<Probed> {
    let is_told_as_json = args.json.as_deref() == Some("-".as_ref());
    if let (Some(path), false) = (&args.json, is_told_as_json) {
        json::check_writable(path)?;
    }
    let options = ProbeOptions {
        uri: args.uri.clone(),
        every: Duration::from_millis(args.every),
        timeout: Duration::from_secs_f64(args.timeout),
    };
    let say = |line: &str| {
        // Who has read enough is no failure.
        let _ = match is_told_as_json {
            true => writeln!(std::io::stderr(), "{line}"),
            false => writeln!(std::io::stdout(), "{line}"),
        };
    };
    let (tell, told) = channel();
    let began = Instant::now();
    let probe = Probe::start(&options, move |round| drop(tell.send(round.clone())))?;
    let end = began + Duration::from_secs_f64(args.seconds);
    let mut second = Second::default();
    for number in 1_u32.. {
        let tick = (began + Duration::from_secs(1) * number).min(end);
        while let Ok(round) = told.recv_timeout(tick.saturating_duration_since(Instant::now())) {
            second.add(&round);
        }
        if args.lines {
            say(&second.line(began.elapsed()));
        }
        second = Second::default();
        if tick >= end {
            break;
        }
    }
    let probed = probe.stop();
    say(&summary(&probed));
    if let Some(path) = &args.json {
        json::write(&serde_json::to_value(&probed)?, path)?;
    }
    Ok(probed)
}

/// The rounds of one second.
#[derive(Default)]
struct Second {
    rounds: u32,
    failed: u32,
    slowest: Option<Round>,
}

impl Second {
    fn add(&mut self, round: &Round) {
        self.rounds += 1;
        self.failed += u32::from(round.failure.is_some());
        if self.slowest.as_ref().is_none_or(|it| it.took() < round.took()) {
            self.slowest = Some(round.clone());
        }
    }

    fn line(&self, elapsed: Duration) -> String {
        let at_s = elapsed.as_secs_f64();
        let Some(slowest) = &self.slowest else {
            return format!("{at_s:6.1} s: no round ended");
        };
        let step = slowest.slowest_step().name();
        let failed =
            if self.failed > 0 { format!(", {} FAILED", self.failed) } else { String::new() };
        let slowest_ms = slowest.took().as_secs_f64() * 1e3;
        format!("{at_s:6.1} s: {} rounds, slowest {slowest_ms:.1} ms ({step}){failed}", self.rounds)
    }
}

/// What was found, for people.
fn summary(probed: &Probed) -> String {
    let Probed { rounds, seconds, p50_ms, p99_ms, slowest_ms, slowest_at_s, .. } = probed;
    let step = probed.slowest_step.map_or("", super::Step::name);
    let mut text = format!(
        "{rounds} rounds in {seconds:.1} s: p50 {p50_ms:.1} ms, p99 {p99_ms:.1} ms, slowest {slowest_ms:.1} ms \
         (at {slowest_at_s:.1} s, {step})\n\
         failed logins: {}, errors: {}, missed heartbeats: {}, longest silence {:.0} ms",
        probed.failed_logins, probed.errors, probed.missed_heartbeats, probed.longest_silence_ms,
    );
    for failure in &probed.failures {
        text += &format!("\n  {failure}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::Step;
    use super::*;

    #[test]
    fn seconds_are_told() {
        let steps = [1, 40, 1, 1, 1].map(Duration::from_millis);
        let failure = Some((Step::Close, "gone".to_owned()));
        let mut second = Second::default();
        assert_eq!(second.line(Duration::from_secs(2)), "   2.0 s: no round ended");
        second.add(&Round { began: Instant::now(), steps, failure });
        let line = second.line(Duration::from_secs(3));
        assert_eq!(line, "   3.0 s: 1 rounds, slowest 44.0 ms (declare), 1 FAILED");
    }

    #[test]
    fn a_summary_has_why() {
        let probed = Probed {
            rounds: 3,
            seconds: 1.0,
            slowest_ms: 15_000.4,
            slowest_step: Some(Step::Login),
            failed_logins: 1,
            failures: vec!["at 0.1 s, login: no answer".to_owned()],
            ..Probed::default()
        };
        let text = summary(&probed);
        assert!(text.contains("slowest 15000.4 ms (at 0.0 s, login)"), "{text}");
        assert!(text.ends_with("login: no answer"), "{text}");
    }
}
