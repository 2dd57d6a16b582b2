//! A member of a group: its replica, its log in files, and what has to be done between the two.
//!
//! ```text
//!   step, tick, kept --> [ Replica ] -- tasks --> [ FileLog ]            a follower, or about to lead
//!                             |                        |
//!                             |                     lend_log
//!                             |                        v
//!                        batches made, stored <-- desk <-- [ GroupLog ]  of the leader's shard
//!                        agreed, what is wanted -->
//! ```
//!
//! A log that was lent never comes back. What a shard did and nobody agreed to is undone by starting the process anew, which reads
//! the files as a follower's. So a member whose log is lent only adds to it.

mod changes;
mod contents;
mod lent;
mod opening;
mod refill;
mod repair;
mod sending;
mod unwritten;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use leveret_log::disk::Disk;
use leveret_log::file::{BatchCopy, NoBatch, OpenError, Options, Report};
use leveret_log::{BatchName, FileLog};

use crate::batches::{Batch, Batches, NoBytes, Point};
use crate::contact::LeftOut;
use crate::desk::{Desk, Hold, Reports};
use crate::files::Refill;
use crate::group_log::GroupLog;
use crate::lease::Lease;
use crate::members::{Change, MemberId, Members};
use crate::message::{Body, Message};
use crate::output::{Output, Role, Stored, Task, Tasks, Ticket, Word};
use crate::replica::{GroupFacts, NotNow, Replica, Settings};
pub use contents::Content;
use contents::Telling;
use lent::LentLog;
use opening::begin;
use refill::{Giving, SHARES, Taking};
use repair::Repairs;
use sending::Sending;
use unwritten::{UNWRITTEN_MAX, Unwritten};

pub use opening::{Reopened, Reopening};
pub use refill::Refilling;
pub use repair::RecordLetter;

/// Why a member cannot be opened. It neither votes nor stands, and acknowledges nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemberError {
    /// Nobody knows what it promised.
    #[error(
        "what this member has promised to its group cannot be read: it may have voted for somebody, and must not vote again. It \
         has to be removed from the group, and to come back as a new member"
    )]
    Forgotten,
    /// Its log is not there.
    #[error("{0}")]
    Log(#[from] OpenError),
    /// Something of its log is damaged, or missing, that others count on. Nothing was changed.
    #[error(
        "this member's log is damaged, and others count on it: {0}. Started again, it gets what it lacks from the others"
    )]
    Damaged(OpenError),
    /// A change of members cannot be read.
    #[error("{0} is a change of members that this version cannot read")]
    Change(BatchName),
    /// Who is a member as of the point of its list of files cannot be read.
    #[error("this version cannot read who is a member as of {0}")]
    Point(BatchName),
    /// Its log begins behind nothing, or before the group did.
    #[error("the log begins behind {found}, and its group's behind {point}: it is another group's")]
    OtherGroup {
        /// What the log begins behind.
        found: BatchName,
        /// What the group's begins behind.
        point: BatchName,
    },
}

/// What is to be done now.
#[derive(Debug, Default)]
#[must_use]
pub struct MemberActions {
    /// For other members, each with the bytes of its batches, in order.
    pub messages: Vec<(MemberId, Message, Vec<BatchCopy>)>,
    /// The same, of single records.
    pub records: Vec<(MemberId, RecordLetter)>,
    /// What other members are told of files, beside those.
    pub refill: Vec<(MemberId, Refill)>,
    /// Words to be kept; what is kept is told with [`Member::kept`].
    pub keep: Vec<(Word, Ticket)>,
    /// The lent log's shard is to have a turn.
    pub wakes_log: bool,
    /// What it has become, one after the other.
    pub roles: Vec<Role>,
    /// What its log is about, in order, once that is to be [told](Member::tell_contents).
    pub contents: Vec<Content>,
    /// Its log was lent, and others decide now: what it did that is not agreed upon is to be forgotten. The process starts anew.
    pub must_restart: bool,
    /// Its disk failed: the process ends.
    pub failed: Option<String>,
    /// For people: warnings.
    pub told: Vec<String>,
    /// For people: what is well again.
    pub noted: Vec<String>,
}

/// How far a member is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberStatus {
    /// The end of its log.
    pub last: BatchName,
    /// The last batch that its disk has for good, and that it gave its word for.
    pub stored: u64,
    /// The last batch that all agree upon, as far as it knows.
    pub agreed: BatchName,
    /// What it once acknowledged and does not have.
    pub lacks: Option<BatchName>,
    /// It takes files of its leader in place of its log, and has so much of them.
    pub refill: Option<Refilling>,
    /// Who is in the group, as far as it knows.
    pub members: Members,
    /// Of a leader: how far the log of each other member is known to be as its own.
    pub matched: Vec<(MemberId, u64)>,
    /// Of a leader: the number of the last batch that all members in contact have stored, and that is agreed upon.
    pub on_all: u64,
    /// Of a leader: the members that it is not in contact with.
    pub left_out: Vec<(MemberId, LeftOut)>,
}

