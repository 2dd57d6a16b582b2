//! Node: amqplib's own tests, which its package carries.

use std::fs;
use std::process::Command;

use super::forward::Forward;
use super::tools::{Counts, SuitePlace, copy_dir};

/// The last version whose package has its tests.
const AMQPLIB: &str = "amqplib@1.2.0";

/// All test files under Node's own runner.
pub(super) fn amqplib(place: &SuitePlace) -> anyhow::Result<Counts> {
    if !place.dir.join("package.json").exists() {
        fs::write(place.dir.join("package.json"), "{\"private\": true}\n")?;
    }
    // `claire` is what its tests of the codec need.
    let mut install = Command::new("npm");
    install.args(["install", "--no-audit", "--no-fund", AMQPLIB, "claire@0.4.1"]);
    place.must("install", 5, install.current_dir(&place.dir))?;
    let source = place.dir.join("source");
    copy_dir(&place.dir.join("node_modules/amqplib"), &source)?;
    let _forward = Forward::to(place.port)?;
    let mut test = Command::new("node");
    test.args(["--test", "--test-reporter=tap", "--test-concurrency=1"]);
    // `waitForQueue` in its tests does not wait when its first look comes too early: the message may be gone by the
    // next one, it looks for ever, and the process with it. A test without an answer would also wait for ever.
    test.args(["--test-force-exit", "--test-timeout=120000"]);
    for (name, _) in &place.skipped {
        test.arg(format!("--test-skip-pattern={name}"));
    }
    test.env("URL", format!("amqp://127.0.0.1:{}", place.port))
        .env("NODE_PATH", place.dir.join("node_modules"));
    let (output, _) = place.run("test", 15, test.current_dir(&source))?;
    let mut counts = Counts::default();
    for line in output.lines() {
        let number = |key: &str| line.strip_prefix(key).and_then(|n| n.trim().parse::<u64>().ok());
        if let Some(n) = number("# pass ") {
            counts.passed = n;
        } else if let Some(n) = number("# fail ") {
            counts.failed += n;
        } else if let Some(n) = number("# cancelled ") {
            counts.failed += n;
        } else if let Some(n) = number("# skipped ") {
            counts.skipped += n;
        } else if let Some((_, name)) =
            line.trim_start().strip_prefix("not ok ").and_then(|l| l.split_once(" - "))
        {
            counts.failures.push(name.to_owned());
        }
    }
    if counts.passed == 0 {
        counts.add("no test ran", false);
    }
    Ok(counts)
}
