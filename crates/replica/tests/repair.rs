//! A record that is damaged on the leader's disk is had from another member, and is written to its place again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use leveret_log::disk::SimDisk;
use leveret_log::file::Options;
use leveret_log::{BatchName, Holder, Keep, Log, Offset, ReadError};
use leveret_replica::{GroupLog, Member, MemberId, Members, Point, RecordLetter, Settings};

const ONE: [Holder; 1] = [Holder::new(1)];

/// Records, of two hundred bytes.
const COUNT: u8 = 60;

struct World {
    disks: [SimDisk; 3],
    members: Vec<Member<SimDisk>>,
    lent: Option<(GroupLog<SimDisk>, Arc<AtomicBool>)>,
    leader: usize,
    now_ms: u64,
    told: Vec<String>,
    /// Nothing comes from or goes to it.
    away: Option<usize>,
}

impl World {
    /// A leader whose records are on the disk alone, and two that follow it.
    fn new() -> Self {
        let disks = [1, 2, 3].map(SimDisk::new);
        let all = Members::of(&[MemberId(1), MemberId(2), MemberId(3)]);
        let point = Point { at: BatchName { number: 1, term: 1 }, members: all };
        let options = Options { segment_bytes: 4_000, cache_bytes: 0, ..Options::default() };
        let settings = Settings { tick_ms: 100, election_ticks: 4, ..Settings::default() };
        let open = |id: u64| {
            let (word, disk) = (Some(Default::default()), disks[id as usize - 1].clone());
            let (options, point) = (options.clone(), point.clone());
            Member::open(MemberId(id), settings, id, word, disk, options, point).unwrap().0
        };
        let members = [1, 2, 3].map(open).into();
        let (told, away) = Default::default();
        let mut world = Self { disks, members, lent: None, leader: 0, now_ms: 0, told, away };
        world.until(|it| it.members.iter().any(|member| member.leads().is_some()));
        world.leader = world.members.iter().position(|it| it.leads().is_some()).unwrap();
        let rung = Arc::new(AtomicBool::new(false));
        let bell = rung.clone();
        let wake = Arc::new(move || bell.store(true, Ordering::Relaxed));
        let log = world.members[world.leader].lend_log(wake).unwrap();
        world.lent = Some((log, rung));
        for number in 0..COUNT {
            let record = [&[number; 200][..]];
            world.log().append(b"h", &record, &ONE, Keep::Durable).unwrap();
            world.log().sync().unwrap();
            world.until(|it| it.lent.as_ref().unwrap().0.readable().get() == u64::from(number) + 1);
        }
        // All that the others have is agreed upon there, too.
        (0..300).for_each(|_| world.turn());
        world
    }

    fn log(&mut self) -> &mut GroupLog<SimDisk> {
        &mut self.lent.as_mut().unwrap().0
    }

    fn turn(&mut self) {
        self.now_ms += 10;
        for at in 0..3 {
            self.members[at].tick(self.now_ms);
            self.members[at].disk_woke();
            if at == self.leader
                && let Some((log, rung)) = &mut self.lent
            {
                log.collect().unwrap();
                if rung.swap(false, Ordering::Relaxed) {
                    self.members[at].log_woke();
                }
            }
            self.take(at);
        }
    }

    fn take(&mut self, at: usize) {
        let from = MemberId(at as u64 + 1);
        loop {
            let actions = self.members[at].take_actions();
            assert_eq!(actions.failed, None);
            self.told.extend(actions.told);
            let is_here =
                |to: &MemberId| self.away.is_none_or(|it| it != at && it + 1 != to.0 as usize);
            let (messages, records) = (actions.messages, actions.records);
            for (to, message, copies) in messages.into_iter().filter(|it| is_here(&it.0)) {
                self.members[to.0 as usize - 1].step(from, message, copies);
            }
            for (to, letter) in records.into_iter().filter(|it| is_here(&it.0)) {
                self.members[to.0 as usize - 1].record(from, letter);
            }
            let Some((_, ticket)) = actions.keep.last() else { return };
            self.members[at].kept(*ticket);
        }
    }

    fn until(&mut self, is_so: impl Fn(&Self) -> bool) {
        for _ in 0..10_000 {
            if is_so(self) {
                return;
            }
            self.turn();
        }
        panic!("it never is");
    }

    /// Reads a record as a queue does.
    fn read(&mut self, at: u64) -> Result<Vec<u8>, ReadError> {
        let at = Offset::new(at);
        self.log().fetch(&[at]);
        for turn in 0..3_000 {
            let mut came = false;
            self.log().each_fetched(&mut |it| came |= it == at);
            match self.log().read(at) {
                Ok(record) => return Ok(record.bytes.to_vec()),
                Err(error) if !error.is_to_come() => {
                    assert!(came || turn == 0, "whoever waits for it is told");
                    return Err(error);
                }
                // It was dropped for another one.
                Err(_) if came => self.log().fetch(&[at]),
                Err(_) => assert!(self.log().is_asked(at), "it is on its way"),
            }
            self.turn();
        }
        panic!("{at:?} never comes");
    }

    /// The bytes of a record, in the files of a disk.
    fn flip(&mut self, member: usize, number: u8, shift: usize) {
        let disk = &self.disks[member];
        for (file, _) in disk.files() {
            let bytes = disk.bytes_of(file);
            let here = bytes.windows(200).position(|it| it.iter().all(|byte| *byte == number));
            if let Some(here) = here {
                return disk.flip(file, (here + shift) as u64, 3);
            }
        }
        panic!("no file has record {number}");
    }

