//! Reading a connection's socket: into a block that the session takes its frames from, or the rest of a large body into
//! the memory that it stays in.
//!
//! Hot path: one read a turn, no copy but of what the last one left and of few bytes.

use std::io::{self, IoSliceMut};
use std::net::TcpStream;

use bytes::Bytes;
use leveret_broker::message::{Outbox, ToShard};
use leveret_node::connection::Read as NodeRead;
use leveret_session::{AwaitedBody, Context, Session};
use zeroize::Zeroizing;

use crate::buffers::{Buffers, Lent};
use crate::connection::Io;
use crate::lease::NamesHold;
use crate::tls::{self, TlsStream};

/// Bytes asked of a socket at once, at least. What comes of them are the letters of one turn, and the
/// smaller the messages the more of these there are.
pub(crate) const READ_MIN: usize = 64 * 1024;

/// Bytes asked of a socket at once, at most: all that comes goes out by one write to each consumer.
const READ_MAX: usize = 256 * 1024;

/// Publishes in one read that are worth its turns; four times as many are too many.
const READ_MESSAGES: usize = 96;

/// So many bytes keep no block.
const FEW: usize = 4 << 10;

/// A connection's socket to read from, in a turn.
pub(crate) struct SocketReader<'a> {
    pub(crate) socket: &'a TcpStream,
    pub(crate) tls: Option<&'a mut TlsStream>,
    /// A body of which not all is read.
    pub(crate) body: &'a mut Option<Body>,
    pub(crate) may_have_bytes: &'a mut bool,
    /// Of a node of sessions: whether it may take what it reads.
    pub(crate) names: Option<&'a NamesHold>,
    /// Bytes to ask for.
    pub(crate) read_bytes: &'a mut usize,
    pub(crate) io: &'a mut Io,
    pub(crate) buffers: &'a Buffers,
    pub(crate) bodies: &'a Buffers,
    pub(crate) cipher: &'a mut Vec<u8>,
    /// Bytes that this turn has read.
    pub(crate) taken: usize,
    /// The last read was of a block, and the socket had more.
    pub(crate) has_more: bool,
}

impl leveret_node::connection::ReadHalf for SocketReader<'_> {
    #[inline]
    fn may_have_bytes(&self) -> bool {
        *self.may_have_bytes
    }

    #[inline]
    fn has_names(&self) -> bool {
        self.names.is_none_or(NamesHold::holds)
    }

    #[inline]
    fn read(&mut self, session: &mut Session, input: &mut Bytes, cx: &mut Context<'_>) -> NodeRead {
        let Self { socket, body, buffers, .. } = self;
        self.has_more = false;
        if body.is_none() && input.is_empty() && self.tls.is_none() {
            **body = session.awaited_body().map(|body| Body::new(body, self.bodies));
        }
        let read = match (self.tls.as_deref_mut(), body.as_mut()) {
            (None, None) => {
                let is_secret = session.is_logging_in();
                let bytes = session.read_max().min(*self.read_bytes);
                read_block(socket, input, bytes, is_secret, buffers)
            }
            (None, Some(body)) => body.read(socket, buffers),
            (Some(tls), _) => {
                read_encrypted(tls, socket, input, self.cipher, session.is_logging_in())
            }
        };
        match read {
            Ok(Read::Some { count, bytes, drained }) => {
                self.io.recv_oct += count as u64;
                self.io.recv_cnt += 1;
                *input = bytes;
                *self.may_have_bytes = !drained;
                self.taken += count;
                self.has_more = body.is_none() && !drained;
                if let Some(whole) = body.take_if(|body| body.is_whole()) {
                    whole.finish(session, cx);
                    *self.read_bytes = BEHIND;
                } else if body.is_some() {
                    session.heard(count);
                }
                NodeRead::Some
            }
            Ok(Read::Nothing) => {
                *self.may_have_bytes = false;
                NodeRead::Nothing
            }
            Ok(Read::End) | Err(_) => NodeRead::End,
        }
    }

    /// Once, or as long as large bodies come one after the other: they go out together.
    #[inline]
    fn goes_on(&mut self, session: &mut Session, cx: &Context<'_>) -> bool {
        if self.has_more {
            *self.read_bytes = next_read(*self.read_bytes, cx.outbox);
        }
        self.tls.is_none() && self.taken < READ_MAX && session.awaited_body().is_some()
    }
}

