//! A follower gets its leader's files in place of its own, whatever happens to both.

mod batches;

use batches::{drive, move_point, options, point};
use leveret_log::disk::{Disk as _, Faults, FileName, Point, Reached, SimDisk};
use leveret_log::file::{Manifest, NoBatch, NoPiece, Options, PieceCopy, PieceName, Unfit};
use leveret_log::suite::numbers;
use leveret_log::{BatchName, FileLog, Holder, Keep, Log, Offset};

const HOLDERS: u64 = 3;

fn open(disk: &SimDisk, options: Options) -> FileLog<SimDisk> {
    FileLog::open(disk.clone(), options, &mut |_| {}).unwrap().0
}

fn following() -> Options {
    Options { follows: Some(BatchName::NONE), ..options() }
}

/// A leader that gives back space, and what its shard holds.
struct Leader {
    disk: SimDisk,
    log: FileLog<SimDisk>,
    held: Vec<(Offset, Holder)>,
    term: u64,
}

impl Leader {
    fn new(seed: u64) -> Self {
        let disk = SimDisk::new(seed);
        let mut log = open(&disk, Self::options());
        log.begin_term(1);
        drive(&mut log);
        Self { disk, log, held: Vec::new(), term: 1 }
    }

    fn options() -> Options {
        Options { spill_bytes: 300, copies_bytes: 3_000, ..options() }
    }

    fn step(&mut self, below: &mut dyn FnMut(u64) -> u64) {
        let any = below(self.held.len().max(1) as u64) as usize;
        match below(16) {
            0..=5 => {
                let keep = if below(4) == 0 { Keep::Volatile } else { Keep::Durable };
                let count = 1 + below(HOLDERS);
                let mut holders: Vec<_> = (0..count).map(Holder::new).collect();
                if keep == Keep::Durable && below(10) == 0 {
                    holders.push(Holder::OWNER);
                }
                let len = if below(20) == 0 { 10_000 } else { below(400) };
                let body = vec![below(256) as u8; len as usize];
                let at = self.log.append(&[below(9) as u8; 3], &[&body], &holders, keep).unwrap();
                self.held.extend(holders.into_iter().map(|holder| (at, holder)));
            }
            6..=9 if self.held.len() > 20 => {
                let (at, holder) = self.held.swap_remove(any);
                self.log.release(at, holder).unwrap();
            }
            10 if !self.held.is_empty() => {
                let (at, holder) = self.held[any];
                self.log.mark(at, holder, 1 + below(9) as u8).unwrap();
            }
            11 if !self.held.is_empty() => drop(self.log.persist(self.held[any].0).unwrap()),
            12 if below(6) == 0 => self.log.append_members(&[below(256) as u8; 20]).unwrap(),
            _ => {
                self.log.sync().unwrap();
                self.agree();
            }
        }
    }

    /// Others agree to what is stored.
    fn agree(&mut self) {
        let stored = self.log.stored();
        self.log.apply_to(stored).unwrap();
        move_point(&mut self.log, stored.number);
    }

    fn settle(&mut self) {
        settle(&mut self.log);
        self.agree();
    }

    /// It was deposed, and leads again.
    fn lead_anew(&mut self) {
        self.settle();
        self.term += 1;
        let follows = Some(self.log.stored());
        self.log = open(&self.disk, Options { follows, ..Self::options() });
        self.log.begin_term(self.term);
        self.settle();
        assert!(self.log.lead());
        let all = found(&mut self.log).1.into_iter();
        let holders = all.flat_map(|(at, _, holders)| {
            holders.into_iter().map(move |(holder, _)| (Offset::new(at), holder))
        });
        self.held = holders.collect();
    }

    /// The files as of now, and a copy of the disk.
    fn manifest(&mut self) -> (Manifest, SimDisk) {
        for _ in 0..1000 {
            self.log.sync().unwrap();
            self.agree();
            let last = self.log.stored().number;
            let at = point(&self.log, last);
            if let Some(manifest) = self.log.manifest(at) {
                return (manifest, self.disk.copy_whole(1));
            }
        }
        panic!("there is no manifest")
    }

