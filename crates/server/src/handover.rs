//! Turns that a thread leaves to other threads.
//!
//! A thread with a long list leaves the end of the list here. Each thread looks here before it stops, so the next idle one
//! takes these turns. No thread is woken for them. Without the handover one thread may have every duty while another one
//! only reads for it.
//!
//! A disk's thread is a special case. When its write is done, a shard has something to do, and then connections have. The disk's
//! thread runs these turns itself, so that no thread has to be woken. But under load the threads of the sockets run turns
//! all the time. One more thread that does pins the input that the others read in inboxes, and takes turns from one core to
//! the other. So there are three cases:
//!
//! * Turns that a client waits for run on the disk's thread.
//! * Turns that no client waits for, as after a write of messages with slow acks, are left to a thread that is at work
//!   already and looks here before it stops. This costs no system call.
//! * Long work is left to the other threads in any case, and one of them is woken if all are idle. While the disk's thread
//!   runs turns it writes nothing, and each client that waits for its disk waits for these turns too.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::Notify;

use crate::locks::{Rank, Ranked};

/// How long a list may get before its end is left to others.
const SHARED_ABOVE: usize = 16;

/// How much of it stays, and how much a thread takes at once.
const TAKEN: usize = 8;

/// What was left to others: see the module's page.
#[derive(Debug)]
pub(crate) struct Handover<T> {
    left: Ranked<VecDeque<T>>,
    /// Whether there is anything.
    has_some: AtomicBool,
    /// Threads at work that look here before they stop.
    at_work: AtomicUsize,
    /// How threads that have a runtime are told that something was left. The first one is next.
    bells: Ranked<VecDeque<Arc<Notify>>>,
}

impl<T> Default for Handover<T> {
    fn default() -> Self {
        let (has_some, at_work) = (AtomicBool::new(false), AtomicUsize::new(0));
        let left = Ranked::new(Rank::Handover, VecDeque::new());
        let bells = Ranked::new(Rank::Handover, VecDeque::new());
        Self { left, has_some, at_work, bells }
    }
}

impl<T> Handover<T> {
    /// The caller is at work until [`ends`](Self::ends). Some of what was left comes behind what it has to do: a list that has
    /// something on it whenever it is looked at, as while the names change, would never come to it.
    pub(crate) fn begins(&self, due: &mut VecDeque<T>) {
        self.at_work.fetch_add(1, Ordering::SeqCst);
        self.take(due);
    }

