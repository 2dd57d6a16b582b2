//! The tool as people use it: arguments in, lines and files out.

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::args::{Options, env};
use crate::csv::Csv;
use crate::idle;
use crate::json;
use crate::lines::{Lines, Shown};
use crate::live::Live;
use crate::outcome::{Interval, Outcome};
use crate::plan::Plan;
use crate::prometheus::Prometheus;
use crate::run;
use crate::sweep::Sweep;

/// Exit status of a run whose messages were not what they should have been.
const NOT_GOOD: u8 = 3;

/// Reads the arguments and does what they say; errors go to stderr.
pub(crate) fn talk(raw: Vec<OsString>) -> ExitCode {
    let lookup = |name: &str| std::env::var(name).ok();
    let options = match Options::read_with(raw.iter().cloned(), lookup) {
        Ok(options) => options,
        Err(error) => {
            // Help goes to stdout and is no failure; nobody may be reading either.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    if let Some(page) = page(&options, lookup) {
        let _ = std::io::stdout().lock().write_all(page.as_bytes());
        return ExitCode::SUCCESS;
    }
    match measure(&options, &raw) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(NOT_GOOD),
        Err(error) => {
            let _ = writeln!(std::io::stderr().lock(), "leveret perf: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// What is printed instead of a run.
fn page(options: &Options, lookup: impl Fn(&str) -> Option<String>) -> Option<String> {
    if options.version {
        Some(format!("leveret perf {}\n", env!("CARGO_PKG_VERSION")))
    } else if options.environment_variables {
        Some(env::page(&Options::command_for_help(), lookup))
    } else {
        options.metrics_help.then(Options::metrics_help)
    }
}

/// Measures as `options` say, and prints lines, a summary and files. Tells whether the messages were what
/// they should have been.
fn measure(options: &Options, raw: &[OsString]) -> Result<bool> {
    if !options.without_effect.is_empty() {
        let names = options.without_effect.join(", ");
        let _ = writeln!(
            std::io::stderr().lock(),
            "leveret perf: no effect, there is no JVM to tune: {names}"
        );
    }
    let output = &options.output;
    let is_told_as_json = output.json.as_deref() == Some("-".as_ref());
    if let (Some(path), false) = (&output.json, is_told_as_json) {
        json::check_writable(path)?;
    }
    let lines = Lines::new(options, is_told_as_json);
    let idle = match (output.idle_connections, output.idle_queues, output.broker_pid) {
        (Some(count), _, Some(pid)) => Some((idle::Idle::Connections, count, pid)),
        (_, Some(count), Some(pid)) => Some((idle::Idle::Queues, count, pid)),
        _ => None,
    };
    let mut is_good = true;
    let result = if let Some((kind, count, pid)) = idle {
        idle::run(&Plan::new(options)?, kind, count, pid, &lines)?
    } else if let Some(sweep) = &options.extras.sweep {
        let (results, all_good) = sweep_over(sweep, raw, &lines)?;
        is_good = all_good;
        Value::Array(results)
    } else {
        let outcome = one(options, raw, lines)?;
        is_good = is_as_it_should_be(&outcome);
        json::json(&outcome)
    };
    if let Some(path) = &output.json {
        json::write(&result, path)?;
    }
    Ok(is_good)
}

fn is_as_it_should_be(outcome: &Outcome) -> bool {
    outcome.verification.is_none_or(|verification| verification.is_good())
}

/// One run, told while it goes on and at its end.
fn one(options: &Options, raw: &[OsString], mut lines: Lines) -> Result<Outcome> {
    let plan = Plan::new(options)?;
    let shown = Shown::of(&plan);
    let output = &options.output;
    let mut csv = match &output.output_file {
        Some(path) => Some(Csv::create(path, &output.id, shown)?),
        None => None,
    };
    let words: Vec<_> = raw.iter().map(|word| word.to_string_lossy()).collect();
    let mut prometheus = Prometheus::start(&options.metrics, &plan, &words.join(" "))?;
    lines.starting(&plan);
    let mut live = if options.extras.live { Live::start(&plan, shown, &output.id) } else { None };
    let mut failed = Ok(());
    let mut tell = |interval: &Interval| {
        match &mut live {
            Some(live) => live.interval(shown, interval),
            None => lines.interval(shown, interval),
        }
        if let Some(prometheus) = &mut prometheus {
            prometheus.interval(interval);
        }
        if let (Some(csv), Ok(())) = (&mut csv, &failed) {
            failed = csv.interval(shown, interval);
        }
    };
    let outcome = run::run(&plan, options, Some(&mut tell));
    if let Some(live) = &live {
        live.finish();
    }
    let outcome = outcome?;
    failed.context("writing --output-file")?;
    lines.summary(shown, &outcome);
    lines.savings(&plan.content, &outcome);
    Ok(outcome)
}

/// The runs of a sweep, and a table of them.
fn sweep_over(sweep: &Sweep, raw: &[OsString], lines: &Lines) -> Result<(Vec<Value>, bool)> {
    let (mut outcomes, mut results, mut is_good) = (Vec::new(), Vec::new(), true);
    for (value, options) in sweep.runs(raw)? {
        lines.print(&format!("--{} {value}:", sweep.option));
        let outcome = one(&options, raw, lines.clone())?;
        is_good &= is_as_it_should_be(&outcome);
        let mut result = json::json(&outcome);
        result["sweep"] = json!({ &*sweep.option: value });
        results.push(result);
        outcomes.push((value, outcome));
    }
    sweep.table(&outcomes).iter().for_each(|line| lines.print(line));
    Ok((results, is_good))
}
