use super::*;
use crate::message::{NodeId, ToSession};

/// A plain random source: the state is the seed.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

const NOW: Time = Time::from_ms(1_000);
const NO_WAIT: Wait = Wait { now: NOW, defer_ms: None, timeout_ms: None, for_all: 0 };
const UNTIL: [Until; 5] = [
    Until::Now,
    Until::First,
    Until::Durable,
    Until::Acked { dead_letter_acks: false },
    Until::Acked { dead_letter_acks: true },
];

/// What the page says, said plainly.
struct Plain {
    at: u64,
    /// So many of its queues want it on the disks of all.
    for_all: u16,
    /// Queue, rule, and how it left.
    queues: Vec<(QueueId, Until, Option<Way>)>,
}

impl Plain {
    /// The disk of a message is that of all as long as one of its queues wants that.
    fn is_resolved(&self, durable: u64, on_all: u64) -> bool {
        let durable = if self.for_all > 0 { on_all } else { durable };
        self.queues.iter().all(|(_, until, way)| match until {
            Until::Now => true,
            Until::First => self.at < durable || way.is_some(),
            Until::Durable => self.at < durable,
            Until::Acked { .. } => way.is_some(),
        })
    }

    fn is_ok(&self) -> bool {
        self.queues.iter().all(|&(_, until, way)| match (until, way) {
            (Until::Acked { .. }, Some(Way::Acked)) => true,
            (Until::Acked { dead_letter_acks }, Some(Way::DeadLettered)) => dead_letter_acks,
            (Until::Acked { .. }, _) => false,
            _ => true,
        })
    }
}

fn told(confirms: &mut Confirms) -> Vec<(u64, bool)> {
    let mut out = Outbox::default();
    confirms.flush(&mut out);
    confirms.flush_acked(&mut out);
    let mut told: Vec<(u64, bool)> = out
        .sessions
        .iter()
        .flat_map(|(_, letter)| match *letter {
            ToSession::Confirm { first, last, ok, .. } => (first..=last).map(move |seq| (seq, ok)),
            ref other => panic!("{other:?}"),
        })
        .collect();
    told.sort_unstable();
    told
}

fn add(confirms: &mut Confirms, plain: &Plain, wait: Wait) {
    let mut slot = UnresolvedMessage {
        to: NodeId::ALONE.connection(1),
        seq: plain.at + 1,
        channel: 1,
        ..UnresolvedMessage::default()
    };
    plain.queues.iter().for_each(|&(_, until, _)| slot.count(until));
    let is_mixed = plain.queues.iter().any(|&(_, until, _)| until != plain.queues[0].1);
    let mixed = is_mixed.then(|| plain.queues.iter().map(|&(id, until, _)| (id, until)).collect());
    if slot.is_resolved() {
        return;
    }
    let for_all = if slot.waits_for_disk() { plain.for_all } else { 0 };
    confirms.add(plain.at, slot, mixed, Wait { for_all, ..wait });
}

/// Random messages, acks and disks: each is told once, at the moment that the rules say, never before.
#[test]
fn agrees_with_the_rules_said_plainly() {
    for seed in 0..30_u64 {
        let mut state = seed;
        // From those that hardly leave anything behind to those that leave nearly all.
        let slowness = [2, 20, 2_000][seed as usize % 3];
        let (mut end, mut durable, mut on_all) = (0_u64, 0_u64, 0_u64);
        let mut confirms = Confirms::default();
        let mut plain: Vec<Plain> = Vec::new();
        // A queue's rule was changed, and the disk has not got there yet.
        let mut to_be_freed: Vec<(u64, QueueId)> = Vec::new();
        for _ in 0..3_000 {
            match next(&mut state) % 12 {
                0..4 => {
                    end += if next(&mut state).is_multiple_of(200) {
                        3_000
                    } else {
                        next(&mut state) % 3
                    };
                    let at = end;
                    end += 1;
                    let rule = next(&mut state) as usize % 5;
                    let is_mixed = next(&mut state).is_multiple_of(3);
                    let for_all = [0, 0, 1, 2][next(&mut state) as usize % 4];
                    let queues = (0..1 + next(&mut state) % 3)
                        .map(|queue| {
                            let own = next(&mut state) as usize % 5;
                            let until = UNTIL[if is_mixed { own } else { rule }];
                            (QueueId::new(queue), until, None)
                        })
                        .collect();
                    let message = Plain { at, for_all, queues };
                    if !message.is_resolved(durable, on_all) {
                        add(&mut confirms, &message, NO_WAIT);
                        plain.push(message);
                    }
                }
                4 => {
                    durable += next(&mut state) % (end - durable + 1);
                    confirms.durable(durable);
                }
                5 if !plain.is_empty() => {
                    let message = &plain[next(&mut state) as usize % plain.len()];
                    let at = next(&mut state) as usize % message.queues.len();
                    let (id, until, way) = message.queues[at];
                    if way.is_none() {
                        let waits = confirms.begin_to_free(message.at, id);
                        assert_eq!(waits, matches!(until, Until::Acked { .. }), "seed {seed}");
                        to_be_freed.extend(waits.then_some((message.at, id)));
                    }
                }
                6 if !to_be_freed.is_empty() => {
                    let some = next(&mut state) as usize % to_be_freed.len();
                    let (at, id) = to_be_freed.swap_remove(some);
                    confirms.freed(at, id, true);
                    let of_it = plain.iter_mut().filter(|message| message.at == at);
                    let mut queues = of_it.flat_map(|message| &mut message.queues);
                    if let Some(queue) =
                        queues.find(|(other, _, way)| *other == id && way.is_none())
                    {
                        queue.1 = Until::Now;
                    }
                }
                7 => {
                    on_all += next(&mut state) % (durable - on_all + 1);
                    confirms.on_all(on_all);
                }
                8 if !plain.is_empty() && next(&mut state).is_multiple_of(4) => {
                    let at = next(&mut state) as usize % plain.len();
                    plain[at].for_all = plain[at].for_all.saturating_sub(1);
                    confirms.wants_majority(plain[at].at);
                }
                _ if !plain.is_empty() => {
                    // Mostly the newest.
                    let back = next(&mut state) as usize % slowness.min(plain.len());
                    let at = plain.len() - 1 - back;
                    let message = &mut plain[at];
                    let open: Vec<usize> = (0..message.queues.len())
                        .filter(|&queue| message.queues[queue].2.is_none())
                        .collect();
                    if let Some(&queue) = open.get(next(&mut state) as usize % open.len().max(1)) {
                        let way = match next(&mut state) % 6 {
                            0 => Way::Lost,
                            1 => Way::DeadLettered,
                            _ => Way::Acked,
                        };
                        message.queues[queue].2 = Some(way);
                        let (id, at) = (message.queues[queue].0, message.at);
                        confirms.left(at, id, way);
                    }
                }
                _ => {}
            }
            let resolved = plain.iter().filter(|message| message.is_resolved(durable, on_all));
            let want: Vec<_> = resolved.map(|it| (it.at + 1, it.is_ok())).collect();
            assert_eq!(told(&mut confirms), want, "seed {seed}");
            plain.retain(|message| !message.is_resolved(durable, on_all));
            assert_eq!(confirms.len(), plain.len(), "seed {seed}");
            assert_eq!(confirms.is_empty(), plain.is_empty());
        }
    }
}

