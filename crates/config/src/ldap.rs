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
        /// As whom the connection's certificate says.
        Certificate = "external",
    }
}

/// As whom the directory is asked.
#[derive(Clone, Debug, PartialEq)]
pub enum Bind {
    /// As the user who logs in.
    User,
    /// As nobody.
    Nobody,
    /// As whom the connection's certificate says.
    Certificate,
    /// As somebody who is there for this: name and password.
    Other(String, Secret),
}

impl Bind {
    /// A word goes before a name, as in RabbitMQ; a name without a password is nothing.
    fn of(word: Option<BindAs>, name: &Option<String>, password: &Option<Secret>) -> Self {
        match (word, name, password) {
            (Some(BindAs::Nobody), ..) => Self::Nobody,
            (Some(BindAs::Certificate), ..) => Self::Certificate,
            (None, Some(name), Some(password)) => Self::Other(name.clone(), password.clone()),
            _ => Self::User,
        }
    }
}

options! {
    /// The source `ldap`.
    LdapOptions, "Users kept by a directory (LDAP)";

    /// Names or addresses of the directory's servers, tried in this order until one accepts a connection.
    servers: Texts = Texts::none(), keys = ["auth_ldap.servers.$server", "auth_ldap.servers"];

    /// Port of all servers.
    port: u16 = 389, keys = ["auth_ldap.port"];

    /// Time that a server has to accept a connection, and for each answer.
    timeout: Millis = Millis::seconds(15), keys = ["auth_ldap.timeout"],
        range = Millis(1)..=Millis::seconds(3600);

    /// Time for which an unused connection is kept.
    idle_timeout: Millis = Millis::seconds(300), keys = ["auth_ldap.idle_timeout"],
        range = Millis(0)..=Millis::seconds(86_400);

    /// Largest number of connections to the directory.
    pool_size: u32 = 64, keys = ["auth_ldap.connection_pool_size"], range = 1..=10_000;

    /// Whether connections begin with TLS (`ldaps`).
    use_ssl: bool = false, keys = ["auth_ldap.use_ssl"];

    /// Whether connections change to TLS after they are open (StartTLS).
    use_starttls: bool = false, keys = ["auth_ldap.use_starttls"];

    /// Name that a user binds with: a pattern with `${username}`, `${ad_domain}` and `${ad_user}`. Not set: the
    /// user's distinguished name.
    user_bind_pattern: Option<String> = None, keys = ["auth_ldap.user_bind_pattern"];

    /// A user's distinguished name: a pattern with the same variables. With `auth_ldap.dn_lookup_attribute` it is
    /// the value that this attribute must have.
    user_dn_pattern: String = "${username}".to_owned(), keys = ["auth_ldap.user_dn_pattern"];

    /// Attribute by which a user's distinguished name is looked up. `none` or not set: there is no lookup.
    dn_lookup_attribute: Option<String> = None, keys = ["auth_ldap.dn_lookup_attribute"];

    /// Entry below which the distinguished name is looked up, at any depth.
    dn_lookup_base: Option<String> = None, keys = ["auth_ldap.dn_lookup_base"];

    /// Who looks up the distinguished name. `as_user`: the user, after its bind. `anon`: nobody, before the bind. `external`:
    /// who `auth_ldap.ssl_options.certfile` says (SASL `EXTERNAL`), before the bind.
    /// Not set: `auth_ldap.dn_lookup_bind.user_dn`, or `as_user` without that.
    dn_lookup_bind: Option<BindAs> = None, keys = ["auth_ldap.dn_lookup_bind"];

    /// Distinguished name for the lookup.
    dn_lookup_user_dn: Option<String> = None, keys = ["auth_ldap.dn_lookup_bind.user_dn"];

    /// Password for the lookup.
    dn_lookup_password: Option<Secret> = None, keys = ["auth_ldap.dn_lookup_bind.password"];

    /// Who asks queries, and looks for users without a password: `as_user`, `anon` or `external`, as with
    /// `auth_ldap.dn_lookup_bind`. Not set: `auth_ldap.other_bind.user_dn`, or `as_user` without that.
    other_bind: Option<BindAs> = None, keys = ["auth_ldap.other_bind"];

    /// Distinguished name for queries.
    other_user_dn: Option<String> = None, keys = ["auth_ldap.other_bind.user_dn"];

    /// Password for queries.
    other_password: Option<Secret> = None, keys = ["auth_ldap.other_bind.password"];

    /// Entry below which `in_group_nested` looks for groups. Not set: `auth_ldap.dn_lookup_base`.
    group_lookup_base: Option<String> = None, keys = ["auth_ldap.group_lookup_base"];

    /// Query that says whether a user may open a vhost, with `${vhost}`.
    vhost_access: Query = Query::Constant(true), keys = ["auth_ldap.queries.vhost_access"];

    /// Query that says what a user may do with a queue or an exchange, with `${vhost}`, `${resource}`, `${name}`
    /// and `${permission}`.
    resource_access: Query = Query::Constant(true), keys = ["auth_ldap.queries.resource_access"];

    /// Query that says what a user may do with a topic exchange and a routing key, also with `${routing_key}`.
    topic_access: Query = Query::Constant(true), keys = ["auth_ldap.queries.topic_access"];

    /// Tags of users, with a query for each: `[{administrator, QUERY}, ...]`.
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

    /// Options that say who asks, and the names beside them that do not count then.
    pub(crate) fn passed_over(&self) -> impl Iterator<Item = &'static str> {
        let pairs = [
            ("auth_ldap.dn_lookup_bind", self.dn_lookup_bind, &self.dn_lookup_user_dn),
            ("auth_ldap.other_bind", self.other_bind, &self.other_user_dn),
        ];
        let passed_over =
            pairs.into_iter().filter(|(_, word, name)| word.is_some() && name.is_some());
        passed_over.map(|(key, ..)| key)
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
