//! A node in this process, with its real sockets, and a client for its API.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use leveret_broker::message::{ToMeta, ToShard};
use leveret_client::{Connection, Options, Uri};
use leveret_config::{Config, FlagSetting, Inputs};
use leveret_server::front::Stop;
use leveret_server::node::ShardActor;
use leveret_server::runner::run_alone;
use leveret_topology::GroupId;
use serde_json::Value;

/// How long anything may take that is due at once. Long, because machines that test are busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Held while a node's front ends open: threads of the management that come meanwhile are that node's.
static OPENING: Mutex<()> = Mutex::new(());

/// A running node. Stopped when dropped.
pub(crate) struct Node {
    pub(crate) amqp: SocketAddr,
    pub(crate) http: SocketAddr,
    pub(crate) prometheus: SocketAddr,
    /// Its insides.
    pub(crate) inner: Arc<leveret_server::node::Node>,
    stop: Stop,
    /// Threads that came when its front ends opened.
    threads: Vec<String>,
    thread: Option<std::thread::JoinHandle<()>>,
    _dir: tempfile::TempDir,
}

impl Node {
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// A node with these keys and values.
    pub(crate) fn with(settings: &[(&str, &str)]) -> Self {
        Self::changed(settings, |_| {})
    }

    /// A node with these keys and values, whose options were changed then.
    pub(crate) fn changed(
        settings: &[(&str, &str)],
        change: impl FnOnce(&mut leveret_server::serve::Options) + Send + 'static,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let dir_text = dir.path().display().to_string();
        let own = [
            ("data_dir", dir_text.as_str()),
            ("node_name", "rabbit@test"),
            ("listeners.tcp.default", "127.0.0.1:0"),
            ("management.tcp.ip", "127.0.0.1"),
            ("management.tcp.port", "0"),
            ("prometheus.tcp.ip", "127.0.0.1"),
            ("prometheus.tcp.port", "0"),
        ];
        let flags = own.iter().chain(settings).map(|(key, value)| FlagSetting {
            flag: format!("--{key}"),
            key: (*key).to_owned(),
            value: (*value).to_owned(),
        });
        let sources = Inputs { flags: flags.collect(), ..Inputs::default() };
        let config = Config::load(&sources).unwrap().config;
        let (sender, opened) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let front = leveret_admin::front(&config);
            let open = Box::new(move |inside: leveret_server::front::Inside<'_>| {
                let node = Arc::clone(&inside.node);
                let (stop, amqp) = (inside.stop.clone(), inside.about.listeners[0].address);
                let one = OPENING.lock().unwrap();
                let before = threads();
                let front = front(inside)?;
                let mut own = threads();
                own.retain(|thread| !before.contains(thread));
                drop(one);
                let listens = |protocol: &str| {
                    front.listeners.iter().find(|it| it.protocol == protocol).unwrap().address
                };
                let doors = (amqp, listens("http"), listens("http/prometheus"));
                sender.send((node, stop, doors, own)).unwrap();
                Ok(front)
            });
            let mut options = leveret_server::options(&config, Instant::now()).unwrap();
            change(&mut options);
            let signals = leveret_server::Signals::take().unwrap();
            leveret_server::serve::run(options, signals, open, || {}).unwrap();
        });
        let (inner, stop, (amqp, http, prometheus), threads) =
            opened.recv_timeout(PATIENCE).unwrap();
        // Ports open before that, and much answers 503 until then.
        wait_until("its queues are filled", || inner.is_filled());
        Self { amqp, http, prometheus, inner, stop, threads, thread: Some(thread), _dir: dir }
    }

    /// What the thread that answers requests has worked up to now.
    #[track_caller]
    pub(crate) fn management_time(&self) -> Duration {
        let stats = self.threads.iter().filter_map(|thread| {
            std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).ok()
        });
        let own = stats.filter(|stat| stat.contains("(management)")).collect::<Vec<_>>();
        let [stat] = own.as_slice() else { panic!("{own:?}") };
        // proc(5): behind the name come the state as field 3, and ticks as fields 14 and 15.
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        let ticks = fields.split(' ').skip(11).take(2).map(|it| it.parse::<u32>().unwrap());
        Duration::from_secs(1) * ticks.sum() / rustix::param::clock_ticks_per_second() as u32
    }

    /// A client of AMQP with one channel.
    pub(crate) fn client(&self) -> (Connection, u16) {
        let mut client = self.connect().unwrap();
        let channel = client.open_channel().unwrap();
        (client, channel)
    }

    /// A client that may be refused: why.
    pub(crate) fn connect(&self) -> Result<Connection, String> {
        let uri =
            Uri { host: self.amqp.ip().to_string(), port: self.amqp.port(), ..Uri::default() };
        let options = Options { heartbeat_s: Some(0), ..Options::default() };
        Connection::open(&uri, &options).map_err(|why| why.to_string())
    }

    /// Does what a shard was left to do while a test had the duty to run it.
    pub(crate) fn run_left_letters(&self, shard: usize) {
        let (mut letters, mut some) = (Vec::new(), Vec::new());
        while self.inner.shards[shard].actor.pick_up(&mut some) {
            letters.append(&mut some);
        }
        let group = GroupId::new(u32::try_from(shard).unwrap());
        run_alone(&self.inner, |runner| {
            letters.into_iter().for_each(|letter| runner.run_shard(group, letter));
        });
    }

    /// No shard answers any more, until what is returned is dropped.
    pub(crate) fn stall(&self) -> Stalled<'_> {
        for shard in &self.inner.shards {
            wait_until("the shard rests", || shard.actor.post_one(ToShard::Continue));
        }
        Stalled(self)
    }

    /// The topology's owner does not answer any more, until what is returned is dropped.
    pub(crate) fn hold_meta(&self) -> HeldMeta<'_> {
        wait_until("the topology's owner rests", || self.inner.meta().post_one(ToMeta::Continue));
        HeldMeta { node: self, left: Vec::new() }
    }

    /// Asks it to stop, and does not wait for that.
    pub(crate) fn ask_to_stop(&self) {
        self.stop.ask("a test".to_owned());
    }

    /// Asks as guest.
    #[track_caller]
    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> Got {
        self.ask_as(Some("guest:guest"), method, path, &[], body.as_bytes())
    }

    /// Asks as somebody, with more headers.
    #[track_caller]
    pub(crate) fn ask_as(
        &self,
        user: Option<&str>,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Got {
        Self::answer(Self::send_to(self.http, user, method, path, headers, body))
    }

    /// A page for Prometheus.
    #[track_caller]
    pub(crate) fn scrape(&self, path: &str) -> String {
        let got = self.scrape_as(None, path);
        assert_eq!(got.status, 200, "{path}: {}", got.text());
        got.text()
    }

    #[track_caller]
    pub(crate) fn scrape_as(&self, user: Option<&str>, path: &str) -> Got {
        Self::answer(Self::send_to(self.prometheus, user, "GET", path, &[], b""))
    }

    /// Asks for a page for Prometheus and reads no more than that it has begun.
    #[track_caller]
    pub(crate) fn leave_unread(&self, path: &str) -> TcpStream {
        Self::begun(Self::send_to(self.prometheus, None, "GET", path, &[], b""))
    }

    /// Asks for what the API has, as guest, and reads no more than that it has begun.
    #[track_caller]
    pub(crate) fn leave_api_unread(&self, path: &str) -> TcpStream {
        Self::begun(Self::send_to(self.http, Some("guest:guest"), "GET", path, &[], b""))
    }

    /// The socket of an answer that has begun and is not read.
    #[track_caller]
    fn begun(mut socket: TcpStream) -> TcpStream {
        let mut begin = [0; 12];
        socket.read_exact(&mut begin).unwrap();
        assert_eq!(&begin, b"HTTP/1.1 200");
        socket
    }

    fn answer(mut socket: TcpStream) -> Got {
        let mut all = Vec::new();
        let _ = socket.read_to_end(&mut all);
        Got::read(&all)
    }

    #[track_caller]
    fn send_to(
        address: SocketAddr,
        user: Option<&str>,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> TcpStream {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut head = format!(
            "{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n",
            body.len()
        );
        if headers.iter().all(|(name, _)| *name != "Host") {
            head.push_str("Host: x\r\n");
        }
        if let Some(user) = user {
            let encoded = STANDARD.encode(user);
            head.push_str(&format!("Authorization: Basic {encoded}\r\n"));
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        socket.write_all(head.as_bytes()).unwrap();
        // Also one that is refused is read, or thrown away.
        socket.write_all(body).unwrap();
        socket
    }

    /// Asks as guest, and leaves once what it asked for is under way.
    #[track_caller]
    pub(crate) fn ask_and_leave(
        &self,
        method: &str,
        path: &str,
        body: &str,
        is_under_way: impl FnMut() -> bool,
    ) {
        let guest = Some("guest:guest");
        let mut socket = Self::send_to(self.http, guest, method, path, &[], body.as_bytes());
        wait_until("it is under way", is_under_way);
        socket.shutdown(Shutdown::Write).unwrap();
        // The node closes its side, too, when it works for the request no more.
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).unwrap();
        assert_eq!(String::from_utf8_lossy(&answer), "");
    }

    /// A request of guest's that must be answered 200: the document.
    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> Value {
        let got = self.ask("GET", path, "");
        assert_eq!(got.status, 200, "{path}: {}", got.text());
        got.json()
    }

    /// A request of guest's that must be answered with this status: what it says.
    #[track_caller]
    pub(crate) fn must(&self, method: &str, path: &str, body: &str, status: u16) -> Got {
        let got = self.ask(method, path, body);
        assert_eq!(got.status, status, "{method} {path}: {}", got.text());
        got
    }
}

/// A node whose shards do not answer: the test has the duty to run them.
pub(crate) struct Stalled<'a>(&'a Node);

