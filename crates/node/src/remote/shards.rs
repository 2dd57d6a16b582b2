//! What a node of sessions has in the place of shards and of the owner of the names.
//!
//! ```text
//!   sessions --to_shard--> StreamSender of the group --\
//!            --to_meta---> CommandSender             ---+---------> the connection
//!            ------------- line                      --/
//! ```
//!
//! What it keeps outlives the connection and the leader: to the next one it is sent again, once that has said
//! [`Begins`](FromLeader::Begins). What is in the line is of the connection alone, and comes first: hello, names that were taken, the
//! beginnings of sessions, what they allow, and questions to sessions of other nodes. Of the rest each group, the owner of the
//! names, and direct replies to sessions of other nodes have a letter in turn.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use leveret_amqp::reply::ReplyCode;
use leveret_broker::command::{COMMANDS_MAX, CommandAnswer};
use leveret_broker::flow::Alarm;
use leveret_broker::message::{
    Binding, Brought, ChannelId, ConnectionId, FromLeader, LeaderTerms, NamesBatch, NodeId, Outbox,
    Reply, ReplyTo, SessionsHello, ShardTerm, ToLeader, ToMeta, ToSession, ToShard,
};
use leveret_broker::stream::StreamClass;
use leveret_topology::{Destination, GroupId, Homes, Topology};

use super::lease::NamesLease;
use super::{ReplyRoom, node_of};
use crate::{CommandSender, KeptMax, StreamSender};

/// Letters of the line beyond which nothing is told that nobody waits for.
const TOLD_WAIT_MAX: usize = 4096;

/// The same in bytes of what is told so.
const TOLD_BYTES_MAX: usize = 4 << 20;

/// What became of a letter of the leader, for whoever drives the node of sessions.
#[derive(Debug)]
pub enum Heard {
    /// Nothing is left to do.
    Done,
    /// The leader hears what sessions write from now on.
    Begins,
    /// To be applied as a whole; [`RemoteShards::names_taken`] says that it is.
    Names(NamesBatch),
    /// For all sessions.
    Alarm(Alarm),
    /// How many connections and channels other nodes have; the same for [`RemoteShards::uses`].
    Uses(Bytes),
    /// Sessions may act [until another time](RemoteShards::acts_until_ms).
    Lease,
    /// Management asks, with this number; [`RemoteShards::seen`] answers.
    Look(u64, Bytes),
    /// The sessions of this node are over, and why.
    Over(Box<str>),
}

/// Sessions that may have exclusive queues, and what they want to be taken away.
#[derive(Debug)]
pub struct Owners {
    node: NodeId,
    open: BTreeSet<ConnectionId>,
    /// By their numbers. A leader that is gone may have done them.
    unbinds: Vec<(u64, Binding)>,
}

impl Owners {
    /// Their exclusive queues, and which vhosts are traced, by this node's names as they are.
    pub fn brings(&self, names: &Topology) -> Vec<Brought> {
        let mut unbinds = BTreeMap::<*const _, Vec<u64>>::new();
        for (number, it) in &self.unbinds {
            let Binding { vhost, source, destination, key, arguments, reply, .. } = it;
            // Others' are refused.
            let owner = names.queue(*vhost, destination).and_then(|it| it.exclusive_owner);
            let to = Destination::Queue(destination);
            if owner == Some(reply.connection)
                && let Some(bound) = names.bound(*vhost, source, to, key, arguments.clone())
            {
                unbinds.entry(bound).or_default().push(*number);
            }
        }
        let is_owner = |id| self.open.contains(&id);
        let all = names.exclusive_queues(self.node, is_owner).into_iter();
        let brought = all.map(|(change, binding)| {
            let unbinds = binding.and_then(|it| unbinds.remove(&std::ptr::from_ref(it)));
            Brought { change, unbinds: unbinds.unwrap_or_default() }
        });
        let traced = names.traced().into_iter();
        brought.chain(traced.map(|change| Brought { change, unbinds: Vec::new() })).collect()
    }
}

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// There is none.
    Lost,
    /// Hello is the next letter.
    Greets,
    /// What follows is for the names, and waits for the beginning.
    Learns,
    /// The leader hears all.
    Begun,
}

