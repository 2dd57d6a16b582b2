//! Who may do what: users, passwords, permissions.

use std::collections::BTreeMap;

use crate::error::{AccessError, AdminError, AuthError, ResourceKind, ResourceRef};
use crate::event::{Event, about_permission};
use crate::exchange::{Exchange, ExchangeKind};
use crate::id::VhostId;
use crate::journal::EntityKey;
use crate::named::Named;
use crate::rate::Buckets;
use crate::topology::Topology;
use crate::usage::Count;
use crate::user::{Hashing, PasswordHash, Permission, Permissions, TopicPermissions, User};

/// What a fresh broker starts with.
#[derive(Clone, Debug)]
pub struct Bootstrap<'a> {
    /// `default_user`.
    pub user: &'a str,
    /// `default_pass`, hashed.
    pub password: PasswordHash,
    /// `default_user_tags`.
    pub tags: &'a [&'a str],
    /// `default_vhost`.
    pub vhost: &'a str,
    /// `default_permissions`: configure, write, read.
    pub permissions: [&'a str; 3],
}

impl Topology {
    /// The default vhost, the default user and its permissions. What exists stays as it is.
    pub fn bootstrap(&mut self, with: &Bootstrap<'_>) -> Result<VhostId, AdminError> {
        let vhost = self.add_vhost(with.vhost)?;
        if !self.users.contains_key(with.user) {
            self.add_user(with.user, with.password.clone(), with.tags)?;
            let [configure, write, read] = with.permissions;
            self.set_permissions(with.user, with.vhost, configure, write, read)?;
        }
        Ok(vhost)
    }

    /// A user by name and password. Takes as long for a user that does not exist, if all hashes are as quick
    /// as RabbitMQ's; whoever has others sees to it before.
    pub fn authenticate(&self, user: &str, password: &str) -> Result<&User, AuthError> {
        if password.is_empty() {
            return Err(AuthError::BlankPassword(user.to_owned()));
        }
        let Some(found) = self.users.get(user) else {
            let _ = PasswordHash::dummy(Hashing::Sha256).accepts(password);
            return Err(AuthError::InvalidCredentials(user.to_owned()));
        };
        if found.password.accepts(password) {
            Ok(found)
        } else {
            Err(AuthError::InvalidCredentials(user.to_owned()))
        }
    }

    /// The user of this name.
    pub fn user(&self, name: &str) -> Option<&User> {
        self.users.get(name)
    }

    /// All users, by name.
    pub fn users(&self) -> impl Iterator<Item = &User> {
        self.users.values()
    }

    /// Whether a user may open a vhost: it exists, and the user has permissions in it.
    pub fn check_vhost_access(&self, user: &str, vhost: &str) -> Result<VhostId, AccessError> {
        let refused = || AccessError::Vhost { vhost: vhost.to_owned(), user: user.to_owned() };
        let id = *self.vhost_names.get(vhost).ok_or_else(refused)?;
        let user = self.users.get(user).ok_or_else(refused)?;
        if user.permissions.contains_key(&id) { Ok(id) } else { Err(refused()) }
    }

    /// Whether a user may configure, write to or read from what bears this name. The default exchange
    /// is `amq.default`; the empty name means it.
    pub fn check_permission(
        &self,
        user: &str,
        vhost: VhostId,
        permission: Permission,
        name: &str,
    ) -> bool {
        let name = if name.is_empty() { "amq.default" } else { name };
        let permissions = self.users.get(user).and_then(|user| user.permissions.get(&vhost));
        permissions.is_some_and(|permissions| permissions.allows(permission, name))
    }

    /// [`check_permission`](Self::check_permission) with RabbitMQ's text when it is refused.
    pub fn check_access(
        &self,
        user: &str,
        vhost: VhostId,
        permission: Permission,
        kind: ResourceKind,
        name: &str,
    ) -> Result<(), AccessError> {
        if self.check_permission(user, vhost, permission, name) {
            return Ok(());
        }
        let is_default = kind == ResourceKind::Exchange && name.is_empty();
        let name = if is_default { "amq.default" } else { name };
        let vhost = self.vhost_name(vhost).into();
        Err(AccessError::Resource {
            permission,
            resource: ResourceRef { kind, name: name.into(), vhost },
            user: user.to_owned(),
        })
    }

