//! A follower's log is a copy of its leader's, whatever happens to both.

mod batches;

use std::collections::{BTreeMap, BTreeSet};

use batches::{drive, options};
use bytes::Bytes;
use leveret_log::disk::{Disk, DiskError, Faults, FileName, Reached, SimDisk};
use leveret_log::file::{
    BatchCopy, CopyError, CutError, NoBatch, OnDamage, OpenError, Options, OtherBatch, There,
};
use leveret_log::suite::{AskingDisk, Deed, numbers};
use leveret_log::{
    AppendError, BatchName, FileLog, Holder, Keep, Log, Offset, RecoveredRun, RecoveredSum,
    RecoveryLimits, RecoverySink,
};

fn name(number: u64, term: u64) -> BatchName {
    BatchName { number, term }
}

fn open(disk: &SimDisk, options: Options) -> FileLog<SimDisk> {
    FileLog::open(disk.clone(), options, &mut |_| {}).unwrap().0
}

fn following(committed: BatchName) -> Options {
    Options { follows: Some(committed), ..options() }
}

/// The batch of this number of a log, or its last one.
fn named<D: Disk>(log: &FileLog<D>, number: u64) -> BatchName {
    let number = number.min(log.last().number);
    name(number, log.term_of(number).unwrap_or(0))
}

/// All up to this batch is committed, as far as the log goes.
fn commit<D: Disk>(log: &mut FileLog<D>, number: u64) {
    log.apply_to(named(log, number)).unwrap();
}

/// A leader with something to do.
struct Leader {
    disk: SimDisk,
    log: FileLog<SimDisk>,
    held: Vec<(Offset, Holder)>,
    term: u64,
    /// What the follower has, if files may go.
    copied: Option<u64>,
}

impl Leader {
    fn new(seed: u64) -> Self {
        let disk = SimDisk::new(seed);
        Self::of(open(&disk, Self::options()), disk, 1)
    }

    fn options() -> Options {
        Options { spill_bytes: 300, ..options() }
    }

    fn of(mut log: FileLog<SimDisk>, disk: SimDisk, term: u64) -> Self {
        // What each gives back is its own.
        log.hold_files();
        log.begin_term(term);
        drive(&mut log);
        Self { disk, log, held: Vec::new(), term, copied: None }
    }

    fn step(&mut self, below: &mut dyn FnMut(u64) -> u64) {
        let any = below(self.held.len().max(1) as u64) as usize;
        match below(16) {
            0..=6 => {
                let keep = if below(4) == 0 { Keep::Volatile } else { Keep::Durable };
                let count = 1 + below(3);
                let mut holders: Vec<_> = (0..count).map(Holder::new).collect();
                if keep == Keep::Durable && below(10) == 0 {
                    holders.push(Holder::OWNER);
                }
                let len = if below(20) == 0 { 40_000 } else { below(400) };
                let body = vec![below(256) as u8; len as usize];
                let at = self.log.append(&[below(9) as u8; 3], &[&body], &holders, keep).unwrap();
                self.held.extend(holders.into_iter().map(|holder| (at, holder)));
            }
            7..=9 if !self.held.is_empty() => {
                let (at, holder) = self.held.swap_remove(any);
                self.log.release(at, holder).unwrap();
            }
            10 if !self.held.is_empty() => {
                let (at, holder) = self.held[any];
                self.log.mark(at, holder, 1 + below(9) as u8).unwrap();
            }
            11 if !self.held.is_empty() => drop(self.log.persist(self.held[any].0).unwrap()),
            12 if below(6) == 0 => self.log.append_members(&[below(256) as u8; 20]).unwrap(),
            13 if below(12) == 0 => {
                self.settle();
                self.term += 1 + below(3);
                // It was deposed, and is elected again.
                self.log =
                    open(&self.disk, Options { follows: Some(BatchName::NONE), ..Self::options() });
                match self.copied {
                    None => self.log.hold_files(),
                    Some(copied) => self.log.hold_batches(copied + 1),
                }
                self.log.begin_term(self.term);
                self.settle();
                assert!(self.log.lead());
                // Nobody has the volatile ones any more.
                let all = found(&mut self.log).1.into_iter();
                let holders = all.flat_map(|(at, _, holders)| {
                    holders.into_iter().map(move |(holder, _)| (Offset::new(at), holder))
                });
                self.held = holders.collect();
            }
            _ => self.log.sync().unwrap(),
        }
    }

    /// Everything is written.
    fn settle(&mut self) {
        settle(&mut self.log);
    }

    /// A batch, which may have to be read.
    fn batch(&mut self, number: u64) -> BatchCopy {
        get(&mut self.log, number)
    }
}

fn get<D: Disk>(log: &mut FileLog<D>, number: u64) -> BatchCopy {
    loop {
        match log.batch(number) {
            Ok(batch) => return batch,
            Err(NoBatch::ToCome) => log.collect().unwrap(),
            Err(error) => panic!("batch {number}: {error}"),
        }
    }
}

fn settle(log: &mut FileLog<SimDisk>) {
    for _ in 0..100_000 {
        log.sync().unwrap();
        let is_done = log.durable() == log.end() && log.notes() == 0 && log.stored() == log.last();
        if is_done && log.disk().is_idle() {
            return;
        }
    }
    panic!("the log does not come to rest");
}

/// The files of a disk that batches were written to, without what is each member's own: what it had synced.
fn files(disk: &SimDisk) -> BTreeMap<FileName, Vec<u8>> {
    let files = disk.files().into_iter().filter(|(file, _)| file.generation == 0);
    files.map(|(file, _)| (file, alike(disk.bytes_of(file)))).collect()
}

#[track_caller]
fn assert_alike(
    some: &BTreeMap<FileName, Vec<u8>>,
    others: &BTreeMap<FileName, Vec<u8>>,
    case: u64,
) {
    let lens = |all: &BTreeMap<FileName, Vec<u8>>| -> Vec<_> {
        all.iter().map(|(file, bytes)| (file.segment, bytes.len())).collect()
    };
    assert_eq!(lens(some), lens(others), "{case}");
    let differs = some.iter().find(|(file, bytes)| others[file] != **bytes).map(|(file, _)| file);
    assert_eq!(differs, None, "{case}");
}