impl Stalled<'_> {
    /// Waits until shards were left a letter such as this.
    #[track_caller]
    pub(crate) fn wait_for(&self, what: &str, is_such: impl Fn(&ToShard) -> bool) {
        let (mut left, mut some) = (Vec::new(), Vec::new());
        wait_until(what, || {
            // The duty would be given back with the last letter.
            let waits = |shard: &&(usize, &ShardActor)| shard.1.actor.letters() > 0;
            let shards: Vec<_> = self.0.inner.shards.iter().enumerate().collect();
            for (number, shard) in shards.iter().filter(waits) {
                assert!(shard.actor.pick_up(&mut some));
                left.extend(some.drain(..).map(|letter| (*number, letter)));
            }
            left.iter().any(|(_, letter)| is_such(letter))
        });
        for (number, letter) in left {
            assert!(!self.0.inner.shards[number].actor.post_one(letter), "the duty is the test's");
        }
    }
}

impl Drop for Stalled<'_> {
    fn drop(&mut self) {
        (0..self.0.inner.shards.len()).for_each(|shard| self.0.run_left_letters(shard));
    }
}

/// A node whose topology's owner does not answer: the test has the duty to run it.
pub(crate) struct HeldMeta<'a> {
    node: &'a Node,
    left: Vec<ToMeta>,
}

