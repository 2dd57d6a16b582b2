//! What RabbitMQ's tools do with clusters: one node, so what asks for another is refused, and what waits
//! for others is done.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Command, Tools, Word, answers, flag, ignored, ignored_value, many, maybe, one};
use crate::call::{Answer, Call};
use crate::fault::{Code, Fault};

const NODE: Word = one("member", "A node");

fn alone(it: &mut Call<'_>) -> Result<Answer, Fault> {
    it.say()?;
    Err(Fault::unavailable("this node stands alone: it was told of no others"))
}

fn members(it: &mut Call<'_>) -> Result<Answer, Fault> {
    it.say()?;
    Err(Fault::unavailable(
        "not there: a node joins by its name in the lists of all nodes (cluster_formation.classic_config.nodes) \
         and an empty data directory, and leaves by 'forget_cluster_node'",
    ))
}

/// Nodes join by their lists: what scripts ask for is there, or is not.
fn join(it: &mut Call<'_>) -> Result<Answer, Fault> {
    let cluster = it.get("/api/leveret/cluster")?;
    let (own, other) = (cluster["node"].as_str().unwrap_or_default(), it.word("member"));
    if own == other {
        let text = format!("cannot cluster node with itself: {own}");
        it.say()?;
        return Err(Fault::software(text));
    }
    let nodes = cluster["nodes"].as_array().into_iter().flatten();
    let is_member = |name: &str| {
        let row = nodes.clone().find(|row| row["name"] == name);
        row.is_some_and(|row| row["joins"] != true)
    };
    let is_founded = !matches!(cluster["standing"].as_str(), Some("alone" | "forming" | "joining"));
    if is_founded && is_member(own) && is_member(other) {
        return Ok(Answer::Message("The node is already a member of this cluster".to_owned()));
    }
    members(it)
}

/// Any node is asked: the one that leads does it, and it is done when all groups agree.
fn forget(it: &mut Call<'_>) -> Result<Answer, Fault> {
    if it.flag("offline") {
        it.say()?;
        return Err(Fault::unavailable(
            "--offline is not there: members are changed by a majority of them, which has to run",
        ));
    }
    match it.delete("/api/leveret/cluster/nodes/{member}") {
        // What stands against it is an error of the node for RabbitMQ's tools.
        Err(Fault { code: Code::Software, text }) => Err(Fault::unavailable(text)),
        answer => answer.map(|_| Answer::Done),
    }
}

/// How often a command that waits looks.
const STEP: Duration = Duration::from_millis(200);

/// Looks until it is so, as long as the time-out allows.
fn wait_until(
    it: &mut Call<'_>,
    mut is_so: impl FnMut(&mut Call<'_>) -> Result<bool, Fault>,
) -> Result<Answer, Fault> {
    let deadline = (!it.timeout().is_zero()).then(|| Instant::now() + it.timeout());
    while !is_so(it)? {
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Err(Fault::new(Code::TempFail, "it was not so in time"));
        }
        std::thread::sleep(STEP);
    }
    Ok(Answer::Done)
}

fn reset(it: &mut Call<'_>) -> Result<Answer, Fault> {
    it.say()?;
    Err(Fault::unavailable(
        "a node is not reset while it runs: stop it, move its data directory away (leveret ctl status \
         names it) and start it again; the others of a cluster refuse it then",
    ))
}

/// How long another node may take to lead in place of one that is drained.
const HAND_OVER: Duration = Duration::from_secs(10);

/// Takes no more clients, has another node lead, and lets the clients of this node go.
fn drain(it: &mut Call<'_>) -> Result<Answer, Fault> {
    it.post("/api/leveret/listeners/suspend", &Value::Null)?;
    let cluster = it.get("/api/leveret/cluster")?;
    let own = cluster["node"].as_str().unwrap_or_default();
    let leads = cluster["standing"] == "leads";
    if leads && hands_over(it)? {
        // It has begun anew, without clients.
        return Ok(Answer::Done);
    }
    close_clients_of(it, own)?;
    if leads {
        return Err(Fault::new(
            Code::TempFail,
            format!("{own} takes no clients, and leads the cluster still: no other node took over"),
        ));
    }
    Ok(Answer::Done)
}

