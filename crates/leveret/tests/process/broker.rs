//! A node under test, and how to wait for things.

use std::io::{BufRead as _, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use leveret_client::amqp::method::Method;
use leveret_client::{CloseReason, Connection, Error, Event, Options, QueueDeclare, Uri};
use rustix::process::{Pid, Signal};

/// How long anything may take that is due at once. Long, because machines that test are busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Set the ports of the management API and of the metrics.
const MANAGEMENT_PORT: &str = "LEVERET_MANAGEMENT_TCP_PORT";
const METRICS_PORT: &str = "LEVERET_PROMETHEUS_TCP_PORT";

/// The program, with an environment that sets nothing else.
pub(crate) fn leveret(words: &[&str]) -> Command {
    let mut command = alone(env!("CARGO_BIN_EXE_leveret"));
    command.args(words);
    command
}

/// A shell that has the program as `$0` and whatever words follow as `$@`.
pub(crate) fn by_shell(script: &str) -> Command {
    let mut command = alone("/bin/sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_leveret")]);
    command
}

/// Many nodes run at once: each takes ports for its management that the system chooses.
fn alone(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env(MANAGEMENT_PORT, "0").env(METRICS_PORT, "0");
    command
}

/// What a process wrote so far, line by line.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lines(Arc<(Mutex<Written>, Condvar)>, Arc<Mutex<()>>);

/// The lines, and whether there will be no more.
type Written = (Vec<String>, bool);

impl Lines {
    pub(crate) fn follow(source: impl Read + Send + 'static) -> Self {
        let lines = Self::default();
        let ours = lines.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(source).lines().map_while(Result::ok) {
                drop(ours.1.lock());
                ours.0.0.lock().unwrap().0.push(line);
                ours.0.1.notify_all();
            }
            ours.0.0.lock().unwrap().1 = true;
            ours.0.1.notify_all();
        });
        lines
    }

    /// Those that have `part` in them, so far.
    pub(crate) fn with(&self, part: &str) -> Vec<String> {
        let lines = self.0.0.lock().unwrap();
        lines.0.iter().filter(|line| line.contains(part)).cloned().collect()
    }

    /// Nothing more is read of them while this is held.
    pub(crate) fn hold(&self) -> impl Sized {
        self.1.lock().unwrap()
    }

    /// The first line that has `part` in it, as soon as it comes.
    #[track_caller]
    pub(crate) fn wait_for(&self, part: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        let mut lines = self.0.0.lock().unwrap();
        loop {
            if let Some(line) = lines.0.iter().find(|line| line.contains(part)) {
                return line.clone();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero() && !lines.1, "no line with {part:?} among {:#?}", lines.0);
            lines = self.0.1.wait_timeout(lines, left).unwrap().0;
        }
    }

    /// The only line so far that has `part` in it, as soon as it comes.
    #[track_caller]
    pub(crate) fn once(&self, part: &str) -> String {
        let first = self.wait_for(part);
        assert_eq!(self.with(part), std::slice::from_ref(&first));
        first
    }
}

/// What is left of a node that ended.
#[derive(Debug)]
pub(crate) struct Down {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) address: SocketAddr,
    settings: Vec<String>,
}

impl Down {
    /// A node with the same settings on the same directory and port.
    #[track_caller]
    pub(crate) fn start_again(self) -> Broker {
        let mut broker = Broker::spawn(self.command(), self.dir);
        broker.settings = self.settings;
        broker
    }

    /// From now on with this setting too; the last one counts.
    pub(crate) fn set(&mut self, setting: &str) {
        self.settings.push(setting.to_owned());
    }

    /// What would start it, without the directory.
    pub(crate) fn command(&self) -> Command {
        serve(&self.address.to_string(), &self.settings)
    }
}

fn serve(listen: &str, settings: &[String]) -> Command {
    let mut command = leveret(&["serve", "--listen", listen]);
    for setting in settings {
        command.args(["--set", setting]);
    }
    command
}

/// A running node. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Broker {
    child: Child,
    pub(crate) log: Lines,
    pub(crate) errors: Lines,
    pub(crate) address: SocketAddr,
    pub(crate) dir: tempfile::TempDir,
    settings: Vec<String>,
}

