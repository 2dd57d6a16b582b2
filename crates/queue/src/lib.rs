//! The state of one AMQP queue: which messages wait, which are out with whom, and who is next.
//!
//! Pure: no input or output, no clock, no message bodies. A message is an [`Offset`], a size and a few
//! flags; time is an argument; what happens to a message is told by pushing a [`Left`] or by handing a
//! [`Delivery`] to the caller. So a queue is a fold over commands, and its tests need nothing but a loop.
//!
//! ```text
//!              enqueue                 dispatch, get                 settle(Ack)
//!   ---------------------->  ready  ------------------->  unacked  ---------------> Left::Acked
//!                              |  <--------------------      |
//!                              |     settle(Requeue)         |  settle(Reject), delivery limit
//!                              |                             v
//!                              +---------------------> Left::DeadLetter, Left::Dropped, Left::Purged
//!                                expire, max-length, purge
//! ```
//!
//! Invariant: every offset given to [`Queue::enqueue`] is in exactly one place (ready, unacked, held as a
//! dead letter) or came out exactly once: as one [`Left`], and for a held dead letter by
//! [`Queue::dead_lettered`] after it; or by [`Queue::moved`].
//!
//! The behaviour is that of RabbitMQ's classic queues, delivery limits and at-least-once dead-lettering
//! that of its quorum queues.
//!
//! Where is what: [`Queue`] (`queue.rs`) holds the commands; `ready.rs` the order of what waits;
//! `unacked.rs` what is out; `consumers.rs` the round robin; `dispatch.rs` the loop that joins the three;
//! `limits.rs` lengths and expiry; `claims.rs` a queue that is made again while consumers have its messages; `rest.rs` one of which only the first messages have entries; `look.rs` pages of what is there; `gate.rs` what connection and channel
//! allow; `totals.rs` what is counted.

#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

mod backlog;
mod claims;
mod consumers;
mod dispatch;
mod extra;
mod fifo;
mod gate;
mod limits;
mod look;
mod message;
mod options;
mod queue;
mod ready;
mod rest;
mod slab;
mod time;
mod totals;
mod unacked;

pub use backlog::Backlog;
pub use consumers::{ConsumerId, ConsumerSpec, ConsumerView, ExclusiveInUse};
pub use dispatch::{Deliver, Record};
pub use gate::{Calls, ChannelLimit, Gate, OutputGauge, delivery_cost};
pub use look::{Look, LookAt};
pub use message::{Delivery, Got, Incoming, Left, Offset, Reason, Refused, Settle, UnackedId};
pub use options::{Options, Overflow};
pub use queue::{Counts, Dispatched, Queue, Removed, Settled};
pub use time::Time;
pub use totals::{ByReason, Totals};
