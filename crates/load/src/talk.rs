//! The tool as people use it: arguments in, lines and files out.

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

use anyhow::{Context as _, Result};

use crate::args::{Options, env};
use crate::csv::Csv;
use crate::idle;
use crate::json;
use crate::lines::{Lines, Shown};
use crate::outcome::Interval;
use crate::plan::Plan;
use crate::run;

/// Reads the arguments and does what they say; errors go to stderr.
pub(crate) fn talk(raw: Vec<OsString>) -> ExitCode {
    let lookup = |name: &str| std::env::var(name).ok();
    let options = match Options::read_with(raw, lookup) {
        Ok(options) => options,
        Err(error) => {
            // Help goes to stdout and is no failure; nobody may be reading either.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    if options.version || options.environment_variables {
        let text = if options.version {
            format!("leveret perf {}\n", env!("CARGO_PKG_VERSION"))
        } else {
            env::page(&Options::command_for_help(), lookup)
        };
        let _ = std::io::stdout().lock().write_all(text.as_bytes());
        return ExitCode::SUCCESS;
    }
    match measure(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(NOT_GOOD),
        Err(error) => {
            let _ = writeln!(std::io::stderr().lock(), "leveret perf: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Exit status of a run whose messages were not what they should have been.
const NOT_GOOD: u8 = 3;

/// Measures as `options` say, and prints lines, a summary and files. Tells whether the messages were what
/// they should have been.
fn measure(options: &Options) -> Result<bool> {
    if !options.without_effect.is_empty() {
        let names = options.without_effect.join(", ");
        let _ = writeln!(
            std::io::stderr().lock(),
            "leveret perf: no effect, there is no JVM to tune: {names}"
        );
    }
    let plan = Plan::new(options)?;
    let output = &options.output;
    let json_on_stdout = output.json.as_deref() == Some("-".as_ref());
    let mut lines = Lines::new(options, json_on_stdout);
    let idle = match (output.idle_connections, output.idle_queues, output.broker_pid) {
        (Some(count), _, Some(pid)) => Some((idle::Kind::Connections, count, pid)),
        (_, Some(count), Some(pid)) => Some((idle::Kind::Queues, count, pid)),
        _ => None,
    };
    let mut is_good = true;
    let result = if let Some((kind, count, pid)) = idle {
        idle::run(&plan, kind, count, pid, &lines)?
    } else {
        let shown = Shown::of(&plan);
        let mut csv = match &output.output_file {
            Some(path) => Some(Csv::create(path, &output.id, shown)?),
            None => None,
        };
        lines.starting(&plan);
        let mut failed = Ok(());
        let mut tell = |interval: &Interval| {
            lines.interval(shown, interval);
            if let (Some(csv), Ok(())) = (&mut csv, &failed) {
                failed = csv.interval(shown, interval);
            }
        };
        let outcome = run::run(&plan, options, Some(&mut tell))?;
        failed.context("writing --output-file")?;
        lines.summary(shown, &outcome);
        lines.savings(&plan.content, &outcome);
        is_good = outcome.verification.is_none_or(|verification| verification.is_good());
        json::json(&outcome)
    };
    if let Some(path) = &output.json {
        json::write(&result, path)?;
    }
    Ok(is_good)
}
