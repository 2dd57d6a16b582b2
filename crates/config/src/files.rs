//! Finding and reading configuration files, and the paths that follow from a configuration.

use std::fs::File as OpenFile;
use std::io::{Error, ErrorKind, Read as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use crate::classic;
use crate::load::{Config, File, FlagSetting, Inputs, Loaded, Notice};
use crate::{ConfigError, ConfigErrors, Problem, Provenance};

/// The file that is read if none is named and it exists.
pub const DEFAULT_FILE: &str = "/etc/leveret/leveret.conf";

/// Name of the control socket in the data directory.
pub const SOCKET_NAME: &str = "leveret.sock";

/// Name of the file in the data directory that the process which uses it holds a lock on.
pub const LOCK_NAME: &str = "leveret.lock";

/// The longest file of a configuration, of certificates or of a key that is read, in bytes.
pub const BYTES_MAX: u64 = 16 << 20;

/// Loads the configuration of this process: the file of `--config`, else of the environment, else
/// [`DEFAULT_FILE`]; then the environment; then `flags`.
pub fn load(file: Option<&Path>, flags: Vec<FlagSetting>) -> Result<Loaded, ConfigErrors> {
    let env: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let (files, at) = match file {
        Some(path) => (vec![path.to_owned()], Provenance::Flag("--config".to_owned())),
        None => named_by_environment(&env),
    };
    let mut sources = Inputs { include: &include, env, flags, ..Inputs::default() };
    for path in files {
        match read(&path) {
            Ok(file) => sources.files.push(file),
            Err(why) => {
                let path = path.display().to_string();
                let problem = Problem::Syntax(format!("cannot read '{path}': {why}"));
                return Err(ConfigErrors(vec![ConfigError { at, problem }]));
            }
        }
    }
    let mut loaded = Config::load(&sources)?;
    loaded.notices.extend(advanced(&sources));
    Ok(loaded)
}

/// Warnings about the terms of `advanced.config`, which RabbitMQ reads besides: the one that the environment names, or the
/// one beside the configuration file.
fn advanced(sources: &Inputs<'_>) -> Vec<Notice> {
    let named = sources.env.iter().find(|(name, _)| name == "RABBITMQ_ADVANCED_CONFIG_FILE");
    let path = match (named, sources.files.first()) {
        (Some((_, path)), _) if !path.is_empty() => PathBuf::from(path),
        (_, Some(file)) => Path::new(&file.name).with_file_name("advanced.config"),
        _ => return Vec::new(),
    };
    // RabbitMQ lets the name be given without its ending.
    let with_ending = PathBuf::from(format!("{}.config", path.display()));
    let path = if !path.exists() && with_ending.exists() { with_ending } else { path };
    if !path.exists() {
        return Vec::new();
    }
    let File { name, text } = match read(&path) {
        Ok(file) => file,
        Err(why) => {
            let text = format!("{}: the file is not read: {why}", path.display());
            return vec![Notice { is_warning: true, text }];
        }
    };
    let warning = |(line, what): (u32, String)| Notice {
        is_warning: true,
        text: format!("{name}:{line}: the file is not read: {what}"),
    };
    classic::terms(&text).into_iter().map(warning).collect()
}

/// The directory of everything the node remembers.
pub fn data_dir(config: &Config) -> PathBuf {
    if let Some(dir) = &config.node.data_dir {
        return PathBuf::from(dir);
    }
    let set = |name: &str| std::env::var_os(name).filter(|it| !it.is_empty()).map(PathBuf::from);
    match (set("XDG_DATA_HOME"), set("HOME")) {
        _ if is_superuser() => PathBuf::from("/var/lib/leveret"),
        (Some(data), _) => data.join("leveret"),
        (None, Some(home)) => home.join(".local/share/leveret"),
        (None, None) => PathBuf::from("/var/lib/leveret"),
    }
}

/// Whether this process runs as user 0; `false` where there is no `/proc` to tell.
fn is_superuser() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|of_process| of_process.uid() == 0)
}

