//! Sessions on the node of their client: see `docs/decisions/0068-sessions-on-the-node-of-their-client.md`.
//!
//! - [`gateway`]: the end at the node that leads.
//! - [`wire`]: the connection between a node of sessions and the node that leads, from both ends.

pub(crate) mod gateway;
pub mod wire;
