//! The rows of the lists, under the names of rabbitmqctl's columns.
//!
//! A row holds every column we know; the tool shows those that were asked for.

use std::sync::Arc;

use leveret_broker::message::{ConnectionId, QueueFacts};
use leveret_ctl::protocol::Fault;
use leveret_topology::{Target, Topology, VhostId, table_to_json};
use serde_json::{Value, json};

use leveret_server::node::Node;
use leveret_session::TlsFacts;

use super::Ops;
use super::facts;

fn vhost_id(topology: &Topology, name: &str) -> Result<VhostId, Fault> {
    topology.vhost(name).map(|vhost| vhost.id).ok_or_else(|| Fault::no_vhost(name))
}

pub(super) async fn queues(ops: &Ops, vhost: &str) -> Result<Value, Fault> {
    let about = &ops.about;
    let known = facts::queues(&ops.node).await?;
    let sampled = ops.stats.latest();
    let topology = ops.node.topology();
    let vhost = vhost_id(&topology, vhost)?;
    let rows = topology.queues(vhost).into_iter().map(|queue| {
        let mut row = json!({
            "name": &*queue.name,
            "durable": queue.durable,
            "auto_delete": queue.auto_delete,
            "arguments": table_to_json(&queue.arguments),
            "policy": queue.policy(),
            "operator_policy": queue.operator_policy(),
            "effective_policy_definition": queue.effective_policy(),
            "pid": format!("<queue.{}>", queue.id.get()),
            "owner_pid": queue.exclusive_owner.map(|id| ConnectionId::new(id).pid()),
            "exclusive": queue.exclusive_owner.is_some(),
            "state": facts::queue_state(known.get(&queue.id)),
            "type": queue.kind.name(),
            "leader": about.node_name,
            "members": [about.node_name],
            "online": [about.node_name],
            "slave_pids": [],
            "synchronised_slave_pids": [],
        });
        let counts = counts(known.get(&queue.id));
        if let (Value::Object(row), Value::Object(counts)) = (&mut row, counts) {
            row.extend(counts);
        }
        let capacity = sampled.queues.get(&queue.id).map_or(0.0, |entry| entry.consumer_capacity);
        row["consumer_utilisation"] = json!(capacity);
        row["consumer_capacity"] = json!(capacity);
        row
    });
    Ok(rows.collect())
}

fn counts(facts: Option<&QueueFacts>) -> Value {
    let Some(facts) = facts else {
        return json!({"messages_ready": 0, "messages_unacknowledged": 0, "messages": 0, "consumers": 0});
    };
    let single = facts.consumers.iter().any(|consumer| !consumer.active);
    let active = facts.consumers.iter().find(|it| it.exclusive || (single && it.active));
    let counts = &facts.numbers.counts;
    json!({
        "messages_ready": counts.ready,
        "messages_unacknowledged": counts.unacked,
        "messages": counts.ready + counts.unacked,
        "messages_ready_ram": counts.ready,
        "messages_unacknowledged_ram": counts.unacked,
        "messages_ram": counts.ready + counts.unacked,
        "messages_persistent": counts.persistent,
        "message_bytes": counts.ready_bytes + counts.unacked_bytes,
        "message_bytes_ready": counts.ready_bytes,
        "message_bytes_unacknowledged": counts.unacked_bytes,
        "message_bytes_ram": counts.ready_bytes + counts.unacked_bytes,
        "message_bytes_persistent": counts.persistent_bytes,
        "memory": facts.numbers.memory_bytes,
        "head_message_timestamp": facts.numbers.head.and_then(|head| head.timestamp_s),
        "consumers": facts.consumers.len(),
        "exclusive_consumer_tag": active.map(|consumer| &consumer.tag),
        "exclusive_consumer_pid":
            active.map(|consumer| consumer.connection.channel_pid(consumer.channel)),
    })
}

