//! A member of a group: its replica, its log in files, and what has to be done between the two.

use std::sync::Arc;

use leveret_log::disk::Disk;
use leveret_log::file::{BatchCopy, OpenError, Options, Report};
use leveret_log::{BatchName, FileLog};

use crate::batches::Point;
use crate::desk::Desk;
use crate::group_log::GroupLog;
use crate::members::{MemberId, Members};
use crate::message::Message;
use crate::output::{Role, Ticket, Word};
use crate::replica::{NotNow, Settings};

/// Why a member cannot be opened. It neither votes nor stands, and acknowledges nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemberError {
    /// Nobody knows what it promised.
    #[error(
        "what this member has promised to its group cannot be read: it may have voted for somebody, and must not vote again. It \
         has to be removed from the group, and to come back as a new member"
    )]
    Forgotten,
    /// Its log is not there.
    #[error("{0}")]
    Log(#[from] OpenError),
    /// Something of its log is damaged that others count on.
    #[error(
        "{file} of this member's log is damaged, which others count on: it has to be removed from the group, and to come back \
         as a new member"
    )]
    Damaged {
        /// The first file.
        file: String,
    },
    /// Its log begins behind nothing, or before the group did.
    #[error("the log begins behind {found}, and its group's behind {point}: it is another group's")]
    OtherGroup {
        /// What the log begins behind.
        found: BatchName,
        /// What the group's begins behind.
        point: BatchName,
    },
}

/// What is to be done now.
#[derive(Debug, Default)]
#[must_use]
pub struct MemberActions {
    /// For other members, each with the bytes of its batches, in order.
    pub messages: Vec<(MemberId, Message, Vec<BatchCopy>)>,
    /// Words to be kept; what is kept is told with [`Member::kept`].
    pub keep: Vec<(Word, Ticket)>,
    /// The lent log's shard is to have a turn.
    pub wakes_log: bool,
    /// What it has become, one after the other.
    pub roles: Vec<Role>,
    /// What it lacks no other member has as batches any more, but in a snapshot of this or a later one.
    pub behind: Option<Point>,
    /// Its log was lent, and others decide now: what it did that is not agreed upon is to be forgotten. The process starts anew.
    pub must_restart: bool,
    /// Its disk failed: the process ends.
    pub failed: Option<String>,
    /// For people.
    pub told: Vec<String>,
}

/// How far a member is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberStatus {
    /// The end of its log.
    pub last: BatchName,
    /// The last batch that its disk has for good, and that it gave its word for.
    pub stored: u64,
    /// The last batch that all agree upon, as far as it knows.
    pub agreed: BatchName,
    /// What it once acknowledged and does not have.
    pub lacks: Option<BatchName>,
    /// Who is in the group, as far as it knows.
    pub members: Members,
    /// Of a leader: how far the log of each other member is known to be as its own.
    pub matched: Vec<(MemberId, u64)>,
}

/// One group on this node.
pub struct Member<D: Disk> {
    log: Option<FileLog<D>>,
    desk: Option<Arc<Desk>>,
}

impl<D: Disk> Member<D> {
    /// Opens the log on `disk` as a follower's. `word` is what is kept of this group: the default if it never gave any, none if
    /// that is damaged or was forgotten. A newly founded group has the same `point` on all its members: its log begins behind it.
    pub fn open(
        id: MemberId,
        settings: Settings,
        seed: u64,
        word: Option<Word>,
        disk: D,
        options: Options,
        point: Point,
    ) -> Result<(Self, Report), MemberError> {
        let _ = (id, settings, seed, word.ok_or(MemberError::Forgotten)?);
        let options =
            Options { follows: Some(BatchName::NONE), begins_behind: Some(point.at), ..options };
        let (log, report) = FileLog::open(disk, options, &mut |_| {})?;
        Ok((Self { log: Some(log), desk: None }, report))
    }

    /// A message came, with the bytes of its batches.
    pub fn step(&mut self, from: MemberId, message: Message, copies: Vec<BatchCopy>) {
        let _ = (from, message, copies);
    }

    /// It is `now_ms`, by a clock that does not go back and counts a suspended machine's sleep.
    pub fn tick(&mut self, now_ms: u64) {
        let _ = now_ms;
    }

    /// Its disk did something.
    pub fn disk_woke(&mut self) {}

    /// Its lent log left something on the desk.
    pub fn log_woke(&mut self) {}

    /// The word with this ticket is kept, in place of all before.
    pub fn kept(&mut self, ticket: Ticket) {
        let _ = ticket;
    }

    /// Another member is to lead. It goes on if that does not come about within an election time-out.
    pub fn transfer(&mut self, to: MemberId) -> Result<(), NotNow> {
        let _ = to;
        Err(NotNow)
    }

    /// What is to be done now: all that came of the calls since.
    pub fn take_actions(&mut self) -> MemberActions {
        MemberActions::default()
    }

    /// The log, for its shard, after this member became the leader ([`Role::Leads`]). It never comes back:
    /// [`MemberActions::must_restart`] says when the process has to start anew. `wake` has [`log_woke`](Self::log_woke) called soon;
    /// it is called in the shard's turn, and takes no lock that is held in one.
    ///
    /// None if this member does not lead, or lent it already.
    pub fn lend_log(&mut self, wake: Arc<dyn Fn() + Send + Sync>) -> Option<GroupLog<D>> {
        let log = self.log.take()?;
        let desk = Arc::new(Desk::new(log.last(), wake));
        self.desk = Some(desk.clone());
        Some(GroupLog::lent(log, desk))
    }

    /// Who leads this term, as far as it knows.
    pub fn leader(&self) -> Option<MemberId> {
        None
    }

    /// The highest term it knows of.
    pub fn term(&self) -> u64 {
        0
    }

    /// The term it leads, once its first batch of it is agreed upon.
    pub fn leads(&self) -> Option<u64> {
        None
    }

    /// How far it is.
    pub fn status(&self) -> MemberStatus {
        MemberStatus::default()
    }
}
