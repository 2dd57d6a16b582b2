//! Every kind of file of a data directory, damaged in every way: nothing that was confirmed is missing without a word.
//!
//! The directories are made and opened by what a node makes and opens them with, on a real disk: names, messages of
//! several queues and shards, such that shards share among them, files that were rewritten and removed. Each case takes a
//! copy of one, damages one file and starts. Then one of these holds, or the test fails:
//!
//! - all names and messages are there;
//! - the start is refused with a text that names the file, and no byte of the directory is changed;
//! - all names are there; of messages that are not, an ERROR tells, with a number that is not too small, and the
//!   damaged file is kept as it was; those that cannot be read are in their places.
//!
//! After the last a start that came to nothing, another one, on which a message is stored, and the good file put back, as the
//! ERROR says: then all are there, and that one, too.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::Mutex;

use bytes::Bytes;
use leveret_broker::record::{self, Head};
use leveret_broker::shard::Restored;
use leveret_broker::{Meta, Shard};
use leveret_config::DamagedFiles;
use leveret_log::file::Digester;
use leveret_log::{Errand, Holder, Keep, Log as _, ReadError, Shared};
use leveret_topology::{Homes, Topology};

use super::super::*;
use crate::clock::now;

/// Where a file has the mark that begins each of its batches.
const MARK: std::ops::Range<usize> = 88..96;

const SHARDS: usize = 2;
const QUEUES: usize = 6;

const MEMORY: Memory = Memory { limit: 64 << 20, paging_ratio: 0.5 };

fn files(damaged: DamagedFiles) -> Files {
    Files { damaged, segment_bytes_max: 32 << 10 }
}

/// A node without threads and clients.
struct Open {
    shards: Vec<Shard<NodeLog>>,
    meta: Meta<NodeLog>,
    topology: Topology,
    waker: Arc<Waker>,
    damages: Vec<(PathBuf, Damage)>,
    orphans: u64,
    /// What was kept, if orphans are.
    kept: Restored,
}

/// The groups that there are.
const HOMES: Homes = Homes::among(SHARDS as u32);

/// The shard that a queue lives in.
fn shard_of(queue: QueueId) -> usize {
    HOMES.index_of(HOMES.usual(queue)).expect("a group that is here")
}

impl Open {
    /// As a start does.
    fn start(dir: &Path, damaged: DamagedFiles) -> anyhow::Result<Self> {
        let (names, mut checked) = Storage::check(dir, SHARDS, MEMORY, files(damaged))?;
        let waker = Arc::clone(checked.waker());
        let mut seen = 0;
        let wait = &mut || seen = waker.wait(seen);
        let read = Meta::read(HOMES, names, wait);
        let (mut meta, mut topology) = read.context("cannot read the names")?;
        checked.refuse_strangers(&topology)?;
        checked.note()?;
        meta.log_mut().settle()?;
        let Storage { shards, seen_below, damages, orphans: kept, last_queue, waker } =
            checked.open()?;
        last_queue.into_iter().for_each(|last| topology.go_on_behind_queue(last));
        meta.promise(&mut topology, wait)?;
        let (mut all, mut orphans, mut told) = (Vec::new(), 0, Restored::default());
        for (index, (log, seen_below)) in shards.into_iter().zip(seen_below).enumerate() {
            let mut shard = Shard::new(HOMES.group_at(index), log);
            if kept.are_kept() {
                shard.keep_orphans();
            }
            let restored = shard.recover(&topology, meta.decided(), seen_below, now());
            if kept.are_kept() {
                told.orphans += restored.orphans;
                told.undone += restored.undone;
                told.orphaned.extend(restored.orphaned);
            } else {
                orphans += restored.orphans;
            }
            all.push(shard);
        }
        kept.tell(&told);
        tell_damage(&damages, &topology);
        Ok(Self { shards: all, meta, topology, waker, damages, orphans, kept: told })
    }

