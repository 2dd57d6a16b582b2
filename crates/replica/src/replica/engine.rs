//! Where the engine is asked what it wants, and what it says is put into our words.

use raft::SnapshotStatus;
use raft::StateRole;
use raft::eraftpb::{self, Entry, EntryType, MessageType};

use super::{Held, Ready, Replica};
use leveret_log::BatchName;

use crate::batches::Batch;
use crate::entries;
use crate::members::{Change, MemberId};
use crate::message::{Body, Message};
use crate::output::{Output, Task};

/// What the engine says of an election that a leader asked for.
const TRANSFER: &[u8] = b"CampaignTransfer";

/// Where entries come from that the engine has new.
pub(super) enum NewEntries {
    /// From the engine itself: a leader's own.
    Engine,
    /// The leader's log has the batch.
    Log,
    /// The leader was asked for this change.
    Change(Change),
    /// From the leader, with a message.
    Leader(Vec<Batch>),
}

impl Replica {
    /// Does what the engine wants, until it wants nothing more.
    pub(super) fn drain(&mut self, mut source: NewEntries, output: &mut Output) {
        let tail = self.last().number - self.agreed.number;
        self.settle();
        while self.node.has_ready() {
            let mut ready = self.node.ready();
            if let Some(state) = ready.hs() {
                let vote = Some(MemberId(state.vote)).filter(|id| id.0 != 0);
                if (state.term, vote) != (self.word.term, self.word.vote) {
                    (self.word.term, self.word.vote) = (state.term, vote);
                    self.keep(output);
                    self.voted = self.ticket;
                }
            }
            let mut last = 0;
            if !ready.snapshot().is_empty() {
                let point = entries::point(ready.snapshot());
                last = point.at.number;
                self.replace(point, output);
            }
            let entries = ready.take_entries();
            if let Some(entry) = entries.last() {
                last = entry.index;
                let source = std::mem::replace(&mut source, NewEntries::Engine);
                self.take(entries, source, output);
            }
            let messages = [ready.take_messages(), ready.take_persisted_messages()].concat();
            let committed = ready.take_committed_entries();
            self.readies.push_back(Ready { number: ready.number(), ticket: self.voted, last });
            self.node.advance_append_async(ready);
            self.send(messages);
            self.apply(committed);
            self.settle();
        }
        self.finish(tail, output);
    }

    /// What a change of members calls a new one, as long as the log has it.
    pub(crate) fn named(&self, id: MemberId) -> Option<&str> {
        self.log().named(id)
    }

    /// Takes new entries into the log.
    fn take(&mut self, entries: Vec<Entry>, source: NewEntries, output: &mut Output) {
        let first = entries[0].index;
        if first <= self.last().number {
            self.cut_from(first, output);
        }
        let mut made = Vec::new();
        let mut copied = Vec::new();
        match source {
            NewEntries::Leader(batches) => {
                let are_new = |batch: &Batch| batch.name.number >= first;
                copied.extend(batches.into_iter().filter(are_new));
            }
            source => {
                for Entry { index: number, term, entry_type, .. } in &entries {
                    let change = match &source {
                        NewEntries::Change(change) => Some(change.clone()),
                        // The end of an exchange is all that it changes by itself.
                        _ => Some(Change::default()),
                    };
                    let change = change.filter(|_| *entry_type != EntryType::EntryNormal);
                    made.push(Batch { name: BatchName { number: *number, term: *term }, change });
                }
                self.node.mut_store().extend(made.iter().cloned());
                if !matches!(source, NewEntries::Log) {
                    output.tasks.extend(made.into_iter().map(Task::Make));
                }
            }
        }
        if !copied.is_empty() {
            self.node.mut_store().extend(copied.iter().cloned());
            output.tasks.push(Task::Copy(copied));
        }
    }

