//! Python: pika's acceptance tests, Celery, the tutorials.

use std::path::PathBuf;
use std::process::Command;

use super::debian;
use super::forward::Forward;
use super::tools::{Counts, SuitePlace, copy_dir, own_counts};
use crate::node::Node;

/// What the suites of clients need.
const CLIENTS: [&str; 7] = [
    "pika==1.4.4",
    "pytest==8.4.2",
    "twisted==25.5.0",
    "tornado==6.5.2",
    "gevent",
    "celery==5.5.3",
    // The reactor and the decorator of pika's Twisted tests.
    "pynose==1.5.5",
];

/// An environment called `name` with these packages: its interpreter.
pub(super) fn environment(
    place: &SuitePlace,
    name: &str,
    packages: &[&str],
) -> anyhow::Result<PathBuf> {
    let dir = place.root.join("target/clients").join(name);
    let python = dir.join("bin/python");
    let done = dir.join("installed");
    let wanted = packages.join("\n");
    if std::fs::read_to_string(&done).is_ok_and(|there| there == wanted) {
        return Ok(python);
    }
    if !python.exists() {
        place.must("venv", 3, Command::new("python3").args(["-m", "venv"]).arg(&dir))?;
    }
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "-q"]).args(packages);
    place.must("install", 10, &mut install)?;
    std::fs::write(done, wanted)?;
    Ok(python)
}

/// One environment for all clients.
pub(super) fn clients(place: &SuitePlace) -> anyhow::Result<PathBuf> {
    environment(place, "python", &CLIENTS)
}

/// Names a checkout of pika's source, to be used instead of [`PIKA`].
const PIKA_SOURCE: &str = "PIKA_SOURCE";

/// No Python package carries pika's tests; the sources of Debian's package do.
const PIKA: debian::File = debian::File {
    path: "pool/main/p/python-pika/python-pika_1.3.2.orig.tar.gz",
    sha256: "5eb71b9a0047c77d99378e525a2041fc50aae4a177b060f9825b3e2fdcc96fc4",
};

/// `tests/acceptance` of pika's source, as they are, with the pika beside them.
pub(super) fn pika(place: &SuitePlace) -> anyhow::Result<Counts> {
    let python = clients(place)?;
    let source = place.dir.join("source");
    match std::env::var_os(PIKA_SOURCE) {
        Some(checkout) => copy_dir(&PathBuf::from(checkout), &source)?,
        None => debian::unpack(place, &PIKA, &source)?,
    }
    let _forward = Forward::to(place.port)?;
    let mut test = Command::new(python);
    test.args(["-m", "pytest", "-q", "-rfEsp", "--tb=short", "-p", "no:cacheprovider"]);
    // Some tests look up a host of the internet.
    test.args(["-p", "hosts"]).env("PYTHONPATH", place.source("python"));
    test.env("PYTHONDONTWRITEBYTECODE", "1");
    test.args(["-o", "python_files=*_test.py *_tests.py", "tests/acceptance"]);
    for (name, _) in &place.skipped {
        test.args(["--deselect", name]);
    }
    let (output, _) = place.run("test", 20, test.current_dir(&source))?;
    let mut counts = Counts { skipped: place.skipped.len() as u64, ..Counts::default() };
    let summary = output.split("short test summary info").nth(1).unwrap_or_default();
    for line in summary.lines() {
        let name = |rest: &str| rest.split(" - ").next().unwrap_or(rest).to_owned();
        if let Some(rest) = line.strip_prefix("PASSED ") {
            counts.add(&name(rest), true);
        } else if let Some(rest) =
            line.strip_prefix("FAILED ").or_else(|| line.strip_prefix("ERROR "))
        {
            counts.add(&name(rest), false);
        } else if line.starts_with("SKIPPED ") {
            counts.skipped += 1;
        }
    }
    if counts.passed == 0 {
        counts.add("no test ran", false);
    }
    Ok(counts)
}

/// A worker with two processes; once with results over AMQP, once with results that allow chords. Its
/// library sets limits in another way when the product is not RabbitMQ, so once more with our own name.
pub(super) fn celery(place: &SuitePlace) -> anyhow::Result<Counts> {
    let python = clients(place)?;
    let results = place.dir.join("results");
    std::fs::create_dir_all(&results)?;
    let own_name = Node::start(&["--set", "server_properties.product=Leveret"])?;
    let file = format!("file://{}", results.display());
    let mut all = Counts::default();
    for (name, port, backend) in [
        ("rpc", place.port, "rpc://"),
        ("file", place.port, &file),
        ("own-name", own_name.address.port(), "rpc://"),
    ] {
        let mut check = Command::new(&python);
        check.arg(place.source("python/celery_check.py")).arg(port.to_string()).arg(backend);
        check.env("LOGS", &place.dir).env("PYTHONDONTWRITEBYTECODE", "1");
        let (output, _) = place.run(name, 10, check.current_dir(&place.dir))?;
        all.add_part(name, own_counts(&output)?);
    }
    Ok(all)
}

/// Own code; what the tutorials show, checked.
pub(super) fn tutorials(place: &SuitePlace) -> anyhow::Result<Counts> {
    let python = clients(place)?;
    let mut check = Command::new(python);
    check.arg(place.source("python/tutorials.py")).arg(place.port.to_string());
    let (output, _) = place.run("test", 5, &mut check)?;
    own_counts(&output)
}
