//! A member with a new disk comes into a group whose leader has not all of its log as batches any more: it gets the leader's files.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use leveret_log::disk::{self, SimDisk};
use leveret_log::file::{BatchCopy, NoPiece, Options};
use leveret_log::{BatchName, FileLog, Holder, Keep, Log, Offset};
use leveret_replica::{
    Batch, Batches, Change, GroupLog, Member, MemberActions, MemberId, Members, Output, Point,
    Replica, Settings, Step, Stored, Task, Tasks, Ticket, Word,
};

const ONE: [Holder; 1] = [Holder::new(1)];
const LEADER: MemberId = MemberId(1);
const NEW: MemberId = MemberId(3);

fn settings() -> Settings {
    Settings { tick_ms: 100, election_ticks: 4, held_bytes: 1_000, ..Settings::default() }
}

fn options(follows: Option<BatchName>) -> Options {
    Options { segment_bytes: 4_000, cache_bytes: 0, follows, ..Options::default() }
}

/// The leader, alone at first, and its shard's log.
struct Leader {
    member: Member<SimDisk>,
    log: GroupLog<SimDisk>,
    rung: Arc<AtomicBool>,
    disk: SimDisk,
}

impl Leader {
    fn new() -> Self {
        let disk = SimDisk::new(1);
        let point = Point { at: BatchName { number: 1, term: 1 }, members: Members::of(&[LEADER]) };
        let word = Some(Word::default());
        let opened =
            Member::open(LEADER, settings(), 1, word, disk.clone(), options(None), point).unwrap();
        let mut member = opened.0;
        let mut now_ms = 0;
        while member.leads().is_none() {
            now_ms += 10;
            member.tick(now_ms);
            member.disk_woke();
            let _ = take(&mut member);
        }
        let rung = Arc::new(AtomicBool::new(false));
        let bell = rung.clone();
        let log = member.lend_log(Arc::new(move || bell.store(true, Ordering::Relaxed))).unwrap();
        Self { member, log, rung, disk }
    }

    /// Messages for others.
    fn turn(&mut self, now_ms: u64) -> MemberActions {
        self.member.tick(now_ms);
        self.log.sync().unwrap();
        if self.rung.swap(false, Ordering::Relaxed) {
            self.member.log_woke();
        }
        take(&mut self.member)
    }

    fn append(&mut self, number: u64) -> Offset {
        self.log.append(b"h", &[&[number as u8; 200]], &ONE, Keep::Durable).unwrap()
    }
}

/// Words are kept at once.
fn take(member: &mut Member<SimDisk>) -> MemberActions {
    let mut all = MemberActions::default();
    loop {
        let actions = member.take_actions();
        assert_eq!((actions.failed, actions.must_restart), (None, false));
        all.messages.extend(actions.messages);
        let Some((_, ticket)) = actions.keep.last() else { return all };
        member.kept(*ticket);
    }
}

/// What a disk has that is new.
struct Nothing;

impl Batches for Nothing {
    fn point(&self) -> Point {
        Point::default()
    }

    fn last(&self) -> BatchName {
        BatchName::NONE
    }

    fn batch(&self, _: u64) -> Option<Batch> {
        None
    }

    fn agreed(&self) -> u64 {
        0
    }
}

/// The one that comes.
struct Newcomer {
    replica: Replica,
    tasks: Tasks,
    log: Option<FileLog<SimDisk>>,
    kept: Ticket,
    copies: BTreeMap<BatchName, BatchCopy>,
    waiting: Vec<Stored>,
    answers: Vec<leveret_replica::Message>,
    installed: Option<Point>,
}

impl Newcomer {
    fn new(disk: &SimDisk) -> Self {
        let (replica, output) = Replica::open(NEW, settings(), 3, Word::default(), &Nothing);
        let follows = options(Some(BatchName::NONE));
        let log = FileLog::open(disk.clone(), follows, &mut |_| {}).unwrap().0;
        let (tasks, copies, waiting, answers) = Default::default();
        let log = Some(log);
        let (kept, installed) = (Ticket(0), None);
        let mut it = Self { replica, tasks, log, kept, copies, waiting, answers, installed };
        it.take(output);
        it
    }

    fn log(&mut self) -> &mut FileLog<SimDisk> {
        self.log.as_mut().unwrap()
    }

    fn take(&mut self, output: Output) {
        self.tasks.extend(output.tasks, self.replica.cuts());
        assert!(output.messages.iter().all(|(to, _)| *to == LEADER));
        self.answers.extend(output.messages.into_iter().map(|(_, message)| message));
    }