pub(super) async fn consumers(node: &Arc<Node>, vhost: &str) -> Result<Value, Fault> {
    let known = facts::queues(node).await?;
    let topology = node.topology();
    let vhost = vhost_id(&topology, vhost)?;
    let mut rows = Vec::new();
    for queue in topology.queues(vhost) {
        for consumer in known.get(&queue.id).into_iter().flat_map(|it| &it.consumers) {
            rows.push(json!({
                "queue_name": &*queue.name,
                "channel_pid": consumer.connection.channel_pid(consumer.channel),
                "consumer_tag": consumer.tag,
                "ack_required": consumer.ack_required,
                "prefetch_count": consumer.prefetch,
                "active": consumer.active,
                "activity_status": if consumer.active { "up" } else { "waiting" },
                "arguments": table_to_json(&consumer.arguments),
            }));
        }
    }
    Ok(Value::Array(rows))
}

pub(super) fn exchanges(node: &Node, vhost: &str) -> Result<Value, Fault> {
    let topology = node.topology();
    let vhost = vhost_id(&topology, vhost)?;
    let rows = topology.exchanges(vhost).into_iter().map(|exchange| {
        json!({
            "name": &*exchange.name,
            "type": exchange.kind.name(),
            "durable": exchange.durable,
            "auto_delete": exchange.auto_delete,
            "internal": exchange.internal,
            "arguments": table_to_json(&exchange.arguments),
            "policy": exchange.policy(),
        })
    });
    Ok(rows.collect())
}

pub(super) fn bindings(node: &Node, vhost: &str) -> Result<Value, Fault> {
    let topology = node.topology();
    let vhost = vhost_id(&topology, vhost)?;
    // Every queue is bound to the default exchange under its name.
    let implied = topology.queues(vhost).into_iter().map(|queue| {
        json!({
            "source_name": "", "source_kind": "exchange",
            "destination_name": &*queue.name, "destination_kind": "queue",
            "routing_key": &*queue.name, "arguments": {},
        })
    });
    let made = topology.bindings(vhost).map(|binding| {
        let source = topology.exchange_by_id(binding.source);
        let (name, kind) = match binding.target {
            Target::Queue(id) => (topology.queue_by_id(id).map(|queue| &queue.name), "queue"),
            Target::Exchange(id) => {
                (topology.exchange_by_id(id).map(|exchange| &exchange.name), "exchange")
            }
        };
        json!({
            "source_name": source.map(|exchange| &*exchange.name), "source_kind": "exchange",
            "destination_name": name.map(|name| &**name), "destination_kind": kind,
            "routing_key": binding.key, "arguments": table_to_json(&binding.arguments),
        })
    });
    Ok(implied.chain(made).collect())
}

pub(super) fn connections(node: &Node) -> Value {
    let rows = node.connections().into_iter().map(|connection| {
        let facts = connection.facts();
        let (peer, local) = (connection.peer(), connection.local());
        let mut row = json!({
            "pid": connection.id().pid(),
            "name": connection.name(),
            "port": local.port(),
            "host": local.ip().to_string(),
            "peer_port": peer.port(),
            "peer_host": peer.ip().to_string(),
            "state": facts.state,
            "channels": facts.channels.len(),
            "protocol": "{0,9,1}",
            "auth_mechanism": facts.mechanism,
            "user": facts.user,
            "vhost": facts.vhost,
            "frame_max": facts.frame_max,
            "channel_max": facts.channel_max,
            "client_properties": table_to_json(&facts.client_properties),
            "connected_at": facts.connected.ms(),
        });
        if let (Value::Object(row), Value::Object(tls)) = (&mut row, tls(facts.tls.as_deref())) {
            row.extend(tls);
        }
        row["timeout"] = json!(facts.heartbeat_s);
        if let Some(sampled) = connection.sample() {
            let io = sampled.io;
            row["recv_oct"] = json!(io.recv_oct);
            row["recv_cnt"] = json!(io.recv_cnt);
            row["send_oct"] = json!(io.send_oct);
            row["send_cnt"] = json!(io.send_cnt);
            row["send_pend"] = json!(io.send_pend);
        }
        row
    });
    rows.collect()
}

/// How a connection is encrypted. Without a certificate its columns are empty, as RabbitMQ's are.
fn tls(facts: Option<&TlsFacts>) -> Value {
    let certificate = facts.and_then(|facts| facts.certificate.as_ref());
    json!({
        "ssl": facts.is_some(),
        "ssl_protocol": facts.map_or("", |facts| facts.protocol),
        "ssl_key_exchange": facts.map_or("", |facts| facts.key_exchange),
        "ssl_cipher": facts.map_or("", |facts| facts.cipher),
        "ssl_hash": facts.map_or("", |facts| facts.hash),
        "peer_cert_subject": certificate.map_or("", |it| &it.subject),
        "peer_cert_issuer": certificate.map_or("", |it| &it.issuer),
        "peer_cert_serial_number": certificate.map_or("", |it| &it.serial_number),
        "peer_cert_validity": certificate.map_or("", |it| &it.validity),
    })
}

