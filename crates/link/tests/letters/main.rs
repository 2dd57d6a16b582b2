//! Letters become bytes and letters again.

mod any;
mod nodes;
mod noise;
mod remote;

use std::fmt::Write as _;

use any::Seeded;
use bytes::Bytes;
use leveret_broker::message::{
    AdminCommand, ConnectionId, Message, Reply, Settlement, Span, ToMeta, ToSession, ToShard,
};
use leveret_broker::record::join_names;
use leveret_broker::transaction::TxId;
use leveret_counting as counting;
use leveret_link::frame::{Class, Envelope, Kind, Letter};
use leveret_link::letters::{
    Arrived, NotSent, read, write_news, write_to_meta, write_to_session, write_to_shard,
};
use leveret_link::payload::{Payload, Writer};
use leveret_topology::{GroupId, Imported, QueueId};

const GROUP: GroupId = GroupId::new(1);

/// Of what answers.
const TERM: u64 = 9;

/// Writes a letter, whoever it is for.
fn write(letter: &Arrived) -> Result<Letter, NotSent> {
    write_with(letter, &mut Writer::default())
}

fn write_with(letter: &Arrived, to: &mut Writer) -> Result<Letter, NotSent> {
    Ok(match letter {
        Arrived::ToShard(letter) => write_to_shard(letter, GROUP, to)?,
        Arrived::ToMeta(letter) => write_to_meta(letter, GROUP, to)?,
        Arrived::ToSession(session, letter) => {
            write_to_session(*session, letter, (GROUP, TERM), to)?
        }
        Arrived::News(news) => write_news(news, GROUP, to),
    })
}

fn letter(kind: Kind, payload: Payload) -> Letter {
    Letter { envelope: Envelope { kind, again: false, group: GROUP, number: 17 }, payload }
}

fn read_back(letter: &Letter) -> Result<Arrived, String> {
    read(letter).map_err(|error| error.to_string())
}

/// All letters that travel, with any fields.
fn any_letters(mut any: Seeded) -> Vec<Arrived> {
    let shards = any.for_shards().into_iter().map(Arrived::ToShard);
    let metas = any.for_meta().into_iter().map(Arrived::ToMeta);
    let session = ConnectionId::from_bits(any.next());
    let sessions = any.for_sessions().into_iter();
    let sessions = sessions.map(|letter| Arrived::ToSession(session, letter));
    let mut all: Vec<_> = shards.chain(metas).chain(sessions).collect();
    all.extend(any.news().into_iter().map(Arrived::News));
    all.extend(any.attaching().into_iter().map(Arrived::ToShard));
    let attach = ToSession::Attach { group: GROUP, term: any.word(), begins_at: any.offset() };
    all.push(Arrived::ToSession(session, attach));
    let (allow, states) = any.allowing(GROUP);
    all.push(Arrived::ToShard(allow));
    all.push(Arrived::ToSession(session, states));
    let others = any.for_other_nodes().into_iter();
    all.extend(others.map(|letter| Arrived::ToSession(session, letter)));
    all.extend(any.commands().into_iter().map(Arrived::ToMeta));
    let (letters, news) = any.waiting();
    all.extend(letters.into_iter().map(Arrived::ToShard));
    all.extend(news.into_iter().map(Arrived::News));
    all
}

/// The same bytes in other pieces.
fn split(payload: &Payload, any: &mut Seeded) -> Payload {
    let (bytes, mut split) = (Bytes::from(payload.to_vec()), Payload::default());
    let mut at = 0;
    while at < bytes.len() {
        let most = [2, 10, 3000][any.below(3)];
        let end = bytes.len().min(at + 1 + any.below(most));
        split.push(bytes.slice(at..end));
        at = end;
    }
    split
}

#[test]
fn letters_come_as_they_were() {
    for seed in 0..300 {
        let mut any = Seeded::new(seed);
        for sent in any_letters(Seeded::new(seed)) {
            let went = write(&sent).unwrap();
            let mut whole = went.clone();
            whole.payload = Bytes::from(went.payload.to_vec()).into();
            let came = read_back(&whole).unwrap();
            assert_eq!(format!("{came:?}"), format!("{sent:?}"), "seed {seed}");
            // In whatever pieces it comes, the same is read.
            let mut in_pieces = went.clone();
            in_pieces.payload = split(&went.payload, &mut any);
            let came = read_back(&in_pieces).unwrap();
            assert!(write(&came).unwrap() == went, "seed {seed}: {sent:?} became {came:?}");
        }
    }
}

