//! What nodes and their replicated logs say to each other, as bytes and back: class 0 of frames.
//!
//! ```text
//! batch name   varint number | varint term
//! member       8 bytes: a Raft id
//! step         u8: 1 votes, 2 learns, 3 goes | member
//! batch        name | option of list of steps | varint segment | varint position | beginning bytes | bytes
//! file         varint segment, generation
//! manifest     name, bytes of members | list of: file | varint through, first, as of, mark, length | bool sealed
//! piece        file | varint mark, position, length
//! ```
//!
//! The bytes of a batch are written from where they are. They are read in one piece, as a follower's log takes them so: what came in
//! several reads is copied once.

use std::num::NonZeroU128;

use leveret_log::disk::{FileName, Heading, Point as LogPoint};
use leveret_log::file::{BatchCopy, Manifest, ManifestFile, PieceCopy, PieceName};
use leveret_log::{BatchName, Offset};
use leveret_replica::{
    Batch, Body, Change, GroupFacts, MemberId, Members, Message, Point, RecordLetter, Refill, Step,
};
use leveret_topology::GroupId;

use super::field::{Field, Reader, get_list_of, put_list};
use super::numbers::counts;
use super::values::{lists_of, structures};
use super::{LetterError, WrongLetter, check_group, wrong};
use crate::frame::{Class, Envelope, Kind, Letter};
use crate::hello::{ClusterId, RaftId, Urgency};
use crate::payload::{Payload, Writer};

/// A letter of a node, or of a member of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeLetter {
    /// A message of a member of a group to the same group's member there.
    Replica {
        /// The group; below 65,536.
        group: u64,
        /// The message.
        message: Message,
        /// The bytes of an [`Append`](Body::Append)'s batches, in their order; else none.
        copies: Vec<BatchCopy>,
    },
    /// The same, of files in place of batches.
    Refill {
        /// The group; below 65,536.
        group: u64,
        /// What is said.
        refill: Refill,
    },
    /// The founder to each node: the cluster is this.
    Found(Founding),
    /// A member to a node that has none of it yet: it is a member of a cluster that was founded without it.
    Joining(Joining),
    /// A node has written that down.
    Founded {
        /// The cluster that it is a member of.
        cluster: ClusterId,
    },
    /// What a node tells of itself.
    Status(Box<NodeStatus>),
    /// What members of a group say of single records.
    Record {
        /// The group; below 65,536.
        group: u64,
        /// What is said.
        letter: RecordLetter,
    },
    /// How far it knows its groups to be, so that no other decides by less.
    Told(Vec<GroupTold>),
}

/// A group, as a node's member tells of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupTold {
    /// The group.
    pub group: u64,
    /// What of it.
    pub told: GroupFacts,
}

/// A cluster as it is founded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Founding {
    /// Drawn at random.
    pub cluster: ClusterId,
    /// All members, with the names of their nodes.
    pub members: Vec<(RaftId, String)>,
    /// How many groups of queues there are.
    pub shards: u32,
}

/// A cluster as one that joins it has to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joining {
    /// The cluster.
    pub cluster: ClusterId,
    /// How many groups of queues there are.
    pub shards: u32,
    /// Who founded it: the members behind the batch that all groups begin behind.
    pub founders: Vec<RaftId>,
    /// The number of the batch of group 0 as of which the rest is so.
    pub as_of: u64,
    /// All members, with the names of their nodes.
    pub members: Vec<(RaftId, String)>,
    /// Some that are members no more.
    pub forgotten: Vec<(RaftId, String)>,
}

/// What a node tells of itself to the others, now and then.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeStatus {
    /// `name@host`.
    pub name: String,
    /// Of the program.
    pub version: String,
    /// When its process began, ms since the Unix epoch.
    pub started_ms: u64,
    /// It leads all groups, and runs the broker.
    pub leads: bool,
    /// Its members.
    pub groups: Vec<GroupStatus>,
    /// The process.
    pub numbers: NodeNumbers,
    /// The names in its list of the nodes that are to form a cluster, by name.
    pub listed: Vec<String>,
}

