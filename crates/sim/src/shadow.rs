//! What must be true of every message, kept beside the broker and told of everything that clients do
//! and see.
//!
//! Three sources, from weak to strong: what a client *sent* (the broker may never have read it), what it
//! *knows* (a confirm, or any answer on the channel to something sent later), and what a shard *gave
//! out* (taken from its letters, so exact in order and in count whatever then happens to the socket).
//!
//! A check that fails is an `Err` with what was expected. Checks draw no random numbers.

use std::collections::{BTreeMap, BTreeSet};

use crate::plan::{DEAD, Kind, QueueIndex, Rule};
use leveret_broker::message::{ConnectionId, NodeId};

/// A message of the simulation. Carried in the property `message-id`.
pub(crate) type MessageIndex = usize;

/// A check's outcome; the text says what is wrong.
pub(crate) type Check<T = ()> = Result<T, String>;

/// What the publisher knows of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Knowledge {
    /// It was sent in a transaction that is not committed, and perhaps never will be.
    Held,
    /// It was sent.
    Sent,
    /// An answer to something later on the channel came: the broker has read it.
    Read,
    /// `tx.commit-ok`.
    Stored,
    /// `basic.ack`.
    Acked,
    /// `basic.nack`.
    Nacked,
}

/// A published message.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    /// The channel it was published on.
    pub(crate) publisher: u32,
    pub(crate) size: usize,
    pub(crate) targets: Vec<QueueIndex>,
    pub(crate) knowledge: Knowledge,
    pub(crate) returned: bool,
    /// `delivery_mode` 2.
    is_persistent: bool,
    /// Some queue may have it after a restart, whatever it says of itself.
    may_survive: bool,
    /// Starts of the broker before it was published, and those and losses.
    life: u32,
    epoch: u32,
    /// Its publisher's node keeps it until it is stored, whatever becomes of the node with the shards.
    is_kept: bool,
    /// A disk was full or failed before its publisher was answered.
    had_trouble: bool,
    /// The transaction it was committed in.
    tx: Option<usize>,
}

/// A transaction whose commit was sent.
#[derive(Clone, Debug)]
struct Tx {
    /// Starts of the broker before that, and losses.
    epoch: u32,
    /// Acked in it.
    acked: Vec<(MessageIndex, QueueIndex)>,
    /// A message of it was there after a restart.
    has_survived: bool,
}

/// One message in one queue.
#[derive(Clone, Copy, Debug, Default)]
struct QueuedMessage {
    /// Times that the shard gave it out, and how it was marked the last time.
    given: u32,
    redelivered: bool,
    /// How it ended, as far as its consumer can tell.
    end: End,
    /// The consumer knows that the broker has read its ack or reject.
    is_certain: bool,
    /// And that a crash does not undo it.
    is_final: bool,
    /// It was given to a consumer that does not ack.
    no_ack: bool,
    /// The connection it was given to last: what others still say of it is out of date.
    holder: ConnectionId,
    /// Starts of the broker before it was given out the last time, and losses.
    epoch: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum End {
    #[default]
    None,
    /// Acked, or given to a consumer that does not ack.
    Acked,
    /// Rejected for good.
    Rejected,
    /// Purged, before anybody got it.
    Purged,
}

/// How a consumer ended with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    Ack,
    Reject,
    Requeue,
}

/// What is known of a queue that stays until it is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueFate {
    /// Its declaration was sent.
    Asked,
    /// `queue.declare-ok`.
    There,
    /// Its deletion was sent.
    Going,
    /// `queue.delete-ok`.
    Gone,
}

