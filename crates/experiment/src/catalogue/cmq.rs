//! Document 004: producing, consuming, and both, in messages stored three times.

use super::{Document, Experiment, Picture, View, quoted};
use crate::case::{Case, Length, Measure, ORDINARY};

const CMQ: Document = Document {
    number: "004",
    title: "Tencent Cloud: CMQ compared with RabbitMQ",
    machine: "three servers with 24 cores, 64 GB, twelve disks and 10 Gb/s each; RabbitMQ 3.6.2",
};

const PRODUCED: &str = "production only";
const CONSUMED: &str = "consumption only";
const BOTH_PRODUCED: &str = "both at once: produced";
const BOTH_CONSUMED: &str = "both at once: consumed";

const SERVICE: &str = "CMQ, three nodes";
const RABBITMQ: &str = "RabbitMQ 3.6.2, three nodes";

pub(super) static COLUMNS: Experiment = Experiment {
    name: "columns",
    document: &CMQ,
    requirements: &["S004-9", "S004-10", "S004-11"],
    title: "production only, consumption only, both at once: the document's three columns",
    about: "Persistent messages of 1 KB, confirms and acks. A message is confirmed when it is stored (the rule enqueue). The document does \
            not say how many clients there were: here two producers with 1000 messages in flight, two consumers with a prefetch of 1000 and an ack for \
            every hundred.",
    missing: Some(
        "The document's messages were stored on three servers: that needs a cluster, which this version does not have. What one node has is \
         run: the three columns with one copy of each message.",
    ),
    repeats: 3,
    settings: &[],
    cases: columns,
    quoted: &[
        quoted(SERVICE, PRODUCED, 68_000.0),
        quoted(SERVICE, CONSUMED, 90_000.0),
        quoted(SERVICE, BOTH_PRODUCED, 36_000.0),
        quoted(SERVICE, BOTH_CONSUMED, 36_000.0),
        quoted(RABBITMQ, PRODUCED, 12_500.0),
        quoted(RABBITMQ, CONSUMED, 26_000.0),
        quoted(RABBITMQ, BOTH_PRODUCED, 8_500.0),
        quoted(RABBITMQ, BOTH_CONSUMED, 8_500.0),
    ],
    views: &[View::Figures(Picture::Bars)],
};

fn columns(length: Length) -> Vec<Case> {
    let seconds = length.seconds(30.0, 4.0);
    let each = length.pick(1_000_000, 100_000);
    // A consumer that is done keeps what was prefetched for it: the other must not wait for that.
    let taken = each - 2000;
    let queue = "-s 1024 -f persistent -e amq.direct -u columns -ad false";
    let (producers, consumers) = ("-x 2 -c 1000", "-y 2 -q 1000 -A 100");
    vec![
        Case::new(PRODUCED, format!("{producers} -y 0 {queue}")).lasts(seconds),
        Case::new(CONSUMED, format!("-x 0 {consumers} -D {taken} {queue}"))
            .after(format!("{producers} -y 0 -C {each} {queue}"))
            .shows(Measure::Consumed)
            .takes(length.pick(15.0, 4.0)),
        Case::new(BOTH_PRODUCED, format!("{producers} {consumers} {queue}"))
            .also(BOTH_CONSUMED, Measure::Consumed)
            .lasts(seconds),
    ]
    .into_iter()
    .map(|case| case.rule(ORDINARY))
    .collect()
}