/// See the [module](self).
#[derive(Debug)]
pub struct RemoteShards {
    raft_id: u64,
    node: NodeId,
    start: u32,
    homes: Homes,
    /// By index.
    groups: Vec<Group>,
    commands: CommandSender,
    /// Those that may have something to send, each once.
    busy: VecDeque<Turn>,
    /// By [place](Self::place).
    is_busy: Vec<bool>,
    /// Of this connection.
    line: VecDeque<ToLeader>,
    /// Bytes in it that nobody waits for.
    told_bytes: usize,
    /// Direct replies to sessions of other nodes, of this connection. No other letter waits behind all of them.
    replies: VecDeque<(ConnectionId, ToSession)>,
    reply_room: ReplyRoom,
    /// Sessions that are over: each is told once so many letters without a number were sent, by index of the sender, and its end.
    ends: VecDeque<(Vec<(usize, u64)>, ConnectionId)>,
    open: BTreeSet<ConnectionId>,
    /// Sessions were here, so there may be something of them at a leader.
    has_had_sessions: bool,
    /// How often the leader has each pause.
    paused: BTreeMap<ConnectionId, u32>,
    /// Questions to sessions of other nodes that are not answered, by who asks.
    questions: BTreeMap<ConnectionId, Question>,
    stage: Stage,
    /// The leader was told that sessions attach: see [`SessionsHello::attaches`].
    attaches: Option<u64>,
    has_begun: bool,
    names: Names,
    lease: NamesLease,
    /// For the next hello.
    brings: Vec<Brought>,
}

/// Who has a letter in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// The group with this index.
    Group(usize),
    /// What is for the owner of the names.
    Commands,
    /// Direct replies to sessions of other nodes.
    Replies,
}

#[derive(Debug)]
struct Group {
    sender: StreamSender,
    /// Of its shard, as far as is known.
    term: u64,
    /// Which of its streams has the next letter, if both have one.
    first: StreamClass,
}

/// A question to a session of another node.
#[derive(Clone, Copy, Debug)]
struct Question {
    to: ConnectionId,
    reply: ReplyTo,
    channel: ChannelId,
    token: u64,
}

impl Question {
    fn letter(self) -> ToLeader {
        let Self { to, reply, channel, token } = self;
        ToLeader::Session(to, ToSession::DirectReplyAsked { reply, channel, token })
    }
}

/// What of the names came over this connection.
#[derive(Debug, Default)]
struct Names {
    /// The batch that comes, as far as it came.
    coming: Option<NamesBatch>,
    /// The last whole batch that came.
    came: u64,
    /// The last one that is applied.
    taken: u64,
}

impl Names {
    /// Returns a batch once all of it is there.
    fn hear(&mut self, part: NamesBatch) -> Result<Option<NamesBatch>, String> {
        let NamesBatch { number, is_whole, goes_on, mut changes } = part;
        let mut batch = match self.coming.take() {
            Some(coming) if (coming.number, coming.is_whole) != (number, is_whole) => {
                return Err(format!("names {} go on as names {number}", coming.number));
            }
            Some(coming) => coming,
            None if self.came == 0 && is_whole && number > 0 => {
                NamesBatch { number, is_whole, goes_on: false, changes: Vec::new() }
            }
            None if self.came > 0 && !is_whole && number == self.came + 1 => {
                NamesBatch { number, is_whole, goes_on: false, changes: Vec::new() }
            }
            None => return Err(format!("names {number} come behind {}", self.came)),
        };
        if batch.changes.is_empty() {
            batch.changes = changes;
        } else {
            batch.changes.append(&mut changes);
        }
        if goes_on {
            self.coming = Some(batch);
            return Ok(None);
        }
        self.came = number;
        Ok(Some(batch))
    }
}

