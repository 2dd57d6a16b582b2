//! One member of a group.

mod engine;
mod told;

use std::collections::VecDeque;

use raft::{Config, RawNode, StateRole};

use leveret_log::BatchName;

use crate::batches::{Batches, Point};
use crate::check::{Breach, Receiver};
use crate::contact::{Contacts, LeaderPlace, LeftOut};
use crate::dice::Dice;
use crate::entries::{self, ENTRY_BYTES, Entries};
use crate::lease::{Lease, Leases};
use crate::members::{Change, MemberId, Members, Step};
use crate::message::{Body, Message};
use crate::output::{Output, Role, Stored, Task, Ticket, Word};

use engine::NewEntries;
pub use told::GroupFacts;

/// How a group is driven. All its members have the same.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Milliseconds of a tick. A leader tells each that it is there once a tick.
    pub tick_ms: u64,
    /// Ticks without a leader after which a member stands for election, two at least; each waits for up to half as many more, at
    /// random. So long nobody votes against a leader that it hears, nor after its start.
    pub election_ticks: usize,
    /// Batches in one message, at most.
    pub append_batches: u64,
    /// Messages with batches on the way to one member, at most.
    pub appends: usize,
    /// Bytes of files that a leader keeps as they are as some member lacks their batches. Others keep the newest of a
    /// sixteenth of it. Who lacks more gets a snapshot.
    pub held_bytes: u64,
    /// Bytes of files that members on one node have asked for and not written, all groups together: they share the line to it with
    /// batches.
    pub files_bytes: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            tick_ms: 100,
            election_ticks: 8,
            append_batches: 64,
            appends: 64,
            held_bytes: 1 << 30,
            files_bytes: 16 << 20,
        }
    }
}

impl Settings {
    /// Milliseconds without a leader after which a member stands for election, at least.
    pub(crate) fn patience_ms(&self) -> u64 {
        self.tick_ms * self.election_ticks as u64
    }

    /// Milliseconds that pass at least, by its own clock, before a member that hears nothing of its leader helps another one.
    fn hold_ms(&self) -> u64 {
        self.patience_ms().saturating_sub(self.tick_ms)
    }

    /// Milliseconds that a heartbeat is worth to the leader, by its clock: see [`Lease`].
    fn lease_ms(&self) -> u64 {
        self.hold_ms() * 4 / 5
    }
}

/// Ticks between the turns of two that stand for election when the leader is lost: two that stand at the same moment take each other's
/// votes, and who stood first needs the time to be heard.
const TURN_TICKS: usize = 2;

/// Election time-outs that a member which is to lead only if no other one can waits longer than they.
const RELUCTANT: usize = 2;

/// Nothing was done: this member does not lead, or is about to stop. What was to be done is kept, and tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not now")]
pub struct NotNow;

/// A member of a group.
///
/// It is opened over a log and the word that its member gave. A member whose word cannot be read has forgotten it, and has no
/// replica: it neither votes, nor stands, nor acknowledges, as nobody knows what it promised. The others remove it, and it
/// comes back under another id.
pub struct Replica {
    id: MemberId,
    node: RawNode<Entries>,
    settings: Settings,
    seed: u64,
    /// SplitMix64.
    dice: Dice,
    /// Ticks until it stands, and for which term, role and leader they were thrown.
    patience: (usize, u64, StateRole, u64),
    /// When the last tick was, in milliseconds.
    ticked_ms: Option<u64>,
    /// Ticks since the start in which it still votes for nobody: it may have heard a leader just before.
    quiet: usize,
    word: Word,
    ticket: Ticket,
    /// The word with its present term and vote.
    voted: Ticket,
    kept: Ticket,
    /// What words that are not kept yet acknowledge.
    marks: VecDeque<(Ticket, u64)>,
    /// So far it is stored here, and so far the word that is kept acknowledges: of the log as it is.
    stored: u64,
    marked: u64,
    cuts: u64,
    /// How far it once acknowledged, if its log has that no more.
    lacks: Option<BatchName>,
    /// What others told to be agreed upon.
    known: BatchName,
    /// Who has told something since the start.
    heard: Vec<MemberId>,
    /// What was acknowledged and voted may be forgotten: it votes for nobody, and then for no log that is behind this.
    is_unsure: bool,
    floor: BatchName,
    /// Its log is being opened: a term that it leads would have no first batch until then.
    is_away: bool,
    /// Who asked whether it would be voted for since the leader was last heard, or while one may have been.
    early: Option<(MemberId, Message)>,
    /// It stands when the others had time to.
    is_reluctant: bool,
    held: Vec<Held>,
    readies: VecDeque<Ready>,
    agreed: BatchName,
    /// The term it leads, once it may have a shard.
    leads: Option<u64>,
    leases: Leases,
    contacts: Contacts,
}

