//! Numbered commands are done once: see [`command`](crate::command).
//!
//! The owner takes the next number of a stream only. One that came before is answered again if it has an answer, and nothing else:
//! what is under way is answered when it is done. What was stored is noted in the log, in the batch that has the change, so whoever
//! owns the names next knows it; and so is each deletion, lest it be done to another thing of that name. What was refused, found as
//! asked for, or is not stored changed nothing that the next owner has: its answer is kept in memory, so that its number has one
//! outcome in this term. In another one it is done, and may have another outcome, of which its session has not heard. What could not
//! be written is not answered at all: the log has failed, or is another one's, and a number that came again may be noted in it. The
//! next owner says what came of it.
//!
//! Notes are let go of with the numbers: each letter says from where on its sender keeps them.

use std::collections::{BTreeMap, VecDeque};

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use leveret_log::{Log, Offset};

use super::Meta;
use super::saved::SaveError;
use crate::command::{
    Answered, COMMANDS_MAX, CommandAnswer, CommandNote, CommandStream, Noted, NumberedCommand,
};
use crate::held::Bookmark;
use crate::message::{
    ChannelId, ConnectionId, NodeId, Outbox, Refusal, Reply, ReplyTo, ToMeta, ToSession, ToShard,
};

#[derive(Debug, Default)]
pub(super) struct Commands {
    term: u64,
    streams: BTreeMap<CommandStream, Stream>,
    /// The latest start of each node that is known: those before are over, and nothing that comes of them counts.
    starts: BTreeMap<NodeId, u32>,
    /// Commands under way in their order, by who is to be answered: one each, as a session waits for the answer before it sends the
    /// next one, and its end is channel 0's. If its sender had let go of one, its answer is not that of the next one.
    doing: HashMap<(ConnectionId, ChannelId), VecDeque<(CommandStream, u64)>, FixedState>,
}

#[derive(Debug)]
struct Stream {
    /// The last number that came in this term, or that its sender had let go of.
    taken: u64,
    /// The sender has the answers of those below.
    kept_from: u64,
    /// Of those that it keeps.
    fates: BTreeMap<u64, Fate>,
    /// A number came that is not the next one.
    has_gap: bool,
}

impl Default for Stream {
    fn default() -> Self {
        Self { taken: 0, kept_from: 1, fates: BTreeMap::new(), has_gap: false }
    }
}

#[derive(Debug)]
enum Fate {
    /// Under way. With its note if nobody is to do it again, though it is not answered yet.
    Doing(WhenNoted, Option<Offset>),
    /// Done. Without a note another owner does it again.
    Done(Option<Offset>, Noted),
    Refused(Refusal),
}

/// When what was done is noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WhenNoted {
    /// Never. The end of a connection does what is left to do: an owner that has done what the connection wanted before its end has
    /// more to do than the one before, who had refused it, or lost it.
    Never,
    /// When a change was stored with it. Else another owner has nothing of it, and does it, or finds it done.
    Stored,
    /// Always: what has that name at another owner may be another one's.
    Always,
}

impl WhenNoted {
    fn of(command: &ToMeta) -> Self {
        match command {
            ToMeta::DeleteExchange { .. } | ToMeta::Unbind(_) => Self::Always,
            ToMeta::Disconnected { .. } => Self::Never,
            _ => Self::Stored,
        }
    }
}

impl Fate {
    fn note(&self) -> Option<Offset> {
        match self {
            Self::Doing(_, note) | Self::Done(note, _) => *note,
            Self::Refused(_) => None,
        }
    }

    fn answer(&self) -> Option<CommandAnswer> {
        Some(match self {
            Self::Doing(..) => return None,
            Self::Done(_, noted) => noted.answer(),
            Self::Refused(Refusal { code, text }) => {
                CommandAnswer::Reply(Reply::Refused { code: *code, text: text.clone() })
            }
        })
    }
}

/// What a letter did to what is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    Nothing,
    Written,
    /// It could not be written, or not all of it: the log takes nothing any more.
    Lost,
}

/// What a number that came is.
#[derive(Debug)]
enum Came {
    /// To be done.
    Next(ToMeta),
    /// It has an answer.
    Answer(CommandAnswer),
    /// Nothing is to be done.
    Nothing,
}

impl Stream {
    fn take(&mut self, number: u64, command: Option<ToMeta>) -> Came {
        let next = self.taken.saturating_add(1);
        let is_next = number == next && number > self.taken;
        if number > next || number - self.kept_from >= COMMANDS_MAX {
            if !std::mem::replace(&mut self.has_gap, true) {
                let Self { taken, kept_from, .. } = self;
                tracing::error!(number, taken, kept_from, "a numbered command is not the next one");
            }
            return Came::Nothing;
        }
        if is_next {
            self.taken = number;
            self.has_gap = false;
        }
        match (self.fates.get(&number), command) {
            (Some(fate), _) => fate.answer().map_or(Came::Nothing, Came::Answer),
            (None, Some(command)) if is_next => Came::Next(command),
            (None, _) => Came::Nothing,
        }
    }

