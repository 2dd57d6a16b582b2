//! `leveret perf`: the load tool.
//!
//! Drives publishers and consumers against any AMQP 0-9-1 broker and measures rates, latencies,
//! and what the broker's process spends. A producer and a consumer are one thread and one
//! connection each; what they cost themselves is reported too.
//!
//! ```text
//! args --> plan --> run --> producer (lanes), consumer (intake)      threads
//!                    |                    |
//!                  watch  <------------ stats
//!                    |
//!                  outcome --> lines, live, csv, json, prometheus
//! ```

use std::ffi::OsString;
use std::process::ExitCode;

mod args;
mod batch;
mod consumer;
mod content;
mod csv;
mod idle;
mod intake;
mod json;
mod lane;
mod lines;
mod live;
mod outcome;
mod pace;
mod plan;
pub mod probe;
pub mod process;
mod producer;
mod prometheus;
mod run;
mod stamp;
mod stats;
mod steps;
mod sweep;
mod talk;
mod topology;
mod verbose;
mod verify;
mod watch;
mod window;
mod worker;

use anyhow::{Result, bail};

pub use args::*;
pub use idle::{Held, Idle};
pub use json::check_writable;
pub use outcome::{Broker, Interval, Outcome};
pub use stats::{Counter, Percentiles, Totals, histogram};
pub use sweep::Sweep;
pub use verify::Verification;

/// Runs `leveret perf` with its arguments; errors go to stderr.
pub fn main(args: PerfArgs) -> ExitCode {
    talk::talk(args.raw)
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
    if options.output.idle_connections.is_some() || options.output.idle_queues.is_some() {
        bail!("idle connections and queues are not measured by a run");
    }
    let plan = plan::Plan::new(options)?;
    run::run(&plan, options, on_interval)
}
