//! What does not fit one turn of Meta: done in pieces, with others and crashes in between, and as if it had been one.

use leveret_broker::message::{AdminCommand, ToMeta, ToShard};
use leveret_topology::{Destination, QueueId, Routable, Route, Topology};

use crate::{World, admin, binding, declare_exchange, delete_exchange, import, policy, reply};

/// Names that one turn changes at most.
const TURN: usize = 256 + 128;

impl World {
    /// One more turn, if Meta wants one. What shards delete meanwhile is gone.
    fn go_on(&mut self) -> bool {
        let mut letters = std::mem::take(&mut self.out.meta);
        let deleted: Vec<QueueId> = self.deletes();
        letters.extend(deleted.into_iter().map(gone));
        if letters.is_empty() {
            return false;
        }
        let before = (self.topology.queue_count(), self.topology.binding_count());
        self.turn(letters);
        let after = (self.topology.queue_count(), self.topology.binding_count());
        assert!(before.0.abs_diff(after.0) <= TURN && before.1.abs_diff(after.1) <= TURN);
        // Meta hears of it with its next turn, which is a piece by itself.
        self.log.hand().finish();
        true
    }

    fn disk_catches_up(&mut self) {
        loop {
            self.turn([ToMeta::LogWoke]);
            if !self.log.hand().finish() {
                return;
            }
        }
    }

    fn deletes(&mut self) -> Vec<QueueId> {
        let shards = std::mem::take(&mut self.out.shards);
        let (mut deleted, mut rest) = (Vec::new(), Vec::new());
        for (shard, letter) in shards {
            match letter {
                ToShard::Delete { queue, .. } => deleted.push(queue),
                other => rest.push((shard, other)),
            }
        }
        self.out.shards = rest;
        deleted
    }

    fn go_on_to_the_end(&mut self) -> usize {
        let mut turns = 0;
        self.disk_catches_up();
        while self.go_on() {
            turns += 1;
            assert!(turns < 10_000, "it does not end");
        }
        self.disk_catches_up();
        self.topology.assert_invariants();
        turns
    }

    fn with_queues(count: usize) -> Self {
        let mut world = Self::new();
        world.turn([admin(1, import(&definitions(count)))]);
        world.go_on_to_the_end();
        world.out = Default::default();
        world
    }
}

fn gone(queue: QueueId) -> ToMeta {
    ToMeta::QueueGone { by: Box::default(), queue, reply: None, consumers: Vec::new(), more: false }
}

fn definitions(queues: usize) -> String {
    let each =
        |entry: &dyn Fn(usize) -> String| (0..queues).map(entry).collect::<Vec<_>>().join(",");
    let names = each(&|n| format!(r#"{{"vhost":"/","name":"q{n}"}}"#));
    let bindings = each(&|n| {
        format!(
            r#"{{"vhost":"/","source":"x","destination":"q{n}","destination_type":"queue","routing_key":"k.{n}"}}"#
        )
    });
    format!(
        r#"{{"exchanges":[{{"vhost":"/","name":"x","type":"topic"}}],
            "policies":[{{"vhost":"/","name":"p","pattern":"1$","definition":{{"max-length":1}}}}],
            "queues":[{names}],"bindings":[{bindings}]}}"#
    )
}

/// Letters of others go between, and the end is that of an import in one go.
#[test]
fn an_import() {
    let mut world = World::new();
    let vhost = world.vhost;
    let mut whole = Topology::new();
    whole.add_vhost("/").unwrap();
    whole.add_user("u", leveret_topology::PasswordHash::new("p", [0; 4]), &[]).unwrap();
    whole.import_definitions(&definitions(3_000)).unwrap();

    world.turn([admin(1, import(&definitions(3_000)))]);
    assert!(world.topology.queue_count() < TURN, "{}", world.topology.queue_count());
    assert!(world.out.sessions.is_empty(), "it is answered at its end");
    let mut others = 0;
    loop {
        // Somebody else's command is done in the very next turn.
        let name = format!("other{others}");
        world.out.meta.push(declare_exchange(vhost, 100, &name, true));
        if !world.go_on() || others > 100 {
            break;
        }
        assert!(world.topology.exchange(vhost, &name).is_some());
        others += 1;
        let after = (world.topology.queue_count(), world.topology.binding_count());
        let is_answered = world.out.sessions.iter().any(|(to, _)| to.number() == 1);
        if is_answered {
            assert_eq!((after.0, after.1), (3_000, 3_000));
            break;
        }
    }
    assert!((20..100).contains(&others), "{others}");
    for other in 0..others {
        world.topology.delete_exchange(vhost, &format!("other{other}"), false).unwrap();
    }
    // But for ids, which others took as well.
    let names = |topology: &Topology| {
        (topology.queue_count(), topology.binding_count(), topology.exchange_count())
    };
    assert_eq!(names(&world.topology), names(&whole));
    let policies = |topology: &Topology| {
        let all = topology.queues(topology.vhost("/").unwrap().id);
        all.iter().filter(|queue| queue.policy() == Some("p")).count()
    };
    assert_eq!(policies(&world.topology), policies(&whole));
    world.topology.assert_invariants();
}

