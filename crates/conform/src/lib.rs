//! Conversations with an AMQP 0-9-1 broker, recorded from RabbitMQ and replayed.
//!
//! A script ([`script`]) holds conversations: what clients send, and what the broker must answer.
//! [`run::run`] plays them to a broker behind [`peer::Connect`]: by TCP ([`tcp`]), or in this
//! process. The same run can record: expected lines that differ are written anew.
//!
//! The codec here ([`spec`], [`wire`], [`value`]) is its own reading of the published definition.
//! It shares nothing with the broker's, so that a mistake there shows.

pub mod bytes;
pub mod peer;
pub mod record;
pub mod run;
pub mod script;
pub mod spec;
pub mod tcp;
pub mod text;
pub mod value;
pub mod wire;

pub use peer::{Connect, Input, Stream};
pub use run::{Outcome, Report, Settings, run};
pub use script::Script;
