//! Processes that are killed, stopped and not heard.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::process::Signal;

use super::{AWAY, Bed};
use crate::cluster::member::Member;
use crate::cluster::net::{Endpoint, Net};

/// How long a node stands still.
const STILL: Duration = Duration::from_secs(10);

pub(super) fn leader_killed(bed: &mut Bed<'_>, name: &str) -> anyhow::Result<()> {
    let leader = bed.leader()?;
    bed.fault(name, &[leader])?;
    kill_and_start(bed, &[leader])
}

pub(super) fn follower_killed(bed: &mut Bed<'_>, name: &str) -> anyhow::Result<()> {
    let follower = bed.follower()?;
    bed.fault(name, &[follower])?;
    kill_and_start(bed, &[follower])
}

pub(super) fn two_killed(bed: &mut Bed<'_>, name: &str) -> anyhow::Result<()> {
    let leader = bed.leader()?;
    let second = bed.other_than(&[leader]);
    bed.fault(name, &[leader, second])?;
    kill_and_start(bed, &[leader, second])
}

pub(super) fn two_followers_killed(bed: &mut Bed<'_>, name: &str) -> anyhow::Result<()> {
    let first = bed.follower()?;
    let leader = bed.leader()?;
    let second = bed.other_than(&[leader, first]);
    bed.fault(name, &[first, second])?;
    kill_and_start(bed, &[first, second])
}

/// Kills these, sees that the others go on if they are most of them, and starts these again.
fn kill_and_start(bed: &mut Bed<'_>, numbers: &[usize]) -> anyhow::Result<()> {
    for number in numbers {
        bed.members[*number].kill()?;
    }
    bed.settle_if_most(numbers)?;
    sleep(AWAY);
    numbers.iter().try_for_each(|number| bed.members[*number].start())?;
    numbers.iter().try_for_each(|number| bed.members[*number].await_ready())?;
    bed.settle()
}

pub(super) fn leader_stopped(bed: &mut Bed<'_>, name: &str) -> anyhow::Result<()> {
    let leader = bed.leader()?;
    bed.fault(name, &[leader])?;
    stop_and_go_on(bed, &[leader])
}

pub(super) fn follower_stopped(bed: &mut Bed<'_>, name: &str) -> anyhow::Result<()> {
    let follower = bed.follower()?;
    bed.fault(name, &[follower])?;
    stop_and_go_on(bed, &[follower])
}

pub(super) fn two_stopped(bed: &mut Bed<'_>, name: &str) -> anyhow::Result<()> {
    let leader = bed.leader()?;
    let second = bed.other_than(&[leader]);
    bed.fault(name, &[leader, second])?;
    stop_and_go_on(bed, &[leader, second])
}

/// Lets these stand still, sees that the others go on if they are most of them, and lets these go on.
fn stop_and_go_on(bed: &mut Bed<'_>, numbers: &[usize]) -> anyhow::Result<()> {
    numbers.iter().try_for_each(|number| bed.members[*number].signal(Signal::STOP))?;
    sleep(STILL);
    bed.settle_if_most(numbers)?;
    numbers.iter().try_for_each(|number| bed.members[*number].signal(Signal::CONT))?;
    bed.settle()
}

pub(super) fn leader_cut(
    bed: &mut Bed<'_>,
    name: &str,
    cut: fn(&mut Net, usize) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let leader = bed.leader()?;
    cut_and_heal(bed, name, leader, cut)
}

pub(super) fn follower_cut(bed: &mut Bed<'_>, name: &str) -> anyhow::Result<()> {
    let follower = bed.follower()?;
    cut_and_heal(bed, name, follower, Net::cut_off)
}

/// Cuts the node off, sees that the others go on, and heals the links.
fn cut_and_heal(
    bed: &mut Bed<'_>,
    name: &str,
    number: usize,
    cut: fn(&mut Net, usize) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    bed.fault(name, &[number])?;
    cut(bed.net()?, number)?;
    sleep(2 * AWAY);
    bed.settle_without(&[number])?;
    bed.net()?.heal()?;
    bed.settle()
}

pub(super) fn two_cut_off(bed: &mut Bed<'_>, name: &str) -> anyhow::Result<()> {
    let leader = bed.leader()?;
    let second = bed.other_than(&[leader]);
    let two = [leader, second];
    bed.fault(name, &two)?;
    let others: Vec<_> = (0..bed.members.len()).filter(|it| !two.contains(it)).collect();
    let net = bed.net()?;
    for (one, other) in two.iter().flat_map(|one| others.iter().map(move |other| (*one, *other))) {
        net.cut(Endpoint::Node(one), Endpoint::Node(other))?;
        net.cut(Endpoint::Node(other), Endpoint::Node(one))?;
    }
    sleep(2 * AWAY);
    // The others are most of them.
    bed.settle_without(&two)?;
    bed.net()?.heal()?;
    bed.settle()
}

/// Cuts a node off from the others and from clients.
pub(super) fn vanish(net: &mut Net, number: usize) -> anyhow::Result<()> {
    net.cut_off(number)?;
    net.cut(Endpoint::Node(number), Endpoint::Clients)?;
    net.cut(Endpoint::Clients, Endpoint::Node(number))
}

pub(super) fn all_killed(bed: &mut Bed<'_>, name: &str) -> anyhow::Result<()> {
    bed.fault(name, &[])?;
    // All signals first: nobody sees another one go and lives on.
    bed.members.iter().try_for_each(|it| it.signal(Signal::KILL))?;
    for member in bed.members.iter_mut() {
        member.await_end()?;
    }
    let first = bed.chance.below(bed.members.len() as u64) as usize;
    for place in 0..bed.members.len() {
        let number = (first + place) % bed.members.len();
        bed.members[number].start()?;
        sleep(Duration::from_millis(bed.chance.below(1000)));
    }
    bed.members.iter_mut().try_for_each(Member::await_ready)?;
    bed.settle()
}

/// All are told to stop at once, as by a machine room that is switched off in good order, and started again from the last to the first.
pub(super) fn all_stopped(bed: &mut Bed<'_>, name: &str) -> anyhow::Result<()> {
    bed.fault(name, &[])?;
    bed.members.iter().try_for_each(|it| it.signal(Signal::TERM))?;
    for member in bed.members.iter_mut() {
        member.await_good_end()?;
    }
    let started = Instant::now();
    bed.members.iter_mut().rev().try_for_each(Member::start)?;
    // Ten seconds are promised; a busy machine keeps the bound of this.
    let leader = bed.leader()?;
    println!("   a cluster after {:.1} s; node {leader} leads", started.elapsed().as_secs_f64());
    bed.members.iter_mut().try_for_each(Member::await_ready)?;
    bed.settle()
}

pub(super) fn rolling_restart(bed: &mut Bed<'_>, name: &str) -> anyhow::Result<()> {
    for number in 0..bed.members.len() {
        bed.fault(name, &[number])?;
        bed.members[number].stop().context("a stop in good order")?;
        bed.start(number)?;
        bed.settle()?;
    }
    Ok(())
}
