//! A node of the world: a process that may be there or not, and what it has on its machine.

use std::collections::BTreeMap;
use std::num::NonZeroU128;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use leveret_cluster::{
    Cluster, ClusterActions, DiskOwner, Lease, OpenError, Remembered, Setup, Standing,
};
use leveret_link::hello::{ClusterId, RaftId};
use leveret_link::letters::{NodeLetter, NodeNumbers, NodeStatus};
use leveret_log::BatchName;
use leveret_log::disk::{Disk as _, Faults, Roster, SimDisk};
use leveret_log::file::Options;
use leveret_replica::Settings;

use crate::broker::{Broker, Shared};
use crate::dice::Dice;

/// Groups of queues.
pub(crate) const SHARDS: u32 = 2;

/// Bytes of files that a node may have asked for.
pub(crate) const FILES_BYTES: u64 = 8 << 10;

/// A tenth of what a program has, so that a world is short.
const SETTINGS: Settings = Settings {
    tick_ms: 20,
    election_ticks: 10,
    append_batches: 64,
    appends: 64,
    // What is older who is new gets as files.
    held_bytes: 1 << 14,
    files_bytes: FILES_BYTES,
};

/// A data directory.
type OnDisk = (Option<Vec<u8>>, BTreeMap<DiskOwner, SimDisk>);

type Disks = Arc<Mutex<BTreeMap<DiskOwner, SimDisk>>>;

/// A node.
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) listed: Vec<String>,
    dice: Dice,
    disks: Disks,
    /// How its logs are opened.
    pub(crate) options: Options,
    pub(crate) settings: Settings,
    /// The file `cluster` on the disk.
    pub(crate) identity: Option<Vec<u8>>,
    /// The file `heard`.
    heard: Vec<BatchName>,
    /// The node finds that its files are others than they were.
    is_copy: bool,
    /// A copy of the directory that was made while it ran.
    copy: Option<(BTreeMap<DiskOwner, SimDisk>, Vec<BatchName>)>,
    /// The file that is being written, and when that is done.
    writing: Option<(Vec<u8>, u64)>,
    pub(crate) process: Option<Process>,
    /// When it is started again.
    pub(crate) starts_ms: Option<u64>,
    /// When its disk is emptied.
    pub(crate) wiped_ms: Option<u64>,
    /// It does nothing until then.
    pub(crate) paused_ms: u64,
    /// Its clock: per cent of the world's.
    rate: u64,
    pub(crate) shared: Shared,
    pub(crate) plants: Plants,
    /// What it says of itself.
    status: NodeStatus,
    /// What a majority has room for, as far as it knows.
    pub(crate) room: Option<u64>,
}

/// What runs.
pub(crate) struct Process {
    pub(crate) cluster: Cluster<SimDisk>,
    /// Its links may begin.
    pub(crate) is_known: bool,
    pub(crate) broker: Broker,
    lease: Lease,
    /// Until then it has another one lead.
    pub(crate) stops_ms: Option<u64>,
}

/// Mistakes of the driver that are made on purpose.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Plants {
    /// The identity is called written before it is on the disk.
    pub(crate) unsynced_identity: bool,
    /// A blank node forgets its Raft id when it ends.
    pub(crate) new_id: bool,
    /// It looks at the clock after it has heard what came, and not before.
    pub(crate) late_clock: bool,
    /// A copy takes itself for what it was.
    pub(crate) trusts_copies: bool,
}

impl Node {
    pub(crate) fn new(index: usize, names: &[String], seed: u64, shared: &Shared) -> Self {
        Self {
            name: names[index].clone(),
            listed: names.to_vec(),
            dice: Dice::new(seed ^ (index as u64 + 1) << 32),
            disks: Disks::default(),
            options: Options { segment_bytes: 16 << 10, ..Options::default() },
            settings: SETTINGS,
            identity: None,
            heard: Vec::new(),
            is_copy: false,
            copy: None,
            writing: None,
            process: None,
            starts_ms: Some(0),
            wiped_ms: None,
            paused_ms: 0,
            rate: 92 + (7 * seed + 5 * index as u64) % 17,
            shared: shared.clone(),
            plants: Plants::default(),
            status: NodeStatus::default(),
            room: None,
        }
    }