fn alike(mut bytes: Vec<u8>) -> Vec<u8> {
    let number = |bytes: &[u8], at: usize| {
        bytes.get(at..at + 8).map_or(0, |it| u64::from_le_bytes(it.try_into().unwrap())) as usize
    };
    let (header_len, mut at) = (if bytes[8] < 4 { 88 } else { 112 }, 128);
    while at + header_len <= bytes.len() {
        let next = at + header_len + number(&bytes, at + 16) + number(&bytes, at + 24);
        bytes[at + 40..at + 48].fill(0);
        bytes[at + header_len - 4..at + header_len].fill(0);
        at = next;
    }
    bytes
}

/// Who holds what, with marks.
type Found = Vec<(u64, Vec<u8>, Vec<(Holder, u8)>)>;

fn found(log: &mut FileLog<SimDisk>) -> (Vec<(u64, Vec<u8>)>, Found) {
    let (mut own, mut found) = (Vec::new(), Vec::new());
    log.own(&mut |at, head| own.push((at.get(), head.to_vec())));
    log.recover(&mut |it| {
        let mut holders = it.holders.to_vec();
        holders.sort_unstable();
        found.push((it.at.get(), it.head.to_vec(), holders));
    });
    (own, found)
}

/// Batch by batch, with a sync after any number of them, across restarts: the files are those of the leader, and what a
/// start or a new leader makes of them is what the leader's start does, at whatever batch the copy ends.
#[test]
fn a_copy_is_the_leaders_log() {
    for seed in 0..40 {
        let mut below = numbers(seed);
        let mut leader = Leader::new(seed);
        let disk = SimDisk::new(seed + 1000);
        disk.set_faults(Faults { delay: below(3) as u32, ..Faults::default() });
        let mut follower = open(&disk, following(BatchName::NONE));
        follower.hold_files();
        let mut committed = 0;
        for _ in 0..400 {
            leader.step(&mut below);
            if below(3) == 0 && follower.last() < leader.log.last() {
                let next = leader.batch(follower.last().number + 1);
                assert_eq!(follower.copy(&next), Ok(next.name().unwrap()));
                assert_eq!(follower.copy(&next), Ok(next.name().unwrap()), "it is here already");
            }
            if below(4) == 0 {
                follower.sync().unwrap();
            }
            if below(6) == 0 {
                committed += below(follower.last().number.saturating_sub(committed) + 1);
                commit(&mut follower, committed);
                leader.log.set_agreed(committed + 1);
            }
            let applied = follower.applied().unwrap().number;
            assert!(applied <= committed.min(follower.stored().number));
            if below(60) == 0 {
                let stored = follower.stored();
                drop(follower);
                disk.crash();
                follower =
                    open(&disk, following(named(&leader.log, committed.min(below(committed + 1)))));
                follower.hold_files();
                assert!(follower.last() >= stored && follower.last() == follower.stored());
                let applied = follower.applied().unwrap();
                assert!(applied.number <= committed.max(stored.number), "{applied}");
            }
        }
        leader.settle();
        // Where it ends is where a start of the leader's log is cut.
        let ends = leader.log.last().number - below(4).min(leader.log.last().number);
        while follower.last().number < ends {
            let next = leader.batch(follower.last().number + 1);
            follower.copy(&next).unwrap();
        }
        settle(&mut follower);
        let last = follower.last();
        assert_eq!(leader.log.term_of(last.number), Some(last.term));
        follower.apply_to(last).unwrap();
        assert_eq!(follower.applied(), Some(last));
        let whole = files(&leader.disk);
        for (file, bytes) in files(&disk) {
            let want = &whole[&file][..bytes.len()];
            assert!(bytes == want, "{file} of seed {seed}");
            assert!(last < leader.log.last() || bytes.len() == whole[&file].len());
        }
        let end = follower.end().get();
        let until = Some(Reached { end, sequence: last.number + 1 });
        let options = Options { until, ..options() };
        let mut reopened = open(&leader.disk.copy_whole(1), options);
        assert_eq!(reopened.last(), last);
        let want = found(&mut reopened);
        assert_eq!(found(&mut open(&disk.copy_whole(1), batches::options())), want, "{seed}");
        follower.begin_term(leader.term + 1);
        settle(&mut follower);
        assert!(follower.lead());
        assert_eq!(follower.last(), name(last.number + 1, leader.term + 1));
        assert_eq!(found(&mut follower), want, "seed {seed}");
        for &(at, ..) in &want.1 {
            let record = batches::read(&mut follower, Offset::new(at)).unwrap();
            assert_eq!(record, batches::read(&mut reopened, Offset::new(at)).unwrap());
        }
        // It leads: its log goes on, and others copy it.
        let mut leader =
            Leader { disk, log: follower, held: Vec::new(), term: last.term, copied: None };
        leader.log.append(b"h", &[b"new"], &batches::ONE, Keep::Durable).unwrap();
        leader.settle();
        let next = leader.batch(last.number + 2);
        assert_eq!(next.before(), Some(name(last.number + 1, leader.log.last().term)));
    }
}

/// What was copied between two syncs is one write.
#[test]
fn several_batches_have_one_sync() {
    let mut leader = Leader::new(1);
    for _ in 0..10 {
        leader.log.append(b"h", &[&[1; 50]], &batches::ONE, Keep::Durable).unwrap();
        leader.settle();
    }
    let disk = SimDisk::new(2);
    let mut follower = open(&disk, following(BatchName::NONE));
    for number in 1..=11 {
        follower.copy(&leader.batch(number)).unwrap();
        assert_eq!((follower.last().number, follower.stored()), (number, BatchName::NONE));
    }
    assert_eq!(disk.work().writes, 0);
    settle(&mut follower);
    // The header of the file is one more.
    assert_eq!((disk.work().writes, disk.work().syncs), (2, 2));
    assert_eq!(follower.stored(), name(11, 1));
    assert_eq!(follower.applied(), Some(BatchName::NONE));
    assert_eq!(follower.usage().records, 0);
    follower.apply_to(name(6, 1)).unwrap();
    assert_eq!((follower.applied(), follower.usage().records), (Some(name(6, 1)), 5));
    // A start knows from the last header what the leader knew: nothing here.
    drop(follower);
    let follower = open(&disk, following(name(4, 1)));
    assert_eq!((follower.applied(), follower.usage().records), (Some(name(4, 1)), 3));
    assert_eq!((follower.last(), follower.term_of(9)), (name(11, 1), Some(1)));
}

