//! What is done, by whom, for how long and with what result: so that the worst round of the probe can be explained.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use leveret_load::probe::Round;
use serde_json::Value;

/// What is kept of the past, to be looked at when a round of the probe was slow.
const KEPT: usize = 20_000;
/// Lines that are told of the worst round.
const AROUND: usize = 40;
/// What the broker tells at a time of what took long, and more.
const KEPT_LONG: usize = 2000;
/// Findings of a kind that are kept with their words; all are counted.
const FINDINGS: usize = 200;
/// A round below that needs no explanation.
const FAST: Duration = Duration::from_millis(20);

/// How something ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// As it should.
    Done,
    /// With an error that what others do explains, such as a name that is gone.
    Explained(String),
    /// With one that nothing explains: a finding.
    Unexplained(String),
}

/// Everything that was done, in a file; the last of it, in memory.
#[derive(Debug)]
pub(crate) struct Journal {
    began: Instant,
    /// The same moment by the system's clock, in ms since the epoch.
    began_ms: f64,
    /// What took long in the broker.
    long: Mutex<Vec<Long>>,
    file: Mutex<BufWriter<File>>,
    next: AtomicU64,
    /// What is under way, by number.
    now: Mutex<HashMap<u64, (Instant, String)>>,
    past: Mutex<VecDeque<Past>>,
    counts: Mutex<BTreeMap<&'static str, Counts>>,
    findings: Mutex<Findings>,
    worst: Mutex<Worst>,
}

#[derive(Clone, Debug)]
struct Past {
    from: Instant,
    to: Instant,
    line: String,
}

/// How often somebody did something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Counts {
    pub(crate) done: u64,
    pub(crate) explained: u64,
    pub(crate) unexplained: u64,
}

#[derive(Debug, Default)]
struct Findings {
    count: u64,
    lines: Vec<String>,
}

/// Something that took long in the broker, as it says.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Long {
    /// By the system's clock, in ms since the epoch.
    began_ms: f64,
    ms: f64,
    line: String,
}

impl Long {
    /// Those of an answer of `/api/leveret/waits`.
    pub(crate) fn all(waits: &Value) -> impl Iterator<Item = Self> {
        waits["long"].as_array().into_iter().flatten().map(|it| {
            let ms = |key: &str| it[key].as_f64().unwrap_or(0.0);
            let line = format!(
                "{:8.1} ms  {} on {}; it ran {:.1} ms, waited {:.1} ms for a processor, {:.1} ms for the names",
                ms("ms"),
                it["what"].as_str().unwrap_or_default(),
                it["thread"].as_str().unwrap_or_default(),
                ms("ran_ms"),
                ms("waited_for_processor_ms"),
                ms("waited_for_names_ms"),
            );
            Self { began_ms: ms("began"), ms: ms("ms"), line }
        })
    }
}