/// What a start finds.
struct Opened {
    point: Point,
    applied: u64,
    last: BatchName,
    agreed: u64,
    batches: BTreeMap<u64, Batch>,
}

impl Batches for Opened {
    fn point(&self) -> Point {
        self.point.clone()
    }

    fn applied(&self) -> u64 {
        self.applied
    }

    fn last(&self) -> BatchName {
        self.last
    }

    fn batch(&self, number: u64) -> Option<Batch> {
        self.batches.get(&number).cloned()
    }

    fn agreed(&self) -> u64 {
        self.agreed
    }
}

/// One group on this node.
pub struct Member<D: Disk> {
    replica: Replica,
    settings: Settings,
    options: Options,
    /// While no shard has it.
    log: Option<Box<FileLog<D>>>,
    lent: Option<LentLog>,
    /// It is being opened anew.
    is_reopening: bool,
    reopening: Option<Reopening<D>>,
    giving: Giving,
    taking: Option<Taking>,
    /// Files were there when it was opened that came, or were set aside, and are not of the log.
    has_rests: bool,
    /// Its share of the bytes that may be asked for.
    share: u64,
    /// What was told of: it lacks something.
    has_told_lack: bool,
    tasks: Tasks,
    kept: Ticket,
    unwritten: Unwritten,
    /// Of batches that are to be copied.
    copies: BTreeMap<BatchName, BatchCopy>,
    /// What its log was handed, and has not stored.
    waiting: VecDeque<Stored>,
    /// What the log was told that all agree upon. The replica may know of more, of batches that come after a cut.
    told: BatchName,
    sending: Sending,
    repairs: Repairs,
    now_ms: u64,
    /// When each other member was heard last.
    heard: BTreeMap<MemberId, u64>,
    /// A change of members that waits until the lent log makes no batches.
    change: Option<Change>,
    is_restarting: bool,
    has_failed: bool,
    breaches: u64,
    telling: Option<Telling>,
    actions: MemberActions,
}

impl<D: Disk> Member<D> {
    /// Opens the log on `disk` as a follower's. `word` is what is kept of this group: the default if it never gave any, none if
    /// that is damaged or was forgotten. A newly founded group has the same `point` on all its members: its log begins behind it. Who
    /// came later has that, too, and lacks all behind it. Once the list of files has a point, that says who is a member.
    /// Of the options `follows`, `until` and `begins_behind` are this function's.
    pub fn open(
        id: MemberId,
        settings: Settings,
        seed: u64,
        word: Option<Word>,
        disk: D,
        options: Options,
        point: Point,
    ) -> Result<(Self, Report), MemberError> {
        let word = word.ok_or(MemberError::Forgotten)?;
        let options = Options { until: None, begins_behind: Some(point.at), ..options };
        let has_others = point.members.voters.iter().any(|it| *it != id);
        let (mut log, report, damage) = begin(disk, &options, has_others)?;
        let has_rests = log.has_coming();
        let found = log.point();
        if found.number < point.at.number || found.term < point.at.term {
            return Err(MemberError::OtherGroup { found, point: point.at });
        }
        let mut changes = BTreeMap::new();
        for (number, bytes) in log.changes_of_members() {
            let name = BatchName { number, term: log.term_of(number).unwrap_or(0) };
            changes.insert(number, changes::decode(&bytes).ok_or(MemberError::Change(name))?);
        }
        let listed = log.listed_point().map(|it| changes::of_log(it).ok_or(it.at)).transpose();
        let listed = listed.map_err(MemberError::Point)?;
        let applied = listed.as_ref().map_or(0, |it| it.at.number).max(found.number);
        let members = listed.map_or(point.members, |it| it.members);
        let last = log.last();
        let batch = |number| {
            let name = BatchName { number, term: log.term_of(number)? };
            Some((number, Batch { name, change: changes.get(&number).cloned() }))
        };
        let opened = Opened {
            point: Point { at: found, members },
            applied,
            last,
            agreed: log.applied().map_or(0, |it| it.number).max(found.number),
            batches: (found.number + 1..=last.number).filter_map(batch).collect(),
        };
        let (replica, output) = Replica::open(id, settings, seed, word, &opened);
        let mut member = Self {
            replica,
            settings,
            options,
            log: Some(Box::new(log)),
            lent: None,
            is_reopening: false,
            reopening: None,
            giving: Giving::default(),
            taking: None,
            has_rests,
            // Until it is known how many there are.
            share: settings.files_bytes / SHARES,
            has_told_lack: false,
            tasks: Tasks::default(),
            kept: Ticket(0),
            unwritten: Unwritten::default(),
            copies: BTreeMap::new(),
            waiting: VecDeque::new(),
            told: BatchName::NONE,
            sending: Sending::default(),
            repairs: Repairs::default(),
            now_ms: 0,
            heard: BTreeMap::new(),
            change: None,
            is_restarting: false,
            has_failed: false,
            breaches: 0,
            telling: None,
            actions: MemberActions::default(),
        };
        if let Some(damage) = damage {
            member.actions.told.push(format!(
                "this node's log is damaged: {damage}. It counts as lost, and is had from the other members again, but for what is whole of its \
                 files"
            ));
        }
        member.hold();
        member.absorb(output);
        member.go_on();
        Ok((member, report))
    }

