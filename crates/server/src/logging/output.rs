//! Where lines of the log go, each with a thread of its own: no thread that has something to say waits for a disk or for who
//! reads the console.
//!
//! What waits for the thread is bounded. A line that finds no room is lost, and so is one that cannot be written: they are
//! counted, and told.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar};
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

use crate::locks::{Rank, Ranked};

/// How much may wait, in bytes: more than a node has to say in a second.
const WAITING_MAX: usize = 1 << 20;

/// What anything that waits takes besides its bytes.
const JOB_BYTES: usize = 64;

/// What lines are written to.
pub(super) trait Sink: Send + 'static {
    /// Writes one line, or a part of it if that fails.
    fn put(&mut self, line: &[u8]) -> io::Result<()>;
}

/// One of the log's outputs.
pub(super) struct Output<S>(Arc<Shared<S>>);

struct Shared<S> {
    /// Its name, as it is told.
    name: String,
    state: Ranked<State<S>>,
    /// There is more to do.
    more: Condvar,
}

struct State<S> {
    waiting: VecDeque<Job<S>>,
    /// What those take.
    bytes: usize,
    /// Lines that were lost, and how many of them were told.
    lost: u64,
    told: u64,
    /// Why the last one was lost, if it was not for room.
    error: Option<io::Error>,
}

enum Job<S> {
    Line(Box<[u8]>),
    Call(Box<dyn FnOnce(&mut S) + Send>),
}

impl<S> Job<S> {
    fn bytes(&self) -> usize {
        match self {
            Self::Line(line) => line.len() + JOB_BYTES,
            Self::Call(_) => JOB_BYTES,
        }
    }
}

impl<S> State<S> {
    /// Whether there was room for it.
    fn push(&mut self, job: Job<S>) -> bool {
        let bytes = self.bytes + job.bytes();
        // A line that is longer than all of the room is written if it is the only one.
        let fits = bytes <= WAITING_MAX || self.waiting.is_empty();
        if fits {
            self.bytes = bytes;
            self.waiting.push_back(job);
        }
        fits
    }
}

impl<S: Sink> Output<S> {
    /// Begins to write to `sink`.
    pub(super) fn start(name: String, sink: S) -> io::Result<Self> {
        let state = State { waiting: VecDeque::new(), bytes: 0, lost: 0, told: 0, error: None };
        let state = Ranked::new(Rank::LogOutput, state);
        let shared = Arc::new(Shared { name, state, more: Condvar::new() });
        let ours = Arc::clone(&shared);
        std::thread::Builder::new().name("log".to_owned()).spawn(move || ours.run(sink))?;
        Ok(Self(shared))
    }

    /// Has the thread do something when all is written that was there before. `None` if it does not come to that in time: then
    /// it is not done later either, unless it has begun.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        patience: Duration,
        what: impl FnOnce(&mut S) -> T + Send + 'static,
    ) -> Option<T> {
        let (answer, answered) = channel();
        // Whoever takes it away decides: the thread, which begins, or who asks, who gives up.
        let open = Arc::new(AtomicBool::new(true));
        let ours = Arc::clone(&open);
        let is_asked = self.call(move |sink| {
            if ours.swap(false, Ordering::Relaxed) {
                let _ = answer.send(what(sink));
            }
        });
        if !is_asked {
            return None;
        }
        let answered = answered.recv_timeout(patience).ok();
        open.store(false, Ordering::Relaxed);
        answered
    }

    /// As [`ask`](Self::ask), for no answer. Whether there was room for it.
    pub(super) fn call(&self, what: impl FnOnce(&mut S) + Send + 'static) -> bool {
        let fits = self.0.state.lock().push(Job::Call(Box::new(what)));
        self.0.more.notify_one();
        fits
    }

    /// Waits until all is written that was said before, not longer than that.
    pub(super) fn flush(&self, patience: Duration) {
        let _ = self.ask(patience, |_| ());
    }

    /// How many lines were lost and why the last one was, if there are more than were told.
    fn lost(&self) -> Option<(u64, String)> {
        let mut state = self.0.state.lock();
        let (lost, told) = (state.lost, state.told);
        state.told = lost;
        let why = state.error.as_ref();
        let why = why.map_or_else(|| "it was too slow".to_owned(), ToString::to_string);
        (lost > told).then_some((lost, why))
    }

    /// Tells of lines that were lost, if there are new ones.
    pub(super) fn tell_lost(&self) {
        if let Some((lost, why)) = self.lost() {
            let to = &self.0.name;
            tracing::warn!(lost, "lines of the log were not written to {to}: {why}");
        }
    }
}

