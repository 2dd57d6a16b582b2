//! How much a queue of the new broker keeps: beyond that it confirms messages all the same, and drops its oldest ones.

use serde_json::Value;

/// Limits beyond which a queue drops its oldest messages, and what it had of messages when its API was asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Limits {
    /// `max-length`, of ready messages.
    length: Option<u64>,
    /// `max-length-bytes`, of the bodies of ready messages.
    bytes: Option<u64>,
    /// Ready messages and their bytes; 0 where the API has no statistics.
    pub(crate) ready: u64,
    ready_bytes: u64,
}

/// What a queue takes before it drops anything.
#[derive(Clone, Debug)]
pub(crate) struct Room {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
}

impl Limits {
    /// Of a row of the API. None where the queue refuses what does not fit.
    pub(crate) fn read(row: &Value) -> Self {
        let (arguments, policy) = (&row["arguments"], &row["effective_policy_definition"]);
        let overflow = [&arguments["x-overflow"], &policy["overflow"]];
        let overflow = overflow.iter().find_map(|it| it.as_str());
        let drops = overflow.is_none_or(|it| it == "drop-head");
        // The smaller one holds.
        let limit = |argument: &str, key: &str| {
            let limits = [&arguments[argument], &policy[key]];
            limits.iter().filter_map(|it| it.as_u64()).min().filter(|_| drops)
        };
        Self {
            length: limit("x-max-length", "max-length"),
            bytes: limit("x-max-length-bytes", "max-length-bytes"),
            ready: row["messages_ready"].as_u64().unwrap_or(0),
            ready_bytes: row["message_bytes_ready"].as_u64().unwrap_or(0),
        }
    }

    /// Room of the queue when it has so many messages.
    pub(crate) fn room(&self, ready: u64) -> Room {
        let used = if ready == 0 { 0 } else { self.ready_bytes };
        let left = |limit: Option<u64>, used| limit.map_or(u64::MAX, |it| it.saturating_sub(used));
        Room { messages: left(self.length, ready), bytes: left(self.bytes, used) }
    }

    /// Whether the queue, that has so many messages, may have dropped some: what bytes it has is not told over AMQP.
    pub(crate) fn may_have_dropped(&self, ready: u64) -> bool {
        self.bytes.is_some() || self.length.is_some_and(|length| ready >= length)
    }
}

impl Room {
    /// Why so many messages, of so many bytes together, do not fit.
    pub(crate) fn why_not(&self, messages: u64, bytes: u64) -> Option<String> {
        let (room, of, limit) = if messages > self.messages {
            (self.messages, "messages", "max-length")
        } else if bytes > self.bytes {
            (self.bytes, "bytes", "max-length-bytes")
        } else {
            return None;
        };
        Some(format!(
            "the new broker's queue has room for {room} {of}, and drops the oldest then: raise its {limit}, and run it \
             again"
        ))
    }

    /// A message takes its part.
    pub(crate) fn take(&mut self, bytes: u64) {
        self.messages = self.messages.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn rooms() {
        let max = u64::MAX;
        let check = |row: Value, ready, want| {
            let room = Limits::read(&row).room(ready);
            assert_eq!((room.messages, room.bytes), want, "{row}");
        };
        check(json!({}),                                                                                   9, (max, max));
        check(json!({"arguments": {"x-max-length": 10}}),                                                  4, (6, max));
        check(json!({"effective_policy_definition": {"max-length": 10}}),                                 40, (0, max));
        check(json!({"arguments": {"x-max-length": 7}, "effective_policy_definition": {"max-length": 9}}), 0, (7, max));
        check(json!({"arguments": {"x-max-length": 7, "x-overflow": "reject-publish"}}),                   0, (max, max));
        check(json!({"arguments": {"x-max-length": 7, "x-overflow": "drop-head"}}),                        0, (7, max));
        check(json!({"arguments": [], "effective_policy_definition": []}),                                 0, (max, max));
        check(json!({"arguments": {"x-max-length-bytes": 90}, "message_bytes_ready": 20}),                 3, (max, 70));
        // It was emptied since.
        check(json!({"arguments": {"x-max-length-bytes": 90}, "message_bytes_ready": 20}),                 0, (max, 90));
        check(json!({"arguments": {"x-max-length-bytes": 90, "x-overflow": "reject-publish-dlx"}}),        0, (max, max));
        check(json!({"effective_policy_definition": {"max-length-bytes": 9, "max-length": 2}}),            1, (1, 9));
    }
}
