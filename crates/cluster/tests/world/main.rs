//! Nodes of a cluster in a seeded world: letters that are lost and late, links that are cut in all ways, processes and machines that
//! end at any moment, disks that are slow and lose what was not synced.

mod broker;
mod dice;
mod node;
mod world;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use leveret_cluster::Standing;
use node::{FILES_BYTES, Plants, SHARDS};
use world::{World, all_batches, has_batches, id_of, is_of_group};

/// Runs these seeds, and says all that fail. Others, of all tests or of one:
/// `SEEDS=1000 FIRST_SEED=16 cargo test -p leveret-cluster --test world one_node_leads`. Gives how many there were.
fn each_seed(usual: Range<u64>, mut run: impl FnMut(u64)) -> u64 {
    let number = |name| std::env::var(name).ok().and_then(|it| it.parse::<u64>().ok());
    let first = number("FIRST_SEED").unwrap_or(usual.start);
    let count = number("SEEDS").unwrap_or(usual.end - usual.start);
    let mut fails = |seed: &u64| catch_unwind(AssertUnwindSafe(|| run(*seed))).is_err();
    let failed: Vec<_> = (first..first + count).filter(|seed| fails(seed)).collect();
    assert!(failed.is_empty(), "of {count} seeds from {first} on these fail: {failed:?}");
    count
}

/// What goes wrong on purpose is found by one of so many seeds.
fn finds(plants: Plants, seeds: u64, run: fn(u64, Plants)) -> Option<u64> {
    (0..seeds).find(|&seed| catch_unwind(|| run(seed, plants)).is_err())
}

/// All become one cluster while everything goes wrong, or when that ends.
fn founds(seed: u64, plants: Plants) {
    let count = if seed.is_multiple_of(2) { 3 } else { 5 };
    let mut world = World::new(count, seed);
    world.is_rough = true;
    world.nodes.iter_mut().for_each(|it| it.plants = plants);
    for _ in 0..300 {
        world.trouble();
        world.step();
    }
    world.calm();
    let is_one = |world: &World| {
        let all = world.memberships();
        all.len() == 1 && !all.contains(&None) && world.nodes.iter().all(|it| it.process.is_some())
    };
    assert!(world.run_until(6_000, is_one), "seed {seed}: {:?}", world.refused);
    assert_eq!(world.clusters.len(), 1, "seed {seed}");
}

#[test]
fn one_cluster_or_none() {
    each_seed(0..60, |seed| founds(seed, Plants::default()));
}

/// A blank node that is called otherwise after its next start is one that the founder does not know.
#[test]
fn a_blank_node_keeps_its_id() {
    let found = finds(Plants { new_id: true, ..Plants::default() }, 60, founds);
    assert!(found.is_some());
}

/// Others hear of a founding that its founder then does not know of.
#[test]
fn an_identity_is_on_the_disk_first() {
    let found = finds(Plants { unsynced_identity: true, ..Plants::default() }, 60, founds);
    assert!(found.is_some());
}

/// A node that is not there is waited for.
#[test]
fn nobody_founds_without_all() {
    each_seed(1..2, |seed| {
        let mut world = World::new(3, seed);
        world.nodes[2].starts_ms = None;
        world.run_ms(5_000);
        let missing = vec!["rabbit@c".to_owned()];
        assert_eq!(world.standing(0), Some(&Standing::Forming { missing }));
        world.isolate(1);
        world.run_ms(5_000);
        world.nodes[2].starts_ms = Some(world.now_ms);
        world.run_ms(5_000);
        assert!(world.clusters.is_empty());
        world.calm();
        world.run_ms(1_000);
        assert_eq!(world.clusters.len(), 1);
    });
}

/// One that has another list keeps all from founding, and everybody says why.
#[test]
fn lists_have_to_be_alike() {
    each_seed(1..2, |seed| {
        let mut world = World::new(3, seed);
        world.nodes[1].listed.push("rabbit@d".to_owned());
        world.run_ms(5_000);
        assert!(world.clusters.is_empty());
        let other = "rabbit@b (lists other nodes: rabbit@a, rabbit@b, rabbit@c, rabbit@d)";
        let missing = vec![other.to_owned()];
        assert_eq!(world.standing(0), Some(&Standing::Forming { missing }));
        world.end(1, true, 10);
        world.nodes[1].listed.pop();
        world.run_ms(1_000);
        assert_eq!(world.clusters.len(), 1);
    });
}

/// Three nodes, or five, of which one leads, and in which all may go wrong from now on.
fn rough(seed: u64, plants: Plants) -> World {
    let count = if seed.is_multiple_of(4) { 5 } else { 3 };
    let mut world = World::new(count, seed);
    world.shared.lets_names_go.set(true);
    assert!(world.run_until(5_000, |it| it.leader().is_some()), "seed {seed}: nobody leads");
    world.is_rough = true;
    world.nodes.iter_mut().for_each(|it| it.plants = plants);
    world
}

