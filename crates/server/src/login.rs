//! Logins: whether a client may come in, by its name and its proof.
//!
//! Most are decided at once, in the turn that asks: a hash of RabbitMQ's kind takes less than a microsecond.
//! Three kinds take longer, and are decided by threads of their own, so that no turn waits for them: hashes
//! that are slow on purpose (argon2), clients whose address had too many refused ones
//! ([`throttle`]), and users that are kept elsewhere ([`elsewhere`]). What was proven against a slow hash is remembered for a while ([`cache`]). Every
//! attempt is counted ([`attempts`]) and told in the log under the target `audit`.
//!
//! ```text
//!   session --Login--> decide at once ---------------------------> LoggedIn --> session
//!                        |--> jobs, by time --> login thread --/
//!                        \--> sources, in order --> thread that asks --/
//! ```
//!
//! A password is held in memory that is wiped, and is in no text that is made of a login.

pub mod attempts;
mod cache;
mod elsewhere;
mod kinds;
mod line;
mod room;
mod throttle;

use std::cell::Cell;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Condvar};
use std::time::Duration;

use leveret_auth::{Sources, network_of};
use leveret_broker::login::{Login, Proof};
use leveret_broker::message::{ConnectionId, Outbox, ToSession};
use leveret_topology::rights::Admitted;
use leveret_topology::{AuthError, Event, Hashing, Password, PasswordHash};
use tokio::sync::{mpsc, oneshot};

use crate::clock::now;
use crate::locks::{Guard, Rank, Ranked};
use crate::node::{Node, Recipient};
use crate::runner::{run_alone, with_runner};
use crate::watchdog::Doing;
use attempts::Attempts;
use cache::Cache;
use elsewhere::Elsewhere;
use kinds::Kinds;
pub(crate) use line::NetworkLine;
use room::Network;
pub(crate) use room::{Room, RoomUse};
use throttle::Throttle;

/// The longest name of a user, in bytes, unless the names have a longer one: that of AMQP's `user-id`. What is longer names
/// nobody, and is not kept.
const NAME_MAX: usize = 255;
/// What a login that waits takes besides its name and password.
const JOB_BYTES: usize = 512;
/// How often it is looked who gave up waiting, when there is no room, in ms.
const SWEEP_MS: u64 = 250;

/// How logins are treated.
#[derive(Clone, Debug)]
pub struct Options {
    /// How new passwords are hashed.
    pub hashing: Hashing,
    /// Refused logins from one address before its next ones have to wait; 0 for never.
    pub throttle_threshold: u32,
    /// The longest they wait.
    pub throttle_delay_max: Duration,
    /// Who is asked about users.
    pub sources: Sources,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            hashing: Hashing::Sha256,
            throttle_threshold: 0,
            throttle_delay_max: Duration::from_secs(5),
            sources: Sources::default(),
        }
    }
}

/// Decides on logins.
#[derive(Debug)]
pub struct Logins {
    options: Options,
    throttle: Ranked<Throttle>,
    cache: Ranked<Cache>,
    kinds: Ranked<Kinds>,
    attempts: Ranked<Attempts>,
    jobs: Ranked<Jobs>,
    changed: Condvar,
    elsewhere: Elsewhere,
}

/// Why there is no decision on a login.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Undecided {
    /// The node ends before there is one.
    #[error("the node is stopping")]
    Stopping,
    /// It would have to wait, and there is no room for it: it was not looked at.
    #[error("too many logins wait for an answer")]
    Full,
}

/// Who was let in, if anybody was.
type Decided = Result<Option<Admitted>, Undecided>;

/// Who was let in, or why nobody was.
type Verdict = Result<Admitted, String>;

#[derive(Debug, Default)]
struct Jobs {
    /// Those whose time has come.
    due: NetworkLine<Job>,
    /// Those that have to wait first, the next one first.
    delayed: BinaryHeap<Job>,
    /// What both take, and those that others than the names are asked about.
    room: Room,
    /// When it was last looked who gave up waiting.
    swept_ms: u64,
    /// Of the next job; tells jobs of the same time apart.
    number: u64,
    is_closed: bool,
}

/// A login that is decided on later.
#[derive(Debug)]
struct Job {
    due_ms: u64,
    number: u64,
    login: Arc<Login>,
    asker: Asker,
}

/// Who has a login looked at.
#[derive(Debug)]
enum Asker {
    /// Who waits for the decision. The login has its room while it is a job.
    Client(Answer),
    /// The names are one of several sources: the verdict is not the decision. The login has its room until that is made. With
    /// who waits for the decision, unless the login is no client's.
    Source(oneshot::Sender<Verdict>, Option<Answer>),
}

