//! This node's members of all groups, and which node is to lead them.
//!
//! Who leads group 0 is to lead all: whoever leads another group, and not that one, transfers it there. A node that leads group 0
//! and does not get all for long gives it away, since something keeps it from leading the others: who lost its word of a group
//! never leads that.

use std::collections::BTreeMap;
use std::sync::Arc;

use leveret_link::hello::RaftId;
use leveret_link::letters::{GroupStatus, GroupTold, NodeLetter};
use leveret_log::disk::Disk;
use leveret_replica::{
    BatchName, Change, Content, GroupLog, Lease, LeftOut, Member, MemberId, Members, Reopened,
    Reopening, Step, Votes,
};

use crate::changes::next_step;
use crate::heirs::{AskedHeirs, PossibleHeir};

/// Between two looks at who is a member, and who leads what, in ms.
const LOOK_MS: u64 = 200;

/// What happens in between is not looked for, but a letter and what a disk does, in ms.
const TICK_MS: u64 = 20;

/// A transfer has so long before another one is tried, in ms.
const TRANSFER_MS: u64 = 1_500;

/// So long a node may lead group 0 without all others, in ms.
const PATIENCE_MS: u64 = 10_000;

/// The members of all groups.
pub(crate) struct Groups<D: Disk> {
    id: MemberId,
    pub(crate) votes: Votes<D>,
    pub(crate) members: Vec<Member<D>>,
    /// Groups with actions that were not taken.
    touched: Vec<bool>,
    now_ms: u64,
    /// When all had a tick.
    ticked_ms: Option<u64>,
    is_lent: bool,
    looked_ms: u64,
    /// When each was last transferred.
    transferred_ms: Vec<Option<u64>>,
    /// Who led each when it was last told, and in which term.
    led: Vec<Option<(u64, MemberId)>>,
    /// The last batch of each at the look before.
    last: Vec<u64>,
    /// What group 0's members are to become, while this node leads all groups.
    wish: Option<Change>,
    /// Since when group 0 is led here and not all are.
    partly_ms: Option<u64>,
    leaving: Option<Leaving>,
    /// Who was asked to lead in place of this node, as it leaves or cannot lead all groups.
    asked: AskedHeirs,
    /// Who is to lead in place of this node, which goes on.
    heir: Option<RaftId>,
    /// Whose disk hung lately, of those that are there; and whether this node's did.
    hung: Vec<RaftId>,
    own_hung: bool,
}

/// Another node is to lead.
#[derive(Debug)]
struct Leaving {
    /// It led when it was told to go.
    leads: bool,
}

/// What the members want done.
#[derive(Debug)]
pub(crate) struct GroupActions<D> {
    pub(crate) send: Vec<(RaftId, NodeLetter)>,
    pub(crate) wakes: Vec<u64>,
    pub(crate) reopen: Vec<(u64, Reopening<D>)>,
    pub(crate) must_restart: bool,
    pub(crate) failed: Option<String>,
    pub(crate) told: Vec<String>,
    pub(crate) names: Vec<Content>,
    pub(crate) noted: Vec<String>,
}

impl<D> Default for GroupActions<D> {
    fn default() -> Self {
        let (send, wakes, reopen, told, noted, names) = Default::default();
        Self { send, wakes, reopen, must_restart: false, failed: None, told, noted, names }
    }
}

impl<D: Disk> Groups<D> {
    pub(crate) fn new(id: MemberId, votes: Votes<D>, mut members: Vec<Member<D>>) -> Self {
        let count = members.len();
        // What the others are about nobody follows.
        members.iter_mut().take(1).for_each(Member::tell_contents);
        Self {
            id,
            votes,
            members,
            touched: vec![true; count],
            now_ms: 0,
            ticked_ms: None,
            is_lent: false,
            looked_ms: 0,
            transferred_ms: vec![None; count],
            led: vec![None; count],
            last: vec![u64::MAX; count],
            wish: None,
            partly_ms: None,
            leaving: None,
            asked: AskedHeirs::default(),
            heir: None,
            hung: Vec::new(),
            own_hung: false,
        }
    }