impl HeldMeta<'_> {
    /// Waits until the owner was left a letter such as this, and takes it out. All others it gets.
    #[track_caller]
    pub(crate) fn take_out(mut self, what: &str, is_such: impl Fn(&ToMeta) -> bool) -> ToMeta {
        let (mut found, mut some) = (None, Vec::new());
        wait_until(what, || {
            // The duty would be given back with the last letter.
            if self.node.inner.meta().letters() > 0 {
                assert!(self.node.inner.meta().pick_up(&mut some));
                self.left.append(&mut some);
            }
            found = self.left.iter().position(&is_such);
            found.is_some()
        });
        self.left.remove(found.unwrap())
    }
}

impl Drop for HeldMeta<'_> {
    fn drop(&mut self) {
        let mut some = Vec::new();
        while self.node.inner.meta().pick_up(&mut some) {
            self.left.append(&mut some);
        }
        run_alone(&self.node.inner, |runner| {
            self.left.drain(..).for_each(|letter| runner.run_meta(letter));
        });
    }
}

/// Ids of this process's threads.
fn threads() -> Vec<String> {
    let all = std::fs::read_dir("/proc/self/task").unwrap();
    all.map(|one| one.unwrap().file_name().into_string().unwrap()).collect()
}

impl Drop for Node {
    fn drop(&mut self) {
        self.ask_to_stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the node failed");
        }
    }
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Got {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Got {
    #[track_caller]
    pub(crate) fn read(bytes: &[u8]) -> Self {
        let end = bytes.windows(4).position(|it| it == b"\r\n\r\n").expect("an answer");
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let mut lines = head.lines();
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers = lines.filter_map(|line| line.split_once(": "));
        let headers = headers.map(|(name, value)| (name.to_lowercase(), value.to_owned()));
        let mut got = Self { status, headers: headers.collect(), body: bytes[end + 4..].to_vec() };
        if got.header("transfer-encoding") == "chunked" {
            got.body = unchunked(&got.body);
        }
        got
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(own, _)| own == name);
        found.map_or("", |(_, value)| value)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }
}

/// What was sent in chunks; all of it must have come.
#[track_caller]
fn unchunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    loop {
        let end = bytes.windows(2).position(|it| it == b"\r\n").expect("a chunk's length");
        let len = std::str::from_utf8(&bytes[..end]).unwrap();
        let len = usize::from_str_radix(len, 16).unwrap();
        if len == 0 {
            return whole;
        }
        whole.extend_from_slice(&bytes[end + 2..end + 2 + len]);
        bytes = &bytes[end + 4 + len..];
    }
}

/// Waits for what has no event of its own.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "it never came to pass that {what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}