/// Wherever the process ends, what was imported is what comes back, and the import can be repeated.
#[test]
fn an_import_that_is_cut() {
    for cut in 0..8 {
        let mut world = World::new();
        world.turn([admin(1, import(&definitions(2_000)))]);
        for _ in 0..cut {
            world.go_on();
        }
        let mut after = world.crash();
        assert!(after.topology.queue_count() <= world.topology.queue_count(), "{cut}");
        after.turn([admin(1, import(&definitions(2_000)))]);
        after.go_on_to_the_end();
        assert_eq!((after.topology.queue_count(), after.topology.binding_count()), (2_000, 2_000));
        assert!(after.answers().contains(&"1 told".to_owned()));
    }
}

/// A vhost is gone at once, for everybody and for good; its name can be given to another one while the rest goes.
#[test]
fn a_vhost_goes_in_pieces() {
    for cut in 0..9 {
        let mut world = World::with_queues(2_000);
        world.turn([admin(1, AdminCommand::DeleteVhost { name: "/".into() })]);
        assert!(world.topology.vhost("/").is_none() && world.topology.queue_count() == 0);
        assert!(world.topology.queue(world.vhost, "q1").is_none());
        world.turn([admin(2, AdminCommand::AddVhost { name: "/".into() })]);
        while world.log.hand().finish() {
            world.turn([ToMeta::LogWoke]);
        }
        for _ in 0..cut {
            world.go_on();
        }
        let mut world = if cut % 2 == 0 { world } else { world.crash() };
        assert_eq!(world.topology.vhosts().count(), 1, "{cut}");
        if cut % 2 == 1 {
            // The first turn of a process is one that the node gives it.
            world.turn([ToMeta::Continue]);
        }
        world.go_on_to_the_end();
        assert_eq!(world.topology.going_vhosts().count(), 0, "{cut}");
        assert_eq!((world.topology.queue_count(), world.topology.binding_count()), (0, 0));
        assert_eq!(world.topology.exchange_count(), 7);
        let after = world.crash();
        assert_eq!(after.topology.describe_durable(), world.topology.describe_durable());
        if cut % 2 == 0 {
            let answers = world.answers();
            let done = answers.iter().filter(|it| it.as_str() == "1 done").count();
            assert_eq!(done, 1, "{cut}");
        }
    }
}

/// An exchange is gone at once; nothing goes its way, and no list shows its bindings.
#[test]
fn an_exchange_goes_in_pieces() {
    for crashes in [false, true] {
        let mut world = World::with_queues(3_000);
        let vhost = world.vhost;
        world.turn([
            declare_exchange(vhost, 1, "source", true),
            declare_exchange(vhost, 1, "other", true),
        ]);
        let to = Destination::Exchange("x");
        world.topology.bind(vhost, "source", to, "k.2", Default::default(), None).unwrap();
        let source = world.topology.exchange(vhost, "source").unwrap().id;
        world.go_on_to_the_end();
        world.out = Default::default();

        world.turn([delete_exchange(vhost, 1, "x")]);
        assert!(world.out.sessions.is_empty(), "it is answered at its end");
        assert!(world.topology.exchange(vhost, "x").is_none());
        assert!(world.topology.binding_count() > 1_000, "in pieces");
        assert_eq!(world.topology.bindings(vhost).count(), 0);
        let mut route = Route::default();
        let message = Routable { key: "k.2", ..Routable::default() };
        world.topology.route(vhost, source, &message, &mut route);
        assert!(route.queues.is_empty());
        world.topology.assert_invariants();
        // The name is free.
        world.turn([declare_exchange(vhost, 2, "x", true)]);
        world.turn([ToMeta::Bind(binding(vhost, 2, "x", "q1"))]);
        assert_eq!(world.topology.bindings(vhost).count(), 1);
        while world.log.hand().finish() {
            world.turn([ToMeta::LogWoke]);
        }
        let mut world = if crashes { world.crash() } else { world };
        world.go_on_to_the_end();
        assert_eq!(world.topology.binding_count(), 1);
        assert!(world.topology.exchange(vhost, "x").is_some());
        let after = world.crash();
        assert_eq!(after.topology.describe_durable(), world.topology.describe_durable());
    }
}

