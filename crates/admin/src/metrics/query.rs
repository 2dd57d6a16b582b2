//! What an address asks for behind its `?`.

use percent_encoding::percent_decode_str;

use super::page::Filter;
use crate::http::pattern::Pattern;

/// Longest pattern for names of queues, in bytes, as in RabbitMQ.
const QUEUE_PATTERN_MAX: usize = 2000;

/// Most groups and vhosts that are named: each is looked for in each row.
const NAMES_MAX: usize = 1000;

/// Reads `family=..&vhost=..&queue=..`.
pub(super) fn filter(query: &str) -> Result<Filter, String> {
    let mut filter = Filter::default();
    let mut pattern: Option<String> = None;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = value.replace('+', " ");
        let value = percent_decode_str(&value).decode_utf8_lossy().into_owned();
        match name {
            "family" | "vhost" if filter.names() >= NAMES_MAX => {
                return Err(format!("At most {NAMES_MAX} families and vhosts may be named"));
            }
            "family" => filter.families.push(value),
            "vhost" => filter.vhosts.get_or_insert_default().push(value),
            "queue" if pattern.is_some() => {
                return Err("Only one 'queue' query parameter is allowed".to_owned());
            }
            "queue" => pattern = Some(value),
            _ => {}
        }
    }
    let Some(pattern) = pattern.filter(|pattern| !pattern.is_empty()) else { return Ok(filter) };
    if pattern.len() > QUEUE_PATTERN_MAX {
        return Err("'queue' regex too long".to_owned());
    }
    let pattern = Pattern::of(&pattern, false);
    filter.queue = Some(pattern.map_err(|error| format!("Invalid 'queue' regex: {error}"))?);
    Ok(filter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries() {
        let found =
            filter("family=queue_metrics&family=x&vhost=%2F&vhost=a+b&queue=%5Eq&y").unwrap();
        assert_eq!(found.families, ["queue_metrics", "x"]);
        assert_eq!(found.vhosts.as_deref(), Some(&["/".to_owned(), "a b".to_owned()][..]));
        assert!(found.queue.is_some_and(|queue| queue.is_in("q1") == Ok(true)));
        assert!(filter("").unwrap().vhosts.is_none());
        for bad in [
            "queue=(",
            "queue=%5E(.%7C.)%2B%5C1!$",
            "queue=a&queue=b",
            &format!("queue={}", "a".repeat(2001)),
        ] {
            assert!(filter(bad).is_err(), "{bad}");
        }
    }
}
