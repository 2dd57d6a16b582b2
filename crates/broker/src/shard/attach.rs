//! A new term of a shard: who uses it says what it has, before anything is given out.
//!
//! ```text
//!   lose ---> Gathers -----------------------> CatchesUp ------------------> Over
//!             sessions attach; messages are    settlements of before the     questions are answered,
//!             taken; all else waits            term are done                 queues give out
//! ```
//!
//! From `Gathers` to `CatchesUp`: each node has said that all of its sessions have attached. Their consumers are there then, and
//! what they hold is unacked. From there to `Over`: all that the nodes had sent before is done. Until then a settlement
//! names a message by queue and offset alone, which may be among the ready ones: its session has let go of it, so nobody
//! claims it. What is neither claimed nor settled is ready, and marked redelivered.
//!
//! What was in no batch is gone with the shard of before, and its offset may be that of another message: nothing from before the
//! term is about one whose record is of this term.
//!
//! A message that is claimed may have come back before by such a settlement, and was given out again: that one ends nothing.
//!
//! Later a settlement of what was claimed has the name that an earlier term gave it. So claims are looked at first, as long as
//! there are any.

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use leveret_log::Log;
use leveret_queue::{ConsumerId, ConsumerSpec, Offset, Time, UnackedId};
use leveret_topology::{QueueId, Topology};

use super::ports::Listed;
use super::recover::mark;
use super::{Shard, queue_offset};
use crate::command::CommandStream;
use crate::message::{
    Attached, AttachedConsumer, Attachment, Claim, ConnectionId, NodeId, Outbox, ReplyTo, Settle,
    Settlement, ToSession, ToShard,
};
use crate::stream::{StreamClass, StreamId, Tag};

/// See the [module](self).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Over,
    Gathers,
    CatchesUp,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Attaching {
    stage: Stage,
    /// Records from here on are of this term.
    begins_at: Offset,
    /// What those have counts below these offsets: see [`Shard::missed_a_term`].
    below: Vec<(NodeId, Offset)>,
    /// Those who attach in this term.
    nodes: Vec<NodeId>,
    /// Of these, who have not yet.
    awaited: Vec<NodeId>,
    /// Letters up to these numbers are from before the term.
    until: Vec<(StreamId, u64)>,
    /// The last letters that came again: an earlier shard may have given out what is in them, and in those before.
    again: Vec<(StreamId, u64)>,
    /// Of nodes that are gone, for which nobody waits: letters up to these numbers are from before the term, too, though they are done in it.
    gone: Vec<(StreamId, u64)>,
    attachments: Vec<Attachment>,
    /// What is to wait, in order; of a numbered letter, with how much of it was done before.
    letters: Vec<(Option<(Tag, u32)>, ToShard)>,
    /// Auto-delete queues that had consumers.
    used: Vec<QueueId>,
    /// What sessions have from before the term.
    claimed: HashMap<(QueueId, Offset), Claimed, FixedState>,
}

/// A message that a session has from before the term.
#[derive(Clone, Copy, Debug)]
struct Claimed {
    /// The queue's name for it; none if it has left.
    unacked: Option<UnackedId>,
    /// Who counts it then.
    consumer: Option<ConsumerId>,
    /// Whose node has it, and behind which numbers it was claimed.
    node: NodeId,
    behind: [u64; 2],
}

impl Attaching {
    /// Those are to attach, and auto-delete queues that had consumers are to have some then. What waited in an earlier term
    /// waits still, but for what its node [asks again](Self::asks_again). Records of the term begin at this offset.
    pub(super) fn begin(&mut self, begins_at: Offset, nodes: &[NodeId], used: Vec<QueueId>) {
        let before = std::mem::take(self);
        self.begins_at = begins_at;
        if nodes.is_empty() {
            return;
        }
        self.nodes = nodes.to_vec();
        self.awaited = nodes.to_vec();
        self.used = before.used;
        self.used.extend(used);
        self.stage = Stage::Gathers;
        // What had a number comes again.
        let unnumbered = before.letters.into_iter().filter(|(tag, _)| tag.is_none());
        unnumbered.for_each(|(_, letter)| self.keep(letter));
    }