    /// This batch and all behind it are others now.
    fn cut_from(&mut self, number: u64, output: &mut Output) {
        let left = number - 1;
        // Before anything goes, or it would be missed.
        if self.lacks.is_none() && self.word.mark.number >= number {
            self.word.mark = self.log().name_of(left).unwrap_or_default();
            self.keep(output);
        }
        for (_, mark) in &mut self.marks {
            *mark = left.min(*mark);
        }
        if self.lacks.is_none() {
            self.marked = self.marked.min(left);
        }
        self.lose_from(number);
        self.node.mut_store().cut_from(number);
        output.tasks.push(Task::Cut(number));
    }

    /// The log is a snapshot.
    fn replace(&mut self, point: crate::Point, output: &mut Output) {
        // What was acknowledged above it is cut, as by a leader that has other batches.
        if self.lacks.is_none() {
            if self.word.mark > point.at {
                self.word.mark = BatchName::NONE;
                self.keep(output);
            }
            self.marks.clear();
            self.marked = 0;
        }
        self.lose_from(0);
        self.stored = 0;
        self.node.mut_store().install(point.clone());
        output.tasks.push(Task::Install(point));
    }

    /// Nothing waits any more for what was to be stored from this batch on.
    fn lose_from(&mut self, number: u64) {
        self.cuts += 1;
        self.stored = self.stored.min(number.saturating_sub(1));
        // It would say that something is here which is not.
        self.held.retain(|held| held.number < number || held.number == 0);
        // What comes instead is written next, and stands for all.
        for ready in &mut self.readies {
            if ready.last >= number {
                ready.last = u64::MAX;
            }
        }
    }

    /// Holds messages until what they say is so on disk.
    fn send(&mut self, messages: Vec<eraftpb::Message>) {
        for message in messages {
            let kind = message.get_msg_type();
            let to = MemberId(message.to);
            let mut message = of_engine(message);
            self.say_leases(&mut message);
            if let Body::Append { batches, .. } = &mut message.body {
                for batch in batches.iter_mut().filter(|batch| batch.change.is_some()) {
                    batch.change = self.log().change_at(batch.name.number).cloned();
                }
            }
            let number = match &message.body {
                Body::Appended { number } => *number,
                // The engine reckons with a candidate that has stored its log.
                Body::Vote { .. } | Body::PreVote { .. } => self.last().number,
                _ => 0,
            };
            self.held.push(Held { to, message, ticket: self.voted, number });
            if kind == MessageType::MsgSnapshot {
                // It is said again with each beat, until the other one has what it lacks.
                self.node.report_snapshot(to.0, SnapshotStatus::Failure);
            }
        }
    }

    /// What a message says of leases.
    fn say_leases(&mut self, message: &mut Message) {
        let hold_ms = self.settings.hold_ms();
        let gives_way = self.is_transferring();
        match &mut message.body {
            Body::Heartbeat { stamp, .. } => *stamp = self.leases.stamp(gives_way),
            Body::TimeoutNow { stamp, lease_ms } => {
                *stamp = self.leases.stamp(gives_way);
                *lease_ms = self.leases.waits_ms(message.term);
            }
            Body::Heard { stamp } => {
                self.leases.support(message.term);
                *stamp = self.leases.answers;
            }
            Body::Vote { transfer, .. } => {
                let asked = transfer.and(self.leases.asked);
                *transfer = asked.map(|(stamp, _)| stamp);
                let own_ms = self.leases.supports_until(hold_ms);
                let until_ms = asked.map_or(own_ms, |(_, ms)| ms);
                self.leases.wait_until(message.term, until_ms);
            }
            Body::Voted { granted: true, lease_ms } if !self.leases.votes_as_asked => {
                let until_ms = self.leases.supports_until(hold_ms);
                *lease_ms = until_ms.saturating_sub(self.leases.now_ms);
            }
            _ => {}
        }
    }

