//! Policies and operator policies: which holds, what it does, what is refused.

use leveret_amqp::table::Value;
use leveret_queue::Overflow;
use leveret_topology::{ApplyTo, PolicyError, PolicySpec, QueueId, QueueSpec};
use serde_json::{Value as Json, json};

use crate::common::{Rng, World, table, text};

fn spec<'a>(name: &'a str, pattern: &'a str, definition: Json) -> PolicySpec<'a> {
    let Json::Object(definition) = definition else { panic!("not an object") };
    PolicySpec { name, pattern, apply_to: ApplyTo::All, priority: 0, definition }
}

impl World {
    fn set(&mut self, policy: PolicySpec<'_>) -> Vec<QueueId> {
        let changed = self.topology.set_policy("/", policy).unwrap();
        self.topology.assert_invariants();
        changed
    }

    fn policy_of(&self, queue: &str) -> &str {
        self.topology.queue(self.vhost, queue).unwrap().policy().unwrap_or("none")
    }
}

#[test]
fn the_highest_priority_that_matches_holds_alone() {
    let mut world = World::new();
    let (a, b) = (world.queue("a.1"), world.queue("b.1"));
    assert_eq!(world.set(spec("all", "", json!({ "message-ttl": 1000 }))), [a, b]);
    assert_eq!(world.set(spec("all", "", json!({ "message-ttl": 2000 }))), [a, b]);
    let high = PolicySpec { priority: 5, ..spec("a", "^a", json!({ "max-length": 5 })) };
    assert_eq!(world.set(high.clone()), [a]);
    assert_eq!((world.policy_of("a.1"), world.policy_of("b.1")), ("a", "all"));
    let options = |world: &World, id| world.topology.queue_by_id(id).unwrap().options();
    assert_eq!((options(&world, a).max_length, options(&world, a).message_ttl_ms), (Some(5), None));
    assert_eq!(options(&world, b).message_ttl_ms, Some(2000));
    // Lower ones change nothing, nor do equal ones with a later name.
    assert!(world.set(PolicySpec { priority: 4, ..high.clone() }.named("a4")).is_empty());
    assert!(world.set(high.named("later")).is_empty());
    // A new queue has its policy at once.
    world.queue("a.2");
    assert_eq!(world.policy_of("a.2"), "a");
    let changed = world.topology.clear_policy("/", "a").unwrap();
    assert_eq!(changed.len(), 2);
    assert_eq!(world.policy_of("a.1"), "later");
    let error = world.topology.clear_policy("/", "a").unwrap_err();
    assert_eq!(error.to_string(), "policy 'a' in vhost '/' does not exist");
    assert!(world.topology.clear_policy("none", "a").is_err());
}

trait Named<'a> {
    fn named(self, name: &'a str) -> Self;
}

impl<'a> Named<'a> for PolicySpec<'a> {
    fn named(self, name: &'a str) -> Self {
        Self { name, ..self }
    }
}

#[test]
fn what_it_applies_to() {
    let holds = |apply_to, definition: Json| {
        let mut world = World::new();
        world.queue("classic");
        let arguments = table([("x-queue-type", text("quorum"))]);
        let quorum = QueueSpec { durable: true, arguments, ..world.queue_spec("quorum") };
        world.topology.declare_queue(quorum).unwrap();
        world.exchange("x", "direct");
        world.set(PolicySpec { apply_to, ..spec("p", "", definition) });
        let exchange = world.topology.exchange(world.vhost, "x").unwrap().policy().is_some();
        [world.policy_of("classic") == "p", world.policy_of("quorum") == "p", exchange]
    };
    let ttl = || json!({ "message-ttl": 1 });
    assert_eq!(holds(ApplyTo::All, ttl()), [true, true, true]);
    assert_eq!(holds(ApplyTo::Queues, ttl()), [true, true, false]);
    assert_eq!(holds(ApplyTo::ClassicQueues, ttl()), [true, false, false]);
    assert_eq!(holds(ApplyTo::QuorumQueues, ttl()), [false, true, false]);
    assert_eq!(holds(ApplyTo::Streams, ttl()), [false, false, false]);
    assert_eq!(holds(ApplyTo::Exchanges, ttl()), [false, false, true]);
    // A setting that a type does not know keeps the whole policy from it.
    let definition = json!({ "message-ttl": 1, "delivery-limit": 3 });
    assert_eq!(holds(ApplyTo::All, definition), [false, true, true]);
    let definition = json!({ "ha-mode": "exactly", "ha-params": 2 });
    assert_eq!(holds(ApplyTo::All, definition), [true, false, true]);
    let error = ApplyTo::parse("topics").unwrap_err().to_string();
    assert!(
        error.contains("apply-to 'topics' unrecognised; should be one of: 'queues'"),
        "{error}"
    );
}

