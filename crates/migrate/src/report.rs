//! What is told: on the standard error stream what is being done, on standard output what was.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use leveret_ctl::{Code, Fault};

use crate::queues::Queue;

/// How often a line is written of a queue that takes long, where lines stay.
const LINE: Duration = Duration::from_secs(10);

/// What became of a queue's messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Ready when it began.
    pub(crate) found: u64,
    pub(crate) moved: u64,
    /// Ready on the old broker when it ended.
    pub(crate) left: u64,
    /// Of others, when it began.
    pub(crate) consumers: u32,
    /// Why it did not go on to the end.
    pub(crate) why: Option<String>,
    /// What else is to be told of it.
    pub(crate) note: Option<String>,
}

impl Outcome {
    /// Not even begun.
    pub(crate) fn not_moved(queue: &Queue, why: &str) -> Self {
        Self { found: queue.ready, left: queue.ready, why: Some(why.to_owned()), ..Self::default() }
    }
}

/// A line of the table.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) vhost: String,
    pub(crate) queue: String,
    pub(crate) outcome: Outcome,
    /// Messages that others have and have not acked.
    pub(crate) unacked: u64,
    /// It goes with its connection, or is a stream: there is nothing to be done about what is in it.
    stays: bool,
    /// Messages that were ready at first, as far as the API knew.
    told_ready: u64,
}

impl Row {
    pub(crate) fn new(queue: &Queue, outcome: Outcome) -> Self {
        let (vhost, name) = (queue.vhost.clone(), queue.name.clone());
        let stays = queue.is_exclusive || queue.is_stream();
        Self { vhost, queue: name, outcome, unacked: 0, stays, told_ready: queue.ready }
    }

    /// Of a queue that is only looked at.
    pub(crate) fn not_yet(queue: &Queue) -> Self {
        let why = queue.why_not_yet();
        let outcome = Outcome { found: queue.ready, left: queue.ready, why, ..Outcome::default() };
        Self { unacked: queue.unacked, ..Self::new(queue, outcome) }
    }

    /// The API told of messages, and over AMQP the queue had none: they may have been taken meanwhile.
    pub(crate) fn is_empty_before_all(&self) -> bool {
        let Outcome { found, moved, why, .. } = &self.outcome;
        !self.stays && self.told_ready > 0 && *found == 0 && *moved == 0 && why.is_none()
    }

    /// The API still tells of so many. A queue whose nodes do not answer the broker is empty over AMQP.
    pub(crate) fn doubt(&mut self, ready: u64) {
        self.outcome.left = ready;
        self.outcome.why = Some(
            "the old broker's API tells of messages, and over AMQP the queue has none: do its nodes run? Run it again"
                .to_owned(),
        );
    }

    /// Whether the old broker still has something that could come along one day.
    fn is_left(&self) -> bool {
        let Outcome { left, why, .. } = &self.outcome;
        !self.stays && (*left > 0 || why.is_some() || self.unacked > 0)
    }

    /// Whether there is anything to tell.
    fn is_told(&self) -> bool {
        self.outcome.moved > 0 || self.outcome.found > 0 || self.is_left()
    }

    fn words(&self) -> String {
        let mut words: Vec<String> = self.outcome.why.clone().into_iter().collect();
        if self.unacked > 0 {
            words.push(format!(
                "{} are with consumers that have not acked them: stop those, and run it again",
                self.unacked
            ));
        }
        words.extend(self.outcome.note.clone());
        words.join("; ")
    }
}

/// Where a run tells what it does.
#[derive(Debug)]
pub(crate) struct Report {
    is_terminal: bool,
    last_line: Instant,
    /// When the messages began to move.
    began: Instant,
    /// Those of queues that are done with.
    moved: u64,
    /// Those that were ready in queues that are not.
    waiting: u64,
}

