//! What the scopes of a token allow, by the rules of RabbitMQ's `rabbitmq_auth_backend_oauth2`.
//!
//! | scope, without its prefix | allows |
//! |---|---|
//! | `read:VHOST/NAME` | to read from queues and exchanges; `write`, `configure` alike |
//! | `read:VHOST/NAME/KEY` | that, and to read from topic exchanges with such routing keys |
//! | `tag:TAG` | what users with this tag may |
//!
//! Each part is a pattern in which `*` stands for anything and `%2F` for a slash, or a regular expression. In all of
//! them `{vhost}` stands for the vhost at hand and `{CLAIM}` for a claim of the token.

use leveret_config::oauth2::ScopeSyntax;
use leveret_topology::Pattern;
use leveret_topology::rights::{Deciding, Decision, Question, Rights};
use serde_json::{Map, Value};

/// What RabbitMQ refuses in a regular expression.
const REGEX_REFUSED: [&str; 15] = [
    "(?i", "(?I", "(?m", "(?M", "(?s", "(?S", "(?x", "(?X", "(?J", "(?U", "(?n", "(?-", "(?C",
    "(?#", "(*",
];

/// The scopes of one token.
#[derive(Debug)]
pub(crate) struct Scopes {
    /// Without their prefix.
    pub(crate) all: Vec<String>,
    /// What variables in them stand for.
    pub(crate) claims: Map<String, Value>,
    pub(crate) syntax: ScopeSyntax,
}

impl Scopes {
    /// The user's tags.
    pub(crate) fn tags(&self) -> Vec<String> {
        let tags = self.all.iter().filter_map(|scope| scope.strip_prefix("tag:"));
        let mut tags: Vec<String> = tags.map(str::to_owned).collect();
        tags.sort_unstable();
        tags.dedup();
        tags
    }

    /// Whether a scope of this permission, or of any, has patterns that match. The key matters where one is
    /// given.
    fn allow(
        &self,
        permission: Option<&str>,
        vhost: &str,
        name: Option<&str>,
        key: Option<&str>,
    ) -> bool {
        self.all.iter().any(|scope| {
            let scope = self.expand(scope, vhost);
            let Some((kind, patterns)) = scope.split_once(':') else { return false };
            if !["read", "write", "configure"].contains(&kind)
                || permission.is_some_and(|permission| permission != kind)
            {
                return false;
            }
            let mut patterns = patterns.split('/');
            let (Some(of_vhost), Some(of_name)) = (patterns.next(), patterns.next()) else {
                return false;
            };
            let (of_key, None) = (patterns.next(), patterns.next()) else { return false };
            let fits =
                |pattern: &str, text: Option<&str>| text.is_none_or(|it| self.fits(pattern, it));
            fits(of_vhost, Some(vhost))
                && fits(of_name, name)
                && key.is_none_or(|key| of_key.is_some_and(|pattern| self.fits(pattern, key)))
        })
    }

    fn fits(&self, pattern: &str, text: &str) -> bool {
        match self.syntax {
            ScopeSyntax::Wildcard => wildcard(pattern, text),
            ScopeSyntax::Regex => regex(pattern, text),
        }
    }

    /// Puts in what variables stand for. A scope that is not well-formed is nothing.
    fn expand(&self, scope: &str, vhost: &str) -> String {
        let mut done = String::new();
        let mut rest = scope;
        while let Some((before, after)) = rest.split_once('{') {
            done.push_str(before);
            let end = after.find(['{', '.', '*', '}']).unwrap_or(after.len());
            let (variable, closing) = after.split_at(end);
            let Some(after) = closing.strip_prefix('}') else { return String::new() };
            let value = match (variable, self.claims.get(variable)) {
                ("vhost", _) => vhost,
                (_, Some(Value::String(value))) => value,
                (unknown, _) => unknown,
            };
            match self.syntax {
                ScopeSyntax::Wildcard => done.push_str(value),
                ScopeSyntax::Regex => done.push_str(&fancy_regex::escape(value)),
            }
            rest = after;
        }
        done.push_str(rest);
        done
    }
}

