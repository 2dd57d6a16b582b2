//! What operators and their tools ask of a node, beside AMQP.
//!
//! - [`ops`]: what can be asked: rows of lists, facts of the node, changes. Used by both doors.
//! - [`stats`]: what is counted, sampled: totals, rates, samples.
//! - [`control`]: the door of `leveret ctl`, a Unix socket.
//! - [`http`]: the door of everybody else, RabbitMQ's management API.
//! - `metrics`: the door of Prometheus.
//! - `page`: the management page, for people with a browser; it asks that API.
//! - [`mod@front`]: opens all, and runs them on one thread.
//!
//! That thread is the management's own: a list of ten thousand queues never delays a message. What it
//! asks of the node it asks as a client would, by letters to actors; it sees nothing that is private to
//! `server`.

pub mod control;
mod doors;
pub mod front;
pub mod http;
mod metrics;
pub mod ops;
mod page;
pub mod stats;

pub use front::front;
