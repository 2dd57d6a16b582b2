//! What drives the actors of a node, without threads, sockets, clocks and files: the same in the server, in the simulator and in
//! tests.
//!
//! An actor's turn leaves letters in an [`Outbox`](leveret_broker::message::Outbox). Whoever ran it has them posted:
//!
//! - [`mod@post`]: from an outbox into inboxes, in one order; what becomes of letters to sessions that are gone.
//! - [`connection`]: a connection's turn, between a session's letters and its client's bytes.
//! - [`start`]: shards host their queues, and are filled.
//! - [`commands`]: what a node keeps of the commands that it numbers for an owner of the names that may be elsewhere.
//! - [`sender`]: what a node keeps of the letters that it numbers for a group with others.
//! - [`remote`]: both ends of the connection between a node of sessions and the node that leads.
//! - [`stop`]: what is under way arrives, and all is written down.
//!
//! The server adds threads, wake-ups and sockets, the simulator seeds and faults.

#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

pub mod commands;
pub mod connection;
pub mod post;
pub mod remote;
pub mod sender;
pub mod start;
pub mod stop;
mod undelivered;

pub use commands::CommandSender;
pub use post::{Inboxes, Run, post};
pub use sender::{KeptMax, StreamSender};
use undelivered::return_undelivered;
