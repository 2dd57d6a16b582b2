//! The way of one message through the broker, step by step: of traced vhosts.

use leveret_broker::message::{ConnectionId, What};
use leveret_queue::Offset;
use leveret_server::node::Recipient;
use leveret_server::paths::TimedStep;
use leveret_topology::{QueueId, Topology};
use serde_json::{Value, json};

use super::answer::{Answer, Fault};
use super::call::Call;

/// `GET /api/leveret/path/{vhost}`: the last message that was confirmed, or the last one, with a confirm to come.
pub(super) async fn get(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    let vhost = call.param("vhost");
    let (id, is_traced) = {
        let topology = call.node().topology();
        let found = topology.vhost(vhost).ok_or_else(Fault::not_found)?;
        (found.id, found.is_traced)
    };
    let steps = call.node().paths.last(id);
    let since_us = steps.first().map_or(0, |first| first.at_us);
    let steps: Vec<Value> = steps.iter().map(|step| told(&call, step, since_us)).collect();
    Ok(Answer::Json(json!({"vhost": vhost, "tracing": is_traced, "steps": steps})))
}

fn told(call: &Call, TimedStep { at_us, step }: &TimedStep, since_us: u64) -> Value {
    let name = |id: ConnectionId| match call.node().recipient(id) {
        Some(Recipient::Connection(connection)) => json!(connection.name()),
        _ => json!(null), // it is over
    };
    let queues = |ids: &[QueueId]| {
        let topology = call.node().topology();
        let name = |&id: &QueueId| queue(&topology, id);
        ids.iter().map(name).collect::<Value>()
    };
    let mut told = match &step.what {
        What::Published { number, exchange, key, queues: to, .. } => json!({
            "step": "published", "number": number, "exchange": exchange, "routing_key": key,
            "queues": queues(to),
        }),
        What::Stored { number, queues: of, offset } => json!({
            "step": "stored", "number": number, "queues": queues(of), "record": record(*offset),
        }),
        What::Delivered { tag, queue, offset, redelivered } => json!({
            "step": "delivered", "delivery_tag": tag, "queues": queues(&[*queue]),
            "record": record(*offset), "redelivered": redelivered,
        }),
        What::Settled { tag, multiple, how } => {
            json!({"step": how, "delivery_tag": tag, "multiple": multiple})
        }
        What::Confirmed { number, multiple, ok } => json!({
            "step": if *ok { "confirmed" } else { "nacked" }, "number": number, "multiple": multiple,
        }),
    };
    told["at_us"] = json!(at_us);
    told["after_us"] = json!(at_us.saturating_sub(since_us));
    told["connection"] = name(step.connection);
    told["channel"] = json!(step.channel);
    told
}

fn record(offset: Offset) -> u64 {
    offset.get()
}

fn queue(topology: &Topology, id: QueueId) -> Value {
    topology.queue_by_id(id).map_or(Value::Null, |queue| json!(&*queue.name))
}
