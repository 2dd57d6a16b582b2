//! Commands with numbers: each is done once, whoever owns the names meanwhile.

use leveret_broker::command::{
    Answered, COMMANDS_MAX, CommandAnswer, CommandStream, NumberedCommand,
};
use leveret_broker::message::*;
use leveret_broker::meta::{AwaitedProcess, TermNote};
use leveret_log::Log as _;
use leveret_topology::{NodeId, VhostId};

use crate::copy::Copy;
use crate::random::Rng;
use crate::{World, binding, declare_exchange, declare_queue, delete_exchange, reply};

const STREAM: CommandStream = CommandStream { node: NodeId::ALONE, start: 4 };

/// The first byte of a record of the log of names, and its kind: 65 is that of notes.
const NOTE: [u8; 2] = [1, 65];

fn numbered(world: &World, number: u64, kept_from: u64, command: Option<ToMeta>) -> ToMeta {
    let term = world.meta.term();
    let command = NumberedCommand { stream: STREAM, term, number, kept_from, command };
    ToMeta::Numbered(Box::new(command))
}

/// What a turn with these letters answers to numbers: `1 done`, `2 refused 406`, `3 ask`.
fn answers(world: &mut World, letters: impl IntoIterator<Item = ToMeta>) -> Vec<String> {
    world.turn(letters);
    told(world)
}

/// The disk finishes all that it has to do.
fn all_written(world: &mut World) -> Vec<String> {
    while world.log.hand().finish() {
        world.turn([ToMeta::LogWoke]);
    }
    told(world)
}

fn told(world: &mut World) -> Vec<String> {
    let own = world.meta.term();
    let told = world.out.answers.drain(..).map(|Answered { stream, term, number, answer }| {
        assert_eq!((stream, term), (STREAM, own));
        match answer {
            CommandAnswer::Reply(Reply::Done) => format!("{number} done"),
            CommandAnswer::Reply(Reply::Refused { code, .. }) => {
                format!("{number} refused {}", code as u16)
            }
            CommandAnswer::AskShard(..) => format!("{number} ask"),
            CommandAnswer::Reply(other) => panic!("{other:?}"),
        }
    });
    told.collect()
}

fn notes(world: &World) -> usize {
    let disk = world.log.hand().bytes_on_disk();
    disk.values().filter(|record| record.starts_with(&NOTE)).count()
}

fn exchange(world: &World, name: &str) -> bool {
    world.topology.exchange(world.vhost, name).is_some()
}

/// Another owner, of what the log has.
fn next_owner(world: &World) -> World {
    let mut next = world.crash();
    next.meta.begin_term(world.meta.term() + 1);
    next
}

/// With exchange x, all of it on the disk.
fn with_exchange() -> (World, VhostId) {
    let mut world = World::new();
    world.meta.begin_term(1);
    let vhost = world.vhost;
    world.turn([declare_exchange(vhost, 9, "x", true)]);
    all_written(&mut world);
    world.answers();
    assert_eq!(notes(&world), 0, "who has no number has no note");
    (world, vhost)
}

/// The same, whose deletion takes several turns.
fn with_long_deletion() -> (World, VhostId) {
    let (mut world, vhost) = with_exchange();
    world.turn([declare_queue(vhost, 9, "q", true, false)]);
    for key in 0..2_000 {
        let mut binding = binding(vhost, 9, "x", "q");
        binding.key = key.to_string().into();
        world.turn([ToMeta::Bind(binding)]);
    }
    while world.meta.has_work() || !all_written(&mut world).is_empty() {
        world.turn([ToMeta::Continue]);
    }
    (world, vhost)
}

/// Whoever deletes something and has no answer asks again: what another one made since under its name stays.
#[test]
fn a_deletion_is_done_once() {
    let (mut world, vhost) = with_exchange();
    let delete = |world: &World| numbered(world, 1, 1, Some(delete_exchange(vhost, 1, "x")));
    let command = delete(&world);
    assert_eq!(answers(&mut world, [command]), [""; 0], "it is not on the disk");
    assert_eq!(all_written(&mut world), ["1 done"]);
    world.turn([declare_exchange(vhost, 2, "x", true)]);
    all_written(&mut world);
    let again = delete(&world);
    assert_eq!(answers(&mut world, [again]), ["1 done"]);
    assert!(exchange(&world, "x"));
    for _ in 0..2 {
        world = next_owner(&world);
        assert_eq!(notes(&world), 1);
        let again = delete(&world);
        assert_eq!(answers(&mut world, [again]), ["1 done"]);
        assert!(exchange(&world, "x"));
    }
    let next = numbered(&world, 2, 2, Some(delete_exchange(vhost, 1, "x")));
    world.turn([next]);
    assert_eq!(all_written(&mut world), ["2 done"]);
    assert!(!exchange(&world, "x"));
    assert_eq!(notes(&world), 1, "that of the first one went");
}

