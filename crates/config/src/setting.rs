//! Options that are set by more than one key: lists and tables such as `listeners.tcp.$name`.
//!
//! Rule, as in RabbitMQ: the first key that names such an option replaces its default as a whole;
//! further keys add entries; a key that is named twice keeps the later value.

use std::fmt;
use std::net::Ipv6Addr;

use crate::value::{ByteSize, Fraction, Level, Value};

/// Which key of an option a setting named.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyMatch<'a> {
    /// The pattern as declared, such as `listeners.tcp.$name`.
    pub pattern: &'a str,
    /// What stands for `$name` in the key, or for the last such word; empty if the pattern has none.
    pub name: &'a str,
    /// What stands for the first such word.
    pub group: &'a str,
}

/// An option's whole value, set by one or several keys.
pub(crate) trait Setting {
    /// Takes one setting; the error says what was expected.
    fn set(&mut self, key: &KeyMatch<'_>, text: &str) -> Result<(), String>;

    /// How a value is written, for help and pages.
    fn form() -> &'static str;

    /// The whole value, for pages and `environment`.
    fn display(&self) -> String;
}

impl<T: Value> Setting for T {
    fn set(&mut self, _: &KeyMatch<'_>, text: &str) -> Result<(), String> {
        *self = T::read(text)?;
        Ok(())
    }

    fn form() -> &'static str {
        T::FORM
    }

    fn display(&self) -> String {
        self.show()
    }
}

/// Named values in the order in which they were first set.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedValues<T> {
    entries: Vec<(String, T)>,
    /// False while the default stands, which the first setting replaces.
    is_set: bool,
}

impl<T> NamedValues<T> {
    pub(crate) fn of(defaults: impl IntoIterator<Item = (&'static str, T)>) -> Self {
        let entries = defaults.into_iter().map(|(name, value)| (name.to_owned(), value));
        Self { entries: entries.collect(), is_set: false }
    }

    pub(crate) fn put(&mut self, name: &str, value: T) {
        self.clear_default();
        match self.entries.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => *old = value,
            None => self.entries.push((name.to_owned(), value)),
        }
    }

    /// What a key was set to, if it is not the default.
    pub(crate) fn get_set(&self, name: &str) -> Option<&T> {
        self.is_set.then(|| self.get(name)).flatten()
    }

    fn clear(&mut self) {
        self.entries.clear();
        self.is_set = true;
    }

    fn clear_default(&mut self) {
        if !self.is_set {
            self.clear();
        }
    }

    /// The names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &T)> {
        self.entries.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// The value called `name`.
    pub fn get(&self, name: &str) -> Option<&T> {
        self.iter().find_map(|(known, value)| (known == name).then_some(value))
    }
}

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenAddress {
    /// An IP address or host name; `None` means all addresses, IPv6 and IPv4.
    pub host: Option<String>,
    /// The port; 0 lets the operating system choose one.
    pub port: u16,
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            None => write!(f, "{}", self.port),
            Some(host) if host.contains(':') => write!(f, "[{host}]:{}", self.port),
            Some(host) => write!(f, "{host}:{}", self.port),
        }
    }
}

impl Value for ListenAddress {
    const FORM: &'static str = "PORT|HOST:PORT";

