//! Writing definitions.

use serde_json::{Map, Value as Json, json};

use crate::COMPATIBLE_VERSION;
use crate::binding::{Binding, Target};
use crate::id::{ExchangeId, QueueId};
use crate::queue::Queue;
use crate::topology::Topology;
use crate::value::table_to_json;

impl Topology {
    /// All definitions. Left out: predeclared exchanges, exclusive queues, those that the broker gave a name, and bindings of both;
    /// an import passes over such queues, and ends at their bindings.
    pub fn export_definitions(&self) -> String {
        let mut all = self.export_settings();
        let queues = self.vhosts().flat_map(|vhost| self.queues(vhost.id));
        let queues = queues.filter_map(|queue| self.export_queue(queue.id));
        all.insert("queues".to_owned(), queues.collect());
        let exchanges = self.vhosts().flat_map(|vhost| self.exchanges(vhost.id));
        let exchanges = exchanges.filter_map(|exchange| self.export_exchange(exchange.id));
        all.insert("exchanges".to_owned(), exchanges.collect());
        let bindings = self.bindings.iter().filter_map(|binding| self.export_binding(binding));
        all.insert("bindings".to_owned(), bindings.collect());
        Json::Object(all).to_string()
    }

    /// The definitions without queues, exchanges and bindings, of which there may be very many.
    pub fn export_settings(&self) -> Map<String, Json> {
        let globals = self.global_parameters().filter(|(name, _)| !name.starts_with("internal"));
        let entries: [(&str, Json); 13] = [
            ("rabbit_version", COMPATIBLE_VERSION.into()),
            ("rabbitmq_version", COMPATIBLE_VERSION.into()),
            ("product_name", "Leveret".into()),
            ("product_version", env!("CARGO_PKG_VERSION").into()),
            ("rabbitmq_definition_format", "cluster".into()),
            ("original_cluster_name", self.cluster_name()),
            ("explanation", "Definitions of cluster".into()),
            ("users", self.export_users()),
            ("vhosts", self.vhosts().map(export_vhost).collect()),
            ("permissions", self.export_permissions()),
            ("topic_permissions", self.export_topic_permissions()),
            ("parameters", self.export_parameters()),
            ("policies", self.export_policies()),
        ];
        let mut all: Map<_, _> =
            entries.into_iter().map(|(key, it)| (key.to_owned(), it)).collect();
        let globals = globals.map(|(name, value)| json!({ "name": name, "value": value }));
        all.insert("global_parameters".to_owned(), globals.collect());
        all
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

    /// One queue; none if it is gone, exclusive, or named by the broker.
    pub fn export_queue(&self, id: QueueId) -> Option<Json> {
        let queue = self.queue_by_id(id).filter(|queue| can_be_imported(queue))?;
        Some(json!({
            "vhost": self.vhost_name(queue.vhost),
            "name": &*queue.name,
            "type": queue.kind.name(),
            "durable": queue.durable,
            "auto_delete": queue.auto_delete,
            "arguments": table_to_json(&queue.arguments),
        }))
    }

    /// One exchange; none if it is gone or made by the broker.
    pub fn export_exchange(&self, id: ExchangeId) -> Option<Json> {
        let exchange = self.exchange_by_id(id)?;
        if exchange.name.is_empty() || exchange.name.starts_with("amq.") {
            return None;
        }
        Some(json!({
            "vhost": self.vhost_name(exchange.vhost),
            "name": &*exchange.name,
            "type": exchange.kind.name(),
            "durable": exchange.durable,
            "auto_delete": exchange.auto_delete,
            "internal": exchange.internal,
            "arguments": table_to_json(&exchange.arguments),
        }))
    }

    /// One binding; none if an end of it is gone, or a queue that is not exported.
    pub fn export_binding(&self, binding: &Binding) -> Option<Json> {
        let source = self.exchange_by_id(binding.source)?;
        let (kind, name) = match binding.target {
            Target::Queue(id) => {
                let queue = self.queue_by_id(id).filter(|queue| can_be_imported(queue))?;
                ("queue", &queue.name)
            }
            Target::Exchange(id) => ("exchange", &self.exchange_by_id(id)?.name),
        };
        Some(json!({
            "source": &*source.name,
            "vhost": self.vhost_name(source.vhost),
            "destination": &**name,
            "destination_type": kind,
            "routing_key": binding.key,
            "arguments": table_to_json(&binding.arguments),
        }))
    }
}

fn can_be_imported(queue: &Queue) -> bool {
    queue.exclusive_owner.is_none() && !queue.name.starts_with("amq.")
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