/// The newest header says how far the leader knew that others agreed.
#[test]
fn a_start_knows_what_the_leader_knew() {
    let mut leader = Leader::new(1);
    let disk = SimDisk::new(2);
    let mut follower = open(&disk, following(BatchName::NONE));
    for number in 1..=90 {
        leader.log.set_agreed(number);
        leader.log.append(b"h", &[&[1; 100]], &batches::ONE, Keep::Durable).unwrap();
        leader.settle();
        follower.copy(&leader.batch(number)).unwrap();
    }
    settle(&mut follower);
    drop(follower);
    assert!(disk.files().len() > 2);
    let follower = open(&disk, following(BatchName::NONE));
    assert_eq!((follower.last().number, follower.applied().unwrap().number), (90, 88));
    assert_eq!(follower.usage().records, 87);
}

#[test]
fn what_does_not_follow_is_told() {
    let mut leader = Leader::new(1);
    for _ in 0..90 {
        leader.log.append(b"h", &[&[1; 100]], &batches::ONE, Keep::Durable).unwrap();
        leader.settle();
    }
    let disk = SimDisk::new(2);
    let mut follower = open(&disk, following(BatchName::NONE));
    let there = |last, next| There { last, next };
    let mismatch = |follower: &mut FileLog<SimDisk>, batch: &BatchCopy| match follower.copy(batch) {
        Err(CopyError::Mismatch { name, segment, position, there }) => {
            assert_eq!(
                (Some(name), segment, position),
                (batch.name(), batch.segment, batch.position)
            );
            there
        }
        result => panic!("{result:?}"),
    };
    let nothing = there(BatchName::NONE, None);
    assert_eq!(mismatch(&mut follower, &leader.batch(2)), nothing);
    let first = leader.batch(1);
    let without = BatchCopy { beginning: Bytes::new(), ..first.clone() };
    assert_eq!(mismatch(&mut follower, &without), nothing);
    follower.copy(&first).unwrap();
    let next = Some((first.segment, first.position + first.len()));
    assert_eq!(mismatch(&mut follower, &leader.batch(3)), there(name(1, 1), next));
    let second = leader.batch(2);
    for (segment, position) in [(second.segment + 1, second.position), (second.segment, 0)] {
        let moved = BatchCopy { segment, position, ..second.clone() };
        assert_eq!(mismatch(&mut follower, &moved), there(name(1, 1), next));
    }
    // Another leader's second one.
    let mut other = Leader::of(open(&SimDisk::new(7), options()), SimDisk::new(7), 5);
    other.log.append(b"h", &[&[1; 100]], &batches::ONE, Keep::Durable).unwrap();
    other.settle();
    let [begins, theirs] = [1, 2].map(|number| other.batch(number));
    assert_eq!(mismatch(&mut follower, &theirs), there(name(1, 1), next));
    assert_eq!(mismatch(&mut follower, &begins), there(name(1, 1), next));
    follower.copy(&second).unwrap();
    // Who leads copies nothing.
    assert_eq!(leader.log.copy(&second), Err(CopyError::Leads));
    assert_eq!(leader.log.cut_from(3), Err(CutError::Leads));
    follower.begin_term(3);
    assert!(!follower.lead(), "not all is on its disk");
    // Its first batch is written behind what it copied.
    settle(&mut follower);
    assert!(follower.lead());
    assert_eq!(follower.copy(&leader.batch(3)), Err(CopyError::Leads));
    assert_eq!((follower.last(), follower.stored()), (name(3, 3), name(3, 3)));
    assert_eq!((follower.term_of(1), follower.term_of(2)), (Some(1), Some(1)));
    let what = |batch: &BatchCopy| alike([&[4; 128], &batch.pieces.concat()[..]].concat());
    assert_eq!(what(&get(&mut follower, 2)), what(&second));
}

/// A leader that is one no longer reads its files as a follower.
#[test]
fn a_leader_becomes_a_follower() {
    let mut leader = Leader::new(1);
    for _ in 0..10 {
        leader.log.append(b"h", &[&[1; 100]], &batches::ONE, Keep::Durable).unwrap();
        leader.settle();
    }
    let disk = leader.log.into_disk();
    let mut other = Leader::of(open(&disk.copy_whole(1), options()), disk.copy_whole(1), 4);
    let mut follower = open(&disk, following(name(5, 1)));
    assert_eq!((follower.last(), follower.applied()), (name(11, 1), Some(name(5, 1))));
    follower.copy(&other.batch(12)).unwrap();
    settle(&mut follower);
    assert_eq!(follower.stored(), name(12, 4));
}

/// Others may agree to a term's first batch before the leader's own disk has it, which is given to them from memory: its log leads when that
/// has it, too.
#[test]
fn a_log_leads_when_its_disk_is_done() {
    let mut leader = Leader::new(1);
    leader.log.append(b"h", &[&[1; 50]], &batches::ONE, Keep::Durable).unwrap();
    leader.settle();
    let disk = SimDisk::new(2);
    let mut follower = open(&disk, following(BatchName::NONE));
    for number in 1..=2 {
        follower.copy(&leader.batch(number)).unwrap();
    }
    settle(&mut follower);
    disk.set_faults(Faults { stall: true, ..Faults::default() });
    follower.begin_term(2);
    follower.sync().unwrap();
    assert_eq!((follower.last(), follower.stored()), (name(3, 2), name(2, 1)));
    let first = follower.batch(3).unwrap();
    assert_eq!(first.name(), Some(name(3, 2)));
    assert_eq!(leader.log.last(), first.before().unwrap());
    assert!(!follower.can_lead() && !follower.lead());
    disk.set_faults(Faults::default());
    settle(&mut follower);
    assert_eq!(follower.stored(), name(3, 2));
    assert!(follower.lead());
    assert_eq!(found(&mut follower).1.len(), 1);
}

