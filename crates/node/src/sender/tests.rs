use std::collections::{BTreeMap, BTreeSet};

use leveret_broker::message::{Attachment, Message, Settle, UnackedDelivery};
use leveret_queue::UnackedId;
use leveret_topology::QueueId;

use super::*;

const ME: ConnectionId = NodeId::ALONE.connection(1);
const OTHER: ConnectionId = NodeId::ALONE.connection(2);
const BODIES: StreamClass = StreamClass::Bodies;
const GROUP: GroupId = GroupId::new(0);

fn publish(from: ConnectionId, confirms: impl IntoIterator<Item = u64>) -> ToShard {
    let message = |confirm| Publish {
        channel: 1,
        confirm,
        targets: Default::default(),
        persistent: true,
        priority: 0,
        expiration_ms: None,
        message: Message::from_parts(b"", b"", b"some bytes"),
        shared: None,
    };
    ToShard::Publish { from, messages: confirms.into_iter().map(message).collect() }
}

fn settle(from: ConnectionId) -> ToShard {
    ToShard::Settle { from, settlements: Vec::new() }
}

fn sender(letters: usize) -> StreamSender {
    StreamSender::new(NodeId::ALONE, 1, KeptMax { letters, bytes: 1 << 20 })
}

fn keep(sender: &mut StreamSender, letter: ToShard) -> Vec<String> {
    told(|out| sender.keep(letter, out))
}

/// What sessions are told by that.
fn told(does: impl FnOnce(&mut Outbox)) -> Vec<String> {
    let mut out = Outbox::default();
    does(&mut out);
    let words = |(to, letter): (ConnectionId, ToSession)| match letter {
        ToSession::Confirm { first, last, ok, .. } => format!("{to}: {first}..{last} {ok}"),
        ToSession::ConfirmTimeout { first, last, .. } => format!("{to}: {first}..{last} late"),
        other => format!("{to}: {other:?}"),
    };
    out.sessions.into_iter().map(words).collect()
}

fn confirm(sender: &mut StreamSender, first: u64, last: u64, ok: bool) -> Vec<String> {
    told(|out| sender.tell(ME, ToSession::Confirm { channel: 1, first, last, ok }, out))
}

fn hear(sender: &mut StreamSender, class: StreamClass, what: StreamEvent) -> Vec<String> {
    let news = StreamNews { stream: sender.stream(class), term: sender.term, what };
    told(|out| sender.hear(&news, out))
}

fn begins(sender: &mut StreamSender, term: u64, next: u64, agreed: u64) -> Vec<String> {
    let acks = StreamPlace { term, next: 1, agreed: 0 };
    told(|out| sender.begins(StreamPlace { term, next, agreed }, acks, out))
}

fn sent(sender: &mut StreamSender, class: StreamClass) -> Vec<u64> {
    std::iter::from_fn(|| sender.next(class).map(|it| it.number)).collect()
}

#[test]
fn a_letter_is_kept_until_it_is_agreed_upon_and_told() {
    let mut sender = sender(100);
    keep(&mut sender, publish(ME, [1, 2]));
    keep(&mut sender, publish(ME, [3]));
    keep(&mut sender, publish(ME, [0]));
    keep(&mut sender, settle(ME));
    assert_eq!(sent(&mut sender, BODIES), [1, 2, 3]);
    assert_eq!(sent(&mut sender, StreamClass::Acks), [1], "numbers of its own");
    assert_eq!(sender.kept(), 4);
    hear(&mut sender, BODIES, StreamEvent::Agreed { low: 3, told: 3 });
    assert_eq!(sender.kept(), 3, "of the third nobody is told");
    assert_eq!(confirm(&mut sender, 2, 3, true), ["1: 2..3 true"]);
    assert_eq!(sender.kept(), 2);
    assert_eq!(confirm(&mut sender, 1, 1, false), ["1: 1..1 false"]);
    hear(&mut sender, StreamClass::Acks, StreamEvent::Agreed { low: 1, told: 1 });
    assert_eq!((sender.kept(), sender.last(BODIES)), (0, 3));
    // Told before it is agreed upon.
    keep(&mut sender, publish(ME, [4]));
    confirm(&mut sender, 4, 4, true);
    assert_eq!(sender.kept(), 1);
    hear(&mut sender, BODIES, StreamEvent::Agreed { low: 4, told: 4 });
    assert_eq!(sender.kept(), 0);
}

