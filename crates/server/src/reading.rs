//! Reading a connection's socket: into a block that the session takes its frames from, or the rest of a large body into
//! the memory that it stays in.
//!
//! Hot path: one read a turn, no copy but of what the last one left.

use std::io::{self, IoSliceMut};
use std::net::TcpStream;

use bytes::Bytes;
use leveret_broker::message::{Outbox, ToShard};
use leveret_session::{AwaitedBody, Context, Session};

use crate::buffers::{Buffers, Lent};
use crate::tls::{self, TlsStream};

/// Bytes asked of a socket at once, at least. What comes of them are the letters of one turn, and the
/// smaller the messages the more of these there are.
pub(crate) const READ_MIN: usize = 64 * 1024;

/// Bytes asked of a socket at once, at most: all that comes goes out by one write to each consumer.
pub(crate) const READ_MAX: usize = 256 * 1024;

/// Publishes in one read that are worth its turns; four times as many are too many.
const READ_MESSAGES: usize = 96;

/// What a read brought.
pub(crate) enum Read {
    /// Some bytes.
    Some {
        /// How many.
        count: usize,
        /// What was left over before, and what was read but for a [`Body`].
        bytes: Bytes,
        /// The socket had no more.
        drained: bool,
    },
    Nothing,
    End,
}

/// How many bytes to ask for next, after a read that the socket had more for.
pub(crate) fn next_read(bytes: usize, outbox: &Outbox) -> usize {
    let published = outbox.shards.iter().map(|(_, letter)| match letter {
        // A message for many queues counts for each: what it leads to should not come in too large a lump.
        ToShard::Publish { messages, .. } => {
            messages.iter().map(|it| it.targets.len().max(1)).sum::<usize>()
        }
        _ => 0,
    });
    match published.sum::<usize>() {
        few if few < READ_MESSAGES => (bytes * 2).min(READ_MAX),
        many if many > 4 * READ_MESSAGES => (bytes / 2).max(READ_MIN),
        _ => bytes,
    }
}

/// Reads once, behind the bytes left over from last time.
pub(crate) fn read_block(
    socket: &TcpStream,
    left: &Bytes,
    bytes: usize,
    is_secret: bool,
    buffers: &Buffers,
) -> io::Result<Read> {
    // One length for most, so that the last one used is the next one.
    let mut lent = buffers.lend((left.len() + bytes).max(READ_MAX));
    if is_secret {
        lent.keep_secret();
    }
    let (before, room) = lent.bytes().split_at_mut(left.len());
    before.copy_from_slice(left);
    let result = rustix::io::read(socket, &mut room[..bytes]);
    outcome(result, bytes, |count| lent.freeze(left.len() + count))
}

/// What became of a read of at most `asked` bytes; `bytes` gives those of them that it may.
fn outcome(
    result: rustix::io::Result<usize>,
    asked: usize,
    bytes: impl FnOnce(usize) -> Bytes,
) -> io::Result<Read> {
    match result {
        Ok(0) => Ok(Read::End),
        Ok(count) => Ok(Read::Some { count, bytes: bytes(count), drained: count < asked }),
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(Read::Nothing),
        Err(error) => Err(error.into()),
    }
}

/// As [`read_block`], through TLS.
pub(crate) fn read_encrypted(
    tls: &mut TlsStream,
    socket: &TcpStream,
    left: &Bytes,
    cipher: &mut Vec<u8>,
) -> io::Result<Read> {
    let mut block = Vec::with_capacity(left.len() + READ_MIN);
    block.extend_from_slice(left);
    let read = tls.read(socket, cipher, &mut block)?;
    Ok(match read {
        tls::Read::Some { drained } => {
            let count = block.len() - left.len();
            Read::Some { count, bytes: Bytes::from(block), drained }
        }
        tls::Read::Nothing => Read::Nothing,
        tls::Read::End => Read::End,
    })
}

/// Bytes read at once beyond the body: the heads of the next message, and little of its own body, which has to be
/// copied.
pub(crate) const BEHIND: usize = 4 << 10;

/// A body that is being read.
#[derive(Debug)]
pub(crate) struct Body {
    memory: Lent,
    front: usize,
    /// The next byte goes here.
    at: usize,
    end: usize,
}

impl Body {
    /// With memory for all of its record.
    pub(crate) fn new(awaited: AwaitedBody, bodies: &Buffers) -> Self {
        let AwaitedBody { front, rest } = awaited;
        Self { memory: bodies.lend(front + rest), front, at: front, end: front + rest }
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.at == self.end
    }

    /// Reads once, at most [`BEHIND`] bytes more than are missing.
    pub(crate) fn read(&mut self, socket: &TcpStream, buffers: &Buffers) -> io::Result<Read> {
        let missing = self.end - self.at;
        let mut behind = buffers.lend(BEHIND);
        let room = &mut self.memory.bytes()[self.at..self.end];
        let mut pieces = [IoSliceMut::new(room), IoSliceMut::new(&mut behind.bytes()[..BEHIND])];
        let result = rustix::io::readv(socket, &mut pieces);
        outcome(result, missing + BEHIND, |count| {
            self.at += count.min(missing);
            behind.freeze(count.saturating_sub(missing))
        })
    }

    /// Gives the session what is whole.
    pub(crate) fn finish(mut self, session: &mut Session, cx: &mut Context<'_>) {
        let Self { front, end, .. } = self;
        session.write_front(&mut self.memory.bytes()[..front], cx.wall);
        session.input_body(&self.memory.freeze(end), front, cx);
    }
}
