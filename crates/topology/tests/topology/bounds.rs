//! What one client can make routing cost: counted in looks, not in time.

use leveret_amqp::table::{RawTable, Table, Value};
use leveret_topology::{Destination, ROUTE_COST_MAX, Routable, Route};

use crate::common::{Rng, World, table, text};

/// What a message with these headers costs, and how many queues it reaches.
fn cost(world: &World, exchange: &str, headers: &Table) -> (u32, usize) {
    let bytes = headers.to_bytes();
    let headers = Some(RawTable::new(&bytes).unwrap());
    let route = world.route(exchange, &Routable { headers, ..Routable::default() });
    (route.cost, route.queues.len())
}

/// Bound until it is refused; gives how many were, and the text.
fn bind_until_refused(
    world: &mut World,
    exchange: &str,
    most: usize,
    binding: impl Fn(usize) -> (String, Table),
) -> (usize, String) {
    for at in 0..most {
        let (key, arguments) = binding(at);
        if let Err(error) = world.try_bind(exchange, Destination::Queue("q"), &key, arguments) {
            return (at, error.to_string());
        }
    }
    (most, String::new())
}

/// Twenty thousand customers: a message looks at the rules that are filed under its own values.
#[test]
fn many_headers_bindings_are_cheap() {
    let mut world = World::new();
    for customer in 0..20_000 {
        world.queue(&format!("q{customer}"));
        let arguments = table([
            ("type", text("order")),
            ("region", Value::I32(customer % 7)),
            ("customer", Value::I32(customer)),
        ]);
        let queue = format!("q{customer}");
        world.try_bind("amq.headers", Destination::Queue(&queue), "", arguments).unwrap();
    }
    let message = |customer: i32| {
        table([
            ("type", text("order")),
            ("region", Value::I64((customer % 7).into())),
            ("customer", Value::I32(customer)),
            ("other", Value::Void),
        ])
    };
    let (looks, reached) = cost(&world, "amq.headers", &message(12_345));
    assert_eq!(reached, 1);
    assert!(looks < 20, "{looks}");
    assert_eq!(cost(&world, "amq.headers", &message(20_000)).1, 0);

    // And those that all match still cost a step each.
    for customer in 0..20_000 {
        let queue = format!("q{customer}");
        let arguments = table([("all", Value::Bool(true)), ("x-match", text("any"))]);
        world.try_bind("amq.match", Destination::Queue(&queue), "", arguments).unwrap();
    }
    let (looks, reached) = cost(&world, "amq.match", &table([("all", Value::Bool(true))]));
    assert_eq!(reached, 20_000);
    assert!(looks < 21_000, "{looks}");
}

/// The attack: bindings of very many arguments, and a message that has them all.
#[test]
fn a_headers_exchange_has_a_bound() {
    for any in [false, true] {
        let mut world = World::new();
        world.queue("q");
        let names: Vec<String> = (0..4_000).map(|at| format!("{at:x}")).collect();
        let headers: Table = names.iter().map(|it| (it.clone(), Value::Void)).collect();
        let (bound, why) = bind_until_refused(&mut world, "amq.headers", 600, |at| {
            let mut arguments = headers.clone();
            arguments.set("x-match", text(if any { "any" } else { "all" }));
            (at.to_string(), arguments)
        });
        assert_eq!(bound, 32, "{why}");
        let want = "binding refused: with it, one message published to headers exchange 'amq.headers' in vhost '/' could \
                    take 132000 comparisons, and 131072 are allowed; use fewer or simpler bindings, or several exchanges";
        assert_eq!(why, want);
        let (looks, _) = cost(&world, "amq.headers", &headers);
        assert!((128_000..135_000).contains(&looks), "{looks}");
        // Where they are unbound there is room again.
        for at in 0..bound {
            let mut arguments = headers.clone();
            arguments.set("x-match", text(if any { "any" } else { "all" }));
            let to = Destination::Queue("q");
            let key = at.to_string();
            let removed =
                world.topology.unbind(world.vhost, "amq.headers", to, &key, arguments, None);
            assert_eq!(removed.unwrap().bindings.len(), 1);
        }
        assert_eq!(cost(&world, "amq.headers", &headers), (1, 0));
        world.try_bind("amq.headers", Destination::Queue("q"), "", headers.clone()).unwrap();
    }
}

