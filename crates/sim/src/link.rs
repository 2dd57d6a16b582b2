//! A link between the sessions of a node and a shard that is treated as if it were elsewhere: letters to it are numbered, and come
//! late, twice, or not at all.
//!
//! ```text
//!   sessions --> sender --> bodies  [ 7 ][ 8 ]  --> shard's inbox
//!                      \--> acks    [ 3 ]       -->
//!            --> commands: each behind the numbers that were given before it
//! ```
//!
//! What sessions allow shards, and what shards say of that, goes over the link, too, and is lost as other letters are. Verdicts and
//! what is agreed upon come late, in order, and are lost with the term of the shard that said so: the next one is asked.
//!
//! Within a class letters keep their order, as on a connection; behind one that is lost all are, until the link is cut. Commands are not lost but with the term of the shard: what asks is asked again then.

use std::collections::VecDeque;

use leveret_broker::Shard;
use leveret_broker::message::{ConnectionId, NodeId, Outbox, ToSession, ToShard};
use leveret_broker::stream::{Numbered, StreamClass, StreamNews, StreamPlace};
use leveret_log::Log;
use leveret_node::{KeptMax, StreamSender};

use crate::random::Random;

const CLASSES: [StreamClass; 2] = StreamClass::BOTH;

/// Steps for which one class stands still.
const STALL_STEPS: usize = 60;

#[derive(Debug)]
pub(crate) struct Link {
    node: NodeId,
    max: KeptMax,
    pub(crate) sender: StreamSender,
    /// On the way, by class.
    flights: [VecDeque<Numbered>; 2],
    /// On the way: what sessions allow, and the states of accounts.
    allowing: VecDeque<ToShard>,
    states: VecDeque<(ConnectionId, ToSession)>,
    /// On the way, in order: what the shard says of letters.
    words: VecDeque<Word>,
    /// All up to these numbers came over the link in this term of the shard, or were done before it. See [`came`](Self::came).
    arrived: [u64; 2],
    /// For so many steps a class stands still.
    stalls: [usize; 2],
    /// It lost something, and is cut for that.
    is_broken: bool,
}

/// What a shard says of letters.
#[derive(Debug)]
enum Word {
    Verdict(ConnectionId, ToSession),
    News(StreamNews),
}

/// What a step of a link came to.
#[derive(Debug, Default)]
pub(crate) struct Arrived {
    /// For the shard's inbox.
    pub(crate) letters: Vec<ToShard>,
    /// For sessions.
    pub(crate) told: Vec<(ConnectionId, ToSession)>,
    /// The link is to begin anew.
    pub(crate) is_cut: bool,
}

impl Link {
    pub(crate) fn new(node: NodeId, start: u32, max: KeptMax) -> Self {
        Self {
            node,
            max,
            sender: StreamSender::new(node, start, max),
            flights: Default::default(),
            allowing: VecDeque::new(),
            states: VecDeque::new(),
            words: VecDeque::new(),
            arrived: [0; 2],
            stalls: [0; 2],
            is_broken: false,
        }
    }

    /// Of a node at another start, which has sent nothing yet.
    pub(crate) fn start_again(&mut self, start: u32) {
        *self = Self::new(self.node, start, self.max);
    }

    /// A letter of this node. Of those that get no number the ones of sessions come behind what was written before.
    pub(crate) fn post(
        &mut self,
        letter: ToShard,
        is_of_session: bool,
        out: &mut Outbox,
    ) -> Option<ToShard> {
        if let ToShard::Disconnected { connection, .. } = letter {
            self.sender.ended(connection, out);
        }
        if matches!(letter, ToShard::Allow { .. }) {
            self.allowing.push_back(letter);
        } else if StreamSender::numbers(&letter) {
            self.sender.keep(letter, out);
        } else if is_of_session {
            self.sender.send(letter);
        } else {
            return Some(letter);
        }
        None
    }

    /// A letter of the shard to a session.
    pub(crate) fn tell(&mut self, to: ConnectionId, letter: ToSession, out: &mut Outbox) {
        match letter {
            ToSession::AllowanceStates { .. } => self.states.push_back((to, letter)),
            ToSession::Confirm { .. } | ToSession::ConfirmTimeout { .. } => {
                self.words.push_back(Word::Verdict(to, letter));
            }
            letter => self.sender.tell(to, letter, out),
        }
    }