/// A node's member of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupStatus {
    /// The group.
    pub group: u64,
    /// Its term.
    pub term: u64,
    /// Who leads in this term, if it is known.
    pub leader: Option<RaftId>,
    /// The number of the last batch of its log.
    pub last: u64,
    /// The last one that is on its disk.
    pub stored: u64,
    /// The last one that is agreed upon.
    pub agreed: u64,
    /// A leader's: how far each other member has the log, as far as it is known.
    pub matched: Vec<(RaftId, u64)>,
    /// Bytes of the leader's files that it has, while it takes them in place of its own.
    pub refill_here: u64,
    /// Of so many; 0 if it takes none, or does not know yet.
    pub refill_of: u64,
}

/// A process in numbers. Those that a node's version does not have are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeNumbers {
    /// Since the process began, in ms.
    pub uptime_ms: u64,
    /// Of the process.
    pub os_pid: u64,
    /// Bytes in the machine's memory.
    pub mem_used: u64,
    /// The memory watermark, in bytes.
    pub mem_limit: u64,
    /// 1 if it takes more.
    pub mem_alarm: u64,
    /// Free bytes of the disk.
    pub disk_free: u64,
    /// Their low watermark.
    pub disk_free_limit: u64,
    /// 1 if there are fewer, 2 if a write found none, 3 if a write has been under way for seconds.
    pub disk_free_alarm: u64,
    /// Open file descriptors.
    pub fd_used: u64,
    /// Their limit.
    pub fd_total: u64,
    /// Connections and listeners.
    pub sockets_used: u64,
    /// Threads that run turns.
    pub processors: u64,
    /// Actors that wait for a thread.
    pub run_queue: u64,
    /// Clients whose bytes it relays.
    pub relayed: u64,
    /// 1 if a write has been under way for seconds, one more for each second since that was so; 0 if it never was.
    pub disk_hung_s: u64,
    /// Groups in whose logs it lacks what it once acknowledged.
    pub lacking: u64,
    /// What its system's clock shows, in ms since the Unix epoch.
    pub clock_ms: u64,
    /// As [`disk_hung_s`](Self::disk_hung_s), of syncs that take long each time.
    pub disk_slow_s: u64,
    /// Which of the plugins whose work the program does it runs: a bit for each, in the order of `BUILT_IN` in
    /// `crates/config/src/plugins.rs`. 0 is of a version that does not tell.
    pub plugins: u64,
}

impl NodeNumbers {
    /// Whether a write has been under way for seconds.
    pub fn disk_hangs(&self) -> bool {
        self.disk_free_alarm >= Self::HANGS
    }

    /// [`disk_free_alarm`](Self::disk_free_alarm) of a disk that hangs.
    pub const HANGS: u64 = 3;
}

/// The kind of a [`beat`].
pub const BEAT: Kind = Kind::new(Class::Batches, 48);

/// What a connection says that has nothing to say: that the node is there.
pub fn beat() -> Letter {
    let envelope = Envelope { kind: BEAT, again: false, group: GroupId::new(0), number: 0 };
    Letter { envelope, payload: Payload::default() }
}

/// Numbers of kinds: a number is never given to another letter, and a letter that changes gets a new number.
const PRE_VOTE: u8 = 1;
const PRE_VOTED: u8 = 2;
const VOTE: u8 = 3;
const VOTED: u8 = 4;
const APPEND: u8 = 5;
const APPENDED: u8 = 6;
const REFUSED: u8 = 7;
const LACKS: u8 = 8;
const HEARTBEAT: u8 = 9;
const HEARD: u8 = 10;
const BEHIND: u8 = 11;
const TIMEOUT_NOW: u8 = 12;
const WANT_MANIFEST: u8 = 13;
const MANIFEST: u8 = 14;
const WANT_PIECES: u8 = 15;
const PIECE: u8 = 16;
const GONE: u8 = 17;
const FOUND: u8 = 32;
const FOUNDED: u8 = 33;
const RECORD_WANTED: u8 = 36;
const RECORD_FOUND: u8 = 37;
const STATUS: u8 = 38;
const JOINING: u8 = 40;
const TOLD: u8 = 35;

