//! What nodes and replicated logs say becomes bytes and the same again.

use std::fmt::Write as _;
use std::num::NonZeroU128;

use bytes::Bytes;
use leveret_link::frame::{Class, Envelope, Kind, Letter};
use leveret_link::hello::{ClusterId, RaftId, Urgency};
use leveret_link::letters::{
    Founding, GroupStatus, GroupTold, Joining, NodeLetter, NodeNumbers, NodeStatus, WrongLetter,
};
use leveret_link::payload::{Payload, Writer};
use leveret_log::disk::{self, FileName, Heading};
use leveret_log::file::{BatchCopy, Manifest, ManifestFile, PieceCopy, PieceName};
use leveret_log::{BatchName, Offset};
use leveret_replica::{
    Batch, Body, Change, GroupFacts, MemberId, Members, Message, Point, RecordLetter, Refill, Step,
};
use leveret_topology::GroupId;

use crate::any::Seeded;
use crate::{assert_golden, noise, put_line, split};

fn write(letter: &NodeLetter) -> Letter {
    letter.write(&mut Writer::default())
}

fn name(any: &mut Seeded) -> BatchName {
    BatchName { number: any.word(), term: any.word() }
}

fn change(any: &mut Seeded) -> Change {
    let steps = any.some(4, |any| {
        let of = MemberId(any.next());
        [Step::Voter(of), Step::Learner(of), Step::Remove(of)][any.below(3)]
    });
    Change::of(steps)
}

fn members(any: &mut Seeded) -> Members {
    let mut some = || any.some(4, |any| MemberId(any.next()));
    Members { voters: some(), learners: some(), outgoing: some(), learners_next: some() }
}

/// A copy, in one piece as those are that came.
fn copy(any: &mut Seeded) -> BatchCopy {
    let beginning = any.body().into();
    let body = any.body();
    let pieces = if body.is_empty() { Vec::new() } else { vec![body.into()] };
    BatchCopy { segment: any.word(), position: any.word(), beginning, pieces }
}

fn of_files(any: &mut Seeded) -> impl Iterator<Item = Refill> {
    let file = |any: &mut Seeded| FileName { segment: any.word(), generation: any.word() };
    let files = any.some(4, |any| {
        let (through, first, as_of, mark) = (any.word(), any.word(), any.word(), any.word());
        let heading = Heading { through, first, as_of, mark };
        ManifestFile { file: file(any), heading, len: any.word(), is_sealed: any.is() }
    });
    let piece = |any: &mut Seeded| {
        let (mark, position) = (any.word(), any.word());
        PieceName { file: file(any), mark, position, len: any.half() }
    };
    let point = disk::Point { at: name(any), members: any.body().into() };
    let copy = PieceCopy { name: piece(any), bytes: any.body().into(), crc: any.half() };
    let all = [
        Refill::WantManifest,
        Refill::Manifest(Manifest { point, files }),
        Refill::WantPieces(any.some(4, piece)),
        Refill::Piece(copy),
        Refill::Gone,
    ];
    all.into_iter()
}

fn any_letters(any: &mut Seeded) -> Vec<NodeLetter> {
    let batches =
        any.some(5, |any| (Batch { name: name(any), change: any.maybe(change) }, copy(any)));
    let (batches, copies): (Vec<_>, Vec<_>) = batches.into_iter().unzip();
    let point = Point { at: name(any), members: members(any) };
    let bodies = [
        Body::PreVote { last: name(any) },
        Body::PreVoted { granted: any.is() },
        Body::Vote { last: name(any), transfer: any.maybe(Seeded::word) },
        Body::Voted { granted: any.is(), lease_ms: any.word() },
        Body::Append { before: name(any), batches, agreed: any.word() },
        Body::Appended { number: any.word() },
        Body::Refused { number: any.word(), hint: name(any) },
        Body::Lacks { last: name(any) },
        Body::Heartbeat { agreed: any.word(), stamp: any.word() },
        Body::Heard { stamp: any.word() },
        Body::Behind { point },
        Body::TimeoutNow { stamp: any.word(), lease_ms: any.word() },
    ];
    let group = any.next() & 0xffff;
    let of_replica = bodies.into_iter().map(|body| {
        let copies = if matches!(body, Body::Append { .. }) { copies.clone() } else { Vec::new() };
        NodeLetter::Replica { group, message: Message { term: any.word(), body }, copies }
    });
    let mut all: Vec<_> = of_replica.collect();
    all.extend(of_files(&mut any.clone()).map(|refill| NodeLetter::Refill { group, refill }));
    let cluster = ClusterId(NonZeroU128::new(u128::from(any.next()) + 1).unwrap());
    let members = any.some(5, |any| (RaftId(any.next()), any.text()));
    all.push(NodeLetter::Found(Founding { cluster, members, shards: any.half() }));
    all.push(NodeLetter::Founded { cluster });
    let groups = any.some(4, |any| GroupStatus {
        group: any.word(),
        term: any.word(),
        leader: any.maybe(|any| RaftId(any.next())),
        last: any.word(),
        stored: any.word(),
        agreed: any.word(),
        matched: any.some(4, |any| (RaftId(any.next()), any.word())),
        refill_here: any.word(),
        refill_of: any.word(),
    });
    let numbers = NodeNumbers { uptime_ms: any.word(), relayed: any.word(), ..Default::default() };
    let (name, version) = (any.text(), any.text());
    let (started_ms, leads) = (any.word(), any.is());
    let listed = any.some(4, |any| any.text());
    let at = Offset::new(started_ms);
    let bytes = (!leads).then(|| Bytes::from(name.clone()));
    let status = NodeStatus { name, version, started_ms, leads, groups, numbers, listed };
    all.push(NodeLetter::Record { group, letter: RecordLetter::Wanted { at } });
    all.push(NodeLetter::Record { group, letter: RecordLetter::Found { at, bytes } });
    all.push(NodeLetter::Status(Box::new(status)));
    all.push(NodeLetter::Joining(Joining {
        cluster,
        shards: any.half(),
        founders: any.some(5, |any| RaftId(any.next())),
        as_of: any.word(),
        members: any.some(5, |any| (RaftId(any.next()), any.text())),
        forgotten: any.some(5, |any| (RaftId(any.next()), any.text())),
    }));
    let told = NodeLetter::Told(any.some(4, |any| GroupTold {
        group: any.word(),
        told: GroupFacts { term: any.word(), agreed: self::name(any), last: self::name(any) },
    }));
    all.insert(all.len() - 4, told);
    all
}

