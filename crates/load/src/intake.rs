//! What is noted of each message that comes.
//!
//! Hot path: no allocation per message, one clock call per read; messages published together are
//! recorded together.

use std::collections::HashMap;
use std::io::Read as _;
use std::sync::Arc;

use flate2::read::GzDecoder;
use leveret_client::amqp::content::RawProperties;

use crate::content::unpack;
use crate::plan::Plan;
use crate::stamp::{self, Clock};
use crate::stats::{Counter, Tally};
use crate::verify::{Head, Ledger, Seen};

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
    check: Option<Check>,
    /// Bodies are taken apart.
    is_packed: bool,
    unpacked: u64,
    /// Where bodies are decompressed, if they are.
    inflated: Option<Vec<u8>>,
}

/// Accounts for what is consumed.
#[derive(Debug)]
struct Check {
    ledger: Arc<Ledger>,
    /// After the highest number of each queue and producer.
    next: HashMap<(usize, u32), u64>,
    seen: Vec<Seen>,
}

impl Check {
    fn take(&mut self, queue: usize, redelivered: bool, body: &[u8]) {
        let head = Head::read(body);
        let mut is_late = false;
        if let Some(head) = head.filter(|head| head.run == self.ledger.run()) {
            let next = self.next.entry((queue, head.producer)).or_default();
            is_late = head.number < *next;
            *next = (head.number + 1).max(*next);
        }
        self.seen.push(Seen { queue, redelivered, head, is_late });
    }
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
            check: plan.ledger.clone().map(|ledger| Check {
                ledger,
                next: HashMap::new(),
                seen: Vec::new(),
            }),
            is_packed: plan.content.packed.is_some(),
            unpacked: 0,
            inflated: plan.content.compressed.map(|_| Vec::new()),
        }
    }

    /// What is taken from here on has come now.
    pub(crate) fn begin(&mut self) {
        self.now = self.clock.now();
    }

    /// Takes a message; `queue` is only asked for if it matters.
    pub(crate) fn take(
        &mut self,
        redelivered: bool,
        properties: RawProperties<'_>,
        body: &[u8],
        queue: impl FnOnce() -> usize,
    ) {
        self.consumed += 1;
        self.redelivered += u64::from(redelivered);
        if let Some(check) = &mut self.check {
            check.take(queue(), redelivered, body);
        }
        if self.is_packed || self.inflated.is_some() {
            self.take_apart(body);
        }
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

    fn take_apart(&mut self, body: &[u8]) {
        let body = match &mut self.inflated {
            None => body,
            Some(inflated) => {
                inflated.clear();
                // What is not compressed is not ours, and holds nothing.
                if GzDecoder::new(body).read_to_end(inflated).is_err() {
                    return;
                }
                inflated
            }
        };
        if self.is_packed {
            self.unpacked += unpack(body);
        }
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
        if let Some(check) = &mut self.check {
            check.ledger.see(&check.seen);
            check.seen.clear();
        }
        if self.unpacked > 0 {
            tally.add(Counter::Unpacked, std::mem::take(&mut self.unpacked));
        }
        if self.redelivered > 0 {
            tally.add(Counter::Redelivered, std::mem::take(&mut self.redelivered));
        }
        if !self.latencies.is_empty() {
            tally.record_all(&self.latencies);
            self.latencies.clear();
        }
    }
}