    fn piece(&mut self, name: PieceName) -> Result<PieceCopy, NoPiece> {
        for _ in 0..10_000 {
            match self.log.piece(name) {
                Err(NoPiece::ToCome) => self.log.collect().unwrap(),
                piece => return piece,
            }
        }
        panic!("the piece does not come")
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

fn counts(log: &FileLog<SimDisk>) -> Vec<u64> {
    (0..HOLDERS).map(|it| log.paged_out(Holder::new(it)).records).collect()
}

/// What a log has as of the batch of a manifest, according to the leader's files when it was made.
struct Want {
    found: (Vec<(u64, Vec<u8>)>, Found),
    counts: Vec<u64>,
    records: u64,
}

fn want(disk: &SimDisk, at: BatchName, end: Offset) -> Want {
    let until = Some(Reached { end: end.get(), sequence: at.number + 1 });
    let mut log = open(disk, Options { until, ..options() });
    assert_eq!(log.last(), at);
    let (counts, records) = (counts(&log), log.usage().records);
    Want { found: found(&mut log), counts, records }
}

fn files(disk: &SimDisk) -> Vec<(FileName, u64)> {
    disk.files()
}

/// A follower's log is that of the manifest; it goes on with the next batch, and leads.
fn check(
    disk: &SimDisk,
    (manifest, copy): &(Manifest, SimDisk),
    leader: &mut Leader,
    below: &mut dyn FnMut(u64) -> u64,
    seed: u64,
) {
    let mut follower = open(disk, following());
    let at = manifest.point.at;
    assert_eq!((follower.last(), follower.stored()), (at, at), "seed {seed}");
    assert_eq!((follower.applied(), follower.listed_point()), (Some(at), Some(&manifest.point)));
    let want = want(copy, at, follower.end());
    assert_eq!(
        (counts(&follower), follower.usage().records),
        (want.counts, want.records),
        "{seed}"
    );
    let mut names: Vec<_> = disk.files().into_iter().map(|(file, _)| file).collect();
    names.sort_unstable();
    let of: Vec<_> = manifest.files.iter().map(|it| it.file).collect();
    assert_eq!((names, disk.came()), (of, Vec::new()), "seed {seed}");
    let mut other = open(&disk.copy_whole(1), options());
    assert_eq!(found(&mut other), want.found, "seed {seed}");
    // Another copy leads from here on.
    let copied = disk.copy_whole(2);
    let mut leads = open(&copied, following());
    leads.begin_term(leader.term + 1);
    settle(&mut leads);
    assert!(leads.lead());
    assert_eq!(found(&mut leads), want.found, "seed {seed}");
    leads.append(b"h", &[b"new"], &batches::ONE, Keep::Durable).unwrap();
    settle(&mut leads);
    // This one copies what the leader has since.
    leader.log.hold_batches(at.number + 1);
    leader.log.let_go_of_manifest();
    for _ in 0..200 {
        leader.step(below);
        while follower.last() < leader.log.last() && below(3) > 0 {
            let next = get(&mut leader.log, follower.last().number + 1);
            follower.copy(&next).unwrap();
        }
        follower.sync().unwrap();
        let stored = follower.stored();
        follower.apply_to(stored).unwrap();
        move_point(&mut follower, stored.number);
        leader.log.hold_batches(follower.last().number + 1);
    }
    leader.settle();
    while follower.last() < leader.log.last() {
        let next = get(&mut leader.log, follower.last().number + 1);
        follower.copy(&next).unwrap();
    }
    settle(&mut follower);
    leader.settle();
    let want = found(&mut open(&leader.disk.copy_whole(1), options()));
    assert!(found(&mut open(&disk.copy_whole(1), options())) == want, "seed {seed}");
    follower.apply_to(follower.last()).unwrap();
    follower.begin_term(leader.term + 1);
    settle(&mut follower);
    assert!(follower.lead());
    assert!(found(&mut follower) == want, "seed {seed}");
}

fn get(log: &mut FileLog<SimDisk>, number: u64) -> leveret_log::file::BatchCopy {
    loop {
        match log.batch(number) {
            Ok(batch) => return batch,
            Err(NoBatch::ToCome) => log.collect().unwrap(),
            Err(error) => panic!("batch {number}: {error}"),
        }
    }
}

/// A follower that has copied for a while, and what the leader had then.
fn lagging(leader: &mut Leader, disk: &SimDisk, below: &mut dyn FnMut(u64) -> u64) {
    let mut follower = open(disk, following());
    leader.log.hold_batches(1);
    for _ in 0..below(800) {
        leader.step(below);
        if follower.last() < leader.log.stored() {
            let next = get(&mut leader.log, follower.last().number + 1);
            follower.copy(&next).unwrap();
        }
        follower.sync().unwrap();
        let stored = follower.stored();
        follower.apply_to(stored).unwrap();
        move_point(&mut follower, stored.number);
    }
    settle(&mut follower);
    leader.log.hold_batches(u64::MAX);
}

/// Everything at once: pieces in any order, lost, twice and damaged; processes that end and power cuts; a leader that goes on,
/// removes and rewrites, and gives a second manifest; new disks, and some that have a part already.
#[test]
fn a_follower_gets_the_leaders_files() {
    let (mut gone, mut crashes, mut refused, mut kept, mut again, mut rewritten) =
        (0, 0, 0, 0, 0, 0);
    for seed in 0..50 {
        let mut below = numbers(seed);
        let mut leader = Leader::new(seed);
        let disk = SimDisk::new(seed + 1000);
        if below(2) == 0 {
            lagging(&mut leader, &disk, &mut below);
        }
        for _ in 0..600 {
            leader.step(&mut below);
            if below(200) == 0 {
                leader.lead_anew();
            }
        }
        disk.set_faults(Faults { delay: below(3) as u32, ..Faults::default() });
        let mut follower = open(&disk, following());
        let (last, before) = (follower.last(), files(&disk));
        let mut given = leader.manifest();
        rewritten += given.0.files.iter().filter(|it| it.file.generation > 0).count();
        follower.receive(given.0.clone()).unwrap();
        let mut asked: Vec<PieceName> = Vec::new();
        let mut is_installed = false;
        let goes_on = below(2) == 0;
        for _ in 0..20_000 {
            if goes_on && below(3) == 0 {
                leader.step(&mut below);
            }
            follower.sync().unwrap();
            if below(60) == 0 {
                drop(follower);
                crashes += 1;
                if below(2) == 0 {
                    disk.crash()
                } else {
                    disk.kill()
                }
                follower = open(&disk, following());
                if follower.last() != last {
                    break;
                }
                is_installed = false;
                assert_eq!(files(&disk), before, "seed {seed}");
                follower.receive(given.0.clone()).unwrap();
                asked.clear();
            }
            if below(60) == 0 && !is_installed {
                again += 1;
                if below(3) == 0 {
                    // Nobody holds the files any more.
                    leader.lead_anew();
                    continue;
                }
                given = leader.manifest();
                follower.receive(given.0.clone()).unwrap();
                asked.clear();
            }
            if follower.arrived().is_some() {
                if !is_installed {
                    assert_eq!(follower.arrived(), Some(&given.0.point));
                    follower.install();
                    is_installed = true;
                }
                if follower.is_installed() {
                    break;
                }
                continue;
            }
            asked.extend(follower.wanted(5_000));
            if below(50) == 0 {
                follower.ask_again();
                asked.clear();
            }
            if asked.is_empty() || below(3) == 0 {
                continue;
            }
            let any = below(asked.len() as u64) as usize;
            let name = asked[any];
            let mut piece = match leader.piece(name) {
                Ok(piece) => piece,
                Err(NoPiece::Gone) => {
                    gone += 1;
                    given = leader.manifest();
                    follower.receive(given.0.clone()).unwrap();
                    asked.clear();
                    continue;
                }
                Err(error) => panic!("{error}"),
            };
            match below(12) {
                // It comes again.
                0 => {}
                1 => {
                    let mut bytes = piece.bytes.to_vec();
                    bytes[below(u64::from(name.len)) as usize] ^= 1;
                    piece.bytes = bytes.into();
                    assert_eq!(follower.take_piece(&piece), Err(Unfit::Damaged));
                    refused += 1;
                    continue;
                }
                _ => drop(asked.swap_remove(any)),
            }
            follower.take_piece(&piece).unwrap();
        }
        assert_eq!(follower.fetched().and_then(|it| it.damaged), None, "seed {seed}");
        drop(follower);
        match below(3) {
            0 => disk.crash(),
            1 => disk.kill(),
            _ => {}
        }
        let had: Vec<_> = before.iter().map(|(file, _)| *file).collect();
        kept += given.0.files.iter().filter(|it| had.contains(&it.file)).count();
        disk.set_faults(Faults::default());
        check(&disk, &given, &mut leader, &mut below, seed);
    }
    let seen = [gone, crashes, refused, kept, again, rewritten];
    assert!(seen.iter().all(|count| *count > 20), "{seen:?}");
}

/// The log is the one or the other wherever the disk stops, and what came is not asked for again.
#[test]
fn a_crash_leaves_the_old_log_or_the_new_one() {
    let mut below = numbers(1);
    let mut leader = Leader::new(1);
    let old = SimDisk::new(2);
    lagging(&mut leader, &old, &mut below);
    (0..900).for_each(|_| leader.step(&mut below));
    let given = leader.manifest();
    let (last, before) = (open(&old, following()).last(), files(&old));
    let (mut news, mut saved) = (0, 0);
    for stop in 0..10_000 {
        let disk = old.copy_whole(stop);
        let mut follower = open(&disk, following());
        let mut done = 0;
        let mut step = |follower: &mut FileLog<SimDisk>| {
            // One thing of those that were submitted.
            done += 1;
            follower.collect().unwrap();
            done > stop
        };
        follower.receive(given.0.clone()).unwrap();
        let of = follower.fetched().unwrap().of;
        let is_over = loop {
            if step(&mut follower) {
                break false;
            }
            if follower.is_installed() {
                break true;
            }
            if follower.arrived().is_some() {
                if follower.disk().is_idle() {
                    follower.install();
                }
                continue;
            }
            for name in follower.wanted(3_000) {
                let piece = leader.piece(name).unwrap();
                follower.take_piece(&piece).unwrap();
            }
        };
        drop(follower);
        disk.crash();
        let mut follower = open(&disk, following());
        if follower.last() == last {
            assert!(!is_over);
            assert_eq!(files(&disk), before, "{stop}");
            follower.receive(given.0.clone()).unwrap();
            settle(&mut follower);
            let fetched = follower.fetched().unwrap();
            assert_eq!((fetched.of, fetched.damaged), (of, None));
            saved += fetched.bytes;
        } else {
            assert_eq!(follower.last(), given.0.point.at, "{stop}");
            news += 1;
            if is_over {
                check(&disk, &given, &mut leader, &mut below, stop);
                break;
            }
        }
    }
    assert!(news > 1 && saved > 100_000, "{news} {saved}");
}

/// The files stay as long as they are held, and no longer; with more than a bound, or on a full disk, they are held no more.
#[test]
fn files_of_a_manifest_stay() {
    for seed in 0..20 {
        let mut below = numbers(seed);
        let mut leader = Leader::new(seed);
        (0..600).for_each(|_| leader.step(&mut below));
        let (manifest, copy) = leader.manifest();
        let is_bound = seed % 3 == 0;
        if is_bound {
            drop(manifest);
            let disk = leader.disk.clone();
            leader.settle();
            let follows = Some(leader.log.stored());
            let options = Options { manifest_bytes: 6_000, follows, ..Leader::options() };
            leader.log = open(&disk, options);
            leader.term += 1;
            leader.log.begin_term(leader.term);
            leader.settle();
            assert!(leader.log.lead());
            leader.held = found(&mut leader.log)
                .1
                .into_iter()
                .flat_map(|(at, _, all)| all.into_iter().map(move |(it, _)| (Offset::new(at), it)))
                .collect();
        }
        let (manifest, copy) = if is_bound {
            leader.manifest()
        } else {
            (leader.log.manifest(point(&leader.log, leader.log.stored().number)).unwrap(), copy)
        };
        let _ = &copy;
        let next = manifest.point.at.number + 1;
        let bytes: Vec<_> = manifest.files.iter().map(|it| leader.disk.bytes_of(it.file)).collect();
        while let Some((at, holder)) = leader.held.pop() {
            leader.log.release(at, holder).unwrap();
            leader.log.sync().unwrap();
            leader.agree();
        }
        for number in 0..400_u64 {
            let at = leader.log.append(b"h", &[&[1; 200]], &batches::ONE, Keep::Durable).unwrap();
            leader.settle();
            if number > 10 {
                leader.log.release(at, batches::ONE[0]).unwrap();
            }
        }
        (0..1000).for_each(|_| leader.log.sync().unwrap());
        leader.agree();
        let name = |it: &leveret_log::file::ManifestFile| PieceName {
            file: it.file,
            mark: it.heading.mark,
            position: 0,
            len: (it.len as u32).min(1000),
        };
        if is_bound {
            assert_eq!(leader.piece(name(&manifest.files[0])), Err(NoPiece::Gone), "seed {seed}");
            continue;
        }
        for (it, bytes) in manifest.files.iter().zip(bytes) {
            let piece = leader.piece(name(it)).unwrap();
            assert_eq!(piece.bytes[..], bytes[..piece.bytes.len()], "seed {seed}");
            assert!(leader.disk.bytes_of(it.file).starts_with(&bytes[..it.len as usize]));
        }
        assert_eq!(get(&mut leader.log, next).name().unwrap().number, next);
        let held = leader.disk.files().len();
        leader.log.let_go_of_manifest();
        (0..1000).for_each(|_| {
            leader.log.sync().unwrap();
            leader.agree();
        });
        assert!(leader.disk.files().len() < held / 2, "seed {seed}");
        assert_eq!(leader.piece(name(&manifest.files[0])), Err(NoPiece::Gone));
    }
}

/// Files that are needed no more stay while they are read or held: what is made of those around them meanwhile, and stands for
/// all from the first to the last, is newer than they.
#[test]
fn what_is_made_around_a_file_that_stays_is_newer() {
    for seed in 0..40 {
        let mut below = numbers(seed);
        let mut leader = Leader::new(seed);
        for round in 0..8 {
            for _ in 0..200 {
                leader.step(&mut below);
                // Whole files are let go of.
                if below(40) == 0 && leader.held.len() > 40 {
                    leader.held.sort_unstable();
                    let from = below(leader.held.len() as u64) as usize;
                    let end = leader.held.len().min(from + 30);
                    for (at, holder) in leader.held.drain(from..end) {
                        leader.log.release(at, holder).unwrap();
                    }
                }
            }
            leader.settle();
            let follows = Some(leader.log.stored());
            open(&leader.disk.copy_whole(1), Options { follows, ..Leader::options() });
            if round % 3 == 0 {
                leader.manifest();
            }
        }
    }
}

/// What is damaged on the disk, or on its way there, comes again from there on; if it comes so again and again that is told.
#[test]
fn what_is_damaged_does_not_count() {
    let mut below = numbers(5);
    let mut leader = Leader::new(5);
    (0..900).for_each(|_| leader.step(&mut below));
    let given = leader.manifest();
    let disk = SimDisk::new(9);
    let mut follower = open(&disk, following());
    follower.receive(given.0.clone()).unwrap();
    let fetch = |follower: &mut FileLog<SimDisk>, leader: &mut Leader, wrong: Option<FileName>| {
        let mut bytes = 0;
        for _ in 0..5_000 {
            let last: Vec<_> = follower.wanted(100_000);
            for name in last {
                let mut piece = leader.piece(name).unwrap();
                bytes += piece.bytes.len() as u64;
                if wrong == Some(name.file) {
                    let mut changed = piece.bytes.to_vec();
                    *changed.last_mut().unwrap() ^= 4;
                    piece.crc = crc32c::crc32c(&changed);
                    piece.bytes = changed.into();
                }
                follower.take_piece(&piece).unwrap();
            }
            follower.collect().unwrap();
            if follower.arrived().is_some() {
                break;
            }
        }
        bytes
    };
    let wrong = given.0.files[2].file;
    fetch(&mut follower, &mut leader, Some(wrong));
    assert_eq!(follower.fetched().unwrap().damaged, Some(wrong));
    assert!(follower.arrived().is_none() && follower.wanted(1000).is_empty());
    // With the next manifest it is tried again. What is whole of it is here.
    let of = follower.fetched().unwrap().of;
    follower.receive(given.0.clone()).unwrap();
    let bytes = fetch(&mut follower, &mut leader, None);
    assert!(follower.arrived().is_some() && bytes > 0 && bytes < of / 2, "{bytes} of {of}");
    // A bit is turned around on the disk while nothing runs.
    drop(follower);
    for (file, bytes) in disk.came() {
        let at = below(bytes.len() as u64);
        disk.flip_coming(file, at, below(8) as u8);
        let mut follower = open(&disk, following());
        follower.receive(given.0.clone()).unwrap();
        assert!(fetch(&mut follower, &mut leader, None) > 0, "byte {at} of {file}");
        assert!(follower.arrived().is_some());
    }
    let mut follower = open(&disk, following());
    follower.stop_receiving();
    settle(&mut follower);
    assert_eq!((disk.came(), follower.fetched()), (Vec::new(), None));
}

/// A file that was set aside may be a copy of the leader's that was sealed earlier, as its log led a term of which nobody heard: what
/// seals it is not in the leader's, where another batch is.
#[test]
fn what_seals_a_file_that_was_set_aside_does_not_count() {
    let mut leader = Leader::new(1);
    leader.log.hold_batches(1);
    for number in 0..4 {
        leader.log.append(b"h", &[&[number; 100]], &batches::ONE, Keep::Durable).unwrap();
        leader.settle();
    }
    let (disk, last) = (SimDisk::new(2), leader.log.last().number);
    let mut follower = open(&disk, following());
    for number in 1..last {
        let batch = get(&mut leader.log, number);
        follower.copy(&batch).unwrap();
        settle(&mut follower);
    }
    follower.apply_to(follower.stored()).unwrap();
    follower.begin_term(2);
    settle(&mut follower);
    assert!(follower.lead());
    assert_eq!(follower.last(), BatchName { number: last, term: 2 });
    drop(follower);
    disk.clone().disown_now().unwrap();
    leader.term = 2;
    leader.lead_anew();
    let given = leader.manifest();
    let mut follower = open(&disk, following());
    follower.receive(given.0).unwrap();
    settle(&mut follower);
    let here = follower.fetched().unwrap().bytes;
    assert!(here > 300, "{here} bytes are of use");
    for _ in 0..100 {
        for name in follower.wanted(10_000) {
            let piece = leader.piece(name).unwrap();
            follower.take_piece(&piece).unwrap();
        }
        settle(&mut follower);
    }
    assert!(follower.arrived().is_some(), "{:?}", follower.fetched());
}

/// Also a file of which the first piece was not on the disk yet.
#[test]
fn nothing_is_left_of_what_came() {
    let mut below = numbers(5);
    let mut leader = Leader::new(5);
    (0..900).for_each(|_| leader.step(&mut below));
    let given = leader.manifest();
    let disk = SimDisk::new(9);
    let mut follower = open(&disk, following());
    follower.receive(given.0).unwrap();
    settle(&mut follower);
    disk.set_faults(Faults { delay: 3, ..Faults::default() });
    for name in follower.wanted(10_000) {
        let piece = leader.piece(name).unwrap();
        follower.take_piece(&piece).unwrap();
    }
    assert_eq!(disk.came(), Vec::new());
    follower.stop_receiving();
    settle(&mut follower);
    assert_eq!((disk.came(), follower.fetched()), (Vec::new(), None));
}

/// Of a file that comes under the name of another one nothing of that stays, wherever it was when that was given up: on its way to
/// the disk, or beside a file of the log's own that then is not used.
#[test]
fn what_comes_under_a_name_is_not_longer_than_it_was_given() {
    let leader = |seed, len: usize| {
        let mut leader = Leader::new(seed);
        let disk = SimDisk::new(seed);
        leader.log = open(&disk, Options { seed, ..Leader::options() });
        leader.log.begin_term(1);
        leader.disk = disk;
        for _ in 0..3 {
            leader.log.append(b"h", &[&vec![1; len]], &batches::ONE, Keep::Durable).unwrap();
            leader.settle();
        }
        leader
    };
    let (mut first, mut second) = (leader(1, 3_000), leader(2, 200));
    for delay in [0, 3] {
        let disk = SimDisk::new(9);
        let mut follower = open(&disk, following());
        follower.receive(first.manifest().0).unwrap();
        settle(&mut follower);
        disk.set_faults(Faults { delay, ..Faults::default() });
        for name in follower.wanted(100_000) {
            follower.take_piece(&first.piece(name).unwrap()).unwrap();
        }
        let (manifest, _) = second.manifest();
        let last = *manifest.files.last().unwrap();
        follower.receive(manifest).unwrap();
        settle(&mut follower);
        for name in follower.wanted(100_000) {
            follower.take_piece(&second.piece(name).unwrap()).unwrap();
        }
        settle(&mut follower);
        assert!(follower.arrived().is_some());
        let came = disk.came();
        let (_, bytes) = came.iter().find(|(file, _)| *file == last.file).unwrap();
        assert_eq!(bytes.len() as u64, last.len, "delay {delay}");
    }
}

/// Only a leader gives its files, of what all agreed to and it has; and only a follower takes others'.
#[test]
fn what_is_refused() {
    let mut below = numbers(5);
    let mut leader = Leader::new(5);
    (0..300).for_each(|_| leader.step(&mut below));
    leader.settle();
    let last = leader.log.stored();
    let at = |number, term| Point { at: BatchName { number, term }, members: Default::default() };
    for (number, term) in [(last.number + 1, 1), (last.number, 2), (last.number, 0), (0, 0), (0, 1)]
    {
        assert_eq!(leader.log.manifest(at(number, term)), None);
    }
    leader.log.append(b"h", &[b"more"], &batches::ONE, Keep::Durable).unwrap();
    settle(&mut leader.log);
    assert_eq!(leader.log.manifest(at(last.number + 1, 1)), None, "it is not agreed to");
    let manifest = leader.log.manifest(at(last.number, 1)).unwrap();
    assert_eq!(leader.log.receive(manifest.clone()), Err(Unfit::Leads));
    let mut alone = open(&SimDisk::new(1), options());
    assert_eq!(
        (alone.manifest(at(0, 0)), alone.receive(manifest.clone())),
        (None, Err(Unfit::Leads))
    );
    let mut follower = open(&SimDisk::new(2), following());
    assert_eq!(follower.manifest(at(last.number, 1)), None);
    let mut wrong: Vec<Manifest> = Vec::new();
    let mut with = |change: fn(&mut Manifest)| {
        let mut manifest = manifest.clone();
        change(&mut manifest);
        wrong.push(manifest);
    };
    with(|it| it.files.clear());
    with(|it| _ = it.files.pop());
    with(|it| it.files.reverse());
    with(|it| it.files[0].is_sealed = false);
    with(|it| it.files[1].len = 128);
    with(|it| it.point.at.term = 0);
    with(|it| it.point.at.number = 0);
    for manifest in wrong {
        assert!(matches!(follower.receive(manifest), Err(Unfit::Malformed(_))));
    }
    assert_eq!(follower.fetched(), None);
    follower.receive(manifest).unwrap();
    let name = follower.wanted(1 << 20)[0];
    let piece = leader.piece(name).unwrap();
    for name in [
        PieceName { mark: name.mark + 1, ..name },
        PieceName { position: u64::MAX, ..name },
        PieceName { len: name.len + 1, ..name },
    ] {
        assert_eq!(
            follower.take_piece(&PieceCopy { name, ..piece.clone() }),
            Err(Unfit::NotWanted)
        );
        assert_eq!(leader.piece(name), Err(NoPiece::Gone));
    }
}
