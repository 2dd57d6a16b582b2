//! A machine: a replica, its log, its word, and its clock.

use std::collections::BTreeMap;

use leveret_log::disk::{Faults, SimDisk};

use super::{Event, Packet, Planted, TICK_MS, World};
use crate::{
    BatchName, Batches, Body, Lease, MemberId, Members, MemoryBatches, Message, Output, Point,
    Replica, Role, Stored, Task, Tasks, Ticket, Votes,
};

/// Of the only one.
const GROUP: u64 = 7;

pub(in crate::tests) struct Machine {
    pub(in crate::tests) id: MemberId,
    pub(in crate::tests) replica: Option<Replica>,
    pub(in crate::tests) log: MemoryBatches,
    pub(super) tasks: Tasks,
    /// Bytes that came with messages.
    pub(super) bytes: BTreeMap<(u64, u64), u64>,
    /// The disk of its words, and what is on its way there.
    pub(super) disk: SimDisk,
    pub(super) votes: Option<Votes<SimDisk>>,
    pub(super) kept: Ticket,
    pub(super) syncs_log: bool,
    pub(super) syncs_word: bool,
    /// Counts starts: events of an earlier one are nobody's.
    pub(super) life: u64,
    /// Its clock: per cent of the world's.
    pub(super) skew: u64,
    pub(super) paused_ms: u64,
    /// Its syncs take so long, at most.
    pub(super) sync_ms: u64,
    /// So far what is agreed upon was compared.
    pub(super) checked: u64,
    pub(super) fetches: bool,
}

impl Machine {
    /// One that founds a group of these members, or is none yet.
    pub(super) fn new(id: MemberId, members: Members, skew: u64) -> Self {
        let term = u64::from(!members.voters.is_empty());
        let point = Point { at: BatchName { number: term, term }, members };
        let disk = SimDisk::new(id.0);
        disk.set_faults(Faults { delay: 1, ..Faults::default() });
        Self {
            id,
            replica: None,
            log: MemoryBatches::new(point),
            tasks: Tasks::default(),
            bytes: BTreeMap::new(),
            disk,
            votes: None,
            kept: Ticket(0),
            syncs_log: false,
            syncs_word: false,
            life: 0,
            skew,
            paused_ms: 0,
            sync_ms: 10,
            checked: 0,
            fetches: false,
        }
    }

    pub(in crate::tests) fn leader(&self) -> Option<&Replica> {
        self.replica.as_ref().filter(|it| it.leads().is_some())
    }

    /// What time it has.
    pub(super) fn clock(&self, now_ms: u64) -> u64 {
        now_ms * self.skew / 100
    }

    /// When it may give out.
    pub(super) fn lease(&self) -> Lease {
        self.replica.as_ref().map_or(Lease::NONE, Replica::lease)
    }

    pub(super) fn shown(&self) -> String {
        let id = self.id;
        let Some(it) = &self.replica else { return format!("{id}: down") };
        format!(
            "{id}: term {} leader {:?} leads {:?} last {} agreed {} lacks {:?} {:?} idle {}",
            it.term(),
            it.leader(),
            it.leads(),
            it.last(),
            it.agreed(),
            it.lacks(),
            it.members(),
            self.tasks.is_empty(),
        )
    }

    /// The power is cut: of so many writes under way `keep` says how many are there all the same.
    pub(super) fn crash(&mut self, mut keep: impl FnMut(usize) -> usize) {
        if self.replica.take().is_none() {
            return;
        }
        let kept = keep(self.log.unsynced());
        self.log = std::mem::take(&mut self.log).crash(kept);
        self.votes = None;
        self.disk.crash();
        self.life += 1;
        self.tasks = Tasks::default();
        self.bytes.clear();
        self.kept = Ticket(0);
        (self.syncs_log, self.syncs_word, self.fetches) = (false, false, false);
    }
}

impl World {
    pub(super) fn start(&mut self, at: usize) -> Result<(), String> {
        if self.machines[at].replica.is_some() {
            return Ok(());
        }
        let seed = self.below(u64::MAX);
        let machine = &mut self.machines[at];
        let votes = Votes::open(machine.disk.clone(), machine.id).map_err(|it| it.to_string())?;
        // One that was in no group has given no word, nor has one that founds one.
        let mut word = votes.word(GROUP).unwrap_or_default();
        machine.votes = Some(votes);
        if self.planted == Planted::MarkIgnored {
            word.mark = machine.log.last();
        }
        let (replica, output) = Replica::open(machine.id, self.settings, seed, word, &machine.log);
        machine.checked = replica.agreed().number;
        machine.replica = Some(replica);
        let life = machine.life;
        self.at(10, Event::Tick { at, life });
        self.handle(at, None, output)
    }

