//! Changes of names that do not fit one turn: done in pieces, between the letters of others, and answered at the end.
//!
//! A piece is one batch of the log, like a letter: its letters to shards wait for the disk with it. The last piece
//! answers. If the process ends in the middle, the pieces that were done stay. The client repeats an import, the next
//! start matches a policy with everything, and a vhost goes on going then.
//!
//! ```text
//!   command -- fits a piece ----------------------------> done and answered in its turn
//!      |
//!      +-- else: first piece, then a job in the line of whoever asked --> last piece, answer
//! ```

use std::vec::IntoIter;

use leveret_amqp::reply::ReplyCode;
use leveret_log::Log;
use leveret_topology::{By, GroupId, Import, PolicyChange, QueueId, Sweep, Topology, VhostId};

use super::commands::Stored;
use super::room::{Needed, no_room};
use super::saved::SaveError;
use super::{Leaving, Meta, cancel, delete, forget, refuse};
use crate::held::Bookmark;
use crate::message::{ConnectionId, ConsumerSlot, Outbox, Reply, ReplyTo, ToMeta, ToShard};
use crate::work::{Limits, Piece, Work};

/// Names and bindings that are changed in one turn, and before another line has its turn: about half a millisecond, in which all
/// others wait for the names. What a client does takes the names some twenty times.
pub(super) const LIMITS: Limits = Limits { turn: 128, share: 64 };

/// Records that may wait for the disk while there is more to do: whoever asks for something small waits behind them.
const UNSYNCED_MAX: u64 = 1024;

/// Turns whose letters and events may wait for the disk while there is more to do: all of them go out at once.
const WAITING_MAX: usize = 8;

/// What is waiting to be done.
#[derive(Debug)]
pub(super) enum Job {
    /// As it came.
    Letter(Box<ToMeta>),
    /// What is left of it.
    Long(Box<Long>),
}

/// Lines of jobs by who asked for them; nobody for what the broker does by itself.
pub(super) type Lines = Work<ConnectionId, Job>;

/// Something that may take more than one piece.
#[derive(Debug)]
pub(super) struct Long {
    /// Who asked, and from where.
    pub(super) by: Box<By>,
    /// Who waits.
    pub(super) reply: Option<ReplyTo>,
    pub(super) what: What,
    /// A piece could not be written.
    failed: Option<SaveError>,
    /// Tenths of it that the log was told of.
    told: usize,
}

#[derive(Debug)]
pub(super) enum What {
    Import(Box<Import>),
    Policy(Box<PolicyChange>, usize),
    /// Exclusive queues of a connection that ended.
    Disconnect(ConnectionId, IntoIter<QueueId>, usize),
    /// Queues of a vhost that is deleted.
    Vhost(IntoIter<QueueId>, usize),
    Sweep(Sweep, Then),
}

/// What comes when everything was swept.
#[derive(Debug)]
pub(super) enum Then {
    Exchange,
    Vhost(VhostId),
    Queue {
        queue: QueueId,
        home: GroupId,
        messages: u64,
        consumers: Vec<(ConnectionId, ConsumerSlot)>,
        more: bool,
    },
}

impl What {
    /// What it is, for people, and how far it came, where that is known.
    fn progress(&self) -> (&'static str, usize, usize) {
        match self {
            Self::Import(import) => {
                let (done, total) = import.progress();
                ("import of definitions", done, total)
            }
            Self::Policy(change, total) => {
                // Names may come while its pattern is tried.
                ("change of a policy", total.saturating_sub(change.left()), *total)
            }
            Self::Disconnect(_, queues, total) => {
                ("deletion of exclusive queues", total - queues.len(), *total)
            }
            Self::Vhost(queues, total) => ("deletion of a vhost", total - queues.len(), *total),
            Self::Sweep(..) => ("deletion of bindings", 0, 0),
        }
    }

    /// Units of work that are left, as far as is known.
    fn units(&self) -> u64 {
        let (_, done, total) = self.progress();
        (total - done).max(1) as u64
    }
}

impl Long {
    pub(super) fn new(by: Box<By>, reply: Option<ReplyTo>, what: What) -> Self {
        Self { by, reply, what, failed: None, told: 0 }
    }

