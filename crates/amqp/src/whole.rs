//! Hot path. A publish that lies whole in the input, read in one step.
//!
//! The three frames of a small message nearly always arrive together. Taken as one pattern they cost a
//! fraction of three frames one by one. Whatever does not fit the pattern is left to
//! [`Decoder::next`], which has the words for what is wrong with it.
//!
//! ```text
//!   | 1 | channel | size || 60 | 40 | ticket | exchange, key | bits || CE |
//!   | 2 | channel | size || 60 |  0 | body size | properties        || CE |
//!   | 3 | channel | body size || body                               || CE |   none if the body is empty
//! ```

use crate::frame::{BODY, Decoder, FRAME_END, HEADER, METHOD};

/// A `basic.publish` with its content: all frames of one channel, complete and within the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WholePublish<'a> {
    /// The channel of all frames.
    pub channel: u16,
    /// What should be exchange and routing key as two short strings; not looked into.
    pub names: &'a [u8],
    /// The method's bits: `mandatory`, `immediate`.
    pub bits: u8,
    /// Property flags and fields; not looked into.
    pub properties: &'a [u8],
    /// The body.
    pub body: &'a [u8],
    /// Bytes of all frames.
    pub len: usize,
}

impl Decoder {
    /// The publish that the input begins with; none when it begins with something else, or is not whole,
    /// or something is wrong with it. Changes nothing: the next event is still the method.
    #[inline]
    #[must_use]
    pub fn whole_publish<'a>(&self, input: &'a [u8]) -> Option<WholePublish<'a>> {
        if !self.is_between_frames() {
            return None;
        }
        let (&[METHOD, c0, c1, s0, s1, s2, s3, 0, 60, 0, 40, _, _], rest) =
            input.split_first_chunk::<13>()?
        else {
            return None;
        };
        let size = u32::from_be_bytes([s0, s1, s2, s3]);
        let names_len = size.checked_sub(7).filter(|_| size <= self.head_max())?;
        let (names, rest) = rest.split_at_checked(names_len as usize)?;
        let (&[bits, FRAME_END], rest) = rest.split_first_chunk::<2>()? else { return None };

        let (head, rest) = rest.split_first_chunk::<19>()?;
        let &[HEADER, h0, h1, s0, s1, s2, s3, 0, 60, 0, 0, b0, b1, b2, b3, b4, b5, b6, b7] = head
        else {
            return None;
        };
        let size = u32::from_be_bytes([s0, s1, s2, s3]);
        let properties_len = size.checked_sub(12).filter(|_| size <= self.head_max())?;
        let body_len = u64::from_be_bytes([b0, b1, b2, b3, b4, b5, b6, b7]);
        let (properties, rest) = rest.split_at_checked(properties_len as usize)?;
        let (&[FRAME_END], rest) = rest.split_first_chunk::<1>()? else { return None };
        if [h0, h1] != [c0, c1] || body_len > u64::from(self.body_max()) {
            return None;
        }

        let (body, rest) = if body_len == 0 {
            (&[][..], rest)
        } else {
            let (&[BODY, b0, b1, s0, s1, s2, s3], rest) = rest.split_first_chunk::<7>()? else {
                return None;
            };
            let size = u32::from_be_bytes([s0, s1, s2, s3]);
            if [b0, b1] != [c0, c1] || u64::from(size) != body_len {
                return None;
            }
            let (body, rest) = rest.split_at_checked(size as usize)?;
            let (&[FRAME_END], rest) = rest.split_first_chunk::<1>()? else { return None };
            (body, rest)
        };
        let channel = u16::from_be_bytes([c0, c1]);
        let len = input.len().saturating_sub(rest.len());
        Some(WholePublish { channel, names, bits, properties, body, len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Event, OVERHEAD};

    fn frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
        let size = (payload.len() as u32).to_be_bytes();
        [&[kind][..], &channel.to_be_bytes(), &size, payload, &[FRAME_END]].concat()
    }

    fn publish(names: &[u8], properties: &[u8], body: &[u8]) -> Vec<u8> {
        let method = [&[0, 60, 0, 40, 0, 0][..], names, &[1]].concat();
        let header = [&[0, 60, 0, 0][..], &(body.len() as u64).to_be_bytes(), properties].concat();
        let mut all = [frame(METHOD, 3, &method), frame(HEADER, 3, &header)].concat();
        if !body.is_empty() {
            all.extend(frame(BODY, 3, body));
        }
        all
    }

    #[test]
    fn what_fits() {
        for body in [&b""[..], b"b", b"a body"] {
            let mut input = publish(b"\x01x\x02kk", b"\x10\x00\x02", body);
            let len = input.len();
            input.extend_from_slice(b"\x01\x00");
            let found = Decoder::new(4096).whole_publish(&input).unwrap();
            let names: &[u8] = b"\x01x\x02kk";
            let properties: &[u8] = b"\x10\x00\x02";
            let want = WholePublish { channel: 3, names, bits: 1, properties, body, len };
            assert_eq!(found, want);
        }
    }

    /// Each beginning of a publish, and each publish with one bit wrong that is not in the fields, is
    /// left to the decoder; and what is found is what the decoder finds.
    #[test]
    fn what_does_not_fit() {
        let whole = publish(b"\x00\x01k", b"\x00\x00", b"body");
        let decoder = Decoder::new(4096);
        for len in 0..whole.len() {
            assert_eq!(decoder.whole_publish(&whole[..len]), None, "{len}");
        }
        for bit in 0..whole.len() * 8 {
            let mut input = whole.clone();
            input[bit / 8] ^= 1 << (bit % 8);
            let Some(found) = decoder.whole_publish(&input) else { continue };
            let mut frames = decoder;
            let (mut at, mut events) = (0, Vec::new());
            while let Ok(Some((event, used))) = frames.next(&input[at..found.len]) {
                events.push(event);
                at += used;
            }
            let &[Event::Method { channel, payload }, header, ref body @ ..] = &events[..] else {
                panic!("bit {bit}: {events:?}")
            };
            assert_eq!((channel, at), (found.channel, found.len), "bit {bit}");
            assert_eq!(&payload[6..payload.len() - 1], found.names);
            let Event::Header { payload, .. } = header else { panic!("{header:?}") };
            assert_eq!(&payload[12..], found.properties);
            match body {
                [] => assert!(found.body.is_empty()),
                [Event::Body { part, is_last: true, .. }] => assert_eq!(*part, found.body),
                _ => panic!("bit {bit}: {body:?}"),
            }
        }
    }

    #[test]
    fn not_above_the_limits() {
        let body = [7; 100];
        let whole = publish(b"\x00\x00", b"\x00\x00", &body);
        assert!(Decoder::new(100).whole_publish(&whole).is_some());
        assert!(Decoder::new(99).whole_publish(&whole).is_none());
        let head = publish(&[0; 100], b"\x00\x00", b"");
        assert!(Decoder::new(107).whole_publish(&head).is_some());
        assert!(Decoder::new(106).whole_publish(&head).is_none());
    }

    /// In the middle of a body's frame the next bytes are the body's, whatever they look like.
    #[test]
    fn not_within_a_body() {
        let inner = publish(b"\x00\x00", b"\x00\x00", b"body");
        let mut decoder = Decoder::new(4096);
        let outer = frame(BODY, 3, &inner);
        let (_, used) = decoder.next(&outer[..8]).unwrap().unwrap();
        assert_eq!(used, OVERHEAD);
        assert_eq!(decoder.whole_publish(&inner), None);
    }
}
