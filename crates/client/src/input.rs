//! What the broker says: bytes in, events out.
//!
//! Hot path: no allocation and no copy per message when a message's three frames lie whole in
//! the buffer, which is so for all but the last message of a read. The rest is gathered in one
//! buffer that keeps its capacity.
//!
//! ```text
//! buffer   [ taken | not yet looked at | room ]
//!          0     start               end      capacity
//! ```
//!
//! No socket here, so that a simulator can carry the bytes.

use leveret_amqp::content::{ContentHeader, RawProperties};
use leveret_amqp::frame::{self, Decoder};
use leveret_amqp::method::Method;

use crate::error::Error;

/// What came, borrowed from the input buffer.
#[derive(Debug)]
pub enum Event<'a> {
    /// A method without content: replies, confirms, `basic.cancel`, closes and so on.
    Method {
        /// Where it came.
        channel: u16,
        /// What came.
        method: Method<'a>,
    },
    /// `basic.deliver`, `basic.return` or `basic.get-ok` with its message.
    Content {
        /// Where it came.
        channel: u16,
        /// The method that announced the message.
        method: Method<'a>,
        /// The message's properties, not decoded.
        properties: RawProperties<'a>,
        /// The whole body.
        body: &'a [u8],
    },
}

/// Bytes from the broker and how far they are understood.
#[derive(Debug)]
pub struct Input {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    decoder: Decoder,
    /// Messages that did not come in one piece; those that are complete wait for their next use.
    partials: Vec<Partial>,
}

/// A message whose frames are gathered over several reads, or between those of other channels.
#[derive(Debug, Default)]
struct Partial {
    channel: u16,
    stage: Stage,
    method: Vec<u8>,
    header: Vec<u8>,
    body: Vec<u8>,
    body_size: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// Nothing is missing; the buffers may be used for the next message.
    #[default]
    Complete,
    /// The header comes next.
    Header,
    /// Body frames come next.
    Body,
}

/// A message begun in the call that is running: nothing is copied yet.
struct Open<'a> {
    channel: u16,
    method: &'a [u8],
    header: Option<(&'a [u8], u64)>,
}

impl Input {
    /// `room` is how many bytes one read may bring; larger saves system calls.
    pub fn new(room: usize, frame_max: u32) -> Self {
        Self {
            buffer: vec![0; room.max(frame::FRAME_MIN_SIZE as usize * 2)],
            start: 0,
            end: 0,
            decoder: Decoder::new(frame_max),
            partials: Vec::new(),
        }
    }

    /// Takes the limit that tuning has brought.
    pub fn set_frame_max(&mut self, frame_max: u32) {
        self.decoder.set_frame_max(frame_max);
    }

    /// Where the next read shall put its bytes. Never empty.
    pub fn room(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.buffer.len() - self.end < self.buffer.len() / 2 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.end == self.buffer.len() {
            // A method or header frame larger than the buffer.
            self.buffer.resize(self.buffer.len() * 2, 0);
        }
        &mut self.buffer[self.end..]
    }

    /// Tells that `count` bytes of the [room](Self::room) are filled.
    pub fn filled(&mut self, count: usize) {
        self.end = (self.end + count).min(self.buffer.len());
    }

