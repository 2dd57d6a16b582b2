//! The cluster at a glance, in the order of `rabbitmqctl cluster_status`, and behind that which node leads and how far the others are.
//!
//! A node answers for itself, whether or not another one leads. What only the one that leads knows is left out if there is none.

use serde_json::{Map, Value, json};

use super::status::{bullets, listeners, text_of};
use super::{Command, Tools};
use crate::call::{Answer, Call};
use crate::fault::{Code, Fault};
use crate::format::cell;

/// Sections of a text: a title, and its lines.
type Sections = Vec<(&'static str, Vec<String>)>;

/// What a node alone knows, and one that leads; a node that follows asks for it, and may get nothing.
struct Shared {
    status: Value,
    flags: Value,
    name: Value,
    tags: Value,
}

impl Shared {
    fn ask(it: &mut Call<'_>, is_needed: bool) -> Result<Self, Fault> {
        let status = it.get("/api/leveret/status")?;
        let mut ask = |path: &str, without: Value| match it.get(path) {
            Err(fault) if is_needed => Err(fault),
            answer => Ok(answer.unwrap_or(without)),
        };
        let flags = ask("/api/feature-flags?columns=name,state", json!([]))?;
        let name = ask("/api/cluster-name", json!({}))?["name"].take();
        let without = json!({"cluster_tags": {}});
        let tags = ask("/api/overview?columns=cluster_tags", without)?["cluster_tags"].take();
        Ok(Self { status, flags, name, tags })
    }
}

fn cluster_status(it: &mut Call<'_>) -> Result<Answer, Fault> {
    let cluster = match it.get("/api/leveret/cluster") {
        // A version that knew of no others.
        Err(Fault { code: Code::Data, .. }) => Value::Null,
        told => told?,
    };
    let is_alone = cluster.is_null() || cluster["standing"] == "alone";
    let mut shared = Shared::ask(it, is_alone)?;
    let mut joining: Vec<String> = Vec::new();
    let (nodes, alarms) = match is_alone {
        true => (vec![Member::alone(&shared.status)], bullets(&shared.status["alarms"])),
        false => {
            let rows = list(&cluster["nodes"]).map(|row| Member::of(row, &shared));
            // Who joins is no member yet.
            let (new, all): (Vec<_>, Vec<_>) = rows.partition(|node| node.joins);
            joining = new.into_iter().map(|node| node.name).collect();
            let alarms = all.iter().flat_map(|node| node.alarms.iter().cloned()).collect();
            (all, alarms)
        }
    };
    let own = cell(&shared.status["node"]);
    let running = || nodes.iter().filter(|node| node.is_running);
    let cores: u64 = running().map(|node| node.cores).sum();
    let tag = |(name, value): (&String, &Value)| format!("{name}: {}", cell(value));
    let flag =
        |flag: &Value| format!("Flag: {}, state: {}", cell(&flag["name"]), cell(&flag["state"]));
    let mut sections: Sections = vec![
        (
            "Basics",
            vec![
                format!("Cluster name: {}", cell(&shared.name)),
                format!("Total CPU cores available cluster-wide: {cores}"),
            ],
        ),
        ("Cluster Tags", shared.tags.as_object().into_iter().flatten().map(tag).collect()),
        ("Disk Nodes", nodes.iter().map(|node| node.name.clone()).collect()),
        ("Running Nodes", running().map(|node| node.name.clone()).collect()),
        ("Versions", running().map(|node| format!("{}: {}", node.name, node.version)).collect()),
        (
            "CPU Cores",
            running()
                .map(|node| format!("Node: {}, available CPU cores: {}", node.name, node.cores))
                .collect(),
        ),
        (
            "Maintenance status",
            running().map(|node| format!("Node: {}, status: {}", node.name, node.mode)).collect(),
        ),
        ("Alarms", alarms),
        ("Network Partitions", Vec::new()),
        ("Listeners", listeners(&shared.status["listeners"], &format!("Node: {own}, "))),
        ("Feature flags", list(&shared.flags).map(flag).collect()),
    ];
    let by_name = |value: fn(&Member) -> Value| -> Map<String, Value> {
        running().map(|node| (node.name.clone(), value(node))).collect()
    };
    let names = |all: &mut dyn Iterator<Item = &Member>| -> Value {
        all.map(|node| node.name.as_str()).collect()
    };
    let mut document = json!({
        "cluster_name": shared.name,
        "cluster_tags": shared.tags,
        "disk_nodes": names(&mut nodes.iter()),
        "ram_nodes": [],
        "running_nodes": names(&mut running()),
        "partitions": {},
        "alarms": shared.status["alarms"],
        "maintenance_status": by_name(|node| node.mode.into()),
        "cpu_cores": by_name(|node| node.cores.into()),
        "versions": by_name(|node| json!({"rabbitmq_version": node.rabbitmq})),
        "listeners": {own.as_str(): shared.status["listeners"]},
        "feature_flags": shared.flags.take(),
    });
    if !is_alone {
        sections.push(("Leader", leader(&cluster, &nodes, &joining)));
        sections.push(("Groups", list(&cluster["groups"]).map(group).collect()));
        document["alarms"] = nodes.iter().flat_map(|node| node.alarms.iter()).cloned().collect();
        document["joining_nodes"] = json!(joining);
        for key in ["cluster_id", "standing", "leader", "reason", "groups"] {
            document[key] = cluster[key].clone();
        }
    }
    Ok(Answer::Document(document, text_of(&sections)))
}

fn list(all: &Value) -> impl Iterator<Item = &Value> {
    all.as_array().into_iter().flatten()
}

/// A node of the cluster.
struct Member {
    name: String,
    is_running: bool,
    /// It has not all yet, or does not vote: no member yet.
    joins: bool,
    why_not: Option<String>,
    version: String,
    rabbitmq: Value,
    cores: u64,
    mode: &'static str,
    alarms: Vec<String>,
}

impl Member {
    /// The only one.
    fn alone(status: &Value) -> Self {
        Self {
            name: cell(&status["node"]),
            is_running: true,
            joins: false,
            why_not: None,
            version: version(status, &status["leveret_version"]),
            rabbitmq: status["rabbitmq_version"].clone(),
            cores: status["processors"].as_u64().unwrap_or_default(),
            mode: match status["is_under_maintenance"] == true {
                true => "marked for maintenance",
                false => "not under maintenance",
            },
            alarms: Vec::new(),
        }
    }

    /// One of several, as it told the one that was asked.
    fn of(row: &Value, shared: &Shared) -> Self {
        let (name, figures) = (cell(&row["name"]), &row["figures"]);
        let alone = Self::alone(&shared.status);
        let is_own = alone.name == name;
        let is_running = row["running"] == true;
        let is_on = |key: &str| is_running && figures[key] == true;
        let memory = is_on("mem_alarm").then(|| format!("Memory alarm on node {name}"));
        let disk = match (is_on("disk_hangs"), is_on("disk_free_alarm")) {
            (true, _) => {
                Some(format!("Disk alarm on node {name}: a write has been under way for seconds"))
            }
            (_, true) => Some(format!("Free disk space alarm on node {name}")),
            _ => None,
        };
        let clock = row["clock_ahead_s"].as_i64().map(|by_s| {
            let (by_s, how) = (by_s.unsigned_abs(), if by_s > 0 { "ahead of" } else { "behind" });
            format!("Clock of node {name}: {by_s} s {how} that of node {}", alone.name)
        });
        Self {
            alarms: memory.into_iter().chain(disk).chain(clock).collect(),
            is_running,
            joins: row["joins"] == true,
            why_not: row["why_not"].as_str().map(str::to_owned),
            version: version(&shared.status, &row["version"]),
            cores: match is_own {
                true => alone.cores,
                false => figures["processors"].as_u64().unwrap_or_default(),
            },
            // Others do not tell.
            mode: if is_own { alone.mode } else { "unknown" },
            rabbitmq: alone.rabbitmq,
            name,
        }
    }
}

/// What a node calls itself. All of a cluster have one product name.
fn version(status: &Value, leveret: &Value) -> String {
    let (name, version) = (cell(&status["product_name"]), cell(&status["product_version"]));
    format!("{name} {version} on Leveret {}", cell(leveret))
}

/// Which node serves clients, or why none does, and which nodes are not there.
fn leader(cluster: &Value, nodes: &[Member], joining: &[String]) -> Vec<String> {
    let leads = match cluster["leader"].as_str() {
        Some(leader) => format!("Node: {leader}, leads all groups and serves all clients"),
        None => cluster["reason"].as_str().unwrap_or("no node leads").to_owned(),
    };
    let absent = nodes.iter().filter(|node| !node.is_running || node.why_not.is_some());
    let absent = absent.map(|node| match &node.why_not {
        Some(why) => format!("Node: {}, not there: {why}", node.name),
        None => format!("Node: {}, not there", node.name),
    });
    let new = joining.iter().map(|name| format!("Node: {name}, joins: no member until it has all"));
    let refilled = list(&cluster["nodes"]).filter_map(|node| {
        let bytes = |key: &str| node["figures"][key].as_u64().unwrap_or_default();
        let (name, here, of) = (cell(&node["name"]), bytes("refill_here"), bytes("refill_of"));
        (of > 0).then(|| format!("Node: {name}, gets files that it lacks: {here} of {of} bytes"))
    });
    std::iter::once(leads).chain(links(cluster)).chain(absent).chain(new).chain(refilled).collect()
}

/// Whether the links of the node that was asked have TLS. A version that knew of none says nothing.
fn links(cluster: &Value) -> Option<String> {
    let linked = list(&cluster["nodes"])
        .filter(|node| node["running"] == true && node["name"] != cluster["node"]);
    let have: Vec<bool> = linked.filter_map(|node| node["encrypted"].as_bool()).collect();
    let (all, with) = (have.len(), have.iter().filter(|it| **it).count());
    match (all, with) {
        (0, _) => None,
        (_, 0) => Some("Links of this node: without TLS".to_owned()),
        _ if all == with => Some("Links of this node: with TLS".to_owned()),
        _ => Some(format!("Links of this node: {with} of {all} with TLS")),
    }
}

/// A group, and how many batches its other members lack, if this node leads it.
fn group(group: &Value) -> String {
    let name = match group["group"].as_u64() {
        Some(0) | None => "names".to_owned(),
        Some(number) => format!("shard {}", number - 1),
    };
    let leader = group["leader"].as_str().unwrap_or("none");
    let mut line = format!(
        "Group: {name}, leader: {leader}, term: {}, batches agreed upon: {}",
        group["term"], group["agreed"]
    );
    let last = group["last"].as_u64().unwrap_or_default();
    for member in list(&group["matched"]) {
        let lacks = last.saturating_sub(member[1].as_u64().unwrap_or_default());
        line += &format!(", {} lacks {lacks}", cell(&member[0]));
    }
    for member in list(&group["left_out"]) {
        let (node, reason) = (cell(&member["node"]), cell(&member["reason"]));
        line += &format!(", confirms by all members leave out {node}, which {reason}");
    }
    line
}

pub(super) const COMMANDS: &[Command] = &[Command::new(
    "cluster_status",
    Tools::CTL_AND_DIAGNOSTICS,
    "Show the nodes, and which one leads",
    cluster_status,
)
.says("Cluster status of node {node} ...")];
