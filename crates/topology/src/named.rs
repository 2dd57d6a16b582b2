//! Which names new vhosts and users may have. Queues and exchanges have theirs from AMQP, where a longer one cannot be said.

use core::fmt;

use leveret_amqp::table::SHORT_STR_MAX;

use crate::error::AdminError;

/// What has a name that no frame of AMQP has to hold when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// A vhost. `connection.open` has its name as a short string: nobody could open a longer one.
    Vhost,
    /// A user. The property `user-id` of a message is a short string, too.
    User,
}

impl Named {
    /// Whether a new one may be called `name`. What is there already stays, and can be deleted.
    ///
    /// # Errors
    ///
    /// When the name is empty, or longer than a short string of AMQP.
    pub fn check(self, name: &str) -> Result<(), AdminError> {
        match name.len() {
            0 => Err(AdminError::EmptyName(self)),
            1..=SHORT_STR_MAX => Ok(()),
            len => Err(AdminError::LongName { of: self, len }),
        }
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Vhost => "virtual host",
            Self::User => "user",
        })
    }
}