    /// So much is free on its disk now, and 100 is its limit.
    pub(crate) fn set_free(&mut self, free: u64) {
        let disk_free_alarm = u64::from(free < 100);
        self.status.numbers = NodeNumbers {
            disk_free: free,
            disk_free_limit: 100,
            disk_free_alarm,
            ..NodeNumbers::default()
        };
        if let Some(process) = &mut self.process {
            process.cluster.set_status(self.status.clone(), 0);
        }
    }

    /// As a node tells it: a write does not end, one did not so many seconds ago, or none ever did.
    pub(crate) fn set_hung(&mut self, is_now: bool, hung_s: u64) {
        let numbers = &mut self.status.numbers;
        numbers.disk_free_alarm = if is_now { NodeNumbers::HANGS } else { 0 };
        numbers.disk_hung_s = if is_now { 1 } else { hung_s };
        if let Some(process) = &mut self.process {
            process.cluster.set_status(self.status.clone(), 0);
        }
    }

    /// Makes a copy of its directory, but for the file `cluster`: the latest start is in it.
    pub(crate) fn make_copy(&mut self) {
        let disks = self.disks.lock().unwrap();
        let of =
            |(owner, disk): (&DiskOwner, &SimDisk)| (*owner, disk.copy_whole(self.dice.next()));
        self.copy = Some((disks.iter().map(of).collect(), self.heard.clone()));
    }

    /// The copy takes the directory's place. Whether it shows as one.
    pub(crate) fn restore(&mut self, shows: bool) {
        let Some((disks, heard)) = &self.copy else { return };
        assert!(self.process.is_none());
        let of =
            |(owner, disk): (&DiskOwner, &SimDisk)| (*owner, disk.copy_whole(self.dice.next()));
        *self.disks.lock().unwrap() = disks.iter().map(of).collect();
        self.heard.clone_from(heard);
        self.is_copy |= shows;
    }

    pub(crate) fn has_copy(&self) -> bool {
        self.copy.is_some()
    }

    /// The log of a group is damaged while nobody reads it: a bit of a file's beginning, a file that is gone, or the list of files.
    pub(crate) fn damage(&mut self) {
        assert!(self.process.is_none());
        let disks = self.disks.lock().unwrap();
        let logs: Vec<_> = disks.iter().filter(|it| *it.0 != DiskOwner::Words).collect();
        let Some((_, disk)) = logs.get(self.dice.below(logs.len().max(1) as u64) as usize) else {
            return;
        };
        let files = disk.files();
        let Some((file, len)) = files.get(self.dice.below(files.len().max(1) as u64) as usize)
        else {
            return;
        };
        match self.dice.below(5) {
            0 => disk.lose(*file),
            1 => disk.damage_list(),
            _ => disk.flip(*file, self.dice.below(160.min(*len)), self.dice.below(8) as u8),
        }
    }

    /// Files that came, or were set aside, and are not of a log: of its groups.
    pub(crate) fn coming(&self) -> usize {
        let disks = self.disks.lock().unwrap();
        disks.values().map(|disk| disk.clone().coming().unwrap().len()).sum()
    }

    /// No write of its logs ends any more.
    pub(crate) fn stand_still(&mut self) {
        let stall = Faults { stall: true, ..Faults::default() };
        let disks = self.disks.lock().unwrap();
        let logs = disks.iter().filter(|it| *it.0 != DiskOwner::Words);
        logs.for_each(|(_, disk)| disk.set_faults(stall));
    }

    /// The lists of its logs' files find no room from now on.
    pub(crate) fn has_no_room_for_lists(&self) {
        let full = Faults { full_list: true, ..Faults::default() };
        self.disks.lock().unwrap().values().for_each(|disk| disk.set_faults(full));
    }

    /// Lists that were given up.
    pub(crate) fn lists_given_up(&self) -> usize {
        let disks = self.disks.lock().unwrap();
        let rosters = disks.values().map(|disk| disk.clone().roster());
        rosters.filter(|it| matches!(it, Ok(Roster::GivenUp))).count()
    }

