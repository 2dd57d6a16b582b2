//! Logins that wait for a thread, in fair shares: one of each address in turn, and of an address one of each
//! user in turn. Who sends many waits behind its own.
//!
//! Nothing is kept of a user of whom none waits, nor of an address.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::room::Network;

/// Jobs that wait, in the order in which networks, and users of a network, have their turns.
#[derive(Debug)]
pub(crate) struct NetworkLine<J> {
    of: HashMap<Network, Own<J>, RandomState>,
    /// The networks that have jobs, the next one first.
    round: VecDeque<Network>,
}

/// The jobs of one network.
#[derive(Debug)]
struct Own<J> {
    /// By turn, and within a turn in the order in which they came.
    waiting: BTreeMap<(u64, u64), (Arc<str>, J)>,
    users: HashMap<Arc<str>, User, RandomState>,
    /// The turn that the last one taken had.
    turn: u64,
    number: u64,
}

/// Who has some that wait.
#[derive(Debug, Default)]
struct User {
    /// Its next one's.
    turn: u64,
    waiting: u32,
}

impl<J> Default for NetworkLine<J> {
    fn default() -> Self {
        Self { of: HashMap::default(), round: VecDeque::new() }
    }
}

impl<J> NetworkLine<J> {
    pub(crate) fn push(&mut self, network: Network, name: &str, job: J) {
        let own = self.of.entry(network).or_insert_with(|| {
            self.round.push_back(network);
            let (waiting, users) = (BTreeMap::new(), HashMap::default());
            Own { waiting, users, turn: 0, number: 0 }
        });
        let name = match own.users.get_key_value(name) {
            Some((name, _)) => Arc::clone(name),
            None => name.into(),
        };
        let user = own.users.entry(Arc::clone(&name)).or_default();
        let turn = user.turn.max(own.turn);
        user.turn = turn + 1;
        user.waiting += 1;
        own.number += 1;
        own.waiting.insert((turn, own.number), (name, job));
    }

    pub(crate) fn pop(&mut self) -> Option<J> {
        let network = self.round.pop_front()?;
        let own = self.of.get_mut(&network)?;
        let ((turn, _), (name, job)) = own.waiting.pop_first()?;
        own.turn = turn;
        own.one_less(&name);
        if own.waiting.is_empty() {
            self.of.remove(&network);
        } else {
            self.round.push_back(network);
        }
        Some(job)
    }

    /// Takes those out that are not to be kept.
    pub(crate) fn retain(&mut self, mut is_kept: impl FnMut(&J) -> bool) {
        self.of.retain(|_, own| {
            let gone: Vec<_> = own.waiting.extract_if(.., |_, (_, job)| !is_kept(job)).collect();
            gone.iter().for_each(|(_, (name, _))| own.one_less(name));
            !own.waiting.is_empty()
        });
        self.round.retain(|network| self.of.contains_key(network));
    }
}

impl<J> Own<J> {
    fn one_less(&mut self, name: &str) {
        if let Some(user) = self.users.get_mut(name) {
            user.waiting -= 1;
            if user.waiting == 0 {
                self.users.remove(name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    /// Pushes words such as `1a`: address 1, user `a`; what comes out, in order.
    fn order(words: &str) -> String {
        let mut line = NetworkLine::default();
        for word in words.split(' ') {
            let (address, user) = word.split_at(1);
            let address: u8 = address.parse().unwrap();
            line.push(Some(IpAddr::from([10, 0, 0, address])), user, word);
        }
        let all: Vec<_> = std::iter::from_fn(|| line.pop()).collect();
        assert_eq!((line.of.len(), line.round.len()), (0, 0));
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
        let mut line = NetworkLine::default();
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
        assert_eq!(std::iter::from_fn(|| line.pop()).count(), 1498);
    }

    /// An address that always has one waiting, each time under another name.
    #[test]
    fn names_are_kept_while_they_wait() {
        let mut line = NetworkLine::default();
        let network = Some(IpAddr::from([10, 0, 0, 1]));
        for n in 0..1000 {
            line.push(network, &format!("user {n}"), n);
            if n > 0 {
                assert!(line.pop().is_some());
            }
        }
        assert_eq!(line.of[&network].users.len(), 1);
        for n in 0..10 {
            line.push(network, "again", n);
        }
        line.retain(|n| *n < 5);
        assert_eq!((line.of[&network].users.len(), line.of[&network].waiting.len()), (1, 5));
        line.retain(|_| false);
        assert_eq!((line.of.len(), line.round.len(), line.pop()), (0, 0, None));
    }
}
