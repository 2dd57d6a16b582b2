//! What goes wrong in a world, and what its operator does meanwhile.

use super::{Event, Machine, Planted, World};
use crate::{Batches, Change, MemberId, Members, Replica, Step};

impl World {
    pub(super) fn fault(&mut self) -> Result<(), String> {
        if self.is_calm {
            return Ok(());
        }
        let after_ms = 30 + self.below(250);
        self.at(after_ms, Event::Fault);
        // Half of what goes wrong does so with a leader.
        let at = self.below(self.machines.len() as u64) as usize;
        let leader = self.machines.iter().position(|it| it.leader().is_some());
        let at = leader.filter(|_| self.below(2) == 0).unwrap_or(at);
        match self.below(22) {
            0..=2 => self.crash(at),
            3 => (0..self.machines.len()).for_each(|at| self.crash(at)),
            4..=7 => self.part(at),
            8 => self.doubled = [0, 0, 5, 30][self.below(4) as usize],
            9 => self.machines[at].paused_ms = self.now_ms + self.below(800),
            10 | 19 => self.machines[at].sync_ms = [5, 40, 500, 2_000][self.below(4) as usize],
            11 => self.wipe(at),
            12 => self.compact(at),
            13 => self.lie(at),
            14 => return self.transfer(at),
            20 | 21 => return self.lose_sight(at),
            15 => self.lost = [0, 0, 5, 30][self.below(4) as usize],
            _ => return self.change(),
        }
        Ok(())
    }

    /// From now on nothing goes wrong, and all machines run.
    pub(super) fn calm(&mut self) -> Result<(), String> {
        self.is_calm = true;
        self.blocked.clear();
        (self.lost, self.doubled) = (0, 0);
        for at in 0..self.machines.len() {
            (self.machines[at].paused_ms, self.machines[at].sync_ms) = (0, 10);
            self.start(at)?;
        }
        Ok(())
    }

    pub(super) fn crash(&mut self, at: usize) {
        let mut dice = self.below(u64::MAX);
        let keep = |count: usize| {
            dice = dice.rotate_left(17).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            (dice >> 33) as usize % (count + 1)
        };
        if self.machines[at].replica.is_some() {
            self.machines[at].crash(keep);
            let after_ms = 1 + self.below(400);
            self.at(after_ms, Event::Restart { at });
        }
    }

    /// For a while cuts links: those between two halves, those of one machine, one, or one way of these.
    fn part(&mut self, one: usize) {
        let (count, kind) = (self.machines.len(), self.below(8));
        let other = self.below(count as u64) as usize;
        let half = self.below(1 << count);
        let is_cut = |from: usize, to: usize| match kind {
            0 => (half >> from) & 1 != (half >> to) & 1,
            1 => from == one || to == one,
            2 => from == one,
            3 => to == one,
            4 => (from, to) == (one, other),
            // It reaches one other only, and that one nobody else.
            5 | 6 => (from == one || from == other) && to != one && to != other,
            _ => (from, to) == (one, other) || (to, from) == (one, other),
        };
        let all = (0..count).flat_map(|from| (0..count).map(move |to| (from, to)));
        self.blocked.extend(all.filter(|(from, to)| is_cut(*from, *to)));
        let after_ms = 100 + self.below(800);
        self.at(after_ms, Event::Heal);
    }

    fn configs(&self) -> impl Iterator<Item = &Members> {
        self.machines.iter().filter_map(|it| it.replica.as_ref()).map(Replica::members)
    }

    /// Whether what a majority acknowledged outlives the loss of one disk: nobody reckons with a member whose disk is lost
    /// already.
    fn can_lose_a_disk(&self) -> bool {
        let is_gone = |id: &MemberId| self.dead.contains(id) || self.lied.contains(id);
        let is_whole = |it: &Members| {
            it.outgoing.is_empty()
                && (it.voters.is_empty() || it.voters.len() >= 3)
                && !it.voters.iter().any(is_gone)
        };
        let leaders = self.machines.iter().filter_map(Machine::leader);
        self.machines.iter().all(|it| it.replica.is_some())
            && self.configs().all(is_whole)
            && !leaders.clone().any(Replica::change_is_open)
    }

    /// A machine gets a new disk, and is another member by that.
    fn wipe(&mut self, at: usize) {
        if !self.can_lose_a_disk() {
            return;
        }
        self.machines[at].crash(|_| 0);
        let Machine { id: was, life, .. } = self.machines[at];
        let (mut id, mut members) = (MemberId(self.next_id + 1), Members::default());
        if self.planted == Planted::WipedKeepsItsId {
            id = was;
            members = self.configs().find(|it| it.has(id)).cloned().unwrap_or_default();
        } else {
            self.next_id += 1;
            self.dead.insert(was);
        }
        self.machines[at] = Machine::new(id, members, 100);
        self.machines[at].life = life;
        self.at(100, Event::Restart { at });
    }

