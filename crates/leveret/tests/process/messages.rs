//! Messages that say who sent them and which they are, so that what comes back can be compared with what
//! was sent; and the random numbers that tests draw from a seed.

use leveret_client::amqp::content::{Properties, RawProperties};
use leveret_client::amqp::table::{Table, Value};

/// SplitMix64: the same seed gives the same test.
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Less than `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }
}

/// Which message it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) publisher: u32,
    pub(crate) number: u32,
}

impl Key {
    /// The body: the key, and as many bytes as only this key has.
    pub(crate) fn body(self) -> Vec<u8> {
        let mut body = self.publisher.to_be_bytes().to_vec();
        body.extend(self.number.to_be_bytes());
        let mut random = Random(u64::from(self.publisher) << 32 | u64::from(self.number));
        let words = match random.below(100) {
            0 => random.below(16_384),
            1..10 => random.below(512),
            _ => random.below(16),
        };
        body.extend((0..words).flat_map(|_| random.next().to_le_bytes()));
        body
    }

    pub(crate) fn priority(self) -> u8 {
        (self.number % 5) as u8
    }

    /// Persistent, with its name as message id and in a header.
    pub(crate) fn properties(self, expiration_ms: Option<u64>) -> Vec<u8> {
        let mut headers = Table::default();
        headers.set("number", Value::I64(i64::from(self.number)));
        let properties = Properties {
            delivery_mode: Some(2),
            priority: Some(self.priority()),
            message_id: Some(self.name()),
            expiration: expiration_ms.map(|ms| ms.to_string()),
            headers: Some(headers),
            ..Properties::default()
        };
        properties.to_bytes()
    }

    fn name(self) -> String {
        format!("{}-{}", self.publisher, self.number)
    }

    /// The message that came: byte for byte what was sent under this key.
    #[track_caller]
    pub(crate) fn of(properties: RawProperties<'_>, body: &[u8]) -> Self {
        let word = |at: usize| {
            let bytes = body.get(at..at + 4).unwrap_or_else(|| panic!("nobody sent {body:?}"));
            u32::from_be_bytes(bytes.try_into().unwrap())
        };
        let key = Self { publisher: word(0), number: word(4) };
        assert!(body == key.body(), "{key:?} came with another body");
        let properties = properties.to_owned().unwrap();
        assert_eq!(properties.message_id, Some(key.name()));
        assert_eq!(properties.delivery_mode, Some(2));
        assert_eq!(properties.priority, Some(key.priority()));
        let number = properties.headers.as_ref().and_then(|headers| headers.get("number"));
        assert_eq!(number, Some(&Value::I64(i64::from(key.number))), "{key:?}");
        key
    }
}
