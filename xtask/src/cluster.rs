//! `cargo xtask cluster`: real processes of the program, in networks of their own, that are killed, stopped and cut off from each other under traffic.
//!
//! ```text
//!   rounds --faults--> members (processes) in net (namespaces, a bridge)
//!      \                  ^
//!       \--told--> traffic (leveret perf experiment failover): the account of every message
//! ```

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use clap::Args;

use crate::node;
use crate::root;
use crate::steps::{Count, cargo, succeed};

mod chance;
mod member;
mod net;
mod rounds;
mod traffic;

use chance::Chance;
use member::{Member, Site};
use net::Net;
use rounds::{ALL, Bed, Nodes, Round};
use traffic::Traffic;

/// How long the first clients may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long nothing happens before the first fault: the pauses of that time are what those of faults stand beside.
const UNDISTURBED: Duration = Duration::from_secs(2);

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
    #[arg(long, value_name = "N", conflicts_with = "duration")]
    rounds: Option<usize>,
    /// As many rounds of a cluster as begin within this time
    #[arg(long, value_name = "SECONDS")]
    duration: Option<u64>,
    /// What decides the order of the rounds and which nodes they hit
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The nodes of the cluster
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(3..=9))]
    nodes: u8,
    /// With the release build instead of the debug build, which checks more
    #[arg(long)]
    release: bool,
    /// Another program instead of a build of this one
    #[arg(long, value_name = "FILE", conflicts_with = "release")]
    program: Option<PathBuf>,
    /// Without namespaces: on ports of this machine, without rounds that cut links
    #[arg(long)]
    here: bool,
}

impl ClusterArgs {
    /// Each kind of round once: a part of every run of the tests.
    fn short() -> Self {
        Self {
            list: false,
            only: Vec::new(),
            rounds: None,
            duration: None,
            seed: 1,
            nodes: 3,
            release: false,
            program: None,
            here: false,
        }
    }
}

/// The rounds of every run of the tests.
pub(crate) fn counted() -> anyhow::Result<Count> {
    run(&ClusterArgs::short())
}

/// Runs rounds; each, and each account, is one thing that passes or fails.
pub(crate) fn run(args: &ClusterArgs) -> anyhow::Result<Count> {
    if args.list {
        ALL.iter().for_each(|it| println!("{:<18} {}", it.name, it.what));
        return Ok(Count::default());
    }
    for name in &args.only {
        let names = ALL.map(|it| it.name);
        ensure!(names.contains(&&**name), "no round '{name}'; there are {}", names.join(", "));
    }
    let program = program(args)?;
    let _lock = net::alone()?;
    let is_apart = !args.here
        && match Net::is_possible() {
            Ok(()) => true,
            Err(why) => {
                println!("no namespaces, so no links are cut: {why}");
                false
            }
        };
    let mut total = Count::default();
    for nodes in [Nodes::Alone, Nodes::Cluster] {
        let is_wanted = |it: &&Round| {
            it.nodes == nodes
                && (args.only.is_empty() || args.only.iter().any(|name| name == it.name))
        };
        let (kinds, left_out): (Vec<_>, Vec<_>) =
            ALL.iter().filter(is_wanted).partition(|it| is_apart || !it.cuts);
        left_out.iter().for_each(|it| println!("{} is left out: no links can be cut", it.name));
        if !kinds.is_empty() {
            total += of_bed(args, &program, nodes, is_apart, &kinds)?;
        }
    }
    println!("{} passed, {} failed", total.passed, total.failed);
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

/// The rounds of one set of nodes, and the account of their messages.
fn of_bed(
    args: &ClusterArgs,
    program: &Path,
    nodes: Nodes,
    is_apart: bool,
    kinds: &[&Round],
) -> anyhow::Result<Count> {
    let (count, name) = match nodes {
        Nodes::Alone => (1, "alone"),
        Nodes::Cluster => (usize::from(args.nodes), "cluster"),
    };
    let dir = root().join("target/cluster").join(name);
    std::fs::create_dir_all(&dir)?;
    // Members go before the network they are in.
    let mut net = if is_apart { Some(Net::make(count)?) } else { None };
    let site = |number| if is_apart { Ok(Site::apart(number)) } else { Site::here() };
    let sites = (0..count).map(site).collect::<anyhow::Result<Vec<_>>>()?;
    let mut members = (0..count)
        .map(|number| Member::new(number, program, &dir, &sites))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let done = play(args, program, nodes, &dir, &mut members, net.as_mut(), kinds);
    if !matches!(done, Ok(Count { failed: 0, .. })) {
        members.iter().for_each(Member::show);
    }
    done
}

fn play(
    args: &ClusterArgs,
    program: &Path,
    nodes: Nodes,
    dir: &Path,
    members: &mut [Member],
    mut net: Option<&mut Net>,
    kinds: &[&Round],
) -> anyhow::Result<Count> {
    members.iter_mut().try_for_each(Member::start)?;
    members.iter_mut().try_for_each(Member::await_ready)?;
    if nodes == Nodes::Cluster {
        let formed = Instant::now();
        let leader = rounds::leader(members)?;
        println!("a cluster after {:.1} s; node {leader} leads", formed.elapsed().as_secs_f64());
    }
    let uris: Vec<_> = members.iter().map(|it| it.uri()).collect();
    // A node alone is given several publishers and consumers all the same.
    let uris = if uris.len() == 1 { vec![uris[0].clone(); 3] } else { uris };
    let mut traffic = Traffic::start(program, &uris, dir, args.seed)?;
    traffic.settle(PATIENCE)?;
    std::thread::sleep(UNDISTURBED);
    let mut chance = Chance(args.seed);
    let mut total = Count::default();
    let began = Instant::now();
    let is_enough = |played: usize| match (args.duration, args.rounds) {
        _ if nodes == Nodes::Alone => played >= kinds.len(),
        (Some(seconds), _) => began.elapsed() >= Duration::from_secs(seconds),
        (_, Some(rounds)) => played >= rounds,
        (None, None) => played >= kinds.len(),
    };
    let mut waiting: Vec<&Round> = Vec::new();
    let mut played = 0;
    while !is_enough(played) {
        if waiting.is_empty() {
            waiting = kinds.to_vec();
            chance.shuffle(&mut waiting);
        }
        let Some(round) = waiting.pop() else { bail!("there are no rounds") };
        let since = Instant::now();
        let mut bed =
            Bed { members, net: net.as_deref_mut(), traffic: &mut traffic, chance: &mut chance };
        let passed = (round.run)(&mut bed, round.name);
        played += 1;
        println!(
            "{:>4}  {:<18} {:>6.1} s  {}",
            played,
            round.name,
            since.elapsed().as_secs_f64(),
            outcome(&passed)
        );
        total += Count::of(passed.is_ok());
        if passed.is_err() {
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
    Ok(total)
}

fn outcome(passed: &anyhow::Result<()>) -> String {
    match passed {
        Ok(()) => "passed".to_owned(),
        Err(error) => format!("FAILED: {error:#}"),
    }
}
