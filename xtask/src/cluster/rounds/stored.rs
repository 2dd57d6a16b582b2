//! What nodes have stored: it is lost, it is too old, there is no room for it.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use rustix::process::Signal;

use super::{AWAY, Bed, CAUGHT_UP, ELECTION};

/// How long a node is away until the others keep no more what it lacks. Publishers send a megabyte a second, and much of it is soon acked.
const LONG_AWAY: Duration = Duration::from_secs(20);
/// How long a disk is full.
const FULL: Duration = Duration::from_secs(8);

pub(super) fn follower_away(bed: &mut Bed<'_>, name: &str) -> anyhow::Result<()> {
    let follower = bed.follower()?;
    bed.fault(name, &[follower])?;
    bed.members[follower].kill()?;
    sleep(LONG_AWAY);
    bed.settle_without(&[follower])?;
    come_back(bed, follower)
}

/// Starts a node that lacks much, and waits until it has all.
fn come_back(bed: &mut Bed<'_>, number: usize) -> anyhow::Result<()> {
    bed.start(number)?;
    bed.settle()?;
    bed.await_complete(number, CAUGHT_UP)
}

pub(super) fn follower_lost_files(bed: &mut Bed<'_>, name: &str) -> anyhow::Result<()> {
    let follower = bed.follower()?;
    let lost = ["names", "shards"][bed.chance.below(2) as usize];
    bed.fault(name, &[follower])?;
    bed.members[follower].kill()?;
    bed.members[follower].lose(lost)?;
    come_back(bed, follower)
}

pub(super) fn follower_replaced(bed: &mut Bed<'_>, name: &str) -> anyhow::Result<()> {
    let follower = bed.follower()?;
    bed.fault(name, &[follower])?;
    replace(bed, follower)
}

pub(super) fn leader_replaced(bed: &mut Bed<'_>, name: &str) -> anyhow::Result<()> {
    let leader = bed.leader()?;
    bed.fault(name, &[leader])?;
    replace(bed, leader)
}

/// A node dies with its disk. The others are told to forget it, and it comes with a new disk under its name.
fn replace(bed: &mut Bed<'_>, number: usize) -> anyhow::Result<()> {
    bed.members[number].kill()?;
    bed.members[number].lose_data()?;
    bed.settle_without(&[number])?;
    let (name, deadline) = (bed.members[number].name(), Instant::now() + ELECTION);
    // It is refused while the links with the node that died are still there.
    while let Err(error) = bed.members[bed.leader()?].ask(&["-q", "forget_cluster_node", &name]) {
        ensure!(Instant::now() < deadline, "{error:#}");
        sleep(Duration::from_millis(500));
    }
    bed.members[number].forget_data()?;
    come_back(bed, number)
}

pub(super) fn follower_disk_full(bed: &mut Bed<'_>, name: &str) -> anyhow::Result<()> {
    let follower = bed.follower()?;
    bed.fault(name, &[follower])?;
    fill_and_empty(bed, follower)
}

pub(super) fn leader_disk_full(bed: &mut Bed<'_>, name: &str) -> anyhow::Result<()> {
    let leader = bed.leader()?;
    bed.fault(name, &[leader])?;
    fill_and_empty(bed, leader)
}

/// The others go on while a disk is full; the node comes back by itself, or it has ended and is started again.
fn fill_and_empty(bed: &mut Bed<'_>, number: usize) -> anyhow::Result<()> {
    let end = Instant::now() + FULL;
    while Instant::now() < end {
        bed.members[number].disk()?.fill()?;
        sleep(Duration::from_millis(100));
    }
    let going_on = bed.settle_without(&[number]);
    bed.members[number].disk()?.empty()?;
    going_on?;
    sleep(AWAY);
    if let Some(status) = bed.members[number].has_ended()? {
        println!("   node {number} ended with {status}");
        bed.members[number].await_end()?;
        bed.start(number)?;
    }
    bed.settle()?;
    bed.await_complete(number, CAUGHT_UP)
}

pub(super) fn follower_wiped(bed: &mut Bed<'_>, name: &str) -> anyhow::Result<()> {
    let follower = bed.follower()?;
    bed.fault(name, &[follower])?;
    bed.members[follower].kill()?;
    bed.members[follower].lose_data()?;
    let before = bed.members[follower].logged().len();
    bed.members[follower].start()?;
    let deadline = Instant::now() + ELECTION;
    // Either it ends, or it stays without the others; both with a reason.
    let said = loop {
        let said = bed.members[follower].logged().split_off(before);
        if said.lines().any(|line| REFUSALS.iter().any(|it| line.contains(it))) {
            break said;
        }
        if Instant::now() > deadline {
            bail!("node {follower} says nothing of why it is not a part of the cluster:\n{said}");
        }
        sleep(Duration::from_millis(50));
    };
    println!(
        "   {}",
        said.lines().find(|line| REFUSALS.iter().any(|it| line.contains(it))).unwrap_or_default()
    );
    if bed.members[follower].has_ended()?.is_none() {
        bed.members[follower].signal(Signal::KILL)?;
    }
    bed.members[follower].await_end()?;
    bed.members[follower].find_data()?;
    ensure!(fs::exists(bed.members[follower].data_dir())?, "its data is not back");
    bed.start(follower)?;
    bed.settle()
}

/// What a node with an empty disk says when the others are a cluster that knows its name.
const REFUSALS: [&str; 2] = ["forget_cluster_node", "is refused"];
