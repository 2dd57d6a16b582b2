//! What new vhosts have from the beginning, what new passwords have to be like, and how many vhosts and queues there may be: RabbitMQ's
//! `default_users`, `default_policies`, `default_limits`, credential validators, `vhost_max` and `cluster_queue_limit`.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::AdminError;
use crate::id::VhostId;
use crate::pattern::Pattern;
use crate::policy::Policy;
use crate::topology::Topology;
use crate::user::PasswordHash;

/// What the configuration says of new vhosts, queues and passwords.
#[derive(Clone, Debug, Default)]
pub struct Defaults {
    /// The first that matches a new vhost holds.
    pub limits: Vec<DefaultLimits>,
    /// Operator policies; each that matches is set.
    pub policies: Vec<DefaultPolicy>,
    /// Users; each that matches gets permissions.
    pub users: Vec<DefaultUser>,
    /// What new passwords have to be like.
    pub passwords: PasswordRule,
    /// No vhost is made beside so many.
    pub vhosts_max: Option<u64>,
    /// No queue is made beside so many, in all vhosts.
    pub queues_max: Option<u64>,
}

/// Limits of new vhosts.
#[derive(Clone, Debug)]
pub struct DefaultLimits {
    /// Names of vhosts.
    pub vhosts: Pattern,
    /// By name.
    pub limits: BTreeMap<String, i64>,
}

/// An operator policy of new vhosts.
#[derive(Clone, Debug)]
pub struct DefaultPolicy {
    /// Names of vhosts.
    pub vhosts: Pattern,
    /// The policy.
    pub policy: Policy,
}

/// A user with permissions in new vhosts.
#[derive(Clone, Debug)]
pub struct DefaultUser {
    /// Names of vhosts.
    pub vhosts: Pattern,
    /// Its name.
    pub name: String,
    /// Of one who is not there yet.
    pub password: PasswordHash,
    /// Of one who is not there yet.
    pub tags: Vec<String>,
    /// Configure, write, read.
    pub permissions: [String; 3],
}

/// Longest password that is matched by a pattern, in bytes.
const LEN_MAX: usize = 4 << 10;

/// What a new password has to be like.
#[derive(Clone, Debug, Default)]
pub enum PasswordRule {
    /// Anything.
    #[default]
    Anything,
    /// So many bytes long at least.
    MinLength(usize),
    /// Matched by this, within what a pattern may cost.
    Matches(Pattern),
}

impl PasswordRule {
    /// Whether a password may be a user's. RabbitMQ's texts.
    pub fn check(&self, password: &str) -> Result<(), AdminError> {
        let reason = match self {
            Self::MinLength(min) if password.len() < *min => {
                format!("minimum required password length is {min}")
            }
            // What it takes to say so is not for who sets it to choose.
            Self::Matches(_) if password.len() > LEN_MAX => format!(
                "provided password has {} bytes, and the validator regular expression is tried with {LEN_MAX} at most",
                password.len()
            ),
            Self::Matches(pattern) => match pattern.matches_to_the_end(password) {
                Some(true) => return Ok(()),
                Some(false) => {
                    "provided password does not match the validator regular expression".to_owned()
                }
                None => "provided password takes the validator regular expression (credential_validator.regexp) too \
                         many steps back: it has to be written without nested repeats"
                    .to_owned(),
            },
            _ => return Ok(()),
        };
        Err(AdminError::Credential(reason))
    }
}

impl Topology {
    /// What vhosts that are made from now on have from the beginning, and what passwords that are set from now on have to be
    /// like.
    pub fn choose_defaults(&mut self, defaults: Defaults) {
        self.defaults = defaults.into();
    }

    /// What new vhosts have, and what new passwords have to be like.
    pub fn defaults(&self) -> Arc<Defaults> {
        Arc::clone(&self.defaults)
    }

    /// Gives a new vhost what it has from the beginning.
    pub(crate) fn apply_defaults(&mut self, id: VhostId, vhost: &str) -> Result<(), AdminError> {
        let defaults = self.defaults();
        if let Some(first) = defaults.limits.iter().find(|it| it.vhosts.matches(vhost)) {
            self.set_vhost_limits(id, first.limits.clone());
        }
        for it in defaults.policies.iter().filter(|it| it.vhosts.matches(vhost)) {
            let change = self.start_set_policy(vhost, it.policy.clone(), true);
            // It has no queue yet that could have another policy now.
            change.and_then(|change| self.whole(change)).map_err(|error| AdminError::Defaults {
                vhost: vhost.to_owned(),
                reason: error.to_string(),
            })?;
        }
        for user in defaults.users.iter().filter(|it| it.vhosts.matches(vhost)) {
            if self.user(&user.name).is_none() {
                let tags: Vec<&str> = user.tags.iter().map(String::as_str).collect();
                self.add_user(&user.name, user.password.clone(), &tags)?;
            }
            let [configure, write, read] = &user.permissions;
            self.set_permissions(&user.name, vhost, configure, write, read)?;
        }
        Ok(())
    }
}
