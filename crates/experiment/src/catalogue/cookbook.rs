//! Document 003: a cookbook's recipes for speed.

use super::{Document, Experiment, Picture, View};
use crate::case::{Case, Length, Measure, ORDINARY};

const COOKBOOK: Document = Document {
    number: "003",
    title: "RabbitMQ Cookbook, chapter 8: performance tuning",
    machine: "a notebook with two cores and 4 GB; figures are in screenshots only",
};

const SWEEP: &str = "The document refers to the two parts of RabbitMQ's performance measurements (2012) for how single parameters matter; this \
                     is one of their scenarios, and their figures are not in the document.";

pub(super) static THREADS: Experiment = Experiment {
    name: "threads",
    document: &COOKBOOK,
    requirements: &["S003-1", "S003-2"],
    title: "1 to 8 channels for producers and consumers, 128 bytes",
    about: "ProducerMain N 10000 128 and ConsumerMain N: a connection for all producers and one for all consumers, a channel for each of \
            N threads, 10 seconds, 128 bytes, one queue. The document says to look for the best N on one's own machine.",
    missing: None,
    repeats: 3,
    settings: &[],
    cases: |length| {
        let threads = |count: u32| {
            let plural = if count == 1 { "" } else { "s" };
            let queue = "-s 128 -e '' -u perf_queue_08/01 -ad false";
            let load = format!("-x 1 -X {count} -y 1 -Y {count} -q 1000 {queue}");
            Case::new(format!("{count} thread{plural}"), load)
                .shows(Measure::Consumed)
                .lasts(length.seconds(10.0, 2.5))
        };
        [1, 2, 4, 8].map(threads).into()
    },
    quoted: &[],
    views: &[View::Figures(Picture::Lines("threads"))],
};

pub(super) static SMALL: Experiment = Experiment {
    name: "small-messages",
    document: &COOKBOOK,
    requirements: &["S003-14"],
    title: "32-byte messages for 300 seconds, all consumed at once",
    about: "One producer, one consumer that need not ack, on one machine. In the document the same runs again with RabbitMQ compiled to \
            machine code, which saves up to 40 % of its CPU: compare CPU seconds per million messages, and that the rate does not change over \
            the time.",
    missing: None,
    repeats: 1,
    settings: &[],
    cases: |length| {
        let load = "-x 1 -y 1 -a -s 32 -e '' -u perf_queue_08/02 -ad false";
        let case = Case::new("consumed", load).shows(Measure::Consumed);
        vec![
            case.also("the broker, for a million messages", Measure::Cpu)
                .lasts(length.seconds(300.0, 10.0)),
        ]
    },
    quoted: &[],
    views: &[View::Figures(Picture::Bars), View::Seconds],
};

/// Two fifths of the notebook's memory: what the producer is ahead of the consumers may not take more.
const NOTEBOOK: &[&str] = &["vm_memory_high_watermark.absolute=1600MB"];

/// The recipe's queue and messages.
const LARGE: &str = "-x 1 -s 64000 -e '' -u perf_queue_08/03 -ad false";

pub(super) static PREFETCH: Experiment = Experiment {
    name: "prefetch",
    document: &COOKBOOK,
    requirements: &["S003-16", "S003-18"],
    title: "prefetch 50 against prefetch 1, two consumers, 64,000 bytes",
    about: "ProducerMain 1 100000 64000 against ConsumerMain 2 50 0 0 and 2 1 0 0: one producer, two consumers on a connection that ack each \
            message, 100 seconds. With a prefetch of 1 a consumer has nothing to do while its ack is on the way. The producer is not \
            slowed by acks, so what it is ahead lies in the queue: a broker that is started for this may take 1.6 GB, two fifths of the notebook's \
            memory, and blocks the producer then.",
    missing: None,
    repeats: 3,
    settings: NOTEBOOK,
    cases: |length| {
        let prefetch = |count: u32| {
            Case::new(format!("prefetch {count}"), format!("{LARGE} -y 1 -Y 2 -q {count}"))
                .shows(Measure::Consumed)
                .lasts(length.seconds(100.0, 4.0))
        };
        [50, 1].map(prefetch).into()
    },
    quoted: &[],
    views: &[View::Figures(Picture::Bars)],
};

pub(super) static NO_ACK: Experiment = Experiment {
    name: "no-ack",
    document: &COOKBOOK,
    requirements: &["S003-17"],
    title: "a consumer without acks against one that acks, 64,000 bytes",
    about: "ConsumerMain 1 1 1 0 (one thread, no acks; its prefetch has no meaning then) and the same with acks, 1 1 0 0, beside one producer \
            of 64,000 bytes; and with acks and a prefetch of 50.",
    missing: None,
    repeats: 3,
    settings: NOTEBOOK,
    cases: |length| {
        let case = |row, flags| {
            Case::new(row, format!("{LARGE} -y 1 {flags}"))
                .shows(Measure::Consumed)
                .lasts(length.seconds(100.0, 3.0))
        };
        vec![
            case("no acks", "-a"),
            case("an ack for each, prefetch 1", "-q 1"),
            case("an ack for each, prefetch 50", "-q 50"),
        ]
    },
    quoted: &[],
    views: &[View::Figures(Picture::Bars)],
};

