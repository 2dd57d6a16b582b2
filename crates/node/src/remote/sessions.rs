//! What the node that leads has in the place of the sessions of other nodes.
//!
//! It looks at whose letters come, keeps what is to go to each node in a line of its own, and knows what the end of a node leaves:
//! which of its sessions are not over, and what they were given and have not settled. A session that ends by itself gives that back;
//! one whose node is gone cannot.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use leveret_broker::command::{CommandStream, NumberedCommand};
use leveret_broker::flow::Alarm;
use leveret_broker::message::{
    Claim, ConnectionId, Delivery, FromLeader, LeaderTerms, NamesBatch, NodeId, Outbox, Reply,
    ReplyTo, SessionsHello, Settle, Settlement, ToLeader, ToMeta, ToSession, ToShard,
};
use leveret_broker::meta::TermNote;
use leveret_broker::stream::{Numbered, StreamClass, StreamId};
use leveret_queue::{Offset, UnackedId};
use leveret_topology::{Change, GroupId, Homes, QueueId};

use super::lease::KeptLease;
use super::{ReplyRoom, node_of};

/// A part of a batch of names has so many changes at most, and about so many bytes: it is one letter.
const PART_CHANGES: usize = 1024;
const PART_BYTES: usize = 128 << 10;

/// The name of a message that its session has since an earlier leader: no queue calls one so. The shard finds it by its claim.
const CLAIMED: UnackedId = UnackedId::new((1 << 31) - 1);

/// What came of a letter at a [`RemoteNode`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeHeard {
    /// Nothing is left to do.
    Done,
    /// It has the names of this batch.
    NamesTaken(u64),
    /// It answers the [look](FromLeader::Look) with this number.
    Seen(u64, Bytes),
    /// What happened there.
    Told(Bytes),
    /// How many connections and channels are there.
    Uses(Bytes),
    /// It [asks](RemoteNode::asks_for_lease) with this number for how long its sessions may act.
    AsksLease(u64),
}

/// The sessions of one node, over one connection.
#[derive(Debug)]
pub struct RemoteNode {
    homes: Homes,
    node: NodeId,
    raft_id: u64,
    start: u32,
    attaches: Option<u64>,
    /// It was told all names.
    has_names: bool,
    /// It was told that the shards hear.
    is_heard: bool,
    /// Its sessions that are not over.
    open: BTreeSet<ConnectionId>,
    /// What they were given, and did not settle.
    held: HashMap<(QueueId, Offset), Holding, FixedState>,
    line: VecDeque<FromLeader>,
    reply_room: ReplyRoom,
    /// Who has asked one of its sessions something, and has no answer.
    asked: BTreeMap<ConnectionId, ReplyTo>,
    lease: KeptLease,
}

#[derive(Clone, Copy, Debug)]
struct Holding {
    by: ConnectionId,
    home: GroupId,
    unacked: UnackedId,
}

impl RemoteNode {
    /// A node says who it is. `homes` are the cluster's.
    ///
    /// # Errors
    ///
    /// A text, if it says that it has sessions that are not its own.
    pub fn new(hello: &SessionsHello, homes: Homes) -> Result<Self, String> {
        let SessionsHello { raft_id, start, attaches, ref connections, queues: _ } = *hello;
        let node = node_of(raft_id);
        let node = Self {
            homes,
            node,
            raft_id,
            start,
            attaches,
            has_names: false,
            is_heard: false,
            open: BTreeSet::new(),
            held: HashMap::default(),
            line: VecDeque::new(),
            reply_room: ReplyRoom::default(),
            asked: BTreeMap::new(),
            lease: KeptLease::default(),
        };
        connections.iter().try_for_each(|id| node.is_own(*id))?;
        Ok(Self { open: connections.iter().copied().collect(), ..node })
    }

    /// Its number.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// The Raft id of its data directory.
    pub fn raft_id(&self) -> u64 {
        self.raft_id
    }

    /// How often its process was started before.
    pub fn start(&self) -> u32 {
        self.start
    }

    /// Whether it said that it has sessions of an earlier leader.
    pub fn attaches(&self) -> bool {
        self.attaches.is_some()
    }

    /// The last term in which a leader told it that it is heard, if it has sessions of that time.
    pub fn heard(&self) -> Option<u64> {
        self.attaches
    }