    fn reclaim(&mut self) {
        self.shards.iter_mut().for_each(|shard| shard.log_mut().reclaim());
        self.meta.log_mut().reclaim();
    }

    fn sync(&mut self) {
        let mut seen = 0;
        loop {
            let mut is_done = true;
            for shard in &mut self.shards {
                shard.sync().unwrap();
                let log = shard.log_mut();
                is_done &= log.durable() == log.end() && !log.is_writing();
            }
            if is_done {
                return;
            }
            seen = self.waker.wait(seen);
        }
    }

    /// Stores a message of a queue, and is told that it is safe.
    fn store(&mut self, queue: QueueId, number: u32) -> Offset {
        let log = self.shards[shard_of(queue)].log_mut();
        let holders = [Holder::new(queue.get())];
        let record = record_of(number, 400);
        let at = log.append_whole(&record, record::HEAD, &holders, Keep::Durable).unwrap();
        self.sync();
        at
    }

    /// As a stop does.
    fn leave(mut self, dir: &Path) {
        self.sync();
        let seen_below = self.shards.iter().map(Shard::seen_below).collect();
        let next_batch = self.shards.iter_mut().map(|shard| shard.log_mut().next_batch()).collect();
        let shards = self.shards.iter_mut().map(|shard| shard.log_mut().left().collect());
        let shards = shards.collect();
        let names = self.meta.log_mut().left().collect();
        leave_clean(dir, &Left { names, shards, seen_below, next_batch }).unwrap();
    }

    fn save(&mut self) {
        let mut seen = 0;
        let waker = Arc::clone(&self.waker);
        self.meta.save(&mut self.topology, &mut || seen = waker.wait(seen)).unwrap();
    }
}

/// What was confirmed: the number of each message, and its queue.
type Confirmed = BTreeSet<(u64, u32)>;

type MessagePlaces = BTreeMap<(usize, Offset), u32>;

/// A data directory, and what is in it.
struct Made {
    what: &'static str,
    dir: tempfile::TempDir,
    /// The directory as it was earlier.
    earlier: tempfile::TempDir,
    confirmed: Confirmed,
    /// Confirmed after what the lists know.
    untold: Confirmed,
    /// The number of the message at each place of each shard.
    places: MessagePlaces,
    names: String,
    /// Files that a start uses. A process may end when a rewritten file is whole and what it was made of is still there.
    used: BTreeSet<PathBuf>,
}

fn body(number: u32, len: usize) -> Vec<u8> {
    let mut body = number.to_le_bytes().to_vec();
    body.resize(len, number as u8);
    body
}

fn record_of(number: u32, len: usize) -> Bytes {
    let names = record::join_names("", "k");
    let body = body(number, len);
    let head = Head {
        persistent: true,
        names_len: names.len() as u16,
        properties_len: 2,
        body_len: body.len() as u32,
        published_ms: 1_700_000_000_000,
        ..Head::default()
    };
    [&head.encode()[..], &names, &[0, 0], &body].concat().into()
}

fn directory() -> tempfile::TempDir {
    // Thousands of directories are made: in memory, if there is a place.
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap()
}

/// Names, as anybody would have them.
fn definitions(queues: usize) -> String {
    let queues: Vec<_> = (0..queues)
        .map(|number| {
            serde_json::json!({"name": format!("q{number}"), "vhost": "/", "durable": true,
                "auto_delete": false, "arguments": {}})
        })
        .collect();
    let bindings: Vec<_> = (0..queues.len())
        .map(|number| {
            serde_json::json!({"source": "amq.topic", "vhost": "/", "destination": format!("q{number}"),
                "destination_type": "queue", "routing_key": "a.*", "arguments": {}})
        })
        .collect();
    serde_json::json!({
        "vhosts": [{"name": "/"}],
        "users": [{"name": "u", "password": "p", "tags": ""}],
        "permissions": [{"user": "u", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}],
        "queues": queues,
        "bindings": bindings,
    })
    .to_string()
}

