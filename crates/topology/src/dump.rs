//! Everything that survives a restart, or everything, as text, for tests and the simulator: two topologies with the same
//! text are the same to everybody who uses them.
//!
//! Written from the things themselves, not from their stored form: what that form forgets shows here.

use std::fmt::Write as _;

use leveret_amqp::table::Table;

use crate::binding::{Binding, Target};
use crate::exchange::{Exchange, ExchangeKind};
use crate::queue::Queue;
use crate::topology::Topology;
use crate::user::User;
use crate::vhost::Vhost;

impl Topology {
    /// Every durable thing, a line each, sorted. Ids are told as they are.
    pub fn describe_durable(&self) -> String {
        let mut lines = self.describe_settings();
        let exchanges = self.exchanges.values().filter(|exchange| exchange.durable);
        lines.extend(exchanges.map(|exchange| describe_exchange(exchange)));
        let queues = self.queues.values().filter(|queue| queue.durable);
        lines.extend(queues.map(|queue| describe_queue(queue)));
        let bindings = self.bindings.entries().filter(|(_, entry)| entry.durable());
        lines.extend(bindings.map(|(_, entry)| describe_binding(&entry.binding)));
        lines.sort_unstable();
        lines.join("\n")
    }

    /// Everything, a line each, sorted: what is transient too, and the ids of bindings, which say in which order they were
    /// made. What is going is not there any more.
    pub fn describe(&self) -> String {
        let mut lines = self.describe_settings();
        let traced = |it: &Vhost| format!("vhost {} is traced: {}", it.id, it.is_traced);
        lines.extend(self.vhosts().map(traced));
        lines.extend(self.going_vhosts().map(|id| format!("vhost {id} is going")));
        let exchanges = self.exchanges.values().filter(|exchange| !exchange.is_going);
        lines.extend(
            exchanges.map(|it| format!("{} durable={}", describe_exchange(it), it.durable)),
        );
        let queues = self.queues.values().filter(|queue| !queue.is_going);
        lines.extend(queues.map(|it| {
            format!("{} durable={} paused={}", describe_queue(it), it.durable, it.paused)
        }));
        let is_there =
            |it: &Binding| !self.is_gone(it.target) && !self.is_gone(Target::Exchange(it.source));
        let bindings = self.bindings.entries().filter(|(_, entry)| is_there(&entry.binding));
        lines.extend(bindings.map(|(_, it)| {
            format!("{} = {} durable={}", describe_binding(&it.binding), it.id(), it.durable())
        }));
        lines.sort_unstable();
        lines.join("\n")
    }

    /// Users, vhosts and parameters, which are durable all.
    fn describe_settings(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for user in self.users.values() {
            describe_user(user, &mut lines);
        }
        for vhost in self.vhosts() {
            describe_vhost(vhost, &mut lines);
        }
        let parameters = self.global_parameters.iter();
        lines.extend(
            parameters.map(|(name, value)| format!("global parameter {name:?} = {value:?}")),
        );
        lines
    }

    /// The next id of a vhost, an exchange and a queue.
    pub fn next_ids(&self) -> (u32, u64, u64) {
        (self.next_vhost, self.next_exchange, self.next_queue)
    }
}

fn describe_exchange(x: &Exchange) -> String {
    format!(
        "exchange {:?} = {} in {}{}: {} auto_delete={} internal={} by {:?} {} alternate={:?} {:?}/{:?}",
        x.name,
        x.id,
        x.vhost,
        match x.kind {
            ExchangeKind::RecentHistory => format!(" at {}", x.home),
            _ => String::new(),
        },
        x.kind,
        x.auto_delete,
        x.internal,
        x.declared_by,
        hex(&x.arguments),
        x.alternate(),
        x.policy(),
        x.operator_policy(),
    )
}

fn describe_queue(q: &Queue) -> String {
    format!(
        "queue {:?} = {} in {} at {}: {} auto_delete={} owner={:?} by {:?} {} {:?} {:?}/{:?} {:?}",
        q.name,
        q.id,
        q.vhost,
        q.home,
        q.kind,
        q.auto_delete,
        q.exclusive_owner,
        q.declared_by,
        hex(&q.arguments),
        q.declared.as_deref().map(hex),
        q.policy(),
        q.operator_policy(),
        q.options(),
    )
}

fn describe_binding(binding: &Binding) -> String {
    let target = match binding.target {
        Target::Queue(id) => format!("queue {id}"),
        Target::Exchange(id) => format!("exchange {id}"),
    };
    let (source, key, arguments) = (binding.source, &binding.key, hex(&binding.arguments));
    format!("binding {source} -> {target} by {key:?} {arguments}")
}

fn describe_user(user: &User, lines: &mut Vec<String>) {
    let name = &user.name;
    let password = (user.password.hashing().name(), user.password.to_base64());
    lines.push(format!("user {name:?} {password:?} {:?} {:?}", user.tags, user.limits));
    for (vhost, permissions) in user.permissions() {
        lines.push(format!("permissions of {name:?} in {vhost}: {permissions:?}"));
    }
    for (vhost, exchange, topics) in user.topic_permissions() {
        lines
            .push(format!("topic permissions of {name:?} for {exchange:?} in {vhost}: {topics:?}"));
    }
}

fn describe_vhost(vhost: &Vhost, lines: &mut Vec<String>) {
    let mut line = format!("vhost {:?} = {}: {:?}", vhost.name, vhost.id, vhost.description);
    let default = (vhost.default_queue_type, vhost.default_exchange);
    let _ = write!(line, " {:?} {default:?} {:?}", vhost.tags, vhost.limits);
    if vhost.is_protected {
        line.push_str(" protected");
    }
    lines.push(line);
    for policy in vhost.policies() {
        lines.push(format!("policy in {}: {policy:?}", vhost.id));
    }
    for policy in vhost.operator_policies() {
        lines.push(format!("operator policy in {}: {policy:?}", vhost.id));
    }
    for (component, name, value) in vhost.parameters() {
        lines.push(format!("parameter {component:?} {name:?} in {} = {value:?}", vhost.id));
    }
}

/// An argument table by its bytes: a NaN equals itself, and 1 as a byte is not 1 as a long.
fn hex(table: &Table) -> String {
    table.to_bytes().iter().fold(String::from("#"), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
