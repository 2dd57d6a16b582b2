//! Real clients against a running broker: their own test suites and small programs of ours.
//!
//! Everything is fetched with the ordinary package clients into `target/clients/`. Suites whose
//! tests know no port but 5672 get it from a forwarder ([`forward`]) while they run. Tests that
//! cannot apply are named with their reason in `tests/clients/skipped.txt`; all others count.

mod admin;
mod debian;
mod forward;
mod fuzz;
mod go;
mod java;
mod ldap;
mod manual;
mod migrate;
mod node;
mod python;
mod tls;
mod tools;

use anyhow::{bail, ensure};

use crate::programs;
use crate::steps::Count;
pub(crate) use tools::Ports;
use tools::{Counts, SuitePlace};

type Suite = fn(&SuitePlace) -> anyhow::Result<Counts>;

/// All suites: name, what it is, and how it is run.
const SUITES: [(&str, &str, Suite); 16] = [
    ("amqp091-go", "the Go client's own unit and integration tests", go::amqp091),
    ("rabbit-hole", "the Go client of the HTTP API, its own tests", go::rabbit_hole),
    ("rabbitmqadmin", "rabbitmqadmin v1, its whole set of commands", admin::rabbitmqadmin),
    ("pika", "pika's own acceptance tests", python::pika),
    ("amqplib", "the Node client's own tests", node::amqplib),
    ("java", "the Java client, exercised by a program of ours", java::client),
    ("perftest", "PerfTest in ten combinations of flags", java::perftest),
    (
        "tls",
        "pika, the Go and the Java client over TLS, by password and by certificate; OpenSSL",
        tls::clients,
    ),
    ("ldap", "users of OpenLDAP's slapd, asked in three ways", ldap::users),
    (
        "migrate",
        "a RabbitMQ of Debian's package, moved here by `leveret migrate`, and back",
        migrate::there_and_back,
    ),
    (
        "migrate-4",
        "a RabbitMQ 4.3 of Debian's next release with 300,000 messages, likewise",
        migrate::there_and_back_from_4,
    ),
    ("celery", "a Celery worker: results, retry, ETA, chain, group, chord", python::celery),
    ("tutorials", "the patterns of RabbitMQ's seven tutorials", python::tutorials),
    ("api", "the HTTP API against its description, by schemathesis", fuzz::api),
    ("manual", "the examples of the manual", manual::examples),
    (
        "sender-receiver",
        "two Go programs on the old Go client, 100,000 messages",
        go::sender_receiver,
    ),
];

/// Runs the suites called `names`, or all, against the broker on this machine at `ports`.
///
/// Prints what passed and failed for each, and a last line for all. An error when something failed.
pub(crate) fn run(names: &[String], ports: Ports) -> anyhow::Result<()> {
    let all = run_counted(names, ports)?;
    if all.failed > 0 {
        bail!("some tests of real clients failed; their logs are in target/clients/logs");
    }
    Ok(())
}

/// As [`run`], for the step of `cargo xtask test` that starts the broker itself.
pub(crate) fn counted() -> anyhow::Result<Count> {
    let node = programs::node_for_clients()?;
    let all = run_counted(&[], Ports { amqp: node.address.port(), http: node.http.port() })?;
    Ok(Count { passed: all.passed as u64, failed: all.failed as u64, ..Count::default() })
}

fn run_counted(names: &[String], ports: Ports) -> anyhow::Result<Counts> {
    for name in names {
        let known = SUITES.iter().any(|(known, ..)| known == name);
        ensure!(known, "no suite {name}; there are {}", SUITES.map(|(name, ..)| name).join(", "));
    }
    let mut all = Counts::default();
    for (name, about, suite) in SUITES {
        if !names.is_empty() && !names.iter().any(|n| n == name) {
            continue;
        }
        println!("{name}: {about}");
        let place = SuitePlace::new(name, ports)?;
        let counts = match suite(&place) {
            Ok(counts) => counts,
            Err(error) => {
                println!("  {error:#}");
                Counts {
                    failed: 1,
                    failures: vec!["the suite itself".to_owned()],
                    ..Counts::default()
                }
            }
        };
        for failure in &counts.failures {
            println!("  FAILED {failure}");
        }
        println!(
            "  {} passed, {} failed, {} skipped",
            counts.passed, counts.failed, counts.skipped
        );
        all.passed += counts.passed;
        all.failed += counts.failed;
        all.skipped += counts.skipped;
    }
    println!("clients: {} passed, {} failed, {} skipped", all.passed, all.failed, all.skipped);
    Ok(all)
}
