//! A seeded world of members: machines with disks and clocks, links between them, and what goes wrong with those.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use leveret_log::disk::{Faults, SimDisk};
use leveret_log::file::{BatchCopy, NoBatch, NoPiece, Options, PieceName};
use leveret_log::{FileLog, Holder, Log};

use super::shard::{HOLDERS, Held, Made, Shard, SharedMade, found};
use crate::dice::Dice;
use crate::{
    BatchName, Body, GroupFacts, Member, MemberActions, MemberId, Members, Message, Point, Refill,
    Reopening, Role, Settings, Votes,
};

/// Time in a world is quick.
const TICK_MS: u64 = 50;

/// For so long there are faults.
const FAULTS_MS: u64 = 6_000;

/// So long after the last fault all have what a client stored after it.
const CALM_MS: u64 = 20_000;

const GROUP: u64 = 7;

/// Behind which the group's log begins.
pub(super) const POINT: BatchName = BatchName { number: 1, term: 1 };

/// What happens.
#[derive(Debug)]
pub(super) enum Event {
    Arrive(Box<Packet>),
    Tick {
        at: usize,
        life: u64,
    },
    Disk {
        at: usize,
        life: u64,
    },
    Word {
        at: usize,
        life: u64,
    },
    /// The shard has a turn.
    Turn {
        at: usize,
        life: u64,
    },
    /// The member looks at the desk.
    Look {
        at: usize,
        life: u64,
    },
    /// Its log was opened anew.
    Reopen {
        at: usize,
        life: u64,
    },
    Restart {
        at: usize,
    },
    Crash {
        at: usize,
    },
    Heal,
    Client,
    Fault,
}

/// A message on its way.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    from: usize,
    to: usize,
    said: Said,
}

#[derive(Clone, Debug)]
enum Said {
    Message(Message, Vec<BatchCopy>),
    Files(Refill),
    Told(GroupFacts),
}

/// What a run did.
#[derive(Debug, Default)]
pub(super) struct Done {
    pub(super) terms: u64,
    pub(super) restarts: u64,
    pub(super) changes: u64,
    /// Those of them that exchange a voter.
    pub(super) exchanges: u64,
    /// Of shards.
    pub(super) batches: u64,
    /// Disks that were emptied, and members that got files.
    pub(super) wipes: u64,
    pub(super) refills: u64,
    /// How often a shard was told that something was on all in contact, and events at which some were left out of that.
    pub(super) on_all: u64,
    pub(super) left_out: u64,
}

impl Done {
    pub(super) fn add(&mut self, more: &Self) {
        self.terms += more.terms;
        self.restarts += more.restarts;
        self.changes += more.changes;
        self.exchanges += more.exchanges;
        self.batches += more.batches;
        self.wipes += more.wipes;
        self.refills += more.refills;
        self.on_all += more.on_all;
        self.left_out += more.left_out;
    }
}

pub(super) struct Machine {
    pub(super) id: MemberId,
    pub(super) disk: SimDisk,
    words: SimDisk,
    votes: Option<Votes<SimDisk>>,
    pub(super) member: Option<Member<SimDisk>>,
    pub(super) shard: Option<Shard>,
    /// The shard's log left something on the desk.
    is_woken: Arc<AtomicBool>,
    /// Counts starts: events of an earlier one are nobody's.
    life: u64,
    /// Its clock: per cent of the world's.
    skew: u64,
    pub(super) paused_ms: u64,
    /// Its syncs take so long, at most.
    pub(super) sync_ms: u64,
    pub(super) capacity: Option<u64>,
    /// What is under way of its own events.
    has_disk: bool,
    has_word: bool,
    has_turn: bool,
    has_look: bool,
    agreed: u64,
    /// The last batch that it was seen to have stored.
    pub(super) stored: u64,
    /// All that it ever had.
    pub(super) had: BTreeSet<BatchName>,
    cuts: u64,
    /// Its log, which is to be opened anew.
    opening: Option<Reopening<SimDisk>>,
    /// Its disk was emptied, and does not have again what it had.
    pub(super) is_wiped: bool,
    /// It takes files.
    is_refilled: bool,
    /// The first byte of those that it said last it has for others.
    given: Option<PieceName>,
    /// Until then its log is lent to no shard.
    lends_ms: u64,
}

