//! Reading definitions, in RabbitMQ's order: users, vhosts, permissions, exchanges, topic permissions,
//! global parameters, policies, parameters, queues, bindings. What exists already stays as it is, but
//! for users, permissions, policies and parameters, which are replaced.

use std::collections::BTreeMap;

use leveret_amqp::table::Table;
use serde_json::{Map, Value as Json};

use crate::binding::Destination;
use crate::error::{AdminError, BindError, DeclareError, PolicyError};
use crate::exchange::ExchangeSpec;
use crate::hash::Hasher64;
use crate::id::{QueueId, VhostId};
use crate::journal::EntityKey;
use crate::parameters::policy_spec;
use crate::queue::{QueueKind, QueueSpec};
use crate::rate::Buckets;
use crate::topology::Topology;
use crate::user::{Hashing, PasswordHash};
use crate::value::{survives_encoding, table_from_json};

/// What an import did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// Entries read, by category: `queues`, `exchanges`, ...
    pub counts: BTreeMap<&'static str, usize>,
    /// Queues that did not exist.
    pub queues: Vec<QueueId>,
    /// Queues that existed and have another policy now.
    pub changed: Vec<QueueId>,
    /// Entries that were left out, and why: names that begin with `amq.`, for example.
    pub skipped: Vec<String>,
}

/// Why an import ended. What came before the entry has been applied, as in RabbitMQ.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {reason}")]
pub struct ImportError {
    /// The entry: `queues[3]`.
    pub place: String,
    /// What is wrong with it.
    pub reason: Box<ImportReason>,
    /// What has been applied.
    pub applied: Box<Imported>,
}