/// A message that waits for the disk.
struct Held {
    to: MemberId,
    message: Message,
    /// This has to be kept,
    ticket: Ticket,
    /// and all up to this batch stored and acknowledged.
    number: u64,
}

/// What the engine wants to have on disk.
struct Ready {
    number: u64,
    ticket: Ticket,
    last: u64,
}

impl Replica {
    /// The member `id`, over a log in which all is synced, and with the word that it gave. Each member of a group has another
    /// `seed`. Who was never a member has an empty log and no word, and gets a snapshot from the leader. Who founds a group has
    /// a log that begins behind the same [`Point`] as the others' do.
    pub fn open<B: Batches>(
        id: MemberId,
        settings: Settings,
        seed: u64,
        word: Word,
        batches: &B,
    ) -> (Self, Output) {
        let point = batches.point().at;
        let end = batches.last();
        // A batch may be on disk before the word of its term: then nothing was answered in that.
        let is_behind = word.term < end.term;
        let word = if is_behind { Word { term: end.term, vote: None, ..word } } else { word };
        let log = Entries::of(batches, &word);
        assert_eq!(point.number == 0, point.term == 0, "only before the first batch is term 0");
        let last = log.last();
        let known = log.applied().at.number;
        let agreed = batches.agreed().clamp(known, last.number);
        let agreed = log.name_of(agreed).unwrap_or_default();
        let lacks = Some(word.mark).filter(|mark| *mark > last);
        let marked = log.last_not_above(word.mark);
        let config = Config {
            id: id.0,
            election_tick: settings.election_ticks,
            heartbeat_tick: 1,
            applied: known,
            max_size_per_msg: settings.append_batches * ENTRY_BYTES,
            max_inflight_msgs: settings.appends,
            check_quorum: true,
            pre_vote: true,
            ..Config::default()
        };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let node = RawNode::new(&config, log, &logger).expect("the configuration is in order");
        let mut replica = Self {
            id,
            node,
            settings,
            seed,
            dice: Dice::new(seed),
            patience: (settings.election_ticks, u64::MAX, StateRole::Follower, 0),
            ticked_ms: None,
            quiet: settings.election_ticks,
            word,
            ticket: Ticket(0),
            voted: Ticket(0),
            kept: Ticket(0),
            marks: VecDeque::new(),
            stored: last.number,
            marked: if lacks.is_some() { u64::MAX } else { marked },
            cuts: 0,
            lacks,
            known: BatchName::NONE,
            heard: Vec::new(),
            is_unsure: false,
            floor: BatchName::NONE,
            is_away: false,
            early: None,
            is_reluctant: false,
            held: Vec::new(),
            readies: VecDeque::new(),
            agreed,
            leads: None,
            leases: Leases::default(),
            contacts: Contacts::default(),
        };
        let mut output = Output::default();
        if is_behind {
            replica.keep(&mut output);
            replica.voted = replica.ticket;
        }
        replica.acknowledge(last.number, &mut output);
        replica.drain(NewEntries::Engine, &mut output);
        (replica, output)
    }

    /// Who this is.
    pub fn id(&self) -> MemberId {
        self.id
    }

    /// The highest term it knows of.
    pub fn term(&self) -> u64 {
        self.node.raft.term
    }

    /// Who leads this term, as far as it knows.
    pub fn leader(&self) -> Option<MemberId> {
        Some(MemberId(self.node.raft.leader_id)).filter(|id| id.0 != 0)
    }

