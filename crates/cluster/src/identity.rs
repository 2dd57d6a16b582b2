//! Who a data directory is in its cluster: the file `cluster` (`docs/formats/cluster.md`).
//!
//! It is text, so that an operator can read it, and ends with a checksum. It is written whole, under another name, synced and
//! renamed: there is the one of before, or the new one.

use std::fmt::Write as _;
use std::num::NonZeroU128;

use leveret_link::hello::{ClusterId, NodeFacts, RaftId};
use leveret_link::letters::{Founding, Joining};

use crate::cluster::BEGINNING;

/// The first word of the file, before its format.
const MAGIC: &str = "leveret-cluster";

/// The format of a node whose cluster has the members that founded it, or that is in none.
const FOUNDED: u32 = 1;

/// The format of any other.
const FORMAT: u32 = 2;

/// Members of a cluster at most.
pub const NODES_MAX: usize = 64;

/// Shards of a cluster at most.
pub const SHARDS_MAX: u32 = 1024;

/// Members that are no more, of which a file tells at most: the latest.
const FORGOTTEN_MAX: usize = 64;

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
    /// Who founded it, by number: the members behind the batch that all groups begin behind.
    pub founders: Vec<RaftId>,
    /// The number of the batch of group 0 as of which the rest is so; that one until members are changed.
    pub as_of: u64,
    /// Its members by name, this one among them.
    pub members: Vec<KnownMember>,
    /// Who was a member and is none any more, the latest last; its start is 0.
    pub forgotten: Vec<KnownMember>,
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

/// The number of the batch that all groups begin behind.
const AS_FOUNDED: u64 = BEGINNING.number;

impl Membership {
    /// As it is founded; nobody was heard of.
    pub(crate) fn of(founding: &Founding) -> Self {
        let known = |(raft_id, name): &(RaftId, String)| KnownMember::new(*raft_id, name);
        let mut members: Vec<_> = founding.members.iter().map(known).collect();
        members.sort_by(|one, other| one.name.cmp(&other.name));
        Self {
            cluster: founding.cluster,
            shards: founding.shards,
            founders: ids(&members),
            as_of: AS_FOUNDED,
            members,
            forgotten: Vec::new(),
        }
    }

    /// As a member told it; nobody was heard of.
    pub(crate) fn told(joining: &Joining) -> Self {
        let known = |all: &[(RaftId, String)]| {
            let of = |(raft_id, name): &(RaftId, String)| KnownMember::new(*raft_id, name);
            all.iter().map(of).collect::<Vec<_>>()
        };
        let (mut members, mut founders) = (known(&joining.members), joining.founders.clone());
        members.sort_by(|one, other| one.name.cmp(&other.name));
        founders.sort_unstable();
        Self {
            cluster: joining.cluster,
            shards: joining.shards,
            founders,
            as_of: joining.as_of,
            members,
            forgotten: known(&joining.forgotten),
        }
    }

    /// What is told one that joins.
    pub(crate) fn joining(&self) -> Joining {
        let told =
            |all: &[KnownMember]| all.iter().map(|it| (it.raft_id, it.name.clone())).collect();
        Joining {
            cluster: self.cluster,
            shards: self.shards,
            founders: self.founders.clone(),
            as_of: self.as_of,
            members: told(&self.members),
            forgotten: told(&self.forgotten),
        }
    }

    /// The member with this Raft id.
    pub(crate) fn member(&self, id: RaftId) -> Option<&KnownMember> {
        self.members.iter().find(|it| it.raft_id == id)
    }

    /// Whether the members are those who founded it.
    pub(crate) fn is_as_founded(&self) -> bool {
        self.as_of == AS_FOUNDED
    }

    /// Members are these from now on, as of a batch of group 0; `name` tells what a new one is called. One whose name nobody knows
    /// yet, or that a member has, is left out: those are given back.
    pub(crate) fn become_of(
        &mut self,
        found: &[RaftId],
        as_of: u64,
        name: impl Fn(RaftId) -> Option<String>,
    ) -> Vec<RaftId> {
        let is_gone = |it: &mut KnownMember| !found.contains(&it.raft_id);
        let gone = self.members.extract_if(.., is_gone);
        self.forgotten.extend(gone.map(|it| KnownMember { start: 0, ..it }));
        let too_many = self.forgotten.len().saturating_sub(FORGOTTEN_MAX);
        self.forgotten.drain(..too_many);
        self.as_of = as_of;
        let mut nameless = Vec::new();
        for id in
            found.iter().filter(|id| !ids(&self.members).contains(id)).copied().collect::<Vec<_>>()
        {
            match name(id).filter(|name| self.members.iter().all(|it| it.name != *name)) {
                Some(name) => self.members.push(KnownMember::new(id, &name)),
                None => nameless.push(id),
            }
        }
        self.members.sort_by(|one, other| one.name.cmp(&other.name));
        nameless
    }

    /// What the founder says to the others.
    pub(crate) fn founding(&self) -> Founding {
        let members = self.members.iter().map(|it| (it.raft_id, it.name.clone()));
        Founding { cluster: self.cluster, members: members.collect(), shards: self.shards }
    }
}

impl KnownMember {
    /// One of which no start was heard of.
    fn new(raft_id: RaftId, name: &str) -> Self {
        Self { raft_id, start: 0, name: name.to_owned() }
    }
}

