//! What consumers do.

use clap::{ArgAction, ValueEnum};

use super::values::{Pair, Step, whole};

/// What consumers do.
#[derive(Clone, Debug, clap::Args)]
pub struct ConsumingArgs {
    /// Consumers, each with its own connection
    #[arg(short = 'y', long, default_value_t = 1)]
    pub consumers: usize,
    /// Channels of each consumer; rate and limits are those of one channel
    #[arg(short = 'Y', long, default_value_t = 1, value_name = "COUNT")]
    pub consumer_channel_count: usize,
    /// Messages per second of each consumer
    #[arg(short = 'R', long)]
    pub consumer_rate: Option<f64>,
    /// Prefetch of each consumer [default: no limit]
    #[arg(short = 'q', long)]
    pub qos: Option<u16>,
    /// Prefetch of each channel [default: no limit]
    #[arg(short = 'Q', long)]
    pub global_qos: Option<u16>,
    /// Consume without acknowledgements
    #[arg(short = 'a', long)]
    pub autoack: bool,
    /// Acknowledge every so many messages at once
    #[arg(short = 'A', long, value_name = "MESSAGES", value_parser = whole)]
    pub multi_ack_every: Option<u64>,
    /// Refuse messages instead of acknowledging them
    #[arg(long)]
    pub nack: bool,
    /// Whether refused messages go back to their queue
    #[arg(long, default_value_t = true, action = ArgAction::Set, value_name = "BOOL")]
    pub requeue: bool,
    /// Messages of a consumer's transaction [default: no transactions]
    #[arg(short = 'n', long, value_name = "MESSAGES", value_parser = whole)]
    pub ctxsize: Option<u64>,
    /// Time that each message takes a consumer, microseconds
    #[arg(short = 'L', long, value_name = "MICROSECONDS", default_value = "0", value_parser = whole)]
    pub consumer_latency: u64,
    /// Such a time that varies, as MICROSECONDS:SECONDS; may be repeated
    #[arg(long, value_name = "MICROSECONDS:SECONDS", value_delimiter = ',')]
    pub variable_latency: Vec<Step>,
    /// Arguments of the consumers, such as x-priority=10
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',')]
    pub consumer_args: Vec<Pair>,
    /// Where to begin in a stream: first, last, next, an offset, a time such as 2022-06-03T07:45:54Z
    #[arg(long, value_name = "OFFSET")]
    pub stream_consumer_offset: Option<String>,
    /// Fetch messages one by one with basic.get
    #[arg(long)]
    pub polling: bool,
    /// Milliseconds between two basic.get
    #[arg(long, value_name = "MILLISECONDS", default_value = "0", value_parser = whole)]
    pub polling_interval: u64,
    /// Seconds before consumers start
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = whole)]
    pub consumer_start_delay: u64,
    /// Start a consumer a second
    #[arg(short = 'S', long)]
    pub slow_start: bool,
}

/// When consumers have nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExitWhen {
    /// Their queues are empty
    Empty,
    /// Nothing has come for a second
    Idle,
}
