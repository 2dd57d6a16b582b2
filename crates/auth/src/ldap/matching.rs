//! Regular expressions of a `match`, over texts that may both come from a directory: whoever waits for another answer waits for
//! them.
//!
//! They are matched in time linear in the text, whatever they are, and nothing goes back. At worst a byte of a text leads through all of
//! what was built of the expression, so the longer the longest text is, the less may be built. Between texts it is looked
//! at the time that the thread has spent.

use std::cell::Cell;
use std::time::Duration;

use fancy_regex::{CompileError, Error, Regex, RegexBuilder};
use rustix::time::{ClockId, clock_gettime};

use crate::source::told;

/// Texts that one `match` may compare, each with each regular expression, and their bytes.
const TEXTS_MAX: usize = 100_000;
const BYTES_MAX: usize = 4 << 20;
/// Regular expressions of one `match`.
const REGEXES_MAX: usize = 100;
/// Memory that one of them may take, in bytes, however short the texts are: to build it takes some milliseconds. `\w` is 40 KiB.
const MEMORY_MAX: usize = 192 << 10;
/// Memory for what it learns while it matches, in bytes.
const LEARNED_MAX: usize = 64 << 10;
/// After so many bytes of texts it is looked at the time: that takes as long as some hundred bytes.
const LOOK_BYTES: usize = 128;
/// What a text counts besides its bytes.
const TEXT_BYTES: usize = 16;

/// What all `match` of a question may take, however often it is evaluated. The tags of a login are one question.
#[derive(Debug)]
pub(super) struct Work {
    /// Of a processor.
    time_max: Duration,
    /// Bytes of a text times bytes of memory: a million take an eighth of a millisecond at worst.
    step_max: usize,
    /// Longest regular expression, in bytes.
    length_max: usize,
    spent: Cell<Duration>,
}

impl Work {
    /// On a thread that asks directories.
    pub(super) fn of_asking() -> Self {
        let time_max = Duration::from_millis(20);
        Self { time_max, step_max: 64 << 20, length_max: 2_000, spent: Cell::default() }
    }

    /// On a thread that has other things to do. What takes longer is left to the other one.
    pub(super) fn at_once() -> Self {
        let time_max = Duration::from_micros(500);
        Self { time_max, step_max: 2 << 20, length_max: 200, spent: Cell::default() }
    }

    /// As long as a test runs.
    #[cfg(test)]
    pub(super) fn patient() -> Self {
        Self { time_max: Duration::MAX, ..Self::of_asking() }
    }

    /// No time at all.
    #[cfg(test)]
    pub(super) fn none() -> Self {
        Self { time_max: Duration::ZERO, ..Self::of_asking() }
    }

    /// Since then.
    fn spend(&self, began: Duration) -> Result<(), String> {
        self.spent.set(self.spent.get() + processor_time().saturating_sub(began));
        match self.spent.get() > self.time_max {
            true => Err(format!("a 'match' takes more than {:?}", self.time_max)),
            false => Ok(()),
        }
    }
}

/// Time of a processor that this thread has had.
fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// Whether one of the texts matches one of the regular expressions.
pub(super) fn one_matches(
    texts: &[String],
    regexes: &[String],
    work: &Work,
) -> Result<bool, String> {
    let pairs = texts.len().saturating_mul(regexes.len());
    let bytes = texts.iter().map(String::len).sum::<usize>().saturating_mul(regexes.len());
    if regexes.len() > REGEXES_MAX || pairs > TEXTS_MAX || bytes > BYTES_MAX {
        let (texts, regexes) = (texts.len(), regexes.len());
        return Err(format!(
            "{texts} texts are too many or too long for {regexes} regular expressions of a 'match'"
        ));
    }
    let longest = texts.iter().map(String::len).max().unwrap_or_default();
    let memory = (work.step_max / (longest + LOOK_BYTES)).min(MEMORY_MAX);
    for regex in regexes {
        let mut began = processor_time();
        let wrong = |error: &str| wrong(regex, error);
        let compiled = build(regex, memory, work).map_err(|error| wrong(&error))?;
        let mut bytes = LOOK_BYTES;
        for text in texts {
            if bytes >= LOOK_BYTES {
                work.spend(began).map_err(|error| wrong(&error))?;
                (bytes, began) = (0, processor_time());
            }
            bytes += TEXT_BYTES + text.len();
            if compiled.is_match(text).map_err(|error| wrong(&error.to_string()))? {
                return Ok(true);
            }
        }
        work.spend(began).map_err(|error| wrong(&error))?;
    }
    Ok(false)
}

