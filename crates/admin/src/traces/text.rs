//! A copied message as it stands in a file, in RabbitMQ's two formats.

use std::io::{self, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use leveret_amqp::content::RawProperties;
use leveret_amqp::table::{Table, Value};
use leveret_broker::record::View;
use leveret_topology::table_to_json;
use serde_json::{Value as Json, json};

use super::term;
use crate::date;

/// Bytes of a payload that are written at once; three bytes make four letters of base64.
const PIECE: usize = 48 << 10;

/// How files are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// For people.
    Text,
    /// A document on each line.
    Json,
}

impl Format {
    /// The one of this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name {
            "text" => Some(Self::Text),
            "json" => Some(Self::Json),
            _ => None,
        }
    }

    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

/// A copied message: what is written before its payload, and after it.
#[derive(Debug)]
pub(super) struct CopiedMessage<'a> {
    format: Format,
    head: Vec<u8>,
    payload: &'a [u8],
    is_utf8: bool,
    tail: Vec<u8>,
}

impl<'a> CopiedMessage<'a> {
    /// Of a record, cut to so many bytes of payload. None if the record cannot be read.
    pub(super) fn of(
        record: &'a Bytes,
        format: Format,
        payload_max: Option<u64>,
        now_ms: u64,
    ) -> Option<Self> {
        let view = View::of(record)?;
        let (_, key) = view.exchange_and_key()?;
        let headers = RawProperties::new(view.properties).to_owned().ok()?.headers;
        let copied = Copied { key, headers: headers.unwrap_or_default(), now_ms };
        let whole = view.body_bytes();
        let max = payload_max.and_then(|max| usize::try_from(max).ok()).unwrap_or(usize::MAX);
        let payload = whole.get(..max).unwrap_or(whole);
        let (head, tail) = match format {
            Format::Text => (copied.text().into_bytes(), b"\n".to_vec()),
            Format::Json => copied.json(),
        };
        let is_utf8 = format == Format::Text && std::str::from_utf8(payload).is_ok();
        Some(Self { format, head, payload, is_utf8, tail })
    }

    /// Bytes that it takes in the file.
    pub(super) fn len(&self) -> u64 {
        let payload = match self.format {
            Format::Json => self.payload.len().div_ceil(3) * 4,
            Format::Text if self.is_utf8 => self.payload.len(),
            Format::Text => {
                self.payload.len() + self.payload.iter().filter(|byte| **byte >= 0x80).count()
            }
        };
        (self.head.len() + payload + self.tail.len()) as u64
    }

    /// Writes it, the payload in pieces.
    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(&self.head)?;
        match self.format {
            Format::Json => {
                let mut letters = String::new();
                for piece in self.payload.chunks(PIECE) {
                    letters.clear();
                    STANDARD.encode_string(piece, &mut letters);
                    out.write_all(letters.as_bytes())?;
                }
            }
            Format::Text if self.is_utf8 => out.write_all(self.payload)?,
            // As Erlang does it: what is not UTF-8 is Latin-1.
            Format::Text => {
                for piece in self.payload.chunks(PIECE) {
                    let letters: String = piece.iter().map(|&byte| char::from(byte)).collect();
                    out.write_all(letters.as_bytes())?;
                }
            }
        }
        out.write_all(&self.tail)
    }
}

/// What a file says where messages are missing.
pub(super) fn lost(count: u64, format: Format, now_ms: u64) -> String {
    let timestamp = date::utc_ms(now_ms);
    match format {
        Format::Text => {
            format!("\n{}\n{timestamp}: {count} messages were not written\n", "=".repeat(80))
        }
        Format::Json => {
            let line = json!({"timestamp": timestamp, "type": "not_written", "messages": count});
            format!("{line}\n")
        }
    }
}

/// What is written of a message beside its payload.
struct Copied<'a> {
    key: &'a str,
    headers: Table,
    now_ms: u64,
}

impl Copied<'_> {
    fn bytes(&self, name: &str) -> &[u8] {
        match self.headers.get(name) {
            Some(Value::LongStr(text)) => text,
            _ => b"",
        }
    }

    fn string(&self, name: &str) -> String {
        String::from_utf8_lossy(self.bytes(name)).into_owned()
    }

    fn list(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        let items = match self.headers.get(name) {
            Some(Value::Array(items)) => items.as_slice(),
            _ => &[],
        };
        items.iter().filter_map(|item| match item {
            Value::LongStr(text) => Some(text.as_slice()),
            _ => None,
        })
    }

    fn strings(&self, name: &str) -> Json {
        self.list(name).map(|text| Json::from(String::from_utf8_lossy(text))).collect()
    }

    /// The queue that the message was delivered from; none when it was published.
    fn queue(&self) -> Option<&str> {
        self.key.strip_prefix("deliver.")
    }

    /// RabbitMQ's words.
    fn kind(&self) -> &'static str {
        if self.queue().is_some() { "received" } else { "published" }
    }

    fn channel(&self) -> i64 {
        self.headers.get("channel").and_then(Value::as_i64).unwrap_or_default()
    }

    fn text(&self) -> String {
        let mut text = format!("\n{}\n", "=".repeat(80));
        text += &format!("{}: Message {}\n\n", date::utc_ms(self.now_ms), self.kind());
        text += &format!("Node:         {}\n", self.string("node"));
        text += &format!("Connection:   {}\n", self.string("connection"));
        text += &format!("Virtual host: {}\n", self.string("vhost"));
        text += &format!("User:         {}\n", self.string("user"));
        text += &format!("Channel:      {}\n", self.channel());
        text += &format!("Exchange:     {}\n", self.string("exchange_name"));
        text += &format!("Routing keys: {}\n", term::binaries(self.list("routing_keys"), 14));
        match self.queue() {
            Some(queue) => text += &format!("Queue:        {queue}\n"),
            None => {
                let queues = term::binaries(self.list("routed_queues"), 15);
                text += &format!("Routed queues: {queues}\n");
            }
        }
        let properties = match self.headers.get("properties") {
            Some(Value::Table(table)) => term::table(table, 14),
            _ => "[]".to_owned(),
        };
        text + &format!("Properties:   {properties}\nPayload: \n")
    }

    /// A document up to its payload, and from there on.
    fn json(&self) -> (Vec<u8>, Vec<u8>) {
        let properties = match self.headers.get("properties") {
            Some(Value::Table(table)) => table_to_json(table),
            _ => json!({}),
        };
        // Erlang's word for nothing.
        let none = || Json::from("none");
        let head = json!({
            "channel": self.channel(),
            "connection": self.string("connection"),
            "exchange": self.string("exchange_name"),
            "node": self.string("node"),
            "payload": "",
        });
        let tail = json!({
            "properties": properties,
            "queue": self.queue().map_or_else(none, Json::from),
            "routed_queues": if self.queue().is_some() { none() } else { self.strings("routed_queues") },
            "routing_keys": self.strings("routing_keys"),
            "timestamp": date::utc_ms(self.now_ms),
            "type": self.kind(),
            "user": self.string("user"),
            "vhost": self.string("vhost"),
        });
        let mut head = head.to_string();
        // Up to the quote that begins the payload, which is the last of its names.
        head.truncate(head.len().saturating_sub(2));
        let tail = tail.to_string();
        let tail = format!("\",{}\n", tail.get(1..).unwrap_or_default());
        (head.into_bytes(), tail.into_bytes())
    }
}