impl RemoteShards {
    /// Of a member's process at its `start`; `homes` are the cluster's. So much is kept of each stream.
    pub fn new(raft_id: u64, start: u32, homes: Homes, max: KeptMax) -> Self {
        let (node, groups) = (node_of(raft_id), homes.groups() as usize);
        let group = || Group {
            sender: StreamSender::new(node, start, max),
            term: 0,
            first: StreamClass::Bodies,
        };
        Self {
            raft_id,
            node,
            start,
            homes,
            groups: (0..groups).map(|_| group()).collect(),
            commands: CommandSender::new(node, start, COMMANDS_MAX),
            busy: VecDeque::new(),
            is_busy: vec![false; groups + 2],
            line: VecDeque::new(),
            told_bytes: 0,
            replies: VecDeque::new(),
            reply_room: ReplyRoom::default(),
            ends: VecDeque::new(),
            open: BTreeSet::new(),
            has_had_sessions: false,
            paused: BTreeMap::new(),
            questions: BTreeMap::new(),
            stage: Stage::Lost,
            attaches: None,
            has_begun: false,
            names: Names::default(),
            lease: NamesLease::default(),
            brings: Vec::new(),
        }
    }

    /// The node whose sessions these are.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// A session begins.
    pub fn opened(&mut self, id: ConnectionId) {
        self.open.insert(id);
        self.has_had_sessions = true;
        self.say(ToLeader::Opened(id));
    }

    /// A session is over, and its inbox empty: it writes and hears nothing any more.
    pub fn forgotten(&mut self, id: ConnectionId) {
        if !self.open.remove(&id) {
            return;
        }
        self.paused.remove(&id);
        self.questions.remove(&id);
        if matches!(self.stage, Stage::Learns | Stage::Begun) {
            let counts = self.groups.iter().map(|group| group.sender.unnumbered()).enumerate();
            let waits = counts.filter(|(_, [given, sent])| given > sent);
            let waits = waits.map(|(index, [given, _])| (index, given)).collect();
            self.ends.push_back((waits, id));
        }
    }

    /// Of this connection, if its hello has been said.
    fn say(&mut self, letter: ToLeader) {
        if self.says() {
            self.line.push_back(letter);
        }
    }

    /// Whether the line goes to a leader.
    fn says(&self) -> bool {
        matches!(self.stage, Stage::Learns | Stage::Begun)
    }

    /// A letter of a session of this node, or of what is done for one that is gone.
    pub fn to_shard(&mut self, group: GroupId, letter: ToShard, out: &mut Outbox) {
        let Some(index) = self.homes.index_of(group) else { return };
        let Some(Group { sender, .. }) = self.groups.get_mut(index) else { return };
        match letter {
            letter if StreamSender::numbers(&letter) => sender.keep(letter, out),
            // What is written to no leader is told by the accounts of the next one.
            ToShard::Allow { .. } => {
                if self.stage == Stage::Begun {
                    self.line.push_back(ToLeader::Shard(group, letter));
                }
                return;
            }
            ToShard::Consume { .. }
            | ToShard::Cancel { .. }
            | ToShard::Get { .. }
            | ToShard::Count { .. }
            | ToShard::Purge { .. }
            | ToShard::Delete { .. }
            | ToShard::Remember { .. }
            | ToShard::Attach(_) => sender.send(letter),
            ToShard::Disconnected { connection, .. } => {
                sender.ended(connection, out);
                sender.send(letter);
            }
            // A session that shares no memory with shards writes none of these.
            letter => return refuse_shard(letter, out),
        }
        self.is_busy(Turn::Group(index));
    }

    /// A letter of a session of this node.
    pub fn to_meta(&mut self, letter: ToMeta, out: &mut Outbox) {
        if CommandSender::numbers(&letter) {
            self.commands.keep(letter);
            return self.is_busy(Turn::Commands);
        }
        match letter {
            ToMeta::IsWell { reply } | ToMeta::Admin { reply, .. } => refuse(reply, out),
            _ => {}
        }
    }

