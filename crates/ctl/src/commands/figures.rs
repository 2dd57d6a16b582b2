//! Figures of the node: sizes of messages, time of threads.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Command, Tools, value};
use crate::call::{Answer, Call};
use crate::columns;
use crate::fault::Fault;

/// RabbitMQ's words for ranges of sizes; the bounds are its own.
const RANGES: [&str; 9] = [
    "below 100B",
    "between 100B and 1KB",
    "between 1KB and 10KB",
    "between 10KB and 100KB",
    "between 100KB and 1MB",
    "between 1MB and 10MB",
    "between 10MB and 50MB",
    "between 50MB and 100MB",
    "above 100MB",
];

/// A part of a whole in hundredths, two places behind the point.
fn percentage(part: f64, whole: f64) -> String {
    format!("{:.2}", if whole > 0.0 { part / whole * 100.0 } else { 0.0 })
}

fn message_sizes(it: &mut Call<'_>) -> Result<Answer, Fault> {
    let told = it.get("/api/leveret/message-sizes")?;
    let counts = told["sizes"].as_array().into_iter().flatten();
    let counts: Vec<u64> = counts.map(|row| row["count"].as_u64().unwrap_or_default()).collect();
    let total: u64 = counts.iter().sum();
    let rows = RANGES.into_iter().zip(&counts).map(|(range, count)| {
        let share = percentage(*count as f64, total as f64);
        json!({"Message Size": range, "Count": count, "Percentage": share})
    });
    let rows: Value = rows.collect();
    Ok(Call::rows_of(&rows, columns::all(&["Message Size", "Count", "Percentage"])))
}

/// What threads did between two looks, the busiest first.
fn threads(it: &mut Call<'_>) -> Result<Answer, Fault> {
    let interval = Duration::from_secs(it.number("sample-interval")?);
    let first = it.get("/api/leveret/threads")?;
    std::thread::sleep(interval);
    let second = it.get("/api/leveret/threads")?;
    let number = |value: &Value| value.as_f64().unwrap_or_default();
    let elapsed = number(&second["at_ms"]) - number(&first["at_ms"]);
    let before = |id: &Value| first["threads"].as_array()?.iter().find(|it| it["id"] == *id);
    let of_thread = |now: &Value| {
        // One that began meanwhile did nothing before.
        let since = |key: &str| {
            number(&now[key]) - before(&now["id"]).map_or(0.0, |before| number(&before[key]))
        };
        let (user, system) = (since("user_ms"), since("system_ms"));
        let row = json!({
            "thread": now["name"],
            "id": now["id"],
            "user": percentage(user, elapsed),
            "system": percentage(system, elapsed),
            "sleep": percentage((elapsed - user - system).max(0.0), elapsed),
        });
        (user + system, row)
    };
    let mut rows: Vec<_> =
        second["threads"].as_array().into_iter().flatten().map(of_thread).collect();
    rows.sort_by(|a, b| b.0.total_cmp(&a.0));
    let rows: Value = rows.into_iter().map(|(_, row)| row).collect();
    Ok(Call::rows_of(&rows, columns::all(&["thread", "id", "user", "system", "sleep"])))
}

pub(super) const COMMANDS: &[Command] = &[
    Command::new(
        "message_size_stats",
        Tools::DIAGNOSTICS,
        "Show how many messages of which size were published",
        message_sizes,
    )
    .says("Gathering message size statistics across the cluster using node {node} ..."),
    Command::new(
        "runtime_thread_stats",
        Tools::DIAGNOSTICS,
        "Show what the node's threads do, in hundredths of the time",
        threads,
    )
    .takes(&[value("sample-interval", "5", "Seconds to look at").short('i')])
    .says("Will collect runtime thread stats on {node} for {sample-interval} seconds..."),
];