    /// An earlier shard may have had this letter, and all of its stream that are before it.
    pub(super) fn came_again(&mut self, Tag { stream, number }: Tag) {
        match self.again.iter_mut().find(|(of, _)| *of == stream) {
            Some((_, last)) => *last = number.max(*last),
            None => self.again.push((stream, number)),
        }
    }

    /// Whether letters came again.
    #[inline]
    pub(super) fn has_again(&self) -> bool {
        !self.again.is_empty()
    }

    /// Whether an earlier shard may have given out what is in a letter.
    #[cold]
    pub(super) fn had_come(&self, tag: Tag) -> bool {
        self.again.iter().any(|last| is_up_to(last, tag))
    }

    /// A letter from before the term, unless it comes again.
    pub(super) fn keep(&mut self, letter: ToShard) {
        if !self.asks_again(&letter) {
            self.letters.push((None, letter));
        }
    }

    /// Whether this is a session of a node that attaches. Number 0 of a node is no session's.
    pub(super) fn has(&self, connection: ConnectionId) -> bool {
        connection.number() != 0 && self.nodes.contains(&connection.node())
    }

    /// Whether a letter is one that a node keeps until it is done, or that the attachment of its session stands for.
    pub(super) fn asks_again(&self, letter: &ToShard) -> bool {
        letter.asker().is_some_and(|who| self.has(who))
    }

    /// Whether the term has not begun for those who use the shard.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.stage != Stage::Over
    }

    /// Whether a settlement means what it says.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.stage == Stage::Over && self.claimed.is_empty() && self.gone.is_empty()
    }

    /// Whether a letter is known to be from before the term.
    fn is_earlier(&self, tag: Tag) -> bool {
        self.until.iter().chain(&self.gone).any(|last| is_up_to(last, tag))
    }

    /// A queue is gone, and with it what is claimed of it.
    #[cold]
    pub(super) fn queue_gone(&mut self, id: QueueId) {
        self.claimed.retain(|(queue, _), _| *queue != id);
    }

    /// What a node has from before the term is below this offset.
    fn counts_below(&self, node: NodeId) -> Offset {
        let below = self.below.iter().find(|(of, _)| *of == node);
        below.map_or(self.begins_at, |(_, offset)| *offset)
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> u64 {
        (self.claimed.capacity() * size_of::<((QueueId, Offset), Claimed)>()) as u64
    }

    /// A letter, unless it has to wait, or means nothing in a new term.
    #[cold]
    pub(super) fn hear(&mut self, letter: ToShard) -> Option<ToShard> {
        if !self.is_on() {
            return Some(letter);
        }
        match letter {
            // All are looked at when the term begins.
            ToShard::Resume { .. } => return None,
            letter if waits(&letter) => self.letters.push((None, letter)),
            letter => return Some(letter),
        }
        None
    }

    /// The same of a letter with a number, of which so much is done.
    #[cold]
    pub(super) fn hear_numbered(
        &mut self,
        tag: Tag,
        done: u32,
        letter: ToShard,
    ) -> Option<ToShard> {
        let waits = self.stage == Stage::Gathers && !matches!(letter, ToShard::Publish { .. });
        if !waits {
            return Some(letter);
        }
        self.letters.push((Some((tag, done)), letter));
        None
    }

    fn take_letters(&mut self, numbered: bool) -> Vec<(Option<(Tag, u32)>, ToShard)> {
        self.letters.extract_if(.., |(tag, _)| tag.is_some() == numbered).collect()
    }
}

/// Whether a letter is one of those up to another one of its stream.
fn is_up_to((of, last): &(StreamId, u64), Tag { stream, number }: Tag) -> bool {
    *of == stream && number <= *last
}

