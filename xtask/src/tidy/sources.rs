//! What a source may not contain, how large it may be, and whether it is reached at all.

use std::fmt::Write as _;
use std::path::Path;

use super::layers::SANS_IO;
use super::{files, shown};
use crate::root;

/// Lines above which a file needs to be split.
const FILE_LINES_MAX: usize = 1200;

/// Lines of a `mod.rs`, which is a table of contents.
const MOD_LINES_MAX: usize = 150;

/// Files above their limit, with the lines they may have. They may shrink, never grow.
const RATCHET: &[(&str, usize)] = &[("crates/topology/src/route/mod.rs", 360)];

/// Letters beyond ASCII that a source may hold: the sign of a specification's section, and that of
/// microseconds, which tools print.
const LETTERS: [char; 2] = ['\u{a7}', '\u{b5}'];

/// Leftovers, assembled so that this file does not hold them.
const LEFTOVERS: [(&str, &str); 5] = [
    (concat!("FIX", "ME"), "finish it or write an issue"),
    (concat!("dbg", "!("), "remove it"),
    (concat!("to", "do!("), "finish it"),
    (concat!("unimple", "mented!("), "finish it"),
    (concat!("#[ig", "nore"), "a test runs or is deleted"),
];

/// What crates without input or output must not name, and what to use instead.
const FORBIDDEN: [(&str, &str); 13] = [
    ("std::thread", "the server runs turns"),
    ("std::net", "the server owns sockets"),
    ("std::os::", "the server owns sockets"),
    ("std::fs", "go through the log's disk"),
    ("std::env", "take it as an argument"),
    ("std::process", "return an error"),
    ("time::Instant", "take `now` as an argument"),
    ("SystemTime", "take `now` as an argument"),
    ("tokio", "the server drives"),
    ("rand::", "take a seed as an argument"),
    ("std::collections::HashMap", "hashbrown with foldhash's fixed state: order is an input"),
    ("std::collections::HashSet", "hashbrown with foldhash's fixed state: order is an input"),
    ("RandomState", "foldhash's fixed state: order is an input"),
];

/// Crates whose locks have a place in one order, and the file that has it.
const RANKED: [&str; 2] = ["server", "admin"];
const LOCKS: &str = "crates/server/src/locks.rs";

/// Names that say nothing (see the naming table of the house style).
const BANNED_NAMES: [(&str, &str); 6] = [
    ("Manager ", "name what it owns"),
    ("Helper ", "name what it does"),
    ("mod util", "put the item where it gets its meaning"),
    ("mod helper", "put the item where it gets its meaning"),
    ("mod common", "put the item where it gets its meaning"),
    ("mod misc", "put the item where it gets its meaning"),
];

/// Checks every source of the workspace.
pub(super) fn check(breaches: &mut Vec<String>) -> anyhow::Result<()> {
    for dir in ["crates", "xtask"] {
        for path in files(&root().join(dir), "rs")? {
            if path.components().any(|part| part.as_os_str() == "target") {
                continue;
            }
            let text = std::fs::read_to_string(&path)?;
            let name = shown(&path);
            breaches.extend(breaches_of(&name, &text));
            if let Some(breach) = unreached(&path)? {
                breaches.push(breach);
            }
        }
    }
    Ok(())
}