    /// Whose disks hung lately: they lead only if nobody else can.
    pub(crate) fn set_hung(&mut self, own: bool, others: Vec<RaftId>) {
        self.hung = others;
        if std::mem::replace(&mut self.own_hung, own) != own {
            self.members.iter_mut().for_each(|member| member.set_reluctant(own));
        }
    }

    fn with(&mut self, group: u64, work: impl FnOnce(&mut Member<D>)) {
        let index = usize::try_from(group).unwrap_or(usize::MAX);
        if let (Some(member), Some(touched)) =
            (self.members.get_mut(index), self.touched.get_mut(index))
        {
            member.tell_time(self.now_ms);
            work(member);
            *touched = true;
        }
    }

    pub(crate) fn letter(&mut self, from: RaftId, group: u64, letter: NodeLetter) {
        let from = MemberId(from.0);
        match letter {
            NodeLetter::Replica { message, copies, .. } => {
                self.with(group, |member| member.step(from, message, copies));
            }
            NodeLetter::Record { letter, .. } => {
                self.with(group, |member| member.record(from, letter));
            }
            NodeLetter::Refill { refill, .. } => {
                self.with(group, |member| member.refill(from, refill));
            }
            _ => {}
        }
    }

    pub(crate) fn tell_time(&mut self, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
    }

    /// The log of a group was opened anew.
    pub(crate) fn reopened(&mut self, group: u64, log: Reopened<D>) {
        self.with(group, |member| member.reopened(log));
    }

    pub(crate) fn tick(&mut self, now_ms: u64) {
        self.tell_time(now_ms);
        let is_due = |ticked_ms: u64| now_ms >= ticked_ms.saturating_add(TICK_MS);
        if !self.ticked_ms.is_none_or(is_due) {
            return;
        }
        self.ticked_ms = Some(now_ms);
        let takers = self.members.iter().filter(|it| it.takes_files()).count() as u64;
        let all = self.members.len() as u64;
        let mut lost = None;
        for group in 0..self.members.len() as u64 {
            self.with(group, |member| {
                let leader = member.leader();
                // All others may begin before the next tick.
                member.share_files(if member.takes_files() { takers } else { all });
                member.tick(now_ms);
                lost = lost.or_else(|| leader.filter(|_| member.leader().is_none()));
            });
        }
        if let Some(lost) = lost {
            self.stand_against(lost);
        }
    }

    /// A leader was waited for in vain in one group: this node stands for election in all that it led, so that it is elected in all.
    fn stand_against(&mut self, lost: MemberId) {
        for group in 0..self.members.len() as u64 {
            self.with(group, |member| {
                if member.misses_leader() {
                    member.lose_sight(lost, 0);
                }
            });
        }
    }

    /// How far each group is, as this node knows.
    pub(crate) fn tell(&self) -> Vec<GroupTold> {
        let told = |(group, it): (u64, &Member<D>)| GroupTold { group, told: it.tells() };
        (0..).zip(&self.members).map(told).collect()
    }

    pub(crate) fn hear(&mut self, from: RaftId, told: &[GroupTold]) {
        for GroupTold { group, told } in told {
            self.with(*group, |member| member.hear(MemberId(from.0), *told));
        }
    }

    /// Whether a group here has to hear others before it votes.
    pub(crate) fn is_unsure(&self) -> bool {
        self.members.iter().any(Member::is_unsure)
    }

    /// A node is not linked any more. The first of those that are stands at once for what it led, the others later.
    pub(crate) fn lose_sight(&mut self, of: RaftId, is_linked: impl Fn(RaftId) -> bool) {
        let before = self.peers().into_iter().filter(|id| id.0 < self.id.0 && is_linked(*id));
        let others = before.count();
        for group in 0..self.members.len() as u64 {
            self.with(group, |member| member.lose_sight(MemberId(of.0), others));
        }
        // What was to go there goes to another one at once.
        self.transferred_ms.fill(None);
        self.looked_ms = 0;
    }

