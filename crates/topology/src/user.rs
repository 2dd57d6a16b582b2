//! Users: passwords, tags, permissions.

use core::fmt;
use std::borrow::Cow;
use std::collections::BTreeMap;

use argon2::password_hash::{PasswordHasher as _, PasswordVerifier as _, phc};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use subtle::ConstantTimeEq as _;
use zeroize::Zeroizing;

use crate::error::AdminError;
use crate::id::VhostId;
use crate::pattern::{Pattern, escape};
use crate::rate::Buckets;
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

impl Permission {
    /// In RabbitMQ's word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Configure => "configure",
            Self::Write => "write",
            Self::Read => "read",
        }
    }
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A password as a client gave it: wiped from memory after use, and in no debug text.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(Zeroizing<String>);

impl Password {
    /// Wraps the text.
    pub fn new(text: &str) -> Self {
        Self(Zeroizing::new(text.to_owned()))
    }

    /// The text itself.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether it is blank, which no user's is.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(...)")
    }
}

/// How a password is hashed: RabbitMQ's digests of four bytes of salt and the password, or ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Hashing {
    /// The default.
    #[default]
    Sha256,
    /// Configurable in RabbitMQ.
    Sha512,
    /// From before RabbitMQ 3.6.
    Md5,
    /// Slow on purpose, and greedy for memory: what a stolen hash is worth is a matter of how fast it can
    /// be tried. RabbitMQ does not know it.
    Argon2id,
}

impl Hashing {
    /// RabbitMQ's name, as in definitions.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "rabbit_password_hashing_sha256",
            Self::Sha512 => "rabbit_password_hashing_sha512",
            Self::Md5 => "rabbit_password_hashing_md5",
            Self::Argon2id => "leveret_password_hashing_argon2id",
        }
    }

    /// By RabbitMQ's name.
    pub fn parse(name: &str) -> Option<Self> {
        let all = [Self::Sha256, Self::Sha512, Self::Md5, Self::Argon2id];
        all.into_iter().find(|hashing| hashing.name() == name)
    }

    /// Whether a check takes so long that no turn should do it.
    pub fn is_slow(self) -> bool {
        self == Self::Argon2id
    }

    fn digest(self, salt: &[u8], password: &[u8]) -> Vec<u8> {
        fn run<D: sha2::Digest>(salt: &[u8], password: &[u8]) -> Vec<u8> {
            D::new().chain_update(salt).chain_update(password).finalize().to_vec()
        }
        match self {
            Self::Sha256 => run::<sha2::Sha256>(salt, password),
            Self::Sha512 => run::<sha2::Sha512>(salt, password),
            Self::Md5 => run::<md5::Md5>(salt, password),
            // Not made of a digest: see `argon2id`.
            Self::Argon2id => Vec::new(),
        }
    }
}

/// Bytes of salt before the digest in a password hash.
const SALT_BYTES: usize = 4;

/// What one check of a hash that somebody imported may cost: memory in KiB, rounds, lanes.
const ARGON2_MAX: (u32, u32, u32) = (256 << 10, 64, 16);

/// What memory times rounds may be: four rounds over all of the memory, which is about a second of a processor.
const ARGON2_WORK_MAX: u64 = 1 << 20;

/// The PHC string of a password, `$argon2id$v=19$m=19456,t=2,p=1$salt$hash`.
fn argon2id(password: &str, salt: &[u8]) -> Option<String> {
    let hasher = argon2::Argon2::default();
    hasher.hash_password_with_salt(password.as_bytes(), salt).ok().map(|hash| hash.to_string())
}

/// Whether a PHC string is one of argon2id with a hash, and not too costly to check.
fn check_argon2id(text: &str) -> Result<(), &'static str> {
    let hash = phc::PasswordHash::new(text).map_err(|_| "not a PHC string")?;
    if hash.algorithm.as_str() != "argon2id" || hash.salt.is_none() || hash.hash.is_none() {
        return Err("not a PHC string of argon2id with salt and hash");
    }
    let params = argon2::Params::try_from(&hash).map_err(|_| "bad parameters of argon2id")?;
    let (memory, rounds, lanes) = ARGON2_MAX;
    if params.m_cost() > memory || params.t_cost() > rounds || params.p_cost() > lanes {
        return Err("too costly: at most m=262144, t=64, p=16");
    }
    if u64::from(params.m_cost()) * u64::from(params.t_cost()) > ARGON2_WORK_MAX {
        return Err("too costly: a check would take seconds; m times t may be 1048576 at most");
    }
    Ok(())
}

/// A password as it is kept: salt and digest, or a PHC string. An empty one matches nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordHash {
    hashing: Hashing,
    bytes: Box<[u8]>,
}

impl PasswordHash {
    /// Hashes a password by `hashing`; the salt must be random. Takes its time if the hashing is slow.
    pub fn with(hashing: Hashing, password: &str, salt: [u8; 16]) -> Self {
        if hashing == Hashing::Argon2id {
            // Fails for no salt of this length and no password that fits into memory; if it ever did,
            // a hash that lets nobody in would be the safe one.
            let text = argon2id(password, &salt).unwrap_or_default();
            return Self { hashing, bytes: text.into_bytes().into() };
        }
        let salt = &salt[..SALT_BYTES];
        let mut bytes = salt.to_vec();
        bytes.extend(hashing.digest(salt, password.as_bytes()));
        Self { hashing, bytes: bytes.into() }
    }

