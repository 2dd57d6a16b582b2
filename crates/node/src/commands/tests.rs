use leveret_broker::Meta;
use leveret_broker::message::{Reply, ToSession};
use leveret_log::MemoryLog;
use leveret_topology::{GroupId, Topology, VhostId};

use super::*;

const TERM: u64 = 3;

fn reply(me: u64) -> ReplyTo {
    ReplyTo { connection: NodeId::ALONE.connection(me), channel: 1 }
}

fn declare(me: u64, name: &str) -> ToMeta {
    ToMeta::DeclareQueue {
        by: Box::default(),
        reply: reply(me),
        vhost: VhostId::new(1),
        name: name.into(),
        server_named: false,
        durable: true,
        exclusive: false,
        auto_delete: false,
        arguments: Default::default(),
        forbidden: None,
    }
}

fn delete(me: u64, name: &str) -> ToMeta {
    ToMeta::DeleteExchange {
        by: Box::default(),
        reply: reply(me),
        vhost: VhostId::new(1),
        name: name.into(),
        if_unused: false,
    }
}

fn done(sender: &CommandSender, number: u64) -> Answered {
    let answer = CommandAnswer::Reply(Reply::Done);
    Answered { stream: sender.stream(), term: sender.term(), number, answer }
}

/// What is sent, as far as something is: `4`, or `(4)` if it is answered; and from where on numbers are kept.
fn sent(sender: &mut CommandSender) -> Vec<String> {
    let mut sent = Vec::new();
    while let Some(NumberedCommand { number, kept_from, command, .. }) = sender.send_next() {
        let text = if command.is_some() { format!("{number}") } else { format!("({number})") };
        sent.push(format!("{text} from {kept_from}"));
    }
    sent
}

/// Who is told.
fn told(sender: &mut CommandSender, answered: Answered) -> Vec<u64> {
    let mut out = Outbox::default();
    sender.hear(answered, &mut out);
    out.sessions.into_iter().map(|(to, _)| to.number()).collect()
}

#[test]
fn what_has_no_answer_is_sent_again() {
    let mut sender = CommandSender::new(NodeId::ALONE, 0, COMMANDS_MAX);
    sender.begins(TERM);
    (1..=4).for_each(|me| sender.keep(delete(me, "x")));
    assert_eq!(sent(&mut sender), ["1 from 1", "2 from 1", "3 from 1", "4 from 1"]);
    let answered = done(&sender, 2);
    assert_eq!(told(&mut sender, answered), [2]);
    sender.begins(TERM + 1);
    assert_eq!(sent(&mut sender), ["1 from 1", "(2) from 1", "3 from 1", "4 from 1"]);
    let answered = done(&sender, 1);
    assert_eq!(told(&mut sender, answered), [1]);
    sender.begins(TERM + 2);
    sender.keep(delete(5, "x"));
    assert_eq!(sent(&mut sender), ["3 from 3", "4 from 3", "5 from 3"]);
    assert_eq!((sender.kept(), sender.numbered()), (3, 5));
}

/// Whoever was told may have sent the next command by the time that the answer comes again.
#[test]
fn an_answer_is_passed_on_once() {
    let mut sender = CommandSender::new(NodeId::ALONE, 0, COMMANDS_MAX);
    sender.keep(delete(1, "x"));
    let twice = [(); 2].map(|()| done(&sender, 1));
    let [first, second] = twice;
    assert_eq!(told(&mut sender, first), [1]);
    sender.keep(delete(1, "y"));
    assert_eq!(told(&mut sender, second), [0; 0]);
    let of_others = [
        Answered { stream: CommandStream { start: 1, ..sender.stream() }, ..done(&sender, 2) },
        done(&sender, 0),
        done(&sender, 3),
        done(&sender, u64::MAX),
    ];
    for other in of_others {
        assert_eq!(told(&mut sender, other), [0; 0]);
    }
    let answered = done(&sender, 2);
    assert_eq!(told(&mut sender, answered), [1]);
    assert_eq!(sender.kept(), 0);
}

/// What an earlier owner refused, the one after it may do.
#[test]
fn an_answer_of_an_earlier_owner_is_none() {
    let mut sender = CommandSender::new(NodeId::ALONE, 0, COMMANDS_MAX);
    sender.begins(TERM);
    sender.keep(delete(1, "x"));
    assert_eq!(sent(&mut sender), ["1 from 1"]);
    let late = done(&sender, 1);
    sender.begins(TERM + 1);
    let early = Answered { term: TERM + 2, ..done(&sender, 1) };
    for other in [late, early] {
        assert_eq!(told(&mut sender, other), [0; 0]);
    }
    assert_eq!(sent(&mut sender), ["1 from 1"]);
    let answered = done(&sender, 1);
    assert_eq!(told(&mut sender, answered), [1]);
}

#[test]
fn no_more_than_so_many_have_numbers() {
    let mut sender = CommandSender::new(NodeId::ALONE, 0, 2);
    (1..=4).for_each(|me| sender.keep(delete(me, "x")));
    assert_eq!(sent(&mut sender), ["1 from 1", "2 from 1"]);
    // The first one is not answered: the numbers behind it are not let go of.
    let answered = done(&sender, 2);
    assert_eq!(told(&mut sender, answered), [2]);
    assert_eq!(sent(&mut sender), [""; 0]);
    let answered = done(&sender, 1);
    assert_eq!(told(&mut sender, answered), [1]);
    assert_eq!(sent(&mut sender), ["3 from 3", "4 from 3"]);
}

