//! What unfinished handshakes take of the node, in fair shares: whoever begins one has shown nothing yet.
//!
//! - Time. A step of a handshake is up to some milliseconds of a processor (a signature, a check of a certificate). Only
//!   as many run at once as there are threads, and the threads look at their other work between two of them. Steps that wait take turns by
//!   address, so a client waits for one of each other address, and not for all that a flood has sent.
//! - Memory. A client may send long messages in pieces. What exceeds [`FREE`] needs room, of which an address has a part.

use std::net::IpAddr;
use std::sync::Arc;

use leveret_auth::network_of;
use rustls::ServerConnection;
use tokio::sync::oneshot;

use super::HandshakeError;
use crate::locks::{Rank, Ranked};
use crate::login::{Line, Room, Taken};

/// Bytes that every client may send for its handshake. A hello has half a kibibyte to four, a certificate one to three.
const FREE: usize = 8 << 10;

/// What all unfinished handshakes may have sent beyond that, and those of one address. One handshake has 64 KiB at most.
const ALL: Taken = Taken { count: usize::MAX, bytes: 32 << 20 };
const OF_SOURCE: Taken = Taken { count: usize::MAX, bytes: 8 << 20 };

/// After so many who came to wait, those who have gone are taken out of the line: it stays within twice as many as wait.
const SWEPT_EVERY: usize = 1024;

/// The shares of the listeners that have them in common.
#[derive(Debug)]
pub struct Shares(Ranked<State>);

#[derive(Debug)]
struct State {
    /// Steps that may begin at once.
    free: usize,
    waiting: Line<oneshot::Sender<Step>>,
    /// How many have come to wait.
    came: usize,
    room: Room,
}

impl Shares {
    /// So many steps run at once.
    pub fn new(steps: usize) -> Arc<Self> {
        let (waiting, room) = (Line::default(), Room::new(ALL, OF_SOURCE));
        let state = State { free: steps.max(1), waiting, came: 0, room };
        Arc::new(Self(Ranked::new(Rank::Handshakes, state)))
    }

    /// Waits for the turn of one more step of a client at this address.
    async fn turn(self: &Arc<Self>, address: IpAddr) -> Option<Step> {
        let waiting = {
            let mut state = self.0.lock();
            if let Some(left) = state.free.checked_sub(1) {
                state.free = left;
                return Some(Step(Some(Arc::clone(self))));
            }
            state.came = state.came.wrapping_add(1);
            if state.came.is_multiple_of(SWEPT_EVERY) {
                state.waiting.retain(|sender| !sender.is_closed());
            }
            let (sender, receiver) = oneshot::channel();
            state.waiting.push(Some(network_of(address)), "", sender);
            receiver
        };
        // If the handshake gives up, the sender stays in the line until there is a turn for it, or the line is swept.
        waiting.await.ok()
    }

    /// Runs a step in its turn.
    pub async fn step<T>(self: &Arc<Self>, address: IpAddr, step: impl FnOnce() -> T) -> T {
        let turn = self.turn(address).await;
        let done = step();
        // The thread looks at its sockets before it goes on here: only then the next step begins.
        tokio::task::yield_now().await;
        drop(turn);
        done
    }

    /// A step is over: the next one begins.
    fn pass_on(self: Arc<Self>) {
        let mut state = self.0.lock();
        while let Some(next) = state.waiting.pop() {
            let Err(mut unwanted) = next.send(Step(Some(Arc::clone(&self)))) else { return };
            // Who waited has gone; the step is not begun, and not to be ended.
            unwanted.0 = None;
        }
        state.free += 1;
    }
}

/// The right to run a step, until it is dropped.
#[derive(Debug)]
struct Step(Option<Arc<Shares>>);

impl Drop for Step {
    fn drop(&mut self) {
        if let Some(shares) = self.0.take() {
            shares.pass_on();
        }
    }
}

/// What one unfinished handshake has.
#[derive(Debug)]
pub(super) struct Share {
    of: Arc<Shares>,
    address: IpAddr,
    /// Bytes that the client sent.
    received: usize,
}

impl Share {
    pub(super) fn new(of: Arc<Shares>, address: IpAddr) -> Self {
        Self { of, address, received: 0 }
    }

