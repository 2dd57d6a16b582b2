//! Ctrl-C, and being asked to end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};

/// Whether somebody wants this to end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// From now on the signals that end a program only set this.
    pub(crate) fn listen() -> anyhow::Result<Self> {
        let interrupt = Self::default();
        let told = Arc::clone(&interrupt.0);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()
            .context("listening to signals")?;
        let (ready, is_ready) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            runtime.block_on(async {
                let kinds =
                    [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
                let [Ok(mut int), Ok(mut term), Ok(mut hup)] = kinds.map(signal) else {
                    let _ = ready.send(false);
                    return;
                };
                let _ = ready.send(true);
                tokio::select! {
                    _ = int.recv() => {}
                    _ = term.recv() => {}
                    _ = hup.recv() => {}
                }
                told.store(true, Ordering::Release);
            });
        });
        anyhow::ensure!(is_ready.recv().unwrap_or(false), "signals cannot be listened to");
        Ok(interrupt)
    }

    /// Whether it is time to end.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
