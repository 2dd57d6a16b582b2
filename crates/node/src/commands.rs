//! What a node keeps of the commands that it numbers for the owner of the names, until they are answered.
//!
//! ```text
//!            first            cursor        end
//!   let go     [ 4 ][ . ][ 6 ][ 7 ][ 8 ]     [ bind ][ declare ]   wait for a number
//!                     `- answered  `- to be sent
//! ```
//!
//! Whoever sends a command waits for its answer before the next one, so a node keeps two for each connection at most: a command and
//! the connection's end. [`COMMANDS_MAX`] of them have numbers, or fewer; the others wait in their order, with their sessions. To
//! another owner, or over a new link, all that has no answer is sent again, in order. Of a number that is answered behind one that is
//! not only the number is sent. An answer is taken by its number and passed on once, so an answer that comes late is never that of
//! the session's next command. One of an earlier owner counts no more once there is a later one: the command is sent to that one
//! anyway, and what it was refused for may be otherwise there. See [`command`](leveret_broker::command) for the other side.
//!
//! With [`StreamSender`](crate::StreamSender) it has in common that a cursor goes back; what it keeps, when that is let go of, and
//! who waits are others.

use std::collections::VecDeque;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use leveret_broker::command::{
    Answered, COMMANDS_MAX, CommandAnswer, CommandStream, NumberedCommand,
};
use leveret_broker::message::{ConnectionId, NodeId, Outbox, ReplyTo, ToMeta, ToShard};

/// The commands of a node to the owner of the names.
#[derive(Debug)]
pub struct CommandSender {
    stream: CommandStream,
    /// How many have numbers at a time.
    max: u64,
    /// Of the owner, as far as is known.
    term: u64,
    /// The number of the first place.
    first: u64,
    /// Those that are answered behind others are none. The first one is not answered.
    kept: VecDeque<Option<KeptCommand>>,
    /// The number that is sent next.
    cursor: u64,
    /// Those without a number, in their order.
    waiting: VecDeque<KeptCommand>,
    /// Connections with commands that are kept.
    connections: HashMap<ConnectionId, ConnectionCommands, FixedState>,
}

/// What is kept of a connection.
#[derive(Debug, Default)]
struct ConnectionCommands {
    commands: usize,
    /// The number that its end has, or will get, if it is among them: nobody waits for the others.
    end: Option<u64>,
}

#[derive(Debug)]
struct KeptCommand {
    command: ToMeta,
    connection: ConnectionId,
    /// Who waits for the answer, if the connection has not ended meanwhile.
    to: Option<ReplyTo>,
}

impl CommandSender {
    /// Of a node at its `start`: nothing is numbered yet. So many commands have numbers at a time: not more than [`COMMANDS_MAX`],
    /// one at least.
    pub fn new(node: NodeId, start: u32, max: u64) -> Self {
        Self {
            stream: CommandStream { node, start },
            max: max.clamp(1, COMMANDS_MAX),
            term: 0,
            first: 1,
            kept: VecDeque::new(),
            cursor: 1,
            waiting: VecDeque::new(),
            connections: HashMap::default(),
        }
    }

    /// The name of its stream.
    pub fn stream(&self) -> CommandStream {
        self.stream
    }

    /// Whether a letter is one of those that get a number.
    pub fn numbers(letter: &ToMeta) -> bool {
        letter.numbered_asker().is_some()
    }

    /// Keeps a letter that gets a [number](Self::numbers). With the end of a connection nobody waits for the answers of its other
    /// commands any more.
    ///
    /// # Panics
    ///
    /// If it gets none.
    pub fn keep(&mut self, command: ToMeta) {
        let asker = command.numbered_asker();
        let Some((connection, to)) = asker else { panic!("{} gets no number", command.kind()) };
        let number = self.end() + self.waiting.len() as u64;
        let kept = self.connections.entry(connection).or_default();
        kept.commands += 1;
        if is_end(&command) {
            kept.end = Some(number);
        }
        self.waiting.push_back(KeptCommand { command, connection, to });
        self.number_some();
    }

