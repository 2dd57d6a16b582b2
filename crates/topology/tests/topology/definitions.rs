//! Definitions as RabbitMQ writes them, there and back.

use leveret_counting::live_bytes;
use leveret_topology::{Destination, Import, Imported, Permission, QueueKind, Routable, Topology};
use serde_json::{Value as Json, json};

use crate::common::{OWNER, World, table, text};

/// As `rabbitmqctl export_definitions` of 3.13 writes it, shortened.
const EXPORTED: &str = r##"{
  "bindings": [
    {"arguments": {}, "destination": "orders", "destination_type": "queue", "routing_key": "order.#",
     "source": "events", "vhost": "/"},
    {"arguments": {"x-match": "any", "region": "eu", "level": 3}, "destination": "audit",
     "destination_type": "queue", "routing_key": "", "source": "amq.headers", "vhost": "shop"},
    {"arguments": {}, "destination": "archive", "destination_type": "exchange", "routing_key": "#",
     "source": "events", "vhost": "/"}
  ],
  "exchanges": [
    {"arguments": {"alternate-exchange": "lost"}, "auto_delete": false, "durable": true,
     "internal": false, "name": "events", "type": "topic", "vhost": "/"},
    {"arguments": {}, "auto_delete": true, "durable": false, "internal": true, "name": "archive",
     "type": "fanout", "vhost": "/"}
  ],
  "global_parameters": [{"name": "cluster_name", "value": "rabbit@old"}],
  "parameters": [
    {"component": "vhost-limits", "name": "limits", "value": {"max-connections": 100}, "vhost": "/"},
    {"component": "operator_policy", "name": "cap", "vhost": "/",
     "value": {"apply-to": "queues", "definition": {"max-length": 1000}, "pattern": ".*", "priority": 0}},
    {"component": "shovel", "name": "s", "value": {"src-queue": "orders"}, "vhost": "shop"}
  ],
  "permissions": [
    {"configure": ".*", "read": ".*", "user": "app", "vhost": "/", "write": "^orders"},
    {"configure": "", "read": ".*", "user": "app", "vhost": "shop", "write": ""}
  ],
  "policies": [
    {"apply-to": "queues", "definition": {"dead-letter-exchange": "lost", "ha-mode": "all"},
     "name": "dlx", "pattern": "^ord", "priority": 1, "vhost": "/"}
  ],
  "queues": [
    {"arguments": {"x-queue-type": "classic", "x-message-ttl": 60000}, "auto_delete": false,
     "durable": true, "name": "orders", "type": "classic", "vhost": "/"},
    {"arguments": {"x-queue-type": "quorum"}, "auto_delete": false, "durable": true,
     "name": "audit", "type": "quorum", "vhost": "shop"}
  ],
  "rabbit_version": "3.13.7",
  "rabbitmq_version": "3.13.7",
  "topic_permissions": [
    {"exchange": "events", "read": ".*", "user": "app", "vhost": "/", "write": "^order"}
  ],
  "users": [
    {"hashing_algorithm": "rabbit_password_hashing_sha256", "limits": {"max-channels": 7},
     "name": "app", "password_hash": "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR",
     "tags": ["monitoring", "policymaker"]}
  ],
  "vhosts": [
    {"limits": [], "metadata": {"description": "Default virtual host", "tags": []}, "name": "/"},
    {"limits": {"max-queues": 5}, "metadata": {"default_queue_type": "quorum"}, "name": "shop"}
  ]
}"##;

/// Imports what can be here.
fn import_rest(topology: &mut Topology, document: &str) -> Imported {
    topology.import(Import::read(document).unwrap().skip_unsupported(true)).unwrap()
}

fn export(topology: &Topology) -> Json {
    serde_json::from_str(&topology.export_definitions()).unwrap()
}

