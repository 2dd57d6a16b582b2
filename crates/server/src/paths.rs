//! The steps of messages in traced vhosts, the last of them: of these the path of one message is put together.
//!
//! Costs one look at an empty list per turn where nothing is traced. Memory is bounded by [`KEPT_MAX`].

use std::collections::VecDeque;

use foldhash::fast::FixedState;
use hashbrown::{HashMap, HashSet};
use leveret_broker::message::{Step, What};
use leveret_topology::VhostId;

use crate::clock::{now_with_us, step_ms};
use crate::locks::{Rank, Ranked};

/// Steps that are kept.
const KEPT_MAX: usize = 4096;

/// A step, and when the turn ended that made it, in microseconds since the Unix epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimedStep {
    /// When.
    pub at_us: u64,
    /// What.
    pub step: Step,
}

/// The last steps.
#[derive(Debug)]
pub struct Paths(Ranked<VecDeque<TimedStep>>);

impl Default for Paths {
    fn default() -> Self {
        Self(Ranked::new(Rank::Paths, VecDeque::new()))
    }
}

impl Paths {
    /// Keeps the steps of a turn that has ended.
    #[cold]
    pub(crate) fn keep(&self, steps: &mut Vec<Step>) {
        let at_us = now_with_us().1.saturating_add_signed(step_ms() * 1000);
        let mut kept = self.0.lock();
        kept.extend(steps.drain(..).map(|step| TimedStep { at_us, step }));
        let over = kept.len().saturating_sub(KEPT_MAX);
        kept.drain(..over);
    }

    /// The path of the last message of a vhost that was confirmed, or of the last one if none was; its first step is
    /// that it was published. Empty if no message with a confirm was seen.
    pub fn last(&self, vhost: VhostId) -> Vec<TimedStep> {
        let kept = self.0.lock();
        let at = last_confirmed(&kept, vhost)
            .or_else(|| kept.iter().rposition(|taken| published_in(&taken.step, vhost).is_some()));
        let first = at.and_then(|at| Some((kept.get(at)?, kept.iter().skip(at + 1))));
        first.map_or_else(Vec::new, |(first, later)| path(first, later))
    }
}

/// The number of the message that a step published in a vhost.
fn published_in(step: &Step, vhost: VhostId) -> Option<u64> {
    match step.what {
        What::Published { vhost: own, number, .. } if own == vhost => Some(number),
        _ => None,
    }
}

/// Where the last message of a vhost was published that was confirmed later: each step is looked at once.
fn last_confirmed(kept: &VecDeque<TimedStep>, vhost: VhostId) -> Option<usize> {
    // By channel: all up to this number, and these.
    let mut told: HashMap<_, (u64, HashSet<u64, FixedState>), FixedState> = HashMap::default();
    kept.iter().rposition(|TimedStep { step, .. }| {
        let channel = (step.connection, step.channel);
        if let What::Confirmed { number, multiple, .. } = step.what {
            let (all, some) = told.entry(channel).or_default();
            if multiple {
                *all = number.max(*all);
            } else {
                some.insert(number);
            }
        }
        let number = published_in(step, vhost);
        let is_told =
            |(all, some): &(u64, HashSet<_, _>), number| number <= *all || some.contains(&number);
        number.is_some_and(|number| told.get(&channel).is_some_and(|it| is_told(it, number)))
    })
}