    /// Whether a user may write to or read from an exchange with this key. Only topic exchanges ask, and
    /// only users that were given topic permissions for them are limited.
    pub fn check_topic_permission(
        &self,
        user: &str,
        exchange: &Exchange,
        permission: Permission,
        key: &str,
    ) -> bool {
        if exchange.kind != ExchangeKind::Topic {
            return true;
        }
        let topics = self.users.get(user).and_then(|user| user.topics.get(&exchange.vhost));
        match topics.and_then(|topics| topics.get(&*exchange.name)) {
            None => true,
            Some(topics) => match permission {
                Permission::Write => topics.write.matches(key),
                Permission::Read => topics.read.matches(key),
                Permission::Configure => true,
            },
        }
    }

    /// [`check_topic_permission`](Self::check_topic_permission) with RabbitMQ's text when it is refused.
    pub fn check_topic_access(
        &self,
        user: &str,
        exchange: &Exchange,
        permission: Permission,
        key: &str,
    ) -> Result<(), AccessError> {
        if self.check_topic_permission(user, exchange, permission, key) {
            return Ok(());
        }
        Err(AccessError::Topic {
            permission,
            key: key.to_owned(),
            exchange: exchange.name.as_ref().to_owned(),
            vhost: self.vhost_name(exchange.vhost).to_owned(),
            user: user.to_owned(),
        })
    }

    /// Adds a user, without any permission.
    pub fn add_user(
        &mut self,
        name: &str,
        password: PasswordHash,
        tags: &[&str],
    ) -> Result<(), AdminError> {
        if self.users.contains_key(name) {
            return Err(AdminError::UserExists(name.to_owned()));
        }
        Named::User.check(name)?;
        let user = User {
            name: name.into(),
            tags: tags.iter().map(|&tag| tag.to_owned()).collect(),
            limits: BTreeMap::new(),
            connections: Count::default(),
            channels: Count::default(),
            rates: Buckets::default(),
            password,
            permissions: BTreeMap::new(),
            topics: BTreeMap::new(),
        };
        self.hash_kinds.add(&user.password);
        self.users.insert(name.into(), user);
        self.journal.note(EntityKey::User(name.into()));
        self.tell(|_| Event::new("user.created").with("name", name));
        if !tags.is_empty() {
            self.tell_tags(name, tags);
        }
        self.access_generation += 1;
        Ok(())
    }

    /// Sets another password.
    pub fn change_password(
        &mut self,
        name: &str,
        password: PasswordHash,
    ) -> Result<(), AdminError> {
        let user = self.user_mut(name)?;
        let before = std::mem::replace(&mut user.password, password.clone());
        self.hash_kinds.remove(&before);
        self.hash_kinds.add(&password);
        self.journal.note(EntityKey::User(name.into()));
        self.tell(|_| Event::new("user.password.changed").with("name", name));
        Ok(())
    }

    /// Sets other tags.
    pub fn set_tags(&mut self, name: &str, tags: &[&str]) -> Result<(), AdminError> {
        self.user_mut(name)?.tags = tags.iter().map(|&tag| tag.to_owned()).collect();
        self.journal.note(EntityKey::User(name.into()));
        self.tell_tags(name, tags);
        Ok(())
    }

    /// Sets the limits of a user: `max-connections`, `max-channels`. A negative one is none.
    pub fn set_user_limits(
        &mut self,
        name: &str,
        limits: BTreeMap<String, i64>,
    ) -> Result<(), AdminError> {
        let names = ("user.limits.set", "user.limits.cleared");
        self.user_mut(name)?;
        self.tell_limits(names, ("username", name), &limits);
        let user = self.user_mut(name)?;
        user.limits = limits;
        user.rates = Buckets::default();
        self.journal.note(EntityKey::User(name.into()));
        Ok(())
    }

