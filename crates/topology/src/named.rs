//! Which names may be new that no frame of AMQP has to hold when they come. Queues and exchanges have theirs from AMQP, where a
//! longer one cannot be said.

use core::fmt;

use leveret_amqp::table::SHORT_STR_MAX;

use crate::error::NameError;

/// What has such a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// A vhost. `connection.open` has its name as a short string: nobody could open a longer one.
    Vhost,
    /// A user. The property `user-id` of a message is a short string, too.
    User,
    /// A policy. It is told beside each queue that has it.
    Policy,
    /// An operator policy, likewise.
    OperatorPolicy,
    /// A parameter of the whole cluster. RabbitMQ makes it an atom, which has 255 characters at most.
    GlobalParameter,
    /// A queue that is imported: the broker gives a name to one that is declared without.
    Queue,
    /// An exchange that topic permissions are for, whether it is there or not. The default one has no name.
    Exchange,
}

impl Named {
    /// A policy, or an operator policy.
    pub fn policy(operator: bool) -> Self {
        if operator { Self::OperatorPolicy } else { Self::Policy }
    }

    /// Whether a new one may be called `name`. What is there already stays, and can be deleted.
    ///
    /// # Errors
    ///
    /// When the name is empty, or longer than a short string of AMQP.
    pub fn check(self, name: &str) -> Result<(), NameError> {
        match name.len() {
            0 if self != Self::Exchange => Err(NameError::Empty(self)),
            0..=SHORT_STR_MAX => Ok(()),
            len => Err(NameError::Long { of: self, len }),
        }
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Vhost => "virtual host",
            Self::User => "user",
            Self::Policy => "policy",
            Self::OperatorPolicy => "operator policy",
            Self::GlobalParameter => "global parameter",
            Self::Queue => "queue",
            Self::Exchange => "exchange",
        })
    }
}
