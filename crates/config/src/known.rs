//! RabbitMQ's keys that are not options here, and why.
//!
//! The list itself is `known.txt`; its head explains the notation.

/// What becomes of a key of RabbitMQ that is not an option of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Has no meaning here; nothing is lost by ignoring it.
    Accepted,
    /// Belongs to a feature that is not there yet; the user should know.
    Later,
    /// Turns off what cannot be turned off: the user should know if it does.
    AlwaysOn,
    /// To ignore it would make the broker less safe than it was told to be.
    Refused,
}

/// A pattern of keys.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    /// The key; a word that begins with `$` stands for any word.
    pub pattern: String,
    /// What becomes of it.
    pub fate: Fate,
    /// Why.
    pub reason: &'static str,
}

/// The whole table.
pub(crate) fn table() -> Vec<Known> {
    let mut lists: Vec<(&str, &str)> = Vec::new();
    let mut head = (Fate::Accepted, "");
    let mut table = Vec::new();
    for line in include_str!("known.txt").lines() {
        let (mark, rest) = line.split_once(' ').unwrap_or((line, ""));
        match mark {
            "" | "#" => {}
            "%" => lists.extend(rest.split_once(' ')),
            "=" => {
                let (fate, reason) = rest.split_once(' ').unwrap_or((rest, ""));
                let fate = match fate {
                    "later" => Fate::Later,
                    "on" => Fate::AlwaysOn,
                    "refused" => Fate::Refused,
                    _ => Fate::Accepted,
                };
                head = (fate, reason);
            }
            _ => {
                let mut pattern = line.to_owned();
                for (name, rests) in &lists {
                    pattern = pattern.replace(&format!("%{name}"), rests);
                }
                let keys = expand(&pattern).into_iter();
                table.extend(keys.map(|pattern| Known { pattern, fate: head.0, reason: head.1 }));
            }
        }
    }
    table
}

/// Whether the words of a key match a pattern; gives what stands for its first and its last `$` word.
pub(crate) fn matches<'a>(pattern: &str, key: &'a [String]) -> Option<(&'a str, &'a str)> {
    let mut words = pattern.split('.');
    let (mut first, mut last) = ("", "");
    for got in key {
        let want = words.next()?;
        if want.starts_with('$') {
            last = got;
            first = if first.is_empty() { got } else { first };
        } else if want != got {
            return None;
        }
    }
    words.next().is_none().then_some((first, last))
}

/// Every text that `a{b,c}d` stands for; braces may be nested.
fn expand(pattern: &str) -> Vec<String> {
    let Some(open) = pattern.find('{') else {
        return vec![pattern.to_owned()];
    };
    let (before, inside) = (&pattern[..open], &pattern[open + 1..]);
    let mut depth = 0;
    let mut start = 0;
    let mut options = Vec::new();
    for (at, letter) in inside.char_indices() {
        match letter {
            '{' => depth += 1,
            ',' if depth == 0 => {
                options.push(&inside[start..at]);
                start = at + 1;
            }
            '}' if depth == 0 => {
                options.push(&inside[start..at]);
                let after = expand(&inside[at + 1..]);
                let options = options.iter().flat_map(|option| expand(option));
                return options
                    .flat_map(|option| after.iter().map(move |end| format!("{option}{end}")))
                    .map(|end| format!("{before}{end}"))
                    .collect();
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
    vec![pattern.to_owned()] // an unclosed brace; the test below keeps it from happening
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn braces() {
        check("a",             "a");
        check("a{b,c}d",       "abd acd");
        check("a{,.b}",        "a a.b");
        check("{a,b}{c,d}",    "ac ad bc bd");
        check("a{b{c,d},e}f",  "abcf abdf aef");
    }

    #[track_caller]
    fn check(pattern: &str, want: &str) {
        assert_eq!(expand(pattern).join(" "), want);
    }

    #[test]
    fn every_key_is_whole() {
        for known in table() {
            assert!(!known.pattern.contains(['{', '}', '%', ',', ' ']), "{}", known.pattern);
            assert!(!known.pattern.split('.').any(str::is_empty), "{}", known.pattern);
            assert!(!known.reason.is_empty(), "{}", known.pattern);
        }
    }

    #[test]
    fn words_match() {
        let key = |text: &str| text.split('.').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(matches("a.$x.c", &key("a.b.c")), Some(("b", "b")));
        assert_eq!(matches("$x.a.$y", &key("c.a.b")), Some(("c", "b")));
        assert_eq!(matches("a.b", &key("a.b")), Some(("", "")));
        assert_eq!(matches("a.$x", &key("a")), None);
        assert_eq!(matches("a", &key("a.b")), None);
    }
}
