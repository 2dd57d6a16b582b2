//! A change of members as the bytes of its batch have it.

use crate::members::{Change, MemberId, Step};

/// Bytes of a step: what becomes of whom.
const STEP: usize = 9;

/// The bytes: for each step its kind and the member. The end of an exchange has none.
pub(crate) fn encode(change: &Change) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(change.steps.len() * STEP);
    for step in &change.steps {
        bytes.push(match step {
            Step::Voter(_) => 0,
            Step::Learner(_) => 1,
            Step::Remove(_) => 2,
        });
        bytes.extend(step.of().0.to_le_bytes());
    }
    bytes
}

/// The change that these bytes are, if they are one.
pub(crate) fn decode(bytes: &[u8]) -> Option<Change> {
    let (steps, rest) = bytes.as_chunks::<STEP>();
    let step = |[kind, id @ ..]: &[u8; STEP]| {
        let id = MemberId(u64::from_le_bytes(*id));
        match kind {
            0 => Some(Step::Voter(id)),
            1 => Some(Step::Learner(id)),
            2 => Some(Step::Remove(id)),
            _ => None,
        }
    };
    let steps = steps.iter().map(step).collect::<Option<_>>()?;
    rest.is_empty().then_some(Change { steps })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back() {
        let ids = [1, 7, u64::MAX].map(MemberId);
        let steps = [Step::Voter(ids[0]), Step::Learner(ids[1]), Step::Remove(ids[2])];
        for count in 0..=steps.len() {
            let change = Change { steps: steps[..count].to_vec() };
            let bytes = encode(&change);
            assert_eq!(decode(&bytes), Some(change));
            for len in (0..bytes.len()).filter(|len| len % STEP > 0) {
                assert_eq!(decode(&bytes[..len]), None, "{len} bytes");
            }
        }
        assert_eq!(decode(&[3; STEP]), None, "no such kind");
    }
}
