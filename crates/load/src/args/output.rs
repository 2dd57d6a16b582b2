//! What is written where.

use std::path::PathBuf;

use clap::ValueEnum;

/// What is written where.
#[derive(Clone, Debug, clap::Args)]
pub struct OutputArgs {
    /// Name of the run in lines and files
    #[arg(short = 'd', long, default_value = "leveret")]
    pub id: String,
    /// Seconds between two lines
    #[arg(short = 'i', long, default_value_t = 1.0)]
    pub interval: f64,
    /// Measure latency by the wall clock in milliseconds, for producers and consumers on two machines
    #[arg(long)]
    pub use_millis: bool,
    /// How lines look: default, compact
    #[arg(long, value_name = "FORMAT", default_value = "default")]
    pub metrics_format: Format,
    /// Print a line for each message, confirm and ack. For slow rates only
    #[arg(long)]
    pub verbose: bool,
    /// The same with properties and bodies
    #[arg(long)]
    pub verbose_full: bool,
    /// Write the intervals as CSV
    #[arg(short = 'o', long, value_name = "FILE")]
    pub output_file: Option<PathBuf>,
    /// Write the result as JSON; '-' is stdout, and then lines go to stderr
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Process of the broker, or its parent: measure CPU and memory of the process tree
    #[arg(long, value_name = "PID")]
    pub broker_pid: Option<u32>,
    /// Open so many connections and report what each costs the broker
    #[arg(long, value_name = "N", conflicts_with = "idle_queues")]
    pub idle_connections: Option<usize>,
    /// Declare so many queues and report what each costs the broker
    #[arg(long, value_name = "N")]
    pub idle_queues: Option<usize>,
}

/// How lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Each figure with its name
    Default,
    /// Columns under a header
    Compact,
}
