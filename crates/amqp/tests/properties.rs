//! What is written is read back the same.

mod common;

use std::io::IoSlice;

use bytes::Bytes;
use common::{Pump, Seen};
use leveret_amqp::content::{Properties, RawProperties};
use leveret_amqp::method::{Encode as _, basic};
use leveret_amqp::outbuf::{BORROW_MIN, OutBuf};
use leveret_amqp::table::{RawTable, RawValue, Table, Value};
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(Value::Bool),
        any::<i8>().prop_map(Value::I8),
        any::<u8>().prop_map(Value::U8),
        any::<i16>().prop_map(Value::I16),
        any::<u16>().prop_map(Value::U16),
        any::<i32>().prop_map(Value::I32),
        any::<u32>().prop_map(Value::U32),
        any::<i64>().prop_map(Value::I64),
        (-1e9f32..1e9).prop_map(Value::F32),
        (-1e99f64..1e99).prop_map(Value::F64),
        (any::<u8>(), any::<i32>()).prop_map(|(scale, value)| Value::Decimal { scale, value }),
        vec(any::<u8>(), 0..40).prop_map(Value::LongStr),
        any::<u64>().prop_map(Value::Timestamp),
        Just(Value::Void),
        vec(any::<u8>(), 0..40).prop_map(Value::Bytes),
    ];
    leaf.prop_recursive(6, 60, 6, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..6).prop_map(Value::Array),
            vec((".{0,8}", inner), 0..6)
                .prop_map(|entries| Value::Table(entries.into_iter().collect())),
        ]
    })
}

fn table() -> impl Strategy<Value = Table> {
    vec((".{0,30}", value()), 0..8).prop_map(|entries| entries.into_iter().collect())
}

fn properties() -> impl Strategy<Value = Properties> {
    let text = || of(".{0,40}");
    (
        (text(), text(), of(table()), of(any::<u8>()), of(any::<u8>()), text(), text()),
        (text(), text(), of(any::<u64>()), text(), text(), text(), text()),
    )
        .prop_map(|(a, b)| Properties {
            content_type: a.0,
            content_encoding: a.1,
            headers: a.2,
            delivery_mode: a.3,
            priority: a.4,
            correlation_id: a.5,
            reply_to: a.6,
            expiration: b.0,
            message_id: b.1,
            timestamp: b.2,
            kind: b.3,
            user_id: b.4,
            app_id: b.5,
            cluster_id: b.6,
        })
}

/// One thing to put, and what the peer sees of it.
#[derive(Clone, Debug)]
enum Put {
    Ack(u16, u64),
    Heartbeat,
    Deliver { channel: u16, tag: String, key: String, body: Vec<u8> },
}

