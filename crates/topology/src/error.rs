//! Why an operation was refused: one enum per family, with RabbitMQ's texts.
//!
//! A text is what RabbitMQ puts after the name of the reply code: the session sends
//! `PRECONDITION_FAILED - ` and the error's text, under [`DeclareError::reply_code`] and its like.
//! Clients look for these texts: changing one is a change of the interface.

use core::fmt;

use leveret_amqp::reply::ReplyCode;
use leveret_amqp::table::SHORT_STR_MAX;

use crate::exchange::ExchangeKind;
use crate::named::Named;

/// The name of a queue or an exchange in a text: `queue 'q' in vhost '/'`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceRef {
    /// `queue`, `exchange`.
    pub kind: ResourceKind,
    /// Its name.
    pub name: Box<str>,
    /// The name of its vhost.
    pub vhost: Box<str>,
}

impl ResourceRef {
    /// A queue.
    pub fn queue(name: &str, vhost: &str) -> Self {
        Self { kind: ResourceKind::Queue, name: name.into(), vhost: vhost.into() }
    }

    /// An exchange.
    pub fn exchange(name: &str, vhost: &str) -> Self {
        Self { kind: ResourceKind::Exchange, name: name.into(), vhost: vhost.into() }
    }
}

impl fmt::Display for ResourceRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} '{}' in vhost '{}'", self.kind, self.name, self.vhost)
    }
}

/// What a [`ResourceRef`] names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResourceKind {
    /// A queue.
    Queue,
    /// An exchange.
    Exchange,
}

impl ResourceKind {
    /// In RabbitMQ's word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Exchange => "exchange",
        }
    }
}

impl fmt::Display for ResourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Names take as much memory as they may. What is there stays, and can be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no memory for another name of {bytes} bytes: queues, exchanges and bindings take {held} bytes, and {max} are allowed; \
     delete some, or raise vm_memory_high_watermark"
)]
pub struct NamesFull {
    /// What it would take.
    pub bytes: u64,
    /// What all take.
    pub held: u64,
    /// What they may, for one of this size.
    pub max: u64,
}

