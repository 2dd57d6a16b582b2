//! The definitions that are taken along, and those that are not.

use std::collections::{BTreeMap, BTreeSet};

use leveret_ctl::{Code, Fault};
use serde_json::Value;

use crate::queues;

/// What is imported, and what not.
#[derive(Debug)]
pub(crate) struct Chosen {
    pub(crate) document: Value,
    /// A sentence for each thing.
    pub(crate) left_out: Vec<String>,
}

/// Lists of a document, in the order in which they are counted.
const LISTS: [&str; 9] = [
    "users",
    "vhosts",
    "permissions",
    "topic_permissions",
    "policies",
    "parameters",
    "exchanges",
    "queues",
    "bindings",
];

/// Of so many queues and exchanges each is told that their bindings are left out: a broker may have very many exclusive
/// ones.
const LINES_MAX: usize = 20;

/// Bytes that a name may have in AMQP, and on Leveret.
pub(crate) const NAME_MAX: usize = 255;

/// Whom others belong to: the list of a document, one of it in words, the key that others name it by, and those in words.
const OWNERS: [(&str, &str, &str, &str); 2] = [
    ("users", "user", "user", "its permissions"),
    ("vhosts", "virtual host", "vhost", "all that is in it"),
];

/// What else has a name that AMQP does not check: the list of a document, one of it in words, and the key of the name.
const SETTINGS: [(&str, &str, &str); 4] = [
    ("topic_permissions", "topic permissions of exchange", "exchange"),
    ("policies", "policy", "name"),
    ("parameters", "parameter", "name"),
    ("global_parameters", "global parameter", "name"),
];

/// Characters of a long name that are told.
const SHOWN_MAX: usize = 60;

/// Components that parameters of Leveret may have.
const COMPONENTS: [&str; 3] = ["vhost-limits", "policy", "operator_policy"];

/// Settings of policies that RabbitMQ takes with a plugin that Leveret has not.
const OF_PLUGINS: [&str; 5] = [
    "federation-upstream",
    "federation-upstream-pattern",
    "federation-upstream-set",
    "routing-key",
    "shards-per-node",
];

impl Chosen {
    /// How many of everything.
    pub(crate) fn counts(&self) -> String {
        let count = |list: &str| self.document[list].as_array().map_or(0, Vec::len);
        let each = LISTS.map(|list| format!("{} {}", count(list), list.replace('_', " ")));
        each.join(", ")
    }
}

/// Where the old broker has its definitions, for a new one that tells this about itself. Leveret leaves out what
/// RabbitMQ would refuse; RabbitMQ does not look at the query.
pub(crate) fn query(new: &Value) -> &'static str {
    if is_leveret(new) {
        return "/api/definitions";
    }
    let version = new["rabbitmq_version"].as_str().unwrap_or_default();
    let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    match major.unwrap_or(0) {
        0..4 => "/api/definitions?for=rabbitmq",
        4.. => "/api/definitions?for=rabbitmq-4",
    }
}

/// Where the old broker has all its exchanges. RabbitMQ's definitions are without internal ones, but with their bindings.
pub(crate) const EXCHANGES: &str =
    "/api/exchanges?columns=vhost,name,type,durable,auto_delete,internal,arguments";

/// Where a broker has its queues, with what an import would change if it changed what is there.
pub(crate) const QUEUES: &str = "/api/queues?columns=vhost,name,type,durable,auto_delete,arguments";

/// Where a broker has its vhosts.
pub(crate) const VHOSTS: &str = "/api/vhosts?columns=name";

/// What an answer tells that is not there.
pub(crate) fn left_out(answer: &Value) -> impl Iterator<Item = &str> {
    answer["left_out"].as_array().into_iter().flatten().filter_map(Value::as_str)
}

/// Adds the internal ones of `exchanges` that are not in the definitions.
///
/// # Errors
///
/// When one of the two answers is not what it has to be.
pub(crate) fn add_internal(all: &mut Value, exchanges: &Value) -> Result<(), Fault> {
    if !all["vhosts"].is_array() {
        return Err(Fault::new(Code::Data, "its definitions have no virtual hosts"));
    }
    let known: BTreeSet<_> =
        entries(all, "exchanges").map(|it| id("exchange", it, "name")).collect();
    let missing = queues::list(exchanges)?.iter().filter(|exchange| {
        exchange["internal"] == true
            && !is_predeclared(exchange["name"].as_str().unwrap_or_default())
            && !known.contains(&id("exchange", exchange, "name"))
    });
    if let Some(list) = all.get_mut("exchanges").and_then(Value::as_array_mut) {
        list.extend(missing.cloned());
    }
    Ok(())
}

