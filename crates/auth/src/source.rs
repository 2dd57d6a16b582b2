//! The sources of users that are configured, and how they are asked.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv6Addr};
use std::pin::Pin;
use std::sync::Arc;

use leveret_config::Config;
use leveret_config::auth::{Backend, BackendPair, ClientTlsSettings};
use leveret_topology::rights::Admitted;
use rustls::ClientConfig;

use crate::cache::Cache;
use crate::http::Http;
use crate::ldap::{Ldap, Tls};
use crate::oauth2::OAuth2;

/// A client that wants to come in.
#[derive(Clone, Copy)]
pub struct Candidate<'a> {
    /// The name it gives itself.
    pub user: &'a str,
    /// Its password or token; none when something else has shown who it is.
    pub password: Option<&'a str>,
    /// Its address, without the port; empty where it is not known.
    pub address: &'a str,
}

/// Whose share or delay an address has: whoever has an IPv6 address may have all of its /56, which is what providers give a
/// household. IPv4 written as IPv6 is IPv4.
pub fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from(u128::from(address) & (u128::MAX << 72)).into(),
        v4 => v4,
    }
}

/// Most of a text of a source that is told, in bytes.
const TOLD_MAX: usize = 1024;

/// What a source says, as it is told in the log and to clients: it may say megabytes.
pub(crate) fn told(text: &str) -> Cow<'_, str> {
    match text.len() {
        0..=TOLD_MAX => Cow::Borrowed(text),
        _ => Cow::Owned(format!("{}...", &text[..text.floor_char_boundary(TOLD_MAX)])),
    }
}

/// Why a client is not let in. For the log: the client does not learn it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denied {
    /// The source says no.
    Refused(String),
    /// The source could not be asked.
    Failed(String),
    /// The source was not asked: too many others wait for it.
    Busy(String),
}

impl std::fmt::Display for Denied {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused(why) | Self::Failed(why) | Self::Busy(why) => f.write_str(why),
        }
    }
}

/// A place where users are kept that are not the broker's own.
#[derive(Clone, Debug)]
pub enum UserSource {
    /// A web service.
    Http(Arc<Http>),
    /// A directory.
    Ldap(Arc<Ldap>),
    /// Tokens.
    OAuth2(Arc<OAuth2>),
    /// Another one, whose answers are kept for a while.
    Cache(Arc<Cache>),
}

impl UserSource {
    /// Who the client is and what it may do.
    pub fn authenticate<'a>(
        &'a self,
        candidate: Candidate<'a>,
    ) -> Pin<Box<dyn Future<Output = Result<Admitted, Denied>> + Send + 'a>> {
        match self {
            Self::Http(http) => Box::pin(Http::authenticate(http, candidate)),
            Self::Ldap(ldap) => Box::pin(Ldap::authenticate(ldap, candidate)),
            Self::OAuth2(oauth2) => Box::pin(oauth2.authenticate(candidate)),
            Self::Cache(cache) => Box::pin(Cache::authenticate(cache, candidate)),
        }
    }
}

/// One step of a login: the source that says who a user is, and the one that says what the user may do. None stands for the names.
#[derive(Clone, Debug)]
pub struct SourcePair {
    /// Who it is.
    pub authn: Option<UserSource>,
    /// What it may do.
    pub authz: Option<UserSource>,
    /// Both are the same.
    pub is_one: bool,
}

impl SourcePair {
    /// Whether nobody is asked but the names.
    pub fn is_internal(&self) -> bool {
        self.authn.is_none() && self.authz.is_none()
    }
}

/// Makes of settings what a server is spoken to with by TLS.
pub type TlsMaker<'a> = &'a dyn Fn(&ClientTlsSettings) -> anyhow::Result<Arc<ClientConfig>>;

/// All sources, in the order in which they are asked.
#[derive(Clone, Debug)]
pub struct Sources {
    entries: Vec<SourcePair>,
}

impl Default for Sources {
    /// The names alone.
    fn default() -> Self {
        Self { entries: vec![SourcePair { authn: None, authz: None, is_one: true }] }
    }
}

