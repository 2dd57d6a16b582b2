//! Messages that are encoded once and written often.

use leveret_client::amqp::method::basic;
use leveret_client::{Output, PublishBatch};

use crate::content::Bodies;
use crate::plan::Plan;
use crate::steps::Steps;
use crate::verify;

/// Bytes written at once. Larger writes gained nothing on loopback.
const BATCH_BYTES: usize = 64 * 1024;

/// Messages that are encoded, and where the next write begins.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) messages: PublishBatch,
    pub(crate) at: usize,
    /// Messages of one write at most.
    pub(crate) most: usize,
    /// Checksum of what is the same in all bodies, if that is needed.
    pub(crate) filler_sum: u32,
}

/// Encodes what a channel publishes, and tells the sizes if the bodies are the tool's own.
pub(crate) fn batches(
    plan: &Plan,
    output: &Output,
    channel: u16,
    publish: &basic::Publish<'_>,
) -> (Vec<Batch>, Option<Steps>) {
    let properties = &*plan.content.properties;
    let new = |bodies: Vec<&[u8]>| PublishBatch::new(output, channel, publish, properties, bodies);
    let fitting = |messages: &PublishBatch| {
        if plan.publishing.flush_each {
            return 1;
        }
        let average = messages.part(0, messages.count()).len() / messages.count();
        (BATCH_BYTES / average).max(1)
    };
    match &plan.content.bodies {
        Bodies::Zeros(sizes) => {
            let batch = |size: u64| {
                let size = usize::try_from(size).unwrap_or(usize::MAX);
                let body =
                    if plan.content.is_verified { verify::body(size) } else { vec![0; size] };
                let filler_sum = verify::filler_sum(&body);
                let most = fitting(&new(vec![&*body]));
                let most = plan.publishing.confirm_window.map_or(most, |window| most.min(window));
                let messages = new(vec![&*body; most]);
                Batch { messages, at: 0, most, filler_sum }
            };
            (sizes.values().map(batch).collect(), Some(sizes.clone()))
        }
        Bodies::Given(bodies) => {
            let bodies = || bodies.iter().map(|body| &**body);
            let most = fitting(&new(bodies().collect()));
            let count = most.next_multiple_of(bodies().len());
            let messages = new(bodies().cycle().take(count).collect());
            (vec![Batch { messages, at: 0, most, filler_sum: 0 }], None)
        }
    }
}