    /// In whose line it stands.
    fn origin(&self) -> ConnectionId {
        match (&self.what, self.reply) {
            (What::Disconnect(connection, ..), _) => *connection,
            (_, Some(reply)) => reply.connection,
            (_, None) => ConnectionId::NOBODY,
        }
    }

    fn answer(&self, out: &mut Outbox, answer: Reply) {
        let Some(reply) = self.reply else { return };
        match &self.failed {
            Some(error) => refuse(out, reply, ReplyCode::InternalError, error.to_string()),
            None => out.reply(reply, answer),
        }
    }

    /// A line in the log for each tenth.
    fn tell(&mut self) {
        let (what, done, total) = self.what.progress();
        let tenths = (done * 10).checked_div(total).unwrap_or_default();
        if tenths > self.told {
            self.told = tenths;
            tracing::info!(user = &*self.by.user, "{what}: {done} of {total}");
        }
    }
}

impl<L: Log> Meta<L> {
    /// Does what waits, as much as one turn may.
    pub(super) fn work_off(&mut self, topology: &mut Topology, out: &mut Outbox) {
        if self.work.is_empty() || !self.may_go_on() {
            return;
        }
        self.went_on_at = self.saved.durable();
        while let Some(Piece { origin, job, allowed }) = self.work.next_piece() {
            match job {
                Job::Letter(letter) => {
                    let cost = self.cost(&letter, topology).map_or(0, |(_, cost)| cost);
                    self.take(*letter, topology, out);
                    self.work.done(origin, cost);
                }
                Job::Long(long) => {
                    let (used, rest) = self.advance(long, allowed, topology, out);
                    match rest {
                        Some(mut long) => {
                            long.tell();
                            let units = long.what.units();
                            self.work.go_on(origin, Job::Long(long), used, units);
                        }
                        None => self.work.done(origin, used),
                    }
                }
            }
        }
    }

    /// Asks for another turn, if something is left to do and the disk does not have enough to do already: it is heard of
    /// when it has less.
    pub(super) fn ask_for_more(&self, out: &mut Outbox) {
        if !self.work.is_empty() && self.may_go_on() {
            out.meta.push(ToMeta::Continue);
        }
    }

    /// Whether the disk has little to do, or has done something since: those who ask for little, one after the other, may
    /// have it busy for ever.
    fn may_go_on(&self) -> bool {
        let is_little = || self.saved.behind() <= UNSYNCED_MAX && self.waiting.len() <= WAITING_MAX;
        self.failure().is_some() || self.saved.durable() > self.went_on_at || is_little()
    }

    /// The first piece, within what a letter writes; the rest goes into the line of who asked.
    pub(super) fn begin(&mut self, long: Long, topology: &mut Topology, out: &mut Outbox) {
        let origin = long.origin();
        let allowed = LIMITS.share;
        let (used, rest) = self.advance_some(Box::new(long), allowed, topology, out);
        self.work.spend(used);
        if let Some(long) = rest {
            let units = long.what.units();
            self.work.push(origin, Job::Long(long), units);
        }
    }

    /// One more piece, as a letter of its own.
    fn advance(
        &mut self,
        long: Box<Long>,
        allowed: u64,
        topology: &mut Topology,
        out: &mut Outbox,
    ) -> (u64, Option<Box<Long>>) {
        if let Some(failure) = self.failure() {
            let text = SaveError::Sync(failure.clone()).to_string();
            if let Some(reply) = long.reply {
                let start = Bookmark::end_of(out);
                refuse(out, reply, ReplyCode::InternalError, text);
                self.note_answers(start, Stored::Lost, out);
            }
            return (1, None);
        }
        let (start, by) = (Bookmark::end_of(out), long.by.clone());
        topology.act_as(&by.user);
        let (used, mut rest) = self.advance_some(long, allowed, topology, out);
        self.tell_events(&by, topology, out);
        let (stored, written) = self.write(topology);
        if let (Some(long), Err(error)) = (&mut rest, &written) {
            long.failed = Some(error.clone());
        }
        self.note_answers(start, stored, out);
        self.hold(start, written, out);
        (used, rest)
    }

