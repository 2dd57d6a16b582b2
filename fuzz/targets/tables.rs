//! A field table's bytes.
#![no_main]

use leveret_amqp::table::{RawTable, RawValue, TableError};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let checked = RawTable::new(data);
    let owned = RawTable::unchecked(data).to_table();
    match (&checked, &owned) {
        (Ok(_), Ok(table)) => {
            let again = table.to_bytes();
            let read = RawTable::new(&again).expect("what was written").to_table();
            // Not compared as values: a NaN is not equal to itself.
            assert_eq!(read.expect("what was written").to_bytes(), again);
        }
        (Err(a), Err(b)) => assert!(a == b || *b == TableError::TooDeep),
        (Ok(_), Err(TableError::TooDeep)) => {}
        (checked, owned) => panic!("{checked:?} {owned:?}"),
    }
    assert_eq!(checked.is_ok(), walk(RawTable::unchecked(data)));
});

/// Reads everything there is through the iterators.
fn walk(table: RawTable<'_>) -> bool {
    let (mut tables, mut arrays) = (vec![table], Vec::new());
    loop {
        let values: Vec<_> = if let Some(table) = tables.pop() {
            table.iter().map(|entry| entry.map(|(_, value)| value)).collect()
        } else if let Some(RawValue::Array(array)) = arrays.pop() {
            array.iter().collect()
        } else {
            return true;
        };
        for value in values {
            match value {
                Ok(RawValue::Table(table)) => tables.push(table),
                Ok(array @ RawValue::Array(_)) => arrays.push(array),
                Ok(_) => {}
                Err(_) => return false,
            }
        }
    }
}
