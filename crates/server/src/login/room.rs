//! What logins that wait take: how many they are, and their bytes, in all and of each address.
//!
//! Whoever asks has shown nothing yet, so both have a bound, and one address cannot have all of it. A few addresses can: so
//! the first login of each has room beyond that.

use std::net::IpAddr;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

/// The network that a login comes from; none if that is not known.
pub(crate) type Network = Option<IpAddr>;

/// The room that some logins take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RoomUse {
    pub(crate) count: usize,
    pub(crate) bytes: usize,
}

impl RoomUse {
    fn plus(self, bytes: usize) -> Self {
        Self { count: self.count + 1, bytes: self.bytes.saturating_add(bytes) }
    }

    fn minus(self, bytes: usize) -> Self {
        Self { count: self.count.saturating_sub(1), bytes: self.bytes.saturating_sub(bytes) }
    }

    fn fits(self, most: Self) -> bool {
        self.count <= most.count && self.bytes <= most.bytes
    }

    /// Half of what is left of it beside what others have.
    fn half_beside(self, others: Self) -> Self {
        let half = |most: usize, others: usize| most.saturating_sub(others) / 2;
        Self { count: half(self.count, others.count), bytes: half(self.bytes, others.bytes) }
    }
}

/// Logins that may wait; more are refused unseen.
const ALL: RoomUse = RoomUse { count: 10_000, bytes: 16 << 20 };
/// Logins of one network that may wait.
const OF_NETWORK: RoomUse = RoomUse { count: 2_500, bytes: 4 << 20 };
/// Logins that may wait besides, while there is no other room, from networks that have none waiting.
const FIRSTS: RoomUse = RoomUse { count: 5_000, bytes: 16 << 20 };

#[derive(Debug)]
pub(crate) struct Room {
    most: RoomUse,
    most_of_network: RoomUse,
    most_of_firsts: RoomUse,
    /// A network has at most half of what others left.
    is_halved: bool,
    all: RoomUse,
    firsts: RoomUse,
    of: HashMap<Network, Own, RandomState>,
}

/// What those of one network take.
#[derive(Clone, Copy, Debug, Default)]
struct Own {
    taken: RoomUse,
    /// The bytes of the one that counts among the firsts.
    first: Option<usize>,
}

impl Default for Room {
    fn default() -> Self {
        Self { most: ALL, most_of_network: OF_NETWORK, most_of_firsts: FIRSTS, ..Self::empty() }
    }
}

impl Room {
    /// For so much in all, and of one network. The firsts have none of their own: a network has at most half of what others
    /// left, so that some is left for one more.
    pub(crate) fn halved(most: RoomUse, most_of_network: RoomUse) -> Self {
        Self { most, most_of_network, is_halved: true, ..Self::empty() }
    }

    fn empty() -> Self {
        let nothing = RoomUse::default();
        Self {
            most: nothing,
            most_of_network: nothing,
            most_of_firsts: nothing,
            is_halved: false,
            all: nothing,
            firsts: nothing,
            of: HashMap::default(),
        }
    }

    /// One more is to wait, of so many bytes. False if there is no room.
    pub(crate) fn take(&mut self, network: Network, bytes: usize) -> bool {
        let all = self.all.plus(bytes);
        let mut own = self.of.get(&network).copied().unwrap_or_default();
        let others = RoomUse {
            count: self.all.count.saturating_sub(own.taken.count),
            bytes: self.all.bytes.saturating_sub(own.taken.bytes),
        };
        own.taken = own.taken.plus(bytes);
        let is_too_much = self.is_halved && !own.taken.fits(self.most.half_beside(others));
        if is_too_much || !own.taken.fits(self.most_of_network) {
            return false;
        }
        if all.fits(self.most) {
            self.all = all;
        } else if own.taken.count == 1 && self.firsts.plus(bytes).fits(self.most_of_firsts) {
            self.firsts = self.firsts.plus(bytes);
            own.first = Some(bytes);
        } else {
            return false;
        }
        self.of.insert(network, own);
        true
    }

    /// One waits no more.
    pub(crate) fn give_back(&mut self, network: Network, bytes: usize) {
        let Some(own) = self.of.get_mut(&network) else { return };
        // Which of two that take the same it is makes no difference.
        if own.first == Some(bytes) {
            own.first = None;
            self.firsts = self.firsts.minus(bytes);
        } else {
            self.all = self.all.minus(bytes);
        }
        own.taken = own.taken.minus(bytes);
        if own.taken.count == 0 {
            self.of.remove(&network);
        }
    }
}

#[cfg(test)]
impl Room {
    /// Whether nothing is kept of anybody.
    pub(crate) fn is_empty(&self) -> bool {
        [self.all, self.firsts] == [RoomUse::default(); 2] && self.of.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(number: u8) -> Network {
        Some(IpAddr::from([10, 0, 0, number]))
    }

    /// How many of so many bytes an address may have waiting.
    fn most(room: &mut Room, number: u8, bytes: usize) -> usize {
        (0..20_000).take_while(|_| room.take(from(number), bytes)).count()
    }

    #[test]
    fn one_address_has_a_part_of_it() {
        for (bytes, own) in [(100, 2_500), (10_000, 419)] {
            let mut room = Room::default();
            let counts: Vec<_> = (0..5).map(|number| most(&mut room, number, bytes)).collect();
            assert_eq!(counts[..4], [own; 4]);
            assert!(counts[4] < own / 100, "{counts:?}");
            room.give_back(from(0), bytes);
            assert!(room.take(from(9), bytes));
        }
    }

    #[test]
    fn a_few_addresses_do_not_keep_others_out() {
        let mut room = Room::default();
        let taken: Vec<_> = (0..6).map(|number| most(&mut room, number, 8_500)).collect();
        for number in 10..60 {
            assert!(room.take(from(number), 4_000), "the first one of {number}");
            assert!(!room.take(from(number), 4_000), "a second one");
        }
        // Addresses are many, too: theirs is a bound like the other.
        let firsts = (0..u32::from(u16::MAX)).take_while(|number| {
            room.take(Some(IpAddr::from((11_u32 << 24 | number).to_be_bytes())), 8_500)
        });
        let firsts = firsts.count() as u32;
        assert_eq!(firsts, 1_949, "16 MiB, less those of the others");
        let gone =
            (0..firsts).map(|number| Some(IpAddr::from((11_u32 << 24 | number).to_be_bytes())));
        gone.for_each(|network| room.give_back(network, 8_500));
        (10..60).for_each(|number| room.give_back(from(number), 4_000));
        for (number, count) in (0..).zip(taken) {
            (0..count).for_each(|_| room.give_back(from(number), 8_500));
        }
        assert!(room.is_empty());
    }

    #[test]
    fn nothing_is_kept_of_who_is_gone() {
        let mut room = Room::default();
        for number in 0..250 {
            assert!(room.take(from(number), 50_000 / 255));
        }
        (0..250).for_each(|number| room.give_back(from(number), 50_000 / 255));
        assert!(room.is_empty());
    }
}