#[test]
fn arguments_policy_and_operator_policy_together() {
    let mut world = World::new();
    let arguments = table([
        ("x-message-ttl", Value::I32(5000)),
        ("x-max-length", Value::I32(10)),
        ("x-overflow", text("reject-publish")),
        ("x-dead-letter-exchange", text("from arguments")),
    ]);
    let id = world.queue_with("q", arguments).unwrap().id;
    let definition = json!({
        "message-ttl": 1000,
        "max-length": 100,
        "overflow": "drop-head",
        "dead-letter-exchange": "from policy",
        "dead-letter-routing-key": "key",
        "expires": 60_000,
    });
    world.set(spec("p", "", definition));
    let operator = json!({ "expires": 30_000, "max-length": 7, "max-length-bytes": 1 << 20 });
    let changed = world.topology.set_operator_policy("/", spec("op", "", operator)).unwrap();
    assert_eq!(changed, [id]);
    let queue = world.topology.queue_by_id(id).unwrap();
    let options = queue.options();
    assert_eq!(options.message_ttl_ms, Some(1000)); // of limits the smallest
    assert_eq!(options.max_length, Some(7));
    assert_eq!(options.max_length_bytes, Some(1 << 20));
    assert_eq!(options.expires_ms, Some(30_000));
    assert_eq!(options.overflow, Overflow::RejectPublish); // of others the argument's
    assert_eq!(queue.dead_letter(), Some(("from arguments", Some("key"))));
    assert_eq!((queue.policy(), queue.operator_policy()), (Some("p"), Some("op")));
    let want = json!({
        "message-ttl": 1000,
        "max-length": 7,
        "overflow": "drop-head",
        "dead-letter-exchange": "from policy",
        "dead-letter-routing-key": "key",
        "expires": 30_000,
        "max-length-bytes": 1 << 20,
    });
    assert_eq!(Json::Object(queue.effective_policy()), want);
    assert_eq!(world.topology.clear_operator_policy("/", "op").unwrap(), [id]);
    assert_eq!(world.topology.queue_by_id(id).unwrap().options().max_length, Some(10));
}

#[test]
fn delivery_limits_and_strategy_of_quorum_queues() {
    let mut world = World::new();
    let arguments = table([("x-queue-type", text("quorum")), ("x-delivery-limit", Value::I32(-1))]);
    let spec_q = QueueSpec { durable: true, arguments, ..world.queue_spec("q") };
    let id = world.topology.declare_queue(spec_q).unwrap().id;
    let definition = json!({
        "delivery-limit": 5,
        "dead-letter-exchange": "",
        "dead-letter-strategy": "at-least-once",
        "overflow": "reject-publish",
    });
    world.set(spec("p", "", definition));
    let limit = |world: &World| world.topology.queue_by_id(id).unwrap().options().delivery_limit;
    assert_eq!(limit(&world), Some(5)); // no limit gives way to a limit
    assert!(world.topology.queue_by_id(id).unwrap().options().at_least_once);
    let operator = |limit: i64| spec("op", "", json!({ "delivery-limit": limit }));
    world.topology.set_operator_policy("/", operator(3)).unwrap();
    assert_eq!(limit(&world), Some(3));
    world.topology.set_operator_policy("/", operator(-1)).unwrap();
    assert_eq!(limit(&world), Some(5));
}