    /// What the shard says of a stream.
    pub(crate) fn hear(&mut self, news: StreamNews) {
        if news.stream.node == self.node {
            self.words.push_back(Word::News(news));
        }
    }

    /// How far the shard has taken each class.
    fn places<L: Log>(&self, shard: &Shard<L>) -> [StreamPlace; 2] {
        CLASSES.map(|class| shard.stream_place(self.sender.stream(class)))
    }

    /// All up to these numbers are in the shard's inbox in this term, or were.
    fn came<L: Log>(&self, shard: &Shard<L>) -> [u64; 2] {
        let places = self.places(shard);
        [0, 1].map(|class| self.arrived[class].max(places[class].next - 1))
    }

    fn has_command<L: Log>(&self, shard: &Shard<L>) -> bool {
        self.sender.has_command(self.came(shard))
    }

    /// Whether a step would do something.
    pub(crate) fn is_ready<L: Log>(&self, shard: &Shard<L>) -> bool {
        self.is_broken
            || self.has_command(shard)
            || self.flights.iter().any(|flight| !flight.is_empty())
            || !self.allowing.is_empty()
            || !self.states.is_empty()
            || !self.words.is_empty()
            || CLASSES.iter().any(|&class| self.sender.has_next(class))
    }

    /// Letters that have a number.
    pub(crate) fn numbered(&self) -> u64 {
        CLASSES.iter().map(|&class| self.sender.last(class)).sum()
    }

    /// Whether nothing is on its way.
    pub(crate) fn is_idle<L: Log>(&self, shard: &Shard<L>) -> bool {
        !self.is_ready(shard) && self.sender.commands().next().is_none()
    }

    /// Something happens on the link.
    pub(crate) fn step<L: Log>(&mut self, shard: &Shard<L>, random: &mut Random) -> Arrived {
        self.arrived = self.came(shard);
        let mut arrived = Arrived::default();
        if random.one_in(60) || self.is_broken && random.one_in(20) {
            arrived.is_cut = true;
            return arrived;
        }
        if !self.allowing.is_empty() || !self.states.is_empty() {
            self.step_allowances(random, &mut arrived);
        }
        let words = random.below(3);
        arrived.told.extend(self.words_that_come(words));
        let class = random.below(2);
        if random.one_in(40) {
            self.stalls[class] = random.below(STALL_STEPS);
        }
        if self.stalls[class] > 0 {
            self.stalls[class] -= 1;
            return arrived;
        }
        for _ in 0..random.below(3) {
            let Some(numbered) = self.sender.next(CLASSES[class]) else { break };
            self.is_broken |= random.one_in(40);
            // What is behind a lost one is lost.
            if !self.is_broken {
                self.flights[class].push_back(numbered);
            }
        }
        for _ in 0..random.below(3) {
            let Some(numbered) = self.flights[class].pop_front() else { break };
            arrived.letters.push(self.arrive(class, numbered));
        }
        while let Some(letter) = self.sender.next_command(self.came(shard)) {
            arrived.letters.push(letter);
        }
        arrived
    }

    /// These overtake all others, or come late.
    fn step_allowances(&mut self, random: &mut Random, arrived: &mut Arrived) {
        for _ in 0..random.below(3) {
            let Some(letter) = self.allowing.pop_front() else { break };
            match random.one_in(40) {
                true => self.is_broken = true,
                false => arrived.letters.push(letter),
            }
        }
        for _ in 0..random.below(3) {
            let Some(state) = self.states.pop_front() else { break };
            match random.one_in(40) {
                true => self.is_broken = true,
                false => arrived.told.push(state),
            }
        }
    }

    /// The next ones are heard: what sessions are told then.
    fn words_that_come(&mut self, count: usize) -> Vec<(ConnectionId, ToSession)> {
        let mut out = Outbox::default();
        for _ in 0..count {
            match self.words.pop_front() {
                Some(Word::Verdict(to, letter)) => self.sender.tell(to, letter, &mut out),
                Some(Word::News(news)) => self.sender.hear(&news, &mut out),
                None => break,
            }
        }
        out.sessions
    }

    fn arrive(&mut self, class: usize, numbered: Numbered) -> ToShard {
        if numbered.number == self.arrived[class] + 1 {
            self.arrived[class] += 1;
        }
        ToShard::Numbered(Box::new(numbered))
    }

