//! Hot path. A content on its way in: the publish, its header, its body.
//!
//! Budget: no allocation and no copy for a message that lies in one read of the socket; one allocation
//! for its head and one per piece of its body when it does not.
//!
//! ```text
//!   one read:  | .. publish | exchange key | .. header | properties | .. body | body .. |
//!                             ^ names                    ^ properties         ^ body     \ more
//! ```
//!
//! While the whole message lies in one read, the three spans point into that read. When the read ends, or
//! frames of another channel come between, names and properties are copied to `head`, and the body's
//! pieces kept in `more`: small ones copied, so that none pins a read of many times its size while more is
//! waited for. Of a large body the rest is read into memory that has room for all of the record that the
//! message becomes; what was kept goes there before it is looked at (see [`body`](crate::body)), and then
//! the spans point into that. The pieces of a very large one are copied to where they are in that record as they come:
//! joined at its end, a hundred megabytes would keep all others waiting for as long as that takes, and be there twice.

use bytes::Bytes;
use leveret_amqp::whole::WholePublish;
use leveret_broker::message::{Message, Span};
use leveret_broker::record::HEAD;
use leveret_queue::Time;

/// How far the content is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// No publish seen.
    Idle,
    /// The header comes next.
    Header,
    /// The body, or more of it, comes next.
    Body,
}

#[derive(Debug)]
pub(crate) struct Content {
    pub(crate) stage: Stage,
    pub(crate) mandatory: bool,
    /// The spans are into `head` and not into the read at hand.
    is_stashed: bool,
    /// The record of a very large message, as far as it came, in the place of `more`.
    record: Vec<u8>,
    /// Bytes in front of the names that belong to the message too: [`HEAD`] if the read at hand is a record.
    front: u32,
    names: (u32, u32),
    properties: (u32, u32),
    /// The body's first piece, in the read at hand.
    body: (u32, u32),
    size: u64,
    received: u64,
    head: Vec<u8>,
    more: Vec<Bytes>,
    /// Small pieces, to become one of `more`.
    small: Vec<u8>,
    /// Bytes of the blocks that pieces of `more` lie in.
    pinned: u64,
    /// Where the last of these blocks is.
    pin: usize,
    /// Bytes received when it was last looked whether the body moves.
    mark: Option<u64>,
}

/// Memory that a content takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stake {
    /// Bytes it keeps beyond the read at hand.
    pub(crate) kept: u64,
    /// Bytes it will have kept when it is whole.
    pub(crate) claimed: u64,
}

/// A buffer of small pieces becomes a piece at this length.
const SMALL_BYTES_MAX: usize = 64 * 1024;

/// Shorter pieces are copied: what they were read into may be many times as long.
const PIECE_MIN: usize = 16 * 1024;

/// Longer bodies are joined as they come.
const JOINED_MIN: u64 = 1 << 20;

/// Bytes of the block that a read comes in, at least, however few were read.
const BLOCK: u64 = 256 * 1024;

impl Content {
    pub(crate) const fn new() -> Self {
        Self {
            stage: Stage::Idle,
            mandatory: false,
            is_stashed: false,
            record: Vec::new(),
            front: 0,
            names: (0, 0),
            properties: (0, 0),
            body: (0, 0),
            size: 0,
            received: 0,
            head: Vec::new(),
            more: Vec::new(),
            small: Vec::new(),
            pinned: 0,
            pin: 0,
            mark: None,
        }
    }

    /// Publish, header and body were read at once.
    pub(crate) fn whole(&mut self, read: &Bytes, publish: &WholePublish<'_>, mandatory: bool) {
        self.names = place(read, publish.names);
        self.properties = place(read, publish.properties);
        let start =
            if publish.body.is_empty() { self.properties.1 } else { place(read, publish.body).0 };
        self.body = (start, start + publish.body.len() as u32);
        self.received = publish.body.len() as u64;
        self.size = self.received;
        self.mandatory = mandatory;
        self.is_stashed = false;
        self.stage = Stage::Body;
    }

