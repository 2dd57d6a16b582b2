//! `cargo xtask bench`: what a message costs, on our broker and on others beside it.
//!
//! Every figure comes from `leveret perf` (or a Go program, for clients that are not ours), is the
//! median of several runs, and stands with its command under the table. CPU is user and system
//! time of the broker's whole process tree.

pub(crate) mod api;
mod backlogs;
mod go;
mod goals;
mod measure;
mod memory;
mod plot;
mod recovery;
mod relay;
mod rules;
mod scale;
mod slow;
mod spread;
mod stored;
mod table;
mod target;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use measure::Bench;
use slow::SlowDisk;
use target::{Peer, Target};

/// Measure brokers and print a Markdown table
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct BenchArgs {
    /// Workloads, in this order [default: all]
    #[arg(long, value_delimiter = ',', value_enum)]
    workloads: Vec<Workload>,
    /// Runs of each workload; their median counts
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Length of a throughput or latency run
    #[arg(long, default_value_t = 10)]
    seconds: u32,
    /// Command that starts our broker; {port} and {data} are filled in
    #[arg(long, default_value = OURS)]
    command: String,
    /// A broker that runs already: TITLE,URI,PID. May be repeated
    #[arg(long, value_name = "PEER")]
    peer: Vec<Peer>,
    /// Measure only the peers
    #[arg(long)]
    peers_only: bool,
    /// The load tool [default: target/release/leveret, built first]
    #[arg(long)]
    tool: Option<PathBuf>,
    /// The Go load program with its modes s1, s2 and s3 [default: those are left out]
    #[arg(long, env = "GOBENCH")]
    gobench: Option<PathBuf>,
    /// Length of publishing in K1
    #[arg(long, default_value_t = 20)]
    backlog_seconds: u32,
    /// Numbers of queues in P; all of the reference are 1,2,3,5,10,15,20,30
    #[arg(long, value_delimiter = ',', default_values_t = [1, 5, 30])]
    queues: Vec<u32>,
    /// Millions of messages at the end of `growth`
    #[arg(long, default_value_t = 20)]
    millions: u64,
    /// Each sync of our broker takes so much longer, such as 5ms; needs a C compiler
    #[arg(long, value_parser = slow::parse_delay)]
    sync_delay: Option<Duration>,
    /// Write all runs as JSON lines, and every second of K1
    #[arg(long)]
    json: Option<PathBuf>,
    /// Draw rate and memory of every second of K1 and its variants into an SVG file
    #[arg(long)]
    plot: Option<PathBuf>,
}

const OURS: &str = "target/release/leveret serve --until-eof --listen 127.0.0.1:{port} \
    --data-dir {data} --management-tcp-port 0 --prometheus-tcp-port 0";

/// What is measured. The names are those of the reference measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, clap::ValueEnum)]
pub(crate) enum Workload {
    /// Start-up time, memory and CPU of an idle broker
    M,
    /// Memory per idle connection
    Connections,
    /// Memory per idle queue
    Queues,
    /// One producer, one auto-ack consumer, transient, 16 bytes
    K2Small,
    /// The same with 1 KiB
    K2Large,
    /// One producer, no consumer, 100,000 transient messages of 1 KiB
    S1,
    /// One message per millisecond, one auto-ack consumer
    S3,
    /// A backlog of persistent messages of 1 KB, published with confirms, then consumed with acks
    K1,
    /// K1 in a thousand queues
    K1Queues,
    /// K1 with its first message unacked all the time
    K1Unacked,
    /// A stopped consumer among a thousand live queues
    K1Stopped,
    /// Memory of one million stored messages of 16 bytes, and of many
    Growth,
    /// Memory of the process beside what the broker counts
    Resident,
    /// Persistent messages of 1500 bytes on several queues, under each confirm rule
    P,
    /// One persistent message at a time: how long a confirm takes
    Sync,
    /// Latency of messages of 1 KiB at 80 % of the highest rate
    P99,
    /// One queue, with the broker on one core and on two
    Cores,
    /// 1 KiB, 1 to 1, beside 10,000 idle queues
    BesideQueues,
    /// The same beside 10,000 idle connections
    BesideConnections,
    /// Lists of 10,000 queues, and 1 KiB, 1 to 1, while somebody asks for them each second
    Api,
    /// 64 KiB through a plain TCP relay, whose CPU the broker's is compared with
    Relay,
    /// From the start after a kill to a queue with its million messages, and to 100,000 queues
    Recovery,
    /// S1 by the Go client
    GoS1,
    /// The Go client with a consumer
    GoS2,
    /// S3 by the Go client
    GoS3,
}

