//! Certificates and keys from PEM files.

use anyhow::{Context as _, bail};
use leveret_config::files;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use zeroize::Zeroizing;

/// Every certificate of a file; at least one.
pub(super) fn certificates(
    option: &str,
    path: &str,
) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let text = read(option, path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let found = found.with_context(|| format!("{option} = {path}: not a PEM file"))?;
    if found.is_empty() {
        bail!("{option} = {path}: there is no certificate in the file");
    }
    Ok(found)
}

/// The private key of a file. `password` is for one that is encrypted.
pub(super) fn private_key(
    option: &str,
    path: &str,
    password: Option<&str>,
) -> anyhow::Result<PrivateKeyDer<'static>> {
    let pem = read(option, path)?;
    let text = std::str::from_utf8(&pem).unwrap_or_default();
    if let Some(key) = section(text, "ENCRYPTED PRIVATE KEY") {
        let Some(password) = password else {
            bail!("{option} = {path}: the key is encrypted; give its password");
        };
        return decrypted(key, password).with_context(|| format!("{option} = {path}"));
    }
    if text.contains("Proc-Type: 4,ENCRYPTED") {
        bail!(
            "{option} = {path}: keys encrypted in OpenSSL's old way are not read; \
             convert it: openssl pkcs8 -topk8 -v2 aes-256-cbc -in {path} -out NEW"
        );
    }
    PrivateKeyDer::from_pem_slice(&pem)
        .with_context(|| format!("{option} = {path}: there is no private key in the file"))
}

fn read(option: &str, path: &str) -> anyhow::Result<Zeroizing<Vec<u8>>> {
    let text = files::read_bytes(path.as_ref(), files::BYTES_MAX)
        .with_context(|| format!("{option} = {path}"))?;
    Ok(Zeroizing::new(text))
}

/// One section of a PEM file, with its first and last line.
fn section<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (begin, end) = (format!("-----BEGIN {name}-----"), format!("-----END {name}-----"));
    let start = text.find(&begin)?;
    let length = text[start..].find(&end)? + end.len();
    text.get(start..start + length)
}

fn decrypted(pem: &str, password: &str) -> anyhow::Result<PrivateKeyDer<'static>> {
    let (_, document) = pkcs8::SecretDocument::from_pem(pem)
        .map_err(|error| anyhow::anyhow!("the encrypted key cannot be read: {error}"))?;
    let key = pkcs8::EncryptedPrivateKeyInfoRef::try_from(document.as_bytes())
        .map_err(|error| anyhow::anyhow!("the encrypted key cannot be read: {error}"))?;
    // The library says no more than that, whether the password is wrong or the method unknown.
    let plain = key.decrypt(password.as_bytes()).map_err(|_| {
        anyhow::anyhow!(
            "the key cannot be decrypted: the password is wrong, or the method is not AES"
        )
    })?;
    Ok(PrivatePkcs8KeyDer::from(plain.as_bytes().to_vec()).into())
}
