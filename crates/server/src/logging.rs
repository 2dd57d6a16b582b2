//! Logs: to the console, to a file, in RabbitMQ's levels and by category.
//!
//! Never on the path of a message. An event belongs to a category by its target: one that is named after it, or the
//! module that it comes from ([`CATEGORIES`]). Everything else is `default`. What clients cause is limited
//! ([`limits`]), and one event is one line ([`text`]).

mod console;
mod limits;
mod text;

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use leveret_config::options::LogOptions;
use leveret_config::{LOG_CATEGORIES, Level, LogFormat, Stream};
use rustix::fs::OFlags;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{FilterExt as _, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Filter, SubscriberExt as _};
use tracing_subscriber::registry::Registry;
use tracing_subscriber::reload;

use self::console::Console;
use self::limits::Limits;
use self::text::OneLine;
use crate::locks::{Guard, Rank, Ranked};

pub(crate) use self::limits::PERIOD;

type BoxedLayer = Box<dyn tracing_subscriber::Layer<Registry> + Send + Sync>;

/// The logs at work, and what an operator does to them.
#[derive(Clone, Debug, Default)]
pub struct Logs {
    file: Option<LogFile>,
    console: Option<Console>,
    /// What passes, by output.
    filters: Vec<reload::Handle<Targets, Registry>>,
    /// What clients may write, by output.
    limits: Vec<Limits>,
}

impl Logs {
    /// Opens the log file again under its name: one that was moved away gets no more lines.
    pub fn reopen(&self) -> io::Result<()> {
        self.file.as_ref().map_or(Ok(()), |file| file.lock().reopen())
    }

    /// Has the log file make way for a new one. Whether there is a log file.
    pub fn rotate(&self) -> io::Result<bool> {
        let Some(file) = &self.file else { return Ok(false) };
        let mut file = file.lock();
        let rotated = file.rotate().map(|()| true);
        rotated.map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", file.path.display()))
        })
    }

    /// From now on every category has this level, in every output, until the next start.
    pub fn set_level(&self, least: Level) {
        let targets = Targets::new().with_default(level(least));
        for filter in &self.filters {
            // An error says that the output is gone, with the process.
            let _ = filter.reload(targets.clone());
        }
    }

    /// Tells how many lines were left out since it was told last, and how many were lost.
    pub(crate) fn tell_more(&self) {
        self.limits.iter().for_each(Limits::tell);
        self.console.iter().for_each(Console::tell_lost);
    }

    /// A filter that [`set_level`](Self::set_level) can change, and that limits what clients may write.
    fn filter(&mut self, targets: Targets) -> impl Filter<Registry> + use<> {
        let (filter, handle) = reload::Layer::new(targets);
        self.filters.push(handle);
        let limits = Limits::new(self.limits.len());
        self.limits.push(limits.clone());
        filter.and(limits)
    }
}

/// Installs the logs that the options ask for. `dir` is where a relative log file goes.
pub(crate) fn install(options: &LogOptions, dir: &Path) -> io::Result<Logs> {
    let mut layers: Vec<BoxedLayer> = Vec::new();
    let mut logs = Logs::default();
    if options.console {
        let filter = logs.filter(filter(options, options.console_level));
        let is_json = options.console_format == LogFormat::Json;
        let console = match options.console_stream {
            Stream::Stdout => Console::new(io::stdout()),
            Stream::Stderr => Console::new(io::stderr()),
        }?;
        layers.push(layer(is_json, console.clone()).with_filter(filter).boxed());
        logs.console = Some(console);
    }
    if let Some(name) = &options.file.0 {
        let path = dir.join(name);
        let file = LogFile::open(
            path,
            options.file_rotation_size.get(),
            options.file_rotation_count as usize,
        )?;
        let is_json = options.file_format == LogFormat::Json;
        let filter = logs.filter(filter(options, options.file_level));
        layers.push(layer(is_json, file.clone()).with_filter(filter).boxed());
        logs.file = Some(file);
    }
    let subscriber = tracing_subscriber::registry().with(layers);
    tracing::subscriber::set_global_default(subscriber).map_err(io::Error::other)?;
    Ok(logs)
}

fn layer<W>(is_json: bool, writer: W) -> BoxedLayer
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let layer = tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(false);
    match is_json {
        true => layer.json().boxed(),
        false => layer.with_target(false).fmt_fields(OneLine).boxed(),
    }
}

/// Modules whose events belong to a category, where no target says so. The longest name that fits counts.
const CATEGORIES: [(&str, &str); 10] = [
    ("connection", "leveret_session::alarm"),
    ("connection", "leveret_session::connection"),
    ("connection", "leveret_session::unfinished"),
    ("connection", "leveret_server::connection"),
    ("connection", "leveret_server::listener"),
    ("channel", "leveret_session"),
    ("queue", "leveret_broker::shard"),
    ("queue", "leveret_queue"),
    ("user", "leveret_auth"),
    ("user", "leveret_server::login"),
];

