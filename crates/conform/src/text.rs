//! The words of a script line: values, patterns and calls.
//!
//! ```text
//! queue.declare q durable {x-max-length=5 x-overflow=reject-publish}
//! basic.publish "" q mandatory | "hello" priority=3 headers={a=[1 l:2 void]}
//! basic.deliver $tag 1 "" q | x*1000 ...
//! ```
//!
//! Arguments stand in the order of the definition, without the bits; a bit is set by its name, and
//! arguments left out at the end are zero or empty. What follows `|` is the body, then properties.
//! In an expected line `_` is anything, `$name` is anything the first time and the same later,
//! `g:"a*b"` is a text with holes, and `...` among the entries of a table or the properties allows
//! more of them.

use crate::value::Value;

/// A value to send, or a pattern to expect.
#[derive(Clone, Debug, PartialEq)]
pub enum Term {
    /// `_`
    Any,
    /// `$name`
    Var(String),
    /// `g:"..."`
    Glob(String),
    /// A number without a wire type.
    Number(i64),
    /// A text, bare or quoted.
    Text(Vec<u8>),
    /// Any other scalar.
    Scalar(Value),
    /// `{...}`; true when it ends in `...`.
    Table(Vec<(Vec<u8>, Self)>, bool),
    /// `[...]`
    Array(Vec<Self>),
}

/// Body and properties of a message.
#[derive(Clone, Debug, PartialEq)]
pub struct Content {
    /// The body.
    pub body: Term,
    /// Properties by their published names, with `_` written as `-`.
    pub properties: Vec<(String, Term)>,
    /// More properties may be there.
    pub is_partial: bool,
}

/// A method with its arguments, as written.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// `class.method`, or a word of the runner's own.
    pub name: String,
    /// In the order of the definition, without bits.
    pub args: Vec<Term>,
    /// Arguments given by name.
    pub named: Vec<(String, Term)>,
    /// What follows the bar.
    pub content: Option<Content>,
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Word(String),
    /// True when it follows a word without a space.
    Quoted(Vec<u8>, bool),
    Mark(char),
}

/// Splits a line into tokens.
fn tokens(line: &str) -> Result<Vec<Token>, String> {
    let mut out = Vec::new();
    let mut chars = line.chars().peekable();
    let mut is_joined = false;
    while let Some(&c) = chars.peek() {
        if c.is_whitespace() {
            chars.next();
            is_joined = false;
        } else if "{}[]=|".contains(c) {
            chars.next();
            out.push(Token::Mark(c));
            is_joined = false;
        } else if c == '"' {
            chars.next();
            out.push(Token::Quoted(quoted(&mut chars)?, is_joined));
            is_joined = false;
        } else {
            let mut word = String::new();
            while let Some(&c) = chars.peek() {
                if c.is_whitespace() || "{}[]=|\"".contains(c) {
                    break;
                }
                word.push(c);
                chars.next();
            }
            out.push(Token::Word(word));
            is_joined = true;
        }
    }
    Ok(out)
}

fn quoted(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    loop {
        match chars.next().ok_or("a quote is open")? {
            '"' => return Ok(out),
            '\\' => match chars.next().ok_or("a quote is open")? {
                'n' => out.push(b'\n'),
                'r' => out.push(b'\r'),
                't' => out.push(b'\t'),
                '0' => out.push(0),
                'x' => {
                    let hex: String = chars.by_ref().take(2).collect();
                    out.push(u8::from_str_radix(&hex, 16).map_err(|e| e.to_string())?);
                }
                other => out.extend(other.to_string().bytes()),
            },
            c => out.extend(c.to_string().bytes()),
        }
    }
}

struct Parser {
    tokens: std::vec::IntoIter<Token>,
}

impl Parser {
    fn peek(&self) -> Option<&Token> {
        self.tokens.as_slice().first()
    }

    fn peek_second(&self) -> Option<&Token> {
        self.tokens.as_slice().get(1)
    }

    fn item(&mut self) -> Result<Term, String> {
        match self.tokens.next().ok_or("a value is missing")? {
            Token::Quoted(text, _) => Ok(Term::Text(text)),
            Token::Mark('{') => self.table(),
            Token::Mark('[') => {
                let mut items = Vec::new();
                while self.peek() != Some(&Token::Mark(']')) {
                    items.push(self.item()?);
                }
                self.tokens.next();
                Ok(Term::Array(items))
            }
            Token::Mark(c) => Err(format!("unexpected {c}")),
            Token::Word(word) => {
                if let Some(Token::Quoted(text, true)) = self.peek() {
                    let text = text.clone();
                    self.tokens.next();
                    return prefixed(&word, text);
                }
                scalar(&word)
            }
        }
    }

