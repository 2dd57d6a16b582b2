//! What unfinished handshakes take of the node, in fair shares: whoever begins one has shown nothing yet.
//!
//! - Time. A step of a handshake is up to some milliseconds of a processor (a signature, a check of a certificate). A thread
//!   looks at its other work between two of them. Steps that wait take turns by address, so a client waits for one of each other
//!   address, and not for all that a flood has sent. Each thread has turns of its own: one that stalls keeps none from others.
//! - Memory. A client may send long messages in pieces. What exceeds [`FREE`] needs room, of which an address has a part. All
//!   threads have the room together.

use std::net::IpAddr;
use std::sync::Arc;

use leveret_auth::network_of;
use rustls::{ConnectionCommon, SideData};
use tokio::sync::oneshot;

use super::HandshakeError;
use crate::locks::{Rank, Ranked};
use crate::login::{NetworkLine, Room, RoomUse};

/// Bytes that every client may send for its handshake. A hello has half a kibibyte to four, a certificate one to three.
const FREE: usize = 8 << 10;

/// What all unfinished handshakes may have sent beyond that, and those of one address. One handshake has 64 KiB at most.
const ALL: RoomUse = RoomUse { count: usize::MAX, bytes: 32 << 20 };
const OF_NETWORK: RoomUse = RoomUse { count: usize::MAX, bytes: 8 << 20 };

/// After so many who came to wait, those who have gone are taken out of the line: it stays within twice as many as wait.
const SWEPT_EVERY: usize = 1024;

/// The shares of a thread, of all listeners whose connections it has.
#[derive(Debug)]
pub struct HandshakeShares {
    turns: Ranked<Turns>,
    /// Of all threads.
    room: Arc<Ranked<Room>>,
}

#[derive(Debug)]
struct Turns {
    /// Nobody has one.
    is_free: bool,
    waiting: NetworkLine<oneshot::Sender<Step>>,
    /// How many have come to wait.
    came: usize,
}

impl HandshakeShares {
    /// Those of one thread that has its room for itself.
    pub fn of_one() -> Arc<Self> {
        Self::in_room(&Arc::new(Ranked::new(Rank::Handshakes, Room::halved(ALL, OF_NETWORK))))
    }

    /// Those of so many threads, which have a room in common.
    pub fn of_threads(count: usize) -> Arc<[Arc<Self>]> {
        let room = Arc::new(Ranked::new(Rank::Handshakes, Room::halved(ALL, OF_NETWORK)));
        (0..count.max(1)).map(|_| Self::in_room(&room)).collect()
    }

    fn in_room(room: &Arc<Ranked<Room>>) -> Arc<Self> {
        let turns = Turns { is_free: true, waiting: NetworkLine::default(), came: 0 };
        Arc::new(Self { turns: Ranked::new(Rank::Handshakes, turns), room: Arc::clone(room) })
    }

    /// Waits for the turn of one more step of a client at this address.
    async fn turn(self: &Arc<Self>, address: IpAddr) -> Option<Step> {
        let waiting = {
            let mut turns = self.turns.lock();
            if std::mem::take(&mut turns.is_free) {
                return Some(Step(Some(Arc::clone(self))));
            }
            turns.came = turns.came.wrapping_add(1);
            if turns.came.is_multiple_of(SWEPT_EVERY) {
                turns.waiting.retain(|sender| !sender.is_closed());
            }
            let (sender, receiver) = oneshot::channel();
            turns.waiting.push(Some(network_of(address)), "", sender);
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
        let mut turns = self.turns.lock();
        while let Some(next) = turns.waiting.pop() {
            let Err(mut unwanted) = next.send(Step(Some(Arc::clone(&self)))) else { return };
            // Who waited has gone; the step is not begun, and not to be ended.
            unwanted.0 = None;
        }
        turns.is_free = true;
    }
}

/// The right to run a step, until it is dropped.
#[derive(Debug)]
struct Step(Option<Arc<HandshakeShares>>);

impl Drop for Step {
    fn drop(&mut self) {
        if let Some(shares) = self.0.take() {
            shares.pass_on();
        }
    }
}

/// What one unfinished handshake has.
#[derive(Debug)]
pub struct HandshakeShare {
    of: Arc<HandshakeShares>,
    address: IpAddr,
    /// Bytes that the client sent.
    received: usize,
}

impl HandshakeShare {
    /// Of a handshake with a client at this address.
    pub fn new(of: Arc<HandshakeShares>, address: IpAddr) -> Self {
        Self { of, address, received: 0 }
    }