    /// A message came, with the bytes of its batches. One that cannot have been said is told of, and dropped. The caller sees to
    /// it that the sender is one of the cluster: whether it is a member of the group only a newer log may tell.
    pub fn step(&mut self, from: MemberId, mut message: Message, copies: Vec<BatchCopy>) {
        if self.is_out() {
            return;
        }
        self.heard.insert(from, self.now_ms);
        if let Err(what) = check(&mut message, &copies) {
            return self.breach(from, &what);
        }
        // One that did not come is sent again: what waits for a full disk, or for a log that is being opened, is no burden for long.
        if !copies.is_empty() && self.unwritten.bytes > UNWRITTEN_MAX {
            return;
        }
        match self.replica.step(from, message) {
            Ok(output) => {
                let mut copies = copies.into_iter();
                for task in &output.tasks {
                    let Task::Copy(batches) = task else { continue };
                    let is_new =
                        |copy: &BatchCopy| copy.name() == batches.first().map(|it| it.name);
                    let first = copies.by_ref().find(is_new);
                    let new = first.into_iter().chain(copies.by_ref());
                    for (name, copy) in new.filter_map(|copy| Some((copy.name()?, copy))) {
                        self.unwritten.add(name.number, copy.len());
                        self.copies.insert(name, copy);
                    }
                }
                self.absorb(output);
                self.go_on();
            }
            Err(breach) => self.breach(from, &breach.to_string()),
        }
    }

    /// It is `now_ms`. To be told before anything else is: of what is stepped all was said before.
    pub fn tell_time(&mut self, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
        self.replica.tell_time(now_ms);
    }

    /// It is `now_ms`, by a clock that does not go back and counts a suspended machine's sleep.
    pub fn tick(&mut self, now_ms: u64) {
        if self.is_out() {
            return;
        }
        self.now_ms = self.now_ms.max(now_ms);
        let output = self.replica.tick(now_ms);
        self.absorb(output);
        self.sending.give_up(self.now_ms, self.settings.patience_ms());
        self.repair();
        self.hold();
        self.tick_files();
        self.go_on();
    }

    /// Another member tells this of itself.
    pub fn hear(&mut self, from: MemberId, told: GroupFacts) {
        if self.is_out() {
            return;
        }
        let output = self.replica.hear(from, told);
        self.absorb(output);
        self.go_on();
    }

    /// What this one tells.
    pub fn tells(&self) -> GroupFacts {
        self.replica.tells()
    }

    /// This was known to be agreed upon before this process began; and whether the files may be an older copy of themselves.
    pub fn remember(&mut self, agreed: BatchName, is_copy: bool) {
        self.replica.remember(agreed);
        if is_copy {
            self.replica.distrust();
        }
    }

    /// Whether it has to hear others before it votes for anybody.
    pub fn is_unsure(&self) -> bool {
        self.replica.is_unsure()
    }

    /// The connections to a member have ended: if it leads, others may be elected at once, and this one stands when so many others have
    /// had their turn.
    pub fn lose_sight(&mut self, of: MemberId, others: usize) {
        if self.is_out() {
            return;
        }
        let output = self.replica.lose_sight(of, others);
        self.absorb(output);
        self.go_on();
    }

    /// Whether it has not heard its leader for some time: see [`Replica::misses_leader`].
    pub fn misses_leader(&self) -> bool {
        self.replica.misses_leader()
    }

    /// Whether it is to lead only if no other member can.
    pub fn set_reluctant(&mut self, is_reluctant: bool) {
        self.replica.set_reluctant(is_reluctant);
    }

    /// Its disk did something.
    pub fn disk_woke(&mut self) {
        self.go_on();
    }