    /// The logs are gone, and nothing else.
    pub(crate) fn lose_logs(&mut self) {
        assert!(self.process.is_none());
        self.disks.lock().unwrap().retain(|owner, _| *owner == DiskOwner::Words);
    }

    /// A wiped machine.
    pub(crate) fn wipe(&mut self) {
        self.identity = None;
        self.writing = None;
        self.wiped_ms = None;
        self.heard.clear();
        self.disks.lock().unwrap().clear();
    }

    /// All that is on its disks; they are empty then.
    pub(crate) fn take_all(&mut self) -> OnDisk {
        let identity = self.identity.clone();
        let disks = self.disks.lock().unwrap().clone();
        self.wipe();
        (identity, disks)
    }

    pub(crate) fn put_all(&mut self, (identity, disks): OnDisk) {
        self.identity = identity;
        *self.disks.lock().unwrap() = disks;
    }

    pub(crate) fn start(&mut self) -> Result<(), OpenError> {
        let disks = self.disks.clone();
        let seed = self.dice.next();
        let open_disk = move |owner| {
            let mut disks = disks.lock().unwrap();
            let count = disks.len() as u64;
            let disk = disks.entry(owner).or_insert_with(|| SimDisk::new(seed ^ count));
            Ok(disk.clone())
        };
        let options = self.options.clone();
        let cluster = NonZeroU128::new(u128::from(self.dice.next()) << 64 | 1).unwrap();
        let setup = Setup {
            name: self.name.clone(),
            listed: self.listed.clone(),
            shards: SHARDS,
            settings: self.settings,
            seed: self.dice.next(),
            drawn: (RaftId(self.dice.next() | 1), ClusterId(cluster)),
            status: self.status.clone(),
            heard: self.heard.clone(),
            is_copy: self.is_copy && !self.plants.trusts_copies,
            open_disk: Box::new(open_disk),
            options: Box::new(move |_, _| options.clone()),
        };
        let cluster = Cluster::open(self.identity.as_deref(), setup)?;
        let broker = Broker::new(cluster.facts(), &self.shared);
        self.process =
            Some(Process { cluster, is_known: false, broker, lease: Lease::NONE, stops_ms: None });
        self.starts_ms = None;
        Ok(())
    }

    /// The process ends. The machine may, too.
    pub(crate) fn end(&mut self, has_power: bool) {
        if self.process.take().is_none() {
            return;
        }
        for disk in self.disks.lock().unwrap().values() {
            if has_power { disk.kill() } else { disk.crash() }
        }
        // The rename may have been done.
        if let Some((bytes, _)) = self.writing.take()
            && self.dice.one_in(2)
        {
            self.identity = Some(bytes);
        }
        let is_blank = |bytes: &Vec<u8>| !String::from_utf8_lossy(bytes).contains("\ncluster ");
        if self.plants.new_id && self.identity.as_ref().is_some_and(is_blank) {
            self.identity = None;
        }
    }

    /// One step of its process: disks, time, logs.
    pub(crate) fn step(&mut self, now_ms: u64) -> ClusterActions<SimDisk> {
        if self.process.is_none() || self.paused_ms > now_ms {
            return ClusterActions::default();
        }
        if self.writing.as_ref().is_some_and(|(_, due)| *due <= now_ms) {
            let (bytes, _) = self.writing.take().unwrap();
            self.identity = Some(bytes);
            if !self.plants.unsynced_identity {
                self.written();
            }
        }
        let clock_ms = self.clock(now_ms);
        let of = |(owner, disk): (&DiskOwner, &SimDisk)| (*owner, disk.clone());
        let disks: Vec<_> = self.disks.lock().unwrap().iter().map(of).collect();
        let Some(process) = &mut self.process else { return ClusterActions::default() };
        process.cluster.tick(clock_ms);
        for (owner, disk) in disks {
            if !disk.is_idle() {
                process.cluster.disk_woke(owner);
            }
        }
        let woken = process.broker.work(process.stops_ms.is_some(), &mut self.dice);
        woken.into_iter().for_each(|group| process.cluster.log_woke(group));
        self.act(now_ms)
    }

