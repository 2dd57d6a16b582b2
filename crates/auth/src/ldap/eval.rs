//! What a query comes to, as far as the answers of the directory are known.
//!
//! Nothing is asked here: an evaluation that lacks an answer ends with the question, and is made again when the
//! answer is there. So a query that needs no directory needs no connection either.

use fancy_regex::{CompileError, RegexBuilder};
use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashSet};
use leveret_config::ldap::{Query, Text};

use super::link::{Filter, Scope};
use super::pattern::Variables;
use crate::source::told;

/// Steps back that a regular expression may take for one text.
const REGEX_STEPS_MAX: usize = 10_000;
/// Steps back that one `match` may take, for all texts and regular expressions of attributes together.
const MATCH_STEPS_MAX: usize = 1_000_000;
/// Steps back times the bytes of the longest text, which a step may go through.
const STEP_BYTES_MAX: usize = 8 << 20;
/// Regular expressions of one `match`: each is built for it, which takes up to milliseconds.
const REGEXES_MAX: usize = 100;
/// Longest of them, in bytes.
const REGEX_LENGTH_MAX: usize = 8 << 10;
/// Instructions of one that goes back.
const REGEX_PROGRAM_MAX: usize = 10_000;
/// Memory that one of them may take, in bytes.
const REGEX_BYTES_MAX: usize = 1 << 20;
/// Texts that one `match` may compare, each with each regular expression, and their bytes.
const MATCHES_MAX: usize = 100_000;
const MATCH_BYTES_MAX: usize = 4 << 20;
/// Those bytes times the memory of a regular expression: at worst a byte leads through all of it. About two seconds.
const MATCH_WORK_MAX: usize = 8 << 30;
/// Groups in which one `in_group_nested` looks for others.
const GROUPS_MAX: usize = 1000;
/// Bytes of what one evaluation keeps of answers: each new answer goes through all of it again.
const ANSWERS_MAX: usize = 4 << 20;

/// A question to the directory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Lookup {
    pub(super) base: String,
    pub(super) scope: Scope,
    pub(super) filter: Filter,
    /// The attribute whose values are wanted; none when names of entries are.
    pub(super) attribute: Option<String>,
}

/// The answers so far: values, or names of entries. None where there is no such entry.
#[derive(Debug, Default)]
pub(super) struct Answers {
    of: HashMap<Lookup, Option<Vec<String>>, RandomState>,
    /// Attribute and scope of searches for groups, and what they found, in small letters.
    groups: HashSet<(String, Scope, String), RandomState>,
    bytes: usize,
}

impl Answers {
    /// Of a group that is found again only the first is kept: all searches for groups by one attribute go the same way,
    /// and pass over what they have seen.
    pub(super) fn insert(
        &mut self,
        lookup: Lookup,
        mut answer: Option<Vec<String>>,
    ) -> Result<(), String> {
        if let (Filter::Equal { attribute, value }, Scope::OneLevel | Scope::Subtree) =
            (&lookup.filter, lookup.scope)
        {
            let mut is_new = |dn: &String| {
                self.groups.insert((attribute.clone(), lookup.scope, dn.to_lowercase()))
            };
            // The first one who is asked about is the user.
            is_new(value);
            answer.iter_mut().for_each(|names| names.retain(&mut is_new));
        }
        let texts = answer.iter().flatten();
        self.bytes += texts.map(|text| text.len() + size_of::<String>()).sum::<usize>();
        if self.bytes > ANSWERS_MAX {
            return Err(format!("more than {ANSWERS_MAX} bytes of answers to one query"));
        }
        self.of.insert(lookup, answer);
        Ok(())
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.of.len()
    }
}

/// Why there is no result.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// This has to be asked first.
    Ask(Lookup),
    /// The query does not work.
    Wrong(String),
}

/// One evaluation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Evaluation<'a> {
    pub(super) variables: &'a Variables,
    pub(super) answers: &'a Answers,
    pub(super) group_base: &'a str,
}

