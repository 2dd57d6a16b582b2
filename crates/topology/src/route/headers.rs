//! Headers exchanges. Hot path: a message's headers are read once, into a buffer on the stack; every
//! binding is then compared with it, without allocation up to 16 headers.

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use leveret_amqp::table::{RawTable, RawValue, Value};
use smallvec::SmallVec;

use super::Out;
use crate::binding::{Binding, BindingIx, Target};

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
}

/// The bindings, one rule each.
#[derive(Debug, Default)]
pub(crate) struct Headers {
    rules: Vec<Rule>,
    places: HashMap<BindingIx, u32, FixedState>,
}

#[derive(Debug)]
struct Rule {
    binding: BindingIx,
    target: Target,
    any: bool,
    tests: Box<[(Box<str>, Wanted)]>,
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

/// The headers of a message, in order. Of duplicate names the last one counts, as in RabbitMQ's map.
type Read<'a> = SmallVec<[(&'a [u8], RawValue<'a>); 16]>;

impl Headers {
    pub(super) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    pub(super) fn bind(&mut self, ix: BindingIx, binding: &Binding) {
        let kind = binding.arguments.get("x-match").and_then(Value::as_str).and_then(Match::parse);
        let kind = kind.unwrap_or(Match::All);
        let with_x = matches!(kind, Match::AllWithX | Match::AnyWithX);
        let tests = binding
            .arguments
            .iter()
            .filter(|(name, _)| if with_x { *name != "x-match" } else { !name.starts_with("x-") });
        let rule = Rule {
            binding: ix,
            target: binding.target,
            any: matches!(kind, Match::Any | Match::AnyWithX),
            tests: tests.map(|(name, value)| (name.into(), Wanted::new(value))).collect(),
        };
        self.places.insert(ix, u32::try_from(self.rules.len()).expect("fewer than 2^32 bindings"));
        self.rules.push(rule);
    }

    pub(super) fn unbind(&mut self, ix: BindingIx) {
        let Some(at) = self.places.remove(&ix) else { return };
        self.rules.swap_remove(at as usize);
        if let Some(moved) = self.rules.get(at as usize) {
            self.places.insert(moved.binding, at);
        }
        if self.rules.is_empty() {
            *self = Self::default();
        }
    }

    pub(super) fn route(&self, headers: Option<RawTable<'_>>, out: &mut Out<'_>) {
        let mut read = Read::new();
        if let Some(headers) = headers {
            // The table was checked when it was received; what cannot be read does not match.
            read.extend(headers.iter().map_while(Result::ok));
        }
        for rule in &self.rules {
            if rule.matches(&read) {
                out.one(rule.target);
            }
        }
    }
}

impl Rule {
    /// Without any test `all` matches everything and `any` nothing.
    fn matches(&self, headers: &Read<'_>) -> bool {
        let mut results = self.tests.iter().map(|(name, wanted)| {
            let found = headers.iter().rfind(|(own, _)| *own == name.as_bytes());
            found.is_some_and(|(_, value)| wanted.is(value))
        });
        if self.any { results.any(|matched| matched) } else { results.all(|matched| matched) }
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
