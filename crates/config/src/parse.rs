//! The text of a configuration file, as settings with their places.
//!
//! The grammar is RabbitMQ's `rabbitmq.conf` (cuttlefish):
//!
//! ```text
//! file     = { line }
//! line     = [ setting | include ] [ "#" anything ]
//! setting  = key "=" value
//! key      = word { "." word }            word = letters, digits, "_", "-", and "\." for a dot
//! value    = "'''" anything "'''"         may span lines
//!          | "'" anything "'"             may span lines, "#" means itself
//!          | text up to "#" or the end of the line, without blanks around it
//! include  = "include" path-or-glob
//! ```
//!
//! Knows nothing of which keys exist. Every fault of a file is reported, not only the first; of very many the first hundred.

use crate::classic;
use crate::error::{ConfigError, FAULTS_MAX, Problem, Provenance};

/// One setting as it stands in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SettingLine {
    /// The words of the key; a word may hold a dot that was escaped.
    pub key: Vec<String>,
    /// The value without quotes and surrounding blanks.
    pub value: String,
    /// Where the setting begins.
    pub at: Provenance,
}

/// What a file holds, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Statement {
    /// `key = value`
    Setting(SettingLine),
    /// `include path-or-glob`: the settings of those files stand here.
    Include {
        /// The path or pattern as written, relative to the file that holds it.
        path: String,
        /// The line of the directive.
        at: Provenance,
    },
}

/// Reads the text of the file called `name`. Faulty lines are left out of the items.
pub(crate) fn parse(name: &str, text: &str) -> (Vec<Statement>, Vec<ConfigError>) {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if classic::is_classic(text) {
        return (Vec::new(), classic::faults(name, text));
    }
    let mut reader = Reader { name, rest: text, line: 1 };
    let mut items = Vec::new();
    let mut errors = Vec::new();
    while !reader.rest.is_empty() && errors.len() < FAULTS_MAX {
        let at = Provenance::File { name: name.to_owned(), line: reader.line };
        match reader.line() {
            Ok(Some(item)) => items.push(item),
            Ok(None) => {}
            Err(what) => {
                errors.push(ConfigError { at, problem: Problem::Syntax(what.to_owned()) });
                reader.skip_line();
            }
        }
    }
    (items, errors)
}

/// The longest key, in bytes. The longest of RabbitMQ's has 63, but for the names in it.
const KEY_MAX: usize = 1024;

/// Splits a key into its words, or says what is wrong with it.
pub(crate) fn split_key(key: &str) -> Result<Vec<String>, &'static str> {
    if key.len() > KEY_MAX {
        return Err("a key has at most 1024 letters");
    }
    let mut words = vec![String::new()];
    let mut letters = key.chars();
    while let Some(letter) = letters.next() {
        let word = words.last_mut().ok_or("the key is empty")?;
        match letter {
            '\\' if letters.as_str().starts_with('.') => {
                letters.next();
                word.push('.');
            }
            '.' => words.push(String::new()),
            _ if letter.is_ascii_alphanumeric() || letter == '_' || letter == '-' => {
                word.push(letter);
            }
            _ => return Err("a key consists of letters, digits, '_', '-' and dots"),
        }
    }
    if words.iter().any(String::is_empty) {
        return Err("a key consists of words joined by single dots");
    }
    Ok(words)
}

struct Reader<'a> {
    name: &'a str,
    rest: &'a str,
    line: u32,
}

impl<'a> Reader<'a> {
    /// Reads one line, or more if a quoted value spans them, with its end.
    fn line(&mut self) -> Result<Option<Statement>, &'static str> {
        let at = Provenance::File { name: self.name.to_owned(), line: self.line };
        self.skip_blanks();
        if self.at_line_end() {
            self.skip_line();
            return Ok(None);
        }
        if let Some(path) = self.include() {
            return match path {
                "" => Err("a path is missing after 'include'"),
                _ => Ok(Some(Statement::Include { path: path.to_owned(), at })),
            };
        }
        let end = self.rest.find(['=', '\n', '#']).unwrap_or(self.rest.len());
        let (key, rest) = self.rest.split_at(end);
        let Some(rest) = rest.strip_prefix('=') else {
            return Err("expected 'key = value'");
        };
        let key = split_key(key.trim_matches(BLANKS))?;
        self.rest = rest;
        self.skip_blanks();
        let value = self.value()?;
        Ok(Some(Statement::Setting(SettingLine { key, value, at })))
    }

    /// The path of an include directive, with the whole line taken; `None` for any other line.
    fn include(&mut self) -> Option<&'a str> {
        let after = self.rest.strip_prefix("include")?;
        if !after.starts_with(BLANKS) && !after.is_empty() && !after.starts_with(['\n', '\r']) {
            return None;
        }
        let (line, _) = after.split_once('\n').unwrap_or((after, ""));
        let path = line.split('#').next().unwrap_or_default().trim();
        if path.starts_with('=') {
            return None; // a setting whose key is 'include'
        }
        if !path.is_empty() {
            self.skip_line();
        }
        Some(path)
    }

    fn value(&mut self) -> Result<String, &'static str> {
        for quote in ["'''", "'"] {
            // `''` is an empty value, not the start of a longer quote.
            if let Some(inside) = self.rest.strip_prefix(quote) {
                let Some(end) = inside.find(quote) else {
                    return Err("the quote that begins here is never closed");
                };
                let (value, after) = inside.split_at(end);
                let after = after.strip_prefix(quote).unwrap_or(after);
                self.line += value.matches('\n').count() as u32;
                self.rest = after;
                self.skip_blanks();
                if !self.at_line_end() {
                    return Err("unexpected text after the closing quote");
                }
                self.skip_line();
                return Ok(value.to_owned());
            }
        }
        let (line, _) = self.rest.split_once('\n').unwrap_or((self.rest, ""));
        let value = line.split('#').next().unwrap_or_default().trim();
        if value.is_empty() {
            return Err("the value is missing (write '' for an empty one)");
        }
        self.skip_line();
        Ok(value.to_owned())
    }

    /// Whether nothing but a comment is left in this line.
    fn at_line_end(&self) -> bool {
        self.rest.is_empty() || self.rest.starts_with(['\n', '\r', '#'])
    }

    fn skip_blanks(&mut self) {
        self.rest = self.rest.trim_start_matches(BLANKS);
    }

    fn skip_line(&mut self) {
        self.rest = self.rest.split_once('\n').map_or("", |(_, rest)| rest);
        self.line += 1;
    }
}

