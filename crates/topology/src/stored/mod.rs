//! Things as bytes: what a record of the topology's log says of one of them, and a [change](crate::Change).
//!
//! A record is a head of two bytes, version and [`Kind`], and a body; `docs/formats/topology.md` has
//! the tables, and a test reads the golden file of each version. Numbers are little-endian, a text is
//! a length of 32 bits and UTF-8, an argument table is a length of 32 bits and the entries as on the
//! wire of AMQP, so that every value keeps its type. What is JSON anyway is a text of JSON.

mod read;
mod restore;
mod write;

pub use read::StoredError;
pub use restore::Restored;
pub(crate) use restore::{QueueRecord, Upsert, ends_of_binding};

/// The latest layout of any kind.
const LATEST: u8 = 2;

/// What a record is of. The order is that in which records can be restored: nothing comes before
/// what it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// Below which ids have been used.
    Ids = 1,
    /// A vhost.
    Vhost = 2,
    /// A user.
    User = 3,
    /// A user's permissions in a vhost.
    Permission = 4,
    /// A user's permissions for a topic exchange.
    TopicPermission = 5,
    /// A parameter of the cluster.
    GlobalParameter = 6,
    /// A parameter of a component in a vhost.
    Parameter = 7,
    /// A policy.
    Policy = 8,
    /// An operator policy.
    OperatorPolicy = 9,
    /// An exchange.
    Exchange = 10,
    /// A queue.
    Queue = 11,
    /// A binding.
    Binding = 12,
    /// A vhost is traced. Never stored: only between topologies.
    Tracing = 13,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 13] = [
        Self::Ids,
        Self::Vhost,
        Self::User,
        Self::Permission,
        Self::TopicPermission,
        Self::GlobalParameter,
        Self::Parameter,
        Self::Policy,
        Self::OperatorPolicy,
        Self::Exchange,
        Self::Queue,
        Self::Binding,
        Self::Tracing,
    ];

    /// For people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ids => "ids",
            Self::Vhost => "vhost",
            Self::User => "user",
            Self::Permission => "permission",
            Self::TopicPermission => "topic permission",
            Self::GlobalParameter => "global parameter",
            Self::Parameter => "parameter",
            Self::Policy => "policy",
            Self::OperatorPolicy => "operator policy",
            Self::Exchange => "exchange",
            Self::Queue => "queue",
            Self::Binding => "binding",
            Self::Tracing => "tracing",
        }
    }

    /// Today's layout of a record of this kind. Those of all lower numbers are read.
    pub const fn version(self) -> u8 {
        match self {
            Self::Exchange | Self::Queue => 2,
            _ => 1,
        }
    }

    /// The head of a record of this kind in today's layout.
    pub const fn head(self) -> [u8; HEAD] {
        [self.version(), self as u8]
    }

    /// Reads the head of a record that was stored.
    pub fn of_head(head: &[u8]) -> Result<Self, StoredError> {
        match read_head(head)?.0 {
            Self::Tracing => Err(StoredError::Kind(Self::Tracing as u8)),
            kind => Ok(kind),
        }
    }
}

/// Bytes of a record before its body.
pub const HEAD: usize = 2;

/// Kind and version of a record.
fn read_head(head: &[u8]) -> Result<(Kind, u8), StoredError> {
    let &[version, number] = head else { return Err(StoredError::Head(head.len())) };
    let kind = Kind::ALL.into_iter().find(|known| *known as u8 == number);
    match kind {
        _ if version == 0 || version > LATEST => Err(StoredError::Version(version)),
        None => Err(StoredError::Kind(number)),
        Some(kind) if version > kind.version() => Err(StoredError::Version(version)),
        Some(kind) => Ok((kind, version)),
    }
}

impl core::fmt::Display for Kind {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}
