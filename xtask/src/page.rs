//! The management page: that what is checked in is what its sources make, and that it works in a browser.
//!
//! Packages come with npm and its lock files, the browser is Debian's Chromium; everything is done below
//! `target/`, so the sources hold no packages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

use crate::node::{self, Node};
use crate::steps::{Count, counted, succeed};
use crate::{install, root};

/// Where the page's sources are.
const SOURCES: &str = "crates/admin/page";

/// Where its tests are.
const TESTS: &str = "tests/page";

/// Builds the page from its sources and compares it with what is checked in; with `write`, replaces that.
pub(crate) fn build(write: bool) -> anyhow::Result<Count> {
    install::program("npm", "npm")?;
    let dir = root().join("target/page");
    copy(&root().join(SOURCES), &dir, &["node_modules", "dist"])?;
    npm(&dir, &["ci", "--ignore-scripts"])?;
    npm(&dir, &["run", "--silent", "build"])?;
    let (made, kept) = (files(&dir.join("dist"))?, files(&root().join(SOURCES).join("dist"))?);
    if made == kept {
        return Ok(Count::of(true));
    }
    ensure!(write, "{SOURCES}/dist is not what its sources make: run `cargo xtask page --write`");
    let dist = root().join(SOURCES).join("dist");
    let _ = fs::remove_dir_all(&dist);
    copy(&dir.join("dist"), &dist, &[])?;
    println!("{SOURCES}/dist is written");
    Ok(Count::of(true))
}

/// The tests called `names`, or all, in Chromium against a new node.
pub(crate) fn browse(names: &[String]) -> anyhow::Result<Count> {
    install::program("npm", "npm")?;
    install::program("chromium", "chromium")?;
    node::build()?;
    let node = Node::start(&[])?;
    let dir = tests()?;
    let shots = root().join("target/page-shots");
    fs::create_dir_all(&shots)?;
    let mut command = Command::new("node");
    command
        .current_dir(&dir)
        .env("SHOTS", &shots)
        .args([
            "test.mjs",
            &format!("http://{}/", node.http),
            &format!("amqp://guest:guest@{}/%2F", node.address),
        ])
        .arg(node::program().get_program())
        .args(names);
    counted(&mut command)
}

/// Pictures of every page of a running broker, to be looked at.
pub(crate) fn look(address: &str) -> anyhow::Result<()> {
    install::program("npm", "npm")?;
    install::program("chromium", "chromium")?;
    let shots = root().join("target/page-shots");
    let mut command = Command::new("node");
    command.current_dir(tests()?).args(["look.mjs", address]).arg(&shots);
    succeed(&mut command)?;
    println!("the pictures are in {}", shots.display());
    Ok(())
}

/// The tests' folder with their packages.
fn tests() -> anyhow::Result<PathBuf> {
    let dir = root().join("target/page-tests");
    copy(&root().join(TESTS), &dir, &["node_modules"])?;
    npm(&dir, &["ci", "--ignore-scripts"])?;
    Ok(dir)
}

fn npm(dir: &Path, words: &[&str]) -> anyhow::Result<()> {
    println!("npm {} in {}", words.join(" "), dir.display());
    let quiet = ["--no-audit", "--no-fund", "--loglevel=error"];
    // Debian's Chromium is used; Playwright's own is not fetched.
    let browsers = ("PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD", "1");
    let mut command = Command::new("npm");
    succeed(command.current_dir(dir).env(browsers.0, browsers.1).args(words).args(quiet))
}

/// Copies what is in a folder, and removes what the copy had more; `but` stays untouched in both.
fn copy(from: &Path, to: &Path, but: &[&str]) -> anyhow::Result<()> {
    fs::create_dir_all(to)?;
    for old in fs::read_dir(to)? {
        let old = old?;
        let name = old.file_name();
        if but.iter().any(|it| name == *it) || from.join(&name).exists() {
            continue;
        }
        if old.path().is_dir() {
            fs::remove_dir_all(old.path())?
        } else {
            fs::remove_file(old.path())?
        }
    }
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let entry = entry?;
        let name = entry.file_name();
        if but.iter().any(|it| name == *it) {
            continue;
        }
        let target = to.join(&name);
        if entry.path().is_dir() {
            copy(&entry.path(), &target, &[])?;
        } else {
            fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}

/// The files of a folder without folders: name and content, in order.
fn files(dir: &Path) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let mut found = Vec::new();
    if dir.is_dir() {
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            found.push((name, fs::read(entry.path())?));
        }
    }
    found.sort();
    Ok(found)
}
