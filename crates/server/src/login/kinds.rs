//! What a refused login costs: one check of each kind of hash that is in use.
//!
//! How long an answer takes is no secret. If a wrong password cost what the user's own hash costs, the time
//! would tell users with slow hashes from those with quick ones, and both from names that are nobody's. So
//! each refusal makes one check of each kind: digests by name, argon2 by its memory, rounds and lanes. The
//! user's own hash stands for its kind, and comes first: who is let in pays for that one alone.

use std::sync::Arc;

use leveret_topology::{Hashing, PasswordHash, Topology};

/// The kinds in use, taken from the names once for each change of users. Those count them: no refusal looks at all users.
#[derive(Debug, Default)]
pub(super) struct Kinds {
    generation: Option<u64>,
    /// One hash of each that no password matches.
    all: Arc<[PasswordHash]>,
}

impl Kinds {
    /// Those of the users, and of `hashing`, which new ones get.
    pub(super) fn of(&mut self, topology: &Topology, hashing: Hashing) -> Arc<[PasswordHash]> {
        let generation = Some(topology.access_generation());
        if self.generation != generation {
            let mut all = vec![PasswordHash::dummy(hashing)];
            let new_ones = all[0].clone();
            all.extend(topology.hash_kinds().filter(|&kind| *kind != new_ones).cloned());
            (self.generation, self.all) = (generation, all.into());
        }
        Arc::clone(&self.all)
    }
}

/// What a refusal checks besides the user's own hash. None of it matches anything.
pub(super) fn others<'a>(
    own: Option<&PasswordHash>,
    kinds: &'a [PasswordHash],
) -> impl Iterator<Item = &'a PasswordHash> {
    let like = own.and_then(PasswordHash::alike);
    kinds.iter().filter(move |&kind| Some(kind) != like.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With less memory than new ones get, so that the test takes no time; hash and salt are somebody's.
    const CHEAP: &str = "$argon2id$v=19$m=64,t=1,p=1$c29tZXNhbHQ$\
                         Y2hlYXAgYW5kIG5vYm9keSdzIGhhc2ggb2YgMzIgYiE";

    fn topology() -> Topology {
        let mut topology = Topology::new();
        let argon2 = |text: &str| PasswordHash::from_base64("u", text, Hashing::Argon2id).unwrap();
        let (cheap, usual) = (argon2(CHEAP), argon2(&CHEAP.replace("m=64,t=1", "m=19456,t=2")));
        let none = PasswordHash::from_base64("none", "", Hashing::Sha256).unwrap();
        let users = [
            ("sha256", PasswordHash::with(Hashing::Sha256, "p", [1; 16])),
            ("sha512", PasswordHash::with(Hashing::Sha512, "p", [2; 16])),
            ("md5", PasswordHash::with(Hashing::Md5, "p", [3; 16])),
            ("argon2", usual),
            ("cheap", cheap),
            ("none", none),
        ];
        for (name, hash) in users {
            topology.add_user(name, hash, &[]).unwrap();
        }
        topology
    }

    #[test]
    fn a_refusal_costs_the_same_for_everybody() {
        let topology = topology();
        let kinds = Kinds::default().of(&topology, Hashing::Sha256);
        assert_eq!(kinds.len(), 5);
        let cost = |user: &str| {
            let own = topology.user(user).map(|user| user.password_hash());
            let mut all: Vec<String> = own
                .into_iter()
                .chain(others(own, &kinds))
                .filter_map(PasswordHash::alike)
                .map(|kind| format!("{} {}", kind.hashing().name(), kind.to_base64()))
                .collect();
            all.sort();
            all
        };
        let unknown = cost("nobody");
        assert_eq!(unknown.len(), 5);
        for user in ["sha256", "sha512", "md5", "argon2", "cheap", "none"] {
            assert_eq!(cost(user), unknown, "{user}");
        }
    }

    /// A hash that cannot be read would cost nothing.
    #[test]
    fn kinds_are_hashes() {
        let kinds = Kinds::default().of(&topology(), Hashing::Argon2id);
        let cheap = "$argon2id$v=19$m=64,t=1,p=1$AAAA";
        assert!(kinds.iter().any(|kind| kind.to_base64().starts_with(cheap)), "{kinds:?}");
        for kind in kinds.iter() {
            PasswordHash::from_base64("x", &kind.to_base64(), kind.hashing()).unwrap();
            let is_dear = kind.to_base64().contains("m=19456");
            assert!(is_dear || !kind.accepts("p"), "{kind:?}");
        }
    }

    #[test]
    fn kinds_are_found_again_when_users_change() {
        let mut topology = topology();
        let mut kinds = Kinds::default();
        let before = kinds.of(&topology, Hashing::Sha256);
        assert!(Arc::ptr_eq(&before, &kinds.of(&topology, Hashing::Sha256)));
        topology.delete_user("cheap").unwrap();
        assert_eq!(kinds.of(&topology, Hashing::Sha256).len(), 4);
    }
}
