//! One AMQP connection: a session, its socket, and the task that waits for both.
//!
//! Hot path: one read, one turn, one vectored write; buffers belong to the thread, not to the
//! connection, so an idle one holds none.
//!
//! The socket is read and written in the connection's turn by whichever thread runs it. The
//! connection's own task only waits: for bytes, for room in a full socket, for the next timeout.

use std::io::{self, Read as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use leveret_amqp::outbuf::OutBuf;
use leveret_broker::flow::Alarm;
use leveret_broker::message::{ConnectionId, Outbox, ToSession};
use leveret_node::connection::{self, Written};
use leveret_queue::Time;
use leveret_session::{
    Brought, ConnectionFacts, ConnectionNumbers, Context, End, Passed, Session, SessionTotals,
};
use leveret_topology::{Topology, VhostId};
use serde::{Deserialize, Serialize};
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

use crate::buffers::Buffers;
use crate::clock::{now, now_with_us, wall};
use crate::lease::NamesHold;
use crate::locks::Rank;
use crate::node::Node;
use crate::places::ConnectionPlace;
use crate::proxy::Ends;
use crate::readiness::register;
use crate::reading::{Body, READ_MIN, SocketReader};
use crate::runner::with_runner;
use crate::tls::TlsStream;
use crate::turn::{Actor, UnheardLetter};
use crate::unread::Unread;
use crate::writing;

/// How long a client has to close its end after a close in order.
const LINGER: Duration = Duration::from_secs(5);

/// Longer records have memory of their own in the log; a shorter one in output that waits for its socket
/// would pin the block it lies in, which nobody counts once the log is done with it.
const LARGE: usize = 32 << 10;

/// What a connection finds in its inbox.
#[derive(Debug)]
pub enum Letter {
    /// From the broker.
    Session(ToSession),
    /// The socket may have bytes.
    Readable,
    /// The socket may have room.
    Writable,
    /// The client sends nothing more: it is gone, or as good as gone.
    PeerClosed,
    /// Look at the clock.
    Timeout,
    /// The memory alarm changed: look at it.
    Alarm,
    /// There was more to do than one turn may.
    More,
}

/// When a connection wants its next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// With a letter.
    Letter,
    /// At once.
    Now,
    /// At once, for one more piece of very much output.
    Piece,
}

/// A connection, shared by the threads.
#[derive(Debug)]
pub struct Connection {
    id: ConnectionId,
    peer: SocketAddr,
    local: SocketAddr,
    is_encrypted: bool,
    socket: AsyncFd<TcpStream>,
    /// State and inbox.
    pub actor: Actor<ConnectionState, Letter>,
    /// Tells the connection's own task to look at those below again.
    wake: Notify,
    /// What the own task told is heard once for each turn.
    told: UnheardLetter,
    waits_for_room: AtomicBool,
    /// Bytes, or their end, wait in the socket, and the session does not want them now.
    has_unread: AtomicBool,
    /// The session is blocked by the alarm, for who knows how long: the client's end is looked for.
    watches_end: AtomicBool,
    is_done: AtomicBool,
    /// All is written; what the client still sends is read to its end.
    lingers: AtomicBool,
    /// Next timeout, ms since the epoch; `u64::MAX` for never.
    due_ms: AtomicU64,
    /// Turns so far; grows as one begins, under the lock of the state.
    turns: AtomicU64,
    place: ConnectionPlace,
}

/// What a connection takes that does nothing, with a channel or two: measured, 7 to 12 KB by how many are
/// opened at a time. A crowd of them is counted, so that the watermark sees it.
const IDLE_BYTES: u64 = 8 << 10;

/// What TLS takes besides: its keys, and a buffer for a part of a record.
const TLS_BYTES: u64 = 8 << 10;

/// What only a turn of the connection touches.
#[derive(Debug)]
pub struct ConnectionState {
    session: Box<Session>,
    /// Bytes read and not taken yet: a partial frame, or all that came while the session waited.
    input: Bytes,
    /// A body of which not all is read: `input` is empty meanwhile.
    body: Option<Body>,
    /// Bytes that did not fit into the socket.
    output: OutBuf,
    /// Encrypts and decrypts, where the listener asks for it.
    tls: Option<Box<TlsStream>>,
    /// Bytes of all this, as the node counts them.
    held_bytes: u64,
    /// Bytes to ask the socket for.
    read_bytes: usize,
    may_have_bytes: bool,
    is_over: bool,
    /// The client was told to go by a node without a lease, which says nothing more.
    is_leaving: bool,
    io: Io,
    /// What the session counted is among the node's totals of ended connections.
    is_counted: bool,
}

