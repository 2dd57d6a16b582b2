//! The packages in a clean system: installed, the service's program started, upgraded, removed, purged.
//!
//! The system is Debian's smallest, of this machine's release, made by debootstrap in `target/package/base` and copied
//! for each run. systemd does not run in it: what the unit says is done by hand, with the service's user and a socket for
//! its notifications, in a network of its own. Needs root.
//!
//! [`mod@container`]: the same for the stages of the container's build.

mod container;

pub(super) use container::{build as build_container, life as container};

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use serde_json::{Value, json};

use super::{output, version};
use crate::steps::{Count, succeed};
use crate::{install, root};

/// How long a start may take. Long, because machines that test are busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// The last version field is made larger by this for the upgrade.
const NEXT: &str = "+next";

/// Does it, unless it cannot be done here.
pub(super) fn check(what: &str, run: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<Count> {
    if let Some(why) = reason_to_skip()? {
        println!("{what}: skipped, {why}");
        return Ok(Count::default());
    }
    let passed = run();
    if let Err(error) = &passed {
        println!("{what}: {error:#}");
    }
    Ok(Count::of(passed.is_ok()))
}

fn reason_to_skip() -> anyhow::Result<Option<&'static str>> {
    if String::from_utf8(output(Command::new("id").arg("-u"))?)?.trim() != "0" {
        return Ok(Some("only root can make one"));
    }
    let separate = Command::new("unshare").args(["--mount", "--net", "true"]).output()?;
    Ok((!separate.status.success()).then_some("this machine lets nobody have mounts of their own"))
}

/// What an operator does with the packages, one thing after the other.
pub(super) fn life(built: &[PathBuf]) -> anyhow::Result<()> {
    let system = System::make("system", built)?;
    system.install(built).context("installing")?;
    system.is_installed()?;
    let service = system.start().context("starting")?;
    system.fill()?;
    ensure!(system.tool("rabbitmqctl -q list_queues")? == "name\tmessages\nkept\t2\n");
    ensure!(system.tool("rabbitmq-diagnostics -q check_running").is_ok());
    service.stop()?;

    let conffile = system.path("etc/leveret/leveret.conf");
    let changed = fs::read_to_string(&conffile)? + "## Of the operator.\nheartbeat = 77\n";
    fs::write(&conffile, &changed)?;
    system.install(&next(built)?).context("upgrading")?;
    ensure!(system.version_of("leveret")? == format!("{}{NEXT}", version()), "it is not upgraded");
    ensure!(fs::read_to_string(&conffile)? == changed, "the operator's changes are gone");
    system.is_installed()?;
    let service = system.start().context("starting after the upgrade")?;
    ensure!(system.tool("rabbitmqctl -q list_queues")? == "name\tmessages\nkept\t2\n");
    ensure!(system.tool("rabbitmqctl -q environment")?.contains("heartbeat = 77"));
    service.stop()?;

    system.run("dpkg --remove leveret-rabbitmq-tools leveret").context("removing")?;
    ensure!(!system.path("usr/bin/leveret").exists(), "the program stays");
    ensure!(fs::symlink_metadata(system.path("usr/sbin/rabbitmqctl")).is_err(), "a link stays");
    ensure!(system.path("var/lib/leveret/names").exists(), "the data is gone");
    ensure!(conffile.exists(), "the configuration is gone");
    system.run("dpkg --purge leveret-rabbitmq-tools leveret").context("purging")?;
    for gone in ["etc/leveret", "var/lib/leveret", "var/log/leveret", WANTED] {
        ensure!(fs::symlink_metadata(system.path(gone)).is_err(), "{gone} stays");
    }
    ensure!(system.run("getent passwd leveret").is_ok(), "the user is gone");
    Ok(())
}

/// What says that the service starts with the machine.
const WANTED: &str = "etc/systemd/system/multi-user.target.wants/leveret.service";

/// A root directory with Debian in it.
struct System(PathBuf);

impl System {
    /// A fresh copy of the base, with what the packages depend on.
    fn make(name: &str, built: &[PathBuf]) -> anyhow::Result<Self> {
        let dir = root().join("target/package");
        let base = dir.join("base");
        let depends = depends(built)?;
        let made_for = dir.join("base-has");
        if fs::read_to_string(&made_for).ok().as_deref() != Some(&*depends) {
            debootstrap(&base, &depends)?;
            fs::write(made_for, &depends)?;
        }
        let system = dir.join(name);
        if system.exists() {
            fs::remove_dir_all(&system)?;
        }
        succeed(Command::new("cp").args(["--archive", "--reflink=auto"]).arg(base).arg(&system))?;
        Ok(Self(system))
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }

    /// A program within, as root or as `user`; of its own are its mounts and its network.
    fn command(&self, user: &str, words: &[&str]) -> Command {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--net", "sh", "-ec"]);
        command.arg(
            r#"root=$0 user=$1; shift
            mount -t proc proc "$root/proc"
            exec chroot --userspec="$user" "$root" "$@""#,
        );
        command.args([&self.0.display().to_string(), user]);
        command.args(words);
        command.env_clear();
        command.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        command.env("LC_ALL", "C.UTF-8").env("DEBIAN_FRONTEND", "noninteractive");
        command.stdin(Stdio::null());
        command
    }

    /// Runs it to its end: what it prints.
    fn run(&self, words: &str) -> anyhow::Result<String> {
        let words: Vec<&str> = words.split(' ').collect();
        Ok(String::from_utf8(output(&mut self.command("root", &words))?)?)
    }

    /// One of RabbitMQ's tools, as root, who needs no password.
    fn tool(&self, words: &str) -> anyhow::Result<String> {
        self.run(words)
    }

    fn install(&self, packages: &[PathBuf]) -> anyhow::Result<()> {
        let mut words = vec!["dpkg".to_owned(), "--install".to_owned()];
        for package in packages {
            let name = package.file_name().context("a package is a file")?;
            let inside = Path::new("tmp").join(name);
            fs::copy(package, self.0.join(&inside))?;
            words.push(format!("/{}", inside.display()));
        }
        self.run(&words.join(" ")).map(drop)
    }

    fn version_of(&self, package: &str) -> anyhow::Result<String> {
        self.run(&format!("dpkg-query --show --showformat=${{Version}} {package}"))
    }

    /// The service's user, its files with their owners, and that it starts with the machine.
    fn is_installed(&self) -> anyhow::Result<()> {
        let user = self.run("getent passwd leveret")?;
        let fields: Vec<&str> = user.trim().split(':').collect();
        ensure!(fields[5..] == ["/var/lib/leveret", "/usr/sbin/nologin"], "{user}");
        let (uid, gid): (u32, u32) = (fields[2].parse()?, fields[3].parse()?);
        for (path, mode, owner) in [
            ("etc/leveret", 0o750, 0),
            ("etc/leveret/leveret.conf", 0o640, 0),
            ("var/lib/leveret", 0o750, uid),
            ("var/log/leveret", 0o750, uid),
        ] {
            let data = fs::metadata(self.path(path)).context(path)?;
            let is = (data.permissions().mode() & 0o7777, data.uid(), data.gid());
            ensure!(is == (mode, owner, gid), "{path}: {is:?}");
        }
        ensure!(fs::symlink_metadata(self.path(WANTED)).is_ok(), "it is not enabled");
        Ok(())
    }

    /// Starts what the unit starts, and waits until it says that it is ready.
    fn start(&self) -> anyhow::Result<Service> {
        let unit = fs::read_to_string(self.path("usr/lib/systemd/system/leveret.service"))?;
        let of_unit = |key: &str| {
            let found = unit.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            found.with_context(|| format!("the unit has no {key}"))
        };
        let user = format!("{}:{}", of_unit("User")?, of_unit("Group")?);
        let words: Vec<&str> = of_unit("ExecStart")?.split(' ').collect();
        self.serve(self.command(&user, &words))
    }

    /// Starts a node, and waits until it says that it is ready.
    fn serve(&self, mut command: Command) -> anyhow::Result<Service> {
        let socket = self.path("run/notify");
        let _ = fs::remove_file(&socket);
        let notified = UnixDatagram::bind(&socket)?;
        fs::set_permissions(&socket, fs::Permissions::from_mode(0o777))?;
        notified.set_read_timeout(Some(PATIENCE))?;
        let log = fs::File::create(self.path("run/output"))?;
        command.env("NOTIFY_SOCKET", "/run/notify").stdout(log.try_clone()?).stderr(log);
        let service = Service(command.spawn()?);
        let mut told = [0; 1024];
        loop {
            let len = notified.recv(&mut told).with_context(|| {
                let log = fs::read_to_string(self.path("run/output")).unwrap_or_default();
                format!("it does not say that it is ready: {log}")
            })?;
            if String::from_utf8_lossy(&told[..len]).lines().any(|line| line == "READY=1") {
                return Ok(service);
            }
        }
    }

