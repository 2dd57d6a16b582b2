//! What producers do.

use std::path::PathBuf;

use clap::ValueEnum;

use super::values::{Pair, Step, whole};

/// What producers do.
#[derive(Clone, Debug, clap::Args)]
pub struct PublishingArgs {
    /// Producers, each with its own connection
    #[arg(short = 'x', long, default_value_t = 1)]
    pub producers: usize,
    /// Channels of each producer; rate and limits are those of one channel
    #[arg(short = 'X', long, default_value_t = 1, value_name = "COUNT")]
    pub producer_channel_count: usize,
    /// Body size in bytes; latency is measured from 12 bytes on [default: 12]
    #[arg(short = 's', long)]
    pub size: Option<usize>,
    /// Body size that varies, as BYTES:SECONDS; may be repeated
    #[arg(long, value_name = "SIZE:SECONDS", value_delimiter = ',')]
    pub variable_size: Vec<Step>,
    /// Messages per second of each producer
    #[arg(short = 'r', long)]
    pub rate: Option<f64>,
    /// Rate that varies, as RATE:SECONDS; may be repeated, 0 is a pause
    #[arg(long, value_name = "RATE:SECONDS", value_delimiter = ',')]
    pub variable_rate: Vec<Step>,
    /// Seconds between two messages of a producer
    #[arg(short = 'P', long, value_name = "SECONDS")]
    pub publishing_interval: Option<f64>,
    /// Producers start after a random time up to this [default: 1 for several with a rate, else 0]
    #[arg(long, value_name = "SECONDS")]
    pub producer_random_start_delay: Option<f64>,
    /// Publisher confirms, with at most this many messages unconfirmed; -1 is none
    #[arg(short = 'c', long, allow_negative_numbers = true)]
    pub confirm: Option<i64>,
    /// Fail when a confirm takes longer, seconds
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = whole)]
    pub confirm_timeout: u64,
    /// Messages of a producer's transaction [default: no transactions]
    #[arg(short = 'm', long, value_name = "MESSAGES", value_parser = whole)]
    pub ptxsize: Option<u64>,
    /// Message flag: persistent, mandatory. May be repeated
    #[arg(short = 'f', long = "flag", value_name = "FLAG", value_delimiter = ',')]
    pub flags: Vec<Flag>,
    /// Properties and headers of the messages, such as priority=5
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',')]
    pub message_properties: Vec<Pair>,
    /// Files to take bodies from, separated by commas
    #[arg(short = 'B', long, value_name = "FILE", value_delimiter = ',')]
    pub body: Vec<PathBuf>,
    /// Content type of the messages
    #[arg(short = 'T', long, value_name = "TYPE")]
    pub body_content_type: Option<String>,
    /// Bodies are random JSON documents of about --size bytes
    #[arg(long)]
    pub json_body: bool,
    /// Fields that the JSON documents are made of
    #[arg(long, value_name = "COUNT", default_value_t = 1000)]
    pub body_field_count: usize,
    /// How many JSON documents there are
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    pub body_count: usize,
}

/// A flag on every message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Flag {
    /// Delivery mode 2; queues are declared durable
    Persistent,
    /// Unroutable messages come back and are counted
    Mandatory,
}
