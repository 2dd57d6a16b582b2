//! Rates that a connection keeps to: a publisher that is too fast is not read for a while, and a consumer that is
//! too fast is given nothing. Nobody else waits, and nobody is told: it is over in a moment.
//!
//! What passed is counted anyway; only connections with a limit look at it, once per frame that they read and
//! once per letter of deliveries.

use leveret_topology::Rates;

use crate::core::{Context, Core};

/// The rates of a connection that has any.
#[derive(Debug)]
pub(crate) struct Pace {
    rates: Rates,
    /// Messages and bytes published when they were last looked at.
    published: (u64, u64),
    /// What its consumers are kept back by: so much of the gauge is taken. 0 when they are not.
    kept_back: u64,
}

impl Core {
    fn published(&self) -> (u64, u64) {
        let sizes = &self.totals.sizes;
        (sizes.counts.iter().sum(), sizes.bytes)
    }

    /// Looks again which limits there are, if they may have changed.
    pub(crate) fn refresh_pace(&mut self, cx: &Context<'_>) {
        let generation = cx.topology.access_generation();
        if self.paced_at == generation {
            return;
        }
        self.paced_at = generation;
        let rates = cx.topology.rates(&self.identity.user, self.identity.vhost);
        match (&mut self.pace, rates) {
            (Some(pace), rates) => pace.rates = rates.unwrap_or_default(),
            (None, Some(rates)) => {
                let published = self.published();
                self.pace = Some(Box::new(Pace { rates, published, kept_back: 0 }));
            }
            (None, None) => {}
        }
    }

    /// Takes what was published since the last time. True when nothing more is to be read.
    #[cold]
    pub(crate) fn pace_publishes(&mut self, cx: &Context<'_>) -> bool {
        let now = self.published();
        let Some(pace) = &mut self.pace else { return false };
        let (messages, bytes) = (now.0 - pace.published.0, now.1 - pace.published.1);
        pace.published = now;
        let wait_ms = pace.rates.published(messages, bytes, cx.now);
        self.is_slowed = wait_ms > 0 && !self.peer_closed;
        self.timers.pace(wait_ms, cx.now);
        self.is_slowed
    }

    /// Takes what was delivered, and keeps consumers back if that was too fast.
    pub(crate) fn pace_deliveries(&mut self, messages: usize, cx: &Context<'_>) {
        let limit = self.settings.output_bytes_max;
        let Some(pace) = &mut self.pace else { return };
        let wait_ms = pace.rates.delivered(messages as u64, cx.now);
        self.timers.pace(wait_ms, cx.now);
        if wait_ms > 0 && pace.kept_back == 0 {
            pace.kept_back = limit;
            self.gauge.added(limit);
        } else if wait_ms == 0 && pace.kept_back > 0 {
            let kept_back = std::mem::take(&mut pace.kept_back);
            self.resumes |= self.gauge.released(kept_back);
        }
    }

    /// A wait may be over.
    pub(crate) fn pace_again(&mut self, cx: &Context<'_>) {
        self.refresh_pace(cx);
        self.pace_publishes(cx);
        self.pace_deliveries(0, cx);
    }
}