    /// The link begins anew, perhaps because the shard did. What is on its way from before is lost, or comes all the same.
    pub(crate) fn begin<L: Log>(
        &mut self,
        shard: &Shard<L>,
        is_new_term: bool,
        keeps_flights: bool,
        out: &mut Outbox,
    ) {
        let places = self.places(shard);
        self.sender.begins(places[0], places[1], out);
        if !keeps_flights {
            self.allowing.clear();
            self.states.clear();
        }
        for (class, place) in places.into_iter().enumerate() {
            if !keeps_flights {
                self.flights[class].clear();
            }
            if is_new_term {
                self.arrived[class] = place.next - 1;
            }
        }
        if is_new_term && !keeps_flights {
            self.words.clear();
        }
        self.is_broken = false;
    }

    /// All that is to come comes now, in order: the process stops.
    pub(crate) fn flush<L: Log>(&mut self, shard: &Shard<L>, out: &mut Outbox) -> Arrived {
        let mut arrived = Arrived::default();
        if self.is_idle(shard) {
            return arrived;
        }
        arrived.letters.extend(self.allowing.drain(..));
        arrived.told.extend(self.states.drain(..));
        arrived.told.extend(self.words_that_come(usize::MAX));
        arrived.is_cut = self.is_broken;
        self.begin(shard, false, false, out);
        for (class, name) in CLASSES.into_iter().enumerate() {
            while let Some(numbered) = self.sender.next(name) {
                arrived.letters.push(self.arrive(class, numbered));
            }
        }
        while let Some(letter) = self.sender.next_command(self.came(shard)) {
            arrived.letters.push(letter);
        }
        arrived
    }

    /// How far it is, for reading.
    pub(crate) fn describe<L: Log>(&self, shard: &Shard<L>) -> String {
        let places = self.places(shard).map(|place| place.next);
        let sender = self.sender.describe();
        let (arrived, commands) = (self.arrived, self.sender.commands().count());
        let Self { max, is_broken, .. } = self;
        format!(
            "link: {sender} of {max:?} arrived={arrived:?} next={places:?} \
             commands={commands} is_broken={is_broken}\n"
        )
    }

    /// The letters on their way, in words.
    pub(crate) fn letters(&self) -> Vec<String> {
        let flights =
            self.flights.iter().flatten().map(|it| {
                format!("    {:?} {} of {}", it.stream.class, it.number, it.letter.kind())
            });
        let commands = self.sender.commands();
        flights
            .chain(commands.map(|(at, it)| format!("    behind {at:?}: {}", it.kind())))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use leveret_log::MemoryLog;
    use leveret_queue::Time;
    use leveret_topology::{Homes, Topology};

    use super::*;
    use crate::random::Seed;

    /// A command comes behind letters that the shard found in its inbox when its term began, and that are let go of before they
    /// would be sent again.
    #[test]
    fn a_command_waits_for_no_letter_that_came_before_the_term() {
        let (topology, now, mut out) = (Topology::new(), Time::from_ms(0), Outbox::default());
        let mut shard = Shard::new(Homes::default().group_at(0), MemoryLog::new());
        let mut link = Link::new(NodeId::ALONE, 0, KeptMax::default());
        let from = ConnectionId::NOBODY;
        for _ in 0..2 {
            link.post(ToShard::Settle { from, settlements: Vec::new() }, true, &mut out);
        }
        link.post(ToShard::Disconnected { connection: from, reply: None }, true, &mut out);
        let [first, second] = [(); 2].map(|()| link.sender.next(StreamClass::Acks));
        let mut inbox = vec![link.arrive(1, first.expect("a letter"))];
        link.flights[1].extend(second);
        link.begin(&shard, true, true, &mut out);

        let mut random = Random::new(Seed(1), 0);
        for _ in 0..1_000 {
            let is_command = |letter: &ToShard| matches!(letter, ToShard::Disconnected { .. });
            let has_command = inbox.iter().any(is_command);
            shard.turn(&mut inbox, &topology, now, &mut out);
            if has_command {
                let acks = link.sender.stream(StreamClass::Acks);
                assert_eq!(shard.stream_place(acks).next, 3, "it came behind both letters");
                return;
            }
            for (_, news) in std::mem::take(&mut out.news) {
                link.sender.hear(&news, &mut out);
            }
            inbox = link.step(&shard, &mut random).letters;
        }
        panic!("it never comes: {}", link.describe(&shard));
    }
}
