//! What happened, as one number to compare runs by, and as the last lines to read after a failure.

use std::collections::VecDeque;
use std::fmt;

/// The trace of one run.
#[derive(Debug)]
pub(crate) struct Trace {
    hash: u64,
    events: u64,
    /// How many lines to keep. They cost time: only a run that is known to fail keeps any.
    lines_max: usize,
    recent: VecDeque<String>,
}

impl Trace {
    pub(crate) fn new(lines_max: usize) -> Self {
        Self { hash: 0xCBF2_9CE4_8422_2325, events: 0, lines_max, recent: VecDeque::new() }
    }

    /// Adds an event. `line` is only made when somebody is going to read it.
    pub(crate) fn event(&mut self, facts: [u64; 3], line: impl FnOnce() -> String) {
        for fact in facts {
            self.mix(fact);
        }
        self.events += 1;
        if self.lines_max > 0 {
            self.line(format!("{:>7} {}", self.events, line()));
        }
    }

    /// Adds words that say more about the last event; they are no part of the hash.
    pub(crate) fn line(&mut self, line: String) {
        if self.recent.len() >= self.lines_max {
            self.recent.pop_front();
        }
        self.recent.push_back(line);
    }

    /// Adds bytes that somebody got to see.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.mix(u64::from_le_bytes(*word)));
        rest.iter().for_each(|&byte| self.mix(u64::from(byte)));
    }

    fn mix(&mut self, fact: u64) {
        self.hash = (self.hash ^ fact).wrapping_mul(0x0000_0100_0000_01B3).rotate_left(23);
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.recent.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}
