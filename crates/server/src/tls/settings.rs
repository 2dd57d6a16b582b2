//! From options to what rustls is given.
//!
//! What rustls cannot do is refused if its silent loss would make the broker less safe than it was told to
//! be; the rest is said in the log.

use std::sync::Arc;

use anyhow::{Context as _, bail};
use leveret_config::tls::{TlsSettings, Verify};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, RootCertStore,
    ServerConfig, SignatureScheme, SupportedProtocolVersion, version,
};

use super::{certificate, keys, suites};
use crate::clock::{now, wall};

/// The node's own certificate.
pub(super) struct Own {
    /// It, and those that lead to its authority.
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) key: PrivateKeyDer<'static>,
    /// Why nobody would take one of them now.
    pub(super) out_of_date: Option<String>,
}

/// Reads the node's own certificate and its key.
pub(super) fn read(settings: &TlsSettings) -> anyhow::Result<Own> {
    let prefix = settings.prefix;
    let (certfile, keyfile) = files(settings)?;
    let chain = keys::certificates(&format!("{prefix}.certfile"), certfile)?;
    let now_s = i64::try_from(wall(now()).ms() / 1000).unwrap_or(i64::MAX);
    let out_of_date = chain.iter().find_map(|der| certificate::out_of_date(der, now_s));
    let out_of_date = out_of_date.map(|why| format!("{prefix}.certfile = {certfile}: {why}"));
    let password = settings.password.as_ref().map(|password| password.reveal());
    let key = keys::private_key(&format!("{prefix}.keyfile"), keyfile, password)?;
    Ok(Own { chain, key, out_of_date })
}

fn files(settings: &TlsSettings) -> anyhow::Result<(&str, &str)> {
    let files = settings.certfile.as_deref().zip(settings.keyfile.as_deref());
    let prefix = settings.prefix;
    files.with_context(|| format!("{prefix}.certfile and {prefix}.keyfile are needed for TLS"))
}

/// Makes of all options a configuration.
pub(super) fn server_config(settings: &TlsSettings, own: Own) -> anyhow::Result<ServerConfig> {
    let prefix = settings.prefix;
    let (versions, provider) = spoken(settings)?;
    let provider = Arc::new(provider);
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
    let made = builder.with_single_cert(own.chain, own.key);
    let mut config = made.map_err(|error| unusable(settings, &error))?;
    config.ignore_client_order = settings.honor_cipher_order;
    Ok(config)
}

/// Why certificate and key are of no use.
pub(super) fn unusable(settings: &TlsSettings, error: &Error) -> anyhow::Error {
    let (certfile, keyfile) = files(settings).unwrap_or_default();
    match error {
        Error::InconsistentKeys(_) => {
            anyhow::anyhow!("the key in {keyfile} is not that of the certificate in {certfile}")
        }
        error => anyhow::anyhow!("{certfile} and {keyfile} cannot be used: {error}"),
    }
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
pub(super) fn verifier(
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
    let roots = Arc::new(roots(settings)?);
    let mut builder = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(provider));
    if !settings.fail_if_no_peer_cert {
        builder = builder.allow_unauthenticated();
    }
    let inner = builder.build().with_context(|| format!("{option} = {cacertfile}"))?;
    Ok(Some(Arc::new(WithDepth { inner, depth: settings.depth })))
}

/// The authorities of `cacertfile`; none if there is no such file.
pub(super) fn roots(settings: &TlsSettings) -> anyhow::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let option = format!("{}.cacertfile", settings.prefix);
    if let Some(path) = &settings.cacertfile {
        for authority in keys::certificates(&option, path)? {
            roots.add(authority).with_context(|| format!("{option} = {path}"))?;
        }
    }
    Ok(roots)
}

/// Why a chain is refused before anybody looks for a path in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ChainFault {
    /// There are more certificates between its ends than `depth`.
    #[error("its chain is longer than depth allows")]
    TooLong,
    /// Two of those between its ends have one name.
    #[error("two certificates of its chain have the same subject")]
    SameSubject,
}

impl From<ChainFault> for Error {
    fn from(fault: ChainFault) -> Self {
        Self::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(fault))))
    }
}

/// Refuses a chain with more than `depth` certificates between its ends, and one whose path would be searched for long.
///
/// Authorities are trusted as such, so a path has no more between its ends than was sent. Whoever sends it may send the authority
/// itself along: one more, if that names itself as its issuer.
///
/// Whoever looks for a path tries, at each step, all certificates whose subject is the issuer that is looked for, and takes each of
/// them apart: with many of one name it would try for seconds, before a signature is looked at. So a name is there once.
pub(super) fn check_chain(depth: u32, between: &[CertificateDer<'_>]) -> Result<(), ChainFault> {
    let depth = depth as usize;
    let is_long = between.len() > depth + 1
        || between.iter().filter(|it| !certificate::is_self_issued(it)).count() > depth;
    if is_long {
        return Err(ChainFault::TooLong);
    }
    // Those that cannot be read have one name together.
    let mut subjects: Vec<_> = between.iter().map(|it| certificate::subject(it)).collect();
    subjects.sort_unstable();
    subjects.dedup();
    if subjects.len() < between.len() { Err(ChainFault::SameSubject) } else { Ok(()) }
}

/// The verifier of rustls, and a limit for the length of the chain, which it does not have.
#[derive(Debug)]
struct WithDepth {
    inner: Arc<dyn ClientCertVerifier>,
    /// Certificates that may stand between the client's and the authority's.
    depth: u32,
}

impl ClientCertVerifier for WithDepth {
    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        check_chain(self.depth, intermediates)?;
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

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, CertifiedIssuer, DnType, KeyPair};

    use super::*;

    /// Certificates of these names, each signed by the other name.
    fn chain(names: &[(&str, &str)]) -> Vec<CertificateDer<'static>> {
        let params = |name: &str| {
            let mut params = CertificateParams::new(Vec::new()).unwrap();
            params.distinguished_name.push(DnType::CommonName, name);
            params
        };
        let of = |&(name, issuer): &(&str, &str)| {
            let key = || KeyPair::generate().unwrap();
            let issuer = CertifiedIssuer::self_signed(params(issuer), key()).unwrap();
            params(name).signed_by(&key(), &issuer).unwrap().der().clone()
        };
        names.iter().map(of).collect()
    }

    #[test]
    fn chains_are_short_and_have_each_name_once() {
        let (a, b, root) = (("a", "b"), ("b", "root"), ("root", "root"));
        check(2, &[], Ok(()));
        check(2, &[a, b], Ok(()));
        // The authority itself comes along.
        check(2, &[a, b, root], Ok(()));
        check(0, &[root], Ok(()));
        check(1, &[a, b], Err(ChainFault::TooLong));
        check(0, &[a], Err(ChainFault::TooLong));
        // Authorities of any name count.
        check(0, &[root, ("other", "other")], Err(ChainFault::TooLong));
        check(10, &[root; 250], Err(ChainFault::TooLong));
        check(10, &[root, root], Err(ChainFault::SameSubject));
        check(10, &[a, b, ("b", "a")], Err(ChainFault::SameSubject));
        let nothing = [CertificateDer::from(&b"x"[..]), CertificateDer::from(&b"y"[..])];
        assert_eq!(check_chain(10, &nothing[..1]), Ok(()));
        assert_eq!(check_chain(10, &nothing), Err(ChainFault::SameSubject));
    }

    #[track_caller]
    fn check(depth: u32, names: &[(&str, &str)], want: Result<(), ChainFault>) {
        assert_eq!(check_chain(depth, &chain(names)), want, "{names:?} at depth {depth}");
    }
}
