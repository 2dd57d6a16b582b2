//! Go: amqp091-go's and rabbit-hole's own tests, and the sender and receiver on the former's predecessor.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde_json::Value;

use super::forward::Forward;
use super::tools::{Counts, SuitePlace, copy_dir};
use crate::node;

const AMQP091: &str = "github.com/rabbitmq/amqp091-go@v1.16.0";
const RABBIT_HOLE: &str = "github.com/michaelklishin/rabbit-hole/v3@v3.5.0";

/// The module's own tests with its build tag `integration`, as its Makefile runs them.
pub(super) fn amqp091(place: &SuitePlace) -> anyhow::Result<Counts> {
    let source = module(place, AMQP091)?;
    let skips: Vec<String> = place.skipped.iter().map(|(name, _)| format!("^{name}$")).collect();
    let _forward = Forward::to(place.port)?;
    let _management = Forward::http_to(place.http_port)?;
    let mut test = Command::new("go");
    test.args(["test", "-v", "-count=1", "-tags", "integration", "-timeout", "15m"]);
    if !skips.is_empty() {
        test.args(["-skip", &skips.join("|")]);
    }
    test.current_dir(&source)
        .env("AMQP_URL", format!("amqp://guest:guest@127.0.0.1:{}/", place.port))
        .env("RABBITMQ_RABBITMQCTL_PATH", rabbitmqctl(place)?);
    let (output, ok) = place.run("test", 20, &mut test)?;
    let mut counts = Counts { skipped: place.skipped.len() as u64, ..Counts::default() };
    for line in output.lines() {
        let name = |rest: &str| rest.split(' ').next().unwrap_or(rest).to_owned();
        if let Some(rest) = line.strip_prefix("--- PASS: ") {
            counts.add(&name(rest), true);
        } else if let Some(rest) = line.strip_prefix("--- FAIL: ") {
            counts.add(&name(rest), false);
        } else if line.starts_with("--- SKIP: ") {
            counts.skipped += 1;
        }
    }
    if !ok && counts.failed == 0 {
        counts.add("the test binary did not end well", false);
    }
    Ok(counts)
}

/// The HTTP client's own tests, which are written with Ginkgo, on a broker that has what they count on.
pub(super) fn rabbit_hole(place: &SuitePlace) -> anyhow::Result<Counts> {
    let source = module(place, RABBIT_HOLE)?;
    let mut prepare = Command::new(rabbitmqctl(place)?);
    prepare.arg("import_definitions").arg(place.source("rabbit-hole.json"));
    place.must("prepare", 1, &mut prepare)?;
    let _forward = Forward::to(place.port)?;
    let _management = Forward::http_to(place.http_port)?;
    let report = place.dir.join("report.json");
    let mut test = Command::new("go");
    test.args(["test", "-count=1", "-timeout", "5m", "-ginkgo.no-color"]);
    test.arg(format!("-ginkgo.json-report={}", report.display()));
    test.args(place.skipped.iter().map(|(name, _)| format!("-ginkgo.skip={}", exactly(name))));
    // Statistics are there after five seconds.
    test.current_dir(&source).env("GOMEGA_DEFAULT_EVENTUALLY_TIMEOUT", "30s");
    let (_, ok) = place.run("test", 6, &mut test)?;
    let told: Value = serde_json::from_slice(&fs::read(&report).context("the report of Ginkgo")?)?;
    let mut counts = Counts::default();
    for spec in told[0]["SpecReports"].as_array().into_iter().flatten() {
        let above = spec["ContainerHierarchyTexts"].as_array().into_iter().flatten();
        let words = above.chain([&spec["LeafNodeText"]]).filter_map(Value::as_str);
        match spec["State"].as_str() {
            Some("skipped") => counts.skipped += 1,
            state => counts.add(&words.collect::<Vec<_>>().join(" "), state == Some("passed")),
        }
    }
    if !ok && counts.failed == 0 {
        counts.add("the test binary did not end well", false);
    }
    Ok(counts)
}

