//! The queues of the old broker, and what of them its API tells.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::Duration;

use fancy_regex::Regex;
use leveret_ctl::{Api, Code, Fault};
use serde_json::Value;

use crate::report::Row;

/// What is asked of each queue.
const PATH: &str = "/api/queues?columns=vhost,name,type,state,exclusive,auto_delete,messages_ready,messages_unacknowledged";

/// What is asked of each queue of the new broker.
const LIMITS: &str =
    "/api/queues?columns=vhost,name,messages_ready,arguments,effective_policy_definition";

/// States in which RabbitMQ has a queue and cannot get at its messages. Over AMQP a quorum queue in a minority is empty then.
const OUT_OF_REACH: [&str; 5] = ["down", "minority", "crashed", "stopped", "terminated"];

/// RabbitMQ counts a queue's messages anew every five seconds, or says that it waits longer; after so many seconds
/// what its API tells of unacked messages is not ours any more.
const COUNTED_AFTER_S: u32 = 12;

/// Where there are consumers, none is believed to have no message before so many seconds.
const TAKEN_AFTER_S: u32 = 6;

/// A queue of the old broker.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Queue {
    pub(crate) vhost: String,
    pub(crate) name: String,
    /// `classic`, `quorum`, `stream`.
    pub(crate) kind: String,
    /// `running`, `minority`, ...; empty if it is not told.
    pub(crate) state: String,
    pub(crate) is_exclusive: bool,
    /// It goes with its last consumer, and must have none of ours.
    pub(crate) is_auto_delete: bool,
    /// Messages that were ready, as far as the API knew.
    pub(crate) ready: u64,
    /// Messages that somebody had and had not acked, as far as the API knew.
    pub(crate) unacked: u64,
    /// Messages that its namesake on the new broker takes without dropping others; none without such a limit.
    pub(crate) room: Option<u64>,
}

impl Queue {
    fn read(row: &Value) -> Result<Self, Fault> {
        let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
        let number = |key: &str| row[key].as_u64().unwrap_or(0);
        if !row["vhost"].is_string() || !row["name"].is_string() {
            return Err(Fault::new(Code::Data, "it lists a queue without a name"));
        }
        Ok(Self {
            vhost: text("vhost"),
            name: text("name"),
            kind: text("type"),
            state: text("state"),
            is_exclusive: row["exclusive"] == true,
            is_auto_delete: row["auto_delete"] == true,
            ready: number("messages_ready"),
            unacked: number("messages_unacknowledged"),
            room: None,
        })
    }

    /// Why its messages cannot be moved, whoever asks.
    pub(crate) fn why_not(&self) -> Option<String> {
        if self.is_exclusive {
            return Some("it belongs to one connection and goes with it".to_owned());
        }
        if self.is_stream() {
            return Some("a stream, whose messages cannot be taken out".to_owned());
        }
        if let Some(room) = self.room.filter(|room| self.ready > *room) {
            return Some(format!(
                "the new broker's queue has room for {room} messages, and drops the oldest then: raise its max-length, \
                 and run it again"
            ));
        }
        let is_out_of_reach = OUT_OF_REACH.contains(&self.state.as_str());
        is_out_of_reach.then(|| {
            format!(
                "the old broker cannot get at its messages, its state is '{}': start the nodes that have it, and run \
                 it again",
                self.state
            )
        })
    }

    pub(crate) fn is_stream(&self) -> bool {
        self.kind == "stream"
    }
}

/// The queues of these vhosts whose names match one of the patterns; none of them is all. In order.
pub(crate) fn chosen(
    api: &Api,
    vhosts: &BTreeSet<String>,
    patterns: &[Regex],
) -> Result<Vec<Queue>, Fault> {
    let mut queues = Vec::new();
    for queue in all(api)? {
        let is_in = vhosts.is_empty() || vhosts.contains(&queue.vhost);
        if is_in && matches(patterns, &queue.name)? {
            queues.push(queue);
        }
    }
    queues.sort();
    Ok(queues)
}

/// Every queue that the API tells of.
fn all(api: &Api) -> Result<Vec<Queue>, Fault> {
    list(&api.get(PATH)?)?.iter().map(Queue::read).collect()
}

