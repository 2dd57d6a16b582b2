//! What is told of nodes of sessions that are refused: they call again each few seconds, perhaps for days.

use std::collections::BTreeMap;

use crate::locks::{Rank, Ranked};

/// Members that were refused, by Raft id, and why each was the last time.
#[derive(Debug)]
pub(super) struct Refusals(Ranked<BTreeMap<u64, Box<str>>>);

/// Members are few; with more, what was told is forgotten.
const REFUSALS_MAX: usize = 64;

impl Refusals {
    pub(super) fn new() -> Self {
        Self(Ranked::new(Rank::RefusedNodes, BTreeMap::new()))
    }

    /// A member's connection has ended, since it was refused or for another reason. Whether that is to be told: who is refused calls again
    /// and again.
    pub(super) fn is_new(&self, caller: u64, refused: Option<&str>) -> bool {
        let mut told = self.0.lock();
        let Some(why) = refused else {
            told.remove(&caller);
            return true;
        };
        if told.get(&caller).is_some_and(|it| **it == *why) {
            return false;
        }
        if told.len() >= REFUSALS_MAX {
            told.clear();
        }
        told.insert(caller, why.into());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_refused_again_is_told_once() {
        let refusals = Refusals::new();
        assert!(refusals.is_new(1, Some("no")) && refusals.is_new(2, Some("no")));
        assert!(!refusals.is_new(1, Some("no")) && !refusals.is_new(2, Some("no")));
        assert!(refusals.is_new(1, Some("not yet")) && !refusals.is_new(1, Some("not yet")));
        assert!(refusals.is_new(2, None) && refusals.is_new(2, None));
        assert!(refusals.is_new(2, Some("no")), "it was here meanwhile");
        (3..).take(2 * REFUSALS_MAX).for_each(|caller| _ = refusals.is_new(caller, Some("no")));
        assert!(refusals.0.lock().len() <= REFUSALS_MAX);
    }
}
