//! Runs experiments: every case, as often as wanted, on each broker in turn.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use leveret_load::{Counter, Outcome, process};

use crate::broker::{Broker, BrokerChoice, Made};
use crate::case::{Case, Length, split};
use crate::catalogue::Experiment;
use crate::interrupt::Interrupt;
use crate::outcome::{Facts, Measured, Results, Run};
use crate::progress::Progress;
use crate::text;

/// How often a run is looked at, and whether somebody wants it to end.
const LOOK: Duration = Duration::from_millis(50);
/// Seconds of a run besides its load: connections, queues, the end.
const AROUND_S: f64 = 0.5;

/// Runs experiments one after the other.
#[derive(Debug)]
pub(crate) struct Runner<'a> {
    /// The brokers, in the order of columns.
    pub(crate) sources: &'a [BrokerChoice],
    /// How long runs are.
    pub(crate) length: Length,
    /// Each message and each ack is a write of its own.
    pub(crate) flush_each: bool,
    /// How often each case runs, if not as often as its document says.
    pub(crate) repeats: Option<usize>,
    /// Whether somebody wants it to end.
    pub(crate) interrupt: &'a Interrupt,
    /// How far it is.
    pub(crate) progress: &'a mut Progress,
}

/// A broker, and what it says of itself.
struct Target {
    broker: Broker,
    facts: Facts,
}

impl Runner<'_> {
    /// Runs all cases, and says who the brokers were. Ends early when interrupted.
    pub(crate) fn run(&mut self, experiment: &'static Experiment) -> Result<(Results, Vec<Facts>)> {
        let (mut targets, mut names) = (Vec::new(), Vec::new());
        for source in self.sources {
            let broker = Broker::open(source, experiment.settings)?;
            let mut facts = broker.facts()?;
            let number = 1 + names.iter().filter(|it| **it == facts.name).count();
            names.push(facts.name.clone());
            if number > 1 {
                facts.name.push_str(&format!(" ({number})"));
            }
            targets.push(Target { broker, facts });
        }
        let repeats = self.repeats.unwrap_or_else(|| experiment.repeats(self.length));
        let mut results = Results { experiment, repeats, measured: Vec::new() };
        // What 100 percent are, for each broker.
        let mut first = vec![None; targets.len()];
        for case in (experiment.cases)(self.length) {
            let case = Case { flush_each: self.flush_each, ..case };
            let mut measured = begin(&case, &targets, &first);
            for _ in 0..repeats {
                for it in &mut measured {
                    if self.interrupt.is_set() {
                        break;
                    }
                    self.once(experiment, &targets[it.broker], it);
                }
            }
            for it in &measured {
                let rate = it.spread(|run| Some(run.published_per_s)).map(|it| it.median);
                first[it.broker] = first[it.broker].or(rate);
            }
            results.measured.extend(
                measured.into_iter().filter(|it| !it.runs.is_empty() || it.failure.is_some()),
            );
            if self.interrupt.is_set() {
                break;
            }
        }
        Ok((results, targets.into_iter().map(|it| it.facts).collect()))
    }

    /// One more run of a case; a failure is kept with it, and ends only this case.
    fn once(&mut self, experiment: &Experiment, target: &Target, it: &mut Measured) {
        let name = &target.facts.name;
        let what = [experiment.name, &it.case.row, it.case.column, name].map(str::to_owned);
        let what = what.into_iter().filter(|it| !it.is_empty()).collect::<Vec<_>>().join(", ");
        if it.failure.is_some() {
            return self.progress.done(it.case.takes_s + AROUND_S, &format!("{what}: left out"));
        }
        let line = match self.measure(&target.broker, it, &what) {
            Ok(run) => {
                let figure = it.case.shows.of(&run).unwrap_or(f64::NAN);
                it.runs.push(run);
                format!("{what}: {} {}", text::number(figure), it.case.shows.title())
            }
            Err(_) if self.interrupt.is_set() => return,
            Err(error) => {
                it.failure = Some(format!("{error:#}"));
                format!("{what}: failed: {error:#}")
            }
        };
        self.progress.done(it.case.takes_s + AROUND_S, &line);
    }

    /// Runs a case once. Nothing of it stays on the broker, however it ends.
    fn measure(&self, broker: &Broker, it: &Measured, what: &str) -> Result<Run> {
        let made = made(&it.commands)?;
        broker.delete(&made)?;
        let run = self.prepared(broker, it, what);
        let cleaned = broker.delete(&made);
        // Why a run failed says more than why nothing could be deleted then.
        run.and_then(|run| cleaned.map(|()| run))
    }

    fn prepared(&self, broker: &Broker, it: &Measured, what: &str) -> Result<Run> {
        if let Some(prepare) = &it.prepare {
            let what = format!("{what}: preparing");
            self.load(broker, std::slice::from_ref(prepare), &it.case, &what)?;
        }
        let busy_before = process::machine_busy_s();
        let broker_before = broker.pid.and_then(process::tree);
        let own_before = process::own().cpu_s;
        let began = Instant::now();
        let outcomes = self.load(broker, &it.commands, &it.case, what)?;
        let mut run = Run::of(&outcomes);
        if let (Some(before), Some(after)) = (broker_before, broker.pid.and_then(process::tree)) {
            let ours = after.cpu_s - before.cpu_s + process::own().cpu_s - own_before;
            let others = process::machine_busy_s() - busy_before - ours;
            let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
            let all = began.elapsed().as_secs_f64() * cores;
            run.others_cpu_percent = Some((others / all * 100.0).clamp(0.0, 100.0));
        }
        Ok(run)
    }

    /// Runs loads at the same time, each on a thread of its own.
    ///
    /// When somebody wants it to end, nobody waits for them: the program ends, and their connections with it.
    fn load(
        &self,
        broker: &Broker,
        commands: &[String],
        case: &Case,
        what: &str,
    ) -> Result<Vec<Outcome>> {
        let (tell, told) = mpsc::channel();
        for command in commands {
            let options = options(command, broker)?;
            let tell = tell.clone();
            std::thread::spawn(move || {
                let rates = tell.clone();
                let mut on_interval = |interval: &leveret_load::Interval| {
                    let rate =
                        interval.rate(Counter::Published).max(interval.rate(Counter::Consumed));
                    let _ = rates.send(LoadEvent::Rate(rate));
                };
                let outcome = leveret_load::measure(&options, Some(&mut on_interval));
                let _ = tell.send(LoadEvent::Done(Box::new(outcome)));
            });
        }
        drop(tell);
        let (began, mut outcomes, mut now) = (Instant::now(), Vec::new(), String::new());
        while outcomes.len() < commands.len() {
            match told.recv_timeout(LOOK) {
                Ok(LoadEvent::Done(outcome)) => outcomes.push((*outcome)?),
                Ok(LoadEvent::Rate(rate)) => now = format!(": {}/s", text::number(rate)),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => bail!("the load died"),
            }
            if self.interrupt.is_set() {
                bail!("interrupted");
            }
            self.progress.at(&format!("{what}{now}"), began.elapsed(), case.takes_s);
        }
        Ok(outcomes)
    }
}