/// Whether a letter without a number is a question, or stands on who has what.
fn waits(letter: &ToShard) -> bool {
    match letter {
        ToShard::Settle { .. }
        | ToShard::GiveBack { .. }
        | ToShard::Commit { .. }
        | ToShard::Prepare { .. }
        | ToShard::Consume { .. }
        | ToShard::Cancel { .. }
        | ToShard::Get { .. }
        | ToShard::Count { .. }
        | ToShard::Purge { .. }
        | ToShard::Look { .. }
        | ToShard::Discard { .. }
        | ToShard::Move { .. }
        | ToShard::Delete { .. }
        | ToShard::Create { reply: Some(_), .. }
        | ToShard::Disconnected { .. }
        | ToShard::List { .. }
        | ToShard::Sample { .. } => true,
        ToShard::Publish { .. }
        | ToShard::Ask { .. }
        | ToShard::StoreWaiting { .. }
        | ToShard::Numbered(_)
        | ToShard::Attach(_)
        | ToShard::Attached(_)
        | ToShard::Decide { .. }
        | ToShard::Resume { .. }
        | ToShard::Allow { .. }
        | ToShard::CancelRest { .. }
        | ToShard::Create { reply: None, .. }
        | ToShard::OptionsChanged { .. }
        | ToShard::DeadLetter { .. }
        | ToShard::DeadLettered { .. }
        | ToShard::Remember { .. }
        | ToShard::Replay { .. }
        | ToShard::Forget { .. }
        | ToShard::Crowded { .. }
        | ToShard::IsWell { .. }
        | ToShard::Continue
        | ToShard::LogWoke
        | ToShard::Freed { .. }
        | ToShard::Lend { .. }
        | ToShard::Lent { .. } => false,
    }
}

impl<L: Log> Shard<L> {
    /// Grows whenever the shard is filled anew: what [`ToSession::Attach`] is to say.
    pub fn term(&self) -> u64 {
        self.streams.term()
    }

    /// What sessions of this node have from before the term counts below this offset: what [`ToSession::Attach`] is to say, too.
    pub fn term_begins_at(&self, node: NodeId) -> Offset {
        self.attaching.counts_below(node)
    }

    /// A node did not hear of an earlier term that waited for it, and whose records have offsets from this one on. To be called
    /// behind [`succeed`](Self::succeed).
    pub fn missed_a_term(&mut self, node: NodeId, begins_at: Offset) {
        self.attaching.below.push((node, begins_at.min(self.attaching.begins_at)));
    }

    /// Where the next term begins, if nothing is written before.
    pub fn end(&self) -> Offset {
        queue_offset(self.store.log().end())
    }

    /// The shard is of another process than the one before it, whose users these nodes are: they attach as after
    /// [`lose`](Self::lose). `term` is greater than that of any shard that the group had before. To be called
    /// after [`fill`](Self::fill), and before the first turn.
    pub fn succeed(&mut self, term: u64, nodes: &[NodeId]) {
        self.streams.is_of_term(term);
        self.attaching.begin(self.end(), nodes, Vec::new());
        if self.attaching.is_on() {
            self.hears_all = false;
            self.queues.hold_all();
        }
    }

    /// The process ends, and users of the shard go on whose room is in the same memory: what was about to be given to them has
    /// taken none.
    pub fn give_up_early(&mut self) {
        for mut hosted in self.queues.forget_all() {
            hosted.queue.forget_early();
        }
    }

    /// Whether those who use the shard have still to say what they have.
    pub fn is_attaching(&self) -> bool {
        self.attaching.is_on()
    }

