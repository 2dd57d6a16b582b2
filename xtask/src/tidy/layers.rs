//! Who may depend on whom, from the manifests.

use anyhow::Context as _;

use crate::root;

/// Crates that do no input or output: what they need of the world is handed to them.
pub(crate) const SANS_IO: [&str; 10] =
    ["amqp", "log", "queue", "replica", "topology", "broker", "link", "cluster", "session", "node"];

/// Our crates and those of ours they may depend on. A new arrow is a decision to be recorded.
#[rustfmt::skip] // a table
const LAYERS: &[(&str, &[&str])] = &[
    ("counting", &[]),
    ("amqp",     &[]),
    ("log",      &[]),
    ("queue",    &[]),
    ("replica",  &["log"]),
    ("topology", &["amqp", "queue"]),
    ("broker",   &["amqp", "log", "queue", "topology"]),
    ("link",     &["amqp", "log", "queue", "replica", "topology", "broker"]),
    ("cluster",  &["log", "replica", "link"]),
    ("session",  &["amqp", "log", "queue", "topology", "broker"]),
    ("node",     &["amqp", "log", "queue", "topology", "broker", "session"]),
    ("config",   &[]),
    ("auth",     &["queue", "topology", "config"]),
    ("ctl",      &["config"]),
    ("server",   &["amqp", "log", "queue", "topology", "broker", "session", "node", "config", "auth", "replica", "link", "cluster"]),
    ("admin",    &["amqp", "queue", "topology", "broker", "session", "config", "server", "client"]),
    ("client",   &["amqp"]),
    ("load",     &["amqp", "client"]),
    ("migrate",  &["client", "ctl"]),
    ("experiment", &["client", "load", "ctl"]),
    ("sim",      &["amqp", "log", "queue", "topology", "broker", "session", "node", "client", "conform", "replica", "link", "cluster"]),
    ("conform",  &["amqp", "log", "queue", "topology", "broker", "session", "client"]),
    ("leveret",  &["config", "ctl", "server", "admin", "load", "experiment", "migrate", "client"]),
    ("xtask",    &["config", "client", "load"]),
];

/// Ours that only tests depend on, those of any crate.
const FOR_TESTS: &str = "counting";

/// What drives a node is above these crates, and drives their tests too.
const DRIVEN_IN_TESTS: (&str, [&str; 1]) = ("node", ["session"]);

/// Crates of others that reach for the world; a crate that does no input or output needs none.
const WORLDLY: [&str; 7] =
    ["tokio", "rand", "rustix", "socket2", "mimalloc", "tracing-subscriber", "tempfile"];

/// Compares every manifest with the table.
pub(super) fn check(breaches: &mut Vec<String>) -> anyhow::Result<()> {
    let mut seen = Vec::new();
    let crates = std::fs::read_dir(root().join("crates"))?;
    let mut dirs = crates.map(|it| it.map(|it| it.path())).collect::<Result<Vec<_>, _>>()?;
    dirs.push(root().join("xtask"));
    for dir in dirs.iter().filter(|dir| dir.join("Cargo.toml").exists()) {
        let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let manifest = std::fs::read_to_string(dir.join("Cargo.toml"))
            .with_context(|| format!("the manifest of {name}"))?;
        breaches.extend(breaches_of(&name, &manifest));
        seen.push(name);
    }
    for (name, _) in LAYERS {
        if !seen.iter().any(|it| it == name) {
            breaches.push(format!("the layer table names {name}, which is not there"));
        }
    }
    Ok(())
}

fn breaches_of(name: &str, manifest: &str) -> Vec<String> {
    let Some((_, allowed)) = LAYERS.iter().find(|(known, _)| *known == name) else {
        return vec![format!("crates/{name} is not in the layer table")];
    };
    let mut breaches = Vec::new();
    for Dependency { name: target, for_tests } in dependencies(manifest) {
        let ours = target.strip_prefix("leveret-");
        let (driver, driven) = DRIVEN_IN_TESTS;
        let is_for_tests =
            |ours: &str| ours == FOR_TESTS || ours == driver && driven.contains(&name);
        let is_allowed = |ours: &str| allowed.contains(&ours) || for_tests && is_for_tests(ours);
        if ours.is_some_and(|ours| !is_allowed(ours)) {
            breaches.push(format!("crates/{name} must not depend on {target}"));
        }
        if SANS_IO.contains(&name) && !for_tests && WORLDLY.contains(&target) {
            breaches.push(format!("crates/{name} does no input or output: no {target}"));
        }
    }
    breaches
}

struct Dependency<'a> {
    name: &'a str,
    for_tests: bool,
}

/// The dependencies of a manifest. Reads `name = ...`, `name.workspace = true` and
/// `[dependencies.name]`.
fn dependencies(manifest: &str) -> Vec<Dependency<'_>> {
    let mut found = Vec::new();
    let mut section = "";
    for line in manifest.lines().map(str::trim) {
        if let Some(header) = line.strip_prefix('[') {
            section = header.trim_end_matches(']');
            if let Some((table, name)) = section.split_once("dependencies.") {
                found.push(Dependency { name, for_tests: table == "dev-" });
            }
        } else if section.ends_with("dependencies")
            && !line.starts_with('#')
            && let Some((key, _)) = line.split_once('=')
        {
            let name = key.split('.').next().unwrap_or(key).trim();
            found.push(Dependency { name, for_tests: section.ends_with("dev-dependencies") });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn arrows() {
        check("queue",  "[dependencies]\nsmallvec.workspace = true",              "");
        check("queue",  "[dependencies]\nleveret-log.workspace = true",           "crates/queue must not depend on leveret-log");
        check("queue",  "[dev-dependencies]\nleveret-log = { path = \"../log\" }", "crates/queue must not depend on leveret-log");
        check("broker", "[dependencies]\nleveret-log.workspace = true",           "");
        check("broker", "[dependencies.tokio]\nversion = \"1\"",                  "crates/broker does no input or output: no tokio");
        check("queue",  "[dev-dependencies]\nleveret-counting.workspace = true",  "");
        check("session", "[dev-dependencies]\nleveret-node.workspace = true",     "");
        check("session", "[dependencies]\nleveret-node.workspace = true",         "crates/session must not depend on leveret-node");
        check("queue",  "[dependencies]\nleveret-counting.workspace = true",      "crates/queue must not depend on leveret-counting");
        check("log",    "[dev-dependencies]\ntempfile.workspace = true",          "");
        check("ctl",    "[dependencies]\nleveret-broker.workspace = true",        "crates/ctl must not depend on leveret-broker");
        check("common", "",                                                       "crates/common is not in the layer table");
    }

    #[track_caller]
    fn check(name: &str, manifest: &str, want: &str) {
        assert_eq!(breaches_of(name, manifest).join("\n"), want);
    }
}
