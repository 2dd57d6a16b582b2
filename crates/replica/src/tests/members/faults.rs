//! What goes wrong in a world, and what its operator does meanwhile.

use leveret_log::disk::SimDisk;

use super::world::{Event, Machine, World};
use crate::{Change, Member, MemberId, Step};

impl World {
    pub(super) fn fault(&mut self) -> Result<(), String> {
        if self.is_calm {
            return Ok(());
        }
        let after_ms = 30 + self.below(250);
        self.at(after_ms, Event::Fault);
        // Half of what goes wrong does so with a leader.
        let at = self.below(self.machines.len() as u64) as usize;
        let leader = self.machines.iter().position(|it| it.leads().is_some());
        let at = leader.filter(|_| self.below(2) == 0).unwrap_or(at);
        match self.below(24) {
            0..=2 => self.crash(at),
            3 => (0..self.machines.len()).for_each(|at| self.crash(at)),
            4..=7 => self.part(at),
            8 => self.doubled = [0, 0, 5, 30][self.below(4) as usize],
            9 => self.machines[at].paused_ms = self.now_ms + self.below(800),
            10 | 19 => self.machines[at].sync_ms = [5, 40, 500, 2_000][self.below(4) as usize],
            11..=13 => {
                let is_full = self.below(2) == 0;
                let machine = &mut self.machines[at];
                machine.capacity = is_full.then(|| machine.disk.used() + 500);
                machine.stall(true);
            }
            14 => return self.transfer(at),
            15 => self.lost = [0, 0, 5, 30][self.below(4) as usize],
            20 | 21 => self.wipe(at),
            22 | 23 => self.leave(at),
            _ => self.wants_change = true,
        }
        Ok(())
    }

    /// From now on nothing goes wrong, and all machines run.
    pub(super) fn calm(&mut self) -> Result<(), String> {
        self.is_calm = true;
        self.blocked.clear();
        (self.lost, self.doubled) = (0, 0);
        self.wants_change = false;
        for at in 0..self.machines.len() {
            let machine = &mut self.machines[at];
            (machine.paused_ms, machine.sync_ms, machine.capacity) = (0, 10, None);
            machine.stall(true);
            self.start(at)?;
        }
        Ok(())
    }

    pub(super) fn crash(&mut self, at: usize) {
        if self.machines[at].member.is_some() {
            let is_power_cut = self.below(3) > 0;
            self.end(at, is_power_cut);
            let after_ms = 1 + self.below(400);
            self.at(after_ms, Event::Restart { at });
        }
    }

    /// The files of its log are gone, and its word is not. What another one lost is to be back before; and of two voters, or while it is
    /// not everywhere known who votes, one may be the only voter that has something.
    fn wipe(&mut self, at: usize) {
        let can = |it: &Machine| {
            let status = it.member.as_ref().map(Member::status);
            !it.is_wiped && status.is_some_and(|it| it.members.voters.len() > 2)
        };
        if !self.machines.iter().all(can) {
            return;
        }
        self.end(at, true);
        self.done.wipes += 1;
        let seed = self.below(u64::MAX);
        let machine = &mut self.machines[at];
        (machine.disk, machine.is_wiped) = (SimDisk::new(seed), true);
        (machine.stored, machine.had) = Default::default();
        let after_ms = 1 + self.below(400);
        self.at(after_ms, Event::Restart { at });
    }

    /// It is away for so long that the others may not keep all that it lacks.
    fn leave(&mut self, at: usize) {
        if self.machines[at].member.is_some() {
            self.end(at, false);
            let after_ms = 1_000 + self.below(2_000);
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

    fn leader(&mut self) -> Option<(usize, &mut Member<SimDisk>)> {
        let at = self.machines.iter().position(|it| it.leads().is_some())?;
        self.machines[at].member.as_mut().map(|member| (at, member))
    }

    fn transfer(&mut self, at: usize) -> Result<(), String> {
        let to = self.machines[at].id;
        let Some((leader, member)) = self.leader() else { return Ok(()) };
        // It may not be the time.
        let _ = member.transfer(to);
        self.after(leader)
    }

    /// The operator takes a vote from a machine, and then gives it back, or to it in exchange for another one's: as soon as somebody
    /// leads, which most of the time nobody does here.
    pub(super) fn change(&mut self) -> Result<(), String> {
        if !self.wants_change || self.machines.iter().any(|it| it.is_wiped) {
            return Ok(());
        }
        let dice = self.below(u64::MAX);
        let ids: Vec<_> = self.machines.iter().map(|it: &Machine| it.id).collect();
        let Some((leader, member)) = self.leader() else { return Ok(()) };
        let status = member.status();
        let members = &status.members;
        let near = |id: &&MemberId| {
            status.matched.iter().any(|it| it.0 == **id && it.1 + 3 > status.last.number)
        };
        let learner = members.learners.first().copied();
        let ready = members.learners.iter().find(near).copied();
        let others: Vec<_> = members.voters.iter().filter(|id| **id != ids[leader]).collect();
        let spare = others.get((dice >> 8) as usize % others.len().max(1)).map(|id| **id);
        let steps = match (learner, ready, spare) {
            // An exchange of one for another.
            (_, Some(ready), Some(spare)) if dice.is_multiple_of(2) => {
                vec![Step::Voter(ready), Step::Learner(spare)]
            }
            (_, Some(ready), _) => vec![Step::Voter(ready)],
            (None, _, Some(spare)) if members.voters.len() > 2 => vec![Step::Learner(spare)],
            _ => return Ok(()),
        };
        let goes = spare.filter(|_| steps.len() > 1);
        if member.change(Change::of(steps)).is_ok() {
            self.wants_change = learner.is_none();
            self.done.changes += 1;
            // Who is exchanged counts until it is gone, however slow its disk is.
            let goes = self.machines.iter_mut().find(|it| Some(it.id) == goes);
            self.done.exchanges += u64::from(goes.is_some());
            goes.into_iter().for_each(|it| it.sync_ms = 500);
        }
        self.after(leader)
    }
}