impl Workload {
    const ALL: [Self; 25] = [
        Self::M,
        Self::Connections,
        Self::Queues,
        Self::K2Small,
        Self::K2Large,
        Self::S1,
        Self::S3,
        Self::K1,
        Self::K1Queues,
        Self::K1Unacked,
        Self::K1Stopped,
        Self::Growth,
        Self::Resident,
        Self::P,
        Self::Sync,
        Self::P99,
        Self::Cores,
        Self::BesideQueues,
        Self::BesideConnections,
        Self::Api,
        Self::Relay,
        Self::Recovery,
        Self::GoS1,
        Self::GoS2,
        Self::GoS3,
    ];

    fn title(self) -> &'static str {
        match self {
            Self::M => "idle broker",
            Self::Connections => "1000 idle connections",
            Self::Queues => "1000 idle queues",
            Self::K2Small => "K2, 16 B, 1 to 1, auto-ack, transient",
            Self::K2Large => "K2, 1 KiB, 1 to 1, auto-ack, transient",
            Self::S1 => "S1, 1 KiB, publish only, 100,000",
            Self::S3 => "S3, one message per ms",
            Self::K1 => "K1, backlog of persistent messages of 1 KB",
            Self::K1Queues => "K1 in 1,000 queues",
            Self::K1Unacked => "K1 with its first message unacked",
            Self::K1Stopped => "a stopped consumer among 1,000 live queues, 1 KB",
            Self::Growth => "growth of a backlog of persistent messages of 16 B",
            Self::Resident => "memory of the process beside what is counted",
            Self::P => "P, 2 producers and 3 consumers per queue, persistent, 1500 B",
            Self::Sync => "one persistent message of 1 KB at a time",
            Self::P99 => "latency at 80 % of the highest rate, 1 KiB",
            Self::Cores => "one queue on one core and on two",
            Self::BesideQueues => "1 KiB, 1 to 1, beside 10,000 idle queues",
            Self::BesideConnections => "1 KiB, 1 to 1, beside 10,000 idle connections",
            Self::Api => "10,000 queues in the management API",
            Self::Relay => "64 KiB, prefetch 50, through a plain TCP relay",
            Self::Recovery => "start after a kill",
            Self::GoS1 => "S1 by the Go client",
            Self::GoS2 => "S2 by the Go client",
            Self::GoS3 => "S3 by the Go client",
        }
    }

    fn needs_go(self) -> bool {
        matches!(self, Self::GoS1 | Self::GoS2 | Self::GoS3)
    }

    /// Whether the broker is started again in the middle, or asked what only ours tells. Not for peers.
    fn is_ours_alone(self) -> bool {
        matches!(self, Self::Recovery | Self::Resident | Self::Cores | Self::Api)
    }
}

/// Measures, and prints the table to stdout. Progress goes to stderr.
pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    let tool = match &args.tool {
        Some(tool) => tool.clone(),
        None => build()?,
    };
    let mut workloads =
        if args.workloads.is_empty() { Workload::ALL.to_vec() } else { args.workloads.clone() };
    if args.gobench.is_none() {
        workloads.retain(|workload| !workload.needs_go());
    }
    if args.peers_only && args.peer.is_empty() {
        bail!("--peers-only needs a --peer");
    }
    let mut targets = Vec::new();
    if !args.peers_only {
        let slow = args.sync_delay.map(SlowDisk::new).transpose()?;
        targets.push(Target::ours(&args.command, slow));
    }
    targets.extend(args.peer.iter().cloned().map(Target::running));
    let mut bench = Bench::new(tool, args);
    for target in &mut targets {
        for workload in &workloads {
            if workload.is_ours_alone() && target.is_peer() {
                continue;
            }
            bench
                .measure(target, *workload)
                .with_context(|| format!("{} on {}", workload.title(), target.title()))?;
        }
        target.stop();
    }
    if let Some(path) = &args.json {
        std::fs::write(path, bench.json_lines())
            .with_context(|| format!("writing {}", path.display()))?;
    }
    if let Some(path) = &args.plot {
        plot::write(bench.lines(), path)?;
    }
    let titles: Vec<&str> = targets.iter().map(Target::title).collect();
    table::print(&titles, &workloads, &bench)
}

/// Builds the release binary and gives its place.
fn build() -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = std::process::Command::new(cargo)
        .args(["build", "--release", "--package", "leveret"])
        .status()
        .context("running cargo")?;
    if !built.success() {
        bail!("the release build failed");
    }
    Ok("target/release/leveret".into())
}
