//! Headers exchanges. Hot path: a message's headers are read once, into a buffer on the stack, and only those rules are
//! compared with them of which one header is there and has the right value. No allocation up to 16 headers that are
//! asked for.
//!
//! ```text
//!   x-match=all  type=order, customer=17 ---+      filed under that one of its headers which the fewest rules have
//!   x-match=any  type=offer, urgent ------+ |      filed under each of them
//!                                         | |
//!   type:      "order" [ ]   "offer" [2]<-+ |
//!   customer:  17 [1] <-------------------+-+
//!   urgent:    whatever [2] <-------------+
//! ```
//!
//! A message has one value for each header. So what it can cost at most is the sum, over all names of headers, of what
//! the rules cost that are filed under the same value. There is an upper limit: see [`Headers::exceeds`].

use std::collections::BTreeMap;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use leveret_amqp::table::{RawTable, RawValue, Table, Value};
use smallvec::SmallVec;

use super::RouteSink;
use super::dests::Dests;
use crate::binding::{Binding, BindingIx, Target};
use crate::hash::{Hasher64, Keyed};

/// Comparisons that one message can need, at most: about a millisecond. What is compared with a long value counts more.
const COST_MAX: u64 = 1 << 17;

/// Bytes of a value that are compared at the cost of one more look.
const BYTES_PER_LOOK: usize = 64;

/// `x-match`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Match {
    /// Every argument that does not begin with `x-`.
    All,
    /// At least one of them.
    Any,
    /// Every argument but `x-match`.
    AllWithX,
    /// At least one of them.
    AnyWithX,
}

impl Match {
    pub(crate) fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "all" => Self::All,
            "any" => Self::Any,
            "all-with-x" => Self::AllWithX,
            "any-with-x" => Self::AnyWithX,
            _ => return None,
        })
    }

    /// What a binding's arguments say, which were checked.
    fn of(arguments: &Table) -> Self {
        let name = arguments.get("x-match").and_then(Value::as_str);
        name.and_then(Self::parse).unwrap_or(Self::All)
    }

    fn is_any(self) -> bool {
        matches!(self, Self::Any | Self::AnyWithX)
    }

    /// The arguments that a message's headers are compared with.
    fn tests(self, arguments: &Table) -> impl Iterator<Item = (&str, &Value)> {
        let with_x = matches!(self, Self::AllWithX | Self::AnyWithX);
        arguments.iter().filter(
            move |(name, _)| if with_x { *name != "x-match" } else { !name.starts_with("x-") },
        )
    }
}

/// The bindings, one rule each.
#[derive(Debug, Default)]
pub(crate) struct Headers {
    rules: Vec<Option<Rule>>,
    free: Vec<RuleIx>,
    places: HashMap<BindingIx, RuleIx, FixedState>,
    /// The names that rules ask for.
    known: HashMap<Box<[u8]>, NameIx, Keyed>,
    names: Vec<Name>,
    free_names: Vec<NameIx>,
    /// Those that match every message.
    always: Dests,
    /// Sum of [`Name::cost`].
    cost: u64,
}

type RuleIx = u32;
type NameIx = u32;

#[derive(Debug)]
struct Rule {
    target: Target,
    any: bool,
    tests: Box<[Test]>,
    /// What comparing it costs; with `any`, each of its headers costs by itself.
    cost: u32,
}

#[derive(Debug)]
struct Test {
    name: NameIx,
    wanted: Wanted,
    /// Where it is filed, if it is.
    at: u32,
}

/// The rules that are filed under a header.
#[derive(Debug, Default)]
struct Name {
    text: Box<[u8]>,
    /// Tests of this name, filed or not.
    tests: u32,
    /// Those to whom any value is right.
    anything: File,
    /// By hash of the value.
    values: HashMap<u64, File, FixedState>,
    /// How many of [`Self::values`] cost so much.
    costs: BTreeMap<u32, u32>,
}

#[derive(Debug, Default)]
struct File {
    filed: Vec<Filed>,
    cost: u32,
}