    /// Does about `allowed` of it; gives how much it was, and what is left.
    fn advance_some(
        &mut self,
        mut long: Box<Long>,
        allowed: u64,
        topology: &mut Topology,
        out: &mut Outbox,
    ) -> (u64, Option<Box<Long>>) {
        match &mut long.what {
            What::Import(import) => {
                // What was done stays.
                if let Some(reply) = long.reply
                    && !Needed::ForNew(0).is_in(self.saved.log())
                {
                    out.reply(reply, no_room());
                    return (1, None);
                }
                if long.failed.is_some() {
                    long.answer(out, Reply::Done);
                    return (1, None);
                }
                let advanced = import.advance(topology, allowed);
                let (made, changed) = import.take_queues();
                Self::tell_shards(made, changed, topology, out);
                match advanced {
                    Ok(used) if !import.is_done() => (used, Some(long)),
                    Ok(used) => {
                        let imported = std::mem::take(import).end();
                        let told = imported.skipped.iter().chain(&imported.without_effect);
                        told.for_each(|it| tracing::warn!("definitions: {it}"));
                        long.answer(out, Reply::Imported(Box::new(imported)));
                        (used, None)
                    }
                    Err(error) => {
                        let text = error.to_string();
                        Self::tell_shards(
                            error.applied.queues,
                            error.applied.changed,
                            topology,
                            out,
                        );
                        if let Some(reply) = long.reply {
                            refuse(out, reply, ReplyCode::PreconditionFailed, text);
                        }
                        (1, None)
                    }
                }
            }
            What::Policy(change, _) => {
                let used = match change.advance(topology, allowed) {
                    Ok(used) => used,
                    Err(error) => {
                        if let Some(reply) = long.reply {
                            let code = ReplyCode::PreconditionFailed;
                            refuse(out, reply, code, error.to_string());
                        }
                        return (allowed, None);
                    }
                };
                let changed = change.take_changed();
                Self::tell_shards(Vec::new(), changed, topology, out);
                if change.left() > 0 {
                    return (used, Some(long));
                }
                long.answer(out, Reply::Done);
                if let What::Policy(change, _) = long.what {
                    change.end(topology);
                }
                (used, None)
            }
            What::Disconnect(connection, queues, _) => {
                let mut used = 0;
                for queue in queues.by_ref().take(allowed as usize) {
                    used += 1;
                    if topology.queue_by_id(queue).is_some() {
                        self.left_with.insert(queue, *connection);
                        delete(queue, topology.home(queue), out);
                    } else {
                        self.one_left(*connection, out);
                    }
                }
                (used, (queues.len() > 0).then_some(long))
            }
            What::Vhost(queues, _) => {
                let mut used = 0;
                for queue in queues.by_ref().take(allowed as usize) {
                    used += 1;
                    delete(queue, topology.home(queue), out);
                }
                (used, (queues.len() > 0).then_some(long))
            }
            What::Sweep(sweep, _) => {
                let used = topology.sweep(sweep, allowed);
                for exchange in sweep.exchanges.drain(..) {
                    forget(&exchange, out);
                }
                if !sweep.is_done() {
                    return (used, Some(long));
                }
                self.swept(*long, topology, out);
                (used, None)
            }
        }
    }

    fn swept(&mut self, long: Long, topology: &mut Topology, out: &mut Outbox) {
        let Long { what: What::Sweep(_, then), reply, by, failed, .. } = long else { return };
        let what = What::Sweep(Sweep::default(), Then::Exchange);
        let long = Long { by, reply, what, failed, told: 0 };
        match then {
            Then::Exchange => long.answer(out, Reply::Done),
            Then::Vhost(vhost) => {
                topology.end_vhost(vhost);
                long.answer(out, Reply::Done);
            }
            Then::Queue { queue, home, messages, consumers, more } => {
                long.answer(out, Reply::Deleted(messages));
                cancel(queue, home, consumers, more, out);
                self.left(queue, out);
            }
        }
    }

    fn tell_shards(
        made: Vec<QueueId>,
        changed: Vec<QueueId>,
        topology: &Topology,
        out: &mut Outbox,
    ) {
        for queue in made {
            out.shard(topology.home(queue), ToShard::Create { reply: None, queue });
        }
        for queue in changed {
            out.shard(topology.home(queue), ToShard::OptionsChanged { queue });
        }
    }