/// What went through a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Io {
    /// Bytes read.
    pub recv_oct: u64,
    /// Reads that brought some.
    pub recv_cnt: u64,
    /// Bytes written.
    pub send_oct: u64,
    /// Turns that wrote some.
    pub send_cnt: u64,
    /// Bytes that wait for room in the socket.
    pub send_pend: u64,
}

/// What statistics are told of a connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sampled {
    /// [`Connection::turns`]: while it stays, so does the rest.
    pub turns: u64,
    /// What the session counted.
    pub session: ConnectionNumbers,
    /// What its socket did.
    pub io: Io,
    /// What it holds, in bytes.
    pub held_bytes: u64,
    /// Letters that wait for its turn.
    pub letters: u64,
}

/// What a connection leaves to the node.
#[derive(Debug)]
pub(crate) struct Last {
    pub(crate) vhost: VhostId,
    pub(crate) totals: SessionTotals,
    pub(crate) passed: Vec<Passed>,
    pub(crate) io: Io,
}

/// What a turn borrows from its thread.
pub struct Workplace<'a> {
    /// For output; empty.
    pub out: &'a mut OutBuf,
    /// For letters; empty.
    pub outbox: &'a mut Outbox,
    /// Memory to read into.
    pub buffers: &'a Buffers,
    /// Memory for bodies that stay where they were read to.
    pub bodies: &'a Buffers,
    /// A block for encrypted bytes.
    pub cipher: &'a mut Vec<u8>,
    /// Counts bodies in output that waits.
    pub unread: &'a Unread,
    /// The names.
    pub topology: &'a Topology,
    /// Why publishers are blocked, if they are.
    pub alarm: Alarm,
    /// Of a node of sessions: whether they may take what clients send.
    pub(crate) names: Option<&'a NamesHold>,
}

impl Connection {
    /// For a socket in non-blocking mode, whose ends are `ends` (or are behind a proxy); to be made in the
    /// runtime that will wait for it.
    pub(crate) fn new(
        id: ConnectionId,
        socket: TcpStream,
        ends: Ends,
        mut tls: Option<Box<TlsStream>>,
        session: Session,
        place: ConnectionPlace,
    ) -> io::Result<Self> {
        let is_encrypted = tls.is_some();
        let early = tls.as_mut().map(|tls| tls.early()).transpose()?;
        let state = ConnectionState {
            session: Box::new(session),
            input: early.map(Bytes::from).unwrap_or_default(),
            body: None,
            output: OutBuf::new(),
            tls,
            held_bytes: 0,
            read_bytes: READ_MIN,
            may_have_bytes: false,
            is_over: false,
            is_leaving: false,
            io: Io::default(),
            is_counted: false,
        };
        Ok(Self {
            id,
            peer: ends.source,
            local: ends.destination,
            is_encrypted,
            socket: register(socket)?,
            actor: Actor::new(Rank::Connection, state),
            wake: Notify::new(),
            told: UnheardLetter::default(),
            waits_for_room: AtomicBool::new(false),
            has_unread: AtomicBool::new(false),
            watches_end: AtomicBool::new(false),
            is_done: AtomicBool::new(false),
            lingers: AtomicBool::new(false),
            due_ms: AtomicU64::new(u64::MAX),
            turns: AtomicU64::new(0),
            place,
        })
    }

    /// Its place among those of all connections.
    pub(crate) fn place(&self) -> &ConnectionPlace {
        &self.place
    }

    /// Its name.
    pub fn id(&self) -> ConnectionId {
        self.id
    }

