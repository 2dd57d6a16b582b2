use leveret_broker::command::Answered;
use leveret_broker::message::{Message, Publish, Settle, Settlement};
use leveret_broker::stream::{StreamEvent, StreamId, StreamNews, StreamPlace};
use leveret_broker::transaction::TxId;
use leveret_queue::{Offset, UnackedId};
use leveret_topology::QueueId;

use super::*;
use crate::remote::{REPLIES_MAX, REPLY_BYTES};

const GROUP: GroupId = GroupId::new(0);

fn remote(letters: usize) -> RemoteShards {
    remote_of(1, letters)
}

fn remote_of(groups: u32, letters: usize) -> RemoteShards {
    RemoteShards::new(7, 3, Homes::among(groups), KeptMax { letters, ..KeptMax::default() })
}

fn publish(from: ConnectionId, confirm: u64) -> ToShard {
    let message = Publish {
        channel: 1,
        confirm,
        targets: [QueueId::new(0)].into_iter().collect(),
        persistent: true,
        priority: 0,
        expiration_ms: None,
        message: Message::from_parts(b"", b"", b"body"),
        shared: None,
    };
    ToShard::Publish { from, messages: vec![message] }
}

fn settle(from: ConnectionId) -> ToShard {
    let (queue, unacked, offset) = (QueueId::new(0), UnackedId::new(0), Offset::new(0));
    let settlements = vec![Settlement { queue, unacked, offset, how: Settle::Ack }];
    ToShard::Settle { from, settlements }
}

/// What is to be sent, in words.
fn sent(remote: &mut RemoteShards) -> Vec<String> {
    let word = |letter| match letter {
        ToLeader::Hello(hello) => {
            format!("hello {:?} of {}", hello.attaches, hello.connections.len())
        }
        ToLeader::Shard(_, ToShard::Numbered(it)) => format!("{} {}", it.letter.kind(), it.number),
        ToLeader::Shard(_, letter) => letter.kind().to_owned(),
        ToLeader::Opened(id) => format!("{} opened", id.number()),
        ToLeader::Ended(id) => format!("{} ended", id.number()),
        ToLeader::Session(id, _) => format!("to {id}"),
        ToLeader::NamesTaken(number) => format!("names {number}"),
        other => format!("{other:?}"),
    };
    std::iter::from_fn(|| remote.send_next()).map(word).collect()
}

fn names(number: u64, is_whole: bool, goes_on: bool) -> FromLeader {
    FromLeader::Names(NamesBatch { number, is_whole, goes_on, changes: Vec::new() })
}

/// A leader of this term begins, who has taken so many messages.
fn begins(remote: &mut RemoteShards, term: u64, taken: u64) -> Outbox {
    let mut out = Outbox::default();
    remote.begin(Vec::new());
    assert!(sent(remote)[0].starts_with("hello"));
    remote.hear(names(1, true, false), &mut out).expect("the first ones");
    remote.names_taken(1);
    let place = |next| StreamPlace { term: term << 32, next, agreed: next - 1 };
    let groups = (0..remote.groups.len()).map(|index| remote.homes.group_at(index));
    let streams = [place(taken + 1), place(1)];
    let begins_at = Offset::new(0);
    let shards = groups.map(|group| ShardTerm { group, begins_at, streams }).collect();
    let terms = LeaderTerms { names: term, shards };
    remote.hear(FromLeader::Begins(terms), &mut out).expect("it may begin");
    out
}

/// Who is told to pause, and to go on.
fn pauses(out: &Outbox) -> Vec<bool> {
    let of = |(_, letter): &(ConnectionId, ToSession)| match letter {
        ToSession::Paused(pauses) => Some(*pauses),
        _ => None,
    };
    out.sessions.iter().filter_map(of).collect()
}