/// Notes how many messages each one's namesake on the new broker takes.
pub(crate) fn note_room(new: &Api, queues: &mut [Queue]) -> Result<(), Fault> {
    let answer = new.get(LIMITS)?;
    let mut rooms = BTreeMap::new();
    for row in list(&answer)? {
        rooms.insert((row["vhost"].as_str(), row["name"].as_str()), room(row));
    }
    for queue in queues {
        let id = (Some(queue.vhost.as_str()), Some(queue.name.as_str()));
        queue.room = rooms.get(&id).copied().flatten();
    }
    Ok(())
}

/// How many messages a queue takes without dropping others; none if it keeps all, or refuses what does not fit.
fn room(row: &Value) -> Option<u64> {
    let (arguments, policy) = (&row["arguments"], &row["effective_policy_definition"]);
    let overflow = [&arguments["x-overflow"], &policy["overflow"]];
    let refuses = overflow.iter().find_map(|it| it.as_str()).is_some_and(|it| it != "drop-head");
    // The smaller one holds.
    let limits = [&arguments["x-max-length"], &policy["max-length"]];
    let limit = limits.iter().filter_map(|it| it.as_u64()).min().filter(|_| !refuses)?;
    Some(limit.saturating_sub(row["messages_ready"].as_u64().unwrap_or(0)))
}

/// The entries of an answer that has to be a list: nothing at all is not the same as none.
pub(crate) fn list(answer: &Value) -> Result<&[Value], Fault> {
    let list = answer.as_array().map(Vec::as_slice);
    list.ok_or_else(|| Fault::new(Code::Data, "its answer is no list"))
}

/// Whether one of the patterns matches a name; none of them is all names.
fn matches(patterns: &[Regex], name: &str) -> Result<bool, Fault> {
    for pattern in patterns {
        match pattern.is_match(name) {
            Ok(true) => return Ok(true),
            Ok(false) => {}
            // A queue that is left out without a word would be lost with the old broker.
            Err(error) => {
                let text = format!("--queue {pattern}: for the queue '{name}': {error}");
                return Err(Fault::new(Code::Usage, text));
            }
        }
    }
    Ok(patterns.is_empty())
}

/// Tells in each row how many messages others have and have not acked, and whether the API knows of messages where AMQP
/// has none. Waits for the API to have counted anew.
pub(crate) fn await_acks(api: &Api, rows: &mut [Row]) -> Result<(), Fault> {
    for second in 0..=COUNTED_AFTER_S {
        let counted: BTreeMap<_, _> = all(api)?
            .into_iter()
            .map(|queue| ((queue.vhost, queue.name), (queue.ready, queue.unacked)))
            .collect();
        let mut is_clear =
            second >= TAKEN_AFTER_S || rows.iter().all(|row| row.outcome.consumers == 0);
        for row in rows.iter_mut() {
            let id = (row.vhost.clone(), row.queue.clone());
            let (ready, unacked) = counted.get(&id).copied().unwrap_or_default();
            row.unacked = unacked;
            let is_doubtful = row.is_empty_before_all() && ready > 0;
            is_clear &= unacked == 0 && !is_doubtful;
            if is_doubtful && second == COUNTED_AFTER_S {
                row.doubt(ready);
            }
        }
        if is_clear {
            break;
        }
        if second < COUNTED_AFTER_S {
            thread::sleep(Duration::from_secs(1));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn rooms() {
        let check = |row: Value, want| assert_eq!(room(&row), want, "{row}");
        check(json!({}),                                                                                  None);
        check(json!({"arguments": {"x-max-length": 10}, "messages_ready": 4}),                            Some(6));
        check(json!({"effective_policy_definition": {"max-length": 10}, "messages_ready": 40}),           Some(0));
        check(json!({"arguments": {"x-max-length": 7}, "effective_policy_definition": {"max-length": 9}}), Some(7));
        check(json!({"arguments": {"x-max-length": 7, "x-overflow": "reject-publish"}}),                  None);
        check(json!({"arguments": {"x-max-length": 7, "x-overflow": "drop-head"}}),                       Some(7));
        check(json!({"arguments": [], "effective_policy_definition": []}),                                None);
    }
}