/// Every vhost has it.
fn is_predeclared(exchange: &str) -> bool {
    exchange.is_empty() || exchange.starts_with("amq.")
}

fn is_leveret(overview: &Value) -> bool {
    // It calls itself RabbitMQ, but does not have Erlang: 0.1.0 did not tell its version.
    let erlang = overview["erlang_full_version"].as_str().unwrap_or_default();
    overview["leveret_version"].is_string() || erlang.starts_with("none")
}

/// What of `all` belongs to `vhosts`, or everything if there are none, and can be had by the broker that tells `new`
/// about itself.
///
/// # Errors
///
/// When a vhost is not there.
pub(crate) fn chosen(
    mut all: Value,
    vhosts: &BTreeSet<String>,
    new: &Value,
) -> Result<Chosen, Fault> {
    let mut left_out: Vec<String> = left_out(&all).map(str::to_owned).collect();
    all.as_object_mut().map(|all| all.remove("left_out"));
    check_vhosts(vhosts, entries(&all, "vhosts"))?;
    if !vhosts.is_empty() {
        let is_in = |name: &Value| name.as_str().is_some_and(|name| vhosts.contains(name));
        for list in LISTS.iter().filter(|list| **list != "users") {
            let key = if *list == "vhosts" { "name" } else { "vhost" };
            keep(&mut all, list, |entry| is_in(&entry[key]));
        }
    }
    let mut gone = BTreeSet::new();
    if is_leveret(new) {
        leave_out_misnamed(&mut all, &mut left_out);
        keep(&mut all, "queues", |queue| {
            let is_stream =
                queue["type"] == "stream" || queue["arguments"]["x-queue-type"] == "stream";
            if is_stream {
                left_out.push(format!("queue {}: a stream, and there are none here", shown(queue)));
                gone.insert(id("queue", queue, "name"));
            }
            !is_stream
        });
        leave_out_plugins(&mut all, &mut left_out);
    }
    let kinds: BTreeSet<&str> =
        entries(new, "exchange_types").filter_map(|kind| kind["name"].as_str()).collect();
    keep(&mut all, "exchanges", |exchange| {
        let kind = exchange["type"].as_str().unwrap_or_default();
        let is_known = kinds.is_empty() || kinds.contains(kind);
        if !is_known {
            left_out.push(format!(
                "exchange {}: the new broker has no exchanges of type {kind}",
                shown(exchange)
            ));
            gone.insert(id("exchange", exchange, "name"));
        }
        is_known
    });
    keep(&mut all, "bindings", |binding| {
        let to = binding["destination_type"].as_str().unwrap_or("queue");
        !gone.contains(&id(to, binding, "destination"))
            && !gone.contains(&id("exchange", binding, "source"))
    });
    leave_out_loose(&mut all, &mut left_out);
    Ok(Chosen { document: all, left_out })
}

/// Looks for `wanted` among the entries of the old broker's vhosts.
///
/// # Errors
///
/// When one is not there.
pub(crate) fn check_vhosts<'a>(
    wanted: &BTreeSet<String>,
    vhosts: impl Iterator<Item = &'a Value>,
) -> Result<(), Fault> {
    let there: BTreeSet<&str> = vhosts.filter_map(|it| it["name"].as_str()).collect();
    match wanted.iter().find(|name| !there.contains(name.as_str())) {
        None => Ok(()),
        Some(missing) => {
            let text = format!("the old broker has no virtual host '{missing}'");
            Err(Fault::new(Code::Data, text))
        }
    }
}

/// Leaves out what has a name that Leveret gives nothing, and what belongs to such users and vhosts.
fn leave_out_misnamed(all: &mut Value, left_out: &mut Vec<String>) {
    for (list, kind, key, rest) in OWNERS {
        let mut gone = BTreeSet::new();
        keep(all, list, |entry| {
            let name = entry["name"].as_str().unwrap_or_default();
            let why = why_misnamed(name);
            if let Some(why) = &why {
                left_out.push(format!("{kind} '{}', and {rest}: {why}", cut(name)));
                gone.insert(name.to_owned());
            }
            why.is_none()
        });
        for list in LISTS {
            keep(all, list, |entry| !entry[key].as_str().is_some_and(|owner| gone.contains(owner)));
        }
    }
    for (list, kind, key) in SETTINGS {
        keep(all, list, |entry| {
            let text = |key: &str| entry[key].as_str().unwrap_or_default();
            // What is no entry at all is for the new broker to refuse.
            let Some(name) = entry[key].as_str() else { return true };
            // The default exchange has no name, and a vhost's limits are one parameter under whatever name.
            let is_any =
                key == "exchange" && name.is_empty() || text("component") == "vhost-limits";
            let why = if is_any { None } else { why_misnamed(name) };
            if let Some(why) = &why {
                let vhost =
                    entry["vhost"].as_str().map(|name| format!(" in vhost '{}'", cut(name)));
                let vhost = vhost.unwrap_or_default();
                left_out.push(format!("{kind} '{}'{vhost}: {why}", cut(name)));
            }
            why.is_none()
        });
    }
}

