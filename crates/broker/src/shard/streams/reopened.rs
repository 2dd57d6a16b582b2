//! Letters that notes say are done, and that a start undid: they brought parts of transactions on which nothing was decided.
//!
//! Nothing is noted of that. A part's own record names its letter, and as long as it is in the log, with no decision among the names
//! and no refusal in the notes, the letter is not done. So the record stays until it would say nothing new: until it is decided on
//! the part, which came again, or until the sender waits for no answer to it.

use std::collections::BTreeMap;

use leveret_queue::Offset;

/// How far such a letter is in this term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It is to come again.
    Awaited,
    /// It came, and waits for its turn.
    Came,
    /// Its part is held back again, decided or refused.
    Done,
}

/// See the [module](self). By number: the record of the part.
#[derive(Debug, Default)]
pub(super) struct Reopened(BTreeMap<u64, (Offset, Stage)>);

impl Reopened {
    pub(super) fn add(&mut self, number: u64, part: Offset) {
        self.0.insert(number, (part, Stage::Awaited));
    }

    /// A letter came. Whether it is to be done; none if it is as good as any other that comes for the second time.
    #[inline]
    pub(super) fn take(&mut self, number: u64) -> Option<bool> {
        let (_, stage) = self.0.get_mut(&number)?;
        let before = *stage;
        if before == Stage::Awaited {
            *stage = Stage::Came;
        }
        (before != Stage::Done).then_some(before == Stage::Awaited)
    }

    pub(super) fn is_done(&mut self, number: u64) {
        if let Some((_, stage)) = self.0.get_mut(&number) {
            *stage = Stage::Done;
        }
    }

    /// Whether all up to this one are done.
    pub(super) fn is_done_to(&self, last: u64) -> bool {
        self.0.range(..=last).all(|(_, (_, stage))| *stage == Stage::Done)
    }

    /// The record of the part that this letter had brought before the term: nobody needs it.
    pub(super) fn forget(&mut self, number: u64) -> Option<Offset> {
        self.0.remove(&number).map(|(part, _)| part)
    }

    /// The same of the first of the letters below.
    pub(super) fn forget_below(&mut self, undecided_from: u64) -> Option<Offset> {
        let first = self.0.first_entry().filter(|first| *first.key() < undecided_from)?;
        Some(first.remove().0)
    }

    /// The records.
    pub(super) fn parts(&self) -> impl Iterator<Item = Offset> {
        self.0.values().map(|(part, _)| *part)
    }
}
