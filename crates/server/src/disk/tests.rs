mod snapshot;

use std::sync::{Condvar, Mutex};

use leveret_log::disk::{Body, Reached, Stage};
use leveret_log::file::{OnDamage, Options, Undigested};
use leveret_log::{FileLog, Holder, Keep, Log, Moment};

use super::writer::SPARE;
use super::*;

const LEN: u64 = 32 << 20;

/// A directory of its own, and a bell that the disk rings.
struct TestDisk {
    dir: tempfile::TempDir,
    bell: Arc<(Mutex<bool>, Condvar)>,
}

/// A log that keeps its directory for as long as it is there.
struct Placed {
    log: FileLog<RealDisk>,
    place: TestDisk,
}

impl TestDisk {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), bell: Arc::default() }
    }

    fn open(&self, options: Options) -> FileLog<RealDisk> {
        FileLog::open(self.disk(), options, &mut |_| {}).unwrap().0
    }

    fn disk(&self) -> RealDisk {
        self.disk_with(&Arc::new(Room::of(self.dir.path())))
    }

    fn disk_with(&self, room: &Arc<Room>) -> RealDisk {
        let bell = Arc::clone(&self.bell);
        let wake = move || {
            *bell.0.lock().unwrap() = true;
            bell.1.notify_one();
        };
        let (names, rests) = (Names::Own(Arc::default()), Arc::new(|| ()));
        RealDisk::open(self.dir.path(), "test", names, Arc::new(wake), rests, room).unwrap()
    }

    fn wait(&self) {
        let mut rung = self.bell.0.lock().unwrap();
        while !*rung {
            rung = self.bell.1.wait(rung).unwrap();
        }
        *rung = false;
    }
}

fn options() -> Options {
    Options { cache_bytes: 1 << 30, ..Options::default() }
}

#[test]
fn a_pipe_in_the_place_of_a_file_is_refused() {
    let place = TestDisk::new();
    drop(place.open(options()));
    let name = FileName { segment: 7, generation: 0 }.to_string();
    let path = place.dir.path().join(&name);
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o600.into()).unwrap();
    let why = FileLog::open(place.disk(), options(), &mut |_| {}).unwrap_err().to_string();
    assert!(why.contains(&format!("{name} is a named pipe, and no file")), "{why}");
}

#[test]
fn what_was_synced_is_there_again() {
    let place = TestDisk::new();
    // The data directory's lock is what keeps others out: not each file system locks any directory.
    let lock = File::open(place.dir.path()).unwrap();
    lock.try_lock().unwrap();
    let holders = [Holder::new(1), Holder::new(2)];
    let mut log = place.open(options());
    let at = log.append(b"head", &[b"body"], &holders, Keep::Durable).unwrap();
    let gone = log.append(b"gone", &[], &holders[..1], Keep::Durable).unwrap();
    while log.durable() < log.end() {
        log.sync().unwrap();
        place.wait();
        log.collect().unwrap();
    }
    log.release(gone, holders[0]).unwrap();
    log.release(at, holders[1]).unwrap();
    log.sync().unwrap();
    drop(log);

    let mut log = place.open(options());
    let mut found = Vec::new();
    log.recover(&mut |it| found.push((it.at, it.head.to_vec(), it.holders.to_vec())));
    assert_eq!(found, [(at, b"head".to_vec(), vec![(holders[0], 0)])]);
    log.fetch(&[at]);
    while log.read(at).is_err() {
        place.wait();
        log.collect().unwrap();
    }
    assert_eq!(log.read(at).unwrap().bytes, b"headbody"[..]);
}

/// What a disk did last, once it has.
fn done(disk: &mut RealDisk, place: &TestDisk, op: Op) -> Done {
    disk.submit(Token(1), op);
    loop {
        if let Some((_, done)) = disk.poll() {
            return done;
        }
        place.wait();
    }
}