    pub(crate) fn disk_woke(&mut self, group: u64) {
        self.with(group, Member::disk_woke);
    }

    pub(crate) fn log_woke(&mut self, group: u64) {
        self.with(group, Member::log_woke);
    }

    /// The file of words did something.
    pub(crate) fn words_woke(&mut self) -> Result<(), String> {
        let kept = self.votes.collect().map_err(|why| format!("the file of words: {why}"))?;
        for (group, ticket) in kept {
            self.with(group, |member| member.kept(ticket));
        }
        Ok(())
    }

    /// All that is to be done.
    pub(crate) fn take_actions(&mut self, to: &mut GroupActions<D>) {
        // What is kept at once, or comes from the disk at once, has consequences.
        while let Some(index) = self.touched.iter().position(|touched| *touched) {
            if let (Some(member), Some(touched)) =
                (self.members.get_mut(index), self.touched.get_mut(index))
            {
                *touched = false;
                let actions = member.take_actions();
                let group = index as u64;
                to.reopen.extend(member.take_reopening().map(|log| (group, log)));
                for (id, message, copies) in actions.messages {
                    let letter = NodeLetter::Replica { group, message, copies };
                    to.send.push((RaftId(id.0), letter));
                }
                for (id, letter) in actions.records {
                    to.send.push((RaftId(id.0), NodeLetter::Record { group, letter }));
                }
                for (id, refill) in actions.refill {
                    to.send.push((RaftId(id.0), NodeLetter::Refill { group, refill }));
                }
                for (word, ticket) in actions.keep {
                    self.votes.keep(group, word, ticket);
                }
                if actions.wakes_log {
                    to.wakes.push(group);
                }
                to.names.extend(actions.contents);
                let of_group = |it| format!("group {group}: {it}");
                to.told.extend(actions.told.into_iter().map(of_group));
                to.noted.extend(actions.noted.into_iter().map(of_group));
                // A node that leaves has stopped its broker: nothing is left to begin anew for.
                to.must_restart |= actions.must_restart && self.leaving.is_none();
                if let Some(why) = actions.failed {
                    to.failed.get_or_insert_with(|| format!("group {group}: {why}"));
                }
            }
        }
        self.votes.sync();
    }

    /// Which groups another node leads than when this was asked last, for people. `name` knows the others.
    pub(crate) fn told_leaders(&mut self, name: impl Fn(RaftId) -> Option<String>) -> Vec<String> {
        let mut told = Vec::new();
        for (group, (member, led)) in self.members.iter().zip(&mut self.led).enumerate() {
            let now = member.leader().map(|id| (member.term(), id));
            let Some((term, id)) = now.filter(|_| *led != now) else { continue };
            *led = now;
            let name = match name(RaftId(id.0)) {
                _ if id == self.id => "this node".to_owned(),
                Some(name) => format!("node {name}"),
                None => format!("member {id}"),
            };
            told.push(format!("group {group}: {name} leads in term {term}"));
        }
        told
    }

    /// Whether this node leads all groups.
    pub(crate) fn leads_all(&self) -> bool {
        self.leaving.is_none() && self.members.iter().all(|member| member.leads().is_some())
    }

    /// From when until when this node may give out what the groups have. Nobody else leads all groups as long as this one leads
    /// group 0.
    pub(crate) fn lease(&self) -> Lease {
        let lease = self.members.first().filter(|_| self.leads_all()).map(Member::lease);
        lease.unwrap_or(Lease::NONE)
    }

    /// Who leads group 0, as far as is known here.
    pub(crate) fn first_leader(&self) -> Option<RaftId> {
        self.members.first().and_then(Member::leader).map(|id| RaftId(id.0))
    }

    /// The logs, once, each with the term in which this node leads its group.
    pub(crate) fn lend(
        &mut self,
        wake: impl Fn(u64) -> Arc<dyn Fn() + Send + Sync>,
    ) -> Option<Vec<(u64, GroupLog<D>)>> {
        if self.is_lent || !self.leads_all() {
            return None;
        }
        self.is_lent = true;
        self.touched.fill(true);
        let lend =
            |(group, it): (u64, &mut Member<D>)| Some((it.leads()?, it.lend_log(wake(group))?));
        (0..).zip(&mut self.members).map(lend).collect()
    }