/// A session counts its pauses: those of a leader that is gone, and those of its own node, may be there at once, and each ends once.
#[test]
fn what_a_leader_paused_goes_on_with_the_next() {
    let mut remote = remote(1);
    begins(&mut remote, 1, 0);
    let id = remote.node().connection(1);
    remote.opened(id);
    let mut out = Outbox::default();
    let paused = |pauses| FromLeader::Session(id, Some(GROUP), ToSession::Paused(pauses));
    for pauses in [true, true, false] {
        remote.hear(paused(pauses), &mut out).expect("a letter");
    }
    remote.to_shard(GROUP, publish(id, 1), &mut out);
    assert_eq!(pauses(&out), [true, true, false, true], "two of the leader's, one of its own");
    remote.lost();
    assert_eq!(pauses(&begins(&mut remote, 2, 0)), [false], "the room is still taken");
    let mut out = Outbox::default();
    remote.hear(paused(false), &mut out).expect("a letter");
    assert!(pauses(&out).is_empty(), "it ends none that this leader has not begun");
    let stream = StreamId { node: remote.node(), start: 3, class: StreamClass::Bodies };
    let news = StreamNews { stream, term: 2 << 32, what: StreamEvent::Agreed { low: 1, told: 1 } };
    remote.hear(FromLeader::News(GROUP, news), &mut out).expect("news");
    assert_eq!(pauses(&out), [false]);
}

#[test]
fn the_first_leader_asks_nobody_to_attach_and_the_next_one_all() {
    let mut remote = remote(9);
    assert!(!remote.is_open() && !remote.has_next());
    let out = begins(&mut remote, 1, 0);
    assert!(out.sessions.is_empty() && remote.is_open());
    assert_eq!(sent(&mut remote), ["names 1"]);
    let (one, two) = (remote.node().connection(1), remote.node().connection(2));
    remote.opened(one);
    assert_eq!(sent(&mut remote), ["1 opened"]);
    remote.lost();
    remote.opened(two);
    assert!(sent(&mut remote).is_empty());
    remote.begin(Vec::new());
    assert_eq!(sent(&mut remote), ["hello Some(1) of 2"]);
    let out = begins(&mut remote, 2, 0);
    let asked: Vec<ConnectionId> = out.sessions.iter().map(|(id, _)| *id).collect();
    assert_eq!(asked, [one, two]);
    let attach = |connection| {
        let (consumers, claims) = Default::default();
        let term = 2 << 32;
        let attachment = leveret_broker::message::Attachment {
            connection,
            term,
            behind: [0; 2],
            consumers,
            claims,
        };
        ToShard::Attach(Box::new(attachment))
    };
    let mut out = Outbox::default();
    remote.to_shard(GROUP, attach(one), &mut out);
    assert_eq!(sent(&mut remote), ["names 1", "Attach"]);
    remote.to_shard(GROUP, attach(two), &mut out);
    assert_eq!(sent(&mut remote), ["Attach", "Attached"]);
}

/// A node that never had sessions has nothing to attach, whoever led before.
#[test]
fn who_never_had_sessions_may_come_late() {
    let mut remote = remote(9);
    begins(&mut remote, 1, 0);
    remote.begin(Vec::new());
    assert_eq!(sent(&mut remote), ["hello None of 0"]);
}

#[test]
fn nothing_overtakes_a_letter_without_a_number() {
    let mut remote = remote(9);
    begins(&mut remote, 1, 0);
    let id = remote.node().connection(1);
    remote.opened(id);
    let mut out = Outbox::default();
    remote.to_shard(GROUP, publish(id, 1), &mut out);
    remote.to_shard(GROUP, settle(id), &mut out);
    remote.to_shard(GROUP, ToShard::Disconnected { connection: id, reply: None }, &mut out);
    remote.forgotten(id);
    remote.to_shard(GROUP, settle(id), &mut out);
    let want = ["names 1", "1 opened", "Publish 1", "Settle 1", "Disconnected", "1 ended"];
    let all = sent(&mut remote);
    assert_eq!(all[..want.len()], want);
    assert_eq!(all[want.len()..], ["Settle 2"]);
}

