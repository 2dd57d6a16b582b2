//! The text of `leveret ctl status`, in the order of rabbitmqctl's.

use std::fmt::Write as _;

use crate::protocol::Status;

/// The sections a person reads.
pub(crate) fn text(status: &Status) -> String {
    let mut text = String::new();
    section(
        &mut text,
        "Runtime",
        &[
            format!("OS PID: {}", status.pid),
            format!("OS: {}", status.os),
            format!("Uptime (seconds): {}", status.uptime),
            format!("Product name: {}", status.product_name),
            format!("Product version: {}", status.product_version),
            format!("RabbitMQ version: {}", status.rabbitmq_version),
            format!("Node name: {}", status.node),
            format!("Threads: {}, shards: {}", status.threads, status.shards),
        ],
    );
    section(
        &mut text,
        "Data directory",
        &[format!("Node data directory: {}", status.data_directory)],
    );
    section(&mut text, "Config files", &bullets(&status.config_files));
    section(&mut text, "Log file(s)", &bullets(&status.log_files));
    section(&mut text, "Alarms", &bullets(&status.alarms));
    section(
        &mut text,
        "Memory",
        &[
            format!("Total memory used: {}", gigabytes(status.memory_bytes)),
            format!("Compared with the watermark: {}", gigabytes(status.message_bytes)),
            format!("Memory high watermark: {}", gigabytes(status.memory_limit_bytes)),
        ],
    );
    section(
        &mut text,
        "File Descriptors",
        &[format!("Total: {}, limit: {}", status.file_descriptors, status.file_descriptors_limit)],
    );
    section(
        &mut text,
        "Free Disk Space",
        &[
            format!("Low free disk space watermark: {}", gigabytes(status.disk_limit_bytes)),
            format!("Free disk space: {}", gigabytes(status.disk_free_bytes)),
        ],
    );
    section(
        &mut text,
        "Totals",
        &[
            format!("Connection count: {}", status.connections),
            format!("Queue count: {}", status.queues),
            format!("Virtual host count: {}", status.vhosts),
        ],
    );
    let listeners: Vec<_> = status
        .listeners
        .iter()
        .map(|it| {
            format!(
                "Interface: {}, port: {}, protocol: {}, purpose: {}",
                it.interface, it.port, it.protocol, it.purpose
            )
        })
        .collect();
    section(&mut text, "Listeners", &or_none(listeners));
    text
}

fn section(text: &mut String, title: &str, lines: &[String]) {
    let gap = if text.is_empty() { "" } else { "\n" };
    let _ = writeln!(text, "{gap}{title}\n\n{}", lines.join("\n"));
}

fn bullets(items: &[String]) -> Vec<String> {
    or_none(items.iter().map(|item| format!(" * {item}")).collect())
}

fn or_none(lines: Vec<String>) -> Vec<String> {
    if lines.is_empty() { vec!["(none)".to_owned()] } else { lines }
}

/// rabbitmqctl's default unit.
fn gigabytes(bytes: u64) -> String {
    format!("{:.4} gb", bytes as f64 / 1e9)
}