/// Long values that are compared again and again count by their length.
#[test]
fn long_values_count() {
    let mut world = World::new();
    world.queue("q");
    let arguments = table([("h", text(&"v".repeat(64_000)))]);
    let (bound, _) = bind_until_refused(&mut world, "amq.headers", 600, |at| {
        (at.to_string(), arguments.clone())
    });
    assert_eq!(bound, 130);
    assert!(cost(&world, "amq.headers", &arguments).0 <= 131_072);
}

/// As plain comparison would have it, whatever is bound and unbound.
#[test]
fn headers_agree_with_plain_comparison() {
    for seed in 0..40 {
        let mut rng = Rng(seed);
        let mut world = World::new();
        for at in 0..8 {
            world.queue(&format!("q{at}"));
        }
        let mut bound: Vec<(String, Table)> = Vec::new();
        for step in 0..200 {
            if rng.below(3) == 0 && !bound.is_empty() {
                let at = rng.below(bound.len());
                let (queue, arguments) = bound.swap_remove(at);
                let to = Destination::Queue(&queue);
                let (vhost, exchange) = (world.vhost, "amq.headers");
                world.topology.unbind(vhost, exchange, to, "", arguments, None).unwrap();
            } else {
                let queue = format!("q{}", rng.below(8));
                let mut arguments = some_headers(&mut rng);
                if rng.below(4) > 0 {
                    let kinds = ["all", "any", "all-with-x", "any-with-x"];
                    arguments.set("x-match", text(rng.pick(&kinds)));
                }
                let to = Destination::Queue(&queue);
                let created = world.try_bind("amq.headers", to, "", arguments.clone()).unwrap();
                if created.created {
                    bound.push((queue, arguments));
                }
            }
            world.topology.assert_invariants();
            let headers = some_headers(&mut rng);
            let mut want: Vec<&str> = bound
                .iter()
                .filter(|(_, arguments)| matches(arguments, &headers))
                .map(|(queue, _)| queue.as_str())
                .collect();
            want.sort_unstable();
            want.dedup();
            let found = world.reached_with("amq.headers", &headers);
            assert_eq!(found, want.join(" "), "seed {seed}, step {step}: {headers:?}");
        }
    }
}

fn some_headers(rng: &mut Rng) -> Table {
    let mut headers = Table::new();
    for name in ["a", "b", "x-c"] {
        let value = match rng.below(12) {
            0 => Value::I32(1),
            1 => Value::I64(1),
            2 => Value::Timestamp(1),
            3 => Value::F64(0.0),
            4 => Value::F32(-0.0),
            5 => text("1"),
            6 => Value::Bool(true),
            7 => Value::Void,
            8 => Value::Array(vec![Value::I32(1)]),
            _ => continue,
        };
        headers.set(name, value);
    }
    headers
}

fn matches(arguments: &Table, headers: &Table) -> bool {
    let kind = arguments.get("x-match").and_then(Value::as_str).unwrap_or("all");
    let mut tests = arguments.iter().filter(|(name, _)| match kind.ends_with("with-x") {
        true => *name != "x-match",
        false => !name.starts_with("x-"),
    });
    let holds = |(name, wanted): (&str, &Value)| {
        let Some(found) = headers.get(name) else { return false };
        let is_whole =
            |it: &Value| matches!(it, Value::I32(_) | Value::I64(_) | Value::Timestamp(_));
        let is_float = |it: &Value| matches!(it, Value::F32(_) | Value::F64(_));
        match wanted {
            Value::Void => true,
            it if is_whole(it) => is_whole(found),
            it if is_float(it) => is_float(found),
            other => other == found,
        }
    };
    if kind.starts_with("any") { tests.any(holds) } else { tests.all(holds) }
}

/// Patterns that differ only in which words are `*` are all reached by one key.
#[test]
fn a_topic_exchange_has_a_bound() {
    let mut world = World::new();
    world.queue("q");
    let pattern = |prefix: &str, at: usize| {
        let words = (0..18).map(|bit| if at >> bit & 1 == 0 { "a" } else { "*" });
        (prefix.to_owned() + &words.collect::<Vec<_>>().join("."), Table::new())
    };
    // After a `#` they are reached with every word of a key.
    let (bound, why) = bind_until_refused(&mut world, "amq.topic", 300_000, |at| pattern("#.", at));
    assert_eq!(bound, 163);
    assert!(
        why.starts_with("binding refused: with it, one message published to topic exchange"),
        "{why}"
    );
    let key = ["a"; 128].join(".");
    let route = world.route("amq.topic", &Routable { key: &key, ..Routable::default() });
    assert_eq!(route.queues.len(), 1);
    assert!(!route.is_too_costly(), "{}", route.cost);
    // The bound is near what a key can really cost.
    assert!(route.cost > 100_000, "{}", route.cost);

    // Many of the usual kind are no matter.
    world.exchange("t", "topic");
    for at in 0..30_000 {
        let key = match at % 4 {
            0 => format!("device.{at}.#"),
            1 => format!("#.{at}"),
            2 => format!("*.{at}.state"),
            _ => format!("site.{}.*.{at}", at % 100),
        };
        world.try_bind("t", Destination::Queue("q"), &key, Table::new()).unwrap();
    }
    world.topology.assert_invariants();
}

