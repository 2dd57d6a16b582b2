//! Sessions on the node of their client: see `docs/decisions/0068-sessions-on-the-node-of-their-client.md`.
//!
//! - [`away`]: the end at a node of sessions.
//! - [`gateway`]: the end at the node that leads.
//! - [`own`]: the node of sessions of a process.
//! - [`seen`]: what management is shown of connections of other nodes.
//! - [`wire`]: the connection between a node of sessions and the node that leads, from both ends.

pub(crate) mod away;
pub(crate) mod gateway;
pub(crate) mod own;
pub mod seen;
#[cfg(test)]
mod testing;
pub mod wire;
