//! Secrets in what others set: passwords in addresses, and what is called a password.
//!
//! Parameters are whatever a component wants them to be; those of shovels and federation hold addresses with
//! names and passwords. Who may set them may see them. Whoever else is told of them is told without.

use serde_json::{Map, Value as Json};

/// What stands where a secret was.
const HIDDEN: &str = "***";

/// Names of what is a secret, wherever they stand in a key.
const NAMES: [&str; 8] =
    ["password", "passwd", "passphrase", "secret", "token", "credential", "private", "api_key"];

/// The same without secrets. Nesting is bounded by what parses JSON.
pub(crate) fn without_secrets(value: &Json) -> Json {
    match value {
        Json::String(text) => Json::String(in_text(text)),
        Json::Array(all) => all.iter().map(without_secrets).collect(),
        Json::Object(all) => {
            let hidden = |(key, value): (&String, &Json)| {
                let is_secret = is_name(key) && !matches!(value, Json::Null | Json::Bool(_));
                let value = if is_secret { Json::from(HIDDEN) } else { without_secrets(value) };
                (key.clone(), value)
            };
            Json::Object(all.iter().map(hidden).collect::<Map<_, _>>())
        }
        other => other.clone(),
    }
}

fn is_name(key: &str) -> bool {
    let key = key.to_ascii_lowercase().replace('-', "_");
    NAMES.iter().any(|name| key.contains(name))
}

/// A text whose addresses have neither user and password nor secrets in their queries. An address ends where
/// a space does; everything up to its last `@` goes, since passwords are not always written as they should be.
fn in_text(text: &str) -> String {
    let mut made = String::with_capacity(text.len());
    for word in text.split_inclusive(char::is_whitespace) {
        let Some((scheme, rest)) = word.split_once("://") else {
            made.push_str(word);
            continue;
        };
        made.push_str(scheme);
        made.push_str("://");
        let rest = match rest.rsplit_once('@') {
            Some((_, rest)) => {
                made.push_str(HIDDEN);
                made.push('@');
                rest
            }
            None => rest,
        };
        let mut parts = rest.split_inclusive(['?', '&', ';']);
        made.push_str(parts.next().unwrap_or_default());
        for part in parts {
            match part.split_once('=') {
                Some((key, value)) if is_name(key) => {
                    let end =
                        value.trim_end_matches(|c: char| c.is_whitespace() || "&;?".contains(c));
                    made.push_str(key);
                    made.push('=');
                    made.push_str(HIDDEN);
                    made.push_str(&value[end.len()..]);
                }
                _ => made.push_str(part),
            }
        }
    }
    made
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn addresses() {
        #[track_caller]
        fn check(text: &str, want: &str) {
            assert_eq!(in_text(text), want, "{text}");
        }
        check("",                                      "");
        check("queue.declare ok",                      "queue.declare ok");
        check("someone@example.com",                   "someone@example.com");
        check("amqp://h:5672/v",                       "amqp://h:5672/v");
        check("amqp://u:p@h:5672/v",                   "amqp://***@h:5672/v");
        check("amqp://u@h",                            "amqp://***@h");
        check("amqps://u:p%40@h/%2F?heartbeat=5",      "amqps://***@h/%2F?heartbeat=5");
        check("amqp://u:p@ss/w?rd@h",                  "amqp://***@h");
        check("amqp://u:p@h1 amqp://u:q@h2\n",         "amqp://***@h1 amqp://***@h2\n");
        check("amqp://u:p@h1,amqp://u:q@h2",           "amqp://***@h2");
        check("amqp://u:p%20@q@h/v?password=x",        "amqp://***@h/v?password=***");
        check("amqps://h?password=x&cacertfile=/c",    "amqps://h?password=***&cacertfile=/c");
        check("amqps://h?a=b&keyfile_password=x y",    "amqps://h?a=b&keyfile_password=*** y");
    }

    #[test]
    fn parameters() {
        let value = json!({
            "src-uri": ["amqp://u:p@h1", "amqp://h2"],
            "dest-uri": "amqp://u:p@h3/v",
            "dest": {"Password": "x", "sasl-token": ["x"], "secret_id": 5, "with-password": true},
            "prefetch": 10,
        });
        let want = json!({
            "src-uri": ["amqp://***@h1", "amqp://h2"],
            "dest-uri": "amqp://***@h3/v",
            "dest": {"Password": "***", "sasl-token": "***", "secret_id": "***", "with-password": true},
            "prefetch": 10,
        });
        assert_eq!(without_secrets(&value), want);
    }
}
