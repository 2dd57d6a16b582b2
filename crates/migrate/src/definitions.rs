//! The definitions that are taken along, and those that are not.

use std::collections::BTreeSet;

use leveret_ctl::{Code, Fault};
use serde_json::Value;

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
    if is_leveret(new) { "/api/definitions" } else { "/api/definitions?for=rabbitmq" }
}

fn is_leveret(overview: &Value) -> bool {
    // It may be told to call itself RabbitMQ, but not to have Erlang.
    let erlang = overview["erlang_full_version"].as_str().unwrap_or_default();
    overview["product_name"] == "Leveret" || erlang.starts_with("none")
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
    let mut left_out: Vec<String> = Vec::new();
    if let Some(told) = all.as_object_mut().and_then(|all| all.remove("left_out")) {
        let told = told.as_array().into_iter().flatten();
        left_out.extend(told.filter_map(|text| text.as_str().map(str::to_owned)));
    }
    let there: BTreeSet<&str> =
        entries(&all, "vhosts").filter_map(|it| it["name"].as_str()).collect();
    if let Some(missing) = vhosts.iter().find(|name| !there.contains(name.as_str())) {
        let text = format!("the old broker has no virtual host '{missing}'");
        return Err(Fault::new(Code::Data, text));
    }
    if !vhosts.is_empty() {
        let is_in = |name: &Value| name.as_str().is_some_and(|name| vhosts.contains(name));
        for list in LISTS.iter().filter(|list| **list != "users") {
            let key = if *list == "vhosts" { "name" } else { "vhost" };
            keep(&mut all, list, |entry| is_in(&entry[key]));
        }
    }
    let mut gone = BTreeSet::new();
    if is_leveret(new) {
        keep(&mut all, "queues", |queue| {
            let is_stream =
                queue["type"] == "stream" || queue["arguments"]["x-queue-type"] == "stream";
            if is_stream {
                left_out.push(format!("queue {}: a stream, and there are none here", shown(queue)));
                gone.insert(id("queue", queue, "name"));
            }
            !is_stream
        });
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
    Ok(Chosen { document: all, left_out })
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
        json!({"product_name": "Leveret", "exchange_types": [{"name": "topic"}, {"name": "direct"}]})
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
        assert_eq!(query(&leveret()), "/api/definitions");
        let mut all = definitions();
        all["left_out"] = json!(["policy 'p'"]);
        let chosen = chosen(all, &BTreeSet::new(), &rabbitmq).unwrap();
        assert_eq!(chosen.left_out, ["policy 'p'"]);
        assert_eq!(chosen.document["queues"], definitions()["queues"]);
        assert_eq!(chosen.document.get("left_out"), None);
    }
}