/// The Unix socket on which `leveret ctl` and the node meet.
pub fn ctl_socket(config: &Config) -> PathBuf {
    match &config.node.ctl_socket {
        Some(path) => PathBuf::from(path),
        None => data_dir(config).join(SOCKET_NAME),
    }
}

/// The directory of the files of traces.
pub fn trace_dir(config: &Config) -> PathBuf {
    match &config.tracing.dir {
        Some(dir) => PathBuf::from(dir),
        None => data_dir(config).join("trace"),
    }
}

fn named_by_environment(env: &[(String, String)]) -> (Vec<PathBuf>, Provenance) {
    let names = ["LEVERET_CONFIG_FILE", "RABBITMQ_CONFIG_FILE", "RABBITMQ_CONFIG_FILES"];
    let named = names.iter().find_map(|name| {
        let set = env.iter().find(|(known, value)| known == name && !value.is_empty())?;
        Some((*name, PathBuf::from(&set.1)))
    });
    let Some((name, path)) = named else {
        let default = Path::new(DEFAULT_FILE);
        let files = if default.exists() { vec![default.to_owned()] } else { Vec::new() };
        return (files, Provenance::Environment(names[0].to_owned()));
    };
    let at = Provenance::Environment(name.to_owned());
    if name == "RABBITMQ_CONFIG_FILES" {
        // A directory, or a pattern in its last part.
        let pattern = if path.is_dir() { path.join("*.conf") } else { path };
        return (matching(&pattern).unwrap_or_default(), at);
    }
    // RabbitMQ lets the name be given without its ending.
    let with_ending = PathBuf::from(format!("{}.conf", path.display()));
    let path = if !path.exists() && with_ending.exists() { with_ending } else { path };
    (vec![path], at)
}

/// Answers `include`: relative to the directory of the file that says it.
fn include(from: &str, path: &str) -> Result<Vec<File>, String> {
    let base = Path::new(from).parent().unwrap_or_else(|| Path::new(""));
    let path = base.join(path);
    let paths = if path.to_string_lossy().contains('*') {
        matching(&path).map_err(|error| error.to_string())?
    } else if path.is_dir() {
        matching(&path.join("*.conf")).map_err(|error| error.to_string())?
    } else {
        vec![path]
    };
    paths.iter().map(|path| read(path)).collect()
}

/// The bytes of a file, which are at most so many. A named pipe is refused: whoever reads it may wait for ever. Only what a
/// shell hands over (`<(...)`) is read, and of that, as of a device, no more than [`BYTES_MAX`].
///
/// # Errors
///
/// When it is not there, cannot be read, or is longer.
pub fn read_bytes(path: &Path, most: u64) -> std::io::Result<Vec<u8>> {
    let is_handed_over = ["/dev", "/proc"].iter().any(|dir| path.starts_with(dir));
    if std::fs::metadata(path)?.file_type().is_fifo() && !is_handed_over {
        return Err(Error::new(ErrorKind::InvalidInput, "it is a named pipe, and no file"));
    }
    let file = OpenFile::open(path)?;
    let told = file.metadata()?;
    let most = if told.is_file() { most } else { most.min(BYTES_MAX) };
    let mut bytes = Vec::new();
    if told.len() <= most {
        // Room for all of it at once, and for the look at its end: a key leaves no copies behind.
        bytes.reserve(told.len() as usize + 32);
        file.take(most + 1).read_to_end(&mut bytes)?;
    }
    if told.len().max(bytes.len() as u64) > most {
        let text = format!("it is longer than {} MiB", most >> 20);
        return Err(Error::new(ErrorKind::FileTooLarge, text));
    }
    Ok(bytes)
}

/// As [`read_bytes`], of a file that is UTF-8.
///
/// # Errors
///
/// Those, and when it is not.
pub fn read_text(path: &Path, most: u64) -> std::io::Result<String> {
    let not_utf8 = |_| Error::new(ErrorKind::InvalidData, "the file is not UTF-8");
    String::from_utf8(read_bytes(path, most)?).map_err(not_utf8)
}

