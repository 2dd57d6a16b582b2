//! A node of a cluster: who it is, how the cluster is founded, its members of all groups, and who leads.
//!
//! Group 0 is the names, group `1 + i` is shard `i`. All nodes are members of all groups, and one node leads all of them: it runs
//! the broker (`docs/decisions/0062-one-node-leads-all-groups.md`).
//!
//! ```text
//!    identity ----+                                +--> letters for other nodes
//!    letters      |                                |
//!    time         +--> [ Cluster ] ----------------+--> the identity, to be written
//!    disks woke   |     |  formation               |
//!    logs woke ---+     |  one Member per group    +--> standing: forms, waits, follows, leads
//!                       |  Votes for all           |
//!                       +--> logs that are lent    +--> the process has to begin anew, or to end
//! ```
//!
//! No socket, thread, clock or random source. A disk is what the log's is ([`Disk`](leveret_log::disk::Disk)).
//!
//! # What a driver has to do
//!
//! 1. [`Cluster::open`], then [`take_actions`](Cluster::take_actions): the identity is written before any other node hears of this
//!    start, so links begin after the first [`identity_written`](Cluster::identity_written).
//! 2. After each call, or several: [`take_actions`](Cluster::take_actions), all of it done.
//! 3. [`tell_time`](Cluster::tell_time) once what is there has been taken, and before it is handed over: of a letter that is there it
//!    is certain that it was sent before.
//! 4. [`tick`](Cluster::tick) every 100 ms or sooner, by a clock that does not go back and counts a suspended machine's sleep.
//! 5. [`lease`](Cluster::lease) is asked for before letters of an action are sent. What uses a lent log gives out nothing, takes
//!    nothing and answers nothing outside of it.
//! 6. Once it leads: [`lend_logs`](Cluster::lend_logs), once. They never come back: who is deposed begins anew, as after a crash.

#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

mod changes;
mod clocks;
mod cluster;
mod disks;
mod formation;
mod groups;
mod heard;
mod heirs;
mod identity;
mod status;

pub use changes::ForgetError;
pub use cluster::{Cluster, ClusterActions, DiskOwner, OpenError, Remembered, Setup};
pub use formation::KnownMembers;
pub use heard::{FilePlace, Heard, HeardDamaged};
pub use identity::{Identity, IdentityError, KnownMember, Membership, NODES_MAX, SHARDS_MAX};
pub use leveret_replica::Lease;
pub use status::{ClusterStatus, GroupRow, NodeRow, Standing};