impl NodeLetter {
    /// The connection that it goes over: what has batches is not to delay the rest.
    pub fn urgency(&self) -> Urgency {
        match self {
            Self::Replica { copies, .. } if !copies.is_empty() => Urgency::Bulk,
            Self::Found(_) | Self::Joining(_) | Self::Record { .. } | Self::Refill { .. } => {
                Urgency::Bulk
            }
            Self::Replica { .. } | Self::Founded { .. } => Urgency::Urgent,
            Self::Status(_) | Self::Told(_) => Urgency::Urgent,
        }
    }

    /// As it goes over a link. The writer has nothing else.
    pub fn write(&self, to: &mut Writer) -> Letter {
        let (kind, group, number) = match self {
            Self::Replica { group, message, copies } => {
                (put_body(&message.body, copies, to), *group, message.term)
            }
            Self::Refill { group, refill } => (put_refill(refill, to), *group, 0),
            Self::Found(founding) => {
                founding.put(to);
                (FOUND, 0, 0)
            }
            Self::Joining(joining) => {
                joining.put(to);
                (JOINING, 0, 0)
            }
            Self::Founded { cluster } => {
                cluster.put(to);
                (FOUNDED, 0, 0)
            }
            Self::Status(status) => {
                status.put(to);
                (STATUS, 0, 0)
            }
            Self::Record { group, letter } => match letter {
                RecordLetter::Wanted { at } => (RECORD_WANTED, *group, at.get()),
                RecordLetter::Found { at, bytes } => {
                    bytes.put(to);
                    (RECORD_FOUND, *group, at.get())
                }
            },
            Self::Told(told) => {
                told.put(to);
                (TOLD, 0, 0)
            }
        };
        // A group that cannot be is refused where it comes.
        let group = GroupId::new(u32::try_from(group).unwrap_or(u32::MAX));
        let kind = Kind::new(Class::Batches, kind);
        Letter { envelope: Envelope { kind, again: false, group, number }, payload: to.finish() }
    }

    /// The letter that came.
    ///
    /// # Errors
    ///
    /// When the bytes are none of these. The link is to be closed then, with this text.
    pub fn read(letter: &Letter) -> Result<Self, WrongLetter> {
        let mut from = Reader::new(&letter.payload);
        let read = read_kind(&letter.envelope, &mut from);
        wrong(&letter.envelope, read.and_then(|read| from.end().map(|()| read)))
    }
}

fn read_kind(envelope: &Envelope, from: &mut Reader<'_>) -> Result<NodeLetter, LetterError> {
    let Envelope { kind, group, number, .. } = *envelope;
    check_group(group)?;
    let unknown = LetterError::Unknown { what: "kind of letter", number: kind.byte().into() };
    if kind.class() != Class::Batches {
        return Err(unknown);
    }
    Ok(match kind.number() {
        FOUND => NodeLetter::Found(from.get()?),
        JOINING => NodeLetter::Joining(from.get()?),
        FOUNDED => NodeLetter::Founded { cluster: from.get()? },
        STATUS => NodeLetter::Status(from.get()?),
        RECORD_WANTED => NodeLetter::Record {
            group: group.get().into(),
            letter: RecordLetter::Wanted { at: Offset::new(number) },
        },
        RECORD_FOUND => NodeLetter::Record {
            group: group.get().into(),
            letter: RecordLetter::Found { at: Offset::new(number), bytes: from.get()? },
        },
        TOLD => NodeLetter::Told(from.get()?),
        WANT_MANIFEST..=GONE => {
            NodeLetter::Refill { group: group.get().into(), refill: get_refill(kind, from)? }
        }
        of_replica => {
            let (body, copies) = get_body(of_replica, from)?.ok_or(unknown)?;
            let message = Message { term: number, body };
            NodeLetter::Replica { group: group.get().into(), message, copies }
        }
    })
}

