//! TLS to other nodes: who calls shows a certificate, too, and looks at that of whom it calls.
//!
//! The names in a certificate are not looked at. Who is at the other end is proved by the secret, for the very channel, by both sides
//! (`crates/link/src/hello.rs`): so a certificate that an authority gave to somebody else opens nothing.

use std::sync::Arc;

use anyhow::Context as _;
use leveret_config::tls::{TlsSettings, Verify};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, ParsedCertificate};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, ServerConfig,
    SignatureScheme, version,
};

use super::certificate;
use super::settings::{self, Own};

/// With what another node is called. Refuses a certificate that no node would take that has the same authorities.
pub(super) fn client_config(settings: &TlsSettings, own: &Own) -> anyhow::Result<ClientConfig> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let roots = (settings.verify == Verify::Peer).then(|| settings::roots(settings)).transpose()?;
    let verifier =
        SignedByAuthority { provider: Arc::clone(&provider), roots, depth: settings.depth };
    if let Some(callers) = settings::verifier(settings, &provider)? {
        fits(settings, own, &verifier, &*callers)?;
    }
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let made = builder.with_client_auth_cert(own.chain.clone(), own.key.clone_key());
    let mut config = made.map_err(|error| settings::unusable(settings, &error))?;
    config.enable_sni = false;
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// A certificate is looked at each time: a session that was resumed would be one of a certificate that may be over.
pub(super) fn never_resume(config: &mut ServerConfig) {
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
}

/// Whether other nodes would take this one's certificate, from a caller and from whom they call; but for its dates, which are told.
fn fits(
    settings: &TlsSettings,
    own: &Own,
    called: &SignedByAuthority,
    callers: &dyn ClientCertVerifier,
) -> anyhow::Result<()> {
    let Some((first, rest)) = own.chain.split_first() else { return Ok(()) };
    let now = UnixTime::now();
    let found = called.verify(first, rest, now);
    let found = found.and_then(|()| callers.verify_client_cert(first, rest, now).map(drop));
    match found {
        Err(Error::InvalidCertificate(why)) if !is_of_dates(&why) => {
            let (certfile, cacertfile) = (&settings.certfile, &settings.cacertfile);
            let shown = |path: &Option<String>| path.clone().unwrap_or_default();
            Err(anyhow::anyhow!(certificate::in_words(&why))).with_context(|| {
                let prefix = settings.prefix;
                format!(
                    "{prefix}.certfile = {}: no node would take it that has {prefix}.cacertfile = {}",
                    shown(certfile),
                    shown(cacertfile)
                )
            })
        }
        _ => Ok(()),
    }
}

fn is_of_dates(why: &CertificateError) -> bool {
    use CertificateError as E;
    matches!(
        why,
        E::Expired | E::ExpiredContext { .. } | E::NotValidYet | E::NotValidYetContext { .. }
    )
}

/// Looks who has signed the certificate of a node that is called.
#[derive(Debug)]
struct SignedByAuthority {
    provider: Arc<CryptoProvider>,
    /// Who may have; anybody if there are none.
    roots: Option<RootCertStore>,
    depth: u32,
}

impl SignedByAuthority {
    fn verify(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        let Some(roots) = &self.roots else { return Ok(()) };
        settings::check_chain(self.depth, intermediates)?;
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let known = self.provider.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&certificate, roots, intermediates, now, known)
    }
}

impl ServerCertVerifier for SignedByAuthority {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.verify(end_entity, intermediates, now).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