/// What was given back comes as the settlements of the group, with a number or without.
#[test]
fn what_was_given_back_is_settled() {
    for seed in 0..200 {
        let settled = |sent: &ToShard| {
            let ToShard::GiveBack { from, unsettled } = sent else { panic!("{sent:?}") };
            let settlements: Vec<Settlement> = unsettled.of(GROUP, 0, usize::MAX).collect();
            ToShard::Settle { from: *from, settlements }
        };
        let sent = Seeded::new(seed).give_back();
        let want = settled(&sent);
        let came = read_back(&write(&Arrived::ToShard(sent)).unwrap()).unwrap();
        assert_eq!(format!("{came:?}"), format!("{:?}", Arrived::ToShard(want)), "seed {seed}");

        let sent = Seeded::new(seed).give_back();
        let want = Seeded::new(seed + 1).numbered(settled(&sent));
        let sent = Seeded::new(seed + 1).numbered(sent);
        let came = read_back(&write(&Arrived::ToShard(sent)).unwrap()).unwrap();
        assert_eq!(format!("{came:?}"), format!("{:?}", Arrived::ToShard(want)), "seed {seed}");
    }
}

/// The number of a stream's letter and the term of an answer are on the envelope.
#[test]
fn envelopes() {
    let numbered = |number| {
        let letter = ToShard::Settle { from: ConnectionId::NOBODY, settlements: Vec::new() };
        let ToShard::Numbered(mut numbered) = Seeded::new(1).numbered(letter) else { panic!() };
        numbered.number = number;
        write(&Arrived::ToShard(ToShard::Numbered(numbered))).unwrap()
    };
    let answer = ToSession::Confirm { channel: 1, first: 1, last: 1, ok: true };
    let answer = write(&Arrived::ToSession(ConnectionId::NOBODY, answer)).unwrap();
    let question = write(&Arrived::ToShard(ToShard::Decide { tx: TxId::new(1), commit: true }));
    let numbers = [numbered(7), answer, question.unwrap()].map(|it| it.envelope.number);
    assert_eq!(numbers, [7, TERM, 0]);
    let error = read_back(&numbered(0)).unwrap_err();
    assert!(error.ends_with("is wrong: a stream whose number cannot be"), "{error}");
}

/// A body in many pieces: none of it is copied, at either end.
#[test]
fn long_bodies_are_not_copied() {
    let body: Vec<Bytes> = (0..20).map(|at| vec![at; 10_000].into()).collect();
    let message = Message::with_body(&join_names("x", "k"), &[0, 0], body.clone());
    let letter = ToSession::DirectReply { channel: 1, token: 2, message };
    let mut writer = Writer::default();
    let to = ConnectionId::from_bits(5);
    let went = write_to_session(to, &letter, (GROUP, TERM), &mut writer).unwrap();
    let payload = &went.payload;
    let came = read_back(&went).unwrap();
    let Arrived::ToSession(_, ToSession::DirectReply { message, .. }) = &came else {
        panic!("{came:?}");
    };
    let pieces = |pieces: &[Bytes]| pieces.iter().map(|it| it.as_ptr()).collect::<Vec<_>>();
    assert_eq!(pieces(message.more()), pieces(&body));
    assert_eq!(pieces(&payload.pieces()[1..]), pieces(&body));
}

/// A message that was a whole record is the same as one in parts, once it came.
#[test]
fn a_record_is_sent_as_its_message() {
    let publish = Seeded::new(3).publish();
    let head = leveret_broker::record::Head::of(&publish, 5);
    let record = publish.message.clone().into_record(&head);
    assert!(record.record().is_some());
    let both = [publish.message, record].map(|message| {
        let letter = ToSession::DirectReply { channel: 1, token: 2, message };
        write(&Arrived::ToSession(ConnectionId::NOBODY, letter)).unwrap()
    });
    assert!(both[0] == both[1]);
}

/// A long list of queues is written once, for all messages of a letter that share it, and is one again.
#[test]
fn long_lists_are_written_once() {
    let mut publish = Seeded::new(1).publish();
    publish.targets = (0..1000).map(QueueId::new).collect();
    let messages = vec![publish; 100];
    let sent = ToShard::Publish { from: ConnectionId::NOBODY, messages };
    let one = write(&Arrived::ToShard(sent)).unwrap();
    let Ok(Arrived::ToShard(ToShard::Publish { messages, .. })) = read_back(&one) else {
        panic!("a publish");
    };
    assert!(messages.iter().all(|it| it.targets.as_ptr() == messages[0].targets.as_ptr()));
}

/// A letter's bytes behind its words, and the end of its line.
fn put_line(found: &mut String, payload: &Payload) {
    payload.to_vec().iter().for_each(|byte| {
        let _ = write!(found, "{byte:02x}");
    });
    found.push('\n');
}

