//! Plugins: what RabbitMQ's do is in the program or not there at all; nothing can be switched.

use leveret_config::plugins::BUILT_IN;
use serde_json::{Value, json};

use super::{Command, Tools, flag, ignored, many, maybe};
use crate::call::{Answer, Call};
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

/// Names of the plugins whose work the node does, as it tells; or, without asking it, of those it can do.
fn there(it: &mut Call<'_>) -> Result<Vec<String>, Fault> {
    if it.flag("offline") {
        it.say()?;
        return Ok(BUILT_IN.map(str::to_owned).to_vec());
    }
    // Each node answers this itself, also one that another one leads.
    let status = it.get("/api/leveret/status")?;
    Ok(status["active_plugins"].as_array().into_iter().flatten().map(cell).collect())
}

/// The plugins that the call names and the node does not have.
fn absent(it: &Call<'_>, there: &[String]) -> Vec<String> {
    it.words("plugins").iter().filter(|name| !there.contains(name)).cloned().collect()
}

/// Takes what is there; nothing has to be done for it. What is not there cannot be enabled.
fn accept(it: &mut Call<'_>) -> Result<Answer, Fault> {
    let there = there(it)?;
    let absent = absent(it, &there);
    if !absent.is_empty() {
        let names = absent.join(", ");
        return Err(Fault::data(format!("The following plugins were not found: {names}")));
    }
    let names: String = there.iter().map(|name| format!("  {name}\n")).collect();
    Ok(Answer::Message(it.fill(&format!(
        "The following plugins have been configured:\n{names}Applying plugin configuration to \
         {{node}}...\nPlugin configuration unchanged."
    ))))
}

/// What is not there is off already; nothing else can be turned off here.
fn refuse_to_disable(it: &mut Call<'_>) -> Result<Answer, Fault> {
    let there = there(it)?;
    let asked = it.words("plugins").iter();
    let built_in: Vec<_> = asked.filter(|name| there.contains(name)).cloned().collect();
    if !built_in.is_empty() || it.flag("all") {
        let names = if it.flag("all") { there } else { built_in };
        return Err(Fault::unavailable(format!(
            "built in, not switched here: {}; management.enabled = false and prometheus.enabled = false \
             in the configuration turn these two off",
            names.join(", ")
        )));
    }
    Ok(Answer::Message("Plugin configuration unchanged.".to_owned()))
}

fn list(it: &mut Call<'_>) -> Result<Answer, Fault> {
    let pattern = fancy_regex::Regex::new(it.word("pattern"))
        .map_err(|error| Fault::data(format!("the pattern is no regular expression: {error}")))?;
    let there = there(it)?;
    let is_there = |name: &&str| there.iter().any(|it| it == name);
    let only_enabled = it.flag("enabled") || it.flag("implicitly-enabled");
    let names: Vec<&str> = KNOWN
        .into_iter()
        .filter(|name| pattern.is_match(name).unwrap_or(false))
        .filter(|name| !only_enabled || is_there(name))
        .collect();
    if it.flag("minimal") {
        let text = names.iter().map(|name| format!("{name}\n")).collect();
        return Ok(Answer::Document(json!({"plugins": names}), text));
    }
    let version = it.rabbitmq_version;
    let rows: Vec<Value> = names
        .iter()
        .map(|name| match is_there(name) {
            true => json!({"name": name, "version": version, "running_version": version,
                "enabled": "enabled", "running": true}),
            false => {
                json!({"name": name, "version": "", "enabled": "not_enabled", "running": false})
            }
        })
        .collect();
    let document = json!({"status": "running", "format": "normal", "plugins": rows});
    let width = names.iter().map(|name| name.len()).max().unwrap_or(0);
    let mut text = it.fill(
        " Configured: E = explicitly enabled; e = implicitly enabled\n | Status: * = running on {node}\n |/\n",
    );
    for name in &names {
        text += &match is_there(name) {
            true => format!("[E*] {name:width$} {version}\n"),
            false => format!("[  ] {name}\n"),
        };
    }
    Ok(Answer::Document(document, text))
}

fn is_enabled(it: &mut Call<'_>) -> Result<Answer, Fault> {
    let there = there(it)?;
    let absent = absent(it, &there);
    let (noun, verb) =
        if it.words("plugins").len() == 1 { ("Plugin", "is") } else { ("Plugins", "are") };
    let where_ = if it.flag("offline") { String::new() } else { it.fill(" on node {node}") };
    if !absent.is_empty() {
        let (noun, verb) = if absent.len() == 1 { ("Plugin", "is") } else { ("Plugins", "are") };
        return Err(Fault::unavailable(format!(
            "{noun} {} {verb} not enabled{where_}. Enabled plugins and dependencies: {}",
            absent.join(", "),
            there.join(", ")
        )));
    }
    let asked = it.words("plugins").join(", ");
    Ok(Answer::Message(format!("{noun} {asked} {verb} enabled{where_}")))
}

const PLUGINS: super::Word = many("plugins", "Names of plugins");

pub(super) const COMMANDS: &[Command] = &[
    Command::new(
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
        flag("offline", "Without the node"),
        maybe("pattern", "Only names that this matches"),
    ])
    .says("Listing plugins with pattern \"{pattern}\" ..."),
    Command::new(
        "enable",
        Tools::PLUGINS,
        "Accepted for what is there, refused for what is not",
        accept,
    )
    .takes(&[flag("offline", "Without the node"), ignored("online"), ignored("all"), PLUGINS])
    .says("Enabling plugins on node {node}: {plugins}"),
    Command::new(
        "set",
        Tools::PLUGINS,
        "Accepted for what is there, refused for what is not",
        accept,
    )
    .takes(&[flag("offline", "Without the node"), ignored("online"), PLUGINS])
    .says("Enabling plugins on node {node}: {plugins}"),
    Command::new(
        "disable",
        Tools::PLUGINS,
        "Accepted for what is not there, refused for what is built in",
        refuse_to_disable,
    )
    .takes(&[
        flag("offline", "Without the node"),
        ignored("online"),
        flag("all", "All of them"),
        PLUGINS,
    ])
    .says("Disabling plugins on node {node}: {plugins}"),
    Command::new(
        "is_enabled",
        Tools::PLUGINS,
        "Check that the work of plugins is done here",
        is_enabled,
    )
    .takes(&[flag("offline", "Without the node"), ignored("online"), PLUGINS])
    .says("Asking node {node} if plugins {plugins} are enabled ..."),
    Command::new("directories", Tools::PLUGINS, "Not there: plugins are no files", |_| {
        Err(Fault::unavailable("plugins are no files: what they do is in the program"))
    })
    .takes(&[ignored("offline"), ignored("online"), maybe("unused", "Nothing")]),
];
