//! Hot path. The rest of a large body, read into the memory that it stays in.
//!
//! Budget: one copy of what of the body came with its header, none of the rest.
//!
//! When a read ends early in the last frame of a large body, whoever reads is told how long the record of
//! the message will be, and what is still missing of it. It reads that to where it belongs, and the log
//! keeps the memory as it is.
//!
//! ```text
//!   | head | names | properties | body as far as it came | rest of the body | CE |
//!   `--------------------- front, of the session --------'--- from the socket ---'
//! ```

use bytes::Bytes;
use leveret_amqp::content::RawProperties;
use leveret_broker::record::{HEAD, Head, LARGE, stored_expiration_ms};
use leveret_queue::Time;

use crate::channel::content::{Content, Stake};
use crate::core::Context;
use crate::properties;
use crate::session::Session;

/// The shortest body for it: shorter records are copied together by the log. So long is what is missing, too,
/// at least half.
const BODY_MIN: usize = LARGE;

/// The longest: a client that announces it, and sends little more, makes us take so much memory.
const BODY_MAX: usize = 256 << 10;

/// A body whose rest is to be read into memory of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AwaitedBody {
    /// Bytes before it, which [`Session::input_body`] wants to be there.
    pub front: usize,
    /// Bytes to come: the rest of the body, and the octet behind its frame.
    pub rest: usize,
}

impl Session {
    /// What is worth being read by itself, if the next bytes are that. Until [`input_body`](Self::input_body)
    /// was called with it, [`input`](Self::input) must not be given anything else.
    pub fn awaited_body(&mut self) -> Option<AwaitedBody> {
        let (number, rest) = self.core.decoder.body_rest()?;
        let content = &self.channels.get(number)?.content;
        let front = content.front_of(rest)?;
        let is_large = (BODY_MIN as u64..=BODY_MAX as u64).contains(&content.size());
        is_large.then_some(AwaitedBody { front, rest: rest as usize + 1 })
    }

    /// Bytes of an awaited body came, not all of them.
    pub fn heard(&mut self, bytes: usize) {
        self.core.unfinished.heard += bytes as u64;
        self.core.timers.has_read = true;
        self.core.timers.listens = false;
    }

    /// Writes the front of an awaited body whose rest has come, for [`input_body`](Self::input_body).
    pub fn write_front(&mut self, front: &mut [u8], wall: Time) {
        let Some(content) = self.awaiting(front.len()) else { return };
        content.write_front(front);
        let head = content.record_head(wall).map(|head| head.encode()).unwrap_or_default();
        if let Some(room) = front.first_chunk_mut::<HEAD>() {
            *room = head;
        }
    }

    /// Takes the front that [`write_front`](Self::write_front) wrote and the rest of the body behind it, whole.
    /// [`input`](Self::input) is to be called next, for what came with it or with nothing.
    pub fn input_body(&mut self, read: &Bytes, front: usize, cx: &mut Context<'_>) {
        self.heard(0);
        self.core.unfinished.heard = 0;
        self.refresh(cx);
        if let Some(content) = self.awaiting(front) {
            let stake = content.stake();
            content.go_on_in(front);
            self.core.unfinished.change(stake, Stake::default());
            self.core.in_read = self.core.decoder.body_rest().map_or(0, |(number, _)| number);
        }
        self.frame(read.get(front..).unwrap_or_default(), read, cx);
        self.core.pace_publishes(cx);
        self.end_read(read);
    }

    /// The content whose rest is awaited behind so many bytes. None if its channel has been closed meanwhile.
    fn awaiting(&mut self, front: usize) -> Option<&mut Content> {
        let (number, rest) = self.core.decoder.body_rest()?;
        let content = &mut self.channels.get(number)?.content;
        (content.front_of(rest) == Some(front)).then_some(content)
    }
}

impl Content {
    /// The head of the record that it becomes; none if its properties are malformed.
    pub(crate) fn record_head(&self, wall: Time) -> Option<Head> {
        let none = Bytes::new();
        let (names, raw) = self.parts(&none);
        let peek = RawProperties::new(raw).peek().ok()?;
        let expiration_ms = peek.expiration.map(properties::expiration).transpose().ok()?;
        Some(Head {
            persistent: peek.delivery_mode == Some(2),
            priority: peek.priority.unwrap_or(0),
            names_len: names.len() as u16,
            properties_len: raw.len() as u32,
            body_len: self.size() as u32,
            expiration_ms: expiration_ms.map(stored_expiration_ms),
            published_ms: wall.ms(),
        })
    }
}
