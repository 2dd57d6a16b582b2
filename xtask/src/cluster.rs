//! `cargo xtask cluster`: real processes of the program, in networks of their own, that are killed, stopped and cut off from each other under traffic.
//!
//! ```text
//!   rounds --faults--> members (processes) in net (namespaces, a bridge)
//!      \                  ^
//!       \--told--> traffic (leveret perf experiment failover): the account of every message
//! ```

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use clap::{Args, ValueEnum};

use crate::node;
use crate::root;
use crate::steps::{Count, cargo, succeed};

mod broker;
mod chance;
mod disk;
mod member;
mod net;
mod report;
mod rounds;
mod traffic;

use broker::Broker;
use chance::Chance;
use disk::Disk;
use member::{Member, Site};
use net::Net;
use report::Played;
use rounds::{ALL, Bed, Need, Nodes, Round};
use traffic::{Load, Traffic};

/// How long the first clients may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long nothing happens before the first fault: the pauses of that time are what those of faults stand beside.
const UNDISTURBED: Duration = Duration::from_secs(2);
/// Rounds of the tests that need small disks, or little that is kept.
const SMALL: [&str; 1] = ["leader-disk-full"];
/// Rounds of the tests in which all sessions are on the node that leads.
const RELAYED: [&str; 3] = ["leader-killed", "leader-stopped", "rolling-restart"];
/// MiB of a log that are let go of soon: what a node lacks that was away for `follower-away` is more.
const LITTLE_KEPT: u64 = 4;

/// Arguments of `cargo xtask cluster`.
#[derive(Args)]
pub(crate) struct ClusterArgs {
    /// Say what rounds there are
    #[arg(long)]
    list: bool,
    /// Only rounds of this name; may be repeated
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// How many rounds of a cluster [default: each kind once]
    #[arg(long, value_name = "N", conflicts_with = "minutes")]
    rounds: Option<usize>,
    /// As many rounds of a cluster as begin within this time
    #[arg(long, value_name = "M")]
    minutes: Option<f64>,
    /// What decides the order of the rounds and which nodes they hit
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The nodes of the cluster
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(3..=9))]
    nodes: u8,
    /// Messages that lie in a queue of their own while nodes fail, and are read in the end
    #[arg(long, value_name = "N", default_value_t = 0)]
    backlog: u64,
    /// Bytes of a message of the backlog, or a range of them
    #[arg(long, value_name = "BYTES[-BYTES]", default_value = "16-1024")]
    backlog_size: String,
    /// Each node has a disk of so many MiB, in memory, that can be filled; needs root
    #[arg(long, value_name = "MIB", conflicts_with = "backlog", value_parser = clap::value_parser!(u64).range(128..))]
    disk: Option<u64>,
    /// MiB of each log that the node that leads keeps for those that are away [default: the program's]
    #[arg(long, value_name = "MIB")]
    kept: Option<u64>,
    /// Where the sessions of clients are: cluster.sessions
    #[arg(long, value_name = "WHERE", default_value = "own")]
    sessions: Sessions,
    /// The same rounds on another broker, too
    #[arg(long, value_name = "BROKER")]
    beside: Option<Beside>,
    /// In place of rounds: what a message costs and how long it takes, by where clients are
    #[arg(long, conflicts_with_all = ["only", "rounds", "minutes", "backlog", "disk"])]
    costs: bool,
    /// Seconds of each run with one message per millisecond
    #[arg(long, value_name = "N", default_value_t = 20, requires = "costs")]
    seconds: u32,
    /// Messages of each run without a rate
    #[arg(long, value_name = "N", default_value_t = 200_000, requires = "costs")]
    messages: u64,
    /// Where the report goes; the JSON is beside it [default: target/cluster/report.md]
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// With the release build instead of the debug build, which checks more
    #[arg(long)]
    release: bool,
    /// Another program instead of a build of this one
    #[arg(long, value_name = "FILE", conflicts_with = "release")]
    program: Option<PathBuf>,
    /// Without namespaces: on ports of this machine, without rounds that cut links
    #[arg(long, conflicts_with = "beside")]
    here: bool,
    #[arg(skip)]
    is_test: bool,
}

/// A broker to stand beside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Beside {
    /// Debian's rabbitmq-server, with quorum queues
    Rabbitmq,
}

/// Where sessions are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Sessions {
    /// On the node that leads, to which the others relay their clients
    Relayed,
    /// On the node that the client is connected to
    Own,
}

impl Sessions {
    /// As the configuration says it.
    fn name(self) -> &'static str {
        match self {
            Self::Relayed => "relayed",
            Self::Own => "own",
        }
    }
}

