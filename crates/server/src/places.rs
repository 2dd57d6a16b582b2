//! How many connections there may be, and whose end when there are more.
//!
//! Whoever connects gets a place, and shows a login later. So when all are taken, a place is taken from those who have shown
//! none: the oldest of the network that has the most of them, if that is more than the newcomer's would have. A connection that
//! has logged in keeps its place: what users may have is bounded for users.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use leveret_auth::network_of;
use leveret_broker::message::ConnectionId;
use tokio::sync::Notify;

use crate::locks::{Rank, Ranked};

/// The places for connections of all listeners.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionPlaces(Arc<Ranked<All>>);

#[derive(Debug, Default)]
struct All {
    next: u64,
    /// Places that are taken.
    count: usize,
    /// Those of connections without a login, by network, oldest first.
    unknown: HashMap<IpAddr, BTreeMap<u64, Arc<Loss>>, RandomState>,
    /// How many of these each network has.
    counts: BTreeSet<(usize, IpAddr)>,
}

/// How a connection learns that its place is lost.
#[derive(Debug, Default)]
pub(crate) struct Loss {
    is_lost: Notify,
    /// Once there is a session, it is to be closed.
    session: OnceLock<ConnectionId>,
}

impl Loss {
    /// Waits for it.
    pub(crate) async fn comes(&self) {
        self.is_lost.notified().await;
    }
}

impl Default for ConnectionPlaces {
    fn default() -> Self {
        Self(Arc::new(Ranked::new(Rank::Places, All::default())))
    }
}

/// What came of a wish for a place.
#[derive(Debug)]
pub(crate) struct Wish {
    /// None if all are taken.
    pub(crate) place: Option<ConnectionPlace>,
    /// A session that has lost its place, and is to be closed.
    pub(crate) closes: Option<ConnectionId>,
}

impl ConnectionPlaces {
    /// One of `most` for a connection from this address, if there is one or another one's can be had.
    pub(crate) fn take(&self, address: IpAddr, most: usize) -> Wish {
        let network = network_of(address);
        let mut all = self.0.lock();
        let mut closes = None;
        if all.count >= most {
            let Some(lost) = all.make_room(network) else {
                return Wish { place: None, closes: None };
            };
            closes = lost.session.get().copied();
            lost.is_lost.notify_one();
        }
        let (id, loss) = (all.next, Arc::default());
        all.next += 1;
        all.count += 1;
        all.put(network, id, &loss);
        Wish {
            place: Some(ConnectionPlace {
                all: Arc::clone(&self.0),
                network,
                id,
                loss,
                is_known: AtomicBool::new(false),
            }),
            closes,
        }
    }

    /// There is no file for a connection from this address: another one makes room for the next. Gives the session that is
    /// to be closed for that.
    pub(crate) fn make_room(&self, address: IpAddr) -> Option<ConnectionId> {
        let lost = self.0.lock().make_room(network_of(address))?;
        lost.is_lost.notify_one();
        lost.session.get().copied()
    }
}

impl All {
    fn of(&self, network: IpAddr) -> usize {
        self.unknown.get(&network).map_or(0, BTreeMap::len)
    }

    /// Takes a place from who has more without a login than `client` would have.
    fn make_room(&mut self, network: IpAddr) -> Option<Arc<Loss>> {
        let &(count, most) = self.counts.last()?;
        if count < self.of(network) + 2 {
            return None;
        }
        let (&oldest, _) = self.unknown.get(&most)?.first_key_value()?;
        self.count -= 1;
        self.take_out(most, oldest)
    }

    fn put(&mut self, network: IpAddr, id: u64, loss: &Arc<Loss>) {
        let own = self.unknown.entry(network).or_default();
        self.counts.remove(&(own.len(), network));
        own.insert(id, Arc::clone(loss));
        self.counts.insert((own.len(), network));
    }

    /// None if it is none of those without a login any more.
    fn take_out(&mut self, network: IpAddr, id: u64) -> Option<Arc<Loss>> {
        let own = self.unknown.get_mut(&network)?;
        let loss = own.remove(&id)?;
        self.counts.remove(&(own.len() + 1, network));
        if own.is_empty() {
            self.unknown.remove(&network);
        } else {
            self.counts.insert((own.len(), network));
        }
        Some(loss)
    }
}

/// A connection's place, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionPlace {
    all: Arc<Ranked<All>>,
    network: IpAddr,
    id: u64,
    loss: Arc<Loss>,
    /// It is its own as long as it stays.
    is_known: AtomicBool,
}

impl ConnectionPlace {
    /// The client has logged in.
    pub(crate) fn is_known(&self) {
        let mut all = self.all.lock();
        if all.take_out(self.network, self.id).is_some() {
            self.is_known.store(true, Ordering::Relaxed);
        }
    }

