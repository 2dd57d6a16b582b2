//! From options to what rustls is given.
//!
//! What rustls cannot do is refused if its silent loss would make the broker less safe than it was told to
//! be; the rest is said in the log.

use std::sync::Arc;

use anyhow::{Context as _, bail};
use leveret_config::tls::{TlsSettings, Verify};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, ServerConfig,
    SignatureScheme, SupportedProtocolVersion, version,
};

use super::{certificate, keys, suites};
use crate::clock::{now, wall};

/// What the files and options of TLS make.
pub(super) struct Made {
    /// What rustls is given.
    pub(super) config: ServerConfig,
    /// Why no client would take one of its certificates now: a reason not to exchange a good one for it.
    pub(super) out_of_date: Option<String>,
}

/// Reads the files and makes of all options a configuration.
pub(super) fn server_config(settings: &TlsSettings) -> anyhow::Result<Made> {
    let prefix = settings.prefix;
    let (Some(certfile), Some(keyfile)) = (&settings.certfile, &settings.keyfile) else {
        bail!("{prefix}.certfile and {prefix}.keyfile are needed for TLS");
    };
    let (versions, provider) = spoken(settings)?;
    let provider = Arc::new(provider);
    let chain = keys::certificates(&format!("{prefix}.certfile"), certfile)?;
    let now_s = i64::try_from(wall(now()).ms() / 1000).unwrap_or(i64::MAX);
    let out_of_date = chain.iter().find_map(|der| certificate::out_of_date(der, now_s));
    let out_of_date = out_of_date.map(|why| format!("{prefix}.certfile = {certfile}: {why}"));
    let password = settings.password.as_ref().map(|password| password.reveal());
    let key = keys::private_key(&format!("{prefix}.keyfile"), keyfile, password)?;
    let verifier = verifier(settings, &provider)?;
    let builder = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&versions)
        .with_context(|| {
        format!("{prefix}.versions and {prefix}.ciphers do not go together")
    })?;
    let builder = match verifier {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|error| match error {
        Error::InconsistentKeys(_) => {
            anyhow::anyhow!("the key in {keyfile} is not that of the certificate in {certfile}")
        }
        error => anyhow::anyhow!("{certfile} and {keyfile} cannot be used: {error}"),
    })?;
    config.ignore_client_order = settings.honor_cipher_order;
    Ok(Made { config, out_of_date })
}

/// Versions and cipher suites that were asked for and are there.
fn spoken(
    settings: &TlsSettings,
) -> anyhow::Result<(Vec<&'static SupportedProtocolVersion>, CryptoProvider)> {
    let prefix = settings.prefix;
    let mut provider = aws_lc_rs::default_provider();
    let asked: Vec<&str> = settings.ciphers.iter().collect();
    if !asked.is_empty() {
        let mut chosen = Vec::new();
        for name in asked {
            match suites::by_name(name) {
                Some(suite) => chosen.push(suite),
                None => tracing::info!("{prefix}.ciphers: {name} is not spoken"),
            }
        }
        if chosen.is_empty() {
            let names: Vec<_> = suites::names().collect();
            bail!("{prefix}.ciphers: none of them is spoken; there are {}", names.join(", "));
        }
        provider.cipher_suites = chosen;
    }
    let mut asked: Vec<&str> = settings.versions.iter().collect();
    if asked.is_empty() {
        asked = vec!["tlsv1.3", "tlsv1.2"];
    }
    let mut versions = Vec::new();
    for name in asked {
        let version = match name {
            "tlsv1.3" => &version::TLS13,
            "tlsv1.2" => &version::TLS12,
            _ => {
                tracing::warn!("{prefix}.versions: {name} is not safe, and not spoken");
                continue;
            }
        };
        let has_suite =
            provider.cipher_suites.iter().any(|suite| suite.version().version == version.version);
        if has_suite {
            versions.push(version);
        } else {
            tracing::warn!("{prefix}.ciphers names no suite of {name}: it is not spoken");
        }
    }
    if versions.is_empty() {
        bail!("{prefix}.versions: none of them is spoken; there are tlsv1.3 and tlsv1.2");
    }
    Ok((versions, provider))
}

/// Who looks at clients' certificates, if anybody does.
fn verifier(
    settings: &TlsSettings,
    provider: &Arc<CryptoProvider>,
) -> anyhow::Result<Option<Arc<dyn ClientCertVerifier>>> {
    let prefix = settings.prefix;
    if settings.verify == Verify::None {
        if settings.fail_if_no_peer_cert {
            bail!(
                "{prefix}.fail_if_no_peer_cert = true needs {prefix}.verify = verify_peer: \
                 without it clients are not asked for a certificate"
            );
        }
        return Ok(None);
    }
    let Some(cacertfile) = &settings.cacertfile else {
        bail!("{prefix}.verify = verify_peer needs {prefix}.cacertfile");
    };
    let option = format!("{prefix}.cacertfile");
    let mut roots = RootCertStore::empty();
    for authority in keys::certificates(&option, cacertfile)? {
        roots.add(authority).with_context(|| format!("{option} = {cacertfile}"))?;
    }
    let mut builder =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
    if !settings.fail_if_no_peer_cert {
        builder = builder.allow_unauthenticated();
    }
    let inner = builder.build().with_context(|| format!("{option} = {cacertfile}"))?;
    Ok(Some(Arc::new(WithDepth { inner, depth: settings.depth as usize })))
}

/// The verifier of rustls, and a limit for the length of the chain, which it does not have.
#[derive(Debug)]
struct WithDepth {
    inner: Arc<dyn ClientCertVerifier>,
    /// Certificates that may stand between the client's and the authority's.
    depth: usize,
}

impl ClientCertVerifier for WithDepth {
    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        // Authorities are trusted as such, so a path has no more between its ends than was sent. A
        // client may send the authority itself along.
        let between = intermediates.iter().filter(|it| !certificate::is_self_issued(it)).count();
        if between > self.depth {
            return Err(Error::InvalidCertificate(CertificateError::UnknownIssuer));
        }
        self.inner.verify_client_cert(end_entity, intermediates, now)
    }

    fn offer_client_auth(&self) -> bool {
        self.inner.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.inner.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, cert, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, cert, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