/// If this node ends before the owner of the names has heard that a session is over, the leader has to know of that session.
#[test]
fn the_end_of_a_session_is_told_behind_what_the_owner_of_the_names_hears() {
    let mut remote = remote(9);
    begins(&mut remote, 1, 0);
    let mut out = Outbox::default();
    let ends = |number: u64| ToMeta::Disconnected {
        connection: node_of(7).connection(number),
        reply: None,
    };
    (2..2 + COMMANDS_MAX).for_each(|number| remote.to_meta(ends(number), &mut out));
    let id = remote.node().connection(1);
    remote.opened(id);
    remote.to_meta(ends(1), &mut out);
    remote.forgotten(id);
    let is_ended = |letters: &[String]| letters.iter().any(|it| it == "1 ended");
    assert!(!is_ended(&sent(&mut remote)), "so many other commands wait for their answers");
    begins(&mut remote, 2, 0);
    let letters = sent(&mut remote);
    assert!(!is_ended(&letters) && letters.len() as u64 >= COMMANDS_MAX, "{}", letters.len());
    let stream = remote.commands.stream();
    let answer = CommandAnswer::Reply(Reply::Done);
    let answered = Answered { stream, term: 2, number: 1, answer };
    remote.hear(FromLeader::Answered(answered), &mut out).expect("an answer");
    let letters = sent(&mut remote);
    assert!(letters[0].contains("Disconnected") && is_ended(&letters[1..]), "{letters:?}");
    remote.begin(Vec::new());
    let hello = format!("hello Some(2) of {COMMANDS_MAX}");
    assert_eq!(sent(&mut remote), [hello], "nobody has answered");
}

#[test]
fn names_come_whole_and_in_order() {
    let mut out = Outbox::default();
    let mut hears = |letters: &[FromLeader]| {
        let mut remote = remote(9);
        remote.begin(Vec::new());
        sent(&mut remote);
        let mut heard = Vec::new();
        for letter in letters {
            let FromLeader::Names(batch) = letter else { continue };
            match remote.hear(FromLeader::Names(batch.clone()), &mut out) {
                Ok(Heard::Names(batch)) => heard.push(batch.number),
                Ok(_) => {}
                Err(_) => heard.push(0),
            }
        }
        heard
    };
    let whole = [names(5, true, true), names(5, true, false), names(6, false, true)];
    assert_eq!(hears(&whole), [5]);
    let gap = [names(5, true, false), names(7, false, false)];
    assert_eq!(hears(&gap), [5, 0]);
    assert_eq!(hears(&[names(1, false, false)]), [0], "what was there before is not known");
    assert_eq!(hears(&[names(1, true, true), names(2, true, false)]), [0], "another one");
}

/// What sessions of two nodes ask each other is asked again, and answered once.
#[test]
fn a_question_to_another_session_is_answered_once() {
    let mut remote = remote(9);
    begins(&mut remote, 1, 0);
    let (id, other) = (remote.node().connection(1), NodeId::ALONE.connection(4));
    remote.opened(id);
    let reply = ReplyTo { connection: id, channel: 1 };
    remote.to_session(other, ToSession::DirectReplyAsked { reply, channel: 2, token: 5 });
    assert_eq!(sent(&mut remote), ["names 1", "1 opened", "to 4"]);
    begins(&mut remote, 2, 0);
    assert_eq!(sent(&mut remote), ["names 1", "to 4"]);
    let mut out = Outbox::default();
    for _ in 0..2 {
        let answer = ToSession::Reply { channel: 1, reply: Reply::Gone };
        remote.hear(FromLeader::Session(id, None, answer), &mut out).expect("an answer");
    }
    assert_eq!(out.sessions.len(), 1);
    begins(&mut remote, 3, 0);
    assert_eq!(sent(&mut remote), ["names 1"]);
}