#[derive(Clone, Copy, Debug)]
struct Filed {
    rule: RuleIx,
    /// Which of its tests.
    test: u32,
}

impl Name {
    /// What a message with this header can cost.
    fn cost(&self) -> u64 {
        let dearest = self.costs.last_key_value().map_or(0, |(&cost, _)| cost);
        u64::from(self.anything.cost) + u64::from(dearest)
    }

    fn file(&self, hash: Option<u64>) -> Option<&File> {
        match hash {
            None => Some(&self.anything),
            Some(hash) => self.values.get(&hash),
        }
    }

    /// Changes the file of a value, keeps what is known of the costs.
    fn change<T>(&mut self, hash: Option<u64>, change: impl FnOnce(&mut File) -> T) -> T {
        let Some(hash) = hash else { return change(&mut self.anything) };
        let file = self.values.entry(hash).or_default();
        let before = file.cost;
        let result = change(file);
        let after = file.cost;
        if file.filed.is_empty() {
            self.values.remove(&hash);
        }
        if before > 0
            && let Some(count) = self.costs.get_mut(&before)
        {
            *count -= 1;
            if *count == 0 {
                self.costs.remove(&before);
            }
        }
        if after > 0 {
            *self.costs.entry(after).or_default() += 1;
        }
        result
    }
}

/// What a header must be.
#[derive(Debug)]
enum Wanted {
    /// There, whatever it is.
    Anything,
    Value(Value),
    /// Compared as bytes of the wire.
    Array(Box<[u8]>),
    /// Compared as bytes of the wire.
    Table(Box<[u8]>),
}

impl Wanted {
    fn new(value: &Value) -> Self {
        match value {
            Value::Void => Self::Anything,
            Value::Table(table) => Self::Table(table.to_bytes().into()),
            Value::Array(_) => {
                let mut wire = Vec::new();
                value.encode(&mut wire);
                // Kind and length come first.
                Self::Array(wire.split_off(5).into())
            }
            other => Self::Value(other.clone()),
        }
    }

    /// The same for all values that are equal; none for what any value is.
    fn hash(&self) -> Option<u64> {
        Some(match self {
            Self::Anything => return None,
            Self::Value(Value::LongStr(bytes) | Value::Bytes(bytes)) => hash_bytes(TEXT, bytes),
            Self::Value(Value::Bool(value)) => hash_number(BOOL, u64::from(*value)),
            Self::Value(value @ (Value::F32(_) | Value::F64(_))) => {
                hash_float(wanted_float(value).unwrap_or_default())
            }
            Self::Value(Value::Decimal { scale, value }) => {
                hash_number(u64::from(*scale) << 8 | DECIMAL, *value as u64)
            }
            Self::Value(Value::Timestamp(seconds)) => hash_number(WHOLE, *seconds),
            Self::Value(value) => hash_number(WHOLE, value.as_i64().unwrap_or_default() as u64),
            Self::Array(wire) => hash_bytes(ARRAY, wire),
            Self::Table(wire) => hash_bytes(TABLE, wire),
        })
    }

    /// What comparing with it costs.
    fn cost(&self) -> u32 {
        let bytes = match self {
            Self::Value(Value::LongStr(bytes) | Value::Bytes(bytes)) => bytes.len(),
            Self::Array(wire) | Self::Table(wire) => wire.len(),
            _ => 0,
        };
        1 + u32::try_from(bytes / BYTES_PER_LOOK).unwrap_or(u32::MAX / 2)
    }

    fn is(&self, found: &RawValue<'_>) -> bool {
        match self {
            Self::Anything => true,
            Self::Value(wanted) => equal(found, wanted),
            Self::Array(wanted) => {
                matches!(found, RawValue::Array(found) if found.as_bytes() == wanted.as_ref())
            }
            Self::Table(wanted) => {
                matches!(found, RawValue::Table(found) if found.as_bytes() == wanted.as_ref())
            }
        }
    }
}