impl Broker {
    /// A node with default options.
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// A node with these `key=value` settings.
    pub(crate) fn with(settings: &[&str]) -> Self {
        let settings: Vec<String> = settings.iter().map(ToString::to_string).collect();
        let mut broker = Self::spawn(serve("127.0.0.1:0", &settings), tempfile::tempdir().unwrap());
        broker.settings = settings;
        broker
    }

    /// Runs `command`, which must be `serve` on one port, with `dir` as data directory.
    #[track_caller]
    pub(crate) fn spawn(mut command: Command, dir: tempfile::TempDir) -> Self {
        command.arg("--data-dir").arg(dir.path());
        Self::spawn_as_is(command, dir)
    }

    /// The same for a command that names its data directory by itself.
    #[track_caller]
    pub(crate) fn spawn_as_is(command: Command, dir: tempfile::TempDir) -> Self {
        Self::spawn_until(" is ready", command, dir)
    }

    /// The same until a line with this and its addresses was logged.
    #[track_caller]
    pub(crate) fn spawn_until(line: &str, mut command: Command, dir: tempfile::TempDir) -> Self {
        command.env(MANAGEMENT_PORT, "0").env(METRICS_PORT, "0");
        let spawned = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = spawned.unwrap();
        let log = Lines::follow(child.stdout.take().unwrap());
        let errors = Lines::follow(child.stderr.take().unwrap());
        let ready = log.wait_for(line);
        let (_, rest) = ready.split_once("amqp=\"").expect("the ready line has addresses");
        let (address, _) = rest.split_once('"').unwrap();
        Self { child, log, errors, address: address.parse().unwrap(), dir, settings: Vec::new() }
    }

    /// Kills the process with SIGKILL; only its directory is left.
    pub(crate) fn kill(mut self) -> Down {
        self.signal(Signal::KILL);
        self.ended(PATIENCE);
        self.down()
    }

    /// Asks the process to stop with SIGTERM, and waits until it did.
    #[track_caller]
    pub(crate) fn stop(mut self) -> Down {
        self.signal(Signal::TERM);
        assert!(self.ended(PATIENCE).success(), "{:#?}", self.log.with(""));
        self.down()
    }

    /// Stops, and gives everything that was logged.
    pub(crate) fn stop_with_log(self) -> Vec<String> {
        let log = self.log.clone();
        self.stop();
        log.wait_for("stopped");
        log.with("")
    }

