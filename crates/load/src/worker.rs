//! What producers and consumers have in common: a connection, a run that can be stopped, and a second
//! connection when the first is lost.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leveret_client::{Connection, Error};

use crate::plan::Plan;
use crate::stats::Tally;

/// How long to sleep or wait at most before looking whether the run is over.
pub(crate) const NAP: Duration = Duration::from_millis(100);

/// A thread with a connection.
pub(crate) trait Worker<'a>: Sized + Send {
    /// What it is called in messages.
    const WHO: &'static str;

    /// Connects as the worker of this number.
    fn open(plan: &'a Plan, number: usize) -> Result<Self, Error>;

    fn connection(&self) -> &Connection;

    /// Works until its limits are reached or `stop` is set.
    fn run(&mut self, tally: &Tally, stop: &AtomicBool) -> Result<(), Error>;

    /// Connects again and goes on where the lost connection ended.
    fn reopen(&mut self) -> Result<(), Error>;

    /// Says goodbye to the broker.
    fn close(self) -> Result<(), Error>;
}

/// Where a channel is among those of its connection, which are opened one after the other from 1 on.
pub(crate) fn lane_of(channel: u16) -> usize {
    usize::from(channel).wrapping_sub(1)
}

/// Waits, unless `stop` is set meanwhile, without losing the connection.
pub(crate) fn pause(
    time: Duration,
    stop: &AtomicBool,
    connection: &mut Connection,
) -> Result<(), Error> {
    let end = Instant::now() + time;
    while !stop.load(Ordering::Relaxed) {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        std::thread::sleep(left.min(NAP));
        connection.keep_alive()?;
    }
    Ok(())
}

/// Whether connecting again may help: the connection was lost, or the broker is going away.
pub(crate) fn is_lost(error: &Error) -> bool {
    const CONNECTION_FORCED: u16 = 320;
    const INTERNAL_ERROR: u16 = 541;
    match error {
        Error::Io { .. } | Error::HeartbeatMissed(_) => true,
        Error::ConnectionClosed(reason) => {
            [CONNECTION_FORCED, INTERNAL_ERROR].contains(&reason.code)
        }
        _ => false,
    }
}