    /// Its lent log left something on the desk.
    pub fn log_woke(&mut self) {
        let is_out = self.is_out();
        let Some(lent) = self.lent.as_mut().filter(|_| !is_out) else { return };
        let reports = lent.desk().take_reports();
        let Reports {
            made,
            stored,
            point,
            wants_point,
            read,
            damaged,
            mended,
            taken,
            files,
            wants_turn,
            pause,
            failed,
        } = reports;
        for (name, batch) in made {
            // What the replica wanted it has.
            if batch.members().is_none() {
                lent.made.push_back(name);
            }
            lent.take(name, batch);
        }
        lent.stored = stored.unwrap_or(lent.stored);
        lent.paused = pause.or(lent.paused);
        for (number, batch) in read {
            // For what is gone they get files.
            let error = lent.take_read(number, batch).filter(|it| *it != NoBatch::Gone);
            self.actions
                .told
                .extend(error.map(|it| format!("batch {number} is lacked by others: {it}")));
        }
        self.actions.wakes_log |= wants_turn;
        self.give(files);
        if let Some(failed) = failed {
            return self.fail(failed);
        }
        self.want_records(damaged);
        self.have_mended(mended);
        self.have_taken(taken);
        self.repair();
        self.go_on();
        // Only what the replica has heard of is its log.
        if let Some(point) = point {
            self.begin_behind(point);
        }
        if let Some(lent) = self.lent.as_ref().filter(|_| wants_point) {
            let point = changes::logged(self.replica.snapshot());
            lent.desk().order(|orders| orders.point = Some(point));
            self.actions.wakes_log = true;
        }
    }

    /// From now on it is told what the log is about, until it is lent.
    pub fn tell_contents(&mut self) {
        self.telling.get_or_insert_with(Telling::new);
        self.go_on();
    }

    /// The word with this ticket is kept, in place of all before.
    pub fn kept(&mut self, ticket: Ticket) {
        if self.is_out() {
            return;
        }
        self.kept = self.kept.max(ticket);
        let output = self.replica.kept(ticket);
        self.absorb(output);
        self.go_on();
    }

    /// Another member is to lead. It goes on if that does not come about within an election time-out.
    pub fn transfer(&mut self, to: MemberId) -> Result<(), NotNow> {
        if self.is_out() {
            return Err(NotNow);
        }
        let output = self.replica.transfer(to)?;
        self.absorb(output);
        self.go_on();
        Ok(())
    }

    /// The leader changes who is in the group. Only what the members are later tells that it was done.
    pub fn change(&mut self, change: Change) -> Result<(), NotNow> {
        if self.is_out() || self.change.is_some() || self.replica.change_is_open() {
            return Err(NotNow);
        }
        if self.lent.is_some() && self.replica.leads().is_some() {
            self.change = Some(change);
        } else {
            let output = self.replica.change(change)?;
            self.absorb(output);
        }
        self.go_on();
        Ok(())
    }

    /// What is to be done now: all that came of the calls since.
    pub fn take_actions(&mut self) -> MemberActions {
        let must_restart = self.is_restarting;
        MemberActions { must_restart, ..std::mem::take(&mut self.actions) }
    }

    /// The log, for its shard, once this member [leads](Self::leads). It never comes back:
    /// [`MemberActions::must_restart`] says when the process has to start anew. `wake` has [`log_woke`](Self::log_woke) called soon;
    /// it is called in the shard's turn, and takes no lock that is held in one.
    ///
    /// None if this member does not [lead](Self::leads), or lent it already.
    pub fn lend_log(&mut self, wake: Arc<dyn Fn() + Send + Sync>) -> Option<GroupLog<D>> {
        let can = self.leads().is_some() && !self.is_out();
        let mut log = self.log.take_if(|log| can && log.lead())?;
        let agreed = self.replica.agreed();
        if std::mem::take(&mut self.has_rests) {
            log.stop_receiving();
        }
        if let Some(mut telling) = self.telling.take() {
            let broken = telling.go_on(&mut log, agreed, &mut self.actions.contents);
            self.actions.told.extend(broken);
            let is_whole = telling.is_whole(&log);
            self.actions.contents.push(Content::Lent { is_whole });
        }
        let desk = Arc::new(Desk::new(agreed, wake));
        let (cuts, bytes) = (self.replica.cuts(), self.options.copies_bytes);
        self.lent = Some(LentLog::new(desk.clone(), (agreed, log.last().number), cuts, bytes));
        self.waiting.clear();
        self.hold();
        self.hand_over_files();
        Some(GroupLog::lent(*log, desk))
    }

