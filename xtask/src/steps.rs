//! Running programs, and counting what they say passed and failed.

use std::io::{BufRead as _, BufReader, Write};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};

use crate::root;

/// What passed and failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    /// Tests that passed.
    pub(crate) passed: u64,
    /// Tests that failed.
    pub(crate) failed: u64,
    /// Tests that were left out, as they need root.
    pub(crate) left_out: u64,
}

impl Count {
    /// One thing, which passed or failed.
    pub(crate) fn of(passed: bool) -> Self {
        Self { passed: passed.into(), failed: (!passed).into(), left_out: 0 }
    }
}

impl std::fmt::Display for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)?;
        match self.left_out {
            0 => Ok(()),
            count => write!(f, "; {count} LEFT OUT, which need root"),
        }
    }
}

/// An error when something failed.
pub(crate) fn all_passed(count: Count) -> anyhow::Result<()> {
    if count.failed > 0 {
        bail!("{count}");
    }
    Ok(())
}

impl std::ops::AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.left_out += other.left_out;
    }
}

/// `cargo` with these words, to run in the workspace.
pub(crate) fn cargo(words: &[&str]) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.args(words).current_dir(root());
    command
}

/// From now on this thread, and the programs that it starts, have of the processors what nobody else wants (`SCHED_IDLE`).
pub(crate) fn idle() {
    let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
    if let Err(error) = succeed(Command::new("chrt").args(["--idle", "--pid", "0", &thread])) {
        println!("{error:#}: what runs beside other steps slows them down");
    }
}

/// Runs a program to its end; it failed if its status says so.
pub(crate) fn succeed(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("running {}", shown(command)))?;
    if !status.success() {
        bail!("{} ended with {status}", shown(command));
    }
    Ok(())
}

/// Runs a program to its end, repeats its output, and adds up its lines `N passed, N failed`.
///
/// A program that counts nothing is itself one thing that passed or failed.
pub(crate) fn counted(command: &mut Command) -> anyhow::Result<Count> {
    counted_to(command, &mut std::io::stdout())
}

/// As [`counted`]; the output goes to `out`.
pub(crate) fn counted_to(command: &mut Command, out: &mut dyn Write) -> anyhow::Result<Count> {
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("running {}", shown(command)))?;
    let output = child.stdout.take().context("the output is piped")?;
    let mut total = Count::default();
    for line in BufReader::new(output).split(b'\n') {
        let line = line?;
        out.write_all(&line)?;
        out.write_all(b"\n")?;
        total += count_in(&String::from_utf8_lossy(&line)).unwrap_or_default();
    }
    let is_good = child.wait()?.success();
    if total == Count::default() || (!is_good && total.failed == 0) {
        // What a program counted before it died stays counted.
        total += Count::of(is_good);
    }
    Ok(total)
}

/// The counts of a line such as `test result: ok. 3 passed; 0 failed; ...`.
fn count_in(line: &str) -> Option<Count> {
    let number_before = |word: &str| -> Option<u64> {
        let (before, _) = line.split_once(word)?;
        before.trim_end().rsplit([' ', '.']).next()?.parse().ok()
    };
    let (passed, failed) = (number_before(" passed")?, number_before(" failed")?);
    Some(Count { passed, failed, left_out: 0 })
}

fn shown(command: &Command) -> String {
    let words = command.get_args().map(|word| word.to_string_lossy().into_owned());
    let program = command.get_program().to_string_lossy().into_owned();
    std::iter::once(program).chain(words).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn counts() {
        check("test result: ok. 14 passed; 2 failed; 0 ignored; finished in 0.1s", Some((14, 2)));
        check("12 passed, 0 failed, 3 skipped",                                    Some((12, 0)));
        check("all passed, none failed",                                           None);
        check("3 passed",                                                          None);
        check("",                                                                  None);
    }

    #[track_caller]
    fn check(line: &str, want: Option<(u64, u64)>) {
        assert_eq!(count_in(line).map(|it| (it.passed, it.failed)), want, "{line}");
    }

    #[test]
    fn programs_are_counted() {
        // Their output must not reach whoever counts this test.
        let shell = |text: &str| {
            let mut out = Vec::new();
            let count = counted_to(Command::new("sh").arg("-c").arg(text), &mut out).unwrap();
            (count.passed, count.failed)
        };
        assert_eq!(shell("true"), (1, 0));
        assert_eq!(shell("false"), (0, 1));
        assert_eq!(shell("echo 3 passed, 1 failed; exit 1"), (3, 1));
        assert_eq!(shell("echo 3 passed, 0 failed; exit 1"), (3, 1));
    }
}
