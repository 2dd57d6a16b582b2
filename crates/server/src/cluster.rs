//! A node of a cluster: what the process does beside the broker, and while another node leads.
//!
//! ```text
//!   thread "cluster"   driver: Cluster (sans-IO) over real disks, links to the other nodes
//!   main thread        life: standby while another node leads; the broker while this one does
//! ```
//!
//! - [`life`]: from a start to a stop. [`driver`]: the thread. [`handle`]: what the others ask it. [`bell`]: what wakes it. [`heard`]: what it
//!   remembers of the others.
//! - [`links`]: sockets between nodes.
//! - [`arrivals`]: clients of other nodes, on the node that leads.
//! - [`standby`]: clients of this node, while another one leads. [`relay`]: their bytes, there and back.
//! - [`sessions`]: sessions of the clients of nodes that follow, and their letters to the node that leads.
//! - [`names`]: a copy of the names, on a node that follows.
//! - [`view`]: what this node knows of the cluster, for those who ask.
//! - [`whole`]: files that are written whole or not at all. [`workers`]: work that takes long, a few pieces at a time.
//!
//! A node that is alone has nothing of this: no thread, no socket. See `docs/decisions/0062-one-node-leads-all-groups.md`.

pub mod arrivals;
mod bell;
mod driver;
mod handle;
mod heard;
mod life;
pub mod links;
pub mod names;
mod numbers;
pub(crate) mod relay;
pub mod sessions;
pub mod standby;
pub mod view;
mod whole;
mod workers;

pub(crate) use bell::{Bell, Rung};
pub(crate) use driver::refuse_of_a_member;
pub use leveret_cluster::ForgetError;

pub use handle::{ChangeError, MemberChanges};
pub(crate) use handle::{Duty, Led};
pub(crate) use life::serve;