/// One that was elected and whose log did not lead copies on without being opened anew, whatever it made: that is cut off, or all agree to it.
/// Meanwhile it gives others what they lack, also of what is not agreed upon.
#[test]
fn who_is_deposed_before_its_log_leads_copies_on() {
    for (seed, stays) in [(1, false), (2, true), (3, false), (4, true)] {
        let mut leader = Leader::new(seed);
        for _ in 0..20 {
            leader.log.append(b"h", &[&[1; 500]], &batches::ONE, Keep::Durable).unwrap();
            leader.settle();
        }
        let last = leader.log.last().number;
        let mut logs = [5, 6].map(|seed| open(&SimDisk::new(seed), following(BatchName::NONE)));
        for log in &mut logs {
            for number in 1..=last {
                log.copy(&leader.batch(number)).unwrap();
            }
            log.apply_to(name(4, 1)).unwrap();
            settle(log);
        }
        let [mut elected, mut other] = logs;
        elected.begin_term(2);
        elected.append_members(b"members").unwrap();
        if seed < 3 {
            settle(&mut elected);
        }
        // Those that it copied are read from its files, those that it made are in memory.
        for number in 1..=last + 2 {
            let copy = get(&mut elected, number);
            assert_eq!(copy.name(), Some(name(number, 1 + u64::from(number > last))));
            if number <= last {
                let theirs = get(&mut leader.log, number);
                let bodies =
                    |of: &BatchCopy| of.pieces.concat()[of.pieces.concat().len() - 500..].to_vec();
                assert_eq!((copy.len(), copy.position), (theirs.len(), theirs.position));
                assert!(number == 1 || bodies(&copy) == bodies(&theirs));
            }
        }
        assert_eq!(elected.batch(last + 3), Err(NoBatch::NotYet));
        if stays {
            for number in [last + 1, last + 2] {
                other.copy(&get(&mut elected, number)).unwrap();
            }
        } else {
            elected.cut_from(last + 1).unwrap();
            assert_eq!(elected.append_members(b"members"), Err(AppendError::NoTerm));
        }
        other.begin_term(3);
        assert_eq!(elected.batch(last + 3), Err(NoBatch::NotYet));
        settle(&mut other);
        assert!(other.lead());
        other.append(b"h", &[&[2; 500]], &batches::ONE, Keep::Durable).unwrap();
        settle(&mut other);
        let end = other.last();
        for number in elected.last().number + 1..=end.number {
            elected.copy(&get(&mut other, number)).unwrap();
        }
        settle(&mut elected);
        // It makes nothing in another one's term, and gives no files.
        assert_eq!(elected.append_members(b"members"), Err(AppendError::NoTerm));
        get(&mut elected, 4);
        assert_eq!(elected.manifest(batches::point(&elected, 4)), None);
        // What came in the place of what was cut is given in its place.
        for number in 1..=end.number {
            assert_eq!(get(&mut elected, number).name(), get(&mut other, number).name());
        }
        elected.apply_to(end).unwrap();
        settle(&mut elected);
        assert_eq!((elected.stored(), elected.applied()), (end, Some(end)));
        let want = found(&mut other);
        elected.begin_term(4);
        settle(&mut elected);
        assert!(elected.lead());
        assert_eq!(found(&mut elected), want, "seed {seed}");
    }
}

/// Of a tail others get what is on the disk: neither what is not there yet, nor, in place of what came after a cut, what was read before
/// it or is being read.
#[test]
fn what_is_given_of_a_tail_is_there() {
    let whole = written();
    for (is_read, cuts) in [(true, 1), (false, 1), (true, 9), (false, 9)] {
        let mut leader = open(&whole.copy_whole(1), options());
        // What was read goes with the next read.
        let options = Options { copies_bytes: 1, ..following(BatchName::NONE) };
        let mut follower = open(&SimDisk::new(5), options);
        let last = leader.last().number;
        for number in 1..=last {
            follower.copy(&get(&mut leader, number)).unwrap();
        }
        for number in [[1; 10], [last; 10]].concat() {
            assert_eq!(follower.batch(number), Err(NoBatch::ToCome));
            follower.collect().unwrap();
        }
        settle(&mut follower);
        for number in 1..=last {
            let copy = get(&mut follower, number);
            assert_eq!(copy.name(), Some(named(&leader, number)));
            assert_eq!(copy.beginning.is_empty(), copy.position > 128);
        }
        let from = last + 1 - cuts;
        get(&mut follower, if is_read { from } else { 1 });
        assert_eq!(follower.batch(from).is_ok(), is_read);
        let mut other = parted(&whole, from, &mut numbers(cuts));
        copy_all(&mut follower, &mut other);
        settle(&mut follower);
        let bytes = |batch: &BatchCopy| alike([&[4; 128], &batch.pieces.concat()[..]].concat());
        for number in (from..=other.log.last().number).chain(1..from) {
            let (copy, theirs) = (get(&mut follower, number), other.batch(number));
            assert_eq!(bytes(&copy), bytes(&theirs));
            assert_eq!((copy.segment, copy.position), (theirs.segment, theirs.position));
        }
    }
}

/// Others agree to a batch, and not to a number.
#[test]
fn what_is_committed_has_a_name() {
    let mut leader = Leader::new(1);
    for _ in 0..8 {
        leader.log.append(b"h", &[&[1; 50]], &batches::ONE, Keep::Durable).unwrap();
        leader.settle();
    }
    let disk = SimDisk::new(2);
    let mut follower = open(&disk, following(BatchName::NONE));
    for number in 1..=6 {
        follower.copy(&leader.batch(number)).unwrap();
    }
    settle(&mut follower);
    // It is not here yet, whoever made it.
    for committed in [name(7, 1), name(9, 1), name(7, 2)] {
        assert_eq!(follower.apply_to(committed), Ok(()));
        assert_eq!(follower.applied(), Some(BatchName::NONE));
    }
    let other = |number| OtherBatch { committed: name(number, 2), here: name(number, 1) };
    assert_eq!(follower.apply_to(name(4, 2)), Err(other(4)));
    assert_eq!(follower.applied(), Some(BatchName::NONE));
    follower.apply_to(name(4, 1)).unwrap();
    assert_eq!(follower.applied(), Some(name(4, 1)));
    assert_eq!(follower.apply_to(name(4, 2)), Err(other(4)));
    assert_eq!(follower.apply_to(name(3, 1)), Ok(()));
    // What was told too early does not come to count.
    follower.copy(&leader.batch(7)).unwrap();
    settle(&mut follower);
    assert_eq!(follower.applied(), Some(name(4, 1)));
    drop(follower);
    // So it is with what a start is told.
    for (committed, applied) in [(name(5, 1), 5), (name(9, 1), 0), (name(9, 3), 0)] {
        let follower = open(&disk.copy_whole(1), following(committed));
        assert_eq!(follower.applied().unwrap().number, applied);
    }
    let refused = FileLog::open(disk.copy_whole(1), following(name(5, 2)), &mut |_| {});
    assert_eq!(refused.err(), Some(OpenError::Other(other(5))));
    // A leader has agreed so far.
    assert_eq!(leader.log.apply_to(name(5, 2)), Err(other(5)));
    assert_eq!(leader.log.apply_to(name(5, 1)), Ok(()));
}