/// Why a queue or an exchange was not declared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeclareError {
    /// The declaration differs from what exists. `received` and `current` are written as RabbitMQ
    /// writes them: `'true'`, `the value '5' of type 'signedint'`, `none`.
    #[error(
        "inequivalent arg '{arg}' for {resource}: received {received} but current is {current}"
    )]
    Inequivalent {
        /// What was declared.
        resource: ResourceRef,
        /// The property or argument.
        arg: String,
        /// What the declaration asks for.
        received: String,
        /// What exists.
        current: String,
    },
    /// An exclusive queue of another connection, or an existing queue declared as exclusive.
    #[error(transparent)]
    Locked(#[from] Locked),
    /// A value that the argument cannot have; `reason` is written as an Erlang term.
    #[error("invalid arg '{arg}' for {resource}: {reason}")]
    InvalidArgument {
        /// What was declared.
        resource: ResourceRef,
        /// The argument.
        arg: String,
        /// Why, for example `{value_negative,-1}`.
        reason: String,
    },
    /// An argument that another queue type has, but not this one.
    #[error("invalid arg '{arg}' for {resource} of queue type {queue_type}")]
    ArgumentOfOtherType {
        /// What was declared.
        resource: ResourceRef,
        /// The argument.
        arg: String,
        /// RabbitMQ's module name: `rabbit_classic_queue`.
        queue_type: &'static str,
    },
    /// A name argument (`x-dead-letter-exchange`, `alternate-exchange`) that is not a string.
    #[error("invalid type '{found}' for arg '{arg}' in {resource}")]
    InvalidNameType {
        /// What was declared.
        resource: ResourceRef,
        /// The argument.
        arg: &'static str,
        /// The type it has: `signedint`.
        found: &'static str,
    },
    /// Quorum queues are durable, not exclusive, not auto-delete.
    #[error("invalid property '{property}' for {resource}")]
    InvalidProperty {
        /// What was declared.
        resource: ResourceRef,
        /// `non-durable`, `exclusive-owner`, `auto-delete`.
        property: &'static str,
    },
    /// The type exists in RabbitMQ but not here yet.
    #[error("queue type '{queue_type}' of {resource} is not supported by this broker yet")]
    UnsupportedQueueType {
        /// What was declared.
        resource: ResourceRef,
        /// `stream`.
        queue_type: String,
    },
    /// Only classic queues take a name from the server.
    #[error("Cannot declare a server-named queue for type {queue_type}")]
    ServerNamed {
        /// RabbitMQ's module name: `rabbit_quorum_queue`.
        queue_type: &'static str,
    },
    /// `x-name-prefix` above 64 bytes.
    #[error("Queue name prefix '{prefix}' exceeds the 64-byte limit")]
    PrefixTooLong {
        /// The prefix.
        prefix: String,
    },
    /// Names that begin with `amq.` are the broker's.
    #[error("{kind} name '{name}' contains reserved prefix 'amq.*'")]
    ReservedName {
        /// What was declared.
        kind: ResourceKind,
        /// Its name.
        name: String,
    },
    /// The exchange named "".
    #[error("operation not permitted on the default exchange")]
    DefaultExchange,
    /// No such kind of exchange.
    #[error("{word} exchange type '{0}'", word = if .0.is_empty() { "invalid" } else { "unknown" })]
    UnknownExchangeType(String),
    /// `hash-header` and `hash-property` of a consistent-hash exchange together.
    #[error("hash-header and hash-property are mutually exclusive")]
    HashArgumentsExclude,
    /// `hash-property` of a consistent-hash exchange.
    #[error("Unsupported property: {0}")]
    UnsupportedHashProperty(String),
    /// `x-recent-history-length`.
    #[error("Invalid argument {0}, 'x-recent-history-length' must be a positive integer")]
    HistoryLength(String),
    /// `max-queues` of the vhost's limits.
    #[error("cannot declare queue '{name}': queue limit in vhost '{vhost}' ({limit}) is reached")]
    QueueLimit {
        /// The queue.
        name: String,
        /// The vhost.
        vhost: String,
        /// The limit.
        limit: u64,
    },
    /// `cluster_queue_limit`.
    #[error("cannot declare queue '{name}': queue limit in cluster ({limit}) is reached")]
    ClusterQueueLimit {
        /// The queue.
        name: String,
        /// The limit.
        limit: u64,
    },
    /// The vhost went away.
    #[error("vhost '{0}' not found")]
    NoVhost(String),
    /// There is no room for more.
    #[error(transparent)]
    NamesFull(#[from] NamesFull),
}

impl DeclareError {
    /// How the channel is closed.
    pub fn reply_code(&self) -> ReplyCode {
        match self {
            Self::Locked(locked) => locked.reply_code(),
            Self::ReservedName { .. } | Self::DefaultExchange => ReplyCode::AccessRefused,
            Self::NoVhost(_) => ReplyCode::NotFound,
            _ => ReplyCode::PreconditionFailed,
        }
    }
}

/// A queue that belongs to another connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot obtain exclusive access to locked {queue}. It could be originally declared on another \
     connection or the exclusive property value does not match that of the original declaration."
)]
pub struct Locked {
    /// The queue.
    pub queue: ResourceRef,
}

impl Locked {
    /// How the channel is closed.
    pub fn reply_code(&self) -> ReplyCode {
        ReplyCode::ResourceLocked
    }
}

/// There is no such queue or exchange.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no {0}")]
pub struct NotFound(pub ResourceRef);

impl NotFound {
    /// How the channel is closed.
    pub fn reply_code(&self) -> ReplyCode {
        ReplyCode::NotFound
    }
}

/// Why an exchange was not deleted. Deleting one that does not exist is no error, as in RabbitMQ.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeleteError {
    /// The exchange named "".
    #[error("operation not permitted on the default exchange")]
    DefaultExchange,
    /// Its name begins with `amq.`.
    #[error("deletion of system {0} not allowed")]
    System(ResourceRef),
    /// `if-unused`, and it is the source of a binding.
    #[error("{0} in use")]
    InUse(ResourceRef),
}

impl DeleteError {
    /// How the channel is closed.
    pub fn reply_code(&self) -> ReplyCode {
        match self {
            Self::DefaultExchange | Self::System(_) => ReplyCode::AccessRefused,
            Self::InUse(_) => ReplyCode::PreconditionFailed,
        }
    }
}

