//! What a user may do, whoever says so: the topology itself, or a source of users elsewhere.

use std::pin::Pin;
use std::sync::Arc;

use leveret_queue::Time;

use crate::error::{AccessError, ResourceKind, ResourceRef};
use crate::user::Permission;

/// Who was let in, and who says what it may do.
#[derive(Clone, Debug)]
pub struct Admitted {
    /// The user's name; a token's is not what the client called itself.
    pub user: Box<str>,
    /// Tags beyond those that the names know of the user, or all of them where
    /// [`rights`](Self::rights) is something.
    pub tags: Vec<String>,
    /// Who says what the user may do; none when the names do.
    pub rights: Option<Arc<dyn Rights>>,
    /// When it is over, unless the proof is renewed.
    pub expires: Option<Time>,
    /// Not a user at all, but who works on the node's own machine and may everything.
    pub is_operator: bool,
}

impl Admitted {
    /// A user whom the names know.
    pub fn known(user: &str) -> Self {
        let (tags, rights, expires) = (Vec::new(), None, None);
        Self { user: user.into(), tags, rights, expires, is_operator: false }
    }

    /// The operator, under a name that events and logs have for it.
    pub fn operator(name: &str) -> Self {
        let tags = vec!["administrator".to_owned()];
        Self { tags, is_operator: true, ..Self::known(name) }
    }
}

/// What a user may do who is kept elsewhere.
///
/// [`decide`](Self::decide) is asked first, and [`ask`](Self::ask) where that does not know.
pub trait Rights: std::fmt::Debug + Send + Sync {
    /// Decides where that takes no time.
    fn decide(&self, question: &Question) -> Option<Decision>;

    /// Decides, however long it takes.
    fn ask<'a>(&'a self, question: &'a Question) -> Deciding<'a>;
}

/// A decision that is being made.
pub type Deciding<'a> = Pin<Box<dyn Future<Output = Decision> + Send + 'a>>;

/// What a user wants to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Question {
    /// Open a vhost.
    Vhost(Box<str>),
    /// Configure, write to or read from a queue or an exchange.
    Resource {
        /// Where.
        vhost: Box<str>,
        /// What it is.
        kind: ResourceKind,
        /// Its name; the default exchange is `amq.default`.
        name: Box<str>,
        /// How.
        permission: Permission,
    },
    /// Write to or read from a topic exchange with a routing key.
    Topic {
        /// Where.
        vhost: Box<str>,
        /// The exchange's name.
        exchange: Box<str>,
        /// How.
        permission: Permission,
        /// The routing key.
        key: Box<str>,
    },
}

impl Question {
    /// About a queue or an exchange.
    pub fn resource(vhost: &str, kind: ResourceKind, name: &str, permission: Permission) -> Self {
        let is_default = kind == ResourceKind::Exchange && name.is_empty();
        let name = if is_default { "amq.default" } else { name };
        Self::Resource { vhost: vhost.into(), kind, name: name.into(), permission }
    }

    /// About a routing key of a topic exchange.
    pub fn topic(vhost: &str, exchange: &str, permission: Permission, key: &str) -> Self {
        let (vhost, exchange, key) = (vhost.into(), exchange.into(), key.into());
        Self::Topic { vhost, exchange, permission, key }
    }

    /// Why `user` may not, in RabbitMQ's words.
    pub fn refusal(&self, user: &str) -> AccessError {
        let user = user.to_owned();
        match self {
            Self::Vhost(vhost) => AccessError::Vhost { vhost: vhost.to_string(), user },
            Self::Resource { vhost, kind, name, permission } => {
                let (kind, name, vhost) = (*kind, name.clone(), vhost.clone());
                let resource = ResourceRef { kind, name, vhost };
                AccessError::Resource { permission: *permission, resource, user }
            }
            Self::Topic { vhost, exchange, permission, key } => AccessError::Topic {
                permission: *permission,
                key: key.to_string(),
                exchange: exchange.to_string(),
                vhost: vhost.to_string(),
                user,
            },
        }
    }
}

/// Whether it may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It may.
    Allowed,
    /// It may not; with something to be said about it to the client, or nothing.
    Refused(Option<Box<str>>),
    /// Nobody could say, and so it may not; with the reason.
    Failed(Box<str>),
}

impl Decision {
    /// Allowed or refused, with nothing more to be said.
    pub fn of(is_allowed: bool) -> Self {
        if is_allowed { Self::Allowed } else { Self::Refused(None) }
    }

    /// Whether it may.
    pub fn is_allowed(&self) -> bool {
        *self == Self::Allowed
    }
}