    /// The term it leads, once its first batch of it is agreed upon.
    pub fn leads(&self) -> Option<u64> {
        self.leads
    }

    /// From when until when it may give out what the group has: it leads, and another one neither does nor will until then.
    pub fn lease(&self) -> Lease {
        let term = self.leads.filter(|_| !self.is_transferring());
        let lease_ms = self.settings.lease_ms();
        term.map_or(Lease::NONE, |term| self.leases.of(term, self.id, self.members(), lease_ms))
    }

    /// Who is in the group, as of what is agreed upon and stored here.
    pub fn members(&self) -> &Members {
        self.log().members()
    }

    /// The last batch that all agree upon, as far as is known here.
    pub fn agreed(&self) -> BatchName {
        self.agreed
    }

    /// The end of the log.
    pub fn last(&self) -> BatchName {
        self.log().last()
    }

    /// How often the log was cut: what is handed to the disk is called stored with this.
    pub fn cuts(&self) -> u64 {
        self.cuts
    }

    /// What it once acknowledged and does not have. It does not stand until it has it.
    pub fn lacks(&self) -> Option<BatchName> {
        self.lacks
    }

    /// How far the log of a member is known to be as this one's, if this one leads.
    pub fn matched(&self, member: MemberId) -> Option<u64> {
        let progress = self.node.raft.prs().get(member.0)?;
        (self.node.raft.state == StateRole::Leader).then_some(progress.matched)
    }

    /// The number of the last batch that all members in contact have stored, and that is agreed upon, if this one leads. Looks who is in
    /// contact by now.
    pub fn on_all(&mut self) -> Option<u64> {
        let term = self.leads?;
        let place = LeaderPlace {
            own: self.id,
            members: self.node.store().members(),
            term,
            now_ms: self.leases.now_ms,
            last: self.last().number,
            stored: self.sure(),
            agreed: self.agreed.number,
        };
        let progress = self.node.raft.prs();
        let matched = |id: MemberId| progress.get(id.0).map_or(0, |it| it.matched);
        Some(self.contacts.look(place, self.settings.patience_ms(), matched))
    }

    /// The members that a leader is not in contact with, as of when it [looked](Self::on_all) last.
    pub fn left_out(&self) -> impl Iterator<Item = (MemberId, LeftOut)> {
        let leads = self.leads.is_some();
        self.contacts.left_out().filter(move |_| leads)
    }

    /// The name of the next batch of the leader's shard, if it may make one now.
    pub fn next(&self) -> Option<BatchName> {
        let term = self.leads.filter(|_| self.node.raft.lead_transferee.is_none())?;
        Some(BatchName { number: self.last().number + 1, term })
    }

    /// The leader's log has its next batch: it goes to the others, whether or not the disk here has it.
    pub fn propose(&mut self, name: BatchName) -> Result<Output, NotNow> {
        if self.next() != Some(name) {
            return Err(NotNow);
        }
        let mut output = Output::default();
        self.node.propose(Vec::new(), Vec::new()).map_err(|_| NotNow)?;
        self.drain(NewEntries::Log, &mut output);
        Ok(output)
    }

    /// The leader changes who is in the group. Only what the members are later tells that it was done. It is not for the
    /// leader itself, which has to [transfer](Self::transfer) before it leaves, nor while another change is under way.
    pub fn change(&mut self, change: Change) -> Result<Output, NotNow> {
        let is_own = |step: &Step| step.of() == self.id;
        if self.next().is_none() || self.change_is_open() {
            return Err(NotNow);
        }
        if change.steps.is_empty() || change.steps.iter().any(is_own) {
            return Err(NotNow);
        }
        let mut output = Output::default();
        let made = entries::conf_change(&change);
        self.node.propose_conf_change(Vec::new(), made).map_err(|_| NotNow)?;
        self.drain(NewEntries::Change(change), &mut output);
        Ok(output)
    }

    /// Whether a change of members may be under way that is not done: so, too, before the leader has applied all that it found.
    pub fn change_is_open(&self) -> bool {
        self.node.raft.has_pending_conf() || !self.members().outgoing.is_empty()
    }