/// Why a binding was not made or removed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// Source or destination.
    #[error(transparent)]
    NotFound(#[from] NotFound),
    /// The exchange named "".
    #[error("operation not permitted on the default exchange")]
    DefaultExchange,
    /// The destination is an exclusive queue of another connection.
    #[error(transparent)]
    Locked(#[from] Locked),
    /// `x-match` of a headers binding.
    #[error(
        "Invalid x-match field value <<\"{0}\">>; expected all, any, all-with-x, or any-with-x"
    )]
    MatchValue(String),
    /// `x-match` of a headers binding.
    #[error("Invalid x-match field type {found} (value {value}); expected longstr")]
    MatchType {
        /// The type it has.
        found: &'static str,
        /// The value it has.
        value: String,
    },
    /// The weight of a consistent-hash binding.
    #[error("The binding key must be an integer: <<\"{0}\">>")]
    WeightNotNumber(String),
    /// The weight of a consistent-hash binding.
    #[error("The binding key must be greater than 0")]
    WeightTooSmall,
    /// The weight of a consistent-hash binding.
    #[error("The binding key must not exceed {0}")]
    WeightTooLarge(u32),
    /// Bindings of a local-random exchange have no key.
    #[error("Non empty binding '{0}' key not permitted")]
    KeyNotEmpty(String),
    /// Bindings of a local-random exchange lead to classic queues.
    #[error("Queue type {0} not valid for this exchange type")]
    QueueType(&'static str),
    /// Bindings of a local-random exchange lead to queues.
    #[error("Destination not found")]
    NotAQueue,
    /// A message could have to be compared with too much.
    #[error(
        "binding refused: with it, one message published to {kind} {exchange} could take {cost} comparisons, and {max} are \
         allowed; use fewer or simpler bindings, or several exchanges"
    )]
    TooCostly {
        /// The source.
        exchange: ResourceRef,
        /// Its type.
        kind: ExchangeKind,
        /// What it could take.
        cost: u64,
        /// What it may.
        max: u64,
    },
    /// There is no room for more.
    #[error(transparent)]
    NamesFull(#[from] NamesFull),
}

impl BindError {
    /// How the channel is closed.
    pub fn reply_code(&self) -> ReplyCode {
        match self {
            Self::NotFound(error) => error.reply_code(),
            Self::Locked(error) => error.reply_code(),
            Self::DefaultExchange => ReplyCode::AccessRefused,
            _ => ReplyCode::PreconditionFailed,
        }
    }
}

/// Why a user may not do something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// `connection.open`.
    #[error("access to vhost '{vhost}' refused for user '{user}'")]
    Vhost {
        /// The vhost, which may not exist.
        vhost: String,
        /// The user.
        user: String,
    },
    /// `max-connections` of the vhost.
    #[error(
        "access to vhost '{vhost}' refused for user '{user}': connection limit ({limit}) is reached"
    )]
    VhostConnections {
        /// The vhost.
        vhost: String,
        /// The user.
        user: String,
        /// The limit.
        limit: u64,
    },
    /// `max-connections` of the user.
    #[error("connection refused for user '{user}': user connection limit ({limit}) is reached")]
    UserConnections {
        /// The user.
        user: String,
        /// The limit.
        limit: u64,
    },
    /// `max-channels` of the user.
    #[error(
        "number of channels opened for user '{user}' has reached the maximum allowed user limit of \
         {limit}"
    )]
    UserChannels {
        /// The user.
        user: String,
        /// The limit.
        limit: u64,
    },
    /// `channel_max_per_node`.
    #[error(
        "number of channels opened on node '{node}' has reached the maximum allowed limit of {limit}"
    )]
    NodeChannels {
        /// The node's name.
        node: String,
        /// The limit.
        limit: u64,
    },
    /// Configure, write or read of a queue or an exchange.
    #[error("{permission} access to {resource} refused for user '{user}'")]
    Resource {
        /// `configure`, `write`, `read`.
        permission: crate::user::Permission,
        /// The default exchange is called `amq.default` here.
        resource: ResourceRef,
        /// The user.
        user: String,
    },
    /// A topic permission.
    #[error(
        "{permission} access to topic '{key}' in exchange '{exchange}' in vhost '{vhost}' refused \
         for user '{user}'"
    )]
    Topic {
        /// `write`, `read`.
        permission: crate::user::Permission,
        /// The routing or binding key.
        key: String,
        /// The exchange.
        exchange: String,
        /// The vhost.
        vhost: String,
        /// The user.
        user: String,
    },
}