/// A regular expression of Go for a test of this name. Ginkgo puts the name of the suite in front.
fn exactly(name: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || " /_-,".contains(c);
    let escaped = |c: char| if is_plain(c) { c.to_string() } else { format!("\\{c}") };
    format!("(^| ){}$", name.chars().map(escaped).collect::<String>())
}

/// A copy of a module's source with its tests.
fn module(place: &SuitePlace, name: &str) -> anyhow::Result<PathBuf> {
    let mut download = Command::new("go");
    download.args(["mod", "download", "-json", name]).current_dir(&place.dir);
    let answer = place.must("download", 5, &mut download)?;
    let from = answer
        .lines()
        .find_map(|line| line.trim().strip_prefix("\"Dir\": \"")?.strip_suffix("\","))
        .context("go mod download names no folder")?;
    let source = place.dir.join("source");
    copy_dir(from.as_ref(), &source)?;
    Ok(source)
}

/// A program that is `rabbitmqctl` for the suite's broker: the tests give it a command and nothing else.
fn rabbitmqctl(place: &SuitePlace) -> anyhow::Result<PathBuf> {
    let path = place.dir.join("rabbitmqctl");
    let program = node::program().get_program().to_owned();
    let uri = format!("http://guest:guest@127.0.0.1:{}", place.http_port);
    fs::write(&path, format!("#!/bin/sh\nexec '{}' ctl --uri {uri} \"$@\"\n", program.display()))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

/// 100,000 messages of 1 KB from the sender, with and without the receiver.
pub(super) fn sender_receiver(place: &SuitePlace) -> anyhow::Result<Counts> {
    const MESSAGES: &str = "100000";
    let _forward = Forward::to(place.port)?;
    let source = place.source("go");
    for program in ["sender", "receiver", "declare"] {
        let mut build = Command::new("go");
        build.args(["build", "-o"]).arg(place.dir.join(program)).arg(format!("./{program}"));
        place.must(&format!("build-{program}"), 5, build.current_dir(&source))?;
    }
    let run = |program: &str, argument: &str| {
        let mut command = Command::new(place.dir.join(program));
        if !argument.is_empty() {
            command.arg(argument);
        }
        place.must(program, 5, &mut command)
    };
    let mut counts = Counts::default();
    run("declare", "delete")?;
    run("declare", "")?;
    let elapsed = run("sender", MESSAGES)?;
    println!("  without a receiver: {}", elapsed.trim());
    let full = await_count(place, |messages, _| messages == 100_000);
    counts.add("100000 messages wait in the queue", full.is_ok());
    let mut receiver = Command::new(place.dir.join("receiver"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let drained = await_count(place, |messages, consumers| messages == 0 && consumers == 1);
    counts.add("the receiver takes them all", drained.is_ok());
    let elapsed = run("sender", MESSAGES)?;
    println!("  with a receiver: {}", elapsed.trim());
    let drained = await_count(place, |messages, _| messages == 0);
    counts.add("the receiver keeps up", drained.is_ok());
    let is_alive = receiver.try_wait()?.is_none();
    counts.add("the receiver is still there", is_alive);
    if is_alive {
        receiver.kill()?;
    }
    receiver.wait()?;
    run("declare", "delete")?;
    Ok(counts)
}

/// Waits until the queue's counts of messages and consumers are as wanted.
fn await_count(place: &SuitePlace, is_wanted: impl Fn(u64, u64) -> bool) -> anyhow::Result<()> {
    let start = Instant::now();
    loop {
        let output = Command::new(place.dir.join("declare")).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let numbers: Vec<u64> = text.split_whitespace().filter_map(|w| w.parse().ok()).collect();
        if let [messages, consumers] = numbers[..]
            && is_wanted(messages, consumers)
        {
            return Ok(());
        }
        if start.elapsed() > Duration::from_secs(60) {
            bail!("the queue has {text}");
        }
    }
}
