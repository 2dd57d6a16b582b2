//! Debian packages: a tree of files, packed by `dpkg-deb`, then looked at again.
//!
//! - `leveret`: program, service, configuration, manual pages, completions.
//! - `leveret-rabbitmq-tools`: links to it under the names of RabbitMQ's tools. By itself, so that both brokers
//!   fit on one machine.
//!
//! [`clean`]: their life in a clean system, and that of a container.

mod clean;

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail, ensure};

use crate::optimize;
use crate::root;
use crate::steps::{Count, succeed};
use crate::suite;

/// What the release build makes.
const PROGRAM: &str = "target/release/leveret";

/// RabbitMQ's tools, each a link to the program.
const TOOLS: [&str; 6] = [
    "rabbitmqctl",
    "rabbitmq-diagnostics",
    "rabbitmq-queues",
    "rabbitmq-plugins",
    "rabbitmq-streams",
    "rabbitmq-upgrade",
];

/// A file of a package: where, with which mode, and what is in it.
struct File {
    path: String,
    mode: u32,
    from: Origin,
}

/// What is in a file.
enum Origin {
    /// What the program is.
    Program,
    /// A file of the repository.
    Source(&'static str),
    /// What the program prints with these words.
    Printed(Vec<String>),
    /// The same, or the file of the repository, compressed.
    Compressed(Box<Origin>),
    /// A link to this.
    Link(&'static str),
}

struct Package {
    name: &'static str,
    /// Fields beside those that every package has; the description is last.
    fields: &'static str,
    files: Vec<File>,
    conffiles: &'static [&'static str],
    /// What dpkg runs, from `packaging/debian`.
    scripts: &'static [&'static str],
}

fn file(path: impl Into<String>, mode: u32, from: Origin) -> File {
    File { path: path.into(), mode, from }
}

fn printed(words: &[&str]) -> Origin {
    Origin::Printed(words.iter().map(ToString::to_string).collect())
}

/// Manual page and completions of a program.
fn help(name: &str, page: &[&str]) -> Vec<File> {
    let man = Origin::Compressed(Box::new(printed(page)));
    let completions = [
        ("bash", format!("usr/share/bash-completion/completions/{name}")),
        ("zsh", format!("usr/share/zsh/vendor-completions/_{name}")),
        ("fish", format!("usr/share/fish/vendor_completions.d/{name}.fish")),
    ];
    let mut files = vec![file(format!("usr/share/man/man1/{name}.1.gz"), 0o644, man)];
    for (shell, path) in completions {
        files.push(file(path, 0o644, printed(&["completion", shell, name])));
    }
    files
}

/// What policy wants of every package.
fn legal(name: &str) -> [File; 2] {
    let changes = Origin::Compressed(Box::new(Origin::Source("CHANGELOG.md")));
    [
        file(
            format!("usr/share/doc/{name}/copyright"),
            0o644,
            Origin::Source("packaging/debian/copyright"),
        ),
        file(format!("usr/share/doc/{name}/changelog.gz"), 0o644, changes),
    ]
}

fn packages() -> [Package; 2] {
    let unit = Origin::Source("packaging/leveret.service");
    let mut files = vec![
        file("usr/bin/leveret", 0o755, Origin::Program),
        file("usr/lib/systemd/system/leveret.service", 0o644, unit),
        // For the owner until postinst gives it to the broker's group: it may hold a password.
        file("etc/leveret/leveret.conf", 0o640, Origin::Source("packaging/leveret.conf")),
    ];
    files.extend(help("leveret", &["man"]));
    for part in ["serve", "ctl", "migrate", "perf"] {
        let man = Origin::Compressed(Box::new(printed(&["man", part])));
        files.push(file(format!("usr/share/man/man1/leveret-{part}.1.gz"), 0o644, man));
    }
    files.extend(legal("leveret"));
    let mut links = Vec::new();
    for tool in TOOLS {
        links.push(file(format!("usr/sbin/{tool}"), 0o777, Origin::Link("../bin/leveret")));
        links.extend(help(tool, &["man", tool]));
    }
    links.extend(legal("leveret-rabbitmq-tools"));
    [
        Package {
            name: "leveret",
            fields: "\
Description: message broker that speaks AMQP 0-9-1 with RabbitMQ's extensions
 Leveret is one program: the broker with its management API and page, a control
 tool that has the commands of rabbitmqctl, and a load tool.",
            files,
            conffiles: &["/etc/leveret/leveret.conf"],
            scripts: &["postinst", "prerm", "postrm"],
        },
        Package {
            name: "leveret-rabbitmq-tools",
            fields: "\
Conflicts: rabbitmq-server
Description: rabbitmqctl and its kin for the Leveret message broker
 Links named rabbitmqctl, rabbitmq-diagnostics, rabbitmq-queues,
 rabbitmq-plugins, rabbitmq-streams and rabbitmq-upgrade, so that scripts
 find them.",
            files: links,
            conffiles: &[],
            scripts: &[],
        },
    ]
}

