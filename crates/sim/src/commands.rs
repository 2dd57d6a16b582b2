//! A link between the sessions of a node and the owner of the names that is treated as if it were elsewhere: commands to it are
//! numbered, and they and their answers come late, twice, or not at all until the link is cut.
//!
//! ```text
//!   sessions --> sender --> commands [ 7 ][ 8 ] --> the owner's inbox
//!            <--------- <-- answers  [ 5 ][ 6 ] <-- the owner's turns
//! ```
//!
//! What is lost is noticed by nobody: the link is cut some time after, and begins anew. What is on its way from before is lost then,
//! or comes all the same.

use std::collections::VecDeque;

use leveret_broker::command::{Answered, NumberedCommand};
use leveret_broker::message::{NodeId, Outbox, ToMeta};
use leveret_node::CommandSender;

use crate::random::Random;

/// Steps for which one direction stands still.
const STALL_STEPS: usize = 60;

#[derive(Debug)]
pub(crate) struct CommandLink {
    max: u64,
    sender: CommandSender,
    commands: VecDeque<NumberedCommand>,
    answers: VecDeque<Answered>,
    /// For so many steps commands stand still, and answers.
    stalls: [usize; 2],
    /// It lost something, and is cut for that.
    is_broken: bool,
}

impl CommandLink {
    /// Of a node at this start. So many commands have numbers at a time.
    pub(crate) fn new(node: NodeId, start: u32, max: u64) -> Self {
        let sender = CommandSender::new(node, start, max);
        let (commands, answers) = Default::default();
        Self { max, sender, commands, answers, stalls: [0; 2], is_broken: false }
    }

    /// Of a node at another start, which has sent nothing yet.
    pub(crate) fn start_again(&mut self, start: u32) {
        *self = Self::new(self.sender.stream().node, start, self.max);
    }

    /// A letter of this node. Returned if it gets no number.
    pub(crate) fn post(&mut self, letter: ToMeta) -> Option<ToMeta> {
        if !CommandSender::numbers(&letter) {
            return Some(letter);
        }
        self.sender.keep(letter);
        None
    }

    /// The owner answers.
    pub(crate) fn answered(&mut self, answered: Answered) {
        self.answers.push_back(answered);
    }

    /// Whether a step would do something.
    pub(crate) fn is_ready(&self) -> bool {
        self.is_broken
            || self.sender.has_next()
            || !self.commands.is_empty()
            || !self.answers.is_empty()
    }

    /// Commands that are not answered.
    pub(crate) fn kept(&self) -> usize {
        self.sender.kept()
    }

    /// Commands that got a number.
    pub(crate) fn numbered(&self) -> u64 {
        self.sender.numbered()
    }

    /// Something happens on the link. Returned is what comes to the owner; what comes to sessions and shards is left in `out`.
    pub(crate) fn step(&mut self, random: &mut Random, out: &mut Outbox) -> Vec<ToMeta> {
        let mut came = Vec::new();
        if random.one_in(60) || self.is_broken && random.one_in(20) {
            let keeps_flights = random.one_in(2);
            self.begin(self.sender.term(), keeps_flights);
            return came;
        }
        let way = random.below(2);
        if random.one_in(40) {
            self.stalls[way] = random.below(STALL_STEPS);
        }
        if self.stalls[way] > 0 {
            self.stalls[way] -= 1;
            return came;
        }
        for _ in 0..random.below(3) {
            let is_lost = random.one_in(40);
            if way == 0 {
                let Some(command) = self.sender.send_next() else { break };
                match is_lost {
                    true => self.is_broken = true,
                    false => self.commands.push_back(command),
                }
            } else {
                let Some(answered) = self.answers.pop_front() else { break };
                match is_lost {
                    true => self.is_broken = true,
                    false => self.sender.hear(answered, out),
                }
            }
        }
        for _ in 0..random.below(3) {
            let Some(command) = self.commands.pop_front() else { break };
            came.push(ToMeta::Numbered(Box::new(command)));
        }
        came
    }

    /// The link begins anew, to an owner of this term. What is on its way from before is lost, or comes all the same.
    pub(crate) fn begin(&mut self, term: u64, keeps_flights: bool) {
        if !keeps_flights {
            self.commands.clear();
            self.answers.clear();
        }
        self.sender.begins(term);
        self.is_broken = false;
    }

    /// All that is to come comes now, in order: the process stops.
    pub(crate) fn flush(&mut self, out: &mut Outbox) -> Vec<ToMeta> {
        if !self.is_ready() {
            return Vec::new();
        }
        let answers = std::mem::take(&mut self.answers);
        answers.into_iter().for_each(|answered| self.sender.hear(answered, out));
        let mut came: Vec<_> = self.commands.drain(..).collect();
        if std::mem::take(&mut self.is_broken) {
            self.sender.begins(self.sender.term());
        }
        while let Some(command) = self.sender.send_next() {
            came.push(command);
        }
        came.into_iter().map(|command| ToMeta::Numbered(Box::new(command))).collect()
    }

    /// How far it is, for reading.
    pub(crate) fn describe(&self) -> String {
        let Self { sender, commands, answers, is_broken, .. } = self;
        let (sender, commands, answers) = (sender.describe(), commands.len(), answers.len());
        format!("{sender}; on their way: {commands} and {answers} answers; is_broken={is_broken}\n")
    }
}
