//! Hot path. The head of a frame, and what comes in which order.
//!
//! ```text
//!    0   4  length of what follows the head
//!    4   1  kind
//!    5   1  flags: 1 more of the letter follows, 2 the letter was sent before
//!    6   2  0
//!    8   4  group
//!   12   4  crc32c of all but itself, 0 under TLS
//!   16   8  number of the letter, or the term of an answer
//! ```
//!
//! Numbers are little-endian. `docs/formats/link.md` explains them.
//!
//! A letter is one frame, or several if it is long: all but its last are full. Letters of one class and group are a *line*: its
//! frames are in order, so a line has one unfinished letter at most. Between them may be frames of other lines.

use bytes::Bytes;
use leveret_topology::GroupId;

use crate::payload::Payload;

/// Bytes of a frame at most, its head included.
pub const FRAME_MAX: usize = 256 * 1024;

/// Bytes of the head.
pub const HEAD: usize = 24;

/// What of a letter fits a frame.
pub const PIECE_MAX: usize = FRAME_MAX - HEAD;

const MORE: u8 = 1;
const AGAIN: u8 = 2;

/// What is sent first. The order is that of the classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// What the replicated logs say: batches, votes, beats.
    Batches = 0,
    /// Letters of actors, and answers.
    Letters = 1,
    /// Pieces of snapshots.
    Snapshots = 2,
}

impl Class {
    /// All of them, the most urgent one first.
    pub const ALL: [Self; 3] = [Self::Batches, Self::Letters, Self::Snapshots];
}

/// What kind of letter it is: a number whose first two bits are the class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kind(u8);

impl Kind {
    /// The kind with this number in its class, of six bits.
    pub const fn new(class: Class, number: u8) -> Self {
        Self((class as u8) << 6 | number & 0x3f)
    }

    /// The kind that a frame says; none if there is no such class.
    pub const fn from_byte(byte: u8) -> Option<Self> {
        if byte >> 6 < 3 { Some(Self(byte)) } else { None }
    }

    /// As a frame says it.
    pub const fn byte(self) -> u8 {
        self.0
    }

    /// Its number in its class.
    pub const fn number(self) -> u8 {
        self.0 & 0x3f
    }

    /// Its class.
    pub const fn class(self) -> Class {
        match self.0 >> 6 {
            0 => Class::Batches,
            1 => Class::Letters,
            _ => Class::Snapshots,
        }
    }
}

/// What stands on a letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// What it is.
    pub kind: Kind,
    /// It was sent before, over another link or to another leader.
    pub again: bool,
    /// The group that it is for, or that answers.
    pub group: GroupId,
    /// Its number, or the term of an answer.
    pub number: u64,
}

/// A letter as it goes over a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letter {
    /// What stands on it.
    pub envelope: Envelope,
    /// What is in it.
    pub payload: Payload,
}

/// Why the other side's frames are none. Nothing behind the first wrong one is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A length that no frame has.
    #[error("a frame says that {0} bytes follow its head; {PIECE_MAX} are allowed")]
    Length(u32),
    /// A class that is not known.
    #[error("a frame of the unknown kind {0}")]
    Kind(u8),
    /// Bits that mean nothing.
    #[error("a frame with unknown flags: {flags:#04x}, {spare:#06x}")]
    Flags {
        /// The flags.
        flags: u8,
        /// What has to be 0.
        spare: u16,
    },
    /// It is not what was sent.
    #[error(
        "a frame's checksum is {said:08x}, its bytes have {found:08x}: the network, or a machine's memory, changes bytes"
    )]
    Checksum {
        /// What the frame says.
        said: u32,
        /// What its bytes have.
        found: u32,
    },
    /// One side takes the connection for one with TLS, the other does not.
    #[error("a frame has a checksum, which it has not under TLS")]
    Checksummed,
    /// A letter that goes on has room in its frame.
    #[error(
        "a frame of {0} bytes says that more of its letter follows; such a frame has {PIECE_MAX}"
    )]
    Piece(u32),
    /// It continues another letter than the one that its line has begun.
    #[error(
        "a frame of kind {found}, number {number}, where a letter of kind {begun}, number {expected}, goes on"
    )]
    Continues {
        /// Kind of what has begun.
        begun: u8,
        /// Its number.
        expected: u64,
        /// Kind of the frame.
        found: u8,
        /// Its number.
        number: u64,
    },
    /// A letter is longer than any may be.
    #[error("a letter of more than {0} bytes")]
    Letter(usize),
    /// The letters that have begun are longer together than they may be.
    #[error("letters that have begun have more than {0} bytes together")]
    Unfinished(usize),
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) len: u32,
    pub(crate) more: bool,
    pub(crate) envelope: Envelope,
}

impl Head {
    /// The bytes, without a checksum.
    #[inline]
    pub(crate) fn encode(&self) -> [u8; HEAD] {
        let Envelope { kind, again, group, number } = self.envelope;
        let flags = if self.more { MORE } else { 0 } | if again { AGAIN } else { 0 };
        let [l0, l1, l2, l3] = self.len.to_le_bytes();
        let [g0, g1, g2, g3] = group.get().to_le_bytes();
        let [n0, n1, n2, n3, n4, n5, n6, n7] = number.to_le_bytes();
        #[rustfmt::skip] // as in the picture
        let bytes = [
            l0, l1, l2, l3, kind.byte(), flags, 0, 0,
            g0, g1, g2, g3, 0, 0, 0, 0,
            n0, n1, n2, n3, n4, n5, n6, n7,
        ];
        bytes
    }

    /// The head, and the checksum that it says.
    #[inline]
    pub(crate) fn decode(bytes: &[u8; HEAD]) -> Result<(Self, u32), FrameError> {
        let &[
            l0,
            l1,
            l2,
            l3,
            kind,
            flags,
            s0,
            s1,
            g0,
            g1,
            g2,
            g3,
            c0,
            c1,
            c2,
            c3,
            n0,
            n1,
            n2,
            n3,
            n4,
            n5,
            n6,
            n7,
        ] = bytes;
        let len = u32::from_le_bytes([l0, l1, l2, l3]);
        if len as usize > PIECE_MAX {
            return Err(FrameError::Length(len));
        }
        let spare = u16::from_le_bytes([s0, s1]);
        if flags & !(MORE | AGAIN) != 0 || spare != 0 {
            return Err(FrameError::Flags { flags, spare });
        }
        let more = flags & MORE != 0;
        if more && len as usize != PIECE_MAX {
            return Err(FrameError::Piece(len));
        }
        let envelope = Envelope {
            kind: Kind::from_byte(kind).ok_or(FrameError::Kind(kind))?,
            again: flags & AGAIN != 0,
            group: GroupId::new(u32::from_le_bytes([g0, g1, g2, g3])),
            number: u64::from_le_bytes([n0, n1, n2, n3, n4, n5, n6, n7]),
        };
        Ok((Self { len, more, envelope }, u32::from_le_bytes([c0, c1, c2, c3])))
    }
}

/// The checksum of a head, to be continued with what follows it.
#[inline]
pub(crate) fn checksum_of_head(head: &[u8; HEAD]) -> u32 {
    let (before, rest) = head.split_at(12);
    let (_, after) = rest.split_at(4);
    crc32c::crc32c_append(crc32c::crc32c(before), after)
}

/// The checksum of more bytes.
#[inline]
pub(crate) fn checksum(so_far: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(so_far, bytes)
}

/// A letter in one piece: for tests.
impl From<(Envelope, Bytes)> for Letter {
    fn from((envelope, bytes): (Envelope, Bytes)) -> Self {
        Self { envelope, payload: bytes.into() }
    }
}
