//! The generated methods against the table they are made of, which is read here a second time.

mod common;

use common::Seeded;
use leveret_amqp::method::{Method, MethodError};

struct Row {
    name: String,
    id: (u16, u16),
    is_sync: bool,
    has_content: bool,
    fields: Vec<String>,
}

fn rows() -> Vec<Row> {
    let mut class = (0, "");
    let mut rows: Vec<Row> = Vec::new();
    for line in include_str!("../spec/amqp0-9-1.txt").lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["class", id, name] => class = (id.parse().unwrap(), name),
            ["method", id, name, ..] => rows.push(Row {
                name: format!("{}.{name}", class.1),
                id: (class.0, id.parse().unwrap()),
                is_sync: words.contains(&"sync"),
                has_content: words.contains(&"content"),
                fields: vec![],
            }),
            [kind, _] if line.starts_with("  ") => {
                rows.last_mut().unwrap().fields.push(kind.to_owned());
            }
            _ => {}
        }
    }
    rows
}

/// A payload of this method with fields of random content.
fn payload(row: &Row, rng: &mut Seeded) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend_from_slice(&row.id.0.to_be_bytes());
    out.extend_from_slice(&row.id.1.to_be_bytes());
    let mut bits = 0;
    for kind in &row.fields {
        let random = rng.next().to_be_bytes();
        if kind == "bit" {
            if bits == 0 {
                out.push(0);
            }
            *out.last_mut().unwrap() |= (random[0] & 1) << bits;
            bits += 1;
            continue;
        }
        bits = 0;
        let text = "a.\u{e4}#".repeat(rng.below(20));
        match kind.as_str() {
            "octet" => out.push(random[0]),
            "short" => out.extend_from_slice(&random[..2]),
            "long" => out.extend_from_slice(&random[..4]),
            "longlong" => out.extend_from_slice(&random),
            "shortstr" => {
                out.push(u8::try_from(text.len()).unwrap());
                out.extend_from_slice(text.as_bytes());
            }
            "longstr" => {
                out.extend_from_slice(&u32::try_from(text.len()).unwrap().to_be_bytes());
                out.extend_from_slice(text.as_bytes());
            }
            "table" if random[0] & 1 == 0 => out.extend_from_slice(&[0; 4]),
            "table" => out.extend_from_slice(b"\0\0\0\x0d\x01kF\0\0\0\x06\x01aI\0\0\0"),
            other => panic!("{other}"),
        }
        if kind == "table" && out.ends_with(b"I\0\0\0") {
            // The inner integer's last byte, and the lengths that go with it.
            out.push(random[1]);
            let at = out.len() - 18;
            out[at..at + 4].copy_from_slice(&14u32.to_be_bytes());
            out[at + 7..at + 11].copy_from_slice(&7u32.to_be_bytes());
        }
    }
    out
}

#[test]
fn every_method_round_trips() {
    let rows = rows();
    assert_eq!(rows.len(), 66);
    let mut rng = Seeded(1);
    for row in &rows {
        for _ in 0..100 {
            let bytes = payload(row, &mut rng);
            let method = Method::decode(&bytes).unwrap_or_else(|e| panic!("{}: {e}", row.name));
            assert_eq!((method.name(), method.id()), (row.name.as_str(), row.id));
            assert_eq!(method.is_synchronous(), row.is_sync, "{}", row.name);
            assert_eq!(method.has_content(), row.has_content, "{}", row.name);
            let mut again = Vec::new();
            method.encode(&mut again);
            assert_eq!(again, bytes, "{}", row.name);
        }
    }
}

#[test]
fn every_cut_and_every_extra_byte_is_refused() {
    let mut rng = Seeded(2);
    for row in rows() {
        let mut bytes = payload(&row, &mut rng);
        for cut in 0..bytes.len() {
            assert!(Method::decode(&bytes[..cut]).is_err(), "{} cut at {cut}", row.name);
        }
        bytes.push(0);
        assert_eq!(Method::decode(&bytes), Err(MethodError::TrailingBytes), "{}", row.name);
    }
}

#[test]
fn every_other_number_is_unknown() {
    let rows = rows();
    for class in 0..=100 {
        for method in 0..=130 {
            let known = rows.iter().any(|row| row.id == (class, method));
            let payload = [class.to_be_bytes(), method.to_be_bytes()].concat();
            let want = if rows.iter().any(|row| row.id.0 == class) {
                MethodError::UnknownMethod(class, method)
            } else {
                MethodError::UnknownClass(class)
            };
            let got = Method::decode(&payload);
            assert_eq!(got == Err(want), !known, "{class}.{method}: {got:?}");
        }
    }
}
