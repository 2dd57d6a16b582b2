//! How an option is declared: once, with everything that is said about it.
//!
//! `options!` makes of a list of declarations a struct with one field per option, its defaults, the
//! code that takes a setting, and the [`Spec`]s from which flags, environment names, help and pages
//! are generated.

use std::ops::RangeInclusive;

use crate::setting::KeyMatch;
use crate::value::Value;

/// What is said about one option.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Every key of the option; the first is the one to write. `$name` stands for any word.
    pub keys: &'static [&'static str],
    /// Older or other spellings, accepted in files only.
    pub aliases: &'static [&'static str],
    /// Environment names besides the generated ones, each with the key it sets.
    pub env: &'static [(&'static str, &'static str)],
    /// Flags besides the generated ones, each with the key it sets.
    pub flags: &'static [(&'static str, &'static str)],
    /// The paragraphs of its description.
    pub doc: String,
    /// How a value is written.
    pub form: &'static str,
    /// The default as it is shown.
    pub default: String,
    /// The allowed range as it is shown.
    pub range: Option<String>,
}

impl Spec {
    /// The keys that hold no `$name`: those that have a generated flag and environment name.
    pub fn plain_keys(&self) -> impl Iterator<Item = &'static str> {
        self.keys.iter().copied().filter(|key| !key.contains('$'))
    }

    /// Every environment name, most specific first, with the key it sets.
    pub fn env_names(&self) -> Vec<(String, &'static str)> {
        let own = self.plain_keys().map(|key| (env_name(key), key));
        own.chain(self.env.iter().map(|(name, key)| ((*name).to_owned(), *key))).collect()
    }

    /// Every flag without its dashes, with the key it sets.
    pub fn flag_names(&self) -> Vec<(String, &'static str)> {
        let short = self.flags.iter().map(|(name, key)| ((*name).to_owned(), *key));
        let own = self.plain_keys().filter(|key| !self.flags.iter().any(|(_, of)| of == key));
        short.chain(own.map(|key| (key.replace(['.', '_'], "-"), key))).collect()
    }

    /// The first paragraph of the description.
    pub fn summary(&self) -> &str {
        self.doc.split("\n\n").next().unwrap_or_default()
    }

    /// Whether the value is never shown.
    pub fn is_secret(&self) -> bool {
        self.form == crate::value::Secret::FORM
    }
}

/// `LEVERET_` and the key in capitals, with `_` for each dot.
fn env_name(key: &str) -> String {
    format!("LEVERET_{}", key.replace('.', "_").to_ascii_uppercase())
}

/// A struct made by `options!`.
pub(crate) trait Group: Default {
    /// The heading of its section in the pages.
    const TITLE: &'static str;

    /// Its options in the order of declaration.
    fn specs() -> Vec<Spec>;

    /// Takes one setting; `None` when no option of this group has that pattern.
    fn set(&mut self, key: &KeyMatch<'_>, text: &str) -> Option<Result<(), String>>;

    /// Each option's first key and its present value as shown.
    fn shown(&self) -> Vec<(&'static str, String)>;
}

/// Refuses a value outside of a range.
pub(crate) fn in_range<T: Value + PartialOrd>(
    value: &T,
    range: &RangeInclusive<T>,
) -> Result<(), String> {
    if range.contains(value) { Ok(()) } else { Err(format!("expected {}", show_range(range))) }
}

/// A range in words.
pub(crate) fn show_range<T: Value>(range: &RangeInclusive<T>) -> String {
    format!("a value from {} to {}", range.start().show(), range.end().show())
}

macro_rules! options {
    (
        $(#[doc = $about:literal])*
        $group:ident, $title:literal;
        $(
            $(#[doc = $doc:literal])*
            $field:ident: $kind:ty = $default:expr, keys = [$($key:expr),+]
            $(, aliases = [$($alias:literal),+])?
            $(, env = [$($env:literal => $env_key:literal),+])?
            $(, flags = [$($flag:literal => $flag_key:literal),+])?
            $(, range = $range:expr)?
            $(, check = $check:expr)?;
        )+
    ) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $group {
            $($(#[doc = $doc])* pub $field: $kind,)+
        }

        impl Default for $group {
            fn default() -> Self {
                Self { $($field: $default,)+ }
            }
        }

        impl $crate::option::Group for $group {
            const TITLE: &'static str = $title;

            fn specs() -> Vec<$crate::option::Spec> {
                let default = Self::default();
                vec![$($crate::option::Spec {
                    keys: &[$($key),+],
                    aliases: &[$($($alias),+)?],
                    env: &[$($(($env, $env_key)),+)?],
                    flags: &[$($(($flag, $flag_key)),+)?],
                    doc: $crate::option::paragraphs(&[$($doc),*]),
                    form: <$kind as $crate::setting::Setting>::form(),
                    default: $crate::setting::Setting::display(&default.$field),
                    range: options!(@range $kind $(, $range)?),
                }),+]
            }

            fn set(
                &mut self,
                key: &$crate::setting::KeyMatch<'_>,
                text: &str,
            ) -> Option<Result<(), String>> {
                $(if [$($key),+ $($(, $alias)+)?].contains(&key.pattern) {
                    let mut value = self.$field.clone();
                    return Some($crate::setting::Setting::set(&mut value, key, text).and_then(|()| {
                        $($crate::option::in_range(&value, &($range))?;)?
                        $($check(&value)?;)?
                        self.$field = value;
                        Ok(())
                    }));
                })+
                None
            }

            fn shown(&self) -> Vec<(&'static str, String)> {
                vec![$(([$($key),+][0], $crate::setting::Setting::display(&self.$field))),+]
            }
        }
    };
    (@range $kind:ty) => { None };
    (@range $kind:ty, $range:expr) => { Some($crate::option::show_range::<$kind>(&($range))) };
}
pub(crate) use options;

/// Joins documentation lines to paragraphs of one line each, divided by an empty line.
pub(crate) fn paragraphs(lines: &[&str]) -> String {
    let mut text = String::new();
    for line in lines.iter().map(|line| line.trim()) {
        if line.is_empty() {
            text.push_str("\n\n");
        } else {
            if !text.is_empty() && !text.ends_with('\n') {
                text.push(' ');
            }
            text.push_str(line);
        }
    }
    text
}
