//! Reading definitions, in RabbitMQ's order: users, vhosts, permissions, exchanges, topic permissions,
//! global parameters, policies, parameters, queues, bindings. What exists already stays as it is, but
//! for users, permissions, policies and parameters, which are replaced. What cannot be [is found](super::check) before that.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use foldhash::fast::FixedState;
use hashbrown::HashSet;
use leveret_amqp::table::Table;
use serde_json::error::Category;
use serde_json::value::RawValue;
use serde_json::{Map, Value as Json};

use super::check::{At, Check, Lines, at};
use crate::binding::Destination;
use crate::error::{AdminError, BindError, DeclareError, NameError, PolicyError};
use crate::exchange::ExchangeSpec;
use crate::hash::Hasher64;
use crate::id::{QueueId, VhostId};
use crate::journal::EntityKey;
use crate::parameters::{is_policy, must_be_component};
use crate::policy::Policy;
use crate::policy_change::PolicyChange;
use crate::queue::{QueueKind, QueueSpec};
use crate::rate::Buckets;
use crate::topology::Topology;
use crate::user::{Hashing, PasswordHash};
use crate::value::checked_table_from_json;
use crate::weight::Weigh as _;

/// What an import did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// Entries read, by category: `queues`, `exchanges`, ...
    pub counts: BTreeMap<&'static str, usize>,
    /// Queues that did not exist.
    pub queues: Vec<QueueId>,
    /// Queues that existed and have another policy now.
    pub changed: Vec<QueueId>,
    /// Entries that were left out, and why: names that begin with `amq.`, and what cannot be here if that
    /// [is left out](Import::skip_unsupported).
    pub skipped: Vec<String>,
    /// Policies that are there and have no effect.
    pub without_effect: Vec<String>,
}

/// Why an import ended. What came before the entry has been applied, as in RabbitMQ.
#[derive(Debug, thiserror::Error)]
#[error("{}{reason}", prefix(.entry))]
pub struct ImportError {
    /// The entry: `queues[3]`. Empty if nothing was begun because of what the reason names.
    pub entry: String,
    /// What is wrong with it.
    pub reason: Box<ImportReason>,
    /// What has been applied.
    pub applied: Box<Imported>,
}

