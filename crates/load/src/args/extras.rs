//! What PerfTest does not have.

use super::values::whole;
use crate::sweep::Sweep;

/// What PerfTest does not have.
#[derive(Clone, Debug, clap::Args)]
pub struct ExtraArgs {
    /// Account for every message: lost, duplicated, out of order, corrupt
    #[arg(long)]
    pub verify: bool,
    /// Send each message and each ack in a write of its own, as most clients do
    #[arg(long)]
    pub flush_each: bool,
    /// Put so many bodies into each message, and take them apart again
    #[arg(long, value_name = "BODIES", value_parser = whole)]
    pub pack: Option<u64>,
    /// Compress bodies with gzip
    #[arg(long)]
    pub compress: bool,
    /// Run again for each value of an option, such as qos=1,10,100, and set the results side by side
    #[arg(long, value_name = "OPTION=VALUES")]
    pub sweep: Option<Sweep>,
    /// Show rates, latency, backlog and progress in place, if stderr is a terminal
    #[arg(long)]
    pub live: bool,
}
