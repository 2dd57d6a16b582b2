//! Changes of one topology, applied to another: both are the same.

use std::collections::BTreeSet;

use leveret_amqp::table::{Table, Value};
use leveret_topology::stored::{Kind, StoredError};
use leveret_topology::{
    Applied, ArgumentsChange, BindingId, Change, Destination, EntityKey, ExchangeId, ExchangeSpec,
    Homes, NodeId, PasswordHash, QueueId, QueueSpec, SWEPT_AT_ONCE, Topology, VhostId,
};
use serde_json::json;

use crate::common::{OWNER, Rng, table};
use crate::stored::{PASSWORD, Shelf, change, exchange, policy, queue, restore_among};

/// The groups that the one knows that changes.
const LEADERS: Homes = Homes::among(5);

/// A topology with other groups: fewer, and another rule.
fn elsewhere() -> Topology {
    let mut topology = Topology::new();
    topology.set_homes(Homes::among(3));
    topology
}

/// A topology that changes, what a log has of it, and a topology that follows.
struct Pair {
    leader: Topology,
    shelf: Shelf,
    follower: Topology,
    /// The follower saw all that its leader did: ids that were used, and what is going.
    saw_all: bool,
}

impl Pair {
    fn new() -> Self {
        let mut leader = Topology::new();
        leader.set_homes(LEADERS.by_chance(1));
        Self { leader, shelf: Shelf::default(), follower: elsewhere(), saw_all: true }
    }

    /// All that changed since the last batch, in the order given by `rng`.
    fn batch(&mut self, rng: &mut Rng) -> Vec<Change> {
        let noted = self.leader.take_changes();
        let stored: Vec<_> =
            noted.iter().filter(|it| it.is_stored).map(|it| it.key.clone()).collect();
        self.shelf.keep_all(&stored, &mut self.leader);
        let mut batch: Vec<_> = noted.into_iter().map(|it| self.leader.change(it)).collect();
        for at in (1..batch.len()).rev() {
            batch.swap(at, rng.below(at + 1));
        }
        batch
    }

    /// Has the follower follow; some batches come twice.
    #[track_caller]
    fn follow(&mut self, rng: &mut Rng) {
        let batch = self.batch(rng);
        for _ in 0..=usize::from(rng.chance(20)) {
            let applied = self.follower.apply(&batch).unwrap();
            end(applied, &mut self.follower);
        }
        self.check();
    }

    /// As far as the leader is in order itself: a policy that is being set is not.
    #[track_caller]
    fn check(&self) {
        assert_same(&self.follower.describe(), &self.leader.describe());
        if self.saw_all {
            assert_eq!(self.follower.next_ids(), self.leader.next_ids());
            assert_eq!(self.follower.weight(), self.leader.weight());
        }
        self.follower.assert_invariants();
        assert!(!self.follower.has_changes() && !self.follower.has_only_transient_changes());
    }

    /// A follower that begins with all that there is: a new one, or one that has what it had, perhaps of another life of its leader.
    /// What is noted and not taken yet comes again.
    #[track_caller]
    fn begin_again(&mut self, rng: &mut Rng) {
        if rng.chance(50) {
            self.follower = elsewhere();
        }
        self.saw_all = false;
        let batch = self.follower.changes_towards(self.leader.snapshot());
        let before = (self.follower.generation(), self.follower.access_generation());
        let applied = self.follower.apply(&batch).unwrap();
        end(applied, &mut self.follower);
        let after = (self.follower.generation(), self.follower.access_generation());
        assert!(before.0 < after.0 && before.1 < after.1, "who remembers routes looks anew");
        self.check();
        self.follow(rng);
    }

    /// The leader's process ends, and another one begins with what its log has.
    fn restart(&mut self) {
        self.leader = restore_among(LEADERS.by_chance(2), &self.shelf.records());
        // Bindings have other ids.
        self.shelf = Shelf::default();
        self.leader.note_all();
    }
}

