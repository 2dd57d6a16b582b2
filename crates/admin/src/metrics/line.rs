//! Pages of each object, of which only a few are written at a time: nothing is asked of who reads them but an address.

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

/// How long a request stands in line.
const PATIENCE: Duration = Duration::from_secs(5);

/// Those that are under way.
#[derive(Clone, Debug)]
pub(super) struct Lines(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    of_addresses: Ranked<HashMap<IpAddr, usize, FixedState>>,
    left: Notify,
}

impl Default for Lines {
    fn default() -> Self {
        let of_addresses = Ranked::new(Rank::Above, HashMap::default());
        Self(Arc::new(Shared { of_addresses, left: Notify::new() }))
    }
}

/// One of them. It leaves when it is dropped.
#[derive(Debug)]
pub(super) struct Line(Arc<Shared>, IpAddr);

impl Lines {
    /// One more for this address, as soon as there may be; none if that takes too long.
    pub(super) async fn enter(&self, address: IpAddr) -> Option<Line> {
        let (address, until) = (network_of(address), Instant::now() + PATIENCE);
        loop {
            // Asked for first: one that leaves in between is heard.
            let left = self.0.left.notified();
            if let Some(line) = self.enter_now(address) {
                return Some(line);
            }
            timeout_at(until, left).await.ok()?;
        }
    }

    fn enter_now(&self, address: IpAddr) -> Option<Line> {
        let mut of_addresses = self.0.of_addresses.lock();
        let own = of_addresses.get(&address).copied().unwrap_or(0);
        if own >= OF_ADDRESS || of_addresses.values().sum::<usize>() >= MAX {
            return None;
        }
        of_addresses.insert(address, own + 1);
        Some(Line(Arc::clone(&self.0), address))
    }
}

impl Drop for Line {
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
        let lines = Lines::default();
        let enter = |host: u8| lines.enter_now([10, 0, 0, host].into());
        let mut all: Vec<_> = (0..OF_ADDRESS).map(|_| enter(1).unwrap()).collect();
        assert!(enter(1).is_none());
        for host in 2..5 {
            all.extend((0..OF_ADDRESS).map(|_| enter(host).unwrap()));
        }
        assert!(enter(9).is_none(), "all are taken");
        all.remove(0);
        assert!(enter(9).is_some());
        drop(all);
        assert!(lines.0.of_addresses.lock().is_empty());
    }
}
