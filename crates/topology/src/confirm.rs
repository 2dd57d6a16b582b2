//! When a queue has done its part for a publisher's confirm: its arguments and policies.
//!
//! The names of `confirm-on` are those that RabbitMQ's own unmerged proposal gave it.

/// When a queue has resolved a message for its publisher.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConfirmOn {
    /// It is durable or a consumer acked it, whichever is first.
    #[default]
    First,
    /// It is durable.
    Enqueue,
    /// A consumer acked it.
    Ack,
    /// The same, and the queue forgets it as soon as it is handed to a consumer.
    AckLean,
}

impl ConfirmOn {
    /// The rule of that name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::First, Self::Enqueue, Self::Ack, Self::AckLean]
            .into_iter()
            .find(|rule| rule.name() == name)
    }

    /// Its name in `x-confirm-on`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Enqueue => "enqueue",
            Self::Ack => "ack",
            Self::AckLean => "ack-lean",
        }
    }
}

/// Which copies of a message a confirm stands for where a group of several nodes has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplicationConfirm {
    /// Those on the disks of a majority.
    #[default]
    Majority,
    /// Those on the disks of all members that are in contact with the one that leads.
    All,
}

impl ReplicationConfirm {
    /// The one of that name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Majority, Self::All].into_iter().find(|it| it.name() == name)
    }

    /// Its name in `x-replication-confirm`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Majority => "majority",
            Self::All => "all",
        }
    }
}

/// The effective options of a queue for confirms: arguments and policies together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfirmOptions {
    /// `confirm-on`.
    pub on: ConfirmOn,
    /// `confirm-on-header`: a message's header `x-confirm-on` goes before `on`.
    pub by_header: bool,
    /// `confirm-on-dead-letter` is `ack`: under the rule `ack`, a message that is dead-lettered is
    /// resolved as if it were acked. Else its publisher is told that it was not.
    pub dead_letter_acks: bool,
    /// `confirm-timeout`, in ms: after that an unresolved message is nacked.
    pub timeout_ms: Option<u32>,
    /// `confirm-defer`, in ms: after that a persistent message that waits for its ack is made durable.
    pub defer_ms: u32,
    /// `replication-confirm`: what it means that a message is durable. On a node alone it makes no difference.
    pub replication: ReplicationConfirm,
    /// `deliver-before-commit`: messages are given out before a majority of a group's members has them. On a node alone they always are.
    pub before_commit: bool,
}

/// `confirm-defer` where none is set.
pub(crate) const DEFER_MS: u32 = 1_000;

/// The longest `confirm-timeout` and `confirm-defer`: ten days, in milliseconds.
pub(crate) const WAIT_MS_MAX: i64 = 864_000_000;

impl Default for ConfirmOptions {
    fn default() -> Self {
        Self {
            on: ConfirmOn::default(),
            by_header: false,
            dead_letter_acks: false,
            timeout_ms: None,
            defer_ms: DEFER_MS,
            replication: ReplicationConfirm::default(),
            before_commit: false,
        }
    }
}

/// Why `x-confirm-on` cannot have that value, as an Erlang string; none when it can.
pub(crate) fn refuse_rule(name: &str) -> Option<String> {
    if ConfirmOn::parse(name).is_some() {
        None
    } else {
        Some(format!("\"confirm-on '{name}' is none of 'first', 'enqueue', 'ack', 'ack-lean'\""))
    }
}

/// Why `x-confirm-on-dead-letter` cannot have that value; none when it can.
pub(crate) fn refuse_dead_letter(name: &str) -> Option<String> {
    (!matches!(name, "nack" | "ack"))
        .then(|| format!("\"confirm-on-dead-letter '{name}' is none of 'nack', 'ack'\""))
}

/// Why `x-replication-confirm` cannot have that value; none when it can.
pub(crate) fn refuse_replication(name: &str) -> Option<String> {
    ReplicationConfirm::parse(name)
        .is_none()
        .then(|| format!("\"replication-confirm '{name}' is none of 'majority', 'all'\""))
}