impl Asker {
    /// Whether somebody still waits for it.
    fn is_wanted(&self, node: &Node) -> bool {
        match self {
            Self::Client(answer) => answer.is_wanted(node),
            Self::Source(_, answer) => is_wanted(node, answer.as_ref()),
        }
    }
}

impl Job {
    /// What it has of the room; nothing if somebody else gives that back.
    fn give_back(&self, room: &mut Room) {
        if matches!(self.asker, Asker::Client(_)) {
            room.give_back(from(&self.login), bytes(&self.login));
        }
    }
}

/// Who waits for the decision.
#[derive(Clone, Debug)]
enum Answer {
    Connection(ConnectionId),
    /// For one answer.
    Request(mpsc::Sender<Option<Admitted>>),
}

/// Whether somebody still waits for a login that may be no client's.
fn is_wanted(node: &Node, answer: Option<&Answer>) -> bool {
    answer.is_none_or(|answer| answer.is_wanted(node))
}

impl Answer {
    /// Whether somebody still waits for it.
    fn is_wanted(&self, node: &Node) -> bool {
        match self {
            Self::Connection(id) => node.recipient(*id).is_some(),
            Self::Request(sender) => !sender.is_closed(),
        }
    }

    /// Answers from another thread than the one that asked; `out` is what else there is to tell.
    fn give(self, node: &Arc<Node>, admitted: Option<Admitted>, mut out: Outbox) {
        match self {
            Self::Connection(id) => out.session(id, ToSession::LoggedIn(admitted.map(Box::new))),
            // A request that gave up waiting does not want its answer.
            Self::Request(sender) => drop(sender.try_send(admitted)),
        }
        if !out.is_empty() {
            run_alone(node, |runner| runner.run_outbox(out));
        }
    }
}

impl Jobs {
    fn push(&mut self, due_ms: u64, login: Arc<Login>, asker: Asker) {
        self.number += 1;
        self.delayed.push(Job { due_ms, number: self.number, login, asker });
    }

    /// The next one, or how long until there is one.
    fn next(&mut self, now_ms: u64) -> Result<Job, Option<u64>> {
        while let Some(job) = self.delayed.peek_mut().filter(|job| job.due_ms <= now_ms) {
            let job = PeekMut::pop(job);
            let user = job.login.user.clone();
            self.due.push(from(&job.login), &user, job);
        }
        let wait_ms = self.delayed.peek().map(|job| job.due_ms - now_ms);
        let job = self.due.pop().ok_or(wait_ms)?;
        job.give_back(&mut self.room);
        Ok(job)
    }

    /// Whether one more may wait; who gave up waiting makes room for it.
    fn take_room(&mut self, node: &Node, login: &Login, now_ms: u64) -> bool {
        let (network, bytes) = (from(login), bytes(login));
        if self.room.take(network, bytes) {
            return true;
        }
        if now_ms < self.swept_ms + SWEEP_MS {
            return false;
        }
        self.swept_ms = now_ms;
        let Self { due, delayed, room, .. } = self;
        let mut is_kept = |job: &Job| {
            let is_kept = job.asker.is_wanted(node);
            if !is_kept {
                job.give_back(room);
            }
            is_kept
        };
        due.retain(&mut is_kept);
        delayed.retain(is_kept);
        room.take(network, bytes)
    }
}

impl Ord for Job {
    /// The heap gives the greatest first: the earliest.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.due_ms, other.number).cmp(&(self.due_ms, self.number))
    }
}

impl PartialOrd for Job {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Job {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Job {}

impl Logins {
    /// Nobody logged in yet. `key` is random: it makes the cache's digests worthless to others.
    pub fn new(options: Options, key: [u8; 32]) -> Self {
        Self {
            throttle: Ranked::new(
                Rank::Throttle,
                Throttle::new(
                    options.throttle_threshold,
                    options.throttle_delay_max.as_millis() as u64,
                ),
            ),
            options,
            cache: Ranked::new(Rank::LoginCache, Cache::new(key)),
            kinds: Ranked::new(Rank::LoginKinds, Kinds::default()),
            attempts: Ranked::new(Rank::Attempts, Attempts::default()),
            jobs: Ranked::new(Rank::LoginJobs, Jobs::default()),
            changed: Condvar::new(),
            elsewhere: Elsewhere::default(),
        }
    }

    /// How new passwords are hashed.
    pub fn hashing(&self) -> Hashing {
        self.options.hashing
    }

    /// The hash of a new password, with a random salt. Takes its time if the hashing is slow.
    pub fn hash(&self, password: &str) -> PasswordHash {
        PasswordHash::with(self.options.hashing, password, rand::random())
    }

