//! RabbitMQ's metrics: names, types, help and order are its own, values are ours.
//!
//! A group is what `family=` selects. What means nothing here is 0 where dashboards ask for it, and not
//! there where they do not: streams, logins by address and user (the page asks for no password).

use leveret_queue::Totals as QueueTotals;
use leveret_server::connection::Io;
use leveret_server::login::attempts::Counts;
use leveret_session::{ChannelFacts, ChannelTotals, ExchangeTotals, TakenTotals};

use super::text::{Kind, Number};
use crate::stats::{Overview, QueueEntry};
use Kind::{Counter, Gauge};
use Of::*;

/// Where a metric's values come from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Of {
    /// The node: one value.
    Node(fn(&Overview) -> Number),
    /// Logins by protocol, whatever the page.
    Attempts(fn(&Counts) -> u64),
    /// Each queue, or their sum.
    Queue(fn(&QueueEntry) -> Number),
    /// Each queue that has one; not when aggregated.
    Head(fn(&QueueEntry) -> Option<u64>),
    /// What each queue counted, or all that ever were.
    Totals(fn(&QueueTotals) -> u64),
    /// Messages by queue and exchange, or all that ever were: of each connection, or of all together.
    Passed {
        /// Whether connections are told apart.
        by_connection: bool,
    },
    /// Each channel, or their sum.
    Channel(fn(&ChannelFacts) -> u64),
    /// What each channel counted, or all that ever were.
    Counted(fn(&ChannelTotals) -> u64),
    /// What each channel published to each exchange, or all channels that ever were.
    Published(fn(&ExchangeTotals) -> u64),
    /// What each channel took from each queue, or all channels that ever were.
    Taken(fn(&TakenTotals) -> u64),
    /// Each connection's socket and number of channels, or their sum.
    Connection(fn(&Io, u64) -> u64),
    /// Each exchange, or all that ever were.
    Exchange(fn(&ExchangeTotals) -> u64),
}