    /// What time it is here.
    pub(crate) fn clock(&self, now_ms: u64) -> u64 {
        now_ms * self.rate / 100
    }

    /// A letter came.
    pub(crate) fn hear(&mut self, from: RaftId, letter: NodeLetter, now_ms: u64) {
        let clock_ms = self.clock(now_ms);
        let Some(process) = &mut self.process else { return };
        if !self.plants.late_clock {
            process.cluster.tell_time(clock_ms);
        }
        process.cluster.letter(from, letter);
    }

    /// Whether the broker may have turns now, and whether it may give messages out in them.
    pub(crate) fn lease(&self, now_ms: u64) -> (bool, bool) {
        let lease = self.process.as_ref().map_or(Lease::NONE, |it| it.lease);
        let clock_ms = self.clock(now_ms);
        (clock_ms < lease.until_ms, clock_ms >= lease.from_ms)
    }

    /// Whether the broker gives out, takes and answers.
    pub(crate) fn gives(&self, now_ms: u64) -> bool {
        self.lease(now_ms) == (true, true)
    }

    fn written(&mut self) {
        let Some(process) = &mut self.process else { return };
        process.cluster.identity_written();
        process.is_known = true;
    }

    /// What the cluster wants done, but for what others have to do.
    pub(crate) fn act(&mut self, now_ms: u64) -> ClusterActions<SimDisk> {
        let Some(process) = &mut self.process else { return ClusterActions::default() };
        let mut actions = process.cluster.take_actions();
        actions.names.drain(..).for_each(|content| process.broker.names(content));
        for (group, log) in actions.reopen.drain(..) {
            process.cluster.reopened(group, log.open());
        }
        process.lease = process.cluster.lease();
        assert_eq!(actions.failed, None, "{}: its disks work", self.name);
        self.room = actions.room.or(self.room);
        if let Some(bytes) = &actions.write_identity {
            let is_early = self.plants.unsynced_identity;
            assert!(self.writing.is_none() || is_early, "one after the other");
            let due = now_ms + 1 + self.dice.below(60);
            self.writing = Some((bytes.clone(), due));
            if is_early {
                self.written();
            }
        }
        let Some(process) = &mut self.process else { return actions };
        if let Some(Remembered { agreed, is_sure }) = &actions.write_heard {
            self.heard.clone_from(agreed);
            self.is_copy &= !is_sure;
            process.cluster.heard_written(true);
        }
        for group in &actions.wakes {
            process.broker.wake(*group);
        }
        if actions.standing == Some(Standing::Leads) {
            let status = process.cluster.status();
            let is_led = |leader: &Option<String>| leader.as_deref() == Some(&*self.name);
            assert!(status.groups.iter().all(|it| is_led(&it.leader)), "{status:?}");
            assert_eq!(status.groups.len(), SHARDS as usize + 1);
            self.lead();
        }
        actions
    }

    /// It leads all: its broker begins, with what is agreed upon.
    fn lead(&mut self) {
        let Some(process) = &mut self.process else { return };
        let wakes: Vec<_> = (0..=SHARDS).map(|_| Arc::<AtomicBool>::default()).collect();
        let wake = |group: u64| -> Arc<dyn Fn() + Send + Sync> {
            let wake = wakes[group as usize].clone();
            Arc::new(move || wake.store(true, Ordering::Relaxed))
        };
        let Some(logs) = process.cluster.lend_logs(wake) else { return };
        assert!(logs.iter().all(|(term, _)| *term > 0));
        process.broker.lead(logs, wakes);
    }

    pub(crate) fn has_broker(&self) -> bool {
        self.process.as_ref().is_some_and(|it| it.broker.leads())
    }

    /// Whether the disk of a group's log has something under way.
    #[allow(dead_code, reason = "one world asks for it")]
    pub(crate) fn disk_works(&self, group: u64) -> bool {
        let disks = self.disks.lock().unwrap();
        disks.get(&DiskOwner::Group(group)).is_some_and(|disk| !disk.is_idle())
    }

    pub(crate) fn disks(&self) -> Vec<SimDisk> {
        self.disks.lock().unwrap().values().cloned().collect()
    }
}
