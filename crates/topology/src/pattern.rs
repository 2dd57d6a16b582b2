//! The patterns of permissions and policies: Perl-compatible, unanchored, compiled once.
//!
//! A pattern without look-arounds, back-references and the like is matched in time linear in the name, whatever it is; a large
//! one may take a step for each of its instructions and each byte of the name, and is counted as if it did. The
//! others are matched by trying, and may take steps back without end: so many of them are taken for one name and no more. Those
//! that may take very many [ahead] meanwhile are refused. A name for which a few steps back do not suffice is
//! [dear](Pattern::is_dear); what matching it has cost, and may cost, is an [`Effort`].
//!
//! What is compiled stays in memory, and `\w{150}` is eight megabytes of it. So a pattern has a bound in length and in
//! [size](Pattern::size), which counts as memory of whoever has it.

mod ahead;

use fancy_regex::{CompileError, Regex, RegexBuilder};

use crate::error::AdminError;

/// Longest pattern, in bytes.
const LEN_MAX: usize = 2_000;

/// Longest one of those that stand for a whole text, as in RabbitMQ.
const WHOLE_LEN_MAX: usize = 2_048;

/// Bytes of a program that is matched in linear time. The first bound that it keeps is its size; what keeps none is
/// refused.
const LINEAR: [usize; 5] = [LITTLE, 8 << 10, 64 << 10, 256 << 10, 1 << 20];

/// A program that costs hardly anything with any name.
const LITTLE: usize = 2 << 10;

/// Bytes of a program, times bytes of a name, that may take a microsecond, when what it learns does not help.
const PER_UNIT: u64 = 5_000;

/// Instructions of a program that tries, and bytes of each part that it matches in linear time: the same, in the order of what they
/// are together.
const TRYING: [(usize, usize); 6] =
    [(16, 1 << 10), (64, 1 << 10), (16, 16 << 10), (512, 1 << 10), (128, 4 << 10), (32, 16 << 10)];

/// Bytes of what a program in linear time learns as it matches, for each of its directions.
const LEARNED_MAX: usize = 64 << 10;

/// The same for a part of a program that tries.
const LEARNED_BY_PART: usize = 8 << 10;

/// What a program counts that is larger than any bound: one that was set before there were bounds.
const UNBOUNDED: usize = 8 << 20;

/// Steps back after which a match is given up, a quarter of a millisecond: the name does not match.
const BACKTRACK_MAX: usize = 10_000;

/// Steps back that nearly every name does with, some microseconds.
const BACKTRACK_FEW: usize = 100;

/// Steps ahead that a pattern may take with a name before it takes one back, a tenth of a millisecond.
const AHEAD_MAX: u64 = 10_000;

/// Of these steps, as many as cost hardly anything.
const AHEAD_LITTLE: u64 = 2_000;

/// Steps in all, ahead between so many back, for [`BACKTRACK_MAX`] and [`BACKTRACK_FEW`].
const STEPS_MAX: u64 = 5_000_000;
const STEPS_FEW: u64 = 200_000;

/// Steps back that a name has at least: one for each of its bytes, as each of them may be where it matches.
const BACKTRACK_LEAST: usize = 300;

/// Units that a name costs at most: one that may take for ever, set before there was a bound.
const UNITS_MAX: u64 = 1 << 40;

/// Steps ahead that take a microsecond.
const AHEAD_PER_UNIT: u64 = 100;

/// Instructions of a program that tries: none, for a pattern that is to be matched in linear time.
const NO_PROGRAM: usize = 0;

/// Patterns for which one name may take many steps back, when all of a vhost are matched with it.
const DEAR_PER_NAME: u32 = 4;

/// What a name costs with a pattern that is matched by trying, in units of about a microsecond.
pub(crate) const TRIED: u64 = 4;

/// What it costs beside that when a few steps back do not suffice.
const DEAR: u64 = 256;

/// A compiled pattern.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: Box<str>,
    matcher: Matcher,
    /// Bytes of what was compiled, roughly.
    size: usize,
}

#[derive(Clone, Debug)]
enum Matcher {
    /// `.*` and the like, which nearly every permission is.
    Everything,
    /// In linear time, and about how many bytes the program has. Boxed: a regular expression is large and rare.
    Linear(Box<Regex>, usize),
    /// By trying.
    Trying(Box<Trying>),
}