#[test]
fn alternate_exchange_by_policy() {
    let mut world = World::new();
    world.exchange("x", "direct");
    world.queue("q");
    world.bind("amq.fanout", "q", "");
    assert_eq!(world.reached("x", "k"), "");
    let before = world.topology.generation();
    world.set(spec("p", "^x", json!({ "alternate-exchange": "amq.fanout" })));
    assert_ne!(world.topology.generation(), before);
    assert_eq!(world.reached("x", "k"), "q");
    let before = world.topology.generation();
    world.set(spec("other", "^y", json!({ "alternate-exchange": "amq.fanout" })));
    assert_eq!(world.topology.generation(), before);
    world.topology.clear_policy("/", "p").unwrap();
    assert_ne!(world.topology.generation(), before);
    assert_eq!(world.reached("x", "k"), "");
}

#[test]
#[rustfmt::skip] // a table
fn bad_definitions() {
    let refuse = |operator: bool, definition: Json, want: &str| {
        let mut topology = World::new().topology;
        let policy = spec("p", "", definition);
        let result = if operator {
            topology.set_operator_policy("/", policy)
        } else {
            topology.set_policy("/", policy)
        };
        assert_eq!(result.unwrap_err().to_string(), format!("Validation failed\n\n{want}\n"));
    };
    refuse(false, json!({}), "no policy provided");
    refuse(false, json!({ "max-length": -1 }), "-1 is not a valid maximum length");
    refuse(false, json!({ "max-length": "5" }), "<<\"5\">> is not a valid maximum length");
    refuse(false, json!({ "message-ttl": 1.5 }), "1.5 is not a valid message TTL");
    refuse(false, json!({ "expires": 0 }), "0 is not a valid queue expiry");
    refuse(false, json!({ "overflow": "drop" }), "<<\"drop\">> is not a valid overflow value");
    refuse(false, json!({ "dead-letter-exchange": 1 }), "1 is not a valid dead letter exchange name");
    refuse(false, json!({ "queue-mode": "eager" }), "<<\"eager\">> is not a valid queue-mode value");
    refuse(false, json!({ "max-age": "1w" }), "<<\"1w\">> is not a valid max age");
    refuse(false, json!({ "foo": 1 }), "[{<<\"foo\">>,1}] are not recognised policy settings");
    refuse(true, json!({ "dead-letter-exchange": "x" }),
        "[{<<\"dead-letter-exchange\">>,<<\"x\">>}] are not recognised policy settings");
    let mut topology = World::new().topology;
    let error = topology.set_policy("/", spec("p", "(", json!({ "expires": 1 }))).unwrap_err();
    assert!(matches!(error, PolicyError::Validation(_)));
    assert!(error.to_string().contains("pattern should be regular expression but is invalid"));
    let error = topology.set_policy("none", spec("p", "", json!({ "expires": 1 }))).unwrap_err();
    assert_eq!(error, PolicyError::NoVhost("none".to_owned()));
}

#[test]
fn parameters() {
    let mut world = World::new();
    let topology = &mut world.topology;
    let upstream = json!({ "uri": "amqp://elsewhere" });
    topology.set_parameter("/", "federation-upstream", "up", upstream.clone()).unwrap();
    let all: Vec<_> = topology.vhost("/").unwrap().parameters().collect();
    assert_eq!(all, [("federation-upstream", "up", &upstream)]);
    topology.clear_parameter("/", "federation-upstream", "up").unwrap();
    let error = topology.clear_parameter("/", "federation-upstream", "up").unwrap_err();
    assert_eq!(error.to_string(), "federation-upstream 'up' in vhost '/' does not exist");
    let limits = json!({ "max-connections": 5, "max-queues": -1 });
    topology.set_parameter("/", "vhost-limits", "limits", limits).unwrap();
    let vhost = topology.vhost("/").unwrap();
    assert_eq!((vhost.max_connections(), vhost.max_queues()), (Some(5), None));
    topology.set_global_parameter("cluster_name", json!("rabbit"));
    assert_eq!(topology.global_parameters().count(), 1);
    assert!(topology.clear_global_parameter("cluster_name"));
    assert!(!topology.clear_global_parameter("cluster_name"));
}

