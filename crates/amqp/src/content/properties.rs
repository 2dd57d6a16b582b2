//! Properties taken apart and owned, and putting them together again.

use super::*;
use crate::table::Table;
use crate::wire::Writer;

/// The fourteen properties of class basic.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "the specification's properties under its names")]
pub struct Properties {
    pub content_type: Option<String>,
    pub content_encoding: Option<String>,
    pub headers: Option<Table>,
    /// 1 transient, 2 persistent.
    pub delivery_mode: Option<u8>,
    pub priority: Option<u8>,
    pub correlation_id: Option<String>,
    pub reply_to: Option<String>,
    /// Milliseconds in decimal digits.
    pub expiration: Option<String>,
    pub message_id: Option<String>,
    /// Seconds since the Unix epoch.
    pub timestamp: Option<u64>,
    /// The property named `type`.
    pub kind: Option<String>,
    pub user_id: Option<String>,
    pub app_id: Option<String>,
    pub cluster_id: Option<String>,
}

impl Properties {
    /// Reads all fields. Text that is not UTF-8 gets replacement characters: the raw form keeps it.
    pub(super) fn decode(raw: RawProperties<'_>) -> Result<Self, ContentError> {
        let mut r = Reader::new(raw.as_bytes());
        let flags = r.get_u16()?;
        let new = Self {
            content_type: text(&mut r, flags & CONTENT_TYPE)?,
            content_encoding: text(&mut r, flags & CONTENT_ENCODING)?,
            headers: match flags & HEADERS {
                0 => None,
                _ => Some(RawTable::unchecked(r.get_longstr()?).to_table()?),
            },
            delivery_mode: octet(&mut r, flags & DELIVERY_MODE)?,
            priority: octet(&mut r, flags & PRIORITY)?,
            correlation_id: text(&mut r, flags & CORRELATION_ID)?,
            reply_to: text(&mut r, flags & REPLY_TO)?,
            expiration: text(&mut r, flags & EXPIRATION)?,
            message_id: text(&mut r, flags & MESSAGE_ID)?,
            timestamp: match flags & TIMESTAMP {
                0 => None,
                _ => Some(r.get_u64()?),
            },
            kind: text(&mut r, flags & KIND)?,
            user_id: text(&mut r, flags & USER_ID)?,
            app_id: text(&mut r, flags & APP_ID)?,
            cluster_id: text(&mut r, flags & CLUSTER_ID)?,
        };
        if r.is_empty() { Ok(new) } else { Err(ContentError::TrailingBytes) }
    }

    /// Appends flags and fields: the bytes of a [`RawProperties`].
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u16(self.flags());
        put_text(out, &self.content_type);
        put_text(out, &self.content_encoding);
        if let Some(headers) = &self.headers {
            headers.encode(out);
        }
        out.extend(self.delivery_mode);
        out.extend(self.priority);
        put_text(out, &self.correlation_id);
        put_text(out, &self.reply_to);
        put_text(out, &self.expiration);
        put_text(out, &self.message_id);
        if let Some(timestamp) = self.timestamp {
            out.put_u64(timestamp);
        }
        put_text(out, &self.kind);
        put_text(out, &self.user_id);
        put_text(out, &self.app_id);
        put_text(out, &self.cluster_id);
    }

    /// Flags and fields as bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode(&mut out);
        out
    }

    fn flags(&self) -> u16 {
        [
            (self.content_type.is_some(), CONTENT_TYPE),
            (self.content_encoding.is_some(), CONTENT_ENCODING),
            (self.headers.is_some(), HEADERS),
            (self.delivery_mode.is_some(), DELIVERY_MODE),
            (self.priority.is_some(), PRIORITY),
            (self.correlation_id.is_some(), CORRELATION_ID),
            (self.reply_to.is_some(), REPLY_TO),
            (self.expiration.is_some(), EXPIRATION),
            (self.message_id.is_some(), MESSAGE_ID),
            (self.timestamp.is_some(), TIMESTAMP),
            (self.kind.is_some(), KIND),
            (self.user_id.is_some(), USER_ID),
            (self.app_id.is_some(), APP_ID),
            (self.cluster_id.is_some(), CLUSTER_ID),
        ]
        .into_iter()
        .fold(0, |flags, (is_set, flag)| if is_set { flags | flag } else { flags })
    }
}

fn text(r: &mut Reader<'_>, flag: u16) -> Result<Option<String>, ContentError> {
    if flag == 0 {
        return Ok(None);
    }
    Ok(Some(String::from_utf8_lossy(r.short_bytes()?).into_owned()))
}

fn octet(r: &mut Reader<'_>, flag: u16) -> Result<Option<u8>, ContentError> {
    if flag == 0 { Ok(None) } else { Ok(Some(r.get_u8()?)) }
}

fn put_text(out: &mut Vec<u8>, text: &Option<String>) {
    if let Some(text) = text {
        out.put_shortstr(text);
    }
}
