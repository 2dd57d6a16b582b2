//! The node's log: where it is, its last lines, a new file for it, its level.

use serde_json::{Value, json};

use super::{Command, Tools, one, value};
use crate::call::Answer;
use crate::fault::{Code, Fault};
use crate::format::cell;

pub(super) const NO_FILE: &str =
    "the node logs to no file: set log.file, or ask the journal (journalctl -u leveret)";

const LEVELS: [&str; 9] =
    ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency", "none"];

pub(super) const COMMANDS: &[Command] = &[
    Command::new("log_tail", Tools::DIAGNOSTICS, "Show the last lines of the log file", |it| {
        it.number("number")?;
        let told = it.get("/api/leveret/log?lines={number}")?;
        let lines = told["lines"].as_array().into_iter().flatten();
        let text = lines.map(|line| format!("{}\n", line.as_str().unwrap_or_default())).collect();
        Ok(Answer::Document(told, text))
    })
    .takes(&[value("number", "50", "How many").short('N')])
    .says("Last {number} log lines on node {node} ...")
    .or_missing(Code::Unavailable, NO_FILE),
    Command::new("log_location", Tools::DIAGNOSTICS, "Show what the node logs to", |it| {
        let told = it.get("/api/leveret/status")?;
        let names: Vec<_> = told["log_files"].as_array().into_iter().flatten().map(cell).collect();
        Ok(Answer::Document(told["log_files"].clone(), names.join("\n") + "\n"))
    })
    .says("Log file location(s) on node {node} ..."),
    Command::new(
        "rotate_logs",
        Tools::CTL,
        "Have the log file make way for a new one, or open it again if it was moved",
        |it| {
            it.post("/api/leveret/log/rotate", &Value::Null)?;
            Ok(Answer::Done)
        },
    )
    .says("Rotating logs for node {node} ...")
    .or_missing(Code::Unavailable, NO_FILE),
    Command::new(
        "set_log_level",
        Tools::CTL,
        "Set the least level of all that is logged, until the next start",
        |it| {
            let level = it.word("log_level");
            if !LEVELS.contains(&level) {
                return Err(Fault::unavailable(format!(
                    "level {level} is not supported. Try one of {}",
                    LEVELS.join(", ")
                )));
            }
            it.put("/api/leveret/log/level", &json!({"level": level}))?;
            Ok(Answer::Done)
        },
    )
    .takes(&[one("log_level", "debug, info, warning, error, critical or none")])
    .says("Setting log level to \"{log_level}\" ..."),
];