#[track_caller]
fn assert_golden(found: &str, golden: &str) {
    for (found, golden) in found.lines().zip(golden.lines()) {
        assert_eq!(found, golden, "today's bytes are others");
    }
    let more = found.get(golden.len()..).unwrap_or_default();
    assert_eq!(found.len(), golden.len(), "each letter has a line: {more}");
}

/// The bytes that another version has to understand: a line for each letter, its kind, its number or term, and its bytes.
#[test]
fn golden() {
    const GOLDEN: &str = include_str!("../golden/letters-1.txt");
    let mut found = String::new();
    for letter in any_letters(Seeded::brief(1)) {
        let Letter { envelope, payload } = write(&letter).unwrap();
        let _ = write!(found, "{} {} ", envelope.kind.byte(), envelope.number);
        put_line(&mut found, &payload);
    }
    assert_golden(&found, GOLDEN);
    for line in golden_lines() {
        let came = read_back(&line).unwrap();
        // Who answers says the term: it is not in what is read.
        assert!(write(&came).unwrap().payload == line.payload);
    }
}

/// Whatever is read has a line, and so was written by these tests.
#[test]
fn each_letter_has_a_line() {
    let is_known = |number: u8| {
        let kind = Kind::new(Class::Letters, number);
        let bytes = Bytes::from(vec![0; 8]);
        let why = read_back(&letter(kind, bytes.into())).err().unwrap_or_default();
        !why.contains("unknown letter") && !why.contains("unknown kind")
    };
    let known: Vec<u8> = (0..64).filter(|&number| is_known(number)).collect();
    let mut lines: Vec<u8> = golden_lines().iter().map(|it| it.envelope.kind.number()).collect();
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(known, lines);
}

fn golden_lines() -> Vec<Letter> {
    let lines = include_str!("../golden/letters-1.txt").lines();
    let parse = |line: &str| {
        let mut words = line.split(' ');
        let mut word = || words.next().unwrap();
        let kind = Kind::from_byte(word().parse().unwrap()).unwrap();
        let number = word().parse().unwrap();
        let digits = word().as_bytes().chunks(2);
        let bytes = digits.map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16));
        let bytes: Bytes = bytes.collect::<Result<_, _>>().unwrap();
        let envelope = Envelope { kind, again: false, group: GROUP, number };
        Letter { envelope, payload: bytes.into() }
    };
    lines.map(parse).collect()
}

#[test]
fn damage_and_noise() {
    noise::check(&golden_lines(), Class::Letters, read, |came| {
        write(came).expect("what came can go");
    });
}

