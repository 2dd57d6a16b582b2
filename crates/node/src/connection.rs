//! A connection's turn: a session between its letters and its client's bytes.
//!
//! Hot path: one read, one write, no copy but of what a read left over.
//!
//! ```text
//!  letters ---> take ---> read ------------> (letters are posted) ---> write
//!               session   socket -> input                              output -> socket
//!                         -> session                                   -> session
//! ```
//!
//! Letters are posted before bytes are written: a client that reads an answer finds its effect done or queued. The socket is
//! whoever drives the turn's: see [`ReadHalf`] and [`WriteHalf`].

use std::io;

use bytes::Bytes;
use leveret_amqp::outbuf::OutBuf;
use leveret_broker::message::{ConnectionId, Outbox, ToSession};
use leveret_session::{Context, End, Session};

use crate::return_undelivered;

/// Less than this of a read is copied rather than pinning the read.
const PIN_MIN: usize = 64 << 10;

/// What a client sends. Nothing here waits.
pub trait ReadHalf {
    /// Whether there may be something to read, or its end.
    fn may_have_bytes(&self) -> bool;

    /// Whether what has been read may be taken by the names as they are: see [`Session::has_names`].
    fn has_names(&self) -> bool {
        true
    }

    /// Reads once, behind what is in `input`, or into the body that the session awaits.
    fn read(&mut self, session: &mut Session, input: &mut Bytes, cx: &mut Context<'_>) -> Read;

    /// The session has taken what the last read brought. Whether another read may follow in this turn.
    fn goes_on(&mut self, session: &mut Session, cx: &Context<'_>) -> bool;
}

/// Where a client reads. Nothing here waits.
pub trait WriteHalf {
    /// Writes what it takes. An error is the end of it.
    fn write(&mut self, out: &mut OutBuf) -> io::Result<()>;

    /// Whether it has taken something that is not on its way yet.
    fn has_unsent(&self) -> bool {
        false
    }
}

/// What a read came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// Bytes came.
    Some,
    /// None did.
    Nothing,
    /// None will any more.
    End,
}

/// What a write came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// Everything, or all but so many bytes that the socket did not take, or did not send.
    Open {
        /// How many.
        remaining: usize,
    },
    /// The connection is over, and the session knows.
    Over {
        /// How the socket is to be closed; none if it is broken.
        end: Option<End>,
    },
}

/// What becomes of letters to a session that is over.
pub fn undelivered(id: ConnectionId, letters: impl Iterator<Item = ToSession>, out: &mut Outbox) {
    letters.for_each(|letter| return_undelivered(id, letter, out));
}

/// The part of a turn that reads, after the letters: first what waited for an answer in `input`, then the socket, once or as
/// long as it [goes on](ReadHalf::goes_on). False when the connection is over, and the session knows.
#[inline]
pub fn read(
    session: &mut Session,
    input: &mut Bytes,
    socket: &mut impl ReadHalf,
    cx: &mut Context<'_>,
) -> bool {
    session.has_names(socket.has_names());
    if !input.is_empty() && session.wants_input() {
        session.input(input, cx);
    }
    while socket.may_have_bytes()
        && session.wants_input()
        && session.end().is_none()
        && !session.leaves_some()
    {
        let read = socket.read(session, input, cx);
        match read {
            Read::Some => {
                session.has_names(socket.has_names());
                session.input(input, cx);
            }
            Read::Nothing => {}
            Read::End => {
                session.disconnected(cx);
                return false;
            }
        }
        let goes_on = socket.goes_on(session, cx);
        keep_little(input);
        if !goes_on {
            break;
        }
    }
    true
}

/// The end of a turn: writes what waits in `out`, and tells the session. `cx.out` is another one, and stays empty.
#[inline]
pub fn write(
    session: &mut Session,
    socket: &mut impl WriteHalf,
    out: &mut OutBuf,
    cx: &mut Context<'_>,
) -> Written {
    // What the socket has and did not send counts as a byte, so that room is waited for.
    let before = out.len() + usize::from(socket.has_unsent());
    let written = socket.write(out);
    let remaining = out.len() + usize::from(socket.has_unsent());
    if before > 0 && written.is_ok() {
        session.flushed(remaining, remaining < before, cx);
    }
    let end = session.end();
    let is_over = match end {
        Some(End::Now) => true,
        Some(End::AfterFlush | End::AfterPeer) => remaining == 0,
        None => false,
    };
    if is_over || written.is_err() {
        session.disconnected(cx);
        out.clear();
        return Written::Over { end: end.filter(|_| written.is_ok()) };
    }
    Written::Open { remaining }
}

