//! Another log's files come into a directory.

use leveret_log::BatchName;
use leveret_log::disk::{Disk as _, Point, Roster};
use leveret_log::file::{Manifest, NoPiece};

use super::*;

fn options(follows: Option<BatchName>) -> Options {
    Options { segment_bytes: 20_000, cache_bytes: 0, follows, ..Options::default() }
}

impl TestDisk {
    fn settle(&self, log: &mut FileLog<RealDisk>) {
        loop {
            log.sync_made().unwrap();
            log.sync().unwrap();
            if log.stored() == log.last() && !log.is_writing() && log.notes() == 0 {
                return;
            }
            self.wait();
        }
    }
}

/// A leader's log of some files.
fn leader(place: &TestDisk) -> (FileLog<RealDisk>, Manifest) {
    let mut log = place.open(options(None));
    log.begin_term(1);
    place.settle(&mut log);
    for number in 0..100_u8 {
        log.append(b"h", &[&vec![number; 3_000]], &[Holder::new(1)], Keep::Durable).unwrap();
        place.settle(&mut log);
    }
    let at = log.stored();
    log.apply_to(at).unwrap();
    let point = Point { at, members: Bytes::from_static(b"who is a member") };
    let manifest = log.manifest(point).unwrap();
    assert!(manifest.files.len() > 10);
    (log, manifest)
}

/// Copies a directory.
fn copy(from: &TestDisk) -> TestDisk {
    let to = TestDisk::new();
    for entry in std::fs::read_dir(from.dir.path()).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.dir.path().join(entry.file_name())).unwrap();
    }
    to
}

fn records(log: &mut FileLog<RealDisk>) -> Vec<u64> {
    let mut found = Vec::new();
    log.recover(&mut |it| found.push(it.at.get()));
    found
}

#[test]
fn files_come_and_take_their_names() {
    let (leads, follows) = (TestDisk::new(), TestDisk::new());
    let (mut leader, manifest) = leader(&leads);
    // It has the first two files already.
    let mut follower = follows.open(options(Some(BatchName::NONE)));
    let names: Vec<_> = manifest.files.iter().map(|it| it.file).collect();
    let mut number = 0;
    while number < 100 {
        number += 1;
        match leader.batch(number) {
            Ok(batch) if batch.segment > 1 => break,
            Ok(batch) => drop(follower.copy(&batch).unwrap()),
            Err(_) => number -= 1,
        }
        leader.collect().unwrap();
    }
    follows.settle(&mut follower);
    let last = follower.last();
    drop(follower);
    let mut follower = follows.open(options(Some(last)));
    follower.receive(manifest.clone()).unwrap();
    let mut asked = Vec::new();
    while follower.arrived().is_none() {
        asked.extend(follower.wanted(60_000));
        match asked.pop().map(|name| (name, leader.piece(name))) {
            Some((_, Ok(piece))) => follower.take_piece(&piece).unwrap(),
            Some((name, Err(NoPiece::ToCome))) => {
                asked.insert(0, name);
                leads.wait();
            }
            Some((_, Err(error))) => panic!("{error}"),
            None => follows.wait(),
        }
        leader.collect().unwrap();
        follower.collect().unwrap();
    }
    let fetched = follower.fetched().unwrap();
    assert_eq!((fetched.bytes, fetched.of), (manifest.len(), manifest.len()));
    // Until it is installed a start finds the log as it was, and what came.
    let before = copy(&follows);
    assert_eq!(before.open(options(Some(BatchName::NONE))).last(), last);
    let mut again = before.open(options(Some(last)));
    again.receive(manifest.clone()).unwrap();
    while again.arrived().is_none() {
        before.wait();
        again.collect().unwrap();
    }
    drop(again);
    follower.install();
    while !follower.is_installed() {
        follows.wait();
        follower.collect().unwrap();
    }
    let want = records(&mut leads.open(options(None)));
    // The process may end between any two of the files that get their names.
    let came: Vec<_> =
        names.iter().filter(|it| follows.dir.path().join(it.coming()).exists()).collect();
    assert!(came.len() > 5 && came.len() < names.len(), "{came:?}");
    for count in 0..=came.len() {
        let place = copy(&follows);
        for file in &came[..count] {
            let path = |name: String| place.dir.path().join(name);
            std::fs::rename(path(file.coming()), path(file.to_string())).unwrap();
        }
        let mut log = place.open(options(Some(BatchName::NONE)));
        assert_eq!((log.last(), log.applied()), (manifest.point.at, Some(manifest.point.at)));
        assert_eq!(log.listed_point(), Some(&manifest.point));
        assert_eq!(log.disk().coming().unwrap(), []);
        drop(log);
        assert_eq!(records(&mut place.open(options(None))), want);
    }
    // In the same process the disk goes on with the new files.
    let disk = follower.into_disk();
    let follow = options(Some(BatchName::NONE));
    let mut follower = FileLog::open(disk, follow, &mut |_| {}).unwrap().0;
    leader.append(b"h", &[b"more"], &[Holder::new(1)], Keep::Durable).unwrap();
    leads.settle(&mut leader);
    follower.copy(&leader.batch(manifest.point.at.number + 1).unwrap()).unwrap();
    follows.settle(&mut follower);
    assert_eq!(follower.stored(), leader.stored());
    drop(follower);
    let want = records(&mut leads.open(options(None)));
    assert_eq!(records(&mut follows.open(options(None))), want);
}

/// The files of a log that is damaged are as files that came: none is asked for again that is whole. Nothing of it is a log any more,
/// whatever its list said.
#[test]
fn a_damaged_log_is_had_again() {
    let (leads, follows) = (TestDisk::new(), TestDisk::new());
    let (mut leader, manifest) = leader(&leads);
    let files = copy(&leads);
    let damaged = manifest.files[3].file;
    let path = files.dir.path().join(damaged.to_string());
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[20] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    for entry in std::fs::read_dir(files.dir.path()).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), follows.dir.path().join(entry.file_name())).unwrap();
    }
    let mut disk = follows.disk();
    disk.disown_now().unwrap();
    disk.disown_now().unwrap();
    assert_eq!((disk.list().unwrap(), disk.roster().unwrap()), (Vec::new(), Roster::None));
    drop(disk);
    let mut follower = follows.open(options(Some(BatchName::NONE)));
    assert_eq!(follower.last(), BatchName::NONE);
    follower.receive(manifest.clone()).unwrap();
    let mut came = 0;
    while follower.arrived().is_none() {
        for name in follower.wanted(1 << 20) {
            assert_eq!(name.file, damaged, "the others are whole");
            let piece = loop {
                match leader.piece(name) {
                    Err(NoPiece::ToCome) => leads.wait(),
                    piece => break piece.unwrap(),
                }
                leader.collect().unwrap();
            };
            came += piece.bytes.len() as u64;
            follower.take_piece(&piece).unwrap();
        }
        follows.wait();
        follower.collect().unwrap();
    }
    assert_eq!(came, manifest.files[3].len);
}