/// Each group confirms more.
fn all_confirm(world: &mut World, seed: u64) {
    let before = world.shared.confirmed();
    world.run_ms(1_000);
    let after = world.shared.confirmed();
    for group in 0..=u64::from(SHARDS) {
        assert!(before.get(&group) < after.get(&group), "seed {seed}: group {group} stands still");
    }
}

/// One node leads all groups, whatever goes wrong; what it confirmed is with all who lead later; and when nothing goes wrong any
/// more one leads all again, and all others follow it.
///
/// Who follows is told the same of the names as everybody, and all that the log has when it begins to lead.
fn leads(seed: u64, plants: Plants) -> World {
    let mut world = rough(seed, plants);
    for _ in 0..1_500 {
        world.trouble();
        world.step();
    }
    world.calm();
    assert!(world.run_until(15_000, |it| it.leader().is_some()), "seed {seed}: nobody leads");
    all_confirm(&mut world, seed);
    // Who was told to stop just before is there again, too.
    let gives = |it: &World| it.leader().is_some_and(|at| it.nodes[at].gives(it.now_ms));
    assert!(world.run_until(2_000, gives), "seed {seed}: {}", world.picture());
    world
}

/// The same, while a copy of one node's directory takes its place again and again, at any time.
fn leads_with_copies(seed: u64, plants: Plants) {
    let count = if seed.is_multiple_of(4) { 5 } else { 3 };
    let mut world = World::led(count, seed);
    world.is_rough = true;
    world.nodes.iter_mut().for_each(|it| it.plants = plants);
    let at = world.dice.below(count as u64) as usize;
    for _ in 0..1_500 {
        world.trouble();
        match world.dice.below(200) {
            0 => world.nodes[at].make_copy(),
            1 if world.nodes[at].has_copy() => {
                world.end(at, true, 10);
                world.nodes[at].restore(true);
            }
            _ => {}
        }
        world.step();
    }
    world.calm();
    assert!(world.run_until(15_000, |it| it.leader().is_some()), "seed {seed}: nobody leads");
    all_confirm(&mut world, seed);
}

/// The same, while the logs of one node are damaged again and again: what it lacks it has from the others.
fn leads_with_damage(seed: u64, plants: Plants) -> World {
    let mut world = rough(seed, plants);
    world.shared.lets_names_go.set(false);
    let at = world.dice.below(world.nodes.len() as u64) as usize;
    for _ in 0..1_500 {
        world.trouble();
        if world.dice.one_in(150) {
            let has_power = world.dice.one_in(2);
            world.end(at, has_power, 10);
            world.nodes[at].damage();
        }
        world.step();
    }
    world.calm();
    assert!(world.run_until(15_000, |it| it.leader().is_some()), "seed {seed}: nobody leads");
    all_confirm(&mut world, seed);
    // Who leads may have been about to stop.
    assert!(world.run_until(15_000, |it| it.leader().is_some()), "seed {seed}: nobody leads");
    let last = world.lasts();
    assert!(world.run_until(15_000, |it| it.all_have(&last)), "seed {seed}: {}", world.picture());
    // What was set aside goes, by whichever way it was had again.
    let is_clean = |it: &World| it.nodes.iter().all(|node| node.coming() == 0);
    let left: Vec<_> = world.nodes.iter().map(|it| it.coming()).collect();
    assert!(world.run_until(5_000, is_clean), "seed {seed}: {left:?} files");
    world
}

#[test]
fn a_damaged_log_is_had_from_the_others() {
    let mut found = 0;
    let count = each_seed(0..16, |seed| {
        let world = leads_with_damage(seed, Plants::default());
        let is_damage = |it: &&String| it.contains("this node's log is damaged");
        found += world.told.iter().filter(is_damage).count() as u64;
    });
    // 30 in the usual 16.
    assert!(8 * found > 15 * count, "{found} logs were found damaged");
}

/// Two of three lost their logs, and the third one was away before: what was confirmed meanwhile is gone, so nobody leads, and each says
/// why. With the disk of one of them as it was they go on.
#[test]
fn two_of_three_damaged_logs_wait_for_who_has_the_rest() {
    each_seed(0..6, |seed| {
        let mut world = World::led(3, seed);
        let behind = (world.leader().unwrap() + 1) % 3;
        world.isolate(behind);
        world.run_ms(3_000);
        (0..3).for_each(|at| world.end(at, true, 10));
        let lost: Vec<_> = (0..3).filter(|at| *at != behind).collect();
        world.nodes[lost[0]].make_copy();
        lost.iter().for_each(|at| world.nodes[*at].lose_logs());
        world.cut.clear();
        world.run_ms(8_000);
        assert!(!(0..3).any(|at| world.nodes[at].has_broker()), "seed {seed}");
        let names: Vec<_> = lost.iter().map(|at| world.nodes[*at].name.clone()).collect();
        let names = format!("gone from the logs of {} (damaged", names.join(" and "));
        for at in 0..3 {
            let why = world.status(at).unwrap().why;
            assert!(why.as_ref().is_some_and(|it| it.contains(&names)), "seed {seed}: {why:?}");
        }
        let told =
            world.told.iter().filter(|it| it.contains("no node can lead: ") && it.contains(&names));
        assert_eq!(told.count(), 3, "seed {seed}: each says it once: {:?}", world.told);
        world.end(lost[0], true, 10);
        world.nodes[lost[0]].restore(true);
        assert!(world.run_until(15_000, |it| it.leader().is_some()), "seed {seed}: nobody leads");
        all_confirm(&mut world, seed);
    });
}

