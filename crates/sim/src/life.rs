//! How a node comes to life from its disks.

use leveret_broker::Meta;
use leveret_broker::shard::{LateLimits, Restored};
use leveret_broker::work::Limits;
use leveret_log::file::match_up;
use leveret_log::{Offset, RecoveryLimits};
use leveret_node::KeptMax;
use leveret_node::start::{Filled, Past, host};
use leveret_queue::Time;
use leveret_topology::Homes;

use crate::checks;
use crate::disk::{Disks, Mistake, StepDisk, Store};
use crate::node::{Node, bootstrap};
use crate::random::Random;
use crate::shadow::Check;
use crate::sim::{Agreed, Options};

/// Starts a node: with what its disks have, or with nothing. Clients may come in, and its queues are not filled.
///
/// `seen_below`: what the process before left word of, by shard, if it left in good order.
pub(crate) fn start(
    Options { shards, agreed, has_links, has_second, has_command_link, .. }: Options,
    disks: Option<&Disks>,
    seen_below: Option<&[Offset]>,
    random: &mut Random,
    now: Time,
) -> Check<(Node<Store>, Past)> {
    // Homes as they always were, or by chance, others in each life: those of earlier ones are in the records.
    let seed = random.clone().next();
    let homes = Homes::among(shards as u32);
    let homes = if seed.is_multiple_of(4) { homes } else { homes.by_chance(seed) };
    let stores = open(shards, disks, random)?;
    let mut stores = stores.into_iter();
    let names = disks.map(|disks| disks.disk(shards).clone());
    let mut wait = || names.iter().for_each(StepDisk::step);
    let own = stores.next_back().ok_or("no log of names")?;
    let recovered = Meta::recover(homes, own, &mut wait);
    let (mut meta, mut topology) = recovered.map_err(|error| format!("names: {error}"))?;
    if meta.is_new() {
        bootstrap(&mut topology);
        meta.save(&mut topology, &mut wait).map_err(|error| format!("names: {error}"))?;
    }
    topology.assert_invariants();
    let (of_shards, of_names) = mistakes(agreed);
    if agreed != Agreed::AtOnce {
        meta.log_mut().agree_later(of_names, agreed.is_cut());
    }
    let past = Past::new(&meta, seen_below.map(<[Offset]>::to_vec).unwrap_or_default());
    let stores = stores.map(|mut store| {
        if agreed != Agreed::AtOnce {
            store.agree_later(of_shards, agreed.is_cut());
        }
        store
    });
    let mut actors = host(stores, &topology, false, now);
    let late = late_limits(seed);
    for shard in &mut actors {
        shard.set_limits(limits(random));
        shard.set_late_limits(late);
    }
    let mut node = Node::with(checks::settings(seed), topology, meta, actors);
    if has_links {
        // So little that it is full now and then.
        let letters = 1 + (seed >> 16) as usize % 12;
        node.link(KeptMax { letters, bytes: 1 << (8 + (seed >> 20) % 8) }, has_second);
    }
    if has_command_link {
        node.link_names(1 + (seed >> 28) % 8);
    }
    node.begin_to_follow().map_err(|error| format!("names by changes alone: {error}"))?;
    node.is_followed()?;
    node.hold_shards();
    Ok((node, past))
}

/// Fills the queues of a node: its shards have turns from now on. What came back, by shard.
pub(crate) fn fill(node: &mut Node<Store>, past: &Past) -> Vec<Restored> {
    let (mut restored, mut all) = (Vec::new(), Filled::default());
    for (index, shard) in node.shards_mut().enumerate() {
        let filled = past.fill(index, shard, &mut |_| {});
        restored.push(filled.restored.clone());
        all.add(filled);
    }
    node.begin_shards(all);
    restored
}

/// What is wrong with the logs of shards, and with that of names.
pub(crate) fn mistakes(agreed: Agreed) -> (Mistake, Mistake) {
    match agreed {
        Agreed::LaterButReadBefore => (Mistake::ReadsEarly, Mistake::None),
        Agreed::CutButAnsweredBefore => (Mistake::AnswersEarly, Mistake::CountsEarly),
        Agreed::CutButConfirmedBefore => (Mistake::CountsEarly, Mistake::None),
        Agreed::AtOnce | Agreed::Later | Agreed::Cut => (Mistake::None, Mistake::None),
    }
}

/// What a turn may cost: the usual, or so little that everything is cut, wherever it can be.
fn limits(random: &mut Random) -> Limits {
    match random.below(3) {
        0 => Limits { turn: 1, share: 1 },
        1 => Limits { turn: 1 + random.below(40) as u64, share: 1 + random.below(12) as u64 },
        _ => Limits { turn: 4096, share: 512 },
    }
}

/// Of a queue so little is there at first, and later so little comes in a turn, that most of it comes late.
fn late_limits(seed: u64) -> LateLimits {
    let limits = |records, bytes| RecoveryLimits { records, bytes };
    let enough = limits((seed >> 44) as u32 % 300, u64::MAX);
    let turn = limits(1 + (seed >> 40) as u32 % 12, 1 + (seed >> 50) % 2 * (1 << 20));
    LateLimits { first: (seed >> 33) % 6, enough, turn }
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
