//! Room on the disks of the nodes: what a majority of them can store, and who leads where there is little.
//!
//! What is confirmed a majority has on its disks. So what counts is the room of the node that has the least of the majority with the
//! most: below its limit publishers wait. One that has less follows as long as it can, and goes on by itself when there is room again.
//! A node that leads with little room, where a majority of the others has enough, has one of these lead. So it does where its disk
//! hangs: a write that does not end is like one that found no room, and nothing goes to the others that is not on its own disk. A disk
//! that hung will often hang again: for a while its node leads only if no other one can. One whose syncs take long each time has
//! everybody wait as long, as a batch goes to the others once it is there: another node leads, if those of a majority were not slow lately.

use std::collections::BTreeMap;

use leveret_link::hello::RaftId;
use leveret_link::letters::NodeNumbers;

use crate::heirs::{AskedHeirs, PossibleHeir};

/// So long a node leads before it gives way for its disk, in ms: each change ends the connections of clients. One that began with little
/// room was elected all the same, and nobody gave it the lead for its disk: it does not wait.
const LEADS_MS: u64 = 10_000;

/// So long its disk has little room before.
const SHORT_MS: u64 = 1_000;

/// An heir has so long before another one is asked.
const HEIR_MS: u64 = 5_000;

/// So long after its disk hung a node leads only if no other one can, in s. What has a disk hang comes again within minutes: paths of
/// a storage network that fail over, resets of a controller, a disk that tidies up. To remember it longer than needed costs two
/// election time-outs, where no other one can lead.
const HUNG_S: u64 = 600;

/// So long after its disk was slow a node is not given the lead for that of another one, in s, and does not give it away again: disks that
/// are slow in turns, as those with one storage below them, pass it around no more often.
const SLOW_S: u64 = 600;

/// What a node says of its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeDisk {
    free: u64,
    limit: u64,
    /// 0 if there is enough, 1 below the limit, 2 if a write found nothing, more if one does not end.
    alarm: u64,
    /// 1 if a write does not end, one more for each second since; 0 if that never was so.
    hung_s: u64,
    /// The same of syncs that take long each time.
    slow_s: u64,
}

impl NodeDisk {
    pub(crate) fn of(numbers: &NodeNumbers) -> Self {
        let NodeNumbers {
            disk_free,
            disk_free_limit,
            disk_free_alarm,
            disk_hung_s,
            disk_slow_s,
            ..
        } = *numbers;
        Self {
            free: disk_free,
            limit: disk_free_limit,
            alarm: disk_free_alarm,
            hung_s: disk_hung_s,
            slow_s: disk_slow_s,
        }
    }

    pub(crate) fn is_short(self) -> bool {
        self.alarm > 0
    }

    /// Whether a write has been under way for long.
    pub(crate) fn hangs(self) -> bool {
        self.alarm >= NodeNumbers::HANGS
    }

    /// Whether one was lately: its node leads only if no other one can.
    pub(crate) fn hung_lately(self) -> bool {
        self.hangs() || (1..=HUNG_S).contains(&self.hung_s)
    }

    /// Whether its syncs take long each time.
    pub(crate) fn is_slow(self) -> bool {
        self.slow_s == 1
    }

    fn was_slow_lately(self) -> bool {
        (1..=SLOW_S).contains(&self.slow_s)
    }

    /// Whether who has it may look for another one to lead.
    pub(crate) fn is_bad(self) -> bool {
        self.is_short() || self.is_slow()
    }

    /// What a node that begins to lead tells of another one's disk. One that is not there is gone for its disk, maybe.
    pub(crate) fn at_beginning(self, name: &str, is_here: bool) -> Option<String> {
        match self {
            it if it.hangs() && !is_here => Some(format!(
                "the disk of {name} did not end a write when that node was last heard of: another one leads for that, maybe"
            )),
            it if it.is_short() && is_here => Some(it.words(name)),
            it if it.hung_lately() && is_here => Some(format!(
                "the disk of {name} did not end a write for seconds, {} s ago: that node is to lead only if no other one can",
                it.hung_s
            )),
            _ => None,
        }
    }

