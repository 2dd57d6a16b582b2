//! The owner of the topology: applies every change of names, in the order in which the changes came.
//!
//! One per node. Sessions and shards read the topology; only a turn of [`Meta`] changes it. The consequences of a
//! change for messages (a queue is made, deleted, has another limit) go to the shards by letter. The client is
//! answered when the change is true.
//!
//! Durable names are in a log of their own, one record per name ([`saved`]). A change of a durable name is true when it is
//! on disk. So the answer and the letters to shards that belong to such a change are held back until the log has it
//! ([`held`](crate::held)). Other letters pass them meanwhile. A session sends one command at a time, so the commands of one
//! connection keep their order. A change that does not fit one turn is done in pieces ([`long`]).
//!
//! The topology itself is changed at once. So another client may use a name before the client that made it has its answer; a
//! crash in between loses the name for both. A change that the log has no room for is refused before it begins
//! ([`room`]). A change that has begun is written: if other programs took the room in that moment, it waits until there
//! is room again.

mod admin;
mod brought;
mod commands;
mod copy;
mod decisions;
mod long;
mod recover;
mod room;
mod saved;
mod terms;
mod waiting;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use leveret_amqp::reply::ReplyCode;
use leveret_log::{Log, Offset, SyncError};
use leveret_topology::{
    By, Change, Destination, ExchangeSpec, GroupId, NodeId, QueueId, QueueSpec, Removed,
    RemovedExchange, Target, Topology, VhostId,
};

use crate::message::{
    Binding, ConnectionId, ConsumerSlot, Outbox, Reply, ReplyTo, ToMeta, ToSession, ToShard,
};

use crate::held::{Bookmark, Held, Span, take_out};
use crate::work::Work;
use commands::{Commands, Stored};
pub use copy::{NamesCopy, NamesFollower};
use decisions::{Decisions, ShardVote};
use long::{Job, Lines, Long, Then, What};
pub use recover::RecoverError;
pub(crate) use room::no_room;
pub use room::{CHANGE_ROOM, DELETION_ROOM};
pub use saved::SaveError;
use saved::Saved;
use terms::LastTerm;
pub use terms::{AwaitedProcess, TermNote};

/// State of the topology's owner beside the topology itself.
#[derive(Debug)]
pub struct Meta<L> {
    saved: Saved<L>,
    /// The parts of this turn's outbox that depend on the log.
    held: Vec<Span>,
    /// The parts of earlier outboxes that wait for the log, by the offset up to which it has to be durable.
    waiting: Held<Offset>,
    /// Connections that have ended and whose exclusive queues are being deleted.
    leaving: HashMap<ConnectionId, Leaving, FixedState>,
    /// The exclusive queues of these connections.
    left_with: HashMap<QueueId, ConnectionId, FixedState>,
    /// Vhosts that are being deleted and still have queues: who asked, and the address of the answer.
    vhosts: HashMap<VhostId, (Box<By>, Option<ReplyTo>), FixedState>,
    /// Changes that do not fit one turn.
    work: Lines,
    /// How far the log was durable when a piece of `work` was done last.
    went_on_at: Offset,
    counters: MetaCounters,
    decisions: Decisions,
    /// What nodes number.
    commands: Commands,
    /// Who led.
    last_term: LastTerm,
}

/// What happened to queues since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetaCounters {
    /// Declarations that were not refused, those of existing queues included.
    pub queues_declared: u64,
    /// Queues made.
    pub queues_created: u64,
    /// Queues deleted, in whatever way.
    pub queues_deleted: u64,
}

#[derive(Debug)]
struct Leaving {
    /// Exclusive queues of the connection that are not deleted yet.
    queues: usize,
    /// The address of the answer, if one is awaited.
    reply: Option<ReplyTo>,
}

/// Whether the answer to a letter is true only once the log is durable, even if the letter changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rests {
    /// The answer says that a name is there or is not, and another letter may have changed that just now.
    OnTheLog,
    /// The letter wrote a record itself, or is about one that was. Room in the log for other changes does not matter to it.
    Written,
    /// The answer depends on the letter's own changes alone.
    OnItself,
}

impl<L: Log> Meta<L> {
    /// The owner of names, with an empty log. Names that the topology has already are written with the
    /// first change; [`adopt`](Self::adopt) writes them earlier.
    pub fn new(log: L) -> Self {
        Self {
            saved: Saved::new(log),
            held: Vec::new(),
            waiting: Held::default(),
            leaving: HashMap::default(),
            left_with: HashMap::default(),
            vhosts: HashMap::default(),
            work: Work::new(long::LIMITS),
            went_on_at: Offset::ZERO,
            counters: MetaCounters::default(),
            decisions: Decisions::default(),
            commands: Commands::default(),
            last_term: LastTerm::default(),
        }
    }

