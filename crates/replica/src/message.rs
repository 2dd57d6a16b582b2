//! What members say to each other.

use leveret_log::BatchName;

use crate::batches::{Batch, Point};

/// A message between two members of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The sender's term; of [`PreVote`](Body::PreVote), and of the answer that grants it, the one that would be begun.
    pub term: u64,
    /// What it says.
    pub body: Body,
}

/// What a message says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Would you vote for me, if I stood for election?
    PreVote {
        /// The end of the sender's log. [`BatchName::NONE`]: the sender does not stand though it is its turn; others may.
        last: BatchName,
    },
    /// The answer.
    PreVoted {
        /// Whether it is yes.
        granted: bool,
    },
    /// Vote for me.
    Vote {
        /// The end of the sender's log.
        last: BatchName,
        /// The leader asked it to stand, so nobody has to be faithful to that one: with which stamp, as of [`TimeoutNow`](Self::TimeoutNow).
        transfer: Option<u64>,
    },
    /// The answer.
    Voted {
        /// Whether it is yes.
        granted: bool,
        /// For so many ms from now on a leader of before may have a lease that the sender was asked for.
        lease_ms: u64,
    },
    /// These batches follow. The bytes of each are beside the message. None: so far all agree.
    Append {
        /// What is before them in the leader's log.
        before: BatchName,
        /// Consecutive.
        batches: Vec<Batch>,
        /// How far the log is agreed upon. It may be more than there is here by now.
        agreed: u64,
    },
    /// All up to this number is as in the log of this term's leader, and synced.
    Appended {
        /// 0: none of it is, but the sender has a higher term.
        number: u64,
    },
    /// What is said to be before is not here.
    Refused {
        /// Its number.
        number: u64,
        /// The last batch up to which the logs may be alike.
        hint: BatchName,
    },
    /// The log that was acknowledged is here no more: it ends with this.
    Lacks {
        /// The end of what is left.
        last: BatchName,
    },
    /// The leader is there.
    Heartbeat {
        /// How far the log is agreed upon, but no more than is known to be here.
        agreed: u64,
        /// What time the leader has, or had when it last began to give way to another member.
        stamp: u64,
    },
    /// Its answer.
    Heard {
        /// Of the heartbeat.
        stamp: u64,
    },
    /// What you lack is not there as batches any more: ask for a snapshot. This is the least that it has.
    Behind {
        /// What a snapshot made now ends with.
        point: Point,
    },
    /// Stand for election at once.
    TimeoutNow {
        /// As that of a heartbeat: who has answered a later one of this term knows that the leader goes on.
        stamp: u64,
        /// For so many ms a leader before the sender may have a lease.
        lease_ms: u64,
    },
}

impl Body {
    /// The log's end with which the sender asks whether it would be voted for, if it does.
    pub(crate) fn asks_with(&self) -> Option<BatchName> {
        match self {
            Self::PreVote { last } => Some(*last),
            _ => None,
        }
    }
}