/// What is wrong with the text of one file, each with its line.
fn breaches_of(name: &str, text: &str) -> Vec<String> {
    let mut breaches = Vec::new();
    let lines = text.lines().count();
    // Below tests/, a mod.rs is how Rust has test files share code.
    let is_mod = name.ends_with("/mod.rs") && !name.contains("/tests/");
    let ratchet = RATCHET.iter().find(|(file, _)| *file == name).map(|(_, lines)| *lines);
    let most = ratchet.unwrap_or(if is_mod { MOD_LINES_MAX } else { FILE_LINES_MAX });
    if lines > most {
        breaches.push(format!("{name}: {lines} lines, at most {most}: find the seam"));
    }
    let is_generated = text.starts_with("// Generated");
    let is_test = name.contains("/tests/") || name.ends_with("/tests.rs");
    if !text.starts_with("//!") && !is_generated && !is_test {
        breaches.push(format!("{name}:1: a file begins with what it is: //! ..."));
    }
    let of_crate = name.strip_prefix("crates/").and_then(|it| it.split_once("/src/"));
    let is_sans_io = of_crate.is_some_and(|(krate, _)| SANS_IO.contains(&krate));
    let is_ranked = name != LOCKS && of_crate.is_some_and(|(krate, _)| RANKED.contains(&krate));
    if is_sans_io && name.ends_with("/src/lib.rs") && !text.contains(SANS_IO_LINTS) {
        breaches.push(format!("{name}: a crate without input or output has {SANS_IO_LINTS}"));
    }
    let mut in_tests = is_test;
    for (at, line) in text.lines().enumerate() {
        let place = format!("{name}:{}", at + 1);
        in_tests |= line.trim() == "#[cfg(test)]";
        for (word, instead) in LEFTOVERS {
            if line.contains(word) {
                breaches.push(format!("{place}: {word}: {instead}"));
            }
        }
        let code = line.split("//").next().unwrap_or_default();
        if in_tests && code.contains(concat!("thread::sl", "eep")) {
            breaches.push(format!("{place}: no sleep in a test: wait for a named event"));
        }
        if in_tests {
            continue;
        }
        let is_plain = |letter: char| letter.is_ascii() || LETTERS.contains(&letter);
        if !line.chars().all(is_plain) && !is_generated {
            breaches.push(format!("{place}: not ASCII"));
        }
        for (word, instead) in BANNED_NAMES {
            if code.contains(word) && !is_table(name) {
                breaches.push(format!("{place}: '{}': {instead}", word.trim()));
            }
        }
        if is_ranked
            && ["Mutex", "RwLock"].iter().any(|it| names(code, it))
            && !code.contains("tokio::")
        {
            breaches.push(format!("{place}: a lock without a rank: use those of {LOCKS}"));
        }
        if is_sans_io {
            for (word, instead) in FORBIDDEN {
                if names(code, word) {
                    breaches.push(format!("{place}: {word}: {instead}"));
                }
            }
        }
    }
    breaches
}

/// Whether the code has this name, and not only one that ends like it.
fn names(code: &str, name: &str) -> bool {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
    code.match_indices(name).any(|(at, _)| !code[..at].ends_with(is_part))
}

/// Whether this is the file that holds the banned words.
fn is_table(name: &str) -> bool {
    name == "xtask/src/tidy/sources.rs"
}

/// A file below `src` that no `mod` line leads to.
fn unreached(path: &Path) -> anyhow::Result<Option<String>> {
    let name = shown(path);
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let is_root = ["lib", "main", "build"].contains(&stem.as_str());
    if !name.contains("/src/") || name.contains("/src/bin/") || is_root {
        return Ok(None);
    }
    let (dir, module) = match path.parent() {
        Some(dir) if stem == "mod" => {
            let module = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
            (dir.parent(), module)
        }
        dir => (dir, stem),
    };
    let Some(dir) = dir else { return Ok(None) };
    // The parent of a/b.rs is a/mod.rs, a.rs beside a, or the crate's root.
    let beside = dir.with_extension("rs");
    let parents = ["mod.rs", "lib.rs", "main.rs"].map(|file| dir.join(file));
    for parent in parents.iter().chain([&beside]).filter(|parent| parent.is_file()) {
        let text = std::fs::read_to_string(parent)?;
        let line = format!("mod {module};");
        if text.lines().any(|it| it.trim_end().ends_with(&line)) {
            return Ok(None);
        }
    }
    Ok(Some(format!("{name}: no `mod {module};` leads to it")))
}