impl<'a> Evaluation<'a> {
    pub(super) fn query(&self, query: &Query) -> Result<bool, Stop> {
        match query {
            Query::Constant(is_true) => Ok(*is_true),
            Query::For(cases) => self.cases(cases),
            Query::Exists(dn) => self.exists(dn, Filter::Any),
            Query::InGroup { group, attribute } => {
                let (attribute, value) = (attribute.clone(), self.user_dn().to_owned());
                self.exists(group, Filter::Equal { attribute, value })
            }
            Query::InGroupNested { group, attribute, is_subtree } => {
                let scope = if *is_subtree { Scope::Subtree } else { Scope::OneLevel };
                self.in_group_nested(&self.variables.dn(group), attribute, scope)
            }
            Query::Not(query) => Ok(!self.query(query)?),
            Query::And(queries) => {
                for query in queries {
                    if !self.query(query)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            Query::Or(queries) => {
                for query in queries {
                    if self.query(query)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            Query::Equals(one, other) => {
                let (one, other) = (self.text(one)?, self.text(other)?);
                let other: HashSet<&String, RandomState> = other.iter().collect();
                Ok(one.iter().any(|text| other.contains(text)))
            }
            Query::Match(text, regex) => {
                let texts = self.text(text)?;
                let regexes = match regex {
                    Text::Pattern(pattern) => vec![self.variables.regex(pattern)],
                    Text::Attribute { .. } => self.text(regex)?,
                };
                one_matches(&texts, &regexes)
            }
        }
    }

    fn user_dn(&self) -> &'a str {
        self.variables.get("user_dn").unwrap_or_default()
    }

    fn cases(&self, cases: &[(String, String, Query)]) -> Result<bool, Stop> {
        for (variable, value, query) in cases {
            let own = self.variables.get(variable);
            let own = own.ok_or_else(|| Stop::Wrong(format!("there is no '{variable}' here")))?;
            if own == value {
                return self.query(query);
            }
        }
        Err(Stop::Wrong("no case of a 'for' fits".to_owned()))
    }

    fn exists(&self, dn: &str, filter: Filter) -> Result<bool, Stop> {
        let (base, scope) = (self.variables.dn(dn), Scope::Base);
        let found = self.look(Lookup { base, scope, filter, attribute: None })?;
        Ok(found.is_some_and(|entries| !entries.is_empty()))
    }

    /// From the user upwards, each group once.
    fn in_group_nested(&self, group: &str, attribute: &str, scope: Scope) -> Result<bool, Stop> {
        let small = |text: &str| text.chars().flat_map(char::to_lowercase).collect::<String>();
        let group = small(group);
        let is_group = |dn: &str| dn.chars().flat_map(char::to_lowercase).eq(group.chars());
        let mut next = vec![self.user_dn()];
        let mut asked = 0;
        while let Some(member) = next.pop() {
            // An evaluation begins anew with each answer: what it goes through has a bound.
            if asked > GROUPS_MAX {
                let why = format!("more than {GROUPS_MAX} groups may be in others");
                return Err(Stop::Wrong(why));
            }
            asked += 1;
            let (attribute, value) = (attribute.to_owned(), member.to_owned());
            let filter = Filter::Equal { attribute, value };
            let base = self.group_base.to_owned();
            let found = self.look(Lookup { base, scope, filter, attribute: None })?;
            let groups = found.map_or(&[][..], Vec::as_slice);
            if groups.iter().any(|dn| is_group(dn)) {
                return Ok(true);
            }
            next.extend(groups.iter().map(String::as_str));
        }
        Ok(false)
    }

    fn text(&self, text: &Text) -> Result<Vec<String>, Stop> {
        match text {
            Text::Pattern(pattern) => Ok(vec![self.variables.text(pattern)]),
            Text::Attribute { dn, attribute } => {
                let (base, scope) = (self.variables.dn(dn), Scope::Base);
                let (filter, attribute) = (Filter::Any, Some(attribute.clone()));
                let values = self.look(Lookup { base, scope, filter, attribute })?;
                Ok(values.cloned().unwrap_or_default())
            }
        }
    }

    fn look(&self, lookup: Lookup) -> Result<Option<&'a Vec<String>>, Stop> {
        match self.answers.of.get(&lookup) {
            Some(answer) => Ok(answer.as_ref()),
            None => Err(Stop::Ask(lookup)),
        }
    }
}

/// Whether one of the texts matches one of the regular expressions. Both may come from the directory, and whoever waits
/// for another answer waits for this.
fn one_matches(texts: &[String], regexes: &[String]) -> Result<bool, Stop> {
    let pairs = texts.len().saturating_mul(regexes.len());
    let bytes = texts.iter().map(String::len).sum::<usize>().saturating_mul(regexes.len());
    if regexes.len() > REGEXES_MAX || pairs > MATCHES_MAX || bytes > MATCH_BYTES_MAX {
        let (texts, regexes) = (texts.len(), regexes.len());
        return Err(Stop::Wrong(format!(
            "{texts} texts are too many or too long for {regexes} regular expressions of a 'match'"
        )));
    }
    let longest = texts.iter().map(String::len).max().unwrap_or_default();
    let steps = (MATCH_STEPS_MAX / pairs.max(1)).min(STEP_BYTES_MAX / longest.max(1));
    let memory = (MATCH_WORK_MAX / bytes.max(1)).min(REGEX_BYTES_MAX);
    for regex in regexes {
        let wrong = |error: &str| {
            Stop::Wrong(format!("the regular expression '{}': {}", told(regex), told(error)))
        };
        if regex.len() > REGEX_LENGTH_MAX {
            return Err(wrong(&format!("it has more than {REGEX_LENGTH_MAX} bytes")));
        }
        let wrong = |error| wrong(&explained(&error));
        let mut builder = RegexBuilder::new(regex);
        builder.backtrack_limit(steps.min(REGEX_STEPS_MAX));
        builder.max_prog_size(REGEX_PROGRAM_MAX).delegate_size_limit(memory);
        let compiled = builder.build().map_err(wrong)?;
        for text in texts {
            if compiled.is_match(text).map_err(wrong)? {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// What is wrong with a regular expression. The library does not say which bound one exceeds that is too large.
fn explained(error: &fancy_regex::Error) -> String {
    if let fancy_regex::Error::CompileError(inner) = error
        && let CompileError::InnerError(inner) = &**inner
        && let Some(limit) = inner.size_limit()
    {
        return format!("it takes more than {limit} bytes of memory");
    }
    error.to_string()
}

#[cfg(test)]
mod tests;