/// Totals of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Messages sent by clients.
    pub published: u64,
    /// Confirms that came: acks.
    pub acked: u64,
    /// Confirms that came: nacks.
    pub nacked: u64,
    /// Messages that came back as unroutable.
    pub returned: u64,
    /// Messages of transactions that were committed.
    pub committed: u64,
    /// Messages that shards gave out.
    pub given: u64,
    /// Messages that were redelivered the first time: meant for a consumer that went before it got them.
    pub taken_back: u64,
    /// Messages that were given out for the first time after a crash they had survived.
    pub recovered: u64,
    /// Messages that clients got.
    pub received: u64,
    /// Direct replies that came.
    pub answered: u64,
    /// Consumers that were refused because of an exclusive one.
    pub shut_out: u64,
    /// Channels that were closed because a delivery was kept for too long.
    pub timed_out: u64,
    /// Connections that were reset.
    pub resets: u64,
    /// Connections whose client said nothing more, and that the broker found out.
    pub found_dead: u64,
    /// Crashes of the process, and of the machine.
    pub crashes: u64,
    /// Those of them with which the power went.
    pub power_cuts: u64,
    /// Stops in good order.
    pub stops: u64,
    /// Messages that came back from disks, once per queue.
    pub restored: u64,
    /// Messages that an operator moved or deleted.
    pub moved: u64,
    /// Times that a disk was full.
    pub full: u64,
    /// Times that a disk failed.
    pub failed: u64,
    /// Times that all was on the disks.
    pub rests: u64,
    /// Acks in transactions whose commit was answered when others had them.
    pub acks_stored: u64,
    /// Messages that were in a queue for sure when it was purged.
    pub purged: u64,
    /// Queues that a client knows to be deleted, and that were to stay until then.
    pub deleted: u64,
    /// Crashes that lost the end of a log.
    pub cuts: u64,
    /// Messages that were there before, and that came late when their queue was made again.
    pub late: u64,
    /// Times that shards lost the ends of their logs and went on.
    pub losses: u64,
    /// Connections that were not cut off by that.
    pub spared: u64,
    /// Letters that came twice.
    pub said_again: u64,
    /// Connections to a second node that went on when the node with the shards ended.
    pub outlived: u64,
    /// Channels of these that were closed as their queue had gone with that node.
    pub gone_with_leader: u64,
}

impl Totals {
    pub(crate) fn add(&mut self, other: &Self) {
        self.published += other.published;
        self.acked += other.acked;
        self.nacked += other.nacked;
        self.returned += other.returned;
        self.committed += other.committed;
        self.given += other.given;
        self.taken_back += other.taken_back;
        self.received += other.received;
        self.answered += other.answered;
        self.shut_out += other.shut_out;
        self.timed_out += other.timed_out;
        self.resets += other.resets;
        self.found_dead += other.found_dead;
        self.recovered += other.recovered;
        self.crashes += other.crashes;
        self.power_cuts += other.power_cuts;
        self.stops += other.stops;
        self.restored += other.restored;
        self.moved += other.moved;
        self.full += other.full;
        self.failed += other.failed;
        self.rests += other.rests;
        self.said_again += other.said_again;
        self.acks_stored += other.acks_stored;
        self.purged += other.purged;
        self.deleted += other.deleted;
        self.cuts += other.cuts;
        self.late += other.late;
        self.losses += other.losses;
        self.spared += other.spared;
        self.outlived += other.outlived;
        self.gone_with_leader += other.gone_with_leader;
    }
}

/// The model.
#[derive(Debug)]
pub(crate) struct Shadow {
    pub(crate) queues: Vec<Kind>,
    by_name: BTreeMap<String, QueueIndex>,
    messages: Vec<Message>,
    places: BTreeMap<(MessageIndex, QueueIndex), QueuedMessage>,
    /// Per queue, publisher and connection: the last message that was given out for the first time.
    last_given: BTreeMap<(QueueIndex, u32, ConnectionId), MessageIndex>,
    /// The same over all connections, for turns that are over.
    last_turn: BTreeMap<(QueueIndex, u32), MessageIndex>,
    /// What is given out for the first time in this turn.
    this_turn: Vec<(MessageIndex, QueueIndex, u32)>,
    /// Direct replies that did not come yet, and the channel that asked.
    answers: BTreeMap<MessageIndex, u32>,
    /// Queues that stay until they are deleted.
    pub(crate) kept: BTreeMap<QueueIndex, QueueFate>,
    /// All is drained: nobody wants a queue for himself any more.
    pub(crate) is_calm: bool,
    /// What is not read for a while is on disk only.
    has_disks: bool,
    /// What is committed was agreed upon, acks too.
    pub(crate) is_agreed: bool,
    /// A disk is full or has failed.
    pub(crate) has_trouble: bool,
    /// Starts of the broker after the first one.
    life: u32,
    /// These, and how often shards lost the ends of their logs.
    epoch: u32,
    /// The last of them that began with a crash or a loss.
    last_crash: u32,
    transactions: Vec<Tx>,
    /// An operator has looked at these, and may move them.
    pub(crate) looked_at: BTreeSet<MessageIndex>,
    /// Messages before this one may have been dead letters when a disk took nothing.
    refused: MessageIndex,
    pub(crate) totals: Totals,
}

