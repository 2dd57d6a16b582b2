//! What of definitions cannot be: found before the first entry is applied, so that all of it is told at once and a refused
//! document changes nothing.
//!
//! Most of it the document says itself, and that is looked at while no names are held. Entries that need what the document
//! does not bring are looked at again with the names, before the import begins.

use std::collections::BTreeMap;

use foldhash::fast::FixedState;
use hashbrown::HashSet;
use leveret_amqp::table::SHORT_STR_MAX;
use serde_json::Value as Json;

use super::import::{Import, ImportReason, JsonObject, STEPS, optional_text, text};
use crate::error::{AdminError, BindError, NameError, NotFound, ResourceRef};
use crate::exchange::ExchangeKind;
use crate::hash::Keyed;
use crate::named::Named;
use crate::parameters::{is_policy, must_be_component};
use crate::policy::unknown_settings;
use crate::queue::QueueKind;
use crate::topology::{PREDECLARED, Topology};
use crate::user::Hashing;

/// Lines that an import tells; what comes after them is counted.
const LINES_MAX: usize = 100;

/// Characters of a line.
const LINE_MAX: usize = 500;

/// In the place of an entry: all of a category.
const WHOLE: usize = u32::MAX as usize;

/// Bytes of entries that are looked at again at the cost of one that is applied.
const AT_ONCE: usize = 256;

/// The key by which what is not here can be left out: of the API, the tools and the configuration.
const KEY: &str = "skip_unsupported";

/// What an entry needs, or brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Name<'a> {
    User(&'a str),
    Vhost(&'a str),
    Queue { vhost: &'a str, name: &'a str },
    Exchange { vhost: &'a str, name: &'a str },
}

/// What an entry sets that no other entry needs.
#[derive(Clone, Copy, Debug)]
enum Setting<'a> {
    Policy {
        vhost: &'a str,
        name: &'a str,
        operator: bool,
    },
    GlobalParameter(&'a str),
    /// Topic permissions, which are told apart by their exchanges.
    Topics {
        vhost: &'a str,
        user: &'a str,
        exchange: &'a str,
    },
}

/// What an entry needs, brings and sets.
#[derive(Default)]
struct Names<'a> {
    needs: [Option<Name<'a>>; 3],
    brings: Option<Name<'a>>,
    sets: Option<Setting<'a>>,
}

/// Why an entry cannot be applied.
enum Fault {
    /// It is no entry, or says what none says.
    Wrong(ImportReason),
    /// It is of something that is not here.
    Unsupported(String),
}

impl From<ImportReason> for Fault {
    fn from(reason: ImportReason) -> Self {
        Self::Wrong(reason)
    }
}

/// The place of an entry: which of [`STEPS`], and where in it. There may be very many of these.
pub(super) type At = (u8, u32);

pub(super) fn at(step: usize, entry: usize) -> At {
    (step as u8, u32::try_from(entry).unwrap_or(u32::MAX))
}

/// A document while it is looked through.
#[derive(Debug, Default)]
pub(super) struct Check {
    /// Hashes of what the document brings. Two names of one hash are one in 2^64; the import would end at it.
    named: HashSet<u64, FixedState>,
    /// Entries that need more than that.
    open: Vec<At>,
    /// How many of these have been looked at again.
    seen: usize,
    pub(super) found: Found,
}

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// A sentence for each, with the first entry that it is about, and how many more there are.
    lines: BTreeMap<String, (At, usize)>,
    /// Entries beyond [`LINES_MAX`] sentences.
    more: usize,
    /// Some cannot be left out.
    has_wrong: bool,
    /// Entries to leave out.
    pub(super) left_out: HashSet<At, FixedState>,
}

/// What an import or an export tells: a hundred sentences, and how many more there are.
#[derive(Debug, Default)]
pub struct Lines {
    lines: Vec<String>,
    more: usize,
}

