//! A thread's list of turns to run, and the buffers it runs them with.
//!
//! Hot path: turns follow each other on one thread, first come, first served; buffers are reused.
//!
//! Whoever got an actor's duty (see [`turn`](crate::turn)) puts it on its own thread's list and works
//! the list off at once: the bytes of a publisher become letters to a shard, the shard's turn becomes
//! letters to consumers' connections, and their turns write to sockets, all before the thread waits
//! again. After [`TURNS_MAX`] turns, or [`LOOK_US`], the thread looks at its sockets and timers before it goes on.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::vec::Drain;

use leveret_amqp::outbuf::OutBuf;
use leveret_amqp::reply::ReplyCode;
use leveret_broker::command::Answered;
use leveret_broker::flow::AlarmChange;
use leveret_broker::login::{Asked, Login};
use leveret_broker::message::{
    ConnectionId, NodeId, Outbox, Publish, Step, ToMeta, ToSession, ToShard,
};
use leveret_broker::stream::StreamNews;
use leveret_node::Run;
use leveret_topology::{Event, GroupId};
use tokio::sync::Notify;

use crate::alarms::{Resource, say};
use crate::buffers::Buffers;
use crate::clock::{now_with_us, step_ms};
use crate::connection::{Connection, Letter, Next, Workplace};
use crate::events;
use crate::gather::Gather;
use crate::long::{LONG_US, Spent};
use crate::node::{Node, Recipient};
use crate::pressure::Pressure;
use crate::reading::READ_MIN;
use crate::watchdog::{Beat, Doing};

/// Turns a thread runs before it looks at its sockets and timers, or at its disk, again.
const TURNS_MAX: usize = 256;

/// How long a thread runs turns before it looks at its sockets, in us: about two full turns of a shard. Each step of a small
/// request waits for a look. A look after each turn would bring more messages before the waiting acks are seen, and the disk
/// would get more than it has to: a tenth more CPU time with 30 queues at full load. Two in a ms cost nothing that shows.
const LOOK_US: u64 = 500;

/// What a turn of Meta counts as if it leaves work for the next one: the thread looks at its sockets in between.
const LONG_META_TURN: usize = TURNS_MAX;

/// What a turn counts as that writes a piece of very much output: the thread looks at its sockets after four of them.
const LONG_WRITE: usize = TURNS_MAX / 4;

/// Bytes of read buffers that a thread keeps for the next turns.
const KEPT_INPUT: usize = 1 << 20;

/// Bytes of large bodies that a thread keeps for the next ones: a hundred of 64 KiB, which may be in flight at one moment
/// and settled at the next.
const KEPT_BODIES: usize = 8 << 20;

/// Bytes of an output buffer that a thread keeps for the next turn.
const KEPT_OUTPUT: usize = 1 << 20;

/// An actor whose duty this thread has.
#[derive(Debug)]
pub(crate) enum Due {
    Shard(usize),
    Meta,
    Connection(Arc<Connection>),
}