fn waits(first: u32, last: u32, at: Option<u64>) -> StreamEvent {
    StreamEvent::Waits { number: 1, first, last, at: at.map(Offset::new) }
}

/// Of the letters that are sent again, what is asked for: by the numbers of the confirms.
fn asked(sender: &mut StreamSender) -> Vec<String> {
    let words = |it: &AskedMessage| {
        let AskedMessage { place, confirm, .. } = it;
        match &it.whereabouts {
            Whereabouts::Memory(message) => {
                format!("{place} {confirm} of {} bytes", message.message.body_len())
            }
            Whereabouts::Log(_, at) => format!("{place} {confirm} at {}", at.get()),
            Whereabouts::Nowhere => format!("{place} {confirm}"),
        }
    };
    let letters = std::iter::from_fn(|| sender.next(BODIES));
    let all = letters.flat_map(|numbered| match numbered.letter {
        ToShard::Ask { messages, .. } => messages.iter().map(words).collect(),
        ToShard::Publish { messages, .. } => vec![format!("{} messages", messages.len())],
        other => panic!("{other:?}"),
    });
    all.collect()
}

/// A message that waits for an ack is kept for the next shard until the log has it, or its verdict came: and then for its name alone, as
/// it may wait for ever.
#[test]
fn what_waits_in_memory_alone_is_kept_until_the_log_has_it() {
    let mut sender = sender(3);
    keep(&mut sender, publish(ME, [1, 2, 3, 4, 5]));
    keep(&mut sender, publish(ME, [6]));
    sent(&mut sender, BODIES);
    // Before it is known that the letter is agreed upon, too.
    hear(&mut sender, BODIES, waits(1, 1, None));
    assert_eq!(confirm(&mut sender, 1, 1, true).len(), 1);
    assert_eq!(sender.bodies.in_memory, 0);
    hear(&mut sender, BODIES, StreamEvent::Agreed { low: 1, told: 0 });
    let one = sender.bodies.in_memory / 3;
    assert!(one > 10, "{one}");
    begins(&mut sender, 1, 2, 1);
    let kept = ["1 2", "2 3 of 10 bytes", "3 4 of 10 bytes", "4 5 of 10 bytes", "1 messages"];
    assert_eq!(asked(&mut sender), kept);
    hear(&mut sender, BODIES, waits(2, 3, Some(70)));
    assert_eq!(sender.bodies.in_memory, one);
    assert_eq!(confirm(&mut sender, 3, 3, true).len(), 1);
    begins(&mut sender, 2, 2, 1);
    assert_eq!(asked(&mut sender), ["1 2", "3 4 at 71", "4 5 of 10 bytes", "1 messages"]);
    // The log of an earlier term may have lost it.
    let news = StreamNews { stream: sender.stream(BODIES), term: 1, what: waits(4, 4, Some(72)) };
    told(|out| sender.hear(&news, out));
    assert_eq!(sender.bodies.in_memory, one);
    told(|out| sender.ended(ME, out));
    assert_eq!((sender.bodies.in_memory, sender.kept()), (0, 1), "one is not agreed upon");
}

/// Consumers ack nothing: the shard is told to write what it has in memory, once, and publishers pause only where that does not help.
#[test]
fn the_shard_is_told_to_write_what_is_kept_for_it() {
    let mut sender = StreamSender::new(NodeId::ALONE, 1, KeptMax { letters: 100, bytes: 4_000 });
    let (mut told, mut paused) = (Vec::new(), None);
    for number in 1..=200 {
        if !keep(&mut sender, publish(ME, [number])).is_empty() {
            paused.get_or_insert(number);
        }
        sent(&mut sender, BODIES);
        hear(&mut sender, BODIES, StreamEvent::Agreed { low: number, told: 0 });
        if let Some(letter) = sender.next_command([number, 0]) {
            let ToShard::StoreWaiting { stream, up_to } = letter else { panic!("{letter:?}") };
            assert_eq!((stream.class, up_to), (BODIES, number));
            told.push(number);
        }
    }
    let (first, paused) = (told[0], paused.unwrap());
    assert!(first > 10 && paused > 3 * first, "{told:?}, {paused}");
    assert!(told.windows(2).all(|it| it[1] - it[0] > first / 3), "{told:?}");
    let in_log =
        |number| StreamEvent::Waits { number, first: 0, last: 0, at: Some(Offset::new(number)) };
    let mut went_on: Vec<u64> = (1..=200).collect();
    went_on.retain(|&number| !hear(&mut sender, BODIES, in_log(number)).is_empty());
    assert!(went_on.len() == 1 && went_on[0] < 200, "{went_on:?}");
    assert_eq!((sender.bodies.in_memory, sender.kept()), (0, 200));
}

