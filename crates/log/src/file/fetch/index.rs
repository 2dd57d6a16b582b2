//! Where the records of some stretches are: those that were looked at last.

use std::collections::VecDeque;

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::super::segments::Stretch;
use super::places::{RecordPlace, RecordPlaces};
use crate::disk::FileName;

/// Bytes of the indexes that are kept: two hundred thousand records.
const BYTES_MAX: usize = 3 << 19;

/// Where a stretch begins.
type Start = (FileName, u64);

/// The index of a stretch as it was when it ended there.
#[derive(Debug)]
struct Index {
    end: u64,
    places: RecordPlaces,
}

#[derive(Debug, Default)]
pub(super) struct Indexes {
    all: HashMap<Start, Index, FixedState>,
    /// The oldest first.
    order: VecDeque<Start>,
    /// Of the places of all.
    bytes: usize,
}

impl Indexes {
    pub(super) fn get(&self, stretch: &Stretch) -> Option<&RecordPlaces> {
        let index = self.all.get(&start(stretch))?;
        (index.end == stretch.end).then_some(&index.places)
    }

    pub(super) fn keep(&mut self, stretch: &Stretch, places: Vec<RecordPlace>) {
        let start = start(stretch);
        if self.all.contains_key(&start) {
            self.drop_if(|it| it == start);
        }
        let places = RecordPlaces::new(places);
        self.bytes += places.held_bytes();
        self.all.insert(start, Index { end: stretch.end, places });
        self.order.push_back(start);
        while self.bytes > BYTES_MAX
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
            self.bytes -= index.places.held_bytes();
        }
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.bytes + self.all.allocation_size() + self.order.capacity() * size_of::<Start>()
    }

    /// The sums are those of the indexes.
    #[cfg(test)]
    pub(super) fn assert_sums(&self) {
        let bytes = self.all.values().map(|it| it.places.held_bytes()).sum::<usize>();
        assert_eq!(self.bytes, bytes);
        assert_eq!(self.order.len(), self.all.len());
    }
}

fn start(stretch: &Stretch) -> Start {
    (stretch.file, stretch.position)
}
