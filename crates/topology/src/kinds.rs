//! The kinds of password hashes that users have, counted: whoever wants to know them does not look at all users.

use crate::topology::Topology;
use crate::user::PasswordHash;

/// One hash of each kind, which no password matches, and how many users have it.
#[derive(Debug, Default)]
pub(crate) struct HashKinds(Vec<(PasswordHash, usize)>);

impl HashKinds {
    /// One user more has a hash of this kind.
    pub(crate) fn add(&mut self, hash: &PasswordHash) {
        let Some(kind) = hash.alike() else { return };
        match self.0.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, count)) => *count += 1,
            None => self.0.push((kind, 1)),
        }
    }

    /// One less has.
    pub(crate) fn remove(&mut self, hash: &PasswordHash) {
        let Some(kind) = hash.alike() else { return };
        let Some(at) = self.0.iter().position(|(known, _)| *known == kind) else { return };
        self.0[at].1 -= 1;
        if self.0[at].1 == 0 {
            self.0.remove(at);
        }
    }
}

impl Topology {
    /// One hash of each kind that users have. No password matches it, and a check of it costs what one of theirs costs.
    pub fn hash_kinds(&self) -> impl Iterator<Item = &PasswordHash> {
        self.hash_kinds.0.iter().map(|(kind, _)| kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::user::Hashing;

    /// Whatever happens to users, the kinds are those that a look at all of them finds.
    #[test]
    fn kinds_follow_users() {
        const ARGON2: &str = "$argon2id$v=19$m=64,t=1,p=1$c29tZXNhbHQ$\
                              Y2hlYXAgYW5kIG5vYm9keSdzIGhhc2ggb2YgMzIgYiE";
        let argon2 = |text: &str| PasswordHash::from_base64("u", text, Hashing::Argon2id).unwrap();
        let hashes = [
            PasswordHash::with(Hashing::Sha256, "p", [1; 16]),
            PasswordHash::with(Hashing::Sha512, "p", [2; 16]),
            PasswordHash::with(Hashing::Md5, "p", [3; 16]),
            PasswordHash::from_base64("none", "", Hashing::Sha256).unwrap(),
            argon2(ARGON2),
            argon2(&ARGON2.replace("m=64", "m=128")),
        ];
        let mut topology = Topology::new();
        let mut random = 1_u64;
        for _ in 0..2_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let draw = (random >> 33) as usize;
            let (name, hash) = (format!("u{}", draw % 7), &hashes[draw / 7 % hashes.len()]);
            match draw / 100 % 3 {
                0 => drop(topology.add_user(&name, hash.clone(), &[])),
                1 => drop(topology.change_password(&name, hash.clone())),
                _ => drop(topology.delete_user(&name)),
            }
            let mut want: Vec<PasswordHash> = Vec::new();
            for kind in topology.users().filter_map(|user| user.password_hash().alike()) {
                if !want.contains(&kind) {
                    want.push(kind);
                }
            }
            let found: Vec<_> = topology.hash_kinds().collect();
            assert_eq!(found.len(), want.len());
            assert!(want.iter().all(|kind| found.contains(&kind)));
        }
    }
}
