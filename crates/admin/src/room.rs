//! What requests and answers hold: it takes room as bodies of messages do, though not theirs, and so counts against the memory
//! watermark and waits its turn.

use std::sync::Arc;
use std::time::Duration;

use leveret_broker::bodies::{FREE_BYTES, Kind, Question, RoomAnswer};
use leveret_broker::message::{ConnectionId, Outbox, ToSession};
use leveret_server::node::{Node, Recipient};
use leveret_server::runner::with_runner;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, timeout_at};

/// How long a request stands in line for room.
const PATIENCE: Duration = Duration::from_secs(30);

/// What one user's requests may hold of the room, in quarters: what it does not read leaves the rest to others.
const QUARTERS: u64 = 3;

/// Shares are counted in pieces of so many bytes.
const PIECE: u64 = 1 << 10;

fn pieces(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(PIECE)).unwrap_or(u32::MAX)
}

/// The part of the room that one user's requests take theirs from.
#[derive(Debug)]
pub(crate) struct Share {
    free: Semaphore,
    all: u32,
}

impl Share {
    /// Of the room as it is now.
    pub(crate) fn new(node: &Node) -> Self {
        let all = pieces(node.requests.limit() / 4 * QUARTERS);
        Self { free: Semaphore::new(all as usize), all }
    }
}

/// Room of one request. Given back when it is dropped, on the thread of the management.
#[derive(Debug)]
pub(crate) struct Held {
    node: Arc<Node>,
    id: ConnectionId,
    share: Option<Arc<Share>>,
    of_share: u32,
    granted: u64,
    asked: u64,
}

impl Held {
    /// None yet; it will be of a user's share, if there is one.
    pub(crate) fn nothing(node: &Arc<Node>, share: Option<Arc<Share>>) -> Self {
        let (node, id) = (Arc::clone(node), node.new_id());
        Self { node, id, share, of_share: 0, granted: 0, asked: 0 }
    }

    /// Takes room for so many bytes more, in its turn; a little needs none. False if that takes too long.
    pub(crate) async fn take(&mut self, bytes: u64) -> bool {
        if bytes <= FREE_BYTES {
            return true;
        }
        let until = Instant::now() + PATIENCE;
        if !self.takes_of_share(bytes, until).await {
            return false;
        }
        let (sender, mut letters) = mpsc::unbounded_channel();
        self.node.register(self.id, Recipient::Request(sender));
        let mut outbox = Outbox::default();
        let holds = [self.granted, 0, 0];
        let question = Question { connection: self.id, number: 0, user: "", holds };
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

    /// What is more than the whole share gets all of it.
    async fn takes_of_share(&mut self, bytes: u64, until: Instant) -> bool {
        let Some(share) = &self.share else { return true };
        let more = pieces(bytes).min(share.all - self.of_share);
        let Ok(Ok(permit)) = timeout_at(until, share.free.acquire_many(more)).await else {
            return false;
        };
        permit.forget();
        self.of_share += more;
        true
    }

    fn gets(&mut self, bytes: u64) {
        self.node.count_held_by_requests(self.granted, self.granted + bytes);
        self.granted += bytes;
    }

    /// Has room for so many bytes from now on, no more and no less: more of it comes in its turn. False if that takes too
    /// long.
    pub(crate) async fn grow(&mut self, bytes: u64) -> bool {
        if bytes > self.granted {
            return self.take(bytes - self.granted).await;
        }
        self.keep(bytes);
        true
    }

    /// Takes so many bytes more if they are there at once.
    pub(crate) fn take_now(&mut self, bytes: u64) -> bool {
        let is_there = self.node.requests.take_now("", bytes);
        self.gets(if is_there { bytes } else { 0 });
        is_there
    }

    /// Keeps no more than so many bytes.
    pub(crate) fn keep(&mut self, bytes: u64) {
        let more = self.granted.saturating_sub(bytes);
        if more > 0 {
            self.node.count_held_by_requests(self.granted, bytes);
            self.granted = bytes;
            let mut outbox = Outbox::default();
            self.node.requests.give_back("", Kind::Body, more, &mut outbox);
            with_runner(&self.node, |runner| runner.run_outbox(outbox));
        }
        if let Some(share) = &self.share {
            let left = pieces(bytes).min(self.of_share);
            share.free.add_permits((self.of_share - left) as usize);
            self.of_share = left;
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.node.forget(self.id);
        if self.asked > 0 {
            let mut outbox = Outbox::default();
            self.node.requests.withdraw(self.id, "", Kind::Body, self.asked, &mut outbox);
            with_runner(&self.node, |runner| runner.run_outbox(outbox));
        }
        self.keep(0);
    }
}