/// The category of lines with this target.
fn category(target: &str) -> &'static str {
    if let Some(named) = LOG_CATEGORIES.iter().find(|it| **it == target) {
        return named;
    }
    let is_in = |module: &str| {
        target.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    let found = CATEGORIES.iter().filter(|(_, module)| is_in(module));
    found.max_by_key(|(_, module)| module.len()).map_or("default", |(category, _)| *category)
}

/// What passes: the level of the output if it has one, else that of `default`. A category with a level of its own has
/// that one, unless the output wants less.
fn filter(options: &LogOptions, output: Option<Level>) -> Targets {
    let default = output.unwrap_or_else(|| options.levels.get("default"));
    let mut targets = Targets::new().with_default(level(default));
    let floor = output.map_or(LevelFilter::TRACE, level);
    let has_level = |category: &str| options.levels.iter().any(|(name, _)| name == category);
    let modules = CATEGORIES.iter().copied();
    let named = LOG_CATEGORIES.iter().map(|name| (*name, *name));
    for (category, target) in modules.chain(named) {
        if category != "default" {
            let least = if has_level(category) {
                level(options.levels.get(category)).min(floor)
            } else {
                level(default)
            };
            targets = targets.with_target(target, least);
        }
    }
    targets
}

fn level(level: Level) -> LevelFilter {
    match level {
        Level::Debug => LevelFilter::DEBUG,
        Level::Info | Level::Notice => LevelFilter::INFO,
        Level::Warning => LevelFilter::WARN,
        Level::Error | Level::Critical | Level::Alert | Level::Emergency => LevelFilter::ERROR,
        Level::None => LevelFilter::OFF,
    }
}

/// A log file that makes way for a new one when it is long enough: `x.log` becomes `x.log.0`, and so on.
#[derive(Clone, Debug)]
struct LogFile(Arc<Ranked<Rotating>>);

#[derive(Debug)]
struct Rotating {
    path: PathBuf,
    file: File,
    bytes: u64,
    bytes_max: u64,
    kept: usize,
}

impl LogFile {
    fn open(path: PathBuf, bytes_max: u64, kept: usize) -> io::Result<Self> {
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir)?;
        }
        let name = |error: io::Error| {
            io::Error::new(error.kind(), format!("cannot log to {}: {error}", path.display()))
        };
        let file = open_to_append(&path).map_err(name)?;
        let bytes = file.metadata()?.len();
        let file = Rotating { path, file, bytes, bytes_max, kept };
        Ok(Self(Arc::new(Ranked::new(Rank::LogFile, file))))
    }

    fn lock(&self) -> Guard<'_, Rotating> {
        self.0.lock()
    }
}

impl Rotating {
    /// Opens what has the file's name, or makes it. The old file stays in use if that fails.
    fn reopen(&mut self) -> io::Result<()> {
        let file = open_to_append(&self.path)?;
        self.bytes = file.metadata()?.len();
        self.file = file;
        Ok(())
    }

    /// Whether the file has its name still: nobody moved or removed it.
    fn is_in_place(&self) -> bool {
        let id = |data: std::fs::Metadata| (data.dev(), data.ino());
        let named = std::fs::metadata(&self.path).map(id).ok();
        named.is_some() && named == self.file.metadata().map(id).ok()
    }

    fn rotate(&mut self) -> io::Result<()> {
        if !self.is_in_place() {
            return self.reopen();
        }
        let numbered = |n: usize| {
            let mut name = self.path.as_os_str().to_owned();
            name.push(format!(".{n}"));
            PathBuf::from(name)
        };
        for n in (1..self.kept).rev() {
            // A number that is not there yet leaves a gap, which is no fault.
            let _ = std::fs::rename(numbered(n - 1), numbered(n));
        }
        if self.kept > 0 {
            std::fs::rename(&self.path, numbered(0))?;
        } else {
            std::fs::remove_file(&self.path)?;
        }
        self.reopen()
    }
}

impl Write for LogFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut file = self.lock();
        if file.bytes_max > 0 && file.bytes + bytes.len() as u64 > file.bytes_max && file.bytes > 0
        {
            file.rotate()?;
        }
        let written = file.file.write(bytes)?;
        file.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.lock().file.flush()
    }
}

