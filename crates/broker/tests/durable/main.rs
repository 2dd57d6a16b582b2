//! The topology through a log: who waits for it, what a crash leaves, what comes back.

mod commands;
mod copy;
#[path = "../hand/log.rs"]
mod log;
mod mixed;
mod pieces;
mod random;
mod recovery;

use std::collections::BTreeMap;

use leveret_amqp::reply::ReplyCode;
use leveret_amqp::table::Table;
use leveret_broker::Meta;
use leveret_broker::message::*;
use leveret_broker::transaction::{TxId, Vote};
use leveret_queue::Offset;
use leveret_topology::{
    ApplyTo, GroupId, Homes, NodeId, PasswordHash, Policy, PolicySpec, QueueId, Topology, VhostId,
};

use crate::log::HandLog;

const SHARDS: usize = 2;

/// Meta with its log and topology, and what it sent.
pub(crate) struct World {
    pub(crate) log: HandLog,
    pub(crate) meta: Meta<HandLog>,
    pub(crate) topology: Topology,
    pub(crate) out: Outbox,
    pub(crate) vhost: VhostId,
}

/// A command of connection `me`.
pub(crate) fn reply(me: u64) -> ReplyTo {
    ReplyTo { connection: NodeId::ALONE.connection(me), channel: 1 }
}

impl World {
    /// With vhost "/" and user "u", all of it on disk.
    pub(crate) fn new() -> Self {
        let log = HandLog::default();
        let mut topology = Topology::new();
        topology.set_homes(Homes::among(SHARDS as u32));
        let vhost = topology.add_vhost("/").unwrap();
        topology.add_user("u", PasswordHash::new("p", [0; 4]), &[]).unwrap();
        let mut meta = Meta::new(log.clone());
        assert!(meta.is_new());
        let disk = log.clone();
        meta.adopt(&mut topology, &mut || assert!(disk.hand().finish())).unwrap();
        assert!(!meta.is_new() && log.hand().batches == 1);
        Self { log, meta, topology, out: Outbox::default(), vhost }
    }

    /// Ends the process; what is on disk comes back.
    pub(crate) fn crash(&self) -> Self {
        let log = self.log.crash();
        let disk = log.clone();
        let (meta, topology) = Meta::recover(Homes::among(SHARDS as u32), log.clone(), &mut || {
            assert!(disk.hand().finish_any())
        })
        .unwrap();
        topology.assert_invariants();
        let vhost = topology.vhost("/").map_or(VhostId::new(0), |vhost| vhost.id);
        Self { log, meta, topology, out: Outbox::default(), vhost }
    }

    pub(crate) fn turn(&mut self, letters: impl IntoIterator<Item = ToMeta>) {
        let mut letters: Vec<_> = letters.into_iter().collect();
        self.meta.turn(&mut letters, &mut self.topology, &mut self.out);
    }

    /// The disk finishes a batch, and Meta hears of it.
    pub(crate) fn disk_finishes(&mut self) {
        assert!(self.log.hand().finish(), "the disk has nothing to do");
        self.turn([ToMeta::LogWoke]);
    }

    /// Who was answered since it was last asked, and with what: `1 done`, `2 refused 541`.
    pub(crate) fn answers(&mut self) -> Vec<String> {
        let mut answers = Vec::new();
        for (to, letter) in self.out.sessions.drain(..) {
            let ToSession::Reply { reply, .. } = letter else { panic!("{letter:?}") };
            let text = match reply {
                Reply::Done => "done".to_owned(),
                Reply::Imported(_) => "told".to_owned(),
                Reply::Deleted(messages) => format!("deleted {messages}"),
                Reply::Refused { code, .. } => format!("refused {}", code as u16),
                other => panic!("{other:?}"),
            };
            answers.push(format!("{} {text}", to.number()));
        }
        for (_, letter) in self.out.shards.drain(..) {
            let (to, text) = match letter {
                ToShard::Create { reply, .. } => (reply, "created"),
                ToShard::Count { reply, .. } => (Some(reply), "counted"),
                ToShard::OptionsChanged { .. } => (None, "options"),
                ToShard::Delete { reply, .. } => (reply, "delete"),
                ToShard::Replay { .. } => (None, "replay"),
                ToShard::Forget { .. } => (None, "forget"),
                other => panic!("{other:?}"),
            };
            answers.push(format!("{} {text}", to.map_or(0, |to| to.connection.number())));
        }
        answers
    }

