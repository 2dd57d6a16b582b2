//! Folders, commands with a time limit, and counts.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

/// Where a suite works, and what it talks to.
#[derive(Debug)]
pub(super) struct SuitePlace {
    /// The suite's name.
    pub name: &'static str,
    /// The broker's port on 127.0.0.1.
    pub port: u16,
    /// The port of its management API.
    pub http_port: u16,
    /// The repository.
    pub root: PathBuf,
    /// This suite's folder in `target/clients`.
    pub dir: PathBuf,
    /// Tests not to be run: name, reason.
    pub skipped: Vec<(String, String)>,
}

/// Where the broker listens on 127.0.0.1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ports {
    /// For AMQP.
    pub(crate) amqp: u16,
    /// For the management API.
    pub(crate) http: u16,
}

/// What came out of a suite.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Tests that passed.
    pub passed: u64,
    /// Tests that failed.
    pub failed: u64,
    /// Tests left out, by our list or by the suite itself.
    pub skipped: u64,
    /// Names of those that failed.
    pub failures: Vec<String>,
}

impl Counts {
    /// Adds one result.
    pub(super) fn add(&mut self, name: &str, passed: bool) {
        if passed {
            self.passed += 1;
        } else {
            self.failed += 1;
            self.failures.push(name.to_owned());
        }
    }
}

impl Counts {
    /// Adds the results of a part called `name`.
    pub(super) fn add_part(&mut self, name: &str, part: Self) {
        self.passed += part.passed;
        self.failed += part.failed;
        self.skipped += part.skipped;
        self.failures.extend(part.failures.into_iter().map(|failure| format!("{name}: {failure}")));
    }
}

impl SuitePlace {
    /// Makes the suite's folder and reads what it skips.
    pub(super) fn new(name: &'static str, ports: Ports) -> anyhow::Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .context("xtask lies in the repository")?
            .to_owned();
        let dir = root.join("target/clients").join(name);
        fs::create_dir_all(&dir)?;
        fs::create_dir_all(root.join("target/clients/logs"))?;
        let list = fs::read_to_string(root.join("tests/clients/skipped.txt"))?;
        let skipped = list
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.split_once(": "))
            .map(|(test, why)| (test.to_owned(), why.to_owned()))
            .collect();
        let Ports { amqp: port, http: http_port } = ports;
        Ok(Self { name, port, http_port, root, dir, skipped })
    }

    /// A file among the repository's clients.
    pub(super) fn source(&self, path: &str) -> PathBuf {
        self.root.join("tests/clients").join(path)
    }

    /// Runs a command to its end with all its output in a log; returns the output and whether it
    /// ended well. A command that runs longer than `minutes` is ended and is an error that shows how far it came.
    pub(super) fn run(
        &self,
        log: &str,
        minutes: u64,
        command: &mut Command,
    ) -> anyhow::Result<(String, bool)> {
        let path = self.root.join(format!("target/clients/logs/{}-{log}.log", self.name));
        let file = File::create(&path)?;
        println!("  {}", describe(command));
        let mut child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| describe(command))?;
        let start = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if start.elapsed() > Duration::from_secs(minutes * 60) {
                child.kill()?;
                child.wait()?;
                let output = String::from_utf8_lossy(&fs::read(&path)?).into_owned();
                bail!(
                    "{} took longer than {minutes} minutes; its last lines:\n  {}",
                    describe(command),
                    last_lines(&output)
                );
            }
            std::thread::park_timeout(Duration::from_millis(50));
        };
        let output = String::from_utf8_lossy(&fs::read(&path)?).into_owned();
        Ok((output, status.success()))
    }

    /// As [`run`](Self::run), but failing is an error.
    pub(super) fn must(
        &self,
        log: &str,
        minutes: u64,
        command: &mut Command,
    ) -> anyhow::Result<String> {
        let (output, ok) = self.run(log, minutes, command)?;
        if !ok {
            bail!("{} failed:\n  {}", describe(command), last_lines(&output));
        }
        Ok(output)
    }
}

fn last_lines(output: &str) -> String {
    let lines: Vec<&str> = output.lines().collect();
    lines.get(lines.len().saturating_sub(15)..).unwrap_or_default().join("\n  ")
}

fn describe(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    let mut words = vec![program.to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|a| a.to_string_lossy().into_owned()));
    let line = words.join(" ");
    if line.len() > 150 {
        format!("{} ...", line.chars().take(150).collect::<String>())
    } else {
        line
    }
}

/// Copies a folder.
pub(super) fn copy_dir(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_dir(&entry.path(), &target)?;
        } else {
            // Written anew: package clients make their files read-only.
            fs::write(&target, fs::read(entry.path())?)?;
        }
    }
    Ok(())
}

/// The counts of a last line `N passed, N failed`, with failures from lines `FAILED name`.
pub(super) fn own_counts(output: &str) -> anyhow::Result<Counts> {
    let line = output
        .lines()
        .rev()
        .find(|line| line.contains(" passed, ") && line.ends_with(" failed"))
        .context("the program ended without its counts")?;
    let numbers: Vec<u64> = line.split_whitespace().filter_map(|w| w.parse().ok()).collect();
    let [passed, failed] = numbers[..] else { bail!("counts: {line}") };
    let failures =
        output.lines().filter_map(|l| l.strip_prefix("FAILED ")).map(str::to_owned).collect();
    Ok(Counts { passed, failed, skipped: 0, failures })
}