impl Lines {
    /// One more; made of words only if it is told.
    pub fn push_with(&mut self, text: impl FnOnce() -> String) {
        if self.lines.len() < LINES_MAX {
            self.lines.push(text());
        } else {
            self.more += 1;
        }
    }

    /// One more.
    pub fn push(&mut self, text: String) {
        self.push_with(|| text);
    }

    /// The sentences, the last of them about those that are not told.
    pub fn finish(mut self) -> Vec<String> {
        if self.more > 0 {
            self.lines.push(format!("and {} more", self.more));
        }
        self.lines
    }
}

impl Check {
    /// Looks at what the document says itself.
    pub(super) fn new(import: &Import) -> Self {
        let mut check = Self::default();
        for (step, (category, _)) in STEPS.iter().enumerate() {
            let Some(places) = import.places(step) else {
                let reason = ImportReason::Expected("an array");
                check.found.add(at(step, WHOLE), Fault::Wrong(reason));
                continue;
            };
            for (entry, place) in places.iter().enumerate() {
                let at = at(step, entry);
                let read = import.entry(place).map_err(Fault::Wrong);
                if let Err(fault) = read.and_then(|entry| check.read(category, at, &entry)) {
                    check.found.add(at, fault);
                }
            }
        }
        check
    }

    fn read(&mut self, category: &str, at: At, entry: &JsonObject) -> Result<(), Fault> {
        let names = names(category, entry)?;
        fits_amqp(category, entry)?;
        if category == "vhosts" {
            self.read_vhost(at, entry)?;
        } else if let Some(text) = unsupported(category, entry)? {
            return Err(Fault::Unsupported(text));
        }
        if names.check_new().is_err() || names.needs.iter().flatten().any(|name| !self.brings(name))
        {
            self.open.push(at);
        }
        self.named.extend(names.brings.as_ref().map(hash));
        Ok(())
    }

    /// A vhost is made whatever type its queues were to have.
    fn read_vhost(&mut self, at: At, entry: &JsonObject) -> Result<(), ImportReason> {
        if let Some(kind) = unknown_queue_type(entry)? {
            let name = text(entry, "name")?;
            let text = format!("default queue type '{kind}' of vhost '{name}' is not supported");
            self.found.tell(at, &text);
        }
        Ok(())
    }

    fn brings(&self, name: &Name<'_>) -> bool {
        let is_own = |name| self.named.contains(&hash(name));
        // Every vhost has these.
        let is_predeclared = |of: &str| PREDECLARED.iter().any(|(it, ..)| *it == of);
        match name {
            Name::Exchange { vhost, name } if is_predeclared(name) => is_own(&Name::Vhost(vhost)),
            _ => is_own(name),
        }
    }

    /// Looks again at entries with the names, about as many as are applied for `allowed`; gives how much it was.
    pub(super) fn advance(&mut self, import: &Import, topology: &Topology, allowed: u64) -> u64 {
        let mut bytes = 0;
        while let Some(&at) = self.open.get(self.seen) {
            if (bytes / AT_ONCE) as u64 >= allowed {
                break;
            }
            self.seen += 1;
            let (step, entry) = (usize::from(at.0), at.1 as usize);
            let Some(place) = import.places(step).and_then(|places| places.get(entry)) else {
                continue;
            };
            bytes += place.len();
            if let Ok(entry) = import.entry(place)
                && let Err(fault) = self.check_names(STEPS[step].0, &entry, topology)
            {
                self.found.add(at, fault);
            }
        }
        bytes.div_ceil(AT_ONCE) as u64
    }

