//! Methods: decoding, encoding, names. One struct per method, one module per class.
//!
//! Everything but this file is generated from `spec/amqp0-9-1.txt`.

pub mod access;
mod all;
pub mod basic;
pub mod channel;
pub mod confirm;
pub mod connection;
pub mod exchange;
pub mod queue;
pub mod tx;

use std::fmt::Write as _;

pub use all::Method;

use crate::reply::ReplyCode;
use crate::table::TableError;
use crate::wire::Truncated;

/// A method that can be written. Implemented by the struct of each method.
pub trait Encode {
    /// Class id and method id.
    fn id(&self) -> (u16, u16);

    /// Appends class id, method id and fields, that is a method frame's payload. Short strings longer
    /// than 255 bytes are cut.
    fn encode(&self, out: &mut Vec<u8>);
}

impl Encode for Method<'_> {
    fn id(&self) -> (u16, u16) {
        Method::id(self)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        Method::encode(self, out);
    }
}

/// Why a method frame's payload is no method. Each of them ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MethodError {
    /// No class of this number.
    #[error("unknown class {0}")]
    UnknownClass(u16),
    /// The class has no method of this number.
    #[error("unknown method {1} of class {0}")]
    UnknownMethod(u16, u16),
    /// The payload ends within a field.
    #[error("method arguments are truncated")]
    Truncated,
    /// Bytes are left after the last field.
    #[error("bytes left after the method's arguments")]
    TrailingBytes,
    /// A short string is not UTF-8.
    #[error("Malformed UTF-8 in shortstr")]
    BadUtf8,
    /// An argument table is malformed.
    #[error("malformed table argument: {0}")]
    Table(#[from] TableError),
}

impl From<Truncated> for MethodError {
    fn from(_: Truncated) -> Self {
        Self::Truncated
    }
}

impl MethodError {
    /// The code of the `connection.close` that answers.
    ///
    /// RabbitMQ 3.10 drops the socket without a word on an unknown class or method and answers 541 to a
    /// malformed table; the specification's 503 and 502 say what is wrong.
    #[must_use]
    pub fn reply_code(&self) -> ReplyCode {
        match self {
            Self::UnknownClass(_) | Self::UnknownMethod(..) => ReplyCode::CommandInvalid,
            Self::Truncated | Self::TrailingBytes | Self::BadUtf8 => ReplyCode::FrameError,
            Self::Table(_) => ReplyCode::SyntaxError,
        }
    }

    /// The explanation in the `connection.close` that answers, given the frame's payload.
    ///
    /// Arguments that do not fit are shown whole, as RabbitMQ does: `cannot decode <<0,0,32>>` (an
    /// over-long text is cut where the reply text ends).
    #[must_use]
    pub fn reply_text(&self, payload: &[u8]) -> String {
        match self {
            Self::Truncated | Self::TrailingBytes => {
                let fields = payload.get(4..).unwrap_or_default();
                let mut text = String::from("cannot decode <<");
                // A short string has room for no more than 255 bytes, that is fewer octets.
                for (index, octet) in fields.iter().take(256).enumerate() {
                    let comma = if index == 0 { "" } else { "," };
                    let _ = write!(text, "{comma}{octet}");
                }
                text.push_str(">>");
                text
            }
            other => other.to_string(),
        }
    }
}

#[cfg(test)]
mod tests;
