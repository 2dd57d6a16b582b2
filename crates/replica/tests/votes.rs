//! Words on disk: torn, damaged, interrupted.

use leveret_log::BatchName;
use leveret_log::disk::{DiskError, Faults, SimDisk};
use leveret_log::suite::{AskingDisk, Deed, numbers};
use leveret_replica::{MemberId, Ticket, VOTES, Votes, Word};

const VOTES_1: &[u8] = include_bytes!("golden/votes-1");
const MEMBER: MemberId = MemberId(0x1122_3344_5566_7788);
const LINE: usize = 512;
const APART: usize = 4096;

fn word(term: u64) -> Word {
    let vote = (!term.is_multiple_of(3)).then_some(MemberId(term % 3));
    Word { term, vote, mark: BatchName { number: 10 * term, term: term - 1 } }
}

fn open(disk: &SimDisk) -> Votes<SimDisk> {
    Votes::open(disk.clone(), MEMBER).unwrap()
}

/// Keeps one word, for good.
fn keep(votes: &mut Votes<SimDisk>, group: u64, word: Word) {
    votes.keep(group, word, Ticket(word.term));
    votes.sync();
    while votes.collect().unwrap().is_empty() {}
}

/// What a start finds on a disk that has these bytes.
fn found(bytes: &[u8], group: u64) -> Option<Word> {
    let disk = SimDisk::new(0);
    disk.put(VOTES, bytes.to_vec());
    let found = open(&disk).word(group);
    if found.is_some() {
        let bytes = disk.bytes_of(VOTES);
        assert_eq!(bytes[..LINE], bytes[APART..APART + LINE], "the other line is written anew");
        // Before anything is answered: that is on the disk.
        disk.crash();
        assert_eq!(bytes, disk.bytes_of(VOTES));
    }
    found
}

/// A disk with one word, and the same with the next one.
fn two_words() -> [Vec<u8>; 2] {
    let disk = SimDisk::new(0);
    let mut votes = open(&disk);
    [1, 2].map(|term| {
        keep(&mut votes, 7, word(term));
        disk.bytes_of(VOTES)
    })
}

#[test]
fn the_bytes_are_those_of_the_document() {
    let disk = SimDisk::new(0);
    let mut votes = open(&disk);
    keep(&mut votes, 7, word(1));
    keep(&mut votes, 0x0102_0304, word(2));
    keep(&mut votes, 7, word(3));
    assert!(disk.bytes_of(VOTES) == VOTES_1, "another format");
    let disk = SimDisk::new(0);
    disk.put(VOTES, VOTES_1.to_vec());
    let votes = open(&disk);
    assert_eq!((votes.word(7), votes.word(0x0102_0304)), (Some(word(3)), Some(word(2))));
    assert_eq!((votes.word(8), votes.damaged()), (None, 0));
}

#[test]
fn a_line_torn_at_any_byte_loses_nothing_that_was_answered() {
    let [before, after] = two_words();
    for end in 0..=LINE {
        // While the first line is written, and while the second one is.
        let mut first = before.clone();
        first[..end].copy_from_slice(&after[..end]);
        let is_whole = first[..LINE] == after[..LINE];
        assert_eq!(found(&first, 7), Some(word(if is_whole { 2 } else { 1 })), "{end}");
        let mut second = before.clone();
        second[..LINE].copy_from_slice(&after[..LINE]);
        second[APART..APART + end].copy_from_slice(&after[APART..APART + end]);
        assert_eq!(found(&second, 7), Some(word(2)), "{end}");
        // The end of the sector before its beginning.
        let mut first = before.clone();
        first[end..LINE].copy_from_slice(&after[end..LINE]);
        let is_whole = first[..LINE] == after[..LINE];
        assert_eq!(found(&first, 7), Some(word(if is_whole { 2 } else { 1 })), "{end}");
    }
}

