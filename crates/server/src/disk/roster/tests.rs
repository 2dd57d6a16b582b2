//! The list of files: what is written, and what is read of it.

use leveret_log::disk::BEGINNING;

use super::*;

fn list(dir: &Path) -> List {
    List::new(dir, Names::Other(Arc::new(AtomicU64::new(7))))
}

fn file(segment: u64) -> FileName {
    FileName { segment, generation: 0 }
}

fn reached(end: u64) -> Reached {
    Reached { end, sequence: end * 2 }
}

#[track_caller]
fn whole(dir: &Path) -> Vec<(u64, u64, u64)> {
    let found = List::read(dir).unwrap();
    let Roster::Whole(lines) = found.roster else { panic!("{found:?}") };
    let there = lines.files.iter().filter(|it| it.stage != Stage::Going);
    let mut all: Vec<_> = there.map(|it| (it.file.segment, it.len, it.reached.end)).collect();
    all.sort_unstable();
    all
}

#[test]
fn it_has_what_was_synced_and_not_what_is_to_go() {
    let dir = tempfile::tempdir().unwrap();
    let mut it = list(dir.path());
    it.enlist(&RosterLines::default(), false).unwrap();
    assert_eq!(List::read(dir.path()).unwrap().roster, Roster::None);
    it.begin().unwrap();
    assert_eq!(whole(dir.path()), []);
    for segment in 0..200 {
        it.begin().unwrap();
        it.synced(file(segment), (0, &[1; 128], 128), reached(segment), false).unwrap();
    }
    it.synced(file(3), (128, &[], 72), reached(9), false).unwrap();
    // Not one of which the beginning is not known.
    it.synced(file(777), (128, &[], 72), reached(9), false).unwrap();
    for segment in 5..200 {
        it.strike(file(segment)).unwrap();
    }
    (5..100).for_each(|segment| it.gone(file(segment)).unwrap());
    it.synced(file(300), (0, &[1; 500], 500), reached(1), false).unwrap();
    let want = [(0, 128, 0), (1, 128, 1), (2, 128, 2), (3, 200, 9), (4, 128, 4), (300, 500, 1)];
    assert_eq!(whole(dir.path()), want);
    assert_eq!(List::read(dir.path()).unwrap().names, 7);
    let Roster::Whole(RosterLines { files, .. }) = List::read(dir.path()).unwrap().roster else {
        panic!()
    };
    assert_eq!(files.iter().filter(|it| it.stage == Stage::Going).count(), 100);
    assert!(files.iter().all(|it| it.beginning == crc32c::crc32c(&[1; BEGINNING])));
    let mut again = list(dir.path());
    let floor = Floor { reached: reached(70), segment: 9 };
    let lines = RosterLines { files: files[..2].to_vec(), floor, point: None };
    again.enlist(&lines, false).unwrap();
    // What is written later does not forget it.
    for number in 500..600 {
        again.begin().unwrap();
        again.synced(file(number), (0, &[], 5), reached(1), false).unwrap();
    }
    let found = List::read(dir.path()).unwrap().roster;
    assert_eq!((found.floor(), found.listed().len()), (floor, 102));
    let heading = Some(Heading { through: 8, first: 9, as_of: 10, mark: 11 });
    let files = [Stage::Growing, Stage::Sealed, Stage::Going];
    let line = |stage| Listed { heading, stage, ..files_of(stage as u64) };
    let lines = RosterLines { files: files.map(line).to_vec(), floor, point: None };
    again.enlist(&lines, false).unwrap();
    assert_eq!(List::read(dir.path()).unwrap().roster, Roster::Whole(lines));
}

