//! Metrics for Prometheus: RabbitMQ's names, and some of our own.
//!
//! - `/metrics`: sums. `/metrics/per-object`: each queue, channel, connection and exchange.
//!   `/metrics/detailed?family=..&vhost=..&queue=..`: what is asked for. `/metrics/memory-breakdown`.
//! - [`families`]: the table of RabbitMQ's metrics; [`global`]: its `rabbitmq_global_*`, sizes, alarms;
//!   [`own`]: ours. [`page`]: puts them together. [`text`]: the format.
//!
//! [`serve`]: sockets; [`under_way`]: how many long pages at a time; [`query`]: what the address asks for.
//!
//! A page is made of the latest statistics, or of new ones when they are older than a second.

mod cluster;
mod families;
mod global;
mod own;
mod page;
mod query;
mod serve;
mod text;
mod under_way;

pub(crate) use serve::serve;
