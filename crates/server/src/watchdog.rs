//! Watches turns, locks and threads from outside: reports one that takes too long, and in the end ends the process.
//!
//! The watchdog has some threads, none of which runs turns:
//!
//! ```text
//!   each thread with a runner --stamps each turn--\
//!   the stop                  --stamps each step---\
//!   the asker: locks, threads --stamps each wait----+-- beats <--looks twice a second-- the watcher --> log, metric, health, abort
//!                                                   |
//!   disks, logins             --stamps each job----/   told, and no reason for an abort
//!   another asker: management --stamps each wait--/
//! ```
//!
//! A thread stamps its [`Beat`] when a turn begins and ends: two counters, no clock. The asker goes through everything that
//! others need, once a second: it takes the lock of each actor and of the names, and has each thread do something. It stamps
//! its own beat for each. So the watchdog finds a lock that is held for long, whatever holds it.
//!
//! The watcher counts its own looks and not time. A turn does not become older in a process that was stopped, on a machine that
//! slept, or on one that was too busy to let the watcher run.
//!
//! A slow disk is no fault, a login may wait for other systems, and messages flow without the management API. Such a thread is
//! reported, and health checks fail, but the process goes on. A stop is watched to its end. Its last writes may take longer, as a
//! disk may.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use crate::locks::{Rank, Ranked};
use crate::logging::{LAST_LINES, Logs};
use crate::long::{self, LONG_US, Lately, Long, Spent};
use crate::node::Node;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(500);
/// Between two rounds of the asker, unless a service manager wants to hear more often.
pub(crate) const ROUND: Duration = Duration::from_secs(1);
/// Looks after which something takes long: a second.
const LONG: u64 = 2;
/// How much longer than a turn what is written last may take.
const PUT_AWAY: u64 = 5;
/// Looks that it may take at least: a minute, twice as long as a stop has patience with a disk that takes nothing.
const PUT_AWAY_MIN: u64 = 120;
/// What the log may take before the process ends without it: what hangs may be the log.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// What a thread is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// A shard's turn.
    Shard(usize),
    /// The turn of the names' owner.
    Meta,
    /// A connection's turn.
    Connection(u64),
    /// Waits for a shard's lock.
    ShardLock(usize),
    /// Waits for the lock of the names' owner.
    MetaLock,
    /// Waits for the names.
    Names,
    /// Waits for a thread.
    Thread(usize),
    /// Waits for the thread of the management API.
    Management,
    /// Waits for the thread that asks sources of users.
    Sources,
    /// Checks a password.
    Login,
    /// Writes, syncs or reads.
    Disk,
    /// Ends clients and threads.
    Stop,
    /// Writes what is left when all have ended.
    PutAway,
}

impl Doing {
    /// In one number, so that a stamp is one store: the kind below, its number above.
    fn packed(self) -> u64 {
        let (kind, number) = match self {
            Self::Shard(index) => (0, index as u64),
            Self::Meta => (1, 0),
            Self::Connection(id) => (2, id),
            Self::ShardLock(index) => (3, index as u64),
            Self::MetaLock => (4, 0),
            Self::Names => (5, 0),
            Self::Thread(index) => (6, index as u64),
            Self::Management => (7, 0),
            Self::Sources => (8, 0),
            Self::Login => (9, 0),
            Self::Disk => (10, 0),
            Self::Stop => (11, 0),
            Self::PutAway => (12, 0),
        };
        kind | number << 4
    }

    fn unpacked(packed: u64) -> Self {
        let number = packed >> 4;
        match packed & 15 {
            0 => Self::Shard(number as usize),
            1 => Self::Meta,
            2 => Self::Connection(number),
            3 => Self::ShardLock(number as usize),
            4 => Self::MetaLock,
            5 => Self::Names,
            6 => Self::Thread(number as usize),
            7 => Self::Management,
            8 => Self::Sources,
            9 => Self::Login,
            10 => Self::Disk,
            11 => Self::Stop,
            _ => Self::PutAway,
        }
    }

    /// Looks after which it takes long.
    fn long(self) -> u64 {
        match self {
            // Ten seconds: a slow disk or an expensive hash is no fault.
            Self::Disk | Self::Login | Self::PutAway => 20,
            _ => LONG,
        }
    }