    /// Another node is to lead what this one leads.
    pub(crate) fn leave(&mut self) {
        if self.leaving.is_none() {
            let leads = self.is_lent || self.leads_any();
            self.leaving = Some(Leaving { leads });
            self.looked_ms = 0;
        }
    }

    /// Another node is to lead in place of this one, which goes on; or none is. True if that one is another than before.
    pub(crate) fn give_way(&mut self, to: Option<RaftId>) -> bool {
        std::mem::replace(&mut self.heir, to) != to
    }

    fn leads_any(&self) -> bool {
        self.members.iter().any(|it| it.leader() == Some(self.id))
    }

    /// Whether nothing is left to be done before it ends: those that are there cannot take over, or another node says that it `leads` now.
    /// (Who was deposed copies nothing, and so does not hear who leads; and it votes for nobody, so the others have to be a majority.)
    pub(crate) fn has_left(&self, leads: impl Fn(RaftId) -> Option<bool>) -> bool {
        let peers = self.peers();
        let members = peers.len() + 1;
        let majority = members / 2 + 1;
        let others: Vec<bool> = peers.into_iter().filter_map(leads).collect();
        let had = self.leaving.as_ref().is_some_and(|it| it.leads);
        others.len() < majority || !self.leads_any() && (!had || others.contains(&true))
    }

    /// The other members of the groups.
    fn peers(&self) -> Vec<RaftId> {
        let Some(first) = self.members.first() else { return Vec::new() };
        let others = first.status().members.voters.into_iter().filter(|id| *id != self.id);
        others.map(|id| RaftId(id.0)).collect()
    }

    /// Has groups go to where they belong.
    pub(crate) fn look(&mut self, now_ms: u64, is_linked: impl Fn(RaftId) -> bool) {
        if self.leaving.is_none() && self.heir.is_none() {
            self.follow_first(now_ms, &is_linked);
        }
        if now_ms < self.looked_ms.saturating_add(LOOK_MS) {
            return;
        }
        self.looked_ms = now_ms;
        let heir = match self.leaving {
            Some(_) => self.next_heir(now_ms, &is_linked),
            None => self.heir,
        };
        if let Some(heir) = heir {
            (0..self.members.len()).for_each(|group| self.transfer(group, heir, now_ms));
        }
        if self.leaving.is_some() || heir.is_some() {
            return;
        }
        self.change_members(&is_linked);
        let leads_first = self.members.first().is_some_and(|it| it.elected().is_some());
        let leads_all = self.leads_all();
        if leads_all {
            self.asked.forget();
        }
        if !leads_first || leads_all {
            self.partly_ms = None;
        } else if now_ms >= self.partly_ms.get_or_insert(now_ms).saturating_add(PATIENCE_MS) {
            self.partly_ms = None;
            let others = self.members.iter().filter(|it| it.elected().is_none());
            let leader =
                others.filter_map(Member::leader).map(|id| RaftId(id.0)).find(|id| is_linked(*id));
            // Or this node's disk does not take the first batch of a term.
            let is_stuck = |it: &Member<D>| it.elected().is_some() && it.leads().is_none();
            let is_stuck = self.members.iter().any(is_stuck);
            let heir = || is_stuck.then(|| self.next_heir(now_ms, &is_linked)).flatten();
            if let Some(to) = leader.or_else(heir) {
                self.transfer(0, to, now_ms);
            }
        }
    }

    /// What this node was elected for goes to who leads group 0: at once, as nobody is served before that leads all.
    fn follow_first(&mut self, now_ms: u64, is_linked: impl Fn(RaftId) -> bool) {
        // One that was not heard lately may be gone, and is about to be followed in group 0, too.
        let is_heard = self.members.first().is_some_and(|it| !it.misses_leader());
        let is_there = |id: &RaftId| is_heard && id.0 != self.id.0 && is_linked(*id);
        let Some(to) = self.first_leader().filter(is_there) else { return };
        (1..self.members.len()).for_each(|group| self.transfer(group, to, now_ms));
    }