#[test]
fn a_copy_takes_nothing_away() {
    each_seed(0..12, |seed| leads_with_copies(seed, Plants::default()));
}

/// The node that led goes before a copy has heard it, and the third one was away: nobody who is left knows what is missing.
fn copy_alone_with_one_that_was_away(seed: u64, plants: Plants) {
    let mut world = World::led(3, seed);
    world.nodes.iter_mut().for_each(|it| it.plants = plants);
    let leader = world.leader().unwrap();
    let [back, third] = [(leader + 1) % 3, (leader + 2) % 3];
    world.run_ms(500);
    world.nodes[back].make_copy();
    world.isolate(third);
    world.run_ms(3_000);
    world.end(back, true, 10);
    world.nodes[back].restore(true);
    world.end(leader, true, 8_000);
    world.cut.clear();
    world.run_ms(7_000);
    assert!(![back, third].iter().any(|at| world.nodes[*at].has_broker()), "seed {seed}");
    let why = world.status(back).unwrap().why;
    assert!(why.is_some_and(|it| it.contains("has to hear")), "seed {seed}");
    assert!(world.run_until(15_000, |it| it.leader().is_some()), "seed {seed}: nobody leads");
}

#[test]
fn a_copy_hears_all_others_before_it_votes() {
    each_seed(0..10, |seed| copy_alone_with_one_that_was_away(seed, Plants::default()));
    let plants = Plants { trusts_copies: true, ..Plants::default() };
    assert!(finds(plants, 3, copy_alone_with_one_that_was_away).is_some());
}

/// A disk that was set back shows nothing. Who was linked with the node that led knows what is agreed upon, and lets nobody lead who
/// lacks it: they wait for the node that has it, and say so. So it is whether the one with that disk heard the leader once more or not.
#[test]
fn a_disk_that_was_set_back_waits_for_who_has_the_rest() {
    each_seed(0..20, |seed| {
        let mut world = World::led(3, seed);
        let leader = world.leader().unwrap();
        let [back, third] = [(leader + 1) % 3, (leader + 2) % 3];
        world.nodes[back].make_copy();
        world.isolate(third);
        world.run_ms(3_000);
        world.end(back, true, 10);
        world.nodes[back].restore(false);
        world.cut.clear();
        if seed % 2 == 0 {
            world.cut.extend([(leader, back), (back, leader)]);
        }
        // Nobody gets what it lacks.
        world.loses = Some(all_batches());
        let sees =
            |it: &World, from, to| from == to || it.cut.contains(&(from, to)) || it.sees(from, to);
        let all_see = |it: &World| (0..9).all(|at| sees(it, at / 3, at % 3));
        assert!(world.run_until(1_000, all_see), "seed {seed}");
        world.run_ms(50);
        world.end(leader, true, 10_000);
        world.cut.clear();
        world.loses = None;
        world.run_ms(8_000);
        assert!(![back, third].iter().any(|at| world.nodes[*at].has_broker()), "seed {seed}");
        let why = |at: usize| world.status(at).unwrap().why;
        assert!(why(third).is_some_and(|it| it.contains("was agreed upon")), "{:?}", why(third));
        assert!(world.run_until(15_000, |it| it.leader().is_some()), "seed {seed}: nobody leads");
    });
}

#[test]
fn one_node_leads_all_groups() {
    let (mut whole, mut parts) = (0, 0);
    let count = each_seed(0..16, |seed| {
        let world = leads(seed, Plants::default());
        let told = world.shared.told.borrow();
        (whole, parts) = (whole + told.whole, parts + told.parts);
    });
    // A process that leads as soon as it is there may not have read them yet.
    assert!(
        2 * whole > 5 * count && whole > 4 * parts,
        "told all {whole} times, and {parts} times not"
    );
}

/// A process ends just after a file has gone whose last name was let go of, and does not know at its next start that this was agreed upon.
#[test]
fn a_start_whose_files_are_ahead_tells_nothing_that_never_was() {
    for seed in [1015, 1025, 1032, 1040] {
        leads(seed, Plants::default());
    }
}