pub(super) static MIRRORED: Experiment = Experiment {
    name: "mirrored",
    document: &COOKBOOK,
    requirements: &["S003-22", "S003-31"],
    title: "640-byte messages through a queue with a mirror and without",
    about: "ProducerMain 1 100000 640 and ConsumerMain 1 0 0 0: one producer, one consumer that acks each message, no limit of prefetch. In the \
            document a cluster of two small machines does about 2,000 messages a second more when its queue is not mirrored.",
    missing: Some(
        "The mirrored half needs a cluster, which this version does not have: the queue without a mirror is run. On another broker that is a \
         cluster, a policy for ^perf_ makes the mirror.",
    ),
    repeats: 3,
    settings: &[],
    cases: |length| {
        let load = "-x 1 -y 1 -s 640 -e '' -u perf_queue_08/03 -ad false";
        let case = Case::new("not mirrored", load).shows(Measure::Consumed);
        vec![case.lasts(length.seconds(100.0, 8.0))]
    },
    quoted: &[],
    views: &[View::Figures(Picture::Bars)],
};

pub(super) static TX: Experiment = Experiment {
    name: "tx",
    document: &COOKBOOK,
    requirements: &["S003-25", "S003-26"],
    title: "transactions against confirms: each message, and a hundred at a time",
    about: "The document warns that transactions kill performance, most of all with a commit for each message, which waits for the disk. One \
            producer of persistent messages of 640 bytes, one consumer; a confirm means that the message is stored (the rule enqueue), as a \
            commit does.",
    missing: None,
    repeats: 3,
    settings: &[],
    cases: |length| {
        let case = |row, flags| {
            let queue = "-s 640 -e '' -u perf_tx -ad false";
            Case::new(row, format!("-x 1 -y 1 -q 1000 -A 10 {flags} {queue}"))
                .lasts(length.seconds(30.0, 2.0))
        };
        vec![
            case("transient, neither", ""),
            case("persistent, neither", "-f persistent"),
            case("confirms, one at a time", "-f persistent -c 1").rule(ORDINARY),
            case("confirms, 100 at a time", "-f persistent -c 100").rule(ORDINARY),
            case("a commit for each message", "-f persistent -m 1"),
            case("a commit for 100 messages", "-f persistent -m 100"),
        ]
    },
    quoted: &[],
    views: &[View::Figures(Picture::Bars)],
};

pub(super) static MESSAGE_SIZE: Experiment = Experiment {
    name: "message-size",
    document: &COOKBOOK,
    requirements: &["S003-29", "S003-20"],
    title: "12 bytes to 100,000 bytes: messages per second",
    about: SWEEP,
    missing: None,
    repeats: 3,
    settings: &[],
    cases: |length| sweep(length, [12, 100, 1000, 10_000, 100_000], "bytes", "-a -s"),
    quoted: &[],
    views: &[View::Figures(Picture::Lines("bytes"))],
};

pub(super) static PREFETCH_SWEEP: Experiment = Experiment {
    name: "prefetch-sweep",
    document: &COOKBOOK,
    requirements: &["S003-29", "S003-15"],
    title: "prefetch 1 to 1000: messages per second of a consumer that acks each",
    about: SWEEP,
    missing: None,
    repeats: 3,
    settings: &[],
    cases: |length| sweep(length, [1, 5, 20, 100, 1000], "prefetched", "-s 100 -q"),
    quoted: &[],
    views: &[View::Figures(Picture::Lines("messages prefetched"))],
};

pub(super) static CONSUMERS: Experiment = Experiment {
    name: "consumers",
    document: &COOKBOOK,
    requirements: &["S003-29"],
    title: "1 to 20 consumers of one queue",
    about: SWEEP,
    missing: None,
    repeats: 3,
    settings: &[],
    cases: |length| sweep(length, [1, 2, 5, 10, 20], "consumers", "-s 100 -q 100 -y"),
    quoted: &[],
    views: &[View::Figures(Picture::Lines("consumers"))],
};

/// One producer, and a flag that takes each of these values.
fn sweep(length: Length, values: [u32; 5], unit: &str, flag: &str) -> Vec<Case> {
    let case = |value| {
        Case::new(
            format!("{value} {unit}"),
            format!("-x 1 {flag} {value} -e '' -u perf_sweep -ad false"),
        )
        .shows(Measure::Consumed)
        .lasts(length.seconds(30.0, 2.0))
    };
    values.map(case).into()
}
