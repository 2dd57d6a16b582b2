//! Hot path. Publisher confirms of one channel.
//!
//! Budget: no allocation per message once warm; four bytes per message between the oldest one that is
//! unresolved and the newest one published.
//!
//! ```text
//!   first                                     first + slots.len()
//!   [ 2 ][ SENT ][ 0 ][ SENT ][ 1 ][ NACK|1 ] ...
//!     |     |      |
//!     |     |      resolved in this turn, to be sent
//!     |     resolved and sent by itself, as `first` held it up
//!     two shards have not answered yet: nothing before `first` is left
//! ```
//!
//! A run that begins at `first` leaves as one `multiple`; whatever is resolved behind an unresolved one
//! leaves by itself, so that no slow queue holds up the confirms of others.
//!
//! A slot's upper half is the place of the message's exchange in [`Published`], where its confirm is counted.

use std::collections::VecDeque;

use crate::totals::Published;

/// Still to be answered by this many shards.
const COUNT: u32 = 0x3fff;
/// One of them refused it.
const NACK: u32 = 0x4000;
/// The client was told. Nothing is outstanding.
const SENT: u32 = 0x8000;

/// A frame to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Confirm {
    /// Delivery tag.
    pub(crate) tag: u64,
    /// Everything up to `tag`.
    pub(crate) multiple: bool,
    /// `basic.ack`, else `basic.nack`.
    pub(crate) ok: bool,
}

/// The ring.
#[derive(Debug)]
pub(crate) struct Confirms {
    /// Sequence numbers are delivery tags and this: what earlier channels of the connection used.
    /// Answers to a channel that was closed, still on their way, find nothing in the next one.
    base: u64,
    /// Sequence number of the ring's first slot.
    first: u64,
    slots: VecDeque<u32>,
    /// Resolved slots that the client was not told of lie in here: `dirty.0 .. dirty.1`.
    dirty: (u64, u64),
    /// Slots that are not resolved.
    outstanding: u64,
    /// Resolved by a refusal, or given up.
    nacked: u64,
    /// A message whose confirm is timed, and when it was published, in microseconds; number 0 while there is none.
    probe: (u64, u64),
    /// When the last such message was published, if it is resolved and nobody took the time yet.
    probed: Option<u64>,
}

impl Confirms {
    /// The first message gets the sequence number `base + 1`.
    pub(crate) const fn new(base: u64) -> Self {
        Self {
            base,
            first: base + 1,
            slots: VecDeque::new(),
            dirty: (u64::MAX, 0),
            outstanding: 0,
            nacked: 0,
            probe: (0, 0),
            probed: None,
        }
    }

    /// Published messages that are not resolved.
    pub(crate) fn outstanding(&self) -> u64 {
        self.outstanding
    }

    /// Messages that were refused, or given up, so far.
    pub(crate) fn nacked(&self) -> u64 {
        self.nacked
    }

    /// When the message was published whose confirm was timed and is there, in microseconds.
    pub(crate) fn take_probe(&mut self) -> Option<u64> {
        self.probed.take()
    }

