//! A running RabbitMQ, of Debian's package, moved to a node by `leveret migrate`, and back.
//!
//! The package is installed if it is not there, as slapd's is. Its service plays no part: RabbitMQ runs as this user, with
//! its data in `target/clients/migrate`, an epmd of its own, and on ports that were free.
//!
//! Another one is that of Debian's next release, in a root directory of its own: that needs root.

use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use super::debian;
use super::tools::{Counts, SuitePlace, own_counts};
use crate::install;
use crate::node::{self, Node};

/// Where Debian's package has the scripts that run as whoever calls them; those in the path become its own user.
const SCRIPTS: &str = "/usr/lib/rabbitmq/bin";

/// Longest time RabbitMQ takes to start. Long, because machines that test are busy.
const START: Duration = Duration::from_secs(90);

/// The release of Debian that has RabbitMQ 4.3; debootstrap makes it as it makes sid.
const NEXT: &str = "forky";

/// Where RabbitMQ works below a root directory of its own.
const INSIDE: &str = "run/migrate";

/// A running RabbitMQ; killed when it is dropped.
struct RabbitMq {
    epmd: Child,
    broker: Child,
    amqp: u16,
    http: u16,
}

impl Drop for RabbitMq {
    fn drop(&mut self) {
        for child in [&mut self.broker, &mut self.epmd] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// There and back: see `tests/clients/python/migrate.py`.
pub(super) fn there_and_back(place: &SuitePlace) -> anyhow::Result<Counts> {
    if let Err(why) = install::program("rabbitmq-server", "rabbitmq-server") {
        println!("  skipped: RabbitMQ's package cannot be had: {why}");
        return Ok(Counts { skipped: 1, ..Counts::default() });
    }
    run(place, &RabbitMq::start(None, &place.dir.join("rabbitmq"))?)
}

/// The same with RabbitMQ 4.3, and with many messages.
pub(super) fn there_and_back_from_4(place: &SuitePlace) -> anyhow::Result<Counts> {
    let root = place.dir.join("debian");
    if let Err(why) = next_debian(place, &root) {
        println!("  skipped: a root with RabbitMQ 4.3 cannot be had: {why:#}");
        return Ok(Counts { skipped: 1, ..Counts::default() });
    }
    run(place, &RabbitMq::start(Some(&root), &root.join(INSIDE))?)
}

/// A root directory with Debian's next release and RabbitMQ in it, made once.
fn next_debian(place: &SuitePlace, root: &Path) -> anyhow::Result<()> {
    let done = place.dir.join("debian-is-made");
    if done.exists() {
        return Ok(());
    }
    install::program("debootstrap", "debootstrap")?;
    let mirrors = debian::mirrors(place)?;
    let mirror = mirrors.iter().find(|uri| uri.trim_end_matches('/').ends_with("/debian"));
    let mirror = mirror.context("apt knows no mirror of Debian")?;
    if root.exists() {
        fs::remove_dir_all(root)?;
    }
    let mut make = Command::new("debootstrap");
    make.args(["--variant=minbase", "--include=rabbitmq-server", NEXT]).arg(root);
    place.must("debootstrap", 10, make.args([mirror, "sid"]))?;
    fs::write(root.join("etc/hosts"), "127.0.0.1 localhost\n")?;
    fs::write(done, NEXT)?;
    Ok(())
}

fn run(place: &SuitePlace, rabbitmq: &RabbitMq) -> anyhow::Result<Counts> {
    let python = super::python::clients(place)?;
    let node = Node::start(&[])?;
    let mut check = Command::new(python);
    check.arg(place.source("python/migrate.py")).arg(node::program().get_program());
    check.arg(node.data_dir());
    check.args([rabbitmq.amqp, rabbitmq.http].map(|port| port.to_string()));
    check.args([node.address.port(), node.http.port()].map(|port| port.to_string()));
    let (output, _) = place.run("test", 10, &mut check)?;
    own_counts(&output)
}

/// A program of the system, or of a root directory. It becomes the process that was started.
fn program(root: Option<&Path>, path: &str) -> Command {
    let Some(root) = root else { return Command::new(path) };
    let mut command = Command::new("unshare");
    let script = r#"mount -t proc proc "$0/proc"; exec chroot "$0" "$@""#;
    command.args(["--mount", "sh", "-ec", script]).arg(root).arg(path);
    command
}

impl RabbitMq {
    /// With its files in `dir`, which is in `root` if there is one.
    fn start(root: Option<&Path>, dir: &Path) -> anyhow::Result<Self> {
        if dir.exists() {
            fs::remove_dir_all(dir)?;
        }
        fs::create_dir_all(dir.join("none"))?;
        let free = || anyhow::Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port());
        let [amqp, http, distribution, names] = [free()?, free()?, free()?, free()?];
        write_files(dir, amqp, http)?;
        let seen = if root.is_some() { Path::new("/").join(INSIDE) } else { dir.to_owned() };
        let mut epmd = program(root, "epmd");
        epmd.args(["-address", "127.0.0.1", "-port", &names.to_string()]);
        let epmd = epmd.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let epmd = epmd.spawn().context("epmd")?;
        let log = fs::File::create(dir.join("output"))?;
        let mut command = program(root, &format!("{SCRIPTS}/rabbitmq-server"));
        command.env("HOME", &seen).env("ERL_EPMD_PORT", names.to_string());
        command.env("RABBITMQ_NODENAME", format!("migrate-{amqp}@localhost"));
        command.env("RABBITMQ_DIST_PORT", distribution.to_string());
        for (name, file) in [
            ("MNESIA_BASE", "data"),
            ("LOG_BASE", "log"),
            ("CONFIG_FILE", "rabbitmq.conf"),
            ("CONFIG_FILES", "none"),
            ("ADVANCED_CONFIG_FILE", "advanced.config"),
            ("CONF_ENV_FILE", "none/env"),
            ("ENABLED_PLUGINS_FILE", "enabled_plugins"),
            ("PID_FILE", "pid"),
        ] {
            command.env(format!("RABBITMQ_{name}"), seen.join(file));
        }
        // The script becomes the broker, which ends when its input does.
        command.env("RABBITMQ_ALLOW_INPUT", "true").stdin(Stdio::piped());
        command.stdout(log.try_clone()?).stderr(log);
        let broker = command.spawn().context("rabbitmq-server")?;
        let mut rabbitmq = Self { epmd, broker, amqp, http };
        rabbitmq.await_ready(dir)?;
        Ok(rabbitmq)
    }

    fn await_ready(&mut self, dir: &Path) -> anyhow::Result<()> {
        let start = Instant::now();
        // The management API comes after everything else.
        while TcpStream::connect((Ipv4Addr::LOCALHOST, self.http)).is_err() {
            let shown = dir.display();
            ensure!(start.elapsed() < START, "RabbitMQ does not start; see {shown}/output");
            let ended = self.broker.try_wait()?;
            ensure!(ended.is_none(), "RabbitMQ has ended; see {shown}/output");
            std::thread::park_timeout(Duration::from_millis(50));
        }
        Ok(())
    }
}

/// What RabbitMQ reads.
fn write_files(dir: &Path, amqp: u16, http: u16) -> anyhow::Result<()> {
    let cookie = dir.join(".erlang.cookie");
    fs::write(&cookie, "MIGRATE")?;
    fs::set_permissions(cookie, fs::Permissions::from_mode(0o400))?;
    // The others have the types of exchanges that Leveret has, too.
    let plugins = "[rabbitmq_management,rabbitmq_consistent_hash_exchange,rabbitmq_random_exchange,\
                   rabbitmq_recent_history_exchange,rabbitmq_sharding].\n";
    fs::write(dir.join("enabled_plugins"), plugins)?;
    let settings = format!(
        "listeners.tcp.1 = 127.0.0.1:{amqp}\n\
         management.tcp.ip = 127.0.0.1\n\
         management.tcp.port = {http}\n\
         # What is counted is seen sooner.\n\
         collect_statistics_interval = 1000\n\
         disk_free_limit.absolute = 50MB\n"
    );
    fs::write(dir.join("rabbitmq.conf"), settings)?;
    Ok(())
}