/// Builds the program, optimised by a profile or not, then its packages, and says where they are.
pub(crate) fn of_release(is_optimized: bool) -> anyhow::Result<()> {
    let program = if is_optimized {
        optimize::build()?
    } else {
        suite::release_build()?;
        root().join(PROGRAM)
    };
    for made in build(&program)? {
        println!("{}", made.display());
    }
    Ok(())
}

/// The version of the packages.
fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// Builds the packages of a program; where they are.
fn build(program: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let dir = root().join("target/package");
    fs::create_dir_all(&dir)?;
    let (architecture, version) = (architecture()?, version());
    let mut built = Vec::new();
    for package in packages() {
        let stage = dir.join(package.name);
        if stage.exists() {
            fs::remove_dir_all(&stage)?;
        }
        let mut bytes = 0;
        let mut sums = String::new();
        for one in &package.files {
            let path = stage.join(&one.path);
            put(&path, one, program).with_context(|| one.path.clone())?;
            if !matches!(one.from, Origin::Link(_)) {
                bytes += fs::metadata(&path)?.len();
                let sum = output(Command::new("md5sum").arg(&one.path).current_dir(&stage))?;
                sums += &String::from_utf8(sum)?;
            }
        }
        let control = stage.join("DEBIAN");
        make_dir(&control)?;
        let depends = depends(&package, program, version)?;
        let fields = format!(
            "Package: {}\nVersion: {version}\nArchitecture: {architecture}\n\
             Maintainer: The Leveret project <maintainers@leveret.invalid>\nSection: net\n\
             Priority: optional\nInstalled-Size: {}\nDepends: {depends}\n{}\n",
            package.name,
            bytes.div_ceil(1024),
            package.fields
        );
        fs::write(control.join("control"), fields)?;
        fs::write(control.join("md5sums"), sums)?;
        if !package.conffiles.is_empty() {
            fs::write(control.join("conffiles"), package.conffiles.join("\n") + "\n")?;
        }
        for script in package.scripts {
            let source = root().join(format!("packaging/debian/{}.{script}", package.name));
            let target = control.join(script);
            fs::copy(source, &target)?;
            fs::set_permissions(&target, Permissions::from_mode(0o755))?;
        }
        let made = made(&package, &architecture);
        let mut pack = Command::new("dpkg-deb");
        pack.args(["--root-owner-group", "--build"]).arg(&stage).arg(&made);
        succeed(&mut pack)?;
        built.push(made);
    }
    Ok(built)
}

fn architecture() -> anyhow::Result<String> {
    let architecture = output(Command::new("dpkg").arg("--print-architecture"))?;
    Ok(String::from_utf8(architecture)?.trim().to_owned())
}

/// Where the file of a package is.
fn made(package: &Package, architecture: &str) -> PathBuf {
    let name = format!("{}_{}_{architecture}.deb", package.name, version());
    root().join("target/package").join(name)
}

/// The libraries that the program was linked with, as far as Debian has them in packages.
fn depends(package: &Package, program: &Path, version: &str) -> anyhow::Result<String> {
    if package.name != "leveret" {
        return Ok(format!("leveret (= {version})"));
    }
    let bytes = fs::read(program)?;
    let (major, minor) = glibc(&bytes).context("the program names no version of glibc")?;
    let unwinder = "libgcc_s.so.1".as_bytes();
    let unwinds = bytes.windows(unwinder.len()).any(|window| window == unwinder);
    let unwinder = if unwinds { ", libgcc-s1" } else { "" };
    Ok(format!("libc6 (>= {major}.{minor}){unwinder}, adduser, init-system-helpers (>= 1.54)"))
}

/// The newest version of glibc that a program needs, from the names of its symbols' versions.
fn glibc(program: &[u8]) -> Option<(u32, u32)> {
    let mark = b"GLIBC_";
    let found = program.windows(mark.len()).enumerate().filter(|(_, window)| window == mark);
    let versions = found.filter_map(|(at, _)| {
        let rest = &program[at + mark.len()..];
        let end = rest.iter().position(|byte| !byte.is_ascii_digit() && *byte != b'.')?;
        let (major, minor) = std::str::from_utf8(&rest[..end]).ok()?.split_once('.')?;
        let minor = minor.split('.').next()?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    });
    versions.max()
}

