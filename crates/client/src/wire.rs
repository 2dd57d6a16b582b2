//! The socket of a connection, with or without TLS.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::RecvFlags;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, SignatureScheme,
};

use crate::files::{PEM_BYTES_MAX, read_at_most};
use crate::uri::{TlsUri, Uri};

/// Encrypted bytes asked of a socket at once.
const READ_BYTES: usize = 64 << 10;

/// Where Linux systems keep the authorities they trust.
const SYSTEM_AUTHORITIES: [&str; 3] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
];

/// A socket that reads and writes plain bytes.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) socket: TcpStream,
    tls: Option<Box<Tls>>,
}

#[derive(Debug)]
struct Tls {
    connection: ClientConnection,
    cipher: Vec<u8>,
    /// Bytes of `cipher` that were decrypted.
    taken: usize,
}

impl Wire {
    /// Speaks TLS on the socket if the URI says so. Takes no longer than `timeout` for each answer.
    pub(crate) fn new(socket: TcpStream, uri: &Uri, timeout: Duration) -> io::Result<Self> {
        let mut wire = Self { socket, tls: None };
        let Some(of_uri) = &uri.tls else { return Ok(wire) };
        let name = of_uri.server_name.as_deref().unwrap_or(&uri.host).to_owned();
        let name = ServerName::try_from(name).map_err(invalid)?;
        let mut connection =
            ClientConnection::new(Arc::new(config(of_uri)?), name).map_err(invalid)?;
        wire.socket.set_read_timeout(Some(timeout))?;
        while connection.is_handshaking() {
            connection.complete_io(&mut wire.socket)?;
        }
        wire.tls = Some(Box::new(Tls { connection, cipher: Vec::new(), taken: 0 }));
        Ok(wire)
    }

    /// Writes all. Blocks while the broker does not read.
    pub(crate) fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return self.socket.write_all(bytes) };
        while !bytes.is_empty() {
            let taken = tls.connection.writer().write(bytes)?;
            bytes = &bytes[taken..];
            while tls.connection.wants_write() {
                tls.connection.write_tls(&mut self.socket)?;
            }
        }
        Ok(())
    }

    /// Whether a read would find something without asking the socket.
    pub(crate) fn has_some(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.taken < tls.cipher.len())
    }

    /// Reads once; `at_once` fails rather than waits. 0 is the end.
    pub(crate) fn read(&mut self, room: &mut [u8], at_once: bool) -> io::Result<usize> {
        let flags = if at_once { RecvFlags::DONTWAIT } else { RecvFlags::empty() };
        let Some(tls) = &mut self.tls else {
            return match at_once {
                false => self.socket.read(room),
                true => Ok(rustix::net::recv(&self.socket, room, flags)?.0),
            };
        };
        loop {
            let (count, has_ended) = tls.decrypt(room)?;
            while tls.connection.wants_write() {
                tls.connection.write_tls(&mut self.socket)?;
            }
            if count > 0 || has_ended {
                return Ok(count);
            }
            tls.cipher.resize(READ_BYTES, 0);
            tls.taken = 0;
            let read = rustix::net::recv(&self.socket, &mut tls.cipher[..], flags);
            tls.cipher.truncate(read.as_ref().map_or(0, |read| read.0));
            if read?.0 == 0 {
                return Ok(0);
            }
        }
    }
}

impl Tls {
    /// Decrypts what was read, as far as there is room. Tells whether the broker sends nothing more.
    fn decrypt(&mut self, room: &mut [u8]) -> io::Result<(usize, bool)> {
        let mut filled = 0;
        loop {
            while filled < room.len() {
                match self.connection.reader().read(&mut room[filled..]) {
                    Ok(0) => return Ok((filled, true)),
                    Ok(count) => filled += count,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                }
            }
            if filled == room.len() || self.taken == self.cipher.len() {
                return Ok((filled, false));
            }
            let mut rest = &self.cipher[self.taken..];
            self.connection.read_tls(&mut rest)?;
            self.taken = self.cipher.len() - rest.len();
            self.connection.process_new_packets().map_err(invalid)?;
        }
    }
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

fn config(uri: &TlsUri) -> io::Result<ClientConfig> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(invalid)?;
    let builder = if uri.verifies {
        builder.with_root_certificates(authorities(uri.cacertfile.as_deref())?)
    } else {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(Anybody(provider)))
    };
    match (&uri.certfile, &uri.keyfile) {
        (Some(certfile), Some(keyfile)) => {
            let key = PrivateKeyDer::from_pem_slice(&pem(keyfile)?);
            let key = key.map_err(|why| in_file(keyfile, why))?;
            builder.with_client_auth_cert(certificates(certfile)?, key).map_err(invalid)
        }
        (None, None) => Ok(builder.with_no_client_auth()),
        _ => Err(invalid("certfile and keyfile of the URI go together")),
    }
}

fn authorities(file: Option<&str>) -> io::Result<RootCertStore> {
    let is_there = |path: &&&str| std::fs::exists(path).unwrap_or(false);
    let file = file.or_else(|| SYSTEM_AUTHORITIES.iter().find(is_there).copied());
    let file = file.ok_or_else(|| {
        invalid("no file of trusted authorities was found; name one with ?cacertfile=")
    })?;
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates(file)?);
    Ok(roots)
}

fn certificates(file: &str) -> io::Result<Vec<CertificateDer<'static>>> {
    let pem = pem(file)?;
    let all = CertificateDer::pem_slice_iter(&pem);
    all.collect::<Result<_, _>>().map_err(|why| in_file(file, why))
}

fn pem(file: &str) -> io::Result<Vec<u8>> {
    read_at_most(file.as_ref(), PEM_BYTES_MAX).map_err(|why| in_file(file, why))
}

fn in_file(file: &str, why: impl std::fmt::Display) -> io::Error {
    invalid(format!("{file}: {why}"))
}

/// Takes every certificate: for `verify=verify_none`, which the user has to ask for.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