fn read(path: &Path) -> Result<File, String> {
    let text = read_text(path, BYTES_MAX).map_err(|error| error.to_string())?;
    Ok(File { name: path.display().to_string(), text })
}

/// The files of a directory whose names match a pattern with `*`, in the order of their names.
fn matching(pattern: &Path) -> std::io::Result<Vec<PathBuf>> {
    let name = pattern.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let dir = match pattern.parent() {
        Some(dir) if dir != Path::new("") => dir,
        _ => Path::new("."),
    };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let is_match = path.file_name().is_some_and(|it| glob(&name, &it.to_string_lossy()));
        if is_match && path.is_file() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Whether `name` matches `pattern`, in which `*` stands for any text.
fn glob(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let mut last = None;
    for part in parts {
        if let Some(middle) = last.replace(part) {
            let Some((_, after)) = rest.split_once(middle) else { return false };
            rest = after;
        }
    }
    last.map_or(rest.is_empty(), |end| rest.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn globs() {
        for (pattern, name, want) in [
            ("*.conf",   "a.conf",   true),
            ("*.conf",   "a.config", false),
            ("*",        "",         true),
            ("a",        "a",        true),
            ("a",        "ab",       false),
            ("1*-*.c",   "10-x.c",   true),
            ("1*-*.c",   "10x.c",    false),
            ("*a*a",     "a",        false),
        ] {
            assert_eq!(glob(pattern, name), want, "{pattern} {name}");
        }
    }

    #[test]
    fn includes_are_read_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        put("main.conf", "heartbeat = 1\ninclude [not read]\n");
        put("main.conf", "heartbeat = 1\ninclude more-*.conf\nchannel_max = 5\n");
        put("more-2.conf", "heartbeat = 3\n");
        put("more-1.conf", "heartbeat = 2\nchannel_max = 4\n");
        put("other.conf", "nonsense\n");
        let loaded = load(Some(&dir.path().join("main.conf")), Vec::new()).unwrap();
        assert_eq!(loaded.config.connections.heartbeat.get(), 3);
        assert_eq!(loaded.config.connections.channel_max, 5);

        put("main.conf", "include main.conf\ninclude main.conf\n");
        let errors = load(Some(&dir.path().join("main.conf")), Vec::new()).unwrap_err();
        assert!(errors.to_string().contains("circle"), "{errors}");
        assert_eq!(errors.0.len(), 2, "{errors}");
        let errors = load(Some(&dir.path().join("none.conf")), Vec::new()).unwrap_err();
        assert!(errors.to_string().starts_with("flag --config: cannot read"), "{errors}");
    }
    #[test]
    fn what_is_no_file_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        assert!(std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
        OpenFile::create(at("long")).unwrap().set_len(BYTES_MAX + 1).unwrap();
        OpenFile::create(at("advanced.config")).unwrap().set_len(BYTES_MAX + 1).unwrap();
        let why = |path: &Path| load(Some(path), Vec::new()).unwrap_err().to_string();
        for (path, want) in [
            (at("pipe"), "it is a named pipe, and no file"),
            (at("long"), "it is longer than 16 MiB"),
            ("/dev/zero".into(), "it is longer than 16 MiB"),
            (dir.path().to_owned(), "Is a directory (os error 21)"),
        ] {
            let want = format!("flag --config: cannot read '{}': {want}", path.display());
            assert_eq!(why(&path), want);
        }
        std::fs::write(at("includes.conf"), "heartbeat = 1\ninclude pipe\n").unwrap();
        let want = "includes.conf:2: cannot include 'pipe': it is a named pipe, and no file";
        assert!(why(&at("includes.conf")).ends_with(want));
        std::fs::write(at("good.conf"), "heartbeat = 1\n").unwrap();
        let loaded = load(Some(&at("good.conf")), Vec::new()).unwrap();
        assert!(loaded.notices[0].text.ends_with("the file is not read: it is longer than 16 MiB"));
        assert!(load(Some(Path::new("/dev/null")), Vec::new()).is_ok());
    }
}
