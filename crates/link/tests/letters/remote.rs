//! What a node of sessions and the node that leads write to each other.

use std::fmt::Write as _;

use bytes::Bytes;
use leveret_broker::command::{Answered, CommandAnswer, CommandStream};
use leveret_broker::flow::Alarm;
use leveret_broker::message::{
    Brought, FromLeader, LeaderTerms, Message, NamesBatch, Publish, Reply, SessionsHello,
    ShardTerm, Targets, ToLeader, ToSession, ToShard,
};
use leveret_broker::stream::{StreamClass, StreamId, StreamPlace};
use leveret_link::frame::{Class, Envelope, Kind, Letter};
use leveret_link::letters::{read_from_leader, read_to_leader, write_from_leader, write_to_leader};
use leveret_link::payload::Writer;
use leveret_topology::{BindingId, Change, EntityKey, ExchangeId, GroupId, QueueId, VhostId};

use crate::any::Seeded;
use crate::{assert_golden, noise, put_line, split};

fn change(any: &mut Seeded, key: EntityKey) -> Change {
    let record = any.maybe(|any| (0..any.below(40)).map(|_| any.next() as u8).collect());
    Change { key, is_stored: any.is(), record }
}

/// One of each kind of thing.
fn changes(any: &mut Seeded) -> Vec<Change> {
    let vhost = VhostId::new(any.half());
    let pair = |any: &mut Seeded| Box::new((any.text().into(), any.text().into()));
    let keys = [
        EntityKey::Ids,
        EntityKey::Vhost(vhost),
        EntityKey::User(any.text().into()),
        EntityKey::Permission(vhost, any.text().into()),
        EntityKey::TopicPermission(vhost, pair(any)),
        EntityKey::GlobalParameter(any.text().into()),
        EntityKey::Parameter(vhost, pair(any)),
        EntityKey::Policy(vhost, any.text().into()),
        EntityKey::OperatorPolicy(vhost, any.text().into()),
        EntityKey::Exchange(ExchangeId::new(any.word())),
        EntityKey::Queue(QueueId::new(any.word())),
        EntityKey::Binding(BindingId::new(any.word())),
        EntityKey::Tracing(vhost),
    ];
    keys.into_iter().map(|key| change(any, key)).collect()
}

/// One of each letter of a node of sessions.
fn to_leader(any: &mut Seeded) -> Vec<ToLeader> {
    let letter = ToShard::Settle { from: any.connection(), settlements: Vec::new() };
    let numbered = any.numbered(letter);
    let commands = any.commands();
    let mut all = vec![
        ToLeader::Hello(SessionsHello {
            raft_id: any.next(),
            start: any.half(),
            attaches: any.maybe(Seeded::word),
            connections: any.some(4, Seeded::connection),
            queues: changes(any)
                .into_iter()
                .map(|change| Brought { change, unbinds: any.some(2, Seeded::word) })
                .collect(),
        }),
        ToLeader::Opened(any.connection()),
        ToLeader::Ended(any.connection()),
        ToLeader::Shard(any.group(), numbered),
        ToLeader::Session(any.connection(), ToSession::Paused(any.is())),
        ToLeader::NamesTaken(any.word()),
        ToLeader::Beat,
    ];
    all.extend(commands.into_iter().map(ToLeader::Meta));
    all.push(ToLeader::Seen(300, Bytes::from_static(b"seen")));
    all.push(ToLeader::Told(Bytes::from_static(b"told")));
    all.push(ToLeader::Uses(Bytes::from_static(b"uses")));
    all
}

/// One of each letter of the node that leads.
fn from_leader(any: &mut Seeded) -> Vec<FromLeader> {
    let place =
        |any: &mut Seeded| StreamPlace { term: any.word(), next: any.word(), agreed: any.word() };
    let shard = |any: &mut Seeded| {
        let (group, begins_at) = (any.group(), any.offset());
        ShardTerm { group, begins_at, streams: [place(any), place(any)] }
    };
    let terms = LeaderTerms { names: any.word(), shards: any.some(4, shard) };
    let answers = [
        CommandAnswer::Reply(Reply::Done),
        CommandAnswer::AskShard(QueueId::new(any.word()), any.group()),
    ];
    let answers = answers.map(|answer| {
        let StreamId { node, start, .. } = any.stream(StreamClass::Acks);
        let stream = CommandStream { node, start };
        FromLeader::Answered(Answered { stream, term: any.word(), number: any.word(), answer })
    });
    let batch = NamesBatch {
        number: any.word(),
        is_whole: any.is(),
        goes_on: any.is(),
        changes: changes(any),
    };
    let letter =
        |any: &mut Seeded| ToSession::Reply { channel: any.half() as u16, reply: Reply::Done };
    let mut all = vec![
        FromLeader::Names(batch),
        FromLeader::Begins(terms),
        FromLeader::Session(any.connection(), None, letter(any)),
        FromLeader::Session(any.connection(), Some(any.group()), letter(any)),
        FromLeader::Alarm(Alarm { memory: any.is(), disk: any.is(), stops_all: any.is() }),
        FromLeader::Over(any.text().into()),
        FromLeader::Beat,
    ];
    all.extend(answers);
    all.extend(any.news().into_iter().map(|mut news| {
        news.term = 5;
        FromLeader::News(any.group(), news)
    }));
    all.push(FromLeader::Look(300, Bytes::from_static(b"look")));
    all.push(FromLeader::Uses(Bytes::from_static(b"else")));
    all
}

