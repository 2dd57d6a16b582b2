//! Passwords that were proven against a slow hash, for a while.
//!
//! Clients that connect again and again with the same password cost one slow check. What is kept is no
//! password but a digest under a key that only this process has; it covers the stored hash, too, so
//! that a changed password makes the entry worthless at once.

use aws_lc_rs::hmac;
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use leveret_topology::PasswordHash;

/// How long a proof holds.
const VALID_MS: u64 = 10 * 60 * 1000;
/// Proofs at once.
const PROOFS_MAX: usize = 4096;

type Digest = [u8; 32];

pub(super) struct Cache {
    key: hmac::Key,
    /// Until when.
    proofs: HashMap<Digest, u64, RandomState>,
}

/// The key is nobody's business.
impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").field("proofs", &self.proofs.len()).finish_non_exhaustive()
    }
}

impl Cache {
    pub(super) fn new(key: [u8; 32]) -> Self {
        Self { key: hmac::Key::new(hmac::HMAC_SHA256, &key), proofs: HashMap::default() }
    }

    /// Whether this was proven.
    pub(super) fn knows(
        &self,
        user: &str,
        password: &str,
        hash: &PasswordHash,
        now_ms: u64,
    ) -> bool {
        let until = self.proofs.get(&self.digest(user, password, hash));
        until.is_some_and(|&until| until > now_ms)
    }

    /// This was proven.
    pub(super) fn learn(&mut self, user: &str, password: &str, hash: &PasswordHash, now_ms: u64) {
        if self.proofs.len() >= PROOFS_MAX {
            self.proofs.retain(|_, until| *until > now_ms);
            if self.proofs.len() >= PROOFS_MAX {
                self.proofs.clear();
            }
        }
        self.proofs.insert(self.digest(user, password, hash), now_ms + VALID_MS);
    }

    fn digest(&self, user: &str, password: &str, hash: &PasswordHash) -> Digest {
        let mut context = hmac::Context::with_key(&self.key);
        for part in [user, &hash.to_base64(), password] {
            context.update(&(part.len() as u64).to_be_bytes());
            context.update(part.as_bytes());
        }
        let mut digest = [0; 32];
        digest.copy_from_slice(context.sign().as_ref());
        digest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_holds_for_a_while_and_for_one_hash() {
        let mut cache = Cache::new([7; 32]);
        let hash = PasswordHash::new("p", [1; 4]);
        cache.learn("u", "p", &hash, 0);
        assert!(cache.knows("u", "p", &hash, VALID_MS - 1));
        assert!(!cache.knows("u", "p", &hash, VALID_MS));
        assert!(!cache.knows("u", "q", &hash, 0));
        assert!(!cache.knows("v", "p", &hash, 0));
        assert!(!cache.knows("u", "p", &PasswordHash::new("p", [2; 4]), 0), "another salt");
        assert!(!Cache::new([8; 32]).knows("u", "p", &hash, 0), "another process");
    }

    #[test]
    fn proofs_are_bounded() {
        let mut cache = Cache::new([7; 32]);
        let hash = PasswordHash::new("p", [1; 4]);
        for n in 0..10_000 {
            cache.learn(&n.to_string(), "p", &hash, 0);
        }
        assert!(cache.proofs.len() <= PROOFS_MAX);
        assert!(cache.knows("9999", "p", &hash, 0));
    }
}
