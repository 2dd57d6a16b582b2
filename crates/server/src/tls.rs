//! TLS: what a listener needs to speak it, and how its certificates are exchanged while it runs.
//!
//! - [`settings`]: from options to a configuration of rustls. [`suites`]: names of cipher suites.
//! - [`handshake`]: the first bytes of a connection, waited for by its own task, before there is a session.
//! - [`shares`]: the time and the memory that unfinished handshakes may take.
//! - [`stream`]: bytes in and out of an established connection, in its turns.
//! - [`client`]: to servers that the broker asks. [`nodes`]: to other nodes.
//! - [`certificate`]: what a client's certificate says.
//!
//! A [`Tls`] belongs to one group of options (`ssl_options`, and those of the HTTP servers). A connection
//! keeps the configuration it began with; the next one takes what is current. Files are looked at when
//! a client connects, but not more often than every [`LOOK_MS`], so that a certificate that was
//! renewed is found without anybody saying so, and an idle broker does nothing.

pub mod certificate;
pub mod client;
mod handshake;
mod keys;
mod nodes;
mod settings;
mod shares;
mod stream;
pub mod suites;

use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context as _;
use leveret_config::tls::TlsSettings;
use leveret_session::CertificateFacts;
use rustls::{ClientConfig, ServerConfig};

pub(crate) use handshake::{AtOnce, handshake_with_server};
pub use handshake::{HandshakeError, handshake};
pub use shares::{HandshakeShare, HandshakeShares};
pub use stream::{Read, TlsStream};

use self::certificate::LoginFrom;
use crate::clock::now;
use crate::locks::{Rank, Ranked, RankedRw};

/// How long files are taken for unchanged after they were looked at.
const LOOK_MS: u64 = 2000;

/// The TLS of one group of options.
#[derive(Debug)]
pub struct Tls {
    settings: TlsSettings,
    of: Use,
    current: RankedRw<Configs>,
    /// What the files looked like when they were last read, whether or not they were good.
    seen: Ranked<Vec<Option<Stamp>>>,
    /// When they were looked at last; [`LOOKING`] while they are.
    looked_ms: AtomicU64,
}

const LOOKING: u64 = u64::MAX;

/// What rustls is given.
#[derive(Clone, Debug)]
struct Configs {
    /// For those who connect.
    server: Arc<ServerConfig>,
    /// For those who are called: other nodes.
    client: Option<Arc<ClientConfig>>,
}

/// What the connections of a [`Tls`] are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// Clients'.
    Listeners,
    /// Other nodes', which are called, too.
    Nodes,
}

/// What tells one version of a file from the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    bytes: u64,
    modified_ns: i128,
}

impl Stamp {
    fn of(path: &str) -> Option<Self> {
        let data = std::fs::metadata(path).ok()?;
        let modified_ns = i128::from(data.mtime()) * 1_000_000_000 + i128::from(data.mtime_nsec());
        Some(Self { inode: data.ino(), bytes: data.len(), modified_ns })
    }
}

impl Tls {
    /// Reads the files. The error says which option or file is bad, and how. A certificate that is out of date is told and
    /// taken, as by RabbitMQ: there is no better one, and messages go on by other ports.
    pub fn load(settings: TlsSettings) -> anyhow::Result<Arc<Self>> {
        Self::load_for(settings, Use::Listeners)
    }

    /// The same for links to other nodes.
    pub fn load_for_nodes(settings: TlsSettings) -> anyhow::Result<Arc<Self>> {
        Self::load_for(settings, Use::Nodes)
    }

    fn load_for(settings: TlsSettings, of: Use) -> anyhow::Result<Arc<Self>> {
        let seen = stamps(&settings);
        let Made { configs, out_of_date } = make(&settings, of)
            .with_context(|| format!("TLS cannot be set up by the options {}", settings.prefix))?;
        if let Some(why) = out_of_date {
            let whose = match of {
                Use::Listeners => format!("clients of {}", listeners(&settings)),
                Use::Nodes => "other nodes".to_owned(),
            };
            tracing::error!("{why}; {whose} will not take it");
        }
        Ok(Arc::new(Self {
            settings,
            of,
            current: RankedRw::new(Rank::Certificate, configs),
            seen: Ranked::new(Rank::CertificateStamps, seen),
            looked_ms: AtomicU64::new(now().ms()),
        }))
    }

    /// What the next connection is to use.
    pub fn config(&self) -> Arc<ServerConfig> {
        self.configs().server
    }

    /// The same without waiting for files, in a runtime: they are looked at meanwhile, for the one after it.
    pub(crate) fn config_at_hand(self: &Arc<Self>) -> Arc<ServerConfig> {
        self.configs_at_hand().server
    }

    /// What the next call is to use, without waiting for files; none if it is of listeners.
    pub(crate) fn client_config_at_hand(self: &Arc<Self>) -> Option<Arc<ClientConfig>> {
        self.configs_at_hand().client
    }

    fn configs(&self) -> Configs {
        if self.is_to_look() {
            self.look();
        }
        self.current.read().clone()
    }

    fn configs_at_hand(self: &Arc<Self>) -> Configs {
        if self.is_to_look() {
            let this = Arc::clone(self);
            tokio::task::spawn_blocking(move || this.look());
        }
        self.current.read().clone()
    }