    fn others(&self) -> [usize; 2] {
        [(self.leader + 1) % 3, (self.leader + 2) % 3]
    }
}

fn record(number: u8) -> Vec<u8> {
    [&b"h"[..], &[number; 200]].concat()
}

#[test]
fn what_is_damaged_is_had_from_another_member() {
    let mut world = World::new();
    let leader = world.leader;
    let whole: Vec<_> = world.disks[leader].files();
    let whole: Vec<_> =
        whole.into_iter().map(|(file, _)| (file, world.disks[leader].bytes_of(file))).collect();
    for number in [3, 17, 40] {
        world.flip(leader, number, 100);
    }
    for number in 0..COUNT {
        assert_eq!(world.read(number.into()), Ok(record(number)), "record {number}");
    }
    (0..50).for_each(|_| world.turn());
    assert_eq!(world.members[leader].repaired(), 3);
    let told = world.told.iter().filter(|it| it.contains("is damaged on this node's disk"));
    assert_eq!(told.count(), 3, "{:?}", world.told);
    for (file, bytes) in whole {
        assert!(world.disks[leader].bytes_of(file) == bytes, "{file} is as it was");
    }
}

/// One that has it damaged, too, says so, and one that is not there is waited for a while: the third is asked.
#[test]
fn all_are_asked() {
    let mut world = World::new();
    let [one, other] = world.others();
    world.flip(world.leader, 5, 100);
    world.flip(one, 5, 90);
    assert_eq!(world.read(5), Ok(record(5)));
    world.flip(world.leader, 6, 100);
    world.away = Some(other);
    assert_eq!(world.read(6), Ok(record(6)));
    world.away = Some(one);
    world.flip(world.leader, 7, 100);
    assert_eq!(world.read(7), Ok(record(7)));
}

/// Then it is set aside, as in a log alone.
#[test]
fn what_nobody_has_whole_is_told() {
    let mut world = World::new();
    for member in 0..3 {
        world.flip(member, 9, 50);
    }
    assert!(matches!(world.read(9), Err(ReadError::Damaged { .. })));
    assert!(matches!(world.read(9), Err(ReadError::Damaged { .. })), "and again");
    assert_eq!(world.read(10), Ok(record(10)));
    assert!(world.told.iter().any(|it| it.contains("no other member")), "{:?}", world.told);
}

/// Where the index of a batch is damaged nobody knows where its records are: they are read from the others, each time.
#[test]
fn records_of_a_damaged_index() {
    let mut world = World::new();
    // The head is the byte before, the index is before that.
    let (leader, number) = (world.leader, 20);
    let disk = &world.disks[leader];
    let find = |(file, _): &(_, u64)| {
        let bytes = disk.bytes_of(*file);
        let here = bytes.windows(200).position(|it| it.iter().all(|byte| *byte == number))?;
        Some((*file, here as u64 - 6))
    };
    let (file, position) = disk.files().iter().find_map(find).unwrap();
    disk.flip(file, position, 1);
    for number in 0..COUNT {
        assert_eq!(world.read(number.into()), Ok(record(number)), "record {number}");
    }
    assert!(world.members[leader].repaired() > 0);
}

/// Who was not asked says nothing that counts.
#[test]
fn answers_that_nobody_asked_for() {
    let mut world = World::new();
    let bytes = Some(b"another"[..].into());
    let letter = RecordLetter::Found { at: Offset::new(4), bytes };
    let leader = world.leader;
    world.members[leader].record(MemberId(9), letter);
    assert_eq!(world.read(4), Ok(record(4)));
}

/// Bytes that are not the record's are not taken for it, from whomever they come: the next member is asked.
#[test]
fn another_record_is_asked_of_the_third_member() {
    let mut told = 0;
    for which in 0..2 {
        let mut world = World::new();
        let (leader, from) = (world.leader, world.others()[which]);
        world.flip(leader, 4, 10);
        world.log().fetch(&[Offset::new(4)]);
        let other = RecordLetter::Found { at: Offset::new(4), bytes: Some(vec![0; 201].into()) };
        // It does not answer itself.
        world.away = Some(from);
        for _ in 0..100 {
            world.turn();
            world.log().each_fetched(&mut |_| {});
            world.members[leader].record(MemberId(from as u64 + 1), other.clone());
        }
        assert_eq!(world.read(4), Ok(record(4)));
        told += world.told.iter().filter(|it| it.contains("has another record")).count();
    }
    assert_eq!(told, 2, "each was asked");
}

/// What came is counted when it is the record, and is where that was.
#[test]
fn what_is_not_repaired_is_not_counted() {
    let mut world = World::new();
    let leader = world.leader;
    world.flip(leader, 4, 10);
    world.away = Some(leader);
    world.log().fetch(&[Offset::new(4)]);
    let other = RecordLetter::Found { at: Offset::new(4), bytes: Some(vec![0; 201].into()) };
    for _ in 0..30 {
        world.turn();
        world.log().each_fetched(&mut |_| {});
        for from in world.others() {
            world.members[leader].record(MemberId(from as u64 + 1), other.clone());
        }
    }
    assert!(matches!(world.log().read(Offset::new(4)), Err(ReadError::Damaged { .. })));
    assert_eq!(world.members[leader].repaired(), 0);
}
