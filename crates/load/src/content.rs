//! What messages are made of: bodies and properties.

use std::io::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use flate2::Compression;
use flate2::write::GzEncoder;
use leveret_client::amqp::content::Properties;
use leveret_client::amqp::table::{Table, Value};
use leveret_client::files::read_at_most;

use crate::args::values::{Pair, plain, timestamp};
use crate::args::{Flag, Options};
use crate::stamp;
use crate::steps::Steps;
use crate::verify::HEAD_BYTES;

/// Size of a body when nothing is said: a stamp and no more.
const SIZE: u64 = 12;

/// The longest body that brokers can be told to take, as RabbitMQ has it.
const BODY_BYTES_MAX: u64 = 512 << 20;

/// Where bodies come from.
#[derive(Clone, Debug)]
pub(crate) enum Bodies {
    /// A stamp and zeros, of a size that may vary.
    Zeros(Steps),
    /// These, one after the other.
    Given(Vec<Vec<u8>>),
}

/// What compressing has saved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Savings {
    pub(crate) before: u64,
    pub(crate) after: u64,
    /// For all bodies together.
    pub(crate) took: Duration,
    pub(crate) bodies: usize,
}

/// What is the same in all messages.
#[derive(Clone, Debug)]
pub(crate) struct Content {
    pub(crate) bodies: Bodies,
    /// Bodies in each message, if they are packed.
    pub(crate) packed: Option<u64>,
    pub(crate) compressed: Option<Savings>,
    /// Bodies have no zeros but something to be checked.
    pub(crate) is_verified: bool,
    /// As on the wire, from the property flags on.
    pub(crate) properties: Vec<u8>,
    /// Where in the properties the time is, if it is there.
    pub(crate) time_at: Option<usize>,
}

impl Content {
    pub(crate) fn new(options: &Options) -> Result<Self> {
        let args = &options.publishing;
        let extras = &options.extras;
        let usual = if extras.verify { HEAD_BYTES as u64 } else { SIZE };
        let size = args.size.map_or(usual, |size| size as u64);
        let mut bodies = if args.json_body {
            let make = || json(size as usize, args.body_field_count, args.body_count);
            Bodies::Given(make())
        } else if !args.body.is_empty() {
            let read = args.body.iter().map(|path| {
                read_at_most(path, BODY_BYTES_MAX)
                    .with_context(|| format!("reading --body {}", path.display()))
            });
            Bodies::Given(read.collect::<Result<_>>()?)
        } else {
            Bodies::Zeros(Steps::new(&args.variable_size).unwrap_or_else(|| Steps::fixed(size)))
        };
        let packed = extras.pack.filter(|count| *count > 0);
        if let Some(count) = packed {
            bodies = Bodies::Given(pack(bodies.plain(), count));
        }
        let mut properties = properties(options)?;
        let mut compressed = None;
        if extras.compress {
            let (small, savings) = compress(&bodies.plain())?;
            (bodies, compressed) = (Bodies::Given(small), Some(savings));
            properties.content_encoding = Some("gzip".into());
        }
        if matches!(bodies, Bodies::Given(_)) {
            let headers = properties.headers.get_or_insert_default();
            headers.remove(stamp::HEADER);
            headers.insert_front(stamp::HEADER, Value::I64(0));
        }
        let content = Self::of(bodies, &properties);
        Ok(Self { packed, compressed, is_verified: extras.verify, ..content })
    }

    fn of(bodies: Bodies, properties: &Properties) -> Self {
        let bytes = |properties: &Properties| {
            let mut bytes = Vec::new();
            properties.encode(&mut bytes);
            bytes
        };
        let given = matches!(bodies, Bodies::Given(_));
        let mut other = properties.clone();
        if let Some(time) = other.headers.as_mut().and_then(|it| it.get_mut(stamp::HEADER)) {
            *time = Value::I64(-1);
        }
        let (properties, other) = (bytes(properties), bytes(&other));
        // Eight zeros became eight times 255: that is where the time goes.
        let time_at = properties.iter().zip(&other).position(|(old, new)| old != new);
        let time_at = time_at.filter(|_| given);
        Self { bodies, packed: None, compressed: None, is_verified: false, properties, time_at }
    }