#[test]
fn import() {
    let mut topology = Topology::new();
    let imported = import_rest(&mut topology, EXPORTED);
    topology.assert_invariants();
    assert_eq!(imported.queues.len(), 2);
    assert!(imported.changed.is_empty());
    assert_eq!(imported.without_effect, ["policy 'dlx': ha-mode has no effect here"]);
    assert_eq!(
        imported.skipped,
        ["parameters[2]: parameter 's' in vhost 'shop': component shovel not found"]
    );
    assert_eq!((imported.counts["bindings"], imported.counts["parameters"]), (3, 3));

    let vhost = topology.check_vhost_access("app", "/").unwrap();
    let app = topology.authenticate("app", "test12").unwrap();
    assert!(app.has_tag("monitoring") && app.has_tag("policymaker") && !app.is_administrator());
    assert_eq!(app.limits["max-channels"], 7);
    assert!(topology.check_permission("app", vhost, Permission::Write, "orders"));
    assert!(!topology.check_permission("app", vhost, Permission::Write, "other"));
    let events = topology.exchange(vhost, "events").unwrap();
    assert!(!topology.check_topic_permission("app", events, Permission::Write, "other"));
    let orders = topology.queue(vhost, "orders").unwrap();
    assert_eq!((orders.policy(), orders.operator_policy()), (Some("dlx"), Some("cap")));
    assert_eq!(orders.dead_letter(), Some(("lost", None)));
    assert_eq!(orders.options().message_ttl_ms, Some(60_000));
    assert_eq!(orders.options().max_length, Some(1000));
    let mut route = leveret_topology::Route::default();
    let message = Routable { key: "order.new", ..Routable::default() };
    topology.route(vhost, events.id, &message, &mut route);
    assert_eq!(route.queues.as_slice(), [orders.id]);

    let shop = topology.vhost("shop").unwrap();
    assert_eq!((shop.max_queues(), shop.default_queue_type), (Some(5), Some(QueueKind::Quorum)));
    assert_eq!(topology.queue(shop.id, "audit").unwrap().kind, QueueKind::Quorum);
    assert_eq!(topology.vhost("/").unwrap().max_connections(), Some(100));
    assert_eq!(topology.vhost("/").unwrap().description, "Default virtual host");
}

/// What is exported says the same when it is imported; importing it again changes nothing.
#[test]
fn there_and_back() {
    let mut first = Topology::new();
    import_rest(&mut first, EXPORTED);
    let document = export(&first);
    let mut second = Topology::new();
    let imported = second.import_definitions(&document.to_string()).unwrap();
    assert_eq!(imported.queues.len(), 2);
    assert_eq!(export(&second), document);
    let again = second.import_definitions(&document.to_string()).unwrap();
    assert!(again.queues.is_empty());
    assert_eq!(export(&second), document);
    second.assert_invariants();

    // Beside our own keys, every entry of RabbitMQ's is there again.
    let original: Json = serde_json::from_str(EXPORTED).unwrap();
    for category in ["exchanges", "queues", "permissions", "topic_permissions", "policies", "users"]
    {
        for entry in original[category].as_array().unwrap() {
            let mut entry = entry.clone();
            // The policy's kind of queue is told, ours has its arguments in another order.
            entry.as_object_mut().unwrap().remove("limits");
            let all = document[category].as_array().unwrap();
            let there = all.iter().any(|own| {
                entry.as_object().unwrap().iter().all(|(key, value)| &own[key] == value)
            });
            assert!(there, "{category}: {entry} in {all:?}");
        }
    }
    assert_eq!(document["global_parameters"], original["global_parameters"]);
    assert_eq!(document["original_cluster_name"], "rabbit@old");
    assert_eq!(document["bindings"].as_array().unwrap().len(), 3);
}

/// Exports of RabbitMQ itself, of one and the same definitions: queues of all kinds, names that need encoding,
/// nested arguments, hashes, limits.
const RECORDED: [&str; 2] =
    [include_str!("golden/rabbitmq-3.10.8.json"), include_str!("golden/rabbitmq-4.0.5.json")];

