//! Changes from the command line and the HTTP API.

use leveret_amqp::reply::ReplyCode;
use leveret_log::Log;
use leveret_topology::{
    AdminError, By, GroupId, QueueId, QueueKind, RemovedExchange, Topology, VhostId,
    must_be_component,
};

use super::long::{Long, What};
use super::{Meta, Rests, delete, forget, refuse};
use crate::message::{AdminCommand, Outbox, Reply, ReplyTo, ToShard};

impl<L: Log> Meta<L> {
    /// A change from an operator.
    pub(super) fn admin(
        &mut self,
        by: Box<By>,
        reply: ReplyTo,
        command: AdminCommand,
        topology: &mut Topology,
        out: &mut Outbox,
    ) -> Rests {
        let command = match start(command, topology) {
            Ok(Started::Long(what)) => {
                self.begin(Long::new(by, Some(reply), what), topology, out);
                return Rests::OnTheLog;
            }
            Ok(Started::Vhost(vhost)) => {
                self.vhost_goes(vhost, by, Some(reply), topology, out);
                return Rests::OnTheLog;
            }
            Ok(Started::No(command)) => command,
            Err((code, text)) => {
                refuse(out, reply, code, text);
                return Rests::OnItself;
            }
        };
        match apply(command, topology) {
            Ok(changes) => {
                for queue in changes.options_changed {
                    let letter = ToShard::OptionsChanged { queue };
                    out.shard(topology.home(queue), letter);
                }
                for (queue, home) in changes.to_delete {
                    delete(queue, home, out);
                }
                for exchange in changes.forgotten {
                    forget(&exchange, out);
                }
                out.reply(reply, Reply::Done);
            }
            Err((code, text)) => {
                refuse(out, reply, code, text);
                return Rests::OnItself;
            }
        }
        // It is as asked, perhaps because another one has just made it so.
        Rests::OnTheLog
    }
}

/// The component whose parameter holds a vhost's limits.
const VHOST_LIMITS: &str = "vhost-limits";

/// What an admin command means for the shards.
#[derive(Debug, Default)]
struct Changes {
    options_changed: Vec<QueueId>,
    /// With their homes: their names are gone.
    to_delete: Vec<(QueueId, GroupId)>,
    forgotten: Vec<RemovedExchange>,
}

/// What became of a command that may be long.
enum Started {
    /// It begins.
    Long(What),
    /// The vhost is deleted, and what is in it is to go.
    Vhost(VhostId),
    /// It is none of those.
    No(AdminCommand),
}

/// Who did it is in the audit log; a queue of it has no line of its own.
fn say_vhost_deleted(name: &str, queues: usize) {
    tracing::info!("vhost '{name}' deleted, and {queues} queues with it");
}

/// Begins what may take longer than one turn.
fn start(command: AdminCommand, topology: &mut Topology) -> Result<Started, (ReplyCode, String)> {
    let command = command.prepared().map_err(bad)?;
    let is_operators = matches!(
        command,
        AdminCommand::SetOperatorPolicy { .. } | AdminCommand::ClearOperatorPolicy { .. }
    );
    let change = match command {
        AdminCommand::ImportDefinitions { definitions } => {
            return Ok(Started::Long(What::Import(definitions)));
        }
        AdminCommand::DeleteVhost { name } if topology.is_large_vhost(&name) => {
            let vhost = topology.start_delete_vhost(&name).map_err(bad)?;
            say_vhost_deleted(&name, topology.queues_of_going(vhost).len());
            return Ok(Started::Vhost(vhost));
        }
        AdminCommand::ClearPolicy { vhost, name }
        | AdminCommand::ClearOperatorPolicy { vhost, name } => {
            topology.start_clear_policy(&vhost, &name, is_operators).map_err(bad)?
        }
        AdminCommand::SetPolicy { vhost, policy }
        | AdminCommand::SetOperatorPolicy { vhost, policy } => {
            let told = policy.without_effect();
            let change = topology.start_set_policy(&vhost, *policy, is_operators).map_err(bad)?;
            if let Some(text) = told {
                tracing::warn!(vhost, "{text}");
            }
            change
        }
        other => return Ok(Started::No(other)),
    };
    let total = change.left();
    Ok(Started::Long(What::Policy(Box::new(change), total)))
}

