//! The signals of a node: taken before anything else, so that none ends the process in the middle of a start.
//!
//! A stop that is asked for while the data directory is being opened ends the process at once: nothing was bound, and what the
//! start found is there for the next one, as after a crash. Later ones wait until the node can stop in good order.

use std::io;

use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that a node knows, from the moment on at which it has them, and the runtime that receives them.
#[derive(Debug)]
pub struct Signals {
    pub(crate) runtime: Runtime,
    pub(crate) stops: StopSignals,
    pub(crate) hangup: Signal,
}

/// What asks a node to stop.
#[derive(Debug)]
pub(crate) struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// From here on none of them ends the process by itself.
    pub fn take() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let inside = runtime.enter();
        let stops = StopSignals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        };
        let hangup = signal(SignalKind::hangup())?;
        drop(inside);
        Ok(Self { runtime, stops, hangup })
    }

    /// Leaves what is being done undone.
    pub(crate) fn leave(self) {
        self.runtime.shutdown_background();
    }

    /// Does something on another thread. None if the process is asked to stop meanwhile: it ends in the middle of it.
    pub(crate) fn unless_stopped<T: Send + 'static>(
        &mut self,
        what: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let doing = self.runtime.spawn_blocking(what);
        let done = self.waits_unless_stopped(doing)?;
        Some(done.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic())))
    }

    /// As [`waits_unless_stopped`](Self::waits_unless_stopped), of a node that stands by: each SIGHUP is heard.
    pub(crate) fn stands_by_unless_stopped<T>(
        &mut self,
        what: impl Future<Output = T>,
        mut hangs_up: impl FnMut(),
    ) -> Option<T> {
        let Self { runtime, stops, hangup } = self;
        runtime.block_on(async {
            tokio::pin!(what);
            loop {
                tokio::select! {
                    done = &mut what => return Some(done),
                    by = stops.comes() => {
                        tracing::info!("stopping: {by}");
                        return None;
                    }
                    _ = hangup.recv() => hangs_up(),
                }
            }
        })
    }

    /// Waits for something. None if the process is asked to stop meanwhile.
    pub(crate) fn waits_unless_stopped<T>(&mut self, what: impl Future<Output = T>) -> Option<T> {
        let Self { runtime, stops, .. } = self;
        runtime.block_on(async {
            tokio::select! {
                done = what => Some(done),
                by = stops.comes() => {
                    tracing::info!("stopping: {by}");
                    None
                }
            }
        })
    }
}

impl StopSignals {
    /// Waits for one. Its name.
    pub(crate) async fn comes(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