    fn read(text: &str) -> Result<Self, String> {
        let expected = "expected a port or an address such as 5672, 127.0.0.1:5672 or [::1]:5672";
        if ["/", "local:", "unix:"].iter().any(|start| text.starts_with(start)) {
            return Err("AMQP over a Unix domain socket is not supported yet".to_owned());
        }
        let (host, port) = match text.rsplit_once(':') {
            None => (None, text),
            Some((host, port)) => (Some(host), port),
        };
        let port = port.parse().map_err(|_| expected.to_owned())?;
        let host = match host {
            None => None,
            Some(host) => {
                let inside = host.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
                let host = inside.unwrap_or(host);
                let is_bare_v6 = || inside.is_none() && host.parse::<Ipv6Addr>().is_ok();
                if host.is_empty() || (host.contains(':') && inside.is_none() && !is_bare_v6()) {
                    return Err(expected.to_owned());
                }
                Some(host.to_owned())
            }
        };
        Ok(Self { host, port })
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

/// Listeners: `listeners.tcp.$name`, or `listeners.tcp = none`; the same for `listeners.ssl`.
#[derive(Clone, Debug, PartialEq)]
pub struct Listeners(NamedValues<ListenAddress>);

impl Listeners {
    /// One listener called `default` on all addresses.
    pub fn on_port(port: u16) -> Self {
        Self(NamedValues::of([("default", ListenAddress { host: None, port })]))
    }

    /// No listener.
    pub fn none() -> Self {
        Self(NamedValues::of([]))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// The names and addresses.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &ListenAddress)> {
        self.0.iter()
    }
}

impl Setting for Listeners {
    fn set(&mut self, key: &KeyMatch<'_>, text: &str) -> Result<(), String> {
        match (key.name, text) {
            ("", "none") => self.0.clear(),
            ("", _) => {
                let kind = key.pattern;
                return Err(format!("expected none; an address has a name: {kind}.default"));
            }
            (name, _) => self.0.put(name, ListenAddress::read(text)?),
        }
        Ok(())
    }

    fn form() -> &'static str {
        ListenAddress::FORM
    }

    fn display(&self) -> String {
        let all: Vec<_> = self.iter().map(|(name, at)| format!("{name} = {at}")).collect();
        if all.is_empty() { "none".to_owned() } else { all.join(", ") }
    }
}

/// A set of names: `loopback_users.$user = true`, or `loopback_users = none`.
#[derive(Clone, Debug, PartialEq)]
pub struct NameSet(NamedValues<bool>);

impl NameSet {
    /// A set of one name.
    pub fn of(name: &'static str) -> Self {
        Self(NamedValues::of([(name, true)]))
    }

    /// The names that are in the set.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|(name, member)| member.then_some(name))
    }

    /// Whether `name` is in the set.
    pub fn contains(&self, name: &str) -> bool {
        self.0.get(name).copied().unwrap_or(false)
    }
}

impl Setting for NameSet {
    fn set(&mut self, key: &KeyMatch<'_>, text: &str) -> Result<(), String> {
        match (key.name, text) {
            ("", "none") => self.0.clear(),
            ("", _) => return Err("expected none; a name is part of the key".into()),
            (name, _) => self.0.put(name, bool::read(text)?),
        }
        Ok(())
    }

    fn form() -> &'static str {
        bool::FORM
    }

    fn display(&self) -> String {
        let all: Vec<_> = self.iter().collect();
        if all.is_empty() { "none".to_owned() } else { all.join(", ") }
    }
}

/// A list of texts under names of the user's choice: `management.cors.allow_origins.1 = *`.
#[derive(Clone, Debug, PartialEq)]
pub struct Texts(NamedValues<String>);

impl Texts {
    /// An empty list.
    pub fn none() -> Self {
        Self(NamedValues::of([]))
    }

    /// The texts.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(_, text)| text.as_str())
    }
}

impl Setting for Texts {
    fn set(&mut self, key: &KeyMatch<'_>, text: &str) -> Result<(), String> {
        match (key.name, text) {
            ("", "none") => self.0.clear(),
            (name, text) => self.0.put(name, text.to_owned()),
        }
        Ok(())
    }

    fn form() -> &'static str {
        String::FORM
    }

    fn display(&self) -> String {
        let all: Vec<_> = self.iter().collect();
        if all.is_empty() { "none".to_owned() } else { all.join(", ") }
    }
}

/// Authentication mechanisms, in the order of the words that name them: `auth_mechanisms.1 = PLAIN`.
#[derive(Clone, Debug, PartialEq)]
pub struct Mechanisms(NamedValues<String>);