impl<'a> MakeWriter<'a> for LogFile {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// A named pipe that nobody reads is refused, and none is waited for: the broker would.
fn open_to_append(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    OpenOptions::new().create(true).append(true).custom_flags(flags).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn levels_of_categories() {
        let one = |key: &str| {
            let line = key.split_once('=').map(|(key, value)| (key.trim(), value.trim()));
            line.map(|(key, value)| format!("{key} = {value}\n")).expect("a setting")
        };
        let check = |settings: &[&str], target: &str, at: tracing::Level, want: bool| {
            let text = settings.iter().copied().map(one).collect();
            let files = vec![leveret_config::File { name: "f".to_owned(), text }];
            let sources = leveret_config::Sources { files, ..leveret_config::Sources::default() };
            let log = leveret_config::Config::load(&sources).expect("settings").config.log;
            let got = filter(&log, log.console_level).would_enable(target, &at);
            assert_eq!(got, want, "{settings:?}: {target} at {at}");
        };
        use tracing::Level as At;
        let ended = "leveret_session::connection::handshake";
        check(&[],                                                   ended, At::DEBUG, false);
        check(&["log.connection.level=debug"],                       ended, At::DEBUG, true);
        check(&["log.connection.level=debug"],        "leveret_session::consume", At::DEBUG, false);
        check(&["log.connection.level=none"],   "leveret_server::listener", At::ERROR, false);
        check(&["log.connection.level=none"],      "leveret_server::serve", At::INFO,  true);
        check(&["log.connection.level=error"],                "connection", At::WARN,  false);
        check(&["log.channel.level=error"],                         ended, At::WARN,  true);
        check(&["log.channel.level=debug"], "leveret_session::consume", At::DEBUG, true);
        check(&["log.queue.level=error"], "leveret_broker::shard::publish", At::WARN, false);
        check(&["log.default.level=error"],                         ended, At::WARN,  false);
        check(&["log.default.level=error", "log.connection.level=info"], ended, At::WARN, true);
        // An output's own level is the least of it.
        check(&["log.console.level=error", "log.connection.level=debug"], ended, At::WARN, false);
        check(&["log.console.level=debug", "log.connection.level=error"], ended, At::WARN, false);
        check(&["log.console.level=debug"],                         ended, At::DEBUG, true);
    }

    /// A module that was renamed would take its lines out of their category without a word.
    #[test]
    fn categories_are_of_modules_that_are_there() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for (_, target) in CATEGORIES {
            let (package, module) = target.split_once("::").unwrap_or((target, "lib"));
            let package = package.replace("leveret_", "");
            let path = format!("{package}/src/{}", module.replace("::", "/"));
            let is_there = [format!("{path}.rs"), format!("{path}/mod.rs")]
                .iter()
                .any(|file| crates.join(file).exists());
            assert!(is_there, "{target}: no {path}");
        }
    }

    #[test]
    fn a_long_file_makes_way() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("x.log");
        let mut log = LogFile::open(path, 10, 2).expect("a file");
        for line in ["12345678\n", "second\n", "third\n", "fourth\n"] {
            log.write_all(line.as_bytes()).expect("written");
        }
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).ok();
        assert_eq!(read("x.log").as_deref(), Some("fourth\n"));
        assert_eq!(read("x.log.0").as_deref(), Some("third\n"));
        assert_eq!(read("x.log.1").as_deref(), Some("second\n"));
        assert_eq!(read("x.log.2"), None, "only two are kept");
    }

    #[test]
    fn a_pipe_that_nobody_reads_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("x.log");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o600.into()).expect("a pipe");
        let why = LogFile::open(path.clone(), 0, 2).expect_err("nobody reads").to_string();
        assert!(why.starts_with(&format!("cannot log to {}: ", path.display())), "{why}");
    }

    #[test]
    fn a_file_that_was_moved_away_gets_no_more() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("x.log");
        let mut log = LogFile::open(path.clone(), 0, 2).expect("a file");
        let logs = Logs { file: Some(log.clone()), ..Logs::default() };
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).ok();
        // As logrotate does it.
        log.write_all(b"1\n").expect("written");
        std::fs::rename(&path, dir.path().join("moved")).expect("moved");
        log.write_all(b"2\n").expect("written");
        logs.reopen().expect("opened again");
        log.write_all(b"3\n").expect("written");
        assert_eq!(
            (read("moved").as_deref(), read("x.log").as_deref()),
            (Some("1\n2\n"), Some("3\n"))
        );
        // The broker's own way numbers the old ones, and takes nothing that is not there for one.
        assert!(logs.rotate().expect("rotated"));
        log.write_all(b"4\n").expect("written");
        assert_eq!(
            (read("x.log.0").as_deref(), read("x.log").as_deref()),
            (Some("3\n"), Some("4\n"))
        );
        std::fs::remove_file(&path).expect("removed");
        assert!(logs.rotate().expect("rotated"));
        log.write_all(b"5\n").expect("written");
        assert_eq!(
            (read("x.log.0").as_deref(), read("x.log").as_deref()),
            (Some("3\n"), Some("5\n"))
        );
        assert!(!Logs::default().rotate().expect("nothing to do"));
    }
}
