//! The server's state of one connection: all of AMQP 0-9-1's connection and channel rules, permissions,
//! delivery tags, unacked messages, the numbering of confirms.
//!
//! Pure: bytes, letters and the time go in; bytes and letters come out. No socket, no clock, no thread;
//! nothing waits. It never knows a file or a log; of offsets only that a settlement carries one back.
//!
//! ```text
//!   input(bytes) --> frames --> methods --> checks --> letters to shards and to the topology's owner
//!                                 \
//!   receive(letter) ---------------+--> frames --> the output buffer
//! ```
//!
//! A [`Session`] is a `core` (what belongs to the connection) and its channels. Where is what:
//!
//! - `session`: which frame goes where; `connection/`: handshake, login, heartbeats, closing;
//! - `publish`, `route`, `cache`, `properties`, `direct`, `returned`: messages in;
//! - `unfinished`, `body`: bodies that are not whole; `alarm`: who is stopped;
//! - `deliver`, `consume`, `settle`, `unacked`: messages out; `confirm`, `tx`: what publishers are told;
//! - `access`: what the user may do; `pace`: how fast;
//! - `declare`, `bind`: the topology; `answer`, `waiting`: the command in flight;
//! - `reply`: every text that closes a channel or a connection; `lines`: what the log says;
//! - `totals`, `facts`: what is counted, and what listings and statistics are told.
//!
//! Invariants: at most one command waits for its answer, and meanwhile nothing is read; every delivery
//! is settled exactly once, by the client or by the end of its channel; letters to one shard leave in
//! the order in which the client caused them.

#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

mod access;
mod alarm;
mod allowances;
mod answer;
mod attach;
mod batch;
mod bind;
mod body;
mod brought;
mod cache;
mod channel;
mod confirm;
mod connection;
mod consume;
mod consumers;
mod core;
mod declare;
mod deliver;
mod direct;
mod events;
mod facts;
mod lines;
mod pace;
mod properties;
mod publish;
mod random;
mod reply;
mod returned;
mod route;
mod session;
mod settings;
mod settle;
mod totals;
mod trace;
mod tx;
mod unacked;
mod unfinished;
mod waiting;

pub use self::core::{Context, End};
pub use body::AwaitedBody;
pub use brought::Brought;
pub use facts::{ChannelFacts, ConnectionFacts, ConnectionNumbers, Passed};
pub use session::Session;
pub use settings::{CertificateFacts, Mechanism, Peer, Settings, TlsFacts};
pub use totals::{
    ByExchange, CONFIRM_BOUNDS_US, ChannelTotals, ConfirmTimes, ExchangeTotals, SIZE_BOUNDS,
    SessionTotals, Sizes, TakenTotals, Times,
};