/// A file whose end is cut off is as long as the list says, before what is written behind the cut.
#[test]
fn the_end_of_a_file_is_cut_off() {
    let place = TestDisk::new();
    let file = FileName { segment: 3, generation: 0 };
    let path = place.dir.path().join(file.to_string());
    let mut disk = place.disk();
    disk.enlist(&RosterLines::default(), true).unwrap();
    let reached = |sequence| Reached { end: sequence, sequence };
    let write = |position, byte, sequence, is_last| Op::Write {
        file,
        position,
        head: vec![byte; 128],
        body: Body::default(),
        reached: reached(sequence),
        sync: true,
        is_last,
        is_background: false,
    };
    for op in [write(0, 1, 1, false), write(128, 2, 2, false), write(256, 3, 3, true)] {
        assert!(matches!(done(&mut disk, &place, op), Done::Written { result: Ok(()), .. }));
    }
    let cut = Op::Cut { file, len: 128, reached: reached(1) };
    assert!(matches!(done(&mut disk, &place, cut), Done::Cut(Ok(()))));
    assert_eq!(std::fs::read(&path).unwrap(), [1; 128]);
    let listed = |disk: &mut RealDisk| {
        let roster = disk.roster().unwrap();
        roster.listed().iter().map(|it| (it.len, it.reached, it.stage)).collect::<Vec<_>>()
    };
    assert_eq!(listed(&mut disk), [(128, reached(1), Stage::Growing)]);
    let again = done(&mut disk, &place, write(128, 4, 2, false));
    assert!(matches!(again, Done::Written { result: Ok(()), .. }));
    assert_eq!(std::fs::read(&path).unwrap(), [[1; 128], [4; 128]].concat());
    assert_eq!(listed(&mut disk), [(256, reached(2), Stage::Growing)]);
}

/// A long file that goes is the next that is begun, until that ends.
#[test]
fn a_file_is_used_again() {
    let place = TestDisk::new();
    let dir = place.dir.path();
    let name = |segment| FileName { segment, generation: 0 };
    let path = |segment: u64| dir.join(name(segment).to_string());
    let len = |segment| std::fs::metadata(path(segment)).unwrap().len();
    let write = |segment, position, is_last| Op::Write {
        file: name(segment),
        position,
        head: vec![7; 128],
        body: Body::default(),
        reached: Default::default(),
        sync: true,
        is_last,
        is_background: false,
    };
    let make = |segment, len| File::create(path(segment)).unwrap().set_len(len).unwrap();
    make(0, LEN);
    make(1, LEN / 2 - 1);
    make(2, LEN / 2 * 3 + 1);
    make(3, LEN / 2 * 3);
    make(9, LEN / 2);
    make(10, LEN);
    std::fs::hard_link(path(0), dir.join("copy")).unwrap();
    std::fs::write(dir.join(SPARE), "of a process that was killed").unwrap();
    let mut disk = place.disk();
    let has_spare = || dir.join(SPARE).exists();
    assert!(has_spare(), "nothing is changed so far");
    disk.enlist(&RosterLines::default(), false).unwrap();
    assert!(!has_spare());
    let remove = |segment, next_len| Op::Remove { file: name(segment), next_len };
    // Not one that somebody else has, nor a short one or a long one; one is enough, unless the next are shorter.
    for (segment, next_len, spare) in [
        (0, LEN, None),
        (1, LEN, None),
        (2, LEN, None),
        (3, LEN, Some(LEN / 2 * 3)),
        (9, LEN, Some(LEN / 2 * 3)),
        (10, LEN - 1, Some(LEN)),
    ] {
        let removed = done(&mut disk, &place, remove(segment, next_len));
        assert!(matches!(removed, Done::Removed(Ok(()))));
        assert!(!path(segment).exists());
        let kept = std::fs::metadata(dir.join(SPARE)).map(|it| it.len());
        assert_eq!(kept.ok(), spare, "{segment}");
    }
    // One that went with an earlier try is gone, too.
    let again = done(&mut disk, &place, remove(9, LEN - 1));
    assert!(matches!(again, Done::Removed(Ok(()))));
    for (segment, position, is_last, want) in
        [(4, 0, false, LEN), (4, 128, false, LEN), (4, 256, true, 384), (5, 0, false, 128)]
    {
        let written = done(&mut disk, &place, write(segment, position, is_last));
        assert!(matches!(written, Done::Written { result: Ok(()), .. }));
        assert_eq!((len(segment), has_spare()), (want, false));
    }
    let bytes = std::fs::read(path(4)).unwrap();
    assert_eq!(bytes, [7; 384]);
    // What is kept and not used goes with the disk.
    make(6, LEN);
    make(7, LEN);
    done(&mut disk, &place, remove(6, LEN));
    done(&mut disk, &place, write(8, 0, false));
    done(&mut disk, &place, remove(7, LEN));
    assert_eq!((len(8), has_spare()), (LEN, true));
    // While the disk is below the limit of the alarm nothing is kept.
    disk.room.set_limit(u64::MAX);
    let until = Instant::now() + Duration::from_secs(20);
    while has_spare() {
        assert!(Instant::now() < until, "though nobody writes");
        std::thread::yield_now();
    }
    assert_eq!(len(8), 128);
    make(14, LEN);
    done(&mut disk, &place, remove(14, LEN));
    assert!(!has_spare());
    disk.room.set_limit(0);
    make(6, LEN);
    make(7, LEN);
    done(&mut disk, &place, remove(6, LEN));
    done(&mut disk, &place, write(15, 0, false));
    done(&mut disk, &place, remove(7, LEN));
    assert_eq!((len(15), has_spare()), (LEN, true));
    drop(disk);
    assert_eq!((len(15), has_spare()), (128, false));
    // And what is behind the last write goes when the next will be shorter.
    let mut disk = place.disk();
    [11, 12].into_iter().for_each(|segment| make(segment, LEN));
    done(&mut disk, &place, remove(11, LEN));
    done(&mut disk, &place, write(13, 0, false));
    assert_eq!(len(13), LEN);
    done(&mut disk, &place, remove(12, LEN / 4));
    assert_eq!((len(13), has_spare()), (128, false));
}

