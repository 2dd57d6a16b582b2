//! What operators do to queues and AMQP has no word for: pause one, let it go on, change its arguments.

use leveret_broker::message::{AdminCommand, ConnectionId};
use leveret_topology::{
    ArgumentsChange, Permission, QueueAccessError, QueueId, ResourceKind, permissions_needed,
};
use serde_json::{Map, Value};

use super::answer::{Answer, Fault};
use super::call::{Call, table};
use crate::ops::ask;

/// The queue that the path names and its vhost, for a user who has the permission. Another connection's
/// exclusive queue is refused, as AMQP refuses it.
pub(super) async fn queue(call: &Call, permission: Permission) -> Result<(String, QueueId), Fault> {
    let vhost = call.vhost()?;
    let name = call.param("queue");
    let queue = {
        let topology = call.node().topology();
        let id = topology.vhost(&vhost).ok_or_else(Fault::not_found)?.id;
        let found = topology.existing_queue(id, name, ConnectionId::NOBODY);
        let queue = found.map_err(|error| match error {
            QueueAccessError::NotFound(_) => Fault::not_found(),
            QueueAccessError::Locked(locked) => Fault::bad(locked.to_string()),
        })?;
        queue.id
    };
    call.login.must_have(call.node(), &vhost, permission, ResourceKind::Queue, name).await?;
    Ok((vhost, queue))
}

/// `PUT /api/queues/{vhost}/{queue}/pause`.
pub(super) async fn pause(call: Call) -> Result<Answer, Fault> {
    set_paused(call, true).await
}

/// `PUT /api/queues/{vhost}/{queue}/resume`.
pub(super) async fn resume(call: Call) -> Result<Answer, Fault> {
    set_paused(call, false).await
}

async fn set_paused(call: Call, paused: bool) -> Result<Answer, Fault> {
    let (vhost, _) = queue(&call, Permission::Configure).await?;
    let name = call.param("queue").to_owned();
    ask::admin(call.node(), call.by(), AdminCommand::PauseQueue { vhost, name, paused }).await?;
    Ok(Answer::Done)
}

/// `PUT /api/queues/{vhost}/{queue}/arguments`: these and no others.
pub(super) async fn put_arguments(call: Call) -> Result<Answer, Fault> {
    set_arguments(call, false).await
}

/// `PATCH /api/queues/{vhost}/{queue}/arguments`: those that are named; null removes one.
pub(super) async fn patch_arguments(call: Call) -> Result<Answer, Fault> {
    set_arguments(call, true).await
}

async fn set_arguments(call: Call, keeps: bool) -> Result<Answer, Fault> {
    let (vhost, queue) = queue(&call, Permission::Configure).await?;
    let name = call.param("queue").to_owned();
    let mut change = arguments_change(call.object()?, keeps)?;
    if keeps {
        keep_dead_letter_exchange(&call, queue, &mut change);
    }
    // A declaration with these arguments would ask for the same.
    let needed = permissions_needed(ResourceKind::Queue, &name, &change.set);
    for (permission, kind, name) in needed.into_iter().flatten() {
        call.login.must_have(call.node(), &vhost, permission, kind, name).await?;
    }
    ask::admin(call.node(), call.by(), AdminCommand::SetQueueArguments { vhost, name, change })
        .await?;
    Ok(Answer::Done)
}

/// A change of the key with which dead letters leave is one of where they go: it names their exchange, too.
fn keep_dead_letter_exchange(call: &Call, queue: QueueId, change: &mut ArgumentsChange) {
    const EXCHANGE: &str = "x-dead-letter-exchange";
    const KEY: &str = "x-dead-letter-routing-key";
    let changes_key = change.set.get(KEY).is_some() || change.remove.iter().any(|it| it == KEY);
    let names_exchange =
        change.set.get(EXCHANGE).is_some() || change.remove.iter().any(|it| it == EXCHANGE);
    if !changes_key || names_exchange {
        return;
    }
    let topology = call.node().topology();
    let kept = topology.queue_by_id(queue).and_then(|queue| queue.arguments.get(EXCHANGE).cloned());
    if let Some(exchange) = kept {
        change.set.set(EXCHANGE, exchange);
    }
}

/// The change that a body of names and values asks for; null removes one.
fn arguments_change(body: Map<String, Value>, keeps: bool) -> Result<ArgumentsChange, Fault> {
    let (gone, set): (Map<_, _>, Map<_, _>) = body.into_iter().partition(|(_, it)| it.is_null());
    let remove = gone.into_iter().map(|(name, _)| name).collect();
    Ok(ArgumentsChange { keeps, set: table("arguments", &set)?, remove })
}
