//! What survives a restart: every kind of thing row by row, at random, and byte by byte.

use std::collections::BTreeMap;

use leveret_amqp::table::{Table, Value};
use leveret_topology::stored::{Kind, Restored, StoredError};
use leveret_topology::{
    ApplyTo, ArgumentsChange, Destination, EntityKey, ExchangeSpec, Homes, Import, PasswordHash,
    PolicySpec, QueueId, QueueKind, QueueSpec, Topology, VhostId,
};
use serde_json::{Value as Json, json};

use crate::common::{OWNER, Rng, table, text};

/// Stored things as a log keeps them: one record by key, in the order in which they were written.
#[derive(Debug, Default)]
pub(crate) struct Shelf {
    records: BTreeMap<EntityKey, (u64, Vec<u8>)>,
    written: u64,
}

impl Shelf {
    /// Takes in what changed; tells how many records that were.
    fn keep(&mut self, topology: &mut Topology) -> usize {
        let changes = take_stored(topology);
        self.keep_all(&changes, topology);
        changes.len()
    }

    pub(crate) fn keep_all(&mut self, changes: &[EntityKey], topology: &mut Topology) {
        if !changes.is_empty() {
            topology.promise_ids();
        }
        for key in changes.iter().chain([&EntityKey::Ids]) {
            let mut record = topology.head(key).to_vec();
            if topology.store(key, &mut record) {
                self.written += 1;
                self.records.insert(key.clone(), (self.written, record));
            } else {
                self.records.remove(key);
            }
        }
    }

    pub(crate) fn records(&self) -> Vec<Vec<u8>> {
        let mut all: Vec<_> = self.records.iter().map(|(key, it)| (key.kind(), it)).collect();
        all.sort_by_key(|(kind, (at, _))| (*kind, *at));
        all.into_iter().map(|(_, (_, record))| record.clone()).collect()
    }
}

/// What changed and survives a restart.
fn take_stored(topology: &mut Topology) -> Vec<EntityKey> {
    let noted = topology.take_changes().into_iter();
    noted.filter(|noted| noted.is_stored).map(|noted| noted.key).collect()
}

pub(crate) fn restore(records: &[Vec<u8>]) -> Topology {
    restore_among(Homes::default(), records)
}

pub(crate) fn restore_among(homes: Homes, records: &[Vec<u8>]) -> Topology {
    let mut topology = Topology::new();
    topology.set_homes(homes);
    for record in records {
        let restored = topology.restore(record).unwrap();
        assert!(matches!(restored, Restored::There(_)), "{restored:?}");
    }
    topology.finish_restoring();
    topology.assert_invariants();
    topology
}

/// What was kept step by step is what is there, all of it, and comes back.
#[track_caller]
fn check(topology: &mut Topology, shelf: &mut Shelf) {
    shelf.keep(topology);
    let restored = restore(&shelf.records());
    assert_eq!(restored.describe_durable(), topology.describe_durable());
    assert!(!restored.has_changes(), "nothing was missing");
    let (now, then) = (topology.next_ids(), restored.next_ids());
    assert!(now.0 == then.0 && now.1 <= then.1 && now.2 <= then.2, "{now:?} {then:?}");

    // The journal forgot nothing and kept nothing too long.
    topology.note_all();
    let mut whole = Shelf::default();
    whole.keep(topology);
    let bodies = |shelf: &Shelf| {
        // A promise of ids may be older than the last id that was used.
        let records = shelf.records.iter().filter(|(key, _)| **key != EntityKey::Ids);
        let bodies = records.map(|(key, (_, record))| (key.clone(), record.clone()));
        bodies.collect::<BTreeMap<_, _>>()
    };
    assert_eq!(bodies(shelf), bodies(&whole));
}

/// One value of each of AMQP's types.
pub(crate) fn every_type() -> Table {
    table([
        ("bool", Value::Bool(true)),
        ("i8", Value::I8(-8)),
        ("u8", Value::U8(8)),
        ("i16", Value::I16(-16)),
        ("u16", Value::U16(16)),
        ("i32", Value::I32(-32)),
        ("u32", Value::U32(32)),
        ("i64", Value::I64(-64)),
        ("f32", Value::F32(0.1)),
        ("f64", Value::F64(-0.1)),
        ("decimal", Value::Decimal { scale: 2, value: -314 }),
        ("text", text("\u{e9}")),
        ("array", Value::Array(vec![Value::I8(1), Value::Array(vec![]), Value::Void])),
        ("timestamp", Value::Timestamp(1 << 40)),
        ("table", Value::Table(table([("in", Value::F64(f64::NAN))]))),
        ("void", Value::Void),
        ("bytes", Value::Bytes(vec![0, 255])),
    ])
}

