//! Turns of logins that are being asked about, by address: none has more than half of the connections, and those that wait
//! take turns by address.
//!
//! A directory may take seconds for a wrong password. Whoever sends many of them waits behind its own, and leaves
//! connections to others; many such addresses cost another one a wait for one login of each.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use tokio::sync::oneshot;

use crate::source::network_of;

/// Whose share it is; none if that is not known.
type Source = Option<IpAddr>;

/// The shares of a pool. Nothing is kept of an address that has none.
#[derive(Debug)]
pub(super) struct Shares {
    most: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    free: usize,
    of: HashMap<Source, Own, RandomState>,
    /// The addresses of which some wait, each once, the next one first.
    round: VecDeque<Source>,
}

/// Those of one address.
#[derive(Debug, Default)]
struct Own {
    taken: usize,
    waiting: VecDeque<oneshot::Sender<Share>>,
}

impl Shares {
    /// Of a pool of so many connections.
    pub(super) fn new(pool_size: usize) -> Arc<Self> {
        let state = State { free: pool_size, of: HashMap::default(), round: VecDeque::new() };
        Arc::new(Self { most: pool_size.div_ceil(2), state: Mutex::new(state) })
    }

    /// Waits for the turn of a login from this address. None if it cannot come any more.
    pub(super) async fn take(self: &Arc<Self>, address: &str) -> Option<Share> {
        let source = address.parse().ok().map(network_of);
        let waiting = {
            let mut state = self.lock();
            let own = state.of.entry(source).or_default();
            let (sender, waiting) = oneshot::channel();
            own.waiting.push_back(sender);
            if own.waiting.len() == 1 {
                state.round.push_back(source);
            }
            self.give(&mut state);
            waiting
        };
        waiting.await.ok()
    }

    /// Gives what is free to those whose turn it is. One round looks at each address once.
    fn give(self: &Arc<Self>, state: &mut State) {
        let mut passed = 0;
        while state.free > 0 && passed < state.round.len() {
            let Some(source) = state.round.pop_front() else { return };
            let Some(own) = state.of.get_mut(&source) else { continue };
            let may_have = own.taken < self.most;
            let next = if may_have { own.waiting.pop_front() } else { None };
            if let Some(sender) = next {
                let share = Share { of: Some(Arc::clone(self)), source };
                match sender.send(share) {
                    Ok(()) => (own.taken, state.free) = (own.taken + 1, state.free - 1),
                    // Who gave up waiting.
                    Err(mut share) => drop(share.of.take()),
                }
                passed = 0;
            } else {
                passed += 1;
            }
            if !own.waiting.is_empty() {
                state.round.push_back(source);
            } else if own.taken == 0 {
                state.of.remove(&source);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A turn. Given back when it is dropped.
#[derive(Debug)]
pub(super) struct Share {
    /// None if it was never taken.
    of: Option<Arc<Shares>>,
    source: Source,
}

impl Drop for Share {
    fn drop(&mut self) {
        let Some(shares) = self.of.take() else { return };
        let mut state = shares.lock();
        state.free += 1;
        if let Some(own) = state.of.get_mut(&self.source) {
            own.taken -= 1;
            if own.taken == 0 && own.waiting.is_empty() {
                state.of.remove(&self.source);
            }
        }
        shares.give(&mut state);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    type Taking<'a> = Pin<Box<dyn Future<Output = Option<Share>> + 'a>>;

    /// A turn, or what waits for it.
    fn take<'a>(shares: &'a Arc<Shares>, address: &'a str) -> Result<Share, Taking<'a>> {
        let mut taking: Taking<'a> = Box::pin(shares.take(address));
        poll(&mut taking).ok_or(taking)
    }

    fn poll(taking: &mut Taking<'_>) -> Option<Share> {
        match taking.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(share) => share,
            Poll::Pending => None,
        }
    }

    #[test]
    fn one_address_leaves_half_to_others() {
        let shares = Shares::new(4);
        let first = take(&shares, "10.0.0.1").ok().unwrap();
        let second = take(&shares, "10.0.0.1").ok().unwrap();
        let Err(mut third) = take(&shares, "10.0.0.1") else { panic!("it has its half") };
        let other = take(&shares, "2001:db8::1").ok().unwrap();
        let same = take(&shares, "2001:db8::2").ok().unwrap();
        let Err(mut last) = take(&shares, "2001:db8:0:1::1") else { panic!("there is none") };
        drop(first);
        assert!(poll(&mut third).is_some(), "it was there before");
        let last_one = poll(&mut last).expect("the one that was given back at once");
        drop((second, other, same, last_one, third, last));
        assert!(shares.lock().of.is_empty() && shares.lock().free == 4);
        assert_eq!(Shares::new(1).most, 1);
    }

    #[test]
    fn many_addresses_take_turns() {
        let shares = Shares::new(2);
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
    fn poll_once(taking: &mut Taking<'_>) -> Option<Share> {
        let share = poll(taking)?;
        *taking = Box::pin(std::future::pending());
        Some(share)
    }

    #[test]
    fn who_gives_up_waiting_takes_nothing() {
        let shares = Shares::new(1);
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
}
