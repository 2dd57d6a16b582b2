//! How nodes that are in no cluster become one.
//!
//! All of them have one list of names. When the first by name has links to all others, and each is blank and has told the same
//! list, it *founds*: it draws the cluster's id and writes who the members are. Then it tells the others, again and again, and each
//! writes the same. Nobody else draws an id.
//!
//! - So a crash at any moment leaves one cluster or none: before the founder has written there is none, and after that its file has
//!   the one that there is. Any member tells blank ones of it, so that the founder need not come back.
//! - A blank node keeps its Raft id from its first start on: whom the founder wrote down is who comes back.
//! - Nobody who is cut off founds: all have to be there.

use leveret_link::hello::{ClusterId, Members, NodeFacts, RaftId};

use crate::identity::{Identity, KnownMember, Membership, are_members};

/// What handshakes are to know of the members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownMembers {
    members: Vec<KnownMember>,
    forgotten: Vec<KnownMember>,
    /// Members whose names are not known here: they are as they say.
    nameless: Vec<RaftId>,
    listed: Vec<String>,
}

impl KnownMembers {
    /// As of what is on the disk, and the names that are listed.
    pub(crate) fn of(identity: &Identity, nameless: &[RaftId], listed: &[String]) -> Self {
        let (members, forgotten) = match &identity.membership {
            Some(it) => (it.members.clone(), it.forgotten.clone()),
            None => Default::default(),
        };
        Self { members, forgotten, nameless: nameless.to_vec(), listed: listed.to_vec() }
    }
}

impl Members for KnownMembers {
    fn start_of(&self, id: RaftId) -> Option<u64> {
        let known = self.members.iter().find(|it| it.raft_id == id).map(|it| it.start);
        known.or_else(|| self.nameless.contains(&id).then_some(0))
    }

    fn is_forgotten(&self, id: RaftId) -> bool {
        self.forgotten.iter().any(|it| it.raft_id == id)
    }

    fn named(&self, name: &str) -> Option<RaftId> {
        self.members.iter().find(|it| it.name == name).map(|it| it.raft_id)
    }

    fn is_listed(&self, name: &str) -> bool {
        self.listed.iter().any(|it| it == name)
    }
}

/// A node that this one has a link to.
#[derive(Clone, Debug)]
pub(crate) struct Linked {
    /// Both connections have TLS.
    pub(crate) encrypted: bool,
    pub(crate) node: NodeFacts,
    /// The names in its list, once it has told them.
    pub(crate) listed: Option<Vec<String>>,
    /// It has said that it is a member.
    pub(crate) cluster: Option<ClusterId>,
    /// When something came of it last.
    pub(crate) heard_ms: u64,
}

/// Why no cluster can be founded with a node that this one has a link to; none if nothing is in the way.
pub(crate) fn why_not(linked: &Linked, listed: &[String]) -> Option<String> {
    match linked {
        Linked { cluster: Some(cluster), .. } => Some(format!("is in cluster {cluster}")),
        Linked { listed: None, .. } => Some("has not told its list of nodes yet".to_owned()),
        Linked { listed: Some(theirs), .. } => {
            (theirs != listed).then(|| format!("lists other nodes: {}", theirs.join(", ")))
        }
    }
}

/// A listed node without which no cluster can be founded, with why if there is a link to it.
pub(crate) fn missing(name: &str, linked: Option<&Linked>, listed: &[String]) -> Option<String> {
    match linked {
        None => Some(name.to_owned()),
        Some(linked) => why_not(linked, listed).map(|why| format!("{name} ({why})")),
    }
}

/// Whether a blank node may become a part of this, which a member told, or why not.
pub(crate) fn refusal(
    told: &Membership,
    own: &Identity,
    listed: &[String],
    teller: &NodeFacts,
) -> Option<String> {
    let members = || told.members.iter().map(|it| (it.raft_id, it.name.as_str()));
    if let Err(why) = are_members(members(), told.shards) {
        return Some(why.to_owned());
    }
    let has = |id: RaftId, name: &str| members().any(|it| it == (id, name));
    if !has(teller.raft_id, &teller.name) {
        return Some(format!("{}, who tells of it, is no member", teller.name));
    }
    if !has(own.raft_id, &own.name) {
        return Some("this data directory is no member".to_owned());
    }
    let names: Vec<_> = members().map(|(_, name)| name).collect();
    // Who founds it is all that is listed. Later there may be fewer.
    let is_missing = |name: &&str| !listed.iter().any(|it| it == name);
    let is_other = told.is_as_founded() && names.len() != listed.len();
    if is_other || names.iter().any(is_missing) {
        return Some(format!(
            "its nodes are {}, and those that are listed here are {}",
            names.join(", "),
            listed.join(", ")
        ));
    }
    None
}