    /// The usual size of a body, for the result.
    pub(crate) fn body_bytes(&self) -> u64 {
        match &self.bodies {
            Bodies::Zeros(sizes) => sizes.at(0),
            Bodies::Given(bodies) => {
                let all: usize = bodies.iter().map(Vec::len).sum();
                all as u64 / bodies.len().max(1) as u64
            }
        }
    }
}

impl Bodies {
    /// Bodies whose time is not in themselves.
    fn plain(&self) -> Vec<Vec<u8>> {
        match self {
            Self::Zeros(sizes) => sizes.values().map(|size| vec![0; size as usize]).collect(),
            Self::Given(bodies) => bodies.clone(),
        }
    }
}

/// Puts `count` bodies into one, each behind its length. As many as there are bodies come of it, so that
/// each of them is used.
fn pack(bodies: Vec<Vec<u8>>, count: u64) -> Vec<Vec<u8>> {
    let mut all = bodies.iter().cycle();
    let mut one = || {
        let mut packed = Vec::new();
        for body in all.by_ref().take(usize::try_from(count).unwrap_or(usize::MAX)) {
            packed.extend_from_slice(&(body.len() as u32).to_be_bytes());
            packed.extend_from_slice(body);
        }
        packed
    };
    bodies.iter().map(|_| one()).collect()
}

/// How many bodies a packed one holds; those that are cut off do not count.
pub(crate) fn unpack(mut packed: &[u8]) -> u64 {
    let mut count = 0;
    while let Some((length, rest)) = packed.split_first_chunk() {
        let Some(rest) = rest.get(u32::from_be_bytes(*length) as usize..) else { break };
        packed = rest;
        count += 1;
    }
    count
}

fn compress(bodies: &[Vec<u8>]) -> Result<(Vec<Vec<u8>>, Savings)> {
    let began = Instant::now();
    let small = bodies.iter().map(|body| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(body).and_then(|()| encoder.finish()).context("compressing a body")
    });
    let small = small.collect::<Result<Vec<_>>>()?;
    let bytes = |bodies: &[Vec<u8>]| bodies.iter().map(|body| body.len() as u64).sum();
    let savings = Savings {
        before: bytes(bodies),
        after: bytes(&small),
        took: began.elapsed(),
        bodies: bodies.len(),
    };
    Ok((small, savings))
}

/// The properties that the options name, in PerfTest's words.
fn properties(options: &Options) -> Result<Properties> {
    let args = &options.publishing;
    let of_type = options.topology.quorum_queue || options.topology.stream_queue;
    let mut properties = Properties {
        delivery_mode: (of_type || options.has(Flag::Persistent)).then_some(2),
        content_type: args
            .body_content_type
            .clone()
            .or_else(|| args.json_body.then(|| "application/json".into())),
        ..Properties::default()
    };
    let mut headers = Table::default();
    for Pair(key, value) in &args.message_properties {
        let number = || {
            let octet = value.as_i64().and_then(|number| u8::try_from(number).ok());
            octet.with_context(|| format!("message property {key} is a number from 0 to 255"))
        };
        let text = || Some(plain(value));
        match &**key {
            "contentType" => properties.content_type = text(),
            "contentEncoding" => properties.content_encoding = text(),
            "deliveryMode" => properties.delivery_mode = Some(number()?),
            "priority" => properties.priority = Some(number()?),
            "correlationId" => properties.correlation_id = text(),
            "replyTo" => properties.reply_to = text(),
            "expiration" => properties.expiration = text(),
            "messageId" => properties.message_id = text(),
            "timestamp" => {
                let time = timestamp(&plain(value));
                let time =
                    time.context("message property timestamp is such as 2022-06-03T07:45:54Z")?;
                properties.timestamp = Some(time);
            }
            "type" => properties.kind = text(),
            "userId" => properties.user_id = text(),
            "appId" => properties.app_id = text(),
            "clusterId" => properties.cluster_id = text(),
            _ => headers.set(key, value.clone()),
        }
    }
    properties.headers = (!headers.is_empty()).then_some(headers);
    Ok(properties)
}

