//! A run: opens the workers, lets them go at one moment, watches, and stops them.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use leveret_client::{Connection, Error, Stopper};

use crate::args::{ExitWhen, Options};
use crate::consumer::Consumer;
use crate::outcome::{Interval, Outcome};
use crate::plan::Plan;
use crate::producer::Producer;
use crate::stats::{Counter, Tally};
use crate::watch::Watch;
use crate::worker::{NAP, Worker, is_lost};

/// What the watcher and its workers share: who is to stop, who runs, what failed.
#[derive(Debug, Default)]
pub(crate) struct RunControl {
    pub(crate) stop_producers: AtomicBool,
    pub(crate) stop_consumers: AtomicBool,
    pub(crate) producers_running: AtomicUsize,
    pub(crate) consumers_running: AtomicUsize,
    failure: Mutex<Option<anyhow::Error>>,
    /// One for each worker.
    stoppers: Mutex<Vec<Stopper>>,
}

impl RunControl {
    pub(crate) fn has_failed(&self) -> bool {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn take_failure(&self) -> Option<anyhow::Error> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn fail(&self, error: Error, who: String) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert_with(|| anyhow!(error).context(who));
    }

    /// Ends all connections without a word, so that whoever blocks on one goes on.
    pub(crate) fn cut_off(&self) {
        let stoppers = self.stoppers.lock().unwrap_or_else(PoisonError::into_inner);
        stoppers.iter().for_each(Stopper::stop);
    }
}

/// Workers of one kind, while they run.
struct Crew<'a> {
    plan: &'a Plan,
    shared: &'a RunControl,
    stop: &'a AtomicBool,
    running: &'a AtomicUsize,
    /// Number of its first worker among all.
    first: usize,
}

impl<'a> Crew<'a> {
    /// Connects the workers. Their connections can be cut from now on.
    fn open<W: Worker<'a>>(&self, count: usize) -> Result<Vec<W>> {
        let open = |number| -> Result<W> {
            let who = || format!("{} {number}", W::WHO);
            let worker = W::open(self.plan, number).with_context(who)?;
            let stopper = worker.connection().stopper()?;
            let mut stoppers = self.shared.stoppers.lock().unwrap_or_else(PoisonError::into_inner);
            stoppers.push(stopper);
            Ok(worker)
        };
        (0..count).map(open).collect()
    }

    /// Lets a worker work to its end, over as many connections as it takes.
    fn work<W: Worker<'a>>(&self, worker: &mut W, number: usize, tally: &Tally) {
        loop {
            let result = worker.run(tally, self.stop);
            let is_over = self.stop.load(Ordering::Relaxed);
            match (result, &self.plan.recovery) {
                (Err(error), Some(_)) if is_lost(&error) && !is_over => {
                    if self.connect_again(worker, number, tally).is_none() {
                        break;
                    }
                }
                (Err(error), _) if !is_over => {
                    self.shared.fail(error, format!("{} {number}", W::WHO));
                    break;
                }
                _ => break,
            }
        }
        self.running.fetch_sub(1, Ordering::Relaxed);
    }

    /// Tries until there is a connection; `None` when the run is over before.
    fn connect_again<W: Worker<'a>>(
        &self,
        worker: &mut W,
        number: usize,
        tally: &Tally,
    ) -> Option<()> {
        let wait = self.plan.recovery?;
        loop {
            let spread = (wait.max - wait.min).mul_f64(rand::random_range(0.0..=1.0));
            let due = Instant::now() + wait.min + spread;
            while Instant::now() < due {
                if self.stop.load(Ordering::Relaxed) || self.shared.has_failed() {
                    return None;
                }
                std::thread::sleep(NAP.min(due.saturating_duration_since(Instant::now())));
            }
            let Ok(()) = worker.reopen() else { continue };
            let Ok(stopper) = worker.connection().stopper() else { continue };
            let mut stoppers = self.shared.stoppers.lock().unwrap_or_else(PoisonError::into_inner);
            stoppers[self.first + number] = stopper;
            tally.add(Counter::Reconnected, 1);
            return Some(());
        }
    }
}

