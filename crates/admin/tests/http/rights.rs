//! Who may do what over HTTP: every route and method, by tag and permissions.
//!
//! What is expected stands in `rights.txt`, which a test beside the table of routes compares with that: a new
//! route without its rows fails. Refused is 401 and 403; what else an allowed request is answered is
//! not looked at here.

use serde_json::json;

use crate::node::{Got, Node};

/// Users, in the order of the columns. The operator of vhost `v` has all permissions there; vhost `zz` is
/// somebody else's.
const USERS: [(&str, &str, &str); 9] = [
    // Nobody: no name, no password.
    ("", "", ""),
    ("none", "", "all"),
    ("manage", "management", "all"),
    ("reads", "management", "read"),
    ("outside", "management", ""),
    ("policy", "policymaker", "all"),
    ("monitor", "monitoring", ""),
    ("both", "policymaker,monitoring", ""),
    ("admin", "administrator", ""),
];

const EXPECTED: &str = include_str!("rights.txt");

/// What is in names of vhost `zz` alone.
const OTHERS: &str = "secretive";

struct World {
    node: Node,
}

impl World {
    fn new() -> Self {
        let world = Self { node: Node::start() };
        world.make();
        world
    }

    /// Makes what is not there, and mends what is otherwise.
    fn make(&self) {
        let put = |path: &str, body: serde_json::Value| {
            let got = self.node.ask("PUT", path, &body.to_string());
            assert!(matches!(got.status, 201 | 204), "{path}: {} {}", got.status, got.text());
        };
        for (name, tags, _) in USERS.iter().filter(|(name, ..)| !name.is_empty()) {
            put(&format!("/api/users/{name}"), json!({"password": "p", "tags": tags}));
        }
        put("/api/users/guest", json!({"password": "guest", "tags": "administrator"}));
        put("/api/users/subject", json!({"password": "p", "tags": ""}));
        for vhost in ["v", "zz"] {
            put(&format!("/api/vhosts/{vhost}"), json!({}));
            self.node.must("DELETE", &format!("/api/vhosts/{vhost}/deletion/protection"), "", 204);
            let all = json!({"configure": ".*", "write": ".*", "read": ".*"});
            put(&format!("/api/permissions/{vhost}/guest"), all.clone());
            put(&format!("/api/permissions/{vhost}/subject"), all);
            let topic = json!({"exchange": "amq.topic", "write": "x", "read": "x"});
            put(&format!("/api/topic-permissions/{vhost}/subject"), topic);
            let name = |name: &str| in_vhost(vhost, name);
            put(&format!("/api/queues/{vhost}/{}", name("q")), json!({}));
            put(&format!("/api/exchanges/{vhost}/{}", name("x")), json!({"type": "topic"}));
            let policy =
                json!({"pattern": format!("^{}$", name("none")), "definition": {"max-length": 1}});
            put(&format!("/api/policies/{vhost}/{}", name("p")), policy.clone());
            put(&format!("/api/operator-policies/{vhost}/{}", name("p")), policy);
            put(&format!("/api/vhost-limits/{vhost}/max-queues"), json!({"value": 1000}));
            put(&format!("/api/parameters/policy/{vhost}/{}", name("s")), parameter());
            let path = format!("/api/bindings/{vhost}/e/{}/q/{}", name("x"), name("q"));
            self.node.must("POST", &path, r#"{"routing_key": "k"}"#, 201);
        }
        put("/api/global-parameters/g", json!({"value": 1}));
        put("/api/user-limits/subject/max-channels", json!({"value": 1000}));
        for (name, _, has) in USERS {
            let read = json!({"configure": "", "write": "", "read": ".*"});
            let all = json!({"configure": ".*", "write": ".*", "read": ".*"});
            match has {
                "all" => put(&format!("/api/permissions/v/{name}"), all),
                "read" => put(&format!("/api/permissions/v/{name}"), read),
                _ => {}
            }
        }
    }

    fn ask(&self, user: &str, method: &str, path: &str, body: &str) -> Got {
        let login = format!("{user}:p");
        let login = (!user.is_empty()).then_some(login.as_str());
        self.node.ask_as(login, method, path, &[], body.as_bytes())
    }
}

fn in_vhost(vhost: &str, name: &str) -> String {
    if vhost == "v" { name.to_owned() } else { format!("{OTHERS}-{name}") }
}

/// The path of a route in this vhost.
fn path(route: &str, vhost: &str, port: u16) -> String {
    let of = |word: &str| match word {
        "vhost" => vhost.to_owned(),
        "queue" | "destination" => in_vhost(vhost, "q"),
        "exchange" | "source" => in_vhost(vhost, "x"),
        "name" if route.starts_with("/api/parameters") => in_vhost(vhost, "s"),
        "name" if route.starts_with("/api/traces") => in_vhost(vhost, "t"),
        "name" if route.contains("policies") => in_vhost(vhost, "p"),
        "name" if route.starts_with("/api/vhost-limits") => "max-queues".to_owned(),
        "name" if route.starts_with("/api/user-limits") => "max-channels".to_owned(),
        "name" if route.starts_with("/api/feature-flags") => "quorum_queue".to_owned(),
        "name" => "g".to_owned(),
        "node" => "rabbit@test".to_owned(),
        "pid" => "%3Cshard.0%3E".to_owned(),
        "component" => "policy".to_owned(),
        "user" => "subject".to_owned(),
        "dtype" => "q".to_owned(),
        "props" => "k".to_owned(),
        "position" | "within" => "1".to_owned(),
        "unit" => "days".to_owned(),
        "pattern" => "q".to_owned(),
        "protocol" => "amqp".to_owned(),
        "port" => port.to_string(),
        "password" => "pw".to_owned(),
        "connection" | "channel" => "nowhere".to_owned(),
        other => panic!("what stands for {{{other}}} in {route}?"),
    };
    let mut made = String::new();
    let mut rest = route;
    while let Some((before, after)) = rest.split_once('{') {
        let (word, after) = after.split_once('}').unwrap();
        made.push_str(before);
        made.push_str(&of(word));
        rest = after;
    }
    made + rest
}

/// A parameter that a component takes.
fn parameter() -> serde_json::Value {
    json!({"value": {"pattern": "^none$", "definition": {"max-length": 1}}})
}

/// What a request of this kind has to say, if anything.
fn body(method: &str, route: &str, vhost: &str) -> String {
    let name = |name: &str| in_vhost(vhost, name);
    let policy = || json!({"pattern": "^none$", "definition": {"max-length": 1}});
    let body = match (method, route) {
        ("GET" | "DELETE", _) => return String::new(),
        (_, "/api/cluster-name") => json!({"name": "rabbit@test"}),
        (_, it) if it.starts_with("/api/policies") || it.starts_with("/api/operator-policies") => {
            policy()
        }
        (_, it) if it.starts_with("/api/parameters/") => parameter(),
        (_, it) if it.contains("parameters/") || it.contains("-limits/") => json!({"value": 5}),
        (_, it) if it.ends_with("/publish") => {
            json!({"routing_key": "k", "properties": {}, "payload": "x", "payload_encoding": "string"})
        }
        (_, it) if it.ends_with("/get") => {
            json!({"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"})
        }
        (_, it) if it.ends_with("/move") => json!({"to_queue": name("q"), "count": 0}),
        (_, it) if it.ends_with("/actions") => json!({"action": "sync"}),
        (_, "/api/exchanges/{vhost}/{exchange}") => json!({"type": "topic"}),
        (_, "/api/users/bulk-delete") => json!({"users": []}),
        (_, "/api/users/{user}") => json!({"password": "p", "tags": ""}),
        (_, it) if it.starts_with("/api/permissions") => {
            json!({"configure": "", "write": "", "read": ""})
        }
        (_, it) if it.starts_with("/api/topic-permissions") => {
            json!({"exchange": "amq.topic", "write": "", "read": ""})
        }
        (_, it) if it.contains("/watermarks/memory") => json!({"relative": 0.9}),
        (_, it) if it.contains("/watermarks/disk") => json!({"absolute": 1000}),
        (_, it) if it.ends_with("/authenticate") => json!({"username": "subject", "password": "p"}),
        (_, it) if it.ends_with("/log/level") => json!({"level": "info"}),
        (_, it) if it.starts_with("/api/traces") => json!({"format": "json", "pattern": "#"}),
        (_, it) if it.contains("/replicas/") => json!({"node": "rabbit@test"}),
        _ => json!({}),
    };
    body.to_string()
}

/// One row for what a route does for each user: `-` refused, `o` allowed, `A` allowed and told of what is in a
/// vhost of others.
fn outcomes(world: &World, method: &str, route: &str, vhost: &str) -> String {
    let path = path(route, vhost, world.node.amqp.port());
    let mut made = String::new();
    for (user, ..) in USERS {
        let got = world.ask(user, method, &path, &body(method, route, vhost));
        assert!(got.status < 500 || got.status == 503, "{user} {method} {path}: {}", got.text());
        let is_refused = matches!(got.status, 401 | 403);
        let tells = !is_refused && method == "GET" && got.text().contains(OTHERS);
        made.push(match (is_refused, tells) {
            (true, _) => '-',
            (false, false) => 'o',
            (false, true) => 'A',
        });
        if method != "GET" && !is_refused {
            if route.ends_with("/suspend") {
                world.node.must("POST", "/api/leveret/listeners/resume", "", 204);
            }
            if method == "DELETE"
                || ["/api/users", "/api/permissions"].iter().any(|it| route.starts_with(it))
            {
                world.make();
            }
        }
    }
    made
}

/// Rows of `rights.txt`: method, route, which vhost, outcomes.
fn rows() -> impl Iterator<Item = [&'static str; 4]> {
    let lines = EXPECTED.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        words.try_into().unwrap_or_else(|_| panic!("four words: {line}"))
    })
}