impl Shadow {
    pub(crate) fn new(queues: Vec<Kind>, has_disks: bool) -> Self {
        let mut shadow = Self {
            queues: Vec::new(),
            by_name: BTreeMap::new(),
            messages: Vec::new(),
            places: BTreeMap::new(),
            last_given: BTreeMap::new(),
            last_turn: BTreeMap::new(),
            this_turn: Vec::new(),
            answers: BTreeMap::new(),
            kept: BTreeMap::new(),
            is_calm: false,
            has_disks,
            is_agreed: false,
            has_trouble: false,
            life: 0,
            epoch: 0,
            last_crash: 0,
            transactions: Vec::new(),
            looked_at: BTreeSet::new(),
            refused: 0,
            totals: Totals::default(),
        };
        queues.into_iter().for_each(|kind| _ = shadow.add_queue(kind));
        shadow
    }

    pub(crate) fn add_queue(&mut self, kind: Kind) -> QueueIndex {
        self.by_name.insert(kind.name.clone(), self.queues.len());
        self.queues.push(kind);
        self.queues.len() - 1
    }

    pub(crate) fn queue(&self, name: &str) -> Option<QueueIndex> {
        self.by_name.get(name).copied()
    }

    /// The state of a kept queue changes.
    pub(crate) fn keep(&mut self, queue: QueueIndex, from: QueueFate, to: QueueFate) {
        if let Some(kept) = self.kept.get_mut(&queue).filter(|kept| **kept == from) {
            *kept = to;
            self.totals.deleted += u64::from(to == QueueFate::Gone);
        }
    }

    /// After a restart: what was answered is so, what was not is one or the other.
    pub(crate) fn kept_is_back(&mut self, outlives: bool, has: impl Fn(&str) -> bool) -> Check {
        for (&queue, kept) in &mut self.kept {
            let name = &self.queues[queue].name;
            *kept = match (*kept, has(name)) {
                (QueueFate::There, false) => return Err(format!("queue {name} is gone")),
                (QueueFate::Gone, true) => {
                    return Err(format!("queue {name} was deleted and is back"));
                }
                // It is asked for again.
                (QueueFate::Asked, false) | (QueueFate::Going, true) if outlives => *kept,
                (_, true) => QueueFate::There,
                (_, false) => QueueFate::Gone,
            };
        }
        Ok(())
    }

    pub(crate) fn name(&self, queue: QueueIndex) -> &str {
        self.queues.get(queue).map_or("?", |kind| &kind.name)
    }

    /// A client is about to send a message; its index is to be its `message-id`.
    pub(crate) fn publish(
        &mut self,
        (publisher, from): (u32, ConnectionId),
        size: usize,
        targets: Vec<QueueIndex>,
        is_persistent: bool,
        is_confirming: bool,
        is_held: bool,
    ) -> MessageIndex {
        self.totals.published += 1;
        // Where others agree what anybody is told of is stored, whatever its delivery mode, and all that is in quorum queues.
        let is_persistent = is_persistent || self.is_agreed && (is_confirming || is_held);
        let is_kept = self.is_agreed && targets.iter().any(|&it| self.queues[it].is_quorum());
        let knowledge = if is_held { Knowledge::Held } else { Knowledge::Sent };
        self.messages.push(Message {
            publisher,
            size,
            targets,
            knowledge,
            returned: false,
            is_persistent,
            may_survive: is_persistent || is_kept,
            life: self.life,
            epoch: self.epoch,
            is_kept: from.node() != NodeId::ALONE,
            had_trouble: self.has_trouble,
            tx: None,
        });
        self.messages.len() - 1
    }

    pub(crate) fn message(&self, message: MessageIndex) -> Check<&Message> {
        self.messages.get(message).ok_or_else(|| format!("message {message} was never published"))
    }

    /// A transaction is about to be committed: these are published in it, and those acked.
    pub(crate) fn commit(
        &mut self,
        published: &[MessageIndex],
        acked: Vec<(MessageIndex, QueueIndex)>,
    ) {
        let tx = self.transactions.len();
        for &message in published {
            if let Some(message) = self.messages.get_mut(message) {
                message.knowledge = Knowledge::Sent;
                message.tx = Some(tx);
            }
            self.totals.committed += 1;
        }
        self.transactions.push(Tx { epoch: self.epoch, acked, has_survived: false });
    }

