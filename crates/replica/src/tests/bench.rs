//! A few members on a bench: each message and each sync is done by hand.

use std::collections::BTreeMap;

use crate::{
    Batch, BatchName, Body, Breach, Change, MemberId, Members, MemoryBatches, Message, Output,
    Point, Replica, Role, Settings, Step, Task, Tasks, Ticket, Word,
};

pub(super) const SETTINGS: Settings = Settings {
    tick_ms: 100,
    election_ticks: 4,
    append_batches: 1,
    appends: 64,
    held_bytes: u64::MAX,
    files_bytes: 16 << 20,
};

pub(super) fn id(number: u64) -> MemberId {
    MemberId(number)
}

pub(super) fn name(number: u64, term: u64) -> BatchName {
    BatchName { number, term }
}

pub(super) fn batch(number: u64, term: u64) -> Batch {
    Batch { name: name(number, term), change: None }
}

pub(super) fn founded(voters: u64) -> Point {
    let voters: Vec<_> = (1..=voters).map(MemberId).collect();
    Point { at: name(1, 1), members: Members::of(&voters) }
}

/// A message on the bench.
#[derive(Clone, Debug)]
pub(super) struct Letter {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) message: Message,
}

/// One member.
pub(super) struct Seat {
    pub(super) replica: Replica,
    pub(super) log: MemoryBatches,
    pub(super) word: Word,
    tasks: Tasks,
    keeping: Vec<(Word, Ticket)>,
    kept: Ticket,
    pub(super) now_ms: u64,
    /// Whether it syncs at once.
    pub(super) syncs: bool,
    pub(super) roles: Vec<Role>,
    pub(super) agreed: Vec<BatchName>,
    pub(super) behind: Option<Point>,
}

/// Members, and what is on its way between them.
pub(super) struct Bench {
    pub(super) seats: BTreeMap<u64, Seat>,
    pub(super) letters: Vec<Letter>,
}

impl Bench {
    /// A group of so many, of which all are quiet no more.
    pub(super) fn of(voters: u64) -> Self {
        let mut bench = Self { seats: BTreeMap::new(), letters: Vec::new() };
        for id in 1..=voters {
            bench.open(id, MemoryBatches::new(founded(voters)), Word::default());
            bench.pass_quiet(id);
        }
        bench
    }

    /// Starts a member over what is on its disk.
    pub(super) fn open(&mut self, number: u64, log: MemoryBatches, word: Word) {
        let (replica, output) = Replica::open(id(number), SETTINGS, number, word, &log);
        let seat = Seat {
            replica,
            log,
            word,
            tasks: Tasks::default(),
            keeping: Vec::new(),
            kept: Ticket(0),
            now_ms: 0,
            syncs: true,
            roles: Vec::new(),
            agreed: Vec::new(),
            behind: None,
        };
        self.seats.insert(number, seat);
        self.handle(number, output);
    }

    /// A crash that keeps nothing of what is not synced, and a start.
    pub(super) fn restart(&mut self, number: u64) {
        let Seat { log, word, .. } = self.seats.remove(&number).expect("it is there");
        self.open(number, log.crash(0), word);
    }

    pub(super) fn seat(&mut self, number: u64) -> &mut Seat {
        self.seats.get_mut(&number).expect("it is there")
    }

    pub(super) fn replica(&self, number: u64) -> &Replica {
        &self.seats[&number].replica
    }

    /// The time after a start in which it votes for nobody, and for which it does not stand.
    pub(super) fn pass_quiet(&mut self, number: u64) {
        self.ticks(number, SETTINGS.election_ticks as u64 - 1);
        self.seat(number).replica.calm_down();
    }

    pub(super) fn ticks(&mut self, number: u64, count: u64) {
        let seat = self.seat(number);
        // The first call only says what time it is.
        let first = seat.replica.tick(seat.now_ms);
        seat.now_ms += count * SETTINGS.tick_ms;
        let output = seat.replica.tick(seat.now_ms);
        self.handle(number, first);
        self.handle(number, output);
    }

    /// Ticks until it stands for election.
    pub(super) fn stand(&mut self, number: u64) {
        for _ in 0..2 * SETTINGS.election_ticks {
            self.ticks(number, 1);
            let is_its = |it: &Letter| {
                it.from == number
                    && matches!(it.message.body, Body::PreVote { .. } | Body::Vote { .. })
            };
            if self.letters.iter().any(is_its) {
                return;
            }
        }
    }