    /// A connection ended: its exclusive queues go, each by its shard.
    pub(super) fn disconnected(
        &mut self,
        connection: ConnectionId,
        reply: Option<ReplyTo>,
        topology: &mut Topology,
        out: &mut Outbox,
    ) {
        let queues = topology.queues_owned_by(connection);
        if queues.is_empty() {
            if let Some(reply) = reply {
                out.reply(reply, Reply::Done);
            }
            return;
        }
        let total = queues.len();
        self.leaving.insert(connection, Leaving { queues: total, reply });
        let what = What::Disconnect(connection, queues.into_iter(), total);
        self.begin(Long::new(Box::default(), None, what), topology, out);
    }

    /// A vhost that is deleted, or was when the process ended before: its queues go, then the rest.
    pub(super) fn vhost_goes(
        &mut self,
        vhost: VhostId,
        by: Box<By>,
        reply: Option<ReplyTo>,
        topology: &mut Topology,
        out: &mut Outbox,
    ) {
        let queues = topology.queues_of_going(vhost);
        if queues.is_empty() {
            self.rest_goes(vhost, by, reply, topology, out);
            return;
        }
        self.vhosts.insert(vhost, (by.clone(), reply));
        let total = queues.len();
        let what = What::Vhost(queues.into_iter(), total);
        self.begin(Long::new(by, None, what), topology, out);
    }

    /// The last queue of a vhost that is deleted is gone.
    pub(super) fn rest_goes(
        &mut self,
        vhost: VhostId,
        by: Box<By>,
        reply: Option<ReplyTo>,
        topology: &mut Topology,
        out: &mut Outbox,
    ) {
        let what = What::Sweep(topology.rest_of_vhost(vhost), Then::Vhost(vhost));
        self.begin(Long::new(by, reply, what), topology, out);
    }

    /// Takes up what the process before did not finish, in the first turn.
    pub(super) fn take_up(&mut self, topology: &Topology) {
        for vhost in topology.going_vhosts() {
            let letter = Job::Letter(Box::new(ToMeta::VhostGoes(vhost)));
            self.work.push(ConnectionId::NOBODY, letter, 1);
        }
    }

    /// Something is to be done: it is to be given a turn, by a [`ToMeta::Continue`].
    pub fn has_work(&self) -> bool {
        !self.work.is_empty()
    }
}

impl<L> Meta<L> {
    /// In whose line a letter stands if it has to wait, and what it costs. None for what has nothing done: what follows
    /// from it is done at the end of the turn.
    pub(super) fn cost(&self, letter: &ToMeta, topology: &Topology) -> Option<(ConnectionId, u64)> {
        Some(match letter {
            ToMeta::DeclareExchange { reply, .. }
            | ToMeta::DeleteExchange { reply, .. }
            | ToMeta::DeclareQueue { reply, .. }
            | ToMeta::IsWell { reply }
            | ToMeta::Admin { reply, .. } => (reply.connection, 1),
            ToMeta::Bind(binding) | ToMeta::Unbind(binding) => (binding.reply.connection, 1),
            ToMeta::QueueGone { queue, reply, consumers, .. } => {
                // Whoever deletes one queue does not stand behind the queues of a vhost, or of a connection that ended.
                let asked = reply.as_ref().map(|(reply, _)| reply.connection);
                let origin = asked.or_else(|| self.left_with.get(queue).copied());
                let bindings = topology.bindings_of(leveret_topology::Target::Queue(*queue));
                let bindings = bindings.min(leveret_topology::SWEPT_AT_ONCE);
                (origin.unwrap_or_default(), 1 + (bindings + consumers.len()) as u64 / 2)
            }
            ToMeta::Disconnected { connection, .. } => (*connection, 1),
            ToMeta::VhostGoes(_) => (ConnectionId::NOBODY, 1),
            ToMeta::Prepared { from, tx, parts, vote, .. } => {
                (*from, self.decisions.price_of_vote(*tx, *parts, vote))
            }
            ToMeta::Applied { tx, .. } => (self.decisions.made_by(*tx), 1),
            ToMeta::LogWoke | ToMeta::Continue | ToMeta::Numbered(_) => return None,
        })
    }
}