/// The letters that a turn picked up: how many, and the kinds of the first and of the last.
#[derive(Clone, Copy, Debug, Default)]
struct About {
    letters: usize,
    kinds: [&'static str; 2],
}

impl About {
    fn of<L>(letters: &[L], kind: fn(&L) -> &'static str) -> Self {
        let kinds = [letters.first().map_or("", kind), letters.last().map_or("", kind)];
        Self { letters: letters.len(), kinds }
    }
}

/// A thread's list and buffers.
#[derive(Debug)]
pub struct Runner {
    node: Arc<Node>,
    /// What this thread is at, for the watchdog.
    beat: Arc<Beat>,
    /// How long this thread waits for a processor.
    pressure: Pressure,
    /// None on a thread that takes no naps.
    gather: Option<Gather>,
    /// What it did with its time.
    spent: Spent,
    /// What the last turn was about, if that was a shard's or Meta's.
    about: About,
    due: VecDeque<Due>,
    outbox: Outbox,
    /// The shard's group whose turn wrote what is in the outbox.
    writer: Option<GroupId>,
    out: OutBuf,
    buffers: Buffers,
    /// For bodies that stay where they were read to.
    bodies: Buffers,
    /// Of which so many bytes that nobody uses are counted.
    idle_bytes: u64,
    cipher: Vec<u8>,
    shard_letters: Vec<ToShard>,
    meta_letters: Vec<ToMeta>,
    connection_letters: Vec<Letter>,
    /// The thread has no runtime: nobody calls it again if it stops before its list is empty.
    is_alone: bool,
    /// Somebody waits for what this thread has to do.
    is_awaited: bool,
    /// Tells this thread's [`keep_working`] that the list is not empty.
    more: Arc<Notify>,
    /// Tells this thread's [`rest`] that there was work, once until it looks.
    worked: Arc<Rest>,
    has_worked: bool,
}

/// Where a thread's [`rest`] hears that it may have memory to give back.
#[derive(Debug, Default)]
pub struct Rest {
    /// There was work here.
    worked: Notify,
    /// Another thread rests, which may have freed memory of this one.
    others_rest: Notify,
}

thread_local! {
    static RUNNER: RefCell<Option<Runner>> = const { RefCell::new(None) };
}

/// Gives this thread its runner. Turns need one; [`keep_working`] and [`rest`] must run on the thread
/// too, with what is returned, in this order.
pub fn install_runner(node: Arc<Node>) -> (Arc<Notify>, Arc<Rest>) {
    let (more, worked) = (Arc::new(Notify::new()), Arc::new(Rest::default()));
    node.add_rest(Arc::clone(&worked));
    let beat = node.watched.beat();
    let runner = Runner {
        node,
        beat,
        pressure: Pressure::default(),
        gather: None,
        spent: Spent::default(),
        about: About::default(),
        due: VecDeque::new(),
        outbox: Outbox::default(),
        writer: None,
        out: OutBuf::new(),
        buffers: Buffers::new(KEPT_INPUT),
        bodies: Buffers::exact(KEPT_BODIES),
        idle_bytes: 0,
        cipher: Vec::new(),
        shard_letters: Vec::new(),
        meta_letters: Vec::new(),
        connection_letters: Vec::new(),
        is_alone: false,
        is_awaited: false,
        more: Arc::clone(&more),
        worked: Arc::clone(&worked),
        has_worked: false,
    };
    RUNNER.with_borrow_mut(|place| *place = Some(runner));
    (more, worked)
}

/// Bytes that a letter keeps while it waits for a shard whose queues are being filled. Messages keep the block that they were
/// read into.
fn waiting_bytes(letter: &ToShard) -> u64 {
    let (ToShard::Publish { messages, .. }
    | ToShard::Commit { messages, .. }
    | ToShard::Prepare { messages, .. }) = letter
    else {
        return size_of::<ToShard>() as u64;
    };
    let bytes = messages.iter().map(|it| it.message.len() + size_of::<Publish>() as u64);
    bytes.sum::<u64>() + READ_MIN as u64
}

/// How long a thread has nothing to do before it gives memory back.
const REST: Duration = Duration::from_secs(2);

/// Calls `give_back` when the thread worked and then had nothing to do for a while. Costs nothing on
/// a thread that rests already.
pub async fn rest(node: Arc<Node>, own: Arc<Rest>, give_back: fn()) {
    let takes_work = || {
        let worked = |runner: &mut Runner| std::mem::take(&mut runner.has_worked);
        RUNNER.with_borrow_mut(|runner| runner.as_mut().is_some_and(worked))
    };
    loop {
        tokio::select! {
            () = own.worked.notified() => {
                while takes_work() {
                    tokio::time::sleep(REST).await;
                }
                RUNNER.with_borrow_mut(|runner| runner.as_mut().map(Runner::relax));
                give_back();
                node.each_rest(|other| {
                    if !Arc::ptr_eq(other, &own) {
                        other.others_rest.notify_one();
                    }
                });
            }
            () = own.others_rest.notified() => give_back(),
        }
    }
}

/// As [`keep_working`], and also runs the turns that threads without a runtime leave.
pub async fn keep_working_for_others(more: Arc<Notify>) {
    RUNNER.with_borrow(|runner| {
        runner.as_ref().map(|runner| runner.node.handover.joins(Arc::clone(&more)))
    });
    keep_working(more).await;
}

/// Works the thread's list off whenever a burst left turns on it. For a thread that may be busy with something else, such as
/// a request of the management API: the turns that a disk's thread leaves are for the threads of the sockets.
pub async fn keep_working(more: Arc<Notify>) {
    loop {
        more.notified().await;
        RUNNER.with_borrow_mut(|runner| runner.as_mut().map(Runner::work));
        tokio::task::yield_now().await;
    }
}

/// This thread naps before it sleeps, if that pays: see [`Gather`].
pub fn gather() {
    RUNNER.with_borrow_mut(|runner| {
        if let Some(runner) = runner {
            runner.gather = Some(Gather::new());
        }
    });
}

/// This thread is about to sleep.
pub fn sleeps() {
    let nap =
        RUNNER.with_borrow_mut(|runner| runner.as_mut()?.gather.as_mut()?.sleeps(now_with_us().1));
    if let Some(nap) = nap {
        std::thread::sleep(nap);
    }
}

/// A thread without a runtime is idle: its runner, if it has one, gives memory back.
pub fn relax_alone() {
    RUNNER.with_borrow_mut(|runner| runner.as_mut().map(Runner::relax));
}

/// Runs `f` with a runner on a thread that has no runtime, such as a disk's. The turns that follow from it run here. If no
/// client waits for them, they are left to threads that are at work: see [`Handover`](crate::handover::Handover).
pub fn run_alone(node: &Arc<Node>, f: impl FnOnce(&mut Runner)) {
    if RUNNER.with_borrow(Option::is_none) {
        // The two results are not needed: no turn stays on the list of such a thread, and it gives its memory back itself.
        let _ = install_runner(Arc::clone(node));
        with_runner(node, |runner| runner.is_alone = true);
    }
    with_runner(node, |runner| {
        runner.is_awaited = true;
        f(runner);
    });
}

/// Runs `f` with the thread's runner; makes one for a thread that has none (tests, tools).
pub fn with_runner<T>(node: &Arc<Node>, f: impl FnOnce(&mut Runner) -> T) -> T {
    RUNNER.with_borrow_mut(|place| match place {
        Some(runner) => f(runner),
        None => unreachable!("thread without a runner: node of {} shards", node.shards.len()),
    })
}

impl Drop for Runner {
    /// Leaves the duties on the list of a thread that ends to another thread, which runs turns until the stop is over. An
    /// actor whose duty is lost would never run again, whatever waits in its inbox.
    fn drop(&mut self) {
        self.node.handover.leaves(&self.more);
        self.node.handover.bequeath(&mut self.due);
    }
}

impl Runner {
    /// Gives back the memory that is kept for later turns.
    fn relax(&mut self) {
        self.buffers.close();
        self.bodies.close();
        self.count_idle();
        self.out = OutBuf::new();
    }