    /// A command is kept no more. Returned is who waits for its answer.
    fn let_go(&mut self, KeptCommand { command, connection, to }: KeptCommand) -> Option<ReplyTo> {
        let Entry::Occupied(mut kept) = self.connections.entry(connection) else { return to };
        let is_awaited = is_end(&command) || kept.get().end.is_none();
        kept.get_mut().commands -= 1;
        if kept.get().commands == 0 {
            kept.remove();
        }
        to.filter(|_| is_awaited)
    }

    fn number_some(&mut self) {
        let room = self.max - self.kept.len() as u64;
        let count = self.waiting.len().min(room as usize);
        self.kept.extend(self.waiting.drain(..count).map(Some));
    }

    /// The number that the next command will get.
    fn end(&self) -> u64 {
        self.first + self.kept.len() as u64
    }

    /// The next command that is to be sent, if there is one.
    pub fn send_next(&mut self) -> Option<NumberedCommand> {
        let number = self.cursor;
        let kept = self.kept.get((number - self.first) as usize)?;
        self.cursor += 1;
        Some(NumberedCommand {
            stream: self.stream,
            term: self.term,
            number,
            kept_from: self.first,
            command: kept.as_ref().and_then(|kept| kept.command.again()),
        })
    }

    /// Whether [`send_next`](Self::send_next) has something.
    pub fn has_next(&self) -> bool {
        self.cursor < self.end()
    }

    /// Whether the end of a connection is to be sent, or sent again.
    pub fn is_ending(&self, connection: ConnectionId) -> bool {
        let end = self.connections.get(&connection).and_then(|kept| kept.end);
        end.is_some_and(|end| end >= self.cursor)
    }

    /// Connections whose ends are not answered.
    pub fn ending(&self) -> impl Iterator<Item = ConnectionId> + '_ {
        let ended = self.connections.iter().filter(|(_, kept)| kept.end.is_some());
        ended.map(|(connection, _)| *connection)
    }

    /// The link is new, or the owner of the names is one of this term: all that has no answer is sent again.
    pub fn begins(&mut self, term: u64) {
        self.term = self.term.max(term);
        self.cursor = self.first;
    }

    /// The owner of this term answers. The first answer of a command is passed on to who waits, or its shard is asked for it.
    pub fn hear(&mut self, answered: Answered, out: &mut Outbox) {
        let Answered { stream, term, number, answer } = answered;
        let is_mine = stream == self.stream && term == self.term;
        let Some(place) = number.checked_sub(self.first).filter(|_| is_mine) else { return };
        let place = usize::try_from(place).ok().and_then(|place| self.kept.get_mut(place));
        let Some(kept) = place.and_then(Option::take) else { return };
        match (self.let_go(kept), answer) {
            (None, _) => {}
            (Some(to), CommandAnswer::Reply(reply)) => out.reply(to, reply),
            (Some(reply), CommandAnswer::AskShard(queue, home)) => {
                out.shard(home, ToShard::Count { reply, queue });
            }
        }
        while let Some(None) = self.kept.front() {
            self.kept.pop_front();
            self.first += 1;
        }
        self.cursor = self.cursor.max(self.first);
        self.number_some();
    }

    /// Of the owner that it sends to.
    pub fn term(&self) -> u64 {
        self.term
    }

    /// Commands that have numbers and are not answered.
    pub fn unanswered(&self) -> impl Iterator<Item = (u64, &ToMeta)> {
        let kept = (self.first..).zip(&self.kept);
        kept.filter_map(|(number, kept)| Some((number, &kept.as_ref()?.command)))
    }

    /// How many are not answered.
    pub fn kept(&self) -> usize {
        self.kept.iter().flatten().count() + self.waiting.len()
    }

    /// Commands that got a number.
    pub fn numbered(&self) -> u64 {
        self.end() - 1
    }

    /// How far it is, for reading.
    pub fn describe(&self) -> String {
        let Self { first, cursor, term, waiting, .. } = self;
        let kept: Vec<_> = self.kept.iter().flatten().map(|kept| kept.command.kind()).collect();
        let (end, waiting) = (self.end(), waiting.len());
        format!("commands {first}..{end} cursor {cursor} term {term}, {waiting} wait, {kept:?}")
    }
}

/// Whether a command is the end of its connection.
fn is_end(command: &ToMeta) -> bool {
    matches!(command, ToMeta::Disconnected { .. })
}

#[cfg(test)]
mod tests;