    /// It stands, and all that is said goes to these alone, until nothing is left to say.
    pub(super) fn elect(&mut self, number: u64, among: &[u64]) {
        // The others have not heard of a leader for long.
        for other in among.iter().filter(|it| **it != number) {
            self.seat(*other).replica.calm_down();
        }
        self.stand(number);
        self.deliver(among);
    }

    /// Delivers what is on its way among these until nothing is left; the rest is lost.
    pub(super) fn deliver(&mut self, among: &[u64]) {
        self.deliver_but(among, |_| ());
    }

    /// The same, and each is changed before.
    pub(super) fn deliver_but(&mut self, among: &[u64], change: impl Fn(&mut Letter)) {
        while !self.letters.is_empty() {
            for mut letter in std::mem::take(&mut self.letters) {
                change(&mut letter);
                if among.contains(&letter.from) && among.contains(&letter.to) {
                    self.arrive(letter).expect("members keep to the rules");
                }
            }
        }
    }

    pub(super) fn arrive(&mut self, letter: Letter) -> Result<(), Breach> {
        let output = self.seat(letter.to).replica.step(id(letter.from), letter.message)?;
        self.handle(letter.to, output);
        Ok(())
    }

    /// Says something to a member.
    pub(super) fn say(&mut self, from: u64, to: u64, term: u64, body: Body) -> Result<(), Breach> {
        self.arrive(Letter { from, to, message: Message { term, body } })
    }

    pub(super) fn propose(&mut self, number: u64) -> BatchName {
        let seat = self.seat(number);
        let name = seat.replica.next().expect("it leads");
        seat.log.append_own(name, name.number, seat.replica.cuts());
        let output = seat.replica.propose(name).expect("it leads");
        self.handle(number, output);
        name
    }

    pub(super) fn change(&mut self, number: u64, steps: &[Step]) {
        let change = Change::of(steps.to_vec());
        let output = self.seat(number).replica.change(change).expect("it leads");
        self.handle(number, output);
    }

    /// Takes out what a member has to say.
    pub(super) fn said_by(&mut self, number: u64) -> Vec<Body> {
        let (by, others) = self.letters.drain(..).partition(|it| it.from == number);
        self.letters = others;
        let by: Vec<Letter> = by;
        by.into_iter().map(|it| it.message.body).collect()
    }

    pub(super) fn handle(&mut self, number: u64, output: Output) {
        let seat = self.seats.get_mut(&number).expect("it is there");
        let Output { tasks, messages, agreed, roles, behind } = output;
        seat.tasks.extend(tasks, seat.replica.cuts());
        seat.roles.extend(roles);
        seat.agreed.extend(agreed);
        seat.behind = behind.or_else(|| seat.behind.take());
        for (to, message) in messages {
            self.letters.push(Letter { from: number, to: to.0, message });
        }
        self.work(number);
        if self.seat(number).syncs {
            self.sync_word(number);
            self.sync_log(number);
        }
    }

    fn work(&mut self, number: u64) {
        let seat = self.seat(number);
        while let Some((task, cuts)) = seat.tasks.next(seat.kept) {
            match task {
                Task::Keep(word, ticket) => seat.keeping.push((word, ticket)),
                Task::Cut(from) => seat.log.cut_from(from),
                Task::Copy(batches) => {
                    batches.into_iter().for_each(|it| seat.log.append(it, Some(0), cuts));
                }
                Task::Make(batch) => seat.log.append(batch, None, cuts),
                Task::Install(point) => seat.log.install(point, cuts),
            }
        }
    }

    /// All words that were handed out are kept.
    pub(super) fn sync_word(&mut self, number: u64) {
        let seat = self.seat(number);
        let newest = seat.keeping.drain(..).next_back();
        if let Some((word, ticket)) = newest {
            (seat.word, seat.kept) = (word, ticket);
            let output = seat.replica.kept(ticket);
            self.handle(number, output);
        }
    }

    /// All batches that were handed out are stored.
    pub(super) fn sync_log(&mut self, number: u64) {
        let seat = self.seat(number);
        seat.log.sync(usize::MAX);
        let mut all = Vec::new();
        while let Some(stored) = seat.log.collect() {
            all.push(stored);
        }
        for stored in all {
            let output = self.seat(number).replica.stored(stored);
            self.handle(number, output);
        }
    }
}
