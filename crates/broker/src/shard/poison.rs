//! What the log says of messages that came back too often.

use std::fmt::{self, Display, Formatter};

use bytes::Bytes;
use leveret_amqp::content::RawProperties;
use leveret_log::Log;
use leveret_queue::Offset;
use leveret_topology::{QueueId, Topology};

use super::{Shard, describe};
use crate::record::View;

/// How an application finds a message again, put into words only if the line is written.
struct Named(Option<Bytes>);

impl Display for Named {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Some(view) = self.0.as_ref().and_then(View::of) else { return Ok(()) };
        if let Some((exchange, key)) = view.exchange_and_key() {
            write!(f, ", published to exchange '{exchange}' with routing key '{key}'")?;
        }
        let properties = RawProperties::new(view.properties).to_owned().unwrap_or_default();
        match properties.message_id {
            Some(id) => write!(f, ", message_id '{id}'"),
            None => f.write_str(", without a message_id"),
        }
    }
}

impl<L: Log> Shard<L> {
    /// The message leaves its queue, as it was given back more often than it may be.
    #[cold]
    pub(super) fn say_poison(&self, id: QueueId, offset: Offset, topology: &Topology) {
        let Some(queue) = topology.queue_by_id(id) else { return };
        let name = describe(queue, topology);
        let limit = queue.delivery_limit().unwrap_or_default();
        let is_kept = queue.dead_letter().is_some();
        let what = if is_kept { "dead-lettered" } else { "dropped" };
        // One that only the disk has is named by its place alone.
        let record = self.store.read(offset).ok().map(|record| record.bytes);
        tracing::warn!(
            from = name,
            "{name}: message {} {what} at its delivery limit of {limit}{}",
            offset.get(),
            Named(record)
        );
    }
}