    /// The broker has read this message.
    pub(crate) fn known(&mut self, message: MessageIndex) {
        if let Some(message) = self.messages.get_mut(message)
            && message.knowledge == Knowledge::Sent
        {
            message.knowledge = Knowledge::Read;
        }
    }

    /// `tx.commit-ok` came for this message.
    pub(crate) fn stored(&mut self, message: MessageIndex) {
        if let Some(message) = self.messages.get_mut(message) {
            message.knowledge = Knowledge::Stored;
        }
    }

    /// A disk is full or fails, from now on or no longer.
    pub(crate) fn set_trouble(&mut self, has_trouble: bool) {
        self.has_trouble = has_trouble;
        self.refused = self.messages.len();
        for message in &mut self.messages {
            let is_open =
                matches!(message.knowledge, Knowledge::Held | Knowledge::Sent | Knowledge::Read);
            let may_come = message.life == self.life || message.is_kept;
            message.had_trouble |= has_trouble && is_open && may_come;
        }
    }

    /// The broker has started again.
    ///
    /// `outlives`: a second node did not, and keeps what its clients wrote.
    pub(crate) fn restarted(&mut self, is_clean: bool, outlives: bool) {
        self.life += 1;
        self.epoch += 1;
        if self.has_trouble {
            self.set_trouble(false);
        }
        if is_clean {
            self.totals.stops += 1;
            return self.all_is_on_disk();
        }
        self.totals.crashes += 1;
        self.last_crash = self.epoch;
        let stays = |holder: ConnectionId| outlives && holder.node() != NodeId::ALONE;
        self.undo(|place| stays(place.holder));
    }

    /// Shards lost what was not agreed upon: as after a crash, but what is under way to them may come yet. `keeps_acks`: an ack that the
    /// broker has read is kept until it is agreed upon.
    pub(crate) fn lost(&mut self, keeps_acks: bool) {
        self.epoch += 1;
        self.last_crash = self.epoch;
        self.totals.losses += 1;
        self.undo(|_| keeps_acks);
    }

    /// What is settled may be undone, but for what is on the disk, and for acks that are kept by the node of whom that says so.
    fn undo(&mut self, keeps_acks: impl Fn(&QueuedMessage) -> bool) {
        for (&(_, queue), place) in &mut self.places {
            let is_kept = keeps_acks(place)
                && place.end == End::Acked
                && !place.no_ack
                && !self.queues[queue].may_dead_letter;
            place.is_certain = place.is_final || is_kept && place.is_certain;
        }
    }

    /// What the broker knows is on its disks: no crash undoes a settlement that it has read.
    pub(crate) fn all_is_on_disk(&mut self) {
        for place in self.places.values_mut() {
            place.is_final |= place.is_certain;
        }
    }

    /// A confirm came.
    pub(crate) fn confirmed(&mut self, message: MessageIndex, ok: bool) -> Check {
        let Some(Message { knowledge, targets, had_trouble, .. }) = self.messages.get_mut(message)
        else {
            return Err(format!("message {message} was never published"));
        };
        if matches!(knowledge, Knowledge::Acked | Knowledge::Nacked) {
            return Err(format!("message {message} was confirmed twice"));
        }
        *knowledge = if ok { Knowledge::Acked } else { Knowledge::Nacked };
        if ok {
            self.totals.acked += 1;
            let waits = targets.iter().find(|&&target| {
                let place = self.places.get(&(message, target));
                let is_acked = place.is_some_and(|place| place.end == End::Acked);
                matches!(self.queues[target].rule, Rule::Ack | Rule::Lean) && !is_acked
            });
            return match waits {
                Some(&target) => Err(format!(
                    "message {message} is confirmed, and nobody acked it from {}",
                    self.queues[target].name
                )),
                None => Ok(()),
            };
        }
        self.totals.nacked += 1;
        let has_rule = targets.iter().any(|&target| self.queues[target].rule != Rule::Safe);
        if *had_trouble || has_rule {
            return Ok(());
        }
        if targets.iter().any(|&queue| self.queues.get(queue).is_some_and(|kind| kind.refuses)) {
            return Ok(());
        }
        Err(format!("message {message} was nacked, and none of its queues refuses"))
    }

