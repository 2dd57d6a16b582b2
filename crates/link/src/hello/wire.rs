//! The bytes of a handshake. `docs/formats/link.md` explains them; numbers are little-endian.
//!
//! ```text
//! each side first   8  "LVRTLINK"
//! message           1  kind: 1 hello, 2 proof, 3 welcome, 4 refusal
//!                   1  0
//!                   2  length of what follows
//! hello
//!    0   2  oldest version
//!    2   2  newest version
//!    4   1  connection: 0 urgent, 1 bulk, 2 relay
//!    5   1  bytes of the name
//!    6   2  0
//!    8  16  cluster, 0 for none
//!   24   8  Raft id
//!   32   8  number of the start
//!   40   8  time, ms since the Unix epoch
//!   48  32  random bytes
//!   80      name, UTF-8; what follows it is of a later version
//! proof    32 bytes
//! welcome  nothing
//! refusal  a text, UTF-8
//! ```

use std::num::NonZeroU128;
use std::ops::RangeInclusive;

use super::{ClusterId, NodeFacts, RaftId, Refusal, Urgency};

pub(super) const MAGIC: &[u8; 8] = b"LVRTLINK";
/// Bytes of a message, the magic before it included.
pub(super) const MESSAGE_MAX: usize = 1024;
/// Bytes of the name of a node at most.
pub const NAME_MAX: usize = 255;
const HEAD: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Hello = 1,
    Proof = 2,
    Welcome = 3,
    Refusal = 4,
}

/// A whole message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message<'a> {
    pub(super) kind: Kind,
    pub(super) body: &'a [u8],
}

impl<'a> Message<'a> {
    /// The message that the bytes are.
    pub(super) fn read(bytes: &'a [u8]) -> Result<Self, Refusal> {
        let kind = match bytes {
            [1, 0, ..] => Kind::Hello,
            [2, 0, ..] => Kind::Proof,
            [3, 0, ..] => Kind::Welcome,
            [4, 0, ..] => Kind::Refusal,
            _ => return Err(Refusal::Malformed("a message of an unknown kind")),
        };
        Ok(Self { kind, body: bytes.get(HEAD..).unwrap_or_default() })
    }
}

/// How long a message is, by its first bytes, or at least. `before` it are so many others.
pub(super) fn message_len(bytes: &[u8], before: usize) -> Result<usize, Refusal> {
    let &[_, _, low, high, ..] = bytes else { return Ok(HEAD) };
    let len = HEAD.saturating_add(u16::from_le_bytes([low, high]).into());
    if len.saturating_add(before) > MESSAGE_MAX {
        return Err(Refusal::Malformed("a message of more than 1 KiB"));
    }
    Ok(len)
}

/// Appends a message, cut if it is too long: a text may be.
pub(super) fn put_message(out: &mut Vec<u8>, kind: Kind, body: &[u8]) {
    let max = MESSAGE_MAX.saturating_sub(MAGIC.len()).saturating_sub(HEAD);
    let body = body.get(..max).unwrap_or(body);
    out.extend_from_slice(&[kind as u8, 0]);
    out.extend_from_slice(&(body.len() as u16).to_le_bytes());
    out.extend_from_slice(body);
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) versions: RangeInclusive<u16>,
    pub(super) urgency: Urgency,
    pub(super) node: NodeFacts,
    pub(super) random: [u8; 32],
    pub(super) now_ms: u64,
}

impl Hello {
    pub(super) fn encode(&self) -> Vec<u8> {
        let Self { versions, urgency, node, random, now_ms } = self;
        let name = node.name.get(..node.name.floor_char_boundary(NAME_MAX)).unwrap_or_default();
        let mut out = Vec::with_capacity(MESSAGE_MAX);
        out.extend_from_slice(&versions.start().to_le_bytes());
        out.extend_from_slice(&versions.end().to_le_bytes());
        let urgency = match urgency {
            Urgency::Urgent => 0,
            Urgency::Bulk => 1,
            Urgency::Relay => 2,
        };
        out.extend_from_slice(&[urgency, name.len() as u8, 0, 0]);
        let cluster = node.cluster.map_or(0, |ClusterId(number)| number.get());
        out.extend_from_slice(&cluster.to_le_bytes());
        for number in [node.raft_id.0, node.start, *now_ms] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(random);
        out.extend_from_slice(name.as_bytes());
        out
    }

    pub(super) fn decode(body: &[u8]) -> Result<Self, Refusal> {
        let mut rest = body;
        let oldest = u16::from_le_bytes(take(&mut rest)?);
        let newest = u16::from_le_bytes(take(&mut rest)?);
        let [urgency, name_len, ..]: [u8; 4] = take(&mut rest)?;
        let cluster = u128::from_le_bytes(take(&mut rest)?);
        let raft_id = u64::from_le_bytes(take(&mut rest)?);
        let start = u64::from_le_bytes(take(&mut rest)?);
        let now_ms = u64::from_le_bytes(take(&mut rest)?);
        let random = take(&mut rest)?;
        if oldest > newest {
            return Err(Refusal::Malformed("versions from a higher to a lower one"));
        }
        let urgency = match urgency {
            0 => Urgency::Urgent,
            1 => Urgency::Bulk,
            2 => Urgency::Relay,
            _ => return Err(Refusal::Malformed("an unknown connection")),
        };
        let name = rest.get(..name_len.into()).ok_or(TOO_SHORT)?;
        let name = std::str::from_utf8(name).ok();
        let name = name.filter(|name| !name.is_empty() && !name.contains(char::is_control));
        let name = name.ok_or(Refusal::Malformed("a name that is none"))?;
        let cluster = NonZeroU128::new(cluster).map(ClusterId);
        let node = NodeFacts { name: name.into(), cluster, raft_id: RaftId(raft_id), start };
        Ok(Self { versions: oldest..=newest, urgency, node, random, now_ms })
    }
}

const TOO_SHORT: Refusal = Refusal::Malformed("a hello that is too short");

fn take<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], Refusal> {
    let (taken, rest) = bytes.split_first_chunk().ok_or(TOO_SHORT)?;
    *bytes = rest;
    Ok(*taken)
}
