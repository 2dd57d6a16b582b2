//! Policies, operator policies, parameters.

use serde_json::{Value, json};

use super::{Command, Tools, Word, one, value};
use crate::call::{Answer, Call};
use crate::columns;
use crate::fault::{Code, Fault};

const NAME: Word = one("name", "Its name");
const POLICY: [Word; 5] = [
    value("priority", "0", "The higher one wins"),
    value("apply-to", "all", "queues, classic_queues, quorum_queues, streams, exchanges or all"),
    NAME,
    one("pattern", "Which queues or exchanges it is for, as a regular expression"),
    one("definition", "What it sets, as a JSON object"),
];
const POLICIES: &[&str] = &["vhost", "name", "pattern", "apply-to", "definition!", "priority"];
const NO_PARAMETER: &str = "Parameter does not exist";

fn set(it: &mut Call<'_>, path: &str) -> Result<Answer, Fault> {
    let definition = it.json("definition")?;
    if !definition.is_object() {
        return Err(Fault::data("The definition must be a JSON object"));
    }
    let priority: i64 = it
        .word("priority")
        .parse()
        .map_err(|_| Fault::usage("the priority must be a whole number"))?;
    let body = json!({
        "pattern": it.word("pattern"),
        "definition": definition,
        "priority": priority,
        "apply-to": it.word("apply-to"),
    });
    it.put(path, &body)?;
    Ok(Answer::Done)
}

/// Rows of policies whose pattern matches a name, best first.
fn matching(it: &mut Call<'_>) -> Result<Answer, Fault> {
    let kind = it.word("object-type").to_owned();
    let path = match &*kind {
        "queue" => "/api/queues/{vhost}/{name}",
        "exchange" => "/api/exchanges/{vhost}/{name}",
        _ => return Err(Fault::usage("the object type is queue or exchange")),
    };
    let found = it.get(path)?;
    let policies = it.get("/api/policies/{vhost}")?;
    let used = found.get("policy").cloned().unwrap_or_default();
    let rows: Value = policies
        .as_array()
        .into_iter()
        .flatten()
        .filter(|row| row["name"] == used)
        .cloned()
        .collect();
    Ok(Call::rows_of(&rows, columns::all(POLICIES)))
}

/// Policies and operator policies of all virtual hosts that ask for mirrors: they are taken, and do nothing.
pub(super) fn with_mirrors(it: &mut Call<'_>) -> Result<Vec<Value>, Fault> {
    let mut found = mirrors_of(it, "/api/policies")?;
    found.extend(mirrors_of(it, "/api/operator-policies")?);
    Ok(found)
}

fn mirrors_of(it: &mut Call<'_>, path: &str) -> Result<Vec<Value>, Fault> {
    let all = it.get(path)?;
    let asks = |policy: &&Value| {
        let mut keys = policy["definition"].as_object().into_iter().flatten();
        keys.any(|(key, _)| key.starts_with("ha-"))
    };
    Ok(all.as_array().into_iter().flatten().filter(asks).cloned().collect())
}

fn list_mirrors(it: &mut Call<'_>, path: &str) -> Result<Answer, Fault> {
    let found = mirrors_of(it, path)?;
    Ok(Call::rows_of(&Value::Array(found), columns::all(POLICIES)))
}