/// All who publish pause for what the shard has in memory alone, and another node leads: it is told to write that, though nobody sends
/// anything that would bring news.
#[test]
fn another_shard_is_told_to_write_what_is_kept_for_it() {
    let mut sender = StreamSender::new(NodeId::ALONE, 1, KeptMax { letters: 100, bytes: 1_000 });
    let mut number = 0;
    while sender.bodies.paused.is_empty() {
        number += 1;
        keep(&mut sender, publish(ME, [number]));
        sent(&mut sender, BODIES);
        hear(&mut sender, BODIES, StreamEvent::Agreed { low: number, told: 0 });
    }
    begins(&mut sender, 1, number + 1, number);
    sender.attach(GROUP, Offset::new(0), []);
    let letters: Vec<&ToShard> = sender.commands().map(|(_, letter)| letter).collect();
    let [ToShard::StoreWaiting { up_to, .. }, ToShard::Attached(_)] = letters[..] else {
        panic!("{letters:?}")
    };
    assert_eq!(*up_to, number);
}

/// A message that waits for long keeps nothing of the read that it came with, and nothing of others of its letter.
#[test]
fn what_waits_keeps_its_own_memory_alone() {
    let mut sender = sender(3);
    let ToShard::Publish { from, mut messages } = publish(ME, 1..=1_000) else { unreachable!() };
    let read = vec![7; 100_000];
    let long = Message::from_parts(b"", b"", &read);
    let memory = long.body().as_ptr_range();
    messages[999].message = long;
    messages[998].message = Message::from_parts(b"", b"", &vec![7; 1 << 20]);
    let longest = messages[998].message.body().as_ptr();
    keep(&mut sender, ToShard::Publish { from, messages });
    sent(&mut sender, BODIES);
    hear(&mut sender, BODIES, StreamEvent::Agreed { low: 1, told: 0 });
    confirm(&mut sender, 1, 998, true);
    let kept = sender.bodies.kept(1).expect("two wait");
    let StreamLetter::Ask { messages, .. } = &kept.letter else { panic!("{kept:?}") };
    assert!(messages.capacity() < 20, "{}", messages.capacity());
    let [Whereabouts::Memory(second), Whereabouts::Memory(first)] =
        [&messages[messages.len() - 2], &messages[messages.len() - 1]].map(|it| &it.whereabouts)
    else {
        panic!("{messages:?}")
    };
    assert!(!memory.contains(&first.message.body().as_ptr()));
    assert_eq!(second.message.body().as_ptr(), longest, "most of what it keeps");
    assert_eq!(confirm(&mut sender, 999, 1_000, true).len(), 1);
    assert_eq!((sender.kept(), sender.bodies.in_memory), (0, 0));
}

/// One that waits for an ack, perhaps for ever, keeps nothing of all that come behind it.
#[test]
fn behind_what_waits_for_ever_nothing_is_kept() {
    let mut sender = sender(3);
    keep(&mut sender, publish(ME, [1]));
    hear(&mut sender, BODIES, StreamEvent::Agreed { low: 1, told: 1 });
    for number in 2..=1_000 {
        keep(&mut sender, publish(ME, [number]));
        // The first one is sent, and those that are told before they are agreed upon.
        assert_eq!(sent(&mut sender, BODIES).last(), Some(&number));
        confirm(&mut sender, number, number, true);
        hear(&mut sender, BODIES, StreamEvent::Agreed { low: number, told: number });
    }
    assert_eq!(sender.kept(), 1);
    assert!(sender.bodies.letters.capacity() < 16, "{}", sender.bodies.letters.capacity());
    keep(&mut sender, publish(ME, [1_001]));
    begins(&mut sender, 1, 1_001, 1_000);
    assert_eq!(sender.next_up_to(BODIES, 500).map(|it| it.number), Some(1));
    assert!(sender.next_up_to(BODIES, 500).is_none());
    assert_eq!(sender.sent(), [500, 0], "what is behind those may go");
    assert_eq!(sent(&mut sender, BODIES), [1_001]);
    assert_eq!(confirm(&mut sender, 1, 1, true), ["1: 1..1 true"]);
    assert_eq!(sender.kept(), 1);
}