fn why_misnamed(name: &str) -> Option<String> {
    match name.len() {
        0 => Some("it has no name".to_owned()),
        1..=NAME_MAX => None,
        len => Some(format!("its name has {len} bytes, and {NAME_MAX} are the most")),
    }
}

/// The beginning of a name that may be long.
fn cut(name: &str) -> String {
    match name.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}...", &name[..end]),
        None => name.to_owned(),
    }
}

/// Leaves out what belongs to plugins of RabbitMQ that Leveret has not. What else it does not know, it tells itself.
fn leave_out_plugins(all: &mut Value, left_out: &mut Vec<String>) {
    keep(all, "parameters", |parameter| {
        let component = parameter["component"].as_str().unwrap_or_default();
        let is_there = COMPONENTS.contains(&component);
        if !is_there {
            left_out
                .push(format!("parameter {}: component {component} not found", shown(parameter)));
        }
        is_there
    });
    keep(all, "policies", |policy| {
        let mut settings = policy["definition"].as_object().into_iter().flat_map(|it| it.keys());
        let of_plugin = settings.find(|key| OF_PLUGINS.contains(&key.as_str()));
        if let Some(key) = of_plugin {
            let policy = shown(policy);
            left_out.push(format!("policy {policy}: {key} is of a plugin that is not there"));
        }
        of_plugin.is_none()
    });
}

/// Leaves out bindings of what is not in the document: RabbitMQ has those of exclusive queues in it without the queues,
/// and an import ends at the first of them.
fn leave_out_loose(all: &mut Value, left_out: &mut Vec<String>) {
    let mut there: BTreeSet<_> = entries(all, "queues").map(|it| id("queue", it, "name")).collect();
    there.extend(entries(all, "exchanges").map(|it| id("exchange", it, "name")));
    let mut loose: BTreeMap<[String; 3], usize> = BTreeMap::new();
    keep(all, "bindings", |binding| {
        let to = binding["destination_type"].as_str().unwrap_or("queue");
        let ends = [id("exchange", binding, "source"), id(to, binding, "destination")];
        let is_there = |end: &[String; 3]| {
            there.contains(end) || end[0] == "exchange" && is_predeclared(&end[2])
        };
        let missing = ends.into_iter().find(|end| !is_there(end));
        let is_kept = missing.is_none();
        missing.into_iter().for_each(|end| *loose.entry(end).or_default() += 1);
        is_kept
    });
    let lines = loose.iter().take(LINES_MAX).map(|([kind, vhost, name], count)| {
        format!("{count} bindings of {kind} '{name}' in vhost '{vhost}', which is not in the definitions")
    });
    left_out.extend(lines);
    if let Some(more) = loose.len().checked_sub(LINES_MAX).filter(|&more| more > 0) {
        left_out.push(format!(
            "bindings of {more} more queues and exchanges that are not in the definitions"
        ));
    }
}

/// What the new broker has already, by the same name and otherwise, a sentence for each. An import leaves those as they
/// are.
pub(crate) fn different(document: &Value, queues: &[Value], exchanges: &[Value]) -> Vec<String> {
    let mut told = Vec::new();
    for (list, kind, there) in [("queues", "queue", queues), ("exchanges", "exchange", exchanges)] {
        let there: BTreeMap<_, _> = there.iter().map(|it| (id(kind, it, "name"), it)).collect();
        for entry in entries(document, list) {
            let Some(other) = there.get(&id(kind, entry, "name")) else { continue };
            let (ours, theirs) = (facts(kind, entry), facts(kind, other));
            let differs = ours.iter().zip(&theirs).filter(|((_, new), (_, old))| new != old);
            let words: Vec<_> =
                differs.map(|((name, new), (_, old))| format!("{name} {old}, not {new}")).collect();
            if !words.is_empty() {
                let (shown, words) = (shown(entry), words.join("; "));
                told.push(format!("{kind} {shown} is there already, and stays as it is: {words}"));
            }
        }
    }
    if let Some(more) = told.len().checked_sub(LINES_MAX).filter(|&more| more > 0) {
        told.truncate(LINES_MAX);
        told.push(format!("{more} more queues and exchanges are there already, and differ"));
    }
    told
}

