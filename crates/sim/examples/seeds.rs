//! Runs the simulator over seeds, on all cores, and tells what led to a failure.
//!
//! `cargo xtask sim [--seed N] [--count N] [--seconds N] [--steps N] [--lines N] [--jobs N] [--night FILE]`
//!
//! With `--seed` alone it runs that one seed and prints its outcome, the last `--lines` lines of what
//! happened with it. Otherwise seeds follow each other from a first one, on `--jobs` threads, until one fails
//! or the time is over.
//!
//! `--night FILE` is for runs at large: it goes on after a failure, writes down how far it is, and a next run
//! goes on from there.

#![allow(clippy::print_stdout, reason = "the result of the program")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use leveret_sim::{Failure, Options, Outcome, Report, Seed, run_seed};

/// Steps of one seed unless told otherwise.
const STEPS: u64 = 3000;

/// Seeds of one night unless told otherwise.
const NIGHT: u64 = 1_000_000;

/// How often a night tells how far it is.
const NEWS: Duration = Duration::from_secs(30);

/// What was asked for.
struct Plan {
    first: u64,
    end: u64,
    steps: u32,
    lines: usize,
    jobs: u64,
    deadline: Option<Instant>,
    night: Option<Night>,
}

/// A run at large.
struct Night {
    /// How far it is.
    file: PathBuf,
    /// Seeds that failed in nights before.
    failed: Vec<u64>,
}

/// How far all threads are together.
struct Progress {
    next: u64,
    /// Seeds that are being run.
    running: BTreeSet<u64>,
    failed: Vec<u64>,
    report: Report,
    started: Instant,
    told: Instant,
}

fn main() -> ExitCode {
    let plan = match plan() {
        Ok(plan) => plan,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    if plan.end - plan.first == 1 {
        return one(&plan);
    }
    let now = Instant::now();
    let progress = Mutex::new(Progress {
        next: plan.first,
        running: BTreeSet::new(),
        failed: Vec::new(),
        report: Report::default(),
        started: now,
        told: now,
    });
    std::thread::scope(|scope| {
        for _ in 0..plan.jobs {
            scope.spawn(|| work(&plan, &progress));
        }
    });
    let mut progress = progress.into_inner().unwrap_or_else(PoisonError::into_inner);
    progress.tell(&plan);
    println!("{} passed, {} failed", progress.report.seeds, progress.failed.len());
    if progress.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn plan() -> Result<Plan, String> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let word = |name: &str| -> Option<&String> {
        let at = words.iter().position(|word| word == name)?;
        words.get(at + 1)
    };
    let number = |name: &str| -> Result<Option<u64>, String> {
        let parsed = word(name).map(|word| word.parse());
        parsed.transpose().map_err(|_| format!("a number follows {name}"))
    };
    let (seed, seconds) = (number("--seed")?, number("--seconds")?);
    let (mut first, mut night) = (seed.unwrap_or(0), None);
    if let Some(file) = word("--night").map(PathBuf::from) {
        let (next, failed) = resumed(&file)?;
        first = seed.unwrap_or(next);
        night = Some(Night { file, failed });
    }
    let count = match number("--count")? {
        Some(count) => count,
        None if night.is_some() => NIGHT,
        None if seconds.is_some() => u64::MAX,
        None if seed.is_some() => 1,
        None => 100,
    };
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    Ok(Plan {
        first,
        end: first.saturating_add(count),
        steps: number("--steps")?.unwrap_or(STEPS) as u32,
        lines: number("--lines")?.unwrap_or(0) as usize,
        jobs: number("--jobs")?.unwrap_or(cores).max(1),
        deadline: seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds)),
        night,
    })
}

/// Where the night before came to, and what failed until then.
fn resumed(file: &Path) -> Result<(u64, Vec<u64>), String> {
    let Ok(text) = std::fs::read_to_string(file) else { return Ok((0, Vec::new())) };
    let numbers = |key: &str| -> Vec<u64> {
        let lines = text.lines().filter_map(|line| line.strip_prefix(key));
        lines.filter_map(|number| number.trim().parse().ok()).collect()
    };
    let next = numbers("next ").first().copied();
    let next = next.ok_or_else(|| format!("{} has no line 'next N'", file.display()))?;
    Ok((next, numbers("failed ")))
}

fn run(plan: &Plan, seed: u64) -> Result<Outcome, Failure> {
    let seed = Seed(seed);
    run_seed(seed, Options { lines: plan.lines, ..Options::of(seed) }, plan.steps)
}

fn one(plan: &Plan) -> ExitCode {
    match run(plan, plan.first) {
        Ok(outcome) => {
            println!("{:?}: {outcome:?}\n1 passed, 0 failed", Seed(plan.first));
            ExitCode::SUCCESS
        }
        Err(failure) => {
            println!("{failure}\n0 passed, 1 failed");
            ExitCode::FAILURE
        }
    }
}

/// Takes seed after seed.
fn work(plan: &Plan, progress: &Mutex<Progress>) {
    let lock =
        || -> MutexGuard<'_, Progress> { progress.lock().unwrap_or_else(PoisonError::into_inner) };
    loop {
        let Some(seed) = lock().take(plan) else { return };
        let result = run(plan, seed);
        let mut progress = lock();
        progress.running.remove(&seed);
        match result {
            Ok(outcome) => progress.report.add(&outcome),
            Err(failure) => {
                progress.failed.push(seed);
                let text = failure.to_string();
                let shown = match plan.night {
                    Some(_) => text.lines().next().unwrap_or_default(),
                    None => &text,
                };
                println!("{shown}");
            }
        }
        if plan.night.is_some() && progress.told.elapsed() >= NEWS {
            progress.tell(plan);
        }
    }
}

impl Progress {
    /// The next seed, unless it is time to end.
    fn take(&mut self, plan: &Plan) -> Option<u64> {
        let is_late = plan.deadline.is_some_and(|end| Instant::now() >= end);
        let has_failed = plan.night.is_none() && !self.failed.is_empty();
        if is_late || has_failed || self.next >= plan.end {
            return None;
        }
        let seed = self.next;
        self.next += 1;
        self.running.insert(seed);
        Some(seed)
    }

    /// Says how far it is, and writes it down.
    fn tell(&mut self, plan: &Plan) {
        self.told = Instant::now();
        let Some(Night { file, failed }) = &plan.night else { return };
        let next = self.running.first().copied().unwrap_or(self.next);
        let Report { seeds, steps, totals, .. } = self.report;
        let speed = seeds as f64 / self.started.elapsed().as_secs_f64();
        println!(
            "seeds {}..{next}: {seeds} held, {} failed; {steps} steps, {} power cuts, {} ends in all; \
             {speed:.1} seeds/s",
            plan.first,
            self.failed.len(),
            totals.power_cuts,
            totals.crashes + totals.stops,
        );
        let failed = failed.iter().chain(&self.failed);
        let failed: String = failed.map(|seed| format!("failed {seed}\n")).collect();
        let from = plan.first;
        let text = format!("from {from}\nnext {next}\nheld {seeds}\nsteps {steps}\n{failed}");
        let new = file.with_extension("new");
        let written = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, file));
        if let Err(error) = written {
            eprintln!("{}: {error}", file.display());
        }
    }
}
