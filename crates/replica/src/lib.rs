//! A member of a group: who leads it, and how far its members agree on one log.
//!
//! The log is a sequence of *batches* ([`Batches`]): numbered, each with the term in which it was made. A [`Replica`] is told
//! what arrives, what was stored and what time it is, and says in an [`Output`] what is to be sent, written, cut and kept, how
//! far the log is agreed upon and who leads. It does no input or output, and never sees the bytes of a batch: those go from log
//! to link and from link to log by name (`docs/decisions/0056-the-replicated-log.md`).
//!
//! ```text
//!            propose, step, stored, kept, tick
//!                          |
//!   shard --> log      [ Replica ] --> messages, tasks, agreed, role
//!              \            |               |
//!               \        engine             +--> link (with the bytes that the log has)
//!                \    (names alone)         +--> disk: keep a word, cut, write
//! ```
//!
//! The engine is the crate `raft`. Nothing of it is in this crate's interface, so that another can take its place. It panics on
//! what cannot be, so all that comes from a link is checked before ([`Breach`]).
//!
//! # What a driver has to do
//!
//! 1. The tasks of an output are done in their order. A word and a batch may be written side by side; a cut waits for all tasks
//!    before it, and all behind it wait for the cut. [`Tasks`] keeps to this.
//! 2. What was synced is told: [`Replica::kept`], [`Replica::stored`]. What waits for it stays in the replica until then.
//! 3. Messages may be lost, repeated and delayed, and come in any order.
//! 4. After a failed sync the process ends.
//! 5. A member that is elected makes the first batch of its term, and changes of members, as if it copied them: one that is deposed copies
//!    on, and what it made is cut or stays. Only a log that was lent leads, once all that it has is on its disk; it never follows again:
//!    then the process begins anew. Nobody is told that he was deposed: the tasks tell.
//! 6. A log is told how far all agree while no task waits: what comes after a cut that waits is not what it has now. So it is opened
//!    anew with what it was told, not with what the replica knows.
//! 7. The bytes of a message's batches may be more than the log keeps in memory: they are taken one after the other.

#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

mod batches;
mod check;
mod contact;
mod desk;
mod dice;
mod entries;
mod files;
mod group_log;
mod lease;
mod member;
mod members;
#[cfg(test)]
mod memory;
mod message;
mod output;
mod replica;
mod votes;

#[cfg(test)]
mod tests;

pub use batches::{Batch, Batches, Point};
pub use check::Breach;
pub use contact::LeftOut;
pub use desk::Desk;
pub use files::Refill;
pub use group_log::GroupLog;
pub use lease::Lease;
pub use leveret_log::BatchName;
pub use member::{
    Content, Member, MemberActions, MemberError, MemberStatus, RecordLetter, Refilling, Reopened,
    Reopening,
};
pub use members::{Change, MemberId, Members, Step};
#[cfg(test)]
pub(crate) use memory::MemoryBatches;
pub use message::{Body, Message};
pub use output::{Output, Role, Stored, Task, Tasks, Ticket, Word};
pub use replica::{GroupFacts, NotNow, Replica, Settings};
pub use votes::{VOTES, Votes};