    /// Who has still to say what they have, or to send what they sent before that.
    pub fn awaited(&self) -> impl Iterator<Item = NodeId> + '_ {
        let Attaching { awaited, until, .. } = &self.attaching;
        let behind = until.iter().filter(|(stream, last)| !self.streams.is_done_to(*stream, *last));
        awaited.iter().copied().chain(behind.map(|(stream, _)| stream.node))
    }

    /// A node is declared gone: nobody waits for it, and it has nothing any more. To be called between two turns, the next of
    /// which is to follow. Its connections are to end as others do. Letters of it that are here are done all the same, so its streams
    /// stay: until its next start sends something, or the next term.
    pub fn node_is_gone(&mut self, CommandStream { node, start }: CommandStream) {
        let Attaching { awaited, until, gone, attachments, .. } = &mut self.attaching;
        gone.extend(until.extract_if(.., |(stream, _)| stream.node == node));
        if awaited.extract_if(.., |it| *it == node).count() > 0 {
            // All that it had sent was for an earlier term.
            gone.extend(StreamClass::BOTH.map(|class| (StreamId { node, start, class }, u64::MAX)));
        }
        attachments.retain(|it| it.connection.node() != node);
    }

    /// A session says what it has.
    pub(super) fn attach(&mut self, attachment: Attachment) {
        let is_awaited = self.attaching.awaited.contains(&attachment.connection.node());
        if attachment.term == self.term() && is_awaited {
            self.attaching.attachments.push(attachment);
        }
    }

    /// A node says that all of its sessions have.
    pub(super) fn attached(&mut self, attached: Attached) {
        let Attached { node, start, term, last, undecided_from } = attached;
        if term != self.term() || !self.attaching.awaited.contains(&node) {
            return;
        }
        self.attaching.awaited.retain(|it| *it != node);
        for (class, last) in StreamClass::BOTH.into_iter().zip(last) {
            self.attaching.until.push((StreamId { node, start, class }, last));
        }
        self.forget_undecided(StreamId { node, start, class: StreamClass::Bodies }, undecided_from);
    }

    /// Goes on to the next stage, if nothing is awaited in this one.
    #[cold]
    pub(super) fn attach_on(&mut self, topology: &Topology, now: Time, out: &mut Outbox) {
        if self.attaching.stage == Stage::Gathers && self.attaching.awaited.is_empty() {
            self.take_attachments(out, now);
            self.attaching.stage = Stage::CatchesUp;
            for (tag, letter) in self.attaching.take_letters(true) {
                if let Some((tag, done)) = tag {
                    self.begin_numbered(tag, done, letter, topology, now, out);
                }
            }
        }
        let Attaching { stage, until, .. } = &self.attaching;
        let is_done = |(stream, last): &(StreamId, u64)| self.streams.is_done_to(*stream, *last);
        if *stage == Stage::CatchesUp && until.iter().all(is_done) {
            self.begin_to_give(topology, now, out);
        }
    }

    /// Those are consumers again, with what they have, and in the order in which they came.
    fn take_attachments(&mut self, out: &mut Outbox, now: Time) {
        let mut consumers: Vec<(ConnectionId, AttachedConsumer)> = Vec::new();
        let mut claims: Vec<(Claim, ConnectionId, [u64; 2])> = Vec::new();
        for it in std::mem::take(&mut self.attaching.attachments) {
            consumers.extend(it.consumers.into_iter().map(|one| (it.connection, one)));
            claims.extend(it.claims.into_iter().map(|claim| (claim, it.connection, it.behind)));
        }
        let counts_below = |whose: &ConnectionId| self.attaching.counts_below(whose.node());
        claims.retain(|(claim, whose, _)| claim.offset < counts_below(whose));
        claims.sort_by_key(|(claim, ..)| (claim.queue, claim.offset));
        claims.dedup_by_key(|(claim, ..)| (claim.queue, claim.offset));
        // Of a queue with a single active consumer whoever has something was the active one.
        let holders: hashbrown::HashSet<_, FixedState> =
            claims.iter().filter_map(|(claim, whose, _)| Some((*whose, claim.slot?))).collect();
        let is_next = |connection: ConnectionId, one: &AttachedConsumer| {
            let hosted = self.queues.get(one.queue);
            hosted.is_some_and(|hosted| hosted.queue.options().single_active)
                && !holders.contains(&(connection, one.slot))
        };
        consumers.sort_by_cached_key(|(connection, one)| {
            (one.is_going, is_next(*connection, one), one.number)
        });
        for (connection, one) in consumers {
            self.attach_consumer(connection, one, now, out);
        }
        for run in claims.chunk_by(|(a, ..), (b, ..)| a.queue == b.queue) {
            let Some(&(Claim { queue: id, .. }, ..)) = run.first() else { continue };
            if let Some((last, ..)) = run.last() {
                self.bring_to(id, last.offset);
            }
            let Self { queues, ports, .. } = self;
            let claim_of = |&(claim, whose, _): &(Claim, ConnectionId, [u64; 2])| {
                let key = claim.slot.and_then(|slot| ports.find(whose, slot));
                let consumer = key.and_then(|key| ports.consumer(key)).map(|consumer| consumer.id);
                (claim.offset, consumer)
            };
            let of_queue: Vec<(Offset, Option<ConsumerId>)> = run.iter().map(claim_of).collect();
            let Some(hosted) = queues.get_mut(id) else { continue };
            let found = hosted.queue.claim(&of_queue);
            for ((&(claim, whose, behind), (_, consumer)), unacked) in
                run.iter().zip(of_queue).zip(found)
            {
                let claimed = Claimed { unacked, consumer, node: whose.node(), behind };
                self.attaching.claimed.insert((id, claim.offset), claimed);
            }
        }
    }

    /// A consumer that was there is there again. If its queue is not, or somebody is there who excludes it, it is told.
    fn attach_consumer(
        &mut self,
        connection: ConnectionId,
        one: AttachedConsumer,
        now: Time,
        out: &mut Outbox,
    ) {
        let AttachedConsumer { number, channel, queue: id, slot, tag, no_ack, exclusive, .. } = one;
        let AttachedConsumer { priority, prefetch, gate, arguments, is_going, .. } = one;
        let key = u64::from(self.ports.next_key());
        let of = ReplyTo { connection, channel };
        let gate = gate.unwrap_or_else(|| self.allowances.gate(of));
        let spec = ConsumerSpec { key, no_ack, exclusive, priority, prefetch, gate };
        self.ports.is_past(number);
        if let Some(hosted) = self.queues.get_mut(id)
            && let Ok(consumer) = hosted.queue.add_consumer(spec, now)
        {
            let facts = Listed { tag, no_ack, prefetch, arguments };
            let of_queue = &mut hosted.consumers;
            self.ports.add(connection, channel, slot, id, consumer, facts, of_queue);
            return;
        }
        self.allowances.left(connection, channel);
        if !is_going {
            out.session(connection, ToSession::ConsumerGone { slot });
        }
    }

    /// All that was to be done before is done: the shard is as any other.
    fn begin_to_give(&mut self, topology: &Topology, now: Time, out: &mut Outbox) {
        self.attaching.stage = Stage::Over;
        self.attaching.until.clear();
        self.hears_all = self.has_cut_nobody_off();
        let ids: Vec<QueueId> = self.queues.iter().map(|(id, _)| id).collect();
        for id in ids {
            self.queues.change(id, |hosted, left| hosted.queue.go_on(now, left));
        }
        for id in std::mem::take(&mut self.attaching.used) {
            let hosted = self.queues.get(id);
            if hosted.is_some_and(|hosted| hosted.consumers.is_empty()) {
                self.delete_unused(id, topology, now, out);
            }
        }
        for (_, letter) in self.attaching.take_letters(false) {
            // The owner of the names has heard of that, and answers.
            let is_answered = matches!(letter, ToShard::Delete { reply: Some(reply), queue, .. }
                if self.queues.was_deleted_for(queue, reply));
            if !is_answered {
                self.letter(letter, topology, now, out);
            }
        }
    }

    /// Whether the letter that is being done was sent before a message was claimed. Of another node than the one that claims it
    /// all letters were that were sent before the node had attached.
    fn is_doing_what_was_sent_before(&self, claimed: &Claimed) -> bool {
        let Some(tag @ Tag { stream, number }) = self.streams.doing() else { return false };
        if stream.node == claimed.node {
            return number <= claimed.behind[usize::from(stream.class == StreamClass::Acks)];
        }
        self.attaching.is_earlier(tag)
    }

    /// Whether the letter that is being done is from before the term: as long as that has not begun, or its node is gone.
    fn is_doing_what_is_earlier(&self) -> bool {
        self.attaching.is_on()
            || self.streams.doing().is_some_and(|tag| self.attaching.is_earlier(tag))
    }

    /// Settlements of the letter that is being done are about messages below this offset, if it is from before the term.
    fn what_is_done_counts_below(&self) -> Offset {
        let Attaching { begins_at, .. } = self.attaching;
        let doing = self.streams.doing();
        doing.map_or(begins_at, |tag| self.attaching.counts_below(tag.stream.node))
    }

    /// A claimed message had come back, and was given out again before the term: whoever has it has it still.
    fn had_come_back(&mut self, id: QueueId, offset: Offset, unacked: Option<UnackedId>) {
        let Some(unacked) = unacked else { return };
        let count = self.queues.call(id, |hosted, _| hosted.queue.had_come_back(unacked, offset));
        if let Some(count) = count.flatten() {
            self.store.mark(offset, id, mark(count));
        }
    }

    /// A settlement while sessions have messages from before the term: see the [module](self).
    #[cold]
    pub(super) fn settle_claimed(&mut self, settlement: &Settlement, now: Time) {
        let Settlement { queue: id, offset, how, .. } = *settlement;
        if self.is_doing_what_is_earlier() && offset >= self.what_is_done_counts_below() {
            // Nothing of this term had been given out.
            return;
        }
        if let Some(claimed) = self.attaching.claimed.get(&(id, offset))
            && self.is_doing_what_was_sent_before(claimed)
        {
            let unacked = claimed.unacked.filter(|_| how == Settle::Requeue { counts: true });
            return self.had_come_back(id, offset, unacked);
        }
        match self.attaching.claimed.remove(&(id, offset)) {
            Some(Claimed { unacked: Some(unacked), .. }) => {
                return self.settle_one(&Settlement { unacked, ..*settlement }, now);
            }
            Some(Claimed { unacked: None, consumer, .. }) => {
                if let Some(consumer) = consumer {
                    self.queues.change(id, |hosted, _| hosted.queue.settled_elsewhere(consumer));
                }
                return;
            }
            None => {}
        }
        if self.attaching.stage == Stage::Over {
            return self.settle_one(settlement, now);
        }
        self.bring_to(id, offset);
        let taken = self.queues.call(id, |hosted, _| hosted.queue.take_out(&[offset]));
        if let Some(&[(_, unacked)]) = taken.as_deref() {
            self.settle_one(&Settlement { unacked, ..*settlement }, now);
        } else if !settlement.unacked.is_lent() {
            // What a part of a transaction holds has its name of this term.
            self.settle_one(settlement, now);
        }
    }

    /// What a part of a transaction is to settle, if it came before the term and was not done: taken out of the ready ones, for nobody.
    #[cold]
    pub(super) fn take_out_for_part(&mut self, settlements: &mut Vec<Settlement>) {
        if self.is_doing_what_is_earlier() {
            let below = self.what_is_done_counts_below();
            settlements.retain(|it| it.offset < below);
            self.bring_to_all(settlements);
            self.queues.take_out_all(settlements);
        }
    }
}