    /// Whether files are to be looked at by whoever asks: nobody else looks, however long that takes.
    fn is_to_look(&self) -> bool {
        let looked_ms = self.looked_ms.load(Ordering::Relaxed);
        let is_due = now().ms() >= looked_ms.saturating_add(LOOK_MS);
        let taken = || {
            self.looked_ms.compare_exchange(
                looked_ms,
                LOOKING,
                Ordering::Relaxed,
                Ordering::Relaxed,
            )
        };
        is_due && taken().is_ok()
    }

    /// Reads the files again if one of them is not what it was.
    fn look(&self) {
        let is_new = stamps(&self.settings) != *self.seen.lock();
        if is_new {
            // The outcome is logged, and there is nobody to tell.
            let _ = self.reload();
        }
        self.looked_ms.store(now().ms(), Ordering::Relaxed);
    }

    /// Reads the files again. If they are bad, or a certificate is out of date, what was there stays.
    pub fn reload(&self) -> anyhow::Result<()> {
        // Before they are read: a file that changes meanwhile is looked at again.
        *self.seen.lock() = stamps(&self.settings);
        let listeners = listeners(&self.settings);
        let made = make(&self.settings, self.of).and_then(|made| match made.out_of_date {
            None => Ok(made.configs),
            Some(why) => Err(anyhow::anyhow!(why)),
        });
        match made {
            Ok(configs) => {
                *self.current.write() = configs;
                tracing::info!("{listeners}: certificate and key were read again");
                Ok(())
            }
            Err(error) => {
                tracing::error!(
                    "{listeners}: new certificate files are refused, the old ones stay: {error:#}"
                );
                Err(error.context(format!("{listeners}: the old certificate stays")))
            }
        }
    }

    /// Until when each certificate of its files is valid, in seconds since the Unix epoch: of `certfile`, of
    /// `cacertfile`. One whose dates cannot be read counts as over.
    pub fn ends(&self) -> anyhow::Result<[Vec<i64>; 2]> {
        let prefix = self.settings.prefix;
        let ends = |key: &str, path: &Option<String>| match path {
            None => Ok(Vec::new()),
            Some(path) => {
                let chain = keys::certificates(&format!("{prefix}.{key}"), path)?;
                let end = |der| certificate::validity_s(der).map_or(0, |(_, until)| until);
                anyhow::Ok(chain.iter().map(|der| end(der)).collect())
            }
        };
        Ok([
            ends("certfile", &self.settings.certfile)?,
            ends("cacertfile", &self.settings.cacertfile)?,
        ])
    }

    /// What the certificates of `certfile` say, the server's own first.
    pub fn chain(&self, login: LoginFrom) -> anyhow::Result<Vec<CertificateFacts>> {
        let Some(path) = &self.settings.certfile else { return Ok(Vec::new()) };
        let chain = keys::certificates(&format!("{}.certfile", self.settings.prefix), path)?;
        Ok(chain.iter().filter_map(|der| certificate::facts(der, login)).collect())
    }

    /// The options it was made by.
    pub fn settings(&self) -> &TlsSettings {
        &self.settings
    }
}

/// What files and options make.
struct Made {
    configs: Configs,
    /// Why nobody would take one of its certificates now: a reason not to exchange a good one for it.
    out_of_date: Option<String>,
}

fn make(settings: &TlsSettings, of: Use) -> anyhow::Result<Made> {
    let own = settings::read(settings)?;
    let client = match of {
        Use::Listeners => None,
        Use::Nodes => Some(Arc::new(nodes::client_config(settings, &own)?)),
    };
    let out_of_date = own.out_of_date.clone();
    let mut server = settings::server_config(settings, own)?;
    if of == Use::Nodes {
        nodes::never_resume(&mut server);
    }
    Ok(Made { configs: Configs { server: Arc::new(server), client }, out_of_date })
}

/// The key of the listeners that speak it.
fn listeners(settings: &TlsSettings) -> &'static str {
    match settings.prefix {
        "ssl_options" => "listeners.ssl",
        "cluster.ssl_options" => "links to other nodes",
        // `management.ssl`, `prometheus.ssl`: the port is one of the options.
        prefix => prefix,
    }
}

fn stamps(settings: &TlsSettings) -> Vec<Option<Stamp>> {
    let files = [&settings.certfile, &settings.keyfile, &settings.cacertfile];
    files.into_iter().flatten().map(|path| Stamp::of(path)).collect()
}

/// Every [`Tls`] of the process, to be read again together.
#[derive(Debug)]
pub struct Certificates(Ranked<Vec<Arc<Tls>>>);

impl Default for Certificates {
    fn default() -> Self {
        Self(Ranked::new(Rank::Certificates, Vec::new()))
    }
}

impl Certificates {
    /// Adds one.
    pub fn add(&self, tls: Arc<Tls>) {
        self.0.lock().push(tls);
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<Tls>> {
        self.0.lock().clone()
    }

    /// Reads all files again: how many groups of options have TLS, or what is wrong, in words.
    pub fn reload(&self) -> Result<usize, String> {
        let all = self.all();
        let faults: Vec<String> = all
            .iter()
            .filter_map(|tls| tls.reload().err())
            .map(|error| format!("{error:#}"))
            .collect();
        if faults.is_empty() { Ok(all.len()) } else { Err(faults.join("\n")) }
    }
}
