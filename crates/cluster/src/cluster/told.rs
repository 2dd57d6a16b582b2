//! What nodes tell each other of their groups, and remember, so that a data directory that is an older copy of itself takes nothing
//! away: see `leveret_replica::GroupFacts`.

use leveret_link::hello::RaftId;
use leveret_link::letters::{GroupTold, NodeLetter};
use leveret_log::disk::Disk;
use leveret_replica::BatchName;

use super::{Cluster, Phase};
use crate::status::Standing;

/// What is to be in the file `heard`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remembered {
    /// The last batch that is known to be agreed upon, by group.
    pub agreed: Vec<BatchName>,
    /// The files are no copy, or nothing was lost by it: where they are is to be remembered. Else where they were before.
    pub is_sure: bool,
}

impl<D: Disk> Cluster<D> {
    /// What was to be in the file `heard` is there, or could not be written: then it is tried again.
    pub fn heard_written(&mut self, is_written: bool) {
        let written = self.heard_writing.take();
        if is_written {
            self.heard_safe = written;
        }
    }

    /// A node hears how far this one's groups are.
    pub(super) fn tell_groups(&mut self, to: RaftId) {
        if let Phase::Member(groups) = &self.phase {
            self.actions.send.push((to, NodeLetter::Told(groups.tell())));
        }
    }

    pub(super) fn hear_groups(&mut self, from: RaftId, told: Vec<GroupTold>) {
        let membership = self.safe.membership.as_ref();
        let is_member = membership.is_some_and(|it| it.members.iter().any(|it| it.raft_id == from));
        if let (Phase::Member(groups), true) = (&mut self.phase, is_member) {
            groups.hear(from, &told);
            self.told.insert(from, told);
        }
        self.look_whether_sure();
    }

    /// Has a copy's words told, until they are over.
    pub(super) fn look_whether_sure(&mut self) {
        let Phase::Member(groups) = &self.phase else { return };
        let is_unsure = groups.is_unsure();
        if std::mem::replace(&mut self.was_unsure, is_unsure) == is_unsure {
            return;
        }
        self.actions.told.push(match is_unsure {
            true => format!(
                "the files of this data directory are not those that it had when the node ran last: it is a copy, or was moved. What it \
                 promised since is forgotten. The node votes for nobody until it has heard all others once: {}",
                self.others().join(", ")
            ),
            false => "all other nodes have told how far they are: this one votes again".to_owned(),
        });
        self.remember();
    }

    fn others(&self) -> Vec<String> {
        let membership = self.safe.membership.as_ref();
        let members = membership.map_or(&[][..], |it| it.members.as_slice());
        let others = members.iter().filter(|it| it.raft_id != self.safe.raft_id);
        others.map(|it| it.name.clone()).collect()
    }

    /// Has what is known written, if that is something else than what was.
    pub(super) fn remember(&mut self) {
        let Phase::Member(groups) = &self.phase else { return };
        let agreed = groups.tell().iter().map(|it| it.told.agreed).collect();
        let now = Remembered { agreed, is_sure: !groups.is_unsure() };
        if self.heard_writing.is_none() && self.heard_safe.as_ref() != Some(&now) {
            self.heard_writing = Some(now.clone());
            self.actions.write_heard = Some(now);
        }
    }

    /// Who leads tells for whom confirms that wait for all in contact do not wait, and for whom they do again.
    pub(super) fn tell_left_out(&mut self) {
        let Phase::Member(groups) = &self.phase else { return };
        let leads = self.standing == Standing::Leads;
        let Some(now) = Some(groups).filter(|_| leads).and_then(|it| it.left_out_of_confirms())
        else {
            self.left_out.clear();
            return;
        };
        if now == self.left_out {
            return;
        }
        let before = std::mem::replace(&mut self.left_out, now);
        let membership = self.safe.membership.as_ref();
        let named = |id: &RaftId| membership?.member(*id).map(|it| it.name.clone());
        let new = self.left_out.iter().filter(|(id, _)| !before.contains_key(id));
        let told = new.filter_map(|(id, why)| {
            let (name, why) = (named(id)?, why.why());
            Some(format!(
                "{name} {why}: where confirms wait for all members in contact (replication-confirm), they do not wait for it"
            ))
        });
        let back = before.keys().filter(|id| !self.left_out.contains_key(id));
        let noted = back.filter_map(|id| {
            Some(format!(
                "{} has all that is confirmed: where confirms wait for all members in contact, they wait for it, too",
                named(id)?
            ))
        });
        let (told, noted): (Vec<_>, Vec<_>) = (told.collect(), noted.collect());
        self.actions.told.extend(told);
        self.actions.noted.extend(noted);
    }

