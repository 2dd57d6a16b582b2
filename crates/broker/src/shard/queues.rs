//! The queues of a shard, and what their turns need: which are to be dispatched, when their time comes, what left them.
//!
//! Hot path: a call of a queue costs one look for it.
//!
//! A queue says what leaves it to whoever calls it. So it is called by [`call`](Queues::call), or by [`change`](Queues::change)
//! if there may be something to dispatch afterwards: both note what left until somebody [takes](Queues::take_left) it.
//!
//! Invariants: a queue is in `touched` once if it says so, and in `timers` once, at the time that it says; `bytes` is the
//! sum of what the queues were last counted at.

mod rest;

use std::collections::{BTreeSet, VecDeque};

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use leveret_queue::{Deliver, Dispatched, Left, Queue, Time};
use leveret_topology::{ConfirmOptions, QueueId, QueueKind, ReplicationConfirm, Topology};

use super::Map;
use super::jobs::cost;
use super::numbers::Use;
use super::ports::Chain;
use super::store::{Odds, Reading};
use crate::message::{Publish, ReplyTo, Settlement};
use rest::{Rest, Resting};

/// A queue and what the shard keeps beside it.
#[derive(Debug)]
pub(super) struct Hosted {
    pub(super) queue: Queue,
    pub(super) consumers: Chain,
    pub(super) reading: Reading,
    /// For messages published from now on. To be changed by [`Queues::set_confirm`] alone.
    pub(super) confirm: ConfirmOptions,
    /// It survives a restart.
    pub(super) is_durable: bool,
    /// [`Store::flow_mark`](super::store::Store::flow_mark) when one of its publishers last paused.
    pub(super) flow_in: u64,
    /// What [`Store::hold`](super::store::Store::hold) said when it was last given a message whose publisher waits for disk or
    /// consumer.
    pub(super) awaited_in: u64,
    /// Whether its consumers are quicker than the disk.
    pub(super) odds: Odds,
    pub(super) kind: QueueKind,
    pub(super) usage: Use,
    /// The last round of [`Sampling`](super::numbers::Sampling) that looked at it.
    pub(super) seen_in: u32,
    /// When [`Queues::timers`] has it.
    timer: Option<Time>,
    is_touched: bool,
    rest: Rest,
    /// [`Queues::served`] when it last delivered something.
    served_in: u64,
    /// Its part of [`Queues::bytes`].
    counted_bytes: u64,
}

impl Hosted {
    fn new(named: &leveret_topology::Queue, now: Time) -> Self {
        Self {
            queue: Queue::new(named.options(), now),
            consumers: Chain::default(),
            reading: Reading::default(),
            confirm: named.confirm_options(),
            is_durable: named.durable,
            flow_in: u64::MAX,
            awaited_in: u64::MAX,
            odds: Odds::default(),
            kind: named.kind,
            usage: Use::new(now),
            seen_in: 0,
            timer: None,
            is_touched: false,
            rest: Rest::default(),
            served_in: 0,
            counted_bytes: 0,
        }
    }
}

/// All of a shard.
#[derive(Debug, Default)]
pub(super) struct Queues {
    all: Map<QueueId, Box<Hosted>>,
    /// Those to dispatch at the end of the turn.
    touched: VecDeque<QueueId>,
    timers: BTreeSet<(Time, QueueId)>,
    /// What left queues in this turn and is not worked off yet.
    left: Vec<(QueueId, Left)>,
    /// Scratch for one call of a queue.
    scratch: Vec<Left>,
    /// Deleted here, but perhaps still named in the topology: not to be made again.
    dying: Dying,
    resting: Resting,
    /// How often a queue delivered something.
    served: u64,
    /// What they take for their messages, in bytes.
    bytes: u64,
    /// Those that want their messages on the disks of all members in contact.
    for_all: usize,
}

/// Deliveries a queue may make before others get their turn.
pub(super) const DISPATCH_BUDGET: u32 = 2048;

/// Queues that are put in order without memory for it.
const SORTED_IN_PLACE: usize = 20;

/// Room that the lists of what left queues may keep.
const KEPT_LEFT: usize = 64 * 1024;