/// What is wrong with an entry of definitions.
#[derive(Debug, thiserror::Error)]
pub enum ImportReason {
    /// The document.
    #[error("not JSON: {0}")]
    NotJson(String),
    /// A part of it.
    #[error("expected {0}")]
    Expected(&'static str),
    /// A key that has to be there, or its type.
    #[error("key '{key}' must be {expected}")]
    Key {
        /// The key.
        key: &'static str,
        /// What it must be.
        expected: &'static str,
    },
    /// A vhost that is neither here nor in the file.
    #[error("Please create virtual host \"{0}\" prior to importing definitions.")]
    NoVhost(String),
    /// A digest that does not exist.
    #[error("unknown hashing algorithm '{0}'")]
    Hashing(String),
    /// A user, a permission or a vhost.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// A queue or an exchange.
    #[error(transparent)]
    Declare(#[from] DeclareError),
    /// A binding.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A policy or a parameter.
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

type Entry = Map<String, Json>;
type Step = fn(&mut Topology, &Entry, &mut Imported) -> Result<(), ImportReason>;

const STEPS: [(&str, Step); 10] = [
    ("users", import_user),
    ("vhosts", import_vhost),
    ("permissions", import_permission),
    ("exchanges", import_exchange),
    ("topic_permissions", import_topic_permission),
    ("global_parameters", import_global_parameter),
    ("policies", import_policy),
    ("parameters", import_parameter),
    ("queues", import_queue),
    ("bindings", import_binding),
];

impl Topology {
    /// Imports definitions as RabbitMQ exports them.
    pub fn import_definitions(&mut self, json: &str) -> Result<Imported, ImportError> {
        let mut imported = Imported::default();
        let fail = |place: String, reason, imported: Imported| ImportError {
            place,
            reason: Box::new(reason),
            applied: Box::new(imported),
        };
        // RabbitMQ accepts a byte-order mark, and nothing at all.
        let json = json.trim_start_matches('\u{feff}').trim();
        let document = if json.is_empty() { "{}" } else { json };
        let document: Json = match serde_json::from_str(document) {
            Ok(document) => document,
            Err(error) => {
                let reason = ImportReason::NotJson(error.to_string());
                return Err(fail("definitions".to_owned(), reason, imported));
            }
        };
        let Json::Object(document) = document else {
            let reason = ImportReason::Expected("an object");
            return Err(fail("definitions".to_owned(), reason, imported));
        };
        for (category, step) in STEPS {
            let entries = match document.get(category) {
                None | Some(Json::Null) => continue,
                Some(Json::Array(entries)) => entries,
                Some(_) => {
                    let reason = ImportReason::Expected("an array");
                    return Err(fail(category.to_owned(), reason, imported));
                }
            };
            for (at, entry) in entries.iter().enumerate() {
                let result = match entry {
                    Json::Object(entry) => step(self, entry, &mut imported),
                    _ => Err(ImportReason::Expected("an object")),
                };
                if let Err(reason) = result {
                    return Err(fail(format!("{category}[{at}]"), reason, imported));
                }
            }
            imported.counts.insert(category, entries.len());
        }
        let created = &imported.queues;
        imported.changed.retain(|queue| !created.contains(queue));
        imported.changed.sort_unstable();
        imported.changed.dedup();
        Ok(imported)
    }
}

fn import_user(
    topology: &mut Topology,
    entry: &Entry,
    _: &mut Imported,
) -> Result<(), ImportReason> {
    let name = text(entry, "name")?;
    let password =
        match (optional_text(entry, "password_hash")?, optional_text(entry, "password")?) {
            (Some(hash), _) => {
                // Definitions from before 3.6 name none and use MD5.
                let hashing = match optional_text(entry, "hashing_algorithm")? {
                    Some(name) => Hashing::parse(name)
                        .ok_or_else(|| ImportReason::Hashing(name.to_owned()))?,
                    None => Hashing::Md5,
                };
                PasswordHash::from_base64(name, hash, hashing)?
            }
            (None, Some(password)) => PasswordHash::new(password, salt(name, password)),
            (None, None) => PasswordHash::from_base64(name, "", Hashing::Sha256)?,
        };
    let tags = tags(entry)?;
    let tags: Vec<&str> = tags.iter().map(String::as_str).collect();
    if topology.user(name).is_some() {
        topology.change_password(name, password)?;
        topology.set_tags(name, &tags)?;
    } else {
        topology.add_user(name, password, &tags)?;
    }
    if let Some(limits) = entry.get("limits").filter(|limits| limits.is_object()) {
        topology.set_user_limits(name, crate::parameters::limits(limits)?)?;
    }
    Ok(())
}

/// Differs from user to user and from password to password, which is what salt is for; nothing here
/// is random.
fn salt(user: &str, password: &str) -> [u8; 4] {
    let mut hasher = Hasher64::new();
    hasher.bytes(user.as_bytes());
    hasher.bytes(password.as_bytes());
    let [a, b, c, d, ..] = hasher.finish().to_le_bytes();
    [a, b, c, d]
}

fn import_vhost(
    topology: &mut Topology,
    entry: &Entry,
    _: &mut Imported,
) -> Result<(), ImportReason> {
    let name = text(entry, "name")?;
    let empty = Map::new();
    let metadata = entry.get("metadata").and_then(Json::as_object).unwrap_or(&empty);
    let kind = optional_text(metadata, "default_queue_type")?;
    let kind = match kind.or(optional_text(entry, "default_queue_type")?) {
        None | Some("undefined" | "") => None,
        Some("classic") => Some(QueueKind::Classic),
        Some("quorum") => Some(QueueKind::Quorum),
        Some(other) => return Err(AdminError::QueueType(other.to_owned()).into()),
    };
    let limits = match entry.get("limits").filter(|limits| limits.is_object()) {
        Some(limits) => crate::parameters::limits(limits)?,
        None => BTreeMap::new(),
    };
    let id = topology.add_vhost(name)?;
    let description = optional_text(metadata, "description")?;
    let description = description.or(optional_text(entry, "description")?).map(str::to_owned);
    let tags = if metadata.contains_key("tags") { tags(metadata)? } else { tags(entry)? };
    let is_protected = metadata.get("protected_from_deletion").and_then(Json::as_bool);
    if let Some(vhost) = topology.vhost_mut(id) {
        vhost.is_protected = is_protected.unwrap_or(vhost.is_protected);
        vhost.description = description.unwrap_or_default();
        vhost.tags = tags;
        vhost.default_queue_type = kind;
        vhost.limits.extend(limits);
        vhost.rates = Buckets::default();
    }
    topology.access_generation += 1;
    topology.journal.note(EntityKey::Vhost(id));
    Ok(())
}

fn import_permission(
    topology: &mut Topology,
    entry: &Entry,
    _: &mut Imported,
) -> Result<(), ImportReason> {
    topology.set_permissions(
        text(entry, "user")?,
        text(entry, "vhost")?,
        text(entry, "configure")?,
        text(entry, "write")?,
        text(entry, "read")?,
    )?;
    Ok(())
}

fn import_topic_permission(
    topology: &mut Topology,
    entry: &Entry,
    _: &mut Imported,
) -> Result<(), ImportReason> {
    topology.set_topic_permissions(
        text(entry, "user")?,
        text(entry, "vhost")?,
        text(entry, "exchange")?,
        text(entry, "write")?,
        text(entry, "read")?,
    )?;
    Ok(())
}

fn import_exchange(
    topology: &mut Topology,
    entry: &Entry,
    imported: &mut Imported,
) -> Result<(), ImportReason> {
    let (vhost, name) = (vhost(topology, entry)?, text(entry, "name")?);
    if name.is_empty() || name.starts_with("amq.") {
        imported.skipped.push(format!("exchange '{name}': its name is the broker's"));
        return Ok(());
    }
    if topology.exchange(vhost, name).is_some() {
        return Ok(());
    }
    topology.declare_exchange(ExchangeSpec {
        vhost,
        name,
        kind: text(entry, "type")?,
        durable: flag(entry, "durable", true)?,
        auto_delete: flag(entry, "auto_delete", false)?,
        internal: flag(entry, "internal", false)?,
        arguments: arguments(entry)?,
    })?;
    Ok(())
}

fn import_queue(
    topology: &mut Topology,
    entry: &Entry,
    imported: &mut Imported,
) -> Result<(), ImportReason> {
    let (vhost, name) = (vhost(topology, entry)?, text(entry, "name")?);
    if name.starts_with("amq.") {
        imported.skipped.push(format!("queue '{name}': its name is the broker's"));
        return Ok(());
    }
    if topology.queue(vhost, name).is_some() {
        return Ok(());
    }
    let declared = topology.declare_queue(QueueSpec {
        vhost,
        name,
        server_named: false,
        durable: flag(entry, "durable", true)?,
        auto_delete: flag(entry, "auto_delete", false)?,
        exclusive_owner: None,
        arguments: arguments(entry)?,
    })?;
    imported.queues.push(declared.id);
    Ok(())
}

fn import_binding(
    topology: &mut Topology,
    entry: &Entry,
    imported: &mut Imported,
) -> Result<(), ImportReason> {
    let vhost = vhost(topology, entry)?;
    let (source, name) = (text(entry, "source")?, text(entry, "destination")?);
    if source.is_empty() {
        imported.skipped.push(format!("binding of the default exchange to '{name}'"));
        return Ok(());
    }
    let destination = match text(entry, "destination_type")? {
        "queue" => Destination::Queue(name),
        "exchange" => Destination::Exchange(name),
        _ => {
            let expected = "'queue' or 'exchange'";
            return Err(ImportReason::Key { key: "destination_type", expected });
        }
    };
    let key = optional_text(entry, "routing_key")?.unwrap_or("");
    topology.bind(vhost, source, destination, key, arguments(entry)?, None)?;
    Ok(())
}

fn import_policy(
    topology: &mut Topology,
    entry: &Entry,
    imported: &mut Imported,
) -> Result<(), ImportReason> {
    let value = Json::Object(entry.clone());
    let spec = policy_spec(text(entry, "name")?, &value)?;
    let changed = topology.set_policy(text(entry, "vhost")?, spec)?;
    imported.changed.extend(changed);
    Ok(())
}

fn import_parameter(
    topology: &mut Topology,
    entry: &Entry,
    imported: &mut Imported,
) -> Result<(), ImportReason> {
    let value = entry.get("value").cloned();
    let value = value.ok_or(ImportReason::Key { key: "value", expected: "given" })?;
    let (component, name) = (text(entry, "component")?, text(entry, "name")?);
    let changed = topology.set_parameter(text(entry, "vhost")?, component, name, value)?;
    imported.changed.extend(changed);
    Ok(())
}

fn import_global_parameter(
    topology: &mut Topology,
    entry: &Entry,
    _: &mut Imported,
) -> Result<(), ImportReason> {
    let value = entry.get("value").cloned();
    let value = value.ok_or(ImportReason::Key { key: "value", expected: "given" })?;
    topology.set_global_parameter(text(entry, "name")?, value);
    Ok(())
}

fn vhost(topology: &Topology, entry: &Entry) -> Result<VhostId, ImportReason> {
    let name = text(entry, "vhost")?;
    topology.vhost_id(name).map_err(|_| ImportReason::NoVhost(name.to_owned()))
}

fn text<'a>(entry: &'a Entry, key: &'static str) -> Result<&'a str, ImportReason> {
    entry
        .get(key)
        .and_then(Json::as_str)
        .ok_or(ImportReason::Key { key, expected: "given, as a string" })
}

fn optional_text<'a>(entry: &'a Entry, key: &'static str) -> Result<Option<&'a str>, ImportReason> {
    match entry.get(key) {
        None | Some(Json::Null) => Ok(None),
        Some(Json::String(text)) => Ok(Some(text)),
        Some(_) => Err(ImportReason::Key { key, expected: "a string" }),
    }
}

fn flag(entry: &Entry, key: &'static str, default: bool) -> Result<bool, ImportReason> {
    match entry.get(key) {
        None | Some(Json::Null) => Ok(default),
        Some(Json::Bool(flag)) => Ok(*flag),
        Some(_) => Err(ImportReason::Key { key, expected: "true or false" }),
    }
}

/// An array in RabbitMQ 3.9 and later, before that a string with commas.
fn tags(entry: &Entry) -> Result<Vec<String>, ImportReason> {
    let split = |text: &str| {
        let tags = text.split(',').map(str::trim).filter(|tag| !tag.is_empty());
        tags.map(str::to_owned).collect()
    };
    let bad = || ImportReason::Key { key: "tags", expected: "an array of strings" };
    match entry.get("tags") {
        None | Some(Json::Null) => Ok(Vec::new()),
        Some(Json::String(text)) => Ok(split(text)),
        Some(Json::Array(tags)) => {
            tags.iter().map(|tag| tag.as_str().map(str::to_owned).ok_or_else(bad)).collect()
        }
        Some(_) => Err(bad()),
    }
}

fn arguments(entry: &Entry) -> Result<Table, ImportReason> {
    match entry.get("arguments") {
        None | Some(Json::Null) => Ok(Table::new()),
        Some(Json::Object(map)) => {
            let table = table_from_json(map);
            // What the wire could not carry could not be stored either, and be there after a restart.
            if !table.is_empty() && !survives_encoding(&table) {
                let expected = "at most 100 levels deep, with names of at most 255 bytes";
                return Err(ImportReason::Key { key: "arguments", expected });
            }
            Ok(table)
        }
        // Old exports write an empty table as an empty array.
        Some(Json::Array(items)) if items.is_empty() => Ok(Table::new()),
        Some(_) => Err(ImportReason::Key { key: "arguments", expected: "an object" }),
    }
}
