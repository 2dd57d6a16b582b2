//! Statistics: what is counted in queues, connections and shards, sampled now and then; rates and samples
//! of it, and node-wide totals.
//!
//! ```text
//!   shards --Sample--> Collector --> Snapshot: states, totals, History per object
//!   connections -----/                  |             |
//!   the system -----/                 http          metrics
//! ```
//!
//! - [`collector`]: who samples, and when. [`snapshot`]: what is known.
//! - [`history`]: samples and rates of some counters. [`names`]: which counters, under RabbitMQ's names.
//! - [`busy`]: what threads and shards did.
//! - [`pairs`]: what passes between a channel and an exchange or queue.
//! - [`mod@format`]: `message_stats` and `x_details` as the API has them. [`node`]: facts of the process.
//!
//! Nothing here costs a message anything: counting is the business of those who handle it, a sample is
//! a few letters and short locks every [five seconds](collector::Collector::new), each second while
//! somebody [looks](collector::Collector::look).

pub mod busy;
pub mod collector;
pub mod format;
pub mod history;
pub mod names;
pub mod node;
pub mod pairs;
pub mod snapshot;

pub use collector::Collector;
pub use history::{History, Range};
pub use names::{CHANNEL, CHURN, DATA, EXCHANGE, LENGTHS, NODE, QUEUE};
pub use node::{Memory, NodeFacts};
pub use snapshot::{ChannelEntry, ConnectionEntry, Overview, QueueEntry, Snapshot, VhostEntry};
