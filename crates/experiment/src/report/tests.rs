//! A report of fixed figures.

use crate::case::{Case, Length, Measure, ORDINARY};
use crate::catalogue::{ALL, find};
use crate::machine::Machine;
use crate::outcome::{Facts, Measured, Results, Run, Second, Session, Times};
use crate::table::tables;

use super::*;

fn facts(name: &str, is_leveret: bool) -> Facts {
    Facts {
        name: name.to_owned(),
        told: "<platform>".to_owned(),
        is_leveret,
        uri: "guest@127.0.0.1:1 vhost '/'".to_owned(),
        started_here: is_leveret,
        is_watched: true,
    }
}

/// A run with this rate, and latencies to match.
fn run(rate: f64) -> Run {
    let times = Times { mean: 50.0, p50: 40.0, p99: 400.0, p999: 900.0, max: 1000.0 };
    let second = |at: u32| Second {
        end_s: f64::from(at),
        published_per_s: rate,
        consumed_per_s: rate / 2.0,
        broker_bytes: Some(30_000_000),
    };
    Run {
        seconds: 5.0,
        published: 500,
        consumed: 250,
        writes: 10,
        published_per_s: rate,
        consumed_per_s: rate / 2.0,
        latency_us: Some(times),
        confirm_us: Some(times),
        broker_cpu_s_per_million: Some(1.25),
        broker_peak_bytes: Some(31_000_000),
        tool_cpu_s_per_million: 0.5,
        others_cpu_percent: Some(2.0),
        intervals: (1..=5).map(second).collect(),
    }
}

fn measured(broker: usize, case: &Case, rates: &[f64]) -> Measured {
    Measured {
        broker,
        commands: case.commands(broker == 0, None),
        prepare: case.prepare_command(broker == 0),
        case: case.clone(),
        runs: rates.iter().map(|rate| run(*rate)).collect(),
        failure: None,
    }
}

/// An experiment in which a case's rate is given, for each broker and case.
fn session(name: &str, length: Length, rates: impl Fn(usize, &Case) -> Vec<f64>) -> Session {
    let experiment = find(name).unwrap();
    let mut all = Vec::new();
    for case in (experiment.cases)(length) {
        for broker in [0, 1] {
            if case.runs_on(broker == 0) {
                all.push(measured(broker, &case, &rates(broker, &case)));
            }
        }
    }
    Session {
        program: "0.1.0",
        started: "2026-11-22T09:00:00Z".to_owned(),
        command: "leveret perf experiment".to_owned(),
        machine: Machine {
            cores: 2,
            memory_bytes: 4 << 30,
            kernel: "Linux 6".into(),
            ..Machine::default()
        },
        length,
        flush_each: false,
        brokers: vec![facts("Leveret 0.1.0", true), facts("RabbitMQ 4.0.5", false)],
        experiments: vec![Results { experiment, repeats: 3, measured: all }],
        interrupted: false,
    }
}

fn rows(session: &Session, title: &str) -> Vec<String> {
    let all = tables(&session.experiments[0], &session.brokers);
    let table = all.iter().find(|it| it.title.starts_with(title)).unwrap();
    table.rows.iter().map(|row| row.join(" | ")).collect()
}

#[test]
fn a_ladder_beside_the_documents() {
    let session = session("ladder", Length::default(), |broker, case| {
        let rate = if case.loads[0].contains("persistent") { 6000.0 } else { 10_000.0 };
        vec![rate / (broker as f64 + 1.0), rate, rate * 2.0]
    });
    let figures = rows(&session, "Messages published");
    assert_eq!(
        figures[0],
        "no acks, no confirms | 10,000 (10,000 to 20,000) | 10,000 (5,000 to 20,000) | 44,824"
    );
    assert_eq!(figures[4], "the same, by the rule first | 6,000 (6,000 to 12,000) | - | -");
    let steps = rows(&session, "Share");
    assert_eq!(steps[2], "and messages are persistent | 60 % | 60 % | 18 %");
}

#[test]
fn gains_are_the_articles() {
    // 1 queue: three times as fast; above three queues +50 % and +100 %, 75 % in the mean.
    let session = session("confirms", Length { quick: true, seconds: None }, |broker, case| {
        let base = if broker == 0 { 1000.0 } else { 100.0 };
        let factor = match (case.column, &*case.row) {
            ("ack", "1 queue") => 3.0,
            ("ack", "15 queues") => 1.5,
            ("ack", "30 queues") => 2.0,
            _ => 1.0,
        };
        vec![base * factor]
    });
    let gains = rows(&session, "Gain of the rate");
    let columns = |row: &str| -> Vec<String> { row.split(" | ").map(str::to_owned).collect() };
    // first, ack, ack-lean; the article's two.
    assert_eq!(columns(&gains[0])[1..4], ["+0.0 %", "3.00x", "+0.0 %"]);
    assert_eq!(columns(&gains[0])[4..], ["3.08x", "3.48x"]);
    assert_eq!(columns(&gains[2])[2], "+50.0 %");
    assert_eq!(columns(&gains[4])[..3], ["mean above 3 queues", "+0.0 %", "+75.0 %"]);
    assert_eq!(columns(&gains[4])[4..], ["+42.9 %", "+56.5 %"]);
    // All rules, over the other broker.
    let others = rows(&session, "Gain of the rate over RabbitMQ 4.0.5");
    assert_eq!(others[0], "1 queue | 10.00x | 10.00x | 30.00x | 10.00x");
    assert_eq!(others.len(), 5);
    let rates = rows(&session, "Messages published");
    assert_eq!(rates[0], "1 queue | 1,000 | 1,000 | 3,000 | 1,000 | 100");
}