/// Shows the lines that only one of both has.
#[track_caller]
fn assert_same(got: &str, want: &str) {
    let [got, want] = [got, want].map(|text| text.lines().collect::<BTreeSet<_>>());
    let more: Vec<_> = got.difference(&want).take(5).collect();
    let less: Vec<_> = want.difference(&got).take(5).collect();
    assert!(more.is_empty() && less.is_empty(), "more: {more:#?}\nless: {less:#?}");
}

/// Whoever applies changes brings policies to their end.
fn end(applied: Applied, topology: &mut Topology) {
    for mut change in applied.policies {
        change.advance(topology, u64::MAX).unwrap();
        change.end(topology);
    }
}

/// One change more of those that do not survive a restart, or that have pieces.
fn more(rng: &mut Rng, topology: &mut Topology) {
    let vhost = rng.pick(&["a", "b", "c"]);
    let name = rng.pick(&["q1", "q2", "q3"]);
    match rng.below(7) {
        0 => drop(topology.set_tracing(vhost, rng.chance(60))),
        1 => drop(topology.protect_vhost(vhost, rng.chance(10))),
        2 => {
            let set = table([("x-max-length", Value::I32(rng.below(9) as i32))]);
            let change = ArgumentsChange { keeps: true, set, remove: Vec::new() };
            drop(topology.set_queue_arguments(vhost, name, change));
        }
        3 => {
            let queues = topology.queues_owned_by(OWNER);
            queues.into_iter().for_each(|id| drop(topology.remove_queue(id)));
        }
        4 => {
            let file = json!({
                "vhosts": [{ "name": vhost, "metadata": { "description": name } }],
                "queues": [{ "vhost": vhost, "name": name, "durable": rng.chance(50), "arguments": {} }],
                "bindings": [{ "vhost": vhost, "source": "amq.fanout", "destination": name,
                    "destination_type": "queue", "routing_key": "", "arguments": {} }],
            });
            drop(topology.import_definitions(&file.to_string()));
        }
        5 => drop(topology.set_user_limits("u", [("max-channels".into(), 3)].into())),
        _ => {
            let id = topology.vhost(vhost).and_then(|it| it.queue_id(name));
            id.into_iter().for_each(|id| topology.queue_declared_by(id, "v"));
        }
    }
}

#[test]
fn at_random() {
    for seed in 0..60 {
        let mut rng = Rng(seed);
        let mut pair = Pair::new();
        for _ in 0..250 {
            if rng.chance(80) {
                change(&mut rng, &mut pair.leader);
            } else {
                more(&mut rng, &mut pair.leader);
            }
            if rng.chance(40) {
                pair.follow(&mut rng);
            }
            if rng.chance(2) {
                pair.follow(&mut rng);
                pair.restart();
                pair.begin_again(&mut rng);
                pair.restart_has_what_was_stored();
            } else if rng.chance(2) {
                pair.begin_again(&mut rng);
            }
        }
        pair.follow(&mut rng);
    }
}

impl Pair {
    /// What a follower has of a leader that came back is what the log had.
    #[track_caller]
    fn restart_has_what_was_stored(&self) {
        assert_same(
            &self.follower.describe_durable(),
            &restore_among(LEADERS.by_chance(2), &self.shelf.records()).describe_durable(),
        );
    }
}

