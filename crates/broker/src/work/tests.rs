use super::*;

/// A job of so many pieces, each of which costs so much and cannot be cut.
#[derive(Debug)]
struct Pieces {
    name: &'static str,
    left: u64,
    each: u64,
}

/// What was done, as `a3 b1`: three units of a, then one of b. `|` ends a turn.
#[derive(Default)]
struct Done(String);

impl Done {
    /// One turn. Returns what it cost.
    fn turn(&mut self, work: &mut Work<u32, Pieces>) -> u64 {
        work.begin();
        self.rest(work)
    }

    /// The turn goes on.
    fn rest(&mut self, work: &mut Work<u32, Pieces>) -> u64 {
        while let Some(Piece { origin, mut job, allowed }) = work.next_piece() {
            let mut used = 0;
            while used < allowed && job.left > 0 {
                used += job.each;
                job.left -= 1;
            }
            self.0 += &format!("{}{used} ", job.name);
            let units = job.left * job.each;
            match job.left {
                0 => work.done(origin, used),
                _ => work.go_on(origin, job, used, units),
            }
        }
        self.0 += "| ";
        work.spent()
    }
}

fn push(work: &mut Work<u32, Pieces>, origin: u32, name: &'static str, left: u64, each: u64) {
    work.push(origin, Pieces { name, left, each }, left * each);
}

fn work(turn: u64, share: u64) -> Work<u32, Pieces> {
    Work::new(Limits { turn, share })
}

#[track_caller]
fn check(work: &mut Work<u32, Pieces>, turns: usize, want: &str) {
    let mut done = Done::default();
    (0..turns).for_each(|_| _ = done.turn(work));
    assert_eq!(done.0.trim_end(), want);
}

#[test]
fn a_long_job_is_done_in_pieces() {
    let mut work = work(10, 4);
    push(&mut work, 1, "a", 25, 1);
    check(&mut work, 4, "a4 a4 a2 | a2 a4 a4 | a4 a1 | |");
    assert!(work.is_empty());
    assert_eq!(work.units(), 0);
}

#[test]
fn lines_have_equal_shares() {
    let mut work = work(12, 4);
    push(&mut work, 1, "a", 100, 1);
    push(&mut work, 2, "b", 6, 1);
    push(&mut work, 3, "c", 6, 1);
    // New lines come every second time.
    check(&mut work, 3, "a4 a4 b4 | a4 c4 b2 a2 | a2 c2 a4 a4 |");
    assert_eq!(work.lines(), 1);
}

#[test]
fn one_line_keeps_its_order() {
    let mut work = work(10, 4);
    push(&mut work, 1, "a", 6, 1);
    push(&mut work, 1, "b", 1, 1);
    push(&mut work, 1, "c", 5, 1);
    check(&mut work, 2, "a4 a2 b1 c1 c2 | c2 |");
}

#[test]
fn what_could_not_be_cut_is_paid_for() {
    let mut work = work(10, 4);
    push(&mut work, 1, "a", 2, 20);
    push(&mut work, 2, "b", 40, 1);
    // Twenty of a, then as many of b before a has its turn again.
    let mut done = Done::default();
    let costs: Vec<u64> = (0..6).map(|_| done.turn(&mut work)).collect();
    assert_eq!(done.0, "a20 | b4 b4 b2 | b2 b4 a20 | b4 b4 b2 | b2 b4 b4 | b4 | ");
    assert_eq!(costs, [20, 10, 26, 10, 10, 4]);
}

#[test]
fn a_letter_fits_while_its_line_is_empty_and_half_of_the_turn_is_there() {
    let mut work = work(10, 4);
    work.begin();
    assert!(work.fits(1, 3));
    assert!(!work.fits(2, 3), "the other half is for those who wait");
    assert!(work.fits(2, 2));
    push(&mut work, 3, "a", 9, 1);
    work.begin();
    assert!(!work.fits(3, 1), "its line is not empty");
    assert!(work.fits(1, 1), "others go on");
    check(&mut work, 1, "a4 a4 a1 |");
    work.begin();
    assert!(work.fits(3, 1));
}

