//! Answers of a source, kept for a while.
//!
//! Logins are kept under a digest of name, password and address that only this process can make, never
//! under the password itself.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aws_lc_rs::hmac;
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use leveret_topology::rights::{Admitted, Deciding, Decision, Question, Rights};

use crate::source::{Candidate, Denied, UserSource};

/// Answers of each kind that are kept.
const KEPT_MAX: usize = 50_000;

/// A source with a cache before it.
pub struct Cache {
    source: UserSource,
    ttl: Duration,
    keeps_refusals: bool,
    key: hmac::Key,
    logins: Mutex<ExpiringMap<[u8; 32], Result<Admitted, Denied>>>,
    decisions: Mutex<ExpiringMap<(Arc<str>, Question), Decision>>,
}

/// The key is nobody's business.
impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").field("source", &self.source).finish_non_exhaustive()
    }
}

/// Values that are valid until a moment each.
struct ExpiringMap<K, V>(HashMap<K, (Instant, V), RandomState>);

impl<K: std::hash::Hash + Eq, V: Clone> ExpiringMap<K, V> {
    fn get(&self, key: &K, now: Instant) -> Option<V> {
        self.0.get(key).filter(|(until, _)| *until > now).map(|(_, value)| value.clone())
    }

    fn put(&mut self, key: K, value: V, until: Instant, now: Instant) {
        if self.0.len() >= KEPT_MAX {
            self.0.retain(|_, (until, _)| *until > now);
            if self.0.len() >= KEPT_MAX {
                self.0.clear();
            }
        }
        self.0.insert(key, (until, value));
    }
}

impl Cache {
    /// `key` is random.
    pub(crate) fn new(
        source: UserSource,
        ttl: Duration,
        keeps_refusals: bool,
        key: [u8; 32],
    ) -> Self {
        Self {
            source,
            ttl,
            keeps_refusals,
            key: hmac::Key::new(hmac::HMAC_SHA256, &key),
            logins: Mutex::new(ExpiringMap(HashMap::default())),
            decisions: Mutex::new(ExpiringMap(HashMap::default())),
        }
    }

    pub(crate) async fn authenticate(
        self: &Arc<Self>,
        candidate: Candidate<'_>,
    ) -> Result<Admitted, Denied> {
        let digest = self.digest(candidate);
        let known = lock(&self.logins).get(&digest, Instant::now());
        if let Some(answer) = known {
            return answer;
        }
        let mut answer = self.source.authenticate(candidate).await;
        if let Ok(admitted) = &mut answer
            && let Some(rights) = admitted.rights.take()
        {
            let who = [&admitted.user, candidate.address, &admitted.tags.join(" ")].join("\0");
            let cache = Arc::clone(self);
            admitted.rights = Some(Arc::new(CachedRights { cache, rights, who: who.into() }));
        }
        let is_kept = match &answer {
            Ok(_) => true,
            Err(Denied::Refused(_)) => self.keeps_refusals,
            Err(Denied::Failed(_) | Denied::Busy(_)) => false,
        };
        if is_kept {
            let now = Instant::now();
            lock(&self.logins).put(digest, answer.clone(), now + self.ttl, now);
        }
        answer
    }

    fn digest(&self, candidate: Candidate<'_>) -> [u8; 32] {
        let mut context = hmac::Context::with_key(&self.key);
        let has_password = if candidate.password.is_some() { "1" } else { "0" };
        let password = candidate.password.unwrap_or_default();
        for part in [candidate.user, candidate.address, has_password, password] {
            context.update(&(part.len() as u64).to_be_bytes());
            context.update(part.as_bytes());
        }
        let mut digest = [0; 32];
        digest.copy_from_slice(context.sign().as_ref());
        digest
    }
}

/// What a user may do, as it was last said.
#[derive(Debug)]
struct CachedRights {
    cache: Arc<Cache>,
    rights: Arc<dyn Rights>,
    /// Whatever the answers depend on: user, address and tags.
    who: Arc<str>,
}

impl Rights for CachedRights {
    fn decide(&self, question: &Question) -> Option<Decision> {
        let key = (Arc::clone(&self.who), question.clone());
        let known = lock(&self.cache.decisions).get(&key, Instant::now());
        known.or_else(|| self.rights.decide(question))
    }

    fn ask<'a>(&'a self, question: &'a Question) -> Deciding<'a> {
        Box::pin(async move {
            if let Some(known) = self.decide(question) {
                return known;
            }
            let decision = self.rights.ask(question).await;
            let cache = &self.cache;
            let is_kept = match &decision {
                Decision::Allowed => true,
                Decision::Refused(_) => cache.keeps_refusals,
                Decision::Failed(_) => false,
            };
            if is_kept {
                let now = Instant::now();
                let key = (Arc::clone(&self.who), question.clone());
                lock(&cache.decisions).put(key, decision.clone(), now + cache.ttl, now);
            }
            decision
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_bounded_and_passes() {
        let now = Instant::now();
        let mut kept = ExpiringMap(HashMap::default());
        for n in 0..KEPT_MAX + 10 {
            kept.put(n, n, now + Duration::from_secs(1), now);
        }
        assert!(kept.0.len() <= KEPT_MAX);
        let last = KEPT_MAX + 9;
        assert_eq!(kept.get(&last, now), Some(last));
        assert_eq!(kept.get(&last, now + Duration::from_secs(1)), None);
    }
}
