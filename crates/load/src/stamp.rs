//! The first twelve bytes of a body: a sequence number and a time, as PerfTest writes them.
//!
//! ```text
//! 0        4                 12
//! | seq    | time            | filler ...
//! | u32 BE | i64 BE, ns      |
//! ```
//!
//! The time is the monotonic clock's, so producer and consumer may be two processes of one
//! machine. It is read once per batch, not per message.

use rustix::time::{ClockId, clock_gettime};

/// Bodies shorter than this carry no stamp, and their latency is not known.
pub(crate) const STAMP_BYTES: usize = 12;

/// Nanoseconds of the machine's monotonic clock.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

/// Writes the stamp into a body of at least [`STAMP_BYTES`]; does nothing to a shorter one.
pub(crate) fn write(body: &mut [u8], seq: u32, time_ns: u64) {
    if let Some(stamp) = body.first_chunk_mut::<STAMP_BYTES>() {
        stamp[..4].copy_from_slice(&seq.to_be_bytes());
        stamp[4..].copy_from_slice(&time_ns.to_be_bytes());
    }
}

/// The time in a body, or `None` when the body is too short for one.
pub(crate) fn read(body: &[u8]) -> Option<u64> {
    let stamp = body.first_chunk::<STAMP_BYTES>()?;
    let (_, time) = stamp.split_last_chunk::<8>()?;
    Some(u64::from_be_bytes(*time))
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
}
