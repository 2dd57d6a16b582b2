//! Who a data directory is in its cluster: the file `cluster` (`docs/formats/cluster.md`).
//!
//! It is text, so that an operator can read it, and ends with a checksum. It is written whole, under another name, synced and
//! renamed: there is the one of before, or the new one.

use std::fmt::Write as _;
use std::num::NonZeroU128;

use leveret_link::hello::{ClusterId, NodeFacts, RaftId};
use leveret_link::letters::Founding;

/// The first word of the file, before its format.
const MAGIC: &str = "leveret-cluster";

/// The format that is written.
const FORMAT: u32 = 1;

/// Members of a cluster at most.
pub const NODES_MAX: usize = 64;

/// Shards of a cluster at most.
pub const SHARDS_MAX: u32 = 1024;

/// Bytes of a file at most: nothing longer is read.
const LEN_MAX: usize = 64 << 10;

/// Who a data directory is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Drawn when the directory was new.
    pub raft_id: RaftId,
    /// Of its node.
    pub name: String,
    /// How often it was started, this time included.
    pub starts: u64,
    /// Its cluster, if it is in one.
    pub membership: Option<Membership>,
}

/// The cluster of a data directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// Which.
    pub cluster: ClusterId,
    /// How many groups of queues there are.
    pub shards: u32,
    /// Its members by name, this one among them.
    pub members: Vec<KnownMember>,
}

/// A member of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownMember {
    /// Its data directory.
    pub raft_id: RaftId,
    /// The latest start of it that was heard of; 0 if none was. Of this node itself it is 0.
    pub start: u64,
    /// Its node.
    pub name: String,
}

/// Why a file is no identity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// A later version wrote it.
    #[error("the file 'cluster' has format {0}, and this version knows {FORMAT}")]
    Newer(u32),
    /// It is not as it was written.
    #[error("the file 'cluster' is damaged: {0}")]
    Damaged(&'static str),
}

use IdentityError::Damaged;

impl Membership {
    /// As it is founded; nobody was heard of.
    pub(crate) fn of(founding: &Founding) -> Self {
        let known = |(raft_id, name): &(RaftId, String)| KnownMember {
            raft_id: *raft_id,
            start: 0,
            name: name.clone(),
        };
        let mut members: Vec<_> = founding.members.iter().map(known).collect();
        members.sort_by(|one, other| one.name.cmp(&other.name));
        Self { cluster: founding.cluster, shards: founding.shards, members }
    }

    /// What the founder says to the others.
    pub(crate) fn founding(&self) -> Founding {
        let members = self.members.iter().map(|it| (it.raft_id, it.name.clone()));
        Founding { cluster: self.cluster, members: members.collect(), shards: self.shards }
    }
}

impl Identity {
    /// Of a directory that was never started.
    pub(crate) fn new(raft_id: RaftId, name: &str) -> Self {
        Self { raft_id, name: name.to_owned(), starts: 0, membership: None }
    }

    /// What is said of this node in a hello.
    pub(crate) fn facts(&self) -> NodeFacts {
        NodeFacts {
            name: self.name.as_str().into(),
            cluster: self.membership.as_ref().map(|it| it.cluster),
            raft_id: self.raft_id,
            start: self.starts,
        }
    }

    /// The file.
    pub fn bytes(&self) -> Vec<u8> {
        let Self { raft_id, name, starts, membership } = self;
        let mut text = format!("{MAGIC} {FORMAT}\nnode {raft_id} {starts} {name}\n");
        if let Some(Membership { cluster, shards, members }) = membership {
            let _ = writeln!(text, "cluster {cluster} {shards}");
            for KnownMember { raft_id, start, name } in members {
                let _ = writeln!(text, "member {raft_id} {start} {name}");
            }
        }
        let _ = writeln!(text, "checksum {:08x}", crc32c::crc32c(text.as_bytes()));
        text.into_bytes()
    }

    /// Reads the file.
    ///
    /// # Errors
    ///
    /// When it is not one, whole.
    pub fn read(bytes: &[u8]) -> Result<Self, IdentityError> {
        if bytes.len() > LEN_MAX {
            return Err(Damaged("it is too long"));
        }
        let text = std::str::from_utf8(bytes).map_err(|_| Damaged("it is no text"))?;
        let format = text.strip_prefix(MAGIC).and_then(|it| it.lines().next());
        match format.and_then(|it| it.trim().parse().ok()) {
            Some(FORMAT) => {}
            Some(newer) if newer > FORMAT => return Err(IdentityError::Newer(newer)),
            _ => return Err(Damaged("it does not begin as one")),
        }
        let (counted, sum) = text.rsplit_once("checksum ").ok_or(Damaged("it has no checksum"))?;
        if sum != format!("{:08x}\n", crc32c::crc32c(counted.as_bytes())) {
            return Err(Damaged("its checksum is another"));
        }
        let identity = Self::of_lines(counted).ok_or(Damaged("a line is not as it should be"))?;
        identity.check().map(|()| identity)
    }

    fn of_lines(text: &str) -> Option<Self> {
        let mut lines = text.lines().skip(1);
        let (raft_id, starts, name) = node(lines.next()?, "node")?;
        let membership = match lines.next() {
            None => None,
            Some(line) => {
                let (cluster, shards) = line.strip_prefix("cluster ")?.split_once(' ')?;
                let cluster = NonZeroU128::new(u128::from_str_radix(cluster, 16).ok()?)?;
                let mut members = Vec::new();
                for line in lines {
                    let (raft_id, start, name) = node(line, "member")?;
                    members.push(KnownMember { raft_id, start, name });
                }
                Some(Membership {
                    cluster: ClusterId(cluster),
                    shards: shards.parse().ok()?,
                    members,
                })
            }
        };
        let identity = Self { raft_id, name, starts, membership };
        // One text for one identity.
        let again = identity.bytes();
        again.starts_with(text.as_bytes()).then_some(identity)
    }

