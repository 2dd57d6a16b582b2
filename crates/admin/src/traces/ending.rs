//! The end of a trace, asked for once. All that it takes has one deadline, counted from then.
//!
//! ```text
//!  asked    TAKEN                 CANCELLED  COUNTED            WRITTEN      END
//!    |--------|-----------------------|---------|------------------|----------|
//!     messages  the consumer is         the queue  the disk takes    the vhost is traced
//!     at hand   cancelled               counts     the rest          no more, if it was the last
//! ```
//!
//! A step that is done earlier leaves its time to those after it. What is not done at the end is no longer waited for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::over;

/// Until then messages that are at hand are still taken.
pub(super) const TAKEN: Duration = Duration::from_millis(500);

/// Until then the consumer is cancelled, and what was on its way to it is taken.
pub(super) const CANCELLED: Duration = Duration::from_millis(2_500);

/// Until then the queue tells what it still has.
pub(super) const COUNTED: Duration = Duration::from_secs(3);

/// Until then the disk takes the rest.
pub(super) const WRITTEN: Duration = Duration::from_secs(5);

/// Whoever ends a trace waits for so long.
pub(super) const END: Duration = Duration::from_secs(6);

/// When a trace is to end, and whether it has.
#[derive(Debug, Default)]
pub(super) struct Ending {
    asked: watch::Sender<Option<Instant>>,
    /// What the trace needs was deleted: its vhost, its queue, its user.
    is_by_others: AtomicBool,
    /// All is done that follows from its end.
    is_done: watch::Sender<bool>,
}

impl Ending {
    /// The trace is to end. When that was asked for first.
    pub(super) fn ask(&self) -> Instant {
        let now = Instant::now();
        self.asked.send_if_modified(|asked| {
            let is_first = asked.is_none();
            asked.get_or_insert(now);
            is_first
        });
        self.asked.borrow().unwrap_or(now)
    }

    /// Whether the trace is to end.
    pub(super) fn is_asked(&self) -> bool {
        self.asked.borrow().is_some()
    }

    /// Waits until the trace is to end. Since when.
    pub(super) async fn asked(&self) -> Instant {
        let mut asked = self.asked.subscribe();
        let since = asked.wait_for(Option::is_some).await.ok().and_then(|it| *it);
        // The sender is ours.
        since.unwrap_or_else(Instant::now)
    }

    /// Waits until so much time has passed since then.
    pub(super) async fn reaches(&self, step: Duration) {
        let since = self.asked().await;
        sleep_until(since + step).await;
    }

    /// What the trace needs was deleted, which somebody wanted.
    pub(super) fn is_due_to_others(&self) {
        self.is_by_others.store(true, Ordering::Relaxed);
    }

    /// Whether that is so.
    pub(super) fn is_by_others(&self) -> bool {
        self.is_by_others.load(Ordering::Relaxed)
    }

    /// Ends the trace, and waits until that is done or the deadline is there.
    pub(super) async fn end(&self) {
        let since = self.ask();
        let _ = timeout_at(since + END, over(&mut self.is_done.subscribe())).await;
    }
}

/// A trace that begins, runs or ends. When it is dropped all is done that follows from its end.
#[derive(Debug, Default)]
pub(super) struct Living(Arc<Ending>);

impl Living {
    /// How it ends.
    pub(super) fn ending(&self) -> Arc<Ending> {
        Arc::clone(&self.0)
    }
}

impl Drop for Living {
    fn drop(&mut self) {
        self.0.is_done.send_replace(true);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use tokio::runtime::Builder;

    use super::*;

    fn is_ready(future: impl Future) -> bool {
        pin!(future).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    /// A trace at a shard or disk that never answers is given up once, whoever asks and how often.
    #[test]
    fn all_who_end_a_trace_wait_for_one_deadline() {
        let runtime = Builder::new_current_thread().enable_time().build().unwrap();
        let _runtime = runtime.enter();
        let (living, since) = (Living::default(), Instant::now() - END);
        let ending = living.ending();
        assert!(!is_ready(ending.asked()) && !is_ready(ending.reaches(TAKEN)));
        ending.asked.send_replace(Some(since));
        assert_eq!(ending.ask(), since);
        let begun = Instant::now();
        runtime.block_on(async { tokio::join!(ending.end(), ending.reaches(WRITTEN)) });
        assert!(begun.elapsed() < END, "it was waited for a second time");
    }

    /// Whoever waits for the end of one that never began is told, too.
    #[test]
    fn a_trace_that_is_dropped_has_ended() {
        let runtime = Builder::new_current_thread().enable_time().build().unwrap();
        let _runtime = runtime.enter();
        let living = Living::default();
        let ending = living.ending();
        assert!(!is_ready(ending.end()));
        drop(living);
        assert!(is_ready(ending.end()));
    }
}
