//! Virtual hosts.

use serde_json::{Map, Value, json};

use super::{Entry, Tools, Word, many, one, value};
use crate::call::{Answer, Call};
use crate::fault::{Code, Fault};

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

pub(super) const COMMANDS: &[Entry] = &[
    Entry::new("add_vhost", Tools::CTL, "Add a virtual host", put)
        .takes(&[NAME, METADATA[0], METADATA[1], METADATA[2]])
        .says("Adding vhost \"{name}\" ..."),
    Entry::new(
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
    Entry::new("set_vhost_tags", Tools::CTL, "Set all tags of a virtual host", |it| {
        it.get(PATH)?;
        it.put(PATH, &json!({"tags": it.words("tags")}))?;
        Ok(Answer::Done)
    })
    .takes(&[NAME, many("tags", "The tags; none takes all away")])
    .says("Setting tags for virtual host \"{name}\" to [{tags}] ...")
    .or_missing(Code::Data, MISSING),
    Entry::new("delete_vhost", Tools::CTL, "Delete a virtual host and all it holds", |it| {
        it.delete(PATH)?;
        Ok(Answer::Done)
    })
    .takes(&[NAME])
    .says("Deleting vhost \"{name}\" ...")
    .or_missing(Code::Data, MISSING),
    Entry::new(
        "restart_vhost",
        Tools::CTL,
        "Accepted: a virtual host runs as long as the node",
        |it| {
            it.get("/api/vhosts/{vhost}")?;
            Ok(Answer::Message(it.fill("Virtual host '{vhost}' is running on node '{node}'")))
        },
    )
    .says("Trying to restart vhost '{vhost}' on node '{node}' ..."),
    Entry::new(
        "reconcile_vhosts",
        Tools::CTL,
        "Accepted: one node has nothing to reconcile",
        |it| {
            it.get("/api/health/checks/virtual-hosts")?;
            Ok(Answer::Done)
        },
    )
    .says("Will try to initiate virtual host reconciliation on all reachable cluster nodes..."),
    Entry::new(
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
    Entry::new(
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
    Entry::new(
        "trace_on",
        Tools::CTL,
        "Copy all messages of a virtual host to its exchange amq.rabbitmq.trace, until the node stops",
        |it| trace(it, true),
    )
    .says("Starting tracing for vhost \"{vhost}\" ..."),
    Entry::new("trace_off", Tools::CTL, "Copy them no longer", |it| trace(it, false))
        .says("Stopping tracing for vhost \"{vhost}\" ..."),
];

fn trace(it: &mut Call<'_>, is_on: bool) -> Result<Answer, Fault> {
    // A PUT would make the vhost.
    it.get("/api/vhosts/{vhost}")?;
    it.put("/api/vhosts/{vhost}", &json!({"tracing": is_on}))?;
    Ok(Answer::Done)
}
