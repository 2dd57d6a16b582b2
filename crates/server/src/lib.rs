//! The process: threads, sockets, signals. Everything else is decided by the sans-IO crates below; this
//! one only runs their turns.
//!
//! - [`turn`]: actors and who runs them. [`runner`]: a thread's list of turns. [`threads`]. [`locks`]: their order.
//! - [`connection`]: socket and session. [`listener`]. [`descriptors`]: how many sockets there may be.
//! - [`events`]: what happened, told and kept.
//! - [`check`]: what a start would refuse. [`node`]: all actors. [`clock`]: what time it is. [`mod@serve`]: start and stop. [`Signals`]. [`front`]: what crates above are given.

pub mod alarms;
pub mod buffers;
pub mod check;
pub mod clock;
pub mod cluster;
pub mod connection;
pub mod descriptors;
pub mod disk;
pub mod ended;
pub mod events;
mod filling;
pub mod front;
mod gather;
mod handover;
mod lease;
pub mod listener;
pub mod locks;
pub mod logging;
pub mod login;
pub mod long;
mod names;
pub mod node;
mod pacing;
pub mod paths;
mod places;
mod pressure;
pub mod process;
pub mod proxy;
mod readiness;
mod reading;
pub mod room;
pub mod runner;
mod seeds;
pub mod serve;
mod signals;
mod startup;
mod storage;
mod supervisor;
pub mod threads;
pub mod tls;
pub mod turn;
pub mod unread;
pub mod watchdog;
mod writing;

pub use leveret_auth::network_of;
pub use leveret_topology::COMPATIBLE_VERSION;
pub use signals::Signals;
pub use startup::{node_name, options, resolve, serve};
pub use storage::drop_orphans;
