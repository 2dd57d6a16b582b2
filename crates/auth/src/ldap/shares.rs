//! Logins that are being asked about, by address: none has more than half of the connections.
//!
//! A directory may take seconds for a wrong password. Whoever sends many of them waits behind its own, and leaves
//! connections to others.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::source::network_of;

/// Whose share it is; none if that is not known.
type Source = Option<IpAddr>;

/// The shares of a pool. Nothing is kept of an address that has none.
#[derive(Debug)]
pub(super) struct Shares {
    most: usize,
    of: Mutex<HashMap<Source, Arc<Semaphore>, RandomState>>,
}

impl Shares {
    /// Of a pool of so many connections.
    pub(super) fn new(pool_size: usize) -> Arc<Self> {
        Arc::new(Self { most: pool_size.div_ceil(2), of: Mutex::default() })
    }

    /// Waits for the turn of a login from this address.
    pub(super) async fn take(self: &Arc<Self>, address: &str) -> Share {
        let source = address.parse().ok().map(network_of);
        let places = {
            let mut of = self.of.lock().unwrap_or_else(PoisonError::into_inner);
            let new = || Arc::new(Semaphore::new(self.most));
            Arc::clone(of.entry(source).or_insert_with(new))
        };
        let mut share = Share { of: Arc::clone(self), source, places, place: None };
        // It is never closed.
        share.place = Arc::clone(&share.places).acquire_owned().await.ok();
        share
    }
}

/// One that is taken, or waited for. Given back when it is dropped.
#[derive(Debug)]
pub(super) struct Share {
    of: Arc<Shares>,
    source: Source,
    places: Arc<Semaphore>,
    place: Option<OwnedSemaphorePermit>,
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut of = self.of.of.lock().unwrap_or_else(PoisonError::into_inner);
        self.place = None;
        // Of the map and of this one: whoever has a place or waits for one has one more.
        if Arc::strong_count(&self.places) == 2 {
            of.remove(&self.source);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn one_address_leaves_half_to_others() {
        let shares = Shares::new(4);
        let take = |address: &'static str| {
            let mut taking = Box::pin(shares.take(address));
            match taking.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(share) => Ok(share),
                Poll::Pending => Err(taking),
            }
        };
        let first = take("10.0.0.1").ok().unwrap();
        let _second = take("10.0.0.1").ok().unwrap();
        let Err(third) = take("10.0.0.1") else { panic!("it has its half") };
        let others: Vec<_> = ["10.0.0.2", "2001:db8::1", "2001:db8::2", ""].map(take).into();
        assert!(others.iter().all(Result::is_ok));
        assert!(take("2001:db8::3").is_err(), "it is of the same network");
        assert!(take("2001:db8:0:1::1").is_ok());
        drop(first);
        let mut third = pin!(third);
        let Poll::Ready(third) = third.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        else {
            panic!("there is a place again");
        };
        drop((third, _second, others));
        assert!(shares.of.lock().unwrap().is_empty());
        assert_eq!(Shares::new(1).most, 1);
    }
}