#[derive(Clone, Debug)]
struct Trying {
    /// Gives up after [`BACKTRACK_FEW`], or a few less.
    few: Regex,
    /// Gives up after [`BACKTRACK_MAX`], or less.
    all: Regex,
    /// What a name costs with each of them beside the usual, in units of about a microsecond.
    more: [u64; 2],
}

/// What it costs to match a name with patterns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// Names of its kind may take many steps back.
    may_try: bool,
    /// Patterns for which this one still may.
    left: u32,
    /// What it was so far, in units of about a microsecond.
    pub(crate) units: u64,
    /// Patterns for which a few steps back did not suffice.
    pub(crate) dear: u32,
    /// There was one with which the name was not matched to the end: it does not match.
    pub(crate) gave_up: bool,
}

impl Effort {
    /// Before the first pattern.
    pub(crate) fn new(may_try: bool) -> Self {
        let left = if may_try { DEAR_PER_NAME } else { 0 };
        Self { may_try, left, units: 0, dear: 0, gave_up: false }
    }

    /// Whether names may take many steps back at all.
    pub(crate) fn may_try(&self) -> bool {
        self.may_try
    }

    /// As much again for other patterns, those of operators.
    pub(crate) fn again(&mut self) {
        self.left = Self::new(self.may_try).left;
    }
}

impl Pattern {
    /// Compiles it. A pattern that takes too long on some name (look-arounds, nested repeats) does not
    /// match that name.
    pub fn new(text: &str) -> Result<Self, AdminError> {
        Self::bounded(text, text, LEN_MAX)
    }

    /// One that matches a whole text, as scopes of tokens have them.
    pub fn whole(text: &str) -> Result<Self, AdminError> {
        Self::bounded(text, &format!(r"\A(?:{text})\z"), WHOLE_LEN_MAX)
    }

    /// Compiles `compiled`, which is shown as `text`.
    fn bounded(text: &str, compiled: &str, len_max: usize) -> Result<Self, AdminError> {
        let refuse = |pattern: &str, reason| {
            Err(AdminError::Pattern { pattern: pattern.to_owned(), reason })
        };
        if text.len() > len_max {
            let start = text.chars().take(100).collect::<String>() + "...";
            let reason = format!("it has {} bytes, and a pattern may have {len_max}", text.len());
            return refuse(&start, reason);
        }
        let Some((matcher, size)) = compile(compiled).map_err(|error| invalid(text, &error))?
        else {
            let reason = "it is too large: repeat less, or match a part of the name".to_owned();
            return refuse(text, reason);
        };
        if matches!(matcher, Matcher::Trying(_)) && ahead::steps(compiled) > AHEAD_MAX {
            let reason = match ahead::is_recursive(compiled) {
                true => {
                    "a part of it calls itself, and it is not known how often: write it without recursion"
                }
                false => {
                    "what is repeated has look-arounds or groups in which more is repeated, and would be \
                     walked through too often: repeat less in them"
                }
            };
            return refuse(text, reason.to_owned());
        }
        Ok(Self { text: text.into(), matcher, size })
    }

    /// Of one that was set: it is taken even if there was no bound then.
    pub(crate) fn stored(text: &str) -> Result<Self, AdminError> {
        Self::new(text).or_else(|_| {
            let matcher = match linear(text, None) {
                Ok(regex) => Matcher::Linear(Box::new(regex), UNBOUNDED / 2),
                Err(_) => trying(text, None).map_err(|error| invalid(text, &error))?,
            };
            Ok(Self { text: text.into(), matcher, size: UNBOUNDED })
        })
    }

    /// As in permissions, where no pattern means no name (but the empty one).
    pub(crate) fn permission(text: &str) -> Result<Self, AdminError> {
        let compiled = Self::new(if text.is_empty() { "^$" } else { text })?;
        Ok(Self { text: text.into(), ..compiled })
    }