    /// Its log.
    pub fn log(&self) -> &L {
        self.saved.log()
    }

    /// The log, for the owner of its disk.
    pub fn log_mut(&mut self) -> &mut L {
        self.saved.log_mut()
    }

    /// From now on [changes](Self::take_changes) are kept for a topology that follows this one.
    pub fn follow(&mut self) {
        self.saved.follow();
    }

    /// All that changed since this was last asked, in batches: each is to be [applied](Topology::apply) as a whole, and in order.
    pub fn take_changes(&mut self) -> Vec<Vec<Change>> {
        self.saved.take_followed()
    }

    /// What happened to queues since the process began.
    pub fn counters(&self) -> MetaCounters {
        self.counters
    }

    /// Why nothing can be changed any more: a sync of the log failed, for good.
    pub fn failure(&self) -> Option<&SyncError> {
        self.saved.failure()
    }

    /// Applies letters, those of one connection in order, as many as fit one turn; sees to it that what is durable gets to
    /// the disk, and sends what waited for that. If something is left to do there is a letter to itself.
    pub fn turn(&mut self, letters: &mut Vec<ToMeta>, topology: &mut Topology, out: &mut Outbox) {
        self.work.begin();
        for letter in letters.drain(..) {
            let letter = match letter {
                ToMeta::Numbered(numbered) => match self.numbered(*numbered, out) {
                    Some(command) => command,
                    None => continue,
                },
                letter => letter,
            };
            match self.cost(&letter, topology) {
                Some((origin, cost)) if !self.work.fits(origin, cost) => {
                    self.work.push(origin, Job::Letter(Box::new(letter)), cost);
                }
                _ => self.take(letter, topology, out),
            }
        }
        self.work_off(topology, out);
        self.flush(topology, out);
        self.ask_for_more(out);
    }

    /// Applies one letter.
    fn take(&mut self, letter: ToMeta, topology: &mut Topology, out: &mut Outbox) {
        let start = Bookmark::end_of(out);
        if self.failure().is_some() && self.refuse_change(&letter, out) {
            self.note_answers(start, Stored::Lost, out);
            return;
        }
        if let Some(reply) = asker(&letter) {
            let needed = room::needed(&letter, topology);
            let needed = match self.is_noted_anyway(&letter, reply) {
                true => needed.with_a_note(),
                false => needed,
            };
            if !needed.is_in(self.saved.log()) {
                out.reply(reply, no_room());
                self.note_answers(start, Stored::Nothing, out);
                return;
            }
        }
        let by = by_whom(&letter);
        topology.act_as(&by.user);
        let rests = self.letter(letter, topology, out);
        self.work.spend(topology.take_matching());
        self.tell_events(&by, topology, out);
        let (stored, written) = match rests {
            Rests::OnItself if !topology.has_changes() => (Stored::Nothing, Ok(())),
            Rests::Written => (Stored::Nothing, Ok(())),
            Rests::OnItself | Rests::OnTheLog => self.write(topology),
        };
        let is_noted = self.note_answers(start, stored, out);
        self.work.spend(u64::from(is_noted));
        if rests == Rests::OnItself && stored == Stored::Nothing && !is_noted {
            return;
        }
        self.hold(start, written, out);
    }

    /// What changed is handed to the log.
    fn write(&mut self, topology: &mut Topology) -> (Stored, Result<(), SaveError>) {
        let is_stored = topology.has_changes();
        let written = self.saved.write(topology);
        let stored = match &written {
            Err(_) => Stored::Lost,
            Ok(()) if is_stored => Stored::Written,
            Ok(()) => Stored::Nothing,
        };
        (stored, written)
    }

    /// What was written into the outbox since `start` waits for the log that has it, or is refused.
    fn hold(&mut self, start: Bookmark, written: Result<(), SaveError>, out: &mut Outbox) {
        let span = start.to(Bookmark::end_of(out));
        match written {
            Ok(()) => self.held.push(span),
            Err(error) => waiting::refuse(&[span], out, &error),
        }
    }

    fn tell_events(&self, by: &By, topology: &mut Topology, out: &mut Outbox) {
        if let Some(vhost) = topology.take_exhausted() {
            tracing::warn!(
                vhost = &*vhost,
                "names of this vhost take patterns of its policies too long: from now on the patterns that need backtracking \
                 match no more such names; write them without nested repeats, or without look-arounds and back-references"
            );
        }
        let told = topology.take_events();
        out.events.extend(told.into_iter().map(|event| by.did(event)));
    }