    /// `basic.publish` was read; `names` are exchange and routing key in `read`.
    pub(crate) fn begin(&mut self, read: &Bytes, names: &[u8], mandatory: bool) {
        self.names = place(read, names);
        self.received = 0;
        self.mark = None;
        self.mandatory = mandatory;
        self.is_stashed = false;
        self.stage = Stage::Header;
    }

    /// The header was read. True when no body follows.
    pub(crate) fn header(&mut self, read: &Bytes, properties: &[u8], size: u64) -> bool {
        if self.is_stashed {
            let start = self.head.len() as u32;
            self.head.extend_from_slice(properties);
            self.properties = (start, self.head.len() as u32);
            self.size = size;
            self.join();
        } else {
            self.properties = place(read, properties);
            self.body = (self.properties.1, self.properties.1);
        }
        self.size = size;
        self.stage = Stage::Body;
        size == 0
    }

    /// A piece of the body was read; `ends_frame` when its frame is complete. `Some(true)` when the
    /// content is whole, none when it is too long.
    pub(crate) fn body(&mut self, read: &Bytes, part: &[u8], ends_frame: bool) -> Option<bool> {
        let received = self.received + part.len() as u64;
        if received > self.size {
            return None;
        }
        if !part.is_empty() {
            if self.is_joined() {
                self.record.extend_from_slice(part);
            } else if self.is_stashed && (received < self.size || part.len() < PIECE_MIN) {
                self.piece(read, part);
            } else if self.received == 0 && !self.is_stashed {
                self.body = place(read, part);
            } else if self.front > 0 {
                self.body.1 = place(read, part).1;
            } else {
                // It pins the read for no longer than a message that lies whole in it: it is the last piece, or
                // belongs to another frame in the same read as the first one.
                self.end_small();
                self.more.push(read.slice_ref(part));
            }
        }
        self.received = received;
        Some(received == self.size && ends_frame)
    }

    /// Where the last `rest` bytes of the body would be in its record: what comes before, if that is kept here
    /// and is less than the rest.
    pub(crate) fn front_of(&self, rest: u32) -> Option<usize> {
        let rest = u64::from(rest);
        let is_last = self.stage == Stage::Body && self.received + rest == self.size;
        let pays = self.is_stashed && is_last && rest >= self.received;
        pays.then_some(HEAD + self.head.len() + self.received as usize)
    }

    /// Writes what is kept to the front of the record, behind its head.
    pub(crate) fn write_front(&self, front: &mut [u8]) {
        let kept = self.more.iter().map(|part| &part[..]);
        let kept = [&self.head[..]].into_iter().chain(kept).chain([&self.small[..]]);
        let mut room = front.get_mut(HEAD..).unwrap_or_default();
        for bytes in kept {
            let Some((to, rest)) = room.split_at_mut_checked(bytes.len()) else { return };
            to.copy_from_slice(bytes);
            room = rest;
        }
    }

    /// What is kept lies in the front of the read at hand, the rest of the body behind it.
    pub(crate) fn go_on_in(&mut self, front: usize) {
        let record = HEAD as u32;
        let names_end = record + self.names.1;
        let properties_end = record + self.head.len() as u32;
        self.names = (record, names_end);
        self.properties = (names_end, properties_end);
        self.body = (properties_end, front as u32);
        (self.is_stashed, self.front) = (false, record);
        self.head.clear();
        self.more.clear();
        self.small.clear();
        (self.pinned, self.pin) = (0, 0);
    }

    /// Length of the body as its header says.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// What it keeps and will keep; nothing while it lies in the read at hand.
    #[inline]
    pub(crate) fn stake(&self) -> Stake {
        if self.is_stashed && self.stage != Stage::Idle {
            let head = self.head.len() as u64;
            let size = if self.stage == Stage::Body { self.size } else { 0 };
            Stake { kept: head + self.received.max(self.pinned), claimed: head + size }
        } else {
            Stake::default()
        }
    }

    /// Whether all of it is there, though it was not taken yet.
    pub(crate) fn is_whole(&self) -> bool {
        self.stage == Stage::Body && self.received == self.size
    }