/// The mechanisms the broker can offer.
pub const MECHANISMS: [&str; 4] = ["PLAIN", "AMQPLAIN", "ANONYMOUS", "EXTERNAL"];

/// How many of them are offered unless told otherwise. RabbitMQ has EXTERNAL in a plugin, so it is asked for.
const DEFAULT_MECHANISMS: usize = 3;

/// Mechanisms of RabbitMQ that are not there yet: accepted with a warning, and not offered.
pub(crate) const MECHANISMS_LATER: [&str; 1] = ["RABBIT-CR-DEMO"];

impl Default for Mechanisms {
    fn default() -> Self {
        let names = ["1", "2", "3"];
        let mechanisms = MECHANISMS.iter().take(DEFAULT_MECHANISMS).map(|&name| name.to_owned());
        Self(NamedValues::of(names.into_iter().zip(mechanisms)))
    }
}

impl Mechanisms {
    /// The mechanisms to offer, most preferred first.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.asked().filter(|mechanism| MECHANISMS.contains(mechanism))
    }

    /// All that were asked for.
    pub(crate) fn asked(&self) -> impl Iterator<Item = &str> {
        let mut sorted: Vec<_> = self.0.iter().collect();
        // As RabbitMQ does, by the text of the key's last word.
        sorted.sort_by_key(|(name, _)| *name);
        sorted.into_iter().map(|(_, mechanism)| mechanism.as_str())
    }
}

impl Setting for Mechanisms {
    fn set(&mut self, key: &KeyMatch<'_>, text: &str) -> Result<(), String> {
        if !MECHANISMS.contains(&text) && !MECHANISMS_LATER.contains(&text) {
            return Err(format!("expected one of {}", MECHANISMS.join(", ")));
        }
        self.0.put(key.name, text.to_owned());
        Ok(())
    }

    fn form() -> &'static str {
        "PLAIN|AMQPLAIN|ANONYMOUS|EXTERNAL"
    }

    fn display(&self) -> String {
        self.iter().collect::<Vec<_>>().join(", ")
    }
}

/// Log levels by category: `log.connection.level = debug`.
#[derive(Clone, Debug, PartialEq)]
pub struct CategoryLevels(NamedValues<Level>);

/// RabbitMQ's log categories, and `audit`.
pub const LOG_CATEGORIES: [&str; 10] = [
    "default",
    "connection",
    "channel",
    "queue",
    "mirroring",
    "federation",
    "upgrade",
    "user",
    "ra",
    "audit",
];

impl Default for CategoryLevels {
    fn default() -> Self {
        Self(NamedValues::of([]))
    }
}

impl CategoryLevels {
    /// The level of a category: its own, else that of `default`, else `info`.
    pub fn get(&self, category: &str) -> Level {
        let own = self.0.get(category).or_else(|| self.0.get("default"));
        own.copied().unwrap_or(Level::Info)
    }

    /// The categories that were set.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Level)> {
        self.0.iter().map(|(name, level)| (name, *level))
    }
}

impl Setting for CategoryLevels {
    fn set(&mut self, key: &KeyMatch<'_>, text: &str) -> Result<(), String> {
        let name = if key.name.is_empty() { "default" } else { key.name };
        if !LOG_CATEGORIES.contains(&name) {
            return Err(format!("no such log category; there are {}", LOG_CATEGORIES.join(", ")));
        }
        self.0.put(name, Level::read(text)?);
        Ok(())
    }

    fn form() -> &'static str {
        Level::FORM
    }

    fn display(&self) -> String {
        let all: Vec<_> = self.iter().map(|(name, it)| format!("{name} = {}", it.show())).collect();
        if all.is_empty() { "info".to_owned() } else { all.join(", ") }
    }
}

/// A file to log to: a path, or `false` for none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFile(pub Option<String>);