    /// Who leads this term, as far as it knows.
    pub fn leader(&self) -> Option<MemberId> {
        self.replica.leader()
    }

    /// The highest term it knows of.
    pub fn term(&self) -> u64 {
        self.replica.term()
    }

    /// The term it leads, once its first batch of it is agreed upon and here, so that its log can be [lent](Self::lend_log): not while
    /// another member is to lead, which would have this process start anew in a moment.
    pub fn leads(&self) -> Option<u64> {
        let can_lend = self.log.as_ref().is_some_and(|log| log.can_lead());
        let can = self.lent.is_some() || can_lend && !self.replica.is_transferring();
        self.elected().filter(|_| can)
    }

    /// The term it leads, once its first batch of it is agreed upon.
    pub fn elected(&self) -> Option<u64> {
        self.replica.leads()
    }

    /// From when until when its shard may give out what it has.
    pub fn lease(&self) -> Lease {
        if self.is_out() { Lease::NONE } else { self.replica.lease() }
    }

    /// The end of its log.
    pub fn last(&self) -> BatchName {
        self.replica.last()
    }

    /// What it once acknowledged and does not have.
    pub fn lacks(&self) -> Option<BatchName> {
        self.replica.lacks()
    }

    /// How far it is.
    pub fn status(&self) -> MemberStatus {
        let members = self.replica.members().clone();
        let all = members.voters.iter().chain(&members.outgoing).chain(&members.learners);
        let mut others: Vec<_> = all.copied().filter(|id| *id != self.replica.id()).collect();
        others.sort_unstable();
        others.dedup();
        let matched = |id: MemberId| Some((id, self.replica.matched(id)?));
        MemberStatus {
            last: self.replica.last(),
            stored: self.replica.sure().min(self.replica.last().number),
            agreed: self.replica.agreed(),
            lacks: self.replica.lacks(),
            refill: self.taking.as_ref().map(Taking::progress),
            matched: others.into_iter().filter_map(matched).collect(),
            on_all: self.lent.as_ref().map_or(0, LentLog::on_all),
            left_out: self.left_out().collect(),
            members,
        }
    }

    /// The members that this one is not in contact with, if it leads: their copies may be missing where all members in contact have
    /// something.
    pub fn left_out(&self) -> impl Iterator<Item = (MemberId, LeftOut)> {
        self.replica.left_out()
    }

    /// Whether confirms of its shard may have to wait for all members in contact.
    pub fn uses_all(&self) -> bool {
        self.lent.as_ref().is_some_and(|lent| lent.desk().uses_all())
    }

    /// Who is in the group, as of what is agreed upon and stored here, and the number of the batch as of which that is.
    pub fn members(&self) -> (&Members, u64) {
        (self.replica.members(), self.replica.snapshot().at.number)
    }

    /// What a change of members calls a new one, as long as the log has it.
    pub fn named(&self, id: MemberId) -> Option<&str> {
        self.replica.named(id)
    }

    /// Whether members may be changed now by this one, which leads.
    pub fn can_change(&self) -> bool {
        let is_free = self.change.is_none() && !self.replica.change_is_open();
        is_free && self.replica.leads().is_some() && !self.is_out()
    }

    /// Messages that cannot have been said.
    pub fn breaches(&self) -> u64 {
        self.breaches
    }

    #[cfg(test)]
    pub(crate) fn replica(&self) -> &Replica {
        &self.replica
    }

    #[cfg(test)]
    pub(crate) fn log(&mut self) -> Option<&mut FileLog<D>> {
        self.log.as_deref_mut()
    }

    /// Whether it says and does nothing any more.
    fn is_out(&self) -> bool {
        self.is_restarting || self.has_failed
    }

    fn breach(&mut self, from: MemberId, what: &str) {
        self.breaches += 1;
        self.actions.told.push(format!("a message of member {from} was dropped: {what}"));
    }

    fn fail(&mut self, what: String) {
        self.has_failed = true;
        // Nothing of it counts any more.
        self.actions.messages.clear();
        self.actions.keep.clear();
        self.actions.failed.get_or_insert(what);
    }

    /// Takes what the replica wants.
    fn absorb(&mut self, output: Output) {
        let Output { tasks, messages, agreed: _, roles, behind } = output;
        self.tasks.extend(tasks, self.replica.cuts());
        for (to, message) in messages {
            let message = self.sending.take(to, message);
            self.actions.messages.extend(message.map(|message| (to, message, Vec::new())));
        }
        let is_deposed = |role: &Role| matches!(role, Role::Deposed { .. });
        self.is_restarting |= self.lent.is_some() && roles.iter().any(is_deposed);
        self.actions.roles.extend(roles);
        if behind.is_some() {
            self.take_files(true);
        }
    }

