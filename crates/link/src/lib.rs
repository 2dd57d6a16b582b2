//! What goes over a link, the connections between two nodes.
//!
//! No socket, thread, clock or random source: bytes and the time are arguments. Bytes from another node are as untrusted as a
//! client's: nothing here panics at them, and no memory is taken by a length that they only claim.
//!
//! - [`hello`]: how a connection begins, and who is refused.
//! - [`letters`]: the letters of the broker's actors as bytes.
//! - [`frame`]: letters in frames.
//! - [`sender`]: what goes over a connection next.
//! - [`receiver`]: letters out of what was read.
//! - [`payload`]: a letter as bytes.
//!
//! ```text
//!   ToShard, ToMeta, ToSession -> letters::write_* -> sender::Sender -> slices -> socket
//!   ToShard, ToMeta, ToSession <- letters::read <--- receiver::Receiver <------- socket
//! ```
//!
//! `docs/formats/link.md` has the bytes, `docs/decisions/0061-letters-over-links.md` says why.

#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic
    )
)]

pub mod frame;
pub mod hello;
pub mod letters;
pub mod payload;
pub mod receiver;
pub mod sender;
