//! Sessions in bytes and a reader that gathers what a decoder gives, for the tests beside.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test uses a part")]

use bytes::Bytes;
use leveret_amqp::content::{ContentHeader, Properties};
use leveret_amqp::frame::{Decoder, Event, FrameError};
use leveret_amqp::method::{Method, basic, channel, confirm, connection, queue, tx};
use leveret_amqp::outbuf::OutBuf;
use leveret_amqp::table::{RawTable, Table, Value};

pub fn frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![kind];
    out.extend_from_slice(&channel.to_be_bytes());
    out.extend_from_slice(&u32::try_from(payload.len()).unwrap().to_be_bytes());
    out.extend_from_slice(payload);
    out.push(0xCE);
    out
}

/// What came out of the decoder, body parts of one frame joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    Method(u16, Vec<u8>),
    Header(u16, Vec<u8>),
    Body(u16, Vec<u8>),
    Heartbeat,
}

/// A socket's input buffer with a decoder behind it.
pub struct Pump {
    decoder: Decoder,
    buffer: Vec<u8>,
    body: Option<Vec<u8>>,
    pub seen: Vec<Seen>,
}

impl Pump {
    pub fn new(frame_max: u32) -> Self {
        Self { decoder: Decoder::new(frame_max), buffer: vec![], body: None, seen: vec![] }
    }

    pub fn is_between_frames(&self) -> bool {
        self.buffer.is_empty() && self.body.is_none()
    }

    pub fn input(&mut self, piece: &[u8]) -> Result<(), FrameError> {
        self.buffer.extend_from_slice(piece);
        let mut at = 0;
        while let Some((event, used)) = self.decoder.next(&self.buffer[at..])? {
            assert!(used > 0 && at + used <= self.buffer.len());
            at += used;
            match event {
                Event::Method { channel, payload } => {
                    self.seen.push(Seen::Method(channel, payload.to_vec()));
                }
                Event::Header { channel, payload } => {
                    self.seen.push(Seen::Header(channel, payload.to_vec()));
                }
                Event::Heartbeat => self.seen.push(Seen::Heartbeat),
                Event::Body { channel, part, is_last, frame_len } => {
                    let mut body = self.body.take().unwrap_or_default();
                    body.extend_from_slice(part);
                    if is_last {
                        assert_eq!(body.len(), frame_len as usize);
                        self.seen.push(Seen::Body(channel, body));
                    } else {
                        assert!(!part.is_empty());
                        self.body = Some(body);
                    }
                }
            }
        }
        self.buffer.drain(..at);
        Ok(())
    }
}

/// What a server does with a frame's content. True when it was well formed.
pub fn look_into(event: &Event<'_>) -> bool {
    match event {
        Event::Method { payload, .. } => match Method::decode(payload) {
            Ok(method) => {
                let mut out = Vec::new();
                method.encode(&mut out);
                let again = Method::decode(&out).unwrap();
                assert_eq!(again, method);
                true
            }
            Err(error) => {
                assert!(!error.reply_text(payload).is_empty());
                assert!(error.reply_code().is_hard());
                false
            }
        },
        Event::Header { payload, .. } => match ContentHeader::decode(payload) {
            Ok(header) => {
                let peek = header.properties.peek();
                let owned = header.properties.to_owned();
                // Owning refuses depth, peeking refuses text that is none: else they agree.
                if let (Ok(peek), Ok(owned)) = (&peek, &owned) {
                    assert_eq!(peek.priority, owned.priority);
                    assert_eq!(peek.expiration, owned.expiration.as_deref());
                    assert!(owned.to_bytes().len() >= 2);
                }
                peek.is_ok()
            }
            Err(_) => false,
        },
        Event::Body { part, frame_len, .. } => part.len() <= *frame_len as usize,
        Event::Heartbeat => true,
    }
}

pub fn publish(channel: u16, exchange: &str, key: &str, body: &[u8], frame_max: u32) -> Vec<u8> {
    let mut out = OutBuf::new();
    put_publish(&mut out, channel, exchange, key, body, frame_max);
    out.take_rest()
}