    /// Takes bytes from elsewhere than [`room`](Self::room).
    pub fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = self.room();
            let count = room.len().min(bytes.len());
            let (now, later) = bytes.split_at(count);
            room[..count].copy_from_slice(now);
            self.filled(count);
            bytes = later;
        }
    }

    /// Bytes that wait to be looked at.
    pub fn waiting(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// The next event, or `None` when the bytes at hand hold no whole one.
    pub fn next_event(&mut self) -> Result<Option<Event<'_>>, Error> {
        let mut open: Option<Open<'_>> = None;
        let done = loop {
            let input = &self.buffer[self.start..self.end];
            let Some((frame, used)) = self.decoder.next(input)? else {
                if let Some(open) = open {
                    open.keep(&mut self.partials);
                }
                return Ok(None);
            };
            self.start += used;
            match (frame, open.take()) {
                (frame::Event::Header { channel, payload }, Some(begun))
                    if begun.channel == channel && begun.header.is_none() =>
                {
                    let body_size = ContentHeader::decode(payload)?.body_size;
                    if body_size == 0 {
                        return content(channel, begun.method, payload, &[]).map(Some);
                    }
                    open = Some(Open { header: Some((payload, body_size)), ..begun });
                }
                (
                    frame::Event::Body { channel, part, is_last: true, .. },
                    Some(Open { channel: of, method, header: Some((header, size)) }),
                ) if of == channel && part.len() as u64 == size => {
                    return content(channel, method, header, part).map(Some);
                }
                (frame, begun) => {
                    // Out of the short way: what was begun is gathered from here on.
                    if let Some(begun) = begun {
                        begun.keep(&mut self.partials);
                    }
                    match frame {
                        frame::Event::Heartbeat => {}
                        frame::Event::Method { channel, payload } if has_content(payload) => {
                            open = Some(Open { channel, method: payload, header: None });
                        }
                        frame::Event::Method { channel, payload } => {
                            let method = Method::decode(payload)?;
                            return Ok(Some(Event::Method { channel, method }));
                        }
                        frame::Event::Header { channel, payload } => {
                            let at = partial(&self.partials, channel, Stage::Header)?;
                            if self.partials[at].take_header(payload)? {
                                break at;
                            }
                        }
                        frame::Event::Body { channel, part, is_last, .. } => {
                            let at = partial(&self.partials, channel, Stage::Body)?;
                            if self.partials[at].take_body(part, is_last)? {
                                break at;
                            }
                        }
                    }
                }
            }
        };
        let partial = &self.partials[done];
        content(partial.channel, &partial.method, &partial.header, &partial.body).map(Some)
    }
}

impl Open<'_> {
    /// Copies what is known into a free slot.
    fn keep(self, partials: &mut Vec<Partial>) {
        // A second message on a channel whose first never ended takes its place.
        let slot = partials
            .iter()
            .position(|partial| partial.stage != Stage::Complete && partial.channel == self.channel)
            .or_else(|| partials.iter().position(|partial| partial.stage == Stage::Complete))
            .unwrap_or_else(|| {
                partials.push(Partial::default());
                partials.len() - 1
            });
        let partial = &mut partials[slot];
        partial.channel = self.channel;
        partial.stage = Stage::Header;
        partial.body.clear();
        partial.method.clear();
        partial.method.extend_from_slice(self.method);
        if let Some((header, body_size)) = self.header {
            partial.keep_header(header, body_size);
        }
    }
}

impl Partial {
    fn keep_header(&mut self, header: &[u8], body_size: u64) {
        self.header.clear();
        self.header.extend_from_slice(header);
        self.body_size = body_size;
        self.stage = Stage::Body;
    }

    /// Whether the message is complete.
    fn take_header(&mut self, header: &[u8]) -> Result<bool, Error> {
        let body_size = ContentHeader::decode(header)?.body_size;
        self.keep_header(header, body_size);
        if body_size == 0 {
            self.stage = Stage::Complete;
        }
        Ok(body_size == 0)
    }

    /// Whether the message is complete. `ends_frame` tells that `part` ends its frame.
    fn take_body(&mut self, part: &[u8], ends_frame: bool) -> Result<bool, Error> {
        self.body.extend_from_slice(part);
        let size = self.body.len() as u64;
        if size > self.body_size {
            return Err(Error::Unexpected { expected: "the end of the body", got: "more body" });
        }
        let is_complete = size == self.body_size && ends_frame;
        if is_complete {
            self.stage = Stage::Complete;
        }
        Ok(is_complete)
    }
}

/// The slot of the message on `channel` that waits for `stage`.
fn partial(partials: &[Partial], channel: u16, stage: Stage) -> Result<usize, Error> {
    partials.iter().position(|partial| partial.channel == channel && partial.stage == stage).ok_or(
        match stage {
            Stage::Body => Error::Unexpected { expected: "a method", got: "a content body" },
            _ => Error::Unexpected { expected: "a method", got: "a content header" },
        },
    )
}

/// `basic.return` (60, 50), `basic.deliver` (60, 60) and `basic.get-ok` (60, 71).
fn has_content(method: &[u8]) -> bool {
    matches!(method, [0, 60, 0, 50 | 60 | 71, ..])
}