/// What a declaration would compare, in one form: what is empty or the default may be missing, and a queue has its type twice.
fn facts(kind: &str, entry: &Value) -> Vec<(&'static str, Value)> {
    let flag = |key: &'static str| (key, Value::Bool(entry[key] == true));
    let mut arguments = entry["arguments"].as_object().cloned().unwrap_or_default();
    let of_arguments = arguments.remove("x-queue-type");
    let of_entry = Some(&entry["type"]).filter(|it| it.is_string()).cloned();
    let kind_of = of_arguments.or(of_entry).unwrap_or_else(|| "classic".into());
    let mut facts = vec![("type", kind_of), flag("durable"), flag("auto_delete")];
    if kind == "exchange" {
        facts.push(flag("internal"));
    }
    facts.push(("arguments", Value::Object(arguments)));
    facts
}

fn entries<'a>(document: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> {
    document[list].as_array().into_iter().flatten()
}

fn keep(document: &mut Value, list: &str, is_kept: impl FnMut(&Value) -> bool) {
    if let Some(entries) = document.get_mut(list).and_then(Value::as_array_mut) {
        entries.retain(is_kept);
    }
}

/// What a binding may be of: kind, vhost, name.
fn id(kind: &str, entry: &Value, name: &str) -> [String; 3] {
    let text = |key: &str| entry[key].as_str().unwrap_or_default().to_owned();
    [kind.to_owned(), text("vhost"), text(name)]
}

