//! Properties of a message that the broker changes: all but what it changes stays as it is, also what it cannot read.

use super::*;
use crate::table::RawTable;
use crate::wire::Writer as _;

/// What becomes different in a message.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rewrite<'a> {
    /// The headers in place of the old ones; `None` for no headers.
    pub headers: Option<RawTable<'a>>,
    /// In place of the old name, if there is one.
    pub reply_to: Option<&'a str>,
    /// The message expired, or the next queue must not expire it by the same property again.
    pub drop_expiration: bool,
}

impl RawProperties<'_> {
    /// Appends these properties changed; all else stays the same to the byte.
    ///
    /// # Errors
    ///
    /// When the bytes are not exactly a property list; `out` may then have been written to.
    pub fn rewrite(self, change: Rewrite<'_>, out: &mut Vec<u8>) -> Result<(), ContentError> {
        let mut r = Reader::new(self.as_bytes());
        let old = r.get_u16()? & !3;
        let mut flags = old & !HEADERS;
        if change.headers.is_some() {
            flags |= HEADERS;
        }
        if change.drop_expiration {
            flags &= !EXPIRATION;
        }
        out.put_u16(flags);
        copy(&mut r, out, |r| skip_texts(r, old & (CONTENT_TYPE | CONTENT_ENCODING)))?;
        if old & HEADERS != 0 {
            r.get_longstr()?;
        }
        if let Some(headers) = change.headers {
            out.put_table(headers);
        }
        copy(&mut r, out, |r| {
            for _ in 0..(old & (DELIVERY_MODE | PRIORITY)).count_ones() {
                r.get_u8()?;
            }
            skip_texts(r, old & CORRELATION_ID)
        })?;
        match change.reply_to.filter(|_| old & REPLY_TO != 0) {
            Some(name) => {
                skip_texts(&mut r, REPLY_TO)?;
                out.put_shortstr(name);
            }
            None => copy(&mut r, out, |r| skip_texts(r, old & REPLY_TO))?,
        }
        skip_texts(&mut r, old & EXPIRATION & !flags)?;
        copy(&mut r, out, |r| {
            skip_texts(r, flags & EXPIRATION)?;
            skip_texts(r, old & MESSAGE_ID)?;
            if old & TIMESTAMP != 0 {
                r.get_u64()?;
            }
            skip_texts(r, old & (KIND | USER_ID | APP_ID | CLUSTER_ID))
        })?;
        if r.is_empty() { Ok(()) } else { Err(ContentError::TrailingBytes) }
    }
}

/// Appends the bytes that `pass` goes over.
fn copy<'a>(
    r: &mut Reader<'a>,
    out: &mut Vec<u8>,
    pass: impl FnOnce(&mut Reader<'a>) -> Result<(), ContentError>,
) -> Result<(), ContentError> {
    let before = r.rest();
    pass(r)?;
    let passed = before.len().saturating_sub(r.rest().len());
    out.extend_from_slice(before.get(..passed).unwrap_or_default());
    Ok(())
}
