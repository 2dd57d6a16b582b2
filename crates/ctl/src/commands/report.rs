//! The support report: what somebody who is asked for help wants to see first. No secret is in it.

use std::net::IpAddr;

use hyper::Method;
use serde_json::Value;

use super::{Command, Tools, all};
use crate::call::{Answer, Call};
use crate::client::Client;
use crate::fault::Fault;
use crate::format;
use crate::target::{Address, Target};

/// What it is made of, in order: commands, of which those of one vhost are run in each.
const OF_NODE: [&str; 10] = [
    "status",
    "cluster_status",
    "alarms",
    "environment",
    "memory_breakdown",
    "list_vhosts",
    "list_users",
    "list_connections",
    "list_channels",
    "list_global_parameters",
];
const OF_VHOST: [&str; 9] = [
    "list_queues",
    "list_exchanges",
    "list_bindings",
    "list_consumers",
    "list_permissions",
    "list_policies",
    "list_operator_policies",
    "list_parameters",
    "list_vhost_limits",
];
const AT_LAST: [&str; 2] = ["log_location", "log_tail"];

/// Columns that are of more use here than the default ones.
const QUEUE_COLUMNS: &str = "name type durable auto_delete exclusive policy state messages_ready \
    messages_unacknowledged message_bytes consumers consumer_capacity memory";

fn report(it: &mut Call<'_>) -> Result<Answer, Fault> {
    it.get("/api/version")?;
    for name in OF_NODE {
        section(it, name)?;
    }
    let vhosts = it.get("/api/vhosts?columns=name")?;
    for vhost in vhosts.as_array().into_iter().flatten() {
        let vhost = vhost["name"].as_str().unwrap_or_default().to_owned();
        it.with_vhost(&vhost);
        for name in OF_VHOST {
            section(it, name)?;
        }
    }
    for name in AT_LAST {
        section(it, name)?;
    }
    metrics(it)
}

/// One command's banner and what it shows; one that fails says so and is no end of the report.
fn section(it: &mut Call<'_>, name: &str) -> Result<(), Fault> {
    // Its banner says what it is.
    let Some(entry) = all().find(|entry| entry.name == name) else {
        return Err(Fault::software(format!("there is no command {name}")));
    };
    let columns = (name == "list_queues").then_some(QUEUE_COLUMNS);
    let text = match it.other(entry, columns) {
        Ok(answer) => format::answer(&answer, it.common),
        Err(fault) => format!("Error: {fault}\n"),
    };
    it.print(&format!("{text}\n"))
}

/// What Prometheus would see, from the node's own port for it.
fn metrics(it: &mut Call<'_>) -> Result<Answer, Fault> {
    it.print("Metrics ...\n\n")?;
    let status = it.get("/api/leveret/status")?;
    let listeners: Vec<Value> = status["listeners"].as_array().cloned().unwrap_or_default();
    let port = listeners.iter().find(|listener| listener["protocol"] == "http/prometheus");
    let text = match port {
        Some(listener) => {
            metrics_of(it, listener).unwrap_or_else(|fault| format!("Error: {fault}\n"))
        }
        None => "(no listener)\n".to_owned(),
    };
    it.print(&text)?;
    Ok(Answer::Done)
}

fn metrics_of(it: &Call<'_>, listener: &Value) -> Result<String, Fault> {
    let interface = listener["interface"].as_str().unwrap_or_default();
    let is_everywhere = interface.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified());
    let own = if is_everywhere { "localhost" } else { interface };
    let host = it.host().unwrap_or_else(|| own.to_owned());
    let port = listener["port"].as_u64().and_then(|port| u16::try_from(port).ok());
    let target = Target::Network(Address::open(host, port.unwrap_or_default()));
    let mut client = Client::connect(&target, it.timeout())?;
    let reply = client.ask(Method::GET, "/metrics", &[], Vec::new())?;
    Ok(String::from_utf8_lossy(&reply.body).into_owned())
}

pub(super) const COMMANDS: &[Command] = &[Command::new(
    "report",
    Tools::CTL_AND_DIAGNOSTICS,
    "Show everything that somebody who helps wants to see; no secret is in it",
    report,
)
.says("Reporting server status of node {node} ...\n")];
