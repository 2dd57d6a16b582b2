//! Users: passwords, tags, permissions.

use core::fmt;
use std::borrow::Cow;
use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use subtle::ConstantTimeEq as _;

use crate::error::AdminError;
use crate::id::VhostId;
use crate::pattern::{Pattern, escape};
use crate::usage::Count;

/// What a user may do with a queue or an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Permission {
    /// Declare and delete.
    Configure,
    /// Publish, bind to.
    Write,
    /// Consume, get, purge, bind from.
    Read,
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Configure => "configure",
            Self::Write => "write",
            Self::Read => "read",
        })
    }
}

/// How a password is hashed: the digest of four bytes of salt and the password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Hashing {
    /// The default.
    #[default]
    Sha256,
    /// Configurable in RabbitMQ.
    Sha512,
    /// From before RabbitMQ 3.6.
    Md5,
}

impl Hashing {
    /// RabbitMQ's name, as in definitions.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "rabbit_password_hashing_sha256",
            Self::Sha512 => "rabbit_password_hashing_sha512",
            Self::Md5 => "rabbit_password_hashing_md5",
        }
    }

    /// By RabbitMQ's name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Sha256, Self::Sha512, Self::Md5].into_iter().find(|hashing| hashing.name() == name)
    }

    fn digest(self, salt: &[u8], password: &[u8]) -> Vec<u8> {
        fn run<D: sha2::Digest>(salt: &[u8], password: &[u8]) -> Vec<u8> {
            D::new().chain_update(salt).chain_update(password).finalize().to_vec()
        }
        match self {
            Self::Sha256 => run::<sha2::Sha256>(salt, password),
            Self::Sha512 => run::<sha2::Sha512>(salt, password),
            Self::Md5 => run::<md5::Md5>(salt, password),
        }
    }
}

/// Bytes of salt before the digest in a password hash.
const SALT_BYTES: usize = 4;

/// A password as it is kept: salt and digest. An empty one matches nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordHash {
    hashing: Hashing,
    bytes: Box<[u8]>,
}

impl PasswordHash {
    /// Hashes a password; the salt must be random.
    pub fn new(password: &str, salt: [u8; 4]) -> Self {
        let mut bytes = salt.to_vec();
        bytes.extend(Hashing::Sha256.digest(&salt, password.as_bytes()));
        Self { hashing: Hashing::Sha256, bytes: bytes.into() }
    }

    /// As in definitions: base 64 of salt and digest. Empty: no password is accepted.
    pub fn from_base64(user: &str, hash: &str, hashing: Hashing) -> Result<Self, AdminError> {
        let bad = |reason| AdminError::PasswordHash { user: user.to_owned(), reason };
        let bytes = BASE64.decode(hash).map_err(|_| bad("not base 64"))?;
        if !bytes.is_empty() && bytes.len() <= SALT_BYTES {
            return Err(bad("too short"));
        }
        Ok(Self { hashing, bytes: bytes.into() })
    }

    /// As in definitions.
    pub fn to_base64(&self) -> String {
        BASE64.encode(&self.bytes)
    }

    /// The digest used.
    pub fn hashing(&self) -> Hashing {
        self.hashing
    }

    /// Salt and digest.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// As [`bytes`](Self::bytes) gave them.
    pub(crate) fn from_bytes(bytes: &[u8], hashing: Hashing) -> Self {
        Self { hashing, bytes: bytes.into() }
    }

    pub(crate) fn accepts(&self, password: &str) -> bool {
        let Some((salt, digest)) = self.bytes.split_at_checked(SALT_BYTES) else {
            return false;
        };
        self.hashing.digest(salt, password.as_bytes()).ct_eq(digest).into()
    }

    /// Matches no password and takes as long as one that does: for users that do not exist.
    pub(crate) fn dummy() -> Self {
        Self { hashing: Hashing::Sha256, bytes: [0; SALT_BYTES + 32].into() }
    }
}

impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PasswordHash({})", self.hashing.name())
    }
}

/// The three patterns of a user in a vhost.
#[derive(Clone, Debug, PartialEq)]
pub struct Permissions {
    /// Names it may declare and delete.
    pub configure: Pattern,
    /// Names it may write to.
    pub write: Pattern,
    /// Names it may read from.
    pub read: Pattern,
}

impl Permissions {
    /// Compiles the three patterns. An empty one allows nothing.
    pub fn new(configure: &str, write: &str, read: &str) -> Result<Self, AdminError> {
        Ok(Self {
            configure: Pattern::permission(configure)?,
            write: Pattern::permission(write)?,
            read: Pattern::permission(read)?,
        })
    }

    pub(crate) fn allows(&self, permission: Permission, name: &str) -> bool {
        match permission {
            Permission::Configure => &self.configure,
            Permission::Write => &self.write,
            Permission::Read => &self.read,
        }
        .matches(name)
    }
}

/// Routing keys that a user may use with one topic exchange.
#[derive(Clone, Debug, PartialEq)]
pub struct TopicPermissions {
    /// Keys it may publish with.
    pub write: Pattern,
    /// Keys it may bind with.
    pub read: Pattern,
}

impl TopicPermissions {
    /// Compiles the two patterns with `{username}` and `{vhost}` replaced.
    pub(crate) fn expanded(
        user: &str,
        vhost: &str,
        write: &str,
        read: &str,
    ) -> Result<Self, AdminError> {
        let expand = |pattern: &str| {
            let mut expanded = Cow::Borrowed(pattern);
            for (variable, value) in [("{username}", user), ("{vhost}", vhost)] {
                if expanded.contains(variable) {
                    expanded = Cow::Owned(expanded.replace(variable, &escape(value)));
                }
            }
            Pattern::expanded(pattern, &expanded)
        };
        Ok(Self { write: expand(write)?, read: expand(read)? })
    }
}

/// A user.
#[derive(Clone, Debug)]
pub struct User {
    /// Its name.
    pub name: Box<str>,
    /// `administrator`, `monitoring`, `impersonator`, ...
    pub tags: Vec<String>,
    /// `max-connections`, `max-channels`.
    pub limits: BTreeMap<String, i64>,
    pub(crate) connections: Count,
    pub(crate) channels: Count,
    pub(crate) password: PasswordHash,
    pub(crate) permissions: BTreeMap<VhostId, Permissions>,
    pub(crate) topics: BTreeMap<VhostId, BTreeMap<Box<str>, TopicPermissions>>,
}

impl User {
    /// Whether it has this tag.
    pub fn has_tag(&self, tag: &str) -> bool {
        self.tags.iter().any(|own| own == tag)
    }

    /// `administrator`.
    pub fn is_administrator(&self) -> bool {
        self.has_tag("administrator")
    }

    /// `impersonator`: may publish under another `user-id`.
    pub fn may_impersonate(&self) -> bool {
        self.has_tag("impersonator")
    }

    /// One of its limits, unless there is none.
    pub(crate) fn limit(&self, name: &str) -> Option<u64> {
        self.limits.get(name).and_then(|&limit| u64::try_from(limit).ok())
    }

    /// The password as it is kept.
    pub fn password_hash(&self) -> &PasswordHash {
        &self.password
    }

    /// Its permissions by vhost.
    pub fn permissions(&self) -> impl Iterator<Item = (VhostId, &Permissions)> {
        self.permissions.iter().map(|(&vhost, permissions)| (vhost, permissions))
    }

    /// Its topic permissions by vhost and exchange.
    pub fn topic_permissions(&self) -> impl Iterator<Item = (VhostId, &str, &TopicPermissions)> {
        self.topics.iter().flat_map(|(&vhost, topics)| {
            topics.iter().map(move |(exchange, topics)| (vhost, exchange.as_ref(), topics))
        })
    }
}
