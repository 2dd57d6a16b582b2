//! Frames: the protocol header and the cutting of the input into frames.
//!
//! Hot path: no allocation and no copy; a body is handed on in the pieces in which it arrives.
//!
//! ```text
//!   0      1         3            7                  7+size
//!   | type | channel | size (u32) | payload ...      | 0xCE |    AMQP 0-9-1 section 4.2.3
//! ```
//!
//! The size is judged from the header alone, before a byte of the payload is awaited.

use std::fmt;

use crate::reply::ReplyCode;

/// What every peer must accept before tuning (section 2.3.5).
pub const FRAME_MIN_SIZE: u32 = 4096;
/// The octet after each payload.
pub const FRAME_END: u8 = 0xCE;
/// Bytes of a frame around its payload: header 7, end 1.
pub const OVERHEAD: usize = 8;
/// The `type` octet of a method frame.
pub const METHOD: u8 = 1;
/// The `type` octet of a content header frame.
pub const HEADER: u8 = 2;
/// The `type` octet of a content body frame.
pub const BODY: u8 = 3;
/// The `type` octet of a heartbeat.
pub const HEARTBEAT: u8 = 8;

const OVERHEAD_U32: u32 = 8;
/// Payload limit of all frames but bodies while `frame_max` is 0, "no limit": these are needed whole.
const UNLIMITED_HEAD: u32 = 16 * 1024 * 1024;

/// The eight bytes with which a client opens a connection.
#[derive(Clone, Copy, Debug)]
pub struct ProtocolHeader;

/// What the first bytes of a connection are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderMatch {
    /// A beginning of a header: read on.
    Partial,
    /// AMQP 0-9-1, or 0-9, which is close enough; eight bytes are used up.
    Match,
    /// Something else. The answer is [`ProtocolHeader::BYTES`] and the end of the connection.
    Mismatch,
}

impl ProtocolHeader {
    /// Length of a header in bytes.
    pub const LEN: usize = 8;
    /// The header of AMQP 0-9-1.
    pub const BYTES: [u8; 8] = *b"AMQP\x00\x00\x09\x01";
    /// The header of AMQP 0-9, which can be served as if it were 0-9-1. RabbitMQ 3 also spoke 0-8; its
    /// methods differ, RabbitMQ 4 refuses it, and so do we.
    const OLDER: [u8; 8] = *b"AMQP\x01\x01\x00\x09";

    /// Compares the first bytes of a connection with the headers served.
    #[must_use]
    pub fn check(input: &[u8]) -> HeaderMatch {
        let head = input.get(..Self::LEN).unwrap_or(input);
        let fits = Self::BYTES.starts_with(head) || Self::OLDER.starts_with(head);
        match (fits, head.len() == Self::LEN) {
            (true, true) => HeaderMatch::Match,
            (true, false) => HeaderMatch::Partial,
            (false, _) => HeaderMatch::Mismatch,
        }
    }
}

/// What one step of decoding gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A method frame; at least the two ids are there.
    Method {
        /// The channel it belongs to, 0 for the connection.
        channel: u16,
        /// Class id, method id, fields: see [`Method::decode`](crate::method::Method::decode).
        payload: &'a [u8],
    },
    /// A content header frame; at least the fixed 12 bytes are there.
    Header {
        /// The channel it belongs to.
        channel: u16,
        /// See [`ContentHeader::decode`](crate::content::ContentHeader::decode).
        payload: &'a [u8],
    },
    /// A piece of a content body frame, in order. Only the piece of an empty frame is empty.
    Body {
        /// The channel it belongs to.
        channel: u16,
        /// The next bytes of the payload.
        part: &'a [u8],
        /// This piece completes the frame's payload and the end octet is right. It has the payload's last
        /// byte: what is complete by its bytes is complete by its frames too.
        is_last: bool,
        /// Length of the frame's whole payload, the same in each of its pieces.
        frame_len: u32,
    },
    /// A heartbeat frame.
    Heartbeat,
}

/// Cuts the input into frames. Keeps nothing but its place within a body frame.
#[derive(Clone, Copy, Debug)]
pub struct Decoder {
    /// Largest payload of a frame that is needed whole.
    head_max: u32,
    /// Largest payload of a body frame.
    body_max: u32,
    frame_max: u32,
    /// Frames of channels are not needed whole.
    skims: bool,
    body: Option<BodyFrame>,
}

/// A body frame whose header has been read.
#[derive(Clone, Copy, Debug)]
struct BodyFrame {
    channel: u16,
    len: u32,
    /// Bytes of the payload not given out yet; not 0, as the last one goes with the end octet.
    rest: u32,
}

