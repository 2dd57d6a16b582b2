//! The operator who sets and clears policies and pauses queues while messages flow, one after the other,
//! and knows what must be there after a restart.

use leveret_broker::message::{AdminCommand, ConnectionId, ReplyTo, ToMeta};
use leveret_topology::{ApplyTo, Policy, PolicySpec, Topology};
use serde_json::{Map, Value};

use crate::plan::{PAUSED, POLICIES};
use crate::random::Random;
use crate::shadow::Check;

/// Who asks for it: no connection.
pub(crate) const OPERATOR: ConnectionId = ConnectionId::NOBODY;

/// What a policy says; none when it is not there. An empty one for a queue that is paused.
type Definition = Option<Map<String, Value>>;

/// What an operator changes: policies, then queues that are paused.
const THINGS: usize = POLICIES.len() + PAUSED.len();

/// Which policies are there, and which queues are paused.
#[derive(Debug, Default)]
pub(crate) struct Policies {
    is: [Definition; THINGS],
    /// What it may be instead: what it was before changes that were refused because of the disk, which may
    /// be stored later and may not.
    may_be: [Vec<Definition>; THINGS],
    /// The change without an answer.
    pending: Option<(usize, Definition)>,
}

impl Policies {
    /// The next change: a policy is made, replaced or cleared, or a queue is paused or goes on.
    pub(crate) fn change(&mut self, random: &mut Random) -> Option<ToMeta> {
        let at = random.below(THINGS);
        let Some(&(queue, definitions)) = POLICIES.get(at) else {
            return self.pause(at, self.is[at].is_none());
        };
        let clears = self.is[at].is_some() && random.one_in(3);
        let json = definitions[random.below(definitions.len())];
        if self.pending.is_some() {
            return None;
        }
        let definition: Map<_, _> = serde_json::from_str(json).expect("the plan is well-formed");
        self.pending = Some((at, (!clears).then(|| definition.clone())));
        let (vhost, name) = ("/".to_owned(), queue.to_owned());
        let command = if clears {
            AdminCommand::ClearPolicy { vhost, name }
        } else {
            let spec = PolicySpec {
                name: &name,
                pattern: &format!("^{queue}$"),
                apply_to: ApplyTo::Queues,
                priority: 0,
                definition,
            };
            let policy = Policy::new(spec, false).expect("the plan is well-formed");
            AdminCommand::SetPolicy { vhost, policy: Box::new(policy) }
        };
        Some(told(command))
    }

    /// Has a paused queue go on, if there is one.
    pub(crate) fn resume(&mut self) -> Option<ToMeta> {
        let at = (POLICIES.len()..THINGS).find(|&at| self.is[at].is_some())?;
        self.pause(at, false)
    }

    fn pause(&mut self, at: usize, paused: bool) -> Option<ToMeta> {
        if self.pending.is_some() {
            return None;
        }
        self.pending = Some((at, paused.then(Map::new)));
        let (vhost, name) = ("/".to_owned(), PAUSED[at - POLICIES.len()].to_owned());
        Some(told(AdminCommand::PauseQueue { vhost, name, paused }))
    }

    /// The answer came. What was refused is known to others all the same, and may be stored later.
    pub(crate) fn answered(&mut self, is_done: bool, topology: &Topology) {
        let Some((at, asked)) = self.pending.take() else { return };
        if is_done {
            self.is[at] = asked;
            self.may_be[at].clear();
        } else {
            let was = std::mem::replace(&mut self.is[at], found(at, topology));
            self.may_be[at].push(was);
        }
    }

    /// After a restart every policy is what its last answer said, or what was asked for since.
    pub(crate) fn restarted(&mut self, topology: &Topology) -> Check {
        if let Some((at, asked)) = self.pending.take() {
            self.may_be[at].push(asked);
        }
        for (at, (is, may_be)) in self.is.iter_mut().zip(&mut self.may_be).enumerate() {
            let found = found(at, topology);
            let may_be = std::mem::take(may_be);
            if found != *is && !may_be.contains(&found) {
                return Err(format!("change {at}: {found:?}, expected {is:?} or {may_be:?}"));
            }
            *is = found;
        }
        Ok(())
    }
}

fn told(command: AdminCommand) -> ToMeta {
    let reply = ReplyTo { connection: OPERATOR, channel: 0 };
    ToMeta::Admin { by: Box::default(), reply, command: Box::new(command) }
}

fn found(at: usize, topology: &Topology) -> Definition {
    let vhost = topology.vhost("/")?;
    let Some((name, _)) = POLICIES.get(at) else {
        let queue = topology.queue(vhost.id, PAUSED[at - POLICIES.len()])?;
        return queue.paused.then(Map::new);
    };
    let policy = vhost.policies().find(|policy| *policy.name == **name)?;
    Some(policy.definition.clone())
}
