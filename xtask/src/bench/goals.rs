//! What the figures are to be, and whether they are.

use super::Workload;

/// A bound of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Goal {
    /// No more than this.
    AtMost(f64),
    /// No less than this.
    AtLeast(f64),
}

use Goal::{AtLeast, AtMost};

impl Goal {
    /// Whether a value is as it is to be.
    pub(crate) fn is_met(self, value: f64) -> bool {
        match self {
            AtMost(bound) => value <= bound,
            AtLeast(bound) => value >= bound,
        }
    }
}

/// The backlogs: nothing stalls, memory stays, the disk follows what is live. The constants of the disk are
/// one file of 64 MiB for each of two shards.
const BACKLOG: [(&str, Goal); 8] = [
    ("worst second, % of the median", AtLeast(90.0)),
    ("peak memory above idle, MB", AtMost(40.0)),
    ("peak memory, % of the watermark", AtMost(100.0)),
    ("over the bound at the worst moment, MB", AtMost(0.0)),
    ("disk after publishing, of live bytes", AtMost(1.3)),
    ("disk in the worst second, MB", AtMost(135.0)),
    ("disk after passing, MB", AtMost(135.0)),
    ("disk after draining, MB", AtMost(135.0)),
];

/// A gain that two runs of the same do not have.
const ABOVE_NOISE: f64 = 1.05;
/// Two runs of the same differ by as much.
const NO_LESS_PERCENT: f64 = 95.0;

const RULES: [(&str, Goal); 4] = [
    ("q, enqueue", AtMost(4.0)),
    ("q, first", AtMost(3.0)),
    ("q, ack", AtMost(3.0)),
    ("q, ack-lean", AtMost(2.7)),
];

/// The goal of a figure, by the end of its name.
pub(crate) fn of(workload: Workload, figure: &str) -> Option<Goal> {
    let goals: &[(&str, Goal)] = match workload {
        Workload::M => &[("RSS, MB", AtMost(10.0)), ("start, ms", AtMost(100.0))],
        Workload::Connections => &[("KB each", AtMost(15.0))],
        Workload::Queues => &[("KB each", AtMost(2.0))],
        Workload::K2Small => {
            &[("broker CPU s per million", AtMost(0.5)), ("tool CPU s per million", AtMost(1.0))]
        }
        Workload::K2Large => {
            &[("broker CPU s per million", AtMost(1.2)), ("tool CPU s per million", AtMost(2.0))]
        }
        Workload::S1 => &[("broker CPU s per million", AtMost(1.5))],
        Workload::S3 => &[("mean, us", AtMost(60.0))],
        Workload::K1 | Workload::K1Queues | Workload::K1Unacked | Workload::K1Stopped => &BACKLOG,
        Workload::Growth => &[("bytes of memory for each more", AtMost(1.0))],
        Workload::Resident => &[("over the bound at the worst moment, MB", AtMost(0.0))],
        Workload::P if figure.starts_with("CPU") => &RULES,
        Workload::P if figure.contains(", of 1 q") => &[("", AtLeast(1.0))],
        Workload::P99 => &[("p99 at 80 %, us", AtMost(1000.0))],
        Workload::Cores => &[("two cores, of one", AtLeast(ABOVE_NOISE))],
        Workload::Api => &[(": ms", AtMost(200.0)), ("% of that alone", AtLeast(NO_LESS_PERCENT))],
        Workload::BesideQueues | Workload::BesideConnections => {
            &[("% of that alone", AtLeast(NO_LESS_PERCENT))]
        }
        Workload::Relay => &[("of the socket copies alone", AtMost(1.3))],
        Workload::Recovery => {
            &[("of 1 KB: ms to ready", AtMost(1000.0)), ("queues: ms to ready", AtMost(5000.0))]
        }
        _ => &[],
    };
    goals.iter().find(|(end, _)| figure.ends_with(end)).map(|(_, goal)| *goal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_found_by_the_end_of_a_name() {
        assert_eq!(of(Workload::P, "CPU s per million, 15 q, ack"), Some(AtMost(3.0)));
        assert_eq!(of(Workload::P, "CPU s per million, 15 q, ack-lean"), Some(AtMost(2.7)));
        assert_eq!(of(Workload::P, "messages/s, 15 q, ack"), None);
        assert_eq!(of(Workload::P, "messages/s, 30 q, of 1 q, ack"), Some(AtLeast(1.0)));
        let worst = of(Workload::K1Stopped, "passing: worst second, % of the median").unwrap();
        assert!(worst.is_met(90.0) && !worst.is_met(89.0));
        assert!(AtMost(1.3).is_met(1.3) && !AtMost(1.3).is_met(1.31));
    }
}