/// What a load under way says.
enum LoadEvent {
    Rate(f64),
    Done(Box<Result<Outcome>>),
}

/// A case on each broker that can run it.
fn begin(case: &Case, targets: &[Target], first: &[Option<f64>]) -> Vec<Measured> {
    let mut all = Vec::new();
    for (broker, target) in targets.iter().enumerate() {
        let is_leveret = target.facts.is_leveret;
        if !case.runs_on(is_leveret) {
            continue;
        }
        let rate = case
            .share_of_first
            .zip(first[broker])
            .map(|(share, all)| (all * share / 100.0).max(1.0));
        let failure = (case.share_of_first.is_some() && rate.is_none())
            .then(|| "the highest rate is not known".to_owned());
        all.push(Measured {
            broker,
            commands: case.commands(is_leveret, rate),
            prepare: case.prepare_command(is_leveret),
            case: case.clone(),
            runs: Vec::new(),
            failure,
        });
    }
    all
}

/// The options of a load on this broker.
fn options(command: &str, broker: &Broker) -> Result<leveret_load::Options> {
    let mut words = split(command);
    words.extend(["-h".to_owned(), broker.uri.clone()]);
    if let Some(pid) = broker.pid {
        words.extend(["--broker-pid".to_owned(), pid.to_string()]);
    }
    read(words).with_context(|| format!("leveret perf {command}"))
}

fn read(words: Vec<String>) -> Result<leveret_load::Options> {
    let words = words.into_iter().map(Into::into);
    leveret_load::Options::read(words).map_err(|error| anyhow!("{error}"))
}

/// The queues and exchanges that loads name.
fn made(commands: &[String]) -> Result<Made> {
    let mut made = Made::default();
    for command in commands {
        let topology = read(split(command))?.topology;
        match (topology.queue_pattern, topology.queue_pattern_to) {
            (Some(pattern), Some(last)) => {
                let name = |number: u32| pattern.replace("%d", &number.to_string());
                made.queues.extend((topology.queue_pattern_from..=last).map(name));
            }
            _ => made.queues.extend(topology.queue),
        }
        let is_ours = |name: &String| !name.is_empty() && !name.starts_with("amq.");
        made.exchanges.extend(topology.exchange.filter(is_ours));
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::ALL;

    /// Every load of every experiment is one that the load tool takes, in both lengths, for both kinds of brokers.
    #[test]
    fn every_command_is_read() {
        for experiment in ALL {
            for quick in [false, true] {
                for case in (experiment.cases)(Length { quick, seconds: None }) {
                    for is_leveret in [false, true] {
                        let mut commands = case.commands(is_leveret, Some(10.0));
                        commands.extend(case.prepare_command(is_leveret));
                        for command in commands {
                            let read = read(split(&command));
                            // An exchange without a name of ours might be somebody else's.
                            let exchange =
                                read.as_ref().ok().and_then(|it| it.topology.exchange.as_deref());
                            let is_known = |it: &str| {
                                it.is_empty()
                                    || it.starts_with("amq.")
                                    || it.starts_with("article-")
                            };
                            assert!(
                                exchange.is_some_and(is_known),
                                "{}: {command}: {read:?}",
                                experiment.name
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn what_loads_make() {
        let words = ["-u a -e x", "-qp b%d -qpf 2 -qpt 3 -e amq.direct", "-y 1 -e ''"];
        let all = made(&words.map(str::to_owned)).unwrap();
        assert_eq!(all.queues, ["a", "b2", "b3"]);
        assert_eq!(all.exchanges, ["x"]);
    }
}
