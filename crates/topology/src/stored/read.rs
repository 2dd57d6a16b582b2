//! From bytes to values. Bytes from a disk never panic.

use std::collections::BTreeMap;

use leveret_amqp::table::{RawTable, Table, TableError};
use serde_json::{Map, Value as Json};

use crate::error::{AdminError, DeclareError, PolicyError};
use crate::id::GroupId;
use crate::journal::EntityKey;

use super::Kind;

/// Why a record is not what it should be.
#[derive(Debug, thiserror::Error)]
pub enum StoredError {
    /// The head.
    #[error("a head of {0} bytes instead of 2")]
    Head(usize),
    /// The first byte of the head.
    #[error("layout {0} is not known: it was written by a later version")]
    Version(u8),
    /// The second one.
    #[error("kind {0} is not known: it was written by a later version")]
    Kind(u8),
    /// The body is shorter than what it says.
    #[error("truncated")]
    Truncated,
    /// The body goes on after its last field.
    #[error("{0} bytes too many")]
    TooLong(usize),
    /// A text.
    #[error("a text that is not UTF-8")]
    NotText,
    /// A text that is to be JSON.
    #[error("not JSON: {0}")]
    NotJson(serde_json::Error),
    /// An argument table.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A name that stands for one of a few things.
    #[error("unknown {what} '{name}'")]
    Unknown {
        /// Of what.
        what: &'static str,
        /// What it says.
        name: String,
    },
    /// A transient thing where only durable ones are, or the other way round.
    #[error("a thing that is {}stored", if *(.is_stored) { "" } else { "not " })]
    Transient {
        /// It is of those that survive a restart.
        is_stored: bool,
    },
    /// A queue, or what an exchange remembers, lives in a group that is not there, or cannot be.
    #[error("a home in group {home}, and there are {groups}")]
    Home {
        /// The home.
        home: GroupId,
        /// How many groups there are.
        groups: u32,
    },
    /// A change of a queue, or of an exchange that remembers, does not say where that lives.
    #[error("a change without a home")]
    Homeless,
    /// A change of one thing has the record of another one.
    #[error("the record of {0:?}")]
    Other(EntityKey),
    /// An id above which there is none.
    #[error("an id that cannot be")]
    Id,
    /// A pattern.
    #[error(transparent)]
    Pattern(#[from] AdminError),
    /// An exchange's type.
    #[error(transparent)]
    Exchange(#[from] DeclareError),
    /// What a policy applies to.
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

/// What is left of a body.
#[derive(Debug)]
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(body: &'a [u8]) -> Self {
        Self(body)
    }

    /// Everything was read.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn end(self) -> Result<(), StoredError> {
        if self.0.is_empty() { Ok(()) } else { Err(StoredError::TooLong(self.0.len())) }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], StoredError> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(StoredError::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], StoredError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(StoredError::Truncated)?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(super) fn u8(&mut self) -> Result<u8, StoredError> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32, StoredError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, StoredError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(super) fn i64(&mut self) -> Result<i64, StoredError> {
        Ok(i64::from_le_bytes(self.array()?))
    }

    pub(super) fn bytes(&mut self) -> Result<&'a [u8], StoredError> {
        let len = self.u32()?;
        self.take(len as usize)
    }

    pub(super) fn text(&mut self) -> Result<&'a str, StoredError> {
        std::str::from_utf8(self.bytes()?).map_err(|_| StoredError::NotText)
    }

    pub(super) fn texts(&mut self) -> Result<Vec<String>, StoredError> {
        let count = self.u32()?;
        (0..count).map(|_| Ok(self.text()?.to_owned())).collect()
    }

    pub(super) fn limits(&mut self) -> Result<BTreeMap<String, i64>, StoredError> {
        let count = self.u32()?;
        (0..count).map(|_| Ok((self.text()?.to_owned(), self.i64()?))).collect()
    }

    pub(super) fn json(&mut self) -> Result<Json, StoredError> {
        serde_json::from_str(self.text()?).map_err(StoredError::NotJson)
    }

    pub(super) fn json_map(&mut self) -> Result<Map<String, Json>, StoredError> {
        serde_json::from_str(self.text()?).map_err(StoredError::NotJson)
    }

    pub(super) fn table(&mut self) -> Result<Table, StoredError> {
        let bytes = self.bytes()?;
        if bytes.is_empty() {
            return Ok(Table::new());
        }
        Ok(Table::decode(RawTable::new(bytes)?)?)
    }
}

/// The kind of a record, its version, and its body.
pub(super) fn split(record: &[u8]) -> Result<(Kind, u8, &[u8]), StoredError> {
    let (head, body) =
        record.split_at_checked(super::HEAD).ok_or(StoredError::Head(record.len()))?;
    let (kind, version) = super::read_head(head)?;
    Ok((kind, version, body))
}
