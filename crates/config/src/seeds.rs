//! What new virtual hosts have from the beginning, and what new passwords have to be like.

use std::collections::BTreeMap;

use crate::option::options;
use crate::setting::{KeyMatch, NamedValues, Setting};
use crate::value::{ByteSize, Limit, Millis, Secret, Value, words};

words! {
    /// What a new password has to be like.
    Validator {
        /// Anything that is not empty.
        AcceptEverything = "rabbit_credential_validator_accept_everything",
        /// Of some length.
        MinPasswordLength = "rabbit_credential_validator_min_password_length",
        /// Matched by a pattern.
        PasswordRegexp = "rabbit_credential_validator_password_regexp",
    }
}

/// Settings that belong together under a name each: `default_limits.vhosts.NAME.max_queues`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seeds {
    all: Vec<Seed>,
    /// Where each is among them.
    places: BTreeMap<String, usize>,
}

/// A policy, a user or limits that new objects begin with, by name.
#[derive(Clone, Debug, PartialEq)]
pub struct Seed {
    /// Its name.
    pub name: String,
    texts: BTreeMap<String, String>,
    numbers: BTreeMap<String, i64>,
}

impl Seed {
    /// One of which nothing is said.
    pub fn named(name: &str) -> Self {
        Self { name: name.to_owned(), texts: BTreeMap::new(), numbers: BTreeMap::new() }
    }

    /// What a key without the name says, such as `vhost_pattern`.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.texts.get(key).map(String::as_str)
    }

    /// The numbers by their keys without the name: milliseconds, bytes, counts.
    pub fn numbers(&self) -> impl Iterator<Item = (&str, i64)> {
        self.numbers.iter().map(|(key, &number)| (key.as_str(), number))
    }
}

impl Seeds {
    /// In the order in which they were first named.
    pub fn iter(&self) -> impl Iterator<Item = &Seed> {
        self.all.iter()
    }
}

/// The number that a setting is, if it is one.
fn number(key: &str, text: &str) -> Result<Option<i64>, String> {
    let number = match key {
        "expires" | "message_ttl" => Millis::read(text)?.get(),
        "max_length_bytes" | "max_in_memory_bytes" => ByteSize::read(text)?.get(),
        "max_length"
        | "max_in_memory_length"
        | "delivery_limit"
        | "queue_version"
        | "max_connections"
        | "max_queues" => u64::read(text)?,
        _ => return Ok(None),
    };
    match i64::try_from(number) {
        Ok(number) if number > 0 => Ok(Some(number)),
        _ => Err("expected a number from 1 on".to_owned()),
    }
}

impl Setting for Seeds {
    fn set(&mut self, key: &KeyMatch<'_>, text: &str) -> Result<(), String> {
        let last = key.pattern.rsplit('.').next().unwrap_or_default();
        let number = number(last, text)?;
        let at = *self.places.entry(key.name.to_owned()).or_insert(self.all.len());
        if at == self.all.len() {
            self.all.push(Seed::named(key.name));
        }
        let Some(seed) = self.all.get_mut(at) else { return Ok(()) };
        match number {
            Some(number) => drop(seed.numbers.insert(last.to_owned(), number)),
            None => drop(seed.texts.insert(last.to_owned(), text.to_owned())),
        }
        Ok(())
    }

    fn form() -> &'static str {
        "TEXT|NUMBER"
    }

    fn display(&self) -> String {
        let all: Vec<_> = self.iter().map(|it| it.name.as_str()).collect();
        if all.is_empty() { "none".to_owned() } else { all.join(", ") }
    }
}

/// A secret under a name each.
#[derive(Clone, Debug, PartialEq)]
pub struct Secrets(NamedValues<Secret>);

impl Default for Secrets {
    fn default() -> Self {
        Self(NamedValues::of([]))
    }
}

impl Secrets {
    /// The names.
    fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name)
    }

    /// That of a name.
    pub fn get(&self, name: &str) -> Option<&Secret> {
        self.0.get(name)
    }
}

impl Setting for Secrets {
    fn set(&mut self, key: &KeyMatch<'_>, text: &str) -> Result<(), String> {
        self.0.put(key.name, Secret::read(text)?);
        Ok(())
    }

    fn form() -> &'static str {
        Secret::FORM
    }

    fn display(&self) -> String {
        let none = self.0.iter().next().is_none();
        if none { "none".to_owned() } else { "(hidden)".to_owned() }
    }
}

options! {
    /// What new virtual hosts have from the beginning, and rules for new passwords.
    SeedOptions, "New virtual hosts and new passwords";

    /// Users that get permissions in each new virtual host whose name `vhost_pattern` (`.*`) matches.
    ///
    /// A missing user is made, with `tags` (`a,b`) and its password. `configure`, `write` and `read` are `.*` by default.
    users: Seeds = Seeds::default(), keys = [
        "default_users.$name.vhost_pattern",
        "default_users.$name.configure",
        "default_users.$name.write",
        "default_users.$name.read",
        "default_users.$name.tags"
    ];

    /// Passwords of these users. A user without one cannot log in by password.
    passwords: Secrets = Secrets::default(), keys = ["default_users.$name.password"];

    /// Operator policies of each new virtual host whose name `vhost_pattern` (`.*`) matches, under the name in the key,
    /// with priority 0. `queue_pattern` (`.*`) is the policy's pattern, `apply_to` (`all`) what it applies to.
    operator_policies: Seeds = Seeds::default(), keys = [
        "default_policies.operator.$id.vhost_pattern",
        "default_policies.operator.$id.queue_pattern",
        "default_policies.operator.$id.apply_to",
        "default_policies.operator.$id.expires",
        "default_policies.operator.$id.message_ttl",
        "default_policies.operator.$id.max_length",
        "default_policies.operator.$id.max_length_bytes",
        "default_policies.operator.$id.max_in_memory_bytes",
        "default_policies.operator.$id.max_in_memory_length",
        "default_policies.operator.$id.delivery_limit",
        "default_policies.operator.$id.classic_queues.queue_version"
    ];

    /// Limits of each new virtual host whose name `pattern` (`.*`) matches. The first match holds.
    vhost_limits: Seeds = Seeds::default(), keys = [
        "default_limits.vhosts.$id.pattern",
        "default_limits.vhosts.$id.max_connections",
        "default_limits.vhosts.$id.max_queues"
    ];

    /// How many virtual hosts there may be. Those that are there stay.
    vhosts_max: Limit = Limit::INFINITY, keys = ["vhost_max"];

    /// How many queues there may be in all virtual hosts together. Those that are there stay.
    queues_max: Limit = Limit::INFINITY, keys = ["cluster_queue_limit"];

    /// Rule for new passwords of users. Hashes are accepted without a check.
    validator: Validator = Validator::AcceptEverything, keys = ["credential_validator.validation_backend"];

    /// Least number of bytes of a password, for the validator `rabbit_credential_validator_min_password_length`.
    min_length: u32 = 5, keys = ["credential_validator.min_length"];

    /// Pattern that a password must match, for the validator `rabbit_credential_validator_password_regexp`, which needs it.
    regexp: Option<String> = None, keys = ["credential_validator.regexp"];
}

impl SeedOptions {
    /// Every user of whom something is said, be it the password alone.
    pub fn all_users(&self) -> Vec<Seed> {
        let mut all: Vec<Seed> = self.users.iter().cloned().collect();
        for name in self.passwords.names() {
            if all.iter().all(|it| it.name != name) {
                all.push(Seed::named(name));
            }
        }
        all
    }
}