    /// `basic.return` came.
    pub(crate) fn returned(&mut self, message: MessageIndex) -> Check {
        let Some(Message { targets, returned, knowledge, .. }) = self.messages.get_mut(message)
        else {
            return Err(format!("message {message} came back and was never published"));
        };
        if std::mem::replace(returned, true) {
            return Err(format!("message {message} came back twice"));
        }
        if matches!(knowledge, Knowledge::Acked | Knowledge::Nacked) {
            return Err(format!("message {message} came back after its confirm"));
        }
        // A fleeting queue may be gone.
        let steady = targets.iter().find(|&&queue| !self.queues[queue].is_fleeting());
        if let Some(&queue) = steady {
            return Err(format!("message {message} came back, {} takes it", self.name(queue)));
        }
        self.totals.returned += 1;
        Ok(())
    }

    /// A shard gave a message out to a connection.
    pub(crate) fn given(
        &mut self,
        connection: ConnectionId,
        message: MessageIndex,
        queue: QueueIndex,
        redelivered: bool,
        no_ack: bool,
    ) -> Check {
        let Self { queues, messages, places, last_given, this_turn, totals, .. } = self;
        let (life, epoch, last_crash) = (self.life, self.epoch, self.last_crash);
        let Some(sent) = messages.get(message) else {
            return Err(format!("phantom: message {message} was never published"));
        };
        let &Message { publisher, ref targets, knowledge, had_trouble, .. } = sent;
        let what = format_args!("message {message} from {}", queues[queue].name);
        let may_survive = sent.may_survive && queues[queue].survives();
        if sent.life < life && !may_survive && !sent.is_kept {
            return Err(format!("phantom: {what} is not durable and survived a restart"));
        }
        let is_dead_letter = queue == DEAD && targets.iter().any(|&t| queues[t].may_dead_letter);
        if !targets.contains(&queue) && !is_dead_letter {
            return Err(format!("phantom: {what} was not sent there"));
        }
        if knowledge == Knowledge::Held {
            return Err(format!("phantom: {what} was not committed"));
        }
        // One that was refused and is on its way to the dead letters stays on the disk until it is there.
        let may_be_back = sent.epoch < epoch && queues[queue].may_dead_letter;
        let is_known = queues[queue].rule == Rule::Safe && !had_trouble && !may_be_back;
        let is_refused = knowledge == Knowledge::Nacked && is_known;
        if is_refused && targets.len() == 1 && !is_dead_letter {
            return Err(format!("phantom: {what} was nacked"));
        }
        let place = places.entry((message, queue)).or_default();
        let (first, is_certain) = (place.given == 0, place.is_certain);
        let how = if place.end == End::Purged { "purged" } else { "settled" };
        place.given += 1;
        place.redelivered = redelivered;
        place.end = if no_ack { End::Acked } else { End::None };
        place.is_certain = no_ack;
        place.no_ack = no_ack;
        place.is_final = false;
        place.holder = connection;
        place.epoch = epoch;
        if sent.epoch < epoch
            && let Some(tx) = sent.tx
            && let Some(tx) = self.transactions.get_mut(tx)
        {
            tx.has_survived |= tx.epoch < epoch;
        }
        totals.given += 1;
        // A restart may undo that it left for the dead letters, but not that it got there: it dies twice.
        let may_be_another = queue == DEAD && sent.epoch < epoch;
        if is_certain && !may_be_another {
            return Err(format!("{what} came again after it was {how}"));
        }
        if !first && !redelivered && !may_be_another {
            return Err(format!("{what} is given out again, redelivered={redelivered}"));
        }
        if first && redelivered {
            let count = if sent.epoch < last_crash {
                &mut totals.recovered
            } else {
                &mut totals.taken_back
            };
            *count += 1;
        }
        if first && !redelivered && queues[queue].is_ordered {
            this_turn.push((message, queue, publisher));
            let last = last_given.entry((queue, publisher, connection)).or_insert(message);
            if *last > message {
                return Err(format!("order: {what} is given out after {last}"));
            }
            *last = message;
        }
        Ok(())
    }

