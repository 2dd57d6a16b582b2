//! The patterns of permissions and policies: Perl-compatible, unanchored, compiled once.
//!
//! A pattern without look-arounds, back-references and the like is matched in time linear in the name, whatever it is. The
//! others are matched by trying, and may take steps back without end: so many of them are taken for one name and no more. A
//! name for which a few do not suffice is [dear](Pattern::is_dear), and whoever has many of them asks less: see
//! [`PolicyChange`](crate::PolicyChange).

use crate::error::AdminError;

/// Steps back after which a match is given up, some milliseconds: the name does not match.
const BACKTRACK_MAX: usize = 10_000;

/// Steps back that nearly every name does with, some microseconds.
const BACKTRACK_FEW: usize = 100;

/// Instructions of a program that tries: none, for a pattern that is to be matched in linear time.
const NO_PROGRAM: usize = 0;

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
    /// In linear time. Boxed: a regular expression is large and rare.
    Linear(Box<fancy_regex::Regex>),
    /// By trying.
    Trying(Box<Trying>),
}

#[derive(Clone, Debug)]
struct Trying {
    /// Gives up after [`BACKTRACK_FEW`].
    few: fancy_regex::Regex,
    /// Gives up after [`BACKTRACK_MAX`].
    all: fancy_regex::Regex,
}

impl Pattern {
    /// Compiles it. A pattern that takes too long on some name (look-arounds, nested repeats) does not
    /// match that name.
    pub fn new(text: &str) -> Result<Self, AdminError> {
        let matcher = match text {
            "" | ".*" | "^.*" | "^.*$" | ".*$" | "^" => Matcher::Everything,
            _ => {
                let mut linear = fancy_regex::RegexBuilder::new(text);
                match linear.max_prog_size(NO_PROGRAM).build() {
                    Ok(regex) => Matcher::Linear(Box::new(regex)),
                    Err(_) => {
                        let build = |limit| {
                            let mut builder = fancy_regex::RegexBuilder::new(text);
                            let built = builder.backtrack_limit(limit).build();
                            built.map_err(|error| AdminError::Pattern {
                                pattern: text.to_owned(),
                                reason: error.to_string(),
                            })
                        };
                        let (few, all) = (build(BACKTRACK_FEW)?, build(BACKTRACK_MAX)?);
                        Matcher::Trying(Box::new(Trying { few, all }))
                    }
                }
            }
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
            Matcher::Linear(regex) => regex.is_match(name).unwrap_or(false),
            Matcher::Trying(it) => {
                it.few.is_match(name).or_else(|_| it.all.is_match(name)).unwrap_or(false)
            }
        }
    }

    /// As [`matches`](Self::matches), but for a name that is dear only while there is something left of `dear`, which are
    /// that many patterns.
    pub(crate) fn matches_within(&self, name: &str, dear: &mut u32) -> bool {
        let Matcher::Trying(it) = &self.matcher else { return self.matches(name) };
        it.few.is_match(name).unwrap_or_else(|_| {
            let may_try = *dear > 0;
            *dear = dear.saturating_sub(1);
            may_try && it.all.is_match(name).unwrap_or(false)
        })
    }

    /// Whether it is matched by trying.
    pub(crate) fn is_trying(&self) -> bool {
        matches!(self.matcher, Matcher::Trying(_))
    }

    /// Whether a name takes more than a few steps back.
    pub(crate) fn is_dear(&self, name: &str) -> bool {
        matches!(&self.matcher, Matcher::Trying(it) if it.few.is_match(name).is_err())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn engines() {
        //    pattern               name     matched by trying, dear, matches
        check("^a.*b$",             "axb",   false, false, true);
        check("(a+)+$",             "aaaa!", false, false, false);
        check(&format!("({}b)+", "a?".repeat(200)), "aaa", false, false, false);
        check("(?i)^Q[0-9]{3}",     "q123",  false, false, true);
        check("^(?!amq\\.).*",      "q",     true,  false, true);
        check("^(?!amq\\.).*",      "amq.q", true,  false, false);
        check("(.)\\1",             "xyy",   true,  false, true);
        check("^(.|.)+\\1!$",       &"x".repeat(100), true, true, false);
    }

    #[track_caller]
    fn check(pattern: &str, name: &str, trying: bool, dear: bool, matches: bool) {
        let it = Pattern::new(pattern).unwrap();
        assert_eq!((it.is_trying(), it.is_dear(name), it.matches(name)), (trying, dear, matches));
        assert_eq!(it.matches_within(name, &mut 1), matches);
    }

    /// Names that are dear to many patterns do not match the last of them.
    #[test]
    fn what_is_dear_is_tried_for_few() {
        let name = "x".repeat(12) + "!";
        let pattern = Pattern::new("^(.|.)+(?<=x)!$").unwrap();
        assert!(pattern.matches(&name));
        let mut dear = 1;
        let is_dear = pattern.is_dear(&name);
        assert!(pattern.matches_within(&name, &mut dear));
        assert_eq!(dear, u32::from(!is_dear));
    }
}