/// What was not agreed upon is gone with its owner, note and all.
#[test]
fn what_is_lost_is_done_again() {
    let (mut world, vhost) = with_exchange();
    let command = numbered(&world, 1, 1, Some(delete_exchange(vhost, 1, "x")));
    world.turn([command]);
    let mut world = next_owner(&world);
    assert!(exchange(&world, "x"));
    let again = numbered(&world, 1, 1, Some(delete_exchange(vhost, 1, "x")));
    assert_eq!(answers(&mut world, [again]), [""; 0]);
    assert_eq!(all_written(&mut world), ["1 done"]);
    assert!(!exchange(&world, "x"));
}

/// A name is free once the first piece of its deletion is done: whoever has it then keeps it, though the deletion was cut off.
#[test]
fn a_long_deletion_that_is_cut_off_is_not_begun_again() {
    let (mut world, vhost) = with_long_deletion();
    let delete = |world: &World| numbered(world, 1, 1, Some(delete_exchange(vhost, 1, "x")));
    let command = delete(&world);
    assert_eq!(answers(&mut world, [command]), [""; 0]);
    assert!(world.log.hand().finish() && world.meta.has_work() && !exchange(&world, "x"));
    world.turn([declare_exchange(vhost, 2, "x", true)]);
    while world.log.hand().finish() {}
    let mut cut_off = next_owner(&world);
    let again = delete(&cut_off);
    assert_eq!(answers(&mut cut_off, [again]), ["1 done"]);
    assert!(exchange(&cut_off, "x"));
    // Where it is not cut off its last piece answers, once.
    let mut told = Vec::new();
    while world.meta.has_work() {
        told.extend(answers(&mut world, [ToMeta::Continue]));
        told.extend(all_written(&mut world));
    }
    assert_eq!(told, ["1 done"]);
    assert_eq!(notes(&world), 1);
}

/// A number has one outcome in a term. Nobody has heard of it in the next one, if it comes again there.
#[test]
fn what_was_refused_is_refused_again() {
    let (mut world, vhost) = with_exchange();
    let command = |world: &World| {
        let bind = ToMeta::Bind(binding(vhost, 1, "x", "q"));
        numbered(world, 1, 1, Some(bind))
    };
    let refused = command(&world);
    assert_eq!(answers(&mut world, [refused]), ["1 refused 404"]);
    world.turn([declare_queue(vhost, 2, "q", true, false)]);
    all_written(&mut world);
    let again = command(&world);
    assert_eq!(answers(&mut world, [again]), ["1 refused 404"]);
    assert_eq!(notes(&world), 0);
    world = next_owner(&world);
    let again = command(&world);
    world.turn([again]);
    assert_eq!(all_written(&mut world), ["1 done"]);
}

#[test]
fn a_shard_is_asked_for_its_counts_by_the_node() {
    let (mut world, vhost) = with_exchange();
    let declare = |world: &World, number, me| {
        numbered(world, number, 1, Some(declare_queue(vhost, me, "q", true, false)))
    };
    let (first, second) = (declare(&world, 1, 1), declare(&world, 2, 2));
    world.turn([first, second]);
    assert_eq!(all_written(&mut world), ["1 ask", "2 ask"]);
    assert_eq!(world.answers(), ["0 created", "0 created"], "nobody is answered by the shard");
    let mut world = next_owner(&world);
    let (first, second) = (declare(&world, 1, 1), declare(&world, 2, 2));
    assert_eq!(answers(&mut world, [first, second]), ["1 ask", "2 ask"]);
    assert_eq!(world.answers(), ["0 created"], "the second one changed nothing, and is done again");
}