impl ClusterArgs {
    /// Rounds that are a part of every run of the tests, each kind once.
    fn short() -> Self {
        Self {
            list: false,
            only: Vec::new(),
            rounds: None,
            minutes: None,
            seed: 1,
            nodes: 3,
            backlog: 0,
            backlog_size: "16-1024".to_owned(),
            disk: None,
            kept: None,
            sessions: Sessions::Own,
            beside: None,
            costs: false,
            seconds: 0,
            messages: 0,
            report: None,
            release: false,
            program: None,
            here: false,
            is_test: true,
        }
    }

    /// Whether a round is wanted where nobody lacks what it needs.
    fn wants(&self, round: &Round) -> bool {
        let is_named = self.only.iter().any(|it| it == round.name);
        let is_usual = match round.played {
            rounds::Played::Always => true,
            rounds::Played::Here => !self.is_test,
        };
        is_named || (self.only.is_empty() && is_usual)
    }
}

/// The rounds of every run of the tests; those of small disks have nodes of their own, as the others are to wait for a real disk.
pub(crate) fn counted() -> anyhow::Result<Count> {
    let mut count = run(&ClusterArgs::short())?;
    if count.failed == 0 {
        let (sessions, only) = (Sessions::Relayed, RELAYED.map(str::to_owned).to_vec());
        count += run(&ClusterArgs { sessions, only, ..ClusterArgs::short() })?;
    }
    if !Disk::is_possible() {
        println!("left out, as small disks can be mounted by root alone: {}", SMALL.join(", "));
        count.left_out += SMALL.len() as u64;
    } else if count.failed == 0 {
        let only = SMALL.map(str::to_owned).to_vec();
        count +=
            run(&ClusterArgs { disk: Some(256), kept: Some(1), only, ..ClusterArgs::short() })?;
    }
    Ok(count)
}

/// Runs rounds; each, and each account, is one thing that passes or fails. Those on another broker do not count.
pub(crate) fn run(args: &ClusterArgs) -> anyhow::Result<Count> {
    if args.list {
        ALL.iter().for_each(|it| println!("{:<20} {}", it.name, it.what));
        return Ok(Count::default());
    }
    for name in &args.only {
        let names = ALL.each_ref().map(|it| it.name);
        ensure!(names.contains(&&**name), "no round '{name}'; there are {}", names.join(", "));
    }
    let program = program(args)?;
    let _lock = net::alone()?;
    let is_apart = !args.here
        && match Net::is_possible() {
            Ok(()) => true,
            Err(why) => {
                ensure!(args.beside.is_none(), "another broker has to be in namespaces: {why}");
                println!("no namespaces, so no links are cut: {why}");
                false
            }
        };
    let (kept_mib, sessions) = (args.kept, args.sessions.name());
    let ours = Broker::Leveret { program: program.clone(), kept_mib, sessions };
    let other = args.beside.map(|Beside::Rabbitmq| Broker::rabbitmq()).transpose()?;
    let (mut total, mut all) = (Count::default(), Vec::new());
    for (broker, nodes) in
        [(Some(&ours), 1), (Some(&ours), args.nodes), (other.as_ref(), args.nodes)]
    {
        let Some(broker) = broker else { continue };
        let scene = Scene { args, program: &program, broker, nodes: nodes.into(), is_apart };
        if args.costs {
            total += scene.costs()?;
            continue;
        }
        let (kinds, left_out) = scene.kinds();
        total.left_out += left_out;
        if kinds.is_empty() {
            continue;
        }
        let (count, played) = scene.play(&kinds)?;
        if broker.is_rabbitmq() {
            println!("{}: {count}; they do not count", broker.title());
        } else {
            total += count;
        }
        // What a node alone does is no part of what nodes together do.
        if nodes > 1 {
            all.push(played);
        }
    }
    if !all.is_empty() {
        let path = args.report.clone().unwrap_or_else(|| root().join("target/cluster/report.md"));
        let command = std::env::args().skip(1).collect::<Vec<_>>().join(" ");
        report::write(&path, &format!("cargo xtask {command}"), &all)?;
    }
    println!("{total}");
    Ok(total)
}

/// Builds what is run.
fn program(args: &ClusterArgs) -> anyhow::Result<PathBuf> {
    if let Some(program) = &args.program {
        return Ok(std::path::absolute(program)?);
    }
    if args.release {
        node::build()?;
        return Ok(node::program().get_program().into());
    }
    succeed(&mut cargo(&["build", "--quiet", "--package", "leveret"]))?;
    Ok(root().join("target/debug/leveret"))
}