impl Queues {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    #[inline]
    pub(super) fn get(&self, id: QueueId) -> Option<&Hosted> {
        self.all.get(&id).map(Box::as_ref)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: QueueId) -> Option<&mut Hosted> {
        self.all.get_mut(&id).map(Box::as_mut)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (QueueId, &Hosted)> {
        self.all.iter().map(|(&id, hosted)| (id, &**hosted))
    }

    /// Has a queue do something, and notes what leaves it. None if it is not here.
    #[inline]
    pub(super) fn call<T>(
        &mut self,
        id: QueueId,
        what: impl FnOnce(&mut Hosted, &mut Vec<Left>) -> T,
    ) -> Option<T> {
        let hosted = self.all.get_mut(&id)?;
        let result = what(hosted, &mut self.scratch);
        note_left(&mut self.scratch, id, &mut self.left);
        Some(result)
    }

    /// The same, and it is dispatched at the end of the turn.
    #[inline]
    pub(super) fn change<T>(
        &mut self,
        id: QueueId,
        what: impl FnOnce(&mut Hosted, &mut Vec<Left>) -> T,
    ) -> Option<T> {
        let hosted = self.all.get_mut(&id)?;
        let result = what(hosted, &mut self.scratch);
        touch(hosted, id, &mut self.touched);
        note_left(&mut self.scratch, id, &mut self.left);
        Some(result)
    }

    /// Takes messages that are to be settled later out of the ready ones, for nobody, and names them anew. Those that an earlier
    /// term lent, and that are not there, are settled.
    #[cold]
    pub(super) fn take_out_all(&mut self, settlements: &mut Vec<Settlement>) {
        settlements.retain_mut(|one| {
            let taken = self.call(one.queue, |hosted, _| hosted.queue.take_out(&[one.offset]));
            match taken.as_deref() {
                Some(&[(_, unacked)]) => one.unacked = unacked,
                _ => return !one.unacked.is_lent(),
            }
            true
        });
    }

    /// Nothing is given out of any, and nothing leaves, until it is known who has what.
    #[cold]
    pub(super) fn hold_all(&mut self) {
        self.all.values_mut().for_each(|hosted| hosted.queue.stand_still());
    }

    /// Whether something left and is not worked off.
    #[inline]
    pub(super) fn has_left(&self) -> bool {
        !self.left.is_empty()
    }

    /// What left, in order.
    pub(super) fn take_left(&mut self) -> Vec<(QueueId, Left)> {
        std::mem::take(&mut self.left)
    }

    /// Keeps the room of what was [taken](Self::take_left), unless something left meanwhile.
    pub(super) fn keep_room(&mut self, room: Vec<(QueueId, Left)>) {
        if self.left.is_empty() {
            self.left = room;
        }
    }

    /// Makes a queue, without messages.
    pub(super) fn host(&mut self, named: &leveret_topology::Queue, now: Time) {
        let hosted = Hosted::new(named, now);
        self.for_all += usize::from(is_for_all(&hosted.confirm));
        if let Some(before) = self.all.insert(named.id, Box::new(hosted)) {
            self.for_all -= usize::from(is_for_all(&before.confirm));
        }
        self.touch(named.id);
    }

    /// Changes what a queue's publishers wait for. Gives what that was; none if the queue is not here.
    pub(super) fn set_confirm(
        &mut self,
        id: QueueId,
        confirm: ConfirmOptions,
    ) -> Option<ConfirmOptions> {
        let hosted = self.all.get_mut(&id)?;
        self.for_all += usize::from(is_for_all(&confirm));
        self.for_all -= usize::from(is_for_all(&hosted.confirm));
        Some(std::mem::replace(&mut hosted.confirm, confirm))
    }

    /// Whether some want their messages on the disks of all members in contact.
    #[inline]
    pub(super) fn are_for_all(&self) -> bool {
        self.for_all > 0
    }

    /// Whether one of these does. If it is not known which they are, all count.
    pub(super) fn is_one_for_all(&self, ids: &[QueueId]) -> bool {
        let is_one = |id: &QueueId| self.get(*id).is_some_and(|it| is_for_all(&it.confirm));
        self.are_for_all() && (ids.is_empty() || ids.iter().any(is_one))
    }

    /// Those of the queues of these messages that do, each once.
    pub(super) fn those_for_all<'a>(
        &self,
        messages: impl IntoIterator<Item = &'a Publish>,
    ) -> Vec<QueueId> {
        let targets = messages.into_iter().flat_map(|message| message.targets.iter().copied());
        let mut all: Vec<_> = targets.filter(|id| self.is_one_for_all(&[*id])).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Whether the queue gives messages out that are not agreed upon yet.
    #[inline]
    pub(super) fn give_before_commit(&self, id: QueueId) -> bool {
        self.get(id).is_some_and(|it| it.confirm.before_commit)
    }

    /// Whether the queue was deleted here.
    pub(super) fn is_dying(&self, id: QueueId) -> bool {
        self.dying.contains(id)
    }

    /// Whether the queue was deleted here for this asker, who is told when its name is gone.
    #[cold]
    pub(super) fn was_deleted_for(&self, id: QueueId, asked: ReplyTo) -> bool {
        self.dying.all.get(&id) == Some(&Some(asked))
    }

    /// The queue is deleted, for whoever asked.
    pub(super) fn remove(&mut self, id: QueueId, asked: Option<ReplyTo>) -> Option<Box<Hosted>> {
        let hosted = self.all.remove(&id)?;
        self.bytes -= hosted.counted_bytes;
        self.for_all -= usize::from(is_for_all(&hosted.confirm));
        if let Some(at) = hosted.timer {
            self.timers.remove(&(at, id));
        }
        self.dying.add(id, asked);
        Some(hosted)
    }

    /// Takes all queues out: they are to be made again. Those that were deleted are not.
    pub(super) fn forget_all(&mut self) -> impl Iterator<Item = Hosted> + use<> {
        let (dying, served) = (std::mem::take(&mut self.dying), self.served);
        let before = std::mem::replace(self, Self { dying, served, ..Self::default() });
        before.all.into_values().map(|hosted| *hosted)
    }

    /// Gives a queue's consumers what they may take, for about so many units of work, and looks at its timer. Says what was
    /// done, and what it cost.
    #[inline]
    pub(super) fn dispatch(
        &mut self,
        id: QueueId,
        allowed: u64,
        now: Time,
        to: &mut impl Deliver,
    ) -> Option<(&mut Hosted, Dispatched)> {
        let hosted = self.all.get_mut(&id)?;
        hosted.is_touched = false;
        let mut budget = u64::from(DISPATCH_BUDGET).min(allowed).max(1) as u32;
        if hosted.queue.options().dead_letter {
            // What leaves it may cost much more than what it gives.
            budget = budget.min(DISPATCH_BUDGET / cost::DEAD_LETTER as u32);
        }
        let dispatched = hosted.queue.dispatch(now, to, &mut self.scratch, budget);
        note_left(&mut self.scratch, id, &mut self.left);
        self.bytes -= hosted.counted_bytes;
        self.bytes += self.resting.used(hosted, id, now);
        let is_left = hosted.queue.has_ready() && !dispatched.more && !dispatched.waits;
        hosted.usage.dispatched(is_left, now);
        if dispatched.delivered > 0 {
            self.served += 1;
            hosted.served_in = self.served;
        }
        set_timer(hosted, id, &mut self.timers);
        Some((hosted, dispatched))
    }

    /// Marks the queue for dispatch and for a look at its timer.
    #[inline]
    pub(super) fn touch(&mut self, id: QueueId) {
        if let Some(hosted) = self.all.get_mut(&id) {
            touch(hosted, id, &mut self.touched);
        }
    }

    /// The queue is not to be dispatched, though it was the [next one](Self::next_touched).
    #[cold]
    pub(super) fn untouch(&mut self, id: QueueId) {
        if let Some(hosted) = self.all.get_mut(&id) {
            hosted.is_touched = false;
        }
    }

    /// Whether the queue is over its length, and drops its head for that.
    #[cold]
    pub(super) fn is_to_be_cut(&self, id: QueueId) -> bool {
        self.get(id).is_some_and(|hosted| hosted.queue.is_to_be_cut())
    }

    /// Whether queues are to be dispatched.
    pub(super) fn are_touched(&self) -> bool {
        !self.touched.is_empty()
    }

    /// The next one to be dispatched.
    pub(super) fn next_touched(&mut self) -> Option<QueueId> {
        self.touched.pop_front()
    }

    /// There may not be room for all: the queue that has waited longest comes first.
    #[cold]
    pub(super) fn order_touched(&mut self) {
        let Self { all, touched, .. } = self;
        let served_in = |id: &QueueId| all.get(id).map(|hosted| hosted.served_in);
        let touched = touched.make_contiguous();
        if touched.len() <= SORTED_IN_PLACE {
            touched.sort_by_key(|id| (served_in(id), *id));
        } else {
            // Each is looked up once: there may be as many as there are queues, turn after turn.
            touched.sort_by_cached_key(|id| (served_in(id), *id));
        }
    }

    /// A queue whose time has come, and when it came.
    pub(super) fn next_due(&mut self, now: Time) -> Option<(Time, QueueId)> {
        let due = *self.timers.first().filter(|(at, _)| *at <= now)?;
        self.timers.remove(&due);
        if let Some(hosted) = self.all.get_mut(&due.1) {
            hosted.timer = None;
        }
        Some(due)
    }

    /// A queue that was due is due still: there is more to do.
    pub(super) fn is_due_still(&mut self, at: Time, id: QueueId) {
        if let Some(hosted) = self.all.get_mut(&id) {
            self.timers.insert((at, id));
            hosted.timer = Some(at);
        }
    }

    /// The queue was used.
    pub(super) fn look_at_timer(&mut self, id: QueueId) {
        if let Some(hosted) = self.all.get_mut(&id) {
            set_timer(hosted, id, &mut self.timers);
        }
    }

    pub(super) fn are_due(&self, now: Time) -> bool {
        self.timers.first().is_some_and(|&(at, _)| at <= now)
    }

    /// When something is to be done although nobody wrote to a queue.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        let timer = self.timers.first().map(|&(at, _)| at);
        timer.into_iter().chain(self.resting.at()).min()
    }