    /// The client sent more.
    pub(super) fn received(&mut self, bytes: usize) -> Result<(), HandshakeError> {
        self.give_back();
        self.received += bytes;
        let Some(more) = self.counted() else { return Ok(()) };
        let source = Some(network_of(self.address));
        let has_room = self.of.0.lock().room.take(source, more);
        if has_room {
            return Ok(());
        }
        // Nothing of it is counted.
        self.received = 0;
        Err(HandshakeError::NoRoom)
    }

    /// Looks at what came, in its turn.
    pub(super) async fn process(
        &self,
        connection: &mut ServerConnection,
    ) -> Result<(), rustls::Error> {
        self.of.step(self.address, || connection.process_new_packets().map(drop)).await
    }

    /// Bytes that need room.
    fn counted(&self) -> Option<usize> {
        self.received.checked_sub(FREE).filter(|&more| more > 0)
    }

    fn give_back(&self) {
        if let Some(more) = self.counted() {
            let source = Some(network_of(self.address));
            self.of.0.lock().room.give_back(source, more);
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::io::Write as _;
    use std::pin::Pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Waker};

    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn run<T>(test: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(test)
    }

    /// Who comes after a flood waits for one step of it; and who gave up waiting keeps nobody from a turn.
    #[test]
    fn steps_take_turns_by_address() {
        run(async {
            let shares = Shares::new(1);
            let order = RefCell::new(Vec::new());
            let (shares, order) = (&shares, &order);
            let step = |last: u8| shares.step(address(last), move || order.borrow_mut().push(last));
            let gone = async { assert!(!is_ready(Box::pin(step(9)).as_mut())) };
            tokio::join!(step(1), step(1), step(1), gone, step(1), step(2), step(3));
            assert_eq!(*order.borrow(), [1, 1, 2, 3, 1, 1]);
            assert_eq!(shares.0.lock().free, 1);
            assert!(shares.0.lock().waiting.pop().is_none());
        });
    }

    /// Whoever is given a turn and has gone at that moment passes it on.
    #[test]
    fn a_turn_is_not_lost() {
        run(async {
            let shares = Shares::new(1);
            let first = shares.turn(address(1)).await;
            let mut second = Box::pin(shares.turn(address(2)));
            assert!(!is_ready(second.as_mut()));
            drop(first);
            assert_eq!(shares.0.lock().free, 0, "it is the second one's");
            drop(second);
            assert_eq!(shares.0.lock().free, 1);
        });
    }

    fn is_ready(future: Pin<&mut impl Future>) -> bool {
        future.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    /// However many are ready at once.
    #[test]
    fn the_thread_looks_at_its_sockets_between_steps() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let done = Arc::new(AtomicUsize::new(0));
        let before = runtime.block_on(async {
            let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
            theirs.set_nonblocking(true).unwrap();
            let theirs = tokio::net::UnixStream::from_std(theirs).unwrap();
            let shares = Shares::new(2);
            for _ in 0..200 {
                let (shares, done) = (Arc::clone(&shares), Arc::clone(&done));
                tokio::spawn(async move {
                    shares.step(address(1), || done.fetch_add(1, Ordering::Relaxed)).await
                });
            }
            ours.write_all(b"x").unwrap();
            theirs.readable().await.unwrap();
            done.load(Ordering::Relaxed)
        });
        assert!(before < 20, "{before} steps were first");
    }

    #[test]
    fn one_address_has_a_part_of_the_room() {
        let shares = Shares::new(1);
        let long = |last: u8, of: &mut Vec<Share>| {
            let mut share = Share::new(Arc::clone(&shares), address(last));
            let has_room = (0..16).all(|_| share.received(4 << 10).is_ok());
            of.push(share);
            has_room
        };
        let mut all = Vec::new();
        let counts: Vec<_> =
            (0..6).map(|last| (0..1000).take_while(|_| long(last, &mut all)).count()).collect();
        // Each counts 56 KiB; what was refused in the middle is not counted.
        assert_eq!(counts[..4], [146; 4]);
        assert!(counts[4] < 10, "{counts:?}");
        // Those that are short need none.
        let mut short = Share::new(Arc::clone(&shares), address(0));
        assert!(short.received(FREE).is_ok());
        assert!(short.received(1 << 20).is_err());
        drop(all);
        assert!(long(0, &mut Vec::new()));
        assert!(shares.0.lock().room.is_empty());
    }
}
