//! The dependencies against `deny.toml`, by cargo-deny.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Context as _;

use crate::root;
use crate::steps::{Count, cargo, succeed};

const VERSION: &str = "0.20.2";

/// What a change of ours can break. An advisory is published without one, and its database is fetched
/// from a host that a machine of tests need not reach.
const ALWAYS: [&str; 3] = ["bans", "licenses", "sources"];

/// Everything; advisories only if their database can be had.
pub(crate) fn run() -> anyhow::Result<()> {
    let program = program()?;
    let mut kinds = ALWAYS.to_vec();
    if succeed(&mut deny(&program, &["fetch", "db"])).is_ok() {
        kinds.push("advisories");
    } else {
        println!("advisories are left out: their database cannot be fetched");
    }
    succeed(deny(&program, &["check", "--hide-inclusion-graph"]).args(kinds))
}

/// The step of `cargo xtask test`. What the program says goes to `out`.
pub(crate) fn counted(out: &mut Vec<u8>) -> anyhow::Result<Count> {
    let program = program()?;
    let mut count = Count::default();
    for kind in ALWAYS {
        let mut check = deny(&program, &["check", "--hide-inclusion-graph", kind]);
        let said = check.output().with_context(|| format!("running {}", program.display()))?;
        out.extend(said.stderr);
        count += Count::of(said.status.success());
    }
    Ok(count)
}

fn deny(program: &PathBuf, words: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.arg("--workspace").args(words).current_dir(root());
    command
}

/// cargo-deny, built the first time: a minute or two.
fn program() -> anyhow::Result<PathBuf> {
    let place = root().join("target/tools").join(format!("cargo-deny-{VERSION}"));
    let program = place.join("bin/cargo-deny");
    if !program.exists() {
        println!("installing cargo-deny {VERSION} into target/tools");
        let what = format!("cargo-deny@{VERSION}");
        // It runs for a second, so half of its build would be optimising.
        let mut install = cargo(&["install", "--debug", "--quiet", "--locked", &what, "--root"]);
        succeed(install.arg(&place))?;
    }
    Ok(program)
}