    /// What is so of each.
    fn check(&self) -> Result<(), IdentityError> {
        if self.raft_id.0 == 0 || self.name.is_empty() {
            return Err(Damaged("the node has no id or no name"));
        }
        let Some(Membership { shards, members, .. }) = &self.membership else { return Ok(()) };
        let is_own = |it: &KnownMember| it.raft_id == self.raft_id && it.name == self.name;
        if !members.iter().any(is_own) {
            return Err(Damaged("the node is no member"));
        }
        let names = members.iter().map(|it| (it.raft_id, it.name.as_str()));
        are_members(names, *shards).map_err(Damaged)
    }
}

/// Whether these can be the members and shards of a cluster, or what is wrong with them.
pub(crate) fn are_members<'n>(
    members: impl Iterator<Item = (RaftId, &'n str)>,
    shards: u32,
) -> Result<(), &'static str> {
    let (mut ids, mut names): (Vec<_>, Vec<_>) = members.unzip();
    if !(2..=NODES_MAX).contains(&ids.len()) {
        return Err("there are too few or too many members");
    }
    if !(1..=SHARDS_MAX).contains(&shards) {
        return Err("there are too few or too many shards");
    }
    ids.sort_unstable();
    names.sort_unstable();
    let has_twins = ids.windows(2).any(|two| two.first() == two.last())
        || names.windows(2).any(|two| two.first() == two.last());
    if has_twins || ids.first() == Some(&RaftId(0)) || names.first() == Some(&"") {
        return Err("two members have one id or name, or one has none");
    }
    Ok(())
}

/// `WORD id number name`.
fn node(line: &str, word: &str) -> Option<(RaftId, u64, String)> {
    let mut words = line.strip_prefix(word)?.strip_prefix(' ')?.splitn(3, ' ');
    let id = u64::from_str_radix(words.next()?, 16).ok()?;
    let number = words.next()?.parse().ok()?;
    Some((RaftId(id), number, words.next()?.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one() -> Identity {
        let member = |id, start, name: &str| KnownMember {
            raft_id: RaftId(id),
            start,
            name: name.to_owned(),
        };
        Identity {
            raft_id: RaftId(0xA1),
            name: "rabbit@a".to_owned(),
            starts: 3,
            membership: Some(Membership {
                cluster: ClusterId(NonZeroU128::new(0xC0FFEE).unwrap()),
                shards: 2,
                members: vec![member(0xA1, 0, "rabbit@a"), member(0xB2, 7, "rabbit@b")],
            }),
        }
    }

    /// The bytes are those of `docs/formats/cluster.md`.
    #[test]
    fn bytes_of_each_format() {
        let golden = include_bytes!("../tests/golden/cluster-1");
        assert_eq!(String::from_utf8_lossy(&one().bytes()), String::from_utf8_lossy(golden));
        assert_eq!(Identity::read(golden), Ok(one()));
        let blank = Identity { membership: None, ..one() };
        assert_eq!(Identity::read(&blank.bytes()), Ok(blank));
    }

    #[test]
    fn whatever_is_damaged_is_refused() {
        let bytes = one().bytes();
        for at in 0..bytes.len() {
            assert!(Identity::read(&bytes[..at]).is_err(), "cut at {at}");
            for bit in 0..8 {
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << bit;
                assert!(Identity::read(&flipped).is_err(), "byte {at}, bit {bit}");
            }
        }
        assert!(Identity::read(&[bytes.clone(), bytes].concat()).is_err());
    }

    /// With a good checksum.
    #[test]
    #[rustfmt::skip] // a table
    fn what_cannot_be_is_refused() {
        let with = |change: fn(&mut Identity)| {
            let mut identity = one();
            change(&mut identity);
            Identity::read(&identity.bytes()).unwrap_err().to_string()
        };
        let members = |it: &mut Identity, change: fn(&mut Membership)| change(it.membership.as_mut().unwrap());
        let begins = "the file 'cluster' is damaged: ";
        assert_eq!(with(|it| it.raft_id = RaftId(0)), format!("{begins}the node has no id or no name"));
        assert_eq!(with(|it| it.raft_id = RaftId(1)), format!("{begins}the node is no member"));
        assert_eq!(with(|it| it.name = "rabbit@x".into()), format!("{begins}the node is no member"));
        let mut it = one();
        members(&mut it, |of| of.shards = 0);
        assert_eq!(Identity::read(&it.bytes()).unwrap_err().to_string(), format!("{begins}there are too few or too many shards"));
        let mut it = one();
        members(&mut it, |of| { of.members.pop(); });
        assert_eq!(Identity::read(&it.bytes()).unwrap_err().to_string(), format!("{begins}there are too few or too many members"));
        let mut it = one();
        members(&mut it, |of| of.members[1].raft_id = RaftId(0xA1));
        assert_eq!(Identity::read(&it.bytes()).unwrap_err().to_string(), format!("{begins}two members have one id or name, or one has none"));
        let newer = String::from_utf8(one().bytes()).unwrap().replace("leveret-cluster 1", "leveret-cluster 2");
        assert_eq!(Identity::read(newer.as_bytes()), Err(IdentityError::Newer(2)));
    }
}