/// What a message says of the headers that rules ask for, by name, each once.
type Read<'a> = SmallVec<[(NameIx, RawValue<'a>); 16]>;

impl Headers {
    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    pub(super) fn bind(&mut self, ix: BindingIx, binding: &Binding) {
        let kind = Match::of(&binding.arguments);
        let tests = kind.tests(&binding.arguments).map(|(name, value)| {
            let wanted = Wanted::new(value);
            Test {
                name: name_ix(&mut self.known, &mut self.names, &mut self.free_names, name),
                wanted,
                at: 0,
            }
        });
        let tests: Box<[Test]> = tests.collect();
        let cost = tests.iter().map(|test| test.wanted.cost()).fold(0, u32::saturating_add);
        let rule = Rule { target: binding.target, any: kind.is_any(), tests, cost };
        let at = match self.free.pop() {
            Some(at) => at,
            None => {
                self.rules.push(None);
                u32::try_from(self.rules.len() - 1).expect("fewer than 2^32 bindings")
            }
        };
        if rule.tests.is_empty() && !rule.any {
            self.always.add(rule.target);
        }
        let places = rule.places(&self.names);
        self.rules[at as usize] = Some(rule);
        self.places.insert(ix, at);
        for test in places {
            self.file(at, test);
        }
    }

    pub(super) fn unbind(&mut self, ix: BindingIx) {
        let Some(at) = self.places.remove(&ix) else { return };
        let Some(rule) = self.rules.get(at as usize).and_then(Option::as_ref) else { return };
        let (target, any) = (rule.target, rule.any);
        for test in 0..rule.tests.len() {
            self.take_out(at, test);
        }
        let Some(rule) = self.rules[at as usize].take() else { return };
        if rule.tests.is_empty() && !any {
            self.always.remove(target);
        }
        for test in &rule.tests {
            let name = &mut self.names[test.name as usize];
            name.tests -= 1;
            if name.tests == 0 {
                self.known.remove(&name.text);
                *name = Name::default();
                self.free_names.push(test.name);
            }
        }
        self.free.push(at);
        if self.places.is_empty() {
            *self = Self::default();
        }
    }

    /// Files a rule under one of its headers.
    fn file(&mut self, rule: RuleIx, test: usize) {
        let Some(it) = self.rules.get_mut(rule as usize).and_then(Option::as_mut) else { return };
        let cost = it.cost_at(test);
        let Some(Test { name, wanted, at }) = it.tests.get_mut(test) else { return };
        let name = &mut self.names[*name as usize];
        self.cost -= name.cost();
        *at = name.change(wanted.hash(), |file| {
            file.cost = file.cost.saturating_add(cost);
            file.filed.push(Filed { rule, test: test as u32 });
            (file.filed.len() - 1) as u32
        });
        self.cost += name.cost();
    }

    /// Takes a rule out of one of its headers' files, if it is there.
    fn take_out(&mut self, rule: RuleIx, test: usize) {
        let Some(it) = self.rules.get(rule as usize).and_then(Option::as_ref) else { return };
        let cost = it.cost_at(test);
        let Some(Test { name, wanted, at }) = it.tests.get(test) else { return };
        let (hash, at) = (wanted.hash(), *at as usize);
        let name = &mut self.names[*name as usize];
        let is_it = |it: &Filed| it.rule == rule && it.test as usize == test;
        if !name.file(hash).and_then(|file| file.filed.get(at)).is_some_and(is_it) {
            return;
        }
        self.cost -= name.cost();
        let moved = name.change(hash, |file| {
            file.cost = file.cost.saturating_sub(cost);
            file.filed.swap_remove(at);
            file.filed.get(at).copied()
        });
        self.cost += name.cost();
        if let Some(moved) = moved
            && let Some(it) = self.rules.get_mut(moved.rule as usize).and_then(Option::as_mut)
        {
            it.tests[moved.test as usize].at = at as u32;
        }
    }