impl Sources {
    /// Those of a configuration. `key` is random.
    ///
    /// # Errors
    ///
    /// What is missing in the configuration, or a file that cannot be read.
    pub fn new(config: &Config, tls: TlsMaker<'_>, key: [u8; 32]) -> anyhow::Result<Self> {
        let mut maker = Maker { config, tls, key, http: None, ldap: None, oauth2: None };
        let pairs = config.auth.backends.iter();
        let entries = pairs.map(|pair| maker.entry(pair)).collect::<anyhow::Result<_>>()?;
        Ok(Self { entries })
    }

    /// In the order in which they are asked.
    pub fn entries(&self) -> &[SourcePair] {
        &self.entries
    }

    /// Whether nobody is asked but the names.
    pub fn are_internal(&self) -> bool {
        self.entries.iter().all(SourcePair::is_internal)
    }
}

/// Makes each source once, however often it is named.
struct Maker<'a> {
    config: &'a Config,
    tls: TlsMaker<'a>,
    key: [u8; 32],
    http: Option<UserSource>,
    ldap: Option<UserSource>,
    oauth2: Option<UserSource>,
}

impl Maker<'_> {
    fn entry(&mut self, pair: BackendPair) -> anyhow::Result<SourcePair> {
        let cached = self.config.auth.cached.pair();
        // With the cache in both places it is asked as what it keeps.
        let is_one = match (pair.authn(), pair.authz()) {
            (Backend::Cache, Backend::Cache) => cached.authn() == cached.authz(),
            (authn, authz) => authn == authz,
        };
        let authn = match pair.authn() {
            Backend::Cache => self.cached(cached.authn())?,
            backend => self.source(backend)?,
        };
        let authz = match pair.authz() {
            _ if is_one => authn.clone(),
            Backend::Cache => self.cached(cached.authz())?,
            backend => self.source(backend)?,
        };
        Ok(SourcePair { authn, authz, is_one })
    }

    fn source(&mut self, backend: Backend) -> anyhow::Result<Option<UserSource>> {
        Ok(match backend {
            Backend::Internal => None,
            Backend::Http => {
                if self.http.is_none() {
                    let http = self.http()?;
                    self.http = Some(UserSource::Http(Arc::new(http)));
                }
                self.http.clone()
            }
            Backend::Ldap => {
                if self.ldap.is_none() {
                    let ldap = self.ldap()?;
                    self.ldap = Some(UserSource::Ldap(Arc::new(ldap)));
                }
                self.ldap.clone()
            }
            Backend::OAuth2 => {
                if self.oauth2.is_none() {
                    let oauth2 = self.oauth2()?;
                    self.oauth2 = Some(UserSource::OAuth2(Arc::new(oauth2)));
                }
                self.oauth2.clone()
            }
            Backend::Cache => {
                anyhow::bail!("auth_cache.cached_backend: the cache cannot keep itself")
            }
        })
    }

    fn http(&self) -> anyhow::Result<Http> {
        let tls = self.config.auth_http_tls.settings();
        Http::new(&self.config.auth_http, &(self.tls)(&tls)?)
    }

    fn ldap(&self) -> anyhow::Result<Ldap> {
        let options = &self.config.auth_ldap;
        let tls = || (self.tls)(&self.config.auth_ldap_tls.settings());
        let tls = match (options.use_ssl, options.use_starttls) {
            (true, _) => Tls::AtOnce(tls()?),
            (false, true) => Tls::Asked(tls()?),
            (false, false) => Tls::None,
        };
        Ldap::new(options, tls, self.config.auth_ldap_tls.certfile.is_some())
    }

    fn oauth2(&self) -> anyhow::Result<OAuth2> {
        let options = &self.config.auth_oauth2;
        OAuth2::new(options, self.tls)
    }

    /// A source with a cache before it. Tokens and the names need none: nobody else is asked.
    fn cached(&mut self, backend: Backend) -> anyhow::Result<Option<UserSource>> {
        let auth = &self.config.auth;
        anyhow::ensure!(
            auth.cached != Default::default(),
            "auth_backends: the cache is asked, but auth_cache.cached_backend is not set"
        );
        let (ttl, refusals) = (auth.cache_ttl.into(), auth.cache_refusals);
        Ok(self.source(backend)?.map(|source| match source {
            UserSource::OAuth2(_) => source,
            source => UserSource::Cache(Arc::new(Cache::new(source, ttl, refusals, self.key))),
        }))
    }
}