    /// Has queues that rested give back what they keep for speed.
    pub(super) fn relax(&mut self, now: Time) {
        self.resting.relax(&mut self.all, now);
    }

    /// A turn ends. A burst (a purge, an expiry of many) must not keep its memory for ever.
    pub(super) fn end_turn(&mut self, topology: &Topology) {
        self.dying.forget_dead(topology);
        if self.left.capacity() > KEPT_LEFT && self.left.is_empty() {
            self.left = Vec::new();
        }
        if self.scratch.capacity() > KEPT_LEFT && self.scratch.is_empty() {
            self.scratch = Vec::new();
        }
    }
}

fn is_for_all(confirm: &ConfirmOptions) -> bool {
    confirm.replication == ReplicationConfirm::All
}

/// Marks a queue for dispatch, once.
#[inline]
fn touch(hosted: &mut Hosted, id: QueueId, touched: &mut VecDeque<QueueId>) {
    if !hosted.is_touched {
        hosted.is_touched = true;
        touched.push_back(id);
    }
}

/// Moves what one call of a queue said to the list of all that left.
#[inline]
fn note_left(scratch: &mut Vec<Left>, id: QueueId, left: &mut Vec<(QueueId, Left)>) {
    if !scratch.is_empty() {
        left.extend(scratch.drain(..).map(|one| (id, one)));
    }
}