    /// What is to be told of a node whose disk is short.
    fn words(self, name: &str) -> String {
        let Self { free, limit, .. } = self;
        if self.hangs() {
            return format!(
                "the disk of {name} does not end a write: that node stores nothing until it does, and then goes on by itself. \
                 Publishers go on as long as a majority of the nodes stores what they send"
            );
        }
        format!(
            "{name} has little room on its disk: {free} bytes are free, and its disk_free_limit is {limit}. It follows as long as \
             there is any, and goes on by itself when there is more. Publishers go on as long as a majority of the nodes has room"
        )
    }

    /// Whether it may be given what another one has no room for: not so little above its limit that it would give that back soon.
    fn has_plenty(self) -> bool {
        !self.is_short() && self.free >= self.limit.saturating_add(self.limit / 10)
    }

    /// Its room, for who has this limit.
    fn room(self, limit: u64) -> u64 {
        match self {
            // Nothing was told.
            Self { free: 0, limit: 0, alarm: 0, .. } => u64::MAX,
            Self { alarm: 0, free, .. } => free,
            // Where it is blocked it is so here, too, though limits differ.
            Self { alarm: 1, free, .. } => free.min(limit.saturating_sub(1)),
            Self { .. } => 0,
        }
    }
}

/// What a majority of `count` nodes has room for at least, of which these are there. No bound if they are no majority: nothing is
/// stored then, for another reason.
pub(crate) fn of_majority(own: NodeDisk, others: &[NodeDisk], count: usize) -> u64 {
    let mut rooms: Vec<u64> =
        others.iter().chain(std::iter::once(&own)).map(|it| it.room(own.limit)).collect();
    rooms.sort_unstable_by(|one, other| other.cmp(one));
    rooms.get(count / 2).copied().unwrap_or(u64::MAX)
}

/// What a node watches.
#[derive(Debug, Default)]
pub(crate) struct Disks {
    leads_ms: Option<u64>,
    short_ms: Option<u64>,
    /// It had little room when it began to lead, and has since.
    began_short: bool,
    /// It was slow lately when it began to lead.
    began_slow: bool,
    heirs: AskedHeirs,
    /// Of which nodes it was told that they have little room, and of those whether a write hangs.
    short: BTreeMap<RaftId, bool>,
}

impl Disks {
    /// Who is to lead in place of this node, if that is so; `others` are there, with how much they lack of the logs.
    pub(crate) fn heir(
        &mut self,
        leads: bool,
        own: NodeDisk,
        others: &[(RaftId, NodeDisk, u64)],
        count: usize,
        now_ms: u64,
    ) -> Option<RaftId> {
        if !leads {
            (self.leads_ms, self.short_ms) = (None, None);
            return None;
        }
        self.began_short &= own.is_short();
        let leads_ms = *self.leads_ms.get_or_insert_with(|| {
            self.began_short = own.is_short();
            self.began_slow = own.was_slow_lately();
            now_ms
        });
        if !own.is_short() {
            self.short_ms = None;
        }
        if !own.is_bad() {
            self.heirs.forget();
            return None;
        }
        let is_due = if own.is_short() {
            let short_ms = *self.short_ms.get_or_insert(now_ms);
            let has_led = self.began_short || now_ms >= leads_ms.saturating_add(LEADS_MS);
            has_led && now_ms >= short_ms.saturating_add(SHORT_MS)
        } else {
            let after_ms = if self.began_slow { SLOW_S * 1_000 } else { LEADS_MS };
            now_ms >= leads_ms.saturating_add(after_ms)
        };
        let is_able =
            |disk: NodeDisk| disk.has_plenty() && (own.is_short() || !disk.was_slow_lately());
        let able = others.iter().filter(|(_, disk, _)| is_able(*disk));
        let able: Vec<_> = able
            .map(|(id, disk, lag)| {
                let hung = disk.hung_lately() || disk.was_slow_lately();
                PossibleHeir { id: *id, hung, lag: *lag }
            })
            .collect();
        // With fewer publishers wait, whoever leads.
        if !is_due || able.len() <= count / 2 {
            return None;
        }
        self.heirs.ask(&able, HEIR_MS, now_ms)
    }