/// On a log that goes on and removes nothing, too.
#[test]
fn it_is_synced_when_a_file_is_begun_and_each_second() {
    let dir = tempfile::tempdir().unwrap();
    let mut it = list(dir.path());
    it.begin().unwrap();
    let settle = |it: &mut List, ms| it.settle(Instant::now() + Duration::from_millis(ms));
    it.synced(file(1), (0, &[1; 128], 128), reached(1), false).unwrap();
    settle(&mut it, 0).unwrap();
    assert_eq!(it.dirty_since, None, "a file was begun");
    for (ms, is_safe) in [(0, false), (500, false), (1001, true)] {
        it.synced(file(1), (128, &[], 72), reached(9), false).unwrap();
        settle(&mut it, ms).unwrap();
        assert_eq!(it.dirty_since.is_none(), is_safe, "{ms}");
    }
}

/// Each try to remove a file that stays would sync the list for nothing.
#[test]
fn a_file_is_struck_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut it = list(dir.path());
    it.begin().unwrap();
    for number in [1, 2] {
        it.synced(file(number), (0, &[1; 128], 128), reached(number), false).unwrap();
    }
    it.strike(file(1)).unwrap();
    assert_eq!(it.dirty_since, None);
    it.synced(file(2), (128, &[], 72), reached(9), false).unwrap();
    for _ in 0..3 {
        it.strike(file(1)).unwrap();
    }
    assert!(it.dirty_since.is_some(), "it was synced again");
    assert_eq!(whole(dir.path()), [(2, 200, 9)]);
    // What is begun under its name is not going.
    it.synced(file(1), (0, &[1; 128], 128), reached(10), false).unwrap();
    it.strike(file(1)).unwrap();
    assert_eq!(it.dirty_since, None);
}

/// What it cannot write is the end of it, but for want of room: then it says so, and is written anew.
#[test]
fn what_cannot_be_written_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let mut it = list(dir.path());
    let open = |path: &str| Some(OpenOptions::new().read(true).write(true).open(path).unwrap());
    let stored = |it: &mut List, number| {
        it.begin()?;
        it.synced(file(number), (0, &[1; 128], 128), reached(number), false)
    };
    (0..40).for_each(|number| stored(&mut it, number).unwrap());
    it.file = open("/dev/full");
    it.strike(file(1)).unwrap();
    it.gone(file(1)).unwrap();
    assert!(it.is_given_up());
    assert_eq!(List::read(dir.path()).unwrap().roster, Roster::GivenUp);
    it.settle(Instant::now()).unwrap();
    assert!(it.is_given_up(), "not at once again");
    it.synced(file(2), (128, &[], 72), reached(9), false).unwrap();
    it.settle(Instant::now() + BEHIND).unwrap();
    assert!(!it.is_given_up() && !dir.path().join(LOST).exists());
    let all = whole(dir.path());
    assert_eq!((all.len(), all[1]), (39, (2, 200, 9)));
    // There is no room for more of it: none for what it was to have either.
    let mut count = 40;
    while it.lines.iter().filter(|line| line.is_none()).count() > 1 {
        stored(&mut it, count).unwrap();
        count += 1;
    }
    let list = std::mem::replace(&mut it.file, open("/dev/full"));
    assert_eq!(it.begin(), Err(DiskError::Full));
    it.file = list;
    stored(&mut it, count).unwrap();
    assert_eq!(whole(dir.path()).len() as u64, count);
    // It cannot be synced.
    it.file = open("/dev/zero");
    let failed = it.strike(file(3)).unwrap_err();
    assert!(failed.to_string().contains("the list of files, "), "{failed}");
    assert_eq!(it.strike(file(4)), Err(failed.clone()), "nobody knows what was written");
    assert_eq!((stored(&mut it, 200), it.sync()), (Err(failed.clone()), Err(failed)));
}

fn files_of(segment: u64) -> Listed {
    Listed::begun(file(segment), &[1; 200], 200, reached(segment))
}