const BLANKS: [char; 2] = [' ', '\t'];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classic::CLASSIC;

    #[test]
    #[rustfmt::skip] // a table
    fn settings() {
        check("a.b = c",                      "a|b=c@1");
        check("a = 1 # one",                  "a=1@1");
        check("a=1#one",                      "a=1@1"); // a bare value ends at '#'
        check("a = '1 # one'",                "a=1 # one@1");
        check("a = 'x' # y",                  "a=x@1");
        check("a = ''",                       "a=@1");
        check("a = it's fine",                "a=it's fine@1");
        check("\n# c\n\n  a\t=\tb  \r\n",     "a=b@4");
        check("a = '''x\n y'''\nb = 1",       "a=x\n y@1 b=1@3");
        check("a = 'x\ny'\nb = 1",            "a=x\ny@1 b=1@3");
        check("log.a\\.b.c = 1",              "log|a.b|c=1@1");
        check("\u{feff}a = 1",                "a=1@1");
        check("include conf.d/*.conf # x",    "include conf.d/*.conf@1");
        check("include.x = 1",                "include|x=1@1");
        check("include = 1",                  "include=1@1");
        check("a = ü",                        "a=ü@1");
        check("",                             "");
    }

    #[test]
    #[rustfmt::skip] // a table
    fn faults() {
        check("a",             "!1 expected 'key = value'");
        check("a # = b",       "!1 expected 'key = value'");
        check("a =",           "!1 the value is missing (write '' for an empty one)");
        check("= a",           "!1 a key consists of words joined by single dots");
        check("a..b = 1",      "!1 a key consists of words joined by single dots");
        check("a b = 1",       "!1 a key consists of letters, digits, '_', '-' and dots");
        check("a = 'x",        "!1 the quote that begins here is never closed");
        check("a = 'x' y",     "!1 unexpected text after the closing quote");
        check("include",       "!1 a path is missing after 'include'");
        check("\n[{rabbit, [{heartbeat, 60}]}].", &format!("!1 {CLASSIC} !2 write `heartbeat = 60`"));
        check("\u{feff}%% -*- mode: erlang -*-\n\n  % mine\n[\n {rabbit, []}\n].", &format!("!1 {CLASSIC}"));
        check("% 1\na = 1", "a=1@2 !1 expected 'key = value'");
        check(&format!("{} = 1", "a".repeat(1025)), "!1 a key has at most 1024 letters");
        check(&"a\n".repeat(200), &(1..=100).map(|n| format!("!{n} expected 'key = value'")).collect::<Vec<_>>().join(" "));
        check("a\nb = 1\nc",   "b=1@2 !1 expected 'key = value' !3 expected 'key = value'");
    }

    /// Whatever the text, parsing ends and every line is named at most once.
    #[test]
    fn any_text_ends() {
        let pieces = ["a", ".", "=", "'", "'''", "#", "\n", "\r", " ", "include ", "\\", "ü", "\t"];
        let mut state = 7_u64;
        for _ in 0..20_000 {
            let mut text = String::new();
            for _ in 0..12 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                text.push_str(pieces[(state >> 33) as usize % pieces.len()]);
            }
            let (items, errors) = parse("f", &text);
            assert!(items.len() + errors.len() <= text.matches('\n').count() + 1, "{text:?}");
        }
    }

    #[track_caller]
    fn check(text: &str, want: &str) {
        let (items, errors) = parse("f", text);
        let line = |place: &Provenance| match place {
            Provenance::File { line, .. } => *line,
            _ => 0,
        };
        let mut got: Vec<String> = items
            .iter()
            .map(|item| match item {
                Statement::Setting(it) => {
                    format!("{}={}@{}", it.key.join("|"), it.value, line(&it.at))
                }
                Statement::Include { path, at } => format!("include {path}@{}", line(at)),
            })
            .collect();
        got.extend(errors.iter().map(|error| {
            let Problem::Syntax(what) = &error.problem else { panic!("{error}") };
            format!("!{} {what}", line(&error.at))
        }));
        assert_eq!(got.join(" "), want, "{text:?}");
    }
}