    pub(crate) fn queue(&self, name: &str) -> Option<QueueId> {
        self.topology.queue(self.vhost, name).map(|queue| queue.id)
    }

    pub(crate) fn declare(&self, me: u64, name: &str) -> ToMeta {
        declare_queue(self.vhost, me, name, true, false)
    }

    pub(crate) fn gone(&self, me: u64, name: &str) -> ToMeta {
        let queue = self.queue(name).unwrap();
        ToMeta::QueueGone {
            by: Box::default(),
            queue,
            reply: Some((reply(me), 7)),
            consumers: Vec::new(),
            more: false,
        }
    }
}

pub(crate) fn declare_queue(
    vhost: VhostId,
    me: u64,
    name: &str,
    durable: bool,
    exclusive: bool,
) -> ToMeta {
    ToMeta::DeclareQueue {
        by: Box::default(),
        reply: reply(me),
        vhost,
        name: name.into(),
        server_named: false,
        durable,
        exclusive,
        auto_delete: false,
        arguments: Table::new(),
        forbidden: None,
    }
}

pub(crate) fn declare_exchange(vhost: VhostId, me: u64, name: &str, durable: bool) -> ToMeta {
    ToMeta::DeclareExchange {
        by: Box::default(),
        reply: reply(me),
        vhost,
        name: name.into(),
        kind: "x-recent-history".into(),
        durable,
        auto_delete: false,
        internal: false,
        arguments: Table::new(),
        forbidden: None,
    }
}

pub(crate) fn delete_exchange(vhost: VhostId, me: u64, name: &str) -> ToMeta {
    ToMeta::DeleteExchange {
        by: Box::default(),
        reply: reply(me),
        vhost,
        name: name.into(),
        if_unused: false,
    }
}

pub(crate) fn binding(vhost: VhostId, me: u64, source: &str, queue: &str) -> Box<Binding> {
    Box::new(Binding {
        by: Box::default(),
        reply: reply(me),
        vhost,
        source: source.into(),
        destination: queue.into(),
        to_queue: true,
        key: "k".into(),
        arguments: Table::new(),
    })
}

pub(crate) fn admin(me: u64, command: AdminCommand) -> ToMeta {
    ToMeta::Admin { by: Box::default(), reply: reply(me), command: Box::new(command) }
}

pub(crate) fn policy(me: u64, name: &str, length: u64) -> ToMeta {
    let policy = policy_of(name, length);
    admin(me, AdminCommand::SetPolicy { vhost: "/".into(), policy })
}

fn policy_of(name: &str, length: u64) -> Box<Policy> {
    let serde_json::Value::Object(definition) = serde_json::json!({ "max-length": length }) else {
        unreachable!()
    };
    let spec =
        PolicySpec { name, pattern: "^q", apply_to: ApplyTo::Queues, priority: 0, definition };
    Box::new(Policy::new(spec, false).unwrap())
}

/// With its three queues, its own two exchanges and the seven that every vhost has.
const VHOST_GONE: [&str; 13] = [
    "1 done", "0 delete", "0 delete", "0 delete", "0 forget", "0 forget", "0 forget", "0 forget",
    "0 forget", "0 forget", "0 forget", "0 forget", "0 forget",
];

pub(crate) fn import(json: &str) -> AdminCommand {
    let definitions = Box::new(leveret_topology::Import::read(json).unwrap());
    AdminCommand::ImportDefinitions { definitions }
}

/// What comes before the entry that is refused stays, and shards hear of it.
const HALF: &str = r#"{"policies":[{"vhost":"/","name":"p","pattern":"^q","definition":{"max-length":1}}],
    "queues":[{"vhost":"/","name":"n"},{"vhost":"/","name":"m","arguments":{"x-expires":0}}]}"#;