/// The others lose sight of a node that leads and lives, which does not see it: just before they stood still, or one of them has not
/// heard it for long. One of them leads at once, and gives out nothing before the old one's lease is over.
fn loses_sight(seed: u64, plants: Plants) {
    let mut world = World::led(3, seed);
    world.run_ms(300 + 10 * (seed % 7));
    world.nodes.iter_mut().for_each(|it| it.plants = plants);
    let leader = world.leader().unwrap();
    let others: Vec<_> = (0..3).filter(|at| *at != leader).collect();
    if seed.is_multiple_of(2) {
        for at in &others {
            world.nodes[*at].paused_ms = world.now_ms + 130;
        }
        world.run_ms(150);
    } else {
        let blind = others[seed as usize / 2 % 2];
        world.cut.extend([(leader, blind), (blind, leader)]);
        world.unlink((blind, leader));
        world.run_ms(300);
    }
    world.isolate(leader);
    others.iter().for_each(|at| world.unlink((*at, leader)));
    let leads = |world: &World| others.iter().any(|at| world.nodes[*at].has_broker());
    let gives = |world: &World| others.iter().any(|at| world.nodes[*at].gives(world.now_ms));
    assert!(world.run_until(400, leads), "seed {seed}");
    assert!(world.run_until(400, gives), "seed {seed}");
}

#[test]
fn who_is_elected_waits_for_a_lease_that_may_hold() {
    each_seed(0..40, |seed| loses_sight(seed, Plants::default()));
    // What a node believes of another one's lease is wrong by as long as it stood still itself.
    let late = Plants { late_clock: true, ..Plants::default() };
    assert_ne!(finds(late, 80, loses_sight), None, "the clock is looked at when a letter is there");
}

/// The other nodes, in the order in which they stand when a node is lost.
fn in_order(world: &World, lost: usize) -> Vec<usize> {
    let mut others: Vec<_> = (0..world.nodes.len()).filter(|at| *at != lost).collect();
    others.sort_unstable_by_key(|at| id_of(&world.nodes[*at]));
    others
}

/// A leader falls silent, in one group earlier than in the others: who waited for it in vain there stands in all.
#[test]
fn who_stands_in_one_group_stands_in_all() {
    each_seed(0..8, |seed| {
        let mut world = World::new(3, seed);
        world.nodes.iter_mut().for_each(|it| it.settings.election_ticks = 40);
        assert!(world.run_until(10_000, |it| it.leader().is_some()));
        world.run_ms(500);
        let leader = world.leader().unwrap();
        world.loses =
            Some(Box::new(move |from, _, letter| from == leader && is_of_group(letter, 1)));
        world.run_ms(300);
        world.loses = Some(Box::new(move |from, _, _| from == leader));
        let elected = |world: &World| (0..3).find(|at| *at != leader && world.leads_group(*at, 1));
        assert!(world.run_until(3_000, |it| elected(it).is_some()), "seed {seed}");
        let at = elected(&world).unwrap();
        let rows = world.status(at).map(|it| it.groups);
        let name = &world.nodes[leader].name;
        let follows: Vec<_> =
            rows.iter().flatten().filter(|it| it.leader.as_ref() == Some(name)).collect();
        assert!(follows.is_empty(), "seed {seed}: {follows:?}");
    });
}

/// The first of those that are left lacks a batch of one group, and is elected in the others: it has that one, too, as soon as it has
/// what it lacked.
#[test]
fn what_another_one_was_elected_for_goes_to_the_first_at_once() {
    each_seed(0..12, |seed| {
        let mut world = World::led(3, seed);
        world.run_ms(500 + 10 * seed);
        let leader = world.leader().unwrap();
        let [first, second] = in_order(&world, leader)[..] else { unreachable!() };
        world.loses = Some(Box::new(move |_, to, letter| {
            to == first && is_of_group(letter, 1) && has_batches(letter)
        }));
        let last = |it: &World, at| it.status(at).and_then(|it| it.groups.get(1).map(|it| it.last));
        assert!(world.run_until(5_000, |it| last(it, first) < last(it, second)), "seed {seed}");
        world.loses = None;
        world.end(leader, true, 60_000);
        [first, second].iter().for_each(|at| world.unlink((*at, leader)));
        let are_elected = |it: &World| it.leads_group(first, 0) && it.leads_group(second, 1);
        assert!(world.run_until(1_000, are_elected), "seed {seed}: {}", world.picture());
        assert!(world.run_until(150, |it| it.nodes[first].has_broker()), "seed {seed}");
    });
}

/// A link that is reset, and one whose other node is not gone, costs nobody a leader: the others see it.
#[test]
fn a_link_that_is_reset_costs_no_leader() {
    each_seed(0..20, |seed| {
        let mut world = World::led(3, seed);
        world.run_ms(500);
        let leader = world.leader().unwrap();
        let other = (leader + 1) % 3;
        let (given_ms, from_ms) = (world.given_ms, world.now_ms);
        world.reset(leader, other);
        world.run_ms(1_000);
        assert_eq!(world.leader(), Some(leader), "seed {seed}");
        assert_eq!(
            world.given_ms - given_ms,
            world.now_ms - from_ms,
            "seed {seed}: it had no lease"
        );
    });
}

