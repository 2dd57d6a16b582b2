//! Shards, the owner of the topology, and what they say to each other and to sessions.
//!
//! Knows both [`leveret_queue`] and [`leveret_log`]; never AMQP frames, sockets, threads or clocks.

pub mod message;
pub mod record;
