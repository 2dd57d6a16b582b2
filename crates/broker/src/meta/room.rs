//! Room on the disk for changes of names: looked at before anything is changed.
//!
//! What was written to a full disk is neither there nor not there, and names are changed before they are written. So
//! what may find no room is refused as long as nothing is done. Who makes something needs more than who changes it, and
//! that more than who deletes it, which gives room.

use std::fmt::Write as _;

use leveret_amqp::reply::ReplyCode;
use leveret_log::{AppendError, Log};
use leveret_topology::{Destination, Topology, VhostId};

use super::{SaveError, destination};
use crate::message::{AdminCommand, Binding, Reply, ToMeta};

/// Room that has to be there for a deletion to be begun, in bytes: much more than it takes.
pub const DELETION_ROOM: u64 = 64 << 10;

/// Room that has to be there for anything else to be changed, besides what is written: the rest is for deletions.
pub const CHANGE_ROOM: u64 = 256 << 10;

/// What has to be there before a letter is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needed {
    /// Nothing: it is not refused, or writes nothing.
    Nothing,
    ForDeletion,
    /// For a change that writes so many bytes.
    ForChange(u64),
    /// The same for something that is not there yet.
    ForNew(u64),
}

impl Needed {
    /// For a command that is noted, too, whatever it does: it and its note have to be in one batch.
    pub(super) fn with_a_note(self) -> Self {
        if self == Self::Nothing { Self::ForDeletion } else { self }
    }

    pub(super) fn is_in(self, log: &impl Log) -> bool {
        match self {
            Self::Nothing => true,
            Self::ForDeletion => log.last_room() >= DELETION_ROOM,
            Self::ForChange(bytes) => log.last_room() >= CHANGE_ROOM.saturating_add(bytes),
            Self::ForNew(bytes) => !log.is_short() && Self::ForChange(bytes).is_in(log),
        }
    }
}

/// Who asked is told that nothing was changed.
pub(crate) fn no_room() -> Reply {
    let text = SaveError::Append(AppendError::Full).to_string();
    Reply::Refused { code: ReplyCode::ResourceError, text }
}

/// What is found as asked for, and what is not durable, needs nothing.
pub(super) fn needed(letter: &ToMeta, topology: &Topology) -> Needed {
    match letter {
        ToMeta::DeclareQueue { vhost, name, durable, exclusive, .. }
            if *durable && !*exclusive && topology.queue(*vhost, name).is_none() =>
        {
            Needed::ForNew(0)
        }
        ToMeta::DeclareExchange { vhost, name, durable, .. }
            if *durable && topology.exchange(*vhost, name).is_none() =>
        {
            Needed::ForNew(0)
        }
        ToMeta::DeleteExchange { vhost, name, .. } if is_durable(*vhost, name, topology) => {
            Needed::ForDeletion
        }
        ToMeta::Bind(binding) if !is_bound(binding, topology) => Needed::ForNew(0),
        ToMeta::Unbind(binding) if is_bound(binding, topology) => {
            let Binding { vhost, source, .. } = &**binding;
            let is_kept = is_durable(*vhost, source, topology)
                && match destination(binding) {
                    Destination::Exchange(name) => is_durable(*vhost, name, topology),
                    Destination::Queue(name) => {
                        topology.queue(*vhost, name).is_some_and(|queue| queue.durable)
                    }
                };
            if is_kept { Needed::ForDeletion } else { Needed::Nothing }
        }
        ToMeta::Admin { command, .. } => needed_by(command),
        _ => Needed::Nothing,
    }
}

fn is_durable(vhost: VhostId, exchange: &str, topology: &Topology) -> bool {
    topology.exchange(vhost, exchange).is_some_and(|exchange| exchange.durable)
}

fn is_bound(binding: &Binding, topology: &Topology) -> bool {
    let Binding { vhost, source, key, arguments, .. } = binding;
    topology.is_bound(*vhost, source, destination(binding), key, arguments.clone())
}

fn needed_by(command: &AdminCommand) -> Needed {
    match command {
        // Of its pieces each is looked at.
        AdminCommand::ImportDefinitions { .. } => Needed::ForNew(0),
        AdminCommand::AddUser { .. }
        | AdminCommand::AddVhost { .. }
        | AdminCommand::PutUser { .. }
        | AdminCommand::PutVhost { .. }
        | AdminCommand::SetParameter { .. }
        | AdminCommand::SetGlobalParameter { .. } => Needed::ForNew(shown_len(command)),
        AdminCommand::SetPolicy { policy, .. } | AdminCommand::SetOperatorPolicy { policy, .. } => {
            Needed::ForChange(policy.pattern.text().len() as u64 + shown_len(&policy.definition))
        }
        AdminCommand::ChangePassword { .. }
        | AdminCommand::SetUserTags { .. }
        | AdminCommand::SetPermissions { .. }
        | AdminCommand::SetTopicPermissions { .. }
        | AdminCommand::SetTracing { .. }
        | AdminCommand::ProtectVhost { .. }
        | AdminCommand::SetVhostLimits { .. }
        | AdminCommand::SetUserLimits { .. }
        | AdminCommand::PauseQueue { .. }
        | AdminCommand::SetQueueArguments { .. } => Needed::ForChange(shown_len(command)),
        AdminCommand::DeleteUser { .. }
        | AdminCommand::DeleteVhost { .. }
        | AdminCommand::ClearPermissions { .. }
        | AdminCommand::ClearTopicPermissions { .. }
        | AdminCommand::ClearVhostLimits { .. }
        | AdminCommand::ClearUserLimits { .. }
        | AdminCommand::ClearPolicy { .. }
        | AdminCommand::ClearOperatorPolicy { .. }
        | AdminCommand::ClearParameter { .. }
        | AdminCommand::ClearGlobalParameter { .. } => Needed::ForDeletion,
    }
}

/// About how long something is when it is written, rather more.
fn shown_len(it: &impl std::fmt::Debug) -> u64 {
    struct Count(u64);
    impl std::fmt::Write for Count {
        fn write_str(&mut self, text: &str) -> std::fmt::Result {
            self.0 += text.len() as u64;
            Ok(())
        }
    }
    let mut count = Count(0);
    // Counting does not fail.
    let _ = write!(count, "{it:?}");
    count.0
}