#[test]
fn the_end_of_a_connection_has_an_answer_when_its_queues_are_gone() {
    for reply in [None, Some(ReplyTo { channel: 0, ..reply(1) })] {
        let (mut world, vhost) = with_exchange();
        world.turn([declare_queue(vhost, 1, "e", true, true)]);
        let gone = world.gone(0, "e");
        let end = ToMeta::Disconnected { connection: NodeId::ALONE.connection(1), reply };
        let end = numbered(&world, 1, 1, Some(end));
        world.turn([end]);
        assert_eq!(all_written(&mut world), [""; 0]);
        world.turn([gone]);
        assert_eq!(all_written(&mut world), ["1 done"]);
    }
}

/// What a log has that failed its next owner knows, and nobody else: it may be there, or with a majority. So nothing is said to a
/// number: not to one that waited, not to what is under way, not to what comes or comes again.
#[test]
fn a_failed_log_says_nothing_to_numbers() {
    let (mut world, vhost) = with_exchange();
    world.turn([declare_queue(vhost, 9, "q", true, false)]);
    all_written(&mut world);
    world.answers();
    let delete = |world: &World| numbered(world, 1, 1, Some(delete_exchange(vhost, 1, "x")));
    let declare = |world: &World, number| {
        numbered(world, number, 1, Some(declare_exchange(vhost, number, "y", true)))
    };
    let first = delete(&world);
    assert_eq!(answers(&mut world, [first]), [""; 0]);
    world.log.hand().fails = true;
    let second = declare(&world, 2);
    assert_eq!(answers(&mut world, [second]), [""; 0]);
    assert!(world.meta.failure().is_some());
    let bind = |key: u64| {
        let mut binding = binding(vhost, 3, "nix", "q");
        binding.key = key.to_string().into();
        ToMeta::Bind(binding)
    };
    let mut come = vec![delete(&world), declare(&world, 2)];
    come.extend((3..=300).map(|number| numbered(&world, number, 1, Some(bind(number)))));
    come.push(numbered(&world, 301, 1, Some(end(9))));
    let mut told = answers(&mut world, come);
    while world.meta.has_work() {
        told.extend(answers(&mut world, [ToMeta::Continue]));
    }
    assert_eq!(told, [""; 0]);
    assert_eq!(world.answers(), [""; 0], "nobody else is answered for them");
}

/// The same for what was being done when the log failed.
#[test]
fn a_log_that_fails_in_the_middle_says_nothing_to_numbers() {
    let (mut world, vhost) = with_long_deletion();
    world.answers();
    let delete = numbered(&world, 1, 1, Some(delete_exchange(vhost, 1, "x")));
    let mut told = answers(&mut world, [delete]);
    world.log.hand().fails = true;
    assert!(world.log.hand().finish() && world.meta.has_work());
    while world.meta.has_work() {
        told.extend(answers(&mut world, [ToMeta::Continue]));
    }
    assert!(world.meta.failure().is_some());
    assert_eq!(told, [""; 0]);
}

/// Who leads no more cannot write the rest of what it did. What comes of it the next owner says, and nobody before.
#[test]
fn what_is_written_in_part_is_not_answered() {
    for takes in 0..3 {
        let (mut world, vhost) = with_exchange();
        world.log.hand().takes = Some(takes);
        let declare =
            |world: &World| numbered(world, 1, 1, Some(declare_exchange(vhost, 1, "y", true)));
        for _ in 0..2 {
            let command = declare(&world);
            assert_eq!(answers(&mut world, [command]), [""; 0], "{takes} records more");
        }
        let mut world = next_owner(&world);
        let command = declare(&world);
        world.turn([command]);
        assert_eq!(all_written(&mut world), ["1 done"]);
        assert!(exchange(&world, "y"));
    }
}

fn end(me: u64) -> ToMeta {
    ToMeta::Disconnected { connection: NodeId::ALONE.connection(me), reply: None }
}

/// An owner refused a queue of a connection, as there was another one of its name, so nothing was left to do when that ended. The
/// next owner does not have the other one. It makes the queue, and is to delete it.
#[test]
fn the_end_of_a_connection_is_done_by_each_owner() {
    let (mut world, vhost) = with_exchange();
    let commands = |world: &World| {
        let declare = declare_queue(vhost, 1, "e", false, true);
        [numbered(world, 1, 1, Some(declare)), numbered(world, 2, 1, Some(end(1)))]
    };
    world.turn([declare_queue(vhost, 9, "e", false, true)]);
    for _ in 0..2 {
        let both = commands(&world);
        let mut told = answers(&mut world, both);
        told.extend(all_written(&mut world));
        assert_eq!(told, ["1 refused 405", "2 done"]);
    }
    let mut world = next_owner(&world);
    assert_eq!(world.meta.command_notes(), 0);
    let [first, second] = commands(&world);
    let mut told = answers(&mut world, [first]);
    let gone = world.gone(0, "e");
    told.extend(answers(&mut world, [second]));
    assert_eq!(told, ["1 ask"], "the queue is not gone yet");
    assert_eq!(answers(&mut world, [gone]), ["2 done"]);
    assert!(world.queue("e").is_none());
}