impl Rights for Scopes {
    fn decide(&self, question: &Question) -> Option<Decision> {
        Some(Decision::of(match question {
            Question::Vhost(vhost) => self.allow(None, vhost, None, None),
            Question::Resource { vhost, name, permission, .. } => {
                self.allow(Some(permission.name()), vhost, Some(name), None)
            }
            Question::Topic { vhost, exchange, permission, key } => {
                self.allow(Some(permission.name()), vhost, Some(exchange), Some(key))
            }
        }))
    }

    fn ask<'a>(&'a self, question: &'a Question) -> Deciding<'a> {
        let decision = self.decide(question).unwrap_or(Decision::Refused(None));
        Box::pin(std::future::ready(decision))
    }
}

/// Whether a text matches a pattern in which `*` stands for anything. Between them the pattern is encoded as
/// in addresses.
pub(crate) fn wildcard(pattern: &str, text: &str) -> bool {
    let mut parts = Vec::new();
    for part in pattern.split('*') {
        let Some(part) = decode(part) else { return false };
        parts.push(part);
    }
    let Some((first, later)) = parts.split_first() else { return false };
    let Some(mut rest) = text.as_bytes().strip_prefix(first.as_slice()) else { return false };
    // As RabbitMQ does it: each part where it is found first, without coming back to it.
    for (at, part) in later.iter().enumerate() {
        let is_last = at + 1 == later.len();
        match find(rest, part) {
            _ if part.is_empty() && is_last => return true,
            _ if rest.is_empty() => return false,
            Some(found) => rest = &rest[found + part.len()..],
            None => return false,
        }
    }
    rest.is_empty()
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    match part {
        [] => Some(0),
        part => text.windows(part.len()).position(|window| window == part),
    }
}

/// Undoes the encoding of a query; none when it is not one.
fn decode(part: &str) -> Option<Vec<u8>> {
    let bytes = part.as_bytes();
    let is_sound = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'%').all(|(at, _)| {
        matches!(bytes.get(at + 1..at + 3), Some(digits) if digits.iter().all(u8::is_ascii_hexdigit))
    });
    let spaced = part.replace('+', " ");
    is_sound.then(|| percent_encoding::percent_decode_str(&spaced).collect())
}

