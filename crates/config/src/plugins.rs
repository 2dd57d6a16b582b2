//! RabbitMQ's plugins whose work the program does.

use crate::load::Config;

/// Their names. What is not among them is not there: no shovels, no federation, no other protocol.
///
/// `rabbitmq_sharding` is not: its exchange type is there, and the policy that makes queues is not.
///
/// Nodes tell each other [in bits](bits) which of them run: a new name goes to the end, and none moves.
pub const BUILT_IN: [&str; 15] = [
    "rabbitmq_auth_backend_cache",
    "rabbitmq_auth_backend_http",
    "rabbitmq_auth_backend_ldap",
    "rabbitmq_auth_backend_oauth2",
    "rabbitmq_auth_mechanism_ssl",
    "rabbitmq_consistent_hash_exchange",
    "rabbitmq_event_exchange",
    "rabbitmq_management",
    "rabbitmq_management_agent",
    "rabbitmq_prometheus",
    "rabbitmq_random_exchange",
    "rabbitmq_recent_history_exchange",
    "rabbitmq_top",
    "rabbitmq_tracing",
    "rabbitmq_web_dispatch",
];

/// The names of the plugins that a node with this configuration runs.
pub fn running(config: &Config) -> Vec<&'static str> {
    let is_on = |name: &&str| match *name {
        "rabbitmq_management"
        | "rabbitmq_management_agent"
        | "rabbitmq_top"
        | "rabbitmq_tracing" => config.management.enabled,
        "rabbitmq_prometheus" => config.prometheus.enabled,
        "rabbitmq_web_dispatch" => config.management.enabled || config.prometheus.enabled,
        _ => true,
    };
    BUILT_IN.into_iter().filter(is_on).collect()
}

/// Bit i is set if the i-th of [`BUILT_IN`] is among these names.
pub fn bits(names: &[&str]) -> u64 {
    let known = BUILT_IN.iter().zip(0..).filter(|(name, _)| names.contains(name));
    known.fold(0, |all, (_, bit)| all | 1 << bit)
}

/// The names of these [`bits`].
pub fn of_bits(bits: u64) -> Vec<&'static str> {
    let names = BUILT_IN.into_iter().zip(0..);
    names.filter(|(_, bit)| bits & 1 << bit != 0).map(|(name, _)| name).collect()
}
