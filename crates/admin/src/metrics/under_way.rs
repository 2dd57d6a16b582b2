//! Scrapes of pages of each object. Only a few such pages are written at a time, as whoever reads them needs no login.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use leveret_server::locks::{Rank, Ranked};
use leveret_server::network_of;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

/// Pages at a time.
const MAX: usize = 16;

/// Of these, for one address: others are scraped from, too.
const OF_ADDRESS: usize = 4;

/// How long a request waits.
const PATIENCE: Duration = Duration::from_secs(5);

/// The scrapes that are under way, by the address that they come from.
#[derive(Clone, Debug)]
pub(super) struct ScrapesUnderWay(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    of_addresses: Ranked<HashMap<IpAddr, usize, FixedState>>,
    left: Notify,
}

impl Default for ScrapesUnderWay {
    fn default() -> Self {
        let of_addresses = Ranked::new(Rank::Above, HashMap::default());
        Self(Arc::new(Shared { of_addresses, left: Notify::new() }))
    }
}

/// A scrape that is under way, until it is dropped.
#[derive(Debug)]
pub(super) struct Scrape(Arc<Shared>, IpAddr);

impl ScrapesUnderWay {
    /// One more for this address, as soon as there may be; none if that takes too long.
    pub(super) async fn enter(&self, address: IpAddr) -> Option<Scrape> {
        let (address, until) = (network_of(address), Instant::now() + PATIENCE);
        loop {
            // Asked for first: one that leaves in between is heard.
            let left = self.0.left.notified();
            if let Some(scrape) = self.enter_now(address) {
                return Some(scrape);
            }
            timeout_at(until, left).await.ok()?;
        }
    }

    fn enter_now(&self, address: IpAddr) -> Option<Scrape> {
        let mut of_addresses = self.0.of_addresses.lock();
        let own = of_addresses.get(&address).copied().unwrap_or(0);
        if own >= OF_ADDRESS || of_addresses.values().sum::<usize>() >= MAX {
            return None;
        }
        of_addresses.insert(address, own + 1);
        Some(Scrape(Arc::clone(&self.0), address))
    }
}

impl Drop for Scrape {
    fn drop(&mut self) {
        let mut of_addresses = self.0.of_addresses.lock();
        if let Some(count) = of_addresses.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                of_addresses.remove(&self.1);
            }
        }
        drop(of_addresses);
        self.0.left.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_of_each_address() {
        let scrapes = ScrapesUnderWay::default();
        let enter = |host: u8| scrapes.enter_now([10, 0, 0, host].into());
        let mut all: Vec<_> = (0..OF_ADDRESS).map(|_| enter(1).unwrap()).collect();
        assert!(enter(1).is_none());
        for host in 2..5 {
            all.extend((0..OF_ADDRESS).map(|_| enter(host).unwrap()));
        }
        assert!(enter(9).is_none(), "all are taken");
        all.remove(0);
        assert!(enter(9).is_some());
        drop(all);
        assert!(scrapes.0.of_addresses.lock().is_empty());
    }
}