    /// Does whatever can be done, until nothing can.
    fn go_on(&mut self) {
        while !self.is_out() {
            let has_news = match self.lent {
                Some(_) => self.propose(),
                None => self.look_at_disk(),
            };
            if self.is_out() || !self.work() && !has_news {
                break;
            }
        }
        if self.is_out() {
            return;
        }
        self.tell_agreed();
        self.tell_more();
        self.pause();
        self.send();
        self.read_for_others();
        self.tell_lack();
    }

    fn tell_lack(&mut self) {
        let lacks = self.replica.lacks();
        // What is on its way to the disk is not there.
        let is_busy = self.is_reopening || self.is_installing();
        if lacks.is_some() == self.has_told_lack || lacks.is_none() && is_busy {
            return;
        }
        self.has_told_lack = lacks.is_some();
        let last = self.replica.last();
        match lacks {
            Some(lacks) => self.actions.told.push(format!(
                "this node's log ends with {last}, and once went up to {lacks}: it gets what it lacks from the others, and neither leads \
                 before nor votes for who has less"
            )),
            None => self.actions.noted.push(format!("this node lacks nothing any more of what it once had: {last}")),
        }
    }

    /// Tells more of what the log is about.
    fn tell_more(&mut self) {
        let (Some(telling), Some(log)) = (&mut self.telling, &mut self.log) else { return };
        let broken = telling.go_on(log, self.told, &mut self.actions.contents);
        self.actions.told.extend(broken);
    }

    /// Hands its log's disk what waits, and takes in what that did. True if something was stored.
    fn look_at_disk(&mut self) -> bool {
        let Some(log) = &mut self.log else { return false };
        if let Err(error) = log.sync_made() {
            self.fail(error.to_string());
            return false;
        }
        if log.is_installed() {
            self.open_installed();
            return false;
        }
        let (stored, point) = (log.stored().number, log.point());
        let mut has_news = false;
        while let Some(stored) = self.waiting.pop_front_if(|it| it.name.number <= stored) {
            let output = self.replica.stored(stored);
            self.absorb(output);
            has_news = true;
        }
        self.unwritten.has_written(stored);
        self.begin_behind(point);
        self.look_for_files();
        self.take_files(false);
        has_news
    }

    /// Tells the replica what the lent log made and stored. True if there was something.
    fn propose(&mut self) -> bool {
        let mut has_news = false;
        while let Some(lent) = &mut self.lent {
            let next = self.replica.next();
            let Some(name) = lent.made.front().copied().filter(|_| next.is_some()) else { break };
            match self.replica.propose(name) {
                Ok(output) => {
                    lent.made.pop_front();
                    self.absorb(output);
                    has_news = true;
                }
                Err(NotNow) => {
                    let next = next.unwrap_or_default();
                    self.fail(format!("the log made {name}, where {next} is the next"));
                    return false;
                }
            }
        }
        let last = self.replica.last().number;
        let Some(lent) = &mut self.lent else { return has_news };
        let stored = lent.stored.number.min(last);
        if stored > lent.stored_told
            && let Some(name) = self.replica.name_of(stored)
        {
            lent.stored_told = stored;
            let output = self.replica.stored(Stored { name, cuts: lent.cuts });
            self.absorb(output);
            has_news = true;
        }
        self.begin_change() || has_news
    }

    /// Begins a change of members that waits, once the lent log makes no batches of its own.
    fn begin_change(&mut self) -> bool {
        let is_still = |lent: &LentLog| lent.is_still() && lent.made.is_empty();
        if !self.lent.as_ref().is_some_and(is_still) {
            return false;
        }
        let Some(change) = self.change.take() else { return false };
        let Ok(output) = self.replica.change(change) else { return false };
        self.absorb(output);
        true
    }

    /// Does the tasks that can be done. True if there was one.
    fn work(&mut self) -> bool {
        let mut has_worked = false;
        while !self.is_out() && self.is_ready() {
            let Some((task, cuts)) = self.tasks.next(self.kept) else { break };
            has_worked = true;
            if let Err(what) = self.begin(task, cuts) {
                self.fail(what);
            }
        }
        has_worked
    }

    /// Whether the first task can be done now, as far as the log is concerned.
    fn is_ready(&mut self) -> bool {
        let Some(task) = self.tasks.first() else { return false };
        let is_change = matches!(task, Task::Make(Batch { change: Some(_), .. }));
        if matches!(task, Task::Keep(..)) {
            return true;
        }
        if self.is_reopening || self.is_installing() {
            return false;
        }
        if self.log.is_none() {
            // Others decide what the log is.
            self.is_restarting |= !is_change;
            return is_change;
        }
        true
    }