/// Whether another node leads in place of this one, in time.
fn hands_over(it: &mut Call<'_>) -> Result<bool, Fault> {
    it.post("/api/leveret/cluster/hand-over", &Value::Null)?;
    let deadline = Instant::now() + HAND_OVER;
    while Instant::now() < deadline {
        std::thread::sleep(STEP);
        // It does not answer while it begins anew.
        if it.get("/api/leveret/cluster").is_ok_and(|it| it["standing"] == "follows") {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Closes the connections of clients that came by this node.
fn close_clients_of(it: &mut Call<'_>, node: &str) -> Result<(), Fault> {
    let all = it.get("/api/connections?columns=name,node")?;
    for row in all.as_array().into_iter().flatten().filter(|row| row["node"] == *node) {
        let name = row["name"].as_str().unwrap_or_default();
        let name = percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC);
        let path = format!("/api/connections/{name}");
        // One that is gone already is as good.
        it.send(
            hyper::Method::DELETE,
            &path,
            &[("x-reason", "Node was put into maintenance mode")],
            None,
        )?;
    }
    Ok(())
}

fn revive(it: &mut Call<'_>) -> Result<Answer, Fault> {
    it.post("/api/leveret/listeners/resume", &Value::Null)?;
    Ok(Answer::Done)
}

pub(super) const COMMANDS: &[Command] = &[
    Command::new("set_cluster_name", Tools::CTL, "Name the cluster, of which this node is all", |it| {
        it.put("/api/cluster-name", &json!({"name": it.word("name")}))?;
        Ok(Answer::Done)
    })
    .takes(&[one("name", "The name")])
    .says("Setting cluster name to {name} ..."),
    Command::new("await_online_nodes", Tools::CTL, "Wait for so many nodes", |it| {
        let count = it.number("count")?;
        wait_until(it, |it| {
            let cluster = it.get("/api/leveret/cluster")?;
            if count > 1 && cluster["standing"] == "alone" {
                return alone(it).map(|_| false);
            }
            let nodes = cluster["nodes"].as_array().into_iter().flatten();
            Ok(nodes.filter(|node| node["running"] == true).count() as u64 >= count)
        })
    })
    .takes(&[one("count", "How many")])
    .says("Will wait for at least {count} nodes to join the cluster of {node}."),
    Command::new("join_cluster", Tools::CTL, "Done if the node is a member; else says how a node joins", join)
        .takes(&[ignored("disc"), ignored("ram"), NODE])
        .says("Clustering node {node} with {member}"),
    Command::new("forget_cluster_node", Tools::CTL, "Have the cluster forget a node that has stopped", forget)
        .takes(&[flag("offline", "Not there: a majority has to run"), NODE])
        .says("Removing node {member} from the cluster")
        .or_missing(Code::Unavailable, "The node selected is not in the cluster."),
    Command::new("rename_cluster_node", Tools::CTL, "Not there: nodes keep their names", members)
        .takes(&[many("members", "Nodes")])
        .says("Renaming cluster nodes: {members}"),
    Command::new("update_cluster_nodes", Tools::CTL, "Not there: nodes are listed", members)
        .takes(&[NODE])
        .says("Will seed {node} from {member} on next start"),
    Command::new("discover_peers", Tools::DIAGNOSTICS, "Show the nodes of the cluster", |it| {
        let nodes = it.get("/api/nodes?columns=name")?;
        let names = nodes.as_array().into_iter().flatten().filter_map(|it| it["name"].as_str());
        Ok(Answer::Value(Value::from(names.collect::<Vec<_>>().join("\n"))))
    })
    .says("Discovering peers nodes ..."),
    Command::new(
        "has_reached_target_cluster_size",
        Tools::CTL_DIAGNOSTICS_AND_UPGRADE,
        "Passes: one node is all there is to come",
        |it| {
            it.get("/api/health/checks/reached-target-cluster-size")?;
            Ok(Answer::Value(Value::from(true)))
        },
    ),
    Command::new("force_boot", Tools::CTL, "Accepted: a start waits for no other node", |_| Ok(Answer::Done)),
    Command::new("reset", Tools::CTL, "Not there: says how it is done", reset)
        .says("Resetting node {node} ..."),
    Command::new("force_reset", Tools::CTL, "Not there: says how it is done", reset)
        .says("Forcefully resetting node {node} ..."),
    Command::new("stop_app", Tools::CTL, "Let no clients in by this node, have another one lead, and let its clients go", drain)
        .says("Stopping rabbit application on node {node} ..."),
    Command::new("start_app", Tools::CTL, "Let clients in again", revive).says("Starting node {node} ..."),
    Command::new("drain", Tools::UPGRADE, "Let no clients in by this node, have another one lead, and let its clients go", drain)
        .says("Will put node {node} into maintenance mode. The node will no longer serve any client traffic!"),
    Command::new("revive", Tools::UPGRADE, "Let clients in again", revive)
        .says("Will revive node {node} from maintenance and make it serve clients again ..."),
    Command::new(
        "await_online_quorum_plus_one",
        Tools::UPGRADE,
        "Wait until the other nodes are a majority; one that is alone has none to lose",
        |it| {
            wait_until(it, |it| {
                let path = "/api/health/checks/node-is-quorum-critical";
                let reply = it.send(hyper::Method::GET, path, &[], None)?;
                match reply.status {
                    hyper::StatusCode::SERVICE_UNAVAILABLE => Ok(false),
                    status if status.is_success() => Ok(true),
                    _ => Err(it.refusal(&reply)),
                }
            })
        },
    )
    .says("Will wait for a quorum + 1 of nodes to be online for all quorum queues and streams ..."),
    Command::new(
        "await_online_synchronized_mirror",
        Tools::UPGRADE,
        "Done as soon as the node answers: queues have no mirrors",
        answers,
    )
    .says("Will wait for a synchronised mirror be online for all classic mirrored queues ..."),
    Command::new("post_upgrade", Tools::UPGRADE, "Accepted: nothing is left to do after an upgrade", answers)
        .takes(&[ignored("all"), ignored_value("queues"), maybe("unused", "Nothing")])
        .says("Executing post upgrade tasks ..."),
];