    /// Deletes a user with its permissions.
    pub fn delete_user(&mut self, name: &str) -> Result<(), AdminError> {
        let user = self.users.remove(name);
        let user = user.ok_or_else(|| AdminError::NoUser(name.to_owned()))?;
        self.hash_kinds.remove(&user.password);
        self.note_user_gone(&user);
        self.tell(|_| Event::new("user.deleted").with("name", name));
        self.access_generation += 1;
        Ok(())
    }

    /// Gives a user permissions in a vhost. An empty pattern allows nothing.
    pub fn set_permissions(
        &mut self,
        user: &str,
        vhost: &str,
        configure: &str,
        write: &str,
        read: &str,
    ) -> Result<(), AdminError> {
        let permissions = Permissions::new(configure, write, read)?;
        let id = self.vhost_id(vhost)?;
        self.user_mut(user)?.permissions.insert(id, permissions);
        self.journal.note(EntityKey::Permission(id, user.into()));
        self.tell(|_| {
            about_permission("permission.created", user, vhost)
                .with("configure", configure)
                .with("write", write)
                .with("read", read)
        });
        Ok(())
    }

    /// Takes all permissions in a vhost from a user.
    pub fn clear_permissions(&mut self, user: &str, vhost: &str) -> Result<(), AdminError> {
        let id = self.vhost_id(vhost)?;
        self.user_mut(user)?.permissions.remove(&id);
        self.journal.note(EntityKey::Permission(id, user.into()));
        self.tell(|_| about_permission("permission.deleted", user, vhost));
        Ok(())
    }

    /// Limits a user's keys with a topic exchange. `{username}` and `{vhost}` in the patterns stand for these.
    pub fn set_topic_permissions(
        &mut self,
        user: &str,
        vhost: &str,
        exchange: &str,
        write: &str,
        read: &str,
    ) -> Result<(), AdminError> {
        let id = self.vhost_id(vhost)?;
        let topics = TopicPermissions::expanded(user, vhost, write, read)?;
        let own = &mut self.user_mut(user)?.topics;
        if !own.get(&id).is_some_and(|topics| topics.contains_key(exchange)) {
            Named::Exchange.check(exchange)?;
        }
        own.entry(id).or_default().insert(exchange.into(), topics);
        self.journal.note(EntityKey::topic_permission(id, user, exchange));
        self.tell(|_| {
            about_permission("topic.permission.created", user, vhost)
                .with("exchange", exchange)
                .with("write", write)
                .with("read", read)
        });
        Ok(())
    }

    /// Takes a user's topic permissions in a vhost away: of one exchange, or of all.
    pub fn clear_topic_permissions(
        &mut self,
        user: &str,
        vhost: &str,
        exchange: Option<&str>,
    ) -> Result<(), AdminError> {
        let id = self.vhost_id(vhost)?;
        let own = &mut self.user_mut(user)?.topics;
        let mut cleared = Vec::new();
        match exchange {
            None => cleared.extend(own.remove(&id).unwrap_or_default().into_keys()),
            Some(exchange) => {
                let topics = own.get_mut(&id);
                let entry = topics.and_then(|topics| topics.remove_entry(exchange));
                cleared.extend(entry.map(|(exchange, _)| exchange));
            }
        }
        for exchange in cleared {
            self.journal.note(EntityKey::topic_permission(id, user, &exchange));
        }
        self.tell(|_| about_permission("topic.permission.deleted", user, vhost));
        Ok(())
    }

    /// Every change of a user goes through here.
    pub(crate) fn user_mut(&mut self, name: &str) -> Result<&mut User, AdminError> {
        self.access_generation += 1;
        self.users.get_mut(name).ok_or_else(|| AdminError::NoUser(name.to_owned()))
    }

    pub(crate) fn vhost_id(&self, name: &str) -> Result<VhostId, AdminError> {
        self.vhost_names.get(name).copied().ok_or_else(|| AdminError::NoVhost(name.to_owned()))
    }
}
