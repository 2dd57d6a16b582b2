//! Values that vary over a run: each holds for its time, then the next, and then from the beginning.

use crate::args::values::Step;

/// One value, or several in turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Steps {
    steps: Vec<Step>,
    cycle_s: u64,
}

impl Steps {
    /// `None` without a step.
    pub(crate) fn new(steps: &[Step]) -> Option<Self> {
        let cycle_s = steps.iter().map(|step| step.seconds).sum();
        (cycle_s > 0).then(|| Self { steps: steps.to_vec(), cycle_s })
    }

    /// A value that does not vary.
    pub(crate) fn fixed(value: u64) -> Self {
        Self { steps: vec![Step { value, seconds: 1 }], cycle_s: 1 }
    }

    /// Whether it varies at all.
    pub(crate) fn varies(&self) -> bool {
        self.steps.len() > 1
    }

    /// The number of the step at a time since the start.
    pub(crate) fn number_at(&self, elapsed_ns: u64) -> usize {
        let mut second = elapsed_ns / 1_000_000_000 % self.cycle_s;
        for (number, step) in self.steps.iter().enumerate() {
            match second.checked_sub(step.seconds) {
                None => return number,
                Some(rest) => second = rest,
            }
        }
        0
    }

    /// The value at a time since the start.
    pub(crate) fn at(&self, elapsed_ns: u64) -> u64 {
        if self.varies() {
            self.steps[self.number_at(elapsed_ns)].value
        } else {
            self.steps[0].value
        }
    }

    /// All values, one for each step.
    pub(crate) fn values(&self) -> impl Iterator<Item = u64> {
        self.steps.iter().map(|step| step.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_follow_each_other_and_begin_again() {
        let step = |value, seconds| Step { value, seconds };
        let steps = Steps::new(&[step(200, 2), step(0, 1), step(500, 3)]).unwrap();
        let at = |tenths: u64| steps.at(tenths * 100_000_000);
        let times = [0, 19, 20, 29, 30, 59, 60, 79, 80];
        assert_eq!(times.map(at), [200, 200, 0, 0, 500, 500, 200, 200, 0]);
        assert!(steps.varies() && !Steps::fixed(7).varies());
        assert_eq!(Steps::fixed(7).at(u64::MAX), 7);
        assert_eq!(Steps::new(&[]), None);
    }
}