/// A disk that does so many operations, and then nothing.
fn stops(disk: &SimDisk, mut left: u32) -> impl Disk {
    AskingDisk::new(disk.clone(), move |deed| {
        if deed == Deed::Poll {
            let stopped = DiskError::Failed("switched off".to_owned());
            left = left.checked_sub(1).ok_or(stopped)?;
        }
        Ok(())
    })
}

/// Some batches of two terms in some files.
fn written() -> SimDisk {
    let mut leader = Leader::new(3);
    for number in 0..24_u8 {
        let body = vec![number; if number % 5 == 0 { 900 } else { 300 }];
        leader.log.append(b"h", &[&body], &batches::ONE, Keep::Durable).unwrap();
        leader.settle();
        if number == 12 {
            leader.log.begin_term(2);
        }
    }
    leader.settle();
    leader.disk
}

/// The log of a new leader that has the first batches of another's, and goes on from there in its own term.
fn parted(whole: &SimDisk, sequence: u64, below: &mut dyn FnMut(u64) -> u64) -> Leader {
    let disk = whole.copy_whole(sequence);
    let last = named(&open(&disk.copy_whole(1), options()), sequence - 1);
    let end = open(&disk.copy_whole(1), following(last)).end().get();
    let until = Some(Reached { end, sequence });
    let log = open(&disk, Options { until, seed: 99, ..options() });
    let mut leader = Leader::of(log, disk, 3);
    for number in 0..2 + below(12) {
        let body = vec![100 + number as u8; 200 + below(400) as usize];
        leader.log.append(b"n", &[&body], &batches::ONE, Keep::Durable).unwrap();
        leader.settle();
    }
    leader
}

/// Copies what the leader has and the follower has not: what differs is cut off first.
fn copy_all<D: Disk>(follower: &mut FileLog<D>, leader: &mut Leader) {
    let same = |number: u64| follower.term_of(number) == leader.log.term_of(number);
    let last = follower.last().number.min(leader.log.last().number);
    // What is applied is the same.
    let from = follower.applied().unwrap().number;
    let common = (from + 1..=last).take_while(|number| same(*number)).last().unwrap_or(from);
    if follower.last().number > common {
        follower.cut_from(common + 1).unwrap();
    }
    for number in common + 1..=leader.log.last().number {
        follower.copy(&leader.batch(number)).unwrap();
    }
}

/// The files of one are the first part of those of the other.
fn is_part(part: &BTreeMap<FileName, Vec<u8>>, whole: &BTreeMap<FileName, Vec<u8>>) -> bool {
    part.iter().all(|(file, bytes)| whole.get(file).is_some_and(|it| it.starts_with(bytes)))
}

/// A tail is cut off at each batch, and another leader's batches follow, on a disk that stops after each operation: what is there
/// then is a part of the old log that has what both have, or a part of the new one; never both. It goes on as the new one.
#[test]
fn no_batch_of_the_old_tail_is_taken_for_one_of_the_new() {
    let whole = written();
    let old = files(&whole);
    let count = open(&whole.copy_whole(1), options()).last().number;
    let mut kinds = BTreeMap::<(bool, bool), u32>::new();
    for sequence in 1..=count {
        let mut below = numbers(sequence);
        let mut leader = parted(&whole, sequence, &mut below);
        let new = files(&leader.disk);
        let committed = named(&open(&whole.copy_whole(1), options()), sequence - 1);
        for stop in 0.. {
            let disk = whole.copy_whole(u64::from(stop) << 8 | sequence);
            let mut follower =
                FileLog::open(stops(&disk, stop), following(committed), &mut |_| {}).unwrap().0;
            copy_all(&mut follower, &mut leader);
            for _ in 0..100 {
                follower.sync().unwrap();
            }
            let is_done = follower.notes() == 0;
            let stored = follower.stored();
            drop(follower);
            disk.crash();
            let mut follower = open(&disk, following(BatchName::NONE));
            let last = follower.last();
            let (is_old, is_new) = (is_part(&files(&disk), &old), is_part(&files(&disk), &new));
            assert!(is_old || is_new, "cut at {sequence}, stopped after {stop}: {last}");
            assert!(last.number >= sequence - 1 && last.number >= stored.number);
            assert!(stored.term < 3 || last.term == 3, "what was stored is there");
            let names =
                if last.term == 3 { &leader.log } else { &open(&whole.copy_whole(1), options()) };
            (sequence..=last.number)
                .for_each(|it| assert_eq!(follower.term_of(it), names.term_of(it)));
            *kinds.entry((is_old, is_new)).or_default() += 1;
            copy_all(&mut follower, &mut leader);
            settle(&mut follower);
            assert_alike(&files(&disk), &new, sequence << 32 | u64::from(stop));
            assert_eq!(
                (follower.last(), follower.stored()),
                (leader.log.last(), leader.log.last())
            );
            commit(&mut follower, u64::MAX);
            follower.begin_term(9);
            settle(&mut follower);
            assert!(follower.lead());
            let want = found(&mut open(&leader.disk.copy_whole(1), options()));
            assert_eq!(found(&mut follower), want);
            if is_done {
                break;
            }
        }
    }
    assert_eq!(kinds.len(), 3, "{kinds:?}");
}

