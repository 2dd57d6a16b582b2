//! Patterns with variables: `cn=${username},ou=people`.
//!
//! What a variable stands for comes from a client. In a distinguished name it is escaped (RFC 4514 §2.4), in a
//! regular expression, too, so that it is never more than a text there. `${user_dn}` is a whole distinguished
//! name, and stands as it is.

use std::borrow::Cow;

/// What variables stand for. Names that are not there stay as they are written.
#[derive(Clone, Debug, Default)]
pub(super) struct Variables(Vec<(&'static str, String)>);

/// What the user's own distinguished name is called.
const USER_DN: &str = "user_dn";
const USERNAME: &str = "username";

impl Variables {
    /// Those of a user; `DOMAIN\user` is divided, as Active Directory does.
    pub(super) fn of_user(name: &str) -> Self {
        let mut variables = vec![(USERNAME, name.to_owned())];
        if let Some((domain, user)) = divide(name) {
            variables.push(("ad_domain", domain.to_owned()));
            variables.push(("ad_user", user.to_owned()));
        }
        Self(variables)
    }

    /// All that there are, standing for something.
    pub(super) fn any() -> Self {
        let names = ["vhost", "resource", "name", "permission", "routing_key"];
        let more = ["variable_map.username", "variable_map.vhost"];
        let all = names.into_iter().chain(more);
        all.fold(Self::of_user("d\\u").with_dn("cn=u"), |all, name| all.with(name, "x"))
    }

    /// With the user's distinguished name.
    pub(super) fn with_dn(self, dn: &str) -> Self {
        self.with(USER_DN, dn)
    }

    pub(super) fn with(mut self, name: &'static str, value: &str) -> Self {
        self.0.push((name, value.to_owned()));
        self
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find_map(|(own, value)| (*own == name).then_some(value.as_str()))
    }

    /// The pattern as a text.
    pub(super) fn text(&self, pattern: &str) -> String {
        fill(pattern, |name| self.get(name).map(Cow::Borrowed))
    }

    /// The pattern as a distinguished name.
    pub(super) fn dn(&self, pattern: &str) -> String {
        fill(pattern, |name| {
            let value = self.get(name)?;
            Some(match (name, divide(value)) {
                (USER_DN, _) => Cow::Borrowed(value),
                // Active Directory takes the backslash of such a name as it is.
                (USERNAME, Some((domain, user))) => {
                    Cow::Owned(format!("{}\\{}", escaped(domain), escaped(user)))
                }
                _ => Cow::Owned(escaped(value)),
            })
        })
    }

    /// The pattern as a regular expression.
    pub(super) fn regex(&self, pattern: &str) -> String {
        fill(pattern, |name| self.get(name).map(fancy_regex::escape))
    }
}

fn fill<'a>(pattern: &str, value: impl Fn(&str) -> Option<Cow<'a, str>>) -> String {
    let mut done = String::new();
    let mut rest = pattern;
    while let Some((before, after)) = rest.split_once("${") {
        done.push_str(before);
        rest = after;
        let known = after.split_once('}').and_then(|(name, after)| Some((value(name)?, after)));
        match known {
            Some((value, after)) => {
                done.push_str(&value);
                rest = after;
            }
            None => done.push_str("${"),
        }
    }
    done + rest
}

/// Domain and user of `DOMAIN\user`. A name whose user would undo the escape of what follows is not divided.
fn divide(name: &str) -> Option<(&str, &str)> {
    let (domain, user) = name.split_once('\\')?;
    let is_plain = !domain.is_empty() && !user.is_empty();
    (is_plain && !user.contains('\\') && !escaped(user).starts_with('\\')).then_some((domain, user))
}

/// A value as it stands in a distinguished name.
fn escaped(value: &str) -> String {
    let mut text = String::new();
    let last = value.chars().count().saturating_sub(1);
    for (at, letter) in value.chars().enumerate() {
        match letter {
            '\0' => text.push_str("\\00"),
            ',' | '+' | '"' | '\\' | '<' | '>' | ';' | '=' => text.extend(['\\', letter]),
            '#' if at == 0 => text.push_str("\\#"),
            ' ' if at == 0 || at == last => text.push_str("\\ "),
            _ => text.push(letter),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn names_stay_within_their_place() {
        check("bob",                  "cn=bob,dc=x");
        check("Bob, the O'Builder",   "cn=Bob\\, the O'Builder,dc=x");
        check("a,ou=admins",          "cn=a\\,ou\\=admins,dc=x");
        check("a+cn=b",               "cn=a\\+cn\\=b,dc=x");
        check("a\"<>;",               "cn=a\\\"\\<\\>\\;,dc=x");
        check(" a ",                  "cn=\\ a\\ ,dc=x");
        check(" ",                    "cn=\\ ,dc=x");
        check("#1#",                  "cn=\\#1#,dc=x");
        check("a\0b",                 "cn=a\\00b,dc=x");
        check("",                     "cn=,dc=x");
        check("\\",                   "cn=\\\\,dc=x");
        check("a\\",                  "cn=a\\\\,dc=x");
        check("EXAMPLE\\bob",         "cn=EXAMPLE\\bob,dc=x");
        check("a\\b,c",               "cn=a\\b\\,c,dc=x");
        check("a\\,ou=admins",        "cn=a\\\\\\,ou\\=admins,dc=x"); // would be an escape of our own
        check("a\\b\\,c",             "cn=a\\\\b\\\\\\,c,dc=x");
        check("${username}",          "cn=${username},dc=x"); // what was put in is not looked at again
        check("*)(uid=*",             "cn=*)(uid\\=*,dc=x");
    }

    #[track_caller]
    fn check(name: &str, want: &str) {
        assert_eq!(Variables::of_user(name).dn("cn=${username},dc=x"), want, "{name:?}");
    }

    #[test]
    fn patterns() {
        let bob = Variables::of_user("EX\\bob").with_dn("cn=a\\,b,dc=x").with("name", "a.b,c");
        assert_eq!(bob.dn("${user_dn} ${name}"), "cn=a\\,b,dc=x a.b\\,c");
        assert_eq!(bob.dn("${ad_user}@${ad_domain}.com"), "bob@EX.com");
        assert_eq!(bob.text("${name} ${nothing} ${"), "a.b,c ${nothing} ${");
        assert_eq!(bob.regex("^${name}$"), "^a\\.b,c$");
        assert_eq!(Variables::of_user("bob").dn("${ad_user}"), "${ad_user}");
    }
}
