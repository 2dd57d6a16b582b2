//! The threads that run turns: one single-threaded runtime each.
//!
//! A connection's task stays on the thread it was given to; its turns run on whichever thread brings
//! work for it. Why this shape, and what it was measured against: the decision record on threads in
//! `docs/decisions/`.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::clock::now;
use crate::node::Node;
use crate::runner::{gather, install_runner, keep_working_for_others, rest, sleeps, with_runner};
use leveret_broker::message::ToShard;

/// Handles of the threads, to give them connections.
#[derive(Debug)]
pub struct Threads {
    handles: Vec<Handle>,
    next: AtomicUsize,
    stop: Vec<oneshot::Sender<()>>,
    joins: Vec<std::thread::JoinHandle<()>>,
}

impl Threads {
    /// Starts `count` threads for the node. With `gather_reads` they wait for more of what single messages they read fast:
    /// see [`gather`](crate::gather). Each calls `give_back` when it rests after work.
    pub fn start(
        node: &Arc<Node>,
        count: usize,
        gather_reads: bool,
        give_back: fn(),
    ) -> io::Result<Self> {
        let mut threads = Self {
            handles: Vec::new(),
            next: AtomicUsize::new(0),
            stop: Vec::new(),
            joins: Vec::new(),
        };
        for index in 0..count {
            let mut builder = Builder::new_current_thread();
            builder.enable_io().enable_time();
            if gather_reads {
                builder.on_thread_park(sleeps);
            }
            let runtime = builder.build()?;
            threads.handles.push(runtime.handle().clone());
            node.watched.ask_thread(runtime.handle().clone());
            let (stop, stopped) = oneshot::channel();
            threads.stop.push(stop);
            let node = Arc::clone(node);
            let join =
                std::thread::Builder::new().name(format!("leveret-{index}")).spawn(move || {
                    let (more, worked) = install_runner(Arc::clone(&node));
                    if gather_reads {
                        gather();
                    }
                    runtime.block_on(async move {
                        tokio::spawn(keep_working_for_others(more));
                        tokio::spawn(rest(Arc::clone(&node), worked, give_back));
                        if index == 0 {
                            tokio::spawn(keep_time(node));
                        }
                        // An error means that the sender is gone, which also ends the thread.
                        let _ = stopped.await;
                    });
                    runtime.shutdown_background();
                })?;
            threads.joins.push(join);
        }
        Ok(threads)
    }

    /// The thread whose turn it is to take a connection, and its number.
    pub fn next(&self) -> (usize, &Handle) {
        let index = self.next.fetch_add(1, Ordering::Relaxed) % self.handles.len();
        (index, &self.handles[index])
    }

    /// Ends all threads and waits for them.
    pub fn stop(self) {
        for stop in self.stop {
            let _ = stop.send(());
        }
        for join in self.joins {
            let _ = join.join();
        }
    }
}

/// Runs shards whose time has come: expiry of messages and queues. Sleeps when no shard has a time.
async fn keep_time(node: Arc<Node>) {
    loop {
        let due = node.shards.iter().map(|shard| shard.due_ms.load(Ordering::Acquire)).min();
        let wait = due.filter(|&due| due != u64::MAX).map(|due| due.saturating_sub(now().ms()));
        let sleep = async {
            match wait {
                Some(wait) => tokio::time::sleep(Duration::from_millis(wait)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = sleep => {}
            () = node.timers_changed.notified() => continue,
        }
        let now_ms = now().ms();
        for (index, shard) in node.shards.iter().enumerate() {
            if shard.due_ms.load(Ordering::Acquire) <= now_ms {
                // Until the turn tells the next time, so that this one is not seen again.
                shard.due_ms.store(u64::MAX, Ordering::Release);
                with_runner(&node, |runner| {
                    runner.run_shard(node.homes.group_at(index), ToShard::Continue)
                });
            }
        }
    }
}