    /// Does what the replica wants.
    fn work(&mut self) {
        while let Some((task, cuts)) = self.tasks.next(self.kept) {
            match task {
                Task::Keep(_, ticket) => {
                    self.kept = ticket;
                    let output = self.replica.kept(ticket);
                    self.take(output);
                }
                Task::Copy(batches) => {
                    for Batch { name, .. } in batches {
                        let copy = self.copies[&name].clone();
                        assert_eq!(self.log().copy(&copy), Ok(name));
                        self.waiting.push(Stored { name, cuts });
                    }
                }
                Task::Install(point) => {
                    let mut log = self.log.take().unwrap();
                    log.install();
                    while !log.is_installed() {
                        log.collect().unwrap();
                    }
                    let follows = options(Some(point.at));
                    let opened = FileLog::open(log.into_disk(), follows, &mut |_| {});
                    let log = opened.unwrap().0;
                    assert_eq!((log.last(), log.applied()), (point.at, Some(point.at)));
                    assert_eq!(log.listed_point().map(|it| it.at), Some(point.at));
                    self.log = Some(log);
                    self.waiting.push(Stored { name: point.at, cuts });
                    self.installed = Some(point);
                }
                task => panic!("{task:?}"),
            }
        }
        self.log().sync().unwrap();
        let stored = self.log().stored().number;
        for it in self.waiting.extract_if(.., |it| it.name.number <= stored).collect::<Vec<_>>() {
            let output = self.replica.stored(it);
            self.take(output);
        }
        let agreed = self.replica.agreed();
        if self.tasks.is_empty() {
            self.log().apply_to(agreed).unwrap();
        }
    }
}

#[test]
fn a_member_with_a_new_disk_gets_the_leaders_files() {
    let mut leader = Leader::new();
    let mut now_ms = 10_000;
    let mut held = Vec::new();
    for number in 0..300 {
        let at = leader.append(number);
        for _ in 0..20 {
            now_ms += 1;
            let _ = leader.turn(now_ms);
        }
        match number % 20 {
            0 => held.push(at),
            _ => leader.log.release(at, ONE[0]).unwrap(),
        }
    }
    assert!(leader.log.point().number > 100, "{}", leader.log.point());
    let disk = SimDisk::new(2);
    let mut new = Newcomer::new(&disk);
    let steps = [Step::Learner(NEW), Step::Voter(NEW)];
    let (mut next, mut fetched, mut last) = (0, 0, None);
    for _ in 0..20_000 {
        now_ms += 10;
        let status = leader.member.status();
        let has_all = new.installed.is_some() && new.replica.agreed() == status.agreed;
        if next == 0 || next == 1 && has_all {
            // It is refused while the one before is under way.
            let change = Change::of(vec![steps[next]]);
            next += usize::from(leader.member.change(change).is_ok());
        }
        if next == 2 && status.members.has_voter(NEW) && has_all {
            match last {
                None => {
                    let at = leader.append(7);
                    last = Some(at);
                    held.push(at);
                }
                // It is readable once both have it.
                Some(at) if leader.log.readable() > at => break,
                Some(_) => {}
            }
        }
        for (to, message, copies) in leader.turn(now_ms).messages {
            assert_eq!(to, NEW);
            new.copies.extend(copies.into_iter().map(|it| (it.name().unwrap(), it)));
            let output = new.replica.step(LEADER, message).unwrap();
            let behind = output.behind.clone();
            new.take(output);
            let Some(point) = behind.filter(|_| new.log().fetched().is_none()) else { continue };
            let members = format!("{:?}", point.members).into_bytes().into();
            // If it is not on the leader's disk yet, it is said again.
            let Some(manifest) = leader.log.manifest(disk::Point { at: point.at, members }) else {
                continue;
            };
            fetched += 1;
            new.log().receive(manifest).unwrap();
            while new.log().arrived().is_none() {
                for name in new.log().wanted(10_000) {
                    let piece = loop {
                        match leader.log.piece(name) {
                            Err(NoPiece::ToCome) => leader.log.collect().unwrap(),
                            piece => break piece.unwrap(),
                        }
                    };
                    new.log().take_piece(&piece).unwrap();
                }
                new.log().collect().unwrap();
            }
            let output = new.replica.install(point).unwrap();
            new.take(output);
        }
        let output = new.replica.tick(now_ms);
        new.take(output);
        for _ in 0..4 {
            new.work();
        }
        for message in std::mem::take(&mut new.answers) {
            leader.member.step(NEW, message, Vec::new());
        }
    }
    let status = leader.member.status();
    assert!(last.is_some_and(|at| leader.log.readable() > at), "{status:?}");
    assert!(status.members.has_voter(NEW) && new.replica.members().has_voter(NEW));
    assert_eq!(fetched, 1);
    for _ in 0..100 {
        leader.log.sync().unwrap();
        new.work();
    }
    let found = |disk: &SimDisk| {
        let mut log = FileLog::open(disk.copy_whole(1), options(None), &mut |_| {}).unwrap().0;
        let mut found = Vec::new();
        log.recover(&mut |it| found.push((it.at, it.holders.to_vec())));
        found
    };
    let want = found(&leader.disk);
    let offsets: Vec<_> = want.iter().map(|(at, _)| *at).collect();
    assert_eq!((offsets, found(&disk)), (held, want));
}
