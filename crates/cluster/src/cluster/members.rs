//! Who is a member of the cluster, after it was founded: see [`changes`](crate::changes).

use leveret_link::hello::RaftId;
use leveret_log::disk::Disk;
use leveret_replica::{Change, MemberId, Step};

use super::{Cluster, Phase};
use crate::changes::{ForgetError, ids};
use crate::formation::Linked;
use crate::identity::NODES_MAX;
use crate::status::Standing;

impl<D: Disk> Cluster<D> {
    /// Has the cluster forget a node, which has stopped: its data directory is a member no more, and never will be. This node leads.
    /// [`has_forgotten`](Self::has_forgotten) says when that is agreed upon. Gives its Raft id.
    ///
    /// # Errors
    ///
    /// When the node is to stay, or this one cannot say.
    pub fn forget(&mut self, name: &str) -> Result<RaftId, ForgetError> {
        let (Phase::Member(groups), Some(membership), Standing::Leads) =
            (&mut self.phase, &self.safe.membership, &self.standing)
        else {
            return Err(ForgetError::LeadsNot);
        };
        let named = membership.members.iter().find(|it| it.name == name);
        let id = named.ok_or(ForgetError::NoMember)?.raft_id;
        let is_here = |id: RaftId| id == self.safe.raft_id || self.linked.contains_key(&id);
        if is_here(id) {
            return Err(ForgetError::Runs(name.to_owned()));
        }
        if membership.members.len() <= 2 {
            return Err(ForgetError::TooFew);
        }
        // Who learns agrees upon nothing.
        let voters = groups.voters();
        let left = membership.members.iter().map(|it| it.raft_id);
        let left: Vec<_> = left.filter(|it| *it != id && voters.contains(it)).collect();
        let (here, of) = (left.iter().filter(|id| is_here(**id)).count(), left.len());
        if here <= of / 2 {
            return Err(ForgetError::NoMajority { here, of });
        }
        groups.wish(Change::of(vec![Step::Remove(MemberId(id.0))]));
        Ok(id)
    }

    /// Whether a node is a member of no group any more, of which [`forget`](Self::forget) was asked, and all agree upon that.
    ///
    /// # Errors
    ///
    /// When it came back before it was agreed upon, or this node leads no more: then it may be forgotten all the same.
    pub fn has_forgotten(&self, id: RaftId) -> Result<bool, ForgetError> {
        let (Phase::Member(groups), Some(membership), Standing::Leads) =
            (&self.phase, &self.safe.membership, &self.standing)
        else {
            return Err(ForgetError::LeadsNot);
        };
        let Some(member) = membership.member(id) else { return Ok(!groups.have(id)) };
        match self.linked.contains_key(&id) && !groups.wishes_away(id) {
            true => Err(ForgetError::Runs(member.name.clone())),
            false => Ok(false),
        }
    }

    /// Members are who group 0 says.
    pub(super) fn follow_members(&mut self) {
        let (Phase::Member(groups), Some(membership)) = (&self.phase, &self.identity.membership)
        else {
            return;
        };
        let Some((members, as_of)) = groups.cluster_members() else { return };
        let is_known = |id: MemberId| membership.member(RaftId(id.0)).is_some();
        let is_same =
            ids(members).count() == membership.members.len() && ids(members).all(is_known);
        // What this node was told, or wrote down before, may be later than what it knows to be agreed upon.
        if is_same || as_of < membership.as_of {
            return;
        }
        let found: Vec<_> = ids(members).map(|id| RaftId(id.0)).collect();
        if !found.contains(&self.identity.raft_id) {
            let name = &self.identity.name;
            let text = format!(
                "the cluster has forgotten {name}: with an empty data directory it becomes a new member"
            );
            return self.warn(text);
        }
        let name = |id: RaftId| {
            let said = self.linked.get(&id).map(|it| it.node.name.to_string());
            groups.named(id).map(str::to_owned).or(said)
        };
        let mut changed = membership.clone();
        let nameless = changed.become_of(&found, as_of, name);
        if nameless != self.nameless {
            self.nameless = nameless;
            self.actions.links = Some((self.safe.facts(), self.known()));
        }
        let is_other =
            self.identity.membership.as_ref().is_some_and(|it| it.members != changed.members);
        if is_other {
            self.identity.membership = Some(changed);
            self.is_changed = true;
        }
    }

    /// A blank node whose name is listed and nobody's becomes a member that learns, one after the other.
    pub(super) fn take_in(&mut self) {
        let (Phase::Member(groups), Some(membership), Standing::Leads) =
            (&mut self.phase, &self.safe.membership, &self.standing)
        else {
            return;
        };
        let is_blank =
            |it: &&Linked| it.cluster.is_none() && membership.member(it.node.raft_id).is_none();
        if !self.linked.values().any(|it| is_blank(&it)) || groups.is_changing() {
            return;
        }
        if membership.members.len() >= NODES_MAX {
            return;
        }
        let mut why = None;
        let new = self.linked.values().filter(is_blank).find(|it| {
            let is_free = membership.members.iter().all(|member| *member.name != *it.node.name);
            let listed = it.listed.as_deref().unwrap_or_default();
            let lacks = membership.members.iter().find(|member| !listed.contains(&member.name));
            if let (true, Some(_), Some(lacks)) = (is_free, &it.listed, lacks) {
                why = Some(format!(
                    "{} does not become a member: it does not list {}",
                    it.node.name, lacks.name
                ));
            }
            is_free
                && lacks.is_none()
                && self.setup.listed.iter().any(|name| **name == *it.node.name)
        });
        if let Some(Linked { node, .. }) = new {
            let id = MemberId(node.raft_id.0);
            let names = vec![(id, node.name.to_string())];
            groups.wish(Change { steps: vec![Step::Learner(id)], names });
        } else if let Some(why) = why {
            self.warn(why);
        }
    }

    /// The members whose copies and votes count: not one that joins. None as long as there are no groups: then all do.
    pub(super) fn deciders(&self) -> Option<Vec<RaftId>> {
        match &self.phase {
            Phase::Member(groups) => Some(groups.voters()),
            _ => None,
        }
    }
}
