//! Front ends: how a node is asked things beside AMQP. They are written in crates above this one, which
//! gives them the node and hears what they listen on.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc;

use crate::cluster::MemberChanges;
use crate::cluster::arrivals::Arrivals;
use crate::cluster::names::CopiedNames;
use crate::cluster::standby::{Relay, Totals};
use crate::cluster::view::Views;
use crate::listener::ClientSuspension;
use crate::logging::Logs;
use crate::node::Node;
use crate::tls::Tls;

/// Opens every front end. Called once, when queues have their messages and the AMQP sockets are open,
/// and before the node says that it is ready.
pub type OpenFrontEnds = Box<dyn FnOnce(Inside<'_>) -> anyhow::Result<FrontEnds>>;

/// What front ends get.
#[derive(Debug)]
pub struct Inside<'a> {
    /// The node.
    pub node: Arc<Node>,
    /// What it is started with.
    pub about: About,
    /// Ends it.
    pub stop: Stop,
    /// For threads that run turns, see [`rest`](crate::runner::rest).
    pub give_back: fn(),
    /// Clients that come by other nodes, to be [taken](Arrivals::take); none of a node that is alone.
    pub arrivals: Option<&'a mut Arrivals>,
    /// What this node knows of its cluster; none if it is alone.
    pub views: Option<Views>,
    /// How the members of its cluster are changed; none if it is alone.
    pub members: Option<MemberChanges>,
}

/// What opens front ends of a node, whatever it is in its cluster.
pub struct Fronts {
    /// Of one that runs the broker.
    pub broker: OpenFrontEnds,
    /// Of one on standby.
    pub standby: OpenStandby,
}

impl fmt::Debug for Fronts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fronts")
    }
}

/// Opens the control socket of a node while another one leads its cluster. Called once.
pub type OpenStandby = Box<dyn FnOnce(Standby) -> anyhow::Result<Box<dyn Running>> + Send>;

/// What the control socket of a node on standby gets.
#[derive(Debug)]
pub struct Standby {
    /// What it is started with. Its listeners are those that relay.
    pub about: About,
    /// Ends the node.
    pub stop: Stop,
    /// What it knows of its cluster.
    pub views: Views,
    /// How the node that leads is reached.
    pub relay: Arc<dyn Relay>,
    /// TLS of its links, if they have that.
    pub link_tls: Option<Arc<Tls>>,
    /// What it relays.
    pub totals: Arc<Totals>,
    /// What it has of the names.
    pub names: Arc<CopiedNames>,
    /// Whether clients may not come in.
    pub suspended: ClientSuspension,
}

/// Front ends that are open.
#[derive(Debug)]
pub struct FrontEnds {
    /// Where they listen.
    pub listeners: Vec<Listener>,
    /// What runs, to be ended.
    pub running: Box<dyn Running>,
}

/// Front ends at work.
pub trait Running: fmt::Debug {
    /// Takes no more requests, finishes those under way, and ends; afterwards runs no turn any more.
    fn stop(self: Box<Self>);
}

/// A socket that is listened on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// RabbitMQ's word: `amqp`, `http`, ...
    pub protocol: &'static str,
    /// In words.
    pub purpose: &'static str,
    /// Where.
    pub address: SocketAddr,
}

/// What answers need beside the node.
#[derive(Clone, Debug)]
pub struct About {
    /// `rabbit@host`.
    pub node_name: String,
    /// Product name for tools.
    pub product_name: String,
    /// Product version for tools.
    pub product_version: String,
    /// Where the node keeps its data.
    pub data_dir: PathBuf,
    /// Files the configuration was read from.
    pub config_files: Vec<String>,
    /// Files and streams that are logged to.
    pub log_files: Vec<String>,
    /// The logs at work.
    pub logs: Logs,
    /// RabbitMQ's plugins whose work is done here.
    pub plugins: Vec<&'static str>,
    /// Options and values as shown; secrets are hidden.
    pub environment: Vec<(&'static str, String)>,
    /// Where AMQP is listened for.
    pub listeners: Vec<Listener>,
    /// Threads that run turns.
    pub threads: usize,
    /// The machine's memory, in bytes.
    pub machine_memory: u64,
    /// The memory watermark of the configuration, in bytes.
    pub memory_limit: u64,
    /// Free disk space under which publishers are blocked, as the configuration has it, in bytes.
    pub disk_free_limit: u64,
    /// When the process began.
    pub started: Instant,
}

/// Asks the node to stop.
#[derive(Clone, Debug)]
pub struct Stop(mpsc::UnboundedSender<String>);

impl Stop {
    /// One, and where it is heard.
    pub fn new() -> (Self, mpsc::UnboundedReceiver<String>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self(sender), receiver)
    }

    /// Asks. `by` is who asks, for the log.
    pub fn ask(&self, by: String) {
        // A node that is gone has stopped.
        let _ = self.0.send(by);
    }
}
