use super::*;

fn sample() -> Table {
    let mut inner = Table::new();
    inner.set("deep", "x");
    let mut table = Table::new();
    for (key, value) in [
        ("t", Value::Bool(true)),
        ("b", Value::I8(-1)),
        ("B", Value::U8(255)),
        ("s", Value::I16(-2)),
        ("u", Value::U16(65535)),
        ("I", Value::I32(-3)),
        ("i", Value::U32(u32::MAX)),
        ("l", Value::I64(i64::MIN)),
        ("f", Value::F32(1.5)),
        ("d", Value::F64(-2.25)),
        ("D", Value::Decimal { scale: 2, value: 314 }),
        ("S", Value::from("text")),
        ("A", Value::Array(vec![Value::I32(1), Value::Array(vec![]), Value::Void])),
        ("T", Value::Timestamp(1_700_000_000)),
        ("F", Value::Table(inner)),
        ("V", Value::Void),
        ("x", Value::Bytes(vec![0, 255])),
    ] {
        table.set(key, value);
    }
    table
}

#[test]
fn every_kind_round_trips() {
    let table = sample();
    let bytes = table.to_bytes();
    let raw = RawTable::new(&bytes).unwrap();
    assert_eq!(raw.to_table().unwrap(), table);
    for (key, value) in table.iter() {
        // Each kind is written with the letter that is its key here.
        let mut one = Vec::new();
        value.encode(&mut one);
        assert_eq!(one[0], key.as_bytes()[0]);
        assert!(raw.get(key).unwrap().is_some());
    }
    assert_eq!(raw.get("deep").unwrap(), None);
}

#[test]
fn every_cut_is_refused() {
    let bytes = sample().to_bytes();
    let boundaries: Vec<usize> = {
        let mut at = vec![0];
        for (key, value) in sample().iter() {
            let mut one = Vec::new();
            value.encode(&mut one);
            at.push(at.last().unwrap() + 1 + key.len() + one.len());
        }
        at
    };
    for cut in 0..=bytes.len() {
        let whole = boundaries.contains(&cut);
        assert_eq!(RawTable::new(&bytes[..cut]).is_ok(), whole, "cut at {cut}");
        assert_eq!(Table::decode(RawTable::unchecked(&bytes[..cut])).is_ok(), whole);
    }
}

#[test]
fn big_l_is_signed_too() {
    let raw = RawTable::new(b"\x01kL\xff\xff\xff\xff\xff\xff\xff\xff").unwrap();
    assert_eq!(raw.get("k"), Ok(Some(RawValue::I64(-1))));
}

#[test]
fn odd_keys() {
    // Empty, twice, and not UTF-8: all pass in RabbitMQ.
    let raw = RawTable::new(b"\x00t\x01\x01ab\x01\x01ab\x02\x02\xff\xfeV").unwrap();
    assert_eq!(raw.get(""), Ok(Some(RawValue::Bool(true))));
    assert_eq!(raw.get("a"), Ok(Some(RawValue::I8(1))));
    let mut table = raw.to_table().unwrap();
    assert_eq!(table.len(), 4);
    assert_eq!(table.remove("a"), Some(Value::I8(1)));
    assert_eq!(table.get("a"), None);
}

/// A table in a table in a table, `depth` of them.
fn nested(depth: usize, kind: u8) -> Vec<u8> {
    let (entry, size) = if kind == b'F' { (&b"\x01kF"[..], 7) } else { (&b"A"[..], 5) };
    let mut out = if kind == b'F' { Vec::new() } else { b"\x01kA\0\0\0\0".to_vec() };
    let mut left = (depth - 1) * size;
    if kind == b'A' {
        out[3..7].copy_from_slice(&u32::try_from(left).unwrap().to_be_bytes());
    }
    for _ in 1..depth {
        left -= size;
        out.extend_from_slice(entry);
        out.extend_from_slice(&u32::try_from(left).unwrap().to_be_bytes());
    }
    out
}

#[test]
fn depth_is_no_danger() {
    for kind in [b'F', b'A'] {
        let deep = nested(15_000, kind);
        let raw = RawTable::new(&deep).unwrap();
        assert_eq!(raw.to_table(), Err(TableError::TooDeep));
    }
    let table = RawTable::new(&nested(MAX_DEPTH, b'F')).unwrap().to_table().unwrap();
    assert_eq!(table.to_bytes(), nested(MAX_DEPTH, b'F'));
    assert_eq!(
        RawTable::unchecked(&nested(MAX_DEPTH + 1, b'F')).to_table(),
        Err(TableError::TooDeep)
    );
    // What is not too deep can be had without the rest.
    let mixed = [&nested(MAX_DEPTH + 1, b'F')[..], b"\x01bV", &nested(MAX_DEPTH, b'F')].concat();
    let table = RawTable::new(&mixed).unwrap().to_table_within_depth();
    assert_eq!(table.to_bytes(), [b"\x01bV", &nested(MAX_DEPTH, b'F')[..]].concat());
}

#[test]
fn a_level_that_lies() {
    // The inner table claims one byte more than the outer one has, one less than its entry needs.
    assert_eq!(RawTable::new(b"\x01aF\0\0\0\x04\x01bV"), Err(TableError::Truncated));
    assert_eq!(RawTable::new(b"\x01aF\0\0\0\x02\x01bV"), Err(TableError::Truncated));
    assert_eq!(RawTable::new(b"\x01aS\xff\xff\xff\xffabc"), Err(TableError::Truncated));
    assert_eq!(RawTable::new(b"\x01aZ"), Err(TableError::UnknownKind(b'Z')));
}
