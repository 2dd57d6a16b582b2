//! The workloads whose speed and cost the project promises, run against a new node each.
//!
//! Cost is processor time of the node per million messages: unlike speed, it does not depend on how
//! many cores the load tool leaves to the node.

use std::time::Instant;

use anyhow::ensure;

use crate::node::{self, Node};
use crate::steps::succeed;

/// A workload: its name, its messages, and the words of the load tool.
struct Workload {
    name: &'static str,
    messages: u64,
    words: &'static str,
}

const WORKLOADS: [Workload; 4] = [
    Workload { name: "16 B, auto-ack", messages: 2_000_000, words: "-x 1 -y 1 -a -s 16" },
    Workload { name: "1 KB, auto-ack", messages: 1_000_000, words: "-x 1 -y 1 -a -s 1024" },
    Workload {
        name: "16 B, acks and confirms",
        messages: 1_000_000,
        words: "-x 1 -y 1 -s 16 -q 100 -c 100",
    },
    Workload { name: "16 B, ten pairs", messages: 2_000_000, words: "-x 10 -y 10 -a -s 16" },
];

/// Runs the workloads whose names contain `only`.
pub(crate) fn run(only: &str) -> anyhow::Result<()> {
    node::build()?;
    let mut lines = Vec::new();
    for workload in WORKLOADS.iter().filter(|it| it.name.contains(only)) {
        println!("\n== {}", workload.name);
        lines.push(measure(workload)?);
    }
    ensure!(!lines.is_empty(), "no workload's name contains '{only}'");
    println!("\n| workload | messages/s | CPU s per million | memory at the end, MB |");
    println!("|---|---|---|---|");
    lines.iter().for_each(|line| println!("{line}"));
    Ok(())
}

fn measure(workload: &Workload) -> anyhow::Result<String> {
    let node = Node::start(&[])?;
    let words: Vec<&str> = workload.words.split(' ').collect();
    let pairs: u64 = words.get(1).map_or(Ok(1), |it| it.parse())?;
    let each = (workload.messages / pairs).to_string();
    let uri = format!("amqp://guest:guest@{}/%2F", node.address);
    let before = node.processor_time()?;
    let started = Instant::now();
    succeed(node::program().args(["perf", "-h", &uri, "-C", &each, "-D", &each]).args(&words))?;
    let seconds = started.elapsed().as_secs_f64();
    let cost = (node.processor_time()? - before).as_secs_f64();
    let millions = workload.messages as f64 / 1e6;
    Ok(format!(
        "| {} | {:.0} | {:.2} | {:.0} |",
        workload.name,
        workload.messages as f64 / seconds,
        cost / millions,
        node.memory_kb()? as f64 / 1024.0,
    ))
}
