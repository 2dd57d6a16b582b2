//! Logins that wait for a thread, in fair shares: one of each address in turn, and of an address one of each
//! user in turn. Who sends many waits behind its own.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

/// Where a login comes from; none if that is not known.
type Source = Option<IpAddr>;

#[derive(Debug)]
pub(super) struct Line<J> {
    of: HashMap<Source, Own<J>, RandomState>,
    /// The sources that have some, the next one first.
    round: VecDeque<Source>,
    count: usize,
}

/// Those of one source.
#[derive(Debug)]
struct Own<J> {
    /// By turn, and within a turn in the order in which they came.
    waiting: BTreeMap<(u64, u64), J>,
    /// The next turn of each user. Forgotten when none waits.
    turns: HashMap<Box<str>, u64, RandomState>,
    /// The turn that the last one taken had.
    turn: u64,
    number: u64,
}

impl<J> Default for Line<J> {
    fn default() -> Self {
        Self { of: HashMap::default(), round: VecDeque::new(), count: 0 }
    }
}

impl<J> Line<J> {
    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn push(&mut self, source: Source, user: &str, job: J) {
        let own = self.of.entry(source).or_insert_with(|| {
            self.round.push_back(source);
            Own { waiting: BTreeMap::new(), turns: HashMap::default(), turn: 0, number: 0 }
        });
        let turn = own.turns.get(user).map_or(own.turn, |&next| next.max(own.turn));
        own.turns.insert(user.into(), turn + 1);
        own.number += 1;
        own.waiting.insert((turn, own.number), job);
        self.count += 1;
    }

    pub(super) fn pop(&mut self) -> Option<J> {
        let source = self.round.pop_front()?;
        let own = self.of.get_mut(&source)?;
        let ((turn, _), job) = own.waiting.pop_first()?;
        own.turn = turn;
        self.count -= 1;
        if own.waiting.is_empty() {
            self.of.remove(&source);
        } else {
            self.round.push_back(source);
        }
        Some(job)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pushes words such as `1a`: address 1, user `a`; what comes out, in order.
    fn order(words: &str) -> String {
        let mut line = Line::default();
        for word in words.split(' ') {
            let (address, user) = word.split_at(1);
            let address: u8 = address.parse().unwrap();
            line.push(Some(IpAddr::from([10, 0, 0, address])), user, word);
        }
        let all: Vec<_> = std::iter::from_fn(|| line.pop()).collect();
        assert_eq!((line.len(), line.of.len(), line.round.len()), (0, 0, 0));
        all.join(" ")
    }

    #[test]
    #[rustfmt::skip] // a table
    fn shares() {
        assert_eq!(order("1a 1a 1a 2b"),             "1a 2b 1a 1a");
        assert_eq!(order("1a 1a 1a 1b"),             "1a 1b 1a 1a");
        assert_eq!(order("1a 1b 1c 2a 2a"),          "1a 2a 1b 2a 1c");
        assert_eq!(order("1a 1a 1b 1b 2c 3d 3d"),    "1a 2c 3d 1b 3d 1a 1b");
    }

    #[test]
    fn who_comes_later_waits_for_one_of_each() {
        let mut line = Line::default();
        let flood = Some(IpAddr::from([10, 0, 0, 1]));
        for n in 0..2000 {
            line.push(flood, "flood", n);
        }
        for _ in 0..500 {
            line.pop();
        }
        line.push(flood, "other", 5000);
        line.push(Some(IpAddr::from([10, 0, 0, 2])), "else", 6000);
        let next: Vec<_> = (0..4).filter_map(|_| line.pop()).collect();
        assert!(next.contains(&5000) && next.contains(&6000), "{next:?}");
        assert_eq!(line.len(), 1498);
    }
}
