//! The queues of the old broker, and what of them its API tells.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::Duration;

use fancy_regex::Regex;
use leveret_ctl::{Api, Fault};
use serde_json::Value;

use crate::report::Row;

/// What is asked of each queue.
const PATH: &str = "/api/queues?columns=vhost,name,type,exclusive,auto_delete,messages_ready,messages_unacknowledged";

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
    pub(crate) is_exclusive: bool,
    /// It goes with its last consumer, and must have none of ours.
    pub(crate) is_auto_delete: bool,
    /// Messages that were ready, as far as the API knew.
    pub(crate) ready: u64,
    /// Messages that somebody had and had not acked, as far as the API knew.
    pub(crate) unacked: u64,
}

impl Queue {
    fn read(row: &Value) -> Self {
        let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
        let number = |key: &str| row[key].as_u64().unwrap_or(0);
        Self {
            vhost: text("vhost"),
            name: text("name"),
            kind: text("type"),
            is_exclusive: row["exclusive"] == true,
            is_auto_delete: row["auto_delete"] == true,
            ready: number("messages_ready"),
            unacked: number("messages_unacknowledged"),
        }
    }

    /// Why its messages cannot be moved, whoever asks.
    pub(crate) fn why_not(&self) -> Option<&'static str> {
        if self.is_exclusive {
            return Some("it belongs to one connection and goes with it");
        }
        self.is_stream().then_some("a stream, whose messages cannot be taken out")
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
    let all = api.get(PATH)?;
    let rows = all.as_array().into_iter().flatten().map(Queue::read);
    let is_in = |queue: &Queue| vhosts.is_empty() || vhosts.contains(&queue.vhost);
    let matches = |queue: &Queue| {
        // A pattern that takes too long to decide does not match.
        let one = |pattern: &Regex| pattern.is_match(&queue.name).unwrap_or(false);
        patterns.is_empty() || patterns.iter().any(one)
    };
    let mut queues: Vec<_> = rows.filter(|queue| is_in(queue) && matches(queue)).collect();
    queues.sort();
    Ok(queues)
}

/// Tells in each row how many messages others have and have not acked. Waits for the API to have counted anew.
pub(crate) fn await_acks(api: &Api, rows: &mut [Row]) -> Result<(), Fault> {
    for second in 0..=COUNTED_AFTER_S {
        let all = api.get(PATH)?;
        let counted = all.as_array().into_iter().flatten().map(Queue::read);
        let unacked: BTreeMap<_, _> =
            counted.map(|queue| ((queue.vhost, queue.name), queue.unacked)).collect();
        let mut is_clear =
            second >= TAKEN_AFTER_S || rows.iter().all(|row| row.outcome.consumers == 0);
        for row in rows.iter_mut() {
            let id = (row.vhost.clone(), row.queue.clone());
            row.unacked = unacked.get(&id).copied().unwrap_or(0);
            is_clear &= row.unacked == 0;
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
