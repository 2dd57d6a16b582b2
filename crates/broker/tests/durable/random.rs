//! Random commands, a disk that takes its time, and crashes: what was answered is there.

use std::collections::BTreeMap;

use leveret_broker::message::*;
use leveret_topology::PasswordHash;

use crate::{
    World, admin, binding, declare_exchange, declare_queue, delete_exchange, policy, reply,
};

/// `SplitMix64`.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn below(&mut self, count: u64) -> u64 {
        self.next() % count
    }

    /// A place in a list of so many.
    pub(crate) fn at(&mut self, count: usize) -> usize {
        self.below(count as u64) as usize
    }

    fn pick<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len() as u64) as usize]
    }
}

fn command(rng: &mut Rng, world: &World, me: u64) -> ToMeta {
    let v = world.vhost;
    let queue = rng.pick(&["q1", "q2", "q3", "t1"]);
    let exchange = rng.pick(&["x1", "x2", "amq.direct"]);
    let durable = queue != "t1";
    let user = rng.pick(&["u", "w"]).to_owned();
    let password = PasswordHash::new(queue, [1; 4]);
    match rng.below(14) {
        0..=2 => declare_queue(v, me, queue, durable, false),
        3 => declare_exchange(v, me, exchange, exchange != "x2"),
        4 => delete_exchange(v, me, exchange),
        5 | 6 => ToMeta::Bind(binding(v, me, exchange, queue)),
        7 => ToMeta::Unbind(binding(v, me, exchange, queue)),
        8 | 9 => match world.queue(queue) {
            Some(queue) => ToMeta::QueueGone {
                by: Box::default(),
                queue,
                reply: Some((reply(me), 0)),
                consumers: Vec::new(),
                more: false,
            },
            None => ToMeta::LogWoke,
        },
        10 => policy(me, queue, rng.below(5)),
        11 => admin(me, AdminCommand::ClearPolicy { vhost: "/".into(), name: queue.into() }),
        12 => admin(me, AdminCommand::AddUser { name: user, password, tags: Vec::new() }),
        _ => admin(me, AdminCommand::DeleteUser { name: user }),
    }
}

/// What a world did so far.
#[derive(Default)]
struct History {
    /// What was durable after each turn.
    states: Vec<String>,
    /// Who asked, and in which turn.
    asked: BTreeMap<u64, usize>,
    /// The last turn of which anything was answered after it.
    answered: usize,
}

impl History {
    fn starts(world: &World) -> Self {
        Self { states: vec![world.topology.describe_durable()], ..Self::default() }
    }

    /// Everybody is answered once. What is answered in its own turn changed nothing.
    fn note_answers(&mut self, world: &mut World, is_own_turn: bool) {
        for answer in world.answers() {
            let who: u64 = answer.split(' ').next().unwrap().parse().unwrap();
            if who == 0 {
                continue;
            }
            let turn = self.asked.remove(&who);
            let turn = turn.unwrap_or_else(|| panic!("{answer} for nobody"));
            if !is_own_turn || turn + 1 < self.states.len() {
                self.answered = self.answered.max(turn);
            }
        }
    }
}

/// After a crash the durable names are those after some turn, and not an earlier one than the last of which
/// an answer waited for the disk and came. Everybody is answered once, if the process lives.
#[test]
fn crashes() {
    let mut crashes = 0;
    for seed in 0..200 {
        let mut rng = Rng(seed);
        let mut world = World::new();
        let mut history = History::starts(&world);
        let mut me = 1;
        for _ in 0..150 {
            match rng.below(20) {
                0..=11 => {
                    let mut letters = Vec::new();
                    for _ in 0..=rng.below(3) {
                        let letter = command(&mut rng, &world, me);
                        if !matches!(letter, ToMeta::LogWoke) {
                            history.asked.insert(me, history.states.len());
                        }
                        letters.push(letter);
                        me += 1;
                    }
                    world.turn(letters);
                    history.states.push(world.topology.describe_durable());
                    history.note_answers(&mut world, true);
                }
                12..=18 => {
                    // Meta may hear of it late.
                    if world.log.hand().finish() && rng.below(4) > 0 {
                        world.turn([ToMeta::LogWoke]);
                        history.note_answers(&mut world, false);
                    }
                }
                _ => {
                    crashes += 1;
                    world = world.crash();
                    let state = world.topology.describe_durable();
                    let kept = history.states.iter().rposition(|other| *other == state);
                    assert!(
                        kept >= Some(history.answered),
                        "seed {seed}: {kept:?} {}",
                        history.answered
                    );
                    history = History::starts(&world);
                }
            }
        }
        world.turn([ToMeta::LogWoke]);
        while world.log.hand().finish() {
            world.turn([ToMeta::LogWoke]);
        }
        history.note_answers(&mut world, false);
        assert!(history.asked.is_empty(), "seed {seed}: {:?} wait for ever", history.asked);
        let after = world.crash().topology.describe_durable();
        assert_eq!(after, world.topology.describe_durable(), "seed {seed}");
    }
    assert!(crashes > 1000, "{crashes}");
}