/// One metric: group, name without its prefix, type, help, values.
pub(crate) type Metric = (&'static str, &'static str, Kind, &'static str, Of);

/// All of them, in RabbitMQ's order.
#[rustfmt::skip] // a table
pub(crate) const METRICS: &[Metric] = &[
    ("connection_churn_metrics", "connections_opened_total", Counter, "Total number of connections opened", Node(|it| it.sums.session.connections_opened.into())),
    ("connection_churn_metrics", "connections_closed_total", Counter, "Total number of connections closed or terminated", Node(|it| it.sums.session.connections_closed.into())),
    ("connection_churn_metrics", "channels_opened_total", Counter, "Total number of channels opened", Node(|it| it.sums.session.channels_opened.into())),
    ("connection_churn_metrics", "channels_closed_total", Counter, "Total number of channels closed", Node(|it| it.sums.session.channels_closed.into())),
    ("connection_churn_metrics", "queues_declared_total", Counter, "Total number of queues declared", Node(|it| it.meta.queues_declared.into())),
    ("connection_churn_metrics", "queues_created_total", Counter, "Total number of queues created", Node(|it| it.meta.queues_created.into())),
    ("connection_churn_metrics", "queues_deleted_total", Counter, "Total number of queues deleted", Node(|it| it.meta.queues_deleted.into())),

    ("node_coarse_metrics", "process_open_fds", Gauge, "Open file descriptors", Node(|it| it.node.fd_used.into())),
    ("node_coarse_metrics", "process_resident_memory_bytes", Gauge, "Memory used in bytes", Node(|it| it.node.memory.rss.into())),
    ("node_coarse_metrics", "disk_space_available_bytes", Gauge, "Disk space available in bytes", Node(|it| it.node.disk_free.into())),
    ("node_coarse_metrics", "erlang_processes_used", Gauge, "Erlang processes used", Node(|it| it.node.threads.into())),
    ("node_coarse_metrics", "erlang_gc_runs_total", Counter, "Total number of Erlang garbage collector runs", Node(|_| 0.into())),
    ("node_coarse_metrics", "erlang_gc_reclaimed_bytes_total", Counter, "Total number of bytes of memory reclaimed by Erlang garbage collector", Node(|_| 0.into())),
    ("node_coarse_metrics", "erlang_scheduler_context_switches_total", Counter, "Total number of Erlang scheduler context switches", Node(|it| it.node.context_switches.into())),

    ("node_metrics", "process_max_fds", Gauge, "Open file descriptors limit", Node(|it| it.node.fd_total.into())),
    ("node_metrics", "resident_memory_limit_bytes", Gauge, "Memory high watermark in bytes", Node(|it| it.node.mem_limit.into())),
    ("node_metrics", "disk_space_available_limit_bytes", Gauge, "Free disk space low watermark in bytes", Node(|it| it.node.disk_free_limit.into())),
    ("node_metrics", "erlang_processes_limit", Gauge, "Erlang processes limit", Node(|_| 1_048_576.into())),
    ("node_metrics", "erlang_scheduler_run_queue", Gauge, "Erlang scheduler run queue", Node(|it| it.node.run_queue.into())),
    ("node_metrics", "erlang_net_ticktime_seconds", Gauge, "Inter-node heartbeat interval", Node(|_| 60.into())),
    ("node_metrics", "erlang_uptime_seconds", Gauge, "Node uptime", Node(|it| (it.node.uptime_ms as f64 / 1e3).into())),

    ("node_persister_metrics", "io_read_ops_total", Counter, "Total number of I/O read operations", Node(|it| it.node.io.reads.into())),
    ("node_persister_metrics", "io_read_bytes_total", Counter, "Total number of I/O bytes read", Node(|it| it.node.io.read_bytes.into())),
    ("node_persister_metrics", "io_write_ops_total", Counter, "Total number of I/O write operations", Node(|it| it.node.io.writes.into())),
    ("node_persister_metrics", "io_write_bytes_total", Counter, "Total number of I/O bytes written", Node(|it| it.node.io.write_bytes.into())),
    ("node_persister_metrics", "io_sync_ops_total", Counter, "Total number of I/O sync operations", Node(|it| it.node.io.syncs.into())),
    ("node_persister_metrics", "io_seek_ops_total", Counter, "Total number of I/O seek operations", Node(|_| 0.into())),
    ("node_persister_metrics", "io_reopen_ops_total", Counter, "Total number of times files have been reopened", Node(|_| 0.into())),
    ("node_persister_metrics", "schema_db_ram_tx_total", Counter, "Total number of Schema DB memory transactions", Node(|_| 0.into())),
    ("node_persister_metrics", "schema_db_disk_tx_total", Counter, "Total number of Schema DB disk transactions", Node(|_| 0.into())),
    ("node_persister_metrics", "msg_store_read_total", Counter, "Total number of Message Store read operations", Node(|_| 0.into())),
    ("node_persister_metrics", "msg_store_write_total", Counter, "Total number of Message Store write operations", Node(|_| 0.into())),
    ("node_persister_metrics", "queue_index_read_ops_total", Counter, "Total number of Queue Index read operations", Node(|_| 0.into())),
    ("node_persister_metrics", "queue_index_write_ops_total", Counter, "Total number of Queue Index write operations", Node(|_| 0.into())),
    ("node_persister_metrics", "io_read_time_seconds_total", Counter, "Total I/O read time", Node(|it| (it.node.io.read_us as f64 / 1e6).into())),
    ("node_persister_metrics", "io_write_time_seconds_total", Counter, "Total I/O write time", Node(|it| (it.node.io.write_us as f64 / 1e6).into())),
    ("node_persister_metrics", "io_sync_time_seconds_total", Counter, "Total I/O sync time", Node(|it| (it.node.io.sync_us as f64 / 1e6).into())),
    ("node_persister_metrics", "io_seek_time_seconds_total", Counter, "Total I/O seek time", Node(|_| 0.into())),

    ("auth_attempt_metrics", "auth_attempts_total", Counter, "Total number of authentication attempts", Attempts(|it| it.total())),
    ("auth_attempt_metrics", "auth_attempts_succeeded_total", Counter, "Total number of successful authentication attempts", Attempts(|it| it.succeeded)),
    ("auth_attempt_metrics", "auth_attempts_failed_total", Counter, "Total number of failed authentication attempts", Attempts(|it| it.failed)),

    ("queue_coarse_metrics", "queue_messages_ready", Gauge, "Messages ready to be delivered to consumers", Queue(|it| it.numbers.counts.ready.into())),
    ("queue_coarse_metrics", "queue_messages_unacked", Gauge, "Messages delivered to consumers but not yet acknowledged", Queue(|it| it.numbers.counts.unacked.into())),
    ("queue_coarse_metrics", "queue_messages", Gauge, "Sum of ready and unacknowledged messages - total queue depth", Queue(|it| (it.numbers.counts.ready + it.numbers.counts.unacked).into())),
    ("queue_coarse_metrics", "queue_process_reductions_total", Counter, "Total number of queue process reductions", Queue(|_| 0.into())),

    ("queue_consumer_count", "queue_consumers", Gauge, "Consumers on a queue", Queue(|it| u64::from(it.numbers.counts.consumers).into())),

    ("queue_metrics", "queue_consumers", Gauge, "Consumers on a queue", Queue(|it| u64::from(it.numbers.counts.consumers).into())),
    ("queue_metrics", "queue_consumer_capacity", Gauge, "Consumer capacity", Queue(|it| it.consumer_capacity.into())),
    ("queue_metrics", "queue_consumer_utilisation", Gauge, "Same as consumer capacity", Queue(|it| it.consumer_capacity.into())),
    ("queue_metrics", "queue_process_memory_bytes", Gauge, "Memory in bytes used by the Erlang queue process", Queue(|it| it.numbers.memory_bytes.into())),
    ("queue_metrics", "queue_messages_ram", Gauge, "Ready and unacknowledged messages stored in memory", Queue(|it| { let states = it.numbers.states(); (states.ready_ram + states.unacked_ram).into() })),
    ("queue_metrics", "queue_messages_ram_bytes", Gauge, "Size of ready and unacknowledged messages stored in memory", Queue(|it| it.numbers.states().ram_bytes.into())),
    ("queue_metrics", "queue_messages_ready_ram", Gauge, "Ready messages stored in memory", Queue(|it| it.numbers.states().ready_ram.into())),
    ("queue_metrics", "queue_messages_unacked_ram", Gauge, "Unacknowledged messages stored in memory", Queue(|it| it.numbers.states().unacked_ram.into())),
    ("queue_metrics", "queue_messages_persistent", Gauge, "Persistent messages", Queue(|it| it.numbers.counts.persistent.into())),
    ("queue_metrics", "queue_messages_persistent_bytes", Gauge, "Size in bytes of persistent messages", Queue(|it| it.numbers.counts.persistent_bytes.into())),
    ("queue_metrics", "queue_messages_bytes", Gauge, "Size in bytes of ready and unacknowledged messages", Queue(|it| (it.numbers.counts.ready_bytes + it.numbers.counts.unacked_bytes).into())),
    ("queue_metrics", "queue_messages_ready_bytes", Gauge, "Size in bytes of ready messages", Queue(|it| it.numbers.counts.ready_bytes.into())),
    ("queue_metrics", "queue_messages_unacked_bytes", Gauge, "Size in bytes of all unacknowledged messages", Queue(|it| it.numbers.counts.unacked_bytes.into())),
    ("queue_metrics", "queue_messages_paged_out", Gauge, "Messages paged out to disk", Queue(|it| it.numbers.states().transient_paged.into())),
    ("queue_metrics", "queue_messages_paged_out_bytes", Gauge, "Size in bytes of messages paged out to disk", Queue(|it| it.numbers.states().transient_paged_bytes.into())),
    ("queue_metrics", "queue_head_message_timestamp", Gauge, "Timestamp of the first message in the queue, if any", Head(|it| it.numbers.head?.timestamp_s)),
    ("queue_metrics", "queue_disk_reads_total", Counter, "Total number of times queue read messages from disk", Queue(|_| 0.into())),
    ("queue_metrics", "queue_disk_writes_total", Counter, "Total number of times queue wrote messages to disk", Queue(|_| 0.into())),

    ("channel_metrics", "channel_consumers", Gauge, "Consumers on a channel", Channel(|it| it.consumers as u64)),
    ("channel_metrics", "channel_messages_unacked", Gauge, "Delivered but not yet acknowledged messages", Channel(|it| it.unacked as u64)),
    ("channel_metrics", "channel_messages_unconfirmed", Gauge, "Published but not yet confirmed messages", Channel(|it| it.unconfirmed)),
    ("channel_metrics", "channel_messages_uncommitted", Gauge, "Messages received in a transaction but not yet committed", Channel(|it| it.uncommitted as u64)),
    ("channel_metrics", "channel_acks_uncommitted", Gauge, "Message acknowledgements in a transaction not yet committed", Channel(|it| it.acks_uncommitted as u64)),
    ("channel_metrics", "consumer_prefetch", Gauge, "Limit of unacknowledged messages for each consumer", Channel(|it| it.prefetch.into())),
    ("channel_metrics", "channel_prefetch", Gauge, "Deprecated and will be removed in a future version", Channel(|it| it.global_prefetch.into())),

    ("channel_exchange_metrics", "channel_messages_published_total", Counter, "Total number of messages published into an exchange on a channel", Published(|it| it.publish)),
    ("channel_exchange_metrics", "channel_messages_confirmed_total", Counter, "Total number of messages published into an exchange and confirmed on the channel", Published(|it| it.confirm)),
    ("channel_exchange_metrics", "channel_messages_unroutable_returned_total", Counter, "Total number of messages published as mandatory into an exchange and returned to the publisher as unroutable", Published(|it| it.return_unroutable)),
    ("channel_exchange_metrics", "channel_messages_unroutable_dropped_total", Counter, "Total number of messages published as non-mandatory into an exchange and dropped as unroutable", Published(|it| it.drop_unroutable)),

    ("channel_process_metrics", "channel_process_reductions_total", Counter, "Total number of channel process reductions", Counted(|_| 0)),

    ("channel_queue_metrics", "channel_get_ack_total", Counter, "Total number of messages fetched with basic.get in manual acknowledgement mode", Taken(|it| it.get)),
    ("channel_queue_metrics", "channel_get_total", Counter, "Total number of messages fetched with basic.get in automatic acknowledgement mode", Taken(|it| it.get_no_ack)),
    ("channel_queue_metrics", "channel_messages_delivered_ack_total", Counter, "Total number of messages delivered to consumers in manual acknowledgement mode", Taken(|it| it.deliver)),
    ("channel_queue_metrics", "channel_messages_delivered_total", Counter, "Total number of messages delivered to consumers in automatic acknowledgement mode", Taken(|it| it.deliver_no_ack)),
    ("channel_queue_metrics", "channel_messages_redelivered_total", Counter, "Total number of messages redelivered to consumers", Taken(|it| it.redeliver)),
    ("channel_queue_metrics", "channel_messages_acked_total", Counter, "Total number of messages acknowledged by consumers", Taken(|it| it.ack)),
    ("channel_queue_metrics", "channel_get_empty_total", Counter, "Total number of times basic.get operations fetched no message", Taken(|it| it.get_empty)),

    ("connection_coarse_metrics", "connection_incoming_bytes_total", Counter, "Total number of bytes received on a connection", Connection(|io, _| io.recv_oct)),
    ("connection_coarse_metrics", "connection_outgoing_bytes_total", Counter, "Total number of bytes sent on a connection", Connection(|io, _| io.send_oct)),
    ("connection_coarse_metrics", "connection_process_reductions_total", Counter, "Total number of connection process reductions", Connection(|_, _| 0)),

    ("connection_metrics", "connection_incoming_packets_total", Counter, "Total number of packets received on a connection", Connection(|io, _| io.recv_cnt)),
    ("connection_metrics", "connection_outgoing_packets_total", Counter, "Total number of packets sent on a connection", Connection(|io, _| io.send_cnt)),
    ("connection_metrics", "connection_pending_packets", Gauge, "Number of packets waiting to be sent on a connection", Connection(|io, _| io.send_pend)),
    ("connection_metrics", "connection_channels", Gauge, "Channels on a connection", Connection(|_, channels| channels)),

    ("channel_queue_exchange_metrics", "queue_messages_published_total", Counter, "Total number of messages published into a queue through an exchange on a channel", Passed { by_connection: true }),

    ("exchange_metrics", "exchange_messages_published_total", Counter, "Total number of messages published into an exchange", Exchange(|it| it.publish)),
    ("exchange_metrics", "exchange_messages_confirmed_total", Counter, "Total number of messages published into an exchange and confirmed", Exchange(|it| it.confirm)),
    ("exchange_metrics", "exchange_messages_unroutable_returned_total", Counter, "Total number of messages published as mandatory into an exchange and returned to the publisher as unroutable", Exchange(|it| it.return_unroutable)),
    ("exchange_metrics", "exchange_messages_unroutable_dropped_total", Counter, "Total number of messages published as non-mandatory into an exchange and dropped as unroutable", Exchange(|it| it.drop_unroutable)),

    ("queue_delivery_metrics", "queue_get_ack_total", Counter, "Total number of messages fetched from a queue with basic.get in manual acknowledgement mode", Totals(|it| it.got)),
    ("queue_delivery_metrics", "queue_get_total", Counter, "Total number of messages fetched from a queue with basic.get in automatic acknowledgement mode", Totals(|it| it.got_no_ack)),
    ("queue_delivery_metrics", "queue_messages_delivered_ack_total", Counter, "Total number of messages delivered from a queue to consumers in manual acknowledgement mode", Totals(|it| it.delivered)),
    ("queue_delivery_metrics", "queue_messages_delivered_total", Counter, "Total number of messages delivered from a queue to consumers in automatic acknowledgement mode", Totals(|it| it.delivered_no_ack)),
    ("queue_delivery_metrics", "queue_messages_redelivered_total", Counter, "Total number of messages redelivered from a queue to consumers", Totals(|it| it.redelivered)),
    ("queue_delivery_metrics", "queue_messages_acked_total", Counter, "Total number of messages acknowledged by consumers on a queue", Totals(|it| it.acked)),
    ("queue_delivery_metrics", "queue_get_empty_total", Counter, "Total number of times basic.get operations fetched no message on a queue", Totals(|it| it.get_empty)),

    ("queue_exchange_metrics", "queue_exchange_messages_published_total", Counter, "Total number of messages published into a queue through an exchange", Passed { by_connection: false }),
];

/// Memory by what it is for: name, help, and the name among [`Memory`](crate::stats::Memory)'s rows.
#[rustfmt::skip] // a table
pub(crate) const MEMORY: &[(&str, &str, &str)] = &[
    ("memory_code_module_bytes", "Code module memory footprint", "code"),
    ("memory_client_connection_reader_bytes", "Client connection reader processes footprint in bytes", "connection_readers"),
    ("memory_client_connection_writer_bytes", "Client connection writer processes footprint in bytes", "connection_writers"),
    ("memory_client_connection_channel_bytes", "Client connection channel processes footprint in bytes", "connection_channels"),
    ("memory_client_connection_other_bytes", "Client connection other processes footprint in bytes", "connection_other"),
    ("memory_classic_queue_erlang_process_bytes", "Classic queue processes footprint in bytes", "queue_procs"),
    ("memory_quorum_queue_erlang_process_bytes", "Quorum queue processes footprint in bytes", "quorum_queue_procs"),
    ("memory_quorum_queue_dlx_erlang_process_bytes", "Quorum queue DLX worker processes footprint in bytes", "quorum_queue_dlx_procs"),
    ("memory_stream_erlang_process_bytes", "Stream processes footprint in bytes", "stream_queue_procs"),
    ("memory_stream_replica_reader_erlang_process_bytes", "Stream replica reader processes footprint in bytes", "stream_queue_replica_reader_procs"),
    ("memory_stream_coordinator_erlang_process_bytes", "Stream coordinator processes footprint in bytes", "stream_queue_coordinator_procs"),
    ("memory_plugin_bytes", "Total plugin footprint in bytes", "plugins"),
    ("memory_modern_metadata_store_bytes", "Modern metadata store footprint in bytes", "metadata_store"),
    ("memory_other_erlang_process_bytes", "Other processes footprint in bytes", "other_proc"),
    ("memory_metrics_bytes", "Metric table footprint in bytes", "metrics"),
    ("memory_management_stats_db_bytes", "Management stats database footprint in bytes", "mgmt_db"),
    ("memory_classic_metadata_store_bytes", "Classic metadata store footprint in bytes", "mnesia"),
    ("memory_quorum_queue_ets_table_bytes", "Quorum queue ETS tables footprint in bytes", "quorum_ets"),
    ("memory_modern_metadata_store_ets_table_bytes", "Modern metadata store ETS tables footprint in bytes", "metadata_store_ets"),
    ("memory_other_ets_table_bytes", "Other ETS tables footprint in bytes", "other_ets"),
    ("memory_binary_heap_bytes", "Binary heap size in bytes", "binary"),
    ("memory_message_index_bytes", "Message index footprint in bytes", "msg_index"),
    ("memory_atom_table_bytes", "Atom table size in bytes", "atom"),
    ("memory_other_system_bytes", "Other runtime footprint in bytes", "other_system"),
    ("memory_runtime_allocated_unused_bytes", "Runtime allocated but unused blocks size in bytes", "allocated_unused"),
    ("memory_runtime_reserved_unallocated_bytes", "Runtime reserved but unallocated blocks size in bytes", "reserved_unallocated"),
];