/// What is wrong with an entry of definitions, or with all of them.
#[derive(Debug, thiserror::Error)]
pub enum ImportReason {
    /// Nothing has been applied. A line for each thing that cannot be.
    #[error("{0}")]
    Refused(String),
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
    /// What something new is to be called.
    #[error(transparent)]
    Name(#[from] NameError),
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

/// An object of the document: what it says of one queue, exchange, user, ...
pub(super) type JsonObject = Map<String, Json>;
type Step = fn(&mut Topology, &JsonObject, &mut Import) -> Result<(), ImportReason>;

pub(super) const STEPS: [(&str, Step); 10] = [
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

/// Definitions that are being imported, and what has been done of them.
///
/// Entries stay text until they are applied: read, that of a queue takes ten times as much, and there may be very many.
#[derive(Debug, Default)]
pub struct Import {
    text: Bytes,
    /// Where in it each of [`STEPS`] has its entries; none if that is no list.
    entries: [Option<Vec<Range<usize>>>; STEPS.len()],
    /// The vhost of all of them, if they do not say.
    vhost: Option<Box<str>>,
    /// How many of [`STEPS`] have begun.
    step: usize,
    /// How many entries of the last one of them were taken.
    at: usize,
    total: usize,
    done: usize,
    imported: Imported,
    skipped: Lines,
    without_effect: Lines,
    /// What is looked for before the first entry is applied.
    check: Option<Check>,
    /// Whether what cannot be here is left out.
    skips: bool,
    /// Entries to leave out.
    left_out: HashSet<At, FixedState>,
    /// The policy that was the last entry, while it is being applied.
    policy: Option<PolicyChange>,
    /// Policies that were read with the document, by what describes them: to compile a pattern takes a while, and names
    /// wait for the import.
    read: BTreeMap<(bool, Box<str>), Policy>,
}

/// Lists of a document whose entries belong to a vhost.
const OF_VHOST: [&str; 5] = ["parameters", "policies", "queues", "exchanges", "bindings"];

/// Bytes of an entry that cost as much as one more entry.
const COSTLY: usize = 1 << 10;

/// Bytes of the policies that are read with a document.
const READ_MAX: u64 = 128 << 20;

/// What it costs to compile a pattern while names wait.
const COMPILED: u64 = 256;

impl Import {
    /// Reads a document. RabbitMQ accepts a byte-order mark, and nothing at all.
    pub fn read(json: &str) -> Result<Self, ImportError> {
        Self::of(Bytes::copy_from_slice(json.as_bytes()))
    }

    /// As [`read`](Self::read), without a copy of it.
    pub fn of(json: Bytes) -> Result<Self, ImportError> {
        Self::scan(json, None).map(Self::with_policies)
    }

    /// Of one vhost, which its entries do not name. What concerns the whole node is left out.
    pub fn into_vhost(vhost: &str, json: Bytes) -> Result<Self, ImportError> {
        let import = Self::scan(json, Some(vhost.into()))?;
        let mut lists = STEPS.iter().zip(&import.entries);
        match lists.find(|(_, entries)| entries.is_none()) {
            Some((&(category, _), _)) => {
                Err(not_begun(category, ImportReason::Expected("an array")))
            }
            None => Ok(import.with_policies()),
        }
    }

    /// Finds the entries.
    fn scan(json: Bytes, vhost: Option<Box<str>>) -> Result<Self, ImportError> {
        let document = |reason| not_begun("definitions", reason);
        let whole = str::from_utf8(&json)
            .map_err(|error| document(ImportReason::NotJson(error.to_string())))?;
        let text = whole.trim_start_matches('\u{feff}').trim();
        let lists: BTreeMap<String, &RawValue> = match text {
            "" => BTreeMap::new(),
            text => serde_json::from_str(text).map_err(|error| {
                document(match error.classify() {
                    Category::Data => ImportReason::Expected("an object"),
                    _ => ImportReason::NotJson(error.to_string()),
                })
            })?,
        };
        let mut entries = <[_; STEPS.len()]>::default();
        for ((category, _), entries) in STEPS.iter().zip(&mut entries) {
            let is_wanted = vhost.is_none() || OF_VHOST.contains(category);
            let list = lists.get(*category).filter(|_| is_wanted);
            *entries = match list.map(|list| list.get()) {
                None | Some("null") => Some(Vec::new()),
                Some(list) => serde_json::from_str::<Vec<&RawValue>>(list)
                    .ok()
                    .map(|list| list.iter().map(|entry| place(whole, entry.get())).collect()),
            };
        }
        let total = entries.iter().flatten().map(Vec::len).sum();
        let mut import = Self { text: json, entries, vhost, total, ..Self::default() };
        import.check = Some(Check::new(&import));
        Ok(import)
    }

    /// Leaves out what cannot be here, or is of something that is not there, and tells it. Without that such a document is
    /// refused, as RabbitMQ refuses it.
    #[must_use]
    pub fn skip_unsupported(mut self, skips: bool) -> Self {
        self.skips = skips;
        self
    }

    /// Where the entries of a category are, by its place in [`STEPS`]; none if it is no list.
    pub(super) fn places(&self, step: usize) -> Option<&[Range<usize>]> {
        self.entries.get(step)?.as_deref()
    }

    /// Reads an entry.
    pub(super) fn entry(&self, place: &Range<usize>) -> Result<JsonObject, ImportReason> {
        let text = self.text.get(place.clone()).unwrap_or_default();
        match serde_json::from_slice(text) {
            Ok(Json::Object(mut entry)) => {
                if let Some(vhost) = &self.vhost {
                    entry.insert("vhost".to_owned(), Json::from(&**vhost));
                }
                Ok(entry)
            }
            Ok(_) => Err(ImportReason::Expected("an object")),
            Err(error) => Err(ImportReason::NotJson(error.to_string())),
        }
    }

    /// Reads policies ahead, as far as they are not very many.
    fn with_policies(mut self) -> Self {
        let mut weight = 0;
        let mut read = BTreeMap::new();
        let categories = STEPS.iter().zip(&self.entries);
        for ((category, _), places) in categories {
            for place in places.iter().flatten() {
                let policy = match *category {
                    "policies" => self.entry(place).ok().and_then(policy_of),
                    "parameters" => self.entry(place).ok().and_then(policy_of_parameter),
                    _ => break,
                };
                let Some((operator, name, value)) = policy else { continue };
                let Ok(policy) = Policy::of_parameter(&name, &value, operator) else { break };
                weight += policy.weight();
                if weight > READ_MAX {
                    break;
                }
                read.insert((operator, value.to_string().into()), policy);
            }
        }
        self.read = read;
        self
    }

    /// A policy that was read ahead, or is read now, which costs.
    fn take_policy(
        &mut self,
        name: &str,
        value: &Json,
        operator: bool,
    ) -> Result<(Policy, u64), PolicyError> {
        match self.read.remove(&(operator, value.to_string().into())) {
            Some(policy) if *policy.name == *name => Ok((policy, 0)),
            _ => Ok((Policy::of_parameter(name, value, operator)?, COMPILED)),
        }
    }

    /// How many entries are done, and how many there are.
    pub fn progress(&self) -> (usize, usize) {
        (self.done, self.total)
    }

    /// Nothing is left.
    pub fn is_done(&self) -> bool {
        self.step > STEPS.len()
    }

    /// Applies about `allowed` entries; gives how much it was. An entry is applied as a whole, but a policy, which is
    /// looked at with all queues before the next entry comes.
    pub fn advance(&mut self, topology: &mut Topology, allowed: u64) -> Result<u64, ImportError> {
        let mut used = self.look_through(topology, allowed)?;
        while used < allowed && !self.is_done() {
            if let Some(mut policy) = self.policy.take() {
                let advanced = policy.advance(topology, allowed - used);
                used += advanced.map_err(|error| {
                    let (category, _) = STEPS[self.step - 1];
                    self.fail(format!("{category}[{}]", self.at - 1), error.into())
                })?;
                self.imported.changed.extend(policy.take_changed());
                if policy.left() > 0 {
                    self.policy = Some(policy);
                } else {
                    policy.end(topology);
                }
                continue;
            }
            let Some(place) = self.next_place() else {
                self.next_category()?;
                continue;
            };
            used += 1 + (place.len() / COSTLY) as u64;
            if self.left_out.contains(&at(self.step - 1, self.at)) {
                self.at += 1;
                self.done += 1;
                continue;
            }
            let (category, step) = STEPS[self.step - 1];
            let result = self.entry(&place).and_then(|entry| step(topology, &entry, self));
            if let Err(reason) = result {
                return Err(self.fail(format!("{category}[{}]", self.at), reason));
            }
            used += topology.take_matching();
            self.at += 1;
            self.done += 1;
        }
        Ok(used)
    }

    /// Looks for what cannot be; the first entry is applied when all were looked at.
    fn look_through(&mut self, topology: &Topology, allowed: u64) -> Result<u64, ImportError> {
        let Some(mut check) = self.check.take() else { return Ok(0) };
        let used = check.advance(self, topology, allowed);
        if !check.is_done() {
            self.check = Some(check);
            return Ok(used);
        }
        let mut found = check.found;
        if !found.allows(self.skips) {
            return Err(not_begun("", ImportReason::Refused(found.refusal())));
        }
        self.left_out = std::mem::take(&mut found.left_out);
        self.skipped = found.into_lines();
        Ok(used)
    }

    /// Where the next entry of the category is.
    fn next_place(&self) -> Option<Range<usize>> {
        self.entries.get(self.step.checked_sub(1)?)?.as_ref()?.get(self.at).cloned()
    }

    fn next_category(&mut self) -> Result<(), ImportError> {
        self.step += 1;
        self.at = 0;
        let Some(&(category, _)) = STEPS.get(self.step - 1) else { return Ok(()) };
        match &self.entries[self.step - 1] {
            Some(entries) => {
                if !entries.is_empty() {
                    self.imported.counts.insert(category, entries.len());
                }
                Ok(())
            }
            None => Err(self.fail(category.to_owned(), ImportReason::Expected("an array"))),
        }
    }

    /// What came before stays.
    fn fail(&mut self, entry: String, reason: ImportReason) -> ImportError {
        if let Some(&(category, _)) = self.step.checked_sub(1).and_then(|at| STEPS.get(at)) {
            self.imported.counts.remove(category);
        }
        let applied = Box::new(std::mem::take(&mut self.imported));
        ImportError { entry, reason: Box::new(reason), applied }
    }

    /// Queues that were made, and those that have another policy, since this was last asked.
    pub fn take_queues(&mut self) -> (Vec<QueueId>, Vec<QueueId>) {
        let made = std::mem::take(&mut self.imported.queues);
        (made, std::mem::take(&mut self.imported.changed))
    }

    /// What it did.
    pub fn end(mut self) -> Imported {
        self.imported.skipped = self.skipped.finish();
        self.imported.without_effect = self.without_effect.finish();
        self.imported
    }
}

fn prefix(entry: &str) -> String {
    if entry.is_empty() { String::new() } else { format!("{entry}: ") }
}

/// Nothing was applied.
fn not_begun(entry: &str, reason: ImportReason) -> ImportError {
    ImportError { entry: entry.to_owned(), reason: Box::new(reason), applied: Box::default() }
}

/// Where `part`, a part of `whole`, lies in it.
fn place(whole: &str, part: &str) -> Range<usize> {
    let start = (part.as_ptr() as usize).wrapping_sub(whole.as_ptr() as usize);
    start..start + part.len()
}

/// What describes a policy: whether it is an operator's, its name, what it says.
fn policy_of(entry: JsonObject) -> Option<(bool, String, Json)> {
    let name = entry.get("name")?.as_str()?.to_owned();
    Some((false, name, Json::Object(entry)))
}

fn policy_of_parameter(mut entry: JsonObject) -> Option<(bool, String, Json)> {
    let operator = is_policy(entry.get("component")?.as_str()?)?;
    let name = entry.get("name")?.as_str()?.to_owned();
    Some((operator, name, entry.remove("value")?))
}

impl Topology {
    /// Imports definitions as RabbitMQ exports them.
    pub fn import_definitions(&mut self, json: &str) -> Result<Imported, ImportError> {
        self.import(Import::read(json)?)
    }

    /// Imports definitions that were read.
    pub fn import(&mut self, mut import: Import) -> Result<Imported, ImportError> {
        import.advance(self, u64::MAX)?;
        let mut imported = import.end();
        let created = &imported.queues;
        imported.changed.retain(|queue| created.binary_search(queue).is_err());
        imported.changed.sort_unstable();
        imported.changed.dedup();
        Ok(imported)
    }
}

fn import_user(
    topology: &mut Topology,
    entry: &JsonObject,
    _: &mut Import,
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
            (None, Some(password)) => {
                topology.defaults().passwords.check(password)?;
                PasswordHash::new(password, salt(name, password))
            }
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
    let mut hasher = Hasher64::fixed();
    hasher.bytes(user.as_bytes());
    hasher.bytes(password.as_bytes());
    let [a, b, c, d, ..] = hasher.finish().to_le_bytes();
    [a, b, c, d]
}

fn import_vhost(
    topology: &mut Topology,
    entry: &JsonObject,
    import: &mut Import,
) -> Result<(), ImportReason> {
    let name = text(entry, "name")?;
    let empty = Map::new();
    let metadata = entry.get("metadata").and_then(Json::as_object).unwrap_or(&empty);
    let kind = optional_text(metadata, "default_queue_type")?;
    let kind = match kind.or(optional_text(entry, "default_queue_type")?) {
        None | Some("undefined" | "") => None,
        Some("classic") => Some(QueueKind::Classic),
        Some("quorum") => Some(QueueKind::Quorum),
        Some(other) if !import.skips => {
            return Err(AdminError::QueueType(other.to_owned()).into());
        }
        Some(_) => None,
    };
    let limits = match entry.get("limits").filter(|limits| limits.is_object()) {
        Some(limits) => crate::parameters::limits(limits)?,
        None => BTreeMap::new(),
    };
    let is_new = topology.vhost(name).is_none();
    let id = topology.add_vhost(name)?;
    let description = optional_text(metadata, "description")?;
    let description = description.or(optional_text(entry, "description")?).map(str::to_owned);
    let tags = if metadata.contains_key("tags") { tags(metadata)? } else { tags(entry)? };
    let is_protected = metadata.get("protected_from_deletion").and_then(Json::as_bool);
    if let Some(vhost) = topology.vhost_mut(id) {
        vhost.is_protected = is_protected.unwrap_or(vhost.is_protected);
        vhost.description = description.unwrap_or_default();
        vhost.tags = tags;
        // A new vhost has that of the node already.
        vhost.default_queue_type = if is_new { kind.or(vhost.default_queue_type) } else { kind };
        vhost.limits.extend(limits);
        vhost.rates = Buckets::default();
    }
    topology.access_generation += 1;
    topology.journal.note(EntityKey::Vhost(id));
    Ok(())
}

fn import_permission(
    topology: &mut Topology,
    entry: &JsonObject,
    _: &mut Import,
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
    entry: &JsonObject,
    _: &mut Import,
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
    entry: &JsonObject,
    import: &mut Import,
) -> Result<(), ImportReason> {
    let (vhost, name) = (vhost(topology, entry)?, text(entry, "name")?);
    if name.is_empty() || name.starts_with("amq.") {
        import.skipped.push(format!("exchange '{name}': its name is the broker's"));
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
    entry: &JsonObject,
    import: &mut Import,
) -> Result<(), ImportReason> {
    let (vhost, name) = (vhost(topology, entry)?, text(entry, "name")?);
    if name.starts_with("amq.") {
        import.skipped.push(format!("queue '{name}': its name is the broker's"));
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
    import.imported.queues.push(declared.id);
    Ok(())
}

fn import_binding(
    topology: &mut Topology,
    entry: &JsonObject,
    import: &mut Import,
) -> Result<(), ImportReason> {
    let vhost = vhost(topology, entry)?;
    let (source, name) = (text(entry, "source")?, text(entry, "destination")?);
    if source.is_empty() {
        import.skipped.push(format!("binding of the default exchange to '{name}'"));
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
    entry: &JsonObject,
    import: &mut Import,
) -> Result<(), ImportReason> {
    let value = Json::Object(entry.clone());
    start_policy(topology, import, text(entry, "vhost")?, text(entry, "name")?, &value, false)
}

fn start_policy(
    topology: &mut Topology,
    import: &mut Import,
    vhost: &str,
    name: &str,
    value: &Json,
    operator: bool,
) -> Result<(), ImportReason> {
    let (policy, cost) = import.take_policy(name, value, operator)?;
    policy.without_effect().into_iter().for_each(|text| import.without_effect.push(text));
    topology.matching.units += cost;
    import.policy = Some(topology.start_set_policy(vhost, policy, operator)?);
    Ok(())
}

fn import_parameter(
    topology: &mut Topology,
    entry: &JsonObject,
    import: &mut Import,
) -> Result<(), ImportReason> {
    let value = entry.get("value").cloned();
    let value = value.ok_or(ImportReason::Key { key: "value", expected: "given" })?;
    let (component, name) = (text(entry, "component")?, text(entry, "name")?);
    let vhost = text(entry, "vhost")?;
    if let Some(operator) = is_policy(component) {
        return start_policy(topology, import, vhost, name, &value, operator);
    }
    must_be_component(component)?;
    topology.set_parameter(vhost, component, name, value)?;
    Ok(())
}

fn import_global_parameter(
    topology: &mut Topology,
    entry: &JsonObject,
    _: &mut Import,
) -> Result<(), ImportReason> {
    let value = entry.get("value").cloned();
    let value = value.ok_or(ImportReason::Key { key: "value", expected: "given" })?;
    topology.set_global_parameter(text(entry, "name")?, value)?;
    Ok(())
}

fn vhost(topology: &Topology, entry: &JsonObject) -> Result<VhostId, ImportReason> {
    let name = text(entry, "vhost")?;
    topology.vhost_id(name).map_err(|_| ImportReason::NoVhost(name.to_owned()))
}

pub(super) fn text<'a>(entry: &'a JsonObject, key: &'static str) -> Result<&'a str, ImportReason> {
    entry
        .get(key)
        .and_then(Json::as_str)
        .ok_or(ImportReason::Key { key, expected: "given, as a string" })
}

pub(super) fn optional_text<'a>(
    entry: &'a JsonObject,
    key: &'static str,
) -> Result<Option<&'a str>, ImportReason> {
    match entry.get(key) {
        None | Some(Json::Null) => Ok(None),
        Some(Json::String(text)) => Ok(Some(text)),
        Some(_) => Err(ImportReason::Key { key, expected: "a string" }),
    }
}

fn flag(entry: &JsonObject, key: &'static str, default: bool) -> Result<bool, ImportReason> {
    match entry.get(key) {
        None | Some(Json::Null) => Ok(default),
        Some(Json::Bool(flag)) => Ok(*flag),
        Some(_) => Err(ImportReason::Key { key, expected: "true or false" }),
    }
}

/// An array in RabbitMQ 3.9 and later, before that a string with commas.
fn tags(entry: &JsonObject) -> Result<Vec<String>, ImportReason> {
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

fn arguments(entry: &JsonObject) -> Result<Table, ImportReason> {
    match entry.get("arguments") {
        None | Some(Json::Null) => Ok(Table::new()),
        Some(Json::Object(map)) => {
            // What the wire could not carry could not be stored either, and be there after a restart.
            let expected = "at most 100 levels deep, with names of at most 255 bytes";
            let bad = |_| ImportReason::Key { key: "arguments", expected };
            checked_table_from_json(map).map_err(bad)
        }
        // Old exports write an empty table as an empty array.
        Some(Json::Array(items)) if items.is_empty() => Ok(Table::new()),
        Some(_) => Err(ImportReason::Key { key: "arguments", expected: "an object" }),
    }
}
