//! What can be asked of a node: rows of lists, facts, changes.

pub mod ask;
pub(crate) mod close;
pub mod direct;
pub mod facts;
pub(crate) mod messages;
pub mod pages;
pub mod system;

use std::sync::Arc;

use leveret_server::cluster::MemberChanges;
use leveret_server::cluster::view::Views;
use leveret_server::front::{About, Stop};
use leveret_server::node::Node;

use crate::stats::Collector;
use crate::traces::Traces;

/// A node, for those who ask.
#[derive(Debug)]
pub struct Ops {
    /// The node.
    pub node: Arc<Node>,
    /// What it was started with.
    pub about: About,
    /// Ends it.
    pub stop: Stop,
    /// Its statistics.
    pub stats: Arc<Collector>,
    /// What it knows of its cluster; none if it is alone.
    pub views: Option<Views>,
    /// How the members of that are changed.
    pub(crate) members: Option<MemberChanges>,
    /// Its traces.
    pub(crate) traces: Arc<Traces>,
}