    /// The end of a turn: everything it changed is one batch of the log.
    fn flush(&mut self, topology: &mut Topology, out: &mut Outbox) {
        let passed = self.saved.pass(topology);
        let sealed = passed.and_then(|()| self.saved.seal(topology));
        // Only a log that failed cannot be sealed.
        if let Err(error) = self.saved.sync().and(sealed) {
            out.failed.get_or_insert_with(|| error.to_string());
            waiting::refuse(&self.held, out, &error);
            self.held.clear();
            for part in self.waiting.take() {
                waiting::refuse_all(part, out, &error);
            }
            return;
        }
        let until = self.saved.until();
        if !self.held.is_empty() && self.saved.durable() < until {
            self.waiting.hold(until, take_out(&self.held, out));
        }
        self.held.clear();
        let durable = self.saved.durable();
        self.waiting.free(out, |&until| until <= durable);
    }

    /// After a failure of the log: refuses a command, and says so; other letters are not commands.
    fn refuse_change(&mut self, letter: &ToMeta, out: &mut Outbox) -> bool {
        let Some(reply) = asker(letter) else { return false };
        if let Some(failure) = self.failure() {
            let text = SaveError::Sync(failure.clone()).to_string();
            refuse(out, reply, ReplyCode::InternalError, text);
        }
        true
    }