    /// Whether [`take`](Self::take) would give anything.
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty.0 < self.dirty.1
    }

    /// The number the next message gets.
    pub(crate) fn next_sequence(&self) -> u64 {
        self.first + self.slots.len() as u64
    }

    /// The message that `published` has just counted was routed to queues of `shards` shards. Gives its
    /// sequence number.
    pub(crate) fn publish(&mut self, shards: usize, now_us: u64, published: &mut Published) -> u64 {
        let sequence = self.next_sequence();
        let place = published.place();
        self.slots.push_back(shards.min(COUNT as usize) as u32 | u32::from(place) << 16);
        if shards == 0 {
            published.confirmed(place);
            self.touch(sequence);
        } else {
            self.outstanding += 1;
            if self.probe.0 == 0 {
                self.probe = (sequence, now_us);
            }
        }
        sequence
    }

    /// A shard resolved `first..=last`. Numbers that are not outstanding are passed over.
    pub(crate) fn resolve(&mut self, first: u64, last: u64, ok: bool, published: &mut Published) {
        let first = first.max(self.first);
        for sequence in first..self.next_sequence().min(last.saturating_add(1)) {
            let slot = &mut self.slots[(sequence - self.first) as usize];
            if *slot & COUNT == 0 {
                continue;
            }
            *slot -= 1;
            if !ok {
                *slot |= NACK;
            }
            if *slot & COUNT == 0 {
                match *slot & NACK {
                    0 => published.confirmed((*slot >> 16) as u16),
                    _ => self.nacked += 1,
                }
                self.outstanding -= 1;
                self.touch(sequence);
            }
        }
        self.look_at_probe(last);
    }

    /// Nothing more is awaited for `first..=last`: what is not resolved was not.
    pub(crate) fn give_up(&mut self, first: u64, last: u64) {
        let first = first.max(self.first);
        for sequence in first..self.next_sequence().min(last.saturating_add(1)) {
            let slot = &mut self.slots[(sequence - self.first) as usize];
            if *slot & COUNT != 0 {
                *slot = NACK;
                self.nacked += 1;
                self.outstanding -= 1;
                self.touch(sequence);
            }
        }
        self.look_at_probe(last);
    }

    /// Messages up to `last` may have been resolved.
    fn look_at_probe(&mut self, last: u64) {
        let (sequence, since) = self.probe;
        if sequence == 0 || sequence > last {
            return;
        }
        let slot = self.slots.get((sequence - self.first) as usize);
        if slot.is_none_or(|slot| slot & COUNT == 0) {
            self.probe.0 = 0;
            self.probed = Some(since);
        }
    }

    fn touch(&mut self, sequence: u64) {
        self.dirty.0 = self.dirty.0.min(sequence);
        self.dirty.1 = self.dirty.1.max(sequence + 1);
    }

    /// Tells everything resolved since the last call, in order, in as few frames as can be.
    pub(crate) fn take(&mut self, mut send: impl FnMut(Confirm)) {
        let (from, to) = std::mem::replace(&mut self.dirty, (u64::MAX, 0));
        if from >= to {
            return;
        }
        if from == self.first {
            self.take_front(&mut send);
        }
        let base = self.base;
        for sequence in from.max(self.first)..to {
            let slot = &mut self.slots[(sequence - self.first) as usize];
            if *slot & (COUNT | SENT) == 0 {
                send(Confirm { tag: sequence - base, multiple: false, ok: *slot & NACK == 0 });
                *slot |= SENT;
            }
        }
    }

    /// Gives and forgets the run of resolved slots at the front.
    fn take_front(&mut self, send: &mut impl FnMut(Confirm)) {
        // The run in hand: its kind, how many of it the client does not know, its last number.
        let mut run: Option<(bool, u64, u64)> = None;
        while let Some(&slot) = self.slots.front() {
            if slot & COUNT != 0 {
                break;
            }
            let tag = self.first - self.base;
            self.slots.pop_front();
            self.first += 1;
            if slot & SENT != 0 {
                continue;
            }
            let ok = slot & NACK == 0;
            run = Some(match run {
                Some((kind, count, _)) if kind == ok => (kind, count + 1, tag),
                other => {
                    send_run(other, send);
                    (ok, 1, tag)
                }
            });
        }
        send_run(run, send);
        if self.slots.is_empty() && self.slots.capacity() > 4096 {
            self.slots = VecDeque::new();
        }
    }
}

fn send_run(run: Option<(bool, u64, u64)>, send: &mut impl FnMut(Confirm)) {
    if let Some((ok, count, tag)) = run {
        send(Confirm { tag, multiple: count > 1, ok });
    }
}

#[cfg(test)]
mod tests {
    use leveret_topology::ExchangeId;

    use super::*;

    const NOW_US: u64 = 7;

    /// `3` publishes to three shards; `+2..4` and `-2` resolve, `!2` gives up; then what is sent: `4*` is
    /// multiple, `-3` a nack.
    #[track_caller]
    fn check(script: &str, want: &str) {
        let mut confirms = Confirms::new(0);
        let mut published = Published::default();
        let mut sent = Vec::new();
        for word in script.split_whitespace() {
            if word == "|" {
                confirms.take(|c| sent.push(c));
            } else if let Some(range) = word.strip_prefix(['+', '-', '!']) {
                let (first, last) = range.split_once("..").unwrap_or((range, range));
                let number = |text: &str| text.parse().unwrap();
                let (first, last) = (number(first), number(last));
                match word.starts_with('!') {
                    true => confirms.give_up(first, last),
                    false => confirms.resolve(first, last, word.starts_with('+'), &mut published),
                }
            } else {
                confirms.publish(word.parse().unwrap(), NOW_US, &mut published);
            }
        }
        confirms.take(|c| sent.push(c));
        let sent: Vec<String> = sent
            .iter()
            .map(|c| {
                let (sign, star) = (if c.ok { "" } else { "-" }, if c.multiple { "*" } else { "" });
                format!("{sign}{}{star}", c.tag)
            })
            .collect();
        assert_eq!(sent.join(" "), want, "{script}");
    }