/// The entries of a category that matter, in an order of their own.
fn entries(document: &Json, category: &str) -> Vec<String> {
    let all = document[category].as_array().map_or(&[][..], Vec::as_slice);
    let mut entries: Vec<_> = all.iter().map(|entry| as_it_matters(category, entry)).collect();
    entries.sort();
    entries
}

fn as_it_matters(category: &str, entry: &Json) -> String {
    let mut entry = entry.clone();
    let map = entry.as_object_mut().unwrap();
    match category {
        // 3.10 tells neither, and 4.0 tells each of them twice.
        "vhosts" => map.retain(|key, _| key == "name"),
        // What a queue is by default is told in its arguments (4.0), by its type (4.0), or not at all (3.10).
        "queues" => {
            let arguments = map["arguments"].as_object_mut().unwrap();
            if arguments.get("x-queue-type") == Some(&json!("classic")) {
                arguments.remove("x-queue-type");
            }
            map.remove("type");
        }
        _ => {}
    }
    // Maps are ordered by key.
    entry.to_string()
}

/// What RabbitMQ exported comes out of us as it went in, and goes in again. That RabbitMQ takes what comes out
/// was tried with both versions: with this, its next export is the recorded one.
#[test]
fn recorded_exports_come_out_as_they_went_in() {
    for recorded in RECORDED {
        let recorded: Json = serde_json::from_str(recorded).unwrap();
        let version = recorded["rabbitmq_version"].as_str().unwrap();
        let mut ours = Topology::new();
        let imported = ours.import_definitions(&recorded.to_string()).unwrap();
        assert_eq!(imported.skipped, [""; 0], "{version}");
        let exported = export(&ours);
        let mut again = Topology::new();
        again.import_definitions(&exported.to_string()).unwrap();
        again.assert_invariants();
        assert_eq!(export(&again), exported, "{version}");
        for category in [
            "users",
            "vhosts",
            "permissions",
            "topic_permissions",
            "parameters",
            "global_parameters",
            "policies",
            "queues",
            "exchanges",
            "bindings",
        ] {
            let wanted = entries(&recorded, category);
            assert!(!wanted.is_empty(), "{version} has {category}");
            let mut got = entries(&exported, category);
            // The cluster's name is a parameter of ours that RabbitMQ has only when it was set.
            got.retain(|entry| !entry.contains("cluster_name"));
            assert_eq!(got, wanted, "{version}: {category}");
        }
        let shop = exported["vhosts"].as_array().unwrap().iter().find(|it| it["name"] == "shop/eu");
        if version.starts_with('4') {
            let metadata = json!({
                "description": "The shop", "tags": ["eu", "live"], "default_queue_type": "classic",
            });
            assert_eq!(shop.unwrap()["metadata"], metadata);
        }
    }
}

#[test]
fn what_is_not_exported() {
    let mut world = World::new();
    world.queue("q");
    let own = world.queue_spec("own");
    let own = leveret_topology::QueueSpec { exclusive_owner: Some(OWNER), ..own };
    world.topology.declare_queue(own).unwrap();
    // An import passes over names of the broker's, and ends at their bindings.
    let unnamed = world.queue_spec("amq.gen-1");
    let unnamed = leveret_topology::QueueSpec { server_named: true, ..unnamed };
    world.topology.declare_queue(unnamed).unwrap();
    world.bind("amq.direct", "q", "k");
    for name in ["own", "amq.gen-1"] {
        let to = Destination::Queue(name);
        world.try_bind("amq.direct", to, "k", table([("a", text("b"))])).unwrap();
    }
    let document = export(&world.topology);
    assert_eq!(import_rest(&mut World::new().topology, &document.to_string()).skipped, [""; 0]);
    assert_eq!(document["exchanges"], json!([]));
    assert_eq!(document["queues"].as_array().unwrap().len(), 1);
    assert_eq!(document["bindings"].as_array().unwrap().len(), 1);
    assert_eq!(document["rabbitmq_definition_format"], "cluster");
}