pub(crate) fn queue<'a>(vhost: VhostId, name: &'a str) -> QueueSpec<'a> {
    QueueSpec {
        vhost,
        name,
        server_named: false,
        durable: true,
        auto_delete: false,
        exclusive_owner: None,
        arguments: Table::new(),
    }
}

pub(crate) fn exchange<'a>(vhost: VhostId, name: &'a str, kind: &'a str) -> ExchangeSpec<'a> {
    ExchangeSpec {
        vhost,
        name,
        kind,
        durable: true,
        auto_delete: false,
        internal: false,
        arguments: Table::new(),
    }
}

pub(crate) fn policy(name: &str, operator: bool) -> PolicySpec<'_> {
    let definition = if operator {
        json!({ "max-length": 7 })
    } else {
        json!({ "dead-letter-exchange": "dlx", "ha-params": { "x": [1.5, 0.1, 1e300, null] } })
    };
    let Json::Object(definition) = definition else { unreachable!() };
    PolicySpec { name, pattern: "^q.*[0-9]$", apply_to: ApplyTo::All, priority: -3, definition }
}

pub(crate) const PASSWORD: [u8; 4] = [1, 2, 3, 4];

/// Each row: what happens in vhost "v" with its user "u", and how many records it changes.
type Row = (&'static str, usize, fn(&mut Topology, VhostId));

#[rustfmt::skip] // a table
const ROWS: &[Row] = &[
    ("vhost",                8, |t, _| { t.add_vhost("another").unwrap(); }), // with seven exchanges
    ("the same vhost",       0, |t, _| { t.add_vhost("v").unwrap(); }),
    ("default queue type",   1, |t, _| t.set_default_queue_type("v", Some(QueueKind::Quorum)).unwrap()),
    ("vhost's limits",       1, |t, _| { t.set_parameter("v", "vhost-limits", "l", json!({ "max-queues": -1 })).unwrap(); }),
    ("vhost's metadata",     1, |t, _| { t.import_definitions(r#"{"vhosts":[{"name":"v","metadata":{"description":"d","tags":["a","b"]}}]}"#).unwrap(); }),
    ("vhost gone",           8, |t, _| { t.delete_vhost("v").unwrap(); }),
    ("user",                 1, |t, _| t.add_user("w", PasswordHash::new("p", PASSWORD), &["a", "b"]).unwrap()),
    ("password",             1, |t, _| t.change_password("u", PasswordHash::new("other", PASSWORD)).unwrap()),
    ("no password",          1, |t, _| t.change_password("u", PasswordHash::from_base64("u", "", Default::default()).unwrap()).unwrap()),
    ("tags",                 1, |t, _| t.set_tags("u", &["monitoring"]).unwrap()),
    ("user's limits",        1, |t, _| t.set_user_limits("u", BTreeMap::from([("max-channels".into(), 3)])).unwrap()),
    ("user gone",            1, |t, _| t.delete_user("u").unwrap()),
    ("permissions",          1, |t, _| t.set_permissions("u", "v", "", "^q", ".*").unwrap()),
    ("permissions gone",     1, |t, _| { t.set_permissions("u", "v", "", "", "").unwrap(); t.clear_permissions("u", "v").unwrap(); }),
    ("topic permissions",    1, |t, _| t.set_topic_permissions("u", "v", "x", "^{username}-{vhost}$", ".*").unwrap()),
    ("parameter",            1, |t, _| { t.set_parameter("v", "shovel", "s", json!({ "a": [1, 0.1] })).unwrap(); }),
    ("global parameter",     1, |t, _| t.set_global_parameter("cluster_name", json!("rabbit@here")).unwrap()),
    ("policy",               1, |t, _| { t.set_policy("v", policy("p", false)).unwrap(); }),
    ("operator policy",      1, |t, _| { t.set_operator_policy("v", policy("p", true)).unwrap(); }),
    ("exchange",             1, |t, v| { t.declare_exchange(ExchangeSpec { arguments: every_type(), internal: true, auto_delete: true, ..exchange(v, "e", "x-consistent-hash") }).unwrap(); }),
    ("transient exchange",   0, |t, v| { t.declare_exchange(ExchangeSpec { durable: false, ..exchange(v, "e", "topic") }).unwrap(); }),
    ("queue",                1, |t, v| { t.declare_queue(QueueSpec { arguments: every_type(), auto_delete: true, ..queue(v, "q1") }).unwrap(); }),
    ("paused queue",         1, |t, v| { t.declare_queue(queue(v, "q1")).unwrap(); t.pause_queue("v", "q1", true).unwrap(); }),
    ("other arguments",      1, |t, v| { t.declare_queue(queue(v, "q1")).unwrap(); t.set_queue_arguments("v", "q1", ArgumentsChange { keeps: false, set: table([("x-max-length", Value::I32(7))]), remove: vec![] }).unwrap(); }),
    ("a user's exchange",    1, |t, v| { t.act_as("u"); t.declare_exchange(exchange(v, "x9", "direct")).unwrap(); t.act_as(""); }),
    ("a user's queue",       1, |t, v| { let id = t.declare_queue(queue(v, "q1")).unwrap().id; t.queue_declared_by(id, "u"); }),
    ("quorum queue",         1, |t, v| { t.declare_queue(QueueSpec { arguments: table([("x-queue-type", text("quorum"))]), ..queue(v, "q1") }).unwrap(); }),
    ("server-named queue",   1, |t, v| { t.declare_queue(QueueSpec { server_named: true, ..queue(v, "amq.gen-1") }).unwrap(); }),
    ("exclusive queue",      0, |t, v| { t.declare_queue(QueueSpec { exclusive_owner: Some(OWNER), ..queue(v, "q1") }).unwrap(); }),
    ("transient queue",      0, |t, v| { t.declare_queue(QueueSpec { durable: false, ..queue(v, "q1") }).unwrap(); }),
];

#[test]
fn every_kind() {
    for (what, records, change) in ROWS {
        let mut topology = Topology::new();
        let mut shelf = Shelf::default();
        topology.add_vhost("first").unwrap();
        topology.delete_vhost("first").unwrap();
        let vhost = topology.add_vhost("v").unwrap();
        topology.add_user("u", PasswordHash::new("p", PASSWORD), &[]).unwrap();
        shelf.keep(&mut topology);
        change(&mut topology, vhost);
        assert_eq!(take_stored(&mut topology).len(), *records, "{what}");

        // Once more, kept this time.
        let mut topology = Topology::new();
        let mut shelf = Shelf::default();
        topology.add_vhost("first").unwrap();
        topology.delete_vhost("first").unwrap();
        let vhost = topology.add_vhost("v").unwrap();
        topology.add_user("u", PasswordHash::new("p", PASSWORD), &[]).unwrap();
        topology.set_policy("v", policy("matches", false)).unwrap();
        shelf.keep(&mut topology);
        change(&mut topology, vhost);
        check(&mut topology, &mut shelf);
    }
}

#[test]
fn bindings() {
    let mut topology = Topology::new();
    let mut shelf = Shelf::default();
    let v = topology.add_vhost("/").unwrap();
    topology.declare_exchange(exchange(v, "x", "direct")).unwrap();
    topology
        .declare_exchange(ExchangeSpec { durable: false, ..exchange(v, "tx", "direct") })
        .unwrap();
    topology
        .declare_exchange(ExchangeSpec { auto_delete: true, ..exchange(v, "ax", "direct") })
        .unwrap();
    let q = topology.declare_queue(queue(v, "q")).unwrap().id;
    topology.declare_queue(QueueSpec { durable: false, ..queue(v, "tq") }).unwrap();
    shelf.keep(&mut topology);
    let rows: [(&str, Destination<'_>, usize); 9] = [
        ("x", Destination::Queue("q"), 1),
        ("x", Destination::Queue("q"), 0), // there already
        ("amq.direct", Destination::Queue("q"), 1),
        ("x", Destination::Queue("tq"), 0),
        ("tx", Destination::Queue("q"), 0),
        ("x", Destination::Exchange("x"), 1), // to itself
        ("x", Destination::Exchange("tx"), 0),
        ("ax", Destination::Exchange("x"), 1),
        ("ax", Destination::Queue("q"), 1),
    ];
    for (source, to, records) in rows {
        topology.bind(v, source, to, "k", every_type(), None).unwrap();
        assert_eq!(shelf.keep(&mut topology), records, "{source} {to:?}");
        check(&mut topology, &mut shelf);
    }
    topology.unbind(v, "x", Destination::Queue("q"), "k", every_type(), None).unwrap();
    assert_eq!(shelf.keep(&mut topology), 1);
    check(&mut topology, &mut shelf);
    // With its two bindings.
    topology.remove_queue(q);
    assert_eq!(shelf.keep(&mut topology), 3);
    check(&mut topology, &mut shelf);
    // With the binding to itself, and that of an exchange that goes because it was its last.
    topology.delete_exchange(v, "x", false).unwrap();
    assert_eq!(shelf.keep(&mut topology), 4);
    check(&mut topology, &mut shelf);
    assert!(topology.exchange(v, "ax").is_none());
}

/// Whatever goes with a vhost goes from the disk: permissions, policies, parameters, all that was in it.
#[test]
fn a_vhost_goes_whole() {
    let mut topology = Topology::new();
    let mut shelf = Shelf::default();
    shelf.keep(&mut topology);
    topology.add_user("u", PasswordHash::new("p", PASSWORD), &[]).unwrap();
    topology.add_vhost("stays").unwrap();
    topology.set_permissions("u", "stays", "", "", "").unwrap();
    check(&mut topology, &mut shelf);
    let before = topology.describe_durable();
    let v = topology.add_vhost("v").unwrap();
    topology.set_permissions("u", "v", "", "", "").unwrap();
    topology.set_topic_permissions("u", "v", "amq.topic", "", "").unwrap();
    topology.set_policy("v", policy("p", false)).unwrap();
    topology.set_operator_policy("v", policy("p", true)).unwrap();
    topology.set_parameter("v", "shovel", "s", json!(1)).unwrap();
    topology.declare_queue(queue(v, "q")).unwrap();
    topology.declare_exchange(exchange(v, "x", "direct")).unwrap();
    topology.bind(v, "x", Destination::Queue("q"), "", Table::new(), None).unwrap();
    topology.bind(v, "x", Destination::Exchange("amq.topic"), "", Table::new(), None).unwrap();
    check(&mut topology, &mut shelf);
    topology.delete_vhost("v").unwrap();
    check(&mut topology, &mut shelf);
    assert_eq!(topology.describe_durable(), before);
}

/// A queue that is gone left a message behind: no later queue has its number, after however many restarts.
#[test]
fn ids_are_not_used_again() {
    let mut shelf = Shelf::default();
    let mut topology = Topology::new();
    let v = topology.add_vhost("/").unwrap();
    let mut highest = QueueId::new(0);
    for round in 0..20 {
        for number in 0..200 {
            let name = format!("q{number}");
            let durable = number % 50 == 0 && round % 3 == 0;
            let id = topology.declare_queue(QueueSpec { durable, ..queue(v, &name) }).unwrap().id;
            assert!(id > highest || round == 0 && number == 0, "{id} after {highest}");
            highest = id;
            topology.remove_queue(id);
            // As Meta does: only when something changed.
            if topology.has_changes() {
                shelf.keep(&mut topology);
            }
        }
        topology = restore(&shelf.records());
    }
    assert!(highest.get() < 20 << 24, "a restart leaves out some: {highest}");
}

/// Ids of transient things are promised in time, and once.
#[test]
fn ids_are_promised() {
    let mut topology = restore(&[]);
    let v = topology.add_vhost("/").unwrap();
    topology.take_changes();
    let transient = |topology: &mut Topology, name| {
        topology.declare_queue(QueueSpec { durable: false, ..queue(v, name) }).unwrap();
        take_stored(topology)
    };
    assert_eq!(transient(&mut topology, "a"), [EntityKey::Ids], "nothing was ever promised");
    topology.promise_ids();
    assert_eq!(transient(&mut topology, "b"), []);
    // Another process, that found the promise above and goes on from there.
    let mut record = Kind::Ids.head().to_vec();
    assert!(topology.store(&EntityKey::Ids, &mut record));
    topology.restore(&record).unwrap();
    assert_eq!(topology.next_ids().2, (1 << 24) + 1);
    assert_eq!(transient(&mut topology, "c"), [EntityKey::Ids]);
    topology.promise_ids();
    assert_eq!(transient(&mut topology, "d"), []);
}

/// Random changes; whenever the process ends, what is durable is as it was.
#[test]
fn at_random() {
    for seed in 0..60 {
        let mut rng = Rng(seed);
        let mut topology = Topology::new();
        let mut shelf = Shelf::default();
        for step in 0..150 {
            change(&mut rng, &mut topology);
            if rng.chance(70) {
                shelf.keep(&mut topology);
            }
            if step % 30 == 29 {
                topology.assert_invariants();
                check(&mut topology, &mut shelf);
                if rng.chance(50) {
                    topology = restore(&shelf.records());
                    let records = shelf.records();
                    shelf = Shelf::default();
                    // Places of bindings are given anew.
                    topology.note_all();
                    shelf.keep(&mut topology);
                    assert_eq!(shelf.records().len(), records.len());
                }
            }
        }
    }
}

/// One change, perhaps refused.
pub(crate) fn change(rng: &mut Rng, topology: &mut Topology) {
    let vhost_name = rng.pick(&["a", "b", "c"]);
    let user = rng.pick(&["u", "v"]);
    let name = rng.pick(&["q1", "q2", "x1", "x2", "q3"]);
    let other = rng.pick(&["q1", "q2", "x1", "x2", "amq.topic"]);
    let vhost = topology.vhost(vhost_name).map_or(VhostId::new(77), |vhost| vhost.id);
    let arguments = if rng.chance(30) { every_type() } else { Table::new() };
    let durable = rng.chance(70);
    let to = if rng.chance(60) { Destination::Queue(name) } else { Destination::Exchange(name) };
    let hash = PasswordHash::new(name, PASSWORD);
    match rng.below(27) {
        0 | 1 => drop(topology.add_vhost(vhost_name)),
        2 if rng.chance(20) => drop(topology.delete_vhost(vhost_name)),
        3 => drop(topology.add_user(user, hash, &[name])),
        4 if rng.chance(40) => drop(topology.delete_user(user)),
        5 => drop(topology.change_password(user, hash)),
        6 => drop(topology.set_permissions(user, vhost_name, name, ".*", "")),
        7 => drop(topology.clear_permissions(user, vhost_name)),
        8 => drop(topology.set_topic_permissions(user, vhost_name, other, "{username}", name)),
        9 => drop(topology.clear_topic_permissions(
            user,
            vhost_name,
            rng.chance(50).then_some(other),
        )),
        10 => drop(topology.set_policy(vhost_name, policy(name, false))),
        11 => drop(topology.clear_policy(vhost_name, name)),
        12 => drop(topology.set_operator_policy(vhost_name, policy(name, true))),
        13 => drop(topology.clear_operator_policy(vhost_name, name)),
        14 => drop(topology.set_parameter(vhost_name, "shovel", name, json!({ "to": other }))),
        15 => drop(topology.clear_parameter(vhost_name, "shovel", name)),
        16 => drop(topology.set_global_parameter(name, json!(rng.next() as f64 / 1e7))),
        17 => drop(topology.clear_global_parameter(name)),
        18 => {
            let exclusive_owner = rng.chance(20).then_some(OWNER);
            let auto_delete = rng.chance(20);
            let spec = QueueSpec { durable, exclusive_owner, auto_delete, ..queue(vhost, name) };
            drop(topology.declare_queue(QueueSpec { arguments, ..spec }));
        }
        19 => {
            let kind =
                rng.pick(&["direct", "topic", "headers", "x-modulus-hash", "x-recent-history"]);
            let auto_delete = rng.chance(40);
            let spec = ExchangeSpec { durable, auto_delete, ..exchange(vhost, name, kind) };
            drop(topology.declare_exchange(ExchangeSpec { arguments, ..spec }));
        }
        20 | 21 => drop(topology.bind(vhost, other, to, "k", arguments, None)),
        22 => drop(topology.unbind(vhost, other, to, "k", arguments, None)),
        23 => drop(topology.delete_exchange(vhost, name, rng.chance(50))),
        24 => {
            if let Some(id) = topology.queue(vhost, name).map(|queue| queue.id) {
                topology.remove_queue(id);
            }
        }
        25 => drop(
            topology
                .set_default_queue_type(vhost_name, [None, Some(QueueKind::Quorum)][rng.below(2)]),
        ),
        26 => drop(topology.pause_queue(vhost_name, name, rng.chance(60))),
        _ => {}
    }
}

/// A home that the rule does not give is in the queue's record, whose version older programs refuse. All others are as they were.
#[test]
fn homes() {
    let homes = Homes::among(4);
    let mut topology = Topology::new();
    topology.set_homes(homes.by_chance(1));
    let vhost = topology.add_vhost("/").unwrap();
    for number in 0..40 {
        topology.declare_queue(queue(vhost, &format!("q{number}"))).unwrap();
    }
    let mut shelf = Shelf::default();
    shelf.keep(&mut topology);
    let queues: Vec<_> = topology.queues(vhost).into_iter().map(|it| (it.id, it.home)).collect();
    let elsewhere = queues.iter().filter(|&&(id, home)| home != homes.usual(id)).count();
    assert!((20..40).contains(&elsewhere), "{elsewhere}");
    let records = shelf.records();
    let version_2 = records.iter().filter(|it| it[..2] == [2, Kind::Queue as u8]).count();
    let version_1 = records.iter().filter(|it| it[..2] == [1, Kind::Queue as u8]).count();
    assert_eq!((version_1, version_2), (40 - elsewhere, elsewhere));

    // Another life, with another rule for what is new.
    let restored = |homes| {
        let mut restored = Topology::new();
        restored.set_homes(homes);
        let refused = records.iter().find_map(|record| restored.restore(record).err());
        refused.map_or(Ok(restored), Err)
    };
    let again = restored(homes.by_chance(2)).unwrap();
    assert_eq!(again.describe_durable(), topology.describe_durable());
    assert!(queues.iter().all(|&(id, home)| again.home(id) == home));
    let refused = restored(Homes::among(2)).unwrap_err();
    assert!(matches!(refused, StoredError::Home { groups: 2, .. }), "{refused}");
    // Of what is gone nobody knows where it was.
    topology.remove_queue(queues[0].0);
    assert_eq!(topology.home(queues[0].0), homes.usual(queues[0].0));
}

/// Names that were made before they had a bound come back, and can be used and deleted.
#[test]
fn long_names_come_back() {
    let (mut topology, mut shelf) = (Topology::new(), Shelf::default());
    let vhost = topology.add_vhost("a vhost").unwrap();
    topology.add_user("a user", PasswordHash::new("p", [0; 4]), &[]).unwrap();
    topology.set_permissions("a user", "a vhost", ".*", ".*", ".*").unwrap();
    topology.set_topic_permissions("a user", "a vhost", "an exchange", ".*", ".*").unwrap();
    topology.set_policy("a vhost", policy("a policy", false)).unwrap();
    topology.set_operator_policy("a vhost", policy("a strict one", true)).unwrap();
    topology.set_parameter("a vhost", "shovel", "a parameter", json!({})).unwrap();
    topology.set_global_parameter("a global one", json!({})).unwrap();
    shelf.keep(&mut topology);
    let put = |name: &str| [&(name.len() as u32).to_le_bytes(), name.as_bytes()].concat();
    let longer = |name: &str| name.repeat(50);
    let lengthen = |mut record: Vec<u8>| {
        let settings = ["an exchange", "a policy", "a strict one", "a parameter", "a global one"];
        for name in ["a vhost", "a user"].iter().chain(&settings) {
            let short = put(name);
            if let Some(at) = record.windows(short.len()).position(|it| it == short) {
                record.splice(at..at + short.len(), put(&longer(name)));
            }
        }
        record
    };
    let records: Vec<_> = shelf.records().into_iter().map(lengthen).collect();
    let mut topology = restore(&records);
    let (name, user) = (longer("a vhost"), longer("a user"));
    assert!(name.len() > 255 && user.len() > 255);
    assert_eq!(topology.vhost(&name).map(|it| it.id), Some(vhost));
    topology.check_vhost_access(&user, &name).unwrap();
    assert_eq!(topology.add_vhost(&name), Ok(vhost), "putting it again changes nothing");
    topology.change_password(&user, PasswordHash::new("q", [0; 4])).unwrap();
    let exported = topology.export_definitions();
    // A shovel is imported nowhere.
    let mut read: Json = serde_json::from_str(&exported).unwrap();
    let parameters = read["parameters"].as_array_mut().unwrap();
    parameters.retain(|it| it["component"] == "operator_policy");
    let exported = read.to_string();
    topology.import(Import::read(&exported).unwrap()).unwrap();
    // They are set, changed and cleared as before.
    let one = |text: &str| longer(text);
    topology.set_policy(&name, policy(&one("a policy"), false)).unwrap();
    topology.clear_policy(&name, &one("a policy")).unwrap();
    topology.clear_operator_policy(&name, &one("a strict one")).unwrap();
    topology.set_parameter(&name, "shovel", &one("a parameter"), json!(1)).unwrap();
    topology.clear_parameter(&name, "shovel", &one("a parameter")).unwrap();
    topology.set_global_parameter(&one("a global one"), json!(1)).unwrap();
    assert!(topology.clear_global_parameter(&one("a global one")));
    topology.set_topic_permissions(&user, &name, &one("an exchange"), "", "").unwrap();
    topology.clear_topic_permissions(&user, &name, Some(&one("an exchange"))).unwrap();
    let refused = topology.import(Import::read(&exported).unwrap()).unwrap_err().to_string();
    for what in ["policy", "operator policy", "exchange", "global parameter"] {
        let told = format!("{what} name must be at most 255 bytes long");
        assert!(refused.contains(&told), "{what} is gone: {refused}");
    }
    topology.delete_vhost(&name).unwrap();
    topology.delete_user(&user).unwrap();
    let refused = topology.import(Import::read(&exported).unwrap()).unwrap_err().to_string();
    assert!(refused.contains("at most 255 bytes long, not 350"), "they are gone: {refused}");
    topology.assert_invariants();
}

/// The bytes of a record that tells a home: others are to read them, later.
#[test]
fn the_bytes_of_a_home() {
    let mut topology = Topology::new();
    topology.set_homes(Homes::among(2));
    let vhost = topology.add_vhost("/").unwrap();
    let mut record = vec![2, 11];
    record.extend(4_u64.to_le_bytes());
    record.extend(vhost.get().to_le_bytes());
    for text in ["q", "classic"] {
        record.extend((text.len() as u32).to_le_bytes());
        record.extend(text.as_bytes());
    }
    // The home is told; no arguments.
    record.extend([32, 0, 0, 0, 0]);
    let up_to_home = record.len();
    record.extend(1_u32.to_le_bytes());
    for len in 0..record.len() {
        assert!(topology.restore(&record[..len]).is_err(), "{len} bytes of {}", record.len());
    }
    let elsewhere = [&record[..up_to_home], &[2, 0, 0, 0]].concat();
    let refused = topology.restore(&elsewhere).unwrap_err();
    assert!(matches!(refused, StoredError::Home { groups: 2, .. }), "{refused}");
    assert!(topology.queue(vhost, "q").is_none());

    topology.restore(&record).unwrap();
    let queue = topology.queue(vhost, "q").unwrap();
    assert_eq!((queue.id, queue.home.get()), (QueueId::new(4), 1));
    let key = EntityKey::Queue(queue.id);
    let mut again = topology.head(&key).to_vec();
    assert!(topology.store(&key, &mut again));
    assert_eq!(again, record);
}

/// Of two records of one thing the later one counts; what has lost its place is left out.
#[test]
fn twice_and_lost() {
    let mut topology = Topology::new();
    let v = topology.add_vhost("/").unwrap();
    let old = topology.declare_queue(queue(v, "q")).unwrap().id;
    topology.bind(v, "amq.direct", Destination::Queue("q"), "", Table::new(), None).unwrap();
    let mut shelf = Shelf::default();
    shelf.keep(&mut topology);
    let mut records = shelf.records();
    topology.remove_queue(old);
    let new = topology.declare_queue(queue(v, "q")).unwrap().id;
    let mut record = Kind::Queue.head().to_vec();
    assert!(topology.store(&EntityKey::Queue(new), &mut record));
    let binding = records.pop().unwrap();
    records.push(record);
    records.push(binding);

    let mut restored = Topology::new();
    let results: Vec<_> = records.iter().map(|record| restored.restore(record).unwrap()).collect();
    restored.finish_restoring();
    restored.assert_invariants();
    let [.., queue, binding] = &results[..] else { unreachable!() };
    assert_eq!(*queue, Restored::InsteadOf(EntityKey::Queue(new), EntityKey::Queue(old)));
    assert!(matches!(binding, Restored::Orphan(what) if what.contains("binding")), "{binding:?}");
    assert_eq!(restored.describe_durable(), topology.describe_durable());
}

/// Arguments that would not come back are refused where they come in: by the wire they cannot.
#[test]
fn arguments_that_cannot_be_stored() {
    let nested = |depth: usize| {
        let (open, close) = (r#"{"a":"#.repeat(depth - 1), "}".repeat(depth - 1));
        format!("{open}{{}}{close}")
    };
    let import = |arguments: &str| {
        let queues = format!(
            r#"{{"vhosts":[{{"name":"/"}}],"queues":[{{"vhost":"/","name":"q","arguments":{arguments}}}]}}"#
        );
        let mut topology = Topology::new();
        topology.import_definitions(&queues).map(|_| topology)
    };
    check(&mut import(&nested(100)).unwrap(), &mut Shelf::default());
    check(
        &mut import(&format!(r#"{{"{}":0.1}}"#, "n".repeat(255))).unwrap(),
        &mut Shelf::default(),
    );
    for bad in [nested(101), format!(r#"{{"{}":1}}"#, "n".repeat(256))] {
        let error = import(&bad).unwrap_err().to_string();
        assert!(error.contains("queues[0]: key 'arguments' must be at most 100 levels"), "{error}");
    }
}

/// Bytes of any sort are refused or taken, with a reason, without a panic.
#[test]
fn damaged_records() {
    let golden = golden();
    let mut rng = Rng(1);
    for _ in 0..2000 {
        let mut record = golden[rng.below(golden.len())].clone();
        match rng.below(3) {
            0 => record.truncate(rng.below(record.len())),
            1 => record.push(0),
            _ => {
                let at = rng.below(record.len());
                record[at] ^= 1 << rng.below(8);
            }
        }
        let mut topology = restore(&golden);
        if topology.restore(&record).is_ok() {
            topology.finish_restoring();
        }
    }
    let mut topology = Topology::new();
    let mut refused = |record: &[u8]| topology.restore(record).unwrap_err();
    assert!(matches!(refused(&[]), StoredError::Head(0)));
    assert!(matches!(refused(&[2, 12]), StoredError::Version(2)));
    assert!(matches!(refused(&[3, 10]), StoredError::Version(3)));
    assert!(matches!(refused(&[0, 10]), StoredError::Version(0)));
    assert!(matches!(refused(&[1, 13]), StoredError::Kind(13)));
    assert!(matches!(refused(&[1, 11, 0]), StoredError::Truncated));
}

/// The golden file of today's layouts: a line per record, `kind bytes`.
const GOLDEN: &str = include_str!("golden/stored-2.txt");

/// The same things in the first layout of each kind.
const GOLDEN_1: &str = include_str!("golden/stored-1.txt");

fn golden() -> Vec<Vec<u8>> {
    read_golden(GOLDEN)
}

fn read_golden(file: &str) -> Vec<Vec<u8>> {
    let bytes = |hex: &str| {
        (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[at * 2..][..2], 16).unwrap()).collect()
    };
    file.lines().map(|line| bytes(line.rsplit_once(' ').unwrap().1)).collect()
}

/// What the golden file holds.
fn golden_topology() -> Topology {
    let mut topology = Topology::new();
    let v = topology.add_vhost("v").unwrap();
    topology
        .import_definitions(
            r#"{"vhosts":[{"name":"v","metadata":{"description":"d","tags":["t1","t2"],
                "default_queue_type":"quorum"},"limits":{"max-queues":9}}]}"#,
        )
        .unwrap();
    topology.add_user("u", PasswordHash::new("p", PASSWORD), &["administrator"]).unwrap();
    topology.set_user_limits("u", BTreeMap::from([("max-channels".into(), -1)])).unwrap();
    topology.set_permissions("u", "v", "", "^q", ".*").unwrap();
    topology.set_topic_permissions("u", "v", "x", "^{username}", ".*").unwrap();
    topology.set_global_parameter("cluster_name", json!("rabbit@here")).unwrap();
    topology.set_parameter("v", "shovel", "s", json!({ "a": 0.1 })).unwrap();
    topology.set_policy("v", policy("p", false)).unwrap();
    topology.set_operator_policy("v", policy("o", true)).unwrap();
    let spec = exchange(v, "x", "topic");
    topology.act_as("u");
    topology
        .declare_exchange(ExchangeSpec { arguments: every_type(), internal: true, ..spec })
        .unwrap();
    let arguments = table([("x-max-length", Value::I32(5)), ("x-queue-type", text("classic"))]);
    let spec = QueueSpec { auto_delete: true, arguments, ..queue(v, "q1") };
    topology.declare_queue(spec).unwrap();
    let arguments = table([("a", Value::U8(1))]);
    topology.bind(v, "x", Destination::Queue("q1"), "a.*", arguments, None).unwrap();
    topology.bind(v, "x", Destination::Exchange("amq.fanout"), "", Table::new(), None).unwrap();
    topology
}

/// Today's layouts are written as they were, and read. A change of one is a new version with a file of its own.
#[test]
fn golden_file() {
    let mut topology = golden_topology();
    let mut shelf = Shelf::default();
    shelf.keep(&mut topology);
    let lines = shelf.records().into_iter().map(|record| {
        let hex: String = record.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{} {hex}", Kind::of_head(&record[..2]).unwrap())
    });
    let lines: Vec<_> = lines.collect();
    assert_eq!(lines.join("\n"), GOLDEN.trim_end(), "what is written now");
    assert_eq!(restore(&golden()).describe_durable(), topology.describe_durable());
}

/// Exchanges of the first layout come back without who declared them, and stay so when they are written again.
#[test]
fn exchanges_without_a_user() {
    let old = restore(&read_golden(GOLDEN_1));
    let new = golden_topology();
    let vhost = new.vhost("v").unwrap().id;
    let by = |topology: &Topology, name| {
        let exchange = topology.exchange(vhost, name).unwrap();
        exchange.user_who_performed_action().to_owned()
    };
    assert_eq!((by(&old, "x"), by(&old, "amq.topic")), ("unknown".into(), "unknown".into()));
    assert_eq!((by(&new, "x"), by(&new, "amq.topic")), ("u".into(), "rmq-internal".into()));
    let without_user = |topology: &Topology| {
        let text = topology.describe_durable();
        text.replace("by None", "by -")
            .replace("by Some(\"\")", "by -")
            .replace("by Some(\"u\")", "by -")
    };
    assert_eq!(without_user(&old), without_user(&new));
    for mut topology in [old, new] {
        topology.note_all();
        check(&mut topology, &mut Shelf::default());
    }
}

/// A vhost that is protected stays it, and one that is not is written as before there was protection.
#[test]
fn protection_from_deletion() {
    let mut topology = Topology::new();
    let mut shelf = Shelf::default();
    topology.add_vhost("v").unwrap();
    shelf.keep(&mut topology);
    let before = shelf.records();
    topology.protect_vhost("v", true).unwrap();
    shelf.keep(&mut topology);
    let mut restored = restore(&shelf.records());
    assert!(restored.vhost("v").unwrap().is_protected);
    assert_eq!(
        restored.delete_vhost("v").unwrap_err().to_string(),
        "Refusing to delete virtual host 'v' because it is protected from deletion"
    );
    restored.protect_vhost("v", false).unwrap();
    restored.delete_vhost("v").unwrap();
    topology.protect_vhost("v", false).unwrap();
    shelf.keep(&mut topology);
    assert_eq!(shelf.records().len(), before.len());
    assert!(!restore(&before).vhost("v").unwrap().is_protected);
}