#[test]
fn each_route_lets_in_whom_it_should() {
    let world = World::new();
    let mut wrong = String::new();
    for [method, route, vhost, want] in rows() {
        let got = outcomes(&world, method, route, vhost);
        if got != want {
            wrong.push_str(&format!("{method} {route} {vhost} is {got}, not {want}\n"));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// A connection is its user's to be seen and closed, monitors' to be seen, administrators' to be closed.
#[test]
fn connections_are_their_users() {
    let world = World::new();
    let (client, _) = world.node.client();
    let name = world.node.get("/api/connections")[0]["name"].as_str().unwrap().to_owned();
    let path = format!("/api/connections/{}", name.replace(' ', "%20").replace('>', "%3E"));
    let channel = format!("/api/channels/{}%20(1)", name.replace(' ', "%20").replace('>', "%3E"));
    for (method, path, want) in [
        ("GET", path.clone(), "------ooo"),
        ("GET", format!("{path}/channels"), "------ooo"),
        ("GET", channel, "------ooo"),
        ("DELETE", "/api/connections/username/guest".to_owned(), "--------o"),
        ("DELETE", path, "--------o"),
    ] {
        let outcome = |(user, ..): &(&str, &str, &str)| {
            let got = world.ask(user, method, &path, "");
            if matches!(got.status, 401 | 403) { '-' } else { 'o' }
        };
        assert_eq!(USERS.iter().map(outcome).collect::<String>(), want, "{method} {path}");
    }
    drop(client);
}