    /// Each reason once, when it has lasted for a second.
    pub(super) fn tell_why_nobody_leads(&mut self) {
        let why = self.why_nobody_leads();
        if why.is_none() || why == self.why && why != self.why_told {
            self.actions.told.extend(why.iter().map(|why| format!("no node can lead: {why}")));
            self.why_told.clone_from(&why);
        }
        self.why = why;
    }

    /// Why those who are here elect nobody, if so many of them have lost a part of a log that the others are no majority.
    fn what_is_lost(&self) -> Option<String> {
        let Phase::Member(groups) = &self.phase else { return None };
        let deciders = self.deciders().unwrap_or_default();
        let here = self
            .statuses
            .iter()
            .filter(|(id, _)| self.linked.contains_key(id) && deciders.contains(id));
        let (lost, whole): (Vec<_>, Vec<_>) =
            here.map(|(_, status)| status).partition(|it| it.numbers.lacking > 0);
        let own = groups.lacking().next();
        if whole.len() + usize::from(own.is_none()) > deciders.len() / 2 {
            return None;
        }
        let mut names: Vec<_> = lost.iter().map(|it| it.name.clone()).collect();
        names.extend(own.map(|_| self.safe.name.clone()));
        if names.is_empty() {
            return None;
        }
        names.sort_unstable();
        let own = own.map(|(group, last, lacks)| {
            format!(
                " That of group {group} went up to {lacks} on this node, and ends with {last} now."
            )
        });
        Some(format!(
            "of what was acknowledged a part is gone from the logs of {} (damaged, lost or set back): they do not lead, and vote for nobody who \
             has less than they once had.{} A node that is not here may have it, or a copy of a lost disk",
            names.join(" and "),
            own.unwrap_or_default()
        ))
    }

    /// Why none of those who are here can lead, if that is so and none does.
    pub(super) fn why_nobody_leads(&self) -> Option<String> {
        let Phase::Member(groups) = &self.phase else { return None };
        if self.standing != Standing::Waits {
            return None;
        }
        if groups.is_unsure() {
            let is_missing = |name: &String| self.linked_named(name).is_none();
            let missing: Vec<_> = self.others().into_iter().filter(is_missing).collect();
            return Some(format!(
                "this node's files are a copy, or were moved, and it has to hear {} before it votes",
                if missing.is_empty() { "all others".to_owned() } else { missing.join(", ") }
            ));
        }
        let (lost, lacked) = (self.what_is_lost(), self.what_is_lacked());
        Some(match (lost, lacked) {
            (Some(lost), Some(lacked)) => format!("{lacked}: {lost}"),
            (Some(lost), None) => lost,
            (None, lacked) => format!(
                "{}: an older copy of a data directory is among them, or it is not here yet who has the rest",
                lacked?
            ),
        })
    }

    /// What was agreed upon and nobody who is here has.
    fn what_is_lacked(&self) -> Option<String> {
        let Phase::Member(groups) = &self.phase else { return None };
        let here = self.told.iter().filter(|(id, _)| self.linked.contains_key(id));
        let here: Vec<_> = here.map(|(_, told)| told).collect();
        groups.tell().iter().find_map(|GroupTold { group, told }| {
            let others = here.iter().filter_map(|of| of.iter().find(|it| it.group == *group));
            let all = others.map(|it| it.told).chain([*told]);
            let known = all.clone().map(|it| it.agreed).max()?;
            let best = all.map(|it| it.last).max()?;
            (best < known).then(|| {
                format!(
                    "batch {} of group {group} was agreed upon, and the nodes that are here have no more than {}",
                    known.number, best.number
                )
            })
        })
    }
}