    /// The leader gives way to another voter: it makes no batch until that has all and stands for election, or an election
    /// time-out has passed in vain.
    pub fn transfer(&mut self, to: MemberId) -> Result<Output, NotNow> {
        let is_free = self.next().is_some() && !self.node.raft.has_pending_conf();
        if !is_free || to == self.id || !self.members().has_voter(to) {
            return Err(NotNow);
        }
        let mut output = Output::default();
        self.leases.give_way();
        self.node.transfer_leader(to.0);
        self.drain(NewEntries::Engine, &mut output);
        Ok(output)
    }

    /// Whether it waits for another one to lead.
    pub fn is_transferring(&self) -> bool {
        self.node.raft.lead_transferee.is_some()
    }

    /// It is `now_ms`, as in [`tick`](Self::tick). What is stepped was said before: a leader that hears late gives out less, and a
    /// member that knows less well when it answered lets others wait too short.
    pub fn tell_time(&mut self, now_ms: u64) {
        self.leases.tell_time(now_ms);
    }

    /// A message came. One that cannot have been said is refused, and changes nothing.
    pub fn step(&mut self, from: MemberId, message: Message) -> Result<Output, Breach> {
        let mut output = Output::default();
        self.step_into(from, message, &mut output)?;
        Ok(output)
    }

    fn step_into(
        &mut self,
        from: MemberId,
        message: Message,
        output: &mut Output,
    ) -> Result<(), Breach> {
        let receiver = Receiver {
            id: self.id,
            term: self.term(),
            leader: self.leader(),
            agreed: self.agreed.number,
            log: self.log(),
        };
        receiver.check(from, &message)?;
        let message = self.heed_transfer(message);
        self.heed_candidate(from, &message, output);
        if self.is_deaf_to(from, &message) {
            return Ok(());
        }
        let Message { term, body } = message;
        self.heed_leases(from, term, &body);
        self.heed_answer(from, term, &body);
        match body {
            // A snapshot comes by `install` alone: the engine hears of none that nobody has fetched.
            Body::Behind { point } => {
                output.behind = Some(point).filter(|it| !self.is_here(it));
                // It may have what follows on what is agreed upon here, and not know how far that is.
                let number = self.agreed.number.min(self.sure());
                if number > 0 && term == self.term() && self.voted <= self.kept {
                    let message = Message { term, body: Body::Appended { number } };
                    output.messages.push((from, message));
                }
                return Ok(());
            }
            Body::Lacks { last } => {
                self.probe(from, term, last);
                self.drain(NewEntries::Engine, output);
            }
            mut body => {
                let batches = self.heed((from, term), &mut body, output);
                // What a member that was removed answers does not matter any more.
                let _ = self.node.step(engine::to_engine(from, self.id, Message { term, body }));
                // A leader that hears of its election begins with a batch of its own.
                let is_copy = !batches.is_empty();
                let source = if is_copy { NewEntries::Leader(batches) } else { NewEntries::Engine };
                self.drain(source, output);
            }
        }
        Ok(())
    }

    /// The snapshot that was fetched can take the place of the log, which lacks what is before. If it is refused, it is not
    /// needed, or there is no leader: then it is offered again when one says [`Behind`](Output::behind).
    pub fn install(&mut self, point: Point) -> Result<Output, NotNow> {
        let is_needed = !self.is_here(&point) && point.members.has(self.id);
        let (Some(leader), true) = (self.leader().filter(|id| *id != self.id), is_needed) else {
            return Err(NotNow);
        };
        let message = Message { term: self.term(), body: Body::Behind { point } };
        let mut output = Output::default();
        let _ = self.node.step(engine::to_engine(leader, self.id, message));
        self.drain(NewEntries::Engine, &mut output);
        Ok(output)
    }

    /// Its log can be used now, or not until it is opened: it does not stand meanwhile.
    pub(crate) fn set_away(&mut self, is_away: bool) {
        self.is_away = is_away;
    }