/// Every experiment makes a page that holds together and asks for nothing from outside.
#[test]
fn pages_stand_alone() {
    for it in ALL {
        let session = session(it.name, Length::default(), |_, _| vec![4321.0]);
        let page = page(&session).unwrap();
        assert!(page.starts_with("<!DOCTYPE html>"), "{}", it.name);
        assert!(page.contains("<table>") && page.contains("4,321"), "{}", it.name);
        assert!(page.contains("<svg"), "{}", it.name);
        for word in ["src=", "<link", "@import", "url(", "<script"] {
            assert!(!page.contains(word), "{}: {word}", it.name);
        }
        let links = page.matches("href=").count();
        assert_eq!(links, page.matches("href=\"#").count(), "{}", it.name);
        balanced(&page);
        // What a broker says of itself is text.
        assert!(page.contains("&lt;platform&gt;") && !page.contains("<platform>"));
        assert_eq!(it.missing.is_some(), page.contains("needs a cluster"), "{}", it.name);
    }
}

/// Every element that is opened is closed, in order.
#[track_caller]
fn balanced(page: &str) {
    const EMPTY: [&str; 2] = ["meta", "br"];
    let mut open = Vec::new();
    let body = page.strip_prefix("<!DOCTYPE html>").unwrap();
    for part in body.split('<').skip(1) {
        let tag = part.split('>').next().unwrap();
        let name = tag.split([' ', '/', '\n']).find(|it| !it.is_empty()).unwrap();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "{tag}");
        } else if !tag.ends_with('/') && !EMPTY.contains(&name) {
            open.push(name);
        }
    }
    assert_eq!(open, <[&str; 0]>::default());
}

#[test]
fn readers_are_warned() {
    let mut session =
        session("scenario-1", Length { quick: true, seconds: None }, |_, _| vec![1.0]);
    let told = page(&session).unwrap();
    assert!(
        told.contains("Quick runs")
            && !told.contains("interrupted")
            && !told.contains("Other programs")
    );
    session.interrupted = true;
    session.experiments[0].measured[0].runs[0].others_cpu_percent = Some(55.0);
    session.experiments[0].measured[1].failure = Some("no <route>".to_owned());
    let told = page(&session).unwrap();
    assert!(told.contains("This was interrupted") && told.contains("up to 55.0 %"));
    assert!(told.contains("failed: no &lt;route&gt;"));
}

#[test]
fn commands_can_be_repeated() {
    let session = session("columns", Length { quick: true, seconds: None }, |_, _| vec![1.0]);
    let told = page(&session).unwrap();
    assert!(told.contains("leveret perf -x 2 -c 1000 -y 0"), "{told}");
    assert!(told.contains("-qa x-confirm-on=enqueue -h URI --broker-pid PID"));
    let two_at_once = ["-x 1".to_owned(), "-x 2".to_owned()];
    let ends: Vec<_> = page::loads(&two_at_once).map(|it| it.1).collect();
    assert_eq!(ends, [" &", ""]);
}

#[test]
fn a_terminal_has_the_tables() {
    let session = session("scenario-2", Length::default(), |_, _| vec![1000.0]);
    let told = terminal(&session);
    assert!(
        told.contains("\nproducer          1,000           1,000                 70,000\n"),
        "{told}"
    );
}

#[test]
fn json_has_everything() {
    let session = session("ladder", Length::default(), |_, _| vec![1000.0]);
    let json = serde_json::to_value(&session).unwrap();
    let first = &json["experiments"][0]["measured"][0];
    assert_eq!(first["runs"][0]["published_per_s"], 1000.0);
    assert_eq!(first["case"]["shows"], "published");
    assert_eq!(json["experiments"][0]["experiment"]["quoted"][3]["value"], 4725.0);
    assert_eq!(json["machine"]["cores"], 2);
}

#[test]
fn rules_of_one_broker_are_the_ordinary_one() {
    let session = session("ladder", Length::default(), |_, _| vec![1.0]);
    let measured = &session.experiments[0].measured;
    let ordinary =
        measured.iter().find(|it| it.broker == 1 && it.case.rule == Some(ORDINARY)).unwrap();
    assert!(!ordinary.commands[0].contains("x-confirm-on"));
    assert_eq!(ordinary.case.shows, Measure::Published);
}

#[test]
fn every_report_says_how_the_loads_wrote() {
    let mut session = session("scenario-1", Length::default(), |_, _| vec![1.0]);
    for (flush_each, text) in
        [(false, "due together were one write"), (true, "ack was a write of its own")]
    {
        session.flush_each = flush_each;
        for told in [terminal(&session), markdown(&session), page(&session).unwrap()] {
            assert!(told.contains(text), "{told}");
        }
    }
}

#[test]
fn markdown_has_the_tables_and_what_they_were_measured_on() {
    let mut session = session("ladder", Length::default(), |_, _| vec![1000.0, 2000.0, 3000.0]);
    session.experiments[0].measured[1].failure = Some("it went away".to_owned());
    let told = markdown(&session);
    for line in [
        "Leveret 0.1.0, 2026-11-22T09:00:00Z; 2 cores (), 4.0 GiB of memory, Linux 6. \
         Other programs had at most 2.00 % of the processors. `leveret perf experiment`",
        "### ladder: what acks, confirms and persistence each cost: four steps",
        "Medians of 3 runs, with the lowest and highest.",
        "Messages published per second:",
        "|  | Leveret 0.1.0 | RabbitMQ 4.0.5 | RabbitMQ 2.8.1 (document) |",
        "|---|---:|---:|---:|",
        "| no acks, no confirms | 2,000 (1,000 to 3,000) | 2,000 (1,000 to 3,000) | 44,824 |",
        "no acks, no confirms: failed: it went away",
    ] {
        assert!(told.lines().any(|it| it == line), "{line} is not in\n{told}");
    }
}