/// What such a crate begins with: its tests may read clocks and use hash maps.
const SANS_IO_LINTS: &str =
    "#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]";

/// The `clippy.toml` of a crate without input or output: the rule by resolved path, where
/// [`FORBIDDEN`] sees only text.
pub(crate) fn clippy_toml() -> String {
    let methods = [
        ("std::time::Instant::now", "take `now` as an argument"),
        ("std::time::SystemTime::now", "take `now` as an argument"),
        ("std::thread::spawn", "the server runs turns"),
        ("std::thread::sleep", "return a timeout"),
        ("std::env::var", "take it as an argument"),
        ("std::env::vars", "take it as an argument"),
        ("std::env::args", "take it as an argument"),
        ("std::process::exit", "return an error"),
    ];
    let types = [
        ("std::time::Instant", "take `now` as an argument"),
        ("std::time::SystemTime", "take `now` as an argument"),
        ("std::fs::File", "go through the log's disk"),
        ("std::net::TcpStream", "the server owns sockets"),
        ("std::net::TcpListener", "the server owns sockets"),
        ("std::net::UdpSocket", "the server owns sockets"),
        ("std::os::unix::net::UnixStream", "the server owns sockets"),
        ("std::collections::HashMap", "hashbrown with foldhash's fixed state: order is an input"),
        ("std::collections::HashSet", "hashbrown with foldhash's fixed state: order is an input"),
    ];
    let mut text =
        String::from("# Made by `cargo xtask codegen`: this crate does no input or output.\n");
    for (list, entries) in [("methods", &methods[..]), ("types", &types[..])] {
        let _ = writeln!(text, "\ndisallowed-{list} = [");
        for (path, reason) in entries {
            let _ = writeln!(text, "    {{ path = \"{path}\", reason = \"{reason}\" }},");
        }
        text.push_str("]\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn texts() {
        let header = |rest: &str| format!("//! x\n{rest}");
        check("crates/queue/src/a.rs",  &header("use std::time::Instant;"),       "crates/queue/src/a.rs:2: time::Instant: take `now` as an argument");
        check("crates/server/src/a.rs", &header("use std::time::Instant;"),       "");
        check("crates/queue/src/lib.rs", &header(SANS_IO_LINTS),                  "");
        check("crates/queue/src/lib.rs", &header("mod a;"),                       &format!("crates/queue/src/lib.rs: a crate without input or output has {SANS_IO_LINTS}"));
        check("crates/admin/src/a.rs",  &header("use std::sync::Mutex;"),         "crates/admin/src/a.rs:2: a lock without a rank: use those of crates/server/src/locks.rs");
        check("crates/admin/src/a.rs",  &header("use tokio::sync::Mutex;"),       "");
        check("crates/queue/src/a.rs",  &header("// std::thread is not here"),    "");
        check("crates/queue/src/a.rs",  &header("#[cfg(test)]\nuse std::fs;"),    "");
        check("crates/queue/src/a.rs",  &header("// \u{fc}"),                      "crates/queue/src/a.rs:2: not ASCII");
        check("crates/ctl/src/a.rs",    "fn x() {}",                              "crates/ctl/src/a.rs:1: a file begins with what it is: //! ...");
        check("crates/ctl/src/a.rs",    &header("struct QueueManager {"),         "crates/ctl/src/a.rs:2: 'Manager': name what it owns");
        check("crates/log/src/a.rs",     &header("use rand::random;\n"),           "crates/log/src/a.rs:2: rand::: take a seed as an argument");
        check("crates/log/src/a.rs",     &header("Errand::Wake;\n"),               "");
        check("crates/ctl/src/a/mod.rs", &header(&"\n".repeat(150)),              "crates/ctl/src/a/mod.rs: 151 lines, at most 150: find the seam");
    }

    #[track_caller]
    fn check(name: &str, text: &str, want: &str) {
        assert_eq!(breaches_of(name, text).join("\n"), want);
    }
}