    /// Counts the buffers that are kept for large bodies as held by connections.
    fn count_idle(&mut self) {
        let idle_bytes = self.bodies.idle_bytes() as u64;
        if idle_bytes != self.idle_bytes {
            self.node.count_held_by_connections(self.idle_bytes, idle_bytes);
            self.idle_bytes = idle_bytes;
        }
    }

    /// Leaves a letter with a connection and runs the turns that follow from it. If the list has turns already, the thread has
    /// only stopped to look at its sockets: it goes on when each ready socket has left its letter.
    pub fn run_connection(&mut self, connection: &Arc<Connection>, letter: Letter) {
        let goes_on = !self.due.is_empty();
        self.post_connection(connection, letter);
        if !goes_on {
            self.work();
        }
    }

    /// Has a connection closed with `CONNECTION_FORCED`, as an operator's or the broker's own doing; its client is told this text.
    pub fn close_connection(&mut self, connection: &Arc<Connection>, text: String) {
        let close = ToSession::Close { code: ReplyCode::ConnectionForced, text };
        self.run_connection(connection, Letter::Session(close));
    }

    /// Leaves a letter with a shard and works off all that follows from it.
    pub fn run_shard(&mut self, group: GroupId, letter: ToShard) {
        self.outbox.shard(group, letter);
        self.post();
        self.work();
    }