#[test]
fn what_is_kept_is_sent_again_in_order() {
    let mut sender = sender(100);
    (1..=5).for_each(|it| _ = keep(&mut sender, publish(ME, [it])));
    assert_eq!(sent(&mut sender, BODIES), [1, 2, 3, 4, 5]);
    hear(&mut sender, BODIES, StreamEvent::Lacks(4));
    assert_eq!(sent(&mut sender, BODIES), [4, 5]);
    // The same shard over a new link.
    begins(&mut sender, 0, 3, 0);
    assert_eq!(sent(&mut sender, BODIES), [1, 2, 3, 4, 5], "it may have to be asked");
    confirm(&mut sender, 2, 2, true);
    begins(&mut sender, 0, 6, 0);
    assert_eq!(sent(&mut sender, BODIES), [1, 3, 4, 5]);
    hear(&mut sender, BODIES, StreamEvent::Agreed { low: 2, told: 2 });
    // A new term: the first one has no verdict.
    begins(&mut sender, 1, 4, 2);
    assert_eq!(sent(&mut sender, BODIES), [1, 3, 4, 5]);
    // What an earlier one said is out of date.
    let news = StreamNews { stream: sender.stream(BODIES), term: 0, what: StreamEvent::Lacks(1) };
    sender.hear(&news, &mut Outbox::default());
    let of_another = StreamId { start: 2, ..sender.stream(BODIES) };
    let news =
        StreamNews { stream: of_another, term: 1, what: StreamEvent::Agreed { low: 9, told: 9 } };
    sender.hear(&news, &mut Outbox::default());
    assert_eq!((sent(&mut sender, BODIES), sender.kept()), (vec![], 4));
}

#[test]
fn a_verdict_is_passed_on_once() {
    let mut sender = sender(100);
    keep(&mut sender, publish(ME, [1, 2, 3, 5]));
    assert_eq!(confirm(&mut sender, 2, 2, true), ["1: 2..2 true"]);
    // Another shard has the fourth: nothing is known of it here.
    assert_eq!(confirm(&mut sender, 1, 5, true), ["1: 1..1 true", "1: 3..3 true", "1: 5..5 true"]);
    assert!(confirm(&mut sender, 1, 5, false).is_empty());
    keep(&mut sender, publish(ME, [6]));
    let late = ToSession::ConfirmTimeout { channel: 1, first: 6, last: 6 };
    assert_eq!(told(|out| sender.tell(ME, late, out)), ["1: 6..6 late"]);
    assert!(confirm(&mut sender, 6, 6, true).is_empty());
    let other = ToSession::Stopped;
    assert_eq!(told(|out| sender.tell(ME, other, out)), ["1: Stopped"]);
}

/// It may be acked, and in no log: another shard, which knows nothing of its letter, is not to take it once more.
#[test]
fn what_is_confirmed_is_not_sent_again() {
    let mut sender = sender(10);
    keep(&mut sender, publish(ME, 1..=4));
    assert!(sender.next(BODIES).is_some_and(|it| !it.is_again));
    confirm(&mut sender, 1, 2, true);
    confirm(&mut sender, 3, 3, false);
    keep(&mut sender, publish(ME, 5..=5));
    begins(&mut sender, 2, 1, 0);
    let Some(Numbered { letter: ToShard::Publish { messages, .. }, is_again: true, .. }) =
        sender.next(BODIES)
    else {
        panic!("the letter comes again");
    };
    assert!(sender.next(BODIES).is_some_and(|it| !it.is_again), "nobody had that one");
    let lens: Vec<_> = messages.iter().map(|it| (it.confirm, it.message.len())).collect();
    assert_eq!(lens, [(0, 4), (0, 4), (3, 10), (4, 10)]);
}