/// What seals a file is cut off when its next one is not there, though all its batches are applied: another leader's comes to its
/// place.
#[test]
fn a_seal_without_a_next_file_goes() {
    let whole = written();
    let mut leader = open(&whole, options());
    let count = leader.last().number;
    let begins = |number: &u64| !get(&mut leader, *number).beginning.is_empty();
    let first = (2..=count).find(begins).unwrap();
    let disk = SimDisk::new(1);
    let mut follower = open(&disk, following(BatchName::NONE));
    (1..first).for_each(|number| _ = follower.copy(&get(&mut leader, number)).unwrap());
    settle(&mut follower);
    let committed = follower.last();
    let before = disk.files();
    drop(follower);
    let mut follower = FileLog::open(stops(&disk, 2), following(committed), &mut |_| {}).unwrap().0;
    follower.copy(&get(&mut leader, first)).unwrap();
    for _ in 0..10 {
        follower.sync().unwrap();
    }
    assert_ne!(disk.files(), before, "it is sealed");
    drop(follower);
    disk.crash();
    let follower = open(&disk, following(committed));
    assert_eq!((follower.last(), follower.applied()), (committed, Some(committed)));
    assert_eq!(disk.files(), before);
    assert_eq!(disk.listed().iter().map(|it| (it.file, it.len)).collect::<Vec<_>>(), before);
}

/// Cuts at any time, also of what was not handed over, or is under way.
#[test]
fn a_log_is_cut_at_any_time() {
    let whole = written();
    let count = open(&whole.copy_whole(1), options()).last().number;
    for seed in 0..300 {
        let mut below = numbers(seed);
        let mut first = Leader::of(open(&whole.copy_whole(1), options()), whole.copy_whole(1), 3);
        let disk = SimDisk::new(seed);
        disk.set_faults(Faults { delay: below(4) as u32, ..Faults::default() });
        let mut follower = open(&disk, following(BatchName::NONE));
        let mut committed = 0;
        for _ in 0..4 + below(5) {
            for _ in 0..below(30) {
                if follower.last().number < count {
                    follower.copy(&first.batch(follower.last().number + 1)).unwrap();
                }
                if below(4) == 0 {
                    follower.sync().unwrap();
                }
            }
            if below(4) == 0 {
                committed += below(follower.last().number - committed + 1);
                commit(&mut follower, committed);
            }
            let from = committed + 1 + below(4);
            assert!(follower.cut_from(committed).is_err());
            let last = follower.last().number;
            follower.cut_from(from).unwrap();
            assert_eq!(follower.last().number, last.min(from - 1));
            assert!(follower.stored() <= follower.last());
        }
        let common = follower.last().number;
        let mut second = parted(&whole, common + 1, &mut below);
        copy_all(&mut follower, &mut second);
        if below(2) == 0 {
            settle(&mut follower);
        } else {
            follower.sync().unwrap();
            let stored = follower.stored();
            drop(follower);
            disk.crash();
            follower =
                open(&disk, following(named(&open(&whole.copy_whole(1), options()), committed)));
            assert!(follower.last().number >= stored.number);
            copy_all(&mut follower, &mut second);
            settle(&mut follower);
        }
        assert_alike(&files(&disk), &files(&second.disk), seed);
    }
}

/// Whatever comes from the network is refused, or is a batch: nothing panics, then or later.
#[test]
fn random_bytes_are_refused() {
    let whole = written();
    let mut leader = open(&whole, options());
    let batches: Vec<_> = (1..=leader.last().number).map(|it| get(&mut leader, it)).collect();
    let mut accepted = 0;
    for seed in 0..6000 {
        let mut below = numbers(seed);
        let disk = SimDisk::new(seed);
        let mut follower = open(&disk, following(BatchName::NONE));
        let count = below(4) as usize;
        batches[..count].iter().for_each(|batch| _ = follower.copy(batch).unwrap());
        let mut batch = batches[count].clone();
        let mut bytes = batch.pieces.concat();
        let mut beginning = batch.beginning.to_vec();
        for _ in 0..1 + below(3) {
            let at = below(bytes.len().max(1) as u64) as usize;
            match below(8) {
                0 => bytes.truncate(at),
                1 => bytes.extend((0..below(40)).map(|it| it as u8)),
                2 if !bytes.is_empty() => bytes[at] ^= 1 << below(8),
                3 if bytes.len() > 112 => {
                    let field =
                        [12, 16, 24, 32, 40, 48, 56, 64, 68, 76, 84, 92][below(12) as usize];
                    let number = [0, 1, 7, u64::MAX, 1 << 59, below(100)][below(6) as usize];
                    bytes[field..field + 8].copy_from_slice(&number.to_le_bytes());
                }
                4 if bytes.len() > 113 => {
                    let at = 112 + below(30.min(bytes.len() as u64 - 112)) as usize;
                    bytes[at] = below(256) as u8;
                }
                5 if !beginning.is_empty() => {
                    let at = below(beginning.len() as u64) as usize;
                    beginning[at] = below(256) as u8;
                }
                6 => batch.position = below(1 << 40),
                7 => batch.segment = [0, 1, u64::MAX, below(9)][below(4) as usize],
                _ => {}
            }
        }
        // As one who knows how checksums are made.
        if below(4) > 0 && bytes.len() >= 112 {
            let len = u64::from_le_bytes(bytes[16..24].try_into().unwrap());
            let end = len.saturating_add(112).min(bytes.len() as u64) as usize;
            let crc = crc32c::crc32c(&bytes[112..end]);
            bytes[72..76].copy_from_slice(&crc.to_le_bytes());
            let crc = crc32c::crc32c(&bytes[..108]);
            bytes[108..112].copy_from_slice(&crc.to_le_bytes());
        }
        if below(2) == 0 && beginning.len() >= 128 {
            let crc = crc32c::crc32c(&beginning[..124]);
            beginning[124..128].copy_from_slice(&crc.to_le_bytes());
        }
        (batch.pieces, batch.beginning) = (vec![bytes.into()], beginning.into());
        let before = follower.last();
        match follower.copy(&batch) {
            Ok(name) => {
                accepted += 1;
                assert!(name <= follower.last());
            }
            Err(_) => assert_eq!(follower.last(), before),
        }
        commit(&mut follower, u64::MAX);
        for _ in 0..20 {
            // A batch that has all its checksums, and cannot be: the log says that it failed.
            let _ = follower.sync();
        }
        drop(follower);
        disk.crash();
        let _ =
            FileLog::open(disk.clone(), following(batch.name().unwrap_or_default()), &mut |_| {});
        let _ = FileLog::open(disk, options(), &mut |_| {});
    }
    assert!((100..3000).contains(&accepted), "{accepted}");
}

