//! What an actor has to do that does not fit one turn: in lines by who caused it, done in pieces, in fair shares.
//!
//! Hot path: [`Work::fits`] is two comparisons when nothing waits.
//!
//! A turn may cost a number of *units*, each a small piece of real work: a message put into a queue, a settlement, a
//! record let go of, a row of a list. Units are counts and not time, so that the same letters bring the same
//! turns wherever they run; a turn of [`Limits::turn`] units takes a millisecond at most. What [`fits`](Work::fits)
//! the turn is done at once. Anything else becomes a *job* in the line of its origin, and all later letters of that
//! origin stand behind it: the order of what one connection sends is kept. Letters of others go on.
//!
//! ```text
//!   letter -- fits, and its line is empty --------------------------------> done at once
//!      |
//!      +--> line of connection 7   [ 4,000 messages x 1,000 queues ][ ack ]   --+
//!           line of connection 9   [ publish ]                                 --+--> a share each, in turns
//!           line of the shard      [ 3 million records to let go of ]          --+
//! ```
//!
//! Lines have their turn one after the other (deficit round robin): each is given [`Limits::share`] units, and what a
//! piece used above that, because it could not be cut there, is taken from the next shares of its line. A line that
//! was empty comes soon: every second piece is one of a new line, if there is one, so that a letter that only has to
//! wait for a full turn does not stand behind a thousand long lines, and those still have half of the time.
//!
//! Whoever does the jobs asks for the [`next_piece`](Work::next_piece), does about as much of it as it is
//! [`allowed`](Piece::allowed), and gives back what remains with [`go_on`](Work::go_on), or says that it is
//! [`done`](Work::done). So a job is any value that knows how far it came.

use std::collections::VecDeque;
use std::hash::Hash;

use foldhash::fast::FixedState;
use hashbrown::HashMap;

/// How much an actor does in one go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Units of one turn. At least one piece is done in each, and the last one may be larger than what was left.
    pub turn: u64,
    /// Units that a line is given before the next one has its turn.
    pub share: u64,
}

/// Jobs in lines, and what this turn has cost so far.
#[derive(Debug)]
pub struct Work<O, J> {
    limits: Limits,
    /// Those that have jobs, or have used more than they were given.
    lines: HashMap<O, JobLine<J>, FixedState>,
    /// Lines that had no turn since they were empty.
    fresh: VecDeque<O>,
    /// The others.
    round: VecDeque<O>,
    /// The next piece is to be one of a line that is not new.
    is_rounds_turn: bool,
    /// Of this turn.
    spent: u64,
    /// This turn did a piece.
    has_begun: bool,
    /// Of all jobs, as far as is known.
    units: u64,
    /// Empty lists of jobs, kept for the next lines.
    spare: Vec<VecDeque<WaitingJob<J>>>,
}

/// The jobs of one origin, in order.
#[derive(Debug)]
struct JobLine<J> {
    jobs: VecDeque<WaitingJob<J>>,
    /// What it may use before the next one has its turn. Below zero when it used more.
    credit: i64,
    units: u64,
}

/// A job, and the units that it takes as far as is known.
#[derive(Debug)]
struct WaitingJob<J> {
    job: J,
    units: u64,
}

/// A job that is to be done now, or the next part of one.
#[derive(Debug)]
pub struct Piece<O, J> {
    /// Who caused it.
    pub origin: O,
    /// What is to be done.
    pub job: J,
    /// About so many units of it: one at least.
    pub allowed: u64,
}

/// Empty lists of jobs that are kept.
const SPARE_LISTS: usize = 16;

/// Jobs that an empty list keeps room for.
const SPARE_JOBS: usize = 64;