    /// The next step of each group that is led here, if its members are not what they are to be.
    fn change_members(&mut self, is_linked: impl Fn(RaftId) -> bool) {
        let before: Vec<_> = self.members.iter().map(|it| it.status().last.number).collect();
        let before = std::mem::replace(&mut self.last, before);
        // Of what there was a moment ago.
        let has_all = |member: &Member<D>, last: u64, id: MemberId| {
            let matched = member.status().matched;
            matched.iter().any(|it| it.0 == id && it.1 >= last) && is_linked(RaftId(id.0))
        };
        let Some(first) = self.members.first().map(|it| it.members().0.clone()) else { return };
        let leads_all = self.leads_all();
        if !leads_all {
            self.wish = None;
        }
        let is_over = |step: &Step| {
            let (is_here, is_member) = (is_linked(RaftId(step.of().0)), first.has(step.of()));
            match step {
                Step::Remove(_) => is_here || !is_member,
                Step::Learner(_) | Step::Voter(_) => !is_here || is_member,
            }
        };
        self.wish.take_if(|wish| wish.steps.iter().all(is_over));
        let mut changes = Vec::new();
        let free = self.members.iter().enumerate().filter(|(_, member)| member.can_change());
        for (index, member) in free {
            let last = before.get(index).copied().unwrap_or(u64::MAX);
            let change = if index > 0 {
                next_step(&first, member.members().0, |id| has_all(member, last, id))
                    .map(|step| Change::of(vec![step]))
            } else if self.wish.is_some() {
                self.wish.clone()
            } else {
                let is_ready = |id: &&MemberId| {
                    let mut all = self.members.iter().zip(&before);
                    all.all(|(it, last)| it.members().0.has(**id) && has_all(it, *last, **id))
                };
                let ready = first.learners.iter().filter(|_| leads_all).find(is_ready);
                ready.map(|id| Change::of(vec![Step::Voter(*id)]))
            };
            changes.extend(change.map(|change| (index as u64, change)));
        }
        for (group, change) in changes {
            // What came to nothing is seen at the next look.
            self.with(group, |member| _ = member.change(change));
        }
    }

    /// Group 0's members are to become this, if nothing else is under way. It is forgotten where this node leads no more.
    pub(crate) fn wish(&mut self, change: Change) {
        self.wish = Some(change);
        self.looked_ms = 0;
    }

    /// Whether a change of members is wished for, under way, or not done in all groups.
    pub(crate) fn is_changing(&self) -> bool {
        let Some(first) = self.members.first().map(|it| it.members().0) else { return false };
        let is_done = |it: &Member<D>| it.can_change() && it.members().0 == first;
        self.wish.is_some() || !first.learners.is_empty() || !self.members.iter().all(is_done)
    }

    /// Whether group 0's members are to become those without this one.
    pub(crate) fn wishes_away(&self, id: RaftId) -> bool {
        let away = Step::Remove(MemberId(id.0));
        self.wish.as_ref().is_some_and(|it| it.steps.contains(&away))
    }

    /// Whether any group has this member.
    pub(crate) fn have(&self, id: RaftId) -> bool {
        self.members.iter().any(|it| it.members().0.has(MemberId(id.0)))
    }

    /// Who votes in all groups, as far as is known here. Groups are many and mostly have the same members.
    pub(crate) fn voters(&self) -> Vec<RaftId> {
        let mut all = self.members.iter().map(|it| &it.members().0.voters);
        let first = all.next().map_or(&[][..], Vec::as_slice);
        let mut found = first.to_vec();
        for other in all.filter(|it| **it != first) {
            found.retain(|id| other.contains(id));
        }
        found.into_iter().map(|id| RaftId(id.0)).collect()
    }