fn put(path: &Path, file: &File, program: &Path) -> anyhow::Result<()> {
    make_dir(path.parent().context("a file lies in a directory")?)?;
    match &file.from {
        Origin::Link(target) => return Ok(symlink(target, path)?),
        Origin::Program => {
            fs::copy(program, path)?;
            // What only a debugger reads is most of it.
            succeed(Command::new("strip").arg("--strip-debug").arg(path))?;
        }
        Origin::Compressed(what) => {
            let plain = path.with_extension("");
            fs::write(&plain, content(what, program)?)?;
            succeed(Command::new("gzip").args(["-9", "--no-name"]).arg(&plain))?;
        }
        other => fs::write(path, content(other, program)?)?,
    }
    Ok(fs::set_permissions(path, Permissions::from_mode(file.mode))?)
}

fn content(from: &Origin, program: &Path) -> anyhow::Result<Vec<u8>> {
    match from {
        Origin::Source(name) => Ok(fs::read(root().join(name))?),
        Origin::Printed(words) => output(Command::new(program).args(words)),
        Origin::Program | Origin::Compressed(_) | Origin::Link(_) => {
            bail!("it has no text of its own")
        }
    }
}

/// Directories are everybody's to read, whatever the one who builds has as a mask.
fn make_dir(path: &Path) -> anyhow::Result<()> {
    let stage = root().join("target/package");
    fs::create_dir_all(path)?;
    for dir in path.ancestors().take_while(|dir| **dir != stage) {
        fs::set_permissions(dir, Permissions::from_mode(0o755))?;
    }
    Ok(())
}

fn output(command: &mut Command) -> anyhow::Result<Vec<u8>> {
    let output = command.output().with_context(|| format!("running {command:?}"))?;
    ensure!(
        output.status.success(),
        "{command:?} ended with {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(output.stdout)
}

/// Builds the packages of the release build, and checks what is in them and that it works.
pub(crate) fn check() -> anyhow::Result<Count> {
    let built = build(&root().join(PROGRAM))?;
    let unpacked = root().join("target/package/unpacked");
    if unpacked.exists() {
        fs::remove_dir_all(&unpacked)?;
    }
    let mut count = Count::default();
    let mut judge = |what: &str, result: anyhow::Result<()>| {
        if let Err(error) = &result {
            println!("{what}: {error:#}");
        }
        count += Count::of(result.is_ok());
    };
    for (package, made) in packages().iter().zip(&built) {
        judge(package.name, contents_are_right(package, made));
        judge(package.name, scripts_are_sound(package));
        let mut unpack = Command::new("dpkg-deb");
        unpack.arg("--extract").arg(made).arg(&unpacked);
        succeed(&mut unpack)?;
    }
    judge("the service", unit_is_sound(&unpacked));
    judge("the program and its links", program_works(&unpacked));
    count += clean::check("a clean system", || clean::life(&built))?;
    Ok(count)
}

/// Builds the program as the first stage of the container's build does, with what that has: [`container`] builds what is left to build
/// then, so this may run beside other steps. Behind [`check`].
pub(crate) fn container_build() -> anyhow::Result<Count> {
    let built = last_built()?;
    clean::check("the container's first stage", || clean::build_container(&built))
}

/// The life of a container. Behind [`check`].
pub(crate) fn container() -> anyhow::Result<Count> {
    let built = last_built()?;
    clean::check("the container's stages", || clean::container(&built))
}

/// The packages that were built last.
fn last_built() -> anyhow::Result<Vec<PathBuf>> {
    let architecture = architecture()?;
    Ok(packages().iter().map(|package| made(package, &architecture)).collect())
}

/// Every file is there with its mode, owned by root, and nothing else is.
fn contents_are_right(package: &Package, made: &Path) -> anyhow::Result<()> {
    let listed = String::from_utf8(output(Command::new("dpkg-deb").arg("--contents").arg(made))?)?;
    let mut wanted: Vec<String> = package
        .files
        .iter()
        .map(|file| match file.from {
            Origin::Link(target) => format!("lrwxrwxrwx root/root {} -> {target}", file.path),
            _ => format!("-{} root/root {}", letters(file.mode), file.path),
        })
        .collect();
    let mut found = Vec::new();
    for line in listed.lines() {
        // mode owner size date time ./path
        let words: Vec<&str> = line.split_whitespace().collect();
        let [mode, owner, _, _, _, path @ ..] = &words[..] else { bail!("not understood: {line}") };
        if let Some(of_dir) = mode.strip_prefix('d') {
            ensure!(of_dir == "rwxr-xr-x" && *owner == "root/root", "{line}");
            continue;
        }
        found.push(format!("{mode} {owner} {}", path.join(" ").trim_start_matches("./")));
    }
    wanted.sort();
    found.sort();
    ensure!(found == wanted, "expected {wanted:#?}, got {found:#?}");
    Ok(())
}

fn letters(mode: u32) -> String {
    let bit = |shift: u32, letter: char| if mode >> shift & 1 == 1 { letter } else { '-' };
    (0..9).map(|at| bit(8 - at, ['r', 'w', 'x'][at as usize % 3])).collect()
}

fn scripts_are_sound(package: &Package) -> anyhow::Result<()> {
    for script in package.scripts {
        let path = root().join(format!("packaging/debian/{}.{script}", package.name));
        succeed(Command::new("sh").arg("-n").arg(&path))?;
        let text = fs::read_to_string(&path)?;
        ensure!(text.starts_with("#!/bin/sh\nset -e\n"), "{script} goes on after an error");
    }
    Ok(())
}

/// systemd understands the unit, where there is one to ask.
fn unit_is_sound(unpacked: &Path) -> anyhow::Result<()> {
    // What the unit calls of the system's.
    fs::create_dir_all(unpacked.join("bin"))?;
    fs::copy("/bin/kill", unpacked.join("bin/kill"))?;
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no", "--recursive-errors=no", "--root"]).arg(unpacked);
    verify.arg("leveret.service");
    match verify.output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            println!("systemd-analyze is not there: the service is not verified");
            Ok(())
        }
        Err(error) => Err(error.into()),
        Ok(told) => {
            ensure!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
            Ok(())
        }
    }
}

