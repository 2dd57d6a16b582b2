//! A member that led a term of which nobody heard, and lacks batches that its leader has as files only.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use leveret_log::disk::{Faults, SimDisk};
use leveret_log::file::Options;
use leveret_log::{BatchName, Holder, Keep, Log};
use leveret_replica::{GroupLog, Member, MemberId, Members, Point, Settings};

const ONE: [Holder; 1] = [Holder::new(1)];

/// A log that a member lent, and whether it has something for its member.
struct Lent {
    by: usize,
    log: GroupLog<SimDisk>,
    rung: Arc<AtomicBool>,
}

struct World {
    members: Vec<Member<SimDisk>>,
    disks: [SimDisk; 3],
    lent: Option<Lent>,
    /// Hears nobody, and is heard by nobody.
    alone: Option<usize>,
    /// Batches get lost.
    loses_batches: bool,
    now_ms: u64,
}

impl World {
    fn new() -> Self {
        let members = Members::of(&[1, 2, 3].map(MemberId));
        let point = Point { at: BatchName { number: 1, term: 1 }, members };
        let options = Options { segment_bytes: 4_000, cache_bytes: 0, ..Options::default() };
        let held_bytes = 1_000;
        let settings =
            Settings { tick_ms: 100, election_ticks: 4, held_bytes, ..Settings::default() };
        let disks = [1, 2, 3].map(SimDisk::new);
        let open = |id| {
            let (disk, word) = (disks[id as usize - 1].clone(), Some(Default::default()));
            let (options, point) = (options.clone(), point.clone());
            Member::open(MemberId(id), settings, id, word, disk, options, point).unwrap().0
        };
        let members = [1, 2, 3].map(open).into();
        Self { members, disks, lent: None, alone: None, loses_batches: false, now_ms: 0 }
    }

    /// Ten milliseconds.
    fn turn(&mut self) {
        self.now_ms += 10;
        for at in 0..self.members.len() {
            let member = &mut self.members[at];
            member.tick(self.now_ms);
            member.disk_woke();
            if let Some(lent) = self.lent.as_mut().filter(|it| it.by == at) {
                lent.log.sync().unwrap();
                lent.log.collect().unwrap();
                if lent.rung.swap(false, Ordering::Relaxed) {
                    member.log_woke();
                }
            }
            self.take(at);
        }
    }

    /// What a member wants is done: words are kept at once, and logs opened.
    fn take(&mut self, at: usize) {
        loop {
            let actions = self.members[at].take_actions();
            assert_eq!((actions.failed, actions.must_restart), (None, false));
            if let Some(log) = self.members[at].take_reopening() {
                self.members[at].reopened(log.open());
            }
            let from = MemberId(at as u64 + 1);
            let is_heard = |to: usize| self.alone != Some(at) && self.alone != Some(to);
            for (to, message, copies) in actions.messages {
                let to = to.0 as usize - 1;
                if is_heard(to) && (copies.is_empty() || !self.loses_batches) {
                    self.members[to].step(from, message, copies);
                }
            }
            for (to, refill) in actions.refill {
                let to = to.0 as usize - 1;
                if is_heard(to) {
                    self.members[to].refill(from, refill);
                }
            }
            let Some((_, ticket)) = actions.keep.last() else { return };
            self.members[at].kept(*ticket);
        }
    }

    /// Waits for one of whom this is so.
    fn until(&mut self, is_so: impl Fn(usize, &Member<SimDisk>) -> bool) -> usize {
        for _ in 0..5_000 {
            self.turn();
            let mut all = self.members.iter().enumerate();
            if let Some((at, _)) = all.find(|(at, member)| is_so(*at, member)) {
                return at;
            }
        }
        let all: Vec<_> = self.members.iter().map(Member::status).collect();
        panic!("{all:?}");
    }
}

/// Who has another one lead lends nothing meanwhile: what it did then it would have to undo by starting anew.
#[test]
fn who_has_another_one_lead_lends_nothing() {
    let mut world = World::new();
    let by = world.until(|_, it| it.leads().is_some());
    let heir = (by + 1) % 3;
    world.alone = Some(heir);
    let member = &mut world.members[by];
    member.transfer(MemberId(heir as u64 + 1)).unwrap();
    assert!(member.elected().is_some() && member.leads().is_none());
    assert!(member.lend_log(Arc::new(|| {})).is_none());
    // That one does not answer: it goes on.
    world.until(|at, it| at == by && it.leads().is_some());
    assert!(world.members[by].lend_log(Arc::new(|| {})).is_some());
}

/// No batch comes to it, so its log has to be opened as a follower's without one.
#[test]
fn who_led_a_term_that_nobody_heard_of_gets_files() {
    let mut world = World::new();
    world.loses_batches = true;
    let alone = world.until(|_, it| it.last().number > 1);
    (world.alone, world.loses_batches) = (Some(alone), false);
    let by = world.until(|at, it| at != alone && it.leads().is_some());
    let rung = Arc::new(AtomicBool::new(false));
    let bell = rung.clone();
    let wake = Arc::new(move || bell.store(true, Ordering::Relaxed));
    let log = world.members[by].lend_log(wake).unwrap();
    world.lent = Some(Lent { by, log, rung });
    for number in 0..300 {
        if number == 200 {
            // Nothing stays for who is away.
            world.disks[by].set_faults(Faults { wants_room: true, ..Faults::default() });
        }
        let log = &mut world.lent.as_mut().unwrap().log;
        let at = log.append(b"h", &[&[number as u8; 200]], &ONE, Keep::Durable).unwrap();
        (0..20).for_each(|_| world.turn());
        world.lent.as_mut().unwrap().log.release(at, ONE[0]).unwrap();
    }
    let point = world.lent.as_mut().unwrap().log.point().number;
    let status = world.members.iter().map(Member::status).collect::<Vec<_>>();
    assert!(point > 100 && status[alone].last.number == 2, "{point} {status:?}");
    world.alone = None;
    world.until(|at, it| at == alone && it.last().number > 300);
}