#[test]
fn letters_come_as_they_were() {
    for seed in 0..300 {
        let mut any = Seeded::new(seed);
        for sent in any_letters(&mut Seeded::new(seed)) {
            let went = write(&sent);
            assert_eq!(NodeLetter::read(&went).unwrap(), sent, "seed {seed}");
            let mut in_pieces = went.clone();
            in_pieces.payload = split(&went.payload, &mut any);
            assert_eq!(NodeLetter::read(&in_pieces).unwrap(), sent, "seed {seed}");
        }
    }
}

/// What of a batch is long is written from where it is; where it comes it is one piece.
#[test]
fn batches_are_shared() {
    let pieces = [vec![1; 200], vec![2; 9_000], vec![3; 20], vec![4; 300_000]].map(Bytes::from);
    let copy = BatchCopy { segment: 1, position: 2, pieces: pieces.to_vec(), ..Default::default() };
    let name = BatchName { number: 3, term: 4 };
    let batches = vec![Batch { name, change: None }];
    let body = Body::Append { before: BatchName { number: 2, term: 4 }, batches, agreed: 1 };
    let message = Message { term: 5, body };
    let went = write(&NodeLetter::Replica { group: 0, message, copies: vec![copy] });
    let is_there =
        |piece: &Bytes| went.payload.pieces().iter().any(|it| it.as_ptr() == piece.as_ptr());
    assert_eq!(pieces.each_ref().map(is_there), [false, true, false, true]);
    let NodeLetter::Replica { copies, .. } = NodeLetter::read(&went).unwrap() else { panic!() };
    assert_eq!(copies[0].pieces, [Bytes::from(pieces.concat())]);
    // What came in one piece is not copied.
    let whole = Letter { payload: Bytes::from(went.payload.to_vec()).into(), ..went };
    let NodeLetter::Replica { copies, .. } = NodeLetter::read(&whole).unwrap() else { panic!() };
    let (piece, all) = (&copies[0].pieces[0], &whole.payload.pieces()[0]);
    assert!(all.as_ptr_range().contains(&piece.as_ptr()));
}

/// Batches go over the bulk connection; what decides who leads does not wait for them.
#[test]
fn connections() {
    for letter in any_letters(&mut Seeded::brief(1)) {
        let is_bulk = matches!(
            letter,
            NodeLetter::Found(_)
                | NodeLetter::Joining(_)
                | NodeLetter::Record { .. }
                | NodeLetter::Refill { .. }
        ) || matches!(&letter, NodeLetter::Replica { copies, .. } if !copies.is_empty());
        let want = if is_bulk { Urgency::Bulk } else { Urgency::Urgent };
        assert_eq!(letter.urgency(), want, "{letter:?}");
    }
}

const GOLDEN: &str = include_str!("../golden/nodes-1.txt");

/// The bytes that another version has to understand: a line for each letter, its kind, group, number, and its bytes.
#[test]
fn golden() {
    let mut found = String::new();
    for letter in any_letters(&mut Seeded::brief(1)) {
        let Letter { envelope: Envelope { kind, group, number, .. }, payload } = write(&letter);
        let _ = write!(found, "{} {} {number} ", kind.byte(), group.get());
        put_line(&mut found, &payload);
    }
    assert_golden(&found, GOLDEN);
    for line in golden_lines() {
        assert!(write(&NodeLetter::read(&line).unwrap()) == line);
    }
}