    /// Gives the shards of a new node their first turns: their queues are filled.
    pub(crate) fn begin_shards(&mut self) {
        // `Node::new` took their duties.
        self.due.extend((0..self.node.shards.len()).map(Due::Shard));
        self.work();
    }

    /// Leaves a letter with the topology's owner and works off all that follows from it.
    pub fn run_meta(&mut self, letter: ToMeta) {
        self.outbox.meta.push(letter);
        self.post();
        self.work();
    }

    /// Delivers all letters and works off all that follows from them.
    pub fn run_outbox(&mut self, letters: Outbox) {
        letters.append_to(&mut self.outbox);
        self.post();
        self.work();
    }

    /// Tells every connection that publishers are blocked, or no longer, and works off all that follows from it.
    pub fn announce(&mut self, resource: Resource, change: AlarmChange) {
        self.tell_alarm(resource, change);
        self.work();
    }

    /// What is short at the node that leads has changed.
    pub(crate) fn tell_connections_of_alarm(&mut self) {
        self.post_connections(|| Letter::Alarm);
        self.work();
    }

    /// Connections go on with what their clients have sent.
    pub(crate) fn go_on_reading(&mut self) {
        self.post_connections(|| Letter::More);
        self.work();
    }

    fn post_connections(&mut self, letter: impl Fn() -> Letter) {
        for connection in self.node.connections() {
            self.post_connection(&connection, letter());
        }
    }

    fn tell_alarm(&mut self, resource: Resource, change: AlarmChange) {
        say(&self.node, resource, change);
        self.post_connections(|| Letter::Alarm);
        if let Some(gateway) = &self.node.gateway {
            gateway.alarm(&self.node);
        }
        let name = match change {
            AlarmChange::Raised => "alarm.set",
            AlarmChange::Cleared => "alarm.cleared",
            AlarmChange::Moved => return,
        };
        let node = Arc::clone(&self.node);
        let topology = node.topology();
        if topology.wants_events() {
            let event = Event::new(name).with("source", resource.name());
            self.outbox.events.push(event.with("node", topology.event_node()));
        }
        drop(topology);
        self.post();
    }

    fn post_connection(&mut self, connection: &Arc<Connection>, letter: Letter) {
        if connection.actor.post_one(letter) {
            self.due.push_back(Due::Connection(Arc::clone(connection)));
        }
    }

    /// Works the list off.
    pub fn work(&mut self) {
        if !self.has_worked {
            self.has_worked = true;
            self.worked.worked.notify_one();
        }
        if self.is_alone {
            return self.work_alone();
        }
        let node = Arc::clone(&self.node);
        let mut turns = 0;
        let mut since_us = now_with_us().1;
        let until_us = since_us + LOOK_US;
        self.spent.look(since_us);
        node.handover.begins(&mut self.due);
        while turns < TURNS_MAX {
            if self.due.is_empty() {
                node.handover.take(&mut self.due);
            }
            let Some(due) = self.due.pop_front() else { break };
            turns += self.run(due);
            node.handover.share(&mut self.due);
            let now_us = now_with_us().1;
            self.turn_took(&node, since_us, now_us);
            since_us = now_us;
            if now_us >= until_us {
                break;
            }
        }
        node.handover.ends();
        if !self.due.is_empty() || node.handover.has_some() {
            self.more.notify_one();
        }
    }

    /// Works the whole list off, except for turns that other threads take. This thread runs the turns that a client waits
    /// for, but not for long: meanwhile its disk writes nothing, and the next client may wait for a write.
    fn work_alone(&mut self) {
        let node = Arc::clone(&self.node);
        let mut turns = 0;
        let mut since_us = now_with_us().1;
        let until_us = since_us + LOOK_US;
        self.spent.look(since_us);
        loop {
            let is_long = turns >= TURNS_MAX || since_us >= until_us;
            if !self.is_awaited || is_long {
                node.handover.leave(&mut self.due);
            }
            if is_long {
                node.handover.leave_and_ring(&mut self.due);
            }
            let Some(due) = self.due.pop_front() else { return };
            turns += self.run(due);
            let now_us = now_with_us().1;
            self.turn_took(&node, since_us, now_us);
            since_us = now_us;
        }
    }

