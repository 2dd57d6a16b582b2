//! Health checks: each passes on a node that is well, and fails for what it is there for.

use std::time::Duration;

use leveret_broker::message::{ToMeta, ToShard};
use leveret_server::runner::run_alone;
use leveret_topology::GroupId;
use serde_json::{Value, json};

use crate::node::{Node, wait_until};

const CHECKS: &str = "/api/health/checks";

/// How long something has to hang before checks fail.
const STALL: Duration = Duration::from_secs(3);

/// The status of a check.
fn status(node: &Node, check: &str) -> u16 {
    node.ask("GET", &format!("{CHECKS}/{check}"), "").status
}

/// What a check says that fails.
#[track_caller]
fn failed(node: &Node, check: &str) -> Value {
    let got = node.must("GET", &format!("{CHECKS}/{check}"), "", 503).json();
    assert_eq!(got["status"], "failed", "{got}");
    got
}

#[test]
fn health_checks() {
    let node = Node::start();
    let ok = json!({"status": "ok"});
    for path in [
        "alarms",
        "local-alarms",
        "virtual-hosts",
        "is-in-service",
        "ready-to-serve-clients",
        "certificate-expiration/1/weeks",
        "metadata-store/initialized",
        "quorum-queues-without-elected-leaders/all-vhosts",
        "quorum-queues-without-elected-leaders/all-vhosts/pattern/.*",
        "quorum-queues-without-elected-leaders/vhost/%2F/pattern/.*",
    ] {
        assert_eq!(node.get(&format!("/api/health/checks/{path}")), ok, "{path}");
    }
    let critical = node.get("/api/health/checks/node-is-quorum-critical");
    assert_eq!(critical, json!({"status": "ok", "reason": "single node cluster"}));
    let port = node.amqp.port();
    let got = node.get(&format!("/api/health/checks/port-listener/{port}"));
    assert_eq!(got, json!({"status": "ok", "port": port}));
    let got = node.must("GET", "/api/health/checks/port-listener/1", "", 503).json();
    assert_eq!((&got["status"], &got["missing"]), (&json!("failed"), &json!(1)));
    assert_eq!(got["ports"][0], port);
    node.must("GET", "/api/health/checks/port-listener/x", "", 400);
    assert_eq!(node.get("/api/health/checks/protocol-listener/amqp091")["protocol"], "amqp");
    let got = node.must("GET", "/api/health/checks/protocol-listener/mqtt", "", 503).json();
    assert_eq!(got["missing"], "mqtt");
    let got = node.must("GET", "/api/health/checks/protocol-listener/amqp,mqtt", "", 503).json();
    assert_eq!((&got["missing"], &got["protocols"][0]), (&json!(["mqtt"]), &json!("amqp")));
    node.must("GET", "/api/health/checks/certificate-expiration/1/eons", "", 400);
    node.must("GET", "/api/health/checks/certificate-expiration/x/days", "", 400);
    assert_eq!(node.get("/api/aliveness-test/%2F"), ok);
    assert_eq!(node.get("/api/healthchecks/node"), ok);
    node.must("GET", "/api/aliveness-test/no", "", 404);
}

#[test]
fn health_checks_fail_with_an_alarm() {
    let node = Node::with(&[("disk_free_limit.absolute", "900000GB")]);
    wait_until("the alarm is on", || {
        node.ask("GET", "/api/health/checks/alarms", "").status == 503
    });
    let got = node.must("GET", "/api/health/checks/local-alarms", "", 503).json();
    let name = node.get("/api/overview")["node"].clone();
    let alarms = json!([{"resource": "disk space", "node": name}]);
    let reason = "There are alarms in effect on the node";
    assert_eq!(got, json!({"status": "failed", "reason": reason, "alarms": alarms}));
    node.must("GET", "/api/healthchecks/node", "", 503);
    node.must("GET", "/api/aliveness-test/%2F", "", 503);
    assert_eq!(node.get("/api/nodes")[0]["disk_free_alarm"], true);
    let message =
        r#"{"properties": {}, "routing_key": "q", "payload": "", "payload_encoding": "string"}"#;
    let got = node.must("POST", "/api/exchanges/%2F/amq.default/publish", message, 503);
    assert!(got.text().contains("low on disk"), "{}", got.text());
}