    #[test]
    #[rustfmt::skip] // a table
    fn runs() {
        check("1 +1",                        "1");
        check("1 1 1 +1..3",                 "3*");
        check("1 1 1 +1 | +2..3",            "1 3*");
        check("1 1 1 +2 | +1 | +3",          "2 1 3");     // 2 was told before
        check("1 1 1 1 +2 | +1..4",          "2 4*");
        check("1 1 1 +2 +1",                 "2*");
        check("0",                           "1");         // unroutable
        check("1 0 0",                       "2 3");       // told at once, whatever is before
        check("1 0 0 | +1",                  "2 3 1");
        check("0 0 1",                       "2*");
        check("2 +1",                        "");          // one of two shards
        check("2 +1 +1",                     "1");
        check("2 +1 -1",                     "-1");
        check("2 -1 +1",                     "-1");
        check("1 1 1 1 +1..2 -3 +4",         "2* -3 4");
        check("1 1 1 -1..3",                 "-3*");
        check("1 +1 | +1",                   "1");         // twice
        check("1 +5..9",                     "");          // never published
        check("1 +0",                        "");
        check("2 !1",                        "-1");        // whatever the other shard would say
        check("2 2 +1..2 !2 | +2 +1",        "-2 1");
        check("1 +1 !1",                     "1");
    }

    /// A channel that was closed is still answered when another has taken its number.
    #[test]
    fn answers_to_an_earlier_channel_find_nothing() {
        let published = &mut Published::default();
        let mut old = Confirms::new(0);
        assert_eq!((old.publish(1, NOW_US, published), old.publish(1, NOW_US, published)), (1, 2));
        let mut new = Confirms::new(old.next_sequence() - 1);
        let sequence = new.publish(1, NOW_US, published);
        let mut told = Vec::new();
        new.resolve(1, 2, true, published);
        new.take(|c| told.push(c));
        assert_eq!(told, []);
        new.resolve(sequence, sequence, false, published);
        new.take(|c| told.push(c));
        assert_eq!(told, [Confirm { tag: 1, multiple: false, ok: false }]);
    }

    /// Whatever the order and the cuts, each number is told once (a multiple tells those not told yet).
    #[test]
    fn each_is_told_once() {
        let mut random = crate::random::Random::new(3);
        for _ in 0..300 {
            let mut confirms = Confirms::new(0);
            let mut published = Published::default();
            let count = random.next() % 40 + 1;
            let mut left: Vec<u64> = Vec::new();
            for _ in 0..count {
                let shards = random.next() % 3;
                let sequence = confirms.publish(shards as usize, NOW_US, &mut published);
                left.extend((0..shards).map(|_| sequence));
            }
            let mut told = vec![0_u32; count as usize + 1];
            let mut tell = |c: Confirm| {
                let from = if c.multiple { 1 } else { c.tag };
                for tag in from..=c.tag {
                    let tag = tag as usize;
                    if tag as u64 == c.tag || told[tag] == 0 {
                        told[tag] += 1;
                    }
                }
            };
            while !left.is_empty() {
                let at = (random.next() % left.len() as u64) as usize;
                let sequence = left.swap_remove(at);
                let ok = !random.next().is_multiple_of(4);
                confirms.resolve(sequence, sequence, ok, &mut published);
                if random.next().is_multiple_of(3) {
                    confirms.take(&mut tell);
                }
            }
            confirms.take(&mut tell);
            assert_eq!(confirms.outstanding(), 0);
            assert!(confirms.slots.is_empty());
            assert!(told[1..].iter().all(|&n| n == 1), "{told:?}");
        }
    }

    /// Each confirm counts for the exchange that its message was published to, whatever was published since.
    #[test]
    fn confirms_count_for_their_exchange() {
        let mut confirms = Confirms::new(0);
        let mut published = Published::default();
        for (exchange, shards) in [(1, 1), (1, 2), (2, 1), (1, 1), (2, 0), (3, 1)] {
            published.count(ExchangeId::new(exchange), shards as u64);
            confirms.publish(shards, NOW_US, &mut published);
        }
        confirms.resolve(1, 3, true, &mut published); // 2 waits for another shard
        confirms.resolve(4, 4, false, &mut published);
        confirms.give_up(6, 6);
        let counts: Vec<_> = published.iter().map(|(id, it)| (id.get(), it.confirm)).collect();
        assert_eq!(counts, [(1, 1), (2, 2), (3, 0)]);
        assert_eq!((confirms.nacked(), confirms.outstanding()), (2, 1));
        confirms.resolve(1, 6, true, &mut published);
        assert_eq!(published.sum().confirm, 4);
    }
}
