//! The first twelve bytes of a body: a sequence number and a time, as PerfTest writes them.
//!
//! ```text
//! 0        4                 12
//! | seq    | time            | filler ...
//! | u32 BE | i64 BE, ns      |
//! ```
//!
//! The time is the monotonic clock's, so producer and consumer may be two processes of one
//! machine; between two machines it is the wall clock's, in milliseconds. A body that is not the tool's own
//! has its time in the header `timestamp`. Clocks are read once per batch, not per message.

use leveret_client::amqp::content::RawProperties;
use leveret_client::amqp::table::RawValue;
use rustix::time::{ClockId, clock_gettime};

/// Bodies shorter than this carry no stamp, and their latency is not known.
pub(crate) const STAMP_BYTES: usize = 12;
/// The header that holds the time of a body that is given.
pub(crate) const HEADER: &str = "timestamp";

/// Nanoseconds of the machine's monotonic clock.
pub(crate) fn now_ns() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

fn nanoseconds(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

/// What the times in messages count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// Nanoseconds of the monotonic clock.
    Monotonic,
    /// Milliseconds since 1970.
    Wall,
}

impl Clock {
    /// The stamp for a time of the monotonic clock, not after `now_ns`, which is now.
    pub(crate) fn stamp(self, at_ns: u64, now_ns: u64) -> u64 {
        match self {
            Self::Monotonic => at_ns,
            Self::Wall => self.now() - now_ns.saturating_sub(at_ns) / 1_000_000,
        }
    }

    /// A stamp of now.
    pub(crate) fn now(self) -> u64 {
        match self {
            Self::Monotonic => now_ns(),
            Self::Wall => nanoseconds(ClockId::Realtime) / 1_000_000,
        }
    }

    /// Nanoseconds between two stamps.
    pub(crate) fn between(self, stamp: u64, now: u64) -> u64 {
        let difference = now.saturating_sub(stamp);
        if self == Self::Wall { difference.saturating_mul(1_000_000) } else { difference }
    }
}

/// Writes the stamp into a body of at least [`STAMP_BYTES`]; does nothing to a shorter one.
pub(crate) fn write(body: &mut [u8], seq: u32, time: u64) {
    if let Some(stamp) = body.first_chunk_mut::<STAMP_BYTES>() {
        stamp[..4].copy_from_slice(&seq.to_be_bytes());
        stamp[4..].copy_from_slice(&time.to_be_bytes());
    }
}

/// The time in a body, or `None` when the body is too short for one.
pub(crate) fn read(body: &[u8]) -> Option<u64> {
    let stamp = body.first_chunk::<STAMP_BYTES>()?;
    let (_, time) = stamp.split_last_chunk::<8>()?;
    Some(u64::from_be_bytes(*time))
}

/// The time in the headers, if there is one.
pub(crate) fn read_header(properties: RawProperties<'_>) -> Option<u64> {
    match properties.peek().ok()?.headers?.get(HEADER) {
        Ok(Some(RawValue::I64(time))) => u64::try_from(time).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_read_back() {
        let mut body = [0xAA; 14];
        write(&mut body, 0x0102_0304, 0x1122_3344_5566_7788);
        assert_eq!(body, *b"\x01\x02\x03\x04\x11\x22\x33\x44\x55\x66\x77\x88\xAA\xAA");
        assert_eq!(read(&body), Some(0x1122_3344_5566_7788));
        assert_eq!(read(&body[..11]), None);
        let mut short = [0xAA; 11];
        write(&mut short, 1, 1);
        assert_eq!(short, [0xAA; 11]);
    }

    #[test]
    fn the_wall_clock_counts_milliseconds() {
        let now = Clock::Wall.now();
        assert!(now > 1_600_000_000_000);
        assert!(Clock::Wall.stamp(5_000_000, 9_000_000) <= Clock::Wall.now() - 4);
        assert_eq!(Clock::Wall.between(10, 12), 2_000_000);
        assert_eq!(Clock::Monotonic.between(10, 12), 2);
        assert_eq!(Clock::Monotonic.stamp(5, 9), 5);
    }
}