    /// Whether it is not whole and got fewer than `least` bytes since the last look, `more` of which it has not
    /// seen yet. This is a look.
    pub(crate) fn stands_still(&mut self, least: u64, more: u64) -> bool {
        if self.stage == Stage::Idle {
            return false;
        }
        let now = self.received + more;
        let before = self.mark.replace(now);
        before.is_some_and(|before| now.saturating_sub(before) < least)
    }

    /// Bytes received.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    /// Whether it waits for more with spans into the read at hand.
    pub(crate) fn is_in_read(&self) -> bool {
        self.stage != Stage::Idle && !self.is_stashed
    }

    /// The read at hand goes: keeps what is needed of it.
    #[cold]
    pub(crate) fn stash(&mut self, read: &Bytes) {
        self.head.clear();
        self.head.extend_from_slice(at(read, self.names));
        let names_end = self.head.len() as u32;
        self.names = (0, names_end);
        if self.stage == Stage::Body {
            self.head.extend_from_slice(at(read, self.properties));
            self.properties = (names_end, self.head.len() as u32);
        }
        (self.is_stashed, self.front) = (true, 0);
        if self.stage == Stage::Body && self.received > 0 {
            let later = std::mem::take(&mut self.more);
            self.join();
            for part in [at(read, self.body)].into_iter().chain(later.iter().map(|it| &it[..])) {
                if self.is_joined() {
                    self.record.extend_from_slice(part);
                } else {
                    self.piece(read, part);
                }
            }
        } else if self.stage == Stage::Body {
            self.join();
        }
        self.body = (0, 0);
    }

    /// Has the body of a very large message joined as it comes. The system gives the memory as it is written to, so that
    /// who announces a body and does not send it takes none.
    fn join(&mut self) {
        let len = HEAD as u64 + self.head.len() as u64 + self.size;
        let Ok(len) = usize::try_from(len) else { return };
        if self.size >= JOINED_MIN && self.record.try_reserve_exact(len).is_ok() {
            self.record.resize(HEAD, 0);
            self.record.extend_from_slice(&self.head);
        }
    }

    fn is_joined(&self) -> bool {
        !self.record.is_empty()
    }

    /// Gives the message that was joined. Its record is whole with the `record_head`.
    #[cold]
    fn take_joined(&mut self, record_head: [u8; HEAD]) -> Message {
        let mut record = std::mem::take(&mut self.record);
        if let Some(room) = record.first_chunk_mut::<HEAD>() {
            *room = record_head;
        }
        let behind =
            |(start, end): (u32, u32)| Span::new(HEAD + start as usize, HEAD + end as usize);
        let body = Span::new(HEAD + self.head.len(), record.len());
        self.head.clear();
        Message::new(record.into(), behind(self.names), behind(self.properties), body, Vec::new())
    }

    fn piece(&mut self, read: &Bytes, part: &[u8]) {
        if part.len() >= PIECE_MIN && part.len() >= read.len() / 4 && self.pins(read, part) {
            self.end_small();
            self.more.push(read.slice_ref(part));
            return;
        }
        let mut rest = part;
        while !rest.is_empty() {
            let room = SMALL_BYTES_MAX - self.small.len();
            let (now, later) = rest.split_at(room.min(rest.len()));
            if self.small.is_empty() {
                let missing = self.size.saturating_sub(self.received);
                self.small.reserve_exact(now.len().max(SMALL_BYTES_MAX.min(missing as usize)));
            }
            self.small.extend_from_slice(now);
            if self.small.len() >= SMALL_BYTES_MAX {
                self.end_small();
            }
            rest = later;
        }
    }

    /// Whether the block that a piece lies in may stay for it: blocks that come with little in them, as from a slow
    /// network, would be many times what the body is.
    fn pins(&mut self, read: &Bytes, part: &[u8]) -> bool {
        let at = read.as_ptr() as usize;
        if self.pin == at && !self.more.is_empty() {
            return true;
        }
        let pinned = self.pinned + BLOCK.max(read.len() as u64);
        if pinned > 2 * (self.received + part.len() as u64) + BLOCK {
            return false;
        }
        (self.pinned, self.pin) = (pinned, at);
        true
    }

    fn end_small(&mut self) {
        if !self.small.is_empty() {
            self.more.push(Bytes::from(std::mem::take(&mut self.small)));
        }
    }

