//! The client's end of one connection: frames in and out, one inbox per channel.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::time::Duration;

use crate::value::put_number;
use crate::wire::{Message, Received, decode_header, decode_method};

/// What a stream gave.
#[derive(Debug)]
pub enum Input {
    /// Some bytes.
    Bytes(Vec<u8>),
    /// The other side closed, cleanly or not.
    End,
    /// Nothing within the time given.
    Nothing,
}

/// A byte stream to a broker. A TCP socket, or a broker in this process under a virtual clock.
pub trait Stream {
    /// Sends all of `bytes`.
    fn send(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Waits at most `within` for input. Under a virtual clock: lets that much time pass, if
    /// nothing arrives earlier.
    fn receive(&mut self, within: Duration) -> io::Result<Input>;
}

/// Opens streams to one broker.
pub trait Connect {
    /// A new stream.
    fn connect(&mut self) -> io::Result<Box<dyn Stream>>;
}

/// Something that arrived.
#[derive(Clone, Debug)]
pub enum Event {
    /// A method, whole with its content.
    Method(Message),
    /// Eight bytes in place of a frame: the broker's protocol header.
    Greeting(Vec<u8>),
    /// A heartbeat frame. Kept only as a count.
    Heartbeat,
    /// The stream ended.
    End,
    /// What no broker may send.
    Violation(String),
}

/// One connection.
pub struct Peer {
    stream: Box<dyn Stream>,
    input: Vec<u8>,
    /// Events per channel with their order of arrival.
    inboxes: BTreeMap<u16, VecDeque<(u64, Event)>>,
    partial: BTreeMap<u16, Partial>,
    arrivals: u64,
    /// Heartbeats that arrived and were not expected yet.
    pub heartbeats: u64,
    /// Largest whole frame the broker may send.
    pub frame_max: u32,
    /// Channels agreed on.
    pub channel_max: u32,
    /// The connection is open.
    pub is_running: bool,
    /// Closes are answered by the script, not by this peer.
    pub is_manual: bool,
    has_ended: bool,
    /// A close was exchanged: the end of the stream is no news.
    expects_end: bool,
    held: Vec<u8>,
}

struct Partial {
    message: Message,
    /// `None` until the header came.
    missing: Option<u64>,
}

/// Puts a payload into a frame.
pub fn frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![kind];
    put_number(&mut out, u64::from(channel), 2);
    put_number(&mut out, payload.len() as u64, 4);
    out.extend_from_slice(payload);
    out.push(0xce);
    out
}

impl Peer {
    /// A peer that has sent nothing yet.
    pub fn new(stream: Box<dyn Stream>) -> Self {
        Self {
            stream,
            input: Vec::new(),
            inboxes: BTreeMap::new(),
            partial: BTreeMap::new(),
            arrivals: 0,
            heartbeats: 0,
            frame_max: u32::MAX,
            channel_max: 2047,
            is_running: false,
            is_manual: false,
            has_ended: false,
            expects_end: false,
            held: Vec::new(),
        }
    }

    /// Nothing more can come.
    pub fn has_ended(&self) -> bool {
        self.has_ended || self.expects_end
    }

    /// Keeps bytes back until the next [`send`](Self::send).
    pub fn hold(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
    }

    /// Sends bytes, those held back first. A stream that the broker has closed swallows them: the
    /// end shows when reading.
    pub fn send(&mut self, bytes: &[u8]) {
        let mut all = std::mem::take(&mut self.held);
        all.extend_from_slice(bytes);
        if self.stream.send(&all).is_err() {
            // Input that arrived before the end is still read.
            while !self.has_ended && self.pump(Duration::from_millis(50)) {}
        }
    }

    /// Reads once, for at most `within`. False when nothing came.
    pub fn pump(&mut self, within: Duration) -> bool {
        if self.has_ended {
            return false;
        }
        match self.stream.receive(within) {
            Ok(Input::Bytes(bytes)) => {
                self.input.extend_from_slice(&bytes);
                while self.take_frame() {}
                true
            }
            Ok(Input::Nothing) => false,
            Ok(Input::End) | Err(_) => {
                self.has_ended = true;
                self.is_running = false;
                if !self.input.is_empty() {
                    let rest = format!("the stream ended inside a frame: {:?}", self.input);
                    self.put(0, Event::Violation(rest));
                }
                if !self.expects_end {
                    self.put(0, Event::End);
                }
                true
            }
        }
    }

    /// The oldest event on a channel, if any arrived.
    pub fn pop(&mut self, channel: u16) -> Option<Event> {
        self.inboxes.get_mut(&channel)?.pop_front().map(|(_, event)| event)
    }

    /// The oldest event on a channel, left there.
    pub fn front(&self, channel: u16) -> Option<&Event> {
        self.inboxes.get(&channel)?.front().map(|(_, event)| event)
    }

    /// Puts events back to the front of an inbox, in their order.
    pub fn put_back(&mut self, channel: u16, events: Vec<Event>) {
        let inbox = self.inboxes.entry(channel).or_default();
        let is_later = inbox.is_empty();
        for event in events.into_iter().rev() {
            inbox.push_front((0, event));
        }
        // Events put back one at a time keep their order.
        if !is_later {
            inbox.rotate_left(1);
        }
    }

