//! The node at a glance, in the order of `rabbitmqctl status`.

use serde_json::{Value, json};

use super::{Command, Tools, Word, value};
use crate::call::{Answer, Call};
use crate::fault::Fault;
use crate::format::cell;

const UNIT: Word = value("unit", "gb", "bytes, mb, mib, gb or gib");

fn status(it: &mut Call<'_>) -> Result<Answer, Fault> {
    let unit = Unit::of(it.word("unit"))?;
    let status = it.get("/api/leveret/status")?;
    let text = text(&status, unit);
    Ok(Answer::Document(status, text))
}

/// A unit of bytes.
#[derive(Clone, Copy, Debug)]
struct Unit {
    name: &'static str,
    bytes: f64,
}

impl Unit {
    fn of(name: &str) -> Result<Self, Fault> {
        let known = [
            ("bytes", 1.0),
            ("kb", 1e3),
            ("kib", 1024.0),
            ("mb", 1e6),
            ("mib", 1_048_576.0),
            ("gb", 1e9),
            ("gib", 1_073_741_824.0),
        ];
        let found = known.into_iter().find(|(known, _)| name.eq_ignore_ascii_case(known));
        let (name, bytes) = found.ok_or_else(|| {
            Fault::usage(format!("unit {name} is not supported; there are bytes, mb, mib, gb, gib"))
        })?;
        Ok(Self { name, bytes })
    }

    fn show(self, bytes: &Value) -> String {
        let count = bytes.as_f64().unwrap_or_default() / self.bytes;
        match self.name {
            "bytes" => format!("{count} bytes"),
            // As Erlang shows a number of which four places are kept: 0.0, 1.5.
            name => format!("{:?} {name}", (count * 1e4).round() / 1e4),
        }
    }
}

/// The sections a person reads.
fn text(status: &Value, unit: Unit) -> String {
    let line = |title: &str, path: &str| format!("{title}: {}", cell(at(status, path)));
    let size = |title: &str, path: &str| format!("{title}: {}", unit.show(at(status, path)));
    let sections = [
        (
            "Runtime",
            vec![
                line("OS PID", "pid"),
                line("OS", "os"),
                line("Uptime (seconds)", "uptime"),
                line("Is under maintenance?", "is_under_maintenance"),
                line("Product name", "product_name"),
                line("Product version", "product_version"),
                line("RabbitMQ version", "rabbitmq_version"),
                line("Leveret version", "leveret_version"),
                line("Node name", "node"),
                line("Threads", "threads"),
                line("Shards", "shards"),
            ],
        ),
        ("Plugins", bullets(at(status, "active_plugins"))),
        ("Data directory", vec![line("Node data directory", "data_directory")]),
        ("Config files", bullets(at(status, "config_files"))),
        ("Log file(s)", bullets(at(status, "log_files"))),
        ("Alarms", bullets(at(status, "alarms"))),
        (
            "Memory",
            vec![
                size("Total memory used", "memory.total.rss"),
                size("Compared with the watermark", "memory.compared"),
                size("Memory high watermark", "vm_memory_high_watermark_limit"),
            ],
        ),
        (
            "File Descriptors",
            vec![format!(
                "Total: {}, limit: {}",
                at(status, "file_descriptors.total_used"),
                at(status, "file_descriptors.total_limit")
            )],
        ),
        (
            "Free Disk Space",
            vec![
                size("Low free disk space watermark", "disk_free_limit"),
                size("Free disk space", "disk_free"),
            ],
        ),
        (
            "Totals",
            vec![
                line("Connection count", "totals.connection_count"),
                line("Queue count", "totals.queue_count"),
                line("Virtual host count", "totals.virtual_host_count"),
            ],
        ),
        ("Listeners", listeners(at(status, "listeners"), "")),
    ];
    text_of(&sections)
}

pub(super) fn text_of(sections: &[(&str, Vec<String>)]) -> String {
    let shown = sections.iter().map(|(title, lines)| {
        let lines = if lines.is_empty() { "(none)".to_owned() } else { lines.join("\n") };
        format!("{title}\n\n{lines}\n")
    });
    shown.collect::<Vec<_>>().join("\n")
}

fn at<'a>(value: &'a Value, path: &str) -> &'a Value {
    path.split('.').try_fold(value, |value, part| value.get(part)).unwrap_or(&Value::Null)
}

pub(super) fn bullets(items: &Value) -> Vec<String> {
    items.as_array().into_iter().flatten().map(|item| format!(" * {}", cell(item))).collect()
}

/// Listeners, one a line, each after `first`.
pub(super) fn listeners(all: &Value, first: &str) -> Vec<String> {
    let rows = all.as_array().into_iter().flatten().map(|it| {
        format!(
            "{first}{}: {}, port: {}, protocol: {}, purpose: {}",
            if first.is_empty() { "Interface" } else { "interface" },
            cell(&it["interface"]),
            it["port"],
            cell(&it["protocol"]),
            cell(&it["purpose"])
        )
    });
    rows.collect()
}

/// Parts of the memory, largest first.
fn memory_breakdown(it: &mut Call<'_>) -> Result<Answer, Fault> {
    let unit = Unit::of(it.word("unit"))?;
    it.learn_node()?;
    let told = it.get("/api/nodes/{node}/memory")?;
    let parts = told["memory"].as_object().into_iter().flatten();
    let mut parts: Vec<(&String, f64)> =
        parts.filter_map(|(name, bytes)| Some((name, bytes.as_f64()?))).collect();
    parts.sort_by(|a, b| b.1.total_cmp(&a.1));
    let total: f64 = parts.iter().map(|(_, bytes)| bytes).sum();
    let mut document = serde_json::Map::new();
    let mut text = String::new();
    for (name, bytes) in parts {
        let percentage = (bytes / total.max(1.0) * 1e4).round() / 1e2;
        text += &format!("{name}: {} ({percentage:?}%)\n", unit.show(&json!(bytes)));
        document.insert(name.clone(), json!({"bytes": bytes as u64, "percentage": percentage}));
    }
    Ok(Answer::Document(Value::Object(document), text))
}

pub(super) const COMMANDS: &[Command] = &[
    Command::new("status", Tools::CTL_AND_DIAGNOSTICS, "Show the node's state", status)
        .takes(&[UNIT])
        .says("Status of node {node} ..."),
    Command::new(
        "memory_breakdown",
        Tools::DIAGNOSTICS,
        "Show what takes the node's memory",
        memory_breakdown,
    )
    .takes(&[UNIT])
    .says("Reporting memory breakdown on node {node}..."),
];