    /// What was tried so far.
    pub fn attempts(&self) -> Guard<'_, Attempts> {
        self.attempts.lock()
    }

    /// A session asks: it is answered, now or later.
    pub(crate) fn ask(&self, node: &Arc<Node>, login: Login, out: &mut Outbox) {
        let id = login.connection;
        if let Some(decided) = self.at_once(node, login, Answer::Connection(id), out) {
            // AMQP has no word for "later": the client is refused, and the log has why.
            let admitted = decided.unwrap_or(None);
            out.session(id, ToSession::LoggedIn(admitted.map(Box::new)));
        }
    }

    /// Who comes in that asks by another way than AMQP, such as HTTP; none if it may not. An error if that is not decided.
    ///
    /// `login.connection` means nothing.
    pub async fn check(
        &self,
        node: &Arc<Node>,
        login: Login,
    ) -> Result<Option<Admitted>, Undecided> {
        let (sender, mut answered) = mpsc::channel(1);
        let mut out = Outbox::default();
        let decided = self.at_once(node, login, Answer::Request(sender), &mut out);
        if !out.is_empty() {
            with_runner(node, |runner| runner.run_outbox(out));
        }
        match decided {
            Some(decided) => decided,
            None => answered.recv().await.ok_or(Undecided::Stopping),
        }
    }

    /// Whether this is the user's password, by all sources that are configured, and why not. It is no login:
    /// nothing is counted or told.
    pub async fn prove(&self, node: &Arc<Node>, user: &str, password: &str) -> Result<(), String> {
        let login = Login {
            connection: ConnectionId::NOBODY,
            user: user.into(),
            proof: Proof::Password(Password::new(password)),
            peer: String::new(),
            connection_name: None,
            mechanism: "PLAIN",
            protocol: "ctl",
            barred: None,
            is_repeated: false,
        };
        self.proven(node, Arc::new(login)).await.map(drop)
    }

    /// Decides if that takes no time, else leaves it to a thread.
    fn at_once(
        &self,
        node: &Arc<Node>,
        login: Login,
        answer: Answer,
        out: &mut Outbox,
    ) -> Option<Decided> {
        let now_ms = now().ms();
        if login.user.len() > NAME_MAX && node.topology().user(&login.user).is_none() {
            let login = Login { user: shortened(&login.user).into(), ..login };
            let verdict = Err(AuthError::InvalidCredentials(login.user.to_string()).to_string());
            return Some(Ok(self.decided(node, &login, verdict, out)));
        }
        let delay_ms =
            address(&login).map_or(0, |from| self.throttle.lock().delay_ms(from, now_ms));
        if delay_ms == 0
            && let Some(verdict) = self.quick_in_order(node, &login)
        {
            return Some(Ok(self.decided(node, &login, verdict, out)));
        }
        let mut jobs = self.jobs.lock();
        if jobs.is_closed {
            return None;
        }
        if !jobs.take_room(node, &login, now_ms) {
            drop(jobs);
            // No password was looked at: the address's next login need not wait for it.
            self.tell(node, &login, &Err(Undecided::Full.to_string()), out);
            return Some(Err(Undecided::Full));
        }
        if self.options.sources.are_internal() {
            jobs.push(now_ms + delay_ms, Arc::new(login), Asker::Client(answer));
            self.changed.notify_one();
        } else {
            drop(jobs);
            self.send_away(node, login, answer, delay_ms);
        }
        None
    }

    /// The verdict of all sources, where it takes no time: if the names are the first, and let the client
    /// in, or are the only one.
    fn quick_in_order(&self, node: &Node, login: &Login) -> Option<Verdict> {
        let sources = &self.options.sources;
        if !sources.entries().first()?.is_internal() {
            return None;
        }
        let verdict = self.quick(node, login)?;
        (verdict.is_ok() || sources.are_internal()).then_some(verdict)
    }

    /// The verdict of the names, where it takes no time.
    ///
    /// A refusal costs the same whether there is such a user or not, and whatever its hash: see [`kinds`].
    fn quick(&self, node: &Node, login: &Login) -> Option<Verdict> {
        let Proof::Password(password) = &login.proof else { return Some(verdict(node, login)) };
        if password.is_empty() {
            return Some(Err(AuthError::BlankPassword(login.user.to_string()).to_string()));
        }
        let hash = stored(node, login);
        if let Some(hash) = hash.as_ref().filter(|hash| hash.is_slow()) {
            let is_known = self.is_remembered(login, password, hash);
            return is_known.then(|| barred(login));
        }
        if hash.as_ref().is_some_and(|hash| hash.accepts(password.reveal())) {
            return Some(barred(login));
        }
        let kinds = self.kinds(node);
        if kinds.iter().any(PasswordHash::is_slow) {
            return None;
        }
        Some(refuse(login, password, hash.as_ref(), &kinds))
    }