/// A partial frame must not pin the block it came in.
fn keep_little(input: &mut Bytes) {
    if input.is_empty() {
        *input = Bytes::new();
    } else if input.len() < PIN_MIN {
        *input = Bytes::copy_from_slice(input);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::VecDeque;
    use std::sync::Arc;

    use leveret_broker::message::{NodeId, Outbox};
    use leveret_queue::Time;
    use leveret_session::{Peer, Settings};
    use leveret_topology::Topology;

    use super::*;

    /// What each read brings, and how many bytes a write takes; none when it is broken.
    #[derive(Default)]
    struct Fake {
        reads: VecDeque<Option<&'static [u8]>>,
        reads_at_once: bool,
        room: Option<usize>,
        written: Vec<u8>,
        /// Of each question whether the names hold; yes behind them.
        names: RefCell<VecDeque<bool>>,
    }

    impl ReadHalf for Fake {
        fn may_have_bytes(&self) -> bool {
            !self.reads.is_empty()
        }

        fn has_names(&self) -> bool {
            self.names.borrow_mut().pop_front().unwrap_or(true)
        }

        fn read(&mut self, _: &mut Session, input: &mut Bytes, _: &mut Context<'_>) -> Read {
            let Some(Some(bytes)) = self.reads.pop_front() else { return Read::End };
            *input = [input, bytes].concat().into();
            Read::Some
        }

        fn goes_on(&mut self, _: &mut Session, _: &Context<'_>) -> bool {
            self.reads_at_once
        }
    }

    impl WriteHalf for Fake {
        fn write(&mut self, out: &mut OutBuf) -> io::Result<()> {
            let room = self.room.ok_or(io::ErrorKind::BrokenPipe)?.min(out.len());
            let mut slices = [io::IoSlice::new(&[]); 8];
            let filled = out.slices(&mut slices, usize::MAX);
            let bytes: Vec<u8> =
                slices[..filled].iter().flat_map(|it| it.iter().copied()).collect();
            self.written.extend(&bytes[..room]);
            out.advance(room);
            Ok(())
        }
    }

    struct Turn {
        session: Session,
        input: Bytes,
        out: OutBuf,
        outbox: Outbox,
        topology: Topology,
    }

    impl Turn {
        fn new() -> Self {
            let local = ([127, 0, 0, 1], 5672).into();
            let peer =
                Peer { address: "127.0.0.1:1".to_owned(), local, is_loopback: true, tls: None };
            let (settings, now) = (Arc::new(Settings::default()), Time::from_ms(1));
            let session = Session::new(NodeId::ALONE.connection(1), settings, peer, 1, now);
            let (input, out) = (Bytes::new(), OutBuf::new());
            Self { session, input, out, outbox: Outbox::default(), topology: Topology::new() }
        }

        fn read(&mut self, socket: &mut Fake) -> bool {
            let Self { session, input, out, outbox, topology } = self;
            let now = Time::from_ms(1);
            let mut cx = Context { topology, now, now_us: 1000, wall: now, out, outbox };
            read(session, input, socket, &mut cx)
        }

        fn write(&mut self, socket: &mut Fake) -> Written {
            let Self { session, out, outbox, topology, .. } = self;
            let (now, mut none) = (Time::from_ms(1), OutBuf::new());
            let mut cx = Context { topology, now, now_us: 1000, wall: now, out: &mut none, outbox };
            write(session, socket, out, &mut cx)
        }
    }

    const HEADER: [&[u8]; 2] = [b"AMQP", b"\x00\x00\x09\x01"];

    /// Nothing is read while names are lacking; what was read just before they were is kept.
    #[test]
    fn what_was_read_waits_for_names() {
        let whole: &[u8] = b"AMQP\x00\x00\x09\x01";
        for (names, unread, kept) in [(vec![false], 1, 0), (vec![true, false], 0, whole.len())] {
            let mut turn = Turn::new();
            let mut socket =
                Fake { reads: [Some(whole)].into(), room: Some(900), ..Fake::default() };
            socket.names = RefCell::new(names.into());
            assert!(turn.read(&mut socket) && !turn.session.wants_input());
            let is_kept = (socket.reads.len(), turn.input.len(), turn.out.len());
            assert_eq!(is_kept, (unread, kept, 0));
            assert!(turn.session.watches_end());
            assert!(turn.read(&mut socket) && turn.session.wants_input());
            assert!(turn.input.is_empty() && !turn.out.is_empty(), "connection.start");
        }
    }

    #[test]
    fn a_turn_reads_once_and_keeps_what_is_no_whole_frame() {
        let mut turn = Turn::new();
        let mut socket = Fake { reads: HEADER.map(Some).into(), room: Some(9), ..Fake::default() };
        assert!(turn.read(&mut socket));
        assert_eq!((&turn.input[..], turn.out.len()), (HEADER[0], 0));
        assert_eq!(turn.write(&mut socket), Written::Open { remaining: 0 });
        assert!(turn.read(&mut socket));
        let len = turn.out.len();
        assert!(turn.input.is_empty() && len > 9, "connection.start");
        assert_eq!(turn.write(&mut socket), Written::Open { remaining: len - 9 });
        socket.room = Some(len);
        assert_eq!(turn.write(&mut socket), Written::Open { remaining: 0 });
        assert_eq!(socket.written.len(), len);
    }

    #[test]
    fn a_source_may_go_on() {
        let mut turn = Turn::new();
        let reads = HEADER.map(Some).into();
        assert!(turn.read(&mut Fake { reads, reads_at_once: true, ..Fake::default() }));
        assert!(!turn.out.is_empty(), "connection.start");
    }

    #[test]
    fn the_end_of_what_a_client_sends_is_the_end() {
        let mut turn = Turn::new();
        let reads = VecDeque::from([Some(HEADER[0]), None]);
        assert!(!turn.read(&mut Fake { reads, reads_at_once: true, ..Fake::default() }));
    }

    #[test]
    fn a_client_that_speaks_something_else_is_told_and_sent_away() {
        let mut turn = Turn::new();
        let reads = VecDeque::from([Some(&b"GET / HTTP/1.1\r\n"[..])]);
        let mut socket = Fake { reads, room: Some(4), ..Fake::default() };
        assert!(turn.read(&mut socket));
        assert_eq!(turn.write(&mut socket), Written::Open { remaining: 4 });
        assert_eq!(turn.write(&mut socket), Written::Over { end: Some(End::AfterFlush) });
        assert_eq!(socket.written, b"AMQP\x00\x00\x09\x01");
    }

    #[test]
    fn a_broken_socket_is_the_end() {
        let mut turn = Turn::new();
        let mut socket =
            Fake { reads: HEADER.map(Some).into(), reads_at_once: true, ..Fake::default() };
        assert!(turn.read(&mut socket));
        assert_eq!(turn.write(&mut socket), Written::Over { end: None });
        assert!(turn.out.is_empty());
    }
}