/// A node that is cut off gives out nothing any more when another one does; and that one, for whom everybody voted who had waited,
/// does so at once.
#[test]
fn a_leader_that_is_cut_off_gives_out_nothing() {
    each_seed(0..20, |seed| {
        let mut world = World::led(3, seed);
        world.run_ms(500);
        let leader = world.leader().unwrap();
        world.isolate(leader);
        let is_over = |world: &World| !world.nodes[leader].gives(world.now_ms);
        assert!(world.run_until(200, is_over), "seed {seed}");
        let another =
            |world: &World| (0..3).any(|at| at != leader && world.nodes[at].gives(world.now_ms));
        assert!(world.run_until(1_000, another), "seed {seed}");
    });
}

/// Who is told to stop has another one lead, and ends then; the others notice no more than that.
#[test]
fn who_stops_gives_way() {
    each_seed(0..20, |seed| {
        let mut world = World::led(3, seed);
        world.run_ms(500);
        let leader = world.leader().unwrap();
        world.stop(leader, 5_000);
        let heir_leads =
            |world: &World| (0..3).any(|at| at != leader && world.nodes[at].has_broker());
        assert!(world.run_until(400, heir_leads), "seed {seed}");
        assert!(
            world.run_until(3_000, |it| it.leader().is_some_and(|at| at != leader)),
            "seed {seed}"
        );
    });
}

/// Who is asked to hand over has another one lead, and goes on as one that follows.
#[test]
fn who_hands_over_goes_on() {
    each_seed(0..20, |seed| {
        let mut world = World::led(3, seed);
        world.run_ms(500);
        let leader = world.leader().unwrap();
        world.hand_over(leader);
        let another = |it: &World| it.leader().is_some_and(|at| at != leader);
        assert!(world.run_until(3_000, another), "seed {seed}");
        world.run_ms(10_000);
        assert!(another(&world), "seed {seed}: it leads again");
        assert!(world.nodes[leader].process.is_some(), "seed {seed}");
    });
}

/// The heir of a node that stops is gone before it leads: another one is asked at once.
#[test]
fn who_stops_waits_for_no_heir_that_is_gone() {
    each_seed(0..12, |seed| {
        let mut world = World::led(5, seed);
        world.run_ms(500);
        let leader = world.leader().unwrap();
        let heir = in_order(&world, leader)[0];
        world.loses = Some(Box::new(move |from, to, _| (from, to) == (leader, heir)));
        world.stop(leader, 5_000);
        world.run_ms(30);
        world.end(heir, true, 60_000);
        world.reset(leader, heir);
        let leads = |it: &World| (0..5).any(|at| at != leader && it.nodes[at].has_broker());
        assert!(world.run_until(150, leads), "seed {seed}");
    });
}

/// One other one cannot be elected without it, and it votes for nobody: it does not wait.
#[test]
fn who_stops_ends_at_once_where_the_others_are_no_majority() {
    each_seed(1..2, |seed| {
        let mut world = World::led(3, seed);
        world.run_ms(500);
        let leader = world.leader().unwrap();
        let [away, other] = in_order(&world, leader)[..] else { unreachable!() };
        world.end(away, true, 60_000);
        world.reset(leader, away);
        assert!(world.sees(leader, other));
        world.stop(leader, 60_000);
        assert!(world.run_until(100, |it| it.nodes[leader].process.is_none()));
    });
}

/// Its links are as they were: they end later, and until then the others say that it does not run.
#[test]
fn who_says_nothing_is_not_shown_as_running() {
    each_seed(1..4, |seed| {
        let mut world = World::led(3, seed);
        let still = in_order(&world, world.leader().unwrap())[0];
        let name = world.status(still).unwrap().own;
        let shown = |world: &World| {
            let others = (0..3).filter(|at| *at != still);
            let rows = others.map(|at| world.status(at).unwrap().nodes);
            let rows = rows.map(|nodes| nodes.into_iter().find(|it| it.name == name).unwrap());
            rows.map(|it| (it.is_linked, it.is_running)).collect::<Vec<_>>()
        };
        world.run_ms(3_000);
        assert_eq!(shown(&world), [(true, true); 2], "{}", world.picture());
        world.loses = Some(Box::new(move |from, _, _| from == still));
        assert!(
            world.run_until(2_000, |it| shown(it) == [(true, false); 2]),
            "{}",
            world.picture()
        );
        world.loses = None;
        assert!(world.run_until(2_000, |it| shown(it) == [(true, true); 2]), "{}", world.picture());
    });
}

