//! What logins that wait take: how many they are, and their bytes, in all and of each address.
//!
//! Whoever asks has shown nothing yet, so both have a bound, and one address cannot have all of it.

use std::net::IpAddr;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

/// Where a login comes from; none if that is not known.
pub(crate) type Source = Option<IpAddr>;

/// What some logins take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) count: usize,
    pub(crate) bytes: usize,
}

impl Taken {
    fn plus(self, bytes: usize) -> Self {
        Self { count: self.count + 1, bytes: self.bytes.saturating_add(bytes) }
    }

    fn minus(self, bytes: usize) -> Self {
        Self { count: self.count.saturating_sub(1), bytes: self.bytes.saturating_sub(bytes) }
    }

    fn fits(self, most: Self) -> bool {
        self.count <= most.count && self.bytes <= most.bytes
    }
}

/// Logins that may wait; more are refused unseen.
const ALL: Taken = Taken { count: 10_000, bytes: 16 << 20 };
/// Those of one address.
const OF_SOURCE: Taken = Taken { count: 2_500, bytes: 4 << 20 };

#[derive(Debug)]
pub(crate) struct Room {
    most: Taken,
    most_of_source: Taken,
    all: Taken,
    of: HashMap<Source, Taken, RandomState>,
}

impl Default for Room {
    fn default() -> Self {
        Self::new(ALL, OF_SOURCE)
    }
}

impl Room {
    /// For so much in all, and of one source.
    pub(crate) fn new(most: Taken, most_of_source: Taken) -> Self {
        Self { most, most_of_source, all: Taken::default(), of: HashMap::default() }
    }

    /// One more is to wait, of so many bytes. False if there is no room.
    pub(crate) fn take(&mut self, source: Source, bytes: usize) -> bool {
        let all = self.all.plus(bytes);
        let own = self.of.get(&source).copied().unwrap_or_default().plus(bytes);
        let fits = all.fits(self.most) && own.fits(self.most_of_source);
        if fits {
            self.all = all;
            self.of.insert(source, own);
        }
        fits
    }

    /// One waits no more.
    pub(crate) fn give_back(&mut self, source: Source, bytes: usize) {
        self.all = self.all.minus(bytes);
        if let Some(own) = self.of.get_mut(&source) {
            *own = own.minus(bytes);
            if own.count == 0 {
                self.of.remove(&source);
            }
        }
    }
}

#[cfg(test)]
impl Room {
    /// Whether nothing is kept of anybody.
    pub(crate) fn is_empty(&self) -> bool {
        self.all == Taken::default() && self.of.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(number: u8) -> Source {
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
    fn nothing_is_kept_of_who_is_gone() {
        let mut room = Room::default();
        for number in 0..250 {
            assert!(room.take(from(number), 50_000 / 255));
        }
        (0..250).for_each(|number| room.give_back(from(number), 50_000 / 255));
        assert!(room.is_empty());
    }
}
