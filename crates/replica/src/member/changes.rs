//! A change of members as the bytes of its batch have it, and members as the list of files has them.

use leveret_log::disk;

use crate::batches::Point;
use crate::members::{Change, MemberId, Members, Step};

/// Bytes of a step: what becomes of whom.
const STEP: usize = 9;

/// Bytes of a name at most.
const NAME_MAX: usize = u8::MAX as usize;

/// The kind of a name, which follows the steps: the member, the length of the name in one byte, and the name.
const NAME: u8 = 3;

/// The bytes: for each step its kind and the member, then the names. The end of an exchange has none.
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
    for (id, name) in &change.names {
        let name = &name[..name.floor_char_boundary(NAME_MAX)];
        bytes.push(NAME);
        bytes.extend(id.0.to_le_bytes());
        bytes.push(name.len() as u8);
        bytes.extend(name.as_bytes());
    }
    bytes
}

/// The change that these bytes are, if they are one.
pub(crate) fn decode(mut bytes: &[u8]) -> Option<Change> {
    let mut change = Change::default();
    while let Some(([kind, id @ ..], rest)) = bytes.split_first_chunk::<STEP>() {
        let id = MemberId(u64::from_le_bytes(*id));
        bytes = rest;
        let step = match *kind {
            0 => Step::Voter(id),
            1 => Step::Learner(id),
            2 => Step::Remove(id),
            NAME => {
                let (len, rest) = rest.split_first()?;
                let (name, rest) = rest.split_at_checked(usize::from(*len))?;
                change.names.push((id, std::str::from_utf8(name).ok()?.to_owned()));
                bytes = rest;
                continue;
            }
            _ => return None,
        };
        if !change.names.is_empty() {
            return None;
        }
        change.steps.push(step);
    }
    bytes.is_empty().then_some(change)
}

/// A point in words of the log: of each kind of member, how many there are, and who.
pub(crate) fn logged(point: &Point) -> disk::Point {
    let Members { voters, learners, outgoing, learners_next } = &point.members;
    let mut bytes = Vec::new();
    for of in [voters, learners, outgoing, learners_next] {
        bytes.extend((of.len() as u32).to_le_bytes());
        of.iter().for_each(|id| bytes.extend(id.0.to_le_bytes()));
    }
    disk::Point { at: point.at, members: bytes.into() }
}

/// What a log's point says, if it says it in these words.
pub(crate) fn of_log(point: &disk::Point) -> Option<Point> {
    let mut bytes = &point.members[..];
    let mut kinds: [Vec<MemberId>; 4] = Default::default();
    for kind in &mut kinds {
        let (count, rest) = bytes.split_first_chunk()?;
        bytes = rest;
        for _ in 0..u32::from_le_bytes(*count) {
            let (id, rest) = bytes.split_first_chunk()?;
            kind.push(MemberId(u64::from_le_bytes(*id)));
            bytes = rest;
        }
    }
    let [voters, learners, outgoing, learners_next] = kinds;
    let members = Members { voters, learners, outgoing, learners_next };
    bytes.is_empty().then_some(Point { at: point.at, members })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back() {
        let ids = [1, 7, u64::MAX].map(MemberId);
        let steps = [Step::Voter(ids[0]), Step::Learner(ids[1]), Step::Remove(ids[2])];
        for count in 0..=steps.len() {
            let change = Change::of(steps[..count].to_vec());
            let bytes = encode(&change);
            assert_eq!(decode(&bytes), Some(change));
            for len in (0..bytes.len()).filter(|len| len % STEP > 0) {
                assert_eq!(decode(&bytes[..len]), None, "{len} bytes");
            }
        }
        assert_eq!(decode(&[4; STEP]), None, "no such kind");
    }

    #[test]
    fn names_come_back() {
        let names = [(MemberId(7), "rabbit@a".to_owned()), (MemberId(9), "é".repeat(120))];
        let change = Change { steps: vec![Step::Learner(MemberId(7))], names: names.to_vec() };
        let bytes = encode(&change);
        assert_eq!(decode(&bytes), Some(change.clone()));
        for len in 0..bytes.len() {
            assert_ne!(decode(&bytes[..len]), Some(change.clone()), "{len} bytes");
        }
        let step_behind = [&bytes[STEP..], &bytes[..STEP]].concat();
        assert_eq!(decode(&step_behind), None, "one change has one text");
        let long = Change { names: vec![(MemberId(7), "é".repeat(200))], ..change };
        assert_eq!(decode(&encode(&long)).unwrap().names[0].1, "é".repeat(127));
    }

    #[test]
    fn members_come_back() {
        let ids = [1, 7, u64::MAX].map(MemberId);
        let members = Members {
            voters: ids.to_vec(),
            learners: vec![],
            outgoing: ids[1..].to_vec(),
            learners_next: ids[..1].to_vec(),
        };
        let at = leveret_log::BatchName { number: 9, term: 2 };
        for members in [members, Members::default()] {
            let point = Point { at, members };
            let logged = logged(&point);
            assert_eq!(of_log(&logged), Some(point));
            for len in 0..logged.members.len() {
                let members = logged.members.slice(..len);
                assert_eq!(of_log(&disk::Point { at, members }), None, "{len} bytes");
            }
            let members = [&logged.members[..], &[0]].concat().into();
            assert_eq!(of_log(&disk::Point { at, members }), None);
        }
    }
}