    /// Looks after which the process is ended. None if it goes on, however long it takes.
    fn end(self, timeout: Option<u64>) -> Option<u64> {
        match self {
            Self::Management | Self::Sources | Self::Login | Self::Disk => None,
            Self::PutAway => timeout.map(|looks| looks.saturating_mul(PUT_AWAY).max(PUT_AWAY_MIN)),
            _ => timeout,
        }
    }
}

impl fmt::Display for Doing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shard(index) => write!(f, "a turn of shard {index}"),
            Self::Meta => f.write_str("a turn of the owner of the names"),
            Self::Connection(id) => write!(f, "a turn of connection {id}"),
            Self::ShardLock(index) => {
                write!(f, "the lock of shard {index}, held by another thread")
            }
            Self::MetaLock => {
                f.write_str("the lock of the owner of the names, held by another thread")
            }
            Self::Names => f.write_str("the lock of the names, held by another thread"),
            Self::Thread(index) => write!(f, "thread {index}, which does nothing it is asked to"),
            Self::Management => {
                f.write_str("the thread of the management API, which does nothing it is asked to")
            }
            Self::Sources => f.write_str(
                "the thread that asks sources of users, which does nothing it is asked to",
            ),
            Self::Login => f.write_str("the check of a password"),
            Self::Disk => f.write_str("a write, sync or read of the disk"),
            Self::Stop => f.write_str("the end of clients and threads in a stop"),
            Self::PutAway => f.write_str("what a stop writes last"),
        }
    }
}

/// What one thread is at, for the watcher to see. One writer.
#[derive(Debug)]
pub(crate) struct Beat {
    thread: String,
    /// Odd while something is under way.
    count: AtomicU64,
    doing: AtomicU64,
}

impl Beat {
    /// That of this thread.
    fn of_this_thread() -> Self {
        let thread = std::thread::current().name().unwrap_or("without a name").to_owned();
        Self { thread, count: AtomicU64::new(0), doing: AtomicU64::new(0) }
    }

