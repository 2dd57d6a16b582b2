//! What a directory is asked about a user's rights, in RabbitMQ's notation.
//!
//! | query | is true if |
//! |---|---|
//! | `{constant, true}` | always |
//! | `{exists, "DN"}` | there is such an entry |
//! | `{in_group, "DN"}`, `{in_group, "DN", "ATTRIBUTE"}` | the group's `member`, or that attribute, holds the user |
//! | `{in_group_nested, "DN"}`, with `"ATTRIBUTE"`, with `subtree` or `singlelevel` | so does a group that is in the group |
//! | `{equals, TEXT, TEXT}` | the texts are the same |
//! | `{match, TEXT, REGEX}` | the first one matches the second |
//! | `{'not', QUERY}`, `{'and', [QUERY, ...]}`, `{'or', [QUERY, ...]}` | as they say |
//! | `{for, [{VARIABLE, VALUE, QUERY}, ...]}` | the query of the first line that fits is |
//!
//! A text is `"PATTERN"`, `{string, "PATTERN"}` or `{attribute, "DN", "ATTRIBUTE"}`; DNs are patterns, too.

use super::term::Term;
use crate::setting::{KeyMatch, Setting};

/// A question to a directory with a yes or a no.
#[derive(Clone, Debug, PartialEq)]
pub enum Query {
    /// Always the same.
    Constant(bool),
    /// The first case that fits: variable, value, and what is asked then.
    For(Vec<(String, String, Query)>),
    /// There is an entry.
    Exists(String),
    /// A group has the user in an attribute.
    InGroup {
        /// The group's name, a pattern.
        group: String,
        /// Its attribute.
        attribute: String,
    },
    /// A group has the user, or a group that has the user, and so on.
    InGroupNested {
        /// The group's name, a pattern.
        group: String,
        /// The attribute of all of them.
        attribute: String,
        /// Groups are looked for everywhere below the base, not directly below it alone.
        is_subtree: bool,
    },
    /// The opposite.
    Not(Box<Query>),
    /// All are true.
    And(Vec<Query>),
    /// One is true.
    Or(Vec<Query>),
    /// Two texts are the same.
    Equals(Text, Text),
    /// A text matches a regular expression.
    Match(Text, Text),
}

/// A text in a query.
#[derive(Clone, Debug, PartialEq)]
pub enum Text {
    /// With variables in it.
    Pattern(String),
    /// The values of an attribute.
    Attribute {
        /// Whose, a pattern.
        dn: String,
        /// Its name.
        attribute: String,
    },
}

/// What variables stand for.
pub type Values<'a> = [(&'a str, &'a str)];

const EXPECTED: &str = "expected a query such as {in_group, \"cn=users,dc=example\"}";

impl Query {
    fn read(text: &str) -> Result<Self, String> {
        Self::of(&Term::read(text)?)
    }