    /// A letter of a session of this node to one of another node. It may be lost with the connection; a question is asked again.
    pub fn to_session(&mut self, id: ConnectionId, mut letter: ToSession) {
        if let ToSession::DirectReplyAsked { reply, channel, token } = letter {
            let question = Question { to: id, reply, channel, token };
            self.questions.insert(reply.connection, question);
            // All are asked when a leader begins.
            if self.stage == Stage::Begun {
                self.line.push_back(question.letter());
            }
            return;
        }
        if !matches!(letter, ToSession::DirectReply { .. }) {
            self.say(ToLeader::Session(id, letter));
        } else if self.says() && self.reply_room.take(&mut letter) {
            self.replies.push_back((id, letter));
            self.is_busy(Turn::Replies);
        }
    }

    /// There is a new connection to a node that leads: what was to go over the one before is gone. The leader is to have these exclusive
    /// queues of this node's sessions: see [`Owners`].
    pub fn begin(&mut self, brings: Vec<Brought>) {
        self.lost();
        self.stage = Stage::Greets;
        self.brings = brings;
    }

    /// Whose exclusive queues the next leader is to have. To be asked when the connection to the one before is [gone](Self::lost).
    pub fn owners(&self) -> Owners {
        let unbinds = self.commands.unanswered().filter_map(|(number, command)| match command {
            ToMeta::Unbind(binding) if binding.to_queue => Some((number, (**binding).clone())),
            _ => None,
        });
        Owners { node: self.node, open: self.open.clone(), unbinds: unbinds.collect() }
    }

    /// The connection is gone: nothing is sent before the next [`begin`](Self::begin).
    pub fn lost(&mut self) {
        self.stage = Stage::Lost;
        self.line.clear();
        self.told_bytes = 0;
        self.replies.clear();
        self.reply_room = ReplyRoom::default();
        self.ends.clear();
        self.names = Names::default();
        self.lease = NamesLease::default();
        self.brings.clear();
    }

    /// Asks the leader for how long sessions may act, if it is time for that; `now_ms` is of a clock that never stands still.
    pub fn ask_for_lease(&mut self, now_ms: u64) {
        if self.says() && self.names.taken > 0 {
            let asked = self.lease.ask(now_ms);
            asked.into_iter().for_each(|number| self.line.push_back(ToLeader::AsksLease(number)));
        }
    }

    /// Until when sessions of this node may act by the names that it has: see [`lease`](super::lease).
    pub fn acts_until_ms(&self) -> u64 {
        self.lease.until_ms()
    }

    /// The leader writes. What goes to sessions of this node is left in `out`, among it what they are to answer.
    ///
    /// # Errors
    ///
    /// A text, if the leader says what it cannot say: the connection is to end.
    pub fn hear(&mut self, letter: FromLeader, out: &mut Outbox) -> Result<Heard, String> {
        if matches!(self.stage, Stage::Lost | Stage::Greets) {
            return Err("the leader speaks first".to_owned());
        }
        match letter {
            FromLeader::Names(part) => {
                return Ok(self.names.hear(part)?.map_or(Heard::Done, Heard::Names));
            }
            FromLeader::Over(why) => return Ok(Heard::Over(why)),
            FromLeader::Look(number, question) => return Ok(Heard::Look(number, question)),
            FromLeader::Uses(uses) => return Ok(Heard::Uses(uses)),
            FromLeader::Beat => return Ok(Heard::Done),
            FromLeader::Lease(number) => {
                self.lease.hear(number)?;
                return Ok(Heard::Lease);
            }
            FromLeader::Begins(terms) => {
                self.begins(&terms, out)?;
                return Ok(Heard::Begins);
            }
            FromLeader::Alarm(alarm) => return Ok(Heard::Alarm(alarm)),
            FromLeader::Session(id, group, letter) => self.tell(id, group, letter, out)?,
            FromLeader::News(group, news) => {
                let index = self.index_of(group)?;
                self.groups[index].sender.hear(&news, out);
                self.is_busy(Turn::Group(index));
            }
            FromLeader::Answered(answered) => {
                let mut told = Outbox::default();
                let asks = matches!(answered.answer, CommandAnswer::AskShard(..));
                self.commands.hear(answered, &mut told);
                if asks {
                    for (group, letter) in std::mem::take(&mut told.shards) {
                        self.index_of(group)?;
                        self.to_shard(group, letter, out);
                    }
                }
                told.append_to(out);
                self.is_busy(Turn::Commands);
            }
        }
        Ok(Heard::Done)
    }

