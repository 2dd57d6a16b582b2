//! Shards, the owner of the topology, and what they say to each other and to sessions.
//!
//! Knows both [`leveret_queue`] and [`leveret_log`]; never AMQP frames, sockets, threads or clocks.
//!
//! - [`message`]: the letters.
//! - [`shard`]: queues and their log; a turn of it moves messages.
//! - [`meta`]: changes of names.
//! - [`command`]: changes of names with numbers, for nodes whose names another one may own.
//! - [`stream`]: letters with numbers, for groups that may lose the end of their log.
//! - [`transaction`]: those over several shards.
//! - [`events`]: what happened, on its way to the event exchange.
//! - [`login`]: what a session asks when a client wants to come in.
//! - [`record`]: a message's bytes in the log.
//! - [`numbers`]: what a shard tells of itself for statistics.
//! - [`work`]: what does not fit one turn, in fair shares.
//! - [`flow`]: what is bounded by what, and the memory alarm.
//! - [`bodies`]: room for bodies that are being received.

#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

pub mod bodies;
pub mod command;
pub mod events;
pub mod flow;
mod held;
pub mod login;
pub mod message;
pub mod meta;
pub mod numbers;
pub mod record;
pub mod shard;
pub mod stream;
pub mod transaction;
pub mod work;

pub use meta::Meta;
pub use shard::Shard;
