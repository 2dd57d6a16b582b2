//! A run: opens the workers, lets them go at one moment, watches, and stops them.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use hdrhistogram::Histogram;
use leveret_client::{Error, Stopper};

use crate::args::Options;
use crate::consumer::Consumer;
use crate::plan::Plan;
use crate::process::{self, Usage};
use crate::producer::Producer;
use crate::report::{self, Interval};
use crate::stats::{Counter, Percentiles, Tally, Totals, histogram};

/// How often the watcher looks whether the run is over.
const LOOK: Duration = Duration::from_millis(20);
/// Workers that have not stopped by themselves after this time are cut off.
const PATIENCE: Duration = Duration::from_secs(6);
/// Consumers are done when nothing has come for this long after the last publish.
const DRAINED: Duration = Duration::from_millis(300);
/// How long draining may take when the run has a time limit, and when it has none.
const DRAIN_MAX: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(600)];

/// What a run has given. Serializes to what `--json` writes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// The run's name.
    pub id: String,
    /// What was asked for, as the result repeats it.
    pub plan: serde_json::Value,
    /// Everything that was counted.
    pub totals: Totals,
    /// Seconds in which producers published.
    pub publish_s: f64,
    /// Seconds until the last message was consumed.
    pub consume_s: f64,
    /// The run, interval by interval.
    pub intervals: Vec<Interval>,
    /// From publish to delivery; `None` when nothing with a stamp was consumed.
    pub latency: Option<Percentiles>,
    /// From publish to confirm; `None` without confirms.
    pub confirm_latency: Option<Percentiles>,
    /// CPU of this process while the workers ran, in seconds.
    pub own_cpu_s: f64,
    /// What the broker has used, when its process was given.
    pub broker: Option<Broker>,
}

/// What the broker's process tree has used, from the first publish to the last message consumed.
#[derive(Clone, Copy, Debug)]
pub struct Broker {
    /// User and system time in seconds.
    pub cpu_s: f64,
    /// Resident memory before the run, in bytes.
    pub rss_before: u64,
    /// The most resident memory at the end of an interval, in bytes.
    pub rss_peak: u64,
    /// Resident memory after the run, in bytes.
    pub rss_after: u64,
}

impl Outcome {
    /// Messages that CPU seconds are divided by: those published, or consumed if none were.
    pub fn messages(&self) -> u64 {
        match self.totals.get(Counter::Published) {
            0 => self.totals.get(Counter::Consumed),
            published => published,
        }
    }
}

/// Shared between the watcher and its workers.
#[derive(Debug, Default)]
struct Shared {
    stop_producers: AtomicBool,
    stop_consumers: AtomicBool,
    producers_running: AtomicUsize,
    consumers_running: AtomicUsize,
    failure: Mutex<Option<anyhow::Error>>,
}

impl Shared {
    /// A worker has ended. Its failure ends the run, unless the run is over anyway.
    fn ended(&self, running: &AtomicUsize, who: String, result: Result<(), Error>, over: bool) {
        if let Err(error) = result
            && !over
        {
            let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
            failure.get_or_insert_with(|| anyhow!(error).context(who));
        }
        running.fetch_sub(1, Ordering::Relaxed);
    }