impl Decoder {
    /// A decoder at the start of a frame. See [`Decoder::set_frame_max`].
    #[must_use]
    pub fn new(frame_max: u32) -> Self {
        let mut new = Self { head_max: 0, body_max: 0, frame_max: 0, skims: false, body: None };
        new.set_frame_max(frame_max);
        new
    }

    /// Sets the largest frame, overhead included; 0 is no limit for bodies and 16 MiB for other frames.
    ///
    /// A payload may be as long as the whole frame should be: like RabbitMQ we bear with the clients
    /// that forget the eight bytes of overhead.
    pub fn set_frame_max(&mut self, frame_max: u32) {
        self.frame_max = frame_max;
        (self.head_max, self.body_max) =
            if frame_max == 0 { (UNLIMITED_HEAD, u32::MAX) } else { (frame_max, frame_max) };
    }

    /// From now on only methods on channel 0 count, short ones: any frame of a channel comes in pieces, as
    /// [`Event::Body`], so that none is waited for.
    pub fn skim(&mut self) {
        self.head_max = self.head_max.min(FRAME_MIN_SIZE);
        self.skims = true;
    }

    /// The next event and how many bytes to drop from the front of the input; `None` when more bytes
    /// are needed. Never needs more than `frame_max` + 8 bytes at once.
    ///
    /// # Errors
    ///
    /// The input is out of step from there on: nothing more may be read from this peer.
    #[inline]
    pub fn next<'a>(&mut self, input: &'a [u8]) -> Result<Option<(Event<'a>, usize)>, FrameError> {
        if let Some(body) = self.body {
            return self.next_part(body, input, 0);
        }
        let Some((&[kind, c0, c1, s0, s1, s2, s3], rest)) = input.split_first_chunk::<7>() else {
            return Ok(None);
        };
        let channel = u16::from_be_bytes([c0, c1]);
        let size = u32::from_be_bytes([s0, s1, s2, s3]);
        let is_in_pieces = kind == BODY || (self.skims && channel != 0);
        if size > if is_in_pieces { self.body_max } else { self.head_max } {
            let max = if self.frame_max == 0 { UNLIMITED_HEAD } else { self.frame_max };
            return Err(FrameError::TooLarge { kind, size, max: max.saturating_sub(OVERHEAD_U32) });
        }
        if is_in_pieces {
            return self.next_part(BodyFrame { channel, len: size, rest: size }, rest, 7);
        }
        let Some((payload, after)) = rest.split_at_checked(size as usize) else {
            return Ok(None);
        };
        let Some(&end) = after.first() else {
            return Ok(None);
        };
        if end != FRAME_END {
            return Err(FrameError::BadEnd { kind, found: end, payload: Snippet::of(payload) });
        }
        let event = match kind {
            METHOD if size >= 4 => Event::Method { channel, payload },
            HEADER if size >= 12 => Event::Header { channel, payload },
            HEARTBEAT if size == 0 && channel == 0 => Event::Heartbeat,
            HEARTBEAT if size == 0 => return Err(FrameError::HeartbeatOnChannel { channel }),
            _ => return Err(FrameError::Unknown { kind, payload: Snippet::of(payload) }),
        };
        Ok(Some((event, payload.len().saturating_add(OVERHEAD))))
    }

    /// In the middle of a body frame: its channel, and how many bytes of its payload are to come, at least one.
    #[must_use]
    pub fn body_rest(&self) -> Option<(u16, u32)> {
        self.body.map(|body| (body.channel, body.rest))
    }

    /// The length of the frame that the input begins with, if it is needed whole and is not.
    #[must_use]
    pub fn unfinished_len(&self, input: &[u8]) -> Option<usize> {
        let (&[kind, _, _, s0, s1, s2, s3], _) = input.split_first_chunk::<7>()?;
        let size = u32::from_be_bytes([s0, s1, s2, s3]);
        let is_frame = self.is_between_frames() && kind != BODY && size <= self.head_max;
        let len = (size as usize).saturating_add(OVERHEAD);
        (is_frame && input.len() < len).then_some(len)
    }

    /// Whether the next byte of the input begins a frame.
    pub(crate) fn is_between_frames(&self) -> bool {
        self.body.is_none()
    }

    /// Largest payload of a frame that is needed whole.
    pub(crate) fn head_max(&self) -> u32 {
        self.head_max
    }

    /// Largest payload of a body frame.
    pub(crate) fn body_max(&self) -> u32 {
        self.body_max
    }

    /// What `input` holds of this body frame. `consumed` bytes before it belong to the frame's header.
    #[inline]
    fn next_part<'a>(
        &mut self,
        mut body: BodyFrame,
        input: &'a [u8],
        consumed: usize,
    ) -> Result<Option<(Event<'a>, usize)>, FrameError> {
        let BodyFrame { channel, len: frame_len, rest } = body;
        if let Some((part, [end, ..])) = input.split_at_checked(rest as usize) {
            if *end != FRAME_END {
                let payload = Snippet::of(part);
                return Err(FrameError::BadEnd { kind: BODY, found: *end, payload });
            }
            self.body = None;
            let event = Event::Body { channel, part, is_last: true, frame_len };
            return Ok(Some((event, part.len().saturating_add(consumed).saturating_add(1))));
        }
        // The end octet is missing, so `input` is at most as long as `rest`. The payload's last byte waits
        // for it: a content must not be complete before its last frame is known to be whole.
        let len = input.len().min((rest as usize).saturating_sub(1));
        let Some((part, true)) = input.get(..len).map(|part| (part, !part.is_empty())) else {
            return Ok(None);
        };
        body.rest = rest.saturating_sub(u32::try_from(len).unwrap_or(u32::MAX));
        self.body = Some(body);
        let event = Event::Body { channel, part, is_last: false, frame_len };
        Ok(Some((event, len.saturating_add(consumed))))
    }
}

