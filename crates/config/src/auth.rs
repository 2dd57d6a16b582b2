//! Users who are kept elsewhere: which sources are asked, and how each is reached.

use crate::option::options;
use crate::setting::{KeyMatch, NamedValues, Setting};
use crate::tls::Verify;
use crate::value::{Millis, Secret, words};

words! {
    /// A place where users are kept.
    Backend {
        /// The broker's own users.
        Internal = "internal",
        /// A web service.
        Http = "http",
        /// A directory.
        Ldap = "ldap",
        /// Tokens that somebody else signs.
        OAuth2 = "oauth2",
        /// Another one of these, whose answers are kept for a while.
        Cache = "cache",
    }
}

/// RabbitMQ's other names of the sources.
const OTHER_NAMES: [(&str, Backend); 6] = [
    ("oauth", Backend::OAuth2),
    ("rabbit_auth_backend_internal", Backend::Internal),
    ("rabbit_auth_backend_http", Backend::Http),
    ("rabbit_auth_backend_ldap", Backend::Ldap),
    ("rabbit_auth_backend_oauth2", Backend::OAuth2),
    ("rabbit_auth_backend_cache", Backend::Cache),
];

fn read_backend(text: &str) -> Result<Backend, String> {
    let other = OTHER_NAMES.iter().find(|(name, _)| *name == text).map(|(_, backend)| *backend);
    other.map_or_else(|| crate::value::Value::read(text), Ok)
}

fn show_backend(backend: Backend) -> String {
    crate::value::Value::show(&backend)
}

/// Who says who a user is, and who says what it may do. Either may be left to the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackendPair {
    authn: Option<Backend>,
    authz: Option<Backend>,
}

impl BackendPair {
    const fn both(backend: Backend) -> Self {
        Self { authn: Some(backend), authz: Some(backend) }
    }

    /// Who says who the user is.
    pub fn authn(self) -> Backend {
        self.authn.or(self.authz).unwrap_or(Backend::Internal)
    }

    /// Who says what it may do.
    pub fn authz(self) -> Backend {
        self.authz.or(self.authn).unwrap_or(Backend::Internal)
    }

    /// Takes `...`, `....authn` or `....authz`.
    fn put(&mut self, pattern: &str, backend: Backend) {
        match pattern.rsplit('.').next() {
            Some("authn") => self.authn = Some(backend),
            Some("authz") => self.authz = Some(backend),
            _ => *self = Self::both(backend),
        }
    }

    fn show(self) -> String {
        let (authn, authz) = (show_backend(self.authn()), show_backend(self.authz()));
        if authn == authz { authn } else { format!("{authn} and {authz}") }
    }
}

/// Sources in the order in which they are asked: `auth_backends.1 = internal`.
#[derive(Clone, Debug, PartialEq)]
pub struct Backends(NamedValues<BackendPair>);

impl Default for Backends {
    fn default() -> Self {
        Self(NamedValues::of([("1", BackendPair::both(Backend::Internal))]))
    }
}

impl Backends {
    /// The sources, the first to be asked first.
    pub fn iter(&self) -> impl Iterator<Item = BackendPair> {
        let mut sorted: Vec<_> = self.0.iter().collect();
        sorted.sort_by_key(|(number, _)| number.parse::<u32>().unwrap_or(u32::MAX));
        sorted.into_iter().map(|(_, pair)| *pair)
    }

    /// Whether a source is asked.
    pub fn has(&self, backend: Backend) -> bool {
        self.iter().any(|pair| pair.authn() == backend || pair.authz() == backend)
    }
}

impl Setting for Backends {
    fn set(&mut self, key: &KeyMatch<'_>, text: &str) -> Result<(), String> {
        if key.name.parse::<u32>().is_err() {
            return Err("the place among the sources is a whole number".to_owned());
        }
        let backend = read_backend(text)?;
        let mut pair = self.0.get_set(key.name).copied().unwrap_or_default();
        pair.put(key.pattern, backend);
        self.0.put(key.name, pair);
        Ok(())
    }

    fn form() -> &'static str {
        <Backend as crate::value::Value>::FORM
    }

    fn display(&self) -> String {
        self.iter().map(BackendPair::show).collect::<Vec<_>>().join(", ")
    }
}

/// What the cache keeps: `auth_cache.cached_backend = http`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CachedBackend(BackendPair);

impl CachedBackend {
    /// What is asked when the cache does not know.
    pub fn pair(self) -> BackendPair {
        self.0
    }
}

impl Setting for CachedBackend {
    fn set(&mut self, key: &KeyMatch<'_>, text: &str) -> Result<(), String> {
        match read_backend(text)? {
            Backend::Cache => Err("the cache cannot keep its own answers".to_owned()),
            backend => {
                self.0.put(key.pattern, backend);
                Ok(())
            }
        }
    }

    fn form() -> &'static str {
        "internal|http|ldap|oauth2"
    }

    fn display(&self) -> String {
        if *self == Self::default() { "not set".to_owned() } else { self.0.show() }
    }
}

words! {
    /// How a web service is asked.
    HttpMethod {
        /// Everything in the query of the address.
        Get = "get",
        /// Everything in the body.
        Post = "post",
    }
}

words! {
    /// How a server's name is compared with its certificate. It always is, wildcards included.
    HostnameVerification {
        /// Wildcards are understood.
        Wildcard = "wildcard",
        /// RabbitMQ's word for "as the library does it".
        None = "none",
    }
}

/// Texts with a name each: `auth_oauth2.signing_keys.NAME = FILE`.
#[derive(Clone, Debug, PartialEq)]
pub struct Named(NamedValues<String>);

impl Default for Named {
    fn default() -> Self {
        Self(NamedValues::of([]))
    }
}