    fn of(term: &Term) -> Result<Self, String> {
        let Term::Tuple(parts) = term else { return Err(EXPECTED.to_owned()) };
        let (Some(kind), rest) = (parts.first().and_then(Term::word), parts.get(1..)) else {
            return Err(EXPECTED.to_owned());
        };
        let wrong = || format!("{kind} is not followed by what belongs there");
        match (kind, rest.unwrap_or_default()) {
            ("constant", [Term::Atom(word)]) => {
                word.parse().map(Self::Constant).map_err(|_| wrong())
            }
            ("exists", [Term::Text(dn)]) => Ok(Self::Exists(dn.clone())),
            ("in_group", [Term::Text(group), more @ ..]) => {
                let attribute = match more {
                    [] => "member".to_owned(),
                    [Term::Text(attribute)] => attribute.clone(),
                    _ => return Err(wrong()),
                };
                Ok(Self::InGroup { group: group.clone(), attribute })
            }
            ("in_group_nested", [Term::Text(group), more @ ..]) => {
                let (attribute, scope) = match more {
                    [] => ("member", "subtree"),
                    [Term::Text(attribute)] => (attribute.as_str(), "subtree"),
                    [Term::Text(attribute), Term::Atom(scope)] => (attribute.as_str(), &**scope),
                    _ => return Err(wrong()),
                };
                let is_subtree = match scope {
                    "subtree" => true,
                    "singlelevel" | "single_level" | "onelevel" | "one_level" => false,
                    _ => return Err(format!("{scope} is neither subtree nor singlelevel")),
                };
                let attribute = attribute.to_owned();
                Ok(Self::InGroupNested { group: group.clone(), attribute, is_subtree })
            }
            ("not", [query]) => Ok(Self::Not(Box::new(Self::of(query)?))),
            ("and", [Term::List(all)]) => Self::all(all).map(Self::And),
            ("or", [Term::List(all)]) => Self::all(all).map(Self::Or),
            ("equals", [one, other]) => Ok(Self::Equals(Text::of(one)?, Text::of(other)?)),
            ("match", [text, regex]) => Ok(Self::Match(Text::of(text)?, Text::of(regex)?)),
            ("for", [Term::List(cases)]) => {
                let cases = cases.iter().map(|case| match case {
                    Term::Tuple(parts) => match parts.as_slice() {
                        [variable, value, query] => {
                            let (variable, value) = (variable.word(), value.word());
                            let (variable, value) = variable.zip(value).ok_or_else(wrong)?;
                            Ok((variable.to_owned(), value.to_owned(), Self::of(query)?))
                        }
                        _ => Err(wrong()),
                    },
                    _ => Err(wrong()),
                });
                cases.collect::<Result<_, _>>().map(Self::For)
            }
            (
                "constant" | "exists" | "in_group" | "in_group_nested" | "not" | "and" | "or"
                | "equals" | "match" | "for",
                _,
            ) => Err(wrong()),
            _ => Err(format!("there is no query '{kind}'")),
        }
    }

    fn all(terms: &[Term]) -> Result<Vec<Self>, String> {
        terms.iter().map(Self::of).collect()
    }

    fn show(&self) -> String {
        let all = |queries: &[Self]| queries.iter().map(Self::show).collect::<Vec<_>>().join(", ");
        match self {
            Self::Constant(is_true) => format!("{{constant, {is_true}}}"),
            Self::Exists(dn) => format!("{{exists, {dn:?}}}"),
            Self::InGroup { group, attribute } => format!("{{in_group, {group:?}, {attribute:?}}}"),
            Self::InGroupNested { group, attribute, is_subtree } => {
                let scope = if *is_subtree { "subtree" } else { "singlelevel" };
                format!("{{in_group_nested, {group:?}, {attribute:?}, {scope}}}")
            }
            Self::Not(query) => format!("{{'not', {}}}", query.show()),
            Self::And(queries) => format!("{{'and', [{}]}}", all(queries)),
            Self::Or(queries) => format!("{{'or', [{}]}}", all(queries)),
            Self::Equals(one, other) => format!("{{equals, {}, {}}}", one.show(), other.show()),
            Self::Match(text, regex) => format!("{{match, {}, {}}}", text.show(), regex.show()),
            Self::For(cases) => {
                let cases = cases.iter().map(|(variable, value, query)| {
                    format!("{{{variable}, {value:?}, {}}}", query.show())
                });
                format!("{{for, [{}]}}", cases.collect::<Vec<_>>().join(", "))
            }
        }
    }
}

impl Text {
    fn of(term: &Term) -> Result<Self, String> {
        let expected = || "expected a text or {attribute, DN, NAME}".to_owned();
        match term {
            Term::Text(pattern) => Ok(Self::Pattern(pattern.clone())),
            Term::Tuple(parts) => match parts.as_slice() {
                [Term::Atom(kind), Term::Text(pattern)] if kind == "string" => {
                    Ok(Self::Pattern(pattern.clone()))
                }
                [Term::Atom(kind), Term::Text(dn), Term::Text(attribute)]
                    if kind == "attribute" =>
                {
                    Ok(Self::Attribute { dn: dn.clone(), attribute: attribute.clone() })
                }
                _ => Err(expected()),
            },
            _ => Err(expected()),
        }
    }