    /// Names and properties of a content that is whole.
    #[inline]
    pub(crate) fn parts<'a>(&'a self, read: &'a Bytes) -> (&'a [u8], &'a [u8]) {
        let bytes: &[u8] = if self.is_stashed { &self.head } else { read };
        (at(bytes, self.names), at(bytes, self.properties))
    }

    /// Gives the message and is idle again. `read` is the read at hand, `wall` the time that its record gets.
    pub(crate) fn take(&mut self, read: &Bytes, wall: Time) -> Message {
        self.stage = Stage::Idle;
        if self.is_stashed {
            if self.is_joined() {
                let head = self.record_head(wall);
                self.is_stashed = false;
                return self.take_joined(head.map(|head| head.encode()).unwrap_or_default());
            }
            (self.pinned, self.pin) = (0, 0);
            self.end_small();
            self.is_stashed = false;
            let wire = Bytes::from(std::mem::take(&mut self.head));
            let end = wire.len();
            let more = std::mem::take(&mut self.more);
            return Message::new(
                wire,
                span(self.names, 0),
                span(self.properties, 0),
                Span::new(end, end),
                more,
            );
        }
        let start = self.names.0 - std::mem::take(&mut self.front);
        let wire = read.slice(start as usize..self.body.1 as usize);
        let more = std::mem::take(&mut self.more);
        Message::new(
            wire,
            span(self.names, start),
            span(self.properties, start),
            span(self.body, start),
            more,
        )
    }

    /// Forgets everything.
    pub(crate) fn reset(&mut self) {
        *self = Self::new();
    }
}

/// Where `part`, a part of `read`, lies in it.
fn place(read: &Bytes, part: &[u8]) -> (u32, u32) {
    let start = (part.as_ptr() as usize).wrapping_sub(read.as_ptr() as usize);
    debug_assert!(start + part.len() <= read.len());
    (start as u32, (start + part.len()) as u32)
}

fn at(read: &[u8], (start, end): (u32, u32)) -> &[u8] {
    read.get(start as usize..end as usize).unwrap_or_default()
}

fn span((start, end): (u32, u32), base: u32) -> Span {
    Span::new((start - base) as usize, (end - base) as usize)
}

#[cfg(test)]
mod tests {
    use leveret_broker::record::View;

    use super::*;

    fn join(message: &Message) -> Vec<u8> {
        let mut body = message.body().to_vec();
        message.more().iter().for_each(|part| body.extend_from_slice(part));
        body
    }

    #[test]
    fn one_read() {
        let read = Bytes::from_static(b"..\x01x\x01k..PP..body-and..more");
        let mut content = Content::new();
        content.begin(&read, &read[2..6], false);
        assert!(!content.header(&read, &read[8..10], 12));
        assert_eq!(content.body(&read, &read[12..20], true), Some(false));
        assert_eq!(content.body(&read, &read[22..], true), Some(true));
        let message = content.take(&read, Time::default());
        assert_eq!(message.names(), b"\x01x\x01k");
        assert_eq!(message.properties(), b"PP");
        assert_eq!(join(&message), b"body-andmore");
        assert_eq!(message.body_len(), 12);
        assert_eq!(content.stage, Stage::Idle);
    }

