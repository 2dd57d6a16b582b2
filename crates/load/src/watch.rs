//! The watcher of a run: when it is over, what each interval brought, what the broker used.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use leveret_client::{Connection, QueueDeclare};

use crate::args::{ExitWhen, Options};
use crate::outcome::{Broker, Interval, Outcome};
use crate::plan::{Keys, Plan};
use crate::process::{self, Usage};
use crate::run::RunControl;
use crate::stats::{Counter, Percentiles, Tally, Totals, histogram, sizes};

/// How often the watcher looks whether the run is over.
const LOOK: Duration = Duration::from_millis(20);
/// What a worker may take longer to stop than it should.
const GRACE: Duration = Duration::from_secs(1);
/// Consumers are done when nothing has come for this long after the last publish.
const DRAINED: Duration = Duration::from_millis(300);
/// The same when a loss would be told: nobody shall be blamed for a pause.
const DRAINED_VERIFIED: Duration = Duration::from_secs(2);
/// How long draining may take when the run has a time limit, and when it has none.
const DRAIN_MAX: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(600)];
/// Without messages for this long, consumers are idle; not before the run is that old.
const IDLE: Duration = Duration::from_secs(1);
const IDLE_FROM: Duration = Duration::from_secs(2);

/// Looks at the workers until they are done.
pub(crate) struct Watch<'a, 'f> {
    plan: &'a Plan,
    id: &'a str,
    shared: &'a RunControl,
    producers: &'a [Tally],
    consumers: &'a [Tally],
    /// To ask queues for their length.
    control: Option<Connection>,
    start: Instant,
    interval: Duration,
    meter: Meter,
    own_cpu_before: f64,
    latency: Histogram<u64>,
    confirm_latency: Histogram<u64>,
    intervals: Vec<Interval>,
    /// When the last interval ended, and the totals then.
    last: (Duration, Totals),
    /// Messages consumed, and since when it is so many.
    consumed: (u64, Instant),
    on_interval: Option<&'f mut dyn FnMut(&Interval)>,
}

impl<'a, 'f> Watch<'a, 'f> {
    pub(crate) fn new(
        plan: &'a Plan,
        options: &'a Options,
        shared: &'a RunControl,
        (producers, consumers): (&'a [Tally], &'a [Tally]),
        control: Option<Connection>,
        on_interval: Option<&'f mut dyn FnMut(&Interval)>,
    ) -> Result<Self> {
        let meter = Meter::new(options.output.broker_pid)?;
        let start = Instant::now();
        Ok(Self {
            plan,
            id: &options.output.id,
            shared,
            producers,
            consumers,
            control,
            start,
            interval: Duration::from_secs_f64(options.output.interval),
            meter,
            own_cpu_before: process::own().cpu_s,
            latency: histogram(),
            confirm_latency: histogram(),
            intervals: Vec::new(),
            last: (Duration::ZERO, Totals::default()),
            consumed: (0, start),
            on_interval,
        })
    }

    /// Watches to the end of the run.
    pub(crate) fn watch(&mut self) -> Outcome {
        let (publish_s, reason) = self.load();
        let (consume_s, has_read_all) = self.drain();
        let broker = self.meter.stop();
        let own_cpu_s = process::own().cpu_s - self.own_cpu_before;
        self.shared.stop_producers.store(true, Ordering::Relaxed);
        self.shared.stop_consumers.store(true, Ordering::Relaxed);
        self.cut_off();
        self.collect();
        Outcome {
            id: self.id.to_owned(),
            plan: crate::json::plan(self.plan),
            reason,
            totals: self.totals(),
            publish_s: publish_s.as_secs_f64(),
            consume_s: consume_s.as_secs_f64(),
            intervals: std::mem::take(&mut self.intervals),
            latency: Percentiles::of(&self.latency),
            confirm_latency: Percentiles::of(&self.confirm_latency),
            own_cpu_s,
            broker,
            verification: self.plan.judge(has_read_all),
        }
    }

    /// Watches until the time is over or the limits are reached; gives the time it took, and why it is
    /// over.
    fn load(&mut self) -> (Duration, String) {
        let end = self.plan.seconds.map(Duration::from_secs_f64);
        let mut line_due = self.interval;
        loop {
            let now = self.start.elapsed();
            if now >= line_due {
                self.line(now);
                line_due += self.interval;
            }
            if let Some(reason) = self.end(now, end) {
                return (now, reason);
            }
            let next = end.map_or(line_due, |end| end.min(line_due));
            std::thread::sleep(next.saturating_sub(now).min(LOOK));
        }
    }

    /// Why the run is over, if it is; in PerfTest's words.
    fn end(&mut self, now: Duration, end: Option<Duration>) -> Option<String> {
        let (publishing, consuming) = (&self.plan.publishing, &self.plan.consuming);
        let all = |reason: &str, count: usize| match count {
            1 => reason.to_owned(),
            several => format!("{reason} [{several}]"),
        };
        let is_none_left = |count: usize, left: &AtomicUsize| count > 0 && running(left) == 0;
        if self.shared.has_failed() {
            return Some("a producer or consumer failed".into());
        }
        if is_none_left(consuming.consumers, &self.shared.consumers_running) {
            let agents = consuming.consumers * consuming.channels;
            return Some(all("Consumer reached message limit", agents));
        }
        if is_none_left(publishing.producers, &self.shared.producers_running)
            && self.plan.exit_when.is_none()
        {
            let agents = publishing.producers * publishing.channels;
            return Some(all("Producer reached message limit", agents));
        }
        if end.is_some_and(|end| now >= end) {
            return Some("Reached time limit".into());
        }
        let exit_when = self.plan.exit_when?;
        let consumed = self.totals().get(Counter::Consumed);
        if consumed != self.consumed.0 {
            self.consumed = (consumed, Instant::now());
        }
        if now < IDLE_FROM || self.consumed.1.elapsed() < IDLE {
            return None;
        }
        let agents = consuming.consumers * consuming.channels;
        match exit_when {
            ExitWhen::Idle => Some(all("Consumer is idle for more than 1 second", agents)),
            ExitWhen::Empty if self.are_queues_empty() => {
                Some(all("Consumer queue(s) empty", agents))
            }
            ExitWhen::Empty => {
                // Asked once a second.
                self.consumed.1 = Instant::now();
                None
            }
        }
    }