fn shown(entry: &Value) -> String {
    let text = |key: &str| entry[key].as_str().unwrap_or_default();
    format!("'{}' in vhost '{}'", text("name"), text("vhost"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn definitions() -> Value {
        json!({
            "users": [{"name": "u"}],
            "vhosts": [{"name": "/"}, {"name": "v"}],
            "permissions": [{"user": "u", "vhost": "/"}, {"user": "u", "vhost": "v"}],
            "queues": [
                {"name": "q", "vhost": "/", "type": "classic"},
                {"name": "s", "vhost": "/", "arguments": {"x-queue-type": "stream"}},
                {"name": "q", "vhost": "v"},
            ],
            "exchanges": [
                {"name": "late", "vhost": "v", "type": "x-delayed-message"},
                {"name": "x", "vhost": "v", "type": "topic"},
            ],
            "bindings": [
                {"vhost": "/", "source": "amq.topic", "destination": "s", "destination_type": "queue"},
                {"vhost": "v", "source": "late", "destination": "q", "destination_type": "queue"},
                {"vhost": "v", "source": "x", "destination": "late", "destination_type": "exchange"},
                {"vhost": "v", "source": "x", "destination": "q", "destination_type": "queue"},
            ],
        })
    }

    fn leveret() -> Value {
        json!({"leveret_version": "0.2.0", "exchange_types": [{"name": "topic"}, {"name": "direct"}]})
    }

    #[test]
    fn what_the_new_broker_has_not_is_left_out_with_its_bindings() {
        let chosen = chosen(definitions(), &BTreeSet::new(), &leveret()).unwrap();
        let want = [
            "queue 's' in vhost '/': a stream, and there are none here",
            "exchange 'late' in vhost 'v': the new broker has no exchanges of type x-delayed-message",
        ];
        assert_eq!(chosen.left_out, want);
        let kept = json!([{
            "vhost": "v", "source": "x", "destination": "q", "destination_type": "queue"
        }]);
        assert_eq!(chosen.document["bindings"], kept);
        assert!(chosen.counts().contains("1 users, 2 vhosts"), "{}", chosen.counts());
        assert!(chosen.counts().contains("1 exchanges, 2 queues"), "{}", chosen.counts());
    }

    /// An import is refused as a whole for one of these.
    #[test]
    fn names_that_the_new_broker_gives_nothing_are_left_out_and_told() {
        let long = "n".repeat(256);
        let mut all = definitions();
        let mut add = |list: &str, entries: Value| {
            let own = all[list].take();
            let all_of = [own, entries].map(|it| it.as_array().cloned().unwrap_or_default());
            all[list] = all_of.concat().into();
        };
        add("users", json!([{"name": ""}, {"name": long}]));
        add("vhosts", json!([{"name": long}]));
        add("permissions", json!([{"user": "", "vhost": "/"}, {"user": "u", "vhost": long}]));
        add(
            "topic_permissions",
            json!([
                {"user": "u", "vhost": "/", "exchange": ""}, {"user": "u", "vhost": "/", "exchange": long},
                {"user": long, "vhost": "/", "exchange": "x"},
            ]),
        );
        add(
            "policies",
            json!([
                {"name": long, "vhost": "/"}, {"name": "p", "vhost": "/"}, {"name": "p", "vhost": long},
            ]),
        );
        add(
            "parameters",
            json!([
                {"component": "operator_policy", "name": "", "vhost": "/"},
                {"component": "vhost-limits", "name": "", "vhost": "/"},
            ]),
        );
        add("global_parameters", json!([{"name": long}, {"name": "g"}, {"value": 1}]));
        add("queues", json!([{"name": "q", "vhost": long}]));
        add("exchanges", json!([{"name": "y", "vhost": long, "type": "topic"}]));
        add(
            "bindings",
            json!([
                {"vhost": long, "source": "y", "destination": "q", "destination_type": "queue"},
            ]),
        );
        let chosen = chosen(all, &BTreeSet::new(), &leveret()).unwrap();
        let (begin, why) = ("n".repeat(60), "its name has 256 bytes, and 255 are the most");
        let want = [
            "user '', and its permissions: it has no name",
            &format!("user '{begin}...', and its permissions: {why}"),
            &format!("virtual host '{begin}...', and all that is in it: {why}"),
            &format!("topic permissions of exchange '{begin}...' in vhost '/': {why}"),
            &format!("policy '{begin}...' in vhost '/': {why}"),
            "parameter '' in vhost '/': it has no name",
            &format!("global parameter '{begin}...': {why}"),
        ];
        assert_eq!(chosen.left_out[..want.len()], want);
        let document = chosen.document;
        for list in ["users", "vhosts", "permissions"] {
            assert_eq!(document[list], definitions()[list], "{list}");
        }
        let count = |list: &str| document[list].as_array().map_or(0, Vec::len);
        let lists = ["topic_permissions", "policies", "parameters", "global_parameters"];
        assert_eq!(
            lists.map(count),
            [1, 1, 1, 2],
            "what has no key for a name is no matter of names"
        );
        assert_eq!(["queues", "exchanges", "bindings"].map(count), [2, 1, 1]);
    }

    #[test]
    fn internal_exchanges_come_with_their_bindings() {
        let mut all = definitions();
        all["bindings"] = json!([
            {"vhost": "v", "source": "x", "destination": "inner", "destination_type": "exchange"},
            {"vhost": "v", "source": "inner", "destination": "q", "destination_type": "queue"},
            {"vhost": "v", "source": "link", "destination": "q", "destination_type": "queue"},
            {"vhost": "v", "source": "amq.direct", "destination": "q", "destination_type": "queue"},
        ]);
        let inner = json!({"vhost": "v", "name": "inner", "type": "topic", "internal": true});
        let exchanges = json!([
            {"vhost": "v", "name": "", "type": "direct", "internal": false},
            {"vhost": "v", "name": "amq.rabbitmq.trace", "type": "topic", "internal": true},
            {"vhost": "v", "name": "x", "type": "topic", "internal": true},
            {"vhost": "v", "name": "gone", "type": "topic", "internal": false},
            inner,
            {"vhost": "v", "name": "link", "type": "x-federation-upstream", "internal": true},
        ]);
        add_internal(&mut all, &exchanges).unwrap();
        let chosen = chosen(all, &BTreeSet::from(["v".to_owned()]), &leveret()).unwrap();
        assert_eq!(chosen.document["exchanges"], json!([definitions()["exchanges"][1], inner]));
        let bindings = chosen.document["bindings"].as_array().unwrap();
        assert_eq!(bindings.len(), 3, "all but the link's");
        assert_eq!(chosen.left_out.len(), 2, "{:?}", chosen.left_out);
        assert!(chosen.left_out[1].contains("x-federation-upstream"), "{:?}", chosen.left_out);
    }

    #[test]
    fn bindings_of_what_is_not_there_are_left_out_and_told() {
        let mut all = definitions();
        let bindings = (0..30).flat_map(|at| {
            let binding = json!({
                "vhost": "v", "source": "amq.topic", "destination": format!("amq.gen-{at:02}"),
                "destination_type": "queue"
            });
            [binding.clone(), binding]
        });
        all["bindings"] = bindings.collect();
        let chosen = chosen(all, &BTreeSet::from(["v".to_owned()]), &leveret()).unwrap();
        assert_eq!(chosen.document["bindings"], json!([]));
        assert_eq!(chosen.left_out.len(), 1 + LINES_MAX + 1);
        assert_eq!(
            chosen.left_out[1],
            "2 bindings of queue 'amq.gen-00' in vhost 'v', which is not in the definitions"
        );
        assert!(chosen.left_out[LINES_MAX + 1].starts_with("bindings of 10 more"));
    }

    #[test]
    fn what_is_there_already_and_differs_is_told() {
        let document = json!({
            "queues": [
                {"name": "same", "vhost": "/", "durable": true, "type": "classic", "arguments": {}},
                {"name": "q", "vhost": "/", "durable": true, "arguments": {"x-queue-type": "quorum"}},
                {"name": "new", "vhost": "/", "durable": true},
            ],
            "exchanges": [
                {"name": "same", "vhost": "/", "type": "topic", "durable": true, "arguments": {}},
                {"name": "x", "vhost": "/", "type": "topic", "durable": true},
            ],
        });
        let kind = json!({"x-queue-type": "classic"});
        let queues = [
            json!({"name": "same", "vhost": "/", "durable": true, "auto_delete": false, "arguments": kind}),
            json!({"name": "q", "vhost": "/", "durable": false, "arguments": {"x-max-length": 1}}),
            json!({"name": "new", "vhost": "v", "durable": false}),
        ];
        let exchanges = [
            json!({"name": "same", "vhost": "/", "type": "topic", "durable": true, "internal": false}),
            json!({"name": "x", "vhost": "/", "type": "direct", "durable": true, "internal": true}),
        ];
        let want = [
            "queue 'q' in vhost '/' is there already, and stays as it is: type \"classic\", not \"quorum\"; \
             durable false, not true; arguments {\"x-max-length\":1}, not {}",
            "exchange 'x' in vhost '/' is there already, and stays as it is: type \"direct\", not \"topic\"; \
             internal true, not false",
        ];
        assert_eq!(different(&document, &queues, &exchanges), want);
        let many: Vec<_> =
            (0..30).map(|at| json!({"name": at.to_string(), "vhost": "/"})).collect();
        let durable = many.iter().cloned().map(|mut it| {
            it["durable"] = true.into();
            it
        });
        let told = different(&json!({"queues": durable.collect::<Vec<_>>()}), &many, &[]);
        assert_eq!(told.len(), LINES_MAX + 1);
        assert_eq!(told[LINES_MAX], "10 more queues and exchanges are there already, and differ");
    }

    #[test]
    fn one_vhost_comes_with_all_users() {
        let one = BTreeSet::from(["v".to_owned()]);
        let chosen = chosen(definitions(), &one, &leveret()).unwrap().document;
        assert_eq!(chosen["users"], json!([{"name": "u"}]));
        assert_eq!(chosen["vhosts"], json!([{"name": "v"}]));
        assert_eq!(chosen["permissions"], json!([{"user": "u", "vhost": "v"}]));
        assert_eq!(chosen["queues"], json!([{"name": "q", "vhost": "v"}]));
        let none = BTreeSet::from(["w".to_owned()]);
        let told = super::chosen(definitions(), &none, &leveret()).unwrap_err().text;
        assert_eq!(told, "the old broker has no virtual host 'w'");
    }

    #[test]
    fn another_broker_may_have_streams_and_is_not_given_what_it_refuses() {
        let rabbitmq = json!({"product_name": "RabbitMQ", "erlang_full_version": "Erlang/OTP 25"});
        assert_eq!(query(&rabbitmq), "/api/definitions?for=rabbitmq");
        let four = json!({"erlang_full_version": "Erlang/OTP 29", "rabbitmq_version": "4.3.6"});
        assert_eq!(query(&four), "/api/definitions?for=rabbitmq-4");
        assert_eq!(query(&leveret()), "/api/definitions");
        let mut all = definitions();
        all["left_out"] = json!(["policy 'p'"]);
        let chosen = chosen(all, &BTreeSet::new(), &rabbitmq).unwrap();
        assert_eq!(chosen.left_out, ["policy 'p'"]);
        assert_eq!(chosen.document["queues"], definitions()["queues"]);
        assert_eq!(chosen.document.get("left_out"), None);
    }
}