    /// Something begins.
    pub(crate) fn begins(&self, doing: Doing) {
        self.doing.store(doing.packed(), Ordering::Relaxed);
        self.count.store(self.count.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// What this thread is at, or was last.
    pub(crate) fn doing(&self) -> Doing {
        Doing::unpacked(self.doing.load(Ordering::Relaxed))
    }

    /// It is over.
    pub(crate) fn ends(&self) {
        self.count.store(self.count.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// It is over, and the next thing begins.
    pub(crate) fn goes_on(&self, doing: Doing) {
        self.ends();
        self.begins(doing);
    }
}

/// The beats of the disks' threads: a log is opened before there is a node.
static DISKS: Ranked<Vec<Arc<Beat>>> = Ranked::new(Rank::Watched, Vec::new());

/// Those of them that write what confirms wait for.
static WRITERS: Ranked<Vec<Arc<Beat>>> = Ranked::new(Rank::Watched, Vec::new());

/// Finds writes that do not end.
#[derive(Debug, Default)]
pub(crate) struct WritersWatch(Vec<(Arc<Beat>, Seen)>);

impl WritersWatch {
    /// One more look: for how many looks the write that takes longest has been under way.
    pub(crate) fn look(&mut self) -> u64 {
        self.look_at(&WRITERS.lock())
    }

    fn look_at(&mut self, writers: &[Arc<Beat>]) -> u64 {
        let seen = |beat| {
            let before = self.0.iter().find(|(it, _)| Arc::ptr_eq(it, beat));
            let mut seen = before.map_or_else(Seen::default, |(_, seen)| *seen);
            seen.goes_on(beat);
            (Arc::clone(beat), seen)
        };
        self.0 = writers.iter().map(seen).collect();
        self.0.iter().map(|(_, seen)| seen.looks).max().unwrap_or_default()
    }
}

/// The beat of a disk's thread, watched while it lives.
#[derive(Debug)]
pub(crate) struct DiskBeat(Arc<Beat>, Cell<Spent>);

impl DiskBeat {
    /// That of this thread; of one that `writes` what confirms wait for.
    pub(crate) fn of_this_thread(writes: bool) -> Self {
        let beat = Arc::new(Beat::of_this_thread());
        DISKS.lock().push(Arc::clone(&beat));
        if writes {
            WRITERS.lock().push(Arc::clone(&beat));
        }
        Self(beat, Cell::default())
    }

    /// Does something with the disk.
    pub(crate) fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        self.during_what(|| Doing::Disk.to_string(), work)
    }

    /// The same; `what` is asked if it takes long.
    pub(crate) fn during_what<T>(
        &self,
        what: impl FnOnce() -> String,
        work: impl FnOnce() -> T,
    ) -> T {
        self.0.begins(Doing::Disk);
        let done = long::DISKS.during(what, &self.1, work);
        self.0.ends();
        done
    }
}

impl Drop for DiskBeat {
    fn drop(&mut self) {
        for of in [&DISKS, &WRITERS] {
            of.lock().retain(|beat| !Arc::ptr_eq(beat, &self.0));
        }
    }
}

/// What is watched, and what was seen.
#[derive(Debug)]
pub struct Watched {
    beats: Ranked<Vec<Arc<Beat>>>,
    /// Threads that are to do something when they are asked.
    threads: Ranked<Vec<Handle>>,
    /// Threads without which messages flow, too.
    others: Ranked<Vec<(Handle, Doing)>>,
    /// Rounds of the asker that are over.
    rounds: AtomicU64,
    /// Turns, locks and threads that took longer than a second.
    stalls: AtomicU64,
    /// How long the longest of them takes up to now, in ms; 0 for none.
    longest_ms: AtomicU64,
    /// What it is.
    longest: AtomicU64,
    pub(crate) lately: Lately,
    /// Another one of the same process: what is told of this one is told of both.
    beside: OnceLock<Arc<Self>>,
}

impl Default for Watched {
    fn default() -> Self {
        Self {
            beats: Ranked::new(Rank::Watched, Vec::new()),
            threads: Ranked::new(Rank::Watched, Vec::new()),
            others: Ranked::new(Rank::Watched, Vec::new()),
            rounds: AtomicU64::new(0),
            stalls: AtomicU64::new(0),
            longest_ms: AtomicU64::new(0),
            longest: AtomicU64::new(0),
            lately: Lately::default(),
            beside: OnceLock::new(),
        }
    }
}

impl Watched {
    /// A beat for this thread, which is watched from now on.
    pub(crate) fn beat(&self) -> Arc<Beat> {
        let beat = Arc::new(Beat::of_this_thread());
        self.beats.lock().push(Arc::clone(&beat));
        beat
    }

    /// The thread of this runtime is asked from now on whether it does anything.
    pub fn ask_thread(&self, handle: Handle) {
        self.threads.lock().push(handle);
    }

    /// So is the thread of the management API. If it hangs that is told, but is no reason to end the process.
    pub fn ask_management(&self, handle: Handle) {
        self.others.lock().push((handle, Doing::Management));
    }

    /// And so is the thread that asks sources of users.
    pub(crate) fn ask_sources(&self, handle: Handle) {
        self.others.lock().push((handle, Doing::Sources));
    }

    /// From now on what is seen of another one of this process is told with this one's.
    pub(crate) fn tells_of(&self, other: Arc<Self>) {
        let _ = self.beside.set(other);
    }

    fn all(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(self.beside.get().map(Arc::as_ref))
    }

    /// Turns, locks and threads that took longer than a second, up to now.
    pub fn stalls(&self) -> u64 {
        self.all().map(|it| it.stalls.load(Ordering::Relaxed)).sum()
    }

    /// What took long lately, if not as long as a second: the oldest first.
    pub fn lately(&self) -> Vec<Long> {
        let mut all: Vec<Long> = self.all().flat_map(|it| it.lately.all()).collect();
        all.extend(long::DISKS.all());
        all.sort_by_key(|it| it.began);
        all
    }

    /// A thread that runs no turns has held the names since then.
    #[inline]
    pub fn held_names(&self, since: Instant) {
        let took = since.elapsed();
        if took.as_micros() as u64 >= LONG_US {
            self.lately.held_names(took);
        }
    }

    /// How much of that there was since the start.
    pub fn long_count(&self) -> u64 {
        self.all().map(|it| it.lately.count()).sum::<u64>() + long::DISKS.count()
    }

    /// What takes longest now, and how long up to now, if that is more than a second. Takes no lock.
    pub fn stall(&self) -> Option<(Duration, String)> {
        let longest = self.all().map(|it| (it.longest_ms.load(Ordering::Acquire), it));
        let (ms, it) = longest.max_by_key(|(ms, _)| *ms)?;
        let doing = Doing::unpacked(it.longest.load(Ordering::Relaxed));
        (ms > 0).then(|| (Duration::from_millis(ms), doing.to_string()))
    }

    /// Rounds of the asker: every actor and thread answered in each.
    pub(crate) fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Acquire)
    }
}

/// What the watcher knows of one beat.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    count: u64,
    /// Looks at which nothing had changed.
    looks: u64,
    /// It takes long, and that was told.
    is_told: bool,
}