pub(super) const COMMANDS: &[Command] = &[
    Command::new(
        "list_policies_with_classic_queue_mirroring",
        Tools::QUEUES_AND_DIAGNOSTICS,
        "List policies that ask for mirrors, which are not there",
        |it| list_mirrors(it, "/api/policies"),
    )
    .says("Listing policies with classic queue mirroring ..."),
    Command::new(
        "list_operator_policies_with_classic_queue_mirroring",
        Tools::QUEUES_AND_DIAGNOSTICS,
        "List operator policies that ask for mirrors, which are not there",
        |it| list_mirrors(it, "/api/operator-policies"),
    )
    .says("Listing operator policies with classic queue mirroring ..."),
    Command::new(
        "remove_classic_queue_mirroring_from_policies",
        Tools::CTL,
        "Accepted: policies ask for mirrors without effect",
        |it| {
            let count = with_mirrors(it)?.len();
            Ok(Answer::Message(format!(
                "Nothing changed: {count} policies ask for mirrors, which has no effect"
            )))
        },
    ),
    Command::new(
        "list_policies",
        Tools::CTL_AND_DIAGNOSTICS,
        "List policies of a virtual host",
        |it| it.table("/api/policies/{vhost}", POLICIES),
    )
    .says("Listing policies for vhost \"{vhost}\" ..."),
    Command::new("set_policy", Tools::CTL, "Set a policy", |it| {
        set(it, "/api/policies/{vhost}/{name}")
    })
    .takes(&POLICY)
    .says(
        "Setting policy \"{name}\" for pattern \"{pattern}\" to \"{definition}\" with priority \
             \"{priority}\" for vhost \"{vhost}\" ...",
    ),
    Command::new("clear_policy", Tools::CTL, "Remove a policy", |it| {
        it.delete("/api/policies/{vhost}/{name}")?;
        Ok(Answer::Done)
    })
    .takes(&[NAME])
    .says("Clearing policy \"{name}\" on vhost \"{vhost}\" ...")
    .or_missing(Code::Unavailable, NO_PARAMETER),
    Command::new(
        "list_operator_policies",
        Tools::CTL_AND_DIAGNOSTICS,
        "List operator policies of a virtual host",
        |it| it.table("/api/operator-policies/{vhost}", POLICIES),
    )
    .says("Listing operator policy overrides for vhost \"{vhost}\" ..."),
    Command::new("set_operator_policy", Tools::CTL, "Set an operator policy", |it| {
        set(it, "/api/operator-policies/{vhost}/{name}")
    })
    .takes(&POLICY)
    .says(
        "Setting operator policy override \"{name}\" for pattern \"{pattern}\" to \"{definition}\" \
         with priority \"{priority}\" for vhost \"{vhost}\" ...",
    ),
    Command::new("clear_operator_policy", Tools::CTL, "Remove an operator policy", |it| {
        it.delete("/api/operator-policies/{vhost}/{name}")?;
        Ok(Answer::Done)
    })
    .takes(&[NAME])
    .says("Clearing operator policy \"{name}\" on vhost \"{vhost}\" ...")
    .or_missing(Code::Unavailable, NO_PARAMETER),
    Command::new(
        "list_policies_that_match",
        Tools::DIAGNOSTICS,
        "Show the policy that a queue or an exchange has",
        matching,
    )
    .takes(&[
        value("object-type", "queue", "queue or exchange"),
        one("name", "The queue or exchange"),
    ])
    .says("Listing policies that match {object-type} '{name}' in vhost '{vhost}' ...")
    .or_missing(Code::Data, "{object-type} '{name}' in vhost '{vhost}' does not exist"),
    Command::new(
        "list_parameters",
        Tools::CTL_AND_DIAGNOSTICS,
        "List parameters of a virtual host",
        |it| {
            it.get("/api/vhosts/{vhost}?columns=name")?;
            let all = it.get("/api/parameters")?;
            let vhost = it.common.vhost.as_str();
            let own: Value = all
                .as_array()
                .into_iter()
                .flatten()
                .filter(|row| row["vhost"] == vhost)
                .cloned()
                .collect();
            Ok(Call::rows_of(&own, columns::all(&["component", "name", "value!"])))
        },
    )
    .says("Listing runtime parameters for vhost \"{vhost}\" ..."),
    Command::new("set_parameter", Tools::CTL, "Set a parameter of a component", |it| {
        let body = json!({"value": it.json("value")?});
        it.put("/api/parameters/{component_name}/{vhost}/{name}", &body)?;
        Ok(Answer::Done)
    })
    .takes(&[one("component_name", "The component"), NAME, one("value", "Its value, as JSON")])
    .says(
        "Setting runtime parameter \"{name}\" for component \"{component_name}\" to \"{value}\" in \
         vhost \"{vhost}\" ...",
    ),
    Command::new("clear_parameter", Tools::CTL, "Remove a parameter of a component", |it| {
        it.delete("/api/parameters/{component_name}/{vhost}/{name}")?;
        Ok(Answer::Done)
    })
    .takes(&[one("component_name", "The component"), NAME])
    .says(
        "Clearing runtime parameter \"{name}\" for component \"{component_name}\" on vhost \
         \"{vhost}\" ...",
    )
    .or_missing(Code::Unavailable, NO_PARAMETER),
    Command::new(
        "list_global_parameters",
        Tools::CTL_AND_DIAGNOSTICS,
        "List parameters of the node",
        |it| it.table("/api/global-parameters", &["name", "value!"]),
    )
    .says("Listing global runtime parameters ..."),
    Command::new("set_global_parameter", Tools::CTL, "Set a parameter of the node", |it| {
        let body = json!({"value": it.json("value")?});
        it.put("/api/global-parameters/{name}", &body)?;
        Ok(Answer::Done)
    })
    .takes(&[NAME, one("value", "Its value, as JSON")])
    .says("Setting global runtime parameter \"{name}\" to \"{value}\" ..."),
    Command::new("clear_global_parameter", Tools::CTL, "Remove a parameter of the node", |it| {
        it.delete("/api/global-parameters/{name}")?;
        Ok(Answer::Done)
    })
    .takes(&[NAME])
    .says("Clearing global runtime parameter \"{name}\" ...")
    .or_missing(Code::Unavailable, NO_PARAMETER),
];