    fn table(&mut self) -> Result<Term, String> {
        let mut entries = Vec::new();
        let mut is_partial = false;
        loop {
            let key = match self.tokens.next().ok_or("a table is open")? {
                Token::Mark('}') => return Ok(Term::Table(entries, is_partial)),
                Token::Word(word) if word == "..." => {
                    is_partial = true;
                    continue;
                }
                Token::Word(word) => word.into_bytes(),
                Token::Quoted(text, _) => text,
                Token::Mark(c) => return Err(format!("unexpected {c} in a table")),
            };
            if self.tokens.next() != Some(Token::Mark('=')) {
                return Err("a table entry is key=value".to_owned());
            }
            entries.push((key, self.item()?));
        }
    }
}

fn prefixed(word: &str, text: Vec<u8>) -> Result<Term, String> {
    match word {
        "x:" => Ok(Term::Scalar(Value::Bytes(text))),
        "g:" => Ok(Term::Glob(String::from_utf8_lossy(&text).into_owned())),
        other => Err(format!("unknown prefix {other}")),
    }
}

fn scalar(word: &str) -> Result<Term, String> {
    let bad = |e: std::num::ParseIntError| format!("{word}: {e}");
    if word == "_" {
        return Ok(Term::Any);
    }
    if let Some(name) = word.strip_prefix('$') {
        return Ok(Term::Var(name.to_owned()));
    }
    match word {
        "true" => return Ok(Term::Scalar(Value::Bool(true))),
        "false" => return Ok(Term::Scalar(Value::Bool(false))),
        "void" => return Ok(Term::Scalar(Value::Void)),
        _ => {}
    }
    if let Ok(number) = word.parse::<i64>() {
        return Ok(Term::Number(number));
    }
    if let Some((first, count)) = word.split_once('*')
        && let [byte] = first.as_bytes()
        && let Ok(count) = count.parse()
    {
        return Ok(Term::Text(vec![*byte; count]));
    }
    let Some((prefix, rest)) = word.split_once(':') else {
        return Ok(Term::Text(word.as_bytes().to_vec()));
    };
    let value = match prefix {
        "b" | "B" | "s" | "u" | "I" | "i" | "l" => {
            let kind = prefix.chars().next().unwrap_or('I');
            Value::Int(kind, rest.parse().map_err(bad)?)
        }
        "T" => Value::Time(rest.parse().map_err(bad)?),
        "f" => Value::Float(rest.parse::<f32>().map_err(|e| e.to_string())?.to_bits()),
        "d" => Value::Double(rest.parse::<f64>().map_err(|e| e.to_string())?.to_bits()),
        "D" => {
            let (scale, number) = rest.split_once('/').ok_or("a decimal is D:scale/value")?;
            Value::Decimal(scale.parse().map_err(bad)?, number.parse().map_err(bad)?)
        }
        _ => return Ok(Term::Text(word.as_bytes().to_vec())),
    };
    Ok(Term::Scalar(value))
}

impl Call {
    /// Reads `name args... | body properties...`.
    pub fn parse(line: &str) -> Result<Self, String> {
        let mut parser = Parser { tokens: tokens(line)?.into_iter() };
        let Some(Token::Word(name)) = parser.tokens.next() else {
            return Err("a line starts with a word".to_owned());
        };
        let mut call = Self { name, args: Vec::new(), named: Vec::new(), content: None };
        while let Some(token) = parser.peek() {
            if token == &Token::Mark('|') {
                parser.tokens.next();
                call.content = Some(Content::parse(&mut parser)?);
                break;
            }
            if let (Token::Word(word), Some(Token::Mark('='))) = (token, parser.peek_second()) {
                let word = word.clone();
                parser.tokens.next();
                parser.tokens.next();
                call.named.push((word, parser.item()?));
            } else {
                call.args.push(parser.item()?);
            }
        }
        Ok(call)
    }
}

