//! A seeded world of replicas: machines with clocks and disks, links between them, and all that can go wrong with those.

mod faults;

mod machine;

use std::collections::{BTreeMap, BTreeSet};

use crate::dice::Dice;
use crate::{BatchName, Batches, MemberId, Members, Message, Point, Role, Settings};

pub(super) use machine::Machine;

/// Time in a world is quick.
pub(super) const TICK_MS: u64 = 50;

/// For so long there are faults.
const FAULTS_MS: u64 = 6_000;

/// So long after the last fault all have what a client stored after it.
const CALM_MS: u64 = 20_000;

/// A mistake that is made on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Planted {
    None,
    /// A word counts as kept when it is handed to the disk.
    WordNotSynced,
    /// A batch counts as stored when it is handed to the disk.
    BatchNotSynced,
    /// What is stored is known by its number.
    StoredByNumber,
    /// A machine with a new disk comes back as who it was.
    WipedKeepsItsId,
    /// A follower cuts what is behind the batches that come, though they are the same as its own.
    CutThoughEqual,
    /// A heartbeat says how far the log is agreed upon, wherever its receiver is.
    AgreedAboveLog,
    /// A start does not ask how far it acknowledged.
    MarkIgnored,
    /// A heartbeat counts from when its answer came.
    LeaseFromAnswer,
}

/// What happens.
#[derive(Debug)]
pub(super) enum Event {
    Arrive(Packet),
    Tick { at: usize, life: u64 },
    SyncLog { at: usize, life: u64, count: usize },
    SyncWord { at: usize, life: u64 },
    Fetched { at: usize, life: u64, point: Point },
    Restart { at: usize },
    Crash { at: usize },
    Heal,
    Client,
    Fault,
}

/// A message on its way, with the bytes of its batches.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) from: (usize, MemberId),
    pub(super) to: (usize, MemberId),
    pub(super) message: Message,
    pub(super) bytes: Vec<u64>,
}

pub(super) struct World {
    pub(super) planted: Planted,
    pub(super) settings: Settings,
    dice: Dice,
    pub(super) now_ms: u64,
    events: BTreeMap<(u64, u64), Event>,
    count: u64,
    pub(super) machines: Vec<Machine>,
    /// From, to: nothing gets through.
    blocked: BTreeSet<(usize, usize)>,
    /// Of a hundred messages so many are lost, and so many come twice.
    lost: u64,
    doubled: u64,
    is_calm: bool,
    next_id: u64,
    /// Ids of disks that are gone.
    pub(super) dead: BTreeSet<MemberId>,
    /// Members whose disks lied.
    pub(super) lied: BTreeSet<MemberId>,
    written: u64,
    /// What was agreed upon, by number.
    agreed: BTreeMap<u64, (u64, u64)>,
    /// What clients were told of is up to here.
    told: u64,
    leaders: BTreeMap<u64, MemberId>,
    pub(super) trace: u64,
    /// What a report tells of the run.
    pub(super) terms: u64,
    pub(super) cuts: u64,
    pub(super) installs: u64,
    pub(super) changes: u64,
    /// Events at which somebody had a lease.
    pub(super) leases: u64,
}

impl World {
    pub(super) fn new(seed: u64, planted: Planted) -> Self {
        let mut world = Self {
            planted,
            settings: Settings { tick_ms: TICK_MS, election_ticks: 4, ..Settings::default() },
            dice: Dice::new(seed.wrapping_mul(0x2545_F491_4F6C_DD1D)),
            now_ms: 0,
            events: BTreeMap::new(),
            count: 0,
            machines: Vec::new(),
            blocked: BTreeSet::new(),
            lost: 0,
            doubled: 0,
            is_calm: false,
            next_id: 0,
            dead: BTreeSet::new(),
            lied: BTreeSet::new(),
            written: 0,
            agreed: BTreeMap::new(),
            told: 0,
            leaders: BTreeMap::new(),
            trace: seed,
            terms: 0,
            cuts: 0,
            installs: 0,
            changes: 0,
            leases: 0,
        };
        // Elections are over before a long lease is.
        world.settings.election_ticks = [4, 4, 12][world.below(3) as usize];
        world.settings.append_batches = [1, 2, 64][world.below(3) as usize];
        let voters = [3, 5, 5][world.below(3) as usize];
        let ids: Vec<_> = (1..=voters).map(MemberId).collect();
        for id in 1..=voters + 1 {
            let is_member = id <= voters;
            let members = if is_member { Members::of(&ids) } else { Members::default() };
            world.next_id = id;
            let skew = 90 + world.below(21);
            let sync_ms = [5, 40, 200][world.below(3) as usize];
            let machine = Machine::new(MemberId(id), members, skew);
            world.machines.push(Machine { sync_ms, ..machine });
            world.start(id as usize - 1).expect("a first start says nothing");
        }
        world.at(50, Event::Client);
        world.at(300, Event::Fault);
        world
    }