fn golden_lines() -> Vec<Letter> {
    let parse = |line: &str| {
        let [kind, group, number, digits]: [&str; 4] =
            line.split(' ').collect::<Vec<_>>().try_into().unwrap();
        let kind = Kind::from_byte(kind.parse().unwrap()).unwrap();
        let group = GroupId::new(group.parse().unwrap());
        let number = number.parse().unwrap();
        let digits = digits.as_bytes().chunks(2);
        let bytes = digits.map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16));
        let bytes: Bytes = bytes.collect::<Result<_, _>>().unwrap();
        let envelope = Envelope { kind, again: false, group, number };
        Letter { envelope, payload: bytes.into() }
    };
    GOLDEN.lines().map(parse).collect()
}

/// Whatever is read has a line, and so was written by these tests.
#[test]
fn each_letter_has_a_line() {
    let is_known = |number: u8| {
        let why = read(Kind::new(Class::Batches, number), Bytes::from(vec![0; 8]).into());
        !why.err().unwrap_or_default().contains("unknown kind")
    };
    let known: Vec<u8> = (0..64).filter(|&number| is_known(number)).collect();
    let lines: Vec<u8> = golden_lines().iter().map(|it| it.envelope.kind.number()).collect();
    assert_eq!(known, lines);
}

fn read(kind: Kind, payload: Payload) -> Result<NodeLetter, String> {
    let envelope = Envelope { kind, again: false, group: GroupId::new(1), number: 17 };
    NodeLetter::read(&Letter { envelope, payload }).map_err(|why: WrongLetter| why.to_string())
}

/// Each letter cut at each byte, and with a byte more.
#[test]
fn lengths_are_checked() {
    for Letter { envelope, payload } in golden_lines() {
        let bytes = payload.to_vec();
        let with = |bytes: &[u8]| read(envelope.kind, Bytes::copy_from_slice(bytes).into());
        for cut in 0..bytes.len() {
            with(&bytes[..cut]).expect_err("it is cut");
        }
        let error = with(&[&bytes[..], &[0]].concat()).unwrap_err();
        assert!(error.ends_with("is wrong: 1 bytes too many"), "{error}");
    }
}

#[test]
#[rustfmt::skip] // a table
fn wrong_letters() {
    let huge = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
    let of = |parts: &[&[u8]]| parts.concat();
    check(2,  of(&[&[2]]),                              "unknown flags 0x02");
    check(5,  of(&[&[0, 0, 0], &huge]),                 "it is shorter than it says");
    check(5,  of(&[&[0, 0, 0, 1, 0, 0, 0, 0, 0, 0], &huge]), "it is shorter than it says");
    check(5,  of(&[&[0, 0, 0, 1, 0, 0, 0, 0, 0], &huge, &[0]]), "it is shorter than it says");
    check(5,  of(&[&[0, 0, 0, 1, 0, 0, 1, 1, 4], &[0; 20]]), "unknown step 4");
    check(11, of(&[&[0, 0], &huge, &[0; 8]]),           "it is shorter than it says");
    check(33, of(&[&[0; 16]]),                          "unknown cluster 0");
    check(38, of(&[&[1, 0xff], &[0; 20]]),              "a text that is not UTF-8");
    check(14, of(&[&[0, 0, 0], &huge, &[0; 8]]),        "it is shorter than it says");
    check(15, of(&[&huge, &[0; 8]]),                    "it is shorter than it says");
    check(0,  of(&[]),                                  "unknown kind of letter 0");
    check(18, of(&[]),                                  "unknown kind of letter 18");
    check(34, of(&[]),                                  "unknown kind of letter 34");
}

#[track_caller]
fn check(kind: u8, bytes: Vec<u8>, want: &str) {
    let error = read(Kind::new(Class::Batches, kind), Bytes::from(bytes).into()).unwrap_err();
    assert_eq!(error, format!("a letter of kind {kind} for group 1, number 17, is wrong: {want}"));
}

/// A letter of an actor is none, and neither is one of a group that cannot be.
#[test]
fn letters_of_others() {
    let error = read(Kind::new(Class::Letters, 1), Payload::default()).unwrap_err();
    assert!(error.ends_with("unknown kind of letter 65"), "{error}");
    let message = Message { term: 1, body: Body::Heard { stamp: 7 } };
    let went = write(&NodeLetter::Replica { group: 1 << 16, message, copies: Vec::new() });
    let error = NodeLetter::read(&went).unwrap_err().to_string();
    assert!(error.ends_with("group 65536, which cannot be"), "{error}");
}

#[test]
fn damage_and_noise() {
    noise::check(&golden_lines(), Class::Batches, NodeLetter::read, |came| {
        assert_eq!(NodeLetter::read(&write(came)).unwrap(), *came);
    });
}