/// Each letter cut at each byte, and with a byte more.
#[test]
fn lengths_are_checked() {
    for Letter { envelope, payload } in golden_lines() {
        let bytes = payload.to_vec();
        let with = |bytes: &[u8]| {
            let payload = Bytes::copy_from_slice(bytes).into();
            read_back(&Letter { envelope, payload })
        };
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
    let connection = [0, 0, 0, 0, 1, 0, 0, 0];
    let of = |rest: &[u8]| [&connection[..], rest].concat();
    // A publish of one message: flags, channel, confirm, targets, lengths of names, properties, body.
    check(1, of(&[1, 16, 1, 1, 0, 2, 2, 0, 0, 0, 0, 0]), "unknown flags 0x10");
    check(1, of(&[1, 4, 1, 1, 2, 2, 0, 0, 0, 0, 0]),     "an entry as the one before it, and there is none");
    check(1, of(&[1, 0, 1, 1, 0, 2, 2, 0, 0, 1, 0, 0]),  "a message whose names are none");
    check(1, of(&[1, 0, 1, 1, 0, 2, 2, 0, 0, 0, 0, 8]),  "a message whose properties are none");
    check(1, of(&[2, 0, 1, 1, 0, 2, 2, 0, 0, 0, 0, 0]),  "it is shorter than it says");
    check(1, of(&[1, 0, 0xff, 0xff, 4, 0, 2, 2, 0, 0, 0, 0, 0]), "a number that is too large");
    check(1, of(&[1, 0, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 2, 2, 0, 0, 0, 0, 0]), "a number that is too large");
    check(1, of(&[1, 0, 1, 1, 0, 2, 2, 0x80, 0x80, 0x80, 0x80, 0x10, 0, 0, 0, 0]), "a number that is too large");
    check(1, of(&[1, 0, 1, 1, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 2, 0, 0, 0, 0, 0]), "it is shorter than it says");
    check(2, of(&[1, 4, 0, 0]),                          "an entry as the one before it, and there is none");
    check(2, of(&[1, 8, 0, 0, 0]),                       "unknown flags 0x08");
    check(14, vec![1, 0xff, 0, 0, 0, 0, 0],              "a text that is not UTF-8");
    check(14, vec![0, 3, 0, 0, 0, 0],                    "unknown origin 3");
    check(33, of(&[0xff, 0xff, 4]),                      "group 81919, which cannot be");
    check(35, vec![1, 0, 1, 1, 36],                      "unknown letter to the owner of the names 36");
    check(35, vec![1, 0, 1, 1, 34, 0, 0, 0, 0, 0, 0, 0, 0, 0], "unknown numbered command 34");
    check(36, vec![],                                    "unknown letter to the owner of the names 36");
    check(52, of(&[]),                                   "unknown letter to a session 52");
    check(58, vec![1],                                   "unknown kind of letter 122");
    check(43, of(&[0, 17]),                              "unknown answer 17");
    check(43, of(&[0, 13, 1, 0]),                        "unknown reply code 1");
    check(22, vec![0, 0, 0, 1],                          "a stream whose node cannot be");
    check(22, vec![1, 0, 0, 0, 0, 9],                    "unknown numbered letter 9");
    check(56, vec![1, 0, 2, 0, 0],                       "unknown class of stream 2");
    check(56, vec![1, 0, 0, 3, 1, 2, 1],                 "a stream whose messages cannot be");
    check(56, [&[1, 0, 0, 2, 1, 0, 1][..], &[255; 9], &[1]].concat(), "a stream whose messages cannot be");
    check(59, of(&[1, 0, 1, 1, 3]),                      "unknown whereabouts 3");
    check(56, vec![1, 0, 1, 4, 0],                       "unknown news 4");
    check(0, vec![],                                     "unknown kind of letter 64");
}

#[track_caller]
fn check(number: u8, bytes: Vec<u8>, want: &str) {
    let kind = Kind::new(Class::Letters, number);
    let error = read_back(&letter(kind, Bytes::from(bytes).into())).unwrap_err();
    let kind = kind.byte();
    assert_eq!(error, format!("a letter of kind {kind} for group 1, number 17, is wrong: {want}"));
}

/// Whoever posts what does not travel is told.
#[test]
fn what_stays() {
    let shard = |letter| write(&Arrived::ToShard(letter)).unwrap_err().to_string();
    let session = |letter| write(&Arrived::ToSession(ConnectionId::NOBODY, letter)).unwrap_err();
    let fault = "does not leave its process: whoever posts it to another node has a fault";
    assert_eq!(shard(ToShard::Continue), format!("the letter Continue {fault}"));
    assert_eq!(session(ToSession::LoggedIn(None)), NotSent::Stays("LoggedIn"));
    let user = AdminCommand::DeleteUser { name: "guest".into() };
    let (by, reply) = (
        Box::default(),
        leveret_broker::message::ReplyTo { connection: ConnectionId::NOBODY, channel: 0 },
    );
    let admin = ToMeta::Admin { by, reply, command: Box::new(user) };
    let get = ToShard::Get { reply, queue: QueueId::new(1), no_ack: true };
    let get = Seeded::new(1).numbered(get);
    assert_eq!(shard(get), "the letter Get cannot be sent to another node yet");
    let error = write(&Arrived::ToMeta(admin)).unwrap_err();
    assert_eq!(error.to_string(), "the letter Admin cannot be sent to another node yet");
    let imported =
        ToSession::Reply { channel: 1, reply: Reply::Imported(Box::<Imported>::default()) };
    assert_eq!(session(imported), NotSent::NotYet("Imported"));
}

/// Hot path: a writer allocates nothing for a message once it is warm; a reader its list.
#[test]
fn allocations() {
    let mut any = Seeded::new(7);
    let mut publish = any.publish();
    publish.targets = [QueueId::new(3)].into_iter().collect();
    publish.message = Message::new(
        Bytes::from_static(b"\x01x\x01k\0\0a body of some bytes"),
        Span::new(0, 4),
        Span::new(4, 6),
        Span::new(6, 26),
        Vec::new(),
    );
    let mut delivery = any.delivery();
    delivery.record = Bytes::from(vec![0x10; 50]);
    let letters = [
        Arrived::ToShard(ToShard::Publish {
            from: ConnectionId::NOBODY,
            messages: vec![publish; 10],
        }),
        Arrived::ToSession(ConnectionId::NOBODY, ToSession::Deliver(vec![delivery; 10])),
    ];
    let mut writer = Writer::default();
    for sent in &letters {
        let mut write_one = || write_with(sent, &mut writer).unwrap();
        let letter = write_one();
        let before = counting::allocations();
        (0..1000).for_each(|_| drop(write_one()));
        let written = counting::allocations() - before;
        assert!(written <= 100, "{written} allocations for 1,000 letters");
        let before = counting::allocations();
        for _ in 0..1000 {
            read(&letter).unwrap();
        }
        assert_eq!(counting::allocations() - before, 1000, "its list, for each letter");
    }
}