/// An exchange, a queue and a vhost that go in pieces are gone for a follower with the first one.
#[test]
fn in_pieces() {
    let mut rng = Rng(1);
    let mut pair = Pair::new();
    let t = &mut pair.leader;
    let v = t.add_vhost("v").unwrap();
    for durable in [true, false] {
        let x = if durable { "x" } else { "tx" };
        t.declare_exchange(ExchangeSpec { durable, ..exchange(v, x, "direct") }).unwrap();
        let auto = format!("{x}-auto");
        let spec = ExchangeSpec { durable, auto_delete: true, ..exchange(v, &auto, "topic") };
        t.declare_exchange(spec).unwrap();
        t.bind(v, &auto, Destination::Exchange(x), "", Table::new(), None).unwrap();
    }
    t.declare_queue(queue(v, "q")).unwrap();
    t.declare_queue(queue(v, "other")).unwrap();
    for number in 0..SWEPT_AT_ONCE + 100 {
        let key = number.to_string();
        for x in ["x", "tx", "amq.topic"] {
            t.bind(v, x, Destination::Queue("q"), &key, Table::new(), None).unwrap();
        }
        t.bind(v, "amq.topic", Destination::Queue("other"), &key, Table::new(), None).unwrap();
    }
    pair.follow(&mut rng);
    for x in ["x", "tx"] {
        let mut sweep = pair.leader.start_delete_exchange(v, x, false).unwrap().unwrap();
        pair.follow(&mut rng);
        // The name is free.
        pair.leader.declare_exchange(exchange(v, x, "fanout")).unwrap();
        pair.leader.bind(v, x, Destination::Queue("q"), "", Table::new(), None).unwrap();
        while !sweep.is_done() {
            pair.leader.sweep(&mut sweep, 100);
            pair.follow(&mut rng);
            if rng.chance(30) {
                pair.begin_again(&mut rng);
            }
        }
        assert!(pair.follower.exchange(v, &format!("{x}-auto")).is_none());
    }
    let q = pair.leader.queue(v, "q").unwrap().id;
    let mut sweep = pair.leader.start_remove_queue(q).unwrap();
    pair.follow(&mut rng);
    while !sweep.is_done() {
        pair.leader.sweep(&mut sweep, 100);
        pair.follow(&mut rng);
    }
    let id = pair.leader.start_delete_vhost("v").unwrap();
    pair.follow(&mut rng);
    pair.leader.add_vhost("v").unwrap();
    pair.follow(&mut rng);
    for queue in pair.leader.queues_of_going(id) {
        let mut sweep = pair.leader.start_remove_queue(queue).unwrap();
        pair.leader.sweep(&mut sweep, u64::MAX);
        pair.follow(&mut rng);
    }
    let mut sweep = pair.leader.rest_of_vhost(id);
    while !sweep.is_done() {
        pair.leader.sweep(&mut sweep, 3);
        pair.follow(&mut rng);
    }
    pair.leader.end_vhost(id);
    pair.follow(&mut rng);
    // Nothing is left of what went.
    assert_eq!(pair.follower.binding_count(), pair.leader.binding_count());
    assert_eq!(pair.follower.going_vhosts().count(), 0);
}

/// Who listens at a follower hears what who listens at the leader does, if perhaps in another order.
#[test]
fn events() {
    type Step = fn(&mut Topology, VhostId);
    #[rustfmt::skip] // a table
    let steps: [Step; 16] = [
        |t, _| { t.add_vhost("w").unwrap(); },
        |t, _| t.set_tracing("w", true).unwrap(),
        |t, _| { t.set_parameter("v", "vhost-limits", "limits", json!({ "max-queues": 9 })).unwrap(); },
        |t, _| t.add_user("u", PasswordHash::new("p", PASSWORD), &["a"]).unwrap(),
        |t, _| t.change_password("u", PasswordHash::new("q", PASSWORD)).unwrap(),
        |t, _| t.set_tags("u", &["b"]).unwrap(),
        |t, _| t.set_permissions("u", "v", "", "", ".*").unwrap(),
        |t, _| t.set_topic_permissions("u", "v", "amq.topic", "", ".*").unwrap(),
        |t, _| t.clear_permissions("u", "v").unwrap(),
        |t, _| t.delete_user("u").unwrap(),
        |t, v| { t.declare_queue(queue(v, "q1")).unwrap(); },
        |t, v| { t.bind(v, "amq.direct", Destination::Queue("q1"), "k", Table::new(), None).unwrap(); },
        |t, _| { t.set_policy("v", policy("p", false)).unwrap(); },
        |t, _| { t.clear_policy("v", "p").unwrap(); },
        |t, v| { let id = t.queue(v, "q1").unwrap().id; t.remove_queue(id); },
        |t, _| { t.set_global_parameter("g", json!(1)).unwrap(); t.set_global_parameter("h", json!(2)).unwrap(); t.clear_global_parameter("h"); },
    ];
    let mut rng = Rng(1);
    let mut pair = Pair::new();
    let v = pair.leader.add_vhost("v").unwrap();
    pair.follow(&mut rng);
    for topology in [&mut pair.leader, &mut pair.follower] {
        topology.open_events("rabbit@here", "v");
        topology.keep_events();
    }
    pair.leader.take_changes();
    pair.follower.take_changes();
    for (number, step) in steps.iter().enumerate() {
        step(&mut pair.leader, v);
        let batch = pair.batch(&mut rng);
        let applied = pair.follower.apply(&batch).unwrap();
        end(applied, &mut pair.follower);
        let told = |topology: &mut Topology| {
            let mut events: Vec<_> =
                topology.take_events().iter().map(|event| format!("{event:?}")).collect();
            events.sort_unstable();
            events
        };
        let (mut want, got) = (told(&mut pair.leader), told(&mut pair.follower));
        if number == steps.len() - 1 {
            // What came and went within a batch was never there for a follower.
            let of_g = format!("{:?}", Value::LongStr(b"g".to_vec()));
            want.retain(|event| event.contains(&of_g));
        }
        assert_eq!(got, want, "step {number}");
    }
}

