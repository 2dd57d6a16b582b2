//! What is known of the process: memory, files, disk, time.

use std::sync::Arc;

use leveret_broker::numbers::ShardRest;
use leveret_server::alarms::Resource;
use leveret_server::descriptors;
use leveret_server::disk::IoTotals;
use leveret_server::front::About;
use leveret_server::node::Node;
use serde_json::{Value, json};

use crate::ops::system;

/// The node, as the API's `nodes` and the metrics show it.
#[derive(Clone, Debug, Default)]
pub struct NodeFacts {
    /// Memory by what it is for.
    pub memory: Memory,
    /// The memory watermark, in bytes.
    pub mem_limit: u64,
    /// What messages take, which is what the watermark is compared with, in bytes.
    pub mem_held: u64,
    /// Publishers are blocked for it.
    pub mem_alarm: bool,
    /// How often they were.
    pub mem_alarms: u64,
    /// Free space of the disk, in bytes.
    pub disk_free: u64,
    /// Its low watermark, in bytes.
    pub disk_free_limit: u64,
    /// Publishers are blocked for it.
    pub disk_free_alarm: bool,
    /// How often they were.
    pub disk_free_alarms: u64,
    /// Open file descriptors.
    pub fd_used: u64,
    /// Their limit.
    pub fd_total: u64,
    /// Connections that were not let in for want of one.
    pub fd_refused: u64,
    /// Connections and listeners.
    pub sockets_used: u64,
    /// Threads: what comes nearest to Erlang's processes.
    pub threads: u64,
    /// Switches between threads.
    pub context_switches: u64,
    /// Since the process began, in ms.
    pub uptime_ms: u64,
    /// Threads that run turns.
    pub processors: u64,
    /// Actors that wait for a thread.
    pub run_queue: u64,
    /// What files of messages were read and written.
    pub io: IoTotals,
}

/// Memory by what it is for, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// In the machine's memory.
    pub rss: u64,
    /// Input and output of connections.
    pub connections: u64,
    /// Queues' lists of messages.
    pub queues: u64,
    /// Messages in memory.
    pub messages: u64,
    /// Messages whose publishers wait.
    pub unresolved: u64,
    /// The program.
    pub code: u64,
    /// Samples and rates.
    pub statistics: u64,
    /// Names with their arguments, policies and parameters.
    pub names: u64,
    /// Requests of the API, and answers that are not sent yet.
    pub requests: u64,
}

impl Memory {
    /// All that is accounted for.
    pub fn known(&self) -> u64 {
        let Self { connections, queues, messages, unresolved, code, .. } = *self;
        let of_management = self.statistics + self.names + self.requests;
        connections + queues + messages + unresolved + code + of_management
    }