#[test]
fn who_fills_the_window_pauses() {
    let mut sender = sender(4);
    for it in 1..=3 {
        assert!(keep(&mut sender, publish(ME, [it])).is_empty());
    }
    assert_eq!(keep(&mut sender, publish(ME, [4])), ["1: Paused(true)"]);
    assert!(keep(&mut sender, publish(ME, [5])).is_empty(), "once");
    assert_eq!(keep(&mut sender, publish(OTHER, [1])), ["2: Paused(true)"]);
    assert!(keep(&mut sender, publish(ConnectionId::NOBODY, [0])).is_empty());
    assert!(hear(&mut sender, BODIES, StreamEvent::Agreed { low: 5, told: 5 }).is_empty());
    assert!(told(|out| sender.ended(OTHER, out)).is_empty());
    assert_eq!(
        hear(&mut sender, BODIES, StreamEvent::Agreed { low: 7, told: 7 }),
        ["1: Paused(false)"]
    );
    assert_eq!(sender.kept(), 5, "they wait for verdicts, which fills nothing");
    assert_eq!(confirm(&mut sender, 1, 5, true), ["1: 1..5 true"]);
    assert_eq!(sender.kept(), 0);
    // By their bytes, too.
    let mut sender = StreamSender::new(NodeId::ALONE, 1, KeptMax { letters: 100, bytes: 500 });
    let list = (1..=5).map(|it| keep(&mut sender, publish(ME, [it])));
    let paused: Vec<_> = list.collect();
    assert!(paused.iter().any(|it| it[..] == ["1: Paused(true)"]), "{paused:?}");
}

/// Verdicts of what an earlier leader took are not heard before those of this one: its news may have come without them.
#[test]
fn what_came_to_letters_of_an_earlier_term_is_heard_behind_others() {
    let mut sender = sender(100);
    begins(&mut sender, 1, 1, 0);
    (1..=4).for_each(|it| _ = keep(&mut sender, publish(ME, [it])));
    sent(&mut sender, BODIES);
    begins(&mut sender, 2, 4, 3);
    hear(&mut sender, BODIES, StreamEvent::Agreed { low: 3, told: 3 });
    let next = |sender: &mut StreamSender| {
        sender.next(BODIES).map(|it| (it.number, it.heard_below)).expect("a letter")
    };
    for number in 1..=4 {
        assert_eq!(next(&mut sender), (number, 1));
    }
    // Some verdicts are held still.
    hear(&mut sender, BODIES, StreamEvent::Agreed { low: 4, told: 3 });
    keep(&mut sender, publish(ME, [5]));
    assert_eq!(next(&mut sender), (5, 1));
    hear(&mut sender, BODIES, StreamEvent::Agreed { low: 4, told: 4 });
    keep(&mut sender, publish(ME, [6]));
    assert_eq!(next(&mut sender), (6, 5));
    let late = StreamNews {
        stream: sender.stream(BODIES),
        term: 1,
        what: StreamEvent::Agreed { low: 5, told: 5 },
    };
    sender.hear(&late, &mut Outbox::default());
    keep(&mut sender, publish(ME, [7]));
    assert_eq!(next(&mut sender), (7, 5), "an earlier leader's");
}