/// Writes what a member says of files. Returns the number of its kind.
fn put_refill(refill: &Refill, to: &mut Writer) -> u8 {
    match refill {
        Refill::WantManifest => WANT_MANIFEST,
        Refill::Manifest(manifest) => {
            manifest.put(to);
            MANIFEST
        }
        Refill::WantPieces(names) => {
            names.put(to);
            WANT_PIECES
        }
        Refill::Piece(piece) => {
            piece.put(to);
            PIECE
        }
        Refill::Gone => GONE,
    }
}

/// Reads it.
fn get_refill(kind: Kind, from: &mut Reader<'_>) -> Result<Refill, LetterError> {
    Ok(match kind.number() {
        WANT_MANIFEST => Refill::WantManifest,
        MANIFEST => Refill::Manifest(from.get()?),
        WANT_PIECES => Refill::WantPieces(from.get()?),
        PIECE => Refill::Piece(from.get()?),
        _ => Refill::Gone,
    })
}

/// Writes what a member says. Returns the number of its kind.
fn put_body(body: &Body, copies: &[BatchCopy], to: &mut Writer) -> u8 {
    match body {
        Body::PreVote { last } => {
            last.put(to);
            PRE_VOTE
        }
        Body::PreVoted { granted } => {
            granted.put(to);
            PRE_VOTED
        }
        Body::Vote { last, transfer } => {
            last.put(to);
            transfer.put(to);
            VOTE
        }
        Body::Voted { granted, lease_ms } => {
            granted.put(to);
            lease_ms.put(to);
            VOTED
        }
        Body::Append { before, batches, agreed } => {
            debug_assert_eq!(batches.len(), copies.len(), "each batch with its bytes");
            before.put(to);
            agreed.put(to);
            batches.len().min(copies.len()).put(to);
            for (batch, copy) in batches.iter().zip(copies) {
                batch.put(to);
                copy.put(to);
            }
            APPEND
        }
        Body::Appended { number } => {
            number.put(to);
            APPENDED
        }
        Body::Refused { number, hint } => {
            number.put(to);
            hint.put(to);
            REFUSED
        }
        Body::Lacks { last } => {
            last.put(to);
            LACKS
        }
        Body::Heartbeat { agreed, stamp } => {
            agreed.put(to);
            stamp.put(to);
            HEARTBEAT
        }
        Body::Heard { stamp } => {
            stamp.put(to);
            HEARD
        }
        Body::Behind { point } => {
            point.put(to);
            BEHIND
        }
        Body::TimeoutNow { stamp, lease_ms } => {
            stamp.put(to);
            lease_ms.put(to);
            TIMEOUT_NOW
        }
    }
}

/// Reads what a member says. None if the kind has no such number.
fn get_body(
    kind: u8,
    from: &mut Reader<'_>,
) -> Result<Option<(Body, Vec<BatchCopy>)>, LetterError> {
    let body = match kind {
        PRE_VOTE => Body::PreVote { last: from.get()? },
        PRE_VOTED => Body::PreVoted { granted: from.get()? },
        VOTE => Body::Vote { last: from.get()?, transfer: from.get()? },
        VOTED => Body::Voted { granted: from.get()?, lease_ms: from.get()? },
        APPEND => {
            let (before, agreed) = (from.get()?, from.get()?);
            let list = get_list_of::<(Batch, BatchCopy)>(<(Batch, BatchCopy)>::MIN, from)?;
            let (batches, copies) = list.into_iter().unzip();
            return Ok(Some((Body::Append { before, batches, agreed }, copies)));
        }
        APPENDED => Body::Appended { number: from.get()? },
        REFUSED => Body::Refused { number: from.get()?, hint: from.get()? },
        LACKS => Body::Lacks { last: from.get()? },
        HEARTBEAT => Body::Heartbeat { agreed: from.get()?, stamp: from.get()? },
        HEARD => Body::Heard { stamp: from.get()? },
        BEHIND => Body::Behind { point: from.get()? },
        TIMEOUT_NOW => Body::TimeoutNow { stamp: from.get()?, lease_ms: from.get()? },
        _ => return Ok(None),
    };
    Ok(Some((body, Vec::new())))
}

