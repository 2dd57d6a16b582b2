//! Which counters have rates and samples, under the names of RabbitMQ's API, and where they come from.

use leveret_broker::meta::MetaCounters;
use leveret_broker::numbers::QueueNumbers;
use leveret_server::connection::Io;
use leveret_server::disk::IoTotals;
use leveret_session::{ChannelTotals, ExchangeTotals, SessionTotals, TakenTotals};

/// Names of counters.
pub type Names<const N: usize> = [&'static str; N];

/// Of a queue's lengths, of a vhost's, of all.
pub const LENGTHS: Names<3> = ["messages", "messages_ready", "messages_unacknowledged"];

/// Of a queue.
pub const QUEUE: Names<9> = [
    "publish",
    "get",
    "get_no_ack",
    "deliver",
    "deliver_no_ack",
    "redeliver",
    "ack",
    "deliver_get",
    "get_empty",
];

/// Of a channel and an exchange.
pub const PUBLISHED: Names<4> = ["publish", "confirm", "return_unroutable", "drop_unroutable"];

/// Of a channel and a queue.
pub const TAKEN: Names<8> = [
    "get",
    "get_no_ack",
    "deliver",
    "deliver_no_ack",
    "redeliver",
    "ack",
    "deliver_get",
    "get_empty",
];

/// Of a channel, a vhost, all: [`PUBLISHED`], then [`TAKEN`].
pub const CHANNEL: Names<{ PUBLISHED.len() + TAKEN.len() }> = {
    let mut names = [""; PUBLISHED.len() + TAKEN.len()];
    let (published, taken) = names.split_at_mut(PUBLISHED.len());
    published.copy_from_slice(&PUBLISHED);
    taken.copy_from_slice(&TAKEN);
    names
};

/// Of an exchange.
pub const EXCHANGE: Names<3> = ["publish_in", "publish_out", "confirm"];

/// Of a connection, a vhost.
pub const DATA: Names<2> = ["recv_oct", "send_oct"];

/// What comes and goes.
pub const CHURN: Names<7> = [
    "connection_created",
    "connection_closed",
    "channel_created",
    "channel_closed",
    "queue_declared",
    "queue_created",
    "queue_deleted",
];

/// What the disk did for messages, times in microseconds.
pub const DISK: Names<4> = ["writes", "write_us", "syncs", "sync_us"];

/// Of the node.
pub const NODE: Names<25> = [
    "mem_used",
    "fd_used",
    "sockets_used",
    "proc_used",
    "disk_free",
    "gc_num",
    "gc_bytes_reclaimed",
    "context_switches",
    "io_read_count",
    "io_read_bytes",
    "io_read_avg_time",
    "io_write_count",
    "io_write_bytes",
    "io_write_avg_time",
    "io_sync_count",
    "io_sync_avg_time",
    "io_seek_count",
    "io_seek_avg_time",
    "io_reopen_count",
    "mnesia_ram_tx_count",
    "mnesia_disk_tx_count",
    "msg_store_read_count",
    "msg_store_write_count",
    "queue_index_write_count",
    "queue_index_read_count",
];

/// Under [`LENGTHS`].
pub fn lengths(ready: u64, unacked: u64) -> [u64; 3] {
    [ready + unacked, ready, unacked]
}

/// Under [`QUEUE`].
pub fn queue(numbers: &QueueNumbers) -> [u64; 9] {
    let it = &numbers.totals;
    [
        it.enqueued,
        it.got,
        it.got_no_ack,
        it.delivered,
        it.delivered_no_ack,
        it.redelivered,
        it.acked,
        it.delivered + it.delivered_no_ack + it.got + it.got_no_ack,
        it.get_empty,
    ]
}

/// Under [`CHANNEL`].
pub fn channel(it: &ChannelTotals) -> [u64; CHANNEL.len()] {
    let mut counts = [0; CHANNEL.len()];
    let (of_published, of_taken) = counts.split_at_mut(PUBLISHED.len());
    of_published.copy_from_slice(&published(&it.published)[..PUBLISHED.len()]);
    of_taken.copy_from_slice(&taken(&it.taken));
    counts
}

/// Under [`PUBLISHED`], filled up with zeros.
pub fn published(it: &ExchangeTotals) -> [u64; TAKEN.len()] {
    [it.publish, it.confirm, it.return_unroutable, it.drop_unroutable, 0, 0, 0, 0]
}

/// Under [`TAKEN`].
pub fn taken(it: &TakenTotals) -> [u64; TAKEN.len()] {
    [
        it.get,
        it.get_no_ack,
        it.deliver,
        it.deliver_no_ack,
        it.redeliver,
        it.ack,
        it.deliver_get(),
        it.get_empty,
    ]
}

/// Under [`EXCHANGE`].
pub fn exchange(it: &ExchangeTotals) -> [u64; 3] {
    [it.publish, it.routed, it.confirm]
}

/// Under [`DATA`].
pub fn data(io: &Io) -> [u64; 2] {
    [io.recv_oct, io.send_oct]
}

/// What the disk did.
pub fn disk(io: &IoTotals) -> [u64; DISK.len()] {
    [io.writes, io.write_us, io.syncs, io.sync_us]
}

/// Under [`CHURN`].
pub fn churn(session: &SessionTotals, queues: &MetaCounters) -> [u64; 7] {
    [
        session.connections_opened,
        session.connections_closed,
        session.channels_opened,
        session.channels_closed,
        queues.queues_declared,
        queues.queues_created,
        queues.queues_deleted,
    ]
}