    /// The turn of a shard is over. Within it only the order towards each connection can be seen;
    /// between turns the order over all connections must hold too.
    pub(crate) fn turn_is_over(&mut self) -> Check {
        let mut given = std::mem::take(&mut self.this_turn);
        given.sort_unstable();
        for (message, queue, publisher) in given.drain(..) {
            let last = self.last_turn.entry((queue, publisher)).or_insert(message);
            if *last > message {
                let (last, name) = (*last, self.name(queue));
                return Err(format!(
                    "order: message {message} from {name} is given out after {last}"
                ));
            }
            *last = message;
        }
        self.this_turn = given;
        Ok(())
    }

    /// A client got a message.
    pub(crate) fn received(
        &mut self,
        message: MessageIndex,
        queue: QueueIndex,
        redelivered: bool,
        body: &[u8],
    ) -> Check {
        let what = || format!("message {message} from {}", self.name(queue));
        let size = self.message(message)?.size;
        if body != body_of(message, size) {
            let len = body.len();
            return Err(format!("{} has {len} bytes of {size}, or others", what()));
        }
        match self.places.get(&(message, queue)) {
            None => return Err(format!("{} was not given out", what())),
            Some(place) if place.given == 1 && place.redelivered != redelivered => {
                return Err(format!("{} came with redelivered={redelivered}", what()));
            }
            Some(_) => {}
        }
        self.totals.received += 1;
        Ok(())
    }

    /// A message is the direct reply to another one.
    pub(crate) fn answers(&mut self, message: MessageIndex, request: MessageIndex) {
        if let Some(request) = self.messages.get(request) {
            self.answers.insert(message, request.publisher);
        }
    }

    /// A direct reply came to a channel: to the one that asked, at most once.
    pub(crate) fn answered(&mut self, message: MessageIndex, channel: u32, body: &[u8]) -> Check {
        let Message { size, knowledge, .. } = *self.message(message)?;
        let asked = self.answers.remove(&message);
        if asked != Some(channel) || knowledge == Knowledge::Held {
            return Err(format!(
                "phantom: direct reply {message} ({knowledge:?}) came to {channel}, asked by {asked:?}"
            ));
        }
        if body != body_of(message, size) {
            return Err(format!("direct reply {message} has {} bytes of {size}", body.len()));
        }
        self.totals.answered += 1;
        Ok(())
    }

    /// A client has sent its settlement.
    pub(crate) fn settled(
        &mut self,
        connection: ConnectionId,
        message: MessageIndex,
        queue: QueueIndex,
        how: Settled,
    ) {
        // One that is certain came to another channel meanwhile, which does not ack: this one was closed.
        let holds = |place: &&mut QueuedMessage| place.holder == connection && !place.is_certain;
        if let Some(place) = self.places.get_mut(&(message, queue)).filter(holds) {
            place.end = match how {
                Settled::Ack => End::Acked,
                Settled::Reject => End::Rejected,
                Settled::Requeue => End::None,
            };
        }
    }

    /// The broker has read the ack or reject of this message.
    pub(crate) fn certain(
        &mut self,
        connection: ConnectionId,
        message: MessageIndex,
        queue: QueueIndex,
    ) {
        if let Some(place) = self.places.get_mut(&(message, queue))
            && place.holder == connection
            && place.end != End::None
        {
            place.is_certain = true;
        }
    }

    /// `tx.commit-ok` came for this ack: what was agreed upon is not undone.
    pub(crate) fn ack_stored(
        &mut self,
        connection: ConnectionId,
        message: MessageIndex,
        queue: QueueIndex,
    ) {
        if let Some(place) = self.places.get_mut(&(message, queue))
            && self.is_agreed
            && place.holder == connection
            && place.end == End::Acked
        {
            place.is_final = true;
            self.totals.acks_stored += 1;
        }
    }

    /// Messages that are in a queue of which nobody got any: their publishers know.
    pub(crate) fn confirmed_in(&self, queue: QueueIndex) -> Vec<(MessageIndex, QueueIndex)> {
        let is_in = |(index, message): &(MessageIndex, &Message)| {
            matches!(message.knowledge, Knowledge::Acked | Knowledge::Stored)
                && (message.is_persistent || message.epoch == self.epoch)
                && message.targets.contains(&queue)
                && !self.places.contains_key(&(*index, queue))
        };
        let all = self.messages.iter().enumerate().filter(is_in);
        all.map(|(index, _)| (index, queue)).collect()
    }

