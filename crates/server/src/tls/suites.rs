//! Cipher suites: their OpenSSL and IANA names, and RabbitMQ's words for what was chosen.

use rustls::crypto::aws_lc_rs;
use rustls::{CipherSuite, SupportedCipherSuite};

/// A suite that can be spoken. Every one has forward secrecy and authenticates what it encrypts.
#[derive(Debug)]
struct Suite {
    suite: CipherSuite,
    iana: &'static str,
    openssl: &'static str,
    /// As listings show them: key exchange, cipher, hash.
    words: [&'static str; 3],
}

const fn suite(
    suite: CipherSuite,
    iana: &'static str,
    openssl: &'static str,
    key_exchange: &'static str,
    cipher: &'static str,
) -> Suite {
    // OTP's word for the check of every suite that has no separate one.
    Suite { suite, iana, openssl, words: [key_exchange, cipher, "aead"] }
}

use CipherSuite as S;
#[rustfmt::skip] // a table
const SUITES: [Suite; 9] = [
    suite(S::TLS13_AES_256_GCM_SHA384,       "TLS_AES_256_GCM_SHA384",       "TLS_AES_256_GCM_SHA384",       "any", "aes_256_gcm"),
    suite(S::TLS13_AES_128_GCM_SHA256,       "TLS_AES_128_GCM_SHA256",       "TLS_AES_128_GCM_SHA256",       "any", "aes_128_gcm"),
    suite(S::TLS13_CHACHA20_POLY1305_SHA256, "TLS_CHACHA20_POLY1305_SHA256", "TLS_CHACHA20_POLY1305_SHA256", "any", "chacha20_poly1305"),
    suite(S::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "ECDHE-ECDSA-AES256-GCM-SHA384", "ecdhe_ecdsa", "aes_256_gcm"),
    suite(S::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "ECDHE-ECDSA-AES128-GCM-SHA256", "ecdhe_ecdsa", "aes_128_gcm"),
    suite(S::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305", "ecdhe_ecdsa", "chacha20_poly1305"),
    suite(S::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "ECDHE-RSA-AES256-GCM-SHA384", "ecdhe_rsa", "aes_256_gcm"),
    suite(S::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256", "ecdhe_rsa", "aes_128_gcm"),
    suite(S::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256, "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-RSA-CHACHA20-POLY1305", "ecdhe_rsa", "chacha20_poly1305"),
];

/// The suite of this name, if it can be spoken.
pub(super) fn by_name(name: &str) -> Option<SupportedCipherSuite> {
    let known = SUITES.iter().find(|suite| suite.iana == name || suite.openssl == name)?;
    let all = aws_lc_rs::ALL_CIPHER_SUITES.iter();
    all.copied().find(|suite| suite.suite() == known.suite)
}

/// RabbitMQ's words for a suite: `ssl_key_exchange`, `ssl_cipher`, `ssl_hash`.
pub fn words(suite: SupportedCipherSuite) -> [&'static str; 3] {
    let known = SUITES.iter().find(|known| known.suite == suite.suite());
    known.map_or(["", "", ""], |known| known.words)
}

/// OpenSSL's names of all suites that can be spoken.
pub fn names() -> impl Iterator<Item = &'static str> {
    SUITES.iter().map(|suite| suite.openssl)
}

/// OpenSSL's names of these suites.
pub fn names_of(suites: &[SupportedCipherSuite]) -> Vec<&'static str> {
    let known = |suite: &Suite| suites.iter().any(|it| it.suite() == suite.suite);
    SUITES.iter().filter(|suite| known(suite)).map(|suite| suite.openssl).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_what_the_library_has() {
        assert_eq!(SUITES.len(), aws_lc_rs::ALL_CIPHER_SUITES.len());
        for suite in aws_lc_rs::ALL_CIPHER_SUITES {
            assert_ne!(words(*suite), ["", "", ""], "{suite:?}");
        }
        for known in &SUITES {
            assert_eq!(by_name(known.openssl).unwrap().suite(), known.suite);
            assert_eq!(by_name(known.iana).unwrap().suite(), known.suite);
        }
        assert!(by_name("AES256-SHA").is_none());
    }
}