    /// The verdict of the names, however long it takes.
    fn thorough(&self, node: &Node, login: &Login) -> Verdict {
        let Proof::Password(password) = &login.proof else { return verdict(node, login) };
        if password.is_empty() {
            return Err(AuthError::BlankPassword(login.user.to_string()).to_string());
        }
        let hash = stored(node, login);
        let own = hash.as_ref();
        if own.is_some_and(|hash| hash.is_slow() && self.is_remembered(login, password, hash)) {
            return barred(login);
        }
        if let Some(hash) = own.filter(|hash| hash.accepts(password.reveal())) {
            if hash.is_slow() {
                self.cache.lock().learn(&login.user, password.reveal(), hash, now().ms());
            }
            return barred(login);
        }
        refuse(login, password, own, &self.kinds(node))
    }

    /// Whether this was proven a moment ago.
    fn is_remembered(&self, login: &Login, password: &Password, hash: &PasswordHash) -> bool {
        self.cache.lock().knows(&login.user, password.reveal(), hash, now().ms())
    }

    /// The kinds of hashes that users have, and that new ones would have.
    fn kinds(&self, node: &Node) -> Arc<[PasswordHash]> {
        let topology = node.topology();
        self.kinds.lock().of(&topology, self.options.hashing)
    }

    /// Counts and tells a decision. A refused one may delay the address's next ones.
    fn decided(
        &self,
        node: &Node,
        login: &Login,
        verdict: Verdict,
        out: &mut Outbox,
    ) -> Option<Admitted> {
        if verdict.is_err()
            && let Some(from) = address(login)
        {
            self.throttle.lock().failed(from, now().ms());
        }
        self.tell(node, login, &verdict, out);
        verdict.ok()
    }

    /// Counts and tells what became of a login.
    fn tell(&self, node: &Node, login: &Login, verdict: &Verdict, out: &mut Outbox) {
        // A token names its user better than the client does.
        let user = verdict.as_ref().map_or(&*login.user, |admitted| &*admitted.user);
        let (mechanism, protocol) = (login.mechanism, login.protocol);
        let from = address(login);
        self.attempts.lock().count(from, user, protocol, verdict.is_ok());
        let (peer, connection_name) = (login.peer.as_str(), login.connection_name.as_deref());
        if verdict.is_ok()
            && let Some(Recipient::Connection(connection)) = node.recipient(login.connection)
        {
            connection.place().is_known();
        }
        if verdict.is_err() || !login.is_repeated {
            out.events.extend(event(node, login, user, verdict.as_ref().err()));
        }
        match verdict {
            Ok(_) if login.is_repeated => {}
            Ok(_) => {
                let from = from.map_or_else(|| peer.to_owned(), |address| address.to_string());
                let from = format!("{user}@{from}");
                tracing::info!(
                    target: "audit", from, peer, connection = connection_name, user, mechanism, protocol,
                    "audit: login accepted"
                );
            }
            Err(why) => {
                tracing::warn!(
                    target: "audit", peer, connection = connection_name, user, mechanism, protocol, why,
                    "audit: login refused"
                );
            }
        }
    }

    /// Works jobs off until [`close`](Self::close): for a thread of its own.
    pub(crate) fn work(&self, node: &Arc<Node>) {
        let (beat, spent) = (node.watched.beat(), Cell::default());
        while let Some(job) = self.next() {
            // Who left while others were looked at costs nothing.
            if !job.asker.is_wanted(node) {
                continue;
            }
            beat.begins(Doing::Login);
            let check = || self.thorough(node, &job.login);
            let verdict = node.watched.lately.during(|| Doing::Login.to_string(), &spent, check);
            beat.ends();
            match job.asker {
                Asker::Client(answer) => {
                    let mut out = Outbox::default();
                    let admitted = self.decided(node, &job.login, verdict, &mut out);
                    answer.give(node, admitted, out);
                }
                // An error means that nobody waits for it any more.
                Asker::Source(sender, _) => drop(sender.send(verdict)),
            }
        }
    }

    /// The next job when its time has come; `None` when there is no more to come.
    fn next(&self) -> Option<Job> {
        let mut jobs = self.jobs.lock();
        loop {
            if jobs.is_closed {
                return None;
            }
            jobs = match jobs.next(now().ms()) {
                Ok(job) => return Some(job),
                Err(Some(ms)) => jobs.wait_timeout(&self.changed, Duration::from_millis(ms)),
                Err(None) => jobs.wait(&self.changed),
            };
        }
    }