    fn letter(&mut self, letter: ToMeta, topology: &mut Topology, out: &mut Outbox) -> Rests {
        match letter {
            ToMeta::DeclareExchange {
                by: _, // who acts: it is noted with what is made
                reply,
                vhost,
                name,
                kind,
                durable,
                auto_delete,
                internal,
                arguments,
                forbidden,
            } => {
                if let Some(refusal) =
                    forbidden.filter(|_| topology.exchange(vhost, &name).is_none())
                {
                    refuse(out, reply, refusal.code, refusal.text);
                    return Rests::OnItself;
                }
                let (name, kind) = (&*name, &*kind);
                let spec =
                    ExchangeSpec { vhost, name, kind, durable, auto_delete, internal, arguments };
                let result = topology.declare_exchange(spec);
                let rests =
                    if durable && result.is_ok() { Rests::OnTheLog } else { Rests::OnItself };
                answer(out, reply, result.map_err(|error| (error.reply_code(), error.to_string())));
                return rests;
            }
            ToMeta::DeleteExchange { by, reply, vhost, name, if_unused } => {
                match topology.start_delete_exchange(vhost, &name, if_unused) {
                    Ok(Some(sweep)) => {
                        // Another one may have its name from now on.
                        if let Err(error) = self.is_done_but_for_its_rest(reply) {
                            tracing::error!(%error, "a deletion could not be noted");
                        }
                        let what = What::Sweep(sweep, Then::Exchange);
                        self.begin(Long::new(by, Some(reply), what), topology, out);
                        return Rests::OnItself;
                    }
                    Ok(None) => {}
                    Err(error) => {
                        refuse(out, reply, error.reply_code(), error.to_string());
                        return Rests::OnItself;
                    }
                }
                match topology.delete_exchange(vhost, &name, if_unused) {
                    Ok(removed) => {
                        Self::removed(&removed, out);
                        out.reply(reply, Reply::Done);
                        if removed.exchanges.is_empty() {
                            return Rests::OnTheLog;
                        }
                    }
                    Err(error) => refuse(out, reply, error.reply_code(), error.to_string()),
                }
            }
            ToMeta::DeclareQueue {
                by,
                reply,
                vhost,
                name,
                server_named,
                durable,
                exclusive,
                auto_delete,
                arguments,
                forbidden,
            } => {
                if let Some(refusal) = forbidden.filter(|_| topology.queue(vhost, &name).is_none())
                {
                    refuse(out, reply, refusal.code, refusal.text);
                    return Rests::OnItself;
                }
                let exclusive_owner = exclusive.then_some(reply.connection);
                let name = &*name;
                let spec = QueueSpec {
                    vhost,
                    name,
                    server_named,
                    durable,
                    auto_delete,
                    exclusive_owner,
                    arguments,
                };
                match topology.declare_queue(spec) {
                    Ok(declared) => {
                        let queue = declared.id;
                        if declared.created {
                            topology.queue_declared_by(queue, &by.user);
                        }
                        self.counters.queues_declared += 1;
                        self.counters.queues_created += u64::from(declared.created);
                        let letter = if declared.created {
                            ToShard::Create { reply: Some(reply), queue }
                        } else {
                            ToShard::Count { reply, queue }
                        };
                        out.shard(topology.home(queue), letter);
                        if durable && !exclusive {
                            return Rests::OnTheLog;
                        }
                    }
                    Err(error) => refuse(out, reply, error.reply_code(), error.to_string()),
                }
            }
            ToMeta::Bind(binding) => return self.bind(*binding, topology, out),
            ToMeta::Unbind(binding) => {
                let Binding { reply, vhost, source, key, arguments, .. } = &*binding;
                let destination = destination(&binding);
                let connection = Some(reply.connection);
                match topology.unbind(
                    *vhost,
                    source,
                    destination,
                    key,
                    arguments.clone(),
                    connection,
                ) {
                    Ok(removed) => {
                        Self::removed(&removed, out);
                        out.reply(*reply, Reply::Done);
                        if removed.bindings.is_empty() {
                            return Rests::OnTheLog;
                        }
                    }
                    Err(error) => refuse(out, *reply, error.reply_code(), error.to_string()),
                }
            }
            ToMeta::QueueGone { by, queue, reply, consumers, more } => {
                self.counters.queues_deleted += 1;
                let home = topology.home(queue);
                let vhost = topology.going_vhost_of(queue);
                if let Some(sweep) = topology.start_remove_queue(queue) {
                    let (reply, messages) = reply.unzip();
                    let messages = messages.unwrap_or_default();
                    let then = Then::Queue { queue, home, messages, consumers, more };
                    let what = What::Sweep(sweep, then);
                    self.begin(Long::new(by, reply, what), topology, out);
                    self.gone_from(vhost, topology, out);
                    return Rests::OnItself;
                }
                let removed = topology.remove_queue(queue);
                Self::removed(&removed, out);
                // As in RabbitMQ, whose channel hears of its consumers after its own method.
                if let Some((reply, messages)) = reply {
                    out.reply(reply, Reply::Deleted(messages));
                }
                cancel(queue, home, consumers, more, out);
                self.left(queue, out);
                self.gone_from(vhost, topology, out);
            }
            ToMeta::Disconnected { connection, reply } => {
                // Other nodes give theirs numbers, so somebody has an answer; but for those who are gone.
                if reply.is_none() && connection.node() != NodeId::ALONE {
                    self.decisions.gone_with_its_node(connection, out);
                }
                self.disconnected(connection, reply, topology, out);
            }
            ToMeta::Admin { by, reply, command } => {
                return self.admin(by, reply, *command, topology, out);
            }
            ToMeta::VhostGoes(vhost) => self.vhost_goes(vhost, Box::default(), None, topology, out),
            ToMeta::IsWell { reply } => {
                out.reply(reply, Reply::Done);
                return Rests::OnTheLog;
            }
            // What is to go on is done after the letters. Of a numbered one the letter in it is done.
            ToMeta::Continue | ToMeta::Numbered(_) => {}
            ToMeta::Prepared { from, tx, group, parts, vote } => {
                let share = ShardVote { from, group, parts, vote };
                return self.decisions.vote(tx, share, &mut self.saved, out);
            }
            ToMeta::Applied { tx, group } => self.decisions.applied(tx, group),
            // The turn's end takes in what the disk did.
            ToMeta::LogWoke => {}
        }
        Rests::OnItself
    }

    fn bind(&mut self, binding: Binding, topology: &mut Topology, out: &mut Outbox) -> Rests {
        let destination = destination(&binding);
        let Binding { reply, vhost, ref source, ref key, ref arguments, .. } = binding;
        let connection = Some(reply.connection);
        match topology.bind(vhost, source, destination, key, arguments.clone(), connection) {
            Ok(bound) => {
                if let (Some(exchange), Target::Queue(queue)) = (bound.recent_history, bound.target)
                {
                    let from = reply.connection;
                    let letter = ToShard::Replay { from, exchange, queue };
                    out.shard(topology.history_home(exchange), letter);
                }
                out.reply(reply, Reply::Done);
                if bound.created { Rests::OnItself } else { Rests::OnTheLog }
            }
            Err(error) => {
                refuse(out, reply, error.reply_code(), error.to_string());
                Rests::OnItself
            }
        }
    }

    /// Exchanges that went take what they remembered with them.
    fn removed(removed: &Removed, out: &mut Outbox) {
        for exchange in &removed.exchanges {
            forget(exchange, out);
        }
    }