    fn index_of(&self, group: GroupId) -> Result<usize, String> {
        let index = self.homes.index_of(group);
        index.ok_or_else(|| format!("there is no group {}", group.get()))
    }

    fn tell(
        &mut self,
        id: ConnectionId,
        group: Option<GroupId>,
        letter: ToSession,
        out: &mut Outbox,
    ) -> Result<(), String> {
        if id.node() != self.node {
            return Err(format!("a letter to {id}, which is of another node"));
        }
        match letter {
            ToSession::Paused(is_paused) => {
                self.pause(id, is_paused, out);
                return Ok(());
            }
            ToSession::Attach { .. } => return Err("it asks a session to attach".to_owned()),
            letter => match group {
                Some(group) => {
                    let index = self.index_of(group)?;
                    if let ToSession::Reply { channel, reply: Reply::Refused { .. } } = letter {
                        let others = self.groups.iter_mut();
                        others.for_each(|it| it.sender.other_is_refused(id, channel));
                    }
                    self.groups[index].sender.tell(id, letter, out);
                    self.is_busy(Turn::Group(index));
                }
                None => self.tell_of_others(id, letter, out),
            },
        }
        Ok(())
    }

    /// A letter of the owner of the names, or of a session.
    fn tell_of_others(&mut self, id: ConnectionId, letter: ToSession, out: &mut Outbox) {
        match letter {
            // It may come twice, as it is asked for again.
            ToSession::Reply { reply: Reply::Done | Reply::Gone, .. }
                if self.questions.remove(&id).is_none() => {}
            ToSession::Reply { reply: Reply::Deleted(_), .. } => {
                self.groups.iter_mut().for_each(|group| group.sender.is_deleted(id));
                out.session(id, letter);
            }
            letter => out.session(id, letter),
        }
    }

    /// What the leader has paused goes on with it at the latest: nobody else would say so.
    fn pause(&mut self, id: ConnectionId, is_paused: bool, out: &mut Outbox) {
        if !self.open.contains(&id) {
            return;
        }
        let count = self.paused.entry(id).or_default();
        if is_paused {
            *count += 1;
        } else if *count > 0 {
            *count -= 1;
        } else {
            return;
        }
        if *count == 0 {
            self.paused.remove(&id);
        }
        out.session(id, ToSession::Paused(is_paused));
    }

    /// The leader hears from now on.
    fn begins(&mut self, terms: &LeaderTerms, out: &mut Outbox) -> Result<(), String> {
        if self.stage == Stage::Begun || self.names.taken == 0 {
            return Err("it begins twice, or before its names".to_owned());
        }
        let groups = terms.shards.iter().map(|shard| self.homes.index_of(shard.group));
        if !groups.eq((0..self.groups.len()).map(Some)) {
            return Err("it begins with other groups than there are".to_owned());
        }
        let places = || self.groups.iter().zip(&terms.shards);
        if places().any(|(group, ShardTerm { streams: [bodies, acks], .. })| {
            bodies.term < group.term
                || bodies.term != acks.term
                || terms.names < self.commands.term()
        }) {
            return Err("it begins in an earlier term than the leader before".to_owned());
        }
        for (id, count) in std::mem::take(&mut self.paused) {
            (0..count).for_each(|_| out.session(id, ToSession::Paused(false)));
        }
        self.stage = Stage::Begun;
        self.has_begun = true;
        self.commands.begins(terms.names);
        for (group, shard) in self.groups.iter_mut().zip(&terms.shards) {
            let ShardTerm { group: id, begins_at, streams: [bodies, acks] } = *shard;
            group.term = bodies.term;
            group.sender.begins(bodies, acks, out);
            if self.attaches.is_some() {
                group.sender.attach(id, begins_at, self.open.iter().copied());
                let letter = || ToSession::Attach { group: id, term: bodies.term, begins_at };
                out.sessions.extend(self.open.iter().map(|connection| (*connection, letter())));
            }
        }
        (0..self.groups.len()).for_each(|index| self.is_busy(Turn::Group(index)));
        [Turn::Commands, Turn::Replies].into_iter().for_each(|turn| self.is_busy(turn));
        self.line.extend(self.questions.values().map(|question| question.letter()));
        Ok(())
    }

