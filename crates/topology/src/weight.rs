//! What names take in memory, roughly, so that the memory watermark sees them.
//!
//! The sum is kept as names come and go: asking for it costs nothing. Maps of names keep their part of it
//! themselves ([`Weighed`]), so that none can come or go without.

use std::hash::Hash;
use std::ops::Deref;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use leveret_amqp::table::{Table, Value};
use serde_json::Value as Json;

use crate::binding::Binding;
use crate::exchange::Exchange;
use crate::policy::Policy;
use crate::queue::Queue;

/// Something with a name.
pub(crate) trait Weigh {
    /// Bytes.
    fn weight(&self) -> u64;
}

/// What a queue takes among the names, a binding, and so on, without names and arguments.
const QUEUE: u64 = 400;
const EXCHANGE: u64 = 600;
const BINDING: u64 = 250;
const SETTING: u64 = 250;

/// Words of a binding key that [`BINDING`] counts, and what each one more takes: a topic exchange has a node for each that no
/// other binding shares.
const WORDS: u64 = 3;
const WORD: u64 = 72;

impl Weigh for Queue {
    fn weight(&self) -> u64 {
        let declared = self.declared.as_deref().map_or(0, table);
        QUEUE + self.name.len() as u64 + table(&self.arguments) + declared
    }
}

impl Weigh for Exchange {
    fn weight(&self) -> u64 {
        EXCHANGE + self.name.len() as u64 + table(&self.arguments)
    }
}

impl Weigh for Binding {
    fn weight(&self) -> u64 {
        binding(&self.key, &self.arguments)
    }
}

impl Weigh for Policy {
    fn weight(&self) -> u64 {
        let pattern = self.pattern.text().len() as u64 + self.pattern.size();
        let entries = self.definition.iter().map(|(name, value)| entry(name, json(value)));
        SETTING + self.name.len() as u64 + pattern + entries.sum::<u64>()
    }
}

impl Weigh for Json {
    fn weight(&self) -> u64 {
        SETTING + json(self)
    }
}

impl<T: Weigh> Weigh for Box<T> {
    fn weight(&self) -> u64 {
        (**self).weight()
    }
}

/// The least that the allocator gives.
const SMALL: u64 = 16;

fn heap(len: usize) -> u64 {
    if len == 0 { 0 } else { (len as u64).max(SMALL) }
}

fn entry(name: &str, value: u64) -> u64 {
    size_of::<String>() as u64 + heap(name.len()) + value
}

/// Bytes of a queue, a binding and so on that is small: no arguments to speak of, a key of a few words.
pub(crate) const SMALL_NAME: u64 = 1 << 10;

/// Bytes of a queue or an exchange.
pub(crate) fn named(name: &str, arguments: &Table) -> u64 {
    QUEUE + name.len() as u64 + table(arguments)
}

/// Bytes of a binding.
pub fn binding(key: &str, arguments: &Table) -> u64 {
    let words = key.bytes().filter(|&byte| byte == b'.').count() as u64 + 1;
    // A router has key and arguments in its own form.
    BINDING + WORD * words.saturating_sub(WORDS) + 2 * (key.len() as u64 + table(arguments))
}

/// Bytes of a field table, all that is in it included.
pub fn table(table: &Table) -> u64 {
    table.iter().map(|(name, value)| entry(name, self::value(value))).sum()
}

fn value(value: &Value) -> u64 {
    let inside = match value {
        Value::LongStr(bytes) | Value::Bytes(bytes) => heap(bytes.len()),
        Value::Array(values) => values.iter().map(self::value).sum(),
        Value::Table(inner) => table(inner),
        _ => 0,
    };
    size_of::<Value>() as u64 + inside
}

fn json(value: &Json) -> u64 {
    let inside = match value {
        Json::String(text) => heap(text.len()),
        Json::Array(values) => values.iter().map(json).sum(),
        Json::Object(map) => map.iter().map(|(name, value)| entry(name, json(value))).sum(),
        Json::Null | Json::Bool(_) | Json::Number(_) => 0,
    };
    size_of::<Json>() as u64 + inside
}

/// A map that knows what is in it weighs.
#[derive(Debug)]
pub(crate) struct Weighed<K, V> {
    map: HashMap<K, V, FixedState>,
    bytes: u64,
}

impl<K, V> Default for Weighed<K, V> {
    fn default() -> Self {
        Self { map: HashMap::default(), bytes: 0 }
    }
}

impl<K: Eq + Hash, V: Weigh> Weighed<K, V> {
    pub(crate) fn insert(&mut self, key: K, value: V) {
        self.bytes += value.weight();
        if let Some(old) = self.map.insert(key, value) {
            self.bytes -= old.weight();
        }
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let value = self.map.remove(key)?;
        self.bytes -= value.weight();
        Some(value)
    }

    /// To change what weighs nothing.
    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.map.get_mut(key)
    }

    /// To change anything.
    pub(crate) fn change<T>(&mut self, key: &K, change: impl FnOnce(&mut V) -> T) -> Option<T> {
        let value = self.map.get_mut(key)?;
        self.bytes -= value.weight();
        let result = change(value);
        self.bytes += value.weight();
        Some(result)
    }

    /// Bytes of all that is in it.
    pub(crate) fn weight(&self) -> u64 {
        self.bytes
    }
}

impl<K, V> Deref for Weighed<K, V> {
    type Target = HashMap<K, V, FixedState>;

    fn deref(&self) -> &Self::Target {
        &self.map
    }
}
