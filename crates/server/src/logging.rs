//! Logs: to the console, to a file, in RabbitMQ's levels and by category.
//!
//! Never on the path of a message. Categories are targets of events: `connection`, `channel`, `queue`,
//! `user`, and everything else.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use leveret_config::options::LogOptions;
use leveret_config::{Level, LogFormat, Stream};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::Registry;
use tracing_subscriber::reload;

use crate::locks::{Guard, Rank, Ranked};

type BoxedLayer = Box<dyn tracing_subscriber::Layer<Registry> + Send + Sync>;

/// The logs at work, and what an operator does to them.
#[derive(Clone, Debug, Default)]
pub struct Logs {
    file: Option<LogFile>,
    /// What passes, by output.
    filters: Vec<reload::Handle<Targets, Registry>>,
}

impl Logs {
    /// Opens the log file again under its name: one that was moved away gets no more lines.
    pub fn reopen(&self) -> io::Result<()> {
        self.file.as_ref().map_or(Ok(()), |file| file.lock().reopen())
    }

    /// Has the log file make way for a new one. Whether there is a log file.
    pub fn rotate(&self) -> io::Result<bool> {
        let Some(file) = &self.file else { return Ok(false) };
        file.lock().rotate().map(|()| true)
    }

    /// From now on every category has this level, in every output, until the next start.
    pub fn set_level(&self, least: Level) {
        let targets = Targets::new().with_default(level(least));
        for filter in &self.filters {
            // An error says that the output is gone, with the process.
            let _ = filter.reload(targets.clone());
        }
    }

    /// A filter that [`set_level`](Self::set_level) can change.
    fn filter(&mut self, targets: Targets) -> reload::Layer<Targets, Registry> {
        let (filter, handle) = reload::Layer::new(targets);
        self.filters.push(handle);
        filter
    }
}

/// Installs the logs that the options ask for. `dir` is where a relative log file goes.
pub(crate) fn install(options: &LogOptions, dir: &Path) -> io::Result<Logs> {
    let mut layers: Vec<BoxedLayer> = Vec::new();
    let mut logs = Logs::default();
    if options.console {
        let filter = logs.filter(filter(options, options.console_level));
        let is_json = options.console_format == LogFormat::Json;
        layers.push(match options.console_stream {
            Stream::Stdout => layer(is_json, io::stdout).with_filter(filter).boxed(),
            Stream::Stderr => layer(is_json, io::stderr).with_filter(filter).boxed(),
        });
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
    if is_json { layer.json().boxed() } else { layer.with_target(false).boxed() }
}

/// What passes: the level of the output if it has one, else that of each category.
fn filter(options: &LogOptions, output: Option<Level>) -> Targets {
    let default = output.unwrap_or_else(|| options.levels.get("default"));
    let mut targets = Targets::new().with_default(level(default));
    for (category, of_category) in options.levels.iter() {
        if category != "default" && output.is_none() {
            targets = targets.with_target(category, level(of_category));
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

fn open_to_append(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_file_that_was_moved_away_gets_no_more() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("x.log");
        let mut log = LogFile::open(path.clone(), 0, 2).expect("a file");
        let logs = Logs { file: Some(log.clone()), filters: Vec::new() };
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