/// A queue with very many bindings: the same.
#[test]
fn a_queue_goes_in_pieces() {
    let mut world = World::with_queues(1);
    let vhost = world.vhost;
    for at in 0..2_000 {
        let to = Destination::Queue("q0");
        world.topology.bind(vhost, "x", to, &at.to_string(), Default::default(), None).unwrap();
    }
    world.turn([world.gone(1, "q0")]);
    assert!(world.queue("q0").is_none() && world.topology.queue_count() == 0);
    assert_eq!(world.topology.bindings(vhost).count(), 0);
    assert!(world.topology.binding_count() > 1_000 && world.out.sessions.is_empty());
    world.go_on_to_the_end();
    assert_eq!(world.topology.binding_count(), 0);
    assert_eq!(world.answers(), ["1 deleted 7"]);
    assert_eq!(world.crash().topology.describe_durable(), world.topology.describe_durable());
}

/// Two changes of policies under way at once: in the end everything has what matches it best, and one that is cut short by a
/// crash is matched with everything by the next start.
#[test]
fn policies_in_pieces() {
    let mut world = World::with_queues(4_000);
    world.turn([policy(3, "a", 1)]);
    let has = |world: &World, name| {
        let queues = world.topology.queues(world.vhost);
        queues.iter().filter(|queue| queue.policy() == Some(name)).count()
    };
    assert!((1..4_000).contains(&has(&world, "a")), "in pieces");
    world.turn([admin(4, AdminCommand::ClearPolicy { vhost: "/".into(), name: "a".into() })]);
    world.turn([policy(5, "b", 2)]);
    while world.log.hand().finish() {
        world.turn([ToMeta::LogWoke]);
    }
    let after = world.crash();
    world.go_on_to_the_end();
    assert_eq!(has(&world, "a"), 0);
    assert!(has(&world, "b") > 3_000);
    assert_eq!(after.topology.describe_durable(), world.topology.describe_durable());
    let answers = world.answers();
    for who in ["3 done", "4 done", "5 done"] {
        assert!(answers.iter().any(|it| it == who), "{who}");
    }
}

/// A policy that is set as a parameter is one like others.
#[test]
fn parameters_in_pieces() {
    let mut world = World::with_queues(3_000);
    let has = |world: &World| {
        let queues = world.topology.queues(world.vhost);
        queues.iter().filter(|queue| queue.policy() == Some("a")).count()
    };
    for is_set in [true, false] {
        let (vhost, component, name) = ("/".into(), "policy".into(), "a".into());
        let value = serde_json::json!({
            "pattern": "^q", "definition": { "max-length": 3 }, "priority": 7,
        });
        let command = match is_set {
            true => AdminCommand::SetParameter { vhost, component, name, value },
            false => AdminCommand::ClearParameter { vhost, component, name },
        };
        let before = has(&world);
        world.turn([admin(3, command)]);
        assert!((1..=TURN).contains(&has(&world).abs_diff(before)), "{}", has(&world));
        world.go_on_to_the_end();
        assert_eq!(has(&world), if is_set { 3_000 } else { 0 });
        assert!(world.answers().contains(&"3 done".to_owned()));
    }
}

/// Exclusive queues go in pieces, and whoever waits for the last one is answered once.
#[test]
fn a_connection_goes_in_pieces() {
    let mut world = World::new();
    for at in 0..3_000 {
        world.turn([exclusive(&world, &at.to_string())]);
    }
    world.out = Default::default();
    let me = reply(9).connection;
    world.turn([ToMeta::Disconnected { connection: me, reply: Some(reply(9)) }]);
    assert!(world.out.shards.len() <= TURN, "{}", world.out.shards.len());
    world.go_on_to_the_end();
    assert_eq!(world.topology.queue_count(), 0);
    assert_eq!(world.answers(), ["9 done"]);
}

fn exclusive(world: &World, name: &str) -> ToMeta {
    ToMeta::DeclareQueue {
        by: Box::default(),
        reply: reply(9),
        vhost: world.vhost,
        name: name.into(),
        server_named: false,
        durable: false,
        exclusive: true,
        auto_delete: false,
        arguments: Default::default(),
        forbidden: None,
    }
}
