//! Policies and operator policies: which holds, what it does, what is refused.

use leveret_amqp::table::Value;
use leveret_queue::Overflow;
use leveret_topology::{
    ApplyTo, DefaultLimits, DefaultPolicy, DefaultUser, Defaults, Import, PasswordHash,
    PasswordRule, Pattern, Policy, PolicyError, PolicySpec, QueueId, QueueKind, QueueSpec,
    ReplicationConfirm, Topology, must_be_component,
};
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

/// An argument goes before a policy, as with the other options of confirms.
#[test]
#[rustfmt::skip] // a table
fn replication_confirm_by_argument_and_policy() {
    let check = |argument: Option<&str>, policy: Option<&str>, want: ReplicationConfirm| {
        let mut world = World::new();
        let arguments = argument.map(|it| ("x-replication-confirm", text(it)));
        let id = world.queue_with("q", table(arguments)).unwrap().id;
        if let Some(policy) = policy {
            world.set(spec("p", "", json!({ "replication-confirm": policy })));
        }
        let queue = world.topology.queue_by_id(id).unwrap();
        assert_eq!(queue.confirm_options().replication, want, "{argument:?} {policy:?}");
        let effective = queue.effective_policy();
        assert_eq!(effective.get("replication-confirm").and_then(Json::as_str), policy);
    };
    use ReplicationConfirm::{All, Majority};
    check(None,             None,             Majority);
    check(None,             Some("all"),      All);
    check(None,             Some("majority"), Majority);
    check(Some("all"),      None,             All);
    check(Some("majority"), Some("all"),      Majority);
    check(Some("all"),      Some("majority"), All);
}

/// The argument goes before the policy.
#[test]
#[rustfmt::skip] // a table
fn deliver_before_commit_by_argument_and_policy() {
    let check = |argument: Option<bool>, policy: Option<bool>, want: bool| {
        let mut world = World::new();
        let arguments = argument.map(|it| ("x-deliver-before-commit", Value::Bool(it)));
        let id = world.queue_with("q", table(arguments)).unwrap().id;
        if let Some(policy) = policy {
            world.set(spec("p", "", json!({ "deliver-before-commit": policy })));
        }
        let queue = world.topology.queue_by_id(id).unwrap();
        assert_eq!(queue.confirm_options().before_commit, want, "{argument:?} {policy:?}");
    };
    check(None,        None,        false);
    check(None,        Some(true),  true);
    check(None,        Some(false), false);
    check(Some(true),  None,        true);
    check(Some(true),  Some(false), true);
    check(Some(false), Some(true),  false);
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
    refuse(false, json!({ "replication-confirm": "one" }),
        "<<\"one\">> is not a valid replication-confirm value. Valid are majority, all");
    refuse(false, json!({ "deliver-before-commit": "yes" }),
        "<<\"yes\">> is not a valid deliver-before-commit value. Valid are true, false");
    refuse(true, json!({ "deliver-before-commit": true }),
        "[{<<\"deliver-before-commit\">>,true}] are not recognised policy settings");
    refuse(false, json!({ "replication-confirm": true }),
        "true is not a valid replication-confirm value. Valid are majority, all");
    refuse(true, json!({ "replication-confirm": "all" }),
        "[{<<\"replication-confirm\">>,<<\"all\">>}] are not recognised policy settings");
    refuse(false, json!({ "foo": 1 }), "[{<<\"foo\">>,1}] are not recognised policy settings");
    refuse(false, json!({ "federation-upstream-set": "all" }),
        "[{<<\"federation-upstream-set\">>,<<\"all\">>}] are not recognised policy settings");
    refuse(false, json!({ "shards-per-node": 2 }), "[{<<\"shards-per-node\">>,2}] are not recognised policy settings");
    refuse(false, json!({ "max-priority": 2 }), "[{<<\"max-priority\">>,2}] are not recognised policy settings");
    refuse(true, json!({ "dead-letter-exchange": "x" }),
        "[{<<\"dead-letter-exchange\">>,<<\"x\">>}] are not recognised policy settings");
    let mut topology = World::new().topology;
    let error = topology.set_policy("/", spec("p", "(", json!({ "expires": 1 }))).unwrap_err();
    assert!(matches!(error, PolicyError::Validation(_)));
    assert!(error.to_string().contains("pattern should be regular expression but is invalid"));
    let error = topology.set_policy("none", spec("p", "", json!({ "expires": 1 }))).unwrap_err();
    assert_eq!(error, PolicyError::NoVhost("none".to_owned()));
}

