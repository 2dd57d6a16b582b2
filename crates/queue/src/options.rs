//! What a queue was told to be, by its arguments and policies.

/// The effective options of a queue: arguments and policies already merged by the caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// `max-length`: ready messages.
    pub max_length: Option<u64>,
    /// `max-length-bytes`: bytes of the bodies of ready messages.
    pub max_length_bytes: Option<u64>,
    /// `overflow`: what gives way when one of the two is reached.
    pub overflow: Overflow,
    /// `message-ttl`, in ms. Applies to messages that come after it was set, as in RabbitMQ.
    pub message_ttl_ms: Option<u64>,
    /// `expires`, in ms: how long the queue may be unused.
    pub expires_ms: Option<u64>,
    /// `x-max-priority`. Changing it only changes the cap for later messages.
    pub max_priority: Option<u8>,
    /// `x-single-active-consumer`.
    pub single_active: bool,
    /// `delivery-limit`: how often a message may come back before it is dead-lettered.
    pub delivery_limit: Option<u32>,
    /// A dead-letter exchange is set.
    pub dead_letter: bool,
    /// `dead-letter-strategy` is `at-least-once`. Only has an effect with a dead-letter exchange and
    /// `overflow` = `reject-publish`, as in RabbitMQ.
    pub at_least_once: bool,
    /// Consumers are told `x-delivery-count`, so returns are counted without a limit too.
    pub counts_deliveries: bool,
    /// Deleted after its last consumer.
    pub auto_delete: bool,
    /// Nobody is given anything: an operator wants it so. Messages come, expire and are dropped as ever.
    pub paused: bool,
}

/// `overflow`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// The oldest ready message goes.
    #[default]
    DropHead,
    /// The new message is refused.
    RejectPublish,
    /// The new message is refused and dead-lettered.
    RejectPublishDlx,
}