/// The Raft ids of these, ascending.
fn ids(members: &[KnownMember]) -> Vec<RaftId> {
    let mut ids: Vec<_> = members.iter().map(|it| it.raft_id).collect();
    ids.sort_unstable();
    ids
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
        // Who founded it is in a file only where that is not who the members are: earlier versions read the others.
        let is_changed = membership.as_ref().is_some_and(|it| !it.is_as_founded());
        let format = if is_changed { FORMAT } else { FOUNDED };
        let mut text = format!("{MAGIC} {format}\nnode {raft_id} {starts} {name}\n");
        if let Some(Membership { cluster, shards, founders, as_of, members, forgotten }) =
            membership
        {
            let _ = write!(text, "cluster {cluster} {shards}");
            if is_changed {
                let _ = write!(text, " {as_of}");
            }
            text.push('\n');
            for founder in founders.iter().filter(|_| is_changed) {
                let _ = writeln!(text, "founder {founder}");
            }
            for (word, all) in [("member", members), ("forgotten", forgotten)] {
                for KnownMember { raft_id, start, name } in all {
                    let _ = writeln!(text, "{word} {raft_id} {start} {name}");
                }
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
            Some(FOUNDED | FORMAT) => {}
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
                let (cluster, rest) = line.strip_prefix("cluster ")?.split_once(' ')?;
                let cluster = NonZeroU128::new(u128::from_str_radix(cluster, 16).ok()?)?;
                let (shards, as_of) = match rest.split_once(' ') {
                    Some((shards, as_of)) => (shards, as_of.parse().ok()?),
                    None => (rest, AS_FOUNDED),
                };
                let [mut founders, mut members, mut forgotten] = <[Vec<_>; 3]>::default();
                for line in lines {
                    if let Some(id) = line.strip_prefix("founder ") {
                        founders
                            .push(KnownMember::new(RaftId(u64::from_str_radix(id, 16).ok()?), ""));
                        continue;
                    }
                    let (to, (raft_id, start, name)) = match node(line, "member") {
                        Some(member) => (&mut members, member),
                        None => (&mut forgotten, node(line, "forgotten")?),
                    };
                    to.push(KnownMember { raft_id, start, name });
                }
                let of = if as_of == AS_FOUNDED { &members } else { &founders };
                Some(Membership {
                    cluster: ClusterId(cluster),
                    shards: shards.parse().ok()?,
                    founders: ids(of),
                    as_of,
                    members,
                    forgotten,
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
        let Some(membership) = &self.membership else { return Ok(()) };
        let Membership { shards, founders, as_of, members, forgotten, .. } = membership;
        let is_own = |it: &KnownMember| it.raft_id == self.raft_id && it.name == self.name;
        if !members.iter().any(is_own) {
            return Err(Damaged("the node is no member"));
        }
        let names = members.iter().map(|it| (it.raft_id, it.name.as_str()));
        are_members(names, *shards).map_err(Damaged)?;
        if *as_of < AS_FOUNDED || founders.len() < 2 || forgotten.len() > FORGOTTEN_MAX {
            return Err(Damaged("what it says of changes of members cannot be"));
        }
        Ok(())
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
                founders: vec![RaftId(0xA1), RaftId(0xB2)],
                as_of: 1,
                members: vec![member(0xA1, 0, "rabbit@a"), member(0xB2, 7, "rabbit@b")],
                forgotten: vec![],
            }),
        }
    }

    /// `b` was forgotten, and came back with another data directory.
    fn changed() -> Identity {
        let mut one = one();
        let membership = one.membership.as_mut().unwrap();
        let (a, b, again) = (RaftId(0xA1), RaftId(0xB2), RaftId(0xC3));
        assert_eq!(membership.become_of(&[a], 17, |_| None), []);
        let name = |id| (id == again).then(|| "rabbit@b".to_owned());
        assert_eq!(membership.become_of(&[a, again, RaftId(9)], 23, name), [RaftId(9)]);
        assert_eq!(ids(&membership.forgotten), [b]);
        one
    }

    /// The bytes are those of `docs/formats/cluster.md`.
    #[test]
    fn bytes_of_each_format() {
        let golden = include_bytes!("../tests/golden/cluster-1");
        assert_eq!(String::from_utf8_lossy(&one().bytes()), String::from_utf8_lossy(golden));
        assert_eq!(Identity::read(golden), Ok(one()));
        let blank = Identity { membership: None, ..one() };
        assert_eq!(Identity::read(&blank.bytes()), Ok(blank));
        let golden = include_bytes!("../tests/golden/cluster-2");
        assert_eq!(String::from_utf8_lossy(&changed().bytes()), String::from_utf8_lossy(golden));
        assert_eq!(Identity::read(golden), Ok(changed()));
    }

    #[test]
    fn whatever_is_damaged_is_refused() {
        for bytes in [one().bytes(), changed().bytes()] {
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
    }

    /// The latest of them are told of.
    #[test]
    fn few_are_remembered_that_were_forgotten() {
        let mut membership = one().membership.unwrap();
        let a = RaftId(0xA1);
        for id in 1_000..1_100 {
            let as_of = membership.as_of + 1;
            membership.become_of(&[a, RaftId(id)], as_of, |_| Some("rabbit@b".to_owned()));
            membership.become_of(&[a], as_of + 1, |_| None);
        }
        assert_eq!(ids(&membership.forgotten), (1_036..1_100).map(RaftId).collect::<Vec<_>>());
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
        let newer = String::from_utf8(one().bytes()).unwrap().replace("leveret-cluster 1", "leveret-cluster 3");
        assert_eq!(Identity::read(newer.as_bytes()), Err(IdentityError::Newer(3)));
    }
}