/// A policy that comes with definitions changes queues that were there.
#[test]
fn changed_queues_are_told() {
    let mut world = World::new();
    let q = world.queue("q");
    world.queue("other");
    let definitions = json!({
        "policies": [{
            "vhost": "/", "name": "p", "pattern": "^q", "definition": { "max-length": 1 },
        }],
        "queues": [{ "vhost": "/", "name": "q2" }],
    });
    let imported = world.topology.import_definitions(&definitions.to_string()).unwrap();
    assert_eq!(imported.changed, [q]);
    let q2 = world.topology.queue(world.vhost, "q2").unwrap();
    assert!(q2.durable, "queues are durable unless told otherwise");
    assert_eq!(imported.queues, [q2.id]);
    assert_eq!(q2.policy(), Some("p"));
}

#[test]
fn old_and_odd_forms() {
    let mut topology = Topology::new();
    let imported = topology.import_definitions("").unwrap();
    assert!(imported.counts.is_empty());
    // 3.5: tags as text, MD5, no metadata, arguments as an empty array; null for what is missing.
    let old = json!({
        "users": [
            { "name": "old", "password_hash": "AQIDBP0nL7ICL7LBvInMJrQnsEU=", "tags": "administrator, x" },
            { "name": "none", "tags": [] },
            { "name": "plain", "password": "in the clear", "tags": [] },
        ],
        "vhosts": [{ "name": "/", "tracing": false }],
        "exchanges": [
            { "vhost": "/", "name": "", "type": "direct" },
            { "vhost": "/", "name": "amq.topic", "type": "topic" },
            { "vhost": "/", "name": "x", "type": "direct", "arguments": [], "internal": null },
        ],
        "queues": [{ "vhost": "/", "name": "amq.gen-1" }],
        "parameters": null,
    });
    let document = format!("\u{feff}{old}");
    let imported = topology.import_definitions(&document).unwrap();
    assert_eq!(imported.skipped.len(), 3);
    let old = topology.user("old").unwrap();
    assert!(old.is_administrator() && old.has_tag("x"));
    assert!(topology.authenticate("none", "x").is_err());
    assert!(topology.authenticate("plain", "in the clear").is_ok());
    topology.assert_invariants();
}