impl Value for LogFile {
    const FORM: &'static str = "PATH|false";

    fn read(text: &str) -> Result<Self, String> {
        match text {
            "false" | "off" => Ok(Self(None)),
            "" => Err("expected a path or false".to_owned()),
            _ => Ok(Self(Some(text.to_owned()))),
        }
    }

    fn show(&self) -> String {
        self.0.clone().unwrap_or_else(|| "false".to_owned())
    }
}

/// A threshold in bytes, given as such or as a part of the machine's memory.
///
/// When both are set, the absolute one counts, as in RabbitMQ.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Threshold {
    /// Bytes.
    pub absolute: Option<ByteSize>,
    /// A part of the memory that is available.
    pub relative: Option<Fraction>,
    /// No larger part makes sense.
    part_max: f64,
    /// False while the default stands, which the first setting replaces.
    is_set: bool,
}

impl Threshold {
    /// So many bytes, or any multiple of the memory.
    pub const fn bytes(count: u64) -> Self {
        let absolute = Some(ByteSize(count));
        Self { absolute, relative: None, part_max: f64::INFINITY, is_set: false }
    }

    /// Such a part of the available memory, or another one.
    pub const fn part(of_memory: f64) -> Self {
        let relative = Some(Fraction(of_memory));
        Self { absolute: None, relative, part_max: 1.0, is_set: false }
    }

    /// The threshold in bytes on a machine with `memory` bytes.
    pub fn resolve(&self, memory: u64) -> u64 {
        match (self.absolute, self.relative) {
            (Some(bytes), _) => bytes.get(),
            (None, Some(Fraction(part))) => (memory as f64 * part) as u64,
            (None, None) => memory,
        }
    }
}

impl Setting for Threshold {
    fn set(&mut self, key: &KeyMatch<'_>, text: &str) -> Result<(), String> {
        let is_relative = match key.pattern.rsplit('.').next() {
            Some("relative") => true,
            Some("absolute") => false,
            // RabbitMQ has no such key: 60 was meant as a percentage, and sixty bytes block everybody.
            _ if text.parse::<u64>().is_ok() => {
                let key = key.pattern;
                return Err(format!(
                    "say {key}.absolute for a number of bytes, {key}.relative for a part of the memory"
                ));
            }
            // `vm_memory_high_watermark = 0.5`, the oldest form.
            _ => text.contains('.') || text.ends_with('%'),
        };
        if !self.is_set {
            *self = Self { absolute: None, relative: None, is_set: true, ..*self };
        }
        if is_relative {
            let part = Fraction::read(text)?;
            if part.0 > self.part_max {
                return Err(format!("expected a fraction from 0.0 to {:?}", self.part_max));
            }
            self.relative = Some(part);
        } else {
            self.absolute = Some(ByteSize::read(text)?);
        }
        Ok(())
    }

    fn form() -> &'static str {
        "BYTES|FRACTION"
    }

    fn display(&self) -> String {
        match (self.absolute, self.relative) {
            (Some(bytes), _) => bytes.show(),
            (None, Some(part)) => part.show(),
            (None, None) => "not set".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn addresses() {
        address("5672",            Some("5672"));
        address("127.0.0.1:5672",  Some("127.0.0.1:5672"));
        address("[::1]:5672",      Some("[::1]:5672"));
        address("broker.lan:5672", Some("broker.lan:5672"));
        address("::1:5672",        Some("[::1]:5672")); // RabbitMQ's own form
        address("a:b:5672",        None);
        address("5672 ",           None);
        address(":5672",           None);
        address("65536",           None);
        address("host",            None);
        address("/run/amqp.sock",  None);
    }

    #[track_caller]
    fn address(text: &str, want: Option<&str>) {
        let got = ListenAddress::read(text).ok().map(|it| it.to_string());
        assert_eq!(got.as_deref(), want, "{text:?}");
    }
}
