//! The clocks of the nodes: whose differs from this node's by more than a link allows, and between which those of others lie.
//!
//! A link looks at clocks when it begins. Later each node tells each second what its clock shows: one that is set meanwhile would stamp
//! messages with times that the next node to lead takes for the age of messages which live for a while.

use std::collections::BTreeMap;

use leveret_link::hello::{CLOCK_MS_MAX, RaftId};

/// How far a clock is ahead of the one that nobody sets, in ms. What was under way for long seems to be behind by that.
type AheadMs = i64;

/// What a node knows of clocks.
#[derive(Debug, Default)]
pub(crate) struct Clocks {
    own: AheadMs,
    others: BTreeMap<RaftId, AheadMs>,
    /// Of which it was told that they differ.
    differ: BTreeMap<RaftId, String>,
}

/// For people.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ClockNews {
    Differs(String),
    Agrees(String),
}

fn ahead(clock_ms: u64, now_ms: u64) -> AheadMs {
    clock_ms.cast_signed().saturating_sub(now_ms.cast_signed())
}

impl Clocks {
    /// What this node's clock shows now.
    pub(crate) fn set_own(&mut self, clock_ms: u64, now_ms: u64) {
        self.own = ahead(clock_ms, now_ms);
    }

    /// What that of another one showed just now, and what is to be told of that: once for each change. 0 if its version does not tell.
    pub(crate) fn heard(
        &mut self,
        id: RaftId,
        name: &str,
        clock_ms: u64,
        now_ms: u64,
    ) -> Option<ClockNews> {
        if clock_ms == 0 {
            return None;
        }
        self.others.insert(id, ahead(clock_ms, now_ms));
        let Some(by_ms) = self.difference(id) else {
            let name = self.differ.remove(&id)?;
            return Some(ClockNews::Agrees(format!(
                "the clocks of {name} and of this node agree again"
            )));
        };
        if self.differ.insert(id, name.to_owned()).is_some() {
            return None;
        }
        let (by_s, how) =
            (by_ms.unsigned_abs() / 1_000, if by_ms > 0 { "ahead of" } else { "behind" });
        Some(ClockNews::Differs(format!(
            "the clock of {name} is {by_s} s {how} this node's: one of them was set. Messages are stamped as the clocks of most nodes \
             say, and nodes whose clocks differ by more than {} s are not linked again once they are not",
            CLOCK_MS_MAX / 1_000
        )))
    }

    /// A node is not there.
    pub(crate) fn lost(&mut self, id: RaftId) {
        self.others.remove(&id);
        self.differ.remove(&id);
    }

    /// How far a node's clock is ahead of this one's, in ms, if that is more than a link allows.
    pub(crate) fn difference(&self, id: RaftId) -> Option<i64> {
        let by_ms = self.others.get(&id)?.saturating_sub(self.own);
        (by_ms.unsigned_abs() > CLOCK_MS_MAX).then_some(by_ms)
    }

    /// Between which this node's is, where it is the middle one of all that are there: of an even number the later one of two, as a message
    /// that lives longer is none that is lost.
    pub(crate) fn among(&self) -> (AheadMs, AheadMs) {
        let mut others: Vec<_> = self.others.values().copied().collect();
        others.sort_unstable();
        let middle = others.len().div_ceil(2);
        let least = middle.checked_sub(1).and_then(|at| others.get(at));
        let most = others.get(middle).filter(|_| middle > 0);
        (least.copied().unwrap_or(i64::MIN), most.copied().unwrap_or(i64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000;

    #[test]
    #[rustfmt::skip] // a table
    fn the_middle_one_of_all() {
        #[track_caller]
        fn check(others: &[i64], own: i64, want: i64) {
            let numbered = (1..).map(RaftId).zip(others.iter().copied());
            let clocks = Clocks { others: numbered.collect(), ..Clocks::default() };
            let (least, most) = clocks.among();
            assert_eq!(own.max(least).min(most), want, "{others:?} {own}");
        }
        check(&[],           -9, -9);
        // The later of two.
        check(&[0],          -9, 0);
        check(&[0],          9,  9);
        check(&[0, 1],       -9, 0);
        check(&[0, 1],       9,  1);
        check(&[-9, 1],      0,  0);
        check(&[-9, 1],      -9, -9);
        check(&[0, 1, 2],    -9, 1);
        check(&[-9, 0, 1],   -9, 0);
        check(&[0, 1, 2, 3], -9, 1);
        check(&[-9, 0, 1, 2], -9, 0);
        check(&[0, 1, 2, 3], 9,  2);
    }

    #[test]
    fn each_change_is_told_once() {
        let mut clocks = Clocks::default();
        let mut hears = |own, other, now| {
            clocks.set_own(own, now);
            let news = clocks.heard(RaftId(2), "rabbit@b", other, now);
            (news, clocks.difference(RaftId(2)))
        };
        assert_eq!(hears(HOUR, HOUR + 60_000, 0), (None, None));
        let (news, by) = hears(HOUR + 1_000, 2 * HOUR + 1_000, 1_000);
        let Some(ClockNews::Differs(text)) = news else { panic!("{news:?}") };
        assert!(text.starts_with("the clock of rabbit@b is 3600 s ahead of this node's"), "{text}");
        assert_eq!(by, Some(HOUR as i64));
        // It goes on, and what was told is not told again.
        assert_eq!(hears(HOUR + 2_000, 2 * HOUR + 2_000, 2_000), (None, Some(HOUR as i64)));
        let agrees = "the clocks of rabbit@b and of this node agree again".to_owned();
        assert_eq!(hears(2 * HOUR, 2 * HOUR, 3_000), (Some(ClockNews::Agrees(agrees)), None));
        // Its own was set.
        let (news, _) = hears(HOUR, 2 * HOUR, 4_000);
        assert!(matches!(news, Some(ClockNews::Differs(_))), "{news:?}");
        // Another version.
        assert_eq!(clocks.heard(RaftId(3), "rabbit@c", 0, 5_000), None);
        clocks.lost(RaftId(2));
        assert_eq!(clocks.among(), (i64::MIN, i64::MAX));
    }
}