/// A vhost keeps the type of queues that the node had when it was made.
/// The first limits that match, each operator policy and each user that do; what was there stays as it is.
#[test]
fn defaults_of_new_vhosts() {
    let mut topology = Topology::new();
    topology.add_vhost("old").unwrap();
    let hash = |password: &str| PasswordHash::new(password, [1; 4]);
    topology.add_user("there", hash("kept"), &[]).unwrap();
    let limits = |vhosts: &str, max: i64| DefaultLimits {
        vhosts: Pattern::new(vhosts).unwrap(),
        limits: [("max-queues".to_owned(), max)].into(),
    };
    let user = |name: &str, vhosts: &str| DefaultUser {
        vhosts: Pattern::new(vhosts).unwrap(),
        name: name.to_owned(),
        password: hash("given"),
        tags: vec!["monitoring".to_owned()],
        permissions: ["a", "b", "c"].map(str::to_owned),
    };
    let short = spec("short", "^q", json!({"max-length": 5}));
    topology.choose_defaults(Defaults {
        limits: vec![limits("^a", 1), limits(".*", 2)],
        policies: vec![DefaultPolicy {
            vhosts: Pattern::new("^a").unwrap(),
            policy: Policy::new(short, true).unwrap(),
        }],
        users: vec![user("there", ".*"), user("made", "^b"), user("never", "^x")],
        ..Defaults::default()
    });
    // An import adds vhosts, too, and says more of them.
    topology
        .import_definitions(
            r#"{"vhosts": [{"name": "a1"}, {"name": "b", "limits": {"max-queues": 7}}]}"#,
        )
        .unwrap();
    topology.add_vhost("a1").unwrap();
    let max = |vhost: &str| topology.vhost(vhost).unwrap().max_queues();
    assert_eq!((max("old"), max("a1"), max("b")), (None, Some(1), Some(7)));
    let policies = |vhost: &str| {
        let vhost = topology.vhost(vhost).unwrap();
        vhost.operator_policies().map(|it| it.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(
        (policies("old"), policies("a1"), policies("b")),
        (vec![], vec!["short".into()], vec![])
    );
    assert!(topology.authenticate("there", "kept").is_ok());
    assert!(topology.authenticate("made", "given").unwrap().has_tag("monitoring"));
    assert!(topology.user("never").is_none());
    let may = |user: &str, vhost: &str| topology.check_vhost_access(user, vhost).is_ok();
    assert!(may("there", "a1") && may("there", "b") && may("made", "b"));
    assert!(!may("there", "old") && !may("made", "a1"));
}

/// Half of what the operator wants a vhost to have would leave it open.
#[test]
fn a_vhost_that_cannot_have_its_defaults_is_not_made() {
    let mut topology = World::new().topology;
    // One more than a vhost may have.
    let policies = (0..=2048).map(|number| {
        let name = format!("p-{number}");
        let policy = Policy::new(spec(&name, "^a", json!({"max-length": 5})), true).unwrap();
        DefaultPolicy { vhosts: Pattern::new(".*").unwrap(), policy }
    });
    topology.choose_defaults(Defaults { policies: policies.collect(), ..Defaults::default() });
    let generation = topology.access_generation();
    let told = topology.add_vhost("new").unwrap_err().to_string();
    assert!(told.contains("may have 2048 policies"), "{told}");
    assert!(topology.vhost("new").is_none() && topology.access_generation() > generation);
    topology.choose_defaults(Defaults::default());
    topology.add_vhost("new").unwrap();
}

/// Passwords are looked at, hashes are not.
#[test]
fn new_passwords_are_looked_at() {
    let mut topology = Topology::new();
    let check = |topology: &Topology, password: &str| topology.defaults().passwords.check(password);
    let passwords = PasswordRule::MinLength(5);
    topology.choose_defaults(Defaults { passwords, ..Defaults::default() });
    let why = "credential_validation_failed: minimum required password length is 5";
    assert_eq!(check(&topology, "four").unwrap_err().to_string(), why);
    check(&topology, "fives").unwrap();
    let import = |topology: &mut Topology, user: &str| {
        let told = topology.import_definitions(&format!(r#"{{"users": [{user}]}}"#));
        told.map(drop).map_err(|error| error.to_string())
    };
    let refused = import(&mut topology, r#"{"name": "u", "password": "four", "tags": ""}"#);
    assert!(refused.unwrap_err().contains(why));
    import(&mut topology, r#"{"name": "u", "password_hash": "", "tags": ""}"#).unwrap();
    topology.choose_defaults(Defaults {
        passwords: PasswordRule::Matches(Pattern::new("^[a-z]+[0-9]$").unwrap()),
        ..Defaults::default()
    });
    check(&topology, "abc1").unwrap();
    let told = check(&topology, "abc").unwrap_err().to_string();
    assert!(told.ends_with("provided password does not match the validator regular expression"));
    // What a long one would take is not for who sets it to say.
    check(&topology, &format!("{}1", "a".repeat(4095))).unwrap();
    let told = check(&topology, &format!("{}1", "a".repeat(4096))).unwrap_err().to_string();
    assert!(told.ends_with(
        "has 4097 bytes, and the validator regular expression is tried with 4096 at most"
    ));
}

/// `vhost_max` and `cluster_queue_limit`: what is there stays, and nothing is made beside it.
#[test]
fn there_are_no_more_vhosts_and_queues_than_there_may_be() {
    let mut world = World::new();
    let other = world.topology.add_vhost("other").unwrap();
    world.queue("a");
    world.topology.choose_defaults(Defaults {
        vhosts_max: Some(2),
        queues_max: Some(3),
        ..Defaults::default()
    });
    let refused = world.topology.add_vhost("third").unwrap_err().to_string();
    assert_eq!(refused, "cannot create vhost 'third': vhost limit of 2 is reached");
    world.topology.add_vhost("other").unwrap();
    world.queue("b");
    let elsewhere = |name| QueueSpec { vhost: other, ..World::new().queue_spec(name) };
    world.topology.declare_queue(elsewhere("c")).unwrap();
    let refused = world.topology.declare_queue(elsewhere("d")).unwrap_err().to_string();
    assert_eq!(refused, "cannot declare queue 'd': queue limit in cluster (3) is reached");
    world.queue("a");
}

/// Look-arounds are what such patterns are made of: an upper-case letter and a digit, in any order.
#[test]
fn patterns_of_passwords_may_look_around() {
    let rule = |pattern: &str| PasswordRule::Matches(Pattern::new(pattern).unwrap());
    let usual = rule(r"^(?=.*[A-Z])(?=.*\d).{8,}$");
    for good in ["Good123456", "1234567X"] {
        usual.check(good).unwrap();
    }
    for bad in ["Short1", "lowercase1", "Letters-only", ""] {
        let told = usual.check(bad).unwrap_err().to_string();
        let why = "provided password does not match the validator regular expression";
        assert_eq!(told, format!("credential_validation_failed: {why}"), "{bad}");
    }
    // It is not said of a password that it does not match when that was not found out.
    let told = rule(r"^(.|.)+\1!$").check(&"a".repeat(60)).unwrap_err().to_string();
    assert!(told.contains("too many steps back"), "{told}");
}

#[test]
fn default_queue_type_of_new_vhosts() {
    let mut topology = World::new().topology;
    topology.choose_default_queue_type(Some(QueueKind::Quorum));
    topology.add_vhost("new").unwrap();
    topology
        .import_definitions(
            r#"{"vhosts": [{"name": "/"}, {"name": "a"}, {"name": "b", "metadata": {"default_queue_type": "classic"}}]}"#,
        )
        .unwrap();
    topology.choose_default_queue_type(None);
    topology.add_vhost("later").unwrap();
    let kind = |vhost| topology.vhost(vhost).unwrap().default_queue_type;
    assert_eq!(["/", "later"].map(kind), [None, None]);
    assert_eq!(["new", "a"].map(kind), [Some(QueueKind::Quorum); 2]);
    assert_eq!(kind("b"), Some(QueueKind::Classic));
}

/// What is kept and does nothing is told.
#[test]
fn settings_without_effect() {
    let told = |definition| Policy::new(spec("p", "", definition), false).unwrap().without_effect();
    assert_eq!(
        told(json!({ "ha-mode": "exactly", "ha-params": 2, "max-length": 1 })).as_deref(),
        Some("policy 'p': ha-mode, ha-params have no effect here")
    );
    assert_eq!(
        told(json!({ "queue-leader-locator": "balanced" })).as_deref(),
        Some("policy 'p': queue-leader-locator has no effect here")
    );
    assert_eq!(
        told(json!({ "max-in-memory-bytes": 1, "max-in-memory-length": 1 })).as_deref(),
        Some("policy 'p': max-in-memory-bytes, max-in-memory-length have no effect here")
    );
    assert_eq!(told(json!({ "max-length": 1, "queue-mode": "lazy" })), None);
}

/// Parameters of plugins that are not there are refused.
#[test]
fn components() {
    let refused = must_be_component("shovel").unwrap_err().to_string();
    assert_eq!(refused, "Validation failed\n\ncomponent shovel not found\n");
    assert_eq!(must_be_component("vhost-limits"), Ok(()));
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
    topology.set_global_parameter("cluster_name", json!("rabbit")).unwrap();
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

/// Changes that are under way at once look for room again when their policy is set.
#[test]
fn changes_at_once_are_few_too() {
    let mut world = World::new();
    let policy =
        |name: &str| Policy::new(spec(name, "^(?!amq)", json!({ "expires": 100 })), false).unwrap();
    let topology = &mut world.topology;
    let mut changes: Vec<_> = (0..70)
        .map(|at| topology.start_set_policy("/", policy(&at.to_string()), false).unwrap())
        .collect();
    let set = changes.iter_mut().map(|it| it.advance(topology, u64::MAX).is_ok());
    let set = set.filter(|&is_set| is_set).count();
    assert_eq!((set, topology.vhost("/").unwrap().policies().count()), (64, 64));
}

/// What is compiled counts as memory, and a vhost has so much of it.
#[test]
fn patterns_take_memory() {
    let mut world = World::new();
    let topology = &mut world.topology;
    let definition = || json!({ "expires": 100 });
    let large = Policy::new(spec("", r"\w{3,20}", definition()), false).unwrap();
    let set = |topology: &mut Topology, policy: &Policy, name: &str| {
        let policy = Policy { name: name.into(), ..policy.clone() };
        let mut change = topology.start_set_policy("/", policy, false)?;
        change.advance(topology, u64::MAX)
    };
    let before = topology.weight();
    let many = (0..100).map_while(|at| set(topology, &large, &at.to_string()).ok()).count();
    assert_eq!(many, 4);
    assert!(topology.weight() - before > 8 << 20, "{}", topology.weight() - before);
    let error = set(topology, &large, "more").unwrap_err().to_string();
    assert!(error.contains("the large patterns of a vhost's policies may take 4 MiB"), "{error}");
    // In the place of another there is room; and so there is again when some are cleared.
    set(topology, &large, "3").unwrap();
    for at in 0..4 {
        topology.clear_policy("/", &at.to_string()).unwrap();
    }
    assert_eq!(topology.weight(), before);
    let small = Policy::new(spec("", "^q", definition()), false).unwrap();
    let many = (0..3_000).map_while(|at| set(topology, &small, &at.to_string()).ok()).count();
    assert_eq!(many, 2_048);
    let error = set(topology, &small, "more").unwrap_err().to_string();
    assert!(error.contains("a vhost may have 2048 policies"), "{error}");
    topology.assert_invariants();
    let error = Policy::new(spec("p", r"\w{150}", definition()), false).unwrap_err().to_string();
    assert!(error.contains("invalid regular expression '\\w{150}': it is too large"), "{error}");
    let definitions = json!({ "policies": [
        { "vhost": "/", "name": "p", "pattern": r"\w{150}", "definition": definition() },
    ] });
    let error = topology.import_definitions(&definitions.to_string()).unwrap_err().to_string();
    assert!(error.contains("policies[0]: ") && error.contains("too large"), "{error}");
}

/// Names that take a pattern long are few, also when they come after it; what they cost is counted.
#[test]
fn long_names_after_the_pattern() {
    let mut world = World::new();
    for at in 0..4 {
        let pattern = format!(r"^(?:.|.)+(.)\1[{at}]!$");
        world.set(spec(&at.to_string(), &pattern, json!({ "expires": 100 })));
    }
    let dear = |at: usize| format!("{}{at}", "x".repeat(60));
    world.topology.take_matching();
    world.queue("y1");
    assert!(world.topology.take_matching() < 20);
    for at in 0..300 {
        world.queue(&dear(at));
        let cost = world.topology.take_matching();
        let is_tried = at < 256;
        assert_eq!(cost > 1_000, is_tried, "{at}: {cost}");
        assert_eq!(world.topology.take_exhausted().is_some(), at == 255, "{at}");
    }
    let unmatched = |world: &World| world.topology.vhost("/").unwrap().unmatched_names();
    assert_eq!(unmatched(&world), 44);
    // Names that are not dear are matched as before.
    world.queue("abb0!");
    assert_eq!(world.policy_of("abb0!"), "0");
    world.topology.assert_invariants();
    // A policy that has nothing to do with them looks at a few names in each piece.
    let plain = Policy::new(spec("plain", "^x", json!({ "max-length": 1 })), false).unwrap();
    let mut change = world.topology.start_set_policy("/", plain, false).unwrap();
    let mut pieces = 0;
    while change.left() > 0 {
        let left = change.left();
        change.advance(&mut world.topology, 128).unwrap();
        assert!(left - change.left() <= 64, "{} names in one piece", left - change.left());
        pieces += 1;
    }
    assert!(pieces > 290, "{pieces}");
    change.end(&mut world.topology);
    // Without one of these patterns they are counted from the beginning.
    world.topology.clear_policy("/", "3").unwrap();
    assert_eq!(unmatched(&world), 0);
    world.queue(&dear(1_000));
    assert!(world.topology.take_matching() > 500);
}

/// An import counts what its names cost; and patterns that it has are compiled before names wait for it.
#[test]
fn an_import_counts() {
    let mut world = World::new();
    world.set(spec("dear", r"^(?:.|.)+(.)\1!$", json!({ "expires": 100 })));
    let queues =
        (0..40).map(|at| json!({ "vhost": "/", "name": format!("{}{at}", "x".repeat(60)) }));
    let definitions = json!({ "queues": queues.collect::<Vec<_>>() }).to_string();
    let mut import = Import::read(&definitions).unwrap();
    let mut pieces = 0;
    while !import.is_done() {
        let before = world.topology.queue_count();
        import.advance(&mut world.topology, 128).unwrap();
        assert!(world.topology.queue_count() - before <= 1);
        pieces += 1;
    }
    assert!(pieces >= 40, "{pieces}");
    let policies = (0..40).map(|at| {
        json!({ "vhost": "/", "name": format!("p{at}"), "pattern": format!("^p{at}"), "definition": { "expires": 1 } })
    });
    let definitions = json!({ "policies": policies.collect::<Vec<_>>() }).to_string();
    let mut import = Import::read(&definitions).unwrap();
    let used = import.advance(&mut world.topology, u64::MAX).unwrap();
    assert!(used < 40 * 256, "{used}");
    assert_eq!(world.topology.vhost("/").unwrap().policies().count(), 41);
}

/// A name that comes while the pattern is tried is matched with it; and where the vhost goes meanwhile there is no policy.
#[test]
fn names_that_come_while_a_pattern_is_tried() {
    let mut world = World::new();
    for at in 0..10 {
        world.queue(&at.to_string());
    }
    let policy = || Policy::new(spec("p", "^(?!amq)", json!({ "expires": 100 })), false).unwrap();
    let mut change = world.topology.start_set_policy("/", policy(), false).unwrap();
    change.advance(&mut world.topology, 1).unwrap();
    assert_eq!(world.policy_of("1"), "none");
    world.queue("new");
    while change.left() > 0 {
        change.advance(&mut world.topology, 1).unwrap();
    }
    assert_eq!((world.policy_of("1"), world.policy_of("new")), ("p", "p"));
    world.topology.assert_invariants();

    let mut change = world.topology.start_set_policy("/", policy(), true).unwrap();
    change.advance(&mut world.topology, 1).unwrap();
    world.topology.delete_vhost("/").unwrap();
    let error = change.advance(&mut world.topology, u64::MAX).unwrap_err();
    assert_eq!(error, PolicyError::NoVhost("/".to_owned()));
}
