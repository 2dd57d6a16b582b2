//! What is noted of each message that comes.
//!
//! Hot path: no allocation per message, one clock call per read; messages published together are
//! recorded together.

use leveret_client::amqp::content::RawProperties;

use crate::plan::Plan;
use crate::stamp::{self, Clock};
use crate::stats::{Counter, Tally};

/// Counts messages and their latencies, until they are reported.
#[derive(Debug)]
pub(crate) struct Intake {
    clock: Clock,
    time_in_header: bool,
    /// Messages whose latency is not counted yet.
    warm_up: u64,
    now: u64,
    consumed: u64,
    redelivered: u64,
    /// The stamp of the last messages and how many had it.
    run: (u64, u64),
    latencies: Vec<(u64, u64)>,
}

impl Intake {
    pub(crate) fn new(plan: &Plan) -> Self {
        Self {
            clock: plan.clock,
            time_in_header: plan.content.time_at.is_some(),
            warm_up: plan.consuming.warm_up,
            now: 0,
            consumed: 0,
            redelivered: 0,
            run: (0, 0),
            latencies: Vec::new(),
        }
    }

    /// What is taken from here on has come now.
    pub(crate) fn begin(&mut self) {
        self.now = self.clock.now();
    }

    pub(crate) fn take(&mut self, redelivered: bool, properties: RawProperties<'_>, body: &[u8]) {
        self.consumed += 1;
        self.redelivered += u64::from(redelivered);
        if self.warm_up > 0 {
            self.warm_up -= 1;
            return;
        }
        let time =
            if self.time_in_header { stamp::read_header(properties) } else { stamp::read(body) };
        let Some(time) = time else { return };
        if time != self.run.0 {
            self.end_run();
            self.run.0 = time;
        }
        self.run.1 += 1;
    }

    fn end_run(&mut self) {
        let (stamp, count) = self.run;
        if count > 0 {
            self.latencies.push((self.clock.between(stamp, self.now), count));
            self.run.1 = 0;
        }
    }

    /// Hands over what was taken since [`begin`](Self::begin).
    pub(crate) fn report(&mut self, tally: &Tally) {
        self.end_run();
        if self.consumed == 0 {
            return;
        }
        tally.add(Counter::Consumed, std::mem::take(&mut self.consumed));
        if self.redelivered > 0 {
            tally.add(Counter::Redelivered, std::mem::take(&mut self.redelivered));
        }
        if !self.latencies.is_empty() {
            tally.record_all(&self.latencies);
            self.latencies.clear();
        }
    }
}
