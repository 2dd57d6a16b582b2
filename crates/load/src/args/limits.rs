//! When the run ends.

use super::consuming::ExitWhen;
use super::values::whole;

/// When the run ends.
#[derive(Clone, Debug, clap::Args)]
pub struct LimitArgs {
    /// Stop after so many seconds [default: never]
    #[arg(short = 'z', long)]
    pub time: Option<f64>,
    /// Messages of each producer [default: no limit]
    #[arg(short = 'C', long, value_parser = whole)]
    pub pmessages: Option<u64>,
    /// Messages of each consumer [default: no limit]
    #[arg(short = 'D', long, value_parser = whole)]
    pub cmessages: Option<u64>,
    /// Stop when queues are empty, or consumers idle for a second
    #[arg(long, value_name = "WHAT")]
    pub exit_when: Option<ExitWhen>,
    /// Seconds that producers and consumers have to stop
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = whole)]
    pub shutdown_timeout: u64,
}
