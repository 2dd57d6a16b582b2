//! TLS options: the same set under several prefixes, and the types only they have.

use crate::option::options;
use crate::setting::{KeyMatch, NamedValues, Setting};
use crate::value::{Secret, words};

words! {
    /// Whether clients are asked for a certificate.
    Verify {
        /// They are not.
        None = "verify_none",
        /// They are, and one that is given has to be signed by a trusted authority.
        Peer = "verify_peer",
    }
}

words! {
    /// Which part of a client's certificate is its user name.
    CertificateLogin {
        /// The whole subject, as RFC 4514 writes it.
        DistinguishedName = "distinguished_name",
        /// The common name of the subject.
        CommonName = "common_name",
        /// One of its alternative names.
        AlternativeName = "subject_alternative_name",
        /// Another spelling of it.
        AltName = "subject_alt_name",
    }
}

words! {
    /// The kind of an alternative name of a certificate.
    AlternativeNameKind {
        /// A host name.
        Dns = "dns",
        /// An address.
        Ip = "ip",
        /// An e-mail address.
        Email = "email",
        /// A URI.
        Uri = "uri",
        /// Anything else.
        OtherName = "other_name",
    }
}

/// Words in the order of the last words of their keys: `ssl_options.ciphers.1 = ...`.
#[derive(Clone, Debug, PartialEq)]
pub struct Ordered<const OF_VERSIONS: bool>(NamedValues<String>);

/// Versions of TLS.
pub type TlsVersions = Ordered<true>;
/// Names of cipher suites.
pub type CipherNames = Ordered<false>;

impl TlsVersions {
    /// The newest alone.
    pub fn newest() -> Self {
        Self(NamedValues::of([("1", VERSIONS[0].to_owned())]))
    }
}

/// RabbitMQ's names of the versions; only the first two are spoken.
const VERSIONS: [&str; 5] = ["tlsv1.3", "tlsv1.2", "tlsv1.1", "tlsv1", "sslv3"];

impl<const OF_VERSIONS: bool> Default for Ordered<OF_VERSIONS> {
    fn default() -> Self {
        Self(NamedValues::of([]))
    }
}

impl<const OF_VERSIONS: bool> Ordered<OF_VERSIONS> {
    /// The words, first the one whose key comes first.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        let mut sorted: Vec<_> = self.0.iter().collect();
        // Numbers as numbers: 10 comes after 9.
        sorted.sort_by_key(|(name, _)| (name.parse::<u32>().unwrap_or(u32::MAX), *name));
        sorted.into_iter().map(|(_, word)| word.as_str())
    }
}

impl<const OF_VERSIONS: bool> Setting for Ordered<OF_VERSIONS> {
    fn set(&mut self, key: &KeyMatch<'_>, text: &str) -> Result<(), String> {
        if OF_VERSIONS && !VERSIONS.contains(&text) {
            return Err("expected tlsv1.3 or tlsv1.2".to_owned());
        }
        self.0.put(key.name, text.to_owned());
        Ok(())
    }

    fn form() -> &'static str {
        if OF_VERSIONS { "tlsv1.3|tlsv1.2" } else { "NAME" }
    }

    fn display(&self) -> String {
        let all: Vec<_> = self.iter().collect();
        match (all.is_empty(), OF_VERSIONS) {
            (true, true) => "tlsv1.3, tlsv1.2".to_owned(),
            (true, false) => "all that are safe".to_owned(),
            _ => all.join(", "),
        }
    }
}

/// What the groups of TLS options have in common.
#[derive(Clone, Debug, PartialEq)]
pub struct TlsSettings {
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
    /// `fail_if_no_peer_cert`.
    pub fail_if_no_peer_cert: bool,
    /// `versions.$version`.
    pub versions: TlsVersions,
    /// `ciphers.$cipher`.
    pub ciphers: CipherNames,
    /// `depth`.
    pub depth: u32,
    /// `honor_cipher_order`.
    pub honor_cipher_order: bool,
}