impl Named {
    /// Names and texts, by name; numbers as numbers.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let mut sorted: Vec<_> = self.0.iter().collect();
        sorted.sort_by_key(|(name, _)| (name.parse::<u32>().unwrap_or(u32::MAX), *name));
        sorted.into_iter().map(|(name, text)| (name, text.as_str()))
    }
}

impl Setting for Named {
    fn set(&mut self, key: &KeyMatch<'_>, text: &str) -> Result<(), String> {
        self.0.put(key.name, text.to_owned());
        Ok(())
    }

    fn form() -> &'static str {
        "TEXT"
    }

    fn display(&self) -> String {
        let all: Vec<_> = self.iter().map(|(name, text)| format!("{name} = {text}")).collect();
        if all.is_empty() { "none".to_owned() } else { all.join(", ") }
    }
}

/// How a server is spoken to by TLS.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientTlsSettings {
    /// What the keys of the group begin with.
    pub prefix: &'static str,
    /// `cacertfile`.
    pub cacertfile: Option<String>,
    /// `certfile`.
    pub certfile: Option<String>,
    /// `keyfile`.
    pub keyfile: Option<String>,
    /// `password`.
    pub password: Option<Secret>,
    /// `verify`.
    pub verify: Verify,
}

options! {
    /// Who is asked about users.
    AuthOptions, "Sources of users";

    /// Sources of users, asked in the order of their numbers until one admits the user.
    ///
    /// `auth_backends.1.authn` and `auth_backends.1.authz` name different sources: the first says who the user
    /// is, the second what the user may do.
    backends: Backends = Backends::default(),
        keys = ["auth_backends.$num", "auth_backends.$num.authn", "auth_backends.$num.authz"];

    /// Source whose answers the source `cache` keeps; `.authn` and `.authz` name different sources.
    cached: CachedBackend = CachedBackend::default(),
        keys = ["auth_cache.cached_backend", "auth_cache.cached_backend.authn", "auth_cache.cached_backend.authz"];

    /// Time for which the cache keeps an answer.
    cache_ttl: Millis = Millis::seconds(15), keys = ["auth_cache.cache_ttl"],
        range = Millis(0)..=Millis::seconds(86_400);

    /// Whether the cache keeps refusals, too.
    cache_refusals: bool = false, keys = ["auth_cache.cache_refusals"];
}

options! {
    /// The source `http`.
    HttpAuthOptions, "Users kept by a web service";

    /// Method of the requests to the service.
    method: HttpMethod = HttpMethod::Get, keys = ["auth_http.http_method"];

    /// Address that says whether a user may log in, and the user's tags.
    user_path: String = "http://localhost:8000/auth/user".to_owned(), keys = ["auth_http.user_path"];

    /// Address that says whether a user may open a vhost.
    vhost_path: String = "http://localhost:8000/auth/vhost".to_owned(), keys = ["auth_http.vhost_path"];

    /// Address that says what a user may do with a queue or an exchange.
    resource_path: String = "http://localhost:8000/auth/resource".to_owned(),
        keys = ["auth_http.resource_path"];

    /// Address that says what a user may do with a topic exchange and a routing key.
    topic_path: String = "http://localhost:8000/auth/topic".to_owned(), keys = ["auth_http.topic_path"];

    /// Time the service has for an answer.
    request_timeout: Millis = Millis::seconds(15), keys = ["auth_http.request_timeout"],
        range = Millis(1)..=Millis::seconds(3600);

    /// Time in which the service must accept a connection.
    connection_timeout: Millis = Millis::seconds(15), keys = ["auth_http.connection_timeout"],
        range = Millis(1)..=Millis::seconds(3600);

    /// Whether a client gets the reason of a refusal (`deny REASON`).
    disclosure: bool = false, keys = ["auth_http.authorization_failure_disclosure"];
}

macro_rules! client_tls_options {
    ($(#[doc = $about:literal])* $group:ident, $title:literal, $prefix:literal) => {
        options! {
            $(#[doc = $about])*
            $group, $title;

            /// File of the authorities that may have signed the server's certificate, in PEM. Not set: those of
            /// the machine.
            cacertfile: Option<String> = None, keys = [concat!($prefix, ".cacertfile")];

            /// File of the certificate that the broker shows to the server, in PEM.
            certfile: Option<String> = None, keys = [concat!($prefix, ".certfile")];

            /// File of that certificate's private key, in PEM.
            keyfile: Option<String> = None, keys = [concat!($prefix, ".keyfile")];

            /// Password of the key file, if that is encrypted.
            password: Option<Secret> = None, keys = [concat!($prefix, ".password")];

            /// Whether the server's certificate must be valid. `verify_none` accepts any server.
            verify: Verify = Verify::Peer, keys = [concat!($prefix, ".verify")];

            /// How the name in the certificate is compared with the address. Wildcards match with either value.
            hostname_verification: HostnameVerification = HostnameVerification::Wildcard,
                keys = [concat!($prefix, ".hostname_verification")];
        }

        impl $group {
            /// The same, whatever the group.
            pub fn settings(&self) -> ClientTlsSettings {
                ClientTlsSettings {
                    prefix: $prefix,
                    cacertfile: self.cacertfile.clone(),
                    certfile: self.certfile.clone(),
                    keyfile: self.keyfile.clone(),
                    password: self.password.clone(),
                    verify: self.verify,
                }
            }
        }
    };
}

client_tls_options! {
    /// TLS of the source `http`.
    HttpAuthTlsOptions, "TLS to the web service", "auth_http.ssl_options"
}

client_tls_options! {
    /// TLS of the source `ldap`.
    LdapTlsOptions, "TLS to the directory", "auth_ldap.ssl_options"
}