/// Keeps [`Queues::timers`] equal to what the queue wants.
#[inline]
fn set_timer(hosted: &mut Hosted, id: QueueId, timers: &mut BTreeSet<(Time, QueueId)>) {
    let wanted = hosted.queue.next_timeout();
    if wanted != hosted.timer {
        if let Some(at) = hosted.timer {
            timers.remove(&(at, id));
        }
        if let Some(at) = wanted {
            timers.insert((at, id));
        }
        hosted.timer = wanted;
    }
}

/// Queues that were deleted here and that the names may still have: these go in the order in which they were deleted.
#[derive(Debug, Default)]
struct Dying {
    /// And who is told when the name is gone.
    all: HashMap<QueueId, Option<ReplyTo>, FixedState>,
    /// First the one that was deleted first.
    order: VecDeque<QueueId>,
}

impl Dying {
    fn add(&mut self, id: QueueId, asked: Option<ReplyTo>) {
        if self.all.insert(id, asked).is_none() {
            self.order.push_back(id);
        }
    }

    fn contains(&self, id: QueueId) -> bool {
        self.all.contains_key(&id)
    }

    /// Forgets those whose names are gone, up to one whose name is there.
    fn forget_dead(&mut self, topology: &Topology) {
        while let Some(id) = self.order.pop_front_if(|id| topology.queue_by_id(*id).is_none()) {
            self.all.remove(&id);
        }
    }
}