    /// Ends the threads. Nobody is let in any more that they would have to look at: who waits for that gets no decision.
    pub(crate) fn close(&self) {
        let dropped = {
            let mut jobs = self.jobs.lock();
            std::mem::replace(&mut *jobs, Jobs { is_closed: true, ..Jobs::default() })
        };
        drop(dropped);
        self.changed.notify_all();
        self.elsewhere.close();
    }
}

/// The threads that look at logins which take their time.
#[derive(Debug)]
pub struct LoginThreads {
    node: Arc<Node>,
    joins: Vec<std::thread::JoinHandle<()>>,
    /// Ends the thread that asks elsewhere, if there is one.
    asking: Option<oneshot::Sender<()>>,
}

impl LoginThreads {
    /// Starts them: half as many as the machine has processors, as messages want the other half.
    pub fn start(node: &Arc<Node>) -> std::io::Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let mut joins = Vec::new();
        for index in 0..cores.div_ceil(2) {
            let node = Arc::clone(node);
            let thread = std::thread::Builder::new().name(format!("login-{index}"));
            joins.push(thread.spawn(move || node.logins.work(&node))?);
        }
        let asking = node.logins.ask_elsewhere(node, &mut joins)?;
        Ok(Self { node: Arc::clone(node), joins, asking })
    }

    /// Ends them and waits for them.
    pub fn stop(self) {
        self.node.logins.close();
        drop(self.asking);
        for join in self.joins {
            // A panic aborts the process; there is nobody left to tell.
            let _ = join.join();
        }
    }
}

/// The user's hash, if there is such a user.
fn stored(node: &Node, login: &Login) -> Option<PasswordHash> {
    node.topology().user(&login.user).map(|user| user.password_hash().clone())
}

/// The user's own hash did not match: what that costs whoever it was.
fn refuse(
    login: &Login,
    password: &Password,
    own: Option<&PasswordHash>,
    kinds: &[PasswordHash],
) -> Verdict {
    for kind in kinds::others(own, kinds) {
        let _ = std::hint::black_box(kind.accepts(password.reveal()));
    }
    Err(AuthError::InvalidCredentials(login.user.to_string()).to_string())
}

/// What the names say, at once.
fn verdict(node: &Node, login: &Login) -> Verdict {
    login.judge(&node.topology()).map_err(|why| why.to_string())
}

/// A decision, for those who want to know.
fn event(node: &Node, login: &Login, user: &str, refused: Option<&String>) -> Option<Event> {
    if !node.topology().wants_events() {
        return None;
    }
    let event = Event::new(match refused {
        None => "user.authentication.success",
        Some(_) => "user.authentication.failure",
    });
    let mut event = event
        .with("name", user)
        .with("connection_type", "network")
        .with("protocol", login.protocol)
        .with("auth_mechanism", login.mechanism);
    if let Ok(peer) = login.peer.parse::<SocketAddr>() {
        event = event.with("peer_host", &*peer.ip().to_string());
        event = event.with("peer_port", i64::from(peer.port()));
    }
    if let Some(Recipient::Connection(connection)) = node.recipient(login.connection) {
        let local = connection.local();
        event = event
            .with("connection_name", &*connection.name())
            .with("host", &*local.ip().to_string())
            .with("ssl", connection.is_encrypted());
    }
    Some(match refused {
        Some(why) => event.with("error", why.as_str()),
        None => event,
    })
}

fn barred(login: &Login) -> Verdict {
    match login.barred {
        None => Ok(Admitted::known(&login.user)),
        Some(why) => Err(why.to_owned()),
    }
}

/// The beginning of a name that is too long.
fn shortened(name: &str) -> &str {
    &name[..name.floor_char_boundary(NAME_MAX)]
}

/// About how many bytes a login takes while it waits.
fn bytes(login: &Login) -> usize {
    let password = match &login.proof {
        Proof::Password(password) => password.reveal().len(),
        Proof::Certificate => 0,
    };
    let connection = login.connection_name.as_ref().map_or(0, String::len);
    // Its line has the name a second time.
    2 * login.user.len() + password + login.peer.len() + connection + JOB_BYTES
}

/// Whose share of the room a login has.
fn from(login: &Login) -> Network {
    address(login).map(network_of)
}

fn address(login: &Login) -> Option<IpAddr> {
    login.peer.parse::<SocketAddr>().ok().map(|address| address.ip().to_canonical())
}
