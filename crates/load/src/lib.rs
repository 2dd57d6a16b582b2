//! `leveret perf`: the load tool.
//!
//! Drives publishers and consumers against any AMQP 0-9-1 broker and measures rates, latencies,
//! and what the broker's process spends. A producer and a consumer are one thread and one
//! connection each; what they cost themselves is reported too.
//!
//! ```text
//! args --> plan --> run --> producer, consumer (threads) --> stats
//!                    |                                         |
//!                    +--------------- report <-----------------+
//! ```

use std::ffi::OsString;
use std::process::ExitCode;

mod args;
mod consumer;
mod idle;
mod pace;
mod plan;
pub mod process;
mod producer;
mod report;
mod run;
mod stamp;
mod stats;
mod window;

use anyhow::{Result, bail};

pub use args::{Flag, Mode, Options, PerfArgs};
pub use report::Interval;
pub use run::{Broker, Outcome};
pub use stats::{Counter, Percentiles, Totals};

/// Runs `leveret perf` with its arguments; errors go to stderr.
pub fn main(args: PerfArgs) -> ExitCode {
    let options = match Options::read(args.raw) {
        Ok(options) => options,
        Err(error) => {
            // Help goes to stdout and is no failure; nobody may be reading either.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    match talk(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            use std::io::Write as _;
            let _ = writeln!(std::io::stderr().lock(), "leveret perf: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the tool with the arguments of this process, for a binary of its own.
pub fn main_of_process() -> ExitCode {
    let raw: Vec<OsString> = std::env::args_os().skip(1).collect();
    main(PerfArgs { raw })
}

/// Measures as `options` say and prints nothing: for programs that drive the tool. `on_interval` is
/// called after each interval, from the thread that called this.
///
/// What `--json` would have written is the [`Outcome`], serialized. The costs of idle things are no
/// run and are refused.
pub fn measure(
    options: &Options,
    on_interval: Option<&mut dyn FnMut(&Interval)>,
) -> Result<Outcome> {
    if options.idle_connections.is_some() || options.idle_queues.is_some() {
        bail!("idle connections and queues are not measured by a run");
    }
    let plan = plan::Plan::new(options)?;
    run::run(&plan, options, on_interval)
}

/// Measures as `options` say, and prints lines, a summary and files.
fn talk(options: &Options) -> Result<()> {
    let plan = plan::Plan::new(options)?;
    let json_on_stdout = options.json.as_deref() == Some("-".as_ref());
    let lines = report::Lines::new(&options.id, json_on_stdout);
    let idle = match (options.idle_connections, options.idle_queues, options.broker_pid) {
        (Some(count), _, Some(pid)) => Some((idle::Kind::Connections, count, pid)),
        (_, Some(count), Some(pid)) => Some((idle::Kind::Queues, count, pid)),
        _ => None,
    };
    let result = if let Some((kind, count, pid)) = idle {
        idle::run(&plan, kind, count, pid, &lines)?
    } else {
        let mut say = |interval: &Interval| lines.interval(&plan, interval);
        let outcome = run::run(&plan, options, Some(&mut say))?;
        lines.summary(&plan, &outcome);
        report::json(&outcome)
    };
    match &options.json {
        Some(path) => report::write(&result, path),
        None => Ok(()),
    }
}