fn put_publish(out: &mut OutBuf, ch: u16, exchange: &str, key: &str, body: &[u8], max: u32) {
    let method =
        basic::Publish { exchange, routing_key: key, mandatory: true, ..Default::default() };
    out.put_method(ch, &method);
    let mut headers = Table::new();
    headers.set("x-retries", 3);
    headers.set("list", Value::Array(vec![Value::from("a"), Value::Bool(true), Value::Void]));
    headers.set("nested", Table::from_iter([("k".to_owned(), Value::F64(0.5))]));
    let properties = Properties {
        content_type: Some("text/plain".into()),
        headers: Some(headers),
        delivery_mode: Some(2),
        message_id: Some("id-1".into()),
        ..Default::default()
    };
    out.put_header(ch, 60, body.len() as u64, &properties.to_bytes());
    out.put_body(ch, &Bytes::copy_from_slice(body), max);
}

/// What a publishing client sends after the protocol header.
pub fn client_session() -> Vec<u8> {
    let mut capabilities = Table::new();
    capabilities.set("publisher_confirms", true);
    capabilities.set("consumer_cancel_notify", true);
    let mut properties = Table::new();
    properties.set("product", "test");
    properties.set("capabilities", capabilities);
    let (properties, mut out) = (properties.to_bytes(), OutBuf::new());
    out.put_method(
        0,
        &connection::StartOk {
            client_properties: RawTable::new(&properties).unwrap(),
            mechanism: "PLAIN",
            response: b"\0guest\0guest",
            locale: "en_US",
        },
    );
    out.put_method(0, &connection::TuneOk { channel_max: 2047, frame_max: 4096, heartbeat: 60 });
    out.put_method(0, &connection::Open { virtual_host: "/", ..Default::default() });
    out.put_method(1, &channel::Open::default());
    out.put_method(1, &confirm::Select { no_wait: false });
    let arguments = Table::from_iter([("x-max-length".to_owned(), Value::I32(10))]).to_bytes();
    out.put_method(
        1,
        &queue::Declare {
            queue: "q",
            durable: true,
            arguments: RawTable::new(&arguments).unwrap(),
            ..Default::default()
        },
    );
    put_publish(&mut out, 1, "", "q", b"small", 4096);
    put_publish(&mut out, 1, "", "q", b"", 4096);
    out.put_heartbeat();
    // A body in many frames, one of them empty, with another channel's method between.
    put_publish(&mut out, 1, "amq.topic", "a.b.c", &[0xCE; 300], 64);
    out.put_method(2, &channel::Open::default());
    out.put_bytes(&frame(3, 1, b""));
    put_publish(&mut out, 2, "amq.fanout", "", &[1; 2500], 1000);
    out.put_method(1, &channel::Close { reply_code: 200, reply_text: "ok", ..Default::default() });
    out.put_method(0, &connection::Close { reply_code: 200, ..Default::default() });
    out.take_rest()
}

/// What a consuming client sends, with acknowledgements and a transaction.
pub fn consumer_session() -> Vec<u8> {
    let mut out = OutBuf::new();
    out.put_method(1, &basic::Qos { prefetch_count: 100, ..Default::default() });
    out.put_method(1, &basic::Consume { queue: "q", consumer_tag: "c", ..Default::default() });
    for delivery_tag in 1..20 {
        out.put_method(1, &basic::Ack { delivery_tag, multiple: delivery_tag % 5 == 0 });
    }
    out.put_method(1, &basic::Nack { delivery_tag: 20, multiple: false, requeue: true });
    out.put_heartbeat();
    out.put_method(1, &tx::Select);
    out.put_method(1, &basic::Get { queue: "q", ..Default::default() });
    out.put_method(1, &tx::Commit);
    out.put_method(1, &basic::Cancel { consumer_tag: "c", no_wait: false });
    out.put_method(0, &connection::CloseOk);
    out.take_rest()
}

/// A small random source with a seed (SplitMix64).
pub struct Seeded(pub u64);

impl Seeded {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Below `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}