#[test]
fn certificates_that_end_soon() {
    let dir = tempfile::tempdir().unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.not_after = rcgen::date_time_ymd(2099, 12, 31);
    let certificate = params.self_signed(&key).unwrap();
    let write = |name: &str, text: String| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let certfile = write("cert.pem", certificate.pem());
    let keyfile = write("key.pem", key.serialize_pem());
    let node = Node::with(&[
        ("listeners.ssl.default", "127.0.0.1:0"),
        ("ssl_options.certfile", &certfile),
        ("ssl_options.keyfile", &keyfile),
    ]);
    let path = "/api/health/checks/certificate-expiration";
    assert_eq!(node.get(&format!("{path}/1/months")), json!({"status": "ok"}));
    let got = node.must("GET", &format!("{path}/200/years"), "", 503).json();
    assert_eq!(got["reason"], "Certificates expiring");
    let expired = &got["expired"][0];
    assert_eq!(expired["certfile_expires_on"], json!(["2099-12-31 0:00:00"]));
    assert_eq!(
        (&expired["protocol"], &expired["certfile"]),
        (&json!("amqp/ssl"), &json!(certfile))
    );
    assert_eq!(node.get("/api/health/checks/protocol-listener/amqps")["protocol"], "amqp/ssl");
}

#[test]
fn nobody_takes_connections() {
    let node = Node::start();
    let port = node.amqp.port();
    let checks = [
        "is-in-service".to_owned(),
        "ready-to-serve-clients".to_owned(),
        format!("port-listener/{port}"),
        "protocol-listener/amqp".to_owned(),
    ];
    node.must("POST", "/api/leveret/listeners/suspend", "", 204);
    for check in &checks {
        failed(&node, check);
    }
    assert_eq!(failed(&node, &checks[2])["missing"], port);
    node.must("GET", "/api/healthchecks/node", "", 503);
    node.must("POST", "/api/leveret/listeners/resume", "", 204);
    for check in &checks {
        assert_eq!(status(&node, check), 200, "{check}");
    }
}

#[test]
fn as_many_connections_as_may_be() {
    let node = Node::with(&[("connection_max", "2")]);
    let checks = ["below-node-connection-limit", "ready-to-serve-clients"];
    // Before any check: one of them tries whether a connection is taken, and that counts until it is gone.
    let (first, second) = (node.client(), node.client());
    for check in checks {
        let got = failed(&node, check);
        assert_eq!(got["reason"], "node connection limit is reached");
        assert_eq!(got.get("limit"), None, "it is nothing for who has no login");
    }
    assert_eq!(failed(&node, checks[1])["connections"], 2);
    assert_eq!(status(&node, "is-in-service"), 200);
    drop(second);
    wait_until("one is gone", || checks.iter().all(|check| status(&node, check) == 200));
    drop(first);
}

/// A load balancer has no login, or one that is wrong by now.
#[test]
fn balancers_need_no_login() {
    let node = Node::start();
    let ask = |check: &str| {
        for user in [None, Some("nobody:guest"), Some("guest:wrong")] {
            let got = node.ask_as(user, "GET", &format!("{CHECKS}/{check}"), &[], b"");
            assert_eq!(
                (got.status, got.json()),
                (200, json!({"status": "ok"})),
                "{check} {user:?}"
            );
        }
    };
    ask("is-in-service");
    ask("ready-to-serve-clients");
    ask("below-node-connection-limit");
    ask("reached-target-cluster-size");
    node.must("POST", "/api/leveret/listeners/suspend", "", 204);
    let got = node.ask_as(None, "GET", &format!("{CHECKS}/ready-to-serve-clients"), &[], b"");
    assert_eq!((got.status, &got.json()["status"]), (503, &json!("failed")));
}

#[test]
fn no_vhost_is_left() {
    let node = Node::start();
    let check = "metadata-store/initialized/with-data";
    assert_eq!(status(&node, check), 200);
    node.must("DELETE", "/api/vhosts/%2F", "", 204);
    failed(&node, check);
    assert_eq!(status(&node, "metadata-store/initialized"), 200);
}