    /// The sender has let go of those below: what of them is under way is answered to nobody. Returns their notes.
    fn let_go(&mut self, kept_from: u64) -> Vec<Offset> {
        if kept_from <= self.kept_from {
            return Vec::new();
        }
        self.kept_from = kept_from;
        self.taken = self.taken.max(kept_from - 1);
        let kept = self.fates.split_off(&kept_from);
        let gone = std::mem::replace(&mut self.fates, kept);
        gone.values().filter_map(Fate::note).collect()
    }
}

impl Commands {
    /// Whether a command with a number waits for this answer.
    fn is_doing(&self, to: ReplyTo) -> bool {
        !self.doing.is_empty() && self.doing.contains_key(&(to.connection, to.channel))
    }

    /// Whether no later start of its node is known.
    fn is_latest(&mut self, CommandStream { node, start }: CommandStream) -> bool {
        let latest = self.starts.entry(node).or_insert(start);
        *latest = start.max(*latest);
        *latest == start
    }

    fn fate(&mut self, (stream, number): (CommandStream, u64)) -> Option<&mut Fate> {
        self.streams.get_mut(&stream)?.fates.get_mut(&number)
    }

    /// Whether a command is noted as done: nobody does it again.
    pub(super) fn is_noted(&self, (stream, number): (CommandStream, u64)) -> bool {
        let stream = self.streams.get(&stream);
        stream.and_then(|it| it.fates.get(&number)).is_some_and(|it| it.note().is_some())
    }

    /// A note is in the log that this owner takes over.
    pub(super) fn found(&mut self, at: Offset, note: &CommandNote) {
        let CommandNote { stream, number, noted } = *note;
        self.is_latest(stream);
        let fates = &mut self.streams.entry(stream).or_default().fates;
        fates.insert(number, Fate::Done(Some(at), noted));
    }
}

/// Whom a command is answered to. The end of a connection that nobody waits for has an answer, too, for its node.
fn answered_to(command: &mut ToMeta) -> Option<ReplyTo> {
    let (connection, reply) = command.numbered_asker()?;
    let to = reply.unwrap_or(ReplyTo { connection, channel: 0 });
    if let ToMeta::Disconnected { reply, .. } = command {
        *reply = Some(to);
    }
    Some(to)
}

impl<L: Log> Meta<L> {
    /// From now on it owns the names in this term, greater than those before: it takes numbered commands that were sent to it in
    /// this term.
    pub fn begin_term(&mut self, term: u64) {
        self.commands.term = term;
    }

    /// See [`begin_term`](Self::begin_term).
    pub fn term(&self) -> u64 {
        self.commands.term
    }

    /// Forgets the commands of processes that are not alive: nothing comes of them any more.
    pub fn keep_commands(&mut self, is_alive: impl Fn(CommandStream) -> bool) {
        let gone = self.commands.streams.extract_if(.., |stream, _| !is_alive(*stream));
        let notes: Vec<Offset> =
            gone.flat_map(|(_, it)| it.fates.into_values()).filter_map(|it| it.note()).collect();
        notes.into_iter().for_each(|note| self.saved.release(note));
    }

    /// Notes of commands in the log.
    pub fn command_notes(&self) -> usize {
        let fates = self.commands.streams.values().flat_map(|it| it.fates.values());
        fates.filter(|fate| fate.note().is_some()).count()
    }

    /// A command with a number came. Returned if it is to be done.
    #[cold]
    pub(super) fn numbered(
        &mut self,
        numbered: NumberedCommand,
        out: &mut Outbox,
    ) -> Option<ToMeta> {
        let NumberedCommand { stream: id, term, number, kept_from, mut command } = numbered;
        let stream = self.commands.streams.get(&id);
        let is_let_go = stream.is_some_and(|stream| number < stream.kept_from);
        if term != self.commands.term || number < kept_from || kept_from == 0 || is_let_go {
            return None;
        }
        let is_first = stream.is_none_or(|stream| stream.taken == 0);
        if !self.commands.is_latest(id) {
            return None;
        }
        if is_first {
            // All commands of its earlier starts came before, or in an earlier term.
            self.keep_commands(|it| it.node != id.node || it.start >= id.start);
        }
        let to = match &mut command {
            None => None,
            Some(command) => {
                let to = answered_to(command);
                if to.is_none() {
                    let kind = command.kind();
                    tracing::error!(number, kind, "a letter has a number that gets none");
                    return None;
                }
                to
            }
        };
        let stream = self.commands.streams.entry(id).or_default();
        let notes = stream.let_go(kept_from);
        let came = stream.take(number, command);
        notes.into_iter().for_each(|note| self.saved.release(note));
        match (came, to) {
            (Came::Next(command), Some(to)) => {
                let stream = self.commands.streams.entry(id).or_default();
                stream.fates.insert(number, Fate::Doing(WhenNoted::of(&command), None));
                let doing = self.commands.doing.entry((to.connection, to.channel)).or_default();
                doing.push_back((id, number));
                Some(command)
            }
            (Came::Answer(answer), _) => {
                let start = Bookmark::end_of(out);
                out.answers.push(Answered { stream: id, term, number, answer });
                // Its note may not be agreed upon yet.
                self.held.push(start.to(Bookmark::end_of(out)));
                None
            }
            (Came::Next(_) | Came::Nothing, _) => None,
        }
    }

