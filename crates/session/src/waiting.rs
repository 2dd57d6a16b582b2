//! The command whose answer is awaited, and what is done when it comes.

use leveret_amqp::table::Table;
use leveret_broker::message::{ConsumerSlot, Refusal, Reply};

/// A command whose answer the session awaits.
#[derive(Debug)]
pub(crate) struct WaitingCommand {
    /// The channel that asked; 0 for the connection.
    pub(crate) channel: u16,
    /// Class and method id, for a refusal.
    pub(crate) method: (u16, u16),
    /// No answer is sent when it goes well.
    pub(crate) no_wait: bool,
    pub(crate) what: Awaited,
}

impl WaitingCommand {
    /// An answer came. It is given back if it is the last one to come before the command is answered; one
    /// that was a refusal goes before it.
    pub(crate) fn is_last(&mut self, reply: Reply) -> Option<Reply> {
        let (left, refused) = match &mut self.what {
            Awaited::Close { left } => {
                *left = left.saturating_sub(1);
                return (*left == 0).then_some(reply);
            }
            Awaited::Commit { left, refused } => (left, refused),
            _ => return Some(reply),
        };
        *left = left.saturating_sub(1);
        let (reply, refusal) = match reply {
            refusal @ Reply::Refused { .. } => (None, Some(refusal)),
            other => (Some(other), None),
        };
        if refused.is_none() {
            *refused = refusal;
        }
        if *left > 0 { None } else { refused.take().or(reply) }
    }
}

/// What a `queue.declare` says.
#[derive(Clone, Debug)]
pub(crate) struct Declare {
    pub(crate) name: Box<str>,
    pub(crate) server_named: bool,
    pub(crate) durable: bool,
    pub(crate) exclusive: bool,
    pub(crate) auto_delete: bool,
    pub(crate) arguments: Table,
    /// The answer when it does not exist.
    pub(crate) forbidden: Option<Box<Refusal>>,
}

/// What was asked for.
#[derive(Debug)]
pub(crate) enum Awaited {
    ExchangeDeclare,
    ExchangeDelete,
    ExchangeBind,
    ExchangeUnbind,
    QueueBind,
    QueueUnbind,
    QueueDeclare {
        name: Box<str>,
        /// To declare it once more, if the queue goes before its counts are told. None when passive.
        again: Option<Box<Declare>>,
    },
    /// Of a direct reply-to name.
    ReplyToDeclare {
        name: Box<str>,
    },
    QueuePurge {
        name: Box<str>,
    },
    QueueDelete {
        name: Box<str>,
    },
    Consume {
        slot: ConsumerSlot,
        queue: Box<str>,
    },
    Cancel {
        slot: ConsumerSlot,
        tag: Box<str>,
    },
    Get {
        queue: Box<str>,
    },
    Commit {
        /// Shards that have not answered.
        left: usize,
        /// What one of them had against it.
        refused: Option<Reply>,
    },
    /// `connection.close`: exclusive queues go first, and all that was written before is done.
    Close {
        /// Shards that have not answered, and Meta.
        left: usize,
    },
    /// Whether the user may, before the frame is acted upon.
    Decision {
        /// It ended a content, which is whole; else it is a method that was put back.
        is_content: bool,
    },
    /// `connection.update-secret`.
    Secret,
}