    /// A queue that cannot be asked is taken for not empty.
    fn are_queues_empty(&mut self) -> bool {
        let Some(control) = &mut self.control else { return false };
        let Ok(channel) = control.open_channel() else { return false };
        let how = QueueDeclare { passive: true, ..QueueDeclare::default() };
        let is_empty = self.plan.topology.queues.iter().all(|queue| {
            let declared = control.queue_declare(channel, queue, &how);
            declared.is_ok_and(|declared| declared.message_count == 0)
        });
        let _ = control.close_channel(channel);
        is_empty
    }

    /// Lets the producers end and the consumers take what is left; gives the time of the last
    /// message, since the start, and whether nothing is left.
    fn drain(&mut self) -> (Duration, bool) {
        self.shared.stop_producers.store(true, Ordering::Relaxed);
        let began = Instant::now();
        let limit = DRAIN_MAX[usize::from(self.plan.seconds.is_none())];
        let mut seen = (self.totals().get(Counter::Consumed), Instant::now());
        if self.producers.is_empty() || self.consumers.is_empty() {
            return (self.start.elapsed(), false);
        }
        let quiet = if self.plan.ledger.is_some() { DRAINED_VERIFIED } else { DRAINED };
        let is_known = self.plan.publishing.keys == Keys::Fixed;
        let copies = self.plan.topology.copies().filter(|_| is_known);
        while running(&self.shared.consumers_running) > 0
            && began.elapsed() < limit
            && (seen.1.elapsed() < quiet || running(&self.shared.producers_running) > 0)
            && !self.shared.has_failed()
        {
            std::thread::sleep(Duration::from_millis(1));
            let totals = self.totals();
            let consumed = totals.get(Counter::Consumed);
            if consumed != seen.0 {
                seen = (consumed, Instant::now());
            }
            // All is here.
            if copies.is_some_and(|copies| consumed == totals.get(Counter::Published) * copies)
                && running(&self.shared.producers_running) == 0
            {
                break;
            }
        }
        let is_over = began.elapsed() >= limit || self.shared.has_failed();
        let has_read_all =
            !is_over && running(&self.shared.consumers_running) == self.consumers.len();
        (seen.1.duration_since(self.start), has_read_all)
    }

    /// Waits for the workers; those that block on their broker are disconnected.
    fn cut_off(&self) {
        let began = Instant::now();
        let patience = self.plan.shutdown + GRACE;
        while running(&self.shared.producers_running) + running(&self.shared.consumers_running) > 0
        {
            if began.elapsed() > patience || self.shared.has_failed() {
                self.shared.cut_off();
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn totals(&self) -> Totals {
        Totals::of(self.producers.iter().chain(self.consumers))
    }

    fn collect(&mut self) -> (Option<Percentiles>, Option<Percentiles>) {
        let drained = |tallies: &[Tally], all: &mut Histogram<u64>| {
            let mut new = histogram();
            tallies.iter().for_each(|tally| tally.drain(&mut new));
            // Same bounds: adding cannot fail.
            let _ = all.add(&new);
            Percentiles::of(&new)
        };
        (
            drained(self.consumers, &mut self.latency),
            drained(self.producers, &mut self.confirm_latency),
        )
    }

    /// Confirms in a frame, since the last time.
    fn confirm_sizes(&self) -> Option<Percentiles> {
        let mut all = sizes();
        self.producers.iter().for_each(|tally| tally.drain_sizes(&mut all));
        Percentiles::of(&all)
    }

    fn line(&mut self, now: Duration) {
        let totals = self.totals();
        let (latency, confirm_latency) = self.collect();
        let interval = Interval {
            end_s: now.as_secs_f64(),
            length_s: (now - self.last.0).as_secs_f64(),
            totals: totals.since(&self.last.1),
            latency,
            confirm_latency,
            confirm_size: self.confirm_sizes(),
            broker_rss: self.meter.sample().map(|usage| usage.rss_bytes),
        };
        self.last = (now, totals);
        if let Some(on_interval) = &mut self.on_interval {
            on_interval(&interval);
        }
        self.intervals.push(interval);
    }
}

fn running(count: &AtomicUsize) -> usize {
    count.load(Ordering::Relaxed)
}

/// The broker's process tree over a run.
struct Meter {
    pid: Option<u32>,
    before: Usage,
    rss_peak: u64,
}

impl Meter {
    fn new(pid: Option<u32>) -> Result<Self> {
        let before = match pid {
            Some(pid) => process::tree(pid)
                .with_context(|| format!("--broker-pid {pid}: no such process"))?,
            None => Usage::default(),
        };
        Ok(Self { pid, before, rss_peak: before.rss_bytes })
    }

    fn sample(&mut self) -> Option<Usage> {
        let now = process::tree(self.pid?)?;
        self.rss_peak = self.rss_peak.max(now.rss_bytes);
        Some(now)
    }

    fn stop(&mut self) -> Option<Broker> {
        let after = self.sample()?;
        Some(Broker {
            cpu_s: after.cpu_s - self.before.cpu_s,
            rss_before: self.before.rss_bytes,
            rss_peak: self.rss_peak,
            rss_after: after.rss_bytes,
        })
    }
}
