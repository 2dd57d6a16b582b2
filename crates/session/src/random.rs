//! Names the server makes up, and seeds for routing by chance.

/// A seeded generator (splitmix64). Its seed comes from the server's random source, once per
/// connection: what it gives cannot be guessed from outside the connection.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// `prefix-` and 22 letters that stand for 128 random bits, as RabbitMQ writes them.
    pub(crate) fn name(&mut self, prefix: &str) -> String {
        const LETTERS: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let mut bits = (u128::from(self.next()) << 64) | u128::from(self.next());
        let mut name = String::with_capacity(prefix.len() + 23);
        name.push_str(prefix);
        name.push('-');
        for _ in 0..22 {
            name.push(char::from(LETTERS[(bits & 63) as usize]));
            bits >>= 6;
        }
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_look_like_rabbitmqs() {
        let mut random = Random::new(7);
        let (first, second) = (random.name("amq.gen"), random.name("amq.gen"));
        assert!(first.starts_with("amq.gen-"));
        assert_eq!(first.len(), "amq.gen-".len() + 22);
        assert_ne!(first, second);
    }
}
