//! Operators: every route of the API, every command of `ctl`, and closings, all over the clients.

use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leveret_client::Error;
use leveret_ctl::Api;
use serde_json::{Value, json};

use super::chance::Chance;
use super::journal::{Journal, Outcome};
use super::ledger;
use crate::site::encoded;

/// Vhosts, queues and exchanges that all of this is about.
pub(crate) const VHOSTS: u64 = 3;
pub(crate) const QUEUES: u64 = 20;
pub(crate) const EXCHANGES: u64 = 8;
const USERS: u64 = 3;

/// What no operator does here, and why the run could not go on.
const NOT_ASKED: [(&str, &str); 8] = [
    ("/api/leveret/stop", "it ends the broker"),
    ("/api/reset", "it deletes everything"),
    ("/api/reset/{node}", "it deletes everything"),
    ("/api/leveret/listeners/suspend", "no client comes in"),
    ("/api/leveret/watermarks/memory", "publishers are stopped"),
    ("/api/leveret/watermarks/disk", "publishers are stopped"),
    ("/api/leveret/log/level", "the log would be the load"),
    ("/api/connections/username/{user}", "the probe's connections are the user's, too"),
];

/// The same of commands; the last ask no node.
const NOT_RUN: [&str; 21] = [
    "stop",
    "shutdown",
    "stop_app",
    "reset",
    "force_reset",
    "drain",
    "suspend_listeners",
    "set_vm_memory_high_watermark",
    "set_disk_free_limit",
    "set_log_level",
    "close_connection",
    "close_all_connections",
    "close_all_user_connections",
    "observer",
    "consume_event_stream",
    "log_tail_stream",
    "await_online_nodes",
    "encode",
    "decode",
    "encrypt_conf_value",
    "decrypt_conf_value",
];

/// Whether a connection ended because an operator closed it, or deleted its vhost.
pub(crate) fn explains_close(error: &Error) -> bool {
    matches!(error, Error::ConnectionClosed(reason) if reason.code == 320)
}

/// A route of the API: its methods and its path, with names in braces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) path: String,
    pub(crate) methods: Vec<String>,
}

/// The routes that the broker's own description of its API has. A test of the broker compares it with its router.
pub(crate) fn routes(description: &str) -> Vec<Route> {
    let mut routes: Vec<Route> = Vec::new();
    let paths = description.lines().skip_while(|line| *line != "paths:").skip(1);
    for line in paths.take_while(|line| line.starts_with(' ')) {
        let depth = line.len() - line.trim_start().len();
        let key = line.trim().trim_end_matches(':');
        match (depth, routes.last_mut()) {
            (2, _) => routes.push(Route { path: key.to_owned(), methods: Vec::new() }),
            (4, Some(route)) if key != "parameters" => route.methods.push(key.to_uppercase()),
            _ => {}
        }
    }
    routes.retain(|route| NOT_ASKED.iter().all(|(path, _)| *path != route.path));
    routes
}

/// Makes the vhosts that everything is about, and gives the user its permissions there: others delete them.
pub(crate) fn tend(api: &Api, user: &str, journal: &Journal, stop: &AtomicBool) {
    while !stop.load(Ordering::Acquire) {
        for number in 0..VHOSTS {
            let vhost = format!("chaos-{number}");
            let route = ("PUT", "/api/vhosts/{vhost}");
            ask(api, journal, "tender", route, &format!("/api/vhosts/{vhost}"), &json!({}));
            let path = format!("/api/permissions/{vhost}/{}", encoded(user));
            let all = json!({"configure": ".*", "write": ".*", "read": ".*"});
            let route = ("PUT", "/api/permissions/{vhost}/{user}");
            ask(api, journal, "tender", route, &path, &all);
        }
        pause(Duration::from_secs(2), stop);
    }
}

