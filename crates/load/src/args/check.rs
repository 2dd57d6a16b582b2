//! Options that do not go together.

use super::{Mode, Options};
use crate::verify::HEAD_BYTES;

impl Options {
    pub(super) fn check(&self) -> Result<(), String> {
        self.check_numbers()?;
        self.check_topology()?;
        self.check_publishing()?;
        self.check_consuming()?;
        self.check_extras()?;
        let idle = self.output.idle_connections.is_some() || self.output.idle_queues.is_some();
        let (producers, consumers) = (self.publishing.producers, self.consuming.consumers);
        if producers == 0 && consumers == 0 && !idle {
            return Err("neither producers nor consumers: nothing to do".into());
        }
        if self.mode == Mode::Latency && (producers == 0 || consumers == 0) {
            return Err("latency needs a producer and a consumer".into());
        }
        if idle && self.output.broker_pid.is_none() {
            return Err("idle costs are read from the broker's process: give --broker-pid".into());
        }
        Ok(())
    }

    fn check_numbers(&self) -> Result<(), String> {
        let positive = |rate: Option<f64>| rate.is_none_or(|rate| rate > 0.0 && rate < 1e9);
        let (publishing, consuming) = (&self.publishing, &self.consuming);
        if !positive(publishing.rate)
            || !positive(consuming.consumer_rate)
            || !positive(self.limits.time)
            || !positive(publishing.publishing_interval)
        {
            return Err("rates and times must be above zero".into());
        }
        if publishing.producer_random_start_delay.is_some_and(|s| !(0.0..1e6).contains(&s)) {
            return Err("--producer-random-start-delay must be seconds from zero on".into());
        }
        if !(0.1..1e6).contains(&self.output.interval) {
            return Err("--interval must be at least 0.1 seconds".into());
        }
        if publishing.producer_channel_count == 0 || consuming.consumer_channel_count == 0 {
            return Err("producers and consumers have at least one channel".into());
        }
        Ok(())
    }

    fn check_topology(&self) -> Result<(), String> {
        let topology = &self.topology;
        let ways = [
            !topology.queue.is_empty(),
            topology.queue_pattern.is_some(),
            topology.queue_file.is_some(),
        ];
        if ways.into_iter().filter(|way| *way).count() > 1 {
            return Err("--queue, --queue-pattern and --queue-file exclude each other".into());
        }
        if let (Some(pattern), Some(last)) = (&topology.queue_pattern, topology.queue_pattern_to) {
            if !pattern.contains("%d") {
                return Err("--queue-pattern must contain %d".into());
            }
            if last < topology.queue_pattern_from {
                return Err("--queue-pattern-to is below --queue-pattern-from".into());
            }
        }
        if topology.predeclared && !ways.contains(&true) {
            return Err("--predeclared needs --queue, --queue-pattern or --queue-file".into());
        }
        if topology.quorum_queue && topology.stream_queue {
            return Err("--quorum-queue and --stream-queue exclude each other".into());
        }
        Ok(())
    }

    fn check_publishing(&self) -> Result<(), String> {
        let publishing = &self.publishing;
        let paces = [
            publishing.rate.is_some(),
            !publishing.variable_rate.is_empty(),
            publishing.publishing_interval.is_some(),
        ];
        if paces.into_iter().filter(|pace| *pace).count() > 1 {
            let text = "--rate, --variable-rate and --publishing-interval exclude each other";
            return Err(text.into());
        }
        if publishing.confirm == Some(0) {
            return Err("--confirm needs a window of at least one message".into());
        }
        if publishing.confirm.is_some() && publishing.ptxsize.is_some_and(|size| size > 0) {
            return Err("a channel has confirms or transactions, not both".into());
        }
        if !publishing.body.is_empty() && publishing.json_body {
            return Err("--body and --json-body exclude each other".into());
        }
        let is_given = !publishing.body.is_empty() || publishing.json_body;
        if is_given && !publishing.variable_size.is_empty() {
            return Err("--variable-size is for bodies that the tool makes itself".into());
        }
        if publishing.json_body && (publishing.body_count == 0 || publishing.body_field_count == 0)
        {
            return Err("--body-count and --body-field-count must be above zero".into());
        }
        Ok(())
    }

    fn check_extras(&self) -> Result<(), String> {
        let (extras, publishing) = (&self.extras, &self.publishing);
        let is_given = !publishing.body.is_empty() || publishing.json_body;
        let is_kept = self.output.output_file.is_some() || self.metrics.metrics_prometheus;
        if extras.sweep.is_some() && is_kept {
            return Err(
                "--output-file and --metrics-prometheus are for one run, not for a --sweep".into(),
            );
        }
        let is_reworked = extras.compress || extras.pack.is_some_and(|count| count > 0);
        if extras.verify && (is_given || is_reworked || !publishing.variable_size.is_empty()) {
            return Err("--verify makes bodies of its own, of one size".into());
        }
        if extras.verify && publishing.size.is_some_and(|size| size < HEAD_BYTES) {
            return Err(format!("--verify needs bodies of at least {HEAD_BYTES} bytes"));
        }
        if is_reworked && !publishing.variable_size.is_empty() {
            return Err("--variable-size goes neither with --pack nor with --compress".into());
        }
        Ok(())
    }

    fn check_consuming(&self) -> Result<(), String> {
        let consuming = &self.consuming;
        let every = consuming.multi_ack_every.unwrap_or(0);
        if consuming.autoack && every > 0 {
            return Err("--autoack and --multi-ack-every exclude each other".into());
        }
        if consuming.autoack && consuming.nack {
            return Err("--autoack and --nack exclude each other".into());
        }
        for prefetch in [consuming.qos, consuming.global_qos].into_iter().flatten() {
            if prefetch != 0 && every > u64::from(prefetch) {
                return Err(format!(
                    "with prefetch {prefetch}, acknowledging every {every} messages waits for ever"
                ));
            }
        }
        Ok(())
    }
}