/// A follower gives back what nobody holds, on its own.
#[test]
fn a_follower_gives_back_space() {
    let mut leader = Leader::new(1);
    let disk = SimDisk::new(2);
    let mut follower = open(&disk, following(BatchName::NONE));
    let mut kept = Vec::new();
    for number in 0..600_u64 {
        let at = leader.log.append(b"h", &[&[1; 100]], &batches::ONE, Keep::Durable).unwrap();
        kept.push(at);
        if number > 20 && number % 10 > 0 {
            leader.log.release(kept[number as usize - 20], batches::ONE[0]).unwrap();
        }
        leader.settle();
        while follower.last() < leader.log.last() {
            follower.copy(&leader.batch(follower.last().number + 1)).unwrap();
        }
        settle(&mut follower);
        follower.apply_to(follower.last()).unwrap();
        batches::move_point(&mut follower, number);
        leader.log.set_agreed(follower.last().number + 1);
    }
    for _ in 0..1000 {
        follower.sync().unwrap();
    }
    let bytes = |disk: &SimDisk| disk.files().iter().map(|(_, len)| len).sum::<u64>();
    assert!(bytes(&disk) < bytes(&leader.disk) / 2, "{} {}", bytes(&disk), bytes(&leader.disk));
    assert!(disk.files().iter().any(|(file, _)| file.generation > 0));
    let want = found(&mut open(&leader.disk.copy_whole(1), options()));
    assert_eq!(found(&mut open(&disk.copy_whole(1), options())), want);
    drop(follower);
    disk.crash();
    let mut follower = open(&disk, following(BatchName::NONE));
    assert_eq!(follower.last(), leader.log.last());
    commit(&mut follower, u64::MAX);
    follower.begin_term(2);
    settle(&mut follower);
    assert!(follower.lead());
    assert_eq!(found(&mut follower), want);
}

/// Copies wait for room, as all that is written.
#[test]
fn copies_wait_for_room() {
    let whole = written();
    let mut leader = open(&whole, options());
    let disk = SimDisk::new(2);
    disk.set_faults(Faults { capacity: Some(3000), ..Faults::default() });
    let mut follower = open(&disk, following(BatchName::NONE));
    for number in 1..=leader.last().number {
        follower.copy(&get(&mut leader, number)).unwrap();
    }
    for _ in 0..20 {
        follower.sync().unwrap();
    }
    assert!(follower.stored() < follower.last() && follower.is_short());
    disk.set_faults(Faults::default());
    settle(&mut follower);
    assert!(!follower.is_short());
    assert_alike(&files(&disk), &files(&whole), 0);
    assert_eq!(follower.stored(), leader.last());
}

/// Leader and follower give back space, each on its own, and records are written late: after a start each has the same.
#[test]
fn each_gives_back_space_on_its_own() {
    let (mut merged, mut again, mut released) = (0, 0, 0);
    for seed in 0..20 {
        let mut below = numbers(seed);
        let mut leader = Leader::new(seed);
        leader.log.reclaim();
        leader.copied = Some(0);
        let disk = SimDisk::new(seed + 1000);
        let digests = |follows| Options {
            follows,
            digests: seed % 2 == 0,
            on_damage: OnDamage::Aside,
            ..options()
        };
        let mut follower = open(&disk, digests(Some(BatchName::NONE)));
        for _ in 0..1500 {
            leader.step(&mut below);
            if leader.held.len() > 60 {
                let (at, holder) = leader.held.swap_remove(below(60) as usize);
                leader.log.release(at, holder).unwrap();
            }
            leader.log.hold_batches(follower.last().number + 1);
            while follower.last() < leader.log.last() {
                let next = leader.batch(follower.last().number + 1);
                follower.copy(&next).unwrap();
            }
            leader.copied = Some(follower.last().number);
            follower.sync().unwrap();
            let committed = follower.stored().number;
            commit(&mut follower, committed);
            leader.log.set_agreed(committed + 1);
            batches::move_point(&mut follower, committed);
            batches::move_point(&mut leader.log, committed);
            if below(300) == 0 {
                settle(&mut follower);
                drop(follower);
                disk.crash();
                follower = open(&disk, digests(Some(named(&leader.log, committed))));
            }
        }
        leader.settle();
        while follower.last() < leader.log.last() {
            let next = leader.batch(follower.last().number + 1);
            follower.copy(&next).unwrap();
        }
        settle(&mut follower);
        commit(&mut follower, u64::MAX);
        leader.log.set_agreed(u64::MAX);
        for _ in 0..300 {
            leader.log.sync().unwrap();
            follower.sync().unwrap();
        }
        for disk in [&disk, &leader.disk] {
            merged += u32::from(disk.files().iter().any(|(file, _)| file.generation > 0));
        }
        let want = found(&mut open(&leader.disk.copy_whole(1), options()));
        assert!(found(&mut open(&disk.copy_whole(1), options())) == want, "seed {seed}");
        follower.begin_term(leader.term + 1);
        settle(&mut follower);
        assert!(follower.lead());
        if seed % 4 == 0 {
            assert!(found(&mut follower) == want, "seed {seed}");
            continue;
        }
        let (records, gone) = tell_again(&mut follower, &mut below, want.1);
        (again, released) = (again + records, released + gone);
    }
    assert!(merged > 20 && again > 100 && released > 100, "{merged} {again} {released}");
}

/// Whom sums do.
#[derive(Default)]
struct Summed(BTreeMap<Holder, u64>);

impl RecoverySink for Summed {
    fn takes_sum(&mut self, _: Holder, _: bool) -> bool {
        true
    }

    fn sum(&mut self, holder: Holder, sum: RecoveredSum) {
        *self.0.entry(holder).or_default() += sum.count;
    }

    fn run(&mut self, run: RecoveredRun<'_>) {
        panic!("{run:?} need not be looked at");
    }
}