pub(super) fn pause(length: Duration, stop: &AtomicBool) {
    let end = Instant::now() + length;
    while Instant::now() < end && !stop.load(Ordering::Acquire) {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Asks by a route, and judges the answer.
pub(super) fn ask(
    api: &Api,
    journal: &Journal,
    who: &'static str,
    (method, route): (&str, &str),
    path: &str,
    body: &Value,
) -> Option<Vec<u8>> {
    journal.act(who, format!("{method} {path}"), || {
        let bytes = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        match api.request(method, path, bytes) {
            Ok((status, answer)) => {
                let said = String::from_utf8_lossy(&answer).chars().take(200).collect::<String>();
                match judge(method, route, status, &said) {
                    Outcome::Explained(_) => (Outcome::Explained(format!("{status} {said}")), None),
                    Outcome::Unexplained(_) => {
                        (Outcome::Unexplained(format!("{status} {said}")), None)
                    }
                    Outcome::Done => (Outcome::Done, Some(answer)),
                }
            }
            Err(fault) => (Outcome::Unexplained(fault.to_string()), None),
        }
    })
}

/// Requests that may be told 400 or 503, and in which words: what others did to the same names explains it. Anywhere else it says
/// that the request does nothing here, and tests nothing.
#[rustfmt::skip] // a table
const REFUSED: &[(&str, &str, &str)] = &[
    ("PUT",    "/api/queues/{vhost}/{queue}",                        "inequivalent arg"),
    ("PUT",    "/api/queues/{vhost}/{queue}",                        "queue limit in vhost"),
    ("PUT",    "/api/exchanges/{vhost}/{exchange}",                  "inequivalent arg"),
    ("POST",   "/api/queues/{vhost}/{queue}/move",                   "no queue 'q-"),
    ("GET",    "/api/queues/quorum/{vhost}/{queue}/status",          "not a quorum queue"),
    ("GET",    "/api/aliveness-test/{vhost}",                        "queue limit in vhost"),
    ("DELETE", "/api/queues/quorum/{vhost}/{queue}/replicas/delete", "this node is the only one"),
    ("DELETE", "/api/queues/quorum/replicas/on/{node}/shrink",       "this node is the only one"),
    ("DELETE", "/api/leveret/cluster/nodes/{node}",                  "this node stands alone"),
    ("POST",   "/api/leveret/cluster/hand-over",                     "this node stands alone"),
    ("PUT",    "/api/feature-flags/{name}/enable",                   "there is no feature flag"),
    ("POST",   "/api/leveret/authenticate",                          "invalid credentials"),
    ("PUT",    "/api/permissions/{vhost}/{user}",                    "vhost_or_user_not_found"),
    ("PUT",    "/api/topic-permissions/{vhost}/{user}",              "vhost_or_user_not_found"),
    // A queue of the rule `ack` confirms when somebody consumes; it was deleted or purged before, or nobody does.
    ("POST",   "/api/exchanges/{vhost}/{exchange}/publish",          "rejected Unable to publish message"),
    ("POST",   "/api/exchanges/{vhost}/{exchange}/publish",          "the message was not confirmed within"),
    // Others made it, or deleted the vhost and with it who may be there; four names have their files' sizes.
    ("PUT",    "/api/traces/{vhost}/{name}",                         "the trace is there already"),
    ("PUT",    "/api/traces/{vhost}/{name}",                         "is written by the trace of this name"),
    ("PUT",    "/api/traces/{vhost}/{name}",                         "cannot have the messages of vhost"),
    ("PUT",    "/api/traces/{vhost}/{name}",                         "the trace cannot have its messages"),
    ("PUT",    "/api/traces/{vhost}/{name}",                         "has reached tracing.max_file_size"),
    ("PUT",    "/api/traces/{vhost}/{name}",                         "there are 16 traces"),
    ("PUT",    "/api/traces/node/{node}/{vhost}/{name}",             "the trace is there already"),
    ("PUT",    "/api/traces/node/{node}/{vhost}/{name}",             "is written by the trace of this name"),
    ("PUT",    "/api/traces/node/{node}/{vhost}/{name}",             "cannot have the messages of vhost"),
    ("PUT",    "/api/traces/node/{node}/{vhost}/{name}",             "the trace cannot have its messages"),
    ("PUT",    "/api/traces/node/{node}/{vhost}/{name}",             "has reached tracing.max_file_size"),
    ("PUT",    "/api/traces/node/{node}/{vhost}/{name}",             "there are 16 traces"),
    ("DELETE", "/api/trace-files/{name}",                            "writes to the file"),
    ("DELETE", "/api/trace-files/node/{node}/{name}",                "writes to the file"),
    ("GET",    "/api/definitions/{vhost}",                           "vhost_not_found"),
    ("PUT",    "/api/definitions/{vhost}",                           "queue limit in vhost"),
    ("POST",   "/api/definitions/{vhost}",                           "queue limit in vhost"),
    // Between one piece of the import and the next others deleted its vhost, or what it had made.
    ("POST",   "/api/definitions/{vhost}",                           "prior to importing definitions"),
    ("POST",   "/api/definitions/{vhost}",                           "no exchange 'heap-x' in vhost"),
    ("POST",   "/api/definitions/{vhost}",                           "no queue 'heap-"),
];

/// What an answer means: names come and go, so much is refused; a health check may say that something is not well.
fn judge(method: &str, route: &str, status: u16, said: &str) -> Outcome {
    // The vhost was there when the request was looked at, and not when its turn came.
    let is_gone = || route.contains("{vhost}") && said.contains("virtual host '");
    let is_known =
        || REFUSED.iter().any(|row| (row.0, row.1) == (method, route) && said.contains(row.2));
    let may_be_bad = || is_gone() || is_known();
    match status {
        200..300 => Outcome::Done,
        400 | 503 if may_be_bad() => Outcome::Explained(String::new()),
        404 | 405 | 409 | 412 => Outcome::Explained(String::new()),
        503 if route.contains("/health") => Outcome::Explained(String::new()),
        _ => Outcome::Unexplained(String::new()),
    }
}

/// Asks every route, by chance, until it is told to stop.
pub(crate) fn ask_everything(
    api: &Api,
    node: &str,
    routes: &[Route],
    mut chance: Chance,
    journal: &Journal,
    stop: &AtomicBool,
) {
    // The first time each of them, so that a short run leaves none out.
    let mut all: Vec<(&str, &str)> = Vec::new();
    for route in routes {
        all.extend(route.methods.iter().map(|method| (&*route.path, &**method)));
    }
    let mut asked = 0;
    while !stop.load(Ordering::Acquire) && !all.is_empty() {
        let (route, method) = match all.get(asked) {
            Some(next) if asked < all.len() => *next,
            _ => chance.of(&all),
        };
        asked += 1;
        let path = filled(route, node, &mut chance);
        let body = match method {
            "GET" => Value::Null,
            _ => body_of(route, &path, node, &mut chance),
        };
        ask(api, journal, "api", (method, route), &path, &body);
        pause(Duration::from_millis(chance.below(40)), stop);
    }
}

/// A path with names in the place of its parts.
fn filled(path: &str, node: &str, chance: &mut Chance) -> String {
    let mut component = "";
    let parts = path.split('/').map(|part| {
        let Some(name) = part.strip_prefix('{').and_then(|it| it.strip_suffix('}')) else {
            return part.to_owned();
        };
        if name == "component" {
            component = chance.of(&COMPONENTS).0;
            return component.to_owned();
        }
        match (component, name) {
            // The one name that this component has.
            ("vhost-limits", "name") => "limits".to_owned(),
            _ => encoded(&value_of(name, path, node, chance)),
        }
    });
    parts.collect::<Vec<_>>().join("/")
}

fn value_of(name: &str, path: &str, node: &str, chance: &mut Chance) -> String {
    let limits: &[&str] = match path.contains("user-limits") {
        true => &["max-connections", "max-channels"],
        false => &["max-connections", "max-queues"],
    };
    match name {
        "vhost" => format!("chaos-{}", chance.below(VHOSTS)),
        "queue" | "destination" => format!("q-{}", chance.below(QUEUES)),
        "exchange" | "source" => format!("x-{}", chance.below(EXCHANGES)),
        "user" => format!("chaos-user-{}", chance.below(USERS)),
        "node" => node.to_owned(),
        "name" if path.contains("trace-files") => format!("n-{}.log", chance.below(4)),
        "name" if path.contains("limits") => chance.of(limits).to_owned(),
        "name" => format!("n-{}", chance.below(4)),
        "dtype" => chance.of(&["q", "e"]).to_owned(),
        "props" => chance.of(&["~", "a.1", "b.2"]).to_owned(),
        "position" => chance.below(1000).to_string(),
        "within" => "1".to_owned(),
        "unit" => chance.of(&["days", "weeks"]).to_owned(),
        "port" => "5672".to_owned(),
        "protocol" => "amqp".to_owned(),
        "pattern" => "^q".to_owned(),
        _ => format!("chaos-{name}"),
    }
}

/// Components of parameters, and a value that each takes.
const COMPONENTS: [(&str, &str); 2] = [
    ("vhost-limits", r#"{"max-queues": 200}"#),
    ("policy", r#"{"pattern": "^q", "definition": {"max-length": 700}, "priority": 3}"#),
];

/// A body that such a route takes, for a path that is filled.
fn body_of(route: &str, path: &str, node: &str, chance: &mut Chance) -> Value {
    let all = json!({"configure": ".*", "write": ".*", "read": ".*"});
    match route {
        "/api/queues/{vhost}/{queue}" => json!({"durable": true, "arguments": {}}),
        "/api/exchanges/{vhost}/{exchange}" => {
            json!({"type": chance.of(&["direct", "fanout", "topic"]), "durable": true})
        }
        "/api/exchanges/{vhost}/{exchange}/publish" => {
            json!({"properties": {}, "routing_key": "a.1", "payload": "x", "payload_encoding": "string"})
        }
        "/api/queues/{vhost}/{queue}/get" => {
            json!({"count": 1 + chance.below(50), "ackmode": "ack_requeue_true", "encoding": "auto"})
        }
        "/api/queues/{vhost}/{queue}/move" => {
            json!({"to_queue": format!("q-{}", chance.below(QUEUES)), "count": chance.below(500)})
        }
        "/api/queues/{vhost}/{queue}/arguments" => json!({"x-max-length": 100 + chance.below(500)}),
        "/api/queues/{vhost}/{queue}/actions" => {
            json!({"action": chance.of(&["sync", "cancel_sync"])})
        }
        "/api/queues/quorum/{vhost}/{queue}/replicas/add" => json!({"node": node}),
        "/api/policies/{vhost}/{name}" => {
            let definition = match chance.below(3) {
                0 => json!({"max-length": 100 + chance.below(1000)}),
                1 => json!({"message-ttl": 1000}),
                _ => json!({"dead-letter-exchange": "x-1"}),
            };
            json!({"pattern": "^q", "apply-to": "queues", "priority": chance.below(10), "definition": definition})
        }
        "/api/operator-policies/{vhost}/{name}" => {
            json!({"pattern": "^q-1", "apply-to": "queues", "definition": {"max-length": 5000}})
        }
        "/api/users/{user}" => {
            json!({"password": "secret", "tags": chance.of(&["", "monitoring"])})
        }
        "/api/users/bulk-delete" => json!({"users": ["chaos-user-2"]}),
        "/api/permissions/{vhost}/{user}" => all,
        "/api/topic-permissions/{vhost}/{user}" => {
            json!({"exchange": "amq.topic", "write": ".*", "read": "^a"})
        }
        "/api/vhost-limits/{vhost}/{name}" | "/api/user-limits/{user}/{name}" => {
            json!({"value": 100 + chance.below(100)})
        }
        "/api/parameters/{component}/{vhost}/{name}" => {
            let of_it = COMPONENTS.iter().find(|it| path.split('/').any(|part| part == it.0));
            let value = of_it.and_then(|it| serde_json::from_str::<Value>(it.1).ok());
            json!({"value": value})
        }
        "/api/traces/{vhost}/{name}" | "/api/traces/node/{node}/{vhost}/{name}" => {
            let format = chance.of(&["text", "json"]);
            json!({"format": format, "pattern": "deliver.q-1", "max_payload_bytes": 10})
        }
        "/api/global-parameters/{name}" => json!({"value": {"a": chance.below(9)}}),
        "/api/cluster-name" => json!({"name": format!("everything-{}", chance.below(9))}),
        "/api/definitions/{vhost}" => definitions(chance),
        "/api/leveret/authenticate" => json!({"username": "chaos-user-1", "password": "secret"}),
        _ => json!({}),
    }
}

/// Definitions to import.
fn definitions(chance: &mut Chance) -> Value {
    let queue = |number: u64| json!({"name": format!("i-{number}"), "durable": true, "auto_delete": false, "arguments": {}});
    let binding = |number: u64| {
        json!({
            "source": "amq.topic", "destination": format!("i-{number}"), "destination_type": "queue",
            "routing_key": format!("a.{number}.*"), "arguments": {},
        })
    };
    let count = 1 + chance.below(200);
    json!({
        "queues": (0..count).map(queue).collect::<Value>(),
        "bindings": (0..count).map(binding).collect::<Value>(),
    })
}

/// Closes connections, those of the accounted traffic too, but never the probe's.
pub(crate) fn close_some(api: &Api, mut chance: Chance, journal: &Journal, stop: &AtomicBool) {
    while !stop.load(Ordering::Acquire) {
        pause(Duration::from_millis(500 + chance.below(2000)), stop);
        let path = "/api/connections?columns=name,state,client_properties.connection_name";
        let route = ("GET", "/api/connections");
        let Some(answer) = ask(api, journal, "closer", route, path, &Value::Null) else { continue };
        let list: Value = serde_json::from_slice(&answer).unwrap_or_default();
        // One that logs in is closed without a word, as RabbitMQ does it: its client could not tell that from a fault.
        let is_ours = |row: &&Value| {
            let name = row["client_properties"]["connection_name"].as_str().unwrap_or_default();
            !matches!(row["state"].as_str(), Some("starting" | "tuning" | "opening"))
                && (name.starts_with("leveret everything client") || name == ledger::NAME)
        };
        let ours: Vec<&Value> = list.as_array().into_iter().flatten().filter(is_ours).collect();
        if ours.is_empty() {
            continue;
        }
        let name = chance.of(&ours)["name"].as_str().unwrap_or_default().to_owned();
        ask(
            api,
            journal,
            "closer",
            ("DELETE", "/api/connections/{connection}"),
            &format!("/api/connections/{}", encoded(&name)),
            &Value::Null,
        );
    }
}

/// Runs every command of `ctl`, each as a process of its own, until it is told to stop.
pub(crate) fn run_commands(
    program: &Path,
    socket: &Path,
    dir: &Path,
    mut chance: Chance,
    journal: &Journal,
    stop: &AtomicBool,
) {
    let mut all: Vec<_> =
        leveret_ctl::names().filter(|(name, _)| !NOT_RUN.contains(name)).collect();
    all.sort_unstable();
    let mut run = 0;
    while !stop.load(Ordering::Acquire) && !all.is_empty() {
        let (name, count) = match all.get(run) {
            Some(next) => *next,
            None => chance.of(&all),
        };
        run += 1;
        let words = words_of(name, count, &mut chance);
        let mut command = Command::new(program);
        command.args(["ctl", "--socket"]).arg(socket).arg(name).args(&words).current_dir(dir);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        journal.act("ctl", format!("{name} {}", words.join(" ")), || (run_one(&mut command), ()));
        pause(Duration::from_millis(100), stop);
    }
}

/// Statuses of commands that were not done for a reason: bad words, no such thing, no such user, a check that failed, not allowed.
const EXPLAINED: [i32; 5] = [64, 65, 67, 69, 77];

fn run_one(command: &mut Command) -> Outcome {
    const PATIENCE: Duration = Duration::from_secs(60);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return Outcome::Unexplained(error.to_string()),
    };
    let end = Instant::now() + PATIENCE;
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Outcome::Done,
            Ok(Some(status)) => {
                let mut said = String::new();
                let told = child.stderr.take().map(|mut it| it.read_to_string(&mut said));
                // What others made or protected meanwhile is one more state.
                let is_explained = status.code().is_some_and(|code| EXPLAINED.contains(&code))
                    || said.contains("protected from deletion")
                    || said.contains("already exists");
                let said = match told {
                    Some(Ok(_)) => format!("{status}: {}", said.trim().replace('\n', " ")),
                    _ => status.to_string(),
                };
                return if is_explained {
                    Outcome::Explained(said)
                } else {
                    Outcome::Unexplained(said)
                };
            }
            Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(10)),
            Ok(None) => {
                let _ = child.kill();
                let _ = child.wait();
                return Outcome::Unexplained(format!("no end after {PATIENCE:?}"));
            }
            Err(error) => return Outcome::Unexplained(error.to_string()),
        }
    }
}

