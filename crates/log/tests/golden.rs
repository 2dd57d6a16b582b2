//! Files as earlier versions wrote them: read today, and written today as they were then.
//!
//! A change of the format is a new number, a new file here, and a row in `docs/formats/segment.md`.

use leveret_log::disk::{FileName, SimDisk};
use leveret_log::file::{OnDamage, Options};
use leveret_log::suite::drive;
use leveret_log::{FileLog, Holder, Keep, Log, LogNumber, Offset, Shared};

const FORMAT_1: &[u8] = include_bytes!("golden/format-1.seg");
const FORMAT_2: &[u8] = include_bytes!("golden/format-2.seg");
const FORMAT_3: &[u8] = include_bytes!("golden/format-3.seg");
const FORMAT_4: &[u8] = include_bytes!("golden/format-4.seg");
/// The third, sealed, the file after it, and its digest: the last file has none.
const SEALED: &[u8] = include_bytes!("golden/digest-1.seg");
const AFTER_SEALED: &[u8] = include_bytes!("golden/digest-1.after.seg");
const DIGEST_1: &[u8] = include_bytes!("golden/digest-1.digest");
const FIRST: FileName = FileName { segment: 0, generation: 0 };
const SECOND: FileName = FileName { segment: 1, generation: 0 };

fn options() -> Options {
    Options { writer: "leveret 0.1.0".into(), seed: 7, spill_bytes: 0, ..Options::default() }
}

fn open(disk: &SimDisk) -> FileLog<SimDisk> {
    FileLog::open(disk.clone(), options(), &mut |_| {}).unwrap().0
}

/// One of everything that a file can have, but the seal. Log 0 has the bytes of one record for log 1, and the other
/// way around.
fn write() -> Vec<u8> {
    let disk = SimDisk::new(0);
    write_with(&mut open(&disk));
    disk.bytes_of(FIRST)
}

/// The same in a term, with a batch of each other kind: sealed by the next term, which has its own file.
fn write_with_terms() -> [Vec<u8>; 2] {
    let disk = SimDisk::new(0);
    let mut log = open(&disk);
    log.begin_term(3);
    drive(&mut log);
    log.set_agreed(2);
    log.append_members(b"members").unwrap();
    write_with(&mut log);
    log.begin_term(5);
    drive(&mut log);
    [disk.bytes_of(FIRST), disk.bytes_of(SECOND)]
}

/// The same file, as a start finds it that has digests: sealed, with the next one and with its own.
fn seal() -> [Vec<u8>; 3] {
    let disk = SimDisk::new(0);
    let segment_bytes = FORMAT_3.len() as u64;
    let options = Options { digests: true, segment_bytes, ..options() };
    let mut log = FileLog::open(disk.clone(), options, &mut |_| {}).unwrap().0;
    write_with(&mut log);
    // The next file is begun.
    for _ in 0..2 {
        log.append(b"more", &[&[1; 64]], &[Holder::new(1)], Keep::Durable).unwrap();
        drive(&mut log);
    }
    log.reclaim();
    drive(&mut log);
    while !disk.is_idle() {
        log.collect().unwrap();
    }
    let digests = disk.digests();
    let (_, digest) = digests.iter().find(|(name, _)| *name == FIRST).expect("it is sealed");
    [disk.bytes_of(FIRST), disk.bytes_of(SECOND), digest.clone()]
}

fn write_with(log: &mut FileLog<SimDisk>) {
    let other = Options { number: LogNumber::new(1), ..Options::default() };
    let mut other = FileLog::open(SimDisk::new(1), other, &mut |_| {}).unwrap().0;
    let names = [Holder::new(1), Holder::new(300), Holder::new(1 << 40)];
    log.set_spill_bytes(u64::MAX);
    let unwritten = log.append(b"later", &[b"straggler"], &names[..1], Keep::Volatile).unwrap();
    log.set_spill_bytes(0);
    let kept = log.append(b"head", &[b"bo", b"dy"], &names, Keep::Durable).unwrap();
    let spilled = log.append(&[], &[b"spilled"], &names[..2], Keep::Volatile).unwrap();
    let gone = log.append(&[], &[], &names[..1], Keep::Durable).unwrap();
    log.mark(kept, names[1], 200).unwrap();
    drive(log);
    log.release(kept, names[0]).unwrap();
    log.release(gone, names[0]).unwrap();
    log.mark(kept, names[2], 3).unwrap();
    log.persist(spilled).unwrap();
    log.persist(unwritten).unwrap();
    drive(log);
    let [theirs, ours] = [(); 2].map(|()| Shared::among((0..2).map(LogNumber::new)));
    let shared = b"headshared".as_slice().into();
    other.append_shared(&shared, 4, &names[..1], Keep::Durable, &theirs).unwrap();
    drive(&mut other);
    log.append_shared(&shared, 4, &names[..1], Keep::Durable, &theirs).unwrap();
    log.append_shared(&shared, 4, &names[..2], Keep::Durable, &ours).unwrap();
    drive(log);
    log.release(unwritten, names[0]).unwrap();
    drive(log);
}