/// The worst round, and what went on around it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Worst {
    /// When it began.
    pub(crate) from: Option<Instant>,
    pub(crate) took: Duration,
    pub(crate) lines: Vec<String>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Journal {
    /// One that writes to this file.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).with_context(|| format!("writing {}", path.display()))?;
        Ok(Self {
            began: Instant::now(),
            began_ms: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0.0, |it| it.as_secs_f64() * 1e3),
            long: Mutex::default(),
            file: Mutex::new(BufWriter::new(file)),
            next: AtomicU64::new(0),
            now: Mutex::default(),
            past: Mutex::default(),
            counts: Mutex::default(),
            findings: Mutex::default(),
            worst: Mutex::default(),
        })
    }

    /// Does something under the eyes of this journal.
    pub(crate) fn act<T>(
        &self,
        who: &'static str,
        what: impl Into<String>,
        deed: impl FnOnce() -> (Outcome, T),
    ) -> T {
        let (what, from) = (what.into(), Instant::now());
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.now).insert(number, (from, format!("{who} {what}")));
        let (outcome, value) = deed();
        let to = Instant::now();
        lock(&self.now).remove(&number);
        let mut counts = lock(&self.counts);
        let count = counts.entry(who).or_default();
        let said = match &outcome {
            Outcome::Done => {
                count.done += 1;
                "done".to_owned()
            }
            Outcome::Explained(text) => {
                count.explained += 1;
                format!("refused: {text}")
            }
            Outcome::Unexplained(text) => {
                count.unexplained += 1;
                format!("UNEXPLAINED: {text}")
            }
        };
        drop(counts);
        let at_s = (from - self.began).as_secs_f64();
        let took_ms = (to - from).as_secs_f64() * 1e3;
        let line = format!("{at_s:10.3} s {took_ms:8.1} ms  {who} {what}: {said}");
        if matches!(outcome, Outcome::Unexplained(_)) {
            self.find(&line);
        }
        self.write(&line);
        let mut past = lock(&self.past);
        past.push_back(Past { from, to, line });
        if past.len() > KEPT {
            past.pop_front();
        }
        value
    }

    /// Something that must not be.
    pub(crate) fn find(&self, line: &str) {
        let mut findings = lock(&self.findings);
        findings.count += 1;
        if findings.lines.len() < FINDINGS {
            findings.lines.push(line.to_owned());
        }
    }

    /// A line in the file, with the time.
    pub(crate) fn note(&self, line: &str) {
        self.write(&format!("{:10.3} s  {line}", self.began.elapsed().as_secs_f64()));
    }

    fn write(&self, line: &str) {
        // A disk that is full is no reason to stop: what is in memory is told at the end.
        let _ = writeln!(lock(&self.file), "{line}");
    }

    /// A round of the probe ended: if none was slower, what went on meanwhile is kept.
    pub(crate) fn round(&self, round: &Round) {
        let (from, took) = (round.began, round.took());
        let steps: Vec<_> =
            round.steps.iter().map(|it| format!("{:.1}", it.as_secs_f64() * 1e3)).collect();
        if took > FAST {
            let step = round.slowest_step().name();
            self.note(&format!(
                "a round of the probe took {:.1} ms ({step})",
                took.as_secs_f64() * 1e3
            ));
        }
        let mut worst = lock(&self.worst);
        if took <= worst.took.max(FAST) {
            return;
        }
        let to = from + took;
        let at_s = (from - self.began.min(from)).as_secs_f64();
        let mut lines = vec![format!(
            "the round began at {at_s:.3} s; login, declare, publish, get, close took {} ms",
            steps.join(", ")
        )];
        let overlaps =
            |start: Instant, end: Instant| end.min(to).saturating_duration_since(start.max(from));
        let mut around: Vec<(Duration, String)> = Vec::new();
        for past in lock(&self.past).iter() {
            around.push((overlaps(past.from, past.to), past.line.clone()));
        }
        for (start, what) in lock(&self.now).values() {
            let at_s = (*start - self.began.min(*start)).as_secs_f64();
            around.push((overlaps(*start, to), format!("{at_s:10.3} s  under way  {what}")));
        }
        around.retain(|(overlap, _)| !overlap.is_zero());
        around.sort_by_key(|(overlap, _)| Reverse(*overlap));
        lines.extend(around.into_iter().take(AROUND).map(|(_, line)| line));
        *worst = Worst { from: Some(from), took, lines };
    }

    /// The worst round.
    pub(crate) fn worst(&self) -> Worst {
        lock(&self.worst).clone()
    }

    /// What the broker says took long lately: it is noted once, however often it is said.
    pub(crate) fn took_long(&self, waits: &Value) {
        let mut known = lock(&self.long);
        for long in Long::all(waits) {
            // The last of them only: the broker tells the oldest first, and keeps no more.
            if !known.iter().rev().take(KEPT_LONG).any(|it| *it == long) {
                let at_s = (long.began_ms - self.began_ms) / 1e3;
                self.write(&format!("{at_s:10.3} s {}", long.line));
                known.push(long);
            }
        }
    }

    /// What took long in the broker in this time, and how much did at all.
    pub(crate) fn long_between(&self, from: Instant, to: Instant) -> (usize, Vec<String>) {
        let at_ms = |it: Instant| {
            self.began_ms + it.saturating_duration_since(self.began).as_secs_f64() * 1e3
        };
        let (from_ms, to_ms) = (at_ms(from), at_ms(to));
        let known = lock(&self.long);
        let meanwhile =
            known.iter().filter(|it| it.began_ms < to_ms && it.began_ms + it.ms > from_ms);
        let line =
            |it: &Long| format!("{:10.3} s {}", (it.began_ms - self.began_ms) / 1e3, it.line);
        (known.len(), meanwhile.map(line).collect())
    }

    /// How often each did something.
    pub(crate) fn counts(&self) -> BTreeMap<&'static str, Counts> {
        lock(&self.counts).clone()
    }

    /// What must not be: how often, and the first of them.
    pub(crate) fn findings(&self) -> (u64, Vec<String>) {
        let findings = lock(&self.findings);
        (findings.count, findings.lines.clone())
    }

    /// What was noted is in the file.
    pub(crate) fn flush(&self) {
        let _ = lock(&self.file).flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_went_on_around_the_worst_round() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let journal = Journal::create(&path).unwrap();
        let began = Instant::now();
        let takes_a_moment = || {
            let start = Instant::now();
            while start.elapsed().is_zero() {}
            (Outcome::Done, ())
        };
        journal.act("api", "GET /x", takes_a_moment);
        journal.act("ctl", "fly", || (Outcome::Unexplained("70".to_owned()), ()));
        let took = [
            Duration::from_millis(50),
            Duration::ZERO,
            Duration::ZERO,
            Duration::ZERO,
            Duration::ZERO,
        ];
        journal.round(&Round { began, steps: took, failure: None });
        let worst = journal.worst();
        assert!(worst.lines.iter().any(|line| line.ends_with("api GET /x: done")), "{worst:?}");
        let (count, lines) = journal.findings();
        assert!(count == 1 && lines[0].ends_with("ctl fly: UNEXPLAINED: 70"), "{lines:?}");
        assert_eq!(journal.counts()["api"], Counts { done: 1, ..Counts::default() });
        journal.flush();
        assert!(
            std::fs::read_to_string(path)
                .unwrap()
                .contains("a round of the probe took 50.0 ms (login)")
        );
    }

    /// The broker tells the same again and again: it is one, and belongs to those rounds that it overlaps.
    #[test]
    fn what_took_long_in_the_broker() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::create(&dir.path().join("log")).unwrap();
        let long = |at_ms: f64| {
            serde_json::json!({
                "began": journal.began_ms + at_ms, "ms": 20.0, "what": "a turn of shard 0", "thread": "leveret-0",
                "ran_ms": 4.0, "waited_for_processor_ms": 15.5, "waited_for_names_ms": 0.0,
            })
        };
        journal.took_long(&serde_json::json!({"long": [long(1000.0)]}));
        journal.took_long(&serde_json::json!({"long": [long(1000.0), long(3000.0)]}));
        let at = |ms: u64| journal.began + Duration::from_millis(ms);
        let (count, lines) = journal.long_between(at(1010), at(1500));
        assert_eq!(
            (count, &lines[..]),
            (
                2,
                &["     1.000 s     20.0 ms  a turn of shard 0 on leveret-0; it ran 4.0 ms, waited 15.5 ms for a processor, 0.0 ms for the names".to_owned()][..]
            )
        );
        assert!(journal.long_between(at(1030), at(2990)).1.is_empty());
    }
}