    /// What is to be told of a node that is there, for people: when it becomes short of room, and when it is not any more.
    pub(crate) fn heard(&mut self, id: RaftId, name: &str, disk: NodeDisk) -> Option<String> {
        let free = disk.free;
        let now = disk.is_short().then(|| disk.hangs());
        let before = match now {
            Some(hangs) => self.short.insert(id, hangs),
            None => self.short.remove(&id),
        };
        if before == now {
            return None;
        }
        if now.is_none() && before == Some(true) {
            return Some(format!("the disk of {name} takes what is written again"));
        }
        if now.is_none() {
            return Some(format!("{name} has room on its disk again: {free} bytes are free"));
        }
        Some(disk.words(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 50;

    fn disk(free: u64) -> NodeDisk {
        NodeDisk { free, limit: LIMIT, alarm: u64::from(free < LIMIT), hung_s: 0, slow_s: 0 }
    }

    #[test]
    #[rustfmt::skip] // a table
    fn the_room_of_a_majority() {
        #[track_caller]
        fn check(own: u64, others: &[u64], count: usize, want: u64) {
            let others: Vec<_> = others.iter().map(|free| disk(*free)).collect();
            assert_eq!(of_majority(disk(own), &others, count), want);
        }
        check(90, &[80, 70], 3, 80);
        check(90, &[80, 7],  3, 80);
        check(90, &[8, 7],   3, 8);
        check(9,  &[80, 70], 3, 70);
        // The third is not there: both of the others are needed.
        check(90, &[7],      3, 7);
        check(90, &[],       3, u64::MAX);
        check(90, &[80, 70, 6, 5], 5, 70);
        check(90, &[80, 7, 6, 5],  5, 7);
    }

    /// A write that found nothing counts more than what is said to be free; and a node's own limit counts where it is higher.
    #[test]
    fn what_a_node_says_of_its_disk_counts() {
        let full = NodeDisk { free: 70, limit: LIMIT, alarm: 2, hung_s: 0, slow_s: 0 };
        assert_eq!(of_majority(disk(90), &[full], 3), 0);
        let careful = NodeDisk { free: 200, limit: 300, alarm: 1, hung_s: 0, slow_s: 0 };
        assert_eq!(of_majority(disk(90), &[careful], 3), LIMIT - 1);
        let silent = NodeDisk { free: 0, limit: 0, alarm: 0, hung_s: 0, slow_s: 0 };
        assert_eq!(of_majority(disk(90), &[silent], 3), 90);
    }

    #[test]
    fn who_is_short_gives_way_where_a_majority_is_not() {
        let mut disks = Disks::default();
        let of = |b: u64, c: u64| [(RaftId(2), disk(b), 7), (RaftId(3), disk(c), 0)];
        let mut heir = |own: u64, b: u64, c: u64, now_ms: u64| {
            disks.heir(true, disk(own), &of(b, c), 3, now_ms)
        };
        assert_eq!(heir(90, 90, 90, 0), None);
        assert_eq!(heir(40, 90, 90, 5_000), None, "it began to lead just now");
        assert_eq!(heir(40, 90, 90, LEADS_MS), Some(RaftId(3)), "the one that lacks less");
        assert_eq!(heir(40, 90, 90, LEADS_MS + HEIR_MS), Some(RaftId(2)), "the other one");
        assert_eq!(heir(40, 40, 90, 60_000), None, "no majority has room");
        assert_eq!(heir(40, 52, 90, 60_000), None, "one would give it back soon");
        assert_eq!(heir(60, 90, 90, 60_000), None);
        assert_eq!(heir(40, 90, 90, 61_000), None, "it may last a moment");
        assert_eq!(heir(40, 90, 90, 61_000 + SHORT_MS), Some(RaftId(3)));
        assert_eq!(disks.heir(false, disk(40), &of(90, 90), 3, 70_000), None);
    }

    /// Who was elected with a full disk is not the one that another one gave way to.
    #[test]
    fn who_begins_with_little_room_gives_way_at_once() {
        let mut disks = Disks::default();
        let others = [(RaftId(2), disk(90), 7), (RaftId(3), disk(90), 0)];
        let mut heir = |own: u64, now_ms: u64| disks.heir(true, disk(own), &others, 3, now_ms);
        assert_eq!(heir(40, 1_000), None);
        assert_eq!(heir(40, 1_000 + SHORT_MS), Some(RaftId(3)));
        // It had room meanwhile: what it has filled since it may have filled by leading.
        assert_eq!(heir(60, 3_000), None);
        assert_eq!(heir(40, 3_100), None);
        assert_eq!(heir(40, 3_100 + SHORT_MS), None);
        assert_eq!(heir(40, 1_000 + LEADS_MS), Some(RaftId(3)));
    }

    #[test]
    fn each_change_is_told_once() {
        let mut disks = Disks::default();
        let mut heard = |free| disks.heard(RaftId(2), "rabbit@b", disk(free)).is_some();
        assert_eq!([90, 40, 30, 60, 70].map(&mut heard), [false, true, false, true, false]);
    }

    /// It leads no longer, though there is room, and it is told as what it is.
    #[test]
    fn a_disk_that_hangs() {
        let mut disks = Disks::default();
        let hangs = NodeDisk { alarm: 3, ..disk(90) };
        let others = [(RaftId(2), disk(90), 7), (RaftId(3), disk(90), 0)];
        let mut heir = |own, now_ms| disks.heir(true, own, &others, 3, now_ms);
        assert_eq!(heir(disk(90), 0), None);
        assert_eq!(heir(hangs, LEADS_MS), None);
        assert_eq!(heir(hangs, LEADS_MS + SHORT_MS), Some(RaftId(3)));
        let others = [(RaftId(2), disk(90), 7), (RaftId(3), hangs, 0)];
        assert_eq!(disks.heir(true, hangs, &others, 3, 60_000), None, "no majority takes anything");
        assert_eq!(of_majority(disk(90), &[hangs, disk(80)], 3), 80);
        let mut heard = |disk| disks.heard(RaftId(2), "rabbit@b", disk).unwrap_or_default();
        assert!(heard(hangs).contains("does not end a write"));
        assert_eq!(heard(hangs), "");
        assert!(heard(disk(40)).contains("little room"));
        assert!(heard(hangs).contains("does not end a write"));
        assert!(heard(disk(90)).contains("takes what is written again"));
    }

    /// Who is asked first, and who if that one does not take it.
    #[test]
    fn a_disk_that_hung_lately_comes_last() {
        let mut disks = Disks::default();
        let hung = |hung_s| NodeDisk { hung_s, ..disk(90) };
        let mut heir = |b: u64, own, now_ms| {
            let others = [(RaftId(2), hung(b), 0), (RaftId(3), disk(90), 7)];
            disks.heir(true, own, &others, 3, now_ms)
        };
        let mut now_ms = 0;
        for (b, want) in [(0, 2), (1, 3), (HUNG_S, 3), (HUNG_S + 1, 2)] {
            now_ms += 100_000;
            assert_eq!(heir(b, disk(90), now_ms), None);
            assert_eq!(heir(b, disk(40), now_ms + LEADS_MS), None);
            let after = now_ms + LEADS_MS + SHORT_MS;
            assert_eq!(heir(b, disk(40), after), Some(RaftId(want)), "{b}");
            assert_eq!(heir(b, disk(40), after + HEIR_MS), Some(RaftId(5 - want)), "{b}");
        }
    }

    /// A row: its own disk, those of the others, how long it has led, and who is to lead.
    #[test]
    #[rustfmt::skip] // a table
    fn who_is_slow_gives_way_where_a_majority_is_not() {
        #[track_caller]
        fn check(own: u64, others: &[u64], has_led_ms: u64, want: Option<u64>) {
            let slow = |slow_s| NodeDisk { slow_s, ..disk(90) };
            let others: Vec<_> = (2..).map(RaftId).zip(others).map(|(id, it)| (id, slow(*it), 0)).collect();
            let mut disks = Disks::default();
            let began = if own == NOW { 0 } else { own };
            let mut heir = |own, now_ms| disks.heir(true, slow(own), &others, others.len() + 1, now_ms);
            assert_eq!(heir(began, 0), None);
            let is_slow = if own == 0 { 0 } else { NOW };
            assert_eq!(heir(is_slow, has_led_ms), want.map(RaftId), "{own} {has_led_ms}");
        }
        const NOW: u64 = 1;
        const AGO: u64 = SLOW_S;
        const LONG_AGO: u64 = SLOW_S + 1;
        check(NOW,      &[0, 0],        LEADS_MS,         Some(2));
        check(NOW,      &[0, 0],        LEADS_MS - 1,     None);
        check(0,        &[0, 0],        LEADS_MS,         None);
        // All are, or so many that confirms would not come sooner.
        check(NOW,      &[NOW, NOW],    LEADS_MS,         None);
        check(NOW,      &[NOW, 0],      LEADS_MS,         None);
        check(NOW,      &[NOW, 0, 0, 0], LEADS_MS,        Some(3));
        check(NOW,      &[],            LEADS_MS,         None);
        // The one that gave way for that is not given the lead back.
        check(NOW,      &[AGO, 0],      LEADS_MS,         None);
        check(NOW,      &[LONG_AGO, 0], LEADS_MS,         Some(2));
        // It was elected all the same.
        check(AGO,      &[0, 0],        LEADS_MS,         None);
        check(AGO,      &[0, 0],        SLOW_S * 1_000,   Some(2));
        check(LONG_AGO, &[0, 0],        LEADS_MS,         Some(2));
    }

    /// Who has no room asks whoever has, those last whose disks were slow.
    #[test]
    fn room_counts_for_more_than_slowness() {
        let slow = |slow_s| NodeDisk { slow_s, ..disk(90) };
        let others = [(RaftId(2), slow(1), 0), (RaftId(3), slow(0), 7)];
        let mut disks = Disks::default();
        let mut heir = |free, now_ms| disks.heir(true, disk(free), &others, 3, now_ms);
        assert_eq!(heir(90, 0), None);
        assert_eq!(heir(40, LEADS_MS), None);
        assert_eq!(heir(40, LEADS_MS + SHORT_MS), Some(RaftId(3)));
        assert_eq!(heir(40, LEADS_MS + SHORT_MS + HEIR_MS), Some(RaftId(2)));
    }

    /// Who begins to lead heard nothing of this as one that leads.
    #[test]
    fn what_is_told_of_disks_at_the_beginning() {
        let hangs = NodeDisk { alarm: 3, hung_s: 1, ..disk(90) };
        let told = |disk: NodeDisk, is_here| disk.at_beginning("rabbit@a", is_here);
        let hung = NodeDisk { hung_s: 7, ..disk(90) };
        assert!(told(hangs, true).unwrap().contains("does not end a write"));
        assert!(told(hangs, false).unwrap().contains("did not end a write when"));
        assert!(told(hung, true).unwrap().contains("for seconds, 7 s ago"));
        assert!(told(disk(40), true).unwrap().contains("little room"));
        for (disk, is_here) in [(disk(90), true), (disk(40), false), (hung, false)] {
            assert_eq!(told(disk, is_here), None);
        }
    }
}
