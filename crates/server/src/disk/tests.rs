use std::sync::{Condvar, Mutex};

use leveret_log::file::Options;
use leveret_log::{FileLog, Holder, Keep, Log};

use super::writer::SPARE;
use super::*;

const SPARE_MIN: u64 = 32 << 20;

/// A directory of its own, and a bell that the disk rings.
struct Place {
    dir: tempfile::TempDir,
    bell: Arc<(Mutex<bool>, Condvar)>,
}

/// A log that keeps its directory for as long as it is there.
struct Placed {
    log: FileLog<RealDisk>,
    place: Place,
}

impl Place {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), bell: Arc::default() }
    }

    fn open(&self, options: Options) -> FileLog<RealDisk> {
        FileLog::open(self.disk(), options, &mut |_| {}).unwrap().0
    }

    fn disk(&self) -> RealDisk {
        let bell = Arc::clone(&self.bell);
        let wake = move || {
            *bell.0.lock().unwrap() = true;
            bell.1.notify_one();
        };
        RealDisk::open(self.dir.path(), "test", SPARE_MIN, Arc::new(wake), Arc::new(|| ())).unwrap()
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
fn what_was_synced_is_there_again() {
    let place = Place::new();
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
    assert!(
        RealDisk::open(place.dir.path(), "other", SPARE_MIN, Arc::new(|| ()), Arc::new(|| ()))
            .is_err(),
        "it is in use"
    );
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
fn done(disk: &mut RealDisk, place: &Place, op: Op) -> Done {
    disk.submit(Token(1), op);
    loop {
        if let Some((_, done)) = disk.poll() {
            return done;
        }
        place.wait();
    }
}

/// A long file that goes is the next that is begun, until that ends.
#[test]
fn a_file_is_used_again() {
    let place = Place::new();
    let dir = place.dir.path();
    let name = |segment| FileName { segment, generation: 0 };
    let path = |segment: u64| dir.join(name(segment).to_string());
    let len = |segment| std::fs::metadata(path(segment)).unwrap().len();
    let write = |segment, position, is_last| Op::Write {
        file: name(segment),
        position,
        head: vec![7; 128],
        body: Vec::new(),
        sync: true,
        is_last,
        is_background: false,
    };
    let make = |segment, len| File::create(path(segment)).unwrap().set_len(len).unwrap();
    make(0, SPARE_MIN);
    make(1, SPARE_MIN - 1);
    make(2, SPARE_MIN);
    make(3, SPARE_MIN);
    std::fs::hard_link(path(0), dir.join("copy")).unwrap();
    std::fs::write(dir.join(SPARE), "of a process that was killed").unwrap();
    let mut disk = place.disk();
    let has_spare = || dir.join(SPARE).exists();
    assert!(!has_spare());
    // Not one that somebody else has, nor a short one; and one is enough.
    for (segment, is_kept) in [(0, false), (1, false), (2, true), (3, true)] {
        let removed = done(&mut disk, &place, Op::Remove { file: name(segment) });
        assert!(matches!(removed, Done::Removed(Ok(()))));
        assert!(!path(segment).exists());
        assert_eq!(has_spare(), is_kept, "{segment}");
    }
    for (segment, position, is_last, want) in [
        (4, 0, false, SPARE_MIN),
        (4, 128, false, SPARE_MIN),
        (4, 256, true, 384),
        (5, 0, false, 128),
    ] {
        let written = done(&mut disk, &place, write(segment, position, is_last));
        assert!(matches!(written, Done::Written { result: Ok(()), .. }));
        assert_eq!((len(segment), has_spare()), (want, false));
    }
    let bytes = std::fs::read(path(4)).unwrap();
    assert_eq!(bytes, [7; 384]);
    // What is kept and not used goes with the disk.
    make(6, SPARE_MIN);
    make(7, SPARE_MIN);
    done(&mut disk, &place, Op::Remove { file: name(6) });
    done(&mut disk, &place, write(8, 0, false));
    done(&mut disk, &place, Op::Remove { file: name(7) });
    assert_eq!((len(8), has_spare()), (SPARE_MIN, true));
    drop(disk);
    assert_eq!((len(8), has_spare()), (128, false));
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
        fn collect(&mut self) -> Result<(), SyncError> {
            self.log.collect()
        }
        fn sync(&mut self) -> Result<(), SyncError> {
            self.log.sync()
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
            let place = Place::new();
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
    let place = Place::new();
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