    /// A machine's disk loses what it said that it has.
    fn lie(&mut self, at: usize) {
        if self.can_lose_a_disk() {
            let count = self.below(4) as usize;
            self.lied.insert(self.machines[at].id);
            self.crash(at);
            let log = &mut self.machines[at].log;
            log.lose(count);
            *log = std::mem::take(log).crash(0);
        }
    }

    /// A machine rewrites what is old.
    fn compact(&mut self, at: usize) {
        let dice = self.below(u64::MAX);
        let machine = &mut self.machines[at];
        let Some(replica) = machine.replica.as_mut().filter(|_| machine.tasks.is_empty()) else {
            return;
        };
        let (first, last) = (machine.log.point().at.number, replica.snapshot().at.number);
        let number = first + dice % (last - first + 1);
        if let Some(point) = replica.point_at(number).filter(|_| number > first) {
            machine.log.begin_behind(point.clone());
            replica.begin_behind(point);
        }
    }

    /// Connections to the leader end, for all or for one, whether it is gone or not.
    fn lose_sight(&mut self, at: usize) -> Result<(), String> {
        let leader = self.machines.iter().find(|it| it.leader().is_some()).map(|it| it.id);
        let (Some(leader), is_alone) = (leader, self.below(2) == 0) else { return Ok(()) };
        for one in 0..self.machines.len() {
            let others = self.below(3) as usize;
            let is_paused = self.machines[one].paused_ms > self.now_ms;
            if is_paused || one != at && is_alone {
                continue;
            }
            self.tell_time(one);
            let Some(replica) = self.machines[one].replica.as_mut() else { continue };
            let output = replica.lose_sight(leader, others);
            self.handle(one, None, output)?;
        }
        Ok(())
    }

    fn transfer(&mut self, at: usize) -> Result<(), String> {
        let to = self.machines[at].id;
        let leader = self.machines.iter().position(|it| it.leader().is_some());
        let Some(leader) = leader else { return Ok(()) };
        self.tell_time(leader);
        let Some(replica) = self.machines[leader].replica.as_mut() else { return Ok(()) };
        match replica.transfer(to) {
            Ok(output) => self.handle(leader, None, output),
            Err(_) => Ok(()),
        }
    }

    /// The operator brings machines in and takes them out.
    fn change(&mut self) -> Result<(), String> {
        let dice = self.below(u64::MAX);
        let ids: Vec<_> = self.machines.iter().map(|it| it.id).collect();
        let leader = self.machines.iter().position(|it| it.leader().is_some());
        let Some(leader) = leader else { return Ok(()) };
        let Some(replica) = self.machines[leader].replica.as_mut() else { return Ok(()) };
        let members = replica.members().clone();
        let all = members.voters.iter().chain(&members.learners);
        let gone: Vec<_> = all.filter(|id| !ids.contains(id)).copied().collect();
        let new: Vec<_> = ids.iter().filter(|id| !members.has(**id)).copied().collect();
        let last = replica.last().number;
        let is_near = |id: &&MemberId| replica.matched(**id).is_some_and(|it| it + 3 > last);
        let ready = members.learners.iter().find(is_near).copied();
        let own = replica.id();
        let lied = members.voters.iter().any(|id| self.lied.contains(id));
        let spare = members.voters.iter().filter(|id| **id != own);
        let spare = spare.copied().nth((dice >> 8) as usize % members.voters.len().max(1));
        let can_spare = gone.is_empty() && !lied;
        let steps = match (dice % 4, ready, spare) {
            (0 | 1, ..) if !gone.is_empty() => vec![Step::Remove(gone[0])],
            // An exchange of one for another.
            (2, Some(ready), Some(spare)) if can_spare => {
                vec![Step::Voter(ready), Step::Remove(spare)]
            }
            (0 | 2, Some(ready), _) => vec![Step::Voter(ready)],
            (1, ..) if !new.is_empty() => vec![Step::Learner(new[0])],
            (3, _, Some(spare)) if can_spare && members.voters.len() > 3 => {
                vec![Step::Remove(spare)]
            }
            _ => return Ok(()),
        };
        match replica.change(Change::of(steps)) {
            Ok(output) => {
                self.changes += 1;
                self.handle(leader, None, output)
            }
            Err(_) => Ok(()),
        }
    }
}
