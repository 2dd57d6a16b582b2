//! What a node of the world runs: its own clients' sessions, and while it leads the owner of the names and the shards.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::resume_unwind;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use leveret_broker::shard::LateLimits;
use leveret_link::hello::NodeFacts;
use leveret_log::disk::SimDisk;
use leveret_node::KeptMax;
use leveret_queue::Time;
use leveret_replica::{Content, GroupLog};

use crate::dice::Dice;
use crate::leader::{Leader, late_limits};
use crate::site::Site;
use crate::traffic::Traffic;

/// What all nodes of a world have together.
#[derive(Clone, Default)]
pub(crate) struct Shared {
    pub(crate) traffic: Rc<RefCell<Traffic>>,
    pub(crate) now_ms: Rc<Cell<u64>>,
    /// So far the clock of this node is ahead.
    pub(crate) ahead_ms: u64,
}

impl Shared {
    pub(crate) fn now(&self) -> Time {
        Time::from_ms(1_000_000 + self.now_ms.get() + self.ahead_ms)
    }
}

pub(crate) type LeadsAll = Leader<GroupLog<SimDisk>>;

/// What a node is to the groups.
pub(crate) enum Stage {
    Follows,
    /// It leads, and reads what the logs have.
    Begins(Beginning),
    Leads(Box<LeadsAll>),
}

/// See the [module](self).
pub(crate) struct Broker {
    shared: Shared,
    /// No other process of any node has this number.
    pub(crate) life: u64,
    /// None once its sessions were over while it led.
    pub(crate) site: Option<Site>,
    /// What its clients had is others': they do nothing any more but go.
    pub(crate) is_doomed: bool,
    /// A leader gave away what its clients had, or had its mind made up to do so.
    pub(crate) is_left_out: bool,
    pub(crate) stage: Stage,
    /// It was told who may act by the names of the leader before.
    pub(crate) knows_who_is_away: bool,
    wakes: Vec<Arc<AtomicBool>>,
    /// When it began to lead.
    pub(crate) since_ms: u64,
}

impl Broker {
    /// Of a node that others know so.
    pub(crate) fn new(facts: NodeFacts, shared: &Shared) -> Self {
        let life = facts.raft_id.0.wrapping_add(facts.start << 40);
        let max = KeptMax { letters: 1 + life as usize % 12, bytes: 1 << (8 + (life >> 8) % 8) };
        Self {
            shared: shared.clone(),
            life,
            site: Some(Site::new(facts.raft_id.0, facts.start as u32, max)),
            is_doomed: false,
            knows_who_is_away: false,
            is_left_out: false,
            stage: Stage::Follows,
            wakes: Vec::new(),
            since_ms: 0,
        }
    }

    pub(crate) fn leads(&self) -> bool {
        !matches!(self.stage, Stage::Follows)
    }

    /// News of the names that another node leads: sessions have them from that node itself.
    pub(crate) fn names(&mut self, _: Content) {}

    /// A log of a group that it leads wants to be looked at.
    pub(crate) fn wake(&mut self, group: u64) {
        if let Stage::Leads(leader) = &mut self.stage {
            leader.awake[group as usize] = true;
        }
    }

    /// It leads all groups, in these terms, and has their logs. `wakes` are set by the logs.
    pub(crate) fn lead(
        &mut self,
        logs: Vec<(u64, GroupLog<SimDisk>)>,
        wakes: Vec<Arc<AtomicBool>>,
    ) {
        self.stage = Stage::Begins(Beginning::new(
            logs,
            late_limits(self.life >> 20 ^ self.life >> 40),
            self.shared.now(),
        ));
        self.wakes = wakes;
        self.since_ms = self.shared.now_ms.get();
    }

    /// The groups whose members have to look at their logs.
    pub(crate) fn work(&mut self, _: bool, _: &mut Dice) -> Vec<u64> {
        if let Stage::Begins(beginning) = &mut self.stage
            && let Some(leader) = beginning.step()
        {
            self.stage = Stage::Leads(leader);
            self.knows_who_is_away = false;
        }
        let wakes = (0..).zip(&self.wakes);
        wakes.filter(|(_, wake)| wake.swap(false, Ordering::Relaxed)).map(|it| it.0).collect()
    }

    /// Its sessions are over.
    pub(crate) fn ends_sessions(&mut self) {
        if let Some(site) = self.site.take() {
            self.shared.traffic.borrow_mut().all_give_up(site.remote.node(), &site.clients);
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.ends_sessions();
    }
}

/// A broker that begins: the owner of the names may have to write, and waits for others then. So it is on a thread, which goes on
/// for a step at a time, and nobody else does meanwhile.
pub(crate) struct Beginning {
    goes_on: Option<Sender<()>>,
    /// None: it waits.
    has: Receiver<Option<Box<LeadsAll>>>,
    thread: Option<JoinHandle<()>>,
}

impl Beginning {
    fn new(logs: Vec<(u64, GroupLog<SimDisk>)>, late: LateLimits, now: Time) -> Self {
        let ((goes_on, wakes), (tell, has)) = (channel(), channel());
        let begin = move || {
            let wait_step = || {
                if wakes.recv().is_err() {
                    resume_unwind(Box::new("its process ended"));
                }
            };
            wait_step();
            let (terms, mut logs): (Vec<u64>, Vec<_>) = logs.into_iter().unzip();
            let shards = logs.split_off(1);
            let names = logs.pop().expect("the log of the names");
            let mut wait = || {
                drop(tell.send(None));
                wait_step();
            };
            let leader = Leader::new(names, shards, terms, late, now, &mut wait);
            drop(tell.send(Some(Box::new(leader))));
        };
        let thread = std::thread::spawn(begin);
        Self { goes_on: Some(goes_on), has, thread: Some(thread) }
    }

    /// Goes on until it waits again, or is there.
    fn step(&mut self) -> Option<Box<LeadsAll>> {
        // Who has ended is heard of below.
        let _ = self.goes_on.as_ref().map(|it| it.send(()));
        match self.has.recv() {
            Ok(leader) => leader,
            Err(_) => {
                self.join().unwrap_or_else(|panic| resume_unwind(panic));
                panic!("it ends without a word");
            }
        }
    }

    fn join(&mut self) -> Result<(), Box<dyn Any + Send>> {
        self.goes_on = None;
        self.thread.take().map_or(Ok(()), JoinHandle::join)
    }
}

impl Drop for Beginning {
    fn drop(&mut self) {
        // Its disks are to be seen by nobody else when the next process begins.
        drop(self.join());
    }
}