    /// A durable queue with two messages that outlive the node.
    fn fill(&self) -> anyhow::Result<()> {
        let queue = json!({"durable": true, "arguments": {}});
        self.ask("PUT", "/api/queues/%2F/kept", &queue)?;
        let message = json!({
            "properties": {"delivery_mode": 2}, "routing_key": "kept", "payload": "x",
            "payload_encoding": "string",
        });
        for _ in 0..2 {
            self.ask("POST", "/api/exchanges/%2F/amq.default/publish", &message)?;
        }
        Ok(())
    }

    /// Asks the management API, on the node's control socket.
    fn ask(&self, method: &str, path: &str, body: &Value) -> anyhow::Result<()> {
        let body = body.to_string();
        let mut socket = UnixStream::connect(self.path("var/lib/leveret/leveret.sock"))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        write!(
            socket,
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        )?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer)?;
        ensure!(answer.starts_with("HTTP/1.1 20"), "{method} {path}: {answer}");
        Ok(())
    }
}

/// The program of the service, at work. Killed when dropped.
struct Service(Child);

impl Service {
    /// As systemd does it.
    fn stop(mut self) -> anyhow::Result<()> {
        succeed(Command::new("kill").arg(self.0.id().to_string()))?;
        let status = self.0.wait()?;
        ensure!(status.success(), "it ended with {status}");
        Ok(())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the packages depend on beside each other, by name.
fn depends(built: &[PathBuf]) -> anyhow::Result<String> {
    let mut names = Vec::new();
    for package in built {
        let field = output(Command::new("dpkg-deb").arg("--field").arg(package).arg("Depends"))?;
        let field = String::from_utf8(field)?;
        let of_package = field.split(',').filter_map(|it| it.split_whitespace().next());
        names.extend(of_package.filter(|it| *it != "leveret").map(str::to_owned));
    }
    Ok(names.join(","))
}

/// The smallest Debian of this machine's release, from where this machine gets its packages.
fn debootstrap(base: &Path, depends: &str) -> anyhow::Result<()> {
    install::program("debootstrap", "debootstrap")?;
    let release = fs::read_to_string("/etc/os-release")?;
    let release = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let release = release.context("/etc/os-release names no release of Debian")?;
    let mut targets = Command::new("apt-get");
    targets.args(["indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]);
    targets.arg(format!("Release: {release}"));
    let targets = String::from_utf8(output(&mut targets)?)?;
    let Some(mirror) = targets.lines().find(|uri| uri.contains("debian")) else {
        bail!("apt knows nowhere to get Debian's {release} from");
    };
    if base.exists() {
        fs::remove_dir_all(base)?;
    }
    println!("a clean system: debootstrap makes {}, which takes about a minute", base.display());
    let mut make = Command::new("debootstrap");
    make.args(["--variant=minbase", &format!("--include={depends}"), release])
        .arg(base)
        .arg(mirror);
    // Hundreds of lines that nobody reads, unless it fails.
    output(&mut make).map(drop)
}

/// The same packages, of a later version.
fn next(built: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut later = Vec::new();
    for package in built {
        let dir = package.with_extension("next");
        if dir.exists() {
            fs::remove_dir_all(&dir)?;
        }
        succeed(Command::new("dpkg-deb").arg("--raw-extract").arg(package).arg(&dir))?;
        let control = dir.join("DEBIAN/control");
        let (old, text) = (version(), fs::read_to_string(&control)?);
        let text = text
            .replace(&format!("Version: {old}\n"), &format!("Version: {old}{NEXT}\n"))
            .replace(&format!("(= {old})"), &format!("(= {old}{NEXT})"));
        fs::write(&control, text)?;
        let made = package.with_extension("next.deb");
        let mut pack = Command::new("dpkg-deb");
        pack.args(["--root-owner-group", "-Znone", "--build"]).arg(&dir).arg(&made);
        output(&mut pack)?;
        fs::remove_dir_all(&dir)?;
        later.push(made);
    }
    Ok(later)
}