    /// It has ended by itself.
    pub(crate) fn down(&mut self) -> Down {
        // Dropping a broker drops what it has then.
        let dir = std::mem::replace(&mut self.dir, tempfile::tempdir().unwrap());
        Down { dir, address: self.address, settings: self.settings.clone() }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// An address of the ready line, by the word before it.
    #[track_caller]
    pub(crate) fn listens(&self, on: &str) -> SocketAddr {
        let ready = self.log.wait_for(" is ready");
        let (_, rest) = ready.split_once(&format!(" {on}=\"")).expect("it listens there");
        rest.split_once('"').unwrap().0.parse().unwrap()
    }

    pub(crate) fn uri(&self) -> Uri {
        Uri { host: self.address.ip().to_string(), port: self.address.port(), ..Uri::default() }
    }

    /// A client that is logged in, without heartbeats.
    #[track_caller]
    pub(crate) fn connect(&self) -> Connection {
        self.connect_as(&self.uri())
    }

    #[track_caller]
    pub(crate) fn connect_as(&self, uri: &Uri) -> Connection {
        let options = Options { heartbeat_s: Some(0), ..Options::default() };
        Connection::open(uri, &options).unwrap()
    }

    /// A client with one channel.
    #[track_caller]
    pub(crate) fn channel(&self) -> (Connection, u16) {
        let mut client = self.connect();
        let channel = client.open_channel().unwrap();
        (client, channel)
    }

    /// `leveret ctl` with these words.
    pub(crate) fn ctl(&self, words: &[&str]) -> Output {
        self.ctl_command(words).output().unwrap()
    }

    pub(crate) fn ctl_command(&self, words: &[&str]) -> Command {
        let mut command = leveret(&["ctl", "-q"]);
        command.args(words).env("LEVERET_DATA_DIR", self.dir.path());
        command
    }

    /// How often a text is in the node's memory.
    pub(crate) fn occurrences(&self, text: &str) -> usize {
        use std::os::unix::fs::FileExt as _;
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.pid())).unwrap();
        let memory = std::fs::File::open(format!("/proc/{}/mem", self.pid())).unwrap();
        let mut count = 0;
        for line in maps.lines().filter(|line| line.contains(" rw")) {
            let (from, rest) = line.split_once('-').unwrap();
            let (to, _) = rest.split_once(' ').unwrap();
            let [from, to] = [from, to].map(|at| u64::from_str_radix(at, 16).unwrap());
            let mut block = vec![0; (to - from) as usize];
            // What was unmapped meanwhile is nowhere.
            if memory.read_exact_at(&mut block, from).is_ok() {
                count += memchr::memmem::find_iter(&block, text).count();
            }
        }
        count
    }

    /// A core file of the node as gdb's `gcore` writes it, which leaves out what the kernel leaves out; `None` where
    /// there is no gdb.
    pub(crate) fn core_file(&self) -> Option<Vec<u8>> {
        let dir = tempfile::tempdir().unwrap();
        let (stem, pid) = (dir.path().join("core"), self.pid().to_string());
        let Ok(run) = Command::new("gcore").arg("-o").arg(&stem).arg(&pid).output() else {
            eprintln!("gdb is not installed: no core file is written");
            return None;
        };
        let core = std::fs::read(format!("{}.{pid}", stem.display()));
        Some(core.unwrap_or_else(|error| panic!("{error}: {run:?}")))
    }

    /// `leveret ctl` that must succeed: what it prints.
    #[track_caller]
    pub(crate) fn told(&self, words: &[&str]) -> String {
        let output = self.ctl(words);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {:?} {errors}", output.status);
        String::from_utf8(output.stdout).unwrap()
    }

    /// `leveret ctl` that must succeed: what it prints, as JSON.
    #[track_caller]
    pub(crate) fn json(&self, words: &[&str]) -> serde_json::Value {
        let mut all = vec!["--formatter", "json"];
        all.extend(words);
        let told = self.told(&all);
        serde_json::from_str(&told).unwrap_or_else(|error| panic!("{words:?}: {error}: {told}"))
    }

    /// `leveret ctl` that must fail, with this status: what it says.
    #[track_caller]
    pub(crate) fn refused(&self, words: &[&str], status: i32) -> String {
        let output = self.ctl(words);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{words:?}: {told}");
        told
    }

    /// Memory of the process in the machine's memory, in bytes.
    pub(crate) fn resident(&self) -> u64 {
        self.memory()[1]
    }

    /// The same without pages of files, such as the program's, which come and go by the kernel's rules.
    pub(crate) fn own_memory(&self) -> u64 {
        let [_, resident, of_files] = self.memory();
        resident - of_files
    }

    /// The first fields of `/proc/PID/statm`, in bytes.
    fn memory(&self) -> [u64; 3] {
        let text = std::fs::read_to_string(format!("/proc/{}/statm", self.pid())).unwrap();
        let mut fields = text.split_whitespace().map(|pages| pages.parse::<u64>().unwrap());
        std::array::from_fn(|_| fields.next().unwrap() * rustix::param::page_size() as u64)
    }

    /// Time that processors spent on the process, in milliseconds.
    pub(crate) fn cpu_ms(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        // After the name, which may hold anything: state, ten numbers, then user and system time.
        let (_, rest) = text.rsplit_once(')').unwrap();
        let times = rest.split_whitespace().skip(11).take(2);
        let ticks: u64 = times.map(|ticks| ticks.parse::<u64>().unwrap()).sum();
        ticks * 1000 / rustix::param::clock_ticks_per_second()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid() as i32).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Waits for the process to end by itself.
    #[track_caller]
    pub(crate) fn ended(&mut self, within: Duration) -> ExitStatus {
        let mut status = None;
        wait_until(within, "the process ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    /// No line of the log has a level that a quiet node does not use, but for those about clients of a test that went
    /// without a word.
    #[track_caller]
    pub(crate) fn assert_quiet(&self) {
        for level in [" WARN ", "ERROR "] {
            let mut lines = self.log.with(level);
            let expected =
                ["client unexpectedly closed TCP connection", "closure with reason 'shutdown'"];
            lines.retain(|line| !expected.iter().any(|it| line.contains(it)));
            assert!(lines.is_empty(), "{lines:#?}");
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a program that must end by itself, and returns what it wrote to standard output and error.
#[track_caller]
pub(crate) fn run(mut command: Command, dir: &Path, want: i32) -> (String, String) {
    command.arg("--data-dir").arg(dir).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let pid = Pid::from_raw(child.id() as i32).unwrap();
    let (ended, end) = std::sync::mpsc::channel();
    // One that runs and runs is killed, which is not the status that is wanted.
    let guard = std::thread::spawn(move || {
        if end.recv_timeout(PATIENCE).is_err() {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    });
    let output = child.wait_with_output().unwrap();
    let _ = ended.send(());
    guard.join().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (told, errors) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(want), "{told} {errors}");
    (told, errors)
}

/// Waits for what has no event of its own.
#[track_caller]
pub(crate) fn wait_until(within: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + within;
    while !holds() {
        assert!(Instant::now() < deadline, "in {within:?} it never came to pass that {what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// Declares a queue that other connections may use too.
#[track_caller]
pub(crate) fn declare(client: &mut Connection, channel: u16, queue: &str) {
    client.queue_declare(channel, queue, &QueueDeclare::default()).unwrap();
}

/// Why the broker closes the client's connection, which it must be about to do.
#[track_caller]
pub(crate) fn close_reason(client: &mut Connection) -> CloseReason {
    loop {
        match client.next_event() {
            Ok(Some(_)) => {}
            Ok(None) => assert!(client.wait(PATIENCE).unwrap(), "no connection.close came"),
            Err(Error::ConnectionClosed(reason)) => return reason,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Sends what was published, and waits for one `basic.ack` of the broker's.
#[track_caller]
pub(crate) fn wait_for_ack(client: &mut Connection) {
    client.flush().unwrap();
    loop {
        match client.next_event().unwrap() {
            Some(Event::Method { method: Method::BasicAck(_), .. }) => return,
            Some(_) => {}
            None => assert!(client.wait(PATIENCE).unwrap(), "no confirm comes"),
        }
    }
}

/// A client that publishes to one queue and counts confirms. One shard has the queue, so they come in order.
#[derive(Debug)]
pub(crate) struct Publisher {
    pub(crate) client: Connection,
    channel: u16,
    queue: &'static str,
    pub(crate) sent: u64,
    pub(crate) confirmed: u64,
    /// The reasons of each `connection.blocked` that came.
    pub(crate) blocked: Vec<String>,
}

impl Publisher {
    /// Declares the queue, too.
    #[track_caller]
    pub(crate) fn new(broker: &Broker, queue: &'static str) -> Self {
        let (mut client, channel) = broker.channel();
        declare(&mut client, channel, queue);
        client.confirm_select(channel).unwrap();
        Self { client, channel, queue, sent: 0, confirmed: 0, blocked: Vec::new() }
    }

    /// Sends `count` messages with this body, and waits for no confirm.
    #[track_caller]
    pub(crate) fn send(&mut self, body: &[u8], count: u64) {
        for _ in 0..count {
            self.client.publish(self.channel, "", self.queue, &[0, 0], body);
        }
        self.sent += count;
        self.client.flush().unwrap();
    }

    /// Reads what is there, or comes within this time.
    #[track_caller]
    pub(crate) fn read(&mut self, within: Duration) {
        self.client.wait(within).unwrap();
        while let Some(event) = self.client.next_event().unwrap() {
            match event {
                Event::Method { method: Method::BasicAck(ack), .. } => {
                    self.confirmed = ack.delivery_tag;
                }
                Event::Method { method: Method::BasicNack(nack), .. } => panic!("{nack:?}"),
                Event::Method { method: Method::ConnectionBlocked(blocked), .. } => {
                    self.blocked.push(blocked.reason.to_owned());
                }
                _ => {}
            }
        }
    }

    /// Publishes `count` messages, and waits until the broker has them.
    #[track_caller]
    pub(crate) fn publish(&mut self, body: &[u8], count: u64) {
        let mut left = count;
        while left > 0 {
            let some = left.min(1000);
            self.send(body, some);
            left -= some;
            while self.sent - self.confirmed > 1000 {
                self.read_some();
            }
        }
        while self.confirmed < self.sent {
            self.read_some();
        }
    }

    #[track_caller]
    fn read_some(&mut self) {
        let before = self.confirmed;
        self.read(PATIENCE);
        assert!(self.confirmed > before, "no confirm: {before} of {}", self.sent);
    }
}