fn content<'a>(
    channel: u16,
    method: &'a [u8],
    header: &'a [u8],
    body: &'a [u8],
) -> Result<Event<'a>, Error> {
    let properties = ContentHeader::decode(header)?.properties;
    Ok(Event::Content { channel, method: Method::decode(method)?, properties, body })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Output;
    use leveret_amqp::method::{basic, channel};

    /// Events as text, so that they can be compared after their bytes are gone.
    fn read(input: &mut Input, into: &mut Vec<String>) {
        while let Some(event) = input.next_event().unwrap() {
            into.push(match event {
                Event::Method { channel, method } => format!("{channel} {}", method.name()),
                Event::Content { channel, method, properties, body } => {
                    let body = String::from_utf8_lossy(body);
                    let properties = properties.as_bytes();
                    format!("{channel} {} {properties:?} {body}", method.name())
                }
            });
        }
    }

    fn deliver(output: &mut Output, channel: u16, delivery_tag: u64, body: &[u8]) {
        let method = basic::Deliver { consumer_tag: "c", delivery_tag, ..Default::default() };
        output.put_method(channel, &method);
        output.put_content(channel, &[0x10, 0, 2], body);
    }

    fn conversation() -> (Vec<u8>, Vec<String>) {
        let mut output = Output::new(4096 + 8);
        output.put_method(1, &channel::OpenOk::default());
        deliver(&mut output, 1, 1, b"one");
        deliver(&mut output, 2, 2, b"");
        output.put_heartbeat();
        let long = "x".repeat(9000);
        deliver(&mut output, 1, 3, long.as_bytes());
        output.put_method(3, &basic::Ack { delivery_tag: 9, multiple: true });
        let events = [
            "1 channel.open-ok".to_owned(),
            "1 basic.deliver [16, 0, 2] one".to_owned(),
            "2 basic.deliver [16, 0, 2] ".to_owned(),
            format!("1 basic.deliver [16, 0, 2] {long}"),
            "3 basic.ack".to_owned(),
        ];
        (output.bytes().to_vec(), events.to_vec())
    }

    #[test]
    fn every_split_gives_the_same_events() {
        let (bytes, want) = conversation();
        for split in 0..bytes.len() {
            let mut input = Input::new(4096, 4096 + 8);
            let mut got = Vec::new();
            let (first, second) = bytes.split_at(split);
            input.feed(first);
            read(&mut input, &mut got);
            input.feed(second);
            read(&mut input, &mut got);
            assert_eq!(got, want, "split at {split}");
        }
    }

    #[test]
    fn single_bytes_give_the_same_events() {
        let (bytes, want) = conversation();
        let mut input = Input::new(4096, 4096 + 8);
        let mut got = Vec::new();
        for byte in &bytes {
            input.feed(std::slice::from_ref(byte));
            read(&mut input, &mut got);
        }
        assert_eq!(got, want);
    }

    /// AMQP 0-9-1 §4.2.6 lets frames of other channels come between those of a message.
    #[test]
    fn messages_of_two_channels_may_interleave() {
        let mut one = Output::new(0);
        deliver(&mut one, 1, 1, b"first");
        let mut two = Output::new(0);
        deliver(&mut two, 2, 1, b"second");
        let frames = |bytes: &[u8]| -> Vec<Vec<u8>> {
            let ends = [25, 48, bytes.len()]; // method, header, body
            let mut at = 0;
            let cut = ends.map(|end| bytes[std::mem::replace(&mut at, end)..end].to_vec());
            assert!(cut.iter().all(|frame| frame.last() == Some(&0xCE)), "{cut:?}");
            cut.to_vec()
        };
        let mut input = Input::new(4096, 0);
        for (a, b) in frames(one.bytes()).iter().zip(frames(two.bytes())) {
            input.feed(a);
            input.feed(&b);
        }
        let mut got = Vec::new();
        read(&mut input, &mut got);
        assert_eq!(got, ["1 basic.deliver [16, 0, 2] first", "2 basic.deliver [16, 0, 2] second"]);
    }

    #[test]
    fn a_body_without_a_method_is_refused() {
        let mut output = Output::new(0);
        output.put_content(1, &[0, 0], b"x");
        let mut input = Input::new(4096, 0);
        input.feed(output.bytes());
        assert!(matches!(input.next_event(), Err(Error::Unexpected { .. })));
    }
}
