//! The command line of `leveret perf`: PerfTest's names where PerfTest has the option.
//!
//! PerfTest has options of several letters behind one dash (`-ad`, `-qp`) and reads others
//! from the environment, which wins; [`Options::read`] makes one line of long names of all that before clap sees it.
//!
//! ```text
//! raw --> words (long names, what has no effect) --> env --> clap --> check
//! ```

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{ArgAction, CommandFactory, FromArgMatches, Parser, ValueEnum};

mod broker;
mod check;
mod consuming;
pub(crate) mod env;
mod extras;
mod limits;
mod metrics;
mod output;
mod publishing;
#[cfg(test)]
mod tests;
mod topology;
pub(crate) mod values;
mod words;

pub use broker::BrokerArgs;
pub use consuming::{ConsumingArgs, ExitWhen};
pub use extras::ExtraArgs;
pub use limits::LimitArgs;
pub use metrics::MetricsArgs;
pub use output::{Format, OutputArgs};
pub use publishing::{Flag, PublishingArgs};
pub use topology::TopologyArgs;

/// What follows `leveret perf`, unread: it has its own rules (see [`Options::read`]).
#[derive(Clone, Debug, Default, clap::Args)]
#[command(disable_help_flag = true)]
pub struct PerfArgs {
    /// PerfTest's options; `leveret perf --help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTION")]
    pub raw: Vec<OsString>,
}

/// What the tool measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// As many messages as the options allow
    Throughput,
    /// One message per millisecond (or -r), auto-ack: the time from publish to delivery
    Latency,
}

/// Drive load against an AMQP 0-9-1 broker and measure it.
///
/// Options are PerfTest's, and so are the lines. Each producer and each consumer is a connection and a
/// thread, with one channel or more.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "leveret perf",
    disable_help_flag = true,
    args_override_self = true,
    after_help = "Examples:\n  leveret perf -x 1 -y 1 -a -s 1024 -z 10\n  leveret perf -u orders -f persistent -c 100 -q 200 -A 10 --json run.json\n  leveret perf latency -z 10 --broker-pid 4711\n  leveret perf --verify -x 4 -y 4 -u orders -C 100000 -c 500\n  leveret perf --idle-connections 1000 --broker-pid 4711\n\nOptions are taken from the environment, too, under their long names in capitals with _ for -: see -env. There they win\nover what is given here, as with PerfTest.\n\nleveret perf experiment --list shows the experiments that are ready to run.\n\nExit status: 0 measured, 1 the run failed, 2 bad options, 3 messages were lost, doubled, out of order or damaged."
)]
pub struct Options {
    /// What to measure
    #[arg(value_enum, default_value = "throughput", hide_default_value = true)]
    pub mode: Mode,
    /// Where the broker is, and how to connect.
    #[command(flatten, next_help_heading = "Broker")]
    pub broker: BrokerArgs,
    /// Queues and exchange.
    #[command(flatten, next_help_heading = "Queues and exchange")]
    pub topology: TopologyArgs,
    /// What producers do.
    #[command(flatten, next_help_heading = "Publishing")]
    pub publishing: PublishingArgs,
    /// What consumers do.
    #[command(flatten, next_help_heading = "Consuming")]
    pub consuming: ConsumingArgs,
    /// When the run ends.
    #[command(flatten, next_help_heading = "Length of the run")]
    pub limits: LimitArgs,
    /// What is written where.
    #[command(flatten, next_help_heading = "Output")]
    pub output: OutputArgs,

    /// Figures for Prometheus.
    #[command(flatten, next_help_heading = "Metrics")]
    pub metrics: MetricsArgs,
    /// What PerfTest does not have.
    #[command(flatten, next_help_heading = "Beyond PerfTest")]
    pub extras: ExtraArgs,

    /// Print this help
    #[arg(short = '?', long, action = ArgAction::Help)]
    help: Option<bool>,
    /// Print the version
    #[arg(short = 'v', long)]
    pub version: bool,
    /// Print the environment variables that stand for options
    #[arg(long)]
    pub environment_variables: bool,

    /// Print the options of metrics
    #[arg(long)]
    pub metrics_help: bool,

    /// Options that were given and mean nothing without a JVM.
    #[arg(skip)]
    pub without_effect: Vec<String>,
}

impl Options {
    /// Reads the arguments after `perf`, and nothing else. The error prints itself (help is one such
    /// "error").
    pub fn read(raw: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        Self::read_with(raw, |_| None)
    }

    /// Reads the arguments after `perf`; what is looked up by the name of its environment variable wins
    /// over them.
    pub fn read_with(
        raw: impl IntoIterator<Item = OsString>,
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, clap::Error> {
        let command = Self::command_for_help();
        let usage = |kind, text: String| command.clone().error(kind, text);
        let words = words::expand(raw).map_err(|text| usage(ErrorKind::UnknownArgument, text))?;
        let args = env::complete(&command, words.args, lookup)
            .map_err(|text| usage(ErrorKind::ValueValidation, text))?;
        let name = OsString::from("leveret perf");
        let matches = command.clone().try_get_matches_from(std::iter::once(name).chain(args))?;
        let mut options = Self::from_arg_matches(&matches)?;
        options.without_effect = words.without_effect;
        options.check().map_err(|text| usage(ErrorKind::ArgumentConflict, text))?;
        Ok(options)
    }

    /// The command, for help pages: every option tells all its names.
    pub fn command_for_help() -> clap::Command {
        Self::command().mut_args(with_all_names)
    }

    /// The options of metrics, for a help page of their own.
    pub(crate) fn metrics_help() -> String {
        let command = clap::Command::new("leveret perf").disable_help_flag(true);
        let command = <MetricsArgs as clap::Args>::augment_args(command);
        command.mut_args(with_all_names).render_help().to_string()
    }

    /// Whether every message has `flag`.
    pub fn has(&self, flag: Flag) -> bool {
        self.publishing.flags.contains(&flag)
    }
}

fn with_all_names(arg: clap::Arg) -> clap::Arg {
    let Some(short) = arg.get_long().and_then(words::short_of) else { return arg };
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    arg.help(format!("{help}. Also: {short}"))
}