    /// Hashes a password by SHA-256; the salt must be random.
    pub fn new(password: &str, salt: [u8; 4]) -> Self {
        let mut bytes = salt.to_vec();
        bytes.extend(Hashing::Sha256.digest(&salt, password.as_bytes()));
        Self { hashing: Hashing::Sha256, bytes: bytes.into() }
    }

    /// As in definitions: base 64 of salt and digest, or a PHC string. Empty: no password is accepted.
    pub fn from_base64(user: &str, hash: &str, hashing: Hashing) -> Result<Self, AdminError> {
        let bad = |reason| AdminError::PasswordHash { user: user.to_owned(), reason };
        if hashing == Hashing::Argon2id && !hash.is_empty() {
            check_argon2id(hash).map_err(bad)?;
            return Ok(Self { hashing, bytes: hash.as_bytes().into() });
        }
        let bytes = BASE64.decode(hash).map_err(|_| bad("not base 64"))?;
        if !bytes.is_empty() && bytes.len() <= SALT_BYTES {
            return Err(bad("too short"));
        }
        Ok(Self { hashing, bytes: bytes.into() })
    }

    /// As in definitions.
    pub fn to_base64(&self) -> String {
        match self.hashing {
            Hashing::Argon2id => String::from_utf8_lossy(&self.bytes).into_owned(),
            _ => BASE64.encode(&self.bytes),
        }
    }

    /// Whether a check takes so long that no turn should do it.
    pub fn is_slow(&self) -> bool {
        self.hashing.is_slow() && !self.bytes.is_empty()
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

    /// Whether it is the hash of this password.
    pub fn accepts(&self, password: &str) -> bool {
        if self.hashing == Hashing::Argon2id {
            let Ok(text) = std::str::from_utf8(&self.bytes) else { return false };
            return argon2::Argon2::default().verify_password(password.as_bytes(), text).is_ok();
        }
        let Some((salt, digest)) = self.bytes.split_at_checked(SALT_BYTES) else {
            return false;
        };
        self.hashing.digest(salt, password.as_bytes()).ct_eq(digest).into()
    }

    /// Matches no password, and a check of it costs what one of this costs. None of a hash that costs nothing,
    /// because it accepts nothing.
    pub fn alike(&self) -> Option<Self> {
        if self.bytes.is_empty() {
            return None;
        }
        let made = Self::dummy(self.hashing);
        if self.hashing != Hashing::Argon2id {
            return Some(made);
        }
        // Memory, rounds and lanes are this one's; salt and hash are the dummy's.
        let text = std::str::from_utf8(&self.bytes).ok()?;
        let parameters = text.rsplitn(3, '$').nth(2)?;
        let rest: Vec<&str> = DUMMY_ARGON2ID.rsplitn(3, '$').take(2).collect();
        let text = format!("{parameters}${}${}", rest.last()?, rest.first()?);
        Some(Self { hashing: self.hashing, bytes: text.into_bytes().into() })
    }

    /// Matches no password and takes as long as one that does: for users that do not exist.
    pub fn dummy(hashing: Hashing) -> Self {
        let bytes: Box<[u8]> = match hashing {
            Hashing::Argon2id => DUMMY_ARGON2ID.as_bytes().into(),
            _ => [0; SALT_BYTES + 32].into(),
        };
        Self { hashing, bytes }
    }
}

/// With the parameters of new passwords.
const DUMMY_ARGON2ID: &str = "$argon2id$v=19$m=19456,t=2,p=1$AAAAAAAAAAAAAAAAAAAAAA\
                              $AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

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
    /// `max-connections`, `max-channels`, and [rates](crate::RATE_LIMITS).
    pub limits: BTreeMap<String, i64>,
    pub(crate) connections: Count,
    pub(crate) channels: Count,
    pub(crate) rates: Buckets,
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A hash that somebody imports cannot make each login cost seconds.
    #[test]
    #[rustfmt::skip] // a table
    fn costly_hashes_are_refused() {
        #[track_caller]
        fn check(parameters: &str, want: Option<&str>) {
            let hash = DUMMY_ARGON2ID.replace("m=19456,t=2,p=1", parameters);
            let got = PasswordHash::from_base64("u", &hash, Hashing::Argon2id).err();
            let got = got.map(|error| error.to_string());
            let is_right = match (&got, want) {
                (None, None) => true,
                (Some(got), Some(want)) => got.contains(want),
                _ => false,
            };
            assert!(is_right, "{parameters}: {got:?}");
        }
        check("m=19456,t=2,p=1",   None);
        check("m=262144,t=4,p=16", None);
        check("m=16384,t=64,p=1",  None);
        check("m=262144,t=5,p=1",  Some("m times t may be 1048576 at most"));
        check("m=262144,t=64,p=1", Some("too costly"));
        check("m=16385,t=64,p=1",  Some("too costly"));
        check("m=262145,t=1,p=1",  Some("at most m=262144"));
        check("m=8,t=65,p=1",      Some("at most m=262144, t=64"));
        check("m=4294967295,t=4294967295,p=1", Some("too costly"));
    }
}
