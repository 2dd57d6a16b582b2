//! Chores that are programs of the workspace: the simulator, the player of conversations, the load
//! tool.

use std::io::Write;
use std::process::{Command, ExitCode};

use anyhow::Context as _;

use crate::node::{self, Node};
use crate::root;
use crate::steps::{Count, cargo, counted, counted_to};

/// Runs the simulator with these words; with `--cluster` that of several nodes. `--nightly` is for a run at large: until it is stopped or all its
/// seeds are done, when the machine has nothing else to do, and further on the next time.
pub(crate) fn sim(words: &[String]) -> anyhow::Result<ExitCode> {
    let mut words = words.to_vec();
    if let Some(at) = words.iter().position(|word| word == "--cluster") {
        words.remove(at);
        return exit(&mut sim_program(CLUSTER, &words));
    }
    let nightly = words.iter().position(|word| word == "--nightly");
    let Some(at) = nightly else { return exit(&mut sim_program(NODE, &words)) };
    let file = root().join("target/nightly.txt").to_string_lossy().into_owned();
    words.splice(at..=at, ["--night".to_owned(), file]);
    let program = sim_program(NODE, &words);
    let mut command = Command::new("nice");
    command.args(["-n", "19"]).arg(program.get_program()).args(program.get_args());
    exit(command.current_dir(root()))
}

/// One node in one process, with all that its clients do.
const NODE: &str = "seeds";

/// Three nodes and five, with replicated logs.
const CLUSTER: &str = "cluster";

/// Seeds of each in every run of the tests: always the same ones, so that a red run is a change.
const SEEDS: [(&str, &str); 2] = [(NODE, "3000"), (CLUSTER, "2000")];

/// The simulator over the first seeds, counted by seeds. What it says goes to `out`.
pub(crate) fn sim_counted(out: &mut dyn Write) -> anyhow::Result<Count> {
    let mut count = Count::default();
    for (which, seeds) in SEEDS {
        count +=
            counted_to(&mut sim_program(which, &["--count".to_owned(), seeds.to_owned()]), out)?;
    }
    Ok(count)
}

fn sim_program(which: &str, words: &[String]) -> Command {
    let mut command = cargo(&[
        "run",
        "--quiet",
        "--profile",
        "sim",
        "--package",
        "leveret-sim",
        "--example",
        which,
        "--",
    ]);
    command.args(words);
    command
}

/// A minute of all that clients and operators do, with a debug build: the order of locks is checked there. How long the probe
/// waits is told and hardly judged, as machines that test are busy; everything else is.
pub(crate) fn everything() -> anyhow::Result<Count> {
    crate::steps::succeed(&mut cargo(&["build", "--quiet", "--package", "leveret"]))?;
    let mut command = Command::new(root().join("target/debug/leveret"));
    command.args(["perf", "experiment", "everything", "--duration", "60", "--seed", "19"]);
    command.args(["--slowest", "10000", "--log"]).arg(root().join("target/everything.log"));
    counted(&mut command)
}

/// Plays every conversation to a new node.
pub(crate) fn conform(words: &[String]) -> anyhow::Result<ExitCode> {
    let node = node_for_scripts()?;
    exit(player(&node.address.to_string()).args(words))
}

/// As [`conform`], counted.
pub(crate) fn conform_counted() -> anyhow::Result<Count> {
    let node = node_for_scripts()?;
    counted(&mut player(&node.address.to_string()))
}

/// Plays or records with these words alone: the broker is the one they name.
pub(crate) fn script(words: &[String]) -> anyhow::Result<ExitCode> {
    exit(cargo(&["run", "--quiet", "--package", "leveret-conform", "--"]).args(words))
}

/// Runs the load tool with these words.
pub(crate) fn load(words: &[String]) -> anyhow::Result<ExitCode> {
    node::build()?;
    exit(node::program().arg("perf").args(words))
}

/// A new node that holds the users and policies the conversations count on.
fn node_for_scripts() -> anyhow::Result<Node> {
    node::build()?;
    let definitions = root().join("tests/scripts/definitions.json");
    Node::start(&["--load-definitions", &definitions.to_string_lossy()])
}

/// A new node for the suites of real clients.
pub(crate) fn node_for_clients() -> anyhow::Result<Node> {
    node::build()?;
    Node::start(&[])
}

fn player(address: &str) -> Command {
    cargo(&["run", "--quiet", "--package", "leveret-conform", "--", "--address", address])
}

fn exit(command: &mut Command) -> anyhow::Result<ExitCode> {
    let status = command.status().context("running a program of the workspace")?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}