    /// Whether it is to lead only if no other member can: then it waits longer than they do before it stands. Who asks it to take over
    /// knows why.
    pub fn set_reluctant(&mut self, is_reluctant: bool) {
        self.is_reluctant = is_reluctant;
    }

    /// What a snapshot of the log ends with that is made now.
    pub fn snapshot(&self) -> &Point {
        self.log().applied()
    }

    /// Where its log begins for others.
    pub(crate) fn point(&self) -> &Point {
        self.log().point()
    }

    /// The name of the batch of this number, if it is in the log and behind its point.
    pub fn name_of(&self, number: u64) -> Option<BatchName> {
        self.log().name_of(number)
    }

    /// The point at which the log can begin behind this batch: if it is agreed upon, and stored here. To be kept by the log
    /// before anything goes, and then told with [`begin_behind`](Self::begin_behind).
    pub fn point_at(&self, number: u64) -> Option<Point> {
        self.log().point_at(number)
    }

    /// The log begins behind this point now.
    pub fn begin_behind(&mut self, point: Point) {
        assert!(self.point_at(point.at.number).is_some(), "only what is applied may go");
        self.node.mut_store().begin_behind(point);
    }

    /// The disk has this batch, and all before it.
    pub fn stored(&mut self, stored: Stored) -> Output {
        let mut output = Output::default();
        let Stored { name, cuts } = stored;
        // Of a batch that was cut meanwhile it says nothing of the one that has its number now, and nothing of that one's
        // name: it may have been cut, and have come back.
        if cuts != self.cuts || !self.log().has(name) {
            return output;
        }
        self.stored = self.stored.max(name.number);
        self.acknowledge(name.number, &mut output);
        self.drain(NewEntries::Engine, &mut output);
        output
    }

    /// The disk has this word, in place of all before.
    pub fn kept(&mut self, ticket: Ticket) -> Output {
        self.kept = self.kept.max(ticket);
        while let Some((_, number)) = self.marks.pop_front_if(|(of, _)| *of <= ticket) {
            self.marked = number;
        }
        let mut output = Output::default();
        self.drain(NewEntries::Engine, &mut output);
        output
    }

    /// It is `now_ms`, by a clock that does not go back and counts a suspended machine's sleep. A leader makes up for all ticks since
    /// the last call, so that one that stalled finds itself deposed.
    pub fn tick(&mut self, now_ms: u64) -> Output {
        let before = *self.ticked_ms.get_or_insert(now_ms);
        let count = now_ms.saturating_sub(before) / self.settings.tick_ms;
        self.ticked_ms = Some(before + count * self.settings.tick_ms);
        self.leases.tell_time(now_ms);
        let mut output = Output::default();
        // After a few time-outs more time changes nothing. Who follows and was itself away for long hears first what came meanwhile.
        let patience = self.settings.election_ticks as u64;
        let is_leader = self.node.raft.state == StateRole::Leader;
        let most = if is_leader { 4 * patience } else { patience.div_ceil(2) };
        for _ in 0..count.min(most) {
            self.quiet = self.quiet.saturating_sub(1);
            let is_asked = self.node.raft.state == StateRole::Follower && self.early.is_some();
            if self.may_stand() && !self.lets_others_stand() && !is_asked {
                self.node.raft.set_randomized_election_timeout(self.patience.0);
                self.node.tick();
            } else {
                // It only forgets its leader.
                self.node.raft.election_elapsed += 1;
            }
            self.drain(NewEntries::Engine, &mut output);
            if is_asked && self.quiet == 0 && !self.hears_leader(self.settings.election_ticks) {
                self.answer_early(&mut output);
            }
        }
        output
    }

    /// Whether it knows of a leader, and has heard it in so many ticks.
    fn hears_leader(&self, ticks: usize) -> bool {
        self.leader().is_some() && self.node.raft.election_elapsed < ticks
    }

    /// Whether it has a leader that it has not heard for half of the time after which others may lead.
    pub fn misses_leader(&self) -> bool {
        self.leader().is_some() && !self.hears_leader(self.settings.election_ticks.div_ceil(2))
    }