/// Alone it can do nothing for what it leads: it does not wait.
#[test]
fn who_stops_alone_ends_at_once() {
    each_seed(1..2, |seed| {
        let mut world = World::led(3, seed);
        let leader = world.leader().unwrap();
        world.isolate(leader);
        let is_alone = |world: &World| {
            let status = world.status(leader);
            status.is_some_and(|it| it.nodes.iter().filter(|it| it.is_linked).count() == 1)
        };
        assert!(world.run_until(5_000, is_alone));
        world.stop(leader, 60_000);
        assert!(world.run_until(100, |it| it.nodes[leader].process.is_none()));
    });
}

/// An older copy of a data directory, and a wiped one, are told so and take part in nothing.
#[test]
fn older_copies_are_refused() {
    each_seed(1..2, |seed| {
        let mut world = World::led(3, seed);
        let copy = world.nodes[2].identity.clone();
        world.end(2, true, 10);
        world.run_ms(1_000);
        world.end(2, true, 10);
        world.run_ms(1_000);
        assert!(world.refused.is_empty(), "{:?}", world.refused);
        world.end(2, true, 10);
        world.nodes[2].identity = copy;
        world.run_ms(1_000);
        let is_so = |why: &String| why.contains("older copy") || why.contains("start");
        assert!(world.refused.iter().any(is_so), "{:?}", world.refused);
        world.refused.clear();
        world.end(2, true, 10);
        world.nodes[2].wipe();
        world.run_ms(1_000);
        let is_so = |why: &String| why.contains("its name belongs to the data directory");
        assert!(world.refused.iter().any(is_so), "{:?}", world.refused);
        assert!(world.leader().is_none(), "the third does not follow");
        assert!((0..2).any(|at| world.nodes[at].has_broker()));
    });
}

/// A founder whose data directory is lost does not found a second cluster: the others are in one, and it is refused by its name.
#[test]
fn a_wiped_founder_founds_nothing() {
    each_seed(1..2, |seed| {
        let mut world = World::led(3, seed);
        world.end(0, true, 10);
        world.nodes[0].wipe();
        world.run_ms(5_000);
        assert_eq!(world.clusters.len(), 1);
        assert!(matches!(world.standing(0), Some(Standing::Forming { .. })));
        assert!((1..3).any(|at| world.nodes[at].has_broker()), "two of three go on");
    });
}

/// Who leads with a full disk has one lead that has room, as long as a majority has: nothing that was confirmed is lost, and nobody
/// gives it back.
#[test]
fn who_has_no_room_gives_way() {
    each_seed(0..3, |seed| {
        let mut world = World::new(3, seed);
        world.nodes.iter_mut().for_each(|it| it.set_free(1_000));
        assert!(world.run_until(5_000, |it| it.leader().is_some()));
        let leader = world.leader().unwrap();
        world.run_ms(1_000);
        assert_eq!(world.nodes[leader].room, Some(1_000));
        world.nodes[leader].set_free(10);
        let others_lead = |it: &World| it.leader().is_some_and(|at| at != leader);
        assert!(world.run_until(20_000, others_lead), "seed {seed}");
        let heir = world.leader().unwrap();
        world.run_ms(12_000);
        assert_eq!(world.leader(), Some(heir), "seed {seed}: the one with room stays");
        assert_eq!(world.nodes[heir].room, Some(1_000), "seed {seed}: two of three have that");
    });
}

/// Who leads with a disk that hangs has another one lead, which says why it does; and does not lead again soon, however the next one
/// ends, unless no other one can.
#[test]
fn whose_disk_hung_leads_only_if_no_other_can() {
    each_seed(0..12, |seed| {
        let mut world = World::new(3, seed);
        world.nodes.iter_mut().for_each(|it| it.set_free(1_000));
        assert!(world.run_until(5_000, |it| it.leader().is_some()));
        let first = world.leader().unwrap();
        world.nodes[first].set_hung(true, 0);
        let another_than = |at: usize| move |it: &World| it.leader().is_some_and(|now| now != at);
        assert!(world.run_until(20_000, another_than(first)), "seed {seed}");
        let second = world.leader().unwrap();
        let about = format!("the disk of {}", world.nodes[first].name);
        assert!(
            world.told.iter().any(|it| it.starts_with(&about)),
            "seed {seed}: {:?}",
            world.told
        );
        world.nodes[first].set_hung(false, 5);
        world.run_ms(1_500);
        let third = 3 - first - second;
        // It ends, is told to, or hangs itself.
        match seed % 3 {
            0 => {
                // The other two have the same: by their logs either could be elected.
                world.loses = Some(all_batches());
                world.run_ms(200);
                world.end(second, true, 500);
                world.loses = None;
            }
            1 => world.stop(second, 5_000),
            _ => world.nodes[second].set_hung(true, 0),
        }
        assert!(world.run_until(20_000, another_than(second)), "seed {seed}");
        assert_eq!(world.leader(), Some(third), "seed {seed}");
        // Of those that are left each hung lately.
        world.nodes[second].set_hung(false, 5);
        world.run_ms(1_500);
        world.end(third, true, 20_000);
        let leads = |it: &World| [first, second].iter().any(|at| it.nodes[*at].has_broker());
        assert!(world.run_until(3_000, leads), "seed {seed}");
    });
}