/// What became of a message that was published, of what followed.
fn path<'a>(first: &TimedStep, later: impl Iterator<Item = &'a TimedStep>) -> Vec<TimedStep> {
    let mut path = vec![first.clone()];
    let Step { connection, channel, what: What::Published { number: own, .. } } = &first.step
    else {
        return path;
    };
    let is_publishers = |step: &Step| (step.connection, step.channel) == (*connection, *channel);
    let (mut stored, mut given, mut is_confirmed) = (Vec::new(), Vec::new(), false);
    for taken in later {
        let step = &taken.step;
        let is_own = match &step.what {
            What::Published { .. } => false,
            What::Stored { number, queues, offset } => {
                let is_own = is_publishers(step) && number == own;
                if is_own {
                    stored.extend(queues.iter().map(|&queue| (queue, *offset)));
                }
                is_own
            }
            What::Delivered { tag, queue, offset, .. } => {
                let is_own = stored.contains(&(*queue, *offset));
                if is_own {
                    given.push((step.connection, step.channel, *tag));
                }
                is_own
            }
            What::Settled { tag, multiple, .. } => {
                let before = given.len();
                // Tag 0 with `multiple` is all there are.
                let covers = |of: u64| of == *tag || *multiple && (of < *tag || *tag == 0);
                given.retain(|&(to, on, of)| {
                    (to, on) != (step.connection, step.channel) || !covers(of)
                });
                given.len() < before
            }
            What::Confirmed { number, multiple, .. } => {
                let covers = number == own || *multiple && number > own;
                let is_own = is_publishers(step) && covers && !is_confirmed;
                is_confirmed |= is_own;
                is_own
            }
        };
        if is_own {
            path.push(taken.clone());
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use leveret_broker::message::NodeId;
    use leveret_queue::Offset;
    use leveret_topology::QueueId;

    use super::*;

    fn step(connection: u64, what: What) -> Step {
        Step { connection: NodeId::ALONE.connection(connection), channel: 1, what }
    }

    fn published(number: u64) -> What {
        let queues = Box::new([QueueId::new(5)]);
        let (exchange, key) = ("".into(), "q".into());
        What::Published { vhost: VhostId::new(0), number, exchange, key, queues }
    }

    fn stored(number: u64, at: u64) -> What {
        What::Stored { number, queues: Box::new([QueueId::new(5)]), offset: Offset::new(at) }
    }

    fn delivered(tag: u64, at: u64) -> What {
        let (queue, offset) = (QueueId::new(5), Offset::new(at));
        What::Delivered { tag, queue, offset, redelivered: false }
    }

    /// Two messages on two connections, mixed: each path has its own steps.
    #[test]
    fn a_path_has_the_steps_of_one_message() {
        let paths = Paths::default();
        let settled = |tag, multiple| What::Settled { tag, multiple, how: "acked".into() };
        let confirmed = |number, multiple| What::Confirmed { number, multiple, ok: true };
        let all = [
            step(1, published(1)),
            step(1, published(2)),
            step(2, published(1)),
            step(1, stored(1, 70)),
            step(1, stored(2, 71)),
            step(2, stored(1, 72)),
            step(3, delivered(8, 70)),
            step(3, delivered(9, 71)),
            step(3, settled(9, true)),
            step(1, confirmed(2, true)),
            step(3, delivered(10, 72)),
        ];
        paths.keep(&mut all.to_vec());
        let last: Vec<_> = paths.last(VhostId::new(0)).into_iter().map(|it| it.step).collect();
        let want = [1, 4, 7, 8, 9].map(|at: usize| all[at].clone());
        assert_eq!(last, want, "the last one that was confirmed");
        assert_eq!(paths.last(VhostId::new(1)), []);
        paths.keep(&mut vec![step(2, confirmed(1, false)); KEPT_MAX - 9]);
        let last: Vec<_> = paths.last(VhostId::new(0)).into_iter().map(|it| it.step).collect();
        let want = [2, 5, 10].map(|at: usize| all[at].clone());
        assert_eq!(last[..3], want);
        assert_eq!(last.len(), 4, "it is confirmed once, and older steps are forgotten");
    }

    /// Confirms of other channels, and of one message alone, confirm no other one; without any it is the last message.
    #[test]
    fn a_path_is_that_of_a_confirmed_message() {
        let confirmed = |number, multiple| What::Confirmed { number, multiple, ok: true };
        let check = |steps: &[Step], want: u64| {
            let paths = Paths::default();
            paths.keep(&mut steps.to_vec());
            let first = paths.last(VhostId::new(0)).into_iter().next().expect("a path").step.what;
            assert!(matches!(first, What::Published { number, .. } if number == want), "{first:?}");
        };
        let three = [1, 2, 3].map(|number| step(1, published(number)));
        check(&three, 3);
        check(&[&three[..], &[step(2, confirmed(3, true))]].concat(), 3);
        check(&[&three[..], &[step(1, confirmed(2, false))]].concat(), 2);
        check(
            &[&three[..], &[step(1, confirmed(2, true)), step(1, confirmed(1, false))]].concat(),
            2,
        );
        check(&[&[step(1, confirmed(3, true))], &three[..]].concat(), 3);
    }
}
