//! A node of a cluster: what the process does beside the broker, and while another node leads.
//!
//! - [`arrivals`]: clients of other nodes, on the node that leads.
//! - [`links`]: connections to the other nodes.
//! - [`standby`]: clients of this node, while another one leads. [`relay`]: their bytes, there and back.
//! - [`view`]: what this node knows of the cluster, for those who ask.
//!
//! A node that is alone has nothing of this: no thread, no socket.

pub mod arrivals;
pub mod links;
pub(crate) mod relay;
pub mod standby;
pub mod view;