    /// Applies what is agreed upon and stored here: that is changes of members, and nothing else.
    fn apply(&mut self, committed: Vec<Entry>) {
        for Entry { index: number, entry_type, .. } in &committed {
            let change = self.log().change_at(*number).cloned();
            let is_change = *entry_type != EntryType::EntryNormal;
            let change = change.filter(|_| is_change).map(|it| entries::conf_change(&it));
            // One that cannot be done is done by nobody.
            let changed = change.and_then(|change| self.node.apply_conf_change(&change).ok());
            let changed = changed.map(|state| entries::members(&state));
            let has_changed = changed.is_some();
            self.node.mut_store().apply_to(*number, changed);
            // One batch after the other: the end of an exchange is made by the one that began it.
            let last = self.node.raft.raft_log.last_index();
            self.node.advance_apply_to(*number);
            if self.node.raft.raft_log.last_index() > last {
                // The engine would send it with the next beat.
                self.node.raft.bcast_append();
            }
            let is_out = has_changed && !self.members().has_voter(self.id);
            if is_out && self.node.raft.state == StateRole::Leader {
                let term = self.node.raft.term;
                self.node.raft.become_follower(term, 0);
            }
        }
    }

    /// Tells the engine what is on disk.
    fn settle(&mut self) {
        let sure = self.sure();
        let mut done = None;
        for at in 0..self.readies.len() {
            // What was cut waits for what came instead.
            if self.readies[at].last == u64::MAX {
                let next = self.readies.range(at..).find(|it| (1..u64::MAX).contains(&it.last));
                self.readies[at].last = next.map_or(u64::MAX, |next| next.last);
            }
        }
        let kept = self.kept;
        while let Some(ready) =
            self.readies.pop_front_if(|ready| ready.last <= sure && ready.ticket <= kept)
        {
            done = Some(ready.number);
        }
        if let Some(number) = done {
            self.node.on_persist_ready(number);
        }
        // A snapshot is applied as soon as it is stored.
        let point = self.log().point().at.number;
        let log = &self.node.raft.raft_log;
        if log.applied < point && log.persisted >= point {
            self.node.advance_apply_to(point);
        }
    }

    /// Looks at a message before the engine does: what the batches are, and whether what was acknowledged is missed.
    pub(super) fn heed(
        &mut self,
        (from, term): (MemberId, u64),
        body: &mut Body,
        output: &mut Output,
    ) -> Vec<Batch> {
        let last = self.last();
        let (is_missed, batches) = match body {
            Body::Append { before, batches, .. } => (before.number > last.number, batches.clone()),
            Body::Heartbeat { agreed, .. } => {
                let number = *agreed;
                let is_missed = number > last.number && term >= self.term();
                if is_missed {
                    self.miss(BatchName { number, term }, output);
                }
                // Of the leader's term there are its own batches alone. An older one may be of a tail that is to be cut, if this log
                // is an older copy; what is agreed upon of it comes with batches.
                let here = self.log().name_of(last.number.min(number));
                *agreed = here.filter(|it| it.term == term).map_or(0, |it| it.number);
                (is_missed, Vec::new())
            }
            _ => (false, Vec::new()),
        };
        if is_missed && self.lacks.is_some() {
            let message = Message { term: self.term(), body: Body::Lacks { last } };
            output.messages.push((from, message));
        }
        batches
    }
}

impl Replica {
    /// The leader knows of a batch that this member acknowledged to it, and neither its log nor its word has it: both are
    /// older than they were. From now on the word says so, and it does not stand, nor vote for who has less, until it has that again.
    fn miss(&mut self, acknowledged: BatchName, output: &mut Output) {
        if self.lacks.is_some() {
            return;
        }
        // Which term that batch has it does not know: none above the leader's.
        self.lacks = Some(acknowledged);
        self.word.mark = self.word.mark.max(acknowledged);
        self.marks.clear();
        self.marked = u64::MAX;
        self.keep(output);
    }
}

