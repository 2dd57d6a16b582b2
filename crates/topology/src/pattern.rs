//! The patterns of permissions and policies: Perl-compatible, unanchored, compiled once.

use crate::error::AdminError;

/// Steps back after which a match is given up: a policy is matched with every name there is.
const BACKTRACK_MAX: usize = 100_000;

/// A compiled pattern.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: Box<str>,
    matcher: Matcher,
}

#[derive(Clone, Debug)]
enum Matcher {
    /// `.*` and the like, which nearly every permission is.
    Everything,
    /// Boxed: a regular expression is large and rare.
    Regex(Box<fancy_regex::Regex>),
}

impl Pattern {
    /// Compiles it. A pattern that takes too long on some name (look-arounds, nested repeats) does not
    /// match that name.
    pub fn new(text: &str) -> Result<Self, AdminError> {
        let matcher = match text {
            "" | ".*" | "^.*" | "^.*$" | ".*$" | "^" => Matcher::Everything,
            _ => Matcher::Regex(Box::new(
                fancy_regex::RegexBuilder::new(text)
                    .backtrack_limit(BACKTRACK_MAX)
                    .build()
                    .map_err(|error| AdminError::Pattern {
                        pattern: text.to_owned(),
                        reason: error.to_string(),
                    })?,
            )),
        };
        Ok(Self { text: text.into(), matcher })
    }

    /// As in permissions, where no pattern means no name (but the empty one).
    pub(crate) fn permission(text: &str) -> Result<Self, AdminError> {
        let compiled = Self::new(if text.is_empty() { "^$" } else { text })?;
        Ok(Self { text: text.into(), ..compiled })
    }

    /// A pattern over other text than it is shown with: `{username}` replaced, for example.
    pub(crate) fn expanded(text: &str, expanded: &str) -> Result<Self, AdminError> {
        Ok(Self { text: text.into(), ..Self::permission(expanded)? })
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether it matches anywhere in the name.
    pub fn matches(&self, name: &str) -> bool {
        match &self.matcher {
            Matcher::Everything => true,
            Matcher::Regex(regex) => regex.is_match(name).unwrap_or(false),
        }
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

/// `text` as a pattern that matches just it.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 4);
    for c in text.chars() {
        if c.is_ascii_punctuation() {
            out.push('\\');
        }
        out.push(c);
    }
    out
}