impl Seen {
    /// One more look. Whether what was under way at the last one still is.
    fn goes_on(&mut self, beat: &Beat) -> bool {
        let count = beat.count.load(Ordering::Acquire);
        let goes_on = count == self.count && !count.is_multiple_of(2);
        *self = match goes_on {
            true => Self { looks: self.looks + 1, ..*self },
            false => Self { count, ..Self::default() },
        };
        goes_on
    }
}

/// What a look found.
#[derive(Clone, Debug, PartialEq, Eq)]
enum News {
    /// It takes so many looks already; a new one if nothing was told of it before.
    Long { thread: String, doing: Doing, looks: u64, is_new: bool },
    /// It is over, after about so many.
    Over { thread: String, looks: u64 },
    /// It takes too long.
    TooLong { thread: String, doing: Doing, looks: u64 },
}

/// Looks at beats. Knows no clock.
#[derive(Debug)]
struct Watcher {
    seen: Vec<Seen>,
    /// Looks after which the process is ended.
    end: Option<u64>,
}

impl Watcher {
    fn new(timeout: Duration) -> Self {
        let looks = timeout.as_millis().div_ceil(LOOK.as_millis());
        Self { seen: Vec::new(), end: (looks > 0).then_some((looks as u64).max(LONG)) }
    }

    /// One more look; what takes longest now, in looks.
    fn look(&mut self, beats: &[Arc<Beat>], news: &mut Vec<News>) -> Option<(u64, Doing)> {
        self.seen.resize(beats.len(), Seen::default());
        let mut longest = None;
        for (seen, beat) in self.seen.iter_mut().zip(beats) {
            let thread = || beat.thread.clone();
            let before = *seen;
            if !seen.goes_on(beat) {
                if before.is_told {
                    news.push(News::Over { thread: thread(), looks: before.looks });
                }
                continue;
            }
            let (looks, doing) = (seen.looks, Doing::unpacked(beat.doing.load(Ordering::Relaxed)));
            let is_long = looks >= doing.long();
            if is_long && longest.is_none_or(|(most, _)| looks > most) {
                longest = Some((looks, doing));
            }
            if doing.end(self.end).is_some_and(|end| looks >= end) {
                news.push(News::TooLong { thread: thread(), doing, looks });
            } else if is_long && (!seen.is_told || looks.is_power_of_two()) {
                let is_new = !std::mem::replace(&mut seen.is_told, true);
                news.push(News::Long { thread: thread(), doing, looks, is_new });
            }
        }
        longest
    }
}

/// How long so many looks are.
fn length(looks: u64) -> Duration {
    LOOK * u32::try_from(looks).unwrap_or(u32::MAX)
}

/// Its threads. They end when this is dropped, or with the process.
#[derive(Debug)]
pub(crate) struct Watchdog {
    stop: Arc<AtomicBool>,
    /// Locks and threads are asked no more.
    asked: Arc<AtomicBool>,
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.ask_no_more();
        self.stop.store(true, Ordering::Release);
    }
}

impl Watchdog {
    /// From now on a lock may be held for as long as a disk takes.
    pub(crate) fn ask_no_more(&self) {
        self.asked.store(true, Ordering::Release);
    }