mod contract {
    use super::*;
    use leveret_log::{
        AppendError, HoldError, Offset, ReadError, Record, SyncError, Usage, log_suite,
    };

    impl Log for Placed {
        fn append(
            &mut self,
            head: &[u8],
            parts: &[&[u8]],
            holders: &[Holder],
            keep: Keep,
        ) -> Result<Offset, AppendError> {
            self.log.append(head, parts, holders, keep)
        }
        fn persist(&mut self, at: Offset) -> Result<Offset, HoldError> {
            self.log.persist(at)
        }
        fn readable(&self) -> Offset {
            self.log.readable()
        }
        fn durable(&self) -> Offset {
            self.log.durable()
        }
        fn end(&self) -> Offset {
            self.log.end()
        }
        fn read(&self, at: Offset) -> Result<Record, ReadError> {
            self.log.read(at)
        }
        fn fetch(&mut self, soon: &[Offset]) {
            self.log.fetch(soon);
        }
        fn release(&mut self, at: Offset, holder: Holder) -> Result<(), HoldError> {
            self.log.release(at, holder)
        }
        fn is_held(&self, at: Offset, holder: Holder) -> bool {
            self.log.is_held(at, holder)
        }
        fn collect(&mut self) -> Result<(), SyncError> {
            self.log.collect()
        }
        fn sync(&mut self) -> Result<(), SyncError> {
            self.log.sync()
        }
        fn moment(&self) -> Moment {
            self.log.moment()
        }
        fn sync_until(&mut self, until: Moment) -> Result<(), SyncError> {
            self.log.sync_until(until)
        }
        fn keeps_spares(&self) -> bool {
            self.log.keeps_spares()
        }
        fn relax(&mut self) {
            self.log.relax();
        }
        fn usage(&self) -> Usage {
            self.log.usage()
        }
    }

    log_suite!(
        || {
            let place = TestDisk::new();
            Placed { log: place.open(options()), place }
        },
        |it: &mut Placed| {
            it.log.sync().unwrap();
            while it.log.durable() < it.log.end() || it.log.usage().unwritten_bytes > 0 {
                it.place.wait();
                it.log.sync().unwrap();
            }
        }
    );
}

#[test]
fn pieces_of_a_file_come_joined() {
    let place = TestDisk::new();
    let mut log = place.open(options());
    let disk = log.disk();
    let (file, bytes) = (FileName { segment: 9, generation: 0 }, (0..=250).cycle());
    let bytes: Vec<u8> = bytes.take(200_000).collect();
    disk.write_now(file, 0, &bytes).unwrap();
    let mut read = |pieces: &[(usize, usize)]| {
        let piece = |&(position, len): &(usize, usize)| Piece { position: position as u64, len };
        disk.submit(Token(1), Op::Read { file, pieces: pieces.iter().map(piece).collect() });
        loop {
            place.wait();
            if let Some((Token(1), Done::Read(result))) = disk.poll() {
                return result;
            }
        }
    };
    // In memory of its own, and in a buffer that is used again.
    for pieces in
        [&[(10, 5), (100, 1), (99_000, 40)][..], &[(0, 1), (7, 90_000), (150_000, 50_000)]]
    {
        let want: Vec<_> = pieces.iter().map(|&(at, len)| &bytes[at..at + len]).collect();
        assert_eq!(read(pieces).unwrap(), want.concat());
    }
    assert!(read(&[(0, 10), (199_999, 2)]).is_err(), "one of them is not there");
}

