//! The methods by name and by id, read from `methods.txt`.
//!
//! This is a second reading of the published definition, on purpose not the broker's codec: a
//! mistake in that one must not be made twice and so go unseen.

use std::collections::HashMap;
use std::sync::OnceLock;

/// How a field is laid out on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One byte.
    Octet,
    /// Two bytes.
    Short,
    /// Four bytes.
    Long,
    /// Eight bytes.
    LongLong,
    /// One bit; neighbours share a byte, lowest bit first.
    Bit,
    /// One length byte, then UTF-8.
    ShortStr,
    /// Four length bytes, then anything.
    LongStr,
    /// Four length bytes, then names and typed values.
    Table,
}

/// One field of a method.
#[derive(Debug)]
pub struct Field {
    /// The published name.
    pub name: String,
    /// Its layout.
    pub kind: Kind,
    /// Reserved: always zero or empty, never part of a script.
    pub is_reserved: bool,
}

/// One method.
#[derive(Debug)]
pub struct Method {
    /// `class.method`.
    pub name: String,
    /// Class and method id.
    pub id: (u16, u16),
    /// In wire order.
    pub fields: Vec<Field>,
}

impl Method {
    /// Content frames follow this method.
    pub fn has_content(&self) -> bool {
        matches!(
            self.name.as_str(),
            "basic.publish" | "basic.return" | "basic.deliver" | "basic.get-ok"
        )
    }
}

/// All methods.
#[derive(Debug)]
pub struct Spec {
    methods: Vec<Method>,
    by_name: HashMap<String, usize>,
    by_id: HashMap<(u16, u16), usize>,
}

impl Spec {
    /// The table, read once.
    pub fn get() -> &'static Self {
        static SPEC: OnceLock<Spec> = OnceLock::new();
        SPEC.get_or_init(|| Self::parse(include_str!("methods.txt")))
    }

    /// A method by `class.method`.
    pub fn by_name(&self, name: &str) -> Option<&Method> {
        self.methods.get(*self.by_name.get(name)?)
    }

    /// A method by its ids.
    pub fn by_id(&self, id: (u16, u16)) -> Option<&Method> {
        self.methods.get(*self.by_id.get(&id)?)
    }

    fn parse(text: &str) -> Self {
        let mut spec = Self { methods: Vec::new(), by_name: HashMap::new(), by_id: HashMap::new() };
        for line in text.lines().filter(|l| !l.starts_with('#') && !l.trim().is_empty()) {
            let mut words = line.split_whitespace();
            let name = words.next().expect("a name").to_owned();
            let (class, method) =
                words.next().and_then(|w| w.split_once('.')).expect("class.method ids");
            let id = (class.parse().expect("class id"), method.parse().expect("method id"));
            let fields = words.map(Field::parse).collect();
            spec.by_name.insert(name.clone(), spec.methods.len());
            spec.by_id.insert(id, spec.methods.len());
            spec.methods.push(Method { name, id, fields });
        }
        spec
    }
}

impl Field {
    fn parse(word: &str) -> Self {
        let bare = word.trim_matches(['(', ')']);
        let (name, kind) = bare.split_once(':').expect("name:kind");
        let kind = match kind {
            "o" => Kind::Octet,
            "h" => Kind::Short,
            "l" => Kind::Long,
            "q" => Kind::LongLong,
            "b" => Kind::Bit,
            "s" => Kind::ShortStr,
            "S" => Kind::LongStr,
            "t" => Kind::Table,
            other => panic!("unknown kind {other}"),
        };
        Self { name: name.to_owned(), kind, is_reserved: bare.len() != word.len() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_whole() {
        let spec = Spec::get();
        assert_eq!(spec.methods.len(), spec.by_id.len());
        assert_eq!(spec.methods.len(), spec.by_name.len());
        assert_eq!(spec.by_name("exchange.unbind-ok").map(|m| m.id), Some((40, 51)));
        assert_eq!(spec.by_id((85, 10)).map(|m| m.name.as_str()), Some("confirm.select"));
    }
}