#[test]
fn a_new_line_does_not_stand_behind_all_others() {
    let mut work = work(100, 10);
    for origin in 0..1000 {
        push(&mut work, origin, "x", 1_000, 1);
    }
    let mut done = Done::default();
    (0..200).for_each(|_| _ = done.turn(&mut work));
    push(&mut work, 5_000, "probe", 1, 1);
    done.0.clear();
    done.turn(&mut work);
    assert!(done.0.contains("probe"), "{}", done.0);
}

#[test]
fn new_lines_do_not_starve_old_ones() {
    let mut work = work(100, 10);
    push(&mut work, 0, "old", 1_000, 1);
    let mut done = Done::default();
    for turn in 0..30 {
        // More than a turn takes, all of them new.
        for origin in 0..20 {
            push(&mut work, 1 + turn * 20 + origin, "new", 10, 1);
        }
        done.turn(&mut work);
    }
    let old = done.0.matches("old").count();
    assert!(old >= 20, "{old} of 300 pieces");
}

#[test]
fn each_turn_gets_on() {
    let mut work = work(1, 1);
    push(&mut work, 1, "a", 3, 7);
    push(&mut work, 2, "b", 2, 1);
    let mut done = Done::default();
    let mut turns = 0;
    while !work.is_empty() {
        done.turn(&mut work);
        turns += 1;
        assert!(turns <= 5, "{}", done.0);
    }
}

/// Letters may lead to more than was known when they were found to fit: those who wait get on all the same.
#[test]
fn letters_that_cost_too_much_do_not_keep_lines_from_their_turn() {
    let mut work = work(10, 4);
    push(&mut work, 1, "a", 10, 1);
    let mut done = Done::default();
    for _ in 0..3 {
        work.begin();
        assert!(work.fits(2, 1));
        work.spend(1_000);
        done.rest(&mut work);
    }
    assert_eq!(done.0, "a4 | a4 | a2 | ");
}

/// A small generator: the tests are the same every time.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// Whatever comes: the order of each line is kept, nothing is lost, a turn costs no more than it may and one piece, each
/// line gets on, and the counts are right.
#[test]
fn whatever_comes_all_is_done_in_order() {
    for seed in 0..300 {
        let mut random = Random(seed);
        let limits = Limits { turn: 1 + random.below(40), share: 1 + random.below(12) };
        let mut work: Work<u64, (u64, u64)> = Work::new(limits);
        let each = 1 + random.below(6);
        let (mut pushed, mut done) = ([0; 5], [0; 5]);
        let mut waiting = 0;
        for turn in 0.. {
            work.begin();
            for _ in 0..random.below(4) {
                let origin = random.below(5);
                if turn < 40 {
                    // Which one of its origin, and how many pieces.
                    let pieces = 1 + random.below(20);
                    let fits = work.fits(origin, pieces * each);
                    if fits {
                        assert_eq!(done[origin as usize], pushed[origin as usize], "overtaken");
                        done[origin as usize] += 1;
                    } else {
                        work.push(origin, (pushed[origin as usize], pieces), pieces * each);
                        waiting += pieces * each;
                    }
                    pushed[origin as usize] += 1;
                }
            }
            let before = work.spent();
            assert!(before <= limits.turn / 2);
            let had_some = work.units() > 0;
            while let Some(Piece { origin, job: (number, mut left), allowed }) = work.next_piece() {
                assert!(allowed > 0);
                assert_eq!(number, done[origin as usize], "out of order");
                let mut used = 0;
                while left > 0 && used < allowed {
                    left -= 1;
                    used += each;
                }
                waiting -= used;
                match left {
                    0 => {
                        done[origin as usize] += 1;
                        work.done(origin, used);
                    }
                    _ => work.go_on(origin, (number, left), used, left * each),
                }
                assert_eq!(work.units(), waiting);
            }
            assert!(work.spent() < limits.turn + each, "{} of {limits:?}", work.spent());
            assert!(!had_some || work.spent() > before, "a turn did nothing");
            if turn >= 40 && work.is_empty() {
                break;
            }
            assert!(turn < 20_000, "no end: {work:?}");
        }
        assert_eq!(done, pushed, "seed {seed}");
        assert_eq!(work.units(), 0);
    }
}