/// A transaction is asked for until it is answered, whatever was heard of letters.
#[test]
fn who_waits_for_a_transaction_says_so() {
    let mut sender = sender(100);
    begins(&mut sender, 1, 1, 0);
    let commit = |from: ConnectionId| ToShard::Commit {
        reply: ReplyTo { connection: from, channel: 1 },
        messages: Vec::new(),
        settlements: Vec::new(),
    };
    for letter in [commit(ME), publish(ME, [1]), commit(OTHER), publish(ME, [2])] {
        keep(&mut sender, letter);
    }
    assert_eq!(sender.next(BODIES).map(|it| it.undecided_from), Some(1));
    sent(&mut sender, BODIES);
    hear(&mut sender, BODIES, StreamEvent::Agreed { low: 4, told: 4 });
    let undecided_from = |sender: &mut StreamSender| {
        keep(sender, publish(ME, [0]));
        let it = sender.next(BODIES).expect("a letter");
        (it.number, it.heard_below, it.undecided_from)
    };
    assert_eq!(undecided_from(&mut sender), (5, 5, 1));
    let letter = ToSession::Reply { channel: 1, reply: Reply::Committed };
    told(|out| sender.tell(ME, letter, out));
    assert_eq!(undecided_from(&mut sender), (6, 5, 3));
    begins(&mut sender, 2, 7, 4);
    sender.attach(GROUP, Offset::new(0), []);
    sent(&mut sender, BODIES);
    let Some(ToShard::Attached(attached)) = sender.next_command([6, 0]) else {
        panic!("it has attached")
    };
    assert_eq!((attached.last, attached.undecided_from), ([6, 0], 3));
    told(|out| sender.ended(OTHER, out));
    assert_eq!(undecided_from(&mut sender), (7, 5, 8));
}

/// The news that letters are agreed upon were lost, and who waits for them sends nothing that would bring others.
#[test]
fn a_new_link_tells_what_is_agreed_upon() {
    let mut sender = sender(2);
    keep(&mut sender, publish(ME, [0]));
    assert_eq!(keep(&mut sender, publish(ME, [0])), ["1: Paused(true)"]);
    assert_eq!(sent(&mut sender, BODIES), [1, 2]);
    assert_eq!(begins(&mut sender, 0, 3, 2), ["1: Paused(false)"]);
    assert_eq!((sender.kept(), sent(&mut sender, BODIES)), (0, vec![]));
}

/// Messages wait for the acks of a consumer, who pauses as there was no room for acks.
#[test]
fn who_acks_does_not_wait_for_room_for_messages() {
    let mut sender = sender(4);
    (1..=4).for_each(|it| _ = keep(&mut sender, publish(ME, [it])));
    (0..3).for_each(|_| assert!(keep(&mut sender, settle(OTHER)).is_empty()));
    assert_eq!(keep(&mut sender, settle(OTHER)), ["2: Paused(true)"]);
    assert!(keep(&mut sender, settle(ME)).is_empty(), "it pauses already");
    let acks = StreamClass::Acks;
    assert_eq!(
        hear(&mut sender, acks, StreamEvent::Agreed { low: 5, told: 5 }),
        ["2: Paused(false)"]
    );
    assert_eq!(
        hear(&mut sender, BODIES, StreamEvent::Agreed { low: 4, told: 4 }),
        ["1: Paused(false)"]
    );
}

#[test]
fn other_letters_get_no_number() {
    assert!(!StreamSender::numbers(&ToShard::Continue));
    assert!(StreamSender::numbers(&settle(ME)) && StreamSender::numbers(&publish(ME, [])));
}

