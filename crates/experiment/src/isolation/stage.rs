//! Where a case is played: the vhost, the moment at which the large thing begins, what its messages take.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use leveret_load::probe::{Probe, ProbeOptions, Probed};

use crate::echo::{Echo, Echoed};
use crate::site::Site;

/// What a case is given, and tells.
#[derive(Debug)]
pub(crate) struct Stage<'a> {
    pub(crate) site: &'a Site,
    /// Its own.
    pub(crate) vhost: &'a str,
    /// How large the large thing is.
    pub(crate) size: u64,
    /// How long it goes on, if it has no end by itself.
    pub(crate) seconds: Duration,
    /// When it has taken too long.
    pub(crate) end: Instant,
    /// To whoever watches it.
    pub(crate) watcher: Sender<FromCase>,
    /// What it told.
    pub(crate) told: CaseNotes,
}

/// What a case tells its watcher.
#[derive(Debug)]
pub(crate) enum FromCase {
    /// The large thing is about to begin: the probe and the control are wanted. The answer is that they are there.
    Begins(Sender<()>),
    Ended,
}

/// What a case says of its run, and the probe beside it.
#[derive(Debug, Default)]
pub(crate) struct CaseNotes {
    began: OnceLock<Instant>,
    message_bytes: AtomicU64,
    rss_before: AtomicU64,
    /// What it does is there to stay, and what it takes is measured.
    stays: AtomicBool,
    probe: Mutex<Option<Probe>>,
    echo: Mutex<Option<Echo>>,
    last_us: Arc<AtomicU64>,
}

/// After so long a rest the broker has given back what it does not need any more.
const REST: Duration = Duration::from_secs(4);

/// The probe is at work before the large thing begins.
const AHEAD: Duration = Duration::from_millis(300);

impl Stage<'_> {
    /// Starts the probe and the control, on threads that have the priority of who calls.
    pub(crate) fn start_probe(&self) {
        let last_us = Arc::clone(&self.told.last_us);
        let on_round = move |round: &leveret_load::probe::Round| {
            last_us.store(round.took().as_micros() as u64, Ordering::Relaxed);
        };
        let probe = Probe::start(&ProbeOptions::new(&self.site.uri), on_round).ok();
        *self.told.probe.lock().unwrap_or_else(PoisonError::into_inner) = probe;
        *self.told.echo.lock().unwrap_or_else(PoisonError::into_inner) = Echo::start().ok();
    }

    /// The preparation is over: the probe begins, and then the large thing.
    pub(crate) fn begin(&self) {
        if let Some(pid) = self.site.pid {
            forget_peak(pid);
            let rss = leveret_load::process::tree(pid).map_or(0, |it| it.rss_bytes);
            self.told.rss_before.store(rss, Ordering::Relaxed);
        }
        let (reply, ready) = mpsc::channel();
        let _ = self.watcher.send(FromCase::Begins(reply));
        let _ = ready.recv();
        std::thread::sleep(AHEAD);
        let _ = self.told.began.set(Instant::now());
    }

    /// Its messages take so many bytes more, as the broker holds them.
    pub(crate) fn takes(&self, bytes: u64) {
        self.told.message_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// What it makes is there to stay, as names are: what the process takes at the end is no memory that it needed to make them.
    pub(crate) fn stays(&self) {
        self.told.stays.store(true, Ordering::Relaxed);
    }

    /// An error when it has taken too long.
    pub(crate) fn check_time(&self) -> Result<()> {
        ensure!(Instant::now() < self.end, "it did not end in time");
        Ok(())
    }
}

impl CaseNotes {
    /// When the large thing began.
    pub(crate) fn began(&self) -> Option<Instant> {
        self.began.get().copied()
    }

    /// What its messages take, in bytes.
    pub(crate) fn message_bytes(&self) -> u64 {
        self.message_bytes.load(Ordering::Relaxed)
    }

    /// What it made takes, in bytes, where it is there to stay.
    pub(crate) fn staying_bytes(&self, pid: u32) -> Option<u64> {
        if !self.stays.load(Ordering::Relaxed) {
            return None;
        }
        std::thread::sleep(REST);
        let rss = leveret_load::process::tree(pid)?.rss_bytes;
        Some(rss.saturating_sub(self.rss_before()))
    }

    /// The process when it began, in bytes.
    pub(crate) fn rss_before(&self) -> u64 {
        self.rss_before.load(Ordering::Relaxed)
    }

    /// The probe goes on until its rounds are calm again, for what comes after a large thing is a part of it; then it ends.
    pub(crate) fn end_of_probe(
        &self,
        calm: Duration,
        patience: Duration,
    ) -> Option<(Probed, Echoed)> {
        /// Rounds are seen to be calm for so long.
        const CALM: Duration = Duration::from_secs(1);
        let probe = self.probe.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        let end = Instant::now() + patience;
        let mut calm_since = Instant::now();
        while calm_since.elapsed() < CALM && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
            if u128::from(self.last_us.load(Ordering::Relaxed)) > calm.as_micros() {
                calm_since = Instant::now();
            }
        }
        let echo = self.echo.lock().unwrap_or_else(PoisonError::into_inner).take();
        Some((probe.stop(), echo.map(Echo::stop).unwrap_or_default()))
    }
}

/// The kernel forgets the peak of this process, if we may tell it to: see proc(5), `clear_refs`.
fn forget_peak(pid: u32) {
    let _ = std::fs::write(format!("/proc/{pid}/clear_refs"), "5");
}

/// The most that this process had in memory, in bytes.
pub(crate) fn peak_rss(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peak_can_be_read() {
        let own = std::process::id();
        forget_peak(own);
        assert!(peak_rss(own) > Some(0));
        assert_eq!(peak_rss(u32::MAX), None);
    }
}