/// With the bounds of patterns of policies.
fn regex(pattern: &str, text: &str) -> bool {
    if REGEX_REFUSED.iter().any(|it| pattern.contains(it)) {
        tracing::warn!(pattern, "the regular expression of a scope is refused");
        return false;
    }
    match Pattern::whole(pattern).map(|it| it.matches_to_the_end(text)) {
        Ok(Some(fits)) => fits,
        Ok(None) => {
            tracing::warn!(pattern, "the regular expression of a scope takes too many steps");
            false
        }
        Err(error) => {
            tracing::warn!(%error, "the regular expression of a scope does not work");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use leveret_topology::{Permission, ResourceKind};

    use super::*;

    /// The rows of RabbitMQ's `wildcard_match_SUITE`.
    #[test]
    #[rustfmt::skip] // a table
    fn wildcards() {
        for (text, pattern) in [
            ("value", "value"), ("", ""), ("string", "*"), ("", "*"), ("string", "string*"),
            ("string", "*string"), ("string", "*ing"), ("string", "str*"), ("string", "s*g"),
            ("string", "*t*i*g"), ("string", "st*ng"), ("string", "st**ng"), ("a/b", "a%2Fb"),
            ("a b", "a+b"), ("a*b", "a%2Ab"), ("string_string", "s*string"),
        ] {
            assert!(wildcard(pattern, text), "{pattern} {text}");
        }
        for (text, pattern) in [
            ("value", "val"), ("value", "Value"), ("string", "*x*"), ("string", "s*x"), ("strings", "*string"),
            ("string", ""), ("", "a"), ("string_string", "*string"), ("a", "a**"), ("a", "a%2"), ("a", "a%zz"),
        ] {
            assert!(!wildcard(pattern, text), "{pattern} {text}");
        }
    }

    fn scopes(all: &[&str], syntax: ScopeSyntax) -> Scopes {
        let all = all.iter().map(|&scope| scope.to_owned()).collect();
        let claims = serde_json::json!({ "sub": "bob.x", "n": 5 });
        Scopes { all, claims: claims.as_object().unwrap().clone(), syntax }
    }

    fn resource(name: &str, permission: Permission) -> Question {
        Question::Resource {
            vhost: "v".into(),
            kind: ResourceKind::Queue,
            name: name.into(),
            permission,
        }
    }

    fn topic(key: &str) -> Question {
        Question::Topic {
            vhost: "v".into(),
            exchange: "x".into(),
            permission: Permission::Write,
            key: key.into(),
        }
    }

    #[track_caller]
    fn check(all: &[&str], question: &Question, want: bool) {
        let scopes = scopes(all, ScopeSyntax::Wildcard);
        assert_eq!(scopes.decide(question), Some(Decision::of(want)), "{all:?} {question:?}");
    }

    #[test]
    fn permissions() {
        use Permission::{Configure, Read, Write};
        check(&["read:v/q"], &resource("q", Read), true);
        check(&["read:v/q"], &resource("q", Write), false);
        check(&["read:v/q"], &resource("r", Read), false);
        check(&["read:w/q"], &resource("q", Read), false);
        check(&["read:*/*", "configure:v/q*"], &resource("q1", Configure), true);
        check(&["read:v/q/k"], &resource("q", Read), true);
        check(&["read:v/q/k/l"], &resource("q", Read), false);
        check(&["read:v"], &resource("q", Read), false);
        check(&["read"], &resource("q", Read), false);
        check(&["tag:administrator"], &resource("q", Read), false);
        check(&["read:v/{sub}-*"], &resource("bob.x-1", Read), true);
        check(&["read:v/{n}"], &resource("n", Read), true);
        check(&["read:v/{sub"], &resource("{sub", Read), false);
        check(&["read:{vhost}/q"], &resource("q", Read), true);
    }

    #[test]
    fn topics_need_a_pattern_for_keys() {
        check(&["write:v/x/a.*"], &topic("a.b"), true);
        check(&["write:v/x/a.*"], &topic("b"), false);
        check(&["write:v/x"], &topic("a"), false);
        check(&["write:v/*/*"], &topic(""), true);
    }

    #[test]
    fn vhosts_need_any_permission() {
        check(&["configure:v/nothing"], &Question::Vhost("v".into()), true);
        check(&["tag:administrator"], &Question::Vhost("v".into()), false);
        check(&["read:w/*"], &Question::Vhost("v".into()), false);
    }

    #[test]
    fn tags_are_scopes() {
        let scopes = scopes(&["tag:b", "read:a/b", "tag:a", "tag:b"], ScopeSyntax::Wildcard);
        assert_eq!(scopes.tags(), ["a", "b"]);
    }

    #[test]
    fn regular_expressions_match_the_whole_name() {
        let fits = |scope: &str, name: &str| {
            let scopes = scopes(&[scope], ScopeSyntax::Regex);
            scopes.decide(&resource(name, Permission::Read)) == Some(Decision::Allowed)
        };
        assert!(fits("read:v/q[0-9]+", "q12"));
        assert!(!fits("read:v/q[0-9]+", "q12x"));
        assert!(!fits("read:v/q[0-9", "q1"));
        assert!(!fits("read:v/(?i)q", "Q"));
        assert!(fits("read:v/{sub}", "bob.x") && !fits("read:v/{sub}", "bobyx"));
        assert!(!fits("read:v/(a+)+b", &"a".repeat(200)), "it ends");
        assert!(fits("read:v/(?!b)[a-z]+", "ab") && !fits("read:v/(?!b)[a-z]+", "ba"));
        // Steps ahead have a bound, too.
        let nested = "(?:(?=(?:(?=(?:(?=a)a){80})a){80})a){80}a*";
        assert!(!fits(&format!("read:v/{nested}"), &"a".repeat(250)));
    }
}