    /// The replica of a machine, if it is still the one that was meant.
    fn alive(&mut self, at: usize, life: u64) -> Option<&mut Replica> {
        let machine = &mut self.machines[at];
        machine.replica.as_mut().filter(|_| machine.life == life)
    }

    pub(super) fn tick(&mut self, at: usize, life: u64) -> Result<(), String> {
        let now_ms = self.machines[at].clock(self.now_ms);
        let Some(replica) = self.alive(at, life) else { return Ok(()) };
        let output = replica.tick(now_ms);
        self.at(TICK_MS, Event::Tick { at, life });
        self.handle(at, None, output)
    }

    /// It looks at its clock.
    pub(super) fn tell_time(&mut self, at: usize) {
        let machine = &mut self.machines[at];
        let now_ms = machine.clock(self.now_ms);
        machine.replica.iter_mut().for_each(|it| it.tell_time(now_ms));
    }

    pub(super) fn arrive(&mut self, packet: Packet) -> Result<(), String> {
        let Packet { from, to: (at, id), mut message, bytes } = packet;
        let machine = &mut self.machines[at];
        // A link knows whom it leads to.
        if machine.id != id {
            return Ok(());
        }
        let Some(replica) = machine.replica.as_mut() else { return Ok(()) };
        let (term, last) = (message.term, replica.last());
        match &mut message.body {
            Body::Heard { stamp } if self.planted == Planted::LeaseFromAnswer => {
                *stamp = self.now_ms * machine.skew / 100;
            }
            _ => {}
        }
        if let Body::Append { before, batches, .. } = &message.body {
            let names = batches.iter().map(|it| (it.name.number, it.name.term));
            machine.bytes.extend(names.zip(bytes));
            let end = before.number + batches.len() as u64;
            let is_equal = batches.last().is_some_and(|it| replica.name_of(end) == Some(it.name));
            if self.planted == Planted::CutThoughEqual && is_equal {
                machine.log.lose((last.number - end) as usize);
            }
        }
        let result = replica.step(from.1, message);
        self.note(term ^ (from.1.0 << 32) ^ (id.0 << 40) ^ (self.now_ms << 8));
        let output = result.map_err(|breach| format!("to member {id}: {breach}"))?;
        self.handle(at, Some(from), output)
    }

    pub(super) fn sync_log(&mut self, at: usize, life: u64, count: usize) -> Result<(), String> {
        if self.alive(at, life).is_none() {
            return Ok(());
        }
        let machine = &mut self.machines[at];
        machine.syncs_log = false;
        machine.log.sync(count);
        while let Some(stored) = self.machines[at].log.collect() {
            self.stored(at, stored)?;
        }
        self.work(at)?;
        self.check_agreed(at)?;
        self.begin_syncs(at);
        Ok(())
    }

    fn stored(&mut self, at: usize, mut stored: Stored) -> Result<(), String> {
        let Some(replica) = self.machines[at].replica.as_mut() else { return Ok(()) };
        if self.planted == Planted::StoredByNumber {
            let name = replica.name_of(stored.name.number).unwrap_or(stored.name);
            stored = Stored { name, cuts: replica.cuts() };
        }
        let output = replica.stored(stored);
        self.handle(at, None, output)
    }

    /// The disk does some of what it has to do for words: none, one line, or both.
    pub(super) fn sync_word(&mut self, at: usize, life: u64) -> Result<(), String> {
        if self.alive(at, life).is_none() {
            return Ok(());
        }
        let machine = &mut self.machines[at];
        machine.syncs_word = false;
        let kept = machine.votes.as_mut().map(Votes::collect).transpose();
        for (_, ticket) in kept.map_err(|it| it.to_string())?.unwrap_or_default() {
            self.kept(at, ticket)?;
        }
        self.begin_syncs(at);
        Ok(())
    }

    fn kept(&mut self, at: usize, ticket: Ticket) -> Result<(), String> {
        let machine = &mut self.machines[at];
        machine.kept = machine.kept.max(ticket);
        let Some(replica) = machine.replica.as_mut() else { return Ok(()) };
        let output = replica.kept(ticket);
        self.handle(at, None, output)
    }

    pub(super) fn fetched(&mut self, at: usize, life: u64, point: Point) -> Result<(), String> {
        let Some(replica) = self.alive(at, life) else { return Ok(()) };
        let result = replica.install(point);
        self.machines[at].fetches = false;
        let Ok(output) = result else { return Ok(()) };
        self.installs += 1;
        self.handle(at, None, output)
    }