    /// A turn, and what belongs to it, took from then to now.
    #[inline]
    fn turn_took(&mut self, node: &Node, since_us: u64, now_us: u64) {
        if now_us >= since_us + LONG_US {
            let doing = self.beat.doing();
            let what = match doing {
                Doing::Shard(_) | Doing::Meta => {
                    let About { letters, kinds: [first, last] } = self.about;
                    format!("{doing}: {letters} letters, {first} to {last}")
                }
                _ => doing.to_string(),
            };
            self.spent.took(&node.watched.lately, what, since_us, now_us);
        }
        self.spent.is_over();
        self.spent.look(now_us);
    }

    /// Runs what waited for a lease.
    pub(crate) fn go_on(&mut self) {
        let node = Arc::clone(&self.node);
        let Some(leading) = &node.leading else { return };
        self.due.extend(leading.take_parked());
        loop {
            let held = leading.take_held();
            if held.is_empty() {
                break;
            }
            for (group, letter) in held {
                self.outbox.shard(group, letter);
            }
            // Held letters are not held again.
            self.post_all(false);
        }
        self.work();
    }

    /// Runs a turn. Returns how many turns it counts as.
    fn run(&mut self, due: Due) -> usize {
        let due = match &self.node.leading {
            None => due,
            Some(leading) => match leading.park(due) {
                Some(due) => due,
                None => return 1,
            },
        };
        self.beat.begins(match &due {
            Due::Connection(connection) => Doing::Connection(connection.id().number()),
            Due::Shard(index) => Doing::Shard(*index),
            Due::Meta => Doing::Meta,
        });
        let mut counts = 1;
        match due {
            Due::Connection(connection) => counts = self.connection_turn(connection),
            Due::Shard(index) => self.shard_turn(index),
            Due::Meta => {
                if self.meta_turn() {
                    counts = LONG_META_TURN;
                }
            }
        }
        self.beat.ends();
        self.node.let_others_in();
        counts
    }

    /// Returns how many turns it counts as.
    fn connection_turn(&mut self, connection: Arc<Connection>) -> usize {
        if !connection.actor.pick_up(&mut self.connection_letters) {
            return 1;
        }
        let node = Arc::clone(&self.node);
        // After the letters were picked up: see `Letter::Alarm`.
        let alarm = node.alarms.alarm();
        let mut state = connection.actor.state();
        if !node.has_lease() && !Connection::says_farewell(&mut state, &mut self.connection_letters)
        {
            drop(state);
            self.due.push_back(Due::Connection(connection));
            return 1;
        }
        {
            let topology = node.topology();
            let mut work = Workplace {
                out: &mut self.out,
                outbox: &mut self.outbox,
                buffers: &self.buffers,
                bodies: &self.bodies,
                cipher: &mut self.cipher,
                unread: &node.unread,
                topology: &topology,
                alarm,
                names: node.names_hold(),
            };
            connection.turn(&mut state, &mut self.connection_letters, &mut work);
        }
        // Letters first, bytes second: a client that reads an answer finds its effect done or queued.
        self.post();
        let next = if !node.has_lease() && !Connection::is_leaving(&state) {
            // The lease was over meanwhile.
            Connection::put_off(&mut state, &mut self.out, &node.unread)
        } else {
            let topology = node.topology();
            let mut work = Workplace {
                out: &mut self.out,
                outbox: &mut self.outbox,
                buffers: &self.buffers,
                bodies: &self.bodies,
                cipher: &mut self.cipher,
                unread: &node.unread,
                topology: &topology,
                alarm,
                names: node.names_hold(),
            };
            connection.write(&mut state, &mut work)
        };
        let brought = Connection::take_brought(&mut state);
        if let Some(gather) = &mut self.gather {
            gather.reads(brought);
        }
        let (held_before, held) = Connection::count_held(&mut state);
        if connection.is_done() {
            // Before it is forgotten, and under its lock: see `Ended`.
            node.ended.keep(connection.id(), &mut state);
        }
        drop(state);
        if self.out.capacity() > KEPT_OUTPUT {
            self.out = OutBuf::new();
        }
        self.post();
        self.count_idle();
        if held != held_before {
            node.count_held_by_connections(held_before, held);
        }
        if held != held_before || !node.is_filled() {
            self.check_alarm();
        }
        if connection.is_done() {
            node.forget(connection.id());
        } else if next != Next::Letter {
            // This thread has the duty: the letter only keeps it.
            let _ = connection.actor.post_one(Letter::More);
        }
        self.due.push_back(Due::Connection(connection));
        if next == Next::Piece { LONG_WRITE } else { 1 }
    }

