//! How many connections of HTTP there may be, and whose end when there are more.
//!
//! Whoever connects gets a place, and shows a login later. So places are taken from those who have shown none: the oldest
//! of the address that has the most of them. A client that has logged in keeps its place, and a health check from this
//! machine always finds one.

use std::collections::BTreeMap;
use std::future::pending;
use std::net::IpAddr;
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use leveret_server::locks::{Rank, Ranked};
use leveret_server::network_of;
use tokio::sync::Notify;

/// Connections of one door at a time.
const MAX: usize = 1024;

/// Of these, kept for clients of this machine: checks, and operators who look what is wrong.
const OF_LOOPBACK: usize = 64;

/// Connections of one address that is not this machine's.
const OF_ADDRESS: usize = 512;

/// The places for connections of a door.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionPlaces(Arc<Ranked<All>>);

#[derive(Debug, Default)]
struct All {
    next: u64,
    /// Those that are taken, oldest first.
    taken: BTreeMap<u64, TakenPlace>,
    of_addresses: HashMap<IpAddr, usize, FixedState>,
}

#[derive(Debug)]
struct TakenPlace {
    address: IpAddr,
    /// Whether who has it has shown a login.
    is_known: bool,
    lost: Arc<Notify>,
}

impl Default for ConnectionPlaces {
    fn default() -> Self {
        Self(Arc::new(Ranked::new(Rank::Above, All::default())))
    }
}

impl ConnectionPlaces {
    /// One for a connection from this address, if there is one or another can be had.
    pub(crate) fn take(&self, address: IpAddr) -> Option<ConnectionPlace> {
        let is_near = address.to_canonical().is_loopback();
        let address = network_of(address);
        let mut all = self.0.lock();
        let own = all.of_addresses.get(&address).copied().unwrap_or(0);
        if !is_near && own >= OF_ADDRESS {
            all.free(|it| it.address == address)?;
        } else if all.taken.len() >= if is_near { MAX } else { MAX - OF_LOOPBACK } {
            let most = all.most_unknown()?;
            all.free(|it| it.address == most)?;
        }
        let (id, lost) = (all.next, Arc::new(Notify::new()));
        all.next += 1;
        all.taken.insert(id, TakenPlace { address, is_known: false, lost: Arc::clone(&lost) });
        *all.of_addresses.entry(address).or_default() += 1;
        Some(ConnectionPlace { all: Arc::clone(&self.0), id, lost })
    }
}

impl All {
    /// The address with the most places without a login.
    fn most_unknown(&self) -> Option<IpAddr> {
        let mut counts = BTreeMap::<IpAddr, usize>::new();
        for taken in self.taken.values().filter(|it| !it.is_known) {
            *counts.entry(taken.address).or_default() += 1;
        }
        counts.into_iter().max_by_key(|(_, count)| *count).map(|(address, _)| address)
    }

    /// Takes the oldest place without a login from one of these.
    fn free(&mut self, is_one: impl Fn(&TakenPlace) -> bool) -> Option<()> {
        let oldest = self.taken.iter().find(|(_, it)| !it.is_known && is_one(it));
        let id = *oldest?.0;
        self.leave(id);
        Some(())
    }

    fn leave(&mut self, id: u64) {
        let Some(TakenPlace { address, lost, .. }) = self.taken.remove(&id) else { return };
        lost.notify_one();
        if let Some(count) = self.of_addresses.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                self.of_addresses.remove(&address);
            }
        }
    }
}

/// A connection's place, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionPlace {
    all: Arc<Ranked<All>>,
    id: u64,
    lost: Arc<Notify>,
}

impl ConnectionPlace {
    /// The client has shown a login: the place is its own as long as it stays.
    pub(crate) fn knows(&self) {
        if let Some(taken) = self.all.lock().taken.get_mut(&self.id) {
            taken.is_known = true;
        }
    }

    /// Waits until another client has it.
    pub(crate) async fn is_lost(&self) {
        self.lost.notified().await;
        // Once: who asks again is told by its end.
    }
}

/// As [`ConnectionPlace::is_lost`], for a connection that needs none.
pub(crate) async fn is_lost(place: Option<&ConnectionPlace>) {
    match place {
        Some(place) => place.is_lost().await,
        None => pending().await,
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        self.all.lock().leave(self.id);
    }
}

/// What a client reads for whom there is no place.
pub(crate) fn no_place() -> String {
    let body =
        r#"{"error":"service_unavailable","reason":"too many connections; try again later"}"#;
    format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEAR: &str = "127.0.0.1";

    fn take(places: &ConnectionPlaces, address: &str) -> Option<ConnectionPlace> {
        places.take(address.parse().expect("an address"))
    }

    fn is_lost(place: &ConnectionPlace) -> bool {
        !place.all.lock().taken.contains_key(&place.id)
    }

    #[test]
    fn the_oldest_without_a_login_goes() {
        let places = ConnectionPlaces::default();
        let all: Vec<_> = (0..MAX).map(|_| take(&places, NEAR).unwrap()).collect();
        all[0].knows();
        let one_more = take(&places, NEAR).expect("the oldest unknown one's");
        assert!(!is_lost(&all[0]) && is_lost(&all[1]) && !is_lost(&all[2]));
        one_more.knows();
        all.iter().for_each(ConnectionPlace::knows);
        assert!(take(&places, NEAR).is_none(), "all are known");
        drop(one_more);
        assert!(take(&places, NEAR).is_some());
        drop(all);
        assert!(places.0.lock().taken.is_empty() && places.0.lock().of_addresses.is_empty());
    }

    #[test]
    fn one_address_does_not_take_all() {
        let places = ConnectionPlaces::default();
        let mut all = Vec::new();
        for _ in 0..OF_ADDRESS + 10 {
            all.extend(take(&places, "10.0.0.1"));
        }
        assert_eq!(all.iter().filter(|it| !is_lost(it)).count(), OF_ADDRESS);
        all.iter().for_each(ConnectionPlace::knows);
        assert!(take(&places, "10.0.0.1").is_none());
        assert!(take(&places, "10.0.0.2").is_some());
    }

    #[test]
    fn a_network_of_ipv6_is_one_address() {
        let places = ConnectionPlaces::default();
        let own = |n: usize| take(&places, &format!("2001:db8::{:x}:0:0:0:1", n % 256)).unwrap();
        let all: Vec<_> = (0..OF_ADDRESS).map(own).collect();
        all.iter().for_each(ConnectionPlace::knows);
        assert!(take(&places, "2001:db8::ffff").is_none());
        assert!(take(&places, "2001:db8:0:100::1").is_some());
    }

    #[test]
    fn who_has_most_loses_first_and_this_machine_has_its_own() {
        let places = ConnectionPlaces::default();
        let quiet = take(&places, "10.0.0.9").unwrap();
        let mut all = Vec::new();
        for host in 1..=8 {
            for _ in 0..200 {
                all.extend(take(&places, &format!("10.0.0.{host}")));
            }
        }
        assert!(!is_lost(&quiet), "it is the oldest, and alone of its address");
        all.iter().for_each(ConnectionPlace::knows);
        quiet.knows();
        assert!(take(&places, "10.0.0.10").is_none(), "all that are not this machine's are known");
        let near: Vec<_> = (0..OF_LOOPBACK).map(|_| take(&places, "::1").unwrap()).collect();
        near.iter().for_each(ConnectionPlace::knows);
        assert!(take(&places, NEAR).is_none());
    }
}