    /// A queue is gone, perhaps one more exclusive one of a connection that ends.
    fn left(&mut self, queue: QueueId, out: &mut Outbox) {
        if let Some(connection) = self.left_with.remove(&queue) {
            self.one_left(connection, out);
        }
    }

    /// A queue is gone that was perhaps the last one of a vhost that is deleted.
    fn gone_from(
        &mut self,
        vhost: Option<(VhostId, usize)>,
        topology: &mut Topology,
        out: &mut Outbox,
    ) {
        if let Some((vhost, ..=1)) = vhost
            && let Some((by, reply)) = self.vhosts.remove(&vhost)
        {
            self.rest_goes(vhost, by, reply, topology, out);
        }
    }

    /// One queue less of a connection that ends.
    fn one_left(&mut self, connection: ConnectionId, out: &mut Outbox) {
        let Some(leaving) = self.leaving.get_mut(&connection) else { return };
        leaving.queues -= 1;
        if leaving.queues == 0
            && let Some(leaving) = self.leaving.remove(&connection)
            && let Some(reply) = leaving.reply
        {
            out.reply(reply, Reply::Done);
        }
    }
}

/// Who had a letter sent.
fn by_whom(letter: &ToMeta) -> Box<By> {
    match letter {
        ToMeta::DeclareExchange { by, .. }
        | ToMeta::DeleteExchange { by, .. }
        | ToMeta::DeclareQueue { by, .. }
        | ToMeta::QueueGone { by, .. }
        | ToMeta::Admin { by, .. } => by.clone(),
        ToMeta::Bind(binding) | ToMeta::Unbind(binding) => binding.by.clone(),
        ToMeta::Disconnected { .. }
        | ToMeta::Prepared { .. }
        | ToMeta::Applied { .. }
        | ToMeta::VhostGoes(_)
        | ToMeta::IsWell { .. }
        | ToMeta::Numbered(_)
        | ToMeta::Continue
        | ToMeta::LogWoke => Box::default(),
    }
}

fn destination(binding: &Binding) -> Destination<'_> {
    if binding.to_queue {
        Destination::Queue(&binding.destination)
    } else {
        Destination::Exchange(&binding.destination)
    }
}

/// An exchange went, with what it remembered.
fn forget(gone: &RemovedExchange, out: &mut Outbox) {
    out.shard(gone.home, ToShard::Forget { exchange: gone.id });
}

/// Has a queue deleted by its shard, whatever it holds.
fn delete(queue: QueueId, home: GroupId, out: &mut Outbox) {
    let letter = ToShard::Delete {
        by: Box::default(),
        reply: None,
        queue,
        if_unused: false,
        if_empty: false,
    };
    out.shard(home, letter);
}

/// The name of a queue is gone, which had this home: its consumers are told, in one piece with the answer. A client that is told
/// the queue is gone may close its channel, and has its answer by then.
fn cancel(
    queue: QueueId,
    home: GroupId,
    consumers: Vec<(ConnectionId, ConsumerSlot)>,
    more: bool,
    out: &mut Outbox,
) {
    for (connection, slot) in consumers {
        out.session(connection, ToSession::ConsumerGone { slot });
    }
    if more {
        out.shard(home, ToShard::CancelRest { queue });
    }
}

fn answer<T>(out: &mut Outbox, reply: ReplyTo, result: Result<T, (ReplyCode, String)>) {
    match result {
        Ok(_) => out.reply(reply, Reply::Done),
        Err((code, text)) => refuse(out, reply, code, text),
    }
}

/// Who waits for the answer to a command.
fn asker(letter: &ToMeta) -> Option<ReplyTo> {
    match letter {
        ToMeta::DeclareExchange { reply, .. }
        | ToMeta::DeleteExchange { reply, .. }
        | ToMeta::DeclareQueue { reply, .. }
        | ToMeta::IsWell { reply }
        | ToMeta::Admin { reply, .. } => Some(*reply),
        ToMeta::Bind(binding) | ToMeta::Unbind(binding) => Some(binding.reply),
        ToMeta::QueueGone { .. }
        | ToMeta::Disconnected { .. }
        | ToMeta::Prepared { .. }
        | ToMeta::Applied { .. }
        | ToMeta::VhostGoes(_)
        | ToMeta::Numbered(_)
        | ToMeta::Continue
        | ToMeta::LogWoke => None,
    }
}

fn refuse(out: &mut Outbox, reply: ReplyTo, code: ReplyCode, text: String) {
    out.reply(reply, Reply::Refused { code, text });
}
