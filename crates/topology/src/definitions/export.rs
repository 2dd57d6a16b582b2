//! Writing definitions.

use serde_json::{Value as Json, json};

use crate::binding::Target;
use crate::topology::Topology;
use crate::value::table_to_json;

/// The version of RabbitMQ that the format is of: tools look at it.
const RABBITMQ_VERSION: &str = "4.3.0";

impl Topology {
    /// All definitions. Left out, as in RabbitMQ: predeclared and internal exchanges, exclusive queues and
    /// their bindings.
    pub fn export_definitions(&self) -> String {
        let document = json!({
            "rabbit_version": RABBITMQ_VERSION,
            "rabbitmq_version": RABBITMQ_VERSION,
            "product_name": "Leveret",
            "product_version": env!("CARGO_PKG_VERSION"),
            "rabbitmq_definition_format": "cluster",
            "original_cluster_name": self.cluster_name(),
            "explanation": "Definitions of cluster",
            "users": self.export_users(),
            "vhosts": self.vhosts().map(export_vhost).collect::<Json>(),
            "permissions": self.export_permissions(),
            "topic_permissions": self.export_topic_permissions(),
            "parameters": self.export_parameters(),
            "global_parameters": self
                .global_parameters()
                .filter(|(name, _)| !name.starts_with("internal"))
                .map(|(name, value)| json!({ "name": name, "value": value }))
                .collect::<Json>(),
            "policies": self.export_policies(),
            "queues": self.export_queues(),
            "exchanges": self.export_exchanges(),
            "bindings": self.export_bindings(),
        });
        document.to_string()
    }

    fn cluster_name(&self) -> Json {
        self.global_parameters.get("cluster_name").cloned().unwrap_or_else(|| json!("leveret"))
    }

    fn export_users(&self) -> Json {
        let users = self.users().map(|user| {
            json!({
                "name": user.name,
                "password_hash": user.password.to_base64(),
                "hashing_algorithm": user.password.hashing().name(),
                "tags": user.tags,
                "limits": user.limits,
            })
        });
        users.collect()
    }

    fn export_permissions(&self) -> Json {
        let all = self.users().flat_map(|user| {
            user.permissions().map(move |(vhost, permissions)| {
                json!({
                    "user": user.name,
                    "vhost": self.vhost_name(vhost),
                    "configure": permissions.configure.text(),
                    "write": permissions.write.text(),
                    "read": permissions.read.text(),
                })
            })
        });
        all.collect()
    }

    fn export_topic_permissions(&self) -> Json {
        let all = self.users().flat_map(|user| {
            user.topic_permissions().map(move |(vhost, exchange, topics)| {
                json!({
                    "user": user.name,
                    "vhost": self.vhost_name(vhost),
                    "exchange": exchange,
                    "write": topics.write.text(),
                    "read": topics.read.text(),
                })
            })
        });
        all.collect()
    }

    fn export_parameters(&self) -> Json {
        let mut all = Vec::new();
        for vhost in self.vhosts() {
            let mut push = |component: &str, name: &str, value: Json| {
                all.push(json!({
                    "vhost": &*vhost.name,
                    "component": component,
                    "name": name,
                    "value": value,
                }));
            };
            for policy in vhost.operator_policies() {
                push(
                    "operator_policy",
                    &policy.name,
                    json!({
                        "pattern": policy.pattern.text(),
                        "apply-to": policy.apply_to.name(),
                        "priority": policy.priority,
                        "definition": policy.definition,
                    }),
                );
            }
            for (component, name, value) in vhost.parameters() {
                push(component, name, value.clone());
            }
            if !vhost.limits.is_empty() {
                push("vhost-limits", "limits", json!(vhost.limits));
            }
        }
        Json::Array(all)
    }

    fn export_policies(&self) -> Json {
        let all = self.vhosts().flat_map(|vhost| {
            vhost.policies().map(move |policy| {
                json!({
                    "vhost": &*vhost.name,
                    "name": policy.name,
                    "pattern": policy.pattern.text(),
                    "apply-to": policy.apply_to.name(),
                    "priority": policy.priority,
                    "definition": policy.definition,
                })
            })
        });
        all.collect()
    }

    fn export_queues(&self) -> Json {
        let all = self.vhosts().flat_map(|vhost| {
            let kept = self.queues(vhost.id).into_iter().filter(|q| q.exclusive_owner.is_none());
            kept.map(move |queue| {
                json!({
                    "vhost": &*vhost.name,
                    "name": &*queue.name,
                    "type": queue.kind.name(),
                    "durable": queue.durable,
                    "auto_delete": queue.auto_delete,
                    "arguments": table_to_json(&queue.arguments),
                })
            })
        });
        all.collect()
    }

    fn export_exchanges(&self) -> Json {
        let all = self.vhosts().flat_map(|vhost| {
            let kept = self.exchanges(vhost.id).into_iter();
            let kept = kept.filter(|x| !x.name.is_empty() && !x.name.starts_with("amq."));
            kept.map(move |exchange| {
                json!({
                    "vhost": &*vhost.name,
                    "name": &*exchange.name,
                    "type": exchange.kind.name(),
                    "durable": exchange.durable,
                    "auto_delete": exchange.auto_delete,
                    "internal": exchange.internal,
                    "arguments": table_to_json(&exchange.arguments),
                })
            })
        });
        all.collect()
    }

    fn export_bindings(&self) -> Json {
        let mut all = Vec::new();
        for binding in self.bindings.iter() {
            let Some(source) = self.exchange_by_id(binding.source) else { continue };
            let (kind, name) = match binding.target {
                Target::Queue(id) => match self.queue_by_id(id) {
                    Some(queue) if queue.exclusive_owner.is_none() => ("queue", &queue.name),
                    _ => continue,
                },
                Target::Exchange(id) => match self.exchange_by_id(id) {
                    Some(exchange) => ("exchange", &exchange.name),
                    None => continue,
                },
            };
            all.push(json!({
                "source": &*source.name,
                "vhost": self.vhost_name(source.vhost),
                "destination": &**name,
                "destination_type": kind,
                "routing_key": binding.key,
                "arguments": table_to_json(&binding.arguments),
            }));
        }
        Json::Array(all)
    }
}

fn export_vhost(vhost: &crate::vhost::Vhost) -> Json {
    let mut metadata = json!({ "description": vhost.description, "tags": vhost.tags });
    if let Some(kind) = vhost.default_queue_type {
        metadata["default_queue_type"] = kind.name().into();
    }
    if vhost.is_protected {
        metadata["protected_from_deletion"] = true.into();
    }
    json!({ "name": &*vhost.name, "limits": vhost.limits, "metadata": metadata })
}