    fn check_names(
        &self,
        category: &str,
        entry: &JsonObject,
        topology: &Topology,
    ) -> Result<(), Fault> {
        let names = names(category, entry)?;
        // One that is here keeps its name: a file that is imported at each start may have it.
        if let Err(reason) = names.check_new()
            && !names.brings.is_some_and(|name| is_here(&name, topology))
            && !names.sets.is_some_and(|setting| setting.is_here(topology))
        {
            return Err(Fault::Wrong(reason.into()));
        }
        // A vhost that is made has the event exchange, too, if it is the one for it.
        let has_events = |name: &Name<'_>| match *name {
            Name::Exchange { vhost, name } => {
                topology.is_event_exchange(vhost, name) && self.brings(&Name::Vhost(vhost))
            }
            _ => false,
        };
        let is_missing =
            |name: &Name<'_>| !self.brings(name) && !is_here(name, topology) && !has_events(name);
        match names.needs.into_iter().flatten().find(is_missing) {
            Some(name) => Err(Fault::Unsupported(name.is_missing())),
            None => Ok(()),
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.seen == self.open.len()
    }
}

impl Found {
    fn add(&mut self, at: At, fault: Fault) {
        match fault {
            Fault::Wrong(reason) => {
                self.has_wrong = true;
                self.tell(at, &reason.to_string());
            }
            Fault::Unsupported(text) => {
                self.left_out.insert(at);
                self.tell(at, &text);
            }
        }
    }

    fn tell(&mut self, at: At, text: &str) {
        let text = line(text);
        let is_full = self.lines.len() >= LINES_MAX;
        match self.lines.get_mut(&text) {
            Some((_, more)) => *more += 1,
            None if is_full => self.more += 1,
            None => drop(self.lines.insert(text, (at, 0))),
        }
    }

    /// Whether an import may go on.
    pub(super) fn allows(&self, skips: bool) -> bool {
        !self.has_wrong && (skips || self.lines.is_empty())
    }

    /// Why it may not.
    pub(super) fn refusal(self) -> String {
        let hint = match self.has_wrong {
            false => format!("; {KEY} leaves this out, and imports the rest"),
            true => String::new(),
        };
        let lines = self.into_lines().finish();
        format!("{}\nNothing was imported{hint}", lines.join("\n"))
    }

    /// A line for each, in the order of the document.
    pub(super) fn into_lines(self) -> Lines {
        let mut lines: Vec<_> = self.lines.into_iter().collect();
        lines.sort_by_key(|&(_, (at, _))| at);
        let placed = |(text, ((step, at), more)): (String, (At, usize))| {
            let (category, _) = STEPS[usize::from(step)];
            match (at as usize, more) {
                (WHOLE, _) => format!("{category}: {text}"),
                (_, 0) => format!("{category}[{at}]: {text}"),
                _ => format!("{category}[{at}] and {more} more: {text}"),
            }
        };
        Lines { lines: lines.into_iter().map(placed).collect(), more: self.more }
    }
}

impl Names<'_> {
    /// Whether what is new may be called so. Exchanges are looked at by [`fits_amqp`].
    fn check_new(&self) -> Result<(), NameError> {
        match self.brings {
            Some(Name::User(name)) => Named::User.check(name)?,
            Some(Name::Vhost(name)) => Named::Vhost.check(name)?,
            Some(Name::Queue { name, .. }) => Named::Queue.check(name)?,
            Some(Name::Exchange { .. }) | None => {}
        }
        match self.sets {
            Some(Setting::Policy { name, operator, .. }) => Named::policy(operator).check(name),
            Some(Setting::GlobalParameter(name)) => Named::GlobalParameter.check(name),
            Some(Setting::Topics { exchange, .. }) => Named::Exchange.check(exchange),
            None => Ok(()),
        }
    }
}

impl Setting<'_> {
    fn is_here(&self, topology: &Topology) -> bool {
        let id = |vhost: &str| topology.vhost_id(vhost).ok();
        match *self {
            Self::Policy { vhost, name, operator } => {
                topology.vhost(vhost).is_some_and(|it| it.has_policy(name, operator))
            }
            Self::GlobalParameter(name) => topology.global_parameter(name).is_some(),
            Self::Topics { vhost, user, exchange } => {
                let topics = topology.user(user).zip(id(vhost));
                let topics = topics.and_then(|(user, vhost)| user.topics.get(&vhost));
                topics.is_some_and(|it| it.contains_key(exchange))
            }
        }
    }
}

