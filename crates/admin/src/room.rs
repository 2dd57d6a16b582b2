//! What requests and answers hold: it takes room as bodies of messages do, though not theirs, and so counts against the memory
//! watermark, waits its turn, and has its user's share.

use std::sync::Arc;
use std::time::Duration;

use leveret_broker::bodies::{FREE_BYTES, Kind, Question, RoomAnswer};
use leveret_broker::message::{ConnectionId, Outbox, ToSession};
use leveret_server::node::{Node, Recipient};
use leveret_server::runner::with_runner;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

/// How long a request stands in line for room.
const PATIENCE: Duration = Duration::from_secs(30);

/// Room of one request. Given back when it is dropped, on the thread of the management.
#[derive(Debug)]
pub(crate) struct Held {
    node: Arc<Node>,
    id: ConnectionId,
    user: Box<str>,
    /// Had without asking, [`FREE_BYTES`] at most: a request has so much, however often it takes a little.
    free: u64,
    granted: u64,
    asked: u64,
}

impl Held {
    /// None yet; it will be of this user's share.
    pub(crate) fn nothing(node: &Arc<Node>, user: &str) -> Self {
        let (node, id) = (Arc::clone(node), node.new_id());
        Self { node, id, user: user.into(), free: 0, granted: 0, asked: 0 }
    }

    /// Bytes that there is room for.
    pub(crate) fn bytes(&self) -> u64 {
        self.free + self.granted
    }

    /// Takes room for so many bytes more, in its turn; a little needs none. False if that takes too long.
    pub(crate) async fn take(&mut self, bytes: u64) -> bool {
        if self.free.saturating_add(bytes) <= FREE_BYTES {
            self.free += bytes;
            return true;
        }
        let until = Instant::now() + PATIENCE;
        let (sender, mut letters) = mpsc::unbounded_channel();
        self.node.register(self.id, Recipient::Request(sender));
        let mut outbox = Outbox::default();
        let holds = [self.granted, 0, 0];
        let question = Question { connection: self.id, number: 0, user: &self.user, holds };
        let answer = self.node.requests.ask(question, Kind::Body, bytes, &mut outbox);
        match answer {
            RoomAnswer::Granted => self.gets(bytes),
            RoomAnswer::Waits => self.asked = bytes,
        }
        with_runner(&self.node, |runner| runner.run_outbox(outbox));
        if self.asked == 0 {
            return true;
        }
        match timeout_at(until, letters.recv()).await {
            Ok(Some(ToSession::Room { is_granted, .. })) => {
                // With a refusal it is given back, as what is granted is.
                let asked = std::mem::take(&mut self.asked);
                self.gets(asked);
                is_granted
            }
            _ => false,
        }
    }

    fn gets(&mut self, bytes: u64) {
        self.node.count_held_by_requests(self.granted, self.granted + bytes);
        self.granted += bytes;
    }

    /// Has room for so many bytes from now on, no more and no less: more of it comes in its turn. False if that takes too
    /// long.
    pub(crate) async fn grow(&mut self, bytes: u64) -> bool {
        if bytes > self.bytes() {
            return self.take(bytes - self.bytes()).await;
        }
        self.keep(bytes);
        true
    }

    /// Whether it keeps others waiting: of the same user, or who have nothing.
    pub(crate) fn is_awaited(&self) -> bool {
        self.node.requests.is_awaited(&self.user, [self.granted, 0, 0])
    }

    /// Takes so many bytes more if they are there at once.
    pub(crate) fn take_now(&mut self, bytes: u64) -> bool {
        let is_there = self.node.requests.take_now(&self.user, bytes);
        self.gets(if is_there { bytes } else { 0 });
        is_there
    }

    /// Keeps no more than so many bytes.
    pub(crate) fn keep(&mut self, bytes: u64) {
        self.free = self.free.min(bytes);
        let bytes = bytes - self.free;
        let more = self.granted.saturating_sub(bytes);
        if more > 0 {
            self.node.count_held_by_requests(self.granted, bytes);
            self.granted = bytes;
            let mut outbox = Outbox::default();
            self.node.requests.give_back(&self.user, Kind::Body, more, &mut outbox);
            with_runner(&self.node, |runner| runner.run_outbox(outbox));
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.node.forget(self.id);
        if self.asked > 0 {
            let mut outbox = Outbox::default();
            self.node.requests.withdraw(self.id, &self.user, Kind::Body, self.asked, &mut outbox);
            with_runner(&self.node, |runner| runner.run_outbox(outbox));
        }
        self.keep(0);
    }
}