pub(super) fn channels(node: &Node) -> Value {
    let mut rows = Vec::new();
    for connection in node.connections() {
        let facts = connection.facts();
        for channel in &facts.channels {
            rows.push(json!({
                "pid": connection.id().channel_pid(channel.number),
                "connection": connection.id().pid(),
                "name": format!("{} ({})", connection.name(), channel.number),
                "number": channel.number,
                "user": facts.user,
                "vhost": facts.vhost,
                "transactional": channel.transactional,
                "confirm": channel.confirms,
                "consumer_count": channel.consumers,
                "messages_unacknowledged": channel.unacked,
                "messages_uncommitted": channel.uncommitted,
                "acks_uncommitted": channel.acks_uncommitted,
                "messages_unconfirmed": channel.unconfirmed,
                "prefetch_count": channel.prefetch,
                "global_prefetch_count": channel.global_prefetch,
            }));
        }
    }
    Value::Array(rows)
}

pub(super) fn vhosts(node: &Node) -> Value {
    let topology = node.topology();
    let rows = topology.vhosts().map(|vhost| {
        json!({
            "name": &*vhost.name,
            "description": vhost.description,
            "tags": vhost.tags,
            "default_queue_type": vhost.default_queue_type.map(|kind| kind.name()),
            "protected_from_deletion": false,
            "tracing": vhost.is_traced,
            "cluster_state": {},
            "metadata": {"description": vhost.description, "tags": vhost.tags},
        })
    });
    rows.collect()
}

pub(super) fn users(node: &Node) -> Value {
    let topology = node.topology();
    topology.users().map(|user| json!({"user": user.name, "tags": user.tags})).collect()
}

pub(super) fn permissions(node: &Node, vhost: &str) -> Result<Value, Fault> {
    let topology = node.topology();
    let vhost = vhost_id(&topology, vhost)?;
    let mut rows = Vec::new();
    for user in topology.users() {
        for (_, given) in user.permissions().filter(|(id, _)| *id == vhost) {
            rows.push(json!({
                "user": user.name,
                "configure": given.configure.text(),
                "write": given.write.text(),
                "read": given.read.text(),
            }));
        }
    }
    Ok(Value::Array(rows))
}

pub(super) fn user_permissions(node: &Node, user: &str) -> Result<Value, Fault> {
    let topology = node.topology();
    let found = topology.user(user).ok_or_else(|| Fault::no_user(user))?;
    let rows = found.permissions().map(|(id, given)| {
        json!({
            "vhost": topology.vhost_by_id(id).map(|vhost| &*vhost.name),
            "configure": given.configure.text(),
            "write": given.write.text(),
            "read": given.read.text(),
        })
    });
    Ok(rows.collect())
}

pub(super) fn topic_permissions(node: &Node, vhost: &str) -> Result<Value, Fault> {
    let topology = node.topology();
    let vhost = vhost_id(&topology, vhost)?;
    let mut rows = Vec::new();
    for user in topology.users() {
        for (_, exchange, given) in user.topic_permissions().filter(|(id, ..)| *id == vhost) {
            rows.push(json!({
                "user": user.name,
                "exchange": exchange,
                "write": given.write.text(),
                "read": given.read.text(),
            }));
        }
    }
    Ok(Value::Array(rows))
}

pub(super) fn policies(node: &Node, name: &str) -> Result<Value, Fault> {
    let topology = node.topology();
    let vhost = topology.vhost(name).ok_or_else(|| Fault::no_vhost(name))?;
    let rows = vhost.policies().map(|policy| {
        json!({
            "vhost": name,
            "name": policy.name,
            "pattern": policy.pattern.text(),
            "apply-to": policy.apply_to.name(),
            "definition": policy.definition,
            "priority": policy.priority,
        })
    });
    Ok(rows.collect())
}