/// What is played: on which nodes of which broker.
struct Scene<'a> {
    args: &'a ClusterArgs,
    /// Sends the traffic.
    program: &'a Path,
    broker: &'a Broker,
    nodes: usize,
    /// Whether each node has a namespace of its own.
    is_apart: bool,
}

impl Scene<'_> {
    fn has(&self, need: Need) -> bool {
        match need {
            Need::Cuts => self.is_apart,
            Need::SmallDisks => self.args.disk.is_some(),
            // Files of RabbitMQ's quorum queues are truncated by its own rules.
            Need::LittleKept => {
                self.broker.is_rabbitmq() || self.args.kept.is_some_and(|it| it <= LITTLE_KEPT)
            }
            Need::Ours => !self.broker.is_rabbitmq(),
        }
    }

    /// The kinds of rounds that are wanted, and can be played here; how many others root could play.
    fn kinds(&self) -> (Vec<&'static Round>, u64) {
        let is_for = |it: &&Round| match it.nodes {
            Nodes::Alone => self.nodes == 1,
            Nodes::Cluster => self.nodes > 1,
            Nodes::Five => self.nodes >= 5,
        };
        let (mut kinds, mut left_out) = (Vec::new(), 0);
        for round in ALL.iter().filter(is_for).filter(|it| self.args.wants(it)) {
            match round.needs.iter().find(|it| !self.has(**it)) {
                Some(need) => {
                    println!("{} is left out: {}", round.name, need.missing());
                    left_out += u64::from(*need == Need::Cuts && !self.args.here);
                }
                None => kinds.push(round),
            }
        }
        (kinds, left_out)
    }

    /// Plays rounds of these kinds: what passed, and what is to be told of it.
    fn play(&self, kinds: &[&'static Round]) -> anyhow::Result<(Count, Played)> {
        self.on_nodes(|dir, members, net| {
            let done = self.rounds(dir, members, net, kinds);
            if !matches!(done, Ok((Count { failed: 0, .. }, _))) {
                members.iter().for_each(Member::show);
            }
            done
        })
    }

    /// Does something with nodes that are up, and are a cluster if they are several.
    fn on_nodes<T>(
        &self,
        work: impl FnOnce(&Path, &mut [Member], Option<&mut Net>) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        println!("{}, nodes: {}", self.broker.title(), self.nodes);
        let name = if self.nodes == 1 { "alone" } else { self.broker.name() };
        let dir = root().join("target/cluster").join(name);
        std::fs::create_dir_all(&dir)?;
        self.ensure_room(&dir)?;
        // Members go before the network they are in.
        let mut net = if self.is_apart { Some(Net::make(self.nodes)?) } else { None };
        let site = |number| if self.is_apart { Ok(Site::apart(number)) } else { Site::here() };
        let sites = (0..self.nodes).map(site).collect::<anyhow::Result<Vec<_>>>()?;
        let mut members = (0..self.nodes)
            .map(|number| Member::new(number, self.broker, &dir, &sites, self.args.disk))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let formed = Instant::now();
        let up = members.iter_mut().try_for_each(Member::start);
        let up = up.and_then(|()| members.iter_mut().try_for_each(Member::await_ready));
        if let Err(error) = up {
            members.iter().for_each(Member::show);
            return Err(error);
        }
        if self.nodes > 1 && !self.broker.is_rabbitmq() {
            let leader = rounds::leader(&members)?;
            let took_s = formed.elapsed().as_secs_f64();
            println!("a cluster after {took_s:.1} s; node {leader} leads");
        }
        work(&dir, &mut members, net.as_mut())
    }

    /// What a message costs, by where its clients are.
    fn costs(&self) -> anyhow::Result<Count> {
        self.on_nodes(|dir, members, _| {
            let mut command = Command::new(self.program);
            command.args(["perf", "experiment", "cluster", "--title", &self.broker.title()]);
            for member in members.iter() {
                let pid = member.pid().context("a node is down")?;
                command.args(["--node", &member.uri(), "--pid", &pid.to_string()]);
            }
            // What nobody leads yet is led where it is declared.
            let leader = if self.broker.is_rabbitmq() || self.nodes == 1 {
                0
            } else {
                rounds::leader(members)?
            };
            command.args(["--leader", &leader.to_string()]);
            command.args(["--seconds", &self.args.seconds.to_string()]);
            command.args(["--messages", &self.args.messages.to_string()]);
            if let Some(kind) = self.broker.queue_type() {
                command.args(["--queue-type", kind]);
            }
            command.arg("--json").arg(dir.join("costs.json"));
            command.arg("--markdown").arg(dir.join("costs.md"));
            let passed = succeed(&mut command);
            if let Err(error) = &passed {
                println!("{error:#}");
                members.iter().for_each(Member::show);
            }
            Ok(Count::of(passed.is_ok()))
        })
    }

    /// The backlog lies on all nodes, and these are on one disk.
    fn ensure_room(&self, dir: &Path) -> anyhow::Result<()> {
        let most = self.args.backlog_size.rsplit('-').next().unwrap_or_default();
        let most: u64 = most.parse().context("the bytes of --backlog-size")?;
        // What a record has besides, and what files hold besides.
        let needed = self.args.backlog * (most + 100) * self.nodes as u64 / 10 * 13;
        let free = rustix::fs::statvfs(dir)?;
        let free = free.f_bavail * free.f_frsize;
        ensure!(
            needed < free,
            "a backlog of {} messages takes up to {} GB on {} nodes, and {} GB are free: see --backlog-size",
            self.args.backlog,
            needed / 1_000_000_000,
            self.nodes,
            free / 1_000_000_000
        );
        Ok(())
    }

    fn rounds(
        &self,
        dir: &Path,
        members: &mut [Member],
        mut net: Option<&mut Net>,
        kinds: &[&'static Round],
    ) -> anyhow::Result<(Count, Played)> {
        let uris: Vec<_> = members.iter().map(|it| it.uri()).collect();
        // A node alone is given several publishers and consumers all the same.
        let uris = if uris.len() == 1 { vec![uris[0].clone(); 3] } else { uris };
        let load = Load {
            program: self.program,
            uris: &uris,
            queue_type: self.broker.queue_type(),
            backlog: if self.nodes > 1 { self.args.backlog } else { 0 },
            backlog_size: &self.args.backlog_size,
            seed: self.args.seed,
        };
        let mut traffic = Traffic::start(&load, dir)?;
        traffic.settle(PATIENCE, &[])?;
        std::thread::sleep(UNDISTURBED);
        let mut chance = Chance(self.args.seed);
        let (mut total, mut played) = (Count::default(), Vec::new());
        let began = Instant::now();
        let mut waiting: Vec<&Round> = Vec::new();
        while !self.is_enough(began, played.len(), kinds.len()) {
            if waiting.is_empty() {
                waiting = kinds.to_vec();
                chance.shuffle(&mut waiting);
            }
            let Some(round) = waiting.pop() else { bail!("there are no rounds") };
            let mut bed = Bed {
                members,
                net: net.as_deref_mut(),
                traffic: &mut traffic,
                chance: &mut chance,
            };
            let since = Instant::now();
            let failure = (round.run)(&mut bed, round.name).err().map(|it| format!("{it:#}"));
            let seconds = since.elapsed().as_secs_f64();
            println!(
                "{:>4}  {:<20} {seconds:>6.1} s  {}",
                played.len() + 1,
                round.name,
                failure
                    .as_ref()
                    .map_or_else(|| "passed".to_owned(), |why| format!("FAILED: {why}"))
            );
            total += Count::of(failure.is_none());
            let is_over = failure.is_some();
            played.push((round.name, seconds, failure));
            if is_over {
                // Nothing is known of the nodes any more; what the account says is worth having.
                break;
            }
        }
        let is_right = traffic.end()?;
        total += Count::of(is_right);
        for (number, member) in members.iter_mut().enumerate() {
            for line in member.complaints() {
                println!("node {number} said: {line}");
                total += Count::of(false);
            }
            if member.is_up() && total.failed == 0 {
                member.stop()?;
            }
        }
        let told = std::fs::read_to_string(dir.join("traffic.json")).unwrap_or_default();
        let traffic = serde_json::from_str(&told).unwrap_or_default();
        let sessions = (!self.broker.is_rabbitmq()).then_some(self.args.sessions);
        let title = self.broker.title();
        let played = Played { title, nodes: self.nodes, sessions, rounds: played, traffic };
        for line in played.felt() {
            println!("{line}");
            total += Count::of(false);
        }
        Ok((total, played))
    }

    fn is_enough(&self, began: Instant, played: usize, kinds: usize) -> bool {
        match (self.args.minutes, self.args.rounds) {
            _ if self.nodes == 1 => played >= kinds,
            (Some(minutes), _) => began.elapsed().as_secs_f64() >= minutes * 60.0,
            (_, Some(rounds)) => played >= rounds,
            (None, None) => played >= kinds,
        }
    }
}