/// Random JSON documents of at least `size` bytes, as PerfTest makes them: flat, with fields and values
/// from a stock.
fn json(size: usize, fields: usize, count: usize) -> Vec<Vec<u8>> {
    const LOWER: &[u8] = b"abcdefghijklmnopqrstuvwxyz";
    const ANY: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    let stock: Vec<(String, String)> =
        (0..fields).map(|_| (word(30, LOWER), word(200, ANY))).collect();
    let document = || {
        let mut text = "{ ".to_owned();
        let start = rand::random_range(0..fields);
        for at in 0.. {
            let name = &stock[(start + at) % fields].0;
            let value = &stock[rand::random_range(0..fields)].1;
            text.push_str(&format!("\"{name}\" : \"{value}\""));
            if text.len() >= size {
                break;
            }
            text.push(',');
        }
        text.push_str(" }");
        text.into_bytes()
    };
    (0..count).map(|_| document()).collect()
}

/// A word of at least five letters.
fn word(length_max: usize, letters: &[u8]) -> String {
    let length = rand::random_range(5..=length_max);
    (0..length).map(|_| char::from(letters[rand::random_range(0..letters.len())])).collect()
}

/// A routing key for one message, of always the same length.
pub(crate) fn random_key() -> [u8; KEY_BYTES] {
    let mut bits: u128 = rand::random();
    std::array::from_fn(|at| {
        if matches!(at, 8 | 13 | 18 | 23) {
            return b'-';
        }
        let digit = b"0123456789abcdef"[bits as usize & 15];
        bits >>= 4;
        digit
    })
}

/// Length of a [`random_key`]: that of a UUID.
pub(crate) const KEY_BYTES: usize = 36;

#[cfg(test)]
mod tests {
    use super::*;
    use leveret_client::amqp::content::RawProperties;

    fn content(line: &str) -> Content {
        Content::new(&Options::read(line.split_whitespace().map(Into::into)).unwrap()).unwrap()
    }

    #[test]
    fn properties_and_headers_are_told_apart() {
        let content =
            content("-mp priority=5,appId=7,x-mine=hello,timestamp=1970-01-01T00:01:00Z -T text/x");
        let read = RawProperties::new(&content.properties).to_owned().unwrap();
        assert_eq!((read.priority, read.app_id.as_deref()), (Some(5), Some("7")));
        assert_eq!((read.timestamp, read.content_type.as_deref()), (Some(60), Some("text/x")));
        assert_eq!(read.headers.unwrap().get("x-mine").and_then(Value::as_str), Some("hello"));
        assert_eq!(content.time_at, None);
        let wrong = Options::read(["-mp".into(), "priority=high".into()]).unwrap();
        assert!(Content::new(&wrong).unwrap_err().to_string().contains("0 to 255"));
    }

    #[test]
    fn given_bodies_have_their_time_in_a_header() {
        let content = content("-jb -s 500 -bc 3 -bfc 20 -mp x-mine=1");
        let Bodies::Given(bodies) = &content.bodies else { panic!("{content:?}") };
        assert_eq!(bodies.len(), 3);
        for body in bodies {
            assert!(body.len() >= 500);
            serde_json::from_slice::<serde_json::Value>(body).unwrap();
        }
        let mut bytes = content.properties.clone();
        let at = content.time_at.unwrap();
        bytes[at..at + 8].copy_from_slice(&77_u64.to_be_bytes());
        assert_eq!(stamp::read_header(RawProperties::new(&bytes)), Some(77));
    }

    #[test]
    fn packed_bodies_are_counted_again() {
        let content = content("--pack 20 -s 32");
        let Bodies::Given(bodies) = &content.bodies else { panic!("{content:?}") };
        assert_eq!((bodies.len(), bodies[0].len()), (1, 20 * 36));
        assert_eq!((unpack(&bodies[0]), unpack(&bodies[0][..719]), unpack(&[])), (20, 19, 0));
        assert!(content.time_at.is_some());
        let bodies = pack(vec![vec![1; 3], vec![2; 5]], 3);
        assert_eq!([bodies[0].len(), bodies[1].len()], [3 + 5 + 3 + 12, 5 + 3 + 5 + 12]);
    }

    #[test]
    fn compressed_bodies_tell_what_they_saved() {
        let content = content("--compress -s 5000");
        let savings = content.compressed.unwrap();
        assert_eq!((savings.before, savings.bodies), (5000, 1));
        assert!(savings.after < 500 && content.body_bytes() == savings.after);
        let read = RawProperties::new(&content.properties).to_owned().unwrap();
        assert_eq!(read.content_encoding.as_deref(), Some("gzip"));
    }

    #[test]
    fn keys_differ() {
        let (one, two) = (random_key(), random_key());
        assert_ne!(one, two);
        assert!(one.is_ascii() && one[8] == b'-');
    }
}