/// What is in no log the next owner does not have: it does it.
#[test]
fn what_is_not_stored_is_done_by_each_owner() {
    let (mut world, vhost) = with_exchange();
    let commands = |world: &World| {
        [
            declare_queue(vhost, 1, "t", false, false),
            declare_queue(vhost, 2, "e", true, true),
            declare_exchange(vhost, 3, "y", false),
            ToMeta::Bind(binding(vhost, 4, "x", "t")),
            delete_exchange(vhost, 5, "nix"),
        ]
        .into_iter()
        .zip(1..)
        .map(|(command, number)| numbered(world, number, 1, Some(command)))
        .collect::<Vec<_>>()
    };
    // The deletion waits for its note, the first time.
    for at_once_of_each in [4, 5] {
        let all = commands(&world);
        let mut told = answers(&mut world, all);
        let at_once = told.len();
        let again = commands(&world);
        told.extend(answers(&mut world, again));
        told.extend(all_written(&mut world));
        told.sort();
        // They came twice, in one term: they were done once.
        let each = ["1 ask", "2 ask", "3 done", "4 done", "5 done"];
        assert_eq!(told, each.map(|it| [it; 2]).concat());
        assert_eq!(at_once, at_once_of_each);
        assert!(world.queue("t").is_some() && world.queue("e").is_some() && exchange(&world, "y"));
        assert_eq!(world.meta.counters().queues_created, 2);
        world = next_owner(&world);
        assert_eq!(notes(&world), 1, "the deletion alone");
    }
}

/// What was found as asked for has no note, and is answered by each owner as it is there. A deletion of nothing has one: else it
/// would delete what another client made since.
#[test]
fn what_changes_nothing_is_noted_if_it_deletes() {
    let (mut world, vhost) = with_exchange();
    world.turn([declare_queue(vhost, 9, "q", true, false)]);
    world.turn([ToMeta::Bind(binding(vhost, 9, "x", "q"))]);
    all_written(&mut world);
    let commands = |world: &World| {
        let mut other = binding(vhost, 5, "x", "q");
        other.key = "other".into();
        [
            declare_queue(vhost, 1, "q", true, false),
            declare_exchange(vhost, 2, "x", true),
            ToMeta::Bind(binding(vhost, 3, "x", "q")),
            delete_exchange(vhost, 4, "nix"),
            ToMeta::Unbind(other),
        ]
        .into_iter()
        .zip(1..)
        .map(|(command, number)| numbered(world, number, 1, Some(command)))
        .collect::<Vec<_>>()
    };
    let all = commands(&world);
    let mut told = answers(&mut world, all);
    told.extend(all_written(&mut world));
    told.sort();
    assert_eq!(told, ["1 ask", "2 done", "3 done", "4 done", "5 done"]);
    assert_eq!((notes(&world), world.meta.command_notes()), (2, 2));
    let mut others = binding(vhost, 9, "x", "q");
    others.key = "other".into();
    world.turn([declare_exchange(vhost, 9, "nix", true), ToMeta::Bind(others)]);
    all_written(&mut world);
    let before = world.topology.describe_durable();
    let mut world = next_owner(&world);
    let all = commands(&world);
    let mut told = answers(&mut world, all);
    told.extend(all_written(&mut world));
    told.sort();
    assert_eq!(told, ["1 ask", "2 done", "3 done", "4 done", "5 done"]);
    assert_eq!(world.topology.describe_durable(), before);
}

