//! `leveret perf experiment`: a broker of its own, a running one, and being interrupted.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::broker::{Broker, leveret, wait_until};

/// The command, with this as its directory and that for temporary files.
fn experiment(words: &[&str], dir: &Path) -> Command {
    let mut command = leveret(&["perf", "experiment"]);
    command.args(words).args(["--report", "out.html"]).env("TMPDIR", dir).current_dir(dir);
    command
}

/// What it wrote: the page, and the JSON.
fn written(dir: &Path) -> (String, Value) {
    let page = std::fs::read_to_string(dir.join("out.html")).unwrap();
    let json = std::fs::read_to_string(dir.join("out.json")).unwrap();
    (page, serde_json::from_str(&json).unwrap())
}

/// Directories that brokers have left.
fn left_behind(dir: &Path) -> usize {
    let is_ours = |name: &str| name.starts_with("leveret-experiment-");
    let names = std::fs::read_dir(dir).unwrap().map(|it| it.unwrap().file_name());
    names.filter(|it| is_ours(&it.to_string_lossy())).count()
}

#[test]
fn a_broker_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let words = ["ladder", "--seconds", "0.3", "--repeat", "2", "--flush-each"];
    let output = experiment(&words, dir.path()).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told} {}", String::from_utf8_lossy(&output.stderr));
    assert!(told.contains("and publishers want confirms") && told.contains("44,824"), "{told}");
    let (page, json) = written(dir.path());
    assert!(page.contains("<svg") && page.contains("id=\"ladder\""));
    assert_eq!(
        (&json["brokers"][0]["started_here"], &json["flush_each"]),
        (&true.into(), &true.into())
    );
    for measured in json["experiments"][0]["measured"].as_array().unwrap() {
        let runs = measured["runs"].as_array().unwrap();
        assert_eq!(runs.len(), 2, "{measured}");
        assert!(runs.iter().all(|run| run["published"].as_u64() > Some(0)), "{measured}");
        assert!(runs.iter().all(|run| run["consumed"].as_u64() > Some(0)), "{measured}");
        assert!(
            runs.iter().all(|run| run["writes"].as_u64() >= run["published"].as_u64()),
            "{measured}"
        );
    }
    assert_eq!(left_behind(dir.path()), 0);
}