    /// A command has done what others can see, and what is left of it is done by whoever owns the names: it is not to be done again.
    pub(super) fn is_done_but_for_its_rest(&mut self, to: ReplyTo) -> Result<(), SaveError> {
        let doing = self.commands.doing.get(&(to.connection, to.channel));
        let Some(&(stream, number)) = doing.and_then(VecDeque::front) else { return Ok(()) };
        if let Some(Fate::Doing(_, note)) = self.commands.fate((stream, number)) {
            let noted = CommandNote { stream, number, noted: Noted::Done };
            *note = Some(self.saved.append_note(&noted)?);
        }
        Ok(())
    }

    /// Whether a command has a number, for whom this is the answer, and is noted even where it changes nothing: it needs room.
    pub(super) fn is_noted_anyway(&self, command: &ToMeta, to: ReplyTo) -> bool {
        WhenNoted::of(command) == WhenNoted::Always && self.commands.is_doing(to)
    }

    /// Answers since `start` to commands with numbers become those of their numbers, and what was done is noted. Returns whether
    /// something was.
    #[inline]
    pub(super) fn note_answers(
        &mut self,
        start: Bookmark,
        stored: Stored,
        out: &mut Outbox,
    ) -> bool {
        !self.commands.doing.is_empty() && self.note_some(start, stored, out)
    }

    #[cold]
    fn note_some(&mut self, start: Bookmark, stored: Stored, out: &mut Outbox) -> bool {
        let commands = &self.commands;
        let mut answers: Vec<(ReplyTo, Result<Noted, Refusal>)> = Vec::new();
        let told = out.sessions.extract_if(start.sessions().., |(to, letter)| {
            let ToSession::Reply { channel, .. } = *letter else { return false };
            commands.is_doing(ReplyTo { connection: *to, channel })
        });
        for (connection, letter) in told {
            let ToSession::Reply { channel, reply } = letter else { continue };
            let answer = match reply {
                Reply::Refused { code, text } => Err(Refusal { code, text }),
                _ => Ok(Noted::Done),
            };
            answers.push((ReplyTo { connection, channel }, answer));
        }
        for at in start.shards()..out.shards.len() {
            let Some((home, letter)) = out.shards.get_mut(at) else { break };
            let (to, queue) = match letter {
                ToShard::Create { reply: Some(reply), queue } => (*reply, *queue),
                ToShard::Count { reply, queue } => (*reply, *queue),
                _ => continue,
            };
            if commands.is_doing(to) {
                // Asked by its node once that is answered.
                *letter = ToShard::Create { reply: None, queue };
                answers.push((to, Ok(Noted::AskShard(queue, *home))));
            }
        }
        let mut has_noted = false;
        for (to, answer) in answers {
            has_noted |= self.answer(to, answer, stored, out);
        }
        has_noted
    }

    /// Whether it is noted. What could not be written has no answer, and is under way until another one owns the names.
    fn answer(
        &mut self,
        to: ReplyTo,
        answer: Result<Noted, Refusal>,
        stored: Stored,
        out: &mut Outbox,
    ) -> bool {
        let Entry::Occupied(mut doing) = self.commands.doing.entry((to.connection, to.channel))
        else {
            return false;
        };
        let first = doing.get_mut().pop_front();
        if doing.get().is_empty() {
            doing.remove();
        }
        let Some(key @ (stream, number)) = first else { return false };
        let Some(Fate::Doing(when, early)) = self.commands.fate(key) else { return false };
        let is_noted = match when {
            WhenNoted::Never => false,
            WhenNoted::Stored => stored == Stored::Written,
            WhenNoted::Always => true,
        };
        let fate = match (answer, *early) {
            // Whatever it did, it may rest on what is lost: an end on a queue that was to be its connection's.
            _ if stored == Stored::Lost || self.saved.failure().is_some() => return false,
            // What is noted is done, whatever became of the rest.
            (answer, Some(at)) => Fate::Done(Some(at), answer.unwrap_or(Noted::Done)),
            (Err(refusal), None) => Fate::Refused(refusal),
            (Ok(noted), None) if !is_noted => Fate::Done(None, noted),
            (Ok(noted), None) => {
                match self.saved.append_note(&CommandNote { stream, number, noted }) {
                    Ok(at) => Fate::Done(Some(at), noted),
                    Err(error) => {
                        tracing::error!(number, %error, "a command could not be noted");
                        return false;
                    }
                }
            }
        };
        let (answer, is_noted) = (fate.answer(), fate.note().is_some());
        if let Some(place) = self.commands.fate(key) {
            *place = fate;
        }
        let term = self.commands.term;
        out.answers.extend(answer.map(|answer| Answered { stream, term, number, answer }));
        is_noted
    }
}