/// A consumer that never acks does not make all that follows take memory.
#[test]
fn what_stays_behind_does_not_pin_the_rest() {
    let mut confirms = Confirms::default();
    let queue = QueueId::new(1);
    for at in 0..200_000 {
        let until = if at % 1000 == 0 { UNTIL[3] } else { Until::First };
        add(&mut confirms, &Plain { at, for_all: 0, queues: vec![(queue, until, None)] }, NO_WAIT);
        if at > 10 {
            confirms.durable(at - 10);
        }
    }
    assert!(
        confirms.bytes() < 2 * CROWDED as u64 * UnresolvedMessage::BYTES,
        "{}",
        confirms.bytes()
    );
    assert_eq!(confirms.old.len() + confirms.taken, 200 + 11);
    confirms.left(5_000, queue, Way::Acked);
    assert!(told(&mut confirms).contains(&(5_001, true)));
}

#[test]
fn deadlines_find_what_stayed_behind() {
    let mut confirms = Confirms::default();
    let queues = || vec![(QueueId::new(1), UNTIL[3], None)];
    let wait = Wait { now: NOW, defer_ms: Some(100), timeout_ms: Some(300), for_all: 0 };
    add(&mut confirms, &Plain { at: 0, for_all: 0, queues: queues() }, wait);
    add(&mut confirms, &Plain { at: 5_000, for_all: 0, queues: queues() }, NO_WAIT);
    assert_eq!(confirms.old.len(), 1);
    let mut persisted = Vec::new();
    assert_eq!(confirms.next_timeout(), Some(NOW.after_ms(100)));
    confirms.fire(NOW.after_ms(100), |at| persisted.push(at));
    assert_eq!(persisted, [0]);
    assert_eq!(confirms.next_timeout(), Some(NOW.after_ms(300)));
    confirms.fire(NOW.after_ms(300), |at| persisted.push(at));
    assert_eq!((persisted.len(), confirms.len(), confirms.confirmed.nacked), (1, 1, 1));
}

#[test]
fn thirty_two_bytes() {
    assert_eq!(UnresolvedMessage::BYTES, 32);
}

/// More queues than a slot can count: no confirm before all have it.
#[test]
fn a_fan_out_that_cannot_be_counted() {
    let many = usize::from(u16::MAX) + 2;
    let rules = [Until::First, Until::Acked { dead_letter_acks: false }];
    for (rule, want) in rules.into_iter().zip([true, false]) {
        let mut confirms = Confirms::default();
        let mut slot = UnresolvedMessage { seq: 1, ..UnresolvedMessage::default() };
        (0..many).for_each(|_| slot.count(rule));
        assert!(!slot.is_resolved() && (rule != Until::First || slot.waits_for_disk()));
        confirms.add(0, slot, None, NO_WAIT);
        for id in 0..many as u64 - 1 {
            confirms.left(0, QueueId::new(id), Way::Acked);
        }
        let too_early: &[_] = if want { &[] } else { &[(1, false)] };
        assert_eq!(told(&mut confirms), too_early, "{rule:?}");
        confirms.durable(1);
        assert_eq!(told(&mut confirms).len(), usize::from(want), "{rule:?}");
        assert!(confirms.is_empty());
    }
}
