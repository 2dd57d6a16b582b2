//! The queues of the old broker, and what of them its API tells.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::Duration;

use fancy_regex::Regex;
use leveret_ctl::{Api, Code, Fault};
use serde_json::Value;

use crate::definitions::NAME_MAX;
use crate::limits::Limits;
use crate::report::Row;

/// What is asked of each queue.
const PATH: &str = "/api/queues?columns=vhost,name,type,state,exclusive,auto_delete,messages_ready,\
                    message_bytes_ready,messages_unacknowledged";

/// What is asked of each queue of the new broker.
const LIMITS: &str = "/api/queues?columns=vhost,name,messages_ready,message_bytes_ready,arguments,\
                      effective_policy_definition";

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
    /// Bytes of their bodies.
    ready_bytes: u64,
    /// Messages that somebody had and had not acked, as far as the API knew.
    pub(crate) unacked: u64,
    /// What its namesake on the new broker keeps; none if that is not known.
    pub(crate) limits: Option<Limits>,
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
            ready_bytes: number("message_bytes_ready"),
            unacked: number("messages_unacknowledged"),
            limits: None,
        })
    }

    /// Why its messages cannot be moved, whoever asks.
    pub(crate) fn why_not(&self) -> Option<String> {
        if let Some(why) = unopened(&self.vhost) {
            return Some(why);
        }
        if self.is_exclusive {
            return Some("it belongs to one connection and goes with it".to_owned());
        }
        if self.is_stream() {
            return Some("a stream, whose messages cannot be taken out".to_owned());
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

    /// Why its namesake on the new broker, that has `there` messages, would drop some if these so many came.
    pub(crate) fn why_no_room(&self, count: u64, there: u64) -> Option<String> {
        // The API's bytes are of a time before; they say nothing of a queue from which messages were taken since.
        let bytes = if count < self.ready { 0 } else { self.ready_bytes };
        self.limits.as_ref()?.room(there).why_not(count, bytes)
    }

    /// Why its messages would not be moved, as far as the APIs knew.
    pub(crate) fn why_not_yet(&self) -> Option<String> {
        let there = self.limits.as_ref().map_or(0, |limits| limits.ready);
        self.why_not().or_else(|| self.why_no_room(self.ready, there))
    }

    pub(crate) fn is_stream(&self) -> bool {
        self.kind == "stream"
    }
}

/// Why no client can open a vhost.
pub(crate) fn unopened(vhost: &str) -> Option<String> {
    let text = "no client can open a virtual host with so long a name";
    (vhost.len() > NAME_MAX).then(|| text.to_owned())
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

/// The patterns that match none of these queues.
pub(crate) fn unmatched<'a>(queues: &[Queue], patterns: &'a [Regex]) -> Vec<&'a Regex> {
    let is_of = |pattern: &Regex, queue: &Queue| pattern.is_match(&queue.name).unwrap_or(true);
    let all = patterns.iter();
    all.filter(|pattern| !queues.iter().any(|queue| is_of(pattern, queue))).collect()
}

/// Every queue that the API tells of.
fn all(api: &Api) -> Result<Vec<Queue>, Fault> {
    list(&api.get(PATH)?)?.iter().map(Queue::read).collect()
}

/// Notes what each one's namesake on the new broker keeps.
pub(crate) fn note_limits(new: &Api, queues: &mut [Queue]) -> Result<(), Fault> {
    let answer = new.get(LIMITS)?;
    let mut limits = BTreeMap::new();
    for row in list(&answer)? {
        limits.insert((row["vhost"].as_str(), row["name"].as_str()), Limits::read(row));
    }
    for queue in queues {
        let id = (Some(queue.vhost.as_str()), Some(queue.name.as_str()));
        queue.limits = Some(limits.get(&id).cloned().unwrap_or_default());
    }
    Ok(())
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
