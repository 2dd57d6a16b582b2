//! What reads brought, for whoever decides how soon to read again.

use leveret_amqp::content::Peek;

use crate::channel::Mode;

/// What a connection's reads brought since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Brought {
    /// Messages.
    pub publishes: u32,
    /// The client may wait for what comes of something among it: for a confirm, a reply, an answer to a method, or more
    /// deliveries for its acks.
    pub is_awaited: bool,
}

impl Brought {
    #[inline]
    pub(crate) fn publish(&mut self, mode: &Mode, peek: &Peek<'_>) {
        self.publishes = self.publishes.saturating_add(1);
        self.is_awaited |= !matches!(mode, Mode::Plain) || peek.reply_to.is_some();
    }
}
