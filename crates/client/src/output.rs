//! What the client says: frames in one buffer, written when the caller flushes.
//!
//! No socket here, so that a simulator can carry the bytes.

use std::ops::Range;

use leveret_amqp::frame::{FRAME_END, OVERHEAD};
use leveret_amqp::method::{Encode, basic};

/// Encoded frames that wait for the socket. Keeps its capacity.
#[derive(Debug)]
pub struct Output {
    bytes: Vec<u8>,
    frame_max: u32,
}

/// Frame types of AMQP 0-9-1 §4.2.3.
pub(crate) const METHOD: u8 = 1;
const HEADER: u8 = 2;
const BODY: u8 = 3;
const HEARTBEAT: u8 = 8;
const CLASS_BASIC: u16 = 60;

impl Output {
    /// `frame_max` is the negotiated one, counting the whole frame; 0 is no limit.
    pub fn new(frame_max: u32) -> Self {
        Self { bytes: Vec::new(), frame_max }
    }

    /// Takes the limit that tuning has brought.
    pub fn set_frame_max(&mut self, frame_max: u32) {
        self.frame_max = frame_max;
    }

    /// What waits to be written.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Forgets what waited: it has been written.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Bytes as they are, such as the protocol header.
    pub fn put_bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// One method frame.
    pub fn put_method(&mut self, channel: u16, method: &impl Encode) {
        let at = self.open_frame(METHOD, channel);
        method.encode(&mut self.bytes);
        self.close_frame(at);
    }

    /// A heartbeat frame.
    pub fn put_heartbeat(&mut self) {
        let at = self.open_frame(HEARTBEAT, 0);
        self.close_frame(at);
    }

    /// `basic.publish` with its content. `properties` are the header's bytes from the property
    /// flags on, see [`Properties::encode`](leveret_amqp::content::Properties::encode).
    pub fn put_publish(
        &mut self,
        channel: u16,
        publish: &basic::Publish<'_>,
        properties: &[u8],
        body: &[u8],
    ) {
        self.put_method(channel, publish);
        self.put_content(channel, properties, body);
    }

    pub(crate) fn put_content(&mut self, channel: u16, properties: &[u8], body: &[u8]) {
        let at = self.open_frame(HEADER, channel);
        self.bytes.extend_from_slice(&CLASS_BASIC.to_be_bytes());
        self.bytes.extend_from_slice(&[0, 0]); // weight
        self.bytes.extend_from_slice(&(body.len() as u64).to_be_bytes());
        self.bytes.extend_from_slice(properties);
        self.close_frame(at);
        for part in body.chunks(self.body_part_max()) {
            let at = self.open_frame(BODY, channel);
            self.bytes.extend_from_slice(part);
            self.close_frame(at);
        }
    }

    /// How much of a body fits one frame.
    pub(crate) fn body_part_max(&self) -> usize {
        match self.frame_max as usize {
            0 => u32::MAX as usize,
            frame_max => frame_max.saturating_sub(OVERHEAD).max(1),
        }
    }

    /// The frame's head with no length yet; gives the place of the length.
    fn open_frame(&mut self, kind: u8, channel: u16) -> usize {
        self.bytes.push(kind);
        self.bytes.extend_from_slice(&channel.to_be_bytes());
        let at = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        at
    }

    fn close_frame(&mut self, at: usize) {
        let length = (self.bytes.len() - at - 4) as u32;
        self.bytes[at..at + 4].copy_from_slice(&length.to_be_bytes());
        self.bytes.push(FRAME_END);
    }
}

/// Many publishes to one exchange, encoded once and written again and again.
///
/// Hot path: what changes between two messages is in places of a fixed size: the routing key, the
/// properties, the first bytes of the body. Nothing is encoded, allocated or copied per message but by
/// the socket.
///
/// ```text
/// | method | header | body | method | header | body | ...
/// ```
#[derive(Debug)]
pub struct PublishBatch {
    bytes: Vec<u8>,
    places: Vec<MessageRanges>,
}

/// Where a message's parts are in the batch.
#[derive(Clone, Debug)]
struct MessageRanges {
    key: Range<usize>,
    properties: Range<usize>,
    /// The payload of the first body frame.
    head: Range<usize>,
    end: usize,
}

impl PublishBatch {
    /// Encodes a message for each of `bodies`. Frames respect the `frame_max` of `output`.
    pub fn new<'a>(
        output: &Output,
        channel: u16,
        publish: &basic::Publish<'_>,
        properties: &[u8],
        bodies: impl IntoIterator<Item = &'a [u8]>,
    ) -> Self {
        let mut all = Output::new(output.frame_max);
        let mut places = Vec::new();
        for body in bodies {
            let start = all.bytes.len();
            all.put_method(channel, publish);
            let content = all.bytes.len();
            all.put_content(channel, properties, body);
            // Frame head, class and method, a reserved number, two texts with their lengths.
            let key = start + 7 + 4 + 2 + 1 + publish.exchange.len() + 1;
            // Frame head, then class, weight and size.
            let at = content + 7 + 12;
            let part = body.len().min(all.body_part_max());
            // The end of the header frame and the head of the next one; no body has no frame.
            let head = if part == 0 { at } else { at + properties.len() + 1 + 7 };
            places.push(MessageRanges {
                key: key..key + publish.routing_key.len(),
                properties: at..at + properties.len(),
                head: head..head + part,
                end: all.bytes.len(),
            });
        }
        Self { bytes: all.bytes, places }
    }

    /// How many messages there are.
    pub fn count(&self) -> usize {
        self.places.len()
    }

    /// The routing key of message `index`.
    pub fn key_mut(&mut self, index: usize) -> &mut [u8] {
        &mut self.bytes[self.places[index].key.clone()]
    }

    /// The properties of message `index`.
    pub fn properties_mut(&mut self, index: usize) -> &mut [u8] {
        &mut self.bytes[self.places[index].properties.clone()]
    }

    /// The body of message `index`, or what of it is in the first frame.
    pub fn body_mut(&mut self, index: usize) -> &mut [u8] {
        &mut self.bytes[self.places[index].head.clone()]
    }

    /// `count` messages from message `start` on, ready for the socket.
    pub fn part(&self, start: usize, count: usize) -> &[u8] {
        let end_of = |count: usize| count.checked_sub(1).map_or(0, |last| self.places[last].end);
        &self.bytes[end_of(start)..end_of(start + count)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_the_same_as_single_publishes() {
        for body_bytes in [0, 1, 4088, 4089, 10_000] {
            let publish =
                basic::Publish { exchange: "e", routing_key: "key", ..Default::default() };
            let body: Vec<u8> = (0..body_bytes).map(|at: u32| at as u8).collect();
            let mut output = Output::new(4096);
            for _ in 0..3 {
                output.put_publish(7, &publish, &[0x10, 0, 2], &body);
            }
            let bodies = [&*body; 3];
            let mut batch = PublishBatch::new(&output, 7, &publish, &[0x10, 0, 2], bodies);
            assert_eq!(batch.part(0, 3), output.bytes(), "{body_bytes}");
            assert_eq!(batch.part(1, 2), &output.bytes()[output.bytes().len() / 3..]);
            assert_eq!(batch.count(), 3);
            assert_eq!(batch.key_mut(2), b"key");
            assert_eq!(batch.properties_mut(2), [0x10, 0, 2]);
            assert_eq!(batch.body_mut(1), &body[..body.len().min(4088)]);
        }
    }
}