    /// What a message may cost if there is one more binding, and what is allowed; none if that is not over it.
    pub(super) fn exceeds(&self, arguments: &Table) -> Option<(u64, u64)> {
        let tests = Match::of(arguments).tests(arguments);
        let more: u64 = tests.map(|(_, value)| u64::from(Wanted::new(value).cost())).sum();
        let cost = self.cost + more;
        (cost > COST_MAX).then_some((cost, COST_MAX))
    }

    pub(super) fn route(&self, headers: Option<RawTable<'_>>, out: &mut RouteSink<'_>) {
        out.all(&self.always);
        let Some(headers) = headers.filter(|_| !self.known.is_empty()) else { return };
        let read = self.read(headers, out);
        for (name, value) in &read {
            let name = &self.names[*name as usize];
            self.compare(&name.anything, &read, value, out);
            if !name.values.is_empty()
                && let Some(file) = name.values.get(&hash_raw(value))
            {
                self.compare(file, &read, value, out);
            }
            if out.is_over() {
                return;
            }
        }
    }

    fn read<'a>(&self, headers: RawTable<'a>, out: &mut RouteSink<'_>) -> Read<'a> {
        let mut read = Read::new();
        let mut looks = 0;
        // The table was checked when it was received; what cannot be read does not match.
        for (name, value) in headers.iter().map_while(Result::ok) {
            looks += 1;
            if let Some(&name) = self.known.get(name) {
                read.push((name, value));
            }
        }
        out.pay(looks);
        // Of duplicate names the last one counts, as in RabbitMQ's map.
        read.reverse();
        read.sort_by_key(|&(name, _)| name);
        read.dedup_by_key(|(name, _)| *name);
        read
    }

    /// The rules that are filed under a header that has this value.
    fn compare(&self, file: &File, read: &Read<'_>, value: &RawValue<'_>, out: &mut RouteSink<'_>) {
        let mut looks = 0;
        for filed in &file.filed {
            let Some(rule) = self.rules.get(filed.rule as usize).and_then(Option::as_ref) else {
                continue;
            };
            let matches = if rule.any {
                let wanted = &rule.tests[filed.test as usize].wanted;
                looks += wanted.cost();
                wanted.is(value)
            } else {
                rule.matches(read, &mut looks)
            };
            if matches {
                out.one(rule.target);
            }
        }
        out.pay(looks as usize);
    }
}

/// The place of a name, made if it has none, for one more test.
fn name_ix(
    known: &mut HashMap<Box<[u8]>, NameIx, Keyed>,
    names: &mut Vec<Name>,
    free: &mut Vec<NameIx>,
    text: &str,
) -> NameIx {
    let ix = known.get(text.as_bytes()).copied().unwrap_or_else(|| {
        let ix = free.pop().unwrap_or_else(|| {
            names.push(Name::default());
            u32::try_from(names.len() - 1).expect("fewer than 2^32 names")
        });
        known.insert(text.as_bytes().into(), ix);
        ix
    });
    let name = &mut names[ix as usize];
    if name.tests == 0 {
        name.text = text.as_bytes().into();
    }
    name.tests += 1;
    ix
}

impl Rule {
    /// The tests under which it is to be found.
    fn places(&self, names: &[Name]) -> SmallVec<[usize; 4]> {
        if self.any {
            return (0..self.tests.len()).collect();
        }
        let crowd = |test: &Test| {
            let file = names.get(test.name as usize).and_then(|name| name.file(test.wanted.hash()));
            file.map_or(0, |file| file.filed.len())
        };
        let best = (0..self.tests.len()).min_by_key(|&at| crowd(&self.tests[at]));
        best.into_iter().collect()
    }

    /// What it costs when a message has the header of one of its tests.
    fn cost_at(&self, test: usize) -> u32 {
        match self.tests.get(test) {
            Some(test) if self.any => test.wanted.cost(),
            _ => self.cost,
        }
    }

    /// With `all`: every test, until one fails.
    fn matches(&self, read: &Read<'_>, looks: &mut u32) -> bool {
        self.tests.iter().all(|test| {
            *looks += test.wanted.cost();
            let found = read.binary_search_by_key(&test.name, |&(name, _)| name);
            found.is_ok_and(|at| test.wanted.is(&read[at].1))
        })
    }
}