/// Words that a command takes, or as many of no meaning as it wants.
fn words_of(name: &str, count: usize, chance: &mut Chance) -> Vec<String> {
    let vhost = format!("chaos-{}", chance.below(VHOSTS));
    let (queue, user) =
        (format!("q-{}", chance.below(QUEUES)), format!("chaos-user-{}", chance.below(USERS)));
    let words: &[&str] = match name {
        "set_policy" => &["n-1", "^q", r#"{"max-length":900}"#],
        "set_operator_policy" => &["n-1", "^q", r#"{"max-length":9000}"#],
        "set_permissions" => &[&user, ".*", ".*", ".*"],
        "add_user" | "change_password" | "authenticate_user" => &[&user, "secret"],
        "delete_queue" | "purge_queue" | "pause_queue" | "resume_queue" => &[&queue],
        "add_vhost" | "delete_vhost" => &[&vhost],
        "set_vhost_limits" => &[r#"{"max-queues":300}"#],
        "export_definitions" => &["exported.json"],
        "import_definitions" => &["exported.json"],
        "check_port_listener" | "check_port_connectivity" => &["5672"],
        "check_protocol_listener" => &["amqp"],
        "resolve_hostname" => &["localhost"],
        _ => &[],
    };
    let mut words: Vec<String> = words.iter().map(|&it| it.to_owned()).collect();
    while words.len() < count {
        words.push(chance.of(&[&*user, &*queue, &*vhost]).to_owned());
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_of_a_description() {
        let text = "openapi: 3\npaths:\n  /api/reset:\n    delete:\n  /api/users/{user}:\n    parameters:\n      - x\n    get:\n      summary: x\n    put:\ncomponents:\n  x:\n    get:\n";
        let want = Route {
            path: "/api/users/{user}".to_owned(),
            methods: vec!["GET".to_owned(), "PUT".to_owned()],
        };
        assert_eq!(routes(text), [want]);
    }

    #[test]
    #[rustfmt::skip] // a table
    fn answers() {
        check("GET", "/api/queues",        204, "",                          "done");
        check("GET", "/api/queues",        404, "",                          "explained");
        check("GET", "/api/queues",        401, "",                          "unexplained");
        check("GET", "/api/queues",        503, "",                          "unexplained");
        check("GET", "/api/health/checks", 503, "",                          "explained");
        check("GET", "/api/queues",        500, "",                          "unexplained");
        check("DELETE", "/api/vhosts/{vhost}", 400, "virtual host 'heap' does not exist", "explained");
        check("PUT", "/api/users/{user}",  400, "virtual host 'heap' does not exist", "unexplained");
        check("POST", "/api/exchanges/{vhost}/{exchange}/publish", 503, "the message was not confirmed within 5 s", "explained");
        check("POST", "/api/exchanges/{vhost}/{exchange}/publish", 503, "publishers are blocked: memory", "unexplained");
        check("GET", "/api/queues",        400, "the key 'x' is missing",    "unexplained");
        check("PUT", "/api/queues/{vhost}/{queue}", 400, "the key 'x' is missing", "unexplained");
        check("PUT", "/api/queues/{vhost}/{queue}", 400, "inequivalent arg 'x' for queue", "explained");
        check("GET", "/api/queues/{vhost}/{queue}", 400, "inequivalent arg 'x' for queue", "unexplained");
    }

    #[track_caller]
    fn check(method: &str, route: &str, status: u16, said: &str, want: &str) {
        let got = match judge(method, route, status, said) {
            Outcome::Done => "done",
            Outcome::Explained(_) => "explained",
            Outcome::Unexplained(_) => "unexplained",
        };
        assert_eq!(got, want, "{method} {route} {status} {said}");
    }

    /// A component has a name and a value that it takes.
    #[test]
    fn parameters_are_right() {
        let route = "/api/parameters/{component}/{vhost}/{name}";
        for seed in 0..50 {
            let mut chance = Chance::new(seed, 1);
            let path = filled(route, "rabbit@h", &mut chance);
            let value = body_of(route, &path, "rabbit@h", &mut chance)["value"].clone();
            let (component, name) = (path.split('/').nth(3), path.split('/').nth(5));
            let (key, is_limits) = match component {
                Some("vhost-limits") => ("max-queues", true),
                _ => ("pattern", false),
            };
            assert!(value.get(key).is_some(), "{path}: {value}");
            assert_eq!(name == Some("limits"), is_limits, "{path}");
        }
    }

    #[test]
    fn paths_are_filled() {
        let mut chance = Chance::new(1, 1);
        let path = filled(
            "/api/bindings/{vhost}/e/{source}/{dtype}/{destination}",
            "rabbit@h",
            &mut chance,
        );
        assert!(path.starts_with("/api/bindings/chaos-") && !path.contains('{'), "{path}");
        assert_eq!(filled("/api/nodes/{node}", "rabbit@h", &mut chance), "/api/nodes/rabbit%40h");
    }

    /// What is not run is there: a name that no command has any more would say nothing.
    #[test]
    fn commands_that_are_left_out_exist() {
        let names: Vec<_> = leveret_ctl::names().map(|(name, _)| name).collect();
        for name in &NOT_RUN {
            assert!(names.contains(name), "{name}");
        }
    }
}