#[test]
fn format_3_is_written_as_it_was() {
    assert_eq!(write(), FORMAT_3);
}

#[test]
fn format_4_is_written_as_it_was() {
    assert_eq!(write_with_terms().concat(), FORMAT_4);
}

#[test]
fn format_4_is_read() {
    let log_1 = Holder::of_log(LogNumber::new(1)).get();
    let len = write_with_terms()[0].len();
    let (first, second) = FORMAT_4.split_at(len);
    let files = [(FIRST, first), (SECOND, second)];
    check_files(&files, &[(6, b"head", &[1]), (7, b"head", &[1, 300, log_1])]);
}

#[test]
fn format_1_of_digests_is_made_as_it_was() {
    let [file, after, digest] = seal();
    assert_eq!(file, SEALED);
    assert_eq!(after, AFTER_SEALED);
    assert_eq!(digest, DIGEST_1);
}

/// What the digest says is what the file says.
#[test]
fn format_1_of_digests_is_read() {
    let found = |digest: Option<&[u8]>| {
        let disk = SimDisk::new(0);
        disk.put(FIRST, SEALED.to_vec());
        disk.put(SECOND, AFTER_SEALED.to_vec());
        digest.into_iter().for_each(|it| disk.put_digest(FIRST, it.to_vec()));
        let options = Options { digests: true, on_damage: OnDamage::Aside, ..options() };
        let (mut log, report) = FileLog::open(disk, options, &mut |_| {}).unwrap();
        let mut found = Vec::new();
        log.recover(&mut |it| found.push((it.at, it.head.to_vec(), it.holders.to_vec())));
        (report.digests, found)
    };
    let (none, from_file) = found(None);
    let (one, from_digest) = found(Some(DIGEST_1));
    assert_eq!((none, one), (0, 1), "the digest is believed");
    assert!(from_file.len() > 3);
    assert_eq!(from_digest, from_file);
}

#[test]
fn format_1_is_read() {
    check(FORMAT_1, &[]);
}

#[test]
fn formats_2_and_3_are_read() {
    let log_1 = Holder::of_log(LogNumber::new(1)).get();
    for file in [FORMAT_2, FORMAT_3] {
        check(file, &[(6, b"head", &[1]), (7, b"head", &[1, 300, log_1])]);
    }
}

/// The file has what the first format can say, and `more`: offset, head and holders of each.
#[track_caller]
fn check(file: &[u8], more: &[(u64, &[u8], &[u64])]) {
    check_files(&[(FIRST, file)], more);
}

#[track_caller]
fn check_files(files: &[(FileName, &[u8])], more: &[(u64, &[u8], &[u64])]) {
    let disk = SimDisk::new(0);
    files.iter().for_each(|(name, file)| disk.put(*name, file.to_vec()));
    let mut log = open(&disk);
    let mut found = Vec::new();
    log.recover(&mut |it| {
        let holders: Vec<_> = it.holders.iter().map(|(name, mark)| (name.get(), *mark)).collect();
        found.push((it.at.get(), it.head.to_vec(), holders));
    });
    let mut want = vec![
        (1, b"head".to_vec(), vec![(300, 200), (1 << 40, 3)]),
        (2, Vec::new(), vec![(1, 0), (300, 0)]),
    ];
    want.extend(more.iter().map(|(at, head, holders)| {
        (*at, head.to_vec(), holders.iter().map(|&holder| (holder, 0)).collect())
    }));
    assert_eq!(found, want);
    let at = Offset::new(1);
    log.fetch(&[at]);
    while log.read(at).is_err() {
        log.collect().unwrap();
    }
    assert_eq!(log.read(at).unwrap().bytes, b"headbody"[..]);
}