/// Only the next number of this term is taken, and no more are under way than are kept.
#[test]
fn what_is_not_the_next_number_is_not_taken() {
    let (mut world, vhost) = with_exchange();
    let delete = |me| Some(delete_exchange(vhost, me, "x"));
    let term = world.meta.term();
    let other_term = |term| {
        let command =
            NumberedCommand { stream: STREAM, term, number: 1, kept_from: 1, command: delete(1) };
        ToMeta::Numbered(Box::new(command))
    };
    let not_taken = [
        numbered(&world, 2, 1, delete(1)),
        numbered(&world, u64::MAX, 1, delete(1)),
        numbered(&world, 0, 0, delete(1)),
        numbered(&world, 1, 0, delete(1)),
        numbered(&world, 1, 2, delete(1)),
        numbered(&world, 1, 1, Some(ToMeta::LogWoke)),
        numbered(&world, 1 + COMMANDS_MAX, 1, delete(1)),
        other_term(term - 1),
        other_term(term + 1),
    ];
    assert_eq!(answers(&mut world, not_taken), [""; 0]);
    assert_eq!(all_written(&mut world), [""; 0]);
    assert!(exchange(&world, "x"));
    // Whoever has let go of numbers has their answers; one that is answered out of order comes as a number alone.
    let taken = [
        numbered(&world, 7, 7, delete(1)),
        numbered(&world, 8, 7, None),
        numbered(&world, 9, 7, delete(2)),
        numbered(&world, 6, 6, Some(declare_exchange(vhost, 3, "x", true))),
    ];
    world.turn(taken);
    assert_eq!(all_written(&mut world), ["7 done", "9 done"]);
    assert!(!exchange(&world, "x"));
    let last = numbered(&world, u64::MAX, u64::MAX, delete(1));
    let after = numbered(&world, u64::MAX, u64::MAX, delete(1));
    world.turn([last, after]);
    let done = format!("{} done", u64::MAX);
    assert_eq!(
        all_written(&mut world),
        [done.clone(), done],
        "it came twice, and nothing follows it"
    );
}

/// A number that its sender has let go of while it is under way is answered to nobody, and never with the next one's.
#[test]
fn what_was_let_go_of_under_way_does_not_answer_the_next_one() {
    let (mut world, vhost) = with_long_deletion();
    world.answers();
    let delete = numbered(&world, 1, 1, Some(delete_exchange(vhost, 1, "x")));
    let refused = numbered(&world, 2, 2, Some(ToMeta::Bind(binding(vhost, 1, "nix", "q"))));
    let mut told = answers(&mut world, [delete, refused]);
    assert!(world.meta.has_work());
    while world.meta.has_work() {
        told.extend(answers(&mut world, [ToMeta::Continue]));
        told.extend(all_written(&mut world));
    }
    assert_eq!(told, ["2 refused 404"]);
    assert_eq!(world.answers(), ["0 forget"], "that is for a shard");
    assert_eq!(notes(&world), 0);
}

/// Whoever follows the log knows what was done, too.
#[test]
fn the_next_start_of_a_node_lets_go_of_the_one_before() {
    let (mut world, vhost) = with_exchange();
    for number in 1..=2 {
        let name = format!("x{number}");
        let command = numbered(&world, number, 1, Some(declare_exchange(vhost, 1, &name, true)));
        world.turn([command]);
    }
    assert_eq!(all_written(&mut world), ["1 done", "2 done"]);
    assert_eq!(notes(&world), 2);
    let mut next = numbered(&world, 1, 1, Some(declare_exchange(vhost, 1, "y", true)));
    if let ToMeta::Numbered(numbered) = &mut next {
        numbered.stream.start += 1;
    }
    world.turn([next]);
    while world.log.hand().finish() {
        world.turn([ToMeta::LogWoke]);
    }
    assert_eq!((notes(&world), world.meta.command_notes()), (1, 1));
    assert!(exchange(&world, "y"));
}

fn of_start(start: u32, mut letter: ToMeta) -> ToMeta {
    if let ToMeta::Numbered(numbered) = &mut letter {
        numbered.stream.start = start;
    }
    letter
}

/// What is on its way of a start that is over begins nothing anew, and its notes go with the first letter of the next one, whatever
/// number that has.
#[test]
fn a_start_that_is_over_does_not_begin_again() {
    let (mut world, vhost) = with_exchange();
    let declare = |world: &World, start, number, name: &str| {
        let declare = declare_exchange(vhost, 1, name, true);
        of_start(start, numbered(world, number, number, Some(declare)))
    };
    let first = declare(&world, 4, 1, "first");
    world.turn([first]);
    all_written(&mut world);
    let mut world = next_owner(&world);
    assert_eq!(notes(&world), 1);
    let seventh = declare(&world, 5, 7, "seventh");
    world.turn([seventh]);
    while world.log.hand().finish() {
        world.turn([ToMeta::LogWoke]);
    }
    assert_eq!((notes(&world), world.meta.command_notes()), (1, 1), "that of the seventh");
    let mut next = next_owner(&world);
    // Whether the later start was heard of by a letter, or by its note, or is forgotten since.
    world.meta.keep_commands(|_| false);
    world.out.answers.clear();
    for world in [&mut world, &mut next] {
        let late = [declare(world, 4, 1, "late"), declare(world, 3, 2, "late")];
        assert_eq!(answers(world, late), [""; 0]);
        assert_eq!(all_written(world), [""; 0]);
        assert!(!exchange(world, "late"));
    }
}

