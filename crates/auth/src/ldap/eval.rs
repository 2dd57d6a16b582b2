//! What a query comes to, as far as the answers of the directory are known.
//!
//! Nothing is asked here: an evaluation that lacks an answer ends with the question, and is made again when the
//! answer is there. So a query that needs no directory needs no connection either. What may be long is not made again:
//! comparisons, and searches through groups, which go on where they stopped.

use std::cell::RefCell;

use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashSet};
use leveret_config::ldap::{Query, Text};

use super::link::{Filter, Scope};
use super::matching::{Work, one_matches};
use super::pattern::Variables;

/// Groups in which one `in_group_nested` looks for others.
const GROUPS_MAX: usize = 1000;
/// Bytes of what one evaluation keeps of answers. Searches through groups may keep as much again, each.
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

/// What is known of a question so far, and what came of it.
#[derive(Debug)]
pub(super) struct Answers {
    /// Values, or names of entries. None where there is no such entry.
    of: HashMap<Lookup, Option<Vec<String>>, RandomState>,
    /// What comparisons and searches through groups came to, by the addresses of their queries: an evaluation begins anew with
    /// each answer, and texts and groups may be many.
    results: RefCell<HashMap<usize, bool, RandomState>>,
    /// Searches through groups that wait for an answer, by the same.
    walks: RefCell<HashMap<usize, Walk, RandomState>>,
    /// What all `match` of the question take.
    work: Work,
    /// Attribute and scope of searches for groups, and what they found, in small letters.
    groups: HashSet<(String, Scope, String), RandomState>,
    bytes: usize,
    /// How often an answer was looked for.
    #[cfg(test)]
    looked: std::cell::Cell<usize>,
}

/// A search through groups: the user's, those that have these as members, and so on.
#[derive(Debug)]
struct Walk {
    /// Members whose groups are still to be looked at, the next one last.
    next: Vec<String>,
    /// Members whose groups were looked at.
    seen: usize,
}

impl Answers {
    /// None yet.
    pub(super) fn new(work: Work) -> Self {
        let (of, groups, results, walks) = Default::default();
        Self {
            of,
            results,
            walks,
            work,
            groups,
            bytes: 0,
            #[cfg(test)]
            looked: Default::default(),
        }
    }

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
                self.once(query, || {
                    self.in_group_nested(query, &self.variables.dn(group), attribute, scope)
                })
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
            Query::Equals(one, other) => self.once(query, || self.equals(one, other)),
            Query::Match(text, regex) => self.once(query, || self.matches(text, regex)),
        }
    }

    /// What a query comes to, which is the same in each evaluation that has its answers.
    fn once(&self, query: &Query, find: impl FnOnce() -> Result<bool, Stop>) -> Result<bool, Stop> {
        let address = address(query);
        if let Some(known) = self.answers.results.borrow().get(&address) {
            return Ok(*known);
        }
        let is_true = find()?;
        self.answers.results.borrow_mut().insert(address, is_true);
        Ok(is_true)
    }

    fn equals(&self, one: &Text, other: &Text) -> Result<bool, Stop> {
        let (one, other) = (self.text(one)?, self.text(other)?);
        let other: HashSet<&String, RandomState> = other.iter().collect();
        Ok(one.iter().any(|text| other.contains(text)))
    }

    fn matches(&self, text: &Text, regex: &Text) -> Result<bool, Stop> {
        let texts = self.text(text)?;
        let regexes = match regex {
            Text::Pattern(pattern) => vec![self.variables.regex(pattern)],
            Text::Attribute { .. } => self.text(regex)?,
        };
        one_matches(&texts, &regexes, &self.answers.work).map_err(Stop::Wrong)
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

    /// From the user upwards, each group once. Goes on where the last evaluation lacked an answer.
    fn in_group_nested(
        &self,
        query: &Query,
        group: &str,
        attribute: &str,
        scope: Scope,
    ) -> Result<bool, Stop> {
        let small = |text: &str| text.chars().flat_map(char::to_lowercase).collect::<String>();
        let group = small(group);
        let is_group = |dn: &str| dn.chars().flat_map(char::to_lowercase).eq(group.chars());
        let stopped = self.answers.walks.borrow_mut().remove(&address(query));
        let mut walk =
            stopped.unwrap_or_else(|| Walk { next: vec![self.user_dn().to_owned()], seen: 0 });
        while let Some(member) = walk.next.pop() {
            if walk.seen > GROUPS_MAX {
                let why = format!("more than {GROUPS_MAX} groups may be in others");
                return Err(Stop::Wrong(why));
            }
            let filter = Filter::Equal { attribute: attribute.to_owned(), value: member.clone() };
            let base = self.group_base.to_owned();
            let found = match self.look(Lookup { base, scope, filter, attribute: None }) {
                Ok(found) => found.map_or(&[][..], Vec::as_slice),
                Err(stop) => {
                    walk.next.push(member);
                    self.answers.walks.borrow_mut().insert(address(query), walk);
                    return Err(stop);
                }
            };
            walk.seen += 1;
            if found.iter().any(|dn| is_group(dn)) {
                return Ok(true);
            }
            walk.next.extend_from_slice(found);
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
        #[cfg(test)]
        self.answers.looked.update(|count| count + 1);
        match self.answers.of.get(&lookup) {
            Some(answer) => Ok(answer.as_ref()),
            None => Err(Stop::Ask(lookup)),
        }
    }
}

/// What tells a query from others as long as it is asked.
fn address(query: &Query) -> usize {
    std::ptr::from_ref(query).addr()
}

#[cfg(test)]
mod tests;
