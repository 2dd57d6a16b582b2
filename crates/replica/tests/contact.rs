//! What all members in contact with a leader have: its log says so, of a member that is slow, that is cut off and comes back, and of new
//! leaders.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use leveret_log::disk::{Faults, SimDisk};
use leveret_log::file::Options;
use leveret_log::{BatchName, Holder, Keep, Log, Moment};
use leveret_replica::{
    Body, Change, GroupLog, LeftOut, Member, MemberId, MemberStatus, Members, Point, Settings, Step,
};

const ONE: [Holder; 1] = [Holder::new(1)];

/// An election time-out.
const PATIENCE_MS: u64 = 400;

struct World {
    members: Vec<Member<SimDisk>>,
    disks: [SimDisk; 3],
    /// Who leads, and its log.
    leads: usize,
    log: Option<GroupLog<SimDisk>>,
    rung: Arc<AtomicBool>,
    /// Hears nobody, and is heard by nobody.
    alone: Option<usize>,
    /// Batches that would go on from the end of its log are lost on their way.
    starves: Option<usize>,
    /// The log's shard was to have a turn.
    is_woken: bool,
    now_ms: u64,
}

impl World {
    /// The first `voters` are members, and one of them leads.
    fn new(voters: usize) -> Self {
        let mut world = Self::fresh(voters);
        world.elect();
        world
    }

    fn fresh(voters: usize) -> Self {
        let ids = [1, 2, 3].map(MemberId);
        let members = Members::of(&ids[..voters]);
        let point = Point { at: BatchName { number: 1, term: 1 }, members };
        let options = Options { cache_bytes: 0, ..Options::default() };
        let settings = Settings { tick_ms: 100, election_ticks: 4, ..Settings::default() };
        let disks = [1, 2, 3].map(SimDisk::new);
        let open = |id| {
            let (disk, word) = (disks[id as usize - 1].clone(), Some(Default::default()));
            let (options, point) = (options.clone(), point.clone());
            Member::open(MemberId(id), settings, id, word, disk, options, point).unwrap().0
        };
        Self {
            members: [1, 2, 3].map(open).into(),
            disks,
            leads: 0,
            log: None,
            rung: Arc::default(),
            alone: None,
            starves: None,
            is_woken: false,
            now_ms: 0,
        }
    }

    /// Waits until a member leads that is not cut off, and takes its log.
    fn elect(&mut self) {
        self.log = None;
        self.leads = self.until_one_leads();
        let bell = self.rung.clone();
        let wake = Arc::new(move || bell.store(true, Ordering::Relaxed));
        self.log = Some(self.members[self.leads].lend_log(wake).unwrap());
    }

    fn until_one_leads(&mut self) -> usize {
        for _ in 0..5_000 {
            let mut all = self.members.iter().enumerate();
            let leads =
                |(at, it): &(usize, &Member<_>)| self.alone != Some(*at) && it.leads().is_some();
            if let Some((at, _)) = all.find(leads) {
                return at;
            }
            self.turn();
        }
        panic!("nobody leads");
    }

