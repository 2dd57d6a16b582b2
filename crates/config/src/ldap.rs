//! The source `ldap`: how a directory is reached, and how users and their rights are found in it.

mod query;
pub(crate) mod term;

pub use query::{Query, Tags, Text, Values};

use crate::option::options;
use crate::setting::Texts;
use crate::value::{Millis, Secret, words};

words! {
    /// As whom the directory is asked.
    BindAs {
        /// As the user who logs in, with its password.
        User = "as_user",
        /// As nobody.
        Nobody = "anon",
    }
}

/// As whom the directory is asked.
#[derive(Clone, Debug, PartialEq)]
pub enum Bind {
    /// As the user who logs in.
    User,
    /// As nobody.
    Nobody,
    /// As somebody who is there for this: name and password.
    Other(String, Secret),
}

impl Bind {
    /// A word goes before a name, as in RabbitMQ; a name without a password is nothing.
    fn of(word: Option<BindAs>, name: &Option<String>, password: &Option<Secret>) -> Self {
        match (word, name, password) {
            (Some(BindAs::Nobody), ..) => Self::Nobody,
            (None, Some(name), Some(password)) => Self::Other(name.clone(), password.clone()),
            _ => Self::User,
        }
    }
}

options! {
    /// The source `ldap`.
    LdapOptions, "Users kept by a directory (LDAP)";

    /// Names or addresses of the directory's servers. They are tried in this order until one can be
    /// connected to.
    servers: Texts = Texts::none(), keys = ["auth_ldap.servers.$server", "auth_ldap.servers"];

    /// Port of all of them.
    port: u16 = 389, keys = ["auth_ldap.port"];

    /// Time a server has to be connected to, and for each answer.
    timeout: Millis = Millis::seconds(15), keys = ["auth_ldap.timeout"],
        range = Millis(1)..=Millis::seconds(3600);

    /// How long a connection is kept that nobody uses.
    idle_timeout: Millis = Millis::seconds(300), keys = ["auth_ldap.idle_timeout"],
        range = Millis(0)..=Millis::seconds(86_400);

    /// Connections to the directory at once, at most.
    pool_size: u32 = 64, keys = ["auth_ldap.connection_pool_size"], range = 1..=10_000;

    /// Whether TLS is spoken from the beginning (`ldaps`).
    use_ssl: bool = false, keys = ["auth_ldap.use_ssl"];

    /// Whether TLS is asked for after connecting (StartTLS).
    use_starttls: bool = false, keys = ["auth_ldap.use_starttls"];

    /// What a user binds as: a pattern with `${username}`, `${ad_domain}` and `${ad_user}`. Not set: its
    /// distinguished name.
    user_bind_pattern: Option<String> = None, keys = ["auth_ldap.user_bind_pattern"];

    /// A user's distinguished name: a pattern, too. With `auth_ldap.dn_lookup_attribute` it is what that
    /// attribute has to be.
    user_dn_pattern: String = "${username}".to_owned(), keys = ["auth_ldap.user_dn_pattern"];

    /// Attribute by which a user's distinguished name is looked up; `none` or not set: it is not.
    dn_lookup_attribute: Option<String> = None, keys = ["auth_ldap.dn_lookup_attribute"];

    /// Where it is looked up, with everything below.
    dn_lookup_base: Option<String> = None, keys = ["auth_ldap.dn_lookup_base"];

    /// As whom it is looked up. `as_user` looks it up after the user has bound, `anon` before. Not set: as
    /// `auth_ldap.dn_lookup_bind.user_dn`, and `as_user` without that.
    dn_lookup_bind: Option<BindAs> = None, keys = ["auth_ldap.dn_lookup_bind"];

    /// Distinguished name of who looks it up.
    dn_lookup_user_dn: Option<String> = None, keys = ["auth_ldap.dn_lookup_bind.user_dn"];

    /// Password of who looks it up.
    dn_lookup_password: Option<Secret> = None, keys = ["auth_ldap.dn_lookup_bind.password"];

    /// As whom queries are asked, and users without a password are looked for. Not set: as
    /// `auth_ldap.other_bind.user_dn`, and `as_user` without that.
    other_bind: Option<BindAs> = None, keys = ["auth_ldap.other_bind"];

    /// Distinguished name of who asks.
    other_user_dn: Option<String> = None, keys = ["auth_ldap.other_bind.user_dn"];

    /// Password of who asks.
    other_password: Option<Secret> = None, keys = ["auth_ldap.other_bind.password"];

    /// Where `in_group_nested` looks for groups. Not set: `auth_ldap.dn_lookup_base`.
    group_lookup_base: Option<String> = None, keys = ["auth_ldap.group_lookup_base"];

    /// Whether a user may open a vhost: a query, with `${vhost}`.
    vhost_access: Query = Query::Constant(true), keys = ["auth_ldap.queries.vhost_access"];

    /// What a user may do with a queue or an exchange: a query, with `${vhost}`, `${resource}`, `${name}` and
    /// `${permission}`.
    resource_access: Query = Query::Constant(true), keys = ["auth_ldap.queries.resource_access"];

    /// What a user may do with a topic exchange and a routing key: a query, with `${routing_key}`, too.
    topic_access: Query = Query::Constant(true), keys = ["auth_ldap.queries.topic_access"];

    /// The tags that users can have, with a query for each: `[{administrator, QUERY}, ...]`.
    tags: Tags = Tags::default(), keys = ["auth_ldap.queries.tags"];
}

impl LdapOptions {
    /// The attribute and where it is looked up, if a user's distinguished name is.
    pub fn dn_lookup(&self) -> Option<(&str, &str)> {
        let attribute = set(&self.dn_lookup_attribute)?;
        Some((attribute, set(&self.dn_lookup_base).unwrap_or_default()))
    }

    /// As whom it is looked up.
    pub fn dn_lookup_as(&self) -> Bind {
        Bind::of(self.dn_lookup_bind, &self.dn_lookup_user_dn, &self.dn_lookup_password)
    }

    /// As whom queries are asked.
    pub fn ask_as(&self) -> Bind {
        Bind::of(self.other_bind, &self.other_user_dn, &self.other_password)
    }

    /// Where groups are looked for.
    pub fn group_base(&self) -> &str {
        set(&self.group_lookup_base).or_else(|| set(&self.dn_lookup_base)).unwrap_or_default()
    }
}

/// RabbitMQ's `none` is nothing.
fn set(text: &Option<String>) -> Option<&str> {
    text.as_deref().filter(|text| *text != "none")
}
