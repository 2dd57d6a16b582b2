//! The names on a node that follows: a copy of what all agree upon, in a topology of its own.
//!
//! ```text
//!   thread "cluster" -- what the log of names is about --> thread "names": NamesFollower --> the names of a Node without actors
//!                                                                   |                               ^
//!                          this node is to lead: NamesCopy <--------'          control socket ------'
//! ```
//!
//! A batch that makes thousands of queues takes its time, so neither the thread of the cluster nor who reads the names does that.
//! While a batch is applied the names are held: nobody sees half of one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use leveret_broker::meta::{NamesCopy, NamesFollower, RecoverError};
pub use leveret_log::file::BatchContents;
pub use leveret_log::{BatchName, Holder, Offset};
pub use leveret_replica::Content;
use leveret_topology::{Homes, Topology};

use crate::clock::boot_ms;
use crate::node::Node;

/// The names and which record of their log is of which, for who owns them from now on.
pub(super) type TakenNames = (NamesCopy, Topology);

/// How long a start that leads waits for the last batches.
const TAKE_PATIENCE: Duration = Duration::from_secs(5);

/// What the thread is told.
#[derive(Debug)]
enum Order {
    /// More of the log of names, of a cluster of so many shards.
    Contents(u32, Vec<Content>),
    /// This node leads: to be answered once the end of the log was told.
    Take(Sender<Option<TakenNames>>),
}

/// How old a copy is: what was changed since then is not known here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyAge {
    /// How long ago a node that leads was last heard, or this node was started.
    pub at_least: Duration,
    /// It was heard: else the copy is older than this process.
    pub is_known: bool,
}

impl std::fmt::Display for CopyAge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let seconds = self.at_least.as_secs();
        match self.is_known {
            true => write!(f, "as of {seconds} s ago"),
            false => write!(f, "that was there when this node started, {seconds} s ago"),
        }
    }
}

/// A copy of the names.
#[derive(Debug)]
pub struct CopiedNames {
    node: Arc<Node>,
    orders: Sender<Order>,
    /// It has all as of some moment.
    is_whole: AtomicBool,
    /// When a node that led was last heard; when this one was started if never.
    heard_ms: AtomicU64,
    was_heard: AtomicBool,
}

impl CopiedNames {
    /// Begins the thread.
    ///
    /// # Errors
    ///
    /// The system gives none.
    pub fn start() -> std::io::Result<Arc<Self>> {
        let (orders, told) = channel();
        let copied = Arc::new(Self {
            node: Arc::new(Node::standing_by()),
            orders,
            is_whole: AtomicBool::new(false),
            heard_ms: AtomicU64::new(boot_ms()),
            was_heard: AtomicBool::new(false),
        });
        let follows = Arc::clone(&copied);
        std::thread::Builder::new()
            .name("names".to_owned())
            .spawn(move || Follower { copied: follows, follower: None, lent: None }.run(&told))?;
        Ok(copied)
    }

    /// A node without actors, which has the names.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// How old the copy is. None as long as the names are not all here.
    pub fn age(&self) -> Option<CopyAge> {
        let heard_ms = self.heard_ms.load(Ordering::Relaxed);
        let is_whole = self.is_whole.load(Ordering::Acquire);
        is_whole.then(|| CopyAge {
            at_least: Duration::from_millis(boot_ms().saturating_sub(heard_ms)),
            is_known: self.was_heard.load(Ordering::Relaxed),
        })
    }

    /// The node that leads was heard so long ago.
    pub fn heard(&self, ago: Duration) {
        let at_ms = boot_ms().saturating_sub(ago.as_millis() as u64);
        self.heard_ms.store(at_ms, Ordering::Relaxed);
        self.was_heard.store(true, Ordering::Relaxed);
    }

    /// More of the log of names came, of a cluster of so many shards.
    pub fn tell(&self, shards: u32, contents: Vec<Content>) {
        // The thread ends once this node leads.
        let _ = self.orders.send(Order::Contents(shards, contents));
    }

    /// The names up to the end of the log, which was lent. None if they are not all here: then the log is to be read.
    pub(super) fn take(&self) -> Option<TakenNames> {
        let (reply, answer) = channel();
        self.orders.send(Order::Take(reply)).ok()?;
        answer.recv_timeout(TAKE_PATIENCE).ok().flatten()
    }
}

/// What the thread has.
struct Follower {
    copied: Arc<CopiedNames>,
    follower: Option<NamesFollower>,
    /// No more comes: whether all came.
    lent: Option<bool>,
}

impl Follower {
    fn run(mut self, told: &Receiver<Order>) {
        let mut waits = None;
        while let Ok(order) = told.recv() {
            match order {
                Order::Contents(shards, contents) => {
                    for content in contents {
                        if let Err(error) = self.take(Homes::among(shards), content) {
                            tracing::warn!(%error, "the copy of the names is of no use, and is read anew when this node leads");
                            self.forget();
                        }
                    }
                }
                Order::Take(reply) => waits = Some(reply),
            }
            if let (Some(is_whole), Some(reply)) = (self.lent, waits.take()) {
                let _ = reply.send(if is_whole { self.give() } else { None });
                return;
            }
        }
    }

    fn take(&mut self, homes: Homes, content: Content) -> Result<(), Box<RecoverError>> {
        if matches!(content, Content::Anew) {
            self.forget();
            self.follower = Some(NamesFollower::new(homes));
            return Ok(());
        }
        let node = &self.copied.node;
        match (content, &mut self.follower) {
            (Content::Lent { is_whole }, _) => self.lent = Some(is_whole),
            (Content::Records(records), Some(follower)) => follower.found(records),
            (Content::Batch(batch), Some(follower)) => {
                follower.batch(&batch, &mut node.topology_mut())?;
            }
            (Content::UpTo(name), Some(follower)) => {
                if let Some(topology) = follower.whole(name)? {
                    let before = std::mem::replace(&mut *node.topology_mut(), topology);
                    drop(before);
                    self.copied.is_whole.store(true, Ordering::Release);
                    tracing::info!(batch = %name, "this node has a copy of the names");
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn forget(&mut self) {
        self.copied.is_whole.store(false, Ordering::Release);
        self.follower = None;
        // It is freed when nobody waits for the lock.
        let names = std::mem::take(&mut *self.copied.node.topology_mut());
        drop(names);
    }

    fn give(&mut self) -> Option<TakenNames> {
        let copy = self.follower.take()?.into_copy()?;
        self.copied.is_whole.store(false, Ordering::Release);
        Some((copy, std::mem::take(&mut *self.copied.node.topology_mut())))
    }
}