fn put() -> impl Strategy<Value = Put> {
    let lengths = prop_oneof![0..40usize, BORROW_MIN - 2..BORROW_MIN + 2, 3000..9000usize];
    prop_oneof![
        (any::<u16>(), any::<u64>()).prop_map(|(channel, tag)| Put::Ack(channel, tag)),
        Just(Put::Heartbeat),
        (any::<u16>(), "[a-z]{0,20}", "[a-z.]{0,255}", lengths, any::<u8>()).prop_map(
            |(channel, tag, key, len, byte)| Put::Deliver {
                channel,
                tag,
                key,
                body: vec![byte; len]
            }
        ),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn tables(table in table()) {
        let bytes = table.to_bytes();
        let raw = RawTable::new(&bytes).unwrap();
        prop_assert_eq!(&raw.to_table().unwrap(), &table);
        let mut with_length = Vec::new();
        table.encode(&mut with_length);
        prop_assert_eq!(&with_length[4..], &bytes[..]);
        prop_assert_eq!(raw.iter().count(), table.len());
        for (key, _) in table.iter() {
            let found = raw.get(key).unwrap().unwrap();
            // Of a key that comes twice both forms give the first; integers stand for all kinds.
            if let (Some(Value::I64(owned)), RawValue::I64(read)) = (table.get(key), found) {
                prop_assert_eq!(*owned, read);
            }
        }
    }

    /// A table that is checked has nothing in it at which reading could fail, and the other way round.
    #[test]
    fn checking_and_reading_agree(table in table(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = table.to_bytes();
        if !bytes.is_empty() {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        prop_assert_eq!(
            RawTable::new(&bytes).map(|_| ()),
            RawTable::unchecked(&bytes).to_table().map(|_| ())
        );
    }

    #[test]
    fn contents(properties in properties()) {
        let bytes = properties.to_bytes();
        let raw = RawProperties::new(&bytes);
        prop_assert_eq!(&raw.to_owned().unwrap(), &properties);
        let peek = raw.peek().unwrap();
        prop_assert_eq!(peek.expiration, properties.expiration.as_deref());
        prop_assert_eq!(peek.user_id, properties.user_id.as_deref());
        prop_assert_eq!(peek.reply_to, properties.reply_to.as_deref());
        prop_assert_eq!(peek.priority, properties.priority);
        prop_assert_eq!(peek.delivery_mode, properties.delivery_mode);
        prop_assert_eq!(peek.headers.map(|raw| raw.to_table().unwrap()), properties.headers);
    }

    /// A peer reads from the buffer, at any pace, what was put in.
    #[test]
    fn outbuf_to_decoder(
        puts in vec(put(), 1..20),
        steps in vec(1..5000usize, 1..10),
        frame_max in prop_oneof![Just(4096u32), Just(131_072), Just(9), Just(0)],
    ) {
        let (mut out, mut want) = (OutBuf::new(), Vec::new());
        let mut peer = Pump::new(if frame_max == 9 { 4096 } else { frame_max });
        let mut steps = steps.into_iter().cycle();
        for put in puts {
            apply(&put, &mut out, &mut want, frame_max);
            write(&mut out, &mut peer, steps.next().unwrap());
        }
        while !out.is_empty() {
            write(&mut out, &mut peer, steps.next().unwrap());
        }
        prop_assert!(peer.is_between_frames());
        prop_assert!(peer.seen == want);
    }
}

/// One system call: at most `step` bytes in at most four pieces.
fn write(out: &mut OutBuf, peer: &mut Pump, step: usize) {
    let mut slices = [IoSlice::new(&[]); 4];
    let filled = out.slices(&mut slices, usize::MAX);
    let bytes: Vec<u8> =
        slices[..filled].iter().flat_map(|slice| slice.iter().copied()).take(step).collect();
    peer.input(&bytes).unwrap();
    out.advance(bytes.len());
}

fn apply(put: &Put, out: &mut OutBuf, want: &mut Vec<Seen>, frame_max: u32) {
    match put {
        Put::Heartbeat => {
            out.put_heartbeat();
            want.push(Seen::Heartbeat);
        }
        Put::Ack(channel, delivery_tag) => {
            let ack = basic::Ack { delivery_tag: *delivery_tag, multiple: false };
            out.put_method(*channel, &ack);
            let mut payload = Vec::new();
            ack.encode(&mut payload);
            want.push(Seen::Method(*channel, payload));
        }
        Put::Deliver { channel, tag, key, body } => {
            let mut names = vec![1, b'x', key.len() as u8];
            names.extend_from_slice(key.as_bytes());
            let content = Bytes::copy_from_slice(body);
            out.put_deliver(*channel, tag, 9, true, &names, b"\0\0", &content, 0, frame_max);
            let deliver = basic::Deliver {
                consumer_tag: tag,
                delivery_tag: 9,
                redelivered: true,
                exchange: "x",
                routing_key: key,
            };
            let mut payload = Vec::new();
            deliver.encode(&mut payload);
            want.push(Seen::Method(*channel, payload));
            let mut header = vec![0, 60, 0, 0];
            header.extend_from_slice(&(body.len() as u64).to_be_bytes());
            header.extend_from_slice(&[0, 0]);
            want.push(Seen::Header(*channel, header));
            let part = if frame_max == 0 { usize::MAX } else { frame_max as usize - 8 };
            want.extend(body.chunks(part).map(|part| Seen::Body(*channel, part.to_vec())));
        }
    }
}