#[test]
fn what_a_leader_cannot_say_is_an_error() {
    let mut remote = remote(9);
    let mut out = Outbox::default();
    assert!(remote.hear(FromLeader::Beat, &mut out).is_err(), "there is no connection");
    remote.begin(Vec::new());
    assert!(remote.hear(FromLeader::Beat, &mut out).is_err(), "before hello");
    sent(&mut remote);
    let begin = |term: u64, group| {
        let place = StreamPlace { term, next: 1, agreed: 0 };
        let (group, begins_at, streams) = (GroupId::new(group), Offset::new(0), [place; 2]);
        let shards = vec![ShardTerm { group, begins_at, streams }];
        FromLeader::Begins(LeaderTerms { names: term, shards })
    };
    assert!(remote.hear(begin(5, 0), &mut out).is_err(), "before the names");
    remote.hear(names(1, true, false), &mut out).expect("names");
    remote.names_taken(2);
    assert!(remote.hear(begin(5, 0), &mut out).is_err(), "others were taken");
    remote.names_taken(1);
    assert!(remote.hear(begin(5, 1), &mut out).is_err(), "of another group");
    remote.hear(begin(5, 0), &mut out).expect("it begins");
    assert!(remote.hear(begin(6, 0), &mut out).is_err(), "twice");
    let stopped = FromLeader::Session(NodeId::ALONE.connection(1), None, ToSession::Stopped);
    assert!(remote.hear(stopped, &mut out).is_err(), "for a session of another node");
    let own = remote.node().connection(1);
    let stopped = FromLeader::Session(own, Some(GroupId::new(1)), ToSession::Stopped);
    assert!(remote.hear(stopped, &mut out).is_err(), "from a group that is not there");
    begins(&mut remote, 5, 0);
    remote.begin(Vec::new());
    sent(&mut remote);
    remote.hear(names(1, true, false), &mut out).expect("names");
    remote.names_taken(1);
    assert!(remote.hear(begin(4, 0), &mut out).is_err(), "of an earlier term");
}

/// Operators' questions are none of a session's: who asks is told so.
#[test]
fn what_no_session_asks_is_refused() {
    let mut remote = remote(9);
    let mut out = Outbox::default();
    let reply = ReplyTo { connection: remote.node().connection(1), channel: 0 };
    remote.to_meta(ToMeta::IsWell { reply }, &mut out);
    remote.to_shard(GROUP, ToShard::Sample { reply, begins: true }, &mut out);
    remote.to_shard(GROUP, ToShard::LogWoke, &mut out);
    let is_refusal = |(_, letter): &(ConnectionId, ToSession)| {
        matches!(letter, ToSession::Reply { reply: Reply::Refused { .. }, .. })
    };
    assert_eq!((out.sessions.len(), out.sessions.iter().all(is_refusal)), (2, true));
}

/// What happens is told within a bound, and there is room again once it is written. Nobody hears it before hello, and after the end.
#[test]
fn what_is_told_has_a_bound_in_bytes() {
    let told = |len: usize| Bytes::from(vec![0; len]);
    let mut remote = remote(10);
    assert!(!remote.told(told(1)), "nobody hears");
    begins(&mut remote, 1, 0);
    assert_eq!(sent(&mut remote), ["names 1"]);
    assert!(!remote.told(told(TOLD_BYTES_MAX + 1)));
    assert!(remote.told(told(TOLD_BYTES_MAX - 1)));
    assert!(!remote.told(told(2)));
    assert!(remote.told(told(1)));
    assert!(!remote.told(told(1)));
    // What somebody waits for is said all the same.
    remote.seen(1, told(5));
    let first = remote.send_next();
    assert!(matches!(first, Some(ToLeader::Told(it)) if it.len() == TOLD_BYTES_MAX - 1));
    assert!(remote.told(told(TOLD_BYTES_MAX - 1)));
    assert!(!remote.told(told(1)));
    begins(&mut remote, 2, 0);
    assert_eq!(sent(&mut remote), ["names 1"], "the rest was for the leader before");
    assert!(remote.told(told(TOLD_BYTES_MAX)));
}

/// The parts that are to be sent, in words.
fn parts_sent(remote: &mut RemoteShards) -> Vec<String> {
    let word = |letter| {
        let ToLeader::Shard(group, ToShard::Numbered(it)) = letter else { return None };
        let ToShard::Prepare { parts, messages, .. } = it.letter else { return None };
        Some(format!("{} of {parts} with {}", group.get(), messages.len()))
    };
    std::iter::from_fn(|| remote.send_next()).filter_map(word).collect()
}