/// Applies an admin command to the topology.
fn apply(command: AdminCommand, topology: &mut Topology) -> Result<Changes, (ReplyCode, String)> {
    let mut changes = Changes::default();
    match command {
        // Those that begin with `start`.
        AdminCommand::ImportDefinitions { .. }
        | AdminCommand::SetPolicy { .. }
        | AdminCommand::ClearPolicy { .. }
        | AdminCommand::SetOperatorPolicy { .. }
        | AdminCommand::ClearOperatorPolicy { .. } => {}
        AdminCommand::AddUser { name, password, tags } => {
            let tags: Vec<&str> = tags.iter().map(String::as_str).collect();
            topology.add_user(&name, password, &tags).map_err(bad)?;
        }
        AdminCommand::DeleteUser { name } => topology.delete_user(&name).map_err(bad)?,
        AdminCommand::ChangePassword { name, password } => {
            topology.change_password(&name, password).map_err(bad)?;
        }
        AdminCommand::SetUserTags { name, tags } => {
            let tags: Vec<&str> = tags.iter().map(String::as_str).collect();
            topology.set_tags(&name, &tags).map_err(bad)?;
        }
        AdminCommand::SetPermissions { user, vhost, configure, write, read } => {
            topology.set_permissions(&user, &vhost, &configure, &write, &read).map_err(bad)?;
        }
        AdminCommand::ClearPermissions { user, vhost } => {
            topology.clear_permissions(&user, &vhost).map_err(bad)?;
        }
        AdminCommand::SetTopicPermissions { user, vhost, exchange, write, read } => {
            topology.set_topic_permissions(&user, &vhost, &exchange, &write, &read).map_err(bad)?;
        }
        AdminCommand::PutUser { name, password, tags } => {
            let given = tags.as_deref().unwrap_or_default();
            let given: Vec<&str> = given.iter().map(String::as_str).collect();
            match (topology.user(&name).is_some(), password) {
                (true, password) => {
                    if tags.is_some() {
                        topology.set_tags(&name, &given).map_err(bad)?;
                    }
                    if let Some(password) = password {
                        topology.change_password(&name, password).map_err(bad)?;
                    }
                }
                (false, Some(password)) => {
                    topology.add_user(&name, password, &given).map_err(bad)?;
                }
                (false, None) => return Err(bad("a new user needs a password or password_hash")),
            }
        }
        AdminCommand::ClearTopicPermissions { user, vhost, exchange } => {
            topology.clear_topic_permissions(&user, &vhost, exchange.as_deref()).map_err(bad)?;
        }
        AdminCommand::PutVhost { name, description, tags, default_queue_type, tracing } => {
            let kind = match default_queue_type.as_deref() {
                None | Some("" | "undefined") => None,
                Some(kind) => Some(
                    QueueKind::parse(kind)
                        .ok_or_else(|| bad(AdminError::QueueType(kind.to_owned())))?,
                ),
            };
            topology.add_vhost(&name).map_err(bad)?;
            topology.describe_vhost(&name, description, tags, kind).map_err(bad)?;
            if let Some(is_on) = tracing {
                topology.set_tracing(&name, is_on).map_err(bad)?;
            }
        }
        AdminCommand::SetTracing { vhost, is_on } => {
            let vhost = topology.vhost_by_id(vhost).map(|vhost| vhost.name.clone());
            let name = vhost.ok_or_else(|| bad("the vhost does not exist"))?;
            topology.set_tracing(&name, is_on).map_err(bad)?;
        }
        AdminCommand::AddVhost { name } => topology.add_vhost(&name).map(drop).map_err(bad)?,
        AdminCommand::ProtectVhost { name, is_protected } => {
            topology.protect_vhost(&name, is_protected).map_err(bad)?;
        }
        AdminCommand::DeleteVhost { name } => {
            let deleted = topology.delete_vhost(&name).map_err(bad)?;
            say_vhost_deleted(&name, deleted.queues.len());
            changes.to_delete = deleted.queues;
            changes.forgotten = deleted.exchanges;
        }
        AdminCommand::SetVhostLimits { vhost, limits } => {
            let mut all =
                topology.vhost(&vhost).map(|vhost| vhost.limits().clone()).unwrap_or_default();
            all.extend(limits);
            let limits = serde_json::json!(all);
            topology.set_parameter(&vhost, VHOST_LIMITS, "limits", limits).map_err(bad)?;
        }
        AdminCommand::ClearVhostLimits { vhost, limit } => {
            let limits = topology.vhost(&vhost).map(|vhost| vhost.limits().clone());
            let mut left = limits.unwrap_or_default();
            left.retain(|name, _| limit.as_ref().is_some_and(|limit| limit != name));
            let left = serde_json::json!(left);
            topology.set_parameter(&vhost, VHOST_LIMITS, "limits", left).map_err(bad)?;
        }
        AdminCommand::SetUserLimits { name, limits } => {
            let mut all = topology.user(&name).map(|user| user.limits.clone()).unwrap_or_default();
            all.extend(limits);
            topology.set_user_limits(&name, all).map_err(bad)?;
        }
        AdminCommand::ClearUserLimits { name, limit } => {
            let mut left = topology.user(&name).map(|user| user.limits.clone()).unwrap_or_default();
            left.retain(|name, _| limit.as_ref().is_some_and(|limit| limit != name));
            topology.set_user_limits(&name, left).map_err(bad)?;
        }
        AdminCommand::PauseQueue { vhost, name, paused } => {
            let changed = topology.pause_queue(&vhost, &name, paused).map_err(bad)?;
            changes.options_changed.extend(changed);
        }
        AdminCommand::SetQueueArguments { vhost, name, change } => {
            let queue = topology.set_queue_arguments(&vhost, &name, change).map_err(bad)?;
            changes.options_changed.push(queue);
        }
        AdminCommand::SetParameter { vhost, component, name, value } => {
            must_be_component(&component).map_err(bad)?;
            topology.set_parameter(&vhost, &component, &name, value).map_err(bad)?;
        }
        AdminCommand::ClearParameter { vhost, component, name } => {
            topology.clear_parameter(&vhost, &component, &name).map_err(bad)?;
        }
        AdminCommand::SetGlobalParameter { name, value } => {
            topology.set_global_parameter(&name, value).map_err(bad)?;
        }
        AdminCommand::ClearGlobalParameter { name } => {
            if !topology.clear_global_parameter(&name) {
                return Err(bad(format!("there is no global parameter '{name}'")));
            }
        }
    }
    Ok(changes)
}

fn bad(error: impl std::fmt::Display) -> (ReplyCode, String) {
    (ReplyCode::PreconditionFailed, error.to_string())
}
