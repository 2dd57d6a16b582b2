//! Virtual hosts.

use serde_json::{Map, Value, json};

use super::{Command, Tools, Word, many, one, value};
use crate::call::{Answer, Call};
use crate::columns;
use crate::fault::{Code, Fault};
use crate::format::cell;

const NAME: Word = one("name", "Its name");
const METADATA: [Word; 3] = [
    value("description", "", "What it is for").short('d'),
    value("tags", "", "Its tags, divided by commas"),
    value("default-queue-type", "", "Type of queues declared without one"),
];
const PATH: &str = "/api/vhosts/{name}";
const PROTECTION: &str = "/api/vhosts/{name}/deletion/protection";
const MISSING: &str = "Virtual host '{name}' does not exist";

/// Puts what was given of description, tags and type of queues; the rest stays as it is.
fn put(it: &mut Call<'_>) -> Result<Answer, Fault> {
    let mut body = Map::new();
    for (word, key) in [
        ("description", "description"),
        ("tags", "tags"),
        ("default-queue-type", "default_queue_type"),
    ] {
        if let Some(text) = it.optional(word) {
            body.insert(key.to_owned(), Value::from(text));
        }
    }
    it.put(PATH, &Value::Object(body))?;
    Ok(Answer::Done)
}

pub(super) const COMMANDS: &[Command] = &[
    Command::new("add_vhost", Tools::CTL, "Add a virtual host", put)
        .takes(&[NAME, METADATA[0], METADATA[1], METADATA[2]])
        .says("Adding vhost \"{name}\" ..."),
    Command::new(
        "update_vhost_metadata",
        Tools::CTL,
        "Change what is said of a virtual host",
        |it| {
            it.get(PATH)?;
            put(it)
        },
    )
    .takes(&[NAME, METADATA[0], METADATA[1], METADATA[2]])
    .says("Updating metadata of vhost \"{name}\" ...")
    .or_missing(Code::Data, MISSING),
    Command::new("set_vhost_tags", Tools::CTL, "Set all tags of a virtual host", |it| {
        it.get(PATH)?;
        it.put(PATH, &json!({"tags": it.words("tags")}))?;
        Ok(Answer::Done)
    })
    .takes(&[NAME, many("tags", "The tags; none takes all away")])
    .says("Setting tags for virtual host \"{name}\" to [{tags}] ...")
    .or_missing(Code::Data, MISSING),
    Command::new("delete_vhost", Tools::CTL, "Delete a virtual host and all it holds", |it| {
        it.delete(PATH)?;
        Ok(Answer::Done)
    })
    .takes(&[NAME])
    .says("Deleting vhost \"{name}\" ...")
    .or_missing(Code::Data, MISSING),
    Command::new(
        "restart_vhost",
        Tools::CTL,
        "Accepted: a virtual host runs as long as the node",
        |it| {
            it.get("/api/vhosts/{vhost}")?;
            Ok(Answer::Message(it.fill("Virtual host '{vhost}' is running on node '{node}'")))
        },
    )
    .says("Trying to restart vhost '{vhost}' on node '{node}' ..."),
    Command::new(
        "reconcile_vhosts",
        Tools::CTL,
        "Accepted: one node has nothing to reconcile",
        |it| {
            it.get("/api/health/checks/virtual-hosts")?;
            Ok(Answer::Done)
        },
    )
    .says("Will try to initiate virtual host reconciliation on all reachable cluster nodes..."),
    Command::new(
        "enable_vhost_deletion_protection",
        Tools::CTL,
        "Protect a virtual host from being deleted",
        |it| {
            it.post(PROTECTION, &json!({}))?;
            Ok(Answer::Done)
        },
    )
    .takes(&[NAME])
    .says("Protecting vhost \"{name}\" from deletion ...")
    .or_missing(Code::Data, MISSING),
    Command::new(
        "disable_vhost_deletion_protection",
        Tools::CTL,
        "Let a virtual host be deleted again",
        |it| {
            it.delete(PROTECTION)?;
            Ok(Answer::Done)
        },
    )
    .takes(&[NAME])
    .says("Protecting vhost \"{name}\" from deletion no longer ...")
    .or_missing(Code::Data, MISSING),
    Command::new(
        "trace_on",
        Tools::CTL,
        "Copy all messages of a virtual host to its exchange amq.rabbitmq.trace, until the node stops",
        |it| trace(it, true),
    )
    .says("Starting tracing for vhost \"{vhost}\" ..."),
    Command::new(
        "trace_path",
        Tools::CTL,
        "Show the way of the last confirmed message of a traced virtual host, step by step",
        trace_path,
    )
    .says("Steps of a message in vhost \"{vhost}\" ..."),
    Command::new("trace_off", Tools::CTL, "Copy them no longer", |it| trace(it, false))
        .says("Stopping tracing for vhost \"{vhost}\" ..."),
];

fn trace_path(it: &mut Call<'_>) -> Result<Answer, Fault> {
    let told = it.get("/api/leveret/path/{vhost}")?;
    let row = |step: &Value| {
        let list = |key: &str| {
            let all = step[key].as_array().into_iter().flatten();
            all.map(cell).collect::<Vec<_>>().join(", ")
        };
        let about = match step["step"].as_str().unwrap_or_default() {
            "published" => {
                let (exchange, key) = (cell(&step["exchange"]), cell(&step["routing_key"]));
                let (number, queues) = (&step["number"], list("queues"));
                format!("number {number}, exchange '{exchange}', key '{key}', for {queues}")
            }
            "stored" => format!("record {} in {}", step["record"], list("queues")),
            "delivered" => format!("tag {} from {}", step["delivery_tag"], list("queues")),
            "confirmed" | "nacked" => format!("number {}", step["number"]),
            _ => format!("tag {}", step["delivery_tag"]),
        };
        let ms = |us: &Value| format!("{:.3}", us.as_f64().unwrap_or_default() / 1000.0);
        let (connection, channel) = (cell(&step["connection"]), cell(&step["channel"]));
        json!({
            "at": ms(&step["at_us"]), "after": ms(&step["after_us"]), "step": step["step"],
            "what": about, "channel": format!("{connection} ({channel})"),
        })
    };
    let rows: Value = told["steps"].as_array().into_iter().flatten().map(row).collect();
    if rows.as_array().is_none_or(Vec::is_empty) {
        let text = match told["tracing"] == true {
            true => "no message with a publisher confirm was seen since tracing began",
            false => "the virtual host is not traced: run trace_on first",
        };
        return Err(Fault::new(Code::Unavailable, text));
    }
    Ok(Call::rows_of(&rows, columns::all(&["at", "after", "step", "what", "channel"])))
}

fn trace(it: &mut Call<'_>, is_on: bool) -> Result<Answer, Fault> {
    // A PUT would make the vhost.
    it.get("/api/vhosts/{vhost}")?;
    it.put("/api/vhosts/{vhost}", &json!({"tracing": is_on}))?;
    Ok(Answer::Done)
}