    fn has_failed(&self) -> bool {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

/// Runs `plan`, made of `options`, to its end. A broker's process is measured beside it.
pub(crate) fn run(
    plan: &Plan,
    options: &Options,
    on_interval: Option<&mut dyn FnMut(&Interval)>,
) -> Result<Outcome> {
    let routes = plan.declare()?;
    let mut stoppers = Vec::new();
    let mut consumers = Vec::new();
    for index in 0..plan.consumers {
        let worker = Consumer::open(plan, &routes[index % routes.len()])
            .with_context(|| format!("consumer {index}"))?;
        stoppers.push(worker.connection().stopper()?);
        consumers.push(worker);
    }
    let mut producers = Vec::new();
    for index in 0..plan.producers {
        let worker = Producer::open(plan, &routes[index % routes.len()])
            .with_context(|| format!("producer {index}"))?;
        stoppers.push(worker.connection().stopper()?);
        producers.push(worker);
    }
    let tallies: Vec<Tally> =
        (0..plan.producers + plan.consumers).map(|_| Tally::default()).collect();
    let (producer_tallies, consumer_tallies) = tallies.split_at(plan.producers);
    let shared = Shared {
        producers_running: AtomicUsize::new(plan.producers),
        consumers_running: AtomicUsize::new(plan.consumers),
        ..Shared::default()
    };
    let mut watch = Watch {
        id: &options.id,
        plan,
        shared: &shared,
        producers: producer_tallies,
        consumers: consumer_tallies,
        stoppers: &stoppers,
        start: Instant::now(),
        interval: Duration::from_secs_f64(options.interval),
        meter: Meter::new(options.broker_pid)?,
        own_cpu_before: process::own().cpu_s,
        latency: histogram(),
        confirm_latency: histogram(),
        intervals: Vec::new(),
        last: (Duration::ZERO, Totals::default()),
        on_interval,
    };
    let shared = &shared;
    let outcome = std::thread::scope(|scope| {
        for (index, (worker, tally)) in consumers.iter_mut().zip(consumer_tallies).enumerate() {
            scope.spawn(move || {
                let result = worker.run(tally, &shared.stop_consumers);
                let over = shared.stop_consumers.load(Ordering::Relaxed);
                shared.ended(&shared.consumers_running, format!("consumer {index}"), result, over);
            });
        }
        for (index, (worker, tally)) in producers.iter_mut().zip(producer_tallies).enumerate() {
            scope.spawn(move || {
                let result = worker.run(tally, &shared.stop_producers);
                let over = shared.stop_producers.load(Ordering::Relaxed);
                shared.ended(&shared.producers_running, format!("producer {index}"), result, over);
            });
        }
        watch.watch()
    });
    if let Some(error) = shared.failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
        return Err(error);
    }
    // A goodbye makes sure that the broker has taken all that was written. The measurement is over,
    // so whether it answers matters no more.
    for producer in producers {
        let _ = producer.close();
    }
    for consumer in consumers {
        let _ = consumer.close();
    }
    Ok(outcome)
}

struct Watch<'a, 'f> {
    id: &'a str,
    plan: &'a Plan,
    shared: &'a Shared,
    producers: &'a [Tally],
    consumers: &'a [Tally],
    stoppers: &'a [Stopper],
    start: Instant,
    interval: Duration,
    meter: Meter,
    own_cpu_before: f64,
    latency: Histogram<u64>,
    confirm_latency: Histogram<u64>,
    intervals: Vec<Interval>,
    /// When the last interval ended, and the totals then.
    last: (Duration, Totals),
    on_interval: Option<&'f mut dyn FnMut(&Interval)>,
}

impl Watch<'_, '_> {
    fn watch(&mut self) -> Outcome {
        let publish_s = self.load();
        let consume_s = self.drain();
        let broker = self.meter.stop();
        let own_cpu_s = process::own().cpu_s - self.own_cpu_before;
        self.shared.stop_producers.store(true, Ordering::Relaxed);
        self.shared.stop_consumers.store(true, Ordering::Relaxed);
        self.cut_off();
        self.collect();
        Outcome {
            id: self.id.to_owned(),
            plan: report::plan(self.plan),
            totals: self.totals(),
            publish_s: publish_s.as_secs_f64(),
            consume_s: consume_s.as_secs_f64(),
            intervals: std::mem::take(&mut self.intervals),
            latency: Percentiles::of(&self.latency),
            confirm_latency: Percentiles::of(&self.confirm_latency),
            own_cpu_s,
            broker,
        }
    }

    /// Watches until the time is over or the limits are reached; gives the time it took.
    fn load(&mut self) -> Duration {
        let end = self.plan.seconds.map(Duration::from_secs_f64);
        let mut line_due = self.interval;
        loop {
            let now = self.start.elapsed();
            if now >= line_due {
                self.line(now);
                line_due += self.interval;
            }
            let consumers_done =
                self.plan.consumers > 0 && running(&self.shared.consumers_running) == 0;
            let producers_done =
                self.plan.producers > 0 && running(&self.shared.producers_running) == 0;
            if consumers_done
                || producers_done
                || end.is_some_and(|end| now >= end)
                || self.shared.has_failed()
            {
                return now;
            }
            let next = end.map_or(line_due, |end| end.min(line_due));
            std::thread::sleep(next.saturating_sub(now).min(LOOK));
        }
    }

    /// Lets the producers end and the consumers take what is left; gives the time of the last
    /// message, since the start.
    fn drain(&mut self) -> Duration {
        self.shared.stop_producers.store(true, Ordering::Relaxed);
        let began = Instant::now();
        let limit = DRAIN_MAX[usize::from(self.plan.seconds.is_none())];
        let mut seen = (self.totals().get(Counter::Consumed), Instant::now());
        if self.plan.producers == 0 || self.plan.consumers == 0 {
            return self.start.elapsed();
        }
        while running(&self.shared.consumers_running) > 0
            && began.elapsed() < limit
            && (seen.1.elapsed() < DRAINED || running(&self.shared.producers_running) > 0)
            && !self.shared.has_failed()
        {
            std::thread::sleep(Duration::from_millis(1));
            let totals = self.totals();
            let consumed = totals.get(Counter::Consumed);
            if consumed != seen.0 {
                seen = (consumed, Instant::now());
            }
            // One queue each: all is here.
            if consumed == totals.get(Counter::Published)
                && running(&self.shared.producers_running) == 0
            {
                break;
            }
        }
        seen.1.duration_since(self.start)
    }

    /// Waits for the workers; those that block on their broker are disconnected.
    fn cut_off(&self) {
        let began = Instant::now();
        while running(&self.shared.producers_running) + running(&self.shared.consumers_running) > 0
        {
            if began.elapsed() > PATIENCE || self.shared.has_failed() {
                self.stoppers.iter().for_each(Stopper::stop);
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

    fn line(&mut self, now: Duration) {
        let totals = self.totals();
        let (latency, confirm_latency) = self.collect();
        let interval = Interval {
            end_s: now.as_secs_f64(),
            length_s: (now - self.last.0).as_secs_f64(),
            totals: totals.since(&self.last.1),
            latency,
            confirm_latency,
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