/// Shards wait for all parts of a transaction, so each is sent to the next leader until it is answered, though its session is over. Of
/// one that is refused no part is to be, whatever the next leader has of it.
#[test]
fn a_part_of_a_transaction_is_kept_until_it_is_answered() {
    let mut remote = remote_of(2, 9);
    let groups = [0, 1].map(|index| remote.homes.group_at(index));
    begins(&mut remote, 1, 0);
    let id = remote.node().connection(1);
    remote.opened(id);
    let mut out = Outbox::default();
    for group in groups {
        let ToShard::Publish { messages, .. } = publish(id, 0) else { panic!("a publish") };
        let (reply, tx, settlements) =
            (ReplyTo { connection: id, channel: 1 }, TxId::new(9), Vec::new());
        let letter = ToShard::Prepare { reply, tx, parts: 2, messages, settlements };
        remote.to_shard(group, letter, &mut out);
    }
    let both = ["0 of 2 with 1", "1 of 2 with 1"];
    assert_eq!(parts_sent(&mut remote), both);
    for group in groups {
        let letter = ToShard::Disconnected { connection: id, reply: None };
        remote.to_shard(group, letter, &mut out);
    }
    remote.forgotten(id);
    begins(&mut remote, 2, 0);
    assert_eq!(parts_sent(&mut remote), both);

    let reply = || {
        let (code, text) = (ReplyCode::ResourceError, String::new());
        ToSession::Reply { channel: 1, reply: Reply::Refused { code, text } }
    };
    remote.hear(FromLeader::Session(id, Some(groups[0]), reply()), &mut out).expect("a letter");
    assert_eq!(parts_sent(&mut remote), [""; 0], "this leader knows of it");
    begins(&mut remote, 3, 0);
    assert_eq!(parts_sent(&mut remote), ["0 of 0 with 0", "1 of 0 with 0"]);
    begins(&mut remote, 4, 1);
    assert_eq!(parts_sent(&mut remote), ["1 of 0 with 0"]);
    remote.hear(FromLeader::Session(id, Some(groups[1]), reply()), &mut out).expect("a letter");
    begins(&mut remote, 5, 1);
    assert_eq!(parts_sent(&mut remote), [""; 0]);
}

fn reply(len: usize) -> ToSession {
    let message = Message::from_parts(b"", b"", &vec![0; len]);
    ToSession::DirectReply { channel: 1, token: 5, message }
}

/// Nobody who sends direct replies waits. So they have a bound, and hold up nobody else.
#[test]
fn direct_replies_have_a_bound_and_take_turns() {
    let mut remote = remote(10);
    begins(&mut remote, 1, 0);
    let other = NodeId::ALONE.connection(4);
    let len = 1 << 20;
    let fits = REPLIES_MAX / (len as u64 + REPLY_BYTES) + 1;
    (0..fits).for_each(|_| remote.to_session(other, reply(len)));
    assert_eq!(remote.lost_replies(), 0, "the last one goes beyond the bound");
    assert!(!remote.begins_to_lose_replies());
    remote.to_session(other, reply(1));
    assert_eq!(remote.lost_replies(), 1);
    assert!(remote.begins_to_lose_replies() && !remote.begins_to_lose_replies());
    let mut out = Outbox::default();
    let id = remote.node().connection(1);
    remote.to_shard(GROUP, publish(id, 1), &mut out);
    remote.to_shard(GROUP, publish(id, 2), &mut out);
    let letters = sent(&mut remote);
    let at = |word: &str| letters.iter().position(|it| it == word).expect("a message");
    assert_eq!(at("Publish 2") - at("Publish 1"), 2, "one of each in turn");
    assert_eq!(letters.len() as u64, 3 + fits);

    (0..fits).for_each(|_| remote.to_session(other, reply(len)));
    assert_eq!(remote.lost_replies(), 1, "there is room again");
    begins(&mut remote, 2, 0);
    assert_eq!(
        sent(&mut remote),
        ["names 1", "Publish 1", "Publish 2"],
        "replies were for that leader"
    );
    (0..fits).for_each(|_| remote.to_session(other, reply(len)));
    assert_eq!(remote.lost_replies(), 0, "what was for the leader before took no room");
    remote.to_session(other, reply(1));
    assert!(remote.begins_to_lose_replies(), "each connection tells of its own");
}
