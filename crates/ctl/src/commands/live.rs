//! What goes on and on: events as they happen, the log as it grows, the node at a glance. Each ends with Ctrl-C, with
//! its time, or when nobody reads it any more.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use serde_json::{Map, Value};

use super::{Command, Tools, value};
use crate::call::{Answer, Call};
use crate::fault::{Code, Fault};
use crate::format::cell;

/// How often it is asked whether there is more.
const PAUSE: Duration = Duration::from_millis(250);

const DURATION: super::Word =
    value("duration", "", "Seconds after which it ends [default: never]").short('d');

/// Asks again and again, until the time is over or nobody reads: `more` gives what is new.
fn follow(
    it: &mut Call<'_>,
    mut more: impl FnMut(&mut Call<'_>) -> Result<String, Fault>,
) -> Result<Answer, Fault> {
    let end = end(it)?;
    it.say_nothing();
    loop {
        let text = more(it)?;
        if !it.stream(&text)? || end.is_some_and(|end| Instant::now() >= end) {
            // What was streamed is the answer.
            return Ok(Answer::Nothing);
        }
        std::thread::sleep(PAUSE);
    }
}

/// Events from now on, a line of JSON each.
fn events(it: &mut Call<'_>) -> Result<Answer, Fault> {
    let mut last = it.get("/api/events?since=18446744073709551615")?["last"].as_u64().unwrap_or(0);
    // The node keeps no events for the tool, so it is the tool that chooses.
    let pattern = fancy_regex::Regex::new(it.word("pattern"));
    let pattern = pattern.map_err(|error| Fault::usage(format!("the pattern: {error}")))?;
    follow(it, |it| {
        let told = it.get(&format!("/api/events?since={last}"))?;
        last = told["last"].as_u64().unwrap_or(last);
        let all = told["events"].as_array().into_iter().flatten();
        let is_wanted = |event: &&Value| {
            // A pattern that gives up finds nothing.
            pattern.is_match(event["name"].as_str().unwrap_or_default()).unwrap_or(false)
        };
        let wanted = all.filter(is_wanted);
        Ok(wanted.map(|event| format!("{}\n", line(event))).collect())
    })
}

/// An event as RabbitMQ streams it: its name among its facts.
fn line(event: &Value) -> Value {
    let facts = event["facts"].as_object().into_iter().flatten();
    let mut line = Map::from_iter([("event".to_owned(), event["name"].clone())]);
    line.extend(facts.map(|(key, value)| (key.clone(), value.clone())));
    Value::Object(line)
}

/// Lines of the log from now on.
fn log(it: &mut Call<'_>) -> Result<Answer, Fault> {
    let mut end = it.get("/api/leveret/log?lines=0")?["end"].as_u64().unwrap_or(0);
    follow(it, |it| {
        let told = it.get(&format!("/api/leveret/log?from={end}"))?;
        end = told["end"].as_u64().unwrap_or(end);
        let lines = told["lines"].as_array().into_iter().flatten();
        Ok(lines.map(|line| format!("{}\n", cell(line))).collect())
    })
}

/// When it is to end, if it is.
fn end(it: &Call<'_>) -> Result<Option<Instant>, Fault> {
    let duration = it.optional_number("duration")?.map(Duration::from_secs);
    Ok(duration.and_then(|duration| Instant::now().checked_add(duration)))
}

/// The node at a glance, drawn again and again.
fn observe(it: &mut Call<'_>) -> Result<Answer, Fault> {
    let pause = Duration::from_secs(it.number("interval")?.max(1));
    let rounds = it.optional_number("rounds")?;
    let end = end(it)?;
    // From the top, and what is left of the last picture goes.
    let redraw = if std::io::stdout().is_terminal() { "\x1b[H\x1b[J" } else { "" };
    it.say_nothing();
    let mut drawn = 0;
    loop {
        let text = picture(it)?;
        drawn += 1;
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        let is_last = left.is_some_and(|left| left.is_zero()) || rounds == Some(drawn);
        if !it.stream(&format!("{redraw}{text}"))? || is_last {
            return Ok(Answer::Nothing);
        }
        std::thread::sleep(left.map_or(pause, |left| left.min(pause)));
    }
}

/// Queues and connections that are shown: those with the most.
const TOP: usize = 10;

fn picture(it: &mut Call<'_>) -> Result<String, Fault> {
    let status = it.get("/api/leveret/status")?;
    let overview =
        it.get("/api/overview?columns=message_stats,queue_totals,object_totals,churn_rates")?;
    let queues = it.get(&format!(
        "/api/queues?page=1&page_size={TOP}&sort=messages&sort_reverse=true&columns={}",
        paths(&QUEUES)
    ))?;
    let connections = it.get(&format!(
        "/api/connections?page=1&page_size={TOP}&sort=recv_oct_details.rate&sort_reverse=true&columns={}",
        paths(&CONNECTIONS)
    ))?;
    let rate = |name: &str| whole(&overview["message_stats"][format!("{name}_details")]["rate"]);
    let total = |name: &str| whole(&overview["queue_totals"][name]);
    let objects = |name: &str| whole(&overview["object_totals"][name]);
    let mib = |value: &Value| value.as_f64().unwrap_or_default() / 1_048_576.0;
    let alarms = cell(&status["alarms"]);
    let lines = [
        format!(
            "{} - {} {} - up {} s - alarms: {alarms}",
            cell(&status["node"]),
            cell(&status["product_name"]),
            cell(&status["product_version"]),
            status["uptime"]
        ),
        format!(
            "memory {:.0} of {:.0} MiB, messages {:.0} MiB - disk free {:.0} MiB - files {}",
            mib(&status["memory"]["total"]["rss"]),
            mib(&status["vm_memory_high_watermark_limit"]),
            mib(&status["message_bytes"]),
            mib(&status["disk_free"]),
            status["file_descriptors"]["total_used"]
        ),
        format!(
            "messages {} ready, {} unacked - per second: {} published, {} confirmed, {} delivered, {} acked",
            total("messages_ready"),
            total("messages_unacknowledged"),
            rate("publish"),
            rate("confirm"),
            rate("deliver_get"),
            rate("ack")
        ),
        format!(
            "{} connections, {} channels, {} queues, {} consumers",
            objects("connections"),
            objects("channels"),
            objects("queues"),
            objects("consumers")
        ),
    ];
    Ok(format!(
        "{}\n\n{}\n{}",
        lines.join("\n"),
        table(&queues["items"], &QUEUES),
        table(&connections["items"], &CONNECTIONS)
    ))
}

/// A column: its title, where the API has it, its width.
type Column = (&'static str, &'static str, usize);

#[rustfmt::skip] // a table
const QUEUES: [Column; 6] = [
    ("queue",     "name",                                   40),
    ("ready",     "messages_ready",                         10),
    ("unacked",   "messages_unacknowledged",                10),
    ("in/s",      "message_stats.publish_details.rate",     10),
    ("out/s",     "message_stats.deliver_get_details.rate", 10),
    ("consumers", "consumers",                              10),
];

#[rustfmt::skip] // a table
const CONNECTIONS: [Column; 5] = [
    ("connection", "name",                  40),
    ("user",       "user",                  10),
    ("state",      "state",                 10),
    ("B in/s",     "recv_oct_details.rate", 10),
    ("B out/s",    "send_oct_details.rate", 10),
];

fn paths(columns: &[Column]) -> String {
    columns.iter().map(|(_, path, _)| *path).collect::<Vec<_>>().join(",")
}

fn table(rows: &Value, columns: &[Column]) -> String {
    let at = |row: &Value, path: &str| {
        let found = path.split('.').try_fold(row, |value, part| value.get(part));
        found.map(|value| if value.is_number() { whole(value) } else { cell(value) })
    };
    let line = |cells: &dyn Fn(&Column) -> String| {
        let cells = columns.iter().map(|column| {
            let width = column.2;
            let text: String = cells(column).chars().take(width).collect();
            // Names from the left, numbers from the right.
            if width > 10 { format!("{text:<width$}") } else { format!("{text:>width$}") }
        });
        cells.collect::<Vec<_>>().join(" ") + "\n"
    };
    let head = line(&|column| column.0.to_owned());
    let rows = rows.as_array().into_iter().flatten();
    let lines = rows.map(|row| line(&|column| at(row, column.1).unwrap_or_default()));
    head + &lines.collect::<String>()
}

/// A number without what is behind its point; nothing is 0.
fn whole(value: &Value) -> String {
    format!("{:.0}", value.as_f64().unwrap_or_default())
}

pub(super) const COMMANDS: &[Command] = &[
    Command::new(
        "consume_event_stream",
        Tools::DIAGNOSTICS,
        "Show what happens on the node as it happens, a line of JSON each",
        events,
    )
    .takes(&[
        DURATION,
        value("pattern", ".*", "Only events whose name this regular expression finds"),
    ]),
    Command::new("log_tail_stream", Tools::DIAGNOSTICS, "Show the log file as it grows", log)
        .takes(&[DURATION])
        .or_missing(Code::Unavailable, super::logs::NO_FILE),
    Command::new(
        "observer",
        Tools::DIAGNOSTICS,
        "Show the node at a glance, again and again",
        observe,
    )
    .takes(&[
        value("interval", "5", "Seconds between two looks").short('i'),
        DURATION,
        value("rounds", "", "Looks after which it ends [default: never]"),
    ]),
];

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tables_keep_their_columns() {
        let rows = json!([
            {"name": "a name that is much longer than forty letters are", "messages_ready": 5, "consumers": 1,
             "message_stats": {"publish_details": {"rate": 12.6}}},
            {"name": "q"},
        ]);
        let want = "\
queue                                         ready    unacked       in/s      out/s  consumers
a name that is much longer than forty le          5                    13                     1
q                                                                                              \n";
        assert_eq!(table(&rows, &QUEUES), want);
    }
}
