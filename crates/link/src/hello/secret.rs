//! The secret that all nodes of a cluster share, and proofs of knowing it.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// Bytes of a secret at least: who answers in a member's place gets a proof to guess from.
const SECRET_MIN: usize = 16;

/// Bytes of a proof.
pub(super) const PROOF: usize = 32;

/// What a proof begins with, so that it is one of nothing else.
const PURPOSE: &[u8] = b"leveret link hello 1\n";

/// `cluster.secret`.
#[derive(Clone)]
pub struct Secret(Hmac<Sha256>);

/// Why a secret is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// It has so few bytes.
    #[error("cluster.secret has {0} bytes, and needs {SECRET_MIN} at least")]
    Short(usize),
}

/// Who proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Caller = 1,
    Callee = 2,
}

impl Secret {
    /// The secret with these bytes.
    ///
    /// # Errors
    ///
    /// When they are fewer than 16.
    pub fn new(bytes: &[u8]) -> Result<Self, SecretError> {
        match Hmac::new_from_slice(bytes) {
            Ok(keyed) if bytes.len() >= SECRET_MIN => Ok(Self(keyed)),
            _ => Err(SecretError::Short(bytes.len())),
        }
    }

    fn keyed(&self, role: Role, hellos: [&[u8]; 2], exporter: Option<&[u8]>) -> Hmac<Sha256> {
        let mut hmac = self.0.clone();
        hmac.update(PURPOSE);
        hmac.update(&[role as u8]);
        // Each with its length: no two triples are the same bytes.
        for part in hellos.into_iter().chain(exporter) {
            hmac.update(&(part.len() as u64).to_le_bytes());
            hmac.update(part);
        }
        hmac
    }

    /// That `role` knows the secret.
    pub(super) fn proof(
        &self,
        role: Role,
        hellos: [&[u8]; 2],
        exporter: Option<&[u8]>,
    ) -> [u8; PROOF] {
        self.keyed(role, hellos, exporter).finalize().into_bytes().into()
    }

    /// Whether it is such a proof. Takes as long whatever is wrong in it.
    pub(super) fn is_proof(
        &self,
        proof: &[u8],
        role: Role,
        hellos: [&[u8]; 2],
        exporter: Option<&[u8]>,
    ) -> bool {
        self.keyed(role, hellos, exporter).verify_slice(proof).is_ok()
    }
}

impl core::fmt::Debug for Secret {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Secret(..)")
    }
}