/// As version 1 wrote it: two files.
#[test]
fn an_older_list_is_read_and_written_anew() {
    let dir = tempfile::tempdir().unwrap();
    let of = |at: usize, numbers: &[u64], index: u32| {
        let mut line = [0; LINE_1];
        for (to, number) in line[at..].chunks_exact_mut(8).zip(numbers) {
            to.copy_from_slice(&number.to_le_bytes());
        }
        line[56..60].copy_from_slice(&index.to_le_bytes());
        let crc = crc32c::crc32c(&line[..60]);
        line[60..].copy_from_slice(&crc.to_le_bytes());
        line
    };
    let first = of(0, &[u64::from_le_bytes(*MAGIC), 1 | 3 << 32], 0);
    let lines = [[4, 1, 500, 60, 70, 8], [5, 0, 600, 80, 90, 8]];
    let mut bytes = first.to_vec();
    for (index, numbers) in lines.iter().enumerate() {
        let with_rest = [&numbers[..], &[7 | 1 << 32]].concat();
        bytes.extend(of(0, &with_rest, index as u32));
    }
    bytes.extend(of(0, &[], 2));
    std::fs::write(dir.path().join(NAME), &bytes).unwrap();
    let found = List::read(dir.path()).unwrap();
    let listed = |[segment, generation, len, end, sequence, _]: [u64; 6]| Listed {
        file: FileName { segment, generation },
        len,
        beginning: 7,
        reached: Reached { end, sequence },
        heading: None,
        stage: Stage::Growing,
    };
    let files = lines.map(listed).to_vec();
    let lines = RosterLines { files, ..RosterLines::default() };
    assert_eq!((&found.roster, found.names), (&Roster::Whole(lines.clone()), 8));
    list(dir.path()).enlist(&lines, false).unwrap();
    let now = std::fs::read(dir.path().join(NAME)).unwrap();
    assert_eq!((u32_at(&now, 8), parse(&now).found().roster), (FORMAT, Roster::Whole(lines)));
}

/// It is written with the list, and stays until there is another.
#[test]
fn the_number_of_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let start = || List::read(dir.path()).unwrap().start;
    let files = RosterLines { files: vec![files_of(1)], ..RosterLines::default() };
    let mut it = list(dir.path());
    it.set_start(3);
    it.enlist(&files, false).unwrap();
    assert!(!it.is_there(), "an older version left files and no list");
    it.begin().unwrap();
    assert_eq!((it.is_there(), start()), (true, 3));
    let mut again = list(dir.path());
    again.enlist(&files, false).unwrap();
    assert_eq!(start(), 3, "nobody told it of another");
    again.write_start(4).unwrap();
    assert_eq!(start(), 4);
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let room = again.file.replace(full);
    again.write_start(5).unwrap();
    again.file = room;
    assert_eq!((start(), again.is_given_up()), (4, false), "there was no room");
    for number in 2..60 {
        again.begin().unwrap();
        again.synced(file(number), (0, &[], 5), reached(1), false).unwrap();
    }
    assert_eq!(start(), 5, "more lines are made");
    let mut empty = list(dir.path());
    std::fs::remove_file(dir.path().join(NAME)).unwrap();
    empty.set_start(6);
    empty.enlist(&RosterLines::default(), false).unwrap();
    assert_eq!((empty.is_there(), start()), (true, 6), "it is not one that was emptied");
}

fn point(number: u64, members: usize) -> Point {
    let members = (0..members).map(|it| it as u8).collect::<Vec<_>>().into();
    Point { at: BatchName { number, term: 3 }, members }
}

