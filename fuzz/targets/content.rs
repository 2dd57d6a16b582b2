//! Property flags and fields.
#![no_main]

use leveret_amqp::content::{ContentError, RawProperties};
use leveret_amqp::table::TableError;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let raw = RawProperties::new(data);
    match (raw.peek(), raw.to_owned()) {
        (Ok(peek), Ok(owned)) => {
            assert_eq!(peek.delivery_mode, owned.delivery_mode);
            assert_eq!(peek.priority, owned.priority);
            assert_eq!(peek.expiration, owned.expiration.as_deref());
            assert_eq!(peek.user_id, owned.user_id.as_deref());
            assert_eq!(peek.headers.is_some(), owned.headers.is_some());
            let again = owned.to_bytes();
            let read = RawProperties::new(&again).to_owned().expect("what was written");
            assert_eq!(read.to_bytes(), again);
        }
        (Err(a), Err(b)) => {
            let too_deep = b == ContentError::Headers(TableError::TooDeep);
            assert!(a == b || a == ContentError::BadUtf8 || too_deep, "{a:?} {b:?}");
        }
        (Ok(_), Err(ContentError::Headers(TableError::TooDeep))) => {}
        // Owning replaces what is not UTF-8.
        (Err(ContentError::BadUtf8), Ok(_)) => {}
        (peek, owned) => panic!("{peek:?} {owned:?}"),
    }
});