impl AccessError {
    /// How the channel or connection is closed.
    pub fn reply_code(&self) -> ReplyCode {
        match self {
            Self::Vhost { .. }
            | Self::VhostConnections { .. }
            | Self::UserConnections { .. }
            | Self::UserChannels { .. }
            | Self::NodeChannels { .. } => ReplyCode::NotAllowed,
            Self::Resource { .. } | Self::Topic { .. } => ReplyCode::AccessRefused,
        }
    }
}

/// Why a name and a password were not accepted. For the log: the peer only learns that it was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// No such user, or another password. RabbitMQ does not tell which, nor do we.
    #[error("user '{0}' - invalid credentials")]
    InvalidCredentials(String),
    /// An empty password is never accepted.
    #[error("user '{0}' attempted to log in with a blank password, which is prohibited")]
    BlankPassword(String),
}

/// Why a user, a permission or a vhost was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdminError {
    /// The user exists.
    #[error("user '{0}' already exists")]
    UserExists(String),
    /// The user does not exist.
    #[error("user '{0}' does not exist")]
    NoUser(String),
    /// The vhost does not exist.
    #[error("virtual host '{0}' does not exist")]
    NoVhost(String),
    /// The queue does not exist.
    #[error("queue '{queue}' in vhost '{vhost}' does not exist")]
    NoQueue {
        /// Its name.
        queue: String,
        /// Where it is not.
        vhost: String,
    },
    /// A pattern of a permission.
    #[error("invalid regular expression '{pattern}': {reason}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The vhost's default queue type.
    #[error("{0} is not a valid queue type")]
    QueueType(String),
    /// A vhost that is not to be deleted.
    #[error("Refusing to delete virtual host '{0}' because it is protected from deletion")]
    ProtectedVhost(String),
    /// A password that is not what new ones have to be like. RabbitMQ says the first word alone.
    #[error("credential_validation_failed: {0}")]
    Credential(String),
    /// `vhost_max`.
    #[error("cannot create vhost '{vhost}': vhost limit of {limit} is reached")]
    VhostLimit {
        /// The vhost.
        vhost: String,
        /// The limit.
        limit: u64,
    },
    /// What the configuration has for new vhosts.
    #[error("the defaults of virtual host '{vhost}' cannot be applied: {reason}")]
    Defaults {
        /// The vhost.
        vhost: String,
        /// What does not go.
        reason: String,
    },
    /// What it is to be called.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A password hash: four bytes of salt and the digest, in base 64.
    #[error("password hash of user '{user}' is invalid: {reason}")]
    PasswordHash {
        /// The user.
        user: String,
        /// What is wrong with it.
        reason: &'static str,
    },
}

/// Why something new may not have its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// It has none.
    #[error("{0} name must not be empty")]
    Empty(Named),
    /// No short string of AMQP holds it.
    #[error("{of} name must be at most {SHORT_STR_MAX} bytes long, not {len}")]
    Long {
        /// What is called so.
        of: Named,
        /// Bytes of the name.
        len: usize,
    },
}

/// Why a policy or a parameter was not set or cleared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// The vhost does not exist.
    #[error("virtual host '{0}' does not exist")]
    NoVhost(String),
    /// There is no policy or parameter of this name.
    #[error("{what} '{name}' in vhost '{vhost}' does not exist")]
    NotFound {
        /// `policy`, `operator policy`, or the component of a parameter.
        what: String,
        /// Its name.
        name: String,
        /// The vhost.
        vhost: String,
    },
    /// What it is to be called.
    #[error(transparent)]
    Name(#[from] NameError),
    /// RabbitMQ's text of what a validator refuses.
    #[error("Validation failed\n\n{0}\n")]
    Validation(String),
}

impl ExchangeKind {
    /// The kind by its name in `exchange.declare`.
    pub fn parse(name: &str) -> Result<Self, DeclareError> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| DeclareError::UnknownExchangeType(name.to_owned()))
    }
}
