//! A running RabbitMQ, of Debian's package, moved to a node by `leveret migrate`, and back.
//!
//! The package is installed if it is not there, as slapd's is. Its service plays no part: RabbitMQ runs as this user, with
//! its data in `target/clients/migrate`, an epmd of its own, and on ports that were free.

use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use super::tools::{Counts, Place, own_counts};
use crate::install;
use crate::node::{self, Node};

/// Where Debian's package has the scripts that run as whoever calls them; those in the path become its own user.
const SCRIPTS: &str = "/usr/lib/rabbitmq/bin";

/// Longest time RabbitMQ takes to start. Long, because machines that test are busy.
const START: Duration = Duration::from_secs(90);

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
pub(super) fn there_and_back(place: &Place) -> anyhow::Result<Counts> {
    if let Err(why) = install::program("rabbitmq-server", "rabbitmq-server") {
        println!("  skipped: RabbitMQ's package cannot be had: {why}");
        return Ok(Counts { skipped: 1, ..Counts::default() });
    }
    let rabbitmq = RabbitMq::start(&place.dir.join("rabbitmq"))?;
    let python = super::python::clients(place)?;
    let node = Node::start(&[])?;
    let mut check = Command::new(python);
    check.arg(place.source("python/migrate.py")).arg(node::program().get_program());
    check.arg(node.data_dir());
    check.args([rabbitmq.amqp, rabbitmq.http].map(|port| port.to_string()));
    check.args([node.address.port(), node.http.port()].map(|port| port.to_string()));
    let (output, _) = place.run("test", 5, &mut check)?;
    own_counts(&output)
}

impl RabbitMq {
    fn start(dir: &Path) -> anyhow::Result<Self> {
        if dir.exists() {
            fs::remove_dir_all(dir)?;
        }
        fs::create_dir_all(dir.join("none"))?;
        let free = || anyhow::Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port());
        let [amqp, http, distribution, names] = [free()?, free()?, free()?, free()?];
        write_files(dir, amqp, http)?;
        let mut epmd = Command::new("epmd");
        epmd.args(["-address", "127.0.0.1", "-port", &names.to_string()]);
        let epmd = epmd.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let epmd = epmd.spawn().context("epmd")?;
        let log = fs::File::create(dir.join("output"))?;
        let mut command = Command::new(Path::new(SCRIPTS).join("rabbitmq-server"));
        command.env("HOME", dir).env("ERL_EPMD_PORT", names.to_string());
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
            command.env(format!("RABBITMQ_{name}"), dir.join(file));
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
    fs::write(dir.join("enabled_plugins"), "[rabbitmq_management].\n")?;
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