/// Who is elected, and whose disk does not end the write of the first batch of its term, has another one lead: though the others agreed to
/// that batch, there is no broker on such a disk. So, too, where the disks of all hung lately.
#[test]
fn who_is_elected_on_a_disk_that_stands_still_gives_way() {
    let mut elected = 0;
    each_seed(0..24, |seed| {
        let mut world = World::new(5, seed);
        if seed >= 12 {
            world.nodes.iter_mut().for_each(|it| it.set_hung(false, 5));
        }
        assert!(world.run_until(5_000, |it| it.leader().is_some()));
        world.run_ms(500);
        let leader = world.leader().unwrap();
        let still = (leader + 1 + seed as usize % 4) % 5;
        world.nodes[still].stand_still();
        world.end(leader, true, 60_000);
        let another = |it: &World| (0..5).any(|at| at != still && it.nodes[at].has_broker());
        assert!(!world.nodes[still].has_broker());
        let at_ms = world.now_ms;
        assert!(world.run_until(25_000, another), "seed {seed}");
        elected += u64::from(world.now_ms > at_ms + 8_000);
    });
    assert!(elected > 0);
}

/// Where a majority has no room it does not matter who leads. What counts is the room of the second of three.
#[test]
fn nobody_gives_way_for_nothing() {
    each_seed(3..4, |seed| {
        let mut world = World::new(3, seed);
        world.nodes.iter_mut().for_each(|it| it.set_free(1_000));
        assert!(world.run_until(5_000, |it| it.leader().is_some()));
        let leader = world.leader().unwrap();
        let other = (leader + 1) % 3;
        world.nodes[leader].set_free(10);
        world.nodes[other].set_free(20);
        world.run_ms(15_000);
        assert_eq!(world.leader(), Some(leader));
        assert_eq!(world.nodes[leader].room, Some(20));
        let name = &world.nodes[other].name;
        let told = world.told.iter().filter(|it| it.contains("has little room on its disk: 20"));
        assert_eq!(told.filter(|it| it.starts_with(&**name)).count(), 1, "{:?}", world.told);
        // Below the limit, and not less than nothing: who is not there has no room, either.
        world.nodes[other].set_free(1_000);
        world.end((leader + 2) % 3, true, 60_000);
        world.run_ms(5_000);
        assert_eq!(world.nodes[leader].room, Some(10), "both are needed");
    });
}

/// Nodes are lost, forgotten and come back with empty disks, whatever else goes wrong: there is one cluster, nothing that was
/// confirmed is lost, and in the end all are members that vote in all groups.
fn replaces(seed: u64, plants: Plants) -> World {
    let mut world = rough(seed, plants);
    for _ in 0..1_500 {
        world.trouble();
        world.replace();
        world.step();
    }
    world.calm();
    let until = world.now_ms + 10_000;
    while (world.lost.is_some() || !world.ghosts().is_empty()) && world.now_ms < until {
        world.replace();
        world.step();
    }
    assert!(world.lost.is_none(), "seed {seed}: it is not forgotten: {}", world.picture());
    let is_well = |world: &World| world.leader().is_some() && world.all_are_members();
    let until = world.now_ms + 20_000;
    while !is_well(&world) && world.now_ms < until {
        // One may show as soon as another one leads.
        world.forget_ghosts();
        world.step();
    }
    assert!(is_well(&world), "seed {seed}: {}", world.picture());
    assert_eq!(world.clusters.len(), 1, "seed {seed}");
    all_confirm(&mut world, seed);
    world
}

#[test]
fn lost_nodes_are_replaced() {
    let (mut replaced, mut refilled) = (0, 0);
    let count = each_seed(0..20, |seed| {
        let world = replaces(seed, Plants::default());
        let has_files =
            world.told.iter().filter(|it| it.contains("it gets all of that node's files"));
        (replaced, refilled) =
            (replaced + world.replaced as u64, refilled + has_files.count() as u64);
    });
    assert!(replaced > count && refilled > count, "{replaced} replaced, {refilled} got files");
}

/// A full disk takes nothing away: where the list of files found no room, what is there counts at the next start.
#[test]
fn a_list_without_room_is_no_damage() {
    each_seed(1..2, |seed| {
        let mut world = World::led(3, seed);
        let at = (world.leader().unwrap() + 1) % 3;
        world.nodes[at].has_no_room_for_lists();
        assert!(world.run_until(60_000, |it| it.nodes[at].lists_given_up() > 0));
        world.end(at, true, 10);
        world.run_ms(500);
        let last = world.lasts();
        assert!(world.run_until(10_000, |it| it.all_have(&last)), "{}", world.picture());
        assert!(!world.told.iter().any(|it| it.contains("is damaged")), "{:?}", world.told);
    });
}

