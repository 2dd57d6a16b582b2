//! Hot path. Letters out of what was read.
//!
//! A read goes into a block of memory, and what comes out are slices of it: nothing is copied but the beginning of what a block's
//! end cuts, and that only if it is short. A length is checked when its head is there, before any memory is taken for it; what has
//! come of a letter is all that it takes.

#![allow(clippy::arithmetic_side_effects, reason = "lengths that are checked against each other")]

use bytes::{Buf as _, BytesMut};
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use leveret_topology::GroupId;

use crate::frame::{Class, Envelope, FrameError, HEAD, Head, Letter, checksum, checksum_of_head};
use crate::payload::{BLOCK, Payload, SHARE_MIN};

/// Room for a read at least.
const READ_MIN: usize = 8 * 1024;

/// What letters may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of one.
    pub letter: usize,
    /// Bytes of all that have begun and are not whole.
    pub unfinished: usize,
}

/// The receiving half of a connection.
#[derive(Debug)]
pub struct Receiver {
    has_checksums: bool,
    limits: Limits,
    read: BytesMut,
    open: Option<OpenFrame>,
    /// Letters of which more frames are to come, by their lines.
    unfinished: HashMap<(Class, GroupId), Letter, FixedState>,
    unfinished_len: usize,
    failed: Option<FrameError>,
}

/// A frame of which the head was there.
#[derive(Debug)]
struct OpenFrame {
    envelope: Envelope,
    more: bool,
    /// Bytes that are to come.
    left: usize,
    /// What the head says.
    said: u32,
    /// Of what has come.
    found: u32,
    /// All of the letter that has come.
    payload: Payload,
}

impl Receiver {
    /// Of a connection that has checksums, but for those with TLS.
    pub fn new(has_checksums: bool, limits: Limits) -> Self {
        Self {
            has_checksums,
            limits,
            read: BytesMut::new(),
            open: None,
            unfinished: HashMap::default(),
            unfinished_len: 0,
            failed: None,
        }
    }

    /// Where the next read goes, with room for it. Before it [`next`](Self::next) has said that there is nothing more.
    pub fn buffer(&mut self) -> &mut BytesMut {
        if self.read.capacity() - self.read.len() < READ_MIN {
            self.read.reserve(BLOCK);
        }
        &mut self.read
    }

    /// Bytes of letters that have begun and are not whole.
    pub fn unfinished_len(&self) -> usize {
        self.unfinished_len
    }

    /// The next whole letter; none if more has to be read.
    ///
    /// # Errors
    ///
    /// At the first thing that is wrong, and from then on.
    #[expect(clippy::should_implement_trait, reason = "it may go on after none")]
    pub fn next(&mut self) -> Result<Option<Letter>, FrameError> {
        match self.failed {
            Some(error) => Err(error),
            None => self.try_next().inspect_err(|error| self.failed = Some(*error)),
        }
    }

    fn try_next(&mut self) -> Result<Option<Letter>, FrameError> {
        loop {
            let mut open = match self.open.take() {
                Some(open) => open,
                None => {
                    let Some(head) = self.read.first_chunk().copied() else { return Ok(None) };
                    self.read.advance(HEAD);
                    self.begin(&head)?
                }
            };
            let there = open.left.min(self.read.len());
            // A short piece would keep a whole block in memory, and be one more to look at.
            if there == open.left || there >= SHARE_MIN {
                let piece = self.read.split_to(there).freeze();
                if self.has_checksums {
                    open.found = checksum(open.found, &piece);
                }
                open.left -= there;
                open.payload.push(piece);
            }
            if open.left > 0 {
                self.open = Some(open);
                return Ok(None);
            }
            if let Some(letter) = self.end(open)? {
                return Ok(Some(letter));
            }
        }
    }

    fn begin(&mut self, head: &[u8; HEAD]) -> Result<OpenFrame, FrameError> {
        let (Head { len, more, envelope }, said) = Head::decode(head)?;
        let left = len as usize;
        let mut payload = Payload::default();
        let line = (envelope.kind.class(), envelope.group);
        if !self.unfinished.is_empty()
            && let Some(begun) = self.unfinished.remove(&line)
        {
            if begun.envelope != envelope {
                return Err(FrameError::Continues {
                    begun: begun.envelope.kind.byte(),
                    expected: begun.envelope.number,
                    found: envelope.kind.byte(),
                    number: envelope.number,
                });
            }
            payload = begun.payload;
        }
        if payload.len() + left > self.limits.letter {
            return Err(FrameError::Letter(self.limits.letter));
        }
        if more {
            self.unfinished_len += left;
        } else {
            self.unfinished_len -= payload.len();
        }
        if self.unfinished_len > self.limits.unfinished {
            return Err(FrameError::Unfinished(self.limits.unfinished));
        }
        let found = if self.has_checksums { checksum_of_head(head) } else { 0 };
        Ok(OpenFrame { envelope, more, left, said, found, payload })
    }

    fn end(&mut self, open: OpenFrame) -> Result<Option<Letter>, FrameError> {
        let OpenFrame { envelope, more, said, found, payload, .. } = open;
        match said == found {
            true => {}
            false if self.has_checksums => return Err(FrameError::Checksum { said, found }),
            false => return Err(FrameError::Checksummed),
        }
        let letter = Letter { envelope, payload };
        if !more {
            return Ok(Some(letter));
        }
        self.unfinished.insert((envelope.kind.class(), envelope.group), letter);
        Ok(None)
    }
}
