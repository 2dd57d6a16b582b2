//! Who holds the records of a chunk whose neighbours are in different sets: a word for each offset.
//!
//! ```text
//!   narrow: base, 4096 x u16   0: nobody   n: the set  base + n    while all sets of the chunk are so close
//!   wide:         4096 x u32   0: nobody   n: the set  n           otherwise
//! ```
//!
//! Hot path of those who drain queues that lie mixed: one look for each question, nothing is moved.

use std::num::NonZero;

use super::{CHUNK, Held, Run};

/// Offsets of a table.
const LEN: usize = CHUNK as usize;

/// The sets of the queues that are declared one after the other are neighbours: two bytes do for sixty thousand of them.
const NARROW: u32 = u16::MAX as u32;

#[derive(Debug)]
enum Words {
    /// With what is added to each.
    Narrow(u32, Box<[u16; LEN]>),
    Wide(Box<[u32; LEN]>),
}

/// A word for each offset of a chunk.
#[derive(Debug)]
pub(super) struct Table {
    words: Words,
    /// Offsets with a word.
    count: usize,
}

impl Table {
    /// Of records that are held.
    pub(super) fn new(runs: &[Run]) -> Self {
        let least = runs.iter().map(|run| run.held).min().unwrap_or(1);
        let most = runs.iter().map(|run| run.held).max().unwrap_or(1);
        let words = if most - least < NARROW {
            // Those that come may be less or more.
            let room = (NARROW - 1 - (most - least)) / 2;
            Words::Narrow((least - 1).saturating_sub(room), Box::new([0; LEN]))
        } else {
            Words::Wide(Box::new([0; LEN]))
        };
        let mut table = Self { words, count: 0 };
        for run in runs {
            (run.start..run.end()).for_each(|at| table.set(at, run.held));
        }
        table
    }

    pub(super) fn get(&self, at: u16) -> Option<NonZero<u32>> {
        let at = usize::from(at);
        match &self.words {
            Words::Narrow(base, words) => {
                let word = u32::from(words[at]);
                NonZero::new(if word == 0 { 0 } else { base + word })
            }
            Words::Wide(words) => NonZero::new(words[at]),
        }
    }

    /// Adds a record, or changes who holds it.
    pub(super) fn set(&mut self, at: u16, held: u32) {
        self.count += usize::from(self.get(at).is_none());
        if let Words::Narrow(base, words) = &mut self.words {
            match held.checked_sub(*base) {
                Some(word @ 1..=NARROW) => {
                    words[usize::from(at)] = word as u16;
                    return;
                }
                _ => self.widen(),
            }
        }
        if let Words::Wide(words) = &mut self.words {
            words[usize::from(at)] = held;
        }
    }

    /// The same of several, one after the other.
    pub(super) fn set_each(&mut self, at: u16, held: &[Held]) {
        let first = usize::from(at);
        if let Words::Narrow(base, words) = &mut self.words {
            let word = |held: &Held| held.pack().wrapping_sub(*base);
            let are_narrow = held.iter().map(word).fold(true, |all, word| {
                // 0 is nobody's.
                all & (word.wrapping_sub(1) < NARROW)
            });
            let places = &mut words[first..first + held.len()];
            if are_narrow {
                self.count += places.iter().filter(|place| **place == 0).count();
                for (place, held) in places.iter_mut().zip(held) {
                    *place = word(held) as u16;
                }
                return;
            }
        }
        for (at, held) in (at..).zip(held) {
            self.set(at, held.pack());
        }
    }

    pub(super) fn clear(&mut self, at: u16) {
        self.count -= usize::from(self.get(at).is_some());
        match &mut self.words {
            Words::Narrow(_, words) => words[usize::from(at)] = 0,
            Words::Wide(words) => words[usize::from(at)] = 0,
        }
    }

    #[cold]
    fn widen(&mut self) {
        let mut wide = Box::new([0; LEN]);
        for (at, word) in wide.iter_mut().enumerate() {
            *word = self.get(at as u16).map_or(0, NonZero::get);
        }
        self.words = Words::Wide(wide);
    }

    /// Offsets with a word.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Calls `each` for the runs of neighbours that have the same word.
    pub(super) fn each_run(&self, mut each: impl FnMut(Run)) {
        let mut open: Option<Run> = None;
        for at in 0..LEN as u16 {
            let held = self.get(at);
            match &mut open {
                Some(run) if held.is_some_and(|held| held.get() == run.held) => run.len += 1,
                _ => {
                    open.take().into_iter().for_each(&mut each);
                    open = held.map(|held| Run { start: at, len: 1, held: held.get() });
                }
            }
        }
        open.into_iter().for_each(each);
    }

    /// Bytes of memory.
    pub(super) fn held_bytes(&self) -> usize {
        match &self.words {
            Words::Narrow(_, words) => size_of_val(&**words),
            Words::Wide(words) => size_of_val(&**words),
        }
    }
}