/// A node that gets the files of all its groups asks for no more at a time than one group might.
#[test]
fn all_groups_share_what_is_asked_for() {
    each_seed(1..2, |seed| {
        let mut world = World::led(3, seed);
        world.run_ms(20_000);
        let at = (world.leader().unwrap() + 1) % 3;
        world.end(at, true, 10);
        world.nodes[at].lose_logs();
        world.run_ms(500);
        let last = world.lasts();
        assert!(world.run_until(10_000, |it| it.all_have(&last)), "{}", world.picture());
        let refills =
            world.told.iter().filter(|it| it.contains("it gets all of that node's files"));
        assert!(refills.count() > SHARDS as usize, "{:?}", world.told);
        let most = world.asked_most;
        assert!(
            most > FILES_BYTES / 4 && most <= FILES_BYTES,
            "{most} bytes were asked for at once"
        );
    });
}

/// A cluster of three whose third node is lost.
fn with_a_lost_one(seed: u64) -> (World, usize) {
    let mut world = World::led(3, seed);
    world.run_ms(500);
    let lost = (world.leader().unwrap() + 1) % 3;
    world.lose(lost);
    let is_alone = |world: &World| !world.is_linked(lost);
    assert!(world.run_until(5_000, is_alone));
    (world, lost)
}

/// What `forget` of a node by its name says at the one that leads.
fn forget(world: &mut World, at: usize) -> Result<(), String> {
    let name = world.nodes[at].name.clone();
    let mut leads = world.nodes.iter_mut().filter(|it| it.has_broker());
    let process = leads.next().and_then(|it| it.process.as_mut()).expect("one leads");
    process.cluster.forget(&name).map(drop).map_err(|why| why.to_string())
}

#[test]
fn who_runs_is_not_forgotten() {
    each_seed(1..2, |seed| {
        let mut world = World::led(3, seed);
        let leader = world.leader().unwrap();
        for at in 0..3 {
            let why = forget(&mut world, at).unwrap_err();
            assert!(why.starts_with(&format!("node {} is running", world.nodes[at].name)), "{why}");
        }
        world.run_ms(1_000);
        assert!(world.all_are_members() && world.leader() == Some(leader));
        let cluster = &mut world.nodes[(leader + 1) % 3].process.as_mut().unwrap().cluster;
        let why = cluster.forget("rabbit@a").unwrap_err().to_string();
        assert_eq!(
            why,
            "this node does not lead the cluster: members are changed by the one that does"
        );
    });
}

/// Others take the name of one that was forgotten, and not before; and its data directory does not come back.
#[test]
fn a_forgotten_node_comes_back_empty() {
    each_seed(1..2, |seed| {
        let (mut world, lost) = with_a_lost_one(seed);
        let old = world.nodes[lost].take_all();
        world.lost = None;
        world.nodes[lost].starts_ms = Some(world.now_ms);
        world.run_ms(1_000);
        let is_said = |world: &World, text: &str| world.refused.iter().any(|it| it.contains(text));
        assert!(is_said(&world, "if the old directory is lost, forget_cluster_node first"));
        assert!(!world.all_are_members());
        // It runs, but not as the member of that name.
        forget(&mut world, lost).unwrap();
        assert!(world.run_until(5_000, World::all_are_members), "{:?}", world.told);
        assert!(world.run_until(2_000, |it| it.leader().is_some()));
        // The old directory is whole, and of no use.
        world.refused.clear();
        world.end(lost, true, 10);
        let new = world.nodes[lost].take_all();
        world.nodes[lost].put_all(old);
        world.run_ms(1_000);
        assert!(is_said(&world, "was forgotten (forget_cluster_node)"), "{:?}", world.refused);
        assert_eq!(world.standing(lost), Some(&Standing::Waits));
        world.end(lost, true, 10);
        world.nodes[lost].put_all(new);
        assert!(world.run_until(2_000, |it| it.leader().is_some()));
    });
}

/// With one of three gone and another one that is away there is no leader to ask; with the third of four gone, and a second one away,
/// what is left would have no majority.
#[test]
fn what_is_left_has_a_majority() {
    each_seed(1..2, |seed| {
        let (mut world, lost) = with_a_lost_one(seed);
        forget(&mut world, lost).unwrap();
        world.run_ms(1_000);
        assert_eq!(
            forget(&mut world, lost).unwrap_err(),
            "The node selected is not in the cluster."
        );
        let other = (0..3).find(|at| *at != lost && !world.nodes[*at].has_broker()).unwrap();
        world.nodes[other].starts_ms = None;
        world.end(other, true, 100_000);
        assert!(world.run_until(5_000, |it| !it.is_linked(other)));
        assert_eq!(forget(&mut world, other).unwrap_err(), "a cluster has two nodes at least");
    });
}