    fn shard_turn(&mut self, index: usize) {
        let node = Arc::clone(&self.node);
        let Some(shard) = node.shards.get(index) else { return };
        if !shard.actor.pick_up(&mut self.shard_letters) {
            return;
        }
        self.about = About::of(&self.shard_letters, ToShard::kind);
        let mut state = shard.actor.state();
        state.set_alarm(node.alarms.alarm());
        state.set_clock_step(step_ms());
        let has_more = {
            let topology = node.topology();
            let (now, us) = now_with_us();
            state.set_micros(us);
            state.set_pressed(self.pressure.look(&node.pressed, &self.spent, us));
            state.turn(&mut self.shard_letters, &topology, now, &mut self.outbox)
        };
        shard.held_bytes.store(state.held_bytes() + state.idle_bytes(), Ordering::Relaxed);
        self.is_awaited &= state.is_awaited();
        let due = state.next_timeout().map_or(u64::MAX, |at| at.ms());
        // The timers hear of an earlier time only. With a later one the timer fires in vain and reads the new time.
        if due < shard.due_ms.fetch_min(due, Ordering::AcqRel) {
            node.timers_changed.notify_one();
        }
        drop(state);
        if has_more {
            let _ = shard.actor.post_one(ToShard::Continue);
        }
        self.writer = node.gateway.as_ref().map(|_| node.homes.group_at(index));
        self.post();
        self.writer = None;
        self.check_alarm();
        self.due.push_back(Due::Shard(index));
    }

    fn check_alarm(&mut self) {
        if let Some(change) = self.node.check_memory() {
            self.tell_alarm(Resource::Memory, change);
        }
    }

    /// Whether there is more to do.
    fn meta_turn(&mut self) -> bool {
        let node = Arc::clone(&self.node);
        if !node.meta().pick_up(&mut self.meta_letters) {
            return false;
        }
        self.about = About::of(&self.meta_letters, ToMeta::kind);
        let has_more = {
            let mut state = node.meta().state();
            let mut topology = node.topology_mut();
            state.turn(&mut self.meta_letters, &mut topology, &mut self.outbox);
            node.count_names(&topology);
            if let Some(gateway) = &node.gateway {
                gateway.names_changed(state.take_changes(), &mut self.outbox);
                gateway.names_are_durable(&state);
            }
            state.has_work()
        };
        self.post();
        self.check_alarm();
        self.due.push_back(Due::Meta);
        has_more
    }

    /// Puts the letters of a turn into their inboxes, and actors whose duty that brings on the list.
    fn post(&mut self) {
        let holds_back = self.node.leading.as_ref().is_some_and(|it| it.holds_back());
        self.post_all(holds_back);
    }

    fn post_all(&mut self, holds_back: bool) {
        let Self { node, due, outbox, writer, .. } = self;
        let (is_filled, writer) = (node.is_filled(), *writer);
        leveret_node::post(outbox, &mut Inboxes { node, due, writer, is_filled, holds_back });
    }
}

/// The inboxes of a node, for a thread that takes the duty of those who have nobody to run them.
struct Inboxes<'a> {
    node: &'a Arc<Node>,
    due: &'a mut VecDeque<Due>,
    /// The shard's group whose letters these are, if they go to other nodes, too.
    writer: Option<GroupId>,
    is_filled: bool,
    /// Messages are not to be given out yet.
    holds_back: bool,
}