fn sent(letter: &ToLeader) -> Letter {
    write_to_leader(letter, &mut Writer::default()).unwrap()
}

fn told(letter: &FromLeader) -> Letter {
    write_from_leader(letter, &mut Writer::default()).unwrap()
}

/// A sender leaves messages of nothing in the places of those that are confirmed: a letter may have no others.
#[test]
fn what_is_left_of_confirmed_messages_comes() {
    let mut any = Seeded::new(0);
    let nothing = Publish {
        confirm: 0,
        targets: Targets::default(),
        message: Message::empty(),
        ..any.publish()
    };
    let messages = vec![nothing.clone(), any.publish(), nothing];
    for messages in [messages[..1].to_vec(), messages] {
        let letter = ToShard::Publish { from: any.connection(), messages };
        let numbered = any.numbered(letter);
        let letter = ToLeader::Shard(any.group(), numbered);
        let came = read_to_leader(&sent(&letter)).expect("a letter");
        assert_eq!(format!("{came:?}"), format!("{letter:?}"));
    }
}

#[test]
fn letters_come_as_they_were() {
    for seed in 0..300 {
        let mut any = Seeded::new(seed);
        for letter in to_leader(&mut Seeded::new(seed)) {
            let mut went = sent(&letter);
            went.payload = split(&went.payload, &mut any);
            let came = read_to_leader(&went).unwrap();
            assert_eq!(format!("{came:?}"), format!("{letter:?}"), "seed {seed}");
        }
        for letter in from_leader(&mut Seeded::new(seed)) {
            let mut went = told(&letter);
            went.payload = split(&went.payload, &mut any);
            let came = read_from_leader(&went).unwrap();
            assert_eq!(format!("{came:?}"), format!("{letter:?}"), "seed {seed}");
        }
    }
}

/// Each letter cut at each byte, and with a byte more.
#[test]
fn lengths_are_checked() {
    let check = |letter: Letter, is_read: &dyn Fn(&Letter) -> bool| {
        let bytes = letter.payload.to_vec();
        let with = |bytes: &[u8]| {
            let payload = Bytes::copy_from_slice(bytes).into();
            is_read(&Letter { envelope: letter.envelope, payload })
        };
        for cut in 0..bytes.len() {
            assert!(!with(&bytes[..cut]), "{letter:?} is cut at {cut}");
        }
        // A beat has no bytes, and nobody reads any.
        assert!(bytes.is_empty() || !with(&[&bytes[..], &[0]].concat()), "{letter:?} is longer");
    };
    let letters = to_leader(&mut Seeded::brief(1));
    letters.iter().for_each(|it| check(sent(it), &|it| read_to_leader(it).is_ok()));
    let letters = from_leader(&mut Seeded::brief(1));
    letters.iter().for_each(|it| check(told(it), &|it| read_from_leader(it).is_ok()));
}

#[test]
fn damage_and_noise() {
    let letters: Vec<_> = to_leader(&mut Seeded::brief(2)).iter().map(sent).collect();
    noise::check(&letters, Class::Letters, read_to_leader, |came| {
        write_to_leader(came, &mut Writer::default()).expect("what came can go");
    });
    let letters: Vec<_> = from_leader(&mut Seeded::brief(2)).iter().map(told).collect();
    noise::check(&letters, Class::Letters, read_from_leader, |came| {
        write_from_leader(came, &mut Writer::default()).expect("what came can go");
    });
}

/// What one side says is nothing that the other one may say.
#[test]
fn each_side_has_its_letters() {
    for letter in to_leader(&mut Seeded::new(1)) {
        // A letter to a session means something both ways.
        let is_both = matches!(letter, ToLeader::Beat | ToLeader::Session(..));
        assert_eq!(read_from_leader(&sent(&letter)).is_ok(), is_both, "{letter:?}");
    }
    let group = GroupId::new(1);
    let kind = Kind::new(Class::Letters, 58);
    let with = |bytes: &'static [u8]| Letter {
        envelope: Envelope { kind, again: false, group, number: 0 },
        payload: Bytes::from_static(bytes).into(),
    };
    let error = read_to_leader(&with(&[4])).unwrap_err().to_string();
    assert!(error.ends_with("is wrong: unknown letter to a leader 4"), "{error}");
    let error = read_from_leader(&with(&[7, 8])).unwrap_err().to_string();
    assert!(error.ends_with("is wrong: unknown flags 0x08"), "{error}");
}

/// The bytes that another version has to understand: a line for each letter, its kind, its group, its number, and its bytes.
#[test]
fn golden() {
    const GOLDEN: &str = include_str!("../golden/remote-1.txt");
    let mut any = Seeded::brief(1);
    let mut letters: Vec<_> = to_leader(&mut any).iter().map(sent).collect();
    letters.extend(from_leader(&mut any).iter().map(told));
    let mut found = String::new();
    for Letter { envelope: Envelope { kind, group, number, .. }, payload } in letters {
        let _ = write!(found, "{} {} {number} ", kind.byte(), group.get());
        put_line(&mut found, &payload);
    }
    assert_golden(&found, GOLDEN);
}