/// What a command is answered, and whether the answer waits for the disk. There are: durable queue q and
/// exchange x, a binding between them, transient queue t and exchange y, one's own exclusive queue e.
#[test]
#[rustfmt::skip] // a table
fn who_waits() {
    type Command = fn(&World, VhostId) -> ToMeta;
    let rows: &[(&str, Command, &[&str], bool)] = &[
        ("durable queue",         |_, v| declare_queue(v, 1, "n", true, false),  &["1 created"], true),
        ("transient queue",       |_, v| declare_queue(v, 1, "n", false, false), &["1 created"], false),
        ("exclusive queue",       |_, v| declare_queue(v, 1, "n", true, true),   &["1 created"], false),
        ("queue that is there",   |_, v| declare_queue(v, 1, "q", true, false),  &["1 counted"], false),
        ("refused queue",         |_, v| declare_queue(v, 1, "q", false, false), &["1 refused 406"], false),
        ("durable exchange",      |_, v| declare_exchange(v, 1, "n", true),      &["1 done"], true),
        ("transient exchange",    |_, v| declare_exchange(v, 1, "n", false),     &["1 done"], false),
        ("exchange deleted",      |_, v| delete_exchange(v, 1, "x"),             &["1 done", "0 forget"], true),
        ("transient one deleted", |_, v| delete_exchange(v, 1, "y"),             &["1 done", "0 forget"], false),
        ("none deleted",          |_, v| delete_exchange(v, 1, "nix"),           &["1 done"], false),
        ("bound",                 |_, v| ToMeta::Bind(binding(v, 1, "amq.direct", "q")), &["1 done"], true),
        ("bound with history",    |_, v| ToMeta::Bind(binding(v, 1, "y", "t")),  &["1 done", "0 replay"], false),
        ("bound again",           |_, v| ToMeta::Bind(binding(v, 1, "x", "q")),  &["1 done"], false),
        ("one end is transient",  |_, v| ToMeta::Bind(binding(v, 1, "x", "t")),  &["1 done", "0 replay"], false),
        ("not bound",             |_, v| ToMeta::Bind(binding(v, 1, "x", "nix")), &["1 refused 404"], false),
        ("unbound",               |_, v| ToMeta::Unbind(binding(v, 1, "x", "q")), &["1 done"], true),
        ("never bound",           |_, v| ToMeta::Unbind(binding(v, 1, "x", "t")), &["1 done"], false),
        ("queue gone",            |w, _| w.gone(1, "q"), &["1 deleted 7"], true),
        ("transient queue gone",  |w, _| w.gone(1, "t"), &["1 deleted 7"], false),
        ("policy",                |_, _| policy(1, "p", 3), &["1 done", "0 options"], true),
        ("user",                  |_, _| admin(1, AdminCommand::DeleteUser { name: "u".into() }), &["1 done"], true),
        ("no such user",          |_, _| admin(1, AdminCommand::DeleteUser { name: "w".into() }), &["1 refused 406"], false),
        ("vhost gone",            |_, _| admin(1, AdminCommand::DeleteVhost { name: "/".into() }), &VHOST_GONE, true),
        ("definitions",           |_, _| admin(1, import(r#"{"queues":[{"vhost":"/","name":"n"}]}"#)), &["1 told", "0 created"], true),
        ("same definitions",      |_, _| admin(1, import(r#"{"queues":[{"vhost":"/","name":"q"}]}"#)), &["1 told"], false),
        ("refused halfway",       |_, _| admin(1, import(HALF)), &["1 refused 406", "0 created", "0 options"], true),
        ("connection gone",       |_, _| ToMeta::Disconnected { connection: NodeId::ALONE.connection(9), reply: Some(reply(9)) }, &["0 delete"], false),
    ];
    for (what, command, answers, waits) in rows {
        let mut world = World::new();
        let v = world.vhost;
        let mut letters = vec![declare_exchange(v, 9, "x", true), world.declare(9, "q")];
        letters.extend([declare_queue(v, 9, "t", false, false), declare_exchange(v, 9, "y", false)]);
        letters.push(declare_queue(v, 9, "e", true, true));
        letters.push(ToMeta::Bind(binding(v, 9, "x", "q")));
        world.turn(letters);
        world.disk_finishes();
        world.answers();

        world.turn([command(&world, v)]);
        let given = world.answers();
        if *waits {
            assert_eq!(given, [""; 0], "{what}: nothing before the disk has it");
            let before = world.crash();
            world.disk_finishes();
            assert_eq!(world.answers(), *answers, "{what}");
            let after = world.crash();
            assert_eq!(after.topology.describe_durable(), world.topology.describe_durable(), "{what}");
            assert_ne!(before.topology.describe_durable(), after.topology.describe_durable(), "{what}");
        } else {
            assert_eq!(given, *answers, "{what}: at once");
            assert_eq!(world.crash().topology.describe_durable(), world.topology.describe_durable(), "{what}");
        }
    }
}

/// Who changes nothing durable passes who waits; batches are answered in their order.
#[test]
fn answers_come_with_their_batch() {
    let mut world = World::new();
    let v = world.vhost;
    world.turn([world.declare(1, "q1"), declare_queue(v, 2, "t", false, false)]);
    assert_eq!(world.answers(), ["2 created"]);
    // The disk is busy with q1: these two wait for the batch after it.
    world.turn([world.declare(3, "q2"), declare_exchange(v, 4, "y", false)]);
    assert_eq!(world.answers(), ["4 done"]);
    world.turn([world.declare(5, "q3")]);
    world.disk_finishes();
    assert_eq!(world.answers(), ["1 created"]);
    assert_eq!(world.log.hand().batches, 2);
    world.disk_finishes();
    assert_eq!(world.answers(), ["3 created", "5 created"]);
    world.turn([ToMeta::LogWoke]);
    assert_eq!(world.answers(), [""; 0]);
}

/// The same for operators: what another one has just done is done when it is on disk.
#[test]
fn what_operators_did_is_waited_for() {
    let commands: [fn() -> AdminCommand; 4] = [
        || AdminCommand::AddVhost { name: "v".into() },
        || AdminCommand::PutVhost {
            name: "v".into(),
            description: None,
            tags: None,
            default_queue_type: None,
            tracing: None,
        },
        || AdminCommand::DeleteVhost { name: "/".into() },
        || AdminCommand::PutUser { name: "u".into(), password: None, tags: Some(Vec::new()) },
    ];
    for (at, command) in commands.into_iter().enumerate() {
        let mut world = World::new();
        world.turn([admin(1, command())]);
        world.turn([admin(2, command())]);
        let given = world.answers();
        // Gone is refused, and that may be told.
        assert!(given.iter().all(|it| it.contains("refused")), "{at}: {given:?}");
        world.disk_finishes();
        while world.log.hand().finish() {
            world.turn([ToMeta::LogWoke]);
        }
        assert!(world.answers().contains(&"1 done".to_owned()), "{at}");
    }
}

/// Two operators who set limits at once do not undo each other; nor do tags that are not given.
#[test]
fn changes_are_merged() {
    let mut world = World::new();
    let limits = |name: &str, limit| AdminCommand::SetVhostLimits {
        vhost: "/".into(),
        limits: [(name.to_owned(), limit)].into(),
    };
    world.turn([admin(1, limits("max-queues", 3)), admin(2, limits("max-connections", 4))]);
    let vhost = world.topology.vhost("/").unwrap();
    assert_eq!((vhost.max_queues(), vhost.max_connections()), (Some(3), Some(4)));
    let user = |tags: Option<&[&str]>, password: Option<&str>| AdminCommand::PutUser {
        name: "u".into(),
        password: password.map(|it| PasswordHash::new(it, [1; 4])),
        tags: tags.map(|tags| tags.iter().map(|&it| it.to_owned()).collect()),
    };
    world.turn([admin(1, user(Some(&["monitoring"]), None)), admin(2, user(None, Some("new")))]);
    let user = world.topology.user("u").unwrap();
    assert_eq!(user.tags, ["monitoring"]);
}

/// To find something there, or gone, is no answer as long as its maker has none.
#[test]
fn what_others_did_is_waited_for() {
    let mut world = World::new();
    let v = world.vhost;
    let commands = |world: &World| {
        let mut letters = vec![world.declare(2, "q"), declare_exchange(v, 3, "x", true)];
        letters.push(ToMeta::Bind(binding(v, 4, "x", "q")));
        letters
    };
    world.turn(commands(&world));
    world.turn(commands(&world));
    assert_eq!(world.answers(), [""; 0]);
    world.disk_finishes();
    let all = ["3 done", "4 done", "3 done", "4 done", "2 created", "0 replay", "2 counted"];
    assert_eq!(world.answers(), all);
    for _ in 0..2 {
        let unbind = ToMeta::Unbind(binding(v, 5, "x", "q"));
        world.turn([unbind, delete_exchange(v, 6, "x")]);
    }
    assert_eq!(world.answers(), [""; 0]);
    world.disk_finishes();
    let all = ["5 done", "6 done", "5 done", "6 done", "0 forget"];
    assert_eq!(world.answers(), all);
}

/// A record that is replaced before it was written is a hole: who wrote it waits all the same.
#[test]
fn a_withdrawn_record_answers_nobody() {
    let mut world = World::new();
    world.turn([world.declare(1, "busy")]);
    world.turn([policy(2, "p", 1)]);
    world.turn([policy(3, "p", 2)]);
    world.turn([world.declare(4, "q")]);
    world.turn([world.gone(5, "q")]);
    world.disk_finishes();
    assert_eq!(world.answers(), ["1 created"]);
    world.disk_finishes();
    assert_eq!(world.answers(), ["2 done", "3 done", "5 deleted 7", "4 created"]);
    let after = world.crash();
    assert_eq!(after.topology.describe_durable(), world.topology.describe_durable());
}

/// A deletion is only releases: they are on disk before it is answered, and marks do not pile up.
#[test]
fn deletions() {
    let mut world = World::new();
    let held = world.log.hand().held.len();
    for _ in 0..50 {
        world.turn([world.declare(1, "q")]);
        world.disk_finishes();
        world.turn([ToMeta::Bind(binding(world.vhost, 1, "amq.direct", "q"))]);
        world.disk_finishes();
        world.answers();
        world.turn([world.gone(1, "q")]);
        assert!(world.crash().queue("q").is_some());
        world.disk_finishes();
        assert_eq!(world.answers(), ["1 deleted 7"]);
        assert!(world.crash().queue("q").is_none());
    }
    assert_eq!(
        world.log.hand().held.len(),
        held + 1,
        "the mark before the last goes with the next batch"
    );
}

/// What one letter did is there as a whole or not at all, and so is a whole turn.
#[test]
fn batches_are_whole() {
    let mut world = World::new();
    let v = world.vhost;
    let empty = world.topology.describe_durable();
    let queues: Vec<_> = (0..100).map(|n| format!(r#"{{"vhost":"/","name":"q{n}"}}"#)).collect();
    let json = format!(r#"{{"queues":[{}]}}"#, queues.join(","));
    world.turn([admin(1, import(&json)), declare_exchange(v, 2, "x", true)]);
    assert_eq!(world.crash().topology.describe_durable(), empty);
    world.disk_finishes();
    assert_eq!(world.log.hand().batches, 2);
    let full = world.topology.describe_durable();
    assert_eq!(world.crash().topology.describe_durable(), full);
    world.turn([admin(1, AdminCommand::DeleteVhost { name: "/".into() })]);
    assert_eq!(world.crash().topology.describe_durable(), full);
    world.disk_finishes();
    assert_eq!(world.crash().topology.vhosts().count(), 0);
}

/// After a failed sync nothing is claimed: not what waited, not what comes.
#[test]
fn a_failed_log() {
    let mut world = World::new();
    let v = world.vhost;
    world.turn([world.declare(1, "q1"), policy(2, "p", 1)]);
    world.turn([declare_exchange(v, 3, "x", true), world.declare(4, "q1")]);
    assert_eq!(world.answers(), [""; 0]);
    world.log.hand().fails = true;
    world.turn([world.declare(5, "q2"), declare_queue(v, 6, "t", false, false)]);
    let mut answers = world.answers();
    answers.sort();
    let refused = |me: u64| format!("{me} refused 541");
    assert_eq!(
        answers,
        [refused(1), refused(2), refused(3), refused(4), refused(5), "6 created".into()]
    );
    assert!(world.meta.failure().is_some());
    world.turn([world.declare(7, "q3"), declare_queue(v, 8, "t2", false, false)]);
    assert_eq!(world.answers(), [refused(7), refused(8)]);
    assert!(world.queue("q3").is_none(), "not even tried");
    // Who goes may go; a durable queue's end is not claimed.
    let disconnected =
        ToMeta::Disconnected { connection: NodeId::ALONE.connection(9), reply: Some(reply(9)) };
    world.turn([disconnected, world.gone(10, "t"), world.gone(11, "q1"), ToMeta::LogWoke]);
    assert_eq!(world.answers(), ["9 done", "10 deleted 7", &refused(11)]);
    let text = world.meta.failure().unwrap().to_string();
    assert!(text.contains("no such luck"), "{text}");
}

/// The text that a client sees.
#[test]
fn why_it_was_refused() {
    let mut world = World::new();
    world.log.hand().fails = true;
    world.turn([world.declare(1, "q")]);
    let Some((_, ToSession::Reply { reply: Reply::Refused { code, text }, .. })) =
        world.out.sessions.pop()
    else {
        panic!("{:?}", world.out)
    };
    assert_eq!(code, ReplyCode::InternalError);
    assert!(text.starts_with("the change could not be written to disk: "), "{text}");
}

/// A disk that is full refuses changes of every kind before they are made, deletions too: nothing of them is there, then or
/// once there is room.
#[test]
fn a_full_disk() {
    let mut world = World::new();
    let v = world.vhost;
    let name = String::from;
    world.turn([
        world.declare(1, "q"),
        declare_queue(v, 1, "t", false, false),
        declare_exchange(v, 1, "x", true),
        declare_exchange(v, 1, "y", false),
        policy(1, "there", 1),
    ]);
    world.disk_finishes();
    world.turn([ToMeta::Bind(binding(v, 1, "x", "q"))]);
    world.disk_finishes();
    world.answers();
    let before = world.topology.describe_durable();
    let records = world.log.hand().held.len();
    world.log.hand().is_full = true;
    let limits = || BTreeMap::from([(name("max-queues"), 1)]);
    let user_limits = || BTreeMap::from([(name("max-channels"), 1)]);
    let operators = policy_of("op", 1);
    let commands = [
        AdminCommand::SetOperatorPolicy { vhost: name("/"), policy: operators },
        AdminCommand::ClearPolicy { vhost: name("/"), name: name("there") },
        AdminCommand::SetVhostLimits { vhost: name("/"), limits: limits() },
        AdminCommand::SetUserLimits { name: name("u"), limits: user_limits() },
        AdminCommand::DeleteUser { name: name("u") },
        AdminCommand::DeleteVhost { name: name("/") },
        AdminCommand::AddVhost { name: name("new") },
        AdminCommand::SetUserTags { name: name("u"), tags: vec![name("administrator")] },
        AdminCommand::SetGlobalParameter { name: name("g"), value: 1.into() },
        import(r#"{"queues":[{"vhost":"/","name":"new"}]}"#),
    ];
    let delete = |me, exchange: &str| ToMeta::DeleteExchange {
        by: Box::default(),
        reply: reply(me),
        vhost: v,
        name: exchange.into(),
        if_unused: false,
    };
    let letters = [
        world.declare(2, "new"),
        declare_exchange(v, 2, "new", true),
        policy(2, "p", 1),
        ToMeta::Bind(binding(v, 2, "amq.direct", "q")),
        ToMeta::Unbind(binding(v, 2, "x", "q")),
        delete(2, "x"),
    ];
    let all = letters.into_iter().chain(commands.into_iter().map(|command| admin(2, command)));
    let all: Vec<_> = all.collect();
    let refused = vec![name("2 refused 506"); all.len()];
    world.turn(all);
    assert_eq!(world.answers(), refused);
    assert_eq!(world.topology.describe_durable(), before);
    assert_eq!(world.log.hand().held.len(), records);
    // What is there is found, and what is not to be written goes on.
    world.turn([
        world.declare(3, "q"),
        declare_exchange(v, 4, "x", true),
        declare_queue(v, 5, "t2", false, false),
        delete(6, "y"),
        world.gone(7, "t"),
        ToMeta::IsWell { reply: reply(8) },
    ]);
    while world.log.hand().finish() {
        world.turn([ToMeta::LogWoke]);
    }
    let mut answers = world.answers();
    answers.sort();
    let want = ["3 counted", "4 done", "5 created", "6 done", "7 deleted 7", "8 done"];
    answers.retain(|it| !it.ends_with("forget"));
    assert_eq!(answers, want);
    world.log.hand().is_full = false;
    world.turn([world.declare(9, "later")]);
    world.disk_finishes();
    assert_eq!(world.answers(), ["9 created"]);
    let later = world.queue("later").is_some();
    let after = world.crash();
    assert!(later && after.queue("later").is_some() && after.queue("new").is_none());
    assert_eq!(after.topology.describe_durable(), world.topology.describe_durable());
}

/// What can be refused by nobody any more waits for room: a queue is gone when the last of it was taken by others.
#[test]
fn what_is_done_on_a_full_disk_waits() {
    let mut world = World::new();
    world.turn([world.declare(1, "q")]);
    world.disk_finishes();
    world.answers();
    world.log.hand().is_full = true;
    world.turn([world.gone(2, "q"), policy(3, "p", 1)]);
    assert_eq!(world.answers(), ["3 refused 506"]);
    assert!(world.crash().queue("q").is_some());
    world.log.hand().is_full = false;
    world.disk_finishes();
    assert_eq!(world.answers(), ["2 deleted 7"]);
    assert!(world.crash().queue("q").is_none());
}

/// Operators' changes leave some of the last room to deletions.
#[test]
fn deletions_have_the_last_room() {
    let mut world = World::new();
    world.turn([policy(1, "p", 1)]);
    world.disk_finishes();
    world.answers();
    world.log.hand().len_max = Some(leveret_broker::meta::DELETION_ROOM as usize);
    let clear = AdminCommand::ClearPolicy { vhost: "/".into(), name: "p".into() };
    world.turn([policy(2, "p2", 1), admin(3, clear)]);
    world.disk_finishes();
    assert_eq!(world.answers(), ["2 refused 506", "3 done"]);
    assert_eq!(world.log.hand().len_max.take(), Some(leveret_broker::meta::DELETION_ROOM as usize));
    let long = serde_json::json!("long".repeat(1 << 20));
    world.log.hand().len_max = Some(2 << 20);
    let set = AdminCommand::SetGlobalParameter { name: "g".into(), value: long };
    world.turn([admin(4, set), policy(5, "p3", 1)]);
    world.disk_finishes();
    let answers = world.answers();
    assert!(answers[0] == "4 refused 506" && answers[1] == "5 done", "{answers:?}");
}

/// While room is short nothing is made that would have to be written, and nothing of it is left; what is there is
/// found, and what is deleted goes.
#[test]
fn while_room_is_short() {
    let mut world = World::new();
    let v = world.vhost;
    world.turn([world.declare(1, "q"), declare_exchange(v, 1, "x", true)]);
    world.disk_finishes();
    world.answers();
    world.log.hand().is_short = true;
    world.turn([
        world.declare(2, "new"),
        declare_exchange(v, 3, "new", true),
        policy(4, "p", 1),
        world.declare(5, "q"),
        declare_exchange(v, 6, "x", true),
        declare_queue(v, 7, "t", false, false),
    ]);
    while world.log.hand().finish() {
        world.turn([ToMeta::LogWoke]);
    }
    let mut answers = world.answers();
    answers.sort();
    let want = [
        "0 options",
        "2 refused 506",
        "3 refused 506",
        "4 done",
        "5 counted",
        "6 done",
        "7 created",
    ];
    assert_eq!(answers, want);
    assert!(world.queue("new").is_none());
    world.turn([world.gone(8, "q")]);
    world.disk_finishes();
    assert_eq!(world.answers(), ["8 deleted 7"]);
    world.log.hand().is_short = false;
    world.turn([world.declare(9, "new")]);
    world.disk_finishes();
    assert_eq!(world.answers(), ["9 created"]);
    let after = world.crash();
    assert!(after.queue("q").is_none() && after.queue("new").is_some());
}

/// What is decided on a transaction is what is written down of it, whether or not there is room for what
/// others changed: else a restart would find it done that everybody was told is not.
#[test]
fn a_decision_while_others_find_no_room() {
    let mut world = World::new();
    world.log.hand().len_max = Some(200);
    world.turn([world.declare(1, &"long".repeat(60))]);
    assert_eq!(world.answers(), ["1 refused 506"]);
    let (tx, acked) = (TxId::new(7), vec![(QueueId::new(3), Offset::new(9))]);
    let vote = Vote::Yes { is_kept: true, acked };
    let votes = (0..SHARDS).map(GroupId::at).map(|group| ToMeta::Prepared {
        from: NodeId::ALONE.connection(1),
        tx,
        group,
        parts: SHARDS as u32,
        vote: vote.clone(),
    });
    world.turn(votes);
    while world.log.hand().finish() {
        world.turn([ToMeta::LogWoke]);
    }
    let told = world.out.shards.drain(..).map(|(_, letter)| match letter {
        ToShard::Decide { commit, .. } => commit,
        other => panic!("{other:?}"),
    });
    let told: Vec<bool> = told.collect();
    let is_there = format!("{:?}", world.crash().meta.decided()).contains("TxId(7)");
    assert_eq!(told, [is_there; SHARDS]);
    assert!(is_there, "there was room for it");
}