/// Runs `plan`, made of `options`, to its end. A broker's process is measured beside it.
pub(crate) fn run(
    plan: &Plan,
    options: &Options,
    on_interval: Option<&mut dyn FnMut(&Interval)>,
) -> Result<Outcome> {
    let mut control = control(plan)?;
    plan.topology.declare(&mut control)?;
    let asks_queues = plan.exit_when == Some(ExitWhen::Empty);
    let control = if asks_queues {
        Some(control)
    } else {
        control.close()?;
        None
    };
    let (producers, consumers) = (plan.publishing.producers, plan.consuming.consumers);
    let shared = RunControl {
        producers_running: AtomicUsize::new(producers),
        consumers_running: AtomicUsize::new(consumers),
        ..RunControl::default()
    };
    let shared = &shared;
    let consumer_crew = Crew {
        plan,
        shared,
        stop: &shared.stop_consumers,
        running: &shared.consumers_running,
        first: 0,
    };
    let producer_crew = Crew {
        stop: &shared.stop_producers,
        running: &shared.producers_running,
        first: consumers,
        ..consumer_crew
    };
    // Consumers are there before the first message.
    let mut consumer_workers: Vec<Consumer<'_>> = consumer_crew.open(consumers)?;
    let mut producer_workers: Vec<Producer<'_>> = producer_crew.open(producers)?;
    let tallies: Vec<Tally> = (0..producers + consumers).map(|_| Tally::default()).collect();
    let (producer_tallies, consumer_tallies) = tallies.split_at(producers);
    let mut watch = Watch::new(
        plan,
        options,
        shared,
        (producer_tallies, consumer_tallies),
        control,
        on_interval,
    )?;
    let outcome = std::thread::scope(|scope| {
        let workers = consumer_workers.iter_mut().zip(consumer_tallies);
        for (number, (worker, tally)) in workers.enumerate() {
            let crew = &consumer_crew;
            scope.spawn(move || crew.work(worker, number, tally));
        }
        let workers = producer_workers.iter_mut().zip(producer_tallies);
        for (number, (worker, tally)) in workers.enumerate() {
            let crew = &producer_crew;
            scope.spawn(move || crew.work(worker, number, tally));
        }
        watch.watch()
    });
    if let Some(error) = shared.take_failure() {
        return Err(error);
    }
    // A goodbye makes sure that the broker has taken all that was written. The measurement is over,
    // so whether it answers matters no more.
    for producer in producer_workers {
        let _ = producer.close();
    }
    for consumer in consumer_workers {
        let _ = consumer.close();
    }
    if plan.topology.needs_clean_up(consumers, plan.consuming.polling.is_some())
        && let Ok(mut connection) = self::control(plan)
    {
        let _ = plan.topology.clean_up(&mut connection).and_then(|()| connection.close());
    }
    Ok(outcome)
}

/// A connection that is looked after by nobody: without heartbeats. Waits for brokers that are not there
/// yet, if asked to.
fn control(plan: &Plan) -> Result<Connection> {
    let client = leveret_client::Options { heartbeat_s: Some(0), ..plan.client.clone() };
    let open = |uri| Connection::open(uri, &client).with_context(|| format!("connecting as {uri}"));
    let Some(timeout) = plan.startup.timeout else { return open(plan.uri(0)) };
    let deadline = Instant::now() + timeout;
    loop {
        let mut opened: Vec<Connection> =
            plan.uris.iter().filter_map(|uri| open(uri).ok()).collect();
        if opened.len() >= plan.startup.needed
            && let Some(connection) = opened.pop()
        {
            for other in opened {
                let _ = other.close();
            }
            return Ok(connection);
        }
        if Instant::now() >= deadline {
            bail!(
                "{} of {} brokers were there within {} seconds, {} are needed",
                opened.len(),
                plan.uris.len(),
                timeout.as_secs(),
                plan.startup.needed
            );
        }
        std::thread::sleep(
            Duration::from_secs(1).min(deadline.saturating_duration_since(Instant::now())),
        );
    }
}