    /// The batch that [`Heard::Names`] gave is applied. To be said of each one, in their order, over the connection that it came by.
    pub fn names_taken(&mut self, number: u64) {
        if number > self.names.taken && number <= self.names.came {
            self.names.taken = number;
            self.say(ToLeader::NamesTaken(number));
        }
    }

    /// What happened here, for who looks at the node that leads. Returns whether it will be told: it is left out where very much waits,
    /// or nobody hears.
    pub fn told(&mut self, told: Bytes) -> bool {
        let fits = self.line.len() < TOLD_WAIT_MAX
            && told.len() <= TOLD_BYTES_MAX.saturating_sub(self.told_bytes);
        if !fits || !self.says() {
            return false;
        }
        self.told_bytes += told.len();
        self.say(ToLeader::Told(told));
        true
    }

    /// How many connections and channels are here: of all who have limits before [`names_taken`](Self::names_taken) of all names, and
    /// then of those for whom that has changed.
    pub fn uses(&mut self, uses: Bytes) {
        self.say(ToLeader::Uses(uses));
    }

    /// Direct replies that were lost as too much waited for the connection, since it began.
    pub fn lost_replies(&self) -> u64 {
        self.reply_room.lost
    }

    /// Whether some were lost since it began, once: that is to be told.
    pub fn begins_to_lose_replies(&mut self) -> bool {
        self.reply_room.begins_to_lose()
    }

    /// Answers a look. One that came over an earlier connection has nobody who waits for that.
    pub fn seen(&mut self, number: u64, seen: Bytes) {
        self.say(ToLeader::Seen(number, seen));
    }

    /// Where it is written down that it may have something to send.
    fn place(&self, turn: Turn) -> usize {
        match turn {
            Turn::Group(index) => index,
            Turn::Commands => self.groups.len(),
            Turn::Replies => self.groups.len() + 1,
        }
    }

    fn is_busy(&mut self, turn: Turn) {
        let place = self.place(turn);
        if !std::mem::replace(&mut self.is_busy[place], true) {
            self.busy.push_back(turn);
        }
    }

    /// The next letter for the leader, if one is to be sent.
    pub fn send_next(&mut self) -> Option<ToLeader> {
        match self.stage {
            Stage::Lost => return None,
            Stage::Greets => {
                self.stage = Stage::Learns;
                let has_some = self.has_begun && self.has_had_sessions;
                self.attaches = has_some.then(|| self.commands.term());
                let queues = std::mem::take(&mut self.brings);
                let hello = self.hello(if has_some { queues } else { Vec::new() });
                let over = hello.connections.iter().filter(|id| !self.open.contains(id));
                self.ends.extend(over.map(|id| (Vec::new(), *id)));
                return Some(ToLeader::Hello(hello));
            }
            Stage::Learns => return self.next_in_line(),
            Stage::Begun => {}
        }
        if let Some(letter) = self.next_in_line() {
            return Some(letter);
        }
        if self.has_end() {
            return self.ends.pop_front().map(|(_, id)| ToLeader::Ended(id));
        }
        while let Some(turn) = self.busy.pop_front() {
            if let Some(letter) = self.next_of(turn) {
                self.busy.push_back(turn);
                return Some(letter);
            }
            let place = self.place(turn);
            self.is_busy[place] = false;
        }
        None
    }