    /// Cut into reads at every two places, the message is the same.
    #[test]
    fn any_cut() {
        let body: Vec<u8> = (0..60).collect();
        for first in 0..=4 {
            for second in 0..body.len() {
                let read = Bytes::copy_from_slice(b"\x01x\x01k");
                let mut content = Content::new();
                content.begin(&read, &read[..], true);
                let mut read = read;
                let mut next = |content: &mut Content, bytes: &[u8], cut: bool| {
                    if cut && content.is_in_read() {
                        content.stash(&read);
                    }
                    if cut {
                        read = Bytes::copy_from_slice(bytes);
                    }
                    read.clone()
                };
                if first == 0 {
                    let read = next(&mut content, b"PP", true);
                    content.header(&read, &read[..], body.len() as u64);
                } else {
                    // Names, properties and the first piece in one read.
                    let whole = [b"\x01x\x01kPP".as_slice(), &body[..second]].concat();
                    content.reset();
                    let read = next(&mut content, &whole, true);
                    content.begin(&read, &read[..4], true);
                    content.header(&read, &read[4..6], body.len() as u64);
                    assert_eq!(content.body(&read, &read[6..], true), Some(false));
                }
                let rest = if first == 0 { &body[..] } else { &body[second..] };
                let pieces: Vec<&[u8]> = rest.chunks(first * 7 + 5).collect();
                let mut done = Some(false);
                for piece in &pieces {
                    let read = next(&mut content, piece, true);
                    done = content.body(&read, &read[..], true);
                }
                assert_eq!(done, Some(true));
                let read = next(&mut content, b"", false);
                let message = content.take(&read, Time::default());
                assert_eq!(message.names(), b"\x01x\x01k");
                assert_eq!(message.properties(), b"PP");
                assert_eq!(join(&message), body);
            }
        }
    }

    #[test]
    fn too_long() {
        let read = Bytes::from_static(b"\x00\x00PPbody");
        let mut content = Content::new();
        content.begin(&read, &read[..2], false);
        content.header(&read, &read[2..4], 3);
        assert_eq!(content.body(&read, &read[4..], true), None);
    }

    /// A long last piece is not copied: nothing else is waited for.
    #[test]
    fn last_piece_is_borrowed() {
        let first = Bytes::from_static(b"\x00\x00PPbegin");
        let mut content = Content::new();
        content.begin(&first, &first[..2], false);
        content.header(&first, &first[2..4], 5 + PIECE_MIN as u64);
        assert_eq!(content.body(&first, &first[4..], false), Some(false));
        content.stash(&first);
        let read = Bytes::from(vec![7; 20 * PIECE_MIN]);
        assert_eq!(content.body(&read, &read[..PIECE_MIN], true), Some(true));
        let message = content.take(&read, Time::default());
        assert_eq!(message.body_len(), 5 + PIECE_MIN as u64);
        assert_eq!(message.more().last().map(|part| part.as_ptr()), Some(read.as_ptr()));
        assert!(join(&message).starts_with(b"begin\x07"));
    }

    /// A very large message is its record when it is whole, wherever it was cut.
    #[test]
    fn very_large_ones_are_joined_as_they_come() {
        let body: Vec<u8> = (0..JOINED_MIN + 5).map(|at| at as u8).collect();
        for first in 0..3 {
            let head = Bytes::from([b"\x01x\x01k\0\0", &body[..100]].concat());
            let mut content = Content::new();
            content.begin(&head, &head[..4], false);
            if first == 0 {
                content.stash(&head);
            }
            assert!(!content.header(&head, &head[4..6], body.len() as u64));
            if first == 1 {
                content.stash(&head);
            }
            content.body(&head, &head[6..], true);
            if first == 2 {
                content.stash(&head);
            }
            let mut done = Some(false);
            for piece in body[100..].chunks(100_001) {
                let read = Bytes::copy_from_slice(piece);
                done = content.body(&read, &read, true);
                assert_eq!(content.stake().kept, 6 + content.received());
            }
            assert_eq!(done, Some(true));
            let message = content.take(&Bytes::new(), Time::from_ms(7));
            assert!(message.body() == body);
            let view = View::of(message.record().unwrap()).unwrap();
            assert_eq!((view.names, view.properties), (&b"\x01x\x01k"[..], &b"\0\0"[..]));
            assert_eq!(view.head.published_ms, 7);
            assert!(view.body_bytes() == body);
            assert_eq!(content.stake(), Stake::default());
        }
    }

    /// One octet per frame does not make one piece per octet.
    #[test]
    fn crumbs_are_joined() {
        let read = Bytes::from(vec![0; 1000]);
        let mut content = Content::new();
        content.begin(&read, &read[..2], false);
        content.header(&read, &read[2..4], 500_000);
        content.stash(&read);
        for at in 0..500_000 {
            content.body(&read, &read[at % 999..at % 999 + 1], true);
        }
        let message = content.take(&read, Time::default());
        assert!(message.more().len() < 10);
        assert_eq!(message.body_len(), 500_000);
    }
}