    /// The client's end of the socket.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Our end of the socket.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Whether it is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.is_encrypted
    }

    /// RabbitMQ's name for it: `127.0.0.1:50000 -> 127.0.0.1:5672`.
    pub fn name(&self) -> String {
        format!("{} -> {}", self.peer, self.local)
    }

    /// For listings. Waits for the turn that runs.
    pub fn facts(&self) -> ConnectionFacts {
        self.actor.state().session.facts()
    }

    /// Who logged in; empty before. Waits for the turn that runs.
    pub fn user(&self) -> String {
        self.actor.state().session.user().to_owned()
    }

    /// Who logged in, and to which vhost; each is empty before. Waits for the turn that runs.
    pub(crate) fn with_names<T>(&self, f: impl FnOnce(&str, &str) -> T) -> T {
        let state = self.actor.state();
        f(state.session.user(), state.session.vhost())
    }

    /// For statistics. Waits for the turn that runs. None once the connection is over and the node has
    /// its totals.
    pub fn sample(&self) -> Option<Sampled> {
        let letters = self.actor.letters() as u64;
        let state = self.actor.state();
        if state.is_counted {
            return None;
        }
        let send_pend = state.output.len() as u64;
        let io = Io { send_pend, ..state.io };
        let (session, held_bytes) = (state.session.numbers(), state.held_bytes);
        Some(Sampled { turns: self.turns(), session, io, held_bytes, letters })
    }

    /// How many turns it had: nothing of it changes but in a turn.
    pub fn turns(&self) -> u64 {
        self.turns.load(Ordering::Acquire)
    }

    /// The connection is over: what it leaves to the node's totals. Once.
    pub(crate) fn last(state: &mut ConnectionState) -> Option<Last> {
        if std::mem::replace(&mut state.is_counted, true) {
            return None;
        }
        let numbers = state.session.numbers();
        let mut totals = numbers.totals;
        totals.connections_closed = totals.connections_opened;
        Some(Last { vhost: numbers.vhost, totals, passed: numbers.passed, io: state.io })
    }

    /// Waits for the socket and the clock until the connection is over.
    pub async fn drive(self: Arc<Self>, node: Arc<Node>) {
        self.tell(&node, Letter::Timeout);
        while !self.is_done.load(Ordering::Acquire) {
            if !self.told.is_heard() {
                self.wake.notified().await;
                continue;
            }
            let letter = tokio::select! {
                biased;
                // The end of the client's bytes stays ready for ever: waiting for it while the session
                // does not read would be a busy loop.
                ready = self.socket.readable(), if !self.has_unread.load(Ordering::Acquire) => match ready {
                    Ok(mut guard) => { guard.clear_ready(); Letter::Readable }
                    Err(_) => break,
                },
                ready = self.socket.writable(), if self.waits_for_room.load(Ordering::Acquire) => match ready {
                    Ok(mut guard) => { guard.clear_ready(); Letter::Writable }
                    Err(_) => break,
                },
                ready = self.socket.readable(), if self.watches_end.load(Ordering::Acquire) => match ready {
                    Ok(mut guard) => {
                        let is_closed = guard.ready().is_read_closed();
                        guard.clear_ready();
                        // Bytes are told too: their event was taken from whoever wants them next.
                        if is_closed { Letter::PeerClosed } else { Letter::Readable }
                    }
                    Err(_) => break,
                },
                () = self.wake.notified() => continue,
                () = until(self.due_ms.load(Ordering::Acquire)) => {
                    if self.due_ms.load(Ordering::Acquire) > now().ms() {
                        continue; // it was put off
                    }
                    Letter::Timeout
                }
            };
            self.tell(&node, letter);
        }
        if self.lingers.load(Ordering::Acquire) {
            // Whatever comes of it, the connection is over.
            let _ = tokio::time::timeout(LINGER, self.linger()).await;
        }
    }

    /// A letter of the own task, which tells nothing more before a turn has heard it.
    fn tell(self: &Arc<Self>, node: &Arc<Node>, letter: Letter) {
        self.told.tell();
        with_runner(node, |runner| runner.run_connection(self, letter));
    }

    /// Reads and throws away what the client still sends, until it closes its end too.
    ///
    /// A client may have frames of other channels on their way behind its `connection.close`. A socket
    /// closed with unread bytes resets the connection, and the reset overtakes our `close-ok`.
    async fn linger(&self) -> io::Result<()> {
        let mut thrown_away = [0_u8; 4096];
        loop {
            let mut guard = self.socket.readable().await?;
            match guard.get_inner().read(&mut thrown_away) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => guard.clear_ready(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// One turn over `letters`: takes them, reads once, and leaves letters in `work.outbox` and bytes in
    /// `work.out`, for [`write`](Self::write) to send after the letters were posted.
    pub(crate) fn turn(
        &self,
        state: &mut ConnectionState,
        letters: &mut Vec<Letter>,
        work: &mut Workplace<'_>,
    ) {
        self.turns.store(self.turns.load(Ordering::Relaxed) + 1, Ordering::Release);
        if state.is_over {
            let letters = letters.drain(..).filter_map(|letter| match letter {
                Letter::Session(letter) => Some(letter),
                _ => None,
            });
            connection::undelivered(self.id, letters, work.outbox);
            return;
        }
        if !state.output.is_empty() {
            std::mem::swap(work.out, &mut state.output);
        }
        let ConnectionState { session, input, body, may_have_bytes, read_bytes, tls, io, .. } =
            state;
        let (now, now_us) = now_with_us();
        let mut cx = Context {
            topology: work.topology,
            now,
            now_us,
            wall: wall(now),
            out: &mut *work.out,
            outbox: &mut *work.outbox,
        };
        for letter in letters.drain(..) {
            match letter {
                Letter::Session(letter) => session.receive(letter, &mut cx),
                Letter::Readable => *may_have_bytes = true,
                Letter::PeerClosed => {
                    *may_have_bytes = true;
                    session.peer_closed(&mut cx);
                }
                Letter::Timeout => session.timeout(&mut cx),
                // The alarm as it is now, not as it was when the letter was written: letters about one
                // change and the next may come in any order.
                Letter::Alarm => session.receive(ToSession::Alarm(work.alarm), &mut cx),
                Letter::Writable | Letter::More => {}
            }
        }
        let mut reader = SocketReader {
            socket: self.socket.get_ref(),
            tls: tls.as_deref_mut(),
            body,
            may_have_bytes,
            names: work.names,
            read_bytes,
            io,
            buffers: work.buffers,
            bodies: work.bodies,
            cipher: &mut *work.cipher,
            taken: 0,
            has_more: false,
        };
        state.is_over = !connection::read(session, input, &mut reader, &mut cx);
    }

    /// Writes what the turn left, which ends it.
    pub(crate) fn write(&self, state: &mut ConnectionState, work: &mut Workplace<'_>) -> Next {
        let next = self.write_out(state, work);
        if self.told.hear() {
            self.wake.notify_one();
        }
        next
    }

    fn write_out(&self, state: &mut ConnectionState, work: &mut Workplace<'_>) -> Next {
        if state.is_over {
            work.out.clear();
            if !self.is_done() {
                if let Some(tls) = &mut state.tls {
                    tls.close(self.socket.get_ref());
                }
                self.close();
            }
            return Next::Letter;
        }
        let ConnectionState { session, tls, io, .. } = state;
        let wanted_input = session.wants_input();
        let (now, now_us) = now_with_us();
        let mut none = OutBuf::new();
        let mut cx = Context {
            topology: work.topology,
            now,
            now_us,
            wall: wall(now),
            out: &mut none,
            outbox: work.outbox,
        };
        let socket = self.socket.get_ref();
        let mut writer = SocketWriter { socket, tls: tls.as_deref_mut(), io, is_full: false };
        let remaining = match connection::write(session, &mut writer, work.out, &mut cx) {
            Written::Open { remaining } => remaining,
            Written::Over { end } => {
                state.is_over = true;
                if let Some(tls) = &mut state.tls {
                    tls.close(self.socket.get_ref());
                }
                match end {
                    Some(End::AfterPeer) => self.leave_open(),
                    Some(End::AfterFlush) => {
                        // The peer may be gone already; there is nobody to tell.
                        let _ = self.socket.get_ref().shutdown(std::net::Shutdown::Write);
                        self.leave_open();
                    }
                    Some(End::Now) | None => self.close(),
                }
                return Next::Letter;
            }
        };
        let is_full = writer.is_full;
        let wants_input = session.wants_input();
        // Output that was far behind stopped the session in the middle of what was read, and is written.
        let goes_on = !wanted_input || session.leaves_some();
        let may_go_on = wants_input && goes_on && !state.input.is_empty();
        let has_unread = state.may_have_bytes && !wants_input;
        let watches_end = has_unread && session.watches_end();
        let waits_for_room = remaining > 0 && is_full;
        self.set_waits(waits_for_room, has_unread, watches_end, session.next_timeout());
        if !work.out.is_empty() {
            work.out.detach(LARGE, |body| work.unread.hold(body));
            std::mem::swap(work.out, &mut state.output);
        } else if state.output.capacity() > 0 {
            state.output = OutBuf::new();
        }
        if remaining > 0 && !is_full {
            Next::Piece
        } else if may_go_on || (wants_input && state.may_have_bytes) {
            Next::Now
        } else {
            Next::Letter
        }
    }

    /// Of a node that has no lease: what is left of the letters, so that the client is told to go and nothing else. False if it is not
    /// told now.
    pub(crate) fn says_farewell(state: &mut ConnectionState, letters: &mut Vec<Letter>) -> bool {
        let is_close = |it: &Letter| matches!(it, Letter::Session(ToSession::Close { .. }));
        let is_told = letters.iter().any(is_close);
        // Half of something that was given out is before it.
        state.is_over |= is_told && !state.output.is_empty();
        state.is_leaving |= is_told;
        let is_leaving = state.is_leaving;
        letters.retain(|it| is_close(it) || is_leaving && !matches!(it, Letter::Session(_)));
        letters.sort_by_key(|it| !is_close(it));
        is_leaving
    }

    /// Whether the client was told to go by a node without a lease.
    pub(crate) fn is_leaving(state: &ConnectionState) -> bool {
        state.is_leaving
    }

    /// Keeps what the turn has to write: it is not to be said now. The next turn writes it.
    pub(crate) fn put_off(state: &mut ConnectionState, out: &mut OutBuf, unread: &Unread) -> Next {
        if !out.is_empty() {
            out.detach(LARGE, |body| unread.hold(body));
            std::mem::swap(out, &mut state.output);
        }
        Next::Now
    }

    /// What the turn read.
    pub(crate) fn take_brought(state: &mut ConnectionState) -> Brought {
        state.session.take_brought()
    }

    /// What the connection holds since its last turn, in bytes: itself, input that it may not take yet, messages
    /// that are not whole or not committed, and output that the socket did not take. Tells what it was before, too.
    pub(crate) fn count_held(state: &mut ConnectionState) -> (u64, u64) {
        let now = match state.is_over {
            true => 0,
            false => {
                // The memory of a body that is being read is among what the session keeps, and that of bodies in the
                // output, which others may hold as well, is counted once for all of them.
                let output = state.output.len() - state.output.shared_len();
                let waiting = (state.input.len() + output) as u64;
                let tls = if state.tls.is_some() { TLS_BYTES } else { 0 };
                IDLE_BYTES + tls + waiting + state.session.kept_bytes()
            }
        };
        (std::mem::replace(&mut state.held_bytes, now), now)
    }

    /// Tells the own task what to wait for, when that changed.
    fn set_waits(
        &self,
        for_room: bool,
        has_unread: bool,
        watches_end: bool,
        timeout: Option<Time>,
    ) {
        let due = timeout.map_or(u64::MAX, Time::ms);
        // A later timeout needs no wake-up: the task wakes at the old one and finds the new one.
        let before = self.due_ms.load(Ordering::Relaxed);
        let earlier = due < before;
        if due != before {
            self.due_ms.store(due, Ordering::Release);
        }
        let starts_watching = !self.watches_end.swap(watches_end, Ordering::AcqRel) && watches_end;
        let changed = self.waits_for_room.swap(for_room, Ordering::AcqRel) != for_room;
        let reads_again = self.has_unread.swap(has_unread, Ordering::AcqRel) && !has_unread;
        if earlier || reads_again || starts_watching || (changed && for_room) {
            self.wake.notify_one();
        }
    }

    /// Ends the connection; the task waits a little for the client to close, see [`linger`](Self::linger).
    fn leave_open(&self) {
        self.lingers.store(true, Ordering::Release);
        self.is_done.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// Ends the socket and the task.
    fn close(&self) {
        // The peer may be gone already; there is nobody to tell.
        let _ = self.socket.get_ref().shutdown(std::net::Shutdown::Both);
        self.is_done.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// Ends the socket, whatever the client was to hear.
    pub(crate) fn cut(&self) {
        let _ = self.socket.get_ref().shutdown(std::net::Shutdown::Both);
    }

    /// Whether the connection is over and to be forgotten.
    pub(crate) fn is_done(&self) -> bool {
        self.is_done.load(Ordering::Acquire)
    }
}

/// A socket to write to.
struct SocketWriter<'a> {
    socket: &'a TcpStream,
    tls: Option<&'a mut TlsStream>,
    io: &'a mut Io,
    /// It takes no more.
    is_full: bool,
}

impl connection::WriteHalf for SocketWriter<'_> {
    #[inline]
    fn write(&mut self, out: &mut OutBuf) -> io::Result<()> {
        let before = out.len();
        let most = writing::most(before);
        let written = match &mut self.tls {
            None => writing::write(self.socket, out, most),
            Some(tls) => tls.write(self.socket, out, most),
        };
        let taken = before - out.len();
        if taken > 0 {
            self.io.send_oct += taken as u64;
            self.io.send_cnt += 1;
        }
        self.is_full = written?;
        Ok(())
    }

    #[inline]
    fn has_unsent(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.has_unsent())
    }
}

/// Sleeps until the time, or for ever.
async fn until(due_ms: u64) {
    if due_ms == u64::MAX {
        return std::future::pending().await;
    }
    let wait = due_ms.saturating_sub(now().ms());
    tokio::time::sleep(Duration::from_millis(wait)).await;
}
