//! The last step of a start: the queues get the messages that the logs kept, while clients come in.
//!
//! Each shard is filled by a thread of its own, which holds the shard's lock. No shard has a turn before all are filled, so
//! letters wait in their inboxes: see `docs/decisions/0045-logins-before-queues.md`.
//! They count as what the shard holds, so that the memory alarm stops publishers: a connection pauses after its letter, and another
//! one may come.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use leveret_broker::Shard;
use leveret_broker::shard::Restored;
use leveret_node::start::{self, Filled};
use tokio::sync::oneshot;

use crate::node::Node;
use crate::runner::with_runner;
use crate::storage::{NodeLog, Orphans, Pace, all_at_once};

/// Queues that are being filled.
#[derive(Debug)]
pub(crate) struct Filling {
    begun: Instant,
    orphans: Orphans,
    /// Records that were read.
    read: Arc<AtomicU64>,
    ended: oneshot::Receiver<Filled>,
    filled: Option<Filled>,
}

/// What a node is filled by.
#[derive(Debug)]
pub(crate) struct Supply {
    /// What is known besides the logs.
    pub past: start::Past,
    /// What becomes of messages of queues that are not known.
    pub orphans: Orphans,
}

impl Filling {
    /// Begins. Nothing else takes the lock of a shard until [`Filling::finish`].
    pub(crate) fn begin(node: &Arc<Node>, supply: Supply) -> io::Result<Self> {
        let (tell, ended) = oneshot::channel();
        let (read, node) = (Arc::new(AtomicU64::new(0)), Arc::clone(node));
        let orphans = supply.orphans.clone();
        let filling = Self { begun: Instant::now(), orphans, read, ended, filled: None };
        let read = Arc::clone(&filling.read);
        std::thread::Builder::new().name("fill".to_owned()).spawn(move || {
            match fill_all(&node, &supply, &read) {
                // Nobody hears of it in a process that ends already.
                Ok(filled) => drop(tell.send(filled)),
                Err(error) => tracing::error!(%error, "the queues cannot be filled"),
            }
        })?;
        Ok(filling)
    }

    /// Waits until all are filled, and nodes are here whose sessions had what is in the queues, and it is agreed upon that this one leads; may
    /// be called again if it was dropped before. None if they cannot be filled.
    pub(crate) async fn wait(&mut self, node: &Node) -> Option<Filled> {
        if self.filled.is_none() {
            self.filled = Some((&mut self.ended).await.ok()?);
        }
        if let Some(gateway) = &node.gateway {
            gateway.has_gathered().await;
            gateway.note_term(node).await;
        }
        self.filled.take()
    }

    /// How many records were read.
    pub(crate) fn read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// All are filled: tells what was found, and gives the shards their first turns. How many messages there are.
    pub(crate) fn finish(self, node: &Arc<Node>, filled: Filled) -> u64 {
        self.orphans.tell(&filled.restored);
        node.shards.iter().for_each(|shard| shard.actor.state().log_mut().reclaim());
        let all = filled.end(&mut node.meta().state());
        if all != Restored::default() {
            tracing::info!(
                messages = all.messages,
                of_deleted_queues = all.orphans,
                of_unfinished_transactions = all.undone,
                ms = self.begun.elapsed().as_millis() as u64,
                "messages are back in their queues"
            );
        }
        match &node.gateway {
            Some(gateway) => gateway.begin(node),
            // A leader before may have had some.
            None => {
                node.shards.iter().for_each(|it| it.actor.state().keep_streams(|_| false));
                node.meta().state().keep_commands(|_| false);
            }
        }
        node.is_filled_now();
        with_runner(node, |runner| runner.begin_shards());
        all.messages
    }
}

/// Fills all shards at the same time.
fn fill_all(node: &Node, supply: &Supply, read: &AtomicU64) -> io::Result<Filled> {
    let work =
        node.shards.iter().enumerate().map(|(index, shard)| {
            ((), move || fill(&mut shard.actor.state(), index, supply, read))
        });
    let mut all = Filled::default();
    for ((), filled) in all_at_once("fill", work.collect())? {
        all.add(filled);
    }
    Ok(all)
}

/// Fills one, and tells now and then how far it is.
fn fill(shard: &mut Shard<NodeLog>, index: usize, supply: &Supply, read: &AtomicU64) -> Filled {
    let total = shard.usage().records;
    let (mut done, mut pace) = (0, Pace::begin());
    supply.past.fill(index, shard, &mut |more| {
        done += more;
        read.fetch_add(more, Ordering::Relaxed);
        if let Some(percent) = pace.percent(done, total) {
            tracing::info!(shard = index, percent, messages = total, "filling the queues");
        }
    })
}