/// Policies that come and go at random: what they concern is told, and nothing else changes.
#[test]
fn random_policies() {
    let mut rng = Rng(3);
    let mut world = World::new();
    let state = |world: &World| -> Vec<_> {
        let queues = world.topology.queues(world.vhost).into_iter();
        queues.map(|queue| (queue.id, queue.effective_policy())).collect()
    };
    for step in 0..400 {
        let name = rng.pick(&["a", "b", "c", "d", "e"]);
        let before = state(&world);
        let queues = before.len();
        let result = match rng.below(6) {
            0 => {
                let queue = format!("{}{}", rng.pick(&["x", "y", "z"]), rng.below(20));
                world.queue(&queue);
                continue;
            }
            1 => world.topology.clear_policy("/", name),
            2 => world.topology.clear_operator_policy("/", name),
            kind => {
                let pattern = rng.pick(&["^x", "^y", "1$", "", "z.*2"]);
                let definition = json!({ "max-length": step });
                let policy =
                    PolicySpec { priority: rng.below(3) as i64, ..spec(name, pattern, definition) };
                match kind {
                    3 => world.topology.set_operator_policy("/", policy),
                    _ => world.topology.set_policy("/", policy),
                }
            }
        };
        world.topology.assert_invariants();
        let after = state(&world);
        assert_eq!(after.len(), queues);
        let told = result.unwrap_or_default();
        for (old, new) in before.iter().zip(&after) {
            assert!(old == new || told.contains(&new.0), "step {step}: {new:?} was not told");
        }
    }
}

/// A pattern that takes long for one name may take long for a few: for many it is refused, and nothing changes.
#[test]
fn patterns_that_take_long() {
    let mut world = World::new();
    for at in 0..300 {
        world.queue(&format!("{at:0>60}"));
    }
    let spec = |pattern| spec("p", pattern, json!({ "expires": 100 }));
    world.topology.set_policy("/", spec("^0")).unwrap();
    let error = world.topology.set_policy("/", spec(r"^(.|.)+\1!$")).unwrap_err();
    assert!(
        error.to_string().contains("pattern backtracks too much: more than 100 names"),
        "{error}"
    );
    assert_eq!(world.topology.vhost("/").unwrap().policies().next().unwrap().pattern.text(), "^0");
    let definitions = json!({ "policies": [{
        "vhost": "/", "name": "x", "pattern": r"^(.|.)+\1!$", "definition": { "expires": 1 },
    }] });
    let error = world.topology.import_definitions(&definitions.to_string()).unwrap_err();
    assert!(error.to_string().contains("pattern backtracks"), "{error}");
    // Where no name is long it is as good as others; so is one that looks around and takes no steps back.
    world.topology.set_policy("/", spec("^(?!amq)")).unwrap();
    world.topology.assert_invariants();
    let mut world = World::new();
    world.queue("short");
    world.topology.set_policy("/", spec(r"^(.|.)+\1!$")).unwrap();
}

/// Each queue that is declared is matched with all of them.
#[test]
fn patterns_that_are_tried_are_few() {
    let mut world = World::new();
    let set = |world: &mut World, name: &str, pattern| {
        world.topology.set_policy("/", spec(name, pattern, json!({ "expires": 100 })))
    };
    for at in 0..64 {
        set(&mut world, &format!("p{at}"), "^(?!amq)").unwrap();
    }
    let error = set(&mut world, "one more", "^(?!amq)").unwrap_err().to_string();
    assert!(
        error.contains("a vhost may have 64 policies whose pattern needs backtracking"),
        "{error}"
    );
    set(&mut world, "linear", "^amq").unwrap();
    set(&mut world, "p7", "^(?!other)").unwrap();
    set(&mut world, "p8", "^linear").unwrap();
    set(&mut world, "one more", "^(?!amq)").unwrap();
}
