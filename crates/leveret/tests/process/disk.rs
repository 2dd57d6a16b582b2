//! Disks that take no more: full ones, which may have room again, and ones that fail.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use leveret_client::amqp::content::Properties;
use leveret_client::amqp::method::Method;
use leveret_client::amqp::table::Table;
use leveret_client::{Connection, Consume, Error, Event, ExchangeDeclare, QueueDeclare};

use crate::auth::request;
use crate::broker::{Broker, PATIENCE, by_shell, wait_until};
use crate::metrics::fetch;
use crate::shim::Shim;

/// Exit code of a node that ended with an error.
const FAILED: i32 = 70;
/// Of the small disk, in MiB.
const SIZE: u64 = 24;
const IN_FLIGHT: u64 = 50;
/// `guest:guest`.
const GUEST: &str = "Basic Z3Vlc3Q6Z3Vlc3Q=";

/// A file system of its own, seen by those who enter its namespace.
struct SmallDisk {
    holder: Child,
    dir: tempfile::TempDir,
}

impl SmallDisk {
    /// `None` where the system does not let its users mount.
    fn mount() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().display();
        let script =
            format!("mount -t tmpfs -o size={SIZE}m leveret {path} && echo mounted && cat");
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", &script]);
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut holder = spawned.ok()?;
        let mut line = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let disk = Self { holder, dir };
        (line == "mounted\n").then_some(disk)
    }

    /// A node whose data directory is on it, and whose publishers nothing stops.
    fn broker(&self) -> Broker {
        self.broker_with_limit("0")
    }

    fn broker_with_limit(&self, limit: &str) -> Broker {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.holder.id().to_string(), "--user", "--mount"]);
        command.args(["--preserve-credentials", env!("CARGO_BIN_EXE_leveret")]);
        command.args(["serve", "--listen", "127.0.0.1:0", "--set"]);
        command.arg(format!("disk_free_limit.absolute={limit}"));
        command.arg("--data-dir").arg(self.dir.path().join("data"));
        // The directory that goes with the broker is another one.
        Broker::spawn_as_is(command, tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.holder.id()));
        root.join(self.dir.path().strip_prefix("/").unwrap()).join(name)
    }

    /// Takes all that is left for a file that is somebody else's, to the last byte.
    fn fill(&self) -> PathBuf {
        let path = self.path("filler");
        let mut filler = std::fs::File::create(&path).unwrap();
        for len in [64 << 10, 512] {
            while filler.write_all(&vec![0; len]).is_ok() {}
        }
        path
    }

    /// Takes half of it for a file that is somebody else's.
    fn fill_half(&self) -> PathBuf {
        let filler = self.path("filler");
        std::fs::write(&filler, vec![0; (SIZE << 19) as usize]).unwrap();
        filler
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// What a publisher was told. A message's number is its delivery tag, whose confirms it counts.
#[derive(Default)]
struct Told {
    acked: BTreeSet<u64>,
    nacked: BTreeSet<u64>,
    sent: u64,
    /// The number of the first message of this channel, less one.
    before: u64,
}

fn declare(client: &mut Connection, channel: u16) -> u32 {
    let durable = QueueDeclare { durable: true, ..QueueDeclare::default() };
    client.queue_declare(channel, "q", &durable).unwrap().message_count
}

impl Told {
    /// Publishes bodies of 8 KiB until `enough`. An error means that the broker is gone.
    fn publish(
        &mut self,
        client: &mut Connection,
        channel: u16,
        mut enough: impl FnMut(&Self) -> bool,
    ) -> Result<(), Error> {
        let persistent = Properties { delivery_mode: Some(2), ..Properties::default() }.to_bytes();
        let deadline = Instant::now() + PATIENCE;
        while !enough(self) {
            assert!(Instant::now() < deadline, "{} sent, {} acked", self.sent, self.acked.len());
            let answered = (self.acked.len() + self.nacked.len()) as u64;
            if self.sent < answered + IN_FLIGHT {
                self.sent += 1;
                client.publish(channel, "", "q", &persistent, &body(self.sent));
                client.flush()?;
            }
            client.wait(Duration::from_micros(100))?;
            self.read(client)?;
        }
        Ok(())
    }

    fn read(&mut self, client: &mut Connection) -> Result<(), Error> {
        while let Some(event) = client.next_event()? {
            let Event::Method { method, .. } = event else { panic!("{event:?}") };
            let (tag, multiple, is_ack) = match method {
                Method::BasicAck(ack) => (ack.delivery_tag, ack.multiple, true),
                Method::BasicNack(nack) => (nack.delivery_tag, nack.multiple, false),
                _ => continue,
            };
            let last = self.before + tag;
            let first = if multiple { self.before + 1 } else { last };
            for number in first..=last {
                let is_new = !self.acked.contains(&number) && !self.nacked.contains(&number);
                assert!(is_new || multiple, "{number} is answered twice");
                if is_new {
                    let _ =
                        if is_ack { self.acked.insert(number) } else { self.nacked.insert(number) };
                }
            }
        }
        Ok(())
    }

    /// All that was confirmed is in the queue of a broker.
    fn check(&self, broker: &Broker) {
        let (mut client, channel) = broker.channel();
        let count = declare(&mut client, channel) as usize;
        client.consume(channel, "q", &Consume::default()).unwrap();
        let mut found = BTreeSet::new();
        while found.len() < count {
            while let Some(event) = client.next_event().unwrap() {
                let Event::Content { body: came, .. } = event else { panic!("{event:?}") };
                let number = u64::from_be_bytes(came[..8].try_into().unwrap());
                assert_eq!(came, body(number));
                assert!(found.insert(number), "{number} came twice");
            }
            let missing = count - found.len();
            assert!(missing == 0 || client.wait(PATIENCE).unwrap(), "{missing} do not come");
        }
        let lost: Vec<_> = self.acked.difference(&found).collect();
        assert!(lost.is_empty(), "lost: {lost:?}");
        assert!(found.iter().all(|&number| number <= self.sent));
    }
}

fn body(number: u64) -> Vec<u8> {
    number.to_be_bytes().repeat(1024)
}

#[test]
fn a_full_disk_is_told_and_has_room_again() {
    let Some(disk) = SmallDisk::mount() else {
        eprintln!("skipped: this system lets nobody mount");
        return;
    };
    let broker = disk.broker();
    let filler = disk.fill_half();
    let (mut client, channel) = broker.channel();
    declare(&mut client, channel);
    client.confirm_select(channel).unwrap();
    let mut told = Told::default();
    told.publish(&mut client, channel, |told| told.nacked.len() > 100).unwrap();
    assert!(told.acked.len() > 100, "there was room for some: {}", told.acked.len());
    // Somebody is to be told.
    broker.log.wait_for("ERROR");
    std::fs::remove_file(&filler).unwrap();
    let before = told.acked.len();
    told.publish(&mut client, channel, |told| told.acked.len() > before + 100).unwrap();
    drop(client);
    drop(broker);
    told.check(&disk.broker());
}

#[test]
fn a_disk_that_was_full_at_the_kill_has_what_was_confirmed() {
    let Some(disk) = SmallDisk::mount() else {
        eprintln!("skipped: this system lets nobody mount");
        return;
    };
    let broker = disk.broker();
    let (mut client, channel) = broker.channel();
    declare(&mut client, channel);
    client.confirm_select(channel).unwrap();
    let mut told = Told::default();
    told.publish(&mut client, channel, |told| told.nacked.len() > 10).unwrap();
    drop((client, broker));
    // It starts without room, too, and gives out what it has.
    told.check(&disk.broker());
}

/// A commit and a declaration are answered, and what was refused does not come later.
#[test]
fn what_a_full_disk_refuses_is_not_there() {
    let Some(disk) = SmallDisk::mount() else {
        eprintln!("skipped: this system lets nobody mount");
        return;
    };
    let broker = disk.broker();
    let filler = disk.fill_half();
    let (mut client, channel) = broker.channel();
    declare(&mut client, channel);
    let durable = QueueDeclare { durable: true, ..QueueDeclare::default() };
    client.queue_declare(channel, "other", &durable).unwrap();
    client.confirm_select(channel).unwrap();
    let mut told = Told::default();
    told.publish(&mut client, channel, |told| told.nacked.len() > 10).unwrap();
    let persistent = Properties { delivery_mode: Some(2), ..Properties::default() }.to_bytes();
    let (mut commits, of_commits) = broker.channel();
    commits.tx_select(of_commits).unwrap();
    commits.publish(of_commits, "", "other", &persistent, &body(1));
    let refused = commits.tx_commit(of_commits).unwrap_err().to_string();
    assert!(refused.contains("506"), "{refused}");
    let (mut declares, of_declares) = broker.channel();
    let refused = declares.queue_declare(of_declares, "new", &durable).unwrap_err().to_string();
    assert!(refused.contains("506") && refused.contains("is full"), "{refused}");
    // What is there is found, and what goes gives room.
    let (mut declares, of_declares) = broker.channel();
    assert_eq!(declares.queue_declare(of_declares, "other", &durable).unwrap().message_count, 0);
    declares.queue_delete(of_declares, "other").unwrap();
    drop((client, broker));
    std::fs::remove_file(&filler).unwrap();
    let broker = disk.broker();
    let passive = QueueDeclare { passive: true, ..QueueDeclare::default() };
    for name in ["new", "other"] {
        let (mut client, channel) = broker.channel();
        client.queue_declare(channel, name, &passive).unwrap_err();
    }
    told.check(&broker);
}

/// Others took it to the last byte: no change of names is made that cannot be written, deletions too, and a node that was
/// killed starts all the same and gives out what it has.
#[test]
fn names_on_a_disk_without_a_byte() {
    let Some(disk) = SmallDisk::mount() else {
        eprintln!("skipped: this system lets nobody mount");
        return;
    };
    let broker = disk.broker_with_limit("1KB");
    let (mut client, channel) = broker.channel();
    declare(&mut client, channel);
    let durable = QueueDeclare { durable: true, ..QueueDeclare::default() };
    let exchange = ExchangeDeclare { durable: true, ..ExchangeDeclare::default() };
    client.queue_declare(channel, "other", &durable).unwrap();
    client.exchange_declare(channel, "x", "topic", &exchange).unwrap();
    client.queue_bind(channel, "other", "x", "k", &Table::new()).unwrap();
    client.confirm_select(channel).unwrap();
    let mut told = Told::default();
    told.publish(&mut client, channel, |told| told.acked.len() >= 20).unwrap();
    let put = |broker: &Broker, (path, body): (&str, &str)| {
        request(broker, "PUT", &format!("/api/{path}"), GUEST, body).0
    };
    const POLICY: (&str, &str) =
        ("policies/%2F/p", r#"{"pattern":"q","definition":{"max-length":1}}"#);
    let there = [
        ("vhosts/v", ""),
        ("users/u", r#"{"password":"u","tags":""}"#),
        ("policies/%2F/there", r#"{"pattern":"zz","definition":{"max-length":1}}"#),
    ];
    assert_eq!(there.map(|it| put(&broker, it)), [201; 3]);
    let definitions = |broker: &Broker| request(broker, "GET", "/api/definitions", GUEST, "").1;
    let before = definitions(&broker);
    let filler = disk.fill();
    broker.log.wait_for("disk resource limit alarm set on node");
    // The alarm came when the disk was not yet full, and a record may fit into what its file's last page has left.
    wait_until(PATIENCE, "the broker knows that the disk is full", || {
        let page = fetch(broker.listens("metrics"), "/metrics").1;
        page.contains("\nrabbitmq_disk_space_available_bytes 0\n")
    });
    let puts = [
        POLICY,
        ("operator-policies/%2F/op", r#"{"pattern":"q","definition":{"message-ttl":0}}"#),
        ("vhost-limits/%2F/max-queues", r#"{"value":1}"#),
        ("user-limits/guest/max-channels", r#"{"value":1}"#),
        ("permissions/%2F/u", r#"{"configure":"","write":"","read":""}"#),
        ("users/u", r#"{"password":"other","tags":"administrator"}"#),
        ("global-parameters/g", r#"{"value":1}"#),
    ];
    for it in puts {
        assert_eq!(put(&broker, it), 503, "{it:?}");
    }
    for path in ["queues/%2F/other", "exchanges/%2F/x", "policies/%2F/there", "users/u", "vhosts/v"]
    {
        let (status, body) = request(&broker, "DELETE", &format!("/api/{path}"), GUEST, "");
        assert!(status == 503 && body.contains("is full"), "{path}: {status} {body}");
    }
    let (mut deletes, on) = broker.channel();
    let refused = deletes.queue_delete(on, "other").unwrap_err().to_string();
    assert!(refused.contains("506") && refused.contains("is full"), "{refused}");
    assert_eq!(definitions(&broker), before);
    drop((client, deletes, broker));
    let broker = disk.broker_with_limit("1KB");
    broker.log.wait_for("written when there is room");
    broker.log.wait_for("disk resource limit alarm set on node");
    assert_eq!(definitions(&broker), before);
    told.check(&broker);
    std::fs::remove_file(&filler).unwrap();
    // As soon as that is known.
    let deadline = Instant::now() + PATIENCE;
    while put(&broker, POLICY) != 201 {
        assert!(Instant::now() < deadline, "there is room");
    }
    let (mut client, channel) = broker.channel();
    client.queue_delete(channel, "other").unwrap();
    let then = definitions(&broker);
    drop((client, broker));
    assert_eq!(definitions(&disk.broker_with_limit("1KB")), then);
}

/// The disk fills within a second, and the alarm comes before it is full.
#[test]
fn the_alarm_comes_in_time() {
    let Some(disk) = SmallDisk::mount() else {
        eprintln!("skipped: this system lets nobody mount");
        return;
    };
    let broker = disk.broker_with_limit("8MB");
    let (mut client, channel) = broker.channel();
    declare(&mut client, channel);
    let persistent = Properties { delivery_mode: Some(2), ..Properties::default() }.to_bytes();
    // Once it is blocked nothing more is taken, and it waits until the broker ends.
    let publisher = std::thread::spawn(move || {
        for number in 0..(64 << 20) / 8192 {
            client.publish(channel, "", "q", &persistent, &body(number));
            if client.flush().is_err() {
                return;
            }
        }
    });
    broker.log.wait_for("disk resource limit alarm set on node");
    let stat = rustix::fs::statvfs(disk.path("data")).unwrap();
    let free = stat.f_bavail * stat.f_frsize;
    assert!(free > 1 << 20, "{free} bytes are free");
    drop(broker);
    publisher.join().unwrap();
}

/// A limit on the size of files: a write that fails for another reason than a full disk.
#[test]
fn a_failed_write_ends_the_process_and_loses_nothing() {
    let script = "trap '' XFSZ; ulimit -f 4096; exec \"$0\" serve --listen 127.0.0.1:0 \"$@\"";
    let mut broker = Broker::spawn(by_shell(script), tempfile::tempdir().unwrap());
    let (mut client, channel) = broker.channel();
    declare(&mut client, channel);
    client.confirm_select(channel).unwrap();
    let mut told = Told::default();
    let gone = told.publish(&mut client, channel, |_| false);
    assert!(gone.is_err());
    assert_eq!(broker.ended(PATIENCE).code(), Some(FAILED));
    assert!(told.acked.len() > 50, "{}", told.acked.len());
    let line = broker.log.wait_for("could not be written");
    assert!(line.contains("ERROR") && line.contains("Look at the disk"), "{line}");
    told.check(&broker.down().start_again());
}

/// One error of a write or a sync, of a disk or of a file system that the system made read-only, is the end of trust:
/// nothing is confirmed after it, though all later calls would succeed. Of the list of files, too.
#[test]
fn a_disk_that_fails_once() {
    for fault in ["fdatasync=5", "pwrite64=5", "pwrite64=30", "list=5"] {
        let shim = Shim::new();
        let mut broker = shim.broker(tempfile::tempdir().unwrap());
        let (mut client, channel) = broker.channel();
        declare(&mut client, channel);
        client.confirm_select(channel).unwrap();
        let mut told = Told::default();
        told.publish(&mut client, channel, |told| told.acked.len() > 100).unwrap();
        shim.set(fault);
        let log = broker.log.clone();
        let gone = told.publish(&mut client, channel, |_| {
            if !log.with("could not be written").is_empty() {
                shim.set("");
            }
            false
        });
        assert!(gone.is_err());
        assert_eq!(broker.ended(PATIENCE).code(), Some(FAILED), "{fault}");
        told.check(&broker.down().start_again());
    }
}

/// What the disk cannot read is set aside and named; the queue goes on, and a start asks again.
#[test]
fn a_disk_that_cannot_read() {
    let broker = Broker::start();
    let (mut client, channel) = broker.channel();
    declare(&mut client, channel);
    client.confirm_select(channel).unwrap();
    let mut told = Told::default();
    told.publish(&mut client, channel, |told| told.acked.len() > 100).unwrap();
    drop(client);
    // From here on no message is in memory.
    let shim = Shim::new();
    let broker = shim.broker(broker.stop().dir);
    let (mut client, channel) = broker.channel();
    shim.set("pread64=5");
    assert!(client.get(channel, "q", true).unwrap().is_none());
    let line = broker.log.wait_for("cannot be read");
    assert!(line.contains("ERROR") && line.contains("'q'") && line.contains(".seg"), "{line}");
    shim.set("");
    client.publish(channel, "", "q", &[0, 0], b"another");
    assert_eq!(client.get(channel, "q", true).unwrap().unwrap().body, b"another");
    drop(client);
    told.check(&broker.stop().start_again());
}

/// A start that takes long tells how far it is.
#[test]
fn a_slow_start_shows_its_progress() {
    let broker = Broker::with(&["shards=1"]);
    let (mut client, channel) = broker.channel();
    declare(&mut client, channel);
    client.confirm_select(channel).unwrap();
    let mut told = Told::default();
    told.publish(&mut client, channel, |told| told.acked.len() > 100).unwrap();
    drop(client);
    let shim = Shim::new();
    shim.set("read_ms=400");
    let broker = shim.broker(broker.kill().dir);
    shim.set("");
    let lines = broker.log.with("reading the log");
    let shown = lines.iter().any(|line| {
        line.contains("shards/0") && line.contains("percent=") && line.contains("megabytes=")
    });
    assert!(shown, "{lines:?}");
    told.check(&broker.stop().start_again());
}

/// Who waits for a slow disk waits, and nobody else.
#[test]
fn a_slow_disk_delays_those_who_wait_for_it() {
    let shim = Shim::new();
    let broker = shim.broker(tempfile::tempdir().unwrap());
    let (mut client, channel) = broker.channel();
    declare(&mut client, channel);
    client.confirm_select(channel).unwrap();
    let (mut other, theirs) = broker.channel();
    crate::broker::declare(&mut other, theirs, "transient");
    shim.set("sync_ms=3000");
    let mut told = Told::default();
    let mut rounds = 0;
    let began = Instant::now();
    told.publish(&mut client, channel, |told| {
        if told.sent > 0 && told.acked.is_empty() {
            other.publish(theirs, "", "transient", &[0, 0], b"x");
            assert!(other.get(theirs, "transient", true).unwrap().is_some());
            rounds += 1;
        }
        !told.acked.is_empty()
    })
    .unwrap();
    assert!(began.elapsed() > Duration::from_millis(2900), "the disk was slow");
    assert!(rounds > 20, "{rounds} messages while one waited for the disk");
    drop(client);
    told.check(&broker.kill().start_again());
}