impl Inboxes<'_> {
    /// What a node of sessions tells its sessions at once: that they pause, or go on, or that nobody does what they ask for.
    fn tell(&mut self, out: Outbox) {
        for (id, letter) in out.sessions {
            if let Some(Recipient::Connection(connection)) = self.node.recipient(id)
                && connection.actor.post_one(Letter::Session(letter))
            {
                self.due.push_back(Due::Connection(connection));
            }
        }
    }
}

impl leveret_node::Inboxes for Inboxes<'_> {
    #[inline]
    fn to_shard(&mut self, group: GroupId, letter: ToShard) -> usize {
        if let Some(away) = &self.node.away {
            let mut out = Outbox::default();
            away.to_shard(group, letter, &mut out);
            self.tell(out);
            return 0;
        }
        let Some(index) = self.node.homes.index_of(group) else { return 0 };
        let Some(shard) = self.node.shards.get(index) else { return 0 };
        let letter = match self.node.leading.as_ref().filter(|_| self.holds_back) {
            None => letter,
            Some(leading) => match leading.hold(group, letter) {
                Some(letter) => letter,
                None => return 0,
            },
        };
        if !self.is_filled {
            // Its first turn counts what it has then.
            shard.held_bytes.fetch_add(waiting_bytes(&letter), Ordering::Relaxed);
        }
        let (is_ours, waiting) = shard.actor.post_counted(letter);
        if is_ours {
            self.due.push_back(Due::Shard(index));
        }
        waiting
    }

    #[inline]
    fn to_meta(&mut self, letters: Drain<'_, ToMeta>) {
        if let Some(away) = &self.node.away {
            let mut out = Outbox::default();
            away.to_meta(letters, &mut out);
            return self.tell(out);
        }
        if self.node.meta().post(letters) {
            self.due.push_back(Due::Meta);
        }
    }

    #[inline]
    fn to_session(&mut self, id: ConnectionId, letters: &mut Run<'_, '_>) {
        if let Some(away) = self.node.away.as_ref().filter(|away| away.id() != id.node()) {
            return away.to_session(id, letters);
        }
        if let Some(gateway) = &self.node.gateway
            && id.node() != NodeId::ALONE
        {
            return gateway.to_session(id, self.writer, letters);
        }
        match self.node.recipient(id) {
            Some(Recipient::Connection(connection)) => {
                // One lock for all of them.
                let is_ours = connection.actor.post(letters.map(Letter::Session));
                if is_ours {
                    self.due.push_back(Due::Connection(connection));
                }
            }
            Some(Recipient::Request(sender)) => {
                // The request may have given up: then nothing receives the answer.
                letters.for_each(|letter| _ = sender.send(letter));
            }
            None => {}
        }
    }

    fn login(&mut self, login: Login, outbox: &mut Outbox) {
        self.node.logins.ask(self.node, login, outbox);
    }

    fn asked(&mut self, asked: Asked) {
        self.node.logins.ask_rights(self.node, asked);
    }

    fn events(&mut self, outbox: &mut Outbox) {
        match &self.node.away {
            Some(away) => away.events(std::mem::take(&mut outbox.events)),
            None => events::tell(self.node, outbox),
        }
    }

    fn steps(&mut self, steps: &mut Vec<Step>) {
        match &self.node.away {
            Some(away) => away.steps(std::mem::take(steps)),
            None => self.node.paths.keep(steps),
        }
    }

    fn news(&mut self, news: &mut Vec<(GroupId, StreamNews)>) {
        match &self.node.gateway {
            Some(gateway) => gateway.news(news),
            None => news.clear(),
        }
    }

    fn answers(&mut self, answers: &mut Vec<Answered>, _: &mut Outbox) {
        match &self.node.gateway {
            Some(gateway) => gateway.answers(answers),
            None => answers.clear(),
        }
    }

    fn failed(&mut self, _why: String) {
        self.node.failed.notify_one();
    }
}
