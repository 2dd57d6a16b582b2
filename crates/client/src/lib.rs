//! A lean AMQP 0-9-1 client: blocking, batching, without allocation per message.
//!
//! [`Connection`] owns a socket and is used from one thread. Publishes are encoded into a buffer
//! that [`flush`](Connection::flush) writes; [`PublishBatch`] holds many messages encoded
//! once. Whatever the broker sends is read in large pieces and given out as borrowed [`Event`]s.
//! Calls such as [`queue_declare`](Connection::queue_declare) wait for their answer; messages and
//! confirms that come meanwhile are kept and given out later.
//!
//! [`Input`] and [`Output`] are the protocol without a socket, for simulators.
//!
//! `amqps://` URIs speak TLS, with the files that their parameters name.
//!
//! Not here: recovery of lost connections, sharing a connection between threads.

mod calls;
mod connection;
mod error;
pub mod files;
mod input;
mod output;
mod uri;
mod wire;

pub use calls::{Consume, ExchangeDeclare, Got, QueueDeclare, QueueDeclared};
pub use connection::{Connection, Options, Stopper};
pub use error::{CloseReason, Error};
pub use input::{Event, Input};
pub use output::{Output, PublishBatch};
pub use uri::{TlsUri, Uri, UriError};

/// The codec, whose types appear in events and calls.
pub use leveret_amqp as amqp;
