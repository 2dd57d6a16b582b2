//! The command whose answer is awaited, and what is done when it comes.

use leveret_broker::message::ConsumerSlot;

/// A command on its way.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// Who asked; 0 for the connection.
    pub(crate) channel: u16,
    /// Class and method id, for a refusal.
    pub(crate) method: (u16, u16),
    /// No answer is sent when it goes well.
    pub(crate) no_wait: bool,
    pub(crate) what: Awaited,
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
    },
    QueuePurge {
        name: Box<str>,
    },
    QueueDelete,
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
    },
    /// `connection.close`: exclusive queues go first.
    Close,
}