/// The digests of what is sealed are made beside, and go with it; one of a damaged file is none.
#[test]
fn digests_are_made_and_go() {
    let place = TestDisk::new();
    let options =
        Options { segment_bytes: 64 << 10, digests: true, on_damage: OnDamage::Aside, ..options() };
    let holders = [Holder::new(1)];
    let mut log = place.open(options.clone());
    for _ in 0..200 {
        log.append(b"head", &[&[7; 1000]], &holders, Keep::Durable).unwrap();
        while log.durable() < log.end() {
            log.sync().unwrap();
            place.wait();
            log.collect().unwrap();
        }
    }
    let names = || {
        let entries = std::fs::read_dir(place.dir.path()).unwrap();
        let names = entries.map(|it| it.unwrap().file_name().into_string().unwrap());
        let (mut digests, mut files) = (Vec::new(), Vec::new());
        for name in names {
            digests.extend(FileName::of_digest(&name));
            files.extend(FileName::parse(&name));
        }
        digests.sort_unstable();
        files.sort_unstable();
        (digests, files)
    };
    log.reclaim();
    while names().0.len() + 1 < names().1.len() {
        place.wait();
        log.collect().unwrap();
    }
    let (digests, files) = names();
    assert!(files.len() > 3, "{files:?}");
    assert_eq!(digests, files[..files.len() - 1]);
    drop(log);

    std::fs::write(place.dir.path().join("0000000000000099.0.seg.digest"), "of nothing").unwrap();
    std::fs::write(place.dir.path().join("0000000000000000.0.seg.digest.new"), "half").unwrap();
    let (mut log, report) = FileLog::open(place.disk(), options, &mut |_| {}).unwrap();
    assert_eq!((report.digests, report.records), (digests.len() as u64, 200));
    assert_eq!(names(), (digests, files.clone()), "what is of no use went");
    let mut found = Vec::new();
    log.recover(&mut |it| found.push(it.at));
    assert_eq!(found.len(), 200);
    let in_first = found.iter().take(100);
    in_first.for_each(|&at| log.release(at, holders[0]).unwrap());
    log.reclaim();
    while names().1.contains(&files[0]) {
        log.sync().unwrap();
        place.wait();
        log.collect().unwrap();
    }
    assert!(!names().0.contains(&files[0]));
    drop(log);

    let mut disk = place.disk();
    let path = place.dir.path().join(files[1].to_string());
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[140] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let op = Op::Digest { file: files[1], len: bytes.len() as u64 };
    let result = done(&mut disk, &place, op);
    assert!(matches!(result, Done::Digested(Err(Undigested::Damaged(128)))), "{result:?}");
    assert!(!names().0.contains(&files[1]));
    let op = Op::Digest { file: FileName { segment: 77, generation: 0 }, len: 1000 };
    let result = done(&mut disk, &place, op);
    assert!(matches!(result, Done::Digested(Err(Undigested::Disk(_)))), "{result:?}");

    // Where room is short none is made.
    let of = files[2];
    let path = place.dir.path().join(of.digest());
    std::fs::remove_file(&path).unwrap();
    let len = std::fs::metadata(place.dir.path().join(of.to_string())).unwrap().len();
    let room = Arc::new(Room::of(place.dir.path()));
    let mut disk = place.disk_with(&room);
    room.set_limit(u64::MAX);
    let result = done(&mut disk, &place, Op::Digest { file: of, len });
    assert!(matches!(result, Done::Digested(Err(Undigested::Disk(_)))), "{result:?}");
    assert!(!path.exists());
    room.set_limit(0);
    let result = done(&mut disk, &place, Op::Digest { file: of, len });
    assert!(matches!(result, Done::Digested(Ok(()))), "{result:?}");
    // No more of one is read than one may have, and nothing else is read in its place.
    assert!(disk.digest(of).unwrap().len() > 128);
    File::options().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
    disk.digest(of).unwrap_err();
    std::fs::remove_file(&path).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o600.into()).unwrap();
    disk.digest(of).unwrap_err();
}