    /// A pattern over other text than it is shown with: `{username}` replaced, for example.
    pub(crate) fn expanded(text: &str, expanded: &str) -> Result<Self, AdminError> {
        Ok(Self { text: text.into(), ..Self::permission(expanded)? })
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether it matches anywhere in the name.
    pub fn matches(&self, name: &str) -> bool {
        match &self.matcher {
            Matcher::Everything => true,
            Matcher::Linear(regex, _) => regex.is_match(name).unwrap_or(false),
            Matcher::Trying(it) => {
                it.few.is_match(name).or_else(|_| it.all.is_match(name)).unwrap_or(false)
            }
        }
    }

    /// As [`matches`](Self::matches); none if that was given up.
    pub fn matches_to_the_end(&self, name: &str) -> Option<bool> {
        match &self.matcher {
            Matcher::Everything => Some(true),
            Matcher::Linear(regex, _) => regex.is_match(name).ok(),
            Matcher::Trying(it) => it.all.is_match(name).ok(),
        }
    }

    /// As [`matches`](Self::matches), within what the name may cost, which is counted.
    pub(crate) fn matches_within(&self, name: &str, effort: &mut Effort) -> bool {
        let Matcher::Trying(it) = &self.matcher else {
            effort.units += self.large() * name.len() as u64 / PER_UNIT;
            return self.matches(name);
        };
        effort.units += TRIED + it.more[0];
        it.few.is_match(name).unwrap_or_else(|_| {
            effort.dear += 1;
            if effort.left == 0 {
                effort.gave_up = true;
                return false;
            }
            effort.left -= 1;
            effort.units += DEAR + it.more[1];
            it.all.is_match(name).unwrap_or(false)
        })
    }

    /// Bytes of memory that it takes, roughly.
    pub(crate) fn size(&self) -> u64 {
        self.size as u64
    }

    /// Bytes of a program that is matched in linear time and is not a little one; else 0.
    pub(crate) fn large(&self) -> u64 {
        match &self.matcher {
            Matcher::Linear(_, program) if *program > LITTLE => *program as u64,
            _ => 0,
        }
    }

    /// Whether it is matched by trying.
    pub(crate) fn is_trying(&self) -> bool {
        matches!(self.matcher, Matcher::Trying(_))
    }

    /// Whether a name takes more than a few steps back.
    pub(crate) fn is_dear(&self, name: &str) -> bool {
        matches!(&self.matcher, Matcher::Trying(it) if it.few.is_match(name).is_err())
    }
}

/// What matches, and its size. None if it is larger than any bound.
fn compile(text: &str) -> Result<Option<(Matcher, usize)>, fancy_regex::Error> {
    if matches!(text, "" | ".*" | "^.*" | "^.*$" | ".*$" | "^") {
        return Ok(Some((Matcher::Everything, 0)));
    }
    let mut needs_trying = false;
    for size in LINEAR {
        match linear(text, Some(size)) {
            // Both directions, and what they learn.
            Ok(regex) => return Ok(Some((Matcher::Linear(Box::new(regex), size), 2 * size))),
            Err(error) if is_size(&error) => {}
            Err(fancy_regex::Error::CompileError(_)) => {
                needs_trying = true;
                break;
            }
            Err(error) => return Err(error),
        }
    }
    if !needs_trying {
        return Ok(None);
    }
    for bounds in TRYING {
        match trying(text, Some(bounds)) {
            Ok(matcher) => return Ok(Some((matcher, 2 * bounds.0 * bounds.1))),
            Err(error) if is_size(&error) || is_program(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

fn linear(text: &str, size: Option<usize>) -> Result<Regex, fancy_regex::Error> {
    let mut builder = RegexBuilder::new(text);
    builder.max_prog_size(NO_PROGRAM).delegate_dfa_size_limit(LEARNED_MAX);
    if let Some(size) = size {
        builder.delegate_size_limit(size);
    }
    builder.build()
}

fn trying(text: &str, bounds: Option<(usize, usize)>) -> Result<Matcher, fancy_regex::Error> {
    let build = |steps_back| {
        let mut builder = RegexBuilder::new(text);
        builder.backtrack_limit(steps_back).delegate_dfa_size_limit(LEARNED_BY_PART);
        if let Some((program, part)) = bounds {
            builder.max_prog_size(program).delegate_size_limit(part);
        }
        builder.build()
    };
    let few = build(BACKTRACK_FEW)?;
    // Of what was compiled: its size has a bound by now.
    let ahead = ahead::steps(text).max(1);
    let at_most = |steps: u64| usize::try_from(steps / ahead).unwrap_or(usize::MAX);
    let few_back = at_most(STEPS_FEW).clamp(1, BACKTRACK_FEW);
    let all_back = at_most(STEPS_MAX).clamp(BACKTRACK_LEAST, BACKTRACK_MAX);
    let few = if few_back < BACKTRACK_FEW { build(few_back)? } else { few };
    let all = build(all_back)?;
    let more = [few_back, all_back].map(|steps_back| match ahead {
        ..=AHEAD_LITTLE => 0,
        // So little that the sum for all names there are has room.
        ahead => (ahead.saturating_mul(steps_back as u64) / AHEAD_PER_UNIT).min(UNITS_MAX),
    });
    Ok(Matcher::Trying(Box::new(Trying { few, all, more })))
}

/// Whether a part in linear time was too large.
fn is_size(error: &fancy_regex::Error) -> bool {
    let fancy_regex::Error::CompileError(error) = error else { return false };
    matches!(&**error, CompileError::InnerError(error) if error.size_limit().is_some())
}

/// Whether the program that tries was too large.
fn is_program(error: &fancy_regex::Error) -> bool {
    let fancy_regex::Error::CompileError(error) = error else { return false };
    matches!(&**error, CompileError::PatternTooComplex)
}

fn invalid(text: &str, error: &fancy_regex::Error) -> AdminError {
    AdminError::Pattern { pattern: text.to_owned(), reason: error.to_string() }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

/// `text` as a pattern that matches just it.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 4);
    for c in text.chars() {
        if c.is_ascii_punctuation() {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn engines() {
        //    pattern               name     matched by trying, dear, matches
        check("^a.*b$",             "axb",   false, false, true);
        check("(a+)+$",             "aaaa!", false, false, false);
        check(&format!("({}b)+", "a?".repeat(200)), "aaa", false, false, false);
        check("(?i)^Q[0-9]{3}",     "q123",  false, false, true);
        check("^(?!amq\\.).*",      "q",     true,  false, true);
        check("^(?!amq\\.).*",      "amq.q", true,  false, false);
        check("(.)\\1",             "xyy",   true,  false, true);
        check("^(.|.)+\\1!$",       &"x".repeat(100), true, true, false);
    }

    #[track_caller]
    fn check(pattern: &str, name: &str, trying: bool, dear: bool, matches: bool) {
        let it = Pattern::new(pattern).unwrap();
        assert_eq!((it.is_trying(), it.is_dear(name), it.matches(name)), (trying, dear, matches));
        assert_eq!(it.matches_within(name, &mut Effort::new(true)), matches);
    }

    /// What is usual costs nothing beside the name, and what may take milliseconds is counted in microseconds.
    #[test]
    #[rustfmt::skip] // a table
    fn large_patterns_cost_by_the_name() {
        let check = |pattern: &str, name: &str, least, most| {
            let mut effort = Effort::new(true);
            Pattern::new(pattern).unwrap().matches_within(name, &mut effort);
            assert!((least..=most).contains(&effort.units), "{pattern}: {}", effort.units);
        };
        let long = "a".repeat(250);
        check("^orders",                  &long, 0,     0);
        check(r"^orders\.(in|out)$",      &long, 0,     0);
        check("^q[0-9]+$",                "q17", 0,     0);
        check(r"^\w+\.events$",           "q17", 1,     1_000);
        check("(?:a|aa|aaa){1,255}b",     &long, 1_000, 20_000);
        check(r"^(a|b)*a(a|b){200}$",     &long, 300,   20_000);
    }

    /// A name is matched to the end with a few patterns for which it is dear, and with none where too many names were.
    #[test]
    fn what_is_dear_is_tried_for_few() {
        let name = "x".repeat(8) + "!";
        let pattern = Pattern::new(r"^(?:(.|.)+\1z|x+!)$").unwrap();
        assert!(pattern.is_dear(&name) && pattern.matches(&name));
        let mut effort = Effort::new(true);
        let matched: Vec<bool> =
            (0..6).map(|_| pattern.matches_within(&name, &mut effort)).collect();
        assert_eq!(matched, [true, true, true, true, false, false]);
        assert_eq!((effort.dear, effort.gave_up), (6, true));
        assert_eq!(effort.units, 6 * TRIED + 4 * DEAR);
        effort.again();
        assert!(pattern.matches_within(&name, &mut effort));
        assert!(!pattern.matches_within(&name, &mut Effort::new(false)));
    }

    /// Takes 80 times 80 times 80 rounds before a step back: some tens of milliseconds.
    const NESTED: &str = "(?:(?=(?:(?=(?:(?=a)a){80})a){80})a){80}";

    /// One that was set before is matched, and counted as what it may take.
    #[test]
    fn steps_ahead_are_counted() {
        let name = "a".repeat(250);
        for (pattern, least, most) in [
            ("(?:(?=a)a){80}", TRIED, TRIED),
            (r"^(?!amq\.)", TRIED, TRIED),
            (r"^(?:(?=[a-z]+b?)\w)+$", 100, 10_000),
            (NESTED, 5_000, 1_000_000),
        ] {
            let pattern = Pattern::stored(pattern).unwrap();
            let mut effort = Effort::new(true);
            assert!(pattern.matches_within(&name, &mut effort), "{}", pattern.text());
            assert!((least..=most).contains(&effort.units), "{}: {effort:?}", pattern.text());
        }
    }

    #[test]
    #[rustfmt::skip] // a table
    fn whole_texts() {
        let matches = |pattern: &str, text: &str| Pattern::whole(pattern).unwrap().matches(text);
        assert!(matches("a|ab", "ab") && !matches("a|ab", "abc") && !matches("a", "ba") && !matches("a", "a\n"));
        assert!(matches("(?!b).*", "a") && !matches("(?!b)a", "ab"));
        assert!(Pattern::whole(&"a".repeat(2_048)).is_ok() && Pattern::whole(&"a".repeat(2_049)).is_err());
        assert_eq!(Pattern::whole("a").unwrap().text(), "a");
    }

    #[test]
    #[rustfmt::skip] // a table
    fn sizes() {
        let check = |pattern: &str, want: Result<usize, &str>| {
            match (Pattern::new(pattern), want) {
                (Ok(it), Ok(size)) => assert!(it.size <= size, "{pattern}: {}", it.size),
                (Err(error), Err(text)) => assert!(error.to_string().contains(text), "{pattern}: {error}"),
                (got, want) => panic!("{pattern}: {got:?}, and not {want:?}"),
            }
        };
        check(r"^q\.[0-9]+$",             Ok(16 << 10));
        check(r"^[a-z]{1,40}\.(in|out)$", Ok(16 << 10));
        check(r"\w{3,20}",                Ok(2 << 20));
        check(r"\w{150}1",                Err("too large: repeat less"));
        check("(?:(?:a{100}){100}){100}", Err("too large"));
        check(r"^(?!amq\.).*",            Ok(512 << 10));
        check(r"(?=x)\w{150}",            Err("too large"));
        check("(?:(?!a)b){1000}",         Ok(32 << 10));
        check(&"(?!a)".repeat(399),       Err("too large"));
        check(&"q".repeat(2001),          Err("it has 2001 bytes, and a pattern may have 2000"));
        check("(?:(?=a)a){80}",           Ok(64 << 10));
        check(NESTED,                     Err("walked through too often: repeat less"));
        check("(?:(?=(?:(?=a)a)*)a)*",    Err("walked through too often"));
        for recursive in [r"(a(?=b)\g<1>?)", r"^(\((?:[^()]|\g<1>)*\))$", r"(?<a>x\g<b>?)(?<b>y\g<a>?)", r"a\g<0>?b"] {
            check(recursive,              Err("a part of it calls itself, and it is not known how often: write it without recursion"));
        }
        check(r"(a)\g<1>",                Ok(512 << 10));
        // One from before there were bounds stays.
        let it = Pattern::stored(r"\w{150}1").unwrap();
        assert!(it.matches(&("x".repeat(150) + "1")) && it.size == UNBOUNDED);
        assert!(Pattern::stored("(").is_err());
    }
}
