//! Routing by each kind of exchange, between exchanges, and against a plain model.

use std::collections::BTreeSet;

use leveret_amqp::table::{RawTable, Table, Value};
use leveret_topology::{
    Destination, ExchangeSpec, HashProperties, QueueSpec, Routable, Route, Target,
};

use crate::common::{Rng, World, table, text};

#[test]
fn default_exchange() {
    let mut world = World::new();
    world.queue("a");
    world.queue("b");
    assert_eq!(world.reached("", "a"), "a");
    assert_eq!(world.reached("", "none"), "");
    let more_keys: &[&str] = &["b", "a", "none", "b"];
    let message = Routable { key: "a", more_keys, ..Routable::default() };
    let route = world.route("", &message);
    assert_eq!((world.names(&route).as_str(), route.cacheable), ("a b", false));
    let mut route = Route::default();
    let id = world.topology.default_exchange(world.vhost).unwrap();
    let before = world.topology.generation();
    world.topology.route(world.vhost, id, &Routable { key: "c", ..message }, &mut route);
    let c = world.queue("c");
    assert_ne!(world.topology.generation(), before);
    world.topology.route(
        world.vhost,
        id,
        &Routable { key: "c", ..Routable::default() },
        &mut route,
    );
    assert_eq!((route.queues.as_slice(), route.cacheable), ([c].as_slice(), true));
}

#[test]
fn direct_and_fanout() {
    let mut world = World::new();
    for queue in ["a", "b", "c"] {
        world.queue(queue);
        world.bind("amq.fanout", queue, queue);
        world.bind("amq.direct", queue, "all");
        world.bind("amq.direct", queue, queue);
    }
    assert_eq!(world.reached("amq.direct", "all"), "a b c");
    assert_eq!(world.reached("amq.direct", "b"), "b");
    assert_eq!(world.reached("amq.direct", "d"), "");
    assert_eq!(world.reached("amq.fanout", "whatever"), "a b c");
    let more_keys: &[&str] = &["all", "b"];
    let route = world.route("amq.direct", &Routable { key: "a", more_keys, ..Routable::default() });
    assert_eq!(world.names(&route), "a b c");
    world.unbind("amq.direct", "b", "all");
    world.unbind("amq.fanout", "b", "other key");
    assert_eq!(world.reached("amq.direct", "all"), "a c");
    assert_eq!(world.reached("amq.fanout", ""), "a b c");
    // The same with another key or other arguments is another binding.
    assert!(world.bind("amq.fanout", "a", "again").created);
    let arguments = table([("n", Value::I32(1))]);
    let to = Destination::Queue("a");
    assert!(world.try_bind("amq.fanout", to, "again", arguments).unwrap().created);
    assert!(!world.bind("amq.fanout", "a", "again").created);
    assert_eq!(world.unbind("amq.fanout", "a", "again").bindings.len(), 1);
    assert_eq!(world.reached("amq.fanout", ""), "a b c");
}

