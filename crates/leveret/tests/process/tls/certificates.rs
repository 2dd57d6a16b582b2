//! Certificates for one test, in a directory of its own.

use std::path::PathBuf;

use leveret_client::TlsUri;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, SanType,
};

type Authority = CertifiedIssuer<'static, KeyPair>;

#[derive(Debug)]
pub(crate) struct Certificates {
    dir: tempfile::TempDir,
    ca: Authority,
    other: Authority,
}

impl Certificates {
    /// Two authorities; the first has signed for the server and for the client `alice`.
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let made = Self { dir, ca: authority("test"), other: authority("other") };
        made.write("ca.pem", &made.ca.pem());
        made.write("other.pem", &made.other.pem());
        let (certificate, key) = server(&made.ca);
        made.write_server(&certificate, &key);
        made.client("client", &[(DnType::CommonName, "alice")], &[]);
        made
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        // As tools do it that renew certificates: a reader sees the old file or the new one.
        let new = self.path("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, self.path(name)).unwrap();
    }

    fn named(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// A listener with the server's certificate.
    pub(super) fn settings(&self) -> Vec<String> {
        vec![
            "listeners.ssl.default=127.0.0.1:0".to_owned(),
            format!("ssl_options.certfile={}", self.named("server.pem")),
            format!("ssl_options.keyfile={}", self.named("server.key")),
        ]
    }

    /// Files of the server's certificate and key.
    pub(crate) fn server(&self) -> (String, String) {
        (self.named("server.pem"), self.named("server.key"))
    }

    pub(crate) fn ca(&self) -> String {
        self.named("ca.pem")
    }

    pub(super) fn other_ca(&self) -> String {
        self.named("other.pem")
    }

    /// A client that trusts the first authority.
    pub(super) fn trust(&self) -> TlsUri {
        TlsUri { cacertfile: Some(self.ca()), ..TlsUri::default() }
    }

    /// Makes a certificate for a client, and how it is used.
    pub(super) fn client(&self, file: &str, name: &[(DnType, &str)], sans: &[SanType]) -> TlsUri {
        self.client_of(&self.ca, file, name, sans)
    }

    /// One that the other authority signed.
    pub(super) fn stranger(&self) -> TlsUri {
        self.client_of(&self.other, "stranger", &[(DnType::CommonName, "alice")], &[])
    }

    fn client_of(
        &self,
        by: &Authority,
        file: &str,
        name: &[(DnType, &str)],
        sans: &[SanType],
    ) -> TlsUri {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for (kind, value) in name {
            params.distinguished_name.push(kind.clone(), *value);
        }
        params.subject_alt_names = sans.to_vec();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, by).unwrap();
        self.write(&format!("{file}.pem"), &certificate.pem());
        self.write(&format!("{file}.key"), &key.serialize_pem());
        TlsUri {
            certfile: Some(self.named(&format!("{file}.pem"))),
            keyfile: Some(self.named(&format!("{file}.key"))),
            ..self.trust()
        }
    }

    pub(super) fn client_key(&self) -> String {
        std::fs::read_to_string(self.path("client.key")).unwrap()
    }

    pub(super) fn read_server(&self) -> (String, String) {
        let read = |name| std::fs::read_to_string(self.path(name)).unwrap();
        (read("server.pem"), read("server.key"))
    }

    pub(super) fn write_server(&self, certificate: &str, key: &str) {
        self.write("server.key", key);
        self.write("server.pem", certificate);
    }

    /// A certificate for the server of the other authority.
    pub(super) fn renew_server(&self) {
        let (certificate, key) = server(&self.other);
        self.write_server(&certificate, &key);
    }

    /// A certificate for the server that is valid in these years only, and its key.
    pub(super) fn server_of(&self, first: i32, last: i32) -> (String, String) {
        let mut params = server_params();
        params.not_before = rcgen::date_time_ymd(first, 1, 1);
        params.not_after = rcgen::date_time_ymd(last, 1, 1);
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.ca).unwrap().pem(), key.serialize_pem())
    }

    /// The setting that names the server's key in an encrypted file.
    pub(super) fn encrypted_key(&self, password: &str) -> String {
        let mut command = std::process::Command::new("openssl");
        command.args(["pkcs8", "-topk8", "-v2", "aes-256-cbc", "-passout"]);
        command.arg(format!("pass:{password}")).arg("-in").arg(self.path("server.key"));
        command.arg("-out").arg(self.path("encrypted.key"));
        assert!(command.status().unwrap().success());
        format!("ssl_options.keyfile={}", self.named("encrypted.key"))
    }
}

fn authority(name: &str) -> Authority {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, format!("{name} authority"));
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A certificate and its key for the server on this machine.
fn server(by: &Authority) -> (String, String) {
    let (params, key) = (server_params(), KeyPair::generate().unwrap());
    (params.signed_by(&key, by).unwrap().pem(), key.serialize_pem())
}

fn server_params() -> CertificateParams {
    let names = ["127.0.0.1".to_owned(), "localhost".to_owned()];
    CertificateParams::new(names).unwrap()
}
