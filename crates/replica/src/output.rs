//! What a replica wants done.

use std::collections::VecDeque;

use leveret_log::BatchName;

use crate::batches::{Batch, Point};
use crate::members::MemberId;
use crate::message::Message;

/// What a member has given its word for. It is kept on disk ([`Task::Keep`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Word {
    /// The highest term it knows of.
    pub term: u64,
    /// Whom it voted for in that term.
    pub vote: Option<MemberId>,
    /// How far it acknowledged its log. A log that ends below has lost something.
    pub mark: BatchName,
}

/// The name of a word that is to be kept: those of a replica are numbered from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// A batch that was synced, with all before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Which. Of two that had this number one after the other the name tells.
    pub name: BatchName,
    /// What [`Replica::cuts`](crate::Replica::cuts) was when it was handed to the disk: a batch that was cut may have come back
    /// under the same name, and is not stored by that.
    pub cuts: u64,
}

/// Something for the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// Keep this word instead of the one before, synced, and tell the ticket.
    Keep(Word, Ticket),
    /// Cut the log: this number and all above go.
    Cut(u64),
    /// Write these batches; their bytes came with the message.
    Copy(Vec<Batch>),
    /// Write this batch, which has no records: a leader's own.
    Make(Batch),
    /// Replace the log by the snapshot that was fetched.
    Install(Point),
}

/// What a member has become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It leads: its first batch of this term is agreed upon, and all before is. A shard may be made.
    Leads {
        /// Since which term.
        term: u64,
    },
    /// It led, and leads no more.
    Deposed {
        /// The term in which it led.
        term: u64,
        /// How many batches at its log's end were not agreed upon. They may be cut, or be agreed upon later. With none of them
        /// the shard has done nothing that others do not know.
        tail: u64,
    },
}

/// What came of one call.
#[derive(Debug, Default)]
#[must_use]
pub struct Output {
    /// For the disk, in this order.
    pub tasks: Vec<Task>,
    /// For other members. Whatever has to be on disk before is.
    pub messages: Vec<(MemberId, Message)>,
    /// So far all agree now.
    pub agreed: Option<BatchName>,
    /// What it has become, one after the other.
    pub roles: Vec<Role>,
    /// What it lacks the leader has in a snapshot only, of this or a later batch: to be fetched, then
    /// [`Replica::install`](crate::Replica::install).
    pub behind: Option<Point>,
}

/// The tasks of a replica that are not done, in order.
#[derive(Debug, Default)]
pub struct Tasks {
    waiting: VecDeque<(Task, u64)>,
    /// The last word that was handed out.
    keeping: Ticket,
}

impl Tasks {
    /// Adds tasks with what [`Replica::cuts`](crate::Replica::cuts) is behind each.
    pub fn extend(&mut self, tasks: Vec<Task>, cuts: u64) {
        // Each cut counts one more, so of several the earlier ones have less.
        let is_cut = |task: &Task| matches!(task, Task::Cut(_) | Task::Install(_));
        let mut count = cuts - tasks.iter().filter(|task| is_cut(task)).count() as u64;
        for task in tasks {
            count += u64::from(is_cut(&task));
            self.waiting.push_back((task, count));
        }
    }

    /// The next task that can be begun, with the count of cuts behind it, when all words up to `kept` are on disk.
    pub fn next(&mut self, kept: Ticket) -> Option<(Task, u64)> {
        let (task, _) = self.waiting.front()?;
        match task {
            Task::Cut(_) | Task::Install(_) if self.keeping > kept => return None,
            Task::Keep(_, ticket) => self.keeping = *ticket,
            _ => {}
        }
        self.waiting.pop_front()
    }

    /// The first one that is not done.
    pub fn first(&self) -> Option<&Task> {
        self.waiting.front().map(|(task, _)| task)
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}