    /// It knows of no leader any more, and takes its turn. Who asked while that could still be there has had no answer; if it has as much as
    /// this one, its turn is before.
    fn answer_early(&mut self, output: &mut Output) {
        self.calm_down();
        let early = self.early.take();
        let asked_with = early.as_ref().and_then(|it| it.1.body.asks_with());
        if asked_with.is_some_and(|last| last >= self.last()) {
            let elapsed = &mut self.node.raft.election_elapsed;
            *elapsed = (*elapsed).min(self.patience.0.saturating_sub(TURN_TICKS));
        }
        self.take_turn(output);
        if let Some((from, message)) = early {
            // It is in order, as it was when it came.
            let _ = self.step_into(from, message, output);
        }
    }

    /// The connections to a member have ended. If it leads, this one votes for others at once, and stands when so many others have had
    /// their turn; if it was to lead in place of this one, this one goes on. When that is said decides how soon there is a leader, and
    /// nothing else: it may be wrong.
    pub fn lose_sight(&mut self, of: MemberId, others: usize) -> Output {
        let mut output = Output::default();
        if self.node.raft.lead_transferee == Some(of.0) {
            self.node.raft.abort_leader_transfer();
            // It gave up its lease.
            self.node.ping();
            self.drain(NewEntries::Engine, &mut output);
        }
        if self.leader() != Some(of) || of == self.id {
            return output;
        }
        // A tick that is all but over would be none.
        self.ticked_ms = self.ticked_ms.max(Some(self.leases.now_ms));
        let elapsed = &mut self.node.raft.election_elapsed;
        *elapsed = (*elapsed).max(self.patience.0.saturating_sub(others * TURN_TICKS));
        self.answer_early(&mut output);
        output
    }

    /// Whether it has waited for a leader for long enough.
    fn has_turn(&self) -> bool {
        self.node.raft.election_elapsed >= self.patience.0
    }

    /// It stands if it has its turn, and its log and its word are in order. If they are not it waits as before, and asks with nothing, so
    /// that the next one has its turn.
    fn take_turn(&mut self, output: &mut Output) {
        if !self.has_turn() || self.node.raft.state != StateRole::Follower {
            return;
        }
        if self.may_stand() && !self.is_reluctant && self.node.raft.promotable() {
            let _ = self.node.campaign();
            self.drain(NewEntries::Engine, output);
        }
        if self.node.raft.state == StateRole::Follower && self.members().has_voter(self.id) {
            let ask =
                Message { term: self.term() + 1, body: Body::PreVote { last: BatchName::NONE } };
            let voters = self.node.raft.prs().conf().voters().ids();
            let others = voters.iter().map(MemberId).filter(|id| *id != self.id);
            output.messages.extend(others.map(|id| (id, ask.clone())));
        }
    }

    /// Before the engine hears of it: who asks for votes and has less than this member will not have its vote, nor those of
    /// more than half if these are all that are left. So its turn comes earlier.
    fn heed_candidate(&mut self, from: MemberId, message: &Message, output: &mut Output) {
        let Some(last) = message.body.asks_with() else { return };
        if self.node.raft.state != StateRole::Follower {
            return;
        }
        if self.quiet > 0 || self.hears_leader(self.settings.election_ticks) {
            let is_better = |it: &(MemberId, Message)| it.1.body.asks_with() <= Some(last);
            if self.early.as_ref().is_none_or(is_better) {
                self.early = Some((from, message.clone()));
            }
        } else if last < self.last() && !self.has_turn() {
            self.node.raft.election_elapsed += TURN_TICKS;
            self.take_turn(output);
        }
    }

    /// Whether it is reluctant, and the others may still want to stand. Those that are reluctant, too, have their turns by their ids: it may
    /// be all of them, and each has told the next one that it does not stand.
    fn lets_others_stand(&self) -> bool {
        let raft = &self.node.raft;
        let before = self.members().voters.iter().filter(|id| **id < self.id).count();
        let until =
            self.patience.0 + RELUCTANT * self.settings.election_ticks + before * TURN_TICKS;
        let is_leader = raft.state == StateRole::Leader;
        self.is_reluctant && !is_leader && raft.election_elapsed + 1 < until
    }

