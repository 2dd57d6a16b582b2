//! Document 002: three programs in Go against a mirrored queue.

use super::{Document, Experiment, Picture, View, quoted};
use crate::case::{Case, Length, Measure};

const CLUSTER: Document = Document {
    number: "002",
    title: "A cluster of RabbitMQ for reliable messages, with clients in Go",
    machine: "three hosts in a network of 1 Gb/s, one queue mirrored on all three",
};

const NO_MIRRORS: &str = "The document's queue was mirrored on three nodes: that needs a cluster, which this version does not have. What \
                          is measured is one node; compare it with the document's figures with that in mind.";

/// The queue of the programs: through the default exchange, without confirms, not persistent.
const QUEUE: &str = "-e '' -u mirrored.queue -ad false";

pub(super) static SCENARIO_1: Experiment = Experiment {
    name: "scenario-1",
    document: &CLUSTER,
    requirements: &["S002-14", "S002-18", "S002-22"],
    title: "one producer, no consumer, 100,000 messages of 1 KB",
    about: "As the program in Go does: transient messages, no confirms, through the default exchange, four runs. The rate is that of the \
            sender: the time in which all messages were written.",
    missing: Some(NO_MIRRORS),
    repeats: 4,
    settings: &[],
    cases: |_| {
        vec![Case::new("producer", format!("-x 1 -y 0 -s 1024 -C 100000 {QUEUE}")).takes(3.0)]
    },
    quoted: &[quoted("RabbitMQ, three nodes", "producer", 40_000.0)],
    views: &[View::Figures(Picture::Bars)],
};

pub(super) static SCENARIO_2: Experiment = Experiment {
    name: "scenario-2",
    document: &CLUSTER,
    requirements: &["S002-15", "S002-18", "S002-22"],
    title: "one producer, one consumer without acks, 100,000 messages of 1 KB",
    about: "The same with a consumer that need not ack. The document's figure is the sender's.",
    missing: Some(NO_MIRRORS),
    repeats: 4,
    settings: &[],
    cases: |_| {
        let load = format!("-x 1 -y 1 -a -s 1024 -C 100000 -D 100000 {QUEUE}");
        vec![Case::new("producer", load).also("consumer", Measure::Consumed).takes(3.0)]
    },
    quoted: &[quoted("RabbitMQ, three nodes", "producer", 70_000.0)],
    views: &[View::Figures(Picture::Bars)],
};

pub(super) static SCENARIO_3: Experiment = Experiment {
    name: "scenario-3",
    document: &CLUSTER,
    requirements: &["S002-16", "S002-18", "S002-22"],
    title: "the latency of one message per millisecond",
    about: "A producer sends the time, 19 digits, once in a millisecond; the consumer compares. The document takes the mean of ten messages; \
            here it is that of 100,000 (quick: 10,000). Everything is on one machine here, where the document had a network between.",
    missing: Some(NO_MIRRORS),
    repeats: 1,
    settings: &[],
    cases: |length| {
        let load = format!("latency -x 1 -y 1 -a -r 1000 -s 19 {QUEUE}");
        let case = Case::new("one message per ms", load).shows(Measure::Latency);
        vec![case.lasts(length.seconds(100.0, 10.0))]
    },
    quoted: &[quoted("RabbitMQ, three nodes", "one message per ms", 300.0)],
    views: &[View::Figures(Picture::Bars)],
};

pub(super) static LATENCY: Experiment = Experiment {
    name: "latency",
    document: &CLUSTER,
    requirements: &["S002-17"],
    title: "latency against load: what happens without the pause of a millisecond",
    about: "The document warns that without a pause between messages RabbitMQ's latency rises without end. First the highest rate of 1 KB \
            messages from one producer to one consumer without acks is measured; then the latency at shares of that rate. \
            At 100 % every message waits in a queue that only grows; the goal is a 99th percentile that stays bounded at 80 %.",
    missing: None,
    repeats: 1,
    settings: &[],
    cases: latency,
    quoted: &[],
    views: &[View::Load],
};

fn latency(length: Length) -> Vec<Case> {
    let seconds = length.seconds(30.0, 1.8);
    let load = format!("-x 1 -y 1 -a -s 1024 {QUEUE}");
    let mut cases = vec![Case::new("no limit", load.clone())];
    for percent in [1, 10, 25, 50, 80, 90] {
        let row = format!("{percent} %");
        let case = Case::new(row, format!("latency {load}")).share_of_first(f64::from(percent));
        cases.push(case);
    }
    let timed = |case: Case| case.shows(Measure::Latency).lasts(seconds);
    cases.into_iter().map(timed).collect()
}
