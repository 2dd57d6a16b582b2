//! Turns of logins that are being asked about, by address: none has more than half of the connections, and those that wait
//! take turns by address.
//!
//! A directory may take seconds for a wrong password. Whoever sends many of them waits behind its own, and leaves
//! connections to others; many such addresses cost another one a wait for one login of each.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use tokio::sync::oneshot;

use crate::source::network_of;

/// Whose share it is; none if that is not known.
type Network = Option<IpAddr>;

/// The shares of a pool. Nothing is kept of an address that has none.
#[derive(Debug)]
pub(super) struct PoolShares {
    most: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    free: usize,
    of: HashMap<Network, Own, RandomState>,
    /// The addresses of which some wait, by the number of their turn.
    round: BTreeMap<u64, Network>,
    /// Of turns, and of logins that wait.
    numbers: u64,
}

/// What one network has of the pool.
#[derive(Debug, Default)]
struct Own {
    taken: usize,
    /// Its number in the round, while some wait.
    turn: u64,
    waiting: BTreeMap<u64, oneshot::Sender<PoolShare>>,
}

impl State {
    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Keeps nothing of an address that has no turn and waits for none.
    fn forget(&mut self, network: Network) {
        if self.of.get(&network).is_some_and(|own| own.taken == 0 && own.waiting.is_empty()) {
            self.of.remove(&network);
        }
    }
}

impl PoolShares {
    /// Of a pool of so many connections.
    pub(super) fn new(pool_size: usize) -> Arc<Self> {
        let (of, round) = (HashMap::default(), BTreeMap::new());
        let state = State { free: pool_size, of, round, numbers: 0 };
        Arc::new(Self { most: pool_size.div_ceil(2), state: Mutex::new(state) })
    }

    /// Waits for the turn of a login from this address. None if it cannot come any more.
    pub(super) async fn take(self: &Arc<Self>, address: &str) -> Option<PoolShare> {
        let mut waiting = self.wait(address.parse().ok().map(network_of));
        (&mut waiting.share).await.ok()
    }

    fn wait(self: &Arc<Self>, network: Network) -> WaitingLogin {
        let (sender, share) = oneshot::channel();
        let mut guard = self.lock();
        let state = &mut *guard;
        let number = state.number();
        let own = state.of.entry(network).or_default();
        own.waiting.insert(number, sender);
        if own.waiting.len() == 1 {
            own.turn = number;
            state.round.insert(number, network);
        }
        self.give(state);
        WaitingLogin { shares: Arc::clone(self), network, number, share }
    }

