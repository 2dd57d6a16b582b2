//! The probe: what an ordinary client feels while others do large things.
//!
//! A round is what a small program does: it connects, declares a queue, publishes a persistent message and waits for the confirm, gets
//! the message, deletes the queue and closes. Rounds follow one another, and the slowest of them tells how long the node let an
//! innocent client wait. Beside them a connection does nothing but listen to heartbeats.
//!
//! A round that fails counts with the time it took: whoever waited for nothing has waited.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use hdrhistogram::Histogram;
use leveret_client::amqp::method::Method;
use leveret_client::{Connection, Error, Event, Options as ClientOptions, QueueDeclare, Uri};
use serde::Serialize;

use crate::stats::{Percentiles, histogram};

mod command;

pub use command::{ProbeArgs, main};

/// Texts of failures that are kept; all are counted.
const TEXTS: usize = 20;
/// The silent connection's heartbeat, in seconds: short, so that a node that stalls for some seconds is found out.
const HEARTBEAT_S: u16 = 2;
/// Persistent, as the header of a content says it: the flags of its properties, and the delivery mode 2.
const PERSISTENT: [u8; 3] = [0x10, 0x00, 2];

/// How to probe.
#[derive(Clone, Debug)]
pub struct ProbeOptions {
    /// Where the broker is.
    pub uri: String,
    /// A round begins so long after the one before began, or at once when that took longer.
    pub every: Duration,
    /// Longest time for one step of a round; then it has failed.
    pub timeout: Duration,
}

impl ProbeOptions {
    /// Rounds one after the other, as fast as a small program would.
    pub fn new(uri: &str) -> Self {
        let (every, timeout) = (Duration::from_millis(10), Duration::from_secs(15));
        Self { uri: uri.to_owned(), every, timeout }
    }
}

/// A part of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    /// From the socket to `connection.open-ok`.
    Login,
    /// A channel, and a durable queue.
    Declare,
    /// A persistent message, until its confirm.
    Publish,
    /// The same message, got without an ack.
    Get,
    /// The queue is deleted, the connection closed.
    Close,
}

impl Step {
    /// All of them, in order.
    pub const ALL: [Self; 5] = [Self::Login, Self::Declare, Self::Publish, Self::Get, Self::Close];

    /// The word in lines.
    pub fn name(self) -> &'static str {
        match self {
            Self::Login => "login",
            Self::Declare => "declare",
            Self::Publish => "publish",
            Self::Get => "get",
            Self::Close => "close",
        }
    }
}

/// One round.
#[derive(Clone, Debug)]
pub struct Round {
    /// When it began.
    pub began: Instant,
    /// How long each step took, as far as it came.
    pub steps: [Duration; Step::ALL.len()],
    /// The step that failed, and why.
    pub failure: Option<(Step, String)>,
}

impl Round {
    /// From the socket to the end.
    pub fn took(&self) -> Duration {
        self.steps.iter().sum()
    }

    /// The step that took longest.
    pub fn slowest_step(&self) -> Step {
        let slowest = Step::ALL.into_iter().max_by_key(|step| self.steps[*step as usize]);
        slowest.unwrap_or(Step::Login)
    }
}

/// What a probe has found.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Probed {
    /// How long it probed.
    pub seconds: f64,
    /// Rounds, failed ones too.
    pub rounds: u64,
    /// Half of the rounds took no longer.
    pub p50_ms: f64,
    /// 99 in a hundred.
    pub p99_ms: f64,
    /// The slowest.
    pub slowest_ms: f64,
    /// When the slowest began, in seconds after the start.
    pub slowest_at_s: f64,
    /// What of it took longest.
    pub slowest_step: Option<Step>,
    /// Rounds that did not get in.
    pub failed_logins: u64,
    /// Rounds that failed later.
    pub errors: u64,
    /// How often the silent connection missed the node's heartbeats, or was ended.
    pub missed_heartbeats: u64,
    /// The longest time in which the silent connection heard nothing; the node is to be heard once a second.
    pub longest_silence_ms: f64,
    /// Why rounds failed: the first of them.
    pub failures: Vec<String>,
}

impl Probed {
    /// Whether nothing failed.
    pub fn is_clean(&self) -> bool {
        self.failed_logins == 0 && self.errors == 0 && self.missed_heartbeats == 0
    }
}

/// A probe at work, on two threads of its own.
#[derive(Debug)]
pub struct Probe {
    stop: Arc<Stop>,
    rounds: JoinHandle<Probed>,
    silent: JoinHandle<Silence>,
}

/// Tells both threads that it is time to end.
#[derive(Debug, Default)]
struct Stop {
    is_set: AtomicBool,
    lock: Mutex<()>,
    woken: Condvar,
}

