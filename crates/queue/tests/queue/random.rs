//! Random commands from seeds, against the model.

use leveret_queue::{Options, Overflow};

use crate::world::{CHANNELS, Command, World};

/// splitmix64: a seed gives the same run everywhere.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn maybe(&mut self, percent: u64, end: u64) -> Option<u64> {
        self.chance(percent).then(|| self.below(end))
    }

    pub(crate) fn options(&mut self) -> Options {
        Options {
            max_length: self.maybe(40, 8),
            max_length_bytes: self.maybe(20, 400),
            overflow: match self.below(4) {
                0 | 1 => Overflow::DropHead,
                2 => Overflow::RejectPublish,
                _ => Overflow::RejectPublishDlx,
            },
            message_ttl_ms: self.maybe(30, 30),
            expires_ms: self.maybe(20, 50),
            max_priority: self.maybe(30, 10).map(|max| max as u8),
            single_active: self.chance(25),
            delivery_limit: self.maybe(30, 3).map(|limit| limit as u32),
            dead_letter: self.chance(50),
            at_least_once: self.chance(50),
            counts_deliveries: self.chance(50),
            auto_delete: self.chance(50),
            paused: self.chance(10),
        }
    }

    fn command(&mut self) -> Command {
        let at = self.below(10) as usize;
        let channel = self.below(CHANNELS as u64) as usize;
        match self.below(100) {
            0..34 => self.publish(),
            34..42 => Command::Consume {
                channel,
                no_ack: self.chance(30),
                exclusive: self.chance(5),
                priority: self.below(3) as i32 - 1,
                prefetch: self.below(4) as u16,
            },
            42..47 => Command::Cancel(at),
            47..60 => Command::Ack(at),
            60..65 => Command::Reject(at),
            65..75 => Command::Requeue { at, counts: self.chance(80) },
            75..78 => Command::DeadLettered(at),
            78..82 => Command::Get { no_ack: self.chance(50) },
            82 => Command::Purge(self.maybe(50, 3).unwrap_or(u64::MAX)),
            83 => Command::Discard(at),
            84..88 => Command::Pass { ms: self.below(20) },
            88..91 => Command::ChannelLimit { channel, limit: self.below(4) as u32 },
            91..93 => Command::Flow { channel, active: self.chance(60) },
            93..97 => Command::Drain { channel },
            97..99 => Command::SetOptions(Box::new(self.options())),
            _ => Command::Relax,
        }
    }

    fn publish(&mut self) -> Command {
        Command::Publish {
            size: self.below(100) as u32,
            priority: self.below(12) as u8,
            persistent: self.chance(50),
            expiration_ms: self.maybe(20, 20),
        }
    }
}

/// Runs `run` for many seeds, and names the one that fails.
pub(crate) fn for_each_seed(count: u64, run: impl Fn(&mut Random) + std::panic::RefUnwindSafe) {
    for seed in 0..count {
        let failed = std::panic::catch_unwind(|| run(&mut Random::new(seed))).is_err();
        assert!(!failed, "seed {seed}");
    }
}

#[test]
fn agrees_with_the_model() {
    for_each_seed(3_000, |random| {
        let mut world = World::new(random.options());
        for _ in 0..100 {
            world.apply(&random.command());
        }
        world.finish();
    });
}

/// A turn takes a batch of messages before it dispatches. Nobody can tell: all goes as if each had been
/// handed out when it came. (But for priorities: the highest of the batch goes first.)
#[test]
fn batches_cannot_be_told() {
    for_each_seed(1_000, |random| {
        let mut world = World::new(Options { max_priority: None, ..random.options() });
        for _ in 0..30 {
            for _ in 0..random.below(12) {
                world.apply_without_dispatch(&random.publish());
            }
            world.finish_turn();
            for _ in 0..random.below(5) {
                world.apply(&random.command());
            }
        }
        world.finish();
    });
}

#[test]
fn long_runs_agree() {
    for_each_seed(10, |random| {
        let mut world = World::new(Options { max_length: None, ..random.options() });
        for _ in 0..3_000 {
            world.apply(&random.command());
        }
        world.finish();
    });
}
