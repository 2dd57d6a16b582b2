//! How a node comes to life from its disks, and how it leaves in good order.

use leveret_broker::shard::Restored;
use leveret_broker::transaction::Decided;
use leveret_broker::work::Limits;
use leveret_broker::{Meta, Shard};
use leveret_log::file::match_up;
use leveret_log::{Log as _, Offset};
use leveret_queue::Time;
use leveret_session::Settings;
use leveret_topology::GroupId;

use crate::checks;
use crate::disk::{Disks, Mistake, StepDisk, Store};
use crate::node::{Node, bootstrap};
use crate::random::Random;
use crate::shadow::Check;
use crate::sim::{Agreed, Options};

/// Operations of the disks within which a node must be able to write what it has to.
const STEPS_MAX: u32 = 100_000;

/// What fills the queues of a node that was started.
#[derive(Debug)]
pub(crate) struct Filling {
    decided: Decided,
    /// By shard.
    seen_below: Vec<Offset>,
}

/// Starts a node: with what its disks have, or with nothing. Clients may come in, and its queues are not filled.
///
/// `seen_below`: what the process before left word of, by shard, if it left in good order.
pub(crate) fn start(
    Options { shards, agreed, .. }: Options,
    disks: Option<&Disks>,
    seen_below: Option<&[Offset]>,
    random: &mut Random,
    now: Time,
) -> Check<(Node<Store>, Filling)> {
    let stores = open(shards, disks, random)?;
    let mut stores = stores.into_iter();
    let names = disks.map(|disks| disks.disk(shards).clone());
    let mut wait = || names.iter().for_each(StepDisk::step);
    let own = stores.next_back().ok_or("no log of names")?;
    let recovered = Meta::recover(shards, own, &mut wait);
    let (mut meta, mut topology) = recovered.map_err(|error| format!("names: {error}"))?;
    if meta.is_new() {
        bootstrap(&mut topology);
        meta.save(&mut topology, &mut wait).map_err(|error| format!("names: {error}"))?;
    }
    topology.assert_invariants();
    let (mut actors, mut filling) =
        (Vec::new(), Filling { decided: meta.decided().clone(), seen_below: Vec::new() });
    for (index, mut store) in stores.enumerate() {
        if agreed != Agreed::AtOnce {
            let mistake = match agreed {
                Agreed::LaterButReadBefore => Mistake::ReadsEarly,
                Agreed::CutButAnsweredBefore => Mistake::AnswersEarly,
                Agreed::AtOnce | Agreed::Later | Agreed::Cut => Mistake::None,
            };
            store.agree_later(mistake, agreed.is_cut());
        }
        let mut shard = Shard::new(GroupId::at(index), shards, store);
        shard.set_limits(limits(random));
        let seen = seen_below.map_or(Some(Offset::MAX), |all| all.get(index).copied());
        let seen = seen.ok_or("a shard that nothing is known of")?;
        filling.seen_below.push(seen);
        shard.host(&topology, now);
        actors.push(shard);
    }
    let settings = Settings { shards, ..checks::settings() };
    let mut node = Node::with(settings, topology, meta, actors);
    node.begin_to_follow().map_err(|error| format!("names by changes alone: {error}"))?;
    node.is_followed()?;
    node.hold_shards();
    Ok((node, filling))
}

/// Fills the queues of a node: its shards have turns from now on. What came back, by shard.
pub(crate) fn fill(node: &mut Node<Store>, filling: &Filling) -> Vec<Restored> {
    let (mut restored, mut found) = (Vec::new(), Vec::new());
    for (index, &seen_below) in filling.seen_below.iter().enumerate() {
        let Some(shard) = node.shard_mut(index) else { continue };
        restored.push(shard.fill(&filling.decided, seen_below, &mut |_| {}));
        found.extend(shard.transactions_found());
    }
    node.begin_shards(found);
    restored
}

/// What a turn may cost: the usual, or so little that everything is cut, wherever it can be.
fn limits(random: &mut Random) -> Limits {
    match random.below(3) {
        0 => Limits { turn: 1, share: 1 },
        1 => Limits { turn: 1 + random.below(40) as u64, share: 1 + random.below(12) as u64 },
        _ => Limits { turn: 4096, share: 512 },
    }
}

/// The logs of all shards, and of names.
fn open(shards: usize, disks: Option<&Disks>, random: &mut Random) -> Check<Vec<Store>> {
    let Some(disks) = disks else {
        return Ok((0..=shards).map(|_| Store::in_memory()).collect());
    };
    let names = disks.open(shards, random)?;
    let logs: Result<Vec<_>, _> = (0..shards).map(|index| disks.open(index, random)).collect();
    let mut logs = logs?;
    match_up(&mut logs, &[]);
    Ok(logs.into_iter().chain([names]).map(Store::on_disk).collect())
}

/// Writes down what the next start has to know, as the server does at the end of a stop.
pub(crate) fn put_away(node: &mut Node<Store>, disks: &Disks) -> Check {
    let shards = disks.count() - 1;
    (0..shards).filter_map(|index| node.shard_mut(index).map(Shard::close)).count();
    for _ in 0..STEPS_MAX {
        let mut is_done = true;
        for index in 0..shards {
            node.agree(index, usize::MAX);
            let Some(shard) = node.shard_mut(index) else { continue };
            shard.sync().map_err(|error| error.to_string())?;
            is_done &= shard.is_durable();
        }
        let names = node.meta().log();
        is_done &= names.durable() == names.end();
        if is_done {
            return Ok(());
        }
        disks.all().for_each(StepDisk::step);
        node.tell_meta(leveret_broker::message::ToMeta::LogWoke);
        node.turn(crate::node::Actor::Meta, Time::from_ms(0), |all| all);
    }
    Err("a stop does not come to an end".to_owned())
}
