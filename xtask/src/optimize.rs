//! The program as it is released: laid out by what a run of it showed (profile-guided optimisation).
//!
//! It is built twice: with counters, which then runs under load, and again with the counts. The
//! result is the same program, with a quarter less CPU time for each message (`docs/benchmarks.md`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

use crate::bench::api::api;
use crate::node::Node;
use crate::root;
use crate::steps::{cargo, succeed};

/// Where all of it lies.
const PLACE: &str = "target/optimized";

/// What the program is trained with: words of `leveret perf`. Numbers of messages, not times: the
/// weight of each is the same wherever it is built.
const TRAINING: [&str; 12] = [
    "-x 1 -y 1 -a -s 16 -C 2000000",
    "-x 1 -y 1 -a -s 1024 -C 1000000",
    "-x 1 -y 1 -s 100 -q 100 -c 100 -C 500000",
    "-x 1 -y 1 -s 1024 -q 50 -A 10 -t topic -k a.b.c -C 300000",
    "-x 1 -y 1 -s 1024 -q 50 -t fanout -C 200000",
    "-x 2 -y 3 -u one -f persistent -ad false -c 100 -q 100 -A 10 -s 1500 -C 200000",
    "-x 4 -y 6 -qp of-%d -qpf 1 -qpt 4 -f persistent -ad false -c 100 -q 100 -s 1500 -C 100000",
    "-x 1 -y 0 -u backlog -f persistent -ad false -c 1000 -s 1024 -C 500000",
    "-x 0 -y 1 -u backlog -p -q 500 -A 50 -D 500000",
    "-x 1 -y 1 -s 65536 -q 50 -C 20000",
    "latency -z 3",
    // Queues to be listed.
    "-x 500 -y 0 -qp list-%d -qpf 1 -qpt 500 -ad false -C 4",
];

/// What else it is trained with: lists of the management API, so many times each. What no run shows is made
/// small instead of fast.
const LISTS: [&str; 3] =
    ["/api/queues", "/api/queues?columns=name,messages", "/api/queues?page=1&sort=messages"];
const LISTED: usize = 20;

/// Builds it; where it is.
pub(crate) fn build() -> anyhow::Result<PathBuf> {
    let place = root().join(PLACE);
    let counts = place.join("counts");
    if counts.exists() {
        fs::remove_dir_all(&counts)?;
    }
    let merge = merging_tool()?;
    println!("1 of 3: building a program that counts what it does");
    let counting = compile("counting", &format!("-Cprofile-generate={}", counts.display()))?;
    println!("2 of 3: letting it work");
    train(&counting)?;
    let profile = place.join("profile");
    succeed(Command::new(merge).arg("merge").arg("-o").arg(&profile).arg(&counts))?;
    println!("3 of 3: building the program");
    let built = compile("program", &format!("-Cprofile-use={}", profile.display()))?;
    let result = place.join("leveret");
    fs::copy(&built, &result).with_context(|| built.display().to_string())?;
    Ok(result)
}

/// The release build with one more flag for every crate of it.
fn compile(name: &str, flag: &str) -> anyhow::Result<PathBuf> {
    let host = asked(&["-vV"])?;
    let host = host.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.context("rustc -vV names no host")?;
    let place = root().join(PLACE).join(name);
    let mut words = cargo(&["build", "--quiet", "--release", "--package", "leveret"]);
    // With a target the flag is for the program alone, not for what runs while it is built.
    words.args(["--target", host]).arg("--target-dir").arg(&place).env("RUSTFLAGS", flag);
    succeed(&mut words)?;
    Ok(place.join(host).join("release/leveret"))
}

/// Lets a broker work, and writes down its counts as it ends.
fn train(program: &Path) -> anyhow::Result<()> {
    let mut node = Node::start_program(program, &[])?;
    let uri = format!("amqp://guest:guest@{}/%2F", node.address);
    for words in TRAINING {
        println!("  leveret perf {words}");
        let mut load = Command::new(program);
        load.args(["perf", "-h", &uri, "--json", "/dev/null"]).args(words.split(' '));
        ensure!(load.output()?.status.success(), "leveret perf {words} failed");
    }
    for path in LISTS {
        println!("  GET {path}");
        for count in 0..LISTED {
            api(node.data_dir(), path, count % 2 > 0)?;
        }
    }
    node.stop()
}

/// `llvm-profdata` of this compiler; installed if it is missing.
fn merging_tool() -> anyhow::Result<PathBuf> {
    let tool = PathBuf::from(asked(&["--print", "target-libdir"])?.trim())
        .with_file_name("bin")
        .join("llvm-profdata");
    if !tool.exists() {
        println!("installing llvm-tools: rustup component add llvm-tools");
        succeed(Command::new("rustup").args(["component", "add", "llvm-tools"]))?;
    }
    Ok(tool)
}

/// What the compiler answers.
fn asked(words: &[&str]) -> anyhow::Result<String> {
    let answer = Command::new("rustc").args(words).current_dir(root()).output()?;
    ensure!(answer.status.success(), "rustc {} failed", words.join(" "));
    Ok(String::from_utf8(answer.stdout)?)
}