    /// Gives what is free to those whose turn it is. An address that has its half keeps its place: there are two such
    /// addresses at most.
    fn give(self: &Arc<Self>, state: &mut State) {
        while state.free > 0 {
            let may_have = |network| state.of.get(network).is_some_and(|own| own.taken < self.most);
            let next = state.round.iter().find(|(_, network)| may_have(*network));
            let Some((&turn, &network)) = next else { return };
            state.round.remove(&turn);
            let number = state.number();
            let Some(own) = state.of.get_mut(&network) else { continue };
            let Some((_, sender)) = own.waiting.pop_first() else { continue };
            if !own.waiting.is_empty() {
                own.turn = number;
                state.round.insert(number, network);
            }
            let share = PoolShare { of: Some(Arc::clone(self)), network };
            match sender.send(share) {
                Ok(()) => (own.taken, state.free) = (own.taken + 1, state.free - 1),
                // Who gives up waiting is no longer here before it stops listening.
                Err(mut share) => drop(share.of.take()),
            }
            state.forget(network);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A login that waits. Who gives up takes no turn, and nothing is kept of it.
struct WaitingLogin {
    shares: Arc<PoolShares>,
    network: Network,
    number: u64,
    share: oneshot::Receiver<PoolShare>,
}

impl Drop for WaitingLogin {
    fn drop(&mut self) {
        let mut guard = self.shares.lock();
        let state = &mut *guard;
        let Some(own) = state.of.get_mut(&self.network) else { return };
        if own.waiting.remove(&self.number).is_some() && own.waiting.is_empty() {
            state.round.remove(&own.turn);
            state.forget(self.network);
        }
    }
}

/// A login's use of a connection of the pool, given back when it is dropped.
#[derive(Debug)]
pub(super) struct PoolShare {
    /// None if it was never taken.
    of: Option<Arc<PoolShares>>,
    network: Network,
}

impl Drop for PoolShare {
    fn drop(&mut self) {
        let Some(shares) = self.of.take() else { return };
        let mut state = shares.lock();
        state.free += 1;
        if let Some(own) = state.of.get_mut(&self.network) {
            own.taken -= 1;
        }
        state.forget(self.network);
        shares.give(&mut state);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    type Taking<'a> = Pin<Box<dyn Future<Output = Option<PoolShare>> + 'a>>;

    /// A turn, or what waits for it.
    fn take<'a>(shares: &'a Arc<PoolShares>, address: &'a str) -> Result<PoolShare, Taking<'a>> {
        let mut taking: Taking<'a> = Box::pin(shares.take(address));
        poll(&mut taking).ok_or(taking)
    }

    fn poll(taking: &mut Taking<'_>) -> Option<PoolShare> {
        match taking.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(share) => share,
            Poll::Pending => None,
        }
    }

    #[test]
    fn one_address_leaves_half_to_others() {
        let shares = PoolShares::new(4);
        let first = take(&shares, "10.0.0.1").ok().unwrap();
        let second = take(&shares, "10.0.0.1").ok().unwrap();
        let Err(mut third) = take(&shares, "10.0.0.1") else { panic!("it has its half") };
        let other = take(&shares, "2001:db8::1").ok().unwrap();
        let same = take(&shares, "2001:db8::2").ok().unwrap();
        let Err(mut last) = take(&shares, "2001:db8:0:100::1") else { panic!("there is none") };
        drop(first);
        assert!(poll(&mut third).is_some(), "it was there before");
        let last_one = poll(&mut last).expect("the one that was given back at once");
        drop((second, other, same, last_one, third, last));
        assert!(shares.lock().of.is_empty() && shares.lock().free == 4);
        assert_eq!(PoolShares::new(1).most, 1);
    }

    #[test]
    fn many_addresses_take_turns() {
        let shares = PoolShares::new(2);
        let addresses: Vec<_> = (1..=20).map(|number| format!("10.0.0.{number}")).collect();
        // Each sends many.
        let mut waiting: Vec<_> = Vec::new();
        let mut held = VecDeque::new();
        for _ in 0..10 {
            for address in &addresses {
                match take(&shares, address) {
                    Ok(share) => held.push_back(share),
                    Err(taking) => waiting.push(taking),
                }
            }
        }
        let Err(mut honest) = take(&shares, "10.0.1.1") else { panic!("all are taken") };
        let mut ends = 0;
        let share = loop {
            drop(held.pop_front());
            ends += 1;
            held.extend(waiting.iter_mut().find_map(poll_once));
            if let Some(share) = poll(&mut honest) {
                break share;
            }
        };
        assert!(ends <= 21, "it waited for {ends} logins");
        drop((share, held, waiting, honest));
        assert!(shares.lock().of.is_empty() && shares.lock().free == 2);
        assert!(shares.lock().round.is_empty());
    }

    /// Futures that are done are not polled again.
    fn poll_once(taking: &mut Taking<'_>) -> Option<PoolShare> {
        let share = poll(taking)?;
        *taking = Box::pin(std::future::pending());
        Some(share)
    }

    #[test]
    fn who_gives_up_waiting_takes_nothing() {
        let shares = PoolShares::new(1);
        let first = take(&shares, "10.0.0.1").ok().unwrap();
        let Err(second) = take(&shares, "10.0.0.1") else { panic!("there is one") };
        let Err(mut third) = take(&shares, "10.0.0.2") else { panic!("there is one") };
        drop(second);
        drop(first);
        let held = poll(&mut third).unwrap();
        let Err(fourth) = take(&shares, "10.0.0.3") else { panic!("it is being used") };
        // It is given to somebody who looks no more, and comes back.
        drop(held);
        drop(fourth);
        assert!(shares.lock().of.is_empty() && shares.lock().free == 1);
    }

    /// Who gives up costs its address no turn, and one of which nobody waits any more is kept nowhere.
    #[test]
    fn who_gives_up_waiting_uses_up_no_turn() {
        let shares = PoolShares::new(1);
        let first = take(&shares, "10.0.0.1").ok().unwrap();
        let waiting = |address| take(&shares, address).expect_err("there is one");
        let (gives_up, mut own) = (waiting("10.0.0.2"), waiting("10.0.0.2"));
        let mut other = waiting("10.0.0.3");
        let alone = waiting("10.0.0.4");
        drop((gives_up, alone));
        let kept = |state: &State| (state.of.len(), state.round.len());
        assert_eq!(kept(&shares.lock()), (3, 2));
        drop(first);
        assert!(poll(&mut other).is_none(), "another one was there before");
        let own_share = poll(&mut own).expect("its address had the turn");
        drop(own_share);
        let other_share = poll(&mut other).expect("the next turn");
        drop((other_share, own, other));
        assert_eq!(kept(&shares.lock()), (0, 0));
    }
}