/// The first bytes of a payload as reply texts show them: `all octets = <<1,2>>`, or
/// `first 16 octets = <<"text in ASCII">>`. That is a binary as Erlang prints it, but on one line.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Snippet {
    head: [u8; 16],
    len: usize,
}

impl Snippet {
    /// Copies up to 16 bytes and remembers whether there were more.
    #[must_use]
    pub fn of(payload: &[u8]) -> Self {
        let mut head = [0; 16];
        for (to, from) in head.iter_mut().zip(payload) {
            *to = *from;
        }
        Self { head, len: payload.len() }
    }
}

impl fmt::Display for Snippet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.head.get(..self.len).unwrap_or(&self.head);
        f.write_str(if self.len > 16 { "first 16 octets = <<" } else { "all octets = <<" })?;
        if !shown.is_empty() && shown.iter().all(|octet| matches!(octet, b' '..=b'~' | 8..=13 | 27))
        {
            f.write_str("\"")?;
            shown.iter().try_for_each(|octet| match octet {
                8 => f.write_str("\\b"),
                b'\t' => f.write_str("\\t"),
                b'\n' => f.write_str("\\n"),
                11 => f.write_str("\\v"),
                12 => f.write_str("\\f"),
                b'\r' => f.write_str("\\r"),
                27 => f.write_str("\\e"),
                b'"' => f.write_str("\\\""),
                b'\\' => f.write_str("\\\\"),
                octet => write!(f, "{}", char::from(*octet)),
            })?;
            f.write_str("\"")?;
        } else {
            for (index, octet) in shown.iter().enumerate() {
                write!(f, "{}{octet}", if index == 0 { "" } else { "," })?;
            }
        }
        f.write_str(">>")
    }
}

impl fmt::Debug for Snippet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why the input is no frame. Displayed as the explanation RabbitMQ gives in `connection.close`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The header claims a larger payload than was agreed.
    #[error("type {kind}, all octets = <<>>: {{frame_too_large,{size},{max}}}")]
    TooLarge {
        /// The frame's type octet.
        kind: u8,
        /// The payload length claimed.
        size: u32,
        /// The payload length agreed.
        max: u32,
    },
    /// The octet after the payload is not [`FRAME_END`].
    #[error("type {kind}, {payload}: {{invalid_frame_end_marker,{found}}}")]
    BadEnd {
        /// The frame's type octet.
        kind: u8,
        /// The octet found.
        found: u8,
        /// What came before it; of a body only the part that arrived last.
        payload: Snippet,
    },
    /// No such type, a method or header frame too short for its fixed part, or a heartbeat with a payload.
    #[error("type {kind}, {payload}: unknown_frame")]
    Unknown {
        /// The frame's type octet.
        kind: u8,
        /// The payload.
        payload: Snippet,
    },
    /// A heartbeat on another channel than 0.
    #[error("type 8, all octets = <<>>")]
    HeartbeatOnChannel {
        /// The channel it came on.
        channel: u16,
    },
}

impl FrameError {
    /// The code of the `connection.close` that answers.
    #[must_use]
    pub fn reply_code(&self) -> ReplyCode {
        match self {
            Self::HeartbeatOnChannel { .. } => ReplyCode::UnexpectedFrame,
            _ => ReplyCode::FrameError,
        }
    }
}

#[cfg(test)]
mod tests;
