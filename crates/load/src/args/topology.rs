//! Queues and exchange.

use std::path::PathBuf;

use clap::ArgAction;

use super::values::{Age, Capacity, Pair};

/// Queues and exchange.
#[derive(Clone, Debug, clap::Args)]
pub struct TopologyArgs {
    /// Names of queues, separated by commas; every consumer has all of them [default: one for each consumer, named by the tool]
    #[arg(short = 'u', long, value_delimiter = ',')]
    pub queue: Vec<String>,
    /// Names of several queues, such as 'orders-%d'; each producer and consumer has one of them
    #[arg(long, value_name = "PATTERN", requires = "queue_pattern_to")]
    pub queue_pattern: Option<String>,
    /// First number of the queue pattern
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub queue_pattern_from: u32,
    /// Last number of the queue pattern
    #[arg(long, value_name = "NUMBER")]
    pub queue_pattern_to: Option<u32>,
    /// File of queue names, one a line; each producer and consumer has one of them
    #[arg(long, value_name = "FILE")]
    pub queue_file: Option<PathBuf>,
    /// Exchange name [default: the type's name; '' is the default exchange]
    #[arg(short = 'e', long)]
    pub exchange: Option<String>,
    /// Exchange type
    #[arg(short = 't', long = "type", default_value = "direct")]
    pub kind: String,
    /// Routing key [default: the queue's name]
    #[arg(short = 'k', long)]
    pub routing_key: Option<String>,
    /// Another routing key for each message
    #[arg(short = 'K', long)]
    pub random_routing_key: bool,
    /// Take the random routing keys from so many
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub routing_key_cache_size: usize,
    /// Do not bind the queues
    #[arg(long)]
    pub skip_binding_queues: bool,
    /// Declare nothing: queues and exchange are there
    #[arg(short = 'p', long)]
    pub predeclared: bool,
    /// Queues vanish with their last consumer
    #[arg(long, default_value_t = true, action = ArgAction::Set, value_name = "BOOL")]
    pub auto_delete: bool,
    /// Queues belong to the connection of their consumer
    #[arg(short = 'E', long)]
    pub exclusive: bool,
    /// Arguments of the queues, such as x-max-length=10
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',')]
    pub queue_args: Vec<Pair>,
    /// Declare quorum queues, and publish persistent messages
    #[arg(long)]
    pub quorum_queue: bool,
    /// Declare streams, and publish persistent messages
    #[arg(long)]
    pub stream_queue: bool,
    /// Where leaders of quorum queues and streams are put: client-local, balanced
    #[arg(long, value_name = "STRATEGY", value_parser = ["client-local", "balanced"])]
    pub leader_locator: Option<String>,
    /// Bytes a queue may hold, such as 20gb; 0 is no limit
    #[arg(long, value_name = "BYTES")]
    pub max_length_bytes: Option<Capacity>,
    /// Bytes of a stream's segment, such as 500mb
    #[arg(long, value_name = "BYTES")]
    pub stream_max_segment_size_bytes: Option<Capacity>,
    /// How long a stream keeps messages, such as PT10M30S or P5DT8H
    #[arg(long, value_name = "DURATION")]
    pub max_age: Option<Age>,
}
