//! What idle things cost: the growth of the broker's memory per connection or queue.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use leveret_client::{Connection, Options as ClientOptions, QueueDeclare};
use serde_json::{Value, json};

use crate::lines::Lines;
use crate::plan::Plan;
use crate::process;

/// Opened before the first look, so that code and tables that are needed once count for nobody.
const WARM_UP: usize = 20;
/// How long the broker may take to settle before its memory is read.
const SETTLE: Duration = Duration::from_secs(3);

/// What is opened and left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Connections that are logged in, without a channel and without heartbeats.
    Connections,
    /// Durable queues without bindings, messages or consumers.
    Queues,
}

/// Opens `count` things, reads the broker's memory before and after, and closes them.
pub(crate) fn run(
    plan: &Plan,
    kind: Kind,
    count: usize,
    broker_pid: u32,
    lines: &Lines,
) -> Result<Value> {
    if kind == Kind::Connections {
        raise_file_limit(count as u64 + 200)?;
    }
    let mut held = Held::open(plan)?;
    held.add(kind, 0..WARM_UP)?;
    std::thread::sleep(SETTLE);
    let before = rss(broker_pid)?;
    let began = Instant::now();
    held.add(kind, WARM_UP..WARM_UP + count)?;
    let open_s = began.elapsed().as_secs_f64();
    std::thread::sleep(SETTLE);
    let after = rss(broker_pid)?;
    let cpu_before = process::tree(broker_pid).unwrap_or_default().cpu_s;
    std::thread::sleep(SETTLE);
    let cpu_s = process::tree(broker_pid).unwrap_or_default().cpu_s - cpu_before;
    held.close(kind, WARM_UP + count)?;
    let each = (after as f64 - before as f64) / count.max(1) as f64;
    let name = match kind {
        Kind::Connections => "connections",
        Kind::Queues => "queues",
    };
    lines.say(&format!(
        "{count} idle {name}: {:.2} KB each, opened in {open_s:.2} s; broker RSS {:.1} -> {:.1} MB, \
         CPU while idle {:.2} %",
        each / 1e3,
        before as f64 / 1e6,
        after as f64 / 1e6,
        cpu_s / SETTLE.as_secs_f64() * 100.0,
    ));
    Ok(json!({
        "idle": name,
        "count": count,
        "open_s": open_s,
        "rss_before_bytes": before,
        "rss_after_bytes": after,
        "bytes_each": each,
        "idle_cpu_share": cpu_s / SETTLE.as_secs_f64(),
    }))
}

struct Held {
    plan: Plan,
    client: ClientOptions,
    control: Connection,
    channel: u16,
    connections: Vec<Connection>,
}

impl Held {
    fn open(plan: &Plan) -> Result<Self> {
        let client =
            ClientOptions { heartbeat_s: Some(0), read_bytes: 16 * 1024, ..plan.client.clone() };
        let mut control = Connection::open(plan.uri(0), &client)
            .with_context(|| format!("connecting as {}", plan.uri(0)))?;
        let channel = control.open_channel()?;
        Ok(Self { plan: plan.clone(), client, control, channel, connections: Vec::new() })
    }

    fn add(&mut self, kind: Kind, range: std::ops::Range<usize>) -> Result<()> {
        for number in range {
            match kind {
                Kind::Connections => {
                    let opened = Connection::open(self.plan.uri(0), &self.client);
                    self.connections
                        .push(opened.with_context(|| format!("connection {}", number + 1))?);
                }
                Kind::Queues => {
                    let how = QueueDeclare { durable: true, ..QueueDeclare::default() };
                    self.control.queue_declare(self.channel, &queue(number), &how)?;
                }
            }
        }
        Ok(())
    }

    fn close(mut self, kind: Kind, count: usize) -> Result<()> {
        if kind == Kind::Queues {
            for number in 0..count {
                self.control.queue_delete(self.channel, &queue(number))?;
            }
        }
        for connection in self.connections {
            connection.close()?;
        }
        Ok(self.control.close()?)
    }
}

fn queue(number: usize) -> String {
    format!("idle-{number}")
}

fn rss(pid: u32) -> Result<u64> {
    let usage =
        process::tree(pid).with_context(|| format!("--broker-pid {pid}: no such process"))?;
    Ok(usage.rss_bytes)
}

/// Makes sure that so many files may be open at once.
fn raise_file_limit(needed: u64) -> Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    let raised = Rlimit { current: Some(needed), maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised)
        .with_context(|| format!("raising the limit of open files to {needed}"))
}