const TEXT: u64 = 1;
const BOOL: u64 = 2;
const FLOAT: u64 = 3;
const DECIMAL: u64 = 4;
const WHOLE: u64 = 5;
const ARRAY: u64 = 6;
const TABLE: u64 = 7;
const VOID: u64 = 8;

fn hash_number(kind: u64, number: u64) -> u64 {
    let mut hasher = Hasher64::keyed();
    hasher.number(kind);
    hasher.number(number);
    hasher.finish()
}

fn hash_bytes(kind: u64, bytes: &[u8]) -> u64 {
    let mut hasher = Hasher64::keyed();
    hasher.number(kind);
    hasher.bytes(bytes);
    hasher.finish()
}

/// 0 is equal to -0.
fn hash_float(value: f64) -> u64 {
    hash_number(FLOAT, if value == 0.0 { 0 } else { value.to_bits() })
}

/// As [`Wanted::hash`].
fn hash_raw(value: &RawValue<'_>) -> u64 {
    match *value {
        RawValue::LongStr(bytes) | RawValue::Bytes(bytes) => hash_bytes(TEXT, bytes),
        RawValue::Bool(value) => hash_number(BOOL, u64::from(value)),
        RawValue::F32(_) | RawValue::F64(_) => hash_float(float(value).unwrap_or_default()),
        RawValue::Decimal { scale, value } => {
            hash_number(u64::from(scale) << 8 | DECIMAL, value as u64)
        }
        RawValue::Array(array) => hash_bytes(ARRAY, array.as_bytes()),
        RawValue::Table(table) => hash_bytes(TABLE, table.as_bytes()),
        RawValue::Void => hash_number(VOID, 0),
        ref number => hash_number(WHOLE, whole(number).unwrap_or_default() as u64),
    }
}

/// The bytes of a string, long or binary.
pub(super) fn bytes<'a>(value: &RawValue<'a>) -> Option<&'a [u8]> {
    match *value {
        RawValue::LongStr(bytes) | RawValue::Bytes(bytes) => Some(bytes),
        _ => None,
    }
}

/// Equal whatever the width of numbers: RabbitMQ compares values without their types.
#[allow(clippy::float_cmp)] // equality is what is asked
fn equal(found: &RawValue<'_>, wanted: &Value) -> bool {
    match wanted {
        Value::LongStr(wanted) | Value::Bytes(wanted) => bytes(found) == Some(wanted.as_slice()),
        Value::Bool(wanted) => matches!(found, RawValue::Bool(found) if found == wanted),
        Value::F32(_) | Value::F64(_) => {
            float(found).is_some() && float(found) == wanted_float(wanted)
        }
        Value::Decimal { scale, value } => {
            matches!(found, RawValue::Decimal { scale: s, value: v } if s == scale && v == value)
        }
        Value::Timestamp(wanted) => whole(found) == Some(i128::from(*wanted)),
        number => number.as_i64().is_some_and(|n| whole(found) == Some(n.into())),
    }
}

fn whole(found: &RawValue<'_>) -> Option<i128> {
    Some(match *found {
        RawValue::I8(n) => n.into(),
        RawValue::U8(n) => n.into(),
        RawValue::I16(n) => n.into(),
        RawValue::U16(n) => n.into(),
        RawValue::I32(n) => n.into(),
        RawValue::U32(n) => n.into(),
        RawValue::I64(n) => n.into(),
        RawValue::Timestamp(n) => n.into(),
        _ => return None,
    })
}

fn float(found: &RawValue<'_>) -> Option<f64> {
    match *found {
        RawValue::F32(n) => Some(n.into()),
        RawValue::F64(n) => Some(n),
        _ => None,
    }
}

fn wanted_float(wanted: &Value) -> Option<f64> {
    match *wanted {
        Value::F32(n) => Some(n.into()),
        Value::F64(n) => Some(n),
        _ => None,
    }
}