structures! {
    GroupTold { group, told }
    GroupFacts { term, agreed, last }
    Point { at, members }
    Members { voters, learners, outgoing, learners_next }
    Founding { cluster, members, shards }
    Joining { cluster, shards, founders, as_of, members, forgotten }
    NodeStatus { name, version, started_ms, leads, groups, numbers, listed }
    GroupStatus { group, term, leader, last, stored, agreed, matched, refill_here, refill_of }
    LogPoint { at, members }
    Manifest { point, files }
    ManifestFile { file, heading, len, is_sealed }
    FileName { segment, generation }
    Heading { through, first, as_of, mark }
    PieceName { file, mark, position, len }
    PieceCopy { name, bytes, crc }
}

counts! {
    NodeNumbers {
        uptime_ms, os_pid, mem_used, mem_limit, mem_alarm, disk_free, disk_free_limit, disk_free_alarm, fd_used, fd_total,
        sockets_used, processors, run_queue, relayed, disk_hung_s, lacking, clock_ms, disk_slow_s, plugins
    } and {}
}

impl Field for BatchName {
    const MIN: usize = 2;

    fn put(&self, to: &mut Writer) {
        self.number.put(to);
        self.term.put(to);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
        Ok(Self { number: from.get()?, term: from.get()? })
    }
}

impl Field for Batch {
    const MIN: usize = 3;

    fn put(&self, to: &mut Writer) {
        self.name.put(to);
        self.change.put(to);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
        Ok(Self { name: from.get()?, change: from.get()? })
    }
}

impl Field for Change {
    fn put(&self, to: &mut Writer) {
        put_list(&self.steps, to);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
        Ok(Self::of(get_list_of(Step::MIN, from)?))
    }
}

impl Field for Step {
    const MIN: usize = 9;

    fn put(&self, to: &mut Writer) {
        to.put(&[match self {
            Self::Voter(_) => 1,
            Self::Learner(_) => 2,
            Self::Remove(_) => 3,
        }]);
        self.of().put(to);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
        let what = from.byte()?;
        let of = from.get()?;
        match what {
            1 => Ok(Self::Voter(of)),
            2 => Ok(Self::Learner(of)),
            3 => Ok(Self::Remove(of)),
            number => Err(LetterError::Unknown { what: "step", number: number.into() }),
        }
    }
}

impl Field for BatchCopy {
    const MIN: usize = 4;

    fn put(&self, to: &mut Writer) {
        self.segment.put(to);
        self.position.put(to);
        self.beginning.put(to);
        self.len().put(to);
        self.pieces.iter().for_each(|piece| to.share(piece));
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
        let (segment, position, beginning) = (from.get()?, from.get()?, from.get()?);
        let len = from.count(1)?;
        let piece = from.take(len)?;
        let pieces = if piece.is_empty() { Vec::new() } else { vec![piece] };
        Ok(Self { segment, position, beginning, pieces })
    }
}

impl Field for ClusterId {
    const MIN: usize = 16;

    fn put(&self, to: &mut Writer) {
        to.put(&self.0.get().to_le_bytes());
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
        let number = NonZeroU128::new(u128::from_le_bytes(from.get()?));
        number.map(Self).ok_or(LetterError::Unknown { what: "cluster", number: 0 })
    }
}

/// Eight bytes, as they are drawn at random.
macro_rules! drawn {
    ($($name:ident)*) => {$(
        impl Field for $name {
            const MIN: usize = 8;

            fn put(&self, to: &mut Writer) {
                to.put(&self.0.to_le_bytes());
            }

            fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
                Ok(Self(u64::from_le_bytes(from.get()?)))
            }
        }
    )*};
}

drawn!(MemberId RaftId);

lists_of! {
    MemberId: 8
    RaftId: 8
    String: 1
    (RaftId, String): 9
    (RaftId, u64): 9
    GroupStatus: 9
    GroupTold: 6
    ManifestFile: 8
    PieceName: 5
}
