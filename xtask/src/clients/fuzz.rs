//! The HTTP API, tried with whatever its description allows and with what it does not: schemathesis.
//!
//! No answer may be a fault of ours or take longer than five seconds, and each must be one that the
//! description names, with a body as it says.

use std::process::Command;

use super::python;
use super::tools::{Counts, SuitePlace};
use crate::node::{self, Node};
use crate::steps::succeed;

const PACKAGES: [&str; 1] = ["schemathesis==4.32.5"];

const CHECKS: [&str; 5] = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "unsupported_method",
];

/// How long requests are made, in seconds: about five thousand.
const SECONDS: u32 = 50;

/// Every path, method, parameter and body of the description.
pub(super) fn api(place: &SuitePlace) -> anyhow::Result<Counts> {
    let python = python::environment(place, "fuzz", &PACKAGES)?;
    let node = Node::start(&[])?;
    let settings = place.source("api/schemathesis.toml");
    let definitions = place.source("api/definitions.json");
    let import =
        ["ctl", "-q", "import_definitions", &definitions.display().to_string()].map(str::to_owned);
    succeed(node::program().args(import).env("LEVERET_DATA_DIR", node.data_dir()))?;
    let mut run = Command::new(python.with_file_name("schemathesis"));
    run.arg("--config-file").arg(settings).arg("run");
    run.arg(place.root.join("crates/admin/src/http/openapi.yaml"));
    run.args(["--url", &format!("http://{}", node.http), "--auth", "guest:guest"]);
    run.args(["--phases", "coverage,fuzzing", "--max-time", &SECONDS.to_string()]);
    // The same requests in every run, as far as their time goes: a red run is a change.
    run.args(["--seed", "1", "--max-response-time", "5", "--suppress-health-check", "all"]);
    run.args(["--checks", &CHECKS.join(",")]);
    run.args(["--continue-on-failure", "--no-color", "--warnings", "off"]);
    let (output, is_good) = place.run("test", 5, run.current_dir(&place.dir))?;
    let number = |of: &str| -> Option<u64> {
        let (_, rest) = output.split_once(of)?;
        rest.split_whitespace().next()?.trim_end_matches(',').parse().ok()
    };
    let tested = number("  Tested: ").unwrap_or(0);
    let failures = output.lines().filter_map(|line| {
        let name = line.strip_prefix('_')?.trim_matches(['_', ' ']);
        (!name.is_empty()).then(|| name.to_owned())
    });
    let mut counts = Counts { failures: failures.collect(), ..Counts::default() };
    counts.failed = counts.failures.len() as u64;
    counts.passed = tested.saturating_sub(counts.failed);
    if !is_good && counts.failed == 0 || tested == 0 {
        counts.add("the run itself", false);
    }
    Ok(counts)
}
