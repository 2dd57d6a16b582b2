//! What operators and their tools ask of a node, beside AMQP.
//!
//! - [`ops`]: how the node is asked: letters to actors, sessions inside the node, facts of queues.
//! - [`stats`]: what is counted, sampled: totals, rates, samples.
//! - [`http`]: RabbitMQ's management API.
//! - [`control`]: a door to it without a password, a Unix socket, for `leveret ctl`.
//! - `standby`: that door while another node of the cluster leads.
//! - `metrics`: the door of Prometheus.
//! - `traces`: copies of messages, written to files.
//! - `page`: the management page, for people with a browser; it asks that API.
//! - [`mod@front`]: opens all, and runs them on one thread.
//!
//! That thread is the management's own: a list of ten thousand queues never delays a message. What it
//! asks of the node it asks as a client would, by letters to actors; it sees nothing that is private to
//! `server`.

pub mod control;
mod conversation;
mod date;
mod doors;
pub mod front;
mod host;
pub mod http;
mod metrics;
pub mod ops;
mod page;
mod places;
mod room;
mod signin;
mod standby;
pub mod stats;
mod traces;
mod unread;
mod watched;

pub use front::front;
pub use standby::standby;