impl<O: Copy + Eq + Hash, J> Work<O, J> {
    /// Nothing to do.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            lines: HashMap::default(),
            fresh: VecDeque::new(),
            round: VecDeque::new(),
            is_rounds_turn: false,
            spent: 0,
            has_begun: false,
            units: 0,
            spare: Vec::new(),
        }
    }

    /// Other limits, from the next turn on.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// The limits.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// A turn begins.
    pub fn begin(&mut self) {
        self.spent = 0;
        self.has_begun = false;
    }

    /// Units that this turn has cost so far.
    pub fn spent(&self) -> u64 {
        self.spent
    }

    /// Units that this turn may still cost.
    pub fn left(&self) -> u64 {
        self.limits.turn.saturating_sub(self.spent)
    }

    /// Counts what was done apart from jobs.
    #[inline]
    pub fn spend(&mut self, units: u64) {
        self.spent += units;
    }

    /// Whether a letter of `origin` that costs so much may be done at once; it counts as spent then. Half of a turn may
    /// be used so, since the other half belongs to those who wait.
    #[inline]
    pub fn fits(&mut self, origin: O, cost: u64) -> bool {
        let fits = self.spent + cost <= self.limits.turn / 2
            && (self.lines.is_empty() || !self.lines.contains_key(&origin));
        if fits {
            self.spent += cost;
        }
        fits
    }

    /// Something that could not wait was done for `origin`: its line pays for that before it has its next turn, if
    /// others wait.
    pub fn charge(&mut self, origin: O, units: u64) {
        if self.lines.is_empty() {
            return;
        }
        let line = self.lines.entry(origin).or_insert_with(|| {
            self.round.push_back(origin);
            JobLine { jobs: self.spare.pop().unwrap_or_default(), credit: 0, units: 0 }
        });
        line.credit = line.credit.saturating_sub(i64::try_from(units).unwrap_or(i64::MAX));
    }

    /// Puts a job at the end of its origin's line. `units` is what it will cost, as far as is known.
    pub fn push(&mut self, origin: O, job: J, units: u64) {
        let line = self.line_of(origin);
        line.jobs.push_back(WaitingJob { job, units });
        line.units += units;
        self.units += units;
    }

    /// The same, before all that waits in the line: it follows from what is being done for `origin`.
    pub fn push_first(&mut self, origin: O, job: J, units: u64) {
        let line = self.line_of(origin);
        line.jobs.push_front(WaitingJob { job, units });
        line.units += units;
        self.units += units;
    }

    fn line_of(&mut self, origin: O) -> &mut JobLine<J> {
        match self.lines.entry(origin) {
            hashbrown::hash_map::Entry::Occupied(line) => line.into_mut(),
            hashbrown::hash_map::Entry::Vacant(place) => {
                self.fresh.push_back(origin);
                let jobs = self.spare.pop().unwrap_or_default();
                place.insert(JobLine { jobs, credit: 0, units: 0 })
            }
        }
    }

    /// The next piece, unless the turn has cost enough already or nothing is to be done. Each is to be followed by
    /// [`done`](Self::done) or [`go_on`](Self::go_on). The first one comes whatever the turn has cost: letters that
    /// led to more than was known before must not keep the lines from getting on.
    pub fn next_piece(&mut self) -> Option<Piece<O, J>> {
        while (self.spent < self.limits.turn || !self.has_begun) && !self.lines.is_empty() {
            let is_fresh = match (self.fresh.is_empty(), self.round.is_empty()) {
                (true, _) => false,
                (false, true) => true,
                (false, false) => !self.is_rounds_turn,
            };
            self.is_rounds_turn = is_fresh;
            let list = if is_fresh { &mut self.fresh } else { &mut self.round };
            let origin = *list.front()?;
            let share = i64::try_from(self.limits.share).unwrap_or(i64::MAX);
            let Some(line) = self.lines.get_mut(&origin) else {
                list.pop_front();
                continue;
            };
            if line.credit <= 0 {
                // Its turn begins, unless it has to pay for more than that.
                line.credit = line.credit.saturating_add(share.max(1));
                if line.credit <= 0 {
                    self.move_on(is_fresh);
                    continue;
                }
            }
            let Some(WaitingJob { job, units }) = line.jobs.pop_front() else {
                // Empty, and has paid for all that it used.
                list.pop_front();
                self.forget(origin);
                continue;
            };
            line.units -= units;
            self.units -= units;
            if is_fresh {
                self.fresh.pop_front();
                self.round.push_front(origin);
            }
            self.has_begun = true;
            let left = match self.limits.turn.saturating_sub(self.spent) {
                0 => self.limits.share.min(self.limits.turn).max(1),
                left => left,
            };
            let allowed = left.min(line.credit.unsigned_abs());
            return Some(Piece { origin, job, allowed });
        }
        None
    }

    /// A piece took `used` units, and its job is done.
    pub fn done(&mut self, origin: O, used: u64) {
        self.paid(origin, used);
    }

    /// A piece took `used` units, and `job` is what remains of it, `units` as far as is known: it stays the first one of
    /// its line.
    pub fn go_on(&mut self, origin: O, job: J, used: u64, units: u64) {
        if let Some(line) = self.lines.get_mut(&origin) {
            line.jobs.push_front(WaitingJob { job, units });
            line.units += units;
            self.units += units;
        }
        self.paid(origin, used);
    }

    fn paid(&mut self, origin: O, used: u64) {
        self.spent += used.max(1);
        let Some(line) = self.lines.get_mut(&origin) else { return };
        line.credit = line.credit.saturating_sub(i64::try_from(used.max(1)).unwrap_or(i64::MAX));
        let is_empty = line.jobs.is_empty();
        if is_empty && line.credit >= 0 {
            // It is the first one of the round, from `next_piece`.
            if self.round.front() == Some(&origin) {
                self.round.pop_front();
            }
            self.forget(origin);
        } else if line.credit <= 0 && self.round.front() == Some(&origin) {
            self.move_on(false);
        }
        if self.units == 0 && self.lines.values().all(|line| line.jobs.is_empty()) {
            // Who else would it be fair to?
            self.fresh.clear();
            self.round.clear();
            let origins: Vec<O> = self.lines.keys().copied().collect();
            origins.into_iter().for_each(|origin| self.forget(origin));
        }
    }

    /// The first one of a list has its turn again after the others.
    fn move_on(&mut self, is_fresh: bool) {
        let list = if is_fresh { &mut self.fresh } else { &mut self.round };
        if let Some(origin) = list.pop_front() {
            self.round.push_back(origin);
        }
    }

    fn forget(&mut self, origin: O) {
        if let Some(line) = self.lines.remove(&origin)
            && self.spare.len() < SPARE_LISTS
            && line.jobs.capacity() <= SPARE_JOBS
        {
            self.spare.push(line.jobs);
        }
    }

    /// Whether no job waits.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Whether a letter of `origin` has to stand behind others of it.
    #[inline]
    pub fn waits(&self, origin: O) -> bool {
        !self.lines.is_empty() && self.lines.contains_key(&origin)
    }

    /// Units of all jobs.
    pub fn units(&self) -> u64 {
        self.units
    }

    /// Units of one line.
    pub fn units_of(&self, origin: O) -> u64 {
        self.lines.get(&origin).map_or(0, |line| line.units)
    }

    /// Lines there are.
    pub fn lines(&self) -> usize {
        self.lines.len()
    }

    /// All jobs, those of one line in their order.
    pub fn jobs(&self) -> impl Iterator<Item = (O, &J)> {
        let all = self.lines.iter();
        all.flat_map(|(&origin, line)| line.jobs.iter().map(move |it| (origin, &it.job)))
    }

    /// Takes all jobs out, those of one line in their order: the process stops, and does no more of them.
    pub fn drain(&mut self) -> Vec<(O, J)> {
        self.fresh.clear();
        self.round.clear();
        self.units = 0;
        let all = self.lines.drain();
        all.flat_map(|(origin, line)| line.jobs.into_iter().map(move |it| (origin, it.job)))
            .collect()
    }
}

#[cfg(test)]
mod tests;
