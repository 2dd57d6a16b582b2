//! Work that takes long, a few pieces at a time, on threads of their own.

use std::collections::VecDeque;
use std::io;

use tokio::sync::mpsc;

type Work<T> = Box<dyn FnOnce() -> T + Send>;

/// Runs pieces of work in the order in which they came, so many at a time at most: the others wait.
pub(super) struct Workers<T> {
    name: &'static str,
    most: usize,
    running: usize,
    waiting: VecDeque<Work<T>>,
    done: mpsc::UnboundedSender<T>,
    came: mpsc::UnboundedReceiver<T>,
}

impl<T: Send + 'static> Workers<T> {
    /// `name` is that of the threads.
    pub(super) fn new(name: &'static str, most: usize) -> Self {
        let (done, came) = mpsc::unbounded_channel();
        Self { name, most, running: 0, waiting: VecDeque::new(), done, came }
    }

    /// Takes a piece of work. Its turn may come later.
    ///
    /// # Errors
    ///
    /// When the system gives no thread.
    pub(super) fn begin(&mut self, work: impl FnOnce() -> T + Send + 'static) -> io::Result<()> {
        self.waiting.push_back(Box::new(work));
        self.go_on()
    }

    fn go_on(&mut self) -> io::Result<()> {
        while self.running < self.most {
            let Some(work) = self.waiting.pop_front() else { break };
            let done = self.done.clone();
            let thread = std::thread::Builder::new().name(self.name.to_owned());
            thread.spawn(move || drop(done.send(work())))?;
            self.running += 1;
        }
        Ok(())
    }

    /// What the next piece of work came to; waits for ever if there is none. Nothing is lost if it is not waited for to its end.
    ///
    /// # Errors
    ///
    /// When the system gives no thread for what waits.
    pub(super) async fn next(&mut self) -> io::Result<T> {
        let Some(came) = self.came.recv().await else { return std::future::pending().await };
        self.running -= 1;
        self.go_on()?;
        Ok(came)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Condvar, Mutex};

    use super::*;

    /// More than fit run one after the other, and each comes to its end.
    #[test]
    fn few_run_at_a_time() {
        const ALL: usize = 20;
        const MOST: usize = 3;
        let state = Arc::new((Mutex::new((0, 0)), Condvar::new()));
        let mut workers = Workers::new("test", MOST);
        for number in 0..ALL {
            let state = Arc::clone(&state);
            let work = move || {
                let (counts, changed) = &*state;
                let mut counts = counts.lock().unwrap();
                counts.0 += 1;
                counts.1 = counts.1.max(counts.0);
                changed.notify_all();
                // The first ones wait for each other: so many run at once.
                let full = |counts: &mut (usize, usize)| counts.1 < MOST;
                counts = changed.wait_while(counts, full).unwrap();
                counts.0 -= 1;
                number
            };
            workers.begin(work).unwrap();
        }
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut came: Vec<_> =
            (0..ALL).map(|_| runtime.block_on(workers.next()).unwrap()).collect();
        came.sort_unstable();
        assert_eq!(came, (0..ALL).collect::<Vec<_>>());
        assert_eq!(state.0.lock().unwrap().1, MOST);
    }
}