impl Name<'_> {
    /// In the words of the operation that would be refused.
    fn is_missing(self) -> String {
        let missing = |resource| BindError::NotFound(NotFound(resource)).to_string();
        match self {
            Self::User(name) => AdminError::NoUser(name.to_owned()).to_string(),
            Self::Vhost(name) => ImportReason::NoVhost(name.to_owned()).to_string(),
            Self::Queue { vhost, name } => missing(ResourceRef::queue(name, vhost)),
            Self::Exchange { vhost, name } => missing(ResourceRef::exchange(name, vhost)),
        }
    }
}

fn hash(name: &Name<'_>) -> u64 {
    use std::hash::BuildHasher as _;
    Keyed::default().hash_one(name)
}

fn is_here(name: &Name<'_>, topology: &Topology) -> bool {
    let id = |vhost: &str| topology.vhost_id(vhost).ok();
    match *name {
        Name::User(name) => topology.user(name).is_some(),
        Name::Vhost(name) => topology.vhost(name).is_some(),
        Name::Queue { vhost, name } => {
            id(vhost).is_some_and(|it| topology.queue(it, name).is_some())
        }
        Name::Exchange { vhost, name } => {
            id(vhost).is_some_and(|it| topology.exchange(it, name).is_some())
        }
    }
}

/// A name that no short string of AMQP holds would be cut on its way to clients.
fn fits_amqp(category: &str, entry: &JsonObject) -> Result<(), ImportReason> {
    let key = match category {
        "exchanges" | "queues" => "name",
        "bindings" => "routing_key",
        _ => return Ok(()),
    };
    let is_long = optional_text(entry, key)?.is_some_and(|text| text.len() > SHORT_STR_MAX);
    if is_long {
        Err(ImportReason::Key { key, expected: "at most 255 bytes long" })
    } else {
        Ok(())
    }
}

fn names<'a>(category: &str, entry: &'a JsonObject) -> Result<Names<'a>, ImportReason> {
    let text = |key| text(entry, key);
    let vhost = || Ok::<_, ImportReason>(Name::Vhost(text("vhost")?));
    Ok(match category {
        "users" => Names { brings: Some(Name::User(text("name")?)), ..Names::default() },
        "vhosts" => Names { brings: Some(Name::Vhost(text("name")?)), ..Names::default() },
        "permissions" | "topic_permissions" => {
            let (of, user) = (text("vhost")?, text("user")?);
            let sets = match category {
                "permissions" => None,
                _ => Some(Setting::Topics { vhost: of, user, exchange: text("exchange")? }),
            };
            Names { needs: [Some(Name::User(user)), Some(vhost()?), None], brings: None, sets }
        }
        "exchanges" | "queues" => {
            let (of, name) = (text("vhost")?, text("name")?);
            let brings = match category {
                "queues" => Name::Queue { vhost: of, name },
                _ => Name::Exchange { vhost: of, name },
            };
            // Names of the broker's are passed over.
            let brings = (!name.starts_with("amq.")).then_some(brings);
            Names { needs: [Some(vhost()?), None, None], brings, sets: None }
        }
        "policies" | "parameters" => {
            let (vhost, name) = (text("vhost")?, text("name")?);
            let operator = match category {
                "policies" => Some(false),
                // Of the others only a vhost's limits are set, which are one parameter under whatever name.
                _ => is_policy(text("component")?),
            };
            let sets = operator.map(|operator| Setting::Policy { vhost, name, operator });
            Names { needs: [Some(Name::Vhost(vhost)), None, None], brings: None, sets }
        }
        "global_parameters" => {
            let sets = Some(Setting::GlobalParameter(text("name")?));
            Names { sets, ..Names::default() }
        }
        "bindings" => {
            let (vhost, source) = (text("vhost")?, text("source")?);
            let name = text("destination")?;
            let target = match text("destination_type")? {
                "queue" => Name::Queue { vhost, name },
                "exchange" => Name::Exchange { vhost, name },
                _ => {
                    let expected = "'queue' or 'exchange'";
                    return Err(ImportReason::Key { key: "destination_type", expected });
                }
            };
            let needs = [Name::Vhost(vhost), Name::Exchange { vhost, name: source }, target];
            // Those of the default exchange are passed over.
            let needs = needs.map(|it| (!source.is_empty()).then_some(it));
            Names { needs, ..Names::default() }
        }
        _ => Names::default(),
    })
}

