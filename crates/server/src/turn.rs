//! Turns: who runs an actor, and when.
//!
//! Hot path: one short lock to leave a batch, one to pick it up; no allocation once warm.
//!
//! An actor is a state behind an inbox. Whoever brings letters leaves them in the inbox with
//! [`Actor::post`]. If nobody runs the actor, the one who posted must: it got the duty, and keeps it
//! until [`Actor::pick_up`] finds the inbox empty. If somebody runs it already, that one will find the
//! batch before it leaves. So a message on an idle broker is handled on the thread that read it, and on
//! a busy one each lock is paid once per batch.
//!
//! ```text
//!   post(letters) -> true   "you run it"      duty taken  --pick_up: some--> turn --+
//!   post(letters) -> false  "somebody does"        ^-----------------------------+
//!                                             duty free   <--pick_up: none
//! ```
//!
//! Invariant: letters in an inbox imply that somebody has the duty.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::locks::{Guard, Rank, Ranked};

/// A state with an inbox. See the module's page.
#[derive(Debug)]
pub struct Actor<S, L> {
    inbox: Ranked<Inbox<L>>,
    state: Ranked<S>,
}

#[derive(Debug)]
struct Inbox<L> {
    letters: Vec<L>,
    duty_taken: bool,
}

impl<S, L> Actor<S, L> {
    /// An actor with nothing to do, whose state has this place in the order of locks.
    pub const fn new(rank: Rank, state: S) -> Self {
        let inbox = Inbox { letters: Vec::new(), duty_taken: false };
        Self { inbox: Ranked::new(Rank::Inbox, inbox), state: Ranked::new(rank, state) }
    }

    /// Leaves letters, in order. True when the caller got the duty to run the actor.
    #[must_use = "true is the duty to run the actor"]
    pub fn post(&self, letters: impl IntoIterator<Item = L>) -> bool {
        let mut inbox = self.inbox.lock();
        inbox.letters.extend(letters);
        !std::mem::replace(&mut inbox.duty_taken, true)
    }

    /// Leaves one letter. Whether the caller got the duty to run the actor, and how many letters wait.
    #[must_use = "true is the duty to run the actor"]
    pub fn post_counted(&self, letter: L) -> (bool, usize) {
        let mut inbox = self.inbox.lock();
        inbox.letters.push(letter);
        (!std::mem::replace(&mut inbox.duty_taken, true), inbox.letters.len())
    }

    /// Leaves one letter. True when the caller got the duty to run the actor.
    #[must_use = "true is the duty to run the actor"]
    pub fn post_one(&self, letter: L) -> bool {
        self.post([letter])
    }

    /// How many letters wait.
    pub fn letters(&self) -> usize {
        self.inbox.lock().letters.len()
    }

    /// With the duty: exchanges all that waits for the empty `batch`. False when nothing waits, and
    /// then the duty is given back.
    pub fn pick_up(&self, batch: &mut Vec<L>) -> bool {
        debug_assert!(batch.is_empty(), "the last batch was not worked off");
        let mut inbox = self.inbox.lock();
        if inbox.letters.is_empty() {
            inbox.duty_taken = false;
            // A burst must not keep its memory for ever.
            if inbox.letters.capacity() > KEPT_LETTERS {
                inbox.letters = Vec::new();
            }
            return false;
        }
        std::mem::swap(&mut inbox.letters, batch);
        true
    }

    /// With the duty: the state. Waits only for whoever is just leaving.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn state(&self) -> Guard<'_, S> {
        self.state.lock()
    }
}

/// Room for letters that an idle inbox may keep.
const KEPT_LETTERS: usize = 32;

/// A letter of an actor's own task, until a turn has heard it. The task waits for things that stay as they are until the
/// turn (a socket that is at its end, a time that is over): if it told them again and again while others keep the turn from
/// its place on a list, the inbox would grow for as long as that is.
#[derive(Debug, Default)]
pub struct UnheardLetter(AtomicU8);

/// A letter is on its way.
const TOLD: u8 = 1;

/// A letter is on its way, and the task waits for the end of the turn that hears it.
const AWAITED: u8 = 2;

impl UnheardLetter {
    /// For the task, before it posts a letter.
    pub fn tell(&self) {
        self.0.store(TOLD, Ordering::Release);
    }

    /// For the task, before it looks for more to tell. False: not before it was woken.
    pub fn is_heard(&self) -> bool {
        let awaited = self.0.compare_exchange(TOLD, AWAITED, Ordering::AcqRel, Ordering::Acquire);
        awaited == Err(0)
    }

    /// For the turn, at its end. True when the task is to be woken.
    ///
    /// A letter that comes while the turn runs is taken for heard, too: one more may follow it, and no third.
    #[must_use = "true is the duty to wake the task"]
    pub fn hear(&self) -> bool {
        // The inbox's lock lies between the letter and the turn that hears it.
        self.0.load(Ordering::Relaxed) != 0 && self.0.swap(0, Ordering::AcqRel) == AWAITED
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn the_first_who_posts_has_the_duty_until_the_inbox_is_empty() {
        let actor = Actor::new(Rank::Shard, ());
        let mut batch = Vec::new();
        assert!(actor.post([1, 2]));
        assert!(!actor.post_one(3), "somebody has the duty already");
        assert!(actor.pick_up(&mut batch));
        assert_eq!(batch, [1, 2, 3]);
        batch.clear();
        assert!(!actor.post_one(4), "still the same one's");
        assert!(actor.pick_up(&mut batch));
        batch.clear();
        assert!(!actor.pick_up(&mut batch));
        assert!(actor.post_one(5), "the duty was given back");
    }

    #[test]
    fn what_is_told_waits_for_the_turn() {
        let told = UnheardLetter::default();
        assert!(told.is_heard(), "nothing was told");
        assert!(!told.hear(), "nobody waits");
        told.tell();
        assert!(!told.hear(), "the turn was quicker than the task");
        assert!(told.is_heard());
        told.tell();
        assert!(!told.is_heard());
        assert!(!told.is_heard(), "woken by something else");
        assert!(told.hear(), "the task waits");
        assert!(told.is_heard());
    }

    /// Many threads post and run: every letter is handled once, in the order of its sender.
    #[test]
    fn no_letter_is_left_behind() {
        const SENDERS: usize = 4;
        const LETTERS: usize = 20_000;
        let actor = Arc::new(Actor::new(Rank::Shard, vec![0usize; SENDERS]));
        let threads: Vec<_> = (0..SENDERS)
            .map(|sender| {
                let actor = Arc::clone(&actor);
                std::thread::spawn(move || {
                    let mut batch = Vec::new();
                    for n in 0..LETTERS {
                        if actor.post_one((sender, n)) {
                            while {
                                let mut seen = actor.state();
                                let some = actor.pick_up(&mut batch);
                                for (sender, n) in batch.drain(..) {
                                    assert_eq!(seen[sender], n);
                                    seen[sender] += 1;
                                }
                                some
                            } {}
                        }
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("a sender failed");
        }
        assert_eq!(*actor.state(), vec![LETTERS; SENDERS]);
    }
}