macro_rules! tls_options {
    ($(#[doc = $about:literal])* $group:ident, $title:literal, $prefix:literal) => {
        options! {
            $(#[doc = $about])*
            $group, $title;

            /// File of the authorities that may have signed clients' certificates, in PEM.
            cacertfile: Option<String> = None, keys = [concat!($prefix, ".cacertfile")];

            /// File of the server's certificate and, behind it, those that lead to its authority, in PEM.
            ///
            /// The running broker reads the file again on SIGHUP, by `leveret ctl reload_certificates`, and when the
            /// file has changed. It refuses files that do not fit, with an error in the log; the old ones stay in use.
            certfile: Option<String> = None, keys = [concat!($prefix, ".certfile")];

            /// File of the certificate's private key, in PEM (PKCS #8, PKCS #1 or SEC 1).
            keyfile: Option<String> = None, keys = [concat!($prefix, ".keyfile")];

            /// Password of the key file, if that is encrypted (PKCS #8).
            password: Option<Secret> = None, keys = [concat!($prefix, ".password")];

            /// Whether clients are asked for a certificate. A certificate that a client shows must be valid.
            verify: Verify = Verify::None, keys = [concat!($prefix, ".verify")];

            /// With `verify_peer`: refuse clients without a certificate.
            fail_if_no_peer_cert: bool = false, keys = [concat!($prefix, ".fail_if_no_peer_cert")];

            /// Versions of TLS. Versions before 1.2 are not supported.
            versions: TlsVersions = TlsVersions::default(), keys = [concat!($prefix, ".versions.$version")];

            /// Cipher suites by their OpenSSL or IANA names, most preferred first. Unsafe suites are not supported.
            ciphers: CipherNames = CipherNames::default(), keys = [concat!($prefix, ".ciphers.$cipher")];

            /// Largest number of certificates between a client's certificate and its authority.
            depth: u32 = 10, keys = [concat!($prefix, ".depth")], range = 0..=100;

            /// Choose the cipher suite by the broker's order, not by the client's.
            honor_cipher_order: bool = false, keys = [concat!($prefix, ".honor_cipher_order")];
        }

        impl $group {
            /// The same, whatever the group.
            pub fn settings(&self) -> TlsSettings {
                TlsSettings {
                    prefix: $prefix,
                    cacertfile: self.cacertfile.clone(),
                    certfile: self.certfile.clone(),
                    keyfile: self.keyfile.clone(),
                    password: self.password.clone(),
                    verify: self.verify,
                    fail_if_no_peer_cert: self.fail_if_no_peer_cert,
                    versions: self.versions.clone(),
                    ciphers: self.ciphers.clone(),
                    depth: self.depth,
                    honor_cipher_order: self.honor_cipher_order,
                }
            }
        }
    };
}

tls_options! {
    /// TLS of the listeners `listeners.ssl.$name`.
    TlsOptions, "TLS", "ssl_options"
}

tls_options! {
    /// TLS of the HTTP API.
    ManagementTlsOptions, "TLS of the management API", "management.ssl"
}

tls_options! {
    /// TLS of the metrics.
    PrometheusTlsOptions, "TLS of the metrics", "prometheus.ssl"
}

options! {
    /// Who a client is by its certificate.
    CertificateOptions, "Login by certificate";

    /// The part of a client's certificate that is the user's name, for the mechanism EXTERNAL.
    ///
    /// `ssl_options.verify = verify_peer` must be set, too.
    from: CertificateLogin = CertificateLogin::DistinguishedName, keys = ["ssl_cert_login_from"];

    /// The type of alternative name, with `ssl_cert_login_from = subject_alternative_name`.
    san_type: AlternativeNameKind = AlternativeNameKind::Dns, keys = ["ssl_cert_login_san_type"];

    /// The number of the alternative name of that type, counted from 0.
    san_index: u32 = 0, keys = ["ssl_cert_login_san_index"], range = 0..=1000;
}
