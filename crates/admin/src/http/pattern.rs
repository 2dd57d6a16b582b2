//! Regular expressions that come with a request.
//!
//! RabbitMQ runs them with PCRE, which goes back and tries again: some take more time for one name than there is. These
//! are run by an automaton whose time is in proportion to the name, and whose size is bounded, so a request pays for its
//! expression and its names and no more. Some things cannot be done so: a reference back to what a group matched, and
//! looking ahead or behind. Who asks for them is told.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use regex_automata::meta::Regex;
use regex_automata::util::syntax;

/// Longest expression, in bytes, as RabbitMQ has it for its metrics.
const LEN_MAX: usize = 2000;
/// Memory of a compiled expression, in bytes: what bounds the time for a byte of a name.
const SIZE_MAX: usize = 512 << 10;
/// Memory that finding a match may take for states that are made as they are needed, in bytes.
const CACHE_MAX: usize = 1 << 20;
/// How deep groups may be in each other.
const NEST_MAX: u32 = 50;

/// Time that one request may spend on matching, in microseconds: for names without end.
const SPENT_MAX_US: u64 = 1_000_000;

/// An expression that was asked for, and what it took so far.
#[derive(Debug)]
pub(crate) struct Pattern {
    text: String,
    regex: Regex,
    spent_us: AtomicU64,
}

impl Pattern {
    /// Reads an expression. What is wrong with it, in words, if it cannot be one.
    pub(crate) fn of(text: &str, ignores_case: bool) -> Result<Self, String> {
        if text.len() > LEN_MAX {
            return Err(format!(
                "the regular expression is too long: {} bytes, and at most {LEN_MAX} are taken",
                text.len()
            ));
        }
        let config = Regex::config()
            .nfa_size_limit(Some(SIZE_MAX))
            .hybrid_cache_capacity(CACHE_MAX)
            .onepass(false);
        let syntax = syntax::Config::new().case_insensitive(ignores_case).nest_limit(NEST_MAX);
        match Regex::builder().configure(config).syntax(syntax).build(text) {
            Ok(regex) => Ok(Self { text: text.to_owned(), regex, spent_us: AtomicU64::new(0) }),
            Err(error) => Err(match error.syntax_error() {
                // The last line says what is wrong; those before it show where, for a terminal.
                Some(error) => {
                    let told = error.to_string();
                    let told = told.lines().last().unwrap_or_default();
                    let told = told.trim_start_matches("error: ");
                    format!(
                        "'{text}' is not a regular expression that can be run in bounded time: {told}"
                    )
                }
                None => format!(
                    "the regular expression '{text}' is too large: repeat less, or ask for a part of the name"
                ),
            }),
        }
    }

    /// Whether it matches somewhere in a name. What is wrong, in words, when it took too long for all names together.
    pub(crate) fn is_in(&self, name: &str) -> Result<bool, String> {
        let since = Instant::now();
        let is_in = self.regex.is_match(name);
        let took = u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX);
        if self.spent_us.fetch_add(took, Ordering::Relaxed) > SPENT_MAX_US {
            return Err(format!(
                "the regular expression '{}' takes too long for so many names; ask for a simpler one, or for a part of \
                 the name",
                self.text
            ));
        }
        Ok(is_in)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn patterns() {
        let check = |text: &str, name: &str, want: &str| {
            let got = Pattern::of(text, true).and_then(|it| it.is_in(name)).map(|it| it.to_string());
            let got = got.unwrap_or_else(|told| told);
            assert!(got.contains(want), "{text}: {got}");
        };
        check("^a.c$",          "ABC",  "true");
        check("b",              "abc",  "true");
        check("^b",             "abc",  "false");
        check("",               "abc",  "true");
        check(r"^\d+$",         "123",  "true");
        check("(",              "",     "unclosed group");
        check(r"^(.|.)+\1!$",   "",     "backreferences are not supported");
        check("(?=a)",          "",     "look-around");
        check("a{1000}{1000}",  "",     "too large");
        check(&"a".repeat(2001), "",    "too long");
        check(&format!("{}{}", "(".repeat(100), ")".repeat(100)), "", "exceed the maximum number of nested");
    }

    /// One that goes back takes 2^40 steps for this name.
    #[test]
    fn no_name_takes_long() {
        let pattern = Pattern::of("^(a|a)+(a|a)+(a|a)+$", false).unwrap();
        assert_eq!(pattern.is_in(&format!("{}!", "a".repeat(250))), Ok(false));
    }
}