    /// A number below `bound`, which is not 0.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.dice.below(bound)
    }

    pub(super) fn at(&mut self, after_ms: u64, event: Event) {
        self.count += 1;
        self.events.insert((self.now_ms + after_ms, self.count), event);
    }

    pub(super) fn note(&mut self, what: u64) {
        self.trace = (self.trace.rotate_left(5) ^ what).wrapping_mul(0x517C_C1B7_2722_0A95);
    }

    /// Runs until the faults are over and all is well again, or until something is wrong.
    pub(super) fn run(&mut self) -> Result<(), String> {
        while self.now_ms < FAULTS_MS {
            self.step()?;
        }
        self.calm()?;
        let (bound, mut wanted) = (self.now_ms + CALM_MS, None::<u64>);
        loop {
            self.step()?;
            if self.now_ms > bound {
                let all: Vec<_> = self.machines.iter().map(Machine::shown).collect();
                return Err(format!("no progress: {wanted:?} {all:#?}"));
            }
            // Something that was written after the last fault.
            let leader = self.machines.iter().find_map(|it| it.leader().map(|it| it.last()));
            wanted = wanted.or_else(|| leader.map(|it| it.number + 3));
            if wanted.is_some_and(|wanted| self.all_have(wanted)) {
                return Ok(());
            }
        }
    }

    /// Whether each voter that is not gone for good knows that so much is agreed upon.
    fn all_have(&self, number: u64) -> bool {
        let Some(leader) = self.machines.iter().find_map(Machine::leader) else { return false };
        let voters = &leader.members().voters;
        let live = voters.iter().filter(|id| !self.dead.contains(id));
        let of = |id: &MemberId| self.machines.iter().find(|it| it.id == *id);
        let has = |id: &MemberId| {
            of(id).and_then(|it| it.replica.as_ref()).is_some_and(|it| it.agreed().number >= number)
        };
        let gives = |it: &Machine| it.lease().holds(it.clock(self.now_ms));
        live.clone().count() > 0 && live.clone().all(has) && self.machines.iter().any(gives)
    }

    fn step(&mut self) -> Result<(), String> {
        let Some(((time, _), event)) = self.events.pop_first() else {
            return Err("nothing happens".to_owned());
        };
        self.now_ms = time;
        let place = match &event {
            Event::Arrive(packet) => Some(packet.to.0),
            Event::Tick { at, .. } | Event::SyncLog { at, .. } => Some(*at),
            Event::SyncWord { at, .. } | Event::Fetched { at, .. } => Some(*at),
            _ => None,
        };
        // A machine that stands still hears of all later.
        let paused_ms = place.map_or(0, |at| self.machines[at].paused_ms.saturating_sub(time));
        if paused_ms > 0 {
            self.at(paused_ms, event);
            return Ok(());
        }
        place.into_iter().for_each(|at| self.tell_time(at));
        let done = self.happens(event);
        self.check_leases()?;
        done
    }

    fn happens(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Arrive(packet) => self.arrive(packet),
            Event::Tick { at, life } => self.tick(at, life),
            Event::SyncLog { at, life, count } => self.sync_log(at, life, count),
            Event::SyncWord { at, life } => self.sync_word(at, life),
            Event::Fetched { at, life, point } => self.fetched(at, life, point),
            Event::Restart { at } => self.start(at),
            Event::Crash { at } => {
                if !self.is_calm {
                    self.crash(at);
                }
                Ok(())
            }
            Event::Heal => {
                self.blocked.clear();
                Ok(())
            }
            Event::Client => self.client(),
            Event::Fault => self.fault(),
        }
    }

    /// Sends a message, which may get lost, or come late, or twice.
    pub(super) fn send(&mut self, packet: Packet) {
        let (from, to) = (packet.from.0, packet.to.0);
        let is_lost = self.blocked.contains(&(from, to)) || self.below(100) < self.lost;
        let count = 1 + u64::from(self.below(100) < self.doubled);
        for _ in 0..if is_lost { 0 } else { count } {
            let late = self.below(100) < self.doubled;
            let after_ms = 1 + self.below(if late { 800 } else { 8 });
            self.at(after_ms, Event::Arrive(packet.clone()));
        }
    }

    pub(super) fn machine_of(&self, id: MemberId) -> Option<usize> {
        self.machines.iter().position(|it| it.id == id)
    }

    /// Some leader's shard makes a batch.
    fn client(&mut self) -> Result<(), String> {
        let after_ms = 10 + self.below(60);
        self.at(after_ms, Event::Client);
        let at = self.below(self.machines.len() as u64) as usize;
        for at in (at..self.machines.len()).chain(0..at) {
            let machine = &mut self.machines[at];
            let is_paused = machine.paused_ms > self.now_ms;
            let Some(replica) = machine.replica.as_mut().filter(|_| !is_paused) else { continue };
            let Some(name) = replica.next().filter(|_| machine.tasks.is_empty()) else { continue };
            self.written += 1;
            machine.log.append_own(name, self.written, replica.cuts());
            let output = replica.propose(name).map_err(|_| "a proposal was refused")?;
            return self.handle(at, None, output);
        }
        Ok(())
    }

    /// A member says that all up to its `agreed` is agreed upon.
    pub(super) fn check_agreed(&mut self, at: usize) -> Result<(), String> {
        let machine = &self.machines[at];
        let Some(replica) = machine.replica.as_ref().filter(|_| machine.tasks.is_empty()) else {
            return Ok(());
        };
        let (id, agreed) = (machine.id, replica.agreed().number);
        let leads = replica.leads().is_some();
        for number in machine.checked + 1..=agreed {
            let Some(batch) = machine.log.batch(number) else { continue };
            let bytes = machine.log.bytes_of(batch.name).unwrap_or(u64::MAX);
            let here = (batch.name.term, bytes);
            let known = *self.agreed.entry(number).or_insert(here);
            if known != here {
                return Err(format!("batch {number}: {known:?}, and {here:?} for member {id}"));
            }
        }
        if agreed < machine.checked {
            return Err(format!("member {id} goes back from {} to {agreed}", machine.checked));
        }
        if leads {
            self.told = self.told.max(agreed);
        }
        let machine = &mut self.machines[at];
        if agreed > machine.checked {
            machine.log.apply_to(replica_agreed(machine));
        }
        machine.checked = agreed;
        Ok(())
    }

    /// Two never give out at once, whatever they think.
    fn check_leases(&mut self) -> Result<(), String> {
        let gives = |it: &&Machine| it.lease().holds(it.clock(self.now_ms));
        let mut giving = self.machines.iter().filter(gives);
        match (giving.next(), giving.next()) {
            (Some(one), Some(other)) => {
                Err(format!("{} has a lease, and so has {}", one.shown(), other.shown()))
            }
            (one, _) => {
                self.leases += u64::from(one.is_some());
                Ok(())
            }
        }
    }

    pub(super) fn check_role(&mut self, at: usize, role: Role) -> Result<(), String> {
        let Role::Leads { term } = role else { return Ok(()) };
        self.terms += 1;
        let machine = &self.machines[at];
        let id = machine.id;
        let first = *self.leaders.entry(term).or_insert(id);
        if first != id {
            return Err(format!("members {first} and {id} lead term {term}"));
        }
        for (number, known) in self.agreed.range(..=self.told) {
            // A leader may hear late that it leads, when another one does.
            if *number <= machine.log.point().at.number || known.0 > term {
                continue;
            }
            let name = BatchName { number: *number, term: known.0 };
            if machine.log.bytes_of(name) != Some(known.1) {
                return Err(format!("the leader {id} of term {term} lacks batch {name}"));
            }
        }
        Ok(())
    }
}

fn replica_agreed(machine: &Machine) -> BatchName {
    machine.replica.as_ref().map(|it| it.agreed()).unwrap_or_default()
}