    /// The caller is not at work any more. Afterwards it has to look whether there [`is something`](Self::has_some):
    /// somebody may have left it just before.
    pub(crate) fn ends(&self) {
        self.at_work.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether something was left.
    pub(crate) fn has_some(&self) -> bool {
        self.has_some.load(Ordering::SeqCst)
    }

    /// Some of what was left, what was left first, for the caller to do.
    pub(crate) fn take(&self, into: &mut VecDeque<T>) {
        self.take_at_most(TAKEN, into);
    }

    fn take_at_most(&self, count: usize, into: &mut VecDeque<T>) {
        if self.has_some() {
            let mut left = self.left.lock();
            let count = left.len().min(count);
            into.extend(left.drain(..count));
            self.has_some.store(!left.is_empty(), Ordering::SeqCst);
        }
    }

    /// Leaves the end of a list that got long, as the caller is at work and takes it itself if nobody else does.
    #[inline]
    pub(crate) fn share(&self, due: &mut VecDeque<T>) {
        if due.len() > SHARED_ABOVE {
            self.put(due.drain(TAKEN..));
        }
    }

    /// Leaves all of `due` to a thread at work, if there is one.
    pub(crate) fn leave(&self, due: &mut VecDeque<T>) {
        if due.is_empty() || self.at_work.load(Ordering::SeqCst) == 0 {
            return;
        }
        self.put(due.drain(..));
        // The last one may have stopped without seeing it.
        if self.at_work.load(Ordering::SeqCst) == 0 {
            self.take_at_most(usize::MAX, due);
        }
    }

    /// Whoever rings this bell has the caller look here, until it [`leaves`](Self::leaves).
    pub(crate) fn joins(&self, bell: Arc<Notify>) {
        self.bells.lock().push_back(bell);
    }

    /// Nobody hears this bell any more.
    pub(crate) fn leaves(&self, bell: &Arc<Notify>) {
        self.bells.lock().retain(|it| !Arc::ptr_eq(it, bell));
    }

    /// Leaves all of `due` to a thread that is woken for it, if there is one.
    pub(crate) fn leave_and_ring(&self, due: &mut VecDeque<T>) {
        if due.is_empty() {
            return;
        }
        let bell = {
            let mut bells = self.bells.lock();
            let next = bells.pop_front();
            bells.extend(next.clone());
            next
        };
        if let Some(bell) = bell {
            self.put(due.drain(..));
            bell.notify_one();
        }
    }

    /// Leaves all of `due`, as the caller ends and takes nothing any more.
    pub(crate) fn bequeath(&self, due: &mut VecDeque<T>) {
        if !due.is_empty() {
            self.put(due.drain(..));
        }
    }

    fn put(&self, due: impl Iterator<Item = T>) {
        let mut left = self.left.lock();
        left.extend(due);
        self.has_some.store(true, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_left_to_those_who_work_only() {
        let handover = Handover::default();
        let (mut mine, mut theirs) = (VecDeque::from([1, 2]), VecDeque::new());
        handover.leave(&mut mine);
        handover.take(&mut theirs);
        assert_eq!((mine.len(), theirs.len()), (2, 0), "nobody works");
        handover.begins(&mut theirs);
        handover.leave(&mut mine);
        assert!(mine.is_empty());
        handover.ends();
        assert!(handover.has_some(), "the one who stops looks once more");
        handover.take(&mut theirs);
        assert_eq!(theirs, [1, 2]);
        assert!(!handover.has_some());
    }

    /// Its own list is never empty: what was left has its turn all the same.
    #[test]
    fn one_who_always_has_something_takes_what_was_left() {
        let handover = Handover::default();
        handover.bequeath(&mut VecDeque::from([2, 3]));
        let mut due = VecDeque::from([1]);
        let mut done = Vec::new();
        for _ in 0..3 {
            handover.begins(&mut due);
            let turn = due.pop_front().unwrap();
            done.push(turn);
            due.extend(Some(turn).filter(|&turn| turn == 1));
            handover.ends();
        }
        assert_eq!(done, [1, 2, 3]);
        assert_eq!(due, [1]);
    }

    #[test]
    fn one_who_listens_is_woken() {
        let handover = Handover::default();
        let mut mine = VecDeque::from([1, 2]);
        handover.leave_and_ring(&mut mine);
        assert_eq!(mine.len(), 2, "nobody listens");
        let bells = [Arc::new(Notify::new()), Arc::new(Notify::new())];
        bells.iter().for_each(|bell| handover.joins(Arc::clone(bell)));
        let rings = |bell: &Arc<Notify>| std::pin::pin!(bell.notified()).as_mut().enable();
        handover.leave_and_ring(&mut mine);
        assert!(mine.is_empty() && handover.has_some());
        assert_eq!(bells.each_ref().map(rings), [true, false]);
        mine.push_back(3);
        handover.leave_and_ring(&mut mine);
        assert_eq!(bells.each_ref().map(rings), [false, true], "in turns");
        let mut theirs = VecDeque::new();
        handover.take(&mut theirs);
        assert_eq!(theirs, [1, 2, 3]);
        bells.iter().for_each(|bell| handover.leaves(bell));
        handover.leave_and_ring(&mut theirs);
        assert_eq!(theirs.len(), 3, "nobody listens any more");
    }

    #[test]
    fn the_end_of_a_long_list_is_shared() {
        let handover = Handover::default();
        let mut mine: VecDeque<_> = (0..SHARED_ABOVE).collect();
        handover.share(&mut mine);
        assert_eq!(mine.len(), SHARED_ABOVE, "not long");
        mine.push_back(SHARED_ABOVE);
        handover.share(&mut mine);
        let mut theirs = VecDeque::new();
        handover.take(&mut theirs);
        assert!(mine.iter().copied().eq(0..TAKEN), "{mine:?}");
        assert!(theirs.iter().copied().eq(TAKEN..2 * TAKEN), "{theirs:?}");
        assert!(handover.has_some());
    }

    #[test]
    fn who_ends_leaves_all_of_it() {
        let handover = Handover::default();
        let (mut mine, mut theirs) = (VecDeque::from([1, 2]), VecDeque::new());
        handover.bequeath(&mut mine);
        assert!(mine.is_empty());
        handover.take(&mut theirs);
        assert_eq!(theirs, [1, 2], "whether anybody was at work or not");
        handover.bequeath(&mut mine);
        assert!(!handover.has_some());
    }

    /// Workers come and go while others leave things: each is done once.
    #[test]
    fn nothing_stays_behind() {
        const EACH: usize = 20_000;
        let handover = Arc::new(Handover::default());
        let worker = |handover: Arc<Handover<usize>>| {
            let mut done = VecDeque::new();
            for _ in 0..EACH {
                loop {
                    handover.begins(&mut done);
                    handover.ends();
                    if !handover.has_some() {
                        break;
                    }
                }
            }
            done
        };
        let leaver = |handover: Arc<Handover<usize>>, first: usize| {
            let mut done = VecDeque::new();
            for number in first..first + EACH {
                let mut due = VecDeque::from([number]);
                handover.leave(&mut due);
                done.append(&mut due);
            }
            done
        };
        let mut threads = Vec::new();
        for number in 0..2 {
            let (one, other) = (Arc::clone(&handover), Arc::clone(&handover));
            threads.push(std::thread::spawn(move || worker(one)));
            threads.push(std::thread::spawn(move || leaver(other, number * EACH)));
        }
        let mut all: Vec<_> =
            threads.into_iter().flat_map(|thread| thread.join().expect("a thread")).collect();
        all.sort_unstable();
        assert_eq!(all, (0..2 * EACH).collect::<Vec<_>>());
    }
}