    fn show(&self) -> String {
        match self {
            Self::Pattern(pattern) => format!("{{string, {pattern:?}}}"),
            Self::Attribute { dn, attribute } => format!("{{attribute, {dn:?}, {attribute:?}}}"),
        }
    }
}

impl crate::value::Value for Query {
    const FORM: &'static str = "QUERY";

    fn read(text: &str) -> Result<Self, String> {
        Self::read(text)
    }

    fn show(&self) -> String {
        Self::show(self)
    }
}

/// Tags, and a query for each of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Tags(Vec<(String, Query)>);

/// As in RabbitMQ: nobody is an administrator.
impl Default for Tags {
    fn default() -> Self {
        Self(vec![("administrator".to_owned(), Query::Constant(false))])
    }
}

impl Tags {
    /// Each tag with its query.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Query)> {
        self.0.iter().map(|(tag, query)| (tag.as_str(), query))
    }
}

impl Setting for Tags {
    fn set(&mut self, _: &KeyMatch<'_>, text: &str) -> Result<(), String> {
        let expected = || "expected [{TAG, QUERY}, ...]".to_owned();
        let Term::List(terms) = Term::read(text)? else { return Err(expected()) };
        let tags = terms.iter().map(|term| match term {
            Term::Tuple(parts) => match parts.as_slice() {
                [tag, query] => {
                    let tag = tag.word().ok_or_else(expected)?;
                    Ok((tag.to_owned(), Query::of(query)?))
                }
                _ => Err(expected()),
            },
            _ => Err(expected()),
        });
        self.0 = tags.collect::<Result<_, _>>()?;
        Ok(())
    }

    fn form() -> &'static str {
        "[{TAG, QUERY}, ...]"
    }

    fn display(&self) -> String {
        let tags = self.iter().map(|(tag, query)| format!("{{{tag}, {}}}", query.show()));
        format!("[{}]", tags.collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn queries() {
        same("{constant, true}");
        same(r#"{exists, "ou=${vhost}"}"#);
        same(r#"{in_group, "cn=a", "member"}"#);
        same(r#"{in_group_nested, "cn=a", "uniqueMember", singlelevel}"#);
        same(r#"{'and', [{'not', {constant, true}}, {'or', []}]}"#);
        same(r#"{for, [{permission, "read", {equals, {string, "${name}"}, {attribute, "${user_dn}", "x"}}}]}"#);
        check(r#"{in_group, "cn=a"}."#,            r#"{in_group, "cn=a", "member"}"#);
        check(r#"{in_group_nested, "cn=a"}"#,      r#"{in_group_nested, "cn=a", "member", subtree}"#);
        check(r#"{match, "${name}", "^a\\."}"#,    r#"{match, {string, "${name}"}, {string, "^a\\."}}"#);
        check("{for, [{vhost, <<\"/\">>, {constant, true}}]}", "{for, [{vhost, \"/\", {constant, true}}]}");
        check("{constant, yes}",                   "constant is not followed by what belongs there");
        check("{in_group}",                        "in_group is not followed by what belongs there");
        check("{in_group_nested, \"a\", \"b\", c}", "c is neither subtree nor singlelevel");
        check("{ask, \"a\"}",                      "there is no query 'ask'");
        check("{for, [{a, b}]}",                   "for is not followed by what belongs there");
        check("{equals, \"a\", b}",                "expected a text or {attribute, DN, NAME}");
        check("{}",                                EXPECTED);
        check("{constant, true",                   "expected , or } before ''");
    }

    #[track_caller]
    fn same(text: &str) {
        check(text, text);
    }

    #[track_caller]
    fn check(text: &str, want: &str) {
        assert_eq!(Query::read(text).map_or_else(|why| why, |query| query.show()), want, "{text}");
    }
}