impl Report {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        let is_terminal = std::io::stderr().is_terminal();
        Self { is_terminal, last_line: now, began: now, moved: 0, waiting: 0 }
    }

    /// The messages of these begin to move.
    pub(crate) fn begin(&mut self, queues: &[Queue]) {
        let all = queues.iter().filter(|queue| queue.why_not().is_none());
        (self.began, self.waiting) = (Instant::now(), all.map(|queue| queue.ready).sum());
    }

    /// A line of the result.
    pub(crate) fn say(&self, text: &str) -> Result<(), Fault> {
        writeln!(std::io::stdout(), "{text}").map_err(|error| {
            Fault::new(Code::Software, format!("cannot write the output: {error}"))
        })
    }

    /// Something that is not taken along.
    pub(crate) fn note(&self, text: &str) {
        self.line(&format!("left out: {text}"));
    }

    /// Something to be known.
    pub(crate) fn remark(&self, text: &str) {
        self.line(&format!("note: {text}"));
    }

    /// How far a queue is and all of them are, about once a second.
    pub(crate) fn at(&mut self, queue: &Queue, moved: u64, found: u64, word: &str) {
        if !self.is_terminal && self.last_line.elapsed() < LINE {
            return;
        }
        self.last_line = Instant::now();
        let word = if word.is_empty() { String::new() } else { format!("; {word}") };
        let behind = self.waiting.saturating_sub(queue.ready);
        let left = behind + found.saturating_sub(moved);
        let time = time_left(self.began.elapsed(), self.moved + moved, left);
        let (vhost, name) = (&queue.vhost, &queue.name);
        let text = format!("{vhost} {name}: {moved} of {found}; {left} to go{time}{word}");
        match self.is_terminal {
            // In the place of the line before; without an end it is overwritten.
            true => eprint!("\r\x1b[K{text}"),
            false => self.line(&text),
        }
    }

    /// A queue is done with.
    pub(crate) fn done(&mut self, queue: &Queue, outcome: &Outcome) {
        self.last_line = Instant::now();
        self.moved += outcome.moved;
        if queue.why_not().is_none() {
            self.waiting = self.waiting.saturating_sub(queue.ready);
        }
        if outcome.moved == 0 && outcome.why.is_none() {
            return;
        }
        let why = outcome.why.as_ref().map(|why| format!("; {why}")).unwrap_or_default();
        let (vhost, name) = (&queue.vhost, &queue.name);
        self.line(&format!("{vhost} {name}: {} moved{why}", outcome.moved));
    }

    fn line(&self, text: &str) {
        eprintln!("{}{text}", if self.is_terminal { "\r\x1b[K" } else { "" });
    }

    /// The summary; an error when something is left.
    pub(crate) fn table(&self, rows: &[Row], is_dry: bool) -> Result<(), Fault> {
        let head =
            ["vhost", "queue", if is_dry { "ready" } else { "moved" }, "left", "unacked", ""];
        let mut lines = vec![head.map(str::to_owned)];
        for row in rows.iter().filter(|row| row.is_told()) {
            let Outcome { found, moved, left, .. } = row.outcome;
            let counts = [if is_dry { found } else { moved }, left, row.unacked];
            let [first, left, unacked] = counts.map(|count| count.to_string());
            lines.push([row.vhost.clone(), row.queue.clone(), first, left, unacked, row.words()]);
        }
        if lines.len() > 1 {
            self.say(&aligned(&lines))?;
        }
        let sum = |of: fn(&Row) -> u64| rows.iter().map(of).sum::<u64>();
        if is_dry {
            let ready = sum(|row| row.outcome.found);
            return self
                .say(&format!("{} queues, {ready} messages ready; nothing was moved", rows.len()));
        }
        let moved = sum(|row| row.outcome.moved);
        self.say(&format!("{} queues, {moved} messages moved", rows.len()))?;
        let left: Vec<_> = rows.iter().filter(|row| row.is_left()).collect();
        if left.is_empty() {
            return Ok(());
        }
        let text =
            format!("not everything was moved: see the lines of {} queues above", left.len());
        Err(Fault::new(Code::TempFail, text))
    }
}

/// How long it will be until so many more are moved, if they go as those before them: nothing as long as none is.
fn time_left(since: Duration, moved: u64, left: u64) -> String {
    if moved == 0 || left == 0 {
        return String::new();
    }
    let seconds = since.as_secs_f64() * left as f64 / moved as f64;
    match seconds.ceil() as u64 {
        seconds @ ..100 => format!(", about {seconds} s"),
        seconds @ ..6_000 => format!(", about {} min", seconds.div_ceil(60)),
        seconds => format!(", about {} h", seconds.div_ceil(3_600)),
    }
}

/// In columns; the last one is as long as it likes.
fn aligned(lines: &[[String; 6]]) -> String {
    let width = |column: usize| {
        let all = lines.iter().map(|line| line[column].chars().count());
        all.max().unwrap_or(0)
    };
    let widths: [usize; 5] = std::array::from_fn(width);
    let rows = lines.iter().map(|line| {
        let padded = line.iter().zip(widths).enumerate().map(|(at, (text, width))| match at {
            0 | 1 => format!("{text:<width$}"),
            _ => format!("{text:>width$}"),
        });
        let row = padded.collect::<Vec<_>>().join("  ");
        format!("{row}  {}", line[5]).trim_end().to_owned()
    });
    rows.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn time_that_is_left() {
        let check = |seconds, moved, left, want: &str| {
            assert_eq!(time_left(Duration::from_secs(seconds), moved, left), want);
        };
        check(3,   0,       300_000,     "");
        check(3,   300_000, 0,           "");
        check(10,  100_000, 200_001,     ", about 21 s");
        check(10,  100_000, 999_999,     ", about 2 min");
        check(600, 1,       10,          ", about 2 h");
        check(1,   1,       u64::MAX,    ", about 5124095576030432 h");
    }
}