/// What of an entry is not here.
fn unsupported(category: &str, entry: &JsonObject) -> Result<Option<String>, ImportReason> {
    let name = |what: &str| -> Result<String, ImportReason> {
        Ok(format!("{what} '{}' in vhost '{}'", text(entry, "name")?, text(entry, "vhost")?))
    };
    let told = match category {
        "users" => unknown_hashing(entry)?,
        "exchanges" => match ExchangeKind::parse(text(entry, "type")?) {
            Ok(_) => None,
            Err(error) => Some(format!("{error} of {}", name("exchange")?)),
        },
        "queues" => match unknown_type(entry) {
            None => None,
            Some(kind) => {
                Some(format!("queue type '{kind}' of {} is not supported", name("queue")?))
            }
        },
        "policies" => match unknown_of_policy(Some(entry), false) {
            None => None,
            Some(error) => Some(format!("{}: {error}", name("policy")?)),
        },
        "parameters" => match unknown_of_parameter(entry)? {
            None => None,
            Some(error) => Some(format!("{}: {error}", name("parameter")?)),
        },
        _ => None,
    };
    Ok(told)
}

fn unknown_hashing(user: &JsonObject) -> Result<Option<String>, ImportReason> {
    let Some(hashing) = optional_text(user, "hashing_algorithm")? else { return Ok(None) };
    if Hashing::parse(hashing).is_some() {
        return Ok(None);
    }
    let reason = ImportReason::Hashing(hashing.to_owned());
    Ok(Some(format!("{reason} of user '{}'", text(user, "name")?)))
}

fn unknown_of_parameter(parameter: &JsonObject) -> Result<Option<String>, ImportReason> {
    let component = text(parameter, "component")?;
    let Some(operator) = is_policy(component) else {
        let is_here = must_be_component(component).is_ok();
        return Ok((!is_here).then(|| format!("component {component} not found")));
    };
    let value = parameter.get("value").and_then(Json::as_object);
    Ok(unknown_of_policy(value, operator))
}

fn unknown_of_policy(policy: Option<&JsonObject>, operator: bool) -> Option<String> {
    unknown_settings(policy?.get("definition")?.as_object()?, operator)
}

/// The type of a queue, by its argument or, as RabbitMQ tells it from 4.0 on, by a key.
fn unknown_type(queue: &JsonObject) -> Option<&str> {
    let argument = queue.get("arguments").and_then(|it| it.get(crate::arguments::QUEUE_TYPE));
    let given = [argument, queue.get("type")].into_iter().flatten().filter_map(Json::as_str);
    given.into_iter().find(|kind| !is_queue_type(kind))
}

/// The type that queues of a vhost are to have, if it is not here.
fn unknown_queue_type(vhost: &JsonObject) -> Result<Option<&str>, ImportReason> {
    let metadata = vhost.get("metadata").and_then(Json::as_object);
    let kind = metadata.map(|it| optional_text(it, "default_queue_type")).transpose()?.flatten();
    let kind = kind.or(optional_text(vhost, "default_queue_type")?);
    Ok(kind.filter(|kind| !is_queue_type(kind)))
}

/// RabbitMQ writes none in two ways.
fn is_queue_type(name: &str) -> bool {
    matches!(name, "" | "undefined") || QueueKind::parse(name).is_some()
}

/// One line, and not a long one: what is told may be named by whoever wrote the document.
fn line(text: &str) -> String {
    let text = text.replace(char::is_control, " ");
    match text.char_indices().nth(LINE_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}