    /// Whether what its sessions have from earlier leaders counts for one of this term that found this note in the log of names.
    ///
    /// # Errors
    ///
    /// A text, if it says that it has heard a later leader.
    pub fn was_known(&self, term: u64, last: Option<&TermNote>) -> Result<bool, String> {
        let Some(heard) = self.attaches else { return Ok(true) };
        if heard > term {
            return Err(format!("it has heard a leader in term {heard}, and this one is {term}"));
        }
        Ok(last.is_none_or(|last| last.knew(self.commands(), heard)))
    }

    /// Its stream of this class to a group.
    pub fn stream(&self, class: StreamClass) -> StreamId {
        StreamId { node: self.node, start: self.start, class }
    }

    /// Its stream of commands.
    pub fn commands(&self) -> CommandStream {
        CommandStream { node: self.node, start: self.start }
    }

    /// Whose exclusive queues may be there, though the leader has not heard it: it or an earlier connection of the process brought them.
    pub(super) fn owners(&self) -> impl Iterator<Item = ConnectionId> + '_ {
        self.open.iter().copied().filter(|_| self.attaches() && !self.is_heard)
    }

    fn is_own(&self, id: ConnectionId) -> Result<(), String> {
        match id.node() == self.node && id.number() != 0 {
            true => Ok(()),
            false => Err(format!("{id} is no session of node {}", self.node)),
        }
    }

    /// The node writes. Letters to shards, to the owner of the names, and to sessions of any node but this are left in `out`.
    ///
    /// # Errors
    ///
    /// A text, if the letter is not this node's: its connection is to end.
    pub fn hear(&mut self, letter: ToLeader, out: &mut Outbox) -> Result<NodeHeard, String> {
        match letter {
            ToLeader::Hello(_) => return Err("it says hello twice".to_owned()),
            ToLeader::Opened(id) => {
                self.is_own(id)?;
                self.open.insert(id);
            }
            ToLeader::Ended(id) => {
                self.is_own(id)?;
                self.open.remove(&id);
            }
            ToLeader::Shard(group, letter) => {
                if self.homes.index_of(group).is_none() {
                    return Err(format!("there is no group {}", group.get()));
                }
                self.hear_for_shard(group, &letter)?;
                out.shard(group, letter);
            }
            ToLeader::Meta(letter) => {
                self.check_command(&letter)?;
                out.meta.push(letter);
            }
            ToLeader::Session(id, letter) => {
                match &letter {
                    ToSession::DirectReply { .. } => {}
                    ToSession::Reply { reply: Reply::Done | Reply::Gone, .. } => {
                        self.asked.remove(&id);
                    }
                    ToSession::DirectReplyAsked { reply, .. } => self.is_own(reply.connection)?,
                    other => return Err(format!("no session tells another one: {other:?}")),
                }
                out.session(id, letter);
            }
            ToLeader::NamesTaken(number) => return Ok(NodeHeard::NamesTaken(number)),
            ToLeader::Told(told) => return Ok(NodeHeard::Told(told)),
            ToLeader::Uses(uses) => return Ok(NodeHeard::Uses(uses)),
            ToLeader::Seen(number, seen) => return Ok(NodeHeard::Seen(number, seen)),
            ToLeader::AsksLease(number) => return Ok(NodeHeard::AsksLease(number)),
            ToLeader::Beat => {}
        }
        Ok(NodeHeard::Done)
    }

    fn hear_for_shard(&mut self, group: GroupId, letter: &ToShard) -> Result<(), String> {
        let from = match letter {
            ToShard::Numbered(numbered) => return self.hear_numbered(group, numbered),
            ToShard::Attach(attachment) => {
                self.is_own(attachment.connection)?;
                let by = attachment.connection;
                for &Claim { queue, offset, .. } in &attachment.claims {
                    let holding = Holding { by, home: group, unacked: CLAIMED };
                    self.held.insert((queue, offset), holding);
                }
                return Ok(());
            }
            ToShard::Attached(it) if (it.node, it.start) == (self.node, self.start) => {
                return Ok(());
            }
            ToShard::StoreWaiting { stream, .. } if *stream == self.stream(stream.class) => {
                return Ok(());
            }
            ToShard::Cancel { connection, reply, .. } => {
                reply.map_or(Ok(()), |reply| self.is_own(reply.connection))?;
                *connection
            }
            ToShard::Disconnected { connection, reply } => {
                reply.map_or(Ok(()), |reply| self.is_own(reply.connection))?;
                *connection
            }
            ToShard::Consume { reply, .. }
            | ToShard::Get { reply, .. }
            | ToShard::Count { reply, .. }
            | ToShard::Purge { reply, .. }
            | ToShard::Delete { reply: Some(reply), .. } => reply.connection,
            ToShard::Allow { connection, .. } => *connection,
            ToShard::Remember { from, .. } => *from,
            other => return Err(format!("no session of another node writes {}", other.kind())),
        };
        self.is_own(from)
    }

    fn hear_numbered(&mut self, group: GroupId, numbered: &Numbered) -> Result<(), String> {
        let Numbered { stream, number, letter, .. } = numbered;
        if *stream != self.stream(stream.class) {
            return Err(format!("{number} of {stream:?} is no letter of this node"));
        }
        let (class, from) = match letter {
            ToShard::Publish { from, .. } | ToShard::Ask { from, .. } => {
                (StreamClass::Bodies, from)
            }
            ToShard::Commit { reply, settlements, .. }
            | ToShard::Prepare { reply, settlements, .. } => {
                self.settled(settlements);
                (StreamClass::Bodies, &reply.connection)
            }
            ToShard::Settle { from, settlements } => {
                self.settled(settlements);
                (StreamClass::Acks, from)
            }
            ToShard::GiveBack { from, unsettled } => {
                for it in unsettled.of(group, 0, usize::MAX) {
                    self.held.remove(&(it.queue, it.offset));
                }
                (StreamClass::Acks, from)
            }
            other => return Err(format!("{} gets no number", other.kind())),
        };
        if class != stream.class {
            return Err(format!("{} is of another stream", letter.kind()));
        }
        self.is_own(*from)
    }

    fn settled(&mut self, settlements: &[Settlement]) {
        for it in settlements {
            self.held.remove(&(it.queue, it.offset));
        }
    }

    fn check_command(&self, letter: &ToMeta) -> Result<(), String> {
        let ToMeta::Numbered(numbered) = letter else {
            return Err(format!("{} has no number", letter.kind()));
        };
        let NumberedCommand { stream, command, .. } = &**numbered;
        if *stream != self.commands() {
            return Err(format!("{stream:?} is no stream of this node"));
        }
        let Some(command) = command else { return Ok(()) };
        let Some((connection, reply)) = command.numbered_asker() else {
            return Err(format!("{} gets no number", command.kind()));
        };
        self.is_own(connection)?;
        reply.map_or(Ok(()), |reply| self.is_own(reply.connection))
    }

    /// Leaves a letter for the node. Of those for its sessions it remembers what they are given. Direct replies for which there is no
    /// room are lost.
    pub fn tell(&mut self, mut letter: FromLeader) {
        if let FromLeader::Session(_, _, letter) = &mut letter
            && !self.reply_room.take(letter)
        {
            return;
        }
        match &letter {
            FromLeader::Session(id, _, ToSession::Deliver(deliveries)) => {
                deliveries.iter().for_each(|delivery| self.given(*id, delivery));
            }
            FromLeader::Session(
                id,
                _,
                ToSession::Reply { reply: Reply::Got { delivery, .. }, .. },
            ) => self.given(*id, delivery),
            FromLeader::Session(_, _, ToSession::DirectReplyAsked { reply, .. }) => {
                self.asked.insert(reply.connection, *reply);
            }
            _ => {}
        }
        self.line.push_back(letter);
    }

    /// Whether it was told all names: one that was not needs no batch of changes.
    pub fn has_names(&self) -> bool {
        self.has_names
    }

    /// Leaves a batch of names for the node, in parts; `is_whole`: these are all that there are.
    pub fn tell_names(&mut self, number: u64, is_whole: bool, changes: Vec<Change>) {
        self.has_names |= is_whole;
        let mut changes = changes.into_iter().peekable();
        loop {
            let (mut part, mut bytes) = (Vec::new(), 0);
            while part.len() < PART_CHANGES
                && bytes < PART_BYTES
                && let Some(change) = changes.next()
            {
                bytes += change.record.as_ref().map_or(0, |record| record.len());
                part.push(change);
            }
            let goes_on = changes.peek().is_some();
            let batch = NamesBatch { number, is_whole, goes_on, changes: part };
            self.tell(FromLeader::Names(batch));
            if !goes_on {
                return;
            }
        }
    }

    fn given(&mut self, by: ConnectionId, delivery: &Delivery) {
        let Delivery { queue, home, unacked, offset, .. } = *delivery;
        if let Some(unacked) = unacked {
            self.held.insert((queue, offset), Holding { by, home, unacked });
        }
    }

    /// The next letter for the node.
    pub fn send_next(&mut self) -> Option<FromLeader> {
        let letter = self.line.pop_front()?;
        if let FromLeader::Session(_, _, letter) = &letter {
            self.reply_room.give_back(letter);
        }
        Some(letter)
    }

    /// It has asked for how long its sessions may act, and this node leads, by its lease, at a moment after that was heard: at `now_ms`.
    pub fn asks_for_lease(&mut self, number: u64, now_ms: u64) {
        self.lease.asks(number, now_ms);
    }

    /// The answer to its last question, if it has none, once the shards hear it: it has the names of all that was answered, and is
    /// [waited for](super::Presence) from now on. It overtakes all that waits.
    pub fn answer_lease(&mut self) -> Option<FromLeader> {
        let number = if self.is_heard { self.lease.answer() } else { None };
        number.map(FromLeader::Lease)
    }

    /// Until when its sessions may act by the names that it has, wherever it is; none if it was not told.
    pub fn acts_until_ms(&self) -> Option<u64> {
        self.lease.until_ms()
    }

    /// Takes all letters for the node; `into` is empty, and its room is used for later ones. Direct replies have all room again,
    /// though what was taken may wait.
    pub fn take_line(&mut self, into: &mut VecDeque<FromLeader>) {
        self.reply_room.bytes = 0;
        std::mem::swap(&mut self.line, into);
    }

    /// Direct replies that were lost as too much waited for the node.
    pub fn lost_replies(&self) -> u64 {
        self.reply_room.lost
    }

    /// Whether some were lost, once: that is to be told.
    pub fn begins_to_lose_replies(&mut self) -> bool {
        self.reply_room.begins_to_lose()
    }

    /// What its sessions were given and have not settled.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Leaves word for the node that the shards [hear](FromLeader::Begins). Before that it hears how many connections others have, as
    /// it lets clients in from then on, and behind it what is short. Returns whether this is the first time: else it is told nothing.
    pub fn begins(&mut self, uses: Option<FromLeader>, terms: LeaderTerms, alarm: Alarm) -> bool {
        if std::mem::replace(&mut self.is_heard, true) {
            return false;
        }
        uses.into_iter().for_each(|uses| self.tell(uses));
        self.tell(FromLeader::Begins(terms));
        self.tell(FromLeader::Alarm(alarm));
        true
    }

    /// Whether it was [told](Self::begins) that the shards hear.
    pub fn is_heard(&self) -> bool {
        self.is_heard
    }

    /// The connection has ended, and with it the sessions: for shards and the owner of the names it is as if each client had gone. Of the
    /// sessions of one that was not told that the shards hear nobody has heard; but what was on its way to an earlier process of the node
    /// may have come to this one.
    ///
    /// Whoever drives the shards calls [`Shard::node_is_gone`](leveret_broker::Shard::node_is_gone) of each one before that is
    /// posted. Its streams are kept: letters of it that came are done behind all that.
    pub fn gone(self, out: &mut Outbox) {
        let groups = (0..self.homes.groups() as usize).map(|index| self.homes.group_at(index));
        let groups: Vec<GroupId> = groups.collect();
        // First all consumers: what one session gives back must not go to another one of the same node.
        let open = if self.is_heard { self.open } else { BTreeSet::new() };
        for &connection in &open {
            for &group in &groups {
                out.shard(group, ToShard::Disconnected { connection, reply: None });
            }
        }
        let mut held: Vec<_> = self.held.into_iter().collect();
        held.sort_unstable_by_key(|((queue, offset), it)| (it.home, it.by, *queue, *offset));
        for run in held.chunk_by(|(_, a), (_, b)| (a.home, a.by) == (b.home, b.by)) {
            let Some((_, Holding { by, home, .. })) = run.first() else { continue };
            let how = Settle::Requeue { counts: true };
            let settle =
                |&((queue, offset), Holding { unacked, .. }): &((QueueId, Offset), Holding)| {
                    Settlement { queue, unacked, offset, how }
                };
            let settlements = run.iter().map(settle).collect();
            out.shard(*home, ToShard::Settle { from: *by, settlements });
        }
        self.asked.into_values().for_each(|reply| out.reply(reply, Reply::Gone));
        out.disconnected(open);
    }
}

#[cfg(test)]
mod tests;