    /// Begins. A zero `timeout` never ends the process. The asker rests for `round` between two rounds.
    pub(crate) fn start(
        node: &Arc<Node>,
        logs: &Logs,
        timeout: Duration,
        round: Duration,
    ) -> std::io::Result<Self> {
        let (stop, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let (tell, told) = channel();
        let (telling, logs, asking) = (Arc::clone(node), logs.clone(), Arc::clone(node));
        thread("watchdog-log").spawn(move || write_news(&telling, &logs, &told))?;
        let over = Arc::clone(&asked);
        thread("watchdog-ask").spawn(move || {
            let beat = asking.watched.beat();
            while !over.load(Ordering::Acquire) {
                ask_all(&asking, &beat);
                asking.watched.rounds.fetch_add(1, Ordering::AcqRel);
                std::thread::sleep(round);
            }
        })?;
        // By itself: what hangs there must not keep the other one from its rounds.
        let (over, asking) = (Arc::clone(&asked), Arc::clone(node));
        thread("watchdog-other").spawn(move || {
            let beat = asking.watched.beat();
            while !over.load(Ordering::Acquire) {
                let others = asking.watched.others.lock().clone();
                others.iter().for_each(|(thread, doing)| ask_thread(thread, *doing, &beat));
                std::thread::sleep(ROUND);
            }
        })?;
        let (node, stopped) = (Arc::clone(node), Arc::clone(&stop));
        thread("watchdog").spawn(move || watch(&node, timeout, &stopped, &tell))?;
        Ok(Self { stop, asked })
    }
}

/// Takes each lock and asks each thread, one after the other.
fn ask_all(node: &Node, beat: &Beat) {
    let wait = |doing, for_it: &dyn Fn()| {
        beat.begins(doing);
        for_it();
        beat.ends();
    };
    // While a shard's queues are filled its lock is held for as long as that takes.
    let shards = node.is_filled().then_some(&node.shards);
    for (index, shard) in shards.into_iter().flatten().enumerate() {
        wait(Doing::ShardLock(index), &|| drop(shard.actor.state()));
    }
    // A node of sessions has neither shards nor an owner of the names.
    if !node.shards.is_empty() {
        wait(Doing::MetaLock, &|| drop(node.meta().state()));
    }
    wait(Doing::Names, &|| drop(node.topology()));
    let threads = node.watched.threads.lock().clone();
    for (index, thread) in threads.iter().enumerate() {
        ask_thread(thread, Doing::Thread(index), beat);
    }
}

/// Has a thread do something, and waits for it.
fn ask_thread(thread: &Handle, doing: Doing, beat: &Beat) {
    let (done, is_done) = channel::<()>();
    thread.spawn(async move { drop(done) });
    beat.begins(doing);
    // An error means that it was done, or that the thread ends.
    let _ = is_done.recv();
    beat.ends();
}

/// All that is looked at. A node without shards, one of sessions, has no disk: that of the broker beside it tells of them.
fn beats_of(node: &Node) -> Vec<Arc<Beat>> {
    let mut beats = node.watched.beats.lock().clone();
    if !node.shards.is_empty() {
        beats.extend(DISKS.lock().iter().cloned());
    }
    beats
}

fn watch(node: &Node, timeout: Duration, stop: &AtomicBool, tell: &Sender<(News, Sender<()>)>) {
    let mut watcher = Watcher::new(timeout);
    let watched = &node.watched;
    while !stop.load(Ordering::Acquire) {
        std::thread::sleep(LOOK);
        let beats = beats_of(node);
        let mut news = Vec::new();
        let longest = watcher.look(&beats, &mut news);
        if let Some((_, doing)) = longest {
            watched.longest.store(doing.packed(), Ordering::Relaxed);
        }
        let longest_ms = longest.map_or(0, |(looks, _)| length(looks).as_millis() as u64);
        watched.longest_ms.store(longest_ms, Ordering::Release);
        for one in news {
            if matches!(one, News::Long { is_new: true, .. }) {
                watched.stalls.fetch_add(1, Ordering::Relaxed);
            }
            let last_words = match &one {
                News::TooLong { thread, doing, looks } => Some(format!(
                    "leveret: watchdog: {doing} takes {} s on thread {thread}: the process is ended (watchdog.timeout)",
                    length(*looks).as_secs_f64()
                )),
                _ => None,
            };
            let (written, is_written) = channel();
            let also_written = written.clone();
            // What hangs must not keep us from going on.
            let _ = tell.send((one, written));
            let Some(last_words) = last_words else { continue };
            if !stop.load(Ordering::Acquire) {
                // On a thread of its own, as the one that writes the log may hang with it.
                let last = std::thread::Builder::new().name("watchdog-last".to_owned());
                let _ = last.spawn(move || {
                    eprintln!("{last_words}");
                    drop(also_written);
                });
                let _ = is_written.recv_timeout(LAST_WORDS);
                std::process::abort();
            }
        }
    }
}

/// Writes what was found into the log, on a thread of its own: the lock of the connections may be what hangs.
fn write_news(node: &Node, logs: &Logs, news: &Receiver<(News, Sender<()>)>) {
    let at = Instant::now();
    while let Ok((one, _written)) = news.recv() {
        let up_s = at.elapsed().as_secs();
        match one {
            News::Long { thread, doing, looks, .. } => {
                let seconds = length(looks).as_secs_f64();
                tracing::warn!(
                    thread,
                    seconds,
                    client = client_of(node, doing),
                    "watchdog: {doing} takes long"
                );
            }
            News::Over { thread, looks } => {
                tracing::info!(
                    thread,
                    seconds = length(looks).as_secs_f64(),
                    "watchdog: what took long is over"
                );
            }
            News::TooLong { thread, doing, looks } => {
                let seconds = length(looks).as_secs_f64();
                tracing::error!(
                    thread,
                    seconds,
                    up_s,
                    "watchdog: {doing} takes longer than watchdog.timeout: the process is ended, so that it is started again"
                );
                logs.flush(LAST_LINES);
            }
        }
    }
}

/// Who is at the other end of a connection that takes long.
fn client_of(node: &Node, doing: Doing) -> Option<String> {
    let Doing::Connection(id) = doing else { return None };
    let connection = node.connections().into_iter().find(|it| it.id().number() == id)?;
    Some(connection.peer().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beat(name: &str) -> Arc<Beat> {
        let (count, doing) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Beat { thread: name.to_owned(), count, doing })
    }

    /// What the next looks find.
    fn looks(watcher: &mut Watcher, beats: &[Arc<Beat>], count: usize) -> Vec<News> {
        let mut news = Vec::new();
        for _ in 0..count {
            watcher.look(beats, &mut news);
        }
        news
    }

    #[test]
    fn everything_fits_into_a_stamp() {
        for doing in [
            Doing::Shard(1023),
            Doing::Meta,
            Doing::Connection(1 << 59),
            Doing::ShardLock(2),
            Doing::MetaLock,
            Doing::Names,
            Doing::Thread(3),
            Doing::Management,
            Doing::Sources,
            Doing::Login,
            Doing::Disk,
            Doing::Stop,
            Doing::PutAway,
        ] {
            assert_eq!(Doing::unpacked(doing.packed()), doing);
        }
    }

    #[test]
    fn a_turn_that_does_not_end() {
        let beats = [beat("a"), beat("b")];
        let mut watcher = Watcher::new(Duration::from_secs(3));
        assert_eq!(looks(&mut watcher, &beats, 20), [], "nothing is under way");
        beats[1].begins(Doing::Shard(1));
        // It began after the last look: that it is there is all that the first one sees.
        assert_eq!(looks(&mut watcher, &beats, 2), []);
        let (thread, doing) = ("b".to_owned(), Doing::Shard(1));
        let long = |looks, is_new| News::Long { thread: thread.clone(), doing, looks, is_new };
        assert_eq!(looks(&mut watcher, &beats, 1), [long(2, true)]);
        assert_eq!(looks(&mut watcher, &beats, 3), [long(4, false)]);
        let too_long = News::TooLong { thread: thread.clone(), doing, looks: 6 };
        assert_eq!(looks(&mut watcher, &beats, 1), [too_long]);
        beats[1].ends();
        assert_eq!(looks(&mut watcher, &beats, 1), [News::Over { thread, looks: 6 }]);
    }

    /// A thread that makes many turns is never seen in the same one, however busy it is.
    #[test]
    fn a_busy_thread_is_not_stuck() {
        let beats = [beat("a")];
        let mut watcher = Watcher::new(Duration::from_secs(1));
        for _ in 0..100 {
            beats[0].begins(Doing::Meta);
            assert_eq!(looks(&mut watcher, &beats, 1), []);
            beats[0].ends();
        }
    }

    #[test]
    fn no_timeout_no_end() {
        let beats = [beat("a")];
        let mut watcher = Watcher::new(Duration::ZERO);
        beats[0].begins(Doing::Names);
        let news = looks(&mut watcher, &beats, 10_000);
        assert!(news.iter().all(|it| matches!(it, News::Long { .. })));
        // Told at 1, 2, 4, ... seconds: the log is not flooded.
        assert!(news.len() < 15, "{}", news.len());
    }

    /// Its locks are watched as a broker's are, and no disks: it has none. A broker beside it tells of it.
    #[test]
    fn a_node_of_sessions_is_watched() {
        let (node, broker) = (Arc::new(Node::standing_by()), Watched::default());
        broker.tells_of(Arc::clone(&node.watched));
        let disk = DiskBeat::of_this_thread(false);
        assert!(beats_of(&node).iter().all(|it| !Arc::ptr_eq(it, &disk.0)));
        let looks = |node: &Node| node.watched.rounds();
        let watchdog =
            Watchdog::start(&node, &Logs::default(), Duration::ZERO, Duration::from_millis(1));
        let until = |is_so: &dyn Fn() -> bool| {
            let begun = Instant::now();
            while !is_so() {
                assert!(begun.elapsed() < Duration::from_secs(60), "nothing is seen");
                std::thread::yield_now();
            }
        };
        until(&|| looks(&node) > 2);
        let names = node.topology_mut();
        until(&|| node.watched.stall().is_some());
        let (_, what) = node.watched.stall().unwrap();
        assert_eq!(what, Doing::Names.to_string());
        assert!(broker.stall().is_some_and(|(_, it)| it == what));
        assert_eq!([broker.stalls(), node.watched.stalls()], [1, 1]);
        drop(names);
        until(&|| node.watched.stall().is_none());
        assert!(broker.stall().is_none());
        drop(watchdog);
    }

    /// A disk that never answers is told of, and makes health checks fail; the process goes on.
    #[test]
    fn a_disk_that_hangs() {
        let disk = DiskBeat::of_this_thread(true);
        let mut watcher = Watcher::new(Duration::from_secs(60));
        disk.during(|| {
            let beats = [Arc::clone(&disk.0)];
            // The first one sees that it is there.
            assert_eq!(looks(&mut watcher, &beats, 20), [], "ten seconds are no fault");
            let told = looks(&mut watcher, &beats, 1_000);
            assert!(matches!(told[0], News::Long { doing: Doing::Disk, is_new: true, .. }));
            assert!(told.iter().all(|it| matches!(it, News::Long { .. })), "{told:?}");
            assert_eq!(watcher.look(&beats, &mut Vec::new()), Some((1_020, Doing::Disk)));
            for of in [&DISKS, &WRITERS] {
                assert!(of.lock().iter().any(|beat| Arc::ptr_eq(beat, &disk.0)));
            }
        });
        assert!(matches!(looks(&mut watcher, &[Arc::clone(&disk.0)], 1)[..], [News::Over { .. }]));
        let beat = Arc::clone(&disk.0);
        drop(disk);
        for of in [&DISKS, &WRITERS] {
            assert!(!of.lock().iter().any(|it| Arc::ptr_eq(it, &beat)));
        }
    }

    /// A write that does not end is seen, many that do are not.
    #[test]
    fn a_write_that_does_not_end() {
        let [one, other] = ["a-write", "b-write"].map(beat);
        let beats = [Arc::clone(&one), Arc::clone(&other)];
        let mut watch = WritersWatch::default();
        for _ in 0..9 {
            one.begins(Doing::Disk);
            assert_eq!(watch.look_at(&beats), 0);
            one.ends();
        }
        other.begins(Doing::Disk);
        assert_eq!([0; 4].map(|_| watch.look_at(&beats)), [0, 1, 2, 3]);
        one.begins(Doing::Disk);
        assert_eq!(watch.look_at(&beats), 4);
        other.ends();
        assert_eq!(watch.look_at(&beats), 1, "the other one has just begun");
        assert_eq!(watch.look_at(&beats[1..]), 0);
    }

    /// The last writes of a stop have longer than anything else, but not for ever.
    #[test]
    fn a_stop_that_hangs() {
        for (doing, end) in [(Doing::Stop, 120), (Doing::PutAway, 600)] {
            let beats = [beat("main")];
            let mut watcher = Watcher::new(Duration::from_secs(60));
            beats[0].begins(Doing::Meta);
            beats[0].goes_on(doing);
            let told = looks(&mut watcher, &beats, end);
            assert!(told.iter().all(|it| matches!(it, News::Long { .. })), "{told:?}");
            let told = looks(&mut watcher, &beats, 1);
            assert!(matches!(told[..], [News::TooLong { .. }]), "{told:?}");
        }
    }
}
