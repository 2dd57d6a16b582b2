//! Plugins: what RabbitMQ's do is in the program or not there at all; nothing can be switched.

use serde_json::{Value, json};

use super::{Entry, Tools, flag, ignored, many, maybe, one};
use crate::call::{Answer, Call};
use crate::columns;
use crate::fault::Fault;
use crate::format::cell;

/// RabbitMQ's own plugins. Provisioning enables some of them everywhere.
const KNOWN: [&str; 43] = [
    "rabbitmq_amqp1_0",
    "rabbitmq_amqp_client",
    "rabbitmq_auth_backend_cache",
    "rabbitmq_auth_backend_http",
    "rabbitmq_auth_backend_internal_loopback",
    "rabbitmq_auth_backend_ldap",
    "rabbitmq_auth_backend_oauth2",
    "rabbitmq_auth_mechanism_ssl",
    "rabbitmq_consistent_hash_exchange",
    "rabbitmq_delayed_message_exchange",
    "rabbitmq_event_exchange",
    "rabbitmq_exchange_federation",
    "rabbitmq_federation",
    "rabbitmq_federation_common",
    "rabbitmq_federation_management",
    "rabbitmq_federation_prometheus",
    "rabbitmq_jms_topic_exchange",
    "rabbitmq_management",
    "rabbitmq_management_agent",
    "rabbitmq_mqtt",
    "rabbitmq_peer_discovery_aws",
    "rabbitmq_peer_discovery_common",
    "rabbitmq_peer_discovery_consul",
    "rabbitmq_peer_discovery_etcd",
    "rabbitmq_peer_discovery_k8s",
    "rabbitmq_prometheus",
    "rabbitmq_queue_federation",
    "rabbitmq_random_exchange",
    "rabbitmq_recent_history_exchange",
    "rabbitmq_sharding",
    "rabbitmq_shovel",
    "rabbitmq_shovel_management",
    "rabbitmq_shovel_prometheus",
    "rabbitmq_stomp",
    "rabbitmq_stream",
    "rabbitmq_stream_management",
    "rabbitmq_top",
    "rabbitmq_tracing",
    "rabbitmq_trust_store",
    "rabbitmq_web_dispatch",
    "rabbitmq_web_mqtt",
    "rabbitmq_web_mqtt_examples",
    "rabbitmq_web_stomp",
];

/// Names of the plugins whose work the node does, as it tells.
fn there(it: &mut Call<'_>) -> Result<Vec<String>, Fault> {
    let nodes = it.get("/api/nodes?columns=enabled_plugins")?;
    Ok(nodes[0]["enabled_plugins"].as_array().into_iter().flatten().map(cell).collect())
}

/// Takes every name that RabbitMQ knows. What is not there is named.
fn accept(it: &mut Call<'_>) -> Result<Answer, Fault> {
    let asked = it.words("plugins").to_vec();
    let unknown: Vec<_> = asked.iter().filter(|name| !KNOWN.contains(&name.as_str())).collect();
    if !unknown.is_empty() {
        let names: Vec<_> = unknown.into_iter().cloned().collect();
        return Err(Fault::data(format!(
            "there are no plugins of these names: {}",
            names.join(", ")
        )));
    }
    let there = match it.flag("offline") {
        true => {
            return Ok(Answer::Message(
                "Nothing changed: plugins are not switched here".to_owned(),
            ));
        }
        false => there(it)?,
    };
    let absent: Vec<_> = asked.into_iter().filter(|name| !there.contains(name)).collect();
    Ok(Answer::Message(match absent.is_empty() {
        true => "Nothing changed: what they do is always there".to_owned(),
        false => format!("Nothing changed. Not there: {}", absent.join(", ")),
    }))
}

fn refuse_to_disable(it: &mut Call<'_>) -> Result<Answer, Fault> {
    it.say()?;
    Ok(Answer::Message("Nothing changed: plugins are not switched here".to_owned()))
}

fn list(it: &mut Call<'_>) -> Result<Answer, Fault> {
    let there = there(it)?;
    let pattern = it.word("pattern").to_owned();
    let only_enabled = it.flag("enabled") || it.flag("implicitly-enabled");
    let names: Vec<&str> = KNOWN
        .into_iter()
        .filter(|name| name.contains(&*pattern))
        .filter(|name| !only_enabled || there.iter().any(|it| it == name))
        .collect();
    if it.flag("minimal") {
        let text = names.iter().map(|name| format!("{name}\n")).collect();
        return Ok(Answer::Document(json!({"plugins": names}), text));
    }
    let rows: Value = names
        .into_iter()
        .map(|name| {
            let is_there = there.iter().any(|it| it == name);
            json!({"name": name, "state": if is_there { "always there" } else { "not there" }})
        })
        .collect();
    Ok(Call::rows_of(&rows, columns::all(&["name", "state"])))
}

fn is_enabled(it: &mut Call<'_>) -> Result<Answer, Fault> {
    let there = there(it)?;
    let absent: Vec<_> =
        it.words("plugins").iter().filter(|name| !there.contains(name)).cloned().collect();
    if !absent.is_empty() {
        let text = it.fill(" not there on node {node}");
        return Err(Fault::unavailable(format!("{}{text}", absent.join(", "))));
    }
    Ok(Answer::Message(it.fill("Plugin(s) {plugins} there on node {node}")))
}

const PLUGINS: super::Word = many("plugins", "Names of plugins");

pub(super) const COMMANDS: &[Entry] = &[
    Entry::new(
        "list",
        Tools::PLUGINS,
        "List RabbitMQ's plugins, and whether their work is done here",
        list,
    )
    .takes(&[
        ignored("verbose").short('v'),
        flag("minimal", "Names alone").short('m'),
        flag("enabled", "Only those whose work is done here").short('e'),
        flag("implicitly-enabled", "Only those whose work is done here").short('E'),
        maybe("pattern", "Only names with this in them"),
    ])
    .says("Listing plugins with pattern \"{pattern}\" ..."),
    Entry::new("enable", Tools::PLUGINS, "Accepted: says what of it is there", accept)
        .takes(&[flag("offline", "Without the node"), ignored("online"), ignored("all"), PLUGINS])
        .says("Enabling plugins on node {node}: {plugins}"),
    Entry::new("set", Tools::PLUGINS, "Accepted: says what of it is there", accept)
        .takes(&[flag("offline", "Without the node"), ignored("online"), PLUGINS])
        .says("Enabling plugins on node {node}: {plugins}"),
    Entry::new("disable", Tools::PLUGINS, "Accepted, and changes nothing", refuse_to_disable)
        .takes(&[ignored("offline"), ignored("online"), ignored("all"), PLUGINS])
        .says("Disabling plugins on node {node}: {plugins}"),
    Entry::new(
        "is_enabled",
        Tools::PLUGINS,
        "Check that the work of plugins is done here",
        is_enabled,
    )
    .takes(&[ignored("offline"), ignored("online"), PLUGINS])
    .says("Asking node {node} if plugins {plugins} are enabled ..."),
    Entry::new("directories", Tools::PLUGINS, "Not there: plugins are no files", |_| {
        Err(Fault::unavailable("plugins are no files: what they do is in the program"))
    })
    .takes(&[ignored("offline"), ignored("online"), one("unused", "Nothing")]),
];
