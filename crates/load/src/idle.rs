//! What idle things cost: the growth of the broker's memory per connection or queue.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use leveret_client::{Connection, Options as ClientOptions, QueueDeclare, Uri};
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
pub enum Idle {
    /// Connections that are logged in, without a channel and without heartbeats.
    Connections,
    /// Durable queues without bindings, messages or consumers.
    Queues,
}

/// Opens `count` things, reads the broker's memory before and after, and closes them.
pub(crate) fn run(
    plan: &Plan,
    kind: Idle,
    count: usize,
    broker_pid: u32,
    lines: &Lines,
) -> Result<Value> {
    let mut held = Held::new(plan.uri(0), &plan.client, kind)?;
    held.raise_file_limit(count)?;
    held.add(WARM_UP)?;
    std::thread::sleep(SETTLE);
    let before = rss(broker_pid)?;
    let began = Instant::now();
    held.add(count)?;
    let open_s = began.elapsed().as_secs_f64();
    std::thread::sleep(SETTLE);
    let after = rss(broker_pid)?;
    let cpu_before = process::tree(broker_pid).unwrap_or_default().cpu_s;
    std::thread::sleep(SETTLE);
    let cpu_s = process::tree(broker_pid).unwrap_or_default().cpu_s - cpu_before;
    held.close()?;
    let each = (after as f64 - before as f64) / count.max(1) as f64;
    let name = match kind {
        Idle::Connections => "connections",
        Idle::Queues => "queues",
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

/// Idle things, as long as this lives.
#[derive(Debug)]
pub struct Held {
    uri: Uri,
    client: ClientOptions,
    kind: Idle,
    control: Connection,
    channel: u16,
    /// How many there are.
    count: usize,
    connections: Vec<Connection>,
}

impl Held {
    /// Opens so many of them, for a load beside them.
    pub fn open(uri: &str, kind: Idle, count: usize) -> Result<Self> {
        let mut held = Self::new(&uri.parse()?, &ClientOptions::default(), kind)?;
        held.raise_file_limit(count)?;
        held.add(count)?;
        Ok(held)
    }

    fn new(uri: &Uri, client: &ClientOptions, kind: Idle) -> Result<Self> {
        let client =
            ClientOptions { heartbeat_s: Some(0), read_bytes: 16 * 1024, ..client.clone() };
        let mut control =
            Connection::open(uri, &client).with_context(|| format!("connecting as {uri}"))?;
        let channel = control.open_channel()?;
        let (uri, connections) = (uri.clone(), Vec::new());
        Ok(Self { uri, client, kind, control, channel, count: 0, connections })
    }

    fn raise_file_limit(&self, count: usize) -> Result<()> {
        match self.kind {
            Idle::Connections => raise_file_limit(count as u64 + 200),
            Idle::Queues => Ok(()),
        }
    }

    fn add(&mut self, count: usize) -> Result<()> {
        for number in self.count..self.count + count {
            match self.kind {
                Idle::Connections => {
                    let opened = Connection::open(&self.uri, &self.client);
                    self.connections
                        .push(opened.with_context(|| format!("connection {}", number + 1))?);
                }
                Idle::Queues => {
                    let how = QueueDeclare { durable: true, ..QueueDeclare::default() };
                    self.control.queue_declare(self.channel, &queue(number), &how)?;
                }
            }
        }
        self.count += count;
        Ok(())
    }

    /// Closes all of them.
    pub fn close(mut self) -> Result<()> {
        if self.kind == Idle::Queues {
            for number in 0..self.count {
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