fn wrong(regex: &str, error: &str) -> String {
    format!("the regular expression '{}': {}", told(regex), told(error))
}

fn build(regex: &str, memory: usize, work: &Work) -> Result<Regex, String> {
    if regex.len() > work.length_max {
        return Err(format!("it has more than {} bytes", work.length_max));
    }
    let mut builder = RegexBuilder::new(regex);
    // No program: such a one goes back.
    builder.max_prog_size(0).delegate_size_limit(memory).delegate_dfa_size_limit(LEARNED_MAX);
    builder.build().map_err(|error| explained(&error))
}

/// What is wrong with a regular expression. The library does not say which bound one exceeds that is too large.
fn explained(error: &Error) -> String {
    let Error::CompileError(inner) = error else { return error.to_string() };
    match &**inner {
        CompileError::PatternTooComplex => {
            "it looks around or refers back, which cannot be done in bounded time".to_owned()
        }
        CompileError::InnerError(inner) => match inner.size_limit() {
            Some(limit) => {
                format!("it takes more than {limit} bytes of memory for such long texts")
            }
            None => error.to_string(),
        },
        _ => error.to_string(),
    }
}

/// Whether a regular expression of the configuration can be one.
pub(super) fn must_be_regex(regex: &str) -> Result<(), String> {
    let built = build(regex, MEMORY_MAX, &Work::of_asking());
    built.map(drop).map_err(|why| wrong(regex, &why))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(word: &str) -> String {
        word.to_owned()
    }

    fn matches(texts: &[String], regexes: &[String]) -> Result<bool, String> {
        one_matches(texts, regexes, &Work::patient())
    }

    #[track_caller]
    fn refused(texts: &[String], regex: &[String], why: &str) {
        refused_after(Work::patient(), texts, regex, why);
    }

    #[track_caller]
    fn refused_after(work: Work, texts: &[String], regex: &[String], why: &str) {
        match one_matches(texts, regex, &work) {
            Err(said) => assert!(said.contains(why) && said.len() < 2200, "{said}"),
            other => panic!("{other:?}, and not {why}"),
        }
    }

    /// What a directory says is as long as it likes; whoever waits for another answer waits while this is gone through.
    #[test]
    fn long_answers_are_bounded_work() {
        let numbers = |count: usize| (0..count).map(|at| at.to_string()).collect::<Vec<_>>();
        let many = "are too many or too long for";
        assert_eq!(matches(&numbers(1_000), &[text("^999$")]), Ok(true));
        refused(&numbers(100_001), &[text("^99999$")], many);
        assert_eq!(matches(&numbers(10), &vec![text("x"); 10]), Ok(false));
        refused(&numbers(1001), &vec![text("x"); 100], many);
        refused(&numbers(1), &vec![text("x"); 101], many);
        refused(&["a".repeat(2 << 20)], &vec![text("^b"); 3], many);
        assert_eq!(matches(&["a".repeat(10_000)], &[text("^b")]), Ok(false));
    }

    #[test]
    fn nothing_goes_back() {
        for regex in ["^(?!amq\\.).*", "(.)\\1", "^(.|.)+\\1!$"] {
            refused(&[text("a")], &[text(regex)], "looks around or refers back");
        }
        assert_eq!(matches(&["a".repeat(1_000) + "!"], &[text("^(a|a)*(a|a)*$")]), Ok(false));
    }

    #[test]
    fn what_is_built_is_bounded_by_the_longest_text() {
        let large = [text("[ab]*a[ab]{1000}")];
        assert_eq!(matches(&[text("a")], &large), Ok(false));
        refused(&["a".repeat(10_000)], &large, "more than 6626 bytes of memory");
        refused(&[text("a")], &[text("(((a{100}){100}){100})")], "bytes of memory");
        let calls = |group| format!("\\g<{group}>").repeat(100);
        refused(
            &[text("a")],
            &[format!("(a(?=b))({}){}", calls(1), calls(2))],
            "the regular expression",
        );
        refused(&[text("b")], &["a".repeat(2_001)], "more than 2000 bytes");
        refused(&[text("b")], &[text("[")], "the regular expression");
    }

    /// Each is built, which alone takes longer.
    #[test]
    fn what_takes_long_is_given_up() {
        let large = text("[ab]*a[ab]{2000}");
        let regexes = vec![large.clone(); 100];
        refused_after(Work::of_asking(), &[text("a")], &regexes, "takes more than 20ms");
        let at_once = |regex| one_matches(&[text("ab")], &[regex], &Work::at_once());
        assert!(at_once(large).is_err(), "it is left to the thread that asks");
    }
}