/// A message passes each exchange once, and is refused where that is too many.
#[test]
fn a_graph_of_exchanges_has_a_bound() {
    let mut world = World::new();
    world.queue("q");
    world.exchange("all", "fanout");
    for at in 0..20_000 {
        let name = format!("x{at}");
        world.exchange(&name, "fanout");
        world.bind_exchange("all", &name, "");
        world.bind(&name, "q", "");
        // And a circle.
        world.bind_exchange(&name, "all", "");
    }
    let route = world.route("all", &Routable::default());
    assert_eq!(route.queues.len(), 1);
    assert!((20_000..100_000).contains(&route.cost), "{}", route.cost);

    // Forty times the most that one exchange may cost.
    let names: Vec<String> = (0..4_000).map(|at| format!("{at:x}")).collect();
    let headers: Table = names.iter().map(|it| (it.clone(), Value::Void)).collect();
    world.exchange("heavy", "fanout");
    for at in 0..40 {
        let name = format!("h{at}");
        world.exchange(&name, "headers");
        world.bind_exchange("heavy", &name, "");
        for key in 0..32 {
            let to = Destination::Queue("q");
            world.try_bind(&name, to, &key.to_string(), headers.clone()).unwrap();
        }
    }
    let bytes = headers.to_bytes();
    let raw = Some(RawTable::new(&bytes).unwrap());
    let route = world.route("heavy", &Routable { headers: raw, ..Routable::default() });
    assert!(route.is_too_costly() && route.queues.is_empty() && !route.cacheable);
    assert!(route.cost < ROUTE_COST_MAX + 140_000, "{}", route.cost);
    // With other headers it is a message like others.
    assert!(!world.route("heavy", &Routable::default()).is_too_costly());
}

/// Keys in `CC` are as many as a frame holds.
#[test]
fn many_keys_have_a_bound() {
    let mut world = World::new();
    world.queue("q");
    for at in 0..1_000 {
        let words = (0..10).map(|bit| if at >> bit & 1 == 0 { "a" } else { "*" });
        let key = words.collect::<Vec<_>>().join(".");
        world.bind("amq.topic", "q", &key);
    }
    let key = ["a"; 10].join(".");
    let more = vec![key.as_str(); 20_000];
    let message = |keys| Routable { key: "a", more_keys: &more[..keys], ..Routable::default() };
    assert_eq!(world.route("amq.topic", &message(100)).queues.len(), 1);
    let route = world.route("amq.topic", &message(20_000));
    assert!(route.is_too_costly() && route.queues.is_empty());
    // A direct exchange takes them all.
    assert!(!world.route("amq.direct", &message(20_000)).is_too_costly());
    assert!(!world.route("", &message(20_000)).is_too_costly());
}

/// Of many that are reached more than once each counts once, near or far apart.
#[test]
fn duplicates_of_many() {
    let mut world = World::new();
    for at in 0..300 {
        let id = world.queue(&format!("q{at}"));
        if at % 2 == 0 {
            world.topology.remove_queue(id);
        }
    }
    let mut far = Vec::new();
    for at in 0..40 {
        far.push(world.queue(&format!("far{at}")));
        for gone in 0..1_000 {
            let id = world.queue(&format!("gone{gone}"));
            world.topology.remove_queue(id);
        }
    }
    for at in (1..300).step_by(2) {
        world.bind("amq.topic", &format!("q{at}"), "a");
        world.bind("amq.topic", &format!("q{at}"), "#");
        world.bind("amq.topic", &format!("q{at}"), "*");
    }
    assert_eq!(
        world.route("amq.topic", &Routable { key: "a", ..Routable::default() }).queues.len(),
        150
    );
    for at in 0..40 {
        world.bind("amq.match", &format!("far{at}"), "");
    }
    world.exchange("both", "fanout");
    world.bind_exchange("both", "amq.match", "");
    for at in 0..40 {
        world.bind("both", &format!("far{at}"), "");
    }
    let Route { queues, .. } = world.route("both", &Routable::default());
    assert_eq!(queues.len(), 40);
}
