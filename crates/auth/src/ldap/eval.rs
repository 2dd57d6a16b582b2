//! What a query comes to, as far as the answers of the directory are known.
//!
//! Nothing is asked here: an evaluation that lacks an answer ends with the question, and is made again when the
//! answer is there. So a query that needs no directory needs no connection either.

use fancy_regex::RegexBuilder;
use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashSet};
use leveret_config::ldap::{Query, Text};

use super::link::{Filter, Scope};
use super::pattern::Variables;

/// Steps that a regular expression may take.
const REGEX_STEPS_MAX: usize = 10_000;
/// Groups that a user can be in by way of others.
const GROUPS_MAX: usize = 1000;

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
pub(super) type Answers = HashMap<Lookup, Option<Vec<String>>, RandomState>;

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
                Ok(one.iter().any(|text| other.contains(text)))
            }
            Query::Match(text, regex) => {
                let texts = self.text(text)?;
                let regexes = match regex {
                    Text::Pattern(pattern) => vec![self.variables.regex(pattern)],
                    Text::Attribute { .. } => self.text(regex)?,
                };
                for regex in regexes {
                    for text in &texts {
                        if matches(text, &regex)? {
                            return Ok(true);
                        }
                    }
                }
                Ok(false)
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
        let is_group = |dn: &str| dn.to_lowercase() == group.to_lowercase();
        let mut seen = HashSet::<String, RandomState>::default();
        let mut next = vec![self.user_dn().to_owned()];
        while let Some(member) = next.pop() {
            if !seen.insert(member.to_lowercase()) {
                continue;
            }
            if seen.len() > GROUPS_MAX {
                return Err(Stop::Wrong(format!("more than {GROUPS_MAX} groups in each other")));
            }
            let filter = Filter::Equal { attribute: attribute.to_owned(), value: member };
            let base = self.group_base.to_owned();
            let found = self.look(Lookup { base, scope, filter, attribute: None })?;
            let groups = found.map_or(&[][..], Vec::as_slice);
            if groups.iter().any(|dn| is_group(dn)) {
                return Ok(true);
            }
            next.extend(groups.iter().cloned());
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
        match self.answers.get(&lookup) {
            Some(answer) => Ok(answer.as_ref()),
            None => Err(Stop::Ask(lookup)),
        }
    }
}

fn matches(text: &str, regex: &str) -> Result<bool, Stop> {
    let compiled = RegexBuilder::new(regex).backtrack_limit(REGEX_STEPS_MAX).build();
    let wrong = |error| Stop::Wrong(format!("the regular expression '{regex}': {error}"));
    compiled.and_then(|regex| regex.is_match(text)).map_err(wrong)
}

#[cfg(test)]
mod tests;