/// A node that is given up takes with it what was its own, and nothing else.
#[test]
fn of_a_node_that_is_gone() {
    let mut rng = Rng(1);
    let mut pair = Pair::new();
    pair.leader.set_homes(Homes::among(4));
    let t = &mut pair.leader;
    let v = t.add_vhost("v").unwrap();
    let gone = NodeId::new(2).unwrap();
    let owners = [
        ("first", gone.connection(1)),
        ("last", gone.connection((1 << 40) - 1)),
        ("own", OWNER),
        ("next", NodeId::new(3).unwrap().connection(0)),
    ];
    for (name, owner) in owners {
        t.declare_queue(QueueSpec { exclusive_owner: Some(owner), ..queue(v, name) }).unwrap();
    }
    for name in ["t0", "t1"] {
        t.declare_queue(QueueSpec { durable: false, ..queue(v, name) }).unwrap();
    }
    for name in ["d0", "d1", "d2", "d3"] {
        t.declare_queue(queue(v, name)).unwrap();
    }
    for name in ["auto", "shared"] {
        let spec = ExchangeSpec { auto_delete: true, ..exchange(v, name, "topic") };
        t.declare_exchange(spec).unwrap();
    }
    for number in 0..SWEPT_AT_ONCE + 1 {
        let (key, to) = (number.to_string(), Destination::Queue("first"));
        t.bind(v, "auto", to, &key, Table::new(), None).unwrap();
    }
    for name in ["first", "last", "own", "t0", "t1", "d0"] {
        t.bind(v, "shared", Destination::Queue(name), "", Table::new(), None).unwrap();
    }
    pair.follow(&mut rng);
    let lost = pair.leader.home(pair.leader.queue(v, "t1").unwrap().id);
    assert_ne!(pair.leader.home(pair.leader.queue(v, "t0").unwrap().id), lost);
    assert_eq!(pair.leader.home(pair.leader.queue(v, "d3").unwrap().id), lost);

    let mut sweep = pair.leader.node_is_gone(gone, &[lost]);
    pair.follow(&mut rng);
    for topology in [&pair.leader, &pair.follower] {
        let mut names: Vec<_> = topology.queues(v).into_iter().map(|queue| &*queue.name).collect();
        names.sort_unstable();
        assert_eq!(names, ["d0", "d1", "d2", "d3", "next", "own", "t0"]);
    }
    while !sweep.is_done() {
        pair.leader.sweep(&mut sweep, 100);
        pair.follow(&mut rng);
    }
    for topology in [&pair.leader, &pair.follower] {
        assert_eq!(topology.binding_count(), 3);
        assert!(topology.exchange(v, "auto").is_none() && topology.exchange(v, "shared").is_some());
        assert_eq!(topology.queues_owned_by(OWNER).len(), 1);
    }
    // Who asks twice gets the answer of once.
    assert!(pair.leader.node_is_gone(gone, &[lost]).is_done());
    pair.follow(&mut rng);
}

