//! Whether a case meets its goals.

use std::fmt;

use serde::Serialize;

use super::Played;
use super::cases::CONTROL;

/// The slowest round, in ms.
const SLOWEST_MS: f64 = 100.0;
/// The 99th percentile, in ms.
const P99_MS: f64 = 20.0;
/// On a busy machine: so many times the calm 99th percentile.
const BUSY: (f64, f64) = (20.0, 4.0);
/// Memory beside what the messages take.
const MEMORY_BYTES: u64 = 150_000_000;

/// How a figure is to its goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Mark {
    Met,
    /// On a machine as busy as this one was when it was calm.
    MetForBusy,
    Missed,
    /// Nothing was measured.
    Unknown,
}

/// Each goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Verdict {
    slowest: Mark,
    p99: Mark,
    logins: Mark,
    heartbeats: Mark,
    errors: Mark,
    memory: Mark,
}

impl Verdict {
    fn marks(&self) -> [(&'static str, Mark); 6] {
        let Self { slowest, p99, logins, heartbeats, errors, memory } = *self;
        [
            ("slowest", slowest),
            ("p99", p99),
            ("logins", logins),
            ("heartbeats", heartbeats),
            ("errors", errors),
            ("memory", memory),
        ]
    }

    /// Whether none is missed.
    pub(crate) fn is_met(&self) -> bool {
        self.marks().iter().all(|(_, mark)| *mark != Mark::Missed)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |wanted| {
            let names = self.marks().into_iter().filter(|(_, mark)| *mark == wanted);
            names.map(|(name, _)| name).collect::<Vec<_>>().join(", ")
        };
        let (missed, busy) = (of(Mark::Missed), of(Mark::MetForBusy));
        match (missed.is_empty(), busy.is_empty()) {
            (true, true) => f.write_str("met"),
            (true, false) => write!(f, "met, for a busy machine: {busy}"),
            (false, _) => write!(f, "MISSED: {missed}"),
        }
    }
}

/// Compares what was measured with the goals. `None` if nothing was measured, or that has none.
pub(crate) fn judge(played: &Played) -> Option<Verdict> {
    let (calm, probed) = (played.calm.as_ref()?, played.probed.as_ref()?);
    if played.failure.is_some() || played.case == CONTROL {
        return None;
    }
    let time = |figure: f64, goal: f64, busy: f64| match figure {
        _ if figure < goal => Mark::Met,
        _ if figure < busy * calm.p99_ms => Mark::MetForBusy,
        _ => Mark::Missed,
    };
    let none = |count: u64| if count == 0 { Mark::Met } else { Mark::Missed };
    let memory = played.grew_bytes.map_or(Mark::Unknown, |grew| {
        if grew <= played.message_bytes + MEMORY_BYTES { Mark::Met } else { Mark::Missed }
    });
    Some(Verdict {
        slowest: time(probed.slowest_ms, SLOWEST_MS, BUSY.0),
        p99: time(probed.p99_ms, P99_MS, BUSY.1),
        logins: none(probed.failed_logins),
        heartbeats: none(probed.missed_heartbeats),
        errors: none(probed.errors),
        memory,
    })
}

#[cfg(test)]
mod tests {
    use leveret_load::probe::Probed;

    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn verdicts() {
        // The calm 99th percentile; slowest, 99th percentile, failed logins, growth in MB.
        check(5.0,  (99.0,   19.0, 0, 100), "met");
        check(5.0,  (100.0,  19.0, 0, 100), "MISSED: slowest");
        check(10.0, (199.0,  39.0, 0, 100), "met, for a busy machine: slowest, p99");
        check(10.0, (200.0,  40.0, 0, 100), "MISSED: slowest, p99");
        check(5.0,  (9.0,    9.0,  0, 160), "met");
        check(5.0,  (9.0,    9.0,  1, 100), "MISSED: logins");
        check(5.0,  (9.0,    9.0,  0, 161), "MISSED: memory");
    }

    fn check(
        calm_p99_ms: f64,
        (slowest_ms, p99_ms, failed_logins, grew_mb): (f64, f64, u64, u64),
        want: &str,
    ) {
        let played = Played {
            case: "x",
            title: "x".to_owned(),
            size: 1,
            broker: "x".to_owned(),
            calm: Some(Probed { p99_ms: calm_p99_ms, ..Probed::default() }),
            probed: Some(Probed { slowest_ms, p99_ms, failed_logins, ..Probed::default() }),
            control: None,
            work_s: None,
            rate: None,
            unit: "x",
            grew_bytes: Some(grew_mb * 1_000_000),
            message_bytes: 10_000_000,
            failure: None,
            verdict: None,
        };
        assert_eq!(judge(&played).unwrap().to_string(), want);
        let control = Played { case: CONTROL, ..played.clone() };
        assert_eq!(judge(&control), None);
        let failed = Played { failure: Some("no".to_owned()), ..played };
        assert_eq!(judge(&failed), None);
    }

    #[test]
    fn failures_are_misses() {
        let verdict = Verdict {
            slowest: Mark::Met,
            p99: Mark::Met,
            logins: Mark::Missed,
            heartbeats: Mark::Missed,
            errors: Mark::Met,
            memory: Mark::Unknown,
        };
        assert!(!verdict.is_met());
        assert_eq!(verdict.to_string(), "MISSED: logins, heartbeats");
    }
}