/// A shard is silent while somebody has the duty to run it and does not.
#[test]
fn a_shard_that_does_not_answer() {
    let node = Node::start();
    node.must("PUT", "/api/queues/%2F/classic", "", 201);
    for name in 0..4 {
        let body = r#"{"arguments": {"x-queue-type": "quorum"}}"#;
        node.must("PUT", &format!("/api/queues/%2F/quorum.{name}"), body, 201);
    }
    let shard = &node.inner.shards[0];
    wait_until("the shard rests", || shard.actor.post_one(ToShard::Continue));
    let paths = [
        "health/checks/virtual-hosts",
        "health/checks/is-in-service",
        "health/checks/ready-to-serve-clients",
        "health/checks/quorum-queues-without-elected-leaders/all-vhosts",
        "health/checks/quorum-queues-without-elected-leaders/vhost/%2F/pattern/%5Equorum",
        "health/checks/quorum-queues-without-elected-leaders/all-vhosts/pattern/%5Eother",
        "health/checks/alarms",
        "healthchecks/node",
    ];
    let ask = |path: &&str| node.ask("GET", &format!("/api/{path}"), "");
    // At once: each waits until the shard is late.
    let got: Vec<_> = std::thread::scope(|scope| {
        let asked: Vec<_> = paths.iter().map(|path| scope.spawn(|| ask(path))).collect();
        asked.into_iter().map(|asked| asked.join().unwrap()).collect()
    });
    let statuses: Vec<_> = got.iter().map(|got| got.status).collect();
    assert_eq!(statuses, [503, 503, 503, 503, 503, 200, 200, 503]);
    assert_eq!(got[0].json()["virtual-hosts"], json!(["/"]));
    let not =
        |reason| json!({"status": "failed", "reason": reason, "cause": "a shard does not answer"});
    assert_eq!(got[1].json(), not("this rabbit node is not currently available to serve"));
    assert_eq!(got[2].json(), not("the rabbit node is not currently available to serve"));
    let silent: Vec<Value> = {
        let topology = node.inner.topology();
        let queues = topology.queues(topology.vhost("/").unwrap().id).into_iter();
        let queues = queues.filter(|it| it.name.starts_with("quorum"));
        let silent = queues.filter(|it| it.home == GroupId::new(0));
        silent.map(|it| json!(&*it.name)).collect()
    };
    assert!(!silent.is_empty());
    for got in &got[3..5] {
        let got = got.json();
        let named = got["queues"].as_array().unwrap().iter().map(|it| it["name"].clone());
        assert_eq!(named.collect::<Vec<_>>(), silent);
    }

    node.run_left_letters(0);
    for path in paths {
        assert_eq!(ask(&path).status, 200, "{path}");
    }
}

/// Who keeps the names is silent: what lists and declares would wait for.
#[test]
fn an_owner_of_the_names_that_does_not_answer() {
    let node = Node::start();
    wait_until("it rests", || node.inner.meta().post_one(ToMeta::Continue));
    let paths = [
        "health/checks/is-in-service",
        "health/checks/ready-to-serve-clients",
        "health/checks/metadata-store/initialized",
        "health/checks/metadata-store/initialized/with-data",
        "healthchecks/node",
        "health/checks/virtual-hosts",
    ];
    let ask = |path: &&str| node.ask("GET", &format!("/api/{path}"), "");
    let got: Vec<_> = std::thread::scope(|scope| {
        let asked: Vec<_> = paths.iter().map(|path| scope.spawn(|| ask(path))).collect();
        asked.into_iter().map(|asked| asked.join().unwrap()).collect()
    });
    let statuses: Vec<_> = got.iter().map(|got| got.status).collect();
    assert_eq!(statuses, [503, 503, 503, 503, 503, 200]);
    assert_eq!(got[2].json()["reason"], "Metadata store has not yet reported as initialized");
    assert_eq!(got[2].json()["cause"], "the metadata store does not answer");
    let (mut letters, mut some) = (Vec::new(), Vec::new());
    while node.inner.meta().pick_up(&mut some) {
        letters.append(&mut some);
    }
    run_alone(&node.inner, |runner| {
        letters.into_iter().for_each(|letter| runner.run_meta(letter));
    });
    for path in paths {
        assert_eq!(ask(&path).status, 200, "{path}");
    }
}

/// What stalls is told to users of the broker; that something does, to everybody.
#[test]
fn what_stalls_is_told_to_who_is_let_in() {
    let node = Node::start();
    let shard = &node.inner.shards[0];
    // Whoever has to run it does not get on; others leave it letters.
    wait_until("the shard rests", || shard.actor.post_one(ToShard::Continue));
    let stall = shard.actor.state();
    let is_long = || node.inner.watched.stall().is_some_and(|(age, _)| age >= STALL);
    wait_until("it is seen that a shard stalls", is_long);
    let path = "/api/health/checks/local-alarms";
    for user in [None, Some("guest:wrong"), Some("nobody:guest")] {
        let got = node.ask_as(user, "GET", path, &[], b"");
        assert_eq!((got.status, got.json()), (503, json!({"status": "failed"})), "{user:?}");
    }
    let got = node.must("GET", path, "", 503).json();
    assert!(got["reason"].as_str().is_some_and(|why| why.contains("shard 0")), "{got}");
    drop(stall);
    node.run_left_letters(0);
    wait_until("that is over", || node.ask("GET", path, "").status == 200);
}