    /// The connection is over: somebody may still have an eye on it.
    pub(crate) fn is_over(&self) {
        let mut all = self.all.lock();
        let was_unknown = all.take_out(self.network, self.id).is_some();
        if was_unknown || self.is_known.swap(false, Ordering::Relaxed) {
            all.count -= 1;
        }
    }

    /// The client is behind a proxy, which has told its address.
    pub(crate) fn is_of(&mut self, address: IpAddr) {
        let network = network_of(address);
        let mut all = self.all.lock();
        if all.take_out(self.network, self.id).is_some() {
            all.put(network, self.id, &self.loss);
            self.network = network;
        }
    }

    /// There is a session from now on. False if the place is lost already.
    pub(crate) fn begins(&self, session: ConnectionId) -> bool {
        let all = self.all.lock();
        let is_there = all.unknown.get(&self.network).is_some_and(|own| own.contains_key(&self.id));
        // There is one session, so nothing was set before.
        let _ = self.loss.session.set(session);
        is_there
    }

    /// How its loss is told, before there is a session.
    pub(crate) fn loss(&self) -> Arc<Loss> {
        Arc::clone(&self.loss)
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        self.is_over();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 20;

    fn take(places: &ConnectionPlaces, address: &str) -> Option<ConnectionPlace> {
        places.take(address.parse().expect("an address"), MOST).place
    }

    fn has(place: &ConnectionPlace) -> bool {
        place.is_known.load(Ordering::Relaxed)
            || place
                .all
                .lock()
                .unknown
                .get(&place.network)
                .is_some_and(|it| it.contains_key(&place.id))
    }

    #[test]
    fn who_has_many_without_a_login_makes_room_for_others() {
        let places = ConnectionPlaces::default();
        let crowd: Vec<_> = (0..MOST).filter_map(|_| take(&places, "10.0.0.1")).collect();
        assert_eq!(crowd.len(), MOST);
        assert!(take(&places, "10.0.0.1").is_none(), "it makes no room for itself");
        let others: Vec<_> = (0..MOST).filter_map(|_| take(&places, "10.0.0.2")).collect();
        assert_eq!(others.len(), MOST / 2);
        let left: Vec<_> = crowd.iter().map(has).collect();
        assert_eq!(left, [vec![false; MOST / 2], vec![true; MOST / 2]].concat());
        assert!(others.iter().all(has));
        // One who comes in has its place for good, and the others have the rest.
        let third = take(&places, "10.0.0.3").unwrap();
        third.is_known();
        others.iter().for_each(ConnectionPlace::is_known);
        crowd.iter().for_each(ConnectionPlace::is_known);
        assert!(take(&places, "10.0.0.4").is_none());
        drop((crowd, others, third));
        let all = places.0.lock();
        assert_eq!((all.count, all.unknown.len(), all.counts.len()), (0, 0, 0));
    }

    #[test]
    fn two_newcomers_do_not_push_each_other_out() {
        let places = ConnectionPlaces::default();
        let known: Vec<_> = (0..MOST - 1).filter_map(|_| take(&places, "10.0.0.1")).collect();
        known.iter().for_each(ConnectionPlace::is_known);
        let last = take(&places, "10.0.0.2").unwrap();
        assert!(take(&places, "10.0.0.3").is_none());
        assert!(has(&last));
    }

    #[test]
    fn a_network_of_ipv6_is_one_client_and_a_proxy_none() {
        let places = ConnectionPlaces::default();
        let of = |last: usize| format!("2001:db8:0:{last:x}::1");
        let mut crowd: Vec<_> = (0..MOST).filter_map(|last| take(&places, &of(last))).collect();
        assert!(take(&places, "2001:db8:0:ff::2").is_none());
        let addresses: Vec<IpAddr> = (0..4).map(|last| [10, 0, 0, last].into()).collect();
        for (place, address) in crowd.iter_mut().zip(addresses.iter().cycle()) {
            place.is_of(*address);
        }
        let counts: Vec<_> = places.0.lock().counts.iter().map(|(count, _)| *count).collect();
        assert_eq!(counts, [5; 4]);
        assert!(take(&places, "2001:db8::").is_some());
        drop(crowd);
        assert_eq!(places.0.lock().counts.len(), 0);
    }

    #[test]
    fn a_session_that_loses_its_place_is_told() {
        let places = ConnectionPlaces::default();
        let crowd: Vec<_> = (0..MOST).filter_map(|_| take(&places, "10.0.0.1")).collect();
        let session = ConnectionId::NOBODY;
        assert!(crowd[0].begins(session));
        let wish = places.take([10, 0, 0, 2].into(), MOST);
        assert_eq!(wish.closes, Some(session));
        let _second = take(&places, "10.0.0.2");
        assert!(!crowd[1].begins(session), "it was lost before");
        assert_eq!(places.make_room([10, 0, 0, 3].into()), None);
        assert!(!has(&crowd[2]));
    }
}