impl Machine {
    fn new(id: u64) -> Self {
        let words = SimDisk::new(1_000 + id);
        words.set_faults(Faults { delay: 1, ..Faults::default() });
        Self {
            id: MemberId(id),
            disk: SimDisk::new(id),
            words,
            votes: None,
            member: None,
            shard: None,
            is_woken: Arc::default(),
            life: 0,
            skew: 100,
            paused_ms: 0,
            sync_ms: 10,
            capacity: None,
            has_disk: false,
            has_word: false,
            has_turn: false,
            has_look: false,
            agreed: 0,
            stored: 0,
            had: BTreeSet::new(),
            cuts: 0,
            opening: None,
            is_wiped: false,
            is_refilled: false,
            given: None,
            lends_ms: 0,
        }
    }

    /// Nothing is written but when the world says so.
    pub(super) fn stall(&self, stall: bool) {
        let capacity = self.capacity;
        self.disk.set_faults(Faults { delay: 1, stall, capacity, ..Faults::default() });
    }

    pub(super) fn leads(&self) -> Option<&Member<SimDisk>> {
        self.member.as_ref().filter(|it| it.leads().is_some())
    }

    /// The batches of its log. Of those that are gone others have agreed upon each.
    fn names<'a>(&'a self, last: u64, made: &'a Made) -> impl Iterator<Item = BatchName> + 'a {
        let replica = self.member.as_ref().map(Member::replica);
        (POINT.number + 1..=last).filter_map(move |number| {
            let name = replica.and_then(|it| it.name_of(number));
            name.or_else(|| made.name_of(number))
        })
    }

    /// Its disk has all up to this batch for good. Nothing of it that is agreed upon goes, whatever takes the place of the log.
    fn take_stored(&mut self, number: u64, made: &Made) {
        if number != self.stored {
            self.stored = number;
            let names: Vec<_> = self.names(number, made).collect();
            self.had.extend(names);
        }
    }

    fn shown(&self) -> String {
        let Some(it) = &self.member else { return format!("{}: down", self.id) };
        let (term, leads) = (it.term(), it.leads());
        format!("{}: term {term} leads {leads:?} {:?}", self.id, it.status())
    }
}

pub(super) fn options(seed: u64) -> Options {
    Options {
        seed,
        segment_bytes: 4_000,
        cache_bytes: 0,
        copies_bytes: 3_000,
        spill_bytes: 300,
        ..Options::default()
    }
}

/// A batch, however long it takes.
pub(super) fn read(log: &mut FileLog<SimDisk>, number: u64) -> Result<BatchCopy, String> {
    loop {
        match log.batch(number) {
            Ok(batch) => return Ok(batch),
            Err(NoBatch::ToCome) => log.collect().map_err(|error| error.to_string())?,
            Err(error) => return Err(format!("batch {number}: {error}")),
        }
    }
}

