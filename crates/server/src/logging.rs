//! Logs: to the console, to a file, in RabbitMQ's levels and by category.
//!
//! Never on the path of a message. An event belongs to a category by its target: one that is named after it, or the
//! module that it comes from ([`CATEGORIES`]). Everything else is `default`. What clients cause is limited
//! ([`limits`]), and one event is one line ([`text`]).

mod console;
mod file;
mod limits;
mod output;
mod text;

use std::fmt::Display;
use std::io;
use std::path::Path;
use std::time::Duration;

use leveret_config::options::LogOptions;
use leveret_config::{LOG_CATEGORIES, Level, LogFormat, Stream};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{FilterExt as _, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Filter, SubscriberExt as _};
use tracing_subscriber::registry::Registry;
use tracing_subscriber::reload;

use self::console::Console;
use self::file::LogFile;
use self::limits::Limits;
use self::output::Output;
use self::text::OneLine;

pub(crate) use self::limits::PERIOD;

/// How long the last lines before an end may take, by output.
pub(crate) const LAST_LINES: Duration = Duration::from_secs(1);

type BoxedLayer = Box<dyn tracing_subscriber::Layer<Registry> + Send + Sync>;

/// The logs at work, and what an operator does to them.
#[derive(Clone, Debug, Default)]
pub struct Logs {
    file: Option<Output<LogFile>>,
    console: Option<Output<Console>>,
    /// What passes, by output.
    filters: Vec<reload::Handle<Targets, Registry>>,
    /// What clients may write, by output.
    limits: Vec<Limits>,
}

impl Logs {
    /// Has the log file opened again under its name: one that was moved away gets no more lines.
    pub fn reopen(&self) {
        let Some(file) = &self.file else { return };
        let stays = |error: &dyn Display| {
            tracing::error!(%error, "the log file cannot be opened again; the old one stays in use");
        };
        // Whoever asks does not wait.
        if !file.call(move |file| file.reopen().unwrap_or_else(|error| stays(&error))) {
            stays(&"what is written to it takes too long");
        }
    }

    /// Has the log file make way for a new one. Whether there is a log file.
    pub fn rotate(&self) -> io::Result<bool> {
        let Some(file) = &self.file else { return Ok(false) };
        let rotated = file.ask(LAST_LINES, LogFile::rotate);
        rotated
            .unwrap_or_else(|| Err(io::Error::other("what is written to it takes too long")))
            .map(|()| true)
    }

    /// Waits until all is written that was said before, not longer than that.
    pub(crate) fn flush(&self, patience: Duration) {
        self.console.iter().for_each(|console| console.flush(patience));
        self.flush_file(patience);
    }

    /// The same for the log file alone.
    pub fn flush_file(&self, patience: Duration) {
        self.file.iter().for_each(|file| file.flush(patience));
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
        self.console.iter().for_each(Output::tell_lost);
        self.file.iter().for_each(Output::tell_lost);
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
        let console = Output::start("the console".to_owned(), console)?;
        layers.push(layer(is_json, console.clone()).with_filter(filter).boxed());
        logs.console = Some(console);
    }
    if let Some(name) = &options.file.0 {
        let path = dir.join(name);
        let name = path.display().to_string();
        let file = LogFile::open(
            path,
            options.file_rotation_size.get(),
            options.file_rotation_count as usize,
        )?;
        let file = Output::start(name, file)?;
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

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::time::Instant;

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
            let sources = leveret_config::Inputs { files, ..leveret_config::Inputs::default() };
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
    fn who_reads_the_log_file_does_not_wait_for_who_reads_the_console() {
        let (_reader, writer) = io::pipe().expect("a pipe");
        let console = Console::new(writer).expect("a copy");
        let console = Output::start("the console".to_owned(), console).expect("a thread");
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("log");
        let file = LogFile::open(path.clone(), u64::MAX, 1).expect("a file");
        let file = Output::start("the file".to_owned(), file).expect("a thread");
        (&console).write_all(&[b'x'; 200_000]).expect("more than a pipe holds");
        (&file).write_all(b"said\n").expect("room for it");
        let logs = Logs { file: Some(file), console: Some(console), ..Logs::default() };
        let (began, patience) = (Instant::now(), Duration::from_secs(60));
        logs.flush_file(patience);
        assert!(began.elapsed() < patience);
        assert_eq!(std::fs::read(path).expect("a file"), b"said\n");
    }

    #[test]
    fn a_log_without_a_file_has_nothing_to_do() {
        Logs::default().reopen();
        assert!(!Logs::default().rotate().expect("nothing to do"));
    }
}