    /// The client sent more.
    pub fn received(&mut self, bytes: usize) -> Result<(), HandshakeError> {
        self.give_back();
        self.received += bytes;
        let Some(more) = self.counted() else { return Ok(()) };
        let network = Some(network_of(self.address));
        let has_room = self.of.room.lock().take(network, more);
        if has_room {
            return Ok(());
        }
        // Nothing of it is counted.
        self.received = 0;
        Err(HandshakeError::NoRoom)
    }

    /// Looks at what came, in its turn.
    pub(super) async fn process<S: SideData>(
        &self,
        connection: &mut ConnectionCommon<S>,
    ) -> Result<(), rustls::Error> {
        self.of.step(self.address, || connection.process_new_packets().map(drop)).await
    }

    /// Bytes that need room.
    fn counted(&self) -> Option<usize> {
        self.received.checked_sub(FREE).filter(|&more| more > 0)
    }

    fn give_back(&self) {
        if let Some(more) = self.counted() {
            let network = Some(network_of(self.address));
            self.of.room.lock().give_back(network, more);
        }
    }
}

impl Drop for HandshakeShare {
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
            let shares = HandshakeShares::of_one();
            let order = RefCell::new(Vec::new());
            let (shares, order) = (&shares, &order);
            let step = |last: u8| shares.step(address(last), move || order.borrow_mut().push(last));
            let gone = async { assert!(!is_ready(Box::pin(step(9)).as_mut())) };
            tokio::join!(step(1), step(1), step(1), gone, step(1), step(2), step(3));
            assert_eq!(*order.borrow(), [1, 1, 2, 3, 1, 1]);
            assert!(shares.turns.lock().is_free);
            assert!(shares.turns.lock().waiting.pop().is_none());
        });
    }

    /// Whoever is given a turn and has gone at that moment passes it on.
    #[test]
    fn a_turn_is_not_lost() {
        run(async {
            let shares = HandshakeShares::of_one();
            let first = shares.turn(address(1)).await;
            let mut second = Box::pin(shares.turn(address(2)));
            assert!(!is_ready(second.as_mut()));
            drop(first);
            assert!(!shares.turns.lock().is_free, "it is the second one's");
            drop(second);
            assert!(shares.turns.lock().is_free);
        });
    }

    fn is_ready(future: Pin<&mut impl Future>) -> bool {
        future.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    /// What a thread does not get on with keeps no other one waiting; the room is for all.
    #[test]
    fn threads_have_turns_of_their_own() {
        run(async {
            let all = HandshakeShares::of_threads(2);
            let (stalls, other) = (&all[0], &all[1]);
            let _held = stalls.turn(address(1)).await;
            assert!(!is_ready(Box::pin(stalls.turn(address(2))).as_mut()));
            assert!(is_ready(Box::pin(other.turn(address(2))).as_mut()));
            let long = |of: &Arc<HandshakeShares>| {
                let mut share = HandshakeShare::new(Arc::clone(of), address(3));
                share.received(FREE + OF_NETWORK.bytes).map(|()| share)
            };
            let held = long(stalls);
            assert!(held.is_ok() && long(other).is_err());
            drop(held);
            assert!(long(other).is_ok());
        });
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
            let shares = HandshakeShares::of_one();
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
        let shares = HandshakeShares::of_one();
        let long = |last: u8, of: &mut Vec<HandshakeShare>| {
            let mut share = HandshakeShare::new(Arc::clone(&shares), address(last));
            let has_room = (0..16).all(|_| share.received(4 << 10).is_ok());
            of.push(share);
            has_room
        };
        let mut all = Vec::new();
        let counts: Vec<_> =
            (0..9).map(|last| (0..1000).take_while(|_| long(last, &mut all)).count()).collect();
        // Each counts 56 KiB; what was refused in the middle is not counted. After three, each has half of what is left.
        assert_eq!(counts, [146, 146, 146, 73, 37, 18, 9, 5, 2]);
        // Those that are short need none.
        let mut short = HandshakeShare::new(Arc::clone(&shares), address(0));
        assert!(short.received(FREE).is_ok());
        assert!(short.received(1 << 20).is_err());
        drop(all);
        assert!(long(0, &mut Vec::new()));
        assert!(shares.room.lock().is_empty());
    }
}