    /// It knows of no leader that others would have to be refused for.
    pub(crate) fn calm_down(&mut self) {
        self.quiet = 0;
        self.node.raft.leader_id = 0;
    }

    fn log(&self) -> &Entries {
        self.node.store()
    }

    /// Whether the log has this batch, or had it and began behind a later one.
    pub(crate) fn has(&self, name: BatchName) -> bool {
        name.number <= self.agreed.number || self.log().has(name)
    }

    /// Whether nothing of a snapshot that ends so is needed.
    fn is_here(&self, point: &Point) -> bool {
        self.has(point.at)
    }

    /// Whether a time-out may make it stand. One that has lost something may not, nor one that lacks what is agreed upon or whose snapshot
    /// is not stored, nor one that does not vote; and the engine makes a single voter leader at once, so that has to have stored all
    /// before.
    fn may_stand(&self) -> bool {
        let is_leader = self.node.raft.state == StateRole::Leader;
        if !is_leader && self.is_away {
            return false;
        }
        if !is_leader && !self.members().has_voter(self.id) {
            return false;
        }
        if self.node.raft.raft_log.applied < self.log().point().at.number {
            return false;
        }
        let is_alone = self.members().voters.len() < 2;
        let has_all = self.sure() == self.last().number && self.readies.is_empty();
        let is_sound = self.lacks.is_none() && !self.is_unsure && !self.is_behind(self.last());
        is_leader || is_sound && (has_all || !is_alone)
    }

    /// Whether a message is passed over that is in order.
    fn is_deaf_to(&self, from: MemberId, message: &Message) -> bool {
        match &message.body {
            Body::Vote { last, transfer } => {
                self.quiet > 0 && transfer.is_none() || self.would_lose(*last)
            }
            Body::PreVote { last } => self.quiet > 0 || self.would_lose(*last),
            Body::TimeoutNow { stamp, .. } => {
                let is_leader = self.leader() == Some(from) && message.term == self.term();
                !is_leader || !self.may_stand() || self.leases.goes_on(message.term, *stamp)
            }
            _ => false,
        }
    }

    /// A vote that a leader asked for which goes on all the same is one as any other.
    fn heed_transfer(&mut self, mut message: Message) -> Message {
        if let Body::Vote { transfer, .. } = &mut message.body {
            let before = message.term - 1;
            *transfer = transfer.filter(|asked| !self.leases.goes_on(before, *asked));
            self.leases.votes_as_asked = transfer.is_some();
        }
        message
    }

    /// Before the engine hears of it: what a message says of leases.
    fn heed_leases(&mut self, from: MemberId, term: u64, body: &Body) {
        let is_own = term == self.term();
        let now_ms = self.leases.now_ms;
        match body {
            Body::Heartbeat { stamp, .. } => {
                self.early = None;
                self.leases.answers = *stamp;
            }
            Body::Heard { stamp } if is_own && self.node.raft.state == StateRole::Leader => {
                self.leases.hear(term, from, *stamp);
            }
            Body::Voted { granted: true, lease_ms }
                if is_own && self.node.raft.state == StateRole::Candidate =>
            {
                self.leases.wait_until(term, now_ms.saturating_add(*lease_ms));
            }
            Body::TimeoutNow { stamp, lease_ms } => {
                self.leases.asked = Some((*stamp, now_ms.saturating_add(*lease_ms)));
            }
            _ => {}
        }
    }

    /// A leader hears that a member got something that it said. What a member says of its own accord tells nothing of that.
    fn heed_answer(&mut self, from: MemberId, term: u64, body: &Body) {
        let answers = matches!(
            body,
            Body::Heard { .. } | Body::Appended { .. } | Body::Refused { .. } | Body::Lacks { .. }
        );
        if answers && self.leads == Some(term) {
            self.contacts.answers(term, from);
        }
        // It may say so before all agree that this one leads.
        let raft = &self.node.raft;
        let leads = raft.state == StateRole::Leader && raft.term == term;
        if leads && matches!(body, Body::Refused { .. } | Body::Lacks { .. }) {
            self.contacts.lacks(term, from);
        }
    }

