//! TLS to servers that the broker itself asks.

use std::sync::Arc;

use anyhow::Context as _;
use leveret_config::auth::ClientTlsSettings;
use leveret_config::tls::Verify;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use super::keys;

/// What a server is spoken to with.
///
/// # Errors
///
/// A file that cannot be read, by its option.
pub fn config(settings: &ClientTlsSettings) -> anyhow::Result<Arc<ClientConfig>> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?;
    let verifier: Arc<dyn ServerCertVerifier> = match settings.verify {
        Verify::None => Arc::new(Anybody(provider)),
        Verify::Peer => {
            let roots = Arc::new(roots(settings)?);
            WebPkiServerVerifier::builder_with_provider(roots, provider).build()?
        }
    };
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    let option = |name: &str| format!("{}.{name}", settings.prefix);
    let config = match (&settings.certfile, &settings.keyfile) {
        (Some(certfile), Some(keyfile)) => {
            let chain = keys::certificates(&option("certfile"), certfile)?;
            let password = settings.password.as_ref().map(|password| password.reveal());
            let key = keys::private_key(&option("keyfile"), keyfile, password)?;
            builder.with_client_auth_cert(chain, key)?
        }
        (None, None) => builder.with_no_client_auth(),
        _ => anyhow::bail!("{} and keyfile belong together", option("certfile")),
    };
    Ok(Arc::new(config))
}

/// The authorities that are named, or the machine's.
fn roots(settings: &ClientTlsSettings) -> anyhow::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let Some(cacertfile) = &settings.cacertfile else {
        let found = rustls_native_certs::load_native_certs();
        for error in &found.errors {
            tracing::warn!(%error, "authorities of this machine cannot be read");
        }
        roots.add_parsable_certificates(found.certs);
        return Ok(roots);
    };
    let option = format!("{}.cacertfile", settings.prefix);
    for certificate in keys::certificates(&option, cacertfile)? {
        roots.add(certificate).with_context(|| format!("{option} = {cacertfile}"))?;
    }
    Ok(roots)
}

/// Believes every certificate, as `verify_none` asks; not that a server has a key that it has not.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