/// What cannot be written is told before hours are spent, by the experiments and by a single run.
#[test]
fn a_file_that_cannot_be_written_is_told_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let experiment: fn(&'static str) -> Vec<&'static str> =
        |option| vec!["perf", "experiment", "ladder", "--seconds", "600", option];
    let run: fn(&'static str) -> Vec<&'static str> = |option| vec!["perf", "-z", "600", option];
    for (words, option) in [
        (experiment, "--report"),
        (experiment, "--json"),
        (experiment, "--markdown"),
        (run, "--json"),
        (run, "--output-file"),
    ] {
        let mut command = leveret(&words(option));
        let output = command.arg("nowhere/out").current_dir(dir.path()).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.contains("nowhere/out: No such file"), "{option}: {told}");
        assert!(!told.contains("this takes about"), "{told}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn latencies_are_measured() {
    let dir = tempfile::tempdir().unwrap();
    let output = experiment(&["scenario-3", "--seconds", "2"], dir.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (_, json) = written(dir.path());
    let latency = &json["experiments"][0]["measured"][0]["runs"][0]["latency_us"]["mean"];
    assert!(latency.as_f64() > Some(0.0), "{latency}");
}

#[test]
fn two_brokers_in_turn() {
    let (here, there) = (Broker::start(), Broker::start());
    let uri = |broker: &Broker| format!("amqp://guest:guest@{}/%2F", broker.address);
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (uri(&here), uri(&there));
    let pid = here.pid().to_string();
    let words = [
        "columns",
        "--quick",
        "--seconds",
        "0.3",
        "--uri",
        &first,
        "--pid",
        &pid,
        "--against",
        &second,
    ];
    let output = experiment(&words, dir.path()).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told} {}", String::from_utf8_lossy(&output.stderr));
    let (_, json) = written(dir.path());
    assert!(!json["command"].as_str().unwrap().contains("guest:guest"));
    let measured = json["experiments"][0]["measured"].as_array().unwrap();
    let of =
        |broker: usize| measured.iter().filter(|it| it["broker"] == broker).collect::<Vec<_>>();
    assert_eq!((of(0).len(), of(1).len()), (3, 3));
    // The queue that was filled is the one that was consumed from, and nothing is left of it.
    assert_eq!(of(1)[1]["runs"][0]["consumed"], 196_000);
    for broker in [&here, &there] {
        assert!(!broker.told(&["list_queues", "name"]).contains("columns"));
    }
    // Only the first one's process was named.
    let cpu = |it: &Value| it["runs"][0]["broker_cpu_s_per_million"].as_f64();
    assert!(cpu(of(0)[0]).is_some() && cpu(of(1)[0]).is_none());
}

#[test]
fn a_running_broker_is_left_as_it_was() {
    let broker = Broker::start();
    let names =
        || ["list_exchanges", "list_queues", "list_bindings"].map(|list| broker.told(&[list]));
    let before = names();
    let uri = format!("amqp://guest:guest@{}/%2F", broker.address);
    let dir = tempfile::tempdir().unwrap();
    let words = ["ladder", "confirms", "--quick", "--seconds", "0.1", "--uri", &uri];
    let output = experiment(&words, dir.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(names(), before);
}

#[test]
fn interrupted() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = experiment(&["scenario-1", "mirrored"], dir.path());
    let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    // The first of four runs is over; the other experiment takes minutes.
    assert!(lines.any(|line| line.starts_with("scenario-1, producer, ")));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let (page, json) = written(dir.path());
    assert!(page.contains("This was interrupted"));
    assert_eq!(json["interrupted"], true);
    let first = &json["experiments"][0]["measured"][0]["runs"][0];
    assert_eq!(first["published"], 100_000, "{json}");
    assert_eq!(left_behind(dir.path()), 0);
}

#[test]
fn a_killed_experiment_takes_its_broker_along() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = experiment(&["scenario-1", "mirrored"], dir.path());
    let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.starts_with("scenario-1, producer, ")));
    let of_child = format!("/proc/{0}/task/{0}/children", child.id());
    let broker: u32 = std::fs::read_to_string(of_child).unwrap().trim().parse().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let ended = || {
        let stat = std::fs::read_to_string(format!("/proc/{broker}/stat"));
        // Nobody may be there to take note of its end.
        stat.map_or(true, |stat| stat.contains(") Z "))
    };
    wait_until(Duration::from_secs(10), "the broker has ended", ended);
    // Its data is gone with the next.
    assert_eq!(left_behind(dir.path()), 1);
    let next = experiment(&["scenario-1", "--repeat", "1"], dir.path()).output().unwrap();
    assert!(next.status.success(), "{}", String::from_utf8_lossy(&next.stderr));
    assert_eq!(left_behind(dir.path()), 0);
}

#[test]
fn names_that_are_not_there() {
    let dir = tempfile::tempdir().unwrap();
    let output = experiment(&["ladders"], dir.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(
        told.contains("there is no experiment 'ladders'") && told.contains("scenario-1"),
        "{told}"
    );
}

/// Every case, a thousandth of its size and no more than its least: what is measured is told, whatever it is on a machine
/// that tests.
#[test]
fn isolation_in_small() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = leveret(&["perf", "experiment", "isolation", "--scale", "0.0001"]);
    command.args(["--seconds", "0.5", "--limit", "60", "--json", "out.json"]);
    let output = command.env("TMPDIR", dir.path()).current_dir(dir.path()).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(told.contains("| large thing |"), "{told} {}", String::from_utf8_lossy(&output.stderr));
    let json = std::fs::read_to_string(dir.path().join("out.json")).unwrap();
    let json: Value = serde_json::from_str(&json).unwrap();
    let played = json["played"].as_array().unwrap();
    assert_eq!(played.len(), 28);
    for it in played {
        assert!(it["failure"].is_null(), "{it}");
        assert!(it["probed"]["rounds"].as_u64() > Some(0), "{it}");
        assert!(it["rate"].as_f64() > Some(0.0), "{it}");
    }
    assert_eq!(left_behind(dir.path()), 0);
}
