//! Identifiers given by the topology. None is ever used twice within one [`Topology`](crate::Topology).

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name($inner);

        impl $name {
            /// The identifier with this number.
            pub const fn new(number: $inner) -> Self {
                Self(number)
            }

            /// Its number.
            pub const fn get(self) -> $inner {
                self.0
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

id! {
    /// A virtual host. A vhost deleted and added again has a new id.
    VhostId(u32)
}
id! {
    /// An exchange. An exchange deleted and declared again has a new id.
    ExchangeId(u64)
}
id! {
    /// A binding. One that is bound again has a new id, and so has each after a restart: it is not stored.
    BindingId(u64)
}
id! {
    /// A queue. Ids are consecutive.
    QueueId(u64)
}
id! {
    /// A group of members that keep one replicated log. On a single node each core's shard is a group of one member.
    ///
    /// Numbers begin with 0 and have few gaps, so that a list may have a place for each.
    GroupId(u32)
}

impl GroupId {
    /// The group whose place in a list is `index`.
    pub fn at(index: usize) -> Self {
        Self(u32::try_from(index).expect("fewer than 2^32 groups"))
    }

    /// The place of the group in a list that has one for each: of a process's shards, for example.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}