impl Content {
    fn parse(parser: &mut Parser) -> Result<Self, String> {
        let mut content = Self { body: parser.item()?, properties: Vec::new(), is_partial: false };
        while let Some(token) = parser.tokens.next() {
            match token {
                Token::Word(word) if word == "..." => content.is_partial = true,
                Token::Word(word) => {
                    if parser.tokens.next() != Some(Token::Mark('=')) {
                        return Err(format!("property {word} needs a value"));
                    }
                    content.properties.push((word, parser.item()?));
                }
                other => return Err(format!("unexpected {other:?} among properties")),
            }
        }
        Ok(content)
    }
}

/// Values that `$name` stands for.
pub type Vars = std::collections::BTreeMap<String, Value>;

impl Term {
    /// The value to send, typed as the wire wants it by default: numbers are `I` or `l`.
    pub fn value(&self, vars: &Vars) -> Result<Value, String> {
        Ok(match self {
            Self::Any | Self::Glob(_) => return Err("a pattern cannot be sent".to_owned()),
            Self::Var(name) => {
                vars.get(name).cloned().ok_or_else(|| format!("${name} has no value"))?
            }
            Self::Number(n) if i32::try_from(*n).is_ok() => Value::Int('I', *n),
            Self::Number(n) => Value::Int('l', *n),
            Self::Text(text) => Value::Str(text.clone()),
            Self::Scalar(value) => value.clone(),
            Self::Table(entries, _) => Value::Table(
                entries
                    .iter()
                    .map(|(key, item)| Ok((key.clone(), item.value(vars)?)))
                    .collect::<Result<_, String>>()?,
            ),
            Self::Array(items) => Value::Array(
                items.iter().map(|item| item.value(vars)).collect::<Result<_, String>>()?,
            ),
        })
    }

    /// Whether `value` fits; binds variables met for the first time.
    pub fn matches(&self, value: &Value, vars: &mut Vars) -> bool {
        match (self, value) {
            (Self::Any, _) => true,
            (Self::Var(name), _) => match vars.get(name) {
                Some(known) => known == value,
                None => {
                    vars.insert(name.clone(), value.clone());
                    true
                }
            },
            (Self::Glob(glob), Value::Str(text)) => {
                glob_matches(glob, &String::from_utf8_lossy(text))
            }
            (Self::Number(n), Value::Int(kind, m)) => n == m && matches!(kind, 'I' | '#'),
            (Self::Scalar(Value::Int(_, n)), Value::Int('#', m)) => n == m,
            (Self::Scalar(expected), _) => expected == value,
            (Self::Text(expected), Value::Str(text)) => expected == text,
            (Self::Table(expected, is_partial), Value::Table(entries)) => {
                expected.len() <= entries.len()
                    && (*is_partial || expected.len() == entries.len())
                    && expected.iter().all(|(key, item)| {
                        entries.iter().any(|(k, v)| k == key && item.matches(v, vars))
                    })
            }
            (Self::Array(expected), Value::Array(items)) => {
                expected.len() == items.len()
                    && expected.iter().zip(items).all(|(item, v)| item.matches(v, vars))
            }
            _ => false,
        }
    }
}

fn glob_matches(glob: &str, text: &str) -> bool {
    let mut parts = glob.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let mut last_was_open = false;
    for part in parts {
        last_was_open = part.is_empty();
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.is_empty() || last_was_open
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls() {
        let call =
            Call::parse(r#"basic.publish "" q mandatory | "a b" priority=3 headers={k=[1 l:2]}"#);
        let call = call.expect("parses");
        assert_eq!(call.args.len(), 3);
        assert_eq!(call.args[0], Term::Text(Vec::new()));
        let content = call.content.expect("has content");
        assert_eq!(content.body, Term::Text(b"a b".to_vec()));
        assert_eq!(content.properties.len(), 2);
        let list = vec![Term::Number(1), Term::Scalar(Value::Int('l', 2))];
        assert_eq!(
            content.properties[1].1,
            Term::Table(vec![(b"k".to_vec(), Term::Array(list))], false)
        );
    }

    #[test]
    fn globs() {
        assert!(glob_matches("a*c", "abbc"));
        assert!(glob_matches("a*", "a"));
        assert!(!glob_matches("a*c", "abd"));
        assert!(!glob_matches("b*", "ab"));
    }

    #[test]
    fn quotes() {
        assert!(Call::parse("x \"open").is_err());
        let call = Call::parse(r#"x "\x00\xff\n""#).expect("parses");
        assert_eq!(call.args, [Term::Text(vec![0, 0xff, b'\n'])]);
    }
}