impl Stop {
    fn set(&self) {
        self.is_set.store(true, Ordering::Release);
        let _held = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.woken.notify_all();
    }

    fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Acquire)
    }

    /// Returns at this moment, or when it is time to end.
    fn sleep_until(&self, at: Instant) {
        let mut held = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        while !self.is_set() {
            let left = at.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.woken.wait_timeout(held, left);
            held = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Probe {
    /// Begins; `on_round` is called after each round, from the probe's thread.
    pub fn start(
        options: &ProbeOptions,
        mut on_round: impl FnMut(&Round) + Send + 'static,
    ) -> Result<Self> {
        let uri: Uri = options.uri.parse().with_context(|| "the probe's address".to_owned())?;
        let client = ClientOptions {
            name: Some("leveret probe".to_owned()),
            heartbeat_s: Some(0),
            read_bytes: 16 * 1024,
            timeout: options.timeout,
            ..ClientOptions::default()
        };
        let stop = Arc::<Stop>::default();
        let listener =
            ClientOptions { heartbeat_s: Some(HEARTBEAT_S), read_bytes: 4096, ..client.clone() };
        let (silent_uri, silent_stop) = (uri.clone(), Arc::clone(&stop));
        let silent = std::thread::Builder::new()
            .name("probe-silent".to_owned())
            .spawn(move || listen(&silent_uri, &listener, &silent_stop))?;
        let (every, told) = (options.every, Arc::clone(&stop));
        let rounds = std::thread::Builder::new().name("probe".to_owned()).spawn(move || {
            let mut tally = Tally::new();
            while !told.is_set() {
                let next = Instant::now() + every;
                let round = round(&uri, &client, tally.probed.rounds);
                tally.add(&round);
                on_round(&round);
                told.sleep_until(next);
            }
            tally.done()
        })?;
        Ok(Self { stop, rounds, silent })
    }

    /// Ends after the round that is under way, and says what was found.
    pub fn stop(self) -> Probed {
        self.stop.set();
        let silence = self.silent.join().unwrap_or_default();
        let probed = self.rounds.join().unwrap_or_default();
        Probed {
            missed_heartbeats: silence.missed,
            longest_silence_ms: ms(silence.longest),
            ..probed
        }
    }
}

/// One round; the number makes the queue's name and the body.
fn round(uri: &Uri, client: &ClientOptions, number: u64) -> Round {
    let began = Instant::now();
    let mut clock = Watch { began, steps: Default::default(), at: Step::Login };
    let failure = walk(uri, client, number, &mut clock).err();
    clock.lap(clock.at);
    Round { began, steps: clock.steps, failure: failure.map(|text| (clock.at, text)) }
}

/// The time of each step.
struct Watch {
    began: Instant,
    steps: [Duration; Step::ALL.len()],
    /// The step under way.
    at: Step,
}

impl Watch {
    /// The step under way is over, the next one begins.
    fn lap(&mut self, next: Step) {
        let now = Instant::now();
        self.steps[self.at as usize] += now - self.began;
        (self.began, self.at) = (now, next);
    }
}

fn walk(uri: &Uri, client: &ClientOptions, number: u64, clock: &mut Watch) -> Result<(), String> {
    let said = |error: Error| error.to_string();
    let mut connection = Connection::open(uri, client).map_err(said)?;
    clock.lap(Step::Declare);
    let queue = format!("leveret-probe-{}-{number}", std::process::id());
    let channel = connection.open_channel().map_err(said)?;
    let how = QueueDeclare { durable: true, ..QueueDeclare::default() };
    connection.queue_declare(channel, &queue, &how).map_err(said)?;
    clock.lap(Step::Publish);
    connection.confirm_select(channel).map_err(said)?;
    connection.publish(channel, "", &queue, &PERSISTENT, queue.as_bytes());
    await_confirm(&mut connection, client.timeout)?;
    clock.lap(Step::Get);
    match connection.get(channel, &queue, true).map_err(said)? {
        Some(got) if got.body == queue.as_bytes() => {}
        Some(_) => return Err("another message than the confirmed one was got".to_owned()),
        None => return Err("a confirmed message is not in its queue".to_owned()),
    }
    clock.lap(Step::Close);
    connection.queue_delete(channel, &queue).map_err(said)?;
    connection.close().map_err(said)
}

/// Waits for the confirm of the only message of this connection.
fn await_confirm(connection: &mut Connection, timeout: Duration) -> Result<(), String> {
    let said = |error: Error| error.to_string();
    let deadline = Instant::now() + timeout;
    connection.flush().map_err(said)?;
    loop {
        while let Some(event) = connection.next_event().map_err(said)? {
            match event {
                Event::Method { method: Method::BasicAck(_), .. } => return Ok(()),
                Event::Method { method: Method::BasicNack(_), .. } => {
                    return Err("the message was refused (basic.nack)".to_owned());
                }
                _ => {}
            }
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let why = if connection.is_blocked() { " (connection.blocked)" } else { "" };
            return Err(format!("no confirm in time{why}"));
        }
        connection.wait(left).map_err(said)?;
    }
}

/// What the silent connection heard of the node.
#[derive(Debug, Default)]
struct Silence {
    missed: u64,
    longest: Duration,
}

fn listen(uri: &Uri, client: &ClientOptions, stop: &Stop) -> Silence {
    // Short, so that an end is seen soon.
    const LOOK: Duration = Duration::from_millis(200);
    let mut silence = Silence::default();
    while !stop.is_set() {
        // Rounds count logins that fail.
        let Ok(mut connection) = Connection::open(uri, client) else {
            stop.sleep_until(Instant::now() + LOOK);
            continue;
        };
        let mut heard = Instant::now();
        while !stop.is_set() {
            match connection.wait(LOOK).and_then(|came| drain(&mut connection).map(|()| came)) {
                Ok(true) => heard = Instant::now(),
                Ok(false) => silence.longest = silence.longest.max(heard.elapsed()),
                Err(_) => {
                    silence.longest = silence.longest.max(heard.elapsed());
                    silence.missed += 1;
                    break;
                }
            }
        }
    }
    silence
}

fn drain(connection: &mut Connection) -> Result<(), Error> {
    while connection.next_event()?.is_some() {}
    Ok(())
}

/// Adds rounds up.
struct Tally {
    began: Instant,
    times_ns: Histogram<u64>,
    probed: Probed,
}

impl Tally {
    fn new() -> Self {
        Self { began: Instant::now(), times_ns: histogram(), probed: Probed::default() }
    }

    fn add(&mut self, round: &Round) {
        let took = round.took();
        self.times_ns.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        let probed = &mut self.probed;
        probed.rounds += 1;
        if ms(took) > probed.slowest_ms {
            probed.slowest_ms = ms(took);
            probed.slowest_at_s = round.began.saturating_duration_since(self.began).as_secs_f64();
            probed.slowest_step = Some(round.slowest_step());
        }
        let Some((step, text)) = &round.failure else { return };
        if *step == Step::Login {
            probed.failed_logins += 1;
        } else {
            probed.errors += 1;
        }
        if probed.failures.len() < TEXTS {
            let at_s = round.began.saturating_duration_since(self.began).as_secs_f64();
            probed.failures.push(format!("at {at_s:.1} s, {}: {text}", step.name()));
        }
    }

    fn done(mut self) -> Probed {
        if let Some(times) = Percentiles::of(&self.times_ns) {
            self.probed.p50_ms = times.p50 as f64 / 1e6;
            self.probed.p99_ms = times.p99 as f64 / 1e6;
        }
        self.probed.seconds = self.began.elapsed().as_secs_f64();
        self.probed
    }
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_of(ms: [u64; 5], failure: Option<(Step, &str)>) -> Round {
        let failure = failure.map(|(step, text)| (step, text.to_owned()));
        Round { began: Instant::now(), steps: ms.map(Duration::from_millis), failure }
    }

    #[test]
    fn rounds_add_up() {
        let mut tally = Tally::new();
        tally.add(&round_of([1, 1, 1, 1, 1], None));
        tally.add(&round_of([1, 70, 2, 1, 1], None));
        tally.add(&round_of([9, 0, 0, 0, 0], Some((Step::Login, "refused"))));
        tally.add(&round_of([1, 1, 9, 0, 0], Some((Step::Publish, "no confirm in time"))));
        let probed = tally.done();
        assert_eq!((probed.rounds, probed.failed_logins, probed.errors), (4, 1, 1));
        assert_eq!((probed.slowest_ms, probed.slowest_step), (75.0, Some(Step::Declare)));
        assert!(probed.failures[0].ends_with("login: refused"), "{:?}", probed.failures);
        assert!(!probed.is_clean());
    }

    /// Nobody listens there: every round is a login that failed, and the end comes at once.
    #[test]
    fn a_broker_that_is_not_there() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let uri = format!("amqp://127.0.0.1:{}", socket.local_addr().unwrap().port());
        drop(socket);
        let (told, rounds) = std::sync::mpsc::channel();
        let options = ProbeOptions::new(&uri);
        let probe = Probe::start(&options, move |round| drop(told.send(round.clone()))).unwrap();
        let first = rounds.recv_timeout(Duration::from_secs(10)).unwrap();
        assert!(matches!(first.failure, Some((Step::Login, _))));
        let probed = probe.stop();
        assert!(probed.failed_logins == probed.rounds && probed.rounds > 0);
    }
}