    fn next_in_line(&mut self) -> Option<ToLeader> {
        let letter = self.line.pop_front()?;
        if let ToLeader::Told(told) = &letter {
            self.told_bytes -= told.len();
        }
        Some(letter)
    }

    /// Whether [`send_next`](Self::send_next) has something.
    pub fn has_next(&self) -> bool {
        match self.stage {
            Stage::Lost => false,
            Stage::Greets => true,
            Stage::Learns => !self.line.is_empty(),
            Stage::Begun => {
                let has_some = |turn: &Turn| match *turn {
                    Turn::Group(index) => self.groups[index].sender.has_next_in_order(),
                    Turn::Commands => self.commands.has_next(),
                    Turn::Replies => !self.replies.is_empty(),
                };
                !self.line.is_empty() || self.has_end() || self.busy.iter().any(has_some)
            }
        }
    }

    fn has_end(&self) -> bool {
        let Some((waits, id)) = self.ends.front() else { return false };
        waits.iter().all(|(index, count)| self.groups[*index].sender.unnumbered()[1] >= *count)
            && !self.commands.is_ending(*id)
    }

    fn next_of(&mut self, turn: Turn) -> Option<ToLeader> {
        let index = match turn {
            Turn::Group(index) => index,
            Turn::Commands => {
                let command = self.commands.send_next()?;
                return Some(ToLeader::Meta(ToMeta::Numbered(Box::new(command))));
            }
            Turn::Replies => {
                let (id, letter) = self.replies.pop_front()?;
                self.reply_room.give_back(&letter);
                return Some(ToLeader::Session(id, letter));
            }
        };
        let Group { sender, first, .. } = &mut self.groups[index];
        let first = std::mem::replace(
            first,
            match *first {
                StreamClass::Bodies => StreamClass::Acks,
                StreamClass::Acks => StreamClass::Bodies,
            },
        );
        let letter = sender.next_in_order(first)?;
        Some(ToLeader::Shard(self.homes.group_at(index), letter))
    }

    fn hello(&self, queues: Vec<Brought>) -> SessionsHello {
        // Of those that are over, too, until the owner of the names has heard of it: if this node ends before, it is told so.
        let connections: BTreeSet<_> =
            self.open.iter().copied().chain(self.commands.ending()).collect();
        SessionsHello {
            raft_id: self.raft_id,
            start: self.start,
            attaches: self.attaches,
            connections: connections.into_iter().collect(),
            queues,
        }
    }

    /// Whether clients may come: names are here, and a leader has begun once.
    pub fn is_open(&self) -> bool {
        self.has_begun
    }

    /// How far it is, for reading.
    pub fn describe(&self) -> String {
        let mut text =
            format!("{:?}, {}, {}\n", self.stage, self.names.taken, self.commands.describe());
        for Group { sender, .. } in &self.groups {
            let unnumbered = sender.commands().count();
            text.push_str(&format!("    {}, {unnumbered} unnumbered\n", sender.describe()));
        }
        text
    }
}

/// Who wants what is not to be had from a node of sessions is told so.
fn refuse(reply: ReplyTo, out: &mut Outbox) {
    let text = "a node of sessions does not ask that of the node that leads".to_owned();
    out.reply(reply, Reply::Refused { code: ReplyCode::NotImplemented, text });
}

fn refuse_shard(letter: ToShard, out: &mut Outbox) {
    match letter {
        ToShard::Look { reply, .. }
        | ToShard::Discard { reply, .. }
        | ToShard::Move { reply, .. }
        | ToShard::IsWell { reply }
        | ToShard::List { reply, .. }
        | ToShard::Sample { reply, .. } => refuse(reply, out),
        _ => {}
    }
}

#[cfg(test)]
mod tests;