pub(super) struct World {
    settings: Settings,
    dice: Dice,
    pub(super) now_ms: u64,
    events: BTreeMap<(u64, u64), Event>,
    count: u64,
    pub(super) machines: Vec<Machine>,
    pub(super) made: SharedMade,
    /// From, to: nothing gets through.
    pub(super) blocked: BTreeSet<(usize, usize)>,
    /// Of a hundred messages so many are lost, and so many come twice, or late.
    pub(super) lost: u64,
    pub(super) doubled: u64,
    pub(super) is_calm: bool,
    /// The operator has members to change.
    pub(super) wants_change: bool,
    leaders: BTreeMap<u64, MemberId>,
    pub(super) trace: u64,
    pub(super) done: Done,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut world = Self {
            settings: Settings {
                tick_ms: TICK_MS,
                election_ticks: 4,
                held_bytes: u64::MAX,
                ..Settings::default()
            },
            dice: Dice::new(seed.wrapping_mul(0x2545_F491_4F6C_DD1D)),
            now_ms: 0,
            events: BTreeMap::new(),
            count: 0,
            machines: Vec::new(),
            made: SharedMade::default(),
            blocked: BTreeSet::new(),
            lost: 0,
            doubled: 0,
            is_calm: false,
            wants_change: false,
            leaders: BTreeMap::new(),
            trace: seed,
            done: Done::default(),
        };
        world.settings.append_batches = [1, 2, 64][world.below(3) as usize];
        world.settings.held_bytes = [u64::MAX, 16 * 8_000, 10_000][world.below(3) as usize];
        let voters = [3, 3, 5][world.below(3) as usize];
        for id in 1..=voters {
            let skew = 90 + world.below(21);
            let sync_ms = [5, 40, 200][world.below(3) as usize];
            world.machines.push(Machine { skew, sync_ms, ..Machine::new(id) });
        }
        for at in 0..world.machines.len() {
            world.start(at).expect("a first start says nothing");
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
            let leader = self.machines.iter().find(|it| it.leads().is_some() && it.shard.is_some());
            let last = leader.and_then(Machine::leads).map(|it| it.status().last.number);
            // Something that was written after the last fault.
            wanted = wanted.or_else(|| last.map(|last| last + 3));
            let is_at_rest = leader.and_then(|it| it.shard.as_ref()).is_some_and(Shard::is_at_rest);
            let have = self.machines.iter().all(|it| wanted.is_some_and(|wanted| it.has(wanted)));
            if is_at_rest && have {
                return (0..self.machines.len()).try_for_each(|at| self.check_all(at));
            }
        }
    }

    fn step(&mut self) -> Result<(), String> {
        let Some(((time, _), event)) = self.events.pop_first() else {
            return Err("nothing happens".to_owned());
        };
        self.now_ms = time;
        let place = match &event {
            Event::Arrive(packet) => Some(packet.to),
            Event::Tick { at, .. } | Event::Disk { at, .. } | Event::Word { at, .. } => Some(*at),
            Event::Turn { at, .. } | Event::Look { at, .. } | Event::Reopen { at, .. } => Some(*at),
            _ => None,
        };
        // A machine that stands still hears of all later.
        let paused_ms = place.map_or(0, |at| self.machines[at].paused_ms.saturating_sub(time));
        if paused_ms > 0 {
            self.at(paused_ms, event);
            return Ok(());
        }
        let is_alive = |at: usize, life| self.machines[at].life == life;
        match event {
            Event::Arrive(packet) => self.arrive(*packet),
            Event::Tick { at, life } if is_alive(at, life) => self.tick(at),
            Event::Disk { at, life } if is_alive(at, life) => self.disk(at),
            Event::Word { at, life } if is_alive(at, life) => self.word(at),
            Event::Turn { at, life } if is_alive(at, life) => {
                self.machines[at].has_turn = false;
                self.turn(at, false)
            }
            Event::Look { at, life } if is_alive(at, life) => {
                self.machines[at].has_look = false;
                self.with(at, Member::log_woke)
            }
            Event::Reopen { at, life } if is_alive(at, life) => self.reopen(at),
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
            _ => Ok(()),
        }
    }

    /// Starts a process.
    pub(super) fn start(&mut self, at: usize) -> Result<(), String> {
        if self.machines[at].member.is_some() {
            return Ok(());
        }
        self.check_disk(at)?;
        let seed = self.below(u64::MAX);
        let voters: Vec<_> = self.machines.iter().map(|it| it.id).collect();
        let machine = &mut self.machines[at];
        machine.stall(true);
        let votes =
            Votes::open(machine.words.clone(), machine.id).map_err(|error| error.to_string())?;
        let word = votes.word(GROUP).unwrap_or_default();
        machine.votes = Some(votes);
        let point = Point { at: POINT, members: Members::of(&voters) };
        let (id, disk) = (machine.id, machine.disk.clone());
        let opened = Member::open(id, self.settings, seed, Some(word), disk, options(id.0), point);
        let (member, _) = opened.map_err(|error| format!("member {id}: {error}"))?;
        if let Some(lacks) = member.status().lacks.filter(|_| !machine.is_wiped) {
            return Err(format!("member {id} lost {lacks}, which its disk had"));
        }
        (machine.agreed, machine.cuts) = (member.status().agreed.number, 0);
        machine.member = Some(member);
        let life = machine.life;
        self.at(10, Event::Tick { at, life });
        self.after(at)
    }

    /// The process ends, and perhaps the machine.
    pub(super) fn end(&mut self, at: usize, is_power_cut: bool) {
        let machine = &mut self.machines[at];
        (machine.member, machine.shard, machine.votes) = (None, None, None);
        (machine.opening, machine.is_refilled, machine.given) = (None, false, None);
        machine.is_woken = Arc::default();
        machine.life += 1;
        (machine.has_disk, machine.has_word) = (false, false);
        (machine.has_turn, machine.has_look) = (false, false);
        if is_power_cut {
            machine.disk.crash();
            machine.words.crash();
        } else {
            machine.disk.kill();
            machine.words.kill();
        }
    }

    fn with(&mut self, at: usize, call: impl FnOnce(&mut Member<SimDisk>)) -> Result<(), String> {
        if let Some(member) = &mut self.machines[at].member {
            call(member);
        }
        self.after(at)
    }

    fn arrive(&mut self, packet: Packet) -> Result<(), String> {
        let Packet { from, to, said } = packet;
        let id = self.machines[from].id;
        let term = if let Said::Message(message, _) = &said { message.term } else { 0 };
        let what = term ^ (from as u64) << 32 ^ (to as u64) << 40 ^ self.now_ms << 8;
        self.trace = (self.trace.rotate_left(5) ^ what).wrapping_mul(0x517C_C1B7_2722_0A95);
        self.with(to, |member| match said {
            Said::Message(message, copies) => member.step(id, message, copies),
            Said::Files(refill) => member.refill(id, refill),
            Said::Told(told) => member.hear(id, told),
        })
    }

    /// Now and then each tells the others how far it is.
    fn tell(&mut self, at: usize) {
        let Some(told) = self.machines[at].member.as_ref().map(Member::tells) else { return };
        if self.below(10) == 0 {
            let ids: Vec<_> = self.machines.iter().map(|it| it.id).collect();
            let others = ids.iter().filter(|id| **id != ids[at]);
            others.for_each(|id| self.send(at, *id, Said::Told(told)));
        }
    }

    fn reopen(&mut self, at: usize) -> Result<(), String> {
        match self.machines[at].opening.take() {
            Some(log) => self.with(at, |member| member.reopened(log.open())),
            None => Ok(()),
        }
    }

    fn tick(&mut self, at: usize) -> Result<(), String> {
        let (skew, life) = (self.machines[at].skew, self.machines[at].life);
        let now_ms = self.now_ms * skew / 100;
        self.at(TICK_MS, Event::Tick { at, life });
        self.with(at, |member| member.tick(now_ms))?;
        self.tell(at);
        self.check_given(at)
    }

    /// The disk does some of what it has to do.
    fn disk(&mut self, at: usize) -> Result<(), String> {
        let count = 1 + self.below(12);
        let machine = &mut self.machines[at];
        machine.has_disk = false;
        machine.stall(false);
        for _ in 0..count {
            match self.machines[at].shard {
                Some(_) => self.turn(at, false)?,
                None => self.with(at, Member::disk_woke)?,
            }
        }
        self.machines[at].stall(true);
        self.after(at)
    }

    fn word(&mut self, at: usize) -> Result<(), String> {
        let machine = &mut self.machines[at];
        machine.has_word = false;
        let kept = machine.votes.as_mut().map(Votes::collect).transpose();
        for (_, ticket) in kept.map_err(|error| error.to_string())?.unwrap_or_default() {
            self.with(at, |member| member.kept(ticket))?;
        }
        self.after(at)
    }

    /// The shard has a turn.
    fn turn(&mut self, at: usize, works: bool) -> Result<(), String> {
        let machine = &mut self.machines[at];
        let Some(shard) = &mut machine.shard else { return Ok(()) };
        let (last, on_all) = (shard.log.last().number, shard.on_all);
        shard.turn(works).map_err(|what| format!("member {}: {what}", machine.id))?;
        self.done.batches += shard.log.last().number - last;
        self.done.on_all += u64::from(shard.on_all > on_all);
        self.after(at)
    }

    /// Who is not shown as left out has all that a leader says to be on all, at any time.
    fn check_on_all(&mut self, at: usize) -> Result<(), String> {
        let machine = &self.machines[at];
        let Some(member) = machine.leads() else { return Ok(()) };
        let status = member.status();
        self.done.left_out += u64::from(!status.left_out.is_empty());
        let told = machine.shard.as_ref().map_or(0, |shard| shard.on_all);
        let number = status.on_all.max(told);
        let name = member.replica().name_of(number).or_else(|| self.made.borrow().name_of(number));
        let Some(name) = name.filter(|it| *it > POINT) else { return Ok(()) };
        let counts = |it: &&Machine| {
            let is_left_out = status.left_out.iter().any(|(of, _)| *of == it.id);
            status.members.has_voter(it.id) && !is_left_out && !it.is_wiped
        };
        match self.machines.iter().filter(counts).find(|it| !it.had.contains(&name)) {
            Some(it) => {
                Err(format!("{name} is said to be on all, and {} has {}", it.id, it.stored))
            }
            None => Ok(()),
        }
    }

    /// Some leader's shard works.
    fn client(&mut self) -> Result<(), String> {
        let after_ms = 10 + self.below(60);
        self.at(after_ms, Event::Client);
        self.change()?;
        let at = self.below(self.machines.len() as u64) as usize;
        for at in (at..self.machines.len()).chain(0..at) {
            let machine = &self.machines[at];
            if machine.shard.is_some() && machine.paused_ms <= self.now_ms {
                return self.turn(at, true);
            }
        }
        Ok(())
    }

    /// Does what a member wants, and looks at what became of it.
    pub(super) fn after(&mut self, at: usize) -> Result<(), String> {
        let Some(member) = &mut self.machines[at].member else { return Ok(()) };
        let actions = member.take_actions();
        let opening = member.take_reopening();
        let status = member.status();
        let MemberActions {
            messages,
            records,
            refill,
            keep,
            wakes_log,
            roles,
            must_restart,
            failed,
            ..
        } = actions;
        if !records.is_empty() {
            return Err(format!("member {}: no record is damaged", self.machines[at].id));
        }
        // Of itself it says what it lacks.
        let told = actions.told.iter().find(|it| !it.starts_with("this node"));
        if let Some(what) = failed.as_ref().or(told) {
            return Err(format!("member {}: {what}", self.machines[at].id));
        }
        let machine = &mut self.machines[at];
        machine.take_stored(status.stored, &self.made.borrow());
        // What is agreed upon may not be on its disk yet.
        machine.is_wiped &= status.lacks.is_some() || status.stored < status.last.number;
        let is_refilled = status.refill.is_some();
        let was_refilled = std::mem::replace(&mut machine.is_refilled, is_refilled);
        self.done.refills +=
            u64::from(was_refilled && actions.noted.iter().any(|it| it.contains("all files")));
        if opening.is_some() {
            let life = machine.life;
            machine.opening = opening;
            let after_ms = 1 + self.below(200);
            self.at(after_ms, Event::Reopen { at, life });
        }
        self.take_own(at);
        self.check_agreed(at)?;
        self.check_on_all(at)?;
        // Some moments are more delicate than others.
        let cuts = self.machines[at].member.as_ref().map_or(0, |it| it.replica().cuts());
        let has_cut = std::mem::replace(&mut self.machines[at].cuts, cuts) < cuts;
        if (has_cut || !roles.is_empty()) && self.below(4) == 0 {
            let after_ms = 1 + self.below(100);
            self.at(after_ms, Event::Crash { at });
        }
        for (to, message, copies) in messages {
            self.post(at, to, message, copies)?;
        }
        for (to, refill) in refill {
            if let Refill::Manifest(manifest) = &refill {
                let first = manifest.files.first();
                self.machines[at].given = first.map(|it| {
                    let (file, mark) = (it.file, it.heading.mark);
                    PieceName { file, mark, position: 0, len: 1 }
                });
            }
            self.send(at, to, Said::Files(refill));
        }
        let machine = &mut self.machines[at];
        if let Some(votes) = &mut machine.votes {
            keep.into_iter().for_each(|(word, ticket)| votes.keep(GROUP, word, ticket));
            votes.sync();
        }
        for role in roles {
            self.take_role(at, role)?;
        }
        if must_restart {
            self.done.restarts += 1;
            self.end(at, false);
            let after_ms = 1 + self.below(100);
            self.at(after_ms, Event::Restart { at });
            return Ok(());
        }
        self.lend(at)?;
        self.begin(at, wakes_log);
        Ok(())
    }

    /// Has happen what is to happen on a machine.
    fn begin(&mut self, at: usize, wakes_log: bool) {
        let machine = &mut self.machines[at];
        let (life, sync_ms) = (machine.life, machine.sync_ms);
        let is_busy = machine.votes.as_ref().is_some_and(Votes::is_busy);
        let is_woken = machine.is_woken.swap(false, Ordering::Relaxed);
        let own = [
            (&mut machine.has_disk, !machine.disk.is_idle(), sync_ms, Event::Disk { at, life }),
            // Some of it at a time.
            (&mut machine.has_word, is_busy, 1 + sync_ms / 8, Event::Word { at, life }),
            (&mut machine.has_turn, wakes_log, 5, Event::Turn { at, life }),
            (&mut machine.has_look, is_woken, 5, Event::Look { at, life }),
        ];
        let mut due = Vec::new();
        for (has, is_wanted, most, event) in own {
            if is_wanted && !std::mem::replace(has, true) {
                due.push((most, event));
            }
        }
        for (most, event) in due {
            let after_ms = 1 + self.below(most);
            self.at(after_ms, event);
        }
    }

    fn take_role(&mut self, at: usize, role: Role) -> Result<(), String> {
        let Role::Leads { term } = role else { return Ok(()) };
        self.done.terms += 1;
        // Other groups may have to be waited for.
        let late_ms = if self.below(4) == 0 { self.below(1_500) } else { 0 };
        self.machines[at].lends_ms = self.now_ms + late_ms;
        let id = self.machines[at].id;
        let first = *self.leaders.entry(term).or_insert(id);
        if first != id {
            return Err(format!("members {first} and {id} lead term {term}"));
        }
        let machine = &mut self.machines[at];
        let Some(member) = &mut machine.member else { return Ok(()) };
        let made = self.made.borrow();
        for (&number, &of) in made.agreed.range(..=made.told) {
            // A leader may hear late that it leads, when another one does.
            let name = BatchName { number, term: of };
            let is_gone = number <= member.replica().point().at.number;
            if of <= term && !is_gone && member.replica().name_of(number) != Some(name) {
                return Err(format!("the leader {id} of term {term} lacks {name}"));
            }
        }
        Ok(())
    }

    /// Has a shard begin over the log of a member that leads: some events later.
    fn lend(&mut self, at: usize) -> Result<(), String> {
        let machine = &self.machines[at];
        let is_early = machine.lends_ms > self.now_ms;
        if machine.shard.is_some() || machine.leads().is_none() || is_early || self.below(3) == 0 {
            return Ok(());
        }
        let seed = self.below(u64::MAX);
        let machine = &mut self.machines[at];
        let Some(member) = &mut machine.member else { return Ok(()) };
        let made = self.made.borrow();
        let is_woken = machine.is_woken.clone();
        let wake = Arc::new(move || is_woken.store(true, Ordering::Relaxed));
        let log = member.lend_log(wake).ok_or("a leader has no log")?;
        if log.fetched().is_some() {
            return Err(format!("member {} leads, and takes files", machine.id));
        }
        let last = log.last().number;
        let want = made.held_at(machine.names(last, &made));
        drop(made);
        machine.shard = Some(Shard::new(log, &want, seed, &self.made)?);
        self.turn(at, false)
    }

    fn post(
        &mut self,
        from: usize,
        to: MemberId,
        message: Message,
        copies: Vec<BatchCopy>,
    ) -> Result<(), String> {
        let made = self.made.borrow();
        copies.iter().try_for_each(|copy| made.check(copy))?;
        drop(made);
        if let Body::Append { batches, .. } = &message.body {
            let names = copies.iter().filter_map(BatchCopy::name);
            if !names.eq(batches.iter().map(|it| it.name)) {
                return Err("a message came with the bytes of other batches".to_owned());
            }
        }
        self.send(from, to, Said::Message(message, copies));
        Ok(())
    }

    fn send(&mut self, from: usize, to: MemberId, said: Said) {
        let Some(to) = self.machines.iter().position(|it| it.id == to) else { return };
        let is_lost = self.blocked.contains(&(from, to)) || self.below(100) < self.lost;
        let count = 1 + u64::from(self.below(100) < self.doubled);
        for _ in 0..if is_lost { 0 } else { count } {
            let late = self.below(100) < self.doubled;
            let after_ms = 1 + self.below(if late { 800 } else { 8 });
            let packet = Packet { from, to, said: said.clone() };
            self.at(after_ms, Event::Arrive(Box::new(packet)));
        }
    }

    /// Batches that the replica of a machine wanted.
    fn take_own(&mut self, at: usize) {
        let Some(member) = &mut self.machines[at].member else { return };
        let (leader, term) = (member.leader(), member.term());
        // Who follows makes none.
        let makes = |log: &&mut FileLog<SimDisk>| log.last().term == term;
        if leader == Some(member.replica().id())
            && let Some(log) = member.log().filter(makes)
        {
            self.made.borrow_mut().take_own(log);
        }
    }

    /// Who does not lead keeps no files for others.
    fn check_given(&mut self, at: usize) -> Result<(), String> {
        let Machine { id, member, given, .. } = &mut self.machines[at];
        let Some(member) = member.as_mut().filter(|it| it.leader() != Some(*id)) else {
            return Ok(());
        };
        let (Some(name), Some(log)) = (given.take(), member.log()) else { return Ok(()) };
        match log.piece(name) {
            Err(NoPiece::Gone) => Ok(()),
            kept => Err(format!("member {id} does not lead, and keeps files: {kept:?}")),
        }
    }

    fn check_agreed(&mut self, at: usize) -> Result<(), String> {
        let machine = &mut self.machines[at];
        let Some(member) = &mut machine.member else { return Ok(()) };
        let agreed = member.replica().agreed().number;
        if agreed < machine.agreed {
            return Err(format!("member {} goes back to {agreed}", machine.id));
        }
        let mut made = self.made.borrow_mut();
        for number in machine.agreed + 1..=agreed {
            let Some(name) = member.replica().name_of(number) else { continue };
            let known = *made.agreed.entry(number).or_insert(name.term);
            if known != name.term {
                return Err(format!("{name} is agreed upon, and term {known}"));
            }
        }
        machine.agreed = agreed;
        // A follower's table.
        let Some(applied) = member.log().and_then(|log| log.applied()) else { return Ok(()) };
        let is_rewritten = member.log().is_some_and(|log| log.listed_point().is_some());
        let held = made.held_at(machine.names(applied.number, &made));
        // A file that was rewritten, or is gone, tells what was agreed upon by then, which a start may not know yet.
        let last = if is_rewritten { made.agreed.len() as u64 + POINT.number } else { 0 };
        let mut later = made.held_at((POINT.number + 1..=last).filter_map(|it| made.name_of(it)));
        later.retain(|at, _| held.contains_key(at));
        let Some(log) = machine.member.as_mut().and_then(Member::log) else { return Ok(()) };
        for holder in (0..HOLDERS).map(Holder::new) {
            let of =
                |held: &Held| held.values().flatten().filter(|it| it.0 == holder).count() as u64;
            let want = of(if is_rewritten { &later } else { &held })..=of(&held);
            let found = log.paged_out(holder).records;
            if !want.contains(&found) {
                let whose = format!("{holder:?} of member {}", machine.id);
                return Err(format!("{whose} has {found} and not {want:?} as of {applied}"));
            }
        }
        let want = if is_rewritten { later.len() } else { held.len() }..=held.len();
        match want.contains(&(log.usage().records as usize)) {
            true => Ok(()),
            false => Err(format!("member {} has other records as of {applied}", machine.id)),
        }
    }

    /// What a start finds is what leaders made.
    fn check_disk(&self, at: usize) -> Result<(), String> {
        let made = self.made.borrow();
        let mut whole = whole(&self.machines[at].disk)?;
        for number in whole.point().number + 1..=whole.last().number {
            made.check(&read(&mut whole, number)?)?;
        }
        Ok(())
    }

    /// All that is on the disk is what it should be.
    fn check_all(&mut self, at: usize) -> Result<(), String> {
        self.machines[at].stall(false);
        for _ in 0..1_000 {
            let machine = &mut self.machines[at];
            match (&mut machine.shard, &mut machine.member) {
                (Some(shard), _) => shard.sync()?,
                (None, Some(member)) => member.disk_woke(),
                (None, None) => {}
            }
        }
        self.check_disk(at)?;
        let machine = &mut self.machines[at];
        let last = machine.member.as_ref().map_or(BatchName::NONE, |it| it.status().last);
        let mut whole = whole(&machine.disk)?;
        let is_new = machine.shard.is_some();
        if whole.last() != last && !is_new {
            return Err(format!("member {} does not come to rest", machine.id));
        }
        let made = self.made.borrow();
        let names = (POINT.number + 1..=whole.last().number).filter_map(|number| {
            let term = whole.term_of(number);
            term.map(|term| BatchName { number, term }).or_else(|| made.name_of(number))
        });
        let want = made.held_at(names.collect::<Vec<_>>().into_iter());
        match found(&mut whole) {
            found if found == want => Ok(()),
            found => Err(format!("member {}: {found:?} is held, not {want:?}", machine.id)),
        }
    }
}

impl Machine {
    /// Whether it knows that so much is agreed upon.
    fn has(&self, number: u64) -> bool {
        let Some(member) = &self.member else { return false };
        let status = member.status();
        let is_whole = !self.is_refilled && self.opening.is_none();
        status.agreed.number >= number && is_whole
    }
}

/// A copy of what is on a disk.
fn whole(disk: &SimDisk) -> Result<FileLog<SimDisk>, String> {
    thread_local!(static SEED: Cell<u64> = const { Cell::new(1) });
    let options = Options {
        follows: Some(BatchName::NONE),
        begins_behind: Some(POINT),
        ..options(SEED.get())
    };
    let disk = disk.copy_whole(1);
    let (follower, _) = FileLog::open(disk, options, &mut |_| {}).map_err(|it| it.to_string())?;
    // What it is left with is all applied then.
    let options = Options { copies_bytes: u64::MAX, ..self::options(0) };
    let disk = follower.into_disk();
    let (mut log, _) = FileLog::open(disk, options, &mut |_| {}).map_err(|it| it.to_string())?;
    log.hold_files();
    Ok(log)
}
