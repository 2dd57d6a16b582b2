//! Rich authorization requests (RFC 9396): what a token allows, by action and place, as RabbitMQ reads it.
//!
//! ```json
//! "authorization_details": [{ "type": "rabbitmq",
//!                             "actions": ["read", "configure"],
//!                             "locations": ["cluster:prod/vhost:a/queue:orders*"] }]
//! ```

use serde_json::Value;

use crate::scope::wildcard;

/// Actions that name a tag.
const TAGS: [&str; 4] = ["monitoring", "administrator", "management", "policymaker"];
/// Actions on what a location names.
const PERMISSIONS: [&str; 3] = ["read", "write", "configure"];

/// The scopes of all details of this type that are about the resource server `id`.
pub(super) fn scopes(details: &Value, kind: &str, id: &str) -> Vec<String> {
    let mut scopes = Vec::new();
    let ours = details.as_array().into_iter().flatten().filter(|one| one["type"] == kind);
    for one in ours.filter(|_| !kind.is_empty()) {
        let places: Vec<_> = texts(&one["locations"]).filter_map(|text| place(text, id)).collect();
        for action in texts(&one["actions"]).filter(|_| !places.is_empty()) {
            if TAGS.contains(&action) {
                scopes.push(format!("{id}.tag:{action}"));
            } else if PERMISSIONS.contains(&action) {
                scopes.extend(places.iter().map(|place| format!("{id}.{action}:{place}")));
            }
        }
    }
    scopes
}

/// A text, or the texts of a list.
fn texts(value: &Value) -> impl Iterator<Item = &str> {
    let one = value.as_str();
    one.into_iter().chain(value.as_array().into_iter().flatten().filter_map(Value::as_str))
}

/// `VHOST/NAME/KEY` of a location; none if it is another cluster's, or names two things.
fn place(location: &str, id: &str) -> Option<String> {
    let attribute = |name: &str| {
        // The last one counts.
        location.rsplit('/').find_map(|part| {
            let mut words = part.split(':').filter(|word| !word.is_empty());
            if words.next() == Some(name) { words.next() } else { None }
        })
    };
    if !wildcard(attribute("cluster")?, id) {
        return None;
    }
    let (queue, exchange) = (attribute("queue"), attribute("exchange"));
    if queue.is_some() && exchange.is_some() && queue != exchange {
        return None;
    }
    let name = queue.or(exchange).unwrap_or("*");
    let vhost = attribute("vhost").unwrap_or("*");
    let key = attribute("routing-key").unwrap_or("*");
    Some(format!("{vhost}/{name}/{key}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(actions: Value, locations: Value, want: &[&str]) {
        let detail = json!({"type": "rabbitmq", "actions": actions, "locations": locations});
        let all =
            json!([detail, {"type": "other", "actions": "write", "locations": "cluster:prod"}]);
        assert_eq!(scopes(&all, "rabbitmq", "prod"), want, "{detail}");
        assert_eq!(scopes(&all, "", "prod"), [""; 0]);
    }

    #[test]
    #[rustfmt::skip] // a table
    fn details_are_scopes() {
        check(json!("read"), json!("cluster:prod"), &["prod.read:*/*/*"]);
        check(json!(["read", "write"]), json!(["cluster:prod/vhost:a/queue:q*"]), &["prod.read:a/q*/*", "prod.write:a/q*/*"]);
        check(json!("write"), json!("cluster:p*/exchange:x/routing-key:k.#"), &["prod.write:*/x/k.#"]);
        check(json!("configure"), json!(["cluster:prod/vhost:a", "cluster:*/vhost:b"]), &["prod.configure:a/*/*", "prod.configure:b/*/*"]);
        check(json!(["administrator", "fly"]), json!("cluster:prod"), &["prod.tag:administrator"]);
        check(json!("read"), json!("cluster:prod/queue:q/exchange:q"), &["prod.read:*/q/*"]);
        check(json!("read"), json!("cluster:prod/queue:q/exchange:x"), &[]); // two things
        check(json!("read"), json!("cluster:test"), &[]);                    // another cluster
        check(json!("administrator"), json!("vhost:a"), &[]);                // no cluster
        check(json!("read"), json!("cluster:prod/queue:/vhost:b/vhost:c"), &["prod.read:c/*/*"]);
        check(json!({"read": 1}), json!("cluster:prod"), &[]);
        check(json!("read"), json!(7), &[]);
    }
}
