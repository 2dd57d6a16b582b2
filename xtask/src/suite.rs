//! The steps of `check` and `test`: what is run, in which order, under which names.
//!
//! A new kind of test is one more line in [`check()`] (a minute, no network, no other program) or in
//! [`test()`].

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, channel};
use std::thread::{Scope, available_parallelism};
use std::time::Instant;

use anyhow::{Context as _, ensure};

use crate::steps::{Count, cargo, counted, counted_to, idle, succeed};
use crate::{clients, cluster, deny, generate, install, package, page, programs, root, tidy};

/// One step: its name and what it does.
pub(crate) struct Step {
    name: &'static str,
    run: Run,
}

/// When a step runs.
enum Run {
    /// In its place.
    InTurn(fn() -> anyhow::Result<Count>),
    /// On what other steps leave of the processors, from the beginning of the step `with` on; it is waited for in its place,
    /// and what it writes to its buffer is shown there. For what needs much of the processors, and is the same however long it takes.
    Beside { with: &'static str, run: fn(&mut Vec<u8>) -> anyhow::Result<Count> },
}

/// What came of a step, and how many seconds it took.
type Outcome = (anyhow::Result<Count>, f64);

/// A step that runs beside others: what came of it, and its output.
type BegunStep = (&'static str, Receiver<(Outcome, Vec<u8>)>);

impl Step {
    fn in_turn(name: &'static str, run: fn() -> anyhow::Result<Count>) -> Self {
        Self { name, run: Run::InTurn(run) }
    }
}

/// The steps before a commit.
pub(crate) fn check() -> Vec<Step> {
    vec![
        Step::in_turn("format", || whole(cargo(&["fmt", "--all", "--check"]))),
        Step::in_turn("tidy", || tidy::run().map(|()| Count::of(true))),
        Step::in_turn("generated", || generate::run(true).map(|()| Count::of(true))),
        Step::in_turn("lints", lints),
        Step::in_turn("documents", documents),
        Step::in_turn(TESTS, tests),
    ]
}

/// Tests of processes wait for each other often: there is room beside them for a build.
const TESTS: &str = "tests";

/// Clients, browsers and nodes that fail wait for each other most of the time: the simulator has room beside them.
const CLIENTS: &str = "clients";

/// Everything: the steps before a commit, then what takes longer.
pub(crate) fn test() -> Vec<Step> {
    let mut steps = vec![Step::in_turn("tools", tools)];
    steps.extend(check());
    steps.extend([
        Step { name: "dependencies", run: Run::Beside { with: TESTS, run: deny::counted } },
        Step::in_turn("release build", || release_build().map(|()| Count::of(true))),
        Step::in_turn("packages", package::check),
        Step::in_turn("conversations", programs::conform_counted),
        Step::in_turn(CLIENTS, clients::counted),
        Step::in_turn("page build", || page::build(false)),
        Step::in_turn("page", || page::browse(&[])),
        Step::in_turn("cluster", cluster::counted),
        Step {
            name: "simulation",
            run: Run::Beside { with: CLIENTS, run: |out| programs::sim_counted(out) },
        },
        Step {
            name: "container build",
            run: Run::Beside { with: CLIENTS, run: |_| package::container_build() },
        },
        Step::in_turn("container", package::container),
        // Last: what it finds is to be read, and a long log is often shown from its end.
        Step::in_turn("everything", programs::everything),
    ]);
    steps
}

/// Runs the steps whose names are in `only`, or all; ends with the line `N passed, N failed`.
pub(crate) fn run(steps: &[Step], only: &[String]) -> anyhow::Result<ExitCode> {
    for name in only {
        let names: Vec<_> = steps.iter().map(|step| step.name).collect();
        ensure!(names.contains(&name.as_str()), "no step '{name}'; there are {}", names.join(", "));
    }
    let wanted = |step: &&Step| only.is_empty() || only.iter().any(|it| it == step.name);
    let steps: Vec<&Step> = steps.iter().filter(wanted).collect();
    let mut total = Count::default();
    let mut lines = String::new();
    std::thread::scope(|scope| {
        let mut waiting = Vec::new();
        for step in &steps {
            waiting.extend(begin_beside(scope, &steps, step.name));
            println!("\n== {}", step.name);
            let (started, idle) = (Instant::now(), idle_seconds());
            let (count, took) = match step.run {
                Run::InTurn(run) => timed(run),
                Run::Beside { run, .. } => beside(step.name, &waiting, run)?,
            };
            let count = count.unwrap_or_else(|error| {
                println!("{error:#}");
                Count::of(false)
            });
            let seconds = started.elapsed().as_secs_f64();
            let Count { passed, failed, left_out } = count;
            write!(lines, "{:<16} {passed:>6} {failed:>6} {seconds:>8.1} s", step.name)?;
            if let (Some(before), Some(now)) = (idle, idle_seconds()) {
                write!(lines, " {:>7.1} s", now - before)?;
            }
            if let Run::Beside { with, .. } = step.run {
                write!(lines, ", of {took:.1} s that began with {with}")?;
            }
            if left_out > 0 {
                write!(lines, "; {left_out} LEFT OUT, which need root")?;
            }
            writeln!(lines)?;
            total += count;
        }
        anyhow::Ok(())
    })?;
    println!("\n{:<16} {:>6} {:>6} {:>10} {:>9}", "step", "passed", "failed", "took", "idle");
    print!("{lines}");
    println!("\n{total}");
    Ok(if total.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// How long all processors together have had nothing to do since the machine began: what could run beside a step.
fn idle_seconds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/uptime").ok()?;
    text.split_whitespace().nth(1)?.parse().ok()
}

/// Begins what runs beside the step `name`: on one thread, one after the other.
fn begin_beside<'s>(scope: &'s Scope<'s, '_>, steps: &[&Step], name: &str) -> Vec<BegunStep> {
    let (mut runs, mut waiting) = (Vec::new(), Vec::new());
    for step in steps {
        if let Run::Beside { with, run } = step.run
            && with == name
        {
            let (outcome, at_its_place) = channel();
            runs.push((run, outcome));
            waiting.push((step.name, at_its_place));
        }
    }
    if !runs.is_empty() {
        scope.spawn(move || {
            idle();
            for (run, outcome) in runs {
                let mut out = Vec::new();
                let came = timed(|| run(&mut out));
                // Nobody waits for it if a step before its place could not be run at all.
                drop(outcome.send((came, out)));
            }
        });
    }
    waiting
}

/// What came of a step that runs beside others; it is run now if that with which it begins is not.
fn beside(
    name: &str,
    waiting: &[BegunStep],
    run: fn(&mut Vec<u8>) -> anyhow::Result<Count>,
) -> anyhow::Result<Outcome> {
    let begun = waiting.iter().find(|(it, _)| *it == name);
    let (outcome, out) = if let Some((_, at_its_place)) = begun {
        at_its_place.recv().with_context(|| format!("the thread that runs {name} ended"))?
    } else {
        let mut out = Vec::new();
        (timed(|| run(&mut out)), out)
    };
    std::io::stdout().write_all(&out)?;
    Ok(outcome)
}

fn timed(run: impl FnOnce() -> anyhow::Result<Count>) -> Outcome {
    let started = Instant::now();
    (run(), started.elapsed().as_secs_f64())
}

fn whole(mut command: std::process::Command) -> anyhow::Result<Count> {
    succeed(&mut command).map(|()| Count::of(true))
}

/// Programs that the steps need and that a fresh machine may lack.
fn tools() -> anyhow::Result<Count> {
    for (name, packages) in [
        ("cc", "gcc libc6-dev"),
        // For the suites of real clients.
        ("python3", "python3 python3-venv"),
        ("go", "golang-go"),
        ("node", "nodejs"),
        ("npm", "npm"),
        ("javac", "default-jdk-headless"),
        ("mvn", "maven"),
        ("dpkg-deb", "dpkg"),
        // For nodes in networks of their own.
        ("ip", "iproute2"),
        ("setpriv", "util-linux"),
        // For the management page.
        ("chromium", "chromium"),
    ] {
        install::program(name, packages)?;
    }
    Ok(Count::of(true))
}

fn lints() -> anyhow::Result<Count> {
    let clippy = ["clippy", "--quiet", "--keep-going", "--workspace", "--all-targets"];
    whole(cargo(&[&clippy[..], &["--", "-D", "warnings"]].concat()))
}

fn documents() -> anyhow::Result<Count> {
    let mut command = cargo(&["doc", "--quiet", "--keep-going", "--workspace", "--no-deps"]);
    // Pages are read in the source more often than as HTML: links to what is private are welcome.
    command.env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private-intra-doc-links");
    whole(command)
}

/// Once all is built, what is inside of crates runs beside what uses them from outside: many tests of either wait for a process
/// or a socket, so one more runs at once than there are processors. The output of the first is shown at its end, in one piece.
fn tests() -> anyhow::Result<Count> {
    let test = ["test", "--quiet", "--workspace", "--no-fail-fast"];
    let with = |words: &[&str]| cargo(&[&test[..], words].concat());
    let at_once = 1 + available_parallelism()?.get();
    succeed(&mut with(&["--no-run"]))?;
    let (mut shown, mut count) = (Vec::new(), Count::default());
    std::thread::scope(|scope| {
        let inside = scope.spawn(|| {
            let mut count = Count::default();
            for which in [&["--lib", "--bins"][..], &["--doc"]] {
                count += counted_to(&mut with(which), &mut shown)?;
            }
            anyhow::Ok(count)
        });
        count += counted(with(&["--test", "*"]).env("RUST_TEST_THREADS", at_once.to_string()))?;
        count += inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        anyhow::Ok(())
    })?;
    std::io::stdout().write_all(&shown)?;
    Ok(count)
}

/// Builds what is shipped.
pub(crate) fn release_build() -> anyhow::Result<()> {
    succeed(&mut cargo(&["build", "--quiet", "--release", "--package", "leveret"]))?;
    ensure!(root().join("target/release/leveret").exists(), "the build made no program");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Those that can run at once.
    static BEGUN: std::sync::Barrier = std::sync::Barrier::new(2);

    #[test]
    fn a_step_runs_beside_another_and_is_counted_in_its_place() {
        let meet = || {
            BEGUN.wait();
            Ok(Count { passed: 2, ..Count::default() })
        };
        let with = "first";
        let steps = [
            Step::in_turn("first", meet),
            Step { name: "beside", run: Run::Beside { with, run: |_| meet_and_fail() } },
            Step {
                name: "alone",
                run: Run::Beside { with: "never", run: |_| Ok(Count::of(true)) },
            },
        ];
        let code = |only: &[&str]| {
            let only: Vec<_> = only.iter().map(|&it| it.to_owned()).collect();
            run(&steps, &only).unwrap()
        };
        assert_eq!(code(&[]), ExitCode::FAILURE, "what fails beside another fails all");
        assert_eq!(code(&["alone"]), ExitCode::SUCCESS);
        assert!(run(&steps, &["none".to_owned()]).is_err());
    }

    fn meet_and_fail() -> anyhow::Result<Count> {
        BEGUN.wait();
        Ok(Count { passed: 1, failed: 1, ..Count::default() })
    }
}