/// Each write of its two copies may be torn between two lines: then it is the one before, or the new one.
#[test]
fn a_point_is_there_twice() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(NAME);
    let bytes = || std::fs::read(&path).unwrap();
    let found = |bytes: &[u8]| parse(bytes).found().roster;
    let mut it = list(dir.path());
    it.begin().unwrap();
    for number in 0..40 {
        it.begin().unwrap();
        it.synced(file(number), (0, &[1; 128], 128), reached(number), false).unwrap();
    }
    assert_eq!(u32_at(&bytes(), 8), FORMAT, "nothing is new without a point");
    let mut points = vec![point(7, 70), point(9, 200), point(12, 3), point(13, 0)];
    points.extend([point(14, 900), point(15, 1000)]);
    let mut before = None;
    for to in points {
        let was = bytes();
        it.set_point(to.clone()).unwrap();
        let now = bytes();
        assert_eq!(u32_at(&now, 8), FORMAT_WITH_POINT);
        assert_eq!((found(&now).point(), whole(dir.path()).len()), (Some(&to), 40));
        let parts = parse(&now).parts;
        for lines in (0..=2 * parts).filter(|_| parse(&was).parts == parts) {
            let torn = [&now[..LINE * (1 + lines)], &was[LINE * (1 + lines)..]].concat();
            let Roster::Whole(lines_of) = found(&torn) else { panic!("{lines} lines") };
            let want = if lines < parts { before.as_ref() } else { Some(&to) };
            assert_eq!(lines_of.point.as_ref(), want, "{lines} of {parts}");
            // A start makes two of it again, or the next move could tear the only one.
            std::fs::write(&path, &torn).unwrap();
            list(dir.path()).enlist(&lines_of, true).unwrap();
            assert_eq!((parse(&bytes()).has_it, found(&bytes()).point()), ([true; 2], want));
        }
        std::fs::write(&path, &now).unwrap();
        it = list(dir.path());
        let Roster::Whole(lines) = found(&now) else { panic!() };
        it.enlist(&lines, true).unwrap();
        for number in 0..40 {
            it.synced(file(number), (128, &[], 72), reached(number), false).unwrap();
        }
        before = Some(to);
    }
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let room = it.file.replace(full);
    assert_eq!(it.set_point(point(20, 3)), Err(DiskError::Full));
    it.file = room;
    assert_eq!(List::read(dir.path()).unwrap().roster.point(), before.as_ref());
    it.set_point(point(21, 3)).unwrap();
    let bytes = bytes();
    for at in 0..bytes.len() {
        let mut bytes = bytes.clone();
        bytes[at] ^= 1 << (at % 8);
        let Roster::Damaged(lines, _) = found(&bytes) else { panic!("{at}") };
        assert!(at < LINE || lines.point == Some(point(21, 3)), "{at}");
    }
}

/// A log whose list says more than is known here is not one that lacks something.
#[test]
fn what_a_later_version_wrote_is_no_damage() {
    let dir = tempfile::tempdir().unwrap();
    list(dir.path()).enlist(&RosterLines::default(), true).unwrap();
    let path = dir.path().join(NAME);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[8..12].copy_from_slice(&(FORMAT_WITH_POINT + 1).to_le_bytes());
    let sum = crc32c::crc32c(&bytes[..LINE - 4]);
    bytes[LINE - 4..LINE].copy_from_slice(&sum.to_le_bytes());
    std::fs::write(&path, &bytes).unwrap();
    let error = List::read(dir.path()).unwrap_err();
    assert!(error.to_string().contains("later version"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
}

#[test]
fn damage_is_seen() {
    let dir = tempfile::tempdir().unwrap();
    let mut it = list(dir.path());
    it.enlist(&RosterLines::default(), true).unwrap();
    (0..5).for_each(|number| {
        it.synced(file(number), (0, &[1; 128], 128), reached(number), false).unwrap()
    });
    let bytes = std::fs::read(dir.path().join(NAME)).unwrap();
    for at in 0..bytes.len() {
        let mut bytes = bytes.clone();
        bytes[at] ^= 1 << (at % 8);
        assert!(matches!(parse(&bytes).found().roster, Roster::Damaged(..)), "{at}");
    }
    for len in 1..bytes.len() {
        assert!(matches!(parse(&bytes[..len]).found().roster, Roster::Damaged(..)), "{len}");
    }
    assert_eq!(parse(&[]).found().roster, Roster::Whole(RosterLines::default()));
    for junk in [&b"x"[..], &[0; 64], &[0; 4096], &[255; 640]] {
        assert!(matches!(parse(junk).found().roster, Roster::Damaged(..)));
    }
}