/// What a recent-history exchange remembers is where its own topology says, whatever groups another one knows.
#[test]
fn what_an_exchange_remembers_has_one_home() {
    let mut rng = Rng(3);
    let mut pair = Pair::new();
    let v = pair.leader.add_vhost("v").unwrap();
    let ids: Vec<_> =
        (0..20).map(|number| exchange_named(&mut pair.leader, v, &number.to_string())).collect();
    pair.follow(&mut rng);
    for &id in &ids {
        assert_eq!(pair.follower.history_home(id), pair.leader.history_home(id));
    }
    let homes: BTreeSet<_> = ids.iter().map(|&id| pair.leader.history_home(id)).collect();
    assert!(homes.iter().any(|home| home.get() >= 3), "no home elsewhere: {homes:?}");
    // Those that go say where what they remembered is.
    let want: Vec<_> = ids.iter().map(|&id| (id, pair.leader.history_home(id))).collect();
    let deleted = pair.leader.delete_vhost("v").unwrap().exchanges;
    let mut gone: Vec<_> = deleted.iter().map(|it| (it.id, it.home)).collect();
    gone.retain(|(id, _)| ids.contains(id));
    assert_eq!(gone, want);
}

fn exchange_named(topology: &mut Topology, vhost: VhostId, name: &str) -> ExchangeId {
    topology.declare_exchange(exchange(vhost, name, "x-recent-history")).unwrap()
}

/// Bytes that are no change of what they say are refused.
#[test]
fn damaged_changes() {
    let mut topology = Topology::new();
    let v = topology.add_vhost("v").unwrap();
    let id = topology
        .declare_queue(QueueSpec { exclusive_owner: Some(OWNER), ..queue(v, "q") })
        .unwrap()
        .id;
    let mut noted = topology.take_changes().into_iter();
    let noted = noted.find(|it| it.key == EntityKey::Queue(id)).unwrap();
    let good = topology.change(noted);
    assert_eq!((good.key.clone(), good.is_stored), (EntityKey::Queue(id), false));
    let key = EntityKey::Queue(id);
    let mut record = topology.head(&key).to_vec();
    assert!(topology.store(&key, &mut record));
    let homeless = Change { record: Some(record.into()), ..good.clone() };
    let x = topology.declare_exchange(exchange(v, "x", "x-recent-history")).unwrap();
    let key = EntityKey::Exchange(x);
    let mut record = topology.head(&key).to_vec();
    assert!(topology.store(&key, &mut record));
    let record = Some(record.into());
    let forgetful = Change { key, is_stored: true, record };
    let mut refused = |change: Change| topology.apply(&[change]).unwrap_err();
    let stored = Change { is_stored: true, ..good.clone() };
    assert!(matches!(refused(stored), StoredError::Transient { is_stored: false }));
    let other = Change { key: EntityKey::Queue(QueueId::new(99)), ..good.clone() };
    assert!(matches!(refused(other), StoredError::Other(EntityKey::Queue(it)) if it == id));
    // Whose home is not told, or cannot be.
    assert!(matches!(refused(homeless), StoredError::Homeless));
    assert!(matches!(refused(forgetful), StoredError::Homeless));
    let mut record = good.record.clone().unwrap();
    let at = record.len() - 4;
    record[at..].copy_from_slice(&[0, 0, 1, 0]);
    let nowhere = Change { record: Some(record), ..good.clone() };
    assert!(matches!(refused(nowhere), StoredError::Home { groups: 0x1_0000, .. }));
    let huge = Change { key: EntityKey::Binding(BindingId::new(u64::MAX)), record: None, ..good };
    assert!(matches!(refused(huge), StoredError::Id));
    let record = good.record.clone().unwrap();
    assert!(matches!(topology.restore(&record), Err(StoredError::Transient { is_stored: false })));
    let tracing = Kind::Tracing.head();
    assert!(matches!(topology.restore(&tracing), Err(StoredError::Kind(13))));
    let mut rng = Rng(1);
    for _ in 0..2000 {
        let mut bytes = record.to_vec();
        let at = rng.below(bytes.len());
        bytes[at] ^= 1 << rng.below(8);
        if rng.chance(30) {
            bytes.truncate(at);
        }
        let _ = topology.apply(&[Change { record: Some(bytes.into()), ..good.clone() }]);
    }
}
