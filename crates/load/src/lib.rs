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
use std::time::Duration;

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

use anyhow::Result;

pub use args::{Flag, Mode, Options, PerfArgs};

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
    match measure(&options) {
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

fn measure(options: &Options) -> Result<()> {
    let plan = plan::Plan::new(options)?;
    let json_on_stdout = options.json.as_deref() == Some("-".as_ref());
    let mut lines = report::Lines::new(&options.id, json_on_stdout);
    let idle = match (options.idle_connections, options.idle_queues, options.broker_pid) {
        (Some(count), _, Some(pid)) => Some((idle::Kind::Connections, count, pid)),
        (_, Some(count), Some(pid)) => Some((idle::Kind::Queues, count, pid)),
        _ => None,
    };
    let result = if let Some((kind, count, pid)) = idle {
        idle::run(&plan, kind, count, pid, &lines)?
    } else {
        let interval = Duration::from_secs_f64(options.interval);
        let outcome = run::run(&plan, options.broker_pid, interval, &mut lines)?;
        lines.summary(&plan, &outcome);
        report::json(&options.id, &plan, &outcome)
    };
    match &options.json {
        Some(path) => report::write(&result, path),
        None => Ok(()),
    }
}