/// How a node ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Stop,
    Kill,
    /// What was not synced of the lists of files is lost.
    PowerCut,
}

/// A node that lived for a while.
fn made(end: End) -> Made {
    let (place, dir, earlier) = (directory(), directory(), directory());
    let path = place.path();
    let mut node = Open::start(path, DamagedFiles::Aside).unwrap();
    let (mut confirmed, mut places) = (Confirmed::new(), MessagePlaces::new());
    let mut number = 0;
    for part in 0..2 {
        if part == 1 {
            if end == End::Stop {
                node.leave(path);
                copy(path, earlier.path());
                forget_clean(path).unwrap();
            } else {
                drop(node);
                copy(path, earlier.path());
            }
            node = Open::start(path, DamagedFiles::Aside).unwrap();
        }
        node.reclaim();
        node.topology.import_definitions(&definitions(QUEUES / 2 * (part + 1))).unwrap();
        node.save();
        let vhost = node.topology.vhost("/").unwrap().id;
        let queues: Vec<_> = node.topology.queues(vhost).iter().map(|queue| queue.id).collect();
        let mut released = Vec::new();
        for round in 0..150 {
            let queue = queues[round % queues.len()];
            let shard = shard_of(queue);
            let record = record_of(number, 300 + round % 7 * 90);
            let holders = [Holder::new(queue.get())];
            let log = node.shards[shard].log_mut();
            let at = log.append_whole(&record, record::HEAD, &holders, Keep::Durable).unwrap();
            places.insert((shard, at), number);
            // Most go again, so that files are rewritten and removed; the others stay.
            if round % 3 == 0 || round > 130 {
                confirmed.insert((queue.get(), number));
            } else {
                released.push((shard, at, holders[0]));
            }
            number += 1;
            if round % 20 == 0 {
                let record = record_of(number, 6000);
                let both = Shared::among((0..SHARDS).map(LogNumber::at));
                for shard in 0..SHARDS {
                    let holders: Vec<_> = queues
                        .iter()
                        .filter(|&&queue| shard_of(queue) == shard)
                        .map(|queue| Holder::new(queue.get()))
                        .collect();
                    let log = node.shards[shard].log_mut();
                    let at =
                        log.append_shared(&record, record::HEAD, &holders, Keep::Durable, &both);
                    places.insert((shard, at.unwrap()), number);
                    confirmed.extend(holders.iter().map(|holder| (holder.get(), number)));
                }
                number += 1;
            }
            node.sync();
            if round % 10 == 9 {
                for (shard, at, holder) in released.drain(..) {
                    node.shards[shard].log_mut().release(at, holder).unwrap();
                }
                node.sync();
            }
        }
    }
    let names = node.topology.export_definitions();
    let mut untold = Confirmed::new();
    match end {
        End::Stop => {
            node.leave(path);
            copy(path, dir.path());
        }
        End::Kill => {
            // A copy takes a while, in which nothing is to change.
            drop(node);
            copy(path, dir.path());
        }
        // They were synced when something was removed last; since then lines are older.
        End::PowerCut => loop {
            copy(path, dir.path());
            let before = contents(dir.path());
            let vhost = node.topology.vhost("/").unwrap().id;
            let queue = node.topology.queues(vhost)[0].id;
            let at = node.store(queue, number);
            places.insert((shard_of(queue), at), number);
            confirmed.insert((queue.get(), number));
            untold.insert((queue.get(), number));
            number += 1;
            copy(path, dir.path());
            if contents(dir.path()).keys().ne(before.keys()) {
                continue;
            }
            for (name, bytes) in before.iter().filter(|(name, _)| name.ends_with("files")) {
                fs::write(dir.path().join(name), bytes).unwrap();
            }
            break;
        },
    }
    let what = match end {
        End::Stop => "a stop",
        End::Kill => "a kill",
        End::PowerCut => "a power cut",
    };
    let again = directory();
    copy(dir.path(), again.path());
    drop(Open::start(again.path(), DamagedFiles::Aside).unwrap());
    let used = contents(again.path()).into_keys().collect();
    Made { what, dir, earlier, confirmed, untold, places, names, used }
}

