//! The first stage: the sources are copied as a container's build is sent them, the packages that the stage names are
//! installed, and its own command builds the program, with the compiler, `make`, linker and libraries of the clean system.
//!
//! The image's Rust is this machine's, and so are the sources of dependencies: both are mounted, and nobody may write there.
//! The environment makes the build lean: nothing is optimised, which is half of the work. What was built is kept in
//! `target/package/stage` for as long as the stage says the same: the next run compiles what changed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail, ensure};

use super::System;
use crate::package::output;
use crate::root;
use crate::steps::succeed;

/// Where the image has its Rust and its dependencies.
const RUST: &str = "usr/local/rust";
const CARGO: &str = "usr/local/cargo";

/// Cargo's variables for a build that is quick, and needs nobody else's machine.
const LEAN: [(&str, &str); 5] = [
    ("CARGO_NET_OFFLINE", "true"),
    ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0"),
    ("CARGO_PROFILE_RELEASE_LTO", "off"),
    ("CARGO_PROFILE_RELEASE_DEBUG", "false"),
    ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
];

/// What the stage leaves to others.
pub(super) struct Built {
    /// Its name.
    pub(super) stage: String,
    system: System,
    /// Where it works.
    dir: String,
    /// What it finds there as `target`.
    kept: PathBuf,
}

impl Built {
    /// Where a file of the stage is on this machine.
    pub(super) fn path(&self, inside: &str) -> anyhow::Result<PathBuf> {
        let inside = inside.strip_prefix('/').context("the whole path is expected")?;
        let target = inside.strip_prefix(&format!("{}/target/", self.dir));
        Ok(target.map_or_else(|| self.system.path(inside), |rest| self.kept.join(rest)))
    }

    /// A shell's line, as root. The network is the machine's.
    fn run(&self, line: &str) -> anyhow::Result<()> {
        let (toolchain, registry) = (toolchain()?, registry()?);
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-ec"]);
        command.arg(
            r#"root=$0
            mount -t proc proc "$root/proc"
            mount --bind -o ro "$2" "$root/$3"
            mount --bind -o ro "$4" "$root/$5/registry"
            mkdir -p "$root/$6/target"
            mount --bind "$7" "$root/$6/target"
            exec chroot "$root" sh -ec "cd '/$6'; $1""#,
        );
        command.arg(&self.system.0).arg(line).arg(toolchain).arg(RUST).arg(registry).arg(CARGO);
        command.arg(&self.dir).arg(&self.kept).env_clear().envs(LEAN);
        command.env("PATH", format!("/{RUST}/bin:/usr/sbin:/usr/bin:/sbin:/bin"));
        command.env("CARGO_HOME", format!("/{CARGO}"));
        command.env("LC_ALL", "C.UTF-8").env("DEBIAN_FRONTEND", "noninteractive");
        output(command.stdin(Stdio::null())).map(drop)
    }
}

/// Does what the stage says.
pub(super) fn run(stage: &str, packages: &[PathBuf]) -> anyhow::Result<Built> {
    let (image, lines) = stage.split_once('\n').context("the stage is empty")?;
    let (image, name) = image.split_once(" AS ").context("the stage has no name")?;
    let version = channel()?;
    ensure!(
        has_rust(image, &version),
        "{image} has not Rust {version}, which rust-toolchain.toml names: each build would fetch it"
    );
    let kept = root().join("target/package/stage");
    let made_by = root().join("target/package/stage-was");
    if fs::read_to_string(&made_by).ok().as_deref() != Some(stage) {
        if kept.exists() {
            fs::remove_dir_all(&kept)?;
        }
        fs::create_dir_all(&kept)?;
        fs::write(made_by, stage)?;
    }
    let system = System::make("build", packages)?;
    for dir in [RUST, &format!("{CARGO}/registry")] {
        fs::create_dir_all(system.path(dir))?;
    }
    let mut built = Built { stage: name.trim().to_owned(), system, dir: String::new(), kept };
    for line in lines.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
        built.take(line).with_context(|| line.to_owned())?;
    }
    Ok(built)
}

impl Built {
    fn take(&mut self, line: &str) -> anyhow::Result<()> {
        match line.split_once(' ') {
            Some(("WORKDIR", dir)) => {
                dir.trim_matches('/').clone_into(&mut self.dir);
                fs::create_dir_all(self.system.path(&self.dir))?;
                Ok(())
            }
            Some(("COPY", ". .")) => send(&self.system.path(&self.dir)),
            Some(("RUN", line)) => self.run(line),
            _ => bail!("this instruction is not known"),
        }
    }
}

/// The sources but for what `.dockerignore` names, with their times: Cargo goes by them.
fn send(to: &Path) -> anyhow::Result<()> {
    let ignored = fs::read_to_string(root().join(".dockerignore"))?;
    let mut pack = Command::new("tar");
    pack.args(["--create", "--format=posix", "--directory"]).arg(root());
    for pattern in ignored.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        match pattern.strip_prefix("**/") {
            Some(anywhere) => pack.args(["--no-anchored", &format!("--exclude={anywhere}")]),
            None => pack.args(["--anchored", &format!("--exclude=./{pattern}")]),
        };
    }
    let mut pack = pack.arg(".").stdout(Stdio::piped()).spawn()?;
    let packed = pack.stdout.take().context("the output is piped")?;
    let mut unpack = Command::new("tar");
    unpack.args(["--extract", "--no-same-owner", "--directory"]).arg(to).stdin(packed);
    succeed(&mut unpack)?;
    ensure!(pack.wait()?.success(), "the sources are not sent");
    Ok(())
}

/// The version of Rust that the sources want.
fn channel() -> anyhow::Result<String> {
    let text = fs::read_to_string(root().join("rust-toolchain.toml"))?;
    let found = text.lines().find_map(|line| line.strip_prefix("channel = "));
    Ok(found.context("rust-toolchain.toml names no channel")?.trim_matches('"').to_owned())
}

/// This machine's Rust.
fn toolchain() -> anyhow::Result<PathBuf> {
    let mut ask = Command::new("rustc");
    let told = output(ask.args(["--print", "sysroot"]).current_dir(root()))?;
    Ok(PathBuf::from(String::from_utf8(told)?.trim()).canonicalize()?)
}

/// Where this machine's Cargo has what it fetched.
fn registry() -> anyhow::Result<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    Ok(home.context("where Cargo's home is")?.join("registry"))
}

/// Whether an image of Rust, whose tag may name its first numbers only, has this version.
fn has_rust(image: &str, version: &str) -> bool {
    let Some((_, tag)) = image.rsplit_once(':') else { return false };
    let of_tag = tag.split_once('-').map_or(tag, |(of_tag, _)| of_tag);
    version.strip_prefix(of_tag).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn images() {
        assert!( has_rust("docker.io/library/rust:1.95-slim-trixie",   "1.95.0"));
        assert!( has_rust("docker.io/library/rust:1.95.0-slim-trixie", "1.95.0"));
        assert!(!has_rust("docker.io/library/rust:1.9-slim-trixie",    "1.95.0"));
        assert!(!has_rust("docker.io/library/rust:1.94-slim-trixie",   "1.95.0"));
        assert!(!has_rust("docker.io/library/rust",                    "1.95.0"));
        // Whatever is newest on that day.
        assert!(!has_rust("docker.io/library/rust:slim-trixie",        "1.95.0"));
    }
}