    fn reopen(&mut self, log: FileLog<D>) {
        let (options, agreed) = (self.options.clone(), self.told);
        self.reopening = Some(Reopening { disk: log.into_disk(), options, agreed });
        self.is_reopening = true;
        self.replica.set_away(true);
    }

    /// The files are others than the log's: it is opened anew.
    fn open_installed(&mut self) {
        let installing = self.taking.as_ref().and_then(Taking::installing);
        let (Some((at, cuts)), Some(log)) = (installing, self.log.take()) else { return };
        self.told = at;
        self.waiting.clear();
        self.waiting.push_back(Stored { name: at, cuts });
        // What was kept of the log before may be of batches that are no more.
        self.telling = self.telling.take().map(|_| Telling::new());
        self.reopen(*log);
    }

    fn is_installing(&self) -> bool {
        self.taking.as_ref().is_some_and(|it| it.installing().is_some())
    }

    /// A log that is to be opened anew, which takes as long as a start: on another thread than the one that all groups need. What
    /// came of it goes to [`reopened`](Self::reopened). To be asked after each [`take_actions`](Self::take_actions).
    pub fn take_reopening(&mut self) -> Option<Reopening<D>> {
        self.reopening.take()
    }

    /// The log was opened anew.
    pub fn reopened(&mut self, reopened: Reopened<D>) {
        if self.is_out() {
            return;
        }
        match reopened.0 {
            Ok(log) => {
                self.log = Some(Box::new(log));
                self.is_reopening = false;
                self.replica.set_away(false);
                self.read_after_opening();
                self.hold();
                if self.is_installing() {
                    self.refilled();
                }
                self.go_on();
            }
            Err(error) => self.fail(error.to_string()),
        }
    }

    fn begin(&mut self, task: Task, cuts: u64) -> Result<(), String> {
        if let Task::Keep(word, ticket) = task {
            self.actions.keep.push((word, ticket));
            return Ok(());
        }
        if let (Some(lent), Task::Make(Batch { change: Some(change), .. })) = (&self.lent, &task) {
            lent.make(changes::encode(change));
            self.actions.wakes_log = true;
            return Ok(());
        }
        let Some(log) = &mut self.log else { return Err("the log is lent".to_owned()) };
        match task {
            Task::Cut(number) => {
                log.cut_from(number).map_err(|error| error.to_string())?;
                self.waiting.retain(|it| it.name.number < number);
                self.telling.iter_mut().for_each(|it| it.cut_from(number));
            }
            Task::Copy(batches) => {
                for Batch { name, .. } in batches {
                    let copy =
                        self.copies.remove(&name).ok_or_else(|| format!("{name} did not come"))?;
                    log.copy(&copy).map_err(|error| error.to_string())?;
                    self.telling.iter_mut().for_each(|it| it.keep(name.number, &copy));
                    self.waiting.push_back(Stored { name, cuts });
                }
            }
            Task::Make(Batch { name, change }) => {
                match change {
                    None => log.begin_term(name.term),
                    Some(change) => {
                        let bytes = changes::encode(&change);
                        log.append_members(&bytes).map_err(|error| error.to_string())?;
                    }
                }
                self.waiting.push_back(Stored { name, cuts });
            }
            Task::Install(Point { at, .. }) => {
                if log.arrived().is_none_or(|it| it.at != at) {
                    return Err(format!("the files up to {at} are not there"));
                }
                log.install();
                self.taking.iter_mut().for_each(|it| it.install(at, cuts));
            }
            Task::Keep(..) => {}
        }
        Ok(())
    }

    /// Tells the log how far all agree: not while a task waits, as what comes after a cut is not what the log has now.
    fn tell_agreed(&mut self) {
        let agreed = self.replica.agreed();
        if let Some(lent) = &mut self.lent {
            // Agreed upon first: what all have is a part of that.
            let is_new = lent.agree(agreed);
            let on_all = self.replica.on_all().unwrap_or(0);
            self.actions.wakes_log |= lent.reach_all(on_all) || is_new;
            if is_new {
                self.order_manifest();
            }
            return;
        }
        let is_other = !self.tasks.is_empty() || self.is_installing();
        let Some(log) = self.log.as_mut().filter(|_| !is_other) else { return };
        if agreed.number > self.told.number && log.term_of(agreed.number).is_some() {
            match log.apply_to(agreed) {
                Ok(()) => self.told = agreed,
                Err(error) => return self.fail(error.to_string()),
            }
        }
        let Some(log) = self.log.as_mut().filter(|log| log.wants_point()) else { return };
        let point = self.replica.snapshot();
        if point.at.number <= self.told.number {
            log.set_point(changes::logged(point));
        }
    }