#[test]
fn who_has_left_is_told_nothing() {
    let mut sender = CommandSender::new(NodeId::ALONE, 0, COMMANDS_MAX);
    let end =
        |me: u64, reply| ToMeta::Disconnected { connection: NodeId::ALONE.connection(me), reply };
    sender.keep(declare(1, "q"));
    sender.keep(end(1, None));
    sender.keep(end(2, Some(reply(2))));
    let mut out = Outbox::default();
    let answer = CommandAnswer::AskShard(leveret_topology::QueueId::new(1), GroupId::at(0));
    sender.hear(Answered { answer, ..done(&sender, 1) }, &mut out);
    assert!(out.is_empty());
    let answered = done(&sender, 2);
    assert_eq!(told(&mut sender, answered), [0; 0]);
    let answered = done(&sender, 3);
    assert_eq!(told(&mut sender, answered), [2]);
}

/// The end may be answered before what came before it. Nobody hears of that then either, and nothing is kept of who has left.
#[test]
fn who_has_left_is_told_nothing_after_its_end() {
    let mut sender = CommandSender::new(NodeId::ALONE, 0, COMMANDS_MAX);
    let connection = NodeId::ALONE.connection(1);
    sender.keep(delete(1, "x"));
    sender.keep(ToMeta::Disconnected { connection, reply: None });
    sender.keep(delete(2, "x"));
    let of_others = [(2, vec![]), (1, vec![]), (3, vec![2])];
    for (number, who) in of_others {
        let answered = done(&sender, number);
        assert_eq!(told(&mut sender, answered), who);
    }
    assert!(sender.connections.is_empty());
}

/// Many connections are lost at once: each is known by itself, and nothing is left of them.
#[test]
fn of_who_has_left_nothing_is_kept() {
    let mut sender = CommandSender::new(NodeId::ALONE, 0, COMMANDS_MAX);
    (1..=3_000).for_each(|me| sender.keep(delete(me, "x")));
    assert_eq!(sender.connections.len(), 3_000);
    (1..=3_000).for_each(|me| {
        let connection = NodeId::ALONE.connection(me);
        sender.keep(ToMeta::Disconnected { connection, reply: None });
    });
    assert_eq!(sender.connections.len(), 3_000);
    for number in 1..=6_000 {
        let answered = done(&sender, number);
        assert_eq!(told(&mut sender, answered), [0; 0]);
    }
    assert!(sender.connections.is_empty());
}

/// Letters of which some get lost, to an owner of the names whose answers get lost, until the link is new.
#[test]
fn each_command_is_answered_once_whatever_a_link_loses() {
    let mut below = leveret_log::suite::numbers(11);
    for _ in 0..50 {
        let mut topology = Topology::new();
        let vhost = topology.add_vhost("/").expect("the first one");
        let mut meta = Meta::new(MemoryLog::new());
        meta.begin_term(TERM);
        let mut sender = CommandSender::new(NodeId::ALONE, 0, 1 + below(6));
        sender.begins(TERM);
        let commands = 1 + below(30);
        for me in 1..=commands {
            let mut command = declare(me, &format!("q{}", below(4)));
            if let ToMeta::DeclareQueue { vhost: place, .. } = &mut command {
                *place = vhost;
            }
            sender.keep(command);
        }
        let mut answered = Vec::new();
        while sender.kept() > 0 {
            let (mut letters, mut out) = (Vec::new(), Outbox::default());
            while let Some(command) = sender.send_next() {
                if below(8) == 0 {
                    break;
                }
                letters.push(ToMeta::Numbered(Box::new(command)));
            }
            meta.turn(&mut letters, &mut topology, &mut out);
            assert!(out.sessions.is_empty(), "an answer has no number");
            let mut told = Outbox::default();
            for answer in out.answers {
                if below(4) > 0 {
                    sender.hear(answer, &mut told);
                }
            }
            for (_, letter) in told.shards {
                let ToShard::Count { reply, .. } = letter else { panic!("{letter:?}") };
                answered.push(reply.connection.number());
            }
            sender.begins(TERM);
        }
        answered.sort_unstable();
        assert_eq!(answered, (1..=commands).collect::<Vec<_>>());
        assert!(meta.command_notes() <= commands as usize);
        assert_eq!(meta.counters().queues_declared, commands, "each was done once");
    }
}

/// Numbers that are let go of leave nothing in the log.
#[test]
fn notes_go_with_their_numbers() {
    let mut topology = Topology::new();
    let vhost = topology.add_vhost("/").expect("the first one");
    let mut meta = Meta::new(MemoryLog::new());
    let mut sender = CommandSender::new(NodeId::ALONE, 0, COMMANDS_MAX);
    for me in 1..=100 {
        let mut command = delete(me, "nix");
        if let ToMeta::DeleteExchange { vhost: place, .. } = &mut command {
            *place = vhost;
        }
        sender.keep(command);
        let numbered = sender.send_next().expect("a command");
        let mut out = Outbox::default();
        meta.turn(&mut vec![ToMeta::Numbered(Box::new(numbered))], &mut topology, &mut out);
        let mut told = Outbox::default();
        out.answers.into_iter().for_each(|answer| sender.hear(answer, &mut told));
        assert!(matches!(
            told.sessions[..],
            [(to, ToSession::Reply { reply: Reply::Done, .. })] if to.number() == me
        ));
        assert_eq!(meta.command_notes(), 1);
    }
    meta.keep_commands(|_| false);
    assert_eq!(meta.command_notes(), 0);
}