/// Over a link that loses letters to a shard that loses what is not agreed upon, all is done in order and once, and told once.
#[test]
fn all_is_done_once() {
    for seed in 0..300 {
        let mut below = leveret_log::suite::numbers(seed);
        let mut sender = StreamSender::new(NodeId::ALONE, 1, KeptMax { letters: 6, bytes: 5_000 });
        // Confirms of the letters, as the shard does them; how many of these are agreed upon.
        let (mut done, mut agreed, mut term) = (Vec::<Vec<u64>>::new(), 0, 0);
        let (mut next, mut told_by, mut pauses) = (1, BTreeMap::new(), 0);
        let mut answers: VecDeque<u64> = VecDeque::new();
        let mut steps = 0;
        while steps < 100 || sender.kept() > 0 {
            steps += 1;
            assert!(steps < 3_000, "seed {seed}: {sender:?}");
            let mut out = Outbox::default();
            if steps < 100 && pauses == 0 && below(2) == 0 {
                let end = next + 1 + below(3);
                sender.keep(publish(ME, next..end), &mut out);
                next = end;
            }
            for _ in 0..below(4) {
                let Some(it) = sender.next(BODIES) else { break };
                let number = it.number;
                let confirms: Vec<u64> = match it.letter {
                    ToShard::Publish { messages, .. } => {
                        messages.iter().map(|it| it.confirm).collect()
                    }
                    ToShard::Ask { messages, .. } => {
                        let asked = messages.iter().map(|it| it.confirm);
                        assert!(number <= agreed, "it is agreed upon");
                        answers.extend(asked);
                        continue;
                    }
                    other => panic!("{other:?}"),
                };
                if below(5) == 0 {
                    continue;
                }
                let have = done.len() as u64;
                if number > have + 1 {
                    let what = StreamEvent::Lacks(have + 1);
                    let news = StreamNews { stream: sender.stream(BODIES), term, what };
                    sender.hear(&news, &mut out);
                } else if number <= have {
                    assert_eq!(done[number as usize - 1], confirms, "it is the same letter");
                    if number <= agreed {
                        answers.extend(confirms);
                    }
                } else {
                    done.push(confirms);
                }
            }
            if below(4) == 0 && agreed < done.len() as u64 {
                answers.extend(&done[agreed as usize]);
                agreed += 1;
                let what = StreamEvent::Agreed { low: agreed, told: agreed };
                let news = StreamNews { stream: sender.stream(BODIES), term, what };
                // News get lost, too.
                if below(5) > 0 {
                    sender.hear(&news, &mut out);
                }
            }
            if below(3) == 0 {
                for first in answers.drain(..) {
                    let letter = ToSession::Confirm { channel: 1, first, last: first, ok: true };
                    sender.tell(ME, letter, &mut out);
                }
            }
            if below(20) == 0 {
                if below(2) == 0 {
                    done.truncate(agreed as usize);
                    answers.clear();
                    term += 1;
                }
                let place = StreamPlace { term, next: done.len() as u64 + 1, agreed };
                let acks = StreamPlace { term, next: 1, agreed: 0 };
                sender.begins(place, acks, &mut out);
            }
            for (_, letter) in out.sessions {
                match letter {
                    ToSession::Paused(true) => pauses += 1,
                    ToSession::Paused(false) => pauses -= 1,
                    ToSession::Confirm { first, last, .. } => {
                        (first..=last).for_each(|it| *told_by.entry(it).or_insert(0) += 1);
                    }
                    other => panic!("{other:?}"),
                }
            }
            assert!(sender.bodies.letters.len() <= 7, "seed {seed}");
            assert!((0..=1).contains(&pauses), "seed {seed}");
        }
        let all: Vec<u64> = done.concat();
        assert_eq!(all, (1..next).collect::<Vec<_>>(), "seed {seed}");
        assert!(told_by.values().all(|times| *times == 1), "seed {seed}: {told_by:?}");
        assert_eq!(told_by.keys().copied().collect::<BTreeSet<_>>(), (1..next).collect());
        assert_eq!((pauses, sender.untold.len()), (0, 0));
    }
}

fn get(who: ConnectionId) -> ToShard {
    let reply = ReplyTo { connection: who, channel: 1 };
    ToShard::Get { reply, queue: QueueId::new(1), no_ack: false }
}

/// What may be sent without a number, in words.
fn commands(sender: &mut StreamSender) -> Vec<&'static str> {
    std::iter::from_fn(|| sender.next_command([u64::MAX; 2]).map(|it| it.kind())).collect()
}

fn attachment(connection: ConnectionId, term: u64) -> ToShard {
    let (consumers, claims) = (Vec::new(), Vec::new());
    ToShard::Attach(Box::new(Attachment { connection, term, behind: [0; 2], consumers, claims }))
}

/// A question is asked again until it is answered, and all of a node's sessions stand before its last word.
#[test]
fn a_new_term_is_told_by_each_session_and_asked_again() {
    let mut sender = sender(100);
    let answer = |sender: &mut StreamSender, who, reply| {
        told(|out| sender.tell(who, ToSession::Reply { channel: 1, reply }, out))
    };
    sender.send(get(ME));
    sender.send(get(OTHER));
    sender.send(ToShard::Resume { connection: ME, others: Vec::new() });
    assert_eq!(commands(&mut sender), ["Get", "Get", "Resume"]);
    assert_eq!(answer(&mut sender, ME, Reply::GotNothing).len(), 1);
    sender.send(ToShard::Resume { connection: ME, others: Vec::new() });
    begins(&mut sender, 1, 1, 0);
    sender.attach(GROUP, Offset::new(0), [ME, OTHER]);
    assert_eq!(commands(&mut sender), ["Get"], "the other one's, and nothing from before");
    sender.send(attachment(ME, 0));
    sender.send(attachment(ME, 1));
    keep(&mut sender, settle(OTHER));
    sender.send(attachment(OTHER, 1));
    let first = sender.next_command([0, 0]).map(|it| it.kind());
    assert_eq!((first, sender.has_command([0, 0])), (Some("Attach"), false));
    let last = std::iter::from_fn(|| sender.next_command([0, 1])).last();
    let Some(ToShard::Attached(attached)) = last else { panic!("{last:?}") };
    assert_eq!((attached.term, attached.last, attached.undecided_from), (1, [0, 1], 1));
}

