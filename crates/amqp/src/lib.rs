//! The bytes of AMQP 0-9-1 with RabbitMQ's extensions: frames, methods, contents, field tables.
//!
//! No socket, clock or task: bytes go in as slices, bytes come out in an [`outbuf::OutBuf`]. Nothing here
//! holds state beyond one frame, and no input panics, recurses by its nesting, or reserves memory by a
//! length it only claims.
//!
//! ```text
//!   socket -> frame::Decoder -> method::Method       -> session
//!                            -> whole::WholePublish
//!                            -> content::ContentHeader
//!   socket <- outbuf::OutBuf <- method::Encode, raw properties, bodies
//! ```
//!
//! `spec/amqp0-9-1.txt` is the table of methods; `method/*.rs` and `reply.rs` are made of it.

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

pub mod content;
pub mod frame;
pub mod method;
pub mod outbuf;
pub mod reply;
pub mod table;
pub mod whole;
mod wire;