#[test]
fn a_damaged_line_costs_nothing_and_two_cost_the_word() {
    let [_, bytes] = two_words();
    for at in 0..LINE {
        for bit in [0, 7] {
            let flip = |bytes: &mut Vec<u8>, at: usize| bytes[at] ^= 1 << bit;
            let [mut first, mut second, mut both] = [0; 3].map(|_| bytes.clone());
            flip(&mut first, at);
            flip(&mut second, APART + at);
            flip(&mut both, at);
            flip(&mut both, APART + (at * 7) % LINE);
            assert_eq!(found(&first, 7), Some(word(2)), "{at}");
            assert_eq!(found(&second, 7), Some(word(2)), "{at}");
            assert_eq!(found(&both, 7), None, "{at}");
        }
    }
    // It is not taken for one that was never there.
    let mut both = bytes;
    both[9] ^= 1;
    both[APART + 9] ^= 1;
    let disk = SimDisk::new(0);
    disk.put(VOTES, both.clone());
    let mut votes = open(&disk);
    assert_eq!(votes.damaged(), 1);
    keep(&mut votes, 8, word(1));
    assert_eq!(disk.bytes_of(VOTES)[..LINE], both[..LINE], "nor written over");
}

#[test]
fn a_file_cut_at_any_sector_is_read() {
    let [_, bytes] = two_words();
    for len in (0..bytes.len()).step_by(LINE / 2) {
        // A line is shorter than its sector.
        let want = (len > 0).then_some(word(2));
        assert_eq!(found(&bytes[..len], 7), want, "{len}");
    }
}

#[test]
fn words_of_another_member_are_not_this_ones() {
    let disk = SimDisk::new(0);
    let mut votes = Votes::open(disk.clone(), MemberId(1)).unwrap();
    keep(&mut votes, 7, word(5));
    let mut votes = open(&disk);
    assert_eq!(votes.word(7), None);
    keep(&mut votes, 7, word(1));
    assert_eq!(open(&disk).word(7), Some(word(1)));
    assert_eq!(Votes::open(disk, MemberId(1)).unwrap().word(7), None, "its slot is used again");
}

#[test]
fn all_groups_of_a_turn_are_kept_with_two_syncs() {
    let disk = SimDisk::new(0);
    let mut votes = open(&disk);
    let before = disk.work().syncs;
    for group in 1..=20 {
        votes.keep(group, word(1), Ticket(1));
        votes.keep(group, word(group), Ticket(group));
    }
    votes.sync();
    let mut kept = Vec::new();
    while kept.len() < 20 {
        kept.extend(votes.collect().unwrap());
    }
    assert_eq!(kept, (1..=20).map(|group| (group, Ticket(group))).collect::<Vec<_>>());
    assert_eq!(disk.work().syncs - before, 2);
    let votes = open(&disk);
    assert!((1..=20).all(|group| votes.word(group) == Some(word(group))));
}

#[test]
fn nothing_is_kept_after_a_failed_sync() {
    for is_second in [false, true] {
        let disk = SimDisk::new(0);
        let mut votes = open(&disk);
        keep(&mut votes, 7, word(1));
        let before = disk.work().syncs;
        disk.set_faults(Faults { delay: 200, ..Faults::default() });
        votes.keep(7, word(2), Ticket(2));
        votes.sync();
        while is_second && disk.work().syncs == before {
            assert_eq!(votes.collect(), Ok(vec![]), "one line is not enough");
        }
        disk.set_faults(Faults { fail_sync: true, ..Faults::default() });
        let failed = (0..9_999).find_map(|_| votes.collect().err());
        assert!(matches!(failed, Some(DiskError::Failed(_))));
        votes.keep(7, word(3), Ticket(3));
        votes.sync();
        assert!(votes.collect().is_err());
        let found = open(&disk).word(7).unwrap().term;
        assert!((1..=2).contains(&found), "{found}");
    }
}

/// What is written anew between two syncs, on a disk that tears all of a sector of 4 KiB of which it writes a part: first lines,
/// or second ones.
#[derive(Default)]
struct Halves {
    /// Whether second lines were written since the last sync, if any were.
    half: Option<bool>,
    syncs: usize,
}

