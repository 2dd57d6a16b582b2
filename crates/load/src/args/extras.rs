//! What PerfTest does not have.

use super::values::whole;

/// What PerfTest does not have.
#[derive(Clone, Debug, clap::Args)]
pub struct ExtraArgs {
    /// Account for every message: lost, duplicated, out of order, corrupt
    #[arg(long)]
    pub verify: bool,
    /// Put so many bodies into each message, and take them apart again
    #[arg(long, value_name = "BODIES", value_parser = whole)]
    pub pack: Option<u64>,
    /// Compress bodies with gzip
    #[arg(long)]
    pub compress: bool,
}
