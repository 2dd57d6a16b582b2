//! Shared records: several logs of one process get a record, one of them writes its bytes, the others refer to it.
//!
//! ```text
//!   log 0                                log 1
//!   append: in memory                    append: the same memory, or a copy
//!   gather: nobody has it, so it does    gather: log 0 has it, so it writes where
//!   |  bytes, held by its own holders    |  no bytes, held by its own holders
//!   |  and by log 1                      |
//!   |                                    the batch is durable when log 0's is, too
//!   |                                    read from the disk: asks log 0 (Errand::Lend)
//!   log 1 is no holder any more   <----  its last holder left, and that is durable (Errand::Freed)
//! ```
//!
//! The log that writes is chosen as late as possible: the first one that gathers a batch with the record. A record that is released
//! before never touches the disk, and the logs exchange nothing about it.
//!
//! After a crash either log may know more than the other; [`match_up`](crate::file::match_up) says what follows.

use std::sync::{Arc, Mutex, PoisonError};

use smallvec::SmallVec;

use crate::Offset;

/// The number of a log among those of one data directory, which share records. Logs have stored it as the name of a
/// [holder](crate::Holder::of_log), so it stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogNumber(u32);

impl LogNumber {
    /// The log with this number.
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// The bare number.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The log whose place in a list that has one for each is `index`.
    pub fn at(index: usize) -> Self {
        Self(u32::try_from(index).expect("fewer than 2^32 logs"))
    }

    /// The place of the log in a list that has one for each.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl core::fmt::Display for LogNumber {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.0.fmt(f)
    }
}

/// Where a shared record's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Original {
    /// The log that has them.
    pub log: LogNumber,
    /// Its name there.
    pub at: Offset,
}

/// What a log has to be done by its owner, as it is about another log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Errand {
    /// That log waits for what this one has written: it is to be given a turn.
    Wake(LogNumber),
    /// This log refers to the record no more: there, it is to be [`release`](crate::Log::release)d for
    /// [`Holder::of_log`](crate::Holder::of_log).
    Freed(Original),
    /// The bytes are wanted here, for the record `at`: they are to be given to
    /// [`Log::lent`](crate::Log::lent).
    Lend {
        /// Whose bytes.
        of: Original,
        /// What it is called here.
        at: Offset,
    },
}

/// How far the log is that writes the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    Writing,
    /// Its disk is full.
    Stuck,
    Safe,
}

/// Which log writes the bytes that several were to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BytesAt {
    /// It writes them. These logs may come to refer to it.
    Here(SmallVec<[LogNumber; 4]>),
    /// Another one has them.
    There(Original, Progress),
}

/// What the logs know together of a record that each of them was given.
#[derive(Debug)]
pub struct Shared(Mutex<State>);

#[derive(Debug)]
struct State {
    /// Those that may still want the bytes.
    logs: SmallVec<[LogNumber; 4]>,
    home: Option<Home>,
}

#[derive(Debug)]
struct Home {
    place: Original,
    progress: Progress,
    /// Those whose batches wait for it.
    waiting: SmallVec<[LogNumber; 4]>,
}

impl Shared {
    /// Of a record that each of these logs is going to be given.
    pub fn among(logs: impl Iterator<Item = LogNumber>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State { logs: logs.collect(), home: None })))
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A log has no use for the bytes, or has them for itself. Tells who counts with it in vain.
    pub(crate) fn leave(&self, log: LogNumber) -> Option<Original> {
        let mut state = self.state();
        let index = state.logs.iter().position(|&it| it == log)?;
        state.logs.swap_remove(index);
        state.home.as_ref().map(|home| home.place)
    }

    /// A log writes the record `at` now.
    pub(crate) fn take(&self, log: LogNumber, at: Offset) -> BytesAt {
        let mut state = self.state();
        let Some(index) = state.logs.iter().position(|&it| it == log) else {
            // Given twice to one log: cannot be, and each has its own then.
            return BytesAt::Here(SmallVec::new());
        };
        state.logs.swap_remove(index);
        if let Some(home) = &mut state.home {
            if home.progress != Progress::Safe {
                home.waiting.push(log);
            }
            return BytesAt::There(home.place, home.progress);
        }
        let place = Original { log, at };
        state.home = Some(Home { place, progress: Progress::Writing, waiting: SmallVec::new() });
        BytesAt::Here(state.logs.clone())
    }

    /// How far the bytes are. Tells who waits for that.
    pub(crate) fn set(&self, progress: Progress) -> SmallVec<[LogNumber; 4]> {
        let mut state = self.state();
        let Some(home) = &mut state.home else { return SmallVec::new() };
        home.progress = progress;
        match progress {
            Progress::Safe => std::mem::take(&mut home.waiting),
            _ => home.waiting.clone(),
        }
    }

    pub(crate) fn progress(&self) -> Progress {
        self.state().home.as_ref().map_or(Progress::Writing, |home| home.progress)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(number: u32) -> LogNumber {
        LogNumber::new(number)
    }

    #[test]
    fn the_first_one_writes() {
        let shared = Shared::among((0..3).map(LogNumber::new));
        let place = Original { log: log(1), at: Offset::new(7) };
        assert_eq!(
            shared.take(log(1), place.at),
            BytesAt::Here([log(0), log(2)].into_iter().collect())
        );
        assert_eq!(shared.take(log(0), Offset::new(9)), BytesAt::There(place, Progress::Writing));
        assert_eq!(shared.set(Progress::Stuck).to_vec(), [log(0)]);
        assert_eq!(shared.set(Progress::Safe).to_vec(), [log(0)]);
        assert_eq!(shared.set(Progress::Safe).to_vec(), []);
        assert_eq!(shared.take(log(2), Offset::new(3)), BytesAt::There(place, Progress::Safe));
    }

    #[test]
    fn who_leaves_before_is_not_counted_with() {
        let shared = Shared::among((0..3).map(LogNumber::new));
        assert_eq!(shared.leave(log(2)), None);
        assert_eq!(shared.leave(log(2)), None);
        assert_eq!(
            shared.take(log(0), Offset::new(5)),
            BytesAt::Here([log(1)].into_iter().collect())
        );
        assert_eq!(shared.leave(log(1)), Some(Original { log: log(0), at: Offset::new(5) }));
    }
}