impl Halves {
    fn see(&mut self, deed: Deed) {
        match deed {
            Deed::Truncate => self.syncs += usize::from(self.half.take().is_some()),
            Deed::Write(at) => {
                let is_second = at as usize / APART % 2 == 1;
                assert_eq!(*self.half.get_or_insert(is_second), is_second, "both may be torn");
            }
            _ => {}
        }
    }
}

impl Drop for Halves {
    fn drop(&mut self) {
        let is_failed = std::thread::panicking();
        assert!(is_failed || (self.half, self.syncs) == (None, 2), "each half has its own sync");
    }
}

/// A power cut while first lines are written leaves some of them new, and one torn. The start that writes the others anew may
/// be cut off, too.
#[test]
fn a_start_never_writes_both_halves_at_once() {
    let disk = SimDisk::new(0);
    let mut votes = open(&disk);
    keep(&mut votes, 7, word(1));
    keep(&mut votes, 8, word(1));
    let before = disk.bytes_of(VOTES);
    keep(&mut votes, 7, word(2));
    let mut bytes = disk.bytes_of(VOTES);
    bytes[APART..].copy_from_slice(&before[APART..]);
    bytes[LINE + 9] ^= 1;
    disk.put(VOTES, bytes);
    let mut halves = Halves::default();
    let disk = AskingDisk::new(disk, move |deed| {
        halves.see(deed);
        Ok(())
    });
    let votes = Votes::open(disk, MEMBER).unwrap();
    assert_eq!((votes.word(7), votes.word(8)), (Some(word(2)), Some(word(1))));
}

#[test]
fn what_was_answered_outlives_a_crash_at_any_moment() {
    let mut torn = 0;
    for seed in 0..2_000 {
        let mut below = numbers(seed);
        let disk = SimDisk::new(seed);
        // At any moment something else may be under way.
        disk.set_faults(Faults { delay: 2, ..Faults::default() });
        let (mut given, mut answered) = ([0; 10], [0; 10]);
        for _ in 0..4 {
            let mut votes = open(&disk);
            for group in 0..10 {
                let found = votes.word(group as u64).map_or(0, |it| it.term);
                let (least, most) = (answered[group], given[group]);
                assert!(
                    (least..=most).contains(&found),
                    "seed {seed}: {found} of {least}..={most}"
                );
                assert!(found == 0 || votes.word(group as u64) == Some(word(found)));
                torn += u64::from(found < most);
                (given[group], answered[group]) = (found, found);
            }
            assert_eq!(votes.damaged(), 0, "seed {seed}");
            for _ in 0..below(40) {
                let group = below(10) as usize;
                if below(2) == 0 {
                    given[group] += 1;
                    votes.keep(group as u64, word(given[group]), Ticket(given[group]));
                }
                votes.sync();
                for (group, ticket) in votes.collect().unwrap() {
                    answered[group as usize] = ticket.0;
                }
            }
            if below(4) == 0 { disk.kill() } else { disk.crash() }
        }
    }
    assert!(torn > 2_000, "crashes come at quiet moments only: {torn}");
}

/// A disk without a byte left: the word waits, and is kept when there is room.
#[test]
fn a_word_that_finds_no_room_is_tried_again() {
    let disk = SimDisk::new(0);
    let mut votes = open(&disk);
    keep(&mut votes, 7, word(1));
    disk.set_faults(Faults { capacity: Some(0), ..Faults::default() });
    // What does not fit is torn: the second lines stay as they are until the first ones are whole.
    votes.keep(7, word(2), Ticket(2));
    votes.keep(8, word(3), Ticket(3));
    for _ in 0..20 {
        votes.sync();
        assert_eq!(votes.collect().unwrap(), [], "nothing is kept of what was not written");
    }
    disk.set_faults(Faults::default());
    let mut kept = Vec::new();
    while kept.len() < 2 {
        votes.sync();
        kept.extend(votes.collect().unwrap());
    }
    assert_eq!(kept, [(7, Ticket(2)), (8, Ticket(3))]);
    disk.crash();
    let votes = open(&disk);
    assert_eq!((votes.word(7), votes.word(8)), (Some(word(2)), Some(word(3))));
}
