//! Health checks: each looks, and ends with status 69 when it is not well.

use std::net::{IpAddr, SocketAddr, TcpStream};

use serde_json::{Value, json};

use super::{Command, Tools, answers, flag, maybe, one, policies, status, value};
use crate::call::{Answer, Call};
use crate::fault::Fault;
use crate::format::cell;

/// Alarms as a failed check names them.
fn alarms_of(it: &Call<'_>, told: &Value) -> String {
    let rows = told["alarms"].as_array().into_iter().flatten();
    let lines = rows.map(|row| {
        let node = cell(&row["node"]);
        match (&*cell(&row["resource"]), row["reason"].as_str()) {
            ("memory", _) => format!("Memory alarm on node {node}"),
            (_, Some(why)) => format!("Disk alarm on node {node}: {why}"),
            (other, None) => format!("Free {other} alarm on node {node}"),
        }
    });
    let lines: Vec<_> = lines.collect();
    format!("{}\n\n{}", it.fill("Node {node} reported alarms:"), lines.join("\n"))
}

/// What there is in the place of what was looked for.
fn found(told: &Value, key: &str) -> String {
    let mut found: Vec<String> = told[key].as_array().into_iter().flatten().map(cell).collect();
    found.sort();
    found.dedup();
    found.join(", ")
}

/// Connects to every listener, from here.
fn connectivity(it: &mut Call<'_>) -> Result<Answer, Fault> {
    let told = it.get("/api/leveret/status")?;
    let address = it.optional("address").map(str::parse::<IpAddr>).transpose();
    let address =
        address.map_err(|_| Fault::usage(it.fill("{address} is no address of a machine")))?;
    let mut ports = Vec::new();
    for listener in told["listeners"].as_array().into_iter().flatten() {
        let port = listener["port"].as_u64().and_then(|port| u16::try_from(port).ok());
        let own = cell(&listener["interface"]).parse::<IpAddr>().ok();
        let (Some(port), Some(own)) = (port, own) else { continue };
        let at = match (address, it.host()) {
            (Some(address), _) => address,
            (None, Some(host)) => first_address(&host, port)?,
            (None, None) if own.is_unspecified() => IpAddr::from([127, 0, 0, 1]),
            (None, None) => own,
        };
        let at = SocketAddr::new(at, port);
        TcpStream::connect_timeout(&at, it.timeout())
            .map_err(|error| Fault::unavailable(format!("cannot connect to {at}: {error}")))?;
        ports.push(port.to_string());
    }
    Ok(Answer::Message(format!(
        "Successfully connected to ports {} on node {}",
        ports.join(", "),
        it.node()
    )))
}

fn first_address(host: &str, port: u16) -> Result<IpAddr, Fault> {
    use std::net::ToSocketAddrs as _;
    let found = (host, port).to_socket_addrs().ok().and_then(|mut found| found.next());
    let found = found.ok_or_else(|| Fault::unavailable(format!("cannot find host {host}")))?;
    Ok(found.ip())
}

/// Alarms that are on, which is no failure.
fn alarms(it: &mut Call<'_>) -> Result<Answer, Fault> {
    let told = it.get("/api/leveret/status")?;
    let raised: Vec<_> = told["alarms"].as_array().into_iter().flatten().map(cell).collect();
    let text = match raised.is_empty() {
        true => it.fill("Node {node} reported no alarms, local or clusterwide\n"),
        false => it.fill("Node {node} reported alarms: ") + &raised.join(", ") + "\n",
    };
    let document = json!({"result": "ok", "node": it.node(), "local": raised, "global": raised});
    Ok(Answer::Document(document, text))
}

const ONE_NODE: &str =
    "Node {node} seems to be the only one in a single node cluster, the check does not apply";

/// A check of a cluster. One node alone passes it.
fn critical(it: &mut Call<'_>, path: &str, passed: &str) -> Result<Answer, Fault> {
    let told = it.get(path)?;
    let is_alone = told["reason"] == "single node cluster";
    Ok(Answer::Message(it.fill(if is_alone { ONE_NODE } else { passed })))
}

/// Whether a node that said this has filled its queues. One of an older version answers only then.
pub(super) fn is_booted(version: &Value) -> bool {
    version["is_booted"] != json!(false)
}

/// Answered by the node without asking anybody, so that probes cost next to nothing.
fn is_running(it: &mut Call<'_>) -> Result<Answer, Fault> {
    if is_booted(&it.get("/api/version")?) {
        return Ok(Answer::Message(it.fill("RabbitMQ on node {node} is fully booted and running")));
    }
    let text = "RabbitMQ on node {node} is not running or has not fully booted yet (check with is_booting)";
    Err(Fault::unavailable(it.fill(text)))
}

