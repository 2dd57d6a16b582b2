//! Java: a program on the client library, and PerfTest.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::tools::{Counts, SuitePlace, own_counts};

/// Fetches an artifact with what it needs into `lib` of the suite's folder.
fn fetch(place: &SuitePlace, artifact: &str, version: &str) -> anyhow::Result<PathBuf> {
    let lib = place.dir.join("lib");
    let is_there = fs::read_dir(&lib).is_ok_and(|dir| {
        let name = format!("{artifact}-{version}.jar");
        dir.flatten().any(|entry| entry.file_name().to_string_lossy() == name)
    });
    if !is_there {
        let pom = format!(
            "<project><modelVersion>4.0.0</modelVersion><groupId>leveret</groupId>\
             <artifactId>clients</artifactId><version>1</version><dependencies><dependency>\
             <groupId>com.rabbitmq</groupId><artifactId>{artifact}</artifactId>\
             <version>{version}</version></dependency></dependencies></project>\n"
        );
        fs::write(place.dir.join("pom.xml"), pom)?;
        let mut copy = Command::new("mvn");
        copy.args(["-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib"]);
        place.must("install", 10, copy.current_dir(&place.dir))?;
    }
    Ok(lib)
}

fn class_path(lib: &std::path::Path) -> String {
    format!("{}/*", lib.display())
}

/// A program of ours with the client library.
pub(super) fn program(place: &SuitePlace, source: &str) -> anyhow::Result<Command> {
    let lib = fetch(place, "amqp-client", "5.25.0")?;
    let mut java = Command::new("java");
    java.arg("-cp").arg(class_path(&lib)).arg(place.source(source));
    Ok(java)
}

/// The client library, exercised.
pub(super) fn client(place: &SuitePlace) -> anyhow::Result<Counts> {
    let mut java = program(place, "java/Check.java")?;
    let (output, _) = place.run("test", 10, java.arg(place.port.to_string()))?;
    own_counts(&output)
}

/// Ten combinations of flags: what PerfTest is to do, and whether consumers get all that was sent.
const COMBINATIONS: [(&str, &str, bool); 10] = [
    ("plain", "-x 1 -y 1 -a -C 20000 -D 20000", true),
    ("acks", "-x 1 -y 1 -q 100 -C 20000 -D 20000", true),
    ("multi-acks", "-x 1 -y 1 -q 200 -A 50 -C 20000 -D 20000", true),
    ("confirms", "-x 1 -y 1 -c 100 -q 100 -C 20000 -D 20000", true),
    (
        "persistent",
        "-x 1 -y 1 -f persistent -ad false -u perf-durable -c 50 -q 50 -C 5000 -D 5000",
        true,
    ),
    ("large", "-x 1 -y 1 -s 200000 -q 10 -C 500 -D 500", true),
    ("fan-out", "-x 1 -y 4 -t fanout -a -C 5000 -D 5000", true),
    ("topic", "-x 2 -y 2 -t topic -k a.b -a -C 5000 -D 5000", true),
    ("rate", "-x 2 -y 2 -r 500 -q 20 -c 10 -z 5", false),
    ("transactions", "-x 1 -y 1 -m 10 -n 10 -q 20 -C 20000 -D 20000", true),
];

/// PerfTest in all combinations.
pub(super) fn perftest(place: &SuitePlace) -> anyhow::Result<Counts> {
    let lib = fetch(place, "perf-test", "2.22.1")?;
    let mut counts = Counts::default();
    for (name, flags, is_counted) in COMBINATIONS {
        let mut java = Command::new("java");
        java.arg("-cp").arg(class_path(&lib)).args(["com.rabbitmq.perf.PerfTest", "--id", name]);
        java.args(["-h", &format!("amqp://guest:guest@127.0.0.1:{}", place.port)]);
        // An exchange of its own: PerfTest leaves it, and its kind differs.
        java.args(["-e", &format!("leveret-perf-{name}")]);
        let (output, ok) = place.run(name, 3, java.args(flags.split(' ')))?;
        let sent = rate(&output, "sending rate avg: ");
        let received = rate(&output, "receiving rate avg: ");
        println!("    {sent} sent and {received} received each second");
        let has_nacks = output.split("nacked: ").skip(1).any(|rest| !rest.starts_with("0 "));
        // A run that ends by the clock may cut a consumer's last commit short.
        let was_closed = output.lines().any(|line| {
            line.contains("ShutdownSignalException") && !line.contains("clean connection shutdown")
        });
        let has_errors = has_nacks || was_closed || output.contains("Main thread caught");
        let is_even = is_counted || received * 2 >= sent;
        counts.add(name, ok && sent > 0 && received > 0 && is_even && !has_errors);
    }
    Ok(counts)
}

/// A rate from PerfTest's last lines.
fn rate(output: &str, key: &str) -> u64 {
    output
        .lines()
        .filter_map(|line| line.split_once(key))
        .filter_map(|(_, rest)| rest.split_whitespace().next()?.replace(',', "").parse().ok())
        .next_back()
        .unwrap_or(0)
}