/// What a read brought.
enum Read {
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
fn next_read(bytes: usize, outbox: &Outbox) -> usize {
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
fn read_block(
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
    outcome(result, bytes, |count| taken(lent, left.len() + count, is_secret))
}

/// The first `len` bytes of what was read. Few are copied, and the block is the next read's: where many clients write single
/// messages, many reads wait for the turn of a shard, and filling fresh blocks with zeros was 30 % of the samples of one profile.
/// What is secret stays where it is wiped.
fn taken(mut lent: Lent, len: usize, is_secret: bool) -> Bytes {
    match lent.bytes().get(..len) {
        Some(few) if len <= FEW && !is_secret => Bytes::copy_from_slice(few),
        _ => lent.freeze(len),
    }
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
fn read_encrypted(
    tls: &mut TlsStream,
    socket: &TcpStream,
    left: &Bytes,
    cipher: &mut Vec<u8>,
    is_secret: bool,
) -> io::Result<Read> {
    let mut block = Vec::with_capacity(left.len() + READ_MIN);
    block.extend_from_slice(left);
    let read = tls.read(socket, cipher, &mut block)?;
    Ok(match read {
        tls::Read::Some { drained } => {
            let count = block.len() - left.len();
            Read::Some { count, bytes: decrypted(block, is_secret), drained }
        }
        tls::Read::Nothing => Read::Nothing,
        tls::Read::End => Read::End,
    })
}

/// What was decrypted. Few bytes are copied, as in [`taken`]. What is secret is wiped when it is dropped.
fn decrypted(block: Vec<u8>, is_secret: bool) -> Bytes {
    if is_secret {
        return Bytes::from_owner(Zeroizing::new(block));
    }
    if block.len() <= FEW {
        return Bytes::copy_from_slice(&block);
    }
    Bytes::from(block)
}

/// Bytes read at once beyond the body: the heads of the next message, and little of its own body, which has to be
/// copied.
const BEHIND: usize = 4 << 10;

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
    fn new(awaited: AwaitedBody, bodies: &Buffers) -> Self {
        let AwaitedBody { front, rest } = awaited;
        Self { memory: bodies.lend(front + rest), front, at: front, end: front + rest }
    }

    fn is_whole(&self) -> bool {
        self.at == self.end
    }

    /// Reads once, at most [`BEHIND`] bytes more than are missing.
    fn read(&mut self, socket: &TcpStream, buffers: &Buffers) -> io::Result<Read> {
        let missing = self.end - self.at;
        let mut behind = buffers.lend(BEHIND);
        let room = &mut self.memory.bytes()[self.at..self.end];
        let mut pieces = [IoSliceMut::new(room), IoSliceMut::new(&mut behind.bytes()[..BEHIND])];
        let result = rustix::io::readv(socket, &mut pieces);
        outcome(result, missing + BEHIND, |count| {
            self.at += count.min(missing);
            taken(behind, count.saturating_sub(missing), false)
        })
    }

    /// Gives the session what is whole.
    fn finish(mut self, session: &mut Session, cx: &mut Context<'_>) {
        let Self { front, end, .. } = self;
        session.write_front(&mut self.memory.bytes()[..front], cx.wall);
        session.input_body(&self.memory.freeze(end), front, cx);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::TcpListener;

    use super::*;

    /// What a read of so many bytes brought, and the bytes of blocks that are free again while it is kept.
    fn read(bytes: usize, is_secret: bool) -> (Bytes, usize) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, _) = listener.accept().unwrap();
        client.write_all(&vec![7; bytes]).unwrap();
        let buffers = Buffers::new(READ_MAX);
        let read = read_block(&socket, &Bytes::from_static(b"left"), READ_MIN, is_secret, &buffers);
        let Ok(Read::Some { bytes, .. }) = read else { panic!("nothing was read") };
        (bytes, buffers.idle_bytes())
    }

    #[test]
    fn a_single_message_keeps_no_block() {
        for (bytes, is_secret, idle) in [
            (100, false, READ_MAX),
            (FEW - 4, false, READ_MAX),
            (FEW - 3, false, 0),
            (100, true, 0), // wiped when it is dropped
        ] {
            let (read, is) = read(bytes, is_secret);
            assert_eq!((&read[..4], &read[4..]), (&b"left"[..], &vec![7; bytes][..]));
            assert_eq!(is, idle, "{bytes} bytes, secret {is_secret}");
        }
    }

    #[test]
    fn a_single_decrypted_message_keeps_no_block() {
        for (bytes, room) in [(100, 100), (FEW, FEW), (FEW + 1, READ_MIN)] {
            let mut block = Vec::with_capacity(READ_MIN);
            block.resize(bytes, 7);
            let read = decrypted(block, false);
            assert_eq!(read[..], vec![7; bytes]);
            assert_eq!(read.try_into_mut().unwrap().capacity(), room, "{bytes} bytes");
        }
    }

    /// What wipes it has it until it is dropped: nobody gets the memory from the bytes.
    #[test]
    fn what_was_decrypted_is_wiped_by_its_owner() {
        let secret = decrypted(vec![7; 100], true);
        assert_eq!(secret[..], [7; 100]);
        secret.try_into_mut().unwrap_err();
    }
}