/// Who leads now tells what each holder has, without a look at a record, and then of all records that are held, while others
/// come, these are released and files go. How many there were, and how many were released.
fn tell_again(
    log: &mut FileLog<SimDisk>,
    below: &mut impl FnMut(u64) -> u64,
    all: Found,
) -> (usize, usize) {
    let mut summed = Summed::default();
    log.recover_sums(&[], RecoveryLimits::NONE, &mut summed);
    let mut want = BTreeMap::new();
    for (holder, _) in all.iter().flat_map(|it| &it.2) {
        *want.entry(*holder).or_default() += 1;
    }
    assert_eq!(summed.0, want);
    log.reclaim();
    let names = |holders: &[(Holder, u8)]| holders.iter().map(|it| it.0).collect::<BTreeSet<_>>();
    let mut held: BTreeMap<u64, BTreeSet<Holder>> =
        all.iter().map(|(at, _, holders)| (*at, names(holders))).collect();
    let (mut from, mut released, end) = (Some(0), 0, log.end().get());
    while let Some(here) = from {
        for _ in 0..below(20) {
            let Some(nth) = (held.len() as u64).checked_sub(1) else { break };
            let at = *held.keys().nth(below(nth + 1) as usize).unwrap();
            let holders = held.get_mut(&at).unwrap();
            let holder = holders.pop_last().unwrap();
            log.release(Offset::new(at), holder).unwrap();
            if holders.is_empty() {
                held.remove(&at);
            }
            released += 1;
        }
        if below(3) == 0 {
            log.append(b"later", &[&[5; 90]], &batches::ONE, Keep::Durable).unwrap();
            settle(log);
            log.set_agreed(u64::MAX);
        }
        let mut told = Vec::new();
        let (records, bytes) = (1 + below(30) as u32, 1 + below(1 << 16));
        let limits = RecoveryLimits { records, bytes };
        let next = log.recover_more(Offset::new(here), limits, &mut |it| {
            told.push((it.at.get(), names(it.holders)));
        });
        let next = next.unwrap().map(Offset::get);
        let those = held.range(here..next.unwrap_or(end));
        let those = those.map(|(at, it)| (*at, it.clone()));
        assert!(told == those.collect::<Vec<_>>(), "from {here} to {next:?}");
        from = next;
    }
    (all.len(), released)
}

/// Whoever adds and takes away what each batch has comes to what a follower holds, batch by batch, and has its bytes.
#[test]
fn contents_come_to_what_is_held() {
    for seed in 0..20 {
        let mut below = numbers(seed);
        let mut leader = Leader::new(seed);
        let mut held = Vec::new();
        for _ in 0..300 {
            let any = below(held.len().max(1) as u64) as usize;
            match below(8) {
                0..=3 => {
                    let keep = if below(3) == 0 { Keep::Volatile } else { Keep::Durable };
                    let body = vec![below(256) as u8; below(200) as usize];
                    let at = leader.log.append(b"head", &[&body], &batches::ONE, keep);
                    held.push(at.unwrap());
                }
                4 | 5 if !held.is_empty() => {
                    leader.log.release(held.swap_remove(any), batches::ONE[0]).unwrap();
                }
                6 if !held.is_empty() => drop(leader.log.persist(held[any]).unwrap()),
                _ => leader.log.sync().unwrap(),
            }
        }
        leader.settle();
        let disk = SimDisk::new(seed + 1000);
        let mut follower = open(&disk, following(BatchName::NONE));
        let (mut there, mut volatile) = (BTreeMap::new(), BTreeMap::new());
        for number in 1..=leader.log.last().number {
            let batch = leader.batch(number);
            let contents = batch.contents().unwrap();
            assert_eq!(Some(contents.name), batch.name());
            volatile.extend(contents.volatile);
            there.extend(contents.persisted.iter().filter_map(|at| volatile.remove_entry(at)));
            there.extend(contents.records);
            for (at, holder) in contents.released {
                assert_eq!(holder, batches::ONE[0]);
                let was = there.remove(&at).or_else(|| volatile.remove(&at));
                assert!(was.is_some(), "{at} was never there");
            }
            follower.copy(&batch).unwrap();
            settle(&mut follower);
            commit(&mut follower, number);
            let mut cold = Vec::new();
            follower.each_cold(|at| cold.push(at));
            let want: Vec<_> = there.keys().copied().collect();
            assert_eq!(cold, want, "seed {seed}, batch {number}");
        }
        assert!(!there.is_empty());
        for (at, bytes) in there {
            assert_eq!(batches::read(&mut follower, at).unwrap(), bytes, "seed {seed}, {at}");
        }
    }
}

/// A file goes as soon as a batch is applied that releases the last of its records, and the next batch is the first to say that it was.
/// A start without that one has no state that ever was; it says so, and from which batch on it has.
#[test]
fn a_start_says_that_its_files_are_ahead() {
    let mut ahead = 0;
    for seed in 0..20 {
        let mut below = numbers(seed);
        let mut leader = Leader::new(seed);
        let disk = SimDisk::new(seed + 1000);
        let mut follower = open(&disk, following(BatchName::NONE));
        let (mut held, mut there) = (Vec::new(), BTreeSet::new());
        let mut as_of = BTreeMap::from([(0, there.clone())]);
        for step in 0..300 {
            let any = below(held.len().max(1) as u64) as usize;
            if below(2) == 0 && held.len() > 2 {
                leader.log.release(held.swap_remove(any), batches::ONE[0]).unwrap();
            } else {
                let body = vec![1; below(200) as usize];
                held.push(leader.log.append(b"h", &[&body], &batches::ONE, Keep::Durable).unwrap());
            }
            leader.settle();
            for number in follower.last().number + 1..=leader.log.last().number {
                let batch = leader.batch(number);
                let contents = batch.contents().unwrap();
                there.extend(contents.records.iter().map(|it| it.0));
                contents.released.iter().for_each(|it| _ = there.remove(&it.0));
                as_of.insert(number, there.clone());
                follower.copy(&batch).unwrap();
            }
            settle(&mut follower);
            follower.apply_to(follower.last()).unwrap();
            leader.log.set_agreed(follower.last().number + 1);
            batches::move_point(&mut follower, step);
            settle(&mut follower);
            if below(5) > 0 {
                continue;
            }
            drop(follower);
            disk.crash();
            follower = open(&disk, following(BatchName::NONE));
            let cold = |log: &FileLog<SimDisk>| {
                let mut cold = BTreeSet::new();
                log.each_cold(|at| _ = cold.insert(at));
                cold
            };
            let (applied, from) = (follower.applied().unwrap().number, follower.was_applied_to());
            let is_as_it_was = cold(&follower) == as_of[&applied];
            assert_eq!(is_as_it_was, from == 0, "seed {seed}: {applied}, {from}");
            if from > 0 {
                ahead += 1;
                commit(&mut follower, from);
                assert_eq!(cold(&follower), as_of[&from], "seed {seed}");
                assert_eq!(follower.was_applied_to(), 0);
            }
        }
    }
    assert!(ahead > 10, "{ahead}");
}