/// The unpacked program takes the configuration that comes with it, and is RabbitMQ's tools by their links.
fn program_works(unpacked: &Path) -> anyhow::Result<()> {
    let config = unpacked.join("etc/leveret/leveret.conf");
    let mut check = Command::new(unpacked.join("usr/bin/leveret"));
    // As whoever builds it, who may not write where a service does.
    let data_dir = unpacked.join("data");
    check.args(["serve", "--check", "--config"]).arg(config).arg("--data-dir").arg(data_dir);
    succeed(&mut check)?;
    for tool in TOOLS {
        let told = output(Command::new(unpacked.join("usr/sbin").join(tool)).arg("help"))?;
        let told = String::from_utf8(told)?;
        ensure!(told.contains(&format!("Usage: {tool} ")), "{tool} help: {told}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes() {
        assert_eq!(letters(0o755), "rwxr-xr-x");
        assert_eq!(letters(0o640), "rw-r-----");
    }

    /// The container is built by the compiler and on the release that everything else is, and has every tool.
    #[test]
    fn the_container_file_agrees() {
        let file = |path: &str| fs::read_to_string(root().join(path)).unwrap();
        let (container, toolchain) = (file("packaging/Containerfile"), file("rust-toolchain.toml"));
        let channel = toolchain.split('"').nth(1).unwrap();
        let (minor, _) = channel.rsplit_once('.').unwrap();
        assert!(container.contains(&format!("/rust:{minor}-slim-trixie AS build")), "{channel}");
        assert!(container.contains("/debian:trixie-slim\n"));
        assert!(container.contains(&format!("/{PROGRAM} /usr/bin/leveret\n")));
        assert!(container.contains(&format!("for tool in {}; do", TOOLS.join(" "))));
    }

    /// Its stages use only what is there: files of the repository, a locked package of it, what the first stage has made.
    #[test]
    fn the_container_file_names_what_is_there() {
        let file = |path: &str| fs::read_to_string(root().join(path)).unwrap();
        let container = file("packaging/Containerfile").replace("\\\n", " ");
        let ignored = file(".dockerignore");
        let mut stages = Vec::new();
        for line in container.lines().filter(|line| !line.starts_with('#')) {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                [] => {}
                ["FROM", _, "AS", name] => stages.push(name),
                ["COPY", from, path, _] if from.starts_with("--from=") => {
                    assert!(stages.contains(&&from["--from=".len()..]), "{line}");
                    assert_eq!(path, format!("/source/{PROGRAM}"));
                }
                ["COPY", path, _] => assert!(root().join(path).exists(), "{line}"),
                ["FROM" | "WORKDIR" | "RUN" | "USER" | "ENV" | "VOLUME" | "EXPOSE", ..]
                | ["STOPSIGNAL" | "HEALTHCHECK" | "CMD", ..] => {}
                _ => panic!("no instruction: {line}"),
            }
        }
        assert!(container.contains("cargo build --release --locked --package leveret\n"));
        // What the build reads is sent along.
        for needed in
            ["Cargo.lock", "Cargo.toml", "rust-toolchain.toml", ".cargo", "crates", "xtask"]
        {
            assert!(root().join(needed).exists(), "{needed}");
            assert!(ignored.lines().all(|line| line != needed), "{needed}");
        }
    }

    #[test]
    fn newest_glibc() {
        assert_eq!(glibc(b"..GLIBC_2.9\0GLIBC_2.34\0GLIBC_2.2.5\0GLIBC_PRIVATE\0"), Some((2, 34)));
        assert_eq!(glibc(b"nothing"), None);
    }
}
