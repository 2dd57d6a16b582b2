//! What the client says: frames in one buffer, written when the caller flushes.
//!
//! No socket here, so that a simulator can carry the bytes.

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

/// Many publishes of one size to one place, encoded once and written again and again.
///
/// Hot path: what changes between two messages is the first bytes of the body, in place; nothing
/// is encoded, allocated or copied per message but by the socket.
///
/// ```text
/// | method | header | body | method | header | body | ...   `count` times, `stride` bytes each
/// ```
#[derive(Debug)]
pub struct PublishBatch {
    bytes: Vec<u8>,
    stride: usize,
    /// Where the first body frame's payload lies in a stride.
    head: std::ops::Range<usize>,
}

impl PublishBatch {
    /// Encodes `count` messages with `body`. Frames respect the `frame_max` of `output`.
    pub fn new(
        output: &Output,
        channel: u16,
        publish: &basic::Publish<'_>,
        properties: &[u8],
        body: &[u8],
        count: usize,
    ) -> Self {
        let mut one = Output::new(output.frame_max);
        one.put_method(channel, publish);
        let at = one.bytes.len();
        one.put_content(channel, properties, body);
        let part = body.len().min(one.body_part_max());
        // Header frame: 8 bytes around class, weight, size and the properties.
        let head = if part == 0 { 0..0 } else { at + 8 + 12 + properties.len() + 7..0 };
        let head = head.start..head.start + part;
        Self { stride: one.bytes.len(), bytes: one.bytes.repeat(count.max(1)), head }
    }

    /// How many messages there are.
    pub fn count(&self) -> usize {
        self.bytes.len() / self.stride
    }

    /// Bytes of one message on the wire.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// The body of message `index`, or what of it is in the first frame.
    pub fn body_mut(&mut self, index: usize) -> &mut [u8] {
        let at = index * self.stride;
        &mut self.bytes[at + self.head.start..at + self.head.end]
    }

    /// The first `count` messages, ready for the socket.
    pub fn first(&self, count: usize) -> &[u8] {
        &self.bytes[..count * self.stride]
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
            let mut batch = PublishBatch::new(&output, 7, &publish, &[0x10, 0, 2], &body, 3);
            assert_eq!(batch.first(3), output.bytes(), "{body_bytes}");
            assert_eq!(batch.count(), 3);
            assert_eq!(batch.body_mut(1), &body[..body.len().min(4088)]);
        }
    }
}