/// Digests come and go in the background.
fn is_digest(path: &Path) -> bool {
    path.to_str().is_some_and(|it| it.contains(".seg.digest"))
}

/// The digests of all files that are sealed.
fn digests(files: &BTreeMap<PathBuf, Vec<u8>>) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut made = BTreeMap::new();
    for (path, bytes) in files.iter().filter(|(path, _)| path.starts_with("shards")) {
        let name = path.file_name().and_then(|name| FileName::parse(name.to_str()?));
        let Some(name) = name else { continue };
        let mut digester = Digester::new(name, bytes.len() as u64);
        let mut read = |at: u64, into: &mut [u8]| {
            into.copy_from_slice(&bytes[at as usize..][..into.len()]);
            Ok(())
        };
        let digest = loop {
            match digester.step(&mut read) {
                Ok(None) => {}
                Ok(digest) => break digest,
                // It is not sealed.
                Err(_) => break None,
            }
        };
        made.extend(digest.map(|digest| (path.with_file_name(name.digest()), digest)));
    }
    made
}

/// All files but digests, by their paths in the directory.
fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(at) = dirs.pop() {
        for entry in fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else if !is_digest(&path) {
                let name = path.strip_prefix(dir).unwrap().to_owned();
                found.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    found
}

fn copy(from: &Path, to: &Path) {
    write_all(to, &contents(from));
}

fn write_all(to: &Path, files: &BTreeMap<PathBuf, Vec<u8>>) {
    if to.exists() {
        fs::remove_dir_all(to).unwrap();
    }
    for (name, bytes) in files {
        let path = to.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

/// A file as it is made to be. None: removed.
type Damaged = (String, Option<Vec<u8>>);

/// All ways to damage a file.
fn ways(name: &Path, made: &Made, all: &BTreeMap<PathBuf, Vec<u8>>) -> Vec<Damaged> {
    let whole = &all[name];
    let len = whole.len();
    let mut ways: Vec<Damaged> = vec![("removed".into(), None), ("empty".into(), Some(vec![]))];
    let spread = |count: usize| (0..count).map(move |part| len * part / count);
    for cut in spread(16).chain((1..12).map(|less| len.saturating_sub(less * less * 9))) {
        ways.push((format!("cut to {cut} of {len}"), Some(whole[..cut].to_vec())));
        let mut zeroed = whole.clone();
        zeroed[cut..].fill(0);
        ways.push((format!("zero from {cut} of {len}"), Some(zeroed)));
    }
    for start in spread(12) {
        let mut zeroed = whole.clone();
        zeroed[start..(start + 512).min(len)].fill(0);
        ways.push((format!("512 zeros at {start} of {len}"), Some(zeroed)));
    }
    for (index, at) in spread(48).enumerate() {
        let mut flipped = whole.clone();
        if let Some(byte) = flipped.get_mut(at) {
            *byte ^= 1 << (index % 8);
        }
        ways.push((format!("a bit flipped at {at} of {len}"), Some(flipped)));
    }
    for garbage in [7, 64, 500, 5000, len] {
        let bytes = (0..garbage).map(|at| (at * at * 31 + at * 7 + 3) as u8).collect();
        ways.push((format!("{garbage} bytes of garbage"), Some(bytes)));
    }
    let mut others = all.iter().filter(|(other, _)| *other != name);
    for (other, bytes) in others.by_ref() {
        let is_near = other.parent() == name.parent();
        let is_same = other.file_name() == name.file_name();
        if is_near || is_same {
            ways.push((format!("replaced by {}", other.display()), Some(bytes.clone())));
        }
    }
    if let Ok(older) = fs::read(made.earlier.path().join(name)) {
        ways.push(("an older copy".into(), Some(older)));
    }
    ways.retain(|(_, bytes)| bytes.as_ref() != Some(whole));
    ways
}

/// What is logged on this thread.
#[derive(Clone, Default)]
struct LoggedLines(Arc<Mutex<Vec<u8>>>);

impl io::Write for LoggedLines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What became of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Whole,
    Refused,
    Told,
}

/// What is logged by a start, and how it went.
fn start_as(dir: &Path, damaged: DamagedFiles) -> (String, anyhow::Result<Open>) {
    let lines = LoggedLines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::INFO)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let started = tracing::subscriber::with_default(subscriber, || Open::start(dir, damaged));
    let told = String::from_utf8_lossy(&lines.0.lock().unwrap()).into_owned();
    (told, started)
}

/// Starts in a directory, and judges. Gives what is wrong otherwise.
fn judge(dir: &Path, made: &Made, name: &Path, damaged: DamagedFiles) -> Result<Outcome, String> {
    let before = contents(dir);
    let (told, started) = start_as(dir, damaged);
    let mut node = match started {
        Ok(node) => node,
        Err(error) => {
            let text = format!("{error:#}");
            let mut after = contents(dir);
            // A lock that is missing is made.
            after.retain(|it, _| before.contains_key(it) || !it.ends_with("leveret.lock"));
            let changed: Vec<_> = after
                .iter()
                .filter(|(it, bytes)| before.get(*it) != Some(bytes))
                .map(|(it, _)| it)
                .chain(before.keys().filter(|it| !after.contains_key(*it)))
                .collect();
            if !changed.is_empty() {
                return Err(format!("refused, and {changed:?} changed: {text}"));
            }
            let parent = name.parent().and_then(Path::to_str).filter(|it| !it.is_empty());
            let part = parent.or_else(|| name.to_str()).unwrap_or_default();
            let is_clear = [part, "names", "has format"].iter().any(|it| text.contains(it));
            return if is_clear {
                Ok(Outcome::Refused)
            } else {
                Err(format!("refused without {part:?}: {text}"))
            };
        }
    };
    let names = node.topology.export_definitions();
    if names != made.names {
        return Err(format!("other names: {names}"));
    }
    if node.orphans > 0 {
        return Err(format!("{} messages of queues that are not known were let go", node.orphans));
    }
    let (there, unreadable) = found(&mut node, &made.places)?;
    // What is there besides was acked in a batch that is lost.
    let is_untold = |it: &&(u64, u32)| {
        made.untold.contains(*it) && name.extension().is_some_and(|end| end == "seg")
    };
    // Those that cannot be read are set aside in their queues, and told of and counted when they are read.
    let is_there = |it: &&(u64, u32)| there.contains(*it) || unreadable.contains(*it);
    let missing = made.confirmed.iter().filter(|it| !is_there(it) && !is_untold(it));
    let records = missing.map(|(queue, number)| (shard_of(QueueId::new(*queue)), *number));
    let missing = records.collect::<BTreeSet<_>>().len() as u64;
    let most = told.lines().filter(|line| line.contains("ERROR")).filter_map(lost_at_most);
    let most = most.fold(0, u64::saturating_add);
    if missing > most {
        return Err(format!("{missing} messages are missing, and {most} are told of: {told}"));
    }
    let after = contents(dir);
    for (log, damage) in &node.damages {
        let log = log.strip_prefix(dir).map_err(|error| error.to_string())?;
        let was = before.get(&log.join(damage.file.to_string()));
        let kept = log.join(damage.kept.clone().unwrap_or_default());
        if was.is_some() && after.get(&kept) != was {
            return Err(format!("{} was not kept", kept.display()));
        }
    }
    let is_damaged = !node.damages.is_empty();
    if is_damaged {
        go_on(node, dir, made, name, (&there, &unreadable))?;
    }
    let is_whole = missing == 0 && unreadable.is_empty();
    Ok(if is_whole { Outcome::Whole } else { Outcome::Told })
}

/// The number in an ERROR of how many messages are lost, at most.
fn lost_at_most(line: &str) -> Option<u64> {
    let (_, lost) = line.split_once("lost=\"")?;
    if lost.starts_with("an unknown number of messages") {
        return Some(u64::MAX);
    }
    lost.strip_prefix("at most ")?.split_once(' ')?.0.parse().ok()
}

/// What comes after a start that was told of damage and came to nothing, since its port was in use, say.
fn go_on(
    node: Open,
    dir: &Path,
    made: &Made,
    name: &Path,
    before: (&Confirmed, &Confirmed),
) -> Result<(), String> {
    const NEW: u32 = 1_000_000;
    let damages = node.damages.clone();
    drop(node);
    let start = || {
        let started = Open::start(dir, DamagedFiles::Aside);
        started.map_err(|error| format!("a later start: {error:#}"))
    };
    let mut node = start()?;
    if !node.damages.is_empty() {
        return Err(format!("a second start found damage again: {:?}", node.damages));
    }
    let (there, unreadable) = found(&mut node, &made.places)?;
    if (&there, &unreadable) != before {
        return Err("a second start found other messages".into());
    }
    let of_file = damages.iter().find(|(log, damage)| {
        log.join(damage.file.to_string()).strip_prefix(dir).is_ok_and(|it| it == name)
    });
    let Some((log, damage)) = of_file else { return Ok(()) };
    // Numbers that no list knows may be used again. What another file stood for already comes back too late.
    if !made.untold.is_empty() || !made.used.contains(name) {
        return Ok(());
    }
    let vhost = node.topology.vhost("/").ok_or("no vhost")?.id;
    let queues = node.topology.queues(vhost);
    let queue = queues.iter().map(|it| it.id).find(|it| log.ends_with(shard_of(*it).to_string()));
    let queue = queue.ok_or("no queue of this shard")?;
    node.reclaim();
    node.store(queue, NEW);
    drop(node);
    if let Some(rest) = damage.rest {
        // It is gone if nothing of it was needed.
        let _ = fs::remove_file(log.join(rest.to_string()));
    }
    fs::copy(made.dir.path().join(name), dir.join(name)).map_err(|error| error.to_string())?;
    let mut node = start()?;
    // One that was written to last has no seal, and another is behind it now: all that it has is taken. Bytes may be lost only
    // where its file had been another one before, behind the last batch that has its own mark.
    let good = &fs::read(made.dir.path().join(name)).map_err(|error| error.to_string())?[..];
    let is_old = |at: u64| !good[at as usize..].windows(8).any(|it| it == &good[MARK]);
    let is_no_loss =
        |it: &Damage| it.lost_records_max == Some(0) && (it.lost_bytes == 0 || is_old(it.position));
    if !node.damages.iter().all(|(_, it)| is_no_loss(it)) {
        return Err(format!("the file was put back, and is damage: {:?}", node.damages));
    }
    let (there, unreadable) = found(&mut node, &made.places)?;
    let wanted = made.confirmed.iter().copied().chain([(queue.get(), NEW)]);
    let missing: Vec<_> = wanted.filter(|it| !there.contains(it)).collect();
    if !missing.is_empty() || !unreadable.is_empty() {
        return Err(format!(
            "the file was put back, and {missing:?} are missing, {unreadable:?} unread"
        ));
    }
    Ok(())
}

/// The messages that are there, and those that cannot be read.
fn found(node: &mut Open, places: &MessagePlaces) -> Result<(Confirmed, Confirmed), String> {
    let (mut found, mut unreadable) = (Confirmed::new(), Confirmed::new());
    let mut seen = 0;
    for index in 0..SHARDS {
        let mut all = Vec::new();
        let log = node.shards[index].log_mut();
        log.recover(&mut |record| {
            let holders = record.holders.iter().map(|(holder, _)| *holder);
            all.push((record.at, holders.filter(|it| it.as_log().is_none()).collect::<Vec<_>>()));
        });
        for (at, holders) in all {
            let deadline = Instant::now() + Duration::from_secs(20);
            let read = loop {
                let log = node.shards[index].log_mut();
                match log.read(at) {
                    Err(ReadError::Cold { .. }) => log.fetch(&[at]),
                    read => break read,
                }
                // What another shard has is lent.
                let mut is_lent = false;
                for from in 0..SHARDS {
                    let mut errands = Vec::new();
                    node.shards[from].log_mut().errands(&mut |errand| errands.push(errand));
                    for errand in errands {
                        lend(node, from, &errand)?;
                        is_lent = true;
                    }
                }
                if is_lent {
                    continue;
                }
                seen = node.waker.wait(seen);
                for shard in &mut node.shards {
                    shard.log_mut().collect().map_err(|error| error.to_string())?;
                }
                if Instant::now() > deadline {
                    return Err(format!("record {at} of shard {index} does not come"));
                }
            };
            for holder in holders {
                match &read {
                    Ok(record) => {
                        let view = record::View::of(&record.bytes).ok_or("not a message")?;
                        let bytes = view.body();
                        let number =
                            bytes.first_chunk().copied().map_or(u32::MAX, u32::from_le_bytes);
                        if bytes[..] != body(number, bytes.len())[..] {
                            return Err(format!("message {number} has another body"));
                        }
                        found.insert((holder.get(), number));
                    }
                    Err(_) => {
                        let number = places.get(&(index, at));
                        let number =
                            number.ok_or("a message that was never there cannot be read")?;
                        unreadable.insert((holder.get(), *number));
                    }
                }
            }
        }
    }
    Ok((found, unreadable))
}

/// Does what a log asks of another one.
fn lend(node: &mut Open, to: usize, errand: &Errand) -> Result<(), String> {
    let Errand::Lend { of, at } = errand else { return Ok(()) };
    let mut seen = 0;
    loop {
        let home = node.shards[of.log.index()].log_mut();
        match home.read(of.at) {
            Err(ReadError::Cold { at }) => home.fetch(&[at]),
            read => {
                let bytes = read.map(|record| record.bytes);
                node.shards[to].log_mut().lent(*at, bytes);
                return Ok(());
            }
        }
        seen = node.waker.wait(seen);
        let home = node.shards[of.log.index()].log_mut();
        home.collect().map_err(|error| error.to_string())?;
    }
}

/// Every case of one directory. Gives how many there were of each outcome.
fn all_cases(
    (end, has_digests): (End, bool),
    damaged: DamagedFiles,
    every: usize,
) -> BTreeMap<Outcome, usize> {
    let made = made(end);
    let mut all = contents(made.dir.path());
    if has_digests {
        let digests = digests(&all);
        assert!(digests.len() > 4, "{:?}", digests.keys());
        all.extend(digests);
    }
    let whole = judge_case(&made, &all, Path::new("layout"), all.get(Path::new("layout")), damaged);
    assert_eq!(whole, Ok(Outcome::Whole), "nothing is damaged");
    let mut cases = Vec::new();
    for name in all.keys() {
        for (way, bytes) in ways(name, &made, &all) {
            // What is in the middle of a file that has a digest is found later: tests of the log show that.
            let is_inside = way.starts_with("a bit flipped") || way.starts_with("512 zeros");
            let has_digest = name
                .to_str()
                .is_some_and(|it| all.contains_key(Path::new(&format!("{it}.digest"))));
            if !(is_inside && has_digest) {
                cases.push((name.clone(), way, bytes));
            }
        }
    }
    let cases: Vec<_> = cases.into_iter().step_by(every).collect();
    let next = std::sync::atomic::AtomicUsize::new(0);
    let (outcomes, wrong) = (Mutex::new(BTreeMap::new()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some((name, way, bytes)) = cases.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    match judge_case(&made, &all, name, bytes.as_ref(), damaged) {
                        Ok(outcome) if is_digest(name) && outcome != Outcome::Whole => {
                            let what = format!("{}, {way}: {outcome:?}", name.display());
                            wrong.lock().unwrap().push(what);
                        }
                        Ok(outcome) => *outcomes.lock().unwrap().entry(outcome).or_default() += 1,
                        Err(error) => wrong.lock().unwrap().push(format!(
                            "after {}: {}, {way}: {error}",
                            made.what,
                            name.display()
                        )),
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    let some: Vec<_> = wrong.iter().take(20).collect();
    assert!(wrong.is_empty(), "{} of {} cases: {some:#?}", wrong.len(), cases.len());
    outcomes.into_inner().unwrap()
}

/// A copy with one file changed, judged.
fn judge_case(
    made: &Made,
    all: &BTreeMap<PathBuf, Vec<u8>>,
    name: &Path,
    bytes: Option<&Vec<u8>>,
    damaged: DamagedFiles,
) -> Result<Outcome, String> {
    let dir = directory();
    let mut files = all.clone();
    match bytes {
        Some(bytes) => files.insert(name.to_owned(), bytes.clone()),
        None => files.remove(name),
    };
    write_all(dir.path(), &files);
    judge(dir.path(), made, name, damaged)
}

#[track_caller]
fn check(end: End, damaged: DamagedFiles, every: usize, least: usize) {
    check_all((end, false), damaged, every, least);
}

#[track_caller]
fn check_all(end: (End, bool), damaged: DamagedFiles, every: usize, least: usize) {
    let outcomes = all_cases(end, damaged, every);
    assert!(outcomes.values().sum::<usize>() >= least, "{outcomes:?}");
    assert!(outcomes.len() > 1, "{outcomes:?}");
}

#[test]
fn after_a_stop() {
    check(End::Stop, DamagedFiles::Aside, 3, 1000);
}

#[test]
fn after_a_kill() {
    check(End::Kill, DamagedFiles::Aside, 3, 1000);
}

/// Also of the digests themselves.
#[test]
fn with_digests() {
    check_all((End::Kill, true), DamagedFiles::Aside, 6, 500);
    check_all((End::Stop, true), DamagedFiles::Aside, 11, 200);
}

#[test]
fn after_a_power_cut() {
    check(End::PowerCut, DamagedFiles::Aside, 6, 300);
}

#[test]
fn where_damage_is_to_be_refused() {
    check(End::Stop, DamagedFiles::Refuse, 10, 200);
    check(End::Kill, DamagedFiles::Refuse, 10, 200);
}

/// Also where it is damaged itself, so that it would have to be mended before all of it can be read.
#[test]
fn a_directory_of_another_shard_is_refused_and_nothing_is_changed() {
    let made = made(End::Kill);
    let dir = made.dir.path();
    let all = contents(dir);
    let [own, other] = [0, 1].map(|index| PathBuf::from(format!("shards/{index}")));
    let of_other: Vec<_> = all.iter().filter(|(name, _)| name.starts_with(&other)).collect();
    let is_file = |name: &Path| name.extension().is_some_and(|it| it == "seg");
    for (damaged, _) in of_other.iter().filter(|(name, _)| is_file(name)) {
        for is_missing in [false, true] {
            let copy = directory();
            let mut files = all.clone();
            files.retain(|name, _| !name.starts_with(&own));
            for (name, bytes) in &of_other {
                let mut bytes = (*bytes).clone();
                if name == damaged {
                    bytes[200] ^= 1;
                    if is_missing {
                        continue;
                    }
                }
                files.insert(own.join(name.strip_prefix(&other).unwrap()), bytes);
            }
            write_all(copy.path(), &files);
            let before = contents(copy.path());
            let refused = start_as(copy.path(), DamagedFiles::Aside).1.err();
            let text = format!("{:#}", refused.expect("refused"));
            assert!(text.contains("has messages of queues of shard 1"), "{text}");
            assert!(contents(copy.path()) == before, "{} {is_missing}", damaged.display());
        }
    }
}

mod going_on;
