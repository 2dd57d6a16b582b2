//! Document 001: a queue that nobody consumes, past the memory it may take.

use super::{Document, Experiment, View};
use crate::case::{Case, Length};

const PROCESSES: Document = Document {
    number: "001",
    title: "RabbitMQ's processes and how to tune them (Li Shuai, Tencent CMQ)",
    machine: "a machine it does not name; RabbitMQ 3.5 or 3.6, two nodes in figure 6",
};

pub(super) static PAGING: Experiment = Experiment {
    name: "paging",
    document: &PROCESSES,
    requirements: &["S001-9", "S001-10", "S001-11", "S001-13", "S001-14", "S001-15", "S001-16"],
    title: "a backlog grows past the memory limit: figures 5 and 6",
    about: "A durable queue without a consumer, persistent messages of 1 KB, one producer at full rate. In figure 5 RabbitMQ \
            reaches its paging threshold, and the rate falls for long: 18 MB of messages are in memory, the process holds \
            2 GB. In figure 6, after the article's change, each of three times is over within seconds. Look for seconds in \
            which the rate falls by more than a tenth and how long they last, and at the memory: it should stop growing. A broker that is \
            started for this has its memory limited to 512 MB; another one's limit has to be set before (RabbitMQ: \
            vm_memory_high_watermark.absolute). The second run has confirms, 1000 messages in flight, so that each message's wait is seen: \
            a pause of the broker is the longest of them. It takes a byte of disk for each byte published, 8 GB at most.",
    missing: Some(
        "Figure 6 was taken on two mirrored nodes (S001-15 asks for three replicas): that needs a cluster, which this version does not \
         have. Its load runs here on one node.",
    ),
    repeats: 1,
    settings: &["vm_memory_high_watermark.absolute=512MB"],
    cases: paging,
    quoted: &[],
    views: &[View::Seconds],
};

fn paging(length: Length) -> Vec<Case> {
    let seconds = length.seconds(60.0, 7.0);
    let count = length.pick(8_000_000, 2_000_000);
    let load =
        format!("-x 1 -y 0 -s 1024 -f persistent -e amq.direct -u paging -ad false -C {count}");
    vec![
        Case::new("figure 5: no confirms", load.clone()).lasts(seconds),
        Case::new("figure 6: with confirms", format!("{load} -c 1000")).lasts(seconds),
    ]
}
