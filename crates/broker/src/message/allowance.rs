//! What a shard may give to consumers of a connection that shares no memory with it.
//!
//! Two things are allowed: bytes of the connection's output, and places of a channel's prefetch. Each is an *account* of the shard,
//! which the session's node fills. All numbers are totals since the account was opened, so a letter that comes twice, late or not at
//! all spoils nothing: the newest one counts, and a shard that waits says which one it has. See "Bounds" in
//! `docs/decisions/0061-letters-over-links.md`.
//!
//! ```text
//!   shard    opens an account, waits, or was called back --AllowanceStates--> session
//!   session  a delivery came, was settled, was written    --Allow-----------> shard
//! ```

use super::ChannelId;

/// An account of a shard: no two have the same name, whatever becomes of the shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AccountId {
    /// Of the shard.
    pub term: u64,
    /// In it.
    pub number: u64,
}

/// A total that stands for any number.
pub const UNLIMITED: u64 = u64::MAX;

/// What a session allows a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// Places of this channel, in messages; none for the connection's output, in
    /// [`delivery_cost`](leveret_queue::delivery_cost).
    pub of: Option<ChannelId>,
    /// Means nothing for any other one.
    pub account: AccountId,
    /// Greater than that of what was allowed before. The account begins with 0.
    pub version: u64,
    /// So much may be given out in all since the account was opened; [`UNLIMITED`] for any number.
    pub total: u64,
    /// What is not given out yet is not to be, and the state of the account is to be told.
    pub is_called_back: bool,
}

/// The state of an account, behind all deliveries that it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllowanceState {
    /// As in [`Allowance::of`].
    pub of: Option<ChannelId>,
    /// Which.
    pub account: AccountId,
    /// What was heard last; 0 of an account that is new.
    pub version: u64,
    /// What may be given out in all.
    pub total: u64,
    /// A message is there for a consumer, and waits.
    pub is_waiting: bool,
}
