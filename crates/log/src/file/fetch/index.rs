//! Where the records of some stretches are: those that were looked at last.

use std::collections::VecDeque;

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::super::segments::Stretch;
use crate::disk::FileName;

/// Records in the indexes that are kept.
const PLACES_MAX: usize = 64 << 10;

/// Where a record is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) at: u64,
    pub(super) position: u64,
    pub(super) len: u32,
    pub(super) crc: u32,
}

/// Where a stretch begins.
type Start = (FileName, u64);

/// The index of a stretch as it was when it ended there.
#[derive(Debug)]
struct Index {
    end: u64,
    /// Ascending by offset.
    places: Vec<Place>,
}

#[derive(Debug, Default)]
pub(super) struct Indexes {
    all: HashMap<Start, Index, FixedState>,
    /// The oldest first.
    order: VecDeque<Start>,
    /// Of all: places, and room for them.
    places: usize,
    room: usize,
}

impl Place {
    pub(super) fn end(&self) -> u64 {
        self.position + u64::from(self.len)
    }
}

impl Indexes {
    /// Ascending by offset.
    pub(super) fn get(&self, stretch: &Stretch) -> Option<&[Place]> {
        let index = self.all.get(&start(stretch))?;
        (index.end == stretch.end).then_some(&index.places)
    }

    pub(super) fn keep(&mut self, stretch: &Stretch, mut places: Vec<Place>) {
        let start = start(stretch);
        self.drop_if(|it| it == start);
        places.shrink_to_fit();
        places.sort_unstable_by_key(|place| place.at);
        self.places += places.len();
        self.room += places.capacity();
        self.all.insert(start, Index { end: stretch.end, places });
        self.order.push_back(start);
        while self.places > PLACES_MAX
            && self.order.len() > 1
            && let Some(oldest) = self.order.pop_front()
        {
            self.forget(oldest);
        }
    }

    /// What is in the file does not matter any more, or is elsewhere.
    pub(super) fn file_gone(&mut self, file: FileName) {
        self.drop_if(|(it, _)| it == file);
    }

    fn drop_if(&mut self, is_it: impl Fn(Start) -> bool) {
        let mut order = std::mem::take(&mut self.order);
        order.retain(|&start| {
            let goes = is_it(start);
            if goes {
                self.forget(start);
            }
            !goes
        });
        self.order = order;
    }

    fn forget(&mut self, start: Start) {
        if let Some(index) = self.all.remove(&start) {
            self.places -= index.places.len();
            self.room -= index.places.capacity();
        }
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.room * size_of::<Place>()
            + self.all.allocation_size()
            + self.order.capacity() * size_of::<Start>()
    }

    /// The sums are those of the indexes.
    #[cfg(test)]
    pub(super) fn assert_sums(&self) {
        let places = self.all.values().map(|it| it.places.len()).sum::<usize>();
        let room = self.all.values().map(|it| it.places.capacity()).sum::<usize>();
        assert_eq!((self.places, self.room), (places, room));
        assert_eq!(self.order.len(), self.all.len());
    }
}

/// The place of a record in an index.
pub(super) fn find(places: &[Place], at: u64) -> Option<Place> {
    let index = places.binary_search_by_key(&at, |place| place.at).ok()?;
    Some(places[index])
}

fn start(stretch: &Stretch) -> Start {
    (stretch.file, stretch.position)
}