    /// `queue.purge-ok` came: what was agreed upon is not undone.
    pub(crate) fn purged(&mut self, gone: &[(MessageIndex, QueueIndex)]) {
        for &of in gone {
            let place = self.places.entry(of).or_default();
            self.totals.purged += u64::from(!place.is_certain);
            (place.end, place.is_certain) = (End::Purged, true);
            place.is_final |= self.is_agreed;
        }
    }

    /// All queues are empty: nothing that a publisher was promised may be missing.
    pub(crate) fn nothing_is_lost(&self) -> Check {
        let Totals { given, taken_back, .. } = self.totals;
        // What is meant for a consumer while it is read from the disk is taken back more often.
        let most = 2 + given / if self.has_disks { 4 } else { 20 };
        if taken_back > most {
            return Err(format!(
                "{taken_back} of {given} messages were redelivered the first time"
            ));
        }
        self.transactions_are_whole()?;
        for (index, message) in self.messages.iter().enumerate() {
            for &queue in &message.targets {
                if self.is_promised(message, index, queue) && !self.is_accounted_for(index, queue) {
                    let place = self.places.get(&(index, queue));
                    return Err(format!(
                        "lost: message {index} in {}: {place:?}, {message:?}",
                        self.name(queue)
                    ));
                }
            }
        }
        Ok(())
    }

    /// What a transaction acked did not come back after a restart that something it published survived.
    fn transactions_are_whole(&self) -> Check {
        for tx in self.transactions.iter().filter(|tx| tx.has_survived) {
            for &(message, queue) in &tx.acked {
                let place = self.places.get(&(message, queue));
                let is_back = place.is_some_and(|place| place.epoch > tx.epoch);
                if is_back && !self.queues[queue].may_dead_letter && queue != DEAD {
                    let name = self.name(queue);
                    return Err(format!("half: {message} of {name} came again: {tx:?}"));
                }
            }
        }
        Ok(())
    }

    /// Whether a message may not vanish from a queue.
    fn is_promised(&self, message: &Message, index: MessageIndex, queue: QueueIndex) -> bool {
        let Kind { loses, dead_letters, is_safe_dead, rule, .. } = self.queues[queue];
        let is_astray = index < self.refused || message.had_trouble || self.has_trouble;
        if loses || dead_letters && !is_safe_dead && is_astray {
            return false;
        }
        // Without a confirm a full queue may refuse in silence.
        let is_refused = || message.targets.iter().any(|&target| self.queues[target].refuses);
        let is_in_doubt = || message.had_trouble || is_refused();
        let is_kept = message.epoch == self.epoch || message.is_persistent;
        match message.knowledge {
            Knowledge::Acked => is_kept,
            Knowledge::Stored => is_kept && !is_refused(),
            // Something else of its transaction is there.
            Knowledge::Sent | Knowledge::Read if self.has_survived(message) => {
                message.is_persistent && !is_refused()
            }
            // The disk may not know of it before its publisher is told.
            Knowledge::Read
                if matches!(rule, Rule::Ack | Rule::Changing) && message.epoch < self.epoch =>
            {
                false
            }
            Knowledge::Read if rule == Rule::Lean => false,
            Knowledge::Read => is_kept && message.epoch >= self.last_crash && !is_in_doubt(),
            Knowledge::Held | Knowledge::Sent | Knowledge::Nacked => false,
        }
    }

    fn has_survived(&self, message: &Message) -> bool {
        let tx = message.tx.and_then(|tx| self.transactions.get(tx));
        tx.is_some_and(|tx| tx.has_survived)
    }

    fn is_accounted_for(&self, message: MessageIndex, queue: QueueIndex) -> bool {
        let end = |queue| self.places.get(&(message, queue)).map_or(End::None, |place| place.end);
        let dead_letters = self.queues[queue].dead_letters;
        match end(queue) {
            End::Acked => true,
            End::Rejected if !dead_letters => true,
            _ => dead_letters && end(DEAD) != End::None,
        }
    }
}

impl Kind {
    fn is_fleeting(&self) -> bool {
        !self.is_steady
    }
}

/// The body of a message follows from its index, so that nothing need be kept to know it again.
pub(crate) fn body_of(message: MessageIndex, size: usize) -> Vec<u8> {
    let mut state = message as u64 ^ 0x5EED;
    let mut body = Vec::with_capacity(size + 8);
    while body.len() < size {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        body.extend_from_slice(&(state >> 8).to_le_bytes());
    }
    body.truncate(size);
    body
}