/// What the engine says, in our words.
fn of_engine(message: eraftpb::Message) -> Message {
    use MessageType as Kind;
    let name = BatchName { number: message.index, term: message.log_term };
    let granted = !message.reject;
    let body = match message.get_msg_type() {
        Kind::MsgRequestPreVote => Body::PreVote { last: name },
        Kind::MsgRequestPreVoteResponse => Body::PreVoted { granted },
        Kind::MsgRequestVote => {
            Body::Vote { last: name, transfer: (&message.context[..] == TRANSFER).then_some(0) }
        }
        Kind::MsgRequestVoteResponse => Body::Voted { granted, lease_ms: 0 },
        Kind::MsgAppend => {
            let batches = message.entries.iter().map(|entry| {
                let name = BatchName { number: entry.index, term: entry.term };
                let is_change = entry.get_entry_type() != EntryType::EntryNormal;
                Batch { name, change: is_change.then(Change::default) }
            });
            Body::Append { before: name, batches: batches.collect(), agreed: message.commit }
        }
        Kind::MsgAppendResponse if message.reject => {
            let hint = BatchName { number: message.reject_hint, term: message.log_term };
            Body::Refused { number: message.index, hint }
        }
        Kind::MsgAppendResponse => Body::Appended { number: message.index },
        Kind::MsgHeartbeat => Body::Heartbeat { agreed: message.commit, stamp: 0 },
        Kind::MsgHeartbeatResponse => Body::Heard { stamp: 0 },
        Kind::MsgSnapshot => Body::Behind { point: entries::point(message.get_snapshot()) },
        Kind::MsgTimeoutNow => Body::TimeoutNow { stamp: 0, lease_ms: 0 },
        kind => unreachable!("nobody asked for {kind:?}"),
    };
    Message { term: message.term, body }
}

/// What a member says, in the engine's words.
pub(super) fn to_engine(from: MemberId, to: MemberId, message: Message) -> eraftpb::Message {
    use MessageType as Kind;
    let mut made = eraftpb::Message::default();
    (made.from, made.to, made.term) = (from.0, to.0, message.term);
    let name = |made: &mut eraftpb::Message, name: BatchName| {
        (made.index, made.log_term) = (name.number, name.term);
    };
    let kind = match message.body {
        Body::PreVote { last } => {
            name(&mut made, last);
            Kind::MsgRequestPreVote
        }
        Body::PreVoted { granted } => {
            made.reject = !granted;
            Kind::MsgRequestPreVoteResponse
        }
        Body::Vote { last, transfer } => {
            name(&mut made, last);
            if transfer.is_some() {
                made.context = TRANSFER.into();
            }
            Kind::MsgRequestVote
        }
        Body::Voted { granted, .. } => {
            made.reject = !granted;
            Kind::MsgRequestVoteResponse
        }
        Body::Append { before, batches, agreed } => {
            name(&mut made, before);
            made.commit = agreed;
            made.set_entries(batches.iter().map(entries::entry).collect::<Vec<_>>().into());
            Kind::MsgAppend
        }
        Body::Appended { number } => {
            made.index = number;
            Kind::MsgAppendResponse
        }
        Body::Refused { number, hint } => {
            (made.index, made.reject) = (number, true);
            (made.reject_hint, made.log_term) = (hint.number, hint.term);
            Kind::MsgAppendResponse
        }
        Body::Heartbeat { agreed, .. } => {
            made.commit = agreed;
            Kind::MsgHeartbeat
        }
        Body::Heard { .. } => Kind::MsgHeartbeatResponse,
        Body::Behind { point } => {
            made.set_snapshot(entries::snapshot(&point));
            Kind::MsgSnapshot
        }
        Body::TimeoutNow { .. } => Kind::MsgTimeoutNow,
        Body::Lacks { .. } => unreachable!("the engine does not know of it"),
    };
    made.set_msg_type(kind);
    made
}