fn is_booting(it: &mut Call<'_>) -> Result<Answer, Fault> {
    let text = match is_booted(&it.get("/api/version")?) {
        true => "RabbitMQ on node {node} is fully booted (check with is_running)",
        false => "RabbitMQ on node {node} is booting",
    };
    Ok(Answer::Message(it.fill(text)))
}

pub(super) const COMMANDS: &[Command] = &[
    Command::new("check_running", Tools::DIAGNOSTICS, "Check that the node is up", is_running)
        .says("Checking if RabbitMQ is running on node {node} ..."),
    Command::new("is_running", Tools::DIAGNOSTICS, "Check that the node is up", is_running)
        .says("Asking node {node} for its status ..."),
    Command::new("is_booting", Tools::DIAGNOSTICS, "Check whether the node is starting", is_booting)
        .says("Asking node {node} for its boot status ..."),
    Command::new("alarms", Tools::DIAGNOSTICS, "Show alarms that are on", alarms)
        .says("Asking node {node} to report any known resource alarms ..."),
    Command::new("check_alarms", Tools::DIAGNOSTICS, "Check that no alarm is on", |it| {
        let passed = "Node {node} reported no alarms, local or clusterwide";
        it.check_with("/api/health/checks/alarms", passed, alarms_of)
    })
    .says("Asking node {node} to report any local resource alarms ..."),
    Command::new("check_local_alarms", Tools::DIAGNOSTICS, "Check that no alarm is on", |it| {
        let passed = "Node {node} reported no local alarms";
        it.check_with("/api/health/checks/local-alarms", passed, alarms_of)
    })
    .says("Asking node {node} to report any local resource alarms ..."),
    Command::new("check_port_listener", Tools::DIAGNOSTICS, "Check that a port takes connections", |it| {
        let passed = "A listener for port {port} is running on node {node}.";
        it.check_with("/api/health/checks/port-listener/{port}", passed, |it, told| {
            let failed = "No listener for port {port} is active on node {node}. Found listeners that \
                          use the following ports: ";
            it.fill(failed) + &found(told, "ports")
        })
    })
    .takes(&[one("port", "The port")])
    .says("Asking node {node} if there's an active listener on port {port} ..."),
    Command::new("check_protocol_listener", Tools::DIAGNOSTICS, "Check that a protocol is spoken", |it| {
        let passed = "A listener for protocol {protocol} is running on node {node}.";
        it.check_with("/api/health/checks/protocol-listener/{protocol}", passed, |it, told| {
            let failed = "No listener for protocol {protocol} is active on node {node}. Found \
                          listeners for the following protocols: ";
            it.fill(failed) + &found(told, "protocols")
        })
    })
    .takes(&[one("protocol", "amqp, amqp/ssl, http, https or http/prometheus")])
    .says("Asking node {node} if there's an active listener for protocol {protocol} ..."),
    Command::new("check_port_connectivity", Tools::DIAGNOSTICS, "Connect to every port, from here", connectivity)
        .takes(&[value("address", "", "Address of the node, if it is another one from here")])
        .says("Testing TCP connections to all active listeners on node {node} ..."),
    Command::new("check_virtual_hosts", Tools::DIAGNOSTICS, "Check that every shard of queues answers", |it| {
        let passed = "Node {node} reported all vhosts as running";
        it.check("/api/health/checks/virtual-hosts", passed)
    })
    .says("Checking if all vhosts are running on node {node} ..."),
    Command::new("maybe_stuck", Tools::DIAGNOSTICS, "Check that every shard of queues answers", |it| {
        it.check("/api/health/checks/virtual-hosts", "No shard of node {node} is stuck")
    })
    .says("Asking node {node} whether something does not answer ..."),
    Command::new(
        "check_certificate_expiration",
        Tools::DIAGNOSTICS,
        "Check that no certificate ends soon",
        |it| {
            let passed = "No certificates are expiring within {within} {unit}.";
            let path = "/api/health/checks/certificate-expiration/{within}/{unit}";
            it.check_with(path, passed, |_, told| {
                let rows = told["expired"].as_array().into_iter().flatten();
                let lines: Vec<_> = rows.map(ToString::to_string).collect();
                format!("Certificates expiring:\n{}", lines.join("\n"))
            })
        },
    )
    .takes(&[
        value("within", "4", "How soon"),
        value("unit", "weeks", "days, weeks, months or years"),
    ])
    .says("Checking certificate expiration on node {node} ..."),
    Command::new("node_health_check", Tools::CTL_AND_DIAGNOSTICS, "Check everything at once", |it| {
        it.check("/api/healthchecks/node", "Health check passed")
    })
    .says("Checking health of node {node} ..."),
    Command::new(
        "check_if_node_is_quorum_critical",
        Tools::QUEUES_AND_DIAGNOSTICS,
        "Check that the other nodes of the cluster are a majority without it",
        |it| critical(it, "/api/health/checks/node-is-quorum-critical", "Node {node} reported no quorum queues with minimum quorum"),
    )
    .says("Checking if node {node} is critical for quorum of any queues/streams ..."),
    Command::new(
        "check_if_node_is_mirror_sync_critical",
        Tools::QUEUES_AND_DIAGNOSTICS,
        "Passes: queues have no mirrors",
        |it| critical(it, "/api/health/checks/node-is-mirror-sync-critical", "Node {node} reported no classic mirrored queues without online synchronised mirrors"),
    )
    .says("Checking if node {node} is critical for data safety of any classic mirrored queues ..."),
    Command::new(
        "check_for_quorum_queues_without_an_elected_leader",
        Tools::DIAGNOSTICS,
        "Check that every quorum queue is served",
        |it| {
            let passed = "Node {node} reported all quorum queue as having responsive leader replicas";
            it.check(match it.flag("across-all-vhosts") {
                true => "/api/health/checks/quorum-queues-without-elected-leaders/all-vhosts",
                false => "/api/health/checks/quorum-queues-without-elected-leaders/vhost/{vhost}",
            }, passed)
        },
    )
    .takes(&[
        flag("across-all-vhosts", "In all virtual hosts"),
        maybe("pattern", "Names of queues, as a regular expression"),
    ])
    .says("Checking leader replicas of quorum queues matching '{pattern}' in vhost {vhost} ..."),
    Command::new(
        "check_if_any_deprecated_features_are_used",
        Tools::CTL_AND_DIAGNOSTICS,
        "Check that nothing is used that RabbitMQ takes away one day",
        |it| {
            let used = it.get("/api/deprecated-features/used")?;
            let names: Vec<_> =
                used.as_array().into_iter().flatten().map(|row| cell(&row["name"])).collect();
            match names.is_empty() {
                true => Ok(Answer::Message("No deprecated features in use".to_owned())),
                false => Err(Fault::unavailable(format!("in use: {}", names.join(", ")))),
            }
        },
    )
    .says("Checking if any deprecated features are used ..."),
    Command::new("metadata_store_status", Tools::DIAGNOSTICS, "Check that names and users are there", |it| {
        it.check("/api/health/checks/metadata-store/initialized", "The metadata store is a log of this node")
    })
    .says("Status of metadata store on node {node} ..."),
    Command::new("listeners", Tools::DIAGNOSTICS, "Show where the node listens", |it| {
        let told = it.get("/api/leveret/status")?;
        let lines = status::listeners(&told["listeners"], "").join("\n") + "\n";
        let document =
            json!({"result": "ok", "node": told["node"], "listeners": told["listeners"]});
        Ok(Answer::Document(document, lines))
    })
    .says("Asking node {node} to report its protocol listeners ..."),
    Command::new(
        "check_if_metadata_store_is_initialized",
        Tools::DIAGNOSTICS,
        "Check that names and users are there",
        |it| it.check("/api/health/checks/metadata-store/initialized", "The metadata store is initialised"),
    )
    .says("Checking if the metadata store is initialised on node {node} ..."),
    Command::new(
        "check_if_metadata_store_is_initialized_with_data",
        Tools::DIAGNOSTICS,
        "Check that names and users are there",
        |it| {
            let path = "/api/health/checks/metadata-store/initialized/with-data";
            it.check(path, "The metadata store is initialised, and has data")
        },
    )
    .says("Checking if the metadata store of node {node} has data ..."),
    Command::new(
        "check_if_new_quorum_queue_replicas_have_finished_initial_sync",
        Tools::QUEUES_AND_DIAGNOSTICS,
        "Passes: queues have no replicas",
        answers,
    )
    .says("Checking if new quorum queue replicas have finished their initial sync ..."),
    Command::new(
        "check_if_cluster_has_classic_queue_mirroring_policy",
        Tools::QUEUES_AND_DIAGNOSTICS,
        "Check that no policy asks for mirrors, which are not there",
        |it| match policies::with_mirrors(it)?.len() {
            0 => Ok(Answer::Message("Cluster reported no policies that enable classic queue mirroring".to_owned())),
            count => Err(Fault::unavailable(format!(
                "{count} policies ask for mirrors of classic queues, which are not there: \
                 'list_policies_with_classic_queue_mirroring' shows them"
            ))),
        },
    )
    .says("Checking if cluster has any classic queue mirroring policy ..."),
];