impl<S: Sink> Shared<S> {
    /// What its thread does, as long as the process lives.
    fn run(&self, mut sink: S) -> ! {
        loop {
            let job = self.next();
            let bytes = job.bytes();
            let failed = match job {
                Job::Line(line) => sink.put(&line).err(),
                Job::Call(call) => {
                    call(&mut sink);
                    None
                }
            };
            let mut state = self.state.lock();
            // Only now: what is being written waits still.
            state.bytes -= bytes;
            if let Some(error) = failed {
                state.lost += 1;
                state.error = Some(error);
            }
        }
    }

    fn next(&self) -> Job<S> {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.waiting.pop_front() {
                return job;
            }
            state = state.wait(&self.more);
        }
    }
}

impl<S> Write for &Output<S> {
    /// Takes the whole line in any case.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut state = self.0.state.lock();
        if !state.push(Job::Line(line.into())) {
            state.lost += 1;
            state.error = None;
        }
        drop(state);
        self.0.more.notify_one();
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a, S: 'a> MakeWriter<'a> for Output<S> {
    type Writer = &'a Self;

    fn make_writer(&'a self) -> &'a Self {
        self
    }
}

impl<S> Clone for Output<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S> fmt::Debug for Output<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Output").field(&self.0.name).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    /// Writes a line when it is let, and hands it on.
    struct Gate(Receiver<()>, Sender<Vec<u8>>);

    impl Sink for Gate {
        fn put(&mut self, line: &[u8]) -> io::Result<()> {
            self.0.recv().map_err(io::Error::other)?;
            self.1.send(line.to_vec()).map_err(io::Error::other)
        }
    }

    #[test]
    fn what_finds_no_room_is_counted_and_nobody_waits() {
        const LINE: usize = 1 << 10;
        const LINES: usize = 2 * WAITING_MAX / LINE;
        let ((open, gate), (put, written)) = (channel(), channel());
        let output = Output::start("the test".to_owned(), Gate(gate, put)).expect("a thread");
        let line = |n: usize| format!("{n:0width$}\n", width = LINE - 1).into_bytes();
        for n in 0..LINES {
            (&output).write_all(&line(n)).expect("it takes all");
        }
        let (lost, why) = output.lost().expect("there is no room for all");
        assert!((LINES / 2..LINES / 2 + LINES / 10).contains(&(lost as usize)), "{lost}");
        assert_eq!(why, "it was too slow");
        assert_eq!(output.lost(), None, "it is told once");
        assert_eq!(output.ask(Duration::ZERO, |_| ()), None, "nor does a call wait");

        let kept = LINES - lost as usize;
        (0..=kept).for_each(|_| open.send(()).expect("it is there"));
        for n in 0..kept {
            assert_eq!(written.recv_timeout(PATIENCE).expect("written"), line(n), "in order");
        }
        assert_eq!(output.ask(PATIENCE, |_| 7), Some(7));
        (&output).write_all(b"after\n").expect("it takes all");
        assert_eq!(written.recv_timeout(PATIENCE).expect("written"), b"after\n");
        // What cannot be written is counted too, and why is told.
        drop(open);
        (&output).write_all(b"never\n").expect("it takes all");
        output.flush(PATIENCE);
        assert_eq!(output.lost(), Some((lost + 1, "receiving on a closed channel".to_owned())));
    }

    /// Whoever was told that a rotation takes too long is not to find it done an hour later.
    #[test]
    fn what_was_given_up_is_not_done_later() {
        let ((open, gate), (put, written)) = (channel(), channel());
        let output = Output::start("the test".to_owned(), Gate(gate, put)).expect("a thread");
        let done = Arc::new(AtomicBool::new(false));
        let ours = Arc::clone(&done);
        (&output).write_all(b"first\n").expect("it takes all");
        assert_eq!(output.ask(Duration::ZERO, move |_| ours.store(true, Ordering::Relaxed)), None);
        open.send(()).expect("it is there");
        assert_eq!(written.recv_timeout(PATIENCE).expect("written"), b"first\n");
        assert_eq!(output.ask(PATIENCE, |_| 7), Some(7), "what comes behind it is done");
        assert!(!done.load(Ordering::Relaxed));
    }

    #[test]
    fn a_line_that_is_longer_than_the_room_is_written() {
        let ((open, gate), (put, written)) = (channel(), channel());
        let output = Output::start("the test".to_owned(), Gate(gate, put)).expect("a thread");
        let line = vec![b'x'; 2 * WAITING_MAX];
        open.send(()).expect("it is there");
        (&output).write_all(&line).expect("it takes all");
        assert_eq!(written.recv_timeout(PATIENCE).expect("written"), line);
        assert_eq!(output.lost(), None);
    }
}
