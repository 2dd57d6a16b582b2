//! Names: vhosts, users and permissions, exchanges, queues as named things, bindings, policies,
//! definitions; and routing, which turns an exchange and a routing key into queues.
//!
//! Pure: no clock, no random source (salts and seeds are arguments), no IO; and no messages: a
//! [`Queue`] here is a name with arguments, what is in it is the business of `leveret-queue`.
//!
//! All state is one [`Topology`]. Changes take `&mut Topology` and answer with what changed; everything
//! else, routing above all, takes `&Topology`. What a session remembers (routes, permissions) stays right
//! while [`Topology::generation`] and [`Topology::access_generation`] stand.
//!
//! Invariants:
//!
//! - every binding is in the lists of its source and its destination, and in its source's router;
//! - ids are never used twice; what is found by name is found by id;
//! - the policies of a queue or an exchange are those that match it best now.
//!
//! What happens is noted as [`Event`]s, for those who want to know.
//!
//! All that changes tells [`Topology::take_changes`]. It becomes bytes, comes back in [`stored`], and is
//! [applied](Topology::apply) to other topologies.
//!
//! Where: [`Topology::route`] and the matchers are in `route`; the rules of `queue.declare` in `arguments`;
//! RabbitMQ's texts in [`error`].

#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

mod access;
mod apply;
mod arena;
mod arguments;
mod binding;
mod bindings;
mod brought;
mod by;
mod by_group;
mod confirm;
mod connection;
mod defaults;
mod definitions;
mod dump;
pub mod error;
mod event;
mod exchange;
mod exchanges;
mod going;
pub mod hash;
mod homes;
mod id;
mod invariants;
mod journal;
mod kinds;
mod named;
mod pages;
mod parameters;
mod pattern;
mod policy;
mod policy_change;
mod queue;
mod queues;
mod rate;
pub mod rights;
mod route;
pub mod stored;
mod topology;
mod usage;
mod user;
mod value;
mod vhost;
pub mod weight;

/// The version of RabbitMQ whose behaviour clients and tools may expect of us, wherever one is told: to clients, in the API, in
/// metrics, in definitions.
///
/// Clients branch on it: kombu takes `global` prefetch from 3.3 to 3.x, which is what 3.13 does.
pub const COMPATIBLE_VERSION: &str = "3.13.7";

pub use access::Bootstrap;
pub use apply::Applied;
pub use arguments::permissions_needed;
pub use binding::{Binding, Bound, Destination, Removed, RemovedExchange, Target};
pub use brought::BroughtError;
pub use by::{By, Link, Origin};
pub use by_group::ByGroup;
pub use confirm::{ConfirmOn, ConfirmOptions, ReplicationConfirm};
pub use connection::{ConnectionId, NoConnection, NodeId};
pub use defaults::{DefaultLimits, DefaultPolicy, DefaultUser, Defaults, PasswordRule};
pub use definitions::{
    Import, ImportError, ImportReason, Imported, Lines, Reader, for_rabbitmq, loose_topic,
};
pub use error::{
    AccessError, AdminError, AuthError, BindError, DeclareError, DeleteError, Locked, NameError,
    NamesFull, NotFound, PolicyError, ResourceKind, ResourceRef,
};
pub use event::{EVENT_EXCHANGE, Event};
pub use exchange::{Exchange, ExchangeKind, ExchangeSpec};
pub use going::{SWEPT_AT_ONCE, Sweep};
pub use homes::Homes;
pub use id::{BindingId, ExchangeId, GroupId, QueueId, VhostId};
pub use journal::{Change, EntityKey, Noted};
pub use named::Named;
pub use parameters::{is_policy, must_be_component};
pub use pattern::Pattern;
pub use policy::{ApplyTo, Policy, PolicySpec};
pub use policy_change::PolicyChange;
pub use queue::{Declared, Queue, QueueKind, QueueSpec};
pub use queues::{ArgumentsChange, ArgumentsError, QueueAccessError, TRACE_QUEUES};
pub use rate::{RATE_LIMITS, Rates};
pub use route::{HashProperties, ROUTE_COST_MAX, Routable, Route};
pub use topology::Topology;
pub use usage::{
    ChannelsOfNode, CountedChannel, CountedConnection, CountedUse, UseWatch, UsedBy, Uses,
};
pub use user::{Hashing, Password, PasswordHash, Permission, Permissions, TopicPermissions, User};
pub use value::{TableError, checked_table_from_json, table_bytes, table_from_json, table_to_json};
pub use vhost::{DeletedVhost, Vhost};