    /// Everything that waits in the inboxes, oldest first.
    pub fn drain(&mut self) -> Vec<(u16, Event)> {
        let mut all: Vec<(u64, u16, Event)> = Vec::new();
        for (channel, inbox) in &mut self.inboxes {
            all.extend(inbox.drain(..).map(|(at, event)| (at, *channel, event)));
        }
        all.sort_by_key(|(at, ..)| *at);
        all.into_iter().map(|(_, channel, event)| (channel, event)).collect()
    }

    /// Events that wait.
    pub fn waiting(&self) -> usize {
        self.inboxes.values().map(VecDeque::len).sum()
    }

    /// Channels with something in the inbox.
    pub fn busy_channels(&self) -> Vec<u16> {
        self.inboxes.iter().filter(|(_, inbox)| !inbox.is_empty()).map(|(c, _)| *c).collect()
    }

    fn put(&mut self, channel: u16, event: Event) {
        self.arrivals += 1;
        self.inboxes.entry(channel).or_default().push_back((self.arrivals, event));
    }

    fn violation(&mut self, channel: u16, text: String) {
        self.put(channel, Event::Violation(text));
    }

    /// Takes one frame from the front of the input.
    fn take_frame(&mut self) -> bool {
        if self.input.starts_with(b"AMQP") {
            if self.input.len() < 8 {
                return false;
            }
            let greeting = self.input.drain(..8).collect();
            self.put(0, Event::Greeting(greeting));
            return true;
        }
        let Some(head) = self.input.get(..7) else { return false };
        let kind = head[0];
        let channel = u16::from_be_bytes([head[1], head[2]]);
        let size = u32::from_be_bytes([head[3], head[4], head[5], head[6]]) as usize;
        if size as u64 + 8 > u64::from(self.frame_max) {
            let max = self.frame_max;
            self.violation(channel, format!("a frame of {} bytes, agreed are {max}", size + 8));
            self.input.clear();
            return false;
        }
        if self.input.len() < size + 8 {
            return false;
        }
        let payload: Vec<u8> = self.input[7..7 + size].to_vec();
        let end = self.input[7 + size];
        self.input.drain(..size + 8);
        if end != 0xce {
            self.violation(channel, format!("a frame ends in {end:#x}"));
        }
        match kind {
            1 => self.take_method(channel, &payload),
            2 => self.take_header(channel, &payload),
            3 => self.take_body(channel, &payload),
            8 => {
                self.heartbeats += 1;
                if channel != 0 || !payload.is_empty() {
                    self.violation(channel, "a heartbeat with a channel or a payload".to_owned());
                }
            }
            other => self.violation(channel, format!("a frame of type {other}")),
        }
        true
    }

    fn take_method(&mut self, channel: u16, payload: &[u8]) {
        if self.partial.contains_key(&channel) {
            self.violation(channel, "a method inside content".to_owned());
        }
        match decode_method(payload) {
            Err(e) => self.violation(channel, format!("{e}: {payload:?}")),
            Ok(message) if message.method.has_content() => {
                self.partial.insert(channel, Partial { message, missing: None });
            }
            Ok(message) => {
                let name = message.method.name.as_str();
                match name {
                    "connection.open-ok" => self.is_running = true,
                    "connection.close" | "connection.close-ok" => self.is_running = false,
                    _ => {}
                }
                match name {
                    "channel.close" if !self.is_manual => self.reply(channel, [0, 20, 0, 41]),
                    "connection.close" if !self.is_manual => {
                        self.expects_end = true;
                        self.reply(0, [0, 10, 0, 51]);
                    }
                    "connection.close-ok" => self.expects_end = true,
                    "connection.tune" => {
                        if let Some(max @ 1..) = message.number("frame-max") {
                            self.frame_max = max as u32;
                        }
                    }
                    _ => {}
                }
                self.put(channel, Event::Method(message));
            }
        }
    }

    fn reply(&mut self, channel: u16, payload: [u8; 4]) {
        // A broker that is gone already needs no answer.
        let _ = self.stream.send(&frame(1, channel, &payload));
    }

    fn take_header(&mut self, channel: u16, payload: &[u8]) {
        let Some(mut partial) = self.partial.remove(&channel).filter(|p| p.missing.is_none())
        else {
            return self.violation(channel, "a content header out of place".to_owned());
        };
        match decode_header(payload) {
            Err(e) => self.violation(channel, format!("content header: {e}: {payload:?}")),
            Ok((size, content)) => {
                partial.message.content = Some(content);
                partial.missing = Some(size);
                self.finish(channel, partial);
            }
        }
    }

    fn take_body(&mut self, channel: u16, payload: &[u8]) {
        let Some(mut partial) = self.partial.remove(&channel) else {
            return self.violation(channel, "a content body out of place".to_owned());
        };
        let left = partial.missing.and_then(|m| m.checked_sub(payload.len() as u64));
        let (Some(left), Some(Received { body, .. })) = (left, &mut partial.message.content) else {
            return self.violation(channel, "a body longer than its header says".to_owned());
        };
        body.extend_from_slice(payload);
        partial.missing = Some(left);
        self.finish(channel, partial);
    }

    fn finish(&mut self, channel: u16, partial: Partial) {
        if partial.missing == Some(0) {
            self.put(channel, Event::Method(partial.message));
        } else {
            self.partial.insert(channel, partial);
        }
    }
}
