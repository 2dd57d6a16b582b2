//! The steps of `check` and `test`: what is run, in which order, under which names.
//!
//! A new kind of test is one more line in [`check()`] (a minute, no network, no other program) or in
//! [`test()`].

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::ensure;

use crate::steps::{Count, cargo, counted, counted_to, succeed};
use crate::{clients, cluster, deny, generate, install, package, page, programs, root, tidy};

/// One step: its name and what it does.
pub(crate) struct Step {
    name: &'static str,
    run: fn() -> anyhow::Result<Count>,
}

/// The steps before a commit.
pub(crate) fn check() -> Vec<Step> {
    vec![
        Step { name: "format", run: || whole(cargo(&["fmt", "--all", "--check"])) },
        Step { name: "tidy", run: || tidy::run().map(|()| Count::of(true)) },
        Step { name: "generated", run: || generate::run(true).map(|()| Count::of(true)) },
        Step { name: "lints", run: lints },
        Step { name: "documents", run: documents },
        Step { name: "tests", run: tests },
    ]
}

/// Everything: the steps before a commit, then what takes longer.
pub(crate) fn test() -> Vec<Step> {
    let mut steps = vec![Step { name: "tools", run: tools }];
    steps.extend(check());
    steps.extend([
        Step { name: "dependencies", run: deny::counted },
        Step { name: "release build", run: || release_build().map(|()| Count::of(true)) },
        Step { name: "packages", run: package::check },
        Step { name: "conversations", run: programs::conform_counted },
        Step { name: "simulation", run: programs::sim_counted },
        Step { name: "clients", run: clients::counted },
        Step { name: "page build", run: || page::build(false) },
        Step { name: "page", run: || page::browse(&[]) },
        Step { name: "cluster", run: cluster::counted },
        // Last: what it finds is to be read, and a long log is often shown from its end.
        Step { name: "everything", run: programs::everything },
    ]);
    steps
}

/// Runs the steps whose names are in `only`, or all; ends with the line `N passed, N failed`.
pub(crate) fn run(steps: &[Step], only: &[String]) -> anyhow::Result<ExitCode> {
    for name in only {
        let names: Vec<_> = steps.iter().map(|step| step.name).collect();
        ensure!(names.contains(&name.as_str()), "no step '{name}'; there are {}", names.join(", "));
    }
    let mut total = Count::default();
    let mut lines = Vec::new();
    for step in steps.iter().filter(|step| only.is_empty() || only.iter().any(|it| it == step.name))
    {
        println!("\n== {}", step.name);
        let started = Instant::now();
        let count = (step.run)().unwrap_or_else(|error| {
            println!("{error:#}");
            Count::of(false)
        });
        let seconds = started.elapsed().as_secs_f64();
        let Count { passed, failed } = count;
        lines.push(format!("{:<16} {passed:>6} {failed:>6} {seconds:>8.1} s", step.name));
        total += count;
    }
    println!("\n{:<16} {:>6} {:>6}", "step", "passed", "failed");
    lines.iter().for_each(|line| println!("{line}"));
    println!("\n{} passed, {} failed", total.passed, total.failed);
    Ok(if total.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
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

/// First what ships; then tests, benches and examples, which may read clocks and use hash maps where
/// the crate itself may not.
fn lints() -> anyhow::Result<Count> {
    let clippy = ["clippy", "--quiet", "--keep-going", "--workspace"];
    let mut shipped = cargo(&clippy);
    shipped.args(["--lib", "--bins", "--", "-D", "warnings"]);
    let mut others = cargo(&clippy);
    others.args(["--all-targets", "--", "-D", "warnings"]);
    others.args(["-A", "clippy::disallowed_methods", "-A", "clippy::disallowed_types"]);
    let mut count = Count::default();
    for mut command in [shipped, others] {
        count += Count::of(succeed(&mut command).is_ok());
    }
    Ok(count)
}

fn documents() -> anyhow::Result<Count> {
    let mut command = cargo(&["doc", "--quiet", "--keep-going", "--workspace", "--no-deps"]);
    // Pages are read in the source more often than as HTML: links to what is private are welcome.
    command.env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private-intra-doc-links");
    whole(command)
}

/// Once all is built, what is inside of crates runs beside what uses them from outside: many tests of either wait for a process
/// or a socket. The output of the first is shown at its end, in one piece.
fn tests() -> anyhow::Result<Count> {
    let test = ["test", "--quiet", "--workspace", "--no-fail-fast"];
    let with = |words: &[&str]| cargo(&[&test[..], words].concat());
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
        count += counted(&mut with(&["--test", "*"]))?;
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