    /// The lent log makes no batches while another member is to lead, or members change.
    fn pause(&mut self) {
        let Some(lent) = &mut self.lent else { return };
        let changes = self.change.is_some() || self.replica.change_is_open();
        let is_new = lent.pause(changes || self.replica.is_transferring());
        self.actions.wakes_log |= is_new;
    }

    /// Sends batches whose bytes are here.
    fn send(&mut self) {
        if self.sending.is_empty() {
            return;
        }
        let Self { replica, log, is_reopening, lent, tasks, waiting, sending, actions, .. } = self;
        let mut calls = false;
        let copy = |name: BatchName, last: u64| {
            if let Some(lent) = lent.as_mut() {
                return lent.copy(name, last, &mut calls);
            }
            let nothing = if *is_reopening { NoBytes::ToCome } else { NoBytes::Gone };
            let Some(log) = log else { return Err(nothing) };
            let is_to_come = !tasks.is_empty() || waiting.iter().any(|it| it.name == name);
            let missing = if is_to_come { NoBytes::ToCome } else { NoBytes::Gone };
            if log.term_of(name.number) != Some(name.term) {
                return Err(missing);
            }
            match log.batch(name.number) {
                Ok(batch) if batch.name() == Some(name) => Ok(batch),
                Err(NoBatch::ToCome) => Err(NoBytes::ToCome),
                Err(NoBatch::NotYet) => Err(missing),
                _ => Err(NoBytes::Gone),
            }
        };
        let matched = |id| replica.matched(id);
        sending.go_on(replica.term(), self.now_ms, matched, copy, &mut actions.messages);
        if let Some(lent) = lent {
            lent.forget_read(|number| sending.wants(number));
        }
        actions.wakes_log |= calls;
    }

    /// Has batches stay that others lack, or may lack.
    fn hold(&mut self) {
        let bytes = self.settings.held_bytes;
        let Some(lent) = &mut self.lent else {
            // Whom it may lead it does not know.
            let hold = Hold { lacked: 0, bytes: bytes / 16 };
            self.log.iter_mut().for_each(|log| hold.apply(log));
            return;
        };
        let Self { replica, heard, .. } = self;
        let (own, last) = (replica.id(), replica.last().number);
        let members = replica.members();
        let all = members.voters.iter().chain(&members.outgoing).chain(&members.learners);
        let has = |id: &MemberId| Some((*id, replica.matched(*id)?));
        let have: Vec<_> = all.filter(|id| **id != own).filter_map(has).collect();
        let lacked = have.iter().map(|it| it.1 + 1).min().unwrap_or(u64::MAX);
        let lacked = if lacked > last { u64::MAX } else { lacked };
        // Memory is for who listens.
        let since_ms = self.now_ms.saturating_sub(2 * self.settings.patience_ms());
        let hears = |id: &MemberId| heard.get(id).is_some_and(|&at| at >= since_ms);
        let near = have.iter().filter(|it| hears(&it.0)).map(|it| it.1).min().unwrap_or(last);
        lent.hold(near + 1, Hold { lacked, bytes });
    }

    /// The log begins behind this batch, as far as others can have it.
    fn begin_behind(&mut self, at: BatchName) {
        if at.number <= self.replica.point().at.number {
            return;
        }
        let point = self.replica.point_at(at.number).filter(|point| point.at == at);
        point.into_iter().for_each(|point| self.replica.begin_behind(point));
    }
}

/// Whether the bytes that came with a message are those of its batches, one behind the other, and say the same of members. What else
/// they say of those is taken from there.
fn check(message: &mut Message, copies: &[BatchCopy]) -> Result<(), String> {
    let Body::Append { before, batches, .. } = &mut message.body else { return Ok(()) };
    if batches.len() != copies.len() {
        return Err(format!("{} batches came with the bytes of {}", batches.len(), copies.len()));
    }
    let mut last = *before;
    for (Batch { name, change }, copy) in batches.iter_mut().zip(copies) {
        if copy.name() != Some(*name) || copy.before() != Some(last) {
            return Err(format!("{name} came with the bytes of another batch"));
        }
        let told = match copy.members() {
            Some(bytes) => Some(
                changes::decode(&bytes).ok_or_else(|| format!("{name} is no change of members"))?,
            ),
            None => None,
        };
        let steps = |of: &Option<Change>| of.as_ref().map(|it| it.steps.clone());
        if steps(&told) != steps(change) {
            return Err(format!("{name} is another change of members than was said"));
        }
        *change = told;
        last = *name;
    }
    Ok(())
}