    /// A log that ends so may lack what is acknowledged here, or agreed upon. Of one that is whole the engine knows.
    fn would_lose(&self, last: BatchName) -> bool {
        self.is_unsure || self.is_behind(last) || self.lacks.is_some_and(|mark| last < mark)
    }

    /// A member says that its log ends so, whatever it acknowledged in this term.
    fn probe(&mut self, from: MemberId, term: u64, last: BatchName) {
        let is_here = self.log().has(last);
        let raft = &mut self.node.raft;
        let leads = raft.state == StateRole::Leader && raft.term == term;
        if let Some(progress) = raft.mut_prs().get_mut(from.0).filter(|_| leads) {
            progress.matched = if is_here { progress.matched.min(last.number) } else { 0 };
            progress.become_probe();
            raft.send_append(from.0);
        }
    }

    /// So far the log is here to stay: stored, and acknowledged by a word that is kept.
    pub(crate) fn sure(&self) -> u64 {
        self.stored.min(self.marked)
    }

    /// Gives its word for all up to this batch, which is stored.
    fn acknowledge(&mut self, number: u64, output: &mut Output) {
        let Some(name) = self.log().name_of(number) else { return };
        if name > self.word.mark {
            self.word.mark = name;
            self.keep(output);
            self.marks.push_back((self.ticket, number));
        }
    }

    fn keep(&mut self, output: &mut Output) {
        self.ticket = Ticket(self.ticket.0 + 1);
        output.tasks.push(Task::Keep(self.word, self.ticket));
    }

    /// What is at the end of each call: who leads, how far all agree, and what nothing holds back any more.
    /// `tail` batches were not agreed upon before it.
    fn finish(&mut self, tail: u64, output: &mut Output) {
        let (term, role, committed) = {
            let raft = &self.node.raft;
            (raft.term, raft.state, raft.raft_log.committed)
        };
        if let Some(led) = self.leads.take_if(|led| role != StateRole::Leader || *led != term) {
            output.roles.push(Role::Deposed { term: led, tail });
        }
        if committed > self.agreed.number {
            self.agreed = self.log().name_of(committed).expect("what is agreed upon is here");
            output.agreed = Some(self.agreed);
            self.recover(output);
        }
        let is_first = role == StateRole::Leader && self.leads.is_none();
        if is_first {
            // Who needs nobody's vote asked nobody.
            self.leases.begin(term, self.settings.hold_ms());
        }
        if is_first && self.agreed.term == term {
            self.leads = Some(term);
            output.roles.push(Role::Leads { term });
        }
        let leader = self.node.raft.leader_id;
        let is_new = (self.patience.1, self.patience.2) != (term, role);
        let follows = role == StateRole::Follower && leader != 0;
        if is_new || follows && leader != self.patience.3 {
            let ticks = self.settings.election_ticks;
            // A node stands in all its groups at once: it is as patient with their leader in each, or the least patient of many would have
            // all nodes stand at the same moment.
            let mut of_leader = Dice::new(self.seed ^ leader);
            let dice = if follows { &mut of_leader } else { &mut self.dice };
            let share = dice.below(ticks.div_ceil(2) as u64) as usize;
            self.patience = (ticks + share, term, role, leader);
        }
        if is_new && role == StateRole::Leader {
            // Without a lease it answers nobody: it does not wait for the next tick.
            self.node.ping();
            self.drain(NewEntries::Engine, output);
        }
        let (sure, kept) = (self.sure(), self.kept);
        let is_free = |held: &mut Held| held.ticket <= kept && held.number <= sure;
        let free = self.held.extract_if(.., is_free).map(|held| (held.to, held.message));
        output.messages.extend(free);
    }

    /// It has all again that it once acknowledged.
    fn recover(&mut self, output: &mut Output) {
        let agreed = self.agreed;
        if self.lacks.take_if(|mark| *mark <= agreed).is_some() {
            self.marked = self.log().last_not_above(self.word.mark);
            self.acknowledge(self.stored, output);
        }
    }
}
