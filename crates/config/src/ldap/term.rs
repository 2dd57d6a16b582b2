//! Erlang terms, as far as RabbitMQ's queries use them: atoms, texts, tuples and lists.

/// Tuples and lists in each other.
const DEPTH_MAX: u32 = 32;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Term {
    /// `word`, or `'word'`.
    Atom(String),
    /// `60`, `0.4`, `-1`.
    Number(String),
    /// `"text"`, or `<<"text">>`.
    Text(String),
    /// `{a, b}`
    Tuple(Vec<Term>),
    /// `[a, b]`
    List(Vec<Term>),
}

impl Term {
    /// Reads a whole text; a full stop at its end may be left out.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let mut reader = Reader { rest: text.strip_suffix('.').unwrap_or(text) };
        let term = reader.term(0)?;
        reader.skip();
        match reader.rest {
            "" => Ok(term),
            rest => Err(format!("unexpected '{}'", beginning(rest))),
        }
    }

    /// The text of an atom or a text.
    pub(crate) fn word(&self) -> Option<&str> {
        match self {
            Self::Atom(word) | Self::Text(word) => Some(word),
            _ => None,
        }
    }
}

/// Reads terms one after another.
pub(crate) struct Reader<'a> {
    /// What is left.
    pub(crate) rest: &'a str,
}

impl Reader<'_> {
    pub(crate) fn skip(&mut self) {
        self.rest = self.rest.trim_start();
        while let Some(comment) = self.rest.strip_prefix('%') {
            let (_, after) = comment.split_once('\n').unwrap_or((comment, ""));
            self.rest = after.trim_start();
        }
    }

    pub(crate) fn take(&mut self, mark: &str) -> bool {
        self.skip();
        let after = self.rest.strip_prefix(mark);
        self.rest = after.unwrap_or(self.rest);
        after.is_some()
    }

    pub(crate) fn term(&mut self, depth: u32) -> Result<Term, String> {
        if depth > DEPTH_MAX {
            return Err(format!("more than {DEPTH_MAX} brackets in each other"));
        }
        if self.take("{") {
            return self.terms("}", depth).map(Term::Tuple);
        }
        if self.take("[") {
            return self.terms("]", depth).map(Term::List);
        }
        if self.take("<<\"") {
            let text = self.quoted('"')?;
            return if self.take(">>") { Ok(Term::Text(text)) } else { Err("expected >>".into()) };
        }
        if self.take("\"") {
            return self.quoted('"').map(Term::Text);
        }
        if self.take("'") {
            return self.quoted('\'').map(Term::Atom);
        }
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '@';
        let end = self.rest.find(|c| !is_word(c)).unwrap_or(self.rest.len());
        let (word, after) = self.rest.split_at(end);
        if let Some(end) = number(self.rest) {
            let (number, after) = self.rest.split_at(end);
            self.rest = after;
            return Ok(Term::Number(number.to_owned()));
        }
        if !word.starts_with(|c: char| c.is_ascii_lowercase()) {
            return Err(match beginning(self.rest).as_str() {
                "" => "it ends too early".to_owned(),
                rest => format!("unexpected '{rest}'"),
            });
        }
        self.rest = after;
        Ok(Term::Atom(word.to_owned()))
    }

    fn terms(&mut self, end: &str, depth: u32) -> Result<Vec<Term>, String> {
        let mut terms = Vec::new();
        if self.take(end) {
            return Ok(terms);
        }
        loop {
            terms.push(self.term(depth + 1)?);
            if self.take(end) {
                return Ok(terms);
            }
            if !self.take(",") {
                return Err(format!("expected , or {end} before '{}'", beginning(self.rest)));
            }
        }
    }

    /// What is left of a text up to its closing mark. A backslash takes the next letter as it stands.
    fn quoted(&mut self, mark: char) -> Result<String, String> {
        let mut text = String::new();
        let mut letters = self.rest.char_indices();
        while let Some((at, letter)) = letters.next() {
            match letter {
                '\\' => match letters.next() {
                    Some((_, 'n')) => text.push('\n'),
                    Some((_, 't')) => text.push('\t'),
                    Some((_, letter)) => text.push(letter),
                    None => break,
                },
                letter if letter == mark => {
                    self.rest = &self.rest[at + 1..];
                    return Ok(text);
                }
                letter => text.push(letter),
            }
        }
        Err(format!("a {mark} is missing"))
    }
}

fn beginning(text: &str) -> String {
    text.chars().take(20).collect()
}

/// Where the number ends that a text begins with, if it does.
fn number(text: &str) -> Option<usize> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let is_end = |(at, c): &(usize, char)| {
        let is_point = *c == '.' && digits[at + 1..].starts_with(|c: char| c.is_ascii_digit());
        !c.is_ascii_digit() && !is_point
    };
    let end = digits.char_indices().find(is_end).map_or(digits.len(), |(at, _)| at);
    (end > 0 && digits.starts_with(|c: char| c.is_ascii_digit()))
        .then_some(text.len() - digits.len() + end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn terms() {
        check("a",                         "Atom(\"a\")");
        check(" {a, \"b c\"} . ",          "Tuple([Atom(\"a\"), Text(\"b c\")])");
        check("[]",                        "List([])");
        check("{}",                        "Tuple([])");
        check("'not'",                     "Atom(\"not\")");
        check("<<\"/\">>",                 "Text(\"/\")");
        check(r#""a\"b\\.c""#,             r#"Text("a\"b\\.c")"#);
        check("[a, % first\n b]",          "List([Atom(\"a\"), Atom(\"b\")])");
        check("",                          "it ends too early");
        check("{a",                        "expected , or } before ''");
        check("{a]",                       "expected , or } before ']'");
        check("a b",                       "unexpected 'b'");
        check("{a,}",                      "unexpected '}'");
        check("\"a",                       "a \" is missing");
        check("\"a\\",                     "a \" is missing");
        check("X",                         "unexpected 'X'");
        check("<<\"a\"",                   "expected >>");
        check(&"[".repeat(100_000),        "more than 32 brackets in each other");
    }

    #[track_caller]
    fn check(text: &str, want: &str) {
        let got = Term::read(text).map_or_else(|why| why, |term| format!("{term:?}"));
        assert_eq!(got, want, "{:.40}", text);
    }
}