    /// Does what a replica wants.
    pub(super) fn handle(
        &mut self,
        at: usize,
        from: Option<(usize, MemberId)>,
        output: Output,
    ) -> Result<(), String> {
        let Output { tasks, messages, agreed: _, roles, behind } = output;
        let machine = &mut self.machines[at];
        let Some(replica) = machine.replica.as_ref() else { return Ok(()) };
        let life = machine.life;
        if replica.lacks().is_some() && !self.lied.contains(&machine.id) {
            return Err(format!("member {} lost what its disk had", machine.id));
        }
        machine.tasks.extend(tasks, replica.cuts());
        self.work(at)?;
        self.check_agreed(at)?;
        for role in roles {
            self.note(number_of(role));
            self.check_role(at, role)?;
        }
        for (to, message) in messages {
            self.post(at, to, message);
        }
        if let (Some(_), Some((leader, id)), false) = (behind, from, self.machines[at].fetches) {
            let whole = self.machines[leader].replica.as_ref().filter(|it| it.id() == id);
            if let Some(point) = whole.map(|it| it.snapshot().clone()) {
                self.machines[at].fetches = true;
                let after_ms = 20 + self.below(200);
                self.at(after_ms, Event::Fetched { at, life, point });
            }
        }
        self.begin_syncs(at);
        Ok(())
    }

    /// Hands to the disk what can be begun.
    fn work(&mut self, at: usize) -> Result<(), String> {
        loop {
            let machine = &mut self.machines[at];
            let Some((task, cuts)) = machine.tasks.next(machine.kept) else { return Ok(()) };
            let mut appended = Vec::new();
            match task {
                Task::Keep(word, ticket) => {
                    if let Some(votes) = &mut machine.votes {
                        votes.keep(GROUP, word, ticket);
                        votes.sync();
                    }
                    if self.planted == Planted::WordNotSynced {
                        self.kept(at, ticket)?;
                    }
                }
                Task::Cut(number) => {
                    machine.log.cut_from(number);
                    self.cuts += 1;
                    self.crash_soon(at);
                }
                Task::Copy(batches) => {
                    for batch in batches {
                        let bytes = machine.bytes.get(&(batch.name.number, batch.name.term));
                        let bytes = *bytes.expect("the bytes came with the message");
                        appended.push(Stored { name: batch.name, cuts });
                        machine.log.append(batch, Some(bytes), cuts);
                    }
                }
                Task::Make(batch) => {
                    machine.log.append(batch, None, cuts);
                    self.crash_soon(at);
                }
                Task::Install(point) => machine.log.install(point, cuts),
            }
            if self.planted == Planted::BatchNotSynced {
                for stored in appended {
                    self.stored(at, stored)?;
                }
            }
        }
    }

    /// Some moments are more delicate than others.
    fn crash_soon(&mut self, at: usize) {
        if self.below(4) == 0 {
            let after_ms = 1 + self.below(100);
            self.at(after_ms, Event::Crash { at });
        }
    }

    fn post(&mut self, at: usize, to: MemberId, mut message: Message) {
        let Some(place) = self.machine_of(to) else { return };
        let machine = &mut self.machines[at];
        let mut bytes = Vec::new();
        match &mut message.body {
            Body::Append { batches, .. } => {
                // What the log has no more is not sent.
                let all = batches.iter().map(|it| machine.log.bytes_of(it.name)).collect();
                let Some(all) = all else { return };
                bytes = all;
            }
            Body::Heartbeat { agreed, .. } if self.planted == Planted::AgreedAboveLog => {
                *agreed = machine.replica.as_ref().map_or(0, |it| it.agreed().number);
            }
            _ => {}
        }
        let from = (at, machine.id);
        self.send(Packet { from, to: (place, to), message, bytes });
    }

    fn begin_syncs(&mut self, at: usize) {
        let (life, most) = (self.machines[at].life, self.machines[at].sync_ms);
        let count = self.machines[at].log.unsynced();
        if count > 0 && !self.machines[at].syncs_log {
            self.machines[at].syncs_log = true;
            let after_ms = 1 + self.below(most);
            self.at(after_ms, Event::SyncLog { at, life, count });
        }
        let is_busy = self.machines[at].votes.as_ref().is_some_and(Votes::is_busy);
        if is_busy && !self.machines[at].syncs_word {
            self.machines[at].syncs_word = true;
            // Some of it at a time.
            let after_ms = 1 + self.below(1 + most / 8);
            self.at(after_ms, Event::SyncWord { at, life });
        }
    }
}

fn number_of(role: Role) -> u64 {
    match role {
        Role::Leads { term } => term,
        Role::Deposed { term, tail } => (term << 8) ^ (tail << 32) ^ 1,
    }
}