/// Binds `q` with the first arguments, publishes with the second as headers.
#[track_caller]
fn headers<'a>(
    binding: impl IntoIterator<Item = (&'a str, Value)>,
    message: impl IntoIterator<Item = (&'a str, Value)>,
    want: bool,
) {
    let mut world = World::new();
    world.queue("q");
    world.try_bind("amq.headers", Destination::Queue("q"), "", table(binding)).unwrap();
    let reached = world.reached_with("amq.headers", &table(message));
    assert_eq!(reached, if want { "q" } else { "" });
}

#[test]
#[rustfmt::skip] // a table
fn headers_exchange() {
    let int = |n| Value::I32(n);
    let all = || ("x-match", text("all"));
    let any = || ("x-match", text("any"));
    headers([all(), ("a", int(1)), ("b", int(2))], [("a", int(1)), ("b", int(2))], true);
    headers([all(), ("a", int(1)), ("b", int(2))], [("a", int(1)), ("b", int(3))], false);
    headers([all(), ("a", int(1)), ("b", int(2))], [("a", int(1))], false);
    headers([("a", int(1))], [("a", int(1)), ("c", int(1))], true); // all is the default
    headers([("a", int(1))], [("a", int(2))], false);
    headers([any(), ("a", int(1)), ("b", int(2))], [("b", int(2))], true);
    headers([any(), ("a", int(1)), ("b", int(2))], [("b", int(1))], false);
    headers([all()], [], true); // all of nothing
    headers([], [("a", int(1))], true);
    headers([any()], [("a", int(1))], false); // any of nothing
    headers([("a", Value::Void)], [("a", text("whatever"))], true); // it must be there
    headers([("a", Value::Void)], [("b", int(1))], false);
    headers([("a", Value::I64(1))], [("a", Value::U8(1))], true); // numbers by value
    headers([("a", int(1))], [("a", text("1"))], false);
    headers([("a", text("x"))], [("a", Value::Bytes(b"x".to_vec()))], true);
    headers([("a", Value::Bool(true))], [("a", Value::Bool(true))], true);
    headers([("a", Value::Bool(true))], [("a", int(1))], false);
    headers([("a", Value::F64(0.5))], [("a", Value::F32(0.5))], true);
    headers([("a", Value::F64(1.0))], [("a", int(1))], false);
    headers([("a", Value::Timestamp(7))], [("a", Value::Timestamp(7))], true);
    headers([("a", Value::Array(vec![int(1)]))], [("a", Value::Array(vec![int(1)]))], true);
    headers([("a", Value::Array(vec![int(1)]))], [("a", Value::Array(vec![int(2)]))], false);
    headers([("a", Value::Table(table([("t", int(1))])))], [("a", Value::Table(table([("t", int(1))])))], true);
    headers([("a", int(2))], [("a", int(1)), ("a", int(2))], true); // of two the last one counts
    // Names that begin with x- are left out, but with-x takes all but x-match.
    headers([("x-a", int(1))], [], true);
    headers([any(), ("x-a", int(1))], [("x-a", int(1))], false);
    headers([("x-match", text("all-with-x")), ("x-a", int(1))], [], false);
    headers([("x-match", text("all-with-x")), ("x-a", int(1))], [("x-a", int(1))], true);
    headers([("x-match", text("any-with-x")), ("x-a", int(1))], [("x-a", int(1))], true);
    headers([("x-match", text("any-with-x")), ("x-a", int(1))], [("x-a", int(2))], false);
}

#[test]
fn headers_bindings_come_and_go() {
    let mut world = World::new();
    let bind = |world: &mut World, queue: &str, value: i32| {
        let arguments = table([("n", Value::I32(value))]);
        world.try_bind("amq.match", Destination::Queue(queue), "", arguments).unwrap()
    };
    for queue in ["a", "b", "c"] {
        world.queue(queue);
        bind(&mut world, queue, 1);
        bind(&mut world, queue, 2);
    }
    let message = |value: i32| table([("n", Value::I32(value))]);
    assert_eq!(world.reached_with("amq.match", &message(1)), "a b c");
    let b = world.topology.queue(world.vhost, "b").unwrap().id;
    assert_eq!(world.topology.remove_queue(b).bindings.len(), 2);
    assert_eq!(world.reached_with("amq.match", &message(2)), "a c");
    // Arguments are the same in whatever order.
    let ab = table([("a", Value::I32(1)), ("b", Value::I32(2))]);
    let ba = table([("b", Value::I32(2)), ("a", Value::I32(1))]);
    let to = Destination::Queue("a");
    assert!(world.try_bind("amq.match", to, "", ab).unwrap().created);
    assert!(!world.try_bind("amq.match", to, "", ba.clone()).unwrap().created);
    let removed = world.topology.unbind(world.vhost, "amq.match", to, "", ba, None).unwrap();
    assert_eq!(removed.bindings.len(), 1);
    assert!(!world.route("amq.match", &Routable::default()).cacheable);
    world.topology.assert_invariants();
}

#[test]
fn between_exchanges() {
    let mut world = World::new();
    world.exchange("a", "fanout");
    world.exchange("b", "direct");
    world.exchange("c", "topic");
    for queue in ["qa", "qb", "qc"] {
        world.queue(queue);
    }
    world.bind_exchange("a", "b", "");
    world.bind_exchange("b", "c", "k.l");
    world.bind_exchange("c", "a", "#"); // around
    world.bind_exchange("a", "a", ""); // to itself
    world.bind("a", "qa", "");
    world.bind("b", "qb", "k.l");
    world.bind("c", "qc", "k.*");
    world.bind("c", "qa", "#"); // twice on the way
    assert_eq!(world.reached("a", "k.l"), "qa qb qc");
    assert_eq!(world.reached("a", "k"), "qa");
    assert_eq!(world.reached("c", "k.l"), "qa qb qc");
    let route = world.route("c", &Routable { key: "k.l", ..Routable::default() });
    assert_eq!((route.queues.len(), route.cacheable), (3, true));
    world.topology.assert_invariants();
    // Gone, with its bindings on both sides.
    let removed = world.topology.delete_exchange(world.vhost, "a", false).unwrap();
    assert_eq!((removed.exchanges.len(), removed.bindings.len()), (1, 4));
    world.topology.assert_invariants();
    assert_eq!(world.reached("c", "k.l"), "qa qc");
}

#[test]
fn alternate_exchange() {
    let mut world = World::new();
    let to = |name| table([("alternate-exchange", text(name))]);
    let a = world.exchange_with("a", "direct", to("b"));
    world.exchange_with("self", "direct", to("self"));
    world.exchange_with("default", "direct", to(""));
    world.queue("q");
    world.bind("a", "q", "known");
    assert_eq!(world.reached("a", "unknown"), ""); // there is none of this name yet
    let generation = world.topology.generation();
    world.exchange_with("b", "direct", to("c"));
    world.exchange("c", "fanout");
    world.queue("last");
    world.bind("c", "last", "");
    assert_ne!(world.topology.generation(), generation);
    assert_eq!(world.reached("a", "known"), "q");
    assert_eq!(world.reached("a", "unknown"), "last");
    assert_eq!(world.reached("self", "k"), "");
    assert_eq!(world.reached("default", "q"), "q");
    assert_eq!(world.topology.exchange_by_id(a).unwrap().alternate(), Some("b"));
    // A binding that leads on is found, even if nothing is there.
    world.exchange("empty", "fanout");
    world.bind_exchange("a", "empty", "unknown");
    assert_eq!(world.reached("a", "unknown"), "");
}

#[test]
fn auto_delete_in_a_chain() {
    let mut world = World::new();
    world.queue("q");
    let mut last = String::new();
    // As long as there are exchanges: no recursion.
    for number in 0..10_000 {
        let name = format!("x{number}");
        let spec = world.exchange_spec(&name, "fanout");
        world.topology.declare_exchange(ExchangeSpec { auto_delete: true, ..spec }).unwrap();
        if number == 0 {
            world.bind(&name, "q", "");
        } else {
            world.bind_exchange(&name, &last, "");
        }
        last = name;
    }
    world.topology.assert_invariants();
    let q = world.topology.queue(world.vhost, "q").unwrap().id;
    let removed = world.topology.remove_queue(q);
    assert_eq!((removed.exchanges.len(), removed.bindings.len()), (10_000, 10_000));
    world.topology.assert_invariants();
    assert_eq!(world.topology.exchange_count(), 7);
    // One that never had a binding stays.
    let spec = world.exchange_spec("unused", "fanout");
    world.topology.declare_exchange(ExchangeSpec { auto_delete: true, ..spec }).unwrap();
    world.queue("q");
    assert!(world.unbind("unused", "q", "").exchanges.is_empty());
    world.bind("unused", "q", "");
    assert_eq!(&*world.unbind("unused", "q", "").exchanges[0].name, "unused");
}

#[test]
fn hashing_kinds() {
    for kind in ["x-consistent-hash", "x-modulus-hash"] {
        let mut world = World::new();
        world.exchange("x", kind);
        assert_eq!(world.reached("x", "k"), "");
        for queue in ["a", "b", "c", "d"] {
            world.queue(queue);
            world.bind("x", queue, "10");
        }
        let keys: Vec<String> = (0..4000).map(|n| format!("key {n}")).collect();
        let place = |world: &World| keys.iter().map(|key| world.reached("x", key)).collect();
        let before: Vec<String> = place(&world);
        for queue in ["a", "b", "c", "d"] {
            let share = before.iter().filter(|to| *to == queue).count();
            assert!((800..1200).contains(&share), "{kind}: {share} of 4000 to {queue}");
        }
        assert_eq!(before, place(&world), "the same key goes the same way");
        assert!(world.route("x", &Routable { key: "k", ..Routable::default() }).cacheable);
        world.queue("e");
        world.bind("x", "e", "10");
        let after: Vec<String> = place(&world);
        let moved = before.iter().zip(&after).filter(|(a, b)| a != b).count();
        if kind == "x-consistent-hash" {
            assert!(moved < 1000, "{moved} of 4000 moved for a fifth queue");
            assert!(before.iter().zip(&after).all(|(a, b)| a == b || b == "e"));
        }
        world.unbind("x", "e", "10");
        assert_eq!(before, place(&world), "as if it had never been bound");
    }
}

#[test]
fn consistent_hash_by_weight_header_and_property() {
    let mut world = World::new();
    world.exchange("x", "x-consistent-hash");
    world.exchange_with("h", "x-consistent-hash", table([("hash-header", text("id"))]));
    let by_id = table([("hash-property", text("message_id"))]);
    world.exchange_with("p", "x-consistent-hash", by_id);
    for (queue, weight) in [("one", "1"), ("three", "3")] {
        world.queue(queue);
        for exchange in ["x", "h", "p"] {
            world.bind(exchange, queue, weight);
        }
    }
    let keys: Vec<String> = (0..4000).map(|n| n.to_string()).collect();
    let three = keys.iter().filter(|key| world.reached("x", key) == "three").count();
    assert!((2800..3200).contains(&three), "{three} of 4000, 3000 expected");

    // By header: the routing key does not matter, every type of value does.
    let by_header = |value: Value| world.reached_with("h", &table([("id", value)]));
    let texts: BTreeSet<_> = keys.iter().map(|key| by_header(text(key))).collect();
    let numbers: BTreeSet<_> = (0..100).map(|n| by_header(Value::I32(n))).collect();
    assert_eq!((texts.len(), numbers.len()), (2, 2));
    assert_ne!(world.reached_with("h", &Table::new()), "", "without the header it goes somewhere");
    let route = world.route("h", &Routable::default());
    assert!(!route.cacheable);

    let by_property = |id: &str| {
        let properties = HashProperties { message_id: Some(id), ..HashProperties::default() };
        world.names(&world.route("p", &Routable { properties, ..Routable::default() }))
    };
    assert_eq!(by_property("7"), world.reached("x", "7"), "the same hash of the same text");

    // Only a destination's first weight counts, and it counts until its last binding is gone.
    assert!(world.bind("x", "one", "10000").created);
    let three_now = keys.iter().filter(|key| world.reached("x", key) == "three").count();
    assert_eq!(three_now, three);
    world.unbind("x", "one", "1");
    world.unbind("x", "one", "10000");
    assert!(keys.iter().all(|key| world.reached("x", key) == "three"));
}

/// As RabbitMQ 4.3 was seen to choose.
#[test]
fn hash_exchanges_choose_the_queue_that_rabbitmq_chooses() {
    let mut world = World::new();
    world.exchange_with("h", "x-consistent-hash", table([("hash-header", text("h"))]));
    let by = |property| table([("hash-property", text(property))]);
    world.exchange_with("m", "x-consistent-hash", by("message_id"));
    world.exchange_with("t", "x-consistent-hash", by("timestamp"));
    world.exchange("parts", "x-modulus-hash");
    for queue in ["a", "b", "c"] {
        world.queue(queue);
        for exchange in ["h", "m", "t", "parts"] {
            world.bind(exchange, queue, "10");
        }
    }
    let numbers = [5, 6, -7, 70_000, 5_000_000_000].map(Value::I64);
    let texts = ["x", "y", "z", "w"].map(text);
    let others = [
        Value::Bool(true),
        Value::Bool(false),
        Value::Timestamp(1_577_836_800),
        Value::Timestamp(1_609_459_200),
        Value::Void,
    ];
    let headers = numbers.into_iter().chain(texts).chain(others);
    let chosen: String =
        headers.map(|value| world.reached_with("h", &table([("h", value)]))).collect();
    assert_eq!(chosen, "ccbbb cbcc cbaca".replace(' ', ""));
    assert_eq!(world.reached_with("h", &Table::new()), "a");

    let route = |exchange, properties| {
        world.names(&world.route(exchange, &Routable { properties, ..Routable::default() }))
    };
    let by_id =
        |id| route("m", HashProperties { message_id: Some(id), ..HashProperties::default() });
    let chosen: String = ["s", "t", "u", "v", "w", "x", "y", "z"].map(by_id).concat();
    assert_eq!(chosen, "cbaaccbc");
    let by_time = |seconds: u64| {
        let timestamp = Some(1_600_000_000 + seconds);
        route("t", HashProperties { timestamp, ..HashProperties::default() })
    };
    let chosen: String = [0, 1, 2, 3, 4, 5, 6, 7].map(by_time).concat();
    assert_eq!(chosen, "acccacbb");

    let with_cc = |n: u8| {
        let key = &format!("k{n}");
        world.names(
            &world.route("parts", &Routable { key, more_keys: &["o"], ..Routable::default() }),
        )
    };
    let chosen: String = [0, 1, 2, 3, 4, 5, 6, 7].map(with_cc).concat();
    assert_eq!(chosen, "bacabbba");
}

#[test]
fn random_kinds() {
    for kind in ["x-random", "x-local-random"] {
        let mut world = World::new();
        world.exchange("x", kind);
        assert_eq!(world.reached("x", "k"), "");
        for queue in ["a", "b", "c"] {
            world.queue(queue);
            world.bind("x", queue, "");
        }
        let mut rng = Rng(7);
        let mut counts = [0; 3];
        for _ in 0..3000 {
            let message = Routable { seed: rng.next(), ..Routable::default() };
            let route = world.route("x", &message);
            assert!(!route.cacheable);
            match world.names(&route).as_str() {
                "a" => counts[0] += 1,
                "b" => counts[1] += 1,
                "c" => counts[2] += 1,
                other => panic!("{other:?}"),
            }
        }
        assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
    }
}

#[test]
fn recent_history() {
    let mut world = World::new();
    let x = world.exchange("x", "x-recent-history");
    let five = table([("x-recent-history-length", Value::I32(5))]);
    let y = world.exchange_with("y", "x-recent-history", five);
    let length = |id| world.topology.exchange_by_id(id).unwrap().history_length();
    assert_eq!((length(x), length(y)), (20, 5));
    world.queue("q");
    let bound = world.bind("x", "q", "");
    assert_eq!((bound.created, bound.recent_history), (true, Some(x)));
    assert_eq!(world.bind("x", "q", "").recent_history, None);
    let bound = world.bind_exchange("x", "y", "");
    assert_eq!((bound.recent_history, bound.target), (Some(x), Target::Exchange(y)));
    let route = world.route("x", &Routable::default());
    assert_eq!(world.names(&route), "q");
    assert_eq!(route.remember.as_slice(), [x, y]);
    assert!(route.cacheable);
}

/// Ids are not given twice; a name that comes back is another queue.
#[test]
fn ids_are_never_used_twice() {
    let mut world = World::new();
    let first = world.queue("q");
    world.bind("amq.direct", "q", "k");
    world.topology.remove_queue(first);
    assert!(world.topology.remove_queue(first).bindings.is_empty());
    let second = world.queue("q");
    assert_ne!(first, second);
    assert_eq!(world.reached("amq.direct", "k"), "");
    assert_eq!(world.topology.bindings_to(Target::Queue(second)).count(), 0);
    let x = world.exchange("x", "direct");
    world.topology.delete_exchange(world.vhost, "x", false).unwrap();
    let mut route = Route::default();
    world.topology.route(world.vhost, x, &Routable::default(), &mut route);
    assert!(route.queues.is_empty());
    assert_ne!(world.exchange("x", "direct"), x);
}

/// Removing a queue with thousands of bindings, next to another with as many, leaves the other's.
#[test]
fn a_queue_with_many_bindings() {
    let mut world = World::new();
    let a = world.queue("a");
    world.queue("b");
    for number in 0..3000 {
        let key = format!("k.{number}.*");
        world.bind("amq.topic", "a", &key);
        world.bind("amq.topic", "b", &key);
        world.bind("amq.direct", "a", &key);
        world.bind("amq.fanout", "b", &key);
    }
    assert_eq!(world.topology.remove_queue(a).bindings.len(), 6000);
    world.topology.assert_invariants();
    assert_eq!(world.reached("amq.topic", "k.2999.x"), "b");
    for number in 0..3000 {
        let key = format!("k.{number}.*");
        assert_eq!(world.unbind("amq.topic", "b", &key).bindings.len(), 1);
        assert_eq!(world.unbind("amq.fanout", "b", &key).bindings.len(), 1);
    }
    world.topology.assert_invariants();
    assert_eq!(world.topology.binding_count(), 0);
}

#[test]
fn deleting_a_vhost() {
    let mut world = World::new();
    let q = world.queue("q");
    world.exchange("x", "fanout");
    world.bind_exchange("x", "x", "");
    world.bind("x", "q", "");
    let other = world.topology.add_vhost("other").unwrap();
    assert_eq!(world.topology.add_vhost("other").unwrap(), other);
    let deleted = world.topology.delete_vhost("/").unwrap();
    let queues: Vec<_> = deleted.queues.iter().map(|(id, _)| *id).collect();
    assert_eq!((queues, deleted.exchanges.len()), (vec![q], 8));
    world.topology.assert_invariants();
    assert_eq!(world.topology.binding_count(), 0);
    assert_ne!(world.topology.add_vhost("/").unwrap(), deleted.id);
    let error = world.topology.delete_vhost("none").unwrap_err();
    assert_eq!(error.to_string(), "virtual host 'none' does not exist");
}

/// What routing means, said plainly: lists that are searched.
#[derive(Default)]
struct Model {
    queues: BTreeSet<String>,
    exchanges: Vec<(String, String, bool)>,
    bindings: Vec<ModelBinding>,
}

#[derive(Clone, PartialEq)]
struct ModelBinding {
    source: String,
    to_queue: bool,
    to: String,
    key: String,
    arguments: Vec<(String, i32)>,
}

impl Model {
    fn matches(kind: &str, binding: &ModelBinding, key: &str, headers: &[(String, i32)]) -> bool {
        let words = |key: &str| -> Vec<String> {
            if key.is_empty() { vec![] } else { key.split('.').map(str::to_owned).collect() }
        };
        match kind {
            "direct" => binding.key == key,
            "topic" => Self::topic(&words(&binding.key), &words(key)),
            "headers" => binding.arguments.iter().all(|wanted| headers.contains(wanted)),
            _ => true,
        }
    }

    fn topic(binding: &[String], key: &[String]) -> bool {
        match binding.split_first() {
            None => key.is_empty(),
            Some((word, rest)) if word == "#" => {
                (0..=key.len()).any(|skip| Self::topic(rest, &key[skip..]))
            }
            Some((word, rest)) => key
                .split_first()
                .is_some_and(|(own, keys)| (word == "*" || word == own) && Self::topic(rest, keys)),
        }
    }

    fn reached(&self, exchange: &str, key: &str, headers: &[(String, i32)]) -> BTreeSet<String> {
        let (mut seen, mut open) = (BTreeSet::new(), vec![exchange.to_owned()]);
        let mut queues = BTreeSet::new();
        while let Some(name) = open.pop() {
            if !seen.insert(name.clone()) {
                continue;
            }
            let Some((_, kind, _)) = self.exchanges.iter().find(|x| x.0 == name) else { continue };
            for binding in self.bindings.iter().filter(|binding| binding.source == name) {
                if Self::matches(kind, binding, key, headers) {
                    if binding.to_queue {
                        queues.insert(binding.to.clone());
                    } else {
                        open.push(binding.to.clone());
                    }
                }
            }
        }
        queues
    }

    /// Takes bindings out, and then auto-delete exchanges that lost their last one.
    fn drop_bindings(&mut self, gone: impl Fn(&ModelBinding) -> bool) {
        let sources = |bindings: &[ModelBinding]| {
            bindings.iter().map(|binding| binding.source.clone()).collect::<BTreeSet<_>>()
        };
        let before = sources(&self.bindings);
        self.bindings.retain(|binding| !gone(binding));
        let after = sources(&self.bindings);
        for name in before.difference(&after) {
            if self.exchanges.iter().any(|(own, _, auto_delete)| own == name && *auto_delete) {
                self.drop_exchange(name);
            }
        }
    }

    fn drop_exchange(&mut self, name: &str) {
        self.exchanges.retain(|(own, ..)| own != name);
        self.bindings.retain(|binding| binding.source != name);
        let name = name.to_owned();
        self.drop_bindings(move |binding| !binding.to_queue && binding.to == name);
    }
}

const QUEUES: [&str; 6] = ["q0", "q1", "q2", "q3", "q4", "q5"];
const EXCHANGES: [&str; 6] = ["x0", "x1", "x2", "x3", "x4", "x5"];
const KEYS: [&str; 12] =
    ["", "a", "b", "a.b", "a.*", "*.b", "#", "a.#", "#.b", "a.#.b", "*.*", "a.b.a.b"];

/// Random commands; after each, everything agrees with the model.
#[test]
fn agrees_with_the_model() {
    for seed in 0..60 {
        let mut rng = Rng(seed);
        let (mut world, mut model) = (World::new(), Model::default());
        for step in 0..150 {
            command(&mut rng, &mut world, &mut model);
            world.topology.assert_invariants();
            compare(&mut rng, &world, &model, &format!("seed {seed}, step {step}"));
        }
    }
}

fn command(rng: &mut Rng, world: &mut World, model: &mut Model) {
    let (queue, exchange) = (rng.pick(&QUEUES), rng.pick(&EXCHANGES));
    let vhost = world.vhost;
    match rng.below(20) {
        0..=2 => {
            let spec = QueueSpec { name: queue, ..world.queue_spec(queue) };
            let created = world.topology.declare_queue(spec).unwrap().created;
            assert_eq!(created, model.queues.insert(queue.to_owned()));
        }
        3 => {
            let found = world.topology.queue(vhost, queue).map(|queue| queue.id);
            assert_eq!(found.is_some(), model.queues.remove(queue));
            if let Some(id) = found {
                world.topology.remove_queue(id);
            }
            model.drop_bindings(|binding| binding.to_queue && binding.to == queue);
        }
        4..=6 => {
            let known = model.exchanges.iter().any(|(own, ..)| own == exchange);
            if !known {
                let kind = rng.pick(&["direct", "fanout", "topic", "headers"]);
                let auto_delete = rng.chance(30);
                let spec = world.exchange_spec(exchange, kind);
                world.topology.declare_exchange(ExchangeSpec { auto_delete, ..spec }).unwrap();
                model.exchanges.push((exchange.to_owned(), kind.to_owned(), auto_delete));
            }
        }
        7 => {
            world.topology.delete_exchange(vhost, exchange, false).unwrap();
            model.drop_exchange(exchange);
        }
        at => {
            let binding = ModelBinding {
                source: rng.pick(&EXCHANGES).to_owned(),
                to_queue: rng.chance(70),
                to: String::new(),
                key: rng.pick(&KEYS).to_owned(),
                arguments: arguments(rng),
            };
            let to = if binding.to_queue { queue } else { exchange };
            let binding = ModelBinding { to: to.to_owned(), ..binding };
            bind(at < 16, binding, world, model);
        }
    }
}

fn bind(add: bool, binding: ModelBinding, world: &mut World, model: &mut Model) {
    let to = &binding.to;
    let destination =
        if binding.to_queue { Destination::Queue(to) } else { Destination::Exchange(to) };
    let arguments: Table =
        binding.arguments.iter().map(|(name, n)| (name.clone(), Value::I32(*n))).collect();
    let is_exchange = |name: &str| model.exchanges.iter().any(|(own, ..)| own == name);
    let there = is_exchange(&binding.source)
        && if binding.to_queue { model.queues.contains(to) } else { is_exchange(to) };
    let known = model.bindings.contains(&binding);
    let (vhost, source, key) = (world.vhost, &binding.source, &binding.key);
    if add {
        let result = world.topology.bind(vhost, source, destination, key, arguments, None);
        assert_eq!(result.is_ok(), there);
        assert!(result.is_err() || result.unwrap().created != known);
        if there && !known {
            model.bindings.push(binding);
        }
    } else {
        let result = world.topology.unbind(vhost, source, destination, key, arguments, None);
        assert_eq!(result.unwrap().bindings.is_empty(), !known);
        model.drop_bindings(|own| *own == binding);
    }
}

fn arguments(rng: &mut Rng) -> Vec<(String, i32)> {
    let names = ["m", "n"].into_iter().filter(|_| rng.chance(30)).collect::<Vec<_>>();
    names.into_iter().map(|name| (name.to_owned(), rng.below(2) as i32)).collect()
}

fn compare(rng: &mut Rng, world: &World, model: &Model, at: &str) {
    assert_eq!(world.topology.binding_count(), model.bindings.len(), "{at}");
    for (exchange, kind, _) in &model.exchanges {
        let key = rng.pick(&KEYS);
        let headers: Vec<_> =
            ["m", "n"].map(|name| (name.to_owned(), rng.below(2) as i32)).into_iter().collect();
        let sent: Table = headers.iter().map(|(name, n)| (name.clone(), Value::I32(*n))).collect();
        let bytes = sent.to_bytes();
        let headers_raw = Some(RawTable::new(&bytes).unwrap());
        let route =
            world.route(exchange, &Routable { key, headers: headers_raw, ..Routable::default() });
        let want = model.reached(exchange, key, &headers);
        let got = world.names(&route);
        let joined = want.iter().map(String::as_str).collect::<Vec<_>>().join(" ");
        assert_eq!(got, joined, "{at}: {kind} exchange {exchange}, key {key:?}");
    }
}
