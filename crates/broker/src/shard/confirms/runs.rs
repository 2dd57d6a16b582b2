//! Hot path. What publishers are told at the end of a batch, in few letters.
//!
//! Confirms become runs of consecutive sequence numbers of one channel with one verdict. What comes in
//! order joins the run before it; what is interleaved (the disk finished messages of many connections)
//! is sorted before it leaves. The session takes runs in any order.
//!
//! Budget: no allocation per message once warm.

use crate::message::{ChannelId, ConnectionId, Outbox, ToSession};

/// What is said about a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verdict {
    /// Resolved by every queue here.
    Ok,
    /// Not taken, or not as its queue's rule wants it.
    Failed,
    /// The publisher waited long enough: no answer of other shards is awaited either.
    TimedOut,
}

/// Messages `first..=last` of one channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Run {
    to: ConnectionId,
    channel: ChannelId,
    first: u64,
    last: u64,
    verdict: Verdict,
}

impl Run {
    fn goes_on_with(&self, next: &Self) -> bool {
        (self.to, self.channel, self.verdict) == (next.to, next.channel, next.verdict)
            && self.last + 1 == next.first
    }
}

/// Runs on their way.
#[derive(Debug, Default)]
pub(super) struct Runs {
    runs: Vec<Run>,
}

/// Room kept for runs.
const KEPT_RUNS: usize = 4096;

impl Runs {
    /// Message `seq` of the channel has its verdict.
    #[inline]
    pub(super) fn add(&mut self, to: ConnectionId, channel: ChannelId, seq: u64, verdict: Verdict) {
        let next = Run { to, channel, first: seq, last: seq, verdict };
        match self.runs.last_mut() {
            Some(run) if run.goes_on_with(&next) => run.last = seq,
            _ => self.runs.push(next),
        }
    }

    /// Sends everything.
    pub(super) fn flush(&mut self, out: &mut Outbox) {
        if self.runs.len() > 1 {
            self.runs.sort_unstable();
        }
        let mut runs = self.runs.drain(..).peekable();
        while let Some(mut run) = runs.next() {
            while let Some(next) = runs.next_if(|next| run.goes_on_with(next)) {
                run.last = next.last;
            }
            let Run { to, channel, first, last, verdict } = run;
            let letter = match verdict {
                Verdict::TimedOut => ToSession::ConfirmTimeout { channel, first, last },
                verdict => {
                    let ok = verdict == Verdict::Ok;
                    ToSession::Confirm { channel, first, last, ok }
                }
            };
            out.session(to, letter);
        }
        drop(runs);
        if self.runs.capacity() > KEPT_RUNS {
            self.runs = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::NodeId;

    /// `1:7` is message 7 of connection 1, `-` failed, `!` timed out.
    #[track_caller]
    fn check(told: &str, want: &str) {
        let mut runs = Runs::default();
        for word in told.split_whitespace() {
            let (to, seq) = word.split_once(':').unwrap();
            let verdict = match &to[..1] {
                "-" => Verdict::Failed,
                "!" => Verdict::TimedOut,
                _ => Verdict::Ok,
            };
            let to = NodeId::ALONE.connection(to.trim_matches(['-', '!']).parse().unwrap());
            runs.add(to, 1, seq.parse().unwrap(), verdict);
        }
        let mut out = Outbox::default();
        runs.flush(&mut out);
        let said: Vec<String> = out
            .sessions
            .iter()
            .map(|(to, letter)| match letter {
                ToSession::Confirm { first, last, ok, .. } => {
                    format!("{}{}:{first}..{last}", if *ok { "" } else { "-" }, to.number())
                }
                ToSession::ConfirmTimeout { first, last, .. } => {
                    format!("!{}:{first}..{last}", to.number())
                }
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(said.join(" "), want, "{told}");
    }

    #[test]
    #[rustfmt::skip] // a table
    fn confirms_become_runs() {
        check("1:1 1:2 1:3",             "1:1..3");
        check("1:1 1:2 -1:3 1:4 1:5",    "1:1..2 -1:3..3 1:4..5");
        check("1:5 1:7",                 "1:5..5 1:7..7");
        check("1:1 2:1 1:2 2:2 1:3",     "1:1..3 2:1..2");     // interleaved
        check("1:3 1:2 1:1",             "1:1..3");            // acked backwards
        check("!1:1 !1:2",               "!1:1..2");
        check("",                        "");
    }
}