    /// Ten milliseconds.
    fn turn(&mut self) {
        self.now_ms += 10;
        for at in 0..self.members.len() {
            let member = &mut self.members[at];
            member.tick(self.now_ms);
            member.disk_woke();
            if let Some(log) = self.log.as_mut().filter(|_| self.leads == at) {
                log.sync().unwrap();
                log.collect().unwrap();
                if self.rung.swap(false, Ordering::Relaxed) {
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
            assert_eq!(actions.failed, None);
            self.is_woken |= actions.wakes_log;
            if let Some(log) = self.members[at].take_reopening() {
                self.members[at].reopened(log.open());
            }
            let from = MemberId(at as u64 + 1);
            for (to, message, copies) in actions.messages {
                let to = to.0 as usize - 1;
                let end = self.members[to].status().last;
                let is_lost = self.starves == Some(to)
                    && matches!(&message.body, Body::Append { before, .. } if *before <= end);
                if self.alone != Some(at) && self.alone != Some(to) && !is_lost {
                    self.members[to].step(from, message, copies);
                }
            }
            let Some((_, ticket)) = actions.keep.last() else { return };
            self.members[at].kept(*ticket);
        }
    }

    fn run(&mut self, ms: u64) {
        (0..ms / 10).for_each(|_| self.turn());
    }

    fn log(&mut self) -> &mut GroupLog<SimDisk> {
        self.log.as_mut().unwrap()
    }

    /// One more record, on its way.
    fn append(&mut self) -> Moment {
        let log = self.log();
        log.append(b"h", &[&[7; 200]], &ONE, Keep::Durable).unwrap();
        log.moment()
    }

    /// Whether a majority has it, and all in contact.
    fn have(&mut self, moment: Moment) -> (bool, bool) {
        let log = self.log();
        let reaches = |it: Option<Moment>| it.unwrap().reaches(moment);
        (reaches(log.agreed()), reaches(log.on_all()))
    }

    fn status(&self) -> MemberStatus {
        self.members[self.leads].status()
    }

    fn left_out(&self) -> Vec<(MemberId, LeftOut)> {
        self.status().left_out
    }

    /// A follower's place.
    fn follower(&self) -> usize {
        (self.leads + 1) % 3
    }

    fn id(&self, at: usize) -> MemberId {
        MemberId(at as u64 + 1)
    }

    fn stall(&self, at: usize, stall: bool) {
        self.disks[at].set_faults(Faults { stall, ..Faults::default() });
    }
}

#[test]
fn all_wait_for_who_is_slow() {
    let mut world = World::new(3);
    world.run(500);
    for is_awaited in [false, true] {
        let slow = world.follower();
        world.stall(slow, true);
        world.log().use_all(true, is_awaited);
        let moment = world.append();
        world.run(2_000);
        assert_eq!(world.have(moment), (true, false));
        assert_eq!(world.left_out(), []);
        assert!(world.members[world.leads].uses_all());
        world.is_woken = false;
        world.stall(slow, false);
        world.run(200);
        assert_eq!(world.have(moment), (true, true));
        assert_eq!(world.is_woken, is_awaited, "nobody is woken who does not wait");
    }
}

#[test]
fn a_disk_that_hangs_is_waited_for_for_a_while() {
    let mut world = World::new(3);
    world.run(500);
    let slow = world.follower();
    world.stall(slow, true);
    let moment = world.append();
    world.run(9 * PATIENCE_MS);
    assert_eq!(world.have(moment), (true, false));
    world.run(2 * PATIENCE_MS);
    assert_eq!(world.have(moment), (true, true));
    assert_eq!(world.left_out(), [(world.id(slow), LeftOut::Behind)]);
    world.stall(slow, false);
    world.run(200);
    assert_eq!(world.left_out(), []);
}

#[test]
fn who_is_cut_off_is_left_out_until_it_has_what_it_missed() {
    let mut world = World::new(3);
    world.run(500);
    let away = world.follower();
    world.alone = Some(away);
    let moment = world.append();
    world.run(PATIENCE_MS - 150);
    assert_eq!(world.have(moment), (true, false));
    world.run(300);
    assert_eq!(world.have(moment), (true, true));
    assert_eq!(world.left_out(), [(world.id(away), LeftOut::Silent)]);
    // It is back, and its disk is slow: nothing waits for it yet.
    world.stall(away, true);
    world.alone = None;
    world.run(300);
    let moment = world.append();
    world.run(100);
    assert_eq!(world.have(moment), (true, true));
    assert_eq!(world.left_out(), [(world.id(away), LeftOut::Behind)]);
    world.stall(away, false);
    world.run(500);
    assert_eq!(world.left_out(), []);
    world.stall(away, true);
    let moment = world.append();
    world.run(500);
    assert_eq!(world.have(moment), (true, false));
}

/// A new leader knows of nobody what it has. What was agreed upon before is on all for it once all have told, or were not heard of.
#[test]
fn a_new_leader_waits_for_all() {
    let mut world = World::new(3);
    world.run(500);
    let slow = world.follower();
    world.stall(slow, true);
    world.append();
    world.run(200);
    // The leader is gone; who has less cannot be the next.
    let old = world.leads;
    world.alone = Some(old);
    world.log = None;
    world.stall(slow, false);
    world.elect();
    assert_ne!(world.leads, old);
    let before = world.log().moment();
    world.run(100);
    assert_eq!(world.have(before), (true, false), "the old leader may be in contact");
    world.run(PATIENCE_MS);
    assert_eq!(world.have(before), (true, true));
    assert_eq!(world.left_out(), [(world.id(old), LeftOut::Silent)]);
}

/// One that is there, and lacks what the others have: a leader waits for it as long as for one that is not there.
#[test]
fn a_new_leader_does_not_wait_for_who_fetches() {
    let mut world = World::fresh(3);
    // None has lent its log yet: so it goes on when another one leads.
    let first = world.until_one_leads();
    let (second, away) = ((first + 1) % 3, (first + 2) % 3);
    world.run(500);
    world.alone = Some(away);
    let id = world.id(second);
    world.members[first].transfer(id).unwrap();
    world.run(300);
    assert_eq!(world.until_one_leads(), second);
    (world.alone, world.starves) = (None, Some(away));
    world.run(300);
    let id = world.id(first);
    world.members[second].transfer(id).unwrap();
    world.run(50);
    world.elect();
    assert_eq!(world.leads, first);
    let moment = world.append();
    world.run(PATIENCE_MS - 150);
    assert_eq!(world.have(moment), (true, false));
    world.run(300);
    assert_eq!(world.have(moment), (true, true));
    assert_eq!(world.left_out(), [(world.id(away), LeftOut::Behind)]);
    world.starves = None;
    world.run(300);
    assert_eq!(world.left_out(), []);
}

/// Learners are not waited for. A new voter is from when it has what there is.
#[test]
fn members_change() {
    let mut world = World::new(2);
    world.run(500);
    let change = |world: &mut World, step| {
        let leads = world.leads;
        world.members[leads].change(Change::of(vec![step])).unwrap();
        world.run(300);
    };
    world.stall(2, true);
    change(&mut world, Step::Learner(MemberId(3)));
    let moment = world.append();
    world.run(200);
    assert_eq!(world.have(moment), (true, true));
    world.stall(2, false);
    world.run(300);
    change(&mut world, Step::Voter(MemberId(3)));
    assert_eq!(world.left_out(), []);
    world.stall(2, true);
    let moment = world.append();
    world.run(200);
    assert_eq!(world.have(moment), (true, false));
    change(&mut world, Step::Remove(MemberId(3)));
    assert_eq!(world.have(moment), (true, true));
}

#[test]
fn a_log_alone_has_no_others() {
    let log = leveret_log::FileLog::open(SimDisk::new(1), Options::default(), &mut |_| {});
    let log = GroupLog::from(log.unwrap().0);
    assert_eq!((log.agreed(), log.on_all()), (None, None));
}