    /// RabbitMQ's names and what they mean here; what means nothing is 0.
    pub fn rows(&self) -> [(&'static str, u64); 27] {
        [
            ("connection_readers", self.connections),
            ("connection_writers", 0),
            ("connection_channels", 0),
            ("connection_other", self.requests),
            ("queue_procs", self.queues),
            ("queue_slave_procs", 0),
            ("quorum_queue_procs", 0),
            ("quorum_queue_dlx_procs", 0),
            ("stream_queue_procs", 0),
            ("stream_queue_replica_reader_procs", 0),
            ("stream_queue_coordinator_procs", 0),
            ("plugins", 0),
            ("metadata_store", 0),
            ("other_proc", 0),
            ("metrics", 0),
            ("mgmt_db", self.statistics),
            ("mnesia", self.names),
            ("quorum_ets", 0),
            ("metadata_store_ets", 0),
            ("other_ets", 0),
            ("binary", self.messages),
            ("msg_index", self.unresolved),
            ("code", self.code),
            ("atom", 0),
            ("other_system", self.rss.saturating_sub(self.known())),
            ("allocated_unused", 0),
            ("reserved_unallocated", 0),
        ]
    }

    /// The breakdown that the API shows of a node.
    pub fn json(&self) -> Value {
        let mut memory: serde_json::Map<_, _> =
            self.rows().into_iter().map(|(name, bytes)| (name.to_owned(), json!(bytes))).collect();
        let all = self.rss.max(self.known());
        memory.insert("strategy".to_owned(), json!("rss"));
        memory
            .insert("total".to_owned(), json!({"rss": self.rss, "allocated": all, "erlang": all}));
        Value::Object(memory)
    }

    /// Parts of all, in percent.
    pub fn relative_json(&self) -> Value {
        let all = self.rows().into_iter().map(|(_, bytes)| bytes).sum::<u64>().max(1);
        let part = |bytes| (100.0 * bytes as f64 / all as f64).round() as u64;
        let mut memory: serde_json::Map<_, _> =
            self.rows().into_iter().map(|(name, it)| (name.to_owned(), json!(part(it)))).collect();
        memory.insert("total".to_owned(), json!(100));
        Value::Object(memory)
    }
}

impl NodeFacts {
    /// As it is now. `statistics`: what samples take.
    pub(super) fn now(
        node: &Arc<Node>,
        about: &About,
        shards: &[ShardRest],
        statistics: u64,
    ) -> Self {
        let (fd_used, fd_total) = system::open_files();
        let raised = node.alarms.raised();
        let process = Process::now();
        let sum = |of: fn(&ShardRest) -> u64| shards.iter().map(of).sum::<u64>();
        let memory = Memory {
            rss: system::resident_bytes(),
            connections: node.connection_bytes(),
            queues: sum(|shard| shard.queue_bytes),
            messages: sum(|shard| shard.log.held_bytes),
            unresolved: sum(|shard| shard.unresolved_bytes),
            code: process.text_bytes,
            statistics,
            names: node.names_bytes(),
            requests: node.request_bytes(),
        };
        Self {
            memory,
            mem_limit: node.alarms.memory_limit(),
            mem_held: node.held_bytes(),
            mem_alarm: raised.contains(&Resource::Memory),
            mem_alarms: node.alarms.raised_count(Resource::Memory),
            disk_free: node
                .alarms
                .disk_free()
                .unwrap_or_else(|| system::free_bytes(&about.data_dir)),
            disk_free_limit: node.alarms.disk_limit(),
            disk_free_alarm: raised.contains(&Resource::Disk),
            disk_free_alarms: node.alarms.raised_count(Resource::Disk),
            fd_used,
            fd_total,
            fd_refused: descriptors::refused(),
            sockets_used: (node.connection_count() + about.listeners.len()) as u64,
            threads: process.threads,
            context_switches: process.context_switches,
            uptime_ms: about.started.elapsed().as_millis() as u64,
            processors: about.threads as u64,
            run_queue: 0,
            io: IoTotals::now(),
        }
    }

    /// The counters of the node that have rates, see [`NODE`](super::NODE).
    pub(super) fn counters(&self) -> [u64; super::NODE.len()] {
        let io = &self.io;
        let average = |us: u64, count: u64| us.checked_div(count * 1000).unwrap_or(0);
        [
            self.memory.rss,
            self.fd_used,
            self.sockets_used,
            self.threads,
            self.disk_free,
            0,
            0,
            self.context_switches,
            io.reads,
            io.read_bytes,
            average(io.read_us, io.reads),
            io.writes,
            io.write_bytes,
            average(io.write_us, io.writes),
            io.syncs,
            average(io.sync_us, io.syncs),
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
        ]
    }
}

/// What the system tells of the process.
#[derive(Clone, Copy, Debug, Default)]
struct Process {
    text_bytes: u64,
    threads: u64,
    context_switches: u64,
}

impl Process {
    fn now() -> Self {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
        let text = statm.split_whitespace().nth(3).and_then(|pages| pages.parse::<u64>().ok());
        let usage = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let field = |name: &str| {
            let line = usage.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim_start_matches(':').trim().parse::<u64>().ok()
        };
        // The main thread's switches; the sum over all is not told.
        let switches = ["voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"];
        Self {
            text_bytes: text.unwrap_or(0) * rustix::param::page_size() as u64,
            threads: field("Threads").unwrap_or(1),
            context_switches: switches.iter().filter_map(|name| field(name)).sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_adds_up() {
        let memory =
            Memory { rss: 100, connections: 10, queues: 20, messages: 30, ..Memory::default() };
        assert_eq!(memory.rows().iter().map(|(_, bytes)| bytes).sum::<u64>(), 100);
        let json = memory.json();
        assert_eq!(json["other_system"], 40);
        assert_eq!(json["total"]["rss"], 100);
        assert_eq!(memory.relative_json()["binary"], 30);
    }

    #[test]
    fn the_system_tells_something() {
        let process = Process::now();
        assert!(process.text_bytes > 0 && process.threads > 0);
    }
}
