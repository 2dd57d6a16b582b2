//! Field tables: the arguments of methods and the headers of messages.
//!
//! Two forms. [`RawTable`] is the bytes of the wire, read in place: what is stored, sent on, and looked
//! up per message. [`Table`] is owned, for what is kept and compared (arguments, dead-letter headers).
//!
//! ```text
//!   table = u32 length, then entries:  u8 key length | key | u8 kind | value
//!   array = u32 length, then values:                         u8 kind | value
//!
//!   t bool u8        b i8    s i16   I i32   l L i64   f f32   d f64   V nothing
//!   T timestamp u64  B u8    u u16   i u32   S x bytes with u32 length
//!   D decimal: u8 scale, u32 value           F table   A array
//! ```
//!
//! The letters mean what RabbitMQ takes them for, not what the specification says (its errata page).
//! Keys need not be UTF-8 and may be empty or come twice, as in RabbitMQ.
//!
//! Nothing recurses over nesting that a peer chose: checking is a loop with a list of open ends, and the
//! owned form refuses more than [`MAX_DEPTH`] levels. RabbitMQ passes tables nested 15,000 deep, so the
//! raw form has no limit of its own but the frame's size.

mod owned;
mod raw;

pub use owned::{Table, Value};
pub use raw::{RawArray, RawArrayIter, RawTable, RawTableIter, RawValue};

use crate::wire::Truncated;

/// Bytes of a short string, such as a name in a table: a longer one is cut when it is written.
pub const SHORT_STR_MAX: usize = 255;

/// How deep an owned table may be nested; the table itself is level 1.
pub const MAX_DEPTH: usize = 100;

/// Why bytes are not a field table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// A key, length or value reaches beyond the end of its table or array.
    #[error("truncated field table")]
    Truncated,
    /// A value of a kind that is not known, so that its length is not known either.
    #[error("unknown field type '{}'", .0.escape_ascii())]
    UnknownKind(u8),
    /// Nested deeper than [`MAX_DEPTH`]; only the owned form has this limit.
    #[error("field table nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
}

impl From<Truncated> for TableError {
    fn from(_: Truncated) -> Self {
        Self::Truncated
    }
}

#[cfg(test)]
mod tests;