/// A note is a record more, and costs as much as a command: others wait less for who has many.
#[test]
fn notes_are_paid_for() {
    let done_at_once = |is_numbered: bool| {
        let (mut world, vhost) = with_exchange();
        let declare = |number: u64| {
            let declare = declare_exchange(vhost, number, &format!("x{number}"), true);
            if is_numbered { numbered(&world, number, 1, Some(declare)) } else { declare }
        };
        let all: Vec<_> = (1..=500).map(declare).collect();
        world.turn(all);
        (1..=500).filter(|number| exchange(&world, &format!("x{number}"))).count()
    };
    let (without, with) = (done_at_once(false), done_at_once(true));
    assert!(with * 2 <= without + 2 && with > 0, "{with} with notes, {without} without");
}

#[test]
fn who_takes_over_a_copy_knows_what_was_done() {
    for seed in 0..20 {
        let (mut world, vhost) = with_exchange();
        let mut rng = Rng(seed * 2 + 1);
        let mut copy = Copy::of(&world.log, &mut rng);
        for number in 1..=20_u64 {
            let declare = declare_exchange(vhost, 1, &format!("x{number}"), true);
            let kept_from = number.saturating_sub(3).max(1);
            let command = numbered(&world, number, kept_from, Some(declare));
            world.turn([command]);
            all_written(&mut world);
            copy.follow(&world.log, &mut rng);
        }
        let notes = notes(&world);
        let mut next = copy.take_over(&world.log);
        next.meta.begin_term(2);
        assert_eq!(next.meta.command_notes(), notes);
        let again = |number| {
            let declare = declare_exchange(vhost, 1, &format!("x{number}"), false);
            numbered(&next, number, 17, Some(declare))
        };
        let again: Vec<_> = (17..=20).map(again).collect();
        assert_eq!(answers(&mut next, again), ["17 done", "18 done", "19 done", "20 done"]);
    }
}

/// Who led, and whose sessions are over with that one, is found by whoever reads the log or follows it: of the last leader alone, and of
/// one whose note was on the disk.
#[test]
fn the_next_owner_knows_who_led_last() {
    for seed in 0..20 {
        let (mut world, _) = with_exchange();
        let mut rng = Rng(seed * 2 + 1);
        assert_eq!(world.meta.last_term(), None);
        let mut copy = Copy::of(&world.log, &mut rng);
        for term in 1..=4 {
            world.meta.begin_term(term);
            let process = CommandStream { start: 10, ..STREAM };
            let awaited =
                AwaitedProcess { process, below: vec![leveret_queue::Offset::new(term); 2] };
            let awaited = vec![awaited; usize::from(term > 2)];
            let noted = world.meta.note_term(awaited.clone(), &mut world.topology);
            let until = noted.expect("its log");
            assert!(world.meta.log().durable() < until.expect("there is room"));
            let before = world.crash();
            assert_eq!(before.meta.last_term().map(|it| it.term), (term > 1).then(|| term - 1));
            all_written(&mut world);
            assert!(world.meta.log().durable() >= until.unwrap_or_default());
            let over = vec![CommandStream { start: term as u32, ..STREAM }; rng.at(2)];
            for &process in &over {
                world.meta.note_over(process, &mut world.topology).expect("its log");
                all_written(&mut world);
            }
            copy.follow(&world.log, &mut rng);
            let awaited = if over.is_empty() { awaited } else { Vec::new() };
            let note = TermNote { term, over, awaited };
            assert_eq!(next_owner(&world).meta.last_term(), Some(&note));
        }
        world.log.hand().is_full = true;
        assert_eq!(world.meta.note_term(vec![], &mut world.topology), Ok(None), "no room");
        world.log.hand().is_full = false;
        let next = copy.take_over(&world.log);
        assert_eq!(next.meta.last_term().map(|it| it.term), Some(4));
    }
}