#[test]
#[rustfmt::skip] // a table
fn bad_definitions() {
    let refuse = |document: &str, want: &str| {
        let mut world = World::new();
        let error = world.topology.import_definitions(document).unwrap_err();
        world.topology.assert_invariants();
        let text = error.to_string();
        assert!(text.starts_with(want), "{text}");
    };
    refuse("{", "definitions: not JSON: ");
    refuse("[]", "definitions: expected an object");
    refuse(r#"{"queues": {}}"#, "queues: expected an array");
    refuse(r#"{"queues": [1]}"#, "queues[0]: expected an object");
    refuse(r#"{"queues": [{"name": 1e999}]}"#, "queues[0]: not JSON: number out of range");
    refuse(r#"{"queues": [{"vhost": "/", "name": "q"}, {"vhost": "/"}]}"#,
        "queues[1]: key 'name' must be given, as a string");
    let long = "n".repeat(256);
    refuse(&format!(r#"{{"queues": [{{"vhost": "/", "name": "{long}"}}]}}"#),
        "queues[0]: key 'name' must be at most 255 bytes long");
    refuse(&format!(r#"{{"exchanges": [{{"vhost": "/", "name": "{long}", "type": "direct"}}]}}"#),
        "exchanges[0]: key 'name' must be at most 255 bytes long");
    refuse(&format!(r#"{{"bindings": [{{"vhost": "/", "source": "amq.direct", "destination": "q", "destination_type": "queue", "routing_key": "{long}"}}]}}"#),
        "bindings[0]: key 'routing_key' must be at most 255 bytes long");
    // What comes before is not applied either.
    refuse(&format!(r#"{{"vhosts": [{{"name": "v"}}, {{"name": "{long}"}}]}}"#),
        "vhosts[1]: virtual host name must be at most 255 bytes long, not 256\nNothing was imported");
    refuse(r#"{"vhosts": [{"name": "v"}, {"name": ""}]}"#,
        "vhosts[1]: virtual host name must not be empty\nNothing was imported");
    refuse(r#"{"vhosts": [{"name": "v"}], "queues": [{"vhost": "v", "name": ""}]}"#,
        "queues[0]: queue name must not be empty\nNothing was imported");
    refuse(&format!(r#"{{"users": [{{"name": "{long}", "password_hash": ""}}]}}"#),
        "users[0]: user name must be at most 255 bytes long, not 256\nNothing was imported");
    for (what, entry) in [
        ("policy",           format!(r#""policies": [{{"vhost": "/", "name": "{long}", "pattern": "", "definition": {{}}}}]"#)),
        ("operator policy",  format!(r#""parameters": [{{"vhost": "/", "component": "operator_policy", "name": "{long}", "value": {{"pattern": "", "definition": {{}}}}}}]"#)),
        ("global parameter", format!(r#""global_parameters": [{{"name": "{long}", "value": 1}}]"#)),
    ] {
        let (category, _) = entry[1..].split_once('"').unwrap();
        refuse(&format!(r#"{{"vhosts": [{{"name": "v"}}], {entry}}}"#),
            &format!("{category}[0]: {what} name must be at most 255 bytes long, not 256\nNothing was imported"));
    }
    refuse(r#"{"queues": [{"vhost": "none", "name": "q"}]}"#,
        "queues[0]: Please create virtual host \"none\" prior to importing definitions.");
    refuse(r#"{"queues": [{"vhost": "/", "name": "q", "arguments": {"x-expires": 0}}]}"#,
        "queues[0]: invalid arg 'x-expires' for queue 'q' in vhost '/': {value_zero,0}");
    refuse(r#"{"exchanges": [{"vhost": "/", "name": "x", "type": "none"}]}"#,
        "exchanges[0]: unknown exchange type 'none'");
    refuse(r#"{"bindings": [{"vhost": "/", "source": "amq.direct", "destination": "q", "destination_type": "queue"}]}"#,
        "bindings[0]: no queue 'q' in vhost '/'");
    refuse(r#"{"bindings": [{"vhost": "/", "source": "amq.direct", "destination": "q", "destination_type": "topic"}]}"#,
        "bindings[0]: key 'destination_type' must be 'queue' or 'exchange'");
    refuse(r#"{"users": [{"name": "u", "password_hash": "AQIDBAU=", "hashing_algorithm": "sha1"}]}"#,
        "users[0]: unknown hashing algorithm 'sha1' of user 'u'");
    refuse(r#"{"permissions": [{"user": "none", "vhost": "/", "configure": "", "write": "", "read": ""}]}"#,
        "permissions[0]: user 'none' does not exist");
    refuse(r#"{"policies": [{"vhost": "/", "name": "p", "pattern": "", "definition": {"x": 1}}]}"#,
        "policies[0]: policy 'p' in vhost '/': [{<<\"x\">>,1}] are not recognised policy settings");
}

/// A document of which much cannot be here.
fn impossible() -> Json {
    let queue =
        |name: &str, arguments: Json| json!({"vhost": "/", "name": name, "arguments": arguments});
    let binding = |source: &str, kind: &str, name: &str| json!({"vhost": "/", "source": source, "destination": name, "destination_type": kind});
    json!({
        "users": [
            {"name": "u", "password_hash": ""},
            {"name": "w", "password_hash": "", "hashing_algorithm": "whirlpool"},
        ],
        "vhosts": [{"name": "/"}, {"name": "s", "metadata": {"default_queue_type": "stream"}}],
        "permissions": [
            {"user": "u", "vhost": "/", "configure": "", "write": "", "read": ""},
            {"user": "w", "vhost": "/", "configure": "", "write": "", "read": ""},
            {"user": "u", "vhost": "gone", "configure": "", "write": "", "read": ""},
        ],
        "exchanges": [
            {"vhost": "/", "name": "x", "type": "topic"},
            {"vhost": "/", "name": "late", "type": "x-delayed-message"},
            {"vhost": "gone", "name": "x", "type": "topic"},
        ],
        "parameters": [
            {"vhost": "/", "component": "shovel", "name": "s", "value": {}},
            {"vhost": "/", "component": "operator_policy", "name": "o",
             "value": {"pattern": "", "definition": {"federation-upstream": "a"}}},
        ],
        "policies": [
            {"vhost": "/", "name": "f", "pattern": "", "definition": {"federation-upstream-set": "all"}},
            {"vhost": "/", "name": "m", "pattern": "", "definition": {"max-length": 1}},
        ],
        "queues": [
            queue("q", json!({})),
            queue("log", json!({"x-queue-type": "stream"})),
            {"vhost": "/", "name": "log2", "type": "stream"},
        ],
        "bindings": [
            binding("x", "queue", "q"),
            binding("x", "queue", "log"),
            binding("x", "queue", "amq.gen-1"),
            binding("amq.topic", "queue", "amq.gen-1"),
            binding("late", "queue", "q"),
            binding("inner", "exchange", "x"),
            binding("amq.direct", "queue", "here"),
            {"vhost": "gone", "source": "x", "destination": "q", "destination_type": "queue"},
        ],
    })
}

const IMPOSSIBLE: [&str; 13] = [
    "users[1]: unknown hashing algorithm 'whirlpool' of user 'w'",
    "vhosts[1]: default queue type 'stream' of vhost 's' is not supported",
    "permissions[1]: user 'w' does not exist",
    "permissions[2] and 2 more: Please create virtual host \"gone\" prior to importing definitions.",
    "exchanges[1]: unknown exchange type 'x-delayed-message' of exchange 'late' in vhost '/'",
    "policies[0]: policy 'f' in vhost '/': [{<<\"federation-upstream-set\">>,<<\"all\">>}] are not recognised policy settings",
    "parameters[0]: parameter 's' in vhost '/': component shovel not found",
    "parameters[1]: parameter 'o' in vhost '/': [{<<\"federation-upstream\">>,<<\"a\">>}] are not recognised policy settings",
    "queues[1]: queue type 'stream' of queue 'log' in vhost '/' is not supported",
    "queues[2]: queue type 'stream' of queue 'log2' in vhost '/' is not supported",
    "bindings[1]: no queue 'log' in vhost '/'",
    "bindings[2] and 1 more: no queue 'amq.gen-1' in vhost '/'",
    "bindings[4]: no exchange 'late' in vhost '/'",
];

/// All of it is told at once, and nothing is applied.
#[test]
fn what_cannot_be_is_refused_whole() {
    let mut world = World::new();
    world.queue("here");
    let before = export(&world.topology);
    let told = world.topology.import_definitions(&impossible().to_string()).unwrap_err();
    let told = told.to_string();
    let lines: Vec<_> = told.lines().collect();
    let inner = "bindings[5]: no exchange 'inner' in vhost '/'";
    let last = "Nothing was imported; skip_unsupported leaves this out, and imports the rest";
    assert_eq!(lines, [&IMPOSSIBLE[..], &[inner, last]].concat());
    assert_eq!(export(&world.topology), before);
    // What is no entry is told with the rest, and cannot be left out.
    let mut document = impossible();
    document["queues"][0] = json!({"vhost": "/"});
    let import = Import::read(&document.to_string()).unwrap().skip_unsupported(true);
    let told = world.topology.import(import).unwrap_err().to_string();
    assert!(told.contains("queues[0]: key 'name' must be given, as a string\n"), "{told}");
    assert!(
        told.contains("component shovel not found") && told.ends_with("was imported"),
        "{told}"
    );
    assert_eq!(export(&world.topology), before);
}

/// What can be here is, when it may be.
#[test]
fn what_cannot_be_is_left_out_if_it_may_be() {
    let mut world = World::new();
    world.queue("here");
    let imported = import_rest(&mut world.topology, &impossible().to_string());
    assert_eq!(imported.skipped.len(), IMPOSSIBLE.len() + 1);
    assert_eq!(imported.skipped[..IMPOSSIBLE.len()], IMPOSSIBLE);
    world.topology.assert_invariants();
    let document = export(&world.topology);
    let names = |list: &str, key: &str| {
        let all = document[list].as_array().unwrap();
        all.iter().map(|it| it[key].as_str().unwrap().to_owned()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(names("vhosts", "name"), "/ s");
    assert_eq!(names("queues", "name"), "here q");
    assert_eq!(names("exchanges", "name"), "x");
    assert_eq!(names("policies", "name"), "m");
    assert_eq!(names("permissions", "user"), "u");
    assert_eq!(names("bindings", "source"), "x amq.direct");
    assert_eq!(document["parameters"], json!([]));
}

/// However much cannot be, and however long its names are, what is told of it is not long.
#[test]
fn what_is_told_is_bounded() {
    let bindings = (0..5_000).map(|at| {
        let name = format!("{at}{}", "\n".repeat(2_000));
        json!({"vhost": "/", "source": "amq.topic", "destination": name, "destination_type": "queue"})
    });
    let document = json!({ "bindings": bindings.collect::<Json>() }).to_string();
    let told = World::new().topology.import_definitions(&document).unwrap_err().to_string();
    assert_eq!(told.lines().count(), 102);
    assert!(told.len() < 60_000 && told.contains("\nand 4900 more\nNothing was imported"));
    let skipped = import_rest(&mut World::new().topology, &document).skipped;
    assert_eq!((skipped.len(), skipped[100].as_str()), (101, "and 4900 more"));
}

/// Entries of one vhost do not name it. What concerns the whole node is left out.
#[test]
fn definitions_of_one_vhost() {
    let mut world = World::new();
    let document = r#"{
        "users": [{"name": "u", "password": "p", "tags": ""}],
        "queues": [{"name": "q"}, {"name": "r", "vhost": "another"}],
        "policies": [{"name": "p", "pattern": "", "definition": {"max-length": 1}}]
    }"#;
    let mut import = Import::into_vhost("/", document.into()).unwrap();
    import.advance(&mut world.topology, u64::MAX).unwrap();
    assert!(import.is_done());
    assert_eq!(import.end().counts, [("policies", 1), ("queues", 2)].into());
    for name in ["q", "r"] {
        assert!(world.topology.queue(world.vhost, name).is_some(), "{name}");
    }
    assert!(world.topology.user("u").is_none());
    assert_eq!(world.topology.vhost("/").unwrap().policies().count(), 1);
    let bad = Import::into_vhost("/", r#"{"users": 1, "queues": 1}"#.into()).unwrap_err();
    assert_eq!(bad.to_string(), "queues: expected an array");
}

/// Entries are read when their turn comes: until then an import takes little more than its text.
#[test]
fn an_import_takes_what_its_text_takes() {
    let entry = r#"{"vhost":"/","name":"q","durable":true,"auto_delete":false,"arguments":{}},"#;
    let mut text = "{\"queues\":[".to_owned();
    (0..10_000).for_each(|_| text.push_str(entry));
    text.pop();
    text.push_str("]}");
    let before = live_bytes();
    let import = Import::read(&text).unwrap();
    let (held, len) = (live_bytes() - before, text.len() as i64);
    assert!(held < len * 3 / 2, "{held} for {len}");
    assert_eq!(import.progress(), (0, 10_000));
}

/// What came before the entry has been applied, and is told.
#[test]
fn what_was_applied_before_an_error() {
    let mut world = World::new();
    let document = r#"{"queues": [
        {"vhost": "/", "name": "q"}, {"vhost": "/", "name": "r", "arguments": {"x-expires": 0}}
    ]}"#;
    let error = world.topology.import_definitions(document).unwrap_err();
    assert_eq!(error.applied.queues.len(), 1);
    assert!(world.topology.queue(world.vhost, "q").is_some());
}
