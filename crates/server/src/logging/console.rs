//! The console: standard output or error, which another program reads, or does not.
//!
//! A line is written by the thread that has something to say, and a pipe that nobody reads takes no more after 64 KiB. So no
//! line waits for long: the first one that finds no room waits for [`PATIENCE`], and is lost then; those behind it are lost at
//! once, until there is room again. How many were lost is told.

use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tracing_subscriber::fmt::MakeWriter;

use crate::locks::{Rank, Ranked};

/// How long a line waits for a reader that has kept up so far.
const PATIENCE: Duration = Duration::from_millis(200);

/// Bytes that a pipe takes at once if it takes any (`PIPE_BUF`).
const PIECE: usize = 4096;

/// Standard output or error.
#[derive(Clone, Debug)]
pub(super) struct Console(Arc<Ranked<State>>);

#[derive(Debug)]
struct State {
    to: OwnedFd,
    /// The last line found no room.
    is_stuck: bool,
    /// Lines that were lost, and how many of them were told.
    lost: u64,
    told: u64,
}

impl Console {
    pub(super) fn new(to: impl AsFd) -> io::Result<Self> {
        let to = to.as_fd().try_clone_to_owned()?;
        let state = State { to, is_stuck: false, lost: 0, told: 0 };
        Ok(Self(Arc::new(Ranked::new(Rank::LogFile, state))))
    }

    /// How many lines were lost, if there are more than were told.
    fn lost(&self) -> Option<u64> {
        let mut state = self.0.lock();
        let is_new = state.lost > state.told;
        state.told = state.lost;
        is_new.then_some(state.lost)
    }

    /// Tells of lines that were lost, if there are new ones.
    pub(super) fn tell_lost(&self) {
        if let Some(lost) = self.lost() {
            tracing::warn!(
                lost,
                "lines of the log were not written to the console, as nothing reads it"
            );
        }
    }
}

impl State {
    /// Whether there is room for a piece, now or soon.
    fn has_room(&self, patience: Duration) -> bool {
        let mut waits = [PollFd::new(&self.to, PollFlags::OUT)];
        let limit = Timespec {
            tv_sec: patience.as_secs().cast_signed(),
            tv_nsec: patience.subsec_nanos().into(),
        };
        matches!(poll(&mut waits, Some(&limit)), Ok(1..))
    }

    /// Whether a line was written.
    fn put(&mut self, line: &[u8]) -> bool {
        let mut rest = line;
        while !rest.is_empty() {
            let patience = if self.is_stuck { Duration::ZERO } else { PATIENCE };
            if !self.has_room(patience) {
                return false;
            }
            let (piece, _) = rest.split_at(rest.len().min(PIECE));
            match rustix::io::write(&self.to, piece) {
                Ok(written) => rest = rest.get(written..).unwrap_or_default(),
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
        true
    }
}

impl Write for Console {
    /// Takes the whole line in any case.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut state = self.0.lock();
        state.is_stuck = !state.put(line);
        state.lost += u64::from(state.is_stuck);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Console {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_reader_that_stops_costs_one_wait_and_lines_that_are_counted() {
        const LINES: u64 = 2000;
        let (mut reader, writer) = io::pipe().expect("a pipe");
        let mut console = Console::new(&writer).expect("a copy");
        let line = |n: u64| format!("{n:099}\n").into_bytes();
        let began = Instant::now();
        for n in 0..LINES {
            console.write_all(&line(n)).expect("it takes all");
        }
        assert!(began.elapsed() < 10 * PATIENCE, "{:?}", began.elapsed());
        let lost = console.lost().expect("a pipe has 64 KiB");
        assert!((LINES / 2..LINES).contains(&lost), "{lost}");
        assert_eq!(console.lost(), None, "it is told once");

        let mut got = vec![0; (LINES - lost) as usize * 100];
        reader.read_exact(&mut got).expect("what was written");
        let want: Vec<u8> = (0..LINES - lost).flat_map(line).collect();
        assert!(got == want, "whole lines, the first ones");
        console.write_all(&line(LINES)).expect("it takes all");
        let mut got = [0; 100];
        reader.read_exact(&mut got).expect("one that came later");
        assert_eq!(got[..], line(LINES));
        assert_eq!(console.lost(), None);
        drop(reader);
        console.write_all(&line(0)).expect("it takes all");
        assert_eq!(console.lost(), Some(lost + 1));
    }
}