    /// The members of group 0, and the number of the batch as of which they are.
    pub(crate) fn cluster_members(&self) -> Option<(&Members, u64)> {
        self.members.first().map(Member::members)
    }

    /// What the log of group 0 calls a member.
    pub(crate) fn named(&self, id: RaftId) -> Option<&str> {
        self.members.first()?.named(MemberId(id.0))
    }

    /// Who is to be asked to lead in place of this node, of those that are there.
    pub(crate) fn next_heir(
        &mut self,
        now_ms: u64,
        is_linked: impl Fn(RaftId) -> bool,
    ) -> Option<RaftId> {
        let peers = self.peers().into_iter().filter(|id| is_linked(*id));
        let of = |id| PossibleHeir { id, hung: self.hung.contains(&id), lag: self.lag_of(id) };
        let able: Vec<_> = peers.map(of).collect();
        self.asked.ask(&able, TRANSFER_MS, now_ms)
    }

    /// How many batches a node lacks, of all groups that are led here.
    pub(crate) fn lag_of(&self, id: RaftId) -> u64 {
        let lags = self.members.iter().filter(|it| it.elected().is_some()).map(|member| {
            let status = member.status();
            let matched = status.matched.iter().find(|(of, _)| of.0 == id.0);
            status.last.number.saturating_sub(matched.map_or(0, |(_, number)| *number))
        });
        lags.fold(0, u64::saturating_add)
    }

    fn transfer(&mut self, group: usize, to: RaftId, now_ms: u64) {
        let (Some(member), Some(at), Some(touched)) = (
            self.members.get_mut(group),
            self.transferred_ms.get_mut(group),
            self.touched.get_mut(group),
        ) else {
            return;
        };
        let is_due = at.is_none_or(|at| now_ms >= at.saturating_add(TRANSFER_MS));
        if member.elected().is_some() && is_due && member.transfer(MemberId(to.0)).is_ok() {
            *at = Some(now_ms);
            *touched = true;
        }
    }

    /// The groups in whose logs this node lacks what it once acknowledged: where each ends, and how far it went.
    pub(crate) fn lacking(&self) -> impl Iterator<Item = (u64, BatchName, BatchName)> {
        let of = |(group, member): (u64, &Member<D>)| Some((group, member.last(), member.lacks()?));
        (0..).zip(&self.members).filter_map(of)
    }

    /// The members of a group that this one, which leads it, is not in contact with.
    pub(crate) fn left_out(&self, group: u64) -> impl Iterator<Item = (RaftId, LeftOut)> {
        let member = usize::try_from(group).ok().and_then(|index| self.members.get(index));
        let all = member.into_iter().flat_map(Member::left_out);
        all.map(|(id, why)| (RaftId(id.0), why))
    }

    /// The same of all groups in which confirms may have to wait for all who are in contact; none if there is no such group.
    pub(crate) fn left_out_of_confirms(&self) -> Option<BTreeMap<RaftId, LeftOut>> {
        let mut using = self.members.iter().filter(|it| it.uses_all()).peekable();
        using.peek()?;
        let all = using.flat_map(Member::left_out);
        Some(all.map(|(id, why)| (RaftId(id.0), why)).collect())
    }

    /// Records that were damaged here, and were had from others.
    pub(crate) fn repaired(&self) -> u64 {
        self.members.iter().map(Member::repaired).sum()
    }

    /// What each member is.
    pub(crate) fn statuses(&self) -> Vec<GroupStatus> {
        let rows = (0..).zip(&self.members).map(|(group, member)| {
            let status = member.status();
            GroupStatus {
                group,
                term: member.term(),
                leader: member.leader().map(|id| RaftId(id.0)),
                last: status.last.number,
                stored: status.stored,
                agreed: status.agreed.number,
                matched: status
                    .matched
                    .iter()
                    .map(|(id, number)| (RaftId(id.0), *number))
                    .collect(),
                refill_here: status.refill.map_or(0, |it| it.here),
                refill_of: status.refill.map_or(0, |it| it.of),
            }
        });
        rows.collect()
    }
}