/// The first shard gives out what it loses. The next one drops what settles that, and falls before others agree. In the third one the
/// same offsets are of others' messages.
#[test]
fn what_was_lost_with_a_term_is_settled_in_none() {
    let delivery = |offset| UnackedDelivery {
        tag: 1,
        offset: Offset::new(offset),
        queue: QueueId::new(1),
        home: GROUP,
        unacked: UnackedId::new(0),
        slot: 0,
        delivered_s: 0,
    };
    let settlements = || [4, 5].map(|offset| delivery(offset).settled(Settle::Ack)).to_vec();
    let settle = |from| ToShard::Settle { from, settlements: settlements() };
    let mut sender = sender(100);
    begins(&mut sender, 1, 1, 0);
    sender.attach(GROUP, Offset::new(0), []);
    let reply = ReplyTo { connection: ME, channel: 1 };
    let (messages, list) = (Vec::new(), [4, 5].map(delivery).into_iter().collect());
    let unsettled = Arc::new(GivenBack::new(vec![list], 1));
    keep(&mut sender, ToShard::Commit { reply, messages, settlements: settlements() });
    keep(&mut sender, settle(ME));
    keep(&mut sender, ToShard::GiveBack { from: ME, unsettled });
    begins(&mut sender, 2, 1, 0);
    sender.attach(GROUP, Offset::new(5), [ME]);
    // Its session has not heard of the term.
    keep(&mut sender, settle(ME));
    sender.send(attachment(ME, 2));
    keep(&mut sender, settle(ME));
    for _ in 0..2 {
        let mut sent = |class| -> Vec<Vec<u64>> {
            let letters = std::iter::from_fn(|| sender.next(class));
            let offsets = |letter| match letter {
                ToShard::Settle { settlements, .. } | ToShard::Commit { settlements, .. } => {
                    settlements
                }
                ToShard::GiveBack { unsettled, .. } => unsettled.of(GROUP, 0, 9).collect(),
                other => panic!("{other:?}"),
            };
            let offsets = letters.map(|it| offsets(it.letter));
            offsets.map(|of| of.iter().map(|it| it.offset.get()).collect()).collect()
        };
        let lost = || vec![4, u64::MAX];
        assert_eq!(sent(BODIES), [lost()]);
        assert_eq!(sent(StreamClass::Acks), [lost(), lost(), lost(), vec![4, 5]]);
        begins(&mut sender, 3, 1, 0);
        sender.attach(GROUP, Offset::new(9), [ME]);
    }
}

/// It is stored once, and its session is told once, whatever is sent again.
#[test]
fn a_transaction_has_a_number_and_one_answer() {
    let mut sender = sender(100);
    let reply = ReplyTo { connection: ME, channel: 1 };
    let commit = ToShard::Commit { reply, messages: Vec::new(), settlements: Vec::new() };
    keep(&mut sender, commit);
    assert_eq!(sent(&mut sender, BODIES), [1]);
    begins(&mut sender, 1, 2, 1);
    assert_eq!(sent(&mut sender, BODIES), [1], "it is done, and nobody was told");
    let answer = |sender: &mut StreamSender| {
        let letter = ToSession::Reply { channel: 1, reply: Reply::Committed };
        told(|out| sender.tell(ME, letter, out)).len()
    };
    assert_eq!((answer(&mut sender), answer(&mut sender)), (1, 0));
    assert_eq!(sender.kept(), 0);
}
